// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
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

bool set_attribute(cudaMemPool_t pool, cudaMemPoolAttr which, uint64_t value) {
  return cudaMemPoolSetAttribute(pool, which, &value) == cudaSuccess;
}
// The pool that a call has made, and the memory that it has given.
cudaMemPool_t made_pool(Call& create) { return *create.at<cudaMemPool_t*>(0); }
void* given_memory(Call& allocate) { return *allocate.at<void**>(0); }

// Does the call set or get this attribute?
bool is_about(Call& call, cudaMemPoolAttr which) {
  return pool_attribute(call) == which;
}

// The driver gets the number that `make` makes of the wanted one.
template <class Make>
auto with_number(Make make) {
  return [make](Call& set) {
    uint64_t value = make(number_of(set));
    if (value == number_of(set)) return set.proceed();
    set.at<uint64_t*>(2) = &value;
    return once_more(set);
  };
}
// The attribute that a call asks for reports another one.
template <cudaMemPoolAttr answered>
bool reports(Call& get) {
  return set_to(number_of(get), attribute(pool_of(get), answered));
}

// The sum of an attribute over all pools of the process, but one.
uint64_t sum_of_others(cudaMemPool_t pool, cudaMemPoolAttr which) {
  uint64_t sum = 0;
  for (const auto& each : own_pools.all())
    if (each.first != pool) sum += attribute(each.first, which);
  return sum;
}

// The value is only told: a mark has it.
int told_only(Call& set) {
  pool_marks.put(pool_of(set), number_of(set));
  return lost(set);
}
int tell_mark(Call& get) {
  if (pool_marks.has(pool_of(get)))
    number_of(get) = pool_marks.get(pool_of(get));
  return kSuccess;
}

// The bytes of a pool's memory that has a mark.
uint64_t marked_bytes(cudaMemPool_t pool) {
  uint64_t sum = 0;
  for (const auto& [address, block] : blocks.all())
    if (block.pool == pool && block_marks.has(address)) sum += block.bytes;
  return sum;
}
// Marked memory does not count.
bool leaves_out_marked(Call& get) {
  const auto sum = marked_bytes(pool_of(get));
  return number_of(get) >= sum && set_to(number_of(get), number_of(get) - sum);
}

int mark_all_blocks() {
  for (const auto& each : blocks.all()) block_marks.put(each.first);
  return kSuccess;
}

bool is_of_other_thread(const Marks& threads, void* object) {
  return threads.get(object, this_thread()) != this_thread();
}

