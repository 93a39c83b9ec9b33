// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: add, sub, mul, mad, div, rem, carries, neg, abs, min,
// max, sad, 24-bit and dot products.
#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

template <class T>
using DoubleWidth = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<
        sizeof(T) == 4,
        std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
        std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

struct MultiplyHigh {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<DoubleWidth<T>>(a) *
                              static_cast<DoubleWidth<T>>(b) >>
                          (sizeof(T) * 8));
  }
};
/// As on a GPU, a division by zero gives all ones, and its remainder is the
/// dividend.
struct Divide {
  template <class T>
  static T of(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1))
      return Subtract::of(T(0), a);
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <class T>
  static T of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Negate {
  template <class T>
  static T of(T a) {
    return Subtract::of(T(0), a);
  }
};
struct Absolute {
  template <class T>
  static T of(T a) {
    return a < 0 ? Negate::of(a) : a;
  }
};
struct MultiplyAdd {
  template <class T>
  static T of(T a, T b, T c) {
    return Add::of(Multiply::of(a, b), c);
  }
};
struct MultiplyHighAdd {
  template <class T>
  static T of(T a, T b, T c) {
    return Add::of(MultiplyHigh::of(a, b), c);
  }
};
struct AbsoluteDifference {
  template <class T>
  static T of(T a, T b, T c) {
    return Add::of(c, a < b ? Subtract::of(b, a) : Subtract::of(a, b));
  }
};
struct SaturatingAdd {
  static int32_t of(int32_t a, int32_t b) { return clamp(int64_t{a} + b); }
  static int32_t clamp(int64_t value) {
    return value < INT32_MIN   ? INT32_MIN
           : value > INT32_MAX ? INT32_MAX
                               : static_cast<int32_t>(value);
  }
};
struct SaturatingSubtract {
  static int32_t of(int32_t a, int32_t b) {
    return SaturatingAdd::clamp(int64_t{a} - b);
  }
};
struct SaturatingHighAdd {
  static int32_t of(int32_t a, int32_t b, int32_t c) {
    return SaturatingAdd::of(MultiplyHigh::of(a, b), c);
  }
};

template <class T>
T low24(T a) {
  return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a) << 8) >> 8);
}
template <bool kHigh>
struct Multiply24 {
  template <class T>
  static T of(T a, T b) {
    const auto product = static_cast<DoubleWidth<T>>(low24(a)) *
                         static_cast<DoubleWidth<T>>(low24(b));
    return static_cast<T>(kHigh ? product >> 16 : product);
  }
};
template <bool kHigh>
struct MultiplyAdd24 {
  template <class T>
  static T of(T a, T b, T c) {
    return Add::of(Multiply24<kHigh>::of(a, b), c);
  }
};

template <class T>
void multiply_wide(Warp& warp, const Instruction& i, uint32_t mask) {
  using W = DoubleWidth<T>;
  W* d = lanes_of<W>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  each_lane(mask, [=](int l) { d[l] = static_cast<W>(a[l]) * b[l]; });
}

template <class T>
void multiply_add_wide(Warp& warp, const Instruction& i, uint32_t mask) {
  using W = DoubleWidth<T>;
  W* d = lanes_of<W>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  const W* c = lanes_of<W>(warp, i.c);
  each_lane(mask, [=](int l) {
    d[l] = Add::of(static_cast<W>(static_cast<W>(a[l]) * b[l]), c[l]);
  });
}

// The carry flag (CC.CF) of each lane is the predicate register i.e.
template <class T, bool kSubtract>
void add_carry(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  const bool carry_in = (i.mode & 1) != 0;
  const uint32_t in = predicate(warp, i.e);
  uint32_t out = 0;
  each_lane(mask, [&](int l) {
    const unsigned bit = carry_in ? in >> l & 1 : 0;
    using W = DoubleWidth<T>;
    const W sum = kSubtract ? static_cast<W>(a[l]) - b[l] - bit
                            : static_cast<W>(a[l]) + b[l] + bit;
    out |= static_cast<uint32_t>(sum >> (sizeof(T) * 8) & 1) << l;
    d[l] = static_cast<T>(sum);
  });
  if ((i.mode & 2) != 0) set_predicate(warp, i.e, mask, out);
}

