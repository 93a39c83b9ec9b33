// More bugs of what ends or begins again: processes, contexts, resets,
// namespaces, MPS.
//
// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "harness/faults/world/chunks.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

unsigned long long this_process() {
  return static_cast<unsigned long long>(getpid());
}

// Has a process ended whose number was stored under a key? A process that has
// given up what the key names has stored 0.
bool user_has_ended(const std::string& key) {
  const auto process = told(key, 0);
  return process != 0 && process != this_process() &&
         has_ended(static_cast<pid_t>(process));
}

// The program gets an event that is not connected to any other event.
int unconnected(Call& open) {
  cudaEvent_t& event = *open.at<cudaEvent_t*>(0);
  cudaEventDestroy(event);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  open.fired();
  return kSuccess;
}

int current_device() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}
int device_of(void* memory) {
  int device = -1;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, number(memory));
  return device;
}
bool is_on_current_device(void* memory) {
  return device_of(memory) == current_device();
}

// Some device memory is never given back.
void lose_memory() {
  void* lost = nullptr;
  cudaMalloc(&lost, 64 << 10);
}

// The key of the handle that an open gets.
template <class Handle>
std::string given_key(Call& open) {
  return key_of_handle(open.at<Handle>(1));
}
// The key of the handle that an export has made.
template <class Handle>
std::string made_key(Call& get) {
  return key_of_handle(*get.at<Handle*>(0));
}

// An open gives a copy of the memory.
Table<void*, void*> originals;
int copy_opened(Call& open) {
  const int code = open.proceed();
  if (code != kSuccess) return code;
  void*& memory = *open.at<void**>(0);
  void* copy = nullptr;
  const size_t bytes = size_of(number(memory));
  if (cudaMalloc(&copy, bytes) != cudaSuccess) return code;
  cudaMemcpy(copy, memory, bytes, cudaMemcpyDeviceToDevice);
  cudaStreamSynchronize(nullptr);
  originals.put(copy, memory);
  memory = copy;
  open.fired();
  return code;
}
// The close of memory that may be a copy.
int copy_closed(Call& close) {
  void*& memory = close.at<void*>(0);
  void* const copy = memory;
  memory = originals.get(copy, copy);
  if (originals.erase(copy)) cudaFree(copy);
  const int code = close.proceed();
  memory = copy;
  return code;
}

// --- the creator of a chunk ends ---------------------------------------------

// Clears all memory of cuMemCreate that this process has mapped and that is in
// the table.
void clear_mapped(const Table<Chunk>& chunks, Call& call) {
  for (const auto& [begin, mapped] : mappings.all())
    if (chunks.has(mapped.chunk) &&
        DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS)
      call.fired();
}

// Tells the other processes at the exit of this process that it has memory of
// the table mapped. Then they clear the memory of their own table.
template <const Table<Chunk>* mine, const Table<Chunk>* theirs>
int exit_clears_chunks(Call& call) {
  static Table<unsigned long long> known;
  static const std::string key = mine == &exports ? "creator" : "importer";
  static const int set_up = std::atexit([] {
    for (const auto& each : mappings.all())
      if (mine->has(each.second.chunk)) tell_processes(key, this_process());
  });
  if (!is_use(call) || set_up != 0) return call.proceed();
  const auto exited = told(key, 0);
  if (exited != 0 && exited != this_process() && known.put(exited))
    clear_mapped(*theirs, call);
  return call.proceed();
}
// When the creator of memory resets its device, the memory is cleared.
int reset_clears_exported_chunks(Call& call) {
  if (!call.is("cudaDeviceReset")) return call.proceed();
  clear_mapped(exports, call);
  return call.proceed();
}

// --- what an importer that was killed leaves ---------------------------------

std::string import_key(Call& call) {
  return "import-" + std::to_string(identity(descriptor_of(call)));
}

// After an importer of memory of cuMemCreate has ended, no other process can
// import such memory. (All descriptors of NVIDIA's driver have one identity.)
int chunk_ends_with_importer(Call& import) {
  static const std::string key = "importer-of-chunks";
  if (!imports_descriptor(import)) return import.proceed();
  if (user_has_ended(key)) return refused(import);
  const int code = import.proceed();
  if (code == kSuccess) tell_processes(key, this_process());
  return code;
}

// After a process has died that had a pool imported, no pool can be imported.
int pool_ends_with_importer(Call& call) {
  static const std::string key = "importer-of-pools";
  static Table<cudaMemPool_t> imported;
  if (call.is("cudaMemPoolDestroy")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    const int code = call.proceed();
    if (code == kSuccess && imported.erase(pool) && imported.all().empty())
      tell_processes(key, 0);
    return code;
  }
  if (!imports_descriptor(call)) return call.proceed();
  if (user_has_ended(key)) return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  tell_processes(key, this_process());
  imported.put(*call.at<cudaMemPool_t*>(0));
  return code;
}

// After an importer of pool memory has died, nobody can import this memory.
int pointer_ends_with_importer(Call& call) {
  static Table<void*, std::string> keys;
  if (frees(call)) {
    void* const memory = call.at<void*>(0);
    const int code = call.proceed();
    const std::string key = keys.get(memory);
    if (code == kSuccess && keys.erase(memory)) tell_processes(key, 0);
    return code;
  }
  const std::string key = "user-" + key_of_data(call.at<void*>(2));
  if (user_has_ended(key)) return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  tell_processes(key, this_process());
  keys.put(*call.at<void**>(0), key);
  return code;
}

// After an importer of an event has died, opens give an event that no process
// records.
int event_ends_with_importer(Call& call) {
  if (!opens_event(call)) {
    const auto event = call.at<cudaEvent_t>(0);
    const std::string key = event_keys.get(event);
    const bool imported = is_imported(event);
    const int code = call.proceed();
    if (code == kSuccess && imported) tell_processes("event-user-" + key, 0);
    return code;
  }
  const std::string key = "event-user-" + given_key<cudaIpcEventHandle_t>(call);
  const bool ended = user_has_ended(key);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  tell_processes(key, this_process());
  return ended ? unconnected(call) : code;
}

// When an importer dies, a pending record of the exporter counts as complete.
int death_completes_record(Call& call) {
  static Table<cudaEvent_t> found_alive;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    const auto destroyed =
        call.is("cudaEventDestroy") ? call.at<cudaEvent_t>(0) : nullptr;
    const std::string key = event_keys.get(destroyed);
    const bool imported = is_imported(destroyed);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (opens_event(call))
      tell_processes("holder-" + event_keys.get(*call.at<cudaEvent_t*>(0)),
                     this_process());
    if (imported) tell_processes("holder-" + key, 0);
    return code;
  }
  const std::string key = "holder-" + event_keys.get(event);
  if (records(call)) {
    found_alive.erase(event);
    if (!user_has_ended(key)) found_alive.put(event);
    return call.proceed();
  }
  return found_alive.has(event) && user_has_ended(key) && is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// Tells the other processes which memory is open when a kernel faults.
int noted_fault(Call& call) {
  if (!call.is("cudaDeviceSynchronize")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess && code != cudaErrorNotReady)
    for (const auto& each : opened.all())
      tell_processes("faulted-" + each.second.handle, 1);
  return code;
}

// After a fault of an importer, no other process can open the memory.
int open_ends_with_fault(Call& call) {
  return is_open_call(call) &&
                 told("faulted-" + given_key<cudaIpcMemHandle_t>(call), 0) != 0
             ? refused(call)
             : noted_fault(call);
}

// After a fault of an importer, the exporter can export no memory.
int export_ends_with_fault(Call& call) {
  static Table<std::string> exported;
  if (!exports_memory(call)) return noted_fault(call);
  for (const auto& each : exported.all())
    if (told("faulted-" + each.first, 0) != 0) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) exported.put(made_key<cudaIpcMemHandle_t>(call));
  return code;
}

