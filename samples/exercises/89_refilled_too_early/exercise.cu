// Exercise 89: refilled too early.
//
// Two processes use one slot again and again: the producer fills it,
// and the consumer copies it. The consumer records an event after its
// copy, but the producer does not wait for the event. Let the
// producer's GPU wait, not its host.
// The exercise fails now because the producer is not held, or because
// the copy is wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* slot = allocate_values(kCount, 0);
  const cudaEvent_t filled = create_shared_event();
  const cudaEvent_t empty = create_shared_event();
  channel.send("slot", handle_of(slot));
  channel.send("event", handle_of(filled));
  channel.send("event", handle_of(empty));

  write_values(slot, kCount, kValue);
  CUDA_CHECK(cudaEventRecord(filled));
  channel.signal("filled");

  channel.wait("queued");  // the copy and the record of `empty`
  write_values(slot, kCount, 2 * kValue);
  CUDA_CHECK(cudaEventRecord(filled));
  const bool held = is_held(nullptr);
  say("fills the slot again, and is %s", held ? "held" : "NOT held");
  channel.signal("filled");

  channel.wait("closed");
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(filled));
  CUDA_CHECK(cudaEventDestroy(empty));
  CUDA_CHECK(cudaFree(slot));

  return held ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  Gate* gate = create_gate();
  void* copy = allocate_values(kCount, 0);
  void* slot = open_memory(channel.receive<cudaIpcMemHandle_t>("slot"));
  const auto filled =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  const auto empty =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));

  channel.wait("filled");
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, filled));
  hold(nullptr, gate);  // imitates a slow consumer
  CUDA_CHECK(cudaMemcpyAsync(copy, slot, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaEventRecord(empty));
  channel.signal("queued");
  channel.wait("filled");
  open_gate(gate);
  int wrong = count_wrong(copy, kCount, kValue);

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, filled));
  wrong += count_wrong(slot, kCount, 2 * kValue);
  say("reads the slot twice: %d wrong", wrong);
  CUDA_CHECK(cudaEventDestroy(filled));
  CUDA_CHECK(cudaEventDestroy(empty));
  CUDA_CHECK(cudaIpcCloseMemHandle(slot));
  CUDA_CHECK(cudaFree(copy));
  destroy_gate(gate);
  channel.signal("closed");

  return exit_code(wrong);
}
