// How the generator makes objects, shares them, and takes them down.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "harness/explore/world/ends.h"
#include "harness/explore/world/generator.h"

namespace ipclab::explore {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

}  // namespace

// --- memory -----------------------------------------------------------------

// Memory of any kind, with values in its windows; 0 if that was not possible.
int Generator::new_memory(int process) {
  constexpr Kind kOften[] = {Kind::kLegacy, Kind::kLegacy, Kind::kLegacy,
                             Kind::kLegacy, Kind::kChunk,  Kind::kChunk,
                             Kind::kNode,   Kind::kPool,   Kind::kPool,
                             Kind::kPinned, Kind::kPinned, Kind::kRegistered,
                             Kind::kManaged};
  return new_memory(process,
                    kOften[random_.below(static_cast<int>(std::size(kOften)))]);
}

int Generator::new_memory(int process, Kind kind) {
  Step step = by(process);
  step.id = number();
  if (kind == Kind::kLegacy) {
    step.op = Op::kMalloc;
    step.bytes = random_.of({100, 512, 777, 4096, 20000, 65536, 99999, 1 << 20,
                             2 << 20, (2 << 20) + 4096, 3 << 20});
    if (!emit(step)) return 0;
  } else if (is_mapped(kind) && machine_.granule != 0) {
    Step chunk = by(process);
    chunk.op = Op::kCreateChunk;
    chunk.id = number();
    chunk.bytes = machine_.granule * (random_.chance(75) ? 1 : 2);
    chunk.how = machine_.nodes && kind == Kind::kNode ? kOnNode : kOnGpu;
    if (!emit(chunk)) return 0;
    step.id = 0;
    Step map = by(process);
    map.op = Op::kMap;
    map.id = number();
    map.on = chunk.id;
    map.bytes = chunk.bytes;
    // Often beside another mapping.
    if (random_.chance(60)) map.from = room_for(chunk.bytes, process, &map.at);
    if (map.from == 0) {
      Step range = by(process);
      range.op = Op::kReserve;
      range.id = map.from = number();
      range.bytes = chunk.bytes + machine_.granule * random_.below(4);
      if (!emit(range)) return 0;
      map.at = random_.below(static_cast<int>(
                   (range.bytes - chunk.bytes) / machine_.granule + 1)) *
               machine_.granule;
    }
    if (!emit(map)) return 0;
    if (!give_access(map.id, 3)) return 0;
    step.id = map.id;
  } else if (kind == Kind::kPool && machine_.pools) {
    int pool = 0;
    for (const auto& [id, one] : shadow_.pools)
      if (one.process == process && !one.imported && random_.chance(70))
        pool = id;
    if (pool == 0) {
      Step create = by(process);
      create.op = Op::kCreatePool;
      create.id = pool = number();
      create.value = random_.chance(70) ? 1 : 0;
      if (!emit(create)) return 0;
      if (random_.chance(30)) {
        Step keep = by(process);
        keep.op = Op::kSetThreshold;
        keep.on = pool;
        keep.value = random_.of({1 << 20, 1 << 26});
        emit(keep);
      }
    }
    step.op = Op::kPoolAlloc;
    step.on = pool;
    step.bytes = random_.of({512, 4096, 65536, 2 << 20, 5 << 20});
    step.stream = some_stream(step);
    if (!emit(step)) return 0;
    if (random_.chance(70)) settle(process);
  } else {
    step.op = Op::kHostAlloc;
    step.how = kind == Kind::kManaged ? int{kManaged}
               : kind == Kind::kRegistered
                   ? int{kRegistered}
                   : random_.of({kMallocHost, kHostAlloc});
    step.bytes = random_.of({4096, 16384, 65536});
    if (!emit(step)) return 0;
  }
  // Values in all windows, mostly by one step.
  const int64_t bytes = shadow_.views.at(step.id).memory->bytes;
  const Kind kind_of = shadow_.views.at(step.id).memory->kind;
  Step fill = by(process);
  fill.op = Op::kSet;
  fill.on = step.id;
  fill.bytes = bytes;
  fill.value = random_.below(255) + 1;
  fill.stream = some_stream(fill);
  if (kind_of == Kind::kPool)
    for (const auto& made : program_.steps)
      if (made.id == step.id && !is_thread_stream(made.stream))
        fill.stream = made.stream;
  const bool filled = bytes <= 4 * kMegabyte && emit(fill);
  if (filled && !is_device(kind_of) && random_.chance(50)) settle(process);
  if (filled && random_.chance(50)) settle(process);
  return step.id;
}

