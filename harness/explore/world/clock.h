// Order and places: vector clocks, and sets of ranges of bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace ipclab::explore {

/// A vector clock: how many events of each lane come before. Lane 0 is the
/// host: the parent makes one step after the other, so all hosts of a program
/// have one order. Each stream has a lane of its own.
class Clock {
 public:
  /// How many events of a lane come before.
  uint32_t at(int lane) const {
    return static_cast<size_t>(lane) < counts_.size() ? counts_[lane] : 0;
  }
  void set(int lane, uint32_t count) {
    if (static_cast<size_t>(lane) >= counts_.size()) counts_.resize(lane + 1);
    counts_[lane] = count;
  }
  /// What comes before `other` now also comes before this.
  void join(const Clock& other) {
    if (other.counts_.size() > counts_.size())
      counts_.resize(other.counts_.size());
    for (size_t i = 0; i < other.counts_.size(); ++i)
      counts_[i] = std::max(counts_[i], other.counts_[i]);
  }

 private:
  std::vector<uint32_t> counts_;
};

/// A set of bytes, as ranges [from, to) that do not touch each other.
class Ranges {
 public:
  using Range = std::pair<int64_t, int64_t>;

  void add(int64_t from, int64_t to) {
    if (from >= to) return;
    const auto first =
        std::find_if(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return range.second >= from; });
    auto last = first;
    while (last != ranges_.end() && last->first <= to) {
      from = std::min(from, last->first);
      to = std::max(to, last->second);
      ++last;
    }
    ranges_.insert(ranges_.erase(first, last), {from, to});
  }
  void remove(int64_t from, int64_t to) {
    std::vector<Range> left;
    for (const Range& range : ranges_) {
      if (range.first < std::min(from, range.second))
        left.emplace_back(range.first, std::min(from, range.second));
      if (std::max(to, range.first) < range.second)
        left.emplace_back(std::max(to, range.first), range.second);
    }
    ranges_ = std::move(left);
  }
  bool contains(int64_t from, int64_t to) const {
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
      return range.first <= from && to <= range.second;
    });
  }
  const std::vector<Range>& all() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

}  // namespace ipclab::explore
