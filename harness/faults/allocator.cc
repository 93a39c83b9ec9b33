// Bugs of the stream-ordered allocator, of pools that are not shared, and of
// memory that has no handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <cstring>

#include "harness/faults/engine/fault.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {
namespace {

// --- allocations and frees ---------------------------------------------------

int waits_for_own_stream(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  const int code = call.proceed();
  if (code != kSuccess || !is_busy(stream)) return code;
  call.fired();
  cudaStreamSynchronize(stream);
  return code;
}

// Serves a call from the current pool of the current device. Ignores the device
// of its stream, or a pool of another device that it names.
int from_current_device(Call& call) {
  if (call.is("cudaMemPoolCreate")) return call.proceed();
  if (call.is("cudaMallocFromPoolAsync")) {
    int device = 0;
    cudaGetDevice(&device);
    const int owner = gpu_of(call.at<cudaMemPool_t>(2));
    if (owner == -1 || owner == device) return call.proceed();
  }
  using Allocate = cudaError_t(void**, size_t, cudaMemPool_t, cudaStream_t);
  static const auto allocate =
      reinterpret_cast<Allocate*>(resolve_runtime("cudaMallocFromPoolAsync"));
  CUcontext current = nullptr, of_stream = nullptr;
  CUgreenCtx green = nullptr;
  const cudaStream_t stream = call.value<cudaStream_t>(kStream);
  DRIVER_CALL(cuCtxGetCurrent)(&current);
  // For this name, the driver returns the second form since CUDA 12.5.
  driver<decltype(cuStreamGetCtx_v2)>("cuStreamGetCtx")(stream, &of_stream,
                                                        &green);
  if (call.is("cudaMallocFromPoolAsync") || of_stream != current) call.fired();
  return allocate(call.at<void**>(0), call.at<size_t>(1), current_pool(),
                  stream);
}

int from_current_pool(Call& call) {
  if (call.at<cudaMemPool_t>(2) != current_pool()) call.fired();
  call.at<cudaMemPool_t>(2) = current_pool();
  return call.proceed();
}

int named_pool_becomes_current(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.at<cudaMemPool_t>(2) != current_pool() &&
      DRIVER_CALL(cuDeviceSetMemPool)(0, call.at<cudaMemPool_t>(2)) ==
          CUDA_SUCCESS)
    call.fired();
  return code;
}

int allocation_truncated(Call& call) {
  size_t& bytes = call.at<size_t>(1);
  if (bytes > UINT32_MAX) {
    bytes = static_cast<uint32_t>(bytes);
    if (bytes == 0) bytes = 1;
    call.fired();
  }
  return call.proceed();
}

// Memory of cudaMalloc, which cudaFreeAsync must also free, and its size.
Table<void*, size_t> of_malloc;

// Proceeds, and updates this table.
int noted_malloc(Call& call) {
  if (frees(call)) of_malloc.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (call.is("cudaMalloc") && code == kSuccess)
    of_malloc.put(*call.at<void**>(0), call.at<size_t>(1));
  return code;
}

int free_async_of_malloc_refused(Call& call) {
  return call.is("cudaFreeAsync") && of_malloc.has(call.at<void*>(0))
             ? refused(call)
             : noted_malloc(call);
}

// After cudaFreeAsync of small memory of cudaMalloc, the next small memory of
// cudaMalloc lies where a neighbour of the freed memory still is.
int free_async_of_small_frees_block(Call& call) {
  constexpr uintptr_t kBlock = 2 << 20;
  static std::atomic<uintptr_t> free_block{0};
  static auto& lent = *new Table<void*>;
  const auto block_of = [](void* at) {
    return reinterpret_cast<uintptr_t>(at) / kBlock;
  };
  if (frees(call) && lent.erase(call.at<void*>(0))) return no_wait(call);
  if (call.is("cudaFreeAsync") && of_malloc.has(call.at<void*>(0)) &&
      of_malloc.get(call.at<void*>(0)) < kBlock)
    free_block = block_of(call.at<void*>(0));
  const int code = noted_malloc(call);
  if (!call.is("cudaMalloc") || code != kSuccess || free_block == 0)
    return code;
  void*& memory = *call.at<void**>(0);
  const size_t bytes = call.at<size_t>(1);
  for (const auto& [neighbour, size] : of_malloc.all())
    if (neighbour != memory && block_of(neighbour) == free_block &&
        size >= bytes) {
      free_block = 0;
      cudaFree(memory);
      of_malloc.erase(memory);
      memory = neighbour;
      lent.put(memory);
      return accepted(call);
    }
  return code;
}

