// What an imported pool cannot do: allocate, be current, count. Many importers
// do not disturb each other. Mirror of samples/54_import_limits.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 2 << 20;
constexpr int kImporters = 4;
constexpr int kManyExports = 32;  // beside those for the importers
constexpr int kAllocations = 8;

using PointerData = cudaMemPoolPtrExportData;

// An exporter of a further pool for `borrows_after`.
void lends_an_older_pool(Role& me) {
  by_both_apis([&](auto api) {
    const Pool pool = created(api, shareable());
    me.send_descriptor("older pool", exported(api, pool).get());
    me.wait("done with the older pool");
  });
}

// An importer that makes an `attempt`, imports and frees what
// `lends_by_both_apis` lends, and makes the attempt again before and after this
// free. It has a current pool of its own, and it has imported another pool
// before; the attempt is made with this pool, too.
std::function<void(Role&)> borrows_after(
    const std::function<void(Role&, cudaMemPool_t)>& attempt) {
  return [attempt](Role& me) {
    by_both_apis([&](auto api) {
      const Pool mine = created(api);
      CALL(api.device_set_mem_pool(0, mine));
      const Pool older = imported(api, me.receive_descriptor("older pool"));
      const Pool pool = imported(api, me.receive_descriptor("pool"));
      Sentinel<cudaMemPool_t> current;
      EXPECT_SUCCESS(api.device_get_mem_pool(current.out(), 0));
      EXPECT_EQ(current.result(), static_cast<cudaMemPool_t>(mine))
          << "an import changes no current pool";
      attempt(me, pool);
      attempt(me, older);
      EXPECT_TRUE(context_is_usable());
      AsyncBuffer buffer =
          imported(api, pool, me.receive<PointerData>("pointer"), kBytes);
      EXPECT_READS(buffer, pattern("exporter"));
      attempt(me, pool);  // now memory of the pool is in use here
      EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
      expect_free(api, buffer);
      CALL(cudaDeviceSynchronize());
      attempt(me, pool);  // now memory of the pool was freed here
      EXPECT_TRUE(context_is_usable());
      me.signal("freed");
      me.signal("done with the older pool");
    });
  };
}

// Judges that a kernel and a copy read the memory. Then frees the memory; the
// free must succeed.
void expect_used_and_freed(AsyncBuffer* buffer, Pattern written) {
  EXPECT_READS(*buffer, written);
  buffer->free();
}

// The exporter of a pool that one importer destroys. It lends two allocations
// to all importers. After one importer has destroyed its pool, it lends a third
// one, `second`, to `borrowers` importers.
std::function<void(Role&)> lends_and_lends_again(int borrowers) {
  return [=](Role& me) {
    by_both_apis([&](auto api) {
      const Pool pool = created(api, shareable());
      const Descriptor shared = exported(api, pool);
      for (int i = 0; i < 2; ++i)
        me.send_descriptor("pool" + by_the(api), shared.get());
      const AsyncBuffer first = allocated(api, pool, kBytes);
      first.fill(pattern("first"));
      const AsyncBuffer beside = allocated(api, pool, kBytes);
      beside.fill(pattern("beside"));
      me.send("first", exported(api, first));
      me.send("beside", exported(api, beside));
      me.wait("destroyed");
      const AsyncBuffer second = allocated(api, pool, kBytes);
      second.fill(pattern("second"));
      me.send("second", exported(api, second));
      me.wait("freed", borrowers);
      EXPECT_TRUE(kernel_reads(first, pattern("first")));
      EXPECT_TRUE(kernel_reads(second, pattern("second")));
    });
  };
}

// The importer that must not be disturbed.
std::function<void(Role&)> stays() {
  return [](Role& me) {
    by_both_apis([&](auto api) {
      const Pool pool =
          imported(api, me.receive_descriptor("pool" + by_the(api)));
      AsyncBuffer first =
          imported(api, pool, me.receive<PointerData>("first"), kBytes);
      EXPECT_TRUE(kernel_reads(first, pattern("first")));
      me.wait("destroyed");
      AsyncBuffer second =
          imported(api, pool, me.receive<PointerData>("second"), kBytes);
      expect_used_and_freed(&first, pattern("first"));
      expect_used_and_freed(&second, pattern("second"));
      me.signal("freed");
    });
  };
}

__global__ void look_at(const volatile uint32_t* data, uint32_t* seen) {
  *seen = *data;
}

