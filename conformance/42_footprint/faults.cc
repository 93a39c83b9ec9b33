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
  if (code != kSuccess || frees(call) ||
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
        attribute_of_stream_ordered(call) == cudaMemPoolAttrReleaseThreshold)
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
      attribute_of_stream_ordered(call) != cudaMemPoolAttrReleaseThreshold ||
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
  if (!is_kind(pool_of(call)) || !is_meant(attribute_of_stream_ordered(call)))
    return call.proceed();
  if (is_watermark(attribute_of_stream_ordered(call)) && number_of(call) != 0)
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
  if (!is_watermark(attribute_of_stream_ordered(call))) return call.proceed();
  const std::pair key{pool_of(call), attribute_of_stream_ordered(call)};
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
  if (destroys(call) ||
      (sets(call) && attribute_of_stream_ordered(call) == high))
    largest.erase(pool_of(call));
  if (!gets(call)) return code;
  const auto now = attribute(pool_of(call), current);
  if (now >= largest.get(pool_of(call))) largest.put(pool_of(call), now);
  if (attribute_of_stream_ordered(call) != high ||
      number_of(call) <= largest.get(pool_of(call)))
    return code;
  number_of(call) = largest.get(pool_of(call));
  call.fired();
  return code;
}

// Does the call reset a watermark?
bool is_reset(Call& call) {
  return sets(call) && is_watermark(attribute_of_stream_ordered(call)) &&
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
  return call.is("cudaStreamSynchronize") &&
         is_default(stream_of_stream_ordered(call));
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
  if (code != kSuccess || !concerns(attribute_of_stream_ordered(call)) ||
      attribute(pool_of(call), kThreshold) == 0)
    return code;
  uint64_t zero = 0;
  if (cudaMemPoolSetAttribute(pool_of(call), kThreshold, &zero) == cudaSuccess)
    call.fired();
  return code;
}

