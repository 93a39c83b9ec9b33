// SPDX-License-Identifier: Apache-2.0
// Streams.
#include "core/stream.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <system_error>
#include <thread>

#include "core/device.h"
#include "core/graph.h"
#include "core/log.h"
#include "core/profile.h"
#include "core/race.h"
#include "core/registry.h"
#include "ptx/per_thread.h"

namespace ipclab::model {
namespace {

std::atomic<unsigned long long> next_stream_id{1};

Registry<CUstream_st>& handles() {
  static auto& registry = *new Registry<CUstream_st>;
  return registry;
}

std::shared_ptr<Stream> new_stream(CUcontext owner, unsigned flags,
                                   int priority) {
  auto stream = std::make_shared<Stream>(owner, flags, priority, false);
  give_stream(owner, stream);
  return stream;
}

// Is this a stream of the context, or of one of its green contexts?
bool belongs_to(const Stream& stream, CUcontext context) {
  return stream.owner() == context || stream.context() == context;
}

void begin_wait(const std::shared_ptr<Stream>& stream,
                const ContextWait& wait) {
  stream->submit(wait.command);
  stream->follow(wait.frees);
}

// The caller holds submit_mutex.
void forget_ended_waits(CUcontext whole) {
  auto& waits = whole->waits;
  const auto over = [](const auto& wait) { return wait->over(); };
  waits.erase(std::remove_if(waits.begin(), waits.end(), over), waits.end());
}

std::shared_ptr<Stream> per_thread_stream(CUcontext context) {
  using Streams = std::map<unsigned long long, std::shared_ptr<Stream>>;
  std::shared_ptr<Stream>& stream =
      of_this_thread<Streams, Stream>()[context->id];
  if (stream == nullptr) stream = new_stream(context, CU_STREAM_DEFAULT, 0);
  return stream;
}

void merge(const Order& from, Order* to) {
  for (const auto& [stream, number] : from) {
    uint64_t& known = (*to)[stream];
    known = std::max(known, number);
  }
}

// Signals belong to the program, but a fault on this thread must not be
// ignored.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    sigdelset(&all, fault);
  }
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Stream::Stream(CUcontext owner, unsigned flags, int priority, bool legacy)
    : owner_(owner),
      context_(whole_of(owner)),
      flags_(flags),
      priority_(priority),
      legacy_(legacy),
      id_(next_stream_id++),
      actor_(race::on() ? std::make_shared<race::Actor>() : nullptr) {}

Ticket Stream::last_ticket() {
  const std::lock_guard lock(mutex_);
  return {shared_from_this(), completed_ < submitted_ ? submitted_ : 0,
          last_done_};
}

// The streams for whose work this stream waits. The legacy stream waits for all
// blocking streams, and all blocking streams wait for the legacy stream. The
// caller holds submit_mutex, so the order is the same for all streams.
std::vector<Stream*> Stream::implied() {
  std::vector<Stream*> streams;
  if (profile().one_queue) {
    for (const std::shared_ptr<Stream>& other : context_->streams)
      if (other.get() != this) streams.push_back(other.get());
    if (this != context_->legacy.get()) {
      streams.push_back(context_->legacy.get());
    }
    return streams;
  }
  if (legacy_) {
    for (const std::shared_ptr<Stream>& other : context_->streams) {
      if (other->owner_ == owner_ && other.get() != this &&
          (other->flags_ & CU_STREAM_NON_BLOCKING) == 0) {
        streams.push_back(other.get());
      }
    }
  } else if ((flags_ & CU_STREAM_NON_BLOCKING) == 0) {
    streams.push_back(owner_->legacy.get());
  }
  return streams;
}

std::vector<Ticket> Stream::predecessors() {
  std::vector<Ticket> after;
  for (Stream* other : implied()) {
    Ticket last = other->last_ticket();
    if (last.number > 0 || last.done != nullptr) {
      after.push_back(std::move(last));
    }
    merge(other->behind_, &behind_);
  }
  return after;
}

// Runs an operation. Its objects are released here, where no lock is held.
void Stream::execute(Operation* operation) {
  for (const Ticket& ticket : operation->after) {
    ticket.stream->wait(ticket.number);
  }
  if (context_->sticky == 0 || operation->always) {
    if (race::on()) {
      std::vector<race::After> before;
      for (const Ticket& ticket : operation->after) {
        if (ticket.done != nullptr) before.push_back(ticket.done);
      }
      const auto& actor = operation->actor ? operation->actor : actor_;
      const race::Turn turn(actor.get(), static_cast<uint32_t>(context_->gpu),
                            before, operation->host, operation->done);
      operation->work();
    } else {
      operation->work();
    }
  }
  *operation = {};
}

// The caller holds submit_mutex.
void Stream::prepare_for_races(Operation* operation) {
  if (!race::on()) return;
  if (last_done_ != nullptr) {
    operation->after.push_back({shared_from_this(), 0, last_done_});
  }
  operation->host = race::host_now();
  operation->done = last_done_ = std::make_shared<race::Clock>();
}

void Stream::work_loop() {
  block_signals();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock,
                  [this] { return !busy_ && (!queue_.empty() || closed_); });
    if (queue_.empty()) return;
    execute_next(&lock);
  }
}

