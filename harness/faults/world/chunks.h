// Tables of the memory of cuMemCreate of a process, of its addresses and of its
// mappings. All faults of this memory use them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/faults/engine/fault.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {

/// The handle of memory that this process has created or imported.
using Chunk = CUmemGenericAllocationHandle;

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

/// Mapped memory.
struct Mapped {
  size_t bytes = 0;
  Chunk chunk = 0;
  int thread = 0;  ///< the thread that has mapped it
  int order = 0;   ///< the number of the mapping: 1, 2, 3 …
};

/// All mappings, by their first address.
inline Table<CUdeviceptr, Mapped> mappings;
/// The sizes of all reservations, by their first address.
inline Table<CUdeviceptr, size_t> reservations;
/// The sizes of all memory that was created here.
inline Table<Chunk, size_t> created;
/// All memory that was imported. It stays here after its release, because it
/// may still be mapped.
inline Table<Chunk> imports;
/// All memory that was exported.
inline Table<Chunk> exports;
/// All handles that were released.
inline Table<Chunk> released;

/// Updates the tables above after an accepted call.
void note_chunks(Call& call);

/// The beginning of the mapping that contains an address, or 0.
inline CUdeviceptr mapping_at(CUdeviceptr address) {
  for (const auto& [begin, mapped] : mappings.all())
    if (address >= begin && address - begin < mapped.bytes) return begin;
  return 0;
}

/// The beginning of the reservation that contains an address, or 0.
inline CUdeviceptr reservation_at(CUdeviceptr address) {
  for (const auto& [begin, bytes] : reservations.all())
    if (address >= begin && address - begin < bytes) return begin;
  return 0;
}

/// The beginning of the first mapping of memory, or 0.
inline CUdeviceptr mapping_of(Chunk chunk) {
  for (const auto& [begin, mapped] : mappings.all())
    if (mapped.chunk == chunk) return begin;
  return 0;
}

/// Does an address lie in a mapping of imported memory?
inline bool is_import(CUdeviceptr address) {
  const CUdeviceptr begin = mapping_at(address);
  return begin != 0 && imports.has(mappings.get(begin).chunk);
}

/// The properties of memory.
inline CUmemAllocationProp properties_of(Chunk chunk) {
  CUmemAllocationProp found{};
  DRIVER_CALL(cuMemGetAllocationPropertiesFromHandle)(&found, chunk);
  return found;
}

/// Takes a reference to the memory of a mapping. Returns 0 if the driver
/// refuses it.
inline Chunk retain(CUdeviceptr address) {
  Chunk held = 0;
  return DRIVER_CALL(cuMemRetainAllocationHandle)(
             &held, reinterpret_cast<void*>(address)) == CUDA_SUCCESS
             ? held
             : 0;
}

/// The location of the memory of a mapping. (The program may have released the
/// handle.)
inline CUmemLocation location_at(CUdeviceptr address) {
  const Chunk held = retain(address);
  if (held == 0) return {};
  const CUmemLocation found = properties_of(held).location;
  DRIVER_CALL(cuMemRelease)(held);
  return found;
}

/// The location of a GPU's memory.
inline CUmemLocation on_gpu(int gpu) {
  return {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
}

/// New memory for a fault. Returns 0 if the driver refuses it.
inline Chunk new_chunk(
    size_t bytes, CUmemLocation location,
    CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = location;
  wanted.requestedHandleTypes = type;
  Chunk made = 0;
  return DRIVER_CALL(cuMemCreate)(&made, bytes, &wanted, 0) == CUDA_SUCCESS
             ? made
             : 0;
}

/// The access that a location has to an address.
inline unsigned long long access_of(CUdeviceptr address,
                                    CUmemLocation location) {
  unsigned long long flags = 0;
  DRIVER_CALL(cuMemGetAccess)(&flags, &location, address);
  return flags;
}

/// Sets the access of one location to a range. Returns false if the driver
/// refuses it.
inline bool allow(
    CUdeviceptr begin, size_t bytes, CUmemLocation location,
    unsigned long long flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc access{};
  access.location = location;
  access.flags = static_cast<CUmemAccess_flags>(flags);
  return DRIVER_CALL(cuMemSetAccess)(begin, bytes, &access, 1) == CUDA_SUCCESS;
}
/// Sets the access of one location to a mapping.
inline bool allow(CUdeviceptr begin, CUmemLocation location,
                  unsigned long long flags) {
  return allow(begin, mappings.get(begin).bytes, location, flags);
}

}  // namespace ipclab::faults
