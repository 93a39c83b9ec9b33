// Lesson 41: where cudaMallocAsync takes its memory from.
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

#include <vector>

#include "../common/check.h"
#include "../common/require.h"

constexpr int kCount = 1 << 18;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1;
int wrong_pools = 0;

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

// How many values are not those of write_values()?
int count_wrong(const int* data, int first) {
  std::vector<int> seen(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += seen[i] != first + i;
  return wrong;
}

//! [look]
// Says which of the two pools `data` came from, and fills it.
void look(const char* call, void* data, int first,
          cudaMemPool_t expected, cudaMemPool_t preset) {
  CUmemoryPool pool = nullptr;
  CU_CHECK(DRIVER(cuPointerGetAttribute)(
      &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      reinterpret_cast<CUdeviceptr>(data)));
  cudaMemPool_t current;
  CUDA_CHECK(cudaDeviceGetMemPool(&current, 0));
  std::printf("%-23s  current: %s  memory comes from: %s\n", call,
              current == preset ? "default" : "own    ",
              pool == preset ? "default" : "own");
  if (pool != expected) ++wrong_pools;
  write_values<<<kCount / 256, 256>>>(static_cast<int*>(data), first);
  CUDA_CHECK(cudaGetLastError());
}
//! [look]

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  //! [make]
  cudaMemPool_t preset;  // every device has one, made by the driver
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&preset, 0));

  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t own;
  CUDA_CHECK(cudaMemPoolCreate(&own, &wanted));
  //! [make]

  //! [choose]
  void* data[4];
  CUDA_CHECK(cudaMallocAsync(&data[0], kBytes, nullptr));
  look("cudaMallocAsync", data[0], 1000000, preset, preset);

  CUDA_CHECK(cudaMallocFromPoolAsync(&data[1], kBytes, own, nullptr));
  look("cudaMallocFromPoolAsync", data[1], 2000000, own, preset);

  CUDA_CHECK(cudaDeviceSetMemPool(0, own));
  CUDA_CHECK(cudaMallocAsync(&data[2], kBytes, nullptr));
  look("cudaMallocAsync", data[2], 3000000, own, preset);
  //! [choose]

  //! [destroy]
  // Its memory stays until it is freed; the pool takes no new orders.
  CUDA_CHECK(cudaMemPoolDestroy(own));
  std::printf("our own pool is destroyed\n");
  CUDA_CHECK(cudaMallocAsync(&data[3], kBytes, nullptr));
  look("cudaMallocAsync", data[3], 4000000, preset, preset);

  const cudaError_t refused = cudaMemPoolDestroy(preset);
  cudaGetLastError();
  std::printf("the default pool cannot be destroyed: %s\n",
              cudaGetErrorName(refused));
  //! [destroy]

  CUDA_CHECK(cudaDeviceSynchronize());
  int wrong = 0;
  for (int i = 0; i < 4; ++i) {
    wrong += count_wrong(static_cast<int*>(data[i]), (i + 1) * 1000000);
    CUDA_CHECK(cudaFreeAsync(data[i], nullptr));
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  std::printf("four allocations of two pools: %d wrong values\n",
              wrong);

  const bool good =
      wrong + wrong_pools == 0 && refused == cudaErrorInvalidValue;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
