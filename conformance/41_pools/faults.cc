// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// The fault uses two pools: the program's pool for allocations made before
// access was set, and a second pool for later allocations. Only one of the two
// pools has the access.
template <bool older>
int access_of_one_half(Call& call) {
  static Table<cudaMemPool_t, cudaMemPool_t> second;
  const auto make_second = [](cudaMemPool_t pool) {
    cudaMemPool_t made = nullptr;
    const cudaMemPoolProps wanted = own_pools.get(pool);
    if (cudaMemPoolCreate(&made, &wanted) != cudaSuccess) return false;
    second.put(pool, made);
    return true;
  };
  if (call.is("cudaMemPoolGetAccess")) {
    cudaMemPool_t& pool = call.at<cudaMemPool_t>(1);
    if (!older) pool = second.get(pool, pool);
    return call.proceed();
  }
  if (call.is("cudaMemPoolSetAccess")) {
    cudaMemPool_t& pool = call.at<cudaMemPool_t>(0);
    if (!own_pools.has(pool) || (!second.has(pool) && !make_second(pool)))
      return call.proceed();
    if (!older) pool = second.get(pool);
    call.fired();
    return call.proceed();
  }
  if (call.is("cudaMallocFromPoolAsync")) {
    cudaMemPool_t& pool = call.value<cudaMemPool_t>(kPool);
    pool = second.get(pool, pool);
    return call.proceed();
  }
  const auto gone = call.is("cudaMemPoolDestroy")
                        ? second.get(call.at<cudaMemPool_t>(0))
                        : nullptr;
  const int code = call.proceed();
  if (code == kSuccess && gone != nullptr) {
    second.erase(call.at<cudaMemPool_t>(0));
    cudaMemPoolDestroy(gone);
  }
  return code;
}

cudaMemPool_t default_of(int gpu) {
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetDefaultMemPool(&pool, gpu);
  return pool;
}
cudaMemPool_t current_of(int gpu) {
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetMemPool(&pool, gpu);
  return pool;
}
// Is a pool the current one of its GPU?
bool is_current(cudaMemPool_t pool) {
  return gpu_of(pool) >= 0 && current_of(gpu_of(pool)) == pool;
}
// Makes the default pool of a GPU current. Returns false if it was current.
bool reset_current(int gpu) {
  return current_of(gpu) != default_of(gpu) &&
         cudaDeviceSetMemPool(gpu, default_of(gpu)) == cudaSuccess;
}

int from_default_pool(Call& call) {
  if (current_pool() != default_pool()) call.fired();
  return cudaMallocFromPoolAsync(call.at<void**>(0), call.at<size_t>(1),
                                 default_pool(), call.at<cudaStream_t>(2));
}

bool names_device(const cudaMemLocation* place, int type) {
  return place->type == cudaMemLocationTypeDevice &&
         type == cudaMemAllocationTypePinned;
}

int pool_of_place_apart(Call& call) {
  static Table<int, cudaMemPool_t> pools;
  if (call.is("cudaMemPoolDestroy")) {
    for (const auto& [gpu, pool] : pools.all())
      if (pool == call.at<cudaMemPool_t>(0)) pools.erase(gpu);
    return call.proceed();
  }
  if (call.is("cudaMemSetMemPool")) {
    const auto* const place = call.at<const cudaMemLocation*>(0);
    if (!names_device(place, call.at<int>(1))) return call.proceed();
    cudaMemPool_t before = nullptr;
    DRIVER_CALL(cuDeviceGetMemPool)(&before, place->id);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    cudaDeviceSetMemPool(place->id, before);
    pools.put(place->id, call.at<cudaMemPool_t>(2));
    call.fired();
    return code;
  }
  const auto* const place = call.at<const cudaMemLocation*>(1);
  const int code = call.proceed();
  if (code == kSuccess && names_device(place, call.at<int>(2)) &&
      pools.has(place->id))
    *call.at<cudaMemPool_t*>(0) = pools.get(place->id);
  return code;
}

bool set_access(cudaMemPool_t pool, int device, unsigned flags) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = static_cast<CUmemAccess_flags>(flags);
  return DRIVER_CALL(cuMemPoolSetAccess)(pool, &access, 1) == CUDA_SUCCESS;
}

// Allocates from the given pool, if that is not the current pool.
int allocated_instead_from(cudaMemPool_t pool, cudaMemPool_t current,
                           Call& call) {
  if (pool == current) return call.proceed();
  call.fired();
  return cudaMallocFromPoolAsync(
      call.at<void**>(0), call.at<size_t>(1), pool,
      is_per_thread(call) ? cudaStreamPerThread : call.at<cudaStream_t>(2));
}

// Memory comes from the pool that cudaDeviceSetMemPool has set last. Other ways
// to set a pool change only what queries name. With `both` this is also true
// for allocations by the driver API, and cuDeviceSetMemPool sets a pool, too.
template <bool both>
int from_pool_of_device_call(Call& call) {
  static auto& pools = *new Table<int, cudaMemPool_t>;  // of each GPU
  if (call.is("cudaMallocAsync") && (both || call.is_runtime())) {
    int gpu = 0;
    cudaMemPool_t current = nullptr;
    DRIVER_CALL(cuStreamGetDevice)(call.at<cudaStream_t>(2), &gpu);
    cudaDeviceGetMemPool(&current, gpu);
    const auto preset = default_of(gpu);
    return allocated_instead_from(pools.get(gpu, preset), current, call);
  }
  if (call.is("cudaMemPoolDestroy"))
    for (const auto& [gpu, pool] : pools.all())
      if (pool == call.at<cudaMemPool_t>(0)) pools.erase(gpu);
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaDeviceSetMemPool") &&
      (both || call.is_runtime()))
    pools.put(call.at<int>(0), call.at<cudaMemPool_t>(1));
  return code;
}

// These are in the headers since CUDA 13.2.
constexpr auto kLocationId = static_cast<cudaMemPoolAttr>(11);

constexpr auto kLocationType = static_cast<cudaMemPoolAttr>(12);

constexpr auto kMaxSize = static_cast<cudaMemPoolAttr>(13);

