// More bugs of stream-ordered memory and of pools: numbers at the limit of
// their range, places other than a GPU, other threads, a second export, the
// call after a refusal, answers of queries.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>

#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

// The pool, the attribute and the attribute's value in a call of
// cudaMemPoolSetAttribute or cudaMemPoolGetAttribute. For the pool, also in a
// call of cudaMemPoolDestroy, cudaMemPoolTrimTo or cudaMemPoolSetAccess.
cudaMemPool_t pool_of(Call& call) { return call.at<cudaMemPool_t>(0); }
cudaMemPoolAttr attribute_of(Call& call) { return call.at<cudaMemPoolAttr>(1); }
uint64_t& number_of(Call& call) { return *call.at<uint64_t*>(2); }

// --- sizes and attributes ----------------------------------------------------

int threshold_signed(Call& call) {
  if (attribute_of(call) != cudaMemPoolAttrReleaseThreshold ||
      number_of(call) >> 63 == 0)
    return call.proceed();
  uint64_t stored = 0;
  call.at<uint64_t*>(2) = &stored;
  call.fired();
  return call.proceed();
}

// A pool whose threshold was never set reports 2 MiB.
int threshold_begins_with_granule(Call& call) {
  static auto& set = *new Table<cudaMemPool_t>;
  if (call.is("cudaMemPoolSetAttribute")) {
    const int done = call.proceed();
    if (done == kSuccess &&
        attribute_of(call) == cudaMemPoolAttrReleaseThreshold)
      set.put(pool_of(call));
    return done;
  }
  if (call.is("cudaMemPoolCreate") || call.is("cudaMemPoolDestroy")) {
    const int code = call.proceed();
    if (call.is("cudaMemPoolCreate") && code == kSuccess)
      set.erase(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess ||
      attribute_of(call) != cudaMemPoolAttrReleaseThreshold ||
      !own_pools.has(pool_of(call)) || set.has(pool_of(call)))
    return code;
  number_of(call) = kGranule;
  call.fired();
  return code;
}

// A call that should give back memory above the threshold gives back nothing.
int memory_kept(Call& call) {
  if (!call.is("cudaEventSynchronize") && !call.is("cudaStreamSynchronize"))
    return call.proceed();
  std::map<cudaMemPool_t, uint64_t> thresholds;
  for (const auto& [pool, props] : own_pools.all()) {
    const auto now = attribute(pool, cudaMemPoolAttrReleaseThreshold);
    if (attribute(pool, cudaMemPoolAttrReservedMemCurrent) <= now) continue;
    thresholds[pool] = now;
    uint64_t most = UINT64_MAX;
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most);
    call.fired();
  }
  const int code = call.proceed();
  for (auto& [pool, now] : thresholds)
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &now);
  return code;
}

int large_trim_refused(Call& call) {
  return call.at<size_t>(1) >
                 attribute(pool_of(call), cudaMemPoolAttrReservedMemCurrent)
             ? refused(call)
             : call.proceed();
}

int trim_rounds_down(Call& call) {
  size_t& kept = call.at<size_t>(1);
  if (kept % kGranule == 0) return call.proceed();
  const bool matters =
      kept < attribute(pool_of(call), cudaMemPoolAttrReservedMemCurrent);
  kept -= kept % kGranule;
  if (matters) call.fired();
  return call.proceed();
}

int reserved_watermark_any_value(Call& call) {
  const int code = call.proceed();
  return code != kSuccess &&
                 attribute_of(call) == cudaMemPoolAttrReservedMemHigh
             ? accepted(call)
             : code;
}

int watermark_resets_once(Call& call) {
  static auto& done = *new Table<cudaMemPool_t>;
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    // The pool may have the handle of an earlier one.
    if (code == kSuccess) done.erase(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (!is_watermark(attribute_of(call))) return call.proceed();
  if (done.has(pool_of(call)) && number_of(call) == 0) return accepted(call);
  const int code = call.proceed();
  if (code == kSuccess) done.put(pool_of(call));
  return code;
}

int reserved_watermark_of_use(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || attribute_of(call) != cudaMemPoolAttrReservedMemHigh)
    return code;
  const auto used = attribute(pool_of(call), cudaMemPoolAttrUsedMemHigh);
  if (used != number_of(call)) call.fired();
  number_of(call) = used;
  return code;
}

