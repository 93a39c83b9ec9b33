// Exercise 83: trimmed too early.
//
// The program keeps freed memory in its pool, and trims the pool when
// another program needs the memory. The trim gives nothing back: the
// free is queued in a stream, but not done. Change the order of the
// calls.
// The exercise fails now because the pool still has 64 MiB reserved.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr size_t kBytes = 64 << 20;
constexpr int kCount = 1 << 18;
constexpr int kValue = 1000000;

cuuint64_t reserved(cudaMemPool_t pool) {
  cuuint64_t bytes = 0;
  CUDA_CHECK(cudaMemPoolGetAttribute(
      pool, cudaMemPoolAttrReservedMemCurrent, &bytes));
  return bytes;
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  Gate* gate = create_gate();
  cudaMemPool_t pool = create_pool(cudaMemHandleTypeNone);
  cuuint64_t threshold = UINT64_MAX;  // keep freed memory
  CUDA_CHECK(cudaMemPoolSetAttribute(
      pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, stream));
  hold(stream, gate);      // long work: until the gate opens,
  keep_busy(stream, 300);  // and 300 ms more
  write_values(data, kCount, kValue, stream);
  CUDA_CHECK(cudaFreeAsync(data, stream));

  CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
  open_gate(gate);
  CUDA_CHECK(cudaStreamSynchronize(stream));

  const cuuint64_t left = reserved(pool);
  say("has trimmed its pool: %llu MiB are left",
      static_cast<unsigned long long>(left >> 20));
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);

  return left == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
