// cuMemSetAccess of a range with a hole succeeds and sets only the part before the hole.
//
// nvcc -cudart shared access_over_hole.cu -lcuda
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
      cuMemAddressReserve(&range, 3 * granule, 0, 0, 0) || cuMemMap(range, granule, 0, memory, 0) ||
      cuMemMap(range + 2 * granule, granule, 0, memory, 0))
    return skip();
  const CUmemAccessDesc access{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult code = cuMemSetAccess(range, 3 * granule, &access, 1);
  unsigned long long before = 0, after = 0;
  if (cuMemGetAccess(&before, &wanted.location, range) ||
      cuMemGetAccess(&after, &wanted.location, range + 2 * granule))
    return skip();
  std::printf("cuMemSetAccess: %d; access before the hole %llu, after it %llu\n", code, before,
              after);
  return code == CUDA_SUCCESS;
}
