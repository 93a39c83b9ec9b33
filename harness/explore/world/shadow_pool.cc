// Pools: stream-ordered memory, and how processes share it.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/shadow.h"

namespace ipclab::explore {
namespace {

constexpr int64_t kMostBytes = 64 << 20;
constexpr int64_t kLeastUnit = 512;  // a driver may round sizes up
constexpr int kInvalidValue = 1;
constexpr int64_t kAny = int64_t{1} << 50;

}  // namespace

// The least and the most bytes that a pool may count as used. A free counts
// from some moment between its call and the host's knowledge of it.
std::pair<int64_t, int64_t> Shadow::used_bytes(Pool& pool) const {
  auto& used = pool.used;
  used.erase(std::remove_if(used.begin(), used.end(),
                            [&](const Allocation& allocation) {
                              return allocation.freed != nullptr &&
                                     is_known(*allocation.freed);
                            }),
             used.end());
  int64_t least = 0, most = 0;
  for (const Allocation& allocation : used) {
    most += (allocation.bytes + kLeastUnit - 1) / kLeastUnit * kLeastUnit;
    if (allocation.freed == nullptr) least += allocation.bytes;
  }
  return {least, most};
}

void Shadow::raise_watermarks(Pool& pool) const {
  const auto [least, most] = used_bytes(pool);
  pool.high_least = std::max(pool.high_least, least);
  pool.high_most = std::max(pool.high_most, most);
  pool.reserved_high_least = std::max(pool.reserved_high_least, least);
  pool.released = false;
}

// A synchronise gives back what a pool holds above its threshold. What pools
// that can be shared do is described as a limit only.
void Shadow::release_unused(int of_process) {
  for (auto& [id, pool] : pools)
    if (pool.process == of_process && !pool.imported &&
        !pool.shared->shareable && pool.threshold == 0 &&
        used_bytes(pool).second == 0)
      pool.released = true;
}

bool Shadow::pool_step(const Step& step, Expected* expected) {
  if (!machine.pools) return no("no pools that can be shared here");
  const int me = step.process;
  const auto found = pools.find(step.on);
  Pool* const pool = found != pools.end() && found->second.process == me
                         ? &found->second
                         : nullptr;
  const View* view = view_of(step.on, me);
  const bool is_pool_memory =
      view != nullptr && view->memory->kind == Kind::kPool;
  switch (step.op) {
    case Op::kCreatePool: {
      if (!fresh(step.id)) return no("the number is taken");
      if (!quiet(me)) return no("the process holds work");
      Pool made;
      made.process = me;
      made.shared = std::make_shared<PoolShared>();
      made.shared->owner = me;
      made.shared->shareable = step.value != 0;
      pools[step.id] = made;
      expected->row = "SOMA-11";
      return true;
    }
    case Op::kExportPool: {
      if (pool == nullptr || pool->imported || !pool->shared->shareable ||
          !fresh(step.id))
        return no("no pool that can be shared");
      Handle made;
      made.made_by = step.op;
      made.pool = pool->shared;
      made.process = me;
      handles[step.id] = made;
      pool->shared->exported = true;
      expected->row = "POOL-06";
      return true;
    }
    case Op::kImportPool: {
      const auto handle = handles.find(step.on);
      if (handle == handles.end() ||
          handle->second.made_by != Op::kExportPool || !fresh(step.id))
        return no("no such handle");
      const auto shared = handle->second.pool;
      if (shared->owner == me) return no("a pool of this process");
      bool lives = false;
      for (const auto& [id, other] : pools) {
        if (other.shared != shared) continue;
        lives = lives || !other.imported;
        if (other.process == me) return no("it is imported here");
      }
      if (!lives) return no("the pool is destroyed");
      if (step.value != machine.gpu_of(shared->owner))
        return no("not the GPU of the pool");
      if (!quiet(me)) return no("the process holds work");
      Pool made;
      made.process = me;
      made.shared = shared;
      made.imported = true;
      pools[step.id] = made;
      expected->row = "POOL-06";
      return true;
    }
    case Op::kDestroyPool: {
      if (pool == nullptr) return no("no such pool");
      if (!quiet(me)) return no("the process holds work");
      // Importers that still use a destroyed pool: documented for its
      // allocations, open for new imports; those are refused above.
      if (process[me].current_pool == step.on) process[me].current_pool = 0;
      expected->outlived = std::any_of(
          views.begin(), views.end(),
          [&](const auto& one) { return one.second.pool == step.on; });
      pools.erase(found);
      expected->row = "POOL-23";
      return true;
    }
    case Op::kPoolAlloc: {
      Stream* const stream = stream_of(step);
      if (stream == nullptr) return false;
      const bool current = step.how == kFromCurrent;
      if (current && process[me].current_pool != step.on)
        return no("not the current pool");
      if (!current && (pool == nullptr || pool->imported))
        return no("no pool of this process");
      if (!fresh(step.id) || step.bytes <= 0 || step.bytes > kMostBytes)
        return no("no such allocation");
      if (stream->capture != 0) return no("not in a capture");
      View made;
      made.process = me;
      made.memory = std::make_shared<Memory>(Kind::kPool, me, step.bytes);
      made.pool = step.on;
      const WorkPtr work = plan(step, *stream);
      Effect effect;
      effect.writes.push_back({made.memory, 0, step.bytes, step.id});
      made.memory->allocation = work;
      views[step.id] = made;
      if (pool != nullptr) {
        pool->used.push_back({step.bytes, step.id, nullptr});
        raise_watermarks(*pool);
      }
      commit(work, effect);
      expected->row = "SOMA-02";
      return true;
    }
    case Op::kExportPointer: {
      if (!is_pool_memory || view->imported || !fresh(step.id))
        return no("no memory of a pool");
      const auto owner = pools.find(view->pool);
      if (owner == pools.end() || !owner->second.shared->exported)
        return no("its pool is not shared");
      Handle made;
      made.made_by = step.op;
      made.memory = view->memory;
      made.pool = owner->second.shared;
      made.process = me;
      handles[step.id] = made;
      expected->row = "POOL-06";
      return true;
    }
    case Op::kImportPointer: {
      const auto handle = handles.find(step.from);
      if (pool == nullptr || !pool->imported || handle == handles.end() ||
          handle->second.made_by != Op::kExportPointer ||
          handle->second.pool != pool->shared || !fresh(step.id))
        return no("no such pool or pointer");
      const MemoryPtr memory = handle->second.memory;
      if (!memory->alive) return no("the memory is freed");
      // Not described: a second import of one allocation.
      if (memory->opens.count(me) != 0) return no("it is imported here");
      forget_known(*memory);
      for (const Access& access : memory->accesses)
        if (access.work->process == me) return no("its free may be unfinished");
      bool lives = false;
      for (const auto& [id, other] : pools)
        lives = lives || (other.shared == pool->shared && !other.imported);
      if (!lives) return no("the pool is destroyed");
      View made;
      made.process = me;
      made.memory = memory;
      made.imported = true;
      made.pool = step.on;
      views[step.id] = made;
      memory->opens[me] = 1;
      pool->used.push_back({memory->bytes, step.id, nullptr});
      expected->row = "POOL-06";
      return true;
    }
    case Op::kFreeAsync: {
      Stream* const stream = stream_of(step);
      if (stream == nullptr) return false;
      const bool plain = view != nullptr && !view->imported &&
                         view->memory->kind == Kind::kLegacy;
      if (!is_pool_memory && !plain) return no("no memory that it frees");
      if (plain && !quiet(me)) return no("the process holds work");
      if (stream->capture != 0) return no("not in a capture");
      const MemoryPtr memory = view->memory;
      const WorkPtr work = plan(step, *stream);
      forget_known(*memory);
      for (const Access& access : memory->accesses) {
        // An importer's free concerns the uses by its own address.
        if (view->imported && access.view != step.on) continue;
        if (work->clock.at(access.work->lane) < access.work->seq)
          return no("a race");
      }
      if (memory->allocation != nullptr && !is_known(*memory->allocation) &&
          work->clock.at(memory->allocation->lane) < memory->allocation->seq)
        return no("it may not be allocated yet");
      if (!view->imported && !memory->opens.empty())
        return no("another process has it open");
      Effect effect;
      effect.reads.push_back({memory, 0, memory->bytes, step.on});
      expected->row = plain            ? "SOMA-05"
                      : view->imported ? "POOL-16"
                                       : "SOMA-06";
      const auto owner = pools.find(view->pool);
      if (owner != pools.end())
        for (Allocation& allocation : owner->second.used)
          if (allocation.view == step.on) allocation.freed = work;
      if (view->imported)
        memory->opens.erase(me);
      else
        memory->alive = false;
      views.erase(step.on);
      commit(work, effect);
      return true;
    }
    case Op::kTrimPool: {
      if (pool == nullptr || step.value < 0) return no("no such pool");
      if (!quiet(me)) return no("the process holds work");
      expected->row = pool->imported ? "IMPL-04" : "SOMA-18";
      if (pool->imported) expected->codes = {0, kInvalidValue};
      return true;
    }
    case Op::kSetThreshold: {
      if (pool == nullptr || pool->imported || step.value < 0)
        return no("no such pool");
      if (step.how < 0 || step.how >= kSetThresholdHows)
        return no("no such attribute");
      expected->row = step.how == kSetReleased ? "SOMA-16" : "SOMA-20";
      if (step.how == kSetReleased) {
        pool->threshold = step.value;
        return true;
      }
      if (step.value != 0) return no("a watermark is reset by 0");
      const auto [least, most] = used_bytes(*pool);
      if (step.how == kResetUsedHigh) {
        pool->high_least = least;
        pool->high_most = most;
      } else {
        pool->reserved_high_least = least;
      }
      return true;
    }
    case Op::kSetPool: {
      if (step.on != 0 && (pool == nullptr || pool->imported))
        return no("no pool of this process");
      process[me].current_pool = step.on;
      expected->row = "SOMA-07";
      return true;
    }
    default: {  // kAskPool
      if (pool == nullptr) return no("no such pool");
      if (step.how == kThreshold) {
        if (pool->imported) return no("not described");
        expected->judges_value = true;
        expected->least = expected->most = pool->threshold;
        expected->row = "SOMA-16";
        return true;
      }
      expected->judges_value = true;
      const auto [least, most] = used_bytes(*pool);
      expected->least = least;
      expected->most = most;
      expected->row = pool->imported ? "IMPL-05" : "SOMA-19";
      if (step.how == kUsed) return true;
      if (pool->imported) return no("not described");
      if (!quiet(me)) return no("the process holds work");
      if (step.how == kUsedHigh) {
        expected->least = pool->high_least;
        expected->most = pool->high_most;
        // What counts as used after such a free is the business of SOMA-19.
        expected->row = pool->freed_at_once ? "SOMA-19" : "SOMA-20";
      } else if (step.how == kReservedHigh) {
        expected->least = pool->reserved_high_least;
        expected->most = kAny;
      } else {
        expected->most = pool->released ? 0 : kAny;
        if (pool->released) expected->row = "SOMA-16";
      }
      return true;
    }
  }
}

}  // namespace ipclab::explore
