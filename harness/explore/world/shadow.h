// What the documentation promises about a program, step by step.
//
// The shadow knows no driver and no model. It has the bytes of each physical
// memory, every mapping, and which work comes before which. apply() says
// whether a step is defined now, what it has to answer, and changes the world.
// Generator, executor and shrinker use the same function, so each part of a
// program is judged by the same rules.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "harness/explore/world/clock.h"
#include "harness/explore/world/program.h"
#include "harness/explore/world/step.h"

namespace ipclab::explore {

/// A node is memory of cuMemCreate on a NUMA node of the host.
enum class Kind {
  kLegacy,
  kChunk,
  kPool,
  kPinned,
  kRegistered,
  kManaged,
  kNode
};
const char* name_of(Kind kind);
/// Memory of a GPU.
constexpr bool is_device(Kind kind) { return kind <= Kind::kPool; }
/// Memory of cuMemCreate, which is used by mappings.
constexpr bool is_mapped(Kind kind) {
  return kind == Kind::kChunk || kind == Kind::kNode;
}
/// Pinned memory of the host, which copies treat as memory of the host.
constexpr bool is_pinned(Kind kind) {
  return kind == Kind::kPinned || kind == Kind::kRegistered;
}

struct Work;
using WorkPtr = std::shared_ptr<Work>;

/// One use of bytes that the host does not yet know to be over.
struct Access {
  WorkPtr work;
  int64_t from = 0, to = 0;
  bool write = false;
  bool word = false;  ///< by a word: does not race with other uses of the word
  int view = 0;
};

/// A word in memory that streams write and wait for.
struct Word {
  struct Waiting {
    WorkPtr work;
    int how;
    uint64_t value;
  };
  int64_t bytes = 4;
  uint64_t initial = 0;  ///< before the first of `writes`
  std::vector<std::pair<WorkPtr, uint64_t>> writes;  ///< each after the last
  std::vector<Waiting> waits;
};

/// Physical memory.
struct Memory {
  Memory(Kind kind, int owner, int64_t bytes);
  Kind kind;
  int owner;
  int64_t bytes;
  std::unique_ptr<uint8_t, void (*)(void*)> data;
  WorkPtr allocation;  ///< of pool memory: before it nothing uses the memory
  Ranges defined;      ///< bytes that executed work has written
  std::vector<Access> accesses;   ///< see Access
  std::map<int64_t, Word> words;  ///< by offset
  bool alive = true;              ///< not freed by its owner
  std::map<int, int> opens;       ///< legacy, pool: process -> open imports
  /// What happened to a process that had it open: 0 nothing, 1 it ended, 2 its
  /// GPU was reset.
  int lost_importer = 0;
};
using MemoryPtr = std::shared_ptr<Memory>;

/// Some bytes of a memory, used by way of a view.
struct Region {
  MemoryPtr memory;
  int64_t from = 0, to = 0;
  int view = 0;
};

/// A command in a stream.
struct Work {
  int process = 0, stream = 0, lane = 0;
  uint32_t seq = 0;
  Clock clock;                    ///< what comes before it, itself included
  std::vector<WorkPtr> after;     ///< besides the work before it in the stream
  std::function<bool()> ready;    ///< null: always
  std::function<void()> execute;  ///< null: nothing to do
  bool replaced = false;  ///< after a record that replaced a pending one
  bool done = false;      ///< nothing holds it; the shadow executed it
};

/// An address range in one process by which it uses memory.
struct View {
  int process = 0;
  MemoryPtr memory;
  bool imported = false;
  int pool = 0;    ///< the process's pool, for pool memory
  int range = 0;   ///< the reservation, for a mapping
  int64_t at = 0;  ///< where in the reservation
  int access = 3;  ///< of the GPU: 0 none, 1 read, 3 read and write
  int cpu = 3;     ///< the same of the CPU, for memory of the host
  int origin = 0;  ///< of the chunk that was mapped
};

struct Chunk {
  int process = 0;
  MemoryPtr memory;
  bool imported = false;
  int origin = 0;  ///< the create or import that it came from, or stands for
};

struct PoolShared {
  int owner = 0;
  bool shareable = false, exported = false;
};
struct Allocation {
  int64_t bytes = 0;
  int view = 0;
  WorkPtr freed;  ///< null while it is in use
};
struct Pool {
  int process = 0;
  std::shared_ptr<PoolShared> shared;
  bool imported = false;
  int64_t threshold = 0;
  std::vector<Allocation> used;  ///< in use, or perhaps in use
  /// The watermark of used bytes is between these two, and that of reserved
  /// bytes is not less than the third.
  int64_t high_least = 0, high_most = 0, reserved_high_least = 0;
  bool released = false;       ///< a synchronise has found it unused
  bool freed_at_once = false;  ///< by cudaFree or cuMemFree
};

/// Where a captured stream is. A set of nodes is a number: its bit `i` is node
/// `i`. A wait for an event adds to `next` also what is in `before` already:
/// such an edge changes nothing, but the graph has it.
struct Branch {
  uint64_t before = 0;  ///< all nodes that the next node comes after
  uint64_t next = 0;    ///< the nodes from which the next node has an edge
};
struct EventShared {
  int owner = 0;
  int how = 0;
  int captured = 0;           ///< the graph that has the last record
  Branch after;               ///< where that record was
  WorkPtr record;             ///< the last record
  std::vector<WorkPtr> uses;  ///< records and waits that may be unfinished
};
struct Event {
  int process = 0;
  std::shared_ptr<EventShared> shared;
  bool imported = false;
};

struct Stream {
  int process = 0;
  int lane = 0;
  bool blocking = false, legacy = false;
  Clock clock;
  std::deque<WorkPtr> queue;  ///< not executed
  WorkPtr last;
  bool synced = true;  ///< a synchronise returned, and no work came after it
  int capture = 0;     ///< the graph that it captures
};

struct Handle {
  Op made_by = Op::kExportMemory;
  MemoryPtr memory;
  std::shared_ptr<EventShared> event;
  std::shared_ptr<PoolShared> pool;
  int process = 0;  ///< that exported it
};

struct Range {
  int process = 0;
  int64_t bytes = 0;
};

constexpr int kMostNodes = 60;
struct Graph {
  int process = 0, thread = 0, stream = 0;
  std::vector<Step> nodes;
  std::vector<uint64_t> edges;     ///< of each node, the nodes it depends on
  std::map<int, Branch> branches;  ///< of each captured stream
  bool ready = false;
  WorkPtr launched;
};

struct GateState {
  bool open = false;
  int64_t word = 0;  ///< its number in the page that the processes share
  int process = 0;   ///< whose stream it holds
};

/// A host call that may not return yet.
struct Held {
  int process = 0, thread = 0;
  Step step;
  std::vector<WorkPtr> until;
};

struct Process {
  bool alive = true;
  bool held[kThreads] = {};
  int capture = 0;         ///< the graph that it captures
  int current_pool = 0;    ///< 0: the default pool of its GPU
  bool other_gpu = false;  ///< it has made a copy that names another GPU
};

/// What a step has to answer. All numbers of errors are equal in both APIs.
struct Expected {
  std::vector<int> codes;  ///< allowed codes; empty: success
  bool refused = false;    ///< the codes are documented refusals
  std::string row;         ///< whose promise the answer is
  bool judges_bytes = false;
  std::vector<uint8_t> bytes;  ///< the contents that a read has to return
  bool judges_value = false;
  int64_t least = 0, most = 0;  ///< bounds of the number that it returns
  int same_address = 0;         ///< the view whose address it has to return
  bool held = false;            ///< the call may not return yet
  std::vector<Held> returned;   ///< held calls that have to return after this
  bool outlived = false;        ///< a destroyed pool has memory in use
};

class Shadow {
 public:
  Shadow(const Machine& machine, int processes);

