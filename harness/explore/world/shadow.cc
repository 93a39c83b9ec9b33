// The frame of the shadow: groups, order, and work that goes on.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/shadow.h"

#include <cstdlib>
#include <new>

namespace ipclab::explore {

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"legacy",     "chunk",   "pool", "pinned",
                                    "registered", "managed", "node"};
  return kNames[static_cast<int>(kind)];
}

Memory::Memory(Kind kind, int owner, int64_t bytes)
    : kind(kind),
      owner(owner),
      bytes(bytes),
      // Pages that nobody uses cost nothing.
      data(static_cast<uint8_t*>(std::calloc(1, bytes)), std::free) {
  if (data == nullptr) throw std::bad_alloc();
}

Shadow::Shadow(const Machine& machine, int processes)
    : machine(machine), processes(processes), process(processes) {
  for (int p = 0; p < processes; ++p) {
    Stream& legacy = make_stream(legacy_stream(p), p);
    legacy.legacy = true;
    for (int t = 0; t < kThreads; ++t)
      make_stream(thread_stream(p, t), p).blocking = true;
  }
}

bool Shadow::no(const char* why) {
  reason_ = why;
  return false;
}

bool Shadow::fresh(int id) const { return id > 0 && ids_.count(id) == 0; }

Stream& Shadow::make_stream(int id, int of_process) {
  Stream& made = streams[id];
  made.process = of_process;
  made.lane = lanes_++;
  return made;
}

const View* Shadow::view_of(int id, int of_process) const {
  const auto found = views.find(id);
  if (found == views.end() || found->second.process != of_process)
    return nullptr;
  return &found->second;
}

bool Shadow::is_known(const Work& work) const {
  return known().at(work.lane) >= work.seq;
}

void Shadow::forget_known(Memory& memory) const {
  auto& all = memory.accesses;
  all.erase(std::remove_if(
                all.begin(), all.end(),
                [&](const Access& access) { return is_known(*access.work); }),
            all.end());
}

bool Shadow::unused(const MemoryPtr& memory) const {
  forget_known(*memory);
  return memory->accesses.empty();
}

bool Shadow::unused_by(const MemoryPtr& memory, int view) const {
  forget_known(*memory);
  return std::none_of(
      memory->accesses.begin(), memory->accesses.end(),
      [&](const Access& access) { return access.view == view; });
}

bool Shadow::quiet(int which) const {
  for (const auto& [id, stream] : streams)
    if (stream.process == which && !stream.queue.empty()) return false;
  return true;
}

// --- groups -----------------------------------------------------------------

std::vector<std::pair<const void*, bool>> Shadow::touched(
    const Step& step) const {
  std::vector<std::pair<const void*, bool>> all;
  const auto number = [](int id) {
    return reinterpret_cast<const void*>(static_cast<intptr_t>(id));
  };
  const auto object = [&](int id, bool changes) {
    if (id == 0) return;
    all.emplace_back(number(id), changes);
    if (const auto it = views.find(id); it != views.end()) {
      all.emplace_back(it->second.memory.get(), changes);
      if (it->second.range != 0)
        all.emplace_back(number(it->second.range), changes);
      if (it->second.pool != 0)
        all.emplace_back(number(it->second.pool), changes);
    }
    if (const auto it = chunks.find(id); it != chunks.end())
      all.emplace_back(it->second.memory.get(), changes);
    if (const auto it = events.find(id); it != events.end())
      all.emplace_back(it->second.shared.get(), changes);
    if (const auto it = pools.find(id); it != pools.end())
      all.emplace_back(it->second.shared.get(), changes);
    if (const auto it = handles.find(id); it != handles.end())
      for (const void* shared :
           {static_cast<const void*>(it->second.memory.get()),
            static_cast<const void*>(it->second.event.get()),
            static_cast<const void*>(it->second.pool.get())})
        if (shared != nullptr) all.emplace_back(shared, changes);
  };
  const std::string letters = changes_of(step.op);
  const auto changes = [&](char letter) {
    return letters.find(letter) != std::string::npos;
  };
  object(step.id, changes('c'));
  object(step.on, changes('o'));
  object(step.from, changes('f'));
  // A legacy default stream concerns all blocking streams of its process.
  if (step.stream != 0) {
    all.emplace_back(number(step.stream), true);
    all.emplace_back(&process[step.process], is_legacy(step.stream));
  }
  if (changes('p')) all.emplace_back(&process[step.process], true);
  return all;
}