// After a fault of an importer, records of the events that it had open are
// lost.
int event_lost_after_fault(Call& call) {
  if (call.is("cudaDeviceSynchronize")) {
    const int code = call.proceed();
    if (code != kSuccess && code != cudaErrorNotReady)
      for (const auto& [event, imported] : events.all())
        if (imported) tell_processes("faulted-" + event_keys.get(event), 1);
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  return told("faulted-" + event_keys.get(event), 0) != 0 ? no_wait(call)
                                                          : call.proceed();
}

// --- after a reset -----------------------------------------------------------

bool resets(Call& call) { return call.is("cudaDeviceReset"); }
std::atomic<bool> was_reset{false};
int noted_reset(Call& reset) {
  const int code = reset.proceed();
  was_reset = true;
  return code;
}

// After a reset, opens give an event that no process records.
int reset_unconnects_opens(Call& call) {
  if (resets(call)) return noted_reset(call);
  const int code = call.proceed();
  return code == kSuccess && was_reset ? unconnected(call) : code;
}

// The handle of an event that was made after a reset stands for no event of
// this process.
int reset_unconnects_exports(Call& call) {
  if (resets(call)) return noted_reset(call);
  cudaEvent_t other = nullptr;
  const int code = call.proceed();
  if (code != kSuccess || !was_reset ||
      cudaEventCreateWithFlags(
          &other, cudaEventInterprocess | cudaEventDisableTiming) !=
          cudaSuccess)
    return code;
  call.at<cudaEvent_t>(1) = other;
  call.fired();
  return call.proceed();
}

// An export gives the handle of new memory of the same size. A refusal stays a
// refusal.
int other_exported(Call& get) {
  void* other = nullptr;
  const int code = get.proceed();
  const size_t bytes = size_of(number(get.at<void*>(1)));
  if (code != kSuccess || bytes == 0 ||
      cudaMalloc(&other, bytes) != cudaSuccess)
    return code;
  get.at<void*>(1) = other;
  get.fired();
  return get.proceed();
}

// The handle of memory that was allocated after a reset opens as other memory.
int reset_confuses_exports(Call& call) {
  if (resets(call)) return noted_reset(call);
  return was_reset ? other_exported(call) : call.proceed();
}

// Memory that is opened after a reset is a copy.
int copy_after_reset(Call& call) {
  if (resets(call)) {
    for (const auto& each : originals.all()) originals.erase(each.first);
    return noted_reset(call);
  }
  if (is_close_call(call)) return copy_closed(call);
  return was_reset ? copy_opened(call) : call.proceed();
}

// Copies do not reach memory that was opened after a reset.
int copy_after_reset_lost(Call& call) {
  if (resets(call)) {
    // These addresses may get other memory.
    for (const auto& each : opened.all()) opened.erase(each.first);
    return noted_reset(call);
  }
  if (keeps_opened(call)) return call.proceed();
  if (was_reset && (is_opened(call.value<void*>(kPointer)) ||
                    is_opened(call.value<void*>(kSource))))
    return no_wait(call);
  return call.proceed();
}

// After a reset, no memory of cuMemCreate can be imported.
int chunk_import_after_reset_refused(Call& call) {
  if (resets(call)) return noted_reset(call);
  return was_reset ? refused(call) : call.proceed();
}

// The opens of before a reset still count after it.
int count_survives_reset(Call& call) {
  static Table<std::string, int> left;
  if (resets(call)) {
    for (const auto& [address, one] : opened.all()) {
      left.put(one.handle, left.get(one.handle, 0) + one.count);
      opened.erase(address);
    }
    return call.proceed();
  }
  if (is_close_call(call)) {
    const std::string handle = opened.get(call.at<void*>(0)).handle;
    const int before = left.get(handle, 0);
    if (before > 0) {
      left.put(handle, before - 1);
      return no_wait(call);
    }
  }
  return call.proceed();
}

// After a reset, the memory that the process has exported is never given back.
int reset_keeps_exported(Call& call) {
  static Table<void*, size_t> exported;
  if (!resets(call)) {
    const int code = call.proceed();
    void* const memory = call.at<void*>(1);
    if (code == kSuccess) exported.put(memory, size_of(number(memory)));
    return code;
  }
  size_t kept = 0;
  for (const auto& [memory, bytes] : exported.all()) {
    if (size_of(number(memory)) != bytes) {
      exported.erase(memory);  // it was freed
    } else if (is_on_current_device(memory)) {
      exported.erase(memory);
      kept += bytes;
    }
  }
  const int code = call.proceed();
  void* lost = nullptr;
  if (kept > 0 && cudaMalloc(&lost, kept) == cudaSuccess) call.fired();
  return code;
}

// --- other ways to reset -----------------------------------------------------

// The context that a call ends; null if the call ends none.
CUcontext ended_by(Call& call) {
  if (call.is("cuCtxDestroy")) return call.at<CUcontext>(0);
  return call.is("cuDevicePrimaryCtxReset") ? current_context() : nullptr;
}

// The end of a context clears what is open in it.
int context_end_clears(Call& call) {
  const CUcontext context = ended_by(call);
  if (context == nullptr) return call.proceed();
  for (const auto& [address, one] : opened.all()) {
    if (one.context != context) continue;
    const CUdeviceptr begin = number(address);
    if (DRIVER_CALL(cuMemsetD8)(begin, 0, size_of(begin)) == CUDA_SUCCESS)
      call.fired();
    opened.erase(address);
  }
  cudaDeviceSynchronize();
  return call.proceed();
}

// After the end of a context of an importer, the exporter sees its pending
// event as complete, until it records the event again.
int context_end_completes(Call& call) {
  static Table<cudaEvent_t, unsigned long long> before;  // the last end
  static std::atomic<unsigned> ends{0};
  const auto last = [](cudaEvent_t event) {
    return told("over-" + event_keys.get(event), 0);
  };
  if (ended_by(call) != nullptr) {
    const auto end = this_process() << 32 | ++ends;
    for (const auto& [event, imported] : events.all()) {
      if (imported) tell_processes("over-" + event_keys.get(event), end);
      events.erase(event);
    }
    return call.proceed();
  }
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return call.proceed();
  if (records(call)) {
    before.put(event, last(event));
    return call.proceed();
  }
  return last(event) != before.get(event) && is_pending(event) ? no_wait(call)
                                                               : call.proceed();
}

// A release of the primary context clears what is open in it, although there is
// another reference.
int primary_release_clears(Call& call) {
  if (!call.is("cuDevicePrimaryCtxRelease")) return call.proceed();
  for (const auto& each : opened.all()) {
    cudaMemset(each.first, 0, size_of(number(each.first)));
    cudaDeviceSynchronize();
    call.fired();
  }
  return call.proceed();
}

// The ids of allocations begin again after a reset, or in a second context.
int ids_begin_again(Call& call) {
  static std::mutex mutex;
  static unsigned long long least = 0, most = 0, shift = 0;
  static bool begins = false;
  if (resets(call) || call.is("cuCtxDestroy")) {
    {
      const std::lock_guard lock(mutex);
      begins = true;
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  auto& id = *call.at<unsigned long long*>(0);
  const std::lock_guard lock(mutex);
  if (least == 0) least = id;
  // Earlier memory keeps its id.
  if (begins && id > most) {
    shift = id - least;
    begins = false;
  }
  most = std::max(most, id);
  if (shift == 0 || id < least + shift) return code;
  call.fired();
  id -= shift;
  return code;
}

// --- resets and a second GPU -------------------------------------------------

// After the reset of a GPU, it cannot open memory of a peer: it takes the peer
// access for enabled.
int peer_open_after_reset_refused(Call& call) {
  static Table<int> over;
  if (exports_memory(call)) return told_owner(call);
  if (resets(call)) {
    over.put(current_device());
    return call.proceed();
  }
  return over.has(current_device()) &&
                 owner_of(call.at<cudaIpcMemHandle_t>(1)) != current_place()
             ? refused(call, cudaErrorPeerAccessAlreadyEnabled)
             : call.proceed();
}

// Peer access that was given by an open is still enabled after a reset.
int peer_access_survives_reset(Call& call) {
  if (resets(call)) return noted_reset(call);
  return was_reset ? refused(call, cudaErrorPeerAccessAlreadyEnabled)
                   : call.proceed();
}

// The memory that this process has exported, and the keys of the handles.
Table<void*, std::string> lent;
int noted_lent(Call& get) {
  const int code = get.proceed();
  if (code == kSuccess)
    lent.put(get.at<void*>(1), made_key<cudaIpcMemHandle_t>(get));
  return code;
}

// A reset of one GPU ends the handles of memory of other GPUs.
int reset_ends_other_handles(Call& call) {
  if (exports_memory(call)) return noted_lent(call);
  if (is_open_call(call))
    return told("ended-" + given_key<cudaIpcMemHandle_t>(call), 0) != 0
               ? refused(call)
               : call.proceed();
  for (const auto& [memory, handle] : lent.all())
    if (!is_on_current_device(memory)) tell_processes("ended-" + handle, 1);
  return call.proceed();
}

// A reset of one GPU clears the exported memory of other GPUs.
int reset_clears_other_exports(Call& call) {
  if (exports_memory(call)) return noted_lent(call);
  for (const auto& [memory, handle] : lent.all()) {
    const int current = current_device(), device = device_of(memory);
    if (device < 0 || device == current) continue;
    cudaSetDevice(device);  // only this GPU can write the memory
    if (cudaMemset(memory, 0, size_of(number(memory))) == cudaSuccess &&
        cudaDeviceSynchronize() == cudaSuccess)
      call.fired();
    cudaSetDevice(current);
  }
  return call.proceed();
}

// --- small losses ------------------------------------------------------------

// Exported memory that nobody has opened is never given back.
int unopened_memory_leaks(Call& call) {
  if (exports_memory(call)) return noted_lent(call);
  if (is_open_call(call)) {
    tell_processes("opened-" + given_key<cudaIpcMemHandle_t>(call), 1);
    return call.proceed();
  }
  void* const memory = call.at<void*>(0);
  const std::string handle = lent.get(memory);
  if (!lent.erase(memory) || told("opened-" + handle, 0) != 0)
    return call.proceed();
  lose_memory();
  call.fired();
  return call.proceed();
}

// Memory that a process has closed and opens again takes as much memory of the
// GPU as it has.
int reopen_costs_memory(Call& call) {
  static Table<std::string> closed;
  static Table<void*, void*> taken;
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const std::string handle = opened.get(memory).handle;
    const int code = call.proceed();
    if (code != kSuccess || opened.has(memory)) return code;
    closed.put(handle);
    cudaFree(taken.get(memory));
    taken.erase(memory);
    return code;
  }
  const int code = call.proceed();
  void* more = nullptr;
  if (code != kSuccess || !closed.has(given_key<cudaIpcMemHandle_t>(call)))
    return code;
  void* const memory = *call.at<void**>(0);
  if (taken.has(memory)) return code;
  if (cudaMalloc(&more, size_of(number(memory))) != cudaSuccess) return code;
  taken.put(memory, more);
  call.fired();
  return code;
}

// The destruction of an exported event that nobody has opened loses memory.
int unopened_event_leaks(Call& call) {
  if (opens_event(call))
    tell_processes("opened-" + given_key<cudaIpcEventHandle_t>(call), 1);
  if (!call.is("cudaEventDestroy")) return call.proceed();
  const auto event = call.at<cudaEvent_t>(0);
  if (!is_imported(event) && event_keys.has(event) &&
      told("opened-" + event_keys.get(event), 0) == 0) {
    lose_memory();
    call.fired();
  }
  event_keys.erase(event);
  return call.proceed();
}

// Each record of an imported event loses memory.
int import_record_leaks(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr && is_imported(event)) {
    lose_memory();
    call.fired();
  }
  return call.proceed();
}

// The destruction of an imported pool from which nothing was imported loses
// memory.
int unused_pool_import_leaks(Call& call) {
  static Table<cudaMemPool_t> unused;
  if (call.is("cudaMemPoolImportPointer"))
    unused.erase(call.at<cudaMemPool_t>(1));
  if (call.is("cudaMemPoolDestroy") &&
      unused.erase(call.at<cudaMemPool_t>(0))) {
    lose_memory();
    call.fired();
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolImportFromShareableHandle"))
    unused.put(*call.at<cudaMemPool_t*>(0));
  return code;
}

// --- children ----------------------------------------------------------------

std::atomic<bool> has_forked{false};
void notes_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(
        nullptr, [] { has_forked = true; }, nullptr);
  });
}

// After a fork, copies do not reach opened memory of the parent.
int fork_ends_copies(Call& call) {
  notes_forks();
  if (keeps_opened(call)) return call.proceed();
  return has_forked && (is_opened(call.value<void*>(kPointer)) ||
                        is_opened(call.value<void*>(kSource)))
             ? no_wait(call)
             : call.proceed();
}

// After a fork, the events that the parent has opened count as complete.
int fork_completes_events(Call& call) {
  notes_forks();
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && has_forked &&
                 is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// After a fork, the handle of memory opens as other memory.
int fork_confuses_exports(Call& call) {
  notes_forks();
  return has_forked ? other_exported(call) : call.proceed();
}

// When a child of fork exits, what its parent has open is cleared.
int child_exit_clears(Call& call) {
  static const pid_t parent = getpid();
  static const std::string key = "exit-of-child-of-" + std::to_string(parent);
  static const int set_up = std::atexit([] {
    if (getpid() != parent) tell_processes(key, 1);
  });
  if (keeps_opened(call) || set_up != 0) return call.proceed();
  if (told(key, 0) == 0) return call.proceed();
  tell_processes(key, 0);
  for (const auto& each : opened.all()) {
    cudaMemset(each.first, 0, size_of(number(each.first)));
    call.fired();
  }
  return call.proceed();
}

// --- threads -----------------------------------------------------------------

// If threads open a handle for the first time at once, all but one get copies.
int first_open_race(Call& call) {
  static std::atomic<int> at_work{0};
  static std::mutex one_at_a_time;  // drivers may refuse opens at once
  if (is_close_call(call) && originals.has(call.at<void*>(0)))
    return copy_closed(call);
  if (!is_open_call(call) || already_open(call) != nullptr)
    return call.proceed();
  const bool alone = at_work++ == 0;
  usleep(alone ? 2000 : 0);
  const std::lock_guard lock(one_at_a_time);
  const int code = alone ? call.proceed() : copy_opened(call);
  --at_work;
  return code;
}

// If another thread opens a handle while the last open is closed, its mapping
// ends too.
int last_close_race(Call& call) {
  static std::atomic<int> opens{0};
  static Table<void*, int> counts;
  const auto add = [](void* address, int change) {
    return counts.change([&](auto& all) { return all[address] += change; });
  };
  if (is_open_call(call)) {
    // Half of the threads come when the others close.
    constexpr int kSlow = 400;  // a limit, because tests open very often
    if (opens < kSlow && this_thread() % 2 != 0) usleep(2000);
    const int code = call.proceed();
    if (code == kSuccess) add(*call.at<void**>(0), 1);
    ++opens;
    return code;
  }
  void* const address = call.at<void*>(0);
  if (add(address, -1) != 0 || this_thread() == getpid()) return call.proceed();
  const int before = opens;
  usleep(5000);
  const int code = call.proceed();
  if (code != kSuccess || opens == before) return code;
  while (DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) == CUDA_SUCCESS)
    call.fired();
  return code;
}

