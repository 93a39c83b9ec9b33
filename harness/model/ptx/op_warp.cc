// SPDX-License-Identifier: Apache-2.0
// Instructions that the lanes of a warp run together: shfl, vote, match, redux,
// elect, activemask.
#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

enum Shuffle : uint8_t { kUp, kDown, kButterfly, kIndex };

void shuffle(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t value[kLanes];
  std::memcpy(value, lanes_of<uint32_t>(warp, i.a), sizeof value);
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  uint32_t amount[kLanes], bound[kLanes];
  std::memcpy(amount, lanes_of<uint32_t>(warp, i.b), sizeof amount);
  std::memcpy(bound, lanes_of<uint32_t>(warp, i.c), sizeof bound);
  uint32_t valid = 0;
  each_lane(mask, [&](int l) {
    const int clamp = static_cast<int>(bound[l] & 31);
    const int segment = static_cast<int>(bound[l] >> 8 & 31);
    const int by = static_cast<int>(amount[l] & 31);
    const int last = (l & segment) | (clamp & ~segment);
    const int first = l & segment;
    int from;
    bool is;
    switch (i.mode) {
      case kUp:
        from = l - by;
        is = from >= last;
        break;
      case kDown:
        from = l + by;
        is = from <= last;
        break;
      case kButterfly:
        from = l ^ by;
        is = from <= last;
        break;
      default:
        from = first | (by & ~segment);
        is = from <= last;
        break;
    }
    if (!is) from = l;
    d[l] = value[from];
    valid |= static_cast<uint32_t>(is) << l;
  });
  if (i.target >= 0)
    set_predicate(warp, static_cast<uint32_t>(i.target), mask, valid);
}

/// All members must have arrived before values are exchanged.
void member_mask(Decoder& d, size_t index) {
  d.i.flow = Flow::kWarpSync;
  d.i.e = d.source(index, Type::kB32);
}

void decode_shfl(Decoder& d) {
  if (!d.take("sync")) d.unsupported();
  const int mode = d.take_one_of({"up", "down", "bfly", "idx"});
  const Type type = d.take_type();
  if (mode < 0 || type != Type::kB32) d.unsupported();
  d.expect_operands(5, 5);
  d.i.mode = static_cast<uint8_t>(mode);
  d.i.d = d.destination(0, type);
  if (!d.operand(0).elements.empty())
    d.i.target = static_cast<int32_t>(
        d.destination(d.operand(0).elements[0], Type::kPred));
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, Type::kB32);
  d.i.c = d.source(3, Type::kB32);
  member_mask(d, 4);
  d.i.run = shuffle;
}

enum Vote : uint8_t { kVoteAll, kVoteAny, kVoteUniform, kVoteBallot };

void vote(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t bits = predicate(warp, i.a) & mask;
  if (i.mode == kVoteBallot) {
    uint32_t* d = lanes_of<uint32_t>(warp, i.d);
    each_lane(mask, [=](int l) { d[l] = bits; });
    return;
  }
  const bool is = i.mode == kVoteAll   ? bits == mask
                  : i.mode == kVoteAny ? bits != 0
                                       : bits == mask || bits == 0;
  set_predicate(warp, i.d, mask, is ? kAllLanes : 0);
}

void decode_vote(Decoder& d) {
  const bool sync = d.take("sync");
  const int mode = d.take_one_of({"all", "any", "uni", "ballot"});
  const Type type = d.take_type();
  if (mode < 0 || !sync) d.unsupported();
  d.expect_operands(3, 3);
  d.i.mode = static_cast<uint8_t>(mode);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, Type::kPred);
  member_mask(d, 2);
  d.i.run = vote;
}

template <class T>
void match(Warp& warp, const Instruction& i, uint32_t mask) {
  T value[kLanes];
  std::memcpy(value, lanes_of<T>(warp, i.a), sizeof value);
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  uint32_t same[kLanes] = {};
  each_lane(mask, [&](int l) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int other = __builtin_ctz(rest);
      if (value[other] == value[l]) same[l] |= 1u << other;
    }
  });
  if (i.mode == 0) {
    each_lane(mask, [&](int l) { d[l] = same[l]; });
    return;
  }
  const bool all = same[__builtin_ctz(mask)] == mask;
  each_lane(mask, [&](int l) { d[l] = all ? mask : 0; });
  if (i.b != kNone) set_predicate(warp, i.b, mask, all ? kAllLanes : 0);
}