constexpr const char* kUsers[] = {"kernel", "copy"};

// Uses memory in one of these ways. Returns the code: a refusal is an answer
// here, not a failure.
cudaError_t use(const std::string& user, void* memory, const Words& word) {
  note_call(user == "copy" ? "cudaMemcpy" : "look_at<<<>>>");
  if (user == "copy")
    return cudaMemcpy(word.data, memory, word.bytes(), cudaMemcpyDefault);
  look_at<<<1, 1>>>(static_cast<uint32_t*>(memory), word.data);
  return cudaDeviceSynchronize();
}

}  // namespace

// --- what is refused --------------------------------------------------------

// Judges that no function allocates this many bytes from the pool in this
// stream.
static void expect_no_allocation(Role& me, cudaMemPool_t pool,
                                 cudaStream_t stream, size_t bytes) {
  SCOPED_TRACE(stream == nullptr ? "default stream" : "named stream");
  SCOPED_TRACE(std::to_string(bytes) + " bytes");
  Sentinel<void*> pointer;
  EXPECT_REFUSED(cudaMallocFromPoolAsync(pointer.out(), bytes, pool, stream),
                 cudaErrorInvalidValue, cudaErrorNotSupported);
  note_touched(me, pointer, "cudaMallocFromPoolAsync");
  Sentinel<void*> overloaded;
  EXPECT_REFUSED(cudaMallocAsync(overloaded.out(), bytes, pool, stream),
                 cudaErrorInvalidValue, cudaErrorNotSupported);
  note_touched(me, overloaded, "cudaMallocAsync");
  Sentinel<CUdeviceptr> address;
  EXPECT_REFUSED(
      DRIVER(cuMemAllocFromPoolAsync)(address.out(), bytes, pool, stream),
      CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  note_touched(me, address, "cuMemAllocFromPoolAsync");
}

TEST(ImportLimits, NothingIsAllocatedFromAnImportedPool) {
  covers("IMPL-01");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_by_both_apis(pattern("exporter"), kBytes));
  scenario.role("exporter of an older pool", lends_an_older_pool);
  scenario.role("importer", borrows_after([](Role& me, cudaMemPool_t pool) {
                  const Stream stream;
                  // A driver may serve small memory on another path.
                  for (const size_t bytes : {size_t{256}, kBytes}) {
                    expect_no_allocation(me, pool, nullptr, bytes);
                    expect_no_allocation(me, pool, stream, bytes);
                  }
                }));
  scenario.run(20s);
}

// Judges that the current pool of GPU 0 did not change, and that a right call
// works.
template <class Api>
static void expect_current(Api api, cudaMemPool_t mine) {
  Sentinel<cudaMemPool_t> current;
  EXPECT_SUCCESS(api.device_get_mem_pool(current.out(), 0));
  EXPECT_EQ(current.result(), mine) << "after a refusal";
}

// The caller must not make an imported pool current. No sentence says that this
// is refused.
TEST(ImportLimits, AnImportedPoolAsCurrentHarmsNothing) {
  covers("IMPL-02");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_by_both_apis(pattern("exporter"), kBytes));
  scenario.role("exporter of an older pool", lends_an_older_pool);
  scenario.role(
      "importer", borrows_after([](Role& me, cudaMemPool_t pool) {
        const Pool mine;
        CALL(cudaDeviceSetMemPool(0, mine));
        by_both_apis([&](auto api) {
          const auto judge = [&](const char* what, auto code) {
            cudaGetLastError();
            me.observe(what + by_the(api) + ": " + name_of(code));
            if (code != decltype(code){}) expect_current(api, mine);
            EXPECT_SUCCESS(api.device_set_mem_pool(0, mine)) << what;
          };
          judge("an imported pool as current",
                api.device_set_mem_pool(0, pool));
          if (has_pools_of_locations(me))
            judge("an imported pool as current of its location",
                  api.mem_set_mem_pool({cudaMemLocationTypeDevice, 0},
                                       cudaMemAllocationTypePinned, pool));
          expect_current(api, mine);
        });
        const AsyncBuffer buffer(kBytes);
        buffer.fill(pattern("mine"));
        EXPECT_TRUE(kernel_reads(buffer, pattern("mine")));
      }));
  scenario.run(20s);
}

// --- many importers ---------------------------------------------------------