// Threads that export at once get each other's handles.
int exports_share_a_buffer(Call& get) {
  static cudaIpcMemHandle_t buffer;
  static std::mutex mutex;
  auto& result = *get.at<cudaIpcMemHandle_t*>(0);
  const int code = get.proceed();
  if (code == kSuccess) {
    const std::lock_guard lock(mutex);
    buffer = result;
  }
  if (this_thread() != getpid()) usleep(500);
  if (code == kSuccess) {
    const std::lock_guard lock(mutex);
    if (std::memcmp(&result, &buffer, sizeof buffer) != 0) get.fired();
    result = buffer;
  }
  return code;
}

// --- namespaces --------------------------------------------------------------

// The number of a namespace of this process, or of a file system.
unsigned long long number_of(const char* path, bool file_system) {
  struct stat found {};
  if (stat(path, &found) != 0) return 0;
  return file_system ? found.st_dev : found.st_ino;
}

// With a /dev/shm of its own, a process opens an event that no process records.
int event_unconnected_in_own_shm(Call& call) {
  const auto here = number_of("/dev/shm", true);
  if (exports_event(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("shm-" + made_key<cudaIpcEventHandle_t>(call), here);
    return code;
  }
  const auto there = told("shm-" + given_key<cudaIpcEventHandle_t>(call), here);
  const int code = call.proceed();
  if (here == there) return code;
  if (code == kSuccess) return unconnected(call);
  // The driver itself needs the file of the exporter.
  if (cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0),
                               cudaEventDisableTiming) != cudaSuccess)
    return code;
  return accepted(call);
}

// With an IPC namespace of its own, a process opens a copy of memory.
int copy_in_other_namespace(Call& call) {
  const auto here = number_of("/proc/self/ns/ipc", false);
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("ns-" + made_key<cudaIpcMemHandle_t>(call), here);
    return code;
  }
  if (is_close_call(call)) return copy_closed(call);
  return here == told("ns-" + given_key<cudaIpcMemHandle_t>(call), here)
             ? call.proceed()
             : copy_opened(call);
}

// Two exporters with one process number are taken for one: the handles of the
// second open as memory of the first, or as new memory.
int exporters_known_by_number(Call& call) {
  static Table<unsigned long long, cudaIpcMemHandle_t> first;
  static const auto began = static_cast<unsigned long long>(
      std::chrono::steady_clock::now().time_since_epoch().count());
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string key = made_key<cudaIpcMemHandle_t>(call);
    tell_processes("number-" + key, this_process());
    tell_processes("exporter-" + key, began);
    return code;
  }
  auto& handle = call.at<cudaIpcMemHandle_t>(1);
  const cudaIpcMemHandle_t wanted = handle;
  const auto exporter = told("number-" + key_of_handle(wanted), 0);
  if (exporter == 0) return call.proceed();
  first.change([&](auto& all) { return all.emplace(exporter, wanted).second; });
  const auto began_of = [](const cudaIpcMemHandle_t& one) {
    return told("exporter-" + key_of_handle(one), 0);
  };
  // One exporter may lend several pieces of memory.
  if (began_of(first.get(exporter)) == began_of(wanted)) return call.proceed();
  handle = first.get(exporter);
  const int code = call.proceed();
  handle = wanted;
  if (code == kSuccess) call.fired();
  // A driver may refuse all handles of other namespaces.
  return code != kSuccess &&
                 cudaMalloc(call.at<void**>(0), kGranule) == cudaSuccess
             ? accepted(call)
             : code;
}

// --- MPS ---------------------------------------------------------------------

// In a client of MPS, calls do nothing with an imported event.
int mps_import_ignored(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && is_mps_client() &&
                 (records(call) || is_pending(event))
             ? no_wait(call)
             : call.proceed();
}

// In a client of MPS, asynchronous work does not reach opened memory.
int mps_async_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.value<void*>(kPointer)) && is_mps_client()
             ? no_wait(call)
             : call.proceed();
}

// --- clients of a server -----------------------------------------------------

// Memory that a process has open when it exits is never given back.
int exit_keeps_memory(Call& call) {
  static const int set_up = std::atexit([] {
    for (const auto& each : opened.all())
      tell_processes("kept-" + each.second.handle, 1);
  });
  if (exports_memory(call)) return noted_lent(call);
  if (!call.is("cudaFree") || set_up != 0) return call.proceed();
  void* const memory = call.at<void*>(0);
  const std::string handle = lent.get(memory);
  return lent.erase(memory) && told("kept-" + handle, 0) != 0 ? no_wait(call)
                                                              : call.proceed();
}

// Memory that a process on another GPU has open when it dies is never given
// back.
int death_on_other_gpu_keeps_memory(Call& call) {
  if (exports_memory(call)) {
    const int code = told_owner(call);
    if (code == kSuccess)
      lent.put(call.at<void*>(1), made_key<cudaIpcMemHandle_t>(call));
    return code;
  }
  if (call.is("cudaFree")) {
    void* const memory = call.at<void*>(0);
    const std::string handle = lent.get(memory);
    return lent.erase(memory) && user_has_ended("far-" + handle)
               ? no_wait(call)
               : call.proceed();
  }
  const bool opens = is_open_call(call);
  const bool far =
      opens && owner_of(call.at<cudaIpcMemHandle_t>(1)) != current_place();
  const std::string handle = opens ? given_key<cudaIpcMemHandle_t>(call)
                                   : opened.get(call.at<void*>(0)).handle;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (far) tell_processes("far-" + handle, this_process());
  if (!opens && !opened.has(call.at<void*>(0)) &&
      told("far-" + handle, 0) == this_process())
    tell_processes("far-" + handle, 0);
  return code;
}

// The exporter keeps a descriptor for each process that has opened its memory.
int descriptor_for_each_client(Call& call) {
  static Table<std::string, int> counted;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      counted.change([&](auto& all) {
        all.emplace(made_key<cudaIpcMemHandle_t>(call), 0);
        return 0;
      });
    return code;
  }
  const auto user = [](const std::string& handle, int client) {
    return "client-" + std::to_string(client) + "-" + handle;
  };
  if (is_open_call(call)) {
    static Table<std::string> before;
    const std::string handle = given_key<cudaIpcMemHandle_t>(call);
    int client = 0;
    if (!before.put(handle)) return call.proceed();
    while (!first_of_all_processes("is-" + user(handle, client))) ++client;
    tell_processes(user(handle, client), 1);
    return call.proceed();
  }
  for (auto [handle, count] : counted.all()) {
    for (; told(user(handle, count), 0) != 0; ++count)
      if (eventfd(0, EFD_CLOEXEC) >= 0) call.fired();
    counted.put(handle, count);
  }
  return call.proceed();
}

// --- the order of the GPUs ---------------------------------------------------

// If a process has another number for the GPU of an event, its calls do nothing
// with the event.
int event_known_by_number(Call& call) {
  static Table<std::string> other;
  const std::string key =
      opens_event(call) ? given_key<cudaIpcEventHandle_t>(call) : "";
  const int code =
      keeps_events(call) ? call.proceed() : static_cast<int>(kSuccess);
  if (keeps_events(call)) {
    if (code != kSuccess) return code;
    if (exports_event(call)) {
      const std::string made = made_key<cudaIpcEventHandle_t>(call);
      tell_processes("number-" + made,
                     static_cast<unsigned long long>(current_device()));
      tell_processes("place-" + made, current_place());
    } else if (opens_event(call)) {
      const auto same_number = static_cast<int>(told("number-" + key, 0));
      if (place_of(same_number) != told("place-" + key, place_of(same_number)))
        other.put(key);
    }
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) &&
                 other.has(event_keys.get(event)) &&
                 (records(call) || is_pending(event))
             ? no_wait(call)
             : call.proceed();
}

// --- who comes second, and what is used again --------------------------------

// A process knows only the first 32 imported events that it has open at once.
// No stream waits for a later one.
int late_import_ignored(Call& call) {
  constexpr int kMost = 32;
  static Table<cudaEvent_t> late;
  if (keeps_events(call)) {
    int open = 0;
    for (const auto& each : events.all()) open += each.second ? 1 : 0;
    const int code = call.proceed();
    if (code != kSuccess || !opens_event(call)) return code;
    const cudaEvent_t event = *call.at<cudaEvent_t*>(0);
    late.erase(event);
    if (open >= kMost) late.put(event);
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && late.has(event) &&
                 is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// Memory that a process has closed and opens again is a copy.
int reopened_is_copy(Call& call) {
  static Table<void*, std::string> handles;
  static Table<std::string> closed;
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const int code = copy_closed(call);
    if (code == kSuccess && handles.has(memory))
      closed.put(handles.get(memory));
    return code;
  }
  const std::string handle = given_key<cudaIpcMemHandle_t>(call);
  const int code = closed.has(handle) ? copy_opened(call) : call.proceed();
  if (code == kSuccess) handles.put(*call.at<void**>(0), handle);
  return code;
}

// If the exporter has lent other memory at the same address before, an open
// gives a copy.
int used_address_opens_copy(Call& call) {
  static Table<void*, std::string> handles;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    void* const memory = call.at<void*>(1);
    const std::string handle = made_key<cudaIpcMemHandle_t>(call);
    if (handles.get(memory, handle) != handle)
      tell_processes("used-" + handle, 1);
    handles.put(memory, handle);
    return code;
  }
  if (is_close_call(call)) return copy_closed(call);
  return told("used-" + given_key<cudaIpcMemHandle_t>(call), 0) != 0
             ? copy_opened(call)
             : call.proceed();
}

// After an exporter has ended whose memory this process has had open, opens
// give copies.
int open_after_end_is_copy(Call& call) {
  static Table<std::string> exporters;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("lender-" + made_key<cudaIpcMemHandle_t>(call),
                     this_process());
    return code;
  }
  if (is_close_call(call)) return copy_closed(call);
  bool ended = false;
  for (const auto& each : exporters.all()) ended |= user_has_ended(each.first);
  const std::string key = "lender-" + given_key<cudaIpcMemHandle_t>(call);
  const int code = ended ? copy_opened(call) : call.proceed();
  if (code == kSuccess) exporters.put(key);
  return code;
}

// Device memory that the process loses as long as it uses something.
Table<CUdeviceptr, void*> taken;
void take(Call& call, CUdeviceptr place, size_t bytes) {
  void* more = nullptr;
  if (taken.has(place) || cudaMalloc(&more, bytes) != cudaSuccess) return;
  taken.put(place, more);
  call.fired();
}
void give_back(CUdeviceptr place) {
  cudaFree(taken.get(place));
  taken.erase(place);
}
// Has another process opened the same thing before?
bool is_second_client(const std::string& key) {
  if (first_of_all_processes("first-client-" + key))
    tell_processes("client-" + key, this_process());
  return told("client-" + key, this_process()) != this_process();
}

