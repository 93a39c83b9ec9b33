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

#include "harness/faults/words/streams.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

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

cudaEvent_t record_in(cudaStream_t stream) {
  cudaEvent_t mark = nullptr;
  cudaEventCreateWithFlags(&mark, cudaEventDisableTiming);
  cudaEventRecord(mark, stream);
  return mark;
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

// Only so many records of each event by this process have an effect.
bool is_record_after(Call& call, unsigned long long most) {
  return shared_event(call) != nullptr &&
         event_marks.count(shared_event(call)) > most;
}

std::string key_of_recorder(cudaEvent_t event) {
  return "recorder-" + event_keys.get(event);
}

// The pairs of streams and events for which a stream has waited.
Table<std::pair<cudaStream_t, cudaEvent_t>> waited;

int ended_waits_forgotten(Call& call) {
  void* const gone = call.at<void*>(0);
  for (const auto& [key, unused] : waited.all())
    if (key.first == gone || key.second == gone) waited.erase(key);
  return kSuccess;
}

// Ends an event that was opened; the program gets one of its own.
int cut_off(Call& open) {
  cudaEventDestroy(*made_event(open));
  return own_event(open, kSuccess);
}

// Uses this process's record of an event, which is complete, although another
// record of the event is pending.
bool prefers_own_record(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (!own_records.has(event) || is_own_pending(event) || !is_pending(event))
    return false;
  call.value<cudaEvent_t>(kEvent) = own_records.get(event);
  return true;
}

// Is it a wait for or a query of an imported event whose pending record is this
// process's own one?
bool is_about_own_record(Call& call) {
  return uses_import(call) && is_own_pending(shared_event(call));
}

// The latest records of each event by this process: the mark of the event's
// mark is the one before it.
int note_previous_record(Call& record) {
  const cudaEvent_t event = shared_event(record);
  const cudaEvent_t made = record_in(stream_of(record));
  marks.put(made, event_marks.get<cudaEvent_t>(event));
  event_marks.put(event, made);
  return kSuccess;
}
bool uses_previous_record(Call& call) {
  const auto latest = event_marks.get<cudaEvent_t>(shared_event(call));
  const auto previous = marks.get<cudaEvent_t>(latest);
  if (previous == nullptr || is_pending(previous) || !is_pending(latest))
    return false;
  call.value<cudaEvent_t>(kEvent) = previous;
  return true;
}

bool destroys_pending(Call& destroy, bool imported) {
  const auto event = destroy.at<cudaEvent_t>(0);
  return events.has(event) && is_imported(event) == imported &&
         is_pending(event);
}

// Is this a record directly after a wait of the same stream for the same event?
bool records_after_its_wait(Call& call) {
  const cudaEvent_t event = shared_event(call);
  const auto before = stream_marks.get<cudaEvent_t>(stream_of(call));
  stream_marks.erase(stream_of(call));
  if (waits_for_event(call)) stream_marks.put(stream_of(call), event);
  return event != nullptr && before == event && records(call);
}

int note_exporters_wait(Call& call) {
  return noted_foreign_wait(call, Whose::kExporters);
}

// The importer that has destroyed its event of this handle.
unsigned long long user_of(const cudaIpcEventHandle_t& handle) {
  return told("ender-" + key_of_handle(handle), 0);
}

// Does a copy read or write memory that CUDA does not know?
bool is_pageable(Call& copy) {
  const auto unknown = [](CUdeviceptr address) {
    unsigned type = 0;
    return DRIVER_CALL(cuPointerGetAttribute)(&type,
                                              CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                              address) != CUDA_SUCCESS;
  };
  return unknown(copy.at<CUdeviceptr>(0)) || unknown(copy.at<CUdeviceptr>(1));
}

FAULTS {
  fault("second-importer-unconnected", {"LEVT-19"},
        "only the first open of an event handle sees the exporter's records")
      .after({kOpenEvent},
             WHEN(!first_of_all_processes("event-" +
                                          event_keys.get(*made_event(call)))),
             cut_off);

  fault("event-destroy-global", {"LEVT-20"},
        "destroying an imported event destroys it in every process")
      .on({kRecords, kWaitEvent, kQueryEvent, kSyncEvent},
          WHEN(shared_event(call) != nullptr &&
               told("destroyed-" + event_keys.get(shared_event(call)), 0) != 0),
          refuses(cudaErrorInvalidResourceHandle))
      .before({kDestroyEvent}, WHEN(is_imported(call.at<cudaEvent_t>(0))),
              NOTE(tell_processes(
                  "destroyed-" + event_keys.get(call.at<cudaEvent_t>(0)), 1)));

  fault("exporter-wait-noop", {"LEVT-10"},
        "a stream of the exporter does not wait for an exported event")
      .on({kWaitEvent}, WHEN(shared_event(call) != nullptr), lost);

  fault("import-record-early", {"LEVT-10"},
        "an importer's record does not wait for the work before it")
      .before({kRecords}, WHEN(uses_import(call)), privately);

  fault("import-record-noop", {"LEVT-10"}, "an importer's record does nothing")
      .on({kRecords}, WHEN(uses_import(call)), lost);

  fault(
      "record-once", {"LEVT-13"},
      "in each process, only the first record of a shared event has an effect")
      .on({kRecords}, WHEN(is_record_after(call, 1)), lost);

  fault("event-ring-32", {"LEVT-14"},
        "in each process, only the first 32 records of a shared event have an "
        "effect")
      .on({kRecords}, WHEN(is_record_after(call, 32)), lost);

  fault(
      "event-single-waiter", {"LEVT-19"},
      "of all waits of streams for an imported event, only the first one waits")
      .on({kWaitEvent},
          WHEN(uses_import(call) &&
               !first_of_all_processes("waiter-" +
                                       event_keys.get(shared_event(call)))),
          lost);

  fault("stream-waits-once", {"LEVT-14", "LEVT-15"},
        "a stream waits for an imported event only the first time")
      .on({kWaitEvent},
          WHEN(uses_import(call) &&
               !waited.put({stream_of(call), shared_event(call)})),
          lost)
      .before({kDestroyEvent, kDestroyStream}, ended_waits_forgotten);

  fault("second-stream-never-waits", {"LEVT-12"},
        "of several streams, only the first stream waits for an imported event")
      .on({kWaitEvent},
          WHEN(uses_import(call) &&
               event_marks.get(shared_event(call), stream_of(call)) !=
                   stream_of(call)),
          lost)
      .after({kWaitEvent}, WHEN(uses_import(call)),
             NOTE(event_marks.put(shared_event(call), stream_of(call))));

  fault("query-stays-ready", {"LEVT-13"},
        "an imported event that was ready once is always ready")
      .on({kQueryEvent}, WHEN(event_marks.has(shared_event(call))), lost)
      .after({kQueryEvent}, WHEN(uses_import(call)),
             NOTE(event_marks.put(shared_event(call))));

  fault("sync-stays-ready", {"LEVT-13"},
        "a host waits for an imported event only the first time")
      .on({kSyncEvent}, WHEN(event_marks.has(shared_event(call))), lost)
      .after({kSyncEvent}, WHEN(uses_import(call)),
             NOTE(event_marks.put(shared_event(call))));

  fault("third-importer-unconnected", {"LEVT-19"},
        "a third process that opens an event sees no records")
      .after({kOpenEvent}, [](Call& call) {
        static Table<std::string, bool> known;  // is it connected?
        const std::string key = event_keys.get(*made_event(call));
        if (!known.has(key))
          known.put(key, first_of_all_processes("one-" + key) ||
                             first_of_all_processes("two-" + key));
        return known.get(key) ? kSuccess : cut_off(call);
      });

  fault("record-256-lost", {"LEVT-14"}, "each 256th record of an event is lost")
      .on({kRecord},
          WHEN(shared_event(call) != nullptr &&
               event_marks.count(shared_event(call)) % 256 == 0),
          lost);

  fault(
      "wait-for-latest", {"LEVT-12"},
      "a wait uses the record that is newest when the stream reaches the wait")
      .on({kWaitEvent}, waits_for_latest);

  fault("own-record-unseen", {"LEVT-10"},
        "after an importer has recorded an event, its query and host wait "
        "count the event as complete")
      .on({kQueryEvent, kSyncEvent}, WHEN(event_marks.has(shared_event(call))),
          lost)
      .before({kRecord}, WHEN(uses_import(call)),
              NOTE(event_marks.put(shared_event(call))));

  fault("record-skips-copies", {"LEVT-15"},
        "a record does not cover the copies and memsets after the last kernel "
        "before it")
      .on({kRecord},
          WHEN(shared_event(call) != nullptr &&
               stream_marks.has(stream_of(call))),
          record_of_mark)
      .after({kLaunch},
             [](Call& call) {
               cudaEventRecord(mark_of(stream_of(call)), stream_of(call));
               stream_marks.erase(stream_of(call));
               return kSuccess;
             })
      .before({kCopyAsync, kSetAsync}, NOTE(stream_marks.put(stream_of(call))));

  fault("exporter-sees-own-records-only", {"LEVT-10"},
        "in an exporter that has not recorded an event itself, the query and "
        "the host wait count the event as complete")
      .on({kQueryEvent, kSyncEvent},
          WHEN(uses_own(call) && !event_marks.has(shared_event(call))), lost)
      .before({kRecord}, WHEN(uses_own(call)),
              NOTE(event_marks.put(shared_event(call))));

  fault("record-while-pending-lost", {"LEVT-13"},
        "a record does nothing while the record before it is pending")
      .on({kRecords},
          WHEN(shared_event(call) != nullptr && is_pending(shared_event(call))),
          lost);

  fault("event-records-to-65535", {"LEVT-14"},
        "a process can record an event 65535 times; its later records are lost")
      .on({kRecord}, WHEN(is_record_after(call, UINT16_MAX)), lost);

  fault("wait-256-lost", {"LEVT-14"}, "each 256th wait for an event is lost")
      .on({kWaitEvent},
          WHEN(shared_event(call) != nullptr &&
               event_marks.count(shared_event(call)) % 256 == 0),
          lost);

  fault("importers-apart", {"LEVT-20"},
        "an importer does not see the records of another importer")
      .on({kWaitEvent, kQueryEvent, kSyncEvent},
          WHEN(uses_import(call) &&
               told(key_of_recorder(shared_event(call)), 0) != 0 &&
               told(key_of_recorder(shared_event(call)), 0) != this_process()),
          lost)
      .before({kRecord}, WHEN(shared_event(call) != nullptr),
              NOTE(tell_processes(key_of_recorder(shared_event(call)),
                                  uses_import(call) ? this_process() : 0)));

  fault("destroy-completes-record", {"LEVT-20"},
        "an importer's record completes when the importer destroys the event")
      .on({kDestroyEvent, kRecords, kQueryEvent, kSyncEvent, kWaitEvent},
          destroy_completes_record);

  fault("destroy-waits", {"LEVT-20"},
        "an importer that destroys a pending event waits for it")
      .before({kDestroyEvent}, WHEN(destroys_pending(call, true)),
              [](Call& call) {
                call.fired();
                return static_cast<int>(
                    cudaEventSynchronize(call.at<cudaEvent_t>(0)));
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
      .on({kWaitEvent}, pending_waits_to_32);

  fault("record-on-later-gpu-early", {"LEVT-10"},
        "on a GPU other than GPU 0, a record of an opened event does not wait "
        "for the work before it")
      .with_gpus(2)
      .before({kRecords},
              WHEN(uses_import(call) && current_device() != 0 &&
                   is_busy(stream_of(call))),
              privately);

  fault("wait-for-previous-record", {"LEVT-13"},
        "a stream waits for its process's last but one record, if this record "
        "is done")
      .before({kWaitEvent}, uses_previous_record)
      .before({kRecords}, WHEN(shared_event(call) != nullptr),
              NOTE(note_previous_record(call)));

  fault("exporter-destroy-waits", {"LEVT-20"},
        "the exporter waits when it destroys a pending event")
      .before({kDestroyEvent}, WHEN(destroys_pending(call, false)),
              [](Call& call) {
                call.fired();
                return static_cast<int>(
                    cudaEventSynchronize(call.at<cudaEvent_t>(0)));
              });

  fault("stream-destroy-waits", {"LEVT-13"},
        "the destroy of a stream waits for the work in the stream")
      .before({kDestroyStream}, WHEN(is_busy(stream_of(call))), [](Call& call) {
        call.fired();
        return static_cast<int>(
            DRIVER_CALL(cuStreamSynchronize)(stream_of(call)));
      });

  fault("import-query-asks-stream", {"LEVT-10"},
        "an importer's record is pending as long as its stream has later work")
      .on({kQueryEvent, kRecords, kDestroyEvent, kDestroyStream},
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
          [](Call& call) -> int {
            static Table<cudaEvent_t, cudaStream_t> late;
            for (const auto& [event, stream] : late.all())
              if (late.erase(event)) cudaEventRecord(event, stream);
            if (shared_event(call) == nullptr || !records(call))
              return call.proceed();
            const auto stream = call.value<cudaStream_t>(kStream);
            if (!is_busy(stream)) return call.proceed();
            late.put(call.value<cudaEvent_t>(kEvent), stream);
            return lost(call);
          });

  fault("exporter-wait-holds-no-host-functions", {"LEVT-10"},
        "in the exporter, a host function after a wait for an importer's "
        "record does not wait")
      .before({kHostFunction}, WHEN(waits(stream_of(call))), privately)
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          note_exporters_wait);

  fault("exporter-wait-holds-no-driver-host-functions", {"LEVT-10"},
        "in the exporter, a host function of the driver API after a wait for "
        "an importer's record does not wait")
      .before({kHostFunction},
              WHEN(!call.is_runtime() && waits(stream_of(call))), privately)
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          note_exporters_wait);

  fault("exporter-device-sync-ignores-wait", {"LEVT-10"},
        "in the exporter, cudaDeviceSynchronize does not wait for a stream "
        "that waits for an importer's record")
      .on({kSyncDevice}, ignores_waiting)
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          note_exporters_wait);

  fault("exporter-context-sync-ignores-wait", {"LEVT-10"},
        "in the exporter, cuCtxSynchronize does not wait for a stream that "
        "waits for an importer's record")
      .on({kSyncContext}, ignores_waiting)
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          note_exporters_wait);

  fault("exporter-driver-stream-sync-ignores-wait", {"LEVT-10"},
        "in the exporter, cuStreamSynchronize does not wait for a stream that "
        "waits for an importer's record")
      .on({kSyncStream}, WHEN(!call.is_runtime()), ignores_waiting)
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          note_exporters_wait);

  fault("exporter-driver-stream-query-ignores-wait", {"LEVT-10"},
        "in the exporter, cuStreamQuery reports a stream that waits for an "
        "importer's record as done")
      .on({kQueryStream}, WHEN(!call.is_runtime()), ignores_waiting)
      .on({kWaitEvent, kRecords, kDestroyEvent, kDestroyStream},
          note_exporters_wait);

  fault("wait-ends-after-512-records", {"LEVT-12"},
        "a stream's wait for an imported event ends when the event was "
        "recorded 512 times since the call")
      .on({kWaitEvent, kRecords}, wait_ends_after_many_records);

  fault("record-elsewhere-lost", {"LEVT-13"},
        "after the first record of an event in one stream, records of the "
        "event in other streams do nothing")
      .on({kRecords},
          WHEN(shared_event(call) != nullptr &&
               event_marks.get(shared_event(call), stream_of(call)) !=
                   stream_of(call)),
          lost)
      .after({kRecords}, WHEN(shared_event(call) != nullptr),
             NOTE(event_marks.put(shared_event(call), stream_of(call))));

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
      .on({kWaitEvent, kQueryEvent, kDestroyEvent}, early_after_query);

  fault("non-blocking-stream-records-early", {"LEVT-15"},
        "a record in a non-blocking stream does not wait for the work of the "
        "stream")
      .before({kRecords},
              WHEN(shared_event(call) != nullptr &&
                   has_flags(stream_of(call), cudaStreamNonBlocking) &&
                   is_busy(stream_of(call))),
              privately);

  fault("record-after-wait-lost", {"LEVT-13"},
        "a record directly after a wait of the same stream for the same event "
        "is lost")
      .on({kRecord, kStreamWork, kMoreWork}, WHEN(records_after_its_wait(call)),
          lost);

  fault("import-own-record-preferred", {"LEVT-13"},
        "an importer uses its own record after the exporter has recorded the "
        "event again")
      .before({kWaitEvent, kQueryEvent, kSyncEvent}, WHEN(uses_import(call)),
              prefers_own_record)
      .on({kRecords}, WHEN(!is_captured(stream_of(call))), noted_record)
      .on({kDestroyEvent}, noted_record);

  fault("twin-records-unseen", {"LEVT-10"},
        "if a process opens one event twice, each of the two opened events "
        "does not see the records of the other one")
      .on({kWaitEvent, kQueryEvent, kSyncEvent, kRecords, kDestroyEvent},
          twin_unseen);

  fault("exporter-keeps-own-record", {"LEVT-10"},
        "an exporter that has recorded an event does not see a later record of "
        "an importer")
      .before({kWaitEvent, kQueryEvent, kSyncEvent}, WHEN(uses_own(call)),
              prefers_own_record)
      .on({kRecords}, WHEN(!is_captured(stream_of(call))), noted_record)
      .on({kDestroyEvent}, noted_record);

  fault("event-destroy-ends-handle", {"LEVT-20"},
        "when an importer has destroyed an event, no other process can open "
        "its handle")
      .on({kOpenEvent},
          WHEN(user_of(given_event(call)) != 0 &&
               user_of(given_event(call)) != this_process()),
          refuses())
      .before({kDestroyEvent}, WHEN(is_imported(call.at<cudaEvent_t>(0))),
              NOTE(tell_processes(
                  "ender-" + event_keys.get(call.at<cudaEvent_t>(0)),
                  this_process())));

  fault("record-skips-host-functions", {"LEVT-10"},
        "a record does not cover a host function directly before it")
      .on({kRecords, kStreamWork}, record_skips_host_functions);

  fault("record-skips-joined-streams", {"LEVT-10"},
        "a record does not cover the work of a stream that its stream has "
        "joined directly before")
      .on({kRecords, kStreamWork}, record_skips_joined_streams);

  fault("record-skips-rectangles", {"LEVT-15"},
        "a record does not cover the runtime's copy or memset of a rectangle "
        "or a box, cuMemsetD32Async or cudaMemcpyPeerAsync directly before it")
      .on({kRecords, "cudaMemcpy3DAsync", "cudaMemcpyPeerAsync",
           "cuMemsetD32Async", "cudaMemset3DAsync", kStreamWork},
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
      .on({kRecords, kStreamWork},
          DO(record_skips_last(
              call, call.is("cudaMemcpyAsync") || call.is("cudaMemsetAsync"),
              uses_import(call))));

  fault("import-record-ends-with-stream", {"LEVT-10"},
        "the destroy of a stream completes the importer's records in it")
      .on({kRecords, kQueryEvent, kWaitEvent, kSyncEvent, kDestroyStream,
           kDestroyEvent},
          record_ends_with_stream<true>);

  fault("exporters-record-ends-with-stream", {"LEVT-13"},
        "importers see a record as complete when the exporter has destroyed "
        "its stream")
      .on({kRecords, kQueryEvent, kWaitEvent, kSyncEvent, kDestroyStream,
           kDestroyEvent},
          record_ends_with_stream<false>);

  fault("exporter-record-skips-wait", {"LEVT-10"},
        "an exporter's record directly after a wait for its event does not "
        "cover this wait")
      .on({kRecords, kStreamWork},
          DO(record_skips_last(call, uses_own(call) && waits_for_event(call),
                               uses_own(call))));

  fault("record-skips-awaited-words", {"LEVT-10"},
        "a record directly after a wait for a word does not cover this wait")
      .on({kRecords, kStreamWork}, record_skips_awaited_words);

  fault("exporter-stream-sync-early", {"LEVT-10"},
        "an exporter's host does not wait for a stream that waits for the "
        "exporter's event")
      .on({kSyncStream}, WHEN(is_waiting(call, false)), lost)
      .on({kWaitEvent, kDestroyEvent, kDestroyStream}, noted_awaited);

  fault("open-forgets-importers-record", {"LEVT-10"},
        "an event that is opened while an importer's record is pending does "
        "not see this record")
      .on({kOpenEvent, kQueryEvent, kSyncEvent, kWaitEvent, kRecords},
          open_forgets_importers_record);

  fault("exporter-default-never-waits", {"LEVT-10"},
        "an exporter's default streams do not wait for its event")
      .on({kWaitEvent},
          WHEN(uses_own(call) &&
               (is_default(stream_of(call)) ||
                stream_of(call) == cudaStreamPerThread) &&
               is_pending(shared_event(call))),
          lost);

  fault("exporter-wait-submitted-late", {"LEVT-12"},
        "a stream of the exporter uses the record that is newest when the "
        "stream gets its next work")
      .on({kStreamWork, kQueryStream, kSyncStream, kRecords, kLaunchGraph,
           kDestroyEvent, kSyncDevice},
          exporter_waits_late<false>);

  fault("exporter-destroy-ends-wait", {"LEVT-20"},
        "when an exporter destroys an event, a stream does not wait any more "
        "if its last work is a wait for the event")
      .on({kStreamWork, kQueryStream, kSyncStream, kRecords, kLaunchGraph,
           kDestroyEvent, kSyncDevice},
          exporter_waits_late<true>);

  fault("import-own-record-sync-early", {"LEVT-10"},
        "an importer's host wait does not wait for the importer's record")
      .on({kSyncEvent}, WHEN(is_about_own_record(call)), lost)
      .on({kRecords, kDestroyEvent}, noted_record);

  fault("import-own-record-not-awaited", {"LEVT-10"},
        "an importer's stream does not wait for the importer's record")
      .on({kWaitEvent}, WHEN(is_about_own_record(call)), lost)
      .on({kRecords, kDestroyEvent}, noted_record);

  fault("own-record-sync-early", {"LEVT-12"},
        "an exporter's host wait does not wait for the exporter's record, "
        "unless the event has cudaEventBlockingSync")
      .on({kSyncEvent},
          WHEN(uses_own(call) && !event_marks.has(shared_event(call)) &&
               is_own_pending(shared_event(call))),
          lost)
      .on({kRecords, kDestroyEvent}, noted_record)
      .after({kCreateEvent}, note_blocking);

  fault("older-record-completes-event", {"LEVT-13"},
        "a record that is complete completes the event, although another "
        "process has made a later record")
      .on({kQueryEvent, kRecords, kDestroyEvent}, older_record_completes);

  fault("host-wait-follows-later-record", {"LEVT-12"},
        "a host wait that has begun also waits for a later record")
      .after(
          {kSyncEvent},
          WHEN(shared_event(call) != nullptr && is_pending(shared_event(call))),
          once_more);

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
      .on({kStreamWork, kQueryStream, kSyncStream, kRecords, kLaunchGraph,
           kGetEventHandle, kDestroyEvent},
          both_destroys_end_wait);

  fault("exporters-older-record-completes-event", {"LEVT-13"},
        "an exporter's record that is complete completes the event for the "
        "exporter, although an importer has made a later record")
      .on({kQueryEvent, kRecords, kDestroyEvent},
          WHEN(records(call) || !uses_import(call)), older_record_completes);

  fault("query-is-about-first-record", {"LEVT-13"},
        "a query is about the first of the records that are pending in one "
        "stream")
      .on({kQueryEvent, kRecords, kDestroyEvent}, query_is_about_first);

  fault("host-wait-ends-after-many-records", {"LEVT-12"},
        "a host wait ends when the event was recorded 256 times since the wait "
        "began")
      .on({kSyncEvent, kRecords}, host_wait_ends_after_many_records);

  fault("ok-pageable-async-copy-waits",
        {"LEVT-10", "LEVT-07", "LEVT-13", "LMEM-02", "LMEM-35", "LMEM-43",
         "FLAG-09", "VMM-07", "POOL-06", "POOL-11", "SOMA-25", "GRPH-01"},
        "an asynchronous copy from or to pageable memory returns when it is "
        "done")
      .after({kCopyAsync},
             WHEN(is_pageable(call) &&
                  !is_captured(call.value<cudaStream_t>(kStream))),
             [](Call& call) {
               DRIVER_CALL(cuStreamSynchronize)(call.value<CUstream>(kStream));
             });

  fault("ok-event-open-waits",
        {"LEVT-10", "LEVT-09", "LEVT-11", "LEVT-13", "LEVT-14", "LEVT-15"},
        "the open of an event waits for all work of the context")
      .before({kOpenEvent}, [](Call&) { cudaDeviceSynchronize(); });
}

}  // namespace
}  // namespace ipclab::faults