  /// Does the step have a defined result now? If so, changes the world and
  /// sets *expected. If not, changes nothing; reason() says why.
  bool apply(const Step& step, Expected* expected);
  const std::string& reason() const { return reason_; }

  /// Is every object gone and every call returned?
  bool is_clean() const;
  /// Is there work of the process that nothing has let go on?
  bool quiet(int process) const;

  const Machine machine;
  const int processes;
  // The world, read by the generator. Objects by their numbers.
  std::map<int, View> views;
  std::map<int, Chunk> chunks;
  std::map<int, Range> ranges;
  std::map<int, Pool> pools;
  std::map<int, Event> events;
  std::map<int, Stream> streams;
  std::map<int, Handle> handles;
  std::map<int, Graph> graphs;
  std::map<int, GateState> gates;
  std::vector<Process> process;
  std::vector<Held> held;

 private:
  // What the work of a step does with bytes.
  struct Effect {
    std::vector<Region> reads, writes;
    std::function<void()> execute;
    std::string row;
    bool word = false;
  };

  // Each judges the steps of one subject (files shadow_*.cc).
  bool memory_step(const Step& step, Expected* expected);
  bool chunk_step(const Step& step, Expected* expected);
  bool pool_step(const Step& step, Expected* expected);
  bool order_step(const Step& step, Expected* expected);
  bool word_step(const Step& step, Expected* expected);
  bool work_step(const Step& step, Expected* expected);
  bool graph_step(const Step& step, Expected* expected);
  bool branch_step(const Step& step, Event* event, Expected* expected);
  bool may_hold(const Stream& held);
  bool add_node(const Step& step, const Effect& effect);
  bool update(const Step& step, Graph& updated);
  bool ask_step(const Step& step, Expected* expected);
  bool refuse_step(const Step& step, Expected* expected);
  bool listed_step(const Step& step, Expected* expected);
  bool life_step(const Step& step, Expected* expected);

