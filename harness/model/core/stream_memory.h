// SPDX-License-Identifier: Apache-2.0
// Streams that write a word of memory or wait for a word (Driver API, stream
// memory operations). The word may be in device memory of this or another
// process, or in pinned or registered host memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/stream.h"

namespace ipclab::model {

struct StreamMemoryOperation {
  enum Kind { kWrite, kWait };
  Kind kind;
  uint64_t address;
  uint64_t value;
  unsigned bytes;  ///< of the word: 4 or 8
  unsigned flags;  ///< CUstreamWriteValue_flags or CUstreamWaitValue_flags
};

/// Gives all operations to the stream, in their order, or gives it no
/// operation. Returns CUDA_ERROR_INVALID_VALUE for unknown flags, and for an
/// address that is unaligned, unknown, in a mapping that may_copy() refuses, in
/// managed memory ("cannot be used with managed memory") or in a device's pool;
/// CUDA_ERROR_NOT_SUPPORTED for CU_STREAM_WAIT_VALUE_FLUSH
/// (CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0) and
/// CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER ("not supported in the v2 API").
CUresult stream_memory(const std::shared_ptr<Stream>& stream,
                       const std::vector<StreamMemoryOperation>& operations);

}  // namespace ipclab::model
