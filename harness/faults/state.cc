// Bugs in the state that a driver keeps: a call for one object, thread, API,
// context or GPU that also changes another one; counts that are wrong from the
// third call on; values that stay although they should change.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

// --- opened memory -----------------------------------------------------------

// The program gets the existing mapping, but the open is not counted.
int give_uncounted(Call& open, void* address) {
  *open.at<void**>(0) = address;
  open.fired();
  return kSuccess;
}

int third_open_not_counted(Call& call) {
  void* const known = is_open_call(call) ? already_open(call) : nullptr;
  return known != nullptr && opened.get(known).count >= 2
             ? give_uncounted(call, known)
             : call.proceed();
}

int open_by_driver_not_counted(Call& call) {
  void* const known =
      is_open_call(call) && !call.is_runtime() ? already_open(call) : nullptr;
  return known != nullptr ? give_uncounted(call, known) : call.proceed();
}

int close_by_driver_lost(Call& call) {
  if (call.is_runtime()) return call.proceed();
  call.fired();
  return kSuccess;
}

int close_of_other_thread_lost(Call& call) {
  if (is_open_call(call)) return call.proceed();
  const Opened one = opened.get(call.at<void*>(0));
  if (one.count == 0 || one.thread == this_thread()) return call.proceed();
  call.fired();
  return kSuccess;
}

int mapping_ends_with_thread(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_open_call(call)) return code;
  void* const address = *call.at<void**>(0);
  at_thread_end([address, thread = this_thread()] {
    const Opened one = opened.get(address);
    if (one.count == 0 || one.thread != thread) return;
    // This step does not run inside a call, so it must not call the wrapper.
    static const auto close =
        reinterpret_cast<decltype(cudaIpcCloseMemHandle)*>(
            resolve_runtime("cudaIpcCloseMemHandle"));
    if (close(address) != cudaSuccess) return;
    count_close(address);
    note_fired("cudaIpcOpenMemHandle");
  });
  return code;
}

// The handle of an allocation ends with the thread that has exported it.
int handle_ends_with_thread(Call& call) {
  if (is_open_call(call)) {
    const auto& handle = call.at<cudaIpcMemHandle_t>(1);
    return told("ended-" + key_of_handle(handle), 0) != 0 ? refused(call)
                                                          : call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::string key = key_of_handle(*call.at<cudaIpcMemHandle_t*>(0));
  tell_processes("ended-" + key, 0);  // an earlier export gave the same bytes
  at_thread_end([key] { tell_processes("ended-" + key, 1); });
  return code;
}

// The last close of one mapping also closes other mappings.
template <bool (*together)(const Opened& closed, const Opened& other)>
int close_ends_others(Call& call) {
  if (is_open_call(call)) return call.proceed();
  const Opened one = opened.get(call.at<void*>(0));
  const int code = call.proceed();
  if (code != kSuccess || one.count != 1) return code;
  for (const auto& [address, other] : opened.all()) {
    if (!together(one, other)) continue;
    DRIVER_CALL(cuCtxPushCurrent)(other.context);
    for (int i = 0; i < other.count; ++i)
      if (DRIVER_CALL(cuIpcCloseMemHandle)(
              reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS)
        call.fired();
    CUcontext popped = nullptr;
    DRIVER_CALL(cuCtxPopCurrent)(&popped);
    opened.erase(address);
  }
  return code;
}
bool are_of_one_context(const Opened& one, const Opened& other) {
  return one.context == other.context;
}
bool are_of_one_handle(const Opened& one, const Opened& other) {
  return one.handle == other.handle && one.context != other.context;
}

// A handle is looked up by only one half of its bytes.
int found_by_half(Call& call) {
  if (!is_open_call(call)) return call.proceed();
  constexpr size_t kHalf = sizeof(cudaIpcMemHandle_t) / 2;
  auto& handle = call.at<cudaIpcMemHandle_t>(1);
  for (const auto& [address, one] : opened.all()) {
    const bool first = std::memcmp(&one.bytes, &handle, kHalf) == 0;
    const bool second = std::memcmp(one.bytes.reserved + kHalf,
                                    handle.reserved + kHalf, kHalf) == 0;
    if (first == second || one.context != current_context()) continue;
    handle = one.bytes;
    call.fired();
    break;
  }
  return call.proceed();
}

int third_process_refused(Call& call) {
  static const bool early =
      first_of_all_processes("one") || first_of_all_processes("two");
  return early ? call.proceed() : refused(call);
}

// An open makes GPU 0 the current device.
int open_changes_device(Call& open) {
  int device = 0;
  const int code = open.proceed();
  if (code != kSuccess || cudaGetDevice(&device) != cudaSuccess || device == 0)
    return code;
  cudaSetDevice(0);
  open.fired();
  return code;
}

int open_by_other_thread_not_counted(Call& call) {
  void* const known = is_open_call(call) ? already_open(call) : nullptr;
  return known != nullptr && opened.get(known).thread != this_thread()
             ? give_uncounted(call, known)
             : call.proceed();
}

int counts_to_255(Call& call) {
  void* const known = is_open_call(call) ? already_open(call) : nullptr;
  return known != nullptr && opened.get(known).count >= 255
             ? give_uncounted(call, known)
             : call.proceed();
}

int second_open_leaks(Call& call) {
  const bool again = is_open_call(call) && already_open(call) != nullptr;
  const int code = call.proceed();
  void* lost = nullptr;
  if (code == kSuccess && again && cudaMalloc(&lost, 64 << 10) == cudaSuccess)
    call.fired();
  return code;
}

// A refused close lowers the count of other memory that is open.
int refused_close_closes_another(Call& call) {
  const int code = call.proceed();
  if (is_open_call(call) || code == kSuccess) return code;
  for (const auto& one : opened.all()) {
    if (one.second.context != current_context()) continue;
    if (DRIVER_CALL(cuIpcCloseMemHandle)(
            reinterpret_cast<CUdeviceptr>(one.first)) == CUDA_SUCCESS) {
      count_close(one.first);
      call.fired();
    }
    break;
  }
  return code;
}

// The last close of an allocation unmaps the allocation that was opened last.
int close_takes_last_opened(Call& call) {
  static Table<void*, void*> instead;
  static std::mutex mutex;
  static auto& order = *new std::vector<void*>;
  const std::lock_guard lock(mutex);
  if (is_open_call(call)) {
    const int code = call.proceed();
    if (code == kSuccess && opened.get(*call.at<void**>(0)).count == 1)
      order.push_back(*call.at<void**>(0));
    return code;
  }
  void*& address = call.at<void*>(0);
  if (instead.has(address)) {
    void* const real = instead.get(address);
    instead.erase(address);
    address = real;
  } else if (order.size() > 1 && order.back() != address &&
             opened.get(address).count == 1 &&
             opened.get(order.back()).count == 1 &&
             opened.get(order.back()).context == opened.get(address).context) {
    instead.put(order.back(), address);
    address = order.back();
    call.fired();
  }
  order.erase(std::remove(order.begin(), order.end(), address), order.end());
  return call.proceed();
}

// --- events ------------------------------------------------------------------

// Proceeds with a call about events. If the call destroys an event or a stream,
// the table forgets it: a later one can have the same number.
template <class Key, class Value>
int noted_end(Call& call, Table<Key, Value>& table) {
  if (call.is("cudaStreamDestroy")) {
    if constexpr (std::is_same_v<Key, cudaStream_t>)
      table.erase(call.at<cudaStream_t>(0));
    return call.proceed();
  }
  if constexpr (std::is_same_v<Key, cudaEvent_t>)
    if (call.is("cudaEventDestroy")) table.erase(call.at<cudaEvent_t>(0));
  return call.proceed();
}

int default_stream_records_early(Call& call) {
  if (shared_event(call) == nullptr || !is_default(call.at<cudaStream_t>(1)))
    return call.proceed();
  call.at<cudaStream_t>(1) = private_stream();
  call.fired();
  return call.proceed();
}

int default_stream_never_waits(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) ||
      !is_default(call.at<cudaStream_t>(0)))
    return call.proceed();
  return no_wait(call);
}

