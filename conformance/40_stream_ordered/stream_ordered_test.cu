// Memory that is allocated and freed in the order of streams.
// Mirror of samples/40_stream_ordered.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kSmall = 4096;  // far less than a block of the driver
constexpr size_t kBytes = 4 << 20;
constexpr int kRounds = 1000;
constexpr size_t kRoundBytes = 1024;
constexpr size_t kLarge = 512 << 20;  // far more than anything else uses
constexpr size_t kMedium = 64 << 20;  // the same for a test that is `alone`

template <class T>
T judged_attribute(const Words& words, CUpointer_attribute which) {
  Sentinel<T> value;
  EXPECT_SUCCESS(DRIVER(cuPointerGetAttribute)(
      value.out(), which, reinterpret_cast<CUdeviceptr>(words.data)));
  return value.value;
}

// Judges the driver's attributes of stream-ordered memory: no context, this
// GPU, this pool.
void expect_place(const Words& words, int device, cudaMemPool_t pool) {
  EXPECT_EQ(judged_attribute<CUcontext>(words, CU_POINTER_ATTRIBUTE_CONTEXT),
            nullptr);
  EXPECT_EQ(judged_attribute<int>(words, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
            device);
  EXPECT_EQ(judged_attribute<CUmemoryPool>(words,
                                           CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
            pool);

  // One query of all three attributes gives the same answers.
  Sentinel<CUcontext> context;
  Sentinel<int> ordinal;
  Sentinel<CUmemoryPool> owner;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_CONTEXT,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* results[] = {context.out(), ordinal.out(), owner.out()};
  EXPECT_SUCCESS(DRIVER(cuPointerGetAttributes)(
      3, wanted, results, reinterpret_cast<CUdeviceptr>(words.data)));
  EXPECT_EQ(context.value, nullptr) << "asked together";
  EXPECT_EQ(ordinal.value, device) << "asked together";
  EXPECT_EQ(owner.value, pool) << "asked together";
}

}  // namespace

TEST(StreamOrdered, ThePointerComesBeforeItsTurn) {
  covers("SOMA-02");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto allocates = [](auto api) {
    const Pool fresh;  // none of its memory was in use before
    CALL(api.device_set_mem_pool(0, fresh));
    const Stream stream, beside;
    const AsyncBuffer first = allocated(api, kBytes, stream);
    first.fill(pattern("first"), stream);
    Latch latch;
    latch.hold(stream);

    const AsyncBuffer buffer = allocated(api, kBytes, stream);
    EXPECT_NE(buffer.data, nullptr);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    buffer.queue_fill(pattern("later"), stream);
    const AsyncBuffer of_pool = allocated(api, fresh, kBytes, stream);
    of_pool.queue_fill(pattern("of the pool"), stream);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    // Another stream reaches its allocation meanwhile.
    const AsyncBuffer now = allocated(api, kBytes, beside);
    now.queue_fill(pattern("now"), beside);
    EXPECT_TRUE(passes(beside));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));

    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_TRUE(kernel_reads(now, pattern("now")));
    EXPECT_READS(buffer, pattern("later"));
    EXPECT_TRUE(kernel_reads(of_pool, pattern("of the pool")));
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    for (const cudaStream_t other : {cudaStreamLegacy, cudaStreamPerThread}) {
      const AsyncBuffer more = allocated(api, kBytes, other);
      more.queue_fill(pattern("a default stream"), other);
      EXPECT_TRUE(passes(other));
      EXPECT_TRUE(kernel_reads(more, pattern("a default stream")));
    }
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(allocates); });
  scenario.run(30s);
}

