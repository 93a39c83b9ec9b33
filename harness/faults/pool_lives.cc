// More bugs of pools and of stream-ordered memory: what an earlier call, an
// earlier pool, or another stream leaves behind.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

constexpr auto kUsed = cudaMemPoolAttrUsedMemCurrent;
constexpr auto kUsedHigh = cudaMemPoolAttrUsedMemHigh;
constexpr auto kReserved = cudaMemPoolAttrReservedMemCurrent;
constexpr auto kReservedHigh = cudaMemPoolAttrReservedMemHigh;
constexpr auto kThreshold = cudaMemPoolAttrReleaseThreshold;
// These are in the headers since CUDA 13.2.
constexpr auto kLocationId = static_cast<cudaMemPoolAttr>(11);
constexpr auto kLocationType = static_cast<cudaMemPoolAttr>(12);
constexpr auto kMaxSize = static_cast<cudaMemPoolAttr>(13);

// The pool, the attribute and the attribute's value in a call of
// cudaMemPoolSetAttribute or cudaMemPoolGetAttribute. For the pool, also in a
// call of cudaMemPoolDestroy or cudaMemPoolTrimTo.
cudaMemPool_t pool_of(Call& call) { return call.at<cudaMemPool_t>(0); }
cudaMemPoolAttr attribute_of(Call& call) { return call.at<cudaMemPoolAttr>(1); }
uint64_t& number_of(Call& call) { return *call.at<uint64_t*>(2); }

bool sets(Call& call) { return call.is("cudaMemPoolSetAttribute"); }
bool gets(Call& call) { return call.is("cudaMemPoolGetAttribute"); }
bool creates(Call& call) { return call.is("cudaMemPoolCreate"); }
bool destroys(Call& call) { return call.is("cudaMemPoolDestroy"); }

int current_gpu() {
  int gpu = 0;
  cudaGetDevice(&gpu);
  return gpu;
}

// The GPU of a stream; the current GPU for the default streams.
int gpu_of_stream(cudaStream_t stream) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    driver<decltype(cuStreamGetCtx_v2)>("cuStreamGetCtx")(stream, &context,
                                                          &green);
  if (context == nullptr ||
      DRIVER_CALL(cuCtxPushCurrent)(context) != CUDA_SUCCESS)
    return current_gpu();
  const int gpu = current_gpu();
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
cudaMemAccessDesc access_of(cudaMemPool_t pool, int gpu) {
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
    auto access = access_of(pool, gpu);
    if (gpu == gpu_of(pool) || access.flags == cudaMemAccessFlagsProtNone)
      continue;
    access.flags = cudaMemAccessFlagsProtNone;
    had |= cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess;
  }
  return had;
}

// --- numbers -----------------------------------------------------------------

// A watermark is the largest value at the times at which the pool was queried.
template <cudaMemPoolAttr current, cudaMemPoolAttr high>
int watermark_of_queries(Call& call) {
  static auto& largest = *new Table<cudaMemPool_t, uint64_t>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (destroys(call) || (sets(call) && attribute_of(call) == high))
    largest.erase(pool_of(call));
  if (!gets(call)) return code;
  const auto now = attribute(pool_of(call), current);
  if (now >= largest.get(pool_of(call))) largest.put(pool_of(call), now);
  if (attribute_of(call) != high ||
      number_of(call) <= largest.get(pool_of(call)))
    return code;
  number_of(call) = largest.get(pool_of(call));
  call.fired();
  return code;
}

// After its reset, the watermark of memory in use does not rise.
int watermark_frozen(Call& call) {
  static auto& frozen = *new Table<cudaMemPool_t, uint64_t>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (destroys(call)) frozen.erase(pool_of(call));
  if (destroys(call) || attribute_of(call) != kUsedHigh) return code;
  if (sets(call))
    frozen.put(pool_of(call), attribute(pool_of(call), kUsed));
  else if (number_of(call) > frozen.get(pool_of(call), UINT64_MAX)) {
    number_of(call) = frozen.get(pool_of(call));
    call.fired();
  }
  return code;
}