// An importer of two allocations. The first importer frees both allocations
// while the other importers use them. Then the other importers check the memory
// again.
template <class Api>
static void imports_beside_others(Role& me, Api api) {
  const Pool pool = imported(api, me.receive_descriptor("pool" + by_the(api)));
  AsyncBuffer first =
      imported(api, pool, me.receive<PointerData>("first"), kBytes);
  // The last importer imports the second allocation after that free.
  const bool is_last = me.index() == kImporters - 1;
  if (is_last) {
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    me.signal("read");
    me.wait("one has freed");
  }
  AsyncBuffer second = imported(
      api, pool,
      me.receive<PointerData>(me.index() == 1 ? "second again" : "second"),
      kBytes);
  EXPECT_TRUE(kernel_reads(first, pattern("first")));
  EXPECT_TRUE(kernel_reads(second, pattern("second")));
  if (me.index() == 0) {
    me.wait("read", kImporters - 1);
    expect_free(api, first);
    expect_free_async(api, second);
    CALL(cudaDeviceSynchronize());
    me.signal("one has freed");
  } else {
    if (!is_last) {
      me.signal("read");
      me.wait("one has freed");
    }
    EXPECT_READS(first, pattern("first"));
    expect_free(api, first);
    EXPECT_READS(second, pattern("second"));
    expect_free(api, second);
  }
  me.signal("freed");
}

TEST(ImportLimits, ImportersDoNotDisturbEachOther) {
  covers("POOL-21");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const Pool pool = created(api, shareable());
      const auto send_pool = [&] {
        me.send_descriptor("pool" + by_the(api), exported(api, pool).get());
      };
      for (int i = 1; i < kImporters; ++i) send_pool();
      for (int i = 0; i < kManyExports; ++i)
        EXPECT_TRUE(exported(api, pool)) << "one more export";
      const AsyncBuffer first = allocated(api, pool, kBytes);
      const AsyncBuffer second = allocated(api, pool, kBytes);
      first.fill(pattern("first"));
      second.fill(pattern("second"));
      const PointerData of_first = exported(api, first);
      const PointerData of_second = exported(api, second);
      // One importer gets a descriptor that is newer than the data.
      send_pool();
      me.send("first", of_first);
      me.send("second", of_second);
      me.send("second again", exported(api, second));
      me.wait("freed", kImporters);
      EXPECT_TRUE(kernel_reads(first, pattern("first")));
      EXPECT_TRUE(kernel_reads(second, pattern("second")));
    });
  });

  scenario.roles("importer", kImporters, [](Role& me) {
    by_both_apis([&](auto api) { imports_beside_others(me, api); });
  });

  scenario.run(20s);
}

// An importer is killed while it uses the memory. Then another process imports
// the same pool and the same allocation.
TEST(ImportLimits, AKilledImporterTakesNothingWithIt) {
  covers("POOL-21");
  needs(gpus(1), pool_fd);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    const Descriptor shared = pool.exported();
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send_descriptor("pool for the victim", shared.get());
    me.send_descriptor("pool", shared.get());
    me.send("pointer", buffer.exported());
    me.wait("freed");
    EXPECT_READS(buffer, pattern("importer"));
  });
  scenario.role("victim", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool for the victim"));
    const AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    me.die(SIGKILL);
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    me.wait_for_end("victim");
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_READS(buffer, pattern("exporter"));
    buffer.fill(pattern("importer"));
    buffer.free();
    me.signal("freed");
  });
  scenario.run(20s);
}

// The test judges elsewhere whether an importer may query statistics. Here only
// the value is judged, if the query succeeds.
static void expect_watermark(cudaMemPool_t pool, uint64_t bytes) {
  Sentinel<uint64_t> high;
  const cudaError_t code = NOTED(
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, high.out()));
  cudaGetLastError();
  if (code == cudaSuccess) EXPECT_EQ(high.result(), bytes);
}

// The same after a reset, if the importer may reset the watermark.
static void expect_watermark_after_reset(cudaMemPool_t pool, uint64_t bytes) {
  by_both_apis([&](auto api) {
    uint64_t value = 0;
    const auto code =
        api.mem_pool_set_attribute(pool, cudaMemPoolAttrUsedMemHigh, &value);
    cudaGetLastError();
    if (code == decltype(code){}) expect_watermark(pool, bytes);
  });
}

