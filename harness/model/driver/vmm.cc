// SPDX-License-Identifier: Apache-2.0
// The driver API: virtual memory management.
#include "core/vmm.h"

#include "core/chunk.h"
#include "core/dma_buf.h"
#include "core/profile.h"
#include "driver/driver.h"
#include "harness/toolkit/newer.h"

using namespace ipclab::model;

namespace {

constexpr size_t kHostPage = 4096;

bool is_reserved_bit_set(unsigned long long flags) { return flags != 0; }

}  // namespace

IPCLAB_DRIVER_API CUresult cuMemAddressReserve(CUdeviceptr* address,
                                               size_t size, size_t alignment,
                                               CUdeviceptr hint,
                                               unsigned long long flags) {
  if (CUresult error = enter_without_context()) return error;
  if (address == nullptr || hint % kHostPage != 0 ||
      is_reserved_bit_set(flags)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t place = 0;
  if (CUresult error = range_reserve(size, alignment, &place)) return error;
  *address = place;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  if (CUresult error = enter_without_context()) return error;
  return range_free(address, size);
}

IPCLAB_DRIVER_API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle,
                                       size_t size,
                                       const CUmemAllocationProp* wanted,
                                       unsigned long long flags) {
  if (CUresult error = enter_without_context()) return error;
  if (handle == nullptr || wanted == nullptr || is_reserved_bit_set(flags)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return chunk_create(size, *wanted, handle);
}

IPCLAB_DRIVER_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (CUresult error = enter_without_context()) return error;
  return chunk_release(handle);
}

IPCLAB_DRIVER_API CUresult cuMemMap(CUdeviceptr address, size_t size,
                                    size_t offset,
                                    CUmemGenericAllocationHandle handle,
                                    unsigned long long flags) {
  if (CUresult error = enter_without_context()) return error;
  if (is_reserved_bit_set(flags)) return CUDA_ERROR_INVALID_VALUE;
  return range_map(address, size, offset, handle);
}

IPCLAB_DRIVER_API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  if (CUresult error = enter_without_context()) return error;
  return range_unmap(address, size);
}

IPCLAB_DRIVER_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size,
                                          const CUmemAccessDesc* list,
                                          size_t count) {
  if (CUresult error = enter_without_context()) return error;
  if (list == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  return range_set_access(address, size, list, count);
}

IPCLAB_DRIVER_API CUresult cuMemGetAccess(unsigned long long* flags,
                                          const CUmemLocation* location,
                                          CUdeviceptr address) {
  if (CUresult error = enter_without_context()) return error;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return range_get_access(address, *location, flags);
}

IPCLAB_DRIVER_API CUresult cuMemExportToShareableHandle(
    void* shareable, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type, unsigned long long flags) {
  if (CUresult error = enter_without_context()) return error;
  if (shareable == nullptr || is_reserved_bit_set(flags)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return chunk_export(handle, type, shareable);
}

IPCLAB_DRIVER_API CUresult cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle* handle, void* shareable,
    CUmemAllocationHandleType type) {
  if (CUresult error = enter_without_context()) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return chunk_import(shareable, type, handle);
}

IPCLAB_DRIVER_API CUresult
cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* wanted,
                              CUmemAllocationGranularity_flags which) {
  if (CUresult error = enter_without_context()) return error;
  if (bytes == nullptr || wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return chunk_granularity(*wanted, which, bytes);
}

IPCLAB_DRIVER_API CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  if (CUresult error = enter_without_context()) return error;
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return chunk_properties(handle, properties);
}

IPCLAB_DRIVER_API CUresult cuMemRetainAllocationHandle(
    CUmemGenericAllocationHandle* handle, void* address) {
  if (CUresult error = enter_without_context()) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return chunk_retain(reinterpret_cast<uint64_t>(address), handle);
}

IPCLAB_DRIVER_API CUresult cuMemGetHandleForAddressRange(
    void* handle, CUdeviceptr address, size_t size, CUmemRangeHandleType type,
    unsigned long long flags) {
  if (CUresult error = enter_without_context()) return error;
  constexpr auto kPcie = CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE;
  if (handle == nullptr || size == 0 ||
      type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      (address | size) % kHostPage != 0 || (flags & ~uint64_t{kPcie}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!profile().has_dma_buf() || flags == kPcie)
    return CUDA_ERROR_NOT_SUPPORTED;
  return dma_buf_export(address, size, static_cast<int*>(handle));
}
