// How a shared pool differs from a pool that is not shared, and what both do:
// trimming, thresholds, policies, sizes, destruction. Mirror of
// samples/53_export_pool_limits.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"

using namespace ipclab;

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kBytes = 4 * kMiB;
constexpr size_t kUnused = 256 * kMiB;  // what a pool could give back
constexpr uint64_t kKeepAll = UINT64_MAX;

constexpr size_t kMaxSize = 64 * kMiB;
constexpr size_t kPiece = 16 * kMiB;
constexpr size_t kSmallPiece = kMiB / 4;  // smaller than a page of the GPU
constexpr size_t kFourGib = size_t{4} << 30;

// If the memory changes by more than this, a limit counts as lifted, or memory
// as freed.
constexpr size_t kNoise = 32 * kMiB;

using PointerData = cudaMemPoolPtrExportData;

constexpr cudaMemPoolAttr kPolicies[] = {
    cudaMemPoolReuseFollowEventDependencies, cudaMemPoolReuseAllowOpportunistic,
    cudaMemPoolReuseAllowInternalDependencies};

std::string mib(uint64_t bytes) {
  return std::to_string(bytes / kMiB) + " MiB";
}

// Makes the pool reserve kUnused bytes that are not used any more.
void leave_unused(cudaMemPool_t pool) {
  AsyncBuffer unused(pool, kUnused);
  unused.free_async();
  CALL(cudaDeviceSynchronize());
}

// Judges that a call on an imported pool succeeds or returns
// cudaErrorInvalidValue.
testing::AssertionResult succeeds_or_is_refused(Role& me, const char* call,
                                                cudaError_t code) {
  cudaGetLastError();
  if (code == cudaSuccess) return testing::AssertionSuccess();
  me.observe(std::string(call) + " on an imported pool: " + name_of(code));
  if (code == cudaErrorInvalidValue) return testing::AssertionSuccess();
  expected_but_saw("cudaSuccess or cudaErrorInvalidValue", name_of(code));
  return testing::AssertionFailure() << call << " gives " << name_of(code);
}

}  // namespace

// --- trimming and the threshold ---------------------------------------------

TEST(ExportPoolLimits, TrimmingASharedPool) {
  covers("POOL-19");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    set_attribute(pool, cudaMemPoolAttrReleaseThreshold, kKeepAll);
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send("pointer", buffer.exported());
    const AsyncBuffer second(pool, kBytes);
    second.fill(pattern("second"));
    me.send("second", second.exported());  // imported after the trim
    me.wait("imported");

    leave_unused(pool);
    const uint64_t before = reserved(pool);
    EXPECT_GE(before, kUnused);
    EXPECT_SUCCESS(cudaMemPoolTrimTo(pool, 0));
    const uint64_t after = reserved(pool);
    me.observe("trim to 0: " + mib(before) + " reserved, then " + mib(after));
    EXPECT_GE(after, kBytes);
    EXPECT_LE(after, before);
    if (after + kNoise < before)
      me.lifted("trimming a shared pool gives back " + mib(before - after));
    EXPECT_READS(buffer, pattern("exporter"));
    me.signal("trimmed");
    me.wait("freed");
  });

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    me.signal("imported");
    me.wait("trimmed");
    EXPECT_READS(buffer, pattern("exporter"));
    AsyncBuffer second(pool, me.receive<PointerData>("second"), kBytes);
    EXPECT_READS(second, pattern("second"));
    second.free();
    buffer.free();
    me.signal("freed");
  });

  scenario.run(20s);
}

