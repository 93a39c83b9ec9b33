// Exercise 82: predict whose pool it is.
//
// A program makes its own pool the current pool of the GPU. Which pool
// does memory come from after that? Write kYes or kNo for each
// question, and then run the program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kMallocAsyncUsesTheCurrentOne = kUnknown;
constexpr Answer kTheDefaultPoolIsOursNow = kUnknown;
constexpr Answer kANamedPoolIsObeyed = kUnknown;
constexpr Answer kDefaultAgainAfterTheDestroy = kUnknown;

constexpr size_t kBytes = 4 << 20;

cudaMemPool_t pool_of(void* data) {
  CUmemoryPool pool = nullptr;
  CU_CHECK(DRIVER(cuPointerGetAttribute)(
      &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      reinterpret_cast<CUdeviceptr>(data)));
  return pool;
}

void free_now(void* data) {
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  cudaMemPool_t theirs = nullptr, found = nullptr;
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&theirs, 0));
  cudaMemPool_t ours = create_pool(cudaMemHandleTypeNone);
  CUDA_CHECK(cudaDeviceSetMemPool(0, ours));

  void* data = nullptr;
  CUDA_CHECK(cudaMallocAsync(&data, kBytes, nullptr));
  bool good =
      predicted("cudaMallocAsync. From our pool?",
                kMallocAsyncUsesTheCurrentOne, pool_of(data) == ours);
  free_now(data);

  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&found, 0));
  good &= predicted("Is our pool the default pool of the GPU?",
                    kTheDefaultPoolIsOursNow, found == ours);

  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, theirs, nullptr));
  good &= predicted(
      "A call names the default pool. Does the memory come from it?",
      kANamedPoolIsObeyed, pool_of(data) == theirs);
  free_now(data);

  CUDA_CHECK(cudaMemPoolDestroy(ours));
  CUDA_CHECK(cudaDeviceGetMemPool(&found, 0));
  good &= predicted("Ours is destroyed. Is the default pool current?",
                    kDefaultAgainAfterTheDestroy, found == theirs);

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
