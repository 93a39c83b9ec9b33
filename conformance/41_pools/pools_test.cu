// From which pool memory comes, which properties a pool may have, and which
// GPUs may use it. Mirror of samples/41_pools.
//
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr int kPools = 40;  // at once

// Asks both APIs for a pool, and judges that they name the same pool.
template <class Ask>
cudaMemPool_t named_by_both(Ask ask) {
  Sentinel<cudaMemPool_t> pool, same;
  EXPECT_SUCCESS(ask(RuntimeApi{}, pool.out()));
  const cudaMemPool_t found = pool.result();
  EXPECT_SUCCESS(ask(DriverApi{}, same.out()));
  EXPECT_EQ(same.result(), found) << "by the driver API";
  return found;
}

cudaMemPool_t default_pool(int device = 0) {
  return named_by_both([=](auto api, cudaMemPool_t* pool) {
    return api.device_get_default_mem_pool(pool, device);
  });
}

cudaMemPool_t current_pool(int device = 0) {
  return named_by_both([=](auto api, cudaMemPool_t* pool) {
    return api.device_get_mem_pool(pool, device);
  });
}

int device_count() {
  int count = 0;
  CALL(cudaGetDeviceCount(&count));
  return count;
}

// Judges that the memory of a buffer works and comes from this pool.
void expect_from(cudaMemPool_t pool, const AsyncBuffer& buffer) {
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(pool_of(buffer), pool);
  buffer.fill(pattern("mine"));
  EXPECT_READS(buffer, pattern("mine"));
}
// The same; then frees the buffer and waits for the free.
void expect_from_and_free(cudaMemPool_t pool, AsyncBuffer buffer) {
  expect_from(pool, buffer);
  buffer.free_async();
  CALL(cudaDeviceSynchronize());
}

// The same for memory that each of the two APIs allocates.
void expect_both_allocate_from(cudaMemPool_t pool) {
  for_each_api(
      [=](auto api) { expect_from_and_free(pool, allocated(api, kBytes)); });
}

// Attributes of CUDA 13.2, which older headers lack.
constexpr int kAllocationType = 9, kExportHandleTypes = 10, kLocationId = 11,
              kLocationType = 12, kMaxPoolSize = 13;

// An attribute of a pool by the driver API. If the runtime knows the attribute,
// it must return the same value. If the driver refuses the query, returns -1
// and records a failure.
template <typename Value>
int64_t told(cudaMemPool_t pool, int which) {
  Sentinel<Value> value;
  const CUresult code = NOTED(DRIVER(cuMemPoolGetAttribute)(
      pool, static_cast<CUmemPool_attribute>(which), value.out()));
  EXPECT_TRUE(gives(code, "cuMemPoolGetAttribute", CUDA_SUCCESS)) << which;
  if (code != CUDA_SUCCESS) return -1;
  if (runtime_knows_how_pools_were_made()) {
    Sentinel<Value> same;
    EXPECT_SUCCESS(RuntimeApi::mem_pool_get_attribute(
        pool, static_cast<cudaMemPoolAttr>(which), same.out()));
    EXPECT_EQ(same.value, value.result()) << "by the runtime: " << which;
  }
  return static_cast<int64_t>(value.result());
}

}  // namespace

// A second context on GPU 0. It is current while this object exists.
class SecondContext {
 public:
  SecondContext() { CALL(create_context(&context_, 0)); }
  SecondContext(const SecondContext&) = delete;
  ~SecondContext() {
    DRIVER(cuCtxDestroy)(context_);
    cudaSetDevice(0);  // the primary context is current again
  }

 private:
  CUcontext context_ = nullptr;
};

