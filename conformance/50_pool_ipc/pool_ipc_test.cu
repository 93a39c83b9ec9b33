// A pool that another process imports, and allocations from this pool.
// Mirror of samples/50_pool_ipc.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = (6 << 20) + 4;  // the last word begins a new page
constexpr int kBlocks = 70;
constexpr size_t kBlockBytes = 1536;  // many in a page of the GPU
constexpr int kRounds = 1000;
constexpr size_t kRoundBytes = 1024;
constexpr int kHeldRounds = 64;  // queued before the first of them runs

using PointerData = cudaMemPoolPtrExportData;

// Imports an allocation from a copy of its data at an odd address.
template <class Api>
AsyncBuffer imported_at_an_odd_address(Api api, cudaMemPool_t pool,
                                       const PointerData& data, size_t bytes) {
  static_assert(alignof(PointerData) == 1);  // so it may be at any address
  struct {
    alignas(8) char even;
    PointerData odd;
  } copy{0, data};
  Sentinel<void*> memory;
  CALL(api.mem_pool_import_pointer(memory.out(), pool, &copy.odd));
  EXPECT_EQ(std::memcmp(&copy.odd, &data, sizeof data), 0)
      << "the import has changed the data";
  return AsyncBuffer(Words(memory.result(), bytes));
}

// An importer that receives the pool, and gets the pointer from `receive`.
std::function<void(Role&)> borrows_by(PointerData (*receive)(Role&)) {
  return [receive](Role& me) {
    by_both_apis([&](auto api) {
      // Another importer may still wait for the pool of the other API.
      const std::string by = by_the(api);
      const Pool pool = imported(api, me.receive_descriptor("pool" + by));
      AsyncBuffer buffer =
          imported_at_an_odd_address(api, pool, receive(me), kBytes);
      EXPECT_READS(buffer, pattern("exporter"));
      expect_free(api, buffer);
      me.signal("freed" + by);
    });
  };
}

PointerData by_pipe(Role& me) {
  PointerData data;
  const Descriptor pipe = me.receive_descriptor("pipe");
  EXPECT_EQ(read(pipe.get(), &data, sizeof data), ssize_t{sizeof data});
  return data;
}

PointerData by_file(Role& me) {
  PointerData data;
  std::ifstream file(me.receive_bytes("file"), std::ios::binary);
  file.read(reinterpret_cast<char*>(&data), sizeof data);
  EXPECT_TRUE(file);
  return data;
}

// A copy of a copy, at another address.
PointerData by_copies(Role& me) {
  const std::vector<PointerData> copies(16, me.receive<PointerData>("pointer"));
  return copies.back();
}

}  // namespace

// The rectangle that the functions below write.
static constexpr size_t kPitch = 512, kWidth = 100, kHeight = 3;

// Judges that a call has set the rectangle at the start of the memory to this
// byte and nothing beside it, and poisons the memory again.
static void expect_rectangle(const char* way, CUresult code,
                             const Words& memory, unsigned char byte) {
  SCOPED_TRACE(way);
  EXPECT_TRUE(gives(code, way, CUDA_SUCCESS));
  CALL(cudaDeviceSynchronize());
  std::vector<unsigned char> wanted(kPitch * kHeight, 0xEE), seen(wanted);
  for (size_t row = 0; row < kHeight; ++row)
    std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(row * kPitch),
                kWidth, byte);
  CALL(cudaMemcpy(seen.data(), memory.data, seen.size(), cudaMemcpyDefault));
  EXPECT_TRUE(seen == wanted) << "of byte " << int{byte};
  memory.poison();
}

// Judges that the memsets and copies of rectangles that only the driver API has
// reach the memory, and that a copy reads it.
static void expect_rectangles_of_the_driver(const Words& memory) {
  const CUdeviceptr to = address_of(memory.data);
  const DeviceBuffer own(kPitch * kHeight);
  CALL(cudaMemset(own.data, 0x44, own.bytes()));
  memory.poison();
  const auto expect = [&](const char* way, CUresult code, unsigned char byte) {
    expect_rectangle(way, code, memory, byte);
  };
  expect("cuMemsetD2D8",
         DRIVER(cuMemsetD2D8)(to, kPitch, 0x11, kWidth, kHeight), 0x11);
  expect("cuMemsetD2D16",
         DRIVER(cuMemsetD2D16)(to, kPitch, 0x2222, kWidth / 2, kHeight), 0x22);
  expect("cuMemsetD2D32",
         DRIVER(cuMemsetD2D32)(to, kPitch, 0x33333333, kWidth / 4, kHeight),
         0x33);
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.srcDevice = address_of(own.data);
  flat.dstDevice = to;
  flat.srcPitch = flat.dstPitch = kPitch;
  flat.WidthInBytes = kWidth;
  flat.Height = kHeight;
  expect("cuMemcpy2D", DRIVER(cuMemcpy2D)(&flat), 0x44);
  expect("cuMemcpy2DAsync", DRIVER(cuMemcpy2DAsync)(&flat, nullptr), 0x44);
  CUDA_MEMCPY3D deep{};
  deep.srcMemoryType = deep.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  deep.srcDevice = address_of(own.data);
  deep.dstDevice = to;
  deep.srcPitch = deep.dstPitch = kPitch;
  deep.srcHeight = deep.dstHeight = deep.Height = kHeight;
  deep.WidthInBytes = kWidth;
  deep.Depth = 1;
  expect("cuMemcpy3D", DRIVER(cuMemcpy3D)(&deep), 0x44);
  expect("cuMemcpy3DAsync", DRIVER(cuMemcpy3DAsync)(&deep, nullptr), 0x44);

  CALL(cudaMemset(memory.data, 0x55, memory.bytes()));
  std::swap(flat.srcDevice, flat.dstDevice);
  CALL(cudaMemset(own.data, 0xEE, own.bytes()));
  expect_rectangle("cuMemcpy2D from the import", DRIVER(cuMemcpy2D)(&flat), own,
                   0x55);
}