// Memory of this kind that a process can use, made for it if it has none.
int Generator::memory_of(int process, Kind kind, bool imported) {
  std::vector<int> all;
  for (const auto& [id, view] : shadow_.views)
    if (view.process == process && view.access == 3 &&
        view.memory->kind == kind && view.imported == imported)
      all.push_back(id);
  if (!all.empty()) return random_.of(all);
  if (shadow_.views.size() > 14) return 0;
  if (!imported) return new_memory(process, kind);
  const int owner = other_process(process);
  int lent = 0;
  for (const auto& [id, view] : shadow_.views)
    if (view.process == owner && view.memory->kind == kind && !view.imported &&
        view.access == 3)
      lent = id;
  if (lent == 0) lent = new_memory(owner, kind);
  if (lent == 0) return 0;
  settle(owner);
  const int view = share(lent, process);
  return view != 0 && shadow_.views.at(view).access == 3 ? view : 0;
}

// A copy between two kinds of memory that no program has made.
bool Generator::missing_copy() {
  Coverage::CopyUse use;
  if (!coverage_.missing_copy(random_.next(), &use)) return false;
  const int p = some_process();
  settle(p);
  Step step = by(p);
  step.op = Op::kCopy;
  step.how = use.how;
  step.on = memory_of(p, use.to, use.to_imported);
  step.from = memory_of(p, use.from, use.from_imported);
  if (step.on == 0 || step.from == 0) return false;
  settle(p);
  step.stream = step.how >= kFirstSyncCopy ? legacy_stream(p)
                                           : thread_stream(p, step.thread);
  const Place to = some_place(shadow_.views.at(step.on).memory->bytes, 4096);
  const Place from =
      some_place(shadow_.views.at(step.from).memory->bytes, to.bytes);
  step.at = to.at;
  step.from_at = from.at;
  step.bytes = from.bytes;
  return emit(step);
}

// Goes for pairs that no program has combined.
void Generator::chase() {
  Op one{}, other{};
  const int times = 2 + random_.below(4);
  for (int i = 0; i < times; ++i) {
    const int p = some_process();
    switch (random_.below(4)) {
      case 0:
        if (coverage_.missing(Coverage::kInOneStream, random_.next(), &one,
                              &other)) {
          const int stream = own_stream(p);
          if (stream == 0) break;
          settle(p);
          if (single(one, p, stream)) single(other, p, stream);
          if (one == Op::kGate) open_gates(100);
          break;
        }
        [[fallthrough]];
      case 1:
        if (coverage_.missing(Coverage::kAfterAnEnd, random_.next(), &one,
                              &other)) {
          open_gates(100);
          for (int q = 0; q < processes_; ++q) settle(q);
          if (single(one)) single(other);
          break;
        }
        [[fallthrough]];
      default:
        missing_copy();
    }
  }
}

int Generator::share(int view, int process) {
  const View& mine = shadow_.views.at(view);
  if (mine.imported || mine.process == process) return 0;
  switch (mine.memory->kind) {
    case Kind::kLegacy:
      return share_legacy(view, process);
    case Kind::kChunk:
    case Kind::kNode:
      return share_chunk(view, process);
    case Kind::kPool:
      return share_pool(view, process);
    default:
      return 0;
  }
}

int Generator::share_legacy(int view, int process) {
  const View& mine = shadow_.views.at(view);
  int handle = 0;
  for (const auto& [id, one] : shadow_.handles)
    if (one.made_by == Op::kExportMemory && one.memory == mine.memory &&
        random_.chance(60))
      handle = id;
  if (handle == 0) {
    Step step = by(mine.process);
    step.op = Op::kExportMemory;
    step.id = handle = number();
    step.on = view;
    if (!emit(step)) return 0;
  }
  Step open = by(process);
  open.op = Op::kOpenMemory;
  open.id = number();
  open.on = handle;
  return emit(open) ? open.id : 0;
}

// A reservation with room for a mapping, and the place in it; 0 if there is
// none.
int Generator::room_for(int64_t bytes, int process, int64_t* at) const {
  for (const auto& [known, one] : shadow_.ranges) {
    const int id = known;  // a lambda of C++17 cannot capture `known`
    if (one.process != process) continue;
    for (*at = 0; *at + bytes <= one.bytes; *at += machine_.granule)
      if (std::none_of(shadow_.views.begin(), shadow_.views.end(),
                       [&](const auto& entry) {
                         return entry.second.range == id &&
                                entry.second.at < *at + bytes &&
                                *at < entry.second.at +
                                          entry.second.memory->bytes;
                       }))
        return id;
  }
  *at = 0;
  return 0;
}

