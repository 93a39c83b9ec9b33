// SPDX-License-Identifier: Apache-2.0
// The runtime API: graphs and capture.
#include <cstring>

#include "runtime/module.h"
#include "runtime/runtime.h"

using namespace ipclab::runtime;

static_assert(sizeof(cudaMemAllocNodeParams) ==
              sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));
static_assert(sizeof(cudaGraphNodeParams) == sizeof(CUgraphNodeParams));
static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));

IPCLAB_RUNTIME_API cudaError_t cudaGraphCreate(cudaGraph_t* graph,
                                               unsigned flags) {
  IPCLAB_BIND();
  return remember(cuGraphCreate(graph, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  IPCLAB_BIND();
  return remember(cuGraphDestroy(graph));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphClone(cudaGraph_t* clone,
                                              cudaGraph_t graph) {
  IPCLAB_BIND();
  return remember(cuGraphClone(clone, graph));
}

namespace {
cudaError_t converted(const cudaKernelNodeParams* wanted,
                      CUDA_KERNEL_NODE_PARAMS* node) {
  *node = {};
  if (wanted == nullptr) return cudaErrorInvalidValue;
  if (cudaError_t error = kernel_of(wanted->func, &node->func)) return error;
  node->gridDimX = wanted->gridDim.x;
  node->gridDimY = wanted->gridDim.y;
  node->gridDimZ = wanted->gridDim.z;
  node->blockDimX = wanted->blockDim.x;
  node->blockDimY = wanted->blockDim.y;
  node->blockDimZ = wanted->blockDim.z;
  node->sharedMemBytes = wanted->sharedMemBytes;
  node->kernelParams = wanted->kernelParams;
  node->extra = wanted->extra;
  return cudaSuccess;
}
}  // namespace

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddKernelNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, const cudaKernelNodeParams* wanted) {
  IPCLAB_BIND();
  CUDA_KERNEL_NODE_PARAMS kernel;
  if (cudaError_t error = converted(wanted, &kernel)) return remember(error);
  return remember(cuGraphAddKernelNode(node, graph, after, count, &kernel));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t executable, cudaGraphNode_t node,
    const cudaKernelNodeParams* wanted) {
  IPCLAB_BIND();
  CUDA_KERNEL_NODE_PARAMS kernel;
  if (cudaError_t error = converted(wanted, &kernel)) return remember(error);
  return remember(cuGraphExecKernelNodeSetParams(executable, node, &kernel));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddMemcpyNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, const cudaMemcpy3DParms* wanted) {
  IPCLAB_BIND();
  CUDA_MEMCPY3D copy;
  if (cudaError_t error = cuboid_of(wanted, &copy)) return remember(error);
  return remember(
      cuGraphAddMemcpyNode(node, graph, after, count, &copy, nullptr));
}

IPCLAB_RUNTIME_API cudaError_t
cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                         const cudaGraphNode_t* after, size_t count, void* to,
                         const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpy3DParms wanted{};
  wanted.dstPtr = {to, bytes, bytes, 1};
  wanted.srcPtr = {const_cast<void*>(from), bytes, bytes, 1};
  wanted.extent = {bytes, 1, 1};
  wanted.kind = kind;
  return cudaGraphAddMemcpyNode(node, graph, after, count, &wanted);
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddMemsetNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, const cudaMemsetParams* wanted) {
  IPCLAB_BIND();
  if (wanted == nullptr) return remember(cudaErrorInvalidValue);
  const CUDA_MEMSET_NODE_PARAMS set{reinterpret_cast<CUdeviceptr>(wanted->dst),
                                    wanted->pitch,
                                    wanted->value,
                                    wanted->elementSize,
                                    wanted->width,
                                    wanted->height};
  return remember(
      cuGraphAddMemsetNode(node, graph, after, count, &set, nullptr));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddHostNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, const cudaHostNodeParams* wanted) {
  IPCLAB_BIND();
  if (wanted == nullptr) return remember(cudaErrorInvalidValue);
  const CUDA_HOST_NODE_PARAMS call{wanted->fn, wanted->userData};
  return remember(cuGraphAddHostNode(node, graph, after, count, &call));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddEventRecordNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, cudaEvent_t event) {
  IPCLAB_BIND();
  return remember(cuGraphAddEventRecordNode(node, graph, after, count, event));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddEventWaitNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, cudaEvent_t event) {
  IPCLAB_BIND();
  return remember(cuGraphAddEventWaitNode(node, graph, after, count, event));
}

IPCLAB_RUNTIME_API cudaError_t
cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                      const cudaGraphNode_t* after, size_t count) {
  IPCLAB_BIND();
  return remember(cuGraphAddEmptyNode(node, graph, after, count));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddChildGraphNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, cudaGraph_t child) {
  IPCLAB_BIND();
  return remember(cuGraphAddChildGraphNode(node, graph, after, count, child));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddMemAllocNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, cudaMemAllocNodeParams* wanted) {
  IPCLAB_BIND();
  return remember(cuGraphAddMemAllocNode(
      node, graph, after, count,
      reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS*>(wanted)));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddMemFreeNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, void* pointer) {
  IPCLAB_BIND();
  return remember(cuGraphAddMemFreeNode(
      node, graph, after, count, reinterpret_cast<CUdeviceptr>(pointer)));
}