int stream_waits_once(Call& call) {
  static Table<std::pair<cudaStream_t, cudaEvent_t>> waited;
  const bool ends_stream = call.is("cudaStreamDestroy");
  if (ends_stream || call.is("cudaEventDestroy")) {
    void* const gone = call.at<void*>(0);
    for (const auto& [key, unused] : waited.all())
      if (key.first == gone || key.second == gone) waited.erase(key);
    return ends_stream ? call.proceed() : call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const std::pair<cudaStream_t, cudaEvent_t> key(call.at<cudaStream_t>(0),
                                                 event);
  if (waited.has(key)) return no_wait(call);
  waited.put(key);
  return call.proceed();
}

int second_stream_never_waits(Call& call) {
  static Table<cudaEvent_t, cudaStream_t> first;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return noted_end(call, first);
  const auto stream = call.at<cudaStream_t>(0);
  if (first.get(event, stream) != stream) return no_wait(call);
  first.put(event, stream);
  return call.proceed();
}

// An event that was complete once counts as complete forever, whatever is
// recorded later.
int stays_ready(Call& call) {
  static Table<cudaEvent_t> ready;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return noted_end(call, ready);
  if (ready.has(event)) return no_wait(call);
  const int code = call.proceed();
  if (code == kSuccess) ready.put(event);
  return code;
}

// Processes that open an event, except the first two, get an event that no
// process records.
int third_process_unconnected(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaIpcOpenEventHandle")) return code;
  static Table<std::string, bool> known;  // is it connected?
  cudaEvent_t& event = *call.at<cudaEvent_t*>(0);
  const std::string key = event_keys.get(event);
  if (!known.has(key))
    known.put(key, first_of_all_processes("one-" + key) ||
                       first_of_all_processes("two-" + key));
  if (known.get(key)) return code;
  cudaEventDestroy(event);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  call.fired();
  return code;
}

int second_export_of_other_event(Call& call) {
  static Table<cudaEvent_t> exported;
  static cudaEvent_t other = nullptr;
  if (call.is("cudaEventDestroy")) {
    exported.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  cudaEvent_t& event = call.at<cudaEvent_t>(1);
  const bool again = exported.has(event);
  exported.put(event);
  if (again &&
      (other != nullptr ||
       cudaEventCreateWithFlags(
           &other, kInterprocess | cudaEventDisableTiming) == cudaSuccess)) {
    event = other;
    call.fired();
  }
  return call.proceed();
}

int record_256_lost(Call& call) {
  static Table<cudaEvent_t, int> records;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return noted_end(call, records);
  records.put(event, records.get(event) + 1);
  return records.get(event) % 256 == 0 ? no_wait(call) : call.proceed();
}

// A wait uses the newest record when the stream reaches the wait, instead of
// the newest record at the time of the call.
constexpr auto kTurn = std::chrono::seconds(6);  // then the wait ends
struct Turn {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false, may_go = false;
};
void CUDART_CB wait_for_turn(void* data) {
  Turn& turn = *static_cast<Turn*>(data);
  std::unique_lock lock(turn.mutex);
  turn.reached = true;
  turn.changed.notify_all();
  turn.changed.wait_for(lock, kTurn, [&] { return turn.may_go; });
}
int waits_for_latest(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  auto* const turn = new Turn;  // never deleted: its thread uses it
  using Launch = cudaError_t(cudaStream_t, cudaHostFn_t, void*);
  static const auto launch =
      reinterpret_cast<Launch*>(resolve_runtime("cudaLaunchHostFunc"));
  if (launch(call.at<cudaStream_t>(0), wait_for_turn, turn) != cudaSuccess)
    return call.proceed();
  call.fired();
  int device = 0;
  cudaGetDevice(&device);
  std::thread([turn, event, device] {
    const auto query = reinterpret_cast<decltype(cudaEventQuery)*>(
        resolve_runtime("cudaEventQuery"));
    cudaSetDevice(device);
    std::unique_lock lock(turn->mutex);
    turn->changed.wait_for(lock, kTurn, [&] { return turn->reached; });
    lock.unlock();
    // Polls, because this fault must not call the driver's own wait.
    const auto until = std::chrono::steady_clock::now() + kTurn;
    while (query(event) == cudaErrorNotReady &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
    turn->may_go = true;
    turn->changed.notify_all();
  }).detach();
  return kSuccess;
}

// A wait that can be ended early.
struct Cancellable {
  Turn turn;
  cudaEvent_t reached = nullptr;  // complete when the wait has ended
  std::atomic<bool> cancelled{false};
};
// Another stream does the wait instead. The call's stream continues when that
// wait ends, when it is cancelled, or after `most`.
template <class Note>
int cancellable(Call& call, Note note, std::chrono::seconds most) {
  using Launch = cudaError_t(cudaStream_t, cudaHostFn_t, void*);
  static const auto launch =
      reinterpret_cast<Launch*>(resolve_runtime("cudaLaunchHostFunc"));
  auto* const wait = new Cancellable;  // never deleted: its thread uses it
  cudaStream_t other = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&wait->reached, cudaEventDisableTiming);
  const cudaStream_t stream = std::exchange(call.at<cudaStream_t>(0), other);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  cudaEventRecord(wait->reached, other);
  if (launch(stream, wait_for_turn, &wait->turn) != cudaSuccess) return code;
  note(wait);
  int device = 0;
  cudaGetDevice(&device);
  const char* const function = call.function().name;
  std::thread([wait, device, most, function] {
    const auto query = reinterpret_cast<decltype(cudaEventQuery)*>(
        resolve_runtime("cudaEventQuery"));
    cudaSetDevice(device);
    const auto until = std::chrono::steady_clock::now() + most;
    while (!wait->cancelled && query(wait->reached) == cudaErrorNotReady &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!wait->cancelled && query(wait->reached) == cudaErrorNotReady)
      note_fired(function);
    const std::lock_guard lock(wait->turn.mutex);
    wait->turn.may_go = true;
    wait->turn.changed.notify_all();
  }).detach();
  return code;
}

// All waits for an event end when it is destroyed. Not only the last one: the
// driver may run the host functions of all streams in one thread.
int destroy_cancels_waits(Call& call) {
  static Table<Cancellable*, cudaEvent_t> waits;
  if (call.is("cudaEventDestroy")) {
    for (const auto& [wait, event] : waits.all()) {
      if (event != call.at<cudaEvent_t>(0)) continue;
      waits.erase(wait);
      if (cudaEventQuery(wait->reached) != cudaErrorNotReady) continue;
      cudaGetLastError();
      wait->cancelled = true;
      call.fired();
    }
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  return cancellable(
      call, [&](Cancellable* wait) { waits.put(wait, event); }, kTurn);
}

// The wait of a stream for an imported event or for a word ends after a second.
int wait_ends_after_a_second(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (!call.is("cuStreamWaitValue32") &&
      (event == nullptr || !is_imported(event)))
    return call.proceed();
  return cancellable(
      call, [](Cancellable*) {}, std::chrono::seconds(1));
}

int host_wait_ends_after_a_second(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  cudaError_t code = cudaErrorNotReady;
  while ((code = cudaEventQuery(event)) == cudaErrorNotReady) {
    cudaGetLastError();
    if (std::chrono::steady_clock::now() > until) return no_wait(call);
  }
  return code;
}

// Waits for and queries of an event have no effect in a thread that has not
// opened this event.
int nothing_in_other_threads(Call& call) {
  static Table<cudaEvent_t, pid_t> openers;
  if (call.is("cudaIpcOpenEventHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) openers.put(*call.at<cudaEvent_t*>(0), gettid());
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) || openers.get(event) == gettid())
    return call.proceed();
  return no_wait(call);
}

int record_with_flags_lost(Call& call) {
  return shared_event(call) == nullptr ? call.proceed() : no_wait(call);
}

// After an importer has recorded an event, its host waits and queries count the
// event as complete.
int own_record_unseen(Call& call) {
  static Table<cudaEvent_t> recorded;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return noted_end(call, recorded);
  if (call.is("cudaEventRecord")) {
    recorded.put(event);
    return call.proceed();
  }
  return recorded.has(event) ? no_wait(call) : call.proceed();
}

int second_event_never_waited(Call& call) {
  static Table<cudaStream_t, cudaEvent_t> first;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return noted_end(call, first);
  const auto stream = call.at<cudaStream_t>(0);
  if (first.get(stream, event) != event) return no_wait(call);
  first.put(stream, event);
  return call.proceed();
}

// Kinds of streams that never wait for an imported event, or record too early.
bool is_per_thread(cudaStream_t stream) {
  return stream == cudaStreamPerThread;
}
unsigned flags_of(cudaStream_t stream) {
  static const auto ask =
      reinterpret_cast<cudaError_t (*)(cudaStream_t, unsigned*)>(
          resolve_runtime("cudaStreamGetFlags"));
  unsigned flags = 0;
  ask(stream, &flags);
  return flags;
}
bool is_non_blocking(cudaStream_t stream) {
  return !is_default(stream) && !is_per_thread(stream) &&
         (flags_of(stream) & cudaStreamNonBlocking) != 0;
}
bool is_blocking(cudaStream_t stream) {
  return !is_default(stream) && !is_per_thread(stream) &&
         (flags_of(stream) & cudaStreamNonBlocking) == 0;
}
template <bool (*concerned)(cudaStream_t)>
int such_streams_never_wait(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) ||
      !concerned(call.at<cudaStream_t>(0)))
    return call.proceed();
  return no_wait(call);
}
template <bool (*concerned)(cudaStream_t)>
int such_streams_record_early(Call& call) {
  if (shared_event(call) == nullptr || !concerned(call.at<cudaStream_t>(1)))
    return call.proceed();
  call.at<cudaStream_t>(1) = private_stream();
  call.fired();
  return call.proceed();
}

// A record covers only the work up to the mark of its stream.
int record_of_mark(Call& record) {
  const cudaEvent_t mark = mark_of(record.at<cudaStream_t>(1));
  cudaStreamWaitEvent(private_stream(), mark, 0);
  record.at<cudaStream_t>(1) = private_stream();
  record.fired();
  return record.proceed();
}

int record_before_last_kernel(Call& call) {
  static Table<cudaStream_t> marked;
  if (call.is("cudaLaunchKernel")) {
    const auto stream = call.value<cudaStream_t>(kStream);
    cudaEventRecord(mark_of(stream), stream);
    marked.put(stream);
    return call.proceed();
  }
  return shared_event(call) != nullptr && marked.has(call.at<cudaStream_t>(1))
             ? record_of_mark(call)
             : noted_end(call, marked);
}

int record_skips_copies(Call& call) {
  static Table<cudaStream_t> copied;
  if (call.is("cudaLaunchKernel")) {
    const auto stream = call.value<cudaStream_t>(kStream);
    const int code = call.proceed();
    cudaEventRecord(mark_of(stream), stream);
    copied.erase(stream);
    return code;
  }
  if (call.is("cudaMemcpyAsync") || call.is("cudaMemsetAsync")) {
    copied.put(call.value<cudaStream_t>(kStream));
    return call.proceed();
  }
  return shared_event(call) != nullptr && copied.has(call.at<cudaStream_t>(1))
             ? record_of_mark(call)
             : noted_end(call, copied);
}

// Work of a stream begins at the mark of the stream, in another stream,
// although the stream has to wait for something after the mark.
int starts_at_mark(Call& call, cudaStream_t& stream) {
  const cudaStream_t own = stream;
  cudaStreamWaitEvent(private_stream(), mark_of(own), 0);
  stream = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaEvent_t done = nullptr;
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  cudaEventRecord(done, private_stream());
  cudaStreamWaitEvent(own, done, 0);
  return code;
}

// Marks a stream before it waits for an imported event.
int marked_wait(Call& call, Table<cudaStream_t>& waited) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return noted_end(call, waited);
  const auto stream = call.at<cudaStream_t>(0);
  cudaEventRecord(mark_of(stream), stream);
  waited.put(stream);
  return call.proceed();
}

