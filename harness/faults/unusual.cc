// Bugs of legacy handles that show themselves only in unusual programs: with
// many objects, in another order, after a refusal, with a second open, with two
// exporters.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <vector>

#include "harness/faults/engine/fault.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {
namespace {

// --- memory ------------------------------------------------------------------

constexpr size_t kBlock = 2 << 20;

cudaIpcMemHandle_t& exported_handle(Call& get) {
  return *get.at<cudaIpcMemHandle_t*>(0);
}

struct Range {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
};
Range range_of(const void* address) {
  Range range;
  DRIVER_CALL(cuMemGetAddressRange)
  (&range.begin, &range.bytes, reinterpret_cast<CUdeviceptr>(address));
  return range;
}

int open_33rd_is_first(Call& call) {
  if (is_open_call(call) && already_open(call) == nullptr) {
    const auto all = opened.all();
    if (all.size() >= 32) {
      call.at<cudaIpcMemHandle_t>(1) = all.begin()->second.bytes;
      call.fired();
    }
  }
  return call.proceed();
}

int handle_65th_is_first(Call& get) {
  static Table<std::string> known;
  static cudaIpcMemHandle_t first;
  const int code = get.proceed();
  if (code != kSuccess) return code;
  const std::string key = key_of_handle(exported_handle(get));
  if (known.has(key)) return code;
  const size_t before = known.all().size();
  if (before == 0) first = exported_handle(get);
  if (before < 64) {
    known.put(key);
    return code;
  }
  exported_handle(get) = first;
  get.fired();
  return code;
}

// A handle identifies the number of the export, but not the exporter.
int exporters_confused(Call& call) {
  static std::atomic<unsigned long long> exports{0};
  const auto number_of = [](const std::string& handle) {
    return "number-" + handle;
  };
  if (call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string name = number_of(key_of_handle(exported_handle(call)));
    if (told(name, 0) == 0) tell_processes(name, ++exports);
    return code;
  }
  // Only while fewer than 64 mappings are open: each open looks at all of them.
  const auto all = opened.all();
  if (is_open_call(call) && already_open(call) == nullptr && all.size() < 64) {
    auto& handle = call.at<cudaIpcMemHandle_t>(1);
    const auto number = told(number_of(key_of_handle(handle)), 0);
    for (const auto& [unused, one] : all)
      if (number != 0 && told(number_of(one.handle), 0) == number &&
          one.context == current_context()) {
        handle = one.bytes;
        call.fired();
        break;
      }
  }
  return call.proceed();
}

int refusal_refuses_next(Call& call) {
  static std::atomic<bool> before{false};
  if (before.exchange(false)) return refused(call);
  const int code = call.proceed();
  before = code != kSuccess;
  return code;
}

int refused_open_counts(Call& call) {
  const int code = call.proceed();
  if (!is_open_call(call) || code == kSuccess) return code;
  for (const auto& [address, one] : opened.all()) {
    if (one.context != current_context()) continue;
    CUipcMemHandle handle;
    std::memcpy(&handle, &one.bytes, sizeof handle);
    CUdeviceptr again = 0;
    if (DRIVER_CALL(cuIpcOpenMemHandle)(
            &again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS)
      call.fired();
    break;
  }
  return code;
}

int lender_exports_borrowed(Call& call) {
  if (!call.is("cudaIpcGetMemHandle")) return call.proceed();
  const int code = call.proceed();
  const auto all = opened.all();
  if (code != kSuccess || all.empty()) return code;
  exported_handle(call) = all.begin()->second.bytes;
  call.fired();
  return code;
}

// The last close of one handle unmaps nothing as long as another handle is
// open.
int close_waits_for_others(Call& call) {
  static Table<void*> kept;
  if (!is_close_call(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  if (opened.get(address).count == 1 && opened.all().size() > 1) {
    opened.erase(address);
    // If the memory was opened again, the mapping is kept already.
    return kept.put(address) ? no_wait(call) : call.proceed();
  }
  const int code = call.proceed();
  if (!opened.all().empty()) return code;
  for (const auto& one : kept.all()) {
    cudaIpcCloseMemHandle(one.first);
    kept.erase(one.first);
  }
  return code;
}

// Memory can only be closed in the reverse order of the opens.
int close_needs_reverse_order(Call& call) {
  static std::mutex mutex;
  static auto& order = *new std::vector<void*>;
  const std::lock_guard lock(mutex);
  if (is_open_call(call)) {
    const int code = call.proceed();
    if (code == kSuccess && opened.get(*call.at<void**>(0)).count == 1)
      order.push_back(*call.at<void**>(0));
    return code;
  }
  void* const address = call.at<void*>(0);
  if (opened.get(address).count != 1) return call.proceed();
  if (order.back() != address) return refused(call);
  order.pop_back();
  return call.proceed();
}

// The memory that this process has exported, with the keys of the handles.
Table<void*, std::string> lent;
int noted_lent(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaIpcGetMemHandle"))
    lent.put(call.at<void*>(1), key_of_handle(exported_handle(call)));
  if (code == kSuccess && call.is("cudaFree")) lent.erase(call.at<void*>(0));
  return code;
}
int free_ends_imports(Call& call) {
  if (!call.is("cudaFree")) return noted_lent(call);
  const int code = call.proceed();
  if (code != kSuccess || !lent.erase(call.at<void*>(0))) return code;
  for (const auto& [address, one] : opened.all()) {
    for (int i = 0; i < one.count; ++i) cudaIpcCloseMemHandle(address);
    opened.erase(address);
    call.fired();
  }
  return code;
}
int close_ends_exports(Call& call) {
  if (is_open_call(call)) {
    const auto& handle = call.at<cudaIpcMemHandle_t>(1);
    if (told("ended-" + key_of_handle(handle), 0) != 0) return refused(call);
  }
  const int code = noted_lent(call);
  if (is_close_call(call) && code == kSuccess && opened.all().empty())
    for (const auto& one : lent.all()) tell_processes("ended-" + one.second, 1);
  return code;
}
int exported_not_written(Call& call) {
  if (call.find(kBytes) == nullptr) return noted_lent(call);
  const CUdeviceptr begin = range_of(call.value<void*>(kPointer)).begin;
  return lent.has(reinterpret_cast<void*>(begin)) ? no_wait(call)
                                                  : call.proceed();
}

int driver_memory_not_exported(Call& call) {
  static Table<void*> concerned;
  if (!call.is("cudaMalloc"))
    return call.is_runtime() && concerned.has(call.at<void*>(1))
               ? refused(call)
               : call.proceed();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is_runtime())
    concerned.erase(*call.at<void**>(0));  // an earlier allocation had it
  else
    concerned.put(*call.at<void**>(0));
  return code;
}

int primary_context_only(Call& open) {
  CUcontext primary = nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, 0);
  DRIVER_CALL(cuDevicePrimaryCtxRelease)(0);
  int device = 0;
  cudaGetDevice(&device);
  return device == 0 && current_context() != primary ? refused(open)
                                                     : open.proceed();
}

// On a GPU other than the first one, the last close of one mapping ends all
// mappings.
int close_ends_peer_mappings(Call& call) {
  const int code = call.proceed();
  int device = 0;
  cudaGetDevice(&device);
  if (code != kSuccess || !is_close_call(call) || device == 0) return code;
  for (const auto& [address, one] : opened.all()) {
    if (one.context != current_context()) continue;
    for (int i = 0; i < one.count; ++i) cudaIpcCloseMemHandle(address);
    opened.erase(address);
    call.fired();
  }
  return code;
}

int open_clears_last_byte(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_open_call(call)) return code;
  char* const address = *call.at<char**>(0);
  if (opened.get(address).count > 1) return code;
  const Range range = range_of(address);
  if (DRIVER_CALL(cuMemsetD8)(range.begin + range.bytes - 1, 0, 1) ==
      CUDA_SUCCESS)
    call.fired();
  return code;
}

// Pairs of GPUs: the program itself has given the first GPU access to the
// second GPU.
Table<std::pair<int, int>> enabled;
int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}
int noted_peers(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is_runtime()) return code;
  if (call.is("cudaDeviceEnablePeerAccess"))
    enabled.put({current_device(), call.at<int>(0)});
  else if (call.is("cudaDeviceDisablePeerAccess"))
    enabled.erase({current_device(), call.at<int>(0)});
  return code;
}
int close_disables_own_peers(Call& call) {
  const bool is_last =
      is_close_call(call) && opened.get(call.at<void*>(0)).count == 1;
  const int code = noted_peers(call);
  if (code != kSuccess || !is_last) return code;
  for (const auto& one : enabled.all())
    if (one.first.first == current_device() && enabled.erase(one.first) &&
        cudaDeviceDisablePeerAccess(one.first.second) == cudaSuccess)
      call.fired();
  return code;
}
int open_enables_twice(Call& call) {
  if (is_open_call(call))
    for (const auto& one : enabled.all())
      if (one.first.first == current_device())
        return refused(call, cudaErrorPeerAccessAlreadyEnabled);
  return noted_peers(call);
}

