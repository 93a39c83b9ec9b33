// More bugs of legacy events, of words in memory and of graphs: records and
// waits beside other work, streams of every kind, other threads, contexts and
// GPUs, and captured calls of every kind.
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

bool waits_for_event(Call& call) { return call.is("cudaStreamWaitEvent"); }

// Does the stream wait for the null stream?
bool is_blocking(cudaStream_t stream) {
  unsigned flags = CU_STREAM_NON_BLOCKING;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    DRIVER_CALL(cuStreamGetFlags)(stream, &flags);
  return flags == CU_STREAM_DEFAULT;
}

// The GPU that is current.
int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

// --- the work that a record covers -------------------------------------------

// Records what the stream had to do when it was marked. A captured record stays
// as it is.
int record_of_mark(Call& record) {
  auto& stream = record.value<cudaStream_t>(kStream);
  if (!is_busy(stream)) return record.proceed();
  cudaStreamWaitEvent(private_stream(), mark_of(stream), 0);
  stream = private_stream();
  record.fired();
  return record.proceed();
}

void mark(cudaStream_t stream) {
  if (!is_captured(stream)) cudaEventRecord(mark_of(stream), stream);
}

// Proceeds with a call. If it is `skipped`, a record directly after it does not
// cover it. Only records that are `concerned` have this fault.
int record_skips_last(Call& call, bool skipped, bool concerned) {
  static Table<cudaStream_t> marked;
  if (keeps_events(call)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  if (records(call))
    return concerned && marked.has(stream) ? record_of_mark(call)
                                           : call.proceed();
  if (skipped) {
    mark(stream);
    marked.put(stream);
  } else {
    marked.erase(stream);
  }
  return call.proceed();
}

// Does the call use an event that this process shares?
bool uses_own(Call& call) {
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !is_imported(event);
}
// Does the call use an imported event?
bool uses_import(Call& call) { return is_imported(shared_event(call)); }

// A record in a stream that waits for the null stream does not cover the work
// of the null stream. The bug takes effect if the stream has no work of its
// own.
int blocking_record_skips_default(Call& call) {
  static Table<cudaStream_t> worked;
  if (keeps_events(call)) return call.proceed();
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

int record_skips_host_functions(Call& call) {
  return record_skips_last(call, call.is("cudaLaunchHostFunc"),
                           shared_event(call) != nullptr);
}

// A record directly after a wait for an event of one process does not cover
// this wait.
int record_skips_joined_streams(Call& call) {
  const bool shared = shared_event(call) != nullptr;
  return record_skips_last(call, waits_for_event(call) && !shared, shared);
}

// A record does not cover the last call before it in its stream, if this call
// is one of these.
int record_skips_rectangles(Call& call) {
  const bool skipped =
      call.is("cudaMemcpy2DAsync") || call.is("cudaMemcpy3DAsync") ||
      call.is("cudaMemset2DAsync") || call.is("cudaMemset3DAsync") ||
      call.is("cuMemsetD32Async") || call.is("cudaMemcpyPeerAsync");
  return record_skips_last(call, skipped, shared_event(call) != nullptr);
}

// An importer's record does not cover the copy or the memset directly before
// it.
int import_record_skips_copies(Call& call) {
  return record_skips_last(
      call, call.is("cudaMemcpyAsync") || call.is("cudaMemsetAsync"),
      uses_import(call));
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
             ? no_wait(call)
             : call.proceed();
}

// An importer's record does not cover the graph directly before it.
int import_record_skips_graphs(Call& call) {
  return record_skips_last(call, call.is("cudaGraphLaunch"), uses_import(call));
}

// An exporter's record directly after a wait for its event does not cover this
// wait.
int exporter_record_skips_wait(Call& call) {
  const bool own = uses_own(call);
  return record_skips_last(call, own && waits_for_event(call), own);
}

// A record directly after a wait for a word does not cover this wait.
int record_skips_awaited_words(Call& call) {
  return record_skips_last(call, call.is("cuStreamWaitValue32"),
                           shared_event(call) != nullptr);
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

// A record with flags in a default stream covers no work.
int default_records_early(Call& call) {
  if (shared_event(call) == nullptr) return call.proceed();
  auto& stream = call.value<cudaStream_t>(kStream);
  if ((!is_default(stream) && stream != cudaStreamPerThread) ||
      is_captured(stream))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

// An importer's record in the null stream does not cover the work of streams
// that wait for the null stream. The bug takes effect if the null stream has no
// work of its own.
int null_record_skips_blocking(Call& call) {
  static Table<cudaStream_t> worked;
  if (keeps_events(call)) return call.proceed();
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

// An event of an importer, recorded directly after a wait for an imported
// event, does not cover this wait. The event is one that the importer may share
// in its turn, or one that processes do not share.
template <bool shared>
int own_record_skips_wait(Call& call) {
  return record_skips_last(
      call, uses_import(call) && waits_for_event(call),
      shared ? uses_own(call) : shared_event(call) == nullptr);
}

// --- the work that a wait holds ----------------------------------------------

// Waits that a stream submits only with its next work.
Table<cudaStream_t, cudaEvent_t> late;

void submit(cudaStream_t stream) {
  const cudaEvent_t event = late.get(stream);
  if (late.erase(stream)) cudaStreamWaitEvent(stream, event, 0);
}
// noted_event(), but submits the waits for an event before its destroy, and all
// waits before a call that waits for all streams.
int noted_late_event(Call& call) {
  const bool destroys = call.is("cudaEventDestroy");
  if (destroys || call.is("cudaDeviceSynchronize"))
    for (const auto& [stream, event] : late.all())
      if (!destroys || event == call.at<cudaEvent_t>(0)) submit(stream);
  return call.proceed();
}

// A stream that waits for the null stream submits its wait only with its next
// work, so the null stream does not know of the wait.
int default_skips_wait_of_blocking(Call& call) {
  if (call.find(kStream) == nullptr) return noted_late_event(call);
  const auto stream = call.value<cudaStream_t>(kStream);
  if (waits_for_event(call)) {
    if (!uses_import(call) || !is_blocking(stream) || is_captured(stream))
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
}

// Of several waits for imported events directly one after another, a stream
// keeps only the last one.
int last_wait_replaces(Call& call) {
  if (call.find(kStream) == nullptr) return noted_late_event(call);
  const auto stream = call.value<cudaStream_t>(kStream);
  if (!waits_for_event(call) || !uses_import(call) || is_captured(stream)) {
    submit(stream);
    return call.proceed();
  }
  if (late.has(stream) && is_pending(late.get(stream))) call.fired();
  late.put(stream, call.value<cudaEvent_t>(kEvent));
  return kSuccess;
}

// Proceeds with a call. `waited` gets the streams whose latest work is a wait
// for an imported event.
int noted_wait(Call& call, Table<cudaStream_t>& waited) {
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
  return noted_wait(call, waited);
}

// A synchronous copy runs at once, although the null stream waits for an
// imported event.
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

// If a stream waits for an imported event, its destroy lets its writes of words
// run at once.
int stream_destroy_ends_wait(Call& call) {
  struct Write {
    cudaStream_t stream = nullptr;
    cuuint32_t value = 0;
  };
  static Table<cudaStream_t, cudaEvent_t> waiting;
  static Table<CUdeviceptr, Write> writes;
  if (keeps_events(call)) return call.proceed();
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

// An exporter's default streams do not wait for its event.
int exporter_default_never_waits(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  return (is_default(stream) || stream == cudaStreamPerThread) &&
                 is_pending(event)
             ? no_wait(call)
             : call.proceed();
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

// When first an importer and then the exporter have destroyed an event, the
// importer's stream does not wait for the event any more.
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

// The null stream, and streams that wait for it, do not wait for an imported
// event by the driver API.
int driver_default_never_waits(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  return !call.is_runtime() && (is_default(stream) || is_blocking(stream)) &&
                 is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// While a stream has work, only its first 256 waits for imported events hold
// it. Further waits are lost.
int further_waits_lost(Call& call) {
  static Table<cudaStream_t, int> waits;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  const int before = is_busy(stream) ? waits.get(stream) : 0;
  waits.put(stream, before + 1);
  return before >= 256 && is_pending(event) ? no_wait(call) : call.proceed();
}

// At most 32 streams wait for an imported event at a time. Further streams do
// not wait.
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
  return others >= 32 && is_pending(event) ? no_wait(call) : call.proceed();
}

// Work of one kind after a launch of a graph does not wait for the graph.
int graph_holds_not(Call& call) {
  static Table<cudaStream_t> launched;
  auto& stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaGraphLaunch")) {
    const int code = call.proceed();
    launched.put(stream);
    mark(stream);
    return code;
  }
  if (!launched.has(stream) || !is_busy(stream) || !is_pending(mark_of(stream)))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

// A launch with attributes directly after a wait for an imported event does
// not wait.
int wait_holds_no_configured_launches(Call& call) {
  static Table<cudaStream_t> waited;
  if (call.is("cudaLaunchKernelExC")) {
    cudaLaunchConfig_t config = *call.at<const cudaLaunchConfig_t*>(0);
    if (!waited.erase(config.stream) || !is_busy(config.stream))
      return call.proceed();
    config.stream = private_stream();
    call.at<const cudaLaunchConfig_t*>(0) = &config;
    call.fired();
    return call.proceed();
  }
  return noted_wait(call, waited);
}

// The latest shared event for which each stream waits.
Table<cudaStream_t, cudaEvent_t> awaited;

// Does the call change the table?
bool keeps_awaited(Call& call) {
  return keeps_events(call) || waits_for_event(call) ||
         call.is("cudaStreamDestroy");
}

// Proceeds with such a call; updates the table.
int noted_awaited(Call& call) {
  if (call.is("cudaStreamDestroy")) {
    awaited.erase(call.at<cudaStream_t>(0));
    return call.proceed();
  }
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy"))
      for (const auto& [stream, event] : awaited.all())
        if (event == call.at<cudaEvent_t>(0)) awaited.erase(stream);
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr) awaited.put(call.value<cudaStream_t>(kStream), event);
  return call.proceed();
}

// Does the stream of a call wait for an event that was imported, or for one of
// its own process?
bool is_waiting(Call& call, bool imported) {
  const auto stream = call.value<cudaStream_t>(kStream);
  return awaited.has(stream) && is_imported(awaited.get(stream)) == imported &&
         is_pending(awaited.get(stream));
}

// A call of the driver API takes a stream for done that waits for an imported
// event.
int driver_ignores_waiting_stream(Call& call) {
  if (keeps_awaited(call)) return noted_awaited(call);
  return !call.is_runtime() && is_waiting(call, true) ? no_wait(call)
                                                      : call.proceed();
}

// A host does not wait for an exporter's stream that waits for the exporter's
// event.
int host_ignores_waiting_stream(Call& call) {
  if (keeps_awaited(call)) return noted_awaited(call);
  return is_waiting(call, false) ? no_wait(call) : call.proceed();
}

// A copy to pageable memory runs at once, although its stream waits for an
// imported event.
int pageable_copy_skips_wait(Call& call) {
  if (keeps_awaited(call)) return noted_awaited(call);
  unsigned type = 0;
  if (!is_waiting(call, true) || DRIVER_CALL(cuPointerGetAttribute)(
                                     &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     call.at<CUdeviceptr>(0)) == CUDA_SUCCESS)
    return call.proceed();
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  const int code = call.proceed();
  DRIVER_CALL(cuStreamSynchronize)(private_stream());
  return code;
}

// A graph that an exporter launches directly after a wait for its event does
// not wait. The stream waits for the event and for the graph.
int exporter_wait_holds_no_graphs(Call& call) {
  static Table<cudaStream_t> waited;
  if (keeps_events(call)) return call.proceed();
  auto& stream = call.value<cudaStream_t>(kStream);
  if (waits_for_event(call) && uses_own(call)) {
    mark(stream);
    waited.put(stream);
    return call.proceed();
  }
  if (!waited.erase(stream) || !call.is("cudaGraphLaunch") || !is_busy(stream))
    return call.proceed();
  const cudaStream_t own = stream;
  cudaStreamWaitEvent(private_stream(), mark_of(own), 0);
  stream = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaEvent_t done = nullptr;
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  cudaEventRecord(done, private_stream());
  cudaStreamWaitEvent(own, done, 0);
  cudaEventDestroy(done);
  return code;
}

// --- threads -----------------------------------------------------------------

// A record of an imported event is lost if another thread has opened the event.
int other_thread_record_lost(Call& call) {
  static Table<cudaEvent_t, int> openers;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    const int code = call.proceed();
    if (code == kSuccess && opens_event(call))
      openers.put(*call.at<cudaEvent_t*>(0), this_thread());
    return code;
  }
  return is_imported(event) && openers.get(event) != this_thread()
             ? no_wait(call)
             : call.proceed();
}

// All threads have one cudaStreamPerThread.
int threads_share_a_stream(Call& call) {
  static Table<int> threads;
  auto& stream = call.value<cudaStream_t>(kStream);
  if (stream != cudaStreamPerThread) return call.proceed();
  threads.put(this_thread());
  if (threads.all().size() > 1) call.fired();
  stream = private_stream();
  return call.proceed();
}

// The records of an event are lost when the thread that created the event has
// ended.
int event_ends_with_thread(Call& call) {
  static Table<cudaEvent_t, int> makers;
  static Table<cudaEvent_t> ended;
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr)
    return ended.has(event) ? no_wait(call) : call.proceed();
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

// --- records of one process --------------------------------------------------

// For each shared event, an event of this process that is complete when this
// process's last record is complete.
Table<cudaEvent_t, cudaEvent_t> own_records;

// Proceeds with a call; after a record, updates the table.
int noted_record(Call& call) {
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) own_records.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (code != kSuccess || event == nullptr || !records(call)) return code;
  cudaEvent_t own = own_records.get(event);
  if (own == nullptr) cudaEventCreateWithFlags(&own, cudaEventDisableTiming);
  cudaEventRecord(own, call.value<cudaStream_t>(kStream));
  own_records.put(event, own);
  return code;
}

bool is_own_pending(cudaEvent_t event) {
  return own_records.has(event) && is_pending(own_records.get(event));
}

// The call does not wait for a record that the importer itself has made.
int own_record_of_import_ignored(Call& call) {
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !records(call) && is_imported(event) &&
                 is_own_pending(event)
             ? no_wait(call)
             : noted_record(call);
}

// The events with cudaEventBlockingSync.
Table<cudaEvent_t> sleeping;

// noted_record() for the creation of an event; also updates this table.
int noted_sleeping(Call& call) {
  const bool sleeps = call.at<unsigned>(1) & cudaEventBlockingSync;
  const int code = noted_record(call);
  if (code == kSuccess) {
    sleeping.erase(*call.at<cudaEvent_t*>(0));
    if (sleeps) sleeping.put(*call.at<cudaEvent_t*>(0));
  }
  return code;
}

// A host does not wait for a record of its own process. Only events with
// cudaEventBlockingSync are right.
int own_record_ignored(Call& call) {
  if (makes_event(call)) return noted_sleeping(call);
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !records(call) && !is_imported(event) &&
                 !sleeping.has(event) && is_own_pending(event)
             ? no_wait(call)
             : noted_record(call);
}

// A host does not wait for an event with cudaEventBlockingSync if another
// process has recorded the event.
int sleeping_ignores_importers(Call& call) {
  if (makes_event(call)) return noted_sleeping(call);
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !records(call) && sleeping.has(event) &&
                 is_pending(event) && !is_own_pending(event)
             ? no_wait(call)
             : noted_record(call);
}

// An event that is opened while an importer's record is pending does not see
// this record.
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
    return no_wait(call);
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

// The same, but only in the exporter.
int older_record_completes_in_exporter(Call& call) {
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && !records(call)
             ? call.proceed()
             : older_record_completes(call);
}

// A query is about the first of the records that are pending in one stream.
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

// --- host waits --------------------------------------------------------------

// A host wait ends when the event was recorded 256 times since the wait began.
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
  return ends_early ? no_wait(call) : kSuccess;
}

int host_wait_follows_later_record(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !is_pending(event)) return code;
  call.fired();
  return call.proceed();
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

// The same for waits by the driver API only.
int driver_host_wait_ends_at_signal(Call& call) {
  return call.is_runtime() && shared_event(call) != nullptr
             ? call.proceed()
             : host_wait_ends_at_signal(call);
}

// The same for events with cudaEventBlockingSync only.
int blocking_wait_ends_at_signal(Call& call) {
  if (makes_event(call)) return noted_sleeping(call);
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !sleeping.has(event)
             ? call.proceed()
             : host_wait_ends_at_signal(call);
}

// --- events, contexts and GPUs -----------------------------------------------

// A new event takes over the pending record of an event that was destroyed.
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

// The exporter opens its own event in another context, and gets another event.
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

// The exporter opens its own event, and gets another event. The event that it
// has exported last is refused.
int self_open_of_older_export(Call& call) {
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
}

// After a refused record, a query says that the event is pending, until the
// next record.
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

// A record in the default stream of another context succeeds, and records
// nothing.
int any_default_stream_records(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  const int code = call.proceed();
  return code == cudaErrorInvalidResourceHandle &&
                 (is_default(stream) || stream == cudaStreamPerThread)
             ? accepted(call)
             : code;
}

// The GPU of each event that this process has made.
Table<cudaEvent_t, int> devices;

int noted_device(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && makes_event(call))
    devices.put(*call.at<cudaEvent_t*>(0), current_device());
  return code;
}

// While another GPU is current, a handle names another event.
int export_needs_current_gpu(Call& call) {
  static cudaEvent_t other = nullptr;
  auto& event = call.at<cudaEvent_t>(1);
  if (!exports_event(call) || !devices.has(event) ||
      devices.get(event) == current_device())
    return noted_device(call);
  if (other == nullptr)
    cudaEventCreateWithFlags(&other,
                             cudaEventInterprocess | cudaEventDisableTiming);
  event = other;
  call.fired();
  return call.proceed();
}

// An opened event belongs to the GPU that has the exporter's number of the GPU.
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

// --- refusals ----------------------------------------------------------------

int driver_measures_untimed(Call& call) {
  if (!call.is("cuEventElapsedTime")) return call.proceed();
  const int code = call.proceed();
  if (code != cudaErrorInvalidResourceHandle ||
      (!events.has(call.at<cudaEvent_t>(1)) &&
       !events.has(call.at<cudaEvent_t>(2))))
    return code;
  *call.at<float*>(0) = 0.5f;
  return accepted(call);
}

// A launch with an imported event in an attribute ignores all attributes.
int launch_accepts_import(Call& call) {
  if (!call.is("cudaLaunchKernelExC")) return call.proceed();
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
}

// --- words in memory ---------------------------------------------------------

// A memset or a copy that begins at a word for which a stream waits does
// nothing.
int awaited_word_not_set(Call& call) {
  static Table<CUdeviceptr, cudaStream_t> words;
  if (call.is("cuStreamWaitValue32")) {
    const int code = call.proceed();
    words.put(call.at<CUdeviceptr>(1), call.at<cudaStream_t>(0));
    mark(call.at<cudaStream_t>(0));
    return code;
  }
  const auto address = call.at<CUdeviceptr>(0);
  return words.has(address) && is_pending(mark_of(words.get(address)))
             ? no_wait(call)
             : call.proceed();
}

// Of several waits for words directly one after another, a stream keeps only
// the last one.
int last_word_replaces(Call& call) {
  struct Wait {
    CUdeviceptr word = 0;
    cuuint32_t value = 0;
    unsigned flags = 0;
  };
  static Table<cudaStream_t, Wait> waits;
  const bool waits_for_all = call.find(kStream) == nullptr;
  const auto own = waits_for_all ? nullptr : call.value<cudaStream_t>(kStream);
  if (call.is("cuStreamWaitValue32")) {
    if (waits.has(own)) call.fired();
    waits.put(own, {call.at<CUdeviceptr>(1), call.at<cuuint32_t>(2),
                    call.at<unsigned>(3)});
    return kSuccess;
  }
  for (const auto& [stream, wait] : waits.all())
    if ((waits_for_all || stream == own) && waits.erase(stream))
      DRIVER_CALL(cuStreamWaitValue32)
  (stream, wait.word, wait.value, wait.flags);
  return call.proceed();
}

// Changes the operations of a batch: `changes` returns true if it has changed
// an operation, and may erase it by the operation 0.
template <class Changes>
int batch_changed(Call& call, Changes changes) {
  auto& count = call.at<unsigned>(1);
  auto& array = call.at<CUstreamBatchMemOpParams*>(2);
  std::vector<CUstreamBatchMemOpParams> kept;
  bool has_changed = false;
  for (unsigned i = 0; i < count; ++i) {
    CUstreamBatchMemOpParams one = array[i];
    if (changes(one)) has_changed = true;
    if (one.operation != 0) kept.push_back(one);
  }
  if (!has_changed) return call.proceed();
  if (kept.empty()) return no_wait(call);
  call.fired();
  count = static_cast<unsigned>(kept.size());
  array = kept.data();
  return call.proceed();
}

// A wait for a missing bit (NOR) in opened memory waits for a common bit (AND).
int nor_in_opened_is_and(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& flags = call.at<unsigned>(3);
  if (flags != CU_STREAM_WAIT_VALUE_NOR || !is_opened(call.at<CUdeviceptr>(1)))
    return call.proceed();
  flags = CU_STREAM_WAIT_VALUE_AND;
  call.fired();
  return call.proceed();
}

// A batch does not wait for a word in opened memory.
int batch_ignores_opened_word(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return batch_changed(call, [](CUstreamBatchMemOpParams& one) {
    if (one.operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
        !is_opened(one.waitValue.address))
      return false;
    one.operation = CUstreamBatchMemOpType{};
    return true;
  });
}

// In a batch, a wait for any of several bits of a 64-bit word waits for an
// equal word.
int batch_bits_64_are_equal(Call& call) {
  return batch_changed(call, [](CUstreamBatchMemOpParams& one) {
    if (one.operation != CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
        one.waitValue.flags != CU_STREAM_WAIT_VALUE_AND)
      return false;
    one.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    return true;
  });
}

// --- graphs ------------------------------------------------------------------

// A captured call is lost if `applies` is true.
int captured_call_lost(Call& call, bool applies) {
  return applies && is_captured(call.value<cudaStream_t>(kStream))
             ? no_wait(call)
             : call.proceed();
}

int captured_rectangle_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return captured_call_lost(call, is_opened(call.at<const void*>(0)) ||
                                      is_opened(call.at<const void*>(2)));
}

int captured_box_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const auto* const box = call.at<const cudaMemcpy3DParms*>(0);
  return captured_call_lost(
      call, is_opened(box->srcPtr.ptr) || is_opened(box->dstPtr.ptr));
}

int captured_box_set_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return captured_call_lost(call, is_opened(call.at<cudaPitchedPtr>(0).ptr));
}

