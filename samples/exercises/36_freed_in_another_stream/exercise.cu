// Exercise 36: freed in another stream.
//
// One stream still has to copy the data, and another stream frees it.
// The pool gives the memory to the next owner at once, so the copy
// reads the next owner's values. A free is ordered only in its own
// stream. Order the free after the copy. Keep the free before the next
// owner's allocation. The host must not wait.
// The exercise fails now with a wrong copy.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;
constexpr int kNextValue = 2000000;

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  Gate* gate = create_gate();
  void* copy = allocate_values(kCount, 0);
  cudaStream_t reader, cleaner;
  CUDA_CHECK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
  CUDA_CHECK(
      cudaStreamCreateWithFlags(&cleaner, cudaStreamNonBlocking));

  void* data = nullptr;
  CUDA_CHECK(cudaMallocAsync(&data, kBytes, cleaner));
  write_values(data, kCount, kValue, cleaner);
  CUDA_CHECK(cudaStreamSynchronize(cleaner));

  hold(reader, gate);      // long work: until the gate opens,
  keep_busy(reader, 300);  // and 300 ms more
  CUDA_CHECK(
      cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault, reader));

  CUDA_CHECK(cudaFreeAsync(data, cleaner));
  void* next = nullptr;
  CUDA_CHECK(cudaMallocAsync(&next, kBytes, cleaner));
  write_values(next, kCount, kNextValue, cleaner);
  say("queues a copy, a free, an allocation; the cleaner is %s",
      is_held(cleaner) ? "held" : "not held");

  open_gate(gate);
  CUDA_CHECK(cudaDeviceSynchronize());
  const int wrong = count_wrong(copy, kCount, kValue);
  say("reads the copy: %d wrong", wrong);

  CUDA_CHECK(cudaFreeAsync(next, cleaner));
  CUDA_CHECK(cudaStreamSynchronize(cleaner));
  CUDA_CHECK(cudaStreamDestroy(reader));
  CUDA_CHECK(cudaStreamDestroy(cleaner));
  CUDA_CHECK(cudaFree(copy));
  destroy_gate(gate);

  return exit_code(wrong);
}