// The free of memory of a destroyed pool is counted for the newest pool.
int late_free_counts_elsewhere(Call& call) {
  static auto& orphans = *new Table<void*, uint64_t>;
  static auto& too_few = *new Table<cudaMemPool_t, uint64_t>;
  static cudaMemPool_t newest = nullptr;
  if (destroys(call))
    for (const auto& [address, block] : blocks.all())
      if (block.pool == pool_of(call) && !block.imported)
        orphans.put(address, block.bytes);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (frees(call) && own_pools.has(newest))
    too_few.put(newest, too_few.get(newest) + orphans.get(call.at<void*>(0)));
  if (frees(call)) orphans.erase(call.at<void*>(0));
  if (creates(call)) newest = *call.at<cudaMemPool_t*>(0);
  if (destroys(call)) too_few.erase(pool_of(call));
  if (!gets(call) || attribute_of(call) != kUsed) return code;
  const uint64_t off = std::min(number_of(call), too_few.get(pool_of(call)));
  if (off != 0) call.fired();
  number_of(call) -= off;
  return code;
}

int default_stream_uncounted(Call& call) {
  static auto& uncounted = *new Table<void*>;
  if (frees(call)) uncounted.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (allocates(call) && is_default(call.value<cudaStream_t>(kStream)) &&
      !is_per_thread(call))
    uncounted.put(*call.at<void**>(0));
  if (!gets(call) || attribute_of(call) != kUsed) return code;
  uint64_t sum = 0;
  for (const auto& [address, block] : blocks.all())
    if (block.pool == pool_of(call) && uncounted.has(address))
      sum += block.bytes;
  if (sum == 0 || number_of(call) < sum) return code;
  number_of(call) -= sum;
  return accepted(call);
}

int second_trim_lost(Call& call) {
  static auto& trimmed = *new Table<cudaMemPool_t>;
  if (destroys(call)) trimmed.erase(pool_of(call));
  if (destroys(call)) return call.proceed();
  if (trimmed.has(pool_of(call))) return accepted(call);
  trimmed.put(pool_of(call));
  return call.proceed();
}

// The memory in use does not count towards the memory that trimming keeps.
int trim_keeps_free_memory(Call& call) {
  size_t& kept = call.at<size_t>(1);
  const auto used = attribute(pool_of(call), kUsed);
  if (kept == 0 || used == 0 || kept > SIZE_MAX - used) return call.proceed();
  kept += used;
  call.fired();
  return call.proceed();
}

int trim_resets_used_watermark(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      attribute(pool_of(call), kUsedHigh) == attribute(pool_of(call), kUsed))
    return code;
  uint64_t none = 0;
  cudaMemPoolSetAttribute(pool_of(call), kUsedHigh, &none);
  return accepted(call);
}

int threshold_switches_policies(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || attribute_of(call) != kThreshold) return code;
  for (const auto policy : {cudaMemPoolReuseFollowEventDependencies,
                            cudaMemPoolReuseAllowOpportunistic,
                            cudaMemPoolReuseAllowInternalDependencies}) {
    int on = 1;
    cudaMemPoolGetAttribute(pool_of(call), policy, &on);
    if (on != 0) continue;
    on = 1;
    cudaMemPoolSetAttribute(pool_of(call), policy, &on);
    call.fired();
  }
  return code;
}

