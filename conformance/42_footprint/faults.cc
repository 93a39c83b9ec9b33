// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdint>
#include <map>
#include <utility>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int released_at_device_sync(Call& call) {
  static Table<cudaMemPool_t, cuuint64_t> thresholds;
  constexpr auto kWhich = cudaMemPoolAttrReleaseThreshold;
  const auto keep_all = [](cudaMemPool_t pool) {
    cuuint64_t all = UINT64_MAX;
    cudaMemPoolSetAttribute(pool, kWhich, &all);
  };
  if (call.is("cudaDeviceSynchronize")) {
    const int code = call.proceed();
    for (const auto& [pool, bytes] : thresholds.all())
      cudaMemPoolTrimTo(pool, bytes);
    return code;
  }
  if (call.is("cudaMemPoolDestroy")) {
    thresholds.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaStreamSynchronize") || call.is("cudaEventSynchronize")) {
    for (const auto& [pool, bytes] : thresholds.all())
      if (attribute(pool, cudaMemPoolAttrReservedMemCurrent) > bytes)
        call.fired();
    return code;
  }
  if (call.is("cudaMemPoolCreate")) {
    thresholds.put(*call.at<cudaMemPool_t*>(0), 0);
    keep_all(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (call.at<cudaMemPoolAttr>(1) != kWhich) return code;
  const auto pool = call.at<cudaMemPool_t>(0);
  if (call.is("cudaMemPoolGetAttribute")) {
    auto& told = *call.at<cuuint64_t*>(2);
    told = thresholds.get(pool, told);
    return code;
  }
  thresholds.put(pool, *call.at<cuuint64_t*>(2));
  keep_all(pool);
  return code;
}

int watermark_is_total(Call& call) {
  static Table<cudaMemPool_t, size_t> total;
  if (call.is("cudaMemPoolDestroy")) {
    total.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  if (allocates(call)) {
    const int code = call.proceed();
    const Block block = blocks.get(*call.at<void**>(0));
    if (code == kSuccess)
      total.put(block.pool, total.get(block.pool) + block.bytes);
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrUsedMemHigh)
    return code;
  const auto pool = call.at<cudaMemPool_t>(0);
  cuuint64_t used = 0;
  if (call.is("cudaMemPoolSetAttribute")) {
    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
    total.put(pool, used);
    return code;
  }
  auto& told = *call.at<cuuint64_t*>(2);
  if (total.get(pool) > told) {
    told = total.get(pool);
    call.fired();
  }
  return code;
}

// The attribute `concerned` of a pool reports the sum over all pools of the
// process.
template <cudaMemPoolAttr concerned>
int sum_of_pools(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolGetAttribute") ||
      call.at<cudaMemPoolAttr>(1) != concerned)
    return code;
  auto& sum = *call.at<cuuint64_t*>(2);
  for (const auto& [pool, unused] : own_pools.all()) {
    cuuint64_t more = 0;
    if (pool == call.at<cudaMemPool_t>(0) ||
        cudaMemPoolGetAttribute(pool, concerned, &more) != cudaSuccess)
      continue;
    if (more != 0) call.fired();
    sum += more;
  }
  return code;
}

// The attribute `concerned` of a pool reports only its lower 32 bits.
template <cudaMemPoolAttr concerned>
int number_of_32_bits(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<cudaMemPoolAttr>(1) != concerned) return code;
  auto& value = *call.at<cuuint64_t*>(2);
  if (value > UINT32_MAX) call.fired();
  value = static_cast<uint32_t>(value);
  return code;
}

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

int threshold_begins_with_granule(Call& call) {
  static auto& set = *new Table<cudaMemPool_t>;
  if (call.is("cudaMemPoolSetAttribute")) {
    const int done = call.proceed();
    if (done == kSuccess &&
        pool_attribute(call) == cudaMemPoolAttrReleaseThreshold)
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
      pool_attribute(call) != cudaMemPoolAttrReleaseThreshold ||
      !own_pools.has(pool_of(call)) || set.has(pool_of(call)))
    return code;
  number_of(call) = kGranule;
  call.fired();
  return code;
}

