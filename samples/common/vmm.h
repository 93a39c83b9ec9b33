// These functions map, export and import physical memory. Lesson 30
// makes the same calls without these functions.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "check.h"
#include "data.h"

/// A handle of physical memory that was created or imported.
using Memory = CUmemGenericAllocationHandle;

/// Returns properties: memory of GPU 0 that can be exported as `type`.
inline CUmemAllocationProp shareable(
    CUmemAllocationHandleType type =
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = type;
  return wanted;
}

/// Rounds `bytes` up to a multiple of the granularity for `wanted`.
inline size_t whole_granules(size_t bytes,
                             const CUmemAllocationProp& wanted) {
  size_t granularity = 0;
  CU_CHECK(DRIVER(cuMemGetAllocationGranularity)(
      &granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return round_up(bytes, granularity);
}

/// Reserves addresses, maps the memory there, and gives device 0 read
/// and write access. `bytes` is the size of the memory.
inline void* map_memory(Memory memory, size_t bytes) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, bytes, 0, memory, 0));

  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, bytes, &access, 1));
  return reinterpret_cast<void*>(address);
}

/// Unmaps what map_memory() has mapped, and frees the addresses. The
/// caller still has to release the memory.
inline void unmap_memory(void* data, size_t bytes) {
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  CU_CHECK(DRIVER(cuMemUnmap)(address, bytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, bytes));
}

/// Imports memory from a descriptor. The caller closes the descriptor.
inline CUresult import_memory(Memory* memory, int descriptor) {
  return DRIVER(cuMemImportFromShareableHandle)(
      memory, reinterpret_cast<void*>(intptr_t{descriptor}),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/// Exports memory as a descriptor. The caller closes the descriptor.
inline int export_memory(Memory memory) {
  int descriptor = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(
      &descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      0));
  return descriptor;
}

/// Sends the size and a descriptor of the memory, for receive_memory().
template <class Channel>
void send_memory(Channel& channel, Memory memory, size_t bytes) {
  const int descriptor = export_memory(memory);
  channel.send("bytes", bytes);
  channel.send_descriptor("memory", descriptor);
  SYS_CHECK(close(descriptor));
}

/// Imports the memory that send_memory() sent. Sets *bytes to its size.
template <class Channel>
Memory receive_memory(Channel& channel, size_t* bytes) {
  *bytes = channel.template receive<size_t>("bytes");
  const int descriptor = channel.receive_descriptor("memory");
  Memory memory;
  CU_CHECK(import_memory(&memory, descriptor));
  SYS_CHECK(close(descriptor));
  return memory;
}
