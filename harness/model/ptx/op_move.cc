// SPDX-License-Identifier: Apache-2.0
// mov, packing and unpacking, special registers, cvta, isspacep.
#include <time.h>

#include "decode.h"
#include "grid.h"

namespace ipclab::ptx {
namespace {

struct Copy {
  template <class T>
  static T of(T a) {
    return a;
  }
};

using Wide = unsigned __int128;

void copy_predicate(Warp& warp, const Instruction& i, uint32_t mask) {
  set_predicate(warp, i.d, mask, predicate(warp, i.a));
}

/// d = {e0, e1, …}: i.list has i.count elements of i.address_bytes bytes.
void pack(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto& lists = warp.frame->function->lists;
  const uint32_t bytes = i.address_bytes;
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    char* d = warp.registers + i.d + ptrdiff_t{l} * i.register_bytes;
    for (uint32_t k = 0; k < i.count; ++k)
      std::memcpy(d + size_t{k} * bytes,
                  warp.registers + lists[i.list + k] +
                      ptrdiff_t{l} * (bytes < 2 ? 2 : bytes),
                  bytes);
  }
}

void unpack(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto& lists = warp.frame->function->lists;
  const uint32_t bytes = i.address_bytes;
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    char value[16];  // a copy: an element may be the register itself
    std::memcpy(value, warp.registers + i.a + ptrdiff_t{l} * i.register_bytes,
                i.register_bytes);
    for (uint32_t k = 0; k < i.count; ++k) {
      uint64_t element = 0;
      std::memcpy(&element, value + size_t{k} * bytes, bytes);
      set_lane_value(warp, lists[i.list + k], bytes < 2 ? 2 : bytes, l,
                     element);
    }
  }
}

// --- special registers -----------------------------------------------------

enum Special : uint8_t {
  kTid,
  kTidY,
  kTidZ,
  kNtid,
  kNtidY,
  kNtidZ,
  kCtaid,
  kCtaidY,
  kCtaidZ,
  kNctaid,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kZero,
  kOne,
  kGridid,
  kClock,
  kClockHigh,
  kGlobalTimer,
  kGlobalTimerLow,
  kGlobalTimerHigh,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
  kDynamicShared,
  kTotalShared,
  kGridWorkspaceHigh,
  kGridWorkspaceLow,
  kClusterCtaid,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaid,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusterRank,
  kClusterBlocks,
  kClusterid,
  kClusteridY,
  kClusteridZ,
  kNclusterid,
  kNclusteridY,
  kNclusteridZ,
  kIsExplicitCluster,
};

struct SpecialName {
  const char* name;
  Special which;
  uint32_t bytes;
};

constexpr SpecialName kSpecials[] = {
    {"%tid.x", kTid, 4},
    {"%tid.y", kTidY, 4},
    {"%tid.z", kTidZ, 4},
    {"%ntid.x", kNtid, 4},
    {"%ntid.y", kNtidY, 4},
    {"%ntid.z", kNtidZ, 4},
    {"%ctaid.x", kCtaid, 4},
    {"%ctaid.y", kCtaidY, 4},
    {"%ctaid.z", kCtaidZ, 4},
    {"%nctaid.x", kNctaid, 4},
    {"%nctaid.y", kNctaidY, 4},
    {"%nctaid.z", kNctaidZ, 4},
    {"%laneid", kLaneid, 4},
    {"%warpid", kWarpid, 4},
    {"%nwarpid", kNwarpid, 4},
    {"%smid", kZero, 4},
    {"%nsmid", kOne, 4},
    {"%gridid", kGridid, 8},
    {"%clock", kClock, 4},
    {"%clock_hi", kClockHigh, 4},
    {"%clock64", kClock, 8},
    {"%globaltimer", kGlobalTimer, 8},
    {"%globaltimer_lo", kGlobalTimerLow, 4},
    {"%globaltimer_hi", kGlobalTimerHigh, 4},
    {"%lanemask_eq", kLanemaskEq, 4},
    {"%lanemask_le", kLanemaskLe, 4},
    {"%lanemask_lt", kLanemaskLt, 4},
    {"%lanemask_ge", kLanemaskGe, 4},
    {"%lanemask_gt", kLanemaskGt, 4},
    {"%dynamic_smem_size", kDynamicShared, 4},
    {"%total_smem_size", kTotalShared, 4},
    {"%envreg1", kGridWorkspaceHigh, 4},
    {"%envreg2", kGridWorkspaceLow, 4},
    {"%cluster_ctaid.x", kClusterCtaid, 4},
    {"%cluster_ctaid.y", kClusterCtaidY, 4},
    {"%cluster_ctaid.z", kClusterCtaidZ, 4},
    {"%cluster_nctaid.x", kClusterNctaid, 4},
    {"%cluster_nctaid.y", kClusterNctaidY, 4},
    {"%cluster_nctaid.z", kClusterNctaidZ, 4},
    {"%cluster_ctarank", kClusterRank, 4},
    {"%cluster_nctarank", kClusterBlocks, 4},
    {"%clusterid.x", kClusterid, 4},
    {"%clusterid.y", kClusteridY, 4},
    {"%clusterid.z", kClusteridZ, 4},
    {"%nclusterid.x", kNclusterid, 4},
    {"%nclusterid.y", kNclusteridY, 4},
    {"%nclusterid.z", kNclusteridZ, 4},
    {"%is_explicit_cluster", kIsExplicitCluster, 4},
};

