// cudaMemPoolTrimTo(pool, SIZE_MAX) gives all memory back instead of none.
//
// nvcc -cudart shared trim_to_largest.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int main() {
  alarm(60);  // the deadline of every wait
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  void* memory;
  uint64_t keep = UINT64_MAX, before = 0, after = 0;
  if (cudaMemPoolCreate(&pool, &props) ||
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep) ||
      cudaMallocFromPoolAsync(&memory, 256 << 20, pool, nullptr) ||
      cudaFreeAsync(memory, nullptr) || cudaDeviceSynchronize() ||
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &before) || before == 0)
    return skip();
  const cudaError_t code = cudaMemPoolTrimTo(pool, SIZE_MAX);
  if (cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &after)) return skip();
  std::printf("cudaMemPoolTrimTo: %s; reserved %llu before, %llu after\n", cudaGetErrorName(code),
              (unsigned long long)before, (unsigned long long)after);
  return after != before;
}
