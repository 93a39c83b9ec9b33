// SPDX-License-Identifier: Apache-2.0
// Runs kernels that nvcc compiled for three architectures: calls, divergence,
// barriers, memories, atomics, output.
#include <time.h>

#include <cmath>

#include "evaluate.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

struct Packet {
  int a;
  double b;
  char c[5];
};

class Kernels : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    module_ =
        Module::parse(read_file(std::string(IPCLAB_PTX_FILES) + "/kernels_" +
                                std::to_string(GetParam()) + ".ptx"));
    device_.load(*module_);
  }

  template <class... Arguments>
  void run(const char* name, Shape grid, Shape block,
           const Arguments&... arguments) {
    const auto fault = launch(device_, kernel(name), grid, block, shared_, 30,
                              cooperative_, arguments...);
    ASSERT_FALSE(fault) << fault->what;
  }
  const Kernel* kernel(const char* name) {
    const Kernel* found = module_->kernel(name);
    if (found == nullptr) throw std::runtime_error(name);
    EXPECT_EQ(found->unsupported(), "") << name;
    return found;
  }

  std::unique_ptr<Module> module_;
  Device device_;
  unsigned shared_ = 0;
  bool cooperative_ = false;
};

INSTANTIATE_TEST_SUITE_P(Architectures, Kernels, ::testing::Values(75, 90, 100),
                         [](const auto& info) {
                           return "sm_" + std::to_string(info.param);
                         });

TEST_P(Kernels, AllAreSupported) {
  EXPECT_EQ(module_->kernels().size(), 31u);
  for (const auto& k : module_->kernels())
    EXPECT_EQ(k->unsupported(), "") << k->name();
}

int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

TEST_P(Kernels, CallsStructsRecursionAndPointers) {
  constexpr int kThreads = 70;
  const Packet packet = {10, 1.5, {1, 2, 3, 4, 5}};
  const uint64_t out = device_.upload(std::vector<int>(size_t{4} * kThreads));
  run("call_functions", Shape{3}, Shape{32}, out, packet, kThreads);
  const auto got = device_.download<int>(out, size_t{4} * kThreads);
  for (int t = 0; t < kThreads; ++t) {
    const int* own = got.data() + ptrdiff_t{4} * t;
    EXPECT_EQ(own[0],
              10 + t + static_cast<int>(1.5 * t) + static_cast<char>(t));
    EXPECT_EQ(own[1], fibonacci(t % 11));
    EXPECT_EQ(own[2], t % 3 == 0 ? t + 1 : t % 3 == 1 ? 2 * t : t * t);
    EXPECT_EQ(own[3], 2 * (t % 5) + 3);  // ackermann(2, n)
  }
}

int recursive_arrays(int n) {
  int a[4] = {n, n * 3, n - 7, n ^ 5};
  if (n == 0) return a[2];
  a[n & 3] += 100;
  const int below = recursive_arrays(n - 1);
  return below + a[(n + below) & 3];
}

TEST_P(Kernels, VariablesOfCallersSurviveCalls) {
  const uint64_t out = device_.allocate(64 * sizeof(int));
  run("sum_arrays", Shape{1}, Shape{64}, out);
  const auto got = device_.download<int>(out, 64);
  for (int t = 0; t < 64; ++t) EXPECT_EQ(got[t], recursive_arrays(t % 20));
}

TEST_P(Kernels, DivergentLoops) {
  std::vector<unsigned> in(1000);
  for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<unsigned>(k * 37);
  const uint64_t out = device_.allocate(4000);
  run("collatz", Shape{8}, Shape{128}, device_.upload(in), out, 1000);
  const auto got = device_.download<unsigned>(out, in.size());
  for (size_t k = 0; k < in.size(); ++k) {
    unsigned steps = 0;
    for (uint64_t v = in[k]; v > 1 && steps < 500; ++steps)
      v = v % 2 == 0 ? v / 2 : 3 * v + 1;
    ASSERT_EQ(got[k], steps) << in[k];
  }
}