int import_uses_nothing(Call& call) {
  if (!call.is("cudaMemPoolGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || attribute_of(call) != cudaMemPoolAttrUsedMemCurrent ||
      !imported_pools.has(pool_of(call)) || number_of(call) == 0)
    return code;
  number_of(call) = 0;
  call.fired();
  return code;
}

// A policy is read as 8 bytes.
int policy_read_too_wide(Call& call) {
  if (attribute_of(call) > cudaMemPoolReuseAllowInternalDependencies)
    return call.proceed();
  int words[2];
  std::memcpy(words, call.at<void*>(2), sizeof words);
  if (words[0] != 0 || words[1] == 0) return call.proceed();
  int on = 1;
  call.at<int*>(2) = &on;
  call.fired();
  return call.proceed();
}

int full_size_refused(Call& call) {
  if (!allocates(call)) return call.proceed();
  const auto pool = call.is("cudaMallocFromPoolAsync")
                        ? call.at<cudaMemPool_t>(2)
                        : current_pool();
  const size_t most = max_size(own_pools.get(pool));
  return most != 0 && call.at<size_t>(1) == most
             ? refused(call, cudaErrorMemoryAllocation)
             : call.proceed();
}

// --- pools of a place --------------------------------------------------------

// The refusal of a pool at a location of this type has the code "not
// supported".
template <cudaMemLocationType type>
int refused_as_unsupported(Call& call) {
  const int code = call.proceed();
  return code != kSuccess &&
                 call.at<const cudaMemPoolProps*>(1)->location.type == type
             ? refused(call, cudaErrorNotSupported)
             : code;
}

// The default pool of the host stays the current pool.
int set_on_host_ignored(Call& call) {
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
}

int foreign_pool_at_location(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cudaMemSetMemPool")) return code;
  const auto& location = *call.at<const cudaMemLocation*>(0);
  const int gpu = gpu_of(call.at<cudaMemPool_t>(2));
  return location.type == cudaMemLocationTypeDevice && gpu >= 0 &&
                 gpu != location.id
             ? accepted(call)
             : code;
}

// After the second GPU's current pool was destroyed, a new pool is current
// there instead of the default pool.
int destroyed_stays_on_second_gpu(Call& call) {
  if (!call.is("cudaMemPoolDestroy")) return call.proceed();
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
}

// --- access ------------------------------------------------------------------

int own_access_untold(Call& call) {
  if (!call.is("cudaMemPoolGetAccess")) return call.proceed();
  const int code = call.proceed();
  const auto& location = *call.at<const cudaMemLocation*>(2);
  if (code != kSuccess || location.type != cudaMemLocationTypeDevice ||
      gpu_of(call.at<cudaMemPool_t>(1)) != location.id)
    return code;
  *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
  return accepted(call);
}

int access_ends_with_trim(Call& call) {
  const int code = call.proceed();
  const int own = gpu_of(pool_of(call));
  int gpus = 0;
  if (code != kSuccess || !call.is("cudaMemPoolTrimTo") || own < 0 ||
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

// --- allocations and frees ---------------------------------------------------

int named_pool_ignored_per_thread(Call& call) {
  auto& pool = call.at<cudaMemPool_t>(2);
  if (!is_per_thread(call) || pool == current_pool()) return call.proceed();
  pool = current_pool();
  call.fired();
  return call.proceed();
}

int freed_by_cuda_free_lost(Call& call) {
  return call.is("cudaFree") && blocks.has(call.at<void*>(0)) &&
                 !is_import(call.at<void*>(0))
             ? accepted(call)
             : call.proceed();
}

int free_of_other_thread_lost(Call& call) {
  static auto& threads = *new Table<void*, int>;
  if (allocates(call)) {
    const int code = call.proceed();
    if (code == kSuccess) threads.put(*call.at<void**>(0), this_thread());
    return code;
  }
  if (threads.has(call.at<void*>(0)) &&
      threads.get(call.at<void*>(0)) != this_thread())
    return accepted(call);
  threads.erase(call.at<void*>(0));
  return call.proceed();
}

int legacy_stream_refused(Call& call) {
  return call.is_runtime() &&
                 call.value<cudaStream_t>(kStream) == cudaStreamLegacy
             ? refused(call, cudaErrorInvalidResourceHandle)
             : call.proceed();
}

int no_context_as_value(Call& call) {
  const int code = call.proceed();
  return code == CUDA_ERROR_INVALID_CONTEXT ? refused(call) : code;
}

int no_context_accepted(Call& call) {
  const int code = call.proceed();
  if (code != CUDA_ERROR_INVALID_CONTEXT) return code;
  CUcontext context = nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRetain)(&context, 0);
  DRIVER_CALL(cuCtxPushCurrent)(context);
  const int now = call.proceed();
  if (now == kSuccess) call.fired();
  DRIVER_CALL(cuCtxPopCurrent)(&context);
  return now;
}

// --- processes ---------------------------------------------------------------

// The second exported pointer of a pool gets the data of the first pointer.
int exported_as_first(Call& call) {
  static auto& first = *new Table<cudaMemPool_t, cudaMemPoolPtrExportData>;
  static auto& pointers = *new Table<cudaMemPool_t, void*>;
  if (!call.is("cudaMemPoolExportPointer")) {
    // After the free, other memory may get the address, and another pool the
    // handle.
    if (frees(call))
      for (const auto& [pool, pointer] : pointers.all())
        if (pointer == call.at<void*>(0)) pointers.erase(pool);
    return call.proceed();
  }
  const int code = call.proceed();
  void* const exported = call.at<void*>(1);
  if (code != kSuccess || !blocks.has(exported)) return code;
  const auto pool = blocks.get(exported).pool;
  auto& data = *call.at<cudaMemPoolPtrExportData*>(0);
  if (!pointers.has(pool)) {
    first.put(pool, data);
    pointers.put(pool, exported);
  }
  if (pointers.get(pool) == exported) return code;
  data = first.get(pool);
  return accepted(call);
}

int descriptor_consumed(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<int>(2) != cudaMemHandleTypePosixFileDescriptor)
    return code;
  close(static_cast<int>(call.at<intptr_t>(1)));
  return accepted(call);
}

int pointer_of_other_thread_refused(Call& call) {
  static auto& threads = *new Table<cudaMemPool_t, int>;
  if (call.is("cudaMemPoolImportFromShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess)
      threads.put(*call.at<cudaMemPool_t*>(0), this_thread());
    return code;
  }
  const auto pool = call.at<cudaMemPool_t>(1);
  return threads.has(pool) && threads.get(pool) != this_thread()
             ? refused(call)
             : call.proceed();
}

int import_told_as_host(Call& call) {
  if (!call.is("cuPointerGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
      !is_import(call.at<void*>(2)))
    return code;
  *call.at<unsigned*>(0) = CU_MEMORYTYPE_HOST;
  return accepted(call);
}

int import_told_as_managed(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !is_import(call.at<void*>(1))) return code;
  call.at<cudaPointerAttributes*>(0)->type = cudaMemoryTypeManaged;
  return accepted(call);
}

// After an export, a memset by the exporter is lost.
int set_after_export_lost(Call& call) {
  static auto& exported = *new Table<void*>;
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    if (code == kSuccess) exported.put(call.at<void*>(1));
    return code;
  }
  if (frees(call)) exported.erase(call.at<void*>(0));
  return !frees(call) && exported.has(call.at<void*>(0)) ? accepted(call)
                                                         : call.proceed();
}

// --- calls that change the next call -----------------------------------------

// A call has an effect only in the thread that has created the pool.
int of_creators_thread_only(Call& call) {
  static auto& threads = *new Table<cudaMemPool_t, int>;
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    if (code == kSuccess)
      threads.put(*call.at<cudaMemPool_t*>(0), this_thread());
    return code;
  }
  return threads.has(pool_of(call)) &&
                 threads.get(pool_of(call)) != this_thread()
             ? accepted(call)
             : call.proceed();
}