TEST(Pools, TheCurrentPoolIsTheDefaultUntilItIsSet) {
  covers("SOMA-07");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto sets_the_current_pool = [](auto api) {
    EXPECT_EQ(current_pool(), default_pool());
    expect_from(default_pool(), allocated(api, kBytes));
    const Stream stream;  // which allocates from one pool and then from another
    expect_from(default_pool(), allocated(api, kBytes, stream));

    const Pool own;
    for (int time = 0; time < 2; ++time) {  // then it is current already
      EXPECT_SUCCESS(api.device_set_mem_pool(0, own));
      EXPECT_EQ(current_pool(), own) << "set " << time + 1 << " times";
    }
    EXPECT_NE(default_pool(), own);
    expect_both_allocate_from(own);
    expect_from_and_free(own, allocated(api, kBytes, cudaStreamPerThread));
    expect_from_and_free(own, allocated(api, kBytes, stream));
    for (const cudaStream_t preset :
         {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
      AsyncBuffer freed_there = allocated(api, kBytes, preset);
      expect_free_async(api, freed_there, preset);
    }
    CALL(in_a_thread([&] {
      EXPECT_EQ(current_pool(), own) << "in another thread";
      expect_both_allocate_from(own);
      EXPECT_SUCCESS(api.device_set_mem_pool(0, default_pool()));
      expect_both_allocate_from(default_pool());
      EXPECT_SUCCESS(api.device_set_mem_pool(0, own));
      return cudaSuccess;
    }));
    EXPECT_EQ(current_pool(), own) << "after the end of the thread that set it";
    expect_both_allocate_from(own);
    {
      const SecondContext second;
      EXPECT_EQ(current_pool(), own) << "in another context of this GPU";
      expect_from_and_free(own, allocated(api, kBytes));
    }

    EXPECT_SUCCESS(api.device_set_mem_pool(0, default_pool()));
    EXPECT_EQ(current_pool(), default_pool());
    expect_from(default_pool(), allocated(api, kBytes));
    EXPECT_EQ(attribute(own, cudaMemPoolAttrUsedMemCurrent), 0u)
        << "all that was allocated is freed";
  };
  scenario.role("allocator",
                [=](Role&) { by_both_apis(sets_the_current_pool); });
  scenario.run(20s);
}

TEST(Pools, EachGpuHasACurrentPoolOfItsOwn) {
  covers("SOMA-07");
  needs(gpus(2), pools);
  Scenario scenario;
  const auto sets_both_pools = [](auto api) {
    CALL(cudaSetDevice(0));
    const Pool on_0, on_1(pool_properties(cudaMemHandleTypeNone, 0, 1));
    EXPECT_SUCCESS(api.device_set_mem_pool(0, on_0));
    EXPECT_EQ(current_pool(1), default_pool(1));
    EXPECT_SUCCESS(api.device_set_mem_pool(1, on_1));
    EXPECT_EQ(current_pool(0), on_0);
    EXPECT_EQ(current_pool(1), on_1);
    expect_from(on_0, allocated(api, kBytes));
    CALL(cudaSetDevice(1));
    expect_from(on_1, allocated(api, kBytes));
    const Stream of_1;
    CALL(cudaSetDevice(0));
    const AsyncBuffer in_stream = allocated(api, kBytes, of_1);
    CALL(cudaStreamSynchronize(of_1));
    EXPECT_EQ(pool_of(in_stream), on_1) << "while GPU 0 is current";
    EXPECT_SUCCESS(api.device_set_mem_pool(0, default_pool(0)));
    EXPECT_EQ(current_pool(1), on_1);
    EXPECT_SUCCESS(api.device_set_mem_pool(1, default_pool(1)));
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(sets_both_pools); });
  scenario.run(20s);
}

TEST(Pools, ANamedPoolServesOneCall) {
  covers("SOMA-08");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role& me) {
    const Pool own;
    expect_from(own, AsyncBuffer(own, kBytes));
    EXPECT_EQ(current_pool(), default_pool());

    AsyncBuffer overload(kBytes);
    overload.free();
    EXPECT_SUCCESS(cudaMallocAsync(&overload.data, kBytes, own, nullptr));
    expect_from(own, overload);
    expect_from(own, allocated(DriverApi{}, own, kBytes));
    EXPECT_EQ(current_pool(), default_pool());
    expect_from(default_pool(), AsyncBuffer(kBytes));

    // The same is true if another pool was made current.
    by_both_apis([&](auto api) {
      const Pool first, second;
      const auto expect_own = [&](cudaMemPool_t current) {
        for (const cudaStream_t stream :
             {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
          expect_from(own, AsyncBuffer(own, kBytes, stream));
          expect_from(own, allocated(DriverApi{}, own, kBytes, stream));
        }
        EXPECT_EQ(current_pool(), current);
      };
      EXPECT_SUCCESS(api.device_set_mem_pool(0, first));
      expect_own(first);
      if (has_pools_of_locations(me)) {
        EXPECT_SUCCESS(api.mem_set_mem_pool({cudaMemLocationTypeDevice, 0},
                                            cudaMemAllocationTypePinned,
                                            second));
        expect_own(second);
      }
      EXPECT_SUCCESS(api.device_set_mem_pool(0, default_pool()));
    });
  });
  scenario.run(20s);
}

