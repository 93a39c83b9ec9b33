// SPDX-License-Identifier: Apache-2.0
// Functions that nvcc compiles for the device and the host compiler compiles
// for the host. The test compares both results on random inputs.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define IPCLAB_BOTH __host__ __device__ inline
#else
#define IPCLAB_BOTH inline
#endif

constexpr int kResults = 8;

IPCLAB_BOTH uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 29;
  return x;
}

IPCLAB_BOTH uint32_t rotate(uint32_t x, uint32_t by) {
  by &= 31;
  return by == 0 ? x : x << by | x >> (32 - by);
}

IPCLAB_BOTH void integers(uint64_t a, uint64_t b, uint64_t* out) {
  const uint32_t x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
  const int32_t s = static_cast<int32_t>(x), t = static_cast<int32_t>(y | 1);
  out[0] = mix(a) + mix(b) * 3;
  out[1] = a / (b | 1) + a % (b | 1) * 7;
  out[2] = t == -1 ? 5u : static_cast<uint32_t>(s / t ^ s % t);
  out[3] = rotate(x, y) ^ (x > y ? x - y : ~(y - x));
  uint64_t steps = 0;
  for (uint32_t v = x & 0xffff; v != 0; v &= v - 1) steps += v % 13 + 1;
  out[4] = steps;
  int64_t sum = 0;
  for (int k = 0; k < 8; ++k) {
    const int8_t byte = static_cast<int8_t>(a >> (8 * k));
    const uint16_t half = static_cast<uint16_t>(b >> (8 * (k & 5)));
    if (byte < 0 && k == 5) continue;
    sum += byte * static_cast<int32_t>(half) - (half >> (k & 3));
    if (sum > 3000000) break;
  }
  out[5] = static_cast<uint64_t>(sum);
  uint32_t table[7] = {1, 2, 3, 5, 8, 13, 21};
  for (int k = 0; k < 20; ++k) table[(x + k) % 7] += table[(y >> k) % 7] ^ k;
  out[6] = table[x % 7] | static_cast<uint64_t>(table[y % 7]) << 32;
  switch (x % 9) {
    case 0:
      out[7] = a & b;
      break;
    case 1:
      out[7] = a | ~b;
      break;
    case 2:
      out[7] = static_cast<uint64_t>(static_cast<int64_t>(a) >> (y & 63));
      break;
    case 3:
      out[7] = a << (y & 63);
      break;
    case 4:
      out[7] = static_cast<uint64_t>(static_cast<int16_t>(x));
      break;
    case 5:
      out[7] = s < t ? 1 : 2;
      break;
    case 6:
      out[7] = (a >> 32) * (b >> 32);
      break;
    default:
      out[7] = x * 2654435761u + y;
  }
}

/// These operations are defined by IEEE 754 to the last bit.
IPCLAB_BOTH void floats(double a, double b, float x, float y, double* out) {
  out[0] = a + b * 3.25;
  out[1] = a / (b + 1.5) - b;
  out[2] = sqrt(fabs(a)) * 2;
  out[3] = x * y - x / (fabsf(y) + 0.5f);
  out[4] = static_cast<double>(sqrtf(fabsf(x)) + static_cast<float>(a));
  out[5] = floor(a * 16) + ceil(b * 8) + trunc(a - b);
  double sum = 0;
  for (int k = 1; k < 12; ++k) {
    if (a * k > b)
      sum += 1.0 / k;
    else if (x < y)
      sum -= k * 0.125;
    if (sum > 2) break;
  }
  out[6] = sum;
  out[7] = fabs(a) < 1e9
               ? static_cast<double>(static_cast<int64_t>(a * 1000) % 997)
               : fma(a, b, -a);
}