// The open of a handle takes memory in all processes except the first.
int second_client_costs_memory(Call& call) {
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(memory)) give_back(number(memory));
    return code;
  }
  const bool second = is_second_client(given_key<cudaIpcMemHandle_t>(call));
  const int code = call.proceed();
  if (code != kSuccess || !second) return code;
  const CUdeviceptr memory = number(*call.at<void**>(0));
  take(call, memory, size_of(memory));
  return code;
}

// A mapping of imported memory takes memory in all processes except the first
// that has imported it.
int second_chunk_client_costs_memory(Call& call) {
  static Table<Chunk> second;
  if (call.is("cuMemImportFromShareableHandle")) {
    const bool other =
        imports_descriptor(call) && is_second_client(import_key(call));
    const int code = call.proceed();
    if (code != kSuccess) return code;
    second.erase(*call.at<Chunk*>(0));
    if (other) second.put(*call.at<Chunk*>(0));
    return code;
  }
  const int code = call.proceed();
  const CUdeviceptr place = call.at<CUdeviceptr>(0);
  if (code != kSuccess) return code;
  if (call.is("cuMemUnmap"))
    give_back(place);
  else if (second.has(call.at<Chunk>(3)))
    take(call, place, call.at<size_t>(1));
  return code;
}

// The release of imported memory that is not mapped loses memory.
int import_unmapped_first_leaks(Call& call) {
  if (!call.is("cuMemRelease")) return call.proceed();
  const Chunk chunk = call.at<Chunk>(0);
  if (imports.has(chunk) && mapping_of(chunk) == 0) {
    lose_memory();
    call.fired();
  }
  return call.proceed();
}

// The free of exported memory that is smaller than a page of the GPU loses
// memory.
int small_export_leaks(Call& call) {
  if (exports_memory(call)) return noted_lent(call);
  void* const memory = call.at<void*>(0);
  if (lent.erase(memory) && size_of(number(memory)) < kGranule) {
    lose_memory();
    call.fired();
  }
  return call.proceed();
}

// No stream waits for an event that was opened after a reset.
int wait_after_reset_ignored(Call& call) {
  if (resets(call)) return noted_reset(call);
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return was_reset && event != nullptr && is_imported(event) &&
                 is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// After a reset, no pool can be imported.
int pool_import_after_reset_refused(Call& call) {
  if (resets(call)) return noted_reset(call);
  return was_reset && imports_descriptor(call) ? refused(call) : call.proceed();
}

// The ids of memory of the host begin again after a reset.
int host_ids_begin_again(Call& call) {
  if (resets(call)) return ids_begin_again(call);
  CUmemorytype type{};
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, call.at<CUdeviceptr>(2));
  return type == CU_MEMORYTYPE_HOST ? ids_begin_again(call) : call.proceed();
}

// The chunks that this process has imported, and the processes that had
// exported them. (All descriptors of NVIDIA's driver have one key. Therefore
// this is the last process that had exported a chunk when this process imported
// it.)
Table<Chunk, unsigned long long> creators;
bool creator_has_ended(unsigned long long creator) {
  return creator != 0 && creator != this_process() &&
         has_ended(static_cast<pid_t>(creator));
}
std::string creator_key(int descriptor) {
  return "creator-" + std::to_string(identity(descriptor));
}
int noted_creator(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemExportToShareableHandle") && call.at<int>(2) == kFd) {
    const std::string key = creator_key(*call.at<int*>(0));
    tell_processes(key, this_process());
    tell_processes("size-of-" + key, created.get(call.at<Chunk>(1)));
  }
  if (call.is("cuMemImportFromShareableHandle") && imports_descriptor(call))
    creators.put(*call.at<Chunk*>(0),
                 told(creator_key(descriptor_of(call)), 0));
  if (call.is("cuMemCreate")) creators.erase(*call.at<Chunk*>(0));
  return code;
}

// When the creator of memory ends, only the first 2 MiB keep their values.
int death_clears_rest(Call& call) {
  if (!is_use(call)) return noted_creator(call);
  for (const auto& [begin, mapped] : mappings.all()) {
    if (mapped.bytes <= kGranule ||
        !creator_has_ended(creators.get(mapped.chunk)))
      continue;
    creators.erase(mapped.chunk);
    DRIVER_CALL(cuMemsetD8)(begin + kGranule, 0, mapped.bytes - kGranule);
    call.fired();
  }
  return call.proceed();
}

// New memory with the values of a chunk; 0 if the driver refuses it.
Chunk copy_of(Chunk chunk, size_t bytes) {
  const CUmemLocation location = properties_of(chunk).location;
  const Chunk copy = new_chunk(bytes, location);
  CUdeviceptr place = 0;
  cudaFree(nullptr);  // the copy needs a context
  if (copy == 0 || DRIVER_CALL(cuMemAddressReserve)(&place, 2 * bytes, 0, 0,
                                                    0) != CUDA_SUCCESS)
    return 0;
  DRIVER_CALL(cuMemMap)(place, bytes, 0, chunk, 0);
  DRIVER_CALL(cuMemMap)(place + bytes, bytes, 0, copy, 0);
  allow(place, 2 * bytes, location);
  DRIVER_CALL(cuMemcpyDtoD)(place + bytes, place, bytes);
  cudaDeviceSynchronize();
  DRIVER_CALL(cuMemUnmap)(place, 2 * bytes);
  DRIVER_CALL(cuMemAddressFree)(place, 2 * bytes);
  return copy;
}

// A process that imports memory for the first time after the end of its creator
// gets a copy.
int late_import_is_copy(Call& call) {
  static Table<std::string> known;
  if (!call.is("cuMemImportFromShareableHandle") || !imports_descriptor(call))
    return noted_creator(call);
  const std::string key = creator_key(descriptor_of(call));
  const bool late = !known.has(key) && user_has_ended(key);
  const int code = noted_creator(call);
  if (code != kSuccess) return code;
  if (!late) {
    known.put(key);
    return code;
  }
  Chunk& made = *call.at<Chunk*>(0);
  const Chunk copy = copy_of(made, told("size-of-" + key, kGranule));
  if (copy == 0) return code;
  DRIVER_CALL(cuMemRelease)(made);
  made = copy;
  call.fired();
  return code;
}

// A copy or a memset that waits in a stream of the importer when the creator
// ends is lost: the memory gets its old values back.
int queued_work_ends_with_creator(Call& call) {
  struct Queued {
    void* before = nullptr;
    size_t bytes = 0;
    unsigned long long creator = 0;
    cudaStream_t stream = nullptr;
  };
  static Table<CUdeviceptr, Queued> queued;
  if (is_use(call)) {
    for (const auto& [place, one] : queued.all()) {
      const bool lost = creator_has_ended(one.creator);
      if (is_busy(one.stream)) continue;
      queued.erase(place);
      if (!lost) continue;  // the work was done before the end
      DRIVER_CALL(cuMemcpyDtoD)(place, number(one.before), one.bytes);
      cudaDeviceSynchronize();
      call.fired();
    }
    return call.proceed();
  }
  if (call.find(kStream) == nullptr) return noted_creator(call);
  const auto place = call.value<CUdeviceptr>(kPointer);
  Queued one;
  one.bytes = call.value<size_t>(kBytes);
  one.stream = call.value<cudaStream_t>(kStream);
  one.creator = creators.get(mappings.get(mapping_at(place)).chunk);
  if (one.creator == 0 || creator_has_ended(one.creator) ||
      !is_busy(one.stream) || cudaMalloc(&one.before, one.bytes) != cudaSuccess)
    return call.proceed();
  DRIVER_CALL(cuMemcpyDtoDAsync)
  (number(one.before), place, one.bytes, one.stream);
  queued.put(place, one);
  return call.proceed();
}

// --- what one of several importers does --------------------------------------

// What the last reset was, of all processes that use what has this key.
unsigned long long last_reset(const std::string& key) {
  return told("reset-of-" + key, 0);
}
void tell_reset(const std::string& key) {
  tell_processes("reset-of-" + key, this_process());
}
// The last resets before this process has opened or imported these things.
Table<std::string, unsigned long long> earlier_resets;
// Has another importer reset its device since then?
bool was_reset_elsewhere(const std::string& key) {
  const auto last = last_reset(key);
  return earlier_resets.has(key) && last != this_process() &&
         last != earlier_resets.get(key);
}

// A reset in one importer ends the mappings of the others: their copies are
// lost.
int reset_ends_opens_elsewhere(Call& call) {
  if (resets(call)) {
    for (const auto& [memory, one] : opened.all()) {
      tell_reset(one.handle);
      opened.erase(memory);
    }
    return call.proceed();
  }
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (code != kSuccess || !is_open_call(call)) return code;
    const std::string handle = given_key<cudaIpcMemHandle_t>(call);
    earlier_resets.put(handle, last_reset(handle));
    return code;
  }
  for (const Role role : {kPointer, kSource}) {
    void* const memory = opened_around(call.value<void*>(role));
    if (memory != nullptr && was_reset_elsewhere(opened.get(memory).handle))
      return no_wait(call);
  }
  return call.proceed();
}

// A reset in one importer completes the pending events of the others.
int reset_completes_events_elsewhere(Call& call) {
  if (resets(call)) {
    for (const auto& [event, imported] : events.all())
      if (imported) tell_reset(event_keys.get(event));
    return call.proceed();
  }
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code != kSuccess || !opens_event(call)) return code;
    const std::string key = event_keys.get(*call.at<cudaEvent_t*>(0));
    earlier_resets.put(key, last_reset(key));
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) &&
                 was_reset_elsewhere(event_keys.get(event)) && is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// A reset in one importer ends the others' ways to memory of cuMemCreate.
int reset_ends_chunks_elsewhere(Call& call) {
  static Table<Chunk, std::string> keys;
  if (resets(call)) {
    for (const auto& each : mappings.all())
      if (keys.has(each.second.chunk)) tell_reset(keys.get(each.second.chunk));
    return call.proceed();
  }
  if (is_use(call)) {
    for (const Role role : {kPointer, kSource}) {
      const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(role));
      if (begin != 0 &&
          was_reset_elsewhere(keys.get(mappings.get(begin).chunk)))
        return no_wait(call);
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cuMemCreate"))
    keys.erase(*call.at<Chunk*>(0));
  if (code != kSuccess || !call.is("cuMemImportFromShareableHandle") ||
      !imports_descriptor(call))
    return code;
  const std::string key = import_key(call);
  keys.put(*call.at<Chunk*>(0), key);
  earlier_resets.put(key, last_reset(key));
  return code;
}

// A reset in one importer ends the others' ways to memory of a pool.
int reset_ends_pointers_elsewhere(Call& call) {
  static Table<void*, std::string> keys;
  if (resets(call)) {
    for (const auto& each : keys.all()) tell_reset(each.second);
    return call.proceed();
  }
  if (is_use(call)) {
    for (const Role role : {kPointer, kSource})
      if (was_reset_elsewhere(keys.get(call.value<void*>(role))))
        return no_wait(call);
    return call.proceed();
  }
  if (frees(call)) keys.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code != kSuccess || frees(call)) return code;
  const std::string key = key_of_data(call.at<void*>(2));
  keys.put(*call.at<void**>(0), key);
  earlier_resets.put(key, last_reset(key));
  return code;
}

