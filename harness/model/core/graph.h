// SPDX-License-Identifier: Apache-2.0
// Graphs: commands with dependencies. They are added node by node or captured
// from a stream. A launch gives the commands to a stream in an order that the
// dependencies allow.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/graph_memory.h"
#include "core/stream.h"
#include "core/user_object.h"

/// The object of a CUgraphNode.
struct CUgraphNode_st {
  CUgraph graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::vector<CUgraphNode> after;  ///< the nodes that it depends on
  /// The one command of the node. An empty node and a child graph have no
  /// command here; the commands of a child graph are in `child`.
  std::vector<ipclab::model::Command> commands;
  std::shared_ptr<CUgraph_st> child;
  /// The memory of an allocation node or of a free node.
  std::shared_ptr<ipclab::model::GraphMemory> memory;
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
};

/// The object of a CUgraph.
struct CUgraph_st {
  CUgraph_st() = default;
  ~CUgraph_st();  ///< releases the addresses of its allocations
  CUgraph_st(const CUgraph_st&) = delete;
  CUgraph_st& operator=(const CUgraph_st&) = delete;

  std::mutex mutex;  ///< guards `nodes`: two threads may capture into them
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  std::unique_ptr<ipclab::model::HeldObjects> objects =
      std::make_unique<ipclab::model::HeldObjects>();
};

/// The object of a CUgraphExec.
struct CUgraphExec_st {
  std::shared_ptr<CUgraph_st> graph;  ///< keeps the addresses of allocations
  struct Step {
    CUgraphNode node;
    std::vector<ipclab::model::Command> commands;
    /// Does the work, if races are looked for.
    std::shared_ptr<ipclab::model::race::Actor> actor;
  };
  std::vector<Step> steps;
  ipclab::model::GraphMemories allocated;
  ipclab::model::GraphMemories freed;
  std::unique_ptr<ipclab::model::HeldObjects> objects;
  bool frees_at_launch = false;
  ipclab::model::Ticket last;  ///< the next launch waits for this work
};

namespace ipclab::model {

CUgraph graph_create();
/// The live graph of a handle, or null.
std::shared_ptr<CUgraph_st> find_graph(CUgraph graph);
/// Returns CUDA_ERROR_INVALID_VALUE for a graph that is not alive.
CUresult graph_destroy(CUgraph graph);

/// The references of a graph to user objects. Returns
/// CUDA_ERROR_INVALID_VALUE for a graph that is not alive.
CUresult graph_retain(CUgraph graph, CUuserObject object, unsigned count,
                      bool moved);
CUresult graph_release(CUgraph graph, CUuserObject object, unsigned count);

/// The place of a new node.
struct NodePlace {
  CUgraph graph;
  const CUgraphNode* after;
  size_t count;
};

/// Gives a stream the work that becomes a node. If the stream refuses the work,
/// no node is made.
using Recording = std::function<CUresult(const std::shared_ptr<Stream>&)>;

/// Adds a node with the one command that `record` gives to a stream of the
/// context. If `record` gives no command, the node is empty. Returns
/// CUDA_ERROR_INVALID_VALUE for a graph that does not exist, and for
/// dependencies that are not nodes of this graph.
CUresult graph_add(const NodePlace& place, CUcontext context,
                   const Recording& record, CUgraphNode* node);
/// Adds a node with this command.
CUresult graph_add_command(const NodePlace& place, Command command,
                           CUgraphNode* node);
CUresult graph_add_empty(const NodePlace& place, CUgraphNode* node);
/// Adds a clone of the child. Returns CUDA_ERROR_NOT_SUPPORTED if the child
/// allocates or frees memory.
CUresult graph_add_child(const NodePlace& place, CUgraph child,
                         CUgraphNode* node);
/// Adds an allocation and writes its address to `wanted`. Returns
/// CUDA_ERROR_INVALID_VALUE for properties that no pool may have, and for
/// handle types ("IPC is not supported"); CUDA_ERROR_NOT_SUPPORTED for memory
/// on the host.
CUresult graph_add_allocation(const NodePlace& place,
                              CUDA_MEM_ALLOC_NODE_PARAMS* wanted,
                              CUgraphNode* node);
/// Returns CUDA_ERROR_INVALID_VALUE unless an allocation node of any graph has
/// this address. Returns it also if this graph already frees the memory, or if
/// both the graph of the allocation and another graph would free it.
CUresult graph_add_free(const NodePlace& place, CUdeviceptr address,
                        CUgraphNode* node);
CUresult graph_add_dependencies(CUgraph graph, const CUgraphNode* from,
                                const CUgraphNode* to, size_t count);
/// The node of a live graph, or null.
CUgraphNode find_node(CUgraphNode node);
/// Returns CUDA_ERROR_NOT_SUPPORTED if the graph allocates or frees memory.
CUresult graph_clone(CUgraph graph, CUgraph* clone);

/// cuMemAllocAsync and cuMemFreeAsync in a stream that captures. Returns
/// CUDA_ERROR_NOT_SUPPORTED for a pool that can be shared, as an H200 answers.
CUresult graph_capture_allocation(const std::shared_ptr<Stream>& stream,
                                  const CUmemPoolProps& properties,
                                  uint64_t size, uint64_t* address);
CUresult graph_capture_free(const std::shared_ptr<Stream>& stream,
                            uint64_t address);
/// True if `ends` has every node on which no other node depends.
bool graph_ends_with(CUgraph graph, const std::vector<CUgraphNode>& ends);
/// Returns CUDA_ERROR_INVALID_VALUE for dependencies that form a cycle.
CUresult graph_instantiate(CUgraph graph, unsigned long long flags,
                           CUgraphExec* executable);
/// Replaces the work of a node, for all later launches.
CUresult graph_change(CUgraphExec executable, CUgraphNode node,
                      CUcontext context, const Recording& record);
/// Returns CUDA_ERROR_INVALID_VALUE while memory of an earlier launch is not
/// freed, unless the graph frees it at its launch. In a stream that captures,
/// the commands become nodes. If some of these commands allocate or free
/// memory, the call returns CUDA_ERROR_NOT_SUPPORTED.
CUresult graph_launch(CUgraphExec executable,
                      const std::shared_ptr<Stream>& stream);
/// Later launches do the work of this graph. Returns
/// CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE if its nodes are of other types, or
/// have other dependencies, also if these change no order; `result` says which.
CUresult graph_update(CUgraphExec executable, CUgraph graph,
                      CUgraphExecUpdateResult* result);
CUresult graph_destroy(CUgraphExec executable);

}  // namespace ipclab::model
