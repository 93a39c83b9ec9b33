// SPDX-License-Identifier: Apache-2.0
// Events.
#include "core/event.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/race.h"
#include "core/registry.h"

namespace ipclab::model {
namespace {

Registry<CUevent_st>& handles() {
  static auto& registry = *new Registry<CUevent_st>;
  return registry;
}

// What a stream does when it reaches a record, or a wait for one.
void complete(EventState& state, uint32_t record) {
  if (race::on()) race::recorded(state.id(), record);
  state.complete(record);
}

void wait_for(const EventState& state, uint32_t record) {
  state.wait(record);
  if (race::on()) race::waited(state.id(), record);
}

// The frees that are done when a record of this process is complete. For a
// record of another process, the frees are not known, and the list is empty.
Order order_behind(CUevent_st* event, uint32_t record) {
  const std::lock_guard lock(event->mutex);
  return event->record == record ? event->behind : Order{};
}

CapturePoint captured(CUevent_st* event) {
  const std::lock_guard lock(event->mutex);
  return event->captured;
}

// "It is invalid to synchronize or query the execution status of a captured
// event. When an invalid operation is attempted during stream capture, any
// associated capture graphs are invalidated." (Programming Guide)
CUresult refuse_captured(CUevent_st* event) {
  const CapturePoint point = captured(event);
  if (point.capture == nullptr) return CUDA_SUCCESS;
  point.capture->spoilt = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

bool is_interprocess(const CUevent_st& event) {
  return (event.flags & CU_EVENT_INTERPROCESS) != 0;
}

// A wait that becomes an edge of a graph.
CUresult wait_captured(const std::shared_ptr<Stream>& stream,
                       CUevent_st* event) {
  const CapturePoint point = captured(event);
  if (point.capture == nullptr) {
    stream->spoil_capture();
    return is_interprocess(*event) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                   : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (point.capture->over) {
    stream->spoil_capture();
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return stream->join_capture(point);
}

}  // namespace

std::shared_ptr<CUevent_st> find_event(CUevent event) {
  return handles().find(event);
}

CUresult event_create(CUcontext context, unsigned flags, CUevent* event) {
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_shared<CUevent_st>();
  made->context = context;
  made->flags = flags;
  made->state = shared ? EventState::shared() : EventState::local();
  if (made->state == nullptr) {
    say(std::string("no event: ") + std::strerror(errno) +
        (errno == EMFILE ? " (an interprocess event needs a descriptor: raise "
                           "'ulimit -n')"
                         : ""));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *event = handles().add(std::move(made));
  return CUDA_SUCCESS;
}

CUevent adopt_event(CUcontext context, std::shared_ptr<EventState> state) {
  auto made = std::make_shared<CUevent_st>();
  made->context = context;
  made->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  made->imported = true;
  made->state = std::move(state);
  return handles().add(std::move(made));
}

CUresult event_destroy(CUevent event) {
  return handles().remove(event) != nullptr ? CUDA_SUCCESS
                                            : CUDA_ERROR_INVALID_HANDLE;
}

CUresult event_record(CUevent handle, const std::shared_ptr<Stream>& stream,
                      bool external) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->context != stream->context()) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<EventState> state = event->state;
  CapturePoint point = stream->capture_point();
  if (point.capture != nullptr && external) {
    // Each launch of the graph makes a new record.
    stream->submit({CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    [state] { complete(*state, state->begin_record()); }});
    return CUDA_SUCCESS;
  }
  if (point.capture != nullptr) {
    if (is_interprocess(*event)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const std::lock_guard lock(event->mutex);
    event->captured = std::move(point);
    return CUDA_SUCCESS;
  }
  const Order behind = stream->order_from_now();
  const uint32_t record = state->begin_record();
  {
    const std::lock_guard lock(event->mutex);
    event->record = record;
    event->behind = behind;
    event->captured = {};
  }
  stream->submit({CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                  [state, record] { complete(*state, record); }},
                 true);
  return CUDA_SUCCESS;
}

CUresult event_query(CUevent handle) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = refuse_captured(event.get())) return error;
  const uint32_t record = event->state->latest();
  if (!event->state->is_complete(record)) return CUDA_ERROR_NOT_READY;
  if (race::on()) race::host_waited(event->state->id(), record);
  return static_cast<CUresult>(event->context->sticky.load());
}

CUresult event_synchronize(CUevent handle) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = refuse_captured(event.get())) return error;
  const uint32_t record = event->state->latest();
  event->state->wait(record);
  if (race::on()) race::host_waited(event->state->id(), record);
  after_synchronize(order_behind(event.get(), record));
  return static_cast<CUresult>(event->context->sticky.load());
}