TEST(PoolIpc, BothSidesSeeTheSameMemory) {
  covers("POOL-06");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("A"));
    const uint64_t used = attribute(pool, cudaMemPoolAttrUsedMemCurrent);
    EXPECT_GE(used, kBytes);
    me.send("pointer", buffer.exported());

    me.wait("B written");
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), used)
        << "an import changes how much of the pool is in use";
    EXPECT_READS(buffer, pattern("B"));
    buffer.fill(pattern("C"));
    me.signal("C written");
    me.wait("C read");
    lend_in_every_way(me, buffer);
    me.wait("freed");
  });

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_READS(buffer, pattern("A"));
    buffer.fill(pattern("B"));
    me.signal("B written");

    me.wait("C written");
    EXPECT_READS(buffer, pattern("C"));
    me.signal("C read");
    borrow_in_every_way(me, buffer);
    EXPECT_TRUE(copy_waits_its_turn(buffer));
    expect_rectangles_of_the_driver(buffer);
    expect_streams_reach(buffer);
    buffer.free();
    me.signal("freed");
  });

  scenario.run(20s);
}

constexpr auto kDriverFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

static Words words_at(CUdeviceptr address) {
  return Words(reinterpret_cast<void*>(address), kBytes);
}

static void destroy(CUdeviceptr address, CUmemoryPool pool) {
  EXPECT_SUCCESS(DRIVER(cuMemFreeAsync)(address, nullptr));
  CALL(cudaStreamSynchronize(nullptr));
  EXPECT_SUCCESS(DRIVER(cuMemPoolDestroy)(pool));
}

