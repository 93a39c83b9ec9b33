// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int only_first_records(Call& call, unsigned most) {
  if (keeps_events(call)) return noted_new_event(call);
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && count_record(event) > most ? lost(call)
                                                        : call.proceed();
}

// An event that was complete once counts as complete forever, whatever is
// recorded later.
int stays_ready(Call& call) {
  static Table<cudaEvent_t> ready;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return noted_end(call, ready);
  if (ready.has(event)) return lost(call);
  const int code = call.proceed();
  if (code == kSuccess) ready.put(event);
  return code;
}

int waits_for_latest(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  auto* const turn = new Turn;  // never deleted: its thread uses it
  using Launch = cudaError_t(cudaStream_t, cudaHostFn_t, void*);
  static const auto launch =
      reinterpret_cast<Launch*>(resolve_runtime("cudaLaunchHostFunc"));
  if (launch(call.at<cudaStream_t>(0), wait_for_turn, turn) != cudaSuccess)
    return call.proceed();
  call.fired();
  int device = 0;
  cudaGetDevice(&device);
  std::thread([turn, event, device] {
    const auto query = reinterpret_cast<decltype(cudaEventQuery)*>(
        resolve_runtime("cudaEventQuery"));
    cudaSetDevice(device);
    std::unique_lock lock(turn->mutex);
    turn->changed.wait_for(lock, kTurn, [&] { return turn->reached; });
    lock.unlock();
    // Polls, because this fault must not call the driver's own wait.
    const auto until = std::chrono::steady_clock::now() + kTurn;
    while (query(event) == cudaErrorNotReady &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
    turn->may_go = true;
    turn->changed.notify_all();
  }).detach();
  return kSuccess;
}

int pending_waits_to_32(Call& call) {
  static Table<cudaStream_t, std::vector<cudaEvent_t>> marks;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const auto stream = call.at<cudaStream_t>(0);
  std::vector<cudaEvent_t> pending;
  for (const cudaEvent_t mark : marks.get(stream))
    if (is_pending(mark))
      pending.push_back(mark);
    else
      cudaEventDestroy(mark);
  const bool is_full = pending.size() >= 32;
  const int code = is_full ? lost(call) : call.proceed();
  cudaEvent_t mark = nullptr;
  if (!is_full &&
      cudaEventCreateWithFlags(&mark, cudaEventDisableTiming) == cudaSuccess) {
    cudaEventRecord(mark, stream);
    pending.push_back(mark);
  }
  marks.put(stream, pending);
  return code;
}

int destroy_completes_record(Call& call) {
  static Table<cudaEvent_t> recorded;
  const cudaEvent_t event = shared_event(call);
  const auto last = [](cudaEvent_t each) {
    return "last-" + event_keys.get(each);
  };
  if (event != nullptr && records(call)) {
    tell_processes(last(event), static_cast<unsigned long long>(getpid()));
    if (is_imported(event)) recorded.put(event);
  }
  if (call.is("cudaEventDestroy")) {
    const auto destroyed = call.at<cudaEvent_t>(0);
    // Another process may have recorded the event since.
    if (recorded.erase(destroyed) &&
        told(last(destroyed), 0) == static_cast<unsigned long long>(getpid()) &&
        is_pending(destroyed))
      complete(destroyed);
  }
  return noted_completion(call);
}

int waits_for_previous(Call& call) {
  struct Marks {
    cudaEvent_t previous = nullptr;
    cudaEvent_t latest = nullptr;
  };
  static Table<cudaEvent_t, Marks> marks;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) marks.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  Marks of = marks.get(event);
  if (records(call)) {
    of.previous = of.latest;
    cudaEventCreateWithFlags(&of.latest, cudaEventDisableTiming);
    cudaEventRecord(of.latest, call.value<cudaStream_t>(kStream));
    marks.put(event, of);
  } else if (of.previous != nullptr && !is_pending(of.previous) &&
             is_pending(of.latest)) {
    call.at<cudaEvent_t>(1) = of.previous;
    call.fired();
  }
  return call.proceed();
}

// In the exporter, a host function after a wait for an importer's record runs
// at once. If the runtime is sound, only those of the driver API do so.
template <bool runtime_is_sound>
int exporters_host_function_ahead(Call& call) {
  if (!call.is("cudaLaunchHostFunc"))
    return noted_foreign_wait(call, Whose::kExporters);
  auto& stream = call.value<cudaStream_t>(kStream);
  if (waits(stream) && (!runtime_is_sound || !call.is_runtime())) {
    stream = private_stream();
    call.fired();
  }
  return call.proceed();
}

// In the exporter, a call does not know of a stream that waits for an
// importer's record. Of the calls for one stream, only those of the driver API
// are broken.
int exporter_ignores_wait(Call& call) {
  const bool asks =
      call.is("cudaDeviceSynchronize") || call.is("cuCtxSynchronize") ||
      call.is("cudaStreamSynchronize") || call.is("cudaStreamQuery");
  if (!asks) return noted_foreign_wait(call, Whose::kExporters);
  return call.is_runtime() && call.find(kStream) != nullptr
             ? call.proceed()
             : ignores_waiting(call);
}

int wait_ends_after_many_records(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const std::string key = "records-" + event_keys.get(event);
  if (records(call)) {
    tell_processes(key, told(key, 0) + 1);
    return call.proceed();
  }
  const auto stream = call.value<cudaStream_t>(kStream);
  if (!is_imported(event) || is_captured(stream) || !is_pending(event))
    return call.proceed();
  // Another stream makes the wait, and a thread looks at both reasons to go on.
  const auto before = told(key, 0);
  const CUcontext context = current_context();
  cudaStream_t same = nullptr;
  void* word = nullptr;
  if (cudaStreamCreateWithFlags(&same, cudaStreamNonBlocking) != cudaSuccess ||
      cudaHostAlloc(&word, 4, cudaHostAllocMapped) != cudaSuccess)
    return call.proceed();
  std::memset(word, 0, 4);
  call.at<cudaStream_t>(0) = same;
  const int code = call.proceed();
  std::thread([=] {
    DRIVER_CALL(cuCtxSetCurrent)(context);
    while (is_busy(same)) {
      if (told(key, 0) - before >= 512) {
        note_fired("cudaStreamWaitEvent");
        break;
      }
      poll(nullptr, 0, 1);
    }
    *static_cast<volatile uint32_t*>(word) = 1;
  }).detach();
  driver<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32")(
      stream, number(word), 1, CU_STREAM_WAIT_VALUE_EQ);
  return code;
}