CUresult event_elapsed(float* milliseconds, CUevent start, CUevent end) {
  const std::shared_ptr<CUevent_st> first = handles().find(start);
  const std::shared_ptr<CUevent_st> last = handles().find(end);
  if (first == nullptr || last == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const bool timed = ((first->flags | last->flags) &
                      static_cast<unsigned>(CU_EVENT_DISABLE_TIMING)) == 0;
  if (!timed) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = refuse_captured(first.get())) return error;
  if (CUresult error = refuse_captured(last.get())) return error;
  const uint32_t first_record = first->state->latest();
  const uint32_t last_record = last->state->latest();
  if (first_record == 0 || last_record == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->state->is_complete(first_record) ||
      !last->state->is_complete(last_record)) {
    return CUDA_ERROR_NOT_READY;
  }
  const auto from = static_cast<double>(first->state->completed_at());
  const auto to = static_cast<double>(last->state->completed_at());
  *milliseconds = static_cast<float>((to - from) / 1e6);
  return CUDA_SUCCESS;
}

CUresult stream_wait_event(const std::shared_ptr<Stream>& stream,
                           CUevent handle, bool external) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<EventState> state = event->state;
  const bool capturing = stream->capturing();
  if (capturing && external) {
    stream->submit({CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    [state] { wait_for(*state, state->latest()); }});
    return CUDA_SUCCESS;
  }
  if (capturing || captured(event.get()).capture != nullptr) {
    return wait_captured(stream, event.get());
  }
  const uint32_t record = state->latest();
  stream->submit({CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                  [state, record] { wait_for(*state, record); }});
  stream->follow(order_behind(event.get(), record));
  return CUDA_SUCCESS;
}

CUresult context_record_event(CUcontext context, CUevent handle) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // "hEvent and hCtx must be from the same primary context otherwise
  // CUDA_ERROR_INVALID_HANDLE is returned."
  if (event->context != whole_of(context)) return CUDA_ERROR_INVALID_HANDLE;
  if (spoil_captures(context)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::shared_ptr<EventState> state = event->state;
  std::vector<Ticket> work;
  Order behind;
  const std::shared_ptr<Stream> recorder = recorder_of(context, &work, &behind);
  const uint32_t record = state->begin_record();
  {
    const std::lock_guard lock(event->mutex);
    event->record = record;
    event->behind = behind;
    event->captured = {};
  }
  recorder->submit({CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    [state, record] { complete(*state, record); }},
                   true, work);
  return CUDA_SUCCESS;
}

CUresult context_wait_event(CUcontext context, CUevent handle) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CapturePoint point = captured(event.get());
  if (point.capture != nullptr) point.capture->spoilt = true;
  if (spoil_captures(context) || point.capture != nullptr) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const std::shared_ptr<EventState> state = event->state;
  const uint32_t record = state->latest();
  context_waits({context,
                 {CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                  [state, record] { wait_for(*state, record); }},
                 [state, record] { return state->is_complete(record); },
                 order_behind(event.get(), record)});
  return CUDA_SUCCESS;
}

void destroy_events(CUcontext context) {
  handles().remove_if(
      [context](const CUevent_st& event) { return event.context == context; });
}

}  // namespace ipclab::model
