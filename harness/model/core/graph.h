// SPDX-License-Identifier: Apache-2.0
// Graphs, as far as memory goes: work that one stream captured, and allocation
// nodes, whose memory cannot be shared with another process.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "core/stream.h"

/// What a CUgraphNode points to: an allocation. Captured work has no handles.
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
  std::vector<ipclab::model::Work> work;  ///< in the order of the stream
};

/// What a CUgraphExec points to.
struct CUgraphExec_st {
  std::vector<ipclab::model::Work> work;
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

/// Ends the capture of a stream. CUDA_ERROR_ILLEGAL_STATE if there is none,
/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if a call could not be captured.
CUresult graph_from_capture(Stream* stream, CUgraph* graph);
/// CUDA_ERROR_NOT_SUPPORTED for a graph with allocations.
CUresult graph_instantiate(CUgraph graph, CUgraphExec* executable);
CUresult graph_launch(CUgraphExec executable, Stream* stream);
CUresult graph_destroy(CUgraphExec executable);

}  // namespace ipclab::model