// Exports other memory instead of the memory that the program named.
int export_of_other(Call& get) {
  static void* other = nullptr;
  if (get.is_runtime()) cudaGetLastError();
  if (other == nullptr) cudaMalloc(&other, kBlock);
  get.at<void*>(1) = other;
  get.fired();
  return get.proceed();
}

template <unsigned flag>
int host_memory_exported(Call& call) {
  static Table<void*> concerned;
  if (call.is("cudaHostAlloc")) {
    const int code = call.proceed();
    if (code == kSuccess && (call.at<unsigned>(2) & flag) != 0)
      concerned.put(*call.at<void**>(0));
    return code;
  }
  if (call.is("cudaFreeHost")) {
    concerned.erase(call.at<void*>(0));
    return call.proceed();
  }
  return concerned.has(call.at<void*>(1)) ? export_of_other(call)
                                          : call.proceed();
}

int pool_memory_exported(Call& call) {
  static Table<void*> concerned;
  if (frees(call)) {
    concerned.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (!call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) concerned.put(*call.at<void**>(0));
    return code;
  }
  return concerned.has(call.at<void*>(1)) ? export_of_other(call)
                                          : call.proceed();
}

int small_memory_not_exported(Call& get) {
  const size_t bytes = range_of(get.at<void*>(1)).bytes;
  return bytes != 0 && bytes < 256 ? refused(get) : get.proceed();
}

int past_end_exported(Call& get) {
  char*& address = get.at<char*>(1);
  if (address != nullptr && range_of(address).begin == 0) {
    const Range range = range_of(address - 1);
    if (range.begin + range.bytes == get.at<CUdeviceptr>(1)) {
      get.at<CUdeviceptr>(1) = range.begin;
      get.fired();
    }
  }
  return get.proceed();
}

int freed_memory_exported(Call& call) {
  static Table<void*> freed;
  const int code = call.proceed();
  if (call.is("cudaFree")) {
    if (code == kSuccess) freed.put(call.at<void*>(0));
    return code;
  }
  return code != kSuccess && call.at<void*>(1) != nullptr &&
                 freed.has(call.at<void*>(1))
             ? export_of_other(call)
             : code;
}

// Gives the program new memory instead of a refusal. Returns `code` if there is
// no memory.
int open_of_other(Call& open, int code, size_t bytes = kBlock) {
  if (open.is_runtime()) cudaGetLastError();
  if (cudaMalloc(open.at<void**>(0), bytes) != cudaSuccess) return code;
  open.fired();
  return kSuccess;
}

int self_open_by_thread(Call& call) {
  static Table<std::string, size_t> own;  // the size, by the handle's key
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      own.put(key_of_handle(exported_handle(call)),
              range_of(call.at<void*>(1)).bytes);
    return code;
  }
  const std::string key = key_of_handle(call.at<cudaIpcMemHandle_t>(1));
  const int code = call.proceed();
  return code != kSuccess && gettid() != getpid() && own.has(key)
             ? open_of_other(call, code, own.get(key))
             : code;
}