int threshold_rounded(Call& call) {
  if (attribute_of(call) != cudaMemPoolAttrReleaseThreshold ||
      number_of(call) % kGranule == 0 || number_of(call) == UINT64_MAX)
    return call.proceed();
  uint64_t rounded = number_of(call) - number_of(call) % kGranule;
  call.at<uint64_t*>(2) = &rounded;
  call.fired();
  return call.proceed();
}

bool is_current_gpu(int gpu) {
  int current = 0;
  cudaGetDevice(&current);
  return gpu == current;
}

int export_needs_current_gpu(Call& call) {
  if (!call.is("cudaMemPoolExportToShareableHandle")) return call.proceed();
  const int gpu = gpu_of(call.at<cudaMemPool_t>(1));
  return gpu >= 0 && !is_current_gpu(gpu) ? refused(call) : call.proceed();
}

int pointer_export_needs_current_gpu(Call& call) {
  if (!call.is("cudaMemPoolExportPointer")) return call.proceed();
  const int gpu = gpu_of(blocks.get(call.at<void*>(1)).pool);
  return gpu >= 0 && !is_current_gpu(gpu) ? refused(call) : call.proceed();
}

int statistics_of_current_gpu_only(Call& call) {
  if (!call.is("cudaMemPoolGetAttribute")) return call.proceed();
  const int code = call.proceed();
  const int gpu = gpu_of(pool_of(call));
  if (code != kSuccess || attribute_of(call) != cudaMemPoolAttrUsedMemCurrent ||
      gpu < 0 || is_current_gpu(gpu) || number_of(call) == 0)
    return code;
  number_of(call) = 0;
  return accepted(call);
}

// The driver's flags have 64 bits. Only the lower half is checked.
int upper_flags_ignored(Call& call) {
  if (call.is_runtime()) return call.proceed();
  auto& flags = call.at<unsigned long long>(3);
  if (flags >> 32 != 0) {
    flags &= UINT32_MAX;
    call.fired();
  }
  return call.proceed();
}

int pools_end_at_32(Call& call) {
  if (call.is("cudaMemPoolCreate") && own_pools.all().size() >= 32)
    return refused(call);
  return call.proceed();
}

int blocks_end_at_256(Call& call) {
  if (!allocates(call)) return call.proceed();
  size_t mine = 0;
  for (const auto& [address, block] : blocks.all()) mine += !block.imported;
  return mine >= 256 ? refused(call) : call.proceed();
}

// A size that is not a multiple of 512 bytes is rounded down.
int size_rounded_down(Call& call) {
  constexpr size_t kUnit = 512;
  auto& bytes = call.at<size_t>(1);
  if (bytes < kUnit || bytes % kUnit == 0) return call.proceed();
  bytes -= bytes % kUnit;
  call.fired();
  return call.proceed();
}

// --- kinds of pools ----------------------------------------------------------

// Two policies have each other's effect.
int policies_exchanged(Call& call) {
  auto& which = call.at<cudaMemPoolAttr>(1);
  if (which == cudaMemPoolReuseFollowEventDependencies) {
    which = cudaMemPoolReuseAllowOpportunistic;
    call.fired();
  } else if (which == cudaMemPoolReuseAllowOpportunistic) {
    which = cudaMemPoolReuseFollowEventDependencies;
    call.fired();
  }
  return call.proceed();
}

bool is_threshold(cudaMemPoolAttr which) {
  return which == cudaMemPoolAttrReleaseThreshold;
}
bool is_default_pool(cudaMemPool_t pool) {
  int gpus = 0;
  DRIVER_CALL(cuDeviceGetCount)(&gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cudaMemPool_t preset = nullptr;
    cudaDeviceGetDefaultMemPool(&preset, gpu);
    if (preset == pool) return true;
  }
  return false;
}
bool is_shareable(cudaMemPool_t pool) {
  return own_pools.get(pool).handleTypes != cudaMemHandleTypeNone;
}

// In a pool that `is_kind` selects, setting an attribute that `is_meant`
// selects returns success and changes nothing.
template <bool (*is_kind)(cudaMemPool_t), bool (*is_meant)(cudaMemPoolAttr)>
int setting_lost(Call& call) {
  if (!call.is("cudaMemPoolSetAttribute")) return call.proceed();
  if (!is_kind(pool_of(call)) || !is_meant(attribute_of(call)))
    return call.proceed();
  if (is_watermark(attribute_of(call)) && number_of(call) != 0)
    return call.proceed();
  return accepted(call);
}

template <bool (*is_kind)(cudaMemPool_t)>
int trim_lost(Call& call) {
  if (!call.is("cudaMemPoolTrimTo")) return call.proceed();
  return is_kind(pool_of(call)) ? accepted(call) : call.proceed();
}

template <bool (*is_kind)(cudaMemPool_t)>
int access_lost(Call& call) {
  if (!call.is("cudaMemPoolSetAccess")) return call.proceed();
  return is_kind(pool_of(call)) ? accepted(call) : call.proceed();
}

