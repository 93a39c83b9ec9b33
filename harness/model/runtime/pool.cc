// SPDX-License-Identifier: Apache-2.0
// The runtime API: the stream-ordered allocator. Its structures have the same
// layout as those of the driver API.
#include <cstdint>

#include "runtime/runtime.h"

using namespace ipclab::runtime;

static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps));
static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));
static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
static_assert(sizeof(cudaMemPoolPtrExportData) ==
              sizeof(CUmemPoolPtrExportData));

namespace {

CUdeviceptr* as_number(void** pointer) {
  return reinterpret_cast<CUdeviceptr*>(pointer);
}

CUmemLocation* as_driver(cudaMemLocation* location) {
  return reinterpret_cast<CUmemLocation*>(location);
}

CUmemPoolPtrExportData* as_driver(cudaMemPoolPtrExportData* data) {
  return reinterpret_cast<CUmemPoolPtrExportData*>(data);
}

}  // namespace

IPCLAB_RUNTIME_API cudaError_t cudaMallocAsync(void** pointer, size_t size,
                                               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemAllocAsync(as_number(pointer), size, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMallocFromPoolAsync(void** pointer,
                                                       size_t size,
                                                       cudaMemPool_t pool,
                                                       cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(
      cuMemAllocFromPoolAsync(as_number(pointer), size, pool, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaFreeAsync(void* pointer,
                                             cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(
      cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(pointer), stream));
}

IPCLAB_RUNTIME_API cudaError_t
cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  IPCLAB_BIND();
  return remember(cuMemPoolCreate(
      pool, reinterpret_cast<const CUmemPoolProps*>(properties)));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  IPCLAB_BIND();
  return remember(cuMemPoolDestroy(pool));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool,
                                                 size_t keep) {
  IPCLAB_BIND();
  return remember(cuMemPoolTrimTo(pool, keep));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool,
                                                       cudaMemPoolAttr which,
                                                       void* value) {
  IPCLAB_BIND();
  return remember(cuMemPoolSetAttribute(
      pool, static_cast<CUmemPool_attribute>(which), value));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool,
                                                       cudaMemPoolAttr which,
                                                       void* value) {
  IPCLAB_BIND();
  return remember(cuMemPoolGetAttribute(
      pool, static_cast<CUmemPool_attribute>(which), value));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolSetAccess(
    cudaMemPool_t pool, const cudaMemAccessDesc* list, size_t count) {
  IPCLAB_BIND();
  return remember(cuMemPoolSetAccess(
      pool, reinterpret_cast<const CUmemAccessDesc*>(list), count));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags,
                                                    cudaMemPool_t pool,
                                                    cudaMemLocation* location) {
  IPCLAB_BIND();
  return remember(cuMemPoolGetAccess(
      reinterpret_cast<CUmemAccess_flags*>(flags), pool, as_driver(location)));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool,
                                                           int device) {
  IPCLAB_BIND();
  return remember(cuDeviceGetDefaultMemPool(pool, device));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool,
                                                    int device) {
  IPCLAB_BIND();
  return remember(cuDeviceGetMemPool(pool, device));
}

IPCLAB_RUNTIME_API cudaError_t cudaDeviceSetMemPool(int device,
                                                    cudaMemPool_t pool) {
  IPCLAB_BIND();
  return remember(cuDeviceSetMemPool(device, pool));
}

IPCLAB_RUNTIME_API cudaError_t
cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* location,
                         cudaMemAllocationType type) {
  IPCLAB_BIND();
  return remember(cuMemGetDefaultMemPool(
      pool, as_driver(location), static_cast<CUmemAllocationType>(type)));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool,
                                                 cudaMemLocation* location,
                                                 cudaMemAllocationType type) {
  IPCLAB_BIND();
  return remember(cuMemGetMemPool(pool, as_driver(location),
                                  static_cast<CUmemAllocationType>(type)));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemSetMemPool(cudaMemLocation* location,
                                                 cudaMemAllocationType type,
                                                 cudaMemPool_t pool) {
  IPCLAB_BIND();
  return remember(cuMemSetMemPool(
      as_driver(location), static_cast<CUmemAllocationType>(type), pool));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolExportToShareableHandle(
    void* handle, cudaMemPool_t pool, cudaMemAllocationHandleType type,
    unsigned flags) {
  IPCLAB_BIND();
  return remember(cuMemPoolExportToShareableHandle(
      handle, pool, static_cast<CUmemAllocationHandleType>(type), flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolImportFromShareableHandle(
    cudaMemPool_t* pool, void* handle, cudaMemAllocationHandleType type,
    unsigned flags) {
  IPCLAB_BIND();
  return remember(cuMemPoolImportFromShareableHandle(
      pool, handle, static_cast<CUmemAllocationHandleType>(type), flags));
}

IPCLAB_RUNTIME_API cudaError_t
cudaMemPoolExportPointer(cudaMemPoolPtrExportData* data, void* pointer) {
  IPCLAB_BIND();
  return remember(cuMemPoolExportPointer(
      as_driver(data), reinterpret_cast<CUdeviceptr>(pointer)));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemPoolImportPointer(
    void** pointer, cudaMemPool_t pool, cudaMemPoolPtrExportData* data) {
  IPCLAB_BIND();
  return remember(
      cuMemPoolImportPointer(as_number(pointer), pool, as_driver(data)));
}
