// SPDX-License-Identifier: Apache-2.0
// Instructions that lanes run together, with full and partial member masks,
// also if the lanes arrive by different paths.
#include "evaluate.h"

namespace {

using namespace ipclab::ptx::testing;

std::vector<uint32_t> lanes() {
  std::vector<uint32_t> a(32);
  for (uint32_t k = 0; k < 32; ++k) a[k] = k;
  return a;
}

/// Runs `body` in the 32 lanes of one warp; a is the number of the lane.
/// Returns d of each lane.
std::vector<uint32_t> run(const std::string& body) {
  const auto module = ipclab::ptx::Module::parse(
      one_kernel<uint32_t, uint32_t, uint32_t, uint32_t>(body));
  EXPECT_EQ(module->kernel("k")->unsupported(), "") << body;
  Device device(4u << 20);
  device.load(*module);
  const uint64_t d = device.upload(std::vector<uint32_t>(32));
  const uint64_t a = device.upload(lanes());
  const auto fault = launch(device, module->kernel("k"), Shape{1}, Shape{32}, 0,
                            10, false, d, a, a, a, 32u);
  EXPECT_FALSE(fault) << fault->what;
  return device.download<uint32_t>(d, 32);
}

TEST(Warp, ShuffleWithWidthsAndBounds) {
  for (const uint32_t width : {32u, 16u, 8u, 4u}) {
    const uint32_t segment = (32 - width) << 8;
    const auto shuffle = [&](const char* mode, uint32_t by, uint32_t bound) {
      return run(std::string("shfl.sync.") + mode + ".b32 d|p, a, " +
                 std::to_string(by) + ", " + std::to_string(segment | bound) +
                 ", -1; @p add.u32 d, d, 1000;");
    };
    const auto up = shuffle("up", 3, 0), down = shuffle("down", 3, 31);
    const auto bfly = shuffle("bfly", 5, 31), idx = shuffle("idx", 2, 31);
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t in = l % width, base = l - in;
      EXPECT_EQ(up[l], in >= 3 ? l - 3 + 1000 : l);
      EXPECT_EQ(down[l], in + 3 < width ? l + 3 + 1000 : l);
      const uint32_t other = l ^ 5;
      EXPECT_EQ(bfly[l], other <= base + width - 1 ? other + 1000 : l) << width;
      EXPECT_EQ(idx[l], base + 2 % width + 1000);
    }
  }
}

// Groups of one warp meet at one instruction. Lanes whose numbers modulo 3 are
// equal form a group: there are three groups, of 11, 11 and 10 lanes.
std::vector<uint32_t> run_in_groups(const std::string& body) {
  return run(
      "rem.u32 b, a, 3; shl.b32 c, 0x49249249, b; "
      "setp.gt.u32 p, a, 15;" +
      body);
}

uint32_t group_of(uint32_t lane) { return 0x49249249u << lane % 3; }

TEST(Warp, GroupsWithDifferentMasksDoNotMix) {
  const auto ballots = run_in_groups("vote.sync.ballot.b32 d, p, c;");
  const auto any = run_in_groups(
      "setp.eq.u32 p, a, 4; vote.sync.any.pred q, p, c; selp.u32 d, 1, 0, q;");
  const auto same =
      run_in_groups("and.b32 d, a, 1; match.any.sync.b32 d, d, c;");
  const auto sums = run_in_groups("redux.sync.add.s32 d, a, c;");
  const auto leaders = run_in_groups("elect.sync d|p, c;");
  const auto first = run_in_groups("shfl.sync.idx.b32 d, a, b, 31, c;");
  for (uint32_t l = 0; l < 32; ++l) {
    const uint32_t group = group_of(l);
    EXPECT_EQ(ballots[l], group & 0xffff0000u) << l;
    EXPECT_EQ(any[l], l % 3 == 1 ? 1u : 0u) << l;
    EXPECT_EQ(same[l], group & (l % 2 == 1 ? 0xaaaaaaaau : 0x55555555u)) << l;
    uint32_t sum = 0;
    for (uint32_t k = l % 3; k < 32; k += 3) sum += k;
    EXPECT_EQ(sums[l], sum) << l;
    EXPECT_EQ(leaders[l], l % 3) << l;
    EXPECT_EQ(first[l], l % 3) << l;
  }
}

