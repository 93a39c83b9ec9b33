// SPDX-License-Identifier: Apache-2.0
// Addresses without physical memory.
#include "core/vmm.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/chunk.h"
#include "core/device.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

constexpr uint64_t kHostPage = 4096;

std::map<uint64_t, Range>& ranges() {  // by address
  static auto& map = *new std::map<uint64_t, Range>;
  return map;
}

// The mappings that make up [address, address + size), in order; none if that
// begins or ends inside one or has a hole.
std::vector<Allocation*> whole_mappings(uint64_t address, uint64_t size) {
  std::vector<Allocation*> found;
  const uint64_t end = address + size;
  uint64_t next = address;
  for (auto entry = allocations().lower_bound(address);
       entry != allocations().end() && entry->first < end; ++entry) {
    Allocation& mapping = entry->second;
    if (mapping.kind != Kind::kMapped || mapping.address != next) return {};
    found.push_back(&mapping);
    next = mapping.address + mapping.size;
  }
  return next == end ? found : std::vector<Allocation*>{};
}

bool is_unmapped(uint64_t address, uint64_t size) {
  const auto next = allocations().lower_bound(address);
  return find_allocation(address) == nullptr &&
         (next == allocations().end() || next->first >= address + size);
}

bool is_reserved(uint64_t address, uint64_t size) {
  const Range* range = find_range(address);
  return range != nullptr && size <= range->address + range->size - address;
}

void unmap_one(uint64_t address) {
  unmap(address, allocations()[address].size);
  allocations().erase(address);
}