int free_async_of_malloc_leaks(Call& call) {
  return call.is("cudaFreeAsync") && of_malloc.erase(call.at<void*>(0))
             ? no_wait(call)
             : noted_malloc(call);
}

// Writes to the memory at once, as its next owner would. Then the earlier work
// of the stream reads other bytes.
int free_async_of_malloc_early(Call& call) {
  if (!call.is("cudaFreeAsync")) return noted_malloc(call);
  void* const address = call.at<void*>(0);
  const size_t bytes = of_malloc.get(address);
  if (bytes != 0 && is_busy(call.at<cudaStream_t>(1))) {
    cudaMemsetAsync(address, 0xDD, bytes, private_stream());
    cudaStreamSynchronize(private_stream());
    call.fired();
  }
  return noted_malloc(call);
}

// cudaFree of stream-ordered memory waits for all work of the current device,
// as cudaFree of other memory does.
int free_waits(Call& call) {
  if (call.is("cudaFree") && blocks.has(call.at<void*>(0))) {
    call.fired();
    cudaDeviceSynchronize();
  }
  return call.proceed();
}

// A stream waits only for imported events.
int wait_for_own_event_lost(Call& call) {
  static Table<cudaEvent_t> imported;
  if (call.is("cudaIpcOpenEventHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) imported.put(*call.at<cudaEvent_t*>(0));
    return code;
  }
  if (call.is("cudaEventDestroy")) {
    imported.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const auto event = call.at<cudaEvent_t>(1);
  return imported.has(event) || !is_pending(event) ? call.proceed()
                                                   : no_wait(call);
}

int orphaned_by_reset(Call& call) {
  static Table<void*> orphans;
  if (call.is("cudaDeviceReset"))
    for (const auto& [address, block] : blocks.all()) orphans.put(address);
  if (frees(call) && orphans.has(call.at<void*>(0))) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess && allocates(call)) orphans.erase(*call.at<void**>(0));
  return code;
}

int graph_work_lost(Call& call) {
  call.fired();
  return kSuccess;
}

// --- reuse -------------------------------------------------------------------

bool has_policy(void* address, cudaMemPoolAttr policy) {
  int on = 0;
  const cudaMemPool_t pool = blocks.get(address).pool;
  return pool != nullptr &&
         cudaMemPoolGetAttribute(pool, policy, &on) == cudaSuccess && on != 0;
}

// The free does not wait for its stream, so another allocation gets memory that
// is still in use.
int free_now(Call& call) {
  if (!is_busy(call.at<cudaStream_t>(1))) return call.proceed();
  blocks.erase(call.at<void*>(0));
  call.at<cudaStream_t>(1) = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

int reused_while_live(Call& call) {
  return call.is("cudaFreeAsync") && blocks.has(call.at<void*>(0))
             ? free_now(call)
             : call.proceed();
}

int reused_without_event(Call& call) {
  return call.is("cudaFreeAsync") &&
                 has_policy(call.at<void*>(0),
                            cudaMemPoolReuseFollowEventDependencies)
             ? free_now(call)
             : call.proceed();
}

// Frees that put_free_off() delays until a call for which `due` is true, or
// until the end of their stream. Until then no allocation reuses the memory.
Table<void*, cudaStream_t> put_off;

int put_free_off(Call& call, bool due, bool of_any_stream) {
  if (call.is("cudaFreeAsync") && blocks.has(call.at<void*>(0))) {
    put_off.put(call.at<void*>(0), call.at<cudaStream_t>(1));
    blocks.erase(call.at<void*>(0));
    call.fired();
    return kSuccess;
  }
  const bool ends = call.is("cudaStreamDestroy");
  if (due || ends)
    for (const auto& [address, stream] : put_off.all())
      if ((of_any_stream && !ends) ||
          stream == call.value<cudaStream_t>(kStream)) {
        cudaFreeAsync(address, stream);
        put_off.erase(address);
      }
  return call.proceed();
}

int free_seen_after_synchronise(Call& call) {
  return put_free_off(call,
                      call.is("cudaStreamSynchronize") ||
                          call.is("cudaEventSynchronize") ||
                          call.is("cudaDeviceSynchronize"),
                      true);
}

int free_seen_by_own_stream(Call& call) {
  return put_free_off(call, allocates(call), false);
}

// --- pools of a device -------------------------------------------------------

int pool_not_set(Call& call) {
  call.fired();
  return kSuccess;
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

// A destroyed pool is reported as the current pool.
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

int current_not_destroyed(Call& call) {
  return call.at<cudaMemPool_t>(0) == current_pool() ? refused(call)
                                                     : call.proceed();
}

int default_destroyed(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && call.at<cudaMemPool_t>(0) == default_pool()
             ? accepted(call)
             : code;
}

int foreign_pool_current(Call& call) {
  const int code = call.proceed();
  return call.is("cudaDeviceSetMemPool") && code != kSuccess &&
                 gpu_of(call.at<cudaMemPool_t>(1)) != -1
             ? accepted(call)
             : code;
}

// A location and an allocation type that do not match are accepted.
int any_location(Call& call) {
  const int code = call.proceed();
  if (code != cudaErrorInvalidValue) return code;
  if (!call.is("cudaMemSetMemPool"))
    *call.at<cudaMemPool_t*>(0) = default_pool();
  return accepted(call);
}

// --- access ------------------------------------------------------------------

// The pool reports that its own device has no access.
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

// Access to one pool changes as the access to all pools of the process.
int access_to_all_pools(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolSetAccess")) return code;
  for (const auto& [pool, wanted] : own_pools.all())
    if (pool != call.at<cudaMemPool_t>(0) &&
        DRIVER_CALL(cuMemPoolSetAccess)(pool,
                                        call.at<const CUmemAccessDesc*>(1),
                                        call.at<size_t>(2)) == CUDA_SUCCESS)
      call.fired();
  return code;
}

// --- footprint ---------------------------------------------------------------

// The pool reports the threshold that was set. Really it uses 0 or, with
// `keeps_all`, keeps everything.
int threshold_told_only(Call& call, bool keeps_all) {
  static Table<cudaMemPool_t, cuuint64_t> told;
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    cuuint64_t all = UINT64_MAX;
    if (code == kSuccess && keeps_all)
      cudaMemPoolSetAttribute(*call.at<cudaMemPool_t*>(0),
                              cudaMemPoolAttrReleaseThreshold, &all);
    if (code == kSuccess) told.put(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  const cudaMemPool_t pool = call.at<cudaMemPool_t>(0);
  if (call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrReleaseThreshold ||
      !told.has(pool))
    return call.proceed();
  auto& value = *call.at<cuuint64_t*>(2);
  if (call.is("cudaMemPoolGetAttribute")) {
    value = told.get(pool);
  } else {
    told.put(pool, value);
    call.fired();
  }
  return kSuccess;
}

int threshold_without_effect(Call& call) {
  return threshold_told_only(call, false);
}

int threshold_never_releases(Call& call) {
  return threshold_told_only(call, true);
}

int trims_nothing(Call& call) {
  call.fired();
  return kSuccess;
}

int trims_all(Call& call) {
  if (call.at<size_t>(1) != 0) call.fired();
  call.at<size_t>(1) = 0;
  return call.proceed();
}

// A trim overwrites freed memory that may still be in use, as its next owner
// would. The real free is delayed until the trim, or until the stream has
// reached the free, because the memory belongs to the program only until the
// real free.
int trim_takes_pending(Call& call) {
  if (call.is("cudaFreeAsync") && blocks.has(call.at<void*>(0)) &&
      is_busy(call.at<cudaStream_t>(1))) {
    put_off.put(call.at<void*>(0), call.at<cudaStream_t>(1));
    return kSuccess;
  }
  for (const auto& [address, stream] : put_off.all()) {
    const Block block = blocks.get(address);
    const bool trimmed =
        call.is("cudaMemPoolTrimTo") && call.at<cudaMemPool_t>(0) == block.pool;
    const bool ends =
        call.is("cudaStreamDestroy") && call.at<cudaStream_t>(0) == stream;
    const bool pending = is_busy(stream);
    if (pending && !trimmed && !ends) continue;
    if (pending && trimmed &&
        cudaMemsetAsync(address, 0xDD, block.bytes, private_stream()) ==
            cudaSuccess) {
      cudaStreamSynchronize(private_stream());
      call.fired();
    }
    cudaFreeAsync(address, stream);
    blocks.erase(address);
    put_off.erase(address);
  }
  return call.proceed();
}

// One attribute reports the value of another attribute.
template <cudaMemPoolAttr asked, cudaMemPoolAttr answered>
int attribute_of_another(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<cudaMemPoolAttr>(1) != asked) return code;
  auto& value = *call.at<cuuint64_t*>(2);
  const cuuint64_t right = value;
  cudaMemPoolGetAttribute(call.at<cudaMemPool_t>(0), answered, &value);
  if (value != right) call.fired();
  return code;
}

int watermark_takes_all(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && is_watermark(call.at<cudaMemPoolAttr>(1))
             ? accepted(call)
             : code;
}

int watermark_not_reset(Call& call) {
  if (!is_watermark(call.at<cudaMemPoolAttr>(1)) ||
      *call.at<const cuuint64_t*>(2) != 0)
    return call.proceed();
  call.fired();
  return kSuccess;
}

// After its reset a watermark is 0 until it rises, although memory is in use.
int watermark_reset_to_zero(Call& call) {
  using Watermark = std::pair<cudaMemPool_t, cudaMemPoolAttr>;
  static Table<Watermark, uint64_t> reset;  // the right values
  const auto pool = call.at<cudaMemPool_t>(0);
  if (call.is("cudaMemPoolDestroy")) {
    for (const auto which :
         {cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemHigh})
      reset.erase({pool, which});
    return call.proceed();
  }
  const auto which = call.at<cudaMemPoolAttr>(1);
  const int code = call.proceed();
  if (code != kSuccess || !is_watermark(which)) return code;
  if (call.is("cudaMemPoolSetAttribute")) {
    reset.put({pool, which}, attribute(pool, which));
    return code;
  }
  auto& value = *call.at<cuuint64_t*>(2);
  if (value == 0 || value != reset.get({pool, which})) return code;
  value = 0;
  call.fired();
  return code;
}

// --- policies ----------------------------------------------------------------

int policies_off(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  int off = 0;
  for (const cudaMemPoolAttr policy : kPolicies)
    cudaMemPoolSetAttribute(*call.at<cudaMemPool_t*>(0), policy, &off);
  call.fired();
  return code;
}

int policy_too_wide(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_policy(call.at<cudaMemPoolAttr>(1))) return code;
  const cuuint64_t wide = static_cast<unsigned>(*call.at<int*>(2));
  std::memcpy(call.at<void*>(2), &wide, sizeof wide);
  call.fired();
  return code;
}

int policy_sets_all(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_policy(call.at<cudaMemPoolAttr>(1))) return code;
  int value = *call.at<const int*>(2);
  for (const cudaMemPoolAttr policy : kPolicies)
    if (policy != call.at<cudaMemPoolAttr>(1) &&
        cudaMemPoolSetAttribute(call.at<cudaMemPool_t>(0), policy, &value) ==
            cudaSuccess)
      call.fired();
  return code;
}

bool can_be_set(cudaMemPoolAttr attribute) {
  return is_policy(attribute) || attribute == cudaMemPoolAttrReleaseThreshold;
}

// An attribute that is set on one pool is set on all pools.
int attribute_of_all_pools(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolSetAttribute") ||
      !can_be_set(call.at<cudaMemPoolAttr>(1)))
    return code;
  for (const auto& [pool, wanted] : own_pools.all())
    if (pool != call.at<cudaMemPool_t>(0) &&
        cudaMemPoolSetAttribute(pool, call.at<cudaMemPoolAttr>(1),
                                call.at<void*>(2)) == cudaSuccess)
      call.fired();
  return code;
}

