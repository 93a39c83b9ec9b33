// SPDX-License-Identifier: Apache-2.0
// The driver API: streams, host functions and events.
#include "core/stream.h"

#include <cstring>
#include <vector>

#include "core/event.h"
#include "core/memory.h"
#include "core/pool.h"
#include "core/race.h"
#include "core/stream_memory.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

void run_on_host(const std::function<void()>& function) {
  inside_host_function = true;
  if (race::on()) race::host_begins();
  function();
  if (race::on()) race::host_ends();
  inside_host_function = false;
}

StreamMemoryOperation write_of(CUdeviceptr address, uint64_t value,
                               unsigned bytes, unsigned flags) {
  return {StreamMemoryOperation::kWrite, address, value, bytes, flags};
}

StreamMemoryOperation wait_of(CUdeviceptr address, uint64_t value,
                              unsigned bytes, unsigned flags) {
  return {StreamMemoryOperation::kWait, address, value, bytes, flags};
}

CUresult converted(const CUstreamBatchMemOpParams& wanted,
                   std::vector<StreamMemoryOperation>* operations) {
  const auto& wait = wanted.waitValue;
  const auto& write = wanted.writeValue;
  switch (wanted.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      operations->push_back(wait_of(wait.address, wait.value, 4, wait.flags));
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      operations->push_back(wait_of(wait.address, wait.value64, 8, wait.flags));
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      operations->push_back(
          write_of(write.address, write.value, 4, write.flags));
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      operations->push_back(
          write_of(write.address, write.value64, 8, write.flags));
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_BARRIER:  // every operation acts as a barrier
      return wanted.memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return CUDA_ERROR_NOT_SUPPORTED;  // the device's attribute is 0
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult submit_one(CUstream handle, const StreamMemoryOperation& operation) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  return stream_memory(stream, {operation});
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuStreamCreateWithPriority(CUstream* stream,
                                                      unsigned flags,
                                                      int priority) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (stream == nullptr) return CUDA_ERROR_INVALID_VALUE;
  priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
  return stream_create(current_context(), flags, priority, stream);
}

IPCLAB_DRIVER_API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

IPCLAB_DRIVER_API CUresult cuStreamDestroy_v2(CUstream stream) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return stream_destroy(stream);
}

IPCLAB_DRIVER_API CUresult cuStreamSynchronize(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_live_stream(handle, &stream)) return error;
  // The legacy stream is done only when the work of the blocking streams, for
  // which it waits, is also done.
  const bool legacy = stream->is_legacy();
  const Order frees =
      legacy ? stream->order_from_now() : stream->order_so_far();
  if (legacy) {
    stream->run([] {});
  } else {
    stream->wait_all();
  }
  after_synchronize(frees);
  return static_cast<CUresult>(stream->context()->sticky.load());
}

IPCLAB_DRIVER_API CUresult cuStreamQuery(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_live_stream(handle, &stream)) return error;
  if (!stream->idle()) return CUDA_ERROR_NOT_READY;
  return static_cast<CUresult>(stream->context()->sticky.load());
}

IPCLAB_DRIVER_API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags();
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority();
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamGetId(CUstream handle,
                                         unsigned long long* id) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id();
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = stream->owner();
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamGetCtx_v2(CUstream stream,
                                             CUcontext* context,
                                             CUgreenCtx* green) {
  if (CUresult error = cuStreamGetCtx(stream, context)) return error;
  if (green != nullptr) *green = green_of(*context);
  *context = whole_of(*context);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamGetDevice(CUstream handle,
                                             CUdevice* device) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context()->device;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamIsCapturing(CUstream handle,
                                               CUstreamCaptureStatus* status) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *status = stream->capture_is_spoilt() ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
            : stream->capturing()       ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                        : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

#undef cuStreamGetCaptureInfo
IPCLAB_DRIVER_API CUresult cuStreamGetCaptureInfo_v3(
    CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
    CUgraph* graph, const CUgraphNode** dependencies,
    const CUgraphEdgeData** edges, size_t* count) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  // "If edgeData_out is non-NULL then dependencies_out must be as well."
  if (status == nullptr || (edges != nullptr && dependencies == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream->is_legacy() && legacy_stream_is_in_use(stream->context())) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (CUresult error = cuStreamIsCapturing(handle, status)) return error;
  const CapturePoint point = stream->capture_point();
  if (point.capture == nullptr) return CUDA_SUCCESS;
  if (id != nullptr) *id = point.capture->id;
  if (graph != nullptr) *graph = point.capture->graph;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* data = nullptr;
  const size_t found = stream->capture_dependencies(&nodes, &data);
  if (dependencies != nullptr) *dependencies = nodes;
  if (edges != nullptr) *edges = data;
  if (count != nullptr) *count = found;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamGetCaptureInfo_v2(
    CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
    CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies,
                                   nullptr, count);
}

IPCLAB_DRIVER_API CUresult cuStreamGetCaptureInfo(CUstream stream,
                                                  CUstreamCaptureStatus* status,
                                                  cuuint64_t* id) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr,
                                   nullptr, nullptr);
}

