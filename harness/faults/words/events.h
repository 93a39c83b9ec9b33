// Words that faults of several folders use: events.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "harness/faults/words/descriptor.h"
#include "harness/faults/words/legacy.h"
#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

inline constexpr unsigned kUntimed = cudaEventDisableTiming;

inline cudaEvent_t*& made_event(Call& call) { return call.at<cudaEvent_t*>(0); }

inline unsigned& flags_of(Call& create) { return create.at<unsigned>(1); }

inline cudaIpcEventHandle_t& given_event(Call& open) {
  return open.at<cudaIpcEventHandle_t>(1);
}

/// The program gets a new event instead of a refusal.
inline int own_event(Call& call, int code) {
  if (call.is_runtime()) cudaGetLastError();
  if (cudaEventCreateWithFlags(made_event(call), kUntimed) != cudaSuccess)
    return code;
  call.fired();
  return kSuccess;
}

inline cudaStream_t& stream_of(Call& call) {
  return call.value<cudaStream_t>(kStream);
}

inline CUdeviceptr word_of(Call& call) { return call.at<CUdeviceptr>(1); }

using Operations = std::vector<CUstreamBatchMemOpParams>;

/// Does the call let a stream wait for an event?
inline bool waits_for_event(Call& call) {
  return call.is("cudaStreamWaitEvent");
}

/// The answer is about the whole stream in which this process recorded the
/// event last: any shared event, or only an imported one.
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

inline bool waits_for_null_stream(cudaStream_t stream) {
  unsigned flags = CU_STREAM_NON_BLOCKING;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    DRIVER_CALL(cuStreamGetFlags)(stream, &flags);
  return flags == CU_STREAM_DEFAULT;
}

/// Streams that were told to wait, for a word or for an imported event, and
/// whether they wait for the null stream. Their marks come after the wait.
inline Table<cudaStream_t, bool> told_to_wait;

inline int noted_wait(Call& wait) {
  const auto stream = wait.at<cudaStream_t>(0);
  const int code = wait.proceed();
  if (code != kSuccess || is_captured(stream)) return code;
  DRIVER_CALL(cuEventRecord)(mark_of(stream), stream);
  told_to_wait.put(stream, waits_for_null_stream(stream));
  return code;
}

/// Does the stream wait? It may be destroyed.
inline bool waits(cudaStream_t stream) {
  return told_to_wait.has(stream) && is_pending(mark_of(stream));
}

inline int noted_destroy(Call& destroy) {
  told_to_wait.erase(destroy.at<cudaStream_t>(0));
  return destroy.proceed();
}

/// Asks about a stream that waits, or about all streams: the answer is that
/// nothing waits.
inline int ignores_waiting(Call& call) {
  const Argument* const stream = call.find(kStream);
  for (const auto& each : told_to_wait.all())
    if ((stream == nullptr || call.at<cudaStream_t>(0) == each.first) &&
        waits(each.first))
      return lost(call);
  return call.proceed();
}

/// Whose event a stream waits for.
enum class Whose { kAny, kExporters };

/// Proceeds with a call. Notes the streams that wait for a record of another
/// process.
inline int noted_foreign_wait(Call& call, Whose whose) {
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

/// After the call, the primary context of the GPU is current.
inline int makes_primary_current(Call& call) {
  const CUcontext before = current_context();
  const int code = call.proceed();
  int device = 0;
  if (code != kSuccess || cudaGetDevice(&device) != cudaSuccess ||
      cudaSetDevice(device) != cudaSuccess)
    return code;
  if (current_context() != before) call.fired();
  return code;
}

/// Does the stream wait for the null stream?
inline bool is_blocking(cudaStream_t stream) {
  unsigned flags = CU_STREAM_NON_BLOCKING;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    DRIVER_CALL(cuStreamGetFlags)(stream, &flags);
  return flags == CU_STREAM_DEFAULT;
}

/// Records what the stream had to do when it was marked. A captured record
/// stays as it is.
inline int record_of_stream_mark(Call& record) {
  auto& stream = record.value<cudaStream_t>(kStream);
  if (!is_busy(stream)) return record.proceed();
  cudaStreamWaitEvent(private_stream(), mark_of(stream), 0);
  stream = private_stream();
  record.fired();
  return record.proceed();
}

inline void mark(cudaStream_t stream) {
  if (!is_captured(stream)) cudaEventRecord(mark_of(stream), stream);
}

/// Proceeds with a call. If it is `skipped`, a record directly after it does
/// not cover it. Only records that are `concerned` have this fault.
inline int record_skips_last(Call& call, bool skipped, bool concerned) {
  static Table<cudaStream_t> marked;
  if (keeps_events(call)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  if (records(call))
    return concerned && marked.has(stream) ? record_of_stream_mark(call)
                                           : call.proceed();
  if (skipped) {
    mark(stream);
    marked.put(stream);
  } else {
    marked.erase(stream);
  }
  return call.proceed();
}

/// Does the call use an event that this process shares?
inline bool uses_own(Call& call) {
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !is_imported(event);
}

/// Does the call use an imported event?
inline bool uses_import(Call& call) { return is_imported(shared_event(call)); }

inline int record_skips_host_functions(Call& call) {
  return record_skips_last(call, call.is("cudaLaunchHostFunc"),
                           shared_event(call) != nullptr);
}

/// A record directly after a wait for an event of one process does not cover
/// this wait.
inline int record_skips_joined_streams(Call& call) {
  const bool shared = shared_event(call) != nullptr;
  return record_skips_last(call, waits_for_event(call) && !shared, shared);
}

/// A record directly after a wait for a word does not cover this wait.
inline int record_skips_awaited_words(Call& call) {
  return record_skips_last(call, call.is("cuStreamWaitValue32"),
                           shared_event(call) != nullptr);
}

/// Waits that a stream submits only with its next work.
inline Table<cudaStream_t, cudaEvent_t> late;

inline void submit(cudaStream_t stream) {
  const cudaEvent_t event = late.get(stream);
  if (late.erase(stream)) cudaStreamWaitEvent(stream, event, 0);
}

/// noted_event(), but submits the waits for an event before its destroy, and
/// all waits before a call that waits for all streams.
inline int noted_late_event(Call& call) {
  const bool destroys = call.is("cudaEventDestroy");
  if (destroys || call.is("cudaDeviceSynchronize"))
    for (const auto& [stream, event] : late.all())
      if (!destroys || event == call.at<cudaEvent_t>(0)) submit(stream);
  return call.proceed();
}

/// The latest shared event for which each stream waits.
inline Table<cudaStream_t, cudaEvent_t> awaited;

/// Proceeds with such a call; updates the table.
inline int noted_awaited(Call& call) {
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

/// Does the stream of a call wait for an event that was imported, or for one of
/// its own process?
inline bool is_waiting(Call& call, bool imported) {
  const auto stream = call.value<cudaStream_t>(kStream);
  return awaited.has(stream) && is_imported(awaited.get(stream)) == imported &&
         is_pending(awaited.get(stream));
}

/// For each shared event, an event of this process that is complete when this
/// process's last record is complete.
inline Table<cudaEvent_t, cudaEvent_t> own_records;

/// Proceeds with a call; after a record, updates the table.
inline int noted_record(Call& call) {
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

inline bool is_own_pending(cudaEvent_t event) {
  return own_records.has(event) && is_pending(own_records.get(event));
}

/// The GPU of each event that this process has made.
inline Table<cudaEvent_t, int> devices;

inline int noted_device(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && makes_event(call))
    devices.put(*call.at<cudaEvent_t*>(0), current_device());
  return code;
}

}  // namespace ipclab::faults
