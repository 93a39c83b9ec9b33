// SPDX-License-Identifier: Apache-2.0
// Device memory: cuMemAlloc with its sub-allocation, and the variables of
// modules.
#include <utility>

#include "core/capacity.h"
#include "core/device.h"
#include "core/graph.h"
#include "core/graph_memory.h"
#include "core/heap.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/peers.h"
#include "core/pool.h"
#include "core/race_memory.h"
#include "core/stream.h"

namespace ipclab::model {
namespace {

// Publishes memory that a legacy handle may name.
void publish(Machine& machine, Allocation allocation) {
  allocation.export_id = unique_id();
  allocation.block->set_occupant(allocation.offset(), allocation.export_id);
  if (race::on()) race::renew(allocation.address, allocation.size);
  machine.memory.add(std::move(allocation));
}

// Makes a block of the context's GPU and maps it. Returns its address; 0 if no
// address or no memory is left. The caller has already counted its bytes.
uint64_t map_new_block(Machine& machine, CUcontext context, Area area,
                       uint64_t size, std::shared_ptr<Block>* block) {
  const uint64_t address = machine.window.take(area, size);
  if (address == 0) return 0;
  *block = Block::create(context->gpu, size);
  if (*block == nullptr || !machine.window.map(address, **block, size, false)) {
    machine.window.give_back(address, size);
    return 0;
  }
  grant(machine, context->gpu, address, size);
  return address;
}

void drop_block(Machine& machine, uint64_t address, const Block& block) {
  machine.window.retire(address, block.size());
  give_back_bytes(block.gpu(), block.size());
}

CUresult allocate_small(CUcontext context, uint64_t size, Kind kind,
                        uint64_t* address) {
  const Suballocator::Owner owner{context, kind};
  const Locked machine;
  Suballocator::Place place = machine->small.take(owner, size);
  if (place.address == 0) {
    if (!take_bytes(context->gpu, kPage)) return CUDA_ERROR_OUT_OF_MEMORY;
    std::shared_ptr<Block> block;
    const uint64_t mapping =
        map_new_block(*machine, context, Area::kShared, kPage, &block);
    if (mapping == 0) {
      give_back_bytes(context->gpu, kPage);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    machine->small.add(owner, mapping, std::move(block));
    place = machine->small.take(owner, size);
  }
  Allocation allocation = Allocation::of(context, place.address, size, kind);
  allocation.block = place.block;
  allocation.mapping = place.mapping;
  allocation.mapping_size = kPage;
  publish(*machine, std::move(allocation));
  *address = place.address;
  return CUDA_SUCCESS;
}

CUresult allocate_large(CUcontext context, uint64_t size, Kind kind,
                        uint64_t* address) {
  const uint64_t bytes = round_up(size, kPage);
  if (!take_bytes(context->gpu, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const Locked machine;
  std::shared_ptr<Block> block;
  *address = map_new_block(*machine, context, Area::kLarge, bytes, &block);
  if (*address == 0) {
    give_back_bytes(context->gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation allocation = Allocation::of(context, *address, size, kind);
  allocation.block = std::move(block);
  allocation.mapping_size = bytes;
  publish(*machine, std::move(allocation));
  return CUDA_SUCCESS;
}

void release_block(Machine& machine, const Allocation& allocation) {
  allocation.block->set_occupant(allocation.offset(), 0);
  const bool is_last =
      !machine.small.has(allocation.mapping) ||
      machine.small.give_back(allocation.mapping, allocation.offset(),
                              allocation.size);
  if (is_last) drop_block(machine, allocation.mapping, *allocation.block);
}

void release(Machine& machine, uint64_t address) {
  const Allocation allocation = *machine.memory.find_begin(address);
  if (allocation.kind == Kind::kGraph) {
    graph_memory_discard(machine, address);
    return;
  }
  machine.memory.remove(address);
  switch (allocation.kind) {
    case Kind::kDevice:
    case Kind::kVariable:
      release_block(machine, allocation);
      break;
    case Kind::kManaged:
    case Kind::kHost:
    case Kind::kExternal:
      machine.window.retire(allocation.mapping, allocation.mapping_size);
      break;
    case Kind::kGraph:       // see above
    case Kind::kImported:    // closed by ipc_memory.cc
    case Kind::kMapped:      // unmapped by vmm.cc
    case Kind::kPooled:      // freed by pool_memory.cc
    case Kind::kRegistered:  // the program's own memory
      break;
  }
}

// The allocation that begins at an address, if a call may free this kind of
// memory.
template <typename Predicate>
std::optional<Allocation> find_freeable(uint64_t address, Predicate may_free) {
  const Locked machine;
  const Allocation* found = machine->memory.find_begin(address);
  return found != nullptr && may_free(*found) ? std::optional(*found)
                                              : std::nullopt;
}

// Frees an allocation. Returns CUDA_ERROR_INVALID_VALUE if the address has no
// allocation any more, or another allocation.
CUresult release_if_same(uint64_t address, uint64_t buffer_id) {
  const Locked machine;
  const Allocation* found = machine->memory.find_begin(address);
  if (found == nullptr || found->buffer_id != buffer_id) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  release(*machine, address);
  return CUDA_SUCCESS;
}

// Like the driver, waits for the work that may still use the memory.
CUresult free_after_work(const Allocation& allocation) {
  device_drain(allocation.context->device);
  return release_if_same(allocation.address, allocation.buffer_id);
}

}  // namespace

CUresult memory_allocate(CUcontext context, uint64_t size, Kind kind,
                         uint64_t* address) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > total_bytes(context->gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
  return size <= kLargestShared ? allocate_small(context, size, kind, address)
                                : allocate_large(context, size, kind, address);
}

CUresult memory_free(uint64_t address) {
  if (address == 0) return CUDA_SUCCESS;
  const auto found = find_freeable(address, [](const Allocation& one) {
    return one.pool != nullptr || one.kind == Kind::kDevice ||
           one.kind == Kind::kManaged || one.kind == Kind::kExternal ||
           one.kind == Kind::kGraph;
  });
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  if (found->kind == Kind::kGraph) return graph_memory_free(address, nullptr);
  return found->pool != nullptr ? pool_free(address, nullptr)
                                : free_after_work(*found);
}

CUresult host_free(uint64_t address) {
  if (address == 0) return CUDA_SUCCESS;
  const auto found = find_freeable(address, [](const Allocation& one) {
    return one.pool == nullptr && one.kind == Kind::kHost;
  });
  return found ? free_after_work(*found) : CUDA_ERROR_INVALID_VALUE;
}

CUresult memory_free_async(uint64_t address,
                           const std::shared_ptr<Stream>& stream) {
  if (address == 0) return CUDA_SUCCESS;
  if (stream->capturing()) return graph_capture_free(stream, address);
  const auto found = find_freeable(address, [](const Allocation& one) {
    return one.pool != nullptr || one.kind == Kind::kDevice ||
           one.kind == Kind::kGraph;
  });
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  if (found->kind == Kind::kGraph) return graph_memory_free(address, stream);
  if (found->pool != nullptr) return pool_free(address, stream);
  stream->submit(
      {CU_GRAPH_NODE_TYPE_MEM_FREE,
       [address, id = found->buffer_id] { release_if_same(address, id); }},
      true);
  return CUDA_SUCCESS;
}

void variable_free(uint64_t address) {
  const Locked machine;
  if (machine->memory.find_begin(address) != nullptr) {
    release(*machine, address);
  }
}

void* variable_bytes(uint64_t address) {
  return Locked()->window.alias(address);
}

void free_memory_of(Machine& machine, CUcontext context) {
  for (auto entry = machine.memory.begin(); entry != machine.memory.end();) {
    const Allocation& allocation = (entry++)->second;
    if (allocation.context == context) release(machine, allocation.address);
  }
  heap_discard(machine, context);
}

}  // namespace ipclab::model
