// SPDX-License-Identifier: Apache-2.0
// Captures of more than one stream, and events in captures.
#include <functional>
#include <vector>

#include "gpu.h"

using namespace ipclab::model::test;

namespace {

constexpr int kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int);

/// Two streams and two events; the first stream captures.
struct Captured : testing::Test {
  cudaStream_t first = stream_with(cudaStreamNonBlocking);
  cudaStream_t second = stream_with(cudaStreamNonBlocking);
  cudaEvent_t fork = nullptr, join = nullptr;
  int* data = allocate<int>(kCount);
  int* copy = allocate<int>(kCount);

  Captured() {
    EXPECT_EQ(cudaEventCreate(&fork), cudaSuccess);
    EXPECT_EQ(cudaEventCreate(&join), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal),
              cudaSuccess);
  }
  ~Captured() override {
    cudaGetLastError();
    EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(join), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
    EXPECT_EQ(cudaFree(copy), cudaSuccess);
  }

  void fork_now() {
    EXPECT_EQ(cudaEventRecord(fork, first), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second, fork), cudaSuccess);
  }
  void join_now() {
    EXPECT_EQ(cudaEventRecord(join, second), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(first, join), cudaSuccess);
  }
  static cudaStreamCaptureStatus status_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    return status;
  }
  cudaError_t end(cudaGraph_t* graph) {
    return cudaStreamEndCapture(first, graph);
  }
};

using Capture = Captured;

