// SPDX-License-Identifier: Apache-2.0
// Graphs whose nodes are added one by one.
#include <vector>

#include "gpu.h"
#include "peer.h"
#include "pool.h"

using namespace ipclab::model::test;

namespace {

constexpr int kCount = 1000;

struct Built {
  cudaGraph_t graph = nullptr;
  Built() { EXPECT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess); }
  ~Built() { EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess); }
};

// Adds the node by the driver API, because the tests' kernels are in a separate
// module.
CUgraphNode add_kernel(cudaGraph_t graph, const std::vector<CUgraphNode>& after,
                       const char* name, unsigned blocks,
                       std::vector<void*> arguments) {
  CUDA_KERNEL_NODE_PARAMS wanted{};
  wanted.func = kernel(name);
  wanted.gridDimX = blocks;
  wanted.gridDimY = wanted.gridDimZ = 1;
  wanted.blockDimX = 256;
  wanted.blockDimY = wanted.blockDimZ = 1;
  wanted.kernelParams = arguments.data();
  CUgraphNode node = nullptr;
  EXPECT_EQ(
      cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &wanted),
      CUDA_SUCCESS);
  return node;
}

CUgraphNode add_set(cudaGraph_t graph, const std::vector<CUgraphNode>& after,
                    void* data, unsigned value) {
  cudaMemsetParams wanted{};
  wanted.dst = data;
  wanted.value = value;
  wanted.elementSize = 4;
  wanted.width = kCount;
  wanted.height = 1;
  CUgraphNode node = nullptr;
  EXPECT_EQ(
      cudaGraphAddMemsetNode(&node, graph, after.data(), after.size(), &wanted),
      cudaSuccess);
  return node;
}

CUgraphNode add_copy(cudaGraph_t graph, const std::vector<CUgraphNode>& after,
                     void* to, const void* from) {
  CUgraphNode node = nullptr;
  EXPECT_EQ(
      cudaGraphAddMemcpyNode1D(&node, graph, after.data(), after.size(), to,
                               from, kCount * sizeof(int), cudaMemcpyDefault),
      cudaSuccess);
  return node;
}

cudaError_t launch_once(cudaGraphExec_t executable) {
  const cudaError_t code = cudaGraphLaunch(executable, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return code;
}

cudaGraphExec_t instantiate(cudaGraph_t graph, unsigned long long flags = 0) {
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, flags), cudaSuccess);
  return executable;
}

