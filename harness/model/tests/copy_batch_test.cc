// SPDX-License-Identifier: Apache-2.0
// Batches of copies, and copies with attributes.
#include <cstring>
#include <functional>
#include <numeric>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

constexpr int kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int);

cudaMemcpyAttributes ordered(cudaMemcpySrcAccessOrder order) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = order;
  return attributes;
}

struct CopyBatch : testing::Test {
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  int* first = allocate<int>(kCount);
  int* second = allocate<int>(kCount);
  std::vector<int> numbers = std::vector<int>(kCount);
  CopyBatch() { std::iota(numbers.begin(), numbers.end(), 7); }
  ~CopyBatch() override {
    cudaGetLastError();
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaFree(first), cudaSuccess);
    EXPECT_EQ(cudaFree(second), cudaSuccess);
  }
};

TEST_F(CopyBatch, CopiesAllInTheOrderOfTheStream) {
  int back[2] = {0, 0};
  int* pinned = shared_word();
  {
    Latch latch(stream);
    ASSERT_EQ(cudaMemcpyAsync(first, numbers.data(), kBytes, cudaMemcpyDefault,
                              stream),
              cudaSuccess);
    void* to[] = {second, second + 500, pinned};
    const void* from[] = {first + 500, first, first + 1};
    const size_t sizes[] = {kBytes / 2, kBytes / 2, sizeof(int)};
    cudaMemcpyAttributes kinds[] = {ordered(cudaMemcpySrcAccessOrderStream),
                                    ordered(cudaMemcpySrcAccessOrderStream)};
    size_t starts[] = {0, 2};
    ASSERT_EQ(
        cudaMemcpyBatchAsync(to, from, sizes, 3, kinds, starts, 2, stream),
        cudaSuccess);
    EXPECT_EQ(*pinned, 0);  // the stream is held
    latch.let_go();
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  EXPECT_EQ(*pinned, 8);
  back[0] = read_back(second, kCount)[0];
  back[1] = read_back(second, kCount)[999];
  EXPECT_EQ(back[0], 507);
  EXPECT_EQ(back[1], 506);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// "All accesses must be complete before the API call returns."
TEST_F(CopyBatch, ReadsItsSourceDuringTheCall) {
  int* pinned = shared_word();
  *pinned = 41;
  {
    Latch latch(stream);
    void* to[] = {first};
    const void* from[] = {pinned};
    const size_t size = sizeof(int);
    auto now = ordered(cudaMemcpySrcAccessOrderDuringApiCall);
    size_t start = 0;
    ASSERT_EQ(cudaMemcpyBatchAsync(to, from, &size, 1, &now, &start, 1, stream),
              cudaSuccess);
    *pinned = 42;
    latch.let_go();
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  EXPECT_EQ(read_back(first, 1)[0], 41);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(CopyBatch, RefusesAsAWhole) {
  ASSERT_EQ(cudaMemset(second, 0, kBytes), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(first, numbers.data(), kBytes, cudaMemcpyDefault),
            cudaSuccess);
  void* to[] = {second, second + 1};
  const void* from[] = {first, first + 1};
  size_t sizes[] = {4, 4};
  cudaMemcpyAttributes kinds[] = {ordered(cudaMemcpySrcAccessOrderStream),
                                  ordered(cudaMemcpySrcAccessOrderAny)};
  size_t starts[] = {0, 1};
  const auto call = [&](size_t count, size_t attributes, cudaStream_t where) {
    return cudaMemcpyBatchAsync(to, from, sizes, count, kinds, starts,
                                attributes, where);
  };
  EXPECT_EQ(call(2, 2, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(call(1, 2, stream), cudaErrorInvalidValue);
  EXPECT_EQ(call(2, 0, stream), cudaErrorInvalidValue);
  starts[0] = 1;
  EXPECT_EQ(call(2, 1, stream), cudaErrorInvalidValue);
  starts[0] = 0;
  kinds[1].srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
  EXPECT_EQ(call(2, 2, stream), cudaErrorInvalidValue);
  kinds[1].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  sizes[1] = kBytes;  // from the second element on, one too many
  EXPECT_EQ(call(2, 2, stream), cudaErrorInvalidValue);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(read_back(second, 2), (std::vector<int>{0, 0}));
}

cudaMemcpy3DBatchOp cuboid(int* to, int* from, size_t row_of_source) {
  cudaMemcpy3DBatchOp wanted{};
  wanted.src.type = wanted.dst.type = cudaMemcpyOperandTypePointer;
  wanted.src.op.ptr.ptr = from;
  wanted.src.op.ptr.rowLength = row_of_source;
  wanted.dst.op.ptr.ptr = to;
  wanted.extent = {2 * sizeof(int), 3, 1};
  wanted.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  return wanted;
}

TEST_F(CopyBatch, CopiesCuboids) {
  ASSERT_EQ(cudaMemcpy(first, numbers.data(), kBytes, cudaMemcpyDefault),
            cudaSuccess);
  cudaMemcpy3DBatchOp list[] = {cuboid(second, first, 10 * sizeof(int)),
                                cuboid(second + 6, first + 100, 0)};
  ASSERT_EQ(cudaMemcpy3DBatchAsync(2, list, 0, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(read_back(second, 12),
            (std::vector<int>{7, 8, 17, 18, 27, 28,  //
                              107, 108, 109, 110, 111, 112}));
  list[1].extent.depth = 0;
  EXPECT_EQ(cudaMemcpy3DBatchAsync(2, list, 0, stream), cudaErrorInvalidValue);
  list[1].extent.depth = 1;
  list[1].src.op.ptr.rowLength = 4;
  EXPECT_EQ(cudaMemcpy3DBatchAsync(2, list, 0, stream), cudaErrorInvalidValue);
}

// The functions of CUDA 13.2, by name.
CUresult copy_with_attributes(int* to, int* from, CUstream stream,
                              CUdriverProcAddressQueryResult* found) {
  void* function = nullptr;
  int version = 0;
  EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
  const CUresult error = cuGetProcAddress("cuMemcpyWithAttributesAsync",
                                          &function, version, 0, found);
  if (error != CUDA_SUCCESS) return error;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return reinterpret_cast<CUresult (*)(CUdeviceptr, CUdeviceptr, size_t,
                                       CUmemcpyAttributes*, CUstream)>(
      function)(reinterpret_cast<CUdeviceptr>(to),
                reinterpret_cast<CUdeviceptr>(from), 4, &attributes, stream);
}

ROLE(copy_with_attributes) {
  int* place = allocate<int>(2);
  const int value = 5;
  EXPECT_EQ(cudaMemcpy(place, &value, 4, cudaMemcpyDefault), cudaSuccess);
  CUdriverProcAddressQueryResult found{};
  const CUresult error = copy_with_attributes(
      place + 1, place, stream_with(cudaStreamNonBlocking), &found);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  test.send<int>(error);
  test.send<int>(error == CUDA_SUCCESS ? read_back(place, 2)[1] : found);
}

TEST_F(CopyBatch, AttributesOfOneCopyCameWithCuda132) {
  Peer newer("copy_with_attributes", {{"IPCLAB_PROFILE", "driver-13.5"}});
  EXPECT_EQ(newer.channel().receive<int>(), CUDA_SUCCESS);
  EXPECT_EQ(newer.channel().receive<int>(), 5);
  EXPECT_EQ(newer.wait(), "exit 0");
  Peer older("copy_with_attributes", {{"IPCLAB_PROFILE", "one-gpu"}});
  EXPECT_EQ(older.channel().receive<int>(), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(older.channel().receive<int>(),
            CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(older.wait(), "exit 0");
}

}  // namespace
