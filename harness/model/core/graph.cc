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
#include "core/race.h"
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
  const std::lock_guard lock(graph->mutex);
  for (size_t i = 0; i < place.count; ++i) {
    if (!is_node_of(*graph, place.after[i])) return nullptr;
    node->after.push_back(place.after[i]);
  }
  return node;
}

CUresult insert(std::unique_ptr<CUgraphNode_st> made, CUgraphNode* node) {
  *node = made.get();
  const std::lock_guard lock(made->graph->mutex);
  made->graph->nodes.push_back(std::move(made));
  return CUDA_SUCCESS;
}

// Stores in `commands` what `record` queues in a stream. The stream captures
// the commands and does not run them.
CUresult recorded(CUcontext context, const Recording& record,
                  std::vector<Command>* commands) {
  const auto stream =
      std::make_shared<Stream>(context, CU_STREAM_NON_BLOCKING, 0, false);
  stream->begin_capture();
  if (CUresult error = record(stream)) return error;
  CUgraph graph = nullptr;
  if (stream->end_capture(&graph) != CUDA_SUCCESS) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (const auto& node : graph->nodes) {
    commands->push_back(std::move(node->commands.front()));
  }
  return graph_destroy(graph);
}

// The nodes in an order that keeps all dependencies; apart from that, nodes
// stay in the order of their creation. Returns fewer nodes if the dependencies
// form a cycle.
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
  clone->objects = std::make_unique<HeldObjects>(*graph.objects);
  std::map<CUgraphNode, CUgraphNode> copy_of;
  for (const auto& node : graph.nodes) {
    auto copy = std::make_unique<CUgraphNode_st>(*node);  // not an allocation
    copy->graph = clone.get();
    copy_of[node.get()] = copy.get();
    clone->nodes.push_back(std::move(copy));
  }
  for (const auto& node : clone->nodes) {
    for (CUgraphNode& other : node->after) other = copy_of[other];
  }
  return clone;
}

NodePlace place_of(const CapturePoint& point) {
  return {point.capture->graph, point.after.data(), point.after.size()};
}

bool has_allocations(const CUgraph_st& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const auto& node) {
                       return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
                              node->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
                     });
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

CUresult graph_retain(CUgraph handle, CUuserObject object, unsigned count,
                      bool moved) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE
                          : graph->objects->retain(object, count, moved);
}

CUresult graph_release(CUgraph handle, CUuserObject object, unsigned count) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE
                          : graph->objects->release(object, count);
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

CUresult graph_add_command(const NodePlace& place, Command command,
                           CUgraphNode* node) {
  auto made = make_node(place, command.type);
  if (made == nullptr) return CUDA_ERROR_INVALID_VALUE;
  made->commands.push_back(std::move(command));
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
  auto& memory = made->memory;
  if (CUresult error = graph_memory_create(device_at(location.id).primary,
                                           wanted->bytesize, &memory)) {
    return error;
  }
  wanted->dptr = memory->address;
  made->allocation = *wanted;
  made->commands.push_back(
      {made->type, [memory] { graph_memory_map(*memory); }});
  return insert(std::move(made), node);
}

