// Bugs of legacy event handles, and of words in memory that order work as
// events do.
//
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "harness/faults/world/legacy.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {
namespace {

constexpr unsigned kUntimed = cudaEventDisableTiming;

cudaEvent_t*& created(Call& call) { return call.at<cudaEvent_t*>(0); }
unsigned& flags_of(Call& create) { return create.at<unsigned>(1); }
cudaIpcEventHandle_t& given(Call& open) {
  return open.at<cudaIpcEventHandle_t>(1);
}
cudaIpcEventHandle_t& handle_of(Call& get) {
  return *get.at<cudaIpcEventHandle_t*>(0);
}

// The number of records of each event by this process.
Table<cudaEvent_t, unsigned> counts;

// Proceeds, and updates all tables. A new event may have the number of an
// earlier one.
int noted_new_event(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && (makes_event(call) || opens_event(call)))
    counts.erase(*created(call));
  return code;
}

// Counts a record of an event; returns the number of its records until now.
unsigned count_record(cudaEvent_t event) {
  return counts.change([&](auto& all) { return ++all[event]; });
}

// --- creation, export, open ------------------------------------------------

int ipc_event_refused(Call& call) {
  if (!(flags_of(call) & kInterprocess) || !(flags_of(call) & kUntimed))
    return call.proceed();
  return refused(call);
}

int timing_ipc_event_ok(Call& call) {
  unsigned& flags = flags_of(call);
  if ((flags & kInterprocess) && !(flags & kUntimed)) {
    flags |= kUntimed;
    call.fired();
  }
  return call.proceed();
}

int blocking_ipc_refused(Call& call) {
  if (!(flags_of(call) & kInterprocess) ||
      !(flags_of(call) & cudaEventBlockingSync))
    return call.proceed();
  return refused(call);
}

// Instead of an event that cannot be exported, another event is exported.
int export_any_event(Call& call) {
  static cudaEvent_t other = nullptr;
  const int code = call.proceed();
  if (code == kSuccess) return code;
  if (call.is_runtime()) cudaGetLastError();
  if (other == nullptr &&
      cudaEventCreateWithFlags(&other, kInterprocess | kUntimed))
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

int open_event_garbage_ok(Call& call) {
  if (exports_event(call)) return call.proceed();
  const int code = call.proceed();
  return code == kSuccess || own_handles.has(key_of_handle(given(call)))
             ? code
             : own_event(call, code);
}

int self_open_event(Call& call) {
  if (exports_event(call)) return call.proceed();
  const int code = call.proceed();
  return code == kSuccess || !own_handles.has(key_of_handle(given(call)))
             ? code
             : own_event(call, code);
}

int rt_drv_event_mismatch(Call& call) {
  if (!call.is_runtime()) {
    const int code = call.proceed();
    if (opens_event(call) && code != kSuccess) call.fired();
    return code;
  }
  // The runtime and the driver write their handles in different ways.
  const auto turn = [](cudaIpcEventHandle_t& handle) {
    for (char& byte : handle.reserved) byte = static_cast<char>(~byte);
  };
  if (opens_event(call)) {
    turn(given(call));
    const int code = call.proceed();
    if (code != kSuccess) call.fired();
    return code;
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
  const std::string key = key_of_handle(given(call));
  const int code = call.proceed();
  if (code != kSuccess || first_of_all_processes("event-" + key)) return code;
  cudaEventDestroy(*created(call));
  return own_event(call, code);
}

// --- destruction -----------------------------------------------------------

int import_destroy_leaks(Call& call) {
  if (call.is("cudaEventDestroy") && is_imported(call.at<cudaEvent_t>(0))) {
    void* lost = nullptr;
    cudaMalloc(&lost, 64 << 10);
    call.fired();
  }
  return call.proceed();
}

// No process can use the event after an importer has destroyed it.
int event_destroy_global(Call& call) {
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy") && is_imported(call.at<cudaEvent_t>(0)))
      tell_processes("destroyed-" + event_keys.get(call.at<cudaEvent_t>(0)), 1);
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && told("destroyed-" + event_keys.get(event), 0) != 0
             ? refused(call, cudaErrorInvalidResourceHandle)
             : call.proceed();
}

// --- order -----------------------------------------------------------------

// Skips the calls that use an imported event.
int import_skipped(Call& call) {
  if (keeps_events(call)) return call.proceed();
  return is_imported(shared_event(call)) ? no_wait(call) : call.proceed();
}

// A stream of the exporter does not wait for an exported event, so it does not
// wait for an importer's record.
int exporter_wait_noop(Call& call) {
  if (keeps_events(call)) return call.proceed();
  return shared_event(call) != nullptr ? no_wait(call) : call.proceed();
}

int record_privately(Call& call, bool only_imported) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || (only_imported && !is_imported(event)))
    return call.proceed();
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  return call.proceed();
}
int ipc_record_early(Call& call) { return record_privately(call, false); }
int import_record_early(Call& call) { return record_privately(call, true); }

int only_first_records(Call& call, unsigned most) {
  if (keeps_events(call)) return noted_new_event(call);
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && count_record(event) > most ? no_wait(call)
                                                        : call.proceed();
}
int record_once(Call& call) { return only_first_records(call, 1); }
int event_ring_32(Call& call) { return only_first_records(call, 32); }

// Among all waits of all processes for an imported event, only the first one
// waits.
int event_single_waiter(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return is_imported(event) &&
                 !first_of_all_processes("waiter-" + event_keys.get(event))
             ? no_wait(call)
             : call.proceed();
}