// Judges that memory of GPU 1 that is freed in a held stream of GPU 0 goes to
// no other stream before.
static void expect_freed_in_order(cudaMemPool_t on_1) {
  set_attribute(on_1, cudaMemPoolReuseAllowInternalDependencies, 0);
  set_attribute(on_1, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  const uint64_t used = attribute(on_1, cudaMemPoolAttrUsedMemCurrent);
  const Stream stream, other;
  const DeviceBuffer poison(kBytes), copy(kBytes);
  CALL(cudaSetDevice(1));
  AsyncBuffer first(on_1, kBytes);
  first.fill(pattern("first"));
  CALL(cudaSetDevice(0));

  Latch latch;
  latch.hold(stream);
  CALL(cudaMemcpyPeerAsync(copy.data, 0, first.data, 1, kBytes, stream));
  first.free_async(stream);
  const AsyncBuffer next(on_1, kBytes, other);
  CALL(cudaMemcpyPeerAsync(next.data, 1, poison.data, 0, kBytes, other));
  // Two streams need not run at the same time. If they do, the work of the
  // other stream is done now.
  (void)is_held(other);
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(passes(other));
  EXPECT_TRUE(kernel_reads(copy, pattern("first")));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_EQ(attribute(on_1, cudaMemPoolAttrUsedMemCurrent), used + next.bytes())
      << "what was freed is not in use";
}

TEST(Pools, ANamedPoolMayBeOfAnotherDevice) {
  covers("SOMA-08");
  needs(gpus(2), pools);
  Scenario scenario;
  scenario.role("allocator", [](Role&) {
    const Pool on_1(pool_properties(cudaMemHandleTypeNone, 0, 1));
    const Stream of_0;
    const AsyncBuffer buffer(on_1, kBytes, of_0);
    const AsyncBuffer by_driver = allocated(DriverApi{}, on_1, kBytes, of_0);
    CALL(cudaStreamSynchronize(of_0));
    EXPECT_EQ(attribute(on_1, cudaMemPoolAttrUsedMemCurrent), 2 * kBytes)
        << "while GPU 0 is current";
    EXPECT_EQ(current_pool(0), default_pool(0));
    EXPECT_EQ(current_pool(1), default_pool(1));
    expect_freed_in_order(on_1);
    CALL(cudaSetDevice(1));
    expect_from(on_1, buffer);
    expect_from(on_1, by_driver);
  });
  scenario.run(20s);
}

// Judges that a pool that is not local to GPU 0 does not become its current
// pool. No sentence names a code; but a call that says that it has set the pool
// is wrong in either case.
template <class Api>
static void expect_never_current(Role& me, cudaMemPool_t pool, Api api) {
  const auto code = NOTED(api.device_set_mem_pool(0, pool));
  cudaGetLastError();
  me.observe("a pool that is not local: " + name_of(code));
  EXPECT_NE(code, decltype(code){}) << "by the " << api.kName;
  EXPECT_EQ(current_pool(0), default_pool(0)) << "by the " << api.kName;
}

TEST(Pools, ThePoolOfAnotherDeviceIsNeverCurrent) {
  covers("SOMA-09");
  needs(gpus(2), pools);
  Scenario scenario;
  scenario.role("allocator", [](Role& me) {
    const Pool on_1(pool_properties(cudaMemHandleTypeNone, 0, 1));
    expect_never_current(me, on_1, RuntimeApi{});
    expect_never_current(me, on_1, DriverApi{});
    EXPECT_TRUE(context_is_usable());
    expect_from(default_pool(0), AsyncBuffer(kBytes));

    // The pool may be current on its own device, and the other device keeps its
    // own pool.
    EXPECT_SUCCESS(cudaDeviceSetMemPool(1, on_1));
    EXPECT_EQ(current_pool(1), on_1);
    EXPECT_EQ(current_pool(0), default_pool(0));
    expect_from(default_pool(0), AsyncBuffer(kBytes));
    CALL(cudaSetDevice(1));
    expect_from(on_1, AsyncBuffer(kBytes));
  });
  scenario.run(20s);
}

// A pool on the host is not local to a GPU.
TEST(Pools, APoolOfTheHostIsNeverCurrentOnAGpu) {
  covers("SOMA-09");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto sets_the_host_pool = [](Role& me, auto api) {
    if (attribute(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED) != 1)
      return me.not_applicable("the host has no pools");
    constexpr cudaMemLocation here{cudaMemLocationTypeDevice, 0};
    const Pool host = created(api, on_the_host());
    const AsyncBuffer older = allocated(api, kBytes);
    older.fill(pattern("older"));
    expect_never_current(me, host, RuntimeApi{});
    expect_never_current(me, host, DriverApi{});
    if (has_pools_of_locations(me)) {
      const auto code =
          NOTED(api.mem_set_mem_pool(here, cudaMemAllocationTypePinned, host));
      cudaGetLastError();
      EXPECT_NE(code, decltype(code){}) << "by its location";
      EXPECT_EQ(current_pool(), default_pool());
    }
    EXPECT_TRUE(context_is_usable());
    expect_from(default_pool(), allocated(api, kBytes));
    EXPECT_TRUE(kernel_reads(older, pattern("older")));
  };
  scenario.role("owner", [=](Role& me) {
    by_both_apis([&](auto api) { sets_the_host_pool(me, api); });
  });
  scenario.run(20s);
}

template <class Api>
static void destroys_the_current(Role& me, Api api) {
  const Pool before;
  Pool earlier, own;
  CALL(cudaDeviceSetMemPool(0, earlier));
  CALL(cudaDeviceSetMemPool(0, before));
  CALL(cudaDeviceSetMemPool(0, own));
  AsyncBuffer older(kBytes);
  older.fill(pattern("older"));
  Pool().destroy();
  EXPECT_EQ(current_pool(), own) << "another pool was destroyed";
  EXPECT_SUCCESS(api.mem_pool_destroy(earlier.release()));
  EXPECT_EQ(current_pool(), own) << "a pool that was current was destroyed";
  EXPECT_SUCCESS(api.mem_pool_destroy(own.release()));
  EXPECT_EQ(current_pool(), default_pool());
  const Pool after;
  EXPECT_EQ(current_pool(), default_pool()) << "another pool was created";
  expect_from(default_pool(), AsyncBuffer(kBytes));
  EXPECT_READS(older, pattern("older"));

  if (!has_pools_of_locations(me)) return;
  Pool by_place;
  EXPECT_SUCCESS(api.mem_set_mem_pool({cudaMemLocationTypeDevice, 0},
                                      cudaMemAllocationTypePinned, by_place));
  EXPECT_EQ(current_pool(), by_place);
  EXPECT_SUCCESS(api.mem_pool_destroy(by_place.release()));
  EXPECT_EQ(current_pool(), default_pool()) << "it was set by its location";
  expect_from(default_pool(), AsyncBuffer(kBytes));
}

// Another thread destroys the current pool while a free is pending. A stream
// that has allocated from this pool then allocates from the default pool.
template <class Api>
static void destroys_the_current_before_a_free(Api api) {
  const Stream stream;
  Pool own;
  CALL(api.device_set_mem_pool(0, own));
  AsyncBuffer leaving = allocated(api, kBytes, stream);
  leaving.fill(pattern("leaving"), stream);
  Latch latch;
  latch.hold(stream);
  leaving.free_async(stream);
  CALL(in_a_thread([&] {
    EXPECT_SUCCESS(api.mem_pool_destroy(own.release()));
    return cudaSuccess;
  }));
  EXPECT_EQ(current_pool(), default_pool()) << "a free is pending";
  const AsyncBuffer next = allocated(api, kBytes, stream);
  latch.release();
  EXPECT_TRUE(passes(stream));
  expect_from(default_pool(), next);
}

TEST(Pools, DestroyingTheCurrentPoolMakesTheDefaultCurrent) {
  covers("SOMA-10");
  needs(gpus(1), second_gpu, pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("by runtime", [](Role& me) {
    destroys_the_current(me, RuntimeApi{});
    destroys_the_current_before_a_free(RuntimeApi{});
  });
  scenario.role("by driver", [](Role& me) {
    destroys_the_current(me, DriverApi{});
    destroys_the_current_before_a_free(DriverApi{});
  });
  scenario.role("on another GPU", [](Role&) {
    const Pool here;
    CALL(cudaDeviceSetMemPool(0, here));
    for (int device = 1; device < device_count(); ++device) {
      by_both_apis([&](auto api) {
        Pool far(pool_properties(cudaMemHandleTypeNone, 0, device));
        CALL(cudaDeviceSetMemPool(device, far));
        EXPECT_REFUSED(api.mem_pool_destroy(default_pool(device)),
                       api.kInvalidValue);
        EXPECT_EQ(current_pool(device), far) << device;
        EXPECT_SUCCESS(api.mem_pool_destroy(far.release()));
        EXPECT_EQ(current_pool(device), default_pool(device)) << device;
        EXPECT_EQ(current_pool(0), here);
      });
    }
  });
  scenario.role("destroyer of the default", [](Role&) {
    const AsyncBuffer older(kBytes);
    older.fill(pattern("older"));
    by_both_apis([](auto api) {
      EXPECT_REFUSED(api.mem_pool_destroy(default_pool()), api.kInvalidValue);
      EXPECT_SUCCESS(api.mem_pool_destroy(created(api).release()));
      const Pool own = created(api);
      CALL(api.device_set_mem_pool(0, own));
      EXPECT_REFUSED(api.mem_pool_destroy(default_pool()), api.kInvalidValue)
          << "while another pool is current";
      EXPECT_EQ(current_pool(), own);
      CALL(api.device_set_mem_pool(0, default_pool()));
    });
    EXPECT_TRUE(context_is_usable());
    expect_from(default_pool(), AsyncBuffer(kBytes));
    EXPECT_TRUE(kernel_reads(older, pattern("older")));
  });
  scenario.run(20s);
}

TEST(Pools, APoolIsOfPinnedMemoryInAKnownPlace) {
  covers("SOMA-11");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("creator", [](Role& me) {
    const auto tries = [&](const char* what, const cudaMemPoolProps& wanted) {
      SCOPED_TRACE(what);
      by_both_apis([&](auto api) {
        Sentinel<cudaMemPool_t> pool;
        const auto code = NOTED(api.mem_pool_create(pool.out(), wanted));
        cudaGetLastError();
        me.observe(what + by_the(api) + ": " + name_of(code));
        if (code == decltype(code){})
          EXPECT_SUCCESS(api.mem_pool_destroy(pool.result()));
        created(api);  // a right creation works after this
      });
    };
    cudaMemPoolProps wanted = pool_properties();
    wanted.allocType = cudaMemAllocationTypeInvalid;
    tries("allocation type 0", wanted);
    wanted.allocType = cudaMemAllocationTypeMax;
    tries("allocation type INT_MAX", wanted);

    wanted = pool_properties();
    wanted.location.type = cudaMemLocationTypeInvalid;
    tries("location type 0", wanted);
    wanted.location = {cudaMemLocationTypeDevice, device_count()};
    tries("one device too many", wanted);
    wanted.location = {cudaMemLocationTypeDevice, -1};
    tries("device -1", wanted);

    EXPECT_TRUE(context_is_usable());
    by_both_apis([](auto api) {
      std::vector<std::unique_ptr<Pool>> many;
      for (int i = 0; i < kPools; ++i)
        many.push_back(std::make_unique<Pool>(created(api).release()));
      const Pool& good = *many.back();
      expect_from(good, AsyncBuffer(good, kBytes));
    });
  });
  scenario.run(20s);
}

TEST(Pools, ThePoolsOwnDeviceCannotBeShutOut) {
  covers("SOMA-12");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto takes_access = [](Role& me, auto api) {
    const Pool pool = created(api);
    const AsyncBuffer older(pool, kBytes);
    older.fill(pattern("older"));
    EXPECT_EQ(access_of(0, pool), cudaMemAccessFlagsProtReadWrite);
    set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);

    const auto code =
        api.mem_pool_set_access(pool, 0, cudaMemAccessFlagsProtNone);
    cudaGetLastError();
    me.observe("taking access from the pool's own device: " + name_of(code));
    EXPECT_EQ(access_of(0, pool), cudaMemAccessFlagsProtReadWrite);
    EXPECT_READS(older, pattern("older"));
    expect_from(pool, AsyncBuffer(pool, kBytes));

    // Access that the device has already may be given again.
    EXPECT_SUCCESS(
        api.mem_pool_set_access(pool, 0, cudaMemAccessFlagsProtReadWrite));
    EXPECT_EQ(access_of(0, pool), cudaMemAccessFlagsProtReadWrite);
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), UINT64_MAX)
        << "access is no threshold";
  };
  scenario.role("owner", [=](Role& me) {
    by_both_apis([&](auto api) { takes_access(me, api); });
  });
  scenario.run(20s);
}

