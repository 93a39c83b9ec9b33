// SPDX-License-Identifier: Apache-2.0
// malloc and free of kernels.
#include <algorithm>
#include <vector>

#include "gpu.h"

using namespace ipclab::model::test;

namespace {

constexpr int kThreads = 64;
constexpr unsigned kHeap = 8 << 20;  // the default cudaLimitMallocHeapSize

struct Heap : testing::Test {
  int** taken = allocate<int*>(kThreads);
  int* wrong = allocate<int>(1);

  Heap() { EXPECT_EQ(cudaMemset(wrong, 0, sizeof(int)), cudaSuccess); }
  ~Heap() override {
    EXPECT_EQ(cudaFree(taken), cudaSuccess);
    EXPECT_EQ(cudaFree(wrong), cudaSuccess);
  }
  std::vector<int*> take(unsigned bytes) {
    EXPECT_EQ(launch("take", 2, kThreads / 2, nullptr, taken, bytes),
              CUDA_SUCCESS);
    return read_back(taken, kThreads);
  }
  int wrong_after_giving_back() {
    EXPECT_EQ(launch("give_back", 2, kThreads / 2, nullptr, taken, wrong),
              CUDA_SUCCESS);
    return read_back(wrong, 1)[0];
  }
};

TEST_F(Heap, MemoryLivesUntilAnotherKernelFreesIt) {
  for (int round = 0; round < 3; ++round) {
    std::vector<int*> all = take(kHeap / kThreads);  // the whole heap
    for (const int* one : all) {
      EXPECT_NE(one, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(one) % 16, 0u);
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
    EXPECT_EQ(wrong_after_giving_back(), 0);
  }
}

TEST_F(Heap, WithoutRoomMallocReturnsNull) {
  const std::vector<int*> all = take(kHeap / 4);
  EXPECT_EQ(std::count(all.begin(), all.end(), nullptr), kThreads - 4);
  EXPECT_EQ(wrong_after_giving_back(), kThreads - 4);
}

TEST_F(Heap, IsNotOfTheHost) {
  int* one = take(16)[0];
  EXPECT_EQ(cudaFree(one), cudaErrorInvalidValue);
  int copy = 0;
  EXPECT_NE(cudaMemset(one, 0, sizeof copy), cudaSuccess);
  cudaGetLastError();
  EXPECT_EQ(wrong_after_giving_back(), 0);
}

}  // namespace