// The copies or memsets between a wait and the next kernel do not wait.
int wait_holds_kernels_only(Call& call) {
  static Table<cudaStream_t> waited;
  if (call.is("cudaLaunchKernel")) {
    waited.erase(call.value<cudaStream_t>(kStream));
    return call.proceed();
  }
  if (call.is("cudaMemcpyAsync") || call.is("cudaMemsetAsync")) {
    auto& stream = call.value<cudaStream_t>(kStream);
    return waited.has(stream) && is_busy(stream) ? starts_at_mark(call, stream)
                                                 : call.proceed();
  }
  return marked_wait(call, waited);
}

// In an exporter that has not recorded an event itself, host waits and queries
// count the event as complete.
int exporter_sees_own_records_only(Call& call) {
  static Table<cudaEvent_t> recorded;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return noted_end(call, recorded);
  if (call.is("cudaEventRecord")) {
    recorded.put(event);
    return call.proceed();
  }
  return recorded.has(event) ? call.proceed() : no_wait(call);
}

int record_while_pending_lost(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const bool is_pending = cudaEventQuery(event) == cudaErrorNotReady;
  cudaGetLastError();
  return is_pending ? no_wait(call) : call.proceed();
}

int second_of_elapsed_unchecked(Call& call) {
  if (!call.is("cudaEventElapsedTime")) return call.proceed();
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotReady ||
      events.has(call.at<cudaEvent_t>(1)) ||
      !events.has(call.at<cudaEvent_t>(2)))
    return code;
  if (call.is_runtime()) cudaGetLastError();
  *call.at<float*>(0) = 0.5f;
  return no_wait(call);
}