TEST(ExportPoolLimits, TheThresholdOfASharedPool) {
  covers("POOL-20");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    for (const uint64_t threshold : {uint64_t{0}, kKeepAll}) {
      const std::string what =
          threshold == 0 ? "threshold 0" : "threshold UINT64_MAX";
      SCOPED_TRACE(what);
      const Pool pool(shareable());
      const Descriptor shared = pool.exported();
      uint64_t value = threshold, seen = 1;
      EXPECT_SUCCESS(cudaMemPoolSetAttribute(
          pool, cudaMemPoolAttrReleaseThreshold, &value));
      EXPECT_SUCCESS(cudaMemPoolGetAttribute(
          pool, cudaMemPoolAttrReleaseThreshold, &seen));
      EXPECT_EQ(seen, threshold);

      const AsyncBuffer buffer(pool, kBytes);
      buffer.fill(pattern("exporter"));
      leave_unused(pool);
      const uint64_t left = reserved(pool);
      me.observe(what + ": " + mib(left) + " stay reserved");
      if (threshold == kKeepAll) EXPECT_GE(left, kUnused);
      if (left < kUnused)
        me.lifted("a shared pool releases at a synchronise above its " + what);
      EXPECT_READS(buffer, pattern("exporter"));
    }
  });
  scenario.run(20s);
}

// --- what an importer cannot change -----------------------------------------

TEST(ExportPoolLimits, PoliciesOfAnImportedPoolStayThere) {
  covers("IMPL-03");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    for (const uint64_t value : {1, 0}) {
      for (const cudaMemPoolAttr policy : kPolicies)
        set_attribute(pool, policy, value);
      CALL(cudaDeviceSetMemPool(0, pool));
      pool.exported();  // the export changes no policy
      cudaMemPool_t current = nullptr;
      CALL(cudaDeviceGetMemPool(&current, 0));
      EXPECT_EQ(current, static_cast<cudaMemPool_t>(pool)) << "exported";
      me.signal("set by the exporter");
      me.wait("set by the importer");
      for (const cudaMemPoolAttr policy : kPolicies)
        EXPECT_EQ(attribute(pool, policy), value) << "policy " << policy;
    }
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  });

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool")), own;
    cudaMemPool_t preset = nullptr;
    CALL(cudaDeviceGetDefaultMemPool(&preset, 0));
    for (int opposite : {0, 1}) {
      me.wait("set by the exporter");
      for (const cudaMemPoolAttr policy : kPolicies) {
        const std::string name = "policy " + std::to_string(policy);
        int seen = -1;
        EXPECT_TRUE(succeeds_or_is_refused(
            me, ("getting " + name).c_str(),
            NOTED(cudaMemPoolGetAttribute(pool, policy, &seen))));
        EXPECT_TRUE(succeeds_or_is_refused(
            me, ("setting " + name).c_str(),
            NOTED(cudaMemPoolSetAttribute(pool, policy, &opposite))));
        EXPECT_EQ(attribute(own, policy), 1u) << "of the importer's own pool";
        EXPECT_EQ(attribute(preset, policy), 1u) << "of the default pool";
      }
      me.signal("set by the importer");
    }
  });

  scenario.run(20s);
}

TEST(ExportPoolLimits, TrimmingAnImportedPoolTakesFromNobody) {
  covers("IMPL-04");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    set_attribute(pool, cudaMemPoolAttrReleaseThreshold, kKeepAll);
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes), own(pool, kBytes);
    buffer.fill(pattern("exporter"));
    own.fill(pattern("own"));
    leave_unused(pool);
    const uint64_t before = reserved(pool);
    me.send("pointer", buffer.exported());

    me.wait("trimmed");
    EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
    EXPECT_READS(own, pattern("own"));
    const uint64_t after = reserved(pool);
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), kKeepAll);
    if (after + kNoise < before)
      me.lifted("an importer's trim gives back " + mib(before - after) +
                " of the exporter");
    me.wait("freed");
  });

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    const Pool mine;
    set_attribute(mine, cudaMemPoolAttrReleaseThreshold, kKeepAll);
    leave_unused(mine);
    const uint64_t kept = reserved(mine);
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    buffer.fill(pattern("importer"));
    uint64_t threshold = 0;
    EXPECT_TRUE(succeeds_or_is_refused(
        me, "setting the threshold",
        NOTED(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold,
                                      &threshold))));
    EXPECT_TRUE(succeeds_or_is_refused(me, "cudaMemPoolTrimTo",
                                       NOTED(cudaMemPoolTrimTo(pool, 0))));
    // In both APIs this refusal has the same number.
    EXPECT_TRUE(succeeds_or_is_refused(
        me, "cuMemPoolTrimTo",
        static_cast<cudaError_t>(DriverApi::mem_pool_trim_to(pool, 0))));
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(attribute(mine, cudaMemPoolAttrReleaseThreshold), kKeepAll);
    EXPECT_EQ(reserved(mine), kept) << "of the importer's own pool";
    EXPECT_READS(buffer, pattern("importer"));
    me.signal("trimmed");
    buffer.free();
    me.signal("freed");
  });

  scenario.run(20s);
}

