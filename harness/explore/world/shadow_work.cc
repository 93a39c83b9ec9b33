// Work on memory: writes, copies, reads, words and graphs.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "harness/explore/world/shadow.h"

namespace ipclab::explore {
namespace {

bool overlap(const Region& region, const Access& access) {
  return region.from < access.to && access.from < region.to;
}

// The row that promises that work by way of this view reaches the memory.
const char* row_of(const View& view) {
  const Memory& memory = *view.memory;
  if (memory.lost_importer != 0)
    return memory.lost_importer == 1 ? "LIFE-02" : "LIFE-15";
  switch (memory.kind) {
    case Kind::kLegacy:
      return view.imported ? "LMEM-35" : "LMEM-02";
    case Kind::kChunk:
      return "VMM-07";
    case Kind::kPool:
      return view.imported ? "POOL-06" : "SOMA-02";
    case Kind::kNode:
      return "MNGD-15";
    default:
      return "LMEM-45";  // the context is usable
  }
}

bool condition(int how, uint64_t word, uint64_t value, int64_t bytes) {
  switch (how % kConditions) {
    case kEqual:
      return word == value;
    case kAnd:
      return (word & value) != 0;
    case kNor:
      return (~(word | value) & (bytes == 4 ? 0xffffffffu : ~uint64_t{0})) != 0;
    default:  // cyclic
      return bytes == 4
                 ? static_cast<int32_t>(static_cast<uint32_t>(word) -
                                        static_cast<uint32_t>(value)) >= 0
                 : static_cast<int64_t>(word - value) >= 0;
  }
}

uint64_t word_at(const Memory& memory, int64_t at, int64_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, memory.data.get() + at, static_cast<size_t>(bytes));
  return word;
}

}  // namespace

// --- bytes ------------------------------------------------------------------

// The regions of a box that begins at `at` in a view. A mapping goes on in the
// next mapping of its reservation, if that follows without a gap.
bool Shadow::regions(const Step& step, int view, int64_t at, int64_t pitch,
                     bool write, std::vector<Region>* out, bool cpu) {
  const View* first = view_of(view, step.process);
  if (first == nullptr) return no("no such memory in this process");
  const int64_t rows = std::max(step.rows, 1) * std::max(step.layers, 1);
  if (step.bytes <= 0 || at < 0 || (rows > 1 && pitch < step.bytes))
    return no("an empty or impossible box");
  for (int64_t row = 0; row < rows; ++row) {
    int64_t from = at + row * pitch;
    int64_t left = step.bytes;
    int id = view;
    const View* part = first;
    while (left > 0) {
      if (from >= part->memory->bytes) {
        if (part->range == 0) return no("beyond the end of the memory");
        const int64_t next_at = part->at + part->memory->bytes;
        const auto next =
            std::find_if(views.begin(), views.end(), [&](const auto& entry) {
              return entry.second.range == part->range &&
                     entry.second.at == next_at;
            });
        if (next == views.end()) return no("beyond the last mapping");
        from -= part->memory->bytes;
        id = next->first;
        part = &next->second;
        continue;
      }
      if (((cpu ? part->cpu : part->access) & (write ? 2 : 1)) == 0)
        return no("no access");
      const int64_t size = std::min(left, part->memory->bytes - from);
      out->push_back({part->memory, from, from + size, id});
      from += size;
      left -= size;
    }
  }
  return true;
}

namespace {

// Runs `byte` for each byte of the regions, with its number in the box.
template <class Byte>
void each_byte(const std::vector<Region>& regions, Byte byte) {
  uint64_t index = 0;
  for (const Region& region : regions)
    for (int64_t i = region.from; i < region.to; ++i)
      byte(region.memory->data.get()[i], index++);
}

void define(const std::vector<Region>& regions) {
  for (const Region& region : regions)
    region.memory->defined.add(region.from, region.to);
}

std::vector<uint8_t> bytes_of(const std::vector<Region>& regions) {
  std::vector<uint8_t> bytes;
  for (const Region& region : regions)
    bytes.insert(bytes.end(), region.memory->data.get() + region.from,
                 region.memory->data.get() + region.to);
  return bytes;
}

}  // namespace