// Calls `instead` for a record in a stream other than the stream of the first
// record.
int record_elsewhere(Call& call, int (*instead)(Call& call, cudaEvent_t)) {
  static Table<cudaEvent_t, cudaStream_t> streams;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) streams.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  if (streams.has(event) && streams.get(event) != stream)
    return instead(call, event);
  streams.put(event, stream);
  return call.proceed();
}

cudaEvent_t record_in(cudaStream_t stream) {
  cudaEvent_t mark = nullptr;
  cudaEventCreateWithFlags(&mark, cudaEventDisableTiming);
  cudaEventRecord(mark, stream);
  return mark;
}

int own_record_preferred(Call& call) {
  static Table<cudaEvent_t, cudaEvent_t> own;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) own.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  if (records(call)) {
    const int code = call.proceed();
    if (code == kSuccess && !is_captured(call.value<cudaStream_t>(kStream)))
      own.put(event, record_in(call.value<cudaStream_t>(kStream)));
    return code;
  }
  if (own.has(event) && !is_pending(own.get(event)) && is_pending(event)) {
    call.value<cudaEvent_t>(kEvent) = own.get(event);
    call.fired();
  }
  return call.proceed();
}

int twin_unseen(Call& call) {
  struct Record {
    cudaEvent_t event = nullptr;
    cudaEvent_t mark = nullptr;  // pending as long as this record
  };
  static Table<std::string, Record> last;  // by key
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) {
      const std::string key = event_keys.get(call.at<cudaEvent_t>(0));
      if (last.get(key).event == call.at<cudaEvent_t>(0)) last.erase(key);
    }
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const std::string key = event_keys.get(event);
  if (records(call)) {
    const auto stream = call.value<cudaStream_t>(kStream);
    const int code = call.proceed();
    if (code == kSuccess && !is_captured(stream))
      last.put(key, {event, record_in(stream)});
    return code;
  }
  const Record other = last.get(key);
  return other.event != nullptr && other.event != event &&
                 is_pending(other.mark) && is_pending(event)
             ? lost(call)
             : call.proceed();
}

int exporter_keeps_own_record(Call& call) {
  static auto& own = *new Table<cudaEvent_t, cudaEvent_t>;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) own.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return call.proceed();
  if (records(call)) {
    const bool captured = is_captured(stream_of(call));
    const int code = call.proceed();
    if (code != kSuccess || captured) return code;
    cudaEvent_t mark = own.get(event);
    if (mark == nullptr)
      cudaEventCreateWithFlags(&mark, cudaEventDisableTiming);
    cudaEventRecord(mark, stream_of(call));
    own.put(event, mark);
    return code;
  }
  if (own.has(event) && !is_pending(own.get(event)) && is_pending(event)) {
    call.value<cudaEvent_t>(kEvent) = own.get(event);
    call.fired();
  }
  return call.proceed();
}

// The destroy of a stream completes the records that importers have made in
// this stream. Or it completes the exporter's records in it, and only importers
// see this.
template <bool importers>
int record_ends_with_stream(Call& call) {
  // Processes tell which of them has made the last record, or that this record
  // has ended.
  constexpr auto kEnded = ~0ull;
  static Table<cudaEvent_t, cudaStream_t> recorded;
  const auto self = static_cast<unsigned long long>(getpid());
  const auto key_of_last = [](cudaEvent_t event) {
    return "recorder-" + event_keys.get(event);
  };
  if (call.is("cudaStreamDestroy")) {
    for (const auto& [event, stream] : recorded.all()) {
      if (stream != call.at<cudaStream_t>(0)) continue;
      recorded.erase(event);
      const std::string key = key_of_last(event);
      if (is_pending(event) && told(key, self) == self)
        tell_processes(key, kEnded);
    }
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    if (call.is("cudaEventDestroy")) recorded.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  if (records(call)) {
    if (is_imported(event) == importers)
      recorded.put(event, call.value<cudaStream_t>(kStream));
    tell_processes(key_of_last(event), self);
    return call.proceed();
  }
  return told(key_of_last(event), 0) == kEnded &&
                 (importers || is_imported(event)) && is_pending(event)
             ? lost(call)
             : call.proceed();
}

int null_record_skips_blocking(Call& call) {
  static Table<cudaStream_t> worked;
  auto& stream = call.value<cudaStream_t>(kStream);
  if (!records(call)) {
    const int code = call.proceed();
    if (is_default(stream)) {
      worked.change([](auto& all) { all.clear(); });
      mark(nullptr);
    }
    if (is_blocking(stream)) worked.put(stream);
    return code;
  }
  if (!uses_import(call) || !is_default(stream) || worked.all().empty() ||
      is_pending(mark_of(nullptr)))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

// A stream of the exporter submits a wait only with its next work. If
// `ends_early`, the destroy of the event ends such a wait.
template <bool ends_early>
int exporter_waits_late(Call& call) {
  static Table<cudaStream_t> found_done;
  if (ends_early && call.is("cudaEventDestroy")) {
    for (const auto& [stream, event] : late.all()) {
      if (event != call.at<cudaEvent_t>(0)) continue;
      if (is_pending(event)) call.fired();
      late.erase(stream);
    }
  }
  if (call.find(kStream) == nullptr) return noted_late_event(call);
  const auto stream = call.value<cudaStream_t>(kStream);
  if (!ends_early && late.has(stream) && found_done.has(stream) &&
      is_pending(late.get(stream)))
    call.fired();
  submit(stream);
  const cudaEvent_t event = shared_event(call);
  if (!waits_for_event(call) || event == nullptr || is_imported(event) ||
      is_captured(stream))
    return call.proceed();
  late.put(stream, event);
  found_done.erase(stream);
  if (!is_pending(event)) found_done.put(stream);
  return kSuccess;
}

int both_destroys_end_wait(Call& call) {
  static Table<cudaEvent_t, std::string> destroyed;  // by the importer
  if (call.is("cudaEventDestroy")) {
    const auto event = call.at<cudaEvent_t>(0);
    if (events.has(event) && !is_imported(event))
      tell_processes("gone-" + event_keys.get(event), 1);
    for (const auto& each : late.all()) {
      if (each.second != event) continue;
      destroyed.put(event, event_keys.get(event));
      events.erase(event);
      return kSuccess;
    }
    return call.proceed();
  }
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code == kSuccess && exports_event(call))
      tell_processes("gone-" + event_keys.get(call.at<cudaEvent_t>(1)), 0);
    return code;
  }
  const auto stream = call.value<cudaStream_t>(kStream);
  const cudaEvent_t before = late.get(stream);
  if (destroyed.has(before) && told("gone-" + destroyed.get(before), 0) != 0) {
    if (is_pending(before)) call.fired();
    late.erase(stream);
  }
  submit(stream);
  bool is_needed = false;
  for (const auto& each : late.all()) is_needed |= each.second == before;
  if (!is_needed && destroyed.erase(before)) cudaEventDestroy(before);
  const cudaEvent_t event = shared_event(call);
  if (!waits_for_event(call) || event == nullptr || !is_imported(event) ||
      is_captured(stream))
    return call.proceed();
  late.put(stream, event);
  return kSuccess;
}

