// SPDX-License-Identifier: Apache-2.0
// Dma-bufs: who gets one, who may look into it, how long the memory lives.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "peer.h"
#include "vmm.h"

using namespace ipclab::model::test;

namespace {

constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
constexpr CUresult kNot = CUDA_ERROR_NOT_SUPPORTED;
constexpr auto kDmaBuf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
constexpr auto kMmapSupported = static_cast<CUdevice_attribute>(152);
const std::map<std::string, std::string> kMaps = {
    {"IPCLAB_PROFILE", "driver-13.5"}};

// The descriptor is close-on-exec. After a refusal nothing is written.
CUresult dma_buf(const void* data, size_t size, int* descriptor,
                 CUmemRangeHandleType type = kDmaBuf,
                 unsigned long long flags = 0) {
  *descriptor = -77;
  const CUresult code = cuMemGetHandleForAddressRange(descriptor, number(data),
                                                      size, type, flags);
  if (code == CUDA_SUCCESS) {
    EXPECT_EQ(fcntl(*descriptor, F_GETFD), FD_CLOEXEC);
  } else {
    EXPECT_EQ(*descriptor, -77);
  }
  return code;
}

CUresult code_of(const void* data, size_t size,
                 CUmemRangeHandleType type = kDmaBuf,
                 unsigned long long flags = 0) {
  int descriptor = -1;
  const CUresult code = dma_buf(data, size, &descriptor, type, flags);
  if (code == CUDA_SUCCESS) close(descriptor);
  return code;
}

int* mapped(int descriptor, size_t size) {
  void* place =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return place == MAP_FAILED ? nullptr : static_cast<int*>(place);
}

int device_attribute(CUdevice_attribute which) {
  int value = -1;
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS);
  return value;
}

// Two chunks side by side, and a third page without a chunk.
struct Row {
  Handle first = create(chunk_on(0)), second = create(chunk_on(0));
  CUdeviceptr range = reserve(3 * kChunk);

  Row() {
    EXPECT_EQ(cuMemMap(range, kChunk, 0, first, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(range + kChunk, kChunk, 0, second, 0), CUDA_SUCCESS);
  }
  ~Row() {
    EXPECT_EQ(cuMemUnmap(range, 2 * kChunk), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(range, 3 * kChunk), CUDA_SUCCESS);
    release(first);
    release(second);
  }
  CUresult code(size_t from, size_t size) const {
    return code_of(reinterpret_cast<void*>(range + from), size);
  }
};

TEST(DmaBuf, ArgumentsThatAreRefused) {
  char* data = allocate<char>(2 * kChunk);
  EXPECT_EQ(code_of(data, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(code_of(data, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(code_of(data, 0), kInvalid);
  EXPECT_EQ(code_of(data, 100), kInvalid);
  EXPECT_EQ(code_of(data + 8, 4096), kInvalid);
  EXPECT_EQ(code_of(data, 2 * kChunk + 4096), kInvalid);
  EXPECT_EQ(code_of(data, ~size_t{4095}), kInvalid);
  EXPECT_EQ(code_of(data, kChunk, static_cast<CUmemRangeHandleType>(0)),
            kInvalid);
  EXPECT_EQ(code_of(data, kChunk, static_cast<CUmemRangeHandleType>(2)),
            kInvalid);
  EXPECT_EQ(code_of(data, kChunk, kDmaBuf, 1), kNot);  // over PCIe
  EXPECT_EQ(code_of(data, kChunk, kDmaBuf, 2), kInvalid);
  EXPECT_EQ(
      cuMemGetHandleForAddressRange(nullptr, number(data), kChunk, kDmaBuf, 0),
      kInvalid);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(code_of(data, kChunk), kInvalid);
}

TEST(DmaBuf, OtherMemoryIsRefused) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 8192), cudaSuccess);
  EXPECT_EQ(code_of(pinned, 4096), kInvalid);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, kChunk), cudaSuccess);
  EXPECT_EQ(code_of(managed, 4096), kInvalid);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  void* plain = mapped(memfd_create("plain", MFD_CLOEXEC), 4096);
  EXPECT_EQ(code_of(plain, 4096), kInvalid);
  munmap(plain, 4096);
  void* pooled = nullptr;
  ASSERT_EQ(cudaMallocAsync(&pooled, kChunk, nullptr), cudaSuccess);
  EXPECT_EQ(code_of(pooled, 4096), kNot);
  EXPECT_EQ(cudaFreeAsync(pooled, nullptr), cudaSuccess);
}

