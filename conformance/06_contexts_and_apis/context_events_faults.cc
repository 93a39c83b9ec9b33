// Bugs of a driver against the rules of this folder about whole contexts and
// green contexts (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

constexpr auto kContextRecord = "cuCtxRecordEvent";
constexpr auto kContextWait = "cuCtxWaitEvent";
constexpr auto kGreenRecord = "cuGreenCtxRecordEvent";
constexpr auto kGreenWait = "cuGreenCtxWaitEvent";
constexpr auto kConvert = "cuCtxFromGreenCtx";
constexpr auto kGreenStream = "cuGreenCtxStreamCreate";
constexpr auto kMakeStream = "cudaStreamCreateWithFlags";

// The streams that are no streams of a green context; and those that are, each
// with its green context.
Table<cudaStream_t> own_streams;
Table<cudaStream_t, CUgreenCtx> green_streams;
// The handles of green contexts for functions that take a context.
Table<CUcontext> converted;
// The context in which each event was made or opened.
Table<cudaEvent_t, CUcontext> contexts;

void note_stream(Call& call) { own_streams.put(*call.at<cudaStream_t*>(0)); }
void note_green_stream(Call& call) {
  green_streams.put(*call.at<cudaStream_t*>(0), call.at<CUgreenCtx>(1));
}
void forget_stream(Call& call) {
  own_streams.erase(call.at<cudaStream_t>(0));
  green_streams.erase(call.at<cudaStream_t>(0));
}
void note_converted(Call& call) { converted.put(*call.at<CUcontext*>(0)); }
void note_context(Call& call) {
  contexts.put(*call.at<cudaEvent_t*>(0), current_context());
}

bool is_converted(CUcontext context) { return converted.has(context); }
bool by_converted(Call& call) { return is_converted(call.at<CUcontext>(0)); }
bool by_context(Call& call) { return !by_converted(call); }

CUcontext primary_of_0() {
  CUcontext primary = nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, 0);
  DRIVER_CALL(cuDevicePrimaryCtxRelease)(0);
  return primary;
}

int record_in(Call& call, cudaStream_t stream) {
  call.fired();
  return DRIVER_CALL(cuEventRecord)(call.at<cudaEvent_t>(1), stream);
}
int wait_in(Call& call, cudaStream_t stream) {
  call.fired();
  return DRIVER_CALL(cuStreamWaitEvent)(stream, call.at<cudaEvent_t>(1), 0);
}

// Records the work of the streams that are no streams of green contexts.
int recorded_without_green(Call& call) {
  const cudaStream_t aside = private_stream();
  const auto join = [&](cudaStream_t stream) {
    cudaEventRecord(mark_of(stream), stream);
    cudaStreamWaitEvent(aside, mark_of(stream), 0);
  };
  join(cudaStreamLegacy);
  for (const auto& [stream, unused] : own_streams.all()) join(stream);
  return record_in(call, aside);
}

// Only the streams that exist wait, and no stream of a green context.
int awaited_by_own_streams(Call& call) {
  for (const auto& [stream, unused] : own_streams.all()) wait_in(call, stream);
  return wait_in(call, cudaStreamLegacy);
}

int recorded_by_primary(Call& call) {
  call.fired();
  return DRIVER_CALL(cuCtxRecordEvent)(primary_of_0(), call.at<cudaEvent_t>(1));
}

// A stream of the green context of the call; null if there is none.
cudaStream_t a_stream_of(CUgreenCtx green) {
  for (const auto& [stream, of] : green_streams.all())
    if (of == green) return stream;
  return nullptr;
}

// Work that comes after a record of a whole context counts, too: the event is
// pending while a stream is busy.
int pending_while_busy(Call& query) {
  const int code = query.proceed();
  if (code != kSuccess || !event_marks.has(query.at<cudaEvent_t>(0)))
    return code;
  for (const auto& [stream, unused] : own_streams.all()) {
    if (!is_busy(stream)) continue;
    query.fired();
    return cudaErrorNotReady;
  }
  return code;
}