// An exporter that shares a pool by the driver API alone.
static void lends_a_pool_of_the_driver(Role& me) {
  CALL(cudaFree(nullptr));
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.handleTypes = kDriverFd;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  Sentinel<CUmemoryPool> pool;
  CALL(DRIVER(cuMemPoolCreate)(pool.out(), &wanted));
  Sentinel<int> shared;
  CALL(DRIVER(cuMemPoolExportToShareableHandle)(shared.out(), pool.result(),
                                                kDriverFd, 0));
  const Descriptor descriptor(shared.result());
  me.send_descriptor("pool", descriptor.get());
  Sentinel<CUdeviceptr> address;
  CALL(DRIVER(cuMemAllocFromPoolAsync)(address.out(), kBytes, pool.result(),
                                       nullptr));
  words_at(address.result()).fill(pattern("exporter"));
  Sentinel<CUmemPoolPtrExportData> data;
  CALL(DRIVER(cuMemPoolExportPointer)(data.out(), address.result()));
  me.send("pointer", data.result());
  me.wait("freed");
  EXPECT_TRUE(kernel_reads(words_at(address.result()), pattern("importer")));
  // An allocation that the importer frees stays in use here. An allocation that
  // is freed here does not stay in use.
  const auto used = [&] {
    cuuint64_t bytes = 0;
    CALL(DRIVER(cuMemPoolGetAttribute)(
        pool.result(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
  };
  const cuuint64_t before = used();
  EXPECT_GE(before, kBytes);
  Sentinel<CUdeviceptr> other;
  CALL(DRIVER(cuMemAllocFromPoolAsync)(other.out(), kBytes, pool.result(),
                                       nullptr));
  EXPECT_SUCCESS(DRIVER(cuMemFreeAsync)(other.result(), nullptr));
  CALL(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(used(), before);
  destroy(address.result(), pool.result());
}

// The driver API documents the same for its own functions.
TEST(PoolIpc, TheDriverApiSharesAPoolAsWell) {
  covers("POOL-06");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", lends_a_pool_of_the_driver);

  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const Descriptor shared = me.receive_descriptor("pool");
    Sentinel<CUmemoryPool> pool;
    CALL(DRIVER(cuMemPoolImportFromShareableHandle)(
        pool.out(), reinterpret_cast<void*>(uintptr_t(shared.get())), kDriverFd,
        0));
    auto data = me.receive<CUmemPoolPtrExportData>("pointer");
    Sentinel<CUdeviceptr> address;
    CALL(DRIVER(cuMemPoolImportPointer)(address.out(), pool.result(), &data));
    const Words words = words_at(address.result());
    EXPECT_READS(words, pattern("exporter"));
    words.fill(pattern("importer"));
    destroy(address.result(), pool.result());
    me.signal("freed");
  });

  scenario.run(20s);
}

constexpr const char* kPools[] = {"a", "b", "c", "d", "e", "f"};
// Pools that follow each other, so that a later one can have the handle value
// of an earlier one.
constexpr const char* kLater[] = {"g", "h", "i", "j", "k", "l", "m", "n"};

// An exporter that lends six pools, destroys one of them, and then lends and
// destroys one more pool after another.
template <class Api>
static void lends_six_pools(Role& me, Api api) {
  std::deque<Pool> pools;
  std::deque<AsyncBuffer> buffers;
  for (const char* name : kPools) {
    pools.emplace_back(created(api, shareable()).release());
    buffers.push_back(allocated(api, pools.back(), kBytes));
    buffers.back().fill(pattern(name));
  }
  for (size_t i = pools.size(); i-- > 0;) {
    me.send_descriptor(std::string("pool ") + kPools[i],
                       exported(api, pools[i]).get());
    me.send(std::string("pointer ") + kPools[i], exported(api, buffers[i]));
  }
  me.wait("freed f");
  buffers.pop_back();
  EXPECT_SUCCESS(api.mem_pool_destroy(pools.back().release()));
  EXPECT_TRUE(kernel_reads(buffers[0], pattern("written to a")));
  EXPECT_TRUE(pool_of(buffers[0]) == pools[0]);
  const AsyncBuffer later = allocated(api, pools[0], kBytes);
  later.fill(pattern("later"));
  me.send("later", exported(api, later));
  for (const char* name : kLater) {
    Pool next = created(api, shareable());
    AsyncBuffer of_next = allocated(api, next, kBytes);
    of_next.fill(pattern(name));
    me.send_descriptor("next pool", exported(api, next).get());
    me.send("pointer next", exported(api, of_next));
    me.wait("freed next");
    expect_free(api, of_next);
    CALL(cudaDeviceSynchronize());
    EXPECT_SUCCESS(api.mem_pool_destroy(next.release()));
  }
  me.wait("freed");
}

template <class Api>
static void borrows_from_six_pools(Role& me, Api api) {
  std::deque<Pool> pools;
  std::deque<AsyncBuffer> buffers;
  const auto import = [&](const Pool& pool, const std::string& step) {
    return imported(api, pool, me.receive<PointerData>(step), kBytes);
  };
  for (const std::string name : kPools) {
    pools.emplace_back(
        imported(api, me.receive_descriptor("pool " + name)).release());
    buffers.push_back(import(pools.back(), "pointer " + name));
    EXPECT_READS(buffers.back(), pattern(name));
  }
  buffers[0].fill(pattern("written to a"));
  EXPECT_TRUE(kernel_reads(buffers[1], pattern("b")));
  EXPECT_TRUE(kernel_reads(buffers.back(), pattern("f")));
  expect_free(api, buffers.back());
  CALL(cudaDeviceSynchronize());
  EXPECT_SUCCESS(api.mem_pool_destroy(pools.back().release()));
  EXPECT_READS(buffers[0], pattern("written to a"));
  me.signal("freed f");
  AsyncBuffer later = import(pools[0], "later");
  EXPECT_TRUE(kernel_reads(later, pattern("later")));
  expect_free(api, later);
  for (const char* name : kLater) {
    Pool next = imported(api, me.receive_descriptor("next pool"));
    AsyncBuffer of_next = import(next, "pointer next");
    EXPECT_TRUE(kernel_reads(of_next, pattern(name)));
    expect_free(api, of_next);
    CALL(cudaDeviceSynchronize());
    EXPECT_SUCCESS(api.mem_pool_destroy(next.release()));
    me.signal("freed next");
  }
  buffers.pop_back();
  for (AsyncBuffer& buffer : buffers) expect_free(api, buffer);
  me.signal("freed");
}

// A process shares several pools. Each pool has its own descriptor and
// pointers, and is destroyed separately.
TEST(PoolIpc, SharedPoolsAreKeptApart) {
  covers("POOL-06");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { lends_six_pools(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { borrows_from_six_pools(me, api); });
  });
  scenario.run(60s);
}

// A process that lends from its own pool and borrows from the pool of its peer.
template <class Api>
static void lends_and_borrows(Role& me, Api api) {
  const std::string by = by_the(api);
  const std::string mine = std::to_string(me.index()) + by;
  const std::string other = std::to_string(1 - me.index()) + by;
  const Pattern own = pattern("peer " + mine),
                theirs = pattern("peer " + other);
  const Pool pool = created(api, shareable());
  const Descriptor shared = exported(api, pool);
  const AsyncBuffer lent = allocated(api, pool, kBytes);
  lent.fill(own);
  me.send_descriptor("pool of " + mine, shared.get());
  me.send_descriptor("for the third from " + mine, shared.get());
  me.send("pointer of " + mine, exported(api, lent));

  const Pool foreign = imported(api, me.receive_descriptor("pool of " + other));
  AsyncBuffer borrowed = imported(
      api, foreign, me.receive<PointerData>("pointer of " + other), kBytes);
  EXPECT_NE(borrowed.data, lent.data);
  EXPECT_READS(borrowed, theirs);
  EXPECT_TRUE(kernel_reads(lent, own));
  expect_free(api, borrowed);
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(lent, own)) << "only the import was freed";
  EXPECT_TRUE(copy_reads(lent, own)) << "only the import was freed";
  me.signal("freed by " + mine);
  me.wait("freed by " + other);
  me.wait("freed by the third" + by);
}

// A process that borrows from both of them.
template <class Api>
static void borrows_from_two(Role& me, Api api) {
  const std::string by = by_the(api);
  std::deque<Pool> pools;
  std::deque<AsyncBuffer> buffers;
  for (const std::string& from : {"0" + by, "1" + by}) {
    pools.emplace_back(
        imported(api, me.receive_descriptor("for the third from " + from))
            .release());
    buffers.push_back(imported(api, pools.back(),
                               me.receive<PointerData>("pointer of " + from),
                               kBytes));
  }
  for (size_t i = 0; i < 2; ++i) {
    const Pattern written = pattern("peer " + std::to_string(i) + by);
    EXPECT_TRUE(kernel_reads(buffers[i], written)) << "of peer " << i;
    EXPECT_TRUE(copy_reads(buffers[i], written)) << "of peer " << i;
  }
  for (AsyncBuffer& one : buffers) expect_free(api, one);
  me.signal("freed by the third" + by);
}

