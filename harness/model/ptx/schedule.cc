// SPDX-License-Identifier: Apache-2.0
// Runs one warp: divergence, reconvergence, calls, barriers. Among the splits
// of a warp, the split in the deepest call and at the lowest address runs
// first, so branches reconverge. Every eighth time the split that has waited
// longest runs, so a lane may spin until another lane of its warp writes.
#include <algorithm>
#include <climits>
#include <new>
#include <utility>

#include "memory.h"

namespace ipclab::ptx {
namespace {

constexpr uint32_t kDivergedBudget = 256;  // instructions before a new choice

Frame* take_frame(Warp& warp, Arena& arena, const Function& function) {
  for (Frame*& free : warp.free_frames) {
    if (free->function != &function) continue;
    Frame* frame = free;
    free = warp.free_frames.back();
    warp.free_frames.pop_back();
    return frame;
  }
  auto* frame = new (arena.take(sizeof(Frame))) Frame{};
  frame->function = &function;
  frame->registers = arena.take(function.register_bytes);
  char* const running = warp.registers;
  warp.registers = frame->registers;
  for (const Constant& constant : function.constants) {
    if (constant.bytes == 4) {
      std::fill_n(lanes_of<uint32_t>(warp, constant.offset), kLanes,
                  static_cast<uint32_t>(constant.value));
    } else if (constant.bytes == 8) {
      std::fill_n(lanes_of<uint64_t>(warp, constant.offset), kLanes,
                  constant.value);
    } else {
      for (int lane = 0; lane < kLanes; ++lane)
        set_lane_value(warp, constant.offset, constant.bytes, lane,
                       constant.value);
    }
  }
  for (const Instruction& i : function.once) i.run(warp, i, kAllLanes);
  warp.registers = running;
  return frame;
}

void leave_frame(Warp& warp, Frame* frame, uint32_t lanes) {
  frame->lanes &= ~lanes;
  if (frame->lanes == 0) warp.free_frames.push_back(frame);
}

/// Copies parameters or results between two frames' variables.
void copy_variables(Warp& warp, uint32_t mask, uint32_t from, uint32_t to,
                    uint32_t bytes) {
  for (; mask != 0; mask &= mask - 1) {
    char* stack = warp.local +
                  static_cast<size_t>(__builtin_ctz(mask)) * warp.stack_bytes;
    std::memcpy(stack + to, stack + from, bytes);
  }
}

const Instruction& instruction_of(const Split& split) {
  return split.frame->function->code[split.pc];
}

/// Lets the threads that wait at a barrier continue, if all have arrived.
void release_barriers(Block& block) {
  if (block.waiting == 0) return;
  for (uint32_t id = 0; id < 16; ++id) {
    Barrier& barrier = block.barriers[id];
    if (barrier.arrived == 0) continue;
    const uint32_t expected =
        barrier.expected != 0 ? barrier.expected : block.live;
    if (barrier.arrived < expected) continue;
    const Barrier done = barrier;
    if (Observer* observer = block.grid->launch.observer)
      observer->complete(block.grid->number_of(block), id,
                         done.arrived == block.live);
    barrier = Barrier{};
    block.waiting -= done.arrived;
    for (Warp& warp : block.warps) {
      for (Split& split : warp.splits) {
        if (split.state != Split::kAtBarrier || split.wanted != id) continue;
        const Instruction& i = instruction_of(split);
        warp.registers = split.frame->registers;
        if (i.mode == kBarrierPopc) {
          each_lane(split.mask, [&](int l) {
            lanes_of<uint32_t>(warp, i.d)[l] = done.count;
          });
        } else if (i.mode == kBarrierAnd || i.mode == kBarrierOr) {
          const bool value = i.mode == kBarrierAnd ? done.count == done.arrived
                                                   : done.count != 0;
          set_predicate(warp, i.d, split.mask, value ? kAllLanes : 0);
        }
        split.state = Split::kReady;
        ++split.pc;
      }
    }
  }
}

/// The state of the scheduler while it runs one warp.
class WarpRun {
 public:
  WarpRun(Warp& warp, Arena& arena)
      : warp_(warp), arena_(arena), grid_(*warp.block->grid) {}