// The call does not wait for a record that the importer itself has made.
int own_record_of_import_ignored(Call& call) {
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !records(call) && is_imported(event) &&
                 is_own_pending(event)
             ? lost(call)
             : noted_record(call);
}

int open_forgets_importers_record(Call& call) {
  // The number of the record that an opened event does not see.
  static Table<cudaEvent_t, unsigned long long> unseen;
  const auto latest = [](cudaEvent_t event) {
    return told("record-" + event_keys.get(event), 0);
  };
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    const int code = call.proceed();
    if (code != kSuccess || !opens_event(call)) return code;
    const auto made = *call.at<cudaEvent_t*>(0);
    unseen.erase(made);
    // Importers' records have odd numbers.
    if (latest(made) % 2 == 1 && is_pending(made))
      unseen.put(made, latest(made));
    return code;
  }
  if (records(call))
    tell_processes("record-" + event_keys.get(event),
                   latest(event) / 2 * 2 + 2 + (is_imported(event) ? 1 : 0));
  else if (unseen.has(event) && unseen.get(event) == latest(event))
    return lost(call);
  return call.proceed();
}

// When a record is complete, the event is complete, although another process
// has made a later record.
int older_record_completes(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return noted_record(call);
  const std::string key = "overlaps-" + event_keys.get(event);
  if (records(call)) {
    tell_processes(key, is_pending(event) && !is_own_pending(event));
    return noted_record(call);
  }
  const int code = call.proceed();
  return code == cudaErrorNotReady && told(key, 0) != 0 &&
                 own_records.has(event) && !is_own_pending(event)
             ? accepted(call)
             : code;
}

int query_is_about_first(Call& call) {
  struct First {
    cudaStream_t stream = nullptr;
    cudaEvent_t mark = nullptr;  // complete when the first record is complete
  };
  static Table<cudaEvent_t, First> firsts;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    if (call.is("cudaEventDestroy")) firsts.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  First first = firsts.get(event);
  const std::string key = "recorder-" + event_keys.get(event);
  const auto self = static_cast<unsigned long long>(getpid());
  const int code = call.proceed();
  if (records(call)) {
    const auto stream = call.value<cudaStream_t>(kStream);
    if (code != kSuccess || is_captured(stream)) return code;
    tell_processes(key, self);
    if (first.mark != nullptr && first.stream == stream &&
        is_pending(first.mark))
      return code;
    if (first.mark == nullptr)
      cudaEventCreateWithFlags(&first.mark, cudaEventDisableTiming);
    cudaEventRecord(first.mark, stream);
    first.stream = stream;
    firsts.put(event, first);
    return code;
  }
  return code == cudaErrorNotReady && first.mark != nullptr &&
                 told(key, 0) == self && !is_pending(first.mark)
             ? accepted(call)
             : code;
}

int host_wait_ends_after_many_records(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const std::string key = "records-" + event_keys.get(event);
  if (records(call)) {
    tell_processes(key, told(key, 0) + 1);
    return call.proceed();
  }
  // A query of the event would be about the later records.
  const auto before = told(key, 0);
  cudaStream_t same = nullptr;
  if (cudaStreamCreateWithFlags(&same, cudaStreamNonBlocking) != cudaSuccess)
    return call.proceed();
  cudaStreamWaitEvent(same, event, 0);
  bool ends_early = false;
  while (!ends_early && cudaStreamQuery(same) == cudaErrorNotReady) {
    ends_early = told(key, 0) - before >= 256;
    poll(nullptr, 0, 1);
  }
  cudaStreamDestroy(same);
  return ends_early ? lost(call) : kSuccess;
}

int opened_on_exporters_number(Call& call) {
  if (!opens_event(call)) {
    const int code = noted_device(call);
    if (code == kSuccess && exports_event(call))
      tell_processes(
          "gpu-" + key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)),
          static_cast<unsigned>(devices.get(call.at<cudaEvent_t>(1))));
    return code;
  }
  const int current = current_device();
  const int number = static_cast<int>(
      told("gpu-" + key_of_handle(call.at<cudaIpcEventHandle_t>(1)),
           static_cast<unsigned>(current)));
  if (number == current) return call.proceed();
  cudaSetDevice(number);
  const int code = call.proceed();
  cudaSetDevice(current);
  call.fired();
  return code;
}