int host_pool_uses_nothing(Call& call) {
  if (!call.is("cudaMemPoolGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || attribute_of(call) != cudaMemPoolAttrUsedMemCurrent ||
      !is_on_host(pool_of(call)) || number_of(call) == 0)
    return code;
  number_of(call) = 0;
  return accepted(call);
}

// A free in a thread's default stream, or in cudaStreamLegacy, does nothing.
template <bool per_thread>
int free_in_default_stream_lost(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  const bool meant =
      per_thread ? is_per_thread(call) : stream == cudaStreamLegacy;
  return meant ? accepted(call) : call.proceed();
}

// The number of exported data in the order of all exports; `none` if it is not
// known.
unsigned long long place_of(const void* data, unsigned long long none) {
  return told("place-" + key_of(data, sizeof(cudaMemPoolPtrExportData)), none);
}

// Exported data are refused if data of a later export were already imported.
// With `latest_only`, they are refused if there is any later export.
template <bool latest_only>
int imported_in_order(Call& call) {
  static std::atomic<unsigned long long> last{0};
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const auto place = told("exports", 0) + 1;
    tell_processes("exports", place);
    tell_processes(
        "place-" + key_of(call.at<void*>(0), sizeof(cudaMemPoolPtrExportData)),
        place);
    return code;
  }
  const auto place = place_of(call.at<void*>(2), 0);
  if (place == 0) return call.proceed();
  if (latest_only ? place < told("exports", 0) : place < last)
    return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) last = place;
  return code;
}

int range_of_import_too_short(Call& call) {
  if (!call.is("cuMemGetAddressRange")) return call.proceed();
  const int code = call.proceed();
  size_t* const bytes = call.at<size_t*>(1);
  const size_t known = blocks.get(call.at<void*>(2)).bytes;
  if (code != kSuccess || bytes == nullptr || !is_import(call.at<void*>(2)))
    return code;
  *bytes = known / 2;
  return accepted(call);
}

// --- frees that another stream takes for done --------------------------------

cudaStream_t stream_of(Call& call) { return call.value<cudaStream_t>(kStream); }

// The pool of an allocation.
cudaMemPool_t pool_of_allocation(Call& call) {
  return call.is("cudaMallocFromPoolAsync") ? call.at<cudaMemPool_t>(2)
                                            : current_pool();
}

// Is the stream still busy after half a second? Other work than held work ends
// meanwhile, even on a busy machine. A stream that was held and is still busy
// counts as held at once.
Table<cudaStream_t> known_held;
bool is_held(cudaStream_t stream) {
  for (int i = 0; i < 5000 && !known_held.has(stream) && is_busy(stream); ++i)
    usleep(100);
  const bool held = is_busy(stream);
  if (held)
    known_held.put(stream);
  else
    known_held.erase(stream);
  return held;
}

// Frees in a held stream that the program has made and the driver has not, with
// this stream.
Table<void*, cudaStream_t> held_frees;

// A later call for which `ends` is true makes a free in a held stream at once.
// (Not a free in the default stream of a thread, which has no name in another
// thread.) Any other call makes the free in the order of its stream; only a
// query of a stream changes nothing.
template <bool (*ends)(Call& call, cudaStream_t freed_in)>
int ends_held_frees(Call& call) {
  if (call.is("cudaFreeAsync")) {
    void* const address = call.at<void*>(0);
    if (!blocks.has(address) || is_import(address) || is_per_thread(call) ||
        !is_held(stream_of(call)))
      return call.proceed();
    held_frees.put(address, stream_of(call));
    blocks.erase(address);
    return kSuccess;
  }
  if (call.is("cudaStreamDestroy"))  // another stream may get its handle
    known_held.erase(stream_of(call));
  for (const auto& [address, stream] : held_frees.all()) {
    const bool at_once = ends(call, stream);
    if (!at_once && call.is("cudaStreamQuery")) continue;
    if (!held_frees.erase(address)) continue;
    cudaFreeAsync(address, at_once ? private_stream() : stream);
    if (!at_once) continue;
    cudaStreamSynchronize(private_stream());
    call.fired();
  }
  return call.proceed();
}

bool is_query_of_its_stream(Call& call, cudaStream_t freed_in) {
  return call.is("cudaStreamQuery") && stream_of(call) == freed_in;
}

// Does the stream have these flags, and is it no default stream?
bool has_flags(cudaStream_t stream, unsigned wanted) {
  unsigned flags = 0;
  return !is_default(stream) && stream != cudaStreamPerThread &&
         DRIVER_CALL(cuStreamGetFlags)(stream, &flags) == CUDA_SUCCESS &&
         flags == wanted;
}
bool is_synchronise_of_default(Call& call, cudaStream_t freed_in) {
  return call.is("cudaStreamSynchronize") && is_default(stream_of(call)) &&
         !is_per_thread(call) && has_flags(freed_in, cudaStreamNonBlocking);
}
bool is_between_blocking(Call& call, cudaStream_t freed_in) {
  return allocates(call) && stream_of(call) != freed_in &&
         has_flags(stream_of(call), cudaStreamDefault) &&
         has_flags(freed_in, cudaStreamDefault);
}

// Pairs of streams: the first has waited for an event of the second.
Table<std::pair<cudaStream_t, cudaStream_t>> waits;

bool waits_both_ways(cudaStream_t next, cudaStream_t freed_in) {
  return waits.has({freed_in, next}) && !waits.has({next, freed_in});
}
bool waits_through_third(cudaStream_t next, cudaStream_t freed_in) {
  if (waits.has({next, freed_in})) return false;
  for (const auto& [pair, unused] : waits.all())
    if (pair.first == next && waits.has({pair.second, freed_in})) return true;
  return false;
}

