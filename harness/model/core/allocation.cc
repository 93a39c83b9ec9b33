// SPDX-License-Identifier: Apache-2.0
// The memory at an address.
#include "core/allocation.h"

#include <atomic>
#include <iterator>
#include <utility>

#include "core/device.h"

namespace ipclab::model {

Allocation Allocation::of(CUcontext context, uint64_t address, uint64_t size,
                          Kind kind) {
  Allocation allocation;
  allocation.address = address;
  allocation.size = size;
  allocation.kind = kind;
  allocation.context = context;
  allocation.gpu = context->gpu;
  allocation.mapping = address;
  allocation.mapping_size = size;
  return allocation;
}

uint64_t next_buffer_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

Allocation& Allocations::add(Allocation allocation) {
  if (allocation.buffer_id == 0) allocation.buffer_id = next_buffer_id();
  return entries_[allocation.address] = std::move(allocation);
}

Allocation* Allocations::find(uint64_t address) {
  auto next = entries_.upper_bound(address);
  if (next == entries_.begin()) return nullptr;
  Allocation& candidate = std::prev(next)->second;
  return address < candidate.end() ? &candidate : nullptr;
}

Allocation* Allocations::find_begin(uint64_t address) {
  const auto entry = entries_.find(address);
  return entry == entries_.end() ? nullptr : &entry->second;
}

bool Allocations::overlaps(uint64_t address, uint64_t size) {
  const auto next = from(address);
  return find(address) != nullptr ||
         (next != entries_.end() && next->first < address + size);
}

}  // namespace ipclab::model
