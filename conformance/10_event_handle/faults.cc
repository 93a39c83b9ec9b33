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

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int unrecorded_blocks(Call& call) {
  if (exports_event(call)) {
    const auto event = call.at<cudaEvent_t>(1);
    const int code = noted_new_event(call);
    if (code == kSuccess && counts.has(event))
      tell_processes("recorded-" + event_keys.get(event), 1);
    return code;
  }
  if (keeps_events(call)) return noted_new_event(call);
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const bool is_exported = event_keys.has(event);
  const std::string name = "recorded-" + event_keys.get(event);
  if (records(call)) {
    count_record(event);
    if (is_exported) tell_processes(name, 1);
    return call.proceed();
  }
  return counts.has(event) || (is_exported && told(name, 0) != 0)
             ? call.proceed()
             : refused(call, cudaErrorNotReady);
}

int second_export_of_other_event(Call& call) {
  static Table<cudaEvent_t> exported;
  static cudaEvent_t other = nullptr;
  if (call.is("cudaEventDestroy")) {
    exported.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  cudaEvent_t& event = call.at<cudaEvent_t>(1);
  const bool again = exported.has(event);
  exported.put(event);
  if (again &&
      (other != nullptr ||
       cudaEventCreateWithFlags(
           &other, kInterprocess | cudaEventDisableTiming) == cudaSuccess)) {
    event = other;
    call.fired();
  }
  return call.proceed();
}

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

// Waits for and queries of an event have no effect in a thread that has not
// opened this event.
int nothing_in_other_threads(Call& call) {
  static Table<cudaEvent_t, pid_t> openers;
  if (call.is("cudaIpcOpenEventHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) openers.put(*call.at<cudaEvent_t*>(0), gettid());
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) || openers.get(event) == gettid())
    return call.proceed();
  return lost(call);
}

// Kinds of streams that never wait for an imported event, or record too early.
bool is_per_thread_stream(cudaStream_t stream) {
  return stream == cudaStreamPerThread;
}

unsigned stream_flags(cudaStream_t stream) {
  static const auto ask =
      reinterpret_cast<cudaError_t (*)(cudaStream_t, unsigned*)>(
          resolve_runtime("cudaStreamGetFlags"));
  unsigned flags = 0;
  ask(stream, &flags);
  return flags;
}

bool is_non_blocking(cudaStream_t stream) {
  return !is_default(stream) && !is_per_thread_stream(stream) &&
         (stream_flags(stream) & cudaStreamNonBlocking) != 0;
}

bool is_blocking_stream(cudaStream_t stream) {
  return !is_default(stream) && !is_per_thread_stream(stream) &&
         (stream_flags(stream) & cudaStreamNonBlocking) == 0;
}

template <bool (*concerned)(cudaStream_t)>
int such_streams_never_wait(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) ||
      !concerned(call.at<cudaStream_t>(0)))
    return call.proceed();
  return lost(call);
}

template <bool (*concerned)(cudaStream_t)>
int such_streams_record_early(Call& call) {
  if (shared_event(call) == nullptr || !concerned(call.at<cudaStream_t>(1)))
    return call.proceed();
  call.at<cudaStream_t>(1) = private_stream();
  call.fired();
  return call.proceed();
}

// The copies or memsets between a wait and the next kernel do not wait.
int wait_holds_kernels_only(Call& call) {
  static Table<cudaStream_t> waited;
  if (call.is("cudaLaunchKernel")) {
    waited.erase(call.value<cudaStream_t>(kStream));
    return call.proceed();
  }
  if (call.is("cudaMemcpyAsync") || call.is("cudaMemsetAsync")) {
    auto& stream = call.value<cudaStream_t>(kStream);
    return waited.has(stream) && is_busy(stream) ? starts_at_mark(call, stream)
                                                 : call.proceed();
  }
  return marked_wait(call, waited);
}

size_t imported_events() {
  size_t count = 0;
  for (const auto& one : events.all()) count += one.second;
  return count;
}

int blocking_event_unconnected(Call& call) {
  static Table<cudaEvent_t> blocking;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaEventCreateWithFlags")) {
    blocking.erase(*call.at<cudaEvent_t*>(0));  // an earlier event had it
    if (call.at<unsigned>(1) & cudaEventBlockingSync)
      blocking.put(*call.at<cudaEvent_t*>(0));
  } else if (exports_event(call)) {
    const auto event = call.at<cudaEvent_t>(1);
    if (blocking.has(event))
      tell_processes("blocking-" + event_keys.get(event), 1);
  } else if (opens_event(call) &&
             told("blocking-" + event_keys.get(*call.at<cudaEvent_t*>(0)), 0)) {
    return unconnected(call);
  }
  return code;
}

int default_holds_itself(Call& call) {
  static std::atomic<bool> pending{false};
  if (call.find(kEvent) == nullptr && !opens_event(call)) {
    const auto stream = call.value<cudaStream_t>(kStream);
    if (is_default(stream) && pending.exchange(false))
      cudaStreamWaitEvent(stream, mark_of(private_stream()), 0);
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) ||
      !is_default(call.at<cudaStream_t>(0)))
    return call.proceed();
  call.at<cudaStream_t>(0) = private_stream();
  const int code = call.proceed();
  cudaEventRecord(mark_of(private_stream()), private_stream());
  pending = true;
  call.fired();
  return code;
}

// Refuses a wait for an imported event that no process has recorded.
int unrecorded_refused(Call& call) {
  static Table<cudaEvent_t> recorded;
  const auto tell = [](cudaEvent_t event) {
    tell_processes("recorded-" + event_keys.get(event), 1);
  };
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code == kSuccess && exports_event(call) &&
        recorded.has(call.at<cudaEvent_t>(1)))
      tell(call.at<cudaEvent_t>(1));
    if (call.is("cudaEventDestroy")) recorded.erase(call.at<cudaEvent_t>(0));
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  if (records(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    recorded.put(event);
    if (event_keys.has(event)) tell(event);
    return code;
  }
  return is_imported(event) && told("recorded-" + event_keys.get(event), 0) == 0
             ? refused(call, cudaErrorInvalidResourceHandle)
             : call.proceed();
}

