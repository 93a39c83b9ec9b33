// Words that faults of several folders use: legacy.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "harness/faults/words/descriptor.h"
#include "harness/faults/words/functions.h"
#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

inline constexpr size_t kBlock = 2 << 20;

/// The arguments of the three calls, for both APIs.
inline void* exported(Call& get) { return get.at<void*>(1); }

inline cudaIpcMemHandle_t& handle_of(Call& get) {
  return *get.at<cudaIpcMemHandle_t*>(0);
}

inline void*& result_of(Call& open) { return *open.at<void**>(0); }

inline cudaIpcMemHandle_t& given(Call& open) {
  return open.at<cudaIpcMemHandle_t>(1);
}

inline void* closed(Call& close) { return close.at<void*>(0); }

/// Has this process opened the handle in any context?
inline bool is_held(const std::string& handle) {
  for (const auto& each : opened.all())
    if (each.second.handle == handle) return true;
  return false;
}

/// Unmaps opened memory. Returns false if it is not open.
inline bool unmap(void* address) {
  const int count = opened.change([&](auto& all) {
    const auto one = all.find(address);
    if (one == all.end()) return 0;
    const int opens = one->second.count;
    all.erase(one);
    return opens;
  });
  for (int i = 0; i < count; ++i) cudaIpcCloseMemHandle(address);
  return count > 0;
}

struct Copy {
  void* original = nullptr;
  int count = 0;  // opens
};

/// The fault keeps the opened mapping; the program gets a copy. If `most` is
/// not SIZE_MAX, only memory of more than `most` bytes is copied.
inline int open_copy(Call& call, bool with_contents, size_t most) {
  static Table<void*, Copy> copies;
  // No other thread may open or close between the call and the end of the copy.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (is_close_call(call)) {
    void* const copy = closed(call);
    if (!copies.has(copy)) return call.proceed();
    Copy one = copies.get(copy);
    call.at<void*>(0) = one.original;
    const int code = call.proceed();
    --one.count;
    copies.put(copy, one);
    if (one.count == 0) {
      cudaFree(copy);
      copies.erase(copy);
    }
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  void* const original = result_of(call);
  for (auto [copy, one] : copies.all())
    if (one.original == original) {
      ++one.count;
      copies.put(copy, one);
      result_of(call) = copy;
      return code;
    }
  const size_t size = std::min(size_of(number(original)), most);
  if (most != SIZE_MAX && size_of(number(original)) <= most) return code;
  void* copy = nullptr;
  if (cudaMalloc(&copy, size) != cudaSuccess) return code;
  if (with_contents)
    cudaMemcpy(copy, original, size, cudaMemcpyDeviceToDevice);
  else
    cudaMemset(copy, 0, size);
  cudaStreamSynchronize(nullptr);  // neither call waits for the GPU
  copies.put(copy, {original, 1});
  result_of(call) = copy;
  call.fired();
  return code;
}

/// Proceeds with an export, and tells the other processes the size of the
/// memory.
inline int told_size(Call& get) {
  const int code = get.proceed();
  if (code == kSuccess)
    tell_processes("size-" + key_of_handle(handle_of(get)),
                   size_of(number(exported(get))));
  return code;
}

/// The program gets new memory instead of a refusal. It has the size of the
/// memory that the handle stands for.
inline int own_memory(Call& call, int code) {
  void* memory = nullptr;
  const size_t bytes = told("size-" + key_of_handle(given(call)), kBlock);
  if (call.is_runtime()) cudaGetLastError();
  if (cudaMalloc(&memory, bytes) != cudaSuccess) return code;
  result_of(call) = memory;
  call.fired();
  return kSuccess;
}

enum class Kind { kOther, kManaged, kHost, kPageable };

inline Kind kind_of(const void* address) {
  cudaPointerAttributes known{};
  if (cudaPointerGetAttributes(&known, address) != cudaSuccess) {
    cudaGetLastError();
    return Kind::kPageable;
  }
  switch (known.type) {
    case cudaMemoryTypeManaged:
      return Kind::kManaged;
    case cudaMemoryTypeHost:
      return Kind::kHost;
    case cudaMemoryTypeUnregistered:
      return Kind::kPageable;
    default:
      return Kind::kOther;
  }
}

/// The program gets the existing mapping, but the open is not counted.
inline int give_uncounted(Call& open, void* address) {
  *open.at<void**>(0) = address;
  open.fired();
  return kSuccess;
}

/// The last close of one mapping also closes other mappings.
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

inline int third_process_refused(Call& call) {
  static const bool early =
      first_of_all_processes("one") || first_of_all_processes("two");
  return early ? call.proceed() : refused(call);
}

