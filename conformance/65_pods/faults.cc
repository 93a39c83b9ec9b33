// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// After the first importer has released its import, other processes get new
// memory.
int memory_goes_with_first_importer(Call& call) {
  static auto& later = *new Table<Chunk>;
  static bool first = false;
  if (call.is(kMap))
    return later.has(call.at<Chunk>(3)) ? map_new_instead(call)
                                        : call.proceed();
  const bool lets_go = call.is(kRelease) && imports.has(call.at<Chunk>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (lets_go && told("let-go", 0) == 0) {
    first = true;
    tell_processes("let-go", 1);
  }
  if (call.is(kImport) && !first && told("let-go", 0) != 0)
    later.put(*call.at<Chunk*>(0));
  return code;
}

}  // namespace

FAULTS {
  fault("chunk-goes-with-first-importer", {"PODS-01"},
        "after an importer has released its memory, other processes that "
        "import it get new memory")
      .on({kImport, kRelease, kMap}, memory_goes_with_first_importer);

  fault("pool-goes-with-first-importer", {"PODS-02"},
        "after an importer has destroyed an imported pool, no other process "
        "can import the pool")
      .on({kImportPool}, WHEN(told("pool-let-go", 0) != 0), refuses())
      .before({kDestroyPool},
              WHEN(imported_pools.has(call.at<cudaMemPool_t>(0))),
              NOTE(tell_processes("pool-let-go", 1)));

  fault("exported-unmapped-leaks", {"PODS-03", "VMM-30"},
        "memory that was exported is never given back if its creator unmaps "
        "it before the release")
      .on({kRelease},
          WHEN(exports.has(call.at<Chunk>(0)) && !is_mapped(call.at<Chunk>(0))),
          lost);
}

}  // namespace ipclab::faults
