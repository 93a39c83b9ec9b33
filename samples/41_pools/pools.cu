// Lesson 41: from which pool stream-ordered memory comes.
//
//   call                        current pool    memory comes from
//   cudaMallocAsync             the default     the default pool
//   cudaMallocFromPoolAsync     the default     the named pool
//   cudaDeviceSetMemPool        our own
//   cudaMallocAsync             our own         our own pool
//   cudaMemPoolDestroy          the default
//   cudaMallocAsync             the default     the default pool
//
// nvcc -cudart shared samples/41_pools/pools.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/require.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

//! [pool of]
cudaMemPool_t pool_of(void* data) {
  CUmemoryPool pool = nullptr;
  CU_CHECK(DRIVER(cuPointerGetAttribute)(
      &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      reinterpret_cast<CUdeviceptr>(data)));
  return pool;
}
//! [pool of]

// Prints the pools. Returns true if the memory is from `expected`.
bool came_from(cudaMemPool_t expected, void* data, const char* call) {
  cudaMemPool_t default_pool, current;
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&default_pool, 0));
  CUDA_CHECK(cudaDeviceGetMemPool(&current, 0));

  const bool by_default = pool_of(data) == default_pool;
  say("%-23s  current: %s  memory comes from: %s", call,
      current == default_pool ? "default" : "own    ",
      by_default ? "default" : "own");
  return pool_of(data) == expected;
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");

  //! [make]
  cudaMemPool_t default_pool;  // the driver makes it
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&default_pool, 0));

  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t own;
  CUDA_CHECK(cudaMemPoolCreate(&own, &wanted));
  //! [make]

  //! [choose]
  void* data[4];
  CUDA_CHECK(cudaMallocAsync(&data[0], kBytes, nullptr));
  bool good = came_from(default_pool, data[0], "cudaMallocAsync");

  CUDA_CHECK(cudaMallocFromPoolAsync(&data[1], kBytes, own, nullptr));
  good &= came_from(own, data[1], "cudaMallocFromPoolAsync");

  CUDA_CHECK(cudaDeviceSetMemPool(0, own));
  CUDA_CHECK(cudaMallocAsync(&data[2], kBytes, nullptr));
  good &= came_from(own, data[2], "cudaMallocAsync");
  //! [choose]

  //! [destroy]
  // The memory lives until its free. The pool gives no new memory.
  write_values(data[2], kCount, kValue);
  CUDA_CHECK(cudaMemPoolDestroy(own));
  const int wrong = count_wrong(data[2], kCount, kValue);
  say("destroys its own pool, reads memory of it: %d wrong", wrong);

  CUDA_CHECK(cudaMallocAsync(&data[3], kBytes, nullptr));
  good &= came_from(default_pool, data[3], "cudaMallocAsync");
  good &= refused("destroys the default pool",
                  cudaMemPoolDestroy(default_pool));
  //! [destroy]

  for (void* allocation : data)
    CUDA_CHECK(cudaFreeAsync(allocation, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