int Generator::share_chunk(int view, int process) {
  const View mine = shadow_.views.at(view);
  int handle = 0, chunk = 0;
  for (const auto& [id, one] : shadow_.handles)
    if (one.made_by == Op::kExportChunk && one.memory == mine.memory &&
        one.process != process && random_.chance(60))
      handle = id;
  if (handle == 0) {
    for (const auto& [id, one] : shadow_.chunks)
      if (one.process == mine.process && one.memory == mine.memory) chunk = id;
    if (chunk == 0) {  // its handle was released
      Step retain = by(mine.process);
      retain.op = Op::kRetainChunk;
      retain.id = chunk = number();
      retain.on = view;
      if (!emit(retain)) return 0;
    }
    Step step = by(mine.process);
    step.op = Op::kExportChunk;
    step.id = handle = number();
    step.on = chunk;
    if (!emit(step)) return 0;
  }
  Step import = by(process);
  import.op = Op::kImportChunk;
  import.id = number();
  import.on = handle;
  if (!emit(import)) return 0;
  if (random_.chance(40)) {
    Step drop = by(process);
    drop.op = Op::kDropHandle;
    drop.on = handle;
    emit(drop);
  }
  const int64_t bytes = mine.memory->bytes;
  // In a reservation that has room, or in a new one.
  int64_t at = 0;
  int range = random_.chance(60) ? room_for(bytes, process, &at) : 0;
  if (range == 0) {
    Step reserve = by(process);
    reserve.op = Op::kReserve;
    reserve.id = range = number();
    reserve.bytes = bytes + machine_.granule * random_.below(3);
    if (!emit(reserve)) return 0;
  }
  Step map = by(process);
  map.op = Op::kMap;
  map.id = number();
  map.on = import.id;
  map.from = range;
  map.at = at;
  map.bytes = bytes;
  if (!emit(map)) return 0;
  if (!give_access(map.id, random_.chance(90) ? 3 : 1)) return 0;
  if (random_.chance(30)) {
    Step release = by(process);
    release.op = Op::kReleaseChunk;
    release.on = import.id;
    emit(release);
  }
  return map.id;
}

int Generator::share_pool(int view, int process) {
  const View mine = shadow_.views.at(view);
  const auto owner = shadow_.pools.find(mine.pool);
  if (owner == shadow_.pools.end() || !owner->second.shared->shareable)
    return 0;
  int imported = 0;
  for (const auto& [id, one] : shadow_.pools)
    if (one.process == process && one.shared == owner->second.shared)
      imported = id;
  if (imported == 0) {
    int handle = 0;
    for (const auto& [id, one] : shadow_.handles)
      if (one.made_by == Op::kExportPool && one.pool == owner->second.shared)
        handle = id;
    if (handle == 0) {
      Step step = by(mine.process);
      step.op = Op::kExportPool;
      step.id = handle = number();
      step.on = mine.pool;
      if (!emit(step)) return 0;
    }
    Step import = by(process);
    import.op = Op::kImportPool;
    import.id = imported = number();
    import.on = handle;
    if (!emit(import)) return 0;
  }
  Step pointer = by(mine.process);
  pointer.op = Op::kExportPointer;
  pointer.id = number();
  pointer.on = view;
  if (!emit(pointer)) return 0;
  Step import = by(process);
  import.op = Op::kImportPointer;
  import.id = number();
  import.on = imported;
  import.from = pointer.id;
  return emit(import) ? import.id : 0;
}

// --- events -----------------------------------------------------------------

int Generator::new_event(int process) {
  Step step = by(process);
  step.op = Op::kCreateEvent;
  step.id = number();
  step.how =
      random_.of({kInterprocess, kInterprocess, kInterprocessBlocking, kLocal});
  return emit(step) ? step.id : 0;
}

// The same event in another process; 0 if it is not shared.
int Generator::event_in(int event, int process) {
  const auto found = shadow_.events.find(event);
  if (found == shadow_.events.end()) return 0;
  const Event mine = found->second;
  if (mine.process == process) return event;
  for (const auto& [id, one] : shadow_.events)
    if (one.process == process && one.shared == mine.shared) return id;
  if (mine.shared->how == kLocal || !machine_.legacy ||
      mine.shared->owner == process)
    return 0;
  int handle = 0;
  for (const auto& [id, one] : shadow_.handles)
    if (one.made_by == Op::kExportEvent && one.event == mine.shared)
      handle = id;
  if (handle == 0) {
    int first = 0;
    for (const auto& [id, one] : shadow_.events)
      if (one.shared == mine.shared && !one.imported) first = id;
    if (first == 0) return 0;
    Step step = by(mine.shared->owner);
    step.op = Op::kExportEvent;
    step.id = handle = number();
    step.on = first;
    if (!emit(step)) return 0;
  }
  Step open = by(process);
  open.op = Op::kOpenEvent;
  open.id = number();
  open.on = handle;
  return emit(open) ? open.id : 0;
}

// --- set up, change, take down ----------------------------------------------

void Generator::set_up() {
  const int p = some_process();
  switch (random_.below(6)) {
    case 0: {
      Step stream = by(p);
      stream.op = Op::kCreateStream;
      stream.id = number();
      stream.how = random_.below(kStreamHows);
      int count = 0;
      for (const auto& [id, one] : shadow_.streams)
        count += one.process == p && id > 0;
      if (count < 4) emit(stream);
      break;
    }
    case 1: {
      const int event = new_event(p);
      if (event != 0 && group_ == 0 && random_.chance(70))
        event_in(event, other_process(p));
      break;
    }
    case 2:
    case 3: {
      std::vector<int> lent;
      for (const auto& [id, view] : shadow_.views)
        if (!view.imported) lent.push_back(id);
      if (lent.empty()) break;
      share(random_.of(lent), some_process());
      break;
    }
    default: {
      if (shadow_.views.size() > 14) break;
      const int view = new_memory(p);
      if (view != 0 && group_ == 0 && random_.chance(75))
        share(view, other_process(p));
    }
  }
}

