// Questions, and calls that the documentation says are refused.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "harness/explore/world/shadow.h"

namespace ipclab::explore {
namespace {

// Codes, which have the same number in both APIs.
constexpr int kInvalidValue = 1, kInvalidDevice = 101, kInvalidContext = 201,
              kMapFailed = 205, kInvalidHandle = 400, kTooManyPeers = 711,
              kNotPermitted = 800, kNotSupported = 801, kNotInitialized = 3,
              kDeinitialized = 4, kOutOfMemory = 2;

constexpr int kHostType = 1, kDeviceType = 2, kManagedType = 3;

}  // namespace

bool Shadow::ask_step(const Step& step, Expected* expected) {
  expected->judges_value = true;
  if (step.op == Op::kAskChunk) {
    const auto chunk = chunks.find(step.on);
    if (chunk == chunks.end() || chunk->second.process != step.process)
      return no("no such chunk in this process");
    const bool on_node = chunk->second.memory->kind == Kind::kNode;
    if (step.how != (on_node ? kOnNode : kOnGpu) ||
        step.value != (on_node ? 0 : gpu_of(*chunk->second.memory)))
      return no("not the place of the memory");
    expected->least = expected->most = 1;  // pinned memory of this place
    expected->row = "VMM-31";
    return true;
  }
  const View* view = view_of(step.on, step.process);
  if (view == nullptr) return no("no such memory in this process");
  if (step.at < 0 || step.at >= view->memory->bytes)
    return no("an address outside the memory");
  const Kind kind = view->memory->kind;
  expected->row = "LMEM-36";
  switch (step.how) {
    case kKind: {
      if (view->access == 0) return no("a mapping without access");
      if (kind == Kind::kPool) return no("not described for imports");
      if (kind == Kind::kNode) return no("not described for a node");
      if (kind == Kind::kManaged && step.api == 1) return no("not described");
      expected->least = expected->most = kind == Kind::kManaged ? kManagedType
                                         : is_pinned(kind)      ? kHostType
                                                                : kDeviceType;
      return true;
    }
    case kRange:
      if (kind != Kind::kLegacy || view->imported)
        return no("only the allocation's own size is documented");
      expected->least = expected->most = view->memory->bytes;
      return true;
    case kAccess:
    case kAccessAttribute:
      if (view->range == 0 && (step.how == kAccess || kind != Kind::kLegacy))
        return no("no mapping");
      if (kind == Kind::kNode && step.how == kAccessAttribute)
        return no("not described for a node");
      if (view->range != 0) expected->row = "VMM-18";
      expected->least = expected->most = view->access;
      return true;
    case kCpuAccess:
      if (kind != Kind::kNode) return no("no memory on a node");
      expected->least = expected->most = view->cpu;
      expected->row = "MNGD-15";
      return true;
    case kRuntimeView:
    case kContains:
      if (kind != Kind::kLegacy &&
          !(kind == Kind::kPool && view->imported && step.how == kContains))
        return no("not described");
      if (kind == Kind::kPool) expected->row = "POOL-06";
      expected->least = expected->most = 1;
      return true;
    case kBufferId: {
      const View* other = view_of(step.from, step.process);
      const auto allocated = [](const View* one) {
        return one != nullptr && one->range == 0 &&
               one->memory->kind != Kind::kRegistered;
      };
      if (!allocated(view) || !allocated(other))
        return no("no two allocations");
      if (step.value != (view->imported ? 0 : 1)) return no("not its owner");
      if (other->memory == view->memory && step.from != step.on)
        return no("a second mapping of the memory");
      expected->least = expected->most = 1;
      expected->row = "LMEM-48";
      return true;
    }
    default:
      return no("no such question");
  }
}

// The calls of calls.inc; the names are those of its expressions.
bool Shadow::listed_step(const Step& step, Expected* expected) {
  const int me = step.process;
  const auto mine = [&](const auto& objects, int id) {
    const auto found = objects.find(id);
    return found != objects.end() && found->second.process == me
               ? &found->second
               : nullptr;
  };
  const View* const view = view_of(step.on, me);
  const View* const other = view_of(step.from, me);
  const Kind kind = view != nullptr ? view->memory->kind : Kind::kLegacy;
  const bool mapped = view != nullptr && kind == Kind::kChunk;
  const Pool* const pool = mine(pools, step.on);
  if (pool != nullptr && step.value != machine.gpu_of(pool->shared->owner))
    return no("not the GPU of the pool");
  const Chunk* const chunk = mine(chunks, step.from);
  const Range* const range = mine(ranges, step.on);
  if (step.on != 0 && view == nullptr && pool == nullptr && range == nullptr)
    return no("no such object in this process");
  const bool empty_range =
      range != nullptr &&
      std::none_of(views.begin(), views.end(), [&](const auto& entry) {
        return entry.second.range == step.on;
      });
  const Pool* const owner = view != nullptr ? mine(pools, view->pool) : nullptr;
  const bool private_pool =
      view != nullptr && kind == Kind::kPool && !view->imported &&
      (view->pool == 0 || (owner != nullptr && !owner->shared->shareable));
  const int current_pool = process[me].current_pool;
  using Codes = std::vector<int>;
  const Codes invalid{kInvalidValue};
  const Codes unsupported{kInvalidValue, kNotSupported};
  const Codes opening{kMapFailed,    kInvalidHandle, kInvalidContext,
                      kTooManyPeers, kNotSupported,  kInvalidValue};
  const Codes opening_events{kMapFailed, kNotSupported, kInvalidValue,
                             kInvalidContext};
  const Codes no_type{kInvalidValue, kNotPermitted, kNotSupported};
  const Codes mapping{kInvalidValue,   kInvalidDevice, kOutOfMemory,
                      kNotInitialized, kDeinitialized, kNotPermitted,
                      kNotSupported};
  const Codes retaining{kInvalidValue,  kInvalidHandle, kNotInitialized,
                        kDeinitialized, kNotPermitted,  kNotSupported};
  const Codes no_gpu{kInvalidDevice, kInvalidValue};
  const Codes no_memory{kOutOfMemory};
  const Codes no_pointer{kInvalidValue, kNotInitialized, kOutOfMemory};
  bool applies_now = false;
  Codes codes;
  int64_t answer = 0;
  if (step.op == Op::kRefuse) {
    switch (step.how) {
#define REFUSED(name, what, row, applies, refusals, ...) \
  case k##name:                                          \
    applies_now = (applies);                             \
    codes = refusals;                                    \
    break;
#define QUESTION(name, ...)
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
      default:
        break;
    }
    if (!applies_now) return no("nothing to refuse");
    expected->codes = codes;
    expected->refused = true;
    expected->row = refusal(step.how).row;
    return true;
  }
  switch (step.how) {
#define REFUSED(name, ...)
#define QUESTION(name, what, row, applies, value, ...) \
  case k##name:                                        \
    applies_now = (applies);                           \
    if (applies_now) answer = (value);                 \
    break;
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
    default:
      break;
  }
  if (!applies_now) return no("nothing to ask");
  expected->judges_value = true;
  expected->least = expected->most = answer;
  expected->row = question(step.how).row;
  return true;
}

bool Shadow::refuse_step(const Step& step, Expected* expected) {
  const int me = step.process;
  if (!quiet(me)) return no("the process holds work");
  if (step.op == Op::kQuestion || step.how >= kFirstOfList)
    return listed_step(step, expected);
  if (step.how < 0) return no("no such refusal");
  const View* view = view_of(step.on, me);
  const auto pool = pools.find(step.on);
  const bool has_pool = pool != pools.end() && pool->second.process == me;
  const auto event = events.find(step.on);
  const bool has_event = event != events.end() && event->second.process == me;
  const auto handle = handles.find(step.on);
  const auto made_by = [&](Op op) {
    return handle != handles.end() && handle->second.made_by == op;
  };
  const bool mapped = view != nullptr && view->memory->kind == Kind::kChunk;
  auto& codes = expected->codes;
  bool applies = false;
  switch (step.how) {
    case kExportManaged:
      applies = view != nullptr && view->memory->kind == Kind::kManaged &&
                machine.legacy;
      codes = {kInvalidValue, kNotSupported};
      break;
    case kExportMapped:
      applies = mapped && view->access == 3 && machine.legacy;
      codes = {kInvalidValue, kNotSupported};
      break;
    case kOpenEventHandle:
      applies = made_by(Op::kExportEvent) && handle->second.process != me;
      codes = {kMapFailed,    kInvalidHandle, kInvalidContext,
               kTooManyPeers, kNotSupported,  kInvalidValue};
      break;
    case kOpenMemoryHandle:
      applies = made_by(Op::kExportMemory) && handle->second.process != me;
      codes = {kMapFailed, kNotSupported, kInvalidValue, kInvalidContext};
      if (step.api == 1) codes.push_back(kInvalidHandle);
      break;
    case kElapsedTime:
      applies = has_event && event->second.shared->how != kLocal &&
                event->second.shared->record != nullptr &&
                is_known(*event->second.shared->record);
      codes = {kInvalidHandle};
      break;
    case kAllocImported:
      applies = has_pool && pool->second.imported;
      codes = {kInvalidValue, kNotSupported};
      break;
    case kExportImported:
      applies = has_pool && pool->second.imported;
      codes = {kInvalidValue};
      break;
    case kExportPrivatePool:
      applies =
          has_pool && !pool->second.imported && !pool->second.shared->shareable;
      codes = {kInvalidValue};
      break;
    case kMapTwice: {
      const auto chunk = chunks.find(step.from);
      applies = mapped && chunk != chunks.end() &&
                chunk->second.process == me &&
                chunk->second.memory->bytes <= view->memory->bytes;
      codes = {kInvalidValue};
      break;
    }
    case kUnmapPart:
      applies = mapped && view->memory->bytes >= 2 * machine.granule &&
                unused_by(view->memory, step.on);
      codes = {kInvalidValue};
      break;
    default:
      break;
  }
  if (!applies) return no("nothing to refuse");
  expected->refused = true;
  expected->row = refusal(step.how).row;
  return true;
}

}  // namespace ipclab::explore
