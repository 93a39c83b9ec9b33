// SPDX-License-Identifier: Apache-2.0
// Vector clocks for `ipclab model --race`. A clock says which work comes before
// some other work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ipclab::model::race {

constexpr uint32_t kActor = 1u << 31;  ///< Entry::step names an actor
constexpr uint32_t kWarp = 1u << 16;   ///< Entry::thread names a warp
constexpr uint32_t kAllThreads = ~0u;  ///< Entry::thread: all of the block

/// What is known of one actor (a stream, whose steps are numbered from 1), or
/// of a running step: a thread, a warp or a block up to some time of it.
struct Entry {
  uint32_t step;
  uint32_t block;
  uint32_t thread;
  uint32_t clock;
};

class Clock {
 public:
  /// The last step of an actor that comes before; 0 if there is none.
  uint32_t of_actor(uint32_t actor) const;
  /// Up to which time of a thread its work comes before; 0: nothing.
  uint32_t of_thread(uint32_t step, uint32_t block, uint32_t thread) const;
  /// The same for all threads of a block, as far as one entry says it.
  uint32_t of_block(uint32_t step, uint32_t block) const;
  /// Is anything of a running step known?
  bool knows_of(uint32_t step) const;

  void raise(const Entry& entry);
  /// Afterwards this clock knows all that both knew.
  void join(const Entry* begin, const Entry* end);
  void join(const Clock& other);
  bool contains(const Entry* begin, const Entry* end) const;

  const std::vector<Entry>& entries() const { return entries_; }
  template <class Condition>
  void remove_if(Condition condition) {
    std::size_t kept = 0;
    for (const Entry& entry : entries_)
      if (!condition(entry)) entries_[kept++] = entry;
    entries_.resize(kept);
  }

 private:
  std::vector<Entry> entries_;  ///< sorted by step, block, thread
};

}  // namespace ipclab::model::race
