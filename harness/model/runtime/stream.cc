// SPDX-License-Identifier: Apache-2.0
// The runtime API: streams and events.
#include "runtime/runtime.h"

using namespace ipclab::runtime;

IPCLAB_RUNTIME_API cudaError_t cudaStreamCreateWithPriority(
    cudaStream_t* stream, unsigned flags, int priority) {
  IPCLAB_BIND();
  return remember(cuStreamCreateWithPriority(stream, flags, priority));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream,
                                                         unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuStreamDestroy(stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuStreamSynchronize(stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuStreamQuery(stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamGetFlags(cudaStream_t stream,
                                                  unsigned* flags) {
  IPCLAB_BIND();
  return remember(cuStreamGetFlags(stream, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamGetPriority(cudaStream_t stream,
                                                     int* priority) {
  IPCLAB_BIND();
  return remember(cuStreamGetPriority(stream, priority));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamGetId(cudaStream_t stream,
                                               unsigned long long* id) {
  IPCLAB_BIND();
  return remember(cuStreamGetId(stream, id));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamGetDevice(cudaStream_t stream,
                                                   int* device) {
  IPCLAB_BIND();
  return remember(cuStreamGetDevice(stream, device));
}

IPCLAB_RUNTIME_API cudaError_t
cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  IPCLAB_BIND();
  return remember(cuStreamIsCapturing(
      stream, reinterpret_cast<CUstreamCaptureStatus*>(status)));
}

IPCLAB_RUNTIME_API cudaError_t
cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                         unsigned long long* id, cudaGraph_t* graph,
                         const cudaGraphNode_t** dependencies,
                         const cudaGraphEdgeData** edges, size_t* count) {
  IPCLAB_BIND();
  cuuint64_t number = 0;
  const CUresult error = cuStreamGetCaptureInfo(
      stream, reinterpret_cast<CUstreamCaptureStatus*>(status), &number, graph,
      dependencies, reinterpret_cast<const CUgraphEdgeData**>(edges), count);
  if (id != nullptr && number != 0) *id = number;
  return remember(error);
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamUpdateCaptureDependencies(
    cudaStream_t stream, cudaGraphNode_t* nodes, const cudaGraphEdgeData* edges,
    size_t count, unsigned flags) {
  IPCLAB_BIND();
  return remember(cuStreamUpdateCaptureDependencies(
      stream, nodes, reinterpret_cast<const CUgraphEdgeData*>(edges), count,
      flags));
}

IPCLAB_RUNTIME_API cudaError_t
cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return remember(cuThreadExchangeStreamCaptureMode(
      reinterpret_cast<CUstreamCaptureMode*>(mode)));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream,
                                                        void* pointer,
                                                        size_t length,
                                                        unsigned flags) {
  IPCLAB_BIND();
  return remember(cuStreamAttachMemAsync(
      stream, reinterpret_cast<CUdeviceptr>(pointer), length, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream,
                                                  cudaHostFn_t function,
                                                  void* data) {
  IPCLAB_BIND();
  return remember(cuLaunchHostFunc(stream, function, data));
}

IPCLAB_RUNTIME_API cudaError_t
cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                      void* data, unsigned flags) {
  IPCLAB_BIND();
  return remember(cuStreamAddCallback(
      stream, reinterpret_cast<CUstreamCallback>(callback), data, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream,
                                                   cudaEvent_t event,
                                                   unsigned flags) {
  IPCLAB_BIND();
  return remember(cuStreamWaitEvent(stream, event, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event,
                                                        unsigned flags) {
  IPCLAB_BIND();
  return remember(cuEventCreate(event, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

IPCLAB_RUNTIME_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  IPCLAB_BIND();
  return remember(cuEventDestroy(event));
}

IPCLAB_RUNTIME_API cudaError_t cudaEventRecord(cudaEvent_t event,
                                               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuEventRecord(event, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event,
                                                        cudaStream_t stream,
                                                        unsigned flags) {
  IPCLAB_BIND();
  return remember(cuEventRecordWithFlags(event, stream, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  IPCLAB_BIND();
  return remember(cuEventQuery(event));
}

IPCLAB_RUNTIME_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  IPCLAB_BIND();
  return remember(cuEventSynchronize(event));
}

IPCLAB_RUNTIME_API cudaError_t cudaEventElapsedTime(float* milliseconds,
                                                    cudaEvent_t start,
                                                    cudaEvent_t end) {
  IPCLAB_BIND();
  return remember(cuEventElapsedTime(milliseconds, start, end));
}

// What follows came with CUDA 13.1. An execution context is a CUcontext here.
IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetExecutionCtx(CUcontext* context,
                                                         int device) {
  if (cudaError_t error = start()) return error;
  if (context == nullptr) return remember(cudaErrorInvalidValue);
  return remember(retain_primary(device, context));
}

IPCLAB_RUNTIME_API cudaError_t cudaExecutionCtxRecordEvent(CUcontext context,
                                                           cudaEvent_t event) {
  IPCLAB_BIND();
  return remember(cuCtxRecordEvent(context, event));
}

IPCLAB_RUNTIME_API cudaError_t cudaExecutionCtxWaitEvent(CUcontext context,
                                                         cudaEvent_t event) {
  IPCLAB_BIND();
  return remember(cuCtxWaitEvent(context, event));
}