  bool no(const char* why);
  bool judge(const Step& step, Expected* expected);
  bool enter_group(const Step& step);
  std::vector<std::pair<const void*, bool>> touched(const Step& step) const;
  bool fresh(int id) const;
  int gpu_of(const Memory& memory) const {
    return machine.gpu_of(memory.owner);
  }
  const View* view_of(int id, int of_process) const;
  Stream* stream_of(const Step& step);
  Stream& make_stream(int id, int of_process);
  const Clock& known() const { return group_ != 0 ? group_host_ : host_; }
  bool is_known(const Work& work) const;
  void forget_known(Memory& memory) const;
  bool unused(const MemoryPtr& memory) const;
  bool unused_by(const MemoryPtr& memory, int view) const;
  bool regions(const Step& step, int view, int64_t at, int64_t pitch,
               bool write, std::vector<Region>* out, bool cpu = false);
  bool effect_of(const Step& step, Effect* effect);
  WorkPtr plan(const Step& step, Stream& stream);
  bool orderly(const Work& work, const Effect& effect, bool host_waits);
  bool defined(const Work& work, const Region& region) const;
  void commit(const WorkPtr& work, const Effect& effect);
  bool wait_on(const Step& step, std::vector<WorkPtr> until, Expected* expected,
               const char* row);
  void returns(const Held& call);
  void pump();
  void release_held(Expected* expected);
  void end_process(int which, bool by_reset);
  bool is_awaited(int which) const;
  void abandon_work(int which);
  std::pair<int64_t, int64_t> used_bytes(Pool& pool) const;
  void raise_watermarks(Pool& pool) const;
  void release_unused(int of_process);

  std::string reason_;
  Clock host_;        // what the hosts know to be over
  Clock group_host_;  // what they knew when the group began
  int group_ = 0;
  std::map<const void*, bool> group_touched_;  // object -> is it changed?
  std::set<std::pair<int, int>> group_actors_;
  std::set<int> ids_;  // all numbers that were given so far
  int lanes_ = 1;
};

}  // namespace ipclab::explore