CUresult graph_add_free(const NodePlace& place, CUdeviceptr address,
                        CUgraphNode* node) {
  auto made = make_node(place, CU_GRAPH_NODE_TYPE_MEM_FREE);
  const auto memory = find_graph_memory(address);
  if (made == nullptr || memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& nodes = made->graph->nodes;
  const bool freed =
      std::any_of(nodes.begin(), nodes.end(), [&](const auto& other) {
        return other->type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
               other->memory == memory;
      });
  if (freed) return CUDA_ERROR_INVALID_VALUE;
  // "It is not possible to free an allocation in both the owning graph and
  // another graph." (cuGraphAddMemAllocNode)
  const bool inside =
      std::any_of(nodes.begin(), nodes.end(), [&](const auto& other) {
        return other->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
               other->memory == memory;
      });
  if (inside ? memory->freed_outside : memory->freed_inside) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  (inside ? memory->freed_inside : memory->freed_outside) = true;
  made->memory = memory;
  made->commands.push_back(
      {made->type, [memory] { graph_memory_unmap(*memory); }});
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

CUresult graph_capture_allocation(const std::shared_ptr<Stream>& stream,
                                  const CUmemPoolProps& properties,
                                  uint64_t size, uint64_t* address) {
  if (properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const CapturePoint point = stream->capture_point();
  if (point.capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
  wanted.poolProps = properties;
  wanted.bytesize = size;
  CUgraphNode node = nullptr;
  if (CUresult error = graph_add_allocation(place_of(point), &wanted, &node)) {
    return error;
  }
  stream->capture_continues_after(node);
  *address = wanted.dptr;
  return CUDA_SUCCESS;
}

CUresult graph_capture_free(const std::shared_ptr<Stream>& stream,
                            uint64_t address) {
  const CapturePoint point = stream->capture_point();
  if (point.capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  CUgraphNode node = nullptr;
  if (CUresult error = graph_add_free(place_of(point), address, &node)) {
    return error;
  }
  stream->capture_continues_after(node);
  return CUDA_SUCCESS;
}

bool graph_ends_with(CUgraph handle, const std::vector<CUgraphNode>& ends) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  std::set<CUgraphNode> last(ends.begin(), ends.end());
  for (const auto& node : graph->nodes) last.insert(node.get());
  for (const auto& node : graph->nodes) {
    for (const CUgraphNode before : node->after) last.erase(before);
  }
  return std::all_of(last.begin(), last.end(), [&](CUgraphNode node) {
    return std::find(ends.begin(), ends.end(), node) != ends.end();
  });
}

CUresult graph_instantiate(CUgraph handle, unsigned long long flags,
                           CUgraphExec* executable) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<const CUgraphNode_st*> order = in_order(*graph);
  if (order.size() != graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<CUgraphExec_st>();
  made->graph = graph;
  made->objects = std::make_unique<HeldObjects>(*graph->objects);
  made->frees_at_launch =
      (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const CUgraphNode_st* node : order) {
    made->steps.push_back(
        {const_cast<CUgraphNode>(node), commands_of(*node), nullptr});
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      made->allocated.push_back(node->memory);
    } else if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      made->freed.push_back(node->memory);
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

namespace {

/// Races are looked for: branches of the graph are not in order, though the
/// stream does them one after the other. (The commands of a child graph are.)
/// Returns the end of the graph, after which the stream goes on.
Ticket launch_branches(CUgraphExec_st& executable,
                       const std::shared_ptr<Stream>& stream,
                       const std::vector<Ticket>& before) {
  const auto clock_of = [](const Ticket& ticket) {
    return Ticket{ticket.stream, 0, ticket.done};  // the stream keeps the order
  };
  const Ticket begin =
      stream->submit({CU_GRAPH_NODE_TYPE_EMPTY, [] {}}, false, before);
  std::map<CUgraphNode, std::vector<Ticket>> ends;
  std::vector<Ticket> all;
  for (CUgraphExec_st::Step& step : executable.steps) {
    if (step.actor == nullptr) step.actor = std::make_shared<race::Actor>();
    std::vector<Ticket>& end = ends[step.node];
    end.push_back(clock_of(begin));
    for (const CUgraphNode other : step.node->after) {
      const std::vector<Ticket>& others = ends[other];
      end.insert(end.end(), others.begin(), others.end());
    }
    for (const Command& command : step.commands) {
      end = {clock_of(stream->submit_node(command, step.actor, end))};
      all.push_back(end.front());
    }
  }
  return stream->submit({CU_GRAPH_NODE_TYPE_EMPTY, [] {}}, false, all);
}

}  // namespace

CUresult graph_launch(CUgraphExec handle,
                      const std::shared_ptr<Stream>& stream) {
  const std::shared_ptr<CUgraphExec_st> executable = executables().find(handle);
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capturing() && has_allocations(*executable->graph)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  GraphMemories stale;
  if (CUresult error =
          graph_memory_launch(executable->allocated, executable->freed,
                              executable->frees_at_launch, &stale)) {
    return error;
  }
  std::vector<Ticket> before;
  if (executable->last.stream != nullptr) before.push_back(executable->last);
  for (const auto& memory : stale) {
    stream->submit({CU_GRAPH_NODE_TYPE_MEM_FREE,
                    [memory] { graph_memory_unmap(*memory); }},
                   false, before);
  }
  if (race::on() && !stream->capturing()) {
    executable->last = launch_branches(*executable, stream, before);
    return CUDA_SUCCESS;
  }
  for (const CUgraphExec_st::Step& step : executable->steps) {
    for (const Command& command : step.commands) {
      executable->last = stream->submit(command, false, before);
    }
  }
  return CUDA_SUCCESS;
}

namespace {
// The places of the nodes that each node depends on.
std::vector<std::set<size_t>> edges(
    const std::vector<CUgraphExec_st::Step>& steps) {
  std::map<CUgraphNode, size_t> places;
  for (size_t i = 0; i < steps.size(); ++i) places[steps[i].node] = i;
  std::vector<std::set<size_t>> all;
  for (const auto& step : steps) {
    auto& after = all.emplace_back();
    for (const CUgraphNode node : step.node->after)
      after.insert(places.at(node));
  }
  return all;
}
}  // namespace

// Nodes that stand at the same place must be of one type and depend on nodes at
// the same places. What a launch has queued already keeps its arguments.
CUresult graph_update(CUgraphExec executable, CUgraph graph,
                      CUgraphExecUpdateResult* result) {
  *result = CU_GRAPH_EXEC_UPDATE_ERROR;
  const std::shared_ptr<CUgraphExec_st> updated =
      executables().find(executable);
  if (updated == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExec made = nullptr;
  if (CUresult error = graph_instantiate(graph, 0, &made)) return error;
  const std::shared_ptr<CUgraphExec_st> fresh = executables().find(made);
  executables().remove(made);
  if (edges(updated->steps) != edges(fresh->steps)) {
    *result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  for (size_t i = 0; i < fresh->steps.size(); ++i) {
    const CUgraphNodeType type = fresh->steps[i].node->type;
    const bool is_memory = type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
                           type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (type == updated->steps[i].node->type && !is_memory) continue;
    *result = is_memory ? CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED
                        : CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  *result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  updated->graph = fresh->graph;
  updated->objects = std::move(fresh->objects);
  updated->steps = std::move(fresh->steps);
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
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      graph_memory_leave(node->memory);
    }
  }
}
