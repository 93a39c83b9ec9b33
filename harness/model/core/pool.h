// SPDX-License-Identifier: Apache-2.0
// The stream-ordered allocator: pools, and memory that is allocated and freed
// in the order of streams (Programming Guide, stream ordered memory allocator).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "core/pool_file.h"
#include "core/pool_space.h"
#include "core/stream.h"
#include "core/window.h"

namespace ipclab::model {

/// A number, and its largest value since the last reset.
struct Gauge {
  uint64_t now = 0;
  uint64_t high = 0;
  void set(uint64_t value) {
    now = value;
    if (now > high) high = now;
  }
};

/// Memory of a pool that belongs to the program until the call that frees it.
struct Lease {
  uint64_t size = 0;     ///< in the unit of the statistics
  uint64_t mapping = 0;  ///< first address of the range that holds it
  uint64_t bytes = 0;    ///< of that range
  uint64_t offset = 0;   ///< of the first byte in the pool's file
  bool ready = false;    ///< its stream has reached the allocation
  bool ended = false;    ///< freed without a stream
  bool exported = false;
};

}  // namespace ipclab::model

/// The object of a CUmemoryPool.
struct CUmemPoolHandle_st {
  CUmemPoolProps properties{};
  int gpu = -1;  ///< of the profile; -1: host memory
  bool is_default = false;
  bool imported = false;
  bool destroyed = false;  ///< exists until the last free is done
  bool exported = false;
  std::shared_ptr<ipclab::model::PoolFile> file;
  ipclab::model::PoolSpace space;  ///< unused in an imported pool
  std::map<uint64_t, std::shared_ptr<ipclab::model::Lease>>
      leases;  ///< by address
  int unfinished_frees = 0;
  std::map<int, ipclab::model::Access> access;  ///< as set, by ordinal
  uint64_t release_threshold = 0;
  int policies[3] = {1, 1, 1};  ///< in the order of CUmemPool_attribute
  ipclab::model::Gauge reserved;
  ipclab::model::Gauge used;
};

namespace ipclab::model {

using Pool = std::shared_ptr<CUmemPoolHandle_st>;

struct Machine;

/// A place that has a default pool: location type and number, and the type of
/// its allocations.
using PoolPlaceName = std::tuple<int, int, int>;
struct PoolPlace {
  Pool preset;
  Pool current;
};

/// Returns CUDA_ERROR_INVALID_VALUE for properties that the header forbids and
/// for handle types that the GPU does not support, CUDA_ERROR_NOT_PERMITTED for
/// fabric handles without an IMEX channel.
CUresult check_pool_properties(const CUmemPoolProps& wanted);
CUresult pool_create(const CUmemPoolProps& properties, CUmemoryPool* pool);
/// Returns at once. The memory is released with the last free. Returns
/// CUDA_ERROR_INVALID_VALUE for a default pool.
CUresult pool_destroy(CUmemoryPool pool);

/// The default and the current pool of a place, as cuMemGetDefaultMemPool
/// defines it. Returns CUDA_ERROR_INVALID_VALUE for a place that has no pool.
CUresult pool_default(CUmemLocation location, CUmemAllocationType type,
                      CUmemoryPool* pool);
CUresult pool_current(CUmemLocation location, CUmemAllocationType type,
                      CUmemoryPool* pool);
/// Returns CUDA_ERROR_INVALID_VALUE for a pool of another place, and for an
/// imported pool.
CUresult pool_set_current(CUmemLocation location, CUmemAllocationType type,
                          CUmemoryPool pool);

/// cuMemAllocAsync and cuMemAllocFromPoolAsync. The address is known at once;
/// kernels may use the memory when the stream has reached the allocation. For a
/// size of 0, the address is 0 and there is no error.
CUresult pool_allocate(CUmemoryPool pool, const std::shared_ptr<Stream>& stream,
                       uint64_t size, uint64_t* address);
/// Frees memory of a pool, or ends the use of imported memory. This happens in
/// the order of the stream, or at once if there is no stream.
CUresult pool_free(uint64_t address, const std::shared_ptr<Stream>& stream);

/// Succeeds without an effect for an imported pool (with driver 580: returns
/// CUDA_ERROR_INVALID_VALUE), and for a pool that can be shared (not with
/// driver 580 or Choice::kPoolsRelease).
CUresult pool_trim(CUmemoryPool pool, uint64_t bytes_to_keep);
CUresult pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                            const void* value);
CUresult pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                            void* value);
/// Returns CUDA_ERROR_INVALID_DEVICE for a GPU that cannot reach the pool's
/// memory, and for less than full access of the GPU that has the memory.
CUresult pool_set_access(CUmemoryPool pool, const CUmemAccessDesc* list,
                         size_t count);
CUresult pool_get_access(CUmemoryPool pool, CUmemLocation location,
                         CUmemAccess_flags* flags);

/// The effect of a synchronization: every stream may use the memory of the
/// frees for which the synchronization waited, and memory above the release
/// thresholds goes back to the system.
void after_synchronize(const Order& frees);
void after_synchronize(CUcontext context);

/// The pool of a handle; null if there is no such pool or it was destroyed.
Pool find_pool(Machine& machine, CUmemoryPool handle);
/// The access of a GPU to all memory of a pool.
Access access_of(const CUmemPoolHandle_st& pool, int ordinal);
bool refuses_attributes(const CUmemPoolHandle_st& pool);
inline bool is_managed(const CUmemPoolProps& properties) {
  return properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
}
/// Releases the memory of a destroyed pool when all of it is freed.
void bury(Machine& machine, const Pool& pool);
/// Makes memory that the program gets from a pool known to the other calls.
void lend(Machine& machine, CUmemoryPool pool, uint64_t address, uint64_t size,
          std::shared_ptr<Lease> lease, int gpu);
/// Gives each GPU the access to a lease that it has to the pool.
void grant_lease(Machine& machine, const CUmemPoolHandle_st& pool,
                 const Lease& lease);

}  // namespace ipclab::model
