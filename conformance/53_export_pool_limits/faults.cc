// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "harness/faults/words/pool_work.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int maximum_counts_freed(Call& call) {
  static Table<cudaMemPool_t, size_t> given;
  if (call.is("cudaMemPoolCreate")) {
    const int made = call.proceed();
    if (made == kSuccess) given.erase(*call.at<cudaMemPool_t*>(0));
    return made;
  }
  const cudaMemPool_t pool = call.at<cudaMemPool_t>(2);
  const size_t most = max_size(own_pools.get(pool, cudaMemPoolProps{}));
  const size_t bytes = given.get(pool) + call.at<size_t>(1);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (most == 0 || bytes <= most) {
    given.put(pool, bytes);
    return code;
  }
  cudaFree(*call.at<void**>(0));
  return refused(call, cudaErrorMemoryAllocation);
}

int late_free_lost(Call& call) {
  static Table<cudaMemPool_t> gone;
  if (call.is("cudaMemPoolDestroy")) {
    const int code = call.proceed();
    if (code == kSuccess) gone.put(call.at<cudaMemPool_t>(0));
    return code;
  }
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) gone.erase(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (frees(call) && gone.has(blocks.get(call.at<void*>(0)).pool)) {
    call.fired();
    return kSuccess;
  }
  return call.proceed();
}

// The destroy ends the process once so many pools were destroyed in use.
int dies_after(int count, Call& call) {
  static std::atomic<int> in_use{0};
  if (in_use >= count) {
    call.fired();
    raise(SIGSEGV);
  }
  for (const auto& [address, block] : blocks.all())
    if (block.pool == call.at<cudaMemPool_t>(0)) {
      ++in_use;
      break;
    }
  return kSuccess;
}

// What an importer sets is reported by the exporter's pool until the exporter
// sets it again.
template <class Value, bool (*concerns)(cudaMemPoolAttr)>
int attribute_of_import_leaks(Call& call) {
  static Table<cudaMemPool_t> lent;
  const int code = call.proceed();
  if (call.is("cudaMemPoolDestroy")) lent.erase(call.at<cudaMemPool_t>(0));
  if (call.is("cudaMemPoolExportToShareableHandle"))
    lent.put(call.at<cudaMemPool_t>(1));
  const bool sets = call.is("cudaMemPoolSetAttribute");
  if ((!sets && !call.is("cudaMemPoolGetAttribute")) ||
      !concerns(call.at<cudaMemPoolAttr>(1)))
    return code;
  const auto pool = call.at<cudaMemPool_t>(0);
  const std::string key =
      "attribute-" + std::to_string(call.at<cudaMemPoolAttr>(1));
  if (sets && imported_pools.has(pool)) {
    tell_processes(key,
                   static_cast<unsigned long long>(*call.at<const Value*>(2)));
    tell_processes(key + "-leaks", 1);
  } else if (sets && lent.has(pool)) {
    tell_processes(key + "-leaks", 0);
  } else if (!sets && code == kSuccess && lent.has(pool) &&
             told(key + "-leaks", 0) != 0) {
    auto& value = *call.at<Value*>(2);
    const auto leaked =
        static_cast<Value>(told(key, static_cast<unsigned long long>(value)));
    if (leaked != value) call.fired();
    value = leaked;
  }
  return code;
}

bool is_threshold(cudaMemPoolAttr which) {
  return which == cudaMemPoolAttrReleaseThreshold;
}

int free_after_destroy_refused(Call& call) {
  static Table<cudaMemPool_t> destroyed;
  if (call.is("cudaMemPoolDestroy")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    const int code = call.proceed();
    if (code == kSuccess) destroyed.put(pool);
    return code;
  }
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) destroyed.erase(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (frees(call) && blocks.has(call.at<void*>(0)) &&
      destroyed.has(blocks.get(call.at<void*>(0)).pool))
    return refused(call);
  return call.proceed();
}

