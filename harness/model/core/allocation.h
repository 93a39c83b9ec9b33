// SPDX-License-Identifier: Apache-2.0
// The memory at an address: memory of every kind that the program knows by a
// pointer.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>

#include "core/block.h"
#include "core/window.h"

namespace ipclab::model {

struct Chunk;

enum class Kind {
  kDevice,      ///< cuMemAlloc
  kImported,    ///< cuIpcOpenMemHandle
  kManaged,     ///< cuMemAllocManaged
  kHost,        ///< cuMemHostAlloc
  kRegistered,  ///< cuMemHostRegister
  kVariable,    ///< a __device__ or __constant__ variable
  kPooled,      ///< of a pool on a device, also an imported one
  kMapped,      ///< cuMemMap
  kExternal,    ///< cuExternalMemoryGetMappedBuffer
  kGraph,       ///< of an allocation node, from its launch until its free
};

struct Allocation {
  uint64_t address = 0;
  uint64_t size = 0;
  Kind kind = Kind::kDevice;
  CUcontext context = nullptr;
  int gpu = 0;                   ///< where the bytes are; -1: on the host
  std::shared_ptr<Block> block;  ///< null for host and registered memory
  uint64_t mapping = 0;          ///< address of the block or mapping
  uint64_t mapping_size = 0;
  uint64_t export_id = 0;  ///< the id that a handle of this memory contains
  uint64_t buffer_id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID
  unsigned flags = 0;      ///< of cuMemHostAlloc or a similar call
  bool sync_memops = false;
  /// The pool from which the memory was allocated or imported; null for all
  /// other memory. Host and managed pools have memory of kind kHost and
  /// kManaged.
  CUmemoryPool pool = nullptr;
  std::shared_ptr<Chunk> chunk;  ///< of a mapping
  Access host_access = kNone;    ///< of a mapping

  /// Memory of a context that begins at the beginning of its mapping.
  static Allocation of(CUcontext context, uint64_t address, uint64_t size,
                       Kind kind);

  uint64_t end() const { return address + size; }
  uint64_t offset() const { return address - mapping; }
  bool on_host() const {
    return kind == Kind::kHost || kind == Kind::kRegistered ||
           (kind == Kind::kMapped && gpu < 0);
  }
};

/// A number for CU_POINTER_ATTRIBUTE_BUFFER_ID.
uint64_t next_buffer_id();

/// All allocations of the process by address. A part of the machine
/// (core/machine.h), so its caller holds the lock.
class Allocations {
 public:
  using Entries = std::map<uint64_t, Allocation>;

  /// Adds memory. If it has no buffer id, it gets one.
  Allocation& add(Allocation allocation);
  void remove(uint64_t address) { entries_.erase(address); }

  /// The allocation that contains an address, or null.
  Allocation* find(uint64_t address);
  /// The allocation that begins at an address, or null.
  Allocation* find_begin(uint64_t address);
  bool overlaps(uint64_t address, uint64_t size);

  Entries::iterator begin() { return entries_.begin(); }
  Entries::iterator end() { return entries_.end(); }
  /// The first entry that begins at or after an address.
  Entries::iterator from(uint64_t address) {
    return entries_.lower_bound(address);
  }

 private:
  Entries entries_;
};

}  // namespace ipclab::model
