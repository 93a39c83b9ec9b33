// SPDX-License-Identifier: Apache-2.0
// The driver API: graphs and capture.
#include "core/graph.h"

#include <algorithm>
#include <cstring>

#include "core/copy.h"
#include "core/endpoint.h"
#include "core/event.h"
#include "core/memory.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

// Adds a node in this context; in the current one if it is null.
CUresult add(CUgraphNode* node, const NodePlace& place, const Recording& record,
             CUcontext context = nullptr) {
  if (CUresult error = context == nullptr ? enter(&context) : enter()) {
    return error;
  }
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_add(place, context, record, node);
}

// "This field is ignored if func is set."
CUcontext context_of(const CUDA_KERNEL_NODE_PARAMS& wanted) {
  return wanted.func != nullptr ? nullptr : wanted.ctx;
}

Recording kernel_of(const CUDA_KERNEL_NODE_PARAMS& wanted) {
  return [wanted](const std::shared_ptr<Stream>& stream) {
    const LaunchShape shape{
        {wanted.gridDimX, wanted.gridDimY, wanted.gridDimZ},
        {wanted.blockDimX, wanted.blockDimY, wanted.blockDimZ},
        wanted.sharedMemBytes};
    const CUfunction function = wanted.func != nullptr
                                    ? wanted.func
                                    : reinterpret_cast<CUfunction>(wanted.kern);
    return launch_kernel(stream, function, shape, wanted.kernelParams,
                         wanted.extra);
  };
}

// The older parameters of a node, which are the first members of the newer
// ones.
template <class Older, class Newer>
Older same_as(const Newer& newer) {
  static_assert(sizeof(Older) <= sizeof(Newer));
  Older older;
  std::memcpy(&older, &newer, sizeof older);
  return older;
}

// Edges are full dependencies. Bytes of later versions, which "must be zeroed",
// may ask for something else, too.
bool is_programmatic(const CUgraphEdgeData& edge) {
  const CUgraphEdgeData plain{};
  return std::memcmp(&edge, &plain, sizeof edge) != 0;
}

// Writes handles as the queries of graphs do: before the call, `count` has the
// size of the program's array; after the call, it has the number of handles.
CUresult list_nodes(const std::vector<CUgraphNode>& found, CUgraphNode* nodes,
                    size_t* count) {
  if (nodes != nullptr) {
    const size_t room = *count;
    for (size_t i = 0; i < room; ++i) {
      nodes[i] = i < found.size() ? found[i] : nullptr;
    }
    *count = std::min(room, found.size());
    return CUDA_SUCCESS;
  }
  *count = found.size();
  return CUDA_SUCCESS;
}

// A node of CUDA 13.5, which the headers of the model do not have.
constexpr int kFabricCopies = 18;
struct FabricCopies {
  size_t count;
  CUDA_FABRIC_COPY_BATCH_OP* list;
  unsigned long long flags;
  CUcontext context;
};

CUresult add_fabric_copies(CUgraphNode* node, const NodePlace& place,
                           const CUgraphNodeParams* wanted) {
  if (profile().driver_version < 13050) return CUDA_ERROR_INVALID_VALUE;
  FabricCopies copies;
  std::memcpy(&copies, &wanted->reserved1, sizeof copies);
  if (copies.count == 0 || copies.list == nullptr || copies.flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::vector<CUDA_FABRIC_COPY_BATCH_OP> list(copies.list,
                                                    copies.list + copies.count);
  return add(
      node, place,
      [&list](const std::shared_ptr<Stream>& stream) {
        return endpoint_copy(stream, stream->context(), list);
      },
      copies.context);
}

CUresult nodes_of(CUgraph handle, bool roots_only, CUgraphNode* nodes,
                  size_t* count) {
  if (CUresult error = enter()) return error;
  const std::shared_ptr<CUgraph_st> graph = find_graph(handle);
  if (graph == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> found;
  for (const auto& node : graph->nodes) {
    if (!roots_only || node->after.empty()) found.push_back(node.get());
  }
  return list_nodes(found, nodes, count);
}

}  // namespace

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

IPCLAB_DRIVER_API CUresult cuGraphClone(CUgraph* clone, CUgraph graph) {
  if (CUresult error = enter()) return error;
  if (clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_clone(graph, clone);
}

IPCLAB_DRIVER_API CUresult cuGraphAddKernelNode_v2(
    CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
    const CUDA_KERNEL_NODE_PARAMS* wanted) {
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(node, {graph, after, count}, kernel_of(*wanted),
             context_of(*wanted));
}

IPCLAB_DRIVER_API CUresult
cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                  const CUDA_KERNEL_NODE_PARAMS* wanted) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context_of(*wanted) != nullptr) context = wanted->ctx;
  return graph_change(executable, node, context, kernel_of(*wanted));
}

