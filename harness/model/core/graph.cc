// SPDX-License-Identifier: Apache-2.0
// Graphs.
#include "core/graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/device.h"
#include "core/memory.h"
#include "core/pool.h"
#include "core/registry.h"

namespace ipclab::model {
namespace {

Registry<CUgraph_st>& graphs() {
  static auto& registry = *new Registry<CUgraph_st>;
  return registry;
}

Registry<CUgraphExec_st>& executables() {
  static auto& registry = *new Registry<CUgraphExec_st>;
  return registry;
}

bool is_node_of(const CUgraph_st& graph, CUgraphNode node) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const auto& own) { return own.get() == node; });
}

// A new node at the place that the program asks for; null if it cannot be
// there.
std::unique_ptr<CUgraphNode_st> make_node(const NodePlace& place,
                                          CUgraphNodeType type) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(place.graph);
  if (graph == nullptr || (place.after == nullptr && place.count > 0)) {
    return nullptr;
  }
  auto node = std::make_unique<CUgraphNode_st>();
  node->graph = place.graph;
  node->type = type;
  for (size_t i = 0; i < place.count; ++i) {
    if (!is_node_of(*graph, place.after[i])) return nullptr;
    node->after.push_back(place.after[i]);
  }
  return node;
}

CUresult insert(std::unique_ptr<CUgraphNode_st> made, CUgraphNode* node) {
  *node = made.get();
  made->graph->nodes.push_back(std::move(made));
  return CUDA_SUCCESS;
}

// The command that `record` gives to a stream that keeps it.
CUresult recorded(CUcontext context, const Recording& record,
                  std::vector<Command>* commands) {
  const auto stream =
      std::make_shared<Stream>(context, CU_STREAM_NON_BLOCKING, 0, false);
  stream->begin_capture();
  if (CUresult error = record(stream)) return error;
  if (stream->capture_is_spoilt()) return CUDA_ERROR_NOT_SUPPORTED;
  stream->end_capture(commands);
  return CUDA_SUCCESS;
}

// The nodes in an order that keeps all dependencies; other nodes stay in the
// order of their creation. Fewer nodes if dependencies form a circle.
std::vector<const CUgraphNode_st*> in_order(const CUgraph_st& graph) {
  std::vector<const CUgraphNode_st*> order;
  std::set<const CUgraphNode_st*> done;
  for (bool found = true; found;) {
    found = false;
    for (const auto& node : graph.nodes) {
      const bool ready =
          done.count(node.get()) == 0 &&
          std::all_of(node->after.begin(), node->after.end(),
                      [&](CUgraphNode other) { return done.count(other) > 0; });
      if (!ready) continue;
      order.push_back(node.get());
      done.insert(node.get());
      found = true;
    }
  }
  return order;
}

std::vector<Command> commands_of(const CUgraphNode_st& node) {
  if (node.child == nullptr) return node.commands;
  std::vector<Command> commands;
  for (const CUgraphNode_st* inner : in_order(*node.child)) {
    for (Command& command : commands_of(*inner)) {
      commands.push_back(std::move(command));
    }
  }
  return commands;
}

std::shared_ptr<CUgraph_st> cloned(const CUgraph_st& graph) {
  auto clone = std::make_shared<CUgraph_st>();
  std::map<CUgraphNode, CUgraphNode> copy_of;
  for (const auto& node : graph.nodes) {
    auto copy = std::make_unique<CUgraphNode_st>(*node);
    copy->graph = clone.get();
    copy->allocation = {};  // only graphs without allocations are cloned
    copy_of[node.get()] = copy.get();
    clone->nodes.push_back(std::move(copy));
  }
  for (const auto& node : clone->nodes) {
    for (CUgraphNode& other : node->after) other = copy_of[other];
  }
  return clone;
}

bool has_allocations(const CUgraph_st& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const auto& node) {
                       return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
                              node->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
                     });
}

bool is_allocated(CUdeviceptr address) {
  return find_memory(address).has_value();
}

void allocate_now(CUcontext context, uint64_t address, uint64_t size) {
  if (graph_memory_allocate(context, address, size) == CUDA_SUCCESS) return;
  int none = 0;
  context->sticky.compare_exchange_strong(none, CUDA_ERROR_OUT_OF_MEMORY);
}

}  // namespace

CUgraph graph_create() { return graphs().add(std::make_shared<CUgraph_st>()); }

std::shared_ptr<CUgraph_st> find_graph(CUgraph graph) {
  return graphs().find(graph);
}

