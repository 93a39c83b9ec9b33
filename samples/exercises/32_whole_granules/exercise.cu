// Exercise 32: physical memory comes in whole granules.
//
// The exporter passes exactly the size that it needs, and cuMemCreate
// refuses this size. Ask the driver for the granularity of such memory,
// and round the size up. The importer also needs the rounded size.
// The exercise fails now with an error of cuMemCreate.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1000;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted =
      shareable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

  const size_t bytes = kCount * sizeof(int);
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
  say("reads %d values in memory of %s: %d wrong", kCount,
      bytes == kCount * sizeof(int) ? "exactly their size"
                                    : "a larger size",
      wrong);

  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return exit_code(wrong);
}