template <class T, bool kHigh>
void multiply_add_carry(Warp& warp, const Instruction& i, uint32_t mask) {
  using U = Unsigned<T>;
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  const T* c = lanes_of<T>(warp, i.c);
  const bool carry_in = (i.mode & 1) != 0;
  const uint32_t in = predicate(warp, i.e);
  uint32_t out = 0;
  each_lane(mask, [&](int l) {
    const U product = static_cast<U>(kHigh ? MultiplyHigh::of(a[l], b[l])
                                           : Multiply::of(a[l], b[l]));
    using W = DoubleWidth<U>;
    const W sum = static_cast<W>(product) + static_cast<U>(c[l]) +
                  (carry_in ? in >> l & 1 : 0);
    out |= static_cast<uint32_t>(sum >> (sizeof(U) * 8) & 1) << l;
    d[l] = static_cast<T>(sum);
  });
  if ((i.mode & 2) != 0) set_predicate(warp, i.e, mask, out);
}

template <class A, class B>
void dot_product4(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const uint32_t* a = lanes_of<uint32_t>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  const uint32_t* c = lanes_of<uint32_t>(warp, i.c);
  each_lane(mask, [=](int l) {
    uint32_t sum = c[l];
    for (int k = 0; k < 32; k += 8)
      sum += static_cast<uint32_t>(int{static_cast<A>(a[l] >> k)} *
                                   int{static_cast<B>(b[l] >> k)});
    d[l] = sum;
  });
}

void operands_abc(Decoder& d, Type type, size_t count) {
  d.expect_operands(count, count);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  if (count > 2) d.i.b = d.source(2, type);
  if (count > 3) d.i.c = d.source(3, type);
}

/// Sets the register of the carry flag, for .cc and for opcodes that add a
/// carry.
void carry(Decoder& d, bool in, bool out) {
  d.i.mode = static_cast<uint8_t>((in ? 1 : 0) | (out ? 2 : 0));
  d.i.e = d.carry_flag();
}

template <class Op, class SatOp, bool kSubtract>
void decode_add(Decoder& d) {
  const bool in = d.name() == "addc" || d.name() == "subc";
  const bool out = d.take("cc");
  const bool sat = d.take("sat");
  const Type type = d.take_type();
  operands_abc(d, type, 3);
  if (sat) {
    if (type != Type::kS32) d.unsupported();
    d.i.run = binary<SatOp, int32_t>;
  } else if (in || out) {
    carry(d, in, out);
    d.i.run = type_bytes(type) == 8   ? add_carry<uint64_t, kSubtract>
              : type_bytes(type) == 4 ? add_carry<uint32_t, kSubtract>
                                      : nullptr;
  } else {
    d.i.run = pick(Integers{}, type,
                   [](auto x) -> Handler { return binary<Op, decltype(x)>; });
  }
}

void decode_mul(Decoder& d) {
  const int half = d.take_one_of({"lo", "hi", "wide"});
  const Type type = d.take_type();
  d.expect_operands(3, 3);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  if (half == 2) {
    const uint32_t bytes = type_bytes(type) * 2;
    d.i.d = d.destination(0, bytes == 16  ? Type::kB128
                             : bytes == 8 ? Type::kB64
                                          : Type::kB32);
    d.i.run = pick(Integers{}, type, [](auto x) -> Handler {
      return multiply_wide<decltype(x)>;
    });
    return;
  }
  d.i.d = d.destination(0, type);
  d.i.run = pick(Integers{}, type, [half](auto x) -> Handler {
    return half == 1 ? binary<MultiplyHigh, decltype(x)>
                     : binary<Multiply, decltype(x)>;
  });
}