// Lets the GPU use a new mapping, and mostly the CPU, too, if it is a node's.
bool Generator::give_access(int mapping, int access) {
  const View& view = shadow_.views.at(mapping);
  ask_access(mapping);
  if (random_.chance(15)) {  // a handle needs no access
    Step retain = by(view.process);
    retain.op = Op::kRetainChunk;
    retain.id = number();
    retain.on = mapping;
    emit(retain);
  }
  Step step = by(view.process);
  step.op = Op::kSetAccess;
  step.on = mapping;
  step.value = access;
  // Often for the mapping before or after it, too.
  for (const auto& [id, other] : shadow_.views) {
    if (other.range != view.range || !random_.chance(50)) continue;
    const bool after = other.at == view.at + view.memory->bytes;
    if (!after && other.at + other.memory->bytes != view.at) continue;
    step.on = after ? mapping : id;
    step.rows = 2;
    step.bytes = view.memory->bytes + other.memory->bytes;
    if (emit(step)) return true;
    step.on = mapping;
    step.rows = 0;
    step.bytes = 0;
    break;
  }
  if (!emit(step)) return false;
  if (view.memory->kind != Kind::kNode || random_.chance(20)) return true;
  step.how = kOnNode;
  return emit(step);
}

// Which access has a mapping? A new one has none.
void Generator::ask_access(int mapping) {
  const View& view = shadow_.views.at(mapping);
  Step ask = by(view.process);
  ask.op = Op::kAskPointer;
  ask.on = mapping;
  ask.how = view.memory->kind != Kind::kNode
                ? random_.of({kAccess, kAccessAttribute})
                : random_.of({kAccess, kCpuAccess});
  ask.at = random_.chance(50) ? 0 : view.memory->bytes / 2;
  if (random_.chance(40)) emit(ask);
}

// The same call so many times that a limit or a counter would show.
void Generator::crowd() {
  const int p = some_process();
  const int times = random_.of({17, 33, 66, 66, 260});
  std::vector<int> lent;
  for (const auto& [id, view] : shadow_.views)
    if (view.process == p && !view.imported) lent.push_back(id);
  if (lent.empty()) return;
  const int view = random_.of(lent);
  const int q = other_process(p);
  const int stream = own_stream(p);
  std::vector<int> graphs, events;
  for (const auto& [id, graph] : shadow_.graphs)
    if (graph.process == p && graph.ready) graphs.push_back(id);
  for (const auto& [id, event] : shadow_.events)
    if (event.process == p) events.push_back(id);
  const int kind = std::min(random_.below(6), 3);
  constexpr Op kMany[] = {
      Op::kMalloc,      Op::kCreateChunk,  Op::kReserve,     Op::kCreateStream,
      Op::kCreateEvent, Op::kExportMemory, Op::kExportChunk, Op::kRetainChunk};
  const Op many = kMany[random_.below(static_cast<int>(std::size(kMany)))];
  if (kind == 3) settle(p);
  for (int i = 0; i < times; ++i) {
    Step step = by(p, 0);
    step.stream = stream;
    if (kind == 3) {
      if (i >= 70 || !single(many, p)) break;
    } else if (kind == 0 || stream == 0) {
      if (share(view, q) == 0) break;
    } else if (kind == 1 && !graphs.empty()) {
      step.op = Op::kLaunch;
      step.on = graphs[0];
      if (!emit(step)) break;
    } else if (!events.empty()) {
      step.op = Op::kRecord;
      step.on = events[0];
      if (!emit(step)) break;
    }
  }
  if (kind == 2 && !events.empty()) hand_over(events[0]);
  if (kind == 1) settle(p);
  look_at(view);
}

