// SPDX-License-Identifier: Apache-2.0
// The runtime API: allocation, pointers and legacy interprocess communication.
#include <cstring>

#include "runtime/runtime.h"

using namespace ipclab::runtime;

namespace {
CUdeviceptr number(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}
CUdeviceptr* as_number(void** pointer) {
  return reinterpret_cast<CUdeviceptr*>(pointer);
}

CUmemLocation location_of(cudaMemLocation location) {
  CUmemLocation converted{};
  converted.type = static_cast<CUmemLocationType>(location.type);
  converted.id = location.id;
  return converted;
}
}  // namespace

IPCLAB_RUNTIME_API cudaError_t cudaMalloc(void** pointer, size_t size) {
  IPCLAB_BIND();
  if (pointer == nullptr) return remember(cudaErrorInvalidValue);
  if (size == 0) {  // as malloc does: no memory and no error
    *pointer = nullptr;
    return cudaSuccess;
  }
  return remember(cuMemAlloc(as_number(pointer), size));
}

IPCLAB_RUNTIME_API cudaError_t cudaMallocPitch(void** pointer, size_t* pitch,
                                               size_t width, size_t height) {
  IPCLAB_BIND();
  if (pointer == nullptr || pitch == nullptr) {
    return remember(cudaErrorInvalidValue);
  }
  if (width == 0 || height == 0) {
    *pointer = nullptr;
    *pitch = 0;
    return cudaSuccess;
  }
  return remember(cuMemAllocPitch(as_number(pointer), pitch, width, height, 4));
}

IPCLAB_RUNTIME_API cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer,
                                            cudaExtent extent) {
  if (pointer == nullptr) return remember(cudaErrorInvalidValue);
  pointer->xsize = extent.width;
  pointer->ysize = extent.height;
  return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width,
                         extent.height * extent.depth);
}

IPCLAB_RUNTIME_API cudaError_t cudaFree(void* pointer) {
  IPCLAB_BIND();
  return remember(cuMemFree(number(pointer)));
}

IPCLAB_RUNTIME_API cudaError_t cudaHostAlloc(void** pointer, size_t size,
                                             unsigned flags) {
  IPCLAB_BIND();
  if (pointer == nullptr) return remember(cudaErrorInvalidValue);
  if (size == 0) {
    *pointer = nullptr;
    return cudaSuccess;
  }
  return remember(cuMemHostAlloc(pointer, size, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return cudaHostAlloc(pointer, size, cudaHostAllocDefault);
}

IPCLAB_RUNTIME_API cudaError_t cudaFreeHost(void* pointer) {
  IPCLAB_BIND();
  return remember(cuMemFreeHost(pointer));
}

IPCLAB_RUNTIME_API cudaError_t cudaHostRegister(void* pointer, size_t size,
                                                unsigned flags) {
  IPCLAB_BIND();
  return remember(cuMemHostRegister(pointer, size, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaHostUnregister(void* pointer) {
  IPCLAB_BIND();
  return remember(cuMemHostUnregister(pointer));
}

IPCLAB_RUNTIME_API cudaError_t cudaHostGetDevicePointer(void** device,
                                                        void* host,
                                                        unsigned flags) {
  IPCLAB_BIND();
  return remember(cuMemHostGetDevicePointer(as_number(device), host, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
  IPCLAB_BIND();
  return remember(cuMemHostGetFlags(flags, host));
}

IPCLAB_RUNTIME_API cudaError_t cudaMallocManaged(void** pointer, size_t size,
                                                 unsigned flags) {
  IPCLAB_BIND();
  if (size == 0) return remember(cudaErrorInvalidValue);
  return remember(cuMemAllocManaged(as_number(pointer), size, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPrefetchAsync(const void* pointer,
                                                    size_t size,
                                                    cudaMemLocation location,
                                                    unsigned flags,
                                                    cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemPrefetchAsync(number(pointer), size,
                                     location_of(location), flags, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemAdvise(const void* pointer, size_t size,
                                             cudaMemoryAdvise advice,
                                             cudaMemLocation location) {
  IPCLAB_BIND();
  return remember(cuMemAdvise(number(pointer), size,
                              static_cast<CUmem_advise>(advice),
                              location_of(location)));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemGetInfo(size_t* free_bytes,
                                              size_t* total_bytes) {
  IPCLAB_BIND();
  return remember(cuMemGetInfo(free_bytes, total_bytes));
}

IPCLAB_RUNTIME_API cudaError_t cudaPointerGetAttributes(
    cudaPointerAttributes* attributes, const void* pointer) {
  IPCLAB_BIND();
  if (attributes == nullptr) return remember(cudaErrorInvalidValue);
  std::memset(static_cast<void*>(attributes), 0, kPointerAttributesBytes);
  unsigned type = 0;
  unsigned managed = 0;
  int ordinal = cudaInvalidDeviceId;
  CUdeviceptr device = 0;
  void* host = nullptr;
  CUpointer_attribute wanted[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* values[] = {&type, &managed, &ordinal, &device, &host};
  if (CUresult error =
          cuPointerGetAttributes(5, wanted, values, number(pointer))) {
    return remember(error);
  }
  attributes->device = ordinal;
  if (type == 0) {  // a pointer that CUDA does not know
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  attributes->type = managed != 0                 ? cudaMemoryTypeManaged
                     : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeDevice;
  attributes->devicePointer = reinterpret_cast<void*>(device);
  attributes->hostPointer = host;
  return cudaSuccess;
}

namespace {
// As on an H200, a null pointer for the handle is not refused. It ends the
// process.
void* unchecked(void* handle) {
  return handle != nullptr ? handle : reinterpret_cast<void*>(sizeof(void*));
}
}  // namespace

IPCLAB_RUNTIME_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle,
                                                   void* pointer) {
  IPCLAB_BIND();
  return remember(cuIpcGetMemHandle(
      static_cast<CUipcMemHandle*>(unchecked(handle)), number(pointer)));
}

IPCLAB_RUNTIME_API cudaError_t cudaIpcOpenMemHandle(void** pointer,
                                                    cudaIpcMemHandle_t handle,
                                                    unsigned flags) {
  IPCLAB_BIND();
  CUipcMemHandle converted;
  std::memcpy(&converted, &handle, sizeof converted);
  return remember(cuIpcOpenMemHandle(as_number(pointer), converted, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  IPCLAB_BIND();
  return remember(cuIpcCloseMemHandle(number(pointer)));
}

IPCLAB_RUNTIME_API cudaError_t
cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  IPCLAB_BIND();
  if (event == nullptr) return remember(CUDA_ERROR_INVALID_VALUE);
  return remember(cuIpcGetEventHandle(
      static_cast<CUipcEventHandle*>(unchecked(handle)), event));
}

IPCLAB_RUNTIME_API cudaError_t
cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  IPCLAB_BIND();
  CUipcEventHandle converted;
  std::memcpy(&converted, &handle, sizeof converted);
  return remember(cuIpcOpenEventHandle(event, converted));
}
