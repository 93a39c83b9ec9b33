// SPDX-License-Identifier: Apache-2.0
// Pinned, managed and registered memory, which has the same address for host
// and kernels. Also the facts that a program may query about an address.
#include <utility>

#include "core/device.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/profile.h"

namespace ipclab::model {
CUresult host_allocate(CUcontext context, uint64_t size, Kind kind,
                       unsigned flags, uint64_t* address) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t bytes = round_up(size, kPage);
  const Locked machine;
  const uint64_t place =
      bytes < size ? 0 : machine->window.take(Area::kOther, bytes);
  if (place == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  // The mappings keep the memory. The descriptor is needed for a dma-buf only.
  const std::shared_ptr<Block> block = Block::create(-1, bytes);
  if (block == nullptr || !machine->window.map(place, *block, bytes, true)) {
    machine->window.give_back(place, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (size_t i = 0; i < devices().size(); ++i) {
    machine->window.set_access(static_cast<int>(i), place, bytes, kReadWrite);
  }
  Allocation allocation = Allocation::of(context, place, size, kind);
  allocation.flags = flags;
  allocation.mapping_size = bytes;
  if (kind == Kind::kHost && profile().host_dma_buf()) allocation.block = block;
  machine->memory.add(std::move(allocation));
  *address = place;
  return CUDA_SUCCESS;
}

CUresult host_register(CUcontext context, uint64_t address, uint64_t size,
                       unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
      CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (address == 0 || size == 0 || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Locked machine;
  if (machine->memory.overlaps(address, size)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (machine->window.contains(address)) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation =
      Allocation::of(context, address, size, Kind::kRegistered);
  allocation.flags = flags;
  machine->memory.add(std::move(allocation));
  return CUDA_SUCCESS;
}

CUresult host_unregister(uint64_t address) {
  const std::optional<Allocation> found = find_memory(address);
  if (!found || found->kind != Kind::kRegistered || found->address != address) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  for (size_t i = 0; i < devices().size(); ++i) {
    device_drain(static_cast<int>(i));
  }
  Locked()->memory.remove(address);
  return CUDA_SUCCESS;
}

AddressFacts address_facts(uint64_t address, int device) {
  const Locked machine;
  AddressFacts facts;
  if (const Allocation* found = machine->memory.find(address)) {
    facts.memory = *found;
  }
  if (const Range* range = find_range(*machine, address)) facts.range = *range;
  facts.access = machine->window.access(device, address);
  return facts;
}

std::optional<Allocation> find_memory(uint64_t address) {
  const Locked machine;
  const Allocation* found = machine->memory.find(address);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

CUresult set_sync_memops(uint64_t address, bool on) {
  const Locked machine;
  Allocation* found = machine->memory.find(address);
  if (found == nullptr || found->on_host()) return CUDA_ERROR_INVALID_VALUE;
  found->sync_memops = on;
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
