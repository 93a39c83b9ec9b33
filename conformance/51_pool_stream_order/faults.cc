// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

FAULTS {
  fault("pool-import-blocks", {"POOL-11"},
        "sharing a pointer waits for the work of all streams")
      .on({kExportPointer, kImportPointer}, waits_for_streams);

  fault("exportptr-waits-for-blocking", {"POOL-11"},
        "the export of a pointer waits for the stream of the allocation if "
        "this is the default stream or a blocking stream")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kExportPointer},
          [](Call& call) {
            static Table<void*, cudaStream_t> allocated_in;
            if (frees(call)) allocated_in.erase(call.at<void*>(0));
            if (exports_of_pool_path(call) &&
                allocated_in.has(call.at<void*>(1))) {
              const cudaStream_t stream = allocated_in.get(call.at<void*>(1));
              if (is_busy(stream)) {
                call.fired();
                cudaStreamSynchronize(stream);
              }
            }
            const int code = call.proceed();
            if (code == kSuccess && allocates(call) && !is_per_thread(call) &&
                (is_default(stream_of(call)) ||
                 has_flags(stream_of(call), cudaStreamDefault)))
              allocated_in.put(*call.at<void**>(0), stream_of(call));
            return code;
          });
}

}  // namespace
}  // namespace ipclab::faults
