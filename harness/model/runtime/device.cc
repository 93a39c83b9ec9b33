// SPDX-License-Identifier: Apache-2.0
// The runtime API: devices, properties and peers.
#include <cstring>

#include "runtime/runtime.h"

using namespace ipclab::runtime;

IPCLAB_RUNTIME_API cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return remember(cudaErrorInvalidValue);
  *count = 0;
  if (cudaError_t error = start()) return error;
  return remember(cuDeviceGetCount(count));
}

IPCLAB_RUNTIME_API cudaError_t cudaSetDevice(int device) {
  if (cudaError_t error = start()) return error;
  return set_device(device);
}

IPCLAB_RUNTIME_API cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  if (cudaError_t error = start()) return error;
  CUcontext previous = nullptr;
  cuCtxGetCurrent(&previous);
  if (cudaError_t error = set_device(device)) return error;
  return remember(cuCtxSetCurrent(previous));
}

IPCLAB_RUNTIME_API cudaError_t cudaSetValidDevices(int*, int) {
  return remember(start());
}

IPCLAB_RUNTIME_API cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return remember(cudaErrorInvalidValue);
  if (cudaError_t error = start()) return error;
  *device = current_device();
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetAttribute(int* value,
                                                      cudaDeviceAttr attribute,
                                                      int device) {
  if (cudaError_t error = start()) return error;
  return remember(cuDeviceGetAttribute(
      value, static_cast<CUdevice_attribute>(attribute), device));
}

cudaError_t ipclab::runtime::device_properties(DeviceProperties* p,
                                               int device) {
  if (cudaError_t error = start()) return error;
  if (p == nullptr) return remember(cudaErrorInvalidValue);
  std::memset(p, 0, sizeof *p);
  if (CUresult error = cuDeviceGetName(p->name, sizeof p->name, device)) {
    return remember(error);
  }
  const auto get = [device](cudaDeviceAttr attribute) {
    int value = 0;
    cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute),
                         device);
    return value;
  };
  CUuuid uuid;
  cuDeviceGetUuid(&uuid, device);
  std::memcpy(&p->uuid, &uuid, sizeof uuid);
  cuDeviceTotalMem(&p->totalGlobalMem, device);
  p->sharedMemPerBlock = get(cudaDevAttrMaxSharedMemoryPerBlock);
  p->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
  p->warpSize = get(cudaDevAttrWarpSize);
  p->memPitch = get(cudaDevAttrMaxPitch);
  p->maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock);
  p->maxThreadsDim[0] = get(cudaDevAttrMaxBlockDimX);
  p->maxThreadsDim[1] = get(cudaDevAttrMaxBlockDimY);
  p->maxThreadsDim[2] = get(cudaDevAttrMaxBlockDimZ);
  p->maxGridSize[0] = get(cudaDevAttrMaxGridDimX);
  p->maxGridSize[1] = get(cudaDevAttrMaxGridDimY);
  p->maxGridSize[2] = get(cudaDevAttrMaxGridDimZ);
  p->totalConstMem = get(cudaDevAttrTotalConstantMemory);
  p->major = get(cudaDevAttrComputeCapabilityMajor);
  p->minor = get(cudaDevAttrComputeCapabilityMinor);
  p->textureAlignment = get(cudaDevAttrTextureAlignment);
  p->texturePitchAlignment = get(cudaDevAttrTexturePitchAlignment);
  p->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
  p->integrated = get(cudaDevAttrIntegrated);
  p->canMapHostMemory = get(cudaDevAttrCanMapHostMemory);
  p->surfaceAlignment = get(cudaDevAttrSurfaceAlignment);
  p->concurrentKernels = get(cudaDevAttrConcurrentKernels);
  p->ECCEnabled = get(cudaDevAttrEccEnabled);
  p->pciBusID = get(cudaDevAttrPciBusId);
  p->pciDeviceID = get(cudaDevAttrPciDeviceId);
  p->pciDomainID = get(cudaDevAttrPciDomainId);
  p->asyncEngineCount = get(cudaDevAttrAsyncEngineCount);
  p->unifiedAddressing = get(cudaDevAttrUnifiedAddressing);
  p->memoryBusWidth = get(cudaDevAttrGlobalMemoryBusWidth);
  p->l2CacheSize = get(cudaDevAttrL2CacheSize);
  p->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  p->streamPrioritiesSupported = get(cudaDevAttrStreamPrioritiesSupported);
  p->globalL1CacheSupported = get(cudaDevAttrGlobalL1CacheSupported);
  p->localL1CacheSupported = get(cudaDevAttrLocalL1CacheSupported);
  p->sharedMemPerMultiprocessor =
      get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->managedMemory = get(cudaDevAttrManagedMemory);
  p->hostNativeAtomicSupported = get(cudaDevAttrHostNativeAtomicSupported);
  p->pageableMemoryAccess = get(cudaDevAttrPageableMemoryAccess);
  p->concurrentManagedAccess = get(cudaDevAttrConcurrentManagedAccess);
  p->computePreemptionSupported = get(cudaDevAttrComputePreemptionSupported);
  p->canUseHostPointerForRegisteredMem =
      get(cudaDevAttrCanUseHostPointerForRegisteredMem);
  p->cooperativeLaunch = get(cudaDevAttrCooperativeLaunch);
  p->sharedMemPerBlockOptin = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
  p->reservedSharedMemPerBlock = get(cudaDevAttrReservedSharedMemoryPerBlock);
  p->hostRegisterSupported = get(cudaDevAttrHostRegisterSupported);
  p->memoryPoolsSupported = get(cudaDevAttrMemoryPoolsSupported);
  p->memoryPoolSupportedHandleTypes =
      get(cudaDevAttrMemoryPoolSupportedHandleTypes);
  p->ipcEventSupported = get(cudaDevAttrIpcEventSupport);