// A call that should give back memory above the threshold gives back nothing.
int memory_kept(Call& call) {
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

bool is_threshold(cudaMemPoolAttr which) {
  return which == cudaMemPoolAttrReleaseThreshold;
}

// In a pool that `is_kind` selects, setting an attribute that `is_meant`
// selects returns success and changes nothing.
template <bool (*is_kind)(cudaMemPool_t), bool (*is_meant)(cudaMemPoolAttr)>
int setting_lost(Call& call) {
  if (!call.is("cudaMemPoolSetAttribute")) return call.proceed();
  if (!is_kind(pool_of(call)) || !is_meant(pool_attribute(call)))
    return call.proceed();
  if (is_watermark(pool_attribute(call)) && number_of(call) != 0)
    return call.proceed();
  return accepted(call);
}

template <bool (*is_kind)(cudaMemPool_t)>
int trim_lost(Call& call) {
  if (!call.is("cudaMemPoolTrimTo")) return call.proceed();
  return is_kind(pool_of(call)) ? accepted(call) : call.proceed();
}

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
  if (!is_watermark(pool_attribute(call))) return call.proceed();
  const std::pair key{pool_of(call), pool_attribute(call)};
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

constexpr auto kReservedHigh = cudaMemPoolAttrReservedMemHigh;

// A watermark is the largest value at the times at which the pool was queried.
template <cudaMemPoolAttr current, cudaMemPoolAttr high>
int watermark_of_queries(Call& call) {
  static auto& largest = *new Table<cudaMemPool_t, uint64_t>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (destroys(call) || (sets(call) && pool_attribute(call) == high))
    largest.erase(pool_of(call));
  if (!gets(call)) return code;
  const auto now = attribute(pool_of(call), current);
  if (now >= largest.get(pool_of(call))) largest.put(pool_of(call), now);
  if (pool_attribute(call) != high ||
      number_of(call) <= largest.get(pool_of(call)))
    return code;
  number_of(call) = largest.get(pool_of(call));
  call.fired();
  return code;
}

// Does the call reset a watermark?
bool is_reset(Call& call) {
  return sets(call) && is_watermark(pool_attribute(call)) &&
         number_of(call) == 0;
}

bool is_trim(Call& call) { return call.is("cudaMemPoolTrimTo"); }

// The calls that `is_meant` selects do nothing in the pools that `is_kind`
// selects, and return success.
template <bool (*is_kind)(cudaMemPool_t), bool (*is_meant)(Call&)>
int lost_in_such_pools(Call& call) {
  return is_meant(call) && is_kind(pool_of(call)) ? accepted(call)
                                                  : call.proceed();
}

int late_threshold_without_effect(Call& call) {
  static auto& told_as = *new Table<cudaMemPool_t, uint64_t>;
  if (destroys(call)) told_as.erase(pool_of(call));
  if (destroys(call) || call.at<cudaMemPoolAttr>(1) != kThreshold)
    return call.proceed();
  auto* const value = call.at<uint64_t*>(2);
  if (gets(call)) {
    const int code = call.proceed();
    if (code == kSuccess) *value = told_as.get(pool_of(call), *value);
    return code;
  }
  if (value != nullptr && attribute(pool_of(call), kReserved) > 0 &&
      *value != attribute(pool_of(call), kThreshold)) {
    told_as.put(pool_of(call), *value);
    return lost(call);
  }
  told_as.erase(pool_of(call));
  return call.proceed();
}

// Has the pool more memory than a trim must keep?
bool has_unused(Call& trim) {
  const auto reserved = attribute(pool_of(trim), kReserved);
  return reserved > attribute(pool_of(trim), kUsed) &&
         reserved > trim.at<size_t>(1);
}

bool trims(Call& call) { return call.is("cudaMemPoolTrimTo"); }

bool synchronises_stream(Call& call) {
  return call.is("cudaStreamSynchronize");
}

bool pool_of_second_gpu(Call&, cudaMemPool_t pool) {
  return is_on_second_gpu(pool);
}

bool in_default_stream(Call& call, cudaMemPool_t) {
  return call.is("cudaStreamSynchronize") && is_default(stream_of(call));
}

bool in_later_thread(Call&, cudaMemPool_t) { return this_thread() != getpid(); }

bool in_any_case(Call&, cudaMemPool_t) { return true; }

int cut_to_32_bits(Call& call) {
  auto& bytes = call.at<size_t>(1);
  if (bytes > UINT32_MAX) call.fired();
  bytes &= UINT32_MAX;
  return call.proceed();
}

// A new value of an attribute for which `concerns` is true sets the release
// threshold to 0.
template <bool (*concerns)(cudaMemPoolAttr)>
int set_takes_threshold(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !concerns(pool_attribute(call)) ||
      attribute(pool_of(call), kThreshold) == 0)
    return code;
  uint64_t zero = 0;
  if (cudaMemPoolSetAttribute(pool_of(call), kThreshold, &zero) == cudaSuccess)
    call.fired();
  return code;
}

