// SPDX-License-Identifier: Apache-2.0
// The driver API: graphs, as far as their memory goes, and capture.
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

// The mode forbids calls of other kinds that could disturb a capture; the model
// has none that can.
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
  return graph_from_capture(stream.get(), graph);
}

IPCLAB_DRIVER_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable,
                                                       CUgraph graph,
                                                       unsigned long long) {
  if (CUresult error = enter()) return error;
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return graph_instantiate(graph, executable);
}

IPCLAB_DRIVER_API CUresult cuGraphLaunch(CUgraphExec executable,
                                         CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  return graph_launch(executable, stream.get());
}

IPCLAB_DRIVER_API CUresult cuGraphExecDestroy(CUgraphExec executable) {
  if (CUresult error = enter()) return error;
  return graph_destroy(executable);
}
