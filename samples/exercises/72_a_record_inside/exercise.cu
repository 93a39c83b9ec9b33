// Exercise 72: a record inside.
//
// The exporter captures a kernel and the record of an event. The
// importer waits for this event. A captured record is only a dependency
// inside the graph. Outside the graph no call records the event, so the
// importer does not wait. Record the event where the importer can see
// the record. The exercise fails now because the importer's stream is
// not held, or with the error code of the capture.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 3000000;

int exporter(Channel& channel) {
  Gate* gate = create_gate();
  void* data = allocate_values(kCount, kOldValue);
  const cudaEvent_t written = create_shared_event();
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  CUDA_CHECK(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  write_values(data, kCount, kNewValue, stream);
  CUDA_CHECK(cudaEventRecord(written, stream));
  cudaGraph_t graph;
  cudaGraphExec_t work;
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&work, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));

  hold(stream, gate);  // stands for long work before the graph
  CUDA_CHECK(cudaGraphLaunch(work, stream));
  channel.send("event", handle_of(written));
  channel.send("handle", handle_of(data));

  channel.wait("queued");
  open_gate(gate);
  channel.wait("closed");
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaGraphExecDestroy(work));
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaEventDestroy(written));
  destroy_gate(gate);
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  const cudaEvent_t written =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, written));
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  const bool held = is_held(nullptr);
  say("waits for the event; its stream is %s",
      held ? "held" : "NOT held");
  channel.signal("queued");

  const int wrong = count_wrong(copy, kCount, kNewValue);
  say("reads the copy: %d wrong", wrong);
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
