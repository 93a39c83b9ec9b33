// SPDX-License-Identifier: Apache-2.0
// Pools: what they are, who may use them, and memory in the order of streams.
#include "core/pool.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "core/device.h"
#include "core/mutant.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

// Up to this size allocations share pages; larger ones have theirs alone.
constexpr uint64_t kLargestShared = 1 << 20;

uint64_t up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

bool managed(const CUmemPoolProps& properties) {
  return properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

bool ipc_capable(const CUmemPoolHandle_st& pool) {
  return pool.properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
}

// "IPC pools do not support releasing physical blocks back to the OS."
bool can_release(const CUmemPoolHandle_st& pool) {
  return !ipc_capable(pool) || profile().driver_580 ||
         mutant("ok-trim-releases");
}

bool refuses_attributes(const CUmemPoolHandle_st& pool) {
  return pool.imported && profile().driver_580;
}

// ---- places

struct Place {
  Pool preset;
  Pool current;
};
using PlaceName = std::tuple<int, int, int>;

std::map<PlaceName, Place>& places() {
  static auto& map = *new std::map<PlaceName, Place>;
  return map;
}

// The model's host has one NUMA node.
bool exists(CUmemLocation location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 &&
             location.id < static_cast<int>(devices().size());
    case CU_MEM_LOCATION_TYPE_HOST:
      return true;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id == 0;
    default:
      return false;
  }
}

PlaceName name_of(CUmemLocation location, CUmemAllocationType type) {
  const bool numbered = location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
                        location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  return {location.type, numbered ? location.id : 0, type};
}

Pool make_pool(const CUmemPoolProps& properties) {
  auto pool = std::make_shared<CUmemPoolHandle_st>();
  pool->properties = properties;
  CUmemLocation location = properties.location;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (!exists(location)) location.id = 0;  // only a mutant comes here
    location.id = devices()[static_cast<size_t>(location.id)].gpu;
    pool->gpu = location.id;
  }
  pool->file = PoolFile::create(location, properties.handleTypes);
  if (pool->file == nullptr) return nullptr;
  for (std::atomic<int>& policy : pool->file->page().policies) {
    policy = !mutant("policy-default-off");
  }
  return pool;
}