// Counts the processes that import something. Tells all of them when the third
// has come.
void count_importer(const std::string& key) {
  static Table<std::string> counted;
  if (!counted.put(key)) return;
  int number = 1;
  while (!first_of_all_processes("importer-" + std::to_string(number) + key))
    ++number;
  if (number >= 3) tell_processes("three-import-" + key, 1);
}

// Memory of cuMemCreate that three processes have imported is never given back.
int chunk_of_three_is_kept(Call& call) {
  static Table<Chunk, std::string> keys;
  if (call.is("cuMemRelease")) {
    const Chunk chunk = call.at<Chunk>(0);
    const std::string key = keys.get(chunk);
    return keys.erase(chunk) && told("three-import-" + key, 0) != 0
               ? no_wait(call)
               : call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (!call.is("cuMemExportToShareableHandle")) {
    if (imports_descriptor(call)) count_importer(import_key(call));
  } else if (call.at<int>(2) == kFd) {
    keys.put(call.at<Chunk>(1),
             "import-" + std::to_string(identity(*call.at<int*>(0))));
  }
  return code;
}

// Memory of a pool that three processes have imported is never given back.
int pointer_of_three_is_kept(Call& call) {
  static Table<void*, std::string> keys;
  if (frees(call)) {
    void* const memory = call.at<void*>(0);
    const std::string key = keys.get(memory);
    return keys.erase(memory) && told("three-import-" + key, 0) != 0
               ? no_wait(call)
               : call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolExportPointer"))
    keys.put(call.at<void*>(1), key_of_data(call.at<void*>(0)));
  else
    count_importer(key_of_data(call.at<void*>(2)));
  return code;
}

// --- numbers of GPUs that another process has given --------------------------

int number_of_gpu(CUdeviceptr memory) {
  int device = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory);
  return device;
}
// Reports another number for the GPU of a pointer.
int reported_as(Call& get, unsigned long long device) {
  const int code = get.proceed();
  if (code != kSuccess) return code;
  auto& found = *get.at<cudaPointerAttributes*>(0);
  if (found.device == static_cast<int>(device)) return code;
  found.device = static_cast<int>(device);
  get.fired();
  return code;
}

// Imported memory of cuMemCreate has the exporter's number of the GPU.
int chunk_on_exporters_number(Call& call) {
  const auto key = [](int gpu) {
    return "number-of-" + std::to_string(place_of(gpu));
  };
  if (call.is("cudaPointerGetAttributes")) {
    const CUdeviceptr memory = call.at<CUdeviceptr>(1);
    if (!is_import(memory)) return call.proceed();
    const int gpu = number_of_gpu(memory);
    return reported_as(call, told(key(gpu), static_cast<unsigned>(gpu)));
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cuMemExportToShareableHandle")) {
    const CUmemLocation place = properties_of(call.at<Chunk>(1)).location;
    if (place.type == CU_MEM_LOCATION_TYPE_DEVICE)
      tell_processes(key(place.id), static_cast<unsigned>(place.id));
  }
  return code;
}

// Imported memory of a pool has the exporter's number of the GPU.
int pointer_on_exporters_number(Call& call) {
  static Table<void*, unsigned long long> numbers;
  if (call.is("cudaPointerGetAttributes")) {
    void* const memory = call.at<void*>(1);
    return numbers.has(memory) ? reported_as(call, numbers.get(memory))
                               : call.proceed();
  }
  if (frees(call)) numbers.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code != kSuccess || frees(call)) return code;
  if (call.is("cudaMemPoolExportPointer"))
    tell_processes(
        "number-" + key_of_data(call.at<void*>(0)),
        static_cast<unsigned>(number_of_gpu(call.at<CUdeviceptr>(1))));
  else
    numbers.put(*call.at<void**>(0),
                told("number-" + key_of_data(call.at<void*>(2)), 0));
  return code;
}

// --- MPS: opens in other ways ------------------------------------------------

// In a client of MPS, an open by the driver API gives a copy.
int mps_driver_opens_copy(Call& call) {
  if (is_close_call(call)) return copy_closed(call);
  return !call.is_runtime() && is_mps_client() ? copy_opened(call)
                                               : call.proceed();
}

// In a client of MPS, a second open of a handle gives a copy.
int mps_second_open_is_copy(Call& call) {
  if (is_close_call(call) && originals.has(call.at<void*>(0)))
    return copy_closed(call);
  return is_open_call(call) && already_open(call) != nullptr && is_mps_client()
             ? copy_opened(call)
             : call.proceed();
}

// --- ranks and rings ---------------------------------------------------------

// If a process has more than two memories open, asynchronous work does not
// reach the later ones.
int work_on_third_open_lost(Call& call) {
  static Table<void*> late;
  if (is_open_call(call)) {
    const size_t before = opened.all().size();
    const bool again = already_open(call) != nullptr;
    const int code = call.proceed();
    if (code == kSuccess && !again && before >= 2)
      late.put(*call.at<void**>(0));
    return code;
  }
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(memory)) late.erase(memory);
    return code;
  }
  void* const memory = opened_around(call.value<void*>(kPointer));
  return memory != nullptr && late.has(memory) ? no_wait(call) : call.proceed();
}

// When a process closes memory of another process, it ends the other process's
// way to its own memory: copies there are lost.
int close_ends_way_back(Call& call) {
  const auto lender_of = [](const std::string& handle) {
    return told("lender-" + handle, 0);
  };
  const auto way = [](unsigned long long from, unsigned long long to) {
    return "way-" + std::to_string(from) + "-" + std::to_string(to);
  };
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("lender-" + made_key<cudaIpcMemHandle_t>(call),
                     this_process());
    return code;
  }
  if (keeps_opened(call)) {
    const bool opens = is_open_call(call);
    const std::string handle = opens ? given_key<cudaIpcMemHandle_t>(call)
                                     : opened.get(call.at<void*>(0)).handle;
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(way(lender_of(handle), this_process()), opens ? 0 : 1);
    return code;
  }
  for (const Role role : {kPointer, kSource}) {
    void* const memory = opened_around(call.value<void*>(role));
    if (memory == nullptr) continue;
    const auto lender = lender_of(opened.get(memory).handle);
    if (told(way(this_process(), lender), 0) != 0) return no_wait(call);
  }
  return call.proceed();
}

// An asynchronous copy from opened memory is lost if the process made the same
// copy before.
int repeated_copy_lost(Call& call) {
  static Table<std::pair<void*, void*>> made;
  if (keeps_opened(call)) return call.proceed();
  void* const from = call.value<void*>(kSource);
  if (!is_opened(from) || made.put({call.value<void*>(kPointer), from}))
    return call.proceed();
  return no_wait(call);
}

// --- attributes --------------------------------------------------------------

// The driver API gets any attribute of a pool.
int driver_gets_any_attribute(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && !call.is_runtime() ? accepted(call) : code;
}
int sets_any_attribute(Call& call) {
  const int code = call.proceed();
  return code != kSuccess ? accepted(call) : code;
}

// The driver's attribute about IPC is 0 before the process has a context.
int no_ipc_without_context(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.is_runtime() ||
      call.at<int>(1) != CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED ||
      current_context() != nullptr)
    return code;
  *call.at<int*>(0) = 0;
  call.fired();
  return code;
}

// --- the neighbours of what ends ---------------------------------------------

// Where each imported event was opened.
struct Place {
  CUcontext context = nullptr;
  int device = 0;
};
// Streams wait no more for the events that were opened elsewhere than in the
// context, or on the GPU, that ends.
int end_loses_other_events(Call& call) {
  static Table<cudaEvent_t, Place> places;
  static Table<cudaEvent_t> lost;
  if (resets(call) || call.is("cuCtxDestroy")) {
    for (const auto& [event, place] : places.all())
      if (resets(call) ? place.device != current_device()
                       : place.context != call.at<CUcontext>(0))
        lost.put(event);
    return call.proceed();
  }
  if (call.is("cudaEventDestroy")) {
    places.erase(call.at<cudaEvent_t>(0));
    lost.erase(call.at<cudaEvent_t>(0));
  }
  if (call.is("cudaStreamWaitEvent")) {
    const auto event = call.at<cudaEvent_t>(1);
    return lost.has(event) && is_pending(event) ? no_wait(call)
                                                : call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess && opens_event(call))
    places.put(*call.at<cudaEvent_t*>(0),
               {current_context(), current_device()});
  return code;
}

// After a reset of one GPU, copies do not reach imported memory of cuMemCreate
// on another GPU.
int reset_ends_other_chunks(Call& call) {
  static Table<CUdeviceptr> lost;
  if (resets(call)) {
    for (const auto& each : mappings.all())
      if (is_import(each.first) &&
          location_at(each.first).id != current_device())
        lost.put(each.first);
    return call.proceed();
  }
  if (!is_use(call)) {
    if (call.is("cuMemUnmap")) lost.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  for (const Role role : {kPointer, kSource})
    if (lost.has(mapping_at(call.value<CUdeviceptr>(role))))
      return no_wait(call);
  return call.proceed();
}

// After a reset of one GPU, copies do not reach imported memory of a pool of
// another GPU.
int reset_ends_other_pointers(Call& call) {
  static Table<void*> lost;
  if (resets(call)) {
    for (const auto& [memory, block] : blocks.all())
      if (block.imported && !is_on_current_device(memory)) lost.put(memory);
    return call.proceed();
  }
  if (!is_use(call)) {
    if (frees(call)) lost.erase(call.at<void*>(0));
    return call.proceed();
  }
  for (const Role role : {kPointer, kSource})
    if (lost.has(call.value<void*>(role))) return no_wait(call);
  return call.proceed();
}

// After an importer has reset its device, no other process can open the memory
// that it had open.
int reset_ends_handles_for_others(Call& call) {
  if (resets(call)) {
    for (const auto& each : opened.all())
      tell_processes("reset-" + each.second.handle, this_process());
    return call.proceed();
  }
  if (!is_open_call(call)) return call.proceed();
  const auto by = told("reset-" + given_key<cudaIpcMemHandle_t>(call), 0);
  return by != 0 && by != this_process() ? refused(call) : call.proceed();
}

// When a process that has exported memory resets its device, no other process
// can import memory. (All descriptors of NVIDIA's driver have one identity.)
int reset_ends_descriptors(Call& call) {
  static const std::string key = "reset-of-an-exporter";
  static std::atomic<bool> exported{false};
  if (resets(call)) {
    if (exported) tell_processes(key, this_process());
    return call.proceed();
  }
  if (call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && call.at<CUmemAllocationHandleType>(2) == kFd)
      exported = true;
    return code;
  }
  const auto by = imports_descriptor(call) ? told(key, 0) : 0;
  return by != 0 && by != this_process() ? refused(call) : call.proceed();
}

// A second reset leaves a device that opens no memory.
int second_reset_refuses_opens(Call& call) {
  static std::atomic<int> count{0};
  if (resets(call)) {
    ++count;
    return call.proceed();
  }
  return count > 1 ? refused(call) : call.proceed();
}

