// SPDX-License-Identifier: Apache-2.0
// Values that are the same in all blocks that a warp runs are computed once,
// before its first block. Other values must not be computed so early.
#include <functional>

#include "device.h"
#include "gtest/gtest.h"

namespace {

using namespace ipclab::ptx::testing;

constexpr size_t kBlocks = 5, kThreads = 70;

/// Runs a body that leaves its result in %r9, and compares it with
/// expected(block, thread) in each thread. The parameter `number` is 1000.
void expect(const std::string& body,
            const std::function<uint32_t(uint32_t, uint32_t)>& expected) {
  const auto module = ipclab::ptx::Module::parse(
      R"(.version 9.0
         .target sm_90
         .address_size 64
         .visible .entry k(.param .u64 out, .param .u32 number) {
         .reg .pred %p<4>;
         .reg .b32 %r<20>;
         .reg .b64 %d<8>;
         ld.param.u64 %d1, [out];
         mov.u32 %r1, %ctaid.x;
         mov.u32 %r2, %ntid.x;
         mov.u32 %r3, %tid.x;
         mad.lo.s32 %r4, %r1, %r2, %r3;
         mul.wide.u32 %d2, %r4, 4;
         add.s64 %d3, %d1, %d2;
)" + body +
      " st.global.u32 [%d3], %r9; ret; }");
  ASSERT_EQ(module->kernel("k")->unsupported(), "") << body;
  Device device(4u << 20);
  device.load(*module);
  const uint64_t out = device.allocate(kBlocks * kThreads * 4);
  const auto fault = launch(device, module->kernel("k"), Shape{kBlocks},
                            Shape{kThreads}, 0, 10, false, out, 1000u);
  ASSERT_FALSE(fault) << fault->what;
  const auto seen = device.download<uint32_t>(out, kBlocks * kThreads);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      ASSERT_EQ(seen[block * kThreads + thread], expected(block, thread))
          << body << " in block " << block << ", thread " << thread;
    }
  }
}

TEST(Early, WhatFollowsFromParametersAndThreads) {
  expect(
      "ld.param.u32 %r5, [number]; shl.b32 %r6, %r3, 2;"
      "add.u32 %r9, %r5, %r6;",
      [](uint32_t, uint32_t thread) { return 1000 + 4 * thread; });
}

TEST(Early, NotWhatFollowsFromTheBlock) {
  expect("ld.param.u32 %r5, [number]; add.u32 %r9, %r5, %r1;",
         [](uint32_t block, uint32_t) { return 1000 + block; });
}

TEST(Early, NotWhatIsWrittenInTwoPlaces) {
  expect(
      "mov.u32 %r9, 7; setp.lt.u32 %p1, %r3, 40; @%p1 bra DONE;"
      "mov.u32 %r9, 8; DONE:",
      [](uint32_t, uint32_t thread) { return thread < 40 ? 7 : 8; });
  // An instruction may also write several registers.
  expect("mov.u32 %r9, 7; mov.u64 %d4, 17179869187; mov.b64 {%r9, %r10}, %d4;",
         [](uint32_t, uint32_t) { return 3; });
}

TEST(Early, NotWhatHasAGuard) {
  expect(
      "xor.b32 %r5, %r1, %r1; mov.u32 %r6, %r5; add.u32 %r9, %r6, 1;"
      "setp.eq.u32 %p1, %r1, 3; @%p1 add.u32 %r9, %r3, 5;",
      [](uint32_t block, uint32_t thread) {
        return block == 3 ? thread + 5 : 1;
      });
}

TEST(Early, NotWhatCountsInALoop) {
  expect(
      "mov.u32 %r9, 0; mov.u32 %r5, 0;"
      "LOOP: add.u32 %r9, %r9, %r3; add.u32 %r5, %r5, 1;"
      "setp.lt.u32 %p1, %r5, %r1; @%p1 bra LOOP;",
      [](uint32_t block, uint32_t thread) {
        return thread * std::max(block, 1u);
      });
}

TEST(Early, AFaultStopsWhatStandsAfterIt) {
  const auto module = ipclab::ptx::Module::parse(
      R"(.version 9.0
         .target sm_90
         .address_size 64
         .visible .entry k(.param .u64 out) {
         .reg .b32 %r<4>;
         .reg .b64 %d<4>;
         ld.param.u64 %d1, [out];
         mov.u64 %d2, 64;
         ld.global.u32 %r1, [%d2];
         st.global.u32 [%d1], 5;
         ret; })");
  Device device(4u << 20);
  device.load(*module);
  const uint64_t out = device.allocate(4);
  EXPECT_TRUE(launch(device, module->kernel("k"), Shape{1}, Shape{32}, 0, 10,
                     false, out));
  EXPECT_EQ(device.download<uint32_t>(out, 1)[0], 0u);
}

}  // namespace
