// Lesson 42: what a pool keeps when its memory is freed.
//
//   release threshold 0             release threshold UINT64_MAX
//   allocate, free                  allocate, free
//   synchronise: given back         synchronise: kept
//                                   cudaMemPoolTrimTo: free memory is
//                                   given back, memory in use stays
//
// nvcc -cudart shared samples/42_footprint/footprint.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/pool.h"
#include "../common/require.h"

constexpr size_t kMiB = 1 << 20;
constexpr size_t kBlock = 64 * kMiB;
constexpr int kCount = kBlock / sizeof(int);
constexpr int kValue = 1000000;

size_t mib_of(cudaMemPool_t pool, cudaMemPoolAttr which) {
  cuuint64_t bytes = 0;
  CUDA_CHECK(cudaMemPoolGetAttribute(pool, which, &bytes));
  return bytes / kMiB;
}

// Prints the MiB in use and the MiB that the pool holds. Returns true
// if the pool holds `expected` MiB, or up to 127 MiB more.
bool holds(cudaMemPool_t pool, size_t expected, const char* when) {
  const size_t used = mib_of(pool, cudaMemPoolAttrUsedMemCurrent);
  const size_t held = mib_of(pool, cudaMemPoolAttrReservedMemCurrent);
  say("%-26s %3zu MiB in use, the pool holds [%zu]", when, used, held);
  return expected <= held && held < expected + 128;
}

void allocate(void* (&blocks)[4], cudaMemPool_t pool) {
  for (void*& block : blocks)
    CUDA_CHECK(cudaMallocFromPoolAsync(&block, kBlock, pool, nullptr));
}

void free_and_wait(void* (&blocks)[4]) {
  for (void* block : blocks) CUDA_CHECK(cudaFreeAsync(block, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  require_free_memory(8 * kBlock);
  cudaMemPool_t pool = create_pool(cudaMemHandleTypeNone);

  //! [give back]
  void* blocks[4];
  allocate(blocks, pool);
  bool good = holds(pool, 256, "4 blocks of 64 MiB:");
  free_and_wait(blocks);
  good &= holds(pool, 0, "freed, threshold 0:");
  //! [give back]

  //! [keep]
  cuuint64_t threshold = UINT64_MAX;
  CUDA_CHECK(cudaMemPoolSetAttribute(
      pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  allocate(blocks, pool);
  free_and_wait(blocks);
  good &= holds(pool, 256, "freed, threshold maximal:");
  //! [keep]

  //! [trim]
  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBlock, pool, nullptr));
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
  good &= holds(pool, 64, "1 in use, trimmed to 0:");

  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the block in use: %d wrong", wrong);
  //! [trim]

  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