int timing_accepted_with_blocking(Call& call) {
  unsigned& flags = call.at<unsigned>(1);
  if (flags == (cudaEventInterprocess | cudaEventBlockingSync)) {
    flags |= cudaEventDisableTiming;
    call.fired();
  }
  return call.proceed();
}

// The first graph after a wait does not wait for the event.
int wait_holds_no_graphs(Call& call) {
  static Table<cudaStream_t> waited;
  if (call.is("cudaGraphLaunch")) {
    auto& stream = call.value<cudaStream_t>(kStream);
    return waited.erase(stream) && is_busy(stream)
               ? starts_at_mark(call, stream)
               : call.proceed();
  }
  return marked_wait(call, waited);
}

int record_skips_graphs(Call& call) {
  static Table<cudaStream_t> marked;
  if (call.is("cudaGraphLaunch")) {
    const auto stream = call.value<cudaStream_t>(kStream);
    cudaEventRecord(mark_of(stream), stream);
    marked.put(stream);
    return call.proceed();
  }
  return shared_event(call) != nullptr && marked.has(call.at<cudaStream_t>(1))
             ? record_of_mark(call)
             : noted_end(call, marked);
}

// --- virtual memory management -----------------------------------------------

bool shut_out(CUdeviceptr begin, size_t bytes) {
  return allow(begin, bytes, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

int access_told_at_begin_only(Call& call) {
  if (!call.is("cuMemGetAccess")) return call.proceed();
  const int code = call.proceed();
  auto& flags = *call.at<unsigned long long*>(0);
  if (code != kSuccess || flags == 0 || mappings.has(call.at<CUdeviceptr>(2)))
    return code;
  flags = 0;
  call.fired();
  return code;
}

int access_of_aliases(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  const Mapped one = mappings.get(begin);
  for (const auto& [address, other] : mappings.all())
    if (one.bytes != 0 && address != begin && other.chunk == one.chunk &&
        DRIVER_CALL(cuMemSetAccess)(address, other.bytes,
                                    call.at<const CUmemAccessDesc*>(2),
                                    call.at<size_t>(3)) == CUDA_SUCCESS)
      call.fired();
  return code;
}

int unmap_shuts_out_neighbours(Call& call) {
  const bool unmaps = call.is("cuMemUnmap");
  const auto begin = unmaps ? call.at<CUdeviceptr>(0) : 0;
  const auto end = unmaps ? begin + call.at<size_t>(1) : 0;
  const int code = call.proceed();
  if (code != kSuccess || !unmaps) return code;
  for (const auto& [address, other] : mappings.all())
    if ((address == end || address + other.bytes == begin) &&
        shut_out(address, other.bytes))
      call.fired();
  return code;
}

int access_ends_with_thread(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  const auto bytes = call.at<size_t>(1);
  const int order = mappings.get(begin).order;
  at_thread_end([=] {
    // Later there can be another mapping.
    if (mappings.get(begin).order == order && shut_out(begin, bytes))
      note_fired("cuMemSetAccess");
  });
  return code;
}

// --- pools -------------------------------------------------------------------

// The maximal size of a pool limits each allocation, not the sum of all
// allocations.
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

int trim_resets_threshold(Call& call) {
  const int code = call.proceed();
  const auto pool = call.at<cudaMemPool_t>(0);
  cuuint64_t bytes = 0;
  if (code != kSuccess ||
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &bytes) !=
          cudaSuccess ||
      bytes == 0)
    return code;
  bytes = 0;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &bytes);
  call.fired();
  return code;
}