// Judges that GPU 0 gets access to a pool of GPU 1, and that GPU 1 cannot lose
// its access.
static void expect_access_to_second_gpu(cudaMemPool_t on_1) {
  EXPECT_SUCCESS(give_access(0, on_1));
  EXPECT_EQ(access_of(0, on_1), cudaMemAccessFlagsProtReadWrite);
  // SOMA-12 notes the code.
  give_access(1, on_1, cudaMemAccessFlagsProtNone);
  cudaGetLastError();
  EXPECT_EQ(access_of(1, on_1), cudaMemAccessFlagsProtReadWrite);
  CALL(cudaSetDevice(1));
  const AsyncBuffer there(on_1, kBytes);
  there.fill(pattern("on GPU 1"));
  CALL(cudaSetDevice(0));
  EXPECT_READS(there, pattern("on GPU 1"));
}

TEST(Pools, PeerAccessOpensNoPool) {
  covers("SOMA-13");
  needs(gpus(2), pools, peer_access);
  Scenario scenario;
  scenario.role("owner", [](Role&) {
    const Pool other, pool(shareable());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("on GPU 0"));
    CALL(cudaSetDevice(1));
    CALL(cudaDeviceEnablePeerAccess(0, 0));
    EXPECT_EQ(access_of(1, pool), cudaMemAccessFlagsProtNone);
    EXPECT_EQ(access_of(1, default_pool(0)), cudaMemAccessFlagsProtNone);

    EXPECT_SUCCESS(give_access(1, pool));
    EXPECT_EQ(access_of(1, pool), cudaMemAccessFlagsProtReadWrite);
    EXPECT_EQ(access_of(1, other), cudaMemAccessFlagsProtNone);
    EXPECT_EQ(access_of(1, default_pool(0)), cudaMemAccessFlagsProtNone);
    const Pool newer;
    EXPECT_EQ(access_of(1, newer), cudaMemAccessFlagsProtNone);
    for (const cudaMemPool_t current : {cudaMemPool_t{pool}, default_pool(0)})
      CALL(cudaDeviceSetMemPool(0, current));
    EXPECT_EQ(access_of(1, pool), cudaMemAccessFlagsProtReadWrite);
    EXPECT_TRUE(pool.exported());
    EXPECT_EQ(access_of(1, pool), cudaMemAccessFlagsProtReadWrite)
        << "exported";
    CALL(cudaDeviceDisablePeerAccess(0));
    EXPECT_EQ(access_of(1, pool), cudaMemAccessFlagsProtReadWrite);
    EXPECT_TRUE(kernel_reads(buffer, pattern("on GPU 0")));

    // The same in the other direction.
    const Pool on_1(pool_properties(cudaMemHandleTypeNone, 0, 1));
    CALL(cudaSetDevice(0));
    EXPECT_SUCCESS(cudaDeviceEnablePeerAccess(1, 0));
    EXPECT_EQ(access_of(0, on_1), cudaMemAccessFlagsProtNone);
    EXPECT_SUCCESS(cudaDeviceDisablePeerAccess(1));
    expect_access_to_second_gpu(on_1);
  });
  // The query above says that there is no access; here a kernel must fault.
  for (const char* pool_of_it : {"own pool", "default pool"})
    scenario.role(std::string("trespasser in its ") + pool_of_it, [=](Role&) {
      const Pool own;
      const bool is_own = std::strcmp(pool_of_it, "own pool") == 0;
      const AsyncBuffer buffer(is_own ? own : default_pool(0), kBytes);
      buffer.fill(pattern("on GPU 0"));
      CALL(cudaSetDevice(1));
      CALL(cudaDeviceEnablePeerAccess(0, 0));
      EXPECT_TRUE(context_is_usable());
      EXPECT_TRUE(kernel_faults(buffer));
    });
  scenario.run(20s);
}

