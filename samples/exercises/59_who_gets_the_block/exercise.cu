// Exercise 59: predict who gets the block.
//
// Stream A frees a block of a pool. Then stream A or stream B allocates
// a block of the same size. Is it the same block? A is held, so the
// free is queued, but not done. Only in the last case the free is done:
// the host has waited for A. The reuse policies have their default
// values. Write kYes or kNo for each question, and then run the
// program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kTheSameStream = kUnknown;
constexpr Answer kAnotherStream = kUnknown;
constexpr Answer kAnotherAfterAnEventOfTheFree = kUnknown;
constexpr Answer kAnotherAfterTheHostWaited = kUnknown;

constexpr size_t kBlock = 64 << 20;
enum Case { kSame, kOther, kEvent, kWaited };

bool same_block(Case which, cudaStream_t a, cudaStream_t b) {
  Gate* gate = create_gate();
  cudaMemPool_t pool = create_pool(cudaMemHandleTypeNone);
  cuuint64_t threshold = UINT64_MAX;  // keep freed memory
  CUDA_CHECK(cudaMemPoolSetAttribute(
      pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  cudaEvent_t freed;
  CUDA_CHECK(cudaEventCreateWithFlags(&freed, cudaEventDisableTiming));

  void *old_block = nullptr, *new_block = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&old_block, kBlock, pool, a));
  hold(a, gate);
  CUDA_CHECK(cudaFreeAsync(old_block, a));
  CUDA_CHECK(cudaEventRecord(freed, a));
  if (which == kEvent) CUDA_CHECK(cudaStreamWaitEvent(b, freed));
  if (which == kWaited) {
    open_gate(gate);
    CUDA_CHECK(cudaStreamSynchronize(a));
  }
  cudaStream_t user = which == kSame ? a : b;
  CUDA_CHECK(cudaMallocFromPoolAsync(&new_block, kBlock, pool, user));
  CUDA_CHECK(cudaFreeAsync(new_block, user));

  open_gate(gate);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);

  return new_block == old_block;
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  cudaStream_t a, b;
  CUDA_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));

  bool good = predicted("A allocates again. The same block?",
                        kTheSameStream, same_block(kSame, a, b));
  good &= predicted("B allocates. The same block?", kAnotherStream,
                    same_block(kOther, a, b));
  good &= predicted(
      "B waits for an event after the free. The same block?",
      kAnotherAfterAnEventOfTheFree, same_block(kEvent, a, b));
  good &=
      predicted("The host has waited for A. Does B get the same block?",
                kAnotherAfterTheHostWaited, same_block(kWaited, a, b));

  CUDA_CHECK(cudaStreamDestroy(b));
  CUDA_CHECK(cudaStreamDestroy(a));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