  uint32_t run(uint32_t quantum, bool* polled) {
    uint32_t done = 0;
    while (done < quantum && !grid_.stopped()) {
      if (!choose()) {
        if (!release_warp_syncs()) break;
        continue;
      }
      const uint32_t budget = warp_.splits.size() > 1
                                  ? std::min(kDivergedBudget, quantum - done)
                                  : quantum - done;
      done += grid_.launch.observer == nullptr ? run_split<false>(budget)
                                               : run_split<true>(budget);
      store();
      // If there are several splits, one split may poll for a write of another
      // split.
      if (yield_ && warp_.splits.size() == 1) {
        *polled = true;
        break;
      }
      yield_ = false;
    }
    return done;
  }

 private:
  /// Picks the next split and merges the splits that are at the same place.
  bool choose() {
    std::vector<Split>& splits = warp_.splits;
    const bool fair = (++warp_.clock & 7) == 0;
    int best = -1;
    for (size_t k = 0; k < splits.size(); ++k) {
      if (splits[k].state != Split::kReady) continue;
      if (best < 0 || (fair ? splits[k].last_run < splits[best].last_run
                            : before(splits[k], splits[best])))
        best = static_cast<int>(k);
    }
    if (best < 0) return false;
    chosen_ = static_cast<size_t>(best);
    mask_ = splits[chosen_].mask;
    pc_ = splits[chosen_].pc;
    frame_ = splits[chosen_].frame;
    splits[chosen_].last_run = warp_.clock;
    absorb(Split::kReady, [](const Split&) { return true; });
    warp_.frame = frame_;
    warp_.registers = frame_->registers;
    gone_ = false;
    return true;
  }

  static bool before(const Split& a, const Split& b) {
    if (a.frame->depth != b.frame->depth)
      return a.frame->depth > b.frame->depth;
    return a.pc < b.pc;
  }

  /// Merges other splits in this state at the same place.
  template <class Condition>
  void absorb(Split::State state, Condition wanted) {
    std::vector<Split>& splits = warp_.splits;
    for (size_t k = 0; k < splits.size();) {
      if (k != chosen_ && splits[k].state == state && splits[k].pc == pc_ &&
          splits[k].frame == frame_ && wanted(splits[k])) {
        mask_ |= splits[k].mask;
        splits.erase(splits.begin() + static_cast<ptrdiff_t>(k));
        if (k < chosen_) --chosen_;
      } else {
        ++k;
      }
    }
  }

  /// The next place where another split of this frame waits to be joined;
  /// INT_MAX if there is none.
  int meeting_point() const {
    int point = INT_MAX;
    for (size_t k = 0; k < warp_.splits.size(); ++k) {
      const Split& other = warp_.splits[k];
      if (k != chosen_ && other.frame == frame_ && other.pc > pc_ &&
          other.state == Split::kReady)
        point = std::min(point, other.pc);
    }
    return point;
  }

  template <bool kObserved>
  uint32_t run_split(uint32_t budget) {
    const Instruction* const code = frame_->function->code.data();
    const int stop = meeting_point();
    uint32_t done = 0;
    uint32_t mask = mask_;
    int pc = pc_;
    do {
      if (const uint32_t straight = kObserved ? 0 : code[pc].straight;
          straight != 0) {
        const Instruction* const end = code + pc + straight;
        for (const Instruction* i = code + pc; i != end; ++i)
          i->run(warp_, *i, mask);
        done += straight;
        pc += static_cast<int>(straight);
        if (grid_.stopped()) break;
        continue;
      }
      const Instruction& i = code[pc];
      uint32_t active = mask;
      if (i.guard != kNone) {
        const uint32_t bits = predicate(warp_, i.guard);
        active &= i.guard_negated ? ~bits : bits;
      }
      ++done;
      if (i.flow == Flow::kNext) {
        ++pc;
        if (active == 0) continue;
        if (kObserved)
          run(i, active);
        else
          i.run(warp_, i, active);
        if (grid_.stopped()) break;
      } else if (active == 0) {
        ++pc;
      } else if (i.flow == Flow::kBranch && active == mask) {
        pc = i.target;
      } else {
        mask_ = mask;
        pc_ = pc;
        if (active != mask) {
          push(mask & ~active, pc + 1);
          mask_ = active;
        }
        flow(i);
        return done;
      }
    } while (pc < stop && done < budget);
    pc_ = pc;
    return done;
  }

