// cudaMemGetMemPool refuses a wrong location with a code that is not documented.
//
// nvcc -cudart shared pool_of_no_place.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>

int main() {
  alarm(60);  // the deadline of every wait
  if (cudaFree(nullptr)) return std::puts("SKIP: no GPU"), 77;
  cudaMemLocation nowhere{cudaMemLocationTypeHostNumaCurrent, 0};
  cudaMemPool_t pool;
  const cudaError_t code = cudaMemGetMemPool(&pool, &nowhere, cudaMemAllocationTypePinned);
  std::printf("the pool of the current NUMA node: %s\n", cudaGetErrorName(code));
  return code != cudaErrorInvalidValue;
}