// --- size and end -----------------------------------------------------------

// Allocates pieces of a pool of kMaxSize until it refuses one, and judges how
// much the pool gave.
template <class Api>
static std::vector<void*> pieces_until_full(Role& me, Api api,
                                            cudaMemPool_t pool, size_t bytes) {
  std::vector<void*> pieces;
  void* piece = nullptr;
  typename Api::Code code{};
  while (pieces.size() * bytes < 4 * kMaxSize) {
    code = api.malloc_from_pool_async(&piece, bytes, pool, nullptr);
    if (code != typename Api::Code{}) break;
    pieces.push_back(piece);
  }
  EXPECT_TRUE(
      gives(code, "an allocation beyond the maximal size", api.kOutOfMemory));
  const size_t had = pieces.size() * bytes;
  me.observe("of a pool of at most " + mib(kMaxSize) + ": " + mib(had));
  // The documentation does not say how the limit is rounded.
  EXPECT_GE(had, kMaxSize / 2);
  EXPECT_LT(had, 2 * kMaxSize);
  return pieces;
}

// Judges that a full pool gives no memory, in no stream.
template <class Api>
static void expect_full(Api api, cudaMemPool_t pool) {
  const Stream other;
  const auto refuses = [&](const char* what, cudaStream_t stream) {
    Sentinel<void*> more;
    EXPECT_TRUE(
        gives(api.malloc_from_pool_async(more.out(), kPiece, pool, stream),
              what, api.kOutOfMemory));
    if (more.touched() && more.value != nullptr) api.mem_free(more.value);
  };
  refuses("an allocation in the default stream", nullptr);
  refuses("an allocation in another stream", other);
  refuses("an allocation in a thread's default stream", cudaStreamPerThread);
}

