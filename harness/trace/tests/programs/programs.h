// Small programs with one mistake each, and their corrected versions. A case is
// two roles; each gets `wrong`, which says whether to make the mistake.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/types.h>

#include <vector>

#include "samples/common/channel.h"
#include "samples/common/check.h"

using Role = void (*)(Channel& channel, bool wrong);

struct Case {
  const char*
      name;  // the rule that the wrong version breaks, perhaps with a suffix
  Role exporter;
  Role importer;
};

extern const std::vector<Case> kMemory, kLifetimes, kEvents, kChunks, kPools,
    kOwners, kSurroundings, kCaptures;

constexpr size_t kBytes = 4 << 20;
constexpr int kLazy = cudaIpcMemLazyEnablePeerAccess;

/// Runs a kernel that reads and writes the first value, and waits for it.
void touch(void* data);

/// Memory with defined contents, as every exporter should lend it.
inline void* allocate(size_t bytes = kBytes) {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, bytes));
  CUDA_CHECK(cudaMemset(data, 1, bytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  return data;
}

inline cudaIpcMemHandle_t handle_of(void* data) {
  cudaIpcMemHandle_t handle{};
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  return handle;
}

/// The exporter of most cases: it lends memory until the importer is done.
inline void lend(Channel& channel, bool = false) {
  void* data = allocate();
  channel.send("handle", handle_of(data));
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

inline void* open_handle(const cudaIpcMemHandle_t& handle) {
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle, kLazy));
  return data;
}

inline void* borrow(Channel& channel) {
  return open_handle(channel.receive<cudaIpcMemHandle_t>("handle"));
}

/// How many GPUs there are.
inline int devices() {
  int count = 0;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  return count;
}

/// In the importer, waits until the exporter has ended. In the exporter, waits
/// until the importer has ended.
void wait_for_peers_end();

/// Ends the importer of a case that this machine cannot run, after the
/// exporter, which still sends.
inline void skip_without(bool met, const char* what, Channel& channel) {
  if (met) return;
  std::printf("SKIP: this program needs %s\n", what);
  channel.signal("done");
  wait_for_peers_end();
  std::exit(77);
}

/// Waits for the end of a child, and kills the child if it takes too long.
/// Returns the status of waitpid(2).
int end_of(pid_t child);
