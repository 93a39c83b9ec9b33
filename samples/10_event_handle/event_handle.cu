// Lesson 10: share an event, so that GPU work waits for GPU work.
//
//   exporter                            importer
//   hold; queue 20 writes, record
//   cudaIpcGetEventHandle - event -->   cudaIpcOpenEventHandle
//                                       query: not ready
//                                       queue a wait, then a copy
//   open the gate        <- queued ---
//                                       the copy has the new values
//   cudaEventDestroy     <- closed ---  cudaEventDestroy
//
// nvcc -cudart shared samples/10_event_handle/event_handle.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/gate.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 2000000;

//! [exporter]
int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kOldValue);
  cudaIpcMemHandle_t memory;
  CUDA_CHECK(cudaIpcGetMemHandle(&memory, data));
  channel.send("memory", memory);

  cudaEvent_t event;  // both flags are needed
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));

  Gate* gate = create_gate();
  hold(nullptr, gate);
  for (int left = 19; left >= 0; --left)  // ends with kNewValue
    write_values(data, kCount, kNewValue - left);
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  say("holds its stream, queues kernels and the event in it");
  channel.send("event", handle);

  channel.wait("queued");
  open_gate(gate);

  // Destroy the exported event after all imported events.
  channel.wait("closed");
  CUDA_CHECK(cudaEventDestroy(event));
  destroy_gate(gate);
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  void* copy = nullptr;
  CUDA_CHECK(cudaMalloc(&copy, kBytes));
  CUDA_CHECK(cudaMemset(copy, kPoison, kBytes));

  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));

  const auto handle = channel.receive<cudaIpcEventHandle_t>("event");
  cudaEvent_t event;
  CUDA_CHECK(cudaIpcOpenEventHandle(&event, handle));
  const cudaError_t answer = cudaEventQuery(event);
  say("opens the event, queries it: %s", cudaGetErrorName(answer));

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  say("queues a wait and a copy; its host does not wait");
  channel.signal("queued");

  const int wrong = count_wrong(copy, kCount, kNewValue);
  say("reads the new values in the copy: %d wrong", wrong);

  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  say("destroys its event; now the exporter can destroy its own");
  channel.signal("closed");

  const bool good = answer == cudaErrorNotReady && wrong == 0;
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
