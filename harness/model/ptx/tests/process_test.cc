// SPDX-License-Identifier: Apache-2.0
// Kernels of several processes use the memory of one memfd at the same time.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "evaluate.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

/// A child process that runs `body` and exits with the result of `body`.
template <class Body>
pid_t child(Body body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(60);  // no child stays behind
  _exit(body());
}

int exit_code(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

class Processes : public ::testing::Test {
 protected:
  void SetUp() override {
    descriptor_ = memfd_create("ptx-test", MFD_CLOEXEC);
    ASSERT_GE(descriptor_, 0);
    ASSERT_EQ(ftruncate(descriptor_, 4 << 20), 0);
    module_ = Module::parse(
        read_file(std::string(IPCLAB_PTX_FILES) + "/kernels_90.ptx"));
  }
  void TearDown() override { close(descriptor_); }

  int descriptor_ = -1;
  std::unique_ptr<Module> module_;
};

TEST_F(Processes, SystemAtomicsCountOnSharedMemory) {
  constexpr int kProcesses = 3, kThreads = 64, kTimes = 500;
  std::vector<pid_t> children;
  children.reserve(kProcesses);
  for (int p = 0; p < kProcesses; ++p)
    children.push_back(child([&] {
      Device device(4u << 20, descriptor_);
      const uint64_t counter = device.allocate(4);
      return launch(device, module_->kernel("count_up"), Shape{1},
                    Shape{kThreads}, 0, 30, false, counter, kTimes)
                 ? 1
                 : 0;
    }));
  for (const pid_t pid : children) EXPECT_EQ(exit_code(pid), 0);
  Device device(4u << 20, descriptor_);
  EXPECT_EQ(*device.host<int>(device.allocate(4)),
            kProcesses * kThreads * kTimes);
}

TEST_F(Processes, KernelsAnswerEachOther) {
  constexpr int kRounds = 200;
  const auto play = [&](bool first) {
    Device device(4u << 20, descriptor_);
    const uint64_t a = device.allocate(4), b = device.allocate(4);
    return launch(device, module_->kernel("ping_pong"), Shape{1}, Shape{1}, 0,
                  30, false, first ? a : b, first ? b : a, kRounds)
               ? 1
               : 0;
  };
  const pid_t one = child([&] { return play(true); });
  const pid_t two = child([&] { return play(false); });
  EXPECT_EQ(exit_code(one), 0);
  EXPECT_EQ(exit_code(two), 0);
  Device device(4u << 20, descriptor_);
  EXPECT_EQ(*device.host<int>(device.allocate(4)), kRounds);
}

TEST_F(Processes, VectorsDoNotTear) {
  constexpr int kRounds = 400'000, kLanes = 32;
  struct Places {
    uint64_t narrow, middle, wide, torn;
    explicit Places(Device& device)
        : narrow(device.allocate(4 * kLanes)),
          middle(device.allocate(8 * kLanes)),
          wide(device.allocate(16 * kLanes)),
          torn(device.allocate(16)) {}
  };
  const pid_t writer = child([&] {
    Device device(4u << 20, descriptor_);
    const Places at(device);
    return launch(device, module_->kernel("write_vectors"), Shape{1},
                  Shape{kLanes}, 0, 50, false, at.narrow, at.middle, at.wide,
                  kRounds)
               ? 1
               : 0;
  });
  Device device(4u << 20, descriptor_);
  const Places at(device);
  const auto fault =
      launch(device, module_->kernel("read_vectors"), Shape{1}, Shape{kLanes},
             0, 50, false, at.narrow, at.middle, at.wide, kRounds, at.torn);
  EXPECT_EQ(exit_code(writer), 0);
  ASSERT_FALSE(fault) << fault->what;
  EXPECT_EQ(device.download<uint32_t>(at.torn, 4),
            (std::vector<uint32_t>{0, 0, 0, 0}));
}

}  // namespace
