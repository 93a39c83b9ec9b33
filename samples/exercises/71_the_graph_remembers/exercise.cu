// Exercise 71: the graph remembers.
//
// The importer captures a graph that copies from shared memory. Then
// the exporter sends a larger buffer, and the importer opens it and
// closes the old buffer. The graph still has the old address. Let the
// second launch copy from the new buffer.
// The exercise fails now with the error code of the graph launch, or
// with wrong values.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 3000000;

int exporter(Channel& channel) {
  void* buffer = allocate_values(kCount, kOldValue);
  channel.send("handle", handle_of(buffer));
  channel.wait("read");
  void* larger = allocate_values(2 * kCount, kNewValue);
  channel.send("handle", handle_of(larger));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(larger));
  CUDA_CHECK(cudaFree(buffer));

  return EXIT_SUCCESS;
}

cudaGraphExec_t capture_copy(void* to, const void* from,
                             cudaStream_t stream) {
  CUDA_CHECK(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_CHECK(
      cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return replay;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  cudaGraphExec_t work = capture_copy(copy, data, stream);

  CUDA_CHECK(cudaGraphLaunch(work, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  int wrong = count_wrong(copy, kCount, kOldValue);
  channel.signal("read");

  void* larger =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaGraphLaunch(work, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  wrong += count_wrong(copy, kCount, kNewValue);
  say("has copied both buffers: %d wrong", wrong);

  CUDA_CHECK(cudaGraphExecDestroy(work));
  CUDA_CHECK(cudaIpcCloseMemHandle(larger));
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
