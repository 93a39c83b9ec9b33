// SPDX-License-Identifier: Apache-2.0
// Comparison and selection: setp, set, selp, slct.
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

// With a NaN, ordered comparisons are false, and unordered comparisons (…u) are
// true. T is a value or a vector of values.
struct Equal {
  template <class T>
  static auto of(T a, T b) {
    return a == b;
  }
};
struct NotEqual {
  template <class T>
  static auto of(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return a != b;
    else
      return (a < b) | (a > b);
  }
};
struct Less {
  template <class T>
  static auto of(T a, T b) {
    return a < b;
  }
};
struct LessEqual {
  template <class T>
  static auto of(T a, T b) {
    return a <= b;
  }
};
struct Greater {
  template <class T>
  static auto of(T a, T b) {
    return a > b;
  }
};
struct GreaterEqual {
  template <class T>
  static auto of(T a, T b) {
    return a >= b;
  }
};
struct Numbers {
  template <class T>
  static auto of(T a, T b) {
    return (a == a) & (b == b);
  }
};
template <class Op>
struct Not {
  template <class T>
  static auto of(T a, T b) {
    return !Op::of(a, b);
  }
};
/// .ftz, for single values only.
template <class Op>
struct Flushed {
  static bool of(float a, float b) { return Op::of(flush(a), flush(b)); }
};

template <class Op>
constexpr bool takes_vectors = true;
template <class Op>
constexpr bool takes_vectors<Flushed<Op>> = false;

#ifdef __AVX2__
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

/// The sign bits of a vector's 4 or 8 byte elements.
template <class V>
uint32_t signs(V vector, size_t element) {
#if defined __AVX2__
  return static_cast<uint32_t>(
      element == 8 ? _mm256_movemask_pd(reinterpret_cast<__m256d>(vector))
                   : _mm256_movemask_ps(reinterpret_cast<__m256>(vector)));
#elif defined __SSE2__
  return static_cast<uint32_t>(
      element == 8 ? _mm_movemask_pd(reinterpret_cast<__m128d>(vector))
                   : _mm_movemask_ps(reinterpret_cast<__m128>(vector)));
#else
  uint32_t bits = 0;
  for (size_t k = 0; k < kVectorBytes / element; ++k)
    bits |= static_cast<uint32_t>(vector[k] != 0) << k;
  return bits;
#endif
}

/// Compares all 32 lanes; T has 4 or 8 bytes.
template <class Op, class T>
uint32_t comparison_of_all(const T* a, const T* b) {
  using Vector [[gnu::vector_size(kVectorBytes)]] = T;
  constexpr int kStep = kVectorBytes / sizeof(T);
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; l += kStep) {
    const auto& x = *reinterpret_cast<const Vector*>(a + l);
    const auto& y = *reinterpret_cast<const Vector*>(b + l);
    bits |= signs(Op::template of<Vector>(x, y), sizeof(T)) << l;
  }
  return bits;
}

template <class Op, class T>
[[gnu::always_inline]] inline uint32_t comparison(Warp& warp,
                                                  const Instruction& i,
                                                  uint32_t mask) {
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  if constexpr (sizeof(T) >= 4 && takes_vectors<Op>) {
    if (mask == kAllLanes) return comparison_of_all<Op, T>(a, b);
  }
  uint32_t bits = 0;
  each_lane(mask, [&](int l) {
    bits |= static_cast<uint32_t>(Op::of(a[l], b[l]) != 0) << l;
  });
  return bits;
}

enum Combine : uint8_t { kAnd, kOr, kXor, kAlone };

uint32_t combined(uint8_t how, uint32_t bits, uint32_t with) {
  switch (how) {
    case kAnd:
      return bits & with;
    case kOr:
      return bits | with;
    case kXor:
      return bits ^ with;
    default:
      return bits;
  }
}

template <class Op, class T>
void set_predicates(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t bits = comparison<Op, T>(warp, i, mask);
  if (i.mode == kAlone && i.c == kNone)
    return set_predicate(warp, i.d, mask, bits);
  const uint32_t with = i.e != kNone ? predicate(warp, i.e) : 0;
  set_predicate(warp, i.d, mask, combined(i.mode, bits, with));
  if (i.c != kNone)
    set_predicate(warp, i.c, mask, combined(i.mode, ~bits, with));
}

/// set: true is all ones, or 1.0 if the destination is f32 (i.count == 2).
template <class Op, class T>
void set_values(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t bits = comparison<Op, T>(warp, i, mask);
  if (i.e != kNone) bits = combined(i.mode, bits, predicate(warp, i.e));
  const uint32_t yes = i.count == 2 ? bit_cast<uint32_t>(1.0f) : ~0u;
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  each_lane(mask, [=](int l) { d[l] = (bits >> l & 1) != 0 ? yes : 0; });
}

