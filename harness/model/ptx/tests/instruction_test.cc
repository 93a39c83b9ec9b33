// SPDX-License-Identifier: Apache-2.0
// Compares every instruction group with results of the host, for edge values.
#include <cfenv>
#include <cmath>
#include <limits>

#include "evaluate.h"

namespace {

using namespace ipclab::ptx::testing;

const std::vector<int32_t> kS32 = {
    0,     1,     -1,         2,         -2,        7,
    -7,    31,    32,         33,        1000,      -1000,
    65535, 65536, 0x12345678, INT32_MAX, INT32_MIN, INT32_MIN + 1};
const std::vector<uint32_t> kU32 = {
    0,          1,          2,          7,          31,
    32,         33,         255,        65535,      65536,
    0x12345678, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
const std::vector<int64_t> kS64 = {
    0,         1,         -1,           63,           64,
    -64,       1ll << 31, 1ll << 32,    -(1ll << 32), 0x123456789abcdef0,
    INT64_MAX, INT64_MIN, INT64_MIN + 1};
const std::vector<uint64_t> kU64 = {0,          1,          2,
                                    63,         64,         1ull << 31,
                                    1ull << 32, 0xffffffff, 0x123456789abcdef0,
                                    1ull << 63, ~0ull - 1,  ~0ull};
const std::vector<int16_t> kS16 = {0,   1,   -1,   2,     15,    16,
                                   255, 256, -300, 32767, -32768};
const std::vector<uint16_t> kU16 = {0,   1,   2,     15,    16,
                                    255, 256, 32767, 32768, 65535};

template <class T>
std::vector<T> float_edges() {
  using L = std::numeric_limits<T>;
  return {T(0),
          T(-0.0),
          T(1),
          T(-1),
          T(0.5),
          T(-0.5),
          T(1.5),
          T(2.5),
          T(-2.5),
          T(3.999),
          T(0.1),
          T(-0.1),
          T(1e10),
          T(-1e10),
          T(123456.78),
          L::max(),
          L::lowest(),
          L::min(),
          L::denorm_min(),
          -L::denorm_min(),
          L::min() / 2,
          L::infinity(),
          -L::infinity(),
          L::quiet_NaN()};
}
const std::vector<float> kF32 = float_edges<float>();
const std::vector<double> kF64 = float_edges<double>();

using s128 = __int128;
using u128 = unsigned __int128;

TEST(Integer, AddSubtractMultiplyWrap) {
  const auto wrap = [](auto op) {
    return [op](int32_t a, int32_t b) {
      return static_cast<int32_t>(op(int64_t{a}, int64_t{b}));
    };
  };
  expect_binary<int32_t>("add.s32", kS32,
                         wrap([](auto a, auto b) { return a + b; }));
  expect_binary<int32_t>("sub.s32", kS32,
                         wrap([](auto a, auto b) { return a - b; }));
  expect_binary<int32_t>("mul.lo.s32", kS32,
                         wrap([](auto a, auto b) { return a * b; }));
  expect_binary<uint16_t>("mul.lo.u16", kU16,
                          [](uint32_t a, uint32_t b) { return a * b; });
  expect_binary<int16_t>("add.s16", kS16, [](int a, int b) { return a + b; });
  expect_binary<uint64_t>("add.u64", kU64,
                          [](uint64_t a, uint64_t b) { return a + b; });
  expect_binary<uint64_t>("sub.s64", kU64,
                          [](uint64_t a, uint64_t b) { return a - b; });
  expect_binary<uint64_t>("mul.lo.s64", kU64,
                          [](uint64_t a, uint64_t b) { return a * b; });
}

TEST(Integer, SaturatingAddAndSubtract) {
  const auto clamp = [](int64_t v) {
    return std::min<int64_t>(std::max<int64_t>(v, INT32_MIN), INT32_MAX);
  };
  expect_binary<int32_t>("add.sat.s32", kS32,
                         [=](int64_t a, int64_t b) { return clamp(a + b); });
  expect_binary<int32_t>("sub.sat.s32", kS32,
                         [=](int64_t a, int64_t b) { return clamp(a - b); });
}

TEST(Integer, HighAndWideProducts) {
  expect_binary<int32_t>("mul.hi.s32", kS32,
                         [](int64_t a, int64_t b) { return a * b >> 32; });
  expect_binary<uint32_t>("mul.hi.u32", kU32,
                          [](uint64_t a, uint64_t b) { return a * b >> 32; });
  expect_binary<int64_t>("mul.hi.s64", kS64, [](s128 a, s128 b) {
    return static_cast<int64_t>(a * b >> 64);
  });
  expect_binary<uint64_t>("mul.hi.u64", kU64, [](u128 a, u128 b) {
    return static_cast<uint64_t>(a * b >> 64);
  });
  expect_binary<int16_t>("mul.hi.s16", kS16,
                         [](int a, int b) { return a * b >> 16; });
  expect_binary<int64_t>("mul.wide.s32", kS32,
                         [](int64_t a, int64_t b) { return a * b; });
  expect_binary<uint64_t>("mul.wide.u32", kU32,
                          [](uint64_t a, uint64_t b) { return a * b; });
  expect_binary<int32_t>("mul.wide.s16", kS16,
                         [](int a, int b) { return a * b; });
  expect_binary<uint32_t>("mul.wide.u16", kU16,
                          [](uint32_t a, uint32_t b) { return a * b; });
  expect_binary<uint32_t>("mul24.lo.u32", kU32, [](uint64_t a, uint64_t b) {
    return (a & 0xffffff) * (b & 0xffffff);
  });
}

TEST(Integer, DivisionAndRemainderAtTheEdges) {
  expect_binary<int32_t>("div.s32", kS32, [](int64_t a, int64_t b) {
    return b == 0 ? -1 : a / b;
  });
  expect_binary<uint32_t>("div.u32", kU32, [](uint32_t a, uint32_t b) {
    return b == 0 ? ~0u : a / b;
  });
  expect_binary<int32_t>(
      "rem.s32", kS32, [](int64_t a, int64_t b) { return b == 0 ? a : a % b; });
  expect_binary<uint64_t>("rem.u64", kU64, [](uint64_t a, uint64_t b) {
    return b == 0 ? a : a % b;
  });
  expect_binary<int64_t>("div.s64", kS64, [](s128 a, s128 b) {
    return static_cast<int64_t>(b == 0 ? -1 : a / b);
  });
  expect_binary<int16_t>("div.s16", kS16,
                         [](int a, int b) { return b == 0 ? -1 : a / b; });
}

TEST(Integer, MinMaxNegAbsSad) {
  expect_binary<int32_t>("min.s32", kS32,
                         [](int a, int b) { return std::min(a, b); });
  expect_binary<uint32_t>(
      "max.u32", kU32, [](uint32_t a, uint32_t b) { return std::max(a, b); });
  expect_binary<int64_t>("max.s64", kS64,
                         [](int64_t a, int64_t b) { return std::max(a, b); });
  expect_binary<uint16_t>(
      "min.u16", kU16, [](uint16_t a, uint16_t b) { return std::min(a, b); });
  expect_unary<int32_t>("neg.s32", kS32, [](int64_t a) { return -a; });
  expect_unary<int32_t>("abs.s32", kS32,
                        [](int64_t a) { return a < 0 ? -a : a; });
  expect_unary<int64_t>("abs.s64", kS64, [](int64_t a) {
    return a < 0 ? 0 - static_cast<uint64_t>(a) : a;
  });
  expect_unary<int16_t>("neg.s16", kS16, [](int a) { return -a; });
  const auto [a, b] = pairs(kS32);
  const auto d = evaluate<uint32_t>("sad.s32 d, a, b, 5;", a, b);
  for (size_t k = 0; k < d.size(); ++k)
    EXPECT_EQ(d[k],
              static_cast<uint32_t>(std::llabs(int64_t{a[k]} - b[k]) + 5));
}

TEST(Integer, MultiplyAddAndItsWideForm) {
  const auto [a, b] = pairs(kS32);
  const auto lo = evaluate<int32_t>("mad.lo.s32 d, a, b, 77;", a, b);
  const auto wide = evaluate<int64_t>(
      ".reg .b64 e; mov.u64 e, -3; mad.wide.s32 d, a, b, e;", a, b);
  const auto hi = evaluate<int32_t>("mad.hi.s32 d, a, b, -9;", a, b);
  for (size_t k = 0; k < a.size(); ++k) {
    const int64_t product = int64_t{a[k]} * b[k];
    EXPECT_EQ(lo[k], static_cast<int32_t>(product + 77));
    EXPECT_EQ(wide[k], product - 3);
    EXPECT_EQ(hi[k], static_cast<int32_t>((product >> 32) - 9));
  }
}

TEST(Integer, CarriesMake128BitArithmetic) {
  const auto [a, b] = pairs(kU64);
  const char* split =
      ".reg .b32 al, ah, bl, bh, l, h, x;\n"
      "mov.b64 {al, ah}, a; mov.b64 {bl, bh}, b;\n";
  const auto sum = evaluate<uint64_t>(
      split + std::string("add.cc.u32 l, al, bl; addc.u32 h, ah, bh;"
                          "mov.b64 d, {l, h};"),
      a, b);
  const auto difference = evaluate<uint64_t>(
      split + std::string("sub.cc.u32 l, al, bl; subc.u32 h, ah, bh;"
                          "mov.b64 d, {l, h};"),
      a, b);
  const auto carry = evaluate<uint32_t>(
      split + std::string("add.cc.u32 l, al, bl; addc.cc.u32 h, ah, bh;"
                          "addc.u32 d, 0, 0;"),
      a, b);
  const auto product = evaluate<uint64_t>(
      split + std::string("mul.lo.u32 l, al, bl; mul.hi.u32 h, al, bl;"
                          "mad.lo.cc.u32 h, al, bh, h; madc.hi.u32 x, 0, 0, 0;"
                          "mad.lo.u32 h, ah, bl, h; mov.b64 d, {l, h};"),
      a, b);
  for (size_t k = 0; k < a.size(); ++k) {
    EXPECT_EQ(sum[k], a[k] + b[k]);
    EXPECT_EQ(difference[k], a[k] - b[k]);
    EXPECT_EQ(carry[k], a[k] + b[k] < a[k]);
    EXPECT_EQ(product[k], a[k] * b[k]);
  }
}

TEST(Integer, DotProductOfBytes) {
  const auto d = evaluate<int32_t, uint32_t, uint32_t>(
      "dp4a.s32.u32 d, a, b, 10;", {0x01ff7f80}, {0x02030405});
  EXPECT_EQ(d[0], 10 + 1 * 2 + -1 * 3 + 127 * 4 + -128 * 5);
}

// Words with all kinds of halves and bytes.
std::vector<uint32_t> packed_words() {
  std::vector<uint32_t> words;
  for (const uint32_t high : {0u, 1u, 0x7fu, 0x80u, 0xffu, 0x7fffu, 0x8000u,
                              0x8001u, 0xfffeu, 0xffffu, 0x1234u})
    for (const uint32_t low : {0u, 0xffffu, 0x8000u, 0x7fffu, 0x80u, 0xfedcu})
      words.push_back(high << 16 | low);
  return words;
}

template <class T, class Function>
void expect_halves(const std::string& instruction, Function expected) {
  expect_binary<uint32_t>(
      instruction, packed_words(), [&](uint32_t a, uint32_t b) {
        uint32_t d = 0;
        for (int at = 0; at < 32; at += 16)
          d |= (static_cast<uint32_t>(expected(int{static_cast<T>(a >> at)},
                                               int{static_cast<T>(b >> at)})) &
                0xffff)
               << at;
        return d;
      });
}

TEST(Packed, PairsOf16Bits) {
  const auto add = [](int a, int b) { return a + b; };
  const auto least = [](int a, int b) { return std::min(a, b); };
  const auto most = [](int a, int b) { return std::max(a, b); };
  expect_halves<uint16_t>("add.u16x2", add);
  expect_halves<int16_t>("add.s16x2", add);
  expect_halves<int16_t>("sub.s16x2", [](int a, int b) { return a - b; });
  expect_halves<uint16_t>("min.u16x2", least);
  expect_halves<int16_t>("min.s16x2", least);
  expect_halves<uint16_t>("max.u16x2", most);
  expect_halves<int16_t>("max.s16x2", most);
  expect_halves<int16_t>("min.relu.s16x2", [](int a, int b) {
    return std::max(0, std::min(a, b));
  });
  expect_halves<int16_t>("max.relu.s16x2", [](int a, int b) {
    return std::max({0, a, b});
  });
}

TEST(Packed, DotProductsOfPairs) {
  const auto a = std::vector<uint32_t>{0x80007fff};
  const auto b = std::vector<uint32_t>{0x80ff7f01};
  const auto one = [&](const std::string& form) {
    return static_cast<int>(evaluate<uint32_t, uint32_t, uint32_t>(
        "dp2a." + form + " d, a, b, 10;", a, b)[0]);
  };
  EXPECT_EQ(one("lo.s32.s32"), 10 + 0x7fff * 1 - 0x8000 * 0x7f);
  EXPECT_EQ(one("hi.s32.s32"), 10 + 0x7fff * -1 - 0x8000 * -0x80);
  EXPECT_EQ(one("hi.s32.u32"), 10 + 0x7fff * 0xff - 0x8000 * 0x80);
  EXPECT_EQ(one("lo.u32.u32"), 10 + 0x7fff * 1 + 0x8000 * 0x7f);
  EXPECT_EQ(one("hi.u32.s32"), 10 + 0x7fff * -1 + 0x8000 * -0x80);
}

template <class T, class Function>
uint32_t by_byte(uint32_t a, uint32_t b, Function function) {
  uint32_t d = 0;
  for (int at = 0; at < 32; at += 8)
    d |= (static_cast<uint32_t>(function(int{static_cast<T>(a >> at)},
                                         int{static_cast<T>(b >> at)})) &
          0xff)
         << at;
  return d;
}

TEST(Packed, VideoInstructions) {
  const auto difference = [](int a, int b) { return std::abs(a - b); };
  const auto [a, b] = pairs(packed_words());
  const auto run = [&, &a = a, &b = b](const std::string& instruction) {
    return evaluate<uint32_t, uint32_t, uint32_t>(instruction, a, b);
  };
  const auto plain = run("vabsdiff4.u32.u32.u32 d, a, b, 0;");
  const auto sum = run("vabsdiff4.u32.u32.u32.add d, a, b, 7;");
  const auto with_sign = run("vabsdiff4.s32.s32.s32.sat d, a, b, 0;");
  const auto added = run("vadd4.s32.s32.s32.sat d, a, b, 0;");
  const auto pair = run("vmax2.s32.s32.s32 d, a, b, 0;");
  for (size_t k = 0; k < a.size(); ++k) {
    const uint32_t want = by_byte<uint8_t>(a[k], b[k], difference);
    EXPECT_EQ(plain[k], want);
    EXPECT_EQ(sum[k], 7 + (want & 0xff) + (want >> 8 & 0xff) +
                          (want >> 16 & 0xff) + (want >> 24));
    EXPECT_EQ(with_sign[k], by_byte<int8_t>(a[k], b[k], [](int x, int y) {
                return std::min(std::abs(x - y), 127);
              }));
    EXPECT_EQ(added[k], by_byte<int8_t>(a[k], b[k], [](int x, int y) {
                return std::clamp(x + y, -128, 127);
              }));
    uint32_t most = 0;
    for (int at = 0; at < 32; at += 16)
      most |=
          (static_cast<uint32_t>(std::max(static_cast<int16_t>(a[k] >> at),
                                          static_cast<int16_t>(b[k] >> at))) &
           0xffff)
          << at;
    EXPECT_EQ(pair[k], most);
  }
}

TEST(Fences, OfProxiesAreFences) {
  const auto d = evaluate<uint32_t, uint32_t>(
      "fence.proxy.alias; fence.proxy.async; fence.proxy.async.global;\n"
      "fence.proxy.async.shared::cta; fence.mbarrier_init.release.cluster;\n"
      "fence.proxy.tensormap::generic.release.gpu; mov.b32 d, a;",
      {3});
  EXPECT_EQ(d[0], 3u);
}

TEST(Bits, LogicAndShiftsBeyondTheWidth) {
  expect_binary<uint32_t>("and.b32", kU32,
                          [](uint32_t a, uint32_t b) { return a & b; });
  expect_binary<uint64_t>("or.b64", kU64,
                          [](uint64_t a, uint64_t b) { return a | b; });
  expect_binary<uint16_t>("xor.b16", kU16, [](int a, int b) { return a ^ b; });
  expect_unary<uint32_t>("not.b32", kU32, [](uint32_t a) { return ~a; });
  expect_unary<uint32_t>("cnot.b32", kU32, [](uint32_t a) { return a == 0; });
  expect_binary<uint32_t>("shl.b32", kU32, [](uint64_t a, uint32_t b) {
    return b > 31 ? 0 : a << b;
  });
  expect_binary<uint32_t>("shr.u32", kU32, [](uint32_t a, uint32_t b) {
    return b > 31 ? 0 : a >> b;
  });
  expect_binary<int32_t>("shr.s32", kS32, [](int32_t a, uint32_t b) {
    return a >> std::min(b, 31u);
  });
  const auto [a, b] = pairs(std::vector<uint64_t>(kU64));
  std::vector<uint32_t> by(b.begin(), b.end());
  const auto left =
      evaluate<uint64_t, uint64_t, uint32_t>("shl.b64 d, a, b;", a, by);
  const auto right =
      evaluate<int64_t, uint64_t, uint32_t>("shr.s64 d, a, b;", a, by);
  for (size_t k = 0; k < a.size(); ++k) {
    EXPECT_EQ(left[k], by[k] > 63 ? 0 : a[k] << by[k]);
    EXPECT_EQ(right[k], static_cast<int64_t>(a[k]) >> std::min(by[k], 63u));
  }
}

TEST(Bits, FunnelShift) {
  const auto [a, b] = pairs(kU32);
  const auto run = [a = a, b = b](const char* body) {
    return evaluate<uint32_t>(body, a, b);
  };
  const auto left = run("shf.l.wrap.b32 d, a, 0x55555555, b;");
  const auto right = run("shf.r.clamp.b32 d, a, 0x55555555, b;");
  for (size_t k = 0; k < a.size(); ++k) {
    const uint64_t both = 0x5555555500000000 | a[k];
    EXPECT_EQ(left[k], static_cast<uint32_t>(both << (b[k] & 31) >> 32));
    EXPECT_EQ(right[k], static_cast<uint32_t>(both >> std::min(b[k], 32u)));
  }
}

TEST(Bits, Lop3FollowsItsTable) {
  const auto [a, b] = pairs(kU32);
  for (const int table : {0x00, 0x96, 0xe8, 0x1e, 0xca, 0xff}) {
    const auto d = evaluate<uint32_t>(
        "lop3.b32 d, a, b, 0x0f0f3355, " + std::to_string(table) + ";", a, b);
    for (size_t k = 0; k < a.size(); ++k) {
      uint32_t expected = 0;
      for (int bit = 0; bit < 32; ++bit) {
        const uint32_t row = (a[k] >> bit & 1) << 2 | (b[k] >> bit & 1) << 1 |
                             (0x0f0f3355u >> bit & 1);
        expected |= static_cast<uint32_t>(table >> row & 1) << bit;
      }
      ASSERT_EQ(d[k], expected) << table;
    }
  }
}

TEST(Bits, FieldsAndCounts) {
  for (const unsigned at : {0u, 4u, 31u, 32u, 40u})
    for (const unsigned length : {0u, 1u, 8u, 31u, 32u, 255u}) {
      const std::string places =
          std::to_string(at) + ", " + std::to_string(length);
      const auto u = evaluate<uint32_t>("bfe.u32 d, a, " + places + ";", kU32);
      const auto s = evaluate<uint32_t>("bfe.s32 d, a, " + places + ";", kU32);
      const auto i =
          evaluate<uint32_t>("bfi.b32 d, a, 0xa5a5a5a5, " + places + ";", kU32);
      for (size_t k = 0; k < kU32.size(); ++k) {
        const uint32_t a = kU32[k];
        uint32_t unsigned_field = 0, signed_field = 0, inserted = 0xa5a5a5a5;
        const unsigned last = std::min(at + length - 1, 31u);
        const bool sign = length != 0 && (a >> last & 1) != 0;
        for (unsigned bit = 0; bit < 32; ++bit) {
          const bool inside = bit < length && at + bit < 32;
          const uint32_t value = inside ? a >> (at + bit) & 1 : 0;
          unsigned_field |= value << bit;
          signed_field |= (inside ? value : sign ? 1u : 0u) << bit;
          if (bit >= at && bit < at + length)
            inserted = (inserted & ~(1u << bit)) | (a >> (bit - at) & 1) << bit;
        }
        ASSERT_EQ(u[k], unsigned_field) << a << " " << places;
        ASSERT_EQ(s[k], signed_field) << a << " " << places;
        ASSERT_EQ(i[k], inserted) << a << " " << places;
      }
    }
  expect_unary<uint32_t>("popc.b32", kU32,
                         [](uint32_t a) { return __builtin_popcount(a); });
  expect_unary<uint32_t>("popc.b64", kU64,
                         [](uint64_t a) { return __builtin_popcountll(a); });
  expect_unary<uint32_t>("clz.b32", kU32,
                         [](uint32_t a) { return a ? __builtin_clz(a) : 32; });
  expect_unary<uint32_t>(
      "clz.b64", kU64, [](uint64_t a) { return a ? __builtin_clzll(a) : 64; });
  expect_unary<uint32_t>("bfind.u32", kU32, [](uint32_t a) {
    return a ? 31 - __builtin_clz(a) : ~0;
  });
  expect_unary<uint32_t>("bfind.s32", kS32, [](int32_t a) {
    const uint32_t v = a < 0 ? ~a : a;
    return v ? 31 - __builtin_clz(v) : ~0;
  });
  expect_unary<uint32_t>("bfind.shiftamt.u64", kU64, [](uint64_t a) {
    return a ? __builtin_clzll(a) : ~0;
  });
  expect_unary<uint32_t>("brev.b32", kU32, [](uint32_t a) {
    uint32_t r = 0;
    for (int bit = 0; bit < 32; ++bit) r |= (a >> bit & 1) << (31 - bit);
    return r;
  });
}

TEST(Bits, Permute) {
  const auto d =
      evaluate<uint32_t, uint32_t>("prmt.b32 d, 0x33221100, 0x77665584, a;",
                                   {0x3210, 0x7654, 0xc4d5, 0x0000});
  EXPECT_EQ(d, (std::vector<uint32_t>{0x33221100, 0x77665584, 0xff840055, 0}));
  EXPECT_EQ((evaluate<uint32_t, uint32_t>(
                "prmt.b32.f4e d, 0x33221100, 0x77665544, a;", {1})[0]),
            0x44332211u);
  EXPECT_EQ((evaluate<uint32_t, uint32_t>("prmt.b32.rc16 d, 0x33221100, 0, a;",
                                          {1})[0]),
            0x33223322u);
}

TEST(Float, ArithmeticOnEdges) {
  expect_binary<float>("add.f32", kF32, [](float a, float b) { return a + b; });
  expect_binary<float>("sub.f32", kF32, [](float a, float b) { return a - b; });
  expect_binary<float>("mul.f32", kF32, [](float a, float b) { return a * b; });
  expect_binary<float>("div.rn.f32", kF32,
                       [](float a, float b) { return a / b; });
  expect_binary<double>("add.f64", kF64,
                        [](double a, double b) { return a + b; });
  expect_binary<double>("mul.rn.f64", kF64,
                        [](double a, double b) { return a * b; });
  expect_binary<double>("div.rn.f64", kF64,
                        [](double a, double b) { return a / b; });
  expect_unary<float>("neg.f32", kF32, [](float a) { return -a; });
  expect_unary<double>("abs.f64", kF64, [](double a) { return std::fabs(a); });
  expect_unary<float>("sqrt.rn.f32", kF32,
                      [](float a) { return std::sqrt(a); });
  expect_unary<double>("rcp.rn.f64", kF64, [](double a) { return 1 / a; });
  expect_unary<float>("rsqrt.approx.f32", kF32, [](float a) {
    return static_cast<float>(1 / std::sqrt(double{a}));
  });
  expect_unary<float>("ex2.approx.f32", kF32,
                      [](float a) { return std::exp2(a); });
  expect_unary<float>("lg2.approx.f32", kF32,
                      [](float a) { return std::log2(a); });
  expect_unary<float>("sin.approx.f32", kF32,
                      [](float a) { return std::sin(a); });
  expect_unary<float>("cos.approx.f32", kF32,
                      [](float a) { return std::cos(a); });
  expect_binary<float>("copysign.f32", kF32,
                       [](float a, float b) { return std::copysign(b, a); });
}

TEST(Float, RoundingDirections) {
  const struct {
    const char* name;
    int direction;
  } kModes[] = {{".rn", FE_TONEAREST},
                {".rz", FE_TOWARDZERO},
                {".rm", FE_DOWNWARD},
                {".rp", FE_UPWARD}};
  for (const auto& mode : kModes) {
    const auto with = [&](auto operation) {
      return [=](auto a, auto b) {
        volatile auto x = a, y = b;
        std::fesetround(mode.direction);
        volatile auto r = operation(x, y);
        std::fesetround(FE_TONEAREST);
        return r;
      };
    };
    const std::string m(mode.name);
    expect_binary<float>("add" + m + ".f32", kF32,
                         with([](auto a, auto b) { return a + b; }));
    expect_binary<double>("mul" + m + ".f64", kF64,
                          with([](auto a, auto b) { return a * b; }));
    expect_binary<float>("div" + m + ".f32", kF32,
                         with([](auto a, auto b) { return a / b; }));
  }
}

TEST(Float, FlushAndSaturate) {
  const auto flush = [](float a) {
    return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a;
  };
  expect_binary<float>("mul.ftz.f32", kF32, [&](float a, float b) {
    return flush(flush(a) * flush(b));
  });
  expect_binary<float>("add.sat.f32", kF32, [](float a, float b) {
    const float r = a + b;
    return r > 0 ? std::min(r, 1.0f) : 0.0f;
  });
}

TEST(Float, FusedMultiplyAddRoundsOnce) {
  const auto [a, b] = pairs(kF32);
  const auto d = evaluate<float>("fma.rn.f32 d, a, b, 0fBF8CCCCD;", a, b);
  for (size_t k = 0; k < a.size(); ++k)
    EXPECT_TRUE(same(d[k], std::fma(a[k], b[k], -1.1f))) << a[k] << " " << b[k];
  const double e = std::ldexp(1.0, -30);
  const auto f = evaluate<double, double, double>(
      "fma.rn.f64 d, a, b, 0dBFF0000000000000;", {1 + e}, {1 - e});
  EXPECT_EQ(f[0], -e * e);
}

TEST(Float, MinMaxPreferNumbersAndPositiveZero) {
  const auto min = [](float a, float b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return std::min(a, b);
  };
  expect_binary<float>("min.f32", kF32, min);
  expect_binary<double>("max.f64", kF64, [](double a, double b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? b : a;
    return std::max(a, b);
  });
  expect_binary<float>("min.NaN.f32", kF32, [&](float a, float b) {
    return a != a || b != b ? NAN : min(a, b);
  });
}

TEST(Compare, EveryRelationOfIntegersAndFloats) {
  const auto relation = [](const std::string& name, auto a, auto b) {
    if (name == "eq") return a == b;
    if (name == "ne") return a < b || a > b;
    if (name == "lt" || name == "lo") return a < b;
    if (name == "le" || name == "ls") return a <= b;
    if (name == "gt" || name == "hi") return a > b;
    return a >= b;
  };
  const auto body = [](const std::string& name, const char* type) {
    return "setp." + name + "." + type + " p, a, b; selp.b32 d, 1, 0, p;";
  };
  for (const char* name : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    const auto check = [&](const auto& values, const char* type) {
      const auto [a, b] = pairs(values);
      const auto d = evaluate<uint32_t>(body(name, type), a, b);
      for (size_t k = 0; k < d.size(); ++k)
        EXPECT_EQ(d[k], relation(name, a[k], b[k]))
            << name << type << +a[k] << " " << +b[k];
    };
    check(kS32, "s32");
    check(kU64, "u64");
    check(kS64, "s64");
    check(kS16, "s16");
    check(kF32, "f32");
    check(kF64, "f64");
    const auto [a, b] = pairs(kF32);
    const auto d =
        evaluate<uint32_t>(body(name + std::string("u"), "f32"), a, b);
    for (size_t k = 0; k < d.size(); ++k) {
      const bool unordered = a[k] != a[k] || b[k] != b[k];
      EXPECT_EQ(d[k], unordered || relation(name, a[k], b[k])) << name << "u";
    }
  }
  for (const char* name : {"lo", "ls", "hi", "hs"}) {
    const auto [a, b] = pairs(kU32);
    const auto d = evaluate<uint32_t>(body(name, "u32"), a, b);
    for (size_t k = 0; k < d.size(); ++k)
      EXPECT_EQ(d[k], relation(name, a[k], b[k])) << name;
  }
  const auto [a, b] = pairs(kF32);
  const auto numbers = evaluate<uint32_t>(body("num", "f32"), a, b);
  const auto nans = evaluate<uint32_t>(body("nan", "f32"), a, b);
  for (size_t k = 0; k < a.size(); ++k) {
    EXPECT_EQ(numbers[k], a[k] == a[k] && b[k] == b[k]);
    EXPECT_EQ(nans[k], a[k] != a[k] || b[k] != b[k]);
  }
}

TEST(Compare, CombinersAndTheSecondPredicate) {
  const std::vector<uint32_t> a = {0, 1, 2, 3};
  for (const char* combine : {"and", "or", "xor"}) {
    const auto d = evaluate<uint32_t>(
        std::string("setp.ge.u32 q, a, 2; and.b32 d, a, 1; setp.eq.") +
            combine +
            ".u32 p|q, d, 1, q; selp.b32 d, 2, 0, p; @q or.b32 d, d, 1;",
        a);
    for (const uint32_t v : a) {
      const bool with = v >= 2, is = (v & 1) == 1;
      const auto apply = [&](bool x) {
        return combine[0] == 'a'   ? (x && with)
               : combine[0] == 'o' ? (x || with)
                                   : x != with;
      };
      EXPECT_EQ(d[v], (apply(is) ? 2u : 0u) | (apply(!is) ? 1u : 0u))
          << combine << v;
    }
  }
  EXPECT_EQ((evaluate<uint32_t, uint32_t>(
                 "setp.eq.and.u32 p, a, 1, !q; selp.b32 d, 1, 0, p;", {0}))
                .size(),
            1u);
}

TEST(Compare, SetAndSlct) {
  expect_binary<uint32_t>("set.lt.u32.s32", kS32,
                          [](int a, int b) { return a < b ? ~0u : 0u; });
  expect_binary<float>("set.gt.f32.f32", kF32,
                       [](float a, float b) { return a > b ? 1.0f : 0.0f; });
  const auto d = evaluate<int32_t>("slct.s32.s32 d, 10, 20, a;", kS32);
  for (size_t k = 0; k < d.size(); ++k) EXPECT_EQ(d[k], kS32[k] >= 0 ? 10 : 20);
}

TEST(Compare, TestProperty) {
  const auto d = evaluate<uint32_t>(
      "testp.subnormal.f32 p, a; selp.b32 d, 1, 0, p;", kF32);
  for (size_t k = 0; k < d.size(); ++k)
    EXPECT_EQ(d[k], std::fpclassify(kF32[k]) == FP_SUBNORMAL);
}

/// A value that is out of range is clamped; NaN gives 0.
template <class I, class F>
I clamp_to(F value) {
  if (value != value) return 0;
  const F top = std::ldexp(F(1), sizeof(I) * 8 - std::is_signed_v<I>);
  if (value >= top) return std::numeric_limits<I>::max();
  if (std::is_signed_v<I> ? value < -top : value <= 0)
    return std::numeric_limits<I>::min();
  return static_cast<I>(value);
}

TEST(Convert, FloatToInteger) {
  expect_unary<int32_t>("cvt.rzi.s32.f32", kF32, [](float a) {
    return clamp_to<int32_t>(std::trunc(a));
  });
  expect_unary<int32_t>("cvt.rni.s32.f32", kF32, [](float a) {
    return clamp_to<int32_t>(std::nearbyint(a));
  });
  expect_unary<int32_t>("cvt.rmi.s32.f64", kF64, [](double a) {
    return clamp_to<int32_t>(std::floor(a));
  });
  expect_unary<uint32_t>("cvt.rpi.u32.f32", kF32, [](float a) {
    return clamp_to<uint32_t>(std::ceil(a));
  });
  expect_unary<uint64_t>("cvt.rzi.u64.f64", kF64, [](double a) {
    return clamp_to<uint64_t>(std::trunc(a));
  });
  expect_unary<int64_t>("cvt.rzi.s64.f32", kF32, [](float a) {
    return clamp_to<int64_t>(std::trunc(a));
  });
}

TEST(Convert, IntegerToFloat) {
  expect_unary<float>("cvt.rn.f32.s32", kS32,
                      [](int a) { return static_cast<float>(a); });
  expect_unary<float>("cvt.rn.f32.u64", kU64,
                      [](uint64_t a) { return static_cast<float>(a); });
  expect_unary<double>("cvt.rn.f64.s64", kS64,
                       [](int64_t a) { return static_cast<double>(a); });
  expect_unary<double>("cvt.rn.f64.u32", kU32,
                       [](uint32_t a) { return static_cast<double>(a); });
  const auto down = evaluate<float, uint32_t>("cvt.rz.f32.u32 d, a;",
                                              {0xffffffff, 0x01000001});
  EXPECT_EQ(down[0], 4294967040.0f);
  EXPECT_EQ(down[1], 16777216.0f);
}

TEST(Convert, BetweenFloats) {
  expect_unary<float>("cvt.rn.f32.f64", kF64,
                      [](double a) { return static_cast<float>(a); });
  expect_unary<double>("cvt.f64.f32", kF32,
                       [](float a) { return static_cast<double>(a); });
  expect_unary<float>("cvt.rmi.f32.f32", kF32,
                      [](float a) { return std::floor(a); });
  expect_unary<float>("cvt.sat.f32.f32", kF32,
                      [](float a) { return a > 0 ? std::min(a, 1.0f) : 0.0f; });
}

TEST(Convert, IntegerWidthsAndSaturation) {
  expect_unary<int64_t>("cvt.s64.s32", kS32, [](int a) { return int64_t{a}; });
  expect_unary<uint64_t>("cvt.u64.u32", kU32,
                         [](uint32_t a) { return uint64_t{a}; });
  expect_unary<int64_t>("cvt.s64.s16", kS16, [](int a) { return int64_t{a}; });
  expect_unary<int32_t>("cvt.s32.s8", kS32,
                        [](int a) -> int { return static_cast<int8_t>(a); });
  expect_unary<uint32_t>("cvt.u32.u8", kU32,
                         [](uint32_t a) { return a & 255; });
  expect_unary<uint16_t>("cvt.u16.u32", kU32, [](uint32_t a) { return a; });
  expect_unary<int32_t>("cvt.sat.s8.s32", kS32,
                        [](int a) { return std::min(std::max(a, -128), 127); });
  expect_unary<uint32_t>("cvt.sat.u16.s32", kS32,
                         [](int a) { return std::min(std::max(a, 0), 65535); });
}

TEST(Convert, Half) {
  // The largest half is 65504, the smallest positive half is 2^-24. Ties go to
  // even.
  const std::vector<float> in = {1,     -2,    0.1f,    65504,
                                 65519, 65520, 1e-8f,   5.9604645e-8f,
                                 2049,  2051,  INFINITY};
  const auto d = evaluate<uint16_t>("cvt.rn.f16.f32 d, a;", in);
  EXPECT_EQ(d, (std::vector<uint16_t>{0x3c00, 0xc000, 0x2e66, 0x7bff, 0x7bff,
                                      0x7c00, 0, 1, 0x6800, 0x6802, 0x7c00}));
  std::vector<uint16_t> all(65536);
  for (size_t k = 0; k < all.size(); ++k) all[k] = static_cast<uint16_t>(k);
  const auto there_and_back = evaluate<uint16_t>(
      ".reg .f32 f; cvt.f32.f16 f, a; cvt.rn.f16.f32 d, f;", all);
  for (size_t k = 0; k < all.size(); ++k)
    if ((k & 0x7fff) <= 0x7c00) {
      ASSERT_EQ(there_and_back[k], k);
    }
  const auto bf = evaluate<uint16_t>("cvt.rn.bf16.f32 d, a;", in);
  for (size_t k = 0; k < in.size(); ++k) {
    uint32_t bits;
    std::memcpy(&bits, &in[k], 4);
    EXPECT_EQ(bf[k], (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

/// Every value of a format, from the definition in the OCP standard: sign,
/// exponent with its bias, mantissa.
double value_of_fp8(int bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7f) >> mantissa_bits;
  const double mantissa =
      (bits & ((1 << mantissa_bits) - 1)) / double(1 << mantissa_bits);
  const double value = exponent == 0
                           ? std::ldexp(mantissa, 1 - bias)
                           : std::ldexp(1 + mantissa, exponent - bias);
  return (bits & 0x80) != 0 ? -value : value;
}

TEST(Convert, EightBits) {
  struct Format {
    std::string name;
    int mantissa_bits, bias, last;  // the largest number
  };
  for (const Format& f :
       {Format{"e4m3x2", 3, 7, 0x7e}, Format{"e5m2x2", 2, 15, 0x7b}}) {
    std::vector<uint16_t> all(256);
    for (int k = 0; k < 256; ++k)
      all[k] = static_cast<uint16_t>(k | (255 - k) << 8);
    const auto wide =
        evaluate<uint32_t>("cvt.rn.f16x2." + f.name + " d, a;", all);
    const auto half = evaluate<uint32_t, uint16_t>(
        ".reg .f32 f; cvt.f32.f16 f, a; mov.b32 d, f;", [&] {
          std::vector<uint16_t> lower;
          for (uint32_t w : wide) lower.push_back(static_cast<uint16_t>(w));
          return lower;
        }());
    const auto back = evaluate<uint16_t, uint32_t>(
        "cvt.rn.satfinite." + f.name + ".f16x2 d, a;", wide);
    std::vector<float> between;
    std::vector<uint16_t> nearest;
    for (int k = 0; k < 256; ++k) {
      float value;
      std::memcpy(&value, &half[k], 4);
      if ((k & 0x7f) > f.last) {
        const bool infinite = f.mantissa_bits == 2 && (k & 0x7f) == 0x7c;
        EXPECT_TRUE(infinite ? std::isinf(value) : std::isnan(value)) << k;
        continue;
      }
      EXPECT_EQ(value, value_of_fp8(k, f.mantissa_bits, f.bias)) << k;
      EXPECT_EQ(back[k] & 0xff, k);
      if ((k & 0x7f) == f.last) continue;
      // The middle goes to the even one of the two neighbours.
      const double next = value_of_fp8(k + 1, f.mantissa_bits, f.bias);
      between.push_back(static_cast<float>((value + next) / 2));
      nearest.push_back(static_cast<uint16_t>(k + (k & 1)));
    }
    const auto rounded = evaluate<uint16_t, float, float>(
        "cvt.rn.satfinite." + f.name + ".f32 d, a, b;", between,
        std::vector<float>(between.size(), 1e9f));
    for (size_t k = 0; k < between.size(); ++k)
      EXPECT_EQ(rounded[k], nearest[k] << 8 | f.last) << between[k];
    const auto special = evaluate<uint16_t, float, float>(
        "cvt.rn.satfinite.relu." + f.name + ".f32 d, a, b;", {-1, NAN},
        {-INFINITY, INFINITY});
    EXPECT_EQ(special[0], 0);
    EXPECT_GT(special[1] >> 8 & 0x7f, f.last);
    EXPECT_EQ(special[1] & 0xff, f.last);
  }
}

TEST(Half, SetsOneOrZero) {
  const auto nan = evaluate<uint16_t, uint16_t, uint16_t>(
      "set.nan.f16.f16 d, a, b;", {0x3c00, 0x7e00}, {0x4000, 0x4000});
  EXPECT_EQ(nan, (std::vector<uint16_t>{0, 0x3c00}));
  const auto less = evaluate<uint32_t, uint32_t, uint32_t>(
      "set.lt.f16x2.f16x2 d, a, b;", {0x3c004000}, {0x40003c00});
  EXPECT_EQ(less[0], 0x3c000000u);
  const auto brain = evaluate<uint16_t, uint16_t, uint16_t>(
      "set.geu.bf16.bf16 d, a, b;", {0x4000, 0x7fc0}, {0x4040, 0x4040});
  EXPECT_EQ(brain, (std::vector<uint16_t>{0, 0x3f80}));
}

TEST(Half, Arithmetic) {
  const auto sum = evaluate<uint16_t, uint16_t, uint16_t>(
      "add.f16 d, a, b;", {0x3c00, 0x7bff}, {0x4000, 0x7bff});
  EXPECT_EQ(sum, (std::vector<uint16_t>{0x4200, 0x7c00}));
  const auto pair = evaluate<uint32_t, uint32_t, uint32_t>(
      "fma.rn.f16x2 d, a, b, a;", {0x3c004000}, {0x40003c00});
  EXPECT_EQ(pair[0], 0x42004400u);
  const auto bf = evaluate<uint16_t, uint16_t, uint16_t>("mul.bf16 d, a, b;",
                                                         {0x4000}, {0x4040});
  EXPECT_EQ(bf[0], 0x40c0u);
  const auto less = evaluate<uint32_t, uint16_t, uint16_t>(
      "setp.lt.f16 p, a, b; selp.b32 d, 1, 0, p;", {0x3c00, 0x7e00},
      {0x4000, 0x4000});
  EXPECT_EQ(less, (std::vector<uint32_t>{1, 0}));
  const auto both = evaluate<uint32_t, uint16_t, uint16_t>(
      "setp.lt.f16 p|q, a, b; selp.b32 d, 1, 0, p; @q or.b32 d, d, 2;",
      {0x3c00, 0x7e00}, {0x4000, 0x4000});
  EXPECT_EQ(both, (std::vector<uint32_t>{1, 2}));
}

TEST(Move, PacksAndUnpacks) {
  const auto d = evaluate<uint64_t, uint64_t>(
      ".reg .b16 w<4>; .reg .b32 l, h;\n"
      "mov.b64 {w0, w1, w2, w3}, a; mov.b32 l, {w3, w2}; mov.b32 h, {w1, w0};"
      "mov.b64 d, {l, h};",
      {0x1111222233334444});
  EXPECT_EQ(d[0], 0x4444333322221111u);
  const auto low =
      evaluate<uint32_t, uint64_t>("mov.b64 {d, _}, a;", {0x1111222233334444});
  EXPECT_EQ(low[0], 0x33334444u);
}

TEST(Move, SpecialRegisterAsAnOperand) {
  const auto d = evaluate<uint32_t, uint32_t>(
      "add.u32 d, %ntid.x, -1; min.u32 d, d, 0;", {1});
  EXPECT_EQ(d[0], 0u);
}

TEST(Move, TheWarpSizeIsAConstant) {
  const auto d =
      evaluate<uint32_t, uint32_t>("sub.u32 d, WARP_SZ, a;", {5, 40});
  EXPECT_EQ(d, (std::vector<uint32_t>{27, 0u - 8}));
}

TEST(Memory, NarrowAccessesExtend) {
  const auto d = evaluate<int32_t, int32_t>(
      ".local .align 8 .b8 buffer[8];\n"
      "st.local.s32 [buffer], a; ld.local.s8 d, [buffer+1];",
      {0x1280ff, 0x7f00});
  EXPECT_EQ(d, (std::vector<int32_t>{-128, 127}));
  const auto u = evaluate<uint32_t, uint32_t>(
      ".local .align 8 .b8 buffer[8]; .reg .b64 g;\n"
      "mov.u64 g, buffer; cvta.local.u64 g, g; st.u32 [g], a;"
      "ld.volatile.u16 d, [g+2];",
      {0x8001ffff});
  EXPECT_EQ(u[0], 0x8001u);
}

TEST(Memory, VectorsInEverySpace) {
  const auto d = evaluate<uint32_t, uint32_t>(
      ".shared .align 16 .b8 s[2048]; .reg .b32 x<4>; .reg .b32 at;\n"
      "shl.b32 at, %t, 4; mov.u32 x0, s; add.u32 at, at, x0;\n"
      "add.u32 x1, a, 1; st.shared.v4.b32 [at], {a, x1, a, 7};\n"
      "ld.shared.v2.u32 {x2, x3}, [at+8]; add.u32 d, x2, x3;\n"
      "ld.shared.v2.u32 {x2, x3}, [at]; add.u32 d, d, x3;",
      {5, 6});
  EXPECT_EQ(d, (std::vector<uint32_t>{5 + 7 + 6, 6 + 7 + 7}));
}

TEST(Memory, SixteenByteRegisters) {
  const auto d = evaluate<uint64_t, uint64_t>(
      ".reg .b128 q; .reg .b64 x, y; .local .align 16 .b8 s[16];\n"
      "mov.b128 q, {a, 77}; st.local.b128 [s], q; ld.local.b128 q, [s];\n"
      "mov.b128 {x, y}, q; add.u64 d, x, y;",
      {5});
  EXPECT_EQ(d[0], 82u);
}

TEST(Space, IsspacepTellsWindowsApart) {
  const auto d = evaluate<uint32_t, uint32_t>(
      ".shared .b32 s; .local .b32 l; .reg .b64 g; .reg .b32 n;\n"
      "mov.u64 g, s; cvta.shared.u64 g, g; isspacep.shared p, g; selp.b32 d, "
      "1, 0, p;\n"
      "isspacep.global p, g; selp.b32 n, 2, 0, p; or.b32 d, d, n;\n"
      "mov.u64 g, l; cvta.local.u64 g, g; isspacep.local p, g; selp.b32 n, 4, "
      "0, p; or.b32 d, d, n;\n"
      "isspacep.global p, %p; selp.b32 n, 8, 0, p; or.b32 d, d, n;",
      {0});
  EXPECT_EQ(d[0], 1u | 4u | 8u);
}

}  // namespace