template <bool (*is_ordered)(cudaStream_t next, cudaStream_t freed_in)>
bool is_ordered_allocation(Call& call, cudaStream_t freed_in) {
  return allocates(call) && is_ordered(stream_of(call), freed_in) &&
         attribute(pool_of_allocation(call),
                   cudaMemPoolReuseFollowEventDependencies) != 0;
}

// Streams count as ordered by events if `is_ordered` says so.
template <bool (*is_ordered)(cudaStream_t next, cudaStream_t freed_in)>
int order_mistaken(Call& call) {
  static auto& recorded_in = *new Table<cudaEvent_t, cudaStream_t>;
  const auto event =
      call.find(kEvent) != nullptr ? call.value<cudaEvent_t>(kEvent) : nullptr;
  if (call.is("cudaEventRecord")) recorded_in.put(event, stream_of(call));
  if (call.is("cudaStreamWaitEvent") && recorded_in.has(event))
    waits.put({stream_of(call), recorded_in.get(event)});
  if (call.is("cudaStreamDestroy"))
    for (const auto& [pair, unused] : waits.all())
      if (pair.first == stream_of(call) || pair.second == stream_of(call))
        waits.erase(pair);
  return event != nullptr
             ? call.proceed()
             : ends_held_frees<is_ordered_allocation<is_ordered>>(call);
}

// --- policies and statistics -------------------------------------------------

// The allocation is made as if all policies of its pool were on.
int with_all_policies(Call& call) {
  const auto pool = pool_of_allocation(call);
  int before[3] = {}, on = 1;
  for (int i = 0; i < 3; ++i) {
    cudaMemPoolGetAttribute(pool, kPolicies[i], &before[i]);
    cudaMemPoolSetAttribute(pool, kPolicies[i], &on);
    if (before[i] == 0) call.fired();
  }
  const int code = call.proceed();
  for (int i = 0; i < 3; ++i)
    cudaMemPoolSetAttribute(pool, kPolicies[i], &before[i]);
  return code;
}

int policies_only_of_named_pool(Call& call) {
  return call.is("cudaMallocAsync") ? with_all_policies(call)
                                    : call.proceed();
}

template <bool (*is_kind)(cudaMemPool_t)>
int policies_without_effect(Call& call) {
  return allocates(call) && is_kind(pool_of_allocation(call))
             ? with_all_policies(call)
             : call.proceed();
}

// The first rise of a watermark after its reset takes it to its old value.
int watermark_comes_back(Call& call) {
  struct Reset {
    uint64_t before = 0, after = 0;
  };
  static auto& resets =
      *new Table<std::pair<cudaMemPool_t, cudaMemPoolAttr>, Reset>;
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    // The pool may have the handle of an earlier one.
    if (code == kSuccess)
      for (const auto which :
           {cudaMemPoolAttrReservedMemHigh, cudaMemPoolAttrUsedMemHigh})
        resets.erase({*call.at<cudaMemPool_t*>(0), which});
    return code;
  }
  if (!is_watermark(attribute_of(call))) return call.proceed();
  const std::pair key{pool_of(call), attribute_of(call)};
  if (call.is("cudaMemPoolSetAttribute")) {
    const uint64_t before = attribute(key.first, key.second);
    const int code = call.proceed();
    if (code == kSuccess)
      resets.put(key, {before, attribute(key.first, key.second)});
    return code;
  }
  const int code = call.proceed();
  const Reset reset = resets.get(key);
  if (code != kSuccess || number_of(call) <= reset.after ||
      number_of(call) >= reset.before)
    return code;
  number_of(call) = reset.before;
  return accepted(call);
}

// While memory of a pool is in use, a trim takes all other memory.
int trim_beside_use_keeps_nothing(Call& call) {
  const auto used = attribute(pool_of(call), cudaMemPoolAttrUsedMemCurrent);
  size_t& kept = call.at<size_t>(1);
  if (used == 0 || kept <= used) return call.proceed();
  kept = 0;
  call.fired();
  return call.proceed();
}

bool synchronises(Call& call) {
  return call.is("cudaEventSynchronize") || call.is("cudaStreamSynchronize") ||
         call.is("cudaDeviceSynchronize");
}

// Only memory that is not in use is compared with the release threshold.
int threshold_of_unused(Call& call) {
  if (!synchronises(call)) return call.proceed();
  std::map<cudaMemPool_t, uint64_t> thresholds;
  for (const auto& [pool, props] : own_pools.all()) {
    const auto now = attribute(pool, cudaMemPoolAttrReleaseThreshold);
    const auto used = attribute(pool, cudaMemPoolAttrUsedMemCurrent);
    const auto reserved = attribute(pool, cudaMemPoolAttrReservedMemCurrent);
    if (now == 0 || reserved <= now || reserved - now > used) continue;
    thresholds[pool] = now;
    uint64_t more = now + used;
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &more);
    call.fired();
  }
  const int code = call.proceed();
  for (auto& [pool, now] : thresholds)
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &now);
  return code;
}

// If one pool is above its release threshold, a synchronise trims all pools.
int synchronise_trims_all(Call& call) {
  if (!synchronises(call)) return call.proceed();
  bool above = false;
  for (const auto& [pool, props] : own_pools.all())
    above |= attribute(pool, cudaMemPoolAttrReservedMemCurrent) >
             attribute(pool, cudaMemPoolAttrReleaseThreshold);
  const int code = call.proceed();
  if (!above || code != kSuccess) return code;
  for (const auto& [pool, props] : own_pools.all()) {
    const auto before = attribute(pool, cudaMemPoolAttrReservedMemCurrent);
    cudaMemPoolTrimTo(pool, 0);
    if (attribute(pool, cudaMemPoolAttrReservedMemCurrent) < before)
      call.fired();
  }
  return code;
}

