// SPDX-License-Identifier: Apache-2.0
// The runtime API: graphs, as far as their memory goes, and capture.
#include "runtime/runtime.h"

using namespace ipclab::runtime;

static_assert(sizeof(cudaMemAllocNodeParams) ==
              sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));

IPCLAB_RUNTIME_API cudaError_t cudaGraphCreate(cudaGraph_t* graph,
                                               unsigned flags) {
  IPCLAB_BIND();
  return remember(cuGraphCreate(graph, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  IPCLAB_BIND();
  return remember(cuGraphDestroy(graph));
}

IPCLAB_RUNTIME_API cudaError_t cudaGraphAddMemAllocNode(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
    size_t count, cudaMemAllocNodeParams* wanted) {
  IPCLAB_BIND();
  return remember(cuGraphAddMemAllocNode(
      node, graph, after, count,
      reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS*>(wanted)));
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

IPCLAB_RUNTIME_API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable,
                                               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuGraphLaunch(executable, stream));
}

IPCLAB_RUNTIME_API cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t executable) {
  IPCLAB_BIND();
  return remember(cuGraphExecDestroy(executable));
}