namespace {

// Memory of the host, for the rule that a copy inside it is synchronous.
bool is_of_host(Kind kind) { return is_pinned(kind) || kind == Kind::kNode; }

// Can this way do a box of this shape between such memories?
bool has_way(const Step& step, Kind to, Kind from) {
  const bool plain = step.rows <= 1 && step.layers <= 1;
  // Directions and hints of this memory are not described.
  const bool plain_kinds = to < Kind::kManaged && from < Kind::kManaged;
  switch (step.op) {
    case Op::kCopy:
      switch (step.how) {
        case kCopyPeerAsync:
          return plain && is_device(to) && is_device(from);
        case kCopyAsyncKind:
          return plain && plain_kinds;
        case kCopyBatch:
          return plain && plain_kinds && step.bytes >= 2;
        case kCopy3DBatch:
          return plain_kinds;
        case kCopy2DAsync:
        case kCopy2DSync:
          return step.layers <= 1;
        case kCopy3DAsync:
        case kCopy3DSync:
          return true;
        default:
          return plain && step.how < kCopyHows;
      }
    case Op::kSet:
      if (step.how >= kSetHows) return false;
      if (step.layers > 1 && (step.how % 3 != kSet8 || step.api != 0))
        return false;
      return is_device(to) || (plain && step.how % 3 == kSet8);
    case Op::kUpload:
      return is_device(to) && step.how < kUploadHows &&
             (plain || (step.how == kUpload2D && step.layers <= 1));
    case Op::kRead:
      return step.how < kReadHows &&
             (plain || (step.how == kRead2D && step.layers <= 1));
    default:
      return plain && step.how < kWriteHows &&
             (step.how != kHostFunction || is_pinned(to));
  }
}

}  // namespace

// What a write, set, copy or upload does; also as a node of a graph.
bool Shadow::effect_of(const Step& step, Effect* effect) {
  const View* to = view_of(step.on, step.process);
  if (to == nullptr) return no("no such memory in this process");
  effect->row = row_of(*to);
  const View* from =
      step.op == Op::kCopy ? view_of(step.from, step.process) : to;
  if (from == nullptr) return no("no such source in this process");
  if (step.op == Op::kCopy && step.how == kCopyPeerAsync) {
    const int gpus[] = {gpu_of(*to->memory), gpu_of(*from->memory)};
    if (step.value != gpus[0] + kMostGpus * gpus[1])
      return no("not the GPUs of the memory");
    // Imports are used by the GPU of their process.
    if (std::count(gpus, gpus + 2, machine.gpu_of(step.process)) == 0)
      return no("both GPUs are others");
    // No sentence says what a peer copy does if a GPU that it names has no
    // access to the mapping.
    for (const View* view : {to, from})
      if (view->memory->kind == Kind::kChunk &&
          gpu_of(*view->memory) != machine.gpu_of(step.process))
        return no("the mapping is for another GPU");
  }
  if (step.how < 0 || step.rows < 0 || step.layers < 0 || step.rows > 64 ||
      step.layers > 16 || !has_way(step, to->memory->kind, from->memory->kind))
    return no("no such way");
  if (step.op == Op::kRead) {
    if (!regions(step, step.on, step.at, step.pitch, false, &effect->reads))
      return false;
    return true;
  }
  if (!regions(step, step.on, step.at, step.pitch, true, &effect->writes))
    return false;
  const auto writes = effect->writes;
  if (step.op == Op::kCopy) {
    if (!regions(step, step.from, step.from_at, step.from_pitch, false,
                 &effect->reads))
      return false;
    for (const Region& read : effect->reads)
      for (const Region& write : writes)
        if (read.memory == write.memory && read.from < write.to &&
            write.from < read.to)
          return no("a copy onto itself");
    if (from->imported) effect->row = row_of(*from);
    const auto reads = effect->reads;
    effect->execute = [reads, writes] {
      const std::vector<uint8_t> bytes = bytes_of(reads);
      const uint8_t* from = bytes.data();
      for (const Region& write : writes) {
        const int64_t size = write.to - write.from;
        std::memcpy(write.memory->data.get() + write.from, from,
                    static_cast<size_t>(size));
        from += size;
      }
      define(writes);
    };
    return true;
  }
  if (step.op == Op::kSet) {
    const int64_t width = int64_t{1} << (step.how % 3);
    if (step.at % width != 0 || step.bytes % width != 0 ||
        step.pitch % width != 0)
      return no("words that are not aligned");
    const uint64_t value = static_cast<uint64_t>(step.value);
    effect->execute = [writes, value, width] {
      if (width == 1) {
        for (const Region& write : writes)
          std::memset(write.memory->data.get() + write.from,
                      static_cast<int>(value & 0xff),
                      static_cast<size_t>(write.to - write.from));
        define(writes);
        return;
      }
      each_byte(writes, [&](uint8_t& byte, uint64_t i) {
        byte = static_cast<uint8_t>(value >> (i % width * 8));
      });
      define(writes);
    };
    return true;
  }
  const auto key = static_cast<uint32_t>(step.value);
  effect->execute = [writes, key] {
    each_byte(writes,
              [&](uint8_t& byte, uint64_t i) { byte = pattern_byte(key, i); });
    define(writes);
  };
  return true;
}