// Two processes that run the same steps lend to each other and to a third one.
TEST(PoolIpc, PeersLendAndBorrow) {
  covers("POOL-06");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.roles("peer", 2, [](Role& me) {
    by_both_apis([&](auto api) { lends_and_borrows(me, api); });
  });
  scenario.role("third", [](Role& me) {
    by_both_apis([&](auto api) { borrows_from_two(me, api); });
  });
  scenario.run(20s);
}

static constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;

// An importer that imports and frees in two threads.
template <class Api>
static void imports_in_two_threads(Role& me, Api api) {
  Descriptor descriptors[2];
  PointerData data[2];
  for (int i = 0; i < 2; ++i) {
    descriptors[i] = me.receive_descriptor("pool");
    data[i] = me.receive<PointerData>("pointer");
  }
  Sentinel<cudaMemPool_t> pools[2];
  Sentinel<void*> memory[2];
  typename Api::Code pool_codes[2], pointer_codes[2], freed[2], destroyed[2];
  const typename Api::Code success{};
  in_two_threads([&](int i) {
    pool_codes[i] = api.mem_pool_import_from_shareable_handle(
        pools[i].out(),
        reinterpret_cast<void*>(static_cast<intptr_t>(descriptors[i].get())),
        kFd);
  });
  // Each thread imports a pointer from the pool that the other thread has
  // imported, and later frees the pointer that the other thread has imported.
  in_two_threads([&](int i) {
    const int other = 1 - i;
    pointer_codes[other] = api.mem_pool_import_pointer(
        memory[other].out(), pools[other].value, &data[other]);
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pool_codes[i], success) << "in thread " << i;
    EXPECT_EQ(pointer_codes[i], success) << "in thread " << i;
    const Words words(memory[i].result(), kBytes);
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
    words.fill(pattern("importer"));
  }
  in_two_threads([&](int i) {
    freed[i] = api.mem_free(memory[i].value);
    destroyed[i] = api.mem_pool_destroy(pools[i].value);
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(freed[i], success) << "in thread " << i;
    EXPECT_EQ(destroyed[i], success) << "in thread " << i;
  }
  me.signal("freed");
}

// An exporter that exports in two threads.
template <class Api>
static void exports_in_two_threads(Role& me, Api api) {
  cudaMemPool_t of_thread = nullptr;
  CALL(in_a_thread([&, make = api] {
    of_thread = created(make, shareable()).release();
    return cudaSuccess;
  }));
  const Pool shared[2] = {created(api, shareable()), Pool(of_thread)};
  const AsyncBuffer buffers[2] = {allocated(api, shared[0], kBytes),
                                  allocated(api, shared[1], kBytes)};
  Sentinel<int> numbers[2];
  Sentinel<PointerData> data[2];
  typename Api::Code pool_codes[2], pointer_codes[2];
  const typename Api::Code success{};
  for (const AsyncBuffer& buffer : buffers) buffer.fill(pattern("exporter"));
  in_two_threads([&](int i) {
    pool_codes[i] = api.mem_pool_export_to_shareable_handle(numbers[i].out(),
                                                            shared[i], kFd);
    pointer_codes[i] =
        api.mem_pool_export_pointer(data[i].out(), buffers[i].data);
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pool_codes[i], success) << "in thread " << i;
    EXPECT_EQ(pointer_codes[i], success) << "in thread " << i;
    const Descriptor descriptor(numbers[i].result());
    me.send_descriptor("pool", descriptor.get());
    me.send("pointer", data[i].result());
  }
  me.wait("freed");
  for (const AsyncBuffer& buffer : buffers)
    EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
}

// How many allocations each of two threads imports.
static constexpr size_t kOfEachThread = 32;

static Pattern of_many(size_t i) {
  return pattern("of many " + std::to_string(i));
}

static void lends_many(Role& me) {
  const Pool pool(shareable());
  me.send_descriptor("pool of many", pool.exported().get());
  std::vector<AsyncBuffer> buffers;
  for (size_t i = 0; i < 2 * kOfEachThread; ++i) {
    buffers.emplace_back(pool, kBlockBytes);
    buffers.back().fill(of_many(i));
    me.send("one of many", buffers.back().exported());
  }
  me.wait("freed many");
}

// Two threads import from one pool at the same time.
static void imports_many_at_once(Role& me) {
  const Pool pool(me.receive_descriptor("pool of many"));
  std::vector<PointerData> data;
  for (size_t i = 0; i < 2 * kOfEachThread; ++i)
    data.push_back(me.receive<PointerData>("one of many"));
  std::vector<void*> memory(data.size());
  std::vector<cudaError_t> codes(data.size());
  std::atomic<int> ready{0};
  note_call("cudaMemPoolImportPointer in two threads");
  const auto import = [&](size_t first) {
    cudaSetDevice(0);
    for (++ready; ready < 2;) std::this_thread::yield();
    for (size_t i = first; i < first + kOfEachThread; ++i)
      codes[i] = cudaMemPoolImportPointer(&memory[i], pool, &data[i]);
  };
  std::thread other([&] { import(kOfEachThread); });
  import(0);
  other.join();
  for (size_t i = 0; i < data.size(); ++i) {
    SCOPED_TRACE("allocation " + std::to_string(i));
    ASSERT_EQ(codes[i], cudaSuccess);
    EXPECT_TRUE(kernel_reads(Words(memory[i], kBlockBytes), of_many(i)));
  }
  for (void* one : memory) EXPECT_SUCCESS(cudaFree(one));
  me.signal("freed many");
}

// Makes a call in a thread that has made no CUDA call before.
template <class Call>
static auto in_a_new_thread(Call call) {
  decltype(call()) code{};
  std::thread([&] { code = call(); }).join();
  return code;
}

// Only the runtime API is used here: the driver API needs a current context.
static void lends_by_new_threads(Role& me) {
  using Api = RuntimeApi;
  const Pool pool(shareable());
  const AsyncBuffer buffer(pool, kBytes);
  buffer.fill(pattern("exporter"));
  Sentinel<int> number;
  EXPECT_SUCCESS(in_a_new_thread([&] {
    return Api::mem_pool_export_to_shareable_handle(number.out(), pool, kFd);
  }));
  Sentinel<PointerData> data;
  EXPECT_SUCCESS(in_a_new_thread(
      [&] { return Api::mem_pool_export_pointer(data.out(), buffer.data); }));
  const Descriptor descriptor(number.result());
  me.send_descriptor("pool of new threads", descriptor.get());
  me.send("pointer of new threads", data.result());
  me.wait("freed by new threads");
  EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
}

static void borrows_by_new_threads(Role& me) {
  using Api = RuntimeApi;
  const Descriptor shared = me.receive_descriptor("pool of new threads");
  auto data = me.receive<PointerData>("pointer of new threads");
  Sentinel<cudaMemPool_t> pool;
  EXPECT_SUCCESS(in_a_new_thread([&] {
    return Api::mem_pool_import_from_shareable_handle(
        pool.out(),
        reinterpret_cast<void*>(static_cast<intptr_t>(shared.get())), kFd);
  }));
  const cudaMemPool_t imported_pool = pool.result();
  Sentinel<void*> memory;
  EXPECT_SUCCESS(in_a_new_thread([&] {
    return Api::mem_pool_import_pointer(memory.out(), imported_pool, &data);
  }));
  // The thread that has imported it has ended.
  const Words words(memory.result(), kBytes);
  EXPECT_READS(words, pattern("exporter"));
  words.fill(pattern("importer"));
  EXPECT_SUCCESS(in_a_new_thread([&] { return Api::mem_free(words.data); }));
  EXPECT_SUCCESS(
      in_a_new_thread([&] { return Api::mem_pool_destroy(imported_pool); }));
  me.signal("freed by new threads");
}

// One pool is shared by the role's own thread, and the other pool by another
// thread.
TEST(PoolIpc, EveryThreadMaySharePools) {
  covers("POOL-25");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { exports_in_two_threads(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { imports_in_two_threads(me, api); });
  });
  scenario.role("exporter of many", lends_many);
  scenario.role("importer of many", imports_many_at_once);
  scenario.role("exporter by new threads", lends_by_new_threads);
  scenario.role("importer by new threads", borrows_by_new_threads);
  scenario.run(20s);
}