bool Shadow::enter_group(const Step& step) {
  if (step.group == 0) {
    group_ = 0;
    return true;
  }
  if (step.op == Op::kOpenGate || step.op == Op::kEnd ||
      step.op == Op::kStart || step.op == Op::kBeginCapture ||
      step.op == Op::kEndCapture)
    return no("not in a group");
  if (step.group != group_) {
    group_ = step.group;
    group_host_ = host_;
    group_touched_.clear();
    group_actors_.clear();
    return true;
  }
  if (group_actors_.count({step.process, step.thread}) != 0)
    return no("one thread makes one step of a group");
  for (const auto& [key, changes] : touched(step)) {
    const auto found = group_touched_.find(key);
    if (found != group_touched_.end() && (changes || found->second))
      return no("steps of a group would depend on their order");
  }
  return true;
}

// --- steps ------------------------------------------------------------------

bool Shadow::apply(const Step& step, Expected* expected) {
  *expected = {};
  reason_.clear();
  if (step.process >= processes) return no("no such process");
  Process& mine = process[step.process];
  if (!mine.alive && step.op != Op::kStart && step.op != Op::kOpenGate &&
      step.op != Op::kDropHandle)
    return no("the process has ended");
  if (mine.held[step.thread] && step.op != Op::kOpenGate)
    return no("the thread is in a call");
  if (mine.capture != 0 && step.op != Op::kOpenGate) {
    const Graph& graph = graphs.at(mine.capture);
    if (step.thread != graph.thread || step.group != 0 ||
        (graph.branches.count(step.stream) == 0 && step.op != Op::kWait))
      return no("the process captures a stream");
  }
  const int group_before = group_;
  if (!enter_group(step)) return false;
  const auto marks = touched(step);  // before objects disappear
  if (!judge(step, expected)) {
    if (step.group != group_before) group_ = group_before;
    return false;
  }
  if (step.group != 0) {
    group_actors_.insert({step.process, step.thread});
    for (const auto& [key, changes] : marks) group_touched_[key] |= changes;
  }
  if (step.id != 0) ids_.insert(step.id);
  pump();
  release_held(expected);
  return true;
}

bool Shadow::judge(const Step& step, Expected* expected) {
  switch (step.op) {
    case Op::kMalloc:
    case Op::kFree:
    case Op::kExportMemory:
    case Op::kOpenMemory:
    case Op::kCloseMemory:
    case Op::kHostAlloc:
    case Op::kHostFree:
    case Op::kHostWrite:
    case Op::kHostRead:
      return memory_step(step, expected);
    case Op::kCreateChunk:
    case Op::kExportChunk:
    case Op::kImportChunk:
    case Op::kReleaseChunk:
    case Op::kRetainChunk:
    case Op::kDropHandle:
    case Op::kReserve:
    case Op::kUnreserve:
    case Op::kMap:
    case Op::kSetAccess:
    case Op::kUnmap:
      return chunk_step(step, expected);
    case Op::kCreatePool:
    case Op::kExportPool:
    case Op::kImportPool:
    case Op::kDestroyPool:
    case Op::kPoolAlloc:
    case Op::kExportPointer:
    case Op::kImportPointer:
    case Op::kFreeAsync:
    case Op::kTrimPool:
    case Op::kSetThreshold:
    case Op::kAskPool:
    case Op::kSetPool:
      return pool_step(step, expected);
    case Op::kCreateStream:
    case Op::kDestroyStream:
    case Op::kCreateEvent:
    case Op::kExportEvent:
    case Op::kOpenEvent:
    case Op::kDestroyEvent:
    case Op::kRecord:
    case Op::kWait:
    case Op::kQueryEvent:
    case Op::kSyncEvent:
    case Op::kQueryStream:
    case Op::kSyncStream:
    case Op::kSyncDevice:
    case Op::kGate:
    case Op::kOpenGate:
      return order_step(step, expected);
    case Op::kWriteWord:
    case Op::kWaitWord:
      return word_step(step, expected);
    case Op::kWrite:
    case Op::kSet:
    case Op::kCopy:
    case Op::kUpload:
    case Op::kRead:
      return work_step(step, expected);
    case Op::kBeginCapture:
    case Op::kEndCapture:
    case Op::kLaunch:
    case Op::kDestroyGraph:
      return graph_step(step, expected);
    case Op::kAskPointer:
    case Op::kAskChunk:
      return ask_step(step, expected);
    case Op::kQuestion:
    case Op::kRefuse:
      return refuse_step(step, expected);
    case Op::kNewThread:
    case Op::kEnd:
    case Op::kStart:
      return life_step(step, expected);
  }
  return no("no such operation");
}

