// SPDX-License-Identifier: Apache-2.0
// The memory that programs allocate, free and register: device memory
// (device_memory.cc), and pinned, managed and registered memory
// (host_memory.cc). Every function without a Machine takes the lock itself.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/allocation.h"
#include "core/vmm.h"

namespace ipclab::model {

class Stream;
struct Machine;

/// cuMemAlloc: small allocations share a 2 MiB block, and each begins at a
/// multiple of 512 bytes.
CUresult memory_allocate(CUcontext context, uint64_t size, Kind kind,
                         uint64_t* address);
/// cuMemFree, for all memory that it may free. Returns CUDA_ERROR_INVALID_VALUE
/// if the address is not the beginning of such an allocation.
CUresult memory_free(uint64_t address);
/// cuMemFreeAsync: in the order of the stream. A stream that captures can free
/// only memory of graphs.
CUresult memory_free_async(uint64_t address,
                           const std::shared_ptr<Stream>& stream);
/// Frees a module's variable without waiting for any work.
void variable_free(uint64_t address);
/// Where the bytes of a module's variable are.
void* variable_bytes(uint64_t address);

/// Pinned and managed memory: the same address for host and kernels.
CUresult host_allocate(CUcontext context, uint64_t size, Kind kind,
                       unsigned flags, uint64_t* address);
/// cuMemFreeHost.
CUresult host_free(uint64_t address);
CUresult host_register(CUcontext context, uint64_t address, uint64_t size,
                       unsigned flags);
CUresult host_unregister(uint64_t address);

/// The facts about an address at this time.
struct AddressFacts {
  std::optional<Allocation> memory;  ///< the memory that contains it
  std::optional<Range> range;        ///< the reservation that contains it
  Access access = kNone;             ///< of kernels of a device
};
AddressFacts address_facts(uint64_t address, int device);
/// The allocation that contains an address; empty if there is none.
std::optional<Allocation> find_memory(uint64_t address);
/// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS. Returns CUDA_ERROR_INVALID_VALUE for host
/// memory and for an unknown address.
CUresult set_sync_memops(uint64_t address, bool on);

/// Frees what belongs to a context that ends.
void free_memory_of(Machine& machine, CUcontext context);

}  // namespace ipclab::model
