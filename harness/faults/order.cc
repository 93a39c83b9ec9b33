// Wrong order: events, streams, words in memory, graphs and calls for opened
// memory that do not wait, or wait for more than they should. Also calls that
// change more than they should.
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

// Does the call let a stream wait for an event?
bool waits_for_event(Call& call) { return call.is("cudaStreamWaitEvent"); }

// --- the work that an event stands for ---------------------------------------

// The answer is about the whole stream in which this process recorded the event
// last: any shared event, or only an imported one.
template <bool only_imports>
int asks_stream(Call& call) {
  static Table<cudaEvent_t, cudaStream_t> recorded;
  if (keeps_events(call)) {
    recorded.erase(call.is("cudaEventDestroy") ? call.at<cudaEvent_t>(0)
                                               : nullptr);
    return call.proceed();
  }
  if (call.is("cudaStreamDestroy")) {
    for (const auto& [event, stream] : recorded.all())
      if (stream == call.at<cudaStream_t>(0)) recorded.erase(event);
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  const int code = call.proceed();
  if (code != kSuccess || event == nullptr ||
      (only_imports && !is_imported(event)))
    return code;
  if (records(call)) {
    recorded.put(event, call.value<cudaStream_t>(kStream));
    return code;
  }
  if (!recorded.has(event) || !is_busy(recorded.get(event))) return code;
  call.fired();
  if (call.is("cudaEventQuery")) return cudaErrorNotReady;
  return DRIVER_CALL(cuStreamSynchronize)(recorded.get(event));
}

// A stream waits for the last but one record of this process, if this record is
// done.
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

int exporter_destroy_waits(Call& call) {
  if (!call.is("cudaEventDestroy")) return call.proceed();
  const auto event = call.at<cudaEvent_t>(0);
  if (events.has(event) && !is_imported(event) && is_pending(event)) {
    call.fired();
    cudaEventSynchronize(event);
  }
  return call.proceed();
}

int stream_destroy_waits(Call& call) {
  const auto stream = call.at<cudaStream_t>(0);
  if (is_busy(stream)) {
    call.fired();
    DRIVER_CALL(cuStreamSynchronize)(stream);
  }
  return call.proceed();
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

// --- streams -----------------------------------------------------------------

using Fits = bool (*)(Call& call, cudaStream_t stream);

// A wait for an imported event is lost in streams for which `fits` is true.
int wait_lost(Call& call, Fits fits) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) &&
                 fits(call, call.value<cudaStream_t>(kStream))
             ? no_wait(call)
             : call.proceed();
}

int legacy_constant_never_waits(Call& call) {
  return wait_lost(call, [](Call&, cudaStream_t stream) {
    return stream == cudaStreamLegacy;
  });
}

int priority_stream_never_waits(Call& call) {
  return wait_lost(call, [](Call&, cudaStream_t stream) {
    int priority = 0;
    DRIVER_CALL(cuStreamGetPriority)(stream, &priority);
    return priority != 0;
  });
}

int legacy_constant_records_early(Call& call) {
  if (keeps_events(call)) return call.proceed();
  if (shared_event(call) == nullptr ||
      call.value<cudaStream_t>(kStream) != cudaStreamLegacy ||
      !is_busy(cudaStreamLegacy))
    return call.proceed();
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  return call.proceed();
}

bool waits_for_null_stream(cudaStream_t stream) {
  unsigned flags = CU_STREAM_NON_BLOCKING;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    DRIVER_CALL(cuStreamGetFlags)(stream, &flags);
  return flags == CU_STREAM_DEFAULT;
}

// Streams that were told to wait, for a word or for an imported event, and
// whether they wait for the null stream. Their marks come after the wait.
Table<cudaStream_t, bool> told_to_wait;

int noted_wait(Call& wait) {
  const auto stream = wait.at<cudaStream_t>(0);
  const int code = wait.proceed();
  if (code != kSuccess || is_captured(stream)) return code;
  DRIVER_CALL(cuEventRecord)(mark_of(stream), stream);
  told_to_wait.put(stream, waits_for_null_stream(stream));
  return code;
}
int noted_event_wait(Call& wait) {
  const cudaEvent_t event = shared_event(wait);
  return event != nullptr && is_imported(event) && is_pending(event)
             ? noted_wait(wait)
             : wait.proceed();
}

// Does the stream wait? It may be destroyed.
bool waits(cudaStream_t stream) {
  return told_to_wait.has(stream) && is_pending(mark_of(stream));
}

int noted_destroy(Call& destroy) {
  told_to_wait.erase(destroy.at<cudaStream_t>(0));
  return destroy.proceed();
}

// While a stream waits for an imported event, it counts as done.
int idle_while_event(Call& call) {
  if (keeps_events(call)) return call.proceed();
  if (waits_for_event(call)) return noted_event_wait(call);
  if (call.is("cudaStreamDestroy")) return noted_destroy(call);
  return waits(call.at<cudaStream_t>(0)) ? no_wait(call) : call.proceed();
}

