// SPDX-License-Identifier: Apache-2.0
// The driver API: initialisation, devices and peers.
#include "core/device.h"

#include <cstdio>
#include <cstring>

#include "core/peers.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

IPCLAB_DRIVER_API CUresult cuInit(unsigned flags) {
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : initialise();
}

IPCLAB_DRIVER_API CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = profile().driver_version;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetCount(int* count) {
  if (CUresult error = enter()) return error;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(devices().size());
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (CUresult error = enter()) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetName(char* name, int length,
                                           CUdevice device) {
  if (CUresult error = enter()) return error;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "ipclab reference model");
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (CUresult error = enter()) return error;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = gpu_uuid(device_at(device).gpu);
  return CUDA_SUCCESS;
}

#undef cuDeviceGetUuid
IPCLAB_DRIVER_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

IPCLAB_DRIVER_API CUresult cuDeviceGetLuid(char*, unsigned*, CUdevice) {
  return CUDA_ERROR_NOT_SUPPORTED;  // Windows only
}

IPCLAB_DRIVER_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (CUresult error = enter()) return error;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = profile().memory_gib << 30;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetAttribute(int* value,
                                                CUdevice_attribute attribute,
                                                CUdevice device) {
  if (CUresult error = enter()) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return device_attribute(value, attribute, device_at(device).gpu);
}

IPCLAB_DRIVER_API CUresult cuDeviceComputeCapability(int* major, int* minor,
                                                     CUdevice device) {
  if (CUresult error = cuDeviceGetAttribute(
          major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)) {
    return error;
  }
  return cuDeviceGetAttribute(
      minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

IPCLAB_DRIVER_API CUresult cuDeviceGetPCIBusId(char* text, int length,
                                               CUdevice device) {
  if (CUresult error = enter()) return error;
  if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:%02x.0", kPciBus,
                device_at(device).gpu);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetByPCIBusId(CUdevice* device,
                                                 const char* text) {
  if (CUresult error = enter()) return error;
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  const bool full =
      std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;
  if (!full) {
    domain = 0;
    if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const int ordinal = ordinal_of_gpu(static_cast<int>(slot));
  if (domain != 0 || bus != kPciBus || ordinal < 0) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = ordinal;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice from,
                                                 CUdevice to) {
  if (CUresult error = enter()) return error;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(from) || !is_device(to)) return CUDA_ERROR_INVALID_DEVICE;
  *can = can_access_peer(device_at(from).gpu, device_at(to).gpu);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDeviceGetP2PAttribute(
    int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  if (CUresult error = enter()) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(from) || !is_device(to) || from == to) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const bool reach = can_access_peer(device_at(from).gpu, device_at(to).gpu);
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = reach;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// A link of the model has all atomics that its kernels have, or none.
IPCLAB_DRIVER_API CUresult cuDeviceGetP2PAtomicCapabilities(
    unsigned* capabilities, const CUatomicOperation* operations, unsigned count,
    CUdevice from, CUdevice to) {
  if (CUresult error = enter()) return error;
  if (capabilities == nullptr || operations == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (operations[i] < 0 || operations[i] >= CU_ATOMIC_OPERATION_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (!is_device(from) || !is_device(to) || from == to) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const bool reach = can_access_peer(device_at(from).gpu, device_at(to).gpu);
  constexpr unsigned kSizes =
      CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
  for (unsigned i = 0; i < count; ++i) {
    const bool integer = operations[i] < CU_ATOMIC_OPERATION_FLOAT_ADD;
    const unsigned sign =
        integer ? CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED
                : 0;
    capabilities[i] =
        reach ? sign | kSizes | CU_ATOMIC_CAPABILITY_REDUCTION : 0;
  }
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxEnablePeerAccess(CUcontext peer,
                                                 unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer == nullptr || !peer->active || peer == context) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return peer_enable(context, peer);
}

IPCLAB_DRIVER_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return peer_disable(context, peer);
}
