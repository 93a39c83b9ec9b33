// How much memory a pool holds, when it gives it back, and how it counts.
// Mirror of samples/42_footprint.
//
// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"

using namespace ipclab;

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kBytes = 4 * kMiB;    // the part that is checked word by word
constexpr size_t kLarge = 512 * kMiB;  // far more than anything else takes
constexpr size_t kBlock = 64 * kMiB;
constexpr size_t kFourGib = size_t{4} << 30;  // does not fit in 32 bits
constexpr int kBlocks = 8;
constexpr size_t kSmall = 4096;
constexpr int kMany = 300;      // allocations at once
constexpr size_t kOdd = 12345;  // not a multiple of a page

uint64_t used(cudaMemPool_t pool) {
  return attribute(pool, cudaMemPoolAttrUsedMemCurrent);
}

// Judges relations between the statistics that are true for every pool at any
// time.
void expect_sound(cudaMemPool_t pool) {
  EXPECT_GE(reserved(pool), used(pool));
  EXPECT_GE(attribute(pool, cudaMemPoolAttrReservedMemHigh), reserved(pool));
  EXPECT_GE(attribute(pool, cudaMemPoolAttrUsedMemHigh), used(pool));
}

// Judges that both APIs return the same numbers. No stream may change the pool
// meanwhile.
void expect_told_by_both(cudaMemPool_t pool) {
  for (const cudaMemPoolAttr which :
       {cudaMemPoolAttrReleaseThreshold, cudaMemPoolAttrReservedMemCurrent,
        cudaMemPoolAttrReservedMemHigh, cudaMemPoolAttrUsedMemCurrent,
        cudaMemPoolAttrUsedMemHigh}) {
    Sentinel<cuuint64_t> told;
    EXPECT_SUCCESS(DriverApi::mem_pool_get_attribute(pool, which, told.out()));
    EXPECT_EQ(told.result(), attribute(pool, which))
        << "attribute " << which << " by cuMemPoolGetAttribute";
  }
}

template <class Api>
void set_threshold(Api api, cudaMemPool_t pool, cuuint64_t bytes) {
  EXPECT_SUCCESS(api.mem_pool_set_attribute(
      pool, cudaMemPoolAttrReleaseThreshold, &bytes));
}

// The same, called by a thread that has not created the pool.
template <class Api>
void set_threshold_in_a_thread(Api api, cudaMemPool_t pool, cuuint64_t bytes) {
  CALL(in_a_thread([=] {
    set_threshold(api, pool, bytes);
    return cudaSuccess;
  }));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), bytes);
}

void allocate_and_free(cudaMemPool_t pool, size_t bytes, cudaStream_t stream) {
  AsyncBuffer(pool, bytes, stream).free_async(stream);
}

// Lets a pool keep its memory, allocates `kBlocks` blocks and frees all of
// them.
void fill_and_empty(cudaMemPool_t pool) {
  set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  std::vector<AsyncBuffer> blocks;
  for (int i = 0; i < kBlocks; ++i) blocks.emplace_back(pool, kBlock);
  for (AsyncBuffer& block : blocks) block.free_async();
  CALL(cudaDeviceSynchronize());
}

void expect_release_by_cu_stream_synchronize() {
  const Stream stream;
  const Pool pool;  // its threshold is 0
  allocate_and_free(pool, kLarge, stream);
  CALL(DRIVER(cuStreamSynchronize)(stream));
  EXPECT_LT(reserved(pool), kLarge / 2) << "after cuStreamSynchronize";
}