void decode_mad(Decoder& d) {
  const bool in = d.name() == "madc";
  const int half = d.take_one_of({"lo", "hi", "wide"});
  const bool out = d.take("cc"), sat = d.take("sat");
  const Type type = d.take_type();
  if (half == 2) {
    const Type wide = type_bytes(type) == 8   ? Type::kB128
                      : type_bytes(type) == 4 ? Type::kB64
                                              : Type::kB32;
    d.expect_operands(4, 4);
    d.i.d = d.destination(0, wide);
    d.i.a = d.source(1, type);
    d.i.b = d.source(2, type);
    d.i.c = d.source(3, wide);
    if (wide == Type::kB128) d.unsupported();
    d.i.run =
        pick(TypeList<uint16_t, int16_t, uint32_t, int32_t>{}, type,
             [](auto x) -> Handler { return multiply_add_wide<decltype(x)>; });
    return;
  }
  operands_abc(d, type, 4);
  if (sat) {
    if (half != 1 || type != Type::kS32) d.unsupported();
    d.i.run = ternary<SaturatingHighAdd, int32_t>;
  } else if (in || out) {
    carry(d, in, out);
    d.i.run = pick(Words{}, type, [half](auto x) -> Handler {
      return half == 1 ? multiply_add_carry<decltype(x), true>
                       : multiply_add_carry<decltype(x), false>;
    });
  } else {
    d.i.run = pick(Integers{}, type, [half](auto x) -> Handler {
      return half == 1 ? ternary<MultiplyHighAdd, decltype(x)>
                       : ternary<MultiplyAdd, decltype(x)>;
    });
  }
}

template <class Op>
void decode_binary(Decoder& d) {
  const Type type = d.take_type();
  operands_abc(d, type, 3);
  d.i.run = pick(Integers{}, type,
                 [](auto x) -> Handler { return binary<Op, decltype(x)>; });
}

template <class Op>
void decode_unary(Decoder& d) {
  const Type type = d.take_type();
  operands_abc(d, type, 2);
  d.i.run = pick(TypeList<int16_t, int32_t, int64_t>{}, type,
                 [](auto x) -> Handler { return unary<Op, decltype(x)>; });
}

void decode_sad(Decoder& d) {
  const Type type = d.take_type();
  operands_abc(d, type, 4);
  d.i.run = pick(Integers{}, type, [](auto x) -> Handler {
    return ternary<AbsoluteDifference, decltype(x)>;
  });
}

void decode_mul24(Decoder& d) {
  const bool high = d.take_one_of({"lo", "hi"}) == 1;
  const bool add = d.name() == "mad24";
  const Type type = d.take_type();
  operands_abc(d, type, add ? 4 : 3);
  d.i.run = pick(TypeList<uint32_t, int32_t>{}, type, [=](auto x) -> Handler {
    using T = decltype(x);
    if (add)
      return high ? ternary<MultiplyAdd24<true>, T>
                  : ternary<MultiplyAdd24<false>, T>;
    return high ? binary<Multiply24<true>, T> : binary<Multiply24<false>, T>;
  });
}

void decode_dp4a(Decoder& d) {
  const bool a = is_signed(d.take_type()), b = is_signed(d.take_type());
  operands_abc(d, Type::kB32, 4);
  d.i.run =
      a ? (b ? dot_product4<int8_t, int8_t> : dot_product4<int8_t, uint8_t>)
        : (b ? dot_product4<uint8_t, int8_t> : dot_product4<uint8_t, uint8_t>);
}

}  // namespace

const DecodeTable& integer_instructions() {
  static const auto& table = *new DecodeTable{
      {"add", decode_add<Add, SaturatingAdd, false>},
      {"addc", decode_add<Add, SaturatingAdd, false>},
      {"sub", decode_add<Subtract, SaturatingSubtract, true>},
      {"subc", decode_add<Subtract, SaturatingSubtract, true>},
      {"mul", decode_mul},
      {"mad", decode_mad},
      {"madc", decode_mad},
      {"div", decode_binary<Divide>},
      {"rem", decode_binary<Remainder>},
      {"min", decode_binary<Minimum>},
      {"max", decode_binary<Maximum>},
      {"neg", decode_unary<Negate>},
      {"abs", decode_unary<Absolute>},
      {"sad", decode_sad},
      {"mul24", decode_mul24},
      {"mad24", decode_mul24},
      {"dp4a", decode_dp4a},
  };
  return table;
}

}  // namespace ipclab::ptx
