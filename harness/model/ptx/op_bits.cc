// SPDX-License-Identifier: Apache-2.0
// Logic, shifts and bit fields, for values and predicates.
#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

struct And {
  template <class T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T of(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T of(T a) {
    return static_cast<T>(~a);
  }
};
struct ConditionalNot {
  template <class T>
  static T of(T a) {
    return a == 0;
  }
};

template <class Op>
void predicate_binary(Warp& warp, const Instruction& i, uint32_t mask) {
  set_predicate(warp, i.d, mask,
                Op::of(predicate(warp, i.a), predicate(warp, i.b)));
}

void predicate_not(Warp& warp, const Instruction& i, uint32_t mask) {
  set_predicate(warp, i.d, mask, ~predicate(warp, i.a));
}

template <class Op>
void decode_logic(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  d.i.run = type == Type::kPred ? predicate_binary<Op>
                                : pick(Bits{}, type, [](auto x) -> Handler {
                                    return binary<Op, decltype(x)>;
                                  });
}

template <class Op>
void decode_not(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(2, 2);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.run = type == Type::kPred ? predicate_not
                                : pick(Bits{}, type, [](auto x) -> Handler {
                                    return unary<Op, decltype(x)>;
                                  });
}

// An amount above the width is clamped to the width.
struct ShiftLeft {
  template <class T>
  static T of(T a, uint32_t by) {
    return by >= sizeof(T) * 8 ? T(0) : static_cast<T>(a << by);
  }
};
struct ShiftRight {
  template <class T>
  static T of(T a, uint32_t by) {
    constexpr uint32_t kLast = sizeof(T) * 8 - 1;
    if (std::is_signed_v<T>)
      return static_cast<T>(a >> (by > kLast ? kLast : by));
    return by > kLast ? T(0) : static_cast<T>(a >> by);
  }
};

template <class Op, class T>
void shift(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  if (i.mode != 0) {  // the amount is the same for all lanes
    const uint32_t by = b[0];
    each_lane(mask, [=](int l) { d[l] = Op::of(a[l], by); });
  } else {
    each_lane(mask, [=](int l) { d[l] = Op::of(a[l], b[l]); });
  }
}

template <class Op>
void decode_shift(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, Type::kB32);
  d.i.mode = d.operand(2).kind == Operand::kInteger;
  d.i.run = pick(Integers{}, type,
                 [](auto x) -> Handler { return shift<Op, decltype(x)>; });
}

/// shf: the 64-bit value b:a is shifted; a left shift yields the high word, a
/// right shift the low word.
template <bool kLeft, bool kWrap>
struct Funnel {
  static uint32_t of(uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    const uint32_t by = kWrap ? c & 31 : c > 32 ? 32 : c;
    return static_cast<uint32_t>(kLeft ? both >> (32 - by) : both >> by);
  }
};

void decode_shf(Decoder& d) {
  const int direction = d.take_one_of({"l", "r"});
  const int mode = d.take_one_of({"clamp", "wrap"});
  const Type type = d.take_type();
  if (direction < 0 || mode < 0 || type != Type::kB32) d.unsupported();
  d.expect_operands(4, 4);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  d.i.c = d.source(3, type);
  d.i.run = direction == 0
                ? (mode == 1 ? ternary<Funnel<true, true>, uint32_t>
                             : ternary<Funnel<true, false>, uint32_t>)
                : (mode == 1 ? ternary<Funnel<false, true>, uint32_t>
                             : ternary<Funnel<false, false>, uint32_t>);
}

/// i.list is the truth table: bit (a << 2 | b << 1 | c) is the result.
void logic3(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const uint32_t* a = lanes_of<uint32_t>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  const uint32_t* c = lanes_of<uint32_t>(warp, i.c);
  uint32_t row[8];
  for (int k = 0; k < 8; ++k) row[k] = (i.list >> k & 1) != 0 ? kAllLanes : 0;
  each_lane(mask, [=](int l) {
    const uint32_t x = a[l], y = b[l], z = c[l];
    d[l] = (row[0] & ~x & ~y & ~z) | (row[1] & ~x & ~y & z) |
           (row[2] & ~x & y & ~z) | (row[3] & ~x & y & z) |
           (row[4] & x & ~y & ~z) | (row[5] & x & ~y & z) |
           (row[6] & x & y & ~z) | (row[7] & x & y & z);
  });
}

