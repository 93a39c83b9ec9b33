// SPDX-License-Identifier: Apache-2.0
// cvt: conversions between integers, f16, bf16, f32 and f64, with rounding and
// saturation, and between pairs of 8-bit and of wider floats. This file is
// compiled with -frounding-math.
#include <cfenv>

#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

/// Describes a conversion. decode_cvt() packs these fields into i.list, and
/// convert_lanes() unpacks them.
struct Conversion {
  Type to, from;
  int rounding;   // index in kDirections
  bool integral;  // .rni … .rpi: to an integral value
  bool saturated, ftz, relu;
};

constexpr int kDirections[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD,
                               FE_UPWARD};

bool is_half(Type t) { return t == Type::kF16 || t == Type::kBf16; }
bool is_real(Type t) { return is_float(t) || is_half(t); }

double to_integral(double value, int rounding) {
  switch (rounding) {
    case 0:
      return std::nearbyint(value);
    case 1:
      return std::trunc(value);
    case 2:
      return std::floor(value);
    default:
      return std::ceil(value);
  }
}

/// Converts a value. Clamps it if it is out of range; NaN gives 0.
uint64_t real_to_integer(double value, Type to) {
  if (value != value) return 0;
  const int bits = static_cast<int>(type_bytes(to)) * 8;
  if (is_signed(to)) {
    const double limit = std::ldexp(1.0, bits - 1);
    const uint64_t top = (1ull << (bits - 1)) - 1;
    if (value >= limit) return top;
    if (value < -limit) return ~top;
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  }
  const double limit = std::ldexp(1.0, bits);
  if (value <= 0) return 0;
  if (value >= limit) return bits == 64 ? ~0ull : (1ull << bits) - 1;
  return static_cast<uint64_t>(value);
}

// Uses shifts, not a switch with casts: GCC 13.3 at -O3 compiled such a switch
// so that 8- and 16-bit values lost their sign.
uint64_t extend(uint64_t value, Type from) {
  const int unused = 64 - static_cast<int>(type_bytes(from)) * 8;
  const uint64_t top = value << unused;
  return is_signed(from)
             ? static_cast<uint64_t>(static_cast<int64_t>(top) >> unused)
             : top >> unused;
}

uint64_t clamp_integer(uint64_t value, Type from, Type to) {
  const int bits = static_cast<int>(type_bytes(to)) * 8;
  const bool negative = is_signed(from) && static_cast<int64_t>(value) < 0;
  if (is_signed(to)) {
    const uint64_t top = (1ull << (bits - 1)) - 1;
    if (negative)
      return static_cast<int64_t>(value) < static_cast<int64_t>(~top) ? ~top
                                                                      : value;
    return value > top ? top : value;
  }
  if (negative) return 0;
  const uint64_t top = bits == 64 ? ~0ull : (1ull << bits) - 1;
  return value > top ? top : value;
}

double read_real(uint64_t bits, Type type) {
  switch (type) {
    case Type::kF16:
      return half_to_float(static_cast<uint16_t>(bits));
    case Type::kBf16:
      return bfloat_to_float(static_cast<uint16_t>(bits));
    case Type::kF32:
      return bit_cast<float>(static_cast<uint32_t>(bits));
    default:
      return bit_cast<double>(bits);
  }
}

uint64_t write_real(double value, const Conversion& c) {
  switch (c.to) {
    case Type::kF16:
      return double_to_half(value, c.rounding == 1);
    case Type::kBf16:
      return double_to_bfloat(value, c.rounding == 1);
    case Type::kF32: {
      const float narrow = static_cast<float>(value);
      return bit_cast<uint32_t>(c.ftz ? flush(narrow) : narrow);
    }
    default:
      return bit_cast<uint64_t>(value);
  }
}

/// Converts one value; the rounding direction is already set.
uint64_t convert(uint64_t bits, const Conversion& c) {
  if (!is_real(c.from)) {
    const uint64_t value = extend(bits, c.from);
    if (!is_real(c.to))
      return c.saturated ? clamp_integer(value, c.from, c.to) : value;
    const bool negative = is_signed(c.from) && static_cast<int64_t>(value) < 0;
    if (c.to == Type::kF32)  // directly: no rounding on the way
      return bit_cast<uint32_t>(
          negative ? static_cast<float>(static_cast<int64_t>(value))
                   : static_cast<float>(value));
    const double wide = negative
                            ? static_cast<double>(static_cast<int64_t>(value))
                            : static_cast<double>(value);
    return write_real(wide, c);
  }
  double value = read_real(bits, c.from);
  if (c.ftz && c.from == Type::kF32) value = flush(static_cast<float>(value));
  if (!is_real(c.to))
    return real_to_integer(to_integral(value, c.rounding), c.to);
  if (c.integral) value = to_integral(value, c.rounding);
  if (c.saturated) value = saturate(value);
  if (c.relu && value < 0) value = 0;
  return write_real(value, c);
}