void expect_release_by_default_streams() {
  for (const cudaStream_t stream :
       {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    const Pool pool;
    allocate_and_free(pool, kLarge, stream);
    CALL(cudaStreamSynchronize(stream));
    EXPECT_LT(reserved(pool), kLarge / 2) << "default stream " << stream;
  }
}

void expect_release_by_another_thread() {
  const Stream stream;
  const Pool pool;
  allocate_and_free(pool, kLarge, stream);
  CALL(in_a_thread([&] { return cudaStreamSynchronize(stream); }));
  EXPECT_LT(reserved(pool), kLarge / 2) << "after a thread has synchronised";
}

template <class Api>
void expect_release_of_the_current_pool(Api api) {
  const Stream stream;
  const Pool pool;
  CALL(api.device_set_mem_pool(0, pool));
  AsyncBuffer buffer = allocated(api, kLarge, stream);
  expect_free_async(api, buffer, stream);
  CALL(cudaStreamSynchronize(stream));
  EXPECT_LT(reserved(pool), kLarge / 2) << "the current pool";
}

// Judges that memory in use counts towards the threshold. A half of the memory
// is in use, and the threshold allows no more than that.
template <class Api>
void expect_use_counted(Api api) {
  const Pool pool;
  fill_and_empty(pool);
  std::vector<AsyncBuffer> live;
  for (int i = 0; i < kBlocks / 2; ++i) live.emplace_back(pool, kBlock);
  set_threshold(api, pool, kBlocks / 2 * kBlock);
  allocate_and_free(pool, kBlock, nullptr);
  CALL(cudaDeviceSynchronize());
  EXPECT_LT(reserved(pool), kBlocks * kBlock) << "beside memory in use";
  EXPECT_GE(reserved(pool), kBlocks / 2 * kBlock);
}

// Judges that less common ways to synchronise also release memory, and that
// memory in use counts.
template <class Api>
void expect_release_in_each_case(Api api) {
  expect_release_by_cu_stream_synchronize();
  expect_release_by_default_streams();
  expect_release_by_another_thread();
  expect_release_of_the_current_pool(api);
  expect_use_counted(api);
}

// Judges that a pool keeps a part of its memory if its threshold is half of it.
// The documentation does not say which blocks make up the part.
template <class Api>
void expect_a_part_kept(Api api) {
  const Pool pool;
  fill_and_empty(pool);
  set_threshold(api, pool, kBlocks / 2 * kBlock);
  allocate_and_free(pool, kBlock, nullptr);
  CALL(cudaDeviceSynchronize());
  EXPECT_GE(reserved(pool), kBlock) << "threshold of half of the memory";
}

// Judges that a watermark which was reset rises only to the new maximum. The
// pool has one block in use; it had `kLarge` more before the reset.
void expect_rise_from_reset(cudaMemPool_t pool) {
  allocate_and_free(pool, kBlock / 2, nullptr);
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemHigh), kBlock + kBlock / 2);
  EXPECT_GE(attribute(pool, cudaMemPoolAttrReservedMemHigh),
            kBlock + kBlock / 2);
  EXPECT_LT(attribute(pool, cudaMemPoolAttrReservedMemHigh), kLarge);
}

// Judges that a synchronise of a GPU releases memory of its pools, and that
// cudaFree takes such memory while another GPU is current.
void expect_release_on(int device) {
  CALL(cudaSetDevice(device));
  const Pool pool(pool_properties(cudaMemHandleTypeNone, 0, device));
  allocate_and_free(pool, kBlock, nullptr);
  CALL(cudaDeviceSynchronize());
  EXPECT_LT(reserved(pool), kBlock);
  AsyncBuffer buffer(pool, kBlock);
  CALL(cudaDeviceSynchronize());
  CALL(cudaSetDevice(0));
  EXPECT_SUCCESS(cudaFree(std::exchange(buffer.data, nullptr)));
}

}  // namespace

