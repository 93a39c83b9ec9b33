// More bugs of pools: streams, threads, exporters, GPUs.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

cudaStream_t stream_of(Call& call) { return call.value<cudaStream_t>(kStream); }

// The stream of the call, if the call has one.
cudaStream_t stream_in(Call& call) {
  return call.find(kStream) != nullptr ? stream_of(call) : nullptr;
}

bool is_own_block(void* address) {
  return blocks.has(address) && !is_import(address);
}

// --- frees that happen at the wrong time -------------------------------------

// Frees the memory of this call without waiting for its stream.
int freed_at_once(Call& free) {
  blocks.erase(free.at<void*>(0));
  free.value<cudaStream_t>(kStream) = private_stream();
  free.fired();
  const int code = free.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

int null_stream_frees_at_once(Call& call) {
  return call.is("cudaFreeAsync") && call.is_runtime() &&
                 stream_of(call) == nullptr && !is_per_thread(call) &&
                 is_own_block(call.at<void*>(0)) && is_busy(nullptr)
             ? freed_at_once(call)
             : call.proceed();
}

int driver_frees_default_at_once(Call& call) {
  return call.is("cudaFreeAsync") && !call.is_runtime() &&
                 (is_default(stream_of(call)) || is_per_thread(call)) &&
                 is_own_block(call.at<void*>(0)) && is_busy(stream_of(call))
             ? freed_at_once(call)
             : call.proceed();
}

// Was the stream created with these flags?
bool has_flags(cudaStream_t stream, unsigned wanted) {
  unsigned flags = 0;
  return !is_default(stream) && stream != cudaStreamPerThread &&
         DRIVER_CALL(cuStreamGetFlags)(stream, &flags) == CUDA_SUCCESS &&
         flags == wanted;
}

int blocking_stream_frees_at_once(Call& call) {
  return call.is("cudaFreeAsync") &&
                 has_flags(stream_of(call), cudaStreamDefault) &&
                 is_own_block(call.at<void*>(0)) && is_busy(stream_of(call))
             ? freed_at_once(call)
             : call.proceed();
}

// The free of memory of cudaMalloc in a default stream does not wait for this
// stream.
int allocated_memory_freed_at_once(Call& call) {
  static Table<void*> allocated;
  if (call.is("cudaFree")) allocated.erase(call.at<void*>(0));
  if (call.is("cudaFreeAsync") && allocated.erase(call.at<void*>(0)) &&
      (is_default(stream_of(call)) || is_per_thread(call)) &&
      is_busy(stream_of(call)))
    return freed_at_once(call);
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMalloc"))
    allocated.put(*call.at<void**>(0));
  return code;
}

// A free that the program has made and the driver has not.
struct Free {
  cudaStream_t stream = nullptr;
  int thread = 0;
  size_t bytes = 0;
  cudaMemPool_t pool = nullptr;
};
Table<void*, Free> put_off;

// What a later call does with such a free.
enum class Now {
  kInOrder,  // the free happens in its stream
  kAtOnce,   // the free happens, and does not wait for its stream
  kLost,     // the free never happens
  kClears,   // the memory is cleared, and the free happens in its stream
  kStays,    // nothing
  kHidden,   // nothing, which is the bug
};

void settle(Call& call, void* address, const Free& free, Now now) {
  if (now == Now::kHidden) call.fired();
  if (now >= Now::kStays || !put_off.erase(address)) return;
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

// The free of own memory is put off if `puts_off` says so, until a later call
// for which `decides` says what happens.
template <bool (*puts_off)(Call& free),
          Now (*decides)(Call& call, const Free& free)>
int with_late_frees(Call& call) {
  void* address = nullptr;
  if (call.is("cudaFreeAsync")) address = call.at<void*>(0);
  if (address != nullptr && is_own_block(address) &&
      !is_captured(stream_of(call)) && puts_off(call)) {
    const Block block = blocks.get(address);
    put_off.put(address,
                {stream_of(call), this_thread(), block.bytes, block.pool});
    blocks.erase(address);
    return kSuccess;
  }
  // The event was recorded after the free.
  const bool first = call.is("cudaEventSynchronize");
  const int code = first ? call.proceed() : kSuccess;
  if (address == nullptr)
    for (const auto& [late, free] : put_off.all())
      settle(call, late, free, decides(call, free));
  return first ? code : call.proceed();
}

// All calls at which frees that were put off may happen.
#define CALLS_OF_LATE_FREES                                                  \
  "cudaFreeAsync", "cudaMallocAsync", "cudaMallocFromPoolAsync",             \
      "cudaMemPoolCreate", "cudaMemPoolDestroy", "cudaMemPoolImportPointer", \
      "cudaMemPoolTrimTo", "cudaFree", "cudaStreamSynchronize",              \
      "cudaEventSynchronize", "cudaDeviceSynchronize", "cuCtxSynchronize",   \
      "cudaStreamDestroy"

bool any_free(Call&) { return true; }
bool busy_free(Call& free) { return is_busy(stream_of(free)); }

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
// The synchronise of an event ends the pending frees of the event's stream,
// although the event is older than the frees.
int older_event_ends_frees(Call& call) {
  if (call.is("cudaEventDestroy")) {
    recorded_in.erase(call.value<cudaEvent_t>(kEvent));
    return call.proceed();
  }
  if (!call.is("cudaEventRecord"))
    return with_late_frees<busy_free, at_synchronise_of_event>(call);
  recorded_in.put(call.value<cudaEvent_t>(kEvent), stream_of(call));
  return call.proceed();
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

Now cleared_by_destroy(Call& call, const Free& free) {
  return call.is("cudaMemPoolDestroy") && call.at<cudaMemPool_t>(0) == free.pool
             ? Now::kClears
             : Now::kInOrder;
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

// An event that was recorded before the free also orders the next owner.
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
    put_off.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  for (const auto& [late, free] : put_off.all())
    settle(call, late, free,
           allocates(call) && ordered.has({free.stream, stream_of(call)})
               ? Now::kAtOnce
               : Now::kInOrder);
  return call.proceed();
}

// A stream that has waited for an event also has memory that is freed before
// the next record of this event. It does not wait again.
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
    put_off.put(address, {stream_of(call), this_thread()});
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
  for (const auto& [late, free] : put_off.all())
    settle(call, late, free,
           allocates(call) && is_ordered(free.stream) ? Now::kAtOnce
                                                      : Now::kInOrder);
  return call.proceed();
}

// A free counts as a free in the stream of the allocation: this stream gets the
// memory again at once.
int freed_in_first_stream(Call& call) {
  static Table<void*, cudaStream_t> allocated_in;
  void* const address = call.is("cudaFreeAsync") ? call.at<void*>(0) : nullptr;
  if (address != nullptr && is_own_block(address) && busy_free(call) &&
      allocated_in.get(address) != stream_of(call)) {
    put_off.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  if (address == nullptr)
    for (const auto& [late, free] : put_off.all()) {
      const bool first =
          allocates(call) && stream_of(call) == allocated_in.get(late);
      settle(call, late, free, first ? Now::kAtOnce : Now::kInOrder);
    }
  const int code = call.proceed();
  if (allocates(call) && code == kSuccess)
    allocated_in.put(*call.at<void**>(0), stream_of(call));
  return code;
}

// A free in the default stream does not wait for the blocking streams. (Such a
// stream is known by a copy in it.)
int default_stream_misses_blocking(Call& call) {
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
}

// Larger memory than a pending part gets this part.
Now at_larger_allocation(Call& call, const Free& free) {
  if (!allocates(call)) return Now::kInOrder;
  return stream_of(call) != free.stream && call.at<size_t>(1) > free.bytes
             ? Now::kAtOnce
             : Now::kStays;
}

// The end of an event does not end what it has ordered: a later event with the
// same handle orders the streams again, although it was not recorded.
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
    put_off.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  for (const auto& [late, free] : put_off.all()) {
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

// A size near the end of 64 bits is rounded up to a number beyond this end,
// which leaves a small number.
int size_rounded_to_small(Call& call) {
  size_t& bytes = call.at<size_t>(1);
  if (bytes > SIZE_MAX - kGranule) {
    bytes = kGranule;
    call.fired();
  }
  return call.proceed();
}

// The frees are counted in 8 bits.
Now at_free_256(Call& call, const Free& free) {
  static std::atomic<bool> full{false};  // until the last of them has ended
  const size_t pending = put_off.all().size();
  const bool applies = full || pending > 255;
  full = applies && allocates(call) && pending > 1;
  if (!allocates(call)) return Now::kInOrder;
  return applies && stream_of(call) != free.stream ? Now::kAtOnce : Now::kStays;
}

// --- streams and contexts that are destroyed ---------------------------------

// The end of a context clears the memory that was allocated in the context, or
// makes that it cannot be freed.
template <bool clears>
int end_of_context(Call& call) {
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

// The end of a stream clears the memory that was allocated in the stream.
int end_of_stream_clears(Call& call) {
  static Table<void*, cudaStream_t> allocated_in;
  if (call.is("cudaStreamDestroy"))
    for (const auto& [address, stream] : allocated_in.all()) {
      if (stream != stream_of(call) || !allocated_in.erase(address)) continue;
      cudaMemsetAsync(address, 0, blocks.get(address).bytes, private_stream());
      cudaStreamSynchronize(private_stream());
      call.fired();
    }
  if (frees(call)) allocated_in.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (allocates(call) && code == kSuccess)
    allocated_in.put(*call.at<void**>(0), stream_of(call));
  return code;
}

// Memory cannot be freed in stream order after the end of the stream that has
// allocated it.
int free_needs_first_stream(Call& call) {
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
}

// --- threads -----------------------------------------------------------------

// Calls that give an address overlap: the second caller gets the address of the
// first.
int address_of_other_thread(Call& call) {
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

// The statistics miss an allocation that another thread makes at the same time.
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

// --- several processes -------------------------------------------------------

constexpr auto kThreshold = cudaMemPoolAttrReleaseThreshold;

cudaMemPool_t pool_of(Call& call) { return call.at<cudaMemPool_t>(0); }
bool sets(Call& call) { return call.is("cudaMemPoolSetAttribute"); }
bool exports(Call& call) { return call.is("cudaMemPoolExportPointer"); }
bool imports(Call& call) { return call.is("cudaMemPoolImportPointer"); }
bool exports_pool(Call& call) {
  return call.is("cudaMemPoolExportToShareableHandle");
}

// The data of exported memory, as a key for the other processes.
std::string key_of_export(Call& call) { return key_of_data(call.at<void*>(0)); }
std::string key_of_import(Call& call) { return key_of_data(call.at<void*>(2)); }

// A number that two processes do not share, made from one that they may share.
unsigned long long in_this_process(unsigned long long number_here) {
  return number_here ^ static_cast<unsigned long long>(getpid()) << 48;
}

// Two processes export with the same number: the importer gets the memory of
// the first exporter.
int exporters_confused(Call& call) {
  struct Import {
    unsigned long long exporter = 0;
    void* address = nullptr;
  };
  static unsigned long long exported = 0;
  static Table<unsigned long long, Import> by_number;
  if (exports(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    tell_processes("number-" + key_of_export(call), ++exported);
    tell_processes("exporter-" + key_of_export(call),
                   static_cast<unsigned long long>(getpid()));
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || !imports(call)) return code;
  const auto which = told("number-" + key_of_import(call), 0);
  const auto exporter = told("exporter-" + key_of_import(call), 0);
  const Import earlier = by_number.get(which);
  auto& address = *call.at<void**>(0);
  if (earlier.exporter == 0 || earlier.exporter == exporter ||
      !blocks.has(earlier.address)) {
    by_number.put(which, {exporter, address});
    return code;
  }
  address = earlier.address;
  call.fired();
  return code;
}

// A process that has exported memory gets this memory from an import.
int import_gives_own_export(Call& call) {
  static Table<void*> exported;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports(call)) exported.put(call.at<void*>(1));
  if (frees(call)) exported.erase(call.at<void*>(0));
  if (!imports(call) || exported.all().empty()) return code;
  *call.at<void**>(0) = exported.all().begin()->first;
  call.fired();
  return code;
}

// The free of an import also frees other imports in the same 2 MiB of the
// exporter.
int import_free_takes_neighbours(Call& call) {
  static Table<void*, unsigned long long> pages;
  static Table<void*> taken;
  if (frees(call) && taken.erase(call.at<void*>(0))) return kSuccess;
  if (frees(call) && pages.has(call.at<void*>(0))) {
    const auto page = pages.get(call.at<void*>(0));
    pages.erase(call.at<void*>(0));
    for (const auto& [other, of_other] : pages.all()) {
      if (of_other != page || !pages.erase(other)) continue;
      cudaFree(other);
      taken.put(other);
      call.fired();
    }
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports(call))
    tell_processes("page-" + key_of_export(call),
                   in_this_process(number(call.at<void*>(1)) / kGranule));
  if (imports(call)) taken.erase(*call.at<void**>(0));
  if (imports(call))
    pages.put(*call.at<void**>(0), told("page-" + key_of_import(call), 0));
  return code;
}

// An import at an address of the exporter is refused if the memory is larger
// than an earlier import that had this address.
int larger_import_refused(Call& call) {
  static Table<unsigned long long, unsigned long long> sizes;
  if (exports(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("address-" + key_of_export(call),
                     in_this_process(number(call.at<void*>(1))));
    return code;
  }
  if (!imports(call)) return call.proceed();
  const auto address = told("address-" + key_of_import(call), 0);
  const auto bytes = told(key_of_import(call), 0);
  if (sizes.has(address) && sizes.get(address) < bytes) return refused(call);
  sizes.put(address, bytes);
  return call.proceed();
}

// Memory of the current pool cannot be exported.
int current_pool_not_exported(Call& call) {
  static Table<void*> of_current;
  if (exports(call) && of_current.has(call.at<void*>(1))) return refused(call);
  if (frees(call)) of_current.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (call.is("cudaMallocAsync") && code == kSuccess)
    of_current.put(*call.at<void**>(0));
  return code;
}

int large_descriptor_refused(Call& import) {
  return imports_descriptor(import) && descriptor_of(import) > 1023
             ? refused(import)
             : import.proceed();
}

// Freed memory cannot be imported again by the process that has freed it.
int freed_import_not_again(Call& call) {
  static Table<void*, std::string> keys;
  static Table<std::string> freed;
  if (imports(call) && freed.has(key_of_import(call))) return refused(call);
  if (frees(call) && keys.has(call.at<void*>(0))) {
    freed.put(keys.get(call.at<void*>(0)));
    keys.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (imports(call) && code == kSuccess)
    keys.put(*call.at<void**>(0), key_of_import(call));
  return code;
}

// After the free of one importer no other process can import the memory.
int freed_by_one_for_all(Call& call) {
  static Table<void*, std::string> keys;
  const auto own = static_cast<unsigned long long>(getpid());
  if (imports(call)) {
    const auto freed = told("freed-" + key_of_import(call), own);
    if (freed != own) return refused(call);
  }
  if (frees(call) && keys.has(call.at<void*>(0))) {
    tell_processes("freed-" + keys.get(call.at<void*>(0)), own);
    keys.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (imports(call) && code == kSuccess)
    keys.put(*call.at<void**>(0), key_of_import(call));
  return code;
}

// Memory that a killed process had imported cannot be imported again.
int dead_importer_keeps_memory(Call& call) {
  static Table<void*, std::string> keys;
  if (imports(call)) {
    const auto holder =
        static_cast<pid_t>(told("holder-" + key_of_import(call), 0));
    if (holder != 0 && holder != getpid() && has_ended(holder))
      return refused(call);
  }
  if (frees(call) && keys.has(call.at<void*>(0))) {
    tell_processes("holder-" + keys.get(call.at<void*>(0)), 0);
    keys.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (imports(call) && code == kSuccess) {
    keys.put(*call.at<void**>(0), key_of_import(call));
    tell_processes("holder-" + key_of_import(call),
                   static_cast<unsigned long long>(getpid()));
  }
  return code;
}

// The exporter's destroy of a pool clears what other processes have imported.
int destroy_clears_imports(Call& call) {
  static Table<void*, std::string> keys;  // of exports, and of imports
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
  if (exports(call)) keys.put(call.at<void*>(1), key_of_export(call));
  if (imports(call)) {
    keys.put(*call.at<void**>(0), key_of_import(call));
    tell_processes("imported-" + key_of_import(call), 1);
  }
  return code;
}

// Data that were exported before a trim cannot be imported after it.
int trim_ends_exports(Call& call) {
  static Table<std::string> exported;
  if (imports(call) && told("trimmed-" + key_of_import(call), 0) != 0)
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports(call)) {
    exported.put(key_of_export(call));
    tell_processes("trimmed-" + key_of_export(call), 0);
  }
  if (call.is("cudaMemPoolTrimTo"))
    for (const auto& each : exported.all())
      tell_processes("trimmed-" + each.first, 1);
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
bool is_threshold(cudaMemPoolAttr which) { return which == kThreshold; }

int trim_of_import_is_own(Call& call) {
  const int code = call.proceed();
  if (!call.is("cudaMemPoolTrimTo") || !imported_pools.has(pool_of(call)))
    return code;
  for (const auto& own : own_pools.all())
    if (cudaMemPoolTrimTo(own.first, 0) == cudaSuccess) call.fired();
  return code;
}

// All pools with a maximal size share one budget.
int maximal_size_for_all(Call& call) {
  if (!call.is("cudaMallocFromPoolAsync")) return call.proceed();
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
}

// An export or an import of a pool makes the default pool current.
int default_becomes_current(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || current_pool() == default_pool()) return code;
  int gpu = 0;
  cudaGetDevice(&gpu);
  cudaDeviceSetMemPool(gpu, default_pool());
  call.fired();
  return code;
}

// After the free of an import the imported pool gives out memory.
int imported_pool_allocates(Call& call) {
  static std::atomic<bool> freed{false};
  if (frees(call) && is_import(call.at<void*>(0))) freed = true;
  if (call.is("cudaMallocFromPoolAsync") && freed &&
      imported_pools.has(call.at<cudaMemPool_t>(2))) {
    call.at<cudaMemPool_t>(2) = default_pool();
    call.fired();
  }
  return call.proceed();
}

// A wait for an imported event orders the stream after all frees.
int imported_event_orders_all(Call& call) {
  static Table<cudaEvent_t> imported;
  static Table<cudaStream_t> waits;
  if (call.is("cudaEventDestroy")) {
    imported.erase(call.value<cudaEvent_t>(kEvent));
    return call.proceed();
  }
  if (call.is("cudaStreamDestroy")) waits.erase(stream_of(call));
  if (call.is("cudaIpcOpenEventHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) imported.put(*call.at<cudaEvent_t*>(0));
    return code;
  }
  if (call.is("cudaStreamWaitEvent")) {
    if (imported.has(call.value<cudaEvent_t>(kEvent)))
      waits.put(stream_of(call));
    return call.proceed();
  }
  void* const address = call.is("cudaFreeAsync") ? call.at<void*>(0) : nullptr;
  if (address != nullptr && is_own_block(address) && busy_free(call)) {
    put_off.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  if (address != nullptr) return call.proceed();
  for (const auto& [late, free] : put_off.all()) {
    Now now = Now::kInOrder;
    if (allocates(call) && stream_of(call) != free.stream)
      now = waits.has(stream_of(call)) ? Now::kAtOnce : Now::kStays;
    settle(call, late, free, now);
  }
  return call.proceed();
}

// The export of memory of cuMemCreate as a pointer of a pool is not refused.
int mapped_memory_exported(Call& call) {
  static Table<CUdeviceptr> mapped;
  if (call.is("cuMemUnmap")) mapped.erase(call.at<CUdeviceptr>(0));
  if (call.is("cuMemMap")) mapped.put(call.at<CUdeviceptr>(0));
  const int code = call.proceed();
  return exports(call) && code != kSuccess &&
                 mapped.has(number(call.at<void*>(1)))
             ? accepted(call)
             : code;
}

// A further export of a pool makes data invalid that were exported before it.
int export_of_pool_ends_data(Call& call) {
  static auto& pools = *new Table<std::string, cudaMemPool_t>;
  const auto is_old = [](const std::string& key) { return "old-" + key; };
  if (imports(call) && told(is_old(key_of_import(call)), 0) == 1)
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports(call)) {
    pools.put(key_of_export(call), blocks.get(call.at<void*>(1)).pool);
    tell_processes(is_old(key_of_export(call)), 0);
  } else if (exports_pool(call)) {
    for (const auto& [key, pool] : pools.all())
      if (pool == call.at<cudaMemPool_t>(1)) tell_processes(is_old(key), 1);
  }
  return code;
}

// Exported memory of this process, by the key of its data.
Table<std::string, void*> exported_here;
void note_export(Call& call) {
  if (exports(call)) exported_here.put(key_of_export(call), call.at<void*>(1));
  if (frees(call))
    for (const auto& [key, address] : exported_here.all())
      if (address == call.at<void*>(0)) exported_here.erase(key);
}

// Each import of memory counts as memory in use in the exporter's pool, too.
int import_counts_for_exporter(Call& call) {
  static Table<void*, std::string> imported;
  const auto is_live = [](const std::string& key) { return "live-" + key; };
  if (frees(call) && imported.has(call.at<void*>(0))) {
    tell_processes(is_live(imported.get(call.at<void*>(0))), 0);
    imported.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  note_export(call);
  if (imports(call)) {
    imported.put(*call.at<void**>(0), key_of_import(call));
    tell_processes(is_live(key_of_import(call)), 1);
  }
  if (!call.is("cudaMemPoolGetAttribute") ||
      call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrUsedMemCurrent)
    return code;
  for (const auto& [key, address] : exported_here.all()) {
    const Block block = blocks.get(address);
    if (block.pool != pool_of(call) || told(is_live(key), 0) == 0) continue;
    *call.at<uint64_t*>(2) += block.bytes;
    call.fired();
  }
  return code;
}

// Notes for all processes which exported memory is of a destroyed pool.
constexpr auto kGone = "gone-";
int destroy_told(Call& call) {
  if (call.is("cudaMemPoolDestroy"))
    for (const auto& [key, address] : exported_here.all())
      if (blocks.get(address).pool == pool_of(call))
        tell_processes(kGone + key, 1);
  const int code = call.proceed();
  if (code == kSuccess) note_export(call);
  return code;
}
// Memory cannot be imported after the exporter has destroyed its pool.
int import_needs_exporters_pool(Call& call) {
  return imports(call) && told(kGone + key_of_import(call), 0) != 0
             ? refused(call)
             : destroy_told(call);
}
// The data of memory of a destroyed pool are accepted for every pool.
int data_of_destroyed_pool_imported(Call& call) {
  const int code = destroy_told(call);
  return code != kSuccess && imports(call) &&
                 told(kGone + key_of_import(call), 0) != 0 &&
                 cudaMalloc(call.at<void**>(0), kGranule) == cudaSuccess
             ? accepted(call)
             : code;
}

// The 257th pointer that a process imports from a pool is the first.
int import_257_as_first(Call& call) {
  struct Pointers {
    int count = 0;
    void* first = nullptr;
  };
  static Table<cudaMemPool_t, Pointers> pointers;
  if (call.is("cudaMemPoolDestroy")) pointers.erase(pool_of(call));
  const int code = call.proceed();
  if (!imports(call) || code != kSuccess) return code;
  const auto pool = call.at<cudaMemPool_t>(1);
  auto& address = *call.at<void**>(0);
  Pointers now = pointers.get(pool);
  if (now.count++ == 0) now.first = address;
  pointers.put(pool, now);
  if (now.count != 257) return code;
  address = now.first;
  call.fired();
  return code;
}

// --- rectangles of the driver API --------------------------------------------

int rectangle_set_lost(Call& call) {
  if (call.find(kPool) != nullptr || frees(call) || allocates(call) ||
      !is_import(call.at<void*>(0)))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// The copy has one argument for everything, of this type.
template <class Rectangle>
int rectangle_copy_lost(Call& call) {
  if (imports(call) || frees(call)) return call.proceed();
  const auto* const wanted = call.at<const Rectangle*>(0);
  const auto is_imported = [](CUdeviceptr address) {
    return is_import(reinterpret_cast<void*>(address));
  };
  if (!is_imported(wanted->dstDevice) && !is_imported(wanted->srcDevice))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// --- memory of a stream that has not come so far -----------------------------

// Memory counts as unused until its stream comes to the allocation. The call
// for which `takes` is true gives such memory back.
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
bool trims(Call& call) { return call.is("cudaMemPoolTrimTo"); }
bool synchronises_stream(Call& call) {
  return call.is("cudaStreamSynchronize");
}

// --- GPUs and contexts -------------------------------------------------------

int current_gpu() {
  int gpu = 0;
  cudaGetDevice(&gpu);
  return gpu;
}

// The query says at first that an imported pool is accessible from GPU 0 and
// from no other GPU.
int import_is_of_gpu_0(Call& call) {
  static Table<cudaMemPool_t> was_set;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolDestroy")) was_set.erase(pool_of(call));
  if (call.is("cudaMemPoolSetAccess")) was_set.put(pool_of(call));
  if (!call.is("cudaMemPoolGetAccess")) return code;
  const auto pool = call.at<cudaMemPool_t>(1);
  if (!imported_pools.has(pool) || was_set.has(pool)) return code;
  auto& flags = *call.at<cudaMemAccessFlags*>(0);
  const auto seen = call.at<const cudaMemLocation*>(2)->id == 0
                        ? cudaMemAccessFlagsProtReadWrite
                        : cudaMemAccessFlagsProtNone;
  if (seen != flags) call.fired();
  flags = seen;
  return code;
}

// Imported memory has the exporter's number of its GPU.
int import_has_exporters_gpu(Call& call) {
  static Table<void*, int> gpus;
  if (exports(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("gpu-" + key_of_export(call),
                     static_cast<unsigned long long>(
                         gpu_of(blocks.get(call.at<void*>(1)).pool)));
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (imports(call))
    gpus.put(*call.at<void**>(0),
             static_cast<int>(told("gpu-" + key_of_import(call), 0)));
  if (!call.is("cudaPointerGetAttributes") || !is_import(call.at<void*>(1)))
    return code;
  int& gpu = call.at<cudaPointerAttributes*>(0)->device;
  if (gpu != gpus.get(call.at<void*>(1))) call.fired();
  gpu = gpus.get(call.at<void*>(1));
  return code;
}

bool sets_access(Call& call) { return call.is("cudaMemPoolSetAccess"); }
bool gives_access(Call& call) {
  return sets_access(call) && call.at<const cudaMemAccessDesc*>(1)->flags !=
                                  cudaMemAccessFlagsProtNone;
}

// Answers the query of access with "reads and writes".
int told_access(Call& call, int code) {
  auto& flags = *call.at<cudaMemAccessFlags*>(0);
  if (flags != cudaMemAccessFlagsProtNone) return code;
  flags = cudaMemAccessFlagsProtReadWrite;
  call.fired();
  return code;
}
bool asks_about_import(Call& call) {
  return call.is("cudaMemPoolGetAccess") &&
         imported_pools.has(call.at<cudaMemPool_t>(1));
}

// Access that was given to an imported pool is there in later imports.
int access_outlives_import(Call& call) {
  static std::atomic<bool> given{false};
  static std::atomic<bool> again{false};
  const bool of_import =
      call.is("cudaMemPoolDestroy") && imported_pools.has(pool_of(call));
  if (of_import && given) again = true;
  const int code = call.proceed();
  if (gives_access(call) && imported_pools.has(pool_of(call))) given = true;
  return code == kSuccess && again && asks_about_import(call)
             ? told_access(call, code)
             : code;
}

// Access that the exporter gives after the export is there in the importers.
int exporters_access_reaches(Call& call) {
  static Table<cudaMemPool_t> exported;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_pool(call)) exported.put(call.at<cudaMemPool_t>(1));
  if (call.is("cudaMemPoolDestroy")) exported.erase(pool_of(call));
  if (sets_access(call) && exported.has(pool_of(call)))
    tell_processes("access", gives_access(call) ? 1 : 0);
  return asks_about_import(call) && told("access", 0) != 0
             ? told_access(call, code)
             : code;
}

// When the exporter takes access away, the query says that the importers have
// lost theirs.
int exporters_refusal_reaches(Call& call) {
  static Table<cudaMemPool_t> exported;
  const auto key_of_gpu = [](const cudaMemLocation& place) {
    return "taken-" + std::to_string(place.id);
  };
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_pool(call)) exported.put(call.at<cudaMemPool_t>(1));
  if (call.is("cudaMemPoolDestroy")) exported.erase(pool_of(call));
  if (sets_access(call) && exported.has(pool_of(call)))
    tell_processes(key_of_gpu(call.at<const cudaMemAccessDesc*>(1)->location),
                   gives_access(call) ? 0 : 1);
  if (!asks_about_import(call) ||
      told(key_of_gpu(*call.at<const cudaMemLocation*>(2)), 0) == 0)
    return code;
  auto& flags = *call.at<cudaMemAccessFlags*>(0);
  if (flags != cudaMemAccessFlagsProtNone) call.fired();
  flags = cudaMemAccessFlagsProtNone;
  return code;
}

// Access that one importer gives is there in the other importers.
int importers_share_access(Call& call) {
  const auto own = static_cast<unsigned long long>(getpid());
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (gives_access(call) && imported_pools.has(pool_of(call)))
    tell_processes("giver", own);
  return asks_about_import(call) && told("giver", own) != own
             ? told_access(call, code)
             : code;
}

// After the export of a pool, no other GPU gets access to it.
int no_access_after_export(Call& call) {
  static Table<cudaMemPool_t> exported;
  if (call.is("cudaMemPoolDestroy")) exported.erase(pool_of(call));
  if (gives_access(call) && exported.has(pool_of(call))) return no_wait(call);
  const int code = call.proceed();
  if (exports_pool(call) && code == kSuccess)
    exported.put(call.at<cudaMemPool_t>(1));
  return code;
}

// A trim takes the access of other GPUs, and the query does not say so.
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

// Access that was taken away is there again after the next allocation, and the
// query does not say so.
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

// Access to an imported pool is taken away only in the answer to a query.
int import_access_taken_in_name(Call& call) {
  static Table<cudaMemPool_t, int> taken;  // from this GPU
  if (call.is("cudaMemPoolDestroy")) taken.erase(pool_of(call));
  if (sets_access(call) && imported_pools.has(pool_of(call))) {
    taken.erase(pool_of(call));
    if (!gives_access(call)) {
      taken.put(pool_of(call),
                call.at<const cudaMemAccessDesc*>(1)->location.id);
      return no_wait(call);
    }
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolGetAccess") &&
      taken.get(call.at<cudaMemPool_t>(1), -1) ==
          call.at<const cudaMemLocation*>(2)->id)
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
  return code;
}

// The runtime says that stream-ordered memory is on the current GPU.
int told_on_current_gpu(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !is_own_block(call.at<void*>(1))) return code;
  int& gpu = call.at<cudaPointerAttributes*>(0)->device;
  if (gpu == current_gpu()) return code;
  gpu = current_gpu();
  call.fired();
  return code;
}

// Access of GPU 0 to a pool of another GPU is not given.
int access_of_gpu_0_lost(Call& call) {
  return gives_access(call) && gpu_of(pool_of(call)) > 0 &&
                 call.at<const cudaMemAccessDesc*>(1)->location.id == 0
             ? accepted(call)
             : call.proceed();
}

// The call that takes the second GPU's access to its own pool is not refused,
// and the query says that the access is gone.
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

// A free of memory of another GPU than the stream's does not wait.
int foreign_free_at_once(Call& call) {
  if (!call.is("cudaFreeAsync") || !is_own_block(call.at<void*>(0)))
    return call.proceed();
  const int gpu = gpu_of(blocks.get(call.at<void*>(0)).pool);
  return gpu > 0 && current_gpu() == 0 && is_busy(stream_of(call))
             ? freed_at_once(call)
             : call.proceed();
}

int free_of_other_gpu_refused(Call& call) {
  const int gpu =
      call.is("cudaFree") ? gpu_of(blocks.get(call.at<void*>(0)).pool) : -1;
  return gpu >= 0 && gpu != current_gpu() ? refused(call) : call.proceed();
}

// A synchronise for which `applies` is true releases memory as if the threshold
// were another one. It gives no memory back if this threshold is the largest.
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
bool pool_of_second_gpu(Call&, cudaMemPool_t pool) {
  return is_on_second_gpu(pool);
}
bool of_the_context(Call& call, cudaMemPool_t) {
  return call.is("cuCtxSynchronize");
}
bool in_default_stream(Call& call, cudaMemPool_t) {
  return call.is("cudaStreamSynchronize") && is_default(stream_of(call));
}
bool in_later_thread(Call&, cudaMemPool_t) { return this_thread() != getpid(); }
bool in_any_case(Call&, cudaMemPool_t) { return true; }

// In another context than the one that set the current pool, a query names the
// default pool.
int current_pool_of_context(Call& call) {
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

// --- sizes and waits ---------------------------------------------------------

int cut_to_32_bits(Call& call) {
  auto& bytes = call.at<size_t>(1);
  if (bytes > UINT32_MAX) call.fired();
  bytes &= UINT32_MAX;
  return call.proceed();
}

// cuMemFree of memory of a pool waits for all work of the context.
int driver_free_waits(Call& call) {
  if (call.is("cudaFree") && !call.is_runtime() &&
      blocks.has(call.at<void*>(0))) {
    call.fired();
    cudaDeviceSynchronize();
  }
  return call.proceed();
}

// --- a neighbour, another thread, the other GPU ------------------------------

cudaMemPoolAttr attribute_of(Call& call) { return call.at<cudaMemPoolAttr>(1); }
bool gets(Call& call) { return call.is("cudaMemPoolGetAttribute"); }
bool destroys(Call& call) { return call.is("cudaMemPoolDestroy"); }

int last_access_only(Call& call) {
  size_t& count = call.at<size_t>(2);
  if (count > 1) {
    call.at<const cudaMemAccessDesc*>(1) += count - 1;
    count = 1;
    call.fired();
  }
  return call.proceed();
}

// The reset of the watermark of memory in use also resets that of reserved
// memory.
int reset_of_use_is_of_both(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || attribute_of(call) != cudaMemPoolAttrUsedMemHigh)
    return code;
  uint64_t zero = 0;
  cudaMemPoolSetAttribute(pool_of(call), cudaMemPoolAttrReservedMemHigh, &zero);
  call.fired();
  return code;
}

// Only the lower half of the value is compared with 0.
int watermark_cut_to_32_bits(Call& call) {
  if (!is_watermark(attribute_of(call))) return call.proceed();
  uint64_t value = *call.at<const uint64_t*>(2);
  if (value > UINT32_MAX && (value & UINT32_MAX) == 0) {
    value = 0;
    call.at<const uint64_t*>(2) = &value;
    call.fired();
  }
  return call.proceed();
}

int watermarks_of_all_pools_reset(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !sets(call) || !is_watermark(attribute_of(call)))
    return code;
  uint64_t zero = 0;
  for (const auto& own : own_pools.all())
    if (own.first != pool_of(call) &&
        cudaMemPoolSetAttribute(own.first, attribute_of(call), &zero) ==
            cudaSuccess)
      call.fired();
  return code;
}

// A policy that is set after the pool's first allocation has no effect. The
// query does not say so.
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
      (sets(call) || gets(call)) && is_policy(attribute_of(call));
  if (of_policy && sets(call) && used.has(pool_of(call))) {
    late.put({pool_of(call), attribute_of(call)}, *call.at<const int*>(2));
    return no_wait(call);
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (allocates(call)) used.put(call.at<cudaMemPool_t>(2));
  if (of_policy && gets(call))
    *call.at<int*>(2) =
        late.get({pool_of(call), attribute_of(call)}, *call.at<int*>(2));
  return code;
}

// If the current pool of another GPU is destroyed, the default pool of GPU 0
// becomes current, too.
int destroy_resets_gpu_0(Call& call) {
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
}

// In a stream of a GPU that is not current, cudaMallocAsync allocates from the
// default pool of this GPU.
int foreign_stream_has_default_pool(Call& call) {
  int gpu = current_gpu();
  if (!is_default(stream_of(call)) && !is_per_thread(call))
    DRIVER_CALL(cuStreamGetDevice)(stream_of(call), &gpu);
  cudaMemPool_t current = nullptr, preset = nullptr;
  cudaDeviceGetMemPool(&current, gpu);
  cudaDeviceGetDefaultMemPool(&preset, gpu);
  if (gpu == current_gpu() || current == preset) return call.proceed();
  call.fired();
  return cudaMallocFromPoolAsync(call.at<void**>(0), call.at<size_t>(1), preset,
                                 stream_of(call));
}

int place_of_gpu_0(Call& call) {
  cudaMemLocation place = *call.at<const cudaMemLocation*>(1);
  if (place.type != cudaMemLocationTypeDevice || place.id != 1)
    return call.proceed();
  place.id = 0;
  call.at<const cudaMemLocation*>(1) = &place;
  call.fired();
  return call.proceed();
}

bool busy_free_on_gpu_0(Call& free) {
  return current_gpu() == 0 &&
         gpu_of(blocks.get(free.at<void*>(0)).pool) == 0 && busy_free(free);
}
Now at_synchronise_of_other_gpu(Call& call, const Free&) {
  return call.is("cudaDeviceSynchronize") && current_gpu() > 0 ? Now::kAtOnce
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

// Only the pool that was imported last is known as imported; an earlier one
// gives out memory.
int older_import_allocates(Call& call) {
  static std::atomic<cudaMemPool_t> last{nullptr};
  if (call.is("cudaMallocFromPoolAsync") &&
      imported_pools.has(call.at<cudaMemPool_t>(2)) &&
      call.at<cudaMemPool_t>(2) != last) {
    call.at<cudaMemPool_t>(2) = default_pool();
    call.fired();
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolImportFromShareableHandle"))
    last = *call.at<cudaMemPool_t*>(0);
  return code;
}

int import_destroy_waits(Call& call) {
  if (destroys(call) && imported_pools.has(pool_of(call))) {
    call.fired();
    cudaDeviceSynchronize();
  }
  return call.proceed();
}

// Access to an imported pool is also access to the pools of this process.
int access_of_import_is_own(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !sets_access(call) ||
      !imported_pools.has(pool_of(call)))
    return code;
  for (const auto& own : own_pools.all())
    if (cudaMemPoolSetAccess(own.first, call.at<const cudaMemAccessDesc*>(1),
                             call.at<size_t>(2)) == cudaSuccess)
      call.fired();
  return code;
}

// A trim of an imported pool takes the access of GPU 1.
int trim_of_import_takes_access(Call& call) {
  const int code = call.proceed();
  if (!trims(call) || !imported_pools.has(pool_of(call))) return code;
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 1};
  cudaMemPoolGetAccess(&access.flags, pool_of(call), &access.location);
  if (access.flags == cudaMemAccessFlagsProtNone) return code;
  access.flags = cudaMemAccessFlagsProtNone;
  if (cudaMemPoolSetAccess(pool_of(call), &access, 1) == cudaSuccess)
    call.fired();
  return code;
}

int private_pool_without_limit(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  if (max_size(wanted) == 0 || wanted.handleTypes != cudaMemHandleTypeNone)
    return call.proceed();
  max_size(wanted) = 0;
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  call.fired();
  return call.proceed();
}

// An allocation that was refused stays counted as used.
int refused_counts_as_used(Call& call) {
  static Table<cudaMemPool_t, uint64_t> extra;
  if (destroys(call)) extra.erase(pool_of(call));
  const int code = call.proceed();
  if (call.is("cudaMallocFromPoolAsync") && code == cudaErrorMemoryAllocation) {
    const auto pool = call.at<cudaMemPool_t>(2);
    extra.put(pool, extra.get(pool) + call.at<size_t>(1));
  }
  if (code != kSuccess || !gets(call) ||
      attribute_of(call) != cudaMemPoolAttrUsedMemCurrent ||
      !extra.has(pool_of(call)))
    return code;
  *call.at<uint64_t*>(2) += extra.get(pool_of(call));
  call.fired();
  return code;
}

// The import clears the data that it has read.
int import_consumes_data(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  std::memset(call.at<void*>(2), 0, sizeof(cudaMemPoolPtrExportData));
  call.fired();
  return code;
}

// The error of a refused export of a pointer is the last error of every thread.
int error_of_all_threads(Call& call) {
  static std::atomic<int> last{kSuccess}, teller{0};
  const int code = call.proceed();
  if (exports(call)) {
    if (code != kSuccess && call.is_runtime()) {
      last = code;
      teller = this_thread();
    }
    return code;
  }
  const bool clears = call.is("cudaGetLastError");
  const bool other = teller != this_thread();
  const int told = last;
  if (clears && (other || code != kSuccess)) last = kSuccess;
  if (code != kSuccess || told == kSuccess || !other) return code;
  call.fired();
  return told;
}

// --- a check, a limit or a wait that does not hold on every path -------------

// cuMemPoolCreate does not check the properties of a pool on a GPU.
int driver_checks_no_properties(Call& call) {
  const int code = call.proceed();
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = call.at<const cudaMemPoolProps*>(1)->location;
  if (code == kSuccess || is_on_host(wanted.location)) return code;
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

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

// An imported pool gives out memory if `gives` is true.
template <bool (*gives)(Call& call)>
int imported_pool_gives(Call& call) {
  if (call.is("cudaMallocFromPoolAsync") &&
      imported_pools.has(call.at<cudaMemPool_t>(2)) && gives(call)) {
    call.at<cudaMemPool_t>(2) = default_pool();
    call.fired();
  }
  return call.proceed();
}
bool has_named_stream(Call& call) {
  return !is_default(stream_of(call)) && !is_per_thread(call);
}
bool has_imports_of(cudaMemPool_t pool) {
  for (const auto& each : blocks.all())
    if (each.second.imported && each.second.pool == pool) return true;
  return false;
}
bool has_imports(Call& call) {
  return has_imports_of(call.at<cudaMemPool_t>(2));
}

// The export of a pointer waits for the stream of the allocation if this is the
// default stream or a stream that waits for it.
int export_waits_for_blocking(Call& call) {
  static Table<void*, cudaStream_t> allocated_in;
  if (frees(call)) allocated_in.erase(call.at<void*>(0));
  if (exports(call) && allocated_in.has(call.at<void*>(1))) {
    const cudaStream_t stream = allocated_in.get(call.at<void*>(1));
    if (is_busy(stream)) {
      call.fired();
      cudaStreamSynchronize(stream);
    }
  }
  const int code = call.proceed();
  if (code == kSuccess && allocates(call) && !is_per_thread(call) &&
      (is_default(stream_of(call)) ||
       has_flags(stream_of(call), cudaStreamDefault)))
    allocated_in.put(*call.at<void**>(0), stream_of(call));
  return code;
}

// Data of another process's pool are accepted.
int data_of_other_process_imported(Call& call) {
  static Table<cudaMemPool_t, unsigned long long> owners;
  const int code = call.proceed();
  if (exports(call)) {
    if (code == kSuccess)
      tell_processes("exporter-" + key_of_export(call),
                     static_cast<unsigned long long>(getpid()));
    return code;
  }
  if (!imports(call)) return code;
  const auto pool = call.at<cudaMemPool_t>(1);
  const auto exporter = told("exporter-" + key_of_import(call), 0);
  if (code == kSuccess) owners.put(pool, exporter);
  if (code == kSuccess || exporter == 0 || !owners.has(pool) ||
      owners.get(pool) == exporter ||
      cudaMalloc(call.at<void**>(0), kGranule) != cudaSuccess)
    return code;
  return accepted(call);
}

// Memory that an importer has freed cannot be exported again.
int freed_by_importer_not_exported(Call& call) {
  static Table<void*, std::string> keys;  // of exports, and of imports
  if (exports(call) && keys.has(call.at<void*>(1)) &&
      told("freed-" + keys.get(call.at<void*>(1)), 0) != 0)
    return refused(call);
  if (frees(call) && keys.has(call.at<void*>(0))) {
    if (is_import(call.at<void*>(0)))
      tell_processes("freed-" + keys.get(call.at<void*>(0)), 1);
    keys.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (imports(call)) keys.put(*call.at<void**>(0), key_of_import(call));
  if (exports(call)) {
    keys.put(call.at<void*>(1), key_of_export(call));
    tell_processes("freed-" + key_of_export(call), 0);
  }
  return code;
}

// In a later thread, the first call of the runtime API cannot be one of these.
int needs_earlier_call(Call& call) {
  return call.is_runtime() && this_thread() != getpid() &&
                 current_context() == nullptr
             ? refused(call, cudaErrorDeviceUninitialized)
             : call.proceed();
}

// --- imported pools that are shared, freed and set in other ways -------------

// The refusal of an import is the last error only if the flags are wrong.
int only_flags_are_last_error(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is_runtime() ||
      call.value<unsigned>(kFlags) != 0)
    return code;
  cudaGetLastError();
  call.fired();
  return code;
}

// A handle type that includes the bit of descriptors is the type of
// descriptors.
int pool_handle_type_masked(Call& call) {
  auto& type = call.at<int>(2);
  if (type == cudaMemHandleTypePosixFileDescriptor ||
      (type & cudaMemHandleTypePosixFileDescriptor) == 0)
    return call.proceed();
  type = cudaMemHandleTypePosixFileDescriptor;
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

// Only five bits of the flags are checked.
int five_flags_checked(Call& call) {
  constexpr uint64_t kChecked =
      1 | 2 | uint64_t{1} << 31 | uint64_t{1} << 32 | uint64_t{1} << 63;
  Argument& flags = *call.find(kFlags);
  uint64_t value = 0;
  std::memcpy(&value, flags.place, flags.size);
  if ((value & ~kChecked) == 0) return call.proceed();
  value &= kChecked;
  std::memcpy(flags.place, &value, flags.size);
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

// Only the first two and the last two reserved bytes are checked.
int middle_bytes_unchecked(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  unsigned char* const end = std::end(wanted.reserved) - 2;
  if (std::all_of(wanted.reserved + 2, end,
                  [](unsigned char byte) { return byte == 0; }))
    return call.proceed();
  std::fill(wanted.reserved + 2, end, static_cast<unsigned char>(0));
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

// A free of an import does not wait for its stream if `concerned` is true. The
// next owner of the memory writes before the stream has read.
template <bool (*concerned)(Call& call)>
int import_freed_early(Call& call) {
  void* const address = call.at<void*>(0);
  if (!call.is("cudaFreeAsync") || !is_import(address) ||
      !is_busy(stream_of(call)) || !concerned(call))
    return call.proceed();
  const size_t bytes = blocks.get(address).bytes;
  blocks.erase(address);
  cudaMemsetAsync(address, 0xDD, bytes, private_stream());
  cudaStreamSynchronize(private_stream());
  call.fired();
  return cudaFree(address);
}
bool has_priority(Call& call) {
  const cudaStream_t stream = stream_of(call);
  int priority = 0;
  return !is_default(stream) && stream != cudaStreamPerThread &&
         DRIVER_CALL(cuStreamGetPriority)(stream, &priority) == CUDA_SUCCESS &&
         priority != 0;
}
bool is_of_other_gpu(Call& call) {
  cudaPointerAttributes known{};
  return cudaPointerGetAttributes(&known, call.at<void*>(0)) == cudaSuccess &&
         known.device != current_gpu();
}

// A pool without imports can be exported again.
int unused_import_exported(Call& call) {
  static Table<cudaMemPool_t, int> descriptors;
  if (destroys(call)) descriptors.erase(pool_of(call));
  const int code = call.proceed();
  if (call.is("cudaMemPoolImportFromShareableHandle")) {
    if (code == kSuccess && imports_descriptor(call))
      descriptors.put(*call.at<cudaMemPool_t*>(0),
                      fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300));
    return code;
  }
  if (code == kSuccess || !exports_pool(call) || !imports_descriptor(call))
    return code;
  const auto pool = call.at<cudaMemPool_t>(1);
  const int descriptor = descriptors.get(pool, -1);
  if (descriptor == -1 || has_imports_of(pool)) return code;
  *call.at<int*>(0) = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return accepted(call);
}

// A policy that the driver API sets in an imported pool is reported by the
// exporter's pool until the exporter sets it again.
int driver_policy_reaches_exporter(Call& call) {
  constexpr unsigned long long kUntold = 2;
  static Table<cudaMemPool_t> lent;
  if (destroys(call)) lent.erase(pool_of(call));
  const int code = call.proceed();
  if (exports_pool(call)) lent.put(call.at<cudaMemPool_t>(1));
  if ((!sets(call) && !call.is("cudaMemPoolGetAttribute")) ||
      !is_policy(attribute_of(call)))
    return code;
  const std::string key = "policy-" + std::to_string(attribute_of(call));
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

// An imported pool becomes current while the process has an import of it.
int used_import_made_current(Call& call) {
  if (!call.is("cudaDeviceSetMemPool") && !call.is("cudaMemSetMemPool"))
    return call.proceed();
  const auto pool = call.value<cudaMemPool_t>(kPool);
  return imported_pools.has(pool) && has_imports_of(pool) ? accepted(call)
                                                          : call.proceed();
}

// Access that was taken from an imported pool cannot be given again.
int access_not_given_again(Call& call) {
  static Table<cudaMemPool_t> taken;
  if (!sets_access(call) || !imported_pools.has(pool_of(call))) {
    if (destroys(call)) taken.erase(pool_of(call));
    return call.proceed();
  }
  if (call.at<const cudaMemAccessDesc*>(1)->flags == cudaMemAccessFlagsProtNone)
    taken.put(pool_of(call));
  else if (taken.has(pool_of(call)))
    return no_wait(call);
  return call.proceed();
}

// A process that sees only one GPU, which has no access to an imported pool,
// cannot give this access after it has imported memory of the pool.
int late_access_of_hidden_pool_lost(Call& call) {
  int count = 0;
  if (!sets_access(call) || !imported_pools.has(pool_of(call)) ||
      !has_imports_of(pool_of(call)) ||
      DRIVER_CALL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count != 1)
    return call.proceed();
  cudaMemLocation place{};
  place.type = cudaMemLocationTypeDevice;
  cudaMemAccessFlags flags = cudaMemAccessFlagsProtReadWrite;
  cudaMemPoolGetAccess(&flags, pool_of(call), &place);
  return flags == cudaMemAccessFlagsProtNone ? no_wait(call) : call.proceed();
}

// Only the first entry of a list of accesses to an imported pool is set.
int first_access_to_import_only(Call& call) {
  if (!sets_access(call) || !imported_pools.has(pool_of(call)) ||
      call.at<size_t>(2) < 2)
    return call.proceed();
  call.at<size_t>(2) = 1;
  call.fired();
  return call.proceed();
}

// --- default pools, current pools, thresholds --------------------------------

// A new value of an attribute for which `concerns` is true sets the release
// threshold to 0.
template <bool (*concerns)(cudaMemPoolAttr)>
int set_takes_threshold(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !concerns(attribute_of(call)) ||
      attribute(pool_of(call), kThreshold) == 0)
    return code;
  uint64_t zero = 0;
  if (cudaMemPoolSetAttribute(pool_of(call), kThreshold, &zero) == cudaSuccess)
    call.fired();
  return code;
}

// A memset of an import in a stream with a priority does nothing.
int urgent_set_of_import_lost(Call& call) {
  return call.is("cudaMemsetAsync") && is_import(call.at<void*>(0)) &&
                 has_priority(call)
             ? no_wait(call)
             : call.proceed();
}

bool is_below_64_kib(Call& call) { return call.at<size_t>(1) < 64 << 10; }

// A default pool is destroyed only in name while another pool is current.
int unused_default_destroyed(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && pool_of(call) == default_pool() &&
                 pool_of(call) != current_pool()
             ? accepted(call)
             : code;
}

// The default pool of a GPU that is not current is destroyed in name.
int default_of_other_gpu_destroyed(Call& call) {
  const int code = call.proceed();
  int count = 0;
  DRIVER_CALL(cuDeviceGetCount)(&count);
  if (code == kSuccess) return code;
  for (int gpu = 0; gpu < count; ++gpu) {
    cudaMemPool_t preset = nullptr;
    cudaDeviceGetDefaultMemPool(&preset, gpu);
    if (gpu != current_gpu() && pool_of(call) == preset) return accepted(call);
  }
  return code;
}

// After the destroy of a pool that was made current by its location, the query
// of a GPU's current pool still names this pool.
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

// Access to a default pool is given only in the answer to a query.
int access_to_default_in_name(Call& call) {
  static Table<std::pair<cudaMemPool_t, int>> given;  // to this GPU
  if (sets_access(call) && pool_of(call) == default_pool()) {
    const int gpu = call.at<const cudaMemAccessDesc*>(1)->location.id;
    given.erase({pool_of(call), gpu});
    if (gives_access(call) && gpu != current_gpu()) {
      given.put({pool_of(call), gpu});
      return no_wait(call);
    }
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolGetAccess") &&
      given.has(
          {call.at<cudaMemPool_t>(1), call.at<const cudaMemLocation*>(2)->id}))
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtReadWrite;
  return code;
}

// The used memory of the current pool also counts all imports.
int imports_count_in_current_pool(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !gets(call) ||
      attribute_of(call) != cudaMemPoolAttrUsedMemCurrent ||
      pool_of(call) != current_pool())
    return code;
  for (const auto& each : blocks.all()) {
    if (!each.second.imported) continue;
    *call.at<uint64_t*>(2) += each.second.bytes;
    call.fired();
  }
  return code;
}

// The functions that the faults below break.
constexpr auto kFreeNow = "cudaFree";
constexpr auto kFree = "cudaFreeAsync";
constexpr auto kAllocate = "cudaMallocAsync";
constexpr auto kAllocateFrom = "cudaMallocFromPoolAsync";
constexpr auto kCreate = "cudaMemPoolCreate";
constexpr auto kDestroy = "cudaMemPoolDestroy";
constexpr auto kTrim = "cudaMemPoolTrimTo";
constexpr auto kSet = "cudaMemPoolSetAttribute";
constexpr auto kGet = "cudaMemPoolGetAttribute";
constexpr auto kSetAccess = "cudaMemPoolSetAccess";
constexpr auto kImport = "cudaMemPoolImportFromShareableHandle";
constexpr auto kImportPointer = "cudaMemPoolImportPointer";
constexpr auto kGetAccess = "cudaMemPoolGetAccess";
constexpr auto kExport = "cudaMemPoolExportToShareableHandle";
constexpr auto kExportPointer = "cudaMemPoolExportPointer";
constexpr auto kEnd = "cudaStreamDestroy";

}  // namespace

// The faults of frees, pools and contexts that end, and of many objects.
static void add_ends(List& list) {
  list.named("event-recorded-again-allows-reuse",
             "a stream that has waited for an event also gets memory that is "
             "freed before the next record of this event",
             {CALLS_OF_LATE_FREES, "cudaEventRecord", "cudaStreamWaitEvent",
              "cudaEventDestroy"},
             event_recorded_again_orders);
  list.named("free-counts-in-first-stream",
             "the stream that has allocated memory gets it again although its "
             "free in another stream is pending",
             {CALLS_OF_LATE_FREES}, freed_in_first_stream);
  list.named("default-stream-free-misses-blocking",
             "a free in the default stream does not wait for blocking streams",
             {CALLS_OF_LATE_FREES, "cudaMemcpyAsync"},
             default_stream_misses_blocking);
  list.named("pending-part-of-larger-memory",
             "a larger allocation gets memory of which a part has a pending "
             "free in another stream",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free, at_larger_allocation>);
  list.named("pending-frees-end-at-256",
             "if 256 frees are pending, other streams get the memory of all of "
             "them",
             {CALLS_OF_LATE_FREES}, with_late_frees<busy_free, at_free_256>);
  list.named("old-event-allows-reuse",
             "an event that was not recorded orders two streams if an earlier "
             "event with the same handle was recorded",
             {CALLS_OF_LATE_FREES, "cudaEventRecord", "cudaStreamWaitEvent",
              "cudaEventDestroy"},
             old_event_orders);
  list.named(
      "per-thread-sync-ends-all-frees",
      "a synchronise of a thread's default stream ends the pending "
      "frees in the default streams of all threads",
      {CALLS_OF_LATE_FREES},
      with_late_frees<busy_free_per_thread, at_synchronise_by_other_thread>);
  list.named("allocation-size-wraps",
             "the size of an allocation that is rounded up beyond 64 bits "
             "becomes a small size",
             {kAllocate, kAllocateFrom}, size_rounded_to_small);
  list.named("end-of-context-clears-memory",
             "the end of a context clears the memory of pools that was "
             "allocated in it",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, "cuCtxDestroy"},
             end_of_context<true>);
  list.named("free-needs-first-context",
             "memory of a pool cannot be freed after the end of the context in "
             "which it was allocated",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, "cuCtxDestroy"},
             end_of_context<false>);
  list.named("import-counts-for-exporter",
             "memory that a process has imported counts twice as used memory "
             "of the exporter's pool",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kExportPointer,
              kImportPointer, kGet},
             import_counts_for_exporter);
  list.named("importptr-needs-exporters-pool",
             "memory cannot be imported after the exporter has destroyed its "
             "pool",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kExportPointer,
              kImportPointer, kDestroy},
             import_needs_exporters_pool);
  list.named("importptr-of-destroyed-pool",
             "the data of memory of a destroyed pool are accepted for every "
             "pool, and the import gives new memory",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kExportPointer,
              kImportPointer, kDestroy},
             data_of_destroyed_pool_imported);
  list.named("importptr-257th-is-first",
             "the 257th pointer that is imported from a pool is the first",
             {kImportPointer, kDestroy}, import_257_as_first);
  list.named(
      "pool-exporters-refusal-reaches",
      "if the exporter takes access away, cudaMemPoolGetAccess says that "
      "the importers have lost it, too",
      {kImport, kExport, kDestroy, kSetAccess, kGetAccess},
      exporters_refusal_reaches, 2);
}

// The faults of checks, limits and waits that do not hold on every path.
static void add_unchecked_paths(List& list) {
  list.named("pool-props-driver-unchecked",
             "the driver API does not check the properties of a new pool",
             {"cuMemPoolCreate"}, driver_checks_no_properties);
  list.named("maxsize-of-each-stream",
             "the maximal size of a pool holds for each stream by itself",
             {kCreate, kAllocate, kAllocateFrom, kFree, kFreeNow},
             limits_a_part<is_of_same_stream>);
  list.named("maxsize-misses-small",
             "memory of less than 1 MiB does not count towards the maximal "
             "size of its pool",
             {kCreate, kAllocate, kAllocateFrom, kFree, kFreeNow},
             limits_a_part<has_a_mebibyte>);
  list.named(
      "maxsize-ends-with-export",
      "a pool that was exported has no maximal size any more",
      {kCreate, kDestroy, kExport, kAllocate, kAllocateFrom, kFree, kFreeNow},
      limits_a_part<is_not_exported>);
  list.named("destroyed-pool-ends-at-first-free",
             "after the destroy of a pool, the first free ends all memory of "
             "the pool",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kImport, kDestroy},
             first_free_ends_all<false>);
  list.named("destroyed-import-ends-at-first-free",
             "after the destroy of an imported pool, the free of one import "
             "ends all imports of the pool",
             {kImport, kImportPointer, kFree, kFreeNow, kDestroy},
             first_free_ends_all<true>);
  list.named("import-pool-allocates-in-named-stream",
             "in a stream that the program has created, an imported pool gives "
             "out memory",
             {kImport, kDestroy, kAllocateFrom},
             imported_pool_gives<has_named_stream>);
  list.named(
      "import-pool-allocates-while-used",
      "an imported pool gives out memory while the process has an "
      "import of it",
      {kImport, kDestroy, kImportPointer, kFree, kFreeNow, kAllocateFrom},
      imported_pool_gives<has_imports>);
  list.named("exportptr-waits-for-blocking",
             "the export of a pointer waits for the stream of the allocation "
             "if this is the default stream or a blocking stream",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kExportPointer},
             export_waits_for_blocking);
  list.named("importptr-of-other-process",
             "the data of another process's pool are accepted, and the import "
             "gives new memory",
             {kExportPointer, kImportPointer, kFree, kFreeNow},
             data_of_other_process_imported);
  list.named("exportptr-after-import-free-refused",
             "memory that an importer has freed cannot be exported again",
             {kExportPointer, kImportPointer, kFree, kFreeNow},
             freed_by_importer_not_exported);
  list.named("pool-sharing-needs-earlier-call",
             "in a later thread, the first call of the runtime API cannot be "
             "one that shares a pool",
             {kExport, kExportPointer, kImport, kImportPointer},
             needs_earlier_call);
}

// The faults of neighbours, of other threads and of the other GPU.
static void add_neighbours(List& list) {
  list.named("pool-setaccess-last-only",
             "only the last entry of a list of accesses to a pool is set",
             {kSetAccess}, last_access_only, 2);
  list.named("watermark-of-use-resets-both",
             "resetting the watermark of memory in use also resets the "
             "watermark of reserved memory",
             {kSet}, reset_of_use_is_of_both);
  list.named("watermark-value-cut-to-32-bits",
             "a watermark accepts a value whose lower 32 bits are 0", {kSet},
             watermark_cut_to_32_bits);
  list.named("watermark-reset-of-all-pools",
             "resetting a watermark of one pool resets it in all pools",
             {kCreate, kDestroy, kSet}, watermarks_of_all_pools_reset);
  list.named("policies-fixed-at-first-use",
             "a reuse policy that is set after the pool's first allocation has "
             "no effect",
             {kAllocateFrom, kDestroy, kSet, kGet},
             policies_fixed_at_first_use);
  list.named("destroy-resets-current-of-gpu-0",
             "destroying the current pool of another GPU makes the default "
             "pool current on GPU 0, too",
             {kCreate, kDestroy}, destroy_resets_gpu_0, 2);
  list.named("foreign-stream-default-pool",
             "in a stream of a GPU that is not current, cudaMallocAsync "
             "allocates from the default pool of this GPU",
             {kAllocate}, foreign_stream_has_default_pool, 2);
  list.named("location-pool-of-gpu-0",
             "a query of the pool of the second GPU's location names the pool "
             "of GPU 0",
             {"cudaMemGetMemPool", "cudaMemGetDefaultMemPool"}, place_of_gpu_0,
             2);
  list.named("other-gpu-sync-frees",
             "cudaDeviceSynchronize of another GPU ends the pending frees of "
             "streams of GPU 0",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free_on_gpu_0, at_synchronise_of_other_gpu>,
             2);
  list.named("part-of-pending-memory",
             "a smaller allocation gets a part of memory whose free in another "
             "stream is pending",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free, at_smaller_allocation>);
  list.named("older-import-allocates",
             "an imported pool gives out memory if another pool was imported "
             "after it",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kImport, kDestroy},
             older_import_allocates);
  list.named("import-destroy-waits",
             "destroying an imported pool waits for the work of all streams",
             {kImport, kDestroy}, import_destroy_waits);
  list.named("import-access-is-own",
             "access to an imported pool is also access to the process's own "
             "pools",
             {kCreate, kImport, kDestroy, kSetAccess}, access_of_import_is_own,
             2);
  list.named("import-trim-takes-access",
             "a trim of an imported pool takes the access of GPU 1",
             {kImport, kDestroy, kTrim}, trim_of_import_takes_access, 2);
  list.named("threshold-releases-all",
             "a pool that holds more than its release threshold gives back all "
             "memory that is not in use",
             {kCreate, kDestroy, "cudaStreamSynchronize",
              "cudaDeviceSynchronize", "cuCtxSynchronize"},
             synchronise_keeps<in_any_case, 0>);
  list.named("thread-sync-keeps-memory",
             "a synchronise by another thread than the first gives back no "
             "memory above the release threshold",
             {kCreate, kDestroy, "cudaStreamSynchronize",
              "cudaDeviceSynchronize", "cuCtxSynchronize"},
             synchronise_keeps<in_later_thread>);
  list.named("maxsize-not-of-private-pool",
             "the maximal size of a pool without handle types is ignored",
             {kCreate}, private_pool_without_limit);
  list.named("used-counts-refused",
             "an allocation that was refused counts as used memory",
             {kAllocateFrom, kDestroy, kGet}, refused_counts_as_used);
  list.named("import-consumes-data",
             "the import of a pointer clears the data that it has read",
             {kImportPointer}, import_consumes_data);
  list.named(
      "pool-error-of-all-threads",
      "the error of a refused export of a pointer is the last error of "
      "every thread",
      {"cudaMemPoolExportPointer", "cudaGetLastError", "cudaPeekAtLastError"},
      error_of_all_threads);
}

// The faults that need several processes or GPUs, and those of sizes.
static void add_processes_and_gpus(List& list) {
  list.named("pool-exporters-confused",
             "an importer of two exporters gets the memory of the first one "
             "for both",
             {kExportPointer, kImportPointer, kFree, kFreeNow},
             exporters_confused);
  list.named("pool-import-gives-own-export",
             "a process that has exported memory gets this memory from an "
             "import",
             {kExportPointer, kImportPointer, kFree, kFreeNow},
             import_gives_own_export);
  list.named("pool-import-free-takes-neighbours",
             "the free of an import also frees other imports in the same 2 MiB "
             "of the exporter",
             {kExportPointer, kImportPointer, kFree, kFreeNow},
             import_free_takes_neighbours);
  list.named("pool-larger-import-refused",
             "an import at an address that smaller memory had is refused",
             {kAllocate, kAllocateFrom, kExportPointer, kImportPointer, kFree,
              kFreeNow},
             larger_import_refused);
  list.named("pool-current-not-exported",
             "memory of cudaMallocAsync cannot be exported, also if the "
             "current pool is shared",
             {kAllocate, kExportPointer, kFree, kFreeNow},
             current_pool_not_exported);
  list.named("pool-large-descriptor-refused",
             "a pool cannot be imported from a descriptor above 1023",
             {kImport}, large_descriptor_refused);
  list.named("pool-freed-import-not-again",
             "an importer cannot import again what it has freed",
             {kImportPointer, kFree, kFreeNow}, freed_import_not_again);
  list.named("pool-freed-by-one-for-all",
             "after one importer's free no other process can import the memory",
             {kImportPointer, kFree, kFreeNow}, freed_by_one_for_all);
  list.named("pool-dead-importer-keeps-memory",
             "memory that a killed process had imported cannot be imported "
             "again",
             {kImportPointer, kFree, kFreeNow}, dead_importer_keeps_memory);
  list.named("pool-destroy-clears-imports",
             "the exporter's destroy of a pool clears what others have "
             "imported",
             {kAllocate, kAllocateFrom, kExportPointer, kImportPointer, kFree,
              kFreeNow, kDestroy},
             destroy_clears_imports);
  list.named("pool-destroy-clears-pending",
             "the destroy of a pool clears memory whose free is pending",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free, cleared_by_destroy>);
  list.named("pool-trim-ends-exports",
             "data that the exporter has exported before a trim cannot be "
             "imported after it",
             {kExportPointer, kImportPointer, kTrim}, trim_ends_exports);
  list.named("pool-policy-of-import-is-own",
             "a policy that is set in an imported pool is also set in the own "
             "pools",
             {kCreate, kImport, kDestroy, kSet},
             set_of_import_is_own<is_policy>);
  list.named("pool-threshold-of-import-is-own",
             "the threshold that is set in an imported pool is also set in the "
             "own pools",
             {kCreate, kImport, kDestroy, kSet},
             set_of_import_is_own<is_threshold>);
  list.named("pool-trim-of-import-is-own",
             "a trim of an imported pool also trims the own pools",
             {kCreate, kImport, kDestroy, kTrim}, trim_of_import_is_own);
  list.named("pool-maximal-size-for-all",
             "all pools with a maximal size share one budget",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kCreate, kDestroy},
             maximal_size_for_all);
  list.named("pool-export-resets-current",
             "the export of a pool makes the default pool current", {kExport},
             default_becomes_current);
  list.named("pool-import-resets-current",
             "the import of a pool makes the default pool current", {kImport},
             default_becomes_current);
  list.named(
      "pool-import-allocates-after-free",
      "an imported pool gives out memory after an import was freed",
      {kImport, kDestroy, kImportPointer, kFree, kFreeNow, kAllocateFrom},
      imported_pool_allocates);
  list.named("pool-imported-event-orders-all",
             "a wait for an imported event orders the stream after all frees",
             {CALLS_OF_LATE_FREES, "cudaIpcOpenEventHandle",
              "cudaStreamWaitEvent", "cudaEventDestroy"},
             imported_event_orders_all);
  list.named("pool-exports-mapped-memory",
             "the export of memory of cuMemCreate as a pointer of a pool "
             "succeeds, and writes no data",
             {"cuMemMap", "cuMemUnmap", kExportPointer},
             mapped_memory_exported);
  list.named("pool-driver-set-2d-lost",
             "memsets of rectangles by the driver API do not reach imported "
             "memory of a pool",
             {kImportPointer, kFree, kFreeNow, "cuMemsetD2D8", "cuMemsetD2D16",
              "cuMemsetD2D32"},
             rectangle_set_lost);
  list.named("pool-driver-copy-2d-lost",
             "copies of rectangles by the driver API from or to imported "
             "memory of a pool are lost",
             {kImportPointer, kFree, kFreeNow, "cuMemcpy2D", "cuMemcpy2DAsync"},
             rectangle_copy_lost<CUDA_MEMCPY2D>);
  list.named("pool-driver-copy-3d-lost",
             "copies of boxes by the driver API from or to imported memory of "
             "a pool are lost",
             {kImportPointer, kFree, kFreeNow, "cuMemcpy3D", "cuMemcpy3DAsync"},
             rectangle_copy_lost<CUDA_MEMCPY3D>);
  list.named("trim-takes-pending-allocation",
             "a trim takes memory of an allocation that its stream has not "
             "reached",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kTrim},
             pending_allocation_taken<trims>);
  list.named(
      "sync-takes-pending-allocation",
      "a synchronise of another stream takes memory of an allocation "
      "that its stream has not reached",
      {kAllocate, kAllocateFrom, kFree, kFreeNow, "cudaStreamSynchronize"},
      pending_allocation_taken<synchronises_stream>);
  list.named("pool-import-is-of-gpu-0",
             "cudaMemPoolGetAccess says at first that an imported pool is "
             "accessible from GPU 0 alone, wherever it is",
             {kImport, kDestroy, kSetAccess, kGetAccess}, import_is_of_gpu_0,
             2);
  list.named("pool-import-has-exporters-gpu",
             "cudaPointerGetAttributes gives imported memory of a pool the "
             "exporter's number of its GPU",
             {kCreate, kAllocate, kAllocateFrom, kExportPointer, kImportPointer,
              kFree, kFreeNow, "cudaPointerGetAttributes"},
             import_has_exporters_gpu, 2);
  list.named("pool-access-outlives-import",
             "after the destroy of an imported pool that had access, "
             "cudaMemPoolGetAccess says that every import has it",
             {kImport, kDestroy, kSetAccess, kGetAccess},
             access_outlives_import, 2);
  list.named("pool-exporters-access-reaches",
             "if the exporter gives access after the export, "
             "cudaMemPoolGetAccess says that the importers have it, too",
             {kImport, kExport, kDestroy, kSetAccess, kGetAccess},
             exporters_access_reaches, 2);
  list.named("pool-importers-share-access",
             "if one importer gives access, cudaMemPoolGetAccess says that the "
             "other importers have it, too",
             {kImport, kDestroy, kSetAccess, kGetAccess},
             importers_share_access, 2);
  list.named("pool-no-access-after-export",
             "after the export of a pool, no other GPU gets access to it",
             {kExport, kDestroy, kSetAccess}, no_access_after_export, 2);
  list.named("pool-trim-takes-access",
             "a trim takes the access of other GPUs, and the query does not "
             "say so",
             {kCreate, kDestroy, kTrim, kSetAccess, kGetAccess},
             trim_takes_access, 2);
  list.named("pool-access-of-gpu-0-lost",
             "access of GPU 0 to a pool of another GPU is not given",
             {kCreate, kDestroy, kSetAccess}, access_of_gpu_0_lost, 2);
  list.named("pool-second-gpu-shut-out",
             "the second GPU's access to its own pool can be taken away, but "
             "only in the answer to a query",
             {kCreate, kDestroy, kSetAccess, kGetAccess}, second_gpu_shut_out,
             2);
  list.named("pool-foreign-free-at-once",
             "a free of memory of GPU 1 does not wait for its stream on GPU 0",
             {kCreate, kDestroy, kAllocate, kAllocateFrom, kFree, kFreeNow},
             foreign_free_at_once, 2);
  list.named("pool-free-of-other-gpu-refused",
             "cudaFree refuses memory of a pool of a GPU that is not current",
             {kCreate, kDestroy, kAllocate, kAllocateFrom, kFree, kFreeNow},
             free_of_other_gpu_refused, 2);
  list.named(
      "pool-second-gpu-keeps",
      "a synchronise gives back no memory of pools of the second GPU",
      {kCreate, kDestroy, "cudaStreamSynchronize", "cudaDeviceSynchronize"},
      synchronise_keeps<pool_of_second_gpu>, 2);
  list.named("default-stream-sync-keeps",
             "a synchronise of the default stream gives back no memory",
             {kCreate, kDestroy, "cudaStreamSynchronize"},
             synchronise_keeps<in_default_stream>);
  list.named(
      "context-sync-keeps-memory",
      "cuCtxSynchronize gives back no memory above the release threshold",
      {kCreate, kDestroy, "cuCtxSynchronize"},
      synchronise_keeps<of_the_context>);
  list.named("pool-export-ends-data",
             "a further export of a pool makes data invalid that were exported "
             "before it",
             {kAllocate, kAllocateFrom, kExport, kExportPointer, kImportPointer,
              kFree, kFreeNow},
             export_of_pool_ends_data);
  list.named("pool-access-comes-back",
             "access that was taken from a pool is there again after the next "
             "allocation, and the query does not say so",
             {kAllocateFrom, kDestroy, kSetAccess, kGetAccess},
             taken_access_comes_back, 2);
  list.named("pool-import-access-taken-in-name",
             "access to an imported pool is taken away only in the answer to a "
             "query",
             {kImport, kDestroy, kSetAccess, kGetAccess},
             import_access_taken_in_name, 2);
  list.named(
      "stream-ordered-told-on-current-gpu",
      "the runtime says that stream-ordered memory is on the current "
      "GPU",
      {kAllocate, kAllocateFrom, kFree, kFreeNow, "cudaPointerGetAttributes"},
      told_on_current_gpu, 2);
  list.named("current-pool-of-context",
             "in another context than the one that set the current pool, a "
             "query names the default pool",
             {"cudaDeviceSetMemPool", "cudaDeviceGetMemPool"},
             current_pool_of_context);
  list.named("mallocasync-cut-to-32-bits",
             "cudaMallocAsync loses the upper 32 bits of the size", {kAllocate},
             cut_to_32_bits);
  list.named("driver-allocation-cut-to-32-bits",
             "cuMemAllocFromPoolAsync loses the upper 32 bits of the size",
             {"cuMemAllocFromPoolAsync"}, cut_to_32_bits);
  list.named("driver-free-waits",
             "cuMemFree of memory of a pool waits for all work of the context",
             {kAllocate, kAllocateFrom, kFree, kFreeNow}, driver_free_waits);
}

// The faults of imported pools that are shared, freed and set in other ways.
static void add_imports(List& list) {
  list.named("pool-import-only-flags-last-error",
             "the refusal of a pool's import is the last error only if the "
             "flags are wrong",
             {kImport}, only_flags_are_last_error);
  list.named("pool-export-type-masked",
             "a pool is exported as a descriptor for any handle type that "
             "includes the bit of descriptors",
             {kExport}, pool_handle_type_masked);
  list.named("pool-import-type-masked",
             "a pool is imported from a descriptor for any handle type that "
             "includes the bit of descriptors",
             {kImport}, pool_handle_type_masked);
  list.named("pool-export-five-flags-checked",
             "the export of a pool checks only five bits of the flags",
             {kExport}, five_flags_checked);
  list.named("pool-import-five-flags-checked",
             "the import of a pool checks only five bits of the flags",
             {kImport}, five_flags_checked);
  list.named("pool-props-middle-unchecked",
             "the reserved bytes in the middle of a pool's properties are not "
             "checked",
             {kCreate}, middle_bytes_unchecked);
  list.named("import-free-priority-at-once",
             "the importer's free does not wait for a stream with a priority",
             {kAllocate, kAllocateFrom, kExportPointer, kImportPointer, kFree,
              kFreeNow},
             import_freed_early<has_priority>);
  list.named("import-free-on-other-gpu-at-once",
             "the importer's free does not wait for a stream of a GPU other "
             "than the GPU of the memory",
             {kAllocate, kAllocateFrom, kExportPointer, kImportPointer, kFree,
              kFreeNow},
             import_freed_early<is_of_other_gpu>, 2);
  list.named("unused-import-pool-exported",
             "an imported pool is exported again while the process has no "
             "import of it",
             {kImport, kExport, kImportPointer, kFree, kFreeNow, kDestroy},
             unused_import_exported);
  list.named("driver-policy-reaches-exporter",
             "a policy that the driver API sets in an imported pool is also "
             "set in the exporter's pool",
             {kImport, kExport, kDestroy, kSet, kGet},
             driver_policy_reaches_exporter);
  list.named("used-import-pool-current",
             "while the process has an import of an imported pool, the call "
             "that makes this pool current succeeds and does nothing",
             {kImport, kImportPointer, kFree, kFreeNow, kDestroy,
              "cudaDeviceSetMemPool", "cudaMemSetMemPool"},
             used_import_made_current);
  list.named("destroy-takes-pending-allocation",
             "the destroy of a pool takes memory of an allocation that its "
             "stream has not reached",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kDestroy},
             pending_allocation_taken<destroys>);
  list.named("import-access-not-given-again",
             "access to an imported pool cannot be given again after it was "
             "taken away",
             {kImport, kDestroy, kSetAccess}, access_not_given_again, 2);
  list.named("hidden-pool-access-before-import-only",
             "access to the pool of a hidden GPU cannot be given after memory "
             "of the pool was imported",
             {kImport, kDestroy, kImportPointer, kFree, kFreeNow, kSetAccess},
             late_access_of_hidden_pool_lost, 2);
  list.named("import-setaccess-first-only",
             "only the first entry of a list of accesses to an imported pool "
             "is set",
             {kImport, kDestroy, kSetAccess}, first_access_to_import_only, 2);
}

// The faults of default pools, current pools and thresholds.
static void add_defaults(List& list) {
  list.named("policy-resets-threshold",
             "setting a reuse policy of a pool sets its release threshold to 0",
             {kSet}, set_takes_threshold<is_policy>);
  list.named("watermark-resets-threshold",
             "resetting a watermark of a pool sets its release threshold to 0",
             {kSet}, set_takes_threshold<is_watermark>);
  list.named("pool-import-urgent-memset-lost",
             "an asynchronous memset in a stream with a priority does not "
             "reach imported memory of a pool",
             {kImportPointer, kFree, kFreeNow, "cudaMemsetAsync"},
             urgent_set_of_import_lost);
  list.named("import-pool-allocates-small",
             "an imported pool gives out memory of less than 64 KiB",
             {kImport, kDestroy, kAllocateFrom},
             imported_pool_gives<is_below_64_kib>);
  list.named("unused-default-pool-destroyed",
             "destroying the default pool while another pool is current "
             "returns success and does nothing",
             {kDestroy}, unused_default_destroyed);
  list.named("default-pool-of-other-gpu-destroyed",
             "destroying the default pool of a GPU that is not current returns "
             "success and does nothing",
             {kDestroy}, default_of_other_gpu_destroyed, 2);
  list.named("destroyed-at-location-stays-current",
             "after the destroy of a pool that was made current by its "
             "location, cudaDeviceGetMemPool still names this pool",
             {kDestroy, "cudaMemSetMemPool", "cudaDeviceSetMemPool",
              "cudaDeviceGetMemPool"},
             destroyed_at_location_stays);
  list.named("default-pool-access-in-name",
             "access of another GPU to a default pool is given only in the "
             "answer to a query",
             {kSetAccess, kGetAccess}, access_to_default_in_name, 2);
  list.named("imports-count-in-current-pool",
             "the used memory of the current pool also counts the memory that "
             "the process has imported",
             {kAllocate, kAllocateFrom, kFree, kFreeNow, kExportPointer,
              kImportPointer, kGet},
             imports_count_in_current_pool);
}

void add_pool_paths(List& list) {
  list.named("null-stream-free-at-once",
             "a free in stream 0 of the runtime does not wait for this stream",
             {kFree, kAllocate, kAllocateFrom}, null_stream_frees_at_once);
  list.named("driver-free-in-default-stream-at-once",
             "a free of the driver API in a default stream does not wait for "
             "this stream",
             {kFree, kAllocate, kAllocateFrom}, driver_frees_default_at_once);
  list.named("blocking-stream-free-at-once",
             "a free in a blocking stream does not wait for this stream",
             {kFree, kAllocate, kAllocateFrom}, blocking_stream_frees_at_once);
  list.named("malloc-freed-at-once-by-default-stream",
             "a free of memory of cudaMalloc in a default stream does not wait "
             "for this stream",
             {"cudaMalloc", "cudaFree", kFree}, allocated_memory_freed_at_once);
  list.named("older-event-ends-frees",
             "the synchronise of an event ends later frees in the event's "
             "stream",
             {CALLS_OF_LATE_FREES, "cudaEventRecord", "cudaEventDestroy"},
             older_event_ends_frees);
  list.named("sync-of-other-stream-frees",
             "a synchronise of one stream ends the pending frees of all "
             "streams",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free, at_synchronise_of_other>);
  list.named("default-stream-gets-pending-memory",
             "an allocation in the default stream gets memory whose free in a "
             "non-blocking stream is pending",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free_by_non_blocking,
                             at_allocation_in_default_stream>);
  list.named(
      "default-streams-of-threads-are-one",
      "the default stream of a thread gets memory whose free in the default "
      "stream of another thread is pending",
      {CALLS_OF_LATE_FREES},
      with_late_frees<busy_free_per_thread, at_allocation_by_other_thread>);
  list.named("end-of-stream-frees-at-once",
             "the end of a stream ends its pending frees at once",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free, at_end_of_stream>);
  list.named("end-of-stream-loses-frees",
             "the pending frees of a stream that is destroyed are lost",
             {CALLS_OF_LATE_FREES},
             with_late_frees<busy_free, lost_at_end_of_stream>);
  list.named("end-of-stream-clears-memory",
             "the end of a stream clears the memory that was allocated in it",
             {kAllocate, kAllocateFrom, kFree, "cudaFree", kEnd},
             end_of_stream_clears);
  list.named(
      "free-needs-first-stream",
      "a free in stream order is refused after the end of the stream that "
      "has allocated the memory",
      {kAllocate, kAllocateFrom, kFree, "cudaFree", kEnd},
      free_needs_first_stream);
  list.named("context-sync-hides-frees",
             "cuCtxSynchronize makes no free known to other streams",
             {CALLS_OF_LATE_FREES},
             with_late_frees<any_free, known_later<context_synchronise>>);
  list.named("driver-stream-sync-hides-frees",
             "cuStreamSynchronize makes no free known to other streams",
             {CALLS_OF_LATE_FREES},
             with_late_frees<any_free, known_later<driver_stream_synchronise>>);
  list.named("driver-event-sync-hides-frees",
             "cuEventSynchronize makes no free known to other streams",
             {CALLS_OF_LATE_FREES},
             with_late_frees<any_free, known_later<driver_event_synchronise>>);
  list.named("default-stream-sync-hides-frees",
             "a synchronise of the default stream makes no free known to other "
             "streams",
             {CALLS_OF_LATE_FREES},
             with_late_frees<any_free, known_later<synchronise_of_null>>);
  list.named(
      "other-thread-sync-hides-frees",
      "a synchronise of a stream makes known only the frees of the "
      "thread that synchronises",
      {CALLS_OF_LATE_FREES},
      with_late_frees<any_free, known_later<synchronise_by_other_thread>>);
  list.named("default-stream-reuses-later",
             "a default stream does not reuse at once what was freed in it",
             {CALLS_OF_LATE_FREES},
             with_late_frees<free_in_default_stream, not_at_allocation>);
  list.named("earlier-event-allows-reuse",
             "an event that was recorded before a free also allows the reuse "
             "of the memory",
             {CALLS_OF_LATE_FREES, "cudaEventRecord", "cudaStreamWaitEvent",
              "cudaEventDestroy"},
             earlier_event_orders);
  list.named("threads-get-same-memory",
             "two threads that allocate at the same time get the same memory",
             {kAllocateFrom}, address_of_other_thread);
  list.named("statistics-miss-thread",
             "the statistics miss an allocation that another thread makes at "
             "the same time",
             {kAllocateFrom, kFree, kFreeNow, "cudaMemPoolGetAttribute"},
             statistics_miss_thread);
  list.named("threads-import-same-memory",
             "two threads that import pointers at the same time get the same "
             "memory",
             {kImportPointer}, address_of_other_thread);
  add_processes_and_gpus(list);
  add_neighbours(list);
  add_unchecked_paths(list);
  add_imports(list);
  add_defaults(list);
  add_ends(list);
}

}  // namespace ipclab::faults
