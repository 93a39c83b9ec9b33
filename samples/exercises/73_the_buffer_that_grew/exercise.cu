// Exercise 73: the buffer that grew.
//
// The exporter's buffer grows: the exporter frees the old buffer and
// allocates a larger buffer. The exporter gets a handle once, and sends
// this handle twice. A handle names an allocation, and the first
// allocation is freed. Fix the exporter.
// The exercise fails now because the old handle is refused, or because
// the trace finds: stale-handle.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 3000000;

int exporter(Channel& channel) {
  void* buffer = allocate_values(kCount, kOldValue);
  cudaIpcMemHandle_t handle = handle_of(buffer);
  channel.send("handle", handle);
  channel.wait("closed");

  CUDA_CHECK(cudaFree(buffer));
  buffer = allocate_values(2 * kCount, kNewValue);
  say("has a larger buffer");
  channel.send("handle", handle);
  channel.wait("closed");
  CUDA_CHECK(cudaFree(buffer));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  int wrong = 0;
  for (const int value : {kOldValue, kNewValue}) {
    void* data =
        open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
    wrong += count_wrong(data, kCount, value);
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
    channel.signal("closed");
  }
  say("reads both buffers: %d wrong", wrong);

  return exit_code(wrong);
}