  void run(const Instruction& i, uint32_t mask) {
    if (i.effect.kind == Effect::kNothing || grid_.launch.observer == nullptr)
      i.run(warp_, i, mask);
    else
      run_observed(warp_, i, mask);
  }

  void store() {
    if (gone_) {
      warp_.splits.erase(warp_.splits.begin() +
                         static_cast<ptrdiff_t>(chosen_));
      return;
    }
    Split& split = warp_.splits[chosen_];
    split.mask = mask_;
    split.pc = pc_;
    split.frame = frame_;
  }

  void push(uint32_t mask, int pc) {
    warp_.splits.push_back({Split::kReady, mask, pc, frame_, 0, warp_.clock});
  }

  /// Handles everything that changes more than the next address.
  void flow(const Instruction& i) {
    switch (i.flow) {
      case Flow::kNext:
        break;
      case Flow::kBranch:
        pc_ = i.target;
        break;
      case Flow::kBranchIndex:
        return branch_index(i);
      case Flow::kCall:
        return call(i);
      case Flow::kReturn:
        if (frame_->caller == nullptr) return exit();
        return leave();
      case Flow::kExit:
        return exit();
      case Flow::kBarrier:
        return barrier(i);
      case Flow::kWarpSync:
        return warp_sync(i);
      case Flow::kYield:
        run(i, mask_);
        ++pc_;
        yield_ = true;
        break;
      case Flow::kPoll:
        yield_ = reads_again(i);
        run(i, mask_);
        ++pc_;
        break;
      case Flow::kClusterWait:
        return cluster_wait();
    }
  }

  /// Lanes whose phase is over continue; the others look again later.
  void cluster_wait() {
    const uint64_t phase = warp_.block->cluster->phase;
    uint32_t over = 0;
    each_lane(mask_, [&](int l) {
      over |= static_cast<uint32_t>(warp_.arrived_in[l] != phase) << l;
    });
    if (over == 0) {
      yield_ = true;
      return;
    }
    if (over != mask_) push(mask_ & ~over, pc_);
    mask_ = over;
    ++pc_;
    if (Observer* observer = grid_.launch.observer)
      observer->leave_cluster(
          grid_.number_of(*warp_.block), warp_.index, over,
          grid_.number_of(*warp_.block->cluster->blocks[0]));
  }

  /// Did this load read the same place the last time? Then the warp is waiting.
  /// A warp that reads different places makes progress.
  bool reads_again(const Instruction& i) {
    const uint64_t place = lane_address(warp_, i, __builtin_ctz(mask_)) ^
                           static_cast<uint64_t>(pc_) << 48;
    return std::exchange(warp_.polled[pc_ % 4], place) == place;
  }

  void branch_index(const Instruction& i) {
    const uint32_t* index = lanes_of<uint32_t>(warp_, i.a);
    const uint32_t wanted = index[__builtin_ctz(mask_)];
    uint32_t same = 0;
    for (uint32_t rest = mask_; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      if (index[lane] == wanted) same |= 1u << lane;
    }
    if (mask_ != same) push(mask_ & ~same, pc_);
    mask_ = same;
    if (wanted >= static_cast<uint64_t>(i.immediate))
      return grid_.fault(warp_, i, 715, "branch index beyond the table");
    pc_ = static_cast<int>(frame_->function->lists[i.list + wanted]);
  }

