// Exercise 30: an export that nobody requested.
//
// The memory was not created for sharing, but the exporter wants to
// share it later. The export is refused: memory can be exported only in
// the ways that were requested at its creation. Fix the creation.
// The exercise fails now with an error of cuMemExportToShareableHandle.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

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

  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return exit_code(wrong);
}
