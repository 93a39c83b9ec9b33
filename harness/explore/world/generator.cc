// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/generator.h"

#include <algorithm>

namespace ipclab::explore {
namespace {

constexpr int64_t kWindow = 4096;  // programs use the bytes of a few windows
constexpr int kTries = 12;

}  // namespace

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Generator::Generator(const Machine& machine, int processes, Coverage& coverage,
                     uint64_t seed)
    : machine_(machine),
      processes_(processes),
      coverage_(coverage),
      random_(seed),
      seed_(seed),
      shadow_(machine, processes) {}

// --- actors and places ------------------------------------------------------

bool Generator::emit(Step step) {
  step.group = group_;
  name_gpus(step);
  Expected expected;
  if (!shadow_.apply(step, &expected)) return false;
  coverage_.add(step, shadow_);
  program_.steps.push_back(step);
  const bool writes = (step.op >= Op::kWrite && step.op <= Op::kUpload) ||
                      step.op == Op::kHostWrite;
  if (const auto view = shadow_.views.find(step.on);
      writes && view != shadow_.views.end()) {
    constexpr size_t kMostUnread = 24;
    const int64_t lines = std::max(step.rows, 1) * std::max(step.layers, 1);
    const int64_t span = (lines - 1) * step.pitch + step.bytes;
    if (unread_.size() >= kMostUnread) unread_.erase(unread_.begin());
    unread_.push_back(
        {view->second.memory, {step.at, std::min(span, kWindow)}});
  }
  if (step.op == Op::kLaunch)
    for (const Step& node : shadow_.graphs.at(step.on).nodes)
      if (const auto view = shadow_.views.find(node.on);
          view != shadow_.views.end())
        unread_.push_back({view->second.memory, {node.at, node.bytes}});
  return true;
}

// Some calls name the GPU of what they are about.
void Generator::name_gpus(Step& step) const {
  const auto gpu = [&](int view) {
    const auto found = shadow_.views.find(view);
    return found == shadow_.views.end()
               ? 0
               : machine_.gpu_of(found->second.memory->owner);
  };
  const auto pool = shadow_.pools.find(step.on);
  const auto handle = shadow_.handles.find(step.on);
  const auto chunk = shadow_.chunks.find(step.on);
  if (step.op == Op::kCopy && step.how == kCopyPeerAsync)
    step.value = gpu(step.on) + kMostGpus * gpu(step.from);
  if (step.op == Op::kImportPool && handle != shadow_.handles.end() &&
      handle->second.pool != nullptr)
    step.value = machine_.gpu_of(handle->second.pool->owner);
  if (step.op == Op::kAskChunk && chunk != shadow_.chunks.end()) {
    step.how = chunk->second.memory->kind == Kind::kNode ? kOnNode : kOnGpu;
    step.value =
        step.how == kOnNode ? 0 : machine_.gpu_of(chunk->second.memory->owner);
  }
  if ((step.op == Op::kQuestion || step.op == Op::kRefuse) &&
      step.how >= (step.op == Op::kRefuse ? int{kFirstOfList} : 0) &&
      pool != shadow_.pools.end())
    step.value = machine_.gpu_of(pool->second.shared->owner);
}

Step Generator::by(int process, int thread) {
  Step step;
  step.process = process;
  step.thread = thread;
  step.api = random_.below(2);
  return step;
}

Step Generator::by(int process) { return by(process, free_thread(process)); }

int Generator::some_process() {
  for (int i = 0; i < kTries; ++i) {
    const int p = random_.below(processes_);
    if (shadow_.process[static_cast<size_t>(p)].alive) return p;
  }
  return 0;
}

int Generator::other_process(int than) {
  for (int i = 0; i < kTries; ++i)
    if (const int p = some_process(); p != than) return p;
  return than;
}

int Generator::free_thread(int process) {
  const int first = random_.chance(60) ? 0 : random_.below(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    const int thread = (first + i) % kThreads;
    if (!shadow_.process[static_cast<size_t>(process)].held[thread])
      return thread;
  }
  return 0;
}

// A stream in which the actor may queue work.
int Generator::some_stream(const Step& actor) {
  std::vector<int> all = {legacy_stream(actor.process),
                          thread_stream(actor.process, actor.thread)};
  for (const auto& [id, stream] : shadow_.streams)
    if (id > 0 && stream.process == actor.process) all.insert(all.end(), 3, id);
  // Now and then the stream in which the least known pair would arise.
  int best = random_.of(all);
  Step trial = actor;
  for (int i = 0; i < 2; ++i) {
    const int other = random_.of(all);
    trial.stream = best;
    const int now = coverage_.follows(trial);
    trial.stream = other;
    if (coverage_.follows(trial) < now) best = other;
  }
  return best;
}

// A stream that is not a default stream; 0 if the process has none.
int Generator::own_stream(int process) {
  std::vector<int> all;
  for (const auto& [id, stream] : shadow_.streams)
    if (id > 0 && stream.process == process && stream.capture == 0)
      all.push_back(id);
  return all.empty() ? 0 : random_.of(all);
}

std::vector<int> Generator::views_of(int process) const {
  std::vector<int> all;
  for (const auto& [id, view] : shadow_.views)
    if (view.process == process && view.access == 3) all.push_back(id);
  return all;
}

std::vector<int> Generator::views_of(int process, const Memory* memory) const {
  std::vector<int> all;
  for (const auto& [id, view] : shadow_.views)
    if (view.process == process && view.access == 3 &&
        view.memory.get() == memory)
      all.push_back(id);
  return all;
}

// A kernel that waits keeps its part of the GPU busy, which makes the work of
// all other processes slow.
int Generator::gate_kind() {
  return machine_.words && random_.chance(95) ? kGateWord : kGateKernel;
}

Generator::Place Generator::some_place(int64_t bytes, int64_t most) {
  const int64_t window = std::min(bytes, kWindow);
  const int64_t base = random_.of({0, 1, 2}) == 0 ? 0
                       : random_.chance(50)
                           ? bytes - window
                           : (bytes - window) / 2 / 4096 * 4096;
  int64_t size = int64_t{1} << random_.below(13);
  if (random_.chance(40)) size = 1 + random_.below(static_cast<int>(window));
  size = std::max<int64_t>(1, std::min({size, window, most}));
  const int64_t room = window - size;
  int64_t at = 0;
  switch (random_.below(4)) {
    case 0:
      break;
    case 1:
      at = room;
      break;
    case 2:
      at = room == 0 ? 0 : random_.below(static_cast<int>(room) + 1);
      break;
    default:
      at = room == 0 ? 0 : random_.below(static_cast<int>(room) + 1) / 16 * 16;
  }
  return {base + at, size};
}

// A place in a memory, or from a mapping into the next one beside it. Not from
// or into memory of a node: processes died of copies there, so
// VmmAccess.MemoryOfAGpuAndOfANodeLieSideBySide judges it alone.
Generator::Place Generator::place_of(int view) {
  const View& first = shadow_.views.at(view);
  const int64_t bytes = first.memory->bytes;
  if (first.range != 0 && random_.chance(40))
    for (const auto& [id, next] : shadow_.views)
      if (next.range == first.range && next.access == 3 &&
          first.memory->kind == Kind::kChunk &&
          next.memory->kind == Kind::kChunk && next.at == first.at + bytes) {
        const int64_t before = 1 + random_.below(kWindow / 2);
        return {bytes - before, before + 1 + random_.below(kWindow / 2)};
      }
  return some_place(bytes, kWindow);
}

// --- work -------------------------------------------------------------------

// Some way of giving bytes a value.
bool Generator::write_somewhere(const Step& actor, int view, Place place,
                                int stream) {
  Step step = actor;
  step.on = view;
  step.at = place.at;
  step.bytes = place.bytes;
  step.stream = stream;
  step.value = static_cast<int64_t>(random_.next() & 0x7fffffff);
  const View& target = shadow_.views.at(view);
  switch (random_.below(10)) {
    case 0:
    case 1:
    case 2:
      step.op = Op::kWrite;
      step.how = random_.below(kHostFunction);
      if (is_pinned(target.memory->kind) && random_.chance(40))
        step.how = kHostFunction;
      break;
    case 3:
    case 4:
    case 5:
      step.op = Op::kSet;
      step.how = random_.below(kSetHows);
      if (step.how >= kSet8Sync && !is_legacy(stream)) {
        if (shadow_.quiet(actor.process) && random_.chance(50))
          step.stream = legacy_stream(actor.process);
        else
          step.how -= kSet8Sync;
      }
      if (step.how % 3 != kSet8) {
        const int64_t width = step.how % 3 == kSet16 ? 2 : 4;
        step.at = step.at / width * width;
        step.bytes = std::max(width, step.bytes / width * width);
      }
      if (step.bytes >= 8 && random_.chance(30)) {
        step.rows = random_.of({2, 3, 4});
        step.layers = random_.chance(30) && step.how % 3 == kSet8 ? 2 : 0;
        if (step.layers != 0) step.api = 0;
        const int64_t lines = step.rows * std::max(step.layers, 1);
        step.pitch = step.bytes / lines / 4 * 4;
        step.bytes = std::max<int64_t>(4, step.pitch - random_.of({0, 4}));
        if (step.pitch < step.bytes) return false;
      }
      break;
    case 6:
      if (!is_device(target.memory->kind)) return false;
      step.op = Op::kUpload;
      step.how = random_.below(kUploadHows);
      if (step.how != kUploadAsync) step.stream = legacy_stream(actor.process);
      if (step.how == kUpload2D && step.bytes >= 8) {
        step.rows = 2;
        step.pitch = step.bytes / 2;
        step.bytes = std::max<int64_t>(1, step.pitch - random_.below(3));
      }
      break;
    default: {
      // A copy from other memory, in the way that is least known.
      const std::vector<int> sources = views_of(actor.process);
      Step best;
      int least = 1 << 30;
      for (int i = 0; i < 5; ++i) {
        Step trial = step;
        trial.op = Op::kCopy;
        trial.value = 0;
        trial.from = random_.of(sources);
        const int64_t size = shadow_.views.at(trial.from).memory->bytes;
        Place from = place_of(trial.from);
        if (from.bytes > trial.bytes) from = some_place(size, trial.bytes);
        trial.from_at = from.at;
        trial.bytes = from.bytes;
        // A synchronous call may wait for all work of the process.
        const bool captures =
            shadow_.process[static_cast<size_t>(actor.process)].capture != 0;
        trial.how = captures
                        ? random_.of({kCopyKernel, kCopyAsync, kCopyAsyncKind,
                                      kCopy2DAsync, kCopy3DAsync})
                        : random_.below(shadow_.quiet(actor.process)
                                            ? int{kCopyHows}
                                            : int{kFirstSyncCopy});
        if ((trial.how == kCopyBatch || trial.how == kCopy3DBatch) &&
            (!machine_.batches || is_legacy(trial.stream)))
          trial.how -= 2;  // the same copy in a call of its own
        if (trial.how >= kFirstSyncCopy)
          trial.stream = legacy_stream(actor.process);
        const bool box = trial.how == kCopy2DAsync ||
                         trial.how == kCopy3DAsync ||
                         trial.how == kCopy3DBatch ||
                         trial.how == kCopy2DSync || trial.how == kCopy3DSync;
        if (box && trial.bytes >= 16) {
          const bool deep =
              trial.how != kCopy2DAsync && trial.how != kCopy2DSync;
          trial.rows = random_.of({1, 2, 3});
          trial.layers = deep ? random_.of({0, 2}) : 0;
          const int64_t lines = trial.rows * std::max(trial.layers, 1);
          trial.pitch = trial.from_pitch = trial.bytes / lines;
          trial.bytes = std::max<int64_t>(1, trial.pitch - random_.below(4));
        }
        if (const int known = coverage_.uses(trial, shadow_); known < least) {
          least = known;
          best = trial;
        }
      }
      step = best;
    }
  }
  return emit(step);
}

Step Generator::some_read(Step actor, int view, Place place, int stream) {
  actor.op = Op::kRead;
  actor.on = view;
  actor.at = place.at;
  actor.bytes = place.bytes;
  actor.stream = stream;
  actor.how = random_.below(kReadHows);
  if (actor.how >= kReadSync) actor.stream = legacy_stream(actor.process);
  if (actor.how == kRead2D && actor.bytes >= 8) {
    actor.rows = 2;
    actor.pitch = actor.bytes / 2;
    actor.bytes = std::max<int64_t>(1, actor.pitch - random_.below(3));
  }
  return actor;
}

// Reads a place by any process that can.
void Generator::look_at(int view) {
  const auto found = shadow_.views.find(view);
  if (found == shadow_.views.end()) return;
  const MemoryPtr memory = found->second.memory;
  for (int i = 0; i < 4; ++i) {
    const int p = random_.chance(50) ? found->second.process : some_process();
    const std::vector<int> ways = views_of(p, memory.get());
    if (ways.empty()) continue;
    const Step actor = by(p);
    const int way = random_.of(ways);
    if (emit(some_read(actor, way, place_of(way), some_stream(actor)))) return;
  }
}

// Reads something that was written and not read since, by any process that can.
bool Generator::look_at_unread() {
  if (unread_.empty()) return false;
  const size_t which =
      static_cast<size_t>(random_.below(static_cast<int>(unread_.size())));
  const Unread one = unread_[which];
  unread_.erase(unread_.begin() + static_cast<long>(which));
  const MemoryPtr memory = one.memory.lock();
  std::vector<int> ways;
  for (const auto& [id, view] : shadow_.views)
    if (view.memory == memory && (view.access & 1) != 0) ways.push_back(id);
  if (memory == nullptr || ways.empty()) return false;
  const int way = random_.of(ways);
  const Step actor = by(shadow_.views.at(way).process);
  return emit(some_read(actor, way, one.place, some_stream(actor)));
}

void Generator::work() {
  const int p = some_process();
  const std::vector<int> views = views_of(p);
  if (views.empty()) return;
  const int burst = 2 + random_.below(5);
  for (int i = 0; i < burst; ++i) {
    const Step actor = by(p);
    const int view = random_.of(views);
    const Place place = place_of(view);
    const int stream = some_stream(actor);
    if (random_.chance(30)) {
      emit(some_read(actor, view, place, stream));
    } else {
      const bool done = write_somewhere(actor, view, place, stream);
      if (!done && random_.chance(20)) settle(p);
    }
  }
  const int view = random_.of(views);
  const Kind kind = shadow_.views.at(view).memory->kind;
  if (!is_device(kind) && random_.chance(50)) {
    const Place place =
        some_place(shadow_.views.at(view).memory->bytes, kWindow);
    Step step = by(p);
    step.op = random_.chance(40) ? Op::kHostWrite : Op::kHostRead;
    step.on = view;
    step.at = place.at;
    step.bytes = place.bytes;
    if (step.op == Op::kHostWrite)
      step.value = static_cast<int64_t>(random_.next() & 0x7fffffff);
    step.api = 0;
    emit(step);
  }
}

// One process writes, another reads after an event.
void Generator::hand_over() {
  std::vector<int> events;
  for (const auto& [id, event] : shadow_.events) events.push_back(id);
  if (!events.empty()) hand_over(random_.of(events));
}

void Generator::hand_over(int event) {
  const int p = shadow_.events.at(event).process;
  const int q = other_process(p);
  const int theirs = event_in(event, q);
  if (theirs == 0) return;
  // Memory that both can use.
  std::vector<std::pair<int, int>> both;
  for (const int mine : views_of(p))
    for (const int his : views_of(q, shadow_.views.at(mine).memory.get()))
      both.emplace_back(mine, his);
  if (both.empty()) return;
  const auto [mine, his] = random_.of(both);
  const int64_t size = shadow_.views.at(mine).memory->bytes;
  const Step writer = by(p), reader = by(q);
  const int from = some_stream(writer), to = some_stream(reader);
  int gate = 0;
  if (random_.chance(50) && next_gate_ < kGates - 1) {
    Step step = writer;
    step.op = Op::kGate;
    step.id = gate = number();
    step.stream = from;
    step.how = gate_kind();
    step.value = next_gate_;
    if (emit(step))
      ++next_gate_;
    else
      gate = 0;
  }
  const Place place = some_place(size, kWindow);
  if (!write_somewhere(writer, mine, place, from)) settle(p);
  Step record = by(p, writer.thread);
  record.op = Op::kRecord;
  record.on = event;
  record.stream = from;
  record.how = random_.below(2);
  if (!emit(record)) return;
  if (random_.chance(70)) {
    Step wait = by(q, reader.thread);
    wait.op = Op::kWait;
    wait.on = theirs;
    wait.stream = to;
    emit(wait);
    // In its stream, the reader uses what the writer wrote.
    const std::vector<int> locals = views_of(q);
    Step copy = by(q, reader.thread);
    copy.op = Op::kCopy;
    copy.on = random_.of(locals);
    copy.from = his;
    copy.from_at = place.at;
    copy.bytes = place.bytes;
    const Place target =
        some_place(shadow_.views.at(copy.on).memory->bytes, place.bytes);
    copy.at = target.at;
    copy.bytes = std::min(copy.bytes, target.bytes);
    copy.stream = to;
    copy.how = random_.below(kCopyBatch);
    if (copy.how >= kCopy2DAsync && copy.bytes >= 4) {
      copy.rows = 2;
      copy.bytes /= 2;
      copy.pitch = copy.from_pitch = copy.bytes;
    }
    emit(copy);
    if (random_.chance(40))
      write_somewhere(by(q, reader.thread), his, place, to);
    if (random_.chance(40)) {  // any other way to do work
      const int local = random_.of(locals);
      write_somewhere(by(q, reader.thread), local, place_of(local), to);
    }
  }
  if (gate != 0) {
    Step query = by(q);
    query.op = random_.chance(70) ? Op::kQueryEvent : Op::kQueryStream;
    query.on = query.op == Op::kQueryEvent ? theirs : 0;
    query.stream = query.op == Op::kQueryStream ? to : 0;
    emit(query);
    if (random_.chance(50)) look_at(mine);
    if (random_.chance(70)) open_gates(100);
  }
  if (random_.chance(60)) {
    Step sync = by(q);
    sync.op = random_.chance(50) ? Op::kSyncEvent : Op::kSyncStream;
    sync.on = sync.op == Op::kSyncEvent ? theirs : 0;
    sync.stream = sync.op == Op::kSyncStream ? to : 0;
    sync.how = random_.below(kSyncHows);
    if (is_thread_stream(to)) sync.thread = reader.thread;
    emit(sync);
    Step query = by(random_.chance(50) ? p : q);
    query.op = Op::kQueryEvent;
    query.on = query.process == p ? event : theirs;
    emit(query);
    const Step looker = by(q);
    emit(some_read(looker, his, place, some_stream(looker)));
  }
}

// What held work will overwrite is still there.
void Generator::peek() {
  const int p = some_process();
  const std::vector<int> views = views_of(p);
  const int stream = own_stream(p);
  if (views.empty() || stream == 0 || next_gate_ >= kGates - 1) return;
  const int view = random_.of(views);
  const Step actor = by(p);
  Step gate = actor;
  gate.op = Op::kGate;
  gate.id = number();
  gate.stream = stream;
  gate.how = gate_kind();
  gate.value = next_gate_;
  if (!emit(gate)) return;
  ++next_gate_;
  const Place place = place_of(view);
  const int writes = 1 + random_.below(3);
  for (int i = 0; i < writes; ++i) write_somewhere(actor, view, place, stream);
  const int looks = 1 + random_.below(3);
  for (int i = 0; i < looks; ++i) {
    if (random_.chance(25)) {
      Step query = by(p);
      query.op = Op::kQueryStream;
      query.stream = stream;
      emit(query);
    } else {
      look_at(view);
    }
  }
  if (random_.chance(75)) {
    open_gates(100);
    settle(p);
    look_at(view);
  }
}

// A thread waits in a call while others go on.
void Generator::hold_host() {
  const int p = some_process();
  const int stream = own_stream(p);
  if (stream == 0 || next_gate_ >= kGates - 1) return;
  const Step actor = by(p);
  Step gate = actor;
  gate.op = Op::kGate;
  gate.id = number();
  gate.stream = stream;
  gate.how = gate_kind();
  gate.value = next_gate_;
  if (!emit(gate)) return;
  ++next_gate_;
  std::vector<int> events;
  for (const auto& [id, event] : shadow_.events)
    if (event.process == p) events.push_back(id);
  int event = 0;
  if (!events.empty()) {
    Step record = actor;
    record.op = Op::kRecord;
    record.on = event = random_.of(events);
    record.stream = stream;
    if (!emit(record)) event = 0;
  }
  const int q = event != 0 && random_.chance(60) ? some_process() : p;
  Step sync = by(q);
  const int theirs = event != 0 ? (q == p ? event : event_in(event, q)) : 0;
  const int waits = own_stream(q);
  if (theirs != 0 && waits != 0 && random_.chance(40)) {
    // The host waits for a stream that waits for the event.
    Step wait = sync;
    wait.op = Op::kWait;
    wait.on = theirs;
    wait.stream = waits;
    if (!emit(wait)) return;
    sync.op = random_.chance(50) ? Op::kSyncStream : Op::kSyncDevice;
    sync.stream = sync.op == Op::kSyncStream ? waits : 0;
  } else if (theirs != 0) {
    sync.op = Op::kSyncEvent;
    sync.on = theirs;
  } else if (q != p) {
    return;
  } else {
    sync.op = random_.chance(50) ? Op::kSyncStream : Op::kSyncDevice;
    sync.stream = sync.op == Op::kSyncStream ? stream : 0;
  }
  emit(sync);
  const int between = 1 + random_.below(3);
  for (int i = 0; i < between; ++i) {
    if (random_.chance(50))
      work();
    else
      ask();
  }
  open_gates(100);
}

// A stream of one process waits for a word that another writes.
void Generator::words() {
  const int p = some_process(), q = some_process();
  std::vector<std::pair<int, int>> both;
  for (const int mine : views_of(p))
    for (const int his : views_of(q, shadow_.views.at(mine).memory.get()))
      both.emplace_back(mine, his);
  const int waits = own_stream(p), writes = own_stream(q);
  if (both.empty() || waits == 0 || writes == 0 || waits == writes) return;
  const auto [mine, his] = random_.of(both);
  const Memory& memory = *shadow_.views.at(mine).memory;
  // Words have places of their own, beside the windows.
  if (memory.bytes < 3 * kWindow) return;
  const int64_t bytes = random_.chance(55) ? 4 : 8;
  const int64_t at = kWindow + 8 * random_.below(16);
  if (memory.words.count(at) == 0) {
    if (!shadow_.quiet(p)) return;
    Step first = by(p);
    first.op = Op::kSet;
    first.on = mine;
    first.at = at;
    first.bytes = 8;
    first.stream = waits;
    if (!emit(first)) return;
    settle(p);
  }
  uint64_t last = 0;
  if (const auto word = memory.words.find(at); word != memory.words.end()) {
    if (word->second.bytes != bytes) return;
    last = word->second.writes.empty() ? word->second.initial
                                       : word->second.writes.back().second;
  }
  // Small steps, and steps that change the upper bits, but never half a turn.
  const uint64_t limit = bytes == 4 ? 0x7fffffff : uint64_t{1} << 62;
  uint64_t step = 1 + random_.next() % 7;
  if (random_.chance(30)) step = 1 + random_.next() % (limit / 4);
  if (random_.chance(30))  // the lower bits stay
    step = uint64_t{1} << (16 + random_.below(bytes == 4 ? 13 : 44));
  if (last + step + 8 > limit) return;
  const int64_t next = static_cast<int64_t>(last + step);
  Step wait = by(p);
  wait.op = Op::kWaitWord;
  wait.on = mine;
  wait.at = at;
  wait.bytes = bytes;
  wait.stream = waits;
  wait.how = random_.below(kWaitWordHows);
  wait.value = next;
  Step write = by(q);
  write.op = Op::kWriteWord;
  write.on = his;
  write.at = at;
  write.bytes = bytes;
  write.stream = writes;
  write.how = random_.below(kWriteWordHows);
  write.value = next;
  if (wait.how % kConditions == kGreaterOrEqual)
    write.value = next + random_.below(3);
  // One bit that the word does not have yet.
  const int64_t missing = next & ~static_cast<int64_t>(last);
  if (wait.how % kConditions == kAnd && missing != 0) {
    wait.value = missing;
    while (random_.chance(70) && (wait.value & (wait.value - 1)) != 0)
      wait.value &= wait.value - 1;
    wait.value &= -wait.value;
  }
  // All bits of the word or of the value are set until the lowest one goes.
  if (wait.how % kConditions == kNor) {
    if (last == 0 || bytes == 8) {
      wait.how -= kNor;  // the default condition
    } else {
      wait.value = static_cast<int64_t>(~last & 0xffffffffu);
      write.value = static_cast<int64_t>(last & (last - 1));
    }
  }
  if (write.how == kWritePair) write.from_at = static_cast<int64_t>(last);
  const bool first = machine_.side_by_side && random_.chance(65);
  if (first && !emit(wait)) return;
  if (first && random_.chance(60)) {
    const std::vector<int> views = views_of(p);
    const int view = random_.of(views);
    write_somewhere(by(p), view,
                    some_place(shadow_.views.at(view).memory->bytes, kWindow),
                    waits);
    Step query = by(p);
    query.op = Op::kQueryStream;
    query.stream = waits;
    emit(query);
  }
  if (random_.chance(60)) {
    const std::vector<int> views = views_of(q);
    const int view = random_.of(views);
    write_somewhere(by(q), view,
                    some_place(shadow_.views.at(view).memory->bytes, kWindow),
                    writes);
  }
  if (!emit(write)) return;
  if (!first) emit(wait);
  if (random_.chance(70)) settle(p);
  if (random_.chance(50)) look_at(random_.chance(50) ? mine : his);
}

// One captured call; with `kernel`, a kernel that an update can change.
bool Generator::node(Step step, int view, bool kernel) {
  const Place place = some_place(shadow_.views.at(view).memory->bytes, kWindow);
  if (!kernel) return write_somewhere(step, view, place, step.stream);
  step.op = Op::kWrite;
  step.on = view;
  step.at = place.at;
  step.bytes = place.bytes;
  step.value = static_cast<int64_t>(random_.next() & 0x7fffffff);
  step.api = 0;
  return emit(step);
}

// The calls between the begin and the end of a capture, some of them in a
// second branch.
void Generator::capture(const Step& actor, int graph, int stream,
                        bool kernels) {
  const std::vector<int> views = views_of(actor.process);
  const auto& nodes = shadow_.graphs.at(graph).nodes;
  std::vector<int> others, events;
  for (const auto& [id, one] : shadow_.streams)
    if (id > 0 && id != stream && one.process == actor.process)
      others.push_back(id);
  for (const auto& [id, event] : shadow_.events)
    if (event.process == actor.process && event.shared->how == kLocal)
      events.push_back(id);
  const bool forks = !others.empty() && !events.empty() && random_.chance(60);
  const int branch = forks ? random_.of(others) : 0;
  const auto join = [&](int from, int to) {
    Step step = by(actor.process, actor.thread);
    step.op = Op::kRecord;
    step.on = random_.of(events);
    step.stream = from;
    if (!emit(step)) return;
    step.op = Op::kWait;
    step.stream = to;
    emit(step);
  };
  const auto some_nodes = [&](int most) {
    const int wanted = 1 + random_.below(most);
    for (int i = 0; i < wanted; ++i) {
      Step step = by(actor.process, actor.thread);
      step.stream = branch != 0 && random_.chance(50) ? branch : stream;
      node(step, random_.of(views), kernels);
    }
  };
  if (branch != 0 && random_.chance(50)) {  // before the branches
    Step step = by(actor.process, actor.thread);
    step.stream = stream;
    node(step, random_.of(views), kernels);
  }
  if (branch != 0) join(stream, branch);
  some_nodes(branch != 0 ? 5 : 3);
  if (branch != 0) join(branch, stream);
  Step last = by(actor.process, actor.thread);
  last.stream = stream;
  for (int i = 0; i < kTries && (nodes.empty() || (i == 0 && branch != 0)); ++i)
    node(last, random_.of(views), kernels || i > 0);
}

// Captures the calls of a graph again, with other arguments, and updates it.
bool Generator::update(int graph) {
  const Graph old = shadow_.graphs.at(graph);
  const std::vector<int> views = views_of(old.process);
  unsigned i = 0;
  const bool straight =
      std::all_of(old.nodes.begin(), old.nodes.end(), [&](const Step& one) {
        return one.op == Op::kWrite && one.how == kLaunch && one.api == 0 &&
               old.edges[i] == (uint64_t{1} << i) / 2 && ++i != 0;
      });
  if (!straight || views.empty()) return false;
  Step begin = by(old.process, old.thread);
  begin.op = Op::kBeginCapture;
  begin.id = number();
  begin.stream = own_stream(old.process);
  begin.how = random_.below(kCaptureHows);
  if (begin.stream == 0 || !emit(begin)) return false;
  for (size_t i = 0; i < old.nodes.size(); ++i)
    node(begin, random_.of(views), true);
  Step end = by(old.process, old.thread);
  end.op = Op::kEndCapture;
  end.on = begin.id;
  end.from = graph;
  end.how = kUpdate;
  end.stream = begin.stream;
  if (emit(end)) return true;
  end.from = 0;
  end.how = kInstantiate;
  return emit(end);
}

void Generator::graph() {
  const int p = some_process();
  std::vector<int> graphs;
  for (const auto& [id, graph] : shadow_.graphs)
    if (graph.process == p) graphs.push_back(id);
  const Step actor = by(p);
  if (graphs.empty() || random_.chance(40)) {
    const int stream = own_stream(p);
    if (stream == 0 || views_of(p).empty()) return;
    Step begin = actor;
    begin.op = Op::kBeginCapture;
    begin.id = number();
    begin.stream = stream;
    begin.how = random_.below(kCaptureHows);
    if (!emit(begin)) return;
    capture(actor, begin.id, stream, random_.chance(35));
    Step end = actor;
    end.op = Op::kEndCapture;
    end.on = begin.id;
    end.stream = stream;
    emit(end);
    graphs = {begin.id};
  }
  const int graph = random_.of(graphs);
  const int launches = 1 + random_.below(3);
  const Step node = random_.of(shadow_.graphs.at(graph).nodes);
  // A launch copies what is there then, not what was there at the capture.
  if (node.op == Op::kCopy && shadow_.views.count(node.from) != 0)
    write_somewhere(actor, node.from, {node.from_at, node.bytes},
                    some_stream(actor));
  if (launches > 1 && random_.chance(50)) hold(p);
  Step launch = actor;
  launch.op = Op::kLaunch;
  launch.on = graph;
  launch.stream = some_stream(launch);
  for (int i = 0; i < launches; ++i) {
    if (random_.chance(40)) launch.stream = some_stream(launch);
    if (!emit(launch) && random_.chance(50)) {
      settle(p);
      emit(launch);
    }
    // The next launch does the work again, over what comes between.
    if (i + 1 < launches && shadow_.views.count(node.on) != 0)
      write_somewhere(actor, node.on, {node.at, node.bytes}, launch.stream);
    if (i + 1 < launches && random_.chance(60)) update(graph);
  }
  const std::vector<int> views = views_of(p);
  if (random_.chance(50) && !views.empty()) {
    settle(p);
    look_at(random_.of(views));
  }
}

// --- order ------------------------------------------------------------------

void Generator::open_gates(int percent) {
  std::vector<int> closed;
  for (const auto& [id, gate] : shadow_.gates)
    if (!gate.open) closed.push_back(id);
  for (const int id : closed) {
    if (!random_.chance(percent)) continue;
    Step open;
    open.op = Op::kOpenGate;
    open.process = shadow_.gates.at(id).process;
    open.on = id;
    open.value = shadow_.gates.at(id).word;
    emit(open);
  }
}

// Waits for what nothing holds.
void Generator::settle(int process) {
  Step sync = by(process);
  if (shadow_.quiet(process)) {
    sync.op = Op::kSyncDevice;
    emit(sync);
    return;
  }
  for (const auto& [id, stream] : shadow_.streams) {
    if (stream.process != process || !stream.queue.empty() || stream.synced ||
        is_thread_stream(id) || is_legacy(id))
      continue;
    sync.op = Op::kSyncStream;
    sync.stream = id;
    emit(sync);
  }
}

void Generator::synchronise() {
  const int p = some_process();
  Step sync = by(p);
  switch (random_.below(4)) {
    case 0:
      sync.op = Op::kSyncStream;
      sync.stream = some_stream(sync);
      sync.how = random_.below(kSyncHows);
      emit(sync);
      break;
    case 1: {
      std::vector<int> events;
      for (const auto& [id, event] : shadow_.events)
        if (event.process == p) events.push_back(id);
      if (events.empty()) return;
      sync.on = random_.of(events);
      sync.op = random_.chance(50) ? Op::kSyncEvent : Op::kQueryEvent;
      emit(sync);
      break;
    }
    case 2:
      sync.op = Op::kQueryStream;
      sync.stream = some_stream(sync);
      emit(sync);
      break;
    default:
      open_gates(60);
      settle(p);
  }
}

void Generator::ask() {
  const int p = some_process();
  Step step = by(p);
  if (random_.chance(40)) {
    std::vector<int> pools;
    for (const auto& [id, pool] : shadow_.pools)
      if (pool.process == p) pools.push_back(id);
    if (!pools.empty()) {
      step.op = Op::kAskPool;
      step.on = random_.of(pools);
      step.how = random_.below(kAskPoolHows);
      emit(step);
      return;
    }
  }
  std::vector<int> views;
  for (const auto& [id, view] : shadow_.views)
    if (view.process == p) views.push_back(id);
  std::vector<int> chunks;
  for (const auto& [id, chunk] : shadow_.chunks)
    if (chunk.process == p) chunks.push_back(id);
  if (!chunks.empty() && random_.chance(20)) {
    step.op = Op::kAskChunk;
    step.on = random_.of(chunks);
    emit(step);
    return;
  }
  if (views.empty()) return;
  for (int i = 0; i < kTries; ++i) {
    step.op = Op::kAskPointer;
    step.on = random_.of(views);
    const View& view = shadow_.views.at(step.on);
    step.how = random_.below(kAskPointerHows);
    step.at = random_.chance(40) ? 0 : some_place(view.memory->bytes, 1).at;
    step.from = step.how == kBufferId ? random_.of(views) : 0;
    if (step.how == kBufferId && random_.chance(60))
      for (const int other : views)
        if (other != step.on &&
            shadow_.views.at(other).memory->kind == view.memory->kind)
          step.from = other;
    step.value = step.how == kBufferId && !view.imported ? 1 : 0;
    if (emit(step)) return;
  }
}

// A call of which the documentation says that it is refused, or a question. Of
// a few the one that was made least often.
bool Generator::call(Op op) {
  Step step = by(some_process());
  step.op = op;
  const int p = step.process;
  std::vector<int> views = {0}, chunks = {0}, any = {0};
  const auto add = [&](const auto& objects, std::vector<int>& to) {
    for (const auto& [id, one] : objects)
      if (one.process == p) to.push_back(id);
  };
  add(shadow_.views, views);
  add(shadow_.chunks, chunks);
  add(shadow_.views, any);
  add(shadow_.pools, any);
  add(shadow_.events, any);
  add(shadow_.ranges, any);
  for (const auto& [id, handle] : shadow_.handles) any.push_back(id);
  // The calls that were made least often go first.
  std::vector<std::pair<int, int>> calls;
  const int count = op == Op::kRefuse ? int{kRefusals} : int{kQuestions};
  const int shift = random_.below(count);
  for (int i = 0; i < count; ++i) {
    step.how = (i + shift) % count;
    calls.emplace_back(coverage_.calls(step), step.how);
  }
  constexpr int kChosen = 4;
  std::stable_sort(
      calls.begin(), calls.end(),
      [](const auto& one, const auto& two) { return one.first < two.first; });
  step.how = calls[static_cast<size_t>(random_.below(kChosen))].second;
  // The subject of which kind the call was made least often, and a second
  // object that may suit it.
  const size_t first = static_cast<size_t>(random_.next() % any.size());
  std::rotate(any.begin(), any.begin() + static_cast<long>(first), any.end());
  std::stable_sort(any.begin(), any.end(), [&](int one, int other) {
    return coverage_.calls_of(step, one, shadow_) <
           coverage_.calls_of(step, other, shadow_);
  });
  for (const int subject : any) {
    step.on = subject;
    const auto view = shadow_.views.find(step.on);
    step.at = view != shadow_.views.end() && random_.chance(60)
                  ? some_place(view->second.memory->bytes, 1).at
                  : 0;
    std::vector<int> seconds = {random_.of(chunks), random_.of(views)};
    if (view != shadow_.views.end()) seconds.push_back(view->second.range);
    for (const auto& [id, chunk] : shadow_.chunks)
      if (view != shadow_.views.end() && chunk.process == p &&
          chunk.memory == view->second.memory)
        seconds.push_back(id);
    for (const int second : seconds) {
      step.from = second;
      const auto chunk = shadow_.chunks.find(second);
      step.bytes = step.how == kMapTwice && op == Op::kRefuse &&
                           chunk != shadow_.chunks.end()
                       ? chunk->second.memory->bytes
                       : 0;
      if (!emit(step)) continue;
      // What must not have changed.
      if (shadow_.pools.count(step.on) != 0 && random_.chance(50)) {
        Step look = by(p);
        look.op = Op::kAskPool;
        look.on = step.on;
        look.how = random_.below(kAskPoolHows);
        emit(look);
      }
      return true;
    }
  }
  return false;
}

void Generator::refuse() {
  const int times = 1 + random_.below(3);
  for (int i = 0; i < times; ++i)
    if (!call(Op::kRefuse)) settle(some_process());
  // Nothing may have changed.
  std::vector<int> views;
  for (const auto& [id, view] : shadow_.views) views.push_back(id);
  if (!views.empty() && random_.chance(50)) look_at(random_.of(views));
}

void Generator::inquire() {
  const int times = 1 + random_.below(4);
  for (int i = 0; i < times; ++i)
    if (!call(Op::kQuestion)) settle(some_process());
}

// A thread ends, and what it has made lives on, also what is held.
void Generator::change_thread() {
  const int p = some_process();
  settle(p);
  Step step = by(p, 0);
  if (random_.chance(50)) {
    const int stream = own_stream(p);
    const int event = new_event(p);
    hold(p);
    Step record = by(p);
    record.op = Op::kRecord;
    record.on = event;
    record.stream = stream;
    if (event != 0 && stream != 0) emit(record);
  }
  step.op = Op::kNewThread;
  step.api = 0;
  for (step.thread = 0; step.thread < kThreads; ++step.thread)
    if (random_.chance(70)) emit(step);
  ask();
  synchronise();
  for (const auto& [id, event] : shadow_.events) {
    Step query = by(event.process);
    query.op = Op::kQueryEvent;
    query.on = id;
    if (random_.chance(30)) emit(query);
  }
}

// Several threads call at the same time: a pair that is missing, or anything.
void Generator::together() {
  Op one{}, other{};
  if (random_.chance(25)) {  // several times the same call in one process
    constexpr Op kTwins[] = {
        Op::kOpenMemory,   Op::kCloseMemory, Op::kMalloc,       Op::kFree,
        Op::kExportMemory, Op::kImportChunk, Op::kMap,          Op::kPoolAlloc,
        Op::kOpenEvent,    Op::kRecord,      Op::kFreeAsync,    Op::kCopy,
        Op::kCreateEvent,  Op::kExportChunk, Op::kImportPointer};
    const int p = some_process();
    settle(p);
    const Op twin = kTwins[random_.below(static_cast<int>(std::size(kTwins)))];
    group_ = next_group_++;
    if (single(twin, p) && single(twin, p)) single(twin, p);
    group_ = 0;
    return;
  }
  const bool aims =
      random_.chance(75) && coverage_.missing(Coverage::kBesideEachOther,
                                              random_.next(), &one, &other);
  if (aims)  // calls that may wait need a process that holds nothing
    for (int p = 0; p < processes_; ++p) settle(p);
  group_ = next_group_++;
  if (aims) {
    if (single(one))
      single(other, random_.chance(60) ? program_.steps.back().process : -1);
    group_ = 0;
    for (int i = 0; i < 3; ++i) {  // and more of them
      if (!coverage_.missing(Coverage::kBesideEachOther, random_.next(), &one,
                             &other))
        return;
      group_ = next_group_++;
      if (single(one)) single(other);
      group_ = 0;
    }
    return;
  }
  const size_t before = program_.steps.size();
  const size_t wanted = 2 + static_cast<size_t>(random_.below(3));
  for (size_t i = 0; i < 4 * wanted && program_.steps.size() < before + wanted;
       ++i) {
    const int p = program_.steps.size() > before && random_.chance(60)
                      ? program_.steps.back().process
                      : some_process();
    const std::vector<int> views = views_of(p);
    switch (random_.below(6)) {
      case 0:
        set_up();
        break;
      case 1:
        take_down_one(false);
        break;
      case 2:
        synchronise();
        break;
      default: {
        if (views.empty()) break;
        const Step actor = by(p, random_.below(kThreads));
        const int view = random_.of(views);
        const int64_t size = shadow_.views.at(view).memory->bytes;
        if (random_.chance(40))
          emit(some_read(actor, view, some_place(size, kWindow),
                         some_stream(actor)));
        else
          write_somewhere(actor, view, some_place(size, kWindow),
                          some_stream(actor));
      }
    }
  }
  group_ = 0;
}

}  // namespace ipclab::explore
