// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "harness/faults/words/streams.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int destroy_cancels_waits(Call& call) {
  static Table<Cancellable*, cudaEvent_t> waits;
  if (call.is("cudaEventDestroy")) {
    for (const auto& [wait, event] : waits.all()) {
      if (event != call.at<cudaEvent_t>(0)) continue;
      waits.erase(wait);
      if (cudaEventQuery(wait->reached) != cudaErrorNotReady) continue;
      cudaGetLastError();
      wait->cancelled = true;
      call.fired();
    }
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  return cancellable(
      call, [&](Cancellable* wait) { waits.put(wait, event); }, kTurn);
}

size_t imported_events() {
  size_t count = 0;
  for (const auto& one : events.all()) count += one.second;
  return count;
}

// A call of `function` does not wait for an event that this process has
// recorded after a wait for another process's record: for an event that
// processes share, or for another one.
int chained_wait_lost(Call& call, const char* function, bool shared) {
  static Table<cudaEvent_t> chained;
  if (call.is("cudaEventDestroy")) chained.erase(call.at<cudaEvent_t>(0));
  if (call.find(kEvent) != nullptr) {
    const auto event = call.value<cudaEvent_t>(kEvent);
    if (records(call)) {
      chained.erase(event);
      if ((shared_event(call) != nullptr) == shared &&
          waits(call.value<cudaStream_t>(kStream)))
        chained.put(event);
    } else if (call.is(function) && chained.has(event) && is_pending(event)) {
      return lost(call);
    }
  }
  return noted_foreign_wait(call, Whose::kAny);
}

template <bool shared>
int chained_stream_wait_lost(Call& call) {
  return chained_wait_lost(call, "cudaStreamWaitEvent", shared);
}

template <bool shared>
int chained_host_wait_lost(Call& call) {
  return chained_wait_lost(call, "cudaEventSynchronize", shared);
}

int second_export_voids_first(Call& call) {
  static Table<cudaEvent_t, int> exports;
  const auto turned = [](cudaIpcEventHandle_t& handle, unsigned long long by) {
    handle.reserved[sizeof handle - 1] ^= static_cast<char>(by);
  };
  if (call.is("cudaEventDestroy")) {
    exports.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  if (exports_event(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const auto event = call.at<cudaEvent_t>(1);
    auto& handle = *call.at<cudaIpcEventHandle_t*>(0);
    const int count = exports.change([&](auto& all) { return ++all[event]; });
    tell_processes("exports-" + key_of_handle(handle), count);
    turned(handle, count);
    tell_processes("export-" + key_of_handle(handle), count);
    return code;
  }
  auto& handle = call.at<cudaIpcEventHandle_t>(1);
  const auto count = told("export-" + key_of_handle(handle), 0);
  if (count == 0) return call.proceed();
  turned(handle, count);
  return told("exports-" + key_of_handle(handle), count) == count
             ? call.proceed()
             : refused(call);
}

int destroy_ends_second_wait(Call& call) {
  struct Wait {
    cudaStream_t stream = nullptr;
    volatile cuuint32_t* end = nullptr;
  };
  static Table<cudaEvent_t, Wait> first;
  static Table<cudaEvent_t, Wait> second;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) {
    if (!call.is("cudaEventDestroy")) return call.proceed();
    const auto gone = call.at<cudaEvent_t>(0);
    const Wait wait = second.get(gone);
    first.erase(gone);
    if (second.erase(gone) && is_pending(gone)) {
      call.fired();
      *wait.end = 1;
    }
    return call.proceed();
  }
  const auto stream = call.at<cudaStream_t>(0);
  if (!is_pending(event) || is_captured(stream)) return call.proceed();
  if (!first.has(event)) {
    first.put(event, {stream});
    return call.proceed();
  }
  if (second.has(event) || first.get(event).stream == stream)
    return call.proceed();
  // A stream of its own waits for the event and then writes the word for which
  // the second stream waits.
  void* word = nullptr;
  cudaStream_t other = nullptr;
  if (cudaHostAlloc(&word, sizeof(cuuint32_t), cudaHostAllocDefault) !=
          cudaSuccess ||
      cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) != cudaSuccess)
    return call.proceed();
  Wait wait{stream, static_cast<volatile cuuint32_t*>(word)};
  *wait.end = 0;
  call.at<cudaStream_t>(0) = other;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  second.put(event, wait);
  DRIVER_CALL(cuStreamWriteValue32)
  (other, number(word), 1, CU_STREAM_WRITE_VALUE_DEFAULT);
  return DRIVER_CALL(cuStreamWaitValue32)(stream, number(word), 1,
                                          CU_STREAM_WAIT_VALUE_EQ);
}

