// SPDX-License-Identifier: Apache-2.0
// Graphs, as far as memory goes: an allocation node owns an address, and its
// memory cannot be shared with another process.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

/// What a CUgraphNode points to: an allocation, the one kind there is.
struct CUgraphNode_st {
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
};

/// What a CUgraph points to.
struct CUgraph_st {
  CUgraph_st() = default;
  ~CUgraph_st();  ///< gives the addresses of its allocations back
  CUgraph_st(const CUgraph_st&) = delete;
  CUgraph_st& operator=(const CUgraph_st&) = delete;

  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

namespace ipclab::model {

CUgraph graph_create();
/// CUDA_ERROR_INVALID_VALUE for a graph that is not alive.
CUresult graph_destroy(CUgraph graph);
/// Adds an allocation and writes its address to `wanted`.
/// CUDA_ERROR_INVALID_VALUE for properties that no pool may have, and for
/// handle types: "IPC is not supported".
CUresult graph_add_allocation(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS* wanted,
                              CUgraphNode* node);

}  // namespace ipclab::model
