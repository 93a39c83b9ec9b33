// SPDX-License-Identifier: Apache-2.0
// Pools between processes: the pool travels as a descriptor or a fabric handle,
// an allocation as 64 bytes that name its place in the pool (Programming Guide,
// interprocess communication support of the stream ordered memory allocator).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ipclab::model {

/// CUDA_ERROR_INVALID_VALUE for a pool that was not created for this type of
/// handle, for the default pool and for an imported one.
CUresult pool_export(CUmemoryPool pool, CUmemAllocationHandleType type,
                     unsigned long long flags, void* shareable);
/// The pool of a fabric handle or of a descriptor, which the caller still
/// closes. Each import is a separate pool, which only its own GPU may use.
CUresult pool_import(void* shareable, CUmemAllocationHandleType type,
                     unsigned long long flags, CUmemoryPool* pool);
/// CUDA_ERROR_INVALID_VALUE unless the address is that of an allocation of a
/// pool that was exported before.
CUresult pool_export_pointer(CUmemPoolPtrExportData* data, uint64_t address);
/// CUDA_ERROR_INVALID_VALUE for bytes that pool_export_pointer did not make for
/// this pool. A second import gives the same address, and as on an H200 the
/// first free ends both.
CUresult pool_import_pointer(CUmemoryPool pool,
                             const CUmemPoolPtrExportData* data,
                             uint64_t* address);

}  // namespace ipclab::model