// An exporter that lends one allocation to three importers, by three channels.
template <class Api>
static void lends_by_three_channels(Role& me, Api api) {
  const Pool pool = created(api, shareable());
  const Descriptor shared = exported(api, pool);
  const std::string by = by_the(api);
  for (int i = 0; i < 3; ++i) me.send_descriptor("pool" + by, shared.get());
  const AsyncBuffer buffer = allocated(api, pool, kBytes);
  buffer.fill(pattern("exporter"));
  const PointerData data = exported(api, buffer);

  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reads(ends[0]), writes(ends[1]);
  ASSERT_EQ(write(writes.get(), &data, sizeof data), ssize_t{sizeof data});
  me.send_descriptor("pipe", reads.get());

  std::string path =
      std::filesystem::temp_directory_path() / "ipclab-pointer-XXXXXX";
  const Descriptor file(mkstemp(path.data()));
  ASSERT_EQ(unlink(path.c_str()), 0);  // a killed role leaves no name
  ASSERT_EQ(write(file.get(), &data, sizeof data), ssize_t{sizeof data});
  me.send_bytes("file", "/proc/" + std::to_string(getpid()) + "/fd/" +
                            std::to_string(file.get()));

  me.send("pointer", data);
  me.wait("freed" + by, 3);
}

TEST(PoolIpc, AnyChannelCarriesAPointer) {
  covers("POOL-07");
  static_assert(sizeof(PointerData) == 64);
  static_assert(sizeof(CUmemPoolPtrExportData) == 64);
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { lends_by_three_channels(me, api); });
  });
  scenario.role("importer by pipe", borrows_by(by_pipe));
  scenario.role("importer by file", borrows_by(by_file));
  scenario.role("importer of a copy", borrows_by(by_copies));

  scenario.run(30s);
}

// An exporter for each API, in a new process: in a used process a pool may lie
// where an earlier pool was exported.
template <class Body>
static void add_new_exporters(Scenario& scenario, Body body) {
  const auto add = [&](auto api) {
    scenario
        .role("exporter" + by_the(api),
              [=](Role& me) {
                CALL(cudaFree(nullptr));
                body(me, api);
              })
        .in_new_process();
  };
  add(RuntimeApi{});
  add(DriverApi{});
}

