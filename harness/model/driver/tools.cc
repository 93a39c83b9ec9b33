// SPDX-License-Identifier: Apache-2.0
// The driver API: functions that programs call for profilers and logs. The
// model has no such tools, so it accepts the calls, and they have no effect.
#include <cudaProfiler.h>

#include "driver/driver.h"

using namespace ipclab::model;

IPCLAB_DRIVER_API CUresult cuProfilerStart() {
  CUcontext context;
  return enter(&context);
}

IPCLAB_DRIVER_API CUresult cuProfilerStop() {
  CUcontext context;
  return enter(&context);
}

// Deprecated; old programs still call it.
IPCLAB_DRIVER_API CUresult cuProfilerInitialize(const char*, const char*,
                                                CUoutput_mode) {
  CUcontext context;
  return enter(&context);
}

IPCLAB_DRIVER_API CUresult cuLogsRegisterCallback(
    CUlogsCallback function, void*, CUlogsCallbackHandle* handle) {
  if (CUresult error = enter()) return error;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (handle != nullptr) {
    *handle = reinterpret_cast<CUlogsCallbackHandle>(function);
  }
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) {
  return enter();
}
