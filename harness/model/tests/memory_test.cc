// SPDX-License-Identifier: Apache-2.0
// Allocation, pointers and copies.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "gpu.h"
#include "peer.h"
#include "pool.h"

using namespace ipclab::model::test;

namespace {

uint64_t number(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

TEST(Memory, SmallAllocationsShareABlock) {
  char* first = allocate<char>(1);
  char* second = allocate<char>(512);
  char* third = allocate<char>(4096);
  EXPECT_EQ(second - first, 512);
  EXPECT_EQ(third - second, 512);
  EXPECT_EQ(number(first) >> 21, number(third) >> 21);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(cuMemGetAddressRange(&base, &size, number(third) + 5),
            CUDA_SUCCESS);
  EXPECT_EQ(base, number(third));
  EXPECT_EQ(size, 4096u);
  for (char* pointer : {first, second, third}) {
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  }
}

TEST(Memory, LargeAllocationsStandAlone) {
  char* first = allocate<char>(3 << 20);
  char* second = allocate<char>(2 << 20);
  EXPECT_EQ(number(first) % (2 << 20), 0u);
  EXPECT_EQ(number(second) % (2 << 20), 0u);
  EXPECT_GE(std::llabs(second - first), 4 << 20);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(second), cudaSuccess);
}

TEST(Memory, FreeMemoryComesBack) {
  size_t before = 0, during = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  char* pointer = allocate<char>(64 << 20);
  ASSERT_EQ(cudaMemGetInfo(&during, &total), cudaSuccess);
  ASSERT_EQ(cudaFree(pointer), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before - during, 64u << 20);
  EXPECT_EQ(before, after);
}

uint64_t free_memory() {
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  return free_bytes;
}

TEST(Memory, PoolsGiveTheirMemoryBack) {
  const uint64_t before = free_memory();
  cudaMemPool_t pool = create(on_device(0));
  int* first = take(pool, 64 * kMiB, nullptr);
  EXPECT_EQ(before - free_memory(), 64 * kMiB);
  EXPECT_EQ(cudaFreeAsync(first, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(free_memory(), before);
  int* second = take(pool, 4 * kMiB, nullptr);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(before - free_memory(), 4 * kMiB);
  EXPECT_EQ(cudaFreeAsync(second, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(free_memory(), before);
}

TEST(Memory, TooMuchIsRefused) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 1ull << 50), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Memory, WrongFreesAreRefused) {
  char* pointer = allocate<char>(4096);
  EXPECT_EQ(cudaFree(pointer + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(pointer), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  cudaGetLastError();
}

TEST(Memory, ThreeWaysToAskAboutAPointer) {
  int stack = 0;
  unsigned type = 77;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  number(&stack)),
            CUDA_ERROR_INVALID_VALUE);
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* value = &type;
  EXPECT_EQ(cuPointerGetAttributes(1, &attribute, &value, number(&stack)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, 0u);
  cudaPointerAttributes attributes;
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, &stack), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);

  char* device = allocate<char>(100);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, device + 9), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.devicePointer, device + 9);
  EXPECT_EQ(attributes.device, 0);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, device), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(Memory, OnlyDeviceMemoryIsIpcCapable) {
  void* pinned = nullptr;
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 64), cudaSuccess);
  ASSERT_EQ(cudaMallocManaged(&managed, 64), cudaSuccess);
  char* device = allocate<char>(64);
  const auto capable = [](void* pointer) {
    unsigned value = 9;
    EXPECT_EQ(cuPointerGetAttribute(
                  &value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                  number(pointer)),
              CUDA_SUCCESS);
    return value;
  };
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(capable(device), 1u);
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, device), cudaSuccess);
  for (void* pointer : {pinned, managed}) {
    EXPECT_EQ(capable(pointer), 0u);
    EXPECT_EQ(cudaIpcGetMemHandle(&handle, pointer), cudaErrorInvalidValue);
  }
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  cudaGetLastError();
}

