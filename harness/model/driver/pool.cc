// SPDX-License-Identifier: Apache-2.0
// The driver API: the stream-ordered allocator.
#include "core/pool.h"

#include <cstdint>

#include "core/memory.h"
#include "core/pool_ipc.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

CUmemLocation on_device(CUdevice device) {
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult allocate(CUdeviceptr* address, size_t size, CUmemoryPool pool,
                  const std::shared_ptr<Stream>& stream) {
  uint64_t place = 0;
  if (CUresult error = pool_allocate(pool, stream, size, &place)) return error;
  *address = place;
  return CUDA_SUCCESS;
}

// Does what enter_stream() does, but only a default stream needs a current
// context. Any other stream has its own context.
CUresult enter_stream_of_any(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY ||
      handle == CU_STREAM_PER_THREAD)
    return enter_stream(handle, stream);
  if (CUresult error = enter()) return error;
  *stream = resolve_stream(handle, nullptr);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUcontext context = (*stream)->context();
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return static_cast<CUresult>(context->sticky.load());
}

// The current pool of the device that a stream belongs to.
CUresult pool_of(const Stream& stream, CUmemoryPool* pool) {
  CUcontext context = stream.context();
  return pool_current(on_device(context->device), CU_MEM_ALLOCATION_TYPE_PINNED,
                      pool);
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size,
                                           CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream_of_any(handle, &stream)) return error;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUmemoryPool pool = nullptr;
  if (CUresult error = pool_of(*stream, &pool)) return error;
  return allocate(address, size, pool, stream);
}

IPCLAB_DRIVER_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address,
                                                   size_t size,
                                                   CUmemoryPool pool,
                                                   CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream_of_any(handle, &stream)) return error;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return allocate(address, size, pool, stream);
}

IPCLAB_DRIVER_API CUresult cuMemFreeAsync(CUdeviceptr address,
                                          CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream_of_any(handle, &stream)) return error;
  if (!profile().pools) return CUDA_ERROR_NOT_SUPPORTED;
  return memory_free_async(address, stream);
}

IPCLAB_DRIVER_API CUresult cuMemPoolCreate(CUmemoryPool* pool,
                                           const CUmemPoolProps* properties) {
  if (CUresult error = enter()) return error;
  if (pool == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_create(*properties, pool);
}

IPCLAB_DRIVER_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  if (CUresult error = enter()) return error;
  return pool_destroy(pool);
}

IPCLAB_DRIVER_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  if (CUresult error = enter()) return error;
  return pool_trim(pool, keep);
}

IPCLAB_DRIVER_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool,
                                                 CUmemPool_attribute attribute,
                                                 void* value) {
  if (CUresult error = enter()) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_set_attribute(pool, attribute, value);
}

IPCLAB_DRIVER_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool,
                                                 CUmemPool_attribute attribute,
                                                 void* value) {
  if (CUresult error = enter()) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_get_attribute(pool, attribute, value);
}

IPCLAB_DRIVER_API CUresult cuMemPoolSetAccess(CUmemoryPool pool,
                                              const CUmemAccessDesc* list,
                                              size_t count) {
  if (CUresult error = enter()) return error;
  if (list == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
  return pool_set_access(pool, list, count);
}

IPCLAB_DRIVER_API CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags,
                                              CUmemoryPool pool,
                                              CUmemLocation* location) {
  if (CUresult error = enter()) return error;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_get_access(pool, *location, flags);
}

IPCLAB_DRIVER_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool,
                                                     CUdevice device) {
  if (CUresult error = enter()) return error;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return pool_default(on_device(device), CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

IPCLAB_DRIVER_API CUresult cuDeviceGetMemPool(CUmemoryPool* pool,
                                              CUdevice device) {
  if (CUresult error = enter()) return error;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return pool_current(on_device(device), CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

IPCLAB_DRIVER_API CUresult cuDeviceSetMemPool(CUdevice device,
                                              CUmemoryPool pool) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return pool_set_current(on_device(device), CU_MEM_ALLOCATION_TYPE_PINNED,
                          pool);
}

IPCLAB_DRIVER_API CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool,
                                                  CUmemLocation* location,
                                                  CUmemAllocationType type) {
  if (CUresult error = enter()) return error;
  if (pool == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_default(*location, type, pool);
}

IPCLAB_DRIVER_API CUresult cuMemGetMemPool(CUmemoryPool* pool,
                                           CUmemLocation* location,
                                           CUmemAllocationType type) {
  if (CUresult error = enter()) return error;
  if (pool == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_current(*location, type, pool);
}

IPCLAB_DRIVER_API CUresult cuMemSetMemPool(CUmemLocation* location,
                                           CUmemAllocationType type,
                                           CUmemoryPool pool) {
  if (CUresult error = enter()) return error;
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_set_current(*location, type, pool);
}

IPCLAB_DRIVER_API CUresult cuMemPoolExportToShareableHandle(
    void* handle, CUmemoryPool pool, CUmemAllocationHandleType type,
    unsigned long long flags) {
  if (CUresult error = enter()) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_export(pool, type, flags, handle);
}

IPCLAB_DRIVER_API CUresult cuMemPoolImportFromShareableHandle(
    CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type,
    unsigned long long flags) {
  if (CUresult error = enter()) return error;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_import(handle, type, flags, pool);
}

IPCLAB_DRIVER_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data,
                                                  CUdeviceptr address) {
  if (CUresult error = enter_without_context()) return error;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool_export_pointer(data, address);
}

IPCLAB_DRIVER_API CUresult cuMemPoolImportPointer(
    CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  if (CUresult error = enter_without_context()) return error;
  if (address == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t place = 0;
  if (CUresult error = pool_import_pointer(pool, data, &place)) {
    return error;
  }
  *address = place;
  return CUDA_SUCCESS;
}