int maximum_counts_refused(Call& call) {
  static Table<cudaMemPool_t, size_t> beyond;
  if (!call.is("cudaMallocFromPoolAsync")) {
    const bool destroys = call.is("cudaMemPoolDestroy");
    const auto gone = destroys ? call.at<cudaMemPool_t>(0) : nullptr;
    const int done = call.proceed();
    if (done == kSuccess && destroys) beyond.erase(gone);
    return done;
  }
  const auto pool = call.at<cudaMemPool_t>(2);
  const size_t bytes = call.at<size_t>(1);
  const size_t most = max_size(own_pools.get(pool));
  if (most != 0 && lent_by(pool) + beyond.get(pool) + bytes > most &&
      lent_by(pool) + bytes <= most)
    return refused(call, cudaErrorMemoryAllocation);
  const int code = call.proceed();
  if (code == cudaErrorMemoryAllocation)
    beyond.put(pool, beyond.get(pool) + bytes);
  return code;
}

int maximum_of_each_allocation(Call& call) {
  static Table<cudaMemPool_t, size_t> most;
  if (call.is("cudaMemPoolCreate")) {
    cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
    const size_t size = max_size(wanted);
    max_size(wanted) = 0;
    call.at<const cudaMemPoolProps*>(1) = &wanted;
    const int code = call.proceed();
    if (code == kSuccess) most.put(*call.at<cudaMemPool_t*>(0), size);
    return code;
  }
  const cudaMemPool_t pool =
      call.is("cudaMallocAsync") ? current_pool() : call.at<cudaMemPool_t>(2);
  const size_t size = most.get(pool);
  if (size == 0) return call.proceed();
  call.fired();
  return call.at<size_t>(1) > size ? int{cudaErrorMemoryAllocation}
                                   : call.proceed();
}

int refusal_raises_watermark(Call& call) {
  constexpr auto kHigh = cudaMemPoolAttrUsedMemHigh;
  const int code = call.proceed();
  if (call.is("cudaMallocFromPoolAsync")) {
    const auto pool = call.at<cudaMemPool_t>(2);
    if (code == cudaErrorMemoryAllocation)
      extra.put(pool, attribute(pool, cudaMemPoolAttrUsedMemCurrent) +
                          call.at<size_t>(1));
    return code;
  }
  const auto pool = call.at<cudaMemPool_t>(0);
  if (call.is("cudaMemPoolDestroy") || concerns(call, kSetPoolAttribute, kHigh))
    extra.erase(pool);
  if (code != kSuccess || !concerns(call, kGetPoolAttribute, kHigh) ||
      *call.at<uint64_t*>(2) >= extra.get(pool))
    return code;
  *call.at<uint64_t*>(2) = extra.get(pool);
  call.fired();
  return code;
}

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
  if (!gets(call) || pool_attribute(call) != kUsed) return code;
  const uint64_t off = std::min(number_of(call), too_few.get(pool_of(call)));
  if (off != 0) call.fired();
  number_of(call) -= off;
  return code;
}

