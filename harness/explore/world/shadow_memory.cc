// Memory of cudaMalloc and its legacy handles; memory of the host.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "harness/explore/world/shadow.h"

namespace ipclab::explore {
namespace {

constexpr int64_t kMostBytes = 64 << 20;

// Memory that one call gives to the CPU, too.
bool is_host_kind(Kind kind) {
  return is_pinned(kind) || kind == Kind::kManaged;
}

}  // namespace

bool Shadow::memory_step(const Step& step, Expected* expected) {
  const int me = step.process;
  const View* view = view_of(step.on, me);
  const auto its_kind = [&] { return view->memory->kind; };
  switch (step.op) {
    case Op::kMalloc: {
      if (!fresh(step.id) || step.bytes <= 0 || step.bytes > kMostBytes)
        return no("no such allocation");
      if (!quiet(me)) return no("the process holds work");
      View made;
      made.process = me;
      made.memory = std::make_shared<Memory>(Kind::kLegacy, me, step.bytes);
      views[step.id] = made;
      expected->row = "LMEM-45";
      return true;
    }
    case Op::kHostAlloc: {
      if (!fresh(step.id) || step.bytes <= 0 || step.bytes > kMostBytes ||
          step.how < 0 || step.how >= kHostKinds)
        return no("no such allocation");
      if (step.how == kManaged && !machine.managed)
        return no("no managed memory here");
      if (!quiet(me)) return no("the process holds work");
      const Kind kind = step.how == kManaged      ? Kind::kManaged
                        : step.how == kRegistered ? Kind::kRegistered
                                                  : Kind::kPinned;
      View made;
      made.process = me;
      made.memory = std::make_shared<Memory>(kind, me, step.bytes);
      views[step.id] = made;
      expected->row = "LMEM-45";
      return true;
    }
    case Op::kFree:
    case Op::kHostFree: {
      if (view == nullptr) return no("no such memory in this process");
      const bool host = is_host_kind(its_kind());
      if (host != (step.op == Op::kHostFree)) return no("the other free");
      if (is_mapped(its_kind())) return no("a mapping is unmapped");
      if (!quiet(me)) return no("the process holds work");
      MemoryPtr memory = view->memory;
      if (view->imported) {
        if (memory->kind != Kind::kPool) return no("an import is closed");
        if (!unused_by(memory, step.on)) return no("it may be in use");
        memory->opens.erase(me);
        expected->row = "POOL-15";
      } else {
        if (!memory->opens.empty()) return no("another process has it open");
        if (!unused(memory)) return no("it may be in use");
        memory->alive = false;
        expected->row = memory->kind == Kind::kPool ? "SOMA-05" : "LMEM-45";
      }
      if (memory->kind == Kind::kPool) {
        const auto pool = pools.find(view->pool);
        if (pool != pools.end()) {
          pool->second.freed_at_once = true;
          for (auto it = pool->second.used.begin();
               it != pool->second.used.end(); ++it)
            if (it->view == step.on) {
              pool->second.used.erase(it);
              break;
            }
        }
      }
      views.erase(step.on);
      return true;
    }
    case Op::kExportMemory: {
      if (!machine.legacy) return no("no legacy handles here");
      if (view == nullptr || its_kind() != Kind::kLegacy || view->imported)
        return no("no memory that has a legacy handle");
      if (!fresh(step.id)) return no("the number is taken");
      Handle made;
      made.made_by = step.op;
      made.memory = view->memory;
      made.process = me;
      handles[step.id] = made;
      expected->row = "LMEM-05";
      return true;
    }
    case Op::kOpenMemory: {
      const auto handle = handles.find(step.on);
      if (handle == handles.end() ||
          handle->second.made_by != Op::kExportMemory || !fresh(step.id))
        return no("no such handle");
      const MemoryPtr memory = handle->second.memory;
      if (!memory->alive) return no("the memory is freed");
      if (memory->owner == me) return no("a handle is for another process");
      if (!quiet(me)) return no("the process holds work");
      expected->row = "LMEM-01";
      for (const auto& [id, other] : views)
        if (other.process == me && other.memory == memory) {
          expected->same_address = id;
          expected->row = "LMEM-08";
        }
      View made;
      made.process = me;
      made.memory = memory;
      made.imported = true;
      views[step.id] = made;
      ++memory->opens[me];
      return true;
    }
    case Op::kCloseMemory: {
      if (view == nullptr || !view->imported || its_kind() != Kind::kLegacy)
        return no("no memory that was opened");
      if (!quiet(me)) return no("the process holds work");
      const MemoryPtr memory = view->memory;
      if (!unused_by(memory, step.on)) return no("it may be in use");
      if (--memory->opens[me] == 0) memory->opens.erase(me);
      views.erase(step.on);
      expected->row = "LMEM-09";
      return true;
    }
    default: {  // the CPU uses memory of the host
      if (view == nullptr || is_device(its_kind()))
        return no("no memory of the host");
      Effect effect;
      Step plain = step;
      plain.rows = plain.layers = 0;
      const bool write = step.op == Op::kHostWrite;
      if (!regions(plain, step.on, step.at, 0, write,
                   write ? &effect.writes : &effect.reads, true))
        return false;
      if (view->range != 0 && step.at + step.bytes > view->memory->bytes)
        return no("beyond the mapping");
      Work now;
      now.clock = known();
      if (!orderly(now, effect, true)) return false;
      expected->row = its_kind() == Kind::kNode ? "MNGD-15" : "LMEM-45";
      const Region& region = write ? effect.writes[0] : effect.reads[0];
      uint8_t* const data = region.memory->data.get();
      if (write) {
        for (int64_t i = region.from; i < region.to; ++i)
          data[i] = pattern_byte(static_cast<uint32_t>(step.value),
                                 static_cast<uint64_t>(i - region.from));
        region.memory->defined.add(region.from, region.to);
      } else {
        expected->judges_bytes = true;
        expected->bytes.assign(data + region.from, data + region.to);
      }
      return true;
    }
  }
}

}  // namespace ipclab::explore