#if IPCLAB_CUDART == 12
  p->clockRate = get(cudaDevAttrClockRate);
  p->deviceOverlap = get(cudaDevAttrGpuOverlap);
  p->memoryClockRate = get(cudaDevAttrMemoryClockRate);
  p->singleToDoublePrecisionPerfRatio =
      get(cudaDevAttrSingleToDoublePrecisionPerfRatio);
#else
  p->deviceNumaId = get(cudaDevAttrNumaId);
#endif
  return cudaSuccess;
}

#if IPCLAB_CUDART != 12
IPCLAB_RUNTIME_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p,
                                                       int device) {
  return device_properties(p, device);
}
#endif

IPCLAB_RUNTIME_API cudaError_t cudaGetDeviceProperties_v2(DeviceProperties* p,
                                                          int device) {
  return device_properties(p, device);
}

IPCLAB_RUNTIME_API cudaError_t cudaChooseDevice(int* device,
                                                const cudaDeviceProp*) {
  if (device == nullptr) return remember(cudaErrorInvalidValue);
  if (cudaError_t error = start()) return error;
  *device = 0;
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetPCIBusId(char* text, int length,
                                                     int device) {
  if (cudaError_t error = start()) return error;
  return remember(cuDeviceGetPCIBusId(text, length, device));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetByPCIBusId(int* device,
                                                       const char* text) {
  if (cudaError_t error = start()) return error;
  return remember(cuDeviceGetByPCIBusId(device, text));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceCanAccessPeer(int* can, int from,
                                                       int to) {
  if (cudaError_t error = start()) return error;
  return remember(cuDeviceCanAccessPeer(can, from, to));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetP2PAttribute(
    int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  if (cudaError_t error = start()) return error;
  return remember(cuDeviceGetP2PAttribute(
      value, static_cast<CUdevice_P2PAttribute>(attribute), from, to));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetP2PAtomicCapabilities(
    unsigned* capabilities, const cudaAtomicOperation* operations,
    unsigned count, int from, int to) {
  if (cudaError_t error = start()) return error;
  return remember(cuDeviceGetP2PAtomicCapabilities(
      capabilities, reinterpret_cast<const CUatomicOperation*>(operations),
      count, from, to));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceEnablePeerAccess(int peer,
                                                          unsigned flags) {
  IPCLAB_BIND();
  int count = 0;
  cuDeviceGetCount(&count);
  if (peer < 0 || peer >= count || peer == current_device()) {
    return remember(cudaErrorInvalidDevice);
  }
  CUcontext context = nullptr;
  if (CUresult error = cuDevicePrimaryCtxRetain(&context, peer)) {
    return remember(error);
  }
  return remember(cuCtxEnablePeerAccess(context, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  IPCLAB_BIND();
  CUcontext context = nullptr;
  if (CUresult error = cuDevicePrimaryCtxRetain(&context, peer)) {
    return remember(error);
  }
  const CUresult error = cuCtxDisablePeerAccess(context);
  cuDevicePrimaryCtxRelease(peer);
  return remember(error);
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceSynchronize() {
  IPCLAB_BIND();
  return remember(cuCtxSynchronize());
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceReset() { return reset_device(); }

IPCLAB_RUNTIME_API cudaError_t cudaSetDeviceFlags(unsigned flags) {
  if (cudaError_t error = start()) return error;
  return remember(cuDevicePrimaryCtxSetFlags(current_device(), flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  IPCLAB_BIND();
  return remember(cuCtxGetFlags(flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least,
                                                                int* greatest) {
  IPCLAB_BIND();
  return remember(cuCtxGetStreamPriorityRange(least, greatest));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceSetLimit(cudaLimit limit,
                                                  size_t value) {
  IPCLAB_BIND();
  return remember(cuCtxSetLimit(static_cast<CUlimit>(limit), value));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetLimit(size_t* value,
                                                  cudaLimit limit) {
  IPCLAB_BIND();
  return remember(cuCtxGetLimit(value, static_cast<CUlimit>(limit)));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return bind();  // a hint
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  IPCLAB_BIND();
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaChannelFormatDesc
cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}
