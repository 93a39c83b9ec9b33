// SPDX-License-Identifier: Apache-2.0
// The recorder on NVIDIA's driver. cuInit loads the library that
// CUDA_INJECTION64_PATH names and calls InitializeInjection().
#include <cupti_callbacks.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <dlfcn.h>
#include <driver_types.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <unordered_map>

#include "line.h"
#include "log.h"
#include "recorder.h"

namespace ipclab::trace {
namespace {

constexpr const char* kCupti =
    CUDA_VERSION >= 13000 ? "libcupti.so.13" : "libcupti.so.12";

// The index in our table of the call with this CUPTI identifier; -1 if the
// table does not have the call.
int index_of(uint32_t identifier) {
  static const auto& known = *[] {
    auto* numbers = new std::vector<int>;
    for (const Call* call = begin_calls(); call != end_calls(); ++call) {
      if (numbers->size() <= call->identifier) {
        numbers->resize(call->identifier + 1, -1);
      }
      (*numbers)[call->identifier] = static_cast<int>(call - begin_calls());
    }
    return numbers;
  }();
  return identifier < known.size() ? known[identifier] : -1;
}

// In a child of fork the driver refuses every call and reports none to CUPTI.
// The runtime reports its own calls. In most programs, one of these calls is
// the first call.
constexpr CUpti_CallbackId kFirstCalls[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaGetDeviceCount_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaSetDevice_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMallocAsync_v11020,
    CUPTI_RUNTIME_TRACE_CBID_cudaHostAlloc_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamCreate_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamCreateWithFlags_v5000,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventCreateWithFlags_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaIpcOpenMemHandle_v4010,
    CUPTI_RUNTIME_TRACE_CBID_cudaIpcOpenEventHandle_v4010,
    CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020,
};

// Records the first call that is refused in a child of fork, and every device
// that does not exist: the runtime refuses both without a call of the driver.
void on_runtime_call(CUpti_CallbackId identifier,
                     const CUpti_CallbackData& call) {
  static std::atomic<int> told{0};  // the process that has reported
  if (call.callbackSite != CUPTI_API_EXIT) return;
  const auto result =
      *static_cast<const cudaError_t*>(call.functionReturnValue);
  const bool sets = identifier == CUPTI_RUNTIME_TRACE_CBID_cudaSetDevice_v3020;
  if (sets && result == cudaErrorInvalidDevice) {
    // cudaSetDevice_v3020_params has one member, the device.
    record_refused(call.functionName, result,
                   *static_cast<const int*>(call.functionParams));
  }
  if (result != cudaErrorInitializationError) return;
  if (told.exchange(getpid()) == getpid()) return;
  record_refused(call.functionName, result, -1);
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain domain,
                      CUpti_CallbackId identifier, const void* data) {
  // The recorder's own calls are not recorded.
  thread_local bool inside = false;
  if (inside || !tracing()) return;
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
    return on_runtime_call(identifier, call);
  }
  const int index = index_of(identifier);
  if (index < 0) return;
  inside = true;
  if (call.callbackSite == CUPTI_API_ENTER) {
    *call.correlationData = now();
    if (begin_calls()[index].waits) {
      record_wait(index, call.context, call.functionParams);
    }
    if (begin_calls()[index].takes) record_taking(call.functionParams);
  } else {
    record({index, *call.correlationData, call.context, call.functionParams,
            *static_cast<const CUresult*>(call.functionReturnValue),
            call.symbolName});
  }
  inside = false;
}

// The CUPTI library: the file that IPCLAB_CUPTI names, or the library that the
// loader finds (perhaps from a Python wheel), or the library of the toolkit.
// Null if there is none.
void* open_cupti() {
  const char* named = std::getenv("IPCLAB_CUPTI");
  for (const char* path : {named, kCupti, IPCLAB_CUPTI_LIBRARY}) {
    if (path == nullptr) continue;
    if (void* library = dlopen(path, RTLD_LAZY)) return library;
  }
  return nullptr;
}

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

std::string subscribe() {
  void* library = open_cupti();
  if (library == nullptr) {
    return "no " + std::string(kCupti) + ": name it in IPCLAB_CUPTI";
  }
  const auto begin = find<decltype(cuptiSubscribe)>(library, "cuptiSubscribe");
  const auto enable =
      find<decltype(cuptiEnableCallback)>(library, "cuptiEnableCallback");
  if (begin == nullptr || enable == nullptr) return "libcupti lacks callbacks";

  CUpti_SubscriberHandle subscriber;
  const CUptiResult error = begin(&subscriber, on_call, nullptr);
  if (error == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    return "another profiler is in this process";
  }
  if (error != CUPTI_SUCCESS) {
    return "cuptiSubscribe: CUptiResult " + std::to_string(error);
  }
  int enabled = 0;
  for (const Call* call = begin_calls(); call != end_calls(); ++call) {
    // Libraries ask for the context at each step, which is never refused before
    // the call that they are about to make.
    if (call->identifier == CUPTI_DRIVER_TRACE_CBID_cuCtxGetCurrent) continue;
    // An older driver may not know the newest function.
    enabled += enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API,
                      call->identifier) == CUPTI_SUCCESS;
  }
  for (const CUpti_CallbackId identifier : kFirstCalls) {
    enable(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, identifier);
  }
  return enabled == 0 ? "CUPTI gives no callback" : "";
}

}  // namespace
}  // namespace ipclab::trace

/// Called by cuInit, which reports a failure if the result is not 1.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  using namespace ipclab::trace;
  if (!tracing()) return 1;
  const std::string problem = subscribe();
  if (problem.empty()) {
    record_source("cupti");
  } else {
    Line line;
    begin_event(line, "problem");
    write(line.raw(",\"text\":").text(problem).raw("}"));
  }
  return 1;
}