// --- order ------------------------------------------------------------------

Stream* Shadow::stream_of(const Step& step) {
  const auto found = streams.find(step.stream);
  if (found == streams.end() || found->second.process != step.process) {
    no("no such stream in this process");
    return nullptr;
  }
  if (is_thread_stream(step.stream) &&
      step.stream != thread_stream(step.process, step.thread)) {
    no("another thread's default stream");
    return nullptr;
  }
  for (const Held& call : held)
    if (call.process == step.process && (call.step.op == Op::kSyncDevice ||
                                         (call.step.op == Op::kSyncStream &&
                                          call.step.stream == step.stream))) {
      // The synchronise may also wait for later work.
      no("a thread synchronises the stream");
      return nullptr;
    }
  return &found->second;
}

// The next work of a stream, with all that comes before it.
WorkPtr Shadow::plan(const Step& step, Stream& stream) {
  auto work = std::make_shared<Work>();
  work->process = step.process;
  work->stream = step.stream;
  work->lane = stream.lane;
  work->clock = stream.clock;
  work->clock.join(known());
  const auto inherit = [&](const Stream& other) {
    if (other.last != nullptr && other.last->replaced && !is_known(*other.last))
      work->replaced = true;
  };
  inherit(stream);
  const auto after = [&](const Stream& other) {
    inherit(other);
    work->clock.join(other.clock);
    if (other.last != nullptr && !other.last->done)
      work->after.push_back(other.last);
  };
  for (const auto& [id, other] : streams) {
    if (other.process != step.process || other.capture != 0) continue;
    if ((stream.legacy && other.blocking) || (stream.blocking && other.legacy))
      after(other);
  }
  work->seq = stream.clock.at(stream.lane) + 1;
  work->clock.set(stream.lane, work->seq);
  return work;
}

bool Shadow::defined(const Work& work, const Region& region) const {
  Ranges all = region.memory->defined;
  for (const Access& access : region.memory->accesses)
    if (access.write && !access.work->done &&
        work.clock.at(access.work->lane) >= access.work->seq)
      all.add(access.from, access.to);
  return all.contains(region.from, region.to);
}