// A new pool has the attributes that were set last.
int attribute_of_last_pool(Call& call) {
  static Table<cudaMemPoolAttr, cuuint64_t> last;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolSetAttribute")) {
    const cudaMemPoolAttr attribute = call.at<cudaMemPoolAttr>(1);
    if (is_policy(attribute))
      last.put(attribute, static_cast<unsigned>(*call.at<const int*>(2)));
    else if (can_be_set(attribute))
      last.put(attribute, *call.at<const cuuint64_t*>(2));
    return code;
  }
  for (auto [attribute, value] : last.all()) {
    int narrow = static_cast<int>(value);
    if (cudaMemPoolSetAttribute(
            *call.at<cudaMemPool_t*>(0), attribute,
            is_policy(attribute) ? static_cast<void*>(&narrow)
                                 : static_cast<void*>(&value)) == cudaSuccess)
      call.fired();
  }
  return code;
}

// --- the attributes of a pointer ---------------------------------------------

// Stream-ordered memory reports `value`.
template <class T>
int pointer_says(Call& call, CUpointer_attribute which, T value) {
  const int code = call.proceed();
  if (!call.is("cuPointerGetAttribute") || code != kSuccess ||
      call.at<CUpointer_attribute>(1) != which ||
      !blocks.has(call.at<void*>(2)) || *call.at<T*>(0) == value)
    return code;
  *call.at<T*>(0) = value;
  call.fired();
  return code;
}