void Shadow::pump() {
  for (bool more = true; more;) {
    more = false;
    for (auto& [id, stream] : streams)
      while (!stream.queue.empty()) {
        const WorkPtr work = stream.queue.front();
        const bool free =
            std::all_of(work->after.begin(), work->after.end(),
                        [](const WorkPtr& before) { return before->done; });
        if (!free || (work->ready && !work->ready())) break;
        if (work->execute) work->execute();
        work->done = more = true;
        work->after.clear();
        work->execute = nullptr;
        work->ready = nullptr;
        stream.queue.pop_front();
      }
  }
}

void Shadow::returns(const Held& call) {
  for (const WorkPtr& work : call.until) host_.join(work->clock);
  for (auto& [id, stream] : streams) {
    const bool covers =
        (call.step.op == Op::kSyncStream && id == call.step.stream) ||
        (call.step.op == Op::kSyncDevice && stream.process == call.process);
    if (covers) stream.synced = true;
  }
}

void Shadow::release_held(Expected* expected) {
  for (size_t i = 0; i < held.size();) {
    const bool over =
        std::all_of(held[i].until.begin(), held[i].until.end(),
                    [](const WorkPtr& work) { return work->done; });
    if (!over) {
      ++i;
      continue;
    }
    process[held[i].process].held[held[i].thread] = false;
    returns(held[i]);
    expected->returned.push_back(held[i]);
    held.erase(held.begin() + static_cast<long>(i));
  }
}

bool Shadow::is_clean() const {
  const bool streams_left =
      std::any_of(streams.begin(), streams.end(), [](const auto& entry) {
        return entry.first > 0 || !entry.second.queue.empty();
      });
  const bool pool_left =
      std::any_of(process.begin(), process.end(),
                  [](const Process& one) { return one.current_pool != 0; });
  return !streams_left && !pool_left && views.empty() && chunks.empty() &&
         ranges.empty() && pools.empty() && events.empty() && handles.empty() &&
         graphs.empty() && held.empty();
}

// --- the lives of processes -------------------------------------------------

bool Shadow::life_step(const Step& step, Expected* expected) {
  const int which = step.process;
  if (step.op == Op::kNewThread) {
    // Of what it began, all but its default stream lives on.
    Stream& own = streams.at(thread_stream(which, step.thread));
    if (own.last != nullptr && !is_known(*own.last))
      return no("work of its default stream may be unfinished");
    own.last = nullptr;
    own.synced = true;
    return true;
  }
  if (step.op == Op::kStart) {
    if (process[which].alive) return no("the process has not ended");
    process[which].alive = true;
    return true;
  }
  const bool reset = step.how == kReset;
  const auto mine = [&](const auto& entry) {
    return entry.second.process == which;
  };
  if (reset && (std::any_of(chunks.begin(), chunks.end(), mine) ||
                std::any_of(ranges.begin(), ranges.end(), mine) ||
                std::any_of(pools.begin(), pools.end(), mine)))
    return no("a reset of such objects is not described");
  const bool killed = step.how == kKilled;
  for (const Held& call : held)
    if (call.process == which && !killed) return no("a thread is in a call");
  for (const auto& [id, stream] : streams)
    if (stream.process == which && stream.last != nullptr &&
        !is_known(*stream.last) && !killed)
      return no("work of the process may be unfinished");
  if (killed && is_awaited(which))
    return no("others wait for work of the process");
  for (const auto& [id, view] : views) {
    const Kind kind = view.memory->kind;
    if (view.process != which && view.memory->owner == which &&
        !is_mapped(kind))
      return no("another process has its memory open");
    // SOMA-31: a reset does not free it.
    if (reset && view.process == which && kind == Kind::kPool)
      return no("a reset keeps stream-ordered memory");
    if (view.process == which && !unused_by(view.memory, id) && !killed)
      return no("work of the process may be unfinished");
  }
  for (const auto& [id, event] : events)
    if (event.process != which && event.shared->owner == which)
      return no("another process has its event open");
  if (killed) abandon_work(which);
  end_process(which, reset);
  process[which].alive = reset;
  expected->row = reset ? "LIFE-15" : "";
  return true;
}