IPCLAB_DRIVER_API CUresult cuGraphAddMemcpyNode(
    CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
    const CUDA_MEMCPY3D* wanted, CUcontext context) {
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(
      node, {graph, after, count},
      [&](const std::shared_ptr<Stream>& stream) {
        return copy_cuboid(stream, stream->context(), *wanted, true);
      },
      context);
}

// "cudaGraphAddMemsetNode does not work with memory allocated via the stream
// ordered allocator. However, memsets of the allocations can be stream
// captured." (Programming Guide)
namespace {
bool is_excluded(CUdeviceptr address) {
  if (profile().driver_580) return false;  // driver 580 accepts such memory
  const auto found = find_memory(address);
  return found && found->pool != nullptr;
}
}  // namespace

IPCLAB_DRIVER_API CUresult cuGraphAddMemsetNode(
    CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
    const CUDA_MEMSET_NODE_PARAMS* wanted, CUcontext context) {
  if (wanted == nullptr ||
      (wanted->elementSize != 1 && wanted->elementSize != 2 &&
       wanted->elementSize != 4) ||
      is_excluded(wanted->dst)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return add(
      node, {graph, after, count},
      [&](const std::shared_ptr<Stream>& stream) {
        const uint64_t width = wanted->width * wanted->elementSize;
        const uint64_t pitch = wanted->height > 1 ? wanted->pitch : width;
        return pitch < width
                   ? CUDA_ERROR_INVALID_VALUE
                   : set(stream, {wanted->dst, pitch, pitch * wanted->height},
                         wanted->value, wanted->elementSize,
                         {width, wanted->height, 1}, true);
      },
      context);
}

IPCLAB_DRIVER_API CUresult
cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                   size_t count, const CUDA_HOST_NODE_PARAMS* wanted) {
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(node, {graph, after, count},
             [&](const std::shared_ptr<Stream>& stream) {
               return call_host(stream, wanted->fn, wanted->userData);
             });
}

IPCLAB_DRIVER_API CUresult cuGraphAddEventRecordNode(CUgraphNode* node,
                                                     CUgraph graph,
                                                     const CUgraphNode* after,
                                                     size_t count,
                                                     CUevent event) {
  return add(node, {graph, after, count},
             [=](const std::shared_ptr<Stream>& stream) {
               return event_record(event, stream, true);
             });
}

IPCLAB_DRIVER_API CUresult cuGraphAddEventWaitNode(CUgraphNode* node,
                                                   CUgraph graph,
                                                   const CUgraphNode* after,
                                                   size_t count,
                                                   CUevent event) {
  return add(node, {graph, after, count},
             [=](const std::shared_ptr<Stream>& stream) {
               return stream_wait_event(stream, event, true);
             });
}

IPCLAB_DRIVER_API CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph,
                                               const CUgraphNode* after,
                                               size_t count) {
  if (CUresult error = enter()) return error;
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_add_empty({graph, after, count}, node);
}

IPCLAB_DRIVER_API CUresult cuGraphAddChildGraphNode(CUgraphNode* node,
                                                    CUgraph graph,
                                                    const CUgraphNode* after,
                                                    size_t count,
                                                    CUgraph child) {
  if (CUresult error = enter()) return error;
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_add_child({graph, after, count}, child, node);
}

