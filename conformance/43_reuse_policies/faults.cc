// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "harness/faults/words/pool_work.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// A free does not wait for its stream if `concerned` is true.
template <bool (*concerned)(Call& call)>
int such_frees_at_once(Call& call) {
  if (!concerned(call) || !is_busy(call.value<cudaStream_t>(kStream)))
    return call.proceed();
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

// A policy can be set and read, but is always on.
template <cudaMemPoolAttr policy>
int policy_without_effect(Call& call) {
  static Table<cudaMemPool_t, int> wanted;
  const auto pool = call.at<cudaMemPool_t>(0);
  if (call.is("cudaMemPoolDestroy")) {
    wanted.erase(pool);
    return call.proceed();
  }
  if (call.at<cudaMemPoolAttr>(1) != policy) return call.proceed();
  if (call.is("cudaMemPoolSetAttribute")) {
    const int value = *call.at<const int*>(2);
    wanted.put(pool, value);
    if (value == 0) call.fired();
    return kSuccess;
  }
  const int code = call.proceed();
  if (code == kSuccess) *call.at<int*>(2) = wanted.get(pool, *call.at<int*>(2));
  return code;
}

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

// The pool of an allocation.
cudaMemPool_t pool_of_allocation(Call& call) {
  return call.is("cudaMallocFromPoolAsync") ? call.at<cudaMemPool_t>(2)
                                            : current_pool();
}

// Is the stream still busy after half a second? Other work than held work ends
// meanwhile, even on a busy machine. A stream that was held and is still busy
// counts as held at once.
Table<cudaStream_t> known_held;

bool is_held_stream(cudaStream_t stream) {
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
        !is_held_stream(stream_of(call)))
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
Table<std::pair<cudaStream_t, cudaStream_t>> waits_for_work;

bool waits_both_ways(cudaStream_t next, cudaStream_t freed_in) {
  return waits_for_work.has({freed_in, next}) &&
         !waits_for_work.has({next, freed_in});
}

bool waits_through_third(cudaStream_t next, cudaStream_t freed_in) {
  if (waits_for_work.has({next, freed_in})) return false;
  for (const auto& [pair, unused] : waits_for_work.all())
    if (pair.first == next && waits_for_work.has({pair.second, freed_in}))
      return true;
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
    waits_for_work.put({stream_of(call), recorded_in.get(event)});
  if (call.is("cudaStreamDestroy"))
    for (const auto& [pair, unused] : waits_for_work.all())
      if (pair.first == stream_of(call) || pair.second == stream_of(call))
        waits_for_work.erase(pair);
  return event != nullptr
             ? call.proceed()
             : ends_held_frees<is_ordered_allocation<is_ordered>>(call);
}

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

template <bool (*is_kind)(cudaMemPool_t)>
int policies_without_effect(Call& call) {
  return allocates(call) && is_kind(pool_of_allocation(call))
             ? with_all_policies(call)
             : call.proceed();
}

int tail_given_out(Call& call) {
  constexpr size_t kUnit = 512;
  static Table<CUdeviceptr, CUdeviceptr> moved;  // the real address
  static Table<CUdeviceptr> ends;  // of live allocations, rounded up
  static Table<CUdeviceptr, CUdeviceptr> end_of;
  if (frees(call)) {
    auto& address = call.at<CUdeviceptr>(0);
    if (end_of.has(address)) ends.erase(end_of.get(address));
    end_of.erase(address);
    if (moved.has(address)) {
      const CUdeviceptr real = moved.get(address);
      moved.erase(address);
      address = real;
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  const size_t bytes = call.at<size_t>(1);
  const CUdeviceptr real = address;
  if (ends.has(real)) {
    address = real - kUnit;
    moved.put(address, real);
    call.fired();
  } else if (bytes > kUnit && bytes % kUnit != 0) {
    const CUdeviceptr end = real + (bytes / kUnit + 1) * kUnit;
    ends.put(end);
    end_of.put(real, end);
  }
  return code;
}

// Frees that other streams do not know yet.
Table<void*, cudaStream_t> unknown;

// Makes the frees of a stream known, or all frees.
void make_known(bool all, cudaStream_t stream = nullptr) {
  for (const auto& [address, freed_in] : unknown.all())
    if ((all || freed_in == stream) && unknown.erase(address))
      cudaFreeAsync(address, freed_in);
}

bool any_free(Call&) { return true; }

Now at_synchronise_of_other(Call& call, const Free& free) {
  const bool other =
      call.is("cudaStreamSynchronize") && stream_of(call) != free.stream;
  return other ? Now::kAtOnce : Now::kInOrder;
}

// The streams in which events were recorded last.
Table<cudaEvent_t, cudaStream_t> recorded_in;

Now at_synchronise_of_event(Call& call, const Free& free) {
  const bool older =
      call.is("cudaEventSynchronize") && is_busy(free.stream) &&
      recorded_in.has(call.value<cudaEvent_t>(kEvent)) &&
      recorded_in.get(call.value<cudaEvent_t>(kEvent)) == free.stream;
  return older ? Now::kAtOnce : Now::kInOrder;
}

bool busy_free_by_non_blocking(Call& free) {
  return has_flags(stream_of(free), cudaStreamNonBlocking) && busy_free(free);
}

Now at_allocation_in_default_stream(Call& call, const Free&) {
  return allocates(call) && is_default(stream_of(call)) ? Now::kAtOnce
                                                        : Now::kInOrder;
}

bool busy_free_per_thread(Call& free) {
  return is_per_thread(free) && busy_free(free);
}

Now at_allocation_by_other_thread(Call& call, const Free& free) {
  if (!allocates(call) || free.thread == this_thread()) return Now::kInOrder;
  return is_per_thread(call) ? Now::kAtOnce : Now::kStays;
}

bool ends_stream(Call& call, const Free& free) {
  return call.is("cudaStreamDestroy") && stream_of(call) == free.stream;
}

Now at_end_of_stream(Call& call, const Free& free) {
  return ends_stream(call, free) ? Now::kAtOnce : Now::kInOrder;
}

Now lost_at_end_of_stream(Call& call, const Free& free) {
  return ends_stream(call, free) ? Now::kLost : Now::kInOrder;
}

// Other streams know a free only after a call for which `hides` is false.
template <bool (*hides)(Call& call, const Free& free)>
Now known_later(Call& call, const Free& free) {
  if (hides(call, free)) return Now::kHidden;
  return allocates(call) && stream_of(call) != free.stream ? Now::kStays
                                                           : Now::kInOrder;
}

bool context_synchronise(Call& call, const Free&) {
  return call.is("cuCtxSynchronize");
}

bool driver_stream_synchronise(Call& call, const Free&) {
  return call.is("cudaStreamSynchronize") && !call.is_runtime();
}

bool driver_event_synchronise(Call& call, const Free&) {
  return call.is("cudaEventSynchronize") && !call.is_runtime();
}

bool synchronise_of_null(Call& call, const Free&) {
  return call.is("cudaStreamSynchronize") && is_default(stream_of(call));
}

bool synchronise_by_other_thread(Call& call, const Free& free) {
  return call.is("cudaStreamSynchronize") && free.thread != this_thread();
}

bool free_in_default_stream(Call& free) {
  return is_default(stream_of(free)) || is_per_thread(free);
}

Now not_at_allocation(Call& call, const Free&) {
  return allocates(call) ? Now::kHidden : Now::kInOrder;
}

// The first stream comes before the second.
using Order = std::pair<cudaStream_t, cudaStream_t>;

// Forgets the order of a stream that is destroyed: a later one may have the
// same handle.
void forget_order(Call& call, Table<Order>& ordered) {
  if (!call.is("cudaStreamDestroy")) return;
  for (const auto& each : ordered.all())
    if (each.first.first == stream_of(call) ||
        each.first.second == stream_of(call))
      ordered.erase(each.first);
}

int earlier_event_orders(Call& call) {
  static Table<cudaEvent_t, cudaStream_t> recorded;
  static Table<Order> ordered;
  forget_order(call, ordered);
  if (call.is("cudaEventDestroy")) {
    recorded.erase(call.value<cudaEvent_t>(kEvent));
    return call.proceed();
  }
  if (call.is("cudaEventRecord"))
    recorded.put(call.value<cudaEvent_t>(kEvent), stream_of(call));
  if (call.is("cudaStreamWaitEvent"))
    ordered.put(
        {recorded.get(call.value<cudaEvent_t>(kEvent)), stream_of(call)});
  void* address = nullptr;
  if (call.is("cudaFreeAsync")) address = call.at<void*>(0);
  if (call.is("cudaEventRecord") || call.is("cudaStreamWaitEvent") ||
      (address != nullptr && !is_own_block(address)))
    return call.proceed();
  if (address != nullptr && busy_free(call)) {
    int follows = 0;
    cudaMemPoolGetAttribute(blocks.get(address).pool,
                            cudaMemPoolReuseFollowEventDependencies, &follows);
    if (follows == 0) return call.proceed();
    late_frees.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  for (const auto& [late, free] : late_frees.all())
    settle(call, late, free,
           allocates(call) && ordered.has({free.stream, stream_of(call)})
               ? Now::kAtOnce
               : Now::kInOrder);
  return call.proceed();
}

int event_recorded_again_orders(Call& call) {
  struct Mark {
    cudaStream_t stream = nullptr;
    int time = 0;
  };
  static Table<cudaEvent_t, Mark> recorded;
  static Table<std::pair<cudaStream_t, cudaEvent_t>, int> waited;
  static Table<cudaStream_t, int> freed;
  static std::atomic<int> now{0};
  if (call.is("cudaStreamDestroy"))
    for (const auto& each : waited.all())
      if (each.first.first == stream_of(call)) waited.erase(each.first);
  const auto event =
      call.find(kEvent) != nullptr ? call.value<cudaEvent_t>(kEvent) : nullptr;
  if (call.is("cudaEventDestroy")) {
    recorded.erase(event);
    for (const auto& each : waited.all())
      if (each.first.second == event) waited.erase(each.first);
  }
  if (call.is("cudaEventRecord")) recorded.put(event, {stream_of(call), ++now});
  if (call.is("cudaStreamWaitEvent"))
    waited.put({stream_of(call), event}, ++now);
  if (event != nullptr) return call.proceed();
  void* const address = call.is("cudaFreeAsync") ? call.at<void*>(0) : nullptr;
  if (address != nullptr && is_own_block(address) && busy_free(call)) {
    freed.put(stream_of(call), ++now);
    late_frees.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  const auto is_ordered = [&](cudaStream_t first) {
    const int at = freed.get(first);
    for (const auto& [pair, wait] : waited.all()) {
      const Mark last = recorded.get(pair.second);
      if (pair.first == stream_of(call) && wait < at && last.stream == first &&
          last.time > at)
        return true;
    }
    return false;
  };
  for (const auto& [late, free] : late_frees.all())
    settle(call, late, free,
           allocates(call) && is_ordered(free.stream) ? Now::kAtOnce
                                                      : Now::kInOrder);
  return call.proceed();
}

// Larger memory than a pending part gets this part.
Now at_larger_allocation(Call& call, const Free& free) {
  if (!allocates(call)) return Now::kInOrder;
  return stream_of(call) != free.stream && call.at<size_t>(1) > free.bytes
             ? Now::kAtOnce
             : Now::kStays;
}

int old_event_orders(Call& call) {
  static Table<cudaEvent_t, cudaStream_t> recorded;
  static Table<cudaEvent_t> gone;
  static Table<Order> ordered;
  forget_order(call, ordered);
  const auto event =
      call.find(kEvent) != nullptr ? call.value<cudaEvent_t>(kEvent) : nullptr;
  if (call.is("cudaEventRecord")) {
    recorded.put(event, stream_of(call));
    gone.erase(event);
  } else if (call.is("cudaEventDestroy")) {
    gone.put(event);
  } else if (call.is("cudaStreamWaitEvent") && gone.has(event)) {
    ordered.put({recorded.get(event), stream_of(call)});
  }
  if (event != nullptr) return call.proceed();
  void* const address = call.is("cudaFreeAsync") ? call.at<void*>(0) : nullptr;
  if (address != nullptr && is_own_block(address) && busy_free(call)) {
    late_frees.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  for (const auto& [late, free] : late_frees.all()) {
    const bool next =
        allocates(call) && ordered.has({free.stream, stream_of(call)});
    settle(call, late, free, next ? Now::kAtOnce : Now::kInOrder);
  }
  return call.proceed();
}

// A synchronise of a thread's default stream ends the pending frees in the
// default streams of all threads.
Now at_synchronise_by_other_thread(Call& call, const Free& free) {
  if (free.thread == this_thread()) return Now::kInOrder;
  return call.is("cudaStreamSynchronize") && is_per_thread(call) ? Now::kAtOnce
                                                                 : Now::kStays;
}

// The frees are counted in 8 bits.
Now at_free_256(Call& call, const Free& free) {
  static std::atomic<bool> full{false};  // until the last of them has ended
  const size_t pending = late_frees.all().size();
  const bool applies = full || pending > 255;
  full = applies && allocates(call) && pending > 1;
  if (!allocates(call)) return Now::kInOrder;
  return applies && stream_of(call) != free.stream ? Now::kAtOnce : Now::kStays;
}

// The end of a context clears the memory that was allocated in the context, or
// makes that it cannot be freed.
template <bool clears>
int context_end(Call& call) {
  static Table<void*, CUcontext> allocated_in;
  static Table<void*> homeless;
  if (call.is("cuCtxDestroy"))
    for (const auto& [address, context] : allocated_in.all()) {
      if (context != call.at<CUcontext>(0) || !allocated_in.erase(address))
        continue;
      homeless.put(address);
      if (!clears) continue;
      cudaDeviceSynchronize();
      cudaMemset(address, 0, blocks.get(address).bytes);
      cudaDeviceSynchronize();
      call.fired();
    }
  if (frees(call)) {
    allocated_in.erase(call.at<void*>(0));
    if (homeless.erase(call.at<void*>(0)) && !clears) return refused(call);
  }
  const int code = call.proceed();
  if (allocates(call) && code == kSuccess)
    allocated_in.put(*call.at<void**>(0), current_context());
  return code;
}

int statistics_miss_thread(Call& call) {
  static std::atomic<int> inside{0};
  static Table<void*, Block> missed;
  if (frees(call)) {
    missed.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (call.is("cudaMemPoolGetAttribute")) {
    const int code = call.proceed();
    if (code != kSuccess ||
        call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrUsedMemCurrent)
      return code;
    auto& used = *call.at<uint64_t*>(2);
    for (const auto& each : missed.all()) {
      if (each.second.pool != call.at<cudaMemPool_t>(0)) continue;
      used -= std::min<uint64_t>(used, each.second.bytes);
      call.fired();
    }
    return code;
  }
  const bool overlaps = inside++ > 0;
  const int code = call.proceed();
  if (overlaps && code == kSuccess)
    missed.put(*call.at<void**>(0),
               {call.at<cudaMemPool_t>(2), call.at<size_t>(1)});
  usleep(1000);  // so that calls overlap
  --inside;
  return code;
}

bool of_the_context(Call& call, cudaMemPool_t) {
  return call.is("cuCtxSynchronize");
}

int policies_fixed_at_first_use(Call& call) {
  using Key = std::pair<cudaMemPool_t, cudaMemPoolAttr>;
  static Table<cudaMemPool_t> used;
  static Table<Key, int> late;
  if (destroys(call)) {
    used.erase(pool_of(call));
    for (const cudaMemPoolAttr policy : kPolicies)
      late.erase({pool_of(call), policy});
  }
  const bool of_policy =
      (sets(call) || gets(call)) && is_policy(pool_attribute(call));
  if (of_policy && sets(call) && used.has(pool_of(call))) {
    late.put({pool_of(call), pool_attribute(call)}, *call.at<const int*>(2));
    return lost(call);
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (allocates(call)) used.put(call.at<cudaMemPool_t>(2));
  if (of_policy && gets(call))
    *call.at<int*>(2) =
        late.get({pool_of(call), pool_attribute(call)}, *call.at<int*>(2));
  return code;
}

bool busy_free_on_gpu_0(Call& free) {
  return current_device() == 0 &&
         gpu_of(blocks.get(free.at<void*>(0)).pool) == 0 && busy_free(free);
}

Now at_synchronise_of_other_gpu(Call& call, const Free&) {
  return call.is("cudaDeviceSynchronize") && current_device() > 0
             ? Now::kAtOnce
             : Now::kInOrder;
}

// Memory that is at most half as large as freed memory is a part of it,
// although the stream has not reached the free. Smaller memory than 1 MiB has
// pages of its own.
Now at_smaller_allocation(Call& call, const Free& free) {
  if (!allocates(call)) return Now::kInOrder;
  const size_t bytes = call.at<size_t>(1);
  return stream_of(call) != free.stream && bytes >= kGranule / 2 &&
                 2 * bytes <= free.bytes
             ? Now::kAtOnce
             : Now::kStays;
}

FAULTS {
  fault("policy-never-back-on", {"SOMA-21"},
        "a reuse policy that was switched off stays off")
      .on({kSetPoolAttribute},
          WHEN(is_policy(pool_attribute(call)) && *call.at<int*>(2) != 0 &&
               static_cast<int>(
                   attribute(pool_of(call), pool_attribute(call))) == 0),
          lost);

  fault("per-thread-free-at-once", {"SOMA-26"},
        "a free in a thread's default stream does not wait for this stream")
      .on({kFreeAsync}, such_frees_at_once<in_per_thread_stream>);

  fault("null-free-at-once", {"SOMA-26"},
        "a free in the default stream does not wait for this stream")
      .on({kFreeAsync}, such_frees_at_once<in_null_stream>);

  fault("follow-event-always-on", {"SOMA-23"},
        "reuse by event dependencies cannot be switched off")
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool},
          policy_without_effect<cudaMemPoolReuseFollowEventDependencies>);

  fault("internal-dependencies-always-on", {"SOMA-25"},
        "reuse by dependencies that the driver inserts cannot be switched off")
      .on({kSetPoolAttribute, kGetPoolAttribute, kDestroyPool},
          policy_without_effect<cudaMemPoolReuseAllowInternalDependencies>);

  fault("captured-work-lost", {"SOMA-29", "ARED-02", "GRPH-01"},
        "the launch of a graph returns success and does nothing")
      .on({kLaunchGraph}, lost);

  fault("reuse-while-live", {"SOMA-25", "SOMA-26"},
        "freed memory is reused before its stream reaches the free")
      .on({kFreeAsync}, WHEN(blocks.has(call.at<void*>(0))), free_now);

  fault("follow-event-unsafe", {"SOMA-23"},
        "in a pool with FollowEventDependencies, memory is reused before its "
        "stream reaches the free, although no event orders this")
      .on({kFreeAsync},
          WHEN(has_policy(call.at<void*>(0),
                          cudaMemPoolReuseFollowEventDependencies)),
          free_now);

  fault("no-reuse-same-stream", {"SOMA-22"},
        "a stream does not reuse memory that it has freed itself before the "
        "host synchronizes")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kSyncStream, kSyncEvent,
           kSyncDevice, kDestroyStream},
          [](Call& call) {
            return put_free_off(call,
                                call.is("cudaStreamSynchronize") ||
                                    call.is("cudaEventSynchronize") ||
                                    call.is("cudaDeviceSynchronize"),
                                true);
          });

  fault("sync-does-not-release", {"SOMA-24", "SOMA-27"},
        "freed memory stays in use until its own stream allocates again, also "
        "after a synchronization")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kDestroyStream},
          [](Call& call) {
            return put_free_off(call, allocates(call), false);
          });

  fault("policy-default-off", {"SOMA-21"},
        "the reuse policies are 0 in a new pool")
      .after({kCreatePool}, [](Call& call) {
        int off = 0;
        for (const cudaMemPoolAttr policy : kPolicies)
          cudaMemPoolSetAttribute(*call.at<cudaMemPool_t*>(0), policy, &off);
      });

  fault("policy-too-wide", {"SOMA-21"}, "a policy is written as 8 bytes")
      .after({kGetPoolAttribute}, WHEN(is_policy(call.at<cudaMemPoolAttr>(1))),
             [](Call& call) {
               const cuuint64_t wide = static_cast<unsigned>(*call.at<int*>(2));
               std::memcpy(call.at<void*>(2), &wide, sizeof wide);
             });

  fault("policy-switches-all", {"SOMA-21"},
        "setting one reuse policy sets all three")
      .after({kSetPoolAttribute}, WHEN(is_policy(call.at<cudaMemPoolAttr>(1))),
             [](Call& call) {
               int value = *call.at<const int*>(2);
               for (const cudaMemPoolAttr policy : kPolicies)
                 if (policy != call.at<cudaMemPoolAttr>(1) &&
                     cudaMemPoolSetAttribute(call.at<cudaMemPool_t>(0), policy,
                                             &value) == cudaSuccess)
                   call.fired();
               return kSuccess;
             });

  fault("attribute-of-all-pools", {"SOMA-21"},
        "an attribute that is set on one pool is set on all pools that the "
        "process has created")
      .after({kSetPoolAttribute}, WHEN(can_be_set(call.at<cudaMemPoolAttr>(1))),
             [](Call& call) {
               for (const auto& [pool, wanted] : own_pools.all())
                 if (pool != call.at<cudaMemPool_t>(0) &&
                     cudaMemPoolSetAttribute(pool, call.at<cudaMemPoolAttr>(1),
                                             call.at<void*>(2)) == cudaSuccess)
                   call.fired();
               return kSuccess;
             });

  fault("captured-counts-as-used", {"SOMA-33"},
        "an allocation that is captured counts as used memory of the pool")
      .on({kMallocAsync, kMallocFromPool, kDestroyPool, kGetPoolAttribute},
          [](Call& call) -> int {
            if (!allocates(call) ||
                !is_captured(call.value<cudaStream_t>(kStream)))
              return used_with_extra(call);
            const int code = call.proceed();
            if (code == kSuccess)
              add_extra(call.is("cudaMallocAsync") ? current_pool()
                                                   : call.at<cudaMemPool_t>(2),
                        call.at<size_t>(1));
            return code;
          });

  fault("policy-read-too-wide", {"SOMA-21"}, "a policy is read as 8 bytes")
      .on({kSetPoolAttribute}, WHEN(is_policy(pool_attribute(call))),
          [](Call& call) {
            int words[2];
            std::memcpy(words, call.at<void*>(2), sizeof words);
            if (words[0] != 0 || words[1] == 0) return call.proceed();
            int on = 1;
            call.at<int*>(2) = &on;
            return once_more(call);
          });

  fault("policies-exchanged", {"SOMA-23"},
        "two reuse policies have each other's effect")
      .before({kSetPoolAttribute, kGetPoolAttribute}, [](Call& call) {
        auto& which = call.at<cudaMemPoolAttr>(1);
        constexpr auto kOne = cudaMemPoolReuseFollowEventDependencies;
        constexpr auto kOther = cudaMemPoolReuseAllowOpportunistic;
        return which == kOne ? set_to(which, kOther)
                             : which == kOther && set_to(which, kOne);
      });

  fault("query-ends-frees", {"SOMA-24"},
        "a query of a stream that is not done makes its frees known to other "
        "streams as done")
      .on({kPoolWork, kQueryStream}, ends_held_frees<is_query_of_its_stream>);

  fault("default-stream-sync-ends-all-frees", {"SOMA-27"},
        "a synchronise of the default stream ends the pending frees of streams "
        "for which it does not wait")
      .on({kPoolWork}, ends_held_frees<is_synchronise_of_default>);

  fault("blocking-streams-count-as-one", {"SOMA-26"},
        "a blocking stream gets memory whose free in another blocking stream "
        "is pending")
      .on({kPoolWork}, ends_held_frees<is_between_blocking>);

  fault("wait-orders-both-streams", {"SOMA-23"},
        "if a stream waits for an event of a second stream, the second stream "
        "gets memory whose free in the first stream is pending")
      .on({kPoolWork, kRecord, kWaitEvent}, order_mistaken<waits_both_ways>);

  fault("event-includes-later-waits", {"SOMA-23"},
        "an event also allows the reuse of memory for whose free its stream "
        "waits later")
      .on({kPoolWork, kRecord, kWaitEvent},
          order_mistaken<waits_through_third>);

  fault("policies-only-of-named-pool", {"SOMA-23"},
        "an allocation from the current pool ignores which reuse policies are "
        "off")
      .on({kMallocAsync}, with_all_policies);

  fault("shared-pool-policies-no-effect", {"SOMA-23"},
        "the reuse policies of a pool with handle types have no effect")
      .on({kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool},
          policies_without_effect<is_shareable>);

  fault("setpool-resets-threshold", {"SOMA-21"},
        "the release threshold of a pool that becomes current is set to 0")
      .on({kSetPool, "cudaMemSetMemPool"},
          loses<cudaMemPoolAttrReleaseThreshold>);

  fault("pool-tail-given-out", {"SOMA-26"},
        "the last bytes of an allocation whose size is no multiple of 512 are "
        "also the first bytes of the allocation that follows")
      .on({kMallocAsync, kMallocFromPool, kFree, kFreeAsync}, tail_given_out);

  fault("threshold-switches-policies", {"SOMA-21"},
        "setting the release threshold switches the reuse policies on")
      .after({kSetPoolAttribute}, WHEN(pool_attribute(call) == kThreshold),
             DO(switch_policies_on(pool_of(call))));

  fault("priority-free-at-once", {"SOMA-26"},
        "a free in a stream with a priority does not wait for this stream")
      .on({kFreeAsync}, WHEN(has_priority(call) && is_busy(stream_of(call))),
          [](Call& call) {
            stream_of(call) = private_stream();
            const int code = once_more(call);
            cudaStreamSynchronize(private_stream());
            return code;
          });

  fault("event-sync-does-not-release", {"SOMA-27"},
        "cudaEventSynchronize makes no free known to other streams")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kSyncEvent, kSyncStream,
           kSyncDevice, kWaitEvent, kDestroyPool, kDestroyStream, kSyncContext},
          [](Call& call) {
            if (call.is("cudaFreeAsync") && blocks.has(call.at<void*>(0)) &&
                !is_import(call.at<void*>(0)) &&
                !is_captured(call.at<cudaStream_t>(1))) {
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
          });

  fault("per-thread-sync-does-not-release", {"SOMA-27"},
        "cudaStreamSynchronize of a per-thread default stream does not make "
        "freed memory available to other streams")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kSyncEvent, kSyncStream,
           kSyncDevice, kWaitEvent, kDestroyPool, kSyncContext},
          [](Call& call) {
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
          });

  fault("setpool-resets-policies", {"SOMA-21"},
        "the reuse policies of a pool that becomes current are switched on")
      .after({kSetPool}, DO(switch_policies_on(call.at<cudaMemPool_t>(1))));

  fault("event-recorded-again-allows-reuse", {"SOMA-23"},
        "a stream that has waited for an event also gets memory that is freed "
        "before the next record of this event")
      .on({kPoolWork, kSyncEvent, kSyncContext, kRecord, kWaitEvent,
           kDestroyEvent},
          event_recorded_again_orders);

  fault("default-stream-free-misses-blocking", {"SOMA-26"},
        "a free in the default stream does not wait for blocking streams")
      .on({kFreeAsync, kDestroyStream, kCopyAsync}, [](Call& call) -> int {
        // Such a stream is known by a copy in it.
        static Table<cudaStream_t> blocking;
        if (call.is("cudaStreamDestroy")) blocking.erase(stream_of(call));
        if (call.is("cudaMemcpyAsync")) {
          if (has_flags(stream_of(call), cudaStreamDefault))
            blocking.put(stream_of(call));
          return call.proceed();
        }
        if (call.is("cudaFreeAsync") && is_own_block(call.at<void*>(0)) &&
            is_default(stream_of(call)) && !is_per_thread(call))
          for (const auto& each : blocking.all())
            if (is_busy(each.first)) return freed_at_once(call);
        return call.proceed();
      });

  fault("pending-part-of-larger-memory", {"SOMA-26"},
        "a larger allocation gets memory of which a part has a pending free in "
        "another stream")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free, at_larger_allocation>);

  fault("pending-frees-end-at-256", {"SOMA-26"},
        "if 256 frees are pending, other streams get the memory of all of them")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free, at_free_256>);

  fault("old-event-allows-reuse", {"SOMA-23"},
        "an event that was not recorded orders two streams if an earlier event "
        "with the same handle was recorded")
      .on({kPoolWork, kSyncEvent, kSyncContext, kRecord, kWaitEvent,
           kDestroyEvent},
          old_event_orders);

  fault("per-thread-sync-ends-all-frees", {"SOMA-27"},
        "a synchronise of a thread's default stream ends the pending frees in "
        "the default streams of all threads")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free_per_thread,
                          at_synchronise_by_other_thread>);

  fault("end-of-context-clears-memory", {"SOMA-26"},
        "the end of a context clears the memory of pools that was allocated in "
        "it")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, "cuCtxDestroy"},
          context_end<true>);

  fault("free-needs-first-context", {"SOMA-26"},
        "memory of a pool cannot be freed after the end of the context in "
        "which it was allocated")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, "cuCtxDestroy"},
          context_end<false>);

  fault("policies-fixed-at-first-use", {"SOMA-23"},
        "a reuse policy that is set after the pool's first allocation has no "
        "effect")
      .on({kMallocFromPool, kDestroyPool, kSetPoolAttribute, kGetPoolAttribute},
          policies_fixed_at_first_use);

  fault("other-gpu-sync-frees", {"SOMA-27"},
        "cudaDeviceSynchronize of another GPU ends the pending frees of "
        "streams of GPU 0")
      .with_gpus(2)
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free_on_gpu_0, at_synchronise_of_other_gpu>);

  fault("part-of-pending-memory", {"SOMA-26"},
        "a smaller allocation gets a part of memory whose free in another "
        "stream is pending")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free, at_smaller_allocation>);

  fault("context-sync-keeps-memory", {"SOMA-27"},
        "cuCtxSynchronize gives back no memory above the release threshold")
      .on({kCreatePool, kDestroyPool, kSyncContext},
          synchronise_keeps<of_the_context>);

  fault("null-stream-free-at-once", {"SOMA-26"},
        "a free in stream 0 of the runtime does not wait for this stream")
      .on({kFreeAsync},
          WHEN(call.is_runtime() && stream_of(call) == nullptr &&
               !is_per_thread(call) && is_own_block(call.at<void*>(0)) &&
               is_busy(nullptr)),
          freed_at_once);

  fault("driver-free-in-default-stream-at-once", {"SOMA-26"},
        "a free of the driver API in a default stream does not wait for this "
        "stream")
      .on({kFreeAsync},
          WHEN(!call.is_runtime() &&
               (is_default(stream_of(call)) || is_per_thread(call)) &&
               is_own_block(call.at<void*>(0)) && is_busy(stream_of(call))),
          freed_at_once);

  fault("blocking-stream-free-at-once", {"SOMA-26"},
        "a free in a blocking stream does not wait for this stream")
      .on({kFreeAsync},
          WHEN(has_flags(stream_of(call), cudaStreamDefault) &&
               is_own_block(call.at<void*>(0)) && is_busy(stream_of(call))),
          freed_at_once);

  fault("older-event-ends-frees", {"SOMA-27"},
        "the synchronise of an event ends later frees in the event's stream")
      .on({kPoolWork, kSyncEvent, kSyncContext, kRecord, kDestroyEvent},
          [](Call& call) -> int {
            if (call.is("cudaEventDestroy")) {
              recorded_in.erase(call.value<cudaEvent_t>(kEvent));
              return call.proceed();
            }
            if (!call.is("cudaEventRecord"))
              return with_late_frees<busy_free, at_synchronise_of_event>(call);
            recorded_in.put(call.value<cudaEvent_t>(kEvent), stream_of(call));
            return call.proceed();
          });

  fault("sync-of-other-stream-frees", {"SOMA-27"},
        "a synchronise of one stream ends the pending frees of all streams")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free, at_synchronise_of_other>);

  fault("default-stream-gets-pending-memory", {"SOMA-26"},
        "an allocation in the default stream gets memory whose free in a "
        "non-blocking stream is pending")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free_by_non_blocking,
                          at_allocation_in_default_stream>);

  fault("default-streams-of-threads-are-one", {"SOMA-26"},
        "the default stream of a thread gets memory whose free in the default "
        "stream of another thread is pending")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free_per_thread, at_allocation_by_other_thread>);

  fault("end-of-stream-frees-at-once", {"SOMA-26"},
        "the end of a stream ends its pending frees at once")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free, at_end_of_stream>);

  fault("end-of-stream-loses-frees", {"SOMA-26"},
        "the pending frees of a stream that is destroyed are lost")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<busy_free, lost_at_end_of_stream>);

  fault("end-of-stream-clears-memory", {"SOMA-26"},
        "the end of a stream clears the memory that was allocated in it")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kDestroyStream},
          [](Call& call) {
            static Table<void*, cudaStream_t> allocated_in;
            if (call.is("cudaStreamDestroy"))
              for (const auto& [address, stream] : allocated_in.all()) {
                if (stream != stream_of(call) || !allocated_in.erase(address))
                  continue;
                cudaMemsetAsync(address, 0, blocks.get(address).bytes,
                                private_stream());
                cudaStreamSynchronize(private_stream());
                call.fired();
              }
            if (frees(call)) allocated_in.erase(call.at<void*>(0));
            const int code = call.proceed();
            if (allocates(call) && code == kSuccess)
              allocated_in.put(*call.at<void**>(0), stream_of(call));
            return code;
          });

  fault("free-needs-first-stream", {"SOMA-26"},
        "a free in stream order is refused after the end of the stream that "
        "has allocated the memory")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kDestroyStream},
          [](Call& call) {
            static Table<void*, cudaStream_t> allocated_in;
            static Table<void*> homeless;
            if (call.is("cudaStreamDestroy"))
              for (const auto& [address, stream] : allocated_in.all())
                if (stream == stream_of(call)) homeless.put(address);
            if (call.is("cudaFreeAsync") && homeless.has(call.at<void*>(0)))
              return refused(call);
            if (frees(call)) {
              allocated_in.erase(call.at<void*>(0));
              homeless.erase(call.at<void*>(0));
            }
            const int code = call.proceed();
            if (allocates(call) && code == kSuccess)
              allocated_in.put(*call.at<void**>(0), stream_of(call));
            return code;
          });

  fault("context-sync-hides-frees", {"SOMA-27"},
        "cuCtxSynchronize makes no free known to other streams")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kImportPointer, kTrim, kFree, kSyncStream, kSyncEvent, kSyncDevice,
           kSyncContext, kDestroyStream},
          with_late_frees<any_free, known_later<context_synchronise>>);

  fault("driver-stream-sync-hides-frees", {"SOMA-27"},
        "cuStreamSynchronize makes no free known to other streams")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kImportPointer, kTrim, kFree, kSyncStream, kSyncEvent, kSyncDevice,
           kSyncContext, kDestroyStream},
          with_late_frees<any_free, known_later<driver_stream_synchronise>>);

  fault("driver-event-sync-hides-frees", {"SOMA-27"},
        "cuEventSynchronize makes no free known to other streams")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kImportPointer, kTrim, kFree, kSyncStream, kSyncEvent, kSyncDevice,
           kSyncContext, kDestroyStream},
          with_late_frees<any_free, known_later<driver_event_synchronise>>);

  fault("default-stream-sync-hides-frees", {"SOMA-27"},
        "a synchronise of the default stream makes no free known to other "
        "streams")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kImportPointer, kTrim, kFree, kSyncStream, kSyncEvent, kSyncDevice,
           kSyncContext, kDestroyStream},
          with_late_frees<any_free, known_later<synchronise_of_null>>);

  fault("other-thread-sync-hides-frees", {"SOMA-27"},
        "a synchronise of a stream makes known only the frees of the thread "
        "that synchronises")
      .on({kFreeAsync, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kImportPointer, kTrim, kFree, kSyncStream, kSyncEvent, kSyncDevice,
           kSyncContext, kDestroyStream},
          with_late_frees<any_free, known_later<synchronise_by_other_thread>>);

  fault("default-stream-reuses-later", {"SOMA-22"},
        "a default stream does not reuse at once what was freed in it")
      .on({kPoolWork, kSyncEvent, kSyncContext},
          with_late_frees<free_in_default_stream, not_at_allocation>);

  fault("earlier-event-allows-reuse", {"SOMA-23"},
        "an event that was recorded before a free also allows the reuse of the "
        "memory")
      .on({kPoolWork, kSyncEvent, kSyncContext, kRecord, kWaitEvent,
           kDestroyEvent},
          earlier_event_orders);

  fault("threads-get-same-memory", {"SOMA-26"},
        "two threads that allocate at the same time get the same memory")
      .on({kMallocFromPool}, address_of_other_thread);

  fault("statistics-miss-thread", {"SOMA-26"},
        "the statistics miss an allocation that another thread makes at the "
        "same time")
      .on({kMallocFromPool, kFreeAsync, kFree, kGetPoolAttribute},
          statistics_miss_thread);

  fault("ok-pool-settings-wait",
        {"SOMA-21", "SOMA-20", "SOMA-22", "SOMA-23", "SOMA-24", "SOMA-26",
         "SOMA-27"},
        "the creation of a pool and the setting of its attributes wait for all "
        "work of the context")
      .before({kCreatePool, kSetPoolAttribute, kSetPoolAccess, kSetPool},
              [](Call&) { cudaDeviceSynchronize(); });
}

}  // namespace
}  // namespace ipclab::faults