TEST(Memory, BufferIdsAreNeverReused) {
  unsigned long long ids[2] = {};
  uint64_t addresses[2];
  for (int i = 0; i < 2; ++i) {
    char* pointer = allocate<char>(8 << 20);
    addresses[i] = number(pointer);
    EXPECT_EQ(cuPointerGetAttribute(&ids[i], CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                    number(pointer)),
              CUDA_SUCCESS);
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  }
  EXPECT_EQ(addresses[0], addresses[1]);
  EXPECT_NE(ids[0], ids[1]);
}

TEST(Memory, CopiesInEveryDirection) {
  constexpr int kCount = 1000;
  int* device = allocate<int>(kCount);
  int* other = allocate<int>(kCount);
  std::vector<int> host(kCount);
  for (int i = 0; i < kCount; ++i) host[i] = 3 * i;
  const size_t bytes = kCount * sizeof(int);
  EXPECT_EQ(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(cudaMemcpy(other, device, bytes, cudaMemcpyDeviceToDevice),
            cudaSuccess);
  EXPECT_EQ(read_back(other, kCount), host);
  EXPECT_EQ(cudaMemcpy(device, host.data(), bytes + 1, cudaMemcpyDefault),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device, host.data(), 4, static_cast<cudaMemcpyKind>(9)),
            cudaErrorInvalidMemcpyDirection);
  cudaGetLastError();
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
}