CUresult find_place(CUmemLocation location, CUmemAllocationType type,
                    Place** place) {
  if (!profile().pools) return CUDA_ERROR_NOT_SUPPORTED;
  const bool nowhere = type == CU_MEM_ALLOCATION_TYPE_MANAGED &&
                       location.type == CU_MEM_LOCATION_TYPE_NONE;
  const bool known = type == CU_MEM_ALLOCATION_TYPE_PINNED ||
                     type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if ((!known || (!exists(location) && !nowhere)) &&
      !mutant("location-pool-unchecked")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *place = &places()[name_of(location, type)];
  if ((*place)->preset != nullptr) return CUDA_SUCCESS;
  CUmemPoolProps properties{};
  properties.allocType = type;
  properties.location = location;
  const Pool pool = make_pool(properties);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  pool->is_default = true;
  pools().push_back(pool);
  (*place)->preset = (*place)->current = pool;
  return CUDA_SUCCESS;
}

// ---- access

Access access_of(const CUmemPoolHandle_st& pool, int ordinal) {
  const Device& device = devices()[static_cast<size_t>(ordinal)];
  const auto set = pool.access.find(ordinal);
  const bool revoked =
      set != pool.access.end() && mutant("resident-access-revoked");
  const bool inherited =
      pool.imported && mutant("import-inherits-access") &&
      (pool.file->page().gpus & (1u << static_cast<unsigned>(device.gpu))) != 0;
  const bool peer =
      mutant("pool-follows-peer") && device.primary->peers.count(pool.gpu) > 0;
  if (managed(pool.properties) || (pool.gpu == device.gpu && !revoked) ||
      inherited || peer) {
    return kReadWrite;
  }
  return set == pool.access.end() ? kNone : set->second;
}

bool reaches(const CUmemPoolHandle_st& pool, int ordinal) {
  const int gpu = devices()[static_cast<size_t>(ordinal)].gpu;
  return pool.gpu < 0 || gpu == pool.gpu || can_access_peer(gpu, pool.gpu) ||
         mutant("setaccess-any-device");
}

// ---- reserved memory

void set_reserved(CUmemPoolHandle_st* pool, uint64_t bytes) {
  pool->reserved.set(bytes);
  if (!pool->imported) pool->file->page().reserved = bytes;
}

void set_used(CUmemPoolHandle_st* pool, uint64_t bytes) {
  pool->used.set(bytes);
  if (!pool->imported) pool->file->page().used = bytes;
}

bool grow(CUmemPoolHandle_st* pool, uint64_t size) {
  size = up(size, kPage);
  const uint64_t reserved = pool->space.reserved();
  const uint64_t limit = up(pool->properties.maxSize, kPage);
  if (limit != 0 && reserved + size > limit && !mutant("maxsize-ignored")) {
    return false;
  }
  const bool on_host = pool->gpu < 0;
  if (!on_host && !take_bytes(pool->gpu, size)) return false;
  const uint64_t address = take_addresses(Area::kLarge, size);
  const uint64_t offset = address != 0 ? pool->file->grow(size) : 0;
  const bool for_host = on_host || managed(pool->properties);
  if (offset == 0 || !map_descriptor(address, pool->file->descriptor(), offset,
                                     size, for_host)) {
    if (address != 0) give_back_addresses(address, size);
    if (!on_host) give_back_bytes(pool->gpu, size);
    return false;
  }
  pool->space.add({address, offset, size});
  set_reserved(pool, pool->space.reserved());
  return true;
}

void shrink(CUmemPoolHandle_st* pool, uint64_t bytes_to_keep) {
  const uint64_t reserved = pool->space.reserved();
  if (reserved <= bytes_to_keep) return;
  for (const PoolSpace::Piece& piece :
       pool->space.remove(reserved - bytes_to_keep)) {
    unmap(piece.address, piece.size);
    give_back_addresses(piece.address, piece.size);
    // After its end a pool's memory is its importers' as long as they hold it.
    if (!pool->destroyed) pool->file->discard(piece.offset, piece.size);
    if (pool->gpu >= 0) give_back_bytes(pool->gpu, piece.size);
  }
  set_reserved(pool, pool->space.reserved());
}

// A destroyed pool goes when nobody can use its memory any more.
void bury(const Pool& pool) {
  const bool idle = pool->leases.empty() && pool->unfinished_frees == 0;
  if (!pool->destroyed || !(idle || mutant("destroy-frees-live"))) return;
  if (!pool->imported) {
    for (const auto& [address, lease] : pool->leases) {
      allocations().erase(address);
      pool->space.give(lease->mapping, lease->bytes, {});
    }
    pool->leases.clear();
    pool->space.settle([](const Freed&) { return true; });
    shrink(pool.get(), 0);
  }
  pools().erase(std::remove(pools().begin(), pools().end(), pool),
                pools().end());
}

// ---- frees

bool covers(const Order& order, const Freed& freed) {
  const auto known = order.find(freed.stream->id());
  return known != order.end() && known->second >= freed.number;
}

int policy(const CUmemPoolHandle_st& pool, CUmemPool_attribute which) {
  return pool.file->page().policies[which - 1];
}

// May an allocation in a stream that is ordered behind `behind` have it?
bool usable(const CUmemPoolHandle_st& pool, const Stream* stream,
            const Order& behind, const Freed& freed) {
  if (freed.stream == nullptr || mutant("reuse-while-live")) return true;
  if (freed.stream.get() == stream) return !mutant("no-reuse-same-stream");
  if (policy(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES) != 0 &&
      (covers(behind, freed) || mutant("follow-event-unsafe"))) {
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

// The stream has come to the free.
void end_of_free(const Pool& pool, const Lease& lease) {
  if (pool->imported) {
    unmap(lease.mapping, lease.bytes);
    give_back_addresses(lease.mapping, lease.bytes);
    set_reserved(pool.get(), pool->reserved.now - lease.bytes);
  } else if (has_own_pages(lease) && !is_lent_again(*pool, lease)) {
    for (size_t i = 0; i < devices().size(); ++i) {
      set_access(static_cast<int>(i), lease.mapping, lease.bytes, kNone);
    }
  }
  bury(pool);
}

// What an importer's free takes away from others, for mutants.
void harm_others(const Pool& pool, const Lease& lease) {
  PoolPage& page = pool->file->page();
  if (mutant("import-free-frees-origin")) {
    pool->file->discard(lease.offset / 4096 * 4096, up(lease.size, 4096));
  }
  if (mutant("close-breaks-siblings")) pool->frees_seen = ++page.frees;
}

}  // namespace

std::vector<Pool>& pools() {
  static auto& list = *new std::vector<Pool>;
  return list;
}

Pool find_pool(CUmemoryPool handle) {
  for (const Pool& pool : pools()) {
    if (pool.get() == handle && !pool->destroyed) return pool;
  }
  return nullptr;
}

CUmemoryPool add_pool(Pool pool) {
  pools().push_back(std::move(pool));
  return pools().back().get();
}

void lend(CUmemoryPool pool, uint64_t address, uint64_t size,
          std::shared_ptr<Lease> lease, int gpu) {
  set_used(pool, pool->used.now + lease->size);
  Allocation allocation;
  allocation.address = address;
  allocation.size = size;
  allocation.kind = managed(pool->properties) ? Kind::kManaged
                    : pool->gpu < 0           ? Kind::kHost
                                              : Kind::kPooled;
  allocation.gpu = gpu;
  allocation.mapping = lease->mapping;
  allocation.mapping_size = lease->bytes;
  allocation.buffer_id = next_buffer_id(address);
  allocation.pool = pool;
  allocations()[address] = allocation;
  pool->leases[address] = std::move(lease);
}

void grant_lease(const CUmemPoolHandle_st& pool, const Lease& lease) {
  for (size_t i = 0; i < devices().size(); ++i) {
    const int ordinal = static_cast<int>(i);
    set_access(ordinal, lease.mapping, lease.bytes, access_of(pool, ordinal));
  }
}

CUresult check_pool_properties(const CUmemPoolProps& wanted) {
  constexpr unsigned kPosix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (!profile().pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (mutant("pool-props-unchecked")) return CUDA_SUCCESS;
  const unsigned handles = wanted.handleTypes;
  const bool shared = handles != CU_MEM_HANDLE_TYPE_NONE;
  if (wanted.win32SecurityAttributes != nullptr ||
      std::any_of(std::begin(wanted.reserved), std::end(wanted.reserved),
                  [](unsigned char byte) { return byte != 0; }) ||
      (wanted.usage & ~CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((handles & ~static_cast<unsigned>(profile().pool_handles)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (wanted.allocType) {
    case CU_MEM_ALLOCATION_TYPE_PINNED:
      break;
    case CU_MEM_ALLOCATION_TYPE_MANAGED:
      if (shared && !mutant("managed-pool-ipc-ok")) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (wanted.location.type == CU_MEM_LOCATION_TYPE_NONE) {
        return CUDA_SUCCESS;
      }
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (wanted.location.type == CU_MEM_LOCATION_TYPE_HOST && shared &&
      !mutant("host-ipc-ok")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (wanted.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
    return mutant("numa-current-ok") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (!exists(wanted.location)) return CUDA_ERROR_INVALID_VALUE;
  return (handles & ~kPosix) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

CUresult pool_create(const CUmemPoolProps& properties, CUmemoryPool* pool) {
  const std::lock_guard lock(state_mutex());
  if (CUresult error = check_pool_properties(properties)) return error;
  Pool made = make_pool(properties);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool = add_pool(std::move(made));
  return CUDA_SUCCESS;
}

CUresult pool_destroy(CUmemoryPool handle) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(handle);
  if (pool == nullptr || refuses_attributes(*pool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (pool->is_default) {
    return mutant("default-pool-destroyed") ? CUDA_SUCCESS
                                            : CUDA_ERROR_INVALID_VALUE;
  }
  for (auto& [name, place] : places()) {
    if (place.current == pool) place.current = place.preset;
  }
  if (pool->imported && mutant("import-destroy-global")) {
    pool->file->page().dead = true;
  }
  pool->destroyed = true;
  bury(pool);
  return CUDA_SUCCESS;
}

CUresult pool_default(CUmemLocation location, CUmemAllocationType type,
                      CUmemoryPool* pool) {
  const std::lock_guard lock(state_mutex());
  Place* place = nullptr;
  if (CUresult error = find_place(location, type, &place)) return error;
  *pool = place->preset.get();
  return CUDA_SUCCESS;
}

CUresult pool_current(CUmemLocation location, CUmemAllocationType type,
                      CUmemoryPool* pool) {
  const std::lock_guard lock(state_mutex());
  Place* place = nullptr;
  if (CUresult error = find_place(location, type, &place)) return error;
  *pool = place->current.get();
  return CUDA_SUCCESS;
}

CUresult pool_set_current(CUmemLocation location, CUmemAllocationType type,
                          CUmemoryPool handle) {
  const std::lock_guard lock(state_mutex());
  Place* place = nullptr;
  if (CUresult error = find_place(location, type, &place)) return error;
  const Pool pool = find_pool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (pool->imported && !mutant("import-pool-current")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemPoolProps& own = pool->properties;
  const bool same_kind =
      own.allocType == type && own.location.type == location.type;
  const bool matches =
      name_of(own.location, own.allocType) == name_of(location, type) ||
      (same_kind && mutant("foreign-pool-current")) ||
      mutant("location-pool-unchecked");
  if (!matches) return CUDA_ERROR_INVALID_VALUE;
  if (!mutant("setpool-ignored")) place->current = pool;
  return CUDA_SUCCESS;
}

CUresult pool_allocate(CUmemoryPool handle,
                       const std::shared_ptr<Stream>& stream, uint64_t size,
                       uint64_t* address) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > profile().memory_gib << 30) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(state_mutex());
    Pool pool = find_pool(handle);
    if (pool != nullptr && pool->imported && mutant("import-pool-allocates")) {
      Place* place = nullptr;
      find_place({CU_MEM_LOCATION_TYPE_DEVICE, 0},
                 CU_MEM_ALLOCATION_TYPE_PINNED, &place);
      pool = place->preset;
    }
    if (pool == nullptr || pool->imported || pool->file->page().dead) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t unit = size <= kLargestShared ? kGranule : kPage;
    const auto lease = std::make_shared<Lease>();
    lease->bytes = up(size, unit);
    std::vector<Ticket> after;  // frees that came before anyway
    const Order behind = stream->order_from_now();
    const auto free_now = [&](const Freed& freed) {
      return usable(*pool, stream.get(), behind, freed);
    };
    uint64_t place = pool->space.take(lease->bytes, unit, free_now, &after);
    if (place == 0 && grow(pool.get(), lease->bytes)) {
      place = pool->space.take(lease->bytes, unit, free_now, &after);
    }
    after.clear();
    if (place == 0 &&
        policy(*pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) != 0) {
      place = pool->space.take(
          lease->bytes, unit, [](const Freed&) { return true; }, &after);
    }
    if (place == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    lease->size = up(size, kGranule);
    lease->mapping = place;
    lease->offset = pool->space.offset_of(place);
    lease->serial = ++pool->file->page().serial;
    lend(pool.get(), place, size, lease,
         pool->gpu >= 0 ? pool->gpu : stream->context()->gpu);
    // Work that frees it again may be queued before the stream comes here.
    stream->submit(
        [pool, lease] {
          const std::lock_guard lock(state_mutex());
          if (lease->ended) return;
          lease->ready = true;
          grant_lease(*pool, *lease);
        },
        true, after);
    *address = place;
  }
  if (mutant("mallocasync-blocks")) stream->wait_all();
  return CUDA_SUCCESS;
}

CUresult pool_free(uint64_t address, const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(state_mutex());
  const auto entry = allocations().find(address);
  if (entry == allocations().end() || entry->second.pool == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto own = std::find_if(
      pools().begin(), pools().end(),
      [&](const Pool& pool) { return pool.get() == entry->second.pool; });
  const Pool pool = *own;
  if (pool->imported && mutant("import-free-refused")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<Lease> lease = pool->leases[address];
  pool->leases.erase(address);
  lease->ended = stream == nullptr;
  allocations().erase(entry);
  if (!mutant("stats-wrong")) {
    set_used(pool.get(), pool->used.now - lease->size);
  }
  if (pool->imported) harm_others(pool, *lease);

  Freed freed;
  if (stream != nullptr) {
    ++pool->unfinished_frees;
    freed = stream->submit_free([pool, lease] {
      const std::lock_guard lock(state_mutex());
      --pool->unfinished_frees;
      end_of_free(pool, *lease);
    });
  }
  if (pool->imported) {
    if (stream == nullptr) end_of_free(pool, *lease);
    return CUDA_SUCCESS;
  }
  if (lease->exported && mutant("free-order-ignored")) freed = {};
  pool->space.give(lease->mapping, lease->bytes, freed);
  if (stream == nullptr) end_of_free(pool, *lease);
  return CUDA_SUCCESS;
}

CUresult pool_trim(CUmemoryPool handle, uint64_t bytes_to_keep) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(handle);
  if (pool == nullptr || refuses_attributes(*pool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mutant("trim-breaks-live")) {
    for (const auto& [address, lease] : pool->leases) {
      pool->file->discard(lease->offset / 4096 * 4096, up(lease->size, 4096));
    }
  }
  if (!can_release(*pool) || mutant("trim-noop")) return CUDA_SUCCESS;
  if (!pool->imported) shrink(pool.get(), bytes_to_keep);
  return CUDA_SUCCESS;
}

CUresult pool_set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                            const void* value) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(handle);
  if (pool == nullptr || refuses_attributes(*pool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int number = 0;
  uint64_t bytes = 0;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      std::memcpy(&number, value, sizeof number);
      if (pool->imported && !mutant("policy-leaks-to-exporter")) {
        pool->policies[attribute - 1] = number != 0;
      } else {
        pool->file->page().policies[attribute - 1] = number != 0;
      }
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      std::memcpy(&pool->release_threshold, value, sizeof bytes);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
      std::memcpy(&bytes, value, sizeof bytes);
      if (bytes != 0 && !mutant("watermark-any-value")) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      Gauge& gauge = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH
                         ? pool->used
                         : pool->reserved;
      gauge.high = gauge.now;
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pool_get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                            void* value) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(handle);
  if (pool == nullptr || refuses_attributes(*pool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const PoolPage& page = pool->file->page();
  const bool all = pool->imported && mutant("import-stats-global");
  const auto put = [value](auto number) {
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return put(pool->imported ? pool->policies[attribute - 1]
                                : policy(*pool, attribute));
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return put(pool->release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return put(all ? page.reserved.load() : pool->reserved.now);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return put(pool->reserved.high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return put(all ? page.used.load() : pool->used.now);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return put(pool->used.high);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc* list,
                         size_t count) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation location = list[i].location;
    const bool known = list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                       list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                       list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || !known) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!exists(location)) {
      if (mutant("setaccess-any-device")) return CUDA_SUCCESS;
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!reaches(*pool, location.id)) return CUDA_ERROR_INVALID_DEVICE;
    // "Access cannot be revoked from the GPU where the memory resides."
    const bool resident =
        devices()[static_cast<size_t>(location.id)].gpu == pool->gpu;
    if (resident && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
        !mutant("resident-access-revoked")) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const int ordinal = list[i].location.id;
    pool->access[ordinal] = static_cast<Access>(list[i].flags);
    const int gpu = devices()[static_cast<size_t>(ordinal)].gpu;
    const unsigned bit = 1u << static_cast<unsigned>(gpu);
    if (!pool->imported) pool->file->page().gpus |= bit;
  }
  if (mutant("setaccess-future-only")) return CUDA_SUCCESS;
  for (const auto& [address, lease] : pool->leases) {
    if (lease->ready) grant_lease(*pool, *lease);
  }
  return CUDA_SUCCESS;
}

CUresult pool_get_access(CUmemoryPool handle, CUmemLocation location,
                         CUmemAccess_flags* flags) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(handle);
  if (pool == nullptr || !exists(location)) return CUDA_ERROR_INVALID_VALUE;
  const bool by_host = location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  const bool host_may = pool->gpu < 0 || managed(pool->properties);
  const Access access = !by_host   ? access_of(*pool, location.id)
                        : host_may ? kReadWrite
                                   : kNone;
  *flags = static_cast<CUmemAccess_flags>(access);
  return CUDA_SUCCESS;
}

namespace {
void synchronized(const std::function<bool(const Freed&)>& over) {
  const std::lock_guard lock(state_mutex());
  for (const Pool& pool : pools()) {
    if (pool->imported) continue;
    if (!mutant("sync-does-not-release")) pool->space.settle(over);
    if (can_release(*pool) && !mutant("threshold-ignored")) {
      shrink(pool.get(), pool->release_threshold);
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
