// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/coverage.h"

#include <algorithm>

namespace ipclab::explore {
namespace {

enum { kUses, kOrder, kThreadsTable, kEnds, kPlaces, kListed };

// Operations that a stream does in its order.
constexpr Op kInStream[] = {
    Op::kRecord,    Op::kWait,   Op::kGate,     Op::kWriteWord, Op::kWaitWord,
    Op::kWrite,     Op::kSet,    Op::kCopy,     Op::kUpload,    Op::kRead,
    Op::kPoolAlloc, Op::kLaunch, Op::kFreeAsync};
// Calls that threads make at the same time.
constexpr Op kBeside[] = {
    Op::kMalloc,       Op::kFree,        Op::kExportMemory,  Op::kOpenMemory,
    Op::kCloseMemory,  Op::kHostAlloc,   Op::kHostFree,      Op::kCreateChunk,
    Op::kExportChunk,  Op::kImportChunk, Op::kReleaseChunk,  Op::kReserve,
    Op::kUnreserve,    Op::kMap,         Op::kSetAccess,     Op::kUnmap,
    Op::kImportPool,   Op::kPoolAlloc,   Op::kImportPointer, Op::kFreeAsync,
    Op::kCreateStream, Op::kCreateEvent, Op::kOpenEvent,     Op::kDestroyEvent,
    Op::kRecord,       Op::kWait,        Op::kWrite,         Op::kSet,
    Op::kCopy,         Op::kUpload,      Op::kRead,          Op::kSyncStream};
constexpr Op kEnding[] = {
    Op::kFree,         Op::kCloseMemory,   Op::kHostFree,
    Op::kReleaseChunk, Op::kDropHandle,    Op::kUnreserve,
    Op::kUnmap,        Op::kDestroyPool,   Op::kFreeAsync,
    Op::kTrimPool,     Op::kDestroyStream, Op::kDestroyEvent,
    Op::kDestroyGraph, Op::kRefuse,        Op::kEnd};
constexpr Op kLooking[] = {Op::kRead,        Op::kHostRead,  Op::kQueryEvent,
                           Op::kQueryStream, Op::kSyncEvent, Op::kAskPool,
                           Op::kAskPointer,  Op::kCopy,      Op::kOpenMemory,
                           Op::kImportChunk, Op::kOpenEvent, Op::kMap};

template <size_t N>
bool is_in(const Op (&list)[N], Op op) {
  return std::find(list, list + N, op) != list + N;
}

// The class of a view: its kind, and whether another process owns the memory.
std::string class_of(Kind kind, bool imported) {
  return std::string(imported ? "imported " : "") + name_of(kind);
}

std::string way_of(const Step& step) {
  return std::string(name_of(step.op)) + "/" + std::to_string(step.how);
}

std::string listed_of(const Step& step) {
  return step.op == Op::kRefuse
             ? std::string("refused: ") + refusal(step.how).what
             : std::string("asked: ") + question(step.how).what;
}

// Can a machine make the call at all? The row says what the call is about.
bool can_call(const Machine& machine, const std::string& row) {
  const std::string subject = row.substr(0, row.find('-'));
  for (const char* const of_two : {"SOMA-13", "SOMA-14", "LMEM-31", "IMPL-07"})
    if (row == of_two) return machine.gpus > 1;
  if (subject == "VMM") return machine.granule != 0;
  if (subject == "SOMA" || subject == "POOL" || subject == "IMPL")
    return machine.pools;
  if (subject == "FLAG") return machine.words && machine.managed;
  return machine.legacy && machine.pools && machine.granule != 0;
}

std::string size_class(int64_t bytes) {
  return bytes <= 16     ? "16"
         : bytes <= 256  ? "256"
         : bytes <= 4096 ? "4Ki"
                         : "more";
}

std::string place_class(int64_t at, int64_t bytes, int64_t all) {
  if (at == 0) return bytes == all ? "whole" : "start";
  if (at + bytes == all) return "end";
  return at % 4 == 0 ? "middle" : "odd";
}

}  // namespace

int Coverage::Table::reached() const {
  return static_cast<int>(
      std::count_if(pairs.begin(), pairs.end(),
                    [](const auto& pair) { return pair.second > 0; }));
}

Coverage::Coverage(const Machine& machine)
    : tables_{{"memory, memory, operation", {}},
              {"operation before, operation in the stream", {}},
              {"call beside call in another thread", {}},
              {"what ended, what was looked at", {}},
              {"memory, size, place", {}},
              {"documented refusal, question", {}}} {
  struct Class {
    Kind kind;
    bool imported;
  };
  std::vector<Class> classes;
  if (machine.legacy) classes.push_back({Kind::kLegacy, true});
  classes.push_back({Kind::kLegacy, false});
  if (machine.granule != 0)
    for (const bool imported : {false, true})
      classes.push_back({Kind::kChunk, imported});
  if (machine.nodes)
    for (const bool imported : {false, true})
      classes.push_back({Kind::kNode, imported});
  if (machine.pools)
    for (const bool imported : {false, true})
      classes.push_back({Kind::kPool, imported});
  classes.push_back({Kind::kPinned, false});
  classes.push_back({Kind::kRegistered, false});
  if (machine.managed) classes.push_back({Kind::kManaged, false});
  const auto add = [&](int table, const std::string& pair) {
    return &(tables_[static_cast<size_t>(table)].pairs[pair] = 0);
  };
  const auto add_ops = [&](int table, Pairing pairing, Op one, Op other) {
    const int* const count =
        add(table, std::string(name_of(one)) + ", " + name_of(other));
    op_pairs_.push_back({pairing, one, other, count});
  };
  for (const Class& to : classes) {
    const std::string name = class_of(to.kind, to.imported);
    const bool device = is_device(to.kind);
    const auto single = [&](Op op, int how) {
      add(kUses, name + ", " + name_of(op) + "/" + std::to_string(how));
    };
    for (int how = 0; how < kWriteHows; ++how)
      if (how != kHostFunction || is_pinned(to.kind)) single(Op::kWrite, how);
    for (int how = 0; how < kReadHows; ++how) single(Op::kRead, how);
    for (int how = 0; how < kSetHows; ++how)
      if (device || how % 3 == kSet8) single(Op::kSet, how);
    for (int how = 0; how < kUploadHows && device; ++how)
      single(Op::kUpload, how);
    for (const Class& from : classes)
      for (int how = 0; how < kCopyHows; ++how) {
        const bool batch = how == kCopyBatch || how == kCopy3DBatch;
        if (how == kCopyPeerAsync && !(device && is_device(from.kind)))
          continue;
        if ((how == kCopyAsyncKind || batch) &&
            (to.kind >= Kind::kManaged || from.kind >= Kind::kManaged))
          continue;
        if (batch && !machine.batches) continue;
        const int* const count =
            add(kUses, name + ", " + class_of(from.kind, from.imported) +
                           ", copy/" + std::to_string(how));
        copies_.emplace_back(
            CopyUse{to.kind, from.kind, to.imported, from.imported, how},
            count);
      }
    for (const char* size : {"16", "256", "4Ki"})
      for (const char* place : {"start", "odd", "middle", "end"})
        add(kPlaces, name + ", " + size + ", " + place);
  }
  const auto possible = [&](Op op) {
    switch (op) {
      case Op::kWriteWord:
      case Op::kWaitWord:
        return machine.words;
      case Op::kPoolAlloc:
      case Op::kFreeAsync:
      case Op::kImportPool:
      case Op::kImportPointer:
      case Op::kDestroyPool:
      case Op::kTrimPool:
      case Op::kAskPool:
        return machine.pools;
      case Op::kCreateChunk:
      case Op::kExportChunk:
      case Op::kImportChunk:
      case Op::kReleaseChunk:
      case Op::kReserve:
      case Op::kUnreserve:
      case Op::kMap:
      case Op::kSetAccess:
      case Op::kUnmap:
        return machine.granule != 0;
      case Op::kExportMemory:
      case Op::kOpenMemory:
      case Op::kCloseMemory:
      case Op::kOpenEvent:
        return machine.legacy;
      default:
        return true;
    }
  };
  Step call;
  call.op = Op::kRefuse;
  for (call.how = 0; call.how < kRefusals; ++call.how)
    if (can_call(machine, refusal(call.how).row)) add(kListed, listed_of(call));
  call.op = Op::kQuestion;
  for (call.how = 0; call.how < kQuestions; ++call.how)
    if (can_call(machine, question(call.how).row))
      add(kListed, listed_of(call));
  // A read and an upload wait, so they never follow a gate that holds.
  for (const Op before : kInStream)
    for (const Op op : kInStream)
      if (possible(before) && possible(op))
        add_ops(kOrder, kInOneStream, before, op);
  for (const Op one : kBeside)
    for (const Op other : kBeside)
      if (one <= other && possible(one) && possible(other))
        add_ops(kThreadsTable, kBesideEachOther, one, other);
  for (const Op end : kEnding)
    for (const Op look : kLooking)
      if (possible(end) && possible(look))
        add_ops(kEnds, kAfterAnEnd, end, look);
}

int Coverage::calls(const Step& step) const {
  const auto found = tables_[kListed].pairs.find(listed_of(step));
  return found == tables_[kListed].pairs.end() ? 1 << 20 : found->second;
}

// The kind of a call and of its subject.
std::string Coverage::subject_of(const Step& step, int on,
                                 const Shadow& shadow) {
  const auto view = shadow.views.find(on);
  return listed_of(step) + ", " +
         (view != shadow.views.end()
              ? class_of(view->second.memory->kind, view->second.imported)
          : shadow.pools.count(on) != 0 ? "a pool"
          : on == 0                     ? "nothing"
                                        : "another object");
}

int Coverage::calls_of(const Step& step, int on, const Shadow& shadow) const {
  const auto found = subjects_.find(subject_of(step, on, shadow));
  return found == subjects_.end() ? 0 : found->second;
}

void Coverage::begin() {
  last_in_stream_.clear();
  group_.clear();
  has_ended_ = false;
}

// Only pairs that a table knows count.
void Coverage::count(int table, const std::string& pair) {
  auto& pairs = tables_[static_cast<size_t>(table)].pairs;
  if (const auto found = pairs.find(pair); found != pairs.end())
    ++found->second;
}

std::vector<std::string> Coverage::uses_of(const Step& step,
                                           const Shadow& shadow) const {
  const auto on = shadow.views.find(step.on);
  if (on == shadow.views.end()) return {};
  const std::string name =
      class_of(on->second.memory->kind, on->second.imported);
  switch (step.op) {
    case Op::kCopy: {
      const auto from = shadow.views.find(step.from);
      if (from == shadow.views.end()) return {};
      return {name + ", " +
              class_of(from->second.memory->kind, from->second.imported) +
              ", " + way_of(step)};
    }
    case Op::kWrite:
    case Op::kRead:
    case Op::kSet:
    case Op::kUpload:
      return {name + ", " + way_of(step)};
    default:
      return {};
  }
}

int Coverage::uses(const Step& step, const Shadow& shadow) const {
  int least = 1 << 20;
  for (const std::string& pair : uses_of(step, shadow)) {
    const auto found = tables_[kUses].pairs.find(pair);
    if (found != tables_[kUses].pairs.end())
      least = std::min(least, found->second);
  }
  return least;
}

int Coverage::follows(const Step& step) const {
  const auto last = last_in_stream_.find(step.stream);
  if (last == last_in_stream_.end()) return 1 << 20;
  const auto found = tables_[kOrder].pairs.find(
      std::string(name_of(last->second)) + ", " + name_of(step.op));
  return found == tables_[kOrder].pairs.end() ? 1 << 20 : found->second;
}

void Coverage::add(const Step& step, const Shadow& shadow) {
  if (step.op == Op::kRefuse || step.op == Op::kQuestion) {
    count(kListed, listed_of(step));
    ++subjects_[subject_of(step, step.on, shadow)];
  }
  for (const std::string& pair : uses_of(step, shadow)) count(kUses, pair);
  if (const auto on = shadow.views.find(step.on);
      on != shadow.views.end() && !uses_of(step, shadow).empty())
    count(kPlaces,
          class_of(on->second.memory->kind, on->second.imported) + ", " +
              size_class(step.bytes) + ", " +
              place_class(step.at, step.bytes, on->second.memory->bytes));
  if (step.stream != 0 && is_in(kInStream, step.op)) {
    const auto last = last_in_stream_.find(step.stream);
    if (last != last_in_stream_.end())
      count(kOrder,
            std::string(name_of(last->second)) + ", " + name_of(step.op));
    last_in_stream_[step.stream] = step.op;
  }
  if (!group_.empty() && group_[0].group != step.group) group_.clear();
  if (step.group != 0) {
    for (const Step& other : group_) {
      const Op one = std::min(step.op, other.op);
      const Op two = std::max(step.op, other.op);
      count(kThreadsTable, std::string(name_of(one)) + ", " + name_of(two));
    }
    group_.push_back(step);
  }
  if (has_ended_ && is_in(kLooking, step.op))
    count(kEnds, std::string(name_of(ended_)) + ", " + name_of(step.op));
  if (is_in(kEnding, step.op)) {
    ended_ = step.op;
    has_ended_ = true;
  }
}

bool Coverage::missing(Pairing pairing, uint64_t number, Op* one,
                       Op* other) const {
  std::vector<const OpPair*> open;
  for (const OpPair& pair : op_pairs_)
    if (pair.pairing == pairing && *pair.count == 0) open.push_back(&pair);
  if (open.empty()) return false;
  *one = open[number % open.size()]->one;
  *other = open[number % open.size()]->other;
  return true;
}

bool Coverage::missing_copy(uint64_t number, CopyUse* use) const {
  std::vector<const CopyUse*> open;
  for (const auto& [one, count] : copies_)
    if (*count == 0) open.push_back(&one);
  if (open.empty()) return false;
  *use = *open[number % open.size()];
  return true;
}

std::string Coverage::to_json() const {
  std::string text = "{";
  for (const Table& table : tables_) {
    text += (text.size() > 1 ? ",\n" : "") + ("\"" + table.name + "\": {");
    bool first = true;
    for (const auto& [pair, count] : table.pairs) {
      text += (first ? "" : ",") + ("\n \"" + pair + "\": ") +
              std::to_string(count);
      first = false;
    }
    text += "}";
  }
  return text + "}\n";
}

}  // namespace ipclab::explore