TEST(Footprint, TheThresholdSaysWhatASynchroniseLeaves) {
  covers("SOMA-16");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto sets_thresholds = [](Role& me, auto api) {
    const Stream stream;
    const Pool pool;
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), 0u);
    expect_told_by_both(pool);
    set_threshold(api, pool, UINT64_MAX);
    expect_told_by_both(pool);
    const Pool later;
    EXPECT_EQ(attribute(later, cudaMemPoolAttrReleaseThreshold), 0u);
    const AsyncBuffer neighbour(pool, kBytes, stream);
    neighbour.fill(pattern("neighbour"), stream);

    cudaEvent_t event;
    CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    const std::pair<const char*, std::function<void()>> synchronises[] = {
        {"stream", [&] { CALL(cudaStreamSynchronize(stream)); }},
        {"event",
         [&] {
           CALL(cudaEventRecord(event, stream));
           EXPECT_SUCCESS(api.event_synchronize(event));
         }},
        {"device", [&] { CALL(cudaDeviceSynchronize()); }}};
    for (const auto& [name, synchronise] : synchronises) {
      SCOPED_TRACE(name);
      set_threshold(api, pool, UINT64_MAX);
      allocate_and_free(pool, kLarge, stream);
      synchronise();
      EXPECT_GE(reserved(pool), kLarge) << "threshold UINT64_MAX";

      set_threshold(api, pool, kFourGib);
      EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), kFourGib);
      allocate_and_free(pool, kLarge, stream);
      synchronise();
      EXPECT_GE(reserved(pool), kLarge) << "threshold 4 GiB";

      set_threshold(api, pool, kOdd);
      EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), kOdd);
      set_threshold_in_a_thread(api, pool, 0);
      allocate_and_free(pool, kLarge, stream);
      synchronise();
      EXPECT_LT(reserved(pool), kLarge / 2) << "threshold 0";
      me.observe(std::string("reserved after a synchronise of the ") + name +
                 ", beside 4 MiB in use: " +
                 std::to_string(reserved(pool) / kMiB) + " MiB");
    }
    CALL(cudaEventDestroy(event));
    expect_release_in_each_case(api);
    expect_a_part_kept(api);
    EXPECT_READS(neighbour, pattern("neighbour"));
  };
  scenario.role("allocator", [=](Role& me) {
    by_both_apis([&](auto api) { sets_thresholds(me, api); });
  });
  scenario.run(20s);
}

TEST(Footprint, WhatAPoolGivesBackOthersCanHave) {
  covers("SOMA-16");
  needs(gpus(1), pools, alone);
  Scenario scenario;
  scenario.role("allocator", [](Role&) {
    const Pool pool;
    allocate_and_free(pool, kBytes, nullptr);
    CALL(cudaDeviceSynchronize());
    const size_t before = free_memory();
    set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
    allocate_and_free(pool, kLarge, nullptr);
    CALL(cudaDeviceSynchronize());
    EXPECT_LT(free_memory(), before - kLarge / 2) << "kept";
    set_attribute(pool, cudaMemPoolAttrReleaseThreshold, 0);
    allocate_and_free(pool, kLarge, nullptr);
    CALL(cudaDeviceSynchronize());
    EXPECT_GT(free_memory(), before - kLarge / 2) << "given back";
  });
  scenario.run(20s);
}

// The pool that is current is trimmed as any other pool. Its destroy makes the
// default pool current again.
template <class Api>
static void trims_the_current_pool(Api api) {
  const Pool pool;
  CALL(api.device_set_mem_pool(0, pool));
  set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  allocate_and_free(pool, kBlock, nullptr);
  CALL(cudaDeviceSynchronize());
  EXPECT_GE(reserved(pool), kBlock) << "of the current pool";
  EXPECT_SUCCESS(api.mem_pool_trim_to(pool, 0));
  EXPECT_LT(reserved(pool), kBlock) << "of the current pool";
}