// Has each conflicting use an order? The one excuse: the host waits for this
// work, and the other use is held, so this work is over before.
bool Shadow::orderly(const Work& work, const Effect& effect, bool host_waits) {
  const auto check = [&](const Region& region, bool write) {
    forget_known(*region.memory);
    for (const Access& access : region.memory->accesses) {
      if (!(write || access.write) || !overlap(region, access)) continue;
      if (effect.word && access.word) continue;
      if (work.clock.at(access.work->lane) >= access.work->seq) continue;
      if (host_waits && !access.work->done) continue;
      return no("a race");
    }
    if (!write && !defined(work, region)) return no("bytes without a value");
    return true;
  };
  for (const Region& region : effect.reads)
    if (!check(region, false)) return false;
  for (const Region& region : effect.writes) {
    if (!check(region, true)) return false;
    if (effect.word) continue;
    for (const auto& [at, word] : region.memory->words)
      if (at < region.to && region.from < at + word.bytes)
        return no("a word lies there");
  }
  return true;
}

void Shadow::commit(const WorkPtr& work, const Effect& effect) {
  work->execute = effect.execute;
  for (const Region& region : effect.reads)
    region.memory->accesses.push_back(
        {work, region.from, region.to, false, effect.word, region.view});
  for (const Region& region : effect.writes)
    region.memory->accesses.push_back(
        {work, region.from, region.to, true, effect.word, region.view});
  Stream& stream = streams.at(work->stream);
  stream.clock = work->clock;
  stream.queue.push_back(work);
  stream.last = work;
  stream.synced = false;
  pump();
}

// --- writes, copies, reads --------------------------------------------------

bool Shadow::work_step(const Step& step, Expected* expected) {
  Stream* const stream = stream_of(step);
  if (stream == nullptr) return false;
  Effect effect;
  if (!effect_of(step, &effect)) return false;
  expected->row = effect.row;
  const bool synchronous =
      (step.op == Op::kCopy && step.how >= kFirstSyncCopy) ||
      (step.op == Op::kSet && step.how >= kSet8Sync) ||
      step.op == Op::kUpload || (step.op == Op::kRead && step.how >= kReadSync);
  if (stream->capture != 0) {
    if (synchronous || step.op == Op::kRead) return no("not in a capture");
    if (step.op == Op::kCopy && step.how >= kCopyPeerAsync &&
        step.how != kCopy2DAsync && step.how != kCopy3DAsync)
      return no("no sentence says that a graph has such copies");
    return add_node(step, effect);
  }
  if (step.op == Op::kCopy &&
      (step.how == kCopyBatch || step.how == kCopy3DBatch)) {
    if (!machine.batches) return no("no batches of copies here");
    if (is_legacy(step.stream)) return no("a batch has a stream of its own");
  }
  const bool by_legacy =
      synchronous && !(step.op == Op::kUpload && step.how == kUploadAsync);
  if (by_legacy && !is_legacy(step.stream))
    return no("a synchronous call uses the legacy default stream");
  // Such a call may wait for all work of the process. So may every copy between
  // two memories of the host: it is synchronous, whatever its name says.
  const bool waits =
      synchronous || (step.op == Op::kCopy && step.how != kCopyKernel &&
                      is_of_host(views.at(step.on).memory->kind) &&
                      is_of_host(views.at(step.from).memory->kind));
  // The first call that names another GPU makes a context there, which may wait
  // for all work, too.
  const bool names_other =
      step.op == Op::kCopy && step.how == kCopyPeerAsync &&
      step.value != machine.gpu_of(step.process) * (1 + kMostGpus);
  const bool makes_context = names_other && !process[step.process].other_gpu;
  if ((waits || makes_context) && !quiet(step.process))
    return no("the process holds work");
  // LEVT-13 says that nothing waits for a record that was replaced.
  for (const auto& [id, other] : streams)
    if (waits && other.process == step.process && other.last != nullptr &&
        other.last->replaced)
      expected->row = "LEVT-13";
  const WorkPtr work = plan(step, *stream);
  const bool host_waits = step.op == Op::kRead;
  if (host_waits && (!stream->queue.empty() || !work->after.empty()))
    return no("the stream is held");
  if (!orderly(*work, effect, host_waits)) return false;
  if (names_other) process[step.process].other_gpu = true;
  commit(work, effect);
  if (step.op == Op::kRead) {
    expected->judges_bytes = true;
    expected->bytes = bytes_of(effect.reads);
    host_.join(work->clock);
  }
  return true;
}