int free_after_destroy_at_once(Call& call) {
  static auto& destroyed = *new Table<cudaMemPool_t>;
  if (call.is("cudaFreeAsync")) {
    void* const address = call.at<void*>(0);
    const Block block = blocks.get(address);
    if (!block.imported && block.bytes != 0 && destroyed.has(block.pool) &&
        is_busy(stream_of(call))) {
      cudaMemsetAsync(address, 0xDD, block.bytes, private_stream());
      cudaStreamSynchronize(private_stream());
      call.fired();
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (destroys(call)) destroyed.put(pool_of(call));
  if (creates(call)) destroyed.erase(*call.at<cudaMemPool_t*>(0));
  return code;
}

Now cleared_by_destroy(Call& call, const Free& free) {
  return call.is("cudaMemPoolDestroy") && call.at<cudaMemPool_t>(0) == free.pool
             ? Now::kClears
             : Now::kInOrder;
}

int destroy_clears_imports(Call& call) {
  static Table<void*, std::string>
      keys;  // of exports_of_pool_path, and of imports_pointer
  if (call.is("cudaMemPoolDestroy"))
    for (const auto& [address, key] : keys.all()) {
      const Block block = blocks.get(address);
      if (block.imported || block.pool != pool_of(call) ||
          told("imported-" + key, 0) == 0)
        continue;
      cudaMemsetAsync(address, 0, block.bytes, private_stream());
      cudaStreamSynchronize(private_stream());
      call.fired();
    }
  if (frees(call) && keys.has(call.at<void*>(0))) {
    tell_processes("imported-" + keys.get(call.at<void*>(0)), 0);
    keys.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_of_pool_path(call))
    keys.put(call.at<void*>(1), key_of_export(call));
  if (imports_pointer(call)) {
    keys.put(*call.at<void**>(0), key_of_import(call));
    tell_processes("imported-" + key_of_import(call), 1);
  }
  return code;
}

// What is set in an imported pool is also set in the pools of this process.
template <bool (*concerns)(cudaMemPoolAttr)>
int set_of_import_is_own(Call& call) {
  const int code = call.proceed();
  if (!sets(call) || !imported_pools.has(pool_of(call)) ||
      !concerns(call.at<cudaMemPoolAttr>(1)))
    return code;
  for (const auto& own : own_pools.all())
    if (cudaMemPoolSetAttribute(own.first, call.at<cudaMemPoolAttr>(1),
                                call.at<void*>(2)) == cudaSuccess)
      call.fired();
  return code;
}

bool concerns_threshold(cudaMemPoolAttr which) { return which == kThreshold; }

// Memory of a pool that has a maximal size.
struct Piece {
  cudaMemPool_t pool = nullptr;
  size_t bytes = 0;
  cudaStream_t stream = nullptr;
};

// Pools with a maximal size that were exported.
Table<cudaMemPool_t> shared_with_limit;

// The maximal size of a pool limits only the memory for which `counts` is true,
// seen from the allocation that is made now.
template <bool (*counts)(const Piece& piece, const Piece& now)>
int limits_a_part(Call& call) {
  static Table<cudaMemPool_t, size_t> limits;
  static Table<void*, Piece> pieces;
  if (call.is("cudaMemPoolCreate")) {
    cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
    const size_t limit = std::exchange(max_size(wanted), 0);
    call.at<const cudaMemPoolProps*>(1) = &wanted;
    const int code = call.proceed();
    if (code != kSuccess) return code;
    limits.put(*call.at<cudaMemPool_t*>(0), limit);
    for (const auto& each : pieces.all())  // of an earlier pool
      if (each.second.pool == *call.at<cudaMemPool_t*>(0))
        pieces.erase(each.first);
    return code;
  }
  if (destroys(call)) shared_with_limit.erase(pool_of(call));
  if (exports_pool(call)) shared_with_limit.put(call.at<cudaMemPool_t>(1));
  if (frees(call)) pieces.erase(call.at<void*>(0));
  if (!allocates(call)) return call.proceed();
  const Piece now{
      call.is("cudaMallocAsync") ? current_pool() : call.at<cudaMemPool_t>(2),
      call.at<size_t>(1), stream_of(call)};
  const size_t limit = limits.get(now.pool);
  if (limit == 0) return call.proceed();
  size_t all = now.bytes, counted = counts(now, now) ? now.bytes : 0;
  for (const auto& each : pieces.all()) {
    if (each.second.pool != now.pool) continue;
    all += each.second.bytes;
    if (counts(each.second, now)) counted += each.second.bytes;
  }
  if (counted > limit) return int{cudaErrorMemoryAllocation};
  if (all > limit) call.fired();
  const int code = call.proceed();
  if (code == kSuccess) pieces.put(*call.at<void**>(0), now);
  return code;
}

bool is_of_same_stream(const Piece& piece, const Piece& now) {
  return piece.stream == now.stream;
}

bool has_a_mebibyte(const Piece& piece, const Piece&) {
  return piece.bytes >= kGranule / 2;
}

bool is_not_exported(const Piece&, const Piece& now) {
  return !shared_with_limit.has(now.pool);
}

// After the destroy of a pool, the first free ends all memory of the pool.
template <bool imported>
int first_free_ends_all(Call& call) {
  static Table<void*, int> orphans;  // by the number of their pool
  static Table<void*> ended;
  static std::atomic<int> pools{0};
  if (destroys(call) && imported_pools.has(pool_of(call)) == imported) {
    const int number = ++pools;
    for (const auto& [address, block] : blocks.all())
      if (block.pool == pool_of(call)) orphans.put(address, number);
  }
  if (frees(call) && ended.erase(call.at<void*>(0))) return kSuccess;
  if (frees(call) && orphans.has(call.at<void*>(0))) {
    const int number = orphans.get(call.at<void*>(0));
    orphans.erase(call.at<void*>(0));
    for (const auto& [other, of_other] : orphans.all()) {
      if (of_other != number || !orphans.erase(other)) continue;
      cudaFree(other);
      ended.put(other);
      call.fired();
    }
  }
  return call.proceed();
}

int driver_policy_reaches_exporter(Call& call) {
  constexpr unsigned long long kUntold = 2;
  static Table<cudaMemPool_t> lent;
  if (destroys(call)) lent.erase(pool_of(call));
  const int code = call.proceed();
  if (exports_pool(call)) lent.put(call.at<cudaMemPool_t>(1));
  if ((!sets(call) && !call.is("cudaMemPoolGetAttribute")) ||
      !is_policy(pool_attribute(call)))
    return code;
  const std::string key = "policy-" + std::to_string(pool_attribute(call));
  if (sets(call) && imported_pools.has(pool_of(call)) && !call.is_runtime())
    tell_processes(key,
                   static_cast<unsigned long long>(*call.at<const int*>(2)));
  if (!lent.has(pool_of(call))) return code;
  if (sets(call)) tell_processes(key, kUntold);
  const auto value = told(key, kUntold);
  if (sets(call) || value == kUntold) return code;
  *call.at<int*>(2) = static_cast<int>(value);
  call.fired();
  return code;
}

FAULTS {
  fault("maxsize-ignored", {"POOL-22"}, "a pool grows beyond its maximal size")
      .on({kCreatePool}, [](Call& call) {
        cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
        if (max_size(wanted) == 0) return call.proceed();
        max_size(wanted) = 0;
        call.at<const cudaMemPoolProps*>(1) = &wanted;
        call.fired();
        return call.proceed();
      });

  fault("maxsize-counts-freed", {"POOL-22"},
        "freed memory still counts towards the maximal size")
      .on({kMallocFromPool, kCreatePool}, maximum_counts_freed);

  fault("import-destroy-frees", {"POOL-23"},
        "destroying an imported pool ends the imported pointers of that pool")
      .before(
          {kDestroyPool, kImportPointer, kFree, kFreeAsync}, [](Call& call) {
            if (call.is("cudaMemPoolDestroy"))
              for (const auto& [address, block] : blocks.all())
                if (block.imported && block.pool == call.at<cudaMemPool_t>(0) &&
                    cudaFree(address) == cudaSuccess) {
                  blocks.erase(address);
                  call.fired();
                }
            return kSuccess;
          });

  fault("pool-import-4gib", {"IMPL-14"},
        "an allocation of 4 GiB or more is imported as new memory")
      .on({kImportPointer, kExportPointer, kMallocFromPool, kFree, kFreeAsync},
          WHEN(!(call.is("cudaMemPoolImportPointer") &&
                 told(key_of_data(call.at<void*>(2)), 0) <= UINT32_MAX)),
          [](Call& call) { return import_other_memory(call, false); });

  fault("destroy-frees-live", {"POOL-23"},
        "destroying a pool frees memory that is in use")
      .on({kDestroyPool, kMallocFromPool, kFree, kFreeAsync}, [](Call& call) {
        static Table<void*> gone;
        if (frees(call) && gone.erase(call.at<void*>(0))) return kSuccess;
        if (call.is("cudaMemPoolDestroy"))
          for (const auto& [address, block] : blocks.all())
            if (block.pool == call.at<cudaMemPool_t>(0) &&
                cudaFree(address) == cudaSuccess) {
              blocks.erase(address);
              gone.put(address);
              call.fired();
            }
        return call.proceed();
      });

  fault("destroy-leaks", {"POOL-23"},
        "memory that is freed after its pool was destroyed is never given back")
      .on({kFreeAsync, kFree, kCreatePool, kDestroyPool}, late_free_lost);

  fault("second-destroy-dies", {"POOL-23"},
        "the destroy of a pool ends the process if a pool was destroyed before "
        "while its memory was in use")
      .before({kDestroyPool}, [](Call& call) { return dies_after(1, call); });

  fault("later-destroy-dies", {"POOL-23"},
        "the destroy of a pool ends the process if three pools were destroyed "
        "before while their memory was in use")
      .before({kDestroyPool}, [](Call& call) { return dies_after(3, call); });

  fault("destroy-blocks", {"POOL-23"},
        "destroying a pool waits for the work of all streams")
      .on({kDestroyPool}, waits_for_streams);

  fault("trim-breaks-live", {"POOL-19", "IMPL-04", "SOMA-18"},
        "trimming takes memory that is in use")
      .on({kTrim}, [](Call& call) -> int {
        const int code = call.proceed();
        if (code != kSuccess && !imported_pools.has(call.at<cudaMemPool_t>(0)))
          return code;
        if (code != kSuccess) accepted(call);
        for (const auto& [address, block] : blocks.all())
          if (block.pool == call.at<cudaMemPool_t>(0) &&
              cudaMemsetAsync(address, 0xDD, block.bytes, private_stream()) ==
                  cudaSuccess)
            call.fired();
        cudaStreamSynchronize(private_stream());
        return kSuccess;
      });

  fault("threshold-not-kept", {"POOL-20"},
        "the release threshold cannot be changed")
      .on({kSetPoolAttribute},
          WHEN(call.at<cudaMemPoolAttr>(1) == cudaMemPoolAttrReleaseThreshold),
          [](Call& call) { return lost(call); });

  fault("policy-leaks-to-exporter", {"IMPL-03"},
        "a policy that an importer sets is reported to the exporter")
      .on({kSetPoolAttribute, kGetPoolAttribute, kImportPool, kExportPool,
           kDestroyPool},
          attribute_of_import_leaks<int, is_policy>);

  fault("free-after-destroy-refused", {"POOL-23"},
        "memory of a destroyed pool cannot be freed")
      .on({kCreatePool, kDestroyPool, kFree, kFreeAsync},
          free_after_destroy_refused);

  fault("maxsize-32-bits", {"POOL-22"},
        "the maximal size of a pool loses its upper 32 bits")
      .on({kCreatePool}, [](Call& call) {
        cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
        if (max_size(wanted) <= UINT32_MAX) return call.proceed();
        max_size(wanted) = static_cast<uint32_t>(max_size(wanted));
        call.at<const cudaMemPoolProps*>(1) = &wanted;
        call.fired();
        return call.proceed();
      });

  fault("maxsize-refused-as-value", {"POOL-22"},
        "an allocation beyond the maximal size is refused as an invalid value")
      .on({kMallocFromPool}, [](Call& call) {
        const int code = call.proceed();
        return code == cudaErrorMemoryAllocation &&
                       max_size(own_pools.get(call.at<cudaMemPool_t>(2))) != 0
                   ? refused(call)
                   : code;
      });

  fault("maxsize-counts-refused", {"POOL-22"},
        "an allocation that was refused counts towards the maximal size")
      .on({kCreatePool, kDestroyPool, kMallocFromPool, kFree, kFreeAsync},
          maximum_counts_refused);

  fault("threshold-leaks-to-exporter", {"IMPL-04"},
        "a threshold that an importer sets is reported to the exporter")
      .on({kImportPool, kSetPoolAttribute, kGetPoolAttribute, kExportPool,
           kDestroyPool},
          attribute_of_import_leaks<cuuint64_t, is_threshold>);

  fault("mallocasync-truncates-4gib", {"IMPL-14"},
        "a stream-ordered allocation loses the upper 32 bits of its size")
      .before({kMallocFromPool, kMallocAsync}, [](Call& call) {
        size_t& bytes = call.at<size_t>(1);
        if (bytes > UINT32_MAX) {
          bytes = static_cast<uint32_t>(bytes);
          if (bytes == 0) bytes = 1;
          call.fired();
        }
        return kSuccess;
      });

  fault("maxsize-of-each", {"POOL-22"},
        "the maximal size limits each allocation, not their sum")
      .on({kCreatePool, kMallocFromPool, kMallocAsync},
          maximum_of_each_allocation);

  fault("export-resets-policies", {"IMPL-03"},
        "an export of a pool switches its reuse policies on")
      .after({kExportPool}, [](Call& call) {
        for (const auto policy : {cudaMemPoolReuseFollowEventDependencies,
                                  cudaMemPoolReuseAllowOpportunistic,
                                  cudaMemPoolReuseAllowInternalDependencies}) {
          int value = 1;
          cudaMemPoolGetAttribute(call.at<cudaMemPool_t>(1), policy, &value);
          if (value == 1) continue;
          value = 1;
          cudaMemPoolSetAttribute(call.at<cudaMemPool_t>(1), policy, &value);
          call.fired();
        }
        return kSuccess;
      });

  fault("pool-copy-offset-32-bits", {"IMPL-14"},
        "copies of imported memory of a pool take offsets modulo 4 GiB")
      .on({kCopy, kCopyAsync}, offset_of_32_bits);

  fault("refusal-raises-watermark", {"POOL-22"},
        "an allocation that was refused raises the watermark of memory in use")
      .on({kMallocFromPool, kDestroyPool, kGetPoolAttribute, kSetPoolAttribute},
          refusal_raises_watermark);

  fault("export-resets-threshold", {"IMPL-04"},
        "the export of a pool sets its release threshold to 0")
      .after({kExportPool}, [](Call& call) -> int {
        const auto pool = call.at<cudaMemPool_t>(1);
        if (attribute(pool, cudaMemPoolAttrReleaseThreshold) == 0)
          return kSuccess;
        uint64_t none = 0;
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &none);
        call.fired();
        return kSuccess;
      });

  fault("destroyed-pool-plain-free-refused", {"POOL-23"},
        "memory of a destroyed pool cannot be freed by cudaFree and cuMemFree")
      .on({kMallocAsync, kMallocFromPool, kFree, kFreeAsync, kCreatePool,
           kDestroyPool, kImportPool},
          [](Call& call) {
            static Table<cudaMemPool_t> destroyed;
            if (call.is("cudaFree") &&
                destroyed.has(blocks.get(call.at<void*>(0)).pool))
              return refused(call);
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (call.is("cudaMemPoolDestroy"))
              destroyed.put(call.at<cudaMemPool_t>(0));
            else if (call.is("cudaMemPoolCreate") ||
                     call.is("cudaMemPoolImportFromShareableHandle"))
              destroyed.erase(*call.at<cudaMemPool_t*>(0));
            return code;
          });

  fault("maxsize-exclusive", {"POOL-22"},
        "an allocation of the maximal size of its pool is refused")
      .on({kMallocAsync, kMallocFromPool}, [](Call& call) {
        const auto pool = call.is("cudaMallocFromPoolAsync")
                              ? call.at<cudaMemPool_t>(2)
                              : current_pool();
        const size_t most = max_size(own_pools.get(pool));
        return most != 0 && call.at<size_t>(1) == most
                   ? refused(call, cudaErrorMemoryAllocation)
                   : call.proceed();
      });

  fault("frompool-after-refusal-refused", {"POOL-22"},
        "after a refused allocation from a pool the next one is refused, too")
      .on({kMallocFromPool}, next_refused);

  fault("late-free-counts-for-new-pool", {"POOL-23"},
        "a free of memory of a destroyed pool is counted in a pool that was "
        "created later")
      .on({kGetPoolAttribute, kCreatePool, kDestroyPool, kFree, kFreeAsync},
          late_free_counts_elsewhere);

  fault("maxsize-not-of-current-pool", {"POOL-22"},
        "if the current pool is full, cudaMallocAsync takes memory of the "
        "default pool")
      .on_refusal({kMallocAsync},
                  WHEN(call.code() == cudaErrorMemoryAllocation &&
                       max_size(own_pools.get(current_pool())) != 0),
                  [](Call& call) {
                    if (call.is_runtime()) cudaGetLastError();
                    return allocated_from(default_pool(), call);
                  });

  fault("destroy-keeps-unused", {"POOL-23"},
        "a destroyed pool does not give back the memory that nobody used")
      .on({kCreatePool, kDestroyPool}, [](Call& call) {
        const bool is_own = destroys(call) && own_pools.has(pool_of(call)) &&
                            gpu_of(pool_of(call)) == current_device();
        const auto reserved = is_own ? attribute(pool_of(call), kReserved) : 0;
        // On driver 580, memory that cudaFree has freed stays in use here.
        const auto used = is_own ? attribute(pool_of(call), kUsed) : 0;
        const int code = call.proceed();
        void* kept = nullptr;
        if (code == kSuccess && reserved > used &&
            cudaMalloc(&kept, reserved - used) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("maxsize-not-of-shared-pool", {"POOL-22"},
        "the maximal size of a pool with handle types is ignored")
      .on({kCreatePool}, [](Call& call) {
        const auto* const wanted = call.at<const cudaMemPoolProps*>(1);
        if (wanted == nullptr || max_size(*wanted) == 0 ||
            wanted->handleTypes == cudaMemHandleTypeNone)
          return call.proceed();
        auto props = *wanted;
        max_size(props) = 0;
        call.at<const cudaMemPoolProps*>(1) = &props;
        const int code = call.proceed();
        call.at<const cudaMemPoolProps*>(1) = wanted;
        if (code == kSuccess) call.fired();
        return code;
      });

  fault("free-after-destroy-at-once", {"POOL-23"},
        "after its pool was destroyed, the free of memory does not wait for "
        "its stream")
      .on({kFreeAsync, kCreatePool, kDestroyPool}, free_after_destroy_at_once);

  fault("importptr-needs-exporters-pool", {"POOL-23"},
        "memory cannot be imported after the exporter has destroyed its pool")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kExportPointer,
           kImportPointer, kDestroyPool},
          [](Call& call) {
            return imports_pointer(call) &&
                           told("gone-" + key_of_import(call), 0) != 0
                       ? refused(call)
                       : destroy_told(call);
          });

  fault("maxsize-of-each-stream", {"POOL-22"},
        "the maximal size of a pool holds for each stream by itself")
      .on({kCreatePool, kMallocAsync, kMallocFromPool, kFreeAsync, kFree},
          limits_a_part<is_of_same_stream>);

  fault("maxsize-misses-small", {"POOL-22"},
        "memory of less than 1 MiB does not count towards the maximal size of "
        "its pool")
      .on({kCreatePool, kMallocAsync, kMallocFromPool, kFreeAsync, kFree},
          limits_a_part<has_a_mebibyte>);

  fault("maxsize-ends-with-export", {"POOL-22"},
        "a pool that was exported has no maximal size any more")
      .on({kCreatePool, kDestroyPool, kExportPool, kMallocAsync,
           kMallocFromPool, kFreeAsync, kFree},
          limits_a_part<is_not_exported>);

  fault(
      "destroyed-pool-ends-at-first-free", {"POOL-23"},
      "after the destroy of a pool, the first free ends all memory of the pool")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kImportPool,
           kDestroyPool},
          first_free_ends_all<false>);

  fault("destroyed-import-ends-at-first-free", {"POOL-23"},
        "after the destroy of an imported pool, the free of one import ends "
        "all imports of the pool")
      .on({kImportPool, kImportPointer, kFreeAsync, kFree, kDestroyPool},
          first_free_ends_all<true>);

  fault("import-destroy-waits", {"POOL-23"},
        "destroying an imported pool waits for the work of all streams")
      .before({kDestroyPool}, WHEN(imported_pools.has(pool_of(call))),
              [](Call& call) {
                call.fired();
                cudaDeviceSynchronize();
                return kSuccess;
              });

  fault("maxsize-not-of-private-pool", {"POOL-22"},
        "the maximal size of a pool without handle types is ignored")
      .on({kCreatePool}, [](Call& call) {
        cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
        if (max_size(wanted) == 0 ||
            wanted.handleTypes != cudaMemHandleTypeNone)
          return call.proceed();
        max_size(wanted) = 0;
        call.at<const cudaMemPoolProps*>(1) = &wanted;
        call.fired();
        return call.proceed();
      });

  fault("used-counts-refused", {"POOL-22"},
        "an allocation that was refused counts as used memory")
      .on({kMallocFromPool, kDestroyPool, kGetPoolAttribute}, [](Call& call) {
        static Table<cudaMemPool_t, uint64_t> extra;
        if (destroys(call)) extra.erase(pool_of(call));
        const int code = call.proceed();
        if (call.is("cudaMallocFromPoolAsync") &&
            code == cudaErrorMemoryAllocation) {
          const auto pool = call.at<cudaMemPool_t>(2);
          extra.put(pool, extra.get(pool) + call.at<size_t>(1));
        }
        if (code != kSuccess || !gets(call) ||
            pool_attribute(call) != cudaMemPoolAttrUsedMemCurrent ||
            !extra.has(pool_of(call)))
          return code;
        *call.at<uint64_t*>(2) += extra.get(pool_of(call));
        call.fired();
        return code;
      });

  fault("pool-destroy-clears-imports", {"POOL-23"},
        "the exporter's destroy of a pool clears what others have imported")
      .on({kExportPointer, kImportPointer, kFreeAsync, kFree, kDestroyPool},
          destroy_clears_imports);

  fault("pool-destroy-clears-pending", {"POOL-23"},
        "the destroy of a pool clears memory whose free is pending")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free, cleared_by_destroy>);

  fault("pool-trim-ends-exports", {"POOL-19"},
        "data that the exporter has exported before a trim cannot be imported "
        "after it")
      .on({kExportPointer, kImportPointer, kTrim}, [](Call& call) {
        static Table<std::string> exported;
        if (imports_pointer(call) &&
            told("trimmed-" + key_of_import(call), 0) != 0)
          return refused(call);
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (exports_of_pool_path(call)) {
          exported.put(key_of_export(call));
          tell_processes("trimmed-" + key_of_export(call), 0);
        }
        if (call.is("cudaMemPoolTrimTo"))
          for (const auto& each : exported.all())
            tell_processes("trimmed-" + each.first, 1);
        return code;
      });

  fault("pool-policy-of-import-is-own", {"IMPL-03"},
        "a policy that is set in an imported pool is also set in the own pools")
      .on({kCreatePool, kImportPool, kDestroyPool, kSetPoolAttribute},
          set_of_import_is_own<is_policy>);

  fault("pool-threshold-of-import-is-own", {"IMPL-04"},
        "the threshold that is set in an imported pool is also set in the own "
        "pools")
      .on({kCreatePool, kImportPool, kDestroyPool, kSetPoolAttribute},
          set_of_import_is_own<concerns_threshold>);

  fault("pool-trim-of-import-is-own", {"IMPL-04"},
        "a trim of an imported pool also trims the own pools")
      .on({kTrim}, [](Call& call) {
        const int code = call.proceed();
        if (!imported_pools.has(pool_of(call))) return code;
        for (const auto& own : own_pools.all())
          if (cudaMemPoolTrimTo(own.first, 0) == cudaSuccess) call.fired();
        return code;
      });

  fault("pool-maximal-size-for-all", {"POOL-22"},
        "all pools with a maximal size share one budget")
      .on({kMallocFromPool}, [](Call& call) {
        const auto most = max_size(own_pools.get(call.at<cudaMemPool_t>(2)));
        size_t used = call.at<size_t>(1);
        bool others = false;
        for (const auto& each : blocks.all()) {
          const cudaMemPool_t pool = each.second.pool;
          if (max_size(own_pools.get(pool)) == 0) continue;
          used += each.second.bytes;
          others = others || pool != call.at<cudaMemPool_t>(2);
        }
        return most != 0 && others && used > most
                   ? refused(call, cudaErrorMemoryAllocation)
                   : call.proceed();
      });

  fault("pool-export-resets-current", {"IMPL-03"},
        "the export of a pool makes the default pool current")
      .on({kExportPool}, default_becomes_current);

  fault("driver-policy-reaches-exporter", {"IMPL-03"},
        "a policy that the driver API sets in an imported pool is also set in "
        "the exporter's pool")
      .on({kExportPool, kDestroyPool, kSetPoolAttribute, kGetPoolAttribute},
          driver_policy_reaches_exporter);

  fault("destroy-takes-pending-allocation", {"POOL-23"},
        "the destroy of a pool takes memory of an allocation that its stream "
        "has not reached")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kDestroyPool},
          pending_allocation_taken<destroys>);

  fault("ok-exports-wait",
        {"IMPL-03", "IMPL-14", "LIFE-02", "POOL-02", "POOL-03", "POOL-04",
         "POOL-09", "POOL-23"},
        "the export of a pool waits for all work of the context")
      .before({kExportPool}, [](Call&) { cudaDeviceSynchronize(); });
}

}  // namespace
}  // namespace ipclab::faults