TEST(Footprint, TrimKeepsWhatItIsToldToKeep) {
  covers("SOMA-17");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto trims = [](auto api) {
    const Pool pool;
    fill_and_empty(pool);
    const uint64_t full = reserved(pool);
    EXPECT_GE(full, kBlocks * kBlock);
    for (const size_t kept : {2 * full, kFourGib}) {
      EXPECT_SUCCESS(api.mem_pool_trim_to(pool, kept));
      EXPECT_EQ(reserved(pool), full) << "there was less than " << kept;
    }

    // Two blocks and one block, each first with one byte more.
    for (const size_t kept : {2 * kBlock + 1, 2 * kBlock, kBlock + 1, kBlock}) {
      EXPECT_SUCCESS(api.mem_pool_trim_to(pool, kept));
      EXPECT_GE(reserved(pool), kept);
      EXPECT_LT(reserved(pool), full);
    }

    CALL(in_a_thread([&] {  // which has not created the pool
      EXPECT_SUCCESS(api.mem_pool_trim_to(pool, 0));
      return cudaSuccess;
    }));
    EXPECT_LT(reserved(pool), kBlock);
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), UINT64_MAX)
        << "a trim is no threshold";

    // The part that is kept includes the memory that is in use.
    fill_and_empty(pool);
    std::vector<AsyncBuffer> live;
    for (int i = 0; i < kBlocks / 2; ++i) live.emplace_back(pool, kBlock);
    CALL(cudaDeviceSynchronize());
    for (const size_t kept : {kBlocks - 2, kBlocks / 2}) {
      EXPECT_SUCCESS(api.mem_pool_trim_to(pool, kept * kBlock));
      EXPECT_GE(reserved(pool), kept * kBlock) << "beside memory in use";
    }
    EXPECT_LT(reserved(pool), kBlocks * kBlock);
    const AsyncBuffer again(pool, kBytes);
    again.fill(pattern("again"));
    EXPECT_READS(again, pattern("again"));
    trims_the_current_pool(api);
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(trims); });
  scenario.run(20s);
}

TEST(Footprint, ATrimToTheLargestNumberKeepsAll) {
  covers("SOMA-17");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    const Pool pool;
    fill_and_empty(pool);
    const uint64_t full = reserved(pool);
    EXPECT_SUCCESS(cudaMemPoolTrimTo(pool, UINT64_MAX));
    EXPECT_EQ(reserved(pool), full) << "there was less than that";
  });
  scenario.run(20s);
}

TEST(Footprint, TrimLeavesWhatIsInUse) {
  covers("SOMA-18");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto trims = [](auto api) {
    const Stream stream;
    const Pool pool;
    fill_and_empty(pool);
    const DeviceBuffer result(kBytes);
    const AsyncBuffer live(pool, kBytes, stream);
    live.fill(pattern("live"), stream);
    AsyncBuffer leaving(pool, kBytes, stream);
    leaving.fill(pattern("leaving"), stream);

    Latch latch;
    latch.hold(stream);
    CALL(cudaMemcpyAsync(result.data, leaving.data, kBytes,
                         cudaMemcpyDeviceToDevice, stream));
    leaving.free_async(stream);  // still pending at the trim
    // The stream has not reached this allocation.
    const AsyncBuffer coming = allocated(api, pool, kBytes, stream);
    coming.queue_fill(pattern("coming"), stream);
    EXPECT_SUCCESS(api.mem_pool_trim_to(pool, 0));
    set_threshold(api, pool, 0);
    const Stream other;
    CALL(cudaStreamSynchronize(other));  // releases what is not in use
    set_threshold(api, pool, UINT64_MAX);
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_READS(result, pattern("leaving"));
    EXPECT_READS(live, pattern("live"));
    EXPECT_READS(coming, pattern("coming"));

    EXPECT_SUCCESS(api.mem_pool_trim_to(pool, 0));
    EXPECT_READS(live, pattern("live"));
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(trims); });
  scenario.run(40s);
}

TEST(Footprint, StatisticsDoNotEndAt32Bits) {
  covers("SOMA-19");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto allocates = [](Role& me, auto api, bool current) {
    constexpr size_t kHuge = kFourGib + kBlock;
    const Pool pool;
    if (current) CALL(api.device_set_mem_pool(0, pool));
    void* memory = nullptr;
    const auto code =
        current ? api.malloc_async(&memory, kHuge, nullptr)
                : api.malloc_from_pool_async(&memory, kHuge, pool, nullptr);
    if (code == api.kOutOfMemory) {
      cudaGetLastError();
      return me.not_applicable("this GPU has no 4 GiB left");
    }
    EXPECT_SUCCESS(code);
    EXPECT_EQ(used(pool), kHuge);
    expect_sound(pool);
    EXPECT_SUCCESS(api.mem_free(memory));
  };
  scenario.role("allocator", [=](Role& me) {
    by_both_apis([&](auto api) {
      for (const bool current : {false, true}) allocates(me, api, current);
    });
  });
  scenario.run(20s);
}

