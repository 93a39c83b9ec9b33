// Lesson 12: what an interprocess event cannot do.
//
//   exporter                            importer
//   create an event with timing: refused
//   export a plain event: refused
//   create, record, measure a time: refused
//   cudaIpcGetEventHandle
//   open its own: refused - event -->   open a made-up handle: refused
//                                       open the handle, wait, read
//   cudaEventDestroy     <- closed ---  cudaEventDestroy
//
// nvcc -cudart shared samples/12_event_refusals/event_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 2000000;

//! [exporter]
int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kOldValue);
  cudaIpcMemHandle_t memory;
  CUDA_CHECK(cudaIpcGetMemHandle(&memory, data));
  channel.send("memory", memory);

  // A shared event measures no time, and the flags have to say so.
  cudaEvent_t event, plain, own;
  bool good =
      refused("creates an event without cudaEventDisableTiming",
              cudaEventCreateWithFlags(&event, cudaEventInterprocess));

  // cudaEventInterprocess cannot be added to an event later.
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
  good &= refused("exports an event that lacks the flag",
                  cudaIpcGetEventHandle(&handle, plain));
  CUDA_CHECK(cudaEventDestroy(plain));

  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  write_values(data, kCount, kNewValue);
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  float milliseconds = 0;
  good &= refused("measures a time with the event",
                  cudaEventElapsedTime(&milliseconds, event, event));

  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  good &= refused("opens its own handle",
                  cudaIpcOpenEventHandle(&own, handle));
  channel.send("event", handle);

  channel.wait("closed");
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  const auto handle = channel.receive<cudaIpcEventHandle_t>("event");

  cudaEvent_t event = nullptr;
  cudaIpcEventHandle_t made_up;
  std::memset(&made_up, 0x5a, sizeof made_up);
  bool good = refused("opens a made-up handle",
                      cudaIpcOpenEventHandle(&event, made_up));

  CUDA_CHECK(cudaIpcOpenEventHandle(&event, handle));
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, kNewValue);
  say("waits for the event, reads the new values: %d wrong", wrong);
  good &= wrong == 0;

  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("closed");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