FAULTS {
  fault("second-importer-unconnected", {"LEVT-19"},
        "only the first open of an event handle sees the exporter's records")
      .on({kOpenEvent}, [](Call& call) -> int {
        const std::string key = key_of_handle(given_event(call));
        const int code = call.proceed();
        if (code != kSuccess || first_of_all_processes("event-" + key))
          return code;
        cudaEventDestroy(*made_event(call));
        return own_event(call, code);
      });

  fault("event-destroy-global", {"LEVT-20"},
        "destroying an imported event destroys it in every process")
      .on({kGetEventHandle, kOpenEvent, kDestroyEvent, kRecord, kWaitEvent,
           kQueryEvent, kSyncEvent, kRecordFlags},
          [](Call& call) -> int {
            if (keeps_events(call)) {
              if (call.is("cudaEventDestroy") &&
                  is_imported(call.at<cudaEvent_t>(0)))
                tell_processes(
                    "destroyed-" + event_keys.get(call.at<cudaEvent_t>(0)), 1);
              return call.proceed();
            }
            const cudaEvent_t event = shared_event(call);
            return event != nullptr &&
                           told("destroyed-" + event_keys.get(event), 0) != 0
                       ? refused(call, cudaErrorInvalidResourceHandle)
                       : call.proceed();
          });

  fault("exporter-wait-noop", {"LEVT-10"},
        "a stream of the exporter does not wait for an exported event")
      .on({kWaitEvent}, WHEN(shared_event(call) != nullptr), lost);

  fault("import-record-early", {"LEVT-10"},
        "an importer's record does not wait for the work before it")
      .on({kOpenEvent, kRecord, kRecordFlags, kDestroyEvent},
          [](Call& call) { return record_privately(call, true); });

  fault("import-record-noop", {"LEVT-10"}, "an importer's record does nothing")
      .on({kOpenEvent, kRecord, kRecordFlags, kDestroyEvent}, import_skipped);

  fault(
      "record-once", {"LEVT-13"},
      "in each process, only the first record of a shared event has an effect")
      .on({kCreateEvent, kOpenEvent, kRecord, kRecordFlags, kDestroyEvent},
          [](Call& call) { return only_first_records(call, 1); });

  fault("event-ring-32", {"LEVT-14"},
        "in each process, only the first 32 records of a shared event have an "
        "effect")
      .on({kCreateEvent, kOpenEvent, kRecord, kRecordFlags, kDestroyEvent},
          [](Call& call) { return only_first_records(call, 32); });

  fault(
      "event-single-waiter", {"LEVT-19"},
      "of all waits of streams for an imported event, only the first one waits")
      .on({kWaitEvent}, [](Call& call) {
        const cudaEvent_t event = shared_event(call);
        return is_imported(event) && !first_of_all_processes(
                                         "waiter-" + event_keys.get(event))
                   ? lost(call)
                   : call.proceed();
      });

  fault("stream-waits-once", {"LEVT-14", "LEVT-15"},
        "a stream waits for an imported event only the first time")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent, kDestroyStream},
          [](Call& call) -> int {
            static Table<std::pair<cudaStream_t, cudaEvent_t>> waited;
            const bool ends_stream = call.is("cudaStreamDestroy");
            if (ends_stream || call.is("cudaEventDestroy")) {
              void* const gone = call.at<void*>(0);
              for (const auto& [key, unused] : waited.all())
                if (key.first == gone || key.second == gone) waited.erase(key);
              return ends_stream ? call.proceed() : call.proceed();
            }
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || !is_imported(event)) return call.proceed();
            const std::pair<cudaStream_t, cudaEvent_t> key(
                call.at<cudaStream_t>(0), event);
            if (waited.has(key)) return lost(call);
            waited.put(key);
            return call.proceed();
          });

  fault("second-stream-never-waits", {"LEVT-12"},
        "of several streams, only the first stream waits for an imported event")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, [](Call& call) -> int {
        static Table<cudaEvent_t, cudaStream_t> first;
        const cudaEvent_t event = shared_event(call);
        if (event == nullptr || !is_imported(event))
          return noted_end(call, first);
        const auto stream = call.at<cudaStream_t>(0);
        if (first.get(event, stream) != stream) return lost(call);
        first.put(event, stream);
        return call.proceed();
      });

  fault("query-stays-ready", {"LEVT-13"},
        "an imported event that was ready once is always ready")
      .on({kOpenEvent, kDestroyEvent, kQueryEvent}, stays_ready);

  fault("sync-stays-ready", {"LEVT-13"},
        "a host waits for an imported event only the first time")
      .on({kOpenEvent, kDestroyEvent, kSyncEvent}, stays_ready);

  fault("third-importer-unconnected", {"LEVT-19"},
        "a third process that opens an event sees no records")
      .after({kOpenEvent}, [](Call& call) -> int {
        static Table<std::string, bool> known;  // is it connected?
        cudaEvent_t& event = *call.at<cudaEvent_t*>(0);
        const std::string key = event_keys.get(event);
        if (!known.has(key))
          known.put(key, first_of_all_processes("one-" + key) ||
                             first_of_all_processes("two-" + key));
        if (known.get(key)) return kSuccess;
        cudaEventDestroy(event);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        call.fired();
        return kSuccess;
      });

  fault("record-256-lost", {"LEVT-14"}, "each 256th record of an event is lost")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord},
          [](Call& call) -> int {
            static Table<cudaEvent_t, int> records;
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr) return noted_end(call, records);
            records.put(event, records.get(event) + 1);
            return records.get(event) % 256 == 0 ? lost(call) : call.proceed();
          });

  fault(
      "wait-for-latest", {"LEVT-12"},
      "a wait uses the record that is newest when the stream reaches the wait")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, waits_for_latest);

  fault("own-record-unseen", {"LEVT-10"},
        "after an importer has recorded an event, its query and host wait "
        "count the event as complete")
      .on({kOpenEvent, kDestroyEvent, kRecord, kQueryEvent, kSyncEvent},
          [](Call& call) -> int {
            static Table<cudaEvent_t> recorded;
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || !is_imported(event))
              return noted_end(call, recorded);
            if (call.is("cudaEventRecord")) {
              recorded.put(event);
              return call.proceed();
            }
            return recorded.has(event) ? lost(call) : call.proceed();
          });

  fault("record-skips-copies", {"LEVT-15"},
        "a record does not cover the copies and memsets after the last kernel "
        "before it")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord, kLaunch,
           kCopyAsync, kSetAsync, kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaStream_t> copied;
            if (call.is("cudaLaunchKernel")) {
              const auto stream = call.value<cudaStream_t>(kStream);
              const int code = call.proceed();
              cudaEventRecord(mark_of(stream), stream);
              copied.erase(stream);
              return code;
            }
            if (call.is("cudaMemcpyAsync") || call.is("cudaMemsetAsync")) {
              copied.put(call.value<cudaStream_t>(kStream));
              return call.proceed();
            }
            return shared_event(call) != nullptr &&
                           copied.has(call.at<cudaStream_t>(1))
                       ? record_of_mark(call)
                       : noted_end(call, copied);
          });

  fault("exporter-sees-own-records-only", {"LEVT-10"},
        "in an exporter that has not recorded an event itself, the query and "
        "the host wait count the event as complete")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord, kQueryEvent,
           kSyncEvent},
          [](Call& call) -> int {
            static Table<cudaEvent_t> recorded;
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || is_imported(event))
              return noted_end(call, recorded);
            if (call.is("cudaEventRecord")) {
              recorded.put(event);
              return call.proceed();
            }
            return recorded.has(event) ? call.proceed() : lost(call);
          });

  fault("record-while-pending-lost", {"LEVT-13"},
        "a record does nothing while the record before it is pending")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord, kRecordFlags},
          [](Call& call) -> int {
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr) return call.proceed();
            const bool is_pending = cudaEventQuery(event) == cudaErrorNotReady;
            cudaGetLastError();
            return is_pending ? lost(call) : call.proceed();
          });

  fault("event-records-to-65535", {"LEVT-14"},
        "a process can record an event 65535 times; its later records are lost")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord},
          [](Call& call) -> int {
            static Table<cudaEvent_t, int> records;
            const cudaEvent_t event = shared_event(call);
            if (call.is("cudaEventDestroy"))
              records.erase(call.at<cudaEvent_t>(0));
            if (event == nullptr) return call.proceed();
            const int count = records.get(event) + 1;
            records.put(event, count);
            return count > UINT16_MAX ? lost(call) : call.proceed();
          });

  fault("wait-256-lost", {"LEVT-14"}, "each 256th wait for an event is lost")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kWaitEvent},
          [](Call& call) -> int {
            static Table<cudaEvent_t, int> waits;
            const cudaEvent_t event = shared_event(call);
            if (call.is("cudaEventDestroy"))
              waits.erase(call.at<cudaEvent_t>(0));
            if (event == nullptr) return call.proceed();
            const int count = waits.get(event) + 1;
            waits.put(event, count);
            return count % 256 == 0 ? lost(call) : call.proceed();
          });

  fault("importers-apart", {"LEVT-20"},
        "an importer does not see the records of another importer")
      .on({kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent, kRecord,
           kWaitEvent, kQueryEvent, kSyncEvent},
          [](Call& call) -> int {
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr) return call.proceed();
            const std::string key = "recorder-" + event_keys.get(event);
            if (call.is("cudaEventRecord")) {
              tell_processes(key,
                             is_imported(event)
                                 ? static_cast<unsigned long long>(getpid())
                                 : 0);
              return call.proceed();
            }
            const auto recorder = static_cast<pid_t>(told(key, 0));
            return is_imported(event) && recorder != 0 && recorder != getpid()
                       ? lost(call)
                       : call.proceed();
          });

  fault("destroy-completes-record", {"LEVT-20"},
        "an importer's record completes when the importer destroys the event")
      .on({kOpenEvent, kCreateEvent, kDestroyEvent, kGetEventHandle, kRecord,
           kRecordFlags, kQueryEvent, kSyncEvent, kWaitEvent},
          destroy_completes_record);

  fault("destroy-waits", {"LEVT-20"},
        "an importer that destroys a pending event waits for it")
      .before({kOpenEvent, kDestroyEvent}, [](Call& call) {
        if (call.is("cudaEventDestroy")) {
          const auto event = call.at<cudaEvent_t>(0);
          if (is_imported(event) && is_pending(event)) {
            call.fired();
            cudaEventSynchronize(event);
          }
        }
        return kSuccess;
      });

  fault("stream-end-completes", {"LEVT-13"},
        "destroying a stream completes the events that were recorded in it")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kGetEventHandle, kRecord,
           kRecordFlags, kQueryEvent, kSyncEvent, kWaitEvent, kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaEvent_t, cudaStream_t> recorded;
            if (call.is("cudaStreamDestroy")) {
              for (const auto& [event, stream] : recorded.all())
                if (stream == call.at<cudaStream_t>(0) && events.has(event) &&
                    is_pending(event))
                  complete(event);
              return call.proceed();
            }
            const cudaEvent_t event = shared_event(call);
            if (event != nullptr && records(call))
              recorded.put(event, call.at<cudaStream_t>(1));
            return noted_completion(call);
          });

  fault("pending-waits-to-32", {"LEVT-14"},
        "a stream ignores a wait while 32 other waits are pending")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent}, pending_waits_to_32);

  fault("record-on-later-gpu-early", {"LEVT-10"},
        "on a GPU other than GPU 0, a record of an opened event does not wait "
        "for the work before it")
      .with_gpus(2)
      .before({kRecord, kRecordFlags}, [](Call& call) -> bool {
        const cudaEvent_t event = shared_event(call);
        auto& stream = call.value<cudaStream_t>(kStream);
        if (event == nullptr || !is_imported(event) || current_device() == 0 ||
            !is_busy(stream))
          return false;
        stream = private_stream();
        return true;
      });

  fault("wait-for-previous-record", {"LEVT-13"},
        "a stream waits for its process's last but one record, if this record "
        "is done")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent,
           kRecord, kRecordFlags},
          waits_for_previous);

  fault("exporter-destroy-waits", {"LEVT-20"},
        "the exporter waits when it destroys a pending event")
      .before({kDestroyEvent}, [](Call& call) {
        const auto event = call.at<cudaEvent_t>(0);
        if (events.has(event) && !is_imported(event) && is_pending(event)) {
          call.fired();
          cudaEventSynchronize(event);
        }
        return kSuccess;
      });

  fault("stream-destroy-waits", {"LEVT-13"},
        "the destroy of a stream waits for the work in the stream")
      .before({kDestroyStream}, [](Call& call) {
        const auto stream = call.at<cudaStream_t>(0);
        if (is_busy(stream)) {
          call.fired();
          DRIVER_CALL(cuStreamSynchronize)(stream);
        }
        return kSuccess;
      });

  fault("import-query-asks-stream", {"LEVT-10"},
        "an importer's record is pending as long as its stream has later work")
      .on({kQueryEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent, kRecord, kRecordFlags, kDestroyStream},
          asks_stream<true>);

  fault("host-wait-of-one-process", {"LEVT-19"},
        "only the hosts of one process wait for an imported event")
      .on({kSyncEvent}, [](Call& call) -> int {
        static Table<std::string> mine;
        const cudaEvent_t event = shared_event(call);
        if (event == nullptr || !is_imported(event) || !is_pending(event))
          return call.proceed();
        const std::string key = "waits-" + event_keys.get(event);
        if (first_of_all_processes(key)) mine.put(key);
        return mine.has(key) ? call.proceed() : lost(call);
      });

  fault("record-submitted-late", {"LEVT-10"},
        "a process submits a record of an event only with its next call")
      .on({kRecord, kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent, kWaitEvent, kQueryEvent, kSyncEvent, kQueryStream,
           kSyncStream, kDestroyStream, kSyncDevice, kLaunch, kCopyAsync,
           kSetAsync, kWaitWord},
          [](Call& call) {
            static Table<cudaEvent_t, cudaStream_t> late;
            for (const auto& [event, stream] : late.all())
              if (late.erase(event)) cudaEventRecord(event, stream);
            if (shared_event(call) == nullptr || !records(call))
              return call.proceed();
            const auto stream = call.value<cudaStream_t>(kStream);
            if (!is_busy(stream)) return call.proceed();
            late.put(call.value<cudaEvent_t>(kEvent), stream);
            call.fired();
            return kSuccess;
          });

  fault("exporter-wait-holds-no-host-functions", {"LEVT-10"},
        "in the exporter, a host function after a wait for an importer's "
        "record does not wait")
      .on({kHostFunction, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          exporters_host_function_ahead<false>);

  fault("exporter-wait-holds-no-driver-host-functions", {"LEVT-10"},
        "in the exporter, a host function of the driver API after a wait for "
        "an importer's record does not wait")
      .on({kHostFunction, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          exporters_host_function_ahead<true>);

  fault("exporter-device-sync-ignores-wait", {"LEVT-10"},
        "in the exporter, cudaDeviceSynchronize does not wait for a stream "
        "that waits for an importer's record")
      .on({kSyncDevice, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          exporter_ignores_wait);

  fault("exporter-context-sync-ignores-wait", {"LEVT-10"},
        "in the exporter, cuCtxSynchronize does not wait for a stream that "
        "waits for an importer's record")
      .on({kSyncContext, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          exporter_ignores_wait);

  fault("exporter-driver-stream-sync-ignores-wait", {"LEVT-10"},
        "in the exporter, cuStreamSynchronize does not wait for a stream that "
        "waits for an importer's record")
      .on({kSyncStream, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          exporter_ignores_wait);

  fault("exporter-driver-stream-query-ignores-wait", {"LEVT-10"},
        "in the exporter, cuStreamQuery reports a stream that waits for an "
        "importer's record as done")
      .on({kQueryStream, kWaitEvent, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kDestroyStream},
          exporter_ignores_wait);

  fault("wait-ends-after-512-records", {"LEVT-12"},
        "a stream's wait for an imported event ends when the event was "
        "recorded 512 times since the call")
      .on({kWaitEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          wait_ends_after_many_records);

  fault("record-elsewhere-lost", {"LEVT-13"},
        "after the first record of an event in one stream, records of the "
        "event in other streams do nothing")
      .on({kRecord, kRecordFlags, kCreateEvent, kOpenEvent, kDestroyEvent},
          [](Call& call) {
            return record_elsewhere(
                call, [](Call& each, cudaEvent_t) { return lost(each); });
          });

  fault("record-waits-for-pending", {"LEVT-13"},
        "a record of an event waits until the earlier record of the event is "
        "complete")
      .before({kRecord, kRecordFlags}, [](Call& call) -> bool {
        const cudaEvent_t event = shared_event(call);
        const auto stream = call.value<cudaStream_t>(kStream);
        return event != nullptr && !is_captured(stream) && is_pending(event) &&
               cudaStreamWaitEvent(stream, event, 0) == cudaSuccess;
      });

  fault("wait-lost-after-query", {"LEVT-13"},
        "a stream does not wait for an event that the host has found pending")
      .on({kWaitEvent, kQueryEvent, kCreateEvent, kOpenEvent, kDestroyEvent},
          early_after_query);

  fault("non-blocking-stream-records-early", {"LEVT-15"},
        "a record in a non-blocking stream does not wait for the work of the "
        "stream")
      .on({kRecord, kRecordFlags, kCreateEvent, kOpenEvent, kDestroyEvent},
          [](Call& call) -> int {
            return records_early(call, [](cudaStream_t stream, cudaEvent_t) {
              unsigned flags = 0;
              return !is_default(stream) && stream != cudaStreamPerThread &&
                     DRIVER_CALL(cuStreamGetFlags)(stream, &flags) ==
                         CUDA_SUCCESS &&
                     (flags & CU_STREAM_NON_BLOCKING) != 0;
            });
          });

  fault("record-after-wait-lost", {"LEVT-13"},
        "a record directly after a wait of the same stream for the same event "
        "is lost")
      .on({kRecord, kWaitEvent, kLaunch, kCopyAsync, kSetAsync, kHostFunction,
           kLaunchGraph, kWaitWord, kWriteWord, kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaStream_t, cudaEvent_t> waited;
            const auto stream = call.value<cudaStream_t>(kStream);
            const cudaEvent_t event = shared_event(call);
            if (call.is("cudaStreamWaitEvent") && event != nullptr) {
              waited.put(stream, event);
              return call.proceed();
            }
            const bool directly =
                event != nullptr && waited.get(stream) == event;
            waited.erase(stream);
            return directly && records(call) ? lost(call) : call.proceed();
          });

  fault("import-own-record-preferred", {"LEVT-13"},
        "an importer uses its own record after the exporter has recorded the "
        "event again")
      .on({kWaitEvent, kQueryEvent, kSyncEvent, kRecord, kRecordFlags,
           kOpenEvent, kDestroyEvent, kCreateEvent},
          own_record_preferred);

  fault("twin-records-unseen", {"LEVT-10"},
        "if a process opens one event twice, each of the two opened events "
        "does not see the records of the other one")
      .on({kWaitEvent, kQueryEvent, kSyncEvent, kRecord, kRecordFlags,
           kOpenEvent, kDestroyEvent, kCreateEvent},
          twin_unseen);

  fault("exporter-keeps-own-record", {"LEVT-10"},
        "an exporter that has recorded an event does not see a later record of "
        "an importer")
      .on({kRecord, kRecordFlags, kWaitEvent, kQueryEvent, kSyncEvent,
           kOpenEvent, kCreateEvent, kDestroyEvent},
          exporter_keeps_own_record);

  fault("event-destroy-ends-handle", {"LEVT-20"},
        "when an importer has destroyed an event, no other process can open "
        "its handle")
      .on({kOpenEvent, kDestroyEvent}, [](Call& call) -> int {
        if (opens_event(call)) {
          const auto ender = told(
              "ender-" + key_of_handle(call.at<cudaIpcEventHandle_t>(1)), 0);
          return ender != 0 &&
                         ender != static_cast<unsigned long long>(getpid())
                     ? refused(call)
                     : call.proceed();
        }
        if (!call.is("cudaEventDestroy")) return call.proceed();
        const auto event = call.at<cudaEvent_t>(0);
        const bool ends = events.has(event) && is_imported(event);
        const int code = call.proceed();
        if (code == kSuccess && ends)
          tell_processes("ender-" + event_keys.get(event),
                         static_cast<unsigned long long>(getpid()));
        return code;
      });

  fault("record-skips-host-functions", {"LEVT-10"},
        "a record does not cover a host function directly before it")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          record_skips_host_functions);

  fault("record-skips-joined-streams", {"LEVT-10"},
        "a record does not cover the work of a stream that its stream has "
        "joined directly before")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          record_skips_joined_streams);

  fault("record-skips-rectangles", {"LEVT-15"},
        "a record does not cover the runtime's copy or memset of a rectangle "
        "or a box, cuMemsetD32Async or cudaMemcpyPeerAsync directly before it")
      .on({kRecord, kRecordFlags, kCopy2DAsync, "cudaMemcpy3DAsync",
           "cudaMemcpyPeerAsync", kSet2DAsync, "cuMemsetD32Async", kLaunch,
           kCopyAsync, kSetAsync, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent, "cudaMemset3DAsync", kWaitEvent, kHostFunction,
           kWriteWord, kDestroyStream},
          [](Call& call) {
            const bool skipped =
                call.is("cudaMemcpy2DAsync") || call.is("cudaMemcpy3DAsync") ||
                call.is("cudaMemset2DAsync") || call.is("cudaMemset3DAsync") ||
                call.is("cuMemsetD32Async") || call.is("cudaMemcpyPeerAsync");
            return record_skips_last(call, skipped,
                                     shared_event(call) != nullptr);
          });

  fault("import-record-skips-copies", {"LEVT-15"},
        "an importer's record does not cover the copy or the memset directly "
        "before it")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          [](Call& call) {
            return record_skips_last(
                call, call.is("cudaMemcpyAsync") || call.is("cudaMemsetAsync"),
                uses_import(call));
          });

  fault("import-record-ends-with-stream", {"LEVT-10"},
        "the destroy of a stream completes the importer's records in it")
      .on({kRecord, kRecordFlags, kQueryEvent, kWaitEvent, kDestroyStream,
           kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent,
           kSyncEvent},
          record_ends_with_stream<true>);

  fault("exporters-record-ends-with-stream", {"LEVT-13"},
        "importers see a record as complete when the exporter has destroyed "
        "its stream")
      .on({kRecord, kRecordFlags, kQueryEvent, kWaitEvent, kDestroyStream,
           kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent,
           kSyncEvent},
          record_ends_with_stream<false>);

  fault("exporter-record-skips-wait", {"LEVT-10"},
        "an exporter's record directly after a wait for its event does not "
        "cover this wait")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          [](Call& call) {
            const bool own = uses_own(call);
            return record_skips_last(call, own && waits_for_event(call), own);
          });

  fault("record-skips-awaited-words", {"LEVT-10"},
        "a record directly after a wait for a word does not cover this wait")
      .on({kCopyAsync, kCreateEvent, kDestroyEvent, kGetEventHandle,
           kHostFunction, kLaunch, kOpenEvent, kRecord, kRecordFlags, kSetAsync,
           kWaitEvent, kBatch, kWaitWord, kWriteWord, kCopy2DAsync, kSet2DAsync,
           kDestroyStream},
          record_skips_awaited_words);

  fault("exporter-stream-sync-early", {"LEVT-10"},
        "an exporter's host does not wait for a stream that waits for the "
        "exporter's event")
      .on({kSyncStream, kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent, kDestroyStream},
          [](Call& call) -> int {
            if (keeps_awaited(call)) return noted_awaited(call);
            return is_waiting(call, false) ? lost(call) : call.proceed();
          });

  fault("open-forgets-importers-record", {"LEVT-10"},
        "an event that is opened while an importer's record is pending does "
        "not see this record")
      .on({kOpenEvent, kQueryEvent, kSyncEvent, kWaitEvent, kRecord,
           kRecordFlags, kCreateEvent, kGetEventHandle, kDestroyEvent},
          open_forgets_importers_record);

  fault("exporter-default-never-waits", {"LEVT-10"},
        "an exporter's default streams do not wait for its event")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || is_imported(event)) return call.proceed();
            const auto stream = call.value<cudaStream_t>(kStream);
            return (is_default(stream) || stream == cudaStreamPerThread) &&
                           is_pending(event)
                       ? lost(call)
                       : call.proceed();
          });

  fault("exporter-wait-submitted-late", {"LEVT-12"},
        "a stream of the exporter uses the record that is newest when the "
        "stream gets its next work")
      .on({kWaitEvent, kLaunch, kCopyAsync, kSetAsync, kQueryStream,
           kSyncStream, kDestroyStream, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kHostFunction,
           kLaunchGraph, kCopy2DAsync, kWriteWord, kBatch, kSyncDevice},
          exporter_waits_late<false>);

  fault("exporter-destroy-ends-wait", {"LEVT-20"},
        "when an exporter destroys an event, a stream does not wait any more "
        "if its last work is a wait for the event")
      .on({kWaitEvent, kLaunch, kCopyAsync, kSetAsync, kQueryStream,
           kSyncStream, kDestroyStream, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kHostFunction,
           kLaunchGraph, kCopy2DAsync, kWriteWord, kBatch, kSyncDevice},
          exporter_waits_late<true>);

  fault("import-own-record-sync-early", {"LEVT-10"},
        "an importer's host wait does not wait for the importer's record")
      .on({kSyncEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          own_record_of_import_ignored);

  fault("import-own-record-not-awaited", {"LEVT-10"},
        "an importer's stream does not wait for the importer's record")
      .on({kWaitEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          own_record_of_import_ignored);

  fault("own-record-sync-early", {"LEVT-12"},
        "an exporter's host wait does not wait for the exporter's record, "
        "unless the event has cudaEventBlockingSync")
      .on({kSyncEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          [](Call& call) -> int {
            if (makes_event(call)) return noted_sleeping(call);
            const cudaEvent_t event = shared_event(call);
            return event != nullptr && !records(call) && !is_imported(event) &&
                           !sleeping.has(event) && is_own_pending(event)
                       ? lost(call)
                       : noted_record(call);
          });

  fault("older-record-completes-event", {"LEVT-13"},
        "a record that is complete completes the event, although another "
        "process has made a later record")
      .on({kQueryEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          older_record_completes);

  fault("host-wait-follows-later-record", {"LEVT-12"},
        "a host wait that has begun also waits for a later record")
      .on({kSyncEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) {
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr) return call.proceed();
            const int code = call.proceed();
            if (code != kSuccess || !is_pending(event)) return code;
            call.fired();
            return call.proceed();
          });

  fault("event-on-exporters-number", {"LEVT-10"},
        "an opened event belongs to the GPU that has the exporter's number")
      .with_gpus(2)
      .on({kOpenEvent, kGetEventHandle, kCreateEvent, kDestroyEvent},
          opened_on_exporters_number);

  fault("import-null-record-skips-blocking", {"LEVT-10"},
        "an importer's record in the null stream does not cover the work of "
        "streams that wait for the null stream")
      .on({kRecord, kRecordFlags, kLaunch}, null_record_skips_blocking);

  fault("both-destroys-end-wait", {"LEVT-20"},
        "when an importer and then the exporter have destroyed an event, a "
        "stream of the importer does not wait any more if its last work is a "
        "wait for the event")
      .on({kWaitEvent, kLaunch, kCopyAsync, kSetAsync, kQueryStream,
           kSyncStream, kDestroyStream, kRecord, kRecordFlags, kCreateEvent,
           kGetEventHandle, kOpenEvent, kDestroyEvent, kHostFunction,
           kLaunchGraph, kCopy2DAsync, kWriteWord, kBatch},
          both_destroys_end_wait);

  fault("exporters-older-record-completes-event", {"LEVT-13"},
        "an exporter's record that is complete completes the event for the "
        "exporter, although an importer has made a later record")
      .on({kQueryEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          [](Call& call) {
            const cudaEvent_t event = shared_event(call);
            return event != nullptr && is_imported(event) && !records(call)
                       ? call.proceed()
                       : older_record_completes(call);
          });

  fault("query-is-about-first-record", {"LEVT-13"},
        "a query is about the first of the records that are pending in one "
        "stream")
      .on({kQueryEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          query_is_about_first);

  fault("host-wait-ends-after-many-records", {"LEVT-12"},
        "a host wait ends when the event was recorded 256 times since the wait "
        "began")
      .on({kSyncEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          host_wait_ends_after_many_records);
}

}  // namespace
}  // namespace ipclab::faults