TEST(ImportLimits, StatisticsCountOwnImportsOnly) {
  covers("IMPL-05");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    const Descriptor shared = pool.exported();
    for (int i = 0; i < 2; ++i) me.send_descriptor("pool", shared.get());
    std::vector<AsyncBuffer> buffers;
    for (int i = 0; i < kAllocations; ++i) {
      buffers.emplace_back(pool, kBytes);
      buffers.back().fill(pattern("exporter"));
      me.send("pointer", buffers.back().exported());
    }
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent),
              kAllocations * kBytes);
    me.wait("freed", 2);
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent),
              kAllocations * kBytes);
  });

  scenario.roles("importer", 2, [](Role& me) {
    const int mine = me.index() == 0 ? 3 : 1;
    const Pool own;
    CALL(cudaDeviceSetMemPool(0, own));
    const Pool pool(me.receive_descriptor("pool"));
    const auto expect_used = [&](const char* when, uint64_t bytes) {
      SCOPED_TRACE(when);
      uint64_t used = ~uint64_t{0};
      EXPECT_SUCCESS(
          cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
      EXPECT_EQ(used, bytes);
    };
    expect_used("before", 0);
    std::vector<AsyncBuffer> buffers;
    for (int i = 0; i < mine; ++i)
      buffers.emplace_back(pool, me.receive<PointerData>("pointer"), kBytes);
    const uint64_t all = static_cast<uint64_t>(mine) * kBytes;
    expect_used("with imports", all);
    EXPECT_EQ(attribute(own, cudaMemPoolAttrUsedMemCurrent), 0u)
        << "imports count in the current pool";
    expect_watermark(pool, all);
    for (AsyncBuffer& buffer : buffers) {
      if (&buffer != buffers.data() && &buffer == &buffers.back())
        expect_used("with the last import", kBytes);
      CALL(in_a_thread([&] {
        expect_used_and_freed(&buffer, pattern("exporter"));
        return cudaSuccess;
      }));
      CALL(cudaDeviceSynchronize());
    }
    expect_used("after the frees in other threads", 0);
    expect_watermark(pool, all);
    expect_watermark_after_reset(pool, 0);
    me.signal("freed");
  });

  scenario.run(20s);
}

// --- importing twice --------------------------------------------------------

// The result is not documented. A kernel and a copy fail in different ways if
// the memory is gone, and each of them may end its process.
TEST(ImportLimits, OneAllocationImportedTwice) {
  covers("IMPL-11");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    const Descriptor shared = pool.exported();
    for (int i = 0; i < 2; ++i) me.send_descriptor("pool", shared.get());
    const AsyncBuffer buffer(pool, kBytes), other(pool, kBytes);
    buffer.fill(pattern("exporter"));
    other.fill(pattern("other"));
    me.send("pointer", buffer.exported());
    for (const char* user : kUsers) me.wait_for_end(user);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(kernel_reads(other, pattern("other")));
    EXPECT_TRUE(context_is_usable());
  });

  for (const char* user : kUsers)
    scenario
        .role(user,
              [user](Role& me) {
                const Pool pool(me.receive_descriptor("pool"));
                const DeviceBuffer word(sizeof(uint32_t));
                auto data = me.receive<PointerData>("pointer");
                AsyncBuffer first(pool, data, kBytes);
                EXPECT_TRUE(kernel_reads(first, pattern("exporter")));
                void* second = nullptr;
                const cudaError_t code =
                    NOTED(cudaMemPoolImportPointer(&second, pool, &data));
                cudaGetLastError();
                me.observe("the second import: " + name_of(code) +
                           (second == first.data ? ", the same address"
                                                 : ", another address"));
                if (code != cudaSuccess) return;
                first.free();
                CALL(cudaDeviceSynchronize());
                me.signal("one of two imports is freed");
                me.observe(std::string("then a ") + user + ": " +
                           name_of(use(user, second, word)));
                me.observe("the second free: " + name_of(cudaFree(second)));
              })
        .in_new_process()  // after the second free its state is unknown
        .may_end_by(SIGSEGV);

  scenario.run(20s);
  for (const char* user : kUsers)
    tabulate_end(scenario, user, std::string(user) + " after a free");
}

// --- the end of an imported pool --------------------------------------------

