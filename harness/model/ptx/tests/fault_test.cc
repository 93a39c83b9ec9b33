// SPDX-License-Identifier: Apache-2.0
// Tests the ways in which a kernel can end early: the code, the address and the
// line of the fault, and the contents of memory.
#include <thread>

#include "evaluate.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    text_ = read_file(std::string(IPCLAB_PTX_FILES) + "/kernels_90.ptx");
    module_ = Module::parse(text_);
    device_.load(*module_);
  }

  template <class... Arguments>
  std::optional<Fault> run(const char* name, unsigned threads, double limit,
                           const Arguments&... arguments) {
    return launch(device_, module_->kernel(name), Shape{1}, Shape{threads}, 0,
                  limit, false, arguments...);
  }
  std::string line(int number) const {
    std::stringstream lines(text_);
    std::string result;
    for (int k = 0; k < number; ++k) std::getline(lines, result);
    return result;
  }

  std::string text_;
  std::unique_ptr<Module> module_;
  Device device_;
};

TEST_F(Faults, WriteWithoutPermission) {
  const uint64_t page = device_.allocate(kPage, kPage);
  for (const uint8_t access : {0, 1}) {
    device_.set_access(page, access);
    const auto fault = run("store_int", 1, 10, page + 8);
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->code, 700);
    EXPECT_EQ(fault->address, page + 8);
    EXPECT_EQ(fault->size, 4u);
    EXPECT_TRUE(fault->write);
    EXPECT_EQ(fault->kernel, "store_int");
    EXPECT_NE(line(fault->line).find("st.global.u32"), std::string::npos)
        << line(fault->line);
    EXPECT_NE(fault->what.find("store_int"), std::string::npos);
    EXPECT_NE(fault->what.find("PTX line " + std::to_string(fault->line)),
              std::string::npos);
    EXPECT_EQ(*device_.host<int>(page + 8), 0);
  }
  device_.set_access(page, 2);
  EXPECT_FALSE(run("store_int", 1, 10, page + 8));
  EXPECT_EQ(*device_.host<int>(page + 8), 5);
}

TEST_F(Faults, ReadWithoutPermission) {
  const uint64_t page = device_.allocate(kPage, kPage);
  const uint64_t out = device_.allocate(4);
  device_.set_access(page, 2);
  auto fault = run("load_int", 1, 10, page, out);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 700);
  EXPECT_FALSE(fault->write);
  device_.set_access(page, 1);
  EXPECT_FALSE(run("load_int", 1, 10, page, out));
}

TEST_F(Faults, AddressesOutsideTheWindow) {
  int host = 0;
  for (const uint64_t address :
       {uint64_t{0}, uint64_t{16}, reinterpret_cast<uint64_t>(&host),
        device_.space.window_begin + device_.space.window_size, ~uint64_t{3},
        uint64_t{1} << 56, uint64_t{7} << 56}) {
    const auto fault = run("store_int", 1, 10, address);
    ASSERT_TRUE(fault) << std::hex << address;
    EXPECT_EQ(fault->code, 700) << std::hex << address;
    EXPECT_EQ(fault->address, address);
  }
  EXPECT_EQ(host, 0);
}

struct Asked {
  int* allowed;
  int calls;
};

TEST_F(Faults, LookupDecidesOutsideAndOnAskPages) {
  int host[32] = {};
  Asked asked = {host, 0};
  device_.space.lookup_context = &asked;
  device_.space.lookup = [](void* context, uint64_t address, uint64_t size,
                            bool write) -> void* {
    auto* a = static_cast<Asked*>(context);
    ++a->calls;
    const uint64_t begin = reinterpret_cast<uint64_t>(a->allowed);
    if (!write || address < begin || address + size > begin + 128)
      return nullptr;
    return reinterpret_cast<void*>(address);
  };
  EXPECT_FALSE(run("store_int", 1, 10, reinterpret_cast<uint64_t>(host + 3)));
  EXPECT_EQ(host[3], 5);
  EXPECT_GT(asked.calls, 0);
  EXPECT_TRUE(run("store_int", 1, 10, reinterpret_cast<uint64_t>(host + 32)));
  const uint64_t out = device_.allocate(4);
  EXPECT_TRUE(run("load_int", 1, 10, reinterpret_cast<uint64_t>(host), out));
  const uint64_t page = device_.allocate(kPage, kPage);
  device_.set_access(page, 7);
  asked.calls = 0;
  EXPECT_EQ(run("store_int", 1, 10, page)->code, 700);
  EXPECT_GT(asked.calls, 0);
}