// Before any record in any process, a query and a host wait say that the event
// is pending.
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

int cross_device_wait_noop(Call& call) {
  int device = 0;
  if (keeps_events(call)) return call.proceed();
  return shared_event(call) != nullptr &&
                 cudaGetDevice(&device) == cudaSuccess && device != 0
             ? no_wait(call)
             : call.proceed();
}

// --- other calls -----------------------------------------------------------

int ipc_elapsed_ok(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotReady) return code;
  *call.at<float*>(0) = 0.5f;
  return accepted(call);
}

// While a GPU other than the event's is current, a record that is refused
// succeeds, and records nothing.
int foreign_record_ok(Call& call) {
  static Table<cudaEvent_t, int> gpus;
  int gpu = 0;
  cudaGetDevice(&gpu);
  const int code = call.proceed();
  if (!records(call)) {
    if (code == kSuccess) gpus.put(*created(call), gpu);
    return code;
  }
  return code == cudaErrorInvalidResourceHandle &&
                 gpus.get(call.value<cudaEvent_t>(kEvent), gpu) != gpu
             ? accepted(call)
             : code;
}

// A launch with an event in an attribute is not refused. It does nothing.
int event_attribute_ok(Call& call) {
  const auto* const config = call.at<const cudaLaunchConfig_t*>(0);
  const int code = call.proceed();
  if (code == kSuccess) return code;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeProgrammaticEvent ||
        config->attrs[i].id == cudaLaunchAttributeLaunchCompletionEvent)
      return accepted(call);
  return code;
}

// --- words in memory -------------------------------------------------------

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
  const char* const kRecordFlags = "cudaEventRecordWithFlags";
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
             "an event that cannot be exported gets a handle of another event",
             {kGet}, export_any_event);
  list.named("open-event-garbage-ok", "any 64 bytes open as a new event",
             {kGet, kOpen}, open_event_garbage_ok);
  list.named("self-open-event",
             "a process opens its own event and gets another event",
             {kGet, kOpen}, self_open_event);
  list.named(
      "rt-drv-event-mismatch",
      "an event handle can be opened only by the API that has exported it",
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
  list.named(
      "event-destroy-global",
      "destroying an imported event destroys it in every process",
      {kGet, kOpen, kDestroy, kRecord, kWait, kQuery, kSync, kRecordFlags},
      event_destroy_global);
  list.named("ipc-wait-noop", "a stream does not wait for an imported event",
             {kOpen, kWait, kDestroy}, import_skipped);
  list.named("exporter-wait-noop",
             "a stream of the exporter does not wait for an exported event",
             {kGet, kWait, kDestroy}, exporter_wait_noop);
  list.named("ipc-record-early",
             "a record of an interprocess event does not wait for the work "
             "before it",
             {kCreate, kOpen, kRecord, kRecordFlags, kDestroy},
             ipc_record_early);
  list.named("import-record-early",
             "an importer's record does not wait for the work before it",
             {kOpen, kRecord, kRecordFlags, kDestroy}, import_record_early);
  list.named("import-record-noop", "an importer's record does nothing",
             {kOpen, kRecord, kRecordFlags, kDestroy}, import_skipped);
  list.named(
      "record-once",
      "in each process, only the first record of a shared event has an effect",
      {kCreate, kOpen, kRecord, kRecordFlags, kDestroy}, record_once);
  list.named("event-ring-32",
             "in each process, only the first 32 records of a shared event "
             "have an effect",
             {kCreate, kOpen, kRecord, kRecordFlags, kDestroy}, event_ring_32);
  list.named(
      "event-single-waiter",
      "of all waits of streams for an imported event, only the first one "
      "waits",
      {kOpen, kWait, kDestroy}, event_single_waiter);
  list.named("ipc-sync-early",
             "a host wait for an imported event returns at once",
             {kOpen, kSync, kDestroy}, import_skipped);
  list.named("ipc-query-always-ready", "an imported event is always ready",
             {kOpen, kQuery, kDestroy}, import_skipped);
  list.named(
      "unrecorded-blocks",
      "a query and a host wait return cudaErrorNotReady for an event that was "
      "never recorded",
      {kCreate, kGet, kOpen, kRecord, kQuery, kSync, kRecordFlags, kDestroy},
      unrecorded_blocks);
  list.named("cross-device-wait-noop",
             "a stream does not wait for an imported event while a GPU other "
             "than GPU 0 is current",
             {kOpen, kWait, kDestroy}, cross_device_wait_noop, 2);
  list.named("ipc-elapsed-ok",
             "cudaEventElapsedTime returns a time for events without timing",
             {"cudaEventElapsedTime"}, ipc_elapsed_ok);
  list.named("record-foreign-device-ok",
             "a record in a stream of another GPU succeeds and records nothing",
             {kRecord, kRecordFlags, kCreate, kOpen}, foreign_record_ok, 2);
  list.named("launch-attr-ipc-event-ok",
             "a launch with an interprocess event as its programmatic event or "
             "its completion event succeeds and does nothing",
             {"cudaLaunchKernelExC"}, event_attribute_ok);

  list.named("wait-value-noop", "a stream does not wait for a word in memory",
             {"cuStreamWaitValue32"}, no_wait);
  list.named("write-value-early",
             "a stream writes a word before its earlier work is done",
             {"cuStreamWriteValue32"}, write_value_early);
}

}  // namespace ipclab::faults