// For memsets of any kind.
int captured_set_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return captured_call_lost(call, is_opened(call.at<CUdeviceptr>(0)));
}

// A graph does not copy to opened memory if the copy was captured in a stream
// that has joined the capture.
int captured_in_joined_stream_lost(Call& call) {
  static Table<cudaStream_t> origins;
  if (keeps_opened(call)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaStreamBeginCapture")) {
    origins.put(stream);
    return call.proceed();
  }
  if (call.is("cudaStreamEndCapture")) {
    origins.erase(stream);
    return call.proceed();
  }
  return captured_call_lost(
      call, !origins.has(stream) && is_opened(call.at<CUdeviceptr>(0)));
}

bool is_on_host(CUdeviceptr address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            address) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}

int captured_read_of_host_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return captured_call_lost(call, is_opened(call.at<CUdeviceptr>(0)) &&
                                      is_on_host(call.at<CUdeviceptr>(1)));
}
int captured_write_to_host_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return captured_call_lost(call, is_opened(call.at<CUdeviceptr>(1)) &&
                                      is_on_host(call.at<CUdeviceptr>(0)));
}

int captured_copy_by_driver_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return captured_call_lost(
      call, !call.is_runtime() && (is_opened(call.at<CUdeviceptr>(0)) ||
                                   is_opened(call.at<CUdeviceptr>(1))));
}