int event_handle_opens_as_memory(Call& call) {
  const int code = call.proceed();
  if (exports_event(call)) {
    tell_processes(
        "is-event-" + key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)), 1);
    return code;
  }
  const auto& handle = call.at<cudaIpcMemHandle_t>(1);
  return code != kSuccess && told("is-event-" + key_of_handle(handle), 0) != 0
             ? open_of_other(call, code)
             : code;
}

int memory_handle_opens_as_event(Call& call) {
  const int code = call.proceed();
  if (call.is("cudaIpcGetMemHandle")) {
    tell_processes("is-memory-" + key_of_handle(exported_handle(call)), 1);
    return code;
  }
  const auto& handle = call.at<cudaIpcEventHandle_t>(1);
  if (code == kSuccess || told("is-memory-" + key_of_handle(handle), 0) == 0)
    return code;
  if (call.is_runtime()) cudaGetLastError();
  cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0), cudaEventDisableTiming);
  return no_wait(call);
}

// The third allocation at an address gets the handle of the first allocation,
// and the fourth gets the handle of the second. The fifth gets the handle of
// the first again, and so on.
int handle_of_one_before_last(Call& get) {
  static Table<void*, std::vector<cudaIpcMemHandle_t>> known;
  const int code = get.proceed();
  if (code != kSuccess) return code;
  auto all = known.get(get.at<void*>(1));
  auto& handle = exported_handle(get);
  if (all.empty() || std::memcmp(&all.back(), &handle, sizeof handle) != 0) {
    all.push_back(handle);
    known.put(get.at<void*>(1), all);
  }
  if (all.size() > 2) {
    handle = all[(all.size() - 1) % 2];
    get.fired();
  }
  return code;
}

int ninth_process_refused(Call& call) {
  static const bool early = [] {
    for (int i = 0; i < 8; ++i)
      if (first_of_all_processes("opener-" + std::to_string(i))) return true;
    return false;
  }();
  return early ? call.proceed() : refused(call);
}

// Memory that a process had open when it died stays in use. Each process that
// opens a handle has its own number for this handle.
std::string key_of_user(const std::string& handle, int number) {
  return "user-" + handle + "-" + std::to_string(number);
}
int own_number(const std::string& handle) {
  static Table<std::string, int> numbers;
  if (!numbers.has(handle)) {
    int number = 0;
    while (!first_of_all_processes("taken-" + key_of_user(handle, number)))
      ++number;
    numbers.put(handle, number);
  }
  return numbers.get(handle);
}
int noted_user(Call& call) {
  const std::string handle =
      is_close_call(call) ? opened.get(call.at<void*>(0)).handle : "";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto tell = [](const std::string& opened_handle, pid_t user) {
    tell_processes(key_of_user(opened_handle, own_number(opened_handle)),
                   static_cast<unsigned long long>(user));
  };
  if (is_open_call(call))
    tell(opened.get(*call.at<void**>(0)).handle, getpid());
  else if (!handle.empty() && !opened.has(call.at<void*>(0)))
    tell(handle, 0);
  return code;
}
bool user_died(const std::string& handle) {
  constexpr unsigned long long kNone = ~0ull;
  for (int number = 0;; ++number) {
    const auto user = told(key_of_user(handle, number), kNone);
    if (user == kNone) return false;
    if (user != 0 && kill(static_cast<pid_t>(user), 0) != 0 && errno == ESRCH)
      return true;
  }
}
int death_keeps_memory(Call& call) {
  static Table<void*, std::string> handles;
  if (call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code == kSuccess)
      handles.put(call.at<void*>(1), key_of_handle(exported_handle(call)));
    return code;
  }
  if (!call.is("cudaFree")) return noted_user(call);
  void* const address = call.at<void*>(0);
  const std::string handle = handles.get(address);
  return handles.erase(address) && user_died(handle) ? no_wait(call)
                                                     : call.proceed();
}
int death_ends_handle(Call& call) {
  return is_open_call(call) &&
                 user_died(key_of_handle(call.at<cudaIpcMemHandle_t>(1)))
             ? refused(call)
             : noted_user(call);
}

// --- queries of pointers -----------------------------------------------------

int range_begins_at_pointer(Call& call) {
  const int code = call.proceed();
  CUdeviceptr* const begin = call.at<CUdeviceptr*>(0);
  if (code != kSuccess || begin == nullptr || *begin == call.at<CUdeviceptr>(2))
    return code;
  *begin = call.at<CUdeviceptr>(2);
  call.fired();
  return code;
}

int range_of_nothing_refused(Call& call) {
  return call.at<void*>(0) == nullptr || call.at<void*>(1) == nullptr
             ? refused(call)
             : call.proceed();
}

int device_pointer_is_begin(Call& call) {
  const int code = call.proceed();
  auto& found = *call.at<cudaPointerAttributes*>(0);
  if (code != kSuccess || found.type != cudaMemoryTypeDevice) return code;
  const CUdeviceptr begin = range_of(call.at<void*>(1)).begin;
  if (begin == 0 || begin == call.at<CUdeviceptr>(1)) return code;
  found.devicePointer = reinterpret_cast<void*>(begin);
  call.fired();
  return code;
}

// After a close, the last answer about opened memory stays.
int attributes_stay(Call& call) {
  static Table<void*, cudaPointerAttributes> known;
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  auto& found = *call.at<cudaPointerAttributes*>(0);
  if (code != kSuccess) return code;
  if (opened.has(call.at<void*>(1))) {
    known.put(call.at<void*>(1), found);
  } else if (known.has(call.at<void*>(1)) &&
             found.type == cudaMemoryTypeUnregistered) {
    found = known.get(call.at<void*>(1));
    call.fired();
  }
  return code;
}

int first_attribute_only(Call& call) {
  if (call.at<unsigned>(0) > 1) {
    call.at<unsigned>(0) = 1;
    call.fired();
  }
  return call.proceed();
}

