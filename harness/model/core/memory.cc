// SPDX-License-Identifier: Apache-2.0
// Allocations: device memory with its sub-allocation, pinned, managed and
// registered memory.
#include "core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "core/device.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/profile.h"
#include "core/stream.h"

namespace ipclab::model {
namespace {

// A request up to this size shares a block; observed on an H200.
constexpr uint64_t kLargestShared = 1 << 20;
// From this size on an allocation counts what other processes hold.
constexpr uint64_t kCountOthers = 256 << 20;

// A 2 MiB block that small allocations share.
struct SharedBlock {
  std::shared_ptr<Block> block;
  CUcontext context = nullptr;
  Kind kind = Kind::kDevice;          // variables have blocks of their own
  std::map<uint64_t, uint64_t> free;  // offset -> bytes
  int live = 0;
};

std::map<uint64_t, SharedBlock>& shared_blocks() {  // by address
  static auto& blocks = *new std::map<uint64_t, SharedBlock>;
  return blocks;
}

std::map<int, uint64_t>& bytes_of_gpu() {  // of this process
  static auto& bytes = *new std::map<int, uint64_t>;
  return bytes;
}

// The size of the block that an allocation shares, 0 if it gets its own.
uint64_t shared_block_size(uint64_t size) {
  if (size <= kLargestShared) return kPage;
  return 0;
}

uint64_t total_bytes(int) { return profile().memory_gib << 30; }

Allocation& insert(CUcontext context, uint64_t address, uint64_t size,
                   Kind kind) {
  Allocation allocation;
  allocation.address = address;
  allocation.size = size;
  allocation.kind = kind;
  allocation.context = context;
  allocation.gpu = context->gpu;
  allocation.mapping = address;
  allocation.mapping_size = size;
  allocation.buffer_id = next_buffer_id();
  return allocations()[address] = allocation;
}

// A new block of the context's GPU at an address of its own; 0 if none.
uint64_t new_block(CUcontext context, Area area, uint64_t size,
                   std::shared_ptr<Block>* block) {
  if (!take_bytes(context->gpu, size)) return 0;
  const uint64_t address = take_addresses(area, size);
  if (address != 0) *block = Block::create(context->gpu, size);
  if (*block == nullptr || !map_block(address, **block, size, false)) {
    if (address != 0) give_back_addresses(address, size);
    give_back_bytes(context->gpu, size);
    return 0;
  }
  grant(context->gpu, address, size);
  return address;
}

void drop_block(uint64_t address, const Block& block) {
  retire(address, block.size());
  give_back_bytes(block.gpu(), block.size());
}

// The unit in which a shared block is divided.
uint64_t unit_of(uint64_t block_size) {
  return block_size == kPage ? kGranule : kPage;
}

// A place for a small allocation in an existing block; 0 if there is none.
uint64_t take_shared(CUcontext context, Kind kind, uint64_t size,
                     uint64_t block_size) {
  for (auto& [address, shared] : shared_blocks()) {
    if (shared.context != context || shared.kind != kind ||
        shared.block->size() != block_size) {
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
      return address + offset;
    }
  }
  return 0;
}

void give_back_shared(const Allocation& allocation) {
  const auto entry = shared_blocks().find(allocation.mapping);
  SharedBlock& shared = entry->second;
  auto range =
      shared.free
          .emplace(allocation.offset(),
                   round_up(allocation.size, unit_of(shared.block->size())))
          .first;
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
  if (--shared.live > 0) return;
  drop_block(entry->first, *shared.block);
  shared_blocks().erase(entry);
}

// The caller holds the lock and has erased nothing yet.
void release(std::map<uint64_t, Allocation>::iterator entry) {
  const Allocation allocation = entry->second;
  allocations().erase(entry);
  switch (allocation.kind) {
    case Kind::kDevice:
    case Kind::kVariable:
      allocation.block->set_occupant(allocation.offset(), 0);
      if (shared_blocks().count(allocation.mapping) > 0) {
        give_back_shared(allocation);
      } else {
        drop_block(allocation.mapping, *allocation.block);
      }
      break;
    case Kind::kGraph:
      unmap(allocation.mapping, allocation.mapping_size);
      give_back_bytes(allocation.gpu, allocation.mapping_size);
      break;
    case Kind::kManaged:
    case Kind::kHost:
      retire(allocation.mapping, allocation.mapping_size);
      break;
    case Kind::kImported:    // closed by ipc.cc
    case Kind::kMapped:      // unmapped by vmm.cc
    case Kind::kPooled:      // freed by pool.cc
    case Kind::kRegistered:  // the program's own memory
      break;
  }
}

// The driver waits for the work that may still use the memory.
void wait_for_users(const Allocation& allocation) {
  device_drain(allocation.context->device);
}

}  // namespace

bool take_bytes(int gpu, uint64_t size) {
  const uint64_t total = total_bytes(gpu);
  uint64_t used = bytes_of_gpu()[gpu];
  if (size >= kCountOthers && size <= total) {
    used = std::max(used, counted_bytes(gpu));
  }
  if (size > total || used > total - size) return false;
  bytes_of_gpu()[gpu] += size;
  return true;
}

void give_back_bytes(int gpu, uint64_t size) { bytes_of_gpu()[gpu] -= size; }

uint64_t next_buffer_id() {
  static uint64_t next = 1;
  return next++;
}

std::map<uint64_t, Allocation>& allocations() {
  static auto& map = *new std::map<uint64_t, Allocation>;
  return map;
}

Allocation* find_allocation(uint64_t address) {
  auto next = allocations().upper_bound(address);
  if (next == allocations().begin()) return nullptr;
  Allocation& candidate = std::prev(next)->second;
  return address < candidate.address + candidate.size ? &candidate : nullptr;
}

void grant(int gpu, uint64_t address, uint64_t size) {
  for (size_t i = 0; i < devices().size(); ++i) {
    const Device& device = devices()[i];
    const bool reaches =
        device.gpu == gpu || device.primary->peers.count(gpu) > 0;
    if (reaches) {
      set_access(static_cast<int>(i), address, size, kReadWrite);
    }
  }
}

void grant_peer(CUcontext context, int gpu) {
  for (const auto& [address, allocation] : allocations()) {
    const bool on_device =
        allocation.kind == Kind::kDevice || allocation.kind == Kind::kVariable;
    if (!on_device || allocation.gpu != gpu) continue;
    set_access(context->device, allocation.mapping, allocation.mapping_size,
               kReadWrite);
  }
}

void revoke_peer(CUcontext context, int gpu) {
  for (const auto& [address, allocation] : allocations()) {
    const bool on_device =
        allocation.kind == Kind::kDevice || allocation.kind == Kind::kVariable;
    if (!on_device || allocation.gpu != gpu) continue;
    set_access(context->device, allocation.mapping, allocation.mapping_size,
               kNone);
  }
}

void free_memory_of(CUcontext context) {
  for (auto entry = allocations().begin(); entry != allocations().end();) {
    const auto next = std::next(entry);
    if (entry->second.context == context) release(entry);
    entry = next;
  }
}

CUresult memory_allocate(CUcontext context, uint64_t size, Kind kind,
                         uint64_t* address) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > total_bytes(context->gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(state_mutex());
  const uint64_t shared_size = shared_block_size(size);
  const uint64_t rounded = round_up(size, unit_of(shared_size));
  uint64_t place =
      shared_size != 0 ? take_shared(context, kind, rounded, shared_size) : 0;
  if (place == 0) {
    const uint64_t block_size =
        shared_size != 0 ? shared_size : round_up(size, kPage);
    std::shared_ptr<Block> block;
    place = new_block(context, shared_size != 0 ? Area::kShared : Area::kLarge,
                      block_size, &block);
    if (place == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (shared_size != 0) {
      shared_blocks()[place] = {block, context, kind, {{0, block_size}}, 0};
      place = take_shared(context, kind, rounded, shared_size);
    } else {
      Allocation& allocation = insert(context, place, size, kind);
      allocation.block = block;
      allocation.mapping_size = block_size;
    }
  }
  if (shared_size != 0) {
    const auto shared = std::prev(shared_blocks().upper_bound(place));
    Allocation& allocation = insert(context, place, size, kind);
    allocation.block = shared->second.block;
    allocation.mapping = shared->first;
    allocation.mapping_size = shared_size;
  }
  Allocation& allocation = allocations()[place];
  allocation.export_id = unique_id();
  allocation.block->set_occupant(allocation.offset(), allocation.export_id);
  *address = place;
  return CUDA_SUCCESS;
}

CUresult host_allocate(CUcontext context, uint64_t size, Kind kind,
                       unsigned flags, uint64_t* address) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state_mutex());
  const uint64_t rounded = round_up(size, kPage);
  const uint64_t place =
      rounded < size ? 0 : take_addresses(Area::kOther, rounded);
  if (place == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  // The mappings keep the memory; the descriptor is not needed any more.
  const std::shared_ptr<Block> block = Block::create(-1, rounded);
  if (block == nullptr || !map_block(place, *block, rounded, true)) {
    give_back_addresses(place, rounded);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (size_t i = 0; i < devices().size(); ++i) {
    set_access(static_cast<int>(i), place, rounded, kReadWrite);
  }
  Allocation& allocation = insert(context, place, size, kind);
  allocation.mapping_size = rounded;
  allocation.flags = flags;
  *address = place;
  return CUDA_SUCCESS;
}

CUresult memory_free(uint64_t address) {
  if (address == 0) return CUDA_SUCCESS;
  Allocation allocation;
  {
    const std::lock_guard lock(state_mutex());
    const auto entry = allocations().find(address);
    if (entry == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
    allocation = entry->second;
  }
  if (allocation.pool != nullptr) return pool_free(address, nullptr);
  if (allocation.kind != Kind::kDevice && allocation.kind != Kind::kManaged &&
      allocation.kind != Kind::kGraph) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wait_for_users(allocation);
  const std::lock_guard lock(state_mutex());
  const auto entry = allocations().find(address);
  if (entry == allocations().end() ||
      entry->second.buffer_id != allocation.buffer_id) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  release(entry);
  return CUDA_SUCCESS;
}

CUresult host_free(uint64_t address) {
  if (address == 0) return CUDA_SUCCESS;
  Allocation allocation;
  {
    const std::lock_guard lock(state_mutex());
    const auto entry = allocations().find(address);
    if (entry == allocations().end() || entry->second.kind != Kind::kHost ||
        entry->second.pool != nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    allocation = entry->second;
  }
  wait_for_users(allocation);
  const std::lock_guard lock(state_mutex());
  const auto entry = allocations().find(address);
  if (entry == allocations().end() || entry->second.kind != Kind::kHost) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  release(entry);
  return CUDA_SUCCESS;
}

CUresult memory_free_async(uint64_t address,
                           const std::shared_ptr<Stream>& stream) {
  if (address == 0) return CUDA_SUCCESS;
  uint64_t id = 0;
  {
    const std::lock_guard lock(state_mutex());
    const auto entry = allocations().find(address);
    if (entry == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
    const bool pooled = entry->second.pool != nullptr;
    if (!pooled && entry->second.kind != Kind::kDevice &&
        entry->second.kind != Kind::kGraph) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!pooled) id = entry->second.buffer_id;
  }
  if (id == 0) return pool_free(address, stream);
  stream->submit(
      {CU_GRAPH_NODE_TYPE_MEM_FREE,
       [address, id] {
         const std::lock_guard lock(state_mutex());
         const auto entry = allocations().find(address);
         if (entry != allocations().end() && entry->second.buffer_id == id) {
           release(entry);
         }
       }},
      true);
  return CUDA_SUCCESS;
}

CUresult graph_memory_allocate(CUcontext context, uint64_t address,
                               uint64_t size) {
  const std::lock_guard lock(state_mutex());
  const uint64_t bytes = round_up(size, kPage);
  if (find_allocation(address) != nullptr || !take_bytes(context->gpu, bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::shared_ptr<Block> block = Block::create(context->gpu, bytes);
  if (block == nullptr || !map_block(address, *block, bytes, false)) {
    give_back_bytes(context->gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  grant(context->gpu, address, bytes);
  Allocation& allocation = insert(context, address, size, Kind::kGraph);
  allocation.mapping_size = bytes;
  allocation.block = block;
  return CUDA_SUCCESS;
}

CUresult graph_memory_free(uint64_t address) {
  const std::lock_guard lock(state_mutex());
  const auto entry = allocations().find(address);
  if (entry == allocations().end() || entry->second.kind != Kind::kGraph) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  release(entry);
  return CUDA_SUCCESS;
}

void variable_free(uint64_t address) {
  const std::lock_guard lock(state_mutex());
  const auto entry = allocations().find(address);
  if (entry != allocations().end()) release(entry);
}

CUresult host_register(CUcontext context, uint64_t address, uint64_t size,
                       unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
      CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (address == 0 || size == 0 || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(state_mutex());
  const auto next = allocations().lower_bound(address);
  const bool overlaps =
      find_allocation(address) != nullptr ||
      (next != allocations().end() && next->first < address + size);
  if (overlaps) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (in_window(address)) return CUDA_ERROR_INVALID_VALUE;
  insert(context, address, size, Kind::kRegistered).flags = flags;
  return CUDA_SUCCESS;
}

CUresult host_unregister(uint64_t address) {
  {
    const std::lock_guard lock(state_mutex());
    const Allocation* found = find_allocation(address);
    if (found == nullptr || found->kind != Kind::kRegistered ||
        found->address != address) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
  }
  for (size_t i = 0; i < devices().size(); ++i) {
    device_drain(static_cast<int>(i));
  }
  const std::lock_guard lock(state_mutex());
  allocations().erase(address);
  return CUDA_SUCCESS;
}

void memory_info(int gpu, uint64_t* free_bytes, uint64_t* total) {
  *total = total_bytes(gpu);
  const uint64_t used = std::min(counted_bytes(gpu), *total);
  *free_bytes = *total - used;
}

}  // namespace ipclab::model