// --- words ------------------------------------------------------------------

bool Shadow::word_step(const Step& step, Expected* expected) {
  if (!machine.words) return no("streams cannot wait for words here");
  if (step.bytes != 4 && step.bytes != 8) return no("no size of a word");
  if (step.how < 0 ||
      step.how >= (step.op == Op::kWriteWord ? static_cast<int>(kWriteWordHows)
                                             : kWaitWordHows))
    return no("no such way");
  Stream* const stream = stream_of(step);
  if (stream == nullptr) return false;
  if (stream->capture != 0 || is_legacy(step.stream))
    return no("no words in this stream");
  Effect effect;
  effect.word = true;
  const bool write = step.op == Op::kWriteWord;
  if (!regions(step, step.on, step.at, 0, write,
               write ? &effect.writes : &effect.reads))
    return false;
  const Region region = write ? effect.writes[0] : effect.reads[0];
  const View& view = views.at(region.view);
  if (view.memory->kind == Kind::kPool || view.memory->kind >= Kind::kManaged)
    return no("no words in such memory");
  if (step.at % step.bytes != 0 || region.to - region.from != step.bytes)
    return no("a word that is not aligned");
  const auto value = static_cast<uint64_t>(step.value);
  if (step.bytes == 4 && value > 0xffffffffu) return no("more than 32 bits");
  for (const auto& [at, word] : view.memory->words)
    if (at != region.from && at < region.to && region.from < at + word.bytes)
      return no("another word lies there");
  if (step.op == Op::kWaitWord && step.how % kConditions == kAnd && value == 0)
    return no("a wait for no bit");
  if (step.op == Op::kWaitWord && step.how % kConditions == kNor &&
      !machine.nor)
    return no("no wait for a missing bit here");
  const WorkPtr work = plan(step, *stream);
  if (!orderly(*work, effect, false)) return false;
  expected->row = "FLAG-01";
  const auto ordered = [&](const WorkPtr& other) {
    return is_known(*other) || work->clock.at(other->lane) >= other->seq;
  };
  MemoryPtr memory = view.memory;
  const int64_t at = region.from, bytes = step.bytes;
  Word word;
  if (const auto it = memory->words.find(at); it != memory->words.end()) {
    word = it->second;
    if (word.bytes != bytes) return no("a word of another size");
  } else {
    if (!unused(memory)) return no("the word's first value is not known");
    word.bytes = bytes;
    word.initial = word_at(*memory, at, bytes);
  }
  while (!word.writes.empty() && is_known(*word.writes[0].first)) {
    word.initial = word.writes[0].second;
    word.writes.erase(word.writes.begin());
  }
  word.waits.erase(
      std::remove_if(word.waits.begin(), word.waits.end(),
                     [&](const auto& wait) { return is_known(*wait.work); }),
      word.waits.end());
  if (write) {
    if (!word.writes.empty() && !ordered(word.writes.back().first))
      return no("two writes of a word without an order");
    const uint64_t last =
        word.writes.empty() ? word.initial : word.writes.back().second;
    if (step.how == kWritePair && static_cast<uint64_t>(step.from_at) != last)
      return no("not the value before");
    for (const auto& wait : word.waits)
      if (!ordered(wait.work) && condition(wait.how, last, wait.value, bytes) &&
          !condition(wait.how, value, wait.value, bytes))
        return no("a wait may miss the value");
    const auto writes = effect.writes;
    effect.execute = [writes, value, bytes] {
      each_byte(writes, [&](uint8_t& byte, uint64_t i) {
        byte = static_cast<uint8_t>(value >> (i % bytes * 8));
      });
      define(writes);
    };
    word.writes.emplace_back(work, value);
    memory->words[at] = word;
    commit(work, effect);
    return true;
  }
  // All values from `first` on let the wait pass. It passes at one of them.
  const auto passes = [&](size_t index) {
    return condition(step.how,
                     index == 0 ? word.initial : word.writes[index - 1].second,
                     value, bytes);
  };
  size_t first = word.writes.size() + 1;
  while (first > 0 && passes(first - 1)) --first;
  for (size_t i = 0; i < first && i <= word.writes.size(); ++i) {
    const bool over = i < word.writes.size() && ordered(word.writes[i].first);
    if (passes(i) && !over)
      return no("the wait may pass at a value that does not stay");
  }
  if (!condition(step.how, word_at(*memory, at, bytes), value, bytes) &&
      !may_hold(*stream))
    return false;
  if (first >= 1 && first <= word.writes.size())
    work->clock.join(word.writes[first - 1].first->clock);
  work->ready = [memory, at, bytes, how = step.how, value] {
    return condition(how, word_at(*memory, at, bytes), value, bytes);
  };
  word.waits.push_back({work, step.how, value});
  memory->words[at] = word;
  commit(work, effect);
  return true;
}