// A pool cannot have so many bytes. If the driver rounded the number up, it
// would not fit in 64 bits.
TEST(Footprint, NoAllocationHasNearly16Exbibytes) {
  covers("SOMA-19");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto refuses = [](auto api, size_t bytes) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    const Pool pool;
    CALL(api.device_set_mem_pool(0, pool));
    Sentinel<void*> named, of_current;
    EXPECT_REFUSED(
        api.malloc_from_pool_async(named.out(), bytes, pool, nullptr),
        api.kInvalidValue, api.kNotSupported, api.kOutOfMemory);
    EXPECT_REFUSED(api.malloc_async(of_current.out(), bytes, nullptr),
                   api.kInvalidValue, api.kNotSupported, api.kOutOfMemory);
    EXPECT_EQ(used(pool), 0u) << "what was refused is not in use";
    const AsyncBuffer buffer = allocated(api, pool, kBytes);
    buffer.fill(pattern("after the refusals"));
    EXPECT_TRUE(kernel_reads(buffer, pattern("after the refusals")));
  };
  scenario.role("allocator", [=](Role&) {
    by_both_apis([&](auto api) {
      for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX - 65535})
        refuses(api, bytes);
    });
  });
  scenario.run(20s);
}

TEST(Footprint, StatisticsFollowTheProgram) {
  covers("SOMA-19");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    const Pool pool;
    set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
    const auto expect_used = [&](uint64_t now, uint64_t high) {
      CALL(cudaDeviceSynchronize());
      EXPECT_EQ(used(pool), now);
      EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemHigh), high);
      expect_sound(pool);
      expect_told_by_both(pool);
    };
    expect_used(0, 0);
    AsyncBuffer first(pool, kBlock);
    expect_used(kBlock, kBlock);
    AsyncBuffer second = allocated(DriverApi{}, pool, kBlock / 2);
    expect_used(kBlock + kBlock / 2, kBlock + kBlock / 2);
    first.free_async();
    expect_used(kBlock / 2, kBlock + kBlock / 2);
    AsyncBuffer third(pool, kBlock / 4);
    expect_used(kBlock / 2 + kBlock / 4, kBlock + kBlock / 2);
    // A thread that has not allocated the memory may free it.
    CALL(in_a_thread([&] {
      second.free();
      third.free_async();
      return cudaSuccess;
    }));
    expect_used(0, kBlock + kBlock / 2);
    EXPECT_GE(reserved(pool), kBlock + kBlock / 2) << "kept, though unused";
    EXPECT_GE(attribute(pool, cudaMemPoolAttrReservedMemHigh),
              kBlock + kBlock / 2);

    const Pool of_many;
    std::vector<AsyncBuffer> many;
    for (int i = 0; i < kMany; ++i)
      many.emplace_back(of_many, i % 2 == 0 ? kSmall : 1);
    CALL(cudaDeviceSynchronize());
    EXPECT_GE(used(of_many), kMany / 2 * (kSmall + 1));
    expect_sound(of_many);
    for (AsyncBuffer& one : many) one.free_async();
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(used(of_many), 0u);

    // No query sees this memory while it is in use.
    allocate_and_free(of_many, kLarge, nullptr);
    CALL(cudaDeviceSynchronize());
    EXPECT_GE(attribute(of_many, cudaMemPoolAttrUsedMemHigh), kLarge);
    EXPECT_GE(attribute(of_many, cudaMemPoolAttrReservedMemHigh), kLarge);
  });
  scenario.run(20s);
}

// "It is illegal" to write another value than 0 to a watermark, and no sentence
// says that it is refused. A refused write changes nothing.
template <class Api>
static void write_illegally(Role& me, Api api, cudaMemPool_t pool,
                            cudaMemPoolAttr mark, cuuint64_t wrong) {
  const uint64_t before = attribute(pool, mark);
  auto code = api.mem_pool_set_attribute(pool, mark, &wrong);
  cudaGetLastError();
  me.tabulate("a watermark set to another value than 0", std::to_string(wrong),
              outcome_of<decltype(code)>(code, {api.kInvalidValue}));
  if (code != decltype(code){})
    EXPECT_EQ(attribute(pool, mark), before) << "set to " << wrong;
}

