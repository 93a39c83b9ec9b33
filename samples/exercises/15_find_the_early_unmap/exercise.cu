// Exercise 15: find the fault: the first close unmaps.
//
// One driver ignores the reference count: the first close unmaps the
// memory, although the handle was opened twice. Write a test that
// notices this bug. The two opens and two closes below are in an order
// that cannot show the bug.
// The exercise fails now because the test does not notice the bug.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("handle", handle_of(data));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* first = open_memory(handle);
  const int wrong = count_wrong(first, kCount, kValue);
  CUDA_CHECK(cudaIpcCloseMemHandle(first));

  void* second = open_memory(handle);
  const int again = count_wrong(second, kCount, kValue);
  CUDA_CHECK(cudaIpcCloseMemHandle(second));
  say("reads through both pointers: %d wrong", wrong + again);
  channel.signal("closed");

  return exit_code(wrong + again);
}