// --- graphs -----------------------------------------------------------------

// A captured call is a node after all that its stream has captured or joined.
bool Shadow::add_node(const Step& step, const Effect& effect) {
  Graph& graph = graphs.at(streams.at(step.stream).capture);
  if (graph.nodes.size() >= kMostNodes) return no("too many nodes");
  Branch& mine = graph.branches.at(step.stream);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if ((mine.before >> i & 1) != 0) continue;
    Effect other;
    if (!effect_of(graph.nodes[i], &other)) return false;
    const auto meet = [](const auto& all, const auto& others) {
      for (const Region& one : all)
        for (const Region& two : others)
          if (one.memory == two.memory && one.from < two.to &&
              two.from < one.to)
            return true;
      return false;
    };
    if (meet(effect.writes, other.writes) || meet(effect.writes, other.reads) ||
        meet(effect.reads, other.writes))
      return no("a race of two branches");
  }
  graph.edges.push_back(mine.next);
  mine.next = uint64_t{1} << graph.nodes.size();
  mine.before |= mine.next;
  graph.nodes.push_back(step);
  return true;
}

// Events join the branches of a capture. Interprocess events are not described
// there (GRPH-02).
bool Shadow::branch_step(const Step& step, Event* event, Expected* expected) {
  EventShared& shared = *event->shared;
  const int id = process[step.process].capture;
  Graph& graph = graphs.at(id);
  if (shared.how != kLocal) return no("an interprocess event in a graph");
  if (step.how != 0) return no("no such way");
  const auto mine = graph.branches.find(step.stream);
  expected->row = "GRPH-01";
  if (step.op == Op::kRecord) {
    if (mine == graph.branches.end()) return no("the stream is not captured");
    shared.captured = id;
    shared.after = mine->second;
    return true;
  }
  if (shared.captured != id) return no("its record is not in this capture");
  if (mine != graph.branches.end()) {
    mine->second.before |= shared.after.before;
    mine->second.next |= shared.after.next;
    return true;
  }
  Stream& stream = streams.at(step.stream);
  if (step.stream < 0) return no("default streams are not captured");
  graph.branches[step.stream] = shared.after;
  stream.capture = id;
  return true;
}