TEST(DmaBuf, RangesOfChunks) {
  const Row row;
  EXPECT_EQ(row.code(0, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(row.code(4096, 4096), CUDA_SUCCESS);
  EXPECT_EQ(row.code(0, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(row.code(kChunk / 2, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(row.code(0, 3 * kChunk), kInvalid);
  EXPECT_EQ(row.code(2 * kChunk, 4096), kInvalid);
}

ROLE(dma_buf_chunks_of_two_gpus) {
  const Handle handles[] = {create(chunk_on(0)), create(chunk_on(1))};
  const CUdeviceptr range = reserve(2 * kChunk);
  for (const int i : {0, 1}) {
    EXPECT_EQ(cuMemMap(range + i * kChunk, kChunk, 0, handles[i], 0),
              CUDA_SUCCESS);
  }
  EXPECT_EQ(code_of(reinterpret_cast<void*>(range), 2 * kChunk), kInvalid);
}

TEST(DmaBuf, ChunksOfTwoGpusAreRefused) {
  Peer peer("dma_buf_chunks_of_two_gpus", {{"IPCLAB_PROFILE", "two-gpus"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST(DmaBuf, NobodyMapsItWithAnOlderDriver) {
  EXPECT_EQ(device_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED), 1);
  int value = -1;
  EXPECT_EQ(cuDeviceGetAttribute(&value, kMmapSupported, 0), kInvalid);
  int* data = allocate<int>(kChunk / sizeof(int));
  int descriptor = -1;
  ASSERT_EQ(dma_buf(data, kChunk, &descriptor), CUDA_SUCCESS);
  EXPECT_EQ(mapped(descriptor, kChunk), nullptr);
  EXPECT_EQ(errno, ENODEV);
  Handle handle = 77;
  EXPECT_EQ(import_descriptor(descriptor, &handle), kInvalid);
  EXPECT_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  close(descriptor);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

ROLE(dma_buf_without_cuda) {
  const int descriptor = test.receive_descriptor();
  int* bytes = mapped(descriptor, kChunk);
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(bytes[10], 110);
  bytes[10] = -5;
  test.send(true);
  EXPECT_EQ(test.receive<int>(), 2);
  EXPECT_EQ(bytes[10], 210);
  munmap(bytes, kChunk);
  close(descriptor);
}

void is_mapped_by_a_process_without_cuda(int* data) {
  fill(data, 100);
  Peer peer("dma_buf_without_cuda", kMaps);
  int descriptor = -1;
  ASSERT_EQ(dma_buf(data, kChunk, &descriptor), CUDA_SUCCESS);
  peer.channel().send_descriptor(descriptor);
  EXPECT_TRUE(peer.channel().receive<bool>());
  EXPECT_EQ(read_back(data, 11)[10], -5);
  EXPECT_EQ(wrong_elements(data, kCount, 100), 1);
  fill(data, 200);
  peer.channel().send(2);
  EXPECT_EQ(peer.wait(), "exit 0");
  Handle handle = 77;
  EXPECT_EQ(import_descriptor(descriptor, &handle), kInvalid);
  EXPECT_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  close(descriptor);
}

ROLE(dma_buf_exporter) {
  EXPECT_EQ(device_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED), 1);
  EXPECT_EQ(device_attribute(kMmapSupported), 1);
  char* data = allocate<char>(2 * kChunk);
  is_mapped_by_a_process_without_cuda(reinterpret_cast<int*>(data));
  // The host maps a descriptor from the beginning of its memfd.
  EXPECT_EQ(code_of(data + kChunk, kChunk), kNot);
  EXPECT_EQ(code_of(data, 2 * kChunk + 4096), kInvalid);
  EXPECT_EQ(cudaFree(data), cudaSuccess);

  const Handle handle = create(chunk_on(0, kPosix));
  int* chunk = map(handle);
  is_mapped_by_a_process_without_cuda(chunk);
  // The usual descriptor of the same chunk still imports.
  const int descriptor = export_descriptor(handle);
  Handle again = 0;
  EXPECT_EQ(import_descriptor(descriptor, &again), CUDA_SUCCESS);
  close(descriptor);
  release(again);
  unmap(chunk);
  release(handle);

  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, kChunk), cudaSuccess);
  int of_host = -1;
  ASSERT_EQ(dma_buf(pinned, kChunk, &of_host), CUDA_SUCCESS);
  int* words = mapped(of_host, kChunk);
  static_cast<int*>(pinned)[10] = 7;
  EXPECT_EQ(words[10], 7);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(words[10], 7);
  munmap(words, kChunk);
  close(of_host);

  const Row row;
  EXPECT_EQ(row.code(kChunk, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(row.code(0, 2 * kChunk), kNot);
  EXPECT_EQ(row.code(4096, 4096), kNot);
  EXPECT_EQ(row.code(0, 3 * kChunk), kInvalid);
}

TEST(DmaBuf, AProcessWithoutCudaMapsIt) {
  Peer peer("dma_buf_exporter", kMaps);
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(dma_buf_keeps_memory) {
  const size_t before = free_bytes();
  int* data = allocate<int>(4 * kChunk / sizeof(int));
  const size_t with_memory = free_bytes();
  EXPECT_EQ(before - with_memory, 4 * kChunk);
  int first = -1, second = -1;
  ASSERT_EQ(dma_buf(data, kChunk, &first), CUDA_SUCCESS);
  ASSERT_EQ(dma_buf(data, kChunk, &second), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), with_memory);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(free_bytes(), with_memory);
  close(first);
  EXPECT_EQ(free_bytes(), with_memory);
  close(second);
  EXPECT_EQ(free_bytes(), before);

  const Handle handle = create(chunk_on(0));
  const int* chunk = map(handle, kNoAccess);
  ASSERT_EQ(dma_buf(chunk, kChunk, &first), CUDA_SUCCESS);
  unmap(chunk);
  release(handle);
  EXPECT_EQ(before - free_bytes(), kChunk);
  close(first);
  EXPECT_EQ(free_bytes(), before);
}

TEST(DmaBuf, ItKeepsTheMemory) {
  Peer old("dma_buf_keeps_memory", kOnQuietGpu);
  EXPECT_EQ(old.wait(), "exit 0");
  Peer maps("dma_buf_keeps_memory", {{"IPCLAB_PROFILE", "driver-13.5"},
                                     {"IPCLAB_MODEL_MACHINE", "dma-buf"}});
  EXPECT_EQ(maps.wait(), "exit 0");
}

ROLE(dma_buf_of_no_gpu) {
  EXPECT_EQ(device_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED), 0);
  const int* data = allocate<int>(kChunk / sizeof(int));
  EXPECT_EQ(code_of(data, kChunk), kNot);
  EXPECT_EQ(code_of(data, 100), kInvalid);
}

TEST(DmaBuf, ProfilesWithoutIt) {
  for (const char* profile : {"tegra", "no-pools"}) {
    Peer peer("dma_buf_of_no_gpu", {{"IPCLAB_PROFILE", profile}});
    EXPECT_EQ(peer.wait(), "exit 0") << profile;
  }
}

}  // namespace