// An importer that destroys its pool after a refused allocation, imports the
// pool again and destroys it again.
template <class Api>
static void destroys_an_imported_pool(Role& me, Api api) {
  const Descriptor shared = me.receive_descriptor("pool" + by_the(api));
  Pool pool = imported(api, shared);
  AsyncBuffer buffer =
      imported(api, pool, me.receive<PointerData>("first"), kBytes);
  expect_used_and_freed(&buffer, pattern("first"));
  CALL(cudaDeviceSynchronize());
  expect_no_allocation(me, pool, nullptr, kBytes);
  EXPECT_SUCCESS(api.mem_pool_destroy(pool.release()));
  EXPECT_TRUE(context_is_usable());
  me.signal("destroyed");
  Pool again = imported(api, shared);
  AsyncBuffer second =
      imported(api, again, me.receive<PointerData>("second"), kBytes);
  expect_used_and_freed(&second, pattern("second"));
  CALL(cudaDeviceSynchronize());
  EXPECT_SUCCESS(api.mem_pool_destroy(again.release()));
  me.signal("freed");
}

TEST(ImportLimits, DestroyingAnImportedPoolTakesFromNobody) {
  covers("IMPL-12");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_and_lends_again(2));
  scenario.role("importer that destroys", [](Role& me) {
    by_both_apis([&](auto api) { destroys_an_imported_pool(me, api); });
  });
  scenario.role("importer that stays", stays());
  scenario.run(20s);
}

// Like the destroy of any pool, the destroy of an imported pool waits neither
// until the memory is freed nor for a stream that uses the memory.
TEST(ImportLimits, AnImportOutlivesItsDestroyedPool) {
  covers("POOL-23");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_and_lends_again(1));
  scenario.role("importer that destroys", [](Role& me) {
    by_both_apis([&](auto api) {
      const Stream stream;
      const DeviceBuffer copy(kBytes);
      Pool pool = imported(api, me.receive_descriptor("pool" + by_the(api)));
      AsyncBuffer beside =
          imported(api, pool, me.receive<PointerData>("beside"), kBytes);
      AsyncBuffer buffer =
          imported(api, pool, me.receive<PointerData>("first"), kBytes);
      Latch latch;
      latch.hold(stream);
      CALL(cudaMemcpyAsync(copy.data, buffer.data, kBytes,
                           cudaMemcpyDeviceToDevice, stream));
      EXPECT_SUCCESS(api.mem_pool_destroy(pool.release()));
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
      latch.release();
      EXPECT_TRUE(passes(stream));
      EXPECT_TRUE(kernel_reads(copy, pattern("first")));
      expect_used_and_freed(&beside, pattern("beside"));
      CALL(cudaDeviceSynchronize());
      expect_used_and_freed(&buffer, pattern("first"));
      EXPECT_TRUE(context_is_usable());
      me.signal("destroyed");
    });
  });
  scenario.role("importer that stays", stays());
  scenario.run(20s);
}

// Destroys a pool before the stream, which is held, has reached an allocation.
template <class Api>
static void destroys_before_the_allocation(Api api) {
  const Stream stream, other;
  const DeviceBuffer copy(kBytes);
  Pool pool = created(api, shareable());
  load_kernels();
  allocated(api, kBytes, other).free_async(other);  // makes the default pool
  CALL(cudaDeviceSynchronize());
  Latch latch;
  latch.hold(stream);
  AsyncBuffer buffer = allocated(api, pool, kBytes, stream);
  EXPECT_SUCCESS(api.mem_pool_destroy(pool.release()));
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  // If the destroy gave the memory back, the next owner could get it.
  const AsyncBuffer next = allocated(api, kBytes, other);
  next.queue_fill(pattern("next"), other);
  buffer.queue_fill(pattern("pending"), stream);
  launch_copy(copy, buffer, stream);
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(copy, pattern("pending")));
  EXPECT_TRUE(copy_reads(buffer, pattern("pending")));
  EXPECT_TRUE(passes(other));
  EXPECT_TRUE(kernel_reads(next, pattern("next")));
  expect_free_async(api, buffer, stream);
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(context_is_usable());
}

TEST(ImportLimits, APendingAllocationOutlivesItsDestroyedPool) {
  covers("POOL-23");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario
      .role(
          "exporter",
          [](Role&) {
            by_both_apis([](auto api) { destroys_before_the_allocation(api); });
          })
      .in_new_process();
  scenario.run(20s);
}

// --- attributes -------------------------------------------------------------

constexpr cudaMemPoolAttr kPolicies[] = {
    cudaMemPoolReuseFollowEventDependencies, cudaMemPoolReuseAllowOpportunistic,
    cudaMemPoolReuseAllowInternalDependencies};

