// A pool counts memory as used after cudaFree has freed it.
//
// nvcc -cudart shared used_after_free.cu
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
  if (cudaMemPoolCreate(&pool, &props)) return skip();
  for (const bool by_stream : {true, false}) {
    uint64_t used = 0;
    if (cudaMallocFromPoolAsync(&memory, 32 << 20, pool, nullptr) || cudaDeviceSynchronize() ||
        (by_stream ? cudaFreeAsync(memory, nullptr) : cudaFree(memory)) ||
        cudaDeviceSynchronize() ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used))
      return skip();
    std::printf("used after %s: %llu\n", by_stream ? "cudaFreeAsync" : "cudaFree",
                (unsigned long long)used);
    if (used != 0) return 1;
  }
  return 0;
}