int query_while_word(Call& call) {
  if (call.is("cudaStreamDestroy")) return noted_destroy(call);
  if (!call.is("cudaStreamQuery")) return noted_wait(call);
  return waits(call.at<cudaStream_t>(0)) ? no_wait(call) : call.proceed();
}

// The context of a stream; null if the driver does not know it.
CUcontext context_of(cudaStream_t stream) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  driver<decltype(cuStreamGetCtx_v2)>("cuStreamGetCtx")(stream, &context,
                                                        &green);
  return context;
}

// After a refused record of an event, the next record of this event that is not
// refused is made in another stream, so it stands for no work.
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
  return wait ? refused(call, cudaErrorInvalidResourceHandle) : no_wait(call);
}
int other_context_waits_refused(Call& call) {
  return other_context(call, true);
}
int other_context_records_ok(Call& call) { return other_context(call, false); }

// --- words in memory ---------------------------------------------------------

using Operations = std::vector<CUstreamBatchMemOpParams>;

Operations operations_of(Call& batch) {
  auto* const first = batch.at<CUstreamBatchMemOpParams*>(2);
  return {first, first + batch.at<unsigned>(1)};
}

int proceed_with(Call& batch, Operations& operations) {
  batch.at<unsigned>(1) = static_cast<unsigned>(operations.size());
  batch.at<CUstreamBatchMemOpParams*>(2) = operations.data();
  batch.fired();
  return operations.empty() ? kSuccess : batch.proceed();
}

bool is_wait(const CUstreamBatchMemOpParams& one) {
  return one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

int batch_never_waits(Call& batch) {
  Operations writes;
  for (const auto& one : operations_of(batch))
    if (!is_wait(one)) writes.push_back(one);
  return writes.size() == batch.at<unsigned>(1) ? batch.proceed()
                                                : proceed_with(batch, writes);
}

int batch_waits_for_greater(Call& batch) {
  Operations all = operations_of(batch);
  bool changed = false;
  for (auto& one : all)
    if (is_wait(one) && one.waitValue.flags == CU_STREAM_WAIT_VALUE_EQ) {
      one.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
      changed = true;
    }
  return changed ? proceed_with(batch, all) : batch.proceed();
}

int batch_of_256(Call& batch) {
  if (batch.at<unsigned>(1) != 256) return batch.proceed();
  Operations all = operations_of(batch);
  const CUstreamBatchMemOpParams last = all.back();
  all.pop_back();
  if (const int code = proceed_with(batch, all); code != kSuccess) return code;
  Operations rest{last};
  return proceed_with(batch, rest);
}

bool is_managed(CUdeviceptr address) {
  unsigned managed = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&managed,
                                            CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                            address) == CUDA_SUCCESS &&
         managed != 0;
}

int batch_of_managed(Call& batch) {
  const int code = batch.proceed();
  if (code == kSuccess) return code;
  for (const auto& one : operations_of(batch))
    if (is_managed(one.waitValue.address)) return no_wait(batch);
  return code;
}

int wait64_not_cyclic(Call& wait) {
  if (wait.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_GEQ &&
      wait.at<cuuint64_t>(2) >> 63 != 0) {
    wait.at<unsigned>(3) = CU_STREAM_WAIT_VALUE_EQ;
    wait.fired();
  }
  return wait.proceed();
}

int wait64_all_bits(Call& wait) {
  if (wait.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_AND) {
    wait.at<unsigned>(3) = CU_STREAM_WAIT_VALUE_EQ;
    wait.fired();
  }
  return wait.proceed();
}

// A batch is lost if `applies` is true.
int batch_lost(Call& batch, bool applies) {
  return applies ? no_wait(batch) : batch.proceed();
}
int batch_of_thread_lost(Call& batch) {
  return batch_lost(batch, gettid() != getpid());
}
int batch_in_default_lost(Call& batch) {
  return batch_lost(batch, is_default(batch.at<cudaStream_t>(0)));
}
int batch_in_per_thread_lost(Call& batch) {
  return batch_lost(batch, batch.at<cudaStream_t>(0) == cudaStreamPerThread);
}

// Each wait for 64 bits in a batch looks at the lower half of the word.
int batch_waits_for_half(Call& batch) {
  Operations all = operations_of(batch);
  bool changed = false;
  for (auto& one : all)
    if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64) {
      one.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      changed = true;
    }
  return changed ? proceed_with(batch, all) : batch.proceed();
}

// Only the first write of 64 bits in a batch is done.
int batch_writes_one_wide(Call& batch) {
  Operations some;
  bool found = false;
  for (const auto& one : operations_of(batch)) {
    if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 &&
        std::exchange(found, true))
      continue;
    some.push_back(one);
  }
  return some.size() == batch.at<unsigned>(1) ? batch.proceed()
                                              : proceed_with(batch, some);
}