using FitsOfOrder = bool (*)(Call& call, cudaStream_t stream);

// A wait for an imported event is lost in streams for which `fits` is true.
int wait_lost(Call& call, FitsOfOrder fits) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) &&
                 fits(call, call.value<cudaStream_t>(kStream))
             ? lost(call)
             : call.proceed();
}

int noted_event_wait(Call& wait) {
  const cudaEvent_t event = shared_event(wait);
  return event != nullptr && is_imported(event) && is_pending(event)
             ? noted_wait(wait)
             : wait.proceed();
}

// While a stream waits for an imported event, it counts as done.
int idle_while_event(Call& call) {
  if (waits_for_event(call)) return noted_event_wait(call);
  if (call.is("cudaStreamDestroy")) return noted_destroy(call);
  return waits(call.at<cudaStream_t>(0)) ? lost(call) : call.proceed();
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

int device_sync_while_event(Call& call) {
  static Table<cudaStream_t, cudaEvent_t> waiting;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy"))
      for (const auto& [stream, event] : waiting.all())
        if (event == call.at<cudaEvent_t>(0)) waiting.erase(stream);
    return call.proceed();
  }
  if (call.is("cudaStreamWaitEvent")) {
    const cudaEvent_t event = shared_event(call);
    if (event != nullptr && is_imported(event))
      waiting.put(call.at<cudaStream_t>(0), event);
    return call.proceed();
  }
  // This is a call of the runtime, because a new thread has no context yet.
  for (const auto& [stream, event] : waiting.all()) {
    if (cudaEventQuery(event) == cudaErrorNotReady) return lost(call);
    waiting.erase(stream);
  }
  return call.proceed();
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

int reopened_forgets_record(Call& call) {
  static Table<std::string> destroyed;
  static Table<cudaEvent_t, unsigned long long> forgotten;
  if (call.is("cudaEventDestroy") || opens_event(call)) {
    const bool opens = opens_event(call);
    const auto gone = opens ? nullptr : call.at<cudaEvent_t>(0);
    if (!opens && events.has(gone) && is_imported(gone))
      destroyed.put(event_keys.get(gone));
    forgotten.erase(gone);
    const int code = call.proceed();
    if (code != kSuccess || !opens) return code;
    const auto event = *call.at<cudaEvent_t*>(0);
    if (destroyed.has(event_keys.get(event)))
      forgotten.put(event, records_of(event));
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !records(call) && forgotten.has(event) &&
                 forgotten.get(event) == records_of(event) && is_pending(event)
             ? lost(call)
             : counted_record(call);
}

// The calls for which `applies` is true do nothing with an imported event that
// has blocking waits.
int lost_of_blocking_import(Call& call, bool (*applies)(Call& call)) {
  static Table<cudaEvent_t> blocking;
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (makes_event(call)) {
      // An earlier event may have had the same number.
      blocking.erase(*call.at<cudaEvent_t*>(0));
      if ((call.at<unsigned>(1) & cudaEventBlockingSync) != 0)
        blocking.put(*call.at<cudaEvent_t*>(0));
    } else if (exports_event(call) && blocking.has(call.at<cudaEvent_t>(1))) {
      tell_processes("blocking-" + event_keys.get(call.at<cudaEvent_t>(1)), 1);
    }
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && applies(call) &&
                 told("blocking-" + event_keys.get(event), 0) != 0 &&
                 (records(call) || is_pending(event))
             ? lost(call)
             : call.proceed();
}

int done_while_stream_waits(Call& call) {
  static auto& waited = *new Table<cudaEvent_t>;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) waited.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  if (call.is("cudaStreamWaitEvent")) {
    const bool captured = is_captured(stream_of(call));
    const int code = call.proceed();
    if (code == kSuccess && !captured) waited.put(event);
    return code;
  }
  if (waited.has(event) && is_pending(event)) return lost(call);
  waited.erase(event);
  return call.proceed();
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

// Only records with flags have this fault.
template <int (*fault)(Call&)>
int with_flags(Call& call) {
  return call.is("cudaEventRecord") ? call.proceed() : fault(call);
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

// Proceeds with a call. `waited` gets the streams whose latest work is a wait
// for an imported event.
int noted_import_wait(Call& call, Table<cudaStream_t>& waited) {
  if (keeps_events(call)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  if (waits_for_event(call) && uses_import(call))
    waited.put(stream);
  else
    waited.erase(stream);
  return call.proceed();
}

// A host function directly after a wait for an imported event runs at once. If
// the runtime is sound, only those of the driver API do so.
template <bool runtime_is_sound>
int wait_holds_no_host_functions(Call& call) {
  static Table<cudaStream_t> waited;
  if (call.is("cudaLaunchHostFunc")) {
    auto& stream = call.value<cudaStream_t>(kStream);
    if (waited.erase(stream) && is_busy(stream) &&
        (!runtime_is_sound || !call.is_runtime())) {
      stream = private_stream();
      call.fired();
    }
    return call.proceed();
  }
  return noted_import_wait(call, waited);
}

int sync_copy_skips_wait(Call& call) {
  static Table<cudaEvent_t> waited;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) waited.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  if (waits_for_event(call)) {
    const cudaEvent_t event = shared_event(call);
    if (event != nullptr && is_imported(event) &&
        is_default(call.at<cudaStream_t>(0)))
      waited.put(event);
    return call.proceed();
  }
  for (const auto& each : waited.all()) {
    if (is_pending(each.first)) return copied_at_once(call);
    waited.erase(each.first);
  }
  return call.proceed();
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

int event_ends_with_thread(Call& call) {
  static Table<cudaEvent_t, int> makers;
  static Table<cudaEvent_t> ended;
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr) return ended.has(event) ? lost(call) : call.proceed();
  if (call.is("cudaEventDestroy")) {
    makers.erase(call.at<cudaEvent_t>(0));
    ended.erase(call.at<cudaEvent_t>(0));
  }
  const int code = call.proceed();
  if (code == kSuccess && makes_event(call)) {
    const auto made = *call.at<cudaEvent_t*>(0);
    const int self = this_thread();
    makers.put(made, self);
    at_thread_end([made, self] {
      if (makers.get(made) == self) ended.put(made);
    });
  }
  return code;
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
      .on({kOpenEvent}, [](Call& call) -> int {
        const int code = call.proceed();
        if (code != kSuccess) return code;
        cudaEventDestroy(*made_event(call));
        return own_event(call, code);
      });

  fault("ipc-wait-noop",
        {"LEVT-07", "LEVT-15", "POOL-12", "SERV-01", "TENS-02"},
        "a stream does not wait for an imported event")
      .on({kOpenEvent, kWaitEvent, kDestroyEvent}, import_skipped);

  fault(
      "ipc-record-early", {"LEVT-07", "LEVT-15", "TENS-02"},
      "a record of an interprocess event does not wait for the work before it")
      .on({kCreateEvent, kOpenEvent, kRecord, kRecordFlags, kDestroyEvent},
          [](Call& call) { return record_privately(call, false); });

  fault("ipc-sync-early", {"LEVT-08"},
        "a host wait for an imported event returns at once")
      .on({kOpenEvent, kSyncEvent, kDestroyEvent}, import_skipped);

  fault("ipc-query-always-ready", {"LEVT-09"},
        "an imported event is always ready")
      .on({kOpenEvent, kQueryEvent, kDestroyEvent}, import_skipped);

  fault("unrecorded-blocks", {"LEVT-11"},
        "a query and a host wait return cudaErrorNotReady for an event that "
        "was never recorded")
      .on({kCreateEvent, kGetEventHandle, kOpenEvent, kRecord, kQueryEvent,
           kSyncEvent, kRecordFlags, kDestroyEvent},
          unrecorded_blocks);

  fault(
      "default-stream-records-early", {"LEVT-07"},
      "a record in the default stream does not wait for the work of the stream")
      .before({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord},
              WHEN(shared_event(call) != nullptr &&
                   is_default(call.at<cudaStream_t>(1))),
              privately);

  fault("default-stream-never-waits", {"LEVT-07"},
        "the default stream does not wait for an imported event")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, [](Call& call) {
        const cudaEvent_t event = shared_event(call);
        if (event == nullptr || !is_imported(event) ||
            !is_default(call.at<cudaStream_t>(0)))
          return call.proceed();
        return lost(call);
      });

  fault("event-second-export-elsewhere", {"LEVT-27"},
        "the second handle of an event names another event")
      .on({kGetEventHandle, kDestroyEvent}, second_export_of_other_event);

  fault("stream-wait-ends-after-1-s", {"LEVT-07"},
        "a stream waits for an imported event for one second at most")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, wait_ends_after_a_second);

  fault("host-wait-ends-after-1-s", {"LEVT-08"},
        "a host waits for an imported event for one second at most")
      .on({kOpenEvent, kDestroyEvent, kSyncEvent}, [](Call& call) -> int {
        const cudaEvent_t event = shared_event(call);
        if (event == nullptr || !is_imported(event)) return call.proceed();
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::seconds(1);
        cudaError_t code = cudaErrorNotReady;
        while ((code = cudaEventQuery(event)) == cudaErrorNotReady) {
          cudaGetLastError();
          if (std::chrono::steady_clock::now() > until) return lost(call);
        }
        return code;
      });

  fault("destroy-cancels-wait", {"LEVT-07"},
        "an importer's stream continues when the importer destroys the event "
        "that it waits for")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, destroy_cancels_waits);

  fault("other-thread-sync-early", {"LEVT-27"},
        "only the thread that has opened an imported event waits for it")
      .on({kOpenEvent, kDestroyEvent, kSyncEvent}, nothing_in_other_threads);

  fault("other-thread-query-ready", {"LEVT-27"},
        "an imported event is always ready for a thread that has not opened it")
      .on({kOpenEvent, kDestroyEvent, kQueryEvent}, nothing_in_other_threads);

  fault("other-thread-wait-noop", {"LEVT-27"},
        "a stream waits for an imported event only if the calling thread has "
        "opened the event")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, nothing_in_other_threads);

  fault("record-with-flags-lost", {"LEVT-07"},
        "cudaEventRecordWithFlags records no interprocess event")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecordFlags},
          WHEN(shared_event(call) != nullptr), lost);

  fault("second-event-never-waited", {"LEVT-28"},
        "a stream waits only for the first of several imported events")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent, kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaStream_t, cudaEvent_t> first;
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || !is_imported(event))
              return noted_end(call, first);
            const auto stream = call.at<cudaStream_t>(0);
            if (first.get(stream, event) != event) return lost(call);
            first.put(stream, event);
            return call.proceed();
          });

  fault("per-thread-stream-never-waits", {"LEVT-07"},
        "a thread's default stream does not wait for an imported event")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent},
          such_streams_never_wait<is_per_thread_stream>);

  fault("per-thread-stream-records-early", {"LEVT-07"},
        "a record in a thread's default stream does not wait for the work of "
        "the stream")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord},
          such_streams_record_early<is_per_thread_stream>);

  fault("non-blocking-stream-never-waits", {"LEVT-07"},
        "a non-blocking stream does not wait for an imported event")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent},
          such_streams_never_wait<is_non_blocking>);

  fault("blocking-stream-never-waits", {"LEVT-07"},
        "a stream that was created without cudaStreamNonBlocking does not wait "
        "for an imported event")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent},
          such_streams_never_wait<is_blocking_stream>);

  fault("record-before-last-kernel", {"LEVT-07", "LEVT-08", "LEVT-09"},
        "a record does not cover the last kernel before it, nor the work after "
        "this kernel")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord, kLaunch,
           kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaStream_t> marked;
            if (call.is("cudaLaunchKernel")) {
              const auto stream = call.value<cudaStream_t>(kStream);
              cudaEventRecord(mark_of(stream), stream);
              marked.put(stream);
              return call.proceed();
            }
            return shared_event(call) != nullptr &&
                           marked.has(call.at<cudaStream_t>(1))
                       ? record_of_mark(call)
                       : noted_end(call, marked);
          });

  fault("wait-holds-no-copies", {"LEVT-07"},
        "the copies between the wait for an imported event and the next kernel "
        "do not wait")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent, kLaunch, kCopyAsync,
           kDestroyStream},
          wait_holds_kernels_only);

  fault("wait-holds-no-memsets", {"LEVT-07"},
        "the memsets between the wait for an imported event and the next "
        "kernel do not wait")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent, kLaunch, kSetAsync,
           kDestroyStream},
          wait_holds_kernels_only);

  fault("event-65th-is-first", {"LEVT-28"},
        "if 64 events are open, the next handle opens the first event")
      .before({kOpenEvent, kDestroyEvent}, [](Call& call) {
        static cudaIpcEventHandle_t first;
        if (opens_event(call)) {
          auto& handle = call.at<cudaIpcEventHandle_t>(1);
          const size_t before = imported_events();
          if (before == 0) first = handle;
          if (before >= 64) {
            handle = first;
            call.fired();
          }
        }
        return kSuccess;
      });

  fault("event-256-slots", {"LEVT-28"},
        "after 256 opens of events, each open gives the event that was opened "
        "256 opens before")
      .before({kOpenEvent, kDestroyEvent}, [](Call& call) {
        static auto& handles = *new std::vector<cudaIpcEventHandle_t>;
        constexpr size_t kSlots = 256;
        if (opens_event(call)) {
          auto& handle = call.at<cudaIpcEventHandle_t>(1);
          if (handles.size() >= kSlots) {
            handle = handles[handles.size() % kSlots];
            call.fired();
          }
          handles.push_back(handle);
        }
        return kSuccess;
      });

  fault("export-clears-record", {"LEVT-09"},
        "an export completes an event whose record is pending")
      .on({kCreateEvent, kDestroyEvent, kGetEventHandle, kRecord, kRecordFlags,
           kQueryEvent, kSyncEvent, kWaitEvent},
          [](Call& call) {
            const int code = noted_completion(call);
            if (code == kSuccess && exports_event(call) &&
                is_pending(call.at<cudaEvent_t>(1)))
              complete(call.at<cudaEvent_t>(1));
            return code;
          });

  fault("open-completes-record", {"LEVT-09"},
        "an open completes an event whose record is pending")
      .on({kOpenEvent, kCreateEvent, kDestroyEvent, kRecord, kRecordFlags,
           kQueryEvent, kSyncEvent, kWaitEvent},
          [](Call& call) {
            const int code = noted_completion(call);
            if (code == kSuccess && opens_event(call) &&
                is_pending(*call.at<cudaEvent_t*>(0)))
              complete(*call.at<cudaEvent_t*>(0));
            return code;
          });

  fault("event-reopened-unconnected", {"LEVT-09"},
        "an event that was destroyed and is opened again sees no records")
      .on({kOpenEvent, kDestroyEvent}, [](Call& call) -> int {
        static Table<std::string> destroyed;
        if (call.is("cudaEventDestroy")) {
          const auto event = call.at<cudaEvent_t>(0);
          const bool imported = is_imported(event);
          const std::string key = event_keys.get(event);
          const int code = call.proceed();
          if (code == kSuccess && imported) destroyed.put(key);
          return code;
        }
        const int code = call.proceed();
        return code == kSuccess && opens_event(call) &&
                       destroyed.has(event_keys.get(*call.at<cudaEvent_t*>(0)))
                   ? unconnected(call)
                   : code;
      });

  fault("event-destroy-ends-twin", {"LEVT-27"},
        "if a process opens one event twice and destroys one of the two, calls "
        "for the other succeed and do nothing")
      .on({kOpenEvent, kDestroyEvent, kRecord, kWaitEvent, kQueryEvent,
           kSyncEvent},
          [](Call& call) {
            static Table<cudaEvent_t> ended;
            if (call.is("cudaEventDestroy")) {
              const auto event = call.at<cudaEvent_t>(0);
              if (is_imported(event))
                for (const auto& [other, imported] : events.all())
                  if (imported &&
                      event_keys.get(other) == event_keys.get(event))
                    ended.put(other);
              ended.erase(event);
            }
            const cudaEvent_t event = shared_event(call);
            return event != nullptr && ended.has(event) ? lost(call)
                                                        : call.proceed();
          });

  fault("third-query-ready", {"LEVT-09"},
        "every third query of a pending imported event returns success")
      .on({kOpenEvent, kDestroyEvent, kQueryEvent}, [](Call& call) -> int {
        static Table<cudaEvent_t, int> asked;
        const cudaEvent_t event = shared_event(call);
        const int code = call.proceed();
        if (event == nullptr || !is_imported(event) ||
            code != cudaErrorNotReady)
          return code;
        asked.put(event, asked.get(event) + 1);
        return asked.get(event) % 3 == 0 ? lost(call) : code;
      });

  fault("blocking-event-unconnected", {"LEVT-22"},
        "an importer of a blocking event sees no records")
      .on({kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent},
          blocking_event_unconnected);

  fault("default-records-itself", {"LEVT-07"},
        "a record in the default stream covers no work if the last kernel was "
        "launched in another stream")
      .before({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord, kLaunch},
              [](Call& call) -> bool {
                static std::atomic<cudaStream_t> used_last{nullptr};
                if (call.is("cudaLaunchKernel")) {
                  used_last = call.value<cudaStream_t>(kStream);
                  return false;
                }
                const cudaEvent_t event = shared_event(call);
                if (event == nullptr || !is_default(call.at<cudaStream_t>(1)) ||
                    is_default(used_last))
                  return false;
                call.at<cudaStream_t>(1) = private_stream();
                return true;
              });

  fault("default-holds-itself", {"LEVT-07"},
        "a wait of the default stream holds only kernels, asynchronous copies "
        "and memsets of this stream, and no other stream")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent, kLaunch, kCopyAsync,
           kSetAsync},
          default_holds_itself);

  fault("blocking-event-spins", {"LEVT-22"},
        "a host wait for an interprocess event with blocking waits spins")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kSyncEvent},
          [](Call& call) {
            static Table<cudaEvent_t> blocking;
            const cudaEvent_t event = shared_event(call);
            if (event != nullptr && blocking.has(event)) {
              call.fired();
              while (is_pending(event)) continue;
              return call.proceed();
            }
            const int code = call.proceed();
            if (code != kSuccess || !makes_event(call)) return code;
            blocking.erase(
                *call.at<cudaEvent_t*>(0));  // an earlier event had it
            if (call.at<unsigned>(1) & cudaEventBlockingSync)
              blocking.put(*call.at<cudaEvent_t*>(0));
            return code;
          });

  fault("query-asks-stream", {"LEVT-09", "LEVT-07", "LEVT-08"},
        "an event that this process has recorded is pending as long as its "
        "stream has later work")
      .on({kQueryEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent, kRecord, kRecordFlags, kDestroyStream},
          asks_stream<false>);

  fault("sync-waits-for-stream", {"LEVT-08", "LEVT-07", "LEVT-09"},
        "a host wait for an event that this process has recorded also waits "
        "for later work of its stream")
      .on({kSyncEvent, kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent,
           kRecord, kRecordFlags, kDestroyStream},
          asks_stream<false>);

  fault("unrecorded-wait-refused", {"LEVT-11"},
        "a stream cannot wait for an imported event before its first record")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent,
           kRecord, kRecordFlags},
          unrecorded_refused);

  fault("unrecorded-sync-refused", {"LEVT-11"},
        "a host cannot wait for an imported event before its first record")
      .on({kSyncEvent, kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent,
           kRecord, kRecordFlags},
          unrecorded_refused);

  fault("legacy-constant-never-waits", {"LEVT-07"},
        "the stream cudaStreamLegacy does not wait for an imported event")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) {
            return wait_lost(call, [](Call&, cudaStream_t stream) {
              return stream == cudaStreamLegacy;
            });
          });

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
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            return wait_lost(call, [](Call&, cudaStream_t stream) {
              int priority = 0;
              DRIVER_CALL(cuStreamGetPriority)(stream, &priority);
              return priority != 0;
            });
          });

  fault("query-done-while-event", {"LEVT-07"},
        "a stream that waits for an imported event is reported as done")
      .on({kQueryStream, kWaitEvent, kDestroyStream}, idle_while_event);

  fault("sync-done-while-event", {"LEVT-07"},
        "a host does not wait for a stream that waits for an imported event")
      .on({kSyncStream, kWaitEvent, kDestroyStream}, idle_while_event);

  fault("context-sync-done-while-event", {"LEVT-07"},
        "cuCtxSynchronize does not wait while a stream waits for an imported "
        "event")
      .on({kSyncContext, kWaitEvent}, [](Call& call) -> int {
        if (waits_for_event(call)) return noted_event_wait(call);
        for (const auto& each : told_to_wait.all())
          if (waits(each.first)) return lost(call);
        return call.proceed();
      });

  fault("wait-for-chained-record-lost", {"LEVT-07", "LEVT-10"},
        "a stream does not wait for an interprocess event that its process has "
        "recorded after a wait for another process's record")
      .on({kWaitEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent, kDestroyStream},
          chained_stream_wait_lost<true>);

  fault("wait-for-chained-plain-record-lost", {"LEVT-07", "LEVT-10"},
        "a stream does not wait for an event of its process alone that was "
        "recorded after a wait for another process's record")
      .on({kWaitEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent, kDestroyStream},
          chained_stream_wait_lost<false>);

  fault("host-wait-for-chained-record-lost", {"LEVT-07", "LEVT-10"},
        "a host does not wait for an interprocess event that its process has "
        "recorded after a wait for another process's record")
      .on({kSyncEvent, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          chained_host_wait_lost<true>);

  fault("host-wait-for-chained-plain-record-lost", {"LEVT-07", "LEVT-10"},
        "a host does not wait for an event of its process alone that was "
        "recorded after a wait for another process's record")
      .on({kSyncEvent, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          chained_host_wait_lost<false>);

  fault("query-of-previous", {"LEVT-28"},
        "after one event was ready, the next query of another event says ready")
      .on({kQueryEvent}, [](Call& call) -> int {
        static std::atomic<cudaEvent_t> ready{nullptr};
        const cudaEvent_t event = shared_event(call);
        const int code = call.proceed();
        if (event == nullptr) return code;
        if (code == kSuccess) ready = event;
        if (code != cudaErrorNotReady || ready == nullptr || ready == event)
          return code;
        ready = nullptr;
        return accepted(call);
      });

  fault("sync-early-after-query", {"LEVT-27", "LEVT-10"},
        "a host does not wait for an event that it has found pending")
      .on({kSyncEvent, kQueryEvent, kCreateEvent, kOpenEvent, kDestroyEvent},
          early_after_query);

  fault("second-stream-records-early", {"LEVT-28", "LEVT-13", "LEVT-12"},
        "only records in the first stream of a process wait for the work of "
        "their stream")
      .on({kRecord, kRecordFlags, kCreateEvent, kOpenEvent, kDestroyEvent},
          [](Call& call) -> int {
            return records_early(call, [](cudaStream_t stream, cudaEvent_t) {
              static std::atomic<cudaStream_t> first{stream};
              return first != stream;
            });
          });

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
      .on({kRecord, kRecordFlags, kCreateEvent, kOpenEvent, kDestroyEvent},
          [](Call& call) -> int {
            return records_early(call, [](cudaStream_t stream, cudaEvent_t) {
              int priority = 0;
              DRIVER_CALL(cuStreamGetPriority)(stream, &priority);
              return priority != 0;
            });
          });

  fault("device-sync-done-while-event", {"LEVT-07"},
        "cudaDeviceSynchronize does not wait while a stream waits for an "
        "imported event")
      .on({kSyncDevice, kWaitEvent, kOpenEvent, kDestroyEvent},
          device_sync_while_event);

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
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, destroy_ends_second_wait);

  fault("reopened-event-forgets-record", {"LEVT-09"},
        "an event that was destroyed and is opened again counts as complete "
        "until its next record")
      .on({kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent, kRecord,
           kRecordFlags, kWaitEvent, kQueryEvent, kSyncEvent},
          reopened_forgets_record);

  fault("event-refused-in-new-thread", {"LEVT-27"},
        "a thread that has made no CUDA call yet cannot use an imported event")
      .on({kRecord, kRecordFlags, kWaitEvent, kQueryEvent, kSyncEvent},
          [](Call& call) {
            const cudaEvent_t event = shared_event(call);
            return event != nullptr && is_imported(event) &&
                           call.is_runtime() && current_context() == nullptr
                       ? refused(call, cudaErrorInvalidResourceHandle)
                       : call.proceed();
          });

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
      .on({kQueryEvent, kOpenEvent, kGetEventHandle, kCreateEvent,
           kDestroyEvent},
          [](Call& call) {
            return lost_of_blocking_import(
                call, [](Call& one) { return one.is("cudaEventQuery"); });
          });

  fault("blocking-import-never-waited", {"LEVT-22"},
        "a stream does not wait for an imported event with blocking waits")
      .on({kWaitEvent, kOpenEvent, kGetEventHandle, kCreateEvent,
           kDestroyEvent},
          [](Call& call) {
            return lost_of_blocking_import(
                call, [](Call& one) { return one.is("cudaStreamWaitEvent"); });
          });

  fault("blocking-import-never-recorded", {"LEVT-22"},
        "an importer's record of an event with blocking waits is lost")
      .on({kRecord, kRecordFlags, kOpenEvent, kGetEventHandle, kCreateEvent,
           kDestroyEvent},
          [](Call& call) { return lost_of_blocking_import(call, records); });

  fault("driver-record-with-flags-lost", {"LEVT-11"},
        "cuEventRecordWithFlags records no interprocess event")
      .on({kRecordFlags},
          WHEN(shared_event(call) != nullptr && !call.is_runtime()), lost);

  fault("record-with-flags-early", {"LEVT-07"},
        "a record with flags of an interprocess event does not wait for the "
        "work before it")
      .before({kRecordFlags}, [](Call& call) -> bool {
        auto& stream = call.value<cudaStream_t>(kStream);
        if (shared_event(call) == nullptr || !is_busy(stream)) return false;
        stream = private_stream();
        return true;
      });

  fault("second-host-wait-early", {"LEVT-08"},
        "a thread does not wait for an imported event while another thread "
        "waits for it")
      .on({kSyncEvent}, [](Call& call) -> int {
        static Table<cudaEvent_t> waited;
        const cudaEvent_t event = shared_event(call);
        if (event == nullptr || !is_imported(event)) return call.proceed();
        if (waited.has(event) && is_pending(event)) return lost(call);
        waited.put(event);
        const int code = call.proceed();
        waited.erase(event);
        return code;
      });

  fault("event-handle-ends-with-thread", {"LEVT-27"},
        "the handle of an event cannot be opened when the thread that exported "
        "it has ended")
      .on({kOpenEvent, kGetEventHandle}, [](Call& call) -> int {
        if (opens_event(call))
          return told("gone-" + key_of_handle(call.at<cudaIpcEventHandle_t>(1)),
                      0) != 0
                     ? refused(call)
                     : call.proceed();
        const int code = call.proceed();
        if (code == kSuccess && gettid() != getpid()) {
          const std::string key =
              key_of_handle(*call.at<cudaIpcEventHandle_t*>(0));
          at_thread_end([key] { tell_processes("gone-" + key, 1); });
        }
        return code;
      });

  fault("event-get-aligned-down", {"LEVT-01"},
        "the handle of an event is written to an address that is rounded down "
        "to a multiple of 8")
      .on({kGetEventHandle}, handle_at_aligned_address<cudaIpcEventHandle_t>);

  fault("busy-stream-never-waits", {"LEVT-07"},
        "a stream that still has work does not wait for an imported event")
      .on({kWaitEvent}, [](Call& call) {
        const cudaEvent_t event = shared_event(call);
        return event != nullptr && is_imported(event) &&
                       is_busy(stream_of(call)) && is_pending(event)
                   ? lost(call)
                   : call.proceed();
      });

  fault("query-ready-while-stream-waits", {"LEVT-09"},
        "a query says that an imported event is ready after a stream of the "
        "process was told to wait for it")
      .on({kQueryEvent, kWaitEvent, kOpenEvent, kCreateEvent, kDestroyEvent},
          done_while_stream_waits);

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
      .on({kCopyAsync, kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent, kDestroyStream},
          [](Call& call) -> int {
            if (keeps_awaited(call)) return noted_awaited(call);
            unsigned type = 0;
            if (!is_waiting(call, true) ||
                DRIVER_CALL(cuPointerGetAttribute)(
                    &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                    call.at<CUdeviceptr>(0)) == CUDA_SUCCESS)
              return call.proceed();
            call.value<cudaStream_t>(kStream) = private_stream();
            call.fired();
            const int code = call.proceed();
            DRIVER_CALL(cuStreamSynchronize)(private_stream());
            return code;
          });

  fault("event-ends-with-thread", {"LEVT-27"},
        "the records of an event are lost when the thread that created the "
        "event has ended")
      .on({kRecord, kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          event_ends_with_thread);

  fault("blocking-event-sync-skips-importers", {"LEVT-22"},
        "a host does not wait for an importer's record of an event with "
        "blocking waits")
      .on({kSyncEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          [](Call& call) -> int {
            if (makes_event(call)) return noted_sleeping(call);
            const cudaEvent_t event = shared_event(call);
            return event != nullptr && !records(call) && sleeping.has(event) &&
                           is_pending(event) && !is_own_pending(event)
                       ? lost(call)
                       : noted_record(call);
          });

  fault("wait-holds-no-configured-launches", {"LEVT-07"},
        "a launch with attributes directly after a wait for an imported event "
        "does not wait")
      .on({"cudaLaunchKernelExC", kWaitEvent, kLaunch, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kCopyAsync, kSetAsync,
           kHostFunction, kCopy2DAsync, kSet2DAsync, kWriteWord, kWaitWord,
           kBatch, kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaStream_t> waited;
            if (call.is("cudaLaunchKernelExC")) {
              cudaLaunchConfig_t config =
                  *call.at<const cudaLaunchConfig_t*>(0);
              if (!waited.erase(config.stream) || !is_busy(config.stream))
                return call.proceed();
              config.stream = private_stream();
              call.at<const cudaLaunchConfig_t*>(0) = &config;
              call.fired();
              return call.proceed();
            }
            return noted_import_wait(call, waited);
          });

  fault("driver-stream-sync-done-while-event", {"LEVT-07"},
        "cuStreamSynchronize does not wait for a stream that waits for an "
        "imported event")
      .on({kSyncStream, kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent, kDestroyStream},
          [](Call& call) -> int {
            if (keeps_awaited(call)) return noted_awaited(call);
            return !call.is_runtime() && is_waiting(call, true)
                       ? lost(call)
                       : call.proceed();
          });

  fault("other-thread-import-record-lost", {"LEVT-27"},
        "an importer's record is lost if another thread has opened the event")
      .on({kRecord, kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            static Table<cudaEvent_t, int> openers;
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr) {
              const int code = call.proceed();
              if (code == kSuccess && opens_event(call))
                openers.put(*call.at<cudaEvent_t*>(0), this_thread());
              return code;
            }
            return is_imported(event) && openers.get(event) != this_thread()
                       ? lost(call)
                       : call.proceed();
          });

  fault("threads-share-default-stream", {"LEVT-27"},
        "all threads of a process have one cudaStreamPerThread")
      .on({kRecord, kRecordFlags, kWaitEvent, kLaunch, kHostFunction,
           kLaunchGraph, kCopyAsync, kSetAsync, kQueryStream, kSyncStream},
          [](Call& call) {
            static Table<int> threads;
            auto& stream = call.value<cudaStream_t>(kStream);
            if (stream != cudaStreamPerThread) return call.proceed();
            threads.put(this_thread());
            if (threads.all().size() > 1) call.fired();
            stream = private_stream();
            return call.proceed();
          });

  fault("default-skips-wait-of-blocking", {"LEVT-07"},
        "the null stream does not wait for a blocking stream whose last work "
        "is a wait for an imported event")
      .on({kWaitEvent, kLaunch, kCopyAsync, kSetAsync, kQueryStream,
           kSyncStream, kDestroyStream, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kHostFunction,
           kLaunchGraph, kCopy2DAsync, kWriteWord, kBatch, kSyncDevice},
          [](Call& call) -> int {
            if (call.find(kStream) == nullptr) return noted_late_event(call);
            const auto stream = call.value<cudaStream_t>(kStream);
            if (waits_for_event(call)) {
              if (!uses_import(call) || !is_blocking(stream) ||
                  is_captured(stream))
                return call.proceed();
              submit(stream);
              late.put(stream, call.value<cudaEvent_t>(kEvent));
              return kSuccess;
            }
            submit(stream);
            if (is_default(stream))
              for (const auto& each : late.all())
                if (is_pending(each.second)) call.fired();
            return call.proceed();
          });

  fault("wait-holds-no-host-functions", {"LEVT-07"},
        "a host function directly after a wait for an imported event does not "
        "wait")
      .on({kHostFunction, kWaitEvent, kLaunch, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent, kCopyAsync, kSetAsync, kCopy2DAsync,
           kSet2DAsync, kWriteWord, kWaitWord, kBatch, kDestroyStream},
          wait_holds_no_host_functions<false>);

  fault("wait-holds-no-driver-host-functions", {"LEVT-07"},
        "a host function of the driver API directly after a wait for an "
        "imported event does not wait")
      .on({kHostFunction, kWaitEvent, kLaunch, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent, kCopyAsync, kSetAsync, kCopy2DAsync,
           kSet2DAsync, kWriteWord, kWaitWord, kBatch, kDestroyStream},
          wait_holds_no_host_functions<true>);

  fault("last-wait-replaces-others", {"LEVT-28"},
        "of several waits for imported events directly one after another, only "
        "the last one holds the stream")
      .on({kWaitEvent, kLaunch, kCopyAsync, kSetAsync, kQueryStream,
           kSyncStream, kDestroyStream, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kHostFunction,
           kLaunchGraph, kCopy2DAsync, kWriteWord, kBatch, kSyncDevice},
          [](Call& call) -> int {
            if (call.find(kStream) == nullptr) return noted_late_event(call);
            const auto stream = call.value<cudaStream_t>(kStream);
            if (!waits_for_event(call) || !uses_import(call) ||
                is_captured(stream)) {
              submit(stream);
              return call.proceed();
            }
            if (late.has(stream) && is_pending(late.get(stream))) call.fired();
            late.put(stream, call.value<cudaEvent_t>(kEvent));
            return kSuccess;
          });

  fault("sync-copy-skips-wait", {"LEVT-07"},
        "a synchronous copy does not wait, although the null stream waits for "
        "an imported event")
      .on({kCopy, kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          sync_copy_skips_wait);

  fault("stream-destroy-ends-wait", {"LEVT-07"},
        "when a stream is destroyed that waits for an imported event, its "
        "writes of words do not wait any more")
      .on({kDestroyStream, kWaitEvent, kWriteWord}, stream_destroy_ends_wait);

  fault("host-wait-ends-at-signal", {"LEVT-08"},
        "a host wait for an event ends when its thread gets a signal")
      .on({kSyncEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          host_wait_ends_at_signal);

  fault("new-event-inherits-record", {"LEVT-11"},
        "a new event takes over the pending record of an event that was "
        "destroyed")
      .on({kCreateEvent, kDestroyEvent}, new_event_inherits_record);

  fault("event-export-needs-current-gpu", {"LEVT-01"},
        "the handle of an event names another event if another GPU is current")
      .with_gpus(2)
      .on({kGetEventHandle, kCreateEvent}, [](Call& call) -> int {
        static cudaEvent_t other = nullptr;
        auto& event = call.at<cudaEvent_t>(1);
        if (!exports_event(call) || !devices.has(event) ||
            devices.get(event) == current_device())
          return noted_device(call);
        if (other == nullptr)
          cudaEventCreateWithFlags(
              &other, cudaEventInterprocess | cudaEventDisableTiming);
        event = other;
        call.fired();
        return call.proceed();
      });

  fault(
      "exporter-record-skips-host-functions", {"LEVT-07"},
      "an exporter's record does not cover a host function directly before it")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          in_exporter<record_skips_host_functions>);

  fault("exporter-record-skips-joined-streams", {"LEVT-07"},
        "an exporter's record does not cover the work of a stream that its "
        "stream has joined directly before")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          in_exporter<record_skips_joined_streams>);

  fault("exporter-record-skips-awaited-words", {"LEVT-07"},
        "an exporter's record directly after a wait for a word does not cover "
        "this wait")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          in_exporter<record_skips_awaited_words>);

  fault("flags-record-skips-host-functions", {"LEVT-07", "LEVT-10"},
        "a record with flags does not cover a host function directly before it")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          with_flags<record_skips_host_functions>);

  fault("flags-record-skips-joined-streams", {"LEVT-07", "LEVT-10"},
        "a record with flags does not cover the work of a stream that its "
        "stream has joined directly before")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          with_flags<record_skips_joined_streams>);

  fault("flags-record-in-default-early", {"LEVT-07", "LEVT-10"},
        "a record with flags in a default stream covers no work")
      .before({kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
               kDestroyEvent},
              [](Call& call) -> bool {
                if (shared_event(call) == nullptr) return false;
                auto& stream = call.value<cudaStream_t>(kStream);
                if ((!is_default(stream) && stream != cudaStreamPerThread) ||
                    is_captured(stream))
                  return false;
                stream = private_stream();
                return true;
              });

  fault("plain-record-skips-import-wait", {"LEVT-07"},
        "an event that processes do not share, recorded directly after a wait "
        "for an imported event, does not cover this wait")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          own_record_skips_wait<false>);

  fault("own-record-skips-import-wait", {"LEVT-07"},
        "an importer's own interprocess event, recorded directly after a wait "
        "for an imported event, does not cover this wait")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          own_record_skips_wait<true>);

  fault("driver-default-never-waits", {"LEVT-07"},
        "the null stream, and streams that wait for it, do not wait for an "
        "imported event by the driver API")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || !is_imported(event)) return call.proceed();
            const auto stream = call.value<cudaStream_t>(kStream);
            return !call.is_runtime() &&
                           (is_default(stream) || is_blocking(stream)) &&
                           is_pending(event)
                       ? lost(call)
                       : call.proceed();
          });

  fault("wait-257-lost", {"LEVT-28"},
        "while a stream has work, only its first 256 waits for imported events "
        "hold it")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            static Table<cudaStream_t, int> waits;
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || !is_imported(event)) return call.proceed();
            const auto stream = call.value<cudaStream_t>(kStream);
            const int before = is_busy(stream) ? waits.get(stream) : 0;
            waits.put(stream, before + 1);
            return before >= 256 && is_pending(event) ? lost(call)
                                                      : call.proceed();
          });

  fault("wait-of-33rd-stream-lost", {"LEVT-28"},
        "at most 32 streams wait for an imported event at a time, and further "
        "streams do not wait")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent,
           kDestroyStream},
          further_streams_never_wait);

  fault("driver-host-wait-ends-at-signal", {"LEVT-08"},
        "a host wait by the driver API ends when its thread gets a signal")
      .on({kSyncEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          WHEN(!call.is_runtime() || shared_event(call) == nullptr),
          host_wait_ends_at_signal);

  fault("blocking-wait-ends-at-signal", {"LEVT-22"},
        "a host wait for an event with cudaEventBlockingSync ends when its "
        "thread gets a signal")
      .on({kSyncEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            if (makes_event(call)) return noted_sleeping(call);
            const cudaEvent_t event = shared_event(call);
            return event != nullptr && !sleeping.has(event)
                       ? call.proceed()
                       : host_wait_ends_at_signal(call);
          });

  fault("imported-event-ends-with-thread", {"LEVT-27"},
        "no stream waits for an imported event when the thread that opened it "
        "has ended")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, [](Call& call) -> int {
        static Made<cudaEvent_t> imported;
        if (call.is("cudaStreamWaitEvent")) {
          const auto event = call.at<cudaEvent_t>(1);
          return imported.by_ended_thread(event) && is_pending(event)
                     ? lost(call)
                     : call.proceed();
        }
        if (call.is("cudaEventDestroy"))
          imported.erase(call.at<cudaEvent_t>(0));
        const int code = call.proceed();
        if (code == kSuccess && opens_event(call))
          imported.by_this_thread(*call.at<cudaEvent_t*>(0));
        return code;
      });

  fault("ok-event-handle-scrambled", {"LEVT-01", "LEVT-04", "LEVT-25"},
        "the bytes of an event handle are written in another way")
      .on({kGetEventHandle, kOpenEvent}, [](Call& call) {
        if (call.is("cudaIpcOpenEventHandle")) {
          turn(call.at<cudaIpcEventHandle_t>(1));
          return call.proceed();
        }
        const int code = call.proceed();
        if (code == kSuccess) turn(*call.at<cudaIpcEventHandle_t*>(0));
        call.fired();
        return code;
      });
}

}  // namespace
}  // namespace ipclab::faults