#undef cuStreamUpdateCaptureDependencies
IPCLAB_DRIVER_API CUresult cuStreamUpdateCaptureDependencies_v2(
    CUstream handle, CUgraphNode* nodes, const CUgraphEdgeData* edges,
    size_t count, unsigned flags) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
      (nodes == nullptr && count > 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUgraphEdgeData plain{};
  for (size_t i = 0; edges != nullptr && i < count; ++i) {
    if (std::memcmp(&edges[i], &plain, sizeof plain) != 0) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  // "If called on a stream that is not capturing, returns
  // CUDA_ERROR_ILLEGAL_STATE."
  if (!stream->capturing()) return CUDA_ERROR_ILLEGAL_STATE;
  return stream->change_capture_dependencies(
             nodes, count, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

IPCLAB_DRIVER_API CUresult cuStreamUpdateCaptureDependencies(CUstream stream,
                                                             CUgraphNode* nodes,
                                                             size_t count,
                                                             unsigned flags) {
  return cuStreamUpdateCaptureDependencies_v2(stream, nodes, nullptr, count,
                                              flags);
}

IPCLAB_DRIVER_API CUresult
cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(*mode, current);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamAttachMemAsync(CUstream handle,
                                                  CUdeviceptr address, size_t,
                                                  unsigned) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_live_stream(handle, &stream)) return error;
  const auto memory = find_memory(address);
  return memory && memory->kind == Kind::kManaged ? CUDA_SUCCESS
                                                  : CUDA_ERROR_INVALID_VALUE;
}

CUresult ipclab::model::call_host(const std::shared_ptr<Stream>& stream,
                                  CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream->submit(
      {CU_GRAPH_NODE_TYPE_HOST, [=] { run_on_host([=] { function(data); }); }});
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function,
                                            void* data) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  return call_host(stream, function, data);
}

IPCLAB_DRIVER_API CUresult cuStreamAddCallback(CUstream handle,
                                               CUstreamCallback callback,
                                               void* data, unsigned flags) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_live_stream(handle, &stream)) return error;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = stream->context();
  stream->submit({CU_GRAPH_NODE_TYPE_HOST,
                  [=] {
                    const auto status =
                        static_cast<CUresult>(context->sticky.load());
                    run_on_host([=] { callback(handle, status, data); });
                  }},
                 true);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamWriteValue32_v2(CUstream stream,
                                                   CUdeviceptr address,
                                                   cuuint32_t value,
                                                   unsigned flags) {
  return submit_one(stream, write_of(address, value, 4, flags));
}
IPCLAB_DRIVER_API CUresult cuStreamWriteValue64_v2(CUstream stream,
                                                   CUdeviceptr address,
                                                   cuuint64_t value,
                                                   unsigned flags) {
  return submit_one(stream, write_of(address, value, 8, flags));
}
IPCLAB_DRIVER_API CUresult cuStreamWaitValue32_v2(CUstream stream,
                                                  CUdeviceptr address,
                                                  cuuint32_t value,
                                                  unsigned flags) {
  return submit_one(stream, wait_of(address, value, 4, flags));
}
IPCLAB_DRIVER_API CUresult cuStreamWaitValue64_v2(CUstream stream,
                                                  CUdeviceptr address,
                                                  cuuint64_t value,
                                                  unsigned flags) {
  return submit_one(stream, wait_of(address, value, 8, flags));
}

IPCLAB_DRIVER_API CUresult
cuStreamBatchMemOp_v2(CUstream handle, unsigned count,
                      CUstreamBatchMemOpParams* wanted, unsigned flags) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  constexpr unsigned kEnd = 256;  // "must be less than 256"
  if (count >= kEnd || flags != 0 || (wanted == nullptr && count > 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<StreamMemoryOperation> operations;
  for (unsigned i = 0; i < count; ++i) {
    if (CUresult error = converted(wanted[i], &operations)) return error;
  }
  return stream_memory(stream, operations);
}

IPCLAB_DRIVER_API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return event_create(context, flags, event);
}

IPCLAB_DRIVER_API CUresult cuEventDestroy_v2(CUevent event) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return event_destroy(event);
}

IPCLAB_DRIVER_API CUresult cuEventRecordWithFlags(CUevent event,
                                                  CUstream handle,
                                                  unsigned flags) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (flags > CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  return event_record(event, stream, flags == CU_EVENT_RECORD_EXTERNAL);
}

IPCLAB_DRIVER_API CUresult cuEventRecord(CUevent event, CUstream stream) {
  return cuEventRecordWithFlags(event, stream, 0);
}

IPCLAB_DRIVER_API CUresult cuEventQuery(CUevent event) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return event_query(event);
}

IPCLAB_DRIVER_API CUresult cuEventSynchronize(CUevent event) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return event_synchronize(event);
}

IPCLAB_DRIVER_API CUresult cuEventElapsedTime_v2(float* milliseconds,
                                                 CUevent start, CUevent end) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return event_elapsed(milliseconds, start, end);
}

IPCLAB_DRIVER_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event,
                                             unsigned flags) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (flags > CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  return stream_wait_event(stream, event, flags == CU_EVENT_WAIT_EXTERNAL);
}