uint64_t real_time_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u +
         static_cast<uint64_t>(now.tv_nsec);
}

/// Values that are the same for all lanes. The clock runs at 2 GHz.
uint64_t uniform_value(const Warp& warp, uint8_t which) {
  const Block& block = *warp.block;
  const Launch& launch = block.grid->launch;
  switch (which) {
    case kNtid:
    case kNtidY:
    case kNtidZ:
      return launch.block[which - kNtid];
    case kCtaid:
    case kCtaidY:
    case kCtaidZ:
      return block.index[which - kCtaid];
    case kNctaid:
    case kNctaidY:
    case kNctaidZ:
      return launch.grid[which - kNctaid];
    case kClusterCtaid:
    case kClusterCtaidY:
    case kClusterCtaidZ: {
      const int k = which - kClusterCtaid;
      return block.index[k] % launch.cluster[k];
    }
    case kClusterNctaid:
    case kClusterNctaidY:
    case kClusterNctaidZ:
      return launch.cluster[which - kClusterNctaid];
    case kClusterRank:
      return block.rank;
    case kClusterBlocks:
      return block.cluster->blocks.size();
    case kClusterid:
    case kClusteridY:
    case kClusteridZ:
      return block.cluster->index[which - kClusterid];
    case kNclusterid:
    case kNclusteridY:
    case kNclusteridZ: {
      const int k = which - kNclusterid;
      return launch.grid[k] / launch.cluster[k];
    }
    case kIsExplicitCluster:
      return block.cluster->blocks.size() > 1;
    case kWarpid:
      return warp.index;
    case kNwarpid:
      return block.warps.size();
    case kOne:
      return 1;
    case kClock:
      return steady_ns() * 2;
    case kClockHigh:
      return steady_ns() * 2 >> 32;
    case kGlobalTimer:
    case kGlobalTimerLow:
      return real_time_ns();
    case kGlobalTimerHigh:
      return real_time_ns() >> 32;
    case kDynamicShared:
      return launch.dynamic_shared_bytes;
    case kTotalShared:
      return block.shared_bytes;
    // The address of the workspace that grid.sync() uses; 0: not cooperative.
    case kGridWorkspaceHigh:
      return launch.cooperative ? kGridWindow >> 32 : 0;
    case kGridWorkspaceLow:
    default:
      return 0;
  }
}

uint64_t lane_special(const Warp& warp, uint8_t which, int lane) {
  const uint32_t self = 1u << lane;
  switch (which) {
    case kTid:
    case kTidY:
    case kTidZ:
      return warp.thread_index[which - kTid][lane];
    case kLaneid:
      return static_cast<uint64_t>(lane);
    case kLanemaskEq:
      return self;
    case kLanemaskLe:
      return self | (self - 1);
    case kLanemaskLt:
      return self - 1;
    case kLanemaskGe:
      return ~(self - 1);
    default:
      return ~(self | (self - 1));
  }
}

bool differs_by_lane(uint8_t which) {
  return which <= kTidZ || which == kLaneid ||
         (which >= kLanemaskEq && which <= kLanemaskGt);
}

