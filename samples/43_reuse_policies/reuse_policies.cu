// Lesson 43: when freed memory may be given to somebody else.
//
//   freed in stream A, then asked for       is reused if
//   in A again                              always
//   in B, behind an event of A's free       FollowEventDependencies
//   in B, once A has passed the free        AllowOpportunistic
//   in B, A is held and the pool is full    AllowInternalDependencies
//   in B, after the host waited for A       always
//
// nvcc -cudart shared samples/43_reuse_policies/reuse_policies.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/check.h"
#include "../common/require.h"

constexpr int kCount = 1 << 18;  // values looked at
constexpr size_t kBytes = kCount * sizeof(int);
constexpr size_t kBlock = 64 << 20;  // more than a pool has to spare
constexpr int kOfA = 1000000;
constexpr int kOfB = 2000000;
constexpr int kLooks = 10000000;  // then the gate opens by itself
enum Way { kSame, kBehindEvent, kPassed, kFull, kSynchronised };
int* gate;
int wrong = 0;

__global__ void hold(const volatile int* gate) {
  for (int i = 0; *gate == 0 && i < kLooks;) ++i;
}

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

int count_wrong(const int* data, int first) {
  std::vector<int> seen(kCount, -1);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  int found = 0;
  for (int i = 0; i < kCount; ++i) found += seen[i] != first + i;
  return found;
}

//! [policy]
cudaMemPool_t make_pool(Way way, bool on) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.maxSize = way == kFull ? kBlock : 0;
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  const auto set = [pool](cudaMemPoolAttr policy, int value) {
    CUDA_CHECK(cudaMemPoolSetAttribute(pool, policy, &value));
  };
  set(cudaMemPoolReuseFollowEventDependencies,
      on && way == kBehindEvent);
  set(cudaMemPoolReuseAllowOpportunistic, on && way == kPassed);
  set(cudaMemPoolReuseAllowInternalDependencies, on && way == kFull);
  cuuint64_t threshold = UINT64_MAX;  // keeps memory to reuse
  CUDA_CHECK(cudaMemPoolSetAttribute(
      pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  return pool;
}
//! [policy]

//! [try]
const char* try_it(Way way, bool on, cudaStream_t a, cudaStream_t b) {
  cudaMemPool_t pool = make_pool(way, on);
  int *of_a, *of_b = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&of_a, kBlock, pool, a));
  *gate = way == kPassed || way == kSynchronised;
  hold<<<1, 1, 0, a>>>(gate);
  write_values<<<kCount / 256, 256, 0, a>>>(of_a, kOfA);
  CUDA_CHECK(cudaFreeAsync(of_a, a));

  cudaEvent_t freed;
  CUDA_CHECK(cudaEventCreateWithFlags(&freed, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventRecord(freed, a));
  if (way == kBehindEvent) CUDA_CHECK(cudaStreamWaitEvent(b, freed));
  if (way == kPassed)  // only looks: a wait would be kSynchronised
    while (cudaStreamQuery(a) == cudaErrorNotReady) cudaGetLastError();
  if (way == kSynchronised) CUDA_CHECK(cudaStreamSynchronize(a));

  cudaStream_t user = way == kSame ? a : b;
  const bool full =
      cudaMallocFromPoolAsync(&of_b, kBlock, pool, user) != cudaSuccess;
  cudaGetLastError();
  if (!full) write_values<<<kCount / 256, 256, 0, user>>>(of_b, kOfB);
  *static_cast<volatile int*>(gate) = 1;
  CUDA_CHECK(cudaStreamSynchronize(a));
  CUDA_CHECK(cudaStreamSynchronize(b));
  if (!full) wrong += count_wrong(of_b, kOfB);  // A wrote before
  CUDA_CHECK(cudaFree(of_b));                   // null is no error
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return full ? "refused" : of_a == of_b ? "reused" : "new memory";
}
//! [try]

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  CUDA_CHECK(cudaHostAlloc(&gate, sizeof(int), cudaHostAllocMapped));
  cudaStream_t a, b;
  CUDA_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  try_it(kSynchronised, false, a, b);  // loads the kernels
  const char* names[] = {"in the same stream", "behind an event",
                         "once A has passed", "A held, pool full",
                         "after a synchronise"};
  for (int way = kSame; way <= kSynchronised; ++way)
    std::printf("%-20s policy on: %-10s  off: %s\n", names[way],
                try_it(static_cast<Way>(way), true, a, b),
                try_it(static_cast<Way>(way), false, a, b));
  std::printf("values that the other owner overwrote: %d\n", wrong);
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
