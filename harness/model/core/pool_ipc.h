// SPDX-License-Identifier: Apache-2.0
// Pools between processes: a process sends the pool as a descriptor or a fabric
// handle, and an allocation as 64 bytes that name its place in the pool
// (Programming Guide, interprocess communication support of the stream ordered
// memory allocator).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ipclab::model {

/// Returns CUDA_ERROR_INVALID_VALUE for a pool that was not created for this
/// type of handle, for the default pool and for an imported pool.
CUresult pool_export(CUmemoryPool pool, CUmemAllocationHandleType type,
                     unsigned long long flags, void* shareable);
/// Imports the pool of a fabric handle or of a descriptor, which the caller
/// still has to close. Each import is a separate pool, which at first only its
/// own GPU may use. Returns CUDA_ERROR_INVALID_VALUE (driver 580:
/// CUDA_ERROR_UNKNOWN) for a descriptor that is not a pool.
CUresult pool_import(void* shareable, CUmemAllocationHandleType type,
                     unsigned long long flags, CUmemoryPool* pool);
/// Returns CUDA_ERROR_INVALID_VALUE unless the address is the beginning of an
/// allocation of a pool that was exported before.
CUresult pool_export_pointer(CUmemPoolPtrExportData* data, uint64_t address);
/// Returns CUDA_ERROR_INVALID_VALUE for bytes that pool_export_pointer did not
/// make for this pool. A second import gives the same address. As on an H200,
/// the first free ends both imports.
CUresult pool_import_pointer(CUmemoryPool pool,
                             const CUmemPoolPtrExportData* data,
                             uint64_t* address);

}  // namespace ipclab::model