  void call(const Instruction& i) {
    const Call& call = frame_->function->calls[i.immediate];
    const Function* callee = call.callee;
    if (callee == nullptr) {
      const uint64_t* addresses = lanes_of<uint64_t>(warp_, i.a);
      const uint64_t address = addresses[__builtin_ctz(mask_)];
      uint32_t same = 0;
      for (uint32_t rest = mask_; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if (addresses[lane] == address) same |= 1u << lane;
      }
      if (mask_ != same) push(mask_ & ~same, pc_);
      mask_ = same;
      const uint64_t index = (address - kCodeWindow) / 16;
      if (address < kCodeWindow || address % 16 != 0 ||
          index >= grid_.program.functions.size())
        return grid_.fault(warp_, i, 718,
                           "call of something that is not a function");
      callee = &grid_.program.functions[index];
      if (!callee->unsupported.empty() || callee->code.empty())
        return grid_.fault(
            warp_, i, 218,
            "call of " + callee->name + ": " +
                (callee->unsupported.empty() ? "it is not defined"
                                             : callee->unsupported));
      if (callee->parameters.size() != call.arguments.size() ||
          callee->results.size() < call.results.size())
        return grid_.fault(warp_, i, 715, "call with wrong parameters");
    }
    const uint32_t base = frame_->base + frame_->function->frame_bytes;
    if (base + callee->frame_bytes > warp_.stack_bytes || frame_->depth > 4000)
      return grid_.fault(warp_, i, 719, "stack overflow");
    for (size_t k = 0; k < call.arguments.size(); ++k)
      copy_variables(warp_, mask_, frame_->base + call.arguments[k],
                     base + callee->parameters[k].first,
                     callee->parameters[k].second);
    Frame* frame = take_frame(warp_, arena_, *callee);
    frame->caller = frame_;
    frame->return_to = pc_ + 1;
    frame->call = &call;
    frame->lanes = mask_;
    frame->base = base;
    frame->depth = frame_->depth + 1;
    frame_ = frame;
    pc_ = 0;
  }

  void leave() {
    Frame* const callee = frame_;
    const Call& call = *callee->call;
    for (size_t k = 0; k < call.results.size(); ++k)
      copy_variables(warp_, mask_,
                     callee->base + callee->function->results[k].first,
                     callee->caller->base + call.results[k],
                     callee->function->results[k].second);
    pc_ = callee->return_to;
    frame_ = callee->caller;
    leave_frame(warp_, callee, mask_);
  }

  void exit() {
    for (Frame* frame = frame_; frame != nullptr;) {
      Frame* const caller = frame->caller;
      leave_frame(warp_, frame, mask_);
      frame = caller;
    }
    warp_.live &= ~mask_;
    warp_.block->live -= lane_count(mask_);
    warp_.block->cluster->live -= lane_count(mask_);
    warp_.block->cluster->complete_barrier_if_done();
    gone_ = true;
    // Lanes that waited for the ended lanes check again.
    for (Split& split : warp_.splits)
      if (split.state == Split::kAtWarpSync) split.state = Split::kReady;
    release_barriers(*warp_.block);
  }

  void barrier(const Instruction& i) {
    const int first = __builtin_ctz(mask_);
    const uint32_t id = lanes_of<uint32_t>(warp_, i.a)[first];
    if (id >= 16) return grid_.fault(warp_, i, 715, "no such barrier");
    Barrier& barrier = warp_.block->barriers[id];
    if (i.b != kNone) barrier.expected = lanes_of<uint32_t>(warp_, i.b)[first];
    barrier.arrived += lane_count(mask_);
    warp_.block->waiting += lane_count(mask_);
    if (i.c != kNone)
      barrier.count += lane_count(predicate(warp_, i.c) & mask_);
    if (Observer* observer = grid_.launch.observer)
      observer->arrive(grid_.number_of(*warp_.block), warp_.index, mask_, id,
                       i.mode != kBarrierArrive);
    if (i.mode == kBarrierArrive) {
      ++pc_;
      return release_barriers(*warp_.block);
    }
    store();
    warp_.splits[chosen_].state = Split::kAtBarrier;
    warp_.splits[chosen_].wanted = id;
    release_barriers(*warp_.block);
    pc_ = warp_.splits[chosen_].pc;
    warp_.registers = frame_->registers;
  }

