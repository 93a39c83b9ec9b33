// Facts about legacy handles, opened memory and events.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/world/legacy.h"

namespace ipclab::faults {

void note_opened(Call& call) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(cudaIpcEventHandle_t));
  if (exports_memory(call) || exports_event(call)) {
    own_handles.put(key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)));
  } else if (is_open_call(call)) {
    const auto& bytes = call.at<cudaIpcMemHandle_t>(1);
    const Opened made{key_of_handle(bytes), bytes, current_context(),
                      this_thread(), 0};
    opened.change([&](auto& all) {
      Opened& one = all[*call.at<void**>(0)];
      if (one.count == 0) one = made;
      ++one.count;
    });
  } else if (is_close_call(call)) {
    count_close(call.at<void*>(0));
  }
}

void note_events(Call& call) {
  if (opens_event(call)) {
    const auto event = *call.at<cudaEvent_t*>(0);
    events.put(event, true);
    event_keys.put(event, key_of_handle(call.at<cudaIpcEventHandle_t>(1)));
  } else if (exports_event(call)) {
    const auto event = call.at<cudaEvent_t>(1);
    events.change([&](auto& all) { all.emplace(event, false); });
    event_keys.put(event, key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)));
  } else if (makes_event(call) && (call.at<unsigned>(1) & kInterprocess)) {
    events.put(*call.at<cudaEvent_t*>(0), false);
    // An earlier event may have had the same number.
    event_keys.erase(*call.at<cudaEvent_t*>(0));
  } else if (call.is("cudaEventDestroy")) {
    events.erase(call.at<cudaEvent_t>(0));
  }
}

}  // namespace ipclab::faults
