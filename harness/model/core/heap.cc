// SPDX-License-Identifier: Apache-2.0
// The heap of kernels.
#include "core/heap.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/capacity.h"
#include "core/device.h"
#include "core/machine.h"
#include "core/peers.h"

namespace ipclab::model {
namespace {

constexpr uint64_t kAlignment = 16;

// Makes the heap of a context; false if there is no memory for it.
bool make_heap(Machine& machine, CUcontext context, uint64_t limit,
               Heap* heap) {
  const uint64_t size = round_up(std::max(limit, uint64_t{1}), kPage);
  if (!take_bytes(context->gpu, size)) return false;
  heap->block = Block::create(context->gpu, size);
  heap->address = machine.window.take(Area::kLarge, size);
  if (heap->block == nullptr || heap->address == 0 ||
      !machine.window.map(heap->address, *heap->block, size, false)) {
    if (heap->address != 0) machine.window.give_back(heap->address, size);
    give_back_bytes(context->gpu, size);
    return false;
  }
  grant(machine, context->gpu, heap->address, size);
  heap->free[heap->address] = size;
  return true;
}

}  // namespace

uint64_t heap_allocate(CUcontext context, uint64_t size) {
  if (size == 0) return 0;
  const uint64_t limit = context_limit(context, CU_LIMIT_MALLOC_HEAP_SIZE);
  const Locked machine;
  auto entry = machine->heaps.find(context);
  if (entry == machine->heaps.end()) {
    Heap heap;
    if (!make_heap(*machine, context, limit, &heap)) return 0;
    entry = machine->heaps.emplace(context, std::move(heap)).first;
  }
  Heap& heap = entry->second;
  if (size > heap.block->size()) return 0;
  size = round_up(size, kAlignment);
  const auto range =
      std::find_if(heap.free.begin(), heap.free.end(),
                   [size](const auto& free) { return free.second >= size; });
  if (range == heap.free.end()) return 0;
  const auto [address, bytes] = *range;
  heap.free.erase(range);
  if (bytes > size) heap.free[address + size] = bytes - size;
  heap.used[address] = size;
  return address;
}

void heap_free(CUcontext context, uint64_t address) {
  const Locked machine;
  const auto entry = machine->heaps.find(context);
  if (entry == machine->heaps.end()) return;
  Heap& heap = entry->second;
  const auto used = heap.used.find(address);
  if (used == heap.used.end()) return;
  auto range = heap.free.emplace(address, used->second).first;
  heap.used.erase(used);
  const auto next = std::next(range);
  if (next != heap.free.end() && range->first + range->second == next->first) {
    range->second += next->second;
    heap.free.erase(next);
  }
  if (range == heap.free.begin()) return;
  const auto previous = std::prev(range);
  if (previous->first + previous->second != range->first) return;
  previous->second += range->second;
  heap.free.erase(range);
}

void heap_discard(Machine& machine, CUcontext context) {
  const auto entry = machine.heaps.find(context);
  if (entry == machine.heaps.end()) return;
  const Heap& heap = entry->second;
  machine.window.retire(heap.address, heap.block->size());
  give_back_bytes(heap.block->gpu(), heap.block->size());
  machine.heaps.erase(entry);
}

}  // namespace ipclab::model