TEST(StreamOrdered, TheCurrentDeviceDoesNotChooseThePlace) {
  covers("SOMA-03");
  needs(gpus(2), pools);
  Scenario scenario;
  const auto allocates = [](auto api) {
    CALL(cudaSetDevice(0));
    const Stream stream;
    const Pool pool(pool_properties(cudaMemHandleTypeNone, 0, 1));
    CALL(cudaSetDevice(1));
    const AsyncBuffer of_stream = allocated(api, kBytes, stream);
    // Here the default stream is the default stream of the current device.
    const AsyncBuffer of_default_stream = allocated(api, kBytes);
    CALL(cudaStreamSynchronize(nullptr));
    CALL(cudaSetDevice(0));
    const AsyncBuffer of_pool(pool, kBytes, stream);
    CALL(cudaStreamSynchronize(stream));

    const std::pair<const AsyncBuffer&, int> places[] = {
        {of_stream, 0}, {of_default_stream, 1}, {of_pool, 1}};
    for (const auto& [buffer, device] : places) {
      SCOPED_TRACE("GPU " + std::to_string(device));
      EXPECT_EQ(
          judged_attribute<int>(buffer, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
          device);
      for (const int current : {0, 1}) {
        CALL(cudaSetDevice(current));
        cudaPointerAttributes told{};
        CALL(cudaPointerGetAttributes(&told, buffer.data));
        EXPECT_EQ(told.type, cudaMemoryTypeDevice);
        EXPECT_EQ(told.device, device) << "current is GPU " << current;
      }
      CALL(cudaSetDevice(device));
      buffer.fill(pattern("here"));
      EXPECT_READS(buffer, pattern("here"));
    }
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(allocates); });
  scenario.run(20s);
}

TEST(StreamOrdered, TheDefaultStreamNeedsAContext) {
  covers("SOMA-36");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role& me) {
    const Pool pool;
    const Stream stream;
    AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("before"));
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.data);
    Sentinel<CUdeviceptr> current, named, in_stream;
    CUcontext context = nullptr;
    CALL(DRIVER(cuCtxGetCurrent)(&context));
    CALL(DRIVER(cuCtxSetCurrent)(nullptr));
    const CUresult codes[] = {
        NOTED(DRIVER(cuMemAllocAsync)(current.out(), kBytes, nullptr)),
        NOTED(DRIVER(cuMemAllocFromPoolAsync)(named.out(), kBytes, pool,
                                              nullptr)),
        NOTED(DRIVER(cuMemFreeAsync)(address, nullptr))};
    // A stream that is not a default stream has a context of its own.
    EXPECT_SUCCESS(
        DRIVER(cuMemAllocFromPoolAsync)(in_stream.out(), kBytes, pool, stream));
    EXPECT_SUCCESS(DRIVER(cuMemFreeAsync)(in_stream.value, stream));
    CALL(DRIVER(cuCtxSetCurrent)(context));

    const auto expect_refusal = [&](const char* call, CUresult code) {
      EXPECT_TRUE(gives(code, call, CUDA_ERROR_INVALID_CONTEXT));
    };
    expect_refusal("cuMemAllocAsync", codes[0]);
    expect_refusal("cuMemAllocFromPoolAsync", codes[1]);
    expect_refusal("cuMemFreeAsync", codes[2]);
    note_touched(me, current, "cuMemAllocAsync");
    note_touched(me, named, "cuMemAllocFromPoolAsync");
    if (codes[2] == CUDA_SUCCESS) buffer.data = nullptr;
    EXPECT_TRUE(context_is_usable());
    if (buffer.data == nullptr) return;
    EXPECT_TRUE(kernel_reads(buffer, pattern("before")));
    buffer.free_async();
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0u);
  });
  scenario.run(20s);
}