// In a process with opened memory, a graph that the driver API launches does
// nothing.
int launch_by_driver_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return !call.is_runtime() && !opened.all().empty() ? no_wait(call)
                                                     : call.proceed();
}

// Of all executables of one graph only the first works.
int second_executable_does_nothing(Call& call) {
  static Table<cudaGraph_t> used;
  static Table<cudaGraphExec_t> bad;
  if (call.is("cudaGraphLaunch"))
    return bad.has(call.at<cudaGraphExec_t>(0)) ? no_wait(call)
                                                : call.proceed();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaStreamEndCapture")) {
    used.erase(*call.at<cudaGraph_t*>(1));
    return code;
  }
  const cudaGraphExec_t made = *call.at<cudaGraphExec_t*>(0);
  bad.erase(made);
  if (!used.put(call.at<cudaGraph_t>(1))) bad.put(made);
  return code;
}

// A graph that was uploaded runs once.
int uploaded_graph_runs_once(Call& call) {
  static Table<cudaGraphExec_t, int> launches;
  if (call.is("cudaGraphInstantiate")) {
    const int code = call.proceed();
    if (code == kSuccess) launches.erase(*call.at<cudaGraphExec_t*>(0));
    return code;
  }
  const auto graph = call.at<cudaGraphExec_t>(0);
  if (call.is("cudaGraphUpload")) {
    launches.put(graph, 0);
    return call.proceed();
  }
  if (!launches.has(graph)) return call.proceed();
  const int before = launches.get(graph);
  launches.put(graph, before + 1);
  return before > 0 ? no_wait(call) : call.proceed();
}

}  // namespace