template <class T>
void read_uniform(Warp& warp, const Instruction& i, uint32_t mask) {
  const T value = static_cast<T>(uniform_value(warp, i.mode));
  T* d = lanes_of<T>(warp, i.d);
  each_lane(mask, [=](int l) { d[l] = value; });
}

void read_by_lane(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  if (i.mode <= kTidZ) {
    const uint32_t* index = warp.thread_index[i.mode];
    each_lane(mask, [=](int l) { d[l] = index[l]; });
  } else {
    each_lane(mask, [&](int l) {
      d[l] = static_cast<uint32_t>(lane_special(warp, i.mode, l));
    });
  }
}

// --- decoding --------------------------------------------------------------

void decode_vector(Decoder& d, Type type, const Operand& vector, bool unpacks) {
  const auto count = static_cast<uint32_t>(vector.elements.size());
  const uint32_t bytes = type_bytes(type);
  if (count == 0 || bytes % count != 0) d.unsupported();
  const uint32_t each = bytes / count;
  const Type element = each == 1   ? Type::kB8
                       : each == 2 ? Type::kB16
                       : each == 4 ? Type::kB32
                                   : Type::kB64;
  std::vector<uint32_t> offsets;
  for (const Operand& e : vector.elements)
    offsets.push_back(unpacks ? d.destination(e, element)
                              : d.source(e, element));
  d.i.list = d.add_list(offsets);
  d.i.count = static_cast<uint8_t>(count);
  d.i.address_bytes = static_cast<uint8_t>(each);
  d.i.register_bytes = static_cast<uint8_t>(bytes);
}

void decode_mov(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(2, 2);
  if (d.operand(0).kind == Operand::kVector) {
    decode_vector(d, type, d.operand(0), true);
    d.i.a = d.source(1, type);
    d.i.pure = true;
    d.i.run = unpack;
    return;
  }
  d.i.d = d.destination(0, type);
  if (d.operand(1).kind == Operand::kVector) {
    decode_vector(d, type, d.operand(1), false);
    d.i.pure = true;
    d.i.run = pack;
    return;
  }
  if (type == Type::kPred) {
    d.i.a = d.source(1, type);
    d.i.pure = true;
    d.i.run = copy_predicate;
    return;
  }
  if (d.operand(1).kind == Operand::kName && d.operand(1).name[0] == '%') {
    uint32_t bytes = 0;
    const Handler reader =
        special_register_reader(d.operand(1).name, &bytes, &d.i.mode);
    if (reader != nullptr && bytes == type_bytes(type)) {
      d.i.register_bytes = static_cast<uint8_t>(bytes);
      d.i.pure = is_fixed_for_warp(d.i.mode);
      d.i.run = reader;
      return;
    }
  }
  uint32_t bytes = type_bytes(type);
  d.i.a = d.operand(1).kind == Operand::kName
              ? d.source(d.operand(1), type, &bytes)
              : d.source(1, type);
  if (bytes < type_bytes(type))
    d.unsupported("the value is narrower than the destination");
  if (bytes != type_bytes(type) && type_bytes(type) != 4) d.unsupported();
  if (bytes == 8 && type_bytes(type) == 4)
    d.unsupported("an address does not fit into 32 bits");
  d.i.run = pick(TypeList<uint16_t, uint32_t, uint64_t>{}, bits_of(type),
                 [](auto x) -> Handler { return unary<Copy, decltype(x)>; });
  if (type == Type::kB128) d.i.run = unary<Copy, Wide>;
  d.i.pure = true;
}

uint64_t window_of(Space space) {
  switch (space) {
    case Space::kShared:
      return kSharedWindow;
    case Space::kLocal:
      return kLocalWindow;
    case Space::kParameter:
      return kParameterWindow;
    default:
      return 0;
  }
}

/// d = a + the window's base (i.immediate), which is 0 for global memory.
void change_space(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t* d = lanes_of<uint64_t>(warp, i.d);
  const uint64_t* a = lanes_of<uint64_t>(warp, i.a);
  const auto base = static_cast<uint64_t>(i.immediate);
  each_lane(mask, [=](int l) { d[l] = a[l] + base; });
}