// The place of the answer, if the call asks for the attribute `wanted`; null if
// the call asks for another attribute.
template <CUpointer_attribute wanted, class Value>
Value* answer(Call& call) {
  return call.at<CUpointer_attribute>(1) == wanted ? call.at<Value*>(0)
                                                   : nullptr;
}
unsigned long long* id_in(Call& call) {
  return answer<CU_POINTER_ATTRIBUTE_BUFFER_ID, unsigned long long>(call);
}
bool* capable_in(Call& call) {
  return answer<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>(call);
}

int id_257th_is_first(Call& call) {
  static Table<unsigned long long> known;
  static unsigned long long first = 0;
  const int code = call.proceed();
  if (code != kSuccess || id_in(call) == nullptr) return code;
  auto& id = *id_in(call);
  if (known.all().empty()) first = id;
  if (known.has(id) || known.all().size() < 256) {
    known.put(id);
    return code;
  }
  id = first;
  call.fired();
  return code;
}

int id_changes(Call& call) {
  static Table<CUdeviceptr, unsigned long long> asked;
  const int code = call.proceed();
  if (code != kSuccess || id_in(call) == nullptr) return code;
  const auto address = call.at<CUdeviceptr>(2);
  const auto times = asked.get(address);
  asked.put(address, times + 1);
  if (times == 0) return code;
  *id_in(call) += times << 40;
  call.fired();
  return code;
}

int capable_at_begin_only(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || capable_in(call) == nullptr || !*capable_in(call) ||
      range_of(call.at<void*>(2)).begin == call.at<CUdeviceptr>(2))
    return code;
  *capable_in(call) = false;
  call.fired();
  return code;
}

int capable_until_export(Call& call) {
  static Table<void*> exported;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaFree")) {
    exported.erase(call.at<void*>(0));
  } else if (call.is("cudaIpcGetMemHandle")) {
    exported.put(call.at<void*>(1));
  } else if (capable_in(call) != nullptr && exported.has(call.at<void*>(2))) {
    *capable_in(call) = false;
    call.fired();
  }
  return code;
}

// Memory from these functions is reported as capable of legacy IPC.
int such_memory_capable(Call& call) {
  static Table<void*> concerned;
  const int code = call.proceed();
  if (call.find(kOut) != nullptr) {
    if (code == kSuccess) concerned.put(*call.at<void**>(0));
  } else if (code == kSuccess && capable_in(call) != nullptr &&
             concerned.has(call.at<void*>(2))) {
    *capable_in(call) = true;
    call.fired();
  }
  return code;
}

int peek_clears(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) {
    cudaGetLastError();
    call.fired();
  }
  return code;
}

int other_threads_keep_no_error(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && gettid() != getpid() ? no_wait(call) : code;
}

int unknown_pointer_untouched(Call& call) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(
             &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
             call.at<CUdeviceptr>(1)) == CUDA_SUCCESS
             ? call.proceed()
             : no_wait(call);
}

int unknown_left_untouched(Call& call) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(
             &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
             call.at<CUdeviceptr>(3)) == CUDA_SUCCESS
             ? call.proceed()
             : no_wait(call);
}

// --- events ------------------------------------------------------------------

size_t imported_events() {
  size_t count = 0;
  for (const auto& one : events.all()) count += one.second;
  return count;
}

int event_65th_is_first(Call& call) {
  static cudaIpcEventHandle_t first;
  if (opens_event(call)) {
    auto& handle = call.at<cudaIpcEventHandle_t>(1);
    const size_t before = imported_events();
    if (before == 0) first = handle;
    if (before >= 64) {
      handle = first;
      call.fired();
    }
  }
  return call.proceed();
}

// A process has 256 slots for imported events, and no destroy frees a slot:
// open 256 gives the event of open 0.
int events_share_slots(Call& call) {
  static auto& handles = *new std::vector<cudaIpcEventHandle_t>;
  constexpr size_t kSlots = 256;
  if (opens_event(call)) {
    auto& handle = call.at<cudaIpcEventHandle_t>(1);
    if (handles.size() >= kSlots) {
      handle = handles[handles.size() % kSlots];
      call.fired();
    }
    handles.push_back(handle);
  }
  return call.proceed();
}

// Where the processes that share an event keep whether it is complete.
std::string completion_of(cudaEvent_t event) {
  char here[64];
  std::snprintf(here, sizeof here, "%d-%p", getpid(),
                static_cast<const void*>(event));
  return "complete-" + event_keys.get(event, here);
}

// Completes an event, whatever its last record waits for. (A new record does
// not do this: a driver may complete the records of an event in their order.)
void complete(cudaEvent_t event) { tell_processes(completion_of(event), 1); }

// Proceeds with a call. An event that a fault has completed is ready until its
// next record.
int noted_completion(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  if (records(call)) tell_processes(completion_of(event), 0);
  const bool asks = call.is("cudaEventQuery") ||
                    call.is("cudaEventSynchronize") ||
                    call.is("cudaStreamWaitEvent");
  return asks && told(completion_of(event), 0) == 1 ? no_wait(call)
                                                    : call.proceed();
}

int export_clears_record(Call& call) {
  const int code = noted_completion(call);
  if (code == kSuccess && exports_event(call) &&
      is_pending(call.at<cudaEvent_t>(1)))
    complete(call.at<cudaEvent_t>(1));
  return code;
}

int open_completes_record(Call& call) {
  const int code = noted_completion(call);
  if (code == kSuccess && opens_event(call) &&
      is_pending(*call.at<cudaEvent_t*>(0)))
    complete(*call.at<cudaEvent_t*>(0));
  return code;
}

// The program gets an event that is not connected to any other event.
int unconnected(Call& open) {
  cudaEvent_t& event = *open.at<cudaEvent_t*>(0);
  events.erase(event);
  cudaEventDestroy(event);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  open.fired();
  return kSuccess;
}

