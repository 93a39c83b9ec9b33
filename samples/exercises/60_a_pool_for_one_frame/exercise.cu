// Exercise 60: a pool for one frame.
//
// The pool has room for one frame. The loader frees its frame, and the
// encoder allocates the next frame in another stream. Nothing orders
// the two streams, so the pool cannot use the memory again and refuses
// the allocation. Order the streams on the GPU; the host must not wait
// for the loader.
// The exercise fails now because the second allocation is refused.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr size_t kFrame = 64 << 20;
constexpr int kCount = 1 << 18;  // values of a frame that are checked
constexpr int kLoaded = 1000000;
constexpr int kEncoded = 3000000;

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  Gate* gate = create_gate();
  cudaMemPool_t pool = create_pool(cudaMemHandleTypeNone, kFrame);
  int no = 0;  // the pool adds no waits between streams
  CUDA_CHECK(cudaMemPoolSetAttribute(
      pool, cudaMemPoolReuseAllowInternalDependencies, &no));
  cudaStream_t loader, encoder;
  CUDA_CHECK(cudaStreamCreateWithFlags(&loader, cudaStreamNonBlocking));
  CUDA_CHECK(
      cudaStreamCreateWithFlags(&encoder, cudaStreamNonBlocking));
  cudaEvent_t freed;
  CUDA_CHECK(cudaEventCreateWithFlags(&freed, cudaEventDisableTiming));

  void* frame = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&frame, kFrame, pool, loader));
  hold(loader, gate);     // stands for slow work: until the gate opens,
  keep_busy(loader, 50);  // and 50 ms more
  write_values(frame, kCount, kLoaded, loader);
  CUDA_CHECK(cudaFreeAsync(frame, loader));

  void* next = nullptr;
  const cudaError_t code =
      cudaMallocFromPoolAsync(&next, kFrame, pool, encoder);
  cudaGetLastError();  // the refusal is printed below
  const bool have = code == cudaSuccess;
  if (have) write_values(next, kCount, kEncoded, encoder);
  const bool waits = cudaStreamQuery(loader) == cudaErrorNotReady;
  cudaGetLastError();  // some drivers keep "not ready" as an error
  const bool ordered = have && is_held(encoder);

  open_gate(gate);
  CUDA_CHECK(cudaDeviceSynchronize());
  const int wrong = have ? count_wrong(next, kCount, kEncoded) : kCount;
  if (!have)
    say("the encoder got NO frame: %s", cudaGetErrorName(code));
  else if (waits && !ordered)
    say("the encoder did NOT wait: it used the loader's frame");
  else
    say("the encoder has its frame: %d wrong; the host %s", wrong,
        waits ? "did not wait" : "has waited, which it must NOT");
  if (have) CUDA_CHECK(cudaFreeAsync(next, encoder));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaStreamDestroy(loader));
  CUDA_CHECK(cudaStreamDestroy(encoder));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);

  return waits && ordered ? exit_code(wrong) : EXIT_FAILURE;
}