TEST_P(Kernels, SwitchWithFallThrough) {
  std::vector<int> in(65);
  for (int k = 0; k < 65; ++k) in[k] = k % 10 - 1;
  const uint64_t out = device_.upload(std::vector<int>(128));
  run("choose", Shape{1}, Shape{64}, device_.upload(in), out);
  const auto got = device_.download<int>(out, 128);
  for (int k = 0; k < 64; ++k) {
    const int v = in[k];
    const int expected[] = {17, 105, 102, -3, 1, 80, 35, in[k + 1]};
    EXPECT_EQ(got[k], v >= 0 && v < 8 ? expected[v] : -1) << v;
    EXPECT_EQ(got[k + 64], v == 4 ? 4 : 0);
  }
}

TEST_P(Kernels, LanesWaitForEachOther) {
  const uint64_t flags = device_.upload(std::vector<int>(33));
  run("lane_chain", Shape{1}, Shape{32}, flags);
  EXPECT_EQ(device_.download<int>(flags, 1)[0], 32);
  const uint64_t lock = device_.upload(std::vector<int>(2));
  run("spin_lock", Shape{4}, Shape{96}, lock, lock + 4);
  EXPECT_EQ(device_.download<int>(lock, 2)[1], 4 * 96);
}

TEST_P(Kernels, BlocksWaitForEachOther) {
  const uint64_t out = device_.upload(std::vector<int>(101));
  run("block_barrier", Shape{100}, Shape{64}, out, out + 4);
  EXPECT_EQ(device_.download<int>(out, 101), std::vector<int>(101, 100));
}

TEST_P(Kernels, GridSync) {
  constexpr int kThreads = 6 * 64;
  std::vector<int> in(kThreads);
  for (int k = 0; k < kThreads; ++k) in[k] = k;
  const uint64_t data = device_.upload(in);
  cooperative_ = true;
  run("grid_sync", Shape{6}, Shape{64}, data, 5);
  const auto got = device_.download<int>(data, kThreads);
  for (int k = 0; k < kThreads; ++k) EXPECT_EQ(got[k], (k + 5) % kThreads + 5);
}

TEST_P(Kernels, BarriersInLoops) {
  for (const unsigned size : {1u, 31u, 33u, 256u}) {
    const uint64_t out = device_.allocate(sizeof(unsigned) * 3 * 256);
    run("barrier_loop", Shape{3}, Shape{size}, out, 9);
    const auto got = device_.download<unsigned>(out, size_t{3} * size);
    for (unsigned k = 0; k < 3 * size; ++k)
      EXPECT_EQ(got[k], (k % size + 9) % size);
  }
}

TEST_P(Kernels, BarriersThatCount) {
  const uint64_t out = device_.allocate(400);
  run("barrier_votes", Shape{1}, Shape{100}, out);
  EXPECT_EQ(device_.download<int>(out, 100), std::vector<int>(100, 34 * 4 + 2));
}

TEST_P(Kernels, DynamicSharedMemory) {
  const uint64_t out = device_.allocate(64 * sizeof(double));
  shared_ = 1000 * 8;
  EXPECT_EQ(kernel("dynamic_shared")->static_shared_bytes(), 33u * 4);
  run("dynamic_shared", Shape{1}, Shape{64}, out, 1000);
  EXPECT_EQ(device_.download<double>(out, 64),
            std::vector<double>(64, 499500 * 0.5));
}

TEST_P(Kernels, SharedMemoryOfAFunctionIsItsOwn) {
  const uint64_t out = device_.allocate(64 * sizeof(int));
  run("two_shared", Shape{2}, Shape{64}, out);
  const auto got = device_.download<int>(out, 64);
  for (int t = 0; t < 64; ++t) EXPECT_EQ(got[t], 1000 + 63 - t + 63 - t);
}