void Stream::execute_next(std::unique_lock<std::mutex>* lock) {
  Operation operation = std::move(queue_.front());
  queue_.pop_front();
  busy_ = true;
  lock->unlock();
  execute(&operation);
  lock->lock();
  busy_ = false;
  ++completed_;
  changed_.notify_all();
}

// The caller holds the lock.
void Stream::enqueue(Operation operation) {
  if (!worker_started_) {
    worker_started_ = true;
    try {
      std::thread([self = shared_from_this()] { self->work_loop(); }).detach();
    } catch (const std::system_error& error) {
      die(std::string("no thread for a stream: ") + error.what() +
          " (raise 'ulimit -u' or 'ulimit -v')");
    }
  }
  queue_.push_back(std::move(operation));
  changed_.notify_all();
}

Ticket Stream::submit(Command command, bool always,
                      const std::vector<Ticket>& after) {
  const std::lock_guard order(context_->submit_mutex);
  if (is_in_capture()) {
    CUgraphNode node = nullptr;
    graph_add_command(
        {capture_.capture->graph, capture_.after.data(), capture_.after.size()},
        std::move(command), &node);
    capture_.after = {node};
    return {};
  }
  Operation operation{
      std::move(command.run), predecessors(), always, {}, {}, {}};
  operation.after.insert(operation.after.end(), after.begin(), after.end());
  prepare_for_races(&operation);
  const std::shared_ptr<race::Clock> done = operation.done;
  const std::lock_guard lock(mutex_);
  ++submitted_;
  enqueue(std::move(operation));
  return {shared_from_this(), submitted_, done};
}

Ticket Stream::submit_node(Command command,
                           const std::shared_ptr<race::Actor>& actor,
                           const std::vector<Ticket>& after) {
  const std::lock_guard order(context_->submit_mutex);
  Operation operation{std::move(command.run), after, false, {}, {}, actor};
  operation.host = race::host_now();
  operation.done = std::make_shared<race::Clock>();
  const std::shared_ptr<race::Clock> done = operation.done;
  const std::lock_guard lock(mutex_);
  enqueue(std::move(operation));
  return {shared_from_this(), ++submitted_, done};
}

Ticket Stream::submit_free(Command command) {
  const std::lock_guard order(context_->submit_mutex);
  Operation operation{std::move(command.run), predecessors(), true, {}, {}, {}};
  prepare_for_races(&operation);
  const std::shared_ptr<race::Clock> done = operation.done;
  const std::lock_guard lock(mutex_);
  behind_[id_] = ++submitted_;
  enqueue(std::move(operation));
  return {shared_from_this(), submitted_, done};
}

void Stream::run(const std::function<void()>& work, bool promised) {
  Operation operation;
  std::vector<std::shared_ptr<race::Clock>> done;
  uint64_t queued = 0;
  {
    const std::lock_guard order(context_->submit_mutex);
    operation = {work, predecessors(), false, {}, {}, {}};
    prepare_for_races(&operation);
    if (promised) {
      if (operation.done != nullptr) done.push_back(operation.done);
    } else {
      for (const Ticket& before : operation.after)
        if (before.done != nullptr) done.push_back(before.done);
    }
    const std::lock_guard lock(mutex_);
    ++submitted_;
    if (busy_ || !queue_.empty()) {
      queued = submitted_;
      enqueue(operation);
    } else {
      busy_ = true;
    }
  }
  if (queued != 0) {
    wait(queued);
  } else {
    execute(&operation);
    const std::lock_guard lock(mutex_);
    busy_ = false;
    ++completed_;
    changed_.notify_all();
  }
  for (const auto& clock : done) race::host_goes_on_after(*clock);
}

void Stream::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  // Work that the stream's own thread has not begun is done here, because on a
  // busy machine that thread may run late.
  while (completed_ < number) {
    if (!busy_ && !queue_.empty()) {
      execute_next(&lock);
    } else {
      changed_.wait(lock);
    }
  }
}

bool Stream::idle() {
  if (race::on()) {
    const Ticket last = last_work();
    if (!done(last.number)) return false;
    if (last.done != nullptr) race::host_goes_on_after(*last.done);
    return true;
  }
  const std::lock_guard lock(mutex_);
  return completed_ == submitted_;
}

Ticket Stream::last_work() {
  const std::lock_guard order(context_->submit_mutex);
  return last_ticket();
}

