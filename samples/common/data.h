// The data of a lesson: how the values are written, how they are
// checked, and how much memory they take.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "check.h"

/// A byte that no lesson writes as a value. Memory is filled with it
/// first, so that success cannot come from zeros or from old data.
constexpr int kPoison = 0xEE;

/// Queues a kernel that writes first, first + 1, first + 2 … (`count`
/// values of 4 bytes). Does not wait for it. With step 0 all values are
/// equal.
void write_values(void* data, int count, unsigned first,
                  cudaStream_t stream = nullptr, unsigned step = 1);

#ifdef __CUDACC__  // the exercises are plain C++, with this linked
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

/// Allocates `count` values with cudaMalloc, fills them with kPoison,
/// writes first, first + 1, … and waits until they are written. The
/// caller frees them with cudaFree.
inline void* allocate_values(int count, unsigned first,
                             unsigned step = 1) {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, count * sizeof(unsigned)));
  CUDA_CHECK(cudaMemset(data, kPoison, count * sizeof(unsigned)));
  write_values(data, count, first, nullptr, step);
  CUDA_CHECK(cudaDeviceSynchronize());
  return data;
}

/// How many of `count` values in host memory are not first, first + 1,
/// first + 2 …?
inline int count_wrong_on_host(const void* data, int count,
                               unsigned first, unsigned step = 1) {
  const unsigned* values = static_cast<const unsigned*>(data);
  int wrong = 0;
  for (int i = 0; i < count; ++i)
    wrong += values[i] != first + i * step;
  return wrong;
}

/// The same for memory of a GPU: copies it to the host first, in the
/// default stream, and waits for that.
inline int count_wrong(const void* data, int count, unsigned first,
                       unsigned step = 1) {
  std::vector<unsigned> seen(count, 0xEEEEEEEE);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, count * sizeof(unsigned),
                        cudaMemcpyDefault));
  return count_wrong_on_host(seen.data(), count, first, step);
}

/// The smallest multiple of `granularity` that is not below `bytes`.
constexpr size_t round_up(size_t bytes, size_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

/// How many bytes of the current device are free.
inline size_t free_memory() {
  size_t free_bytes = 0, all_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  return free_bytes;
}
