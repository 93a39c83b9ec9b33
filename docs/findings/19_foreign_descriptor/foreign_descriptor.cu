// The import of a descriptor that is no memory returns a code that is not documented.
//
// nvcc -cudart shared foreign_descriptor.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

int main() {
  alarm(60);  // the deadline of every wait
  if (cudaFree(nullptr)) return std::puts("SKIP: no GPU"), 77;
  void* const foreign = (void*)(intptr_t)open("/dev/null", O_RDWR);
  CUmemGenericAllocationHandle memory;
  const CUresult chunk =
      cuMemImportFromShareableHandle(&memory, foreign, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  cudaMemPool_t imported;
  const cudaError_t pool = cudaMemPoolImportFromShareableHandle(
      &imported, foreign, cudaMemHandleTypePosixFileDescriptor, 0);
  std::printf("/dev/null as an allocation: %d; as a pool: %s\n", chunk, cudaGetErrorName(pool));
  return chunk == CUDA_SUCCESS || chunk == CUDA_ERROR_UNKNOWN || pool == cudaSuccess ||
         pool == cudaErrorUnknown;
}