// A default stream that has a name is a default stream, too.
TEST(StreamOrdered, ANamedDefaultStreamNeedsAContext) {
  covers("SOMA-36");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role& me) {
    const Pool pool;
    const Stream stream;
    AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("before"));
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.data);
    CUcontext context = nullptr;
    CALL(DRIVER(cuCtxGetCurrent)(&context));
    for (const CUstream preset : {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
      SCOPED_TRACE(preset == CU_STREAM_LEGACY ? "legacy" : "per thread");
      Sentinel<CUdeviceptr> current, named, in_stream;
      CALL(DRIVER(cuCtxSetCurrent)(nullptr));
      const CUresult codes[] = {
          NOTED(DRIVER(cuMemAllocAsync)(current.out(), kBytes, preset)),
          NOTED(DRIVER(cuMemAllocFromPoolAsync)(named.out(), kBytes, pool,
                                                preset)),
          NOTED(DRIVER(cuMemFreeAsync)(address, preset))};
      // The current pool is that of the device of the stream.
      EXPECT_SUCCESS(DRIVER(cuMemAllocAsync)(in_stream.out(), kBytes, stream));
      EXPECT_SUCCESS(DRIVER(cuMemFreeAsync)(in_stream.value, stream));
      CALL(DRIVER(cuCtxSetCurrent)(context));
      for (const CUresult code : codes)
        EXPECT_TRUE(gives(code, "a call without a context",
                          CUDA_ERROR_INVALID_CONTEXT));
      note_touched(me, current, "cuMemAllocAsync");
      note_touched(me, named, "cuMemAllocFromPoolAsync");
      if (codes[2] == CUDA_SUCCESS) buffer.data = nullptr;
      if (buffer.data == nullptr) return;
      EXPECT_TRUE(kernel_reads(buffer, pattern("before")));
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// Allocates memory; the function depends on the round.
static AsyncBuffer allocated_in(int round, cudaMemPool_t pool,
                                cudaStream_t stream) {
  switch (round % 4) {
    case 0:
      return allocated(RuntimeApi{}, kRoundBytes, stream);
    case 1:
      return allocated(DriverApi{}, kRoundBytes, stream);
    case 2:
      return allocated(RuntimeApi{}, pool, kRoundBytes, stream);
    default:
      return allocated(DriverApi{}, pool, kRoundBytes, stream);
  }
}

// Allocates in one stream, and uses the memory in another stream.
static void uses_memory_in_a_second_stream(Role&) {
  const Pool pool;
  const Stream first, second;
  cudaEvent_t earlier, written;
  CALL(cudaEventCreateWithFlags(&earlier, cudaEventDisableTiming));
  CALL(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
  CALL(cudaEventRecord(earlier, first));
  CALL(cudaStreamWaitEvent(second, earlier));  // orders nothing that follows
  WrongWords wrong;
  const auto lend = [&](int round) {
    const Pattern expected = pattern("round " + std::to_string(round));
    AsyncBuffer buffer = allocated_in(round, pool, first);
    buffer.queue_fill(expected, first);
    CALL(cudaEventRecord(written, first));
    CALL(cudaStreamWaitEvent(second, written));
    wrong.queue_count(buffer, expected, second);
    buffer.free_async(second);
  };
  lend(0);
  CALL(cudaDeviceSynchronize());

  Latch latch;
  latch.hold(first);
  for (int round = 1; round <= 4; ++round) lend(round);
  EXPECT_TRUE(is_held(second));
  latch.release();
  for (int round = 5; round < kRounds; ++round) lend(round);
  EXPECT_TRUE(passes(second, 30s));
  EXPECT_EQ(wrong.so_far(), 0u);

  // The host orders the streams by a call that synchronises, or by a query,
  // without an event. The held work continues while the host waits for it.
  const auto order_by_host = [&](auto api, bool whole_device) {
    SCOPED_TRACE(whole_device ? "device" : "stream");
    AsyncBuffer seen = allocated(api, kBytes, first);
    Latch held;
    held.hold(first);
    seen.queue_fill(pattern("seen"), first);
    std::thread releases([&] { held.release(); });
    if (whole_device)
      EXPECT_SUCCESS(cudaDeviceSynchronize());
    else
      EXPECT_SUCCESS(cudaStreamSynchronize(first));
    EXPECT_SUCCESS(cudaStreamQuery(first));
    releases.join();
    wrong.queue_count(seen, pattern("seen"), second);
    seen.free_async(second);
  };
  by_both_apis([&](auto api) {
    for (const bool whole_device : {false, true})
      order_by_host(api, whole_device);
    AsyncBuffer asked = allocated(api, kRoundBytes, first);
    asked.queue_fill(pattern("asked"), first);
    EXPECT_TRUE(passes(first));
    wrong.queue_count(asked, pattern("asked"), second);
    asked.free_async(second);
  });
  CALL(cudaStreamSynchronize(second));
  EXPECT_EQ(wrong.so_far(), 0u);
  CALL(cudaEventDestroy(written));
  CALL(cudaEventDestroy(earlier));
}

TEST(StreamOrdered, AnotherStreamUsesWhatItIsOrderedBehind) {
  covers("SOMA-04");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", uses_memory_in_a_second_stream);
  scenario.run(60s);
}

// Judges that a free of memory of cudaMalloc in a default stream comes after
// the earlier work of this stream.
template <class Api>
static void expect_free_in_default_stream(Api api, cudaStream_t preset) {
  SCOPED_TRACE("in a default stream");
  WrongWords wrong;
  void* memory = nullptr;
  CALL(cudaMalloc(&memory, kMedium));
  const Words start(memory, kBytes);
  start.fill(pattern("start"), preset);
  CALL(cudaDeviceSynchronize());
  const size_t in_use = free_memory();
  Latch latch;
  latch.hold(preset);
  wrong.queue_count(start, pattern("start"), preset);
  EXPECT_SUCCESS(api.free_async(memory, preset));
  EXPECT_LT(free_memory(), in_use + kMedium / 2) << "still in use";
  latch.release();
  EXPECT_TRUE(passes(preset));
  EXPECT_EQ(wrong.so_far(), 0u);
  CALL(cudaDeviceSynchronize());
  EXPECT_GT(free_memory(), in_use + kMedium / 2) << "not given back";
}

// Small allocations may lie side by side in one block of the driver.
template <class Api>
static void expect_neighbours_stay(Api api) {
  const DeviceBuffer before(kSmall);
  void* small = nullptr;
  CALL(cudaMalloc(&small, kSmall));
  const DeviceBuffer after(kSmall);
  before.fill(pattern("before"));
  after.fill(pattern("after"));
  const Stream stream;
  EXPECT_SUCCESS(api.free_async(small, stream));
  EXPECT_TRUE(passes(stream));
  const DeviceBuffer next(kSmall), one_more(kSmall);
  next.fill(pattern("next"));
  one_more.fill(pattern("one more"));
  EXPECT_TRUE(kernel_reads(before, pattern("before")));
  EXPECT_TRUE(kernel_reads(after, pattern("after")));
  EXPECT_TRUE(kernel_reads(next, pattern("next")));
}

TEST(StreamOrdered, MemoryOfCudaMallocIsFreedInStreamOrder) {
  covers("SOMA-05");
  needs(gpus(1), pools, alone);
  Scenario scenario;
  const auto frees = [](auto api) {
    const Stream stream, first;
    AsyncBuffer other = allocated(api, kBytes, first);
    expect_free_async(api, other, first);
    CALL(cudaDeviceSynchronize());
    const size_t before = free_memory();
    void* memory = nullptr;
    CALL(cudaMalloc(&memory, kLarge));
    const Words start(memory, kBytes);
    start.fill(pattern("start"), stream);
    EXPECT_READS(start, pattern("start"));
    EXPECT_LT(free_memory(), before - kLarge / 2);

    // The free must come after the earlier work of `stream`. Only `stream` is
    // held; the first free was in `first`.
    WrongWords wrong;
    Latch latch;
    latch.hold(stream);
    wrong.queue_count(start, pattern("start"), stream);
    EXPECT_SUCCESS(api.free_async(memory, stream));
    EXPECT_LT(free_memory(), before - kLarge / 2) << "still in use";
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_EQ(wrong.so_far(), 0u);
    CALL(cudaDeviceSynchronize());
    EXPECT_GT(free_memory(), before - kLarge / 2) << "not given back";

    for (const cudaStream_t preset :
         {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread})
      expect_free_in_default_stream(api, preset);
    expect_neighbours_stay(api);
    EXPECT_TRUE(context_is_usable());
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(frees); });
  scenario.run(20s);
}

// Judges that a free by either API, while a stream is held, does not wait for
// this stream.
template <class Api>
static void expect_free_without_wait(Api api, const Stream& held) {
  const Stream stream;
  const Pool pool;
  AsyncBuffer of_current = allocated(api, kBytes, stream);
  AsyncBuffer of_pool = allocated(api, pool, kBytes, stream);
  CALL(cudaStreamSynchronize(stream));
  Latch latch;
  latch.hold(held);
  HostWait frees("frees of memory of two pools", [&] {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    expect_free(api, of_current);
    expect_free(api, of_pool);
    return code;
  });
  EXPECT_FALSE(frees.is_held()) << "waits for another stream";
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(held));
  latch.release();
  EXPECT_EQ(frees.join(), cudaSuccess);
  EXPECT_TRUE(passes(held));
}

TEST(StreamOrdered, CudaFreeOfStreamOrderedMemoryWaitsForNothing) {
  covers("SOMA-05");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    const Stream stream, other;
    cudaMemPool_t pool = nullptr;
    CALL(cudaDeviceGetDefaultMemPool(&pool, 0));
    const uint64_t before = attribute(pool, cudaMemPoolAttrUsedMemCurrent);
    const AsyncBuffer neighbour(kBytes, other);
    neighbour.fill(pattern("neighbour"), other);
    AsyncBuffer buffer(kBytes, stream);
    buffer.queue_fill(pattern("written"), stream);
    CALL(cudaStreamSynchronize(stream));

    Latch latch;
    latch.hold(other);
    HostWait freed("cudaFree", [data = std::exchange(buffer.data, nullptr)] {
      return cudaFree(data);
    });
    EXPECT_FALSE(freed.is_held()) << "waits for another stream";
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(other));
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), before + kBytes)
        << "only the neighbour is in use";
    latch.release();
    EXPECT_EQ(freed.join(), cudaSuccess);
    EXPECT_TRUE(passes(other));
    EXPECT_READS(neighbour, pattern("neighbour"));
    by_both_apis([&](auto api) { expect_free_without_wait(api, other); });
  });
  scenario.run(60s);
}