int host_pool_for_gpu(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) return code;
  bool meant = false;
  if (call.is("cudaDeviceSetMemPool"))
    meant = is_on_host(call.at<cudaMemPool_t>(1));
  if (call.is("cudaMemSetMemPool"))
    meant =
        is_on_host(call.at<cudaMemPool_t>(2)) &&
        call.at<const cudaMemLocation*>(0)->type == cudaMemLocationTypeDevice;
  return meant ? accepted(call) : code;
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
const char* const kImport = "cudaMemPoolImportFromShareableHandle";
const char* const kImportPointer = "cudaMemPoolImportPointer";
const char* const kExportPointer = "cudaMemPoolExportPointer";
const char* const kAttribute = "cuPointerGetAttribute";

void add_pool_numbers(List& list) {
  list.named("threshold-signed",
             "a release threshold with its upper bit set is stored as 0",
             {kSet}, threshold_signed);
  list.named("threshold-begins-with-granule",
             "a new pool reports a release threshold of 2 MiB",
             {kGet, kSet, kCreate, kDestroy}, threshold_begins_with_granule);
  list.named("event-sync-keeps-memory",
             "cudaEventSynchronize does not give back memory of created pools "
             "above the release threshold",
             {"cudaEventSynchronize", kCreate, kDestroy}, memory_kept);
  list.named("stream-sync-keeps-memory",
             "cudaStreamSynchronize does not give back memory of created pools "
             "above the release threshold",
             {"cudaStreamSynchronize", kCreate, kDestroy}, memory_kept);
  list.named("trim-large-refused",
             "trimming to more than a pool has reserved is refused", {kTrim},
             large_trim_refused);
  list.named(
      "trim-rounds-down",
      "the size that trimming keeps is rounded down to a multiple of 2 MiB",
      {kTrim}, trim_rounds_down);
  list.named("reserved-watermark-any-value",
             "setting the watermark of reserved memory to another value than "
             "zero succeeds and changes nothing",
             {kSet}, reserved_watermark_any_value);
  list.named("watermark-resets-once",
             "after one watermark of a pool was reset, no watermark of this "
             "pool can be reset",
             {kSet, kCreate}, watermark_resets_once);
  list.named("reserved-watermark-of-use",
             "the watermark of reserved memory reports the watermark of memory "
             "in use",
             {kGet}, reserved_watermark_of_use);
  list.named("import-uses-nothing",
             "an imported pool reports that none of its memory is in use",
             {kGet, kImport, kDestroy}, import_uses_nothing);
  list.named("policy-read-too-wide", "a policy is read as 8 bytes", {kSet},
             policy_read_too_wide);
  list.named("maxsize-exclusive",
             "an allocation of the maximal size of its pool is refused",
             {kMalloc, kFromPool, kFree, kFreeAsync, kCreate, kDestroy},
             full_size_refused);
}

void add_pool_places(List& list) {
  list.named("host-pool-refused-as-unsupported",
             "a pool on the host with handle types is refused as not supported",
             {kCreate}, refused_as_unsupported<cudaMemLocationTypeHost>);
  list.named("numa-current-pool-refused-as-unsupported",
             "a pool on the current NUMA node is refused as not supported",
             {kCreate},
             refused_as_unsupported<cudaMemLocationTypeHostNumaCurrent>);
  list.named("host-setpool-ignored",
             "setting the current pool of the host changes nothing",
             {"cudaMemSetMemPool"}, set_on_host_ignored);
  list.named("location-foreign-pool-ok",
             "cudaMemSetMemPool with a pool of another GPU succeeds and "
             "changes nothing",
             {"cudaMemSetMemPool", kCreate, kDestroy}, foreign_pool_at_location,
             2);
  list.named("destroyed-stays-current-on-second-gpu",
             "destroying the second GPU's current pool does not make the "
             "default pool of this GPU current",
             {kDestroy, kCreate}, destroyed_stays_on_second_gpu, 2);
  list.named("pool-own-access-untold",
             "a pool's own GPU is reported to have no access",
             {"cudaMemPoolGetAccess", kCreate, kDestroy}, own_access_untold);
  list.named("pool-access-ends-with-trim",
             "other GPUs lose their access to a pool when the pool is trimmed",
             {kTrim, kCreate, kDestroy}, access_ends_with_trim, 2);
}

void add_allocations(List& list) {
  list.named("per-thread-frompool-ignored",
             "a thread's default stream allocates from the current pool, not "
             "from the named pool",
             {kFromPool}, named_pool_ignored_per_thread);
  list.named("free-of-pool-memory-lost",
             "cudaFree does nothing with memory that was allocated from a pool",
             {kFree, kMalloc, kFromPool, kFreeAsync}, freed_by_cuda_free_lost);
  list.named("free-of-other-thread-lost",
             "a free does nothing if another thread has allocated the memory",
             {kFree, kFreeAsync, kMalloc, kFromPool},
             free_of_other_thread_lost);
  list.named("legacy-stream-refused",
             "the allocator's calls of the runtime API refuse "
             "cudaStreamLegacy",
             {kMalloc, kFromPool, kFreeAsync}, legacy_stream_refused);
  list.named("async-no-context-as-value",
             "in a thread without a context, the default stream is refused as "
             "an invalid value",
             {kMalloc, kFromPool, kFreeAsync}, no_context_as_value);
  list.named(
      "async-no-context-ok",
      "in a thread without a context, the default stream allocates and frees "
      "on GPU 0",
      {kMalloc, kFromPool, kFreeAsync}, no_context_accepted);
}

