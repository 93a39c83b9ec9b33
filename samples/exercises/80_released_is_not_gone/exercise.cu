// Exercise 80: released is not gone.
//
// The importer and the exporter have released their handles of 2 GiB,
// but the memory is still in use. Like a handle, a mapping keeps the
// memory in use. Find the mapping that is left, and remove it.
// The exercise fails now because the memory is still in use.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr size_t kBytes = size_t{2} << 30;  // clear in free_memory()
constexpr int kCount = 1 << 18;             // values that are checked
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  require_free_memory(2 * kBytes);
  channel.wait("ready");
  const size_t before = free_memory();
  const CUmemAllocationProp wanted = shareable(kFd);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  void* data = map_memory(memory, kBytes);
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  send_memory(channel, memory, kBytes);

  channel.wait("released");
  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  const bool back = free_memory() + kBytes / 2 > before;
  say("has released its memory, which is %s",
      back ? "back" : "NOT BACK");
  channel.signal("looked");

  return back ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  channel.signal("ready");
  size_t bytes = 0;
  const Memory memory = receive_memory(channel, &bytes);
  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);

  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("released");
  channel.wait("looked");

  return exit_code(wrong);
}