int word_in_default_lost(Call& call) {
  return is_default(call.at<cudaStream_t>(0)) ? no_wait(call) : call.proceed();
}
int word_in_legacy_constant_lost(Call& call) {
  return call.at<cudaStream_t>(0) == cudaStreamLegacy ? no_wait(call)
                                                      : call.proceed();
}
int word_in_per_thread_lost(Call& call) {
  return call.at<cudaStream_t>(0) == cudaStreamPerThread ? no_wait(call)
                                                         : call.proceed();
}
int word_of_thread_lost(Call& call) {
  return gettid() != getpid() ? no_wait(call) : call.proceed();
}
int word_in_priority_lost(Call& call) {
  int priority = 0;
  DRIVER_CALL(cuStreamGetPriority)(call.at<cudaStream_t>(0), &priority);
  return priority != 0 ? no_wait(call) : call.proceed();
}

// Skips the calls of `function`, a write or a wait, for words in memory that
// this process has exported.
int exported_word_lost(Call& call, const char* function) {
  static Table<CUdeviceptr> exported;
  if (call.is("cudaFree")) exported.erase(call.at<CUdeviceptr>(0));
  if (call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) exported.put(begin_of(call.at<CUdeviceptr>(1)));
    return code;
  }
  return call.is(function) && exported.has(begin_of(call.at<CUdeviceptr>(1)))
             ? no_wait(call)
             : call.proceed();
}
int exported_word_unwritten(Call& call) {
  return exported_word_lost(call, "cuStreamWriteValue32");
}
int exported_word_unwaited(Call& call) {
  return exported_word_lost(call, "cuStreamWaitValue32");
}

// --- graphs ------------------------------------------------------------------

// A graph copies what opened memory contained during the capture.
int captured_copy_reads_then(Call& call) {
  if (!call.is("cudaMemcpyAsync")) return call.proceed();
  auto& source = call.at<CUdeviceptr>(1);
  const size_t bytes = call.at<size_t>(2);
  if (!is_captured(call.value<cudaStream_t>(kStream)) || !is_opened(source))
    return call.proceed();
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  void* then = nullptr;
  if (cudaMalloc(&then, bytes) == cudaSuccess) {
    cudaMemcpyAsync(then, call.at<void*>(1), bytes, cudaMemcpyDefault,
                    private_stream());
    cudaStreamSynchronize(private_stream());
    source = reinterpret_cast<CUdeviceptr>(then);
    call.fired();
  }
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  return call.proceed();
}

int captured_set_lost(Call& call) {
  if (!call.is("cudaMemsetAsync")) return call.proceed();
  return is_captured(call.value<cudaStream_t>(kStream)) &&
                 is_opened(call.at<CUdeviceptr>(0))
             ? no_wait(call)
             : call.proceed();
}

// Launches a graph that does not wait for the earlier work of its stream.
int launched_ahead(Call& launch) {
  auto& stream = launch.at<cudaStream_t>(1);
  const cudaStream_t own = stream;
  stream = private_stream();
  if (is_busy(own)) launch.fired();
  const int code = launch.proceed();
  cudaEventRecord(mark_of(stream), stream);
  cudaStreamWaitEvent(own, mark_of(stream), 0);
  stream = own;
  return code;
}

// Does the call make a graph that can be launched? It may have the number of an
// earlier graph.
bool makes_graph(Call& call) { return call.is("cudaGraphInstantiate"); }

// From its second launch on, a graph does not wait for the earlier work of its
// stream.
int replay_ahead_of_stream(Call& launch) {
  static Table<void*> launched;
  if (makes_graph(launch)) {
    const int code = launch.proceed();
    if (code == kSuccess) launched.erase(*launch.at<void**>(0));
    return code;
  }
  const auto stream = launch.at<cudaStream_t>(1);
  if (launched.put(launch.at<void*>(0)) || is_captured(stream))
    return launch.proceed();
  return launched_ahead(launch);
}

// A graph that is launched in another stream than the first time does not wait
// for the earlier work of that stream.
int launch_elsewhere_ahead(Call& launch) {
  static Table<void*, cudaStream_t> firsts;
  if (makes_graph(launch)) {
    const int code = launch.proceed();
    if (code == kSuccess) firsts.erase(*launch.at<void**>(0));
    return code;
  }
  const auto stream = launch.at<cudaStream_t>(1);
  void* const graph = launch.at<void*>(0);
  if (is_captured(stream)) return launch.proceed();
  if (!firsts.has(graph)) firsts.put(graph, stream);
  if (firsts.get(graph) == stream) return launch.proceed();
  return launched_ahead(launch);
}

// --- who else waits ----------------------------------------------------------

// Only the hosts of the process that waits first for an imported event wait.
int host_wait_of_one_process(Call& call) {
  static Table<std::string> mine;
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) || !is_pending(event))
    return call.proceed();
  const std::string key = "waits-" + event_keys.get(event);
  if (first_of_all_processes(key)) mine.put(key);
  return mine.has(key) ? call.proceed() : no_wait(call);
}

