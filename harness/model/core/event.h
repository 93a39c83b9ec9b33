// SPDX-License-Identifier: Apache-2.0
// Events: local ones, interprocess ones and those imported from a handle.
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

  std::mutex mutex;  ///< guards the two below
  uint32_t record = 0;
  ipclab::model::Order behind;  ///< what that record is ordered behind
};

namespace ipclab::model {

/// CUDA_ERROR_INVALID_VALUE for unknown flags, and for CU_EVENT_INTERPROCESS
/// without CU_EVENT_DISABLE_TIMING.
CUresult event_create(CUcontext context, unsigned flags, CUevent* event);
/// The handle of an event whose state came from another process.
CUevent adopt_event(CUcontext context, std::shared_ptr<EventState> state);
CUresult event_destroy(CUevent event);
/// CUDA_ERROR_INVALID_HANDLE if event and stream are of different contexts.
CUresult event_record(CUevent event, const std::shared_ptr<Stream>& stream);
/// CUDA_ERROR_NOT_READY while the newest record is pending.
CUresult event_query(CUevent event);
CUresult event_synchronize(CUevent event);
/// Milliseconds. CUDA_ERROR_INVALID_HANDLE for events without timing and for
/// events never recorded.
CUresult event_elapsed(float* milliseconds, CUevent start, CUevent end);
CUresult stream_wait_event(const std::shared_ptr<Stream>& stream,
                           CUevent event);
/// The live event behind a handle, or null.
std::shared_ptr<CUevent_st> find_event(CUevent event);
void destroy_events(CUcontext context);

}  // namespace ipclab::model