// Mappings come and go while the memory stays.
void Generator::remap() {
  std::vector<int> mappings;
  for (const auto& [id, view] : shadow_.views)
    if (view.range != 0) mappings.push_back(id);
  if (mappings.empty()) return;
  const int mapping = random_.of(mappings);
  const View view = shadow_.views.at(mapping);
  settle(view.process);
  Step step = by(view.process);
  if (random_.chance(40)) {  // other access, a look, and back
    step.op = Op::kSetAccess;
    step.on = mapping;
    step.value = random_.of({0, 1, 1});
    if (!emit(step)) return;
    ask_access(mapping);
    look_at(mapping);
    const Step actor = by(view.process);
    if (step.value == 1)
      emit(some_read(actor, mapping, some_place(view.memory->bytes, 4096),
                     some_stream(actor)));
    step = by(view.process);
    step.op = Op::kSetAccess;
    step.on = mapping;
    step.value = 3;
    emit(step);
    look_at(mapping);
    return;
  }
  int chunk = 0;
  for (const auto& [id, one] : shadow_.chunks)
    if (one.process == view.process && one.memory == view.memory) chunk = id;
  if (chunk == 0 || random_.chance(30)) {
    Step retain = by(view.process);
    retain.op = Op::kRetainChunk;
    retain.id = chunk = number();
    retain.on = mapping;
    if (!emit(retain)) return;
  }
  const bool second = random_.chance(40);  // an alias beside it
  if (!second) {
    step.op = Op::kUnmap;
    step.on = mapping;
    if (!emit(step)) return;
  }
  int range = view.range;
  Step map = by(view.process);
  if (second || random_.chance(30)) {
    Step reserve = by(view.process);
    reserve.op = Op::kReserve;
    reserve.id = range = number();
    reserve.bytes = view.memory->bytes + machine_.granule * random_.below(2);
    if (!emit(reserve)) return;
    map.at = reserve.bytes - view.memory->bytes;
  } else {
    map.at = view.at;
  }
  map.op = Op::kMap;
  map.id = number();
  map.on = chunk;
  map.from = range;
  map.bytes = view.memory->bytes;
  if (!emit(map)) return;
  if (give_access(map.id, 3)) look_at(map.id);
}

// Pool memory is freed and allocated again in stream order.
void Generator::pool_round() {
  std::vector<int> memory;
  for (const auto& [id, view] : shadow_.views)
    if (view.memory->kind == Kind::kPool) memory.push_back(id);
  if (memory.empty()) return;
  const int view = random_.of(memory);
  const int p = shadow_.views.at(view).process;
  const bool imported = shadow_.views.at(view).imported;
  const int pool = shadow_.views.at(view).pool;
  const int64_t bytes = shadow_.views.at(view).memory->bytes;
  look_at(view);
  Step free = by(p);
  free.op = random_.chance(75) ? Op::kFreeAsync : Op::kFree;
  free.on = view;
  free.stream = free.op == Op::kFreeAsync ? some_stream(free) : 0;
  if (!emit(free)) {
    settle(p);
    if (!emit(free)) return;
  }
  if (random_.chance(40)) {
    Step ask = by(p);
    ask.op = Op::kAskPool;
    ask.on = pool;
    ask.how = random_.chance(50) ? int{kUsed} : random_.below(kAskPoolHows);
    emit(ask);
  }
  if (free.stream != 0 && random_.chance(45)) {
    // A synchronise makes the free known, and gives back what nobody uses.
    Step sync = by(p, free.thread);
    sync.op = Op::kSyncStream;
    sync.stream = free.stream;
    emit(sync);
    Step ask = by(p);
    ask.op = Op::kAskPool;
    ask.on = pool;
    ask.how = random_.of({kUsed, kReserved});
    emit(ask);
  }
  if (random_.chance(30)) {
    Step trim = by(p);
    trim.op = random_.chance(40) ? Op::kTrimPool : Op::kSetThreshold;
    trim.on = pool;
    trim.value = random_.of({0, 0, 1 << 20, 1 << 26});
    if (trim.op == Op::kSetThreshold && trim.value == 0)
      trim.how = random_.below(kSetThresholdHows);
    emit(trim);
  }
  if (imported) return;
  Step again = by(p);
  again.op = Op::kPoolAlloc;
  again.id = number();
  again.on = pool;
  again.bytes = random_.chance(60) ? bytes : 65536;
  again.stream =
      free.stream != 0 && !is_thread_stream(free.stream) && random_.chance(60)
          ? free.stream
          : some_stream(again);
  if (!emit(again)) return;
  Step fill = by(p, again.thread);
  fill.op = Op::kSet;
  fill.on = again.id;
  fill.bytes = again.bytes;
  fill.value = random_.below(255) + 1;
  fill.stream = again.stream;
  emit(fill);
  if (random_.chance(60)) share(again.id, other_process(p));
}

// Memory comes from the pool that is the current one of its GPU.
void Generator::current_pool() {
  if (!machine_.pools) return;
  const int p = some_process();
  std::vector<int> pools = {0};
  for (const auto& [id, pool] : shadow_.pools)
    if (pool.process == p && !pool.imported) pools.insert(pools.end(), 2, id);
  Step step = by(p);
  step.op = Op::kSetPool;
  step.on = random_.of(pools);
  if (!emit(step)) return;
  if (random_.chance(50)) {
    Step ask = by(p);
    ask.op = Op::kQuestion;
    ask.how = kCurrent;
    ask.on = step.on;
    emit(ask);
  }
  Step make = by(p);
  make.op = Op::kPoolAlloc;
  make.how = kFromCurrent;
  make.id = number();
  make.on = step.on;
  make.bytes = random_.of({512, 65536, 1 << 20});
  make.stream = some_stream(make);
  if (!emit(make)) return;
  Step fill = by(p, make.thread);
  fill.op = Op::kSet;
  fill.on = make.id;
  fill.bytes = make.bytes;
  fill.value = random_.below(255) + 1;
  fill.stream = make.stream;
  emit(fill);
  if (step.on == 0) return;
  Step ask = by(p);
  ask.op = Op::kAskPool;
  ask.on = step.on;
  ask.how = random_.below(kAskPoolHows);
  emit(ask);
  share(make.id, other_process(p));
}