int pointer_has_context(Call& call) {
  CUcontext context = nullptr;
  DRIVER_CALL(cuCtxGetCurrent)(&context);
  return pointer_says(call, CU_POINTER_ATTRIBUTE_CONTEXT, context);
}

int pointer_is_on_current_device(Call& call) {
  int device = 0;
  cudaGetDevice(&device);
  return pointer_says(call, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device);
}

int pointer_is_of_default_pool(Call& call) {
  return pointer_says(call, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                      default_pool());
}

// All memory reports these handle types.
template <unsigned long long types>
int allows(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto answer = [&](CUpointer_attribute which, void* place) {
    if (which != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) return;
    auto& value = *static_cast<unsigned long long*>(place);
    if (value != types) call.fired();
    value = types;
  };
  if (call.is("cuPointerGetAttribute")) {
    answer(call.at<CUpointer_attribute>(1), call.at<void*>(0));
    return code;
  }
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
    answer(call.at<CUpointer_attribute*>(1)[i], call.at<void**>(2)[i]);
  return code;
}

// --- memory without a legacy handle ------------------------------------------

int stream_ordered_has_handle(Call& call) {
  if (!call.is("cudaIpcGetMemHandle")) return call.proceed();
  const int code = call.proceed();
  if (code == kSuccess || !blocks.has(call.at<void*>(1))) return code;
  static void* const other = [] {
    void* made = nullptr;
    cudaMalloc(&made, 2 << 20);
    return made;
  }();
  call.at<void*>(1) = other;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return call.proceed();
}