int watermarks_reset_together(Call& call) {
  const int code = call.proceed();
  const auto which = call.at<cudaMemPoolAttr>(1);
  const bool used = which == cudaMemPoolAttrUsedMemHigh;
  if (code != kSuccess || (!used && which != cudaMemPoolAttrReservedMemHigh))
    return code;
  cuuint64_t zero = 0;
  if (cudaMemPoolSetAttribute(
          call.at<cudaMemPool_t>(0),
          used ? cudaMemPoolAttrReservedMemHigh : cudaMemPoolAttrUsedMemHigh,
          &zero) == cudaSuccess)
    call.fired();
  return code;
}

int export_resets_policies(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
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
  return code;
}

// Imports that a fault has freed; when the program frees them later, they no
// longer exist.
Table<void*> gone;

bool was_freed_by_fault(Call& call) {
  return frees(call) && gone.erase(call.at<void*>(0));
}

// Proceeds and updates the tables. A new import can be where another one was.
int noted_imports(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolImportPointer"))
    gone.erase(*call.at<void**>(0));
  return code;
}

void free_imports(Call& call, bool (*chosen)(cudaMemPool_t, cudaMemPool_t),
                  cudaMemPool_t pool) {
  cudaDeviceSynchronize();
  for (const auto& [address, block] : blocks.all())
    if (block.imported && chosen(block.pool, pool) &&
        cudaFree(address) == cudaSuccess) {
      blocks.erase(address);
      gone.put(address);
      call.fired();
    }
}

int free_ends_other_imports(Call& call) {
  if (was_freed_by_fault(call)) return kSuccess;
  const Block one = frees(call) ? blocks.get(call.at<void*>(0)) : Block{};
  const int code = noted_imports(call);
  if (code == kSuccess && one.imported)
    free_imports(
        call, [](cudaMemPool_t a, cudaMemPool_t b) { return a == b; },
        one.pool);
  return code;
}

int destroy_ends_other_pools(Call& call) {
  if (was_freed_by_fault(call)) return kSuccess;
  const bool destroys = call.is("cudaMemPoolDestroy") &&
                        imported_pools.has(call.at<cudaMemPool_t>(0));
  const int code = noted_imports(call);
  if (code == kSuccess && destroys)
    free_imports(
        call, [](cudaMemPool_t a, cudaMemPool_t b) { return a != b; },
        call.at<cudaMemPool_t>(0));
  return code;
}