void decode_lop3(Decoder& d) {
  const Type type = d.take_type();
  if (type != Type::kB32) d.unsupported();
  d.expect_operands(5, 5);
  if (d.operand(4).kind != Operand::kInteger) d.unsupported();
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  d.i.c = d.source(3, type);
  d.i.list = static_cast<uint32_t>(d.operand(4).bits);
  d.i.run = logic3;
}

enum PermuteMode {
  kForward4,
  kBackward4,
  kReplicate8,
  kEdgeLeft,
  kEdgeRight,
  kReplicate16,
  kSelectors
};

/// The selectors of a special mode of prmt for the value c[1:0].
uint32_t permute_selectors(int mode, uint32_t c) {
  const uint32_t k = c & 3;
  uint32_t result = 0;
  for (uint32_t byte = 0; byte < 4; ++byte) {
    uint32_t s = 0;
    switch (mode) {
      case kForward4:
        s = k + byte;
        break;
      case kBackward4:
        s = (k + 8 - byte) & 7;
        break;
      case kReplicate8:
        s = k;
        break;
      case kEdgeLeft:
        s = byte < k ? k : byte;
        break;
      case kEdgeRight:
        s = byte > k ? k : byte;
        break;
      default:
        s = (byte & 1) + 2 * (k & 1);
        break;
    }
    result |= s << (4 * byte);
  }
  return result;
}

void permute(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const uint32_t* a = lanes_of<uint32_t>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  const uint32_t* c = lanes_of<uint32_t>(warp, i.c);
  each_lane(mask, [&](int l) {
    const uint64_t bytes = static_cast<uint64_t>(b[l]) << 32 | a[l];
    const uint32_t selectors =
        i.mode == kSelectors ? c[l] : permute_selectors(i.mode, c[l]);
    uint32_t result = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t selector = selectors >> (4 * k) & 15;
      uint32_t byte = static_cast<uint8_t>(bytes >> (8 * (selector & 7)));
      if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << (8 * k);
    }
    d[l] = result;
  });
}

void decode_prmt(Decoder& d) {
  d.take_type();
  const int mode = d.take_one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  d.expect_operands(4, 4);
  d.i.mode = static_cast<uint8_t>(mode < 0 ? kSelectors : mode);
  d.i.d = d.destination(0, Type::kB32);
  d.i.a = d.source(1, Type::kB32);
  d.i.b = d.source(2, Type::kB32);
  d.i.c = d.source(3, Type::kB32);
  d.i.run = permute;
}

template <class T>
void extract_field(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr uint32_t kWidth = sizeof(T) * 8;
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  const uint32_t* c = lanes_of<uint32_t>(warp, i.c);
  each_lane(mask, [=](int l) {
    const uint32_t at = b[l] & 0xff, length = c[l] & 0xff;
    if (length == 0) {
      d[l] = 0;
      return;
    }
    using U = Unsigned<T>;
    U field = at < kWidth ? static_cast<U>(static_cast<U>(a[l]) >> at) : U(0);
    if (length < kWidth) field &= (U(1) << length) - 1;
    if (std::is_signed_v<T>) {
      const uint32_t last = at + length - 1;
      const bool sign =
          (static_cast<U>(a[l]) >> (last < kWidth ? last : kWidth - 1)) & 1;
      const uint32_t filled = at >= kWidth           ? 0
                              : length < kWidth - at ? length
                                                     : kWidth - at;
      if (sign && filled < kWidth) field |= static_cast<U>(~U(0)) << filled;
    }
    d[l] = static_cast<T>(field);
  });
}

void decode_bfe(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(4, 4);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, Type::kB32);
  d.i.c = d.source(3, Type::kB32);
  d.i.run = pick(Words{}, type,
                 [](auto x) -> Handler { return extract_field<decltype(x)>; });
}

template <class T>
void insert_field(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr uint32_t kWidth = sizeof(T) * 8;
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  const uint32_t* c = lanes_of<uint32_t>(warp, i.c);
  const uint32_t* e = lanes_of<uint32_t>(warp, i.e);
  each_lane(mask, [=](int l) {
    const uint32_t at = c[l] & 0xff, length = e[l] & 0xff;
    T field = length >= kWidth ? ~T(0) : (T(1) << length) - 1;
    field = at >= kWidth ? 0 : field << at;
    const T value = at >= kWidth ? 0 : a[l] << at;
    d[l] = (b[l] & ~field) | (value & field);
  });
}

