// SPDX-License-Identifier: Apache-2.0
// The stream-ordered allocator in one process.
#include "pool.h"

#include <sched.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "peer.h"

using namespace ipclab::model::test;

namespace {

constexpr unsigned kNonBlocking = cudaStreamNonBlocking;
constexpr uint64_t kBytes = 8 * kMiB;

using Environment = std::map<std::string, std::string>;
const Environment kTwoGpus = {{"IPCLAB_PROFILE", "two-gpus"}};

cudaMemPool_t default_pool(int device = 0) {
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, device), cudaSuccess);
  return pool;
}

cudaMemPool_t current_pool(int device = 0) {
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaDeviceGetMemPool(&pool, device), cudaSuccess);
  return pool;
}

template <typename T>
T pointer_attribute(CUpointer_attribute which, const void* pointer) {
  T value{};
  EXPECT_EQ(cuPointerGetAttribute(&value, which,
                                  reinterpret_cast<CUdeviceptr>(pointer)),
            CUDA_SUCCESS);
  return value;
}

cudaError_t refused(const cudaMemPoolProps& wanted) {
  cudaMemPool_t pool = nullptr;
  const cudaError_t code = cudaMemPoolCreate(&pool, &wanted);
  EXPECT_EQ(pool, nullptr);
  EXPECT_EQ(cudaGetLastError(), code);
  return code;
}

TEST(Pool, AllocatesInStreamOrder) {
  cudaStream_t stream = stream_with(kNonBlocking);
  Latch latch(stream);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, kBytes, stream), cudaSuccess);
  int* data = static_cast<int*>(memory);
  ASSERT_EQ(launch("fill", 4, 256, stream, data, 1024, 5), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "that is no error";
  latch.let_go();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(wrong_elements(data, 1024, 5), 0);
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  cudaGetLastError();
}

// This was measured on one H200 with driver 580.159.04.
TEST(Pool, NoBytesAreANullPointer) {
  cudaStream_t stream = stream_with(kNonBlocking);
  int any = 0;
  void* memory = &any;
  EXPECT_EQ(cudaMallocAsync(&memory, 0, stream), cudaSuccess);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cudaFreeAsync(nullptr, stream), cudaSuccess);
}

ROLE(uses_before_the_allocation) {
  cudaStream_t first = stream_with(kNonBlocking);
  int* flag = shared_word();
  EXPECT_EQ(launch("spin_until", 1, 1, first, flag, 1), CUDA_SUCCESS);
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocAsync(&memory, kBytes, first), cudaSuccess);
  cudaStream_t second = stream_with(kNonBlocking);
  EXPECT_EQ(launch("write_one", 1, 1, second, static_cast<int*>(memory), 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaErrorIllegalAddress);
  release(flag);
}