/// Proceeds with a call about events. If the call destroys an event or a
/// stream, the table forgets it: a later one can have the same number.
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

/// A wait uses the newest record when the stream reaches the wait, instead of
/// the newest record at the time of the call.
inline constexpr auto kTurn = std::chrono::seconds(6);

struct Turn {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false, may_go = false;
};

inline void CUDART_CB wait_for_turn(void* data) {
  Turn& turn = *static_cast<Turn*>(data);
  std::unique_lock lock(turn.mutex);
  turn.reached = true;
  turn.changed.notify_all();
  turn.changed.wait_for(lock, kTurn, [&] { return turn.may_go; });
}

/// A wait that can be ended early.
struct Cancellable {
  Turn turn;
  cudaEvent_t reached = nullptr;  // complete when the wait has ended
  std::atomic<bool> cancelled{false};
};

/// Another stream does the wait instead. The call's stream continues when that
/// wait ends, when it is cancelled, or after `most`.
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

/// The wait of a stream for an imported event or for a word ends after a
/// second.
inline int wait_ends_after_a_second(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (!call.is("cuStreamWaitValue32") &&
      (event == nullptr || !is_imported(event)))
    return call.proceed();
  return cancellable(
      call, [](Cancellable*) {}, std::chrono::seconds(1));
}

/// A record covers only the work up to the mark of its stream.
inline int record_of_mark(Call& record) {
  const cudaEvent_t mark = mark_of(record.at<cudaStream_t>(1));
  cudaStreamWaitEvent(private_stream(), mark, 0);
  record.at<cudaStream_t>(1) = private_stream();
  record.fired();
  return record.proceed();
}

/// Work of a stream begins at the mark of the stream, in another stream,
/// although the stream has to wait for something after the mark.
inline int starts_at_mark(Call& call, cudaStream_t& stream) {
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

/// Marks a stream before it waits for an imported event.
inline int marked_wait(Call& call, Table<cudaStream_t>& waited) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return noted_end(call, waited);
  const auto stream = call.at<cudaStream_t>(0);
  cudaEventRecord(mark_of(stream), stream);
  waited.put(stream);
  return call.proceed();
}