TEST_F(Faults, Misaligned) {
  const uint64_t at = device_.allocate(64);
  const auto fault = run("store_int", 1, 10, at + 2);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 716);
  EXPECT_EQ(fault->address, at + 2);
}

TEST_F(Faults, Trap) {
  EXPECT_FALSE(run("trap_if", 32, 10, 40));
  const auto fault = run("trap_if", 32, 10, 7);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 719);
  EXPECT_NE(line(fault->line).find("trap"), std::string::npos);
}

TEST_F(Faults, StackOverflow) {
  const auto fault = run("overflow_stack", 1, 10, device_.allocate(4));
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 719);
  EXPECT_NE(fault->what.find("stack overflow"), std::string::npos);
}

TEST_F(Faults, AssertSaysWhereAndWho) {
  EXPECT_FALSE(run("must_be_small", 32, 10, 32));
  ::testing::internal::CaptureStderr();
  const auto fault = run("must_be_small", 64, 10, 35);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 710);
  for (const char* part :
       {"kernels.cu:", "must_be_small", "thread: [35,0,0]", "threadIdx.x"})
    EXPECT_NE(printed.find(part), std::string::npos) << printed;
}

TEST_F(Faults, EndlessKernelMeetsItsLimit) {
  const uint64_t flag = device_.upload(std::vector<int>{0});
  for (const unsigned threads : {1u, 64u}) {
    const auto fault = run("endless", threads, 0.05, flag);
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->code, 702);
    EXPECT_EQ(fault->kernel, "endless");
  }
}

TEST_F(Faults, CancelEndsAnEndlessKernel) {
  const uint64_t flag = device_.upload(std::vector<int>{0});
  std::atomic<bool> cancel{false};
  Launch l;
  l.kernel = module_->kernel("endless");
  l.parameters = &flag;
  l.space = &device_.space;
  l.cancel = &cancel;
  std::thread other([&] { cancel = true; });
  const auto fault = ipclab::ptx::run(l);
  other.join();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 702);
}

TEST_F(Faults, AnotherThreadReleasesASpinningKernel) {
  const uint64_t flag = device_.upload(std::vector<int>{0});
  std::thread other(
      [&] { __atomic_store_n(device_.host<int>(flag), 1, __ATOMIC_RELEASE); });
  EXPECT_FALSE(run("wait_for", 64, 20, flag));
  other.join();
}

TEST_F(Faults, ParametersAreReadOnlyAndSharedMemoryIsBounded) {
  const auto code_of = [&](const std::string& body) {
    const auto module =
        Module::parse(one_kernel<uint32_t, uint32_t, uint32_t, uint32_t>(body));
    EXPECT_EQ(module->kernel("k")->unsupported(), "");
    const uint64_t d = device_.allocate(256);
    const auto fault = launch(device_, module->kernel("k"), Shape{1}, Shape{32},
                              64, 10, false, d, d, d, d, 32u);
    return fault ? fault->code : 0;
  };
  EXPECT_EQ(code_of("st.shared.u32 [60], a;"), 0);
  EXPECT_EQ(code_of("st.shared.u32 [64], a;"), 700);
  EXPECT_EQ(code_of("st.shared.u32 [62], a;"), 716);
  EXPECT_EQ(code_of(".local .b32 l; ld.local.u32 d, [l+4096];"), 700);
  EXPECT_EQ(code_of("mov.u64 %p, pd; cvta.param.u64 %p, %p; ld.u32 d, [%p];"),
            0);
  EXPECT_EQ(code_of("mov.u64 %p, pd; cvta.param.u64 %p, %p; st.u32 [%p], d;"),
            700);
  EXPECT_EQ(code_of("brx.idx 3, t; t: .branchtargets x, y; x: y:"), 715);
}

TEST_F(Faults, AFaultEndsAllBlocks) {
  const uint64_t page = device_.allocate(kPage, kPage);
  device_.set_access(page, 0);
  const auto fault = launch(device_, module_->kernel("store_int"), Shape{1000},
                            Shape{64}, 0, 10, false, page);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 700);
  // The fault does not affect the next launch.
  EXPECT_FALSE(run("store_int", 1, 10, device_.allocate(4)));
}

}  // namespace