FAULTS {
  fault("watermark-is-total", {"SOMA-19"},
        "UsedMemHigh counts all allocations, also those that were freed")
      .on({kMallocAsync, kMallocFromPool, kGetPoolAttribute, kSetPoolAttribute,
           kDestroyPool},
          watermark_is_total);

  fault("released-at-device-sync", {"SOMA-16"},
        "only cudaDeviceSynchronize gives back memory above the threshold")
      .on({kCreatePool, kDestroyPool, kSetPoolAttribute, kGetPoolAttribute,
           kSyncDevice, kSyncStream, kSyncEvent},
          released_at_device_sync);

  fault("threshold-32-bits", {"SOMA-16"},
        "the release threshold loses its upper 32 bits")
      .on({kSetPoolAttribute},
          WHEN(call.at<cudaMemPoolAttr>(1) == cudaMemPoolAttrReleaseThreshold),
          [](Call& call) {
            const cuuint64_t wanted = *call.at<const cuuint64_t*>(2);
            cuuint64_t kept = static_cast<uint32_t>(wanted);
            call.at<cuuint64_t*>(2) = &kept;
            if (kept != wanted) call.fired();
            return call.proceed();
          });

  fault("trim-32-bits", {"SOMA-17"},
        "the size that trimming keeps loses its upper 32 bits")
      .before({kTrim}, [](Call& call) {
        auto& kept = call.at<size_t>(1);
        if (kept > UINT32_MAX) {
          kept = static_cast<uint32_t>(kept);
          call.fired();
        }
        return kSuccess;
      });

  fault("reserved-watermark-falls", {"SOMA-20"},
        "the watermark of reserved memory falls when memory is given back")
      .after(
          {kGetPoolAttribute},
          WHEN(call.at<cudaMemPoolAttr>(1) == cudaMemPoolAttrReservedMemHigh),
          [](Call& call) -> bool {
            auto& told_now = *call.at<cuuint64_t*>(2);
            const cuuint64_t right = told_now;
            cudaMemPoolGetAttribute(call.at<cudaMemPool_t>(0),
                                    cudaMemPoolAttrReservedMemCurrent,
                                    &told_now);
            return told_now != right;
          });

  fault("used-of-all-pools", {"SOMA-34"},
        "a pool reports the memory in use of all pools of the process")
      .on({kCreatePool, kDestroyPool, kGetPoolAttribute},
          sum_of_pools<cudaMemPoolAttrUsedMemCurrent>);

  fault("reserved-of-all-pools", {"SOMA-34"},
        "a pool reports the reserved memory of all pools of the process")
      .on({kCreatePool, kDestroyPool, kGetPoolAttribute},
          sum_of_pools<cudaMemPoolAttrReservedMemCurrent>);

  fault("used-32-bits", {"SOMA-19"},
        "the number of bytes in use loses its upper 32 bits")
      .on({kGetPoolAttribute},
          number_of_32_bits<cudaMemPoolAttrUsedMemCurrent>);

  fault("reserved-32-bits", {"SOMA-19"},
        "the number of bytes reserved loses its upper 32 bits")
      .on({kGetPoolAttribute},
          number_of_32_bits<cudaMemPoolAttrReservedMemCurrent>);

  fault("trim-trims-all", {"SOMA-34"}, "trimming one pool trims all pools")
      .after({kTrim}, [](Call& call) {
        for (const auto& [pool, unused] : own_pools.all())
          if (pool != call.at<cudaMemPool_t>(0) &&
              cudaMemPoolTrimTo(pool, call.at<size_t>(1)) == cudaSuccess)
            call.fired();
        return kSuccess;
      });

  fault("watermark-reset-by-read", {"SOMA-19", "SOMA-20"},
        "a watermark is reset when it is read")
      .on({kGetPoolAttribute}, [](Call& call) {
        const int code = call.proceed();
        const auto which = call.at<cudaMemPoolAttr>(1);
        if (code != kSuccess || (which != cudaMemPoolAttrReservedMemHigh &&
                                 which != cudaMemPoolAttrUsedMemHigh))
          return code;
        cuuint64_t zero = 0;
        if (cudaMemPoolSetAttribute(call.at<cudaMemPool_t>(0), which, &zero) ==
            cudaSuccess)
          call.fired();
        return code;
      });

  fault("reset-orphans-async", {"SOMA-31"},
        "after cudaDeviceReset, memory of cudaMallocAsync cannot be freed")
      .on({kReset, kMallocAsync, kFree, kFreeAsync}, [](Call& call) {
        static Table<void*> orphans;
        if (call.is("cudaDeviceReset"))
          for (const auto& [address, block] : blocks.all())
            orphans.put(address);
        if (frees(call) && orphans.has(call.at<void*>(0))) return refused(call);
        const int code = call.proceed();
        if (code == kSuccess && allocates(call))
          orphans.erase(*call.at<void**>(0));
        return code;
      });

  fault("threshold-ignored", {"SOMA-16"}, "the release threshold has no effect")
      .on({kSetPoolAttribute, kGetPoolAttribute, kCreatePool},
          [](Call& call) { return threshold_told_only(call, false); });

  fault("threshold-never-releases", {"SOMA-16"},
        "a pool ignores its threshold and keeps all its memory")
      .on({kSetPoolAttribute, kGetPoolAttribute, kCreatePool},
          [](Call& call) { return threshold_told_only(call, true); });

  fault("trim-noop", {"SOMA-17"}, "trimming gives no memory back")
      .on({kTrim}, [](Call& call) {
        call.fired();
        return kSuccess;
      });

  fault("trim-keeps-nothing", {"SOMA-17"},
        "trimming gives back all memory, even the part that it must keep")
      .before({kTrim}, [](Call& call) {
        if (call.at<size_t>(1) != 0) call.fired();
        call.at<size_t>(1) = 0;
        return kSuccess;
      });

  fault("trim-takes-pending", {"SOMA-18"},
        "trimming takes memory although its stream has not reached the free")
      .on({kTrim, kFreeAsync, kMallocFromPool, kDestroyStream},
          trim_takes_pending);

  fault("stats-wrong", {"SOMA-19"},
        "the watermark of used memory is reported as the memory in use")
      .on({kGetPoolAttribute},
          attribute_of_another<cudaMemPoolAttrUsedMemCurrent,
                               cudaMemPoolAttrUsedMemHigh>);

  fault("reserved-tells-used", {"SOMA-17", "SOMA-19"},
        "the memory in use is reported as the memory reserved")
      .on({kGetPoolAttribute},
          attribute_of_another<cudaMemPoolAttrReservedMemCurrent,
                               cudaMemPoolAttrUsedMemCurrent>);

  fault("watermark-follows-current", {"SOMA-19"},
        "the watermark of used memory falls when less memory is used")
      .on({kGetPoolAttribute},
          attribute_of_another<cudaMemPoolAttrUsedMemHigh,
                               cudaMemPoolAttrUsedMemCurrent>);

  fault("watermark-any-value", {"SOMA-20"},
        "writing a value other than 0 to a watermark returns success and does "
        "nothing")
      .on_refusal({kSetPoolAttribute},
                  WHEN(is_watermark(call.at<cudaMemPoolAttr>(1))), accepted);

  fault("watermark-not-reset", {"SOMA-20"},
        "writing 0 does not reset a watermark")
      .on({kSetPoolAttribute}, [](Call& call) {
        if (!is_watermark(call.at<cudaMemPoolAttr>(1)) ||
            *call.at<const cuuint64_t*>(2) != 0)
          return call.proceed();
        call.fired();
        return kSuccess;
      });

  fault("watermark-reset-to-zero", {"SOMA-20"},
        "after its reset a watermark is 0 until it rises, although memory is "
        "in use")
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool},
          watermark_reset_to_zero);

  fault("attribute-of-last-pool", {"SOMA-16", "SOMA-21"},
        "a new pool begins with the attributes that were set last")
      .on({kCreatePool, kSetPoolAttribute}, attribute_of_last_pool);

  fault("trim-resets-threshold", {"SOMA-17"},
        "trimming sets the threshold to 0")
      .on({kTrim}, [](Call& call) {
        const int code = call.proceed();
        const auto pool = call.at<cudaMemPool_t>(0);
        cuuint64_t bytes = 0;
        if (code != kSuccess ||
            cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold,
                                    &bytes) != cudaSuccess ||
            bytes == 0)
          return code;
        bytes = 0;
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &bytes);
        call.fired();
        return code;
      });

  fault("watermarks-reset-together", {"SOMA-20"},
        "resetting one watermark also resets the other watermark")
      .on({kSetPoolAttribute}, [](Call& call) {
        const int code = call.proceed();
        const auto which = call.at<cudaMemPoolAttr>(1);
        const bool used = which == cudaMemPoolAttrUsedMemHigh;
        if (code != kSuccess ||
            (!used && which != cudaMemPoolAttrReservedMemHigh))
          return code;
        cuuint64_t zero = 0;
        if (cudaMemPoolSetAttribute(call.at<cudaMemPool_t>(0),
                                    used ? cudaMemPoolAttrReservedMemHigh
                                         : cudaMemPoolAttrUsedMemHigh,
                                    &zero) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("threshold-signed", {"SOMA-16"},
        "a release threshold with its upper bit set is stored as 0")
      .on({kSetPoolAttribute},
          WHEN(pool_attribute(call) == cudaMemPoolAttrReleaseThreshold &&
               number_of(call) >> 63 != 0),
          [](Call& call) {
            uint64_t stored = 0;
            call.at<uint64_t*>(2) = &stored;
            call.fired();
            return call.proceed();
          });

  fault("threshold-begins-with-granule", {"SOMA-16"},
        "a new pool reports a release threshold of 2 MiB")
      .on({kGetPoolAttribute, kSetPoolAttribute, kCreatePool, kDestroyPool},
          threshold_begins_with_granule);

  fault("event-sync-keeps-memory", {"SOMA-16"},
        "cudaEventSynchronize does not give back memory of created pools above "
        "the release threshold")
      .on({kSyncEvent}, memory_kept);

  fault("stream-sync-keeps-memory", {"SOMA-16"},
        "cudaStreamSynchronize does not give back memory of created pools "
        "above the release threshold")
      .on({kSyncStream}, memory_kept);

  fault("trim-large-refused", {"SOMA-17"},
        "trimming to more than a pool has reserved is refused")
      .on({kTrim},
          WHEN(call.at<size_t>(1) >
               attribute(pool_of(call), cudaMemPoolAttrReservedMemCurrent)),
          refuses());

  fault("trim-rounds-down", {"SOMA-17"},
        "the size that trimming keeps is rounded down to a multiple of 2 MiB")
      .before({kTrim}, [](Call& call) -> bool {
        size_t& kept = call.at<size_t>(1);
        if (kept % kGranule == 0) return false;
        const bool matters =
            kept < attribute(pool_of(call), cudaMemPoolAttrReservedMemCurrent);
        kept -= kept % kGranule;
        return matters;
      });

  fault("reserved-watermark-any-value", {"SOMA-20"},
        "setting the watermark of reserved memory to another value than zero "
        "succeeds and changes nothing")
      .on_refusal({kSetPoolAttribute},
                  WHEN(pool_attribute(call) == cudaMemPoolAttrReservedMemHigh),
                  accepted);

  fault("watermark-resets-once", {"SOMA-20"},
        "after one watermark of a pool was reset, no watermark of this pool "
        "can be reset")
      .on({kSetPoolAttribute, kCreatePool}, [](Call& call) {
        static auto& done = *new Table<cudaMemPool_t>;
        if (call.is("cudaMemPoolCreate")) {
          const int code = call.proceed();
          // The pool may have the handle of an earlier one.
          if (code == kSuccess) done.erase(*call.at<cudaMemPool_t*>(0));
          return code;
        }
        if (!is_watermark(pool_attribute(call))) return call.proceed();
        if (done.has(pool_of(call)) && number_of(call) == 0)
          return accepted(call);
        const int code = call.proceed();
        if (code == kSuccess) done.put(pool_of(call));
        return code;
      });

  fault(
      "reserved-watermark-of-use", {"SOMA-20"},
      "the watermark of reserved memory reports the watermark of memory in use")
      .after({kGetPoolAttribute},
             WHEN(pool_attribute(call) == cudaMemPoolAttrReservedMemHigh),
             [](Call& call) {
               const auto used =
                   attribute(pool_of(call), cudaMemPoolAttrUsedMemHigh);
               if (used != number_of(call)) call.fired();
               number_of(call) = used;
               return kSuccess;
             });

  fault("free-of-other-thread-lost", {"SOMA-19"},
        "a free does nothing if another thread has allocated the memory")
      .on({kFree, kFreeAsync, kMallocAsync, kMallocFromPool}, [](Call& call) {
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
      });

  fault("setattr-of-other-thread-lost", {"SOMA-16"},
        "an attribute is set only by the thread that has created the pool")
      .on({kSetPoolAttribute, kCreatePool}, of_creators_thread_only);

  fault("trim-of-other-thread-lost", {"SOMA-17"},
        "a pool is trimmed only by the thread that has created it")
      .on({kTrim, kCreatePool}, of_creators_thread_only);

  fault("threshold-rounded", {"SOMA-16"},
        "the release threshold is rounded down to a multiple of 2 MiB")
      .on({kSetPoolAttribute},
          WHEN(pool_attribute(call) == cudaMemPoolAttrReleaseThreshold &&
               number_of(call) % kGranule != 0 &&
               number_of(call) != UINT64_MAX),
          [](Call& call) {
            uint64_t rounded = number_of(call) - number_of(call) % kGranule;
            call.at<uint64_t*>(2) = &rounded;
            call.fired();
            return call.proceed();
          });

  fault("setattr-after-refusal-refused", {"SOMA-20"},
        "after a refused setting of an attribute the next one is refused, too")
      .on({kSetPoolAttribute}, next_refused);

  fault("pool-blocks-end-at-256", {"SOMA-19"},
        "if a process has 256 allocations of pools, the next one is refused as "
        "an invalid value")
      .on({kMallocAsync, kMallocFromPool}, [](Call& call) {
        size_t mine = 0;
        for (const auto& [address, block] : blocks.all())
          mine += !block.imported;
        return mine >= 256 ? refused(call) : call.proceed();
      });

  fault("default-pool-threshold-lost", {"SOMA-34"},
        "the release threshold of a default pool cannot be changed")
      .on({kSetPoolAttribute}, setting_lost<is_default_pool, is_threshold>);

  fault("default-pool-policy-lost", {"SOMA-34"},
        "the reuse policies of a default pool cannot be changed")
      .on({kSetPoolAttribute}, setting_lost<is_default_pool, is_policy>);

  fault("default-pool-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a default pool cannot be reset")
      .on({kSetPoolAttribute}, setting_lost<is_default_pool, is_watermark>);

  fault("default-pool-trim-lost", {"SOMA-34"},
        "trimming a default pool does nothing")
      .on({kTrim}, trim_lost<is_default_pool>);

  fault("shared-pool-policy-lost", {"SOMA-34"},
        "the reuse policies of a pool with handle types cannot be changed")
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          setting_lost<is_shareable, is_policy>);

  fault("shared-pool-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a pool with handle types cannot be reset")
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          setting_lost<is_shareable, is_watermark>);

  fault("threshold-second-gpu-lost", {"SOMA-34"},
        "the release threshold of a pool of the second GPU cannot be changed")
      .with_gpus(2)
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          setting_lost<is_on_second_gpu, is_threshold>);

  fault("trim-second-gpu-lost", {"SOMA-34"},
        "trimming a pool of the second GPU does nothing")
      .with_gpus(2)
      .on({kTrim, kCreatePool, kDestroyPool}, trim_lost<is_on_second_gpu>);

  fault("host-pool-uses-nothing", {"SOMA-34"},
        "a pool on the host reports that none of its memory is in use")
      .after({kGetPoolAttribute},
             WHEN(pool_attribute(call) == cudaMemPoolAttrUsedMemCurrent &&
                  is_on_host(pool_of(call)) && number_of(call) != 0),
             [](Call& call) {
               number_of(call) = 0;
               return accepted(call);
             });

  fault(
      "watermark-comes-back", {"SOMA-20"},
      "the first rise of a watermark after its reset takes it to its old value")
      .on({kSetPoolAttribute, kGetPoolAttribute, kCreatePool},
          watermark_comes_back);

  fault("trim-beside-use-keeps-nothing", {"SOMA-17"},
        "while memory of a pool is in use, a trim gives back all memory that "
        "is not in use")
      .before({kTrim}, [](Call& call) -> bool {
        const auto used =
            attribute(pool_of(call), cudaMemPoolAttrUsedMemCurrent);
        size_t& kept = call.at<size_t>(1);
        if (used == 0 || kept <= used) return false;
        kept = 0;
        return true;
      });

  fault("threshold-of-unused-memory", {"SOMA-16"},
        "in created pools, memory in use does not count towards the release "
        "threshold")
      .on({kSyncEvent, kSyncStream, kSyncDevice}, [](Call& call) {
        std::map<cudaMemPool_t, uint64_t> thresholds;
        for (const auto& [pool, props] : own_pools.all()) {
          const auto now = attribute(pool, cudaMemPoolAttrReleaseThreshold);
          const auto used = attribute(pool, cudaMemPoolAttrUsedMemCurrent);
          const auto reserved =
              attribute(pool, cudaMemPoolAttrReservedMemCurrent);
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
      });

  fault("synchronise-trims-all-pools", {"SOMA-34"},
        "if one created pool is above its release threshold, a synchronise "
        "takes the unused memory of all created pools")
      .on({kSyncEvent, kSyncStream, kSyncDevice}, [](Call& call) {
        bool above = false;
        for (const auto& [pool, props] : own_pools.all())
          above |= attribute(pool, cudaMemPoolAttrReservedMemCurrent) >
                   attribute(pool, cudaMemPoolAttrReleaseThreshold);
        const int code = call.proceed();
        if (!above || code != kSuccess) return code;
        for (const auto& [pool, props] : own_pools.all()) {
          const auto before =
              attribute(pool, cudaMemPoolAttrReservedMemCurrent);
          cudaMemPoolTrimTo(pool, 0);
          if (attribute(pool, cudaMemPoolAttrReservedMemCurrent) < before)
            call.fired();
        }
        return code;
      });

  fault("policy-resets-watermark", {"SOMA-20"},
        "setting a reuse policy resets the watermark of memory in use")
      .on({kSetPoolAttribute}, loses<cudaMemPoolAttrUsedMemHigh>);

  fault("setpool-resets-watermark", {"SOMA-20"},
        "the watermark of reserved memory of a pool that becomes current is "
        "reset")
      .on({kSetPool, "cudaMemSetMemPool"},
          loses<cudaMemPoolAttrReservedMemHigh>);

  fault("pool-setaccess-resets-watermark", {"SOMA-20"},
        "setting an access to a pool resets its watermark of memory in use")
      .on({kSetPoolAccess}, loses<cudaMemPoolAttrUsedMemHigh>);

  fault("used-watermark-of-queries", {"SOMA-19", "SOMA-20"},
        "UsedMemHigh is the largest value that UsedMemCurrent had when the "
        "pool was queried")
      .on({kGetPoolAttribute, kSetPoolAttribute, kDestroyPool},
          watermark_of_queries<kUsed, kUsedHigh>);

  fault("reserved-watermark-of-queries", {"SOMA-19", "SOMA-20"},
        "ReservedMemHigh is the largest value that ReservedMemCurrent had when "
        "the pool was queried")
      .on({kGetPoolAttribute, kSetPoolAttribute, kDestroyPool},
          watermark_of_queries<kReserved, kReservedHigh>);

  fault("used-watermark-frozen", {"SOMA-20"},
        "after its reset, the watermark of memory in use does not rise")
      .on({kGetPoolAttribute, kSetPoolAttribute, kDestroyPool}, [](Call& call) {
        static auto& frozen = *new Table<cudaMemPool_t, uint64_t>;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (destroys(call)) frozen.erase(pool_of(call));
        if (destroys(call) || pool_attribute(call) != kUsedHigh) return code;
        if (sets(call))
          frozen.put(pool_of(call), attribute(pool_of(call), kUsed));
        else if (number_of(call) > frozen.get(pool_of(call), UINT64_MAX)) {
          number_of(call) = frozen.get(pool_of(call));
          call.fired();
        }
        return code;
      });

  fault(
      "used-misses-default-stream", {"SOMA-19"},
      "memory that was allocated in the default stream does not count as used")
      .on({kGetPoolAttribute, kMallocAsync, kMallocFromPool, kFree, kFreeAsync},
          [](Call& call) {
            static auto& uncounted = *new Table<void*>;
            if (frees(call)) uncounted.erase(call.at<void*>(0));
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (allocates(call) &&
                is_default(call.value<cudaStream_t>(kStream)) &&
                !is_per_thread(call))
              uncounted.put(*call.at<void**>(0));
            if (!gets(call) || pool_attribute(call) != kUsed) return code;
            uint64_t sum = 0;
            for (const auto& [address, block] : blocks.all())
              if (block.pool == pool_of(call) && uncounted.has(address))
                sum += block.bytes;
            if (sum == 0 || number_of(call) < sum) return code;
            number_of(call) -= sum;
            return accepted(call);
          });

  fault("trim-second-lost", {"SOMA-17"},
        "only the first trim of a pool has an effect")
      .on({kTrim, kDestroyPool}, [](Call& call) {
        static auto& trimmed = *new Table<cudaMemPool_t>;
        if (destroys(call)) trimmed.erase(pool_of(call));
        if (destroys(call)) return call.proceed();
        if (trimmed.has(pool_of(call))) return accepted(call);
        trimmed.put(pool_of(call));
        return call.proceed();
      });

  fault("trim-keeps-free-memory", {"SOMA-17"},
        "memory in use does not count towards the size that a trim keeps")
      .before({kTrim}, [](Call& call) -> bool {
        size_t& kept = call.at<size_t>(1);
        const auto used = attribute(pool_of(call), kUsed);
        if (kept == 0 || used == 0 || kept > SIZE_MAX - used) return false;
        kept += used;
        return true;
      });

  fault("trim-resets-used-watermark", {"SOMA-20"},
        "a trim resets the watermark of memory in use")
      .after({kTrim},
             WHEN(attribute(pool_of(call), kUsedHigh) !=
                  attribute(pool_of(call), kUsed)),
             [](Call& call) {
               uint64_t none = 0;
               cudaMemPoolSetAttribute(pool_of(call), kUsedHigh, &none);
               return accepted(call);
             });

  fault("threshold-lowered-no-effect", {"SOMA-16"},
        "a release threshold that is lower than the threshold in force has no "
        "effect")
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool}, [](Call& call) {
        static auto& told_as = *new Table<cudaMemPool_t, uint64_t>;
        if (destroys(call)) told_as.erase(pool_of(call));
        if (destroys(call) || pool_attribute(call) != kThreshold)
          return call.proceed();
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
      });

  fault("host-pool-trim-lost", {"SOMA-34"},
        "trimming a pool on the host does nothing")
      .on({kTrim, kCreatePool, kDestroyPool},
          lost_in_such_pools<is_on_host, is_trim>);

  fault("host-pool-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a pool on the host cannot be reset")
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          lost_in_such_pools<is_on_host, is_reset>);

  fault("second-gpu-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a pool of the second GPU cannot be reset")
      .with_gpus(2)
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          lost_in_such_pools<is_on_second_gpu, is_reset>);

  fault(
      "threshold-set-late-no-effect", {"SOMA-16"},
      "a release threshold that is set while the pool has memory has no effect")
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool},
          late_threshold_without_effect);

  fault("trim-of-current-pool-lost", {"SOMA-17"},
        "trimming the current pool does nothing")
      .on({kTrim}, WHEN(pool_of(call) == current_pool() && has_unused(call)),
          lost);

  fault("trim-while-in-use-lost", {"SOMA-17"},
        "trimming does nothing while memory of the pool is in use")
      .on({kTrim},
          WHEN(attribute(pool_of(call), kUsed) > 0 && has_unused(call)), lost);

  fault("used-misses-driver-allocations", {"SOMA-19"},
        "memory that the driver API has allocated does not count as used")
      .on({kGetPoolAttribute, kMallocAsync, kMallocFromPool, kFree, kFreeAsync},
          [](Call& call) {
            static auto& uncounted = *new Table<void*>;
            if (frees(call)) uncounted.erase(call.at<void*>(0));
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (allocates(call) && !call.is_runtime())
              uncounted.put(*call.at<void**>(0));
            if (!gets(call) || call.at<cudaMemPoolAttr>(1) != kUsed)
              return code;
            uint64_t sum = 0;
            for (const auto& [address, block] : blocks.all())
              if (block.pool == pool_of(call) && uncounted.has(address))
                sum += block.bytes;
            auto& used = *call.at<uint64_t*>(2);
            if (sum == 0 || used < sum) return code;
            used -= sum;
            call.fired();
            return code;
          });

  fault("destroy-resets-other-thresholds", {"SOMA-34"},
        "when a pool is destroyed, the release thresholds of the other pools "
        "become 0")
      .after({kDestroyPool}, [](Call& call) {
        for (const auto& each : own_pools.all()) {
          uint64_t none = 0;
          if (attribute(each.first, kThreshold) != 0 &&
              cudaMemPoolSetAttribute(each.first, kThreshold, &none) ==
                  cudaSuccess)
            call.fired();
        }
        return kSuccess;
      });

  fault("allocation-size-wraps", {"SOMA-19"},
        "the size of an allocation that is rounded up beyond 64 bits becomes a "
        "small size")
      .before({kMallocAsync, kMallocFromPool}, [](Call& call) {
        size_t& bytes = call.at<size_t>(1);
        if (bytes > SIZE_MAX - kGranule) {
          bytes = kGranule;
          call.fired();
        }
        return kSuccess;
      });

  fault("watermark-of-use-resets-both", {"SOMA-20"},
        "resetting the watermark of memory in use also resets the watermark of "
        "reserved memory")
      .after({kSetPoolAttribute},
             WHEN(pool_attribute(call) == cudaMemPoolAttrUsedMemHigh),
             [](Call& call) {
               uint64_t zero = 0;
               cudaMemPoolSetAttribute(pool_of(call),
                                       cudaMemPoolAttrReservedMemHigh, &zero);
             });

  fault("watermark-value-cut-to-32-bits", {"SOMA-20"},
        "a watermark accepts a value whose lower 32 bits are 0")
      .on({kSetPoolAttribute}, [](Call& call) {
        if (!is_watermark(pool_attribute(call))) return call.proceed();
        uint64_t value = *call.at<const uint64_t*>(2);
        if (value > UINT32_MAX && (value & UINT32_MAX) == 0) {
          value = 0;
          call.at<const uint64_t*>(2) = &value;
          call.fired();
        }
        return call.proceed();
      });

  fault("watermark-reset-of-all-pools", {"SOMA-34"},
        "resetting a watermark of one pool resets it in all pools")
      .after({kSetPoolAttribute}, WHEN(is_watermark(pool_attribute(call))),
             [](Call& call) {
               uint64_t zero = 0;
               for (const auto& own : own_pools.all())
                 if (own.first != pool_of(call) &&
                     cudaMemPoolSetAttribute(own.first, pool_attribute(call),
                                             &zero) == cudaSuccess)
                   call.fired();
               return kSuccess;
             });

  fault("threshold-releases-all", {"SOMA-16"},
        "a pool that holds more than its release threshold gives back all "
        "memory that is not in use")
      .on({kCreatePool, kDestroyPool, kSyncStream, kSyncDevice, kSyncContext},
          synchronise_keeps<in_any_case, 0>);

  fault("thread-sync-keeps-memory", {"SOMA-16"},
        "a synchronise by another thread than the first gives back no memory "
        "above the release threshold")
      .on({kCreatePool, kDestroyPool, kSyncStream, kSyncDevice, kSyncContext},
          synchronise_keeps<in_later_thread>);

  fault("trim-takes-pending-allocation", {"SOMA-18"},
        "a trim takes memory of an allocation that its stream has not reached")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kTrim},
          pending_allocation_taken<trims>);

  fault("sync-takes-pending-allocation", {"SOMA-18"},
        "a synchronise of another stream takes memory of an allocation that "
        "its stream has not reached")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kSyncStream},
          pending_allocation_taken<synchronises_stream>);

  fault("pool-free-of-other-gpu-refused", {"SOMA-34"},
        "cudaFree refuses memory of a pool of a GPU that is not current")
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool, kMallocAsync, kMallocFromPool, kFreeAsync,
           kFree},
          [](Call& call) {
            const int gpu = call.is("cudaFree")
                                ? gpu_of(blocks.get(call.at<void*>(0)).pool)
                                : -1;
            return gpu >= 0 && gpu != current_device() ? refused(call)
                                                       : call.proceed();
          });

  fault("pool-second-gpu-keeps", {"SOMA-34"},
        "a synchronise gives back no memory of pools of the second GPU")
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool, kSyncStream, kSyncDevice},
          synchronise_keeps<pool_of_second_gpu>);

  fault("default-stream-sync-keeps", {"SOMA-16"},
        "a synchronise of the default stream gives back no memory")
      .on({kCreatePool, kDestroyPool, kSyncStream},
          synchronise_keeps<in_default_stream>);

  fault("mallocasync-cut-to-32-bits", {"SOMA-19"},
        "cudaMallocAsync loses the upper 32 bits of the size")
      .on({kMallocAsync}, cut_to_32_bits);

  fault("driver-allocation-cut-to-32-bits", {"SOMA-19"},
        "cuMemAllocFromPoolAsync loses the upper 32 bits of the size")
      .on({"cuMemAllocFromPoolAsync"}, cut_to_32_bits);

  fault("policy-resets-threshold", {"SOMA-34"},
        "setting a reuse policy of a pool sets its release threshold to 0")
      .on({kSetPoolAttribute}, set_takes_threshold<is_policy>);

  fault("watermark-resets-threshold", {"SOMA-34"},
        "resetting a watermark of a pool sets its release threshold to 0")
      .on({kSetPoolAttribute}, set_takes_threshold<is_watermark>);
}

}  // namespace
}  // namespace ipclab::faults
