// SPDX-License-Identifier: Apache-2.0
// The memory of graphs (Programming Guide, graph memory nodes). The address of
// an allocation node never changes. The program owns the memory from the launch
// until the call that frees the memory. The bytes exist from the time when the
// stream reaches the allocation until the stream reaches the free.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/block.h"
#include "core/pool.h"
#include "core/stream.h"

namespace ipclab::model {

struct Machine;

/// The memory of one allocation node.
struct GraphMemory {
  CUcontext context = nullptr;
  uint64_t address = 0;
  uint64_t size = 0;
  bool has_node = true;          ///< its node exists and keeps the address
  bool freed_inside = false;     ///< by a node of the graph that allocated it
  bool freed_outside = false;    ///< by a node of another graph
  bool owned = false;            ///< by the program, in the order of its calls
  int uses = 0;                  ///< launches that use it and have not freed it
  std::shared_ptr<Block> block;  ///< null if there are no bytes
};
using GraphMemories = std::vector<std::shared_ptr<GraphMemory>>;

/// The blocks that the graphs of one GPU have or had.
struct GraphBlocks {
  std::vector<std::shared_ptr<Block>> spare;
  Gauge used;      ///< bytes
  Gauge reserved;  ///< bytes, with those of spare blocks
};

/// Memory for a new node. Returns CUDA_ERROR_OUT_OF_MEMORY if no address is
/// left.
CUresult graph_memory_create(CUcontext context, uint64_t size,
                             std::shared_ptr<GraphMemory>* memory);
/// Call this when the graph of the node is destroyed. "Destroying a graph does
/// not automatically free any live graph-allocated memory."
void graph_memory_leave(const std::shared_ptr<GraphMemory>& memory);
/// The memory that begins at an address, or null.
std::shared_ptr<GraphMemory> find_graph_memory(uint64_t address);

/// Call this for each launch. Returns CUDA_ERROR_INVALID_VALUE if the program
/// still owns memory that the graph allocates, or does not own memory that the
/// graph frees but does not allocate. With `frees_first` the first case is no
/// error: the memory that the program still owns is put into `stale`, and the
/// launch must free it first.
CUresult graph_memory_launch(const GraphMemories& allocated,
                             const GraphMemories& freed, bool frees_first,
                             GraphMemories* stale);
/// The work of an allocation node and of a free node.
void graph_memory_map(GraphMemory& memory);
void graph_memory_unmap(GraphMemory& memory);
/// cuMemFree and, with a stream, cuMemFreeAsync.
CUresult graph_memory_free(uint64_t address,
                           const std::shared_ptr<Stream>& stream);
/// Frees memory of a context that ends.
void graph_memory_discard(Machine& machine, uint64_t address);

/// cuDeviceGetGraphMemAttribute and cuDeviceSetGraphMemAttribute, which resets
/// the high marks. Returns CUDA_ERROR_INVALID_VALUE for other attributes.
CUresult graph_memory_attribute(int gpu, CUgraphMem_attribute attribute,
                                uint64_t* value);
CUresult graph_memory_reset_mark(int gpu, CUgraphMem_attribute attribute);
/// cuDeviceGraphMemTrim.
void graph_memory_trim(int gpu);

}  // namespace ipclab::model
