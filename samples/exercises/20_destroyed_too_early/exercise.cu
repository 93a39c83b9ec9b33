// Exercise 20: an event destroyed too early.
//
// The exporter has recorded and sent its event. Then it destroys the
// event while the importer still has the event open. If the importer
// uses the event after that, the behaviour is undefined. Change the
// order of the steps.
// The exercise fails now because the trace finds:
// event-destroyed-while-open.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, 0);
  const cudaEvent_t event = create_shared_event();
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  channel.send("memory", handle_of(data));
  channel.send("event", handle_of(event));

  channel.wait("opened");
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("go");

  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("memory"));
  const cudaEvent_t event =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  channel.signal("opened");

  channel.wait("go");
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the values: %d wrong", wrong);
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
