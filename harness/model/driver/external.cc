// SPDX-License-Identifier: Apache-2.0
// The driver API: external memory and external semaphores. The model has no
// graphics API, so it has no semaphore to import.
#include "core/external_memory.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

constexpr int kOpaqueFd = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
constexpr int kLastMemoryType = 9;  // a dma-buf, since CUDA 13.0
constexpr int kLastSemaphoreType =
    CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32;

bool is_between(int number, int last) { return number >= 1 && number <= last; }

}  // namespace

IPCLAB_DRIVER_API CUresult cuImportExternalMemory(
    CUexternalMemory* object, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* wanted) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (object == nullptr || wanted == nullptr || wanted->size == 0 ||
      !is_between(wanted->type, kLastMemoryType) ||
      (wanted->flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // All other types are for Windows and for embedded GPUs.
  if (wanted->type != kOpaqueFd) return CUDA_ERROR_NOT_SUPPORTED;
  return external_memory_import(context, wanted->handle.fd, wanted->size,
                                object);
}

IPCLAB_DRIVER_API CUresult cuExternalMemoryGetMappedBuffer(
    CUdeviceptr* address, CUexternalMemory object,
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* wanted) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (address == nullptr || wanted == nullptr || wanted->flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t place = 0;
  if (CUresult error =
          external_memory_map(object, wanted->offset, wanted->size, &place)) {
    return error;
  }
  *address = place;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuDestroyExternalMemory(CUexternalMemory object) {
  if (CUresult error = enter_without_context()) return error;
  return external_memory_destroy(object);
}

IPCLAB_DRIVER_API CUresult
cuImportExternalSemaphore(CUexternalSemaphore* object,
                          const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* wanted) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (object == nullptr || wanted == nullptr || wanted->flags != 0 ||
      !is_between(wanted->type, kLastSemaphoreType)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (wanted->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD &&
      wanted->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return profile().driver_580 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_INVALID_HANDLE;
}