// Judges that GPU 1 reads new memory of this pool of GPU 0.
static void expect_used_by_second_gpu(cudaMemPool_t pool) {
  const AsyncBuffer buffer(pool, kBytes);
  buffer.fill(pattern("newest"));
  CALL(cudaSetDevice(1));
  EXPECT_READS(buffer, pattern("newest"));
  CALL(cudaSetDevice(0));
}

// Judges lists that give access to GPU 1 and take it away. The other entry of
// each list lets the pool's own GPU read and write; it is the first entry or
// the last.
static void gives_access_by_a_list(cudaMemPool_t pool) {
  constexpr auto kAll = cudaMemAccessFlagsProtReadWrite;
  for (const int first : {1, 0})
    for (const auto flags : {kAll, cudaMemAccessFlagsProtNone}) {
      SCOPED_TRACE("GPU " + std::to_string(first) + " is the first, flags " +
                   std::to_string(flags));
      cudaMemAccessDesc list[2]{};
      CUmemAccessDesc same[2]{};
      for (const int entry : {0, 1}) {
        const int gpu = entry == 0 ? first : 1 - first;
        const auto wanted = gpu == 1 ? flags : kAll;
        list[entry] = {{cudaMemLocationTypeDevice, gpu}, wanted};
        same[entry] = {{CU_MEM_LOCATION_TYPE_DEVICE, gpu},
                       static_cast<CUmemAccess_flags>(wanted)};
      }
      // Before each list, the access of GPU 1 is the opposite.
      const auto before = flags == kAll ? cudaMemAccessFlagsProtNone : kAll;
      if (access_of(1, pool) != before) CALL(give_access(1, pool, before));
      EXPECT_SUCCESS(DRIVER(cuMemPoolSetAccess)(pool, same, 2));
      EXPECT_EQ(access_of(1, pool), flags);
      if (access_of(1, pool) != before) CALL(give_access(1, pool, before));
      EXPECT_SUCCESS(cudaMemPoolSetAccess(pool, list, 2));
      EXPECT_EQ(access_of(1, pool), flags);
      EXPECT_EQ(access_of(0, pool), kAll) << "the pool's own GPU";
    }
}