// The GPU of a stream; the current GPU for the default streams.
int gpu_of_stream(cudaStream_t stream) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    driver<decltype(cuStreamGetCtx_v2)>("cuStreamGetCtx")(stream, &context,
                                                          &green);
  if (context == nullptr ||
      DRIVER_CALL(cuCtxPushCurrent)(context) != CUDA_SUCCESS)
    return current_device();
  const int gpu = current_device();
  DRIVER_CALL(cuCtxPopCurrent)(&context);
  return gpu;
}

// The current pool of the GPU of a stream.
cudaMemPool_t current_pool_of(cudaStream_t stream) {
  return current_of(gpu_of_stream(stream));
}

int count_of_gpus() {
  int gpus = 0;
  DRIVER_CALL(cuDeviceGetCount)(&gpus);
  return gpus;
}

// The access that `gpu` has to a pool.
cudaMemAccessDesc pool_access(cudaMemPool_t pool, int gpu) {
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = gpu;
  cudaMemPoolGetAccess(&access.flags, pool, &access.location);
  return access;
}

// Takes away the access of all GPUs except the GPU of the pool. Returns false
// if no other GPU had access.
bool take_access(cudaMemPool_t pool) {
  bool had = false;
  for (int gpu = 0; gpu < count_of_gpus(); ++gpu) {
    auto access = pool_access(pool, gpu);
    if (gpu == gpu_of(pool) || access.flags == cudaMemAccessFlagsProtNone)
      continue;
    access.flags = cudaMemAccessFlagsProtNone;
    had |= cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess;
  }
  return had;
}

// The access that a call sets first.
const cudaMemAccessDesc& wanted_access(Call& set) {
  return *set.at<const cudaMemAccessDesc*>(1);
}
int wanted_gpu(Call& set) { return wanted_access(set).location.id; }
// The pool and the location about which a query of access asks.
cudaMemPool_t asked_pool(Call& query) { return query.at<cudaMemPool_t>(1); }
const cudaMemLocation& asked_place(Call& query) {
  return *query.at<const cudaMemLocation*>(2);
}
// The answer to a query of access.
cudaMemAccessFlags& told_access(Call& query) {
  return *query.at<cudaMemAccessFlags*>(0);
}
void tell_no_access(Call& query) {
  told_access(query) = cudaMemAccessFlagsProtNone;
}
// Does a query ask about the GPU that the pool's mark names?
bool asks_about_marked_gpu(Call& query) {
  return pool_marks.get(asked_pool(query), -1) == asked_place(query).id;
}

// The answer to a query of a pool.
cudaMemPool_t& told_pool(Call& query) { return *query.at<cudaMemPool_t*>(0); }

bool is_own_gpu(cudaMemPool_t pool, const cudaMemLocation& place) {
  return place.type == cudaMemLocationTypeDevice && place.id == gpu_of(pool);
}

// Gives other GPUs than the current one an access to all pools that the process
// has created there.
template <cudaMemAccessFlags flags>
bool pools_follow_peers(Call&) {
  bool any = false;
  for (const auto& each : own_pools.all())
    any |= gpu_of(each.first) != -1 && gpu_of(each.first) != current_device() &&
           set_access(each.first, current_device(), flags);
  return any;
}

// Has another thread made a pool current?
bool is_set_by_other_thread() {
  return marks.has(0) && marks.get<int>(0) != gettid() &&
         current_pool() != default_pool();
}

// The pool from which a stream has allocated first; the current one if that
// pool is gone.
cudaMemPool_t kept_pool(cudaStream_t stream) {
  const auto first = stream_marks.get<cudaMemPool_t>(stream);
  return own_pools.has(first) || is_default_pool(first)
             ? first
             : current_pool_of(stream);
}