TEST(StreamOrdered, AttributesNameThePoolAndNoContext) {
  covers("SOMA-28");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("asker", [](Role&) {
    cudaMemPool_t preset = nullptr;
    CALL(cudaDeviceGetDefaultMemPool(&preset, 0));
    const Pool pool;
    expect_place(AsyncBuffer(kBytes), 0, preset);
    const AsyncBuffer buffer(pool, kBytes);
    expect_place(buffer, 0, pool);
    expect_place(Words(buffer.data + buffer.count - 1, sizeof(uint32_t)), 0,
                 pool);
    EXPECT_EQ(judged_attribute<CUmemoryPool>(
                  DeviceBuffer(kBytes), CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
              nullptr)
        << "memory of cudaMalloc is of no pool";
    if (attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 1)
      return;
    const size_t bytes = granule();
    const Mapping mapping(
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)), bytes);
    EXPECT_EQ(judged_attribute<CUmemoryPool>(
                  mapping, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
              nullptr)
        << "memory of cuMemCreate is of no pool";
  });
  scenario.run(20s);
}

TEST(StreamOrdered, AttributesOfAnAddressBeyond4Gib) {
  covers("SOMA-28");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("asker", [](Role& me) {
    constexpr size_t kHuge = (size_t{4} << 30) + kBytes;
    const Pool pool;
    void* memory = nullptr;
    const cudaError_t code =
        RuntimeApi::malloc_from_pool_async(&memory, kHuge, pool, nullptr);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return me.not_applicable("this GPU has no 4 GiB left");
    }
    CALL(code);
    const AsyncBuffer buffer(Words(memory, kHuge));
    CALL(cudaDeviceSynchronize());
    for (const size_t offset : {kHuge - kBytes, kHuge - sizeof(uint32_t)}) {
      SCOPED_TRACE("offset " + std::to_string(offset));
      expect_place(Words(static_cast<char*>(memory) + offset, sizeof(uint32_t)),
                   0, pool);
    }
  });
  scenario.run(20s);
}