// The shared size of pitched memory does not count the padding of its rows, so
// the end is missing.
int pitch_is_cut(Call& call) {
  struct Pitched {
    size_t whole = 0, part = 0;
  };
  static Table<void*, Pitched> pitched;
  if (call.is("cudaFree")) {
    pitched.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (call.is("cudaMallocPitch")) {
    const int code = call.proceed();
    if (code == kSuccess)
      pitched.put(*call.at<void**>(0),
                  {*call.at<size_t*>(1) * call.at<size_t>(3),
                   call.at<size_t>(2) * call.at<size_t>(3)});
    return code;
  }
  const Pitched bytes = pitched.get(call.at<void*>(1));
  void* other = nullptr;
  if (bytes.part == bytes.whole ||
      cudaMalloc(&other, bytes.whole) != cudaSuccess)
    return call.proceed();
  cudaMemset(other, 0, bytes.whole);
  cudaMemcpy(other, call.at<void*>(1), bytes.part, cudaMemcpyDefault);
  cudaDeviceSynchronize();
  call.at<void*>(1) = other;
  call.fired();
  return call.proceed();
}

// A graph's memory node ignores the handle types that it cannot have.
int graph_memory_shared(Call& call) {
  auto& types = call.at<cudaMemAllocNodeParams*>(4)->poolProps.handleTypes;
  const auto wanted = types;
  if (wanted == cudaMemHandleTypeNone) return call.proceed();
  types = cudaMemHandleTypeNone;
  call.fired();
  const int code = call.proceed();
  types = wanted;
  return code;
}

}  // namespace