// The caller holds submit_mutex. The stream that began a capture ends it for
// all streams.
bool Stream::is_in_capture() {
  if (capture_.capture != nullptr && capture_.capture->over) capture_ = {};
  return capture_.capture != nullptr;
}

bool Stream::begin_capture() {
  const std::lock_guard order(context_->submit_mutex);
  if (is_in_capture()) return false;
  capture_.capture = std::make_shared<Capture>();
  static std::atomic<unsigned long long> next_id{1};
  capture_.capture->id = next_id++;
  capture_.capture->graph = graph_create();
  capture_.capture->origin = this;
  return true;
}

CapturePoint Stream::capture_point() {
  const std::lock_guard order(context_->submit_mutex);
  return is_in_capture() ? capture_ : CapturePoint{};
}

CUresult Stream::join_capture(const CapturePoint& point) {
  const std::lock_guard order(context_->submit_mutex);
  if (point.capture->spoilt) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (legacy_) {
    point.capture->spoilt = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!is_in_capture()) {
    capture_ = point;
    return CUDA_SUCCESS;
  }
  if (capture_.capture != point.capture) {
    capture_.capture->spoilt = true;
    point.capture->spoilt = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  for (const CUgraphNode node : point.after) {
    auto& after = capture_.after;
    if (std::find(after.begin(), after.end(), node) == after.end()) {
      after.push_back(node);
    }
  }
  return CUDA_SUCCESS;
}

size_t Stream::capture_dependencies(const CUgraphNode** nodes,
                                    const CUgraphEdgeData** edges) {
  const std::lock_guard order(context_->submit_mutex);
  told_ = capture_.after;
  told_edges_.assign(told_.size(), {});  // no edge has data
  *nodes = told_.data();
  *edges = told_edges_.data();
  return told_.size();
}

bool Stream::change_capture_dependencies(const CUgraphNode* nodes, size_t count,
                                         bool replace) {
  const std::lock_guard order(context_->submit_mutex);
  if (!is_in_capture()) return false;
  auto after = replace ? std::vector<CUgraphNode>{} : capture_.after;
  for (size_t i = 0; i < count; ++i) {
    const CUgraphNode node = find_node(nodes[i]);
    if (node == nullptr || node->graph != capture_.capture->graph) return false;
    if (std::find(after.begin(), after.end(), node) == after.end()) {
      after.push_back(node);
    }
  }
  for (const CUgraphNode node : capture_.after) {
    if (std::find(after.begin(), after.end(), node) == after.end()) {
      capture_.capture->given_up.push_back(node);
    }
  }
  capture_.after = std::move(after);
  return true;
}

void Stream::capture_continues_after(CUgraphNode node) {
  const std::lock_guard order(context_->submit_mutex);
  if (is_in_capture()) capture_.after = {node};
}

bool Stream::spoil_capture() {
  const std::lock_guard order(context_->submit_mutex);
  if (!is_in_capture()) return false;
  capture_.capture->spoilt = true;
  return true;
}

bool Stream::capture_is_spoilt() {
  const std::lock_guard order(context_->submit_mutex);
  return is_in_capture() && capture_.capture->spoilt;
}

CUresult Stream::end_capture(CUgraph* graph) {
  CapturePoint point = capture_point();
  if (point.capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (point.capture->origin != this) {
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  point.capture->over = true;
  // "Nodes that are removed from the dependency set via this API do not result
  // in CUDA_ERROR_STREAM_CAPTURE_UNJOINED."
  const auto& given_up = point.capture->given_up;
  point.after.insert(point.after.end(), given_up.begin(), given_up.end());
  const CUresult error = point.capture->spoilt
                             ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                         : !graph_ends_with(point.capture->graph, point.after)
                             ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                             : CUDA_SUCCESS;
  if (error != CUDA_SUCCESS) {
    graph_destroy(point.capture->graph);
    return error;
  }
  *graph = point.capture->graph;
  return CUDA_SUCCESS;
}

bool Stream::done(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return completed_ >= number;
}

void Stream::wait_all() {
  const Ticket last = race::on() ? last_work() : last_ticket();
  wait(last.number);
  if (last.done != nullptr) race::host_goes_on_after(*last.done);
}

Order Stream::order_so_far() {
  const std::lock_guard order(context_->submit_mutex);
  return behind_;
}

Order Stream::order_from_now() {
  const std::lock_guard order(context_->submit_mutex);
  Order frees = behind_;
  for (const Stream* other : implied()) merge(other->behind_, &frees);
  return frees;
}

void Stream::follow(const Order& frees) {
  const std::lock_guard order(context_->submit_mutex);
  merge(frees, &behind_);
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Stream::finished() {
  const std::lock_guard lock(mutex_);
  return closed_ && completed_ == submitted_;
}

CUresult stream_create(CUcontext owner, unsigned flags, int priority,
                       CUstream* stream) {
  if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto handle = std::make_shared<CUstream_st>();
  handle->stream = new_stream(owner, flags, priority);
  *stream = handles().add(std::move(handle));
  return CUDA_SUCCESS;
}

CUresult stream_destroy(CUstream handle) {
  const std::shared_ptr<CUstream_st> removed = handles().remove(handle);
  if (removed == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  removed->stream->close();
  // The stream stays in the list until its work is done, so a synchronization
  // still waits for this work.
  CUcontext context = removed->stream->context();
  const std::lock_guard lock(context->submit_mutex);
  auto& list = context->streams;
  const auto finished = [](const std::shared_ptr<Stream>& stream) {
    return stream->finished();
  };
  list.erase(std::remove_if(list.begin(), list.end(), finished), list.end());
  return CUDA_SUCCESS;
}

std::shared_ptr<Stream> resolve_stream(CUstream handle, CUcontext context) {
  const CUcontext current = current_context();
  const bool green = current != nullptr && current->green_of != nullptr &&
                     current->green_of == context;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    return green ? current->legacy : context->legacy;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    return green ? nullptr : per_thread_stream(context);
  }
  const std::shared_ptr<CUstream_st> found = handles().find(handle);
  return found == nullptr ? nullptr : found->stream;
}

bool legacy_stream_is_in_use(CUcontext context) {
  for (const std::shared_ptr<Stream>& stream : streams_of(context)) {
    if ((stream->flags() & CU_STREAM_NON_BLOCKING) == 0 &&
        stream->capturing()) {
      return true;
    }
  }
  return false;
}

std::vector<std::shared_ptr<Stream>> streams_of(CUcontext context) {
  const CUcontext whole = whole_of(context);
  const std::lock_guard lock(whole->submit_mutex);
  std::vector<std::shared_ptr<Stream>> streams;
  for (const std::shared_ptr<Stream>& stream : whole->streams) {
    if (belongs_to(*stream, context)) streams.push_back(stream);
  }
  if (context == whole && context->legacy != nullptr) {
    streams.push_back(context->legacy);
  }
  return streams;
}

void destroy_streams(CUcontext context) {
  handles().remove_if([context](const CUstream_st& handle) {
    return belongs_to(*handle.stream, context);
  });
  const CUcontext whole = whole_of(context);
  const std::lock_guard lock(whole->submit_mutex);
  auto& streams = whole->streams;
  const auto closed = [context](const std::shared_ptr<Stream>& stream) {
    if (!belongs_to(*stream, context)) return false;
    stream->close();
    return true;
  };
  streams.erase(std::remove_if(streams.begin(), streams.end(), closed),
                streams.end());
  context->legacy->close();
  context->recorder = nullptr;
  if (context == whole) context->waits.clear();
}

void give_stream(CUcontext owner, const std::shared_ptr<Stream>& stream) {
  const CUcontext whole = whole_of(owner);
  std::vector<std::shared_ptr<ContextWait>> waits;
  {
    const std::lock_guard lock(whole->submit_mutex);
    whole->streams.push_back(stream);
    forget_ended_waits(whole);
    waits = whole->waits;
  }
  for (const std::shared_ptr<ContextWait>& wait : waits) {
    if (belongs_to(*stream, wait->context)) begin_wait(stream, *wait);
  }
}

std::shared_ptr<Stream> recorder_of(CUcontext context,
                                    std::vector<Ticket>* after, Order* frees) {
  const CUcontext whole = whole_of(context);
  const std::lock_guard lock(whole->submit_mutex);
  if (context->recorder == nullptr) {
    context->recorder =
        std::make_shared<Stream>(context, CU_STREAM_NON_BLOCKING, 0, false);
    whole->streams.push_back(context->recorder);
  }
  const auto add = [&](Stream* stream) {
    after->push_back(stream->last_ticket());
    merge(stream->behind_, frees);
  };
  for (const std::shared_ptr<Stream>& stream : whole->streams) {
    if (belongs_to(*stream, context)) add(stream.get());
  }
  if (context == whole) add(whole->legacy.get());
  return context->recorder;
}

void context_waits(ContextWait wait) {
  const auto kept = std::make_shared<ContextWait>(std::move(wait));
  const CUcontext whole = whole_of(kept->context);
  {
    const std::lock_guard lock(whole->submit_mutex);
    forget_ended_waits(whole);
    whole->waits.push_back(kept);
  }
  for (const auto& stream : streams_of(kept->context)) {
    begin_wait(stream, *kept);
  }
}

bool spoil_captures(CUcontext context) {
  bool found = false;
  for (const std::shared_ptr<Stream>& stream : streams_of(context)) {
    found = stream->spoil_capture() || found;
  }
  return found;
}

}  // namespace ipclab::model
