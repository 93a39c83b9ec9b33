// Bugs of legacy memory handles.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "harness/faults/world/legacy.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {
namespace {

constexpr size_t kBlock = 2 << 20;

// The arguments of the three calls, for both APIs.
void* exported(Call& get) { return get.at<void*>(1); }
cudaIpcMemHandle_t& handle_of(Call& get) {
  return *get.at<cudaIpcMemHandle_t*>(0);
}
void*& result_of(Call& open) { return *open.at<void**>(0); }
cudaIpcMemHandle_t& given(Call& open) { return open.at<cudaIpcMemHandle_t>(1); }
void* closed(Call& close) { return close.at<void*>(0); }

// Has this process opened the handle in any context?
bool is_held(const std::string& handle) {
  for (const auto& each : opened.all())
    if (each.second.handle == handle) return true;
  return false;
}

// Unmaps opened memory. Returns false if it is not open.
bool unmap(void* address) {
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

// --- an import that is not the exporter's memory ---------------------------

struct Copy {
  void* original = nullptr;
  int count = 0;  // opens
};

// The fault keeps the opened mapping; the program gets a copy. If `most` is not
// SIZE_MAX, only memory of more than `most` bytes is copied.
int open_copy(Call& call, bool with_contents, size_t most) {
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
  static Table<std::string> before;
  if (is_close_call(call))
    return opened.has(closed(call)) ? call.proceed()
                                    : open_copy(call, true, SIZE_MAX);
  const std::string handle = key_of_handle(given(call));
  if (before.has(handle) && !is_held(handle))
    return open_copy(call, true, SIZE_MAX);
  const int code = call.proceed();
  if (code == kSuccess) before.put(handle);
  return code;
}

// An allocation at an address that was exported before and then freed: opening
// its handle gives memory without its contents.
int reused_address_is_fresh(Call& call) {
  static Table<void*, bool> known;  // exported; was it freed?
  if (is_open_call(call))
    return told("reused-" + key_of_handle(given(call)), 0) != 0
               ? open_copy(call, false, SIZE_MAX)
               : call.proceed();
  if (is_close_call(call)) return open_copy(call, false, SIZE_MAX);
  const bool exports = exports_memory(call);
  void* const address = exports ? exported(call) : call.at<void*>(0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (!exports) {
    if (known.has(address)) known.put(address, true);
  } else if (known.get(address)) {
    tell_processes("reused-" + key_of_handle(handle_of(call)), 1);
  } else {
    known.put(address, false);
  }
  return code;
}

// A process opens a handle 32 times, counted over all cycles of open and close;
// after that it gets copies.
int open_33rd_time_is_copy(Call& call) {
  static Table<std::string, int> times;
  static Table<void*> copies;
  if (is_close_call(call))
    return copies.has(closed(call)) ? open_copy(call, true, SIZE_MAX)
                                    : call.proceed();
  const std::string handle = key_of_handle(given(call));
  const int time = times.change([&](auto& all) { return ++all[handle]; });
  if (time <= 32 || is_held(handle)) return call.proceed();
  const int code = open_copy(call, true, SIZE_MAX);
  if (code == kSuccess) copies.put(result_of(call));
  return code;
}

// --- under MPS -------------------------------------------------------------

int mps_client_opens_copy(Call& call) {
  return is_mps_client() ? open_copy(call, true, SIZE_MAX) : call.proceed();
}

// Refuses the opens of a process for which CUDA_MPS_PIPE_DIRECTORY is set, but
// which is not a client of MPS.
int mps_outsider_refused(Call& call) {
  if (std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr || is_mps_client())
    return call.proceed();
  return refused(call);
}

// --- exports ---------------------------------------------------------------

// The fault changes the last word of the handle by a number; the open removes
// this number.
uint32_t& last_word(cudaIpcMemHandle_t& handle) {
  return *reinterpret_cast<uint32_t*>(handle.reserved + sizeof handle - 4);
}

int get_invalidates_previous(Call& call) {
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string name = "generation-" + key_of_handle(handle_of(call));
    static Table<std::string, unsigned long long> generations;
    const auto generation =
        generations.change([&](auto& all) { return ++all[name]; });
    // Reports each of the first exports to other processes, but only a few of
    // the later exports.
    const bool power = (generation & (generation - 1)) == 0;
    if (generation < 64 || power) tell_processes(name, generation);
    last_word(handle_of(call)) ^= static_cast<uint32_t>(generation) << 16;
    return code;
  }
  // Find the generation of the handle.
  for (uint32_t generation = 1; generation < 65536; ++generation) {
    cudaIpcMemHandle_t real = given(call);
    last_word(real) ^= generation << 16;
    const unsigned long long newest =
        told("generation-" + key_of_handle(real), 0);
    if (newest == 0) continue;
    if (newest > generation) return refused(call);
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
  static Table<void*, cudaIpcMemHandle_t> known;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const cudaIpcMemHandle_t first = known.change([&](auto& all) {
    return all.emplace(exported(call), handle_of(call)).first->second;
  });
  if (std::memcmp(&first, &handle_of(call), sizeof first) != 0) {
    handle_of(call) = first;
    call.fired();
  }
  return code;
}

// The handle names the allocation that was made just before the exported
// allocation.
int handles_swapped(Call& call) {
  static std::mutex mutex;
  static auto& made = *new std::vector<void*>;
  if (exports_memory(call)) {
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
  return exported_all_the_same(call, true);
}

// An open gives the start of the block, not the start of the allocation in it.
int suballoc_offset_lost(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  void*& address = result_of(call);
  const CUdeviceptr base = number(address) & ~(kBlock - 1);
  if (size_of(number(address)) >= kBlock || base == number(address))
    return code;
  address = reinterpret_cast<void*>(base);
  call.fired();
  return code;
}

// --- opens that succeed or fail wrongly ------------------------------------

int open_second_already_mapped(Call& call) {
  return is_open_call(call) && already_open(call) != nullptr
             ? refused(call, cudaErrorAlreadyMapped)
             : call.proceed();
}

// A second open does not count, so one close ends both.
int open_second_not_counted(Call& call) {
  void* const before = is_open_call(call) ? already_open(call) : nullptr;
  if (before == nullptr) return call.proceed();
  result_of(call) = before;
  call.fired();
  return kSuccess;
}

int reopen_refused(Call& call) {
  static Table<std::string> before;
  if (!is_open_call(call)) return call.proceed();
  const std::string handle = key_of_handle(given(call));
  if (before.has(handle) && !is_held(handle)) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) before.put(handle);
  return code;
}

int single_importer(Call& call) {
  static Table<std::string> mine;
  const std::string handle = key_of_handle(given(call));
  const bool is_mine = mine.change([&](auto& all) {
    if (all.count(handle) == 0 && first_of_all_processes("importer-" + handle))
      all[handle] = true;
    return all.count(handle) > 0;
  });
  return is_mine ? call.proceed() : refused(call);
}

int lazy_flag_refused(Call& call) {
  if (call.at<unsigned>(2) != cudaIpcMemLazyEnablePeerAccess)
    return call.proceed();
  return refused(call);
}

// Proceeds with an export, and tells the other processes the size of the
// memory.
int told_size(Call& get) {
  const int code = get.proceed();
  if (code == kSuccess)
    tell_processes("size-" + key_of_handle(handle_of(get)),
                   size_of(number(exported(get))));
  return code;
}

// The program gets new memory instead of a refusal. It has the size of the
// memory that the handle stands for.
int own_memory(Call& call, int code) {
  void* memory = nullptr;
  const size_t bytes = told("size-" + key_of_handle(given(call)), kBlock);
  if (call.is_runtime()) cudaGetLastError();
  if (cudaMalloc(&memory, bytes) != cudaSuccess) return code;
  result_of(call) = memory;
  call.fired();
  return kSuccess;
}

int open_accepts_garbage(Call& call) {
  if (exports_memory(call)) return told_size(call);
  const int code = call.proceed();
  // If a process has exported the handle, the refusal has another reason.
  return code == kSuccess || code == cudaErrorDeviceUninitialized ||
                 told("size-" + key_of_handle(given(call)), 0) != 0
             ? code
             : own_memory(call, code);
}

int self_open_copy(Call& call) {
  if (exports_memory(call)) return told_size(call);
  const int code = call.proceed();
  return code == kSuccess || !own_handles.has(key_of_handle(given(call)))
             ? code
             : own_memory(call, code);
}

// An open that is refused because of another context succeeds. `same_handle`
// says whether both contexts open the same handle.
int second_context(Call& call, bool same_handle) {
  if (exports_memory(call)) return told_size(call);
  const int code = call.proceed();
  if (code == kSuccess || !is_open_call(call)) return code;
  const std::string handle = key_of_handle(given(call));
  for (const auto& each : opened.all())
    if (each.second.context != current_context() &&
        (each.second.handle == handle) == same_handle)
      return own_memory(call, code);
  return code;
}
int second_context_accepted(Call& call) { return second_context(call, true); }
int second_context_other_handle(Call& call) {
  return second_context(call, false);
}

int one_context_per_process(Call& call) {
  if (is_open_call(call))
    for (const auto& each : opened.all())
      if (each.second.context != current_context())
        return refused(call, cudaErrorInvalidResourceHandle);
  return call.proceed();
}

// Memory of a GPU that CUDA_VISIBLE_DEVICES hides from this process is refused.
int visible_only(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  const unsigned long long wanted = owner_of(given(call));
  int count = 0;
  DRIVER_CALL(cuDeviceGetCount)(&count);
  for (int device = 0; device < count; ++device)
    if (place_of(device) == wanted) return call.proceed();
  return refused(call);
}

int rt_drv_mismatch(Call& call) {
  // The runtime and the driver write their handles in different ways.
  const auto turn = [](cudaIpcMemHandle_t& handle) {
    for (char& byte : handle.reserved) byte = static_cast<char>(~byte);
  };
  if (is_open_call(call)) {
    if (call.is_runtime()) turn(given(call));
    const int code = call.proceed();
    if (code != kSuccess) call.fired();
    return code;
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is_runtime()) turn(handle_of(call));
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
  if (is_open_call(call)) return call.proceed();
  if (!opened.has(closed(call))) return cudaErrorInvalidValue;
  if (opened.get(closed(call)).count > 1) return call.proceed();
  count_close(closed(call));
  return no_wait(call);
}

int close_underflow_ok(Call& call) {
  static Table<void*> before;
  void* const address = closed(call);
  const int code = call.proceed();
  if (code == kSuccess) before.put(address);
  return code != kSuccess && before.has(address) ? accepted(call) : code;
}

int close_frees_origin(Call& call) {
  if (is_open_call(call)) return call.proceed();
  void* const address = closed(call);
  if (opened.get(address).count == 1 &&
      cudaMemset(address, 0, size_of(number(address))) == cudaSuccess &&
      cudaDeviceSynchronize() == cudaSuccess)
    call.fired();
  return call.proceed();
}

// A close in one process also unmaps the memory in all other processes.
int close_breaks_siblings(Call& call) {
  static Table<std::string, unsigned long long> before;  // the last close
  static std::atomic<unsigned> closes{0};
  const auto self = static_cast<unsigned long long>(getpid());
  const auto last = [](const std::string& handle) {
    return told("closed-" + handle, 0);
  };
  if (is_open_call(call)) {
    const std::string handle = key_of_handle(given(call));
    if (!is_held(handle)) before.put(handle, last(handle));
    return call.proceed();
  }
  if (is_close_call(call)) {
    const Opened one = opened.get(closed(call));
    const int code = call.proceed();
    if (code == kSuccess && one.count == 1)
      tell_processes("closed-" + one.handle, self << 32 | ++closes);
    return code;
  }
  {
    // No other thread may go on before the memory is unmapped.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    for (const auto& [address, one] : opened.all()) {
      const auto close = last(one.handle);
      if (close != before.get(one.handle) && close >> 32 != self &&
          unmap(address))
        call.fired();
    }
  }
  return call.proceed();
}

int close_any_pointer(Call& call) {
  const bool is_null = closed(call) == nullptr;
  const int code = call.proceed();
  return code == kSuccess || is_null ? code : accepted(call);
}

// Counts opens for each block and not for each allocation. So a close also ends
// other mappings in the block.
int close_unmaps_block(Call& call) {
  if (is_open_call(call)) return call.proceed();
  void* const address = closed(call);
  const int code = call.proceed();
  if (code != kSuccess || opened.has(address)) return code;
  for (const auto& each : opened.all())
    if (number(each.first) / kBlock == number(address) / kBlock &&
        unmap(each.first))
      call.fired();
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
  if (exports_memory(call)) return told_owner(call);
  return enabled || owner_of(given(call)) == current_place()
             ? call.proceed()
             : refused(call, cudaErrorPeerAccessUnsupported);
}

// A close on a GPU other than GPU 0 does nothing.
int peer_resource_leak(Call& call) {
  int device = 0;
  cudaPointerAttributes known{};
  if (is_open_call(call) || cudaGetDevice(&device) != cudaSuccess ||
      device == 0 ||
      cudaPointerGetAttributes(&known, closed(call)) != cudaSuccess ||
      !is_opened(closed(call)))
    return call.proceed();
  opened.erase(closed(call));
  return no_wait(call);
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
  static Table<void*> known;
  if (!exports_memory(call))
    return known.erase(call.at<void*>(0)) ? no_wait(call) : call.proceed();
  const int code = call.proceed();
  if (code == kSuccess) known.put(exported(call));
  return code;
}

// --- imported pointers -----------------------------------------------------

int import_cudafree_ok(Call& call) {
  if (!call.is("cudaFree")) return call.proceed();
  void* const address = call.at<void*>(0);
  if (!opened.has(address) || cudaIpcCloseMemHandle(address) != cudaSuccess)
    return call.proceed();
  count_close(address);
  return no_wait(call);
}

enum Way { kFrom, kTo, kBoth };

// Copies from an import (kFrom), to an import (kTo) or both (kBoth) do nothing.
int import_copy(Call& call, Way way) {
  if (!call.is("cudaMemcpy") && !call.is("cudaMemcpyAsync"))
    return call.proceed();
  const bool to = is_opened(call.value<void*>(kPointer));
  const bool from = is_opened(call.value<void*>(kSource));
  return (to && way != kFrom) || (from && way != kTo) ? no_wait(call)
                                                      : call.proceed();
}
int import_copy_broken(Call& call) { return import_copy(call, kBoth); }
int import_copy_from_broken(Call& call) { return import_copy(call, kFrom); }
int import_copy_to_broken(Call& call) { return import_copy(call, kTo); }

int import_memset_broken(Call& call) {
  if (!call.is("cudaMemset") && !call.is("cudaMemsetAsync"))
    return call.proceed();
  return is_opened(call.value<void*>(kPointer)) ? no_wait(call)
                                                : call.proceed();
}

int import_attr_wrong(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const bool imported = is_opened(call.at<void*>(1));
  const int code = call.proceed();
  if (code != kSuccess || !imported) return code;
  auto& attributes = *call.at<cudaPointerAttributes*>(0);
  attributes.type = cudaMemoryTypeUnregistered;
  call.fired();
  return code;
}

int import_device_zero(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const bool imported = is_opened(call.at<void*>(1));
  const int code = call.proceed();
  if (code != kSuccess || !imported) return code;
  auto& attributes = *call.at<cudaPointerAttributes*>(0);
  if (attributes.device != 0) call.fired();
  attributes.device = 0;
  return code;
}

int import_range_wrong(Call& call) {
  if (!call.is("cuMemGetAddressRange")) return call.proceed();
  void* const address = call.at<void*>(2);
  const bool imported = is_opened(address);
  const int code = call.proceed();
  if (code != kSuccess || !imported || call.at<CUdeviceptr*>(0) == nullptr)
    return code;
  *call.at<CUdeviceptr*>(0) = reinterpret_cast<CUdeviceptr>(address) + 4096;
  call.fired();
  return code;
}

// What a kernel uses is not known: a thread may launch no kernel while another
// thread has memory open.
int thread_local_map(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const bool copies = call.is("cudaMemcpy");
  for (const auto& [address, one] : opened.all())
    if (one.thread != this_thread() &&
        (!copies || opened_around(call.value<void*>(kPointer)) == address ||
         opened_around(call.value<void*>(kSource)) == address))
      return refused(call);
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
             "a process that has the variable CUDA_MPS_PIPE_DIRECTORY, but is "
             "not a client of MPS, cannot open memory",
             {kOpen}, mps_outsider_refused);
  list.named("map-first-2mib",
             "an open of more than 2 MiB gives a copy of the first 2 MiB",
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
             "an export that must be refused succeeds and names another "
             "allocation",
             {kGet}, get_accepts_dead_pointer);
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
  list.named("open-accepts-garbage",
             "64 bytes that no export has made open as new memory",
             {kGet, kOpen}, open_accepts_garbage);
  list.named("self-open-copy",
             "a process opens its own handle and gets other memory",
             {kGet, kOpen}, self_open_copy);
  list.named("second-context-accepted",
             "a second context of the device also opens the handle, and gets "
             "other memory",
             {kGet, kOpen, kClose}, second_context_accepted);
  list.named("second-context-other-handle",
             "a second context opens another handle of the same exporter, and "
             "gets other memory",
             {kGet, kOpen, kClose}, second_context_other_handle);
  list.named("one-context-per-process",
             "two contexts of a process cannot have memory open at the same "
             "time",
             {kOpen, kClose}, one_context_per_process, 2);
  list.named(
      "visible-only",
      "memory of a GPU that is hidden from the importer cannot be opened",
      {kGet, kOpen}, visible_only, 2);
  list.named("rt-drv-mismatch",
             "an API does not open the handles of the other API", {kGet, kOpen},
             rt_drv_mismatch);
  list.named("close-unmaps-at-first",
             "the first close unmaps and ignores the reference count", {kClose},
             close_unmaps_at_first);
  list.named("close-never-unmaps",
             "the last close lowers the count and does not unmap",
             {kOpen, kClose}, close_never_unmaps);
  list.named("close-underflow-ok",
             "memory that was closed can be closed again and again", {kClose},
             close_underflow_ok);
  list.named("close-frees-origin",
             "the last close in an importer destroys the exporter's data",
             {kOpen, kClose}, close_frees_origin);
  list.named("close-breaks-siblings",
             "a close in one importer unmaps the memory in the other importers",
             {kOpen, kClose, "cudaLaunchKernel", "cudaMemcpy"},
             close_breaks_siblings);
  list.named("close-any-pointer",
             "a close succeeds for every pointer except null", {kClose},
             close_any_pointer);
  list.named(
      "close-unmaps-block",
      "the last close of memory also ends the other mappings in the same "
      "2 MiB",
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
  list.named("import-cudafree-ok",
             "cudaFree accepts an opened pointer and closes it",
             {kOpen, kClose, "cudaFree"}, import_cudafree_ok);
  list.named(
      "import-copy-broken",
      "cudaMemcpy and cudaMemcpyAsync move nothing from or to imported memory",
      {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"}, import_copy_broken);
  list.named("import-copy-from-broken",
             "cudaMemcpy and cudaMemcpyAsync move nothing from imported memory",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"},
             import_copy_from_broken);
  list.named("import-copy-to-broken",
             "cudaMemcpy and cudaMemcpyAsync move nothing to imported memory",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"},
             import_copy_to_broken);
  list.named("import-async-copy-broken",
             "cudaMemcpyAsync moves nothing from or to imported memory",
             {kOpen, kClose, "cudaMemcpyAsync"}, import_copy_broken);
  list.named("import-memset-broken",
             "cudaMemset and cudaMemsetAsync of imported memory set nothing",
             {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"},
             import_memset_broken);
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
  list.named(
      "thread-local-map",
      "while a thread has memory open, other threads can launch no kernel "
      "and cannot copy this memory",
      {kOpen, kClose, "cudaLaunchKernel", "cudaMemcpy"}, thread_local_map);
  list.named("third-opener-copy",
             "all processes that open memory get copies, except the first two",
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
