// SPDX-License-Identifier: Apache-2.0
// Events: local events, interprocess events, and events that were imported from
// a handle.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>

#include "core/event_state.h"
#include "core/stream.h"

/// The object of a CUevent.
struct CUevent_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  bool imported = false;
  std::shared_ptr<ipclab::model::EventState> state;

  std::mutex mutex;  ///< guards the three members below
  uint32_t record = 0;
  ipclab::model::Order behind;  ///< the frees that come before the record
  ipclab::model::CapturePoint captured;  ///< where the last record was captured
};

namespace ipclab::model {

/// Returns CUDA_ERROR_INVALID_VALUE for unknown flags, and for
/// CU_EVENT_INTERPROCESS without CU_EVENT_DISABLE_TIMING.
CUresult event_create(CUcontext context, unsigned flags, CUevent* event);
/// The handle of an event whose state came from another process.
CUevent adopt_event(CUcontext context, std::shared_ptr<EventState> state);
CUresult event_destroy(CUevent event);
/// Returns CUDA_ERROR_INVALID_HANDLE if event and stream are of different
/// contexts. In a stream that captures, the event is an edge of the graph, or,
/// if the record is `external`, a node that records at each launch. Returns
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for an interprocess event as an edge,
/// as an H200 answers.
CUresult event_record(CUevent event, const std::shared_ptr<Stream>& stream,
                      bool external = false);
/// Returns CUDA_ERROR_NOT_READY while the newest record is pending. This call
/// and the two calls after it return CUDA_ERROR_CAPTURED_EVENT if the newest
/// record was captured.
CUresult event_query(CUevent event);
CUresult event_synchronize(CUevent event);
/// Gives milliseconds. Returns CUDA_ERROR_INVALID_HANDLE for events without
/// timing and for events that were never recorded.
CUresult event_elapsed(float* milliseconds, CUevent start, CUevent end);
/// A wait for a captured event makes the stream part of the capture. If the
/// capture has ended, the call returns CUDA_ERROR_CAPTURED_EVENT. A stream that
/// captures refuses any other event if the wait is not `external`: with
/// CUDA_ERROR_STREAM_CAPTURE_ISOLATION, or, if the event is an interprocess
/// event, with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, as an H200 answers.
CUresult stream_wait_event(const std::shared_ptr<Stream>& stream, CUevent event,
                           bool external = false);
/// cuCtxRecordEvent and cuCtxWaitEvent, also for a green context. If the
/// context captures, or if the event to wait for is part of a capture, they
/// return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and make the captures invalid.
CUresult context_record_event(CUcontext context, CUevent event);
CUresult context_wait_event(CUcontext context, CUevent event);
/// The live event of a handle, or null.
std::shared_ptr<CUevent_st> find_event(CUevent event);
void destroy_events(CUcontext context);

}  // namespace ipclab::model
