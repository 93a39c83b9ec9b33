// SPDX-License-Identifier: Apache-2.0
// mbarrier: phases, states and parities, transaction bytes, and mistakes of
// programs.
#include <algorithm>

#include "evaluate.h"

namespace {

using namespace ipclab::ptx::testing;

constexpr uint32_t kThreads = 64;  // two warps, which must wait for each other

std::vector<uint32_t> numbers() {
  std::vector<uint32_t> a(kThreads);
  for (uint32_t k = 0; k < kThreads; ++k) a[k] = 100 + k;
  return a;
}

/// Runs `body` in one block of 64 threads. Before that, thread 0 initialises
/// `bar`, which waits for `count` arrivals. In the body, %t is the number of
/// the thread, the register a holds 100 + %t, and the predicate `first` is true
/// in thread 0 only. `result` gets the register d of each thread.
std::optional<ipclab::ptx::Fault> run(const std::string& count,
                                      const std::string& body,
                                      std::vector<uint32_t>* result) {
  const auto module = ipclab::ptx::Module::parse(
      one_kernel<uint32_t, uint32_t, uint32_t, uint32_t>(
          ".shared .b64 bar;\n.shared .align 16 .b8 data[256];\n"
          ".reg .b64 state, %g;\n.reg .b32 %s, %o;\n.reg .pred first;\n"
          "setp.eq.u32 first, %t, 0;\nmov.u32 %s, data;\n"
          "@first mbarrier.init.shared::cta.b64 [bar], " +
          count + ";\nbar.sync 0;\n" + body));
  EXPECT_EQ(module->kernel("k")->unsupported(), "") << body;
  Device device(4u << 20);
  device.load(*module);
  const uint64_t d = device.upload(std::vector<uint32_t>(kThreads));
  const uint64_t a = device.upload(numbers());
  auto fault = launch(device, module->kernel("k"), Shape{1}, Shape{kThreads}, 0,
                      10, false, d, a, a, a, kThreads);
  *result = device.download<uint32_t>(d, kThreads);
  return fault;
}

std::vector<uint32_t> run(const std::string& count, const std::string& body) {
  std::vector<uint32_t> result;
  const auto fault = run(count, body, &result);
  EXPECT_FALSE(fault) << fault->what;
  return result;
}

std::vector<uint32_t> all(uint32_t value) {
  return std::vector<uint32_t>(kThreads, value);
}

// Each thread writes its own number and, after the wait, reads the number of
// the opposite thread. There are three rounds, because then the parity of the
// phases repeats.
TEST(Mbarrier, NobodyGetsOnBeforeAllHaveArrived) {
  std::string body = "mov.u32 d, 0;\nshl.b32 %o, %t, 2;\nadd.u32 %o, %o, %s;\n";
  for (const std::string round : {"1", "2", "3"}) {
    body.append("mul.lo.u32 c, a, ")
        .append(round)
        .append(
            ";\nst.shared.u32 [%o], c;\n"
            "mbarrier.arrive.release.cta.shared::cta.b64 state, [bar];\n"
            "again")
        .append(round)
        .append(
            ":\n"
            "mbarrier.try_wait.acquire.cta.shared::cta.b64 p, [bar], state;\n"
            "@!p bra again")
        .append(round)
        .append(
            ";\nsub.u32 b, 63, %t;\nshl.b32 b, b, 2;\nadd.u32 b, b, %s;\n"
            "ld.shared.u32 c, [b];\nadd.u32 d, d, c;\nbar.sync 0;\n");
  }
  const auto seen = run("64", body);
  for (uint32_t k = 0; k < kThreads; ++k) EXPECT_EQ(seen[k], 6 * (163 - k));
}

TEST(Mbarrier, ParityTellsPhasesApart) {
  // No thread has arrived: phase 0 has not ended, and the phase before it
  // counts as ended. After an arrival phase 0 has ended.
  const std::string look =
      "mbarrier.test_wait.parity.shared::cta.b64 p, [bar], 0;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 q, [bar], 1;\n"
      "selp.u32 b, 1, 0, p;\nselp.u32 c, 2, 0, q;\nadd.u32 d, b, c;\n";
  EXPECT_EQ(run("1", look), all(2));
  const std::string arrival =
      "@first mbarrier.arrive.shared::cta.b64 _, [bar];\nbar.sync 0;\n";
  EXPECT_EQ(run("1", arrival + look), all(1));
  EXPECT_EQ(run("2", arrival + look), all(2));
}

TEST(Mbarrier, AStateTellsHowManyArrivalsAreMissing) {
  // Each thread finds one arrival less than the thread that arrived before it.
  auto seen = run("64",
                  "mbarrier.arrive.shared::cta.b64 state, [bar];\n"
                  "mbarrier.pending_count.b64 d, state;\n");
  std::sort(seen.begin(), seen.end());
  for (uint32_t k = 0; k < kThreads; ++k) EXPECT_EQ(seen[k], k + 1);
  // One thread makes 60 arrivals, so this phase waits for four more.
  const std::string some =
      "@first mbarrier.arrive.shared::cta.b64 _, [bar], 60;\nbar.sync 0;\n"
      "setp.ne.u32 p, %t, 5;\n@p bra out;\n"
      "mbarrier.arrive.shared::cta.b64 state, [bar];\n"
      "mbarrier.pending_count.b64 d, state;\nout:\n";
  EXPECT_EQ(run("64", some)[5], 4u);
}

TEST(Mbarrier, WhoDropsOutIsNotWaitedForAgain) {
  const std::string body =
      "@first mbarrier.arrive_drop.shared::cta.b64 _, [bar], 1;\nbar.sync 0;\n"
      "@first mbarrier.arrive.shared::cta.b64 _, [bar], 1;\nbar.sync 0;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [bar], 0;\n"
      "selp.u32 d, 1, 0, p;\n"
      // The first phase has ended. The second phase needs one arrival, not two.
      "@first mbarrier.arrive.shared::cta.b64 _, [bar], 1;\nbar.sync 0;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [bar], 1;\n"
      "@p add.u32 d, d, 2;\n";
  EXPECT_EQ(run("2", body), all(3));
}

TEST(Mbarrier, BytesOfACopyArePartOfAPhase) {
  // One arrival alone does not end the phase: 256 bytes are expected.
  const std::string expect =
      "@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;\n"
      "bar.sync 0;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [bar], 0;\n"
      "selp.u32 d, 1000, 0, p;\nbar.sync 0;\n";
  const std::string copy =
      "ld.param.u64 %g, [pa];\ncvta.to.global.u64 %g, %g;\n"
      "@first cp.async.bulk.shared::cluster.global"
      ".mbarrier::complete_tx::bytes [data], [%g], 256, [bar];\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0;\n"
      "@!p bra again;\n"
      "shl.b32 %o, %t, 2;\nadd.u32 %o, %o, %s;\nld.shared.u32 c, [%o];\n"
      "add.u32 d, d, c;\n";
  EXPECT_EQ(run("1", expect + copy), numbers());
}

// %g is the address of the numbers 100, 101, …; `data` has the numbers 0, 1, …
// twice, if `bytes` is 8 as 64-bit values.
std::string fill_data(int bytes) {
  const std::string width = std::to_string(bytes * 8);
  return "shl.b32 %o, %t, " + std::string(bytes == 8 ? "3" : "2") +
         ";\nadd.u32 %o, %o, %s;\n.reg .b" + width + " v;\ncvt.u" + width +
         ".u32 v, %t;\n" + (bytes == 8 ? "setp.lt.u32 p, %t, 32;\n@p " : "") +
         "st.shared.b" + width +
         " [%o], v;\nbar.sync 0;\nld.param.u64 %g, [pa];\n"
         "cvta.to.global.u64 %g, %g;\n";
}

const char* const kWaitAndRead =
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nbar.sync 0;\n"
    "mul.wide.u32 state, %t, 4;\nadd.u64 %g, %g, state;\n"
    "ld.global.u32 d, [%g];\n";

TEST(Bulk, CopiesFromSharedToGlobal) {
  std::vector<uint32_t> wanted(kThreads);
  for (uint32_t k = 0; k < kThreads; ++k) wanted[k] = k;
  EXPECT_EQ(run("1", fill_data(4) +
                         "@first cp.async.bulk.global.shared::cta.bulk_group "
                         "[%g], [data], 256;\n" +
                         kWaitAndRead),
            wanted);
}

TEST(Bulk, ReducesIntoGlobal) {
  const auto reduced = [](const std::string& operation) {
    return run("1", fill_data(4) +
                        "@first cp.reduce.async.bulk.global.shared::cta"
                        ".bulk_group." +
                        operation + " [%g], [data], 256;\n" + kWaitAndRead);
  };
  const auto sum = reduced("add.u32"), least = reduced("min.s32"),
             bits = reduced("xor.b32");
  for (uint32_t k = 0; k < kThreads; ++k) {
    EXPECT_EQ(sum[k], 100 + 2 * k);
    EXPECT_EQ(least[k], k);
    EXPECT_EQ(bits[k], (100 + k) ^ k);
  }
}

TEST(Bulk, ReducesIntoSharedAndCountsTheBytes) {
  const auto d = run(
      "1", fill_data(4) +
               "@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], "
               "256;\n"
               "@first cp.reduce.async.bulk.shared::cluster.shared::cta"
               ".mbarrier::complete_tx::bytes.add.u32 [data], [data], 256, "
               "[bar];\n"
               "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0;\n"
               "@!p bra again;\nld.shared.u32 d, [%o];\n");
  for (uint32_t k = 0; k < kThreads; ++k) EXPECT_EQ(d[k], 2 * k);
}

TEST(Bulk, ReducesWideAndFloatingValues) {
  // Two 32-bit numbers of the target are one 64-bit value.
  const auto wide =
      run("1", fill_data(8) +
                   "@first cp.reduce.async.bulk.global.shared::cta.bulk_group"
                   ".add.u64 [%g], [data], 256;\n" +
                   kWaitAndRead);
  for (uint32_t k = 0; k < kThreads; k += 2) {
    EXPECT_EQ(wide[k], 100 + k + k / 2);
    EXPECT_EQ(wide[k + 1], 101 + k);
  }
  const auto sum = run(
      "1",
      "shl.b32 %o, %t, 2;\nadd.u32 %o, %o, %s;\n.reg .f32 f;\n"
      "cvt.rn.f32.u32 f, %t;\nst.shared.f32 [%o], f;\n"
      "ld.param.u64 %g, [pa];\ncvta.to.global.u64 %g, %g;\n"
      "mul.wide.u32 state, %t, 4;\nadd.u64 state, %g, state;\n"
      "st.global.f32 [state], f;\nbar.sync 0;\n"
      "@first cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 "
      "[%g], [data], 256;\n" +
          std::string(kWaitAndRead) + "mov.b32 f, d;\ncvt.rzi.u32.f32 d, f;\n");
  for (uint32_t k = 0; k < kThreads; ++k) EXPECT_EQ(sum[k], 2 * k);
}

TEST(Mbarrier, TooManyArrivalsAndABadCountAreFaults) {
  std::vector<uint32_t> ignored;
  EXPECT_TRUE(run("32",
                  "mbarrier.arrive.shared::cta.b64 _, [bar], 33;\n"
                  "mov.u32 d, 0;\n",
                  &ignored));
  EXPECT_TRUE(run("0", "mov.u32 d, 0;\n", &ignored));
  EXPECT_TRUE(run("1048576", "mov.u32 d, 0;\n", &ignored));
}

}  // namespace