CUresult graph_destroy(CUgraph graph) {
  return graphs().remove(graph) != nullptr ? CUDA_SUCCESS
                                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_add(const NodePlace& place, CUcontext context,
                   const Recording& record, CUgraphNode* node) {
  auto made = make_node(place, CU_GRAPH_NODE_TYPE_EMPTY);
  if (made == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = recorded(context, record, &made->commands)) {
    return error;
  }
  if (!made->commands.empty()) made->type = made->commands.front().type;
  return insert(std::move(made), node);
}

CUresult graph_add_empty(const NodePlace& place, CUgraphNode* node) {
  auto made = make_node(place, CU_GRAPH_NODE_TYPE_EMPTY);
  return made == nullptr ? CUDA_ERROR_INVALID_VALUE
                         : insert(std::move(made), node);
}

CUresult graph_add_child(const NodePlace& place, CUgraph child,
                         CUgraphNode* node) {
  const std::shared_ptr<CUgraph_st> original = graphs().find(child);
  auto made = make_node(place, CU_GRAPH_NODE_TYPE_GRAPH);
  if (original == nullptr || made == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (has_allocations(*original)) return CUDA_ERROR_NOT_SUPPORTED;
  made->child = cloned(*original);
  return insert(std::move(made), node);
}

CUresult graph_add_allocation(const NodePlace& place,
                              CUDA_MEM_ALLOC_NODE_PARAMS* wanted,
                              CUgraphNode* node) {
  auto made = make_node(place, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  if (made == nullptr || wanted->bytesize == 0 ||
      wanted->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult error = check_pool_properties(wanted->poolProps)) return error;
  const CUmemLocation location = wanted->poolProps.location;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // The address stays the same for every launch.
  uint64_t address = 0;
  if (CUresult error = graph_memory_reserve(wanted->bytesize, &address)) {
    return error;
  }
  wanted->dptr = address;
  made->allocation = *wanted;
  CUcontext context = device_at(location.id).primary;
  made->commands.push_back(
      {made->type, [context, address, size = wanted->bytesize] {
         allocate_now(context, address, size);
       }});
  return insert(std::move(made), node);
}

CUresult graph_add_free(const NodePlace& place, CUdeviceptr address,
                        CUgraphNode* node) {
  auto made = make_node(place, CU_GRAPH_NODE_TYPE_MEM_FREE);
  if (made == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& nodes = made->graph->nodes;
  const bool allocated =
      std::any_of(nodes.begin(), nodes.end(), [&](const auto& other) {
        return other->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
               other->allocation.dptr == address;
      });
  const bool freed =
      std::any_of(nodes.begin(), nodes.end(),
                  [&](const auto& other) { return other->freed == address; });
  if (!allocated || freed) return CUDA_ERROR_INVALID_VALUE;
  made->freed = address;
  made->commands.push_back(
      {made->type, [address] { graph_memory_free(address); }});
  return insert(std::move(made), node);
}

CUresult graph_add_dependencies(CUgraph handle, const CUgraphNode* from,
                                const CUgraphNode* to, size_t count) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  if (graph == nullptr || (count > 0 && (from == nullptr || to == nullptr))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!is_node_of(*graph, from[i]) || !is_node_of(*graph, to[i])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (size_t i = 0; i < count; ++i) to[i]->after.push_back(from[i]);
  return CUDA_SUCCESS;
}

CUgraphNode find_node(CUgraphNode node) {
  bool found = false;
  graphs().for_each(
      [&](const CUgraph_st& graph) { found |= is_node_of(graph, node); });
  return found ? node : nullptr;
}

CUresult graph_clone(CUgraph graph, CUgraph* clone) {
  const std::shared_ptr<CUgraph_st> original = graphs().find(graph);
  if (original == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (has_allocations(*original)) return CUDA_ERROR_NOT_SUPPORTED;
  *clone = graphs().add(cloned(*original));
  return CUDA_SUCCESS;
}

CUresult graph_from_capture(Stream* stream, CUgraph* graph) {
  if (!stream->capturing()) return CUDA_ERROR_ILLEGAL_STATE;
  const bool spoilt = stream->capture_is_spoilt();
  std::vector<Command> commands;
  stream->end_capture(&commands);
  if (spoilt) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto made = std::make_shared<CUgraph_st>();
  CUgraphNode last = nullptr;
  for (Command& command : commands) {
    auto node = std::make_unique<CUgraphNode_st>();
    node->graph = made.get();
    node->type = command.type;
    if (last != nullptr) node->after.push_back(last);
    node->commands.push_back(std::move(command));
    last = node.get();
    made->nodes.push_back(std::move(node));
  }
  *graph = graphs().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult graph_instantiate(CUgraph handle, unsigned long long flags,
                           CUgraphExec* executable) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<const CUgraphNode_st*> order = in_order(*graph);
  if (order.size() != graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<CUgraphExec_st>();
  made->graph = graph;
  made->frees_at_launch =
      (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const CUgraphNode_st* node : order) {
    made->steps.push_back({const_cast<CUgraphNode>(node), commands_of(*node)});
    if (node->allocation.dptr != 0) {
      made->unfreed.push_back(node->allocation.dptr);
    }
    if (node->freed != 0) {
      auto& unfreed = made->unfreed;
      unfreed.erase(std::remove(unfreed.begin(), unfreed.end(), node->freed),
                    unfreed.end());
    }
  }
  *executable = executables().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult graph_change(CUgraphExec handle, CUgraphNode node, CUcontext context,
                      const Recording& record) {
  const std::shared_ptr<CUgraphExec_st> executable = executables().find(handle);
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (CUgraphExec_st::Step& step : executable->steps) {
    if (step.node != node) continue;
    std::vector<Command> commands;
    if (CUresult error = recorded(context, record, &commands)) return error;
    if (commands.size() != 1 || step.commands.size() != 1 ||
        commands[0].type != step.commands[0].type) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    step.commands = std::move(commands);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_launch(CUgraphExec handle,
                      const std::shared_ptr<Stream>& stream) {
  const std::shared_ptr<CUgraphExec_st> executable = executables().find(handle);
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const CUdeviceptr address : executable->unfreed) {
    if (executable->frees_at_launch) {
      stream->submit({CU_GRAPH_NODE_TYPE_MEM_FREE,
                      [address] { graph_memory_free(address); }});
    } else if (is_allocated(address)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (const CUgraphExec_st::Step& step : executable->steps) {
    for (const Command& command : step.commands) stream->submit(command);
  }
  return CUDA_SUCCESS;
}

CUresult graph_destroy(CUgraphExec executable) {
  return executables().remove(executable) != nullptr ? CUDA_SUCCESS
                                                     : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace ipclab::model

CUgraph_st::~CUgraph_st() {
  using namespace ipclab::model;
  for (const auto& node : nodes) {
    if (node->allocation.dptr == 0) continue;
    graph_memory_free(node->allocation.dptr);
    graph_memory_give_back(node->allocation.dptr, node->allocation.bytesize);
  }
}