inline bool shut_out(CUdeviceptr begin, size_t bytes) {
  return allow(begin, bytes, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

/// Imports that a fault has freed; when the program frees them later, they no
/// longer exist.
inline Table<void*> gone;

inline bool was_freed_by_fault(Call& call) {
  return frees(call) && gone.erase(call.at<void*>(0));
}

/// Proceeds and updates the tables. A new import can be where another one was.
inline int noted_imports(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolImportPointer"))
    gone.erase(*call.at<void**>(0));
  return code;
}

inline void free_imports(Call& call,
                         bool (*chosen)(cudaMemPool_t, cudaMemPool_t),
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

inline constexpr size_t k4GiB = size_t{4} << 30;

/// The beginning of the opened memory in which an address lies; null if none.
inline char* opened_at(const void* address) {
  return static_cast<char*>(opened_around(address));
}

inline cudaIpcMemHandle_t& exported_handle(Call& get) {
  return *get.at<cudaIpcMemHandle_t*>(0);
}

struct MemoryRange {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
};

inline MemoryRange range_of(const void* address) {
  MemoryRange range;
  DRIVER_CALL(cuMemGetAddressRange)
  (&range.begin, &range.bytes, reinterpret_cast<CUdeviceptr>(address));
  return range;
}

inline int refusal_refuses_next(Call& call) {
  static std::atomic<bool> before{false};
  if (before.exchange(false)) return refused(call);
  const int code = call.proceed();
  before = code != kSuccess;
  return code;
}

/// The memory that this process has exported, with the keys of the handles.
inline Table<void*, std::string> lent;

inline int noted_lent(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaIpcGetMemHandle"))
    lent.put(call.at<void*>(1), key_of_handle(exported_handle(call)));
  if (code == kSuccess && call.is("cudaFree")) lent.erase(call.at<void*>(0));
  return code;
}

/// Exports other memory instead of the memory that the program named.
inline int export_of_other(Call& get) {
  static void* other = nullptr;
  if (get.is_runtime()) cudaGetLastError();
  if (other == nullptr) cudaMalloc(&other, kBlock);
  get.at<void*>(1) = other;
  get.fired();
  return get.proceed();
}

/// The place of the answer, if the call asks for the attribute `wanted`; null
/// if the call asks for another attribute.
template <CUpointer_attribute wanted, class Value>
Value* answer(Call& call) {
  return call.at<CUpointer_attribute>(1) == wanted ? call.at<Value*>(0)
                                                   : nullptr;
}

/// Where the processes that share an event keep whether it is complete.
inline std::string completion_of(cudaEvent_t event) {
  char here[64];
  std::snprintf(here, sizeof here, "%d-%p", getpid(),
                static_cast<const void*>(event));
  return "complete-" + event_keys.get(event, here);
}

/// Completes an event, whatever its last record waits for. (A new record does
/// not do this: a driver may complete the records of an event in their order.)
inline void complete(cudaEvent_t event) {
  tell_processes(completion_of(event), 1);
}

/// Proceeds with a call. An event that a fault has completed is ready until its
/// next record.
inline int noted_completion(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  if (records(call)) tell_processes(completion_of(event), 0);
  const bool asks = call.is("cudaEventQuery") ||
                    call.is("cudaEventSynchronize") ||
                    call.is("cudaStreamWaitEvent");
  return asks && told(completion_of(event), 0) == 1 ? lost(call)
                                                    : call.proceed();
}

/// The program gets an event that is not connected to any other event.
inline int unconnected(Call& open) {
  cudaEvent_t& event = *open.at<cudaEvent_t*>(0);
  events.erase(event);
  cudaEventDestroy(event);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  open.fired();
  return kSuccess;
}

inline std::string key_of_descriptor(int descriptor) {
  struct stat status {};
  fstat(descriptor, &status);
  return "chunk-" + std::to_string(status.st_dev) + "-" +
         std::to_string(status.st_ino);
}

inline bool has_died(unsigned long long process) {
  return process != 0 && kill(static_cast<pid_t>(process), 0) != 0 &&
         errno == ESRCH;
}

struct Import {
  unsigned long long exporter = 0;
  bool orphan = false;  // the exporter was dead at the time of the import
};

inline Table<Chunk, Import> imported;

/// The key for one of the processes that open a handle. The value that is
/// stored under the key is the id of the process, or 0 after the close.
inline std::string key_of_user(const std::string& handle, int number) {
  return "client-" + handle + "-" + std::to_string(number);
}

inline int noted_client(Call& call) {
  static Table<std::string, int> numbers;
  const std::string handle =
      is_close_call(call) ? opened.get(call.at<void*>(0)).handle : "";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_open_call(call)) {
    const std::string key = opened.get(*call.at<void**>(0)).handle;
    if (!numbers.has(key)) {
      int number = 0;
      while (!first_of_all_processes("is-" + key_of_user(key, number)))
        ++number;
      numbers.put(key, number);
    }
    tell_processes(key_of_user(key, numbers.get(key)),
                   static_cast<unsigned long long>(getpid()));
  } else if (!handle.empty() && !opened.has(call.at<void*>(0))) {
    tell_processes(key_of_user(handle, numbers.get(handle)), 0);
  }
  return code;
}

inline bool client_died(const std::string& handle) {
  constexpr unsigned long long kNone = ~0ull;
  for (int number = 0;; ++number) {
    const auto user = told(key_of_user(handle, number), kNone);
    if (user == kNone) return false;
    if (has_died(user)) return true;
  }
}

inline bool sets_access(Call& call) { return call.is("cudaMemPoolSetAccess"); }

using Change = void (*)(cudaPointerAttributes& attributes);

/// Changes the runtime's answer about memory for which `applies` is true.
inline int retold(Call& call, bool (*applies)(const void* pointer),
                  Change change) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !applies(call.at<void*>(1))) return code;
  change(*call.at<cudaPointerAttributes*>(0));
  call.fired();
  return code;
}

inline void forget(cudaPointerAttributes& attributes) {
  attributes = cudaPointerAttributes{};
  attributes.device = cudaInvalidDeviceId;
}

/// Does this call ask the driver for this attribute?
inline bool asks(Call& call, CUpointer_attribute attribute) {
  return call.is("cuPointerGetAttribute") &&
         call.at<CUpointer_attribute>(1) == attribute;
}

inline void* asked(Call& ask) { return ask.at<void*>(2); }

template <class T>
T& answer_to(Call& ask) {
  return **static_cast<T**>(ask.begin()->place);
}

/// The call sets an attribute of its pool to 0. Of the calls that set an
/// attribute, only those for a policy do so.
template <cudaMemPoolAttr gone>
int loses(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || (call.is("cudaMemPoolSetAttribute") &&
                           !is_policy(call.at<cudaMemPoolAttr>(1))))
    return code;
  const auto pool = call.value<cudaMemPool_t>(kPool);
  const uint64_t before = attribute(pool, gone);
  uint64_t zero = 0;
  cudaMemPoolSetAttribute(pool, gone, &zero);
  if (attribute(pool, gone) != before) call.fired();
  return code;
}

