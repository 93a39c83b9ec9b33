// SPDX-License-Identifier: Apache-2.0
// The runtime API of CUDA 12: functions that CUDA 13 does not have, or has with
// other arguments. The headers of CUDA 13 declare some of these names with
// their new arguments, so each function here has another name in C++.
#include <cstring>

#include "runtime/runtime.h"

using namespace ipclab::runtime;

#define IPCLAB_OLD_API(name, ...)                            \
  extern "C" __attribute__((visibility("default")))          \
  cudaError_t ipclab_old_##name(__VA_ARGS__) __asm__(#name); \
  cudaError_t ipclab_old_##name(__VA_ARGS__)

// The forms of the driver that are as old as these functions.
extern "C" {
CUresult ipclab_old_cuGraphAddDependencies(
    CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
    size_t count) __asm__("cuGraphAddDependencies");
CUresult ipclab_old_cuMemAdvise(CUdeviceptr address, size_t size,
                                CUmem_advise advice,
                                CUdevice device) __asm__("cuMemAdvise");
CUresult ipclab_old_cuMemPrefetchAsync(
    CUdeviceptr address, size_t size, CUdevice device,
    CUstream stream) __asm__("cuMemPrefetchAsync");
CUresult ipclab_old_cuMemcpyBatchAsync(
    void** to, void** from, size_t* sizes, size_t count,
    cudaMemcpyAttributes* attributes, size_t* first_copies, size_t kinds,
    size_t* failed, CUstream stream) __asm__("cuMemcpyBatchAsync");
CUresult ipclab_old_cuMemcpy3DBatchAsync(
    size_t count, cudaMemcpy3DBatchOp* list, size_t* failed,
    unsigned long long flags, CUstream stream) __asm__("cuMemcpy3DBatchAsync");
CUresult ipclab_old_cuStreamGetCaptureInfo_v2(
    CUstream stream, cudaStreamCaptureStatus* status, unsigned long long* id,
    CUgraph* graph, const CUgraphNode** dependencies,
    size_t* count) __asm__("cuStreamGetCaptureInfo_v2");
CUresult ipclab_old_cuStreamUpdateCaptureDependencies(
    CUstream stream, CUgraphNode* nodes, size_t count,
    unsigned flags) __asm__("cuStreamUpdateCaptureDependencies");
}

// The structure of CUDA 11 is the first part of the structure of CUDA 12.
IPCLAB_OLD_API(cudaGetDeviceProperties, void* properties, int device) {
  constexpr size_t kBytes = offsetof(DeviceProperties, hostRegisterSupported);
  static_assert(kBytes == 728);
  if (properties == nullptr) return remember(cudaErrorInvalidValue);
  DeviceProperties newer;
  if (cudaError_t error = device_properties(&newer, device)) return error;
  std::memcpy(properties, &newer, kBytes);
  return cudaSuccess;
}

IPCLAB_OLD_API(cudaEventElapsedTime_v2, float* milliseconds, cudaEvent_t start,
               cudaEvent_t end) {
  IPCLAB_BIND();
  return remember(cuEventElapsedTime_v2(milliseconds, start, end));
}

IPCLAB_OLD_API(cudaMemAdvise, const void* pointer, size_t size,
               cudaMemoryAdvise advice, int device) {
  IPCLAB_BIND();
  return remember(
      ipclab_old_cuMemAdvise(reinterpret_cast<CUdeviceptr>(pointer), size,
                             static_cast<CUmem_advise>(advice), device));
}

IPCLAB_OLD_API(cudaMemPrefetchAsync, const void* pointer, size_t size,
               int device, cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(ipclab_old_cuMemPrefetchAsync(
      reinterpret_cast<CUdeviceptr>(pointer), size, device, stream));
}

IPCLAB_OLD_API(cudaGraphAddDependencies, cudaGraph_t graph,
               const cudaGraphNode_t* from, const cudaGraphNode_t* to,
               size_t count) {
  IPCLAB_BIND();
  return remember(ipclab_old_cuGraphAddDependencies(graph, from, to, count));
}

IPCLAB_OLD_API(cudaGraphAddNode, cudaGraphNode_t* node, cudaGraph_t graph,
               const cudaGraphNode_t* after, size_t count,
               cudaGraphNodeParams* wanted) {
  return add_node(node, graph, after, count, wanted, false);
}

IPCLAB_OLD_API(cudaMemcpyBatchAsync, void** to, void** from, size_t* sizes,
               size_t count, cudaMemcpyAttributes* attributes,
               size_t* first_copies, size_t kinds, size_t* wrong_copy,
               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(ipclab_old_cuMemcpyBatchAsync(to, from, sizes, count,
                                                attributes, first_copies, kinds,
                                                wrong_copy, stream));
}

IPCLAB_OLD_API(cudaMemcpy3DBatchAsync, size_t count, cudaMemcpy3DBatchOp* list,
               size_t* wrong_copy, unsigned long long flags,
               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(
      ipclab_old_cuMemcpy3DBatchAsync(count, list, wrong_copy, flags, stream));
}

IPCLAB_OLD_API(cudaStreamGetCaptureInfo_v2, cudaStream_t stream,
               cudaStreamCaptureStatus* status, unsigned long long* id,
               cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
               size_t* count) {
  IPCLAB_BIND();
  return remember(ipclab_old_cuStreamGetCaptureInfo_v2(
      stream, status, id, graph, dependencies, count));
}

IPCLAB_OLD_API(cudaStreamGetCaptureInfo, cudaStream_t stream,
               cudaStreamCaptureStatus* status, unsigned long long* id) {
  IPCLAB_BIND();
  return remember(ipclab_old_cuStreamGetCaptureInfo_v2(
      stream, status, id, nullptr, nullptr, nullptr));
}

IPCLAB_OLD_API(cudaStreamUpdateCaptureDependencies, cudaStream_t stream,
               cudaGraphNode_t* nodes, size_t count, unsigned flags) {
  IPCLAB_BIND();
  return remember(ipclab_old_cuStreamUpdateCaptureDependencies(stream, nodes,
                                                               count, flags));
}

// These names come from CUDA 1 to 3.
IPCLAB_OLD_API(cudaThreadExit) { return cudaDeviceReset(); }

IPCLAB_OLD_API(cudaThreadSynchronize) { return cudaDeviceSynchronize(); }

IPCLAB_OLD_API(cudaThreadSetLimit, cudaLimit limit, size_t value) {
  return cudaDeviceSetLimit(limit, value);
}

IPCLAB_OLD_API(cudaThreadGetLimit, size_t* value, cudaLimit limit) {
  return cudaDeviceGetLimit(value, limit);
}

IPCLAB_OLD_API(cudaThreadSetCacheConfig, cudaFuncCache config) {
  return cudaDeviceSetCacheConfig(config);
}

IPCLAB_OLD_API(cudaThreadGetCacheConfig, cudaFuncCache* config) {
  return cudaDeviceGetCacheConfig(config);
}

// Every GPU since compute capability 1.3 has doubles.
IPCLAB_OLD_API(cudaSetDoubleForDevice, double*) { return bind(); }

IPCLAB_OLD_API(cudaSetDoubleForHost, double*) { return bind(); }