// Allocates pieces until the pool refuses one.
template <class Api>
static void reaches_the_maximal_size(Role& me, Api api,
                                     cudaMemAllocationHandleType types) {
  const auto at_most = [=](size_t bytes) {
    return created(api, pool_properties(types, bytes));
  };
  const Pool pool = at_most(kMaxSize), unlimited = at_most(0);
  std::vector<void*> pieces = pieces_until_full(me, api, pool, kPiece);
  ASSERT_FALSE(pieces.empty());
  const size_t had = pieces.size() * kPiece;
  expect_full(api, pool);

  const Pool of_small = at_most(kMaxSize);
  for (void* small : pieces_until_full(me, api, of_small, kSmallPiece))
    EXPECT_SUCCESS(api.mem_free(small));

  void* piece = nullptr;
  const Pool beside = at_most(kMaxSize);
  EXPECT_SUCCESS(api.malloc_from_pool_async(&piece, kPiece, beside, nullptr))
      << "another pool is full";
  EXPECT_SUCCESS(api.mem_free(std::exchange(piece, nullptr)));

  CALL(cudaDeviceSetMemPool(0, pool));
  Sentinel<void*> more;
  EXPECT_CODE(cudaErrorMemoryAllocation,
              cudaMallocAsync(more.out(), kPiece, nullptr));
  Sentinel<CUdeviceptr> by_driver;
  EXPECT_CODE(CUDA_ERROR_OUT_OF_MEMORY,
              DRIVER(cuMemAllocAsync)(by_driver.out(), kPiece, nullptr));
  cudaMemPool_t preset = nullptr;
  CALL(cudaDeviceGetDefaultMemPool(&preset, 0));
  CALL(cudaDeviceSetMemPool(0, preset));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), had)
      << "what was refused is not in use";
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemHigh), had)
      << "what was refused was never in use";

  for (const bool async : {true, false}) {
    CALL(async ? cudaFreeAsync(pieces.back(), nullptr)
               : cudaFree(pieces.back()));
    EXPECT_SUCCESS(
        api.malloc_from_pool_async(&pieces.back(), kPiece, pool, nullptr));
  }
  if (types != cudaMemHandleTypeNone) {
    SCOPED_TRACE("after an export");
    exported(api, pool);
    expect_full(api, pool);
  }
  const Pool large = at_most(kFourGib + kPiece);
  for (const Pool* roomy : {&unlimited, &large}) {
    EXPECT_SUCCESS(
        api.malloc_from_pool_async(&piece, 2 * kMaxSize, *roomy, nullptr));
    EXPECT_SUCCESS(api.mem_free(std::exchange(piece, nullptr)));
  }
  for (void* mine : pieces) EXPECT_SUCCESS(api.mem_free(mine));
  const Pool whole = at_most(kMaxSize);
  EXPECT_SUCCESS(api.malloc_from_pool_async(&piece, kMaxSize, whole, nullptr))
      << "the maximal size at once";
  if (piece != nullptr) EXPECT_SUCCESS(api.mem_free(piece));
  EXPECT_TRUE(context_is_usable());
}

TEST(ExportPoolLimits, TheMaximalSizeIsKept) {
  covers("POOL-22");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      for (const auto types :
           {cudaMemHandleTypePosixFileDescriptor, cudaMemHandleTypeNone})
        reaches_the_maximal_size(me, api, types);
    });
  });
  scenario.run(20s);
}

// The free of memory of a destroyed pool changes no other pool, also if this
// pool has the handle value of the destroyed one.
template <class Api>
static void frees_beside_a_later_pool(Api api) {
  Pool gone = created(api);
  AsyncBuffer left = allocated(api, gone, kBytes);
  EXPECT_SUCCESS(api.mem_pool_destroy(gone.release()));
  const Pool later = created(api);
  const AsyncBuffer buffer = allocated(api, later, kBytes);
  buffer.fill(pattern("of the later pool"));
  const uint64_t used = attribute(later, cudaMemPoolAttrUsedMemCurrent);
  EXPECT_GE(used, kBytes);
  expect_free_async(api, left);
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(attribute(later, cudaMemPoolAttrUsedMemCurrent), used)
      << "memory of another pool was freed";
  EXPECT_TRUE(kernel_reads(buffer, pattern("of the later pool")));
}

