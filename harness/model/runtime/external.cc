// SPDX-License-Identifier: Apache-2.0
// The runtime API: external memory and external semaphores.
#include "runtime/runtime.h"

using ipclab::runtime::remember;

namespace {

CUexternalMemory as_driver(cudaExternalMemory_t object) {
  return reinterpret_cast<CUexternalMemory>(object);
}

}  // namespace

IPCLAB_RUNTIME_API cudaError_t cudaImportExternalMemory(
    cudaExternalMemory_t* object, const cudaExternalMemoryHandleDesc* wanted) {
  IPCLAB_BIND();
  if (wanted == nullptr) return remember(cudaErrorInvalidValue);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC same{};
  same.type = static_cast<CUexternalMemoryHandleType>(wanted->type);
  same.handle.win32.handle = wanted->handle.win32.handle;
  same.handle.win32.name = wanted->handle.win32.name;
  same.size = wanted->size;
  same.flags = wanted->flags;
  return remember(cuImportExternalMemory(
      reinterpret_cast<CUexternalMemory*>(object), &same));
}

IPCLAB_RUNTIME_API cudaError_t
cudaExternalMemoryGetMappedBuffer(void** pointer, cudaExternalMemory_t object,
                                  const cudaExternalMemoryBufferDesc* wanted) {
  IPCLAB_BIND();
  if (wanted == nullptr) return remember(cudaErrorInvalidValue);
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC same{};
  same.offset = wanted->offset;
  same.size = wanted->size;
  same.flags = wanted->flags;
  return remember(cuExternalMemoryGetMappedBuffer(
      reinterpret_cast<CUdeviceptr*>(pointer), as_driver(object), &same));
}

IPCLAB_RUNTIME_API cudaError_t
cudaDestroyExternalMemory(cudaExternalMemory_t object) {
  IPCLAB_BIND();
  return remember(cuDestroyExternalMemory(as_driver(object)));
}

IPCLAB_RUNTIME_API cudaError_t
cudaImportExternalSemaphore(cudaExternalSemaphore_t* object,
                            const cudaExternalSemaphoreHandleDesc* wanted) {
  IPCLAB_BIND();
  if (wanted == nullptr) return remember(cudaErrorInvalidValue);
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC same{};
  same.type = static_cast<CUexternalSemaphoreHandleType>(wanted->type);
  same.handle.win32.handle = wanted->handle.win32.handle;
  same.handle.win32.name = wanted->handle.win32.name;
  same.flags = wanted->flags;
  return remember(cuImportExternalSemaphore(
      reinterpret_cast<CUexternalSemaphore*>(object), &same));
}
