// SPDX-License-Identifier: Apache-2.0
// The memory of graphs.
#include "core/graph_memory.h"

#include <algorithm>
#include <utility>

#include "core/capacity.h"
#include "core/device.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/peers.h"
#include "core/race_memory.h"

namespace ipclab::model {
namespace {

uint64_t bytes_of(const GraphMemory& memory) {
  return round_up(memory.size, kPage);
}

bool contains(const GraphMemories& memories, const GraphMemory* memory) {
  return std::any_of(memories.begin(), memories.end(),
                     [&](const auto& other) { return other.get() == memory; });
}

// Makes the memory known to the calls that take a pointer.
void publish(Machine& machine, const GraphMemory& memory) {
  if (machine.memory.find_begin(memory.address) != nullptr) return;
  Allocation allocation =
      Allocation::of(memory.context, memory.address, memory.size, Kind::kGraph);
  allocation.mapping_size = bytes_of(memory);
  machine.memory.add(std::move(allocation));
  if (race::on()) race::renew(memory.address, memory.size);
}

// The address becomes free when neither a node nor a launch needs it.
void forget_unused(Machine& machine, const GraphMemory& memory) {
  if (memory.has_node || memory.uses > 0) return;
  machine.window.give_back(memory.address, bytes_of(memory));
  machine.graph_memory.erase(memory.address);
}

// A spare block of the size, or a new one; null if no memory is left.
std::shared_ptr<Block> take_block(GraphBlocks* blocks, int gpu,
                                  uint64_t bytes) {
  auto& spare = blocks->spare;
  const auto fits =
      std::find_if(spare.begin(), spare.end(),
                   [&](const auto& block) { return block->size() == bytes; });
  if (fits != spare.end()) {
    std::shared_ptr<Block> block = *fits;
    spare.erase(fits);
    return block;
  }
  if (!take_bytes(gpu, bytes)) return nullptr;
  std::shared_ptr<Block> block = Block::create(gpu, bytes);
  if (block == nullptr) {
    give_back_bytes(gpu, bytes);
  } else {
    blocks->reserved.set(blocks->reserved.now + bytes);
  }
  return block;
}

// The bytes are no longer mapped, but the block is kept for a later allocation.
void take_away(Machine& machine, GraphMemory* memory) {
  if (memory->block == nullptr) return;
  GraphBlocks& blocks = machine.graph_blocks[memory->context->gpu];
  machine.window.unmap(memory->address, bytes_of(*memory));
  blocks.used.set(blocks.used.now - bytes_of(*memory));
  blocks.spare.push_back(std::move(memory->block));
}

}  // namespace

CUresult graph_memory_create(CUcontext context, uint64_t size,
                             std::shared_ptr<GraphMemory>* memory) {
  auto made = std::make_shared<GraphMemory>();
  made->context = context;
  made->size = size;
  const Locked machine;
  made->address = machine->window.take(Area::kLarge, bytes_of(*made));
  if (made->address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  machine->graph_memory[made->address] = made;
  *memory = std::move(made);
  return CUDA_SUCCESS;
}

void graph_memory_leave(const std::shared_ptr<GraphMemory>& memory) {
  const Locked machine;
  memory->has_node = false;
  forget_unused(*machine, *memory);
}

std::shared_ptr<GraphMemory> find_graph_memory(uint64_t address) {
  const Locked machine;
  const auto found = machine->graph_memory.find(address);
  return found == machine->graph_memory.end() ? nullptr : found->second;
}

CUresult graph_memory_launch(const GraphMemories& allocated,
                             const GraphMemories& freed, bool frees_first,
                             GraphMemories* stale) {
  const Locked machine;
  for (const auto& memory : allocated) {
    if (memory->owned && !frees_first) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& memory : freed) {
    if (!memory->owned && !contains(allocated, memory.get())) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (const auto& memory : allocated) {
    if (memory->owned) stale->push_back(memory);
    memory->owned = true;
    ++memory->uses;
    publish(*machine, *memory);
  }
  for (const auto& memory : freed) memory->owned = false;
  return CUDA_SUCCESS;
}

void graph_memory_map(GraphMemory& memory) {
  const int gpu = memory.context->gpu;
  const uint64_t bytes = bytes_of(memory);
  const Locked machine;
  GraphBlocks& blocks = machine->graph_blocks[gpu];
  memory.block = take_block(&blocks, gpu, bytes);
  if (memory.block == nullptr ||
      !machine->window.map(memory.address, *memory.block, bytes, false)) {
    say("no memory for an allocation node (error 2 on device " +
        std::to_string(memory.context->device) + ")");
    int none = 0;
    memory.context->sticky.compare_exchange_strong(none,
                                                   CUDA_ERROR_OUT_OF_MEMORY);
    return;
  }
  blocks.used.set(blocks.used.now + bytes);
  grant(*machine, gpu, memory.address, bytes);
}

void graph_memory_unmap(GraphMemory& memory) {
  const Locked machine;
  if (memory.uses == 0) return;  // its context has ended
  take_away(*machine, &memory);
  if (--memory.uses > 0) return;
  machine->memory.remove(memory.address);
  forget_unused(*machine, memory);
}

CUresult graph_memory_free(uint64_t address,
                           const std::shared_ptr<Stream>& stream) {
  const std::shared_ptr<GraphMemory> memory = find_graph_memory(address);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  {
    const Locked machine;
    if (!memory->owned) return CUDA_ERROR_INVALID_VALUE;
    memory->owned = false;
  }
  if (stream == nullptr) {
    device_drain(memory->context->device);
    graph_memory_unmap(*memory);
  } else {
    stream->submit({CU_GRAPH_NODE_TYPE_MEM_FREE,
                    [memory] { graph_memory_unmap(*memory); }},
                   true);
  }
  return CUDA_SUCCESS;
}

void graph_memory_discard(Machine& machine, uint64_t address) {
  const std::shared_ptr<GraphMemory> memory = machine.graph_memory[address];
  take_away(machine, memory.get());
  memory->owned = false;
  memory->uses = 0;
  machine.memory.remove(address);
  forget_unused(machine, *memory);
}

CUresult graph_memory_attribute(int gpu, CUgraphMem_attribute attribute,
                                uint64_t* value) {
  const Locked machine;
  const GraphBlocks& blocks = machine->graph_blocks[gpu];
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *value = blocks.used.now;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *value = blocks.used.high;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *value = blocks.reserved.now;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *value = blocks.reserved.high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult graph_memory_reset_mark(int gpu, CUgraphMem_attribute attribute) {
  const Locked machine;
  GraphBlocks& blocks = machine->graph_blocks[gpu];
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      blocks.used.high = blocks.used.now;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      blocks.reserved.high = blocks.reserved.now;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

void graph_memory_trim(int gpu) {
  const Locked machine;
  GraphBlocks& blocks = machine->graph_blocks[gpu];
  for (const std::shared_ptr<Block>& block : blocks.spare) {
    blocks.reserved.set(blocks.reserved.now - block->size());
    give_back_bytes(gpu, block->size());
  }
  blocks.spare.clear();
}

}  // namespace ipclab::model
