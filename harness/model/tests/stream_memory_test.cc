// SPDX-License-Identifier: Apache-2.0
// Streams that write a word or wait for a word.
#include <unistd.h>

#include <limits>

#include "gpu.h"
#include "peer.h"
#include "pool.h"

using namespace ipclab::model::test;

namespace {

CUdeviceptr at(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

struct Condition {
  uint64_t value;
  unsigned flags;
  uint64_t not_yet;
  uint64_t enough;
};

// Expects that a stream waits for a word of type T while the word is `not_yet`,
// and that the stream continues when the word is `enough`.
template <typename T>
void expect_waits(const Condition& condition) {
  T* word = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&word), sizeof(T)),
            cudaSuccess);
  *word = static_cast<T>(condition.not_yet);
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  if constexpr (sizeof(T) == 4) {
    ASSERT_EQ(
        cuStreamWaitValue32(stream, at(word), static_cast<T>(condition.value),
                            condition.flags),
        CUDA_SUCCESS);
  } else {
    ASSERT_EQ(
        cuStreamWaitValue64(stream, at(word), condition.value, condition.flags),
        CUDA_SUCCESS);
  }
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  __atomic_store_n(word, static_cast<T>(condition.enough), __ATOMIC_RELEASE);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
}

TEST(StreamMemory, WaitsForEachCondition) {
  constexpr uint64_t k32 = std::numeric_limits<uint32_t>::max();
  constexpr uint64_t k64 = std::numeric_limits<uint64_t>::max();
  // GEQ compares cyclically: 0 follows the largest number, and 1 follows 0.
  expect_waits<uint32_t>({5, CU_STREAM_WAIT_VALUE_GEQ, 4, 6});
  expect_waits<uint32_t>({k32, CU_STREAM_WAIT_VALUE_GEQ, k32 - 1, 1});
  expect_waits<uint32_t>({5, CU_STREAM_WAIT_VALUE_EQ, 6, 5});
  expect_waits<uint32_t>({6, CU_STREAM_WAIT_VALUE_AND, 1, 2});
  expect_waits<uint32_t>({k32 - 1, CU_STREAM_WAIT_VALUE_NOR, 1, 2});
  expect_waits<uint64_t>({5ull << 32, CU_STREAM_WAIT_VALUE_GEQ, 5, 5ull << 32});
  expect_waits<uint64_t>({k64, CU_STREAM_WAIT_VALUE_GEQ, k64 - 1, 1});
  expect_waits<uint64_t>({5, CU_STREAM_WAIT_VALUE_EQ, 5ull << 32 | 5, 5});
  expect_waits<uint64_t>({3ull << 40, CU_STREAM_WAIT_VALUE_AND, 3, 1ull << 40});
  expect_waits<uint64_t>({k64 - 1, CU_STREAM_WAIT_VALUE_NOR, 1, 2});
}