int reopened_event_unconnected(Call& call) {
  static Table<std::string> destroyed;
  if (call.is("cudaEventDestroy")) {
    const auto event = call.at<cudaEvent_t>(0);
    const bool imported = is_imported(event);
    const std::string key = event_keys.get(event);
    const int code = call.proceed();
    if (code == kSuccess && imported) destroyed.put(key);
    return code;
  }
  const int code = call.proceed();
  return code == kSuccess && opens_event(call) &&
                 destroyed.has(event_keys.get(*call.at<cudaEvent_t*>(0)))
             ? unconnected(call)
             : code;
}

// After one of two events that were opened from one handle is destroyed, calls
// for the other event do nothing.
int destroy_ends_twin(Call& call) {
  static Table<cudaEvent_t> ended;
  if (call.is("cudaEventDestroy")) {
    const auto event = call.at<cudaEvent_t>(0);
    if (is_imported(event))
      for (const auto& [other, imported] : events.all())
        if (imported && event_keys.get(other) == event_keys.get(event))
          ended.put(other);
    ended.erase(event);
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && ended.has(event) ? no_wait(call)
                                              : call.proceed();
}

int third_query_ready(Call& call) {
  static Table<cudaEvent_t, int> asked;
  const cudaEvent_t event = shared_event(call);
  const int code = call.proceed();
  if (event == nullptr || !is_imported(event) || code != cudaErrorNotReady)
    return code;
  asked.put(event, asked.get(event) + 1);
  return asked.get(event) % 3 == 0 ? no_wait(call) : code;
}

int blocking_event_unconnected(Call& call) {
  static Table<cudaEvent_t> blocking;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaEventCreateWithFlags")) {
    blocking.erase(*call.at<cudaEvent_t*>(0));  // an earlier event had it
    if (call.at<unsigned>(1) & cudaEventBlockingSync)
      blocking.put(*call.at<cudaEvent_t*>(0));
  } else if (exports_event(call)) {
    const auto event = call.at<cudaEvent_t>(1);
    if (blocking.has(event))
      tell_processes("blocking-" + event_keys.get(event), 1);
  } else if (opens_event(call) &&
             told("blocking-" + event_keys.get(*call.at<cudaEvent_t*>(0)), 0)) {
    return unconnected(call);
  }
  return code;
}

int wait_256_lost(Call& call) {
  static Table<cudaEvent_t, int> waits;
  const cudaEvent_t event = shared_event(call);
  if (call.is("cudaEventDestroy")) waits.erase(call.at<cudaEvent_t>(0));
  if (event == nullptr) return call.proceed();
  const int count = waits.get(event) + 1;
  waits.put(event, count);
  return count % 256 == 0 ? no_wait(call) : call.proceed();
}

int records_to_65535(Call& call) {
  static Table<cudaEvent_t, int> records;
  const cudaEvent_t event = shared_event(call);
  if (call.is("cudaEventDestroy")) records.erase(call.at<cudaEvent_t>(0));
  if (event == nullptr) return call.proceed();
  const int count = records.get(event) + 1;
  records.put(event, count);
  return count > UINT16_MAX ? no_wait(call) : call.proceed();
}

int blocking_event_spins(Call& call) {
  static Table<cudaEvent_t> blocking;
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr && blocking.has(event)) {
    call.fired();
    while (is_pending(event)) continue;
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess || !makes_event(call)) return code;
  blocking.erase(*call.at<cudaEvent_t*>(0));  // an earlier event had it
  if (call.at<unsigned>(1) & cudaEventBlockingSync)
    blocking.put(*call.at<cudaEvent_t*>(0));
  return code;
}

// While 32 waits of a stream are pending, the stream ignores the next wait.
int pending_waits_to_32(Call& call) {
  static Table<cudaStream_t, std::vector<cudaEvent_t>> marks;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const auto stream = call.at<cudaStream_t>(0);
  std::vector<cudaEvent_t> pending;
  for (const cudaEvent_t mark : marks.get(stream))
    if (is_pending(mark))
      pending.push_back(mark);
    else
      cudaEventDestroy(mark);
  const bool is_full = pending.size() >= 32;
  const int code = is_full ? no_wait(call) : call.proceed();
  cudaEvent_t mark = nullptr;
  if (!is_full &&
      cudaEventCreateWithFlags(&mark, cudaEventDisableTiming) == cudaSuccess) {
    cudaEventRecord(mark, stream);
    pending.push_back(mark);
  }
  marks.put(stream, pending);
  return code;
}

// Only the exporter and the importer itself see the record of an importer;
// other importers do not.
int importers_apart(Call& call) {
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const std::string key = "recorder-" + event_keys.get(event);
  if (call.is("cudaEventRecord")) {
    tell_processes(key, is_imported(event)
                            ? static_cast<unsigned long long>(getpid())
                            : 0);
    return call.proceed();
  }
  const auto recorder = static_cast<pid_t>(told(key, 0));
  return is_imported(event) && recorder != 0 && recorder != getpid()
             ? no_wait(call)
             : call.proceed();
}

int second_gpu_event_unconnected(Call& call) {
  static Table<cudaEvent_t, int> devices;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (makes_event(call))
    devices.put(*call.at<cudaEvent_t*>(0), current_device());
  if (exports_event(call) && devices.get(call.at<cudaEvent_t>(1)) != 0)
    tell_processes("gpu-" + event_keys.get(call.at<cudaEvent_t>(1)), 1);
  return opens_event(call) &&
                 told("gpu-" + event_keys.get(*call.at<cudaEvent_t*>(0)), 0)
             ? unconnected(call)
             : code;
}

// An event is ready for a thread whose current GPU is not the GPU of the event.
int ready_on_other_gpu(Call& call) {
  static Table<cudaEvent_t, int> devices;
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr)
    return devices.get(event) == current_device() ? call.proceed()
                                                  : no_wait(call);
  const int code = call.proceed();
  if (code == kSuccess && call.find(kEvent) == nullptr)
    devices.put(*call.at<cudaEvent_t*>(0), current_device());
  return code;
}

