// Exercise 14: find the fault: a copy instead of the memory.
//
// Write a test for drivers. One driver has a bug: an open returns a
// copy of the contents at that moment, not the memory itself. Your
// program must exit with 0 on a correct driver, and with 1 on the
// driver with the bug. Now the program exits with 0 on both, because it
// reads only values that were written before the open.
// The exercise fails now because the program does not notice the bug.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kFirstValue = 1000000;
constexpr int kLaterValue = 2000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kFirstValue);
  channel.send("handle", handle_of(data));

  channel.wait("opened");
  // TODO: what could the exporter do here?
  channel.signal("go");

  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  channel.signal("opened");

  channel.wait("go");
  const int wrong = count_wrong(data, kCount, kFirstValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
