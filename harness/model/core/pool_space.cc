// SPDX-License-Identifier: Apache-2.0
// The reserved memory of a pool.
#include "core/pool_space.h"

#include <algorithm>
#include <iterator>

#include "core/block.h"

namespace ipclab::model {

void PoolSpace::add(const Piece& piece) {
  reserved_ += piece.size;
  free_[piece.address] = {piece.size, {}};
  const auto next = pieces_.upper_bound(piece.address);
  if (next != pieces_.begin()) {
    Piece& left = std::prev(next)->second;
    if (left.address + left.size == piece.address &&
        left.offset + left.size == piece.offset) {
      left.size += piece.size;
      return;
    }
  }
  pieces_[piece.address] = piece;
}

// Two ranges of different pieces do not touch: their addresses may be
// neighbours, but their offsets in the file are not.
bool PoolSpace::touch(Ranges::const_iterator left,
                      Ranges::const_iterator right) const {
  return left->first + left->second.size == right->first &&
         pieces_.count(right->first) == 0;
}

uint64_t PoolSpace::take(uint64_t size, uint64_t unit,
                         const std::function<bool(const Freed&)>& usable,
                         std::vector<Ticket>* after) {
  uint64_t best = 0;
  uint64_t best_bytes = ~uint64_t{0};
  for (auto first = free_.begin(); first != free_.end();) {
    if (!usable(first->second.freed)) {
      ++first;
      continue;
    }
    auto last = first;
    auto next = std::next(first);
    while (next != free_.end() && touch(last, next) &&
           usable(next->second.freed)) {
      last = next++;
    }
    const uint64_t begin = round_up(first->first, unit);
    const uint64_t end = last->first + last->second.size;
    const uint64_t bytes = end - first->first;
    if (begin + size <= end && bytes < best_bytes) {
      best = begin;
      best_bytes = bytes;
    }
    first = next;
  }
  if (best == 0) return 0;
  for (const auto& [address, range] : free_) {
    const bool overlaps = address < best + size && best < address + range.size;
    if (overlaps && range.freed.stream != nullptr) {
      after->push_back(range.freed);
    }
  }
  cut(best, size);
  return best;
}

// Removes [address, address + size) from the free ranges that cover it.
void PoolSpace::cut(uint64_t address, uint64_t size) {
  const uint64_t end = address + size;
  auto range = std::prev(free_.upper_bound(address));
  while (range != free_.end() && range->first < end) {
    const uint64_t begin = range->first;
    const Range old = range->second;
    range = free_.erase(range);
    if (begin < address) free_[begin] = {address - begin, old.freed};
    if (begin + old.size > end) {
      free_[end] = {begin + old.size - end, old.freed};
    }
  }
}

void PoolSpace::give(uint64_t address, uint64_t size, const Freed& freed) {
  free_[address] = {size, freed};
}

void PoolSpace::settle(const std::function<bool(const Freed&)>& over) {
  for (auto& [address, range] : free_) {
    if (range.freed.stream != nullptr && over(range.freed)) range.freed = {};
  }
  for (auto range = free_.begin(); range != free_.end();) {
    const auto next = std::next(range);
    const bool join = next != free_.end() && touch(range, next) &&
                      range->second.freed.stream == nullptr &&
                      next->second.freed.stream == nullptr;
    if (join) {
      range->second.size += next->second.size;
      free_.erase(next);
    } else {
      range = next;
    }
  }
}

std::vector<PoolSpace::Piece> PoolSpace::remove(uint64_t limit) {
  limit = limit / kPage * kPage;
  std::vector<Piece> removed;
  for (const auto& [address, range] : free_) {
    const uint64_t begin = round_up(address, kPage);
    const uint64_t end = (address + range.size) / kPage * kPage;
    if (range.freed.stream != nullptr || limit == 0 || begin >= end) continue;
    const uint64_t size = std::min(end - begin, limit);
    removed.push_back({end - size, offset_of(end - size), size});
    limit -= size;
  }
  for (const Piece& piece : removed) {
    cut(piece.address, piece.size);
    reserved_ -= piece.size;
    // The rest of the piece stays.
    const auto entry = std::prev(pieces_.upper_bound(piece.address));
    const Piece old = entry->second;
    pieces_.erase(entry);
    const uint64_t before = piece.address - old.address;
    const uint64_t behind = old.size - before - piece.size;
    if (before > 0) pieces_[old.address] = {old.address, old.offset, before};
    if (behind > 0) {
      const uint64_t end = piece.address + piece.size;
      pieces_[end] = {end, piece.offset + piece.size, behind};
    }
  }
  return removed;
}

uint64_t PoolSpace::offset_of(uint64_t address) const {
  const Piece& piece = std::prev(pieces_.upper_bound(address))->second;
  return piece.offset + (address - piece.address);
}

}  // namespace ipclab::model