// Resets one watermark after the other. The reset of one must not be the reset
// of the other.
TEST(Footprint, AWatermarkIsResetByZero) {
  covers("SOMA-20");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  struct Watermark {
    cudaMemPoolAttr high, current;
  };
  const auto resets = [](Role& me, auto api,
                         const std::vector<Watermark>& marks) {
    const Pool pool;
    AsyncBuffer live(pool, kBlock);
    allocate_and_free(pool, kLarge, nullptr);
    CALL(cudaDeviceSynchronize());
    for (const Watermark& mark : marks) {
      SCOPED_TRACE("attribute " + std::to_string(mark.high));
      const uint64_t high = attribute(pool, mark.high);
      EXPECT_GE(high, kLarge);
      for (cuuint64_t wrong : {cuuint64_t{1}, high, kFourGib, UINT64_MAX}) {
        write_illegally(me, api, pool, mark.high, wrong);
        set_threshold(api, pool, 0);  // after the refusal
      }
      cuuint64_t value = 0;
      EXPECT_SUCCESS(api.mem_pool_set_attribute(pool, mark.high, &value));
      EXPECT_EQ(attribute(pool, mark.high), attribute(pool, mark.current));
    }
    expect_rise_from_reset(pool);
    // After the reset a watermark rises again. A trim, a policy or an access
    // does not reset it, and the pool keeps it when it becomes current.
    allocate_and_free(pool, kLarge, nullptr);
    CALL(cudaDeviceSynchronize());
    EXPECT_SUCCESS(api.mem_pool_trim_to(pool, 0));
    int off = 0;
    EXPECT_SUCCESS(api.mem_pool_set_attribute(
        pool, cudaMemPoolReuseAllowOpportunistic, &off));
    EXPECT_SUCCESS(
        api.mem_pool_set_access(pool, 0, cudaMemAccessFlagsProtReadWrite));
    EXPECT_SUCCESS(api.device_set_mem_pool(0, pool));
    for (const cudaMemPoolAttr high :
         {cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemHigh})
      EXPECT_GE(attribute(pool, high), kBlock + kLarge) << high;
    EXPECT_TRUE(context_is_usable());
    live.fill(pattern("live"));
    EXPECT_TRUE(kernel_reads(live, pattern("live")));
  };
  scenario.role("allocator", [=](Role& me) {
    const Watermark of_reserved{cudaMemPoolAttrReservedMemHigh,
                                cudaMemPoolAttrReservedMemCurrent};
    const Watermark of_used{cudaMemPoolAttrUsedMemHigh,
                            cudaMemPoolAttrUsedMemCurrent};
    by_both_apis([&](auto api) {
      resets(me, api, {of_reserved, of_used});
      resets(me, api, {of_used, of_reserved});
    });
  });
  scenario.run(20s);
}

// Judges that neither the reset of a watermark of another pool nor a trim of
// the default pool changes this pool.
template <class Api>
static void expect_unchanged_by_others(Api api, cudaMemPool_t pool,
                                       cudaMemPool_t other) {
  constexpr auto kHigh = cudaMemPoolAttrUsedMemHigh;
  const uint64_t kept = reserved(pool), high = attribute(pool, kHigh);
  EXPECT_GT(high, used(pool));
  cuuint64_t zero = 0;
  EXPECT_SUCCESS(api.mem_pool_set_attribute(other, kHigh, &zero));
  EXPECT_EQ(attribute(pool, kHigh), high) << "another pool's was reset";
  Sentinel<cudaMemPool_t> preset;
  CALL(api.device_get_default_mem_pool(preset.out(), 0));
  EXPECT_SUCCESS(api.mem_pool_trim_to(preset.result(), 0));
  EXPECT_GE(reserved(pool), kept) << "the default pool was trimmed";
}

