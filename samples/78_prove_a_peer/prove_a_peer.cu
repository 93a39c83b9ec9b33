// Lesson 78: prove a peer before you trust it.
//
//   exporter, on GPU 0                  importer, on GPU 1
//   cudaIpcGetMemHandle  -- handle -->  cudaIpcOpenMemHandle
//   in each round:                      in each round, new values:
//                        <- written --    write by a copy and a kernel
//     read with GPU 0    -- read ----->
//   add to a word by atomics            add to the same word
//   a kernel takes every second turn    a kernel takes the other turns
//   read, give a verdict <- closed ---  cudaIpcCloseMemHandle
//
// The attribute is a promise of the driver. The bytes are the proof.
//
// nvcc -cudart shared samples/78_prove_a_peer/prove_a_peer.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda/atomic>

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kExporterGpu = 0, kImporterGpu = 1;
constexpr int kRounds = 8;
constexpr int kCount = 1 << 18;  // values of a copy, or of a kernel
constexpr int kBytes = kCount * sizeof(unsigned);
constexpr unsigned kAdders = 256, kAdds = 20;  // of each GPU
constexpr unsigned kTurns = 41;  // the exporter takes the last turn

struct Lent {
  unsigned copied[kCount], stored[kCount];
  unsigned sum, turn;  // both GPUs change these words
};

// Each round has other values, so data of an earlier round are wrong.
unsigned copied_in(int round) { return 1000000 * (2 * round + 1); }
unsigned stored_in(int round) { return 1000000 * (2 * round + 2); }

//! [atomics]
bool atomics_are_promised() {
  int all = 0;
  CUDA_CHECK(cudaDeviceGetP2PAttribute(
      &all, cudaDevP2PAttrNativeAtomicSupported, kImporterGpu,
      kExporterGpu));
  return all != 0;
}
//! [atomics]

//! [kernels]
using Word = cuda::atomic_ref<unsigned, cuda::thread_scope_system>;

__global__ void add(unsigned* sum) {
  for (unsigned i = 0; i < kAdds; ++i)
    Word(*sum).fetch_add(1, cuda::memory_order_relaxed);
}

__global__ void take_turns(unsigned* turn, unsigned mine) {
  constexpr unsigned long long kLimit = 8'000'000'000;  // ns
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (Word(*turn).load(cuda::memory_order_acquire) != mine) continue;
    Word(*turn).store(mine + 1, cuda::memory_order_release);
    mine += 2;
  } while (mine < kTurns && now - began < kLimit);
}

void add_and_take_turns(Lent* lent, unsigned first) {
  if (atomics_are_promised()) add<<<1, kAdders>>>(&lent->sum);
  CUDA_CHECK(cudaGetLastError());
  take_turns<<<1, 1>>>(&lent->turn, first);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
}
//! [kernels]

//! [exporter]
int exporter(Channel& channel) {
  CUDA_CHECK(cudaSetDevice(kExporterGpu));
  Lent* lent = nullptr;  // gets whole blocks of 2 MiB: lesson 21
  CUDA_CHECK(cudaMalloc(&lent, round_up(sizeof(Lent), 2 << 20)));
  CUDA_CHECK(cudaMemset(lent, 0, sizeof(Lent)));
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, lent));
  channel.send("handle", handle);

  int copied = 0, stored = 0;
  for (int round = 0; round < kRounds; ++round) {
    channel.wait("written");
    copied += count_wrong(lent->copied, kCount, copied_in(round));
    stored += count_wrong(lent->stored, kCount, stored_in(round));
    channel.signal("read");
  }
  say("reads what %d copies wrote: %d wrong", kRounds, copied);
  say("reads what %d kernels wrote: %d wrong", kRounds, stored);

  add_and_take_turns(lent, 0);
  channel.wait("closed");
  const unsigned adds = 2 * kAdders * kAdds;
  const int sum =
      count_wrong(&lent->sum, 1, atomics_are_promised() ? adds : 0);
  say("reads the sum of both GPUs' atomics: %d wrong", sum);
  const int turn = count_wrong(&lent->turn, 1, kTurns);
  say("reads the turn of two kernels that talk: %d wrong", turn);

  const bool proved = copied + stored + sum + turn == 0;
  say("verdict: GPU %d reaches GPU %d: %s", kImporterGpu, kExporterGpu,
      proved ? "proved" : "NOT PROVED");
  CUDA_CHECK(cudaFree(lent));

  return proved ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaSetDevice(kImporterGpu));
  void* own = allocate_values(kCount, 0);
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  Lent* lent = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&lent),
                                  handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  say("opens memory of GPU %d on GPU %d", kExporterGpu, kImporterGpu);

  for (int round = 0; round < kRounds; ++round) {
    write_values(own, kCount, copied_in(round));
    CUDA_CHECK(
        cudaMemcpy(lent->copied, own, kBytes, cudaMemcpyDefault));
    write_values(lent->stored, kCount, stored_in(round));
    CUDA_CHECK(cudaDeviceSynchronize());
    channel.signal("written");
    channel.wait("read");
  }

  add_and_take_turns(lent, 1);
  CUDA_CHECK(cudaIpcCloseMemHandle(lent));
  channel.signal("closed");
  CUDA_CHECK(cudaFree(own));

  return EXIT_SUCCESS;
}
//! [importer]

int main(int argc, char** argv) {
  // Load all kernels early: a late load can wait for a waiting kernel.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(2);
  require_legacy_ipc();
  int can = 0;
  CUDA_CHECK(cudaDeviceCanAccessPeer(&can, kImporterGpu, kExporterGpu));
  if (can == 0) skip("GPU 1 cannot access the memory of GPU 0");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