// Leaves a process with work that a gate holds.
void Generator::hold(int process) {
  const int stream = own_stream(process);
  const std::vector<int> views = views_of(process);
  if (stream == 0 || views.empty() || next_gate_ >= kGates - 1) return;
  const Step actor = by(process);
  Step gate = actor;
  gate.op = Op::kGate;
  gate.id = number();
  gate.stream = stream;
  gate.how = gate_kind();
  gate.value = next_gate_;
  if (!emit(gate)) return;
  ++next_gate_;
  const int writes = 1 + random_.below(2);
  for (int i = 0; i < writes; ++i) {
    const int view = random_.of(views);
    write_somewhere(actor, view, place_of(view), stream);
  }
}

void Generator::end_process() {
  const int p = some_process();
  Step end = by(p);
  end.op = Op::kEnd;
  end.how = lives_ ? random_.below(kEndHows) : int{kReset};
  if (end.how != kReset) end.api = 0;
  // Who is killed may hold anything. What others have open of it must be closed
  // before.
  if (end.how == kKilled && random_.chance(60)) {
    hold(p);
  } else {
    // What a reset of this process must not touch may be held.
    if (end.how != kReset || random_.chance(50)) open_gates(100);
    settle(p);
  }
  if (!emit(end)) return;
  for (const auto& [id, view] : shadow_.views)
    if (random_.chance(30)) {
      look_at(id);
      break;
    }
  for (const auto& [id, event] : shadow_.events) {
    Step query = by(event.process);
    query.op = Op::kQueryEvent;
    query.on = id;
    if (random_.chance(40)) emit(query);
  }
  if (end.how == kReset) return;
  Step start;
  start.op = Op::kStart;
  start.process = p;
  emit(start);
}

// One step of an operation, by any process that can do it, in any thread.
bool Generator::single(Op op, int process, int stream) {
  for (int i = 0; i < 3 * kThreads * processes_; ++i) {
    const int p = process >= 0 ? process : some_process();
    Step step = by(p, random_.below(kThreads));
    step.op = op;
    const auto some = [&](const auto& objects, auto suits) {
      std::vector<int> all;
      for (const auto& [id, one] : objects)
        if (suits(one)) all.push_back(id);
      return all.empty() ? 0 : random_.of(all);
    };
    const auto mine = [&](const auto& one) { return one.process == p; };
    const auto any = [](const auto&) { return true; };
    const std::string letters = changes_of(op);
    if (letters.find('c') != std::string::npos) step.id = number();
    if (letters.find('s') != std::string::npos)
      step.stream = stream != 0 ? stream : some_stream(step);
    const std::vector<int> views = views_of(p);
    const int view = views.empty() ? 0 : random_.of(views);
    switch (op) {
      case Op::kMalloc:
      case Op::kHostAlloc:
        step.bytes = random_.of({4096, 65536, 2 << 20});
        step.how = op == Op::kHostAlloc ? random_.below(kHostKinds) : 0;
        break;
      case Op::kCreateChunk:
      case Op::kReserve:
        step.bytes = machine_.granule * (1 + random_.below(2));
        break;
      case Op::kCreateStream:
        step.how = random_.below(kStreamHows);
        break;
      case Op::kCreateEvent:
        step.how = random_.below(kEventHows);
        break;
      case Op::kOpenMemory:
      case Op::kImportChunk:
      case Op::kImportPool:
      case Op::kOpenEvent:
        step.on = some(shadow_.handles, any);
        break;
      case Op::kDropHandle:
        step.on = some(shadow_.handles, mine);
        break;
      case Op::kExportChunk:
      case Op::kReleaseChunk:
        step.on = some(shadow_.chunks, mine);
        break;
      case Op::kUnreserve:
        step.on = some(shadow_.ranges, mine);
        break;
      case Op::kMap:
        step.on = some(shadow_.chunks, mine);
        step.from = some(shadow_.ranges, mine);
        if (step.on == 0) continue;
        step.bytes = shadow_.chunks.at(step.on).memory->bytes;
        step.at = machine_.granule * random_.below(3);
        break;
      case Op::kSetAccess:
        step.value = random_.of({0, 1, 3, 3});
        step.on = some(shadow_.views, mine);
        break;
      case Op::kPoolAlloc:
        step.on = some(shadow_.pools, mine);
        step.bytes = 65536;
        break;
      case Op::kDestroyPool:
      case Op::kTrimPool:
      case Op::kAskPool:
        step.on = some(shadow_.pools, mine);
        step.how = op == Op::kAskPool ? random_.below(kAskPoolHows) : 0;
        break;
      case Op::kDestroyStream:
        step.on = own_stream(p);
        break;
      case Op::kDestroyGraph:
      case Op::kLaunch:
        step.on = some(shadow_.graphs, mine);
        break;
      case Op::kGate:
        if (next_gate_ >= kGates - 1) return false;
        step.how = gate_kind();
        step.value = next_gate_++;
        break;
      case Op::kRefuse:
        return call(op);
      case Op::kEnd:
        step.how = kReset;
        break;
      case Op::kAskPointer:
        step.on = some(shadow_.views, mine);
        step.how = random_.below(kAskPointerHows);
        break;
      case Op::kImportPointer:
        step.on = some(shadow_.pools, mine);
        step.from = some(shadow_.handles, any);
        break;
      case Op::kDestroyEvent:
      case Op::kRecord:
      case Op::kWait:
      case Op::kQueryEvent:
      case Op::kSyncEvent:
        step.on = some(shadow_.events, mine);
        break;
      case Op::kSyncStream:
      case Op::kQueryStream:
        break;
      case Op::kWriteWord:
      case Op::kWaitWord: {  // of a place where every value has passed
        if (view == 0) continue;
        step.on = view;
        step.at = 4096 + 8 * (16 + random_.below(16));
        step.bytes = 4;
        const Memory& memory = *shadow_.views.at(view).memory;
        if (memory.bytes < step.at + step.bytes) continue;
        uint32_t now = 0;
        std::memcpy(&now, memory.data.get() + step.at, sizeof now);
        step.value = now;
        if (const auto word = memory.words.find(step.at);
            word != memory.words.end() && !word->second.writes.empty())
          step.value = static_cast<int64_t>(word->second.writes.back().second);
        break;
      }
      case Op::kWrite:
      case Op::kSet:
      case Op::kCopy:
      case Op::kUpload:
      case Op::kHostRead:
      case Op::kRead: {
        if (view == 0) continue;
        const Place place =
            some_place(shadow_.views.at(view).memory->bytes, 4096);
        if (op == Op::kRead) {
          step = some_read(step, view, place, step.stream);
        } else {
          step.on = view;
          step.at = place.at;
          step.bytes = place.bytes;
          step.value = op == Op::kCopy ? 0 : 77;
        }
        if (op == Op::kUpload) step.how = kUploadAsync;
        if (op == Op::kCopy) {
          step.from = random_.of(views);
          const Place from =
              some_place(shadow_.views.at(step.from).memory->bytes, step.bytes);
          step.from_at = from.at;
          step.bytes = from.bytes;
        }
        break;
      }
      default:  // an end, or an export, of memory
        step.on = some(shadow_.views, mine);
    }
    if (emit(step)) return true;
  }
  return false;
}

