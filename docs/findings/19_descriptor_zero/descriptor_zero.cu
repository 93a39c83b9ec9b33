// A shared allocation cannot be imported if its descriptor has the number 0.
//
// nvcc -cudart shared descriptor_zero.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

CUresult import(int fd) {
  CUmemGenericAllocationHandle imported;
  return cuMemImportFromShareableHandle(&imported, (void*)(uintptr_t)fd, kFd);
}

int main() {
  alarm(60);  // the deadline of every wait
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = kFd;
  size_t granule = 0;
  CUmemGenericAllocationHandle memory;
  int fd = -1;
  if (cudaFree(nullptr) ||
      cuMemGetAllocationGranularity(&granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
      cuMemCreate(&memory, granule, &wanted, 0) ||
      cuMemExportToShareableHandle(&fd, memory, kFd, 0) || import(fd) || dup2(fd, 0) != 0)
    return skip();
  const CUresult code = import(0);
  std::printf("import of descriptor %d: 0; of descriptor 0: %d\n", fd, code);
  return code != CUDA_SUCCESS;
}
