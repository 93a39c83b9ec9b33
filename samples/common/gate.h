// A gate holds a stream until the host opens it. So a lesson can look
// at the time between "queued" and "done" without relying on luck.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "check.h"

/// Lies in host memory that the GPU can read and write.
struct Gate {
  unsigned open;     ///< set by the host
  unsigned gave_up;  ///< set by the GPU when it has waited too long
};

/// Launches a kernel that keeps the stream busy until the gate is open.
/// It gives up after 10 s on the GPU's clock.
void hold(cudaStream_t stream, Gate* gate);

#ifdef __CUDACC__  // as in data.h
static __global__ void wait_at_gate(volatile Gate* gate) {
  constexpr unsigned long long kLimit = 10'000'000'000;  // ns
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (gate->open) return;
  } while (now - began < kLimit);
  gate->gave_up = 1;
}

inline void hold(cudaStream_t stream, Gate* gate) {
  wait_at_gate<<<1, 1, 0, stream>>>(gate);
  CUDA_CHECK(cudaGetLastError());
}
#endif

/// Lets all held streams go on.
inline void open_gate(Gate* gate) {
  static_cast<volatile Gate*>(gate)->open = 1;
}

/// Makes a closed gate. Runs its kernel once: the first launch of a
/// kernel loads it, and loading may wait for a stream that is held.
inline Gate* create_gate() {
  Gate* gate = nullptr;
  CUDA_CHECK(cudaHostAlloc(&gate, sizeof *gate, cudaHostAllocMapped));
  *gate = {1, 0};
  hold(nullptr, gate);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  *gate = {0, 0};
  return gate;
}

/// Frees a gate that no stream waits for any more. Ends the process if
/// the gate gave up: what the lesson saw then proves nothing.
inline void destroy_gate(Gate* gate) {
  if (gate->gave_up) {
    print_role(stderr);
    std::fprintf(stderr, "the gate was not opened within 10 s\n");
    std::exit(EXIT_FAILURE);
  }
  CUDA_CHECK(cudaFreeHost(gate));
}
