// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// An event is ready for a thread whose current GPU is not the GPU of the event.
int ready_on_other_gpu(Call& call) {
  static Table<cudaEvent_t, int> devices;
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr)
    return devices.get(event) == current_device() ? call.proceed() : lost(call);
  const int code = call.proceed();
  if (code == kSuccess && call.find(kEvent) == nullptr)
    devices.put(*call.at<cudaEvent_t*>(0), current_device());
  return code;
}

// The context of a stream; null if the driver does not know it.
CUcontext context_of(cudaStream_t stream) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  driver<decltype(cuStreamGetCtx_v2)>("cuStreamGetCtx")(stream, &context,
                                                        &green);
  return context;
}

int refused_record_costs(Call& call) {
  static Table<cudaEvent_t> unlucky;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) unlucky.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const auto event = call.value<cudaEvent_t>(kEvent);
  auto& stream = call.value<cudaStream_t>(kStream);
  CUcontext current = nullptr;
  DRIVER_CALL(cuCtxGetCurrent)(&current);
  const bool costs = unlucky.has(event) && shared_event(call) != nullptr &&
                     context_of(stream) == current && !is_captured(stream);
  if (costs) stream = private_stream();
  const int code = call.proceed();
  if (code != kSuccess)
    unlucky.put(event);
  else if (unlucky.erase(event) && costs)
    call.fired();
  return code;
}

// Do the event and the stream belong to two contexts of one GPU?
bool are_of_two_contexts(CUcontext event, CUcontext stream) {
  if (event == nullptr || stream == nullptr || event == stream) return false;
  const auto gpu_of = [](CUcontext context) {
    int gpu = -1;
    CUcontext popped = nullptr;
    if (DRIVER_CALL(cuCtxPushCurrent)(context) != CUDA_SUCCESS) return -1;
    cudaGetDevice(&gpu);
    DRIVER_CALL(cuCtxPopCurrent)(&popped);
    return gpu;
  };
  const int gpu = gpu_of(event);
  return gpu >= 0 && gpu == gpu_of(stream);
}

int other_context(Call& call, bool wait) {
  static Table<cudaEvent_t, CUcontext> contexts;
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code == kSuccess &&
        (opens_event(call) || call.is("cudaEventCreateWithFlags")))
      contexts.put(*call.at<cudaEvent_t*>(0), current_context());
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || wait != waits_for_event(call) ||
      !are_of_two_contexts(contexts.get(event),
                           context_of(call.value<cudaStream_t>(kStream))))
    return call.proceed();
  return wait ? refused(call, cudaErrorInvalidResourceHandle) : lost(call);
}

// The events whose pending record was lost: until the next record they count as
// complete. (A second record cannot complete them: some drivers let it wait for
// the pending record.)
Table<cudaEvent_t> lost_records;

void lose_record(cudaEvent_t event) {
  if (events.has(event) && is_pending(event)) lost_records.put(event);
}

int answered_for_lost(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  if (records(call)) lost_records.erase(event);
  if (!call.is("cudaEventQuery") || !lost_records.has(event))
    return call.proceed();
  call.fired();
  return kSuccess;
}

int refused_record_completes(Call& call) {
  static Table<cudaEvent_t, unsigned long long> cleared;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    if (call.is("cudaEventDestroy")) cleared.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  if (!records(call))
    return cleared.has(event) && cleared.get(event) == records_of(event) &&
                   is_pending(event)
               ? lost(call)
               : call.proceed();
  const int code = counted_record(call);
  if (code == kSuccess)
    cleared.erase(event);
  else
    cleared.put(event, records_of(event));
  return code;
}

int self_open_in_other_context(Call& call) {
  static Table<std::string, CUcontext> exported;
  if (exports_event(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      exported.put(key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)),
                   current_context());
    return code;
  }
  const std::string key = key_of_handle(call.at<cudaIpcEventHandle_t>(1));
  const int code = call.proceed();
  if (code == kSuccess || !exported.has(key) ||
      exported.get(key) == current_context() ||
      cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0),
                               cudaEventDisableTiming) != cudaSuccess)
    return code;
  return accepted(call);
}

