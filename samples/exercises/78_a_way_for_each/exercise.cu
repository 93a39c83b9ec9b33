// Exercise 78: a way for each pointer.
//
// A library gets pointers from its users and must share the memory: by
// a legacy handle, by a descriptor, or by a copy if nothing else works.
// way_of() uses the legacy handle for all pointers. Read these
// attributes: CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE and
// CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES. The exercise fails now
// because two of the three pointers have no legacy handle.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr size_t kBytes = 4 << 20;
enum Way { kLegacy, kDescriptor, kCopy };

Way way_of(void* data) {
  // TODO
  (void)data;
  return kLegacy;
}

bool works(Way way, void* data) {
  if (way == kCopy) return true;
  if (way == kLegacy) {
    cudaIpcMemHandle_t handle;
    const cudaError_t code = cudaIpcGetMemHandle(&handle, data);
    cudaGetLastError();  // clears a refusal
    return code == cudaSuccess;
  }
  Memory memory;
  if (DRIVER(cuMemRetainAllocationHandle)(&memory, data) !=
      CUDA_SUCCESS)
    return false;
  int fd = -1;
  const bool good = DRIVER(cuMemExportToShareableHandle)(
                        &fd, memory, kFd, 0) == CUDA_SUCCESS;
  if (good) SYS_CHECK(close(fd));
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  return good;
}

int judge(const char* what, void* data) {
  constexpr const char* kWords[] = {"a legacy handle", "a descriptor",
                                    "a copy"};
  const Way way = way_of(data);
  Way best = kCopy;
  if (works(kDescriptor, data)) best = kDescriptor;
  if (works(kLegacy, data)) best = kLegacy;
  say("%s: %s, %s", what, kWords[way],
      way == best        ? "right"
      : works(way, data) ? "but there is a better way"
                         : "which does NOT WORK");
  return way != best;
}

int main() {
  require_gpus(1);
  require_legacy_ipc();
  void *plain = nullptr, *pooled = nullptr;
  CUDA_CHECK(cudaMalloc(&plain, kBytes));
  CUDA_CHECK(cudaMallocAsync(&pooled, kBytes, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  const CUmemAllocationProp wanted = shareable(kFd);
  const size_t bytes = whole_granules(kBytes, wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* mapped = map_memory(memory, bytes);

  int wrong = judge("cudaMalloc", plain);
  wrong += judge("cudaMallocAsync", pooled);
  wrong += judge("cuMemCreate", mapped);

  unmap_memory(mapped, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  CUDA_CHECK(cudaFreeAsync(pooled, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaFree(plain));

  return exit_code(wrong);
}