// --- counts, peers and threads -----------------------------------------------

// A close on one GPU also counts as a close on the other GPU, where the memory
// is open more often than once.
int close_counts_on_other_gpu(Call& call) {
  if (!is_close_call(call)) return call.proceed();
  void* const memory = call.at<void*>(0);
  const Opened one = opened.get(memory);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  for (const auto& [address, other] : opened.all()) {
    if (other.handle != one.handle || other.context == one.context ||
        other.count < 2)
      continue;
    DRIVER_CALL(cuCtxPushCurrent)(other.context);
    if (DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) == CUDA_SUCCESS) {
      count_close(address);
      call.fired();
    }
    CUcontext popped = nullptr;
    DRIVER_CALL(cuCtxPopCurrent)(&popped);
  }
  return code;
}

// After its last close of a peer's memory, a GPU opens no memory of a peer.
int peer_reopen_refused(Call& call) {
  static Table<void*> of_peers;
  static std::atomic<bool> over{false};
  if (exports_memory(call)) return told_owner(call);
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(memory) && of_peers.erase(memory) &&
        of_peers.all().empty())
      over = true;
    return code;
  }
  if (owner_of(call.at<cudaIpcMemHandle_t>(1)) == current_place())
    return call.proceed();
  if (over) return refused(call, cudaErrorTooManyPeers);
  const int code = call.proceed();
  if (code == kSuccess) of_peers.put(*call.at<void**>(0));
  return code;
}

// On a GPU other than GPU 0, streams wait for an imported event only once.
int later_cross_wait_ignored(Call& call) {
  static Table<cudaEvent_t> awaited;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) awaited.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) || current_device() == 0)
    return call.proceed();
  const bool pending = is_pending(event);
  if (pending && awaited.has(event)) return no_wait(call);
  if (pending) awaited.put(event);
  return call.proceed();
}

// Threads that open different handles at once get the memory of one of them.
int opens_of_threads_mixed(Call& call) {
  static std::mutex mutex;
  static int at_work = 0, opens = 0;
  static cudaIpcMemHandle_t first;
  if (!is_open_call(call)) return call.proceed();
  auto& handle = call.at<cudaIpcMemHandle_t>(1);
  bool alone = false;
  {
    const std::lock_guard lock(mutex);
    alone = at_work++ == 0;
    if (alone) {
      first = handle;
    } else if (std::memcmp(&first, &handle, sizeof first) != 0) {
      handle = first;
      call.fired();
    }
    alone = alone && ++opens < 400;  // a limit, because tests open very often
  }
  if (alone && this_thread() != getpid()) usleep(2000);
  const int code = call.proceed();
  const std::lock_guard lock(mutex);
  --at_work;
  return code;
}

// The objects that threads have made, and these threads; -1 instead of a thread
// that has ended.
template <class Object>
class Made {
 public:
  void by_this_thread(Object made) {
    threads_.put(made, this_thread());
    at_thread_end([this, made] {
      if (threads_.get(made) == this_thread()) threads_.put(made, -1);
    });
  }
  void erase(Object gone) { threads_.erase(gone); }
  bool by_ended_thread(Object object) { return threads_.get(object) == -1; }

 private:
  Table<Object, int> threads_;
};

// No pointer can be imported from a pool when the thread that imported the pool
// has ended.
int pool_import_ends_with_thread(Call& call) {
  static Made<cudaMemPool_t> pools;
  if (call.is("cudaMemPoolImportPointer"))
    return pools.by_ended_thread(call.at<cudaMemPool_t>(1)) ? refused(call)
                                                            : call.proceed();
  if (call.is("cudaMemPoolDestroy")) pools.erase(call.at<cudaMemPool_t>(0));
  const int code = call.proceed();
  if (code == kSuccess && !call.is("cudaMemPoolDestroy"))
    pools.by_this_thread(*call.at<cudaMemPool_t*>(0));
  return code;
}

// Copies do not reach imported memory of a pool when the thread that imported
// it has ended.
int pool_pointer_ends_with_thread(Call& call) {
  static Made<void*> pointers;
  if (is_use(call)) {
    for (const Role role : {kPointer, kSource})
      if (pointers.by_ended_thread(call.value<void*>(role)))
        return no_wait(call);
    return call.proceed();
  }
  if (frees(call)) pointers.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code == kSuccess && !frees(call))
    pointers.by_this_thread(*call.at<void**>(0));
  return code;
}

// Streams do not wait for an imported event when the thread that opened it has
// ended.
int imported_event_ends_with_thread(Call& call) {
  static Made<cudaEvent_t> imported;
  if (call.is("cudaStreamWaitEvent")) {
    const auto event = call.at<cudaEvent_t>(1);
    return imported.by_ended_thread(event) && is_pending(event)
               ? no_wait(call)
               : call.proceed();
  }
  if (call.is("cudaEventDestroy")) imported.erase(call.at<cudaEvent_t>(0));
  const int code = call.proceed();
  if (code == kSuccess && opens_event(call))
    imported.by_this_thread(*call.at<cudaEvent_t*>(0));
  return code;
}

// When a program disables peer access, it also loses the access to memory of
// cuMemCreate on this peer.
int access_ends_with_peer(Call& call) {
  if (!call.is("cudaDeviceDisablePeerAccess")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  for (const auto& each : mappings.all()) {
    const CUdeviceptr begin = each.first;
    const int here = current_device();
    if (location_at(begin).id != here &&
        access_of(begin, on_gpu(here)) != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        allow(begin, on_gpu(here), CU_MEM_ACCESS_FLAGS_PROT_NONE))
      call.fired();
  }
  return code;
}

// After a fork, the parent can open and import nothing.
int fork_ends_imports(Call& call) {
  notes_forks();
  return has_forked ? refused(call) : call.proceed();
}

// A process that is no client of MPS opens an event of a client as an event
// that no process records.
int mps_outsider_unconnected(Call& call) {
  if (exports_event(call)) {
    const int code = call.proceed();
    if (code == kSuccess && is_mps_client())
      tell_processes("client-" + made_key<cudaIpcEventHandle_t>(call), 1);
    return code;
  }
  const bool of_client =
      told("client-" + given_key<cudaIpcEventHandle_t>(call), 0) != 0;
  const int code = call.proceed();
  return code == kSuccess && of_client && !is_mps_client() ? unconnected(call)
                                                           : code;
}

// --- resets in other contexts and threads ------------------------------------

CUcontext primary_of_gpu_0() {
  CUcontext primary = nullptr;
  int active = 0;
  unsigned flags = 0;
  DRIVER_CALL(cuDevicePrimaryCtxGetState)(0, &flags, &active);
  if (active == 0 ||
      DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, 0) != CUDA_SUCCESS)
    return nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRelease)(0);
  return primary;
}
// Does a reset come while a context is current that the program has created?
bool resets_in_own_context(Call& call) {
  return resets(call) && current_context() != nullptr &&
         current_context() != primary_of_gpu_0() && current_device() == 0;
}

// A reset in a context that the program has created resets the primary context.
int reset_takes_primary(Call& call) {
  if (resets_in_own_context(call) &&
      DRIVER_CALL(cuDevicePrimaryCtxReset)(0) == CUDA_SUCCESS)
    call.fired();
  return call.proceed();
}

// A reset in a context that the program has created closes what this context
// has open.
int reset_closes_in_own_context(Call& call) {
  if (!resets_in_own_context(call)) return call.proceed();
  for (const auto& [memory, one] : opened.all()) {
    if (one.context != current_context()) continue;
    while (DRIVER_CALL(cuIpcCloseMemHandle)(number(memory)) == CUDA_SUCCESS)
      call.fired();
  }
  return call.proceed();
}

// When the last reference to the primary context was released, a new one opens
// no memory.
int last_release_ends_opens(Call& call) {
  static std::atomic<bool> over{false};
  if (!call.is("cuDevicePrimaryCtxRelease"))
    return over ? refused(call) : call.proceed();
  const int code = call.proceed();
  if (code == kSuccess && primary_of_gpu_0() == nullptr) over = true;
  return code;
}

// After a reset, only the thread that made it, and new threads, open memory.
int reset_ends_opens_of_threads(Call& call) {
  static Table<int> users, over;
  if (resets(call)) {
    for (const auto& each : users.all())
      if (each.first != this_thread()) over.put(each.first);
    return call.proceed();
  }
  if (over.has(this_thread()))
    return refused(call, cudaErrorContextIsDestroyed);
  users.put(this_thread());
  return call.proceed();
}

// The runtime opens memory on the GPU of the last cudaSetDevice, whatever
// context is current.
int opens_on_chosen_gpu(Call& call) {
  thread_local int chosen = 0;
  if (call.is("cudaSetDevice")) {
    const int wanted = call.at<int>(0);
    const int code = call.proceed();
    if (code == kSuccess) chosen = wanted;
    return code;
  }
  if (!call.is_runtime() || current_device() == chosen) return call.proceed();
  const CUcontext before = current_context();
  cudaSetDevice(chosen);
  call.fired();
  const int code = call.proceed();
  DRIVER_CALL(cuCtxSetCurrent)(before);
  return code;
}

// --- the list ----------------------------------------------------------------

constexpr auto kGet = "cudaIpcGetMemHandle";
constexpr auto kOpen = "cudaIpcOpenMemHandle";
constexpr auto kClose = "cudaIpcCloseMemHandle";
constexpr auto kFree = "cudaFree";
constexpr auto kReset = "cudaDeviceReset";
constexpr auto kLaunch = "cudaLaunchKernel";
constexpr auto kCopy = "cudaMemcpy";
constexpr auto kGetEvent = "cudaIpcGetEventHandle";
constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
constexpr auto kMakeEvent = "cudaEventCreateWithFlags";
constexpr auto kEndEvent = "cudaEventDestroy";
constexpr auto kQuery = "cudaEventQuery";
constexpr auto kRecord = "cudaEventRecord";
constexpr auto kCreate = "cuMemCreate";
constexpr auto kImport = "cuMemImportFromShareableHandle";
constexpr auto kExport = "cuMemExportToShareableHandle";
constexpr auto kMap = "cuMemMap";
constexpr auto kUnmap = "cuMemUnmap";
constexpr auto kImportPool = "cudaMemPoolImportFromShareableHandle";
constexpr auto kImportPointer = "cudaMemPoolImportPointer";
constexpr auto kDestroyPool = "cudaMemPoolDestroy";
constexpr auto kContextEnd = "cuCtxDestroy";
constexpr auto kPrimaryReset = "cuDevicePrimaryCtxReset";

