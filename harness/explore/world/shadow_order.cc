// Streams, events, gates, and calls that wait.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "harness/explore/world/shadow.h"

namespace ipclab::explore {
namespace {

constexpr int kNotReady = 600;

}  // namespace

// May this stream wait while work of other streams goes on? No sentence
// promises that streams go on side by side. A machine is tried with two; the
// suite assumes it of no more than four held streams.
bool Shadow::may_hold(const Stream& held) {
  constexpr int kMostHeld = 4;
  if (!machine.side_by_side) return no("a held stream would hold all");
  const auto others =
      std::count_if(streams.begin(), streams.end(), [&](const auto& entry) {
        return entry.second.process == held.process &&
               entry.second.lane != held.lane && !entry.second.queue.empty();
      });
  return others < kMostHeld || no("too many streams are held");
}

// A host call that waits for work: it returns now, or it is held.
bool Shadow::wait_on(const Step& step, std::vector<WorkPtr> until,
                     Expected* expected, const char* row) {
  // LEVT-13 says that nothing waits for a record that was replaced.
  if (std::any_of(until.begin(), until.end(),
                  [](const auto& work) { return work->replaced; }))
    row = "LEVT-13";
  expected->row = row;
  const bool over = std::all_of(until.begin(), until.end(),
                                [](const auto& work) { return work->done; });
  const Held call{step.process, step.thread, step, std::move(until)};
  if (over) {
    returns(call);
    if (step.how == kCall) release_unused(step.process);
    return true;
  }
  if (step.group != 0) return no("a held call is not in a group");
  if (step.how == kPoll) return no("nothing holds what is polled");
  held.push_back(call);
  process[step.process].held[step.thread] = true;
  expected->held = true;
  return true;
}

bool Shadow::order_step(const Step& step, Expected* expected) {
  const int me = step.process;
  const auto event_found = events.find(step.on);
  Event* const event =
      event_found != events.end() && event_found->second.process == me
          ? &event_found->second
          : nullptr;
  // What the work of this step comes after, besides its stream.
  const auto queue = [&](Stream& stream, WorkPtr after,
                         std::function<bool()> ready) {
    const WorkPtr work = plan(step, stream);
    if (after != nullptr) {
      work->clock.join(after->clock);
      work->replaced = work->replaced || after->replaced;
      if (!after->done) work->after.push_back(after);
    }
    work->ready = std::move(ready);
    commit(work, {});
    return work;
  };
  switch (step.op) {
    case Op::kCreateStream: {
      if (!fresh(step.id) || step.how < 0 || step.how >= kStreamHows)
        return no("no such stream");
      if (!quiet(me)) return no("the process holds work");
      make_stream(step.id, me).blocking = step.how == kBlocking;
      expected->row = "LEVT-29";
      return true;
    }
    case Op::kDestroyStream: {
      const auto found = streams.find(step.on);
      if (step.on <= 0 || found == streams.end() ||
          found->second.process != me || found->second.capture != 0)
        return no("no such stream");
      const Stream& stream = found->second;
      if (!quiet(me)) return no("the process holds work");
      if (stream.last != nullptr && !is_known(*stream.last))
        return no("its work may be unfinished");
      for (const Held& call : held)
        if (call.step.stream == step.on) return no("a thread waits for it");
      streams.erase(found);
      expected->row = "LEVT-29";
      return true;
    }
    case Op::kCreateEvent: {
      if (!fresh(step.id) || step.how < 0 || step.how >= kEventHows)
        return no("no such event");
      Event made;
      made.process = me;
      made.shared = std::make_shared<EventShared>();
      made.shared->owner = me;
      made.shared->how = step.how;
      events[step.id] = made;
      expected->row = "LEVT-01";
      return true;
    }
    case Op::kExportEvent: {
      if (!machine.legacy) return no("no legacy handles here");
      if (event == nullptr || event->imported || event->shared->how == kLocal ||
          !fresh(step.id))
        return no("no event that can be shared");
      Handle made;
      made.made_by = step.op;
      made.event = event->shared;
      made.process = me;
      handles[step.id] = made;
      expected->row = "LEVT-01";
      return true;
    }
    case Op::kOpenEvent: {
      const auto handle = handles.find(step.on);
      if (handle == handles.end() ||
          handle->second.made_by != Op::kExportEvent || !fresh(step.id))
        return no("no such handle");
      const auto shared = handle->second.event;
      if (shared->owner == me) return no("a handle is for another process");
      bool lives = false;
      for (const auto& [id, other] : events)
        lives = lives || (other.shared == shared && !other.imported);
      if (!lives) return no("the event is destroyed");
      Event made;
      made.process = me;
      made.shared = shared;
      made.imported = true;
      events[step.id] = made;
      expected->row = "LEVT-19";
      return true;
    }
    case Op::kDestroyEvent: {
      if (event == nullptr) return no("no such event");
      for (const Held& call : held)
        if (call.step.on == step.on && call.step.op == Op::kSyncEvent)
          return no("a thread waits for it");
      if (!event->imported) {
        for (const auto& [id, other] : events)
          if (other.shared == event->shared && other.process != me)
            return no("another process has it open");
        for (const WorkPtr& use : event->shared->uses)
          if (!is_known(*use)) return no("it may be in use");
      }
      expected->row = event->imported ? "LEVT-20" : "LEVT-06";
      events.erase(event_found);
      return true;
    }
    case Op::kRecord:
    case Op::kWait: {
      Stream* const stream = stream_of(step);
      if (stream == nullptr) return false;
      if (event == nullptr) return no("no such event");
      if (process[me].capture != 0) return branch_step(step, event, expected);
      EventShared& shared = *event->shared;
      if (step.op == Op::kWait && shared.captured != 0)
        return no("its last record was captured");
      if (step.op == Op::kRecord &&
          machine.gpu_of(shared.owner) != machine.gpu_of(me))
        return no("an event of another GPU");
      if (step.op == Op::kRecord)
        for (const Held& call : held)
          if (call.step.op == Op::kSyncEvent &&
              events.at(call.step.on).shared == event->shared)
            return no("a thread may start to wait only later");
      const WorkPtr before = shared.record;
      if (step.op == Op::kWait && before != nullptr && !before->done &&
          !may_hold(*stream))
        return false;
      const bool replaces = step.op == Op::kRecord && before != nullptr &&
                            !is_known(*before) &&
                            (before->stream != step.stream || before->replaced);
      if (replaces && machine.records_wait) return no("a known deviation");
      const WorkPtr work =
          queue(*stream, step.op == Op::kWait ? before : nullptr, nullptr);
      if (step.op == Op::kRecord) {
        work->replaced = work->replaced || replaces;
        shared.record = work;
        shared.captured = 0;
      }
      auto& uses = shared.uses;
      uses.erase(
          std::remove_if(uses.begin(), uses.end(),
                         [&](const auto& use) { return is_known(*use); }),
          uses.end());
      uses.push_back(work);
      expected->row = step.op == Op::kRecord ? "LEVT-14"
                      : event->imported      ? "LEVT-07"
                                             : "LEVT-10";
      return true;
    }
    case Op::kQueryEvent: {
      if (event == nullptr) return no("no such event");
      if (event->shared->captured != 0)
        return no("its last record was captured");
      const WorkPtr& record = event->shared->record;
      expected->row = record == nullptr  ? "LEVT-11"
                      : record->replaced ? "LEVT-13"
                                         : "LEVT-09";
      if (record != nullptr && !record->done)
        expected->codes = {kNotReady};
      else if (record != nullptr && !is_known(*record))
        expected->codes = {0, kNotReady};
      return true;
    }
    case Op::kSyncEvent: {
      if (event == nullptr) return no("no such event");
      if (step.how < 0 || step.how >= kSyncHows) return no("no such way");
      if (event->shared->captured != 0)
        return no("its last record was captured");
      std::vector<WorkPtr> until;
      if (event->shared->record != nullptr)
        until.push_back(event->shared->record);
      return wait_on(step, until, expected, "LEVT-08");
    }
    case Op::kQueryStream: {
      Stream* const stream = stream_of(step);
      if (stream == nullptr) return false;
      if (stream->capture != 0) return no("not in a capture");
      const bool replaced = stream->last != nullptr && stream->last->replaced;
      expected->row = replaced ? "LEVT-13" : "LEVT-07";
      if (is_legacy(step.stream)) {
        // Does it also speak of the blocking streams? Both are accepted.
        if (!quiet(me)) return no("the process holds work");
        expected->codes = {0, kNotReady};
      } else if (!stream->queue.empty()) {
        expected->codes = {kNotReady};
      } else if (!stream->synced) {
        expected->codes = {0, kNotReady};
      }
      return true;
    }
    case Op::kSyncStream: {
      Stream* const stream = stream_of(step);
      if (stream == nullptr) return false;
      if (stream->capture != 0) return no("not in a capture");
      if (step.how < 0 || step.how >= kSyncHows) return no("no such way");
      if (is_legacy(step.stream) && !quiet(me))
        return no("it may also wait for blocking streams");
      std::vector<WorkPtr> until;
      if (stream->last != nullptr) until.push_back(stream->last);
      return wait_on(step, until, expected, "LEVT-07");
    }
    case Op::kSyncDevice: {
      if (step.how != kCall) return no("no such way");
      std::vector<WorkPtr> until;
      for (const auto& [id, stream] : streams)
        if (stream.process == me && stream.last != nullptr)
          until.push_back(stream.last);
      return wait_on(step, until, expected, "LEVT-07");
    }
    case Op::kGate: {
      Stream* const stream = stream_of(step);
      if (stream == nullptr) return false;
      if (stream->capture != 0) return no("not in a capture");
      if (!may_hold(*stream)) return false;
      if (is_legacy(step.stream)) return no("no gate holds all streams");
      if (!fresh(step.id) || step.value < 0 || step.value >= kGates ||
          step.how < 0 || step.how >= kGateHows)
        return no("no such gate");
      if (step.how == kGateWord && !machine.words)
        return no("streams cannot wait for words here");
      for (const auto& [id, gate] : gates)
        if (gate.word == step.value) return no("the gate's word is taken");
      gates[step.id] = {false, step.value, me};
      queue(*stream, nullptr,
            [this, gate = step.id] { return gates.at(gate).open; });
      expected->row = "FLAG-01";
      return true;
    }
    default: {  // kOpenGate
      const auto gate = gates.find(step.on);
      if (gate == gates.end() || gate->second.open ||
          gate->second.word != step.value)
        return no("no closed gate");
      gate->second.open = true;
      return true;
    }
  }
}

}  // namespace ipclab::explore
