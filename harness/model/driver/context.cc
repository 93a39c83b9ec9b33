// SPDX-License-Identifier: Apache-2.0
// The driver API: contexts.
#include <algorithm>

#include "core/device.h"
#include "core/pool.h"
#include "driver/driver.h"

using namespace ipclab::model;

IPCLAB_DRIVER_API CUresult cuCtxCreate_v4(CUcontext* context,
                                          CUctxCreateParams* parameters,
                                          unsigned flags, CUdevice device) {
  if (CUresult error = enter()) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (parameters != nullptr && (parameters->numExecAffinityParams != 0 ||
                                parameters->cigParams != nullptr)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return context_create(context, flags, device);
}

#undef cuCtxCreate
IPCLAB_DRIVER_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags,
                                          CUdevice device) {
  return cuCtxCreate_v4(context, nullptr, flags, device);
}

IPCLAB_DRIVER_API CUresult cuCtxCreate_v3(CUcontext* context,
                                          CUexecAffinityParam*, int count,
                                          unsigned flags, CUdevice device) {
  if (count != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return cuCtxCreate_v4(context, nullptr, flags, device);
}

IPCLAB_DRIVER_API CUresult cuCtxDestroy_v2(CUcontext context) {
  if (CUresult error = enter()) return error;
  if (context == nullptr || context->primary || context->green_of != nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context_destroy(context);
}

IPCLAB_DRIVER_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (CUresult error = enter()) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  push_context(context);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (CUresult error = enter()) return error;
  return pop_context(context);
}

IPCLAB_DRIVER_API CUresult cuCtxSetCurrent(CUcontext context) {
  if (CUresult error = enter()) return error;
  set_current_context(context);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetCurrent(CUcontext* context) {
  if (CUresult error = enter()) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = current_context();
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetDevice(CUdevice* device) {
  if (CUresult error = enter()) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_context()->device;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetDevice_v2(CUdevice* device,
                                             CUcontext context) {
  if (CUresult error = enter()) return error;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetFlags(unsigned* flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetId(CUcontext context,
                                      unsigned long long* id) {
  if (CUresult error = enter()) return error;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = context->id;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetApiVersion(CUcontext context,
                                              unsigned* version) {
  if (CUresult error = enter()) return error;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr && current_context() == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *version = 3020;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetStreamPriorityRange(int* least,
                                                       int* greatest) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

namespace {
CUresult synchronize(CUcontext context) {
  const CUresult result = context_synchronize(context);
  after_synchronize(whole_of(context));
  return result;
}
}  // namespace

IPCLAB_DRIVER_API CUresult cuCtxSynchronize() {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return synchronize(current_context());
}

IPCLAB_DRIVER_API CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (context == nullptr) return cuCtxSynchronize();
  if (CUresult error = enter()) return error;
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return synchronize(context);
}

IPCLAB_DRIVER_API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (limit < 0 || limit >= CU_LIMIT_MAX) {
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
  context_set_limit(context, limit, value);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (limit < 0 || limit >= CU_LIMIT_MAX) {
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
  *value = context_limit(context, limit);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxSetFlags(unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  context->flags = flags;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  CUcontext context;
  return enter(&context);  // a hint
}

IPCLAB_DRIVER_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context,
                                                    CUdevice device) {
  if (CUresult error = enter()) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return primary_retain(context, device);
}

IPCLAB_DRIVER_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return primary_release(device);
}

IPCLAB_DRIVER_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return primary_reset(device);
}

IPCLAB_DRIVER_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device,
                                                         unsigned flags) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  device_at(device).primary->flags = flags;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDevicePrimaryCtxGetState(CUdevice device,
                                                      unsigned* flags,
                                                      int* active) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = device_at(device).primary->flags;
  if (active != nullptr) *active = device_at(device).primary->active;
  return CUDA_SUCCESS;
}
