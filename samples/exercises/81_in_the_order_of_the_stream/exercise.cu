// Exercise 81: predict the order of a stream.
//
// A stream is held. The program allocates, uses, frees and allocates
// memory again in this stream. Which calls wait, and which do not?
// Write kYes or kNo for each question, and then run the program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kAllocatedWhileHeld = kUnknown;
constexpr Answer kTheFreeWaitsOnTheHost = kUnknown;
constexpr Answer kTheSameMemoryAgain = kUnknown;
constexpr Answer kTheKernelHasItsMemory = kUnknown;

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  Gate* gate = create_gate();
  void* copy = allocate_values(kCount, 0);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto waits = [stream] {
    const bool ready = cudaStreamQuery(stream) == cudaSuccess;
    cudaGetLastError();  // some drivers keep "not ready" as an error
    return !ready;
  };

  hold(stream, gate);
  void *data = nullptr, *next = nullptr;
  CUDA_CHECK(cudaMallocAsync(&data, kBytes, stream));
  bool good =
      predicted("The stream is held. Does the host have a pointer?",
                kAllocatedWhileHeld, data != nullptr && waits());

  write_values(data, kCount, kValue, stream);
  CUDA_CHECK(
      cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault, stream));
  CUDA_CHECK(cudaFreeAsync(data, stream));
  good &= predicted("Did the host wait in cudaFreeAsync?",
                    kTheFreeWaitsOnTheHost, !waits());
  CUDA_CHECK(cudaMallocAsync(&next, kBytes, stream));
  good &= predicted("The stream allocates again. The same memory?",
                    kTheSameMemoryAgain, next == data);
  write_values(next, kCount, 5 * kValue, stream);

  open_gate(gate);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  good &= predicted("Does the copy have the first owner's values?",
                    kTheKernelHasItsMemory,
                    count_wrong(copy, kCount, kValue) == 0);
  CUDA_CHECK(cudaFreeAsync(next, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaFree(copy));
  destroy_gate(gate);

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
