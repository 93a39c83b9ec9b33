// Exercise 02: the handle that was sent too early.
//
// The importer sometimes reads old values. The exporter launches the
// kernel that writes the new values, and sends the handle while this
// kernel still runs. Opening a handle waits for nothing. Fix the
// exporter: the kernel must end before the exporter sends the handle.
// The exercise fails now with wrong values, or because the trace finds:
// possible-race.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 22;
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 2000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kOldValue);

  write_values(data, kCount, kNewValue);  // launches a kernel
  channel.send("handle", handle_of(data));

  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = open_memory(handle);

  const int wrong = count_wrong(data, kCount, kNewValue);
  say("reads the new values: %d wrong", wrong);

  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
