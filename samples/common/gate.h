// A gate holds a stream until the host opens the gate. Until then the
// work that follows in this stream does not start.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "check.h"

/// A gate is in host memory that the GPU can read and write.
struct Gate {
  unsigned open;     ///< set by the host
  unsigned gave_up;  ///< set by a kernel that waited too long
};

/// Launches a kernel that keeps the stream busy until the gate is open.
/// The kernel gives up after 10 s, measured by the GPU's clock.
void hold(cudaStream_t stream, Gate* gate);

#ifdef __CUDACC__  // plain C++ exercises link a compiled version
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

/// Opens the gate. All streams that the gate holds continue.
inline void open_gate(Gate* gate) {
  static_cast<volatile Gate*>(gate)->open = 1;
}

/// Creates a closed gate. Also runs the gate's kernel once, to load it:
/// a load at a later launch may wait for a held stream.
inline Gate* create_gate() {
  Gate* gate = nullptr;
  CUDA_CHECK(cudaHostAlloc(&gate, sizeof *gate, cudaHostAllocMapped));
  *gate = {1, 0};
  hold(nullptr, gate);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  *gate = {0, 0};
  return gate;
}

/// Frees a gate that holds no stream any more. Ends the process if a
/// kernel gave up, because then the lesson has proved nothing.
inline void destroy_gate(Gate* gate) {
  if (gate->gave_up) {
    print_role(stderr);
    std::fprintf(stderr, "the gate was not opened within 10 s\n");
    std::exit(EXIT_FAILURE);
  }
  CUDA_CHECK(cudaFreeHost(gate));
}
