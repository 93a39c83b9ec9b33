// What both files of these tests use.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/scenario/cuda.h"
#include "harness/scenario/endpoint.h"
#include "harness/scenario/vmm.h"

namespace ipclab {

inline constexpr size_t kBytes = 4 << 20;

/// Memory that can be bound to an exportable endpoint.
inline Chunk fabric_chunk(size_t bytes, int device = 0) {
  return Chunk::create(bytes, chunk_of(device, CU_MEM_HANDLE_TYPE_FABRIC));
}

}  // namespace ipclab

/// Judges a call that must be refused because of its arguments.
#define EXPECT_INVALID(call)                                               \
  EXPECT_REFUSED(call, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, \
                 CUDA_ERROR_NOT_PERMITTED)