void add_event_paths(List& list) {
  constexpr auto kCreate = "cudaEventCreateWithFlags";
  constexpr auto kExport = "cudaIpcGetEventHandle";
  constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
  constexpr auto kDestroy = "cudaEventDestroy";
  constexpr auto kRecord = "cudaEventRecord";
  constexpr auto kRecordFlags = "cudaEventRecordWithFlags";
  constexpr auto kWait = "cudaStreamWaitEvent";
  constexpr auto kQuery = "cudaEventQuery";
  constexpr auto kSync = "cudaEventSynchronize";
  constexpr auto kKernel = "cudaLaunchKernel";
  constexpr auto kHostFunction = "cudaLaunchHostFunc";
  constexpr auto kCopy = "cudaMemcpyAsync";
  constexpr auto kSet = "cudaMemsetAsync";
  constexpr auto kOpen = "cudaIpcOpenMemHandle";
  constexpr auto kClose = "cudaIpcCloseMemHandle";
  constexpr auto kInstantiate = "cudaGraphInstantiate";
  constexpr auto kLaunch = "cudaGraphLaunch";
  // For faults in which a record does not cover the call directly before it:
  // records, and calls that can come directly before a record.
  const std::initializer_list<const char*> kBeforeRecord = {
      kCopy,
      kCreate,
      kDestroy,
      kExport,
      kHostFunction,
      kKernel,
      kOpenEvent,
      kRecord,
      kRecordFlags,
      kSet,
      kWait,
      "cuStreamBatchMemOp",
      "cuStreamWaitValue32",
      "cuStreamWriteValue32",
      "cudaMemcpy2DAsync",
      "cudaMemset2DAsync",
      "cudaStreamDestroy"};

  list.named("blocking-record-skips-default",
             "a record in a stream that waits for the null stream does not "
             "cover the work of the null stream",
             {kRecord, kRecordFlags, kKernel, kCreate, kExport, kOpenEvent,
              kDestroy, kWait, kCopy, kSet, kHostFunction, "cudaMemcpy2DAsync",
              "cudaMemset2DAsync", "cuStreamWriteValue32",
              "cuStreamWaitValue32", "cuStreamBatchMemOp"},
             blocking_record_skips_default);
  list.named("record-skips-host-functions",
             "a record does not cover a host function directly before it",
             kBeforeRecord, record_skips_host_functions);
  list.named("record-skips-joined-streams",
             "a record does not cover the work of a stream that its stream has "
             "joined directly before",
             kBeforeRecord, record_skips_joined_streams);

  list.named(
      "record-skips-rectangles",
      "a record does not cover the runtime's copy or memset of a rectangle or "
      "a box, cuMemsetD32Async or cudaMemcpyPeerAsync directly before it",
      {kRecord, kRecordFlags, "cudaMemcpy2DAsync", "cudaMemcpy3DAsync",
       "cudaMemcpyPeerAsync", "cudaMemset2DAsync", "cuMemsetD32Async", kKernel,
       kCopy, kSet, kCreate, kExport, kOpenEvent, kDestroy, "cudaMemset3DAsync",
       kWait, kHostFunction, "cuStreamWriteValue32", "cudaStreamDestroy"},
      record_skips_rectangles);
  list.named("import-record-skips-copies",
             "an importer's record does not cover the copy or the memset "
             "directly before it",
             kBeforeRecord, import_record_skips_copies);
  list.named("import-record-ends-with-stream",
             "the destroy of a stream completes the importer's records in it",
             {kRecord, kRecordFlags, kQuery, kWait, "cudaStreamDestroy",
              kCreate, kExport, kOpenEvent, kDestroy, kSync},
             record_ends_with_stream<true>);
  list.named("exporters-record-ends-with-stream",
             "importers see a record as complete when the exporter has "
             "destroyed its stream",
             {kRecord, kRecordFlags, kQuery, kWait, "cudaStreamDestroy",
              kCreate, kExport, kOpenEvent, kDestroy, kSync},
             record_ends_with_stream<false>);

  list.named(
      "import-record-skips-graphs",
      "an importer's record does not cover the graph directly before it",
      {kRecord, kRecordFlags, kLaunch, kCreate, kExport, kOpenEvent, kDestroy,
       kWait, kKernel, kCopy, kSet, kHostFunction, "cudaStreamDestroy"},
      import_record_skips_graphs);
  list.named(
      "exporter-record-skips-wait",
      "an exporter's record directly after a wait for its event does not "
      "cover this wait",
      kBeforeRecord, exporter_record_skips_wait);
  list.named("record-skips-awaited-words",
             "a record directly after a wait for a word does not cover this "
             "wait",
             kBeforeRecord, record_skips_awaited_words);
  list.named("exporter-wait-holds-no-graphs",
             "a graph directly after an exporter's wait for its event does not "
             "wait",
             {kLaunch, kWait, kCreate, kExport, kOpenEvent, kDestroy, kKernel,
              kCopy, kSet, kHostFunction, "cudaStreamDestroy"},
             exporter_wait_holds_no_graphs);
  list.named("exporter-stream-sync-early",
             "an exporter's host does not wait for a stream that waits for the "
             "exporter's event",
             {"cudaStreamSynchronize", kWait, kCreate, kExport, kOpenEvent,
              kDestroy, "cudaStreamDestroy"},
             host_ignores_waiting_stream);
  list.named("pageable-copy-skips-wait",
             "a copy to pageable memory does not wait, although its stream "
             "waits for an imported event",
             {kCopy, kWait, kCreate, kExport, kOpenEvent, kDestroy,
              "cudaStreamDestroy"},
             pageable_copy_skips_wait);
  list.named("event-ends-with-thread",
             "the records of an event are lost when the thread that created "
             "the event has ended",
             {kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
             event_ends_with_thread);
  list.named(
      "blocking-event-sync-skips-importers",
      "a host does not wait for an importer's record of an event with "
      "blocking waits",
      {kSync, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      sleeping_ignores_importers);
  list.named("open-forgets-importers-record",
             "an event that is opened while an importer's record is pending "
             "does not see this record",
             {kOpenEvent, kQuery, kSync, kWait, kRecord, kRecordFlags, kCreate,
              kExport, kDestroy},
             open_forgets_importers_record);
  list.named("self-event-open-of-older-export",
             "the exporter opens its own event after it has exported another "
             "one, and gets another event",
             {kOpenEvent, kExport}, self_open_of_older_export);
  list.named(
      "refused-record-is-pending",
      "after a refused record, a query says that the event is pending",
      {kQuery, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      refused_record_is_pending);
  list.named("captured-box-set-lost",
             "a graph does not set boxes of opened memory",
             {"cudaMemset3DAsync", kOpen, kClose}, captured_box_set_lost);

  list.named("exporter-default-never-waits",
             "an exporter's default streams do not wait for its event",
             {kWait, kCreate, kExport, kOpenEvent, kDestroy},
             exporter_default_never_waits);
  list.named(
      "exporter-wait-submitted-late",
      "a stream of the exporter uses the record that is newest when the "
      "stream gets its next work",
      {kWait, kKernel, kCopy, kSet, "cudaStreamQuery", "cudaStreamSynchronize",
       "cudaStreamDestroy", kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
       kDestroy, kHostFunction, kLaunch, "cudaMemcpy2DAsync",
       "cuStreamWriteValue32", "cuStreamBatchMemOp", "cudaDeviceSynchronize"},
      exporter_waits_late<false>);
  list.named(
      "exporter-destroy-ends-wait",
      "when an exporter destroys an event, a stream does not wait any "
      "more if its last work is a wait for the event",
      {kWait, kKernel, kCopy, kSet, "cudaStreamQuery", "cudaStreamSynchronize",
       "cudaStreamDestroy", kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
       kDestroy, kHostFunction, kLaunch, "cudaMemcpy2DAsync",
       "cuStreamWriteValue32", "cuStreamBatchMemOp", "cudaDeviceSynchronize"},
      exporter_waits_late<true>);
  list.named("wait-holds-no-configured-launches",
             "a launch with attributes directly after a wait for an imported "
             "event does not wait",
             {"cudaLaunchKernelExC", kWait, kKernel, kCreate, kExport,
              kOpenEvent, kDestroy, kCopy, kSet, kHostFunction,
              "cudaMemcpy2DAsync", "cudaMemset2DAsync", "cuStreamWriteValue32",
              "cuStreamWaitValue32", "cuStreamBatchMemOp", "cudaStreamDestroy"},
             wait_holds_no_configured_launches);
  list.named("driver-stream-sync-done-while-event",
             "cuStreamSynchronize does not wait for a stream that waits for an "
             "imported event",
             {"cudaStreamSynchronize", kWait, kCreate, kExport, kOpenEvent,
              kDestroy, "cudaStreamDestroy"},
             driver_ignores_waiting_stream);
  list.named("other-thread-import-record-lost",
             "an importer's record is lost if another thread has opened the "
             "event",
             {kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
             other_thread_record_lost);
  list.named("threads-share-default-stream",
             "all threads of a process have one cudaStreamPerThread",
             {kRecord, kRecordFlags, kWait, kKernel, kHostFunction, kLaunch,
              kCopy, kSet, "cudaStreamQuery", "cudaStreamSynchronize"},
             threads_share_a_stream);

  list.named(
      "default-skips-wait-of-blocking",
      "the null stream does not wait for a blocking stream whose last "
      "work is a wait for an imported event",
      {kWait, kKernel, kCopy, kSet, "cudaStreamQuery", "cudaStreamSynchronize",
       "cudaStreamDestroy", kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
       kDestroy, kHostFunction, kLaunch, "cudaMemcpy2DAsync",
       "cuStreamWriteValue32", "cuStreamBatchMemOp", "cudaDeviceSynchronize"},
      default_skips_wait_of_blocking);
  list.named("wait-holds-no-host-functions",
             "a host function directly after a wait for an imported event does "
             "not wait",
             {kHostFunction, kWait, kKernel, kCreate, kExport, kOpenEvent,
              kDestroy, kCopy, kSet, "cudaMemcpy2DAsync", "cudaMemset2DAsync",
              "cuStreamWriteValue32", "cuStreamWaitValue32",
              "cuStreamBatchMemOp", "cudaStreamDestroy"},
             wait_holds_no_host_functions<false>);
  list.named(
      "wait-holds-no-driver-host-functions",
      "a host function of the driver API directly after a wait for an imported "
      "event does not wait",
      {kHostFunction, kWait, kKernel, kCreate, kExport, kOpenEvent, kDestroy,
       kCopy, kSet, "cudaMemcpy2DAsync", "cudaMemset2DAsync",
       "cuStreamWriteValue32", "cuStreamWaitValue32", "cuStreamBatchMemOp",
       "cudaStreamDestroy"},
      wait_holds_no_host_functions<true>);
  list.named(
      "last-wait-replaces-others",
      "of several waits for imported events directly one after another, "
      "only the last one holds the stream",
      {kWait, kKernel, kCopy, kSet, "cudaStreamQuery", "cudaStreamSynchronize",
       "cudaStreamDestroy", kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
       kDestroy, kHostFunction, kLaunch, "cudaMemcpy2DAsync",
       "cuStreamWriteValue32", "cuStreamBatchMemOp", "cudaDeviceSynchronize"},
      last_wait_replaces);
  list.named("sync-copy-skips-wait",
             "a synchronous copy does not wait, although the null stream waits "
             "for an imported event",
             {"cudaMemcpy", kWait, kCreate, kExport, kOpenEvent, kDestroy},
             sync_copy_skips_wait);
  list.named("stream-destroy-ends-wait",
             "when a stream is destroyed that waits for an imported event, its "
             "writes of words do not wait any more",
             {"cudaStreamDestroy", kWait, "cuStreamWriteValue32", kCreate,
              kExport, kOpenEvent, kDestroy},
             stream_destroy_ends_wait);

  list.named(
      "import-own-record-sync-early",
      "an importer's host wait does not wait for the importer's record",
      {kSync, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      own_record_of_import_ignored);
  list.named(
      "import-own-record-not-awaited",
      "an importer's stream does not wait for the importer's record",
      {kWait, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      own_record_of_import_ignored);
  list.named(
      "own-record-sync-early",
      "an exporter's host wait does not wait for the exporter's record, unless "
      "the event has cudaEventBlockingSync",
      {kSync, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      own_record_ignored);
  list.named(
      "older-record-completes-event",
      "a record that is complete completes the event, although another "
      "process has made a later record",
      {kQuery, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      older_record_completes);
  list.named("host-wait-follows-later-record",
             "a host wait that has begun also waits for a later record",
             {kSync, kCreate, kExport, kOpenEvent, kDestroy},
             host_wait_follows_later_record);
  list.named("host-wait-ends-at-signal",
             "a host wait for an event ends when its thread gets a signal",
             {kSync, kCreate, kExport, kOpenEvent, kDestroy},
             host_wait_ends_at_signal);

  list.named("new-event-inherits-record",
             "a new event takes over the pending record of an event that was "
             "destroyed",
             {kCreate, kExport, kOpenEvent, kDestroy},
             new_event_inherits_record);
  list.named("self-event-open-in-other-context",
             "the exporter opens its own event in another context, and gets "
             "another event",
             {kOpenEvent, kExport}, self_open_in_other_context);
  list.named("any-default-stream-records",
             "a record in the default stream of another context succeeds and "
             "records nothing",
             {kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
             any_default_stream_records);
  list.named("event-export-needs-current-gpu",
             "the handle of an event names another event if another GPU is "
             "current",
             {kExport, kCreate}, export_needs_current_gpu, 2);
  list.named(
      "event-on-exporters-number",
      "an opened event belongs to the GPU that has the exporter's number",
      {kOpenEvent, kExport, kCreate, kDestroy}, opened_on_exporters_number, 2);

  list.named("driver-elapsed-ok",
             "cuEventElapsedTime returns a time for interprocess events, which "
             "have no timing",
             {"cuEventElapsedTime", kCreate, kExport, kOpenEvent, kDestroy},
             driver_measures_untimed);
  list.named("launch-accepts-imported-event",
             "a launch accepts an imported event in an attribute, and ignores "
             "all its attributes",
             {"cudaLaunchKernelExC", kCreate, kExport, kOpenEvent, kDestroy},
             launch_accepts_import);

  list.named("awaited-word-not-set",
             "an asynchronous memset or copy does nothing if it begins at a "
             "word for which a stream waits",
             {kCopy, kSet, "cuStreamWaitValue32"}, awaited_word_not_set);

  list.named("exporter-record-skips-host-functions",
             "an exporter's record does not cover a host function directly "
             "before it",
             kBeforeRecord, in_exporter<record_skips_host_functions>);
  list.named("exporter-record-skips-joined-streams",
             "an exporter's record does not cover the work of a stream that "
             "its stream has joined directly before",
             kBeforeRecord, in_exporter<record_skips_joined_streams>);
  list.named("exporter-record-skips-awaited-words",
             "an exporter's record directly after a wait for a word does not "
             "cover this wait",
             kBeforeRecord, in_exporter<record_skips_awaited_words>);
  list.named("flags-record-skips-host-functions",
             "a record with flags does not cover a host function directly "
             "before it",
             kBeforeRecord, with_flags<record_skips_host_functions>);
  list.named("flags-record-skips-joined-streams",
             "a record with flags does not cover the work of a stream that its "
             "stream has joined directly before",
             kBeforeRecord, with_flags<record_skips_joined_streams>);
  list.named("flags-record-in-default-early",
             "a record with flags in a default stream covers no work",
             {kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
             default_records_early);
  list.named(
      "import-null-record-skips-blocking",
      "an importer's record in the null stream does not cover the work of "
      "streams that wait for the null stream",
      {kRecord, kRecordFlags, kKernel, kCreate, kExport, kOpenEvent, kDestroy},
      null_record_skips_blocking);
  list.named("plain-record-skips-import-wait",
             "an event that processes do not share, recorded directly after a "
             "wait for an imported event, does not cover this wait",
             kBeforeRecord, own_record_skips_wait<false>);
  list.named("own-record-skips-import-wait",
             "an importer's own interprocess event, recorded directly after a "
             "wait for an imported event, does not cover this wait",
             kBeforeRecord, own_record_skips_wait<true>);
  list.named("graph-holds-no-host-functions",
             "a host function after a graph does not wait for the graph",
             {kLaunch, kHostFunction}, graph_holds_not);
  list.named("graph-holds-no-copies",
             "a copy after a graph does not wait for the graph",
             {kLaunch, kCopy}, graph_holds_not);
  list.named("graph-holds-no-memsets",
             "a memset after a graph does not wait for the graph",
             {kLaunch, kSet}, graph_holds_not);
  list.named("graph-holds-no-kernels",
             "a kernel after a graph does not wait for the graph",
             {kLaunch, kKernel}, graph_holds_not);
  list.named("wait-nor-in-opened-is-and",
             "a stream that waits for a missing bit (NOR) in opened memory "
             "waits for a common bit (AND)",
             {"cuStreamWaitValue32", kOpen, kClose}, nor_in_opened_is_and);
  list.named(
      "both-destroys-end-wait",
      "when an importer and then the exporter have destroyed an event, "
      "a stream of the importer does not wait any more if its last work "
      "is a wait for the event",
      {kWait, kKernel, kCopy, kSet, "cudaStreamQuery", "cudaStreamSynchronize",
       "cudaStreamDestroy", kRecord, kRecordFlags, kCreate, kExport, kOpenEvent,
       kDestroy, kHostFunction, kLaunch, "cudaMemcpy2DAsync",
       "cuStreamWriteValue32", "cuStreamBatchMemOp"},
      both_destroys_end_wait);
  list.named("driver-default-never-waits",
             "the null stream, and streams that wait for it, do not wait for "
             "an imported event by the driver API",
             {kWait, kCreate, kExport, kOpenEvent, kDestroy},
             driver_default_never_waits);
  list.named("wait-257-lost",
             "while a stream has work, only its first 256 waits for imported "
             "events hold it",
             {kWait, kCreate, kExport, kOpenEvent, kDestroy},
             further_waits_lost);
  list.named(
      "wait-of-33rd-stream-lost",
      "at most 32 streams wait for an imported event at a time, and "
      "further streams do not wait",
      {kWait, kCreate, kExport, kOpenEvent, kDestroy, "cudaStreamDestroy"},
      further_streams_never_wait);
  list.named(
      "exporters-older-record-completes-event",
      "an exporter's record that is complete completes the event for "
      "the exporter, although an importer has made a later record",
      {kQuery, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      older_record_completes_in_exporter);
  list.named(
      "query-is-about-first-record",
      "a query is about the first of the records that are pending in "
      "one stream",
      {kQuery, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      query_is_about_first);
  list.named(
      "host-wait-ends-after-many-records",
      "a host wait ends when the event was recorded 256 times since the "
      "wait began",
      {kSync, kRecord, kRecordFlags, kCreate, kExport, kOpenEvent, kDestroy},
      host_wait_ends_after_many_records);
  list.named("driver-host-wait-ends-at-signal",
             "a host wait by the driver API ends when its thread gets a signal",
             {kSync, kCreate, kExport, kOpenEvent, kDestroy},
             driver_host_wait_ends_at_signal);
  list.named("blocking-wait-ends-at-signal",
             "a host wait for an event with cudaEventBlockingSync ends when "
             "its thread gets a signal",
             {kSync, kCreate, kExport, kOpenEvent, kDestroy},
             blocking_wait_ends_at_signal);
  list.named(
      "last-word-wait-replaces-others",
      "of several waits for words directly one after another, only the last "
      "one holds the stream",
      {"cuStreamWaitValue32",
       "cuStreamWriteValue32",
       "cuStreamWaitValue64",
       "cuStreamWriteValue64",
       "cuStreamBatchMemOp",
       kRecord,
       kRecordFlags,
       kWait,
       kKernel,
       kCopy,
       kSet,
       kHostFunction,
       kLaunch,
       "cudaStreamQuery",
       "cudaStreamSynchronize",
       "cudaStreamDestroy",
       "cudaDeviceSynchronize",
       "cuCtxSynchronize",
       "cudaMemcpy2DAsync",
       "cudaMemset2DAsync"},
      last_word_replaces);
  list.named("batch-opened-word-ignored",
             "a batch does not wait for a word in opened memory",
             {"cuStreamBatchMemOp", kOpen, kClose}, batch_ignores_opened_word);
  list.named("batch-bit-64-is-equal",
             "in a batch, a wait for any of several bits of a 64-bit word "
             "waits for an equal word",
             {"cuStreamBatchMemOp"}, batch_bits_64_are_equal);

  list.named(
      "captured-in-joined-stream-lost",
      "a graph does not copy to opened memory if a stream that has joined the "
      "capture made the copy",
      {kCopy, "cudaStreamBeginCapture", "cudaStreamEndCapture", kOpen, kClose},
      captured_in_joined_stream_lost);
  list.named("captured-rectangle-lost",
             "a graph does not copy rectangles of opened memory",
             {"cudaMemcpy2DAsync", kOpen, kClose}, captured_rectangle_lost);
  list.named("captured-box-lost",
             "a graph does not copy boxes of opened memory",
             {"cudaMemcpy3DAsync", kOpen, kClose}, captured_box_lost);
  list.named("captured-rectangle-set-lost",
             "a graph does not set rectangles of opened memory",
             {"cudaMemset2DAsync", kOpen, kClose}, captured_set_lost);
  list.named("captured-words-set-lost",
             "a graph does not set words of opened memory",
             {"cuMemsetD32Async", kOpen, kClose}, captured_set_lost);
  list.named("captured-read-of-host-lost",
             "a graph does not copy from pinned host memory to opened memory",
             {kCopy, kOpen, kClose}, captured_read_of_host_lost);
  list.named("captured-write-to-host-lost",
             "a graph does not copy from opened memory to pinned host memory",
             {kCopy, kOpen, kClose}, captured_write_to_host_lost);
  list.named("captured-driver-copy-lost",
             "a graph loses copies of opened memory by the driver API",
             {kCopy, kOpen, kClose}, captured_copy_by_driver_lost);
  list.named("driver-graph-launch-lost",
             "a graph that the driver API launches does nothing in a process "
             "with opened memory",
             {kLaunch, kOpen, kClose}, launch_by_driver_lost);
  list.named("second-executable-lost",
             "of all executables of one graph only the first works",
             {kLaunch, kInstantiate, "cudaStreamEndCapture"},
             second_executable_does_nothing);
  list.named("uploaded-graph-runs-once", "a graph that was uploaded runs once",
             {kLaunch, kInstantiate, "cudaGraphUpload"},
             uploaded_graph_runs_once);
}

}  // namespace ipclab::faults