void decode_bfi(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(5, 5);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  d.i.c = d.source(3, Type::kB32);
  d.i.e = d.source(4, Type::kB32);
  d.i.run = pick(TypeList<uint32_t, uint64_t>{}, type,
                 [](auto x) -> Handler { return insert_field<decltype(x)>; });
}

template <class T>
uint32_t leading_zeros(T value) {
  if (value == 0) return sizeof(T) * 8;
  return static_cast<uint32_t>(sizeof(T) == 8 ? __builtin_clzll(value)
                                              : __builtin_clz(value));
}

template <class T>
void count_leading_zeros(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  each_lane(mask, [=](int l) { d[l] = leading_zeros(a[l]); });
}

template <class T>
void count_ones(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  each_lane(mask, [=](int l) {
    d[l] = static_cast<uint32_t>(__builtin_popcountll(a[l]));
  });
}

/// Position of the highest bit that differs from the sign bit; ~0 if there is
/// none. With i.mode, the shift amount that moves this bit to the top.
template <class T>
void find_leading(Warp& warp, const Instruction& i, uint32_t mask) {
  using U = Unsigned<T>;
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  each_lane(mask, [=](int l) {
    const U value = static_cast<U>(a[l] < 0 ? ~a[l] : a[l]);
    const uint32_t zeros = leading_zeros(value);
    constexpr uint32_t kWidth = sizeof(T) * 8;
    d[l] = value == 0 ? ~0u : i.mode != 0 ? zeros : kWidth - 1 - zeros;
  });
}

struct Reverse {
  template <class T>
  static T of(T value) {
    T result = 0;
    for (size_t k = 0; k < sizeof(T) * 8; ++k, value >>= 1)
      result = static_cast<T>(result << 1) | (value & 1);
    return result;
  }
};

void decode_count(Decoder& d) {
  const std::string& name = d.name();
  d.i.mode = name == "bfind" && d.take("shiftamt");
  const Type type = d.take_type();
  d.expect_operands(2, 2);
  d.i.d = d.destination(0, Type::kB32);
  d.i.a = d.source(1, type);
  d.i.run = pick(Words{}, type, [&](auto x) -> Handler {
    using T = decltype(x);
    return name == "popc"  ? count_ones<Unsigned<T>>
           : name == "clz" ? count_leading_zeros<Unsigned<T>>
                           : find_leading<T>;
  });
}

void decode_brev(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(2, 2);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.run = pick(TypeList<uint32_t, uint64_t>{}, type,
                 [](auto x) -> Handler { return unary<Reverse, decltype(x)>; });
}

/// bmsk: b ones from bit a on.
template <bool kWrap>
struct BitMask {
  static uint32_t of(uint32_t a, uint32_t b) {
    if (kWrap) a &= 31, b &= 31;
    if (a > 31) return 0;
    const uint32_t ones = b > 31 ? ~0u : (1u << b) - 1;
    return ones << a;
  }
};

void decode_bmsk(Decoder& d) {
  const int mode = d.take_one_of({"clamp", "wrap"});
  const Type type = d.take_type();
  if (mode < 0 || type != Type::kB32) d.unsupported();
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  d.i.run = mode == 1 ? binary<BitMask<true>, uint32_t>
                      : binary<BitMask<false>, uint32_t>;
}

}  // namespace

const DecodeTable& bit_instructions() {
  static const auto& table = *new DecodeTable{
      {"and", decode_logic<And>},
      {"or", decode_logic<Or>},
      {"xor", decode_logic<Xor>},
      {"not", decode_not<Not>},
      {"cnot", decode_not<ConditionalNot>},
      {"shl", decode_shift<ShiftLeft>},
      {"shr", decode_shift<ShiftRight>},
      {"shf", decode_shf},
      {"lop3", decode_lop3},
      {"prmt", decode_prmt},
      {"bfe", decode_bfe},
      {"bfi", decode_bfi},
      {"bfind", decode_count},
      {"popc", decode_count},
      {"clz", decode_count},
      {"brev", decode_brev},
      {"bmsk", decode_bmsk},
  };
  return table;
}

}  // namespace ipclab::ptx
