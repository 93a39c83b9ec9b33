// SPDX-License-Identifier: Apache-2.0
// A launch that runs: its blocks, its first fault, its memories.
#pragma once

#include <mutex>

#include "code.h"

namespace ipclab::ptx {

/// Memory for registers, stacks and shared memory of one host thread. Up to
/// 64 MiB are kept from launch to launch, so a later launch causes fewer page
/// faults.
class Arena {
 public:
  ~Arena();
  /// Returns uninitialised bytes, aligned to 256 bytes. They are valid until
  /// reset().
  char* take(size_t bytes);
  void reset();

 private:
  struct Chunk {
    char* begin;
    size_t size;
  };
  std::vector<Chunk> chunks_;
  size_t current_ = 0, used_ = 0;
};

class Grid {
 public:
  explicit Grid(const Launch& launch);
  std::optional<Fault> run();

  /// Ends the launch with a fault unless there is already one.
  void fault(Fault fault);
  /// Does the same for the instruction that runs now.
  void fault(Warp& warp, const Instruction& at, int code,
             const std::string& what);
  void memory_fault(Warp& warp, const Instruction& at, int code,
                    uint64_t address, uint32_t size, bool write);
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  /// Ends the launch if the time limit has passed or the launch was cancelled.
  void check_limits();
  void print(const std::string& text);
  /// The number of a block in the grid, x first.
  uint32_t number_of(const Block& block) const {
    return block.index[0] +
           launch.grid[0] * (block.index[1] + launch.grid[1] * block.index[2]);
  }

  const Launch& launch;
  const AddressSpace& space;
  const Program& program;
  uint32_t static_shared_bytes;
  uint32_t dynamic_shared_offset;
  /// The grid barrier of a cooperative launch.
  alignas(16) uint32_t workspace[16] = {};

 private:
  friend class Worker;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::optional<Fault> fault_;
  uint64_t deadline_ns_ = 0;
  uint64_t clusters_ = 0;
  std::atomic<uint64_t> next_cluster_{0};
  unsigned threads_ = 1;
};

/// Runs an instruction with an effect, and tells the launch's observer.
void run_observed(Warp& warp, const Instruction& i, uint32_t mask);

/// Nanoseconds of a clock that never jumps.
uint64_t steady_ns();

/// Runs the warp until it has nothing to run, has to wait, or has done about
/// `quantum` instructions; returns their number. Sets `polled` if the warp
/// stopped because it seems to wait for something outside of it.
uint32_t run_warp(Warp& warp, Arena& arena, uint32_t quantum, bool* polled);
/// Prepares a warp of a new block: one split at the kernel's first instruction.
void start_warp(Warp& warp, Arena& arena, const Function& kernel,
                uint32_t lanes);

}  // namespace ipclab::ptx