TEST(Memory, RowsKeepTheirPitch) {
  char* device = nullptr;
  size_t pitch = 0;
  ASSERT_EQ(cudaMallocPitch(reinterpret_cast<void**>(&device), &pitch, 100, 3),
            cudaSuccess);
  EXPECT_GE(pitch, 100u);
  char host[3][100];
  for (int y = 0; y < 3; ++y) std::memset(host[y], 'a' + y, sizeof host[y]);
  EXPECT_EQ(cudaMemset(device, 'z', pitch * 3), cudaSuccess);
  EXPECT_EQ(
      cudaMemcpy2D(device, pitch, host, 100, 100, 3, cudaMemcpyHostToDevice),
      cudaSuccess);
  const std::vector<char> back = read_back(device, pitch * 3);
  for (int y = 0; y < 3; ++y) {
    EXPECT_EQ(back[y * pitch], 'a' + y);
    EXPECT_EQ(back[y * pitch + 99], 'a' + y);
    EXPECT_EQ(back[y * pitch + 100], 'z');
  }
  EXPECT_EQ(cudaMemset2D(device, pitch, 'q', 10, 2), cudaSuccess);
  EXPECT_EQ(read_back(device, pitch * 3)[pitch + 9], 'q');
  EXPECT_EQ(read_back(device, pitch * 3)[2 * pitch], 'c');
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

// Sizes whose product does not fit: nothing is written.
TEST(Memory, SizesThatOverflowAreRefused) {
  int* data = allocate<int>(4);
  EXPECT_EQ(cudaMemset(data, 0, 16), cudaSuccess);
  const auto to = reinterpret_cast<CUdeviceptr>(data);
  EXPECT_EQ(cuMemsetD32(to, 5, (size_t{1} << 62) + 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD16Async(to, 5, (size_t{1} << 63) + 1, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD2D8(to, size_t{1} << 62, 5, 1, 5),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(read_back(data, 4), std::vector<int>(4, 0));
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// "width must not exceed either dpitch or spitch": a pitch of 0 is no pitch.
TEST(Memory, APitchThatIsTooSmallIsRefused) {
  char* data = allocate<char>(64);
  char host[64] = {};
  EXPECT_EQ(cudaMemcpy2D(data, 0, host, 8, 8, 4, cudaMemcpyDefault),
            cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemcpy2DAsync(data, 8, host, 7, 8, 4, cudaMemcpyDefault),
            cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemcpy2DAsync(data, 8, host, 8, 8, 4, cudaMemcpyDefault),
            cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  cudaGetLastError();
}

TEST(Memory, ABoxMayHaveFewerRowsThanALayer) {
  constexpr size_t kPitch = 16, kRows = 3, kLayers = 2, kBytes = 96;
  static_assert(kPitch * kRows * kLayers == kBytes);
  char* device = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), kBytes), cudaSuccess);
  const cudaPitchedPtr box{device, kPitch, kPitch, kRows};
  const cudaExtent extent{4, 2, kLayers};
  for (const bool asynchronous : {false, true}) {
    EXPECT_EQ(cudaMemset(device, 'z', kBytes), cudaSuccess);
    EXPECT_EQ(asynchronous ? cudaMemset3DAsync(box, 'q', extent, nullptr)
                           : cudaMemset3D(box, 'q', extent),
              cudaSuccess);
    const std::vector<char> back = read_back(device, kBytes);
    for (size_t i = 0; i < kBytes; ++i) {
      const bool inside = i % kPitch < 4 && i / kPitch % kRows < 2;
      EXPECT_EQ(back[i], inside ? 'q' : 'z') << "byte " << i;
    }
  }
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(Memory, HostAndKernelSeePinnedManagedAndRegisteredMemory) {
  int* pinned = shared_word();
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, sizeof(int)), cudaSuccess);
  std::vector<int> plain(1);
  ASSERT_EQ(cudaHostRegister(plain.data(), sizeof(int), 0), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(plain.data(), sizeof(int), 0),
            cudaErrorHostMemoryAlreadyRegistered);
  cudaGetLastError();
  for (int* word : {pinned, static_cast<int*>(managed), plain.data()}) {
    EXPECT_EQ(launch("write_one", 1, 1, nullptr, word, 4711), CUDA_SUCCESS);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(*word, 4711);
  }
  EXPECT_EQ(cudaHostUnregister(plain.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(plain.data()), cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// A kernel that accesses forbidden memory makes its context unusable.
void expect_poisoned(Channel& test) {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
  test.send(1);
}

// The memory of this machine that the process uses for shared pages, in MiB.
long shared_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssShmem:", 0) == 0) return std::stol(line.substr(9)) >> 10;
  }
  return -1;
}

// So a test can set some GiB on a machine with less memory.
TEST(Memory, ZerosTakeNoMemoryOfThisMachine) {
  constexpr size_t kBytes = size_t{128} << 20;
  const long before = shared_mib();
  ASSERT_GE(before, 0);
  char* data = allocate<char>(kBytes + 6);
  ASSERT_EQ(cudaMemset(data, 7, kBytes + 6), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_GE(shared_mib() - before, 128);
  ASSERT_EQ(cudaMemset(data + 3, 0, kBytes), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(shared_mib() - before, 4);
  for (const size_t place : {size_t{0}, size_t{2}, size_t{3}, size_t{4096},
                             kBytes / 2, kBytes + 2, kBytes + 3, kBytes + 5}) {
    char seen = 1;
    ASSERT_EQ(cudaMemcpy(&seen, data + place, 1, cudaMemcpyDefault),
              cudaSuccess);
    EXPECT_EQ(seen, place < 3 || place >= kBytes + 3 ? 7 : 0) << place;
  }
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

ROLE(touch_freed) {
  int* data = allocate<int>(4 << 20);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, data, 1), CUDA_SUCCESS);
  expect_poisoned(test);
}
ROLE(touch_host) {
  int word = 0;
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, &word, 1), CUDA_SUCCESS);
  expect_poisoned(test);
}
ROLE(host_dereference) {
  volatile int* data = allocate<int>(1);
  test.send(1);
  *data = 5;
}
ROLE(endless) {
  int* flag = shared_word();
  EXPECT_EQ(launch("spin_until", 1, 1, nullptr, flag, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchTimeout);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchTimeout);
}

TEST(Memory, KernelOnFreedMemoryFaults) {
  Peer peer("touch_freed");
  EXPECT_EQ(peer.wait(), "exit 0");
}
TEST(Memory, KernelOnHostMemoryFaults) {
  Peer peer("touch_host");
  EXPECT_EQ(peer.wait(), "exit 0");
}
TEST(Memory, HostDereferenceFaults) {
  Peer peer("host_dereference", {{"ASAN_OPTIONS", "handle_segv=0"},
                                 {"TSAN_OPTIONS", "handle_segv=0"}});
  EXPECT_EQ(peer.channel().receive<int>(), 1);
  EXPECT_EQ(peer.wait(), "signal 11");
}
TEST(Memory, EndlessKernelEnds) {
  Peer peer("endless", {{"IPCLAB_MODEL_KERNEL_SECONDS", "0.3"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

}  // namespace
