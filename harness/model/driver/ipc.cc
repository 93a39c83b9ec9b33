// SPDX-License-Identifier: Apache-2.0
// The driver API: legacy interprocess communication.
#include "core/ipc.h"

#include "driver/driver.h"

using namespace ipclab::model;

IPCLAB_DRIVER_API CUresult cuIpcGetMemHandle(CUipcMemHandle* handle,
                                             CUdeviceptr address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ipc_get_memory(handle, address);
}

IPCLAB_DRIVER_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address,
                                                 CUipcMemHandle handle,
                                                 unsigned flags) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t place = 0;
  if (CUresult error = ipc_open_memory(context, &place, &handle, flags)) {
    return error;
  }
  *address = place;
  return CUDA_SUCCESS;
}

// The function that a program gets if it looks up the name without the header's
// version suffix.
#undef cuIpcOpenMemHandle
IPCLAB_DRIVER_API CUresult cuIpcOpenMemHandle(CUdeviceptr* address,
                                              CUipcMemHandle handle,
                                              unsigned flags) {
  return cuIpcOpenMemHandle_v2(address, handle, flags);
}

IPCLAB_DRIVER_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return ipc_close_memory(address);
}

IPCLAB_DRIVER_API CUresult cuIpcGetEventHandle(CUipcEventHandle* handle,
                                               CUevent event) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ipc_get_event(handle, event);
}

IPCLAB_DRIVER_API CUresult cuIpcOpenEventHandle(CUevent* event,
                                                CUipcEventHandle handle) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ipc_open_event(context, event, &handle);
}
