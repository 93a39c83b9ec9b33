// SPDX-License-Identifier: Apache-2.0
// The reserved memory of a pool: its addresses, which of them are free, and
// which streams may get them. This class has only numbers and maps nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "core/stream.h"

namespace ipclab::model {

/// The free after which a range may be used. If it has no stream, every
/// allocation may use the range at any time.
using Freed = Ticket;

class PoolSpace {
 public:
  struct Piece {
    uint64_t address;
    uint64_t offset;  ///< in the pool's file
    uint64_t size;
  };

  /// Adds reserved memory, which every stream may get. Its address and size are
  /// multiples of kPage.
  void add(const Piece& piece);
  /// Takes `size` bytes (a multiple of `unit`) of free memory for which
  /// `usable` is true. Returns their address, which is in the smallest free
  /// range that is large enough; 0 if there is none. `after` receives the frees
  /// of that memory.
  uint64_t take(uint64_t size, uint64_t unit,
                const std::function<bool(const Freed&)>& usable,
                std::vector<Ticket>* after);
  void give(uint64_t address, uint64_t size, const Freed& freed);
  /// Lets every stream get a range of memory if `over` is true for the free of
  /// this range.
  void settle(const std::function<bool(const Freed&)>& over);
  /// Removes at most `limit` bytes of memory that every stream may get, in
  /// whole pages.
  std::vector<Piece> remove(uint64_t limit);
  uint64_t offset_of(uint64_t address) const;
  uint64_t reserved() const { return reserved_; }

 private:
  struct Range {
    uint64_t size;
    Freed freed;
  };
  using Ranges = std::map<uint64_t, Range>;
  bool touch(Ranges::const_iterator left, Ranges::const_iterator right) const;
  void cut(uint64_t address, uint64_t size);

  std::map<uint64_t, Piece> pieces_;  // by address
  Ranges free_;                       // by address
  uint64_t reserved_ = 0;
};

}  // namespace ipclab::model