void convert_lanes(Warp& warp, const Instruction& i, uint32_t mask) {
  const Conversion c = {static_cast<Type>(i.list & 0xff),
                        static_cast<Type>(i.list >> 8 & 0xff),
                        static_cast<int>(i.list >> 16 & 3),
                        (i.list >> 18 & 1) != 0,
                        (i.list >> 19 & 1) != 0,
                        (i.list >> 20 & 1) != 0,
                        (i.list >> 21 & 1) != 0};
  const bool turn = c.rounding != 0 && is_float(c.to);
  if (turn) std::fesetround(kDirections[c.rounding]);
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    const uint64_t bits = lane_value(warp, i.a, i.address_bytes, l);
    set_lane_value(warp, i.d, i.register_bytes, l, convert(bits, c));
  }
  if (turn) std::fesetround(FE_TONEAREST);
}

/// cvt.rn.f16x2.f32 d, a, b: a goes to the upper half.
void convert_pair(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const float* a = lanes_of<float>(warp, i.a);
  const float* b = lanes_of<float>(warp, i.b);
  const bool zero = (i.mode & 1) != 0, relu = (i.mode & 2) != 0;
  const auto narrow = [&](float value) -> uint32_t {
    if (relu && value < 0) value = 0;
    return i.count == 1 ? double_to_half(value, zero)
                        : double_to_bfloat(value, zero);
  };
  each_lane(mask, [&](int l) { d[l] = narrow(a[l]) << 16 | narrow(b[l]); });
}

// Conversions that ordinary code uses often.
template <class To, class From>
void cast(Warp& warp, const Instruction& i, uint32_t mask) {
  To* d = lanes_of<To>(warp, i.d);
  const From* a = lanes_of<From>(warp, i.a);
  each_lane(mask, [=](int l) { d[l] = static_cast<To>(a[l]); });
}

Handler fast_cast(Type to, Type from) {
  const bool narrow = !is_real(to) && type_bytes(to) == 4;
  if (!is_real(from) && !is_real(to)) {
    if (narrow && type_bytes(from) == 8) return cast<uint32_t, uint64_t>;
    if (type_bytes(to) == 8 && type_bytes(from) == 4)
      return is_signed(from) ? cast<int64_t, int32_t>
                             : cast<uint64_t, uint32_t>;
    if (narrow && type_bytes(from) == 2)
      return is_signed(from) ? cast<int32_t, int16_t>
                             : cast<uint32_t, uint16_t>;
    if (type_bytes(to) == 2 && type_bytes(from) == 4)
      return cast<uint16_t, uint32_t>;
  }
  if (to == Type::kF32 && from == Type::kS32) return cast<float, int32_t>;
  if (to == Type::kF64 && from == Type::kS32) return cast<double, int32_t>;
  if (to == Type::kF64 && from == Type::kF32) return cast<double, float>;
  return nullptr;
}

void decode_pair(Decoder& d, Type to, int rounding, bool relu) {
  if (d.take_type() != Type::kF32 || rounding > 1) d.unsupported();
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, to);
  d.i.a = d.source(1, Type::kF32);
  d.i.b = d.source(2, Type::kF32);
  d.i.mode = static_cast<uint8_t>((rounding == 1 ? 1 : 0) | (relu ? 2 : 0));
  d.i.count = to == Type::kF16x2 ? 1 : 2;
  d.i.run = convert_pair;
}

/// i.mode: 0 e4m3, 1 e5m2, +2 .relu. The first of two sources goes to the upper
/// half.
const Fp8& fp8_of(const Instruction& i) {
  return (i.mode & 1) != 0 ? kE5m2 : kE4m3;
}

double relu(const Instruction& i, double value) {
  return (i.mode & 2) != 0 && value < 0 ? 0 : value;
}

/// cvt.rn.satfinite.e4m3x2.f32 d, a, b and .f16x2 d, a.
template <class Read>
void narrow_to_fp8(Warp& warp, const Instruction& i, uint32_t mask, Read read) {
  auto* d = lanes_of<uint16_t>(warp, i.d);
  each_lane(mask, [&](int l) {
    d[l] = static_cast<uint16_t>(
        double_to_fp8(relu(i, read(l, true)), fp8_of(i)) << 8 |
        double_to_fp8(relu(i, read(l, false)), fp8_of(i)));
  });
}

