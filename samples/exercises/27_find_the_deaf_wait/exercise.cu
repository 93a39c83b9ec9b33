// Exercise 27: find the fault: a wait that does not wait.
//
// On one driver cudaStreamWaitEvent returns success, but does not wait
// for an imported event. The test below does not notice this, because
// the exporter's work is complete before the importer begins. Use the
// gate: hold(stream, gate) keeps a stream busy until open_gate(gate).
// The exercise fails now because the test does not notice the bug.
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

  // TODO: here?
  write_values(data, kCount, kNewValue);
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("event", handle_of(event));

  channel.wait("queued");
  // TODO: and here?
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
      is_held(nullptr) ? "held" : "not held");
  channel.signal("queued");

  const int wrong = count_wrong(copy, kCount, kNewValue);
  say("reads the copy: %d wrong", wrong);
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
