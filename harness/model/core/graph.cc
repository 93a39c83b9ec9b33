// SPDX-License-Identifier: Apache-2.0
// Graphs.
#include "core/graph.h"

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

}  // namespace

CUgraph graph_create() { return graphs().add(std::make_shared<CUgraph_st>()); }

CUresult graph_destroy(CUgraph graph) {
  return graphs().remove(graph) != nullptr ? CUDA_SUCCESS
                                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_add_allocation(CUgraph handle,
                              CUDA_MEM_ALLOC_NODE_PARAMS* wanted,
                              CUgraphNode* node) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  if (graph == nullptr || wanted->bytesize == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (wanted->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(state_mutex());
  if (CUresult error = check_pool_properties(wanted->poolProps)) return error;
  // The address stays the same for every launch.
  const uint64_t address = take_addresses(Area::kLarge, wanted->bytesize);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wanted->dptr = address;
  auto made = std::make_unique<CUgraphNode_st>();
  made->allocation = *wanted;
  *node = made.get();
  graph->nodes.push_back(std::move(made));
  return CUDA_SUCCESS;
}

CUresult graph_from_capture(Stream* stream, CUgraph* graph) {
  if (!stream->capturing()) return CUDA_ERROR_ILLEGAL_STATE;
  auto made = std::make_shared<CUgraph_st>();
  const bool spoilt = stream->capture_is_spoilt();
  stream->end_capture(&made->work);
  if (spoilt) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *graph = graphs().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult graph_instantiate(CUgraph handle, CUgraphExec* executable) {
  const std::shared_ptr<CUgraph_st> graph = graphs().find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!graph->nodes.empty()) return CUDA_ERROR_NOT_SUPPORTED;
  auto made = std::make_shared<CUgraphExec_st>();
  made->work = graph->work;
  *executable = executables().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult graph_launch(CUgraphExec handle, Stream* stream) {
  const std::shared_ptr<CUgraphExec_st> executable = executables().find(handle);
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const Work& work : executable->work) stream->submit(work);
  return CUDA_SUCCESS;
}

CUresult graph_destroy(CUgraphExec executable) {
  return executables().remove(executable) != nullptr ? CUDA_SUCCESS
                                                     : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace ipclab::model

CUgraph_st::~CUgraph_st() {
  using namespace ipclab::model;
  const std::lock_guard lock(state_mutex());
  for (const auto& node : nodes) {
    give_back_addresses(node->allocation.dptr, node->allocation.bytesize);
  }
}