// Access that was taken away stays away for what is allocated afterwards.
static void allocates_without_access(Role&) {
  const Pool pool;
  const AsyncBuffer older(pool, kBytes);
  CALL(give_access(1, pool));
  CALL(give_access(1, pool, cudaMemAccessFlagsProtNone));
  const AsyncBuffer later(pool, kBytes);
  later.fill(pattern("on GPU 0"));
  EXPECT_EQ(access_of(1, pool), cudaMemAccessFlagsProtNone);
  CALL(cudaSetDevice(1));
  EXPECT_TRUE(context_is_usable());
  EXPECT_TRUE(kernel_faults(later)) << "allocated after access was taken";
}

TEST(Pools, AccessIsForOlderAndNewerAllocations) {
  covers("SOMA-14");
  needs(gpus(2), pools, peer_access);
  Scenario scenario;
  const auto gives_access = [](auto api) {
    constexpr auto kNone = cudaMemAccessFlagsProtNone;
    constexpr auto kAll = cudaMemAccessFlagsProtReadWrite;
    CALL(cudaSetDevice(0));
    const Pool other, pool;
    const AsyncBuffer older(pool, kBytes);
    older.fill(pattern("older"));
    EXPECT_EQ(access_of(1, pool), kNone);
    EXPECT_SUCCESS(api.mem_pool_set_access(pool, 1, kAll));
    EXPECT_EQ(access_of(1, pool), kAll);
    EXPECT_EQ(access_of(1, other), kNone);
    gives_access_by_a_list(other);
    EXPECT_SUCCESS(api.mem_pool_set_access(other, 1, kAll));
    EXPECT_EQ(access_of(1, other), kAll);
    AsyncBuffer(other, kBytes).free();
    EXPECT_EQ(access_of(1, other), kAll) << "the pool is empty again";
    EXPECT_SUCCESS(cudaMemPoolTrimTo(other, 0));
    EXPECT_EQ(access_of(1, other), kAll) << "the pool was trimmed";
    expect_used_by_second_gpu(other);
    EXPECT_SUCCESS(api.mem_pool_set_access(other, 1, kNone));
    EXPECT_EQ(access_of(1, other), kNone);
    EXPECT_EQ(access_of(1, pool), kAll);
    for (const auto flags : {kAll, kNone}) {
      EXPECT_SUCCESS(api.mem_pool_set_access(default_pool(0), 1, flags));
      EXPECT_EQ(access_of(1, default_pool(0)), flags) << "a default pool";
      if (flags == kAll) expect_used_by_second_gpu(default_pool(0));
    }
    const AsyncBuffer newer(pool, kBytes);
    newer.fill(pattern("newer"));

    CALL(cudaSetDevice(1));
    EXPECT_READS(older, pattern("older"));
    EXPECT_READS(newer, pattern("newer"));
    older.fill(pattern("GPU 1"));
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(kernel_reads(older, pattern("GPU 1")));
  };
  scenario.role("owner", [=](Role&) { by_both_apis(gives_access); });
  scenario.role("one that takes access away", [](Role&) {
    const Pool pool;
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("on GPU 0"));
    CALL(give_access(1, pool));
    CALL(cudaSetDevice(1));
    EXPECT_TRUE(kernel_reads(buffer, pattern("on GPU 0")));
    CALL(give_access(1, pool, cudaMemAccessFlagsProtNone));
    EXPECT_TRUE(kernel_faults(buffer)) << "access was taken away";
  });
  scenario.role("one that allocates later", allocates_without_access);
  scenario.run(20s);
}

