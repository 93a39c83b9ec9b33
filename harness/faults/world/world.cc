// What each accepted call changes in the world.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/world/world.h"

#include <cstring>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/external.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/marks.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

/// A part of the world, and the functions that it follows.
struct Part {
  void (*note)(Call& call);
  const char* functions[16];
};

constexpr Part kParts[] = {
    {note_opened,
     {"cudaIpcGetMemHandle", "cudaIpcGetEventHandle", "cudaIpcOpenMemHandle",
      "cudaIpcCloseMemHandle"}},
    {note_events,
     {"cudaEventCreateWithFlags", "cudaIpcGetEventHandle",
      "cudaIpcOpenEventHandle", "cudaEventDestroy"}},
    {note_chunks,
     {"cuMemCreate", "cuMemImportFromShareableHandle",
      "cuMemExportToShareableHandle", "cuMemRelease", "cuMemAddressReserve",
      "cuMemAddressFree", "cuMemMap", "cuMemUnmap"}},
    {note_external,
     {"cudaImportExternalMemory", "cudaExternalMemoryGetMappedBuffer",
      "cudaDestroyExternalMemory", "cudaFree"}},
    {note_pools,
     {"cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync",
      "cudaMemPoolCreate", "cudaMemPoolImportFromShareableHandle",
      "cudaMemPoolDestroy", "cudaMemPoolExportPointer",
      "cudaMemPoolImportPointer"}},
    {note_marks,
     {"cudaEventCreateWithFlags", "cudaIpcOpenEventHandle", "cudaEventDestroy",
      "cudaStreamDestroy", "cuMemUnmap", "cuMemAddressFree", "cuMemCreate",
      "cuMemImportFromShareableHandle", "cudaMemPoolDestroy", "cudaFree",
      "cudaFreeAsync"}},
};

bool follows(const Part& part, const Function& function) {
  for (const char* const name : part.functions)
    if (name != nullptr && std::strcmp(name, function.canonical) == 0)
      return true;
  return false;
}

}  // namespace

void note(Call& call) {
  for (const Part& part : kParts)
    if (follows(part, call.function())) part.note(call);
}

bool is_noted(const Function& function) {
  for (const Part& part : kParts)
    if (follows(part, function)) return true;
  return false;
}

}  // namespace ipclab::faults