IPCLAB_DRIVER_API CUresult cuGraphAddMemAllocNode(
    CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
    CUDA_MEM_ALLOC_NODE_PARAMS* wanted) {
  if (CUresult error = enter()) return error;
  if (node == nullptr || wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_add_allocation({graph, after, count}, wanted, node);
}

IPCLAB_DRIVER_API CUresult cuGraphAddMemFreeNode(CUgraphNode* node,
                                                 CUgraph graph,
                                                 const CUgraphNode* after,
                                                 size_t count,
                                                 CUdeviceptr address) {
  if (CUresult error = enter()) return error;
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_add_free({graph, after, count}, address, node);
}

IPCLAB_DRIVER_API CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                             const CUgraphNode* after,
                                             const CUgraphEdgeData* edges,
                                             size_t count,
                                             CUgraphNodeParams* wanted) {
  if (CUresult error = enter()) return error;
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (edges != nullptr && std::any_of(edges, edges + count, is_programmatic)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  int type = 0;  // perhaps none that the enumeration has
  std::memcpy(&type, &wanted->type, sizeof type);
  if (type == kFabricCopies) {
    return add_fabric_copies(node, {graph, after, count}, wanted);
  }
  switch (wanted->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto same = same_as<CUDA_KERNEL_NODE_PARAMS>(wanted->kernel);
      return cuGraphAddKernelNode_v2(node, graph, after, count, &same);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(node, graph, after, count,
                                  &wanted->memcpy.copyParams,
                                  wanted->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto same = same_as<CUDA_MEMSET_NODE_PARAMS>(wanted->memset);
      return cuGraphAddMemsetNode(node, graph, after, count, &same,
                                  wanted->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const auto same = same_as<CUDA_HOST_NODE_PARAMS>(wanted->host);
      return cuGraphAddHostNode(node, graph, after, count, &same);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      if (wanted->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
      }
      return cuGraphAddChildGraphNode(node, graph, after, count,
                                      wanted->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return cuGraphAddEmptyNode(node, graph, after, count);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(node, graph, after, count,
                                     wanted->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(node, graph, after, count,
                                       wanted->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      auto same = same_as<CUDA_MEM_ALLOC_NODE_PARAMS>(wanted->alloc);
      const CUresult code =
          cuGraphAddMemAllocNode(node, graph, after, count, &same);
      wanted->alloc.dptr = same.dptr;
      return code;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(node, graph, after, count,
                                   wanted->free.dptr);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

IPCLAB_DRIVER_API CUresult cuGraphMemAllocNodeGetParams(
    CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  if (CUresult error = enter()) return error;
  const CUgraphNode node = find_node(handle);
  if (node == nullptr || parameters == nullptr ||
      node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *parameters = node->allocation;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle,
                                                       CUdeviceptr* address) {
  if (CUresult error = enter()) return error;
  const CUgraphNode node = find_node(handle);
  if (node == nullptr || address == nullptr ||
      node->type != CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = node->memory->address;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetGraphMemAttribute(
    CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (CUresult error = enter()) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return graph_memory_attribute(device_at(device).gpu, attribute,
                                static_cast<cuuint64_t*>(value));
}

// Only the high watermarks can be set, and only to zero.
IPCLAB_DRIVER_API CUresult cuDeviceSetGraphMemAttribute(
    CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (CUresult error = enter()) return error;
  if (value == nullptr || *static_cast<cuuint64_t*>(value) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return graph_memory_reset_mark(device_at(device).gpu, attribute);
}

IPCLAB_DRIVER_API CUresult cuDeviceGraphMemTrim(CUdevice device) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  graph_memory_trim(device_at(device).gpu);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuGraphAddDependencies_v2(
    CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
    const CUgraphEdgeData* edges, size_t count) {
  if (CUresult error = enter()) return error;
  if (edges != nullptr && std::any_of(edges, edges + count, is_programmatic)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return graph_add_dependencies(graph, from, to, count);
}

IPCLAB_DRIVER_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes,
                                           size_t* count) {
  return nodes_of(graph, false, nodes, count);
}

IPCLAB_DRIVER_API CUresult cuGraphGetRootNodes(CUgraph graph,
                                               CUgraphNode* nodes,
                                               size_t* count) {
  return nodes_of(graph, true, nodes, count);
}

IPCLAB_DRIVER_API CUresult cuGraphNodeGetType(CUgraphNode handle,
                                              CUgraphNodeType* type) {
  if (CUresult error = enter()) return error;
  const CUgraphNode node = find_node(handle);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}

// In CUDA, the capture mode forbids calls that could disturb a capture. The
// model only checks that the mode exists, because none of its calls disturbs
// the capture of another stream.
IPCLAB_DRIVER_API CUresult cuStreamBeginCapture_v2(CUstream handle,
                                                   CUstreamCaptureMode mode) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream->is_legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return stream->begin_capture() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

IPCLAB_DRIVER_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  return stream->end_capture(graph);
}

IPCLAB_DRIVER_API CUresult cuGraphInstantiateWithFlags(
    CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  if (CUresult error = enter()) return error;
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_instantiate(graph, flags, executable);
}

IPCLAB_DRIVER_API CUresult
cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                             CUDA_GRAPH_INSTANTIATE_PARAMS* wanted) {
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error =
      cuGraphInstantiateWithFlags(executable, graph, wanted->flags);
  wanted->hErrNode_out = nullptr;
  wanted->result_out = error == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                                             : CUDA_GRAPH_INSTANTIATE_ERROR;
  return error;
}

// The model has nothing to upload.
IPCLAB_DRIVER_API CUresult cuGraphUpload(CUgraphExec, CUstream handle) {
  std::shared_ptr<Stream> stream;
  return enter_stream(handle, &stream);
}

IPCLAB_DRIVER_API CUresult cuGraphLaunch(CUgraphExec executable,
                                         CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  return graph_launch(executable, stream);
}

IPCLAB_DRIVER_API CUresult cuGraphExecUpdate(
    CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  if (CUresult error = enter()) return error;
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *info = {};
  return graph_update(executable, graph, &info->result);
}

IPCLAB_DRIVER_API CUresult cuGraphExecDestroy(CUgraphExec executable) {
  if (CUresult error = enter()) return error;
  return graph_destroy(executable);
}

IPCLAB_DRIVER_API CUresult cuUserObjectCreate(CUuserObject* object, void* data,
                                              CUhostFn destroy, unsigned count,
                                              unsigned flags) {
  if (CUresult error = enter()) return error;
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return user_object_create(data, destroy, count, flags, object);
}

IPCLAB_DRIVER_API CUresult cuUserObjectRetain(CUuserObject object,
                                              unsigned count) {
  if (CUresult error = enter()) return error;
  return user_object_retain(object, count);
}

IPCLAB_DRIVER_API CUresult cuUserObjectRelease(CUuserObject object,
                                               unsigned count) {
  if (CUresult error = enter()) return error;
  return user_object_release(object, count);
}

IPCLAB_DRIVER_API CUresult cuGraphRetainUserObject(CUgraph graph,
                                                   CUuserObject object,
                                                   unsigned count,
                                                   unsigned flags) {
  if (CUresult error = enter()) return error;
  if (flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
  return graph_retain(graph, object, count, flags != 0);
}

IPCLAB_DRIVER_API CUresult cuGraphReleaseUserObject(CUgraph graph,
                                                    CUuserObject object,
                                                    unsigned count) {
  if (CUresult error = enter()) return error;
  return graph_release(graph, object, count);
}

// Forms of older versions, which programs of CUDA 12 call.
namespace {
// The older parameters are the first members of the newer ones.
CUDA_KERNEL_NODE_PARAMS newer(const CUDA_KERNEL_NODE_PARAMS_v1& older) {
  CUDA_KERNEL_NODE_PARAMS same{};
  std::memcpy(&same, &older, sizeof older);
  return same;
}
}  // namespace

#undef cuGraphAddKernelNode
IPCLAB_DRIVER_API CUresult
cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                     size_t count, const CUDA_KERNEL_NODE_PARAMS_v1* wanted) {
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS same = newer(*wanted);
  return cuGraphAddKernelNode_v2(node, graph, after, count, &same);
}

#undef cuGraphExecKernelNodeSetParams
IPCLAB_DRIVER_API CUresult
cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                               const CUDA_KERNEL_NODE_PARAMS_v1* wanted) {
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS same = newer(*wanted);
  return cuGraphExecKernelNodeSetParams_v2(executable, node, &same);
}

#undef cuGraphAddDependencies
IPCLAB_DRIVER_API CUresult cuGraphAddDependencies(CUgraph graph,
                                                  const CUgraphNode* from,
                                                  const CUgraphNode* to,
                                                  size_t count) {
  return cuGraphAddDependencies_v2(graph, from, to, nullptr, count);
}

// This form came with CUDA 12.2, so newer.cc has the name without the prefix.
IPCLAB_DRIVER_API CUresult ipclab_cuGraphAddNode(CUgraphNode* node,
                                                 CUgraph graph,
                                                 const CUgraphNode* after,
                                                 size_t count,
                                                 CUgraphNodeParams* wanted) {
  return cuGraphAddNode_v2(node, graph, after, nullptr, count, wanted);
}

#undef cuStreamBeginCapture
IPCLAB_DRIVER_API CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
