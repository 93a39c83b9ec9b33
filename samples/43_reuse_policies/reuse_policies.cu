// Lesson 43: when a pool gives freed memory to another owner.
//
//   freed in stream A, then allocated       may be reused if
//   in A again                              always
//   in B, after an event of A's free        FollowEventDependencies
//   in B, A has passed the free             AllowOpportunistic
//   in B, A is held, the pool is full       AllowInternalDependencies
//   in B, after the host waited for A       always
//
// nvcc -cudart shared samples/43_reuse_policies/reuse_policies.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/gate.h"
#include "../common/pool.h"
#include "../common/require.h"

constexpr size_t kBlock = 64 << 20;  // too large for the rest of a pool
constexpr int kCount = 1 << 20;      // values checked in a block
constexpr int kValueA = 1000000;
constexpr int kValueB = 3000000;
enum Case { kSame, kAfterEvent, kPassed, kFull, kSynchronised };

//! [policy]
cudaMemPool_t create_pool_for(Case which, bool on) {
  cudaMemPool_t pool =
      create_pool(cudaMemHandleTypeNone, which == kFull ? kBlock : 0);
  const auto set = [pool](cudaMemPoolAttr policy, int allowed) {
    CUDA_CHECK(cudaMemPoolSetAttribute(pool, policy, &allowed));
  };
  set(cudaMemPoolReuseFollowEventDependencies,
      on && which == kAfterEvent);
  set(cudaMemPoolReuseAllowOpportunistic, on && which == kPassed);
  set(cudaMemPoolReuseAllowInternalDependencies, on && which == kFull);

  cuuint64_t threshold = UINT64_MAX;  // keep freed memory
  CUDA_CHECK(cudaMemPoolSetAttribute(
      pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  return pool;
}
//! [policy]

//! [case]
// Frees a block in A, then allocates an equal block in A or B. Returns
// what the new owner gets. Adds the number of wrong values to *wrong.
const char* next_owner_gets(Case which, bool on, cudaStream_t a,
                            cudaStream_t b, int* wrong) {
  Gate* gate = create_gate();
  cudaMemPool_t pool = create_pool_for(which, on);
  cudaEvent_t freed;
  CUDA_CHECK(cudaEventCreateWithFlags(&freed, cudaEventDisableTiming));

  void *old_block = nullptr, *new_block = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&old_block, kBlock, pool, a));
  if (which != kPassed && which != kSynchronised) hold(a, gate);
  write_values(old_block, kCount, kValueA, a);
  CUDA_CHECK(cudaFreeAsync(old_block, a));
  CUDA_CHECK(cudaEventRecord(freed, a));

  if (which == kAfterEvent) CUDA_CHECK(cudaStreamWaitEvent(b, freed));
  if (which == kSynchronised) CUDA_CHECK(cudaStreamSynchronize(a));
  if (which == kPassed)  // a query does not synchronise
    while (cudaStreamQuery(a) == cudaErrorNotReady) continue;

  cudaStream_t user = which == kSame ? a : b;
  const cudaError_t code =
      cudaMallocFromPoolAsync(&new_block, kBlock, pool, user);
  cudaGetLastError();  // clears a refusal, or a kept "not ready"
  if (code == cudaSuccess)
    write_values(new_block, kCount, kValueB, user);

  open_gate(gate);
  CUDA_CHECK(cudaStreamSynchronize(a));
  CUDA_CHECK(cudaStreamSynchronize(b));
  if (code == cudaSuccess) {
    *wrong += count_wrong(new_block, kCount, kValueB);
    CUDA_CHECK(cudaFreeAsync(new_block, user));
  }
  CUDA_CHECK(cudaStreamSynchronize(user));
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);

  if (code != cudaSuccess) return "refused";
  return new_block == old_block ? "reused" : "new memory";
}
//! [case]

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  cudaStream_t a, b;
  CUDA_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));

  int wrong = 0;
  // Loads the kernels now: a later load may wait for a held stream.
  next_owner_gets(kSynchronised, false, a, b, &wrong);

  const char* names[] = {"in the same stream", "after an event",
                         "once A has passed", "A held, pool full",
                         "after a synchronise"};
  for (int i = kSame; i <= kSynchronised; ++i) {
    const Case which = static_cast<Case>(i);
    const char* with = next_owner_gets(which, true, a, b, &wrong);
    const char* without = next_owner_gets(which, false, a, b, &wrong);
    say("%-20s policy on: %-10s  off: %s", names[i], with, without);
  }
  say("values that the old owner overwrote: %d", wrong);

  CUDA_CHECK(cudaStreamDestroy(b));
  CUDA_CHECK(cudaStreamDestroy(a));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
