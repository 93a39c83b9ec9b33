// Exercise 35: the way back out.
//
// To give the memory back, the importer needs three calls. One call is
// missing, and the other two are in the wrong order. The driver refuses
// the first call: addresses with mapped memory cannot be freed. Make
// all three calls in the right order.
// The exercise fails now with an error of cuMemAddressFree.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
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

  channel.wait("closed");
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  size_t bytes = 0;
  const Memory memory = receive_memory(channel, &bytes);
  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);

  const auto address = reinterpret_cast<CUdeviceptr>(data);
  CU_CHECK(DRIVER(cuMemAddressFree)(address, bytes));
  CU_CHECK(DRIVER(cuMemUnmap)(address, bytes));
  channel.signal("closed");

  return exit_code(wrong);
}