// A threshold that is lower than the threshold in force is reported, but has no
// effect: the higher threshold stays in force.
int lower_threshold_without_effect(Call& call) {
  static auto& told_as = *new Table<cudaMemPool_t, uint64_t>;
  if (destroys(call)) told_as.erase(pool_of(call));
  if (destroys(call) || attribute_of(call) != kThreshold) return call.proceed();
  if (gets(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      number_of(call) = told_as.get(pool_of(call), number_of(call));
    return code;
  }
  if (number_of(call) < attribute(pool_of(call), kThreshold)) {
    told_as.put(pool_of(call), number_of(call));
    return accepted(call);
  }
  told_as.erase(pool_of(call));
  return call.proceed();
}

// Does the call reset a watermark?
bool is_reset(Call& call) {
  return sets(call) && is_watermark(attribute_of(call)) && number_of(call) == 0;
}
bool is_trim(Call& call) { return call.is("cudaMemPoolTrimTo"); }

// The calls that `is_meant` selects do nothing in the pools that `is_kind`
// selects, and return success.
template <bool (*is_kind)(cudaMemPool_t), bool (*is_meant)(Call&)>
int lost_in_such_pools(Call& call) {
  return is_meant(call) && is_kind(pool_of(call)) ? accepted(call)
                                                  : call.proceed();
}

// --- which pool is current ---------------------------------------------------

// Allocates from this pool instead of the current one.
int allocated_from(cudaMemPool_t pool, Call& call) {
  const auto code = cudaMallocFromPoolAsync(
      call.at<void**>(0), call.at<size_t>(1), pool, call.at<cudaStream_t>(2));
  call.fired();
  return code;
}

// All allocations of a stream come from the pool of the stream's first
// allocation.
int stream_keeps_pool(Call& call) {
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
  return first.get(stream) != now ? allocated_from(first.get(stream), call)
                                  : call.proceed();
}

// All allocations of a thread on one GPU come from the pool of its first
// allocation there. The first thread of the process is not concerned.
int thread_keeps_pool(Call& call) {
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
}

// After the current pool was destroyed, the next new pool of this GPU becomes
// current.
int next_pool_current(Call& call) {
  static std::atomic<int> without{-1};
  const bool ends_current = destroys(call) && pool_of(call) == current_pool();
  if (call.is("cudaDeviceSetMemPool")) without = -1;
  const int code = call.proceed();
  if (code == kSuccess && ends_current) without = current_gpu();
  if (code != kSuccess || !creates(call)) return code;
  const auto made = *call.at<cudaMemPool_t*>(0);
  if (without < 0 || gpu_of(made) != without) return code;
  cudaDeviceSetMemPool(without.exchange(-1), made);
  return accepted(call);
}

// When the current pool is destroyed, the pool that was current before it is
// current again.
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

int default_not_current_again(Call& call) {
  cudaMemPool_t preset = nullptr, now = nullptr;
  cudaDeviceGetDefaultMemPool(&preset, call.at<int>(0));
  cudaDeviceGetMemPool(&now, call.at<int>(0));
  return now != preset && call.at<cudaMemPool_t>(1) == preset ? accepted(call)
                                                              : call.proceed();
}

// The answer for a location is always the answer to the first query for it.
int pool_of_location_cached(Call& call) {
  static auto& first = *new Table<std::tuple<int, int, int>, cudaMemPool_t>;
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
}

// --- the size of a pool ------------------------------------------------------

int maxsize_rounded_down(Call& call) {
  auto props = *call.at<const cudaMemPoolProps*>(1);
  if (max_size(props) < kGranule || max_size(props) % kGranule == 0)
    return call.proceed();
  max_size(props) -= max_size(props) % kGranule;
  call.at<const cudaMemPoolProps*>(1) = &props;
  call.fired();
  return call.proceed();
}

int maxsize_not_of_current_pool(Call& call) {
  const int code = call.proceed();
  if (code != cudaErrorMemoryAllocation || !call.is("cudaMallocAsync") ||
      max_size(own_pools.get(current_pool())) == 0)
    return code;
  if (call.is_runtime()) cudaGetLastError();
  return allocated_from(default_pool(), call);
}

// A pool that was destroyed keeps the memory that nobody used.
int destroyed_pool_keeps_memory(Call& call) {
  const bool is_own = destroys(call) && own_pools.has(pool_of(call)) &&
                      gpu_of(pool_of(call)) == current_gpu();
  const auto reserved = is_own ? attribute(pool_of(call), kReserved) : 0;
  // On driver 580, memory that cudaFree has freed stays in use here.
  const auto used = is_own ? attribute(pool_of(call), kUsed) : 0;
  const int code = call.proceed();
  void* kept = nullptr;
  if (code == kSuccess && reserved > used &&
      cudaMalloc(&kept, reserved - used) == cudaSuccess)
    call.fired();
  return code;
}

// --- allocations and frees ---------------------------------------------------

int async_frees_first_of_malloc(Call& call) {
  static auto& of_malloc = *new Table<void*>;
  static std::atomic<int> freed{0};
  if (call.is("cudaFreeAsync") && of_malloc.erase(call.at<void*>(0)) &&
      freed++ > 0)
    return accepted(call);
  if (call.is("cudaFree")) of_malloc.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (call.is("cudaMalloc") && code == kSuccess)
    of_malloc.put(*call.at<void**>(0));
  return code;
}

// A free in a stream with a priority does not wait for this stream.
int priority_free_at_once(Call& call) {
  auto& stream = call.value<cudaStream_t>(kStream);
  int priority = 0;
  if (is_default(stream) || stream == cudaStreamPerThread || !is_busy(stream) ||
      DRIVER_CALL(cuStreamGetPriority)(stream, &priority) != CUDA_SUCCESS ||
      priority == 0)
    return call.proceed();
  stream = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

// The importer's free does not wait for its stream if this stream was created
// without cudaStreamNonBlocking. Work that comes too late meets other values.
int import_free_in_blocking_stream(Call& call) {
  if (!call.is("cudaFreeAsync") || !is_import(call.at<void*>(0)))
    return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  unsigned flags = cudaStreamNonBlocking;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    DRIVER_CALL(cuStreamGetFlags)(stream, &flags);
  if (flags != cudaStreamDefault || !is_busy(stream)) return call.proceed();
  void* const address = call.at<void*>(0);
  cudaMemsetAsync(address, 0xDD, blocks.get(address).bytes, private_stream());
  cudaStreamSynchronize(private_stream());
  blocks.erase(address);
  call.fired();
  return cudaFree(address);
}

// Frees that other streams do not know yet.
Table<void*, cudaStream_t> unknown;

// Makes the frees of a stream known, or all frees.
void make_known(bool all, cudaStream_t stream = nullptr) {
  for (const auto& [address, freed_in] : unknown.all())
    if ((all || freed_in == stream) && unknown.erase(address))
      cudaFreeAsync(address, freed_in);
}

// cudaEventSynchronize makes no frees known to other streams. Other
// synchronizations and cudaStreamWaitEvent do.
int event_hides_frees(Call& call) {
  if (call.is("cudaFreeAsync") && blocks.has(call.at<void*>(0)) &&
      !is_import(call.at<void*>(0)) && !is_captured(call.at<cudaStream_t>(1))) {
    unknown.put(call.at<void*>(0), call.at<cudaStream_t>(1));
    blocks.erase(call.at<void*>(0));
    return kSuccess;
  }
  if (call.is("cudaEventSynchronize")) {
    if (!unknown.all().empty()) call.fired();
  } else if (allocates(call)) {
    make_known(false, call.value<cudaStream_t>(kStream));
  } else {
    make_known(true);
  }
  return call.proceed();
}

// cudaStreamSynchronize of a per-thread default stream does not make the frees
// of this stream known.
int per_thread_sync_hides_frees(Call& call) {
  if (call.is("cudaFreeAsync") && blocks.has(call.at<void*>(0)) &&
      is_per_thread(call) && !is_captured(cudaStreamPerThread)) {
    unknown.put(call.at<void*>(0), cudaStreamPerThread);
    blocks.erase(call.at<void*>(0));
    return kSuccess;
  }
  if (call.is("cudaStreamSynchronize") && is_per_thread(call)) {
    if (!unknown.all().empty()) call.fired();
  } else if (allocates(call)) {
    if (is_per_thread(call)) make_known(true);
  } else {
    make_known(true);
  }
  return call.proceed();
}

int named_stream_needs_context(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  return !call.is_runtime() && !is_default(stream) &&
                 stream != cudaStreamPerThread && current_context() == nullptr
             ? refused(call, CUDA_ERROR_INVALID_CONTEXT)
             : call.proceed();
}

// An allocation is refused if the pool and the stream are on different GPUs.
int foreign_stream_refused(Call& call) {
  if (!call.is("cudaMallocFromPoolAsync")) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  const int gpu = gpu_of(call.at<cudaMemPool_t>(2));
  return gpu >= 0 && !is_default(stream) && stream != cudaStreamPerThread &&
                 gpu_of_stream(stream) != gpu
             ? refused(call)
             : call.proceed();
}

// --- access ------------------------------------------------------------------

int access_ends_with_current(Call& call) {
  if (!call.is("cudaDeviceSetMemPool")) return call.proceed();
  cudaMemPool_t before = nullptr;
  cudaDeviceGetMemPool(&before, call.at<int>(0));
  const int code = call.proceed();
  if (code == kSuccess && own_pools.has(before) &&
      before != call.at<cudaMemPool_t>(1) && take_access(before))
    call.fired();
  return code;
}

int access_ends_with_export(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolExportToShareableHandle") &&
      take_access(call.at<cudaMemPool_t>(1)))
    call.fired();
  return code;
}

// Other GPUs have the same access to a new pool as to the pool that was created
// before it on the same GPU.
int access_of_earlier_pool(Call& call) {
  static std::atomic<cudaMemPool_t> last{nullptr};
  const int code = call.proceed();
  if (code != kSuccess || !creates(call)) return code;
  const auto made = *call.at<cudaMemPool_t*>(0);
  const auto before = last.exchange(made);
  if (!own_pools.has(before) || gpu_of(before) != gpu_of(made)) return code;
  for (int gpu = 0; gpu < count_of_gpus(); ++gpu) {
    const auto access = access_of(before, gpu);
    if (gpu == gpu_of(made) || access.flags == cudaMemAccessFlagsProtNone)
      continue;
    cudaMemPoolSetAccess(made, &access, 1);
    call.fired();
  }
  return code;
}

// --- what queries say --------------------------------------------------------

bool names_pool(const void* handle) {
  return *static_cast<const cudaMemPool_t*>(handle) != nullptr;
}

// An address after the first byte of an allocation belongs to no pool.
int pool_of_first_byte_only(Call& call) {
  if (!call.is("cuPointerGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || blocks.has(call.at<void*>(2)) ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE ||
      !names_pool(call.at<void*>(0)))
    return code;
  *call.at<cudaMemPool_t*>(0) = nullptr;
  return accepted(call);
}

// The query of several attributes reports no pool.
int pool_untold_among_several(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto* const wanted = call.at<const CUpointer_attribute*>(1);
  void** const results = call.at<void**>(2);
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
    if (wanted[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
        names_pool(results[i])) {
      *static_cast<cudaMemPool_t*>(results[i]) = nullptr;
      call.fired();
    }
  return code;
}

// A pool for which `applies` is true reports `value` for the attribute `which`.
template <cudaMemPoolAttr which, class Value>
int reported_as(Call& call, bool applies, Value value) {
  const int code = call.proceed();
  if (code != kSuccess || !gets(call) || attribute_of(call) != which ||
      !applies || *call.at<Value*>(2) == value)
    return code;
  *call.at<Value*>(2) = value;
  return accepted(call);
}

int maxsize_untold(Call& call) {
  return reported_as<kMaxSize, uint64_t>(call, true, 0);
}
int location_id_zero(Call& call) {
  return reported_as<kLocationId, int>(
      call, gets(call) && is_on_second_gpu(pool_of(call)), 0);
}
int host_pool_told_as_device(Call& call) {
  return reported_as<kLocationType, int>(
      call, gets(call) && is_on_host(pool_of(call)), cudaMemLocationTypeDevice);
}

bool asks_import(Call& call, cudaMemPoolAttr which) {
  return gets(call) && attribute_of(call) == which &&
         imported_pools.has(pool_of(call));
}

int import_watermark_zero(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !asks_import(call, kUsedHigh) || number_of(call) == 0)
    return code;
  number_of(call) = 0;
  return accepted(call);
}

// After the first free of imported memory, its pool reports that nothing is in
// use.
int import_unused_after_free(Call& call) {
  static auto& freed = *new Table<cudaMemPool_t>;
  if (frees(call) && is_import(call.at<void*>(0)))
    freed.put(blocks.get(call.at<void*>(0)).pool);
  if (destroys(call)) freed.erase(pool_of(call));
  const int code = call.proceed();
  if (code != kSuccess || !asks_import(call, kUsed) ||
      !freed.has(pool_of(call)) || number_of(call) == 0)
    return code;
  number_of(call) = 0;
  return accepted(call);
}

// --- exports and imports -----------------------------------------------------

int exports_end_at_16(Call& call) {
  static auto& exports = *new Table<cudaMemPool_t, int>;
  if (destroys(call)) exports.erase(pool_of(call));
  if (destroys(call)) return call.proceed();
  const auto pool = call.at<cudaMemPool_t>(1);
  if (exports.get(pool) >= 16) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) exports.put(pool, exports.get(pool) + 1);
  return code;
}

// The 65th exported pointer of a pool gets the data of the first one.
int pointer_65_as_first(Call& call) {
  static auto& first = *new Table<cudaMemPool_t, cudaMemPoolPtrExportData>;
  static auto& counts = *new Table<cudaMemPool_t, int>;
  const int code = call.proceed();
  if (destroys(call)) counts.erase(pool_of(call));
  if (code != kSuccess || !call.is("cudaMemPoolExportPointer")) return code;
  const auto pool = blocks.get(call.at<void*>(1)).pool;
  auto& data = *call.at<cudaMemPoolPtrExportData*>(0);
  counts.put(pool, counts.get(pool) + 1);
  if (counts.get(pool) == 1) first.put(pool, data);
  if (counts.get(pool) != 65) return code;
  data = first.get(pool);
  return accepted(call);
}

// An allocation gets the export data of an earlier allocation at its address.
int data_cached_by_address(Call& call) {
  static auto& known = *new Table<void*, cudaMemPoolPtrExportData>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  void* const address = call.at<void*>(1);
  auto& data = *call.at<cudaMemPoolPtrExportData*>(0);
  if (!known.has(address)) known.put(address, data);
  const auto earlier = known.get(address);
  if (std::memcmp(&earlier, &data, sizeof data) == 0) return code;
  data = earlier;
  return accepted(call);
}

// An import takes as much memory of the GPU as the allocation has.
int import_takes_memory(Call& call) {
  static auto& taken = *new Table<void*, void*>;
  if (frees(call) && taken.has(call.at<void*>(0))) {
    cudaFreeAsync(taken.get(call.at<void*>(0)), private_stream());
    taken.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  void* more = nullptr;
  void* const address = *call.at<void**>(0);
  const size_t bytes = blocks.get(address).bytes;
  if (bytes == 0 || cudaMalloc(&more, bytes) != cudaSuccess) return code;
  taken.put(address, more);
  return accepted(call);
}

// The type of the handle is checked only until the first export of a pool has
// succeeded.
int type_unchecked_later(Call& call) {
  static auto& exported = *new Table<cudaMemPool_t>;
  if (!call.is("cudaMemPoolExportToShareableHandle")) return call.proceed();
  const int code = call.proceed();
  const auto pool = call.at<cudaMemPool_t>(1);
  if (code == kSuccess) exported.put(pool);
  if (code == kSuccess || !exported.has(pool) || call.at<unsigned>(3) != 0 ||
      call.at<cudaMemAllocationHandleType>(2) ==
          own_pools.get(pool).handleTypes)
    return code;
  call.at<cudaMemAllocationHandleType>(2) = own_pools.get(pool).handleTypes;
  if (call.proceed() != kSuccess) return code;
  return accepted(call);
}

// Flags are checked only until the first import of a pool has succeeded.
int import_flags_unchecked_later(Call& call) {
  static std::atomic<bool> imported{false};
  const auto flags =
      call.is_runtime() ? call.at<unsigned>(3) : call.at<unsigned long long>(3);
  const bool ignores = flags != 0 && imported;
  if (ignores && call.is_runtime()) call.at<unsigned>(3) = 0;
  if (ignores && !call.is_runtime()) call.at<unsigned long long>(3) = 0;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  imported = true;
  if (ignores) call.fired();
  return code;
}

// In the default stream, an allocation from an imported pool comes from the
// default pool.
int import_allocates_in_default_stream(Call& call) {
  if (!call.is("cudaMallocFromPoolAsync")) return call.proceed();
  auto& pool = call.at<cudaMemPool_t>(2);
  if (!imported_pools.has(pool) ||
      (!is_default(call.value<cudaStream_t>(kStream)) && !is_per_thread(call)))
    return call.proceed();
  pool = default_pool();
  call.fired();
  return call.proceed();
}

int destroyed_by_other_thread_refused(Call& call) {
  static auto& threads = *new Table<cudaMemPool_t, int>;
  if (destroys(call)) {
    if (threads.has(pool_of(call)) &&
        threads.get(pool_of(call)) != this_thread())
      return refused(call);
    threads.erase(pool_of(call));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess) threads.put(*call.at<cudaMemPool_t*>(0), this_thread());
  return code;
}

const char* const kCreate = "cudaMemPoolCreate";
const char* const kDestroy = "cudaMemPoolDestroy";
const char* const kTrim = "cudaMemPoolTrimTo";
const char* const kSet = "cudaMemPoolSetAttribute";
const char* const kGet = "cudaMemPoolGetAttribute";
const char* const kMalloc = "cudaMallocAsync";
const char* const kFromPool = "cudaMallocFromPoolAsync";
const char* const kFree = "cudaFree";
const char* const kFreeAsync = "cudaFreeAsync";
const char* const kSetPool = "cudaDeviceSetMemPool";
const char* const kExport = "cudaMemPoolExportToShareableHandle";
const char* const kImport = "cudaMemPoolImportFromShareableHandle";
const char* const kImportPointer = "cudaMemPoolImportPointer";
const char* const kExportPointer = "cudaMemPoolExportPointer";

void add_numbers(List& list) {
  list.named(
      "used-watermark-of-queries",
      "UsedMemHigh is the largest value that UsedMemCurrent had when the "
      "pool was queried",
      {kGet, kSet, kDestroy}, watermark_of_queries<kUsed, kUsedHigh>);
  list.named("reserved-watermark-of-queries",
             "ReservedMemHigh is the largest value that ReservedMemCurrent had "
             "when the pool was queried",
             {kGet, kSet, kDestroy},
             watermark_of_queries<kReserved, kReservedHigh>);
  list.named("used-watermark-frozen",
             "after its reset, the watermark of memory in use does not rise",
             {kGet, kSet, kDestroy}, watermark_frozen);
  list.named("late-free-counts-for-new-pool",
             "a free of memory of a destroyed pool is counted in a pool that "
             "was created later",
             {kGet, kCreate, kDestroy, kMalloc, kFromPool, kFree, kFreeAsync},
             late_free_counts_elsewhere);
  list.named("used-misses-default-stream",
             "memory that was allocated in the default stream does not count "
             "as used",
             {kGet, kMalloc, kFromPool, kFree, kFreeAsync},
             default_stream_uncounted);
  list.named("trim-second-lost", "only the first trim of a pool has an effect",
             {kTrim, kDestroy}, second_trim_lost);
  list.named("trim-keeps-free-memory",
             "memory in use does not count towards the size that a trim keeps",
             {kTrim}, trim_keeps_free_memory);
  list.named("trim-resets-used-watermark",
             "a trim resets the watermark of memory in use", {kTrim},
             trim_resets_used_watermark);
  list.named("threshold-switches-policies",
             "setting the release threshold switches the reuse policies on",
             {kSet}, threshold_switches_policies);
  list.named("threshold-lowered-no-effect",
             "a release threshold that is lower than the threshold in force "
             "has no effect",
             {kSet, kGet, kDestroy}, lower_threshold_without_effect);
  list.named("host-pool-trim-lost", "trimming a pool on the host does nothing",
             {kTrim, kCreate, kDestroy},
             lost_in_such_pools<is_on_host, is_trim>);
  list.named("host-pool-watermark-not-reset",
             "the watermarks of a pool on the host cannot be reset",
             {kSet, kCreate, kDestroy},
             lost_in_such_pools<is_on_host, is_reset>);
  list.named("second-gpu-watermark-not-reset",
             "the watermarks of a pool of the second GPU cannot be reset",
             {kSet, kCreate, kDestroy},
             lost_in_such_pools<is_on_second_gpu, is_reset>, 2);
}

void add_current_pools(List& list) {
  list.named("stream-keeps-pool",
             "a stream goes on allocating from the pool that was current at "
             "its first allocation",
             {kMalloc, kDestroy, "cudaStreamDestroy"}, stream_keeps_pool);
  list.named("second-thread-keeps-pool",
             "a second thread goes on allocating from the pool that was "
             "current at its first allocation",
             {kMalloc, kDestroy}, thread_keeps_pool);
  list.named("new-pool-replaces-destroyed",
             "after the current pool was destroyed, the next new pool becomes "
             "current",
             {kCreate, kDestroy, kSetPool}, next_pool_current);
  list.named("destroy-returns-to-previous",
             "when the current pool is destroyed, the pool that was current "
             "before it becomes current",
             {kCreate, kDestroy, kSetPool}, previous_pool_current);
  list.named("default-not-current-again",
             "a call that makes the default pool current again succeeds and "
             "does nothing",
             {kSetPool}, default_not_current_again);
  list.named("location-pool-cached",
             "cudaMemGetMemPool always returns the pool that its first call "
             "for this location returned",
             {"cudaMemGetMemPool"}, pool_of_location_cached);
  list.named("maxsize-rounded-down",
             "the maximal size of a pool is rounded down to a multiple of "
             "2 MiB",
             {kCreate}, maxsize_rounded_down);
  list.named("maxsize-not-of-current-pool",
             "if the current pool is full, cudaMallocAsync takes memory of the "
             "default pool",
             {kMalloc, kCreate, kDestroy}, maxsize_not_of_current_pool);
  list.named("destroy-keeps-unused",
             "a destroyed pool does not give back the memory that nobody used",
             {kCreate, kDestroy}, destroyed_pool_keeps_memory);
}

void add_frees(List& list) {
  list.named("freeasync-malloc-first-only",
             "cudaFreeAsync frees only the first memory of cudaMalloc that it "
             "gets",
             {kFreeAsync, kFree, "cudaMalloc"}, async_frees_first_of_malloc);
  list.named("priority-free-at-once",
             "a free in a stream with a priority does not wait for this stream",
             {kFreeAsync}, priority_free_at_once);
  list.named(
      "import-free-blocking-at-once",
      "the importer's free in a stream that was created without "
      "cudaStreamNonBlocking does not wait, and the memory gets other values",
      {kFromPool, kExportPointer, kImportPointer, kFree, kFreeAsync},
      import_free_in_blocking_stream);
  list.named(
      "event-sync-does-not-release",
      "cudaEventSynchronize makes no free known to other streams",
      {kFreeAsync, kMalloc, kFromPool, "cudaEventSynchronize",
       "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaStreamWaitEvent",
       kDestroy, "cudaStreamDestroy", "cuCtxSynchronize"},
      event_hides_frees);
  list.named("per-thread-sync-does-not-release",
             "cudaStreamSynchronize of a per-thread default stream does not "
             "make freed memory available to other streams",
             {kFreeAsync, kMalloc, kFromPool, "cudaEventSynchronize",
              "cudaStreamSynchronize", "cudaDeviceSynchronize",
              "cudaStreamWaitEvent", kDestroy, "cuCtxSynchronize"},
             per_thread_sync_hides_frees);
  list.named("async-named-stream-needs-context",
             "in a thread without a context, the driver API also refuses "
             "streams that are not default streams",
             {kMalloc, kFromPool, kFreeAsync}, named_stream_needs_context);
  list.named("frompool-foreign-stream-refused",
             "an allocation from a created pool in a created stream of another "
             "GPU is refused",
             {kFromPool, kCreate, kDestroy}, foreign_stream_refused, 2);
  list.named("pool-access-ends-with-current",
             "other GPUs lose their access to a pool when this pool is no "
             "longer the current pool",
             {kSetPool, kCreate, kDestroy}, access_ends_with_current, 2);
  list.named("pool-access-ends-with-export",
             "other GPUs lose their access to a pool when the pool is exported",
             {kExport, kCreate, kDestroy}, access_ends_with_export, 2);
  list.named("pool-access-of-earlier-pool",
             "other GPUs have the same access to a new pool as to the pool "
             "that was created before it",
             {kCreate, kDestroy}, access_of_earlier_pool, 2);
}

void add_answers_of_pools(List& list) {
  list.named("mempool-attr-first-byte-only",
             "only the start of an allocation is reported as memory of a pool",
             {"cuPointerGetAttribute", kMalloc, kFromPool, kImportPointer,
              kFree, kFreeAsync},
             pool_of_first_byte_only);
  list.named("mempool-attr-not-among-several",
             "a query of several attributes at once reports no pool",
             {"cuPointerGetAttributes"}, pool_untold_among_several);
  list.named("pool-maxsize-untold", "a pool reports no maximal size", {kGet},
             maxsize_untold);
  list.named("pool-location-of-gpu-0",
             "a pool of the second GPU reports GPU 0 as its location",
             {kGet, kCreate, kDestroy}, location_id_zero, 2);
  list.named("host-pool-told-as-device",
             "a pool on the host reports a GPU as its location",
             {kGet, kCreate, kDestroy}, host_pool_told_as_device);
  list.named("import-watermark-zero",
             "the watermark of memory in use of an imported pool is always 0",
             {kGet, kImport, kDestroy}, import_watermark_zero);
  list.named("import-unused-after-free",
             "after one free, an imported pool reports that nothing is in use",
             {kGet, kImport, kDestroy, kImportPointer, kFree, kFreeAsync},
             import_unused_after_free);
}

void add_sharing(List& list) {
  list.named("pool-exports-end-at-16",
             "a pool cannot be exported more than 16 times",
             {kExport, kDestroy}, exports_end_at_16);
  list.named("exportptr-65th-is-first",
             "the 65th exported pointer of a pool gets the data of the first",
             {kExportPointer, kDestroy, kMalloc, kFromPool, kFree, kFreeAsync},
             pointer_65_as_first);
  list.named("exportptr-cached-by-address",
             "an allocation gets the export data of an earlier allocation at "
             "its address",
             {kExportPointer}, data_cached_by_address);
  list.named("importptr-takes-memory",
             "an imported pointer takes as much memory of the GPU as the "
             "allocation has",
             {kFromPool, kExportPointer, kImportPointer, kFree, kFreeAsync},
             import_takes_memory);
  list.named("pool-export-type-unchecked-later",
             "after its first export, a pool is exported as a descriptor "
             "whatever handle type is asked for",
             {kExport, kCreate, kDestroy}, type_unchecked_later);
  list.named("pool-import-flags-unchecked-later",
             "after the first import of a pool, the flags are not checked",
             {kImport}, import_flags_unchecked_later);
  list.named("import-pool-allocates-in-default-stream",
             "in the default stream, an allocation from an imported pool takes "
             "memory of the default pool",
             {kFromPool, kImport, kDestroy},
             import_allocates_in_default_stream);
  list.named("import-destroy-other-thread-refused",
             "only the thread that has imported a pool can destroy it",
             {kImport, kDestroy}, destroyed_by_other_thread_refused);
}

}  // namespace

void add_pool_lives(List& list) {
  add_numbers(list);
  add_current_pools(list);
  add_frees(list);
  add_answers_of_pools(list);
  add_sharing(list);
}

}  // namespace ipclab::faults
