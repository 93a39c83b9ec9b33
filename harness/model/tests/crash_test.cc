// SPDX-License-Identifier: Apache-2.0
// A process may be killed at any moment: the other goes on and nothing is left.
#include <dirent.h>

#include <csignal>
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

// Exports, opens and records without end.
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
  for (int round = 0; round < IPCLAB_CRASH_ROUNDS; ++round) {
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
  for (int round = 0; round < IPCLAB_CRASH_ROUNDS / 5; ++round) {
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
    // What the importer had launched ends with it or has ended.
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

}  // namespace
