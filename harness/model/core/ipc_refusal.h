// SPDX-License-Identifier: Apache-2.0
// What memory and event handles have in common when they are written, read and
// refused.
#pragma once

#include <cuda.h>

#include <cstring>

#include "core/device.h"
#include "core/handle.h"
#include "core/mutant.h"

namespace ipclab::model {

/// A refusal is not sticky: the context stays usable.
inline CUresult refuse(CUcontext context, CUresult code) {
  if (mutant("sticky-after-refusal")) context->sticky = code;
  return code;
}

inline void write_handle(Handle handle, void* out) {
  if (mutant("handle-address-bound")) {
    handle.mark = static_cast<uint32_t>(reinterpret_cast<uint64_t>(out) >> 4);
  }
  std::memcpy(out, &handle, sizeof handle);
  if (mutant("handle-128")) {
    // One byte is enough to notice, and does not end every caller.
    static_cast<char*>(out)[sizeof handle] = 0;
  }
}

/// A handle is plain data; only a mutant ties it to the place it was made at.
inline bool is_bound_here(const Handle& handle, const void* bytes) {
  return !mutant("handle-address-bound") ||
         handle.mark ==
             static_cast<uint32_t>(reinterpret_cast<uint64_t>(bytes) >> 4);
}

}  // namespace ipclab::model
