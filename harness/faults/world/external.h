// Tables of the external memory of a process and of the buffers that it has
// mapped onto this memory.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/faults/engine/fault.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {

/// The object of an import, which both APIs have.
using External = CUexternalMemory;

/// A buffer that is mapped onto external memory.
struct ExternalPart {
  External memory = nullptr;
  unsigned long long offset = 0;
  unsigned long long bytes = 0;
};

/// All imported external memory.
inline Table<External> externals;
/// All mapped buffers, by their address. They stay after the destroy of their
/// object, until they are freed.
inline Table<CUdeviceptr, ExternalPart> external_parts;

/// Updates the tables above after an accepted call.
void note_external(Call& call);

/// What an import gets; the structs of both APIs begin alike.
inline CUDA_EXTERNAL_MEMORY_HANDLE_DESC& import_of(Call& call) {
  return *call.at<CUDA_EXTERNAL_MEMORY_HANDLE_DESC*>(1);
}
/// What the mapping of a buffer gets.
inline CUDA_EXTERNAL_MEMORY_BUFFER_DESC& part_of(Call& call) {
  return *call.at<CUDA_EXTERNAL_MEMORY_BUFFER_DESC*>(2);
}

/// Has an object a mapped buffer?
inline bool has_parts(External memory) {
  for (const auto& [address, part] : external_parts.all())
    if (part.memory == memory) return true;
  return false;
}

}  // namespace ipclab::faults
