// SPDX-License-Identifier: Apache-2.0
// Small allocations of cuMemAlloc share a 2 MiB block.
#include "core/suballocator.h"

#include <iterator>
#include <utility>

namespace ipclab::model {

Suballocator::Place Suballocator::take(const Owner& owner, uint64_t size) {
  size = round_up(size, kGranule);
  for (auto& [address, shared] : blocks_) {
    if (shared.owner.context != owner.context ||
        shared.owner.kind != owner.kind) {
      continue;
    }
    for (auto range = shared.free.begin(); range != shared.free.end();
         ++range) {
      if (range->second < size) continue;
      const uint64_t offset = range->first;
      const uint64_t rest = range->second - size;
      shared.free.erase(range);
      if (rest > 0) shared.free[offset + size] = rest;
      ++shared.live;
      return {address + offset, address, shared.block};
    }
  }
  return {};
}

void Suballocator::add(const Owner& owner, uint64_t address,
                       std::shared_ptr<Block> block) {
  blocks_[address] = {owner, std::move(block), {{0, kPage}}, 0};
}

bool Suballocator::give_back(uint64_t mapping, uint64_t offset, uint64_t size) {
  const auto entry = blocks_.find(mapping);
  Shared& shared = entry->second;
  auto range = shared.free.emplace(offset, round_up(size, kGranule)).first;
  const auto next = std::next(range);
  if (next != shared.free.end() &&
      range->first + range->second == next->first) {
    range->second += next->second;
    shared.free.erase(next);
  }
  if (range != shared.free.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      shared.free.erase(range);
    }
  }
  if (--shared.live > 0) return false;
  blocks_.erase(entry);
  return true;
}

}  // namespace ipclab::model