// A new attribute, an allocation, a trim or the destroy of one pool does not
// change another pool.
TEST(Footprint, EachPoolIsByItself) {
  covers("SOMA-34");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto changes_one_of_two = [](auto api) {
    const Pool first = created(api);
    Pool second = created(api);
    for (const cudaMemPool_t pool : {static_cast<cudaMemPool_t>(first),
                                     static_cast<cudaMemPool_t>(second)})
      fill_and_empty(pool);
    const uint64_t kept = reserved(first);
    // None of these calls may take memory from `first`.
    EXPECT_SUCCESS(api.mem_pool_trim_to(first, 2 * kept));
    set_threshold(api, first, UINT64_MAX);
    const uint64_t still_kept = reserved(first);
    EXPECT_GE(still_kept, kept) << "trimmed although it may keep all";
    EXPECT_SUCCESS(api.mem_pool_destroy(created(api).release()));
    EXPECT_GE(reserved(first), still_kept) << "another pool's end took it";
    const AsyncBuffer mine(first, kBytes);
    mine.fill(pattern("mine"));

    EXPECT_SUCCESS(api.mem_pool_trim_to(second, 0));
    EXPECT_LT(reserved(second), kBlock);
    EXPECT_GE(reserved(first), still_kept) << "the other pool was trimmed";
    expect_unchanged_by_others(api, first, second);
    set_threshold(api, second, kBlock);
    EXPECT_EQ(attribute(second, cudaMemPoolAttrReleaseThreshold), kBlock);
    EXPECT_EQ(attribute(first, cudaMemPoolAttrReleaseThreshold), UINT64_MAX);
    int off = 0;
    EXPECT_SUCCESS(api.mem_pool_set_attribute(
        second, cudaMemPoolReuseAllowOpportunistic, &off));
    EXPECT_EQ(attribute(first, cudaMemPoolReuseAllowOpportunistic), 1u);
    EXPECT_EQ(attribute(second, cudaMemPoolReuseAllowOpportunistic), 0u);

    AsyncBuffer theirs(second, kBlock);
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(used(second), kBlock);
    EXPECT_EQ(used(first), kBytes);
    expect_told_by_both(first);
    expect_told_by_both(second);
    EXPECT_EQ(pool_of(theirs), static_cast<cudaMemPool_t>(second));
    EXPECT_EQ(pool_of(mine), static_cast<cudaMemPool_t>(first));
    set_threshold(api, second, 0);
    theirs.free_async();
    CALL(cudaDeviceSynchronize());
    EXPECT_GE(reserved(first), still_kept) << "the other pool gave back memory";
    EXPECT_EQ(used(second), 0u);
    EXPECT_EQ(used(first), kBytes);
    EXPECT_SUCCESS(api.mem_pool_destroy(second.release()));
    EXPECT_EQ(used(first), kBytes);
    EXPECT_TRUE(kernel_reads(mine, pattern("mine")));
    const AsyncBuffer another(first, kBytes);
    another.fill(pattern("another"));
    EXPECT_TRUE(kernel_reads(another, pattern("another")));
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(changes_one_of_two); });
  scenario.run(20s);
}

// Judges the attributes of one pool of any kind. At the end the threshold has
// its old value and the policies are on, because other tests may use the pool
// as well. For a pool that can be shared, the effect of the threshold and of a
// trim is not judged.
template <class Api>
static void expect_attributes_of(Api api, cudaMemPool_t pool, bool shareable) {
  CALL(cudaDeviceSynchronize());
  const uint64_t before = used(pool);
  const uint64_t threshold = attribute(pool, cudaMemPoolAttrReleaseThreshold);
  set_threshold(api, pool, UINT64_MAX);
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), UINT64_MAX);
  AsyncBuffer block(pool, kBlock);
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(used(pool), before + kBlock);
  block.free_async();
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(used(pool), before);
  EXPECT_GE(attribute(pool, cudaMemPoolAttrUsedMemHigh), before + kBlock);
  for (const cudaMemPoolAttr high :
       {cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemHigh}) {
    cuuint64_t zero = 0;
    EXPECT_SUCCESS(api.mem_pool_set_attribute(pool, high, &zero));
  }
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemHigh), before);
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReservedMemHigh), reserved(pool));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), UINT64_MAX)
      << "the watermarks were reset";
  for (const cudaMemPoolAttr policy :
       {cudaMemPoolReuseFollowEventDependencies,
        cudaMemPoolReuseAllowOpportunistic,
        cudaMemPoolReuseAllowInternalDependencies})
    for (int on : {0, 1}) {
      EXPECT_SUCCESS(api.mem_pool_set_attribute(pool, policy, &on));
      EXPECT_EQ(attribute(pool, policy), static_cast<uint64_t>(on)) << policy;
    }
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), UINT64_MAX)
      << "the policies were set";
  if (!shareable) {
    EXPECT_GE(reserved(pool), before + kBlock) << "kept by its threshold";
    EXPECT_SUCCESS(api.mem_pool_trim_to(pool, 0));
    EXPECT_LT(reserved(pool), before + kBlock) << "trimmed";
  }
  set_threshold(api, pool, threshold);
  expect_told_by_both(pool);
}