ROLE(uses_after_the_free) {
  cudaStream_t stream = stream_with(kNonBlocking);
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocAsync(&memory, kBytes, stream), cudaSuccess);
  EXPECT_EQ(launch("write_one", 1, 1, stream, static_cast<int*>(memory), 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
  EXPECT_EQ(launch("write_one", 1, 1, stream, static_cast<int*>(memory), 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
}

TEST(Pool, UseOutsideThePromisedOrderFaults) {
  for (const char* role :
       {"uses_before_the_allocation", "uses_after_the_free"}) {
    Peer peer(role);
    EXPECT_EQ(peer.wait(), "exit 0") << role;
  }
}

TEST(Pool, OneStreamReusesAtOnce) {
  cudaMemPool_t pool = create(on_device(0));
  set_policies(pool);
  cudaStream_t stream = stream_with(kNonBlocking);
  Latch latch(stream);
  int* first = take(pool, kBytes, stream);
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(cudaFreeAsync(first, stream), cudaSuccess);
    EXPECT_EQ(take(pool, kBytes, stream), first);
  }
  EXPECT_EQ(reserved(pool), kBytes);
  EXPECT_EQ(cudaFreeAsync(first, stream), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

// The first stream frees memory. second_gets_the_same() says whether the second
// stream then gets the same memory or new memory.
struct Handover {
  cudaMemPool_t pool = create(on_device(0));
  cudaStream_t first;
  cudaStream_t second;
  int* memory;

  explicit Handover(unsigned flags = kNonBlocking)
      : first(stream_with(flags)), second(stream_with(flags)) {
    set_policies(pool);
    memory = take(pool, kBytes, first);
  }
  ~Handover() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
  }
  void free_in_first() { EXPECT_EQ(cudaFreeAsync(memory, first), cudaSuccess); }
  void order_second_behind_first() {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreate(&event), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second, event), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
  bool second_gets_the_same() {
    int* got = take(pool, kBytes, second);
    EXPECT_EQ(launch("write_one", 1, 1, second, got, 1), CUDA_SUCCESS);
    EXPECT_EQ(cudaFreeAsync(got, second), cudaSuccess);
    return got == memory;
  }
};

TEST(Pool, FollowsEventsIfItMay) {
  for (const bool may : {true, false}) {
    for (const bool ordered : {true, false}) {
      Handover handover;
      set_policies(handover.pool, may);
      Latch latch(handover.first);
      handover.free_in_first();
      if (ordered) handover.order_second_behind_first();
      EXPECT_EQ(handover.second_gets_the_same(), may && ordered);
    }
  }
}

TEST(Pool, AnEventBeforeTheFreeIsNoOrder) {
  Handover handover;
  set_policies(handover.pool, 1);
  Latch latch(handover.first);
  handover.order_second_behind_first();
  handover.free_in_first();
  EXPECT_FALSE(handover.second_gets_the_same());
}

TEST(Pool, OrderIsPassedOn) {
  Handover handover;
  set_policies(handover.pool, 1);
  cudaStream_t third = stream_with(kNonBlocking);
  Latch latch(handover.first);
  handover.free_in_first();
  handover.order_second_behind_first();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, handover.second), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(third, event), cudaSuccess);
  EXPECT_EQ(take(handover.pool, kBytes, third), handover.memory);
  EXPECT_EQ(cudaFreeAsync(handover.memory, third), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(third), cudaSuccess);
}

TEST(Pool, FollowsTheLegacyStream) {
  for (const bool through_legacy : {true, false}) {
    Handover handover(cudaStreamDefault);
    set_policies(handover.pool, 1);
    Latch latch(handover.first);
    handover.free_in_first();
    int* word = shared_word();
    if (through_legacy) {
      EXPECT_EQ(launch("write_one", 1, 1, nullptr, word, 1), CUDA_SUCCESS);
    }
    EXPECT_EQ(handover.second_gets_the_same(), through_legacy);
    latch.let_go();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
  }
}

TEST(Pool, TakesCompletedFreesIfItMay) {
  for (const bool may : {true, false}) {
    Handover handover;
    set_policies(handover.pool, 0, may);
    handover.free_in_first();
    while (cudaStreamQuery(handover.first) == cudaErrorNotReady) sched_yield();
    cudaGetLastError();
    EXPECT_EQ(handover.second_gets_the_same(), may);
  }
}

TEST(Pool, ASynchroniseEndsFreesForAll) {
  for (const char* call : {"stream", "event", "device", "none"}) {
    Handover handover;
    handover.free_in_first();
    EXPECT_EQ(set(handover.pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX),
              cudaSuccess);
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, handover.first), cudaSuccess);
    const std::string which = call;
    if (which == "stream") {
      EXPECT_EQ(cudaStreamSynchronize(handover.first), cudaSuccess);
    } else if (which == "event") {
      EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    } else if (which == "device") {
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    EXPECT_EQ(handover.second_gets_the_same(), which != "none") << which;
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
}

TEST(Pool, ASynchroniseEndsOnlyWhatItWaitedFor) {
  Handover handover;
  Latch latch(handover.first);
  handover.free_in_first();
  EXPECT_EQ(cudaStreamSynchronize(handover.second), cudaSuccess);
  EXPECT_FALSE(handover.second_gets_the_same());
}

// The second stream is in no order with the frees of the first one, which are
// done.
TEST(Pool, ASynchroniseReleasesWhatOtherStreamsHaveFreed) {
  cudaMemPool_t pool = create(on_device(0));
  cudaStream_t first = nullptr, second = nullptr;
  for (cudaStream_t* stream : {&first, &second})
    ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
              cudaSuccess);
  int* large = take(pool, 2 * kMiB, first);
  EXPECT_EQ(cudaFreeAsync(large, first), cudaSuccess);
  int* small = take(pool, 1000, first);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (cudaStreamQuery(first) != cudaSuccess &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(reserved(pool), 2 * kMiB);
  EXPECT_EQ(cudaFreeAsync(small, second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(reserved(pool), 0u);
  for (cudaStream_t stream : {first, second})
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST(Pool, WaitsInsteadOfFailingIfItMay) {
  for (const bool may : {true, false}) {
    cudaMemPoolProps wanted = on_device(0);
    wanted.maxSize = kBytes;
    cudaMemPool_t pool = create(wanted);
    set_policies(pool, 0, 0, may);
    cudaStream_t first = stream_with(kNonBlocking);
    cudaStream_t second = stream_with(kNonBlocking);
    int* memory = take(pool, kBytes, first);
    {
      Latch latch(first);
      EXPECT_EQ(launch("fill", 4, 256, first, memory, 1024, 1), CUDA_SUCCESS);
      EXPECT_EQ(cudaFreeAsync(memory, first), cudaSuccess);
      void* got = nullptr;
      const cudaError_t code =
          cudaMallocFromPoolAsync(&got, kBytes, pool, second);
      EXPECT_EQ(code, may ? cudaSuccess : cudaErrorMemoryAllocation);
      cudaGetLastError();
      if (may) {
        EXPECT_EQ(got, memory);
        EXPECT_EQ(launch("fill", 4, 256, second, memory, 1024, 9),
                  CUDA_SUCCESS);
        EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
        cudaGetLastError();
        latch.let_go();
        EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
        EXPECT_EQ(wrong_elements(memory, 1024, 9), 0);
        EXPECT_EQ(cudaFreeAsync(memory, second), cudaSuccess);
      }
    }
    EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
  }
}

TEST(Pool, MaxSizeIsALimit) {
  cudaMemPoolProps wanted = on_device(0);
  wanted.maxSize = 64 * kMiB;
  cudaMemPool_t pool = create(wanted);
  int* blocks[4];
  for (int*& block : blocks) block = take(pool, 16 * kMiB, nullptr);
  void* more = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&more, 16 * kMiB, pool, nullptr),
            cudaErrorMemoryAllocation);
  cudaGetLastError();
  for (int* block : blocks)
    EXPECT_EQ(cudaFreeAsync(block, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST(Pool, SmallPiecesMakeRoomForALargeOne) {
  cudaMemPoolProps wanted = on_device(0);
  wanted.maxSize = 4 * kMiB;
  cudaMemPool_t pool = create(wanted);
  cudaMemPool_t between = create(on_device(0));
  EXPECT_EQ(set(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX),
            cudaSuccess);
  int* first = take(pool, 2 * kMiB, nullptr);
  int* other = take(between, 2 * kMiB, nullptr);
  int* second = take(pool, 2 * kMiB, nullptr);
  for (int* memory : {first, second}) {
    EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  int* large = take(pool, 4 * kMiB, nullptr);
  EXPECT_EQ(launch("fill", 4096, 256, nullptr, large, 1 << 20, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(wrong_elements(large, 1 << 20, 1), 0);
  for (int* memory : {other, large}) {
    EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
  }
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(between), cudaSuccess);
}

TEST(Pool, ThresholdTrimAndStatistics) {
  cudaMemPool_t pool = create(on_device(0));
  EXPECT_EQ(get<uint64_t>(pool, cudaMemPoolAttrReleaseThreshold), 0u);
  int* large = take(pool, 64 * kMiB, nullptr);
  int* small = take(pool, 1000, nullptr);
  EXPECT_EQ(used(pool), 64 * kMiB + 1024);
  EXPECT_EQ(reserved(pool), 66 * kMiB);

  EXPECT_EQ(set(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX),
            cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(large, nullptr), cudaSuccess);
  EXPECT_EQ(used(pool), 1024u);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0),
            cudaSuccess);  // no call has waited for the free
  EXPECT_EQ(reserved(pool), 66 * kMiB);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(reserved(pool), 66 * kMiB);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 100 * kMiB), cudaSuccess);
  EXPECT_EQ(reserved(pool), 66 * kMiB);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 32 * kMiB), cudaSuccess);
  EXPECT_EQ(reserved(pool), 32 * kMiB);
  ASSERT_EQ(launch("fill", 1, 250, nullptr, small, 250, 3), CUDA_SUCCESS);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  EXPECT_EQ(reserved(pool), 2 * kMiB);
  EXPECT_EQ(wrong_elements(small, 250, 3), 0);

  EXPECT_EQ(get<uint64_t>(pool, cudaMemPoolAttrReservedMemHigh), 66 * kMiB);
  EXPECT_EQ(set(pool, cudaMemPoolAttrReservedMemHigh, uint64_t{1}),
            cudaErrorInvalidValue);
  EXPECT_EQ(set(pool, cudaMemPoolAttrReservedMemHigh, uint64_t{0}),
            cudaSuccess);
  EXPECT_EQ(get<uint64_t>(pool, cudaMemPoolAttrReservedMemHigh), 2 * kMiB);
  EXPECT_EQ(get<uint64_t>(pool, cudaMemPoolAttrUsedMemHigh), 64 * kMiB + 1024);

  EXPECT_EQ(set(pool, cudaMemPoolAttrReleaseThreshold, uint64_t{0}),
            cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(small, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(reserved(pool), 0u);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(Pool, MemoryOutlivesADestroyedPool) {
  cudaMemPool_t pool = create(on_device(0));
  EXPECT_EQ(cudaDeviceSetMemPool(0, pool), cudaSuccess);
  EXPECT_EQ(current_pool(), pool);
  void* pointer = nullptr;
  ASSERT_EQ(cudaMallocAsync(&pointer, kBytes, nullptr), cudaSuccess);
  int* memory = static_cast<int*>(pointer);
  EXPECT_EQ(used(pool), kBytes);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(current_pool(), default_pool());
  ASSERT_EQ(launch("fill", 4, 256, nullptr, memory, 1024, 8), CUDA_SUCCESS);
  EXPECT_EQ(wrong_elements(memory, 1024, 8), 0);
  EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(default_pool()), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(Pool, FreesMayBeMixed) {
  int* ordinary = allocate<int>(1 << 20);
  EXPECT_EQ(cudaFreeAsync(ordinary, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaFree(ordinary), cudaErrorInvalidValue);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, kBytes, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(used(default_pool()), 0u);
  cudaGetLastError();
}

TEST(Pool, PointersTellTheirPool) {
  cudaMemPool_t pool =
      create(on_device(0, cudaMemHandleTypePosixFileDescriptor));
  int* own = take(pool, 4096, nullptr);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, 4096, nullptr), cudaSuccess);
  EXPECT_EQ(pointer_attribute<cudaMemPool_t>(
                CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, own),
            pool);
  EXPECT_EQ(pointer_attribute<cudaMemPool_t>(
                CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory),
            default_pool());
  EXPECT_EQ(pointer_attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, own),
            nullptr);
  EXPECT_EQ(pointer_attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, own),
            0);
  EXPECT_EQ(pointer_attribute<int>(
                CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, own),
            0);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, own), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_EQ(cudaFreeAsync(own, nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST(Pool, PlacesHaveDefaultPools) {
  cudaMemLocation device{cudaMemLocationTypeDevice, 0};
  cudaMemLocation host{cudaMemLocationTypeHost, 77};
  cudaMemLocation none{cudaMemLocationTypeNone, 0};
  cudaMemPool_t pool = nullptr;
  const auto pinned = cudaMemAllocationTypePinned;
  const auto managed = cudaMemAllocationTypeManaged;
  EXPECT_EQ(cudaMemGetDefaultMemPool(&pool, &device, pinned), cudaSuccess);
  EXPECT_EQ(pool, default_pool());
  EXPECT_EQ(cudaMemGetMemPool(&pool, &host, pinned), cudaSuccess);
  EXPECT_NE(pool, default_pool());
  EXPECT_EQ(cudaMemSetMemPool(&device, pinned, pool), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemSetMemPool(&host, managed, pool), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemSetMemPool(&host, pinned, pool), cudaSuccess);
  EXPECT_EQ(cudaMemGetMemPool(&pool, &none, pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemGetMemPool(&pool, &none, managed), cudaSuccess);
  device.id = 9;
  EXPECT_EQ(cudaMemGetMemPool(&pool, &device, pinned), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(Pool, HostAndManagedPoolsGiveMemoryToTheHost) {
  cudaMemPoolProps host = on_device(0);
  host.location = {cudaMemLocationTypeHostNuma, 0};
  cudaMemPoolProps managed = on_device(0);
  managed.allocType = cudaMemAllocationTypeManaged;
  for (const cudaMemPoolProps& wanted : {host, managed}) {
    cudaMemPool_t pool = create(wanted);
    if (wanted.location.type != cudaMemLocationTypeDevice) {
      EXPECT_EQ(access_of(pool, 0), cudaMemAccessFlagsProtNone);
      EXPECT_EQ(set_access(pool, 0, cudaMemAccessFlagsProtReadWrite),
                cudaSuccess);
    }
    int* memory = take(pool, 4096, nullptr);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    memory[7] = 1;
    EXPECT_EQ(launch("fill", 4, 256, nullptr, memory, 1024, 8), CUDA_SUCCESS);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    EXPECT_EQ(memory[7], 15);
    EXPECT_EQ(cudaFreeHost(memory), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  }
  cudaGetLastError();
}

TEST(Pool, WrongPropertiesAreRefused) {
  cudaMemPoolProps wanted = on_device(0);
  wanted.reserved[53] = 1;
  EXPECT_EQ(refused(wanted), cudaErrorInvalidValue);
  wanted = on_device(0);
  wanted.win32SecurityAttributes = &wanted;
  EXPECT_EQ(refused(wanted), cudaErrorInvalidValue);
  wanted = on_device(0);
  wanted.allocType = cudaMemAllocationTypeInvalid;
  EXPECT_EQ(refused(wanted), cudaErrorInvalidValue);
  wanted = on_device(0);
  wanted.location.type = cudaMemLocationTypeInvalid;
  EXPECT_EQ(refused(wanted), cudaErrorInvalidValue);
  EXPECT_EQ(refused(on_device(7)), cudaErrorInvalidValue);
  EXPECT_EQ(refused(on_device(0, cudaMemHandleTypeWin32)),
            cudaErrorInvalidValue);
  EXPECT_EQ(refused(on_device(0, cudaMemHandleTypeFabric)),
            cudaErrorNotPermitted);
  wanted = on_device(0, cudaMemHandleTypePosixFileDescriptor);
  wanted.location.type = cudaMemLocationTypeHost;
  EXPECT_EQ(refused(wanted), cudaErrorInvalidValue);
  wanted.location.type = cudaMemLocationTypeHostNumaCurrent;
  EXPECT_EQ(refused(wanted), cudaErrorInvalidValue);
  wanted = on_device(0, cudaMemHandleTypePosixFileDescriptor);
  wanted.allocType = cudaMemAllocationTypeManaged;
  EXPECT_EQ(refused(wanted), cudaErrorInvalidValue);
}

TEST(Pool, GraphAllocationsAreNotShared) {
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess);
  cudaGraphNode_t node = nullptr;
  cudaMemAllocNodeParams wanted{};
  wanted.poolProps = on_device(0, cudaMemHandleTypePosixFileDescriptor);
  wanted.bytesize = 4096;
  EXPECT_EQ(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted),
            cudaErrorInvalidValue);
  wanted.poolProps = on_device(0);
  EXPECT_EQ(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted),
            cudaSuccess);
  EXPECT_NE(wanted.dptr, nullptr);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, wanted.dptr), cudaErrorInvalidValue);
  cudaMemPoolPtrExportData data;
  EXPECT_EQ(cudaMemPoolExportPointer(&data, wanted.dptr),
            cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST(Pool, CapturedWorkRunsAtEveryLaunch) {
  cudaStream_t stream = stream_with(kNonBlocking);
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, 4096, stream), cudaSuccess);
  int* data = static_cast<int*>(memory);
  ASSERT_EQ(cudaMemsetAsync(data, 1, 4096, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(data, 2, 4096, stream), cudaSuccess);
  // A capture can free only memory that its graph or another graph allocated.
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaErrorInvalidValue);
  cudaGetLastError();
  cudaStreamCaptureStatus status;
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(read_back(data, 1)[0], 0x01010101);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(cudaMemset(data, 1, 4096), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(read_back(data, 1)[0], 0x02020202);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Random streams, events and sizes: no owner sees the bytes of another owner.
TEST(Pool, NoTwoOwnersAtOnce) {
  constexpr int kStreams = 4;
  constexpr int kRounds = 300;
  cudaMemPoolProps wanted = on_device(0);
  wanted.maxSize = 24 * kMiB;
  cudaMemPool_t pool = create(wanted);
  int* errors = allocate<int>(1);
  ASSERT_EQ(cudaMemset(errors, 0, sizeof *errors), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaStream_t streams[kStreams];
  cudaEvent_t events[kStreams];
  for (int i = 0; i < kStreams; ++i) {
    streams[i] = stream_with(kNonBlocking);
    ASSERT_EQ(cudaEventCreate(&events[i]), cudaSuccess);
  }
  unsigned random = 2463534242u;
  const auto below = [&random](unsigned limit) {
    random = random * 1664525 + 1013904223;
    return static_cast<int>(random >> 8) % static_cast<int>(limit);
  };
  for (int round = 0; round < kRounds; ++round) {
    const int i = below(kStreams);
    const int count = 1 << (8 + below(12));  // 1 KiB to 2 MiB
    void* memory = nullptr;
    const cudaError_t code = cudaMallocFromPoolAsync(
        &memory, static_cast<size_t>(count) * sizeof(int), pool, streams[i]);
    ASSERT_EQ(code, cudaSuccess);
    int* data = static_cast<int*>(memory);
    const auto blocks = static_cast<unsigned>((count + 255) / 256);
    launch("fill", blocks, 256, streams[i], data, count, round);
    launch("count_errors", blocks, 256, streams[i],
           static_cast<const int*>(data), count, round, errors);
    ASSERT_EQ(cudaFreeAsync(memory, streams[i]), cudaSuccess);
    if (below(3) == 0) {
      const int other = below(kStreams);
      cudaEventRecord(events[i], streams[i]);
      cudaStreamWaitEvent(streams[other], events[i]);
    }
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(read_back(errors, 1)[0], 0);
  EXPECT_EQ(used(pool), 0u);
  EXPECT_EQ(reserved(pool), 0u);
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(events[i]), cudaSuccess);
  }
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(cudaFree(errors), cudaSuccess);
}

ROLE(pool_access) {
  cudaMemPool_t pool = create(on_device(0));
  int* memory = take(pool, kBytes, nullptr);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  EXPECT_EQ(access_of(pool, 0), cudaMemAccessFlagsProtReadWrite);
  EXPECT_EQ(access_of(pool, 1), cudaMemAccessFlagsProtNone);
  EXPECT_EQ(set_access(pool, 0, cudaMemAccessFlagsProtNone),
            cudaErrorInvalidDevice);
  EXPECT_EQ(set_access(pool, 5, cudaMemAccessFlagsProtReadWrite),
            cudaErrorInvalidDevice);
  int* there = allocate<int>(1);
  EXPECT_EQ(cudaMemcpyAsync(there, memory, 4, cudaMemcpyDefault),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyPeerAsync(there, 1, memory, 0, 4), cudaSuccess);
  EXPECT_EQ(set_access(pool, 1, cudaMemAccessFlagsProtRead), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(there, memory, 4, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(memory, there, 4, cudaMemcpyDefault),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(there), cudaSuccess);
  EXPECT_EQ(set_access(pool, 1, cudaMemAccessFlagsProtReadWrite), cudaSuccess);
  EXPECT_EQ(access_of(pool, 1), cudaMemAccessFlagsProtReadWrite);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, memory, 5), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaDeviceSetMemPool(1, pool), cudaErrorInvalidValue);
  EXPECT_EQ(set_access(pool, 1, cudaMemAccessFlagsProtNone), cudaSuccess);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, memory, 6), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(read_back(memory, 1)[0], 5);
}

ROLE(allocates_where_the_stream_is) {
  cudaStream_t stream = stream_with(kNonBlocking);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocAsync(&memory, 4096, stream), cudaSuccess);
  EXPECT_EQ(pointer_attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory),
            0);
}

TEST(Pool, TwoGpusHaveTheirPoolsAndAccess) {
  for (const char* role : {"pool_access", "allocates_where_the_stream_is"}) {
    Peer peer(role, kTwoGpus);
    EXPECT_EQ(peer.wait(), "exit 0") << role;
  }
}

ROLE(no_access_without_peers) {
  EXPECT_EQ(set_access(default_pool(), 1, cudaMemAccessFlagsProtReadWrite),
            cudaErrorInvalidDevice);
}

ROLE(no_pools) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocAsync(&memory, 4096, nullptr), cudaErrorNotSupported);
  const cudaMemPoolProps wanted = on_device(0);
  EXPECT_EQ(refused(wanted), cudaErrorNotSupported);
}

ROLE(reset_keeps_pools) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocAsync(&memory, 4096, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(used(default_pool()), 4096u);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST(Pool, MachinesDiffer) {
  Peer far("no_access_without_peers", {{"IPCLAB_PROFILE", "no-peer"}});
  EXPECT_EQ(far.wait(), "exit 0");
  Peer none("no_pools", {{"IPCLAB_PROFILE", "no-pools"}});
  EXPECT_EQ(none.wait(), "exit 0");
  Peer reset("reset_keeps_pools");
  EXPECT_EQ(reset.wait(), "exit 0");
}

}  // namespace