int refused_record_is_pending(Call& call) {
  static Table<cudaEvent_t> stuck;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    if (call.is("cudaEventDestroy")) stuck.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (!records(call))
    return code == kSuccess && stuck.has(event)
               ? refused(call, cudaErrorNotReady)
               : code;
  if (code == kSuccess)
    stuck.erase(event);
  else
    stuck.put(event);
  return code;
}

FAULTS {
  fault("ok-timing-ipc-event", {"LEVT-02"},
        "an interprocess event with timing can be created")
      .before({kCreateEvent}, [](Call& call) {
        unsigned& flags = flags_of(call);
        if ((flags & kInterprocess) && !(flags & kUntimed)) {
          flags |= kUntimed;
          call.fired();
        }
        return kSuccess;
      });

  fault("ok-export-any-event", {"LEVT-03"},
        "an event that cannot be exported gets a handle of another event")
      .on({kGetEventHandle}, [](Call& call) {
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
      });

  fault("event-after-refusal-refused", {"LEVT-02"},
        "after a refused creation of an event the next one is refused, too")
      .on({kCreateEvent}, next_refused);

  fault("refused-event-export-destroys", {"LEVT-03"},
        "a refused export of an event without the interprocess flag destroys "
        "the event")
      .on_refusal({kGetEventHandle}, [](Call& call) {
        cudaEventDestroy(call.at<cudaEvent_t>(1));
        cudaGetLastError();
      });

  fault("open-event-garbage-ok", {"LEVT-04"},
        "any 64 bytes open as a new event")
      .on({kOpenEvent}, [](Call& call) {
        const int code = call.proceed();
        return code == kSuccess ||
                       own_handles.has(key_of_handle(given_event(call)))
                   ? code
                   : own_event(call, code);
      });

  fault("self-open-event", {"LEVT-05"},
        "a process opens its own event and gets another event")
      .on({kOpenEvent}, [](Call& call) {
        const int code = call.proceed();
        return code == kSuccess ||
                       !own_handles.has(key_of_handle(given_event(call)))
                   ? code
                   : own_event(call, code);
      });

  fault("cross-device-wait-noop", {"LEVT-18"},
        "a stream does not wait for an imported event while a GPU other than "
        "GPU 0 is current")
      .with_gpus(2)
      .on({kWaitEvent}, [](Call& call) -> int {
        int device = 0;
        return shared_event(call) != nullptr &&
                       cudaGetDevice(&device) == cudaSuccess && device != 0
                   ? lost(call)
                   : call.proceed();
      });

  fault("ipc-elapsed-ok", {"LEVT-16"},
        "cudaEventElapsedTime returns a time for events without timing")
      .on({"cudaEventElapsedTime"}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess || code == cudaErrorNotReady) return code;
        *call.at<float*>(0) = 0.5f;
        return accepted(call);
      });

  fault("record-foreign-device-ok", {"LEVT-17"},
        "a record in a stream of another GPU succeeds and records nothing")
      .with_gpus(2)
      .on({kRecord, kRecordFlags, kCreateEvent, kOpenEvent},
          [](Call& call) -> int {
            static Table<cudaEvent_t, int> gpus;
            int gpu = 0;
            cudaGetDevice(&gpu);
            const int code = call.proceed();
            if (!records(call)) {
              if (code == kSuccess) gpus.put(*made_event(call), gpu);
              return code;
            }
            return code == cudaErrorInvalidResourceHandle &&
                           gpus.get(call.value<cudaEvent_t>(kEvent), gpu) != gpu
                       ? accepted(call)
                       : code;
          });

  fault("launch-attr-ipc-event-ok", {"LEVT-23"},
        "a launch with an interprocess event as its programmatic event or its "
        "completion event succeeds and does nothing")
      .on_refusal({"cudaLaunchKernelExC"}, [](Call& call) -> int {
        const auto* const config = call.at<const cudaLaunchConfig_t*>(0);
        for (unsigned i = 0; i < config->numAttrs; ++i)
          if (config->attrs[i].id == cudaLaunchAttributeProgrammaticEvent ||
              config->attrs[i].id == cudaLaunchAttributeLaunchCompletionEvent)
            return accepted(call);
        return call.code();
      });

  fault("first-refusal-stays", {"LEVT-29", "POOL-26"},
        "while the runtime keeps an error, it does not keep the next error")
      .on({"cudaGetLastError", "*"}, [](Call& call) -> int {
        thread_local int kept = kSuccess;
        const int code = call.proceed();
        if (!call.is_runtime()) return code;
        if (call.is("cudaGetLastError")) {
          const int first = std::exchange(kept, kSuccess);
          if (first == kSuccess || first == code) return code;
          call.fired();
          return first;
        }
        if (code != kSuccess && code != cudaErrorNotReady && kept == kSuccess)
          kept = code;
        return code;
      });

  fault("elapsed-second-unchecked", {"LEVT-16"},
        "cudaEventElapsedTime needs timing only in its first event")
      .on({"cudaEventElapsedTime"}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess || code == cudaErrorNotReady ||
            events.has(call.at<cudaEvent_t>(1)) ||
            !events.has(call.at<cudaEvent_t>(2)))
          return code;
        if (call.is_runtime()) cudaGetLastError();
        *call.at<float*>(0) = 0.5f;
        return lost(call);
      });

  fault("refused-event-export-refuses-next", {"LEVT-29"},
        "after a refused export of an event the next one is refused, too")
      .on({kGetEventHandle}, refusal_refuses_next);

  fault("refused-event-open-refuses-next", {"LEVT-29"},
        "after a refused open of an event the next one is refused, too")
      .on({kOpenEvent}, refusal_refuses_next);

  fault("memory-handle-opens-as-event", {"LEVT-04"},
        "the handle of memory opens as a new event")
      .on({kGetHandle, kOpenEvent}, [](Call& call) {
        const int code = call.proceed();
        if (call.is("cudaIpcGetMemHandle")) {
          tell_processes("is-memory-" + key_of_handle(exported_handle(call)),
                         1);
          return code;
        }
        const auto& handle = call.at<cudaIpcEventHandle_t>(1);
        if (code == kSuccess ||
            told("is-memory-" + key_of_handle(handle), 0) == 0)
          return code;
        if (call.is_runtime()) cudaGetLastError();
        cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0),
                                 cudaEventDisableTiming);
        return lost(call);
      });

  fault("second-gpu-event-unconnected", {"LEVT-18"},
        "an importer of an event of GPU 1 sees no records")
      .with_gpus(2)
      .on({kCreateEvent, kGetEventHandle, kOpenEvent}, [](Call& call) -> int {
        static Table<cudaEvent_t, int> devices;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (makes_event(call))
          devices.put(*call.at<cudaEvent_t*>(0), current_device());
        if (exports_event(call) && devices.get(call.at<cudaEvent_t>(1)) != 0)
          tell_processes("gpu-" + event_keys.get(call.at<cudaEvent_t>(1)), 1);
        return opens_event(call) &&
                       told("gpu-" + event_keys.get(*call.at<cudaEvent_t*>(0)),
                            0)
                   ? unconnected(call)
                   : code;
      });

  fault("query-on-other-gpu-ready", {"LEVT-18"},
        "an event is ready for a thread whose current GPU is not the GPU of "
        "the event")
      .with_gpus(2)
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kQueryEvent},
          ready_on_other_gpu);

  fault("sync-on-other-gpu-early", {"LEVT-18"},
        "a host wait returns at once if the current GPU is not the GPU of the "
        "event")
      .with_gpus(2)
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kSyncEvent},
          ready_on_other_gpu);

  fault("ok-timing-ipc-event-as-unsupported", {"LEVT-02"},
        "an interprocess event with timing is refused as not supported")
      .on_refusal({kCreateEvent}, WHEN(call.at<unsigned>(1) & kInterprocess),
                  refuses(cudaErrorNotSupported));

  fault("untimed-not-ready", {"LEVT-16"},
        "the time between events without timing is refused as not ready")
      .on({"cudaEventElapsedTime"}, [](Call& call) {
        const int code = call.proceed();
        return code == cudaErrorInvalidResourceHandle
                   ? refused(call, cudaErrorNotReady)
                   : code;
      });

  fault("elapsed-import-ok", {"LEVT-16"},
        "cudaEventElapsedTime returns success and the time 0 if the second "
        "event is imported")
      .on_refusal({"cudaEventElapsedTime"}, WHEN(([](cudaEvent_t event) {
                    return events.has(event) && is_imported(event);
                  })(call.at<cudaEvent_t>(2))),
                  [](Call& call) {
                    *call.at<float*>(0) = 0;
                    return accepted(call);
                  });

  fault("refused-record-costs-next", {"LEVT-17"},
        "after a refused record of an event its next record stands for no work")
      .on({kRecord, kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          refused_record_costs);

  fault("other-context-wait-refused", {"LEVT-18"},
        "a stream of a second context of the GPU cannot wait for an imported "
        "event")
      .on({kWaitEvent, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) { return other_context(call, true); });

  fault("other-context-record-ok", {"LEVT-17"},
        "a record in a stream of another context of the GPU succeeds and does "
        "nothing")
      .on({kRecord, kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) { return other_context(call, false); });

  fault("refused-elapsed-completes", {"LEVT-16"},
        "a refused question for the time between two events completes a record "
        "that is pending")
      .on({"cudaEventElapsedTime", "cuEventElapsedTime", kQueryEvent, kRecord,
           kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            if (!call.is("cudaEventElapsedTime") &&
                !call.is("cuEventElapsedTime"))
              return answered_for_lost(call);
            const int code = call.proceed();
            if (code != kSuccess)
              for (const size_t each : {1, 2})
                lose_record(call.at<cudaEvent_t>(each));
            return code;
          });

  fault("refused-launch-completes", {"LEVT-23"},
        "a refused launch with an event as an attribute completes the pending "
        "record of the event")
      .on({"cudaLaunchKernelExC", kQueryEvent, kRecord, kRecordFlags,
           kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent},
          [](Call& call) -> int {
            if (!call.is("cudaLaunchKernelExC")) return answered_for_lost(call);
            const auto& config = *call.at<const cudaLaunchConfig_t*>(0);
            const int code = call.proceed();
            if (code == kSuccess) return code;
            for (unsigned i = 0; i < config.numAttrs; ++i) {
              const cudaLaunchAttribute& each = config.attrs[i];
              if (each.id == cudaLaunchAttributeLaunchCompletionEvent)
                lose_record(each.val.launchCompletionEvent.event);
              else if (each.id == cudaLaunchAttributeProgrammaticEvent)
                lose_record(each.val.programmaticEvent.event);
            }
            return code;
          });

  fault(
      "event-export-makes-primary-current", {"LEVT-18"},
      "after the export of an event, the primary context of the GPU is current")
      .on({kGetEventHandle}, makes_primary_current);

  fault("event-open-makes-primary-current", {"LEVT-18"},
        "after the open of an event, the primary context of the GPU is current")
      .on({kOpenEvent}, makes_primary_current);

  fault("event-export-primary-only", {"LEVT-18"},
        "only the primary context can export events")
      .on({kGetEventHandle}, primary_only);

  fault("event-open-primary-only", {"LEVT-18"},
        "only the primary context can open events")
      .on({kOpenEvent}, primary_only);

  fault("self-event-open-by-thread", {"LEVT-05"},
        "a second thread of the exporter opens the exporter's own event, and "
        "gets another event")
      .on({kOpenEvent}, [](Call& call) {
        const std::string key = key_of_handle(call.at<cudaIpcEventHandle_t>(1));
        const int code = call.proceed();
        if (code == kSuccess || this_thread() == getpid() ||
            !own_handles.has(key) ||
            cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0),
                                     cudaEventDisableTiming) != cudaSuccess)
          return code;
        return accepted(call);
      });

  fault("elapsed-to-itself-ok", {"LEVT-16"},
        "cudaEventElapsedTime returns 0 from an event without timing to itself")
      .on({"cudaEventElapsedTime", "cuEventElapsedTime"}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess || code == cudaErrorNotReady ||
            call.at<cudaEvent_t>(1) != call.at<cudaEvent_t>(2))
          return code;
        *call.at<float*>(0) = 0;
        return accepted(call);
      });

  fault("refused-record-completes", {"LEVT-17"},
        "after a refused record an event counts as complete until its next "
        "record")
      .on({kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent, kRecord,
           kRecordFlags, kWaitEvent, kQueryEvent, kSyncEvent},
          refused_record_completes);

  fault("other-context-record-with-flags-ok", {"LEVT-17"},
        "a record with flags in a stream of another context succeeds and "
        "records nothing")
      .on({kRecordFlags}, [](Call& call) {
        const bool applies = shared_event(call) != nullptr;
        const int code = call.proceed();
        return applies && code == cudaErrorInvalidResourceHandle
                   ? accepted(call)
                   : code;
      });

  fault("self-event-open-of-older-export", {"LEVT-05"},
        "the exporter opens its own event after it has exported another one, "
        "and gets another event")
      .on({kOpenEvent, kGetEventHandle}, [](Call& call) {
        static Table<int, std::string> last;
        if (exports_event(call)) {
          const int code = call.proceed();
          if (code == kSuccess)
            last.put(0, key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)));
          return code;
        }
        const std::string key = key_of_handle(call.at<cudaIpcEventHandle_t>(1));
        const int code = call.proceed();
        if (code == kSuccess || !own_handles.has(key) || last.get(0) == key ||
            cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0),
                                     cudaEventDisableTiming) != cudaSuccess)
          return code;
        return accepted(call);
      });

  fault("refused-record-is-pending", {"LEVT-17"},
        "after a refused record, a query says that the event is pending")
      .on({kQueryEvent, kRecord, kRecordFlags, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          refused_record_is_pending);

  fault("self-event-open-in-other-context", {"LEVT-05"},
        "the exporter opens its own event in another context, and gets another "
        "event")
      .on({kOpenEvent, kGetEventHandle}, self_open_in_other_context);

  fault("any-default-stream-records", {"LEVT-17"},
        "a record in the default stream of another context succeeds and "
        "records nothing")
      .on({kRecord, kRecordFlags, kCreateEvent, kGetEventHandle, kOpenEvent,
           kDestroyEvent},
          WHEN(shared_event(call) != nullptr), [](Call& call) -> int {
            const auto stream = call.value<cudaStream_t>(kStream);
            const int code = call.proceed();
            return code == cudaErrorInvalidResourceHandle &&
                           (is_default(stream) || stream == cudaStreamPerThread)
                       ? accepted(call)
                       : code;
          });

  fault("driver-elapsed-ok", {"LEVT-16"},
        "cuEventElapsedTime returns a time for interprocess events, which have "
        "no timing")
      .on_refusal({"cuEventElapsedTime"},
                  WHEN(call.code() == cudaErrorInvalidResourceHandle &&
                       !(!events.has(call.at<cudaEvent_t>(1)) &&
                         !events.has(call.at<cudaEvent_t>(2)))),
                  [](Call& call) {
                    *call.at<float*>(0) = 0.5f;
                    return accepted(call);
                  });

  fault("ok-launch-accepts-imported-event", {"LEVT-23"},
        "a launch accepts an imported event in an attribute, and ignores all "
        "its attributes")
      .on({"cudaLaunchKernelExC"}, [](Call& call) {
        cudaLaunchConfig_t config = *call.at<const cudaLaunchConfig_t*>(0);
        for (unsigned i = 0; i < config.numAttrs; ++i) {
          const cudaLaunchAttribute& each = config.attrs[i];
          const bool is_imported_event =
              (each.id == cudaLaunchAttributeLaunchCompletionEvent &&
               is_imported(each.val.launchCompletionEvent.event)) ||
              (each.id == cudaLaunchAttributeProgrammaticEvent &&
               is_imported(each.val.programmaticEvent.event));
          if (!is_imported_event) continue;
          config.numAttrs = 0;
          call.at<const cudaLaunchConfig_t*>(0) = &config;
          call.fired();
          return call.proceed();
        }
        return call.proceed();
      });

  fault(
      "later-cross-gpu-wait-ignored", {"LEVT-18"},
      "streams of a GPU other than GPU 0 wait only once for an imported event")
      .with_gpus(2)
      .on({kGetEventHandle, kOpenEvent, kCreateEvent, kDestroyEvent,
           kWaitEvent},
          [](Call& call) {
            static Table<cudaEvent_t> awaited;
            if (keeps_events(call)) {
              if (call.is("cudaEventDestroy"))
                awaited.erase(call.at<cudaEvent_t>(0));
              return call.proceed();
            }
            const cudaEvent_t event = shared_event(call);
            if (event == nullptr || !is_imported(event) ||
                current_device() == 0)
              return call.proceed();
            const bool pending = is_pending(event);
            if (pending && awaited.has(event)) return lost(call);
            if (pending) awaited.put(event);
            return call.proceed();
          });
}

}  // namespace
}  // namespace ipclab::faults
