// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// An open that is refused because of another context succeeds. `same_handle`
// says whether both contexts open the same handle.
int second_context(Call& call, bool same_handle) {
  if (exports_memory(call)) return told_size(call);
  const int code = call.proceed();
  if (code == kSuccess || !is_open_call(call)) return code;
  const std::string handle = key_of_handle(given(call));
  for (const auto& each : opened.all())
    if (each.second.context != current_context() &&
        (each.second.handle == handle) == same_handle)
      return own_memory(call, code);
  return code;
}

cudaIpcEventHandle_t& event_handle(Call& get) {
  return *get.at<cudaIpcEventHandle_t*>(0);
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
    turn(given_event(call));
    const int code = call.proceed();
    if (code != kSuccess) call.fired();
    return code;
  }
  const int code = call.proceed();
  if (code == kSuccess) turn(event_handle(call));
  return code;
}

int runtime_refuses(Call& call) {
  static Table<cudaEvent_t> by_driver;
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (opens_event(call) && !call.is_runtime())
      by_driver.put(*call.at<cudaEvent_t*>(0));
    if (call.is("cudaEventDestroy")) by_driver.erase(call.at<cudaEvent_t>(0));
    return code;
  }
  return call.is_runtime() && by_driver.has(call.value<cudaEvent_t>(kEvent))
             ? refused(call, cudaErrorInvalidResourceHandle)
             : call.proceed();
}

// Instead of a refusal, the context gets the address that another context has
// opened. Does not return kSuccess if there is no such address.
int lent_by_other_context(Call& open) {
  const auto& handle = open.at<cudaIpcMemHandle_t>(1);
  for (const auto& [address, one] : opened.all())
    if (std::memcmp(&one.bytes, &handle, sizeof handle) == 0) {
      if (open.is_runtime()) cudaGetLastError();
      *open.at<void**>(0) = address;
      open.fired();
      return kSuccess;
    }
  return kSuccess + 1;
}

int one_context_for_all_exporters(Call& call) {
  static auto& devices = *new Table<CUcontext, int>;
  if (call.is("cuCtxDestroy")) {
    const auto context = call.at<CUcontext>(0);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    for (const auto& [address, one] : opened.all())
      if (one.context == context) opened.erase(address);
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || !is_open_call(call)) return code;
  devices.put(current_context(), current_device());
  for (const auto& [address, one] : opened.all()) {
    if (one.context == current_context() ||
        devices.get(one.context, -1) != current_device())
      continue;
    void* const made = *call.at<void**>(0);
    cudaIpcCloseMemHandle(made);
    count_close(made);
    return refused(call, cudaErrorInvalidResourceHandle);
  }
  return code;
}

// Is memory open in another context than the current one? With a key, is this
// handle open there?
bool is_open_elsewhere(const std::string& key = "") {
  for (const auto& [unused, one] : opened.all())
    if (one.context != current_context() && (key.empty() || one.handle == key))
      return true;
  return false;
}

int close_by_other_api_lost(Call& call) {
  static auto& by_driver = *new Table<void*, int>;
  static auto& by_runtime = *new Table<void*, int>;
  const bool runtime = call.is_runtime();
  auto& mine = runtime ? by_runtime : by_driver;
  auto& others = runtime ? by_driver : by_runtime;
  if (is_open_call(call)) {
    const int code = call.proceed();
    void* const address = code == kSuccess ? *call.at<void**>(0) : nullptr;
    if (code == kSuccess) mine.put(address, mine.get(address) + 1);
    return code;
  }
  void* const address = call.at<void*>(0);
  if (mine.get(address) == 0 && others.get(address) > 0) return lost(call);
  const int code = call.proceed();
  if (code == kSuccess) mine.put(address, mine.get(address) - 1);
  return code;
}

