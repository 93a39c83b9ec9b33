// Exercise 10: a handle is for somebody else.
//
// Before the exporter sends a handle, it wants to test the handle. So
// it opens the handle itself, and CUDA refuses: only another process
// can open a handle. Test the memory in another way.
// The exercise fails now with an error of cudaIpcOpenMemHandle in the
// exporter.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  const cudaIpcMemHandle_t handle = handle_of(data);

  void* again = open_memory(handle);
  const int wrong = count_wrong(again, kCount, kValue);
  CUDA_CHECK(cudaIpcCloseMemHandle(again));
  say("tests its memory before the send: %d wrong", wrong);

  channel.send("handle", handle);
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return exit_code(wrong);
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