TEST(Warp, GroupsThatArriveInPartsWaitForTheirOwn) {
  // Odd lanes take a longer way; pairs of neighbours meet again.
  const auto pairs =
      run("and.b32 b, a, 30; mov.b32 c, 3; shl.b32 c, c, b; and.b32 d, a, 1; "
          "setp.eq.u32 p, d, 0; mov.b32 d, 0; @p bra MEET; "
          "LONGER: add.u32 d, d, 1; setp.lt.u32 q, d, 300; @q bra LONGER; "
          "MEET: setp.eq.u32 p, a, a; vote.sync.ballot.b32 d, p, c;");
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(pairs[l], 3u << (l & 30)) << l;
}

TEST(Warp, VotesAndBallots) {
  const std::string odd = "and.b32 d, a, 1; setp.eq.u32 p, d, 1;";
  for (const uint32_t v : run(odd + "vote.sync.ballot.b32 d, p, -1;"))
    EXPECT_EQ(v, 0xaaaaaaaau);
  for (const uint32_t v :
       run(odd + "vote.sync.any.pred q, p, -1; selp.u32 d, 1, 0, q;"))
    EXPECT_EQ(v, 1u);
  for (const uint32_t v :
       run(odd + "vote.sync.all.pred q, p, -1; selp.u32 d, 1, 0, q;"))
    EXPECT_EQ(v, 0u);
  for (const uint32_t v :
       run(odd + "vote.sync.uni.pred q, !p, -1; selp.u32 d, 1, 0, q;"))
    EXPECT_EQ(v, 0u);
}

TEST(Warp, MembersVoteInBranches) {
  // Odd and even lanes vote separately, each group with its own mask.
  const auto d =
      run("and.b32 d, a, 1; setp.eq.u32 p, d, 1; setp.lt.u32 q, a, 8;\n"
          "@p bra odd; vote.sync.ballot.b32 d, q, 0x55555555; bra end;\n"
          "odd: vote.sync.ballot.b32 d, q, 0xaaaaaaaa; add.u32 d, d, 1; end:");
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(d[l], l % 2 ? 0xabu : 0x55u);
}

TEST(Warp, LateLanesAreWaitedFor) {
  // Lane n loops n times before the common shuffle.
  const auto d =
      run(".reg .b32 n; mov.u32 n, 0; mov.u32 d, 0;\n"
          "loop: setp.ge.u32 p, n, a; @p bra done; add.u32 n, n, 1;"
          "add.u32 d, d, n; bra loop;\n"
          "done: shfl.sync.idx.b32 d, d, 31, 31, -1;");
  for (const uint32_t v : d) EXPECT_EQ(v, 31u * 32 / 2);
}

TEST(Warp, BarrierAtDifferentPlaces) {
  // Lane 0 writes before its barrier, and the other lanes read after their
  // barrier.
  const auto d =
      run(".shared .b32 s; setp.ne.u32 p, a, 0; @p bra others;\n"
          "st.shared.u32 [s], 77; bar.warp.sync -1; bra end;\n"
          "others: bar.warp.sync -1; end: ld.shared.u32 d, [s];");
  for (const uint32_t v : d) EXPECT_EQ(v, 77u);
}

TEST(Warp, OthersMaySpinWhileLanesMeet) {
  // Lanes 0 and 1 meet at different places while the other lanes spin until
  // lane 1 writes.
  const auto d = run(
      ".shared .b32 s; st.shared.u32 [s], 0; bar.warp.sync -1;\n"
      "setp.eq.u32 p, a, 0; @p bra zero; setp.eq.u32 p, a, 1; @p bra one;\n"
      "spin: ld.volatile.shared.u32 d, [s]; setp.ne.u32 p, d, 9; @p bra spin;"
      "bra end;\n"
      "zero: bar.warp.sync 3; mov.u32 d, 9; bra end;\n"
      "one: bar.warp.sync 3; st.volatile.shared.u32 [s], 9; mov.u32 d, 9;\n"
      "end:");
  for (const uint32_t v : d) EXPECT_EQ(v, 9u);
}

TEST(Warp, LanesThatLeftAreNotWaitedFor) {
  const auto d =
      run("setp.ge.u32 p, a, 20; mov.u32 d, 5; @p bra end;\n"
          "setp.lt.u32 p, a, 4; @!p bra vote; mov.u32 d, 0; @p bra out;\n"
          "out: st.global.u32 [%p], d; exit;\n"
          "vote: vote.sync.ballot.b32 d, !p, 0x000fffff; end:");
  for (uint32_t l = 4; l < 32; ++l) EXPECT_EQ(d[l], l < 20 ? 0xffff0u : 5u);
}

