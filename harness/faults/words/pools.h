// Words that faults of several folders use: pools.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "harness/faults/words/chunks.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

using Handles = cudaMemAllocationHandleType;

inline constexpr auto kPoolFd = cudaMemHandleTypePosixFileDescriptor;

inline constexpr size_t kDataBytes = sizeof(cudaMemPoolPtrExportData);

inline constexpr size_t kPage = 2 << 20;

inline constexpr size_t kCleared = 64 << 20;

inline unsigned long long now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<unsigned long long>(time.tv_sec) * 1000000000u +
         static_cast<unsigned long long>(time.tv_nsec);
}

inline int waits_for_streams(Call& call) {
  call.fired();
  cudaDeviceSynchronize();
  return call.proceed();
}

/// An import returns other memory. The real memory stays imported until the
/// process ends.
inline int import_other_memory(Call& call, bool with_bytes,
                               bool on_host = false) {
  static Table<void*, bool> others;  // is it on the host?
  if (frees(call) && others.has(call.at<void*>(0))) {
    void* const freed = call.at<void*>(0);
    const bool of_host = others.get(freed);
    others.erase(freed);
    if (!of_host) return call.proceed();
    cudaFreeHost(freed);
    return kSuccess;
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  void*& address = *call.at<void**>(0);
  const size_t bytes = blocks.get(address).bytes;
  void* other = nullptr;
  if ((on_host ? cudaHostAlloc(&other, bytes, cudaHostAllocDefault)
               : cudaMalloc(&other, bytes)) != cudaSuccess)
    return code;
  cudaMemset(other, 0, std::min(bytes, kCleared));
  if (with_bytes) cudaMemcpy(other, address, bytes, cudaMemcpyDefault);
  cudaDeviceSynchronize();
  others.put(other, on_host);
  address = other;
  call.fired();
  return code;
}

inline int import_fresh(Call& call) { return import_other_memory(call, false); }

inline int import_snapshot(Call& call) {
  return import_other_memory(call, true);
}

/// The importer's free does not wait for the earlier work of its stream.
inline int importers_free_at_once(Call& call) {
  if (!call.is("cudaFreeAsync") || !is_import(call.at<void*>(0)) ||
      !is_busy(call.at<cudaStream_t>(1)))
    return call.proceed();
  void* const address = call.at<void*>(0);
  const size_t bytes = blocks.get(address).bytes;
  blocks.erase(address);
  // The next owner does not wait for the importer's work.
  cudaMemsetAsync(address, 0xDD, bytes, private_stream());
  cudaStreamSynchronize(private_stream());
  call.fired();
  return cudaFree(address);
}

inline size_t lent_by(cudaMemPool_t pool) {
  size_t bytes = 0;
  for (const auto& [address, block] : blocks.all())
    if (block.pool == pool) bytes += block.bytes;
  return bytes;
}

/// This attribute came with CUDA 13.2, so older headers do not have it.
inline constexpr auto kTypesForExport = static_cast<cudaMemPoolAttr>(10);

inline bool in_per_thread_stream(Call& call) {
  return call.value<cudaStream_t>(kStream) == cudaStreamPerThread;
}

inline bool in_null_stream(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  return stream == nullptr || stream == cudaStreamLegacy;
}

/// Frees that put_free_off() delays until a call for which `due` is true, or
/// until the end of their stream. Until then no allocation reuses the memory.
inline Table<void*, cudaStream_t> put_off;

inline bool can_be_set(cudaMemPoolAttr attribute) {
  return is_policy(attribute) || attribute == cudaMemPoolAttrReleaseThreshold;
}

template <class Value>
Value attribute_of(CUpointer_attribute attribute, CUdeviceptr address) {
  Value value{};
  DRIVER_CALL(cuPointerGetAttribute)(&value, attribute, address);
  return value;
}

inline bool concerns(Call& call, const char* function,
                     cudaMemPoolAttr attribute) {
  return call.is(function) && call.at<cudaMemPoolAttr>(1) == attribute;
}

/// Numbers that a fault adds to an answer about a pool.
inline Table<cudaMemPool_t, uint64_t> extra;

inline void add_extra(cudaMemPool_t pool, uint64_t bytes) {
  extra.put(pool, extra.get(pool) + bytes);
}

/// Proceeds; adds the extra number of the pool to the memory in use.
inline int used_with_extra(Call& call) {
  if (call.is("cudaMemPoolDestroy")) extra.erase(call.at<cudaMemPool_t>(0));
  const int code = call.proceed();
  if (code != kSuccess ||
      !concerns(call, kGetPoolAttribute, cudaMemPoolAttrUsedMemCurrent))
    return code;
  const uint64_t more = extra.get(call.at<cudaMemPool_t>(0));
  if (more == 0) return code;
  *call.at<uint64_t*>(2) += more;
  call.fired();
  return code;
}

/// The pool, the attribute and the attribute's value in a call of
/// cudaMemPoolSetAttribute or cudaMemPoolGetAttribute. For the pool, also in a
/// call of cudaMemPoolDestroy, cudaMemPoolTrimTo or cudaMemPoolSetAccess.
inline cudaMemPool_t pool_of(Call& call) { return call.at<cudaMemPool_t>(0); }

inline cudaMemPoolAttr pool_attribute(Call& call) {
  return call.at<cudaMemPoolAttr>(1);
}

inline uint64_t& number_of(Call& call) { return *call.at<uint64_t*>(2); }

inline bool is_current_gpu(int gpu) {
  int current = 0;
  cudaGetDevice(&current);
  return gpu == current;
}

inline bool is_default_pool(cudaMemPool_t pool) {
  int gpus = 0;
  DRIVER_CALL(cuDeviceGetCount)(&gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cudaMemPool_t preset = nullptr;
    cudaDeviceGetDefaultMemPool(&preset, gpu);
    if (preset == pool) return true;
  }
  return false;
}

inline bool is_shareable(cudaMemPool_t pool) {
  return own_pools.get(pool).handleTypes != cudaMemHandleTypeNone;
}

/// Does the stream have these flags, and is it no default stream?
inline bool has_flags(cudaStream_t stream, unsigned wanted) {
  unsigned flags = 0;
  return !is_default(stream) && stream != cudaStreamPerThread &&
         DRIVER_CALL(cuStreamGetFlags)(stream, &flags) == CUDA_SUCCESS &&
         flags == wanted;
}

inline constexpr auto kUsed = cudaMemPoolAttrUsedMemCurrent;

inline constexpr auto kUsedHigh = cudaMemPoolAttrUsedMemHigh;

inline constexpr auto kReserved = cudaMemPoolAttrReservedMemCurrent;

inline constexpr auto kThreshold = cudaMemPoolAttrReleaseThreshold;

inline bool sets(Call& call) { return call.is("cudaMemPoolSetAttribute"); }

inline bool gets(Call& call) { return call.is("cudaMemPoolGetAttribute"); }

inline bool creates(Call& call) { return call.is("cudaMemPoolCreate"); }

inline bool destroys(Call& call) { return call.is("cudaMemPoolDestroy"); }

/// Allocates from this pool instead of the current one.
inline int allocated_from(cudaMemPool_t pool, Call& call) {
  const auto code = cudaMallocFromPoolAsync(
      call.at<void**>(0), call.at<size_t>(1), pool, call.at<cudaStream_t>(2));
  call.fired();
  return code;
}

/// The stream of the call, if the call has one.
inline cudaStream_t stream_in(Call& call) {
  return call.find(kStream) != nullptr ? stream_of(call) : nullptr;
}

inline bool is_own_block(void* address) {
  return blocks.has(address) && !is_import(address);
}

/// Frees the memory of this call without waiting for its stream.
inline int freed_at_once(Call& free) {
  blocks.erase(free.at<void*>(0));
  free.value<cudaStream_t>(kStream) = private_stream();
  free.fired();
  const int code = free.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

/// A free that the program has made and the driver has not.
struct Free {
  cudaStream_t stream = nullptr;
  int thread = 0;
  size_t bytes = 0;
  cudaMemPool_t pool = nullptr;
};

inline Table<void*, Free> late_frees;

/// What a later call does with such a free.
enum class Now {
  kInOrder,  // the free happens in its stream
  kAtOnce,   // the free happens, and does not wait for its stream
  kLost,     // the free never happens
  kClears,   // the memory is cleared, and the free happens in its stream
  kStays,    // nothing
  kHidden,   // nothing, which is the bug
};

inline void settle(Call& call, void* address, const Free& free, Now now) {
  if (now == Now::kHidden) call.fired();
  if (now >= Now::kStays || !late_frees.erase(address)) return;
  if (now == Now::kInOrder) {
    // After an event the stream is idle very soon.
    if (call.is("cudaEventSynchronize"))
      for (int i = 0; i < 1000 && is_busy(free.stream); ++i) usleep(100);
    const bool idle = !is_busy(free.stream);
    cudaFreeAsync(address, free.stream);
    if (idle) cudaStreamSynchronize(free.stream);
    return;
  }
  if (now == Now::kAtOnce) {
    cudaFreeAsync(address, private_stream());
    cudaStreamSynchronize(private_stream());
  }
  if (now == Now::kClears) {
    cudaMemsetAsync(address, 0, free.bytes, private_stream());
    cudaStreamSynchronize(private_stream());
    cudaFreeAsync(address, free.stream);
  }
  call.fired();
}

/// The free of own memory is put off if `puts_off` says so, until a later call
/// for which `decides` says what happens.
template <bool (*puts_off)(Call& free),
          Now (*decides)(Call& call, const Free& free)>
int with_late_frees(Call& call) {
  void* address = nullptr;
  if (call.is("cudaFreeAsync")) address = call.at<void*>(0);
  if (address != nullptr && is_own_block(address) &&
      !is_captured(stream_of(call)) && puts_off(call)) {
    const Block block = blocks.get(address);
    late_frees.put(address,
                   {stream_of(call), this_thread(), block.bytes, block.pool});
    blocks.erase(address);
    return kSuccess;
  }
  // The event was recorded after the free.
  const bool first = call.is("cudaEventSynchronize");
  const int code = first ? call.proceed() : kSuccess;
  if (address == nullptr)
    for (const auto& [late, free] : late_frees.all())
      settle(call, late, free, decides(call, free));
  return first ? code : call.proceed();
}

inline bool busy_free(Call& free) { return is_busy(stream_of(free)); }

/// Calls that give an address overlap: the second caller gets the address of
/// the first.
inline int address_of_other_thread(Call& call) {
  static std::atomic<void*> last{nullptr};
  static std::atomic<int> inside{0};
  ++inside;
  const int code = call.proceed();
  if (code == kSuccess) {
    auto& address = *call.at<void**>(0);
    if (inside > 1 && last != nullptr) {
      address = last;
      call.fired();
    } else {
      last = address;
    }
  }
  usleep(1000);  // so that calls overlap
  --inside;
  if (inside == 0) last = nullptr;
  return code;
}

inline bool exports_of_pool_path(Call& call) {
  return call.is("cudaMemPoolExportPointer");
}

inline bool imports_pointer(Call& call) {
  return call.is("cudaMemPoolImportPointer");
}

inline bool exports_pool(Call& call) {
  return call.is("cudaMemPoolExportToShareableHandle");
}

/// The data of exported memory, as a key for the other processes.
inline std::string key_of_export(Call& call) {
  return key_of_data(call.at<void*>(0));
}

inline std::string key_of_import(Call& call) {
  return key_of_data(call.at<void*>(2));
}

/// An export or an import of a pool makes the default pool current.
inline int default_becomes_current(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || current_pool() == default_pool()) return code;
  int gpu = 0;
  cudaGetDevice(&gpu);
  cudaDeviceSetMemPool(gpu, default_pool());
  call.fired();
  return code;
}

/// Exported memory of this process, by the key of its data.
inline Table<std::string, void*> exported_here;

inline void note_export(Call& call) {
  if (exports_of_pool_path(call))
    exported_here.put(key_of_export(call), call.at<void*>(1));
  if (frees(call))
    for (const auto& [key, address] : exported_here.all())
      if (address == call.at<void*>(0)) exported_here.erase(key);
}

inline int destroy_told(Call& call) {
  if (call.is("cudaMemPoolDestroy"))
    for (const auto& [key, address] : exported_here.all())
      if (blocks.get(address).pool == pool_of(call))
        tell_processes("gone-" + key, 1);
  const int code = call.proceed();
  if (code == kSuccess) note_export(call);
  return code;
}

/// Memory counts as unused until its stream comes to the allocation. The call
/// for which `takes` is true gives such memory back.
template <bool (*takes)(Call& call)>
int pending_allocation_taken(Call& call) {
  struct Pending {
    cudaStream_t stream = nullptr;
    cudaMemPool_t pool = nullptr;
  };
  static Table<void*, Pending> pending;
  static Table<void*> taken;
  if (frees(call) && taken.erase(call.at<void*>(0))) return kSuccess;
  if (frees(call)) pending.erase(call.at<void*>(0));
  if (takes(call))
    for (const auto& [address, one] : pending.all()) {
      // A trim and a destroy name a pool.
      if (call.find(kPool) != nullptr && one.pool != call.at<cudaMemPool_t>(0))
        continue;
      if (!pending.erase(address) || !is_busy(one.stream) ||
          one.stream == stream_in(call))
        continue;
      cudaFreeAsync(address, private_stream());
      cudaStreamSynchronize(private_stream());
      taken.put(address);
      call.fired();
    }
  const bool busy = allocates(call) && is_busy(stream_of(call));
  const int code = call.proceed();
  if (busy && code == kSuccess)
    pending.put(*call.at<void**>(0),
                {stream_of(call), call.is("cudaMallocAsync")
                                      ? current_pool()
                                      : call.value<cudaMemPool_t>(kPool)});
  return code;
}

inline bool gives_access(Call& call) {
  return sets_access(call) && call.at<const cudaMemAccessDesc*>(1)->flags !=
                                  cudaMemAccessFlagsProtNone;
}

/// A synchronise for which `applies` is true releases memory as if the
/// threshold were another one. It gives no memory back if this threshold is the
/// largest.
template <bool (*applies)(Call& call, cudaMemPool_t pool),
          uint64_t instead = UINT64_MAX>
int synchronise_keeps(Call& call) {
  std::map<cudaMemPool_t, uint64_t> thresholds;
  if (call.is("cudaStreamSynchronize") || call.is("cudaDeviceSynchronize") ||
      call.is("cuCtxSynchronize"))
    for (const auto& each : own_pools.all()) {
      const cudaMemPool_t pool = each.first;
      const auto now = attribute(pool, kThreshold);
      if (!applies(call, pool) || now == instead ||
          attribute(pool, cudaMemPoolAttrReservedMemCurrent) <= now)
        continue;
      thresholds[pool] = now;
      uint64_t other = instead;
      cudaMemPoolSetAttribute(pool, kThreshold, &other);
      call.fired();
    }
  const int code = call.proceed();
  for (auto& [pool, now] : thresholds)
    cudaMemPoolSetAttribute(pool, kThreshold, &now);
  return code;
}

inline bool has_imports_of(cudaMemPool_t pool) {
  for (const auto& each : blocks.all())
    if (each.second.imported && each.second.pool == pool) return true;
  return false;
}

inline bool has_priority(Call& call) {
  const cudaStream_t stream = stream_of(call);
  int priority = 0;
  return !is_default(stream) && stream != cudaStreamPerThread &&
         DRIVER_CALL(cuStreamGetPriority)(stream, &priority) == CUDA_SUCCESS &&
         priority != 0;
}

}  // namespace ipclab::faults