// Tries to end one object, chosen at random; with `all`, tries until one ends.
bool Generator::take_down_one(bool all) {
  std::vector<Step> ends = ends_of(shadow_);
  for (Step& end : ends) {
    if (end.op != Op::kFree) continue;
    const bool of_pool = shadow_.views.at(end.on).memory->kind == Kind::kPool;
    const bool plainly =
        of_pool ? random_.chance(50) : !machine_.pools || !random_.chance(20);
    if (!plainly) end.op = Op::kFreeAsync;
  }
  while (!ends.empty()) {
    const size_t which =
        static_cast<size_t>(random_.below(static_cast<int>(ends.size())));
    const Step one = ends[which];
    ends.erase(ends.begin() + static_cast<long>(which));
    Step step = by(one.process);
    step.op = one.op;
    step.on = one.on;
    if (one.op == Op::kFreeAsync) step.stream = some_stream(step);
    // The owner's last handle of memory that programs still use stays.
    if (emit(step)) return true;
    if (!all) return false;
  }
  return false;
}

void Generator::take_down() {
  const int p = some_process();
  settle(p);
  if (!take_down_one(false)) return;
  // The end of a pool changes nothing of the others.
  std::vector<int> pools;
  for (const auto& [id, pool] : shadow_.pools)
    if (!pool.imported) pools.push_back(id);
  if (program_.steps.back().op == Op::kDestroyPool && !pools.empty()) {
    const int pool = random_.of(pools);
    Step look = by(shadow_.pools.at(pool).process);
    look.op = Op::kAskPool;
    look.on = pool;
    look.how =
        random_.chance(50) ? int{kThreshold} : random_.below(kAskPoolHows);
    emit(look);
  }
  std::vector<int> views;
  for (const auto& [id, view] : shadow_.views) views.push_back(id);
  if (views.empty()) return;
  if (random_.chance(60))
    look_at(random_.of(views));
  else
    ask();
}

