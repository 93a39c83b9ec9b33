// cuMemMap maps memory beyond the end of a reservation, into the next one.
//
// nvcc -cudart shared map_beyond.cu -lcuda
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
  CUdeviceptr narrow, next, both;
  if (cudaFree(nullptr) ||
      cuMemGetAllocationGranularity(&granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
      cuMemCreate(&memory, 2 * granule, &wanted, 0) ||
      cuMemAddressReserve(&both, 2 * granule, 0, 0, 0) || cuMemAddressFree(both, 2 * granule) ||
      cuMemAddressReserve(&narrow, granule, 0, both, 0) ||
      cuMemAddressReserve(&next, granule, 0, both + granule, 0) || next != narrow + granule)
    return skip();
  const CUresult code = cuMemMap(narrow, 2 * granule, 0, memory, 0);
  std::printf("cuMemMap of %zu bytes at %zu reserved bytes: %d\n", 2 * granule, granule, code);
  return code == CUDA_SUCCESS;
}
