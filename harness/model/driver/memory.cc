// SPDX-License-Identifier: Apache-2.0
// The driver API: allocation.
#include "core/memory.h"

#include "core/capacity.h"
#include "driver/driver.h"

using namespace ipclab::model;

IPCLAB_DRIVER_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t place = 0;
  if (CUresult error = memory_allocate(context, size, Kind::kDevice, &place)) {
    return error;
  }
  *address = place;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemAllocPitch_v2(CUdeviceptr* address,
                                              size_t* pitch, size_t width,
                                              size_t height, unsigned element) {
  if (pitch == nullptr || width == 0 || height == 0 ||
      (element != 4 && element != 8 && element != 16)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t row = (width + 511) / 512 * 512;
  if (row < width || row > SIZE_MAX / height) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult error = cuMemAlloc_v2(address, row * height)) return error;
  *pitch = row;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemFree_v2(CUdeviceptr address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return memory_free(address);
}

IPCLAB_DRIVER_API CUresult cuMemGetInfo_v2(size_t* free_bytes,
                                           size_t* total_bytes) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (free_bytes == nullptr || total_bytes == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memory_info(context->gpu, free_bytes, total_bytes);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base,
                                                   size_t* size,
                                                   CUdeviceptr address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const auto found = find_memory(address);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->address;
  if (size != nullptr) *size = found->size;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size,
                                             unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (address == nullptr ||
      (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t place = 0;
  if (CUresult error =
          host_allocate(context, size, Kind::kManaged, flags, &place)) {
    return error;
  }
  *address = place;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemHostAlloc(void** address, size_t size,
                                          unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  constexpr unsigned kKnown = CU_MEMHOSTALLOC_PORTABLE |
                              CU_MEMHOSTALLOC_DEVICEMAP |
                              CU_MEMHOSTALLOC_WRITECOMBINED;
  if (address == nullptr || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t place = 0;
  if (CUresult error =
          host_allocate(context, size, Kind::kHost, flags, &place)) {
    return error;
  }
  *address = reinterpret_cast<void*>(place);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemAllocHost_v2(void** address, size_t size) {
  return cuMemHostAlloc(address, size, 0);
}

IPCLAB_DRIVER_API CUresult cuMemFreeHost(void* address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return host_free(reinterpret_cast<uint64_t>(address));
}

IPCLAB_DRIVER_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device,
                                                        void* host,
                                                        unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = find_memory(reinterpret_cast<uint64_t>(host));
  if (!found || !found->on_host()) return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = find_memory(reinterpret_cast<uint64_t>(host));
  if (!found || found->kind != Kind::kHost) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // With unified addressing all pinned memory is mapped.
  *flags = found->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuMemHostRegister_v2(void* address, size_t size,
                                                unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return host_register(context, reinterpret_cast<uint64_t>(address), size,
                       flags);
}

IPCLAB_DRIVER_API CUresult cuMemHostUnregister(void* address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return host_unregister(reinterpret_cast<uint64_t>(address));
}

// Managed memory is one coherent mapping here, so prefetch and advice only
// check their arguments.
namespace {
CUresult check_managed(CUdeviceptr address, size_t size) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const auto found = find_memory(address);
  const bool inside = found && found->kind == Kind::kManaged && size > 0 &&
                      address + size <= found->end();
  return inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_location(CUmemLocation location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return is_device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
}  // namespace

IPCLAB_DRIVER_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address,
                                                 size_t size,
                                                 CUmemLocation location,
                                                 unsigned flags, CUstream) {
  if (CUresult error = check_managed(address, size)) return error;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return check_location(location);
}

IPCLAB_DRIVER_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size,
                                          CUmem_advise advice,
                                          CUmemLocation location) {
  if (CUresult error = check_managed(address, size)) return error;
  if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY ||
      advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool no_location = advice == CU_MEM_ADVISE_SET_READ_MOSTLY ||
                           advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
                           advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  return no_location ? CUDA_SUCCESS : check_location(location);
}

// Forms of older versions, which programs of CUDA 12 call.
namespace {
CUmemLocation location_of(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
                                          : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}
}  // namespace

#undef cuMemPrefetchAsync
IPCLAB_DRIVER_API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size,
                                              CUdevice device,
                                              CUstream stream) {
  return cuMemPrefetchAsync_v2(address, size, location_of(device), 0, stream);
}

#undef cuMemAdvise
IPCLAB_DRIVER_API CUresult cuMemAdvise(CUdeviceptr address, size_t size,
                                       CUmem_advise advice, CUdevice device) {
  return cuMemAdvise_v2(address, size, advice, location_of(device));
}