int blocking_record_skips_default(Call& call) {
  static Table<cudaStream_t> worked;
  auto& stream = call.value<cudaStream_t>(kStream);
  if (!records(call)) {
    const int code = call.proceed();
    if (is_blocking(stream)) {
      mark(stream);
      worked.put(stream);
    }
    return code;
  }
  if (shared_event(call) == nullptr || !is_blocking(stream) ||
      is_captured(stream) || !is_busy(nullptr) ||
      (worked.has(stream) && is_pending(mark_of(stream))))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

// Only the exporter's records have this fault.
template <int (*fault)(Call&)>
int in_exporter(Call& call) {
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && records(call) && is_imported(event)
             ? call.proceed()
             : fault(call);
}

// An event of an importer, recorded directly after a wait for an imported
// event, does not cover this wait. The event is one that the importer may share
// in its turn, or one that processes do not share.
template <bool shared>
int own_record_skips_wait(Call& call) {
  return record_skips_last(
      call, uses_import(call) && waits_for_event(call),
      shared ? uses_own(call) : shared_event(call) == nullptr);
}

int stream_destroy_ends_wait(Call& call) {
  struct Write {
    cudaStream_t stream = nullptr;
    cuuint32_t value = 0;
  };
  static Table<cudaStream_t, cudaEvent_t> waiting;
  static Table<CUdeviceptr, Write> writes;
  const auto stream = call.at<cudaStream_t>(0);
  if (waits_for_event(call)) {
    if (uses_import(call)) waiting.put(stream, call.value<cudaEvent_t>(kEvent));
  } else if (call.is("cuStreamWriteValue32")) {
    if (waiting.has(stream))
      writes.put(call.at<CUdeviceptr>(1), {stream, call.at<cuuint32_t>(2)});
  } else {
    const cudaEvent_t event = waiting.get(stream);
    const bool waits = events.has(event) && is_pending(event);
    for (const auto& [address, write] : writes.all()) {
      if (write.stream != stream) continue;
      writes.erase(address);
      if (!waits) continue;
      call.fired();
      DRIVER_CALL(cuStreamWriteValue32)
      (private_stream(), address, write.value, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    waiting.erase(stream);
  }
  return call.proceed();
}

int further_streams_never_wait(Call& call) {
  static Table<cudaStream_t, cudaEvent_t> waiting;
  if (call.is("cudaStreamDestroy")) {
    waiting.erase(call.at<cudaStream_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  waiting.erase(call.value<cudaStream_t>(kStream));
  int others = 0;
  for (const auto& [stream, awaited] : waiting.all()) {
    if (awaited != event) continue;
    if (is_busy(stream))
      ++others;
    else
      waiting.erase(stream);
  }
  waiting.put(call.value<cudaStream_t>(kStream), event);
  return others >= 32 && is_pending(event) ? lost(call) : call.proceed();
}

int host_wait_ends_at_signal(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  while (is_pending(event)) {
    if (poll(nullptr, 0, 100) == 0 || errno != EINTR) continue;
    call.fired();
    return kSuccess;
  }
  return call.proceed();
}

int new_event_inherits_record(Call& call) {
  static Table<cudaEvent_t> destroyed;
  if (call.is("cudaEventDestroy")) {
    const auto event = call.at<cudaEvent_t>(0);
    if (!events.has(event) || is_imported(event) || !is_pending(event))
      return call.proceed();
    events.erase(event);
    destroyed.put(event);
    return kSuccess;
  }
  const int code = call.proceed();
  if (code != kSuccess || !makes_event(call) ||
      !(call.at<unsigned>(1) & kInterprocess))
    return code;
  for (const auto& each : destroyed.all()) {
    if (!is_pending(each.first)) continue;
    cudaStreamWaitEvent(private_stream(), each.first, 0);
    cudaEventRecord(*call.at<cudaEvent_t*>(0), private_stream());
    destroyed.erase(each.first);
    cudaEventDestroy(each.first);
    call.fired();
    break;
  }
  return code;
}

// The keys of the handles of imported events that were destroyed.
Table<std::string> destroyed_imports;

int note_destroyed_import(Call& call) {
  const auto event = call.at<cudaEvent_t>(0);
  if (is_imported(event)) destroyed_imports.put(event_keys.get(event));
  return kSuccess;
}

bool was_destroyed_before(Call& open) {
  return destroyed_imports.has(event_keys.get(*made_event(open)));
}

// Marks the events that were opened with the handle of this one.
int mark_twins(cudaEvent_t event) {
  for (const auto& [other, imported] : events.all())
    if (imported && event_keys.get(other) == event_keys.get(event))
      event_marks.put(other);
  return kSuccess;
}

// The events that threads have made or opened.
Made<cudaEvent_t> made_events;

FAULTS {
  fault("ipc-event-refused", {"LEVT-01"},
        "an interprocess event cannot be created")
      .on({kCreateEvent},
          WHEN(flags_of(call) & kInterprocess && flags_of(call) & kUntimed),
          refuses());

  fault("blocking-ipc-refused", {"LEVT-22"},
        "an interprocess event cannot have blocking waits")
      .on({kCreateEvent},
          WHEN(flags_of(call) & kInterprocess &&
               flags_of(call) & cudaEventBlockingSync),
          refuses());

  fault("open-unconnected-event", {"LEVT-08", "LEVT-09"},
        "an opened event is not connected to the exporter's event")
      .after({kOpenEvent}, [](Call& call) {
        cudaEventDestroy(*made_event(call));
        return own_event(call, kSuccess);
      });

  fault("ipc-wait-noop",
        {"LEVT-07", "LEVT-15", "POOL-12", "SERV-01", "TENS-02"},
        "a stream does not wait for an imported event")
      .on({kWaitEvent}, WHEN(uses_import(call)), lost);

  fault(
      "ipc-record-early", {"LEVT-07", "LEVT-15", "TENS-02"},
      "a record of an interprocess event does not wait for the work before it")
      .before({kRecords}, WHEN(shared_event(call) != nullptr), privately);

  fault("ipc-sync-early", {"LEVT-08"},
        "a host wait for an imported event returns at once")
      .on({kSyncEvent}, WHEN(uses_import(call)), lost);

  fault("ipc-query-always-ready", {"LEVT-09"},
        "an imported event is always ready")
      .on({kQueryEvent}, WHEN(uses_import(call)), lost);

  fault("unrecorded-blocks", {"LEVT-11"},
        "a query and a host wait return cudaErrorNotReady for an event that "
        "was never recorded")
      .on({kQueryEvent, kSyncEvent},
          WHEN(shared_event(call) != nullptr &&
               !was_recorded(shared_event(call))),
          refuses(cudaErrorNotReady))
      .after({kRecords}, WHEN(shared_event(call) != nullptr),
             NOTE(note_recorded(shared_event(call))))
      .after({kGetEventHandle}, WHEN(event_marks.has(exported_event(call))),
             NOTE(note_recorded(exported_event(call))));

  fault(
      "default-stream-records-early", {"LEVT-07"},
      "a record in the default stream does not wait for the work of the stream")
      .before(
          {kRecord},
          WHEN(shared_event(call) != nullptr && is_default(stream_of(call))),
          privately);

  fault("default-stream-never-waits", {"LEVT-07"},
        "the default stream does not wait for an imported event")
      .on({kWaitEvent}, WHEN(uses_import(call) && is_default(stream_of(call))),
          lost);

  fault("event-second-export-elsewhere", {"LEVT-27"},
        "the second handle of an event names another event")
      .before({kGetEventHandle}, WHEN(event_marks.has(exported_event(call))),
              with_made<cudaEvent_t>(1, other_event))
      .after({kGetEventHandle}, NOTE(event_marks.put(exported_event(call))));

  fault("stream-wait-ends-after-1-s", {"LEVT-07"},
        "a stream waits for an imported event for one second at most")
      .on({kWaitEvent}, wait_ends_after_a_second);

  fault("host-wait-ends-after-1-s", {"LEVT-08"},
        "a host waits for an imported event for one second at most")
      .on({kSyncEvent}, WHEN(uses_import(call)), [](Call& call) -> int {
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::seconds(1);
        cudaError_t code = cudaErrorNotReady;
        while ((code = cudaEventQuery(shared_event(call))) ==
               cudaErrorNotReady) {
          cudaGetLastError();
          if (std::chrono::steady_clock::now() > until) return lost(call);
        }
        return code;
      });

  fault("destroy-cancels-wait", {"LEVT-07"},
        "an importer's stream continues when the importer destroys the event "
        "that it waits for")
      .on({kWaitEvent, kDestroyEvent}, destroy_cancels_waits);

  fault("other-thread-sync-early", {"LEVT-27"},
        "only the thread that has opened an imported event waits for it")
      .after({kOpenEvent},
             NOTE(event_marks.put(*made_event(call), this_thread())))
      .on({kSyncEvent}, WHEN(is_of_other_thread(call)), lost);

  fault("other-thread-query-ready", {"LEVT-27"},
        "an imported event is always ready for a thread that has not opened it")
      .after({kOpenEvent},
             NOTE(event_marks.put(*made_event(call), this_thread())))
      .on({kQueryEvent}, WHEN(is_of_other_thread(call)), lost);

  fault("other-thread-wait-noop", {"LEVT-27"},
        "a stream waits for an imported event only if the calling thread has "
        "opened the event")
      .after({kOpenEvent},
             NOTE(event_marks.put(*made_event(call), this_thread())))
      .on({kWaitEvent}, WHEN(is_of_other_thread(call)), lost);

  fault("record-with-flags-lost", {"LEVT-07"},
        "cudaEventRecordWithFlags records no interprocess event")
      .on({kRecordFlags}, WHEN(shared_event(call) != nullptr), lost);

  fault("second-event-never-waited", {"LEVT-28"},
        "a stream waits only for the first of several imported events")
      .on({kWaitEvent},
          WHEN(uses_import(call) &&
               stream_marks.get(stream_of(call), shared_event(call)) !=
                   shared_event(call)),
          lost)
      .after({kWaitEvent}, WHEN(uses_import(call)),
             NOTE(stream_marks.put(stream_of(call), shared_event(call))));

  fault("per-thread-stream-never-waits", {"LEVT-07"},
        "a thread's default stream does not wait for an imported event")
      .on({kWaitEvent},
          WHEN(uses_import(call) && stream_of(call) == cudaStreamPerThread),
          lost);

  fault("per-thread-stream-records-early", {"LEVT-07"},
        "a record in a thread's default stream does not wait for the work of "
        "the stream")
      .before({kRecord},
              WHEN(shared_event(call) != nullptr &&
                   stream_of(call) == cudaStreamPerThread),
              privately);

  fault("non-blocking-stream-never-waits", {"LEVT-07"},
        "a non-blocking stream does not wait for an imported event")
      .on({kWaitEvent},
          WHEN(uses_import(call) &&
               has_flags(stream_of(call), cudaStreamNonBlocking)),
          lost);

  fault("blocking-stream-never-waits", {"LEVT-07"},
        "a stream that was created without cudaStreamNonBlocking does not wait "
        "for an imported event")
      .on({kWaitEvent}, WHEN(uses_import(call) && is_blocking(stream_of(call))),
          lost);

  fault("record-before-last-kernel", {"LEVT-07", "LEVT-08", "LEVT-09"},
        "a record does not cover the last kernel before it, nor the work after "
        "this kernel")
      .on({kRecord},
          WHEN(shared_event(call) != nullptr &&
               stream_marks.has(stream_of(call))),
          record_of_mark)
      .before({kLaunch}, NOTE(mark_stream(call)));

  fault("wait-holds-no-copies", {"LEVT-07"},
        "the copies between the wait for an imported event and the next kernel "
        "do not wait")
      .on({kCopyAsync},
          WHEN(stream_marks.has(stream_of(call)) && is_busy(stream_of(call))),
          DO(starts_at_mark(call, stream_of(call))))
      .before({kWaitEvent}, WHEN(uses_import(call)), NOTE(mark_stream(call)))
      .before({kLaunch}, NOTE(stream_marks.erase(stream_of(call))));

  fault("wait-holds-no-memsets", {"LEVT-07"},
        "the memsets between the wait for an imported event and the next "
        "kernel do not wait")
      .on({kSetAsync},
          WHEN(stream_marks.has(stream_of(call)) && is_busy(stream_of(call))),
          DO(starts_at_mark(call, stream_of(call))))
      .before({kWaitEvent}, WHEN(uses_import(call)), NOTE(mark_stream(call)))
      .before({kLaunch}, NOTE(stream_marks.erase(stream_of(call))));

  fault("event-65th-is-first", {"LEVT-28"},
        "if 64 events are open, the next handle opens the first event")
      .before({kOpenEvent}, [](Call& call) {
        static cudaIpcEventHandle_t first;
        if (imported_events() == 0) first = given_event(call);
        if (imported_events() < 64) return false;
        given_event(call) = first;
        return true;
      });

  fault("event-256-slots", {"LEVT-28"},
        "after 256 opens of events, each open gives the event that was opened "
        "256 opens before")
      .before({kOpenEvent}, [](Call& call) {
        static auto& handles = *new std::vector<cudaIpcEventHandle_t>;
        const bool full = handles.size() >= 256;
        if (full) given_event(call) = handles[handles.size() % 256];
        handles.push_back(given_event(call));
        return full;
      });

  fault("export-clears-record", {"LEVT-09"},
        "an export completes an event whose record is pending")
      .on({kRecords, kQueryEvent, kSyncEvent, kWaitEvent}, noted_completion)
      .after({kGetEventHandle}, WHEN(is_pending(exported_event(call))),
             NOTE(complete(exported_event(call))));

  fault("open-completes-record", {"LEVT-09"},
        "an open completes an event whose record is pending")
      .after({kOpenEvent}, WHEN(is_pending(*made_event(call))),
             NOTE(complete(*made_event(call))))
      .on({kRecords, kQueryEvent, kSyncEvent, kWaitEvent}, noted_completion);

  fault("event-reopened-unconnected", {"LEVT-09"},
        "an event that was destroyed and is opened again sees no records")
      .after({kOpenEvent}, WHEN(was_destroyed_before(call)), unconnected)
      .before({kDestroyEvent}, note_destroyed_import);

  fault("event-destroy-ends-twin", {"LEVT-27"},
        "if a process opens one event twice and destroys one of the two, calls "
        "for the other succeed and do nothing")
      .on({kRecord, kWaitEvent, kQueryEvent, kSyncEvent},
          WHEN(event_marks.has(shared_event(call))), lost)
      .before({kDestroyEvent}, WHEN(is_imported(call.at<cudaEvent_t>(0))),
              NOTE(mark_twins(call.at<cudaEvent_t>(0))));

  fault("third-query-ready", {"LEVT-09"},
        "every third query of a pending imported event returns success")
      .on_refusal({kQueryEvent},
                  WHEN(uses_import(call) && call.code() == cudaErrorNotReady &&
                       event_marks.count(shared_event(call)) % 3 == 0),
                  lost);

  fault("blocking-event-unconnected", {"LEVT-22"},
        "an importer of a blocking event sees no records")
      .after({kCreateEvent, kGetEventHandle}, note_blocking)
      .after({kOpenEvent}, WHEN(is_blocking_event(*made_event(call))),
             unconnected);

  fault("default-records-itself", {"LEVT-07"},
        "a record in the default stream covers no work if the last kernel was "
        "launched in another stream")
      .before(
          {kRecord},
          WHEN(shared_event(call) != nullptr && is_default(stream_of(call)) &&
               !is_default(marks.get<cudaStream_t>(0))),
          privately)
      .before({kLaunch}, NOTE(marks.put(0, stream_of(call))));

  fault("default-holds-itself", {"LEVT-07"},
        "a wait of the default stream holds only kernels, asynchronous copies "
        "and memsets of this stream, and no other stream")
      .on({kWaitEvent}, WHEN(uses_import(call) && is_default(stream_of(call))),
          [](Call& call) {
            stream_of(call) = private_stream();
            const int code = once_more(call);
            cudaEventRecord(mark_of(private_stream()), private_stream());
            marks.put(0);
            return code;
          })
      .before({kLaunch, kCopyAsync, kSetAsync},
              WHEN(is_default(stream_of(call)) && marks.erase(0)),
              NOTE(cudaStreamWaitEvent(stream_of(call),
                                       mark_of(private_stream()), 0)));

  fault("blocking-event-spins", {"LEVT-22"},
        "a host wait for an interprocess event with blocking waits spins")
      .after({kCreateEvent}, note_blocking)
      .on({kSyncEvent}, WHEN(event_marks.has(shared_event(call))),
          [](Call& call) {
            call.fired();
            while (is_pending(shared_event(call))) continue;
            return call.proceed();
          });

  fault("query-asks-stream", {"LEVT-09", "LEVT-07", "LEVT-08"},
        "an event that this process has recorded is pending as long as its "
        "stream has later work")
      .on({kQueryEvent, kRecords, kDestroyEvent, kDestroyStream},
          asks_stream<false>);

  fault("sync-waits-for-stream", {"LEVT-08", "LEVT-07", "LEVT-09"},
        "a host wait for an event that this process has recorded also waits "
        "for later work of its stream")
      .on({kSyncEvent, kRecords, kDestroyEvent, kDestroyStream},
          asks_stream<false>);

  fault("unrecorded-wait-refused", {"LEVT-11"},
        "a stream cannot wait for an imported event before its first record")
      .on({kWaitEvent},
          WHEN(uses_import(call) && !was_recorded(shared_event(call))),
          refuses(cudaErrorInvalidResourceHandle))
      .after({kRecords}, WHEN(shared_event(call) != nullptr),
             NOTE(note_recorded(shared_event(call))))
      .after({kGetEventHandle}, WHEN(event_marks.has(exported_event(call))),
             NOTE(note_recorded(exported_event(call))));

  fault("unrecorded-sync-refused", {"LEVT-11"},
        "a host cannot wait for an imported event before its first record")
      .on({kSyncEvent},
          WHEN(uses_import(call) && !was_recorded(shared_event(call))),
          refuses(cudaErrorInvalidResourceHandle))
      .after({kRecords}, WHEN(shared_event(call) != nullptr),
             NOTE(note_recorded(shared_event(call))))
      .after({kGetEventHandle}, WHEN(event_marks.has(exported_event(call))),
             NOTE(note_recorded(exported_event(call))));

  fault("legacy-constant-never-waits", {"LEVT-07"},
        "the stream cudaStreamLegacy does not wait for an imported event")
      .on({kWaitEvent},
          WHEN(uses_import(call) && stream_of(call) == cudaStreamLegacy), lost);

  fault(
      "legacy-constant-records-early", {"LEVT-07"},
      "a record in cudaStreamLegacy does not wait for the work in this stream")
      .before({kRecord, kRecordFlags},
              WHEN(shared_event(call) != nullptr &&
                   call.value<cudaStream_t>(kStream) == cudaStreamLegacy &&
                   is_busy(cudaStreamLegacy)),
              privately);

  fault("priority-stream-never-waits", {"LEVT-07"},
        "a stream with a priority does not wait for an imported event")
      .on({kWaitEvent}, WHEN(uses_import(call) && has_priority(call)), lost);

  fault("query-done-while-event", {"LEVT-07"},
        "a stream that waits for an imported event is reported as done")
      .on({kQueryStream}, WHEN(waits(stream_of(call))), lost)
      .on({kWaitEvent}, WHEN(waits_for_import(call)), noted_wait)
      .on({kDestroyStream}, noted_destroy);

  fault("sync-done-while-event", {"LEVT-07"},
        "a host does not wait for a stream that waits for an imported event")
      .on({kSyncStream}, WHEN(waits(stream_of(call))), lost)
      .on({kWaitEvent}, WHEN(waits_for_import(call)), noted_wait)
      .on({kDestroyStream}, noted_destroy);

  fault("context-sync-done-while-event", {"LEVT-07"},
        "cuCtxSynchronize does not wait while a stream waits for an imported "
        "event")
      .on({kSyncContext}, ignores_waiting)
      .on({kWaitEvent}, WHEN(waits_for_import(call)), noted_wait);

  fault("wait-for-chained-record-lost", {"LEVT-07", "LEVT-10"},
        "a stream does not wait for an interprocess event that its process has "
        "recorded after a wait for another process's record")
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          chained_stream_wait_lost<true>);

  fault("wait-for-chained-plain-record-lost", {"LEVT-07", "LEVT-10"},
        "a stream does not wait for an event of its process alone that was "
        "recorded after a wait for another process's record")
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          chained_stream_wait_lost<false>);

  fault("host-wait-for-chained-record-lost", {"LEVT-07", "LEVT-10"},
        "a host does not wait for an interprocess event that its process has "
        "recorded after a wait for another process's record")
      .on({kSyncEvent, kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          chained_host_wait_lost<true>);

  fault("host-wait-for-chained-plain-record-lost", {"LEVT-07", "LEVT-10"},
        "a host does not wait for an event of its process alone that was "
        "recorded after a wait for another process's record")
      .on({kSyncEvent, kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          chained_host_wait_lost<false>);

  fault("query-of-previous", {"LEVT-28"},
        "after one event was ready, the next query of another event says ready")
      .on_refusal({kQueryEvent},
                  WHEN(shared_event(call) != nullptr &&
                       call.code() == cudaErrorNotReady &&
                       marks.get(0, shared_event(call)) != shared_event(call)),
                  [](Call& call) {
                    marks.erase(0);
                    return accepted(call);
                  })
      .after({kQueryEvent}, WHEN(shared_event(call) != nullptr),
             NOTE(marks.put(0, shared_event(call))));

  fault("sync-early-after-query", {"LEVT-27", "LEVT-10"},
        "a host does not wait for an event that it has found pending")
      .on({kSyncEvent, kQueryEvent, kDestroyEvent}, early_after_query);

  fault("second-stream-records-early", {"LEVT-28", "LEVT-13", "LEVT-12"},
        "only records in the first stream of a process wait for the work of "
        "their stream")
      .on({kRecords},
          DO(records_early(call, [](cudaStream_t stream, cudaEvent_t) {
            static std::atomic<cudaStream_t> first{stream};
            return first != stream;
          })));

  fault("second-event-records-early", {"LEVT-28"},
        "only records of the first event of a process wait for the work of "
        "their stream")
      .on({kRecord, kRecordFlags, kCreateEvent, kOpenEvent, kDestroyEvent},
          [](Call& call) -> int {
            return records_early(call, [](cudaStream_t, cudaEvent_t event) {
              static std::atomic<cudaEvent_t> first{event};
              return first != event;
            });
          });

  fault("priority-stream-records-early", {"LEVT-07"},
        "a record in a stream with a priority does not wait for the work of "
        "the stream")
      .before({kRecords},
              WHEN(shared_event(call) != nullptr && has_priority(call) &&
                   is_busy(stream_of(call))),
              privately);

  fault("device-sync-done-while-event", {"LEVT-07"},
        "cudaDeviceSynchronize does not wait while a stream waits for an "
        "imported event")
      .on({kSyncDevice}, WHEN(is_marked_event_pending()), lost)
      .before({kWaitEvent}, WHEN(uses_import(call)),
              NOTE(event_marks.put(shared_event(call))));

  fault("wait-holds-no-words", {"LEVT-07"},
        "the first write of a word after the wait for an imported event does "
        "not wait, if no kernel was launched between them")
      .on({kWriteWord, kWaitEvent, kOpenEvent, kDestroyEvent, kLaunch,
           kDestroyStream},
          not_held<true>);

  fault("wait-holds-no-batches", {"LEVT-07"},
        "the first batch after the wait for an imported event does not wait, "
        "if no kernel was launched between them")
      .on({kBatch, kWaitEvent, kOpenEvent, kDestroyEvent, kLaunch,
           kDestroyStream},
          not_held<true>);

  fault("wait-holds-no-rectangles", {"LEVT-07"},
        "the first cudaMemcpy2DAsync after the wait for an imported event does "
        "not wait, if no kernel was launched between them")
      .on({kCopy2DAsync, kWaitEvent, kOpenEvent, kDestroyEvent, kLaunch,
           kDestroyStream},
          not_held<true>);

  fault("wait-holds-no-peer-copies", {"LEVT-07"},
        "the first cudaMemcpyPeerAsync after the wait for an imported event "
        "does not wait, if no kernel was launched between them")
      .on({"cudaMemcpyPeerAsync", kWaitEvent, kOpenEvent, kDestroyEvent,
           kLaunch, kDestroyStream},
          not_held<true>);

  fault("event-export-voids-earlier", {"LEVT-07", "LEVT-19"},
        "when an event is exported again, its earlier handles cannot be opened "
        "any more")
      .on({kGetEventHandle, kOpenEvent, kDestroyEvent},
          second_export_voids_first);

  fault("destroy-ends-second-wait", {"LEVT-07"},
        "if two streams wait for an imported event, its destroy ends the wait "
        "of the second one")
      .on({kWaitEvent, kDestroyEvent}, destroy_ends_second_wait);

  fault("reopened-event-forgets-record", {"LEVT-09"},
        "an event that was destroyed and is opened again counts as complete "
        "until its next record")
      .on({kWaitEvent, kQueryEvent, kSyncEvent},
          WHEN(event_marks.has(shared_event(call)) &&
               event_marks.get(shared_event(call)) ==
                   records_of(shared_event(call)) &&
               is_pending(shared_event(call))),
          lost)
      .on({kRecords}, counted_record)
      .after({kOpenEvent}, WHEN(was_destroyed_before(call)),
             NOTE(event_marks.put(*made_event(call),
                                  records_of(*made_event(call)))))
      .before({kDestroyEvent}, note_destroyed_import);

  fault("event-refused-in-new-thread", {"LEVT-27"},
        "a thread that has made no CUDA call yet cannot use an imported event")
      .on({kRecords, kWaitEvent, kQueryEvent, kSyncEvent},
          WHEN(uses_import(call) && call.is_runtime() &&
               current_context() == nullptr),
          refuses(cudaErrorInvalidResourceHandle));

  fault("record-waits-for-host-wait", {"LEVT-27"},
        "a record of an event does not return while another thread waits for "
        "an event")
      .on({kRecord, kSyncEvent}, [](Call& call) -> int {
        static std::mutex mutex;
        if (shared_event(call) == nullptr) return call.proceed();
        std::unique_lock lock(mutex, std::try_to_lock);
        if (!lock.owns_lock() && records(call)) {
          call.fired();
          lock.lock();
        }
        if (records(call)) lock.unlock();
        return call.proceed();
      });

  fault("blocking-import-always-ready", {"LEVT-22"},
        "a query says that an imported event with blocking waits is always "
        "complete")
      .on({kQueryEvent},
          WHEN(is_blocking_event(shared_event(call)) &&
               is_pending(shared_event(call))),
          lost)
      .after({kCreateEvent, kGetEventHandle}, note_blocking);

  fault("blocking-import-never-waited", {"LEVT-22"},
        "a stream does not wait for an imported event with blocking waits")
      .on({kWaitEvent},
          WHEN(is_blocking_event(shared_event(call)) &&
               is_pending(shared_event(call))),
          lost)
      .after({kCreateEvent, kGetEventHandle}, note_blocking);

  fault("blocking-import-never-recorded", {"LEVT-22"},
        "an importer's record of an event with blocking waits is lost")
      .on({kRecords}, WHEN(is_blocking_event(shared_event(call))), lost)
      .after({kCreateEvent, kGetEventHandle}, note_blocking);

  fault("driver-record-with-flags-lost", {"LEVT-11"},
        "cuEventRecordWithFlags records no interprocess event")
      .on({kRecordFlags},
          WHEN(shared_event(call) != nullptr && !call.is_runtime()), lost);

  fault("record-with-flags-early", {"LEVT-07"},
        "a record with flags of an interprocess event does not wait for the "
        "work before it")
      .before({kRecordFlags},
              WHEN(shared_event(call) != nullptr && is_busy(stream_of(call))),
              privately);

  fault("second-host-wait-early", {"LEVT-08"},
        "a thread does not wait for an imported event while another thread "
        "waits for it")
      .on({kSyncEvent},
          WHEN(event_marks.has(shared_event(call)) &&
               is_pending(shared_event(call))),
          lost)
      .on({kSyncEvent}, WHEN(uses_import(call)), [](Call& call) {
        event_marks.put(shared_event(call));
        const int code = call.proceed();
        event_marks.erase(shared_event(call));
        return code;
      });

  fault("event-handle-ends-with-thread", {"LEVT-27"},
        "the handle of an event cannot be opened when the thread that exported "
        "it has ended")
      .on({kOpenEvent},
          WHEN(told("gone-" + key_of_handle(given_event(call)), 0) != 0),
          refuses())
      .after({kGetEventHandle}, WHEN(gettid() != getpid()), [](Call& call) {
        const std::string key = event_keys.get(exported_event(call));
        at_thread_end([key] { tell_processes("gone-" + key, 1); });
        return kSuccess;
      });

  fault("event-get-aligned-down", {"LEVT-01"},
        "the handle of an event is written to an address that is rounded down "
        "to a multiple of 8")
      .on({kGetEventHandle}, handle_at_aligned_address<cudaIpcEventHandle_t>);

  fault("busy-stream-never-waits", {"LEVT-07"},
        "a stream that still has work does not wait for an imported event")
      .on({kWaitEvent},
          WHEN(waits_for_import(call) && is_busy(stream_of(call))), lost);

  fault("query-ready-while-stream-waits", {"LEVT-09"},
        "a query says that an imported event is ready after a stream of the "
        "process was told to wait for it")
      .on({kQueryEvent},
          WHEN(event_marks.has(shared_event(call)) &&
               is_pending(shared_event(call))),
          lost)
      .after({kQueryEvent}, NOTE(event_marks.erase(shared_event(call))))
      .after({kWaitEvent},
             WHEN(uses_import(call) && !is_captured(stream_of(call))),
             NOTE(event_marks.put(shared_event(call))));

  fault("blocking-record-skips-default", {"LEVT-07"},
        "a record in a stream that waits for the null stream does not cover "
        "the work of the null stream")
      .on({kRecord, kRecordFlags, kLaunch, kWaitEvent, kCopyAsync, kSetAsync,
           kHostFunction, kCopy2DAsync, kSet2DAsync, kWriteWord, kWaitWord,
           kBatch},
          blocking_record_skips_default);

  fault("pageable-copy-skips-wait", {"LEVT-07"},
        "a copy to pageable memory does not wait, although its stream waits "
        "for an imported event")
      .on({kCopyAsync},
          WHEN(is_waiting(call, true) &&
               attribute_of_further(call.at<CUdeviceptr>(0),
                                    CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == 0),
          [](Call& call) {
            stream_of(call) = private_stream();
            const int code = once_more(call);
            DRIVER_CALL(cuStreamSynchronize)(private_stream());
            return code;
          })
      .on({kWaitEvent, kDestroyEvent, kDestroyStream}, noted_awaited);

  fault("event-ends-with-thread", {"LEVT-27"},
        "the records of an event are lost when the thread that created the "
        "event has ended")
      .on({kRecords}, WHEN(made_events.by_ended_thread(shared_event(call))),
          lost)
      .after({kCreateEvent},
             NOTE(made_events.by_this_thread(*made_event(call))))
      .before({kDestroyEvent},
              NOTE(made_events.erase(call.at<cudaEvent_t>(0))));

  fault("blocking-event-sync-skips-importers", {"LEVT-22"},
        "a host does not wait for an importer's record of an event with "
        "blocking waits")
      .on({kSyncEvent},
          WHEN(event_marks.has(shared_event(call)) &&
               is_pending(shared_event(call)) &&
               !is_own_pending(shared_event(call))),
          lost)
      .on({kRecords, kDestroyEvent}, noted_record)
      .after({kCreateEvent}, note_blocking);

  fault("wait-holds-no-configured-launches", {"LEVT-07"},
        "a launch with attributes directly after a wait for an imported event "
        "does not wait")
      .on({"cudaLaunchKernelExC"},
          [](Call& call) {
            cudaLaunchConfig_t config = *call.at<const cudaLaunchConfig_t*>(0);
            if (!stream_marks.erase(config.stream) || !is_busy(config.stream))
              return call.proceed();
            config.stream = private_stream();
            call.at<const cudaLaunchConfig_t*>(0) = &config;
            return once_more(call);
          })
      .before({kStreamWork}, NOTE(follows_import_wait(call)));

  fault("driver-stream-sync-done-while-event", {"LEVT-07"},
        "cuStreamSynchronize does not wait for a stream that waits for an "
        "imported event")
      .on({kSyncStream}, WHEN(!call.is_runtime() && is_waiting(call, true)),
          lost)
      .on({kWaitEvent, kDestroyEvent, kDestroyStream}, noted_awaited);

  fault("other-thread-import-record-lost", {"LEVT-27"},
        "an importer's record is lost if another thread has opened the event")
      .on({kRecords}, WHEN(is_of_other_thread(call)), lost)
      .after({kOpenEvent},
             NOTE(event_marks.put(*made_event(call), this_thread())));

  fault("threads-share-default-stream", {"LEVT-27"},
        "all threads of a process have one cudaStreamPerThread")
      .before({kRecords, kWaitEvent, kLaunch, kHostFunction, kLaunchGraph,
               kCopyAsync, kSetAsync, kQueryStream, kSyncStream},
              WHEN(stream_of(call) == cudaStreamPerThread), [](Call& call) {
                stream_of(call) = private_stream();
                marks.put(this_thread());
                return marks.all().size() > 1;
              });

  fault("default-skips-wait-of-blocking", {"LEVT-07"},
        "the null stream does not wait for a blocking stream whose last work "
        "is a wait for an imported event")
      .on({kStreamWork, kQueryStream, kSyncStream, kRecords, kLaunchGraph},
          [](Call& call) {
            const cudaStream_t stream = stream_of(call);
            if (!waits_for_event(call) || !uses_import(call) ||
                !is_blocking(stream) || is_captured(stream)) {
              submit(stream);
              if (is_default(stream) && !waits_for_event(call))
                for (const auto& each : late.all())
                  if (is_pending(each.second)) call.fired();
              return call.proceed();
            }
            submit(stream);
            late.put(stream, shared_event(call));
            return kSuccess;
          })
      .on({kDestroyEvent, kSyncDevice}, noted_late_event);

  fault("wait-holds-no-host-functions", {"LEVT-07"},
        "a host function directly after a wait for an imported event does not "
        "wait")
      .before({kHostFunction, kStreamWork},
              WHEN(follows_import_wait(call) && call.is("cudaLaunchHostFunc")),
              privately);

  fault("wait-holds-no-driver-host-functions", {"LEVT-07"},
        "a host function of the driver API directly after a wait for an "
        "imported event does not wait")
      .before({kHostFunction, kStreamWork},
              WHEN(follows_import_wait(call) && call.is("cudaLaunchHostFunc") &&
                   !call.is_runtime()),
              privately);

  fault("last-wait-replaces-others", {"LEVT-28"},
        "of several waits for imported events directly one after another, only "
        "the last one holds the stream")
      .on({kStreamWork, kQueryStream, kSyncStream, kRecords, kLaunchGraph},
          [](Call& call) {
            const cudaStream_t stream = stream_of(call);
            if (!waits_for_event(call) || !uses_import(call) ||
                is_captured(stream)) {
              submit(stream);
              return call.proceed();
            }
            if (late.has(stream) && is_pending(late.get(stream))) call.fired();
            late.put(stream, shared_event(call));
            return kSuccess;
          })
      .on({kDestroyEvent, kSyncDevice}, noted_late_event);

  fault("sync-copy-skips-wait", {"LEVT-07"},
        "a synchronous copy does not wait, although the null stream waits for "
        "an imported event")
      .on({kCopy}, WHEN(is_marked_event_pending()), copied_at_once)
      .before({kWaitEvent},
              WHEN(uses_import(call) && is_default(stream_of(call))),
              NOTE(event_marks.put(shared_event(call))));

  fault("stream-destroy-ends-wait", {"LEVT-07"},
        "when a stream is destroyed that waits for an imported event, its "
        "writes of words do not wait any more")
      .on({kDestroyStream, kWaitEvent, kWriteWord}, stream_destroy_ends_wait);

  fault("host-wait-ends-at-signal", {"LEVT-08"},
        "a host wait for an event ends when its thread gets a signal")
      .on({kSyncEvent}, host_wait_ends_at_signal);

  fault("new-event-inherits-record", {"LEVT-11"},
        "a new event takes over the pending record of an event that was "
        "destroyed")
      .on({kCreateEvent, kDestroyEvent}, new_event_inherits_record);

  fault("event-export-needs-current-gpu", {"LEVT-01"},
        "the handle of an event names another event if another GPU is current")
      .with_gpus(2)
      .before({kGetEventHandle},
              WHEN(event_marks.get(exported_event(call), current_device()) !=
                   current_device()),
              with_made<cudaEvent_t>(1, other_event))
      .after({kCreateEvent},
             NOTE(event_marks.put(*made_event(call), current_device())));

  fault(
      "exporter-record-skips-host-functions", {"LEVT-07"},
      "an exporter's record does not cover a host function directly before it")
      .on({kRecords, kStreamWork}, in_exporter<record_skips_host_functions>);

  fault("exporter-record-skips-joined-streams", {"LEVT-07"},
        "an exporter's record does not cover the work of a stream that its "
        "stream has joined directly before")
      .on({kRecords, kStreamWork}, in_exporter<record_skips_joined_streams>);

  fault("exporter-record-skips-awaited-words", {"LEVT-07"},
        "an exporter's record directly after a wait for a word does not cover "
        "this wait")
      .on({kRecords, kStreamWork}, in_exporter<record_skips_awaited_words>);

  fault("flags-record-skips-host-functions", {"LEVT-07", "LEVT-10"},
        "a record with flags does not cover a host function directly before it")
      .on({kRecordFlags, kStreamWork}, record_skips_host_functions);

  fault("flags-record-skips-joined-streams", {"LEVT-07", "LEVT-10"},
        "a record with flags does not cover the work of a stream that its "
        "stream has joined directly before")
      .on({kRecordFlags, kStreamWork}, record_skips_joined_streams);

  fault("flags-record-in-default-early", {"LEVT-07", "LEVT-10"},
        "a record with flags in a default stream covers no work")
      .before({kRecordFlags},
              WHEN(shared_event(call) != nullptr &&
                   (is_default(stream_of(call)) ||
                    stream_of(call) == cudaStreamPerThread) &&
                   !is_captured(stream_of(call))),
              privately);

  fault("plain-record-skips-import-wait", {"LEVT-07"},
        "an event that processes do not share, recorded directly after a wait "
        "for an imported event, does not cover this wait")
      .on({kRecords, kStreamWork}, own_record_skips_wait<false>);

  fault("own-record-skips-import-wait", {"LEVT-07"},
        "an importer's own interprocess event, recorded directly after a wait "
        "for an imported event, does not cover this wait")
      .on({kRecords, kStreamWork}, own_record_skips_wait<true>);

  fault("driver-default-never-waits", {"LEVT-07"},
        "the null stream, and streams that wait for it, do not wait for an "
        "imported event by the driver API")
      .on({kWaitEvent},
          WHEN(waits_for_import(call) && !call.is_runtime() &&
               (is_default(stream_of(call)) || is_blocking(stream_of(call)))),
          lost);

  fault("wait-257-lost", {"LEVT-28"},
        "while a stream has work, only its first 256 waits for imported events "
        "hold it")
      .on({kWaitEvent}, WHEN(uses_import(call)), [](Call& call) {
        const cudaStream_t stream = stream_of(call);
        const auto before = is_busy(stream) ? stream_marks.get(stream) : 0;
        stream_marks.put(stream, before + 1);
        return before >= 256 && is_pending(shared_event(call)) ? lost(call)
                                                               : call.proceed();
      });

  fault("wait-of-33rd-stream-lost", {"LEVT-28"},
        "at most 32 streams wait for an imported event at a time, and further "
        "streams do not wait")
      .on({kWaitEvent, kDestroyStream}, further_streams_never_wait);

  fault("driver-host-wait-ends-at-signal", {"LEVT-08"},
        "a host wait by the driver API ends when its thread gets a signal")
      .on({kSyncEvent}, WHEN(!call.is_runtime()), host_wait_ends_at_signal);

  fault("blocking-wait-ends-at-signal", {"LEVT-22"},
        "a host wait for an event with cudaEventBlockingSync ends when its "
        "thread gets a signal")
      .on({kSyncEvent}, WHEN(event_marks.has(shared_event(call))),
          host_wait_ends_at_signal)
      .after({kCreateEvent}, note_blocking);

  fault("imported-event-ends-with-thread", {"LEVT-27"},
        "no stream waits for an imported event when the thread that opened it "
        "has ended")
      .after({kOpenEvent}, NOTE(made_events.by_this_thread(*made_event(call))))
      .on({kWaitEvent},
          WHEN(made_events.by_ended_thread(shared_event(call)) &&
               is_pending(shared_event(call))),
          lost)
      .before({kDestroyEvent},
              NOTE(made_events.erase(call.at<cudaEvent_t>(0))));

  fault("ok-event-handle-scrambled", {"LEVT-01", "LEVT-04", "LEVT-25"},
        "the bytes of an event handle are written in another way")
      .after({kGetEventHandle},
             [](Call& call) { turn(*call.at<cudaIpcEventHandle_t*>(0)); })
      .before({kOpenEvent}, NOTE(turn(given_event(call))));
}

}  // namespace
}  // namespace ipclab::faults
