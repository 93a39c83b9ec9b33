// SPDX-License-Identifier: Apache-2.0
// How the runtime of CUDA 12 differs from the headers of CUDA 13, with which
// both runtimes are built. Where CUDA 12 has an old form of a function beside
// the form of CUDA 13, the form of CUDA 13 has another name. The old forms are
// in runtime/major12.cc.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#define cudaGraphAddDependencies cudaGraphAddDependencies_v2
#define cudaGraphAddNode cudaGraphAddNode_v2
#define cudaMemAdvise cudaMemAdvise_v2
#define cudaMemPrefetchAsync cudaMemPrefetchAsync_v2
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v3
#define cudaStreamUpdateCaptureDependencies \
  cudaStreamUpdateCaptureDependencies_v2

// The form that drivers before CUDA 12.8 have, too. Both do the same.
#undef cuEventElapsedTime
extern "C" CUresult cuEventElapsedTime(float* milliseconds, CUevent start,
                                       CUevent end);

namespace ipclab::runtime {

/// cudaDeviceProp of CUDA 12.
struct DeviceProperties {
  char name[256];
  cudaUUID_t uuid;
  char luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int deviceOverlap;
  int multiProcessorCount;
  int kernelExecTimeoutEnabled;
  int integrated;
  int canMapHostMemory;
  int computeMode;
  int maxTexture1D;
  int maxTexture1DMipmap;
  int maxTexture1DLinear;
  int maxTexture2D[2];
  int maxTexture2DMipmap[2];
  int maxTexture2DLinear[3];
  int maxTexture2DGather[2];
  int maxTexture3D[3];
  int maxTexture3DAlt[3];
  int maxTextureCubemap;
  int maxTexture1DLayered[2];
  int maxTexture2DLayered[3];
  int maxTextureCubemapLayered[2];
  int maxSurface1D;
  int maxSurface2D[2];
  int maxSurface3D[3];
  int maxSurface1DLayered[2];
  int maxSurface2DLayered[3];
  int maxSurfaceCubemap;
  int maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int tccDriver;
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryClockRate;
  int memoryBusWidth;
  int l2CacheSize;
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int isMultiGpuBoard;
  int multiGpuBoardGroupID;
  int hostNativeAtomicSupported;
  int singleToDoublePrecisionPerfRatio;
  int pageableMemoryAccess;
  int concurrentManagedAccess;
  int computePreemptionSupported;
  int canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  int cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables;
  int directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported;
  int sparseCudaArraySupported;
  int hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported;
  int memoryPoolsSupported;
  int gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingCudaArraySupported;
  int ipcEventSupported;
  int clusterLaunch;
  int unifiedFunctionPointers;
  int reserved2[2];
  int reserved1[1];
  int reserved[60];
};
static_assert(sizeof(DeviceProperties) == 1032);
static_assert(offsetof(DeviceProperties, clockRate) == 348);
static_assert(offsetof(DeviceProperties, multiProcessorCount) == 388);
static_assert(offsetof(DeviceProperties, surfaceAlignment) == 568);
static_assert(offsetof(DeviceProperties, memoryClockRate) == 608);
static_assert(offsetof(DeviceProperties, sharedMemPerBlockOptin) == 696);
static_assert(offsetof(DeviceProperties, ipcEventSupported) == 768);

/// The size of cudaPointerAttributes.
constexpr size_t kPointerAttributesBytes =
    offsetof(cudaPointerAttributes, hostPointer) + sizeof(void*);
static_assert(kPointerAttributesBytes == 24);

constexpr int kBuiltVersion = 12090;

}  // namespace ipclab::runtime
