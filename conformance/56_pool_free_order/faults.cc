// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int import_not_freed(Call& call) {
  if (frees(call) && is_import(call.at<void*>(0))) return refused(call);
  return call.proceed();
}

int imported_event_orders_all(Call& call) {
  static Table<cudaEvent_t> imported;
  static Table<cudaStream_t> waits;
  if (call.is("cudaEventDestroy")) {
    imported.erase(call.value<cudaEvent_t>(kEvent));
    return call.proceed();
  }
  if (call.is("cudaStreamDestroy")) waits.erase(stream_of(call));
  if (call.is("cudaIpcOpenEventHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) imported.put(*call.at<cudaEvent_t*>(0));
    return code;
  }
  if (call.is("cudaStreamWaitEvent")) {
    if (imported.has(call.value<cudaEvent_t>(kEvent)))
      waits.put(stream_of(call));
    return call.proceed();
  }
  void* const address = call.is("cudaFreeAsync") ? call.at<void*>(0) : nullptr;
  if (address != nullptr && is_own_block(address) && busy_free(call)) {
    late_frees.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  if (address != nullptr) return call.proceed();
  for (const auto& [late, free] : late_frees.all()) {
    Now now = Now::kInOrder;
    if (allocates(call) && stream_of(call) != free.stream)
      now = waits.has(stream_of(call)) ? Now::kAtOnce : Now::kStays;
    settle(call, late, free, now);
  }
  return call.proceed();
}

FAULTS {
  fault("import-free-refused", {"POOL-15"},
        "an imported pointer cannot be freed")
      .on({kFree, kFreeAsync}, import_not_freed);

  fault("import-freeasync-refused", {"POOL-15"},
        "an imported pointer cannot be freed by cudaFreeAsync")
      .on({kFreeAsync}, import_not_freed);

  fault("free-order-ignored", {"POOL-17"},
        "the exporter's free does not wait for its stream")
      .on({kFreeAsync, kFree, kExportPointer}, [](Call& call) {
        static Table<void*> exported;
        if (call.is("cudaMemPoolExportPointer")) {
          exported.put(call.at<void*>(1));
          return call.proceed();
        }
        if (!exported.erase(call.at<void*>(0)) || !call.is("cudaFreeAsync") ||
            !is_busy(call.at<cudaStream_t>(1)))
          return call.proceed();
        call.at<cudaStream_t>(1) = private_stream();
        call.fired();
        const int code = call.proceed();
        cudaStreamSynchronize(private_stream());
        return code;
      });

  fault("export-free-leaks", {"POOL-15"},
        "exported memory is never given back to its pool")
      .on({kFreeAsync, kFree, kExportPointer}, [](Call& call) {
        static Table<void*> exported;
        if (call.is("cudaMemPoolExportPointer")) {
          exported.put(call.at<void*>(1));
          return call.proceed();
        }
        if (!exported.erase(call.at<void*>(0))) return call.proceed();
        call.fired();
        return kSuccess;
      });

  fault("second-free-accepted", {"IMPL-16"},
        "cudaFree of memory that was freed before succeeds")
      .on_refusal({kFree}, accepted);

  fault("import-free-at-once", {"POOL-17"},
        "the importer's free does not wait for its stream")
      .on({kFreeAsync, kFree, kImportPointer, kExportPointer, kMallocFromPool},
          importers_free_at_once);

  fault("wait-holds-no-frees", {"POOL-17"},
        "the first cudaFreeAsync after the wait for an imported event does not "
        "wait, if no kernel was launched between them")
      .on({kFreeAsync, kWaitEvent, kOpenEvent, kDestroyEvent, kLaunch,
           kDestroyStream},
          not_held<true>);

  fault("pool-imported-event-orders-all", {"POOL-17"},
        "a wait for an imported event orders the stream after all frees")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kImportPointer, kTrim, kFree, kSyncStream, kSyncEvent, kSyncDevice,
           kSyncContext, kDestroyStream, kOpenEvent, kWaitEvent, kDestroyEvent},
          imported_event_orders_all);
}

}  // namespace
}  // namespace ipclab::faults