TEST(StreamOrdered, AttributesNameThePoolsDevice) {
  covers("SOMA-28");
  needs(gpus(2), pools);
  Scenario scenario;
  scenario.role("asker", [](Role&) {
    const Pool pool(pool_properties(cudaMemHandleTypeNone, 0, 1));
    const AsyncBuffer buffer(pool, kBytes);
    CALL(cudaDeviceSynchronize());
    expect_place(buffer, 1, pool);
  });
  scenario.run(20s);
}

// Copies in streams of GPU 1, with each device current.
static void copies_with_each_device_current(Role& me) {
  const Stream on_0;
  const Pool pool;
  const AsyncBuffer source(pool, kBytes, on_0);
  source.fill(pattern("source"), on_0);
  CALL(cudaSetDevice(1));
  const Stream on_1;
  const AsyncBuffer target(kBytes, on_1);
  target.fill(pattern("old"), on_1);
  const auto expect_copied = [&](const char* how) {
    EXPECT_TRUE(kernel_reads(target, pattern("source"))) << how;
    EXPECT_TRUE(copy_reads(target, pattern("source"))) << how;
    target.fill(pattern("old"), on_1);
  };
  const auto note = [&](const char* how) {
    const cudaError_t code = NOTED(cudaMemcpyAsync(
        target.data, source.data, kBytes, cudaMemcpyDefault, on_1));
    cudaGetLastError();
    me.observe(std::string(how) + ": " + name_of(code));
    CALL(cudaStreamSynchronize(on_1));
  };

  // The copies in the stream that is held run in order: after a fill and before
  // another copy.
  constexpr size_t kHalf = kBytes / 2;
  const Stream beside;
  const AsyncBuffer later(kBytes, on_1);
  CALL(cudaStreamSynchronize(on_1));
  Latch latch;
  latch.hold(on_1);
  target.queue_fill(pattern("old"), on_1);
  CALL(cudaSetDevice(0));
  const auto copy = [&](size_t from, size_t bytes, cudaStream_t stream) {
    const size_t word = from / sizeof(uint32_t);
    EXPECT_SUCCESS(cudaMemcpyPeerAsync(target.data + word, 1,
                                       source.data + word, 0, bytes, stream));
  };
  copy(kHalf, sizeof(uint32_t), beside);
  copy(kHalf, kHalf, on_1);
  copy(0, kHalf, on_1);
  CALL(cudaSetDevice(1));
  CALL(cudaMemcpyAsync(later.data, target.data, kBytes,
                       cudaMemcpyDeviceToDevice, on_1));
  EXPECT_TRUE(is_held(on_1));
  latch.release();
  CALL(cudaStreamSynchronize(on_1));
  EXPECT_TRUE(kernel_reads(later, pattern("source"))) << "the copy after it";
  copy(0, kHalf, on_1);  // must not copy the other half
  CALL(cudaStreamSynchronize(on_1));
  expect_copied("between named devices");

  note("a copy by a GPU that the source's pool gives no access");
  target.fill(pattern("old"), on_1);
  EXPECT_SUCCESS(give_access(1, pool));
  EXPECT_SUCCESS(cudaMemcpyAsync(target.data, source.data, kBytes,
                                 cudaMemcpyDefault, on_1));
  cudaEvent_t copied;
  CALL(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
  EXPECT_SUCCESS(cudaEventRecord(copied, on_1));
  EXPECT_SUCCESS(cudaEventSynchronize(copied));
  CALL(cudaEventDestroy(copied));
  expect_copied("the stream's device is current");

  CALL(cudaSetDevice(0));
  note("with another device current");
}

TEST(StreamOrdered, CopiesWithTheStreamsDeviceCurrent) {
  covers("SOMA-30");
  needs(gpus(2), pools, peer_access);
  Scenario scenario;
  scenario.role("copier", copies_with_each_device_current);
  scenario.run(30s);
}

// Frees memory in a held stream and asks both APIs for its attributes.
template <class Api>
static void asks_for_freed_memory(Role& me, Api api) {
  const Stream stream;
  const AsyncBuffer neighbour = allocated(api, kBytes, stream);
  neighbour.fill(pattern("neighbour"), stream);
  AsyncBuffer buffer = allocated(api, kBytes, stream);
  buffer.fill(pattern("freed"), stream);
  void* const address = buffer.data;
  Latch latch;
  latch.hold(stream);
  CALL(api.free_async(std::exchange(buffer.data, nullptr), stream));

  const std::string when = std::string("freed by the ") + api.kName +
                           ", before the stream comes to the free: ";
  cudaPointerAttributes attributes{};
  const cudaError_t code =
      NOTED(cudaPointerGetAttributes(&attributes, address));
  cudaGetLastError();
  me.observe(when + name_of(code) + ", memory type " +
             std::to_string(attributes.type) +
             " (0 is unregistered, 2 is device)");
  CUmemoryPool pool = nullptr;
  const CUresult result = NOTED(DRIVER(cuPointerGetAttribute)(
      &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address_of(address)));
  me.observe(when + "the pool of its attributes: " + name_of(result) +
             (pool == nullptr ? ", none" : ", a pool"));
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_READS(neighbour, pattern("neighbour"));
  EXPECT_TRUE(context_is_usable());
}

// The pointer is only queried, never used: a kernel could fault.
TEST(StreamOrdered, AttributesOfFreedMemory) {
  covers("SOMA-06");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("asker",
            [](Role& me) {
              by_both_apis([&](auto api) { asks_for_freed_memory(me, api); });
            })
      .may_end_by(SIGSEGV);
  scenario.run(30s);
}