template <class Api>
static void lends_older_and_newer(Role& me, Api api) {
  const std::string by = by_the(api);
  const Pool pool = created(api, shareable());
  const AsyncBuffer before = allocated(api, pool, kBytes);
  before.fill(pattern("before"));
  me.send_descriptor("pool" + by, exported(api, pool).get());
  const AsyncBuffer after = allocated(api, pool, kBytes);
  after.fill(pattern("after"));
  me.send("before" + by, exported(api, before));
  me.send("after" + by, exported(api, after));
  CALL(api.device_set_mem_pool(0, pool));
  const AsyncBuffer of_current = allocated(api, kBytes);
  of_current.fill(pattern("of the current pool"));
  me.send("of the current pool" + by, exported(api, of_current));
  me.wait("freed" + by);
}

template <class Api>
static void borrows_older_and_newer(Role& me, Api api) {
  const std::string by = by_the(api);
  const Pool pool = imported(api, me.receive_descriptor("pool" + by));
  AsyncBuffer before =
      imported(api, pool, me.receive<PointerData>("before" + by), kBytes);
  AsyncBuffer after =
      imported(api, pool, me.receive<PointerData>("after" + by), kBytes);
  EXPECT_READS(before, pattern("before"));
  EXPECT_READS(after, pattern("after"));
  AsyncBuffer of_current = imported(
      api, pool, me.receive<PointerData>("of the current pool" + by), kBytes);
  EXPECT_READS(of_current, pattern("of the current pool"));
  expect_free(api, before);
  expect_free(api, after);
  expect_free(api, of_current);
  me.signal("freed" + by);
}

TEST(PoolIpc, APoolOnceExportedSharesOlderAndNewerAllocations) {
  covers("POOL-08");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  add_new_exporters(scenario,
                    [](Role& me, auto api) { lends_older_and_newer(me, api); });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { borrows_older_and_newer(me, api); });
  });
  scenario.run(20s);
}

// An exporter that tries to export a pointer before the pool of this pointer.
template <class Api>
static void exports_the_pointer_first(Role& me, Api api) {
  const std::string by = by_the(api);
  const Pool pool = created(api, shareable());
  const AsyncBuffer buffer = allocated(api, pool, kBytes);
  buffer.fill(pattern("exporter"));
  PointerData data{};
  const Outcome outcome =
      outcome_of(api.mem_pool_export_pointer(&data, buffer.data),
                 std::vector{api.kInvalidValue, api.kOutOfMemory});
  me.observe("a pointer exported before its pool: " + outcome.code);
  EXPECT_NE(outcome.kind, Outcome::kOtherRefusal) << outcome.code;
  const bool accepted = outcome.kind == Outcome::kWrongSuccess;
  me.send("accepted" + by, accepted);
  if (!accepted) return;

  me.send("pointer" + by, data);
  me.send_descriptor("pool" + by, exported(api, pool).get());
  me.wait("freed" + by);
}

template <class Api>
static void imports_what_was_exported_first(Role& me, Api api) {
  const std::string by = by_the(api);
  if (!me.receive<bool>("accepted" + by)) return;
  const Pool pool = imported(api, me.receive_descriptor("pool" + by));
  AsyncBuffer buffer =
      imported(api, pool, me.receive<PointerData>("pointer" + by), kBytes);
  EXPECT_READS(buffer, pattern("exporter"));
  me.lifted("a pointer may be exported before its pool");
  expect_free(api, buffer);
  me.signal("freed" + by);
}

// Either the export is refused, or the data of the export can be imported.
TEST(PoolIpc, APointerOfAPoolThatIsNotSharedYet) {
  covers("POOL-08");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  add_new_exporters(
      scenario, [](Role& me, auto api) { exports_the_pointer_first(me, api); });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { imports_what_was_exported_first(me, api); });
  });
  scenario.run(20s);
}

// Judges that the address range in which the memory lies contains all of it.
static void expect_range_around(const Words& memory) {
  Sentinel<CUdeviceptr> begin;
  Sentinel<size_t> bytes;
  const CUdeviceptr first = address_of(memory.data);
  EXPECT_SUCCESS(DRIVER(cuMemGetAddressRange)(begin.out(), bytes.out(), first));
  EXPECT_LE(begin.result(), first);
  EXPECT_GE(begin.result() + bytes.result(), first + memory.bytes());
}

// Judges that imports still work after imports beside them were freed.
template <class Written>
static void frees_every_second(std::vector<AsyncBuffer>& buffers,
                               Written written) {
  for (size_t i = 0; i < buffers.size(); i += 2) buffers[i].free();
  CALL(cudaDeviceSynchronize());
  for (size_t i = 1; i < buffers.size(); i += 2) {
    EXPECT_TRUE(kernel_reads(buffers[i], written(static_cast<int>(i)))) << i;
    EXPECT_TRUE(copy_reads(buffers[i], written(static_cast<int>(i)))) << i;
    buffers[i].free_async();
  }
  CALL(cudaDeviceSynchronize());
}