// An exporter that destroys its pool while an allocation is in use and the free
// of another allocation has not happened yet. The importer makes its first CUDA
// call only after the exporter has measured the free memory.
template <class Api>
static void destroys_a_pool_in_use(Role& me, Api api) {
  const Stream stream;
  DeviceBuffer(kBytes).fill(pattern("loads the kernels"));
  WrongWords wrong;
  EXPECT_TRUE(context_is_usable());
  Pool pool = created(api, shareable());
  const size_t before = free_memory();
  me.send_descriptor(std::string("pool of the ") + api.kName,
                     exported(api, pool).get());
  AsyncBuffer live = allocated(api, pool, kUnused);
  AsyncBuffer other = allocated(api, pool, kBytes, stream);
  other.fill(pattern("other"), stream);
  AsyncBuffer beside = allocated(api, pool, kBytes);
  const Words part(live.data, kBytes);
  part.fill(pattern("exporter"));
  me.send(std::string("pointer of the ") + api.kName, exported(api, live));
  me.wait_for_end(std::string("importer by the ") + api.kName);

  Latch latch;
  latch.hold(stream);
  wrong.queue_count(other, pattern("other"), stream);
  expect_free_async(api, other, stream);
  EXPECT_SUCCESS(api.mem_pool_destroy(pool.release()));
  // The destroy did not wait for the free, which has not happened yet.
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_EQ(wrong.so_far(), 0u) << "given back before its free";
  expect_free_async(api, beside);  // not the last free
  CALL(cudaStreamSynchronize(nullptr));

  EXPECT_TRUE(kernel_reads(part, pattern("exporter")));
  part.fill(pattern("after the end of the pool"));
  EXPECT_READS(part, pattern("after the end of the pool"));
  EXPECT_LT(free_memory() + kUnused, before + kNoise);
  const size_t in_use = free_memory();
  // The last free, too, comes after the earlier work of its stream.
  Latch last;
  last.hold(stream);
  wrong.queue_count(part, pattern("after the end of the pool"), stream);
  expect_free_async(api, live, stream);
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  last.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_EQ(wrong.so_far(), 0u) << "freed before its stream reached the free";
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(returned(in_use, kUnused));

  // The destroy of a pool also gives back memory that the pool kept although
  // nobody used it.
  Pool idle = created(api);
  set_attribute(idle, cudaMemPoolAttrReleaseThreshold, kKeepAll);
  allocated(api, idle, kUnused).free_async();
  CALL(cudaDeviceSynchronize());
  const size_t kept = free_memory();
  EXPECT_LT(kept + kUnused, before + kNoise) << "an idle pool";
  EXPECT_SUCCESS(api.mem_pool_destroy(idle.release()));
  EXPECT_TRUE(returned(kept, kUnused)) << "an idle pool";

  // The other free, too, frees memory of a destroyed pool.
  Pool gone = created(api);
  AsyncBuffer left = allocated(api, gone, kBytes);
  left.fill(pattern("left"));
  EXPECT_SUCCESS(api.mem_pool_destroy(gone.release()));
  EXPECT_TRUE(kernel_reads(left, pattern("left")));
  expect_free(api, left);
  EXPECT_TRUE(context_is_usable());
}

template <class Api>
static void imports_from_it(Role& me, Api api) {
  const Descriptor shared =
      me.receive_descriptor(std::string("pool of the ") + api.kName);
  CALL(cudaFree(nullptr));
  const Pool pool = imported(api, shared);
  AsyncBuffer live = imported(
      api, pool,
      me.receive<PointerData>(std::string("pointer of the ") + api.kName),
      kUnused);
  EXPECT_TRUE(kernel_reads(Words(live.data, kBytes), pattern("exporter")));
  expect_free(api, live);
}

TEST(ExportPoolLimits, ADestroyedPoolLivesUntilTheLastFree) {
  covers("POOL-23");
  needs(gpus(1), pool_fd, alone);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      destroys_a_pool_in_use(me, api);
      frees_beside_a_later_pool(api);
    });
  });
  const auto add_importer = [&](auto api) {
    scenario.role(std::string("importer by the ") + api.kName,
                  [=](Role& me) { imports_from_it(me, api); });
  };
  add_importer(RuntimeApi{});
  add_importer(DriverApi{});

  scenario.run(40s);
}

// The exporter destroys its pool while an importer uses memory of the pool.
TEST(ExportPoolLimits, AnImportOutlivesTheExportersPool) {
  covers("POOL-23");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  const auto destroys_while_imported = [](Role& me) {
    Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send("pointer", buffer.exported());
    AsyncBuffer second(pool, kBytes);
    second.fill(pattern("second"));
    me.send("second", second.exported());  // imported after the destroy
    me.wait("imported");
    EXPECT_SUCCESS(cudaMemPoolDestroy(pool.release()));
    const DeviceBuffer other(4 * kBytes);  // gets what is given back too early
    me.signal("destroyed");
    me.wait("freed");
    EXPECT_READS(buffer, pattern("importer"));
    EXPECT_TRUE(kernel_reads(second, pattern("second")));
    expect_free_async(RuntimeApi{}, second);
    expect_free_async(RuntimeApi{}, buffer);
    CALL(cudaDeviceSynchronize());
  };
  // ASecondPoolCanBeDestroyed judges what comes after this.
  scenario.role("exporter", destroys_while_imported).in_new_process();

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    me.signal("imported");
    me.wait("destroyed");
    EXPECT_READS(buffer, pattern("exporter"));
    AsyncBuffer second(pool, me.receive<PointerData>("second"), kBytes);
    EXPECT_TRUE(kernel_reads(second, pattern("second")));
    second.free();
    buffer.fill(pattern("importer"));
    buffer.free();
    me.signal("freed");
  });

  scenario.run(20s);
}

