// SPDX-License-Identifier: Apache-2.0
// A process may be killed or stopped at any moment. Then the other process
// continues, and nothing is left behind. The variable IPCLAB_CRASH_ROUNDS sets
// the number of rounds, for example 1000.
#include <dirent.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <vector>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

int open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int rounds() {
  const char* asked = std::getenv("IPCLAB_CRASH_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : IPCLAB_CRASH_ROUNDS;
}

// Exports memory and an event. Then allocates, launches, records and frees
// without end.
ROLE(busy) {
  int* data = allocate<int>(1 << 20);
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t event_handle;
  EXPECT_EQ(cudaIpcGetEventHandle(&event_handle, event), cudaSuccess);
  test.send(memory_handle(data));
  test.send(event_handle);
  for (;;) {
    int* more = allocate<int>(3000);
    launch("fill", 12, 256, nullptr, more, 3000, 1);
    cudaEventRecord(event);
    cudaFree(more);
  }
}

TEST(Crash, KilledExporterLeavesNothing) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  ASSERT_EQ(launch("bump", 1, 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const int descriptors = open_descriptors();
  unsigned random = 12345;
  for (int round = 0; round < rounds(); ++round) {
    Peer peer("busy");
    const auto memory = peer.channel().receive<cudaIpcMemHandle_t>();
    const auto handle = peer.channel().receive<cudaIpcEventHandle_t>();
    random = random * 1664525 + 1013904223;
    const timespec pause{0, static_cast<long>(random % 3000000)};
    void* data = nullptr;
    cudaEvent_t event = nullptr;
    ASSERT_EQ(
        cudaIpcOpenMemHandle(&data, memory, cudaIpcMemLazyEnablePeerAccess),
        cudaSuccess);
    ASSERT_EQ(cudaIpcOpenEventHandle(&event, handle), cudaSuccess);
    nanosleep(&pause, nullptr);
    peer.kill(SIGKILL);
    ASSERT_EQ(cudaStreamWaitEvent(nullptr, event), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(peer.wait(), "signal 9");
    ASSERT_EQ(cudaMemset(data, round, 4096), cudaSuccess);
    ASSERT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
    ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

// Opens, writes, records and closes without end.
ROLE(borrowing) {
  const auto memory = test.receive<cudaIpcMemHandle_t>();
  const auto handle = test.receive<cudaIpcEventHandle_t>();
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaIpcOpenEventHandle(&event, handle), cudaSuccess);
  for (int round = 0;; ++round) {
    void* data = nullptr;
    EXPECT_EQ(
        cudaIpcOpenMemHandle(&data, memory, cudaIpcMemLazyEnablePeerAccess),
        cudaSuccess);
    launch("fill", 12, 256, nullptr, static_cast<int*>(data), 3000, 7);
    cudaEventRecord(event);
    if (round == 0) test.send(true);
    cudaIpcCloseMemHandle(data);
  }
}

TEST(Crash, KilledImporterLeavesTheExporterWhole) {
  constexpr int kCount = 1 << 20;
  int* data = allocate<int>(kCount);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t handle;
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  const cudaIpcMemHandle_t memory = memory_handle(data);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const int descriptors = open_descriptors();
  unsigned random = 54321;
  for (int round = 0; round < rounds() / 5; ++round) {
    Peer peer("borrowing");
    peer.channel().send(memory);
    peer.channel().send(handle);
    ASSERT_TRUE(peer.channel().receive<bool>());
    random = random * 1664525 + 1013904223;
    const timespec pause{0, static_cast<long>(random % 3000000)};
    nanosleep(&pause, nullptr);
    peer.kill(SIGKILL);
    ASSERT_EQ(cudaStreamWaitEvent(nullptr, event), cudaSuccess);
    ASSERT_EQ(peer.wait(), "signal 9");
    // The importer's work has ended, either before the kill or by the kill.
    ASSERT_EQ(launch("fill", kCount / 256, 256, nullptr, data, kCount, round),
              CUDA_SUCCESS);
    std::vector<int> seen(kCount);
    ASSERT_EQ(cudaMemcpy(seen.data(), data, kCount * sizeof(int),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    std::vector<int> expected(kCount);
    std::iota(expected.begin(), expected.end(), round);
    ASSERT_TRUE(seen == expected) << "round " << round;
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// The seconds that the work of this process takes while another process is
// stopped.
double work_beside(const cudaIpcMemHandle_t& memory,
                   const cudaIpcEventHandle_t& handle) {
  const auto begin = std::chrono::steady_clock::now();
  int* own = allocate<int>(3000);
  void* data = nullptr;
  cudaEvent_t event = nullptr, opened = nullptr;
  size_t available = 0, total = 0;
  EXPECT_EQ(cudaIpcOpenMemHandle(&data, memory, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  EXPECT_EQ(cudaIpcOpenEventHandle(&opened, handle), cudaSuccess);
  EXPECT_EQ(cudaMemset(data, 1, 4096), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  EXPECT_EQ(launch("fill", 12, 256, nullptr, own, 3000, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaEventRecord(event), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(opened), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaFree(own), cudaSuccess);
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count();
}

TEST(Crash, AStoppedPeerStallsNobody) {
  // This is less than the time for which an import waits for a process that
  // does not answer. Without the stop, an import takes a thousandth of this
  // time.
  constexpr double kLongest = 2;
  Peer peer("busy");
  const auto memory = peer.channel().receive<cudaIpcMemHandle_t>();
  const auto handle = peer.channel().receive<cudaIpcEventHandle_t>();
  unsigned random = 31415;
  double longest = 0;
  for (int round = 0; round < rounds() / 5; ++round) {
    random = random * 1664525 + 1013904223;
    const timespec pause{0, static_cast<long>(random % 3000000)};
    nanosleep(&pause, nullptr);
    peer.kill(SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(peer.pid(), &status, WUNTRACED), peer.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
    longest = std::max(longest, work_beside(memory, handle));
    peer.kill(SIGCONT);
  }
  EXPECT_LT(longest, kLongest);
  RecordProperty("longest_ms", static_cast<int>(longest * 1000));
  peer.kill(SIGKILL);
  EXPECT_EQ(peer.wait(), "signal 9");
}

}  // namespace