// Judges that the policies that an importer sets, by either API, stay there.
// The call may be refused.
TEST(ImportLimits, PoliciesSetByEitherApiStayInTheImporter) {
  covers("IMPL-03");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const Pool pool = created(api, shareable());
      me.send_descriptor("pool", exported(api, pool).get());
      for (const uint64_t value : {1, 0}) {
        for (const cudaMemPoolAttr policy : kPolicies)
          set_attribute(pool, policy, value);
        me.signal("set by the exporter");
        me.wait("set by the importer");
        for (const cudaMemPoolAttr policy : kPolicies)
          EXPECT_EQ(attribute(pool, policy), value) << "policy " << policy;
      }
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const Pool pool = imported(api, me.receive_descriptor("pool"));
      for (int opposite : {0, 1}) {
        me.wait("set by the exporter");
        for (const cudaMemPoolAttr policy : kPolicies) {
          const auto code = api.mem_pool_set_attribute(pool, policy, &opposite);
          cudaGetLastError();
          EXPECT_TRUE(code == decltype(code){} || code == api.kInvalidValue)
              << name_of(code);
        }
        me.signal("set by the importer");
      }
    });
  });
  scenario.run(20s);
}

// The importer's process is new, so it has imported no other pool before.
TEST(ImportLimits, AttributesOfAnImportedPointer) {
  covers("IMPL-13");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Pool other(shareable()), pool(shareable());
    me.send_descriptor("other pool", other.exported().get());
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    me.send("pointer", buffer.exported());
    me.wait("freed");
  });
  auto& importer = scenario.role("importer", [](Role& me) {
    const Pool other(me.receive_descriptor("other pool"));
    const Pool pool(me.receive_descriptor("pool"));
    const AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    const auto ask = [&](const char* what, CUpointer_attribute which,
                         auto* value) {
      const CUresult code = NOTED(DRIVER(cuPointerGetAttribute)(
          value, which, reinterpret_cast<CUdeviceptr>(buffer.data)));
      me.observe(std::string(what) + ": " + name_of(code));
      return code == CUDA_SUCCESS;
    };
    CUmemoryPool named = nullptr;
    if (ask("MEMPOOL_HANDLE", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, &named)) {
      me.observe(named == pool ? "it names the imported pool"
                               : "it does not name the imported pool");
      CUmemoryPool preset = nullptr;
      CALL(cudaDeviceGetDefaultMemPool(&preset, 0));
      EXPECT_TRUE(named == nullptr || named == pool || named == preset)
          << "a pool of another process, or the other one of this process";
    }
    CUcontext context = nullptr;
    if (ask("CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT, &context))
      me.observe(context == nullptr ? "it is null" : "it is not null");
    int device = -1;
    if (ask("DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &device))
      EXPECT_EQ(device, 0);
    me.signal("freed");
  });
  importer.in_new_process();
  scenario.run(20s);
}

TEST(ImportLimits, AnImportedPoolTellsThatItHasNoHandleTypes) {
  covers("IMPL-15");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_by_both_apis(pattern("exporter"), kBytes));
  scenario.role("exporter of an older pool", lends_an_older_pool);
  scenario.role(
      "importer", borrows_after([](Role&, cudaMemPool_t pool) {
        // Attributes of CUDA 13.2, which older headers lack: allocation type,
        // handle types for export, number and type of the location.
        const std::pair<int, int> kTold[] = {{9, CU_MEM_ALLOCATION_TYPE_PINNED},
                                             {10, CU_MEM_HANDLE_TYPE_NONE},
                                             {11, 0},
                                             {12, CU_MEM_LOCATION_TYPE_DEVICE}};
        for (const auto& [which, expected] : kTold) {
          Sentinel<int> value;
          EXPECT_CODE(
              CUDA_SUCCESS,
              DRIVER(cuMemPoolGetAttribute)(
                  pool, static_cast<CUmemPool_attribute>(which), value.out()));
          EXPECT_EQ(value.result(), expected) << "attribute " << which;
          if (!runtime_knows_how_pools_were_made()) continue;
          Sentinel<int> same;
          EXPECT_SUCCESS(RuntimeApi::mem_pool_get_attribute(
              pool, static_cast<cudaMemPoolAttr>(which), same.out()));
          EXPECT_EQ(same.value, expected) << "attribute " << which;
        }
      }));
  scenario.run(20s);
}