FAULTS {
  fault("pool-types-untold", {"SOMA-35"},
        "a pool does not report its handle types")
      .on_machine("driver-13.5")
      .after({kGetPoolAttribute},
             WHEN(call.at<cudaMemPoolAttr>(1) == kTypesForExport &&
                  own_pools.get(call.at<cudaMemPool_t>(0)).handleTypes !=
                      cudaMemHandleTypeNone),
             [](Call& call) { *call.at<int*>(2) = cudaMemHandleTypeNone; });

  fault("setaccess-future-only", {"SOMA-14"},
        "access to a pool holds only for later allocations")
      .with_gpus(2)
      .on({kSetPoolAccess, kGetPoolAccess, kCreatePool, kDestroyPool,
           kMallocFromPool},
          access_of_one_half<false>);

  fault("setaccess-past-only", {"SOMA-14"},
        "access to a pool holds only for earlier allocations")
      .with_gpus(2)
      .on({kSetPoolAccess, kGetPoolAccess, kCreatePool, kDestroyPool,
           kMallocFromPool},
          access_of_one_half<true>);

  fault("pool-access-never-taken", {"SOMA-14"},
        "access to a pool that was given cannot be taken away")
      .with_gpus(2)
      .on({kSetPoolAccess}, [](Call& call) {
        std::vector<cudaMemAccessDesc> taken;
        for (size_t i = 0; i < call.at<size_t>(2); ++i) {
          const auto& one = (&wanted_access(call))[i];
          const auto now = pool_access(pool_of(call), one.location.id);
          if (one.flags == cudaMemAccessFlagsProtNone && now.flags != one.flags)
            taken.push_back(now);
        }
        const int code = call.proceed();
        if (code == kSuccess && !taken.empty() &&
            cudaMemPoolSetAccess(pool_of(call), taken.data(), taken.size()) ==
                cudaSuccess)
          call.fired();
        return code;
      });

  fault("setpool-of-thread", {"SOMA-07"},
        "a pool is current only in the thread that set it")
      .after({kSetPool}, NOTE(marks.put(0, gettid())))
      .on({"cudaDeviceGetMemPool"}, WHEN(is_set_by_other_thread()),
          [](Call& call) {
            told_pool(call) = default_of(call.at<int>(1));
            return lost(call);
          })
      .on({kMallocAsync}, WHEN(is_set_by_other_thread()), from_default_pool);

  fault("pool-setaccess-first-only", {"SOMA-14"},
        "only the first entry of a list of accesses to a pool is set")
      .with_gpus(2)
      .before({kSetPoolAccess}, WHEN(call.at<size_t>(2) > 1),
              with<size_t>(2, 1));

  fault("destroy-resets-current", {"SOMA-10"},
        "destroying any pool makes the default pool current")
      .on({kDestroyPool},
          WHEN(current_pool() != pool_of(call) &&
               current_pool() != default_pool()),
          [](Call& call) {
            const int code = call.proceed();
            if (code == kSuccess &&
                cudaDeviceSetMemPool(current_device(), default_pool()) ==
                    cudaSuccess)
              call.fired();
            return code;
          });

  fault("per-thread-stream-default-pool", {"SOMA-07"},
        "a thread's default stream allocates from the default pool, not from "
        "the current pool")
      .on({kMallocAsync}, WHEN(in_per_thread_stream(call)), from_default_pool);

  fault("null-stream-default-pool", {"SOMA-07"},
        "the default stream allocates from the default pool, not from the "
        "current pool")
      .on({kMallocAsync}, WHEN(in_null_stream(call)), from_default_pool);

  fault("driver-default-pool", {"SOMA-07"},
        "the driver API allocates from the default pool, not from the current "
        "pool")
      .on({kMallocAsync}, WHEN(!call.is_runtime()), from_default_pool);

  fault("getpool-of-gpu-0", {"SOMA-07", "SOMA-08", "SOMA-09"},
        "every GPU reports the current pool of GPU 0")
      .with_gpus(2)
      .before({"cudaDeviceGetMemPool"},
              WHEN(call.at<int>(1) > 0 && call.at<int>(1) < count_of_gpus()),
              with<int>(1, 0));

  fault("getdefault-of-gpu-0", {"SOMA-07", "SOMA-08"},
        "every GPU reports the default pool of GPU 0")
      .with_gpus(2)
      .before({"cudaDeviceGetDefaultMemPool"},
              WHEN(call.at<int>(1) > 0 && call.at<int>(1) < count_of_gpus()),
              with<int>(1, 0));

  fault("location-pool-apart", {"SOMA-32"},
        "setting the pool of a location that is a device does not set the "
        "device's pool")
      .on({"cudaMemSetMemPool", "cudaMemGetMemPool", kDestroyPool},
          pool_of_place_apart);

  fault("pool-access-ends-when-empty", {"SOMA-14"},
        "GPU 1 loses its access to a pool of GPU 0 when the pool's last memory "
        "is freed")
      .with_gpus(2)
      .on({kFree, kFreeAsync},
          WHEN(gpu_of(blocks.get(call.at<void*>(0)).pool) == 0),
          [](Call& call) {
            const auto pool = blocks.get(call.at<void*>(0)).pool;
            const int code = call.proceed();
            if (code == kSuccess && lent_by(pool) == 0 && take_access(pool))
              call.fired();
            return code;
          });

  fault("location-host-is-device", {"SOMA-32"},
        "the default pool of the host is the default pool of the current GPU")
      .after({"cudaMemGetDefaultMemPool"},
             WHEN(call.at<const cudaMemLocation*>(1)->type !=
                  cudaMemLocationTypeDevice),
             DO(set_to(told_pool(call), default_pool())));

  fault("frompool-ignored", {"SOMA-08"},
        "an allocation from a named pool ignores this pool")
      .before({kMallocFromPool},
              with_made<cudaMemPool_t>(2, DO(current_pool())));

  fault("frompool-sets-current", {"SOMA-08"},
        "an allocation from a named pool makes this pool the current pool")
      .after({kMallocFromPool}, [](Call& call) {
        return call.at<cudaMemPool_t>(2) != current_pool() &&
               DRIVER_CALL(cuDeviceSetMemPool)(0, call.at<cudaMemPool_t>(2)) ==
                   CUDA_SUCCESS;
      });

  fault("setpool-ignored", {"SOMA-07"},
        "setting the current pool changes nothing")
      .on({kSetPool, "cudaMemSetMemPool"}, lost);

  fault("default-follows-current", {"SOMA-07"},
        "the pool that was set is also reported as the default pool")
      .after({"cudaDeviceGetDefaultMemPool"},
             DO(set_to(told_pool(call), current_of(call.at<int>(1)))));

  fault("location-default-follows-current", {"SOMA-32"},
        "the pool that was set is reported as the default pool of its location")
      .after({"cudaMemGetDefaultMemPool"}, [](Call& call) {
        cudaMemPool_t current = told_pool(call);
        DRIVER_CALL(cuMemGetMemPool)
        (&current, call.at<CUmemLocation*>(1), call.at<CUmemAllocationType>(2));
        return set_to(told_pool(call), current);
      });

  fault("destroyed-stays-current", {"SOMA-10"},
        "a pool that was destroyed is still reported as the current pool")
      .after({"cudaDeviceGetMemPool"}, WHEN(marks.has(call.at<int>(1))),
             [](Call& call) {
               told_pool(call) = marks.get<cudaMemPool_t>(call.at<int>(1));
             })
      .before({kDestroyPool}, WHEN(pool_of(call) == current_pool()),
              NOTE(marks.put(current_device(), pool_of(call))))
      .after({kSetPool}, NOTE(marks.erase(call.at<int>(0))));

  fault("destroy-current-refused", {"SOMA-10"},
        "the current pool cannot be destroyed")
      .on({kDestroyPool}, WHEN(call.at<cudaMemPool_t>(0) == current_pool()),
          refuses());

  fault("default-pool-destroyed", {"SOMA-10"},
        "destroying the default pool returns success and does nothing")
      .on_refusal({kDestroyPool},
                  WHEN(call.at<cudaMemPool_t>(0) == default_pool()), accepted);

  fault("foreign-pool-current", {"SOMA-09"},
        "setting a pool of another GPU returns success and does nothing")
      .with_gpus(2)
      .on_refusal({kSetPool}, WHEN(gpu_of(call.at<cudaMemPool_t>(1)) != -1),
                  accepted);

  fault("location-pool-unchecked", {"SOMA-32"},
        "finding or setting a pool returns success although location, "
        "allocation type and pool do not match")
      .on_refusal({"cudaMemGetDefaultMemPool", "cudaMemGetMemPool",
                   "cudaMemSetMemPool"},
                  WHEN(call.code() == cudaErrorInvalidValue), [](Call& call) {
                    if (!call.is("cudaMemSetMemPool"))
                      *call.at<cudaMemPool_t*>(0) = default_pool();
                    return accepted(call);
                  });

  fault("resident-access-revoked", {"SOMA-12"},
        "taking access from a pool's own device returns success, and then the "
        "pool reports no access")
      .on({kSetPoolAccess},
          WHEN(is_own_gpu(pool_of(call), wanted_access(call).location) &&
               !gives_access(call)),
          [](Call& call) {
            call.proceed();
            pool_marks.put(pool_of(call), wanted_gpu(call));
            return accepted(call);
          })
      .after({kSetPoolAccess},
             WHEN(is_own_gpu(pool_of(call), wanted_access(call).location)),
             NOTE(pool_marks.erase(pool_of(call))))
      .after({kGetPoolAccess}, WHEN(asks_about_marked_gpu(call)),
             tell_no_access);

  fault("pool-follows-peer", {"SOMA-13"},
        "enabling peer access also gives the GPU access to the pools that the "
        "process has created on other GPUs")
      .with_gpus(2)
      .after({"cudaDeviceEnablePeerAccess"},
             pools_follow_peers<cudaMemAccessFlagsProtReadWrite>);

  fault("pool-closes-with-peer", {"SOMA-13"},
        "disabling peer access also ends the GPU's access to the pools that "
        "the process has created on other GPUs")
      .with_gpus(2)
      .after({"cudaDeviceDisablePeerAccess"},
             pools_follow_peers<cudaMemAccessFlagsProtNone>);

  fault("pool-access-shared", {"SOMA-13"},
        "setting the access to one pool sets it for all pools that the process "
        "has created")
      .with_gpus(2)
      .after({kSetPoolAccess}, [](Call& call) {
        for (const auto& [pool, wanted] : own_pools.all())
          if (pool != call.at<cudaMemPool_t>(0) &&
              DRIVER_CALL(cuMemPoolSetAccess)(
                  pool, call.at<const CUmemAccessDesc*>(1),
                  call.at<size_t>(2)) == CUDA_SUCCESS)
            call.fired();
        return kSuccess;
      });

  fault("setpool-resets-other-gpus", {"SOMA-07"},
        "setting the pool of one GPU resets the pools of the other GPUs")
      .with_gpus(2)
      .after({kSetPool}, [](Call& call) {
        bool any = false;
        for (int gpu = 0; gpu < count_of_gpus(); ++gpu)
          any |= gpu != call.at<int>(0) && reset_current(gpu);
        return any;
      });

  fault("far-free-stays-used", {"SOMA-08"},
        "memory of a pool that was freed in a stream of another GPU still "
        "counts as used")
      .with_gpus(2)
      .on({kMallocAsync, kMallocFromPool, kFree, kFreeAsync, kCreatePool,
           kDestroyPool, kGetPoolAttribute},
          [](Call& call) -> int {
            if (!call.is("cudaFreeAsync")) return used_with_extra(call);
            const Block block = blocks.get(call.at<void*>(0));
            int gpu = gpu_of(block.pool);
            if (gpu >= 0)
              DRIVER_CALL(cuStreamGetDevice)(call.at<CUstream>(1), &gpu);
            const int code = call.proceed();
            if (code == kSuccess && gpu != gpu_of(block.pool))
              add_extra(block.pool, block.bytes);
            return code;
          });

  fault("destroy-of-earlier-current", {"SOMA-10"},
        "the destroy of a pool that was current earlier makes the default pool "
        "current")
      .after({kSetPool},
             NOTE(pool_marks.put(call.at<cudaMemPool_t>(1), call.at<int>(0))))
      .on({kDestroyPool}, WHEN(pool_marks.has(pool_of(call))), [](Call& call) {
        const int gpu = pool_marks.get<int>(pool_of(call));
        const int code = call.proceed();
        if (code == kSuccess && reset_current(gpu)) call.fired();
        return code;
      });

  fault("host-setpool-resets-gpu", {"SOMA-32"},
        "setting the current pool of the host also makes the default pool of "
        "the GPU current")
      .after({"cudaMemSetMemPool"},
             WHEN(is_on_host(*call.at<const cudaMemLocation*>(0))),
             DO(reset_current(current_device())));

  fault("pool-list-with-own-gpu-ignored", {"SOMA-14"},
        "a list of accesses to a pool is ignored if it also names the pool's "
        "own GPU")
      .with_gpus(2)
      .on({kSetPoolAccess}, WHEN(call.at<size_t>(2) > 1), [](Call& call) {
        const auto* const list = call.at<const cudaMemAccessDesc*>(1);
        for (size_t i = 0; i < call.at<size_t>(2); ++i)
          if (list[i].location.id == gpu_of(pool_of(call))) return lost(call);
        return call.proceed();
      });

  fault("host-setpool-ignored", {"SOMA-32"},
        "setting the current pool of the host changes nothing")
      .on({"cudaMemSetMemPool"}, [](Call& call) {
        const int code = call.proceed();
        cudaMemLocation location = *call.at<const cudaMemLocation*>(0);
        const auto type = call.at<cudaMemAllocationType>(1);
        cudaMemPool_t preset = nullptr;
        if (code != kSuccess || !is_on_host(location) ||
            cudaMemGetDefaultMemPool(&preset, &location, type) != cudaSuccess ||
            preset == call.at<cudaMemPool_t>(2))
          return code;
        cudaMemSetMemPool(&location, type, preset);
        return accepted(call);
      });

  fault("location-foreign-pool-ok", {"SOMA-32"},
        "cudaMemSetMemPool with a pool of another GPU succeeds and changes "
        "nothing")
      .with_gpus(2)
      .on_refusal({"cudaMemSetMemPool"},
                  WHEN(call.at<const cudaMemLocation*>(0)->type ==
                           cudaMemLocationTypeDevice &&
                       gpu_of(call.at<cudaMemPool_t>(2)) >= 0 &&
                       gpu_of(call.at<cudaMemPool_t>(2)) !=
                           call.at<const cudaMemLocation*>(0)->id),
                  accepted);

  fault("destroyed-stays-current-on-second-gpu", {"SOMA-10"},
        "destroying the second GPU's current pool does not make the default "
        "pool of this GPU current")
      .with_gpus(2)
      .on({kDestroyPool},
          WHEN(is_on_second_gpu(pool_of(call)) && is_current(pool_of(call))),
          [](Call& call) {
            const auto props = own_pools.get(pool_of(call));
            const int code = call.proceed();
            cudaMemPool_t left = nullptr;
            if (code != kSuccess ||
                cudaMemPoolCreate(&left, &props) != cudaSuccess)
              return code;
            cudaDeviceSetMemPool(1, left);
            return accepted(call);
          });

  fault("pool-own-access-untold", {"SOMA-12"},
        "a pool's own GPU is reported to have no access")
      .after({kGetPoolAccess},
             WHEN(is_own_gpu(asked_pool(call), asked_place(call))),
             tell_no_access);

  fault("pool-access-ends-with-trim", {"SOMA-14"},
        "other GPUs lose their access to a pool when the pool is trimmed")
      .with_gpus(2)
      .after({kTrim}, WHEN(gpu_of(pool_of(call)) >= 0),
             DO(take_access(pool_of(call))));

  fault("per-thread-frompool-ignored", {"SOMA-08"},
        "a thread's default stream allocates from the current pool, not from "
        "the named pool")
      .before({kMallocFromPool}, WHEN(is_per_thread(call)),
              with_made<cudaMemPool_t>(2, DO(current_pool())));

  fault("used-of-current-gpu-only", {"SOMA-08"},
        "a pool of a GPU other than the current GPU reports that none of its "
        "memory is in use")
      .with_gpus(2)
      .after({kGetPoolAttribute},
             WHEN(pool_attribute(call) == cudaMemPoolAttrUsedMemCurrent &&
                  gpu_of(pool_of(call)) >= 0 &&
                  !is_current_gpu(gpu_of(pool_of(call)))),
             answers(uint64_t{0}, 2));

  fault("pool-create-after-refusal-refused", {"SOMA-11", "POOL-05"},
        "after a refused creation of a pool the next one is refused, too")
      .on({kCreatePool}, next_refused);

  fault("location-pool-after-refusal-refused", {"SOMA-32"},
        "after a pool was refused as current for a location the next one is "
        "refused, too")
      .on({"cudaMemSetMemPool"}, next_refused);

  fault("pool-destroy-after-refusal-refused", {"SOMA-10"},
        "after a refused destruction of a pool the next one is refused, too")
      .on({kDestroyPool}, next_refused);

  fault("pool-setaccess-after-refusal-refused", {"SOMA-15"},
        "after a refused setting of access to a pool the next one is refused, "
        "too")
      .on({kSetPoolAccess}, next_refused);

  fault(
      "pools-end-at-32", {"SOMA-11"},
      "if a process has 32 pools, the next one is refused as an invalid value")
      .on({kCreatePool}, WHEN(own_pools.all().size() >= 32), refuses());

  fault("default-pool-access-lost", {"SOMA-14"},
        "no other GPU can get access to a default pool")
      .with_gpus(2)
      .on({kSetPoolAccess}, WHEN(is_default_pool(pool_of(call))), accepted);

  fault("per-thread-free-lost", {"SOMA-07"},
        "a free in a thread's default stream does nothing")
      .on({kFreeAsync}, WHEN(is_per_thread(call)), accepted);

  fault("legacy-stream-free-lost", {"SOMA-07"},
        "a free in cudaStreamLegacy does nothing")
      .on({kFreeAsync}, WHEN(stream_of(call) == cudaStreamLegacy), accepted);

  fault("host-pool-current-on-gpu", {"SOMA-09"},
        "a call that makes a pool on the host the current pool of a GPU "
        "succeeds and changes nothing")
      .on_refusal({kSetPool}, WHEN(is_on_host(call.at<cudaMemPool_t>(1))),
                  accepted)
      .on_refusal({"cudaMemSetMemPool"},
                  WHEN(is_on_host(call.at<cudaMemPool_t>(2)) &&
                       call.at<const cudaMemLocation*>(0)->type ==
                           cudaMemLocationTypeDevice),
                  accepted);

  fault("mallocasync-of-runtime-setpool", {"SOMA-07", "SOMA-32"},
        "cudaMallocAsync uses only a pool that cudaDeviceSetMemPool has set; "
        "the other calls change only what queries name")
      .on({kMallocAsync, kSetPool, kDestroyPool},
          from_pool_of_device_call<false>);

  fault("location-setpool-without-effect", {"SOMA-32"},
        "a pool that is set by its location is reported as current, but no "
        "memory comes from it")
      .on({kMallocAsync, kSetPool, kDestroyPool},
          from_pool_of_device_call<true>);

  fault("driver-setpool-of-thread", {"SOMA-07"},
        "a pool that the driver API has made current is current for the "
        "runtime's allocations only in the same thread")
      .on({kMallocAsync},
          WHEN(call.is_runtime() &&
               marks.get<int>(0, this_thread()) != this_thread()),
          DO(allocated_instead_from(default_pool(), current_pool(), call)))
      .after({kSetPool}, WHEN(call.is_runtime()), NOTE(marks.erase(0)))
      .after({kSetPool}, NOTE(marks.put(0, this_thread())));

  fault("pool-setaccess-resets-threshold", {"SOMA-12"},
        "setting an access to a pool sets its release threshold to 0")
      .on({kSetPoolAccess}, loses<cudaMemPoolAttrReleaseThreshold>);

  fault("pool-setaccess-flags-of-first", {"SOMA-14"},
        "all entries of a list of accesses to a pool have the flags of the "
        "first entry")
      .with_gpus(2)
      .on({kSetPoolAccess}, WHEN(call.at<size_t>(2) > 1), [](Call& call) {
        const auto* const list = &wanted_access(call);
        std::vector<cudaMemAccessDesc> same(list, list + call.at<size_t>(2));
        for (cudaMemAccessDesc& each : same)
          if (set_to(each.flags, list->flags)) call.fired();
        call.at<const cudaMemAccessDesc*>(1) = same.data();
        return call.proceed();
      });

  fault("pool-create-sets-current", {"SOMA-08", "SOMA-10"},
        "a new pool becomes the current pool")
      .after({kCreatePool},
             WHEN(call.at<const cudaMemPoolProps*>(1)->location.type ==
                  cudaMemLocationTypeDevice),
             [](Call& call) {
               return cudaDeviceSetMemPool(
                          call.at<const cudaMemPoolProps*>(1)->location.id,
                          *call.at<cudaMemPool_t*>(0)) == cudaSuccess;
             });

  fault("pool-access-taken-in-name", {"SOMA-14"},
        "access to a pool is taken away only in the answer to a query")
      .with_gpus(2)
      .on({kSetPoolAccess}, WHEN(!gives_access(call)),
          [](Call& call) {
            pool_marks.put(pool_of(call), wanted_gpu(call));
            return lost(call);
          })
      .after({kSetPoolAccess}, NOTE(pool_marks.erase(pool_of(call))))
      .after({kGetPoolAccess}, WHEN(asks_about_marked_gpu(call)),
             tell_no_access);

  fault("stream-keeps-pool", {"SOMA-07"},
        "a stream goes on allocating from the pool that was current at its "
        "first allocation")
      .on({kMallocAsync},
          WHEN(kept_pool(stream_of(call)) != current_pool_of(stream_of(call))),
          DO(allocated_from(kept_pool(stream_of(call)), call)))
      .after({kMallocAsync},
             WHEN(!is_default(stream_of(call)) &&
                  stream_of(call) != cudaStreamPerThread),
             NOTE(stream_marks.put(stream_of(call),
                                   current_pool_of(stream_of(call)))));

  fault("second-thread-keeps-pool", {"SOMA-07"},
        "a second thread goes on allocating from the pool that was current at "
        "its first allocation")
      .on({kMallocAsync, kDestroyPool}, [](Call& call) -> int {
        static const auto first_thread = getpid();
        static auto& first = *new Table<std::pair<int, int>, cudaMemPool_t>;
        if (destroys(call))
          for (const auto& [key, pool] : first.all())
            if (pool == pool_of(call)) first.erase(key);
        if (!call.is("cudaMallocAsync") || gettid() == first_thread)
          return call.proceed();
        const auto stream = call.at<cudaStream_t>(2);
        const auto now = current_pool_of(stream);
        const std::pair<int, int> key{gettid(), gpu_of_stream(stream)};
        if (!first.has(key)) first.put(key, now);
        return first.get(key) != now ? allocated_from(first.get(key), call)
                                     : call.proceed();
      });

  fault(
      "new-pool-replaces-destroyed", {"SOMA-10"},
      "after the current pool was destroyed, the next new pool becomes current")
      .on({kCreatePool, kDestroyPool, kSetPool}, [](Call& call) {
        static std::atomic<int> without{-1};
        const bool ends_current =
            destroys(call) && pool_of(call) == current_pool();
        if (call.is("cudaDeviceSetMemPool")) without = -1;
        const int code = call.proceed();
        if (code == kSuccess && ends_current) without = current_device();
        if (code != kSuccess || !creates(call)) return code;
        const auto made = *call.at<cudaMemPool_t*>(0);
        if (without < 0 || gpu_of(made) != without) return code;
        cudaDeviceSetMemPool(without.exchange(-1), made);
        return accepted(call);
      });

  fault("destroy-returns-to-previous", {"SOMA-10"},
        "when the current pool is destroyed, the pool that was current before "
        "it becomes current")
      .on({kDestroyPool}, WHEN(is_current(pool_of(call))),
          [](Call& call) {
            const int gpu = gpu_of(pool_of(call));
            const auto previous = marks.get<cudaMemPool_t>(gpu);
            const int code = call.proceed();
            if (code != kSuccess || !own_pools.has(previous)) return code;
            cudaDeviceSetMemPool(gpu, previous);
            return accepted(call);
          })
      .before({kSetPool},
              NOTE(marks.put(call.at<int>(0), current_of(call.at<int>(0)))));

  fault("default-not-current-again", {"SOMA-07"},
        "a call that makes the default pool current again succeeds and does "
        "nothing")
      .on({kSetPool},
          WHEN(call.at<cudaMemPool_t>(1) == default_of(call.at<int>(0)) &&
               current_of(call.at<int>(0)) != default_of(call.at<int>(0))),
          accepted);

  fault("location-pool-cached", {"SOMA-32"},
        "cudaMemGetMemPool always returns the pool that its first call for "
        "this location returned")
      .on({"cudaMemGetMemPool"}, [](Call& call) {
        static auto& first =
            *new Table<std::tuple<int, int, int>, cudaMemPool_t>;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        auto& pool = *call.at<cudaMemPool_t*>(0);
        const auto& location = *call.at<const cudaMemLocation*>(1);
        const std::tuple<int, int, int> key{
            location.type, location.id,
            static_cast<int>(call.at<cudaMemAllocationType>(2))};
        if (!first.has(key)) first.put(key, pool);
        if (first.get(key) == pool) return code;
        pool = first.get(key);
        return accepted(call);
      });

  fault("maxsize-rounded-down", {"SOMA-35"},
        "the maximal size of a pool is rounded down to a multiple of 2 MiB")
      .on_machine("driver-13.5")
      .on({kCreatePool}, with_copy<cudaMemPoolProps>(1, [](auto& props) {
            const size_t rest = max_size(props) % kGranule;
            if (max_size(props) < kGranule || rest == 0) return false;
            max_size(props) -= rest;
            return true;
          }));

  fault("frompool-foreign-stream-refused", {"SOMA-08"},
        "an allocation from a created pool in a created stream of another GPU "
        "is refused")
      .with_gpus(2)
      .on({kMallocFromPool},
          WHEN(gpu_of(call.at<cudaMemPool_t>(2)) >= 0 &&
               !is_default(stream_of(call)) &&
               stream_of(call) != cudaStreamPerThread &&
               gpu_of_stream(stream_of(call)) !=
                   gpu_of(call.at<cudaMemPool_t>(2))),
          refuses());

  fault("pool-access-ends-with-current", {"SOMA-13"},
        "other GPUs lose their access to a pool when this pool is no longer "
        "the current pool")
      .with_gpus(2)
      .on({kSetPool}, [](Call& call) {
        cudaMemPool_t before = nullptr;
        cudaDeviceGetMemPool(&before, call.at<int>(0));
        const int code = call.proceed();
        if (code == kSuccess && own_pools.has(before) &&
            before != call.at<cudaMemPool_t>(1) && take_access(before))
          call.fired();
        return code;
      });

  fault("pool-access-ends-with-export", {"SOMA-13"},
        "other GPUs lose their access to a pool when the pool is exported")
      .with_gpus(2)
      .after({kExportPool},
             [](Call& call) { return take_access(call.at<cudaMemPool_t>(1)); });

  fault("pool-access-of-earlier-pool", {"SOMA-13"},
        "other GPUs have the same access to a new pool as to the pool that was "
        "created before it")
      .with_gpus(2)
      .after({kCreatePool}, [](Call& call) {
        const auto made = told_pool(call);
        const auto before = marks.get<cudaMemPool_t>(0);
        marks.put(0, made);
        bool any = false;
        for (int gpu = 0; gpu < count_of_gpus(); ++gpu)
          any |= own_pools.has(before) && gpu_of(before) == gpu_of(made) &&
                 gpu != gpu_of(made) && pool_access(before, gpu).flags != 0 &&
                 set_access(made, gpu, pool_access(before, gpu).flags);
        return any;
      });

  fault("pool-maxsize-untold", {"SOMA-35"}, "a pool reports no maximal size")
      .on_machine("driver-13.5")
      .after({kGetPoolAttribute}, WHEN(pool_attribute(call) == kMaxSize),
             answers(uint64_t{0}, 2));

  fault("pool-location-of-gpu-0", {"SOMA-35"},
        "a pool of the second GPU reports GPU 0 as its location")
      .with_gpus(2)
      .on_machine("driver-13.5")
      .after({kGetPoolAttribute},
             WHEN(pool_attribute(call) == kLocationId &&
                  is_on_second_gpu(pool_of(call))),
             answers<int>(0, 2));

  fault("host-pool-told-as-device", {"SOMA-35"},
        "a pool on the host reports a GPU as its location")
      .on_machine("driver-13.5")
      .after({kGetPoolAttribute},
             WHEN(pool_attribute(call) == kLocationType &&
                  is_on_host(pool_of(call))),
             answers<int>(cudaMemLocationTypeDevice, 2));

  fault("setpool-ends-with-thread", {"SOMA-07"},
        "when the thread ends that has set the current pool, the default pool "
        "becomes current")
      .after({kSetPool}, [](Call& call) {
        const int gpu = call.at<int>(0);
        const auto pool = call.at<cudaMemPool_t>(1);
        at_thread_end([gpu, pool] {
          cudaMemPool_t now = nullptr, preset = nullptr;
          DRIVER_CALL(cuDeviceGetMemPool)(&now, gpu);
          DRIVER_CALL(cuDeviceGetDefaultMemPool)(&preset, gpu);
          if (now == pool && preset != pool &&
              DRIVER_CALL(cuDeviceSetMemPool)(gpu, preset) == CUDA_SUCCESS)
            note_fired("cudaDeviceSetMemPool");
        });
      });

  fault("setpool-again-resets", {"SOMA-07"},
        "if a pool is set that is current already, the default pool becomes "
        "current")
      .before({kSetPool},
              WHEN(call.at<cudaMemPool_t>(1) != nullptr &&
                   call.at<cudaMemPool_t>(1) == current_of(call.at<int>(0))),
              with_made<cudaMemPool_t>(1, DO(default_of(call.at<int>(0)))));

  fault("pool-setaccess-last-only", {"SOMA-14"},
        "only the last entry of a list of accesses to a pool is set")
      .with_gpus(2)
      .before({kSetPoolAccess}, WHEN(call.at<size_t>(2) > 1), [](Call& call) {
        call.at<const cudaMemAccessDesc*>(1) += call.at<size_t>(2) - 1;
        call.at<size_t>(2) = 1;
      });

  fault("destroy-resets-current-of-gpu-0", {"SOMA-10"},
        "destroying the current pool of another GPU makes the default pool "
        "current on GPU 0, too")
      .with_gpus(2)
      .on({kDestroyPool},
          WHEN(gpu_of(pool_of(call)) > 0 && is_current(pool_of(call))),
          [](Call& call) {
            const int code = call.proceed();
            if (code == kSuccess && reset_current(0)) call.fired();
            return code;
          });

  fault("foreign-stream-default-pool", {"SOMA-07"},
        "in a stream of a GPU that is not current, cudaMallocAsync allocates "
        "from the default pool of this GPU")
      .with_gpus(2)
      .on({kMallocAsync},
          WHEN(gpu_of_stream(stream_of(call)) != current_device() &&
               current_pool_of(stream_of(call)) !=
                   default_of(gpu_of_stream(stream_of(call)))),
          DO(allocated_from(default_of(gpu_of_stream(stream_of(call))), call)));

  fault("location-pool-of-gpu-0", {"SOMA-32"},
        "a query of the pool of the second GPU's location names the pool of "
        "GPU 0")
      .with_gpus(2)
      .on({"cudaMemGetMemPool", "cudaMemGetDefaultMemPool"},
          with_copy<cudaMemLocation>(1, [](auto& place) {
            return place.type == cudaMemLocationTypeDevice && place.id == 1 &&
                   set_to(place.id, 0);
          }));

  fault("pool-trim-takes-access", {"SOMA-14"},
        "a trim takes the access of other GPUs, and the query does not say so")
      .with_gpus(2)
      .after({kTrim}, WHEN(gpu_of(pool_of(call)) >= 0),
             [](Call& call) {
               const bool taken = take_access(pool_of(call));
               if (taken) pool_marks.put(pool_of(call));
               return taken;
             })
      .after({kSetPoolAccess}, NOTE(pool_marks.erase(pool_of(call))))
      .after({kGetPoolAccess}, WHEN(pool_marks.has(asked_pool(call))),
             [](Call& call) {
               told_access(call) = cudaMemAccessFlagsProtReadWrite;
             });

  fault("pool-access-of-gpu-0-lost", {"SOMA-13"},
        "access of GPU 0 to a pool of another GPU is not given")
      .with_gpus(2)
      .on({kSetPoolAccess},
          WHEN(gives_access(call) && gpu_of(pool_of(call)) > 0 &&
               wanted_gpu(call) == 0),
          accepted);

  fault("pool-second-gpu-shut-out", {"SOMA-13"},
        "the second GPU's access to its own pool can be taken away, but only "
        "in the answer to a query")
      .with_gpus(2)
      .on({kSetPoolAccess},
          WHEN(!gives_access(call) && is_on_second_gpu(pool_of(call)) &&
               wanted_gpu(call) == 1),
          [](Call& call) {
            pool_marks.put(pool_of(call), 1);
            return accepted(call);
          })
      .after({kSetPoolAccess}, NOTE(pool_marks.erase(pool_of(call))))
      .after({kGetPoolAccess}, WHEN(asks_about_marked_gpu(call)),
             tell_no_access);

  fault("pool-foreign-free-at-once", {"SOMA-08"},
        "a free of memory of GPU 1 does not wait for its stream on GPU 0")
      .with_gpus(2)
      .on({kFreeAsync},
          WHEN(is_own_block(call.at<void*>(0)) &&
               gpu_of(blocks.get(call.at<void*>(0)).pool) > 0 &&
               current_device() == 0 && is_busy(stream_of(call))),
          freed_at_once);

  fault("pool-access-comes-back", {"SOMA-14"},
        "access that was taken from a pool is there again after the next "
        "allocation, and the query does not say so")
      .with_gpus(2)
      .after({kMallocFromPool}, WHEN(pool_marks.has(call.at<cudaMemPool_t>(2))),
             DO(set_access(call.at<cudaMemPool_t>(2),
                           pool_marks.get<int>(call.at<cudaMemPool_t>(2)),
                           cudaMemAccessFlagsProtReadWrite)))
      .after({kSetPoolAccess}, WHEN(gives_access(call)),
             NOTE(pool_marks.erase(pool_of(call))))
      .after({kSetPoolAccess},
             NOTE(pool_marks.put(pool_of(call), wanted_gpu(call))))
      .after({kGetPoolAccess}, WHEN(asks_about_marked_gpu(call)),
             tell_no_access);

  fault("current-pool-of-context", {"SOMA-07"},
        "in another context than the one that set the current pool, a query "
        "names the default pool")
      .after({kSetPool}, NOTE(marks.put(call.at<int>(0), current_context())))
      .after({"cudaDeviceGetMemPool"},
             WHEN(current_context() != nullptr &&
                  marks.get(call.at<int>(1), current_context()) !=
                      current_context()),
             DO(set_to(told_pool(call), default_of(call.at<int>(1)))));

  fault("unused-default-pool-destroyed", {"SOMA-10"},
        "destroying the default pool while another pool is current returns "
        "success and does nothing")
      .on_refusal({kDestroyPool},
                  WHEN(pool_of(call) == default_pool() &&
                       pool_of(call) != current_pool()),
                  accepted);

  fault("default-pool-of-other-gpu-destroyed", {"SOMA-10"},
        "destroying the default pool of a GPU that is not current returns "
        "success and does nothing")
      .with_gpus(2)
      .on_refusal({kDestroyPool},
                  WHEN(is_default_pool(pool_of(call)) &&
                       pool_of(call) != default_pool()),
                  accepted);

  fault("destroyed-at-location-stays-current", {"SOMA-10"},
        "after the destroy of a pool that was made current by its location, "
        "cudaDeviceGetMemPool still names this pool")
      .before({kDestroyPool},
              WHEN(pool_marks.has(pool_of(call)) && is_current(pool_of(call))),
              NOTE(marks.put(gpu_of(pool_of(call)), pool_of(call))))
      .after({"cudaDeviceGetMemPool"}, WHEN(marks.has(call.at<int>(1))),
             [](Call& call) {
               told_pool(call) = marks.get<cudaMemPool_t>(call.at<int>(1));
             })
      .after({"cudaMemSetMemPool"},
             WHEN(is_own_gpu(call.at<cudaMemPool_t>(2),
                             *call.at<const cudaMemLocation*>(0))),
             [](Call& call) {
               marks.erase(gpu_of(call.at<cudaMemPool_t>(2)));
               pool_marks.put(call.at<cudaMemPool_t>(2));
               return kSuccess;
             })
      .after({kSetPool}, NOTE(marks.erase(call.at<int>(0))));

  fault("default-pool-access-in-name", {"SOMA-14"},
        "access of another GPU to a default pool is given only in the answer "
        "to a query")
      .with_gpus(2)
      .on({kSetPoolAccess},
          WHEN(pool_of(call) == default_pool() && gives_access(call) &&
               wanted_gpu(call) != current_device()),
          [](Call& call) {
            pool_marks.put(pool_of(call), wanted_gpu(call));
            return lost(call);
          })
      .after({kSetPoolAccess},
             WHEN(pool_marks.get(pool_of(call), -1) == wanted_gpu(call)),
             NOTE(pool_marks.erase(pool_of(call))))
      .after({kGetPoolAccess}, WHEN(asks_about_marked_gpu(call)),
             [](Call& call) {
               told_access(call) = cudaMemAccessFlagsProtReadWrite;
             });
}

}  // namespace
}  // namespace ipclab::faults
