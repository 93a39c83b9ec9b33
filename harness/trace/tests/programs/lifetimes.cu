// Mistakes with the order in which memory, processes and contexts end.
//
// SPDX-License-Identifier: Apache-2.0
#include "programs.h"

namespace {

void frees_early(Channel& channel, bool wrong) {
  void* data = allocate();
  channel.send("handle", handle_of(data));
  channel.wait("opened");
  if (wrong) CUDA_CHECK(cudaFree(data));
  channel.signal("go on");
  channel.wait("done");
  if (!wrong) CUDA_CHECK(cudaFree(data));
}

void holds_open(Channel& channel, bool) {
  void* data = borrow(channel);
  channel.signal("opened");
  channel.wait("go on");
  static_cast<void>(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void ends_early(Channel& channel, bool wrong) {
  void* data = allocate();
  channel.send("handle", handle_of(data));
  channel.wait("opened");
  if (wrong) std::exit(EXIT_SUCCESS);
  channel.signal("go on");
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void outlives(Channel& channel, bool wrong) {
  if (!wrong) return holds_open(channel, wrong);
  void* data = borrow(channel);
  channel.signal("opened");
  wait_for_peers_end();
  static_cast<void>(cudaIpcCloseMemHandle(data));
}

void sends_a_stale_handle(Channel& channel, bool wrong) {
  void* data = allocate();
  const cudaIpcMemHandle_t handle = handle_of(data);
  if (wrong) CUDA_CHECK(cudaFree(data));
  channel.send("handle", handle);
  channel.wait("done");
  if (!wrong) CUDA_CHECK(cudaFree(data));
}

void tries_to_open(Channel& channel, bool) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = nullptr;
  if (cudaIpcOpenMemHandle(&data, handle, kLazy) == cudaSuccess)
    static_cast<void>(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void sends_and_ends(Channel& channel, bool wrong) {
  void* data = allocate();
  channel.send("handle", handle_of(data));
  if (!wrong) channel.wait("done");
  CUDA_CHECK(cudaFree(data));
  if (wrong) std::exit(EXIT_SUCCESS);
}

void opens_after_the_end(Channel& channel, bool wrong) {
  if (!wrong) return tries_to_open(channel, wrong);
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  wait_for_peers_end();
  void* data = nullptr;
  static_cast<void>(cudaIpcOpenMemHandle(&data, handle, kLazy));
}

void resets_its_device(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  if (!wrong) CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaDeviceReset());
  channel.signal("done");
}

void uses_cuda_after_fork(Channel& channel, bool wrong) {
  void* data = wrong ? allocate() : nullptr;
  const pid_t child = fork();
  SYS_CHECK(child);
  if (child == 0) {
    void* other = nullptr;
    const bool good = cudaMalloc(&other, kBytes) == cudaSuccess;
    if (good) static_cast<void>(cudaFree(other));
    _exit(EXIT_SUCCESS);
  }
  static_cast<void>(end_of(child));
  if (wrong) CUDA_CHECK(cudaFree(data));
  channel.signal("done");
}

void waits(Channel& channel, bool) { channel.wait("done"); }

}  // namespace

const std::vector<Case> kLifetimes = {
    {"freed-while-open", frees_early, holds_open},
    {"exporter-ended-while-open", ends_early, outlives},
    {"stale-handle", sends_a_stale_handle, tries_to_open},
    {"handle-of-ended-process", sends_and_ends, opens_after_the_end},
    {"context-destroyed", lend, resets_its_device},
    {"cuda-after-fork", uses_cuda_after_fork, waits},
};