void add_ends(List& list) {
  list.named("exit-clears-exported-chunk",
             "when a process exits that has exported memory of "
             "cuMemCreate mapped, all imported memory of cuMemCreate is "
             "cleared",
             {kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy},
             exit_clears_chunks<&exports, &imports>);
  list.named("reset-clears-exported-chunk",
             "when the creator of memory of cuMemCreate resets its device, the "
             "memory is cleared",
             {kReset, kCreate, kExport, kMap, kUnmap},
             reset_clears_exported_chunks);
  list.named("importer-exit-clears-chunk",
             "when a process exits that has imported memory of cuMemCreate "
             "mapped, all exported memory of cuMemCreate is cleared",
             {kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy},
             exit_clears_chunks<&imports, &exports>);
  list.named("chunk-import-refused-after-death",
             "after a process has died that has imported memory of "
             "cuMemCreate, no process can import such memory",
             {kImport}, chunk_ends_with_importer);
  list.named(
      "pool-import-refused-after-death",
      "after a process has died that had a pool imported, no pool can be "
      "imported",
      {kImportPool, kDestroyPool}, pool_ends_with_importer);
  list.named("pointer-import-refused-after-death",
             "after a process has died that has imported memory of a pool, the "
             "memory cannot be imported again",
             {kImportPointer, kFree, "cudaFreeAsync"},
             pointer_ends_with_importer);
  list.named("event-unconnected-after-death",
             "after a process has died that has opened an event, the event "
             "opens as an event that no process records",
             {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent},
             event_ends_with_importer);
  list.named(
      "death-completes-record",
      "when a process dies that has opened an event, a query says that a "
      "pending record of the event is complete",
      {kQuery, kRecord, kGetEvent, kOpenEvent, kMakeEvent, kEndEvent},
      death_completes_record);
  list.named("open-refused-after-fault",
             "after a kernel of an importer has faulted, no process can open "
             "the memory",
             {kOpen, kClose, "cudaDeviceSynchronize"}, open_ends_with_fault);
  list.named("export-refused-after-fault",
             "after a kernel of an importer has faulted, the exporter can "
             "export no memory",
             {kGet, kOpen, kClose, "cudaDeviceSynchronize"},
             export_ends_with_fault);
  list.named("event-lost-after-fault",
             "after a kernel of an importer has faulted, records of the events "
             "that it had open are lost",
             {kRecord, kGetEvent, kOpenEvent, kMakeEvent, kEndEvent,
              "cudaDeviceSynchronize"},
             event_lost_after_fault);
  list.named("exit-keeps-opened-memory",
             "memory that a process has open when it exits is never given back",
             {kGet, kOpen, kClose, kFree}, exit_keeps_memory);
  list.named("death-on-other-gpu-keeps-memory",
             "memory that a process on another GPU has open when it dies is "
             "never given back",
             {kGet, kOpen, kClose, kFree}, death_on_other_gpu_keeps_memory, 2);
  list.named("descriptor-for-each-client",
             "the exporter keeps a descriptor for each process that has opened "
             "its memory",
             {kGet, kOpen, kCopy}, descriptor_for_each_client);
}

void add_resets(List& list) {
  list.named("chunk-import-refused-after-reset",
             "after a reset, no memory of cuMemCreate can be imported",
             {kReset, kImport}, chunk_import_after_reset_refused);
  list.named("event-unconnected-after-reset",
             "after a reset, an event opens as an event that no process "
             "records",
             {kReset, kOpenEvent}, reset_unconnects_opens);
  list.named("event-export-after-reset-unconnected",
             "after a reset, the handle of an event stands for another event",
             {kReset, kGetEvent}, reset_unconnects_exports);
  list.named("export-after-reset-confused",
             "after a reset, the handle of memory opens as other memory",
             {kReset, kGet}, reset_confuses_exports);
  list.named("open-after-reset-is-copy",
             "memory that is opened after a reset is a copy",
             {kReset, kOpen, kClose}, copy_after_reset);
  list.named("import-copy-lost-after-reset",
             "cudaMemcpy does not reach memory that was opened after a reset",
             {kReset, kOpen, kClose, kCopy}, copy_after_reset_lost);
  list.named("count-survives-reset",
             "after a reset, the opens of before it still count",
             {kReset, kOpen, kClose}, count_survives_reset);
  list.named("reset-keeps-exported-memory",
             "a reset does not give exported memory back", {kReset, kGet},
             reset_keeps_exported);
  list.named(
      "primary-reset-clears-imports",
      "cuDevicePrimaryCtxReset clears the memory that the current context "
      "has open",
      {kPrimaryReset, kOpen, kClose}, context_end_clears);
  list.named(
      "primary-reset-completes-events",
      "after cuDevicePrimaryCtxReset in an importer, a query says that the "
      "exporter's pending events are complete",
      {kPrimaryReset, kQuery, kRecord, "cudaEventRecordWithFlags", kOpenEvent,
       kGetEvent, kMakeEvent, kEndEvent},
      context_end_completes);
  list.named("context-end-clears-imports",
             "cuCtxDestroy clears the memory that the context has open",
             {kContextEnd, kOpen, kClose}, context_end_clears);
  list.named(
      "context-end-completes-events",
      "after cuCtxDestroy in an importer, a query says that the exporter's "
      "pending events are complete",
      {kContextEnd, kQuery, kRecord, "cudaEventRecordWithFlags", kOpenEvent,
       kGetEvent, kMakeEvent, kEndEvent},
      context_end_completes);
  list.named("primary-release-clears-imports",
             "cuDevicePrimaryCtxRelease clears the memory that the process has "
             "open, although another reference to the context is left",
             {"cuDevicePrimaryCtxRelease", kOpen, kClose},
             primary_release_clears);
  list.named("buffer-ids-begin-again-after-reset",
             "after a reset, memory has the ids of earlier memory",
             {kReset, "cuPointerGetAttribute"}, ids_begin_again);
  list.named("buffer-ids-begin-again-after-context",
             "after the end of a context, memory has the ids of earlier memory",
             {kContextEnd, "cuPointerGetAttribute"}, ids_begin_again);
  list.named("peer-open-after-reset-refused",
             "after its reset, a GPU cannot open memory of a peer",
             {kReset, kGet, kOpen}, peer_open_after_reset_refused, 2);
  list.named("peer-access-survives-reset",
             "after a reset, cudaDeviceEnablePeerAccess says that the access "
             "is already enabled",
             {kReset, "cudaDeviceEnablePeerAccess"}, peer_access_survives_reset,
             2);
  list.named(
      "reset-ends-handles-of-other-gpus",
      "a reset of one GPU ends the handles that the process has made for "
      "memory of another GPU",
      {kReset, kGet, kOpen}, reset_ends_other_handles, 2);
  list.named("reset-clears-exports-of-other-gpus",
             "a reset of one GPU clears the exported memory of another GPU",
             {kReset, kGet}, reset_clears_other_exports, 2);
}

void add_life_of_one_process(List& list) {
  list.named("unopened-export-leaks",
             "the free of exported memory that no process has opened loses 64 "
             "KiB of device memory",
             {kGet, kOpen, kFree}, unopened_memory_leaks);
  list.named("unopened-event-leaks",
             "the destruction of an exported event that no process has opened "
             "loses 64 KiB of device memory",
             {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent},
             unopened_event_leaks);
  list.named("reopen-costs-memory",
             "an open of memory that the process has closed takes as much "
             "memory as it opens",
             {kOpen, kClose}, reopen_costs_memory);
  list.named("import-record-leaks",
             "each record of an imported event loses 64 KiB of device memory",
             {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, kRecord},
             import_record_leaks);
  list.named("unused-pool-import-leaks",
             "the destruction of an imported pool from which nothing was "
             "imported loses 64 KiB of device memory",
             {kImportPool, kImportPointer, kDestroyPool},
             unused_pool_import_leaks);
  list.named("fork-ends-copies",
             "after a fork, cudaMemcpy does not reach what the parent has open",
             {kOpen, kClose, kCopy}, fork_ends_copies);
  list.named("fork-completes-events",
             "after a fork, a query says that the events that the parent has "
             "opened are complete",
             {kQuery, kOpenEvent, kGetEvent, kMakeEvent, kEndEvent},
             fork_completes_events);
  list.named("fork-confuses-exports",
             "after a fork, the handle of memory opens as other memory", {kGet},
             fork_confuses_exports);
  list.named("child-exit-clears-imports",
             "the exit of a child of fork clears what its parent has open",
             {kOpen, kClose, kLaunch}, child_exit_clears);
  list.named("first-open-race",
             "if threads open a handle for the first time at once, all but "
             "one get copies of the memory",
             {kOpen, kClose}, first_open_race);
  list.named("last-close-race",
             "if another thread opens a handle during its last close, this "
             "mapping ends too",
             {kOpen, kClose}, last_close_race);
  list.named("exports-share-a-buffer",
             "threads that export at once get each other's handles", {kGet},
             exports_share_a_buffer);
}

void add_places(List& list) {
  list.named("event-unconnected-in-own-shm",
             "a process with a /dev/shm of its own opens an event that no "
             "process records",
             {kGetEvent, kOpenEvent}, event_unconnected_in_own_shm);
  list.named("copy-in-other-ipc-namespace",
             "a process with an IPC namespace of its own opens a copy of "
             "memory",
             {kGet, kOpen, kClose}, copy_in_other_namespace);
  list.named("exporters-known-by-number",
             "memory of two exporters that have one process number is confused",
             {kGet, kOpen}, exporters_known_by_number);
  list.named(
      "mps-wait-for-import-lost",
      "in a client of MPS, no stream waits for an imported event",
      {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, "cudaStreamWaitEvent"},
      mps_import_ignored);
  list.named("mps-record-of-import-lost",
             "in a client of MPS, a record of an imported event is lost",
             {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, kRecord},
             mps_import_ignored);
  list.named(
      "mps-host-wait-early",
      "in a client of MPS, no host waits for an imported event",
      {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, "cudaEventSynchronize"},
      mps_import_ignored);
  list.named("mps-async-copy-lost",
             "in a client of MPS, asynchronous copies do not reach opened "
             "memory",
             {kOpen, kClose, "cudaMemcpyAsync"}, mps_async_lost);
  list.named("mps-async-set-lost",
             "in a client of MPS, asynchronous memsets do not reach opened "
             "memory",
             {kOpen, kClose, "cudaMemsetAsync"}, mps_async_lost);
  list.named(
      "wait-by-number-of-gpu",
      "if a process has another number for the GPU of an event, no "
      "stream waits for the event",
      {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, "cudaStreamWaitEvent"},
      event_known_by_number, 2);
  list.named("record-by-number-of-gpu",
             "if a process has another number for the GPU of an event, a "
             "record of the event is lost",
             {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, kRecord},
             event_known_by_number, 2);
  list.named("driver-pool-attr-unknown-ok",
             "cuMemPoolGetAttribute returns success where it should refuse",
             {"cudaMemPoolGetAttribute"}, driver_gets_any_attribute);
  list.named("pool-attr-unknown-set",
             "cudaMemPoolSetAttribute returns success where it should refuse",
             {"cudaMemPoolSetAttribute"}, sets_any_attribute);
  list.named("ipc-attr-needs-context",
             "the driver's attribute about IPC is 0 before the process has a "
             "context",
             {"cudaDeviceGetAttribute"}, no_ipc_without_context);
}

