// Exercise 16: an event to share.
//
// The exporter wants to share an event, but the driver refuses to
// export it. An event must be created as an interprocess event, and
// such an event cannot measure time. Fix the creation of the event.
// The exercise fails now with an error of cudaIpcGetEventHandle.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, 0);
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreate(&event));

  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaEventRecord(event, nullptr));

  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  channel.send("memory", handle_of(data));
  channel.send("event", handle);

  channel.wait("closed");
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("memory"));
  const cudaEvent_t event =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));

  CUDA_CHECK(cudaEventSynchronize(event));
  const int wrong = count_wrong(data, kCount, kValue);
  say("waits for the event, reads: %d wrong", wrong);

  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