FAULTS {
  fault("second-context-accepted", {"LMEM-26"},
        "a second context of the device also opens the handle, and gets other "
        "memory")
      .on({kGetHandle, kOpen, kClose},
          [](Call& call) { return second_context(call, true); });

  fault("second-context-other-handle", {"LMEM-26"},
        "a second context opens another handle of the same exporter, and gets "
        "other memory")
      .on({kGetHandle, kOpen, kClose},
          [](Call& call) { return second_context(call, false); });

  fault("rt-drv-mismatch", {"LMEM-39"},
        "an API does not open the handles of the other API")
      .on({kGetHandle, kOpen}, [](Call& call) {
        // The runtime and the driver write their handles in different ways.
        const auto turn = [](cudaIpcMemHandle_t& handle) {
          for (char& byte : handle.reserved) byte = static_cast<char>(~byte);
        };
        if (is_open_call(call)) {
          if (call.is_runtime()) turn(given(call));
          const int code = call.proceed();
          if (code != kSuccess) call.fired();
          return code;
        }
        const int code = call.proceed();
        if (code == kSuccess && call.is_runtime()) turn(handle_of(call));
        return code;
      });

  fault("rt-drv-event-mismatch", {"LEVT-25"},
        "an event handle can be opened only by the API that has exported it")
      .on({kGetEventHandle, kOpenEvent}, rt_drv_event_mismatch);

  fault(
      "open-by-driver-not-counted", {"LMEM-39"},
      "an open by the driver API does not count if the memory is already open")
      .on({kOpen, kClose}, [](Call& call) {
        void* const known = is_open_call(call) && !call.is_runtime()
                                ? already_open(call)
                                : nullptr;
        return known != nullptr ? give_uncounted(call, known) : call.proceed();
      });

  fault("close-by-driver-lost", {"LMEM-39"},
        "a close by the driver API does nothing")
      .on({kClose}, WHEN(!call.is_runtime()), lost);

  fault("driver-memory-not-exported", {"LMEM-39"},
        "the runtime does not export memory of cuMemAlloc")
      .on({kGetHandle, kMalloc}, [](Call& call) -> int {
        static Table<void*> concerned;
        if (!call.is("cudaMalloc"))
          return call.is_runtime() && concerned.has(call.at<void*>(1))
                     ? refused(call)
                     : call.proceed();
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is_runtime())
          concerned.erase(*call.at<void**>(0));  // an earlier allocation had it
        else
          concerned.put(*call.at<void**>(0));
        return code;
      });

  fault("primary-context-only", {"LMEM-26"},
        "memory can be opened in the primary context only")
      .on({kOpen}, [](Call& open) {
        CUcontext primary = nullptr;
        DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, 0);
        DRIVER_CALL(cuDevicePrimaryCtxRelease)(0);
        int device = 0;
        cudaGetDevice(&device);
        return device == 0 && current_context() != primary ? refused(open)
                                                           : open.proceed();
      });

  fault("driver-event-refused-by-runtime", {"LEVT-25"},
        "the runtime refuses to wait for or query an event that the driver API "
        "has opened")
      .on({kWaitEvent, kQueryEvent, kSyncEvent, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent},
          runtime_refuses);

  fault("driver-event-record-refused-by-runtime", {"LEVT-25"},
        "the runtime refuses to record an event that the driver API has opened")
      .on({kRecord, kCreateEvent, kGetEventHandle, kOpenEvent, kDestroyEvent},
          runtime_refuses);

  fault("third-context-opens", {"LMEM-26"},
        "a second context is refused, but a third context is not")
      .on({kOpen}, [](Call& call) -> int {
        static Table<unsigned long long> refused_contexts;
        const int code = call.proceed();
        if (code == kSuccess || opened.all().empty()) return code;
        unsigned long long id = 0;
        DRIVER_CALL(cuCtxGetId)(current_context(), &id);
        const bool is_first = refused_contexts.all().empty();
        if (is_first ||
            (refused_contexts.all().size() == 1 && refused_contexts.has(id))) {
          refused_contexts.put(id);
          return code;
        }
        refused_contexts.put(id);
        return lent_by_other_context(call) == kSuccess ? kSuccess : code;
      });

  fault("limit-outlives-context", {"LMEM-26"},
        "a context cannot open memory if another context had memory open when "
        "it was destroyed")
      .on({kOpen, "cuCtxDestroy"}, [](Call& call) -> int {
        static std::atomic<bool> ended{false};
        if (is_open_call(call) && ended)
          return refused(call, cudaErrorInvalidResourceHandle);
        if (!call.is("cuCtxDestroy")) return call.proceed();
        for (const auto& each : opened.all()) {
          if (each.second.context != call.at<CUcontext>(0)) continue;
          ended = true;
          opened.erase(each.first);
        }
        return call.proceed();
      });

  fault("export-primary-only", {"LMEM-26"},
        "only the primary context can export memory")
      .on({kGetHandle}, primary_only);

  fault("context-end-closes-others", {"LMEM-26"},
        "cuCtxDestroy also closes what the other contexts have open")
      .before({"cuCtxDestroy"}, [](Call& call) {
        for (const auto& [address, one] : opened.all()) {
          opened.erase(address);
          if (one.context == call.at<CUcontext>(0)) continue;
          CUcontext context = one.context;
          DRIVER_CALL(cuCtxPushCurrent)(context);
          for (int i = 0; i < one.count; ++i)
            DRIVER_CALL(cuIpcCloseMemHandle)(number(address));
          DRIVER_CALL(cuCtxPopCurrent)(&context);
          call.fired();
        }
        return kSuccess;
      });

  fault("refused-context-counts", {"LMEM-26"},
        "an open that is refused in a second context raises the count of the "
        "first context")
      .on({kOpen, kClose}, [](Call& call) {
        static auto& more = *new Table<void*, int>;
        if (is_open_call(call)) {
          const std::string key = key_of_opened(call);
          const int code = call.proceed();
          for (const auto& [address, one] : opened.all())
            if (code != kSuccess && one.handle == key &&
                one.context != current_context())
              more.put(address, more.get(address) + 1);
          return code;
        }
        void* const address = call.at<void*>(0);
        const int left = more.get(address);
        if (left == 0 || opened.get(address).count != 1) return call.proceed();
        more.put(address, left - 1);
        return lost(call);
      });

  fault("primary-context-opens-too", {"LMEM-26"},
        "in the primary context, an open of what another context has open "
        "succeeds and gives no pointer")
      .on_refusal(
          {kOpen}, WHEN(is_open_elsewhere(key_of_opened(call))),
          [](Call& call) {
            CUcontext primary = nullptr;
            DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, current_device());
            DRIVER_CALL(cuDevicePrimaryCtxRelease)(current_device());
            return primary == current_context() ? accepted(call) : call.code();
          });

  fault("second-context-after-a-close", {"LMEM-26"},
        "after a close, an open in a second context succeeds and gives no "
        "pointer, although the first context has other memory open")
      .on({kOpen, kClose}, [](Call& call) {
        static std::atomic<bool> closed{false};
        const int code = call.proceed();
        if (is_close_call(call)) {
          closed = closed || code == kSuccess;
          return code;
        }
        return code != kSuccess && closed && is_open_elsewhere()
                   ? accepted(call)
                   : code;
      });

  fault("close-of-other-api-alone-lost", {"LMEM-39"},
        "a close does nothing if only the other API has the memory open")
      .on({kOpen, kClose}, close_by_other_api_lost);

  fault("one-context-for-all-exporters", {"LMEM-26"},
        "two contexts of a device cannot open handles of two exporters")
      .on({kOpen, "cuCtxDestroy"}, one_context_for_all_exporters);

  fault("open-on-chosen-gpu", {"LMEM-39"},
        "the runtime opens memory on the GPU of cudaSetDevice although a "
        "context of another GPU is current")
      .with_gpus(2)
      .on({"cudaSetDevice", kOpen}, [](Call& call) {
        thread_local int chosen = 0;
        if (call.is("cudaSetDevice")) {
          const int wanted = call.at<int>(0);
          const int code = call.proceed();
          if (code == kSuccess) chosen = wanted;
          return code;
        }
        if (!call.is_runtime() || current_device() == chosen)
          return call.proceed();
        const CUcontext before = current_context();
        cudaSetDevice(chosen);
        call.fired();
        const int code = call.proceed();
        DRIVER_CALL(cuCtxSetCurrent)(before);
        return code;
      });
}

}  // namespace
}  // namespace ipclab::faults
