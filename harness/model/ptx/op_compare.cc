// SPDX-License-Identifier: Apache-2.0
// Comparison and selection: setp, set, selp, slct.
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

// Ordered comparisons are false for NaN, the …u ones true.
struct Equal {
  template <class T>
  static bool of(T a, T b) {
    return a == b;
  }
};
struct NotEqual {
  template <class T>
  static bool of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a < b || a > b;
    else
      return a != b;
  }
};
struct Less {
  template <class T>
  static bool of(T a, T b) {
    return a < b;
  }
};
struct LessEqual {
  template <class T>
  static bool of(T a, T b) {
    return a <= b;
  }
};
struct Greater {
  template <class T>
  static bool of(T a, T b) {
    return a > b;
  }
};
struct GreaterEqual {
  template <class T>
  static bool of(T a, T b) {
    return a >= b;
  }
};
struct EqualOrNan {
  template <class T>
  static bool of(T a, T b) {
    return !(a < b || a > b);
  }
};
struct NotEqualOrNan {
  template <class T>
  static bool of(T a, T b) {
    return !(a == b);
  }
};
struct LessOrNan {
  template <class T>
  static bool of(T a, T b) {
    return !(a >= b);
  }
};
struct LessEqualOrNan {
  template <class T>
  static bool of(T a, T b) {
    return !(a > b);
  }
};
struct GreaterOrNan {
  template <class T>
  static bool of(T a, T b) {
    return !(a <= b);
  }
};
struct GreaterEqualOrNan {
  template <class T>
  static bool of(T a, T b) {
    return !(a < b);
  }
};
struct Numbers {
  template <class T>
  static bool of(T a, T b) {
    return a == a && b == b;
  }
};
struct Nans {
  template <class T>
  static bool of(T a, T b) {
    return a != a || b != b;
  }
};
template <class Op>
struct Flushed {
  static bool of(float a, float b) { return Op::of(flush(a), flush(b)); }
};

/// The lowest bit of each of 32 bytes that are 0 or 0xff.
inline uint32_t gather(const uint8_t* bytes) {
#ifdef __SSE2__
  const auto* words = reinterpret_cast<const __m128i*>(bytes);
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_load_si128(words))) |
         static_cast<uint32_t>(_mm_movemask_epi8(_mm_load_si128(words + 1)))
             << 16;
#else
  uint32_t bits = 0;
  for (int k = 0; k < kLanes; ++k) bits |= (bytes[k] & 1u) << k;
  return bits;
#endif
}

template <class Op, class T>
uint32_t comparison(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  if (mask == kAllLanes) {
    alignas(16) uint8_t bytes[kLanes];
    for (int l = 0; l < kLanes; ++l) bytes[l] = Op::of(a[l], b[l]) ? 0xff : 0;
    return gather(bytes);
  }
  uint32_t bits = 0;
  each_lane(mask, [&](int l) {
    bits |= static_cast<uint32_t>(Op::of(a[l], b[l])) << l;
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
    {"eq", for_type<Equal>},          {"ne", for_type<NotEqual>},
    {"lt", for_type<Less>},           {"le", for_type<LessEqual>},
    {"gt", for_type<Greater>},        {"ge", for_type<GreaterEqual>},
    {"lo", for_type<Less>},           {"ls", for_type<LessEqual>},
    {"hi", for_type<Greater>},        {"hs", for_type<GreaterEqual>},
    {"equ", for_float<EqualOrNan>},   {"neu", for_float<NotEqualOrNan>},
    {"ltu", for_float<LessOrNan>},    {"leu", for_float<LessEqualOrNan>},
    {"gtu", for_float<GreaterOrNan>}, {"geu", for_float<GreaterEqualOrNan>},
    {"num", for_float<Numbers>},      {"nan", for_float<Nans>},
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
  static const DecodeTable table = {{"setp", decode_setp},
                                    {"set", decode_setp},
                                    {"selp", decode_selp},
                                    {"slct", decode_slct}};
  return table;
}

}  // namespace ipclab::ptx
