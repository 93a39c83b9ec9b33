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

int access_never_taken(Call& call) {
  const auto pool = call.at<cudaMemPool_t>(0);
  const auto* const wanted = call.at<const cudaMemAccessDesc*>(1);
  std::vector<cudaMemAccessDesc> taken;
  for (size_t i = 0; wanted != nullptr && i < call.at<size_t>(2); ++i) {
    cudaMemAccessDesc one = wanted[i];
    if (one.flags == cudaMemAccessFlagsProtNone &&
        DRIVER_CALL(cuMemPoolGetAccess)(
            reinterpret_cast<CUmemAccess_flags*>(&one.flags), pool,
            reinterpret_cast<CUmemLocation*>(&one.location)) == CUDA_SUCCESS &&
        one.flags != cudaMemAccessFlagsProtNone)
      taken.push_back(one);
  }
  const int code = call.proceed();
  if (code == kSuccess && !taken.empty() &&
      cudaMemPoolSetAccess(pool, taken.data(), taken.size()) == cudaSuccess)
    call.fired();
  return code;
}

int from_default_pool(Call& call) {
  if (current_pool() != default_pool()) call.fired();
  return cudaMallocFromPoolAsync(call.at<void**>(0), call.at<size_t>(1),
                                 default_pool(), call.at<cudaStream_t>(2));
}

// Calls for which `concerned` is true allocate from the default pool, not from
// the current pool.
template <bool (*concerned)(Call& call)>
int such_calls_from_default_pool(Call& call) {
  return concerned(call) ? from_default_pool(call) : call.proceed();
}

bool by_driver(Call& call) { return !call.is_runtime(); }

// Every GPU reports the pool of GPU 0.
int pool_of_gpu_0(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) == 0) return code;
  call.at<int>(1) = 0;
  call.fired();
  return call.proceed();
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

// The current pool is reported as the default pool.
int default_follows_current(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& told = *call.at<cudaMemPool_t*>(0);
  cudaMemPool_t current = told;
  if (call.is("cudaDeviceGetDefaultMemPool"))
    DRIVER_CALL(cuDeviceGetMemPool)(&current, call.at<int>(1));
  else
    DRIVER_CALL(cuMemGetMemPool)
  (&current, call.at<CUmemLocation*>(1), call.at<CUmemAllocationType>(2));
  if (current != told) call.fired();
  told = current;
  return code;
}

int destroyed_stays_current(Call& call) {
  static Table<int, cudaMemPool_t> gone;  // by device
  if (call.is("cudaMemPoolDestroy")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    int device = 0;
    cudaGetDevice(&device);
    const bool was_current = pool == current_pool();
    const int code = call.proceed();
    if (code == kSuccess && was_current) gone.put(device, pool);
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaDeviceSetMemPool")) {
    gone.erase(call.at<int>(0));
  } else if (gone.has(call.at<int>(1))) {
    *call.at<cudaMemPool_t*>(0) = gone.get(call.at<int>(1));
    call.fired();
  }
  return code;
}

int own_device_shut_out(Call& call) {
  static Table<cudaMemPool_t> shut;
  const auto is_own = [](cudaMemPool_t pool, const cudaMemLocation& location) {
    return location.type == cudaMemLocationTypeDevice &&
           location.id == gpu_of(pool);
  };
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) shut.erase(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (call.is("cudaMemPoolGetAccess")) {
    const auto pool = call.at<cudaMemPool_t>(1);
    const int code = call.proceed();
    if (code == kSuccess && shut.has(pool) &&
        is_own(pool, *call.at<const cudaMemLocation*>(2)))
      *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
    return code;
  }
  const auto pool = call.at<cudaMemPool_t>(0);
  const auto& wanted = *call.at<const cudaMemAccessDesc*>(1);
  const int code = call.proceed();
  if (!is_own(pool, wanted.location)) return code;
  shut.erase(pool);
  if (wanted.flags != cudaMemAccessFlagsProtNone) return code;
  shut.put(pool);
  return accepted(call);
}

bool set_access(cudaMemPool_t pool, int device, unsigned flags) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = static_cast<CUmemAccess_flags>(flags);
  return DRIVER_CALL(cuMemPoolSetAccess)(pool, &access, 1) == CUDA_SUCCESS;
}