TEST_F(Capture, AnotherStreamJoinsItThroughAnEvent) {
  ASSERT_EQ(cudaMemsetAsync(data, 1, kBytes, first), cudaSuccess);
  fork_now();
  EXPECT_EQ(status_of(second), cudaStreamCaptureStatusActive);
  ASSERT_EQ(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault, second),
            cudaSuccess);
  join_now();
  ASSERT_EQ(cudaMemsetAsync(data, 2, kBytes, first), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(end(&graph), cudaSuccess);
  EXPECT_EQ(status_of(second), cudaStreamCaptureStatusNone);

  // An event is an edge, so there are three nodes in one line.
  size_t count = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
  EXPECT_EQ(count, 3u);
  size_t roots = 0;
  EXPECT_EQ(cudaGraphGetRootNodes(graph, nullptr, &roots), cudaSuccess);
  EXPECT_EQ(roots, 1u);

  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(cudaMemset(copy, 0, kBytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, second), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
    EXPECT_EQ(read_back(copy, kCount)[kCount - 1], 0x01010101);
    EXPECT_EQ(read_back(data, kCount)[kCount - 1], 0x02020202);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(Capture, BranchesDoNotWaitForEachOther) {
  fork_now();
  ASSERT_EQ(cudaMemsetAsync(data, 1, kBytes, first), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(copy, 1, kBytes, second), cudaSuccess);
  join_now();
  ASSERT_EQ(cudaMemcpyAsync(data, copy, kBytes, cudaMemcpyDefault, first),
            cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(end(&graph), cudaSuccess);
  size_t roots = 0;
  EXPECT_EQ(cudaGraphGetRootNodes(graph, nullptr, &roots), cudaSuccess);
  EXPECT_EQ(roots, 2u);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Capture, WorkThatIsNotJoinedEndsIt) {
  fork_now();
  ASSERT_EQ(cudaMemsetAsync(data, 1, kBytes, second), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(second, &graph),
            cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(end(&graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(status_of(second), cudaStreamCaptureStatusNone);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
}

TEST_F(Capture, WaitsForNoEventFromOutside) {
  ASSERT_EQ(cudaEventRecord(fork, second), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(first, fork), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(status_of(first), cudaStreamCaptureStatusInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(end(&graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Capture, DoesNotMergeWithAnother) {
  ASSERT_EQ(cudaStreamBeginCapture(second, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(fork, first), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second, fork), cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(end(&graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamEndCapture(second, &graph),
            cudaErrorStreamCaptureInvalidated);
}

TEST_F(Capture, TheDefaultStreamCannotJoinIt) {
  ASSERT_EQ(cudaEventRecord(fork, first), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(cudaStreamLegacy, fork),
            cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(end(&graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Capture, NobodyAsksForAnEventInIt) {
  ASSERT_EQ(cudaEventRecord(fork, first), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(fork), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(fork), cudaErrorCapturedEvent);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, fork, fork),
            cudaErrorCapturedEvent);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(end(&graph), cudaErrorStreamCaptureInvalidated);
  // The capture has ended. A new record makes the event an ordinary event.
  EXPECT_EQ(cudaStreamWaitEvent(second, fork), cudaErrorCapturedEvent);
  ASSERT_EQ(cudaEventRecord(fork, second), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(fork), cudaSuccess);
}

// An H200 with driver 580 answers in this way.
TEST_F(Capture, AnInterprocessEventIsNoEdge) {
  cudaEvent_t shared = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(
                &shared, cudaEventDisableTiming | cudaEventInterprocess),
            cudaSuccess);
  EXPECT_EQ(cudaEventRecord(shared, first), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(status_of(first), cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaStreamWaitEvent(first, shared),
            cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(end(&graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaEventDestroy(shared), cudaSuccess);
}

TEST_F(Capture, TellsWhatComesBeforeTheNextNode) {
  cudaStreamCaptureStatus status;
  unsigned long long id = 0, same = 0;
  cudaGraph_t inside = nullptr, graph = nullptr;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 77;
  const auto ask = [&](cudaStream_t stream) {
    return cudaStreamGetCaptureInfo(stream, &status, &id, &inside, &nodes,
                                    &edges, &count);
  };
  ASSERT_EQ(ask(first), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(count, 0u);
  ASSERT_EQ(cudaMemsetAsync(data, 1, kBytes, first), cudaSuccess);
  fork_now();
  ASSERT_EQ(cudaMemsetAsync(copy, 2, kBytes, second), cudaSuccess);
  join_now();
  ASSERT_EQ(ask(second), cudaSuccess);
  EXPECT_EQ(count, 1u);
  same = id;
  ASSERT_EQ(ask(first), cudaSuccess);
  EXPECT_EQ(id, same);
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(edges[1].type, 0);
  // The array may be given to a function for the graph.
  cudaGraphNode_t added = nullptr;
  ASSERT_EQ(cudaGraphAddEmptyNode(&added, inside, nodes, count), cudaSuccess);
  ASSERT_EQ(cudaStreamUpdateCaptureDependencies(
                first, &added, nullptr, 1, cudaStreamSetCaptureDependencies),
            cudaSuccess);
  ASSERT_EQ(ask(first), cudaSuccess);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], added);
  ASSERT_EQ(end(&graph), cudaSuccess);
  EXPECT_EQ(graph, inside);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);

  ASSERT_EQ(ask(first), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(cudaStreamUpdateCaptureDependencies(first, nullptr, nullptr, 0, 0),
            cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamGetCaptureInfo(first, nullptr), cudaErrorInvalidValue);
  ASSERT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  ASSERT_EQ(ask(first), cudaSuccess);
  EXPECT_NE(id, same);
  ASSERT_EQ(end(&graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// "Nodes that are removed from the dependency set via this API do not result in
// cudaErrorStreamCaptureUnjoined."
TEST_F(Capture, DependenciesMayBeTakenAway) {
  ASSERT_EQ(cudaMemsetAsync(data, 1, kBytes, first), cudaSuccess);
  ASSERT_EQ(cudaStreamUpdateCaptureDependencies(
                first, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies),
            cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(end(&graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Capture, OldFormsTellItAsWell) {
  const auto find = [](const char* name, int version) {
    void* function = nullptr;
    EXPECT_EQ(cuGetProcAddress(name, &function, version, 0, nullptr),
              CUDA_SUCCESS);
    return function;
  };
  CUstreamCaptureStatus status;
  cuuint64_t ids[2] = {0, 0};
  size_t count = 77;
  const auto oldest = reinterpret_cast<CUresult (*)(
      CUstream, CUstreamCaptureStatus*, cuuint64_t*)>(
      find("cuStreamGetCaptureInfo", 10010));
  const auto second_form = reinterpret_cast<CUresult (*)(
      CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
      const CUgraphNode**, size_t*)>(find("cuStreamGetCaptureInfo", 11030));
  EXPECT_EQ(oldest(first, &status, &ids[0]), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(second_form(first, &status, &ids[1], nullptr, nullptr, &count),
            CUDA_SUCCESS);
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(count, 0u);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(end(&graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