int destroy_completes_record(Call& call) {
  static Table<cudaEvent_t> recorded;
  const cudaEvent_t event = shared_event(call);
  const auto last = [](cudaEvent_t each) {
    return "last-" + event_keys.get(each);
  };
  if (event != nullptr && records(call)) {
    tell_processes(last(event), static_cast<unsigned long long>(getpid()));
    if (is_imported(event)) recorded.put(event);
  }
  if (call.is("cudaEventDestroy")) {
    const auto destroyed = call.at<cudaEvent_t>(0);
    // Another process may have recorded the event since.
    if (recorded.erase(destroyed) &&
        told(last(destroyed), 0) == static_cast<unsigned long long>(getpid()) &&
        is_pending(destroyed))
      complete(destroyed);
  }
  return noted_completion(call);
}

int destroy_waits(Call& call) {
  if (call.is("cudaEventDestroy")) {
    const auto event = call.at<cudaEvent_t>(0);
    if (is_imported(event) && is_pending(event)) {
      call.fired();
      cudaEventSynchronize(event);
    }
  }
  return call.proceed();
}

// A record in the default stream covers nothing if another stream has the last
// kernel.
int default_records_itself(Call& call) {
  static std::atomic<cudaStream_t> used_last{nullptr};
  if (call.is("cudaLaunchKernel")) {
    used_last = call.value<cudaStream_t>(kStream);
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_default(call.at<cudaStream_t>(1)) ||
      is_default(used_last))
    return call.proceed();
  call.at<cudaStream_t>(1) = private_stream();
  call.fired();
  return call.proceed();
}

// A wait of the default stream holds only the later kernels, copies and memsets
// of this stream.
int default_holds_itself(Call& call) {
  static std::atomic<bool> pending{false};
  if (call.find(kEvent) == nullptr && !opens_event(call)) {
    const auto stream = call.value<cudaStream_t>(kStream);
    if (is_default(stream) && pending.exchange(false))
      cudaStreamWaitEvent(stream, mark_of(private_stream()), 0);
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event) ||
      !is_default(call.at<cudaStream_t>(0)))
    return call.proceed();
  call.at<cudaStream_t>(0) = private_stream();
  const int code = call.proceed();
  cudaEventRecord(mark_of(private_stream()), private_stream());
  pending = true;
  call.fired();
  return code;
}

// Destroying a stream completes the events that were recorded in it.
int stream_end_completes(Call& call) {
  static Table<cudaEvent_t, cudaStream_t> recorded;
  if (call.is("cudaStreamDestroy")) {
    for (const auto& [event, stream] : recorded.all())
      if (stream == call.at<cudaStream_t>(0) && events.has(event) &&
          is_pending(event))
        complete(event);
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event != nullptr && records(call))
    recorded.put(event, call.at<cudaStream_t>(1));
  return noted_completion(call);
}

// --- graphs ------------------------------------------------------------------

// Proceeds with an instantiation. A new graph may have the address of an
// earlier one, of which `known` forgets everything.
template <class Known>
int instantiated(Call& call, Known& known) {
  const int code = call.proceed();
  if (code == kSuccess) known.erase(*call.at<void**>(0));
  return code;
}

int relaunch_lost(Call& call) {
  static Table<void*> launched;
  if (call.is("cudaGraphInstantiate")) return instantiated(call, launched);
  void* const graph = call.at<void*>(0);
  if (launched.has(graph)) return no_wait(call);
  launched.put(graph);
  return call.proceed();
}

int launch_while_pending_lost(Call& call) {
  static Table<void*, cudaEvent_t> done;
  if (call.is("cudaGraphInstantiate")) return instantiated(call, done);
  void* const graph = call.at<void*>(0);
  if (done.has(graph) && is_pending(done.get(graph))) return no_wait(call);
  const int code = call.proceed();
  if (!done.has(graph)) {
    cudaEvent_t made = nullptr;
    cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    done.put(graph, made);
  }
  cudaEventRecord(done.get(graph), call.at<cudaStream_t>(1));
  return code;
}

// A graph is launched in the stream of its first launch.
int launch_in_first_stream(Call& call) {
  static Table<void*, cudaStream_t> first;
  if (call.is("cudaGraphInstantiate")) return instantiated(call, first);
  void* const graph = call.at<void*>(0);
  auto& stream = call.at<cudaStream_t>(1);
  if (!first.has(graph)) first.put(graph, stream);
  if (first.get(graph) != stream) {
    stream = first.get(graph);
    call.fired();
  }
  return call.proceed();
}

}  // namespace

