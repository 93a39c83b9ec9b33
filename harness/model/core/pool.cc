// SPDX-License-Identifier: Apache-2.0
// Pools: their creation, their places, their attributes and the access to them.
#include "core/pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/device.h"
#include "core/fabric.h"
#include "core/machine.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

// ---- places

// For pools, the model's host has one NUMA node.
bool exists(CUmemLocation location) {
  constexpr int kKnowsHostLocations = 12020;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
      profile().driver_version < kKnowsHostLocations) {
    return false;
  }
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return is_device(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
      return true;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id == 0;
    default:
      return false;
  }
}

PoolPlaceName name_of(CUmemLocation location, CUmemAllocationType type) {
  const bool numbered = location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
                        location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  return {location.type, numbered ? location.id : 0, type};
}

Pool make_pool(const CUmemPoolProps& properties) {
  auto pool = std::make_shared<CUmemPoolHandle_st>();
  pool->properties = properties;
  CUmemLocation location = properties.location;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    location.id = device_at(location.id).gpu;
    pool->gpu = location.id;
  }
  pool->file = PoolFile::create(location, properties.handleTypes);
  return pool->file == nullptr ? nullptr : pool;
}

CUresult find_place(Machine& machine, CUmemLocation location,
                    CUmemAllocationType type, PoolPlace** place) {
  if (!profile().pools) return CUDA_ERROR_NOT_SUPPORTED;
  const bool nowhere = type == CU_MEM_ALLOCATION_TYPE_MANAGED &&
                       location.type == CU_MEM_LOCATION_TYPE_NONE;
  const bool known = type == CU_MEM_ALLOCATION_TYPE_PINNED ||
                     type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (!known || (!exists(location) && !nowhere)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *place = &machine.pool_places[name_of(location, type)];
  if ((*place)->preset != nullptr) return CUDA_SUCCESS;
  CUmemPoolProps properties{};
  properties.allocType = type;
  properties.location = location;
  const Pool pool = make_pool(properties);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  pool->is_default = true;
  machine.pools.push_back(pool);
  (*place)->preset = (*place)->current = pool;
  return CUDA_SUCCESS;
}

// ---- access

bool reaches(const CUmemPoolHandle_st& pool, int ordinal) {
  const int gpu = device_at(ordinal).gpu;
  return pool.gpu < 0 || gpu == pool.gpu || can_access_peer(gpu, pool.gpu);
}

}  // namespace

Access access_of(const CUmemPoolHandle_st& pool, int ordinal) {
  const Device& device = device_at(ordinal);
  const auto set = pool.access.find(ordinal);
  if (is_managed(pool.properties) || pool.gpu == device.gpu) return kReadWrite;
  return set == pool.access.end() ? kNone : set->second;
}

Pool find_pool(Machine& machine, CUmemoryPool handle) {
  for (const Pool& pool : machine.pools) {
    if (pool.get() == handle && !pool->destroyed) return pool;
  }
  return nullptr;
}

