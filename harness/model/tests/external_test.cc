// SPDX-License-Identifier: Apache-2.0
// External memory: who owns the descriptor, what a mapped buffer shows, how
// long the memory lives.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "peer.h"
#include "vmm.h"

using namespace ipclab::model::test;

namespace {

constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
constexpr CUresult kNot = CUDA_ERROR_NOT_SUPPORTED;
constexpr int kOpaque = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
constexpr int kDmaBufType = 9;

bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) != -1; }

CUresult import(int descriptor, CUexternalMemory* object,
                uint64_t size = 2 * kChunk, int type = kOpaque,
                unsigned flags = 0) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted{};
  wanted.type = static_cast<CUexternalMemoryHandleType>(type);
  wanted.handle.fd = descriptor;
  wanted.size = size;
  wanted.flags = flags;
  return cuImportExternalMemory(object, &wanted);
}

// Nothing may be written or closed.
CUresult refused(int descriptor, uint64_t size = 2 * kChunk, int type = kOpaque,
                 unsigned flags = 0) {
  auto* const before = reinterpret_cast<CUexternalMemory>(77);
  CUexternalMemory object = before;
  const CUresult code = import(descriptor, &object, size, type, flags);
  EXPECT_EQ(object, before);
  EXPECT_TRUE(is_open(descriptor));
  return code;
}

CUresult buffer(CUexternalMemory object, int** data, uint64_t offset,
                uint64_t size, unsigned flags = 0) {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC wanted{};
  wanted.offset = offset;
  wanted.size = size;
  wanted.flags = flags;
  CUdeviceptr address = 77;
  const CUresult code =
      cuExternalMemoryGetMappedBuffer(&address, object, &wanted);
  if (code != CUDA_SUCCESS) {
    EXPECT_EQ(address, 77u);
  }
  *data = reinterpret_cast<int*>(address);
  return code;
}

CUresult buffer_code(CUexternalMemory object, uint64_t offset, uint64_t size,
                     unsigned flags = 0) {
  int* data = nullptr;
  const CUresult code = buffer(object, &data, offset, size, flags);
  if (code == CUDA_SUCCESS) {
    EXPECT_EQ(cuMemFree(number(data)), CUDA_SUCCESS);
  }
  return code;
}

// A mapped chunk of 4 MiB, whose second half begins with other values.
constexpr uint64_t kBytes = 2 * kChunk;
constexpr int kHalf = kChunk / sizeof(int);

struct Filled {
  Handle handle = create(chunk_on(0, kPosix), kBytes);
  int* data = map(handle, kAll, kBytes);
  Filled() {
    fill(data, 100);
    fill(data + kHalf, 500);
  }
  ~Filled() {
    unmap(data, kBytes);
    release(handle);
  }
};