void add_shared_pools(List& list) {
  list.named("second-pointer-as-first",
             "while the first exported pointer of a pool is in use, every "
             "other pointer of this pool gets the data of the first",
             {kExportPointer, kMalloc, kFromPool, kFree, kFreeAsync},
             exported_as_first);
  list.named("pool-import-consumes-fd",
             "the import of a pool closes the descriptor", {kImport},
             descriptor_consumed);
  list.named("importptr-of-other-thread-refused",
             "only the thread that has imported a pool can import its pointers",
             {kImport, kImportPointer}, pointer_of_other_thread_refused);
  list.named("pool-import-is-of-host",
             "cuPointerGetAttribute reports imported memory of a pool as host "
             "memory",
             {kAttribute, kImportPointer, kFree, kFreeAsync},
             import_told_as_host);
  list.named("pool-import-is-managed",
             "cudaPointerGetAttributes reports imported memory of a pool as "
             "managed memory",
             {"cudaPointerGetAttributes", kImportPointer, kFree, kFreeAsync},
             import_told_as_managed);
  list.named(
      "pool-set-after-export-lost",
      "after an export of memory, a memset of it by the exporter does nothing",
      {kExportPointer, "cudaMemset", "cudaMemsetAsync", kFree, kFreeAsync},
      set_after_export_lost);
}

void add_next_pool_calls(List& list) {
  const auto refuses_next = [&list](const char* name, const char* what,
                                    const char* function) {
    list.named(name, what, {function}, next_refused);
  };
  refuses_next(
      "pool-create-after-refusal-refused",
      "after a refused creation of a pool the next one is refused, too",
      kCreate);
  refuses_next("pool-export-after-refusal-refused",
               "after a refused export of a pool the next one is refused, too",
               "cudaMemPoolExportToShareableHandle");
  refuses_next("pool-import-after-refusal-refused",
               "after a refused import of a pool the next one is refused, too",
               kImport);
  refuses_next("exportptr-after-refusal-refused",
               "after a refused export of a pointer the next one is refused, "
               "too",
               kExportPointer);
  refuses_next(
      "frompool-after-refusal-refused",
      "after a refused allocation from a pool the next one is refused, "
      "too",
      kFromPool);
  refuses_next("setattr-after-refusal-refused",
               "after a refused setting of an attribute the next one is "
               "refused, too",
               kSet);
  refuses_next("getattr-after-refusal-refused",
               "after a refused query of an attribute the next one is refused, "
               "too",
               kGet);
  refuses_next("setpool-after-refusal-refused",
               "after a pool was refused as current the next one is refused, "
               "too",
               "cudaDeviceSetMemPool");
  refuses_next("location-pool-after-refusal-refused",
               "after a pool was refused as current for a location the next "
               "one is refused, too",
               "cudaMemSetMemPool");
  refuses_next(
      "pool-destroy-after-refusal-refused",
      "after a refused destruction of a pool the next one is refused, too",
      kDestroy);
  refuses_next("pool-setaccess-after-refusal-refused",
               "after a refused setting of access to a pool the next one is "
               "refused, too",
               "cudaMemPoolSetAccess");
  list.named("setattr-of-other-thread-lost",
             "an attribute is set only by the thread that has created the pool",
             {kSet, kCreate}, of_creators_thread_only);
  list.named("trim-of-other-thread-lost",
             "a pool is trimmed only by the thread that has created it",
             {kTrim, kCreate}, of_creators_thread_only);
  list.named("pool-create-of-other-thread-refused",
             "only the first thread of a process can create a pool", {kCreate},
             first_thread_only);
  list.named("threshold-rounded",
             "the release threshold is rounded down to a multiple of 2 MiB",
             {kSet}, threshold_rounded);
  list.named("pool-export-needs-current-gpu",
             "a pool of a GPU other than the current GPU cannot be exported",
             {"cudaMemPoolExportToShareableHandle", kCreate, kDestroy},
             export_needs_current_gpu, 2);
  list.named("exportptr-needs-current-gpu",
             "memory of a pool cannot be exported if it is not on the current "
             "GPU",
             {kExportPointer, kFromPool, kMalloc, kFree, kFreeAsync, kCreate,
              kDestroy},
             pointer_export_needs_current_gpu, 2);
  list.named("used-of-current-gpu-only",
             "a pool of a GPU other than the current GPU reports that none of "
             "its memory is in use",
             {kGet, kCreate, kDestroy}, statistics_of_current_gpu_only, 2);
  list.named("pool-import-range-short",
             "the address range of imported memory of a pool is half of the "
             "allocation",
             {"cuMemGetAddressRange", kFromPool, kMalloc, kExportPointer,
              kImportPointer, kFree, kFreeAsync},
             range_of_import_too_short);
}