TEST_P(Kernels, WarpCollectives) {
  std::vector<int> in(128);
  for (int k = 0; k < 128; ++k) in[k] = k * k;
  const uint64_t out = device_.upload(std::vector<int>(256));
  run("warp_reduce", Shape{1}, Shape{128}, device_.upload(in), out);
  const auto got = device_.download<int>(out, 256);
  for (int k = 0; k < 128; ++k) {
    int tile = 0;
    for (int j = k / 8 * 8; j < k / 8 * 8 + 8; ++j) tile += in[j];
    EXPECT_EQ(got[k], tile);
  }
  for (int w = 0; w < 4; ++w) {
    int sum = 0, some = 0;
    for (int j = w * 32; j < w * 32 + 32; ++j) sum += in[j], some += j % 3 == 1;
    EXPECT_EQ(got[128 + w], sum);
    EXPECT_EQ(got[144 + w], some);
  }
}

TEST_P(Kernels, VariablesInitialisersAndRelocations) {
  const uint64_t out = device_.allocate(64 * sizeof(float));
  bool constant = false, managed = false;
  uint64_t counter = 0;
  for (const Module::Variable& v : module_->variables()) {
    if (v.name == "table") constant = v.constant;
    if (v.name == "managed") managed = v.managed;
    if (v.name == "counter") counter = v.address;
  }
  EXPECT_TRUE(constant && managed);
  run("variables", Shape{1}, Shape{64}, out);
  const auto got = device_.download<float>(out, 64);
  for (int k = 0; k < 64; ++k) EXPECT_EQ(got[k], (k & 3) + 0.5f + 3 + 9);
  EXPECT_EQ(*device_.host<unsigned>(counter), 41u + 64);
}

TEST_P(Kernels, OffsetsBeyondFourGigabytes) {
  Device large(5ull << 30);
  large.load(*module_);
  const uint64_t data = large.allocate(1);
  const uint64_t offset = (4ull << 30) + 12345;
  const auto fault = launch(large, kernel("wide_index"), Shape{1}, Shape{32}, 0,
                            10, false, data, offset);
  ASSERT_FALSE(fault) << fault->what;
  for (int k = 0; k < 32; ++k) EXPECT_EQ(large.host<char>(data)[offset + k], k);
}

TEST_P(Kernels, LocalArrays) {
  const uint64_t out = device_.allocate(64 * sizeof(int));
  run("local_array", Shape{1}, Shape{64}, out, 100);
  const auto got = device_.download<int>(out, 64);
  for (int t = 0; t < 64; ++t) {
    int stack[40];
    for (int k = 0; k < 40; ++k) stack[k] = k * t;
    for (int k = 1; k < 100; ++k)
      stack[k % 40] =
          static_cast<int>(static_cast<unsigned>(stack[k % 40]) +
                           static_cast<unsigned>(stack[k * 7 % 40]));
    EXPECT_EQ(got[t], stack[100 % 40]);
  }
}

TEST_P(Kernels, IndicesInThreeDimensions) {
  constexpr size_t kThreads = size_t{2} * 3 * 2 * 5 * 3 * 4;
  const uint64_t out = device_.allocate(kThreads * sizeof(unsigned));
  run("indices", Shape{2, 3, 2}, Shape{5, 3, 4}, out);
  const auto got = device_.download<unsigned>(out, kThreads);
  size_t at = 0;
  for (unsigned bz = 0; bz < 2; ++bz)
    for (unsigned by = 0; by < 3; ++by)
      for (unsigned bx = 0; bx < 2; ++bx)
        for (unsigned z = 0; z < 4; ++z)
          for (unsigned y = 0; y < 3; ++y)
            for (unsigned x = 0; x < 5; ++x)
              ASSERT_EQ(got[at++],
                        x | y << 4 | z << 8 | bx << 12 | by << 16 | bz << 20);
}

