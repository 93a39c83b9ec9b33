// SPDX-License-Identifier: Apache-2.0
// Integers that share a register: add, sub, min, max of two 16-bit values, dot
// products of two 16-bit and two 8-bit values, and the SIMD video instructions
// on two or four values.
#include "decode.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

template <class Op>
struct NotNegative {
  template <class T>
  static T of(T a, T b) {
    return std::max<T>(Op::of(a, b), 0);
  }
};

/// Applies Op to both halves, which have the type T.
template <class Op, class T>
struct Halves {
  static uint32_t of(uint32_t a, uint32_t b) {
    const auto half = [=](int shift) {
      return uint32_t{static_cast<uint16_t>(Op::of(static_cast<T>(a >> shift),
                                                   static_cast<T>(b >> shift)))}
             << shift;
    };
    return half(0) | half(16);
  }
};

template <class Op>
void decode_halves(Decoder& d) {
  const bool not_negative = d.take("relu");
  const bool has_sign = d.take_type() == Type::kS16x2;
  d.expect_operands(3, 3);
  d.i.d = d.destination(0, Type::kB32);
  d.i.a = d.source(1, Type::kB32);
  d.i.b = d.source(2, Type::kB32);
  if (not_negative && !has_sign) d.unsupported();
  d.i.run = not_negative ? binary<Halves<NotNegative<Op>, int16_t>, uint32_t>
            : has_sign   ? binary<Halves<Op, int16_t>, uint32_t>
                         : binary<Halves<Op, uint16_t>, uint32_t>;
}

/// dp2a: i.mode is the place of the two bytes of b.
template <class A, class B>
void dot_product2(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const uint32_t* a = lanes_of<uint32_t>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  const uint32_t* c = lanes_of<uint32_t>(warp, i.c);
  const int shift = i.mode;
  each_lane(mask, [=](int l) {
    const uint32_t bytes = b[l] >> shift;
    d[l] = c[l] + static_cast<uint32_t>(int{static_cast<A>(a[l])} *
                                            int{static_cast<B>(bytes)} +
                                        int{static_cast<A>(a[l] >> 16)} *
                                            int{static_cast<B>(bytes >> 8)});
  });
}

void decode_dp2a(Decoder& d) {
  const int half = d.take_one_of({"lo", "hi"});
  if (half < 0) d.unsupported();
  const bool a = is_signed(d.take_type()), b = is_signed(d.take_type());
  d.expect_operands(4, 4);
  d.i.mode = half == 1 ? 16 : 0;
  d.i.d = d.destination(0, Type::kB32);
  d.i.a = d.source(1, Type::kB32);
  d.i.b = d.source(2, Type::kB32);
  d.i.c = d.source(3, Type::kB32);
  d.i.run =
      a ? (b ? dot_product2<int16_t, int8_t> : dot_product2<int16_t, uint8_t>)
        : (b ? dot_product2<uint16_t, int8_t>
             : dot_product2<uint16_t, uint8_t>);
}

// --- SIMD video instructions

enum Video : uint8_t { kAdd, kSubtract, kDifference, kMinimum, kMaximum };
enum : uint8_t { kSignedA = 8, kSignedB = 16, kSignedD = 32, kSaturate = 64 };

int64_t video_value(uint32_t bits, int at, int width, bool has_sign) {
  const uint32_t value = bits >> at & ((1u << width) - 1);
  const bool negative = has_sign && (value >> (width - 1)) != 0;
  return negative ? int64_t{value} - (1 << width) : int64_t{value};
}

int64_t video_result(uint8_t operation, int64_t a, int64_t b) {
  switch (operation) {
    case kAdd:
      return a + b;
    case kSubtract:
      return a - b;
    case kDifference:
      return a < b ? b - a : a - b;
    case kMinimum:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}

/// i.count values; i.immediate != 0: d is the sum of c and all results.
void video(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const uint32_t* a = lanes_of<uint32_t>(warp, i.a);
  const uint32_t* b = lanes_of<uint32_t>(warp, i.b);
  const uint32_t* c = lanes_of<uint32_t>(warp, i.c);
  const int width = 32 / i.count;
  const bool has_sign = (i.mode & kSignedD) != 0;
  const int64_t least = has_sign ? -(int64_t{1} << (width - 1)) : 0;
  const int64_t most = (int64_t{1} << (has_sign ? width - 1 : width)) - 1;
  each_lane(mask, [&](int l) {
    uint32_t all = 0, sum = c[l];
    for (int at = 0; at < 32; at += width) {
      int64_t value = video_result(
          i.mode & 7, video_value(a[l], at, width, (i.mode & kSignedA) != 0),
          video_value(b[l], at, width, (i.mode & kSignedB) != 0));
      if ((i.mode & kSaturate) != 0) value = std::clamp(value, least, most);
      const auto bits = static_cast<uint32_t>(value) & ((1u << width) - 1);
      all |= bits << at;
      sum += static_cast<uint32_t>(video_value(bits, 0, width, has_sign));
    }
    d[l] = i.immediate != 0 ? sum : all;
  });
}

template <Video kOperation, int kCount>
void decode_video(Decoder& d) {
  const bool result = is_signed(d.take_type());
  const bool a = is_signed(d.take_type()), b = is_signed(d.take_type());
  const bool saturates = d.take("sat");
  d.i.immediate = d.take("add");
  d.i.mode = static_cast<uint8_t>(kOperation | (a ? kSignedA : 0) |
                                  (b ? kSignedB : 0) | (result ? kSignedD : 0) |
                                  (saturates ? kSaturate : 0));
  d.i.count = kCount;
  d.expect_operands(4, 4);
  d.i.d = d.destination(0, Type::kB32);
  d.i.a = d.source(1, Type::kB32);
  d.i.b = d.source(2, Type::kB32);
  d.i.c = d.source(3, Type::kB32);
  d.i.run = video;
}

}  // namespace

const DecodeTable& packed_instructions() {
  static const auto& table = *new DecodeTable{
      {"add", decode_halves<Add>},
      {"sub", decode_halves<Subtract>},
      {"min", decode_halves<Minimum>},
      {"max", decode_halves<Maximum>},
  };
  return table;
}

const DecodeTable& video_instructions() {
  static const auto& table = *new DecodeTable{
      {"dp2a", decode_dp2a},
      {"vadd2", decode_video<kAdd, 2>},
      {"vadd4", decode_video<kAdd, 4>},
      {"vsub2", decode_video<kSubtract, 2>},
      {"vsub4", decode_video<kSubtract, 4>},
      {"vabsdiff2", decode_video<kDifference, 2>},
      {"vabsdiff4", decode_video<kDifference, 4>},
      {"vmin2", decode_video<kMinimum, 2>},
      {"vmin4", decode_video<kMinimum, 4>},
      {"vmax2", decode_video<kMaximum, 2>},
      {"vmax4", decode_video<kMaximum, 4>},
  };
  return table;
}

}  // namespace ipclab::ptx
