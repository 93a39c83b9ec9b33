// Lesson 42: what a pool keeps when its memory is freed.
//
//   threshold 0 (default)           threshold UINT64_MAX
//   allocate, free                  allocate, free
//   synchronise -> given back       synchronise -> kept
//                                   allocate    -> nothing new is taken
//                                   cudaMemPoolTrimTo: what is free
//                                   goes, what is in use stays
//
// nvcc -cudart shared samples/42_footprint/footprint.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/check.h"
#include "../common/require.h"

constexpr size_t kMiB = 1 << 20;
constexpr size_t kBlock = 64 * kMiB;
constexpr int kBlocks = 4;
constexpr int kCount = 1 << 18;  // values looked at in one block
constexpr int kPoison = -1;
constexpr int kValue = 1000000;
bool good = true;

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

int count_wrong(const int* data, int first) {
  std::vector<int> seen(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kCount * sizeof(int),
                        cudaMemcpyDefault));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += seen[i] != first + i;
  return wrong;
}

cuuint64_t get(cudaMemPool_t pool, cudaMemPoolAttr which) {
  cuuint64_t bytes = 0;
  CUDA_CHECK(cudaMemPoolGetAttribute(pool, which, &bytes));
  return bytes;
}

// The pool shall hold at least `least` and fewer than `limit` MiB.
void look(cudaMemPool_t pool, const char* after, size_t least,
          size_t limit) {
  const size_t reserved =
      get(pool, cudaMemPoolAttrReservedMemCurrent) / kMiB;
  const size_t used = get(pool, cudaMemPoolAttrUsedMemCurrent) / kMiB;
  const bool fits = least <= reserved && reserved < limit;
  std::printf("%-36s %3zu MiB in use, pool holds %s\n", after, used,
              !fits         ? "SOMETHING ELSE"
              : least == 0  ? "next to nothing"
              : least < 256 ? "a part"
                            : "all that was taken");
  good = good && fits;
}

void allocate(std::vector<void*>* blocks, cudaMemPool_t pool) {
  blocks->resize(kBlocks);
  for (void*& block : *blocks)
    CUDA_CHECK(cudaMallocFromPoolAsync(&block, kBlock, pool, nullptr));
}

void release(const std::vector<void*>& blocks) {
  for (void* block : blocks) CUDA_CHECK(cudaFreeAsync(block, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  std::vector<void*> blocks;

  //! [give back]
  allocate(&blocks, pool);
  look(pool, "4 blocks of 64 MiB:", 256, 320);
  release(blocks);
  look(pool, "freed, threshold 0:", 0, 64);
  //! [give back]

  //! [keep]
  cuuint64_t threshold = UINT64_MAX;  // keep all at a synchronise
  CUDA_CHECK(cudaMemPoolSetAttribute(
      pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  allocate(&blocks, pool);
  release(blocks);
  look(pool, "again, threshold UINT64_MAX:", 256, 320);
  allocate(&blocks, pool);
  look(pool, "the same once more:", 256, 320);
  //! [keep]

  //! [trim]
  // One block stays in use while the pool is trimmed.
  int* kept = static_cast<int*>(blocks.back());
  blocks.pop_back();
  write_values<<<kCount / 256, 256>>>(kept, kValue);
  CUDA_CHECK(cudaGetLastError());
  release(blocks);
  CUDA_CHECK(cudaMemPoolTrimTo(pool, 128 * kMiB));
  look(pool, "3 freed, trimmed to 128 MiB:", 128, 256);
  CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
  look(pool, "trimmed to 0, one block in use:", 64, 192);
  const int wrong = count_wrong(kept, kValue);
  std::printf("the block in use has %d wrong values\n", wrong);
  //! [trim]

  CUDA_CHECK(cudaFree(kept));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