bool is_refused_for_event(Call& call) {
  return call.code() == CUDA_ERROR_INVALID_HANDLE;
}
bool is_refused_for_capture(Call& call) {
  return call.code() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// Does a stream of the process capture?
bool has_capture(Call&) {
  for (const auto& [stream, unused] : own_streams.all())
    if (is_captured(stream)) return true;
  for (const auto& [stream, unused] : green_streams.all())
    if (is_captured(stream)) return true;
  return false;
}

// Does a green context refuse to wait for an event of a capture, although it
// has no capture itself? The refusal has made the capture invalid.
bool is_refused_for_captured_event(Call& wait) {
  if (!is_refused_for_capture(wait)) return false;
  for (const auto& [stream, green] : green_streams.all()) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    DRIVER_CALL(cuStreamIsCapturing)(stream, &status);
    if (green == wait.at<CUgreenCtx>(0) &&
        status != CU_STREAM_CAPTURE_STATUS_NONE)
      return false;
  }
  return true;
}

// Records the work of a busy stream although the record is refused.
int refused_and_recorded(Call& record) {
  for (const auto& [stream, unused] : green_streams.all()) {
    if (!is_busy(stream)) continue;
    record_in(record, stream);
    break;
  }
  return record.code();
}

int refused_without_effect(Call& call) {
  return refused(call, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

bool is_in_green_context(Call&) { return is_converted(current_context()); }

// Is this handle open in the primary context while a green context is current,
// or the other way round?
bool is_open_in_the_other(Call& open) {
  const std::string handle = key_of_handle(given(open));
  for (const auto& [unused, one] : opened.all())
    if (one.handle == handle &&
        is_converted(one.context) != is_converted(current_context()))
      return true;
  return false;
}

FAULTS {
  fault("context-record-lost", {"LEVT-30"},
        "a record by a context records nothing")
      .on({kContextRecord}, lost);

  fault("context-record-of-default-stream", {"LEVT-30"},
        "a record by a context covers only the work of the default stream")
      .on({kContextRecord}, DO(record_in(call, cudaStreamLegacy)));

  fault("context-record-of-opened-lost", {"LEVT-30"},
        "a record by a context records nothing if another process has exported "
        "the event")
      .on({kContextRecord}, WHEN(uses_import(call)), lost);

  fault("context-record-grows", {"LEVT-30"},
        "an event that a context has recorded is pending while the context has "
        "later work")
      .on({kQueryEvent}, pending_while_busy)
      .after({kContextRecord}, NOTE(event_marks.put(call.at<cudaEvent_t>(1))))
      .after({kMakeStream}, note_stream)
      .before({kDestroyStream}, forget_stream);

  fault("context-wait-lost", {"LEVT-31"},
        "a wait by a context makes no stream wait")
      .on({kContextWait}, lost);

  fault("context-wait-in-default-stream", {"LEVT-31"},
        "a wait by a context makes only the default stream wait")
      .on({kContextWait}, DO(wait_in(call, cudaStreamLegacy)));

  fault("context-wait-in-present-streams", {"LEVT-31"},
        "a wait by a context does not concern streams that are made later")
      .on({kContextWait}, awaited_by_own_streams)
      .after({kMakeStream}, note_stream)
      .before({kDestroyStream}, forget_stream);

  fault("context-wait-on-the-host", {"LEVT-31"},
        "a wait by a context returns when the event is complete")
      .before({kContextWait}, [](Call& call) {
        cudaEventSynchronize(call.at<cudaEvent_t>(1));
      });

  fault("primary-record-without-green", {"LEVT-32"},
        "a record by a primary context does not cover the work of its green "
        "contexts")
      .on({kContextRecord}, by_context, recorded_without_green)
      .after({kConvert}, note_converted)
      .after({kMakeStream}, note_stream)
      .before({kDestroyStream}, forget_stream);

  fault("primary-wait-without-green", {"LEVT-32"},
        "a wait by a primary context does not concern its green contexts")
      .on({kContextWait}, by_context, awaited_by_own_streams)
      .after({kConvert}, note_converted)
      .after({kMakeStream}, note_stream)
      .before({kDestroyStream}, forget_stream);

  fault("green-record-lost", {"LEVT-33"},
        "a record by a green context records nothing")
      .on({kGreenRecord}, lost);

  fault("converted-record-lost", {"LEVT-33"},
        "a record by a converted green context records nothing")
      .on({kContextRecord}, by_converted, lost)
      .after({kConvert}, note_converted);

  fault("green-record-of-primary", {"LEVT-33"},
        "a record by a green context covers all work of the primary context")
      .on({kGreenRecord}, recorded_by_primary);

  fault("converted-record-of-primary", {"LEVT-33"},
        "a record by a converted green context covers all work of the primary "
        "context")
      .on({kContextRecord}, by_converted, recorded_by_primary)
      .after({kConvert}, note_converted);

  fault("green-wait-lost", {"LEVT-34"},
        "a wait by a green context makes no stream wait")
      .on({kGreenWait}, lost);

  fault("converted-wait-lost", {"LEVT-34"},
        "a wait by a converted green context makes no stream wait")
      .on({kContextWait}, by_converted, lost)
      .after({kConvert}, note_converted);

  fault("green-wait-in-one-stream", {"LEVT-34"},
        "a wait by a green context makes only one of its streams wait")
      .on({kGreenWait}, DO(wait_in(call, a_stream_of(call.at<CUgreenCtx>(0)))))
      .after({kGreenStream}, note_green_stream)
      .before({kDestroyStream}, forget_stream);

  fault("context-wait-refuses-others", {"LEVT-35"},
        "a context cannot wait for an event of another context")
      .on({kContextWait},
          WHEN(by_context(call) &&
               contexts.get(call.at<cudaEvent_t>(1)) != call.at<CUcontext>(0)),
          refuses(CUDA_ERROR_INVALID_HANDLE))
      .after({kConvert}, note_converted)
      .after({kOpenEvent, kCreateEvent}, note_context);

  fault("context-wait-for-others-lost", {"LEVT-35"},
        "a wait by a context for an event of another context makes no stream "
        "wait")
      .on({kContextWait},
          WHEN(by_context(call) &&
               contexts.get(call.at<cudaEvent_t>(1)) != call.at<CUcontext>(0)),
          lost)
      .after({kConvert}, note_converted)
      .after({kOpenEvent, kCreateEvent}, note_context);

  fault("green-wait-refuses-others", {"LEVT-35"},
        "a green context cannot wait for an event of another context than its "
        "primary context")
      .on({kGreenWait},
          WHEN(contexts.get(call.at<cudaEvent_t>(1)) != primary_of_0()),
          refuses(CUDA_ERROR_INVALID_HANDLE))
      .after({kOpenEvent, kCreateEvent}, note_context);

  fault("context-record-of-any-event", {"LEVT-36"},
        "a record by a context accepts an event of another context")
      .on_refusal({kContextRecord}, is_refused_for_event, accepted);

  fault("green-record-of-any-event", {"LEVT-36"},
        "a record by a green context accepts an event of another primary "
        "context")
      .on_refusal({kGreenRecord}, is_refused_for_event, accepted);

  fault("green-record-of-any-gpu", {"LEVT-36"},
        "a record by a green context accepts an event of another GPU")
      .with_gpus(2)
      .on_refusal({kGreenRecord},
                  WHEN(is_refused_for_event(call) && current_device() != 0),
                  accepted);

  fault(
      "refused-context-record-records", {"LEVT-36"},
      "a record by a context that is refused records the event in the default "
      "stream")
      .on_refusal({kContextRecord}, is_refused_for_event, [](Call& call) {
        record_in(call, cudaStreamLegacy);
        return call.code();
      });

  fault("ok-context-record-invalid-context", {"LEVT-36"},
        "a record by a context refuses an event of another context with "
        "CUDA_ERROR_INVALID_CONTEXT")
      .on_refusal({kContextRecord, kGreenRecord}, is_refused_for_event,
                  [](Call& call) {
                    call.fired();
                    return static_cast<int>(CUDA_ERROR_INVALID_CONTEXT);
                  });

  fault("context-record-in-capture", {"LEVT-37"},
        "a record by a context is accepted while a stream captures")
      .on_refusal({kContextRecord}, is_refused_for_capture, accepted);

  fault("context-wait-in-capture", {"LEVT-37"},
        "a wait by a context is accepted while a stream captures")
      .on_refusal({kContextWait}, is_refused_for_capture, accepted);

  fault("green-record-in-capture", {"LEVT-37"},
        "a record by a green context is accepted while a stream captures")
      .on_refusal({kGreenRecord}, is_refused_for_capture, accepted);

  fault("green-wait-in-capture", {"LEVT-37"},
        "a wait by a green context is accepted while a stream captures")
      .on_refusal({kGreenWait}, is_refused_for_capture, accepted);

  fault("green-wait-for-captured-event", {"LEVT-37"},
        "a green context accepts a wait for an event that a stream of another "
        "context captures")
      .on_refusal({kGreenWait}, is_refused_for_captured_event, accepted)
      .after({kGreenStream}, note_green_stream)
      .before({kDestroyStream}, forget_stream);

  fault("refused-record-in-capture-records", {"LEVT-37"},
        "a record that is refused because a stream captures records the event")
      .on_refusal({kContextRecord, kGreenRecord}, is_refused_for_capture,
                  refused_and_recorded)
      .after({kGreenStream}, note_green_stream)
      .before({kDestroyStream}, forget_stream);

  fault("capture-survives-record", {"LEVT-37"},
        "a record by a context or a green context is refused while a stream "
        "captures, and the capture stays valid")
      .on({kContextRecord, kGreenRecord}, has_capture, refused_without_effect)
      .after({kMakeStream}, note_stream)
      .after({kGreenStream}, note_green_stream)
      .before({kDestroyStream}, forget_stream);

  fault("capture-survives-wait", {"LEVT-37"},
        "a wait by a context or a green context is refused while a stream "
        "captures, and the capture stays valid")
      .on({kContextWait, kGreenWait}, has_capture, refused_without_effect)
      .after({kMakeStream}, note_stream)
      .after({kGreenStream}, note_green_stream)
      .before({kDestroyStream}, forget_stream);

  fault("green-context-as-context", {"LEVT-38"},
        "a record by a context accepts a green context that was not converted")
      .on_refusal({kContextRecord},
                  WHEN(call.code() == CUDA_ERROR_INVALID_CONTEXT), accepted);

  fault("green-context-waits-as-context", {"LEVT-38"},
        "a wait by a context accepts a green context that was not converted")
      .on_refusal({kContextWait},
                  WHEN(call.code() == CUDA_ERROR_INVALID_CONTEXT), accepted);

  fault("green-context-is-another-context", {"LMEM-51"},
        "a green context cannot open what its primary context has open, nor "
        "the primary context what a green context has open")
      .on({kOpen}, is_open_in_the_other,
          refuses(cudaErrorInvalidResourceHandle))
      .after({kConvert}, note_converted);

  fault("green-context-exports-nothing", {"LMEM-51"},
        "memory cannot be exported while a green context is current")
      .on({kGetHandle}, is_in_green_context, refuses())
      .after({kConvert}, note_converted);

  fault("green-context-opens-no-event", {"LMEM-51"},
        "an event cannot be opened while a green context is current")
      .on({kOpenEvent}, is_in_green_context,
          refuses(cudaErrorMapBufferObjectFailed))
      .after({kConvert}, note_converted);

  fault("green-context-closes-nothing", {"LMEM-51"},
        "a close has no effect while a green context is current")
      .on({kClose}, is_in_green_context, lost)
      .after({kConvert}, note_converted);
}

}  // namespace
}  // namespace ipclab::faults
