// SPDX-License-Identifier: Apache-2.0
// The heap of kernels: malloc and free in device code (Programming Guide,
// dynamic global memory allocation). The size of a heap is the limit
// CU_LIMIT_MALLOC_HEAP_SIZE at the first malloc of the context, rounded up to
// 2 MiB. Calls of the host neither free nor copy the heap's memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>

#include "core/block.h"

namespace ipclab::model {

struct Machine;

struct Heap {
  std::shared_ptr<Block> block;
  uint64_t address = 0;
  std::map<uint64_t, uint64_t> free;  ///< address -> bytes
  std::map<uint64_t, uint64_t> used;
};

/// Returns an address that is a multiple of 16; 0 if the heap has no room or
/// `size` is 0.
uint64_t heap_allocate(CUcontext context, uint64_t size);
/// Does nothing for an address that heap_allocate() did not return.
void heap_free(CUcontext context, uint64_t address);
/// Frees the heap of a context that ends.
void heap_discard(Machine& machine, CUcontext context);

}  // namespace ipclab::model
