// SPDX-License-Identifier: Apache-2.0
// Thread block clusters: ranks, the barrier of a cluster, shared memory of
// other blocks.
#include "evaluate.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

/// The 32-bit results of a kernel `k(out)` with `body`, which ends with the
/// result in register `r` of each thread.
std::vector<uint32_t> run_clusters(const std::string& body, Shape grid,
                                   Shape block, Shape cluster) {
  const auto module = Module::parse(
      header() +
      ".visible .entry k(.param .u64 out) { .reg .b32 r, s, t, n, c, a, v;\n"
      ".reg .b64 p, g; .reg .pred q; .shared .align 8 .b32 own[64];\n"
      "mov.u32 t, %tid.x; mov.u32 n, %ntid.x; mov.u32 c, %ctaid.x;\n" +
      body +
      "\nld.param.u64 p, [out]; mov.u32 s, %ctaid.z; mov.u32 a, %nctaid.y;\n"
      "mov.u32 v, %ctaid.y; mad.lo.u32 s, s, a, v; mov.u32 a, %nctaid.x;\n"
      "mad.lo.u32 s, s, a, c; mad.lo.u32 s, s, n, t;\n"
      "mad.wide.u32 p, s, 4, p; st.global.u32 [p], r; ret; }\n");
  const Kernel* kernel = module->kernel("k");
  EXPECT_EQ(kernel->unsupported(), "") << body;
  Device device(8u << 20);
  device.load(*module);
  const size_t count =
      size_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
  const uint64_t out = device.upload(std::vector<uint32_t>(count, 999));
  Launch launch;
  launch.kernel = kernel;
  const unsigned sizes[3][3] = {{grid.x, grid.y, grid.z},
                                {block.x, block.y, block.z},
                                {cluster.x, cluster.y, cluster.z}};
  std::memcpy(launch.grid, sizes[0], sizeof sizes[0]);
  std::memcpy(launch.block, sizes[1], sizeof sizes[1]);
  std::memcpy(launch.cluster, sizes[2], sizeof sizes[2]);
  launch.parameters = &out;
  launch.space = &device.space;
  launch.limit_seconds = 30;
  const auto fault = run(launch);
  EXPECT_FALSE(fault) << body << ": " << fault->what;
  return device.download<uint32_t>(out, count);
}

TEST(Clusters, HaveRanksAndPlaces) {
  // rank + 10 * blocks + 100 * (place in x + 4 * place in y)
  const auto r = run_clusters(
      "mov.u32 r, %cluster_ctarank; mov.u32 s, %cluster_nctarank;\n"
      "mad.lo.u32 r, s, 10, r; mov.u32 s, %clusterid.y;\n"
      "mov.u32 a, %clusterid.x; mad.lo.u32 s, s, 4, a;\n"
      "mad.lo.u32 r, s, 100, r;",
      Shape{4, 4}, Shape{1}, Shape{2, 2});
  EXPECT_EQ(r, (std::vector<uint32_t>{40, 41, 140, 141, 42, 43, 142, 143,  //
                                      440, 441, 540, 541, 442, 443, 542, 543}));
  EXPECT_EQ(run_clusters("mov.u32 r, %cluster_nctarank;", Shape{3}, Shape{1},
                         Shape{1}),
            (std::vector<uint32_t>{1, 1, 1}));
}

// Each thread writes its number into its own block, and reads the same place of
// the next block, three times.
const char* const kRing =
    "mov.u32 n, %ntid.x; mov.u32 r, 0; mov.u32 v, 0;\n"
    "again: mov.u32 a, own; mad.lo.u32 a, t, 4, a; mov.u32 s, "
    "%cluster_ctarank;\n"
    "mad.lo.u32 c, s, 100, t; mad.lo.u32 c, v, 1000, c;\n"
    "st.shared.u32 [a], c; barrier.cluster.arrive.release.aligned;\n"
    "barrier.cluster.wait.acquire.aligned;\n"
    "add.u32 s, s, 1; mov.u32 c, %cluster_nctarank; rem.u32 s, s, c;\n";