ROLE(external_importer) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const int descriptor = test.receive_descriptor();
  CUexternalMemory object = nullptr;
  ASSERT_EQ(import(descriptor, &object), CUDA_SUCCESS);
  EXPECT_FALSE(is_open(descriptor));
  int *all = nullptr, *half = nullptr;
  ASSERT_EQ(buffer(object, &all, 0, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(buffer(object, &half, kChunk, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cuDestroyExternalMemory(object), CUDA_SUCCESS);
  EXPECT_EQ(wrong_elements(all, kCount, 100), 0);
  EXPECT_EQ(wrong_elements(half, kCount, 500), 0);
  EXPECT_EQ(read_back(half, 1)[0], 500);
  fill(half, 900);
  EXPECT_EQ(wrong_elements(all + kHalf, kCount, 900), 0);
  test.send(true);
  // The exporter has released its chunk.
  EXPECT_EQ(test.receive<int>(), 2);
  EXPECT_EQ(cuMemFree(number(half)), CUDA_SUCCESS);
  EXPECT_EQ(wrong_elements(all, kCount, 100), 0);
  EXPECT_EQ(cuMemFree(number(all)), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(number(all)), kInvalid);
}

TEST(External, ABufferShowsTheExportersMemory) {
  Peer peer("external_importer");
  {
    const Filled filled;
    const int descriptor = export_descriptor(filled.handle);
    peer.channel().send_descriptor(descriptor);
    close(descriptor);
    EXPECT_TRUE(peer.channel().receive<bool>());
    EXPECT_EQ(wrong_elements(filled.data + kHalf, kCount, 900), 0);
    EXPECT_EQ(wrong_elements(filled.data, kCount, 100), 0);
  }
  peer.channel().send(2);
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST(External, TheRuntimeHasTheSameCalls) {
  const Filled filled;
  cudaExternalMemoryHandleDesc wanted{};
  wanted.type = cudaExternalMemoryHandleTypeOpaqueFd;
  wanted.handle.fd = export_descriptor(filled.handle);
  wanted.size = kBytes;
  cudaExternalMemory_t object = nullptr;
  ASSERT_EQ(cudaImportExternalMemory(&object, &wanted), cudaSuccess);
  EXPECT_FALSE(is_open(wanted.handle.fd));
  cudaExternalMemoryBufferDesc part{};
  part.offset = kChunk;
  part.size = kChunk;
  void* data = nullptr;
  ASSERT_EQ(cudaExternalMemoryGetMappedBuffer(&data, object, &part),
            cudaSuccess);
  EXPECT_EQ(wrong_elements(static_cast<int*>(data), kCount, 500), 0);
  EXPECT_EQ(cudaDestroyExternalMemory(object), cudaSuccess);
  EXPECT_EQ(cudaDestroyExternalMemory(object), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);

  wanted.handle.fd = memfd_create("plain", MFD_CLOEXEC);
  EXPECT_EQ(cudaImportExternalMemory(&object, &wanted),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_TRUE(is_open(wanted.handle.fd));
  close(wanted.handle.fd);
}

TEST(External, ImportsThatAreRefused) {
  const Filled filled;
  const int chunk = export_descriptor(filled.handle);
  EXPECT_EQ(refused(chunk, 0), kInvalid);
  EXPECT_EQ(refused(chunk, kBytes, kOpaque, 2), kInvalid);
  EXPECT_EQ(refused(chunk, kBytes, 0), kInvalid);
  EXPECT_EQ(refused(chunk, kBytes, 99), kInvalid);
  EXPECT_EQ(refused(chunk, kBytes, 2), kNot);
  EXPECT_EQ(refused(chunk, kBytes, kDmaBufType), kNot);
  EXPECT_EQ(cuImportExternalMemory(nullptr, nullptr), kInvalid);

  int dma_buf = -1;
  ASSERT_EQ(
      cuMemGetHandleForAddressRange(&dma_buf, number(filled.data), kBytes,
                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
      CUDA_SUCCESS);
  const int plain = memfd_create("plain", MFD_CLOEXEC);
  for (const int other : {dma_buf, plain}) {
    EXPECT_EQ(refused(other), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(refused(other, kBytes, kDmaBufType), kNot);
    close(other);
  }
  // After all that, the descriptor still imports. The size that the program
  // names may be wrong.
  CUexternalMemory object = nullptr;
  ASSERT_EQ(import(chunk, &object, 4 * kBytes, kOpaque,
                   CUDA_EXTERNAL_MEMORY_DEDICATED),
            CUDA_SUCCESS);
  EXPECT_EQ(buffer_code(object, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(buffer_code(object, 0, kBytes + 8), kInvalid);
  EXPECT_EQ(cuDestroyExternalMemory(object), CUDA_SUCCESS);
}

TEST(External, BuffersThatAreRefused) {
  const Filled filled;
  CUexternalMemory object = nullptr;
  ASSERT_EQ(import(export_descriptor(filled.handle), &object), CUDA_SUCCESS);
  EXPECT_EQ(buffer_code(object, 8, 8), CUDA_SUCCESS);
  EXPECT_EQ(buffer_code(object, 0, 0), kInvalid);
  EXPECT_EQ(buffer_code(object, 0, kBytes + 1), kInvalid);
  EXPECT_EQ(buffer_code(object, kChunk, kBytes), kInvalid);
  EXPECT_EQ(buffer_code(object, kBytes, 8), kInvalid);
  EXPECT_EQ(buffer_code(object, ~uint64_t{7}, 16), kInvalid);
  EXPECT_EQ(buffer_code(object, 0, kBytes, 1), kInvalid);
  EXPECT_EQ(cuExternalMemoryGetMappedBuffer(nullptr, object, nullptr),
            kInvalid);
  EXPECT_EQ(cuDestroyExternalMemory(object), CUDA_SUCCESS);
  EXPECT_EQ(buffer_code(object, 0, 8), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuDestroyExternalMemory(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST(External, ABufferIsMemoryOfItsOwnKind) {
  const Filled filled;
  CUexternalMemory object = nullptr;
  ASSERT_EQ(import(export_descriptor(filled.handle), &object), CUDA_SUCCESS);
  int* half = nullptr;
  ASSERT_EQ(buffer(object, &half, kChunk, kChunk), CUDA_SUCCESS);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(cuMemGetAddressRange(&base, &size, number(half + 10)),
            CUDA_SUCCESS);
  EXPECT_EQ(base, number(half));
  EXPECT_EQ(size, kChunk);
  unsigned value = 77;
  EXPECT_EQ(cuPointerGetAttribute(
                &value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 0u);
  EXPECT_EQ(
      cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base),
      CUDA_SUCCESS);
  EXPECT_EQ(value, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  CUipcMemHandle legacy;
  EXPECT_EQ(cuIpcGetMemHandle(&legacy, base), kInvalid);
  int descriptor = -1;
  EXPECT_EQ(
      cuMemGetHandleForAddressRange(&descriptor, base, kChunk,
                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
      kInvalid);
  Handle retained = 0;
  EXPECT_EQ(cuMemRetainAllocationHandle(&retained, half), kInvalid);
  EXPECT_EQ(cuMemFree(base + 4), kInvalid);
  EXPECT_EQ(cuMemFree(base), CUDA_SUCCESS);
  EXPECT_EQ(cuDestroyExternalMemory(object), CUDA_SUCCESS);
}

ROLE(external_memory_lives) {
  const size_t at_start = free_bytes();
  {
    const Filled filled;  // loads the module
    EXPECT_EQ(wrong_elements(filled.data, kCount, 100), 0);
  }
  const size_t before = free_bytes();
  CUexternalMemory object = nullptr;
  int* data = nullptr;
  {
    const Filled filled;
    ASSERT_EQ(import(export_descriptor(filled.handle), &object), CUDA_SUCCESS);
  }
  EXPECT_EQ(before - free_bytes(), kBytes);
  ASSERT_EQ(buffer(object, &data, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuDestroyExternalMemory(object), CUDA_SUCCESS);
  EXPECT_EQ(before - free_bytes(), kBytes);
  EXPECT_EQ(wrong_elements(data, kCount, 100), 0);
  EXPECT_EQ(cuMemFree(number(data)), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);

  // The end of the context takes objects and buffers with it.
  {
    const Filled filled;
    ASSERT_EQ(import(export_descriptor(filled.handle), &object), CUDA_SUCCESS);
  }
  ASSERT_EQ(buffer(object, &data, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(free_bytes(), at_start);
  EXPECT_EQ(buffer_code(object, 0, 8), CUDA_ERROR_INVALID_HANDLE);
}

TEST(External, TheLastBufferKeepsTheMemory) {
  Peer peer("external_memory_lives", kOnQuietGpu);
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(external_on_driver_580) {
  const Filled filled;
  CUexternalMemory object = nullptr;
  const int plain = memfd_create("plain", MFD_CLOEXEC);
  EXPECT_EQ(import(plain, &object), CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(is_open(plain));
  const int chunk = export_descriptor(filled.handle);
  EXPECT_EQ(refused(chunk, kBytes, kDmaBufType), kNot);
  EXPECT_EQ(refused(chunk, 0), kInvalid);
  close(chunk);
}

TEST(External, Driver580ClosesWhatItRefuses) {
  Peer peer("external_on_driver_580", {{"IPCLAB_PROFILE", "driver-580"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(external_on_a_peer) {
  const Handle handle = create(chunk_on(1, kPosix), kBytes);
  CUexternalMemory object = nullptr;
  const int descriptor = export_descriptor(handle);
  if (test.receive<bool>()) {
    ASSERT_EQ(import(descriptor, &object), CUDA_SUCCESS);
    int* data = nullptr;
    ASSERT_EQ(buffer(object, &data, 0, kBytes), CUDA_SUCCESS);
    fill(data, 40);
    EXPECT_EQ(read_back(data, 1)[0], 40);
    int ordinal = -1;
    EXPECT_EQ(cuPointerGetAttribute(
                  &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, number(data)),
              CUDA_SUCCESS);
    EXPECT_EQ(ordinal, 1);
    EXPECT_EQ(cuMemFree(number(data)), CUDA_SUCCESS);
    EXPECT_EQ(cuDestroyExternalMemory(object), CUDA_SUCCESS);
  } else {
    EXPECT_EQ(refused(descriptor), kInvalid);
    close(descriptor);
  }
  release(handle);
}

TEST(External, MemoryOfAPeer) {
  for (const bool reached : {true, false}) {
    Peer peer("external_on_a_peer",
              {{"IPCLAB_PROFILE", reached ? "two-gpus" : "no-peer"}});
    peer.channel().send(reached);
    EXPECT_EQ(peer.wait(), "exit 0");
  }
}

TEST(External, SemaphoresAreRefused) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC wanted{};
  wanted.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD;
  wanted.handle.fd = memfd_create("plain", MFD_CLOEXEC);
  CUexternalSemaphore object = nullptr;
  EXPECT_EQ(cuImportExternalSemaphore(&object, &wanted),
            CUDA_ERROR_INVALID_HANDLE);
  wanted.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_D3D12_FENCE;
  EXPECT_EQ(cuImportExternalSemaphore(&object, &wanted), kNot);
  EXPECT_EQ(object, nullptr);
  EXPECT_TRUE(is_open(wanted.handle.fd));
  close(wanted.handle.fd);
}

}  // namespace