// A change of peer access also changes the current GPU's access to the pools of
// other GPUs.
template <cudaMemAccessFlags flags>
int pools_follow_peers(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.is("cudaMemPoolCreate") ||
      call.is("cudaMemPoolDestroy"))
    return code;
  int device = 0;
  cudaGetDevice(&device);
  for (const auto& [pool, wanted] : own_pools.all())
    if (gpu_of(pool) != -1 && gpu_of(pool) != device &&
        set_access(pool, device, flags))
      call.fired();
  return code;
}

int set_pool_resets_other_gpus(Call& call) {
  const int code = call.proceed();
  int devices = 0;
  if (code != kSuccess ||
      DRIVER_CALL(cuDeviceGetCount)(&devices) != CUDA_SUCCESS)
    return code;
  for (int device = 0; device < devices; ++device) {
    cudaMemPool_t own = nullptr, preset = nullptr;
    if (device == call.at<int>(0) ||
        cudaDeviceGetMemPool(&own, device) != cudaSuccess ||
        cudaDeviceGetDefaultMemPool(&preset, device) != cudaSuccess ||
        own == preset)
      continue;
    cudaDeviceSetMemPool(device, preset);
    call.fired();
  }
  return code;
}

// Makes the default pool of a GPU current.
void reset_current(Call& call, int gpu) {
  cudaMemPool_t current = nullptr;
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetMemPool(&current, gpu);
  cudaDeviceGetDefaultMemPool(&pool, gpu);
  if (current == pool) return;
  cudaDeviceSetMemPool(gpu, pool);
  call.fired();
}

int access_ends_with_trim(Call& call) {
  const int code = call.proceed();
  const int own = gpu_of(pool_of(call));
  int gpus = 0;
  if (code != kSuccess || own < 0 ||
      DRIVER_CALL(cuDeviceGetCount)(&gpus) != CUDA_SUCCESS)
    return code;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cudaMemAccessDesc access{};
    access.location = {cudaMemLocationTypeDevice, gpu};
    if (gpu == own) continue;
    cudaMemPoolGetAccess(&access.flags, pool_of(call), &access.location);
    if (access.flags == cudaMemAccessFlagsProtNone) continue;
    access.flags = cudaMemAccessFlagsProtNone;
    cudaMemPoolSetAccess(pool_of(call), &access, 1);
    call.fired();
  }
  return code;
}

template <bool (*is_kind)(cudaMemPool_t)>
int lost_in_import(Call& call) {
  if (!call.is("cudaMemPoolSetAccess")) return call.proceed();
  return is_kind(pool_of(call)) ? accepted(call) : call.proceed();
}

// A free in a thread's default stream, or in cudaStreamLegacy, does nothing.
template <bool per_thread>
int free_in_default_stream_lost(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  const bool meant =
      per_thread ? is_per_thread(call) : stream == cudaStreamLegacy;
  return meant ? accepted(call) : call.proceed();
}