TEST(PoolIpc, AnImportedPoolKnowsLaterAllocations) {
  covers("POOL-10");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  // The second time, the exporter may get the same addresses again, for larger
  // allocations. Each third allocation has the size of one word.
  constexpr int kTimes = 2;
  const auto bytes_of = [](int time, int i) {
    if (i % 3 == 2) return sizeof(uint32_t);
    return time == 0 ? kBlockBytes : 4 * kBlockBytes;
  };
  const auto block = [](int time, int i) {
    return pattern("block " + std::to_string(time * kBlocks + i));
  };

  scenario.role("exporter", [=](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    me.wait("imported");
    for (int time = 0; time < kTimes; ++time) {
      std::vector<AsyncBuffer> buffers;
      for (int i = 0; i < kBlocks; ++i) {
        buffers.emplace_back(pool, bytes_of(time, i));
        buffers.back().fill(block(time, i));
      }
      // A trim leaves what is in use, which can be shared after it, too.
      if (time > 0) CALL(cudaMemPoolTrimTo(pool, 0));
      for (const AsyncBuffer& buffer : buffers)
        me.send("pointer", buffer.exported());
      me.wait("freed");
    }
  });

  scenario.role("importer", [=](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    me.signal("imported");
    for (int time = 0; time < kTimes; ++time) {
      std::vector<AsyncBuffer> buffers;
      for (int i = 0; i < kBlocks; ++i)
        buffers.emplace_back(pool, me.receive<PointerData>("pointer"),
                             bytes_of(time, i));
      for (int i = 0; i < kBlocks; ++i) {
        SCOPED_TRACE("block " + std::to_string(time * kBlocks + i));
        const AsyncBuffer& buffer = buffers[static_cast<size_t>(i)];
        EXPECT_READS(buffer, block(time, i));
        expect_range_around(buffer);
      }
      frees_every_second(buffers, [&](int i) { return block(time, i); });
      me.signal("freed");
    }
  });

  scenario.run(20s);
}

// More imports than a number of 8 bits counts.
TEST(PoolIpc, AProcessImportsHundredsOfPointers) {
  covers("POOL-10");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  constexpr size_t kMany = 260;
  const auto one_of = [](size_t i) {
    return pattern("pointer " + std::to_string(i));
  };
  scenario.role("exporter", [=](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    std::vector<AsyncBuffer> buffers;
    std::string all;
    for (size_t i = 0; i < kMany; ++i) {
      buffers.emplace_back(pool, kBlockBytes);
      buffers.back().fill(one_of(i));
      const PointerData data = buffers.back().exported();
      all.append(reinterpret_cast<const char*>(&data), sizeof data);
    }
    me.send_bytes("pointers", all);
    me.wait("freed");
  });
  scenario.role("importer", [=](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    const std::string all = me.receive_bytes("pointers");
    ASSERT_EQ(all.size(), kMany * sizeof(PointerData));
    std::vector<AsyncBuffer> buffers;
    for (size_t i = 0; i < kMany; ++i) {
      PointerData data;
      std::memcpy(&data, &all[i * sizeof data], sizeof data);
      buffers.emplace_back(pool, data, kBlockBytes);
    }
    for (size_t i = 0; i < kMany; ++i)
      ASSERT_TRUE(copy_reads(buffers[i], one_of(i))) << "pointer " << i;
    for (AsyncBuffer& buffer : buffers) buffer.free_async();
    CALL(cudaDeviceSynchronize());
    me.signal("freed");
  });
  scenario.run(20s);
}

// An exporter of an allocation that its stream has not made yet.
template <class Api>
static void lends_before_the_stream_runs(Role& me, Api api) {
  const Pool pool = created(api, shareable());
  me.send_descriptor("pool", exported(api, pool).get());
  const SharedEvent ready;
  const Stream stream;
  DeviceBuffer(kBytes).fill(pattern("loads the kernel"));
  Latch latch;
  latch.hold(stream);
  AsyncBuffer buffer = allocated(api, pool, kBytes, stream);
  buffer.queue_fill(pattern("exporter"), stream);
  CALL(api.event_record(ready, stream));
  me.send("event", ready.handle());
  me.send("pointer", exported(api, buffer));

  me.wait("copy is queued");
  latch.release();
  me.wait("freed");
  expect_free_async(api, buffer, stream);
  EXPECT_TRUE(passes(stream));
}

// An importer whose copy waits for the exporter's stream.
template <class Api>
static void copies_after_the_event(Role& me, Api api) {
  const DeviceBuffer copy(kBytes);
  const Pool pool = imported(api, me.receive_descriptor("pool"));
  SharedEvent ready(me.receive<cudaIpcEventHandle_t>("event"));
  const Stream stream;
  AsyncBuffer buffer =
      imported(api, pool, me.receive<PointerData>("pointer"), kBytes);
  CALL(api.stream_wait_event(stream, ready));
  CALL(cudaMemcpyAsync(copy.data, buffer.data, kBytes, cudaMemcpyDeviceToDevice,
                       stream));
  EXPECT_TRUE(is_held(stream));
  me.signal("copy is queued");
  EXPECT_TRUE(passes(stream));
  EXPECT_READS(copy, pattern("exporter"));
  expect_free(api, buffer);
  ready.destroy();
  me.signal("freed");
}

// The exporter's stream is held: without the order the importer would copy at
// once.
TEST(PoolIpc, AnEventPutsAccessBehindTheAllocation) {
  covers("POOL-12");
  needs(gpus(1), pool_fd, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { lends_before_the_stream_runs(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { copies_after_the_event(me, api); });
  });
  scenario.run(20s);
}

// The values that the exporter writes in a round.
static Pattern written(int round) {
  return Pattern{pattern("round").key + static_cast<uint32_t>(round)};
}

// Calls `body` with the runtime API in even rounds, and with the driver API in
// odd rounds.
template <class Body>
static auto by_turns(int round, Body body) {
  return round % 2 == 0 ? body(RuntimeApi{}) : body(DriverApi{});
}