bool is_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// Can this place be given access to this memory?
CUresult check_access(const CUmemAccessDesc& wanted,
                      const Allocation& mapping) {
  const unsigned flags = wanted.flags;
  if (flags != kNone && flags != kRead && flags != kReadWrite) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemLocation& location = wanted.location;
  if (is_host(location.type)) {
    return location.type == mapping.chunk->properties.location.type
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  }
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (location.id < 0 || location.id >= static_cast<int>(devices().size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const Device& device = devices()[location.id];
  const bool own = mapping.gpu < 0 || device.gpu == mapping.gpu;
  return own || can_access_peer(device.gpu, mapping.gpu)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_DEVICE;
}

void apply_access(const CUmemAccessDesc& wanted, Allocation* mapping) {
  auto access = static_cast<Access>(wanted.flags);
  if (is_host(wanted.location.type)) {
    set_host_access(mapping->address, *mapping->block, mapping->size, access);
    mapping->host_access = access;
  } else if (wanted.location.id < static_cast<int>(devices().size())) {
    set_access(wanted.location.id, mapping->address, mapping->size, access);
  }
}

// The devices whose kernels may be using the mappings.
std::vector<int> users_of(const std::vector<Allocation*>& mappings) {
  std::vector<int> users;
  for (size_t i = 0; i < devices().size(); ++i) {
    const int ordinal = static_cast<int>(i);
    const bool uses = std::any_of(
        mappings.begin(), mappings.end(), [&](const Allocation* mapping) {
          return get_access(ordinal, mapping->address) != kNone;
        });
    if (uses) users.push_back(ordinal);
  }
  return users;
}

}  // namespace

const Range* find_range(uint64_t address) {
  auto next = ranges().upper_bound(address);
  if (next == ranges().begin()) return nullptr;
  const Range& candidate = std::prev(next)->second;
  return address - candidate.address < candidate.size ? &candidate : nullptr;
}

CUresult range_reserve(uint64_t size, uint64_t alignment, uint64_t* address) {
  if (!profile().vmm) return CUDA_ERROR_NOT_SUPPORTED;
  const bool power_of_two = (alignment & (alignment - 1)) == 0;
  if (size == 0 || size % kHostPage != 0 || !power_of_two) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  alignment = std::max(alignment, kPage);
  Range range;
  range.size = size;
  range.taken_bytes = size + (alignment - kPage);
  if (range.taken_bytes < size) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(state_mutex());
  range.taken = take_addresses(Area::kLarge, range.taken_bytes);
  if (range.taken == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range.address = (range.taken + alignment - 1) / alignment * alignment;
  ranges()[range.address] = range;
  *address = range.address;
  return CUDA_SUCCESS;
}

CUresult range_free(uint64_t address, uint64_t size) {
  const std::lock_guard lock(state_mutex());
  const auto entry = ranges().find(address);
  if (entry == ranges().end() || entry->second.size != size ||
      !is_unmapped(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  give_back_addresses(entry->second.taken, entry->second.taken_bytes);
  ranges().erase(entry);
  return CUDA_SUCCESS;
}

CUresult range_map(uint64_t address, uint64_t size, uint64_t offset,
                   CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(state_mutex());
  const std::shared_ptr<Chunk> chunk = find_chunk(handle);
  if (chunk == nullptr || size == 0 || (address | size | offset) % kPage != 0 ||
      !is_reserved(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t bytes = chunk->size();
  const bool inside = offset <= bytes && size <= bytes - offset;
  if (!inside) return CUDA_ERROR_INVALID_VALUE;
  if (size != bytes && profile().driver_580) return CUDA_ERROR_NOT_SUPPORTED;
  if (offset != 0) return CUDA_ERROR_INVALID_VALUE;  // "must be zero"
  if (!is_unmapped(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<Block> block = chunk->block;
  if (!map_block(address, *block, size, false)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation mapping;
  mapping.address = address;
  mapping.size = size;
  mapping.kind = Kind::kMapped;
  mapping.gpu = block->gpu();
  mapping.block = block;
  mapping.mapping = address;
  mapping.mapping_size = size;
  mapping.buffer_id = next_buffer_id();
  mapping.chunk = chunk;
  allocations()[address] = std::move(mapping);
  return CUDA_SUCCESS;
}

CUresult range_unmap(uint64_t address, uint64_t size) {
  std::vector<int> users;
  {
    const std::lock_guard lock(state_mutex());
    const std::vector<Allocation*> mappings = whole_mappings(address, size);
    if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
    users = users_of(mappings);
  }
  for (const int device : users) device_drain(device);
  const std::lock_guard lock(state_mutex());
  const std::vector<Allocation*> mappings = whole_mappings(address, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const Allocation* mapping : mappings) unmap_one(mapping->address);
  return CUDA_SUCCESS;
}

CUresult range_set_access(uint64_t address, uint64_t size,
                          const CUmemAccessDesc* list, size_t count) {
  const std::lock_guard lock(state_mutex());
  const std::vector<Allocation*> mappings = whole_mappings(address, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    for (const Allocation* mapping : mappings) {
      if (CUresult error = check_access(list[i], *mapping)) return error;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (Allocation* mapping : mappings) {
      apply_access(list[i], mapping);
    }
  }
  return CUDA_SUCCESS;
}

CUresult range_get_access(uint64_t address, CUmemLocation location,
                          unsigned long long* flags) {
  const std::lock_guard lock(state_mutex());
  const Allocation* mapping = find_allocation(address);
  if (mapping == nullptr || mapping->chunk == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_host(location.type)) {
    *flags = mapping->host_access;
    return CUDA_SUCCESS;
  }
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (location.id < 0 || location.id >= static_cast<int>(devices().size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *flags = get_access(location.id, address);
  return CUDA_SUCCESS;
}

bool may_copy(CUcontext context, uint64_t address, uint64_t size,
              Access needed) {
  const uint64_t end = address + size;
  while (address < end) {
    const Allocation* mapping = find_allocation(address);
    if (mapping == nullptr || mapping->chunk == nullptr) return false;
    const int owner = ordinal_of_gpu(mapping->gpu);
    const int granted = get_access(context->device, address) |
                        mapping->host_access |
                        (owner >= 0 ? get_access(owner, address) : kNone);
    if ((granted & needed) != needed) return false;
    address = mapping->address + mapping->size;
  }
  return true;
}

}  // namespace ipclab::model
