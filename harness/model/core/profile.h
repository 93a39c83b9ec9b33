// SPDX-License-Identifier: Apache-2.0
// Profiles: descriptions of the machines that the model can simulate.
// IPCLAB_PROFILE names one of them.
#pragma once

#include <cstdint>
#include <string>

namespace ipclab::model {

/// What a GPU of a compute capability can hold (Programming Guide, technical
/// specifications for each compute capability).
struct Capability {
  int major, minor;
  int shared_per_block;           ///< bytes, if a kernel asks for them
  int shared_per_multiprocessor;  ///< bytes
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  unsigned newest_ptx;  ///< the newest virtual architecture that it runs
};
// The PTX of compute_100 runs, too: it has no instruction that 9.0 lacks and
// that the interpreter knows.
constexpr Capability kHopper{9, 0, 227 << 10, 228 << 10, 2048, 32, 100};
constexpr Capability kBlackwell12{12, 0, 99 << 10, 100 << 10, 1536, 24, 120};

struct Profile {
  const char* name;
  int gpus;
  bool peers;           ///< every pair of different GPUs can reach each other
  int max_peers;        ///< GPUs that one GPU can reach at the same time
  bool ipc_events;      ///< interprocess events, and the attribute that says so
  bool ipc_memory;      ///< legacy memory handles
  bool integrated;      ///< GPU and host share their memory (Tegra)
  bool pools;           ///< the stream-ordered allocator
  int pool_handles;     ///< handle types of pools, a mask
  bool vmm;             ///< virtual memory management
  int chunk_handles;    ///< handle types of cuMemCreate, a mask
  bool imex;            ///< this user may open IMEX channel 0
  bool endpoints;       ///< the GPUs are in a fabric with logical endpoints
  bool driver_580;      ///< answers as driver 580 does, also where this differs
                        ///< from the documentation
  bool one_queue;       ///< all streams of a context share one queue
  int driver_version;   ///< 1000 * major + 10 * minor
  int runtime_version;  ///< the same; 0: the version of the headers
  uint64_t memory_gib;  ///< of each GPU
  const char* what;     ///< one line for people
  Capability capability = kHopper;
  bool late_fabric = false;  ///< the fabric is not ready at first

  /// Can a GPU export its memory as a dma-buf?
  bool has_dma_buf() const { return vmm && !integrated; }
  /// Can a process map a dma-buf (since CUDA 13.3)?
  bool maps_dma_buf() const { return has_dma_buf() && driver_version >= 13030; }
  /// Can pinned memory of the host be a dma-buf? A driver may choose.
  bool host_dma_buf() const { return maps_dma_buf(); }
};

/// The profile that IPCLAB_PROFILE names; "one-gpu" if the variable is not set.
/// If there is no such profile, prints one line with all names and aborts.
const Profile& profile();

}  // namespace ipclab::model