FAULTS {
  fault("watermark-is-total", {"SOMA-19"},
        "UsedMemHigh counts all allocations, also those that were freed")
      .after({kMallocAsync, kMallocFromPool},
             [](Call& call) {
               const Block made = blocks.get(given_memory(call));
               pool_marks.put(made.pool,
                              pool_marks.get(made.pool) + made.bytes);
               return kSuccess;
             })
      .after({kGetPoolAttribute},
             WHEN(is_about(call, kUsedHigh) &&
                  pool_marks.get(pool_of(call)) > number_of(call)),
             [](Call& call) { tell_mark(call); })
      .after(
          {kSetPoolAttribute}, WHEN(is_about(call, kUsedHigh)),
          NOTE(pool_marks.put(pool_of(call), attribute(pool_of(call), kUsed))));

  fault("released-at-device-sync", {"SOMA-16"},
        "only cudaDeviceSynchronize gives back memory above the threshold")
      .on({kCreatePool, kDestroyPool, kSetPoolAttribute, kGetPoolAttribute,
           kSyncDevice, kSyncStream, kSyncEvent},
          released_at_device_sync);

  fault("threshold-32-bits", {"SOMA-16"},
        "the release threshold loses its upper 32 bits")
      .on({kSetPoolAttribute}, WHEN(is_about(call, kThreshold)),
          with_number([](uint64_t wanted) { return wanted & UINT32_MAX; }));

  fault("trim-32-bits", {"SOMA-17"},
        "the size that trimming keeps loses its upper 32 bits")
      .before({kTrim}, WHEN(call.at<size_t>(1) > UINT32_MAX),
              [](Call& call) { call.at<size_t>(1) &= UINT32_MAX; });

  fault("reserved-watermark-falls", {"SOMA-20"},
        "the watermark of reserved memory falls when memory is given back")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kReservedHigh)),
             reports<kReserved>);

  fault("used-of-all-pools", {"SOMA-34"},
        "a pool reports the memory in use of all pools of the process")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kUsed)),
             DO(set_to(number_of(call),
                       number_of(call) + sum_of_others(pool_of(call), kUsed))));

  fault("reserved-of-all-pools", {"SOMA-34"},
        "a pool reports the reserved memory of all pools of the process")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kReserved)),
             DO(set_to(
                 number_of(call),
                 number_of(call) + sum_of_others(pool_of(call), kReserved))));

  fault("used-32-bits", {"SOMA-19"},
        "the number of bytes in use loses its upper 32 bits")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kUsed)),
             DO(set_to(number_of(call), number_of(call) & UINT32_MAX)));

  fault("reserved-32-bits", {"SOMA-19"},
        "the number of bytes reserved loses its upper 32 bits")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kReserved)),
             DO(set_to(number_of(call), number_of(call) & UINT32_MAX)));

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
      .after({kGetPoolAttribute}, WHEN(is_watermark(pool_attribute(call))),
             DO(set_attribute(pool_of(call), pool_attribute(call), 0)));

  fault("reset-orphans-async", {"SOMA-31"},
        "after cudaDeviceReset, memory of cudaMallocAsync cannot be freed")
      .before({kReset}, NOTE(mark_all_blocks()))
      .on({kFree, kFreeAsync}, WHEN(block_marks.has(call.at<void*>(0))),
          refuses())
      .after({kMallocAsync}, NOTE(block_marks.erase(given_memory(call))));

  fault("threshold-ignored", {"SOMA-16"}, "the release threshold has no effect")
      .on({kSetPoolAttribute},
          WHEN(is_about(call, kThreshold) && own_pools.has(pool_of(call))),
          told_only)
      .after({kGetPoolAttribute}, WHEN(is_about(call, kThreshold)), tell_mark);

  fault("threshold-never-releases", {"SOMA-16"},
        "a pool ignores its threshold and keeps all its memory")
      .on({kSetPoolAttribute},
          WHEN(is_about(call, kThreshold) && own_pools.has(pool_of(call))),
          told_only)
      .after({kGetPoolAttribute}, WHEN(is_about(call, kThreshold)), tell_mark)
      .after({kCreatePool}, [](Call& call) {
        set_attribute(made_pool(call), kThreshold, UINT64_MAX);
        pool_marks.put(made_pool(call), 0);
        return kSuccess;
      });

  fault("trim-noop", {"SOMA-17"}, "trimming gives no memory back")
      .on({kTrim}, lost);

  fault("trim-keeps-nothing", {"SOMA-17"},
        "trimming gives back all memory, even the part that it must keep")
      .before({kTrim}, WHEN(call.at<size_t>(1) != 0), with<size_t>(1, 0));

  fault("trim-takes-pending", {"SOMA-18"},
        "trimming takes memory although its stream has not reached the free")
      .on({kTrim, kFreeAsync, kMallocFromPool, kDestroyStream},
          trim_takes_pending);

  fault("stats-wrong", {"SOMA-19"},
        "the watermark of used memory is reported as the memory in use")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kUsed)),
             reports<kUsedHigh>);

  fault("reserved-tells-used", {"SOMA-17", "SOMA-19"},
        "the memory in use is reported as the memory reserved")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kReserved)),
             reports<kUsed>);

  fault("watermark-follows-current", {"SOMA-19"},
        "the watermark of used memory falls when less memory is used")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kUsedHigh)),
             reports<kUsed>);

  fault("ok-watermark-any-value", {"SOMA-20"},
        "writing a value other than 0 to a watermark returns success and does "
        "nothing")
      .on_refusal({kSetPoolAttribute},
                  WHEN(is_watermark(call.at<cudaMemPoolAttr>(1))), accepted);

  fault("watermark-not-reset", {"SOMA-20"},
        "writing 0 does not reset a watermark")
      .on({kSetPoolAttribute}, WHEN(is_reset(call)), lost);

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
      .on({kTrim}, loses<cudaMemPoolAttrReleaseThreshold>);

  fault("watermarks-reset-together", {"SOMA-20"},
        "resetting one watermark also resets the other watermark")
      .after({kSetPoolAttribute}, WHEN(is_watermark(pool_attribute(call))),
             DO(set_attribute(
                 pool_of(call),
                 is_about(call, kUsedHigh) ? kReservedHigh : kUsedHigh, 0)));

  fault("threshold-signed", {"SOMA-16"},
        "a release threshold with its upper bit set is stored as 0")
      .on({kSetPoolAttribute},
          WHEN(is_about(call, kThreshold) && number_of(call) >> 63 != 0),
          with_number([](uint64_t) { return 0; }));

  fault("threshold-begins-with-granule", {"SOMA-16"},
        "a new pool reports a release threshold of 2 MiB")
      .after({kGetPoolAttribute},
             WHEN(is_about(call, kThreshold) && own_pools.has(pool_of(call)) &&
                  !pool_marks.has(pool_of(call))),
             [](Call& call) { number_of(call) = kGranule; })
      .after({kSetPoolAttribute}, WHEN(is_about(call, kThreshold)),
             NOTE(pool_marks.put(pool_of(call))));

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

  fault("watermark-resets-once", {"SOMA-20"},
        "after one watermark of a pool was reset, no watermark of this pool "
        "can be reset")
      .on({kSetPoolAttribute},
          WHEN(is_reset(call) && pool_marks.has(pool_of(call))), accepted)
      .after({kSetPoolAttribute}, WHEN(is_watermark(pool_attribute(call))),
             NOTE(pool_marks.put(pool_of(call))));

  fault(
      "reserved-watermark-of-use", {"SOMA-20"},
      "the watermark of reserved memory reports the watermark of memory in use")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kReservedHigh)),
             reports<kUsedHigh>);

  fault("free-of-other-thread-lost", {"SOMA-19"},
        "a free does nothing if another thread has allocated the memory")
      .on({kFree, kFreeAsync},
          WHEN(is_of_other_thread(block_marks, call.at<void*>(0))), accepted)
      .after({kMallocAsync, kMallocFromPool},
             NOTE(block_marks.put(given_memory(call), this_thread())));

  fault("setattr-of-other-thread-lost", {"SOMA-16"},
        "an attribute is set only by the thread that has created the pool")
      .on({kSetPoolAttribute},
          WHEN(is_of_other_thread(pool_marks, pool_of(call))), accepted)
      .after({kCreatePool},
             NOTE(pool_marks.put(made_pool(call), this_thread())));

  fault("trim-of-other-thread-lost", {"SOMA-17"},
        "a pool is trimmed only by the thread that has created it")
      .on({kTrim}, WHEN(is_of_other_thread(pool_marks, pool_of(call))),
          accepted)
      .after({kCreatePool},
             NOTE(pool_marks.put(made_pool(call), this_thread())));

  fault("threshold-rounded", {"SOMA-16"},
        "the release threshold is rounded down to a multiple of 2 MiB")
      .on({kSetPoolAttribute},
          WHEN(is_about(call, kThreshold) && number_of(call) != UINT64_MAX),
          with_number(
              [](uint64_t wanted) { return wanted - wanted % kGranule; }));

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
      .on({kSetPoolAttribute},
          WHEN(is_default_pool(pool_of(call)) && is_about(call, kThreshold)),
          accepted);

  fault("default-pool-policy-lost", {"SOMA-34"},
        "the reuse policies of a default pool cannot be changed")
      .on({kSetPoolAttribute},
          WHEN(is_default_pool(pool_of(call)) &&
               is_policy(pool_attribute(call))),
          accepted);

  fault("default-pool-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a default pool cannot be reset")
      .on({kSetPoolAttribute},
          WHEN(is_default_pool(pool_of(call)) && is_reset(call)), accepted);

  fault("default-pool-trim-lost", {"SOMA-34"},
        "trimming a default pool does nothing")
      .on({kTrim}, WHEN(is_default_pool(pool_of(call))), accepted);

  fault("shared-pool-policy-lost", {"SOMA-34"},
        "the reuse policies of a pool with handle types cannot be changed")
      .on({kSetPoolAttribute},
          WHEN(is_shareable(pool_of(call)) && is_policy(pool_attribute(call))),
          accepted);

  fault("shared-pool-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a pool with handle types cannot be reset")
      .on({kSetPoolAttribute},
          WHEN(is_shareable(pool_of(call)) && is_reset(call)), accepted);

  fault("threshold-second-gpu-lost", {"SOMA-34"},
        "the release threshold of a pool of the second GPU cannot be changed")
      .with_gpus(2)
      .on({kSetPoolAttribute},
          WHEN(is_on_second_gpu(pool_of(call)) && is_about(call, kThreshold)),
          accepted);

  fault("trim-second-gpu-lost", {"SOMA-34"},
        "trimming a pool of the second GPU does nothing")
      .with_gpus(2)
      .on({kTrim}, WHEN(is_on_second_gpu(pool_of(call))), accepted);

  fault("host-pool-uses-nothing", {"SOMA-34"},
        "a pool on the host reports that none of its memory is in use")
      .after({kGetPoolAttribute},
             WHEN(is_about(call, kUsed) && is_on_host(pool_of(call))),
             answers(uint64_t{0}, 2));

  fault(
      "watermark-comes-back", {"SOMA-20"},
      "the first rise of a watermark after its reset takes it to its old value")
      .on({kSetPoolAttribute, kGetPoolAttribute, kCreatePool},
          watermark_comes_back);

  fault("trim-beside-use-keeps-nothing", {"SOMA-17"},
        "while memory of a pool is in use, a trim gives back all memory that "
        "is not in use")
      .before({kTrim},
              WHEN(attribute(pool_of(call), kUsed) != 0 &&
                   call.at<size_t>(1) > attribute(pool_of(call), kUsed)),
              with<size_t>(1, 0));

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
      .after(
          {kGetPoolAttribute},
          WHEN(is_about(call, kUsedHigh) &&
               number_of(call) > pool_marks.get(pool_of(call), UINT64_MAX)),
          [](Call& call) { number_of(call) = pool_marks.get(pool_of(call)); })
      .after(
          {kSetPoolAttribute}, WHEN(is_about(call, kUsedHigh)),
          NOTE(pool_marks.put(pool_of(call), attribute(pool_of(call), kUsed))));

  fault(
      "used-misses-default-stream", {"SOMA-19"},
      "memory that was allocated in the default stream does not count as used")
      .after({kGetPoolAttribute}, WHEN(is_about(call, kUsed)),
             leaves_out_marked)
      .after({kMallocAsync, kMallocFromPool},
             WHEN(is_default(stream_of(call)) && !is_per_thread(call)),
             NOTE(block_marks.put(given_memory(call))));

  fault("trim-second-lost", {"SOMA-17"},
        "only the first trim of a pool has an effect")
      .on({kTrim}, WHEN(!pool_marks.put(pool_of(call))), accepted);

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
      .on({kTrim}, loses<cudaMemPoolAttrUsedMemHigh>);

  fault("threshold-lowered-no-effect", {"SOMA-16"},
        "a release threshold that is lower than the threshold in force has no "
        "effect")
      .on({kSetPoolAttribute},
          WHEN(is_about(call, kThreshold) &&
               number_of(call) < attribute(pool_of(call), kThreshold)),
          told_only)
      .after({kSetPoolAttribute}, WHEN(is_about(call, kThreshold)),
             NOTE(pool_marks.erase(pool_of(call))))
      .after({kGetPoolAttribute}, WHEN(is_about(call, kThreshold)), tell_mark);

  fault("host-pool-trim-lost", {"SOMA-34"},
        "trimming a pool on the host does nothing")
      .on({kTrim}, WHEN(is_on_host(pool_of(call))), accepted);

  fault("host-pool-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a pool on the host cannot be reset")
      .on({kSetPoolAttribute},
          WHEN(is_on_host(pool_of(call)) && is_reset(call)), accepted);

  fault("second-gpu-watermark-not-reset", {"SOMA-34"},
        "the watermarks of a pool of the second GPU cannot be reset")
      .with_gpus(2)
      .on({kSetPoolAttribute},
          WHEN(is_on_second_gpu(pool_of(call)) && is_reset(call)), accepted);

  fault(
      "threshold-set-late-no-effect", {"SOMA-16"},
      "a release threshold that is set while the pool has memory has no effect")
      .on({kSetPoolAttribute},
          WHEN(is_about(call, kThreshold) && call.at<uint64_t*>(2) != nullptr &&
               attribute(pool_of(call), kReserved) > 0 &&
               number_of(call) != attribute(pool_of(call), kThreshold)),
          told_only)
      .after({kSetPoolAttribute}, WHEN(is_about(call, kThreshold)),
             NOTE(pool_marks.erase(pool_of(call))))
      .after({kGetPoolAttribute}, WHEN(is_about(call, kThreshold)), tell_mark);

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
      .after({kGetPoolAttribute}, WHEN(is_about(call, kUsed)),
             leaves_out_marked)
      .after({kMallocAsync, kMallocFromPool}, WHEN(!call.is_runtime()),
             NOTE(block_marks.put(given_memory(call))));

  fault("destroy-resets-other-thresholds", {"SOMA-34"},
        "when a pool is destroyed, the release thresholds of the other pools "
        "become 0")
      .after({kDestroyPool}, [](Call&) {
        bool any = false;
        for (const auto& each : own_pools.all())
          any |= attribute(each.first, kThreshold) != 0 &&
                 set_attribute(each.first, kThreshold, 0);
        return any;
      });

  fault("allocation-size-wraps", {"SOMA-19"},
        "the size of an allocation that is rounded up beyond 64 bits becomes a "
        "small size")
      .before({kMallocAsync, kMallocFromPool},
              WHEN(call.at<size_t>(1) > SIZE_MAX - kGranule),
              with<size_t>(1, kGranule));

  fault("watermark-of-use-resets-both", {"SOMA-20"},
        "resetting the watermark of memory in use also resets the watermark of "
        "reserved memory")
      .after({kSetPoolAttribute}, WHEN(is_about(call, kUsedHigh)),
             DO(set_attribute(pool_of(call), kReservedHigh, 0)));

  fault("watermark-reset-of-all-pools", {"SOMA-34"},
        "resetting a watermark of one pool resets it in all pools")
      .after({kSetPoolAttribute}, WHEN(is_watermark(pool_attribute(call))),
             [](Call& call) {
               bool any = false;
               for (const auto& own : own_pools.all())
                 any |= own.first != pool_of(call) &&
                        set_attribute(own.first, pool_attribute(call), 0);
               return any;
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
      .on({kFree},
          WHEN(gpu_of(blocks.get(call.at<void*>(0)).pool) >= 0 &&
               gpu_of(blocks.get(call.at<void*>(0)).pool) != current_device()),
          refuses());

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
      .before({kMallocAsync}, WHEN(call.at<size_t>(1) > UINT32_MAX),
              [](Call& call) { call.at<size_t>(1) &= UINT32_MAX; });

  fault("driver-allocation-cut-to-32-bits", {"SOMA-19"},
        "cuMemAllocFromPoolAsync loses the upper 32 bits of the size")
      .before({"cuMemAllocFromPoolAsync"},
              WHEN(call.at<size_t>(1) > UINT32_MAX),
              [](Call& call) { call.at<size_t>(1) &= UINT32_MAX; });

  fault("policy-resets-threshold", {"SOMA-34"},
        "setting a reuse policy of a pool sets its release threshold to 0")
      .on({kSetPoolAttribute}, loses<cudaMemPoolAttrReleaseThreshold>);

  fault("watermark-resets-threshold", {"SOMA-34"},
        "resetting a watermark of a pool sets its release threshold to 0")
      .after({kSetPoolAttribute},
             WHEN(is_watermark(pool_attribute(call)) &&
                  attribute(pool_of(call), kThreshold) != 0),
             DO(set_attribute(pool_of(call), kThreshold, 0)));

  fault("ok-reserved-in-64-mib",
        {"SOMA-16", "SOMA-17", "SOMA-18", "SOMA-19", "SOMA-20", "SOMA-22",
         "SOMA-34"},
        "a pool reserves memory in steps of 64 MiB")
      .after(
          {kGetPoolAttribute},
          WHEN((is_about(call, kReserved) || is_about(call, kReservedHigh)) &&
               number_of(call) % (64 << 20) != 0),
          [](Call& call) {
            number_of(call) += (64 << 20) - number_of(call) % (64 << 20);
          });

  fault("ok-free-memory-fluctuates",
        {"SOMA-16", "SOMA-05", "SOMA-17", "SOMA-18", "SOMA-34", "LIFE-01",
         "SERV-02"},
        "every second answer about free memory is 1 MiB lower, because another "
        "process comes and goes")
      .after({"cudaMemGetInfo"}, [](Call& call) {
        static std::atomic<unsigned> answers{0};
        if (answers++ % 2 == 0) return false;
        *call.at<size_t*>(0) -= 1 << 20;
        return true;
      });
}

}  // namespace
}  // namespace ipclab::faults
