// Exercise 38: the forgetful pool.
//
// A program allocates and frees 64 MiB in each step. Each time the
// program synchronises, the pool gives all memory back to the system.
// In the next step the pool must get the memory again, which is slow.
// Let the pool keep 64 MiB, but not more: other programs need the rest
// of the memory.
// The exercise fails now because the pool holds nothing between two
// steps.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr size_t kMiB = 1 << 20;
constexpr size_t kStep = 64 * kMiB;

size_t held_mib(cudaMemPool_t pool) {
  cuuint64_t bytes = 0;
  CUDA_CHECK(cudaMemPoolGetAttribute(
      pool, cudaMemPoolAttrReservedMemCurrent, &bytes));
  return bytes / kMiB;
}

void run_step(cudaMemPool_t pool, size_t bytes) {
  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, bytes, pool, nullptr));
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  cudaMemPool_t pool = create_pool(cudaMemHandleTypeNone);
  // TODO: let the pool keep up to 64 MiB.

  run_step(pool, kStep);
  const size_t usual = held_mib(pool);
  say("after a step of 64 MiB the pool holds %zu MiB%s", usual,
      usual < 64 ? ", NOT 64" : "");

  run_step(pool, 16 * kStep);
  const size_t peak = held_mib(pool);
  say("after a step of 1024 MiB the pool holds %zu MiB%s", peak,
      peak > 64 ? ", which is NOT at most 64" : "");
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  const bool good = usual >= 64 && peak <= 64;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