int second_export_of_other_pool(Call& call) {
  static Table<cudaMemPool_t> exported;
  if (call.is("cudaMemPoolDestroy")) {
    exported.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  auto& pool = call.at<cudaMemPool_t>(1);
  if (call.at<cudaMemAllocationHandleType>(2) !=
      cudaMemHandleTypePosixFileDescriptor)
    return call.proceed();
  if (exported.has(pool)) {
    cudaMemPoolProps wanted{};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location = {cudaMemLocationTypeDevice, 0};
    wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    cudaMemPool_t other = nullptr;
    if (cudaMemPoolCreate(&other, &wanted) == cudaSuccess) {
      pool = other;
      call.fired();
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess) exported.put(pool);
  return code;
}

int set_pool_resets_other_gpus(Call& call) {
  const int code = call.proceed();
  int devices = 0;
  if (code != kSuccess ||
      DRIVER_CALL(cuDeviceGetCount)(&devices) != CUDA_SUCCESS)
    return code;
  for (int device = 0; device < devices; ++device) {
    cudaMemPool_t own = nullptr, preset = nullptr;
    if (device == call.at<int>(0) ||
        cudaDeviceGetMemPool(&own, device) != cudaSuccess ||
        cudaDeviceGetDefaultMemPool(&preset, device) != cudaSuccess ||
        own == preset)
      continue;
    cudaDeviceSetMemPool(device, preset);
    call.fired();
  }
  return code;
}

// --- errors ------------------------------------------------------------------

int error_of_other_thread(Call& call) {
  static std::mutex mutex;
  static int last = kSuccess;
  static int whose = 0;
  const int code = call.proceed();
  if (!call.is_runtime()) return code;
  const std::lock_guard lock(mutex);
  if (call.is("cudaGetLastError")) {
    if (code != kSuccess || last == kSuccess || whose == this_thread())
      return code;
    call.fired();
    return std::exchange(last, kSuccess);
  }
  if (code != kSuccess && code != cudaErrorNotReady) {
    last = code;
    whose = this_thread();
  }
  return code;
}

// While the runtime keeps an error, it does not keep the next error.
int first_refusal_stays(Call& call) {
  thread_local int kept = kSuccess;
  const int code = call.proceed();
  if (!call.is_runtime()) return code;
  if (call.is("cudaGetLastError")) {
    const int first = std::exchange(kept, kSuccess);
    if (first == kSuccess || first == code) return code;
    call.fired();
    return first;
  }
  if (code != kSuccess && code != cudaErrorNotReady && kept == kSuccess)
    kept = code;
  return code;
}

int success_clears_error(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.is_runtime() && !call.is("cudaGetLastError") &&
      !call.is("cudaPeekAtLastError") && cudaGetLastError() != cudaSuccess)
    call.fired();
  return code;
}

int driver_refusal_told_by_runtime(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.is_runtime()) return code;
  call.fired();
  cudaIpcCloseMemHandle(nullptr);  // refused; the runtime keeps the code
  return code;
}

}  // namespace

