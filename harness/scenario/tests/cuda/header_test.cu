// Tests what the headers define and what a lesson computes by itself. No driver
// can change this, so these tests judge no driver.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "harness/scenario/cuda.h"
#include "samples/common/channel.h"
#include "samples/common/require.h"
#include "samples/common/roles.h"

// Includes the lesson itself, so that the test checks the code that a reader
// copies.
namespace lesson {
#define main lesson_main
#include "samples/21_suballocation_leak/suballocation_leak.cu"
#undef main
}  // namespace lesson

using namespace ipclab;

// Every kind of handle has 64 bytes of plain data.
static_assert(CUDA_IPC_HANDLE_SIZE == 64 && CU_IPC_HANDLE_SIZE == 64);
static_assert(sizeof(cudaIpcMemHandle_t) == 64);
static_assert(sizeof(CUipcMemHandle) == 64);
static_assert(sizeof(cudaIpcEventHandle_t) == 64);
static_assert(sizeof(CUipcEventHandle) == 64);
static_assert(sizeof(cudaMemFabricHandle_t) == 64);
static_assert(sizeof(CUmemFabricHandle) == 64);
static_assert(sizeof(cudaMemPoolPtrExportData) == 64);
static_assert(sizeof(CUmemPoolPtrExportData) == 64);
static_assert(cudaIpcMemLazyEnablePeerAccess == 1);
static_assert(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == 1);

TEST(Header, ErrorNumbersAgreeInBothApis) {
  struct Row {
    int number;
    cudaError_t runtime;
    CUresult driver;
  };
  constexpr Row kRows[] = {
      {1, cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE},
      {2, cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY},
      {201, cudaErrorDeviceUninitialized, CUDA_ERROR_INVALID_CONTEXT},
      {205, cudaErrorMapBufferObjectFailed, CUDA_ERROR_MAP_FAILED},
      {208, cudaErrorAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED},
      {217, cudaErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED},
      {400, cudaErrorInvalidResourceHandle, CUDA_ERROR_INVALID_HANDLE},
      {401, cudaErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE},
      {704, cudaErrorPeerAccessAlreadyEnabled,
       CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED},
      {711, cudaErrorTooManyPeers, CUDA_ERROR_TOO_MANY_PEERS},
      {800, cudaErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED},
      {801, cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(row.runtime, row.number);
    EXPECT_EQ(row.driver, row.number);
  }
}

TEST(Header, LogicalEndpointsBeginWith13Point3) {
  std::ifstream header(IPCLAB_CUDA_HEADER);
  ASSERT_TRUE(header) << "cannot read " << IPCLAB_CUDA_HEADER;
  const std::string text((std::istreambuf_iterator<char>(header)),
                         std::istreambuf_iterator<char>());
  ASSERT_NE(text.find("cuMemCreate"), std::string::npos) << "is no cuda.h";
  const bool declared = text.find("cuLogicalEndpoint") != std::string::npos;
  EXPECT_EQ(declared, CUDA_VERSION >= 13030);
}

TEST(Lesson21, TheSizeToShareIsTheNextMultipleOf2MiB) {
  constexpr size_t kBlock = 2 << 20;
  constexpr size_t kLargest = SIZE_MAX / kBlock * kBlock;
  EXPECT_EQ(lesson::shareable(0), 0u);
  EXPECT_EQ(lesson::shareable(1), kBlock);
  EXPECT_EQ(lesson::shareable(kLargest), kLargest);
  EXPECT_EQ(lesson::shareable(kLargest + 1), 0u);
  EXPECT_EQ(lesson::shareable(SIZE_MAX), 0u);
  for (size_t i = 0; i < 100000; ++i) {
    // Sizes of every magnitude, many of them next to a multiple.
    const size_t word = pattern("sizes").at(2 * i);
    size_t size = (word << 32 | pattern("sizes").at(2 * i + 1)) >> word % 64;
    if (i % 2 == 0) size = size / kBlock * kBlock + i % 6 / 2 - 1;
    if (size == 0 || size > kLargest) continue;
    const size_t rounded = lesson::shareable(size);
    ASSERT_GE(rounded, size);
    ASSERT_LT(rounded - size, kBlock) << size;
    ASSERT_EQ(rounded % kBlock, 0u) << size;
  }
}

// If a result is too long or begins too early, the test fails when the sentinel
// is destroyed.
TEST(Sentinel, SeesWhatIsWrittenBesideItsValue) {
  const auto written_at = [](ptrdiff_t place) {
    Sentinel<cudaIpcMemHandle_t> handle;
    char* const byte = reinterpret_cast<char*>(handle.out()) + place;
    const char before = *byte;
    *byte = 1;
    const bool holds = handle.guards_hold(), touched = handle.touched();
    *byte = before;
    return std::pair(holds, touched);
  };
  EXPECT_EQ(written_at(0), std::pair(true, true));
  EXPECT_EQ(written_at(63), std::pair(true, true));
  EXPECT_EQ(written_at(64), std::pair(false, false));
  EXPECT_EQ(written_at(127), std::pair(false, false));
  EXPECT_EQ(written_at(-1), std::pair(false, false));
}
