// Exercise 33: find the fault: read-only is ignored.
//
// On one driver a kernel can write to a read-only mapping. Write a
// test: the importer maps the memory with
// CU_MEM_ACCESS_FLAGS_PROT_READ, and its kernel writes there.
// try_to_write() launches this kernel and returns the first error. A
// correct driver stops the kernel with cudaErrorIllegalAddress. After
// that the context is lost: the importer can only send its message and
// end.
// The exercise fails now because the importer never tries to write.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 10;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted =
      shareable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* data = map_memory(memory, bytes);
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  send_memory(channel, memory, bytes);

  channel.wait("tried");
  const int wrong = count_wrong(data, kCount, kValue);
  say("still has its values: %d wrong", wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  size_t bytes = 0;
  const Memory memory = receive_memory(channel, &bytes);
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, bytes, 0, memory, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READ};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, bytes, &access, 1));

  void* data = reinterpret_cast<void*>(address);
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  // TODO: write there with try_to_write(), and look at its error.
  channel.signal("tried");

  return exit_code(wrong);
}