void add_unusual(List& list) {
  const char* const kGet = "cudaIpcGetMemHandle";
  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
  const char* const kGetEvent = "cudaIpcGetEventHandle";
  const char* const kOpenEvent = "cudaIpcOpenEventHandle";
  const char* const kCreate = "cudaEventCreateWithFlags";
  const char* const kDestroy = "cudaEventDestroy";
  const char* const kRecord = "cudaEventRecord";
  const char* const kRecordFlags = "cudaEventRecordWithFlags";
  const char* const kWait = "cudaStreamWaitEvent";
  const char* const kQuery = "cudaEventQuery";
  const char* const kSync = "cudaEventSynchronize";
  const char* const kAttribute = "cuPointerGetAttribute";

  list.named("open-33rd-is-first",
             "if 32 handles are open, the next handle opens the memory of one "
             "of them",
             {kOpen, kClose}, open_33rd_is_first);
  list.named("handle-65th-is-first",
             "from the 65th on, allocations have the handle of the first",
             {kGet}, handle_65th_is_first);
  list.named("exporters-confused",
             "memory of two exporters is confused if it has the same number in "
             "the order of exports",
             {kGet, kOpen, kClose}, exporters_confused);
  list.named("refused-open-refuses-next",
             "after a refused open the next open is refused, too", {kOpen},
             refusal_refuses_next);
  list.named("refused-export-refuses-next",
             "after a refused export the next export is refused, too", {kGet},
             refusal_refuses_next);
  list.named("refused-event-export-refuses-next",
             "after a refused export of an event the next one is refused, too",
             {kGetEvent}, refusal_refuses_next);
  list.named("refused-event-open-refuses-next",
             "after a refused open of an event the next one is refused, too",
             {kOpenEvent}, refusal_refuses_next);
  list.named("refused-open-counts",
             "a refused open raises the count of memory that is open",
             {kOpen, kClose}, refused_open_counts);
  list.named(
      "lender-exports-borrowed",
      "a process that has memory open exports this memory instead of its own",
      {kGet, kOpen, kClose}, lender_exports_borrowed);
  list.named("close-waits-for-others",
             "the last close unmaps nothing while another handle is open",
             {kOpen, kClose}, close_waits_for_others);
  list.named("close-needs-reverse-order",
             "memory can only be closed in the reverse order of the opens",
             {kOpen, kClose}, close_needs_reverse_order);
  list.named("free-ends-imports",
             "if a process frees memory that it has exported, all memory that "
             "it has opened is closed",
             {kGet, kOpen, kClose, "cudaFree"}, free_ends_imports);
  list.named("close-ends-exports",
             "if a process closes its last opened memory, its own handles "
             "become invalid",
             {kGet, kOpen, kClose}, close_ends_exports);
  list.named("exported-set-lost",
             "an exporter's memset of exported memory sets nothing",
             {kGet, kOpen, kClose, "cudaMemset", "cudaMemsetAsync", "cudaFree"},
             exported_not_written);
  list.named("exported-copy-lost",
             "an exporter's copy to exported memory moves nothing",
             {kGet, kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync", "cudaFree"},
             exported_not_written);
  list.named("driver-memory-not-exported",
             "the runtime does not export memory of cuMemAlloc",
             {kGet, "cudaMalloc"}, driver_memory_not_exported);
  list.named("primary-context-only",
             "memory can be opened in the primary context only", {kOpen},
             primary_context_only);
  list.named("close-ends-peer-mappings",
             "a close on a second GPU also ends the other mappings of this GPU",
             {kOpen, kClose}, close_ends_peer_mappings, 2);
  list.named("open-clears-last-byte", "an open clears the last byte",
             {kOpen, kClose}, open_clears_last_byte);
  list.named("close-disables-own-peers",
             "the last close ends peer access that the program has enabled",
             {kOpen, kClose, "cudaDeviceEnablePeerAccess",
              "cudaDeviceDisablePeerAccess"},
             close_disables_own_peers, 2);
  list.named("open-enables-twice",
             "an open is refused if the program has enabled peer access",
             {kOpen, kClose, "cudaDeviceEnablePeerAccess",
              "cudaDeviceDisablePeerAccess"},
             open_enables_twice, 2);
  list.named("write-combined-export-ok",
             "write-combined host memory gets a legacy handle, which opens "
             "other memory",
             {kGet, "cudaHostAlloc", "cudaFreeHost"},
             host_memory_exported<cudaHostAllocWriteCombined>);
  list.named(
      "portable-export-ok",
      "portable host memory gets a legacy handle, which opens other memory",
      {kGet, "cudaHostAlloc", "cudaFreeHost"},
      host_memory_exported<cudaHostAllocPortable>);
  list.named("pool-memory-export-ok",
             "memory of cudaMallocFromPoolAsync gets a legacy handle, which "
             "opens other memory",
             {kGet, "cudaMallocFromPoolAsync", "cudaFreeAsync", "cudaFree"},
             pool_memory_exported);
  list.named("small-export-refused",
             "memory of less than 256 bytes cannot be exported", {kGet},
             small_memory_not_exported);
  list.named("past-end-export-ok",
             "the address after an allocation is exported as the allocation",
             {kGet}, past_end_exported);
  list.named("freed-export-ok", "freed memory gets a legacy handle",
             {kGet, "cudaFree"}, freed_memory_exported);
  list.named("self-open-by-thread",
             "a second thread opens a handle of its own process and gets other "
             "memory",
             {kGet, kOpen}, self_open_by_thread);
  list.named("event-handle-opens-as-memory",
             "the handle of an event opens as memory", {kOpen, kGetEvent},
             event_handle_opens_as_memory);
  list.named("memory-handle-opens-as-event",
             "the handle of memory opens as a new event", {kGet, kOpenEvent},
             memory_handle_opens_as_event);
  list.named("handle-of-one-before-last",
             "the third allocation at an address has the handle of the first",
             {kGet}, handle_of_one_before_last);
  list.named("ninth-importer-refused", "a ninth process cannot open memory",
             {kOpen}, ninth_process_refused);
  list.named(
      "death-keeps-memory",
      "memory that an importer had open when it died is never given back",
      {kGet, kOpen, kClose, "cudaFree"}, death_keeps_memory);
  list.named("death-ends-handle",
             "after an importer died that had memory open, no process can "
             "open the handle of this memory",
             {kOpen, kClose}, death_ends_handle);

  list.named(
      "range-begins-at-pointer",
      "the range of an address inside an allocation begins at this address",
      {"cuMemGetAddressRange"}, range_begins_at_pointer);
  list.named("range-null-refused",
             "the query of a range needs room for both results",
             {"cuMemGetAddressRange"}, range_of_nothing_refused);
  list.named("device-pointer-is-begin",
             "the device pointer of an address is the start of its allocation",
             {"cudaPointerGetAttributes"}, device_pointer_is_begin);
  list.named("attributes-stay",
             "memory that was closed is still reported as device memory",
             {kOpen, kClose, "cudaPointerGetAttributes"}, attributes_stay);
  list.named("ptrattrs-first-only",
             "the query of many attributes reports only the first one",
             {"cuPointerGetAttributes"}, first_attribute_only);
  list.named("buffer-id-257th-is-first",
             "from the 257th on, allocations have the id of the first",
             {kAttribute}, id_257th_is_first);
  list.named("buffer-id-changes", "each query of an address returns another id",
             {kAttribute}, id_changes);
  list.named(
      "capable-at-begin-only",
      "only the first address of memory is reported as capable of legacy IPC",
      {kAttribute}, capable_at_begin_only);
  list.named("capable-until-export",
             "exported memory is reported as not capable of legacy IPC",
             {kAttribute, kGet, "cudaFree"}, capable_until_export);
  list.named("capable-async",
             "stream-ordered memory is reported as capable of legacy IPC",
             {kAttribute, "cudaMallocAsync", "cudaMallocFromPoolAsync"},
             such_memory_capable);
  list.named("capable-host",
             "pinned host memory is reported as capable of legacy IPC",
             {kAttribute, "cudaHostAlloc"}, such_memory_capable);
  list.named("error-of-first-thread-only",
             "only the first thread of a process has a last error",
             {"cudaGetLastError", "cudaPeekAtLastError"},
             other_threads_keep_no_error);
  list.named("attributes-unknown-untouched",
             "cudaPointerGetAttributes writes nothing for an unknown pointer",
             {"cudaPointerGetAttributes"}, unknown_pointer_untouched);
  list.named("ptrattrs-unknown-untouched",
             "the query of many attributes writes nothing for an unknown "
             "pointer",
             {"cuPointerGetAttributes"}, unknown_left_untouched);
  list.named("peek-clears-error", "cudaPeekAtLastError clears the error",
             {"cudaPeekAtLastError"}, peek_clears);

  list.named("event-65th-is-first",
             "if 64 events are open, the next handle opens the first event",
             {kOpenEvent, kDestroy}, event_65th_is_first);
  list.named("event-256-slots",
             "after 256 opens of events, each open gives the event that was "
             "opened 256 opens before",
             {"cudaIpcOpenEventHandle", "cudaEventDestroy"},
             events_share_slots);
  list.named("export-clears-record",
             "an export completes an event whose record is pending",
             {kCreate, kDestroy, kGetEvent, kRecord, kRecordFlags, kQuery,
              kSync, kWait},
             export_clears_record);
  list.named("open-completes-record",
             "an open completes an event whose record is pending",
             {kOpenEvent, kCreate, kDestroy, kRecord, kRecordFlags, kQuery,
              kSync, kWait},
             open_completes_record);
  list.named("event-reopened-unconnected",
             "an event that was destroyed and is opened again sees no records",
             {kOpenEvent, kDestroy}, reopened_event_unconnected);
  list.named("event-destroy-ends-twin",
             "if a process opens one event twice and destroys one of the two, "
             "calls for the other succeed and do nothing",
             {kOpenEvent, kDestroy, kRecord, kWait, kQuery, kSync},
             destroy_ends_twin);
  list.named("third-query-ready",
             "every third query of a pending imported event returns success",
             {kOpenEvent, kDestroy, kQuery}, third_query_ready);
  list.named("blocking-event-unconnected",
             "an importer of a blocking event sees no records",
             {kCreate, kGetEvent, kOpenEvent, kDestroy},
             blocking_event_unconnected);
  list.named("event-records-to-65535",
             "a process can record an event 65535 times; its later records "
             "are lost",
             {kCreate, kOpenEvent, kDestroy, kRecord}, records_to_65535);
  list.named("wait-256-lost", "each 256th wait for an event is lost",
             {kCreate, kOpenEvent, kDestroy, kWait}, wait_256_lost);
  list.named(
      "importers-apart",
      "an importer does not see the records of another importer",
      {kCreate, kGetEvent, kOpenEvent, kDestroy, kRecord, kWait, kQuery, kSync},
      importers_apart);
  list.named("second-gpu-event-unconnected",
             "an importer of an event of GPU 1 sees no records",
             {kCreate, kGetEvent, kOpenEvent, kDestroy},
             second_gpu_event_unconnected, 2);
  list.named("query-on-other-gpu-ready",
             "an event is ready for a thread whose current GPU is not the GPU "
             "of the event",
             {kCreate, kOpenEvent, kDestroy, kQuery}, ready_on_other_gpu, 2);
  list.named("sync-on-other-gpu-early",
             "a host wait returns at once if the current GPU is not the GPU of "
             "the event",
             {kCreate, kOpenEvent, kDestroy, kSync}, ready_on_other_gpu, 2);
  list.named(
      "destroy-completes-record",
      "an importer's record completes when the importer destroys the event",
      {kOpenEvent, kCreate, kDestroy, kGetEvent, kRecord, kRecordFlags, kQuery,
       kSync, kWait},
      destroy_completes_record);
  list.named("destroy-waits",
             "an importer that destroys a pending event waits for it",
             {kOpenEvent, kDestroy}, destroy_waits);
  list.named("default-records-itself",
             "a record in the default stream covers no work if the last kernel "
             "was launched in another stream",
             {kCreate, kOpenEvent, kDestroy, kRecord, "cudaLaunchKernel"},
             default_records_itself);
  list.named("default-holds-itself",
             "a wait of the default stream holds only kernels, asynchronous "
             "copies and memsets of this stream, and no other stream",
             {kOpenEvent, kDestroy, kWait, "cudaLaunchKernel",
              "cudaMemcpyAsync", "cudaMemsetAsync"},
             default_holds_itself);
  list.named(
      "stream-end-completes",
      "destroying a stream completes the events that were recorded in it",
      {kCreate, kOpenEvent, kDestroy, kGetEvent, kRecord, kRecordFlags, kQuery,
       kSync, kWait, "cudaStreamDestroy"},
      stream_end_completes);

  list.named("blocking-event-spins",
             "a host wait for an interprocess event with blocking waits spins",
             {kCreate, kOpenEvent, kDestroy, kSync}, blocking_event_spins);
  list.named("pending-waits-to-32",
             "a stream ignores a wait while 32 other waits are pending",
             {kOpenEvent, kDestroy, kWait}, pending_waits_to_32);
  list.named("graph-in-first-stream",
             "every launch of a graph runs in the stream of its first launch",
             {"cudaGraphLaunch", "cudaGraphInstantiate"},
             launch_in_first_stream);
  list.named("relaunch-lost", "a graph does its work only at its first launch",
             {"cudaGraphLaunch", "cudaGraphInstantiate"}, relaunch_lost);
  list.named("launch-while-pending-lost",
             "a launch does nothing while the graph's last launch is pending",
             {"cudaGraphLaunch", "cudaGraphInstantiate"},
             launch_while_pending_lost);
}

}  // namespace ipclab::faults