TEST(Footprint, EveryKindOfPoolHasItsAttributes) {
  covers("SOMA-34");
  needs(gpus(1), second_gpu, pool_fd);
  Scenario scenario(Scenario::kShared);
  const auto asks_each_kind = [](auto api) {
    int devices = 0;
    CALL(cudaGetDeviceCount(&devices));
    for (const int device : std::set{0, devices - 1}) {
      SCOPED_TRACE("GPU " + std::to_string(device));
      cudaMemPool_t preset = nullptr;
      CALL(cudaDeviceGetDefaultMemPool(&preset, device));
      expect_attributes_of(api, preset, false);
      expect_attributes_of(
          api, Pool(pool_properties(cudaMemHandleTypeNone, 0, device)), false);
      expect_attributes_of(api, Pool(shareable(0, device)), true);
      expect_release_on(device);
    }
    if (attribute(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED) != 1) return;
    SCOPED_TRACE("the host");
    const Pool host(on_the_host());
    expect_attributes_of(api, host, false);
    AsyncBuffer buffer(host, kBytes);
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(used(host), kBytes);
    buffer.free_async();
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(used(host), 0u);
    EXPECT_GE(attribute(host, cudaMemPoolAttrUsedMemHigh), kBytes);
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(asks_each_kind); });
  scenario.run(20s);
}

TEST(Footprint, AResetFreesNoStreamOrderedMemory) {
  covers("SOMA-31");
  needs(gpus(1), pools, alone);
  Scenario scenario;
  scenario.role("neighbour", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("neighbour"));
    me.signal("ready");
    me.wait("reset");
    EXPECT_READS(buffer, pattern("neighbour"));
  });
  scenario.role("resetter", [](Role& me) {
    me.wait("ready");
    CALL(cudaDeviceSynchronize());
    const size_t before = free_memory();
    AsyncBuffer buffer(kLarge);
    CALL(cudaDeviceSynchronize());
    EXPECT_LT(free_memory(), before - kLarge / 2);
    void* const memory = std::exchange(buffer.data, nullptr);

    for (const char* which : {"first", "second"}) {
      SCOPED_TRACE(std::string("the ") + which + " reset");
      const size_t had = free_memory();
      void* plain = nullptr;  // which a reset does free
      CALL(cudaMalloc(&plain, kLarge));
      EXPECT_LT(free_memory(), had - kLarge / 2);
      EXPECT_SUCCESS(cudaDeviceReset());
      EXPECT_TRUE(context_is_usable());
      EXPECT_GT(free_memory(), had - kLarge / 2)
          << "memory of cudaMalloc outlives the reset";
    }
    if (free_memory() > before - kLarge / 2) {
      me.lifted("cudaDeviceReset frees memory of cudaMallocAsync");
    } else {
      EXPECT_SUCCESS(cudaFree(memory));
      CALL(cudaDeviceSynchronize());
      me.observe(
          std::string("after the reset the memory stays; freed, it is ") +
          (free_memory() > before - kLarge / 2 ? "given back"
                                               : "kept by the pool"));
    }
    me.signal("reset");
  });
  scenario.run(20s);
}