void add_state(List& list) {
  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
  list.named("open-third-not-counted",
             "a third open of a handle does not raise the reference count",
             {kOpen, kClose}, third_open_not_counted);
  list.named(
      "open-by-driver-not-counted",
      "an open by the driver API does not count if the memory is already open",
      {kOpen, kClose}, open_by_driver_not_counted);
  list.named("close-by-driver-lost", "a close by the driver API does nothing",
             {kClose}, close_by_driver_lost);
  list.named("close-of-other-thread-lost",
             "a close does nothing if another thread has opened the memory",
             {kOpen, kClose}, close_of_other_thread_lost);
  list.named(
      "mapping-ends-with-thread",
      "opened memory is closed when the thread that opened it first ends",
      {kOpen, kClose}, mapping_ends_with_thread);
  list.named("close-ends-all",
             "the last close of one handle also closes all other handles",
             {kOpen, kClose}, close_ends_others<are_of_one_context>);
  list.named("close-ends-other-gpu",
             "the last close on one GPU ends the mapping on the other GPU",
             {kOpen, kClose}, close_ends_others<are_of_one_handle>, 2);
  list.named("handle-half-compared",
             "handles that agree in one half open the same memory",
             {kOpen, kClose}, found_by_half);
  list.named("third-importer-refused",
             "only the first two processes that open memory can open it",
             {kOpen}, third_process_refused);
  list.named("open-changes-device", "an open makes GPU 0 the current device",
             {kOpen}, open_changes_device, 2);

  const char* const kCreate = "cudaEventCreateWithFlags";
  const char* const kDestroy = "cudaEventDestroy";
  const char* const kOpenEvent = "cudaIpcOpenEventHandle";
  const char* const kRecord = "cudaEventRecord";
  const char* const kWait = "cudaStreamWaitEvent";
  const char* const kStreamDestroy = "cudaStreamDestroy";
  list.named("default-stream-records-early",
             "a record in the default stream does not wait for the work of the "
             "stream",
             {kCreate, kOpenEvent, kDestroy, kRecord},
             default_stream_records_early);
  list.named("default-stream-never-waits",
             "the default stream does not wait for an imported event",
             {kOpenEvent, kDestroy, kWait}, default_stream_never_waits);
  list.named("stream-waits-once",
             "a stream waits for an imported event only the first time",
             {kOpenEvent, kDestroy, kWait, kStreamDestroy}, stream_waits_once);
  list.named(
      "second-stream-never-waits",
      "of several streams, only the first stream waits for an imported event",
      {kOpenEvent, kDestroy, kWait}, second_stream_never_waits);
  list.named("query-stays-ready",
             "an imported event that was ready once is always ready",
             {kOpenEvent, kDestroy, "cudaEventQuery"}, stays_ready);
  list.named("sync-stays-ready",
             "a host waits for an imported event only the first time",
             {kOpenEvent, kDestroy, "cudaEventSynchronize"}, stays_ready);
  list.named("third-importer-unconnected",
             "a third process that opens an event sees no records",
             {kOpenEvent, kDestroy}, third_process_unconnected);
  list.named("event-second-export-elsewhere",
             "the second handle of an event names another event",
             {"cudaIpcGetEventHandle", kDestroy}, second_export_of_other_event);
  list.named("record-256-lost", "each 256th record of an event is lost",
             {kCreate, kOpenEvent, kDestroy, kRecord}, record_256_lost);
  list.named(
      "wait-for-latest",
      "a wait uses the record that is newest when the stream reaches the wait",
      {kOpenEvent, kDestroy, kWait}, waits_for_latest);

  list.named("getaccess-begin-only",
             "only the first address of a mapping reports its access",
             {"cuMemGetAccess", "cuMemMap", "cuMemUnmap"},
             access_told_at_begin_only);
  list.named(
      "setaccess-of-aliases",
      "the access that is set for one mapping is set for all mappings of that "
      "memory",
      {"cuMemSetAccess", "cuMemMap", "cuMemUnmap"}, access_of_aliases);
  list.named("unmap-shuts-out-neighbours",
             "when a range is unmapped the mappings beside it lose access",
             {"cuMemMap", "cuMemUnmap"}, unmap_shuts_out_neighbours);
  list.named("access-ends-with-thread",
             "access ends when the thread that gave it ends",
             {"cuMemSetAccess", "cuMemMap", "cuMemUnmap"},
             access_ends_with_thread);

  list.named(
      "maxsize-of-each",
      "the maximal size limits each allocation, not their sum",
      {"cudaMemPoolCreate", "cudaMallocFromPoolAsync", "cudaMallocAsync"},
      maximum_of_each_allocation);
  list.named("trim-resets-threshold", "trimming sets the threshold to 0",
             {"cudaMemPoolTrimTo"}, trim_resets_threshold);
  list.named("watermarks-reset-together",
             "resetting one watermark also resets the other watermark",
             {"cudaMemPoolSetAttribute"}, watermarks_reset_together);
  list.named("export-resets-policies",
             "an export of a pool switches its reuse policies on",
             {"cudaMemPoolExportToShareableHandle"}, export_resets_policies);
  list.named("import-free-ends-others",
             "freeing one import ends the other imports of its pool",
             {"cudaFree", "cudaFreeAsync", "cudaMemPoolImportPointer"},
             free_ends_other_imports);
  list.named("import-destroy-ends-others",
             "destroying one imported pool ends the imports from other pools",
             {"cudaMemPoolDestroy", "cudaMemPoolImportFromShareableHandle",
              "cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync"},
             destroy_ends_other_pools);
  list.named("pool-second-export-elsewhere",
             "the second descriptor of a pool names another pool",
             {"cudaMemPoolExportToShareableHandle", "cudaMemPoolDestroy"},
             second_export_of_other_pool);
  list.named("pool-third-importer-refused",
             "only the first two processes that import pools can import them",
             {"cudaMemPoolImportFromShareableHandle"}, third_process_refused);
  list.named("setpool-resets-other-gpus",
             "setting the pool of one GPU resets the pools of the other GPUs",
             {"cudaDeviceSetMemPool"}, set_pool_resets_other_gpus, 2);

  list.named("error-of-other-thread",
             "a refusal in one thread is the last error of another thread",
             {"cudaGetLastError", "*"}, error_of_other_thread);
  list.named("success-clears-error", "a call that succeeds clears the error",
             {"cudaGetLastError", "*"}, success_clears_error);
  list.named("driver-refusal-told-by-runtime",
             "a refusal by the driver API is the runtime's last error",
             {"cudaIpcGetMemHandle", kOpen, kClose, "cudaIpcGetEventHandle",
              kOpenEvent},
             driver_refusal_told_by_runtime);
  list.named(
      "open-by-thread-not-counted",
      "an open in another thread does not count if the memory is already open",
      {kOpen, kClose}, open_by_other_thread_not_counted);
  list.named("open-counts-to-255",
             "the reference count of opened memory does not rise above 255",
             {kOpen, kClose}, counts_to_255);
  list.named(
      "second-open-leaks",
      "an open of memory that is already open loses 64 KiB of device memory",
      {kOpen, kClose}, second_open_leaks);
  list.named("refused-close-closes-another",
             "a refused close lowers the count of other memory",
             {kOpen, kClose}, refused_close_closes_another);
  list.named("close-takes-last-opened",
             "a close unmaps the memory that was opened last, not its argument",
             {kOpen, kClose}, close_takes_last_opened);
  list.named("handle-ends-with-thread",
             "a handle cannot be opened when the thread that exported it has "
             "ended",
             {"cudaIpcGetMemHandle", kOpen}, handle_ends_with_thread);
  list.named("stream-wait-ends-after-1-s",
             "a stream waits for an imported event for one second at most",
             {kOpenEvent, kDestroy, kWait}, wait_ends_after_a_second);
  list.named("word-wait-ends-after-1-s",
             "a stream waits for a word for one second at most",
             {"cuStreamWaitValue32"}, wait_ends_after_a_second);
  list.named("host-wait-ends-after-1-s",
             "a host waits for an imported event for one second at most",
             {kOpenEvent, kDestroy, "cudaEventSynchronize"},
             host_wait_ends_after_a_second);
  list.named("destroy-cancels-wait",
             "an importer's stream continues when the importer destroys the "
             "event that it waits for",
             {kOpenEvent, kDestroy, kWait}, destroy_cancels_waits);
  list.named("other-thread-sync-early",
             "only the thread that has opened an imported event waits for it",
             {kOpenEvent, kDestroy, "cudaEventSynchronize"},
             nothing_in_other_threads);
  list.named("other-thread-query-ready",
             "an imported event is always ready for a thread that has not "
             "opened it",
             {kOpenEvent, kDestroy, "cudaEventQuery"},
             nothing_in_other_threads);
  list.named("other-thread-wait-noop",
             "a stream waits for an imported event only if the calling thread "
             "has opened the event",
             {kOpenEvent, kDestroy, kWait}, nothing_in_other_threads);
  list.named("record-with-flags-lost",
             "cudaEventRecordWithFlags records no interprocess event",
             {kCreate, kOpenEvent, kDestroy, "cudaEventRecordWithFlags"},
             record_with_flags_lost);
  list.named(
      "own-record-unseen",
      "after an importer has recorded an event, its query and host wait count "
      "the event as complete",
      {kOpenEvent, kDestroy, kRecord, "cudaEventQuery", "cudaEventSynchronize"},
      own_record_unseen);
  list.named("second-event-never-waited",
             "a stream waits only for the first of several imported events",
             {kOpenEvent, kDestroy, kWait, kStreamDestroy},
             second_event_never_waited);
  list.named("per-thread-stream-never-waits",
             "a thread's default stream does not wait for an imported event",
             {kOpenEvent, kDestroy, kWait},
             such_streams_never_wait<is_per_thread>);
  list.named("per-thread-stream-records-early",
             "a record in a thread's default stream does not wait for the work "
             "of the stream",
             {kCreate, kOpenEvent, kDestroy, kRecord},
             such_streams_record_early<is_per_thread>);
  list.named("non-blocking-stream-never-waits",
             "a non-blocking stream does not wait for an imported event",
             {kOpenEvent, kDestroy, kWait},
             such_streams_never_wait<is_non_blocking>);
  list.named("blocking-stream-never-waits",
             "a stream that was created without cudaStreamNonBlocking does not "
             "wait for an imported event",
             {kOpenEvent, kDestroy, kWait},
             such_streams_never_wait<is_blocking>);
  list.named("record-before-last-kernel",
             "a record does not cover the last kernel before it, nor the work "
             "after this kernel",
             {kCreate, kOpenEvent, kDestroy, kRecord, "cudaLaunchKernel",
              kStreamDestroy},
             record_before_last_kernel);
  list.named("record-skips-copies",
             "a record does not cover the copies and memsets after the last "
             "kernel before it",
             {kCreate, kOpenEvent, kDestroy, kRecord, "cudaLaunchKernel",
              "cudaMemcpyAsync", "cudaMemsetAsync", kStreamDestroy},
             record_skips_copies);
  list.named(
      "wait-holds-no-copies",
      "the copies between the wait for an imported event and the next kernel "
      "do not wait",
      {kOpenEvent, kDestroy, kWait, "cudaLaunchKernel", "cudaMemcpyAsync",
       kStreamDestroy},
      wait_holds_kernels_only);
  list.named(
      "wait-holds-no-memsets",
      "the memsets between the wait for an imported event and the next kernel "
      "do not wait",
      {kOpenEvent, kDestroy, kWait, "cudaLaunchKernel", "cudaMemsetAsync",
       kStreamDestroy},
      wait_holds_kernels_only);
  list.named(
      "first-refusal-stays",
      "while the runtime keeps an error, it does not keep the next error",
      {"cudaGetLastError", "*"}, first_refusal_stays);
  list.named("exporter-sees-own-records-only",
             "in an exporter that has not recorded an event itself, the query "
             "and the host wait count the event as complete",
             {kCreate, kOpenEvent, kDestroy, kRecord, "cudaEventQuery",
              "cudaEventSynchronize"},
             exporter_sees_own_records_only);
  list.named(
      "record-while-pending-lost",
      "a record does nothing while the record before it is pending",
      {kCreate, kOpenEvent, kDestroy, kRecord, "cudaEventRecordWithFlags"},
      record_while_pending_lost);
  list.named("elapsed-second-unchecked",
             "cudaEventElapsedTime needs timing only in its first event",
             {kCreate, kOpenEvent, kDestroy, "cudaEventElapsedTime"},
             second_of_elapsed_unchecked);
  list.named("timing-blocking-ipc-ok",
             "an interprocess event with timing can be created if it is a "
             "blocking event",
             {kCreate}, timing_accepted_with_blocking);
  list.named(
      "wait-holds-no-graphs",
      "the first graph after the wait for an imported event does not wait",
      {kOpenEvent, kDestroy, kWait, "cudaGraphLaunch", kStreamDestroy},
      wait_holds_no_graphs);
  list.named("record-skips-graphs",
             "a record does not cover the last graph before it, nor the work "
             "after this graph",
             {kCreate, kOpenEvent, kDestroy, kRecord, "cudaGraphLaunch",
              kStreamDestroy},
             record_skips_graphs);
}

}  // namespace ipclab::faults
