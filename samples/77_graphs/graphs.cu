// Lesson 77: capture work on shared memory once, and replay it.
//
//   exporter                             importer
//   memory, events       -- handles -->  open them
//   capture: add 1                       capture: times 3
//   20 rounds:
//     replay
//     record ping        -- ping ---->   wait for ping, replay,
//     wait for pong      <- pong -----     record pong
//   20 more rounds, with both events in the graphs
//   read the result      <- closed ---   release all
//
// nvcc -cudart shared samples/77_graphs/graphs.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 19;
constexpr int kRounds = 20;
constexpr unsigned kStart = 7;  // all values are equal

__global__ void step(unsigned* data, unsigned factor, unsigned more) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  data[i] = data[i] * factor + more;
}

//! [capture]
// Makes a graph of one side's work in one round. If there are events,
// the graph begins with a wait for `first` and ends with a record of
// `last`. The flags make both events external to the graph.
cudaGraphExec_t capture(cudaStream_t stream, void* data,
                        unsigned factor, unsigned more,
                        cudaEvent_t first = nullptr,
                        cudaEvent_t last = nullptr) {
  CUDA_CHECK(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  if (first != nullptr)
    CUDA_CHECK(
        cudaStreamWaitEvent(stream, first, cudaEventWaitExternal));
  step<<<kCount / 256, 256, 0, stream>>>(static_cast<unsigned*>(data),
                                         factor, more);
  CUDA_CHECK(cudaGetLastError());
  if (last != nullptr)
    CUDA_CHECK(cudaEventRecordWithFlags(last, stream,
                                        cudaEventRecordExternal));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return replay;
}
//! [capture]

//! [exporter]
int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kStart, 0);
  cudaIpcMemHandle_t memory;
  CUDA_CHECK(cudaIpcGetMemHandle(&memory, data));
  channel.send("memory", memory);
  cudaEvent_t ping, pong;
  for (cudaEvent_t* event : {&ping, &pong}) {
    CUDA_CHECK(cudaEventCreateWithFlags(
        event, cudaEventInterprocess | cudaEventDisableTiming));
    cudaIpcEventHandle_t handle;
    CUDA_CHECK(cudaIpcGetEventHandle(&handle, *event));
    channel.send("event", handle);
  }
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  cudaGraphExec_t work = capture(stream, data, 1, 1);
  cudaGraphExec_t all = capture(stream, data, 1, 1, pong, ping);

  unsigned expected = kStart;
  for (int round = 0; round < kRounds; ++round) {
    CUDA_CHECK(cudaGraphLaunch(work, stream));
    CUDA_CHECK(cudaEventRecord(ping, stream));
    channel.signal("ping");
    channel.wait("pong");
    CUDA_CHECK(cudaStreamWaitEvent(stream, pong, 0));
    expected = (expected + 1) * 3;
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  const int wrong = count_wrong(data, kCount, expected, 0);
  say("events around the graphs, %d rounds: %d wrong", kRounds, wrong);

  for (int round = 0; round < kRounds; ++round) {
    CUDA_CHECK(cudaGraphLaunch(all, stream));
    channel.signal("ping");
    channel.wait("pong");
    expected = (expected + 1) * 3;
  }
  channel.wait("closed");
  CUDA_CHECK(cudaStreamSynchronize(stream));
  say("events in the graphs, %d rounds: [%d wrong]", kRounds,
      count_wrong(data, kCount, expected, 0));

  for (cudaGraphExec_t graph : {work, all})
    CUDA_CHECK(cudaGraphExecDestroy(graph));
  CUDA_CHECK(cudaStreamDestroy(stream));
  for (cudaEvent_t event : {ping, pong})
    CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  cudaEvent_t ping, pong;
  for (cudaEvent_t* event : {&ping, &pong})
    CUDA_CHECK(cudaIpcOpenEventHandle(
        event, channel.receive<cudaIpcEventHandle_t>("event")));
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  cudaGraphExec_t work = capture(stream, data, 3, 0);
  cudaGraphExec_t all = capture(stream, data, 3, 0, ping, pong);

  for (int round = 0; round < kRounds; ++round) {
    channel.wait("ping");
    CUDA_CHECK(cudaStreamWaitEvent(stream, ping, 0));
    CUDA_CHECK(cudaGraphLaunch(work, stream));
    CUDA_CHECK(cudaEventRecord(pong, stream));
    channel.signal("pong");
  }
  for (int round = 0; round < kRounds; ++round) {
    channel.wait("ping");
    CUDA_CHECK(cudaGraphLaunch(all, stream));
    channel.signal("pong");
  }

  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (cudaGraphExec_t graph : {work, all})
    CUDA_CHECK(cudaGraphExecDestroy(graph));
  CUDA_CHECK(cudaStreamDestroy(stream));
  for (cudaEvent_t event : {ping, pong})
    CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return EXIT_SUCCESS;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
