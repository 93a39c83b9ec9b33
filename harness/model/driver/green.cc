// SPDX-License-Identifier: Apache-2.0
// The driver API: green contexts, and the events of whole contexts. The model
// does not limit what a green context uses of a GPU.
#include <algorithm>
#include <cstring>

#include "core/device.h"
#include "core/event.h"
#include "driver/driver.h"

using namespace ipclab::model;

/// The object of a CUdevResourceDesc; never deleted.
struct CUdevResourceDesc_st {
  int device = 0;
};

namespace {

// The GPU of this model has fewer multiprocessors than one part of a large GPU.
constexpr unsigned kSmallestPart = 2;

CUdevResource part_of(int device, unsigned multiprocessors) {
  CUdevResource part{};
  part.type = CU_DEV_RESOURCE_TYPE_SM;
  part.sm.smCount = multiprocessors;
  part.sm.minSmPartitionSize = kSmallestPart;
  part.sm.smCoscheduledAlignment = kSmallestPart;
  std::memcpy(part._internal_padding, &device, sizeof device);
  return part;
}

int device_of(const CUdevResource& part) {
  int device = 0;
  std::memcpy(&device, part._internal_padding, sizeof device);
  return device;
}

CUresult usable(CUcontext context) {
  if (context == nullptr || !is_context(context)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return context->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuDeviceGetDevResource(CUdevice device,
                                                  CUdevResource* resource,
                                                  CUdevResourceType type) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  int all = 0;
  if (CUresult error =
          device_attribute(&all, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                           device_at(device).gpu)) {
    return error;
  }
  *resource = part_of(device, static_cast<unsigned>(all));
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDevSmResourceSplitByCount(
    CUdevResource* result, unsigned* groups, const CUdevResource* input,
    CUdevResource* remaining, unsigned flags, unsigned least) {
  if (CUresult error = enter()) return error;
  if (groups == nullptr || input == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) {
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  }
  const unsigned all = input->sm.smCount;
  if (least > all || flags > 3) return CUDA_ERROR_INVALID_VALUE;
  const unsigned wanted = std::max(least, kSmallestPart);
  const unsigned size =
      (wanted + kSmallestPart - 1) / kSmallestPart * kSmallestPart;
  const unsigned possible = all / size;
  if (result == nullptr) {
    *groups = possible;
    return CUDA_SUCCESS;
  }
  *groups = std::min(*groups, possible);
  const int device = device_of(*input);
  for (unsigned i = 0; i < *groups; ++i) result[i] = part_of(device, size);
  if (remaining != nullptr) *remaining = part_of(device, all - *groups * size);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDevResourceGenerateDesc(
    CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
  if (CUresult error = enter()) return error;
  if (description == nullptr || resources == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) {
      return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    if (device_of(resources[i]) != device_of(resources[0])) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
  }
  *description = new CUdevResourceDesc_st{device_of(resources[0])};
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuGreenCtxCreate(CUgreenCtx* green,
                                            CUdevResourceDesc description,
                                            CUdevice device, unsigned flags) {
  if (CUresult error = enter()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (green == nullptr || description == nullptr ||
      description->device != device || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return green_create(green, device);
}

IPCLAB_DRIVER_API CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  if (CUresult error = enter()) return error;
  return context_of(green) != nullptr ? green_destroy(green)
                                      : CUDA_ERROR_INVALID_CONTEXT;
}

IPCLAB_DRIVER_API CUresult cuCtxFromGreenCtx(CUcontext* context,
                                             CUgreenCtx green) {
  if (CUresult error = enter()) return error;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext found = context_of(green);
  if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = found;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuStreamGetGreenCtx(CUstream handle,
                                               CUgreenCtx* green) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *green = green_of(stream->owner());
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuGreenCtxStreamCreate(CUstream* stream,
                                                  CUgreenCtx green,
                                                  unsigned flags,
                                                  int priority) {
  if (CUresult error = enter()) return error;
  const CUcontext context = context_of(green);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  priority = std::clamp(priority, -5, 0);
  return stream_create(context, flags, priority, stream);
}

IPCLAB_DRIVER_API CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  if (CUresult error = enter()) return error;
  if (CUresult error = usable(context)) return error;
  return context_record_event(context, event);
}

IPCLAB_DRIVER_API CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
  if (CUresult error = enter()) return error;
  if (CUresult error = usable(context)) return error;
  return context_wait_event(context, event);
}

IPCLAB_DRIVER_API CUresult cuGreenCtxRecordEvent(CUgreenCtx green,
                                                 CUevent event) {
  if (CUresult error = enter()) return error;
  const CUcontext context = context_of(green);
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT
                            : context_record_event(context, event);
}

IPCLAB_DRIVER_API CUresult cuGreenCtxWaitEvent(CUgreenCtx green,
                                               CUevent event) {
  if (CUresult error = enter()) return error;
  const CUcontext context = context_of(green);
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT
                            : context_wait_event(context, event);
}