// An importer that copies and frees each allocation in a stream.
static void imports_a_thousand_allocations(Role& me) {
  CALL(cudaFree(nullptr));  // the driver API needs a context
  const Pool pool(me.receive_descriptor("pool"));
  SharedEvent ready(me.receive<cudaIpcEventHandle_t>("ready"));
  const SharedEvent freed;
  me.send("freed event", freed.handle());
  const Stream stream;
  const DeviceBuffer copies(kRoundBytes * kRounds);
  const auto copy_of = [&](int round) {
    return Words(copies.data + round * kRoundBytes / sizeof(uint32_t),
                 kRoundBytes);
  };
  for (int round = 0; round < kRounds; ++round) {
    const auto data = me.receive<PointerData>("pointer");
    AsyncBuffer buffer = by_turns(round, [&](auto api) {
      return imported(api, pool, data, kRoundBytes);
    });
    CALL(cudaStreamWaitEvent(stream, ready));
    CALL(cudaMemcpyAsync(copy_of(round).data, buffer.data, kRoundBytes,
                         cudaMemcpyDeviceToDevice, stream));
    by_turns(round, [&](auto api) { expect_free_async(api, buffer, stream); });
    CALL(cudaEventRecord(freed, stream));
    if (round < kHeldRounds)
      ASSERT_TRUE(gives(NOTED(cudaStreamQuery(stream)), "cudaStreamQuery",
                        cudaErrorNotReady))
          << "round " << round;
    me.signal("queued");
  }
  EXPECT_TRUE(passes(stream));
  for (int round = 0; round < kRounds; ++round)
    ASSERT_TRUE(copy_reads(copy_of(round), written(round)))
        << "round " << round;
  ready.destroy();
  me.signal("ready event destroyed");
  me.wait("freed event destroyed");
}

// The whole protocol, repeated: the exporter allocates, writes, records and
// exports; the importer waits, copies, frees and records; the exporter waits
// and frees. No host waits for a stream of the other process, and many rounds
// are queued before the first round may run.
TEST(PoolIpc, EventsCarryAThousandAllocations) {
  covers("POOL-12");
  needs(gpus(1), pool_fd, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [=](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    const SharedEvent ready;
    me.send("ready", ready.handle());
    SharedEvent freed(me.receive<cudaIpcEventHandle_t>("freed event"));
    const Stream stream;
    DeviceBuffer(kRoundBytes).fill(pattern("loads the kernel"));
    Latch latch;
    latch.hold(stream);
    for (int round = 0; round < kRounds; ++round) {
      if (round == kHeldRounds) latch.release();
      AsyncBuffer buffer = by_turns(round, [&](auto api) {
        return allocated(api, pool, kRoundBytes, stream);
      });
      buffer.queue_fill(written(round), stream);
      CALL(cudaEventRecord(ready, stream));
      me.send("pointer",
              by_turns(round, [&](auto api) { return exported(api, buffer); }));
      me.wait("queued");
      CALL(cudaStreamWaitEvent(stream, freed));
      by_turns(round,
               [&](auto api) { expect_free_async(api, buffer, stream); });
    }
    EXPECT_TRUE(passes(stream));
    freed.destroy();
    me.signal("freed event destroyed");
    me.wait("ready event destroyed");
  });

  scenario.role("importer", imports_a_thousand_allocations);

  scenario.run(60s);
}

// A copy of a descriptor with a number above 1023, or none if this process may
// not have such a number.
static Descriptor with_a_large_number(const Descriptor& descriptor) {
  constexpr int kLarge = 1024;
  rlimit before{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit raised = before;
  raised.rlim_cur = std::min<rlim_t>(before.rlim_max, 2 * kLarge);
  setrlimit(RLIMIT_NOFILE, &raised);
  Descriptor copy(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kLarge));
  setrlimit(RLIMIT_NOFILE, &before);
  return copy;
}

TEST(PoolIpc, TheDescriptorIsNeededForTheImportOnly) {
  covers("POOL-24");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  const auto exports = [](Role& me, auto api) {
    const Pool pool = created(api, shareable());
    const Pool other = created(api, shareable());
    const Descriptor of_other = exported(api, other);  // stays open
    Descriptor closed = exported(api, pool);
    {
      const Descriptor sent = exported(api, pool);
      closed.close();
      me.send_descriptor("pool", sent.get());
    }
    me.wait("imported and closed");
    const AsyncBuffer buffer = allocated(api, pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send("pointer", exported(api, buffer));
    me.wait("freed");
  };
  scenario.role("exporter", [=](Role& me) {
    by_both_apis([&](auto api) { exports(me, api); });
  });

  const auto imports = [](Role& me, auto api) {
    Descriptor shared = me.receive_descriptor("pool");
    if (const Descriptor copy = with_a_large_number(shared)) {
      Sentinel<cudaMemPool_t> again;
      EXPECT_SUCCESS(api.mem_pool_import_from_shareable_handle(
          again.out(),
          reinterpret_cast<void*>(static_cast<intptr_t>(copy.get())), kFd));
      if (again.touched()) EXPECT_SUCCESS(api.mem_pool_destroy(again.value));
    } else {
      me.observe("this process may not have a descriptor above 1023");
    }
    const Pool pool = imported(api, shared);
    EXPECT_NE(fcntl(shared.get(), F_GETFD), -1) << "closed by the import";
    shared.close();
    me.signal("imported and closed");
    AsyncBuffer buffer =
        imported(api, pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_READS(buffer, pattern("exporter"));
    expect_free(api, buffer);
    me.signal("freed");
  };
  scenario.role("importer", [=](Role& me) {
    by_both_apis([&](auto api) { imports(me, api); });
  });

  scenario.run(20s);
}