  void warp_sync(const Instruction& i) {
    // Lanes with different masks are different groups. Each group continues
    // separately.
    const uint32_t* masks = lanes_of<uint32_t>(warp_, i.e);
    const uint32_t members = masks[__builtin_ctz(mask_)];
    uint32_t group = 0;
    each_lane(mask_, [&](int l) {
      group |= static_cast<uint32_t>(masks[l] == members) << l;
    });
    if (group != mask_) push(mask_ & ~group, pc_);
    mask_ = group;
    absorb(Split::kAtWarpSync, [&](const Split& other) {
      return masks[__builtin_ctz(other.mask)] == members;
    });
    const uint32_t wanted = (members | mask_) & warp_.live;
    if ((wanted & ~mask_) == 0) {
      if (i.run != nullptr) i.run(warp_, i, mask_);
      if (i.mode == kMeetOnly) observe_meeting(mask_);
      ++pc_;
      return;
    }
    store();
    Split& split = warp_.splits[chosen_];
    split.state = Split::kAtWarpSync;
    split.wanted = wanted;
    if (i.mode == kMeetOnly) release_meetings();
    pc_ = warp_.splits[chosen_].pc;
  }

  /// Lanes that wait at warp syncs, at any place.
  uint32_t at_warp_syncs() const {
    uint32_t waiting = 0;
    for (const Split& split : warp_.splits)
      if (split.state == Split::kAtWarpSync) waiting |= split.mask;
    return waiting;
  }

  void observe_meeting(uint32_t lanes) {
    if (Observer* observer = grid_.launch.observer)
      observer->meet(grid_.number_of(*warp_.block), warp_.index, lanes);
  }

  /// Lets lanes continue that only wait for each other (bar.warp.sync) when all
  /// of them have arrived, also at different instructions. Returns true if
  /// lanes continue.
  bool release_meetings() {
    const uint32_t waiting = at_warp_syncs();
    bool released = false;
    for (Split& split : warp_.splits) {
      if (split.state != Split::kAtWarpSync ||
          (split.wanted & warp_.live & ~waiting) != 0 ||
          instruction_of(split).mode != kMeetOnly)
        continue;
      observe_meeting(split.wanted & warp_.live);
      split.state = Split::kReady;
      ++split.pc;
      released = true;
    }
    return released;
  }

  /// Call this when no lane can run; true if a lane can run again. Lanes that
  /// exchange values in different instructions would wait forever, so this is a
  /// fault.
  bool release_warp_syncs() {
    if (release_meetings()) return true;
    const uint32_t waiting = at_warp_syncs();
    for (const Split& split : warp_.splits) {
      if (split.state != Split::kAtWarpSync ||
          (split.wanted & warp_.live & ~waiting) != 0)
        continue;
      grid_.fault(warp_, instruction_of(split), 715,
                  "lanes of one warp exchange values in different "
                  "instructions, which the reference model cannot do");
      break;
    }
    return false;
  }

  Warp& warp_;
  Arena& arena_;
  Grid& grid_;
  size_t chosen_ = 0;
  uint32_t mask_ = 0;
  int pc_ = 0;
  Frame* frame_ = nullptr;
  bool gone_ = false;
  bool yield_ = false;
};

}  // namespace

uint32_t run_warp(Warp& warp, Arena& arena, uint32_t quantum, bool* polled) {
  return WarpRun(warp, arena).run(quantum, polled);
}

void start_warp(Warp& warp, Arena& arena, const Function& kernel,
                uint32_t lanes) {
  Frame* frame = take_frame(warp, arena, kernel);
  frame->caller = nullptr;
  frame->call = nullptr;
  frame->lanes = lanes;
  frame->base = 0;
  frame->depth = 0;
  warp.live = lanes;
  warp.clock = 0;
  warp.splits.clear();
  warp.splits.push_back({Split::kReady, lanes, 0, frame, 0, 0});
}

}  // namespace ipclab::ptx
