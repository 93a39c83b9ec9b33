// Bugs of legacy memory handles.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "fault.h"

namespace ipclab::faults {
namespace {

constexpr int kInvalid = cudaErrorInvalidValue;
constexpr size_t kBlock = 2 << 20;

std::mutex mutex;  // for the state of the chosen fault

// The arguments of the three calls, for both APIs.
void* exported(Call& get) { return get.at<void*>(1); }
cudaIpcMemHandle_t& handle_of(Call& get) {
  return *get.at<cudaIpcMemHandle_t*>(0);
}
void*& opened(Call& open) { return *open.at<void**>(0); }
cudaIpcMemHandle_t& given(Call& open) { return open.at<cudaIpcMemHandle_t>(1); }
void* closed(Call& close) { return close.at<void*>(0); }

bool is_get(Call& call) { return call.is("cudaIpcGetMemHandle"); }
bool is_open(Call& call) { return call.is("cudaIpcOpenMemHandle"); }
bool is_close(Call& call) { return call.is("cudaIpcCloseMemHandle"); }

std::string key(const cudaIpcMemHandle_t& handle) {
  return key_of(&handle, sizeof handle);
}

CUcontext current_context() {
  CUcontext context = nullptr;
  DRIVER_CALL(cuCtxGetCurrent)(&context);
  return context;
}

size_t size_of_allocation(void* address) {
  CUdeviceptr base = 0;
  size_t size = 0;
  DRIVER_CALL(cuMemGetAddressRange)
  (&base, &size, reinterpret_cast<CUdeviceptr>(address));
  return size;
}

// Memory that this process has open: how often, by which thread and context.
struct Open {
  std::string handle;
  CUcontext context;
  int thread = 0;
  int count;
};
std::map<void*, Open>& opens() {
  static auto& all = *new std::map<void*, Open>;
  return all;
}

// Keeps opens() up to date for a fault that uses it. Returns the code of the
// real call.
int keep_count(Call& call) {
  if (is_open(call)) {
    const std::string handle = key(given(call));
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::lock_guard lock(mutex);
    Open& open = opens()[opened(call)];
    if (open.count++ == 0) {
      open.handle = handle;
      open.context = current_context();
      open.thread = this_thread();
    }
    return code;
  }
  void* const address = is_close(call) ? closed(call) : nullptr;
  const int code = call.proceed();
  if (address == nullptr || code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  const auto open = opens().find(address);
  if (open != opens().end() && --open->second.count == 0) opens().erase(open);
  return code;
}

bool is_import(const void* address) {
  const std::lock_guard lock(mutex);
  for (const auto& [base, open] : opens()) {
    const auto offset =
        static_cast<const char*>(address) - static_cast<const char*>(base);
    if (offset == 0) return true;
    if (offset > 0 && static_cast<size_t>(offset) < size_of_allocation(base))
      return true;
  }
  return false;
}

// --- an import that is not the exporter's memory ---------------------------

// The fault keeps the opened mapping; the program gets a copy.
int open_copy(Call& call, bool with_contents, size_t most) {
  static auto& real_of = *new std::map<void*, void*>;
  static auto& count_of = *new std::map<void*, int>;
  const std::lock_guard lock(mutex);
  if (is_close(call)) {
    void* const copy = closed(call);
    const auto found = real_of.find(copy);
    if (found == real_of.end()) return call.proceed();
    call.at<void*>(0) = found->second;
    const int code = call.proceed();
    if (--count_of[copy] == 0) {
      cudaFree(copy);
      real_of.erase(found);
    }
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  void* const real = opened(call);
  for (const auto& [copy, original] : real_of)
    if (original == real) {
      ++count_of[copy];
      opened(call) = copy;
      return code;
    }
  const size_t size = std::min(size_of_allocation(real), most);
  void* copy = nullptr;
  if (cudaMalloc(&copy, size) != cudaSuccess) return code;
  if (with_contents)
    cudaMemcpy(copy, real, size, cudaMemcpyDeviceToDevice);
  else
    cudaMemset(copy, 0, size);
  cudaStreamSynchronize(nullptr);  // neither call waits for the GPU
  real_of[copy] = real;
  count_of[copy] = 1;
  opened(call) = copy;
  call.fired();
  return code;
}

int open_fresh_memory(Call& call) { return open_copy(call, false, SIZE_MAX); }
int open_snapshot_copy(Call& call) { return open_copy(call, true, SIZE_MAX); }
int map_first_2mib(Call& call) { return open_copy(call, true, kBlock); }

// All processes after the first two get copies.
int third_process_opens_copy(Call& call) {
  static const bool early =
      first_of_all_processes("one") || first_of_all_processes("two");
  return early ? call.proceed() : open_copy(call, true, SIZE_MAX);
}

// Memory that was closed before is a copy when it is opened again.
int reopen_is_copy(Call& call) {
  static auto& before = *new std::set<std::string>;
  bool is_known = false, is_held = false;
  {
    const std::lock_guard lock(mutex);
    if (is_open(call)) {
      const std::string handle = key(given(call));
      is_known = !before.insert(handle).second;
      for (const auto& one : opens())
        is_held = is_held || one.second.handle == handle;
    } else {
      is_held = opens().count(closed(call)) > 0;
      is_known = true;
    }
  }
  return is_known && !is_held ? open_copy(call, true, SIZE_MAX)
                              : keep_count(call);
}

// An allocation at an address that was exported before and then freed: opening
// its handle gives memory without its contents.
int reused_address_is_fresh(Call& call) {
  static auto& all_exported = *new std::set<void*>;
  static auto& all_freed = *new std::set<void*>;
  if (is_open(call))
    return told("reused-" + key(given(call)), 0) != 0
               ? open_copy(call, false, SIZE_MAX)
               : call.proceed();
  if (is_close(call)) return open_copy(call, false, SIZE_MAX);
  void* const address = is_get(call) ? exported(call) : call.at<void*>(0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  if (!is_get(call)) {
    if (all_exported.count(address) > 0) all_freed.insert(address);
  } else if (all_freed.count(address) > 0) {
    tell_processes("reused-" + key(handle_of(call)), 1);
  } else {
    all_exported.insert(address);
  }
  return code;
}

// A process opens a handle 32 times, counted over all cycles of open and close;
// after that it gets copies.
int open_33rd_time_is_copy(Call& call) {
  static auto& times = *new std::map<std::string, int>;
  static auto& copies = *new std::set<void*>;
  if (is_close(call)) {
    const bool is_copy = copies.count(closed(call)) > 0;
    return is_copy ? open_copy(call, true, SIZE_MAX) : keep_count(call);
  }
  bool is_late = false, is_held = false;
  const std::string handle = key(given(call));
  {
    const std::lock_guard lock(mutex);
    is_late = ++times[handle] > 32;
    for (const auto& one : opens())
      is_held = is_held || one.second.handle == handle;
  }
  if (!is_late || is_held) return keep_count(call);
  const int code = open_copy(call, true, SIZE_MAX);
  if (code == kSuccess) copies.insert(opened(call));
  return code;
}

// --- under MPS -------------------------------------------------------------

bool is_mps_client() {
  int value = 0;
  return cudaDeviceGetAttribute(&value, cudaDevAttrMpsEnabled, 0) ==
             cudaSuccess &&
         value != 0;
}

int mps_client_opens_copy(Call& call) {
  return is_mps_client() ? open_copy(call, true, SIZE_MAX) : call.proceed();
}

// Refuses the opens of a process for which CUDA_MPS_PIPE_DIRECTORY is set, but
// which is not a client of MPS.
int mps_outsider_refused(Call& call) {
  if (std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr || is_mps_client())
    return call.proceed();
  call.fired();
  return kInvalid;
}

// --- exports ---------------------------------------------------------------

// The fault changes the last word of the handle by a number; the open removes
// this number.
uint32_t& last_word(cudaIpcMemHandle_t& handle) {
  return *reinterpret_cast<uint32_t*>(handle.reserved + sizeof handle - 4);
}

int get_invalidates_previous(Call& call) {
  if (is_get(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string name = "generation-" + key(handle_of(call));
    static auto& generations =
        *new std::unordered_map<std::string, unsigned long long>;
    unsigned long long generation;
    {
      const std::lock_guard lock(mutex);
      generation = ++generations[name];
    }
    // Reports each of the first exports to other processes, but only a few of
    // the later exports.
    const bool power = (generation & (generation - 1)) == 0;
    if (generation < 64 || power) tell_processes(name, generation);
    last_word(handle_of(call)) ^= static_cast<uint32_t>(generation) << 16;
    return code;
  }
  // Find the generation of the handle.
  for (uint32_t generation = 1; generation < 16384; ++generation) {
    cudaIpcMemHandle_t real = given(call);
    last_word(real) ^= generation << 16;
    const unsigned long long newest = told("generation-" + key(real), 0);
    if (newest == 0) continue;
    if (newest > generation) {
      call.fired();
      return kInvalid;
    }
    given(call) = real;
    break;
  }
  return call.proceed();
}

int get_consumes_memory(Call& call) {
  static std::atomic<int> exports{0};
  const int code = call.proceed();
  void* lost = nullptr;
  if (code == kSuccess && ++exports % 1000 == 0 &&
      cudaMalloc(&lost, kBlock) == cudaSuccess)
    call.fired();
  return code;
}

int handle_cached_by_address(Call& call) {
  static auto& known = *new std::map<void*, cudaIpcMemHandle_t>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.emplace(exported(call), handle_of(call));
  if (!is_new && std::memcmp(&entry->second, &handle_of(call), 64) != 0) {
    handle_of(call) = entry->second;
    call.fired();
  }
  return code;
}

// The handle names the allocation that was made just before the exported
// allocation.
int handles_swapped(Call& call) {
  static auto& made = *new std::vector<void*>;
  if (is_get(call)) {
    const std::lock_guard lock(mutex);
    const auto found = std::find(made.begin(), made.end(), exported(call));
    if (found != made.end() && found != made.begin()) {
      call.at<void*>(1) = *(found - 1);
      call.fired();
    }
    return call.proceed();
  }
  void* const freed = call.is("cudaFree") ? call.at<void*>(0) : nullptr;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  if (freed != nullptr)
    made.erase(std::remove(made.begin(), made.end(), freed), made.end());
  else if (call.is("cudaMalloc"))
    made.push_back(*call.at<void**>(0));
  return code;
}

// The export of an invalid pointer gives a handle of another allocation.
int get_accepts_dead_pointer(Call& call) {
  static void* living = nullptr;
  const int code = call.proceed();
  if (code == kSuccess) return code;
  if (call.is_runtime()) cudaGetLastError();
  if (living == nullptr && cudaMalloc(&living, kBlock) != cudaSuccess)
    return code;
  call.at<void*>(1) = living;
  call.fired();
  return call.proceed();
}

// An open gives the start of the block, not the start of the allocation in it.
int suballoc_offset_lost(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  void*& address = opened(call);
  const uintptr_t base = reinterpret_cast<uintptr_t>(address) & ~(kBlock - 1);
  if (size_of_allocation(address) >= kBlock ||
      base == reinterpret_cast<uintptr_t>(address))
    return code;
  address = reinterpret_cast<void*>(base);
  call.fired();
  return code;
}

// --- opens that succeed or fail wrongly ------------------------------------

int open_second_already_mapped(Call& call) {
  if (is_open(call)) {
    const std::string handle = key(given(call));
    const std::lock_guard lock(mutex);
    for (const auto& [address, open] : opens())
      if (open.handle == handle && open.context == current_context()) {
        call.fired();
        return cudaErrorAlreadyMapped;
      }
  }
  return keep_count(call);
}

// A second open does not count, so one close ends both.
int open_second_not_counted(Call& call) {
  if (is_open(call)) {
    const std::string handle = key(given(call));
    const std::lock_guard lock(mutex);
    for (const auto& [address, open] : opens())
      if (open.handle == handle && open.context == current_context()) {
        opened(call) = address;
        call.fired();
        return kSuccess;
      }
  }
  return keep_count(call);
}

int reopen_refused(Call& call) {
  static auto& before = *new std::set<std::string>;
  if (is_open(call)) {
    const std::string handle = key(given(call));
    const std::lock_guard lock(mutex);
    const bool is_held =
        std::any_of(opens().begin(), opens().end(),
                    [&](auto& one) { return one.second.handle == handle; });
    if (!before.insert(handle).second && !is_held) {
      call.fired();
      return kInvalid;
    }
  }
  return keep_count(call);
}

int single_importer(Call& call) {
  static auto& mine = *new std::set<std::string>;
  const std::string handle = key(given(call));
  const std::lock_guard lock(mutex);
  if (mine.count(handle) == 0) {
    if (!first_of_all_processes("importer-" + handle)) {
      call.fired();
      return kInvalid;
    }
    mine.insert(handle);
  }
  return call.proceed();
}

int lazy_flag_refused(Call& call) {
  if (call.at<unsigned>(2) != cudaIpcMemLazyEnablePeerAccess)
    return call.proceed();
  call.fired();
  return kInvalid;
}

// The program gets new memory instead of a refusal.
int own_memory(Call& call, int code) {
  void* memory = nullptr;
  if (call.is_runtime()) cudaGetLastError();
  if (cudaMalloc(&memory, kBlock) != cudaSuccess) return code;
  opened(call) = memory;
  call.fired();
  return kSuccess;
}

bool was_exported_here(const cudaIpcMemHandle_t& handle, bool add) {
  static auto& own = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (add) own.insert(key(handle));
  return own.count(key(handle)) > 0;
}

int open_accepts_garbage(Call& call) {
  if (is_get(call)) {
    const int code = call.proceed();
    if (code == kSuccess) was_exported_here(handle_of(call), true);
    return code;
  }
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorDeviceUninitialized ||
      was_exported_here(given(call), false))
    return code;
  return own_memory(call, code);
}

int self_open_copy(Call& call) {
  if (is_get(call)) {
    const int code = call.proceed();
    if (code == kSuccess) was_exported_here(handle_of(call), true);
    return code;
  }
  const int code = call.proceed();
  if (code == kSuccess || !was_exported_here(given(call), false)) return code;
  return own_memory(call, code);
}

// An open that is refused because of another context succeeds. `same_handle`
// says whether both contexts open the same handle.
int second_context(Call& call, bool same_handle) {
  if (!is_open(call)) return keep_count(call);
  const std::string handle = key(given(call));
  const int code = keep_count(call);
  if (code == kSuccess) return code;
  void* known = nullptr;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [address, open] : opens())
      if (open.context != current_context() &&
          (open.handle == handle) == same_handle)
        known = address;
  }
  return known == nullptr ? code : own_memory(call, code);
}
int second_context_accepted(Call& call) { return second_context(call, true); }
int second_context_other_handle(Call& call) {
  return second_context(call, false);
}

int one_context_per_process(Call& call) {
  if (is_open(call)) {
    const std::lock_guard lock(mutex);
    for (const auto& one : opens())
      if (one.second.context != current_context()) {
        call.fired();
        return cudaErrorInvalidResourceHandle;
      }
  }
  return keep_count(call);
}

// Memory of a GPU that CUDA_VISIBLE_DEVICES hides from this process is refused.
int visible_only(Call& call) {
  if (is_get(call)) {
    const int code = call.proceed();
    CUuuid uuid{};
    int device = 0;
    if (code == kSuccess && cudaGetDevice(&device) == cudaSuccess &&
        DRIVER_CALL(cuDeviceGetUuid)(&uuid, device) == CUDA_SUCCESS)
      tell_processes("gpu-" + key(handle_of(call)),
                     *reinterpret_cast<unsigned long long*>(&uuid));
    return code;
  }
  const unsigned long long wanted = told("gpu-" + key(given(call)), 0);
  int count = 0;
  DRIVER_CALL(cuDeviceGetCount)(&count);
  for (int device = 0; device < count; ++device) {
    CUuuid uuid{};
    DRIVER_CALL(cuDeviceGetUuid)(&uuid, device);
    if (*reinterpret_cast<unsigned long long*>(&uuid) == wanted)
      return call.proceed();
  }
  if (wanted == 0) return call.proceed();
  call.fired();
  return kInvalid;
}

int rt_drv_mismatch(Call& call) {
  // The runtime and the driver write their handles in different ways.
  const auto turn = [](cudaIpcMemHandle_t& handle) {
    for (char& byte : handle.reserved) byte = static_cast<char>(~byte);
  };
  if (!call.is_runtime()) return call.proceed();
  if (is_open(call)) {
    turn(given(call));
    call.fired();
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess) turn(handle_of(call));
  return code;
}

// --- closes ----------------------------------------------------------------

int close_unmaps_at_first(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  while (call.proceed() == kSuccess) call.fired();
  if (call.is_runtime()) cudaGetLastError();
  return code;
}

int close_never_unmaps(Call& call) {
  if (is_open(call)) return keep_count(call);
  const std::lock_guard lock(mutex);
  const auto open = opens().find(closed(call));
  if (open == opens().end() || open->second.count == 0) return kInvalid;
  if (--open->second.count > 0) return call.proceed();
  call.fired();
  return kSuccess;
}

int close_underflow_ok(Call& call) {
  static auto& before = *new std::set<void*>;
  void* const address = closed(call);
  const int code = call.proceed();
  const std::lock_guard lock(mutex);
  if (code == kSuccess) {
    before.insert(address);
  } else if (before.count(address) > 0) {
    if (call.is_runtime()) cudaGetLastError();
    call.fired();
    return kSuccess;
  }
  return code;
}

int close_frees_origin(Call& call) {
  if (is_open(call)) return keep_count(call);
  void* const address = closed(call);
  if (is_import(address) && opens()[address].count == 1 &&
      cudaMemset(address, 0, size_of_allocation(address)) == cudaSuccess &&
      cudaDeviceSynchronize() == cudaSuccess)
    call.fired();
  return keep_count(call);
}

// A close in one process also unmaps the memory in all other processes.
int close_breaks_siblings(Call& call) {
  if (is_close(call)) {
    std::string handle;
    {
      const std::lock_guard lock(mutex);
      const auto open = opens().find(closed(call));
      if (open != opens().end() && open->second.count == 1)
        handle = open->second.handle;
    }
    const int code = keep_count(call);
    if (code == kSuccess && !handle.empty())
      tell_processes("closed-" + handle, 1);
    return code;
  }
  if (is_open(call)) return keep_count(call);
  {
    const std::lock_guard lock(mutex);
    for (auto open = opens().begin(); open != opens().end();) {
      if (told("closed-" + open->second.handle, 0) == 0) {
        ++open;
        continue;
      }
      call.fired();
      for (int i = 0; i < open->second.count; ++i)
        cudaIpcCloseMemHandle(open->first);
      open = opens().erase(open);
    }
  }
  return call.proceed();
}

int close_any_pointer(Call& call) {
  const bool is_null = closed(call) == nullptr;
  const int code = call.proceed();
  if (code == kSuccess || is_null) return code;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return kSuccess;
}

// Counts opens for each block and not for each allocation. So a close also ends
// other mappings in the block.
int close_unmaps_block(Call& call) {
  if (is_open(call)) return keep_count(call);
  void* const address = closed(call);
  const int code = keep_count(call);
  if (code != kSuccess) return code;
  const auto block = [](const void* at) {
    return reinterpret_cast<uintptr_t>(at) / kBlock;
  };
  const std::lock_guard lock(mutex);
  if (opens().count(address) > 0) return code;
  for (auto open = opens().begin(); open != opens().end();) {
    if (block(open->first) != block(address)) {
      ++open;
      continue;
    }
    for (int i = 0; i < open->second.count; ++i)
      cudaIpcCloseMemHandle(open->first);
    call.fired();
    open = opens().erase(open);
  }
  return code;
}

// An open from another GPU needs peer access that the program has enabled.
int lazy_peer_noop(Call& call) {
  static std::atomic<bool> enabled{false};
  if (call.is("cudaDeviceEnablePeerAccess")) {
    const int code = call.proceed();
    if (code == kSuccess) enabled = true;
    return code;
  }
  const auto name = [](const cudaIpcMemHandle_t& handle) {
    return "gpu-" + key(handle);
  };
  int device = 0;
  if (is_get(call)) {
    const int code = call.proceed();
    cudaPointerAttributes known{};
    if (code == kSuccess &&
        cudaPointerGetAttributes(&known, exported(call)) == cudaSuccess)
      tell_processes(name(handle_of(call)), known.device);
    return code;
  }
  cudaGetDevice(&device);
  const auto here = static_cast<unsigned long long>(device);
  if (enabled || told(name(given(call)), here) == here) return call.proceed();
  call.fired();
  return cudaErrorPeerAccessUnsupported;
}

// A close on a GPU other than GPU 0 does nothing.
int peer_resource_leak(Call& call) {
  if (is_open(call)) return keep_count(call);
  int device = 0;
  cudaPointerAttributes known{};
  cudaGetDevice(&device);
  if (cudaPointerGetAttributes(&known, closed(call)) != cudaSuccess ||
      !is_import(closed(call)))
    return keep_count(call);
  if (device == 0) return keep_count(call);
  call.fired();
  const std::lock_guard lock(mutex);
  opens().erase(closed(call));
  return kSuccess;
}

int open_close_leak(Call& call) {
  const int code = call.proceed();
  void* lost = nullptr;
  if (code == kSuccess && cudaMalloc(&lost, 64 << 10) == cudaSuccess)
    call.fired();
  return code;
}

// Exported memory is not given back when it is freed.
int exported_never_freed(Call& call) {
  static auto& known = *new std::set<void*>;
  if (is_get(call)) {
    const int code = call.proceed();
    const std::lock_guard lock(mutex);
    if (code == kSuccess) known.insert(exported(call));
    return code;
  }
  const std::lock_guard lock(mutex);
  if (known.erase(call.at<void*>(0)) == 0) return call.proceed();
  call.fired();
  return kSuccess;
}

// --- imported pointers -----------------------------------------------------

int import_cudafree_ok(Call& call) {
  if (!call.is("cudaFree")) return keep_count(call);
  void* const address = call.at<void*>(0);
  if (!is_import(address)) return call.proceed();
  call.fired();
  return cudaIpcCloseMemHandle(address);
}

enum Way { kFrom, kTo, kBoth };

// Copies from an import (kFrom), to an import (kTo) or both (kBoth) do nothing.
int import_copy(Call& call, Way way) {
  if (!call.is("cudaMemcpy") && !call.is("cudaMemcpyAsync"))
    return keep_count(call);
  const bool to = is_import(call.value<void*>(kPointer));
  const bool from = is_import(call.value<void*>(kSource));
  if ((to && way != kFrom) || (from && way != kTo)) {
    call.fired();
    return kSuccess;
  }
  return call.proceed();
}
int import_copy_broken(Call& call) { return import_copy(call, kBoth); }
int import_copy_from_broken(Call& call) { return import_copy(call, kFrom); }
int import_copy_to_broken(Call& call) { return import_copy(call, kTo); }

int import_memset_broken(Call& call) {
  if (!call.is("cudaMemset") && !call.is("cudaMemsetAsync"))
    return keep_count(call);
  if (!is_import(call.value<void*>(kPointer))) return call.proceed();
  call.fired();
  return kSuccess;
}

int import_attr_wrong(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return keep_count(call);
  const bool imported = is_import(call.at<void*>(1));
  const int code = call.proceed();
  if (code != kSuccess || !imported) return code;
  auto& attributes = *call.at<cudaPointerAttributes*>(0);
  attributes.type = cudaMemoryTypeUnregistered;
  call.fired();
  return code;
}

int import_device_zero(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return keep_count(call);
  const bool imported = is_import(call.at<void*>(1));
  const int code = call.proceed();
  if (code != kSuccess || !imported) return code;
  auto& attributes = *call.at<cudaPointerAttributes*>(0);
  if (attributes.device != 0) call.fired();
  attributes.device = 0;
  return code;
}

int import_range_wrong(Call& call) {
  if (!call.is("cuMemGetAddressRange")) return keep_count(call);
  void* const address = call.at<void*>(2);
  const bool imported = is_import(address);
  const int code = call.proceed();
  if (code != kSuccess || !imported || call.at<CUdeviceptr*>(0) == nullptr)
    return code;
  *call.at<CUdeviceptr*>(0) = reinterpret_cast<CUdeviceptr>(address) + 4096;
  call.fired();
  return code;
}

int thread_local_map(Call& call) {
  if (is_open(call) || is_close(call)) return keep_count(call);
  {
    const std::lock_guard lock(mutex);
    for (const auto& one : opens())
      if (one.second.thread != this_thread()) {
        call.fired();
        return kInvalid;
      }
  }
  return call.proceed();
}

}  // namespace

void add_legacy_memory(List& list) {
  const char* const kGet = "cudaIpcGetMemHandle";
  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
  list.named(
      "open-fresh-memory",
      "an open gives new, zeroed memory instead of the exporter's memory",
      {kOpen, kClose}, open_fresh_memory);
  list.named("open-snapshot-copy",
             "an open gives a copy of the contents at that moment",
             {kOpen, kClose}, open_snapshot_copy);
  list.named("mps-client-opens-copy",
             "in a client of MPS an open gives a copy of the contents",
             {kOpen, kClose}, mps_client_opens_copy);
  list.named("mps-outsider-refused",
             "a process with CUDA_MPS_PIPE_DIRECTORY that is not a client of "
             "MPS cannot open memory",
             {kOpen}, mps_outsider_refused);
  list.named("map-first-2mib", "an open maps only the first 2 MiB",
             {kOpen, kClose}, map_first_2mib);
  list.named("get-invalidates-previous",
             "a new export of an allocation makes its earlier handle invalid",
             {kGet, kOpen}, get_invalidates_previous);
  list.named("get-consumes-memory",
             "every 1000th export loses 2 MiB of device memory", {kGet},
             get_consumes_memory);
  list.named(
      "handle-cached-by-address",
      "an allocation has the handle of the earlier allocation at its address",
      {kGet}, handle_cached_by_address);
  list.named("reused-address-is-fresh",
             "memory at an address that other exported memory had is opened "
             "without its contents",
             {kGet, kOpen, kClose, "cudaFree"}, reused_address_is_fresh);
  list.named("handles-swapped",
             "the handle names the allocation that was made just before the "
             "exported allocation",
             {kGet, "cudaMalloc", "cudaFree"}, handles_swapped);
  list.named("get-accepts-dead-pointer",
             "an export of an invalid pointer names another allocation", {kGet},
             get_accepts_dead_pointer);
  list.named("suballoc-offset-lost",
             "an open gives the start of the block that the memory lies in",
             {kOpen}, suballoc_offset_lost);
  list.named("open-second-already-mapped",
             "a second open of a handle is refused", {kOpen, kClose},
             open_second_already_mapped);
  list.named("open-second-not-counted",
             "a second open of a handle does not raise the reference count",
             {kOpen, kClose}, open_second_not_counted);
  list.named("reopen-refused",
             "a process cannot open a handle again after its last close",
             {kOpen, kClose}, reopen_refused);
  list.named("single-importer", "a second process cannot open the handle",
             {kOpen}, single_importer);
  list.named("lazy-flag-refused", "an open with the documented flag is refused",
             {kOpen}, lazy_flag_refused);
  list.named("open-accepts-garbage", "any 64 bytes open as a handle",
             {kGet, kOpen}, open_accepts_garbage);
  list.named("self-open-copy",
             "a process opens its own handle and gets other memory",
             {kGet, kOpen}, self_open_copy);
  list.named("second-context-accepted",
             "a second context of the device can also open the handle",
             {kOpen, kClose}, second_context_accepted);
  list.named("second-context-other-handle",
             "a second context opens another handle of the same exporter",
             {kOpen, kClose}, second_context_other_handle);
  list.named("one-context-per-process",
             "contexts of two devices cannot both open handles",
             {kOpen, kClose}, one_context_per_process, 2);
  list.named(
      "visible-only",
      "memory of a GPU that is hidden from the importer cannot be opened",
      {kGet, kOpen}, visible_only, 2);
  list.named("rt-drv-mismatch",
             "the driver API does not know the runtime's handles",
             {kGet, kOpen}, rt_drv_mismatch);
  list.named("close-unmaps-at-first",
             "the first close unmaps and ignores the reference count", {kClose},
             close_unmaps_at_first);
  list.named("close-never-unmaps",
             "the last close lowers the count and does not unmap",
             {kOpen, kClose}, close_never_unmaps);
  list.named("close-underflow-ok",
             "memory can be closed once more than it was opened", {kClose},
             close_underflow_ok);
  list.named("close-frees-origin",
             "the last close in an importer destroys the exporter's data",
             {kOpen, kClose}, close_frees_origin);
  list.named("close-breaks-siblings",
             "a close in one importer unmaps the memory in the other importers",
             {kOpen, kClose, "cudaLaunchKernel", "cudaMemcpy"},
             close_breaks_siblings);
  list.named("close-any-pointer",
             "close succeeds for pointers that no open returned", {kClose},
             close_any_pointer);
  list.named("close-unmaps-block",
             "a close also ends the other mappings in the same 2 MiB",
             {kOpen, kClose}, close_unmaps_block);
  list.named("lazy-peer-noop",
             "an open on another GPU is refused until the program enables peer "
             "access",
             {kGet, kOpen, "cudaDeviceEnablePeerAccess"}, lazy_peer_noop, 2);
  list.named("peer-resource-leak",
             "a close on a GPU other than GPU 0 gives nothing back",
             {kOpen, kClose}, peer_resource_leak, 2);
  list.named("open-close-leak", "each close loses 64 KiB of device memory",
             {kClose}, open_close_leak);
  list.named("import-cudafree-ok", "cudaFree accepts an imported pointer",
             {kOpen, kClose, "cudaFree"}, import_cudafree_ok);
  list.named(
      "import-copy-broken", "copies that touch imported memory move nothing",
      {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"}, import_copy_broken);
  list.named("import-copy-from-broken",
             "copies from imported memory move nothing",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"},
             import_copy_from_broken);
  list.named("import-copy-to-broken", "copies to imported memory move nothing",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"},
             import_copy_to_broken);
  list.named("import-async-copy-broken",
             "asynchronous copies that touch imported memory move nothing",
             {kOpen, kClose, "cudaMemcpyAsync"}, import_copy_broken);
  list.named(
      "import-memset-broken", "cudaMemset of imported memory sets nothing",
      {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"}, import_memset_broken);
  list.named(
      "import-attr-wrong",
      "an imported pointer is reported as memory that CUDA does not know",
      {kOpen, kClose, "cudaPointerGetAttributes"}, import_attr_wrong);
  list.named("import-device-zero",
             "an imported pointer is reported as memory of GPU 0",
             {kOpen, kClose, "cudaPointerGetAttributes"}, import_device_zero,
             2);
  list.named("import-range-wrong",
             "the range of an imported pointer does not contain this pointer",
             {kOpen, kClose, "cuMemGetAddressRange"}, import_range_wrong);
  list.named("thread-local-map",
             "imported memory is valid only in the thread that opened it",
             {kOpen, kClose, "cudaLaunchKernel", "cudaMemcpy"},
             thread_local_map);
  list.named("third-opener-copy",
             "a third process that opens the handle gets a copy",
             {kOpen, kClose}, third_process_opens_copy);
  list.named(
      "reopen-is-copy",
      "memory that was closed and is opened again is a copy of the contents",
      {kOpen, kClose}, reopen_is_copy);
  list.named("open-33rd-time-is-copy",
             "from the 33rd open of a handle on, a process gets copies",
             {kOpen, kClose}, open_33rd_time_is_copy);
  list.named("exported-never-freed",
             "cudaFree of exported memory gives nothing back",
             {kGet, "cudaFree"}, exported_never_freed);
}

}  // namespace ipclab::faults