// Destroys a pool. A destroy that does not return within 5 s ends the process.
template <class Api>
static void expect_destroy(Api api, Pool* pool) {
  const cudaMemPool_t gone = pool->release();
  HostWait destroy("cudaMemPoolDestroy", [=] {
    cudaSetDevice(0);  // the thread's context
    return static_cast<cudaError_t>(api.mem_pool_destroy(gone));
  });
  for (int i = 0; i < 10 && destroy.is_held(); ++i) {
  }
  if (!destroy.returned()) std::abort();
  EXPECT_SUCCESS(destroy.join());
}

// Destroys two pools while memory of both is in use.
template <class Api>
static void destroys_two_pools(Api api, bool freed_between) {
  Pool first = created(api, shareable()), second = created(api, shareable());
  for (const Pool* pool : {&first, &second}) {
    const Descriptor shared = exported(api, *pool);
    EXPECT_TRUE(shared);
  }
  AsyncBuffer one = allocated(api, first, kBytes);
  AsyncBuffer other = allocated(api, second, kBytes);
  one.fill(pattern("one"));
  other.fill(pattern("other"));
  expect_destroy(api, &first);
  EXPECT_TRUE(kernel_reads(one, pattern("one")));
  if (freed_between) expect_free(api, one);
  expect_destroy(api, &second);
  EXPECT_TRUE(kernel_reads(other, pattern("other")));
  if (!freed_between) {
    EXPECT_TRUE(kernel_reads(one, pattern("one")));
    expect_free(api, one);
  }
  expect_free(api, other);
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(context_is_usable());
}

// Destroys a pool in use, then a pool that nobody used, eight times.
template <class Api>
static void destroys_in_rounds(Api api, size_t bytes) {
  for (int round = 0; round < 8; ++round) {
    const std::string written = "round " + std::to_string(round);
    // The destroys of earlier rounds are to blame if no pool can be created.
    cudaMemPool_t made = nullptr, unused = nullptr;
    EXPECT_SUCCESS(api.mem_pool_create(&made, shareable()));
    if (made == nullptr) return;
    Pool used(made);
    AsyncBuffer memory = allocated(api, used, bytes);
    memory.fill(pattern(written));
    expect_destroy(api, &used);
    EXPECT_TRUE(kernel_reads(memory, pattern(written)));
    expect_free(api, memory);
    CALL(cudaDeviceSynchronize());
    EXPECT_SUCCESS(api.mem_pool_create(&unused, shareable()));
    if (unused == nullptr) return;
    Pool idle(unused);
    expect_destroy(api, &idle);
  }
  EXPECT_TRUE(context_is_usable());
}

template <class Api>
static void destroys_pools(Api api, int way) {
  if (way < 2)
    destroys_two_pools(api, way == 1);
  else
    destroys_in_rounds(api, way == 2 ? 4096 : way == 3 ? kMiB : 4 * kMiB);
}

