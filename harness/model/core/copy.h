// SPDX-License-Identifier: Apache-2.0
// Copies, and calls that set memory, with the synchronisation that the API
// reference promises ("API synchronization behavior").
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "core/memory.h"
#include "core/stream.h"

namespace ipclab::model {

/// A region of memory: slices, which consist of rows of bytes. Addresses may be
/// device, pinned, managed, registered or ordinary host memory: unified
/// addressing shows which.
struct Region {
  uint64_t address = 0;
  uint64_t pitch = 0;  ///< bytes between two rows
  uint64_t slice = 0;  ///< bytes between two slices
};
struct Extent {
  uint64_t width = 0;  ///< bytes
  uint64_t height = 1;
  uint64_t depth = 1;
};

/// Copies in the order of the stream. Returns CUDA_ERROR_INVALID_VALUE if a
/// range leaves its allocation, or if the range is memory of a pool that the
/// GPU of `current` may not use. `current` is null for a peer copy, which names
/// its GPUs: then the GPU of a mapping's memory must have access to the
/// mapping. An address that CUDA does not know counts as host memory. With
/// `read_now` the source may be read during the call, and is not read later.
CUresult copy(const std::shared_ptr<Stream>& stream, CUcontext current,
              const Region& to, const Region& from, const Extent& extent,
              bool asynchronous, bool read_now = false);

/// A range of bytes, with the address at which the model has mapped them.
struct Span {
  char* bytes = nullptr;
  int gpu = -1;  ///< of the profile; -1: on the host
  Pin pin;
};
/// The span that a copy in a stream of this context may use, by the rules of
/// copy(). Returns CUDA_ERROR_INVALID_VALUE for an invalid address.
CUresult find_span(CUcontext stream, CUcontext current, uint64_t address,
                   uint64_t size, bool written, Span* span);

/// Sets elements of 1, 2 or 4 bytes; `extent.width` counts bytes.
CUresult set(const std::shared_ptr<Stream>& stream, const Region& to,
             uint32_t value, unsigned element, const Extent& extent,
             bool asynchronous);

}  // namespace ipclab::model
