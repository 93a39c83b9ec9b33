// SPDX-License-Identifier: Apache-2.0
// Tells the observer of a launch what an instruction does to memory. Local
// memory and parameters belong to one thread, so nobody hears of them.
#include "memory.h"
#include "per_thread.h"

namespace ipclab::ptx {
namespace {

/// One access of an instruction: the operand with its address, and its size.
struct Part {
  Instruction access;
  Effect::Kind kind;
  Effect::Order order;
  uint32_t bytes;
};

Instruction at_operand(const Instruction& i, uint32_t address, Space space) {
  Instruction access = i;
  access.a = address;
  access.immediate = 0;
  access.space = space;
  access.address_bytes = 8;
  return access;
}

/// Where one lane's access is.
struct Place {
  Touch::Memory memory;
  uint32_t owner;
  uint64_t address;
};

/// Returns false if the place is in memory of the lane alone.
bool find(Warp& warp, Space space, uint64_t address, Place* place) {
  const Block& block = *warp.block;
  const uint64_t window = address >> 56 << 56;
  if (space == Space::kGeneric || space == Space::kGlobal) {
    const bool generic = space == Space::kGeneric;
    if (window == kGridWindow) {
      *place = {Touch::kGrid, 0, address - window};
      return true;
    }
    if (generic && (window == kLocalWindow || window == kParameterWindow))
      return false;
    if (!generic || window != kSharedWindow) {
      *place = {Touch::kGlobal, 0, address};
      return true;
    }
    address -= window;
  } else if (space != Space::kShared) {
    return false;
  }
  const uint64_t rank = address >> kRankShift;
  if (rank > block.cluster->blocks.size()) return false;
  const Block& owner = rank == 0 ? block : *block.cluster->blocks[rank - 1];
  *place = {Touch::kShared, block.grid->number_of(owner),
            address & ((1u << kRankShift) - 1)};
  return true;
}

/// The usual part: 32 lanes access global memory.
bool all_global(Warp& warp, const Instruction& i, Touch* touch) {
  const bool may_be = i.space == Space::kGlobal || i.space == Space::kGeneric;
  if (!may_be || i.a == kNone || i.address_bytes != 8) return false;
  const uint64_t* base = lanes_of<uint64_t>(warp, i.a);
  const auto offset = static_cast<uint64_t>(i.immediate);
  uint64_t all = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    touch->address[lane] = base[lane] + offset;
    all |= touch->address[lane];
  }
  touch->memory = Touch::kGlobal;
  touch->owner = 0;
  touch->lanes = kAllLanes;
  return all >> 56 == 0;
}

void describe(Warp& warp, const Part& part, Touch* touch) {
  touch->effect = part.access.effect;
  touch->effect.kind = static_cast<uint16_t>(part.kind);
  touch->effect.order = static_cast<uint16_t>(part.order);
  touch->line = part.access.line;
  touch->block = warp.block->grid->number_of(*warp.block);
  touch->warp = warp.index;
  touch->bytes = part.bytes;
}

/// Adds the touches of a part. Usually it is one, because all lanes access the
/// same memory.
void add(Warp& warp, const Part& part, uint32_t mask,
         std::vector<Touch>* touches) {
  Touch* touch = nullptr;
  if (mask == kAllLanes) {
    touch = &touches->emplace_back();
    describe(warp, part, touch);
    if (all_global(warp, part.access, touch)) return;
    touches->pop_back();
    touch = nullptr;
  }
  for (; mask != 0; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    Place place;
    if (!find(warp, part.access.space, lane_address(warp, part.access, lane),
              &place))
      continue;
    if (touch == nullptr || place.memory != touch->memory ||
        place.owner != touch->owner) {
      touch = &touches->emplace_back();
      describe(warp, part, touch);
      touch->lanes = 0;
      touch->memory = place.memory;
      touch->owner = place.owner;
    }
    touch->address[lane] = place.address;
    touch->lanes |= 1u << lane;
  }
}

/// Calls tell(part, mask) for each access of an instruction.
template <class Tell>
void each_part(Warp& warp, const Instruction& i, uint32_t mask, Tell tell) {
  const auto order = static_cast<Effect::Order>(i.effect.order);
  if (i.effect.kind == Effect::kCopy) {  // operands: see copy_async
    Part from{at_operand(i, i.b, Space::kGlobal), Effect::kRead, order,
              i.count};
    from.access.immediate = static_cast<int64_t>(static_cast<int32_t>(i.list));
    from.access.effect.copies = Effect::kNoCopies;  // only writes are late
    tell(from, mask);
    tell(Part{i, Effect::kWrite, order, i.count}, mask);
  } else if (i.effect.kind == Effect::kBulkCopy) {  // see move_bulk
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const uint32_t lane = rest & -rest;
      const uint32_t size = lanes_of<uint32_t>(warp, i.d)[__builtin_ctz(rest)];
      Part from{at_operand(i, i.b, Space::kGeneric), Effect::kRead,
                Effect::kWeak, size};
      from.access.effect.copies = Effect::kNoCopies;
      tell(from, lane);
      tell(Part{at_operand(i, i.a, Space::kGeneric),
                order == Effect::kWeak ? Effect::kWrite : Effect::kUpdate,
                order, size},
           lane);
    }
    if (i.c == kNone) return;
    Part counted{at_operand(i, i.c, Space::kGeneric), Effect::kUpdate,
                 Effect::kRelease, 8};
    counted.access.effect.scope = Effect::kCluster;
    tell(counted, mask);
  } else {
    tell(Part{i, static_cast<Effect::Kind>(i.effect.kind), order,
              i.effect.bytes},
         mask);
  }
}

}  // namespace

void run_observed(Warp& warp, const Instruction& i, uint32_t mask) {
  Observer& observer = *warp.block->grid->launch.observer;
  if (i.effect.kind == Effect::kFence) {
    observer.fence(warp.block->grid->number_of(*warp.block), warp.index, mask,
                   static_cast<Effect::Scope>(i.effect.scope));
    return i.run(warp, i, mask);
  }
  if (i.effect.kind == Effect::kCopyGroup) {
    observer.group_copies(warp.block->grid->number_of(*warp.block), warp.index,
                          mask, static_cast<Effect::Copies>(i.effect.copies),
                          i.count != 0, i.list);
    return i.run(warp, i, mask);
  }
  // A load may overwrite the register with its address.
  struct Touches;
  auto& touches = of_this_thread<std::vector<Touch>, Touches>();
  touches.clear();
  each_part(warp, i, mask, [&](const Part& part, uint32_t lanes) {
    add(warp, part, lanes, &touches);
  });
  for (const Touch& touch : touches)
    if (touch.effect.kind != Effect::kRead) observer.before(touch);
  i.run(warp, i, mask);
  if (warp.block->grid->stopped()) return;
  for (const Touch& touch : touches)
    if (touch.effect.kind != Effect::kWrite) observer.after(touch);
}

}  // namespace ipclab::ptx