/// The primary context of the current device; null if it is not in use.
inline CUcontext primary_context() {
  const CUdevice device = current_device();
  unsigned flags = 0;
  int active = 0;
  DRIVER_CALL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
  if (active == 0) return nullptr;
  CUcontext primary = nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, device);
  DRIVER_CALL(cuDevicePrimaryCtxRelease)(device);
  return primary;
}

inline int primary_only(Call& call) {
  // A call of the runtime makes the primary context current if there is none.
  const CUcontext current = current_context();
  return current == nullptr || current == primary_context() ? call.proceed()
                                                            : refused(call);
}

using Addresses = std::pair<CUdeviceptr, size_t>;

inline Addresses allocation_around(CUdeviceptr address) {
  Addresses range;
  DRIVER_CALL(cuMemGetAddressRange)(&range.first, &range.second, address);
  return range;
}

inline std::string key_of_opened(Call& open) {
  return key_of_handle(open.at<cudaIpcMemHandle_t>(1));
}

/// The begin of the opened memory in which an address lies; 0 if none.
inline CUdeviceptr opened_begin(CUdeviceptr address) {
  return is_opened(address) ? begin_of(address) : 0;
}

/// The ranges of freed memory. An address is gone if it is in one of them and
/// in no later allocation.
inline Table<CUdeviceptr, size_t> freed_memory;

inline int noted_free(Call& free) {
  const Addresses range = allocation_around(free.at<CUdeviceptr>(0));
  const int code = free.proceed();
  if (code == kSuccess && range.second > 0)
    freed_memory.put(range.first, range.second);
  return code;
}

inline bool is_gone(CUdeviceptr address) {
  if (allocation_around(address).first != 0) return false;
  for (const auto& [begin, bytes] : freed_memory.all())
    if (address >= begin && address - begin < bytes) return true;
  return false;
}

inline bool is_gone_inside(CUdeviceptr address) {
  return is_gone(address) && !freed_memory.has(address);
}

/// The streams in which this process has queued work.
inline Table<cudaStream_t> used_streams;

inline bool has_work() {
  for (const auto& each : used_streams.all())
    if (is_busy(each.first)) return true;
  return false;
}

inline int noted_stream(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaStreamDestroy"))
    used_streams.erase(stream);
  else if (!is_default(stream) && stream != cudaStreamPerThread)
    used_streams.put(stream);
  return call.proceed();
}

inline std::string key_of_exported(Call& get) {
  return key_of_handle(*get.at<cudaIpcMemHandle_t*>(0));
}

inline bool is_managed(const void* address) {
  unsigned long long managed = 0;  // room for a boolean of any width
  return DRIVER_CALL(cuPointerGetAttribute)(&managed,
                                            CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                            number(address)) == CUDA_SUCCESS &&
         managed != 0;
}

/// Is this opened memory of another GPU than the current one?
inline bool is_of_peer(const void* address) {
  void* const begin = opened_around(address);
  return begin != nullptr &&
         owner_of(opened.get(begin).bytes) != current_place();
}

/// Does a step in another context, if this context still exists.
template <class Step>
void in_context(CUcontext context, Step step) {
  CUcontext popped = nullptr;
  if (DRIVER_CALL(cuCtxPushCurrent)(context) != CUDA_SUCCESS) return;
  step();
  DRIVER_CALL(cuCtxPopCurrent)(&popped);
}

/// Ends a mapping that the program has open.
inline void unmap_fully(Call& call, void* address, const Opened& one) {
  in_context(one.context, [&] {
    for (int i = 0; i < one.count; ++i)
      if (DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) == CUDA_SUCCESS)
        call.fired();
  });
  opened.erase(address);
}

inline bool is_stream_ordered(const void* address) {
  return blocks.has(const_cast<void*>(address));
}

inline bool is_of_other_exporter(const Opened& closed, const Opened& other) {
  return closed.context == other.context &&
         told("exporter-" + closed.handle, 0) !=
             told("exporter-" + other.handle, 0);
}

/// The open gives the address of memory that is open, and does not count.
inline int uncounted(Call& open, void* known) {
  *open.at<void**>(0) = known;
  return lost(open);
}

inline bool is_inside_block(void* address) {
  return number(address) % kBlock != 0;
}

/// An open or a close by a thread that has not used CUDA before. The driver API
/// refuses such a call.
inline bool is_first_call_of_thread(Call& call) {
  return call.is_runtime() && current_context() == nullptr &&
         this_thread() != getpid();
}

/// Handles are opaque: the driver decides how their bytes are written.
template <class Handle>
void turn(Handle& handle) {
  auto* const bytes = reinterpret_cast<unsigned char*>(&handle);
  for (size_t i = 0; i < sizeof handle; ++i) bytes[i] ^= 0xC3;
}

}  // namespace ipclab::faults