// cuGraphAddNode of CUDA 12.2.
extern "C" CUresult ipclab_old_cuGraphAddNode(
    CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
    CUgraphNodeParams* wanted) __asm__("cuGraphAddNode");

cudaError_t ipclab::runtime::add_node(cudaGraphNode_t* node, cudaGraph_t graph,
                                      const cudaGraphNode_t* after,
                                      size_t count, cudaGraphNodeParams* wanted,
                                      bool edges,
                                      const cudaGraphEdgeData* data) {
  IPCLAB_BIND();
  if (wanted == nullptr) return remember(cudaErrorInvalidValue);
  CUgraphNodeParams same{};  // has the same layout, but for kernels and copies
  if (wanted->type == cudaGraphNodeTypeKernel) {
    const cudaKernelNodeParamsV2& newer = wanted->kernel;
    const cudaKernelNodeParams older{newer.func,         newer.gridDim,
                                     newer.blockDim,     newer.sharedMemBytes,
                                     newer.kernelParams, newer.extra};
    CUDA_KERNEL_NODE_PARAMS kernel;
    static_assert(sizeof kernel == sizeof same.kernel);
    if (cudaError_t error = converted(&older, &kernel)) return remember(error);
    same.type = CU_GRAPH_NODE_TYPE_KERNEL;
    std::memcpy(&same.kernel, &kernel, sizeof kernel);
  } else if (wanted->type == cudaGraphNodeTypeMemcpy) {
    same.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    if (cudaError_t error =
            cuboid_of(&wanted->memcpy.copyParams, &same.memcpy.copyParams)) {
      return remember(error);
    }
  } else {
    std::memcpy(&same, wanted, sizeof same);
  }
  const CUresult code =
      edges ? cuGraphAddNode(node, graph, after,
                             reinterpret_cast<const CUgraphEdgeData*>(data),
                             count, &same)
            : ipclab_old_cuGraphAddNode(node, graph, after, count, &same);
  if (wanted->type == cudaGraphNodeTypeMemAlloc) {
    wanted->alloc.dptr = reinterpret_cast<void*>(same.alloc.dptr);
  }
  return remember(code);
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    const cudaGraphEdgeData* edges, size_t count, cudaGraphNodeParams* wanted) {
  return add_node(node, graph, after, count, wanted, true, edges);
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetGraphMemAttribute(
    int device, cudaGraphMemAttributeType attribute, void* value) {
  IPCLAB_BIND();
  return remember(cuDeviceGetGraphMemAttribute(
      device, static_cast<CUgraphMem_attribute>(attribute), value));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceSetGraphMemAttribute(
    int device, cudaGraphMemAttributeType attribute, void* value) {
  IPCLAB_BIND();
  return remember(cuDeviceSetGraphMemAttribute(
      device, static_cast<CUgraphMem_attribute>(attribute), value));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGraphMemTrim(int device) {
  IPCLAB_BIND();
  return remember(cuDeviceGraphMemTrim(device));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddDependencies(
    cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
    const cudaGraphEdgeData* edges, size_t count) {
  IPCLAB_BIND();
  return remember(cuGraphAddDependencies(
      graph, from, to, reinterpret_cast<const CUgraphEdgeData*>(edges), count));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphGetNodes(cudaGraph_t graph,
                                                 cudaGraphNode_t* nodes,
                                                 size_t* count) {
  IPCLAB_BIND();
  return remember(cuGraphGetNodes(graph, nodes, count));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph,
                                                     cudaGraphNode_t* nodes,
                                                     size_t* count) {
  IPCLAB_BIND();
  return remember(cuGraphGetRootNodes(graph, nodes, count));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node,
                                                    cudaGraphNodeType* type) {
  IPCLAB_BIND();
  return remember(
      cuGraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(type)));
}

IPCLAB_RUNTIME_API cudaError_t
cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  IPCLAB_BIND();
  return remember(
      cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamEndCapture(cudaStream_t stream,
                                                    cudaGraph_t* graph) {
  IPCLAB_BIND();
  return remember(cuStreamEndCapture(stream, graph));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable,
                                                    cudaGraph_t graph,
                                                    unsigned long long flags) {
  IPCLAB_BIND();
  return remember(cuGraphInstantiate(executable, graph, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphInstantiateWithFlags(
    cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

IPCLAB_RUNTIME_API cudaError_t
cudaGraphInstantiateWithParams(cudaGraphExec_t* executable, cudaGraph_t graph,
                               cudaGraphInstantiateParams* wanted) {
  IPCLAB_BIND();
  return remember(cuGraphInstantiateWithParams(
      executable, graph,
      reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(wanted)));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphUpload(cudaGraphExec_t executable,
                                               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuGraphUpload(executable, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable,
                                               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuGraphLaunch(executable, stream));
}

IPCLAB_RUNTIME_API cudaError_t
cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                    cudaGraphExecUpdateResultInfo* info) {
  IPCLAB_BIND();
  return remember(cuGraphExecUpdate(
      executable, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info)));
}

IPCLAB_RUNTIME_API cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t executable) {
  IPCLAB_BIND();
  return remember(cuGraphExecDestroy(executable));
}

IPCLAB_RUNTIME_API cudaError_t cudaUserObjectCreate(cudaUserObject_t* object,
                                                    void* data,
                                                    cudaHostFn_t destroy,
                                                    unsigned count,
                                                    unsigned flags) {
  IPCLAB_BIND();
  return remember(cuUserObjectCreate(object, data, destroy, count, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaUserObjectRetain(cudaUserObject_t object,
                                                    unsigned count) {
  IPCLAB_BIND();
  return remember(cuUserObjectRetain(object, count));
}

IPCLAB_RUNTIME_API cudaError_t cudaUserObjectRelease(cudaUserObject_t object,
                                                     unsigned count) {
  IPCLAB_BIND();
  return remember(cuUserObjectRelease(object, count));
}

IPCLAB_RUNTIME_API cudaError_t
cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                          unsigned count, unsigned flags) {
  IPCLAB_BIND();
  return remember(cuGraphRetainUserObject(graph, object, count, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphReleaseUserObject(
    cudaGraph_t graph, cudaUserObject_t object, unsigned count) {
  IPCLAB_BIND();
  return remember(cuGraphReleaseUserObject(graph, object, count));
}
