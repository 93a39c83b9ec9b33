// SPDX-License-Identifier: Apache-2.0
// An ordinary program of one process: streams, events, shared memory,
// cooperative and extended launches, occupancy, printf and assert.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                        \
  do {                                                                     \
    const cudaError_t code = (call);                                       \
    if (code != cudaSuccess) {                                             \
      std::fprintf(stderr, "%s:%d: %s -> %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(code));                              \
      std::exit(EXIT_FAILURE);                                             \
    }                                                                      \
  } while (false)

template <typename T>
__global__ void reduce(const T* in, T* out, int count) {
  extern __shared__ unsigned char bytes[];
  T* shared = reinterpret_cast<T*>(bytes);
  T sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    sum += in[i];
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, shared[0]);
}

__global__ void two_phases(int* data, int count) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = i;
  grid.sync();
  const int mirrored = i < count ? data[count - 1 - i] : 0;
  grid.sync();
  if (i < count) data[i] = mirrored;
}

__global__ void greet(int value) {
  assert(value == 42);
  printf("the kernel says %d\n", value);
}

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("device: %s\n", properties.name);

  constexpr int kCount = 100000;
  std::vector<int> host(kCount);
  long long expected = 0;
  for (int i = 0; i < kCount; ++i) expected += host[i] = i % 97;
  int *in, *out;
  CHECK(cudaMalloc(&in, kCount * sizeof(int)));
  CHECK(cudaMalloc(&out, sizeof(int)));
  cudaStream_t stream;
  cudaEvent_t start, stop;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  CHECK(cudaMemcpyAsync(in, host.data(), kCount * sizeof(int),
                        cudaMemcpyHostToDevice, stream));
  CHECK(cudaMemsetAsync(out, 0, sizeof(int), stream));
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reduce<int>, 256,
                                                      256 * sizeof(int)));
  if (blocks <= 0) return 1;
  CHECK(cudaEventRecord(start, stream));
  reduce<int><<<8, 256, 256 * sizeof(int), stream>>>(in, out, kCount);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(stop, stream));
  int sum = 0;
  CHECK(cudaMemcpyAsync(&sum, out, sizeof sum, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, start, stop));
  if (sum != expected || ms < 0) return 1;

  int count = 1024;
  void* arguments[] = {&in, &count};
  CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(two_phases),
                                    dim3(4), dim3(256), arguments, 0, nullptr));
  CHECK(
      cudaMemcpy(host.data(), in, count * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < count; ++i) {
    if (host[i] != count - 1 - i) return 1;
  }

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  CHECK(cudaLaunchKernelEx(&config, greet, 42));
  CHECK(cudaDeviceSynchronize());

  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, reduce<int>));
  if (attributes.maxThreadsPerBlock != 1024) return 1;
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(stop));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(in));
  CHECK(cudaFree(out));
  std::printf("all data is right\n");
  return 0;
}