// The refusal may come later, at the first allocation.
TEST(Pools, NoAccessForADeviceThatIsNoPeer) {
  covers("SOMA-15");
  needs(gpus(1), second_gpu, pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("owner", [](Role& me) {
    const int devices = device_count();
    std::vector<int> strangers{devices};
    for (int device = 1; device < devices; ++device) {
      int reaches = 0;
      CALL(cudaDeviceCanAccessPeer(&reaches, device, 0));
      if (reaches == 0) strangers.push_back(device);
    }
    const auto gives_access = [&](int stranger, auto api) {
      SCOPED_TRACE("device " + std::to_string(stranger));
      const Pool pool;
      const Outcome at_once =
          outcome_of(api.mem_pool_set_access(pool, stranger,
                                             cudaMemAccessFlagsProtReadWrite),
                     std::vector{api.kInvalidDevice, api.kInvalidValue});
      me.observe("access for device " + std::to_string(stranger) + " of " +
                 std::to_string(devices) + ": " + at_once.code);
      EXPECT_NE(at_once.kind, Outcome::kOtherRefusal) << at_once.code;
      if (at_once.kind != Outcome::kWrongSuccess) {
        EXPECT_SUCCESS(
            api.mem_pool_set_access(pool, 0, cudaMemAccessFlagsProtReadWrite));
        expect_from(pool, AsyncBuffer(pool, kBytes));
        return;
      }
      Sentinel<void*> memory;
      EXPECT_REFUSED(
          cudaMallocFromPoolAsync(memory.out(), kBytes, pool, nullptr),
          cudaErrorInvalidValue, cudaErrorNotSupported,
          cudaErrorMemoryAllocation);
    };
    for (const int stranger : strangers)
      by_both_apis([&](auto api) { gives_access(stranger, api); });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// Sets the current pool of the host, where the host has pools.
template <class Api>
static void sets_the_pool_of_the_host(Api api) {
  constexpr auto kPinned = cudaMemAllocationTypePinned;
  constexpr cudaMemLocation host{cudaMemLocationTypeHost, 0};
  if (attribute(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED) != 1) return;
  const Pool own = created(api, on_the_host()), of_gpu;
  CALL(api.device_set_mem_pool(0, of_gpu));
  Sentinel<cudaMemPool_t> preset;
  EXPECT_SUCCESS(api.mem_get_default_mem_pool(preset.out(), host, kPinned));
  for (const cudaMemPool_t next : {cudaMemPool_t{own}, preset.result()}) {
    EXPECT_SUCCESS(api.mem_set_mem_pool(host, kPinned, next));
    Sentinel<cudaMemPool_t> current, still;
    EXPECT_SUCCESS(api.mem_get_mem_pool(current.out(), host, kPinned));
    EXPECT_EQ(current.result(), next);
    EXPECT_SUCCESS(api.mem_get_default_mem_pool(still.out(), host, kPinned));
    EXPECT_EQ(still.result(), preset.value) << "the default pool of the host";
    EXPECT_EQ(current_pool(), of_gpu) << "that of the GPU";
  }
  CALL(api.device_set_mem_pool(0, default_pool()));
}

// Queries and sets the pool for a place together with a kind of memory. Also
// tries wrong combinations.
template <class Api>
static void asks_for_pools_by_place(Role& me, Api api) {
  constexpr auto kPinned = cudaMemAllocationTypePinned;
  constexpr auto kManaged = cudaMemAllocationTypeManaged;
  constexpr cudaMemLocation here{cudaMemLocationTypeDevice, 0};
  const auto default_here = [&] {
    Sentinel<cudaMemPool_t> pool;
    EXPECT_SUCCESS(api.mem_get_default_mem_pool(pool.out(), here, kPinned));
    return pool.result();
  };
  const auto current_here = [&] {
    Sentinel<cudaMemPool_t> pool;
    EXPECT_SUCCESS(api.mem_get_mem_pool(pool.out(), here, kPinned));
    return pool.result();
  };
  EXPECT_EQ(default_here(), default_pool());
  EXPECT_EQ(current_here(), current_pool());
  const Pool own, later;
  for (const cudaMemPool_t next : {cudaMemPool_t{own}, cudaMemPool_t{later}}) {
    EXPECT_SUCCESS(api.mem_set_mem_pool(here, kPinned, next));
    EXPECT_EQ(current_pool(), next);
    EXPECT_EQ(current_here(), next);
    EXPECT_EQ(default_here(), default_pool());
    expect_both_allocate_from(next);
  }
  EXPECT_SUCCESS(api.device_set_mem_pool(0, own));
  EXPECT_EQ(current_here(), own);
  EXPECT_SUCCESS(api.device_set_mem_pool(0, default_pool()));
  EXPECT_EQ(current_here(), default_pool());

  const auto expect_no_place = [&](const char* what, cudaMemLocation location,
                                   cudaMemAllocationType type) {
    SCOPED_TRACE(what);
    Sentinel<cudaMemPool_t> none;
    EXPECT_REFUSED(api.mem_get_default_mem_pool(none.out(), location, type),
                   api.kInvalidValue, api.kNotSupported);
    EXPECT_REFUSED(api.mem_get_mem_pool(none.out(), location, type),
                   api.kInvalidValue);
  };
  expect_no_place("pinned memory nowhere", {cudaMemLocationTypeNone, 0},
                  kPinned);
  expect_no_place("the current NUMA node",
                  {cudaMemLocationTypeHostNumaCurrent, 0}, kPinned);
  expect_no_place("no kind of memory", here, cudaMemAllocationTypeInvalid);

  const auto expect_no_match = [&](const char* what, cudaMemLocation location,
                                   cudaMemAllocationType type) {
    SCOPED_TRACE(what);
    EXPECT_REFUSED(api.mem_set_mem_pool(location, type, own),
                   api.kInvalidValue);
  };
  expect_no_match("device memory for the host", {cudaMemLocationTypeHost, 0},
                  kPinned);
  expect_no_match("pinned memory for managed", here, kManaged);
  expect_no_match("one device too many",
                  {cudaMemLocationTypeDevice, device_count()}, kPinned);
  EXPECT_EQ(current_pool(), default_pool());

  const auto observe_place = [&](const char* what, cudaMemLocation location,
                                 cudaMemAllocationType type) {
    Sentinel<cudaMemPool_t> pool;
    const auto code = api.mem_get_default_mem_pool(pool.out(), location, type);
    cudaGetLastError();
    me.observe(std::string("default pool of ") + what + ": " + name_of(code));
    if (code == decltype(code){})
      EXPECT_NE(pool.result(), default_pool()) << "that of the GPU";
  };
  observe_place("pinned host memory", {cudaMemLocationTypeHost, 0}, kPinned);
  observe_place("pinned memory of NUMA node 0",
                {cudaMemLocationTypeHostNuma, 0}, kPinned);
  observe_place("managed memory nowhere", {cudaMemLocationTypeNone, 0},
                kManaged);
  sets_the_pool_of_the_host(api);
  EXPECT_TRUE(context_is_usable());
}

TEST(Pools, APlaceAndAKindOfMemoryNameAPool) {
  covers("SOMA-32");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("asker", [](Role& me) {
    if (!kPoolsOfLocations)
      return me.not_applicable(not_in_this_build("cudaMemGetMemPool", "13.0"));
    by_both_apis([&](auto api) { asks_for_pools_by_place(me, api); });
  });
  scenario.run(20s);
}

TEST(Pools, APlaceNamesThePoolOfItsGpu) {
  covers("SOMA-32");
  needs(gpus(2), pools);
  Scenario scenario;
  const auto asks_for_both_gpus = [](auto api) {
    constexpr auto kPinned = cudaMemAllocationTypePinned;
    const auto place = [](int gpu) {
      return cudaMemLocation{cudaMemLocationTypeDevice, gpu};
    };
    const auto current_at = [&](int gpu) {
      Sentinel<cudaMemPool_t> pool;
      EXPECT_SUCCESS(api.mem_get_mem_pool(pool.out(), place(gpu), kPinned));
      return pool.result();
    };
    const Pool on_0, on_1(pool_properties(cudaMemHandleTypeNone, 0, 1));
    for (const int gpu : {0, 1}) {
      Sentinel<cudaMemPool_t> preset;
      EXPECT_SUCCESS(
          api.mem_get_default_mem_pool(preset.out(), place(gpu), kPinned));
      EXPECT_EQ(preset.result(), default_pool(gpu)) << gpu;
      EXPECT_EQ(current_at(gpu), default_pool(gpu)) << gpu;
    }
    EXPECT_SUCCESS(api.mem_set_mem_pool(place(1), kPinned, on_1));
    // The pool must be of the GPU that is named.
    EXPECT_REFUSED(api.mem_set_mem_pool(place(0), kPinned, on_1),
                   api.kInvalidValue);
    EXPECT_REFUSED(api.mem_set_mem_pool(place(1), kPinned, on_0),
                   api.kInvalidValue);
    EXPECT_EQ(current_at(0), default_pool(0));
    EXPECT_EQ(current_at(1), on_1);
    EXPECT_EQ(current_pool(0), default_pool(0));
    EXPECT_EQ(current_pool(1), on_1);
    EXPECT_TRUE(context_is_usable());
  };
  scenario.role("asker", [=](Role& me) {
    if (!kPoolsOfLocations)
      return me.not_applicable(not_in_this_build("cudaMemGetMemPool", "13.0"));
    by_both_apis(asks_for_both_gpus);
  });
  scenario.run(20s);
}

TEST(Pools, APoolTellsHowItWasMade) {
  covers("SOMA-35");
  needs(gpus(1), second_gpu, pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role& me) {
    constexpr size_t kLargest = 64 << 20;
    const Pool shared(shareable(kLargest)), own, unlimited(shareable(0));
    const int last = device_count() - 1;  // another GPU, if there is one
    const Pool far(pool_properties(cudaMemHandleTypeNone, 0, last));
    const auto expect_on = [](int device, cudaMemPool_t pool) {
      EXPECT_EQ(told<int>(pool, kAllocationType),
                CU_MEM_ALLOCATION_TYPE_PINNED);
      EXPECT_EQ(told<int>(pool, kLocationType), CU_MEM_LOCATION_TYPE_DEVICE);
      EXPECT_EQ(told<int>(pool, kLocationId), device);
    };
    expect_on(0, shared);
    expect_on(0, own);
    expect_on(0, default_pool());
    expect_on(last, far);
    expect_on(last, default_pool(last));
    EXPECT_EQ(told<int>(shared, kExportHandleTypes),
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT_EQ(told<int>(own, kExportHandleTypes), CU_MEM_HANDLE_TYPE_NONE);
    EXPECT_EQ(told<int>(default_pool(), kExportHandleTypes),
              CU_MEM_HANDLE_TYPE_NONE);
    const int64_t largest = told<cuuint64_t>(shared, kMaxPoolSize);
    me.observe("asked for at most " + std::to_string(kLargest) + ", told " +
               std::to_string(largest));
    EXPECT_GE(largest, static_cast<int64_t>(kLargest));
    // 0 means no maximum; a value that depends on the system is right, too.
    me.observe("asked for no maximum, told " +
               std::to_string(told<cuuint64_t>(unlimited, kMaxPoolSize)));
    constexpr size_t kHuge = size_t{5} << 30;  // does not fit in 32 bits
    const Pool huge(shareable(kHuge));
    EXPECT_GE(told<cuuint64_t>(huge, kMaxPoolSize), int64_t{kHuge});
    const Pool odd(shareable(kBytes + 1));
    EXPECT_GT(told<cuuint64_t>(odd, kMaxPoolSize), int64_t{kBytes});
    if (attribute(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED) == 1) {
      const Pool host(on_the_host());
      EXPECT_EQ(told<int>(host, kLocationType), CU_MEM_LOCATION_TYPE_HOST);
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}
