// SPDX-License-Identifier: Apache-2.0
// The machine as this process sees it: all state that its calls share,
// protected by one lock. A function that takes a Machine is called with the
// lock held; only a Locked returns a Machine. The code in driver/ and runtime/
// never has a Machine: it calls functions that take the lock themselves.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/allocation.h"
#include "core/chunk.h"
#include "core/device.h"
#include "core/graph_memory.h"
#include "core/heap.h"
#include "core/import.h"
#include "core/pool.h"
#include "core/suballocator.h"
#include "core/vmm.h"
#include "core/window.h"

namespace ipclab::model {

struct Machine {
  /// Contexts are kept forever, see CUctx_st.
  std::vector<std::unique_ptr<CUctx_st>> contexts;
  /// Addresses, what is mapped there, and what each GPU may do with it.
  Window window;
  /// The memory at each address.
  Allocations memory;
  /// Which parts of the blocks of small allocations are free.
  Suballocator small;
  /// The ranges of cuMemAddressReserve, by address.
  std::map<uint64_t, Range> ranges;
  /// The chunks of cuMemCreate and of imports, while the program holds a
  /// reference.
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Chunk>> chunks;
  /// All pools, and which of them belong to each place.
  std::vector<Pool> pools;
  std::map<PoolPlaceName, PoolPlace> pool_places;
  /// Memory of allocation nodes, by address, and its blocks, by GPU.
  std::map<uint64_t, std::shared_ptr<GraphMemory>> graph_memory;
  std::map<int, GraphBlocks> graph_blocks;
  /// The heaps of kernels (malloc), by context.
  std::map<CUcontext, Heap> heaps;
  /// The blocks of other processes that cuIpcOpenMemHandle opened.
  std::vector<Import> imports;
};

/// The machine, which is locked as long as this object exists. No code keeps
/// this object while the code waits for work of a GPU or for another process.
class Locked {
 public:
  Locked();
  Machine* operator->() const { return machine_; }
  Machine& operator*() const { return *machine_; }

 private:
  std::unique_lock<std::mutex> lock_;
  Machine* machine_;
};

}  // namespace ipclab::model
