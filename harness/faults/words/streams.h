// Words about the work of streams and about events in them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/faults/words/effects.h"
#include "harness/faults/words/events.h"
#include "harness/faults/words/functions.h"

namespace ipclab::faults {

/// The calls that record an event.
constexpr Functions kRecords{kRecord, kRecordFlags};
/// The calls that give work to a stream, and the end of the stream.
constexpr Functions kStreamWork{
    kLaunch,   kCopyAsync, kSetAsync,    kHostFunction, kWaitEvent,    kBatch,
    kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,   kDestroyStream};

/// More calls that give work to a stream.
constexpr Functions kMoreWork{kLaunchGraph, kRecord, kWaitWord64, kWriteWord64};

/// The event that an export names.
inline cudaEvent_t exported_event(Call& get) { return get.at<cudaEvent_t>(1); }

/// Marks the present end of the work of a stream.
inline int mark_stream(Call& call) {
  cudaEventRecord(mark_of(stream_of(call)), stream_of(call));
  stream_marks.put(stream_of(call));
  return kSuccess;
}

/// Was the last work of the stream, before this call, a `first` one, and is the
/// stream still busy? Asked once for each work; `first` is about this call.
inline bool follows(Call& call, bool first) {
  const bool next = stream_marks.erase(stream_of(call));
  if (first) stream_marks.put(stream_of(call));
  return next && is_busy(stream_of(call));
}
/// Was it a wait for an imported event?
inline bool follows_import_wait(Call& call) {
  return follows(call, waits_for_event(call) && uses_import(call));
}

/// Does the call let a stream wait for a pending imported event?
inline bool waits_for_import(Call& call) {
  return waits_for_event(call) && uses_import(call) &&
         is_pending(shared_event(call));
}

/// Is a marked event pending? Events that are complete lose their mark.
inline bool is_marked_event_pending() {
  for (const auto& each : event_marks.all()) {
    const auto event = reinterpret_cast<cudaEvent_t>(each.first);
    if (events.has(event) && is_pending(event)) return true;
    event_marks.erase(event);
  }
  return false;
}

/// Marks events with blocking waits, and tells the other processes of them.
inline int note_blocking(Call& call) {
  if (makes_event(call) && (flags_of(call) & cudaEventBlockingSync) != 0)
    event_marks.put(*made_event(call));
  if (exports_event(call) && event_marks.has(exported_event(call)))
    tell_processes("blocking-" + event_keys.get(exported_event(call)), 1);
  return kSuccess;
}
/// Has the exporter told that waits for this event block?
inline bool is_blocking_event(cudaEvent_t event) {
  return is_imported(event) &&
         told("blocking-" + event_keys.get(event), 0) != 0;
}

/// Notes that an event was recorded, for all processes.
inline int note_recorded(cudaEvent_t event) {
  event_marks.put(event);
  if (event_keys.has(event))
    tell_processes("recorded-" + event_keys.get(event), 1);
  return kSuccess;
}
/// Has a process recorded an event?
inline bool was_recorded(cudaEvent_t event) {
  return event_marks.has(event) ||
         (event_keys.has(event) &&
          told("recorded-" + event_keys.get(event), 0) != 0);
}

/// Was the event opened by another thread? Marks of events have their threads.
inline bool is_of_other_thread(Call& call) {
  return uses_import(call) &&
         event_marks.get<int>(shared_event(call)) != this_thread();
}

/// Another interprocess event of this process.
inline cudaEvent_t other_event(Call&) {
  static const cudaEvent_t other = [] {
    cudaEvent_t made = nullptr;
    cudaEventCreateWithFlags(&made, kInterprocess | kUntimed);
    return made;
  }();
  return other;
}

}  // namespace ipclab::faults
