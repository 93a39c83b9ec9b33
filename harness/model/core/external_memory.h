// SPDX-License-Identifier: Apache-2.0
// External memory: a chunk's descriptor that the driver takes over, and buffers
// that are mapped onto its memory (Driver API, external resource
// interoperability).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ipclab::model {

struct Machine;

/// Makes an object of the memory of a chunk's descriptor, and closes the
/// descriptor. Returns CUDA_ERROR_INVALID_HANDLE for any other descriptor,
/// which stays open. Driver 580 returns CUDA_ERROR_UNKNOWN and closes it, too.
CUresult external_memory_import(CUcontext context, int descriptor,
                                uint64_t size, CUexternalMemory* object);
/// Maps a part of the memory. Returns CUDA_ERROR_INVALID_VALUE if the part is
/// empty or not inside the memory.
CUresult external_memory_map(CUexternalMemory object, uint64_t offset,
                             uint64_t size, uint64_t* address);
/// The mapped buffers keep the memory.
CUresult external_memory_destroy(CUexternalMemory object);
void destroy_external_memory(CUcontext context);

}  // namespace ipclab::model