TEST(ExportPoolLimits, ASecondPoolCanBeDestroyed) {
  covers("POOL-23");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role& me) {
              CALL(cudaSetDevice(0));
              while (const auto input = me.next_input()) {
                const int way = static_cast<int>(*input) % 5;
                if (*input < 5)
                  destroys_pools(RuntimeApi{}, way);
                else
                  destroys_pools(DriverApi{}, way);
                // A process that has lost its pools cannot judge what follows.
                if (testing::Test::HasFailure()) return;
              }
            })
      .in_new_process()
      .may_end_by(SIGSEGV)
      .may_end_by(SIGABRT)
      .may_end_by(SIGFPE);
  std::vector<std::string> names;
  for (const char* api : {"runtime", "driver"})
    for (const char* way :
         {"both in use", "the first memory is freed", "rounds of 4 KiB",
          "rounds of 1 MiB", "rounds of 4 MiB"})
      names.push_back(std::string(api) + ", " + way);
  for (const Death& death : scenario.run_inputs("exporter", names, 60s)) {
    tabulate("the destroy of pools in use", death.input, death.outcome);
    ADD_FAILURE() << "the process dies: " << death.input;
  }
}

static const std::vector<size_t> kSizes = {64 * kMiB, 1024 * kMiB, 4096 * kMiB,
                                           6144 * kMiB};

// The first and the last part of a large allocation. The test uses only these
// parts.
static std::pair<Words, Words> ends(const Words& all) {
  return {Words(all.data, kMiB / 4),
          Words(all.data + all.count - kMiB / 16, kMiB / 4)};
}

// An exporter that lends one allocation and writes only its first and its last
// part.
static void exports_a_large_allocation(Role& me, size_t size) {
  const DeviceBuffer other(kBytes);
  other.fill(pattern("other"));
  const Pool pool(shareable());
  void* memory = nullptr;
  const cudaError_t code =
      NOTED(cudaMallocFromPoolAsync(&memory, size, pool, nullptr));
  cudaGetLastError();
  me.send("allocated", code == cudaSuccess);
  if (code == cudaSuccess) {
    const auto [first, last] = ends(Words(memory, size));
    first.fill(pattern("first"));
    last.fill(pattern("last"));
    me.send_descriptor("pool for " + mib(size), pool.exported().get());
    PointerData data;
    CALL(cudaMemPoolExportPointer(&data, memory));
    me.send("pointer", data);
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    EXPECT_TRUE(kernel_reads(last, pattern("last")));
    CALL(cudaFree(memory));
  } else {
    me.observe(mib(size) + " cannot be allocated: " + name_of(code));
  }
  EXPECT_TRUE(kernel_reads(other, pattern("other")));
  EXPECT_TRUE(context_is_usable());
}

static void imports_a_large_allocation(Role& me, size_t size,
                                       const char* table) {
  if (!me.receive<bool>("allocated")) return;
  auto data = me.receive<PointerData>("pointer");
  const Pool pool(me.receive_descriptor("pool for " + mib(size)));
  void* memory = nullptr;
  const Outcome outcome =
      outcome_of(NOTED(cudaMemPoolImportPointer(&memory, pool, &data)),
                 {cudaErrorInvalidValue, cudaErrorInitializationError,
                  cudaErrorMemoryAllocation});
  if (outcome.kind != Outcome::kWrongSuccess)
    return me.tabulate(table, mib(size), outcome);
  me.observe(mib(size) + " are imported");
  const auto [first, last] = ends(Words(memory, size));
  EXPECT_TRUE(kernel_reads(first, pattern("first")));
  EXPECT_READS(last, pattern("last"));
  CALL(cudaFree(memory));
}

// After a crash of the importer the next size has a new importer.
TEST(ExportPoolLimits, LargeAllocationsAreShared) {
  covers("IMPL-14");
  needs(gpus(1), pool_fd);
  static constexpr char kTable[] = "cudaMemPoolImportPointer of one allocation";
  for (const size_t size : kSizes) {
    Scenario scenario(Scenario::kShared);
    scenario.role("exporter",
                  [=](Role& me) { exports_a_large_allocation(me, size); });
    scenario
        .role("importer",
              [=](Role& me) { imports_a_large_allocation(me, size, kTable); })
        .may_end_by(SIGSEGV);
    scenario.run(30s);
    const Ended& ended = scenario.ended("importer");
    if (!ended.reached_end) tabulate(kTable, mib(size), outcome_of(ended));
  }
}
