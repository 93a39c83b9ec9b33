// SPDX-License-Identifier: Apache-2.0
// Events.
#include "core/event.h"

#include <utility>

#include "core/device.h"
#include "core/pool.h"
#include "core/registry.h"

namespace ipclab::model {
namespace {

Registry<CUevent_st>& handles() {
  static auto& registry = *new Registry<CUevent_st>;
  return registry;
}

// The frees that are over when a record of this process is complete. Of another
// process's record nothing is known.
Order order_behind(CUevent_st* event, uint32_t record) {
  const std::lock_guard lock(event->mutex);
  return event->record == record ? event->behind : Order{};
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
  if (made->state == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
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

CUresult event_record(CUevent handle, const std::shared_ptr<Stream>& stream) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->context != stream->context()) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<EventState> state = event->state;
  if (stream->capturing()) {  // each launch of the graph is a record
    stream->submit({CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    [state] { state->complete(state->begin_record()); }});
    return CUDA_SUCCESS;
  }
  const Order behind = stream->order_from_now();
  const uint32_t record = state->begin_record();
  {
    const std::lock_guard lock(event->mutex);
    event->record = record;
    event->behind = behind;
  }
  stream->submit({CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                  [state, record] { state->complete(record); }},
                 true);
  return CUDA_SUCCESS;
}

CUresult event_query(CUevent handle) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return event->state->is_complete(event->state->latest())
             ? static_cast<CUresult>(event->context->sticky.load())
             : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(CUevent handle) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const uint32_t record = event->state->latest();
  event->state->wait(record);
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
                           CUevent handle) {
  const std::shared_ptr<CUevent_st> event = handles().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<EventState> state = event->state;
  const uint32_t captured = state->latest();
  if (stream->capturing()) {
    stream->submit({CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    [state] { state->wait(state->latest()); }});
  } else {
    stream->submit({CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    [state, captured] { state->wait(captured); }});
    stream->follow(order_behind(event.get(), captured));
  }
  return CUDA_SUCCESS;
}

void destroy_events(CUcontext context) {
  handles().remove_if(
      [context](const CUevent_st& event) { return event.context == context; });
}

}  // namespace ipclab::model
