// Exercise 79: access to one half.
//
// The importer maps two pieces of memory side by side, as one array,
// and gives its GPU access only to the first piece. The kernel writes
// to both pieces. Fix the importer.
// The exercise fails now with the error code of the kernel.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 3000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted = shareable(kFd);
  const size_t bytes = whole_granules(1, wanted);
  const int count = static_cast<int>(bytes / sizeof(int));
  Memory pieces[2];
  void* data[2];
  for (int i = 0; i < 2; ++i) {
    CU_CHECK(DRIVER(cuMemCreate)(&pieces[i], bytes, &wanted, 0));
    data[i] = map_memory(pieces[i], bytes);
    write_values(data[i], count, kOldValue);
    CUDA_CHECK(cudaDeviceSynchronize());
    send_memory(channel, pieces[i], bytes);
  }

  channel.wait("closed");
  int wrong = 0;
  for (int i = 0; i < 2; ++i) {
    wrong += count_wrong(data[i], count, kNewValue + i * count);
    unmap_memory(data[i], bytes);
    CU_CHECK(DRIVER(cuMemRelease)(pieces[i]));
  }
  say("reads the importer's values: %d wrong", wrong);

  return exit_code(wrong);
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  size_t bytes = 0;
  const Memory first = receive_memory(channel, &bytes);
  const Memory second = receive_memory(channel, &bytes);
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, 2 * bytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, bytes, 0, first, 0));
  CU_CHECK(DRIVER(cuMemMap)(address + bytes, bytes, 0, second, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, bytes, &access, 1));

  const int count = static_cast<int>(2 * bytes / sizeof(int));
  write_values(reinterpret_cast<void*>(address), count, kNewValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  say("has written all values");

  CU_CHECK(DRIVER(cuMemUnmap)(address, 2 * bytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, 2 * bytes));
  CU_CHECK(DRIVER(cuMemRelease)(first));
  CU_CHECK(DRIVER(cuMemRelease)(second));
  channel.signal("closed");

  return EXIT_SUCCESS;
}