// An update keeps the nodes and their edges, and changes what kernels get.
bool Shadow::update(const Step& step, Graph& updated) {
  const Graph& graph = graphs.at(step.on);
  if (graph.edges != updated.edges) return no("other edges");
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Step &node = graph.nodes[i], &older = updated.nodes[i];
    const bool kernel =
        (node.op == Op::kWrite && node.how == kLaunch && node.api == 0) ||
        (node.op == Op::kCopy && node.how == kCopyKernel);
    if (!kernel || node.op != older.op || node.how != older.how ||
        node.api != older.api)
      return no("only what kernels get is updated");
  }
  updated.nodes = graph.nodes;
  return true;
}

bool Shadow::graph_step(const Step& step, Expected* expected) {
  if (step.op == Op::kBeginCapture) {
    Stream* const stream = stream_of(step);
    if (stream == nullptr) return false;
    if (!fresh(step.id)) return no("the number is taken");
    if (step.stream < 0) return no("default streams are not captured");
    for (const Held& call : held)
      if (call.process == step.process) return no("a thread is in a call");
    Graph& graph = graphs[step.id];
    graph.process = step.process;
    graph.thread = step.thread;
    graph.stream = step.stream;
    graph.branches[step.stream] = {};
    stream->capture = process[step.process].capture = step.id;
    return true;
  }
  const auto found = graphs.find(step.on);
  if (found == graphs.end() || found->second.process != step.process)
    return no("no such graph in this process");
  Graph& graph = found->second;
  if (step.op == Op::kEndCapture) {
    if (graph.ready || step.thread != graph.thread ||
        step.stream != graph.stream)
      return no("this is not captured here");
    if (graph.nodes.empty()) return no("an empty graph");
    const uint64_t all = (uint64_t{1} << graph.nodes.size()) - 1;
    if (graph.branches.at(graph.stream).before != all)
      return no("a branch has not joined the first one");
    if (step.how == kUpdate) {
      const auto older = graphs.find(step.from);
      if (older == graphs.end() || older->second.process != step.process ||
          !older->second.ready)
        return no("no graph to update");
      if (!update(step, older->second)) return false;
    } else if (step.how != kInstantiate || step.from != 0) {
      return no("no such way");
    }
    for (const auto& [id, nodes] : graph.branches) streams.at(id).capture = 0;
    process[step.process].capture = 0;
    graph.branches.clear();
    graph.ready = true;
    if (step.how == kUpdate) graphs.erase(found);
    return true;
  }
  if (!graph.ready) return no("the graph is still captured");
  if (step.op == Op::kDestroyGraph) {
    if (graph.launched != nullptr && !is_known(*graph.launched))
      return no("a launch may be unfinished");
    if (!quiet(step.process)) return no("the process holds work");
    graphs.erase(found);
    return true;
  }
  Stream* const stream = stream_of(step);
  if (stream == nullptr) return false;
  if (stream->capture != 0) return no("not in a capture");
  // A launch comes after the launch before.
  const WorkPtr work = plan(step, *stream);
  if (graph.launched != nullptr) {
    work->clock.join(graph.launched->clock);
    if (!graph.launched->done) work->after.push_back(graph.launched);
  }
  Effect whole;
  Ranges written;
  std::vector<std::function<void()>> all;
  for (const Step& node : graph.nodes) {
    Effect effect;
    if (!effect_of(node, &effect)) return false;
    // What an earlier node has written needs no value from before.
    for (const Region& read : effect.reads) {
      const bool by_node = std::any_of(
          whole.writes.begin(), whole.writes.end(), [&](const Region& write) {
            return write.memory == read.memory && write.from <= read.from &&
                   read.to <= write.to;
          });
      if (!by_node) whole.reads.push_back(read);
    }
    whole.writes.insert(whole.writes.end(), effect.writes.begin(),
                        effect.writes.end());
    all.push_back(effect.execute);
  }
  if (!orderly(*work, whole, false)) return false;
  whole.execute = [all] {
    for (const auto& execute : all) execute();
  };
  expected->row = "GRPH-01";
  graph.launched = work;
  commit(work, whole);
  return true;
}

}  // namespace ipclab::explore