cudaMemPool_t default_of(int gpu) {
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetDefaultMemPool(&pool, gpu);
  return pool;
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

int pool_access_taken_in_name(Call& call) {
  static Table<cudaMemPool_t, int> taken;  // from this GPU
  if (call.is("cudaMemPoolDestroy")) {
    taken.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  if (call.is("cudaMemPoolSetAccess")) {
    const auto* const first = call.at<const cudaMemAccessDesc*>(1);
    const auto pool = call.at<cudaMemPool_t>(0);
    taken.erase(pool);
    if (first->flags != cudaMemAccessFlagsProtNone) return call.proceed();
    taken.put(pool, first->location.id);
    call.fired();
    return kSuccess;
  }
  const int code = call.proceed();
  const auto pool = call.at<cudaMemPool_t>(1);
  if (code == kSuccess && taken.has(pool) &&
      taken.get(pool) == call.at<const cudaMemLocation*>(2)->id)
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
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
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetMemPool(&pool, gpu_of_stream(stream));
  return pool;
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

int previous_pool_current(Call& call) {
  static auto& previous = *new Table<int, cudaMemPool_t>;
  cudaMemPool_t before = nullptr;
  int gpu = -1;
  if (call.is("cudaDeviceSetMemPool")) {
    gpu = call.at<int>(0);
    cudaDeviceGetMemPool(&before, gpu);
    const int code = call.proceed();
    if (code == kSuccess) previous.put(gpu, before);
    return code;
  }
  if (destroys(call)) {
    gpu = gpu_of(pool_of(call));
    if (gpu >= 0) cudaDeviceGetMemPool(&before, gpu);
  }
  const bool is_current = before != nullptr && before == pool_of(call);
  const int code = call.proceed();
  if (code != kSuccess || !is_current || !own_pools.has(previous.get(gpu)))
    return code;
  cudaDeviceSetMemPool(gpu, previous.get(gpu));
  return accepted(call);
}

// A pool for which `applies` is true reports `value` for the attribute `which`.
template <cudaMemPoolAttr which, class Value>
int reported_as(Call& call, bool applies, Value value) {
  const int code = call.proceed();
  if (code != kSuccess || !gets(call) || pool_attribute(call) != which ||
      !applies || *call.at<Value*>(2) == value)
    return code;
  *call.at<Value*>(2) = value;
  return accepted(call);
}

int trim_takes_access(Call& call) {
  static Table<cudaMemPool_t> taken;
  const bool trimmed = call.is("cudaMemPoolTrimTo");
  const int own = trimmed ? gpu_of(pool_of(call)) : -1;
  if (sets_access(call) || call.is("cudaMemPoolDestroy"))
    taken.erase(pool_of(call));
  const int code = call.proceed();
  if (own >= 0) {
    cudaMemAccessDesc access{};
    access.location = {cudaMemLocationTypeDevice, 1 - own};
    cudaMemPoolGetAccess(&access.flags, pool_of(call), &access.location);
    if (access.flags == cudaMemAccessFlagsProtNone) return code;
    access.flags = cudaMemAccessFlagsProtNone;
    cudaMemPoolSetAccess(pool_of(call), &access, 1);
    taken.put(pool_of(call));
    call.fired();
  }
  if (code == kSuccess && call.is("cudaMemPoolGetAccess") &&
      taken.has(call.at<cudaMemPool_t>(1)))
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtReadWrite;
  return code;
}

int taken_access_comes_back(Call& call) {
  static Table<cudaMemPool_t, int> taken;  // from this GPU
  if (call.is("cudaMemPoolDestroy")) taken.erase(pool_of(call));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (gives_access(call)) {
    taken.erase(pool_of(call));
  } else if (sets_access(call)) {
    taken.put(pool_of(call), call.at<const cudaMemAccessDesc*>(1)->location.id);
  } else if (allocates(call) && taken.has(call.at<cudaMemPool_t>(2))) {
    const auto pool = call.at<cudaMemPool_t>(2);
    cudaMemAccessDesc access{};
    access.location = {cudaMemLocationTypeDevice, taken.get(pool)};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    if (cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess) call.fired();
  } else if (call.is("cudaMemPoolGetAccess") &&
             taken.get(call.at<cudaMemPool_t>(1), -1) ==
                 call.at<const cudaMemLocation*>(2)->id) {
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
  }
  return code;
}

int second_gpu_shut_out(Call& call) {
  static Table<cudaMemPool_t> closed;
  const bool closes = sets_access(call) && !gives_access(call) &&
                      is_on_second_gpu(pool_of(call)) &&
                      call.at<const cudaMemAccessDesc*>(1)->location.id == 1;
  if (closes) {
    closed.put(pool_of(call));
    return accepted(call);
  }
  if (sets_access(call) || call.is("cudaMemPoolDestroy"))
    closed.erase(pool_of(call));
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolGetAccess") &&
      closed.has(call.at<cudaMemPool_t>(1)) &&
      call.at<const cudaMemLocation*>(2)->id == 1)
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
  return code;
}

int pool_of_context(Call& call) {
  static Table<int, CUcontext> set_in;
  const int code = call.proceed();
  if (call.is("cudaDeviceSetMemPool")) {
    if (code == kSuccess) set_in.put(call.at<int>(0), current_context());
    return code;
  }
  const int gpu = call.at<int>(1);
  if (code != kSuccess || current_context() == nullptr || !set_in.has(gpu) ||
      set_in.get(gpu) == current_context())
    return code;
  auto& pool = *call.at<cudaMemPool_t*>(0);
  cudaMemPool_t preset = nullptr;
  cudaDeviceGetDefaultMemPool(&preset, gpu);
  if (pool != preset) call.fired();
  pool = preset;
  return code;
}

int destroyed_at_location_stays(Call& call) {
  static Table<int, cudaMemPool_t> at_location, gone;  // by their GPU
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemSetMemPool")) {
    const auto& place = *call.at<const cudaMemLocation*>(0);
    if (place.type != cudaMemLocationTypeDevice) return code;
    at_location.put(place.id, call.at<cudaMemPool_t>(2));
    gone.erase(place.id);
  } else if (call.is("cudaDeviceSetMemPool")) {
    at_location.erase(call.at<int>(0));
    gone.erase(call.at<int>(0));
  } else if (destroys(call)) {
    for (const auto& [gpu, pool] : at_location.all())
      if (pool == pool_of(call) && at_location.erase(gpu)) gone.put(gpu, pool);
  } else if (gone.has(call.at<int>(1))) {
    *call.at<cudaMemPool_t*>(0) = gone.get(call.at<int>(1));
    call.fired();
  }
  return code;
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
      .on({kSetPoolAccess}, access_never_taken);

  fault("setpool-of-thread", {"SOMA-07"},
        "a pool is current only in the thread that set it")
      .on({kSetPool, "cudaDeviceGetMemPool", kMallocAsync},
          [](Call& call) -> int {
            static std::atomic<pid_t> setter{0};
            if (call.is("cudaDeviceSetMemPool")) {
              const int code = call.proceed();
              if (code == kSuccess) setter = gettid();
              return code;
            }
            if (setter == 0 || setter == gettid() ||
                current_pool() == default_pool())
              return call.proceed();
            call.fired();
            if (call.is("cudaDeviceGetMemPool"))
              return cudaDeviceGetDefaultMemPool(call.at<cudaMemPool_t*>(0),
                                                 call.at<int>(1));
            return cudaMallocFromPoolAsync(call.at<void**>(0),
                                           call.at<size_t>(1), default_pool(),
                                           call.at<cudaStream_t>(2));
          });

  fault("pool-setaccess-first-only", {"SOMA-14"},
        "only the first entry of a list of accesses to a pool is set")
      .with_gpus(2)
      .before({kSetPoolAccess}, WHEN(call.at<size_t>(2) > 1),
              [](Call& call) { call.at<size_t>(2) = 1; });

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
      .on({kMallocAsync}, such_calls_from_default_pool<in_per_thread_stream>);

  fault("null-stream-default-pool", {"SOMA-07"},
        "the default stream allocates from the default pool, not from the "
        "current pool")
      .on({kMallocAsync}, such_calls_from_default_pool<in_null_stream>);

  fault("driver-default-pool", {"SOMA-07"},
        "the driver API allocates from the default pool, not from the current "
        "pool")
      .on({kMallocAsync}, such_calls_from_default_pool<by_driver>);

  fault("getpool-of-gpu-0", {"SOMA-07", "SOMA-08", "SOMA-09"},
        "every GPU reports the current pool of GPU 0")
      .with_gpus(2)
      .on({"cudaDeviceGetMemPool"}, pool_of_gpu_0);

  fault("getdefault-of-gpu-0", {"SOMA-07", "SOMA-08"},
        "every GPU reports the default pool of GPU 0")
      .with_gpus(2)
      .on({"cudaDeviceGetDefaultMemPool"}, pool_of_gpu_0);

  fault("location-pool-apart", {"SOMA-32"},
        "setting the pool of a location that is a device does not set the "
        "device's pool")
      .on({"cudaMemSetMemPool", "cudaMemGetMemPool", kDestroyPool},
          pool_of_place_apart);

  fault("pool-access-ends-when-empty", {"SOMA-14"},
        "GPU 1 loses its access to a pool of GPU 0 when the pool's last memory "
        "is freed")
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool, kMallocFromPool, kFree, kFreeAsync},
          [](Call& call) {
            const Block freed =
                frees(call) ? blocks.get(call.at<void*>(0)) : Block{};
            const int code = call.proceed();
            if (code != kSuccess || gpu_of(freed.pool) != 0 ||
                lent_by(freed.pool) != 0)
              return code;
            cudaMemAccessDesc access{};
            access.location = {cudaMemLocationTypeDevice, 1};
            cudaMemAccessFlags now{};
            if (cudaMemPoolGetAccess(&now, freed.pool, &access.location) !=
                    cudaSuccess ||
                now == cudaMemAccessFlagsProtNone)
              return code;
            if (cudaMemPoolSetAccess(freed.pool, &access, 1) == cudaSuccess)
              call.fired();
            return code;
          });

  fault("location-host-is-device", {"SOMA-32"},
        "the default pool of the host is the default pool of the current GPU")
      .after({"cudaMemGetDefaultMemPool"}, [](Call& call) -> int {
        const auto* const place = call.at<const cudaMemLocation*>(1);
        if (place->type == cudaMemLocationTypeDevice) return kSuccess;
        auto& pool = *call.at<cudaMemPool_t*>(0);
        if (pool != default_pool()) call.fired();
        pool = default_pool();
        return kSuccess;
      });

  fault("frompool-ignored", {"SOMA-08"},
        "an allocation from a named pool ignores this pool")
      .before({kMallocFromPool}, [](Call& call) {
        if (call.at<cudaMemPool_t>(2) != current_pool()) call.fired();
        call.at<cudaMemPool_t>(2) = current_pool();
        return kSuccess;
      });

  fault("frompool-sets-current", {"SOMA-08"},
        "an allocation from a named pool makes this pool the current pool")
      .after({kMallocFromPool}, [](Call& call) {
        return call.at<cudaMemPool_t>(2) != current_pool() &&
               DRIVER_CALL(cuDeviceSetMemPool)(0, call.at<cudaMemPool_t>(2)) ==
                   CUDA_SUCCESS;
      });

  fault("setpool-ignored", {"SOMA-07"},
        "setting the current pool changes nothing")
      .on({kSetPool, "cudaMemSetMemPool"}, [](Call& call) {
        call.fired();
        return kSuccess;
      });

  fault("default-follows-current", {"SOMA-07"},
        "the pool that was set is also reported as the default pool")
      .on({"cudaDeviceGetDefaultMemPool"}, default_follows_current);

  fault("location-default-follows-current", {"SOMA-32"},
        "the pool that was set is reported as the default pool of its location")
      .on({"cudaMemGetDefaultMemPool"}, default_follows_current);

  fault("destroyed-stays-current", {"SOMA-10"},
        "a pool that was destroyed is still reported as the current pool")
      .on({"cudaDeviceGetMemPool", kDestroyPool, kSetPool},
          destroyed_stays_current);

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
      .on({"cudaMemGetDefaultMemPool", "cudaMemGetMemPool",
           "cudaMemSetMemPool"},
          [](Call& call) {
            const int code = call.proceed();
            if (code != cudaErrorInvalidValue) return code;
            if (!call.is("cudaMemSetMemPool"))
              *call.at<cudaMemPool_t*>(0) = default_pool();
            return accepted(call);
          });

  fault("resident-access-revoked", {"SOMA-12"},
        "taking access from a pool's own device returns success, and then the "
        "pool reports no access")
      .on({kSetPoolAccess, kGetPoolAccess, kCreatePool}, own_device_shut_out);

  fault("pool-follows-peer", {"SOMA-13"},
        "enabling peer access also gives the GPU access to the pools that the "
        "process has created on other GPUs")
      .with_gpus(2)
      .on({"cudaDeviceEnablePeerAccess", kCreatePool, kDestroyPool},
          pools_follow_peers<cudaMemAccessFlagsProtReadWrite>);

  fault("pool-closes-with-peer", {"SOMA-13"},
        "disabling peer access also ends the GPU's access to the pools that "
        "the process has created on other GPUs")
      .with_gpus(2)
      .on({"cudaDeviceDisablePeerAccess", kCreatePool, kDestroyPool},
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
      .on({kSetPool}, set_pool_resets_other_gpus);

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
      .on({kSetPool, kDestroyPool}, [](Call& call) {
        static Table<cudaMemPool_t, int> set;  // on this GPU
        if (call.is("cudaDeviceSetMemPool")) {
          const int code = call.proceed();
          if (code == kSuccess)
            set.put(call.at<cudaMemPool_t>(1), call.at<int>(0));
          return code;
        }
        const auto pool = call.at<cudaMemPool_t>(0);
        const int gpu = set.get(pool);
        const int code = call.proceed();
        if (code == kSuccess && set.erase(pool)) reset_current(call, gpu);
        return code;
      });

  fault("host-setpool-resets-gpu", {"SOMA-32"},
        "setting the current pool of the host also makes the default pool of "
        "the GPU current")
      .after({"cudaMemSetMemPool"},
             WHEN(is_on_host(*call.at<const cudaMemLocation*>(0))),
             [](Call& call) {
               reset_current(call, current_device());
               return kSuccess;
             });

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
      .on({kDestroyPool}, [](Call& call) {
        const auto props = own_pools.get(pool_of(call));
        cudaMemPool_t current = nullptr;
        if (gpu_of(pool_of(call)) == 1) cudaDeviceGetMemPool(&current, 1);
        const bool matters = current == pool_of(call);
        const int code = call.proceed();
        if (code != kSuccess || !matters) return code;
        cudaMemPool_t left = nullptr;
        cudaMemPoolCreate(&left, &props);
        cudaDeviceSetMemPool(1, left);
        return accepted(call);
      });

  fault("pool-own-access-untold", {"SOMA-12"},
        "a pool's own GPU is reported to have no access")
      .after({kGetPoolAccess},
             WHEN(call.at<const cudaMemLocation*>(2)->type ==
                      cudaMemLocationTypeDevice &&
                  gpu_of(call.at<cudaMemPool_t>(1)) ==
                      call.at<const cudaMemLocation*>(2)->id),
             [](Call& call) {
               *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
             });

  fault("pool-access-ends-with-trim", {"SOMA-14"},
        "other GPUs lose their access to a pool when the pool is trimmed")
      .with_gpus(2)
      .on({kTrim}, access_ends_with_trim);

  fault("per-thread-frompool-ignored", {"SOMA-08"},
        "a thread's default stream allocates from the current pool, not from "
        "the named pool")
      .before({kMallocFromPool}, [](Call& call) -> bool {
        auto& pool = call.at<cudaMemPool_t>(2);
        if (!is_per_thread(call) || pool == current_pool()) return false;
        pool = current_pool();
        return true;
      });

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
      .on({kSetPoolAccess}, lost_in_import<is_default_pool>);

  fault("per-thread-free-lost", {"SOMA-07"},
        "a free in a thread's default stream does nothing")
      .on({kFreeAsync}, free_in_default_stream_lost<true>);

  fault("legacy-stream-free-lost", {"SOMA-07"},
        "a free in cudaStreamLegacy does nothing")
      .on({kFreeAsync}, free_in_default_stream_lost<false>);

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
      .on({kMallocAsync, kSetPool}, [](Call& call) -> int {
        static std::atomic<int> setter{0};
        if (call.is("cudaDeviceSetMemPool")) {
          const int code = call.proceed();
          if (code == kSuccess) setter = call.is_runtime() ? 0 : this_thread();
          return code;
        }
        if (!call.is_runtime() || setter == 0 || setter == this_thread())
          return call.proceed();
        return allocated_instead_from(default_pool(), current_pool(), call);
      });

  fault("pool-setaccess-resets-threshold", {"SOMA-12"},
        "setting an access to a pool sets its release threshold to 0")
      .on({kSetPoolAccess}, loses<cudaMemPoolAttrReleaseThreshold>);

  fault("pool-setaccess-flags-of-first", {"SOMA-14"},
        "all entries of a list of accesses to a pool have the flags of the "
        "first entry")
      .with_gpus(2)
      .on({kSetPoolAccess}, [](Call& call) {
        auto& list = call.at<const cudaMemAccessDesc*>(1);
        std::vector<cudaMemAccessDesc> changed(list, list + call.at<size_t>(2));
        for (cudaMemAccessDesc& each : changed) {
          if (each.flags != changed[0].flags) call.fired();
          each.flags = changed[0].flags;
        }
        list = changed.data();
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
      .on({kSetPoolAccess, kGetPoolAccess, kDestroyPool},
          pool_access_taken_in_name);

  fault("stream-keeps-pool", {"SOMA-07"},
        "a stream goes on allocating from the pool that was current at its "
        "first allocation")
      .on({kMallocAsync, kDestroyPool, kDestroyStream}, [](Call& call) -> int {
        static auto& first = *new Table<cudaStream_t, cudaMemPool_t>;
        if (call.is("cudaStreamDestroy")) first.erase(call.at<cudaStream_t>(0));
        if (destroys(call))
          for (const auto& [stream, pool] : first.all())
            if (pool == pool_of(call)) first.erase(stream);
        if (!call.is("cudaMallocAsync")) return call.proceed();
        const auto stream = call.at<cudaStream_t>(2);
        if (is_default(stream) || stream == cudaStreamPerThread)
          return call.proceed();
        const auto now = current_pool_of(stream);
        if (!first.has(stream)) first.put(stream, now);
        return first.get(stream) != now
                   ? allocated_from(first.get(stream), call)
                   : call.proceed();
      });

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
      .on({kCreatePool, kDestroyPool, kSetPool}, previous_pool_current);

  fault("default-not-current-again", {"SOMA-07"},
        "a call that makes the default pool current again succeeds and does "
        "nothing")
      .on({kSetPool}, [](Call& call) {
        cudaMemPool_t preset = nullptr, now = nullptr;
        cudaDeviceGetDefaultMemPool(&preset, call.at<int>(0));
        cudaDeviceGetMemPool(&now, call.at<int>(0));
        return now != preset && call.at<cudaMemPool_t>(1) == preset
                   ? accepted(call)
                   : call.proceed();
      });

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
      .on({kCreatePool}, [](Call& call) -> int {
        static std::atomic<cudaMemPool_t> last{nullptr};
        const int code = call.proceed();
        if (code != kSuccess) return code;
        const auto made = *call.at<cudaMemPool_t*>(0);
        const auto before = last.exchange(made);
        if (!own_pools.has(before) || gpu_of(before) != gpu_of(made))
          return code;
        for (int gpu = 0; gpu < count_of_gpus(); ++gpu) {
          const auto access = pool_access(before, gpu);
          if (gpu == gpu_of(made) || access.flags == cudaMemAccessFlagsProtNone)
            continue;
          cudaMemPoolSetAccess(made, &access, 1);
          call.fired();
        }
        return code;
      });

  fault("pool-maxsize-untold", {"SOMA-35"}, "a pool reports no maximal size")
      .on_machine("driver-13.5")
      .on({kGetPoolAttribute}, [](Call& call) {
        return reported_as<kMaxSize, uint64_t>(call, true, 0);
      });

  fault("pool-location-of-gpu-0", {"SOMA-35"},
        "a pool of the second GPU reports GPU 0 as its location")
      .with_gpus(2)
      .on_machine("driver-13.5")
      .on({kGetPoolAttribute, kCreatePool, kDestroyPool}, [](Call& call) {
        return reported_as<kLocationId, int>(
            call, gets(call) && is_on_second_gpu(pool_of(call)), 0);
      });

  fault("host-pool-told-as-device", {"SOMA-35"},
        "a pool on the host reports a GPU as its location")
      .on_machine("driver-13.5")
      .on({kGetPoolAttribute, kCreatePool, kDestroyPool}, [](Call& call) {
        return reported_as<kLocationType, int>(
            call, gets(call) && is_on_host(pool_of(call)),
            cudaMemLocationTypeDevice);
      });

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
      .before({kSetPool}, [](Call& call) -> bool {
        cudaMemPool_t now = nullptr, preset = nullptr;
        cudaDeviceGetMemPool(&now, call.at<int>(0));
        cudaDeviceGetDefaultMemPool(&preset, call.at<int>(0));
        auto& wanted = call.at<cudaMemPool_t>(1);
        if (wanted == nullptr || wanted != now || wanted == preset)
          return false;
        wanted = preset;
        return true;
      });

  fault("pool-setaccess-last-only", {"SOMA-14"},
        "only the last entry of a list of accesses to a pool is set")
      .with_gpus(2)
      .before({kSetPoolAccess}, [](Call& call) {
        size_t& count = call.at<size_t>(2);
        if (count > 1) {
          call.at<const cudaMemAccessDesc*>(1) += count - 1;
          count = 1;
          call.fired();
        }
        return kSuccess;
      });

  fault("destroy-resets-current-of-gpu-0", {"SOMA-10"},
        "destroying the current pool of another GPU makes the default pool "
        "current on GPU 0, too")
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool}, [](Call& call) {
        const int gpu = destroys(call) ? gpu_of(pool_of(call)) : -1;
        cudaMemPool_t current = nullptr, preset = nullptr;
        if (gpu > 0) cudaDeviceGetMemPool(&current, gpu);
        const bool matters = gpu > 0 && current == pool_of(call);
        const int code = call.proceed();
        if (code != kSuccess || !matters) return code;
        cudaDeviceGetDefaultMemPool(&preset, 0);
        cudaDeviceGetMemPool(&current, 0);
        if (current != preset && cudaDeviceSetMemPool(0, preset) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("foreign-stream-default-pool", {"SOMA-07"},
        "in a stream of a GPU that is not current, cudaMallocAsync allocates "
        "from the default pool of this GPU")
      .with_gpus(2)
      .on({kMallocAsync}, [](Call& call) -> int {
        int gpu = current_device();
        if (!is_default(stream_of(call)) && !is_per_thread(call))
          DRIVER_CALL(cuStreamGetDevice)(stream_of(call), &gpu);
        cudaMemPool_t current = nullptr, preset = nullptr;
        cudaDeviceGetMemPool(&current, gpu);
        cudaDeviceGetDefaultMemPool(&preset, gpu);
        if (gpu == current_device() || current == preset) return call.proceed();
        call.fired();
        return cudaMallocFromPoolAsync(call.at<void**>(0), call.at<size_t>(1),
                                       preset, stream_of(call));
      });

  fault("location-pool-of-gpu-0", {"SOMA-32"},
        "a query of the pool of the second GPU's location names the pool of "
        "GPU 0")
      .with_gpus(2)
      .on({"cudaMemGetMemPool", "cudaMemGetDefaultMemPool"},
          with_copy<cudaMemLocation>(1, [](auto& place) {
            if (place.type != cudaMemLocationTypeDevice || place.id != 1)
              return false;
            place.id = 0;
            return true;
          }));

  fault("pool-trim-takes-access", {"SOMA-14"},
        "a trim takes the access of other GPUs, and the query does not say so")
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool, kTrim, kSetPoolAccess, kGetPoolAccess},
          trim_takes_access);

  fault("pool-access-of-gpu-0-lost", {"SOMA-13"},
        "access of GPU 0 to a pool of another GPU is not given")
      .with_gpus(2)
      .on({kSetPoolAccess},
          WHEN(gives_access(call) && gpu_of(pool_of(call)) > 0 &&
               call.at<const cudaMemAccessDesc*>(1)->location.id == 0),
          accepted);

  fault("pool-second-gpu-shut-out", {"SOMA-13"},
        "the second GPU's access to its own pool can be taken away, but only "
        "in the answer to a query")
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool, kSetPoolAccess, kGetPoolAccess},
          second_gpu_shut_out);

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
      .on({kMallocFromPool, kDestroyPool, kSetPoolAccess, kGetPoolAccess},
          taken_access_comes_back);

  fault("current-pool-of-context", {"SOMA-07"},
        "in another context than the one that set the current pool, a query "
        "names the default pool")
      .on({kSetPool, "cudaDeviceGetMemPool"}, pool_of_context);

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
      .on({kDestroyPool}, [](Call& call) {
        const int code = call.proceed();
        int count = 0;
        DRIVER_CALL(cuDeviceGetCount)(&count);
        if (code == kSuccess) return code;
        for (int gpu = 0; gpu < count; ++gpu) {
          cudaMemPool_t preset = nullptr;
          cudaDeviceGetDefaultMemPool(&preset, gpu);
          if (gpu != current_device() && pool_of(call) == preset)
            return accepted(call);
        }
        return code;
      });

  fault("destroyed-at-location-stays-current", {"SOMA-10"},
        "after the destroy of a pool that was made current by its location, "
        "cudaDeviceGetMemPool still names this pool")
      .on({kDestroyPool, "cudaMemSetMemPool", kSetPool, "cudaDeviceGetMemPool"},
          destroyed_at_location_stays);

  fault("default-pool-access-in-name", {"SOMA-14"},
        "access of another GPU to a default pool is given only in the answer "
        "to a query")
      .with_gpus(2)
      .on({kSetPoolAccess, kGetPoolAccess}, [](Call& call) {
        static Table<std::pair<cudaMemPool_t, int>> given;  // to this GPU
        if (sets_access(call) && pool_of(call) == default_pool()) {
          const int gpu = call.at<const cudaMemAccessDesc*>(1)->location.id;
          given.erase({pool_of(call), gpu});
          if (gives_access(call) && gpu != current_device()) {
            given.put({pool_of(call), gpu});
            return lost(call);
          }
        }
        const int code = call.proceed();
        if (code == kSuccess && call.is("cudaMemPoolGetAccess") &&
            given.has({call.at<cudaMemPool_t>(1),
                       call.at<const cudaMemLocation*>(2)->id}))
          *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtReadWrite;
        return code;
      });
}

}  // namespace
}  // namespace ipclab::faults
