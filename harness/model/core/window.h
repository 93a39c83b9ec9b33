// SPDX-License-Identifier: Apache-2.0
// Addresses. There are two windows. The program gets addresses of the first
// window, in which the host faults as it does on hardware. In the second
// window, the alias, the same bytes are really mapped. One permission byte for
// each page and GPU says what a kernel may do. Peer access, closed imports,
// freed memory, cuMemSetAccess and pool access all change these bytes.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "core/block.h"

namespace ipclab::model {

/// The access that a GPU or the host has to memory.
enum Access : uint8_t {
  kNone = 0,
  kRead = 1,
  kReadWrite = 3,
  kAsk = 4,  ///< the interpreter looks up the memory of every access
};

/// Parts of the window, each for other kinds of memory. If addresses of one
/// part are freed, no memory of another part gets them. So a kernel that still
/// uses those addresses faults.
enum class Area { kLarge, kImported, kShared, kOther };

/// Keeps the bytes of a range at their place while queued work needs them. Do
/// not hold the lock of the machine or of a stream when you release a Pin.
using Pin = std::shared_ptr<const void>;

/// A part of the machine (core/machine.h), so its caller holds the lock.
class Window {
 public:
  /// Reserves both windows for `gpus` visible GPUs. Returns
  /// CUDA_ERROR_OUT_OF_MEMORY, with a line that says what to do, if the process
  /// may not have that many addresses.
  CUresult reserve(int gpus);

  /// A free range of an area, or 0.
  uint64_t take(Area area, uint64_t size);
  void give_back(uint64_t address, uint64_t size);

  bool contains(uint64_t address) const { return address - begin_ < size_; }
  /// The place where the bytes of an address of the window really are.
  void* alias(uint64_t address) const;

  /// Maps a block into the alias (and, for memory that the host may touch, at
  /// the address itself).
  bool map(uint64_t address, const Block& block, uint64_t size, bool for_host);
  /// Does the same for a part of any memfd; `offset` is a multiple of the
  /// host's page size.
  bool map(uint64_t address, int descriptor, uint64_t offset, uint64_t size,
           bool for_host);
  /// After this, an access to the range faults. Its addresses stay reserved.
  void unmap(uint64_t address, uint64_t size);
  /// unmap(), and the addresses become free. If a pin keeps the range, both
  /// bytes and addresses are released only with the last pin.
  void retire(uint64_t address, uint64_t size);
  Pin pin(uint64_t address, uint64_t size);

  /// The access of the host to a mapped block, at the address itself.
  void set_host_access(uint64_t address, const Block& block, uint64_t size,
                       Access access);
  /// The access of the kernels of one visible GPU to a range.
  void set_access(int ordinal, uint64_t address, uint64_t size, Access access);
  Access access(int ordinal, uint64_t address) const;

  /// The interpreter reads this without the lock while a kernel runs.
  struct View {
    uint64_t begin;
    uint64_t size;
    int64_t alias;          ///< add this to an address
    const uint8_t* access;  ///< one byte for each page
  };
  View view(int ordinal) const;

 private:
  struct Piece {
    uint64_t address;
    uint64_t size;
  };
  static bool overlap(const Piece& a, const Piece& b);
  uint64_t first_page(const Piece& piece) const;
  uint64_t end_page(const Piece& piece) const;
  bool map_for_host(const Piece& piece, int protection, int descriptor,
                    off_t offset);
  Area area_of(uint64_t address) const;
  bool is_pinned(const Piece& piece) const;
  void unpin(std::list<Piece>::iterator pin);
  void close(const Piece& piece);
  void close_to_host(const Piece& piece);
  void take_bytes_away(const Piece& piece);

  uint64_t begin_ = 0;
  uint64_t size_ = 0;
  uint64_t alias_ = 0;
  std::map<uint64_t, uint64_t> free_[4];  // by area: address -> bytes
  std::vector<uint8_t*> access_;          // for each visible GPU
  uint8_t* host_ = nullptr;  // for each page: was it mapped for the host?
  std::list<Piece> pinned_;
  std::vector<Piece> retired_;  // a pin keeps these
};

}  // namespace ipclab::model
