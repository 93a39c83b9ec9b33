// SPDX-License-Identifier: Apache-2.0
// Runs a few PTX instructions on many inputs: the body reads a, b, c and leaves
// its result in d.
#pragma once

#include <gtest/gtest.h>

#include "device.h"

namespace ipclab::ptx::testing {

template <class T>
std::string bits_type() {
  return ".b" + std::to_string(sizeof(T) * 8);
}

inline std::string header() {
  return ".version 9.0\n.target sm_90\n.address_size 64\n";
}

/// The module of a kernel `k(d, a, b, c)` around `body`.
template <class R, class A, class B, class C>
std::string one_kernel(const std::string& body) {
  const auto load = [](const char* name, const std::string& type,
                       size_t bytes) {
    const std::string n(name);
    return ".reg " + type + " " + n + ";\n ld.param.u64 %p, [p" + n +
           "];\n mad.wide.u32 %p, %i, " + std::to_string(bytes) +
           ", %p;\n ld.global" + type + " " + n + ", [%p];\n";
  };
  return header() +
         ".visible .entry k(.param .u64 pd, .param .u64 pa, .param .u64 pb,\n"
         ".param .u64 pc, .param .u32 count) {\n"
         ".reg .b64 %p;\n.reg .b32 %i, %n, %t;\n.reg .pred p, q, over;\n"
         "mov.u32 %i, %ctaid.x;\nmov.u32 %n, %ntid.x;\nmov.u32 %t, %tid.x;\n"
         "mad.lo.u32 %i, %i, %n, %t;\nld.param.u32 %n, [count];\n"
         "setp.ge.u32 over, %i, %n;\n@over exit;\n.reg " +
         bits_type<R>() + " d;\n" + load("a", bits_type<A>(), sizeof(A)) +
         load("b", bits_type<B>(), sizeof(B)) +
         load("c", bits_type<C>(), sizeof(C)) + body +
         "\n ld.param.u64 %p, [pd];\n mad.wide.u32 %p, %i, " +
         std::to_string(sizeof(R)) + ", %p;\n st.global" + bits_type<R>() +
         " [%p], d;\n ret;\n}\n";
}

/// The results of `body` for every element of the inputs, which have equal
/// lengths. It runs with full warps and with partial warps; both results must
/// agree bit by bit.
template <class R, class A, class B = uint32_t, class C = uint32_t>
std::vector<R> evaluate(const std::string& body, const std::vector<A>& a,
                        std::vector<B> b = {}, std::vector<C> c = {}) {
  b.resize(a.size());
  c.resize(a.size());
  const auto module = Module::parse(one_kernel<R, A, B, C>(body));
  const Kernel* kernel = module->kernel("k");
  EXPECT_EQ(kernel->unsupported(), "") << body;
  const auto count = static_cast<unsigned>(a.size());
  std::vector<R> results[2];
  for (const unsigned size : {128u, 7u}) {
    Device device(8u << 20);
    device.load(*module);
    const uint64_t d = device.upload(std::vector<R>(count));
    const auto fault = launch(device, kernel, Shape{(count + size - 1) / size},
                              Shape{size}, 0, 20, false, d, device.upload(a),
                              device.upload(b), device.upload(c), count);
    EXPECT_FALSE(fault) << body << ": " << fault->what;
    results[size == 7] = device.template download<R>(d, count);
  }
  EXPECT_EQ(
      std::memcmp(results[0].data(), results[1].data(), count * sizeof(R)), 0)
      << body << ": full and partial warps differ";
  return results[0];
}

/// All pairs of the values.
template <class T>
std::pair<std::vector<T>, std::vector<T>> pairs(const std::vector<T>& values) {
  std::pair<std::vector<T>, std::vector<T>> result;
  for (const T a : values)
    for (const T b : values) {
      result.first.push_back(a);
      result.second.push_back(b);
    }
  return result;
}

/// True if both have the same bits, or both are NaN.
template <class T>
bool same(T a, T b) {
  if (a != a && b != b) return true;
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): 0 is not -0 here.
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Checks a two-operand instruction against a function on all pairs.
template <class R, class T, class Function>
void expect_binary(const std::string& instruction, const std::vector<T>& values,
                   Function expected) {
  const auto [a, b] = pairs(values);
  const auto d = evaluate<R, T, T>(instruction + " d, a, b;", a, b);
  for (size_t k = 0; k < d.size(); ++k) {
    const R want = static_cast<R>(expected(a[k], b[k]));
    EXPECT_TRUE(same(d[k], want))
        << instruction << " of " << +a[k] << " and " << +b[k] << " is " << +d[k]
        << ", not " << +want;
  }
}

template <class R, class T, class Function>
void expect_unary(const std::string& instruction, const std::vector<T>& values,
                  Function expected) {
  const auto d = evaluate<R, T>(instruction + " d, a;", values);
  for (size_t k = 0; k < d.size(); ++k) {
    const R want = static_cast<R>(expected(values[k]));
    EXPECT_TRUE(same(d[k], want)) << instruction << " of " << +values[k]
                                  << " is " << +d[k] << ", not " << +want;
  }
}

}  // namespace ipclab::ptx::testing
