// SPDX-License-Identifier: Apache-2.0
// The runtime API: graphs, as far as their memory goes.
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
