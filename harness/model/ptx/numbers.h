// SPDX-License-Identifier: Apache-2.0
// Arithmetic on single values with the semantics of PTX and without undefined
// behaviour of C++.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace ipclab::ptx {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// Wrapping integer arithmetic. 16-bit operands are widened by hand, because
/// C++ would promote them to int, which can overflow.
template <class T>
using Wide = std::conditional_t<(sizeof(T) < 4), uint32_t, Unsigned<T>>;

struct Add {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a + b;
    else
      return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
  }
};
struct Subtract {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a - b;
    else
      return static_cast<T>(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(b));
  }
};
struct Multiply {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a * b;
    else
      return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};

/// In PTX +0 is greater than -0. If one operand is a NaN, the result is the
/// other operand.
struct Minimum {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return b;
      if (b != b) return a;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return b < a ? b : a;
  }
};
struct Maximum {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return b;
      if (b != b) return a;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
  }
};

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 31)
    return bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline float bfloat_to_float(uint16_t bits) {
  return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Rounds to a format with `mantissa` explicit bits, in which `least` is the
/// least exponent of normal numbers. Rounds to nearest even unless
/// `toward_zero`.
inline double round_to(double value, int mantissa, int least,
                       bool toward_zero) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - 1, least) - mantissa;
  const double scaled = std::ldexp(value, -unit);
  return std::ldexp(toward_zero ? std::trunc(scaled) : std::nearbyint(scaled),
                    unit);
}

inline uint16_t double_to_half(double value, bool toward_zero = false) {
  if (value != value) return 0x7fff;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double r = std::fabs(round_to(value, 10, -14, toward_zero));
  if (r >= 65536.0) {
    const bool finite = toward_zero && std::isfinite(value);
    return static_cast<uint16_t>(sign | (finite ? 0x7bff : 0x7c00));
  }
  if (r < 0x1p-14) return static_cast<uint16_t>(sign | int(r * 0x1p24));
  const uint32_t bits = bit_cast<uint32_t>(static_cast<float>(r));
  return static_cast<uint16_t>(sign | ((bits >> 23) - 112) << 10 |
                               (bits >> 13 & 0x3ff));
}

inline uint16_t double_to_bfloat(double value, bool toward_zero = false) {
  if (value != value) return 0x7fff;
  const double r = round_to(value, 7, -126, toward_zero);
  if (std::fabs(r) > 3.3895313892515355e38 && std::isfinite(value)) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    return static_cast<uint16_t>(sign | (toward_zero ? 0x7f7f : 0x7f80));
  }
  return static_cast<uint16_t>(bit_cast<uint32_t>(static_cast<float>(r)) >> 16);
}

/// An 8-bit format: E4M3 has no infinity and one NaN, E5M2 is like f16.
struct Fp8 {
  int mantissa, least;  // explicit bits; the least exponent of normal numbers
  double most;
};
constexpr Fp8 kE4m3 = {3, -6, 448.0}, kE5m2 = {2, -14, 57344.0};

inline double fp8_to_double(uint8_t bits, const Fp8& format) {
  const int exponent = (bits & 0x7f) >> format.mantissa;
  const int rest = bits & ((1 << format.mantissa) - 1);
  const double value =
      std::ldexp(exponent == 0 ? rest : rest + (1 << format.mantissa),
                 std::max(exponent, 1) - 1 + format.least - format.mantissa);
  const double result = value <= format.most                ? value
                        : rest == 0 && format.mantissa == 2 ? INFINITY
                                                            : NAN;
  return (bits & 0x80) != 0 ? -result : result;
}

/// Rounds to nearest even; .satfinite.
inline uint8_t double_to_fp8(double value, const Fp8& format) {
  if (value != value) return 0x7f;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const double r =
      std::min(std::fabs(round_to(value, format.mantissa, format.least, false)),
               format.most);
  const int exponent =
      r < std::ldexp(1.0, format.least) ? format.least - 1 : std::ilogb(r);
  const int unit = std::max(exponent, format.least) - format.mantissa;
  const int steps = static_cast<int>(std::ldexp(r, -unit));
  // The implicit bit of a normal number raises the exponent field by one.
  const int field = std::max(exponent - format.least, 0);
  return static_cast<uint8_t>(sign | ((field << format.mantissa) + steps));
}

/// Replaces a subnormal number by a zero of the same sign.
inline float flush(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min()
             ? std::copysign(0.0f, value)
             : value;
}

/// Clamps to [0, 1]; NaN becomes 0.
template <class T>
T saturate(T value) {
  return !(value > 0) ? T(0) : value > 1 ? T(1) : value;
}

}  // namespace ipclab::ptx
