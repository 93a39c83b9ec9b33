// SPDX-License-Identifier: Apache-2.0
// Pools: the memory that they reserve, lend and get back in the order of
// streams.
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "core/capacity.h"
#include "core/choice.h"
#include "core/device.h"
#include "core/graph.h"
#include "core/machine.h"
#include "core/pool.h"
#include "core/profile.h"
#include "core/race_memory.h"

namespace ipclab::model {
namespace {

// Allocations up to this size share pages; larger allocations have their own
// pages.
constexpr uint64_t kLargestInSharedPage = 1 << 20;

bool ipc_capable(const CUmemPoolHandle_st& pool) {
  return pool.properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
}

// "IPC pools do not support releasing physical blocks back to the OS."
bool can_release(const CUmemPoolHandle_st& pool) {
  return !ipc_capable(pool) || profile().driver_580 ||
         chosen(Choice::kPoolsRelease);
}

// ---- reserved memory

void set_reserved(CUmemPoolHandle_st* pool, uint64_t bytes) {
  pool->reserved.set(bytes);
  if (!pool->imported) pool->file->count(bytes);
}

bool grow(Machine& machine, CUmemPoolHandle_st* pool, uint64_t size) {
  size = round_up(size, kPage);
  const uint64_t reserved = pool->space.reserved();
  const uint64_t limit = round_up(pool->properties.maxSize, kPage);
  if (limit != 0 && reserved + size > limit) return false;
  if (!take_bytes(pool->gpu, size)) return false;
  const uint64_t address = machine.window.take(Area::kLarge, size);
  const uint64_t offset = address != 0 ? pool->file->grow(size) : 0;
  const bool for_host = pool->gpu < 0 || is_managed(pool->properties);
  if (offset == 0 || !machine.window.map(address, pool->file->descriptor(),
                                         offset, size, for_host)) {
    if (address != 0) machine.window.give_back(address, size);
    give_back_bytes(pool->gpu, size);
    return false;
  }
  pool->space.add({address, offset, size});
  set_reserved(pool, pool->space.reserved());
  return true;
}

void shrink(Machine& machine, CUmemPoolHandle_st* pool,
            uint64_t bytes_to_keep) {
  const uint64_t reserved = pool->space.reserved();
  if (reserved <= bytes_to_keep) return;
  for (const PoolSpace::Piece& piece :
       pool->space.remove(reserved - bytes_to_keep)) {
    machine.window.retire(piece.address, piece.size);
    // After a pool was destroyed, its memory belongs to its importers as long
    // as they have the pool.
    if (!pool->destroyed) pool->file->discard(piece.offset, piece.size);
    give_back_bytes(pool->gpu, piece.size);
  }
  set_reserved(pool, pool->space.reserved());
}

// Grows the pool. If necessary, it first releases free pieces that are too
// small.
bool make_room(Machine& machine, CUmemPoolHandle_st* pool, uint64_t size) {
  if (grow(machine, pool, size)) return true;
  if (!can_release(*pool)) return false;
  shrink(machine, pool, 0);
  return grow(machine, pool, size);
}

// ---- frees

bool covers(const Order& order, const Freed& freed) {
  const auto known = order.find(freed.stream->id());
  return known != order.end() && known->second >= freed.number;
}

int policy(const CUmemPoolHandle_st& pool, CUmemPool_attribute which) {
  return pool.policies[which - 1];
}

// May an allocation get this memory, in a stream that is ordered after
// `behind`?
bool usable(const CUmemPoolHandle_st& pool, const Stream* stream,
            const Order& behind, const Freed& freed) {
  if (freed.stream == nullptr) return true;
  if (freed.stream.get() == stream) return true;
  if (policy(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES) != 0 &&
      covers(behind, freed)) {
    return true;
  }
  return policy(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) != 0 &&
         freed.stream->done(freed.number);
}

bool has_own_pages(const Lease& lease) {
  return lease.bytes % kPage == 0 && lease.mapping % kPage == 0;
}

bool is_lent_again(const CUmemPoolHandle_st& pool, const Lease& lease) {
  const auto next = pool.leases.lower_bound(lease.mapping);
  if (next != pool.leases.end() &&
      next->second->mapping < lease.mapping + lease.bytes) {
    return true;
  }
  if (next == pool.leases.begin()) return false;
  const Lease& previous = *std::prev(next)->second;
  return previous.mapping + previous.bytes > lease.mapping;
}

// Call this when the stream has reached the free.
void end_of_free(Machine& machine, const Pool& pool, const Lease& lease) {
  if (pool->imported) {
    machine.window.retire(lease.mapping, lease.bytes);
    set_reserved(pool.get(), pool->reserved.now - lease.bytes);
  } else if (has_own_pages(lease) && !is_lent_again(*pool, lease)) {
    for (size_t i = 0; i < devices().size(); ++i) {
      machine.window.set_access(static_cast<int>(i), lease.mapping, lease.bytes,
                                kNone);
    }
  }
  bury(machine, pool);
}

}  // namespace

// A destroyed pool is deleted when all of its memory is freed.
void bury(Machine& machine, const Pool& pool) {
  const bool idle = pool->leases.empty() && pool->unfinished_frees == 0;
  if (!pool->destroyed || !idle) return;
  if (!pool->imported) {
    pool->space.settle([](const Freed&) { return true; });
    shrink(machine, pool.get(), 0);
  }
  auto& pools = machine.pools;
  pools.erase(std::remove(pools.begin(), pools.end(), pool), pools.end());
}

void lend(Machine& machine, CUmemoryPool pool, uint64_t address, uint64_t size,
          std::shared_ptr<Lease> lease, int gpu) {
  pool->used.set(pool->used.now + lease->size);
  Allocation allocation;
  allocation.address = address;
  allocation.size = size;
  allocation.kind = is_managed(pool->properties) ? Kind::kManaged
                    : pool->gpu < 0              ? Kind::kHost
                                                 : Kind::kPooled;
  allocation.gpu = gpu;
  allocation.mapping = lease->mapping;
  allocation.mapping_size = lease->bytes;
  allocation.pool = pool;
  machine.memory.add(std::move(allocation));
  pool->leases[address] = std::move(lease);
}

namespace {
// "During stream capture, this function results in the creation of an
// allocation node. In this case, the allocation is owned by the graph instead
// of the memory pool. The memory pool's properties are used to set the node's
// creation parameters." (cuMemAllocAsync)
CUresult captured_allocation(CUmemoryPool handle,
                             const std::shared_ptr<Stream>& stream,
                             uint64_t size, uint64_t* address) {
  CUmemPoolProps properties;
  {
    const Locked machine;
    const Pool pool = find_pool(*machine, handle);
    if (pool == nullptr || pool->imported) return CUDA_ERROR_INVALID_VALUE;
    properties = pool->properties;
  }
  return graph_capture_allocation(stream, properties, size, address);
}
}  // namespace

CUresult pool_allocate(CUmemoryPool handle,
                       const std::shared_ptr<Stream>& stream, uint64_t size,
                       uint64_t* address) {
  if (size > profile().memory_gib << 30) return CUDA_ERROR_OUT_OF_MEMORY;
  // The allocator is not supported if the address space is limited (Programming
  // Guide 4.3.5.5).
  rlimit addresses{};
  if (getrlimit(RLIMIT_AS, &addresses) == 0 &&
      addresses.rlim_cur != RLIM_INFINITY)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (stream->capturing()) {
    return captured_allocation(handle, stream, size, address);
  }
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (size == 0) {  // an H200 gives no address and no error
    *address = 0;
    return CUDA_SUCCESS;
  }
  const uint64_t unit = size <= kLargestInSharedPage ? kGranule : kPage;
  const auto lease = std::make_shared<Lease>();
  lease->bytes = round_up(size, unit);
  std::vector<Ticket> after;  // frees that the allocation must follow
  const Order behind = stream->order_from_now();
  const auto free_now = [&](const Freed& freed) {
    return usable(*pool, stream.get(), behind, freed);
  };
  uint64_t place = pool->space.take(lease->bytes, unit, free_now, &after);
  if (place == 0 && make_room(*machine, pool.get(), lease->bytes)) {
    place = pool->space.take(lease->bytes, unit, free_now, &after);
  }
  after.clear();
  if (place == 0 &&
      policy(*pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) != 0) {
    place = pool->space.take(
        lease->bytes, unit, [](const Freed&) { return true; }, &after);
  }
  if (place == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  lease->size = round_up(size, kGranule);
  lease->mapping = place;
  lease->offset = pool->space.offset_of(place);
  lend(*machine, pool.get(), place, size, lease,
       pool->gpu >= 0 ? pool->gpu : stream->context()->gpu);
  if (race::on()) race::renew(place, size);
  // A free without a stream may happen before the stream reaches the
  // allocation.
  stream->submit({CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                  [pool, lease] {
                    const Locked later;
                    if (lease->ended) return;
                    lease->ready = true;
                    grant_lease(*later, *pool, *lease);
                  }},
                 true, after);
  *address = place;
  return CUDA_SUCCESS;
}

CUresult pool_free(uint64_t address, const std::shared_ptr<Stream>& stream) {
  const Locked machine;
  const Allocation* found = machine->memory.find_begin(address);
  if (found == nullptr || found->pool == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto own =
      std::find_if(machine->pools.begin(), machine->pools.end(),
                   [&](const Pool& pool) { return pool.get() == found->pool; });
  const Pool pool = *own;
  const std::shared_ptr<Lease> lease = pool->leases[address];
  pool->leases.erase(address);
  lease->ended = stream == nullptr;
  machine->memory.remove(address);
  pool->used.set(pool->used.now - lease->size);

  Freed freed;
  if (stream != nullptr) {
    ++pool->unfinished_frees;
    freed = stream->submit_free({CU_GRAPH_NODE_TYPE_MEM_FREE, [pool, lease] {
                                   const Locked later;
                                   --pool->unfinished_frees;
                                   end_of_free(*later, pool, *lease);
                                 }});
  }
  if (pool->imported) {
    if (stream == nullptr) end_of_free(*machine, pool, *lease);
    return CUDA_SUCCESS;
  }
  pool->space.give(lease->mapping, lease->bytes, freed);
  if (stream == nullptr) end_of_free(*machine, pool, *lease);
  return CUDA_SUCCESS;
}

CUresult pool_trim(CUmemoryPool handle, uint64_t bytes_to_keep) {
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr || refuses_attributes(*pool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!can_release(*pool)) return CUDA_SUCCESS;
  if (!pool->imported) shrink(*machine, pool.get(), bytes_to_keep);
  return CUDA_SUCCESS;
}

namespace {
void synchronized(const std::function<bool(const Freed&)>& over) {
  const Locked machine;
  for (const Pool& pool : machine->pools) {
    if (pool->imported) continue;
    pool->space.settle(over);
    if (can_release(*pool)) {
      // All is done, also what other streams have freed, and nothing stays for
      // an allocation, so no policy of reuse is concerned.
      if (pool->release_threshold == 0 && pool->leases.empty() &&
          pool->unfinished_frees == 0)
        pool->space.settle([](const Freed&) { return true; });
      shrink(*machine, pool.get(), pool->release_threshold);
    }
  }
}
}  // namespace

void after_synchronize(const Order& frees) {
  synchronized([&](const Freed& freed) { return covers(frees, freed); });
}

void after_synchronize(CUcontext context) {
  synchronized([context](const Freed& freed) {
    return freed.stream->context() == context &&
           freed.stream->done(freed.number);
  });
}

}  // namespace ipclab::model