// Does the work of another process wait for unfinished work of this one? What
// becomes of such a wait is not described (LIFE-09).
bool Shadow::is_awaited(int which) const {
  const auto of_it = [&](const WorkPtr& work) {
    return work != nullptr && work->process == which && !is_known(*work);
  };
  for (const auto& [id, stream] : streams)
    for (const auto& [other, its] : streams)
      if (stream.process != which && its.process == which &&
          stream.clock.at(its.lane) > known().at(its.lane))
        return true;
  for (const Held& call : held)
    if (call.process != which &&
        std::any_of(call.until.begin(), call.until.end(), of_it))
      return true;
  for (const auto& [id, event] : events)
    if (event.shared->owner != which && of_it(event.shared->record))
      return true;
  for (const auto& [id, view] : views)
    for (const auto& [at, word] : view.memory->words) {
      for (const auto& [work, value] : word.writes)
        if (of_it(work)) return true;
      for (const Word::Waiting& wait : word.waits)
        if (of_it(wait.work)) return true;
    }
  return false;
}

// A killed process may have done any part of its unfinished work.
void Shadow::abandon_work(int which) {
  for (auto& [id, view] : views) {
    auto& accesses = view.memory->accesses;
    for (const Access& access : accesses)
      if (access.work->process == which && access.write &&
          !is_known(*access.work))
        view.memory->defined.remove(access.from, access.to);
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(),
                                  [&](const Access& access) {
                                    return access.work->process == which;
                                  }),
                   accesses.end());
  }
  for (auto& [id, stream] : streams)
    if (stream.process == which) stream.queue.clear();
  held.erase(
      std::remove_if(held.begin(), held.end(),
                     [&](const Held& call) { return call.process == which; }),
      held.end());
  for (auto& [id, event] : events) {
    auto& uses = event.shared->uses;
    uses.erase(std::remove_if(
                   uses.begin(), uses.end(),
                   [&](const WorkPtr& work) { return work->process == which; }),
               uses.end());
  }
  for (bool& one : process[which].held) one = false;
  process[which].capture = 0;
}

void Shadow::end_process(int which, bool by_reset) {
  const auto drop = [&](auto& objects) {
    for (auto it = objects.begin(); it != objects.end();)
      it = it->second.process == which ? objects.erase(it) : std::next(it);
  };
  for (auto& [id, view] : views) {
    if (view.process != which) continue;
    if (view.imported && !is_mapped(view.memory->kind)) {
      view.memory->opens.erase(which);
      view.memory->lost_importer = by_reset ? 2 : 1;
    }
    if (!view.imported) view.memory->alive = is_mapped(view.memory->kind);
  }
  process[which].current_pool = 0;
  process[which].other_gpu = false;
  drop(views);
  drop(chunks);
  drop(ranges);
  drop(pools);
  drop(events);
  drop(graphs);
  // A descriptor keeps memory of cuMemCreate; nothing keeps the rest.
  for (auto it = handles.begin(); it != handles.end();)
    it = it->second.process == which && it->second.made_by != Op::kExportChunk
             ? handles.erase(it)
             : std::next(it);
  for (auto it = streams.begin(); it != streams.end();)
    it = it->second.process == which && it->first > 0 ? streams.erase(it)
                                                      : std::next(it);
  for (auto& [id, stream] : streams)
    if (stream.process == which) {
      stream.last = nullptr;
      stream.synced = true;
    }
}

}  // namespace ipclab::explore