TEST(StreamMemory, WritesInTheOrderOfTheStream) {
  uint64_t* words = allocate<uint64_t>(2);
  ASSERT_EQ(cudaMemset(words, 0xff, 16), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  {
    Latch latch(stream);
    ASSERT_EQ(cuStreamWriteValue32(stream, at(words), 7, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWriteValue64(stream, at(words + 1), 9ull << 40, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  }
  const std::vector<uint64_t> seen = read_back(words, 2);
  EXPECT_EQ(seen[0], 0xffffffff00000007ull);
  EXPECT_EQ(seen[1], 9ull << 40);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(words), cudaSuccess);
}

TEST(StreamMemory, RefusesWhatTheDocumentationExcludes) {
  uint64_t* word = allocate<uint64_t>(1);
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, 8), cudaSuccess);
  int local = 0;
  const auto expect_both = [](CUdeviceptr address, CUresult code) {
    EXPECT_EQ(cuStreamWriteValue32(nullptr, address, 1, 0), code);
    EXPECT_EQ(cuStreamWaitValue64(nullptr, address, 0, 0), code);
  };
  expect_both(at(word), CUDA_SUCCESS);
  expect_both(at(word) + 1, CUDA_ERROR_INVALID_VALUE);
  expect_both(at(word) + 8, CUDA_ERROR_INVALID_VALUE);
  expect_both(at(managed), CUDA_ERROR_INVALID_VALUE);
  expect_both(at(&local), CUDA_ERROR_INVALID_VALUE);
  expect_both(0, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(nullptr, at(word), 0, 4),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32(nullptr, at(word), 0, 2),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(
      cuStreamWaitValue32(nullptr, at(word), 0, CU_STREAM_WAIT_VALUE_FLUSH),
      CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  EXPECT_EQ(cudaFree(word), cudaSuccess);
}

void expect_refused_in_a_pool(const int* word) {
  EXPECT_EQ(cuStreamWriteValue32(nullptr, at(word), 1, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(nullptr, at(word), 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

ROLE(imports_a_word_of_a_pool) {
  const int descriptor = test.receive_descriptor();
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaMemPoolImportFromShareableHandle(
                &pool, reinterpret_cast<void*>(intptr_t{descriptor}),
                cudaMemHandleTypePosixFileDescriptor, 0),
            cudaSuccess);
  close(descriptor);
  auto data = test.receive<cudaMemPoolPtrExportData>();
  void* word = nullptr;
  ASSERT_EQ(cudaMemPoolImportPointer(&word, pool, &data), cudaSuccess);
  expect_refused_in_a_pool(static_cast<int*>(word));
  EXPECT_EQ(cudaFree(word), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

// This is not documented. An H200 answers in this way, in the exporter and in
// the importer.
TEST(StreamMemory, RefusesMemoryOfAPool) {
  cudaMemPool_t pool =
      create(on_device(0, cudaMemHandleTypePosixFileDescriptor));
  int* word = take(pool, 4, nullptr);
  ASSERT_EQ(cudaMemset(word, 0, 4), cudaSuccess);
  expect_refused_in_a_pool(word);
  EXPECT_EQ(read_back(word, 1)[0], 0);
  int descriptor = -1;
  ASSERT_EQ(cudaMemPoolExportToShareableHandle(
                &descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0),
            cudaSuccess);
  cudaMemPoolPtrExportData data;
  ASSERT_EQ(cudaMemPoolExportPointer(&data, word), cudaSuccess);
  Peer peer("imports_a_word_of_a_pool");
  peer.channel().send_descriptor(descriptor);
  peer.channel().send(data);
  EXPECT_EQ(peer.wait(), "exit 0");
  close(descriptor);
  EXPECT_EQ(cudaFree(word), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST(StreamMemory, ABatchIsAllOrNothing) {
  uint32_t* words = allocate<uint32_t>(2);
  ASSERT_EQ(cudaMemset(words, 0, 8), cudaSuccess);
  CUstreamBatchMemOpParams operations[3] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = at(words);
  operations[0].writeValue.value = 1;
  operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[1].waitValue.address = at(words);
  operations[1].waitValue.value = 1;
  operations[2] = operations[0];
  operations[2].writeValue.address = at(words + 2);
  EXPECT_EQ(cuStreamBatchMemOp(nullptr, 3, operations, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(read_back(words, 2), (std::vector<uint32_t>{0, 0}));
  operations[2].writeValue.address = at(words + 1);
  EXPECT_EQ(cuStreamBatchMemOp(nullptr, 256, operations, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamBatchMemOp(nullptr, 3, operations, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamBatchMemOp(nullptr, 3, operations, 0), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(read_back(words, 2), (std::vector<uint32_t>{1, 1}));
  EXPECT_EQ(cudaFree(words), cudaSuccess);
}

TEST(StreamMemory, AGraphKeepsIt) {
  uint32_t* word = allocate<uint32_t>(1);
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  ASSERT_EQ(cuStreamWriteValue32(stream, at(word), 3, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitValue32(stream, at(word), 3, 0), CUDA_SUCCESS);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_EQ(cudaMemset(word, 0, 4), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(read_back(word, 1)[0], 3u);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(word), cudaSuccess);
}

constexpr uint32_t kRounds = 50;

ROLE(answers_with_flags) {
  void* words = nullptr;
  const auto handle = test.receive<cudaIpcMemHandle_t>();
  ASSERT_EQ(
      cudaIpcOpenMemHandle(&words, handle, cudaIpcMemLazyEnablePeerAccess),
      cudaSuccess);
  for (uint32_t round = 1; round <= kRounds; ++round) {
    EXPECT_EQ(cuStreamWaitValue32(nullptr, at(words), round, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWriteValue32(nullptr, at(words) + 4, round, 0),
              CUDA_SUCCESS);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaIpcCloseMemHandle(words), cudaSuccess);
}

TEST(StreamMemory, OrdersTwoProcesses) {
  auto* words = allocate<uint32_t>(2);
  ASSERT_EQ(cudaMemset(words, 0, 8), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Peer peer("answers_with_flags");
  peer.channel().send(memory_handle(words));
  for (uint32_t round = 1; round <= kRounds; ++round) {
    EXPECT_EQ(cuStreamWriteValue32(nullptr, at(words), round, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitValue32(nullptr, at(words + 1), round,
                                  CU_STREAM_WAIT_VALUE_EQ),
              CUDA_SUCCESS);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(read_back(words, 2), (std::vector<uint32_t>{kRounds, kRounds}));
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaFree(words), cudaSuccess);
}

}  // namespace