template <class Op>
Handler for_type(Type type, bool values, bool ftz) {
  if (ftz)
    return type != Type::kF32 ? nullptr
           : values           ? set_values<Flushed<Op>, float>
                              : set_predicates<Flushed<Op>, float>;
  const auto make = [values](auto x) -> Handler {
    return values ? set_values<Op, decltype(x)>
                  : set_predicates<Op, decltype(x)>;
  };
  const Handler handler = pick(Integers{}, type, make);
  return handler != nullptr ? handler : pick(Floats{}, type, make);
}

template <class Op>
Handler for_float(Type type, bool values, bool ftz) {
  return is_float(type) ? for_type<Op>(type, values, ftz) : nullptr;
}

using Chooser = Handler (*)(Type, bool, bool);
struct Relation {
  const char* name;
  Chooser choose;
};
constexpr Relation kRelations[] = {
    {"eq", for_type<Equal>},
    {"ne", for_type<NotEqual>},
    {"lt", for_type<Less>},
    {"le", for_type<LessEqual>},
    {"gt", for_type<Greater>},
    {"ge", for_type<GreaterEqual>},
    {"lo", for_type<Less>},
    {"ls", for_type<LessEqual>},
    {"hi", for_type<Greater>},
    {"hs", for_type<GreaterEqual>},
    {"equ", for_float<Not<NotEqual>>},
    {"neu", for_float<Not<Equal>>},
    {"ltu", for_float<Not<GreaterEqual>>},
    {"leu", for_float<Not<Greater>>},
    {"gtu", for_float<Not<LessEqual>>},
    {"geu", for_float<Not<Less>>},
    {"num", for_float<Numbers>},
    {"nan", for_float<Not<Numbers>>},
};

Chooser take_relation(Decoder& d) {
  for (const Relation& relation : kRelations)
    if (d.take(relation.name)) return relation.choose;
  d.unsupported();
}

void decode_setp(Decoder& d) {
  const bool values = d.name() == "set";
  const Chooser choose = take_relation(d);
  const int combine = d.take_one_of({"and", "or", "xor"});
  const bool ftz = d.take("ftz");
  const Type result = values ? d.take_type() : Type::kPred;
  const Type type = d.take_type();
  d.expect_operands(combine < 0 ? 3 : 4, combine < 0 ? 3 : 4);
  if (values && type_bytes(result) != 4) d.unsupported();
  d.i.d = d.destination(0, result);
  if (result == Type::kF32) d.i.count = 2;
  if (!d.operand(0).elements.empty())
    d.i.c = d.destination(d.operand(0).elements[0], Type::kPred);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  if (combine >= 0) d.i.e = d.source(3, Type::kPred);
  d.i.mode = static_cast<uint8_t>(combine < 0 ? kAlone : combine);
  d.i.run = choose(type, values, ftz);
}

template <class T>
void select(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  const uint32_t bits = predicate(warp, i.c);
  each_lane(mask, [=](int l) { d[l] = (bits >> l & 1) != 0 ? a[l] : b[l]; });
}

void decode_selp(Decoder& d) {
  const Type type = d.take_type();
  d.expect_operands(4, 4);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  d.i.c = d.source(3, Type::kPred);
  d.i.run = pick(Bits{}, bits_of(type),
                 [](auto x) -> Handler { return select<decltype(x)>; });
}

template <class T, class S>
void select_by_sign(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  const S* c = lanes_of<S>(warp, i.c);
  each_lane(mask, [=](int l) { d[l] = c[l] >= 0 ? a[l] : b[l]; });
}

void decode_slct(Decoder& d) {
  const Type type = d.take_type(), by = d.take_type();
  d.expect_operands(4, 4);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  d.i.c = d.source(3, by);
  if (by != Type::kS32 && by != Type::kF32) d.unsupported();
  d.i.run = pick(Bits{}, bits_of(type), [by](auto x) -> Handler {
    using T = decltype(x);
    return by == Type::kS32 ? select_by_sign<T, int32_t>
                            : select_by_sign<T, float>;
  });
}

}  // namespace

const DecodeTable& compare_instructions() {
  static const auto& table = *new DecodeTable{{"setp", decode_setp},
                                              {"set", decode_setp},
                                              {"selp", decode_selp},
                                              {"slct", decode_slct}};
  return table;
}

}  // namespace ipclab::ptx
