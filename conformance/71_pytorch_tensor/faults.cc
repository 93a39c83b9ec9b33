// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int late_import_ignored(Call& call) {
  constexpr int kMost = 32;
  static Table<cudaEvent_t> late;
  if (keeps_events(call)) {
    int open = 0;
    for (const auto& each : events.all()) open += each.second ? 1 : 0;
    const int code = call.proceed();
    if (code != kSuccess || !opens_event(call)) return code;
    const cudaEvent_t event = *call.at<cudaEvent_t*>(0);
    late.erase(event);
    if (open >= kMost) late.put(event);
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && late.has(event) &&
                 is_pending(event)
             ? lost(call)
             : call.proceed();
}

FAULTS {
  fault("import-beyond-32-not-awaited", {"TENS-02"},
        "if a process has more than 32 imported events open, no stream waits "
        "for the later ones")
      .on({kGetEventHandle, kOpenEvent, kCreateEvent, kDestroyEvent,
           kWaitEvent},
          late_import_ignored);
}

}  // namespace
}  // namespace ipclab::faults