TEST(Graph, RunsItsNodesInTheOrderOfTheirDependencies) {
  int* data = allocate<int>(kCount);
  std::vector<int> seen(kCount);
  int value = 500;
  int count = kCount;
  int calls = 0;
  Built built;
  // The nodes are added in the wrong order. The edges decide the real order.
  const CUgraphNode fill =
      add_kernel(built.graph, {}, "fill", 4, {&data, &count, &value});
  const CUgraphNode set = add_set(built.graph, {}, data, 7);
  const CUgraphNode copy = add_copy(built.graph, {fill}, seen.data(), data);
  cudaHostNodeParams call{[](void* calls) { ++*static_cast<int*>(calls); },
                          &calls};
  CUgraphNode host = nullptr;
  ASSERT_EQ(cudaGraphAddHostNode(&host, built.graph, &copy, 1, &call),
            cudaSuccess);
  ASSERT_EQ(cudaGraphAddDependencies(built.graph, &set, &fill, nullptr, 1),
            cudaSuccess);
  size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(built.graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 4u);
  CUgraphNode root = nullptr;
  nodes = 1;
  EXPECT_EQ(cudaGraphGetRootNodes(built.graph, &root, &nodes), cudaSuccess);
  EXPECT_EQ(root, set);
  cudaGraphNodeType type;
  EXPECT_EQ(cudaGraphNodeGetType(host, &type), cudaSuccess);
  EXPECT_EQ(type, cudaGraphNodeTypeHost);
  cudaGraphExec_t executable = instantiate(built.graph);
  value = 0;  // the node keeps the arguments with which it was added
  for (int round = 1; round <= 2; ++round) {
    ASSERT_EQ(launch_once(executable), cudaSuccess);
    EXPECT_EQ(seen[0], 500);
    EXPECT_EQ(seen[kCount - 1], 500 + kCount - 1);
    EXPECT_EQ(calls, round);
    seen.assign(kCount, 0);
  }
  int* pointer = data;
  int other = 900;
  void* arguments[] = {&pointer, &count, &other};
  CUDA_KERNEL_NODE_PARAMS changed{};
  changed.func = kernel("fill");
  changed.gridDimX = 4;
  changed.gridDimY = changed.gridDimZ = 1;
  changed.blockDimX = 256;
  changed.blockDimY = changed.blockDimZ = 1;
  changed.kernelParams = arguments;
  EXPECT_EQ(cuGraphExecKernelNodeSetParams(executable, fill, &changed),
            CUDA_SUCCESS);
  EXPECT_EQ(cuGraphExecKernelNodeSetParams(executable, copy, &changed),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(launch_once(executable), cudaSuccess);
  EXPECT_EQ(seen[0], 900);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(Graph, AnUpdateConcernsLaterLaunches) {
  int* data = allocate<int>(2 * kCount);
  Built old, fresh, other;
  add_set(old.graph, {}, data, 3);
  add_set(fresh.graph, {}, data + kCount, 4);
  const CUgraphNode one = add_set(other.graph, {}, data, 5);
  add_set(other.graph, {one}, data, 6);
  cudaGraphExec_t executable = instantiate(old.graph);
  ASSERT_EQ(launch_once(executable), cudaSuccess);
  cudaGraphExecUpdateResultInfo info{};
  EXPECT_EQ(cudaGraphExecUpdate(executable, fresh.graph, &info), cudaSuccess);
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(cudaGraphExecUpdate(executable, other.graph, &info),
            cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  Built line, shortcut;  // 1 → 2 → 3, and the same with 1 → 3
  for (Built* built : {&line, &shortcut}) {
    const CUgraphNode first = add_set(built->graph, {}, data, 5);
    const CUgraphNode second = add_set(built->graph, {first}, data, 6);
    const std::vector<CUgraphNode> both = {second, first};
    add_set(built->graph, built == &line ? std::vector{second} : both, data, 7);
  }
  cudaGraphExec_t three = instantiate(line.graph);
  EXPECT_EQ(cudaGraphExecUpdate(three, line.graph, &info), cudaSuccess);
  EXPECT_EQ(cudaGraphExecUpdate(three, shortcut.graph, &info),
            cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(cudaGraphExecDestroy(three), cudaSuccess);
  ASSERT_EQ(launch_once(executable), cudaSuccess);
  std::vector<int> seen(2 * kCount);
  EXPECT_EQ(cudaMemcpy(seen.data(), data, 2 * kCount * sizeof(int),
                       cudaMemcpyDefault),
            cudaSuccess);
  EXPECT_EQ(seen[0], 3) << "by the launch before the update";
  EXPECT_EQ(seen[kCount], 4) << "by the launch after it";
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(Graph, ASetOfPoolMemoryIsCapturedOnly) {
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, 4096, stream), cudaSuccess);
  Built built;
  cudaMemsetParams wanted{memory, 0, 1, 1, 4096, 1};
  CUgraphNode node = nullptr;
  EXPECT_EQ(cudaGraphAddMemsetNode(&node, built.graph, nullptr, 0, &wanted),
            cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Graph, ACircleIsRefused) {
  int* data = allocate<int>(kCount);
  Built built;
  const CUgraphNode first = add_set(built.graph, {}, data, 1);
  const CUgraphNode second = add_set(built.graph, {first}, data, 2);
  ASSERT_EQ(cudaGraphAddDependencies(built.graph, &second, &first, nullptr, 1),
            cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&executable, built.graph, 0),
            cudaErrorInvalidValue);
  Built other;
  CUgraphNode node = nullptr;
  EXPECT_EQ(cudaGraphAddEmptyNode(&node, other.graph, &first, 1),
            cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(Graph, AChildIsWhatItWasWhenItWasAdded) {
  int* data = allocate<int>(kCount);
  Built child;
  add_set(child.graph, {}, data, 1);
  Built parent;
  CUgraphNode node = nullptr;
  ASSERT_EQ(
      cudaGraphAddChildGraphNode(&node, parent.graph, nullptr, 0, child.graph),
      cudaSuccess);
  add_set(child.graph, {}, data, 2);
  cudaGraphExec_t executable = instantiate(parent.graph);
  ASSERT_EQ(launch_once(executable), cudaSuccess);
  EXPECT_EQ(read_back(data, 1)[0], 1);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(Graph, EventsOrderItAgainstAStream) {
  int* data = allocate<int>(kCount);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  Built built;
  const CUgraphNode set = add_set(built.graph, {}, data, 3);
  CUgraphNode record = nullptr;
  ASSERT_EQ(cudaGraphAddEventRecordNode(&record, built.graph, &set, 1, event),
            cudaSuccess);
  CUgraphNode wait = nullptr;
  ASSERT_EQ(cudaGraphAddEventWaitNode(&wait, built.graph, &record, 1, event),
            cudaSuccess);
  cudaGraphExec_t executable = instantiate(built.graph);
  ASSERT_EQ(cudaGraphLaunch(executable, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(read_back(data, 1)[0], 3);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

struct WithMemory : Built {
  int* memory = nullptr;
  int* seen = nullptr;
  CUgraphNode last = nullptr;

  WithMemory() {
    cudaMemAllocNodeParams wanted{};
    wanted.poolProps = on_device(0);
    wanted.bytesize = kCount * sizeof(int);
    CUgraphNode allocation = nullptr;
    EXPECT_EQ(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &wanted),
              cudaSuccess);
    memory = static_cast<int*>(wanted.dptr);
    seen = allocate<int>(kCount);
    const CUgraphNode set = add_set(graph, {allocation}, memory, 9);
    last = add_copy(graph, {set}, seen, memory);
  }
  ~WithMemory() { EXPECT_EQ(cudaFree(seen), cudaSuccess); }
};

TEST(Graph, AllocatesAndFreesAtEachLaunch) {
  WithMemory built;
  CUgraphNode node = nullptr;
  ASSERT_EQ(
      cudaGraphAddMemFreeNode(&node, built.graph, &built.last, 1, built.memory),
      cudaSuccess);
  EXPECT_EQ(
      cudaGraphAddMemFreeNode(&node, built.graph, &built.last, 1, built.memory),
      cudaErrorInvalidValue);
  EXPECT_EQ(cudaGraphAddMemFreeNode(&node, built.graph, nullptr, 0, built.seen),
            cudaErrorInvalidValue);
  cudaGetLastError();
  cudaGraphExec_t executable = instantiate(built.graph);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(cudaMemset(built.seen, 0, kCount * sizeof(int)), cudaSuccess);
    ASSERT_EQ(launch_once(executable), cudaSuccess);
    EXPECT_EQ(read_back(built.seen, kCount)[kCount - 1], 9);
  }
  EXPECT_EQ(cudaFree(built.memory), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

// Adds a node by the call for nodes of any type.
CUgraphNode add_any(cudaGraph_t graph, const std::vector<CUgraphNode>& after,
                    cudaGraphNodeParams* wanted) {
  CUgraphNode node = nullptr;
  EXPECT_EQ(cudaGraphAddNode(&node, graph, after.data(), nullptr, after.size(),
                             wanted),
            cudaSuccess);
  return node;
}

TEST(Graph, NodesOfAnyTypeAreAddedByOneCall) {
  Built built;
  int* const seen = allocate<int>(kCount);
  cudaGraphNodeParams allocation{};
  allocation.type = cudaGraphNodeTypeMemAlloc;
  allocation.alloc.poolProps = on_device(0);
  allocation.alloc.bytesize = kCount * sizeof(int);
  CUgraphNode last = add_any(built.graph, {}, &allocation);
  ASSERT_NE(allocation.alloc.dptr, nullptr);
  cudaGraphNodeParams set{};
  set.type = cudaGraphNodeTypeMemset;
  set.memset = {allocation.alloc.dptr, 0, 7, 4, kCount, 1};
  last = add_any(built.graph, {last}, &set);
  cudaGraphNodeParams copy{};
  copy.type = cudaGraphNodeTypeMemcpy;
  const size_t bytes = kCount * sizeof(int);
  copy.memcpy.copyParams.srcPtr = {allocation.alloc.dptr, bytes, bytes, 1};
  copy.memcpy.copyParams.dstPtr = {seen, bytes, bytes, 1};
  copy.memcpy.copyParams.extent = {bytes, 1, 1};
  copy.memcpy.copyParams.kind = cudaMemcpyDefault;
  last = add_any(built.graph, {last}, &copy);
  static int called;
  called = 0;
  cudaGraphNodeParams call{};
  call.type = cudaGraphNodeTypeHost;
  call.host = {[](void*) { ++called; }, nullptr};
  last = add_any(built.graph, {last}, &call);
  cudaGraphNodeParams end{};
  end.type = cudaGraphNodeTypeMemFree;
  end.free.dptr = allocation.alloc.dptr;
  add_any(built.graph, {last}, &end);
  cudaGraphExec_t executable = instantiate(built.graph);
  ASSERT_EQ(launch_once(executable), cudaSuccess);
  EXPECT_EQ(read_back(seen, kCount)[kCount - 1], 7);
  EXPECT_EQ(called, 1);
  allocation.alloc.poolProps.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  EXPECT_EQ(
      cudaGraphAddNode(&last, built.graph, nullptr, nullptr, 0, &allocation),
      cudaErrorInvalidValue);
  cudaGraphEdgeData early{};
  early.type = cudaGraphDependencyTypeProgrammatic;
  EXPECT_EQ(cudaGraphAddNode(&last, built.graph, &last, &early, 1, &call),
            cudaErrorNotSupported);
  cudaGetLastError();
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaFree(seen), cudaSuccess);
}

TEST(Graph, MemoryThatItDoesNotFreeIsThePrograms) {
  WithMemory built;
  cudaGraphExec_t executable = instantiate(built.graph);
  ASSERT_EQ(launch_once(executable), cudaSuccess);
  EXPECT_EQ(read_back(built.memory, 1)[0], 9);
  cudaIpcMemHandle_t handle;  // "IPC is not supported"
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, built.memory), cudaErrorInvalidValue);
  EXPECT_EQ(launch_once(executable), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_EQ(cudaFreeAsync(built.memory, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(launch_once(executable), cudaSuccess);
  EXPECT_EQ(cudaFree(built.memory), cudaSuccess);
  cudaGraphExec_t careless =
      instantiate(built.graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  EXPECT_EQ(launch_once(careless), cudaSuccess);
  EXPECT_EQ(launch_once(careless), cudaSuccess);
  EXPECT_EQ(cudaFree(built.memory), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(careless), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST(Graph, ACaptureHasTypedNodes) {
  int* data = allocate<int>(kCount);
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  std::vector<int> seen(kCount);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(data, 1, kCount * sizeof(int), stream),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(seen.data(), data, kCount * sizeof(int),
                            cudaMemcpyDefault, stream),
            cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  CUgraphNode nodes[2] = {};
  size_t count = 2;
  EXPECT_EQ(cudaGraphGetNodes(graph, nodes, &count), cudaSuccess);
  ASSERT_EQ(count, 2u);
  cudaGraphNodeType types[2];
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cudaGraphNodeGetType(nodes[i], &types[i]), cudaSuccess);
  }
  EXPECT_EQ(types[0], cudaGraphNodeTypeMemset);
  EXPECT_EQ(types[1], cudaGraphNodeTypeMemcpy);
  cudaGraphExec_t executable = instantiate(graph);
  ASSERT_EQ(launch_once(executable), cudaSuccess);
  EXPECT_EQ(seen[kCount - 1], 0x01010101);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(Graph, ReachesPoolMemoryWhoseFreeIsQueuedAfterIt) {
  cudaMemPool_t pool = create(on_device(0));
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  int* data = allocate<int>(kCount);
  // The memory crosses a border between two pages of the model.
  constexpr size_t kBytes = 3 * kMiB, kUsed = kCount * sizeof(int);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocFromPoolAsync(&memory, kBytes, pool, stream),
            cudaSuccess);
  char* middle = static_cast<char*>(memory) + 2 * kMiB - kUsed / 2;
  ASSERT_EQ(cudaMemsetAsync(memory, 1, kBytes, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(middle, 2, kUsed / 2, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(data, middle, kUsed, cudaMemcpyDefault, stream),
            cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable = instantiate(graph);
  {
    Latch latch(stream);
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
    latch.let_go();
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  const std::vector<int> seen = read_back(data, kCount);
  EXPECT_EQ(seen[0], 0x02020202);
  EXPECT_EQ(seen[kCount - 1], 0x01010101);
  EXPECT_EQ(used(pool), 0u);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// The last reference destroys it: the program's, the graph's and the
// executable's count.
TEST(Graph, UserObjectsLiveAsLongAsGraphsNeedThem) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  int destroyed = 0;
  const auto count = [](void* data) { ++*static_cast<int*>(data); };
  cudaUserObject_t object = nullptr;
  EXPECT_EQ(cudaUserObjectCreate(&object, &destroyed, count, 1, 0),
            cudaErrorInvalidValue);
  ASSERT_EQ(cudaUserObjectCreate(&object, &destroyed, count, 2,
                                 cudaUserObjectNoDestructorSync),
            cudaSuccess);
  cudaGraph_t graph = nullptr, clone = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess);
  ASSERT_EQ(
      cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
      cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphClone(&clone, graph), cudaSuccess);
  EXPECT_EQ(cudaGraphReleaseUserObject(graph, object, 2),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaUserObjectRelease(object, 1), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(clone), cudaSuccess);
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(destroyed, 1);
  EXPECT_EQ(cudaUserObjectRelease(object, 1), cudaErrorInvalidValue);
  cudaGetLastError();
}

// A node works in the context that it names, here of a GPU whose memory the
// current context may not use.
ROLE(node_of_another_context) {
  CUcontext here = nullptr, there = nullptr;
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  int* data = allocate<int>(kCount);
  EXPECT_EQ(cudaMemset(data, 0, kCount * sizeof(int)), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cuCtxGetCurrent(&there), CUDA_SUCCESS);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cuCtxGetCurrent(&here), CUDA_SUCCESS);
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadFromFile(&library, IPCLAB_TEST_PTX, nullptr, nullptr,
                                  0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  int count = kCount, value = 7;
  void* arguments[] = {&data, &count, &value};
  CUDA_KERNEL_NODE_PARAMS wanted{};
  ASSERT_EQ(cuLibraryGetKernel(&wanted.kern, library, "fill"), CUDA_SUCCESS);
  wanted.ctx = there;
  wanted.gridDimX = 4;
  wanted.gridDimY = wanted.gridDimZ = 1;
  wanted.blockDimX = 256;
  wanted.blockDimY = wanted.blockDimZ = 1;
  wanted.kernelParams = arguments;
  const CUDA_MEMSET_NODE_PARAMS set{
      reinterpret_cast<CUdeviceptr>(data), 0, 3, 4, 1, 1};
  const Built built;
  CUgraphNode first = nullptr, second = nullptr;
  ASSERT_EQ(cuGraphAddKernelNode(&first, built.graph, nullptr, 0, &wanted),
            CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddMemsetNode(&second, built.graph, &first, 1, &set, there),
            CUDA_SUCCESS);
  cudaGraphExec_t executable = instantiate(built.graph);
  EXPECT_EQ(cudaGraphLaunch(executable, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cuCtxSetCurrent(there), CUDA_SUCCESS);
  const std::vector<int> values = read_back(data, kCount);
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[kCount - 1], 7 + kCount - 1);
  CUmodule module = nullptr;
  EXPECT_EQ(cuLibraryGetModule(&module, library), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST(Graph, ANodeWorksInTheContextThatItNames) {
  Peer peer("node_of_another_context", {{"IPCLAB_PROFILE", "two-gpus"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

// An edge that is more than a dependency is refused by each call that takes it.
TEST(Graph, AnEdgeThatIsNotADependencyIsRefused) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const Built built;
  cudaGraphNode_t first = nullptr, second = nullptr, third = nullptr;
  ASSERT_EQ(cudaGraphAddEmptyNode(&first, built.graph, nullptr, 0),
            cudaSuccess);
  ASSERT_EQ(cudaGraphAddEmptyNode(&second, built.graph, nullptr, 0),
            cudaSuccess);
  cudaGraphNodeParams empty{};
  empty.type = cudaGraphNodeTypeEmpty;
  cudaGraphEdgeData programmatic{}, later{};
  programmatic.type = cudaGraphDependencyTypeProgrammatic;
  later.reserved[0] = 1;
  for (const cudaGraphEdgeData& edge : {programmatic, later}) {
    EXPECT_EQ(cudaGraphAddDependencies(built.graph, &first, &second, &edge, 1),
              cudaErrorNotSupported);
    EXPECT_EQ(cudaGraphAddNode(&third, built.graph, &first, &edge, 1, &empty),
              cudaErrorNotSupported);
  }
  const cudaGraphEdgeData plain{};
  EXPECT_EQ(cudaGraphAddDependencies(built.graph, &first, &second, &plain, 1),
            cudaSuccess);
  cudaGetLastError();
}

}  // namespace
