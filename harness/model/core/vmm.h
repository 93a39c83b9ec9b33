// SPDX-License-Identifier: Apache-2.0
// Addresses without physical memory: reservations, the memory that is mapped
// into them, and the access to this memory (Driver API, virtual memory
// management). A mapping is an entry of Machine::memory with a chunk.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/window.h"

namespace ipclab::model {

struct Machine;

/// A range that cuMemAddressReserve gave to the program.
struct Range {
  uint64_t address = 0;
  uint64_t size = 0;         ///< as the program requested it
  uint64_t taken = 0;        ///< the first address taken from the window
  uint64_t taken_bytes = 0;  ///< `size`, with room for the alignment
};

/// The address is a multiple of `alignment` (a power of two, 0 for none) and of
/// kPage.
CUresult range_reserve(uint64_t size, uint64_t alignment, uint64_t* address);
/// Returns CUDA_ERROR_INVALID_VALUE unless the range is exactly one reservation
/// and nothing is mapped in it.
CUresult range_free(uint64_t address, uint64_t size);
/// Returns CUDA_ERROR_INVALID_VALUE unless all arguments are multiples of the
/// granularity, the addresses are reserved and free, and the memory is large
/// enough. `offset` must be 0. With driver 580, a part of the memory gives
/// CUDA_ERROR_NOT_SUPPORTED.
CUresult range_map(uint64_t address, uint64_t size, uint64_t offset,
                   CUmemGenericAllocationHandle handle);
/// Unmaps one or more whole mappings without a hole. First waits for all work
/// of the devices that have access to the mappings.
CUresult range_unmap(uint64_t address, uint64_t size);
/// Sets the access to one or more whole mappings without a hole. Returns
/// CUDA_ERROR_INVALID_DEVICE for a GPU that does not exist or cannot access the
/// memory; then nothing changes.
CUresult range_set_access(uint64_t address, uint64_t size,
                          const CUmemAccessDesc* list, size_t count);
CUresult range_get_access(uint64_t address, CUmemLocation location,
                          unsigned long long* flags);

/// The reservation that contains an address, or null.
const Range* find_range(Machine& machine, uint64_t address);
/// True if a copy of this context may use mapped memory. The GPU of the
/// context, the GPU where the bytes are, or the host must have access. Without
/// a context it is a peer copy, and the access of another GPU does not count.
bool may_copy(Machine& machine, CUcontext context, uint64_t address,
              uint64_t size, Access needed);

}  // namespace ipclab::model