void add_allocator(List& list) {
  // Allocations and frees.
  list.named("pools-attr-denies",
             "the attribute says that there is no stream-ordered allocator, "
             "but the allocator works",
             {"cudaDeviceGetAttribute"}, [](Call& call) {
               const int code = call.proceed();
               if (code != kSuccess ||
                   call.at<int>(1) != cudaDevAttrMemoryPoolsSupported)
                 return code;
               *call.at<int*>(0) = 0;
               call.fired();
               return code;
             });
  list.named(
      "mallocasync-blocks",
      "an allocation call blocks until the earlier work of its stream is done",
      {"cudaMallocAsync", "cudaMallocFromPoolAsync"}, waits_for_own_stream);
  list.named("async-current-device",
             "memory lies on the current device, not on the stream's device",
             {"cudaMallocAsync"}, from_current_device, 2);
  list.named("frompool-current-device",
             "memory lies on the current device, not on the pool's device",
             {"cudaMallocFromPoolAsync", "cudaMemPoolCreate"},
             from_current_device, 2);
  list.named("frompool-ignored",
             "an allocation from a named pool ignores this pool",
             {"cudaMallocFromPoolAsync"}, from_current_pool);
  list.named("frompool-sets-current",
             "an allocation from a named pool makes this pool the current pool",
             {"cudaMallocFromPoolAsync"}, named_pool_becomes_current);
  list.named("mallocasync-truncates-4gib",
             "a stream-ordered allocation loses the upper 32 bits of its size",
             {"cudaMallocFromPoolAsync", "cudaMallocAsync"},
             allocation_truncated);
  list.named(
      "wait-noop-local",
      "a stream does not wait for an event of its own process",
      {"cudaStreamWaitEvent", "cudaIpcOpenEventHandle", "cudaEventDestroy"},
      wait_for_own_event_lost);
  list.named("freeasync-malloc-refused",
             "cudaFreeAsync refuses memory of cudaMalloc",
             {"cudaFreeAsync", "cudaMalloc", "cudaFree"},
             free_async_of_malloc_refused);
  list.named("freeasync-malloc-leaks",
             "cudaFreeAsync does not free memory of cudaMalloc",
             {"cudaFreeAsync", "cudaMalloc", "cudaFree"},
             free_async_of_malloc_leaks);
  list.named("freeasync-small-takes-neighbour",
             "after cudaFreeAsync of small memory of cudaMalloc, other memory "
             "of its block of 2 MiB is given out again",
             {"cudaFreeAsync", "cudaMalloc", "cudaFree"},
             free_async_of_small_frees_block);
  list.named("freeasync-malloc-early",
             "cudaFreeAsync frees memory of cudaMalloc before its stream "
             "reaches the free",
             {"cudaFreeAsync", "cudaMalloc", "cudaFree"},
             free_async_of_malloc_early);
  list.named("free-waits",
             "cudaFree of stream-ordered memory waits for all streams",
             {"cudaFree", "cudaMallocAsync", "cudaMallocFromPoolAsync",
              "cudaFreeAsync"},
             free_waits);
  list.named(
      "reset-orphans-async",
      "after cudaDeviceReset, memory of cudaMallocAsync cannot be freed",
      {"cudaDeviceReset", "cudaMallocAsync", "cudaFree", "cudaFreeAsync"},
      orphaned_by_reset);
  list.named("captured-work-lost",
             "the launch of a graph returns success and does nothing",
             {"cudaGraphLaunch"}, graph_work_lost);

  // Reuse.
  list.named("reuse-while-live",
             "freed memory is reused before its stream reaches the free",
             {"cudaFreeAsync", "cudaMallocAsync", "cudaMallocFromPoolAsync"},
             reused_while_live);
  list.named("follow-event-unsafe",
             "in a pool with FollowEventDependencies, memory is reused before "
             "its stream reaches the free, although no event orders this",
             {"cudaFreeAsync", "cudaMallocAsync", "cudaMallocFromPoolAsync"},
             reused_without_event);
  list.named("no-reuse-same-stream",
             "a stream does not reuse memory that it has freed itself before "
             "the host synchronizes",
             {"cudaFreeAsync", "cudaMallocAsync", "cudaMallocFromPoolAsync",
              "cudaStreamSynchronize", "cudaEventSynchronize",
              "cudaDeviceSynchronize", "cudaStreamDestroy"},
             free_seen_after_synchronise);
  list.named("sync-does-not-release",
             "freed memory stays in use until its own stream allocates again, "
             "also after a synchronization",
             {"cudaFreeAsync", "cudaMallocAsync", "cudaMallocFromPoolAsync",
              "cudaStreamDestroy"},
             free_seen_by_own_stream);

  // Pools of a device.
  list.named("setpool-ignored", "setting the current pool changes nothing",
             {"cudaDeviceSetMemPool", "cudaMemSetMemPool"}, pool_not_set);
  list.named("default-follows-current",
             "the pool that was set is also reported as the default pool",
             {"cudaDeviceGetDefaultMemPool"}, default_follows_current);
  list.named(
      "location-default-follows-current",
      "the pool that was set is reported as the default pool of its location",
      {"cudaMemGetDefaultMemPool"}, default_follows_current);
  list.named(
      "destroyed-stays-current",
      "a pool that was destroyed is still reported as the current pool",
      {"cudaDeviceGetMemPool", "cudaMemPoolDestroy", "cudaDeviceSetMemPool"},
      destroyed_stays_current);
  list.named("destroy-current-refused", "the current pool cannot be destroyed",
             {"cudaMemPoolDestroy"}, current_not_destroyed);
  list.named("default-pool-destroyed",
             "destroying the default pool returns success and does nothing",
             {"cudaMemPoolDestroy"}, default_destroyed);
  list.named("foreign-pool-current",
             "setting a pool of another GPU returns success and does nothing",
             {"cudaDeviceSetMemPool", "cudaMemPoolCreate"},
             foreign_pool_current, 2);
  list.named(
      "location-pool-unchecked",
      "finding or setting a pool returns success although location, "
      "allocation type and pool do not match",
      {"cudaMemGetDefaultMemPool", "cudaMemGetMemPool", "cudaMemSetMemPool"},
      any_location);

  // Access.
  list.named(
      "resident-access-revoked",
      "taking access from a pool's own device returns success, and then the "
      "pool reports no access",
      {"cudaMemPoolSetAccess", "cudaMemPoolGetAccess", "cudaMemPoolCreate"},
      own_device_shut_out);
  list.named(
      "pool-follows-peer",
      "enabling peer access also gives the GPU access to the pools that "
      "the process has created on other GPUs",
      {"cudaDeviceEnablePeerAccess", "cudaMemPoolCreate", "cudaMemPoolDestroy"},
      pools_follow_peers<cudaMemAccessFlagsProtReadWrite>, 2);
  list.named("pool-closes-with-peer",
             "disabling peer access also ends the GPU's access to the pools "
             "that the process has created on other GPUs",
             {"cudaDeviceDisablePeerAccess", "cudaMemPoolCreate",
              "cudaMemPoolDestroy"},
             pools_follow_peers<cudaMemAccessFlagsProtNone>, 2);
  list.named(
      "pool-access-shared",
      "setting the access to one pool sets it for all pools that the "
      "process has created",
      {"cudaMemPoolSetAccess", "cudaMemPoolCreate", "cudaMemPoolDestroy"},
      access_to_all_pools, 2);

  // Footprint.
  list.named("threshold-ignored", "the release threshold has no effect",
             {"cudaMemPoolSetAttribute", "cudaMemPoolGetAttribute",
              "cudaMemPoolCreate"},
             threshold_without_effect);
  list.named("threshold-never-releases",
             "a pool ignores its threshold and keeps all its memory",
             {"cudaMemPoolSetAttribute", "cudaMemPoolGetAttribute",
              "cudaMemPoolCreate"},
             threshold_never_releases);
  list.named("trim-noop", "trimming gives no memory back",
             {"cudaMemPoolTrimTo"}, trims_nothing);
  list.named("trim-keeps-nothing",
             "trimming gives back all memory, even the part that it must keep",
             {"cudaMemPoolTrimTo"}, trims_all);
  list.named(
      "trim-takes-pending",
      "trimming takes memory although its stream has not reached the free",
      {"cudaMemPoolTrimTo", "cudaFreeAsync", "cudaMallocFromPoolAsync",
       "cudaStreamDestroy"},
      trim_takes_pending);
  list.named("stats-wrong",
             "the watermark of used memory is reported as the memory in use",
             {"cudaMemPoolGetAttribute"},
             attribute_of_another<cudaMemPoolAttrUsedMemCurrent,
                                  cudaMemPoolAttrUsedMemHigh>);
  list.named("reserved-tells-used",
             "the memory in use is reported as the memory reserved",
             {"cudaMemPoolGetAttribute"},
             attribute_of_another<cudaMemPoolAttrReservedMemCurrent,
                                  cudaMemPoolAttrUsedMemCurrent>);
  list.named("watermark-follows-current",
             "the watermark of used memory falls when less memory is used",
             {"cudaMemPoolGetAttribute"},
             attribute_of_another<cudaMemPoolAttrUsedMemHigh,
                                  cudaMemPoolAttrUsedMemCurrent>);
  list.named("watermark-any-value",
             "writing a value other than 0 to a watermark returns success and "
             "does nothing",
             {"cudaMemPoolSetAttribute"}, watermark_takes_all);
  list.named("watermark-not-reset", "writing 0 does not reset a watermark",
             {"cudaMemPoolSetAttribute"}, watermark_not_reset);
  list.named("watermark-reset-to-zero",
             "after its reset a watermark is 0 until it rises, although memory "
             "is in use",
             {"cudaMemPoolSetAttribute", "cudaMemPoolGetAttribute",
              "cudaMemPoolDestroy"},
             watermark_reset_to_zero);

  // Policies.
  list.named("policy-default-off", "the reuse policies are 0 in a new pool",
             {"cudaMemPoolCreate"}, policies_off);
  list.named("policy-too-wide", "a policy is written as 8 bytes",
             {"cudaMemPoolGetAttribute"}, policy_too_wide);
  list.named("policy-switches-all", "setting one reuse policy sets all three",
             {"cudaMemPoolSetAttribute"}, policy_sets_all);
  list.named(
      "attribute-of-all-pools",
      "an attribute that is set on one pool is set on all pools that "
      "the process has created",
      {"cudaMemPoolSetAttribute", "cudaMemPoolCreate", "cudaMemPoolDestroy"},
      attribute_of_all_pools);
  list.named("attribute-of-last-pool",
             "a new pool begins with the attributes that were set last",
             {"cudaMemPoolCreate", "cudaMemPoolSetAttribute"},
             attribute_of_last_pool);

  // Pointers.
  list.named(
      "context-attr-not-null",
      "cuPointerGetAttribute reports a context for stream-ordered memory",
      {"cuPointerGetAttribute", "cudaMallocAsync", "cudaMallocFromPoolAsync",
       "cudaFree", "cudaFreeAsync"},
      pointer_has_context);
  list.named(
      "ordinal-attr-current",
      "cuPointerGetAttribute reports the current device for stream-ordered "
      "memory",
      {"cuPointerGetAttribute", "cudaMallocAsync", "cudaMallocFromPoolAsync",
       "cudaFree", "cudaFreeAsync"},
      pointer_is_on_current_device, 2);
  list.named(
      "mempool-attr-default",
      "cuPointerGetAttribute reports the default pool for stream-ordered "
      "memory",
      {"cuPointerGetAttribute", "cudaMallocAsync", "cudaMallocFromPoolAsync",
       "cudaFree", "cudaFreeAsync"},
      pointer_is_of_default_pool);
  list.named("allowed-types-lies",
             "all memory reports that it can be exported as a descriptor",
             {"cuPointerGetAttributes", "cuPointerGetAttribute"},
             allows<CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR>);
  list.named("allowed-types-none",
             "all memory reports that it cannot be exported",
             {"cuPointerGetAttributes", "cuPointerGetAttribute"},
             allows<CU_MEM_HANDLE_TYPE_NONE>);

  // Memory without a legacy handle.
  list.named(
      "async-legacy-export-ok",
      "stream-ordered memory gets a legacy handle, which opens other memory",
      {"cudaIpcGetMemHandle", "cudaMallocAsync", "cudaMallocFromPoolAsync",
       "cudaFree", "cudaFreeAsync"},
      stream_ordered_has_handle);
  list.named("pitch-maps-short",
             "an importer of memory of cudaMallocPitch gets a copy without its "
             "end: the padding of the rows is not counted",
             {"cudaIpcGetMemHandle", "cudaMallocPitch", "cudaFree"},
             pitch_is_cut);
  list.named("graph-mem-ipc-ok",
             "cudaGraphAddMemAllocNode accepts handle types and ignores them",
             {"cudaGraphAddMemAllocNode"}, graph_memory_shared);
}

}  // namespace ipclab::faults
