// cuMemUnmap succeeds for addresses to which nothing is mapped.
//
// nvcc -cudart shared unmap_nothing.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>

int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int main() {
  alarm(60);  // the deadline of every wait
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t granule = 0;
  CUmemGenericAllocationHandle memory;
  CUdeviceptr range;
  if (cudaFree(nullptr) ||
      cuMemGetAllocationGranularity(&granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
      cuMemCreate(&memory, granule, &wanted, 0) ||
      cuMemAddressReserve(&range, 2 * granule, 0, 0, 0))
    return skip();
  const CUresult nothing = cuMemUnmap(range, granule);
  if (cuMemMap(range, granule, 0, memory, 0)) return skip();
  const CUresult half = cuMemUnmap(range, 2 * granule);
  std::printf("cuMemUnmap of nothing: %d; of twice what is mapped: %d\n", nothing, half);
  return nothing == CUDA_SUCCESS || half == CUDA_SUCCESS;
}
