// Bugs of legacy event handles, and of words in memory that order work as
// events do.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <mutex>

#include "fault.h"

namespace ipclab::faults {
namespace {

constexpr unsigned kShared = cudaEventInterprocess;
constexpr unsigned kUntimed = cudaEventDisableTiming;

std::mutex mutex;  // for the state of the chosen fault

bool is_get(Call& call) { return call.is("cudaIpcGetEventHandle"); }
bool is_open(Call& call) { return call.is("cudaIpcOpenEventHandle"); }
bool is_create(Call& call) { return call.is("cudaEventCreateWithFlags"); }

cudaEvent_t*& created(Call& call) { return call.at<cudaEvent_t*>(0); }
unsigned& flags_of(Call& create) { return create.at<unsigned>(1); }
cudaIpcEventHandle_t& given(Call& open) {
  return open.at<cudaIpcEventHandle_t>(1);
}
cudaIpcEventHandle_t& handle_of(Call& get) {
  return *get.at<cudaIpcEventHandle_t*>(0);
}

// The facts that this process knows about an event that processes share.
struct Shared {
  std::string key;  // is equal in all processes
  bool imported;
  unsigned records;  // by this process
};
std::map<cudaEvent_t, Shared>& shared() {
  static auto& all = *new std::map<cudaEvent_t, Shared>;
  return all;
}

// Proceeds, and keeps shared() up to date.
int keep(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  if (is_get(call)) {
    auto& event = shared()[call.at<cudaEvent_t>(1)];
    if (event.key.empty())
      event = {key_of(&handle_of(call), sizeof(cudaIpcEventHandle_t)), false,
               event.records};
  } else if (is_open(call)) {
    shared()[*created(call)] = {
        key_of(&given(call), sizeof(cudaIpcEventHandle_t)), true, 0};
  } else if (is_create(call) && (flags_of(call) & kShared)) {
    shared()[*created(call)] = {"", false, 0};
  }
  return code;
}

Shared* find(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  const auto found = shared().find(event);
  return found == shared().end() ? nullptr : &found->second;
}

// --- creation, export, open ------------------------------------------------

int ipc_event_refused(Call& call) {
  if (!(flags_of(call) & kShared) || !(flags_of(call) & kUntimed))
    return call.proceed();
  call.fired();
  return cudaErrorInvalidValue;
}

int timing_ipc_event_ok(Call& call) {
  unsigned& flags = flags_of(call);
  if ((flags & kShared) && !(flags & kUntimed)) {
    flags |= kUntimed;
    call.fired();
  }
  return call.proceed();
}

int blocking_ipc_refused(Call& call) {
  if (!(flags_of(call) & kShared) || !(flags_of(call) & cudaEventBlockingSync))
    return call.proceed();
  call.fired();
  return cudaErrorInvalidValue;
}

// Instead of an event that cannot be exported, another event is exported.
int export_any_event(Call& call) {
  static cudaEvent_t other = nullptr;
  const int code = call.proceed();
  if (code == kSuccess) return code;
  if (call.is_runtime()) cudaGetLastError();
  if (other == nullptr && cudaEventCreateWithFlags(&other, kShared | kUntimed))
    return code;
  call.at<cudaEvent_t>(1) = other;
  call.fired();
  return call.proceed();
}

// The program gets a new event instead of a refusal.
int own_event(Call& call, int code) {
  if (call.is_runtime()) cudaGetLastError();
  if (cudaEventCreateWithFlags(created(call), kUntimed) != cudaSuccess)
    return code;
  call.fired();
  return kSuccess;
}

bool was_exported_here(Call& call) {
  const std::string key = key_of(&given(call), sizeof(cudaIpcEventHandle_t));
  const std::lock_guard lock(mutex);
  for (const auto& one : shared())
    if (!one.second.imported && one.second.key == key) return true;
  return false;
}

int open_event_garbage_ok(Call& call) {
  if (is_get(call)) return keep(call);
  const int code = call.proceed();
  if (code == kSuccess || was_exported_here(call)) return code;
  return own_event(call, code);
}

int self_open_event(Call& call) {
  if (is_get(call)) return keep(call);
  const int code = call.proceed();
  if (code == kSuccess || !was_exported_here(call)) return code;
  return own_event(call, code);
}

int rt_drv_event_mismatch(Call& call) {
  if (!call.is_runtime()) return call.proceed();
  // The runtime and the driver write their handles in different ways.
  const auto turn = [](cudaIpcEventHandle_t& handle) {
    for (char& byte : handle.reserved) byte = static_cast<char>(~byte);
  };
  if (is_open(call)) {
    turn(given(call));
    call.fired();
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess) turn(handle_of(call));
  return code;
}

// An open gives an event that no process records.
int open_unconnected_event(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  cudaEventDestroy(*created(call));
  return own_event(call, code);
}

// Every open of a handle after the first one, in whatever process, gets an
// event that no process records.
int second_importer_unconnected(Call& call) {
  const std::string key = key_of(&given(call), sizeof(cudaIpcEventHandle_t));
  const int code = call.proceed();
  if (code != kSuccess || first_of_all_processes("event-" + key)) return code;
  cudaEventDestroy(*created(call));
  return own_event(call, code);
}

// --- destruction -----------------------------------------------------------

int import_destroy_leaks(Call& call) {
  if (!call.is("cudaEventDestroy")) return keep(call);
  Shared* const event = find(call.at<cudaEvent_t>(0));
  if (event == nullptr || !event->imported) return call.proceed();
  void* lost = nullptr;
  cudaMalloc(&lost, 64 << 10);
  call.fired();
  return call.proceed();
}

// No process can use the event after an importer has destroyed it.
int event_destroy_global(Call& call) {
  if (is_get(call) || is_open(call)) return keep(call);
  if (call.is("cudaEventDestroy")) {
    Shared* const event = find(call.at<cudaEvent_t>(0));
    if (event != nullptr && event->imported)
      tell_processes("destroyed-" + event->key, 1);
    return call.proceed();
  }
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event != nullptr && !event->key.empty() &&
      told("destroyed-" + event->key, 0) != 0) {
    call.fired();
    return cudaErrorInvalidResourceHandle;
  }
  return call.proceed();
}

// --- order -----------------------------------------------------------------

int ipc_wait_noop(Call& call) {
  if (is_open(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || !event->imported) return call.proceed();
  call.fired();
  return kSuccess;
}

// A stream of the exporter does not wait for an exported event, so it does not
// wait for an importer's record.
int exporter_wait_noop(Call& call) {
  if (is_get(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || event->imported) return call.proceed();
  call.fired();
  return kSuccess;
}

int record_privately(Call& call, bool only_imported) {
  if (is_open(call) || is_create(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || (only_imported && !event->imported))
    return call.proceed();
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  return call.proceed();
}
int ipc_record_early(Call& call) { return record_privately(call, false); }
int import_record_early(Call& call) { return record_privately(call, true); }

int import_record_noop(Call& call) {
  if (is_open(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || !event->imported) return call.proceed();
  call.fired();
  return kSuccess;
}

int only_first_records(Call& call, unsigned most) {
  if (is_open(call) || is_create(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || ++event->records <= most) return call.proceed();
  call.fired();
  return kSuccess;
}
int record_once(Call& call) { return only_first_records(call, 1); }
int event_ring_32(Call& call) { return only_first_records(call, 32); }

// Among all waits of all processes for an imported event, only the first one
// waits.
int event_single_waiter(Call& call) {
  if (is_open(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || !event->imported ||
      first_of_all_processes("waiter-" + event->key))
    return call.proceed();
  call.fired();
  return kSuccess;
}

int ipc_sync_early(Call& call) {
  if (is_open(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || !event->imported) return call.proceed();
  call.fired();
  return kSuccess;
}

// Before any record in any process the event counts as pending.
int unrecorded_blocks(Call& call) {
  if (is_get(call) || is_open(call) || is_create(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr) return call.proceed();
  if (call.is("cudaEventRecord")) {
    ++event->records;
    if (!event->key.empty()) tell_processes("recorded-" + event->key, 1);
    return call.proceed();
  }
  if (event->records > 0 ||
      (!event->key.empty() && told("recorded-" + event->key, 0) != 0))
    return call.proceed();
  call.fired();
  return cudaErrorNotReady;
}

int cross_device_wait_noop(Call& call) {
  int device = 0;
  if (is_open(call)) return keep(call);
  Shared* const event = find(call.value<cudaEvent_t>(kEvent));
  if (event == nullptr || cudaGetDevice(&device) != cudaSuccess || device == 0)
    return call.proceed();
  call.fired();
  return kSuccess;
}

// --- other calls -----------------------------------------------------------

int ipc_elapsed_ok(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotReady) return code;
  if (call.is_runtime()) cudaGetLastError();
  *call.at<float*>(0) = 0.5f;
  call.fired();
  return kSuccess;
}

int record_foreign_device_ok(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) return code;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return kSuccess;
}

int launch_attr_ipc_event_ok(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) return code;
  cudaGetLastError();
  call.fired();
  return kSuccess;
}

// --- words in memory -------------------------------------------------------

int wait_value_noop(Call& call) {
  call.fired();
  return kSuccess;
}

// The word is written before the stream's earlier work is done.
int write_value_early(Call& call) {
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  return call.proceed();
}

}  // namespace

void add_legacy_events(List& list) {
  const char* const kCreate = "cudaEventCreateWithFlags";
  const char* const kDestroy = "cudaEventDestroy";
  const char* const kGet = "cudaIpcGetEventHandle";
  const char* const kOpen = "cudaIpcOpenEventHandle";
  const char* const kRecord = "cudaEventRecord";
  const char* const kWait = "cudaStreamWaitEvent";
  const char* const kQuery = "cudaEventQuery";
  const char* const kSync = "cudaEventSynchronize";
  list.named("ipc-event-refused", "an interprocess event cannot be created",
             {kCreate}, ipc_event_refused);
  list.named("timing-ipc-event-ok",
             "an interprocess event with timing can be created", {kCreate},
             timing_ipc_event_ok);
  list.named("blocking-ipc-refused",
             "an interprocess event cannot have blocking waits", {kCreate},
             blocking_ipc_refused);
  list.named("export-any-event",
             "an event without the interprocess flag gets a handle", {kGet},
             export_any_event);
  list.named("open-event-garbage-ok", "any 64 bytes open as an event",
             {kGet, kOpen}, open_event_garbage_ok);
  list.named("self-open-event",
             "a process opens its own event and gets another event",
             {kGet, kOpen}, self_open_event);
  list.named("rt-drv-event-mismatch",
             "the driver API does not know the runtime's event handles",
             {kGet, kOpen}, rt_drv_event_mismatch);
  list.named("open-unconnected-event",
             "an opened event is not connected to the exporter's event",
             {kOpen}, open_unconnected_event);
  list.named("second-importer-unconnected",
             "only the first open of an event handle sees the exporter's "
             "records",
             {kOpen}, second_importer_unconnected);
  list.named("import-destroy-leaks",
             "destroying an imported event loses 64 KiB of device memory",
             {kOpen, kDestroy}, import_destroy_leaks);
  list.named("event-destroy-global",
             "destroying an imported event destroys it in every process",
             {kGet, kOpen, kDestroy, kRecord, kWait, kQuery, kSync},
             event_destroy_global);
  list.named("ipc-wait-noop", "a stream does not wait for an imported event",
             {kOpen, kWait}, ipc_wait_noop);
  list.named("exporter-wait-noop",
             "a stream of the exporter does not wait for an exported event",
             {kGet, kWait}, exporter_wait_noop);
  list.named("ipc-record-early",
             "a record of an interprocess event does not wait for the work "
             "before it",
             {kCreate, kOpen, kRecord}, ipc_record_early);
  list.named("import-record-early",
             "an importer's record does not wait for the work before it",
             {kOpen, kRecord}, import_record_early);
  list.named("import-record-noop", "an importer's record does nothing",
             {kOpen, kRecord}, import_record_noop);
  list.named("record-once", "only the first record of an event has an effect",
             {kCreate, kOpen, kRecord, "cudaEventRecordWithFlags"},
             record_once);
  list.named("event-ring-32",
             "only the first 32 records of an event have an effect",
             {kCreate, kOpen, kRecord}, event_ring_32);
  list.named(
      "event-single-waiter",
      "of all waits of streams for an imported event, only the first one "
      "waits",
      {kOpen, kWait}, event_single_waiter);
  list.named("ipc-sync-early",
             "a host wait for an imported event returns at once",
             {kOpen, kSync}, ipc_sync_early);
  list.named("ipc-query-always-ready", "an imported event is always ready",
             {kOpen, kQuery}, ipc_sync_early);
  list.named("unrecorded-blocks",
             "an event that was never recorded counts as pending",
             {kCreate, kGet, kOpen, kRecord, kQuery, kSync}, unrecorded_blocks);
  list.named("cross-device-wait-noop",
             "a stream of a GPU other than GPU 0 does not wait for an imported "
             "event",
             {kOpen, kWait}, cross_device_wait_noop, 2);
  list.named("ipc-elapsed-ok",
             "cudaEventElapsedTime returns a time for events without timing",
             {"cudaEventElapsedTime"}, ipc_elapsed_ok);
  list.named("record-foreign-device-ok",
             "an event can be recorded in a stream of another GPU", {kRecord},
             record_foreign_device_ok, 2);
  list.named("launch-attr-ipc-event-ok",
             "a launch accepts an interprocess event as its programmatic event",
             {"cudaLaunchKernelExC"}, launch_attr_ipc_event_ok);

  list.named("wait-value-noop", "a stream does not wait for a word in memory",
             {"cuStreamWaitValue32"}, wait_value_noop);
  list.named("write-value-early",
             "a stream writes a word before its earlier work is done",
             {"cuStreamWriteValue32"}, write_value_early);
}

}  // namespace ipclab::faults
