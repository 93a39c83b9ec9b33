// The import of an allocation as a pool returns a code that is not documented.
//
// nvcc -cudart shared chunk_as_pool.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int main() {
  alarm(60);  // the deadline of every wait
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = kFd;
  size_t granule = 0;
  CUmemGenericAllocationHandle memory;
  CUmemoryPool pool;
  int fd = -1;
  if (cudaFree(nullptr) ||
      cuMemGetAllocationGranularity(&granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
      cuMemCreate(&memory, granule, &wanted, 0) ||
      cuMemExportToShareableHandle(&fd, memory, kFd, 0))
    return skip();
  const CUresult code = cuMemPoolImportFromShareableHandle(&pool, (void*)(uintptr_t)fd, kFd, 0);
  std::printf("an allocation, imported as a pool: %d\n", code);
  return code == CUDA_SUCCESS || code == CUDA_ERROR_NOT_SUPPORTED;
}
