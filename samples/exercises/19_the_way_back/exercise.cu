// Exercise 19: the way back.
//
// The exporter writes twice into the same memory, and the importer
// copies the first values. The importer waits for the exporter's event
// ("ping"). The exporter's second step must wait for the importer's
// event ("pong"), but does not. So the second step overwrites values
// that the importer still needs. Add this wait, but do not let a host
// wait.
// The exercise fails now with a wrong copy.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kFirst = 1000000;
constexpr int kSecond = 2000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, 0);
  const cudaEvent_t ping = create_shared_event();
  const cudaEvent_t pong = create_shared_event();
  channel.send("memory", handle_of(data));
  channel.send("ping", handle_of(ping));
  channel.send("pong", handle_of(pong));

  write_values(data, kCount, kFirst);
  CUDA_CHECK(cudaEventRecord(ping, nullptr));
  channel.signal("ping");

  channel.wait("pong");  // recorded, but not complete
  write_values(data, kCount, kSecond);
  const bool early = !is_held(nullptr);
  say("queues its second step, which %s",
      early ? "runs BEFORE the copy" : "waits");
  channel.signal("queued");

  channel.wait("closed");
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(ping));
  CUDA_CHECK(cudaEventDestroy(pong));
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("memory"));
  const cudaEvent_t ping =
      open_event(channel.receive<cudaIpcEventHandle_t>("ping"));
  const cudaEvent_t pong =
      open_event(channel.receive<cudaIpcEventHandle_t>("pong"));
  Gate* gate = create_gate();

  channel.wait("ping");
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, ping, 0));
  hold(nullptr, gate);  // stands for long work before the copy
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaEventRecord(pong, nullptr));
  channel.signal("pong");

  channel.wait("queued");
  open_gate(gate);
  const int wrong = count_wrong(copy, kCount, kFirst);
  say("reads its copy of the first step: %d wrong", wrong);
  destroy_gate(gate);
  CUDA_CHECK(cudaEventDestroy(ping));
  CUDA_CHECK(cudaEventDestroy(pong));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