FAULTS(list) {
  list.fault("watermark-is-total",
             "UsedMemHigh counts all allocations, also those that were freed",
             {"SOMA-19"})
      .on({kMallocAsync, kMallocFromPool, kFree, kFreeAsync, kGetPoolAttribute,
           kSetPoolAttribute, kDestroyPool},
          watermark_is_total);

  list.fault("released-at-device-sync",
             "only cudaDeviceSynchronize gives back memory above the threshold",
             {"SOMA-16"})
      .on({kCreatePool, kDestroyPool, kSetPoolAttribute, kGetPoolAttribute,
           kSyncDevice, kSyncStream, kSyncEvent},
          released_at_device_sync);

  list.fault("threshold-32-bits",
             "the release threshold loses its upper 32 bits", {"SOMA-16"})
      .before(
          {kSetPoolAttribute},
          WHEN(call.at<cudaMemPoolAttr>(1) == cudaMemPoolAttrReleaseThreshold),
          [](Call& call) {
            const cuuint64_t wanted = *call.at<const cuuint64_t*>(2);
            cuuint64_t kept = static_cast<uint32_t>(wanted);
            call.at<cuuint64_t*>(2) = &kept;
            if (kept != wanted) call.fired();
          });

  list.fault("trim-32-bits",
             "the size that trimming keeps loses its upper 32 bits",
             {"SOMA-17"})
      .before({kTrim}, [](Call& call) {
        auto& kept = call.at<size_t>(1);
        if (kept > UINT32_MAX) {
          kept = static_cast<uint32_t>(kept);
          call.fired();
        }
      });

  list.fault("reserved-watermark-falls",
             "the watermark of reserved memory falls when memory is given back",
             {"SOMA-20"})
      .after(
          {kGetPoolAttribute},
          WHEN(call.at<cudaMemPoolAttr>(1) == cudaMemPoolAttrReservedMemHigh),
          [](Call& call) {
            auto& told_now = *call.at<cuuint64_t*>(2);
            const cuuint64_t right = told_now;
            cudaMemPoolGetAttribute(call.at<cudaMemPool_t>(0),
                                    cudaMemPoolAttrReservedMemCurrent,
                                    &told_now);
            if (told_now != right) call.fired();
          });

  list.fault("used-of-all-pools",
             "a pool reports the memory in use of all pools of the process",
             {"SOMA-34"})
      .on({kCreatePool, kDestroyPool, kGetPoolAttribute},
          sum_of_pools<cudaMemPoolAttrUsedMemCurrent>);

  list.fault("reserved-of-all-pools",
             "a pool reports the reserved memory of all pools of the process",
             {"SOMA-34"})
      .on({kCreatePool, kDestroyPool, kGetPoolAttribute},
          sum_of_pools<cudaMemPoolAttrReservedMemCurrent>);

  list.fault("used-32-bits",
             "the number of bytes in use loses its upper 32 bits", {"SOMA-19"})
      .on({kGetPoolAttribute},
          number_of_32_bits<cudaMemPoolAttrUsedMemCurrent>);

  list.fault("reserved-32-bits",
             "the number of bytes reserved loses its upper 32 bits",
             {"SOMA-19"})
      .on({kGetPoolAttribute},
          number_of_32_bits<cudaMemPoolAttrReservedMemCurrent>);

  list.fault("trim-trims-all", "trimming one pool trims all pools", {"SOMA-34"})
      .after({kTrim}, [](Call& call) {
        for (const auto& [pool, unused] : own_pools.all())
          if (pool != call.at<cudaMemPool_t>(0) &&
              cudaMemPoolTrimTo(pool, call.at<size_t>(1)) == cudaSuccess)
            call.fired();
      });

  list.fault("watermark-reset-by-read", "a watermark is reset when it is read",
             {"SOMA-19", "SOMA-20"})
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

  list.fault("reset-orphans-async",
             "after cudaDeviceReset, memory of cudaMallocAsync cannot be freed",
             {"SOMA-31"})
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

  list.fault("threshold-ignored", "the release threshold has no effect",
             {"SOMA-16"})
      .on({kSetPoolAttribute, kGetPoolAttribute, kCreatePool},
          [](Call& call) { return threshold_told_only(call, false); });

  list.fault("threshold-never-releases",
             "a pool ignores its threshold and keeps all its memory",
             {"SOMA-16"})
      .on({kSetPoolAttribute, kGetPoolAttribute, kCreatePool},
          [](Call& call) { return threshold_told_only(call, true); });

  list.fault("trim-noop", "trimming gives no memory back", {"SOMA-17"})
      .on({kTrim}, [](Call& call) {
        call.fired();
        return kSuccess;
      });

  list.fault("trim-keeps-nothing",
             "trimming gives back all memory, even the part that it must keep",
             {"SOMA-17"})
      .before({kTrim}, [](Call& call) {
        if (call.at<size_t>(1) != 0) call.fired();
        call.at<size_t>(1) = 0;
      });

  list.fault(
          "trim-takes-pending",
          "trimming takes memory although its stream has not reached the free",
          {"SOMA-18"})
      .on({kTrim, kFreeAsync, kMallocFromPool, kDestroyStream},
          trim_takes_pending);

  list.fault("stats-wrong",
             "the watermark of used memory is reported as the memory in use",
             {"SOMA-19"})
      .on({kGetPoolAttribute},
          attribute_of_another<cudaMemPoolAttrUsedMemCurrent,
                               cudaMemPoolAttrUsedMemHigh>);

  list.fault("reserved-tells-used",
             "the memory in use is reported as the memory reserved",
             {"SOMA-17", "SOMA-19"})
      .on({kGetPoolAttribute},
          attribute_of_another<cudaMemPoolAttrReservedMemCurrent,
                               cudaMemPoolAttrUsedMemCurrent>);

  list.fault("watermark-follows-current",
             "the watermark of used memory falls when less memory is used",
             {"SOMA-19"})
      .on({kGetPoolAttribute},
          attribute_of_another<cudaMemPoolAttrUsedMemHigh,
                               cudaMemPoolAttrUsedMemCurrent>);

  list.fault("watermark-any-value",
             "writing a value other than 0 to a watermark returns success and "
             "does nothing",
             {"SOMA-20"})
      .on_refusal({kSetPoolAttribute},
                  WHEN(is_watermark(call.at<cudaMemPoolAttr>(1))), accepted);

  list.fault("watermark-not-reset", "writing 0 does not reset a watermark",
             {"SOMA-20"})
      .on({kSetPoolAttribute}, [](Call& call) {
        if (!is_watermark(call.at<cudaMemPoolAttr>(1)) ||
            *call.at<const cuuint64_t*>(2) != 0)
          return call.proceed();
        call.fired();
        return kSuccess;
      });

  list.fault("watermark-reset-to-zero",
             "after its reset a watermark is 0 until it rises, although memory "
             "is in use",
             {"SOMA-20"})
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool},
          watermark_reset_to_zero);

  list.fault("attribute-of-last-pool",
             "a new pool begins with the attributes that were set last",
             {"SOMA-16", "SOMA-21"})
      .on({kCreatePool, kSetPoolAttribute}, attribute_of_last_pool);

  list.fault("trim-resets-threshold", "trimming sets the threshold to 0",
             {"SOMA-17"})
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

  list.fault("watermarks-reset-together",
             "resetting one watermark also resets the other watermark",
             {"SOMA-20"})
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

  list.fault("threshold-signed",
             "a release threshold with its upper bit set is stored as 0",
             {"SOMA-16"})
      .before({kSetPoolAttribute},
              WHEN(attribute_of_stream_ordered(call) ==
                       cudaMemPoolAttrReleaseThreshold &&
                   number_of(call) >> 63 != 0),
              [](Call& call) {
                uint64_t stored = 0;
                call.at<uint64_t*>(2) = &stored;
                call.fired();
              });

  list.fault("threshold-begins-with-granule",
             "a new pool reports a release threshold of 2 MiB", {"SOMA-16"})
      .on({kGetPoolAttribute, kSetPoolAttribute, kCreatePool, kDestroyPool},
          threshold_begins_with_granule);

  list.fault("event-sync-keeps-memory",
             "cudaEventSynchronize does not give back memory of created pools "
             "above the release threshold",
             {"SOMA-16"})
      .on({kSyncEvent, kCreatePool, kDestroyPool}, memory_kept);

  list.fault("stream-sync-keeps-memory",
             "cudaStreamSynchronize does not give back memory of created pools "
             "above the release threshold",
             {"SOMA-16"})
      .on({kSyncStream, kCreatePool, kDestroyPool}, memory_kept);

  list.fault("trim-large-refused",
             "trimming to more than a pool has reserved is refused",
             {"SOMA-17"})
      .on({kTrim},
          WHEN(call.at<size_t>(1) >
               attribute(pool_of(call), cudaMemPoolAttrReservedMemCurrent)),
          refuses());

  list.fault(
          "trim-rounds-down",
          "the size that trimming keeps is rounded down to a multiple of 2 MiB",
          {"SOMA-17"})
      .on({kTrim}, [](Call& call) {
        size_t& kept = call.at<size_t>(1);
        if (kept % kGranule == 0) return call.proceed();
        const bool matters =
            kept < attribute(pool_of(call), cudaMemPoolAttrReservedMemCurrent);
        kept -= kept % kGranule;
        if (matters) call.fired();
        return call.proceed();
      });

  list.fault("reserved-watermark-any-value",
             "setting the watermark of reserved memory to another value than "
             "zero succeeds and changes nothing",
             {"SOMA-20"})
      .on_refusal({kSetPoolAttribute},
                  WHEN(attribute_of_stream_ordered(call) ==
                       cudaMemPoolAttrReservedMemHigh),
                  accepted);

  list.fault("watermark-resets-once",
             "after one watermark of a pool was reset, no watermark of this "
             "pool can be reset",
             {"SOMA-20"})
      .on({kSetPoolAttribute, kCreatePool}, [](Call& call) {
        static auto& done = *new Table<cudaMemPool_t>;
        if (call.is("cudaMemPoolCreate")) {
          const int code = call.proceed();
          // The pool may have the handle of an earlier one.
          if (code == kSuccess) done.erase(*call.at<cudaMemPool_t*>(0));
          return code;
        }
        if (!is_watermark(attribute_of_stream_ordered(call)))
          return call.proceed();
        if (done.has(pool_of(call)) && number_of(call) == 0)
          return accepted(call);
        const int code = call.proceed();
        if (code == kSuccess) done.put(pool_of(call));
        return code;
      });

  list.fault("reserved-watermark-of-use",
             "the watermark of reserved memory reports the watermark of memory "
             "in use",
             {"SOMA-20"})
      .after({kGetPoolAttribute},
             WHEN(attribute_of_stream_ordered(call) ==
                  cudaMemPoolAttrReservedMemHigh),
             [](Call& call) {
               const auto used =
                   attribute(pool_of(call), cudaMemPoolAttrUsedMemHigh);
               if (used != number_of(call)) call.fired();
               number_of(call) = used;
             });

  list.fault("free-of-other-thread-lost",
             "a free does nothing if another thread has allocated the memory",
             {"SOMA-19"})
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

  list.fault("setattr-of-other-thread-lost",
             "an attribute is set only by the thread that has created the pool",
             {"SOMA-16"})
      .on({kSetPoolAttribute, kCreatePool}, of_creators_thread_only);

  list.fault("trim-of-other-thread-lost",
             "a pool is trimmed only by the thread that has created it",
             {"SOMA-17"})
      .on({kTrim, kCreatePool}, of_creators_thread_only);

  list.fault("threshold-rounded",
             "the release threshold is rounded down to a multiple of 2 MiB",
             {"SOMA-16"})
      .before({kSetPoolAttribute},
              WHEN(attribute_of_stream_ordered(call) ==
                       cudaMemPoolAttrReleaseThreshold &&
                   number_of(call) % kGranule != 0 &&
                   number_of(call) != UINT64_MAX),
              [](Call& call) {
                uint64_t rounded = number_of(call) - number_of(call) % kGranule;
                call.at<uint64_t*>(2) = &rounded;
                call.fired();
              });

  list.fault("setattr-after-refusal-refused",
             "after a refused setting of an attribute the next one is refused, "
             "too",
             {"SOMA-20"})
      .on({kSetPoolAttribute}, next_refused);

  list.fault("pool-blocks-end-at-256",
             "if a process has 256 allocations of pools, the next one is "
             "refused as an invalid value",
             {"SOMA-19"})
      .on({kMallocAsync, kMallocFromPool}, [](Call& call) {
        size_t mine = 0;
        for (const auto& [address, block] : blocks.all())
          mine += !block.imported;
        return mine >= 256 ? refused(call) : call.proceed();
      });

  list.fault("default-pool-threshold-lost",
             "the release threshold of a default pool cannot be changed",
             {"SOMA-34"})
      .on({kSetPoolAttribute}, setting_lost<is_default_pool, is_threshold>);

  list.fault("default-pool-policy-lost",
             "the reuse policies of a default pool cannot be changed",
             {"SOMA-34"})
      .on({kSetPoolAttribute}, setting_lost<is_default_pool, is_policy>);

  list.fault("default-pool-watermark-not-reset",
             "the watermarks of a default pool cannot be reset", {"SOMA-34"})
      .on({kSetPoolAttribute}, setting_lost<is_default_pool, is_watermark>);

  list.fault("default-pool-trim-lost", "trimming a default pool does nothing",
             {"SOMA-34"})
      .on({kTrim}, trim_lost<is_default_pool>);

  list.fault("shared-pool-policy-lost",
             "the reuse policies of a pool with handle types cannot be changed",
             {"SOMA-34"})
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          setting_lost<is_shareable, is_policy>);

  list.fault("shared-pool-watermark-not-reset",
             "the watermarks of a pool with handle types cannot be reset",
             {"SOMA-34"})
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          setting_lost<is_shareable, is_watermark>);

  list.fault(
          "threshold-second-gpu-lost",
          "the release threshold of a pool of the second GPU cannot be changed",
          {"SOMA-34"})
      .with_gpus(2)
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          setting_lost<is_on_second_gpu, is_threshold>);

  list.fault("trim-second-gpu-lost",
             "trimming a pool of the second GPU does nothing", {"SOMA-34"})
      .with_gpus(2)
      .on({kTrim, kCreatePool, kDestroyPool}, trim_lost<is_on_second_gpu>);

  list.fault("host-pool-uses-nothing",
             "a pool on the host reports that none of its memory is in use",
             {"SOMA-34"})
      .after({kGetPoolAttribute},
             WHEN(attribute_of_stream_ordered(call) ==
                      cudaMemPoolAttrUsedMemCurrent &&
                  is_on_host(pool_of(call)) && number_of(call) != 0),
             [](Call& call) {
               number_of(call) = 0;
               return accepted(call);
             });

  list.fault("watermark-comes-back",
             "the first rise of a watermark after its reset takes it to its "
             "old value",
             {"SOMA-20"})
      .on({kSetPoolAttribute, kGetPoolAttribute, kCreatePool},
          watermark_comes_back);

  list.fault("trim-beside-use-keeps-nothing",
             "while memory of a pool is in use, a trim gives back all memory "
             "that is not in use",
             {"SOMA-17"})
      .on({kTrim}, [](Call& call) {
        const auto used =
            attribute(pool_of(call), cudaMemPoolAttrUsedMemCurrent);
        size_t& kept = call.at<size_t>(1);
        if (used == 0 || kept <= used) return call.proceed();
        kept = 0;
        call.fired();
        return call.proceed();
      });

  list.fault("threshold-of-unused-memory",
             "in created pools, memory in use does not count towards the "
             "release threshold",
             {"SOMA-16"})
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

  list.fault("synchronise-trims-all-pools",
             "if one created pool is above its release threshold, a "
             "synchronise takes the unused memory of all created pools",
             {"SOMA-34"})
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

  list.fault("policy-resets-watermark",
             "setting a reuse policy resets the watermark of memory in use",
             {"SOMA-20"})
      .on({kSetPoolAttribute}, loses<cudaMemPoolAttrUsedMemHigh>);

  list.fault("setpool-resets-watermark",
             "the watermark of reserved memory of a pool that becomes current "
             "is reset",
             {"SOMA-20"})
      .on({kSetPool, "cudaMemSetMemPool"},
          loses<cudaMemPoolAttrReservedMemHigh>);

  list.fault(
          "pool-setaccess-resets-watermark",
          "setting an access to a pool resets its watermark of memory in use",
          {"SOMA-20"})
      .on({kSetPoolAccess}, loses<cudaMemPoolAttrUsedMemHigh>);

  list.fault("used-watermark-of-queries",
             "UsedMemHigh is the largest value that UsedMemCurrent had when "
             "the pool was queried",
             {"SOMA-19", "SOMA-20"})
      .on({kGetPoolAttribute, kSetPoolAttribute, kDestroyPool},
          watermark_of_queries<kUsed, kUsedHigh>);

  list.fault("reserved-watermark-of-queries",
             "ReservedMemHigh is the largest value that ReservedMemCurrent had "
             "when the pool was queried",
             {"SOMA-19", "SOMA-20"})
      .on({kGetPoolAttribute, kSetPoolAttribute, kDestroyPool},
          watermark_of_queries<kReserved, kReservedHigh>);

  list.fault("used-watermark-frozen",
             "after its reset, the watermark of memory in use does not rise",
             {"SOMA-20"})
      .on({kGetPoolAttribute, kSetPoolAttribute, kDestroyPool}, [](Call& call) {
        static auto& frozen = *new Table<cudaMemPool_t, uint64_t>;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (destroys(call)) frozen.erase(pool_of(call));
        if (destroys(call) || attribute_of_stream_ordered(call) != kUsedHigh)
          return code;
        if (sets(call))
          frozen.put(pool_of(call), attribute(pool_of(call), kUsed));
        else if (number_of(call) > frozen.get(pool_of(call), UINT64_MAX)) {
          number_of(call) = frozen.get(pool_of(call));
          call.fired();
        }
        return code;
      });

  list.fault("used-misses-default-stream",
             "memory that was allocated in the default stream does not count "
             "as used",
             {"SOMA-19"})
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
            if (!gets(call) || attribute_of_stream_ordered(call) != kUsed)
              return code;
            uint64_t sum = 0;
            for (const auto& [address, block] : blocks.all())
              if (block.pool == pool_of(call) && uncounted.has(address))
                sum += block.bytes;
            if (sum == 0 || number_of(call) < sum) return code;
            number_of(call) -= sum;
            return accepted(call);
          });

  list.fault("trim-second-lost", "only the first trim of a pool has an effect",
             {"SOMA-17"})
      .on({kTrim, kDestroyPool}, [](Call& call) {
        static auto& trimmed = *new Table<cudaMemPool_t>;
        if (destroys(call)) trimmed.erase(pool_of(call));
        if (destroys(call)) return call.proceed();
        if (trimmed.has(pool_of(call))) return accepted(call);
        trimmed.put(pool_of(call));
        return call.proceed();
      });

  list.fault("trim-keeps-free-memory",
             "memory in use does not count towards the size that a trim keeps",
             {"SOMA-17"})
      .on({kTrim}, [](Call& call) {
        size_t& kept = call.at<size_t>(1);
        const auto used = attribute(pool_of(call), kUsed);
        if (kept == 0 || used == 0 || kept > SIZE_MAX - used)
          return call.proceed();
        kept += used;
        call.fired();
        return call.proceed();
      });

  list.fault("trim-resets-used-watermark",
             "a trim resets the watermark of memory in use", {"SOMA-20"})
      .after({kTrim},
             WHEN(attribute(pool_of(call), kUsedHigh) !=
                  attribute(pool_of(call), kUsed)),
             [](Call& call) {
               uint64_t none = 0;
               cudaMemPoolSetAttribute(pool_of(call), kUsedHigh, &none);
               return accepted(call);
             });

  list.fault("threshold-lowered-no-effect",
             "a release threshold that is lower than the threshold in force "
             "has no effect",
             {"SOMA-16"})
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool}, [](Call& call) {
        static auto& told_as = *new Table<cudaMemPool_t, uint64_t>;
        if (destroys(call)) told_as.erase(pool_of(call));
        if (destroys(call) || attribute_of_stream_ordered(call) != kThreshold)
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

  list.fault("host-pool-trim-lost", "trimming a pool on the host does nothing",
             {"SOMA-34"})
      .on({kTrim, kCreatePool, kDestroyPool},
          lost_in_such_pools<is_on_host, is_trim>);

  list.fault("host-pool-watermark-not-reset",
             "the watermarks of a pool on the host cannot be reset",
             {"SOMA-34"})
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          lost_in_such_pools<is_on_host, is_reset>);

  list.fault("second-gpu-watermark-not-reset",
             "the watermarks of a pool of the second GPU cannot be reset",
             {"SOMA-34"})
      .with_gpus(2)
      .on({kSetPoolAttribute, kCreatePool, kDestroyPool},
          lost_in_such_pools<is_on_second_gpu, is_reset>);

  list.fault("threshold-set-late-no-effect",
             "a release threshold that is set while the pool has memory has no "
             "effect",
             {"SOMA-16"})
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool},
          late_threshold_without_effect);

  list.fault("trim-of-current-pool-lost",
             "trimming the current pool does nothing", {"SOMA-17"})
      .on({kTrim}, WHEN(pool_of(call) == current_pool() && has_unused(call)),
          lost);

  list.fault("trim-while-in-use-lost",
             "trimming does nothing while memory of the pool is in use",
             {"SOMA-17"})
      .on({kTrim},
          WHEN(attribute(pool_of(call), kUsed) > 0 && has_unused(call)), lost);

  list.fault("used-misses-driver-allocations",
             "memory that the driver API has allocated does not count as used",
             {"SOMA-19"})
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

  list.fault("destroy-resets-other-thresholds",
             "when a pool is destroyed, the release thresholds of the other "
             "pools become 0",
             {"SOMA-34"})
      .after({kDestroyPool}, [](Call& call) {
        for (const auto& each : own_pools.all()) {
          uint64_t none = 0;
          if (attribute(each.first, kThreshold) != 0 &&
              cudaMemPoolSetAttribute(each.first, kThreshold, &none) ==
                  cudaSuccess)
            call.fired();
        }
      });

  list.fault("allocation-size-wraps",
             "the size of an allocation that is rounded up beyond 64 bits "
             "becomes a small size",
             {"SOMA-19"})
      .before({kMallocAsync, kMallocFromPool}, [](Call& call) {
        size_t& bytes = call.at<size_t>(1);
        if (bytes > SIZE_MAX - kGranule) {
          bytes = kGranule;
          call.fired();
        }
      });

  list.fault("watermark-of-use-resets-both",
             "resetting the watermark of memory in use also resets the "
             "watermark of reserved memory",
             {"SOMA-20"})
      .after(
          {kSetPoolAttribute},
          WHEN(attribute_of_stream_ordered(call) == cudaMemPoolAttrUsedMemHigh),
          [](Call& call) {
            uint64_t zero = 0;
            cudaMemPoolSetAttribute(pool_of(call),
                                    cudaMemPoolAttrReservedMemHigh, &zero);
            call.fired();
          });

  list.fault("watermark-value-cut-to-32-bits",
             "a watermark accepts a value whose lower 32 bits are 0",
             {"SOMA-20"})
      .on({kSetPoolAttribute}, [](Call& call) {
        if (!is_watermark(attribute_of_stream_ordered(call)))
          return call.proceed();
        uint64_t value = *call.at<const uint64_t*>(2);
        if (value > UINT32_MAX && (value & UINT32_MAX) == 0) {
          value = 0;
          call.at<const uint64_t*>(2) = &value;
          call.fired();
        }
        return call.proceed();
      });

  list.fault("watermark-reset-of-all-pools",
             "resetting a watermark of one pool resets it in all pools",
             {"SOMA-34"})
      .after({kSetPoolAttribute},
             WHEN(is_watermark(attribute_of_stream_ordered(call))),
             [](Call& call) {
               uint64_t zero = 0;
               for (const auto& own : own_pools.all())
                 if (own.first != pool_of(call) &&
                     cudaMemPoolSetAttribute(own.first,
                                             attribute_of_stream_ordered(call),
                                             &zero) == cudaSuccess)
                   call.fired();
             });

  list.fault("threshold-releases-all",
             "a pool that holds more than its release threshold gives back all "
             "memory that is not in use",
             {"SOMA-16"})
      .on({kCreatePool, kDestroyPool, kSyncStream, kSyncDevice, kSyncContext},
          synchronise_keeps<in_any_case, 0>);

  list.fault("thread-sync-keeps-memory",
             "a synchronise by another thread than the first gives back no "
             "memory above the release threshold",
             {"SOMA-16"})
      .on({kCreatePool, kDestroyPool, kSyncStream, kSyncDevice, kSyncContext},
          synchronise_keeps<in_later_thread>);

  list.fault("trim-takes-pending-allocation",
             "a trim takes memory of an allocation that its stream has not "
             "reached",
             {"SOMA-18"})
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kTrim},
          pending_allocation_taken<trims>);

  list.fault("sync-takes-pending-allocation",
             "a synchronise of another stream takes memory of an allocation "
             "that its stream has not reached",
             {"SOMA-18"})
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kSyncStream},
          pending_allocation_taken<synchronises_stream>);

  list.fault("pool-free-of-other-gpu-refused",
             "cudaFree refuses memory of a pool of a GPU that is not current",
             {"SOMA-34"})
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool, kMallocAsync, kMallocFromPool, kFreeAsync,
           kFree},
          [](Call& call) {
            const int gpu = call.is("cudaFree")
                                ? gpu_of(blocks.get(call.at<void*>(0)).pool)
                                : -1;
            return gpu >= 0 && gpu != current_gpu() ? refused(call)
                                                    : call.proceed();
          });

  list.fault("pool-second-gpu-keeps",
             "a synchronise gives back no memory of pools of the second GPU",
             {"SOMA-34"})
      .with_gpus(2)
      .on({kCreatePool, kDestroyPool, kSyncStream, kSyncDevice},
          synchronise_keeps<pool_of_second_gpu>);

  list.fault("default-stream-sync-keeps",
             "a synchronise of the default stream gives back no memory",
             {"SOMA-16"})
      .on({kCreatePool, kDestroyPool, kSyncStream},
          synchronise_keeps<in_default_stream>);

  list.fault("mallocasync-cut-to-32-bits",
             "cudaMallocAsync loses the upper 32 bits of the size", {"SOMA-19"})
      .on({kMallocAsync}, cut_to_32_bits);

  list.fault("driver-allocation-cut-to-32-bits",
             "cuMemAllocFromPoolAsync loses the upper 32 bits of the size",
             {"SOMA-19"})
      .on({"cuMemAllocFromPoolAsync"}, cut_to_32_bits);

  list.fault("policy-resets-threshold",
             "setting a reuse policy of a pool sets its release threshold to 0",
             {"SOMA-34"})
      .on({kSetPoolAttribute}, set_takes_threshold<is_policy>);

  list.fault("watermark-resets-threshold",
             "resetting a watermark of a pool sets its release threshold to 0",
             {"SOMA-34"})
      .on({kSetPoolAttribute}, set_takes_threshold<is_watermark>);
}

}  // namespace
}  // namespace ipclab::faults
