// Exercise 18: waited before it was recorded.
//
// The importer waits for an event that the exporter records later. A
// wait for an event that was never recorded does not wait. Add the
// missing step: the importer may queue its wait only after the record.
// The exercise fails now with old values in the copy.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 2000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kOldValue);
  const cudaEvent_t event = create_shared_event();
  Gate* gate = create_gate();
  channel.send("memory", handle_of(data));
  channel.send("event", handle_of(event));

  hold(nullptr, gate);
  write_values(data, kCount, kNewValue);
  channel.wait("queued");
  CUDA_CHECK(cudaEventRecord(event, nullptr));

  open_gate(gate);
  channel.wait("closed");
  CUDA_CHECK(cudaEventDestroy(event));
  destroy_gate(gate);
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("memory"));
  const cudaEvent_t event =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  say("queues a wait and a copy; its stream is %s",
      is_held(nullptr) ? "held" : "NOT held");
  channel.signal("queued");

  const int wrong = count_wrong(copy, kCount, kNewValue);
  say("reads the copy: %d wrong", wrong);
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