namespace {

// Attributes of a pool that drivers of CUDA 13.2 and newer return; cuda.h of
// older toolkits does not have these attributes. So they are numbers here.
constexpr int kKnowsProperties = 13020;
constexpr int kAllocationType = 9, kExportHandleTypes = 10, kLocationId = 11,
              kLocationType = 12, kMaxPoolSize = 13;
constexpr int kInvisible = 5;  // CU_MEM_LOCATION_TYPE_INVISIBLE

template <typename Put>
CUresult property_of(const CUmemPoolHandle_st& pool, int attribute, Put put) {
  if (profile().driver_version < kKnowsProperties) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemPoolProps& made = pool.properties;
  const bool hidden = made.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                      made.location.id == -1;
  switch (attribute) {
    case kAllocationType:
      return put(static_cast<int>(made.allocType));
    case kExportHandleTypes:
      return put(pool.imported ? 0 : static_cast<int>(made.handleTypes));
    case kLocationId:
      return put(hidden ? CU_DEVICE_INVALID : made.location.id);
    case kLocationType:
      return put(hidden ? kInvisible : static_cast<int>(made.location.type));
    case kMaxPoolSize:
      return put(static_cast<uint64_t>(made.maxSize));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

bool refuses_attributes(const CUmemPoolHandle_st& pool) {
  return pool.imported && profile().driver_580;
}

void grant_lease(Machine& machine, const CUmemPoolHandle_st& pool,
                 const Lease& lease) {
  for (size_t i = 0; i < devices().size(); ++i) {
    const int ordinal = static_cast<int>(i);
    machine.window.set_access(ordinal, lease.mapping, lease.bytes,
                              access_of(pool, ordinal));
  }
}

// Is any reserved byte after `usage` not zero? Since CUDA 13.4 the first byte
// is a hint (gpuDirectRDMACapable). So a driver of 13.4 or newer does not check
// this byte, also if the model was built with older headers.
bool reserved_is_used(const CUmemPoolProps& wanted) {
  const auto* first = reinterpret_cast<const unsigned char*>(&wanted) +
                      offsetof(CUmemPoolProps, usage) + sizeof wanted.usage;
  const auto* end = reinterpret_cast<const unsigned char*>(&wanted + 1);
  if (profile().driver_version >= 13040) ++first;
  return std::any_of(first, end, [](unsigned char byte) { return byte != 0; });
}

CUresult check_pool_properties(const CUmemPoolProps& wanted) {
  if (!profile().pools) return CUDA_ERROR_NOT_SUPPORTED;
  const unsigned handles = wanted.handleTypes;
  const bool shared = handles != CU_MEM_HANDLE_TYPE_NONE;
  if (wanted.win32SecurityAttributes != nullptr || reserved_is_used(wanted) ||
      (wanted.usage & ~CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((handles & ~static_cast<unsigned>(profile().pool_handles)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (wanted.allocType) {
    case CU_MEM_ALLOCATION_TYPE_PINNED:
      break;
    case CU_MEM_ALLOCATION_TYPE_MANAGED:  // came with CUDA 13.0
      if (shared || profile().driver_version < 13000) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (wanted.location.type == CU_MEM_LOCATION_TYPE_NONE) {
        return CUDA_SUCCESS;
      }
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (wanted.location.type == CU_MEM_LOCATION_TYPE_HOST && shared) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!exists(wanted.location)) return CUDA_ERROR_INVALID_VALUE;
  if ((handles & CU_MEM_HANDLE_TYPE_FABRIC) == 0) return CUDA_SUCCESS;
  return has_imex_channel() ? fabric_is_ready() : CUDA_ERROR_NOT_PERMITTED;
}

CUresult pool_create(const CUmemPoolProps& properties, CUmemoryPool* pool) {
  if (CUresult error = check_pool_properties(properties)) return error;
  Pool made = make_pool(properties);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool = made.get();
  Locked()->pools.push_back(std::move(made));
  return CUDA_SUCCESS;
}

CUresult pool_destroy(CUmemoryPool handle) {
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr || (refuses_attributes(*pool) && !pool->leases.empty())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [name, place] : machine->pool_places) {
    if (place.current == pool) place.current = place.preset;
  }
  pool->destroyed = true;
  bury(*machine, pool);
  return CUDA_SUCCESS;
}

CUresult pool_default(CUmemLocation location, CUmemAllocationType type,
                      CUmemoryPool* pool) {
  const Locked machine;
  PoolPlace* place = nullptr;
  if (CUresult error = find_place(*machine, location, type, &place))
    return error;
  *pool = place->preset.get();
  return CUDA_SUCCESS;
}

CUresult pool_current(CUmemLocation location, CUmemAllocationType type,
                      CUmemoryPool* pool) {
  const Locked machine;
  PoolPlace* place = nullptr;
  if (CUresult error = find_place(*machine, location, type, &place))
    return error;
  *pool = place->current.get();
  return CUDA_SUCCESS;
}

CUresult pool_set_current(CUmemLocation location, CUmemAllocationType type,
                          CUmemoryPool handle) {
  const Locked machine;
  PoolPlace* place = nullptr;
  if (CUresult error = find_place(*machine, location, type, &place))
    return error;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  const CUmemPoolProps& own = pool->properties;
  if (name_of(own.location, own.allocType) != name_of(location, type)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  place->current = pool;
  return CUDA_SUCCESS;
}

CUresult pool_set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                            const void* value) {
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
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
      pool->policies[attribute - 1] = number != 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      std::memcpy(&pool->release_threshold, value, sizeof bytes);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
      std::memcpy(&bytes, value, sizeof bytes);
      if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
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
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr || refuses_attributes(*pool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto put = [value](auto number) {
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return put(pool->policies[attribute - 1]);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return put(pool->release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return put(pool->reserved.now);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return put(pool->reserved.high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return put(pool->used.now);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return put(pool->used.high);
    default:
      return property_of(*pool, attribute, put);
  }
}

CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc* list,
                         size_t count) {
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation location = list[i].location;
    const bool known = list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                       list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                       list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || !known) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!exists(location) || !reaches(*pool, location.id)) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    // "Access cannot be revoked from the GPU where the memory resides."
    const bool resident = device_at(location.id).gpu == pool->gpu;
    if (resident && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    pool->access[list[i].location.id] = static_cast<Access>(list[i].flags);
  }
  for (const auto& [address, lease] : pool->leases) {
    if (lease->ready) grant_lease(*machine, *pool, *lease);
  }
  return CUDA_SUCCESS;
}

CUresult pool_get_access(CUmemoryPool handle, CUmemLocation location,
                         CUmemAccess_flags* flags) {
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr || !exists(location)) return CUDA_ERROR_INVALID_VALUE;
  const bool by_host = location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  const bool host_may = pool->gpu < 0 || is_managed(pool->properties);
  const Access access = !by_host   ? access_of(*pool, location.id)
                        : host_may ? kReadWrite
                                   : kNone;
  *flags = static_cast<CUmemAccess_flags>(access);
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
