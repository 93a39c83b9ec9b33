// SPDX-License-Identifier: Apache-2.0
// The driver API: logical endpoints, copies over a fabric, cliques of a fabric.
#include "core/endpoint.h"

#include <algorithm>
#include <cstring>

#include "core/fabric.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

// All GPUs of the profile can access each other's memory in each of these ways.
constexpr CUcliqueType kCliques[] = {CU_CLIQUE_TYPE_UNICAST_POINTER,
                                     CU_CLIQUE_TYPE_UNICAST_LOGICAL_ENDPOINT,
                                     CU_CLIQUE_TYPE_MULTICAST_LOGICAL_ENDPOINT};

// The first checks of the three functions about the fabric of a device.
CUresult enter_fabric(const void* result, CUdevice device) {
  if (CUresult error = enter_without_context()) return error;
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  return result == nullptr || !is_device(device) ? CUDA_ERROR_INVALID_VALUE
                                                 : fabric_is_ready();
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuDeviceGetFabricClusterUuid(CUuuid* uuid,
                                                        CUdevice device) {
  if (CUresult error = enter_fabric(uuid, device)) return error;
  std::memcpy(uuid->bytes, kFabricCluster, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetCliqueCount(size_t* count,
                                                  CUdevice device) {
  if (CUresult error = enter_fabric(count, device)) return error;
  *count = std::size(kCliques);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetCliqueInfo(CUcliqueInfo* cliques,
                                                 size_t* count,
                                                 CUdevice device) {
  if (CUresult error = enter_fabric(cliques, device)) return error;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = std::min(*count, std::size(kCliques));
  for (size_t i = 0; i < *count; ++i) cliques[i] = {kCliques[i], kCliqueId};
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult
cuLogicalEndpointIdReserve(CUlogicalEndpointId* first, cuuint32_t count) {
  if (CUresult error = enter_without_context()) return error;
  if (first == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_ids_reserve(count, first);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointIdRelease(CUlogicalEndpointId first,
                                                      cuuint32_t count) {
  if (CUresult error = enter_without_context()) return error;
  return endpoint_ids_release(first, count);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointCreate(
    CUlogicalEndpointId id, const CUlogicalEndpointProp* wanted) {
  if (CUresult error = enter_without_context()) return error;
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_create(id, *wanted);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointAddDevice(CUlogicalEndpointId id,
                                                      CUdevice device) {
  if (CUresult error = enter_without_context()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_add_device(id, device);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id) {
  if (CUresult error = enter_without_context()) return error;
  return endpoint_destroy(id);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointBindAddr(
    CUlogicalEndpointId id, CUdevice device, cuuint64_t offset, void* address,
    cuuint64_t size, unsigned long long flags) {
  if (CUresult error = enter_without_context()) return error;
  if (flags != 0 || !is_device(device)) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_bind_address(id, device, offset,
                               reinterpret_cast<uint64_t>(address), size);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointBindMem(
    CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
    CUmemGenericAllocationHandle memory, cuuint64_t memory_offset,
    cuuint64_t size, unsigned long long flags) {
  if (CUresult error = enter_without_context()) return error;
  if (flags != 0 || !is_device(device)) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_bind_memory(id, device, offset, memory, memory_offset, size);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id,
                                                   CUdevice device,
                                                   cuuint64_t offset,
                                                   cuuint64_t size) {
  if (CUresult error = enter_without_context()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_unbind(id, device, offset, size);
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointExport(
    void* handle, CUlogicalEndpointId id, CUlogicalEndpointIpcHandleType type) {
  if (CUresult error = enter_without_context()) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_export(id, type, handle);
}

IPCLAB_DRIVER_API CUresult
cuLogicalEndpointImport(CUlogicalEndpointId id, const void* handle,
                        CUlogicalEndpointIpcHandleType type) {
  if (CUresult error = enter_without_context()) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_import(id, handle, type);
}

IPCLAB_DRIVER_API CUresult
cuLogicalEndpointGetLimits(cuuint64_t* alignment, cuuint64_t* most,
                           const CUlogicalEndpointProp* wanted) {
  if (CUresult error = enter_without_context()) return error;
  if (alignment == nullptr || most == nullptr || wanted == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t bytes = 0, all = 0;
  if (CUresult error = endpoint_limits(*wanted, &bytes, &all)) return error;
  *alignment = bytes;
  *most = all;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuLogicalEndpointQuery(CUlogicalEndpointId first,
                                                  cuuint32_t count,
                                                  int* status) {
  if (CUresult error = enter_without_context()) return error;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return endpoint_query(first, count, status);
}

IPCLAB_DRIVER_API CUresult
cuFabricCpyBatchAsync(size_t count, CUDA_FABRIC_COPY_BATCH_OP* list,
                      unsigned long long flags, CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_live_stream(handle, &stream)) return error;
  if (count == 0 || list == nullptr || flags != 0) {
    return profile().endpoints ? CUDA_ERROR_INVALID_VALUE
                               : CUDA_ERROR_NOT_SUPPORTED;
  }
  return endpoint_copy(stream, whole_of(current_context()),
                       {list, list + count});
}
