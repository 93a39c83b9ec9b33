// SPDX-License-Identifier: Apache-2.0
// Vector clocks.
#include "core/race_clock.h"

#include <algorithm>
#include <tuple>

namespace ipclab::model::race {
namespace {

bool before(const Entry& a, const Entry& b) {
  return std::tie(a.step, a.block, a.thread) <
         std::tie(b.step, b.block, b.thread);
}

bool same_key(const Entry& a, const Entry& b) {
  return !before(a, b) && !before(b, a);
}

}  // namespace

uint32_t Clock::of_actor(uint32_t actor) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(),
                                      Entry{kActor | actor, 0, 0, 0}, before);
  return found != entries_.end() && found->step == (kActor | actor)
             ? found->clock
             : 0;
}

uint32_t Clock::of_thread(uint32_t step, uint32_t block,
                          uint32_t thread) const {
  uint32_t clock = 0;
  for (auto entry = std::lower_bound(entries_.begin(), entries_.end(),
                                     Entry{step, block, 0, 0}, before);
       entry != entries_.end() && entry->step == step && entry->block == block;
       ++entry) {
    if (entry->thread == thread || entry->thread == kAllThreads ||
        entry->thread == (kWarp | thread / 32)) {
      clock = std::max(clock, entry->clock);
    }
  }
  return clock;
}

uint32_t Clock::of_block(uint32_t step, uint32_t block) const {
  const Entry wanted{step, block, kAllThreads, 0};
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), wanted, before);
  return found != entries_.end() && same_key(*found, wanted) ? found->clock : 0;
}

bool Clock::knows_of(uint32_t step) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(),
                                      Entry{step, 0, 0, 0}, before);
  return found != entries_.end() && found->step == step;
}

void Clock::raise(const Entry& entry) { join(&entry, &entry + 1); }

bool Clock::contains(const Entry* begin, const Entry* end) const {
  auto mine = entries_.begin();
  for (const Entry* other = begin; other != end; ++other) {
    mine = std::lower_bound(mine, entries_.end(), *other, before);
    if (mine == entries_.end() || !same_key(*mine, *other) ||
        mine->clock < other->clock) {
      return false;
    }
  }
  return true;
}

void Clock::join(const Entry* begin, const Entry* end) {
  if (contains(begin, end)) return;
  std::vector<Entry> joined;
  joined.reserve(entries_.size() + static_cast<size_t>(end - begin));
  auto mine = entries_.begin();
  for (const Entry* other = begin; other != end; ++other) {
    while (mine != entries_.end() && before(*mine, *other)) {
      joined.push_back(*mine++);
    }
    joined.push_back(*other);
    if (mine != entries_.end() && same_key(*mine, *other)) {
      joined.back().clock = std::max(mine->clock, other->clock);
      ++mine;
    }
  }
  joined.insert(joined.end(), mine, entries_.end());
  entries_ = std::move(joined);
}

void Clock::join(const Clock& other) {
  join(other.entries_.data(), other.entries_.data() + other.entries_.size());
}

}  // namespace ipclab::model::race