// cuCtxSynchronize does not wait while a stream waits for an imported event.
int context_sync_while_event(Call& call) {
  if (keeps_events(call)) return call.proceed();
  if (waits_for_event(call)) return noted_event_wait(call);
  for (const auto& each : told_to_wait.all())
    if (waits(each.first)) return no_wait(call);
  return call.proceed();
}

// Asks about a stream that waits, or about all streams: the answer is that
// nothing waits.
int ignores_waiting(Call& call) {
  const Argument* const stream = call.find(kStream);
  for (const auto& each : told_to_wait.all())
    if ((stream == nullptr || call.at<cudaStream_t>(0) == each.first) &&
        waits(each.first))
      return no_wait(call);
  return call.proceed();
}

// The driver API says that a stream that waits for a word is done, and does not
// wait for it.
int driver_ignores_word(Call& call) {
  if (call.is("cuStreamWaitValue32")) return noted_wait(call);
  if (call.is("cudaStreamDestroy")) return noted_destroy(call);
  return call.is_runtime() ? call.proceed() : ignores_waiting(call);
}

// Whose event a stream waits for.
enum class Whose { kAny, kExporters };

// Proceeds with a call. Notes the streams that wait for a record of another
// process.
int noted_foreign_wait(Call& call, Whose whose) {
  static Table<cudaEvent_t> recorded_here;
  if (call.is("cudaStreamDestroy")) return noted_destroy(call);
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy"))
      recorded_here.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || (whose == Whose::kExporters && is_imported(event)))
    return call.proceed();
  if (records(call)) recorded_here.put(event);
  return waits_for_event(call) && !recorded_here.has(event) && is_pending(event)
             ? noted_wait(call)
             : call.proceed();
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
      return no_wait(call);
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

// A stream's wait for an imported event ends when the event was recorded 512
// times since the call.
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

// A stream of one of these two kinds, blocking streams and the null stream,
// does not wait for a stream of the other kind that waits for a word.
template <bool of_default>
int other_kind_skips_word(Call& call) {
  if (call.is("cuStreamWaitValue32")) return noted_wait(call);
  auto& stream = call.value<cudaStream_t>(kStream);
  if (is_captured(stream) ||
      !(of_default ? waits_for_null_stream(stream) : is_default(stream)))
    return call.proceed();
  for (const auto& [other, is_blocking] : told_to_wait.all())
    if (waits(other) && (of_default ? is_default(other) : is_blocking)) {
      stream = private_stream();
      call.fired();
      break;
    }
  return call.proceed();
}

// A synchronous copy runs at once, although the null stream waits for a word.
int sync_copy_skips_word(Call& call) {
  if (call.is("cuStreamWaitValue32")) return noted_wait(call);
  for (const auto& each : told_to_wait.all()) {
    if (!is_default(each.first) || !waits(each.first)) continue;
    return copied_at_once(call);
  }
  return call.proceed();
}

// A process submits a record of an event only with its next call.
int record_submitted_late(Call& call) {
  static Table<cudaEvent_t, cudaStream_t> late;
  for (const auto& [event, stream] : late.all())
    if (late.erase(event)) cudaEventRecord(event, stream);
  if (shared_event(call) == nullptr || !records(call)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  if (!is_busy(stream)) return call.proceed();
  late.put(call.value<cudaEvent_t>(kEvent), stream);
  call.fired();
  return kSuccess;
}

// --- opened memory in the default stream -------------------------------------

// Is this memory of a GPU?
bool is_device_memory(CUdeviceptr address) {
  CUmemorytype kind{};
  return DRIVER_CALL(cuPointerGetAttribute)(&kind,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            address) == CUDA_SUCCESS &&
         kind == CU_MEMORYTYPE_DEVICE;
}

// A memset of opened memory runs at once, whatever the default stream still has
// to do.
int import_set_ahead(Call& call) {
  if (!call.is("cudaMemset")) return call.proceed();
  if (!is_opened(call.at<CUdeviceptr>(0)) || !is_busy(nullptr))
    return call.proceed();
  call.fired();
  const cudaStream_t stream = private_stream();
  const cudaError_t code = cudaMemsetAsync(call.at<void*>(0), call.at<int>(1),
                                           call.at<size_t>(2), stream);
  if (code != cudaSuccess) return code;
  return DRIVER_CALL(cuStreamSynchronize)(stream);
}

// Is this a copy into opened memory while the default stream has work?
bool copies_to_import_meanwhile(Call& call, bool from_device) {
  return call.is("cudaMemcpy") && is_opened(call.at<CUdeviceptr>(0)) &&
         is_device_memory(call.at<CUdeviceptr>(1)) == from_device &&
         is_busy(nullptr);
}

// A synchronous copy into opened memory runs at once.
template <bool from_device>
int import_copy_ahead(Call& call) {
  return copies_to_import_meanwhile(call, from_device) ? copied_at_once(call)
                                                       : call.proceed();
}

// A synchronous copy from the host into opened memory returns at once. The
// stream reads the source later.
int import_copy_reads_late(Call& call) {
  if (!copies_to_import_meanwhile(call, false)) return call.proceed();
  struct Late {
    void* staging;
    const void* source;
    size_t bytes;
  };
  auto* const late =
      new Late{nullptr, call.at<const void*>(1), call.at<size_t>(2)};
  if (cudaHostAlloc(&late->staging, late->bytes, cudaHostAllocDefault) !=
      cudaSuccess)
    return call.proceed();
  const auto read = [](void* given) {
    const auto* const now = static_cast<const Late*>(given);
    std::memcpy(now->staging, now->source, now->bytes);
  };
  call.fired();
  cudaLaunchHostFunc(nullptr, read, late);
  return cudaMemcpyAsync(call.at<void*>(0), late->staging, late->bytes,
                         cudaMemcpyHostToDevice, nullptr);
}

// A call for no bytes of opened memory writes a word.
int nothing_is_a_word(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes == 0 && is_opened(call.at<CUdeviceptr>(0))) {
    bytes = 4;
    call.fired();
  }
  return call.proceed();
}

