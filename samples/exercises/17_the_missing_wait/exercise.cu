// Exercise 17: the missing wait.
//
// The exporter's stream is held, so its kernel has not run yet. The
// importer opens the event that is recorded after that kernel, but
// copies at once and gets old values. Let the importer's stream wait
// for the event. The importer's host must not wait, because the
// exporter continues only when the copy is queued.
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
  channel.send("memory", handle_of(data));

  Gate* gate = create_gate();
  hold(nullptr, gate);
  write_values(data, kCount, kNewValue);
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  channel.send("event", handle_of(event));

  channel.wait("queued");
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

  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  say("queues a copy; its stream is %s",
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