void decode_match(Decoder& d) {
  const int mode = d.take_one_of({"any", "all"});
  if (mode < 0 || !d.take("sync")) d.unsupported();
  const Type type = d.take_type();
  d.expect_operands(3, 3);
  d.i.mode = static_cast<uint8_t>(mode);
  d.i.d = d.destination(0, Type::kB32);
  if (!d.operand(0).elements.empty())
    d.i.b = d.destination(d.operand(0).elements[0], Type::kPred);
  d.i.a = d.source(1, type);
  member_mask(d, 2);
  d.i.run = pick(TypeList<uint32_t, uint64_t>{}, type,
                 [](auto x) -> Handler { return match<decltype(x)>; });
}

struct And {
  static uint32_t of(uint32_t a, uint32_t b) { return a & b; }
};
struct Or {
  static uint32_t of(uint32_t a, uint32_t b) { return a | b; }
};
struct Xor {
  static uint32_t of(uint32_t a, uint32_t b) { return a ^ b; }
};

template <class Op, class T>
void reduce(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = lanes_of<T>(warp, i.a);
  T result = a[__builtin_ctz(mask)];
  for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1)
    result = static_cast<T>(Op::of(result, a[__builtin_ctz(rest)]));
  T* d = lanes_of<T>(warp, i.d);
  each_lane(mask, [=](int l) { d[l] = result; });
}

void decode_redux(Decoder& d) {
  if (!d.take("sync")) d.unsupported();
  const int operation =
      d.take_one_of({"add", "min", "max", "and", "or", "xor"});
  const Type type = d.take_type();
  if (type_bytes(type) != 4 || is_float(type)) d.unsupported();
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  member_mask(d, 2);
  const bool s = is_signed(type);
  switch (operation) {
    case 0:
      d.i.run = reduce<Add, uint32_t>;
      break;
    case 1:
      d.i.run = s ? reduce<Minimum, int32_t> : reduce<Minimum, uint32_t>;
      break;
    case 2:
      d.i.run = s ? reduce<Maximum, int32_t> : reduce<Maximum, uint32_t>;
      break;
    case 3:
      d.i.run = reduce<And, uint32_t>;
      break;
    case 4:
      d.i.run = reduce<Or, uint32_t>;
      break;
    case 5:
      d.i.run = reduce<Xor, uint32_t>;
      break;
    default:
      d.unsupported();
  }
}

/// elect.sync d|p, membermask: the lowest lane wins.
void elect(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto leader = static_cast<uint32_t>(__builtin_ctz(mask));
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  each_lane(mask, [=](int l) { d[l] = leader; });
  set_predicate(warp, i.a, mask, 1u << leader);
}

void decode_elect(Decoder& d) {
  if (!d.take("sync")) d.unsupported();
  d.expect_operands(2, 2);
  if (d.operand(0).elements.empty()) d.unsupported();
  d.i.d = 0;
  if (d.operand(0).kind == Operand::kRegister)
    d.i.d = d.destination(0, Type::kB32);
  d.i.a = d.destination(d.operand(0).elements[0], Type::kPred);
  member_mask(d, 1);
  d.i.run = elect;
}

void active_mask(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  each_lane(mask, [=](int l) { d[l] = mask; });
}

void decode_activemask(Decoder& d) {
  d.take_type();
  d.expect_operands(1, 1);
  d.i.d = d.destination(0, Type::kB32);
  d.i.run = active_mask;
}

}  // namespace

const DecodeTable& warp_instructions() {
  static const auto& table = *new DecodeTable{
      {"shfl", decode_shfl},   {"vote", decode_vote},
      {"match", decode_match}, {"redux", decode_redux},
      {"elect", decode_elect}, {"activemask", decode_activemask},
  };
  return table;
}

}  // namespace ipclab::ptx