TEST(Warp, MatchAndReduce) {
  const auto any = run("rem.u32 d, a, 3; match.any.sync.b32 d, d, -1;");
  for (uint32_t l = 0; l < 32; ++l)
    for (uint32_t k = 0; k < 32; ++k)
      EXPECT_EQ(any[l] >> k & 1, k % 3 == l % 3);
  const auto all = run("match.all.sync.b32 d|p, 9, -1; @!p mov.u32 d, 1;");
  const auto none = run("match.all.sync.b32 d|p, a, -1; @p mov.u32 d, 1;");
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(all[l], ~0u);
    EXPECT_EQ(none[l], 0u);
  }
  EXPECT_EQ(run("redux.sync.add.u32 d, a, -1;")[3], 31u * 16);
  EXPECT_EQ(run("sub.s32 d, a, 9; redux.sync.min.s32 d, d, -1;")[3],
            static_cast<uint32_t>(-9));
  EXPECT_EQ(run("redux.sync.xor.b32 d, a, -1;")[0], 0u);
  EXPECT_EQ(run("elect.sync d|p, -1; selp.b32 d, 1, 0, p;")[0], 1u);
}

TEST(Warp, ActiveMaskAndLaneMasks) {
  const auto d =
      run("mov.u32 d, 0; setp.lt.u32 p, a, 10; @!p bra end; activemask.b32 d; "
          "end:");
  EXPECT_EQ(d[0], 0x3ffu);
  EXPECT_EQ(run("mov.u32 d, %lanemask_lt;")[5], 31u);
  EXPECT_EQ(run("mov.u32 d, %lanemask_ge;")[31], 1u << 31);
  EXPECT_EQ(run("mov.u32 d, %laneid;")[17], 17u);
}

TEST(Warp, BranchTables) {
  const auto d = run(
      "and.b32 d, a, 3; ts: .branchtargets l0, l1, l2, l1;\n"
      "brx.idx d, ts; l0: mov.u32 d, 10; bra end; l1: mov.u32 d, 11; bra end;"
      "l2: mov.u32 d, 12; end:");
  const uint32_t expected[] = {10, 11, 12, 11};
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(d[l], expected[l % 4]);
}

TEST(Warp, NamedBarrierBetweenProducersAndConsumers) {
  const auto module = ipclab::ptx::Module::parse(
      one_kernel<uint32_t, uint32_t, uint32_t, uint32_t>(
          ".shared .b32 s[64]; .reg .b32 at; .reg .b64 w; shl.b32 at, %t, 2;\n"
          "setp.ge.u32 p, %t, 32; @p bra consume;\n"
          "st.shared.u32 [at], %t; bar.arrive 3, 64; mov.u32 d, 0; bra end;\n"
          "consume: bar.sync 3, 64; ld.shared.u32 d, [at+-128]; end:"));
  ASSERT_EQ(module->kernel("k")->unsupported(), "");
  Device device(4u << 20);
  const uint64_t d = device.upload(std::vector<uint32_t>(64)),
                 a = device.upload(std::vector<uint32_t>(64));
  ASSERT_FALSE(launch(device, module->kernel("k"), Shape{1}, Shape{64}, 0, 10,
                      false, d, a, a, a, 64u));
  const auto got = device.download<uint32_t>(d, 64);
  for (uint32_t t = 32; t < 64; ++t) EXPECT_EQ(got[t], t - 32);
}

TEST(Warp, ExchangeInDifferentInstructionsIsRefused) {
  const auto module = ipclab::ptx::Module::parse(
      one_kernel<uint32_t, uint32_t, uint32_t, uint32_t>(
          "setp.lt.u32 p, a, 10; @p bra low; shfl.sync.idx.b32 d, a, 0, 31, "
          "-1; bra end;\n"
          "low: shfl.sync.idx.b32 d, a, 1, 31, -1; end:"));
  Device device(4u << 20);
  const uint64_t d = device.upload(std::vector<uint32_t>(32)),
                 a = device.upload(lanes());
  const auto fault = launch(device, module->kernel("k"), Shape{1}, Shape{32}, 0,
                            10, false, d, a, a, a, 32u);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 715);
}

}  // namespace
