// SPDX-License-Identifier: Apache-2.0
// Physical memory without an address: the chunks that cuMemCreate makes, their
// references, and the shareable handles by which other processes get them
// (Driver API, virtual memory management).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "core/block.h"

namespace ipclab::model {

struct Machine;

/// The object of a CUmemGenericAllocationHandle. It lives as long as this
/// process has a reference to it or a mapping of it. The bytes in the memfd
/// live longer if another process or a descriptor still has them.
struct Chunk {
  Chunk() = default;
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  CUmemGenericAllocationHandle handle = 0;
  int references = 0;  ///< the program must release them
  std::shared_ptr<Block> block;
  CUmemAllocationProp properties{};  ///< with this process's ordinals
  bool imported = false;

  uint64_t size() const { return block->size(); }
  bool on_host() const { return block->gpu() < 0; }
};

/// Returns CUDA_ERROR_NOT_SUPPORTED unless the profile has virtual memory
/// management.
CUresult chunk_granularity(const CUmemAllocationProp& wanted,
                           CUmemAllocationGranularity_flags which,
                           size_t* bytes);
/// Returns CUDA_ERROR_NOT_PERMITTED for fabric memory without an IMEX channel,
/// CUDA_ERROR_NOT_SUPPORTED for a handle type that the GPU does not know.
CUresult chunk_create(uint64_t size, const CUmemAllocationProp& wanted,
                      CUmemGenericAllocationHandle* handle);
/// Returns CUDA_ERROR_INVALID_VALUE for a value that is not a handle (the
/// documentation does not define this).
CUresult chunk_release(CUmemGenericAllocationHandle handle);
CUresult chunk_properties(CUmemGenericAllocationHandle handle,
                          CUmemAllocationProp* properties);
/// Takes one more reference to the handle that was mapped at an address.
CUresult chunk_retain(uint64_t address, CUmemGenericAllocationHandle* handle);

/// Writes an int (a new descriptor, close-on-exec) or a CUmemFabricHandle.
/// Returns CUDA_ERROR_INVALID_VALUE for a type that was not requested at the
/// creation. As an H200 does, it returns the same code for an imported handle.
CUresult chunk_export(CUmemGenericAllocationHandle handle,
                      CUmemAllocationHandleType type, void* shareable);
/// Makes a new handle each time, as an H200 does. Returns
/// CUDA_ERROR_INVALID_VALUE for anything that chunk_export did not make (driver
/// 580: CUDA_ERROR_UNKNOWN for a descriptor), CUDA_ERROR_NOT_PERMITTED for
/// another IMEX channel, CUDA_ERROR_NOT_SUPPORTED for memory that no GPU of
/// this process can access.
CUresult chunk_import(void* shareable, CUmemAllocationHandleType type,
                      CUmemGenericAllocationHandle* handle);

/// The memory of a chunk's descriptor, which stays open; null for any other
/// descriptor.
std::shared_ptr<Block> adopt_chunk(int descriptor);

/// The chunk of a handle, or null.
std::shared_ptr<Chunk> find_chunk(Machine& machine,
                                  CUmemGenericAllocationHandle handle);

}  // namespace ipclab::model
