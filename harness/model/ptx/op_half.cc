// SPDX-License-Identifier: Apache-2.0
// Arithmetic on f16, f16x2, bf16 and bf16x2. Results are computed in double and
// rounded once.
#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

struct Half {
  static double read(uint16_t bits) { return half_to_float(bits); }
  static uint16_t write(double value) { return double_to_half(value); }
};
struct Bfloat {
  static double read(uint16_t bits) { return bfloat_to_float(bits); }
  static uint16_t write(double value) { return double_to_bfloat(value); }
};

enum Operation : uint8_t {
  kAdd,
  kSub,
  kMul,
  kFma,
  kMin,
  kMax,
  kMinNan,
  kMaxNan,
  kNeg,
  kAbs,
  kEx2,
  kTanh
};

double compute(Operation operation, double a, double b, double c) {
  switch (operation) {
    case kAdd:
      return a + b;
    case kSub:
      return a - b;
    case kMul:
      return a * b;
    case kFma:
      return std::fma(a, b, c);
    case kMin:
      return Minimum::of(a, b);
    case kMax:
      return Maximum::of(a, b);
    case kMinNan:
      return a != a || b != b ? NAN : Minimum::of(a, b);
    case kMaxNan:
      return a != a || b != b ? NAN : Maximum::of(a, b);
    case kEx2:
      return std::exp2(a);
    case kTanh:
      return std::tanh(a);
    default:
      return a;
  }
}

enum : uint8_t { kSaturate = 1, kRelu = 2 };

/// i.mode is the operation, i.count is the number of values in a register, and
/// i.list says how the result is changed.
template <class Format>
void arithmetic(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto operation = static_cast<Operation>(i.mode);
  const auto* a = lanes_of<uint16_t>(warp, i.a);
  const auto* b = i.b != kNone ? lanes_of<uint16_t>(warp, i.b) : a;
  const auto* c = i.c != kNone ? lanes_of<uint16_t>(warp, i.c) : a;
  auto* d = lanes_of<uint16_t>(warp, i.d);
  each_lane(mask, [&](int l) {
    for (int k = l * i.count; k < (l + 1) * i.count; ++k) {
      if (operation == kNeg) {
        d[k] = a[k] ^ 0x8000;
      } else if (operation == kAbs) {
        d[k] = a[k] & 0x7fff;
      } else {
        double r = compute(operation, Format::read(a[k]), Format::read(b[k]),
                           Format::read(c[k]));
        if ((i.list & kSaturate) != 0) r = saturate(r);
        if ((i.list & kRelu) != 0 && !(r != r)) r = r > 0 ? r : 0;
        d[k] = Format::write(r);
      }
    }
  });
}

template <Operation kOperation, int kOperands>
void decode(Decoder& d) {
  d.ignore({"rn", "approx", "ftz"});
  if (d.take("sat")) d.i.list |= kSaturate;
  if (d.take("relu")) d.i.list |= kRelu;
  Operation operation = kOperation;
  if ((operation == kMin || operation == kMax) && d.take("NaN"))
    operation = operation == kMin ? kMinNan : kMaxNan;
  const Type type = d.take_type();
  d.expect_operands(kOperands + 1, kOperands + 1);
  d.i.d = d.destination(0, type);
  d.i.a = d.source(1, type);
  if (kOperands > 1) d.i.b = d.source(2, type);
  if (kOperands > 2) d.i.c = d.source(3, type);
  d.i.mode = operation;
  d.i.count = type == Type::kF16x2 || type == Type::kBf16x2 ? 2 : 1;
  const bool bfloat = type == Type::kBf16 || type == Type::kBf16x2;
  d.i.run = bfloat ? arithmetic<Bfloat> : arithmetic<Half>;
}

enum Relation : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kNum, kNan };

bool holds(int relation, bool unordered, double a, double b) {
  if (relation == kNum) return a == a && b == b;
  if (relation == kNan) return a != a || b != b;
  if (a != a || b != b) return unordered;
  switch (relation) {
    case kEq:
      return a == b;
    case kNe:
      return a != b;
    case kLt:
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    default:
      return a >= b;
  }
}