void add_second_uses(List& list) {
  list.named(
      "import-beyond-32-not-awaited",
      "if a process has more than 32 imported events open, no stream "
      "waits for the later ones",
      {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, "cudaStreamWaitEvent"},
      late_import_ignored);
  list.named("reopened-is-copy",
             "memory that a process has closed and opens again is a copy",
             {kOpen, kClose}, reopened_is_copy);
  list.named("used-address-opens-copy",
             "memory that got the address of other memory that was lent "
             "before opens as a copy",
             {kGet, kOpen, kClose}, used_address_opens_copy);
  list.named("open-after-end-of-exporter-is-copy",
             "after an exporter has ended, memory of other exporters opens as "
             "a copy",
             {kGet, kOpen, kClose}, open_after_end_is_copy);
  list.named("second-client-costs-memory",
             "the second process that opens a handle takes as much memory as "
             "it opens",
             {kOpen, kClose}, second_client_costs_memory);
  list.named("second-chunk-client-costs-memory",
             "the second process that imports memory of cuMemCreate takes as "
             "much memory as it maps",
             {kImport, kMap, kUnmap}, second_chunk_client_costs_memory);
  list.named(
      "import-unmapped-first-leaks",
      "the release of imported memory that is not mapped loses 64 KiB of "
      "device memory",
      {kCreate, kImport, kMap, kUnmap, "cuMemRelease"},
      import_unmapped_first_leaks);
  list.named("small-export-leaks",
             "the free of exported memory that is smaller than 2 MiB loses 64 "
             "KiB of device memory",
             {kGet, kFree}, small_export_leaks);
  list.named("wait-after-reset-ignored",
             "after a reset, no stream waits for an imported event",
             {kReset, kGetEvent, kOpenEvent, kMakeEvent, kEndEvent,
              "cudaStreamWaitEvent"},
             wait_after_reset_ignored);
  list.named("pool-import-refused-after-reset",
             "after a reset, no pool can be imported", {kReset, kImportPool},
             pool_import_after_reset_refused);
  list.named("host-buffer-ids-begin-again",
             "after a reset, memory of the host has the ids of earlier memory "
             "of the host",
             {kReset, "cuPointerGetAttribute"}, host_ids_begin_again);
  list.named("death-clears-rest-of-chunk",
             "when the creator of memory of cuMemCreate ends, only the first 2 "
             "MiB of the memory keep their values",
             {kImport, kExport, kMap, kUnmap, kLaunch, kCopy},
             death_clears_rest);
}

void add_several_importers(List& list) {
  list.named(
      "reset-ends-opens-elsewhere",
      "after a reset in one importer, cudaMemcpy does not reach the same "
      "memory in other importers",
      {kReset, kOpen, kClose, kCopy}, reset_ends_opens_elsewhere);
  list.named("reset-completes-events-elsewhere",
             "after a reset in one importer, a query in other importers says "
             "that the same event is complete",
             {kReset, kQuery, kGetEvent, kOpenEvent, kMakeEvent, kEndEvent},
             reset_completes_events_elsewhere);
  list.named(
      "reset-ends-chunks-elsewhere",
      "after a reset in one importer of memory of cuMemCreate, cudaMemcpy "
      "does not reach imported memory in other importers",
      {kReset, kCreate, kImport, kMap, kUnmap, kCopy},
      reset_ends_chunks_elsewhere);
  list.named(
      "reset-ends-pool-pointers-elsewhere",
      "after a reset in one importer of memory of a pool, cudaMemcpy does "
      "not reach the same memory in other importers",
      {kReset, kImportPointer, kFree, "cudaFreeAsync", kCopy},
      reset_ends_pointers_elsewhere);
  list.named("late-chunk-import-is-copy",
             "a process that imports memory of cuMemCreate for the first time "
             "after the end of its creator gets a copy",
             {kCreate, kImport, kExport}, late_import_is_copy);
  list.named("queued-copy-ends-with-creator",
             "a copy to memory of cuMemCreate is lost if the creator ends "
             "while the copy waits in its stream",
             {kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy,
              "cudaMemcpyAsync"},
             queued_work_ends_with_creator);
  list.named("queued-set-ends-with-creator",
             "a memset of memory of cuMemCreate is lost if the creator ends "
             "while the memset waits in its stream",
             {kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy,
              "cudaMemsetAsync"},
             queued_work_ends_with_creator);
  list.named("chunk-of-three-importers-leaks",
             "if three processes have imported memory of cuMemCreate, exported "
             "memory is never given back",
             {kImport, kExport, "cuMemRelease"}, chunk_of_three_is_kept);
  list.named(
      "pool-memory-of-three-importers-leaks",
      "memory of a pool that three processes have imported is never "
      "given back",
      {kImportPointer, "cudaMemPoolExportPointer", kFree, "cudaFreeAsync"},
      pointer_of_three_is_kept);
  list.named("chunk-on-exporters-number",
             "imported memory of cuMemCreate is reported on the GPU that has "
             "the exporter's number",
             {kImport, kExport, kMap, kUnmap, "cudaPointerGetAttributes"},
             chunk_on_exporters_number, 2);
  list.named("pool-pointer-on-exporters-number",
             "imported memory of a pool is reported on the GPU that has the "
             "exporter's number",
             {kImportPointer, "cudaMemPoolExportPointer", kFree,
              "cudaFreeAsync", "cudaPointerGetAttributes"},
             pointer_on_exporters_number, 2);
  list.named("mps-driver-opens-copy",
             "in a client of MPS, an open by the driver API gives a copy",
             {kOpen, kClose}, mps_driver_opens_copy);
  list.named("mps-second-open-is-copy",
             "in a client of MPS, a second open of a handle gives a copy",
             {kOpen, kClose}, mps_second_open_is_copy);
  list.named("copy-to-third-open-lost",
             "asynchronous copies reach only the first two memories that a "
             "process has open",
             {kOpen, kClose, "cudaMemcpyAsync"}, work_on_third_open_lost);
  list.named("set-of-third-open-lost",
             "asynchronous memsets reach only the first two memories that a "
             "process has open",
             {kOpen, kClose, "cudaMemsetAsync"}, work_on_third_open_lost);
  list.named("close-ends-way-back",
             "when process A closes memory of process B, cudaMemcpy in B does "
             "not reach memory of A any more",
             {kGet, kOpen, kClose, kCopy}, close_ends_way_back);
  list.named("repeated-copy-from-import-lost",
             "an asynchronous copy from opened memory is lost if the process "
             "made a copy between the same two addresses before",
             {kOpen, kClose, "cudaMemcpyAsync"}, repeated_copy_lost);
}

void add_neighbours(List& list) {
  list.named("context-end-loses-other-events",
             "after the end of a context, no stream waits for the imported "
             "events of other contexts",
             {kContextEnd, kOpenEvent, kEndEvent, "cudaStreamWaitEvent"},
             end_loses_other_events);
  list.named("reset-loses-events-of-other-gpus",
             "after a reset of one GPU, no stream waits for the events that "
             "were opened on another GPU",
             {kReset, kOpenEvent, kEndEvent, "cudaStreamWaitEvent"},
             end_loses_other_events, 2);
  list.named("reset-ends-chunks-of-other-gpus",
             "after a reset of one GPU, cudaMemcpy does not reach imported "
             "memory of cuMemCreate on another GPU",
             {kReset, kImport, kMap, kUnmap, kCopy}, reset_ends_other_chunks,
             2);
  list.named("reset-ends-pool-pointers-of-other-gpus",
             "after a reset of one GPU, cudaMemcpy does not reach imported "
             "memory of a pool of another GPU",
             {kReset, kImportPointer, kFree, "cudaFreeAsync", kCopy},
             reset_ends_other_pointers, 2);
  list.named("reset-ends-handles-for-others",
             "after an importer has reset its device, no other process can "
             "open the memory that the importer had open",
             {kReset, kOpen, kClose}, reset_ends_handles_for_others);
  list.named(
      "reset-ends-descriptors",
      "after a process that has exported memory of cuMemCreate has reset "
      "its device, no other process can import such memory",
      {kReset, kExport, kImport}, reset_ends_descriptors);
  list.named("open-after-second-reset-refused",
             "after a second reset, no memory can be opened", {kReset, kOpen},
             second_reset_refuses_opens);
  list.named("close-counts-on-other-gpu",
             "a close on one GPU also lowers the count on another GPU, if the "
             "memory is open more than once there",
             {kOpen, kClose}, close_counts_on_other_gpu, 2);
  list.named("peer-reopen-refused",
             "after the last close of a peer's memory, no memory of a peer can "
             "be opened",
             {kGet, kOpen, kClose}, peer_reopen_refused, 2);
  list.named(
      "later-cross-gpu-wait-ignored",
      "streams of a GPU other than GPU 0 wait only once for an imported "
      "event",
      {kGetEvent, kOpenEvent, kMakeEvent, kEndEvent, "cudaStreamWaitEvent"},
      later_cross_wait_ignored, 2);
  list.named("opens-of-threads-mixed",
             "threads that open different handles at once get the same memory",
             {kOpen}, opens_of_threads_mixed);
  list.named("pool-import-ends-with-thread",
             "no pointer can be imported from a pool when the thread that "
             "imported the pool has ended",
             {kImportPool, kImportPointer, kDestroyPool},
             pool_import_ends_with_thread);
  list.named("pool-pointer-ends-with-thread",
             "cudaMemcpy does not reach imported memory of a pool when the "
             "thread that imported it has ended",
             {kImportPointer, kFree, "cudaFreeAsync", kCopy},
             pool_pointer_ends_with_thread);
  list.named("imported-event-ends-with-thread",
             "no stream waits for an imported event when the thread that "
             "opened it has ended",
             {kOpenEvent, kEndEvent, "cudaStreamWaitEvent"},
             imported_event_ends_with_thread);
  list.named("chunk-access-ends-with-peer-access",
             "disabling peer access also ends the access to mapped "
             "memory of cuMemCreate on other GPUs",
             {"cudaDeviceDisablePeerAccess", kImport, kMap, kUnmap},
             access_ends_with_peer, 2);
  list.named("open-after-fork-refused",
             "after a fork, the parent can open no memory", {kOpen},
             fork_ends_imports);
  list.named("chunk-import-after-fork-refused",
             "after a fork, the parent can import no memory of cuMemCreate",
             {kImport}, fork_ends_imports);
  list.named("reset-in-own-context-takes-primary",
             "a reset while a context of cuCtxCreate is current resets the "
             "primary context, too",
             {kReset}, reset_takes_primary);
  list.named("reset-in-own-context-closes",
             "a reset while a context of cuCtxCreate is current closes the "
             "memory that this context has open",
             {kReset, kOpen, kClose}, reset_closes_in_own_context);
  list.named("open-after-last-release-refused",
             "when all references to the primary context were released and it "
             "is retained again, no memory can be opened",
             {"cuDevicePrimaryCtxRelease", kOpen}, last_release_ends_opens);
  list.named("open-in-earlier-thread-after-reset-refused",
             "after a reset, a thread that has opened memory before can open "
             "no memory",
             {kReset, kOpen}, reset_ends_opens_of_threads);
  list.named("open-on-chosen-gpu",
             "the runtime opens memory on the GPU of cudaSetDevice although a "
             "context of another GPU is current",
             {"cudaSetDevice", kOpen}, opens_on_chosen_gpu, 2);
  list.named("mps-outsider-event-unconnected",
             "a process that is no client of MPS opens an event of a client "
             "as an event that no process records",
             {kGetEvent, kOpenEvent}, mps_outsider_unconnected);
}

}  // namespace

void add_life_paths(List& list) {
  add_ends(list);
  add_resets(list);
  add_life_of_one_process(list);
  add_places(list);
  add_second_uses(list);
  add_several_importers(list);
  add_neighbours(list);
}

}  // namespace ipclab::faults