TEST_P(Kernels, Atomics) {
  const uint64_t u =
      device_.upload(std::vector<unsigned>{0, 0, 77, 0, ~0u, 0, 0, 5, 1000});
  const uint64_t s = device_.upload(std::vector<int>{0, -1000});
  const uint64_t l = device_.upload(std::vector<uint64_t>{1, 0, 0});
  const uint64_t f = device_.upload(std::vector<float>{0});
  const uint64_t d = device_.upload(std::vector<double>{0});
  run("atomics", Shape{4}, Shape{64}, u, s, l, f, d);
  const auto gu = device_.download<unsigned>(u, 9);
  EXPECT_EQ(gu[0], 255u * 128);
  EXPECT_EQ(gu[1], 255u);
  EXPECT_EQ(gu[2], 0u);
  EXPECT_EQ(gu[3], ~0u);
  EXPECT_EQ(gu[4], 0xffff0000u);
  EXPECT_EQ(gu[5], 0u);
  EXPECT_EQ(gu[6], 256u % 10);
  EXPECT_EQ(gu[7], (5u + 1000 - 256) % 10);
  EXPECT_EQ(gu[8], 1000u - 3 * 256);
  EXPECT_EQ(device_.download<int>(s, 2), (std::vector<int>{-255, 155}));
  EXPECT_EQ(device_.download<uint64_t>(l, 3),
            (std::vector<uint64_t>{1 + (255ull * 128 << 32), 765, 512}));
  EXPECT_EQ(device_.download<float>(f, 1)[0], 128.0f);
  EXPECT_EQ(device_.download<double>(d, 1)[0], 64.0);
}

TEST_P(Kernels, ClocksRun) {
  const uint64_t out = device_.allocate(16);
  timespec before, after;
  clock_gettime(CLOCK_REALTIME, &before);
  run("clocks", Shape{1}, Shape{1}, out);
  clock_gettime(CLOCK_REALTIME, &after);
  const auto got = device_.download<int64_t>(out, 2);
  EXPECT_GE(got[0], 2000000);
  EXPECT_GE(got[1], before.tv_sec * 1000000000ll + before.tv_nsec);
  EXPECT_LE(got[1], after.tv_sec * 1000000000ll + after.tv_nsec);
}

TEST_P(Kernels, PrintsLikePrintf) {
  struct Arguments {
    int n;
    double x;
    uint64_t unused;
  } arguments = {-42, 3.14159, 0};
  std::string printed;
  Launch l;
  l.kernel = kernel("print_values");
  l.parameters = &arguments;
  l.space = &device_.space;
  l.print_context = &printed;
  l.print = [](void* to, const char* text) {
    *static_cast<std::string*>(to) += text;
  };
  const auto fault = ipclab::ptx::run(l);
  ASSERT_FALSE(fault) << fault->what;
  char expected[1024];
  std::snprintf(
      expected, sizeof expected,
      "%d|%5d|%-5d|%05d|%+d|%x|%#X|%o|%u\n%lld %llu %ld %hd %c %s %%\n"
      "%f %.2f %8.3e %g %*d\nno arguments\n",
      -42, -42, -42, -42, -42, 255u, 255u, 8u, ~0u, -(1ll << 40), ~0ull,
      1l << 33, static_cast<short>(-5), 'x', "text", 3.14159, 3.14159, 3.14159,
      3.14159, 6, 42);
  EXPECT_EQ(printed, expected);
}

TEST_P(Kernels, DescribesItself) {
  const Kernel* k = kernel("call_functions");
  ASSERT_EQ(k->parameters().size(), 3u);
  EXPECT_EQ(k->parameters()[1].offset, 8u);
  EXPECT_EQ(k->parameters()[1].size, 24u);
  EXPECT_EQ(k->parameter_bytes(), 36u);
  EXPECT_EQ(k->max_threads_per_block(), 1024u);
  EXPECT_GT(k->register_count(), 7u);
  EXPECT_EQ(kernel("barrier_loop")->static_shared_bytes(), 1024u);
  EXPECT_GE(kernel("local_array")->local_bytes(), 160u);
}

}  // namespace