// --- what a call changes beside its result -----------------------------------

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

// A refused question for the time between two events completes their records.
int refused_elapsed_completes(Call& call) {
  if (!call.is("cudaEventElapsedTime") && !call.is("cuEventElapsedTime"))
    return answered_for_lost(call);
  const int code = call.proceed();
  if (code != kSuccess)
    for (const size_t each : {1, 2}) lose_record(call.at<cudaEvent_t>(each));
  return code;
}

// A refused launch with an event as an attribute completes the event's record.
int refused_launch_completes(Call& call) {
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
}

// After the call, the primary context of the GPU is current.
int makes_primary_current(Call& call) {
  const CUcontext before = current_context();
  const int code = call.proceed();
  int device = 0;
  if (code != kSuccess || cudaGetDevice(&device) != cudaSuccess ||
      cudaSetDevice(device) != cudaSuccess)
    return code;
  if (current_context() != before) call.fired();
  return code;
}

}  // namespace

void add_order(List& list) {
  constexpr auto kCreate = "cudaEventCreateWithFlags";
  constexpr auto kExport = "cudaIpcGetEventHandle";
  constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
  constexpr auto kDestroy = "cudaEventDestroy";
  constexpr auto kRecord = "cudaEventRecord";
  constexpr auto kRecordFlags = "cudaEventRecordWithFlags";
  constexpr auto kWait = "cudaStreamWaitEvent";
  constexpr auto kQuery = "cudaEventQuery";
  constexpr auto kSync = "cudaEventSynchronize";
  constexpr auto kOpen = "cudaIpcOpenMemHandle";
  constexpr auto kClose = "cudaIpcCloseMemHandle";

  list.named("query-asks-stream",
             "an event that this process has recorded is pending as long as "
             "its stream has later work",
             {kQuery, kCreate, kExport, kOpenEvent, kDestroy, kRecord,
              kRecordFlags, "cudaStreamDestroy"},
             asks_stream<false>);
  list.named("sync-waits-for-stream",
             "a host wait for an event that this process has recorded also "
             "waits for later work of its stream",
             {kSync, kCreate, kExport, kOpenEvent, kDestroy, kRecord,
              kRecordFlags, "cudaStreamDestroy"},
             asks_stream<false>);
  list.named(
      "wait-for-previous-record",
      "a stream waits for its process's last but one record, if this record "
      "is done",
      {kWait, kCreate, kExport, kOpenEvent, kDestroy, kRecord, kRecordFlags},
      waits_for_previous);
  list.named("exporter-destroy-waits",
             "the exporter waits when it destroys a pending event",
             {kDestroy, kCreate, kExport, kOpenEvent}, exporter_destroy_waits);
  list.named("stream-destroy-waits",
             "the destroy of a stream waits for the work in the stream",
             {"cudaStreamDestroy"}, stream_destroy_waits);
  list.named(
      "unrecorded-wait-refused",
      "a stream cannot wait for an imported event before its first "
      "record",
      {kWait, kCreate, kExport, kOpenEvent, kDestroy, kRecord, kRecordFlags},
      unrecorded_refused);
  list.named(
      "unrecorded-sync-refused",
      "a host cannot wait for an imported event before its first record",
      {kSync, kCreate, kExport, kOpenEvent, kDestroy, kRecord, kRecordFlags},
      unrecorded_refused);
  list.named("driver-event-refused-by-runtime",
             "the runtime refuses to wait for or query an event that the "
             "driver API has opened",
             {kWait, kQuery, kSync, kCreate, kExport, kOpenEvent, kDestroy},
             runtime_refuses);
  list.named("driver-event-record-refused-by-runtime",
             "the runtime refuses to record an event that the driver API has "
             "opened",
             {kRecord, kCreate, kExport, kOpenEvent, kDestroy},
             runtime_refuses);
  list.named("import-query-asks-stream",
             "an importer's record is pending as long as its stream has later "
             "work",
             {kQuery, kCreate, kExport, kOpenEvent, kDestroy, kRecord,
              kRecordFlags, "cudaStreamDestroy"},
             asks_stream<true>);
  list.named(
      "refused-record-costs-next",
      "after a refused record of an event its next record stands for no work",
      {kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      refused_record_costs);
  list.named("batch-of-other-thread-lost",
             "a batch that a second thread submits is lost",
             {"cuStreamBatchMemOp"}, batch_of_thread_lost);
  list.named("batch-in-default-stream-lost",
             "a batch in the default stream is lost", {"cuStreamBatchMemOp"},
             batch_in_default_lost);
  list.named("batch-in-per-thread-stream-lost",
             "a batch in a thread's default stream is lost",
             {"cuStreamBatchMemOp"}, batch_in_per_thread_lost);
  list.named("batch-waits-for-half",
             "a wait for 64 bits in a batch looks at the lower 32 bits",
             {"cuStreamBatchMemOp"}, batch_waits_for_half);
  list.named("batch-writes-one-wide",
             "a batch does only its first write of 64 bits",
             {"cuStreamBatchMemOp"}, batch_writes_one_wide);
  list.named("wait64-in-default-stream-lost",
             "the default stream does not wait for a word of 64 bits",
             {"cuStreamWaitValue64"}, word_in_default_lost);
  list.named("write64-in-default-stream-lost",
             "the default stream does not write a word of 64 bits",
             {"cuStreamWriteValue64"}, word_in_default_lost);
  list.named("wait64-in-per-thread-stream-lost",
             "a thread's default stream does not wait for a word of 64 bits",
             {"cuStreamWaitValue64"}, word_in_per_thread_lost);
  list.named("write64-of-other-thread-lost",
             "a second thread's write of a word of 64 bits is lost",
             {"cuStreamWriteValue64"}, word_of_thread_lost);
  list.named("wait64-of-other-thread-lost",
             "a second thread's wait for a word of 64 bits is lost",
             {"cuStreamWaitValue64"}, word_of_thread_lost);
  list.named("wait-value-legacy-constant-lost",
             "the stream cudaStreamLegacy does not wait for a word",
             {"cuStreamWaitValue32"}, word_in_legacy_constant_lost);
  list.named("write-value-per-thread-lost",
             "a thread's default stream does not write a word",
             {"cuStreamWriteValue32"}, word_in_per_thread_lost);
  list.named("wait-value-priority-lost",
             "a stream with a priority does not wait for a word",
             {"cuStreamWaitValue32"}, word_in_priority_lost);
  list.named("write-value-priority-lost",
             "a stream with a priority does not write a word",
             {"cuStreamWriteValue32"}, word_in_priority_lost);
  list.named("legacy-constant-never-waits",
             "the stream cudaStreamLegacy does not wait for an imported event",
             {kWait, kCreate, kExport, kOpenEvent, kDestroy},
             legacy_constant_never_waits);
  list.named("legacy-constant-records-early",
             "a record in cudaStreamLegacy does not wait for the work in this "
             "stream",
             {kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
             legacy_constant_records_early);
  list.named("priority-stream-never-waits",
             "a stream with a priority does not wait for an imported event",
             {kWait, kCreate, kExport, kOpenEvent, kDestroy},
             priority_stream_never_waits);
  list.named("query-done-while-event",
             "a stream that waits for an imported event is reported as done",
             {"cudaStreamQuery", kWait, kCreate, kExport, kOpenEvent, kDestroy,
              "cudaStreamDestroy"},
             idle_while_event);
  list.named("sync-done-while-event",
             "a host does not wait for a stream that waits for an imported "
             "event",
             {"cudaStreamSynchronize", kWait, kCreate, kExport, kOpenEvent,
              kDestroy, "cudaStreamDestroy"},
             idle_while_event);
  list.named("query-done-while-word",
             "a stream that waits for a word is reported as done",
             {"cudaStreamQuery", "cuStreamWaitValue32", "cuStreamWaitValue64",
              "cudaStreamDestroy"},
             query_while_word);
  list.named("other-context-wait-refused",
             "a stream of a second context of the GPU cannot wait for an "
             "imported event",
             {kWait, kCreate, kExport, kOpenEvent, kDestroy},
             other_context_waits_refused);
  list.named("other-context-record-ok",
             "a record in a stream of another context of the GPU succeeds and "
             "does nothing",
             {kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
             other_context_records_ok);
  list.named("batch-never-waits", "a batch does not wait",
             {"cuStreamBatchMemOp"}, batch_never_waits);
  list.named("batch-waits-for-greater",
             "a wait for equality in a batch also ends at a greater value",
             {"cuStreamBatchMemOp"}, batch_waits_for_greater);
  list.named("batch-of-256-ok", "a batch of 256 operations is accepted",
             {"cuStreamBatchMemOp"}, batch_of_256);
  list.named("batch-of-managed-ok",
             "a batch with a word in managed memory succeeds and does nothing",
             {"cuStreamBatchMemOp"}, batch_of_managed);
  list.named("wait64-not-cyclic",
             "a stream that waits for a 64-bit value of 2^63 or more, or a "
             "greater one, continues only at this value",
             {"cuStreamWaitValue64"}, wait64_not_cyclic);
  list.named("wait64-bit-is-equal",
             "a stream that waits for any of several bits of a 64-bit word "
             "waits until the word has exactly these bits",
             {"cuStreamWaitValue64"}, wait64_all_bits);
  list.named(
      "write-exported-word-lost",
      "a stream does not write a word in memory that its process has exported",
      {"cuStreamWriteValue32", "cudaIpcGetMemHandle", "cudaFree"},
      exported_word_unwritten);
  list.named("wait-exported-word-ignored",
             "a stream does not wait for a word in memory that its process has "
             "exported",
             {"cuStreamWaitValue32", "cudaIpcGetMemHandle", "cudaFree"},
             exported_word_unwaited);
  list.named("captured-copy-reads-then",
             "a captured copy out of opened memory gives what the memory "
             "contained during the capture",
             {"cudaMemcpyAsync", kOpen, kClose}, captured_copy_reads_then);
  list.named("captured-import-set-lost",
             "a graph does not do a captured memset of bytes of opened memory",
             {"cudaMemsetAsync", kOpen, kClose}, captured_set_lost);
  list.named("replay-ahead-of-stream",
             "from its second launch on, a graph does not wait for the earlier "
             "work of its stream",
             {"cudaGraphLaunch", "cudaGraphInstantiate"},
             replay_ahead_of_stream);
  list.named("launch-elsewhere-ahead",
             "a graph that is launched in another stream than the first time "
             "does not wait for the earlier work of that stream",
             {"cudaGraphLaunch", "cudaGraphInstantiate"},
             launch_elsewhere_ahead);
  constexpr auto kWaitWord = "cuStreamWaitValue32";
  list.named("host-wait-of-one-process",
             "only the hosts of one process wait for an imported event",
             {kSync, kCreate, kExport, kOpenEvent, kDestroy},
             host_wait_of_one_process);
  list.named(
      "context-sync-done-while-event",
      "cuCtxSynchronize does not wait while a stream waits for an imported "
      "event",
      {"cuCtxSynchronize", kWait, kCreate, kExport, kOpenEvent, kDestroy},
      context_sync_while_event);
  list.named("context-sync-done-while-word",
             "cuCtxSynchronize does not wait while a stream waits for a word",
             {"cuCtxSynchronize", kWaitWord}, driver_ignores_word);
  list.named("driver-stream-sync-done-while-word",
             "cuStreamSynchronize does not wait for a stream that waits for a "
             "word",
             {"cudaStreamSynchronize", kWaitWord, "cudaStreamDestroy"},
             driver_ignores_word);
  list.named("driver-stream-query-done-while-word",
             "cuStreamQuery reports a stream that waits for a word as done",
             {"cudaStreamQuery", kWaitWord, "cudaStreamDestroy"},
             driver_ignores_word);
  list.named(
      "default-skips-word-of-blocking",
      "the null stream does not wait for a blocking stream that waits "
      "for a word",
      {kWaitWord, "cudaLaunchKernel", "cudaMemsetAsync", "cudaMemcpyAsync"},
      other_kind_skips_word<false>);
  list.named(
      "blocking-skips-word-of-default",
      "a blocking stream does not wait for the null stream that waits "
      "for a word",
      {kWaitWord, "cudaLaunchKernel", "cudaMemsetAsync", "cudaMemcpyAsync"},
      other_kind_skips_word<true>);
  list.named("sync-copy-skips-word",
             "a synchronous copy does not wait, although the null stream waits "
             "for a word",
             {"cudaMemcpy", kWaitWord}, sync_copy_skips_word);
  list.named("record-submitted-late",
             "a process submits a record of an event only with its next call",
             {kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy,
              kWait, kQuery, kSync, "cudaStreamQuery", "cudaStreamSynchronize",
              "cudaStreamDestroy", "cudaDeviceSynchronize", "cudaLaunchKernel",
              "cudaMemcpyAsync", "cudaMemsetAsync", kWaitWord},
             record_submitted_late);
  constexpr auto kStreamDestroy = "cudaStreamDestroy";
  list.named("wait-for-chained-record-lost",
             "a stream does not wait for an interprocess event that its "
             "process has recorded after a wait for another process's record",
             {kWait, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
              kDestroy, kStreamDestroy},
             chained_stream_wait_lost<true>);
  list.named("wait-for-chained-plain-record-lost",
             "a stream does not wait for an event of its process alone that "
             "was recorded after a wait for another process's record",
             {kWait, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
              kDestroy, kStreamDestroy},
             chained_stream_wait_lost<false>);
  list.named("host-wait-for-chained-record-lost",
             "a host does not wait for an interprocess event that its process "
             "has recorded after a wait for another process's record",
             {kSync, kWait, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
              kDestroy, kStreamDestroy},
             chained_host_wait_lost<true>);
  list.named("host-wait-for-chained-plain-record-lost",
             "a host does not wait for an event of its process alone that was "
             "recorded after a wait for another process's record",
             {kSync, kWait, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
              kDestroy, kStreamDestroy},
             chained_host_wait_lost<false>);
  list.named("exporter-wait-holds-no-host-functions",
             "in the exporter, a host function after a wait for an importer's "
             "record does not wait",
             {"cudaLaunchHostFunc", kWait, kRecord, kRecordFlags, kCreate,
              kExport, kOpenEvent, kDestroy, kStreamDestroy},
             exporters_host_function_ahead<false>);
  list.named("exporter-wait-holds-no-driver-host-functions",
             "in the exporter, a host function of the driver API after a wait "
             "for an importer's record does not wait",
             {"cudaLaunchHostFunc", kWait, kRecord, kRecordFlags, kCreate,
              kExport, kOpenEvent, kDestroy, kStreamDestroy},
             exporters_host_function_ahead<true>);
  list.named("exporter-device-sync-ignores-wait",
             "in the exporter, cudaDeviceSynchronize does not wait for a "
             "stream that waits for an importer's record",
             {"cudaDeviceSynchronize", kWait, kRecord, kRecordFlags, kCreate,
              kExport, kOpenEvent, kDestroy, kStreamDestroy},
             exporter_ignores_wait);
  list.named("exporter-context-sync-ignores-wait",
             "in the exporter, cuCtxSynchronize does not wait for a stream "
             "that waits for an importer's record",
             {"cuCtxSynchronize", kWait, kRecord, kRecordFlags, kCreate,
              kExport, kOpenEvent, kDestroy, kStreamDestroy},
             exporter_ignores_wait);
  list.named("exporter-driver-stream-sync-ignores-wait",
             "in the exporter, cuStreamSynchronize does not wait for a stream "
             "that waits for an importer's record",
             {"cudaStreamSynchronize", kWait, kRecord, kRecordFlags, kCreate,
              kExport, kOpenEvent, kDestroy, kStreamDestroy},
             exporter_ignores_wait);
  list.named("exporter-driver-stream-query-ignores-wait",
             "in the exporter, cuStreamQuery reports a stream that waits for "
             "an importer's record as done",
             {"cudaStreamQuery", kWait, kRecord, kRecordFlags, kCreate, kExport,
              kOpenEvent, kDestroy, kStreamDestroy},
             exporter_ignores_wait);
  list.named(
      "wait-ends-after-512-records",
      "a stream's wait for an imported event ends when the event was recorded "
      "512 times since the call",
      {kWait, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      wait_ends_after_many_records);
  list.named("import-set-ahead-of-default",
             "cudaMemset of opened memory does not wait for the earlier work "
             "in the default stream",
             {"cudaMemset", kOpen, kClose}, import_set_ahead);
  list.named("import-copy-from-host-ahead",
             "a synchronous copy from the host into opened memory does not "
             "wait for the earlier work in the default stream",
             {"cudaMemcpy", kOpen, kClose}, import_copy_ahead<false>);
  list.named("import-copy-from-device-ahead",
             "a synchronous copy from memory of a GPU into opened memory does "
             "not wait for the earlier work in the default stream",
             {"cudaMemcpy", kOpen, kClose}, import_copy_ahead<true>);
  list.named("import-copy-reads-late",
             "a synchronous copy from the host into opened memory returns "
             "before it has read its source, if the default stream has work",
             {"cudaMemcpy", kOpen, kClose}, import_copy_reads_late);
  list.named("import-set-of-nothing-sets-word",
             "a memset of 0 bytes of opened memory sets 4 bytes",
             {"cudaMemset", "cudaMemsetAsync", kOpen, kClose},
             nothing_is_a_word);
  list.named("import-copy-of-nothing-copies-word",
             "a copy of 0 bytes into opened memory copies 4 bytes",
             {"cudaMemcpy", "cudaMemcpyAsync", kOpen, kClose},
             nothing_is_a_word);
  list.named("refused-elapsed-completes",
             "a refused question for the time between two events completes a "
             "record that is pending",
             {"cudaEventElapsedTime", "cuEventElapsedTime", "cudaEventQuery",
              kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
             refused_elapsed_completes);
  list.named("refused-launch-completes",
             "a refused launch with an event as an attribute completes the "
             "pending record of the event",
             {"cudaLaunchKernelExC", "cudaEventQuery", kRecord, kRecordFlags,
              kCreate, kExport, kOpenEvent, kDestroy},
             refused_launch_completes);
  list.named("memory-export-makes-primary-current",
             "after the export of memory, the primary context of the GPU is "
             "current",
             {"cudaIpcGetMemHandle"}, makes_primary_current);
  list.named("event-export-makes-primary-current",
             "after the export of an event, the primary context of the GPU is "
             "current",
             {kExport}, makes_primary_current);
  list.named("event-open-makes-primary-current",
             "after the open of an event, the primary context of the GPU is "
             "current",
             {kOpenEvent}, makes_primary_current);
}

}  // namespace ipclab::faults