void narrow_floats(Warp& warp, const Instruction& i, uint32_t mask) {
  const float* upper = lanes_of<float>(warp, i.a);
  const float* lower = lanes_of<float>(warp, i.b);
  narrow_to_fp8(warp, i, mask, [=](int l, bool first) -> double {
    return first ? upper[l] : lower[l];
  });
}

void narrow_halves(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto* a = lanes_of<uint16_t>(warp, i.a);
  narrow_to_fp8(warp, i, mask, [=](int l, bool first) -> double {
    return half_to_float(a[2 * l + first]);
  });
}

/// cvt.rn.f16x2.e4m3x2 d, a.
void widen_fp8(Warp& warp, const Instruction& i, uint32_t mask) {
  auto* d = lanes_of<uint16_t>(warp, i.d);
  const auto* a = lanes_of<uint16_t>(warp, i.a);
  each_lane(mask, [&](int l) {
    const uint16_t both = a[l];
    for (int k = 0; k < 2; ++k) {
      const auto bits = static_cast<uint8_t>(both >> 8 * k);
      d[2 * l + k] = double_to_half(relu(i, fp8_to_double(bits, fp8_of(i))));
    }
  });
}

/// `fp8` is the index of the 8-bit format among the modifiers.
void decode_fp8(Decoder& d, int fp8, bool relu) {
  const bool narrows = d.take("satfinite");
  const Type wide = d.take_type();
  if (wide != Type::kF16x2 && (wide != Type::kF32 || !narrows)) d.unsupported();
  const size_t sources = wide == Type::kF32 ? 2 : 1;
  d.expect_operands(sources + 1, sources + 1);
  d.i.d = d.destination(0, narrows ? Type::kB16 : wide);
  d.i.a = d.source(1, narrows ? wide : Type::kB16);
  if (sources == 2) d.i.b = d.source(2, wide);
  d.i.mode = static_cast<uint8_t>(fp8 + (relu ? 2 : 0));
  d.i.run = !narrows ? widen_fp8 : sources == 2 ? narrow_floats : narrow_halves;
}

void decode_cvt(Decoder& d) {
  int rounding = d.take_one_of({"rn", "rz", "rm", "rp"});
  const int integral = d.take_one_of({"rni", "rzi", "rmi", "rpi"});
  const bool ftz = d.take("ftz"), sat = d.take("sat"), relu = d.take("relu");
  if (rounding < 0) rounding = std::max(integral, 0);
  if (const int fp8 = d.take_one_of({"e4m3x2", "e5m2x2"}); fp8 >= 0)
    return decode_fp8(d, fp8, relu);
  const Type to = d.take_type();
  if (to == Type::kF16x2 || to == Type::kBf16x2)
    return decode_pair(d, to, rounding, relu);
  const Type from = d.take_type();
  if (to == Type::kPred || from == Type::kPred || type_bytes(to) > 8 ||
      from == Type::kF16x2 || from == Type::kBf16x2)
    d.unsupported();
  if (is_half(to) && (rounding > 1 || (!is_real(from) && rounding != 0)))
    d.unsupported();
  d.expect_operands(2, 2);
  uint32_t to_bytes, from_bytes;
  d.i.d = d.destination(d.operand(0), to, &to_bytes);
  d.i.a = d.source(d.operand(1), from, &from_bytes);
  d.i.register_bytes = static_cast<uint8_t>(to_bytes);
  d.i.address_bytes = static_cast<uint8_t>(from_bytes);
  d.i.list = static_cast<uint32_t>(to) | static_cast<uint32_t>(from) << 8 |
             static_cast<uint32_t>(rounding) << 16 |
             static_cast<uint32_t>(integral >= 0) << 18 |
             static_cast<uint32_t>(sat) << 19 |
             static_cast<uint32_t>(ftz) << 20 |
             static_cast<uint32_t>(relu) << 21;
  d.i.run = convert_lanes;
  const bool exact_width =
      to_bytes == type_bytes(to) && from_bytes == type_bytes(from);
  if (exact_width && rounding == 0 && integral < 0 && !ftz && !sat && !relu)
    if (const Handler fast = fast_cast(to, from)) d.i.run = fast;
}

}  // namespace

const DecodeTable& convert_instructions() {
  static const auto& table = *new DecodeTable{{"cvt", decode_cvt}};
  return table;
}

}  // namespace ipclab::ptx
