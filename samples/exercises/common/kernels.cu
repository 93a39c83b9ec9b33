// The kernels of all exercises. A C++ compiler sees only their
// declarations in exercise.h, data.h and gate.h.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

cudaError_t try_to_write(void* data, int count, unsigned first) {
  write_values_kernel<<<(count + 255) / 256, 256>>>(
      static_cast<unsigned*>(data), count, first, 1);
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? cudaDeviceSynchronize() : code;
}

static __global__ void add(unsigned* to, const unsigned* values,
                           int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] += values[i];
}

void add_values(void* to, const void* values, int count,
                cudaStream_t stream) {
  add<<<(count + 255) / 256, 256, 0, stream>>>(
      static_cast<unsigned*>(to), static_cast<const unsigned*>(values),
      count);
  CUDA_CHECK(cudaGetLastError());
}

static __global__ void work(unsigned long long nanoseconds) {
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - began < nanoseconds);
}

void keep_busy(cudaStream_t stream, int milliseconds) {
  work<<<1, 1, 0, stream>>>(milliseconds * 1'000'000ull);
  CUDA_CHECK(cudaGetLastError());
}

// The compiler puts an inline function into the object file only if
// this file uses the function. These pointers use write_values() and
// hold().
[[gnu::used]] static void (*const kWriteValues)(
    void*, int, unsigned, cudaStream_t, unsigned) = write_values;
[[gnu::used]] static void (*const kHold)(cudaStream_t, Gate*) = hold;