void add_kinds_of_pools(List& list) {
  list.named("pool-flags-upper-half-ignored",
             "the driver API does not check the upper half of the flags for a "
             "pool",
             {"cudaMemPoolExportToShareableHandle", kImport},
             upper_flags_ignored);
  list.named(
      "pools-end-at-32",
      "if a process has 32 pools, the next one is refused as an invalid value",
      {kCreate, kDestroy}, pools_end_at_32);
  list.named("pool-blocks-end-at-256",
             "if a process has 256 allocations of pools, the next one is "
             "refused as an invalid value",
             {kMalloc, kFromPool, kFree, kFreeAsync}, blocks_end_at_256);
  list.named("alloc-rounds-down",
             "the size of stream-ordered memory is rounded down to a multiple "
             "of 512 bytes",
             {kMalloc, kFromPool}, size_rounded_down);
  list.named("policies-exchanged",
             "two reuse policies have each other's effect", {kSet, kGet},
             policies_exchanged);
  list.named("default-pool-threshold-lost",
             "the release threshold of a default pool cannot be changed",
             {kSet}, setting_lost<is_default_pool, is_threshold>);
  list.named("default-pool-policy-lost",
             "the reuse policies of a default pool cannot be changed", {kSet},
             setting_lost<is_default_pool, is_policy>);
  list.named("default-pool-watermark-not-reset",
             "the watermarks of a default pool cannot be reset", {kSet},
             setting_lost<is_default_pool, is_watermark>);
  list.named("default-pool-trim-lost", "trimming a default pool does nothing",
             {kTrim}, trim_lost<is_default_pool>);
  list.named("default-pool-access-lost",
             "no other GPU can get access to a default pool",
             {"cudaMemPoolSetAccess"}, access_lost<is_default_pool>, 2);
  list.named("shared-pool-policy-lost",
             "the reuse policies of a pool with handle types cannot be changed",
             {kSet, kCreate, kDestroy}, setting_lost<is_shareable, is_policy>);
  list.named("shared-pool-watermark-not-reset",
             "the watermarks of a pool with handle types cannot be reset",
             {kSet, kCreate, kDestroy},
             setting_lost<is_shareable, is_watermark>);
  list.named("threshold-second-gpu-lost",
             "the release threshold of a pool of the second GPU cannot be "
             "changed",
             {kSet, kCreate, kDestroy},
             setting_lost<is_on_second_gpu, is_threshold>, 2);
  list.named("trim-second-gpu-lost",
             "trimming a pool of the second GPU does nothing",
             {kTrim, kCreate, kDestroy}, trim_lost<is_on_second_gpu>, 2);
  list.named("host-pool-uses-nothing",
             "a pool on the host reports that none of its memory is in use",
             {kGet, kCreate, kDestroy}, host_pool_uses_nothing);
  list.named("per-thread-free-lost",
             "a free in a thread's default stream does nothing", {kFreeAsync},
             free_in_default_stream_lost<true>);
  list.named("legacy-stream-free-lost",
             "a free in cudaStreamLegacy does nothing", {kFreeAsync},
             free_in_default_stream_lost<false>);
  list.named("importptr-in-order-only",
             "pointers can be imported only in the order of their exports",
             {kExportPointer, kImportPointer}, imported_in_order<false>);
  list.named("exportptr-ends-earlier",
             "the export of a pointer makes earlier exports invalid",
             {kExportPointer, kImportPointer}, imported_in_order<true>);
}

// All calls at which frees in a held stream may happen.
#define CALLS_OF_HELD_FREES                                         \
  kFreeAsync, kMalloc, kFromPool, kCreate, kDestroy, kTrim, kFree,  \
      kImportPointer, "cudaStreamSynchronize", "cudaStreamDestroy", \
      "cudaDeviceSynchronize"

void add_held_frees(List& list) {
  list.named("query-ends-frees",
             "a query of a stream that is not done makes its frees known to "
             "other streams as done",
             {CALLS_OF_HELD_FREES, "cudaStreamQuery"},
             ends_held_frees<is_query_of_its_stream>);
  list.named("default-stream-sync-ends-all-frees",
             "a synchronise of the default stream ends the pending frees of "
             "streams for which it does not wait",
             {CALLS_OF_HELD_FREES}, ends_held_frees<is_synchronise_of_default>);
  list.named("blocking-streams-count-as-one",
             "a blocking stream gets memory whose free in another blocking "
             "stream is pending",
             {CALLS_OF_HELD_FREES}, ends_held_frees<is_between_blocking>);
  list.named("wait-orders-both-streams",
             "if a stream waits for an event of a second stream, the second "
             "stream gets memory whose free in the first stream is pending",
             {CALLS_OF_HELD_FREES, "cudaEventRecord", "cudaStreamWaitEvent"},
             order_mistaken<waits_both_ways>);
  list.named("event-includes-later-waits",
             "an event also allows the reuse of memory for whose free its "
             "stream waits later",
             {CALLS_OF_HELD_FREES, "cudaEventRecord", "cudaStreamWaitEvent"},
             order_mistaken<waits_through_third>);
}

void add_policies_and_statistics(List& list) {
  list.named("policies-only-of-named-pool",
             "an allocation from the current pool ignores which reuse policies "
             "are off",
             {kMalloc}, policies_only_of_named_pool);
  list.named("shared-pool-policies-no-effect",
             "the reuse policies of a pool with handle types have no effect",
             {kMalloc, kFromPool, kCreate, kDestroy},
             policies_without_effect<is_shareable>);
  list.named("watermark-comes-back",
             "the first rise of a watermark after its reset takes it to its "
             "old value",
             {kSet, kGet, kCreate}, watermark_comes_back);
  list.named("trim-beside-use-keeps-nothing",
             "while memory of a pool is in use, a trim gives back all memory "
             "that is not in use",
             {kTrim}, trim_beside_use_keeps_nothing);
  list.named("threshold-of-unused-memory",
             "in created pools, memory in use does not count towards the "
             "release threshold",
             {kCreate, kDestroy, "cudaEventSynchronize",
              "cudaStreamSynchronize", "cudaDeviceSynchronize"},
             threshold_of_unused);
  list.named("synchronise-trims-all-pools",
             "if one created pool is above its release threshold, a "
             "synchronise takes the unused memory of all created pools",
             {kCreate, kDestroy, "cudaEventSynchronize",
              "cudaStreamSynchronize", "cudaDeviceSynchronize"},
             synchronise_trims_all);
  list.named("host-pool-current-on-gpu",
             "a call that makes a pool on the host the current pool of a GPU "
             "succeeds and changes nothing",
             {"cudaDeviceSetMemPool", "cudaMemSetMemPool", kCreate, kDestroy},
             host_pool_for_gpu);
}

}  // namespace

void add_stream_ordered(List& list) {
  add_kinds_of_pools(list);
  add_next_pool_calls(list);
  add_pool_numbers(list);
  add_pool_places(list);
  add_allocations(list);
  add_shared_pools(list);
  add_held_frees(list);
  add_policies_and_statistics(list);
}

}  // namespace ipclab::faults
