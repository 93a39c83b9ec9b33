// SPDX-License-Identifier: Apache-2.0
// The driver API: graphs, as far as their memory goes.
#include "core/graph.h"

#include "driver/driver.h"

using namespace ipclab::model;

IPCLAB_DRIVER_API CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  if (CUresult error = enter()) return error;
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *graph = graph_create();
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuGraphDestroy(CUgraph graph) {
  if (CUresult error = enter()) return error;
  return graph_destroy(graph);
}

IPCLAB_DRIVER_API CUresult
cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*,
                       size_t, CUDA_MEM_ALLOC_NODE_PARAMS* wanted) {
  if (CUresult error = enter()) return error;
  if (node == nullptr || wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_add_allocation(graph, wanted, node);
}
