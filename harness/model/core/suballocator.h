// SPDX-License-Identifier: Apache-2.0
// Small allocations of cuMemAlloc share a 2 MiB block, as on an H200. This
// class has only numbers and references, and maps nothing.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>

#include "core/allocation.h"

namespace ipclab::model {

/// A request up to this size shares a block. This was observed on an H200.
constexpr uint64_t kLargestShared = 1 << 20;

/// A part of the machine (core/machine.h), so its caller holds the lock.
class Suballocator {
 public:
  /// Allocations share a block only if their Owner is the same. Variables have
  /// their own blocks.
  struct Owner {
    CUcontext context;
    Kind kind;
  };
  struct Place {
    uint64_t address = 0;  ///< 0: there is none
    uint64_t mapping = 0;  ///< where the block begins
    std::shared_ptr<Block> block;
  };

  /// Takes a place of `size` bytes in a block that was added. If no block has
  /// room, the address of the place is 0.
  Place take(const Owner& owner, uint64_t size);
  /// Adds a block of kPage that is all free.
  void add(const Owner& owner, uint64_t address, std::shared_ptr<Block> block);
  bool has(uint64_t mapping) const { return blocks_.count(mapping) > 0; }
  /// Gives a place back. True if the block is empty now; then the block is
  /// removed.
  bool give_back(uint64_t mapping, uint64_t offset, uint64_t size);

 private:
  struct Shared {
    Owner owner;
    std::shared_ptr<Block> block;
    std::map<uint64_t, uint64_t> free;  // offset -> bytes
    int live = 0;
  };
  std::map<uint64_t, Shared> blocks_;  // by address
};

}  // namespace ipclab::model
