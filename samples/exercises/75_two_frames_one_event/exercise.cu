// Exercise 75: two frames, one event.
//
// The exporter records the same event after frame 1, and again after
// frame 2. Frame 2 is not finished when the importer waits for frame 1.
// A wait uses the latest record, so the importer waits too long. Let
// the importer wait only for the frame that it copies. The exercise
// fails now because the importer waits for frame 2.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  Gate* gate = create_gate();
  void* frames[2] = {allocate_values(kCount, 0),
                     allocate_values(kCount, 0)};
  const cudaEvent_t first = create_shared_event();
  const cudaEvent_t second = first;  // TODO
  for (void* frame : frames) channel.send("handle", handle_of(frame));

  write_values(frames[0], kCount, kValue);
  CUDA_CHECK(cudaEventRecord(first));
  CUDA_CHECK(cudaDeviceSynchronize());
  hold(nullptr, gate);  // frame 2 takes long
  write_values(frames[1], kCount, 2 * kValue);
  CUDA_CHECK(cudaEventRecord(second));
  channel.send("event", handle_of(first));
  channel.send("event", handle_of(second));

  channel.wait("read");
  open_gate(gate);
  channel.wait("closed");
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(first));
  if (second != first) CUDA_CHECK(cudaEventDestroy(second));
  destroy_gate(gate);
  for (void* frame : frames) CUDA_CHECK(cudaFree(frame));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  void* frames[2];
  for (void*& frame : frames)
    frame = open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  const auto first =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  const auto second =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, first));
  CUDA_CHECK(
      cudaMemcpyAsync(copy, frames[0], kBytes, cudaMemcpyDefault));
  const bool held = is_held(nullptr);
  say("asks for frame 1, and is %s",
      held ? "HELD by frame 2" : "served");
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, second));
  const bool waits = is_held(nullptr);
  say("asks for frame 2, and is %s", waits ? "held" : "NOT held");
  channel.signal("read");

  const int wrong = count_wrong(copy, kCount, kValue) +
                    count_wrong(frames[1], kCount, 2 * kValue);
  say("reads both frames: %d wrong", wrong);
  CUDA_CHECK(cudaEventDestroy(first));
  CUDA_CHECK(cudaEventDestroy(second));
  for (void* frame : frames) CUDA_CHECK(cudaIpcCloseMemHandle(frame));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong + held + !waits);
}
