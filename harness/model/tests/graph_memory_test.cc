// SPDX-License-Identifier: Apache-2.0
// The memory of graphs: captured, freed elsewhere, counted and trimmed.
#include <vector>

#include "gpu.h"
#include "pool.h"

using namespace ipclab::model::test;

namespace {

constexpr size_t kBytes = 4096;
constexpr uint64_t kBlock = 2 << 20;  // bytes of the smallest block

uint64_t attribute(cudaGraphMemAttributeType wanted) {
  uint64_t value = ~uint64_t{0};
  EXPECT_EQ(cudaDeviceGetGraphMemAttribute(0, wanted, &value), cudaSuccess);
  return value;
}

struct GraphMemory : testing::Test {
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  std::vector<cudaGraphExec_t> executables;

  ~GraphMemory() override {
    cudaGetLastError();
    for (cudaGraphExec_t executable : executables) {
      EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    }
    EXPECT_EQ(cudaDeviceGraphMemTrim(0), cudaSuccess);
    EXPECT_EQ(attribute(cudaGraphMemAttrReservedMemCurrent), 0u);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }

  cudaGraphExec_t ready(cudaGraph_t graph) {
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    executables.push_back(executable);
    return executable;
  }
  // A graph that allocates and sets memory. If `frees`, it also frees the
  // memory.
  cudaGraphExec_t allocating(bool frees, int** memory) {
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
              cudaSuccess);
    EXPECT_EQ(cudaMallocAsync(reinterpret_cast<void**>(memory), kBytes, stream),
              cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(*memory, 5, kBytes, stream), cudaSuccess);
    if (frees) {
      EXPECT_EQ(cudaFreeAsync(*memory, stream), cudaSuccess);
      EXPECT_EQ(cudaFreeAsync(*memory, stream), cudaErrorInvalidValue);
      cudaGetLastError();
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return ready(graph);
  }
};

TEST_F(GraphMemory, ACapturedAllocationIsANodeOfTheGraph) {
  int* memory = nullptr;
  cudaGraphExec_t executable = allocating(true, &memory);
  EXPECT_NE(memory, nullptr);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(attribute(cudaGraphMemAttrUsedMemCurrent), 0u);
}

TEST_F(GraphMemory, BelongsToTheProgramUntilACallFreesIt) {
  int* memory = nullptr;
  cudaGraphExec_t executable = allocating(false, &memory);
  EXPECT_EQ(cudaFreeAsync(memory, stream), cudaErrorInvalidValue);
  cudaGetLastError();
  for (int round = 0; round < 2; ++round) {
    // No work has begun, but the calls have an order.
    Latch latch(stream);
    EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaErrorInvalidValue);
    cudaGetLastError();
    EXPECT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(memory, stream), cudaErrorInvalidValue);
    cudaGetLastError();
    EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    latch.let_go();
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(read_back(memory, 1)[0], 0x05050505);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }
}

TEST_F(GraphMemory, OutlivesItsGraph) {
  int* memory = nullptr;
  cudaGraphExec_t executable = allocating(false, &memory);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  executables.clear();
  EXPECT_EQ(read_back(memory, 1)[0], 0x05050505);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(GraphMemory, AnotherGraphMayFreeIt) {
  int* memory = nullptr;
  cudaGraphExec_t allocates = allocating(false, &memory);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess);
  cudaGraphNode_t node = nullptr;
  int* other = allocate<int>(1);
  EXPECT_EQ(cudaGraphAddMemFreeNode(&node, graph, nullptr, 0, other),
            cudaErrorInvalidValue);
  ASSERT_EQ(cudaGraphAddMemFreeNode(&node, graph, nullptr, 0, memory),
            cudaSuccess);
  cudaGraphExec_t frees = ready(graph);
  EXPECT_EQ(cudaGraphLaunch(frees, stream), cudaErrorInvalidValue);
  cudaGetLastError();
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(cudaGraphLaunch(allocates, stream), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(frees, stream), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
}

TEST_F(GraphMemory, OnlyOneGraphFreesIt) {
  int* memory = nullptr;
  allocating(true, &memory);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess);
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(cudaGraphAddMemFreeNode(&node, graph, nullptr, 0, memory),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(GraphMemory, IsReservedUntilItIsTrimmed) {
  int* memory = nullptr;
  cudaGraphExec_t executable = allocating(false, &memory);
  EXPECT_EQ(attribute(cudaGraphMemAttrReservedMemCurrent), 0u);
  size_t before = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(attribute(cudaGraphMemAttrUsedMemCurrent), kBlock);
  EXPECT_EQ(cudaDeviceGraphMemTrim(0), cudaSuccess);  // no block is spare
  EXPECT_EQ(attribute(cudaGraphMemAttrReservedMemCurrent), kBlock);
  size_t now = 0;
  EXPECT_EQ(cudaMemGetInfo(&now, &total), cudaSuccess);
  EXPECT_EQ(before - now, kBlock);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(attribute(cudaGraphMemAttrUsedMemCurrent), 0u);
  EXPECT_EQ(attribute(cudaGraphMemAttrReservedMemCurrent), kBlock);
  EXPECT_EQ(cudaDeviceGraphMemTrim(0), cudaSuccess);
  EXPECT_EQ(attribute(cudaGraphMemAttrReservedMemCurrent), 0u);
  EXPECT_EQ(cudaMemGetInfo(&now, &total), cudaSuccess);
  EXPECT_EQ(before, now);
  EXPECT_EQ(attribute(cudaGraphMemAttrUsedMemHigh), kBlock);
  uint64_t mark = 0;
  EXPECT_EQ(
      cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &mark),
      cudaSuccess);
  EXPECT_EQ(attribute(cudaGraphMemAttrUsedMemHigh), 0u);
  EXPECT_EQ(
      cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &mark),
      cudaErrorInvalidValue);
}

TEST_F(GraphMemory, OfAPoolThatCanBeSharedIsNotCaptured) {
  cudaMemPoolProps wanted = on_device(0);
  wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  cudaMemPool_t pool = create(wanted);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&memory, kBytes, pool, stream),
            cudaErrorNotSupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

}  // namespace