void decode_cvta(Decoder& d) {
  const bool to = d.take("to");
  const Space space = d.take_space();
  const Type type = d.take_type();
  d.expect_operands(2, 2);
  if (type_bytes(type) != 8 || space == Space::kGeneric) d.unsupported();
  uint64_t base = window_of(space);
  // The parameters of a .func are variables of its frame.
  if (space == Space::kParameter && !d.in_entry()) base = kLocalWindow;
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.immediate = static_cast<int64_t>(to ? 0 - base : base);
  d.i.pure = true;
  d.i.run = change_space;
}

/// The rank of the block whose shared memory has an address.
uint32_t rank_of(const Warp& warp, uint64_t address) {
  const uint32_t above = static_cast<uint32_t>(address) >> kRankShift;
  return above == 0 ? warp.block->rank : above - 1;
}

void is_space(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint64_t* a = lanes_of<uint64_t>(warp, i.a);
  const auto window = static_cast<uint64_t>(i.immediate);
  const bool own_only = i.mode != 0;
  uint32_t bits = 0;
  each_lane(mask, [&](int l) {
    const uint64_t top = a[l] >> 56 << 56;
    bool is = window != 0 ? top == window : top == 0 || top == kGridWindow;
    if (own_only) is = is && rank_of(warp, a[l]) == warp.block->rank;
    bits |= static_cast<uint32_t>(is) << l;
  });
  set_predicate(warp, i.d, mask, bits);
}

void decode_isspacep(Decoder& d) {
  const bool whole_cluster = d.take("shared::cluster");
  const Space space = whole_cluster ? Space::kShared : d.take_space();
  if (space == Space::kGeneric) d.unsupported();
  d.expect_operands(2, 2);
  d.i.mode = space == Space::kShared && !whole_cluster;
  d.i.d = d.destination(0, Type::kPred);
  d.i.a = d.source(1, Type::kB64);
  d.i.immediate = static_cast<int64_t>(window_of(space));
  d.i.pure = true;
  d.i.run = is_space;
}

/// d = the address in the block of rank b that corresponds to a.
template <class T>
void map_address(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  constexpr T kRank = T{0xff} << kRankShift;
  each_lane(mask, [=](int l) {
    d[l] = (a[l] & ~kRank) | (static_cast<T>(b[l] + 1) << kRankShift & kRank);
  });
}

template <class T>
void read_rank(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  each_lane(mask, [&](int l) { d[l] = rank_of(warp, a[l]); });
}

void decode_mapa(Decoder& d) {
  d.take_space();
  const Type type = d.take_type();
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, Type::kB32);
  d.i.run =
      type_bytes(type) == 4 ? map_address<uint32_t> : map_address<uint64_t>;
}

void decode_getctarank(Decoder& d) {
  d.take_space();
  const Type type = d.take_type();
  d.expect_operands(2, 2);
  d.i.d = d.destination(0, Type::kB32);
  d.i.a = d.source(1, type);
  d.i.run = type_bytes(type) == 4 ? read_rank<uint32_t> : read_rank<uint64_t>;
}

}  // namespace

Handler special_register_reader(const std::string& name, uint32_t* bytes,
                                uint8_t* mode) {
  for (const SpecialName& special : kSpecials) {
    if (name != special.name) continue;
    *bytes = special.bytes;
    *mode = special.which;
    if (differs_by_lane(special.which)) return read_by_lane;
    return special.bytes == 8 ? read_uniform<uint64_t> : read_uniform<uint32_t>;
  }
  return nullptr;
}

bool is_fixed_for_warp(uint8_t mode) {
  switch (mode) {
    case kCtaid:  // a warp runs one block after another
    case kCtaidY:
    case kCtaidZ:
    case kClusterid:
    case kClusteridY:
    case kClusteridZ:
    case kClock:
    case kClockHigh:
    case kGlobalTimer:
    case kGlobalTimerLow:
    case kGlobalTimerHigh:
      return false;
    default:
      return true;
  }
}

const DecodeTable& move_instructions() {
  static const auto& table = *new DecodeTable{{"mov", decode_mov},
                                              {"cvta", decode_cvta},
                                              {"mapa", decode_mapa},
                                              {"getctarank", decode_getctarank},
                                              {"isspacep", decode_isspacep}};
  return table;
}

}  // namespace ipclab::ptx