/// i.mode: the relation, + 16 if NaN makes the relation true; i.list: 0 and, 1
/// or, 2 xor with i.e, 3 none of them; d and c are the two predicates (for x2:
/// one for each half).
template <class Format>
void compare(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto* a = lanes_of<uint16_t>(warp, i.a);
  const auto* b = lanes_of<uint16_t>(warp, i.b);
  uint32_t result[2] = {0, 0};
  each_lane(mask, [&](int l) {
    for (int k = 0; k < i.count; ++k) {
      const int at = l * i.count + k;
      const bool is = holds(i.mode & 15, (i.mode & 16) != 0,
                            Format::read(a[at]), Format::read(b[at]));
      result[k] |= static_cast<uint32_t>(is) << l;
    }
  });
  if (i.count == 1) result[1] = ~result[0];
  const uint32_t e = i.e != kNone ? predicate(warp, i.e) : 0;
  for (uint32_t& bits : result)
    bits = i.list == 0   ? bits & e
           : i.list == 1 ? bits | e
           : i.list == 2 ? bits ^ e
                         : bits;
  set_predicate(warp, i.d, mask, result[0]);
  if (i.c != kNone) set_predicate(warp, i.c, mask, result[1]);
}

/// set: true is 1.0 in the format of the destination, which is that of the
/// sources.
template <class Format>
void set_values(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto* a = lanes_of<uint16_t>(warp, i.a);
  const auto* b = lanes_of<uint16_t>(warp, i.b);
  auto* d = lanes_of<uint16_t>(warp, i.d);
  each_lane(mask, [&](int l) {
    for (int k = l * i.count; k < (l + 1) * i.count; ++k) {
      const bool is = holds(i.mode & 15, (i.mode & 16) != 0, Format::read(a[k]),
                            Format::read(b[k]));
      d[k] = Format::write(is ? 1 : 0);
    }
  });
}

/// Takes the relation into i.mode.
void take_relation(Decoder& d) {
  static const std::initializer_list<const char*> kNames = {
      "eq",  "ne",  "lt",  "le",  "gt",  "ge",  "num",
      "nan", "equ", "neu", "ltu", "leu", "gtu", "geu"};
  const int relation = d.take_one_of(kNames);
  if (relation < 0) d.unsupported();
  d.i.mode = static_cast<uint8_t>(relation >= 8 ? relation - 8 + 16 : relation);
  d.ignore({"ftz"});
}

void decode_set(Decoder& d) {
  take_relation(d);
  const Type result = d.take_type();
  if (d.take_type() != result) d.unsupported();
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, result);
  d.i.a = d.source(1, result);
  d.i.b = d.source(2, result);
  d.i.count = result == Type::kF16x2 || result == Type::kBf16x2 ? 2 : 1;
  const bool bfloat = result == Type::kBf16 || result == Type::kBf16x2;
  d.i.run = bfloat ? set_values<Bfloat> : set_values<Half>;
}

void decode_setp(Decoder& d) {
  take_relation(d);
  const int combine = d.take_one_of({"and", "or", "xor"});
  const Type type = d.take_type();
  d.expect_operands(combine < 0 ? 3 : 4, combine < 0 ? 3 : 4);
  d.i.list = static_cast<uint32_t>(combine < 0 ? 3 : combine);
  d.i.d = d.destination(0, Type::kPred);
  if (!d.operand(0).elements.empty())
    d.i.c = d.destination(d.operand(0).elements[0], Type::kPred);
  d.i.a = d.source(1, type);
  d.i.b = d.source(2, type);
  if (combine >= 0) d.i.e = d.source(3, Type::kPred);
  d.i.count = type == Type::kF16x2 || type == Type::kBf16x2 ? 2 : 1;
  const bool bfloat = type == Type::kBf16 || type == Type::kBf16x2;
  d.i.run = bfloat ? compare<Bfloat> : compare<Half>;
}

}  // namespace

const DecodeTable& half_instructions() {
  static const auto& table = *new DecodeTable{
      {"add", decode<kAdd, 2>}, {"sub", decode<kSub, 2>},
      {"mul", decode<kMul, 2>}, {"fma", decode<kFma, 3>},
      {"min", decode<kMin, 2>}, {"max", decode<kMax, 2>},
      {"neg", decode<kNeg, 1>}, {"abs", decode<kAbs, 1>},
      {"ex2", decode<kEx2, 1>}, {"tanh", decode<kTanh, 1>},
      {"set", decode_set},      {"setp", decode_setp},
  };
  return table;
}

}  // namespace ipclab::ptx
