// These functions write and check the values of a lesson, round a size
// up, and read how much memory of the GPU is free.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "check.h"

/// Most lessons first fill memory with this byte. No lesson writes a
/// value of four such bytes, so a check notices unwritten memory.
constexpr int kPoison = 0xEE;

/// Queues a kernel that writes `count` values of 4 bytes: first,
/// first + step, first + 2 * step … Does not wait for the kernel. If
/// `step` is 0, all values are equal.
void write_values(void* data, int count, unsigned first,
                  cudaStream_t stream = nullptr, unsigned step = 1);

#ifdef __CUDACC__  // plain C++ exercises link a compiled version
static __global__ void write_values_kernel(unsigned* data, int count,
                                           unsigned first,
                                           unsigned step) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = first + i * step;
}

inline void write_values(void* data, int count, unsigned first,
                         cudaStream_t stream, unsigned step) {
  write_values_kernel<<<(count + 255) / 256, 256, 0, stream>>>(
      static_cast<unsigned*>(data), count, first, step);
  CUDA_CHECK(cudaGetLastError());
}
#endif

/// Allocates memory for `count` values with cudaMalloc, fills it with
/// kPoison, writes the values as write_values() does, and waits until
/// they are written. The caller frees the memory with cudaFree.
inline void* allocate_values(int count, unsigned first,
                             unsigned step = 1) {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, count * sizeof(unsigned)));
  CUDA_CHECK(cudaMemset(data, kPoison, count * sizeof(unsigned)));
  write_values(data, count, first, nullptr, step);
  CUDA_CHECK(cudaDeviceSynchronize());
  return data;
}

/// Returns how many of `count` values in host memory differ from first,
/// first + step, first + 2 * step …
inline int count_wrong_on_host(const void* data, int count,
                               unsigned first, unsigned step = 1) {
  const unsigned* values = static_cast<const unsigned*>(data);
  int wrong = 0;
  for (int i = 0; i < count; ++i)
    wrong += values[i] != first + i * step;
  return wrong;
}

/// The same for memory of a GPU. First copies the values to the host in
/// the default stream, and waits for the copy.
inline int count_wrong(const void* data, int count, unsigned first,
                       unsigned step = 1) {
  std::vector<unsigned> seen(count, 0xEEEEEEEE);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, count * sizeof(unsigned),
                        cudaMemcpyDefault));
  return count_wrong_on_host(seen.data(), count, first, step);
}

/// Rounds `bytes` up to a multiple of `granularity`.
constexpr size_t round_up(size_t bytes, size_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

/// Returns the number of free bytes of the current device.
inline size_t free_memory() {
  size_t free_bytes = 0, all_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  return free_bytes;
}
