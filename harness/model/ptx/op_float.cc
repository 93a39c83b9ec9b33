// SPDX-License-Identifier: Apache-2.0
// Arithmetic on f32 and f64. Results that PTX calls approximate are as exact as
// the host's C library. This file is compiled with -frounding-math.
#include <cfenv>

#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

struct Divide {
  template <class T>
  static T of(T a, T b) {
    return a / b;
  }
};
struct Fma {
  template <class T>
  static T of(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
struct Negate {
  template <class T>
  static T of(T a) {
    return -a;
  }
};
struct Absolute {
  template <class T>
  static T of(T a) {
    return std::fabs(a);
  }
};
struct SquareRoot {
  template <class T>
  static T of(T a) {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <class T>
  static T of(T a) {
    return 1 / a;
  }
};
struct ReciprocalRoot {
  template <class T>
  static T of(T a) {
    return static_cast<T>(1 / std::sqrt(static_cast<double>(a)));
  }
};
struct Exponential {
  static float of(float a) { return std::exp2(a); }
};
struct Logarithm {
  static float of(float a) { return std::log2(a); }
};
struct Sine {
  static float of(float a) { return std::sin(a); }
};
struct Cosine {
  static float of(float a) { return std::cos(a); }
};
struct HyperbolicTangent {
  static float of(float a) { return std::tanh(a); }
};
/// d = b with the sign of a.
struct CopySign {
  template <class T>
  static T of(T a, T b) {
    return std::copysign(b, a);
  }
};
struct NanMinimum {
  template <class T>
  static T of(T a, T b) {
    if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
    return Minimum::of(a, b);
  }
};
struct NanMaximum {
  template <class T>
  static T of(T a, T b) {
    if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
    return Maximum::of(a, b);
  }
};

template <class Op>
struct Saturated {
  template <class... T>
  static auto of(T... values) {
    return saturate(Op::of(values...));
  }
};
/// .ftz: subnormal operands and results become zero (f32 only).
template <class Op>
struct Flushed {
  template <class... T>
  static float of(T... values) {
    return flush(Op::of(flush(values)...));
  }
};

/// Runs another handler with the rounding direction in i.mode.
template <Handler kHandler>
void rounded(Warp& warp, const Instruction& i, uint32_t mask) {
  static constexpr int kDirections[] = {FE_TONEAREST, FE_TOWARDZERO,
                                        FE_DOWNWARD, FE_UPWARD};
  std::fesetround(kDirections[i.mode]);
  kHandler(warp, i, mask);
  std::fesetround(FE_TONEAREST);
}

template <class Op, class T, int kOperands>
constexpr Handler shape() {
  if constexpr (kOperands == 1)
    return unary<Op, T>;
  else if constexpr (kOperands == 2)
    return binary<Op, T>;
  else
    return ternary<Op, T>;
}

/// The variants of an instruction. The decoder takes only their modifiers.
enum Variant {
  kPlain = 0,
  kRounds = 1,
  kFlushes = 2,
  kSaturates = 4,
  kDouble = 8
};

template <class Op, int kOperands, int kVariants>
Handler variant(Type type, int rounding, bool ftz, bool sat) {
  if (type == Type::kF64) {
    if constexpr ((kVariants & kDouble) != 0) {
      if (ftz || sat) return nullptr;
      constexpr Handler plain = shape<Op, double, kOperands>();
      return rounding != 0 ? rounded<plain> : plain;
    } else {
      return nullptr;
    }
  }
  if (type != Type::kF32) return nullptr;
  constexpr Handler plain = shape<Op, float, kOperands>();
  constexpr Handler flushed = shape<Flushed<Op>, float, kOperands>();
  if constexpr ((kVariants & kSaturates) != 0) {
    constexpr Handler saturated = shape<Saturated<Op>, float, kOperands>();
    constexpr Handler both = shape<Saturated<Flushed<Op>>, float, kOperands>();
    if (sat && rounding != 0) return ftz ? rounded<both> : rounded<saturated>;
    if (sat) return ftz ? both : saturated;
  }
  if constexpr ((kVariants & kRounds) != 0) {
    if (rounding != 0) return ftz ? rounded<flushed> : rounded<plain>;
  }
  return ftz ? flushed : plain;
}

template <class Op, int kOperands, int kVariants>
void decode_float(Decoder& d) {
  d.ignore({"approx", "full"});
  int rounding = 0;
  bool ftz = false, sat = false;
  if ((kVariants & kRounds) != 0)
    rounding = std::max(d.take_one_of({"rn", "rz", "rm", "rp"}), 0);
  if ((kVariants & kFlushes) != 0) ftz = d.take("ftz");
  if ((kVariants & kSaturates) != 0) sat = d.take("sat");
  const Type type = d.take_type();
  d.expect_operands(kOperands + 1, kOperands + 1);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  if (kOperands > 1) d.i.b = d.source(2, type);
  if (kOperands > 2) d.i.c = d.source(3, type);
  d.i.mode = static_cast<uint8_t>(rounding);
  // rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 are separate instructions.
  if (type == Type::kF64 && kOperands == 1) ftz = false;
  d.i.run = variant<Op, kOperands, kVariants>(type, rounding, ftz, sat);
}

template <class Op, class NanOp>
void decode_extreme(Decoder& d) {
  if (d.take("NaN"))
    decode_float<NanOp, 2, kFlushes | kDouble>(d);
  else
    decode_float<Op, 2, kFlushes | kDouble>(d);
}

enum Test { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

template <class T>
void test_property(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = lanes_of<T>(warp, i.a);
  uint32_t bits = 0;
  each_lane(mask, [&](int l) {
    bool is = false;
    switch (i.mode) {
      case kFinite:
        is = std::isfinite(a[l]);
        break;
      case kInfinite:
        is = std::isinf(a[l]);
        break;
      case kNumber:
        is = a[l] == a[l];
        break;
      case kNotANumber:
        is = a[l] != a[l];
        break;
      case kNormal:
        is = std::fpclassify(a[l]) == FP_NORMAL;
        break;
      default:
        is = std::fpclassify(a[l]) == FP_SUBNORMAL;
        break;
    }
    bits |= static_cast<uint32_t>(is) << l;
  });
  set_predicate(warp, i.d, mask, bits);
}

void decode_testp(Decoder& d) {
  const int test = d.take_one_of(
      {"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  if (test < 0) d.unsupported();
  const Type type = d.take_type();
  d.i.d = d.destination(0, Type::kPred);
  d.i.a = d.source(1, type);
  d.i.mode = static_cast<uint8_t>(test);
  d.i.run = pick(Floats{}, type,
                 [](auto x) -> Handler { return test_property<decltype(x)>; });
}

constexpr int kAll = kRounds | kFlushes | kSaturates | kDouble;

}  // namespace

const DecodeTable& float_instructions() {
  static const auto& table = *new DecodeTable{
      {"add", decode_float<Add, 2, kAll>},
      {"sub", decode_float<Subtract, 2, kAll>},
      {"mul", decode_float<Multiply, 2, kAll>},
      {"fma", decode_float<Fma, 3, kAll>},
      {"mad", decode_float<Fma, 3, kAll>},
      {"div", decode_float<Divide, 2, kRounds | kFlushes | kDouble>},
      {"rcp", decode_float<Reciprocal, 1, kRounds | kFlushes | kDouble>},
      {"sqrt", decode_float<SquareRoot, 1, kRounds | kFlushes | kDouble>},
      {"rsqrt", decode_float<ReciprocalRoot, 1, kFlushes | kDouble>},
      {"min", decode_extreme<Minimum, NanMinimum>},
      {"max", decode_extreme<Maximum, NanMaximum>},
      {"neg", decode_float<Negate, 1, kFlushes | kDouble>},
      {"abs", decode_float<Absolute, 1, kFlushes | kDouble>},
      {"ex2", decode_float<Exponential, 1, kFlushes>},
      {"lg2", decode_float<Logarithm, 1, kFlushes>},
      {"sin", decode_float<Sine, 1, kFlushes>},
      {"cos", decode_float<Cosine, 1, kFlushes>},
      {"tanh", decode_float<HyperbolicTangent, 1, kPlain>},
      {"copysign", decode_float<CopySign, 2, kDouble>},
      {"testp", decode_testp},
  };
  return table;
}

}  // namespace ipclab::ptx
