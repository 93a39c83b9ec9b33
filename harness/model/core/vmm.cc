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
#include "core/machine.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

constexpr uint64_t kHostPage = 4096;

// The mappings that fill [address, address + size), in order. The list is empty
// if the range begins or ends inside a mapping or has a hole.
std::vector<Allocation*> whole_mappings(Machine& machine, uint64_t address,
                                        uint64_t size) {
  std::vector<Allocation*> found;
  const uint64_t end = address + size;
  uint64_t next = address;
  for (auto entry = machine.memory.from(address);
       entry != machine.memory.end() && entry->first < end; ++entry) {
    Allocation& mapping = entry->second;
    if (mapping.kind != Kind::kMapped || mapping.address != next) return {};
    found.push_back(&mapping);
    next = mapping.end();
  }
  return next == end ? found : std::vector<Allocation*>{};
}

bool is_reserved(Machine& machine, uint64_t address, uint64_t size) {
  const Range* range = find_range(machine, address);
  return range != nullptr && size <= range->address + range->size - address;
}

bool is_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// Can this location get access to this memory?
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
  if (!is_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const Device& device = device_at(location.id);
  const bool own = mapping.gpu < 0 || device.gpu == mapping.gpu;
  return own || can_access_peer(device.gpu, mapping.gpu)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_DEVICE;
}

void apply_access(Machine& machine, const CUmemAccessDesc& wanted,
                  Allocation* mapping) {
  auto access = static_cast<Access>(wanted.flags);
  if (is_host(wanted.location.type)) {
    machine.window.set_host_access(mapping->address, *mapping->block,
                                   mapping->size, access);
    mapping->host_access = access;
  } else {
    machine.window.set_access(wanted.location.id, mapping->address,
                              mapping->size, access);
  }
}

// The devices whose kernels may be using the mappings.
std::vector<int> users_of(const Machine& machine,
                          const std::vector<Allocation*>& mappings) {
  std::vector<int> users;
  for (size_t i = 0; i < devices().size(); ++i) {
    const int ordinal = static_cast<int>(i);
    const bool uses = std::any_of(
        mappings.begin(), mappings.end(), [&](const Allocation* mapping) {
          return machine.window.access(ordinal, mapping->address) != kNone;
        });
    if (uses) users.push_back(ordinal);
  }
  return users;
}

}  // namespace

const Range* find_range(Machine& machine, uint64_t address) {
  auto next = machine.ranges.upper_bound(address);
  if (next == machine.ranges.begin()) return nullptr;
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
  const Locked machine;
  range.taken = machine->window.take(Area::kLarge, range.taken_bytes);
  if (range.taken == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range.address = (range.taken + alignment - 1) / alignment * alignment;
  machine->ranges[range.address] = range;
  *address = range.address;
  return CUDA_SUCCESS;
}

CUresult range_free(uint64_t address, uint64_t size) {
  const Locked machine;
  const auto entry = machine->ranges.find(address);
  if (entry == machine->ranges.end() || entry->second.size != size ||
      machine->memory.overlaps(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  machine->window.give_back(entry->second.taken, entry->second.taken_bytes);
  machine->ranges.erase(entry);
  return CUDA_SUCCESS;
}

CUresult range_map(uint64_t address, uint64_t size, uint64_t offset,
                   CUmemGenericAllocationHandle handle) {
  const Locked machine;
  const std::shared_ptr<Chunk> chunk = find_chunk(*machine, handle);
  if (chunk == nullptr || size == 0 || (address | size | offset) % kPage != 0 ||
      !is_reserved(*machine, address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t bytes = chunk->size();
  const bool inside = offset <= bytes && size <= bytes - offset;
  if (!inside) return CUDA_ERROR_INVALID_VALUE;
  if (size != bytes && profile().driver_580) return CUDA_ERROR_NOT_SUPPORTED;
  if (offset != 0) return CUDA_ERROR_INVALID_VALUE;  // "must be zero"
  if (machine->memory.overlaps(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<Block> block = chunk->block;
  if (!machine->window.map(address, *block, size, false)) {
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
  mapping.chunk = chunk;
  machine->memory.add(std::move(mapping));
  return CUDA_SUCCESS;
}

CUresult range_unmap(uint64_t address, uint64_t size) {
  std::vector<int> users;
  {
    const Locked machine;
    const std::vector<Allocation*> mappings =
        whole_mappings(*machine, address, size);
    if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
    users = users_of(*machine, mappings);
  }
  for (const int device : users) device_drain(device);
  const Locked machine;
  const std::vector<Allocation*> mappings =
      whole_mappings(*machine, address, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  machine->window.unmap(address, size);
  for (const Allocation* mapping : mappings) {
    machine->memory.remove(mapping->address);
  }
  return CUDA_SUCCESS;
}

CUresult range_set_access(uint64_t address, uint64_t size,
                          const CUmemAccessDesc* list, size_t count) {
  const Locked machine;
  const std::vector<Allocation*> mappings =
      whole_mappings(*machine, address, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    for (const Allocation* mapping : mappings) {
      if (CUresult error = check_access(list[i], *mapping)) return error;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (Allocation* mapping : mappings) {
      apply_access(*machine, list[i], mapping);
    }
  }
  return CUDA_SUCCESS;
}

CUresult range_get_access(uint64_t address, CUmemLocation location,
                          unsigned long long* flags) {
  const Locked machine;
  const Allocation* mapping = machine->memory.find(address);
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
  if (!is_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = machine->window.access(location.id, address);
  return CUDA_SUCCESS;
}

bool may_copy(Machine& machine, CUcontext context, uint64_t address,
              uint64_t size, Access needed) {
  const uint64_t end = address + size;
  while (address < end) {
    const Allocation* mapping = machine.memory.find(address);
    if (mapping == nullptr || mapping->chunk == nullptr) return false;
    const int owner = ordinal_of_gpu(mapping->gpu);
    int granted = mapping->host_access;
    if (context != nullptr)
      granted |= machine.window.access(context->device, address);
    if (owner >= 0) granted |= machine.window.access(owner, address);
    if ((granted & needed) != needed) return false;
    address = mapping->end();
  }
  return true;
}

}  // namespace ipclab::model