TEST(Clusters, ReadSharedMemoryOfOtherBlocks) {
  const std::string rest =
      "add.u32 r, r, c;\n"
      "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
      "add.u32 v, v, 1; setp.lt.u32 q, v, 3; @q bra again;\n"
      "mov.u32 c, %ctaid.x;";
  const std::string by_address = kRing +
                                 std::string(
                                     "mapa.shared::cluster.u32 a, a, s;\n"
                                     "ld.shared::cluster.u32 c, [a];\n") +
                                 rest;
  const std::string by_generic = kRing +
                                 std::string(
                                     "cvt.u64.u32 g, a; cvta.shared.u64 g, g;\n"
                                     "mapa.u64 g, g, s; ld.u32 c, [g];\n") +
                                 rest;
  for (const std::string& body : {by_address, by_generic}) {
    const auto r = run_clusters(body, Shape{8}, Shape{48}, Shape{4});
    for (uint32_t block = 0; block < 8; ++block)
      for (uint32_t t = 0; t < 48; ++t)
        ASSERT_EQ(r[block * 48 + t], 3 * ((block + 1) % 4 * 100 + t) + 3000)
            << block << " " << t;
  }
}

TEST(Clusters, KnowWhoseMemoryAnAddressIs) {
  // rank of the address + 10 * is it shared::cta + 100 * is it shared::cluster
  const auto r = run_clusters(
      "mov.u32 a, own; mapa.shared::cluster.u32 a, a, 1;\n"
      "getctarank.shared::cluster.u32 r, a;\n"
      "cvt.u64.u32 g, a; cvta.shared::cluster.u64 g, g;\n"
      "getctarank.u64 s, g; add.u32 r, r, s;\n"
      "isspacep.shared::cta q, g; @q add.u32 r, r, 10;\n"
      "isspacep.shared::cluster q, g; @q add.u32 r, r, 100;",
      Shape{2}, Shape{1}, Shape{2});
  EXPECT_EQ(r, (std::vector<uint32_t>{102, 112}));
}

TEST(Clusters, CountAtomicallyInOneBlock) {
  const auto r = run_clusters(
      "mov.u32 a, own; mov.u32 s, 0; st.shared.u32 [a], s;\n"
      "barrier.cluster.arrive; barrier.cluster.wait;\n"
      "mapa.shared::cluster.u32 a, a, 2;\n"
      "atom.shared::cluster.add.u32 s, [a], 1;\n"
      "barrier.cluster.arrive; barrier.cluster.wait;\n"
      "ld.shared::cluster.u32 r, [a];\n"
      "barrier.cluster.arrive; barrier.cluster.wait;",
      Shape{3}, Shape{32}, Shape{3});
  EXPECT_EQ(r, std::vector<uint32_t>(96, 96));
}

// A thread that has ended counts as arrived.
TEST(Clusters, BarrierDoesNotWaitForEndedThreads) {
  const auto r = run_clusters(
      "mov.u32 r, 7; setp.eq.u32 q, t, 5; @q exit;\n"
      "barrier.cluster.arrive; barrier.cluster.wait;",
      Shape{2}, Shape{40}, Shape{2});
  for (size_t k = 0; k < r.size(); ++k)
    EXPECT_EQ(r[k], k % 40 == 5 ? 999u : 7u) << k;
}

TEST(Clusters, KernelMayRequireASize) {
  const auto module = Module::parse(
      header() +
      ".visible .entry k() .reqnctapercluster 2, 3 .minnctapersm 1 { ret; }\n"
      ".visible .entry l() .explicitcluster .reqntid 32 { ret; }\n");
  const unsigned* k = module->kernel("k")->required_cluster();
  EXPECT_EQ((std::vector<unsigned>{k[0], k[1], k[2]}),
            (std::vector<unsigned>{2, 3, 1}));
  EXPECT_EQ(module->kernel("l")->required_cluster()[0], 0u);
  EXPECT_EQ(module->kernel("l")->max_threads_per_block(), 32u);
}

}  // namespace