// Ends all that is left, in any legal order, with looks between.
void Generator::finish() {
  open_gates(100);
  for (int round = 0; round < 40; ++round) {
    // A stream that waits for a word gets it from another stream.
    bool blocked = false;
    std::vector<std::pair<int, Word>> all;
    for (const auto& [id, view] : shadow_.views) {
      for (const auto& [at, word] : view.memory->words) {
        for (const auto& wait : word.waits) {
          if (wait.work->done) continue;
          blocked = true;
          Step write;
          write.process = view.process;
          write.thread = free_thread(view.process);
          write.op = Op::kWriteWord;
          write.on = id;
          write.at = at;
          write.bytes = word.bytes;
          write.value = wait.how % kConditions == kNor
                            ? 0
                            : static_cast<int64_t>(wait.value);
          for (const auto& [number, stream] : shadow_.streams) {
            if (stream.process != view.process || !stream.queue.empty() ||
                is_legacy(number))
              continue;
            if (is_thread_stream(number) &&
                number != thread_stream(view.process, write.thread))
              continue;
            write.stream = number;
            if (emit(write)) goto next;
          }
        }
      }
    }
  next:
    if (!blocked) break;
  }
  for (int p = 0; p < processes_; ++p)
    if (shadow_.process[static_cast<size_t>(p)].current_pool != 0) {
      Step step = by(p);
      step.op = Op::kSetPool;
      emit(step);
      step.op = Op::kQuestion;
      step.how = kCurrent;
      emit(step);
    }
  for (int p = 0; p < processes_; ++p)
    if (!shadow_.process[static_cast<size_t>(p)].alive) {
      Step start;
      start.op = Op::kStart;
      start.process = p;
      emit(start);
    }
  for (int p = 0; p < processes_; ++p) settle(p);
  while (!unread_.empty()) look_at_unread();
  for (int round = 0; round < 2000 && !shadow_.is_clean(); ++round) {
    for (int p = 0; p < processes_; ++p) {
      bool all_known = true;
      for (const auto& [id, stream] : shadow_.streams)
        all_known = all_known && (stream.process != p || stream.synced);
      if (!all_known) settle(p);
    }
    if (!take_down_one(true)) break;
    std::vector<int> views;
    for (const auto& [id, view] : shadow_.views) views.push_back(id);
    if (!views.empty() && random_.chance(35)) look_at(random_.of(views));
  }
}

// --- programs ---------------------------------------------------------------

Program Generator::make(int steps, bool lives) {
  struct Weighed {
    Action action;
    int weight;
  };
  std::vector<Weighed> actions = {
      {&Generator::work, 26},       {&Generator::hand_over, 28},
      {&Generator::peek, 10},       {&Generator::hold_host, 5},
      {&Generator::words, 10},      {&Generator::graph, 6},
      {&Generator::set_up, 10},     {&Generator::take_down, 6},
      {&Generator::ask, 4},         {&Generator::refuse, 4},
      {&Generator::together, 8},    {&Generator::synchronise, 6},
      {&Generator::remap, 5},       {&Generator::pool_round, 5},
      {&Generator::end_process, 1}, {&Generator::chase, 14},
  };
  // Each program leaves some kinds of steps out, and does more of others.
  for (Weighed& one : actions)
    if (one.action != &Generator::work)
      one.weight *= random_.of({0, 1, 1, 1, 3});
  if (lives) actions.push_back({&Generator::end_process, 4});
  if (random_.chance(10)) actions.push_back({&Generator::crowd, 5});
  lives_ = lives;
  coverage_.begin();
  program_ = {};
  program_.seed = seed_;
  program_.processes = processes_;
  program_.gpus = machine_.gpus;
  for (int p = 0; p < processes_; ++p) {
    const int streams = 1 + random_.below(3);
    for (int i = 0; i < streams; ++i) {
      Step stream = by(p);
      stream.op = Op::kCreateStream;
      stream.id = number();
      stream.how = random_.below(kStreamHows);
      emit(stream);
    }
  }
  const int first = 2 + random_.below(4);
  for (int i = 0; i < first; ++i) {
    const int p = some_process();
    const int view = new_memory(p);
    if (view != 0)
      for (int q = 0; q < processes_; ++q)
        if (random_.chance(70)) share(view, q);
  }
  const int events = 1 + random_.below(3);
  for (int i = 0; i < events; ++i) {
    const int p = some_process();
    if (const int event = new_event(p); event != 0)
      for (int q = 0; q < processes_; ++q)
        if (random_.chance(60)) event_in(event, q);
  }
  int total = 0;
  for (const Weighed& one : actions) total += one.weight;
  for (int i = 0; i < 3 * steps; ++i) {
    if (static_cast<int>(program_.steps.size()) >= steps) break;
    int pick = random_.below(total);
    for (const Weighed& one : actions) {
      pick -= one.weight;
      if (pick < 0) {
        (this->*one.action)();
        break;
      }
    }
    if (random_.chance(40))
      call(random_.chance(50) ? Op::kRefuse : Op::kQuestion);
    if (random_.chance(12)) open_gates(50);
    if (random_.chance(30)) look_at_unread();
  }
  finish();
  return std::move(program_);
}

}  // namespace ipclab::explore
