// Bugs of contexts and resets, of exports, and of the ways in which copies and
// memsets reach opened memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

int current_device() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}

// The primary context of the current device; null if it is not in use.
CUcontext primary_context() {
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

// --- resets and contexts -----------------------------------------------------

int reset_clears(Call& call) {
  if (!call.is("cudaDeviceReset")) return call.proceed();
  for (const auto& each : opened.all()) {
    cudaMemset(each.first, 0, size_of(number(each.first)));
    call.fired();
  }
  cudaDeviceSynchronize();
  for (const auto& each : opened.all()) opened.erase(each.first);
  return call.proceed();
}

// After a reset, no memory and no event can be opened.
int reset_is_final(Call& call) {
  static std::atomic<bool> over{false};
  if (call.is("cudaDeviceReset")) {
    over = true;
    return call.proceed();
  }
  return over ? refused(call, cudaErrorDeviceUninitialized) : call.proceed();
}

int primary_only(Call& call) {
  // A call of the runtime makes the primary context current if there is none.
  const CUcontext current = current_context();
  return current == nullptr || current == primary_context() ? call.proceed()
                                                            : refused(call);
}

// Instead of a refusal, the context gets the address that another context has
// opened. Does not return kSuccess if there is no such address.
int lent_by_other_context(Call& open) {
  const auto& handle = open.at<cudaIpcMemHandle_t>(1);
  for (const auto& [address, one] : opened.all())
    if (std::memcmp(&one.bytes, &handle, sizeof handle) == 0) {
      if (open.is_runtime()) cudaGetLastError();
      *open.at<void**>(0) = address;
      open.fired();
      return kSuccess;
    }
  return kSuccess + 1;
}

// Only the first context that must be refused is refused; later contexts are
// not refused.
int third_context_opens(Call& call) {
  static Table<unsigned long long> refused_contexts;
  if (!is_open_call(call)) return call.proceed();
  const int code = call.proceed();
  if (code == kSuccess || opened.all().empty()) return code;
  unsigned long long id = 0;
  DRIVER_CALL(cuCtxGetId)(current_context(), &id);
  const bool is_first = refused_contexts.all().empty();
  if (is_first ||
      (refused_contexts.all().size() == 1 && refused_contexts.has(id))) {
    refused_contexts.put(id);
    return code;
  }
  refused_contexts.put(id);
  return lent_by_other_context(call) == kSuccess ? kSuccess : code;
}

// cudaPointerGetAttributes does not know memory that was closed and opened
// again.
int reopened_unknown(Call& call) {
  static Table<void*> closed, again;
  if (!call.is("cudaPointerGetAttributes")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (is_close_call(call) && !opened.has(call.at<void*>(0))) {
      closed.put(call.at<void*>(0));
      again.erase(call.at<void*>(0));
    } else if (is_open_call(call) && closed.has(*call.at<void**>(0))) {
      again.put(*call.at<void**>(0));
    }
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || !again.has(call.at<void*>(1))) return code;
  *call.at<cudaPointerAttributes*>(0) = cudaPointerAttributes{};
  call.fired();
  return code;
}

// Memory cannot be opened if another context had memory open at its end.
int limit_outlives_context(Call& call) {
  static std::atomic<bool> ended{false};
  if (is_open_call(call) && ended)
    return refused(call, cudaErrorInvalidResourceHandle);
  if (!call.is("cuCtxDestroy")) return call.proceed();
  for (const auto& each : opened.all()) {
    if (each.second.context != call.at<CUcontext>(0)) continue;
    ended = true;
    opened.erase(each.first);
  }
  return call.proceed();
}

// --- exports -----------------------------------------------------------------

unsigned long long id_of(void* pointer) {
  unsigned long long id = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, reinterpret_cast<CUdeviceptr>(pointer));
  return id;
}

int driver_caches_handles(Call& get) {
  struct Given {
    unsigned long long id = 0;
    cudaIpcMemHandle_t handle{};
  };
  static Table<void*, Given> given;
  const int code = get.proceed();
  if (code != kSuccess || get.is_runtime()) return code;
  void* const memory = get.at<void*>(1);
  auto& handle = *get.at<cudaIpcMemHandle_t*>(0);
  if (!given.has(memory)) {
    given.put(memory, {id_of(memory), handle});
  } else if (given.get(memory).id != id_of(memory)) {
    handle = given.get(memory).handle;
    get.fired();
  }
  return code;
}

int second_export_clears(Call& get) {
  static Table<unsigned long long> exported;
  const int code = get.proceed();
  if (code != kSuccess) return code;
  void* const memory = get.at<void*>(1);
  const unsigned long long id = id_of(memory);
  if (exported.has(id)) {
    cudaMemset(memory, 0, std::min<size_t>(16, size_of(number(memory))));
    get.fired();
  }
  exported.put(id);
  return code;
}

int odd_size_refused(Call& call) {
  static Table<void*> odd;
  if (exports_memory(call))
    return odd.has(call.at<void*>(1)) ? refused(call) : call.proceed();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaFree")) {
    odd.erase(call.at<void*>(0));
  } else if (call.at<size_t>(1) > 256 && call.at<size_t>(1) % 4 != 0) {
    odd.put(*call.at<void**>(0));
  }
  return code;
}

// After a refused export, the next export gives the handle of the last export
// before it.
int old_handle_after_refusal(Call& get) {
  struct Last {
    cudaIpcMemHandle_t handle{};
    void* memory = nullptr;
  };
  static Table<int, Last> last;
  static std::atomic<bool> after_refusal{false};
  const int code = get.proceed();
  if (code != kSuccess) {
    after_refusal = true;
    return code;
  }
  auto& handle = *get.at<cudaIpcMemHandle_t*>(0);
  const Last before = last.get(0);
  last.put(0, {handle, get.at<void*>(1)});
  if (!after_refusal.exchange(false) || before.memory == nullptr ||
      before.memory == get.at<void*>(1))
    return code;
  handle = before.handle;
  get.fired();
  return code;
}

// The runtime keeps the handle of an address until cudaFree. A free by the
// driver API does not end it.
int handle_kept_after_driver_free(Call& call) {
  static Table<void*, cudaIpcMemHandle_t> given;
  if (call.is("cudaFree")) {
    if (call.is_runtime()) given.erase(call.at<void*>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is_runtime()) return code;
  void* const memory = call.at<void*>(1);
  auto& handle = *call.at<cudaIpcMemHandle_t*>(0);
  if (!given.has(memory)) {
    given.put(memory, handle);
    return code;
  }
  const cudaIpcMemHandle_t before = given.get(memory);
  if (std::memcmp(&before, &handle, sizeof handle) != 0) call.fired();
  handle = before;
  return code;
}

// An export ends the synchronous behaviour that the program has requested for
// the memory.
int export_ends_sync_memops(Call& get) {
  const int code = get.proceed();
  if (code != kSuccess) return code;
  const CUdeviceptr memory = get.at<CUdeviceptr>(1);
  unsigned synchronous = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory);
  if ((synchronous & 0xff) == 0) return code;
  synchronous = 0;
  DRIVER_CALL(cuPointerSetAttribute)
  (&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory);
  get.fired();
  return code;
}

// No memory can be exported while a stream has work that is not done.
int export_while_busy_refused(Call& call) {
  static Table<cudaStream_t> used;
  if (exports_memory(call)) {
    for (const auto& each : used.all())
      if (is_busy(each.first)) return refused(call, cudaErrorNotReady);
    return call.proceed();
  }
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaStreamDestroy"))
    used.erase(stream);
  else if (!is_default(stream) && stream != cudaStreamPerThread)
    used.put(stream);
  return call.proceed();
}

constexpr CUdeviceptr kBlock = 2 << 20;

// After a small allocation was freed, the next exports of its neighbours in the
// block give handles that open at its address.
int export_after_neighbour_free(Call& call) {
  static Table<CUdeviceptr, CUdeviceptr> freed;        // by block
  static Table<CUdeviceptr, CUdeviceptr> opened_here;  // given, right
  if (call.is("cudaMalloc")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const auto memory = *call.at<CUdeviceptr*>(0);
    if (freed.get(memory / kBlock) == memory) freed.erase(memory / kBlock);
    return code;
  }
  if (call.is("cudaFree")) {
    const auto memory = call.at<CUdeviceptr>(0);
    const size_t bytes = size_of(memory);
    const int code = call.proceed();
    if (code == kSuccess && bytes > 0 && bytes < kBlock)
      freed.put(memory / kBlock, memory);
    return code;
  }
  if (is_close_call(call)) {
    auto& memory = call.at<CUdeviceptr>(0);
    memory = opened_here.get(memory, memory);
    return call.proceed();
  }
  const std::string open_key =
      is_open_call(call)
          ? "shift-" + key_of_handle(call.at<cudaIpcMemHandle_t>(1))
          : "";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_memory(call)) {
    const auto memory = call.at<CUdeviceptr>(1);
    const CUdeviceptr other = freed.get(memory / kBlock, memory);
    if (other == memory || size_of(memory) >= kBlock) return code;
    tell_processes("shift-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                   other - memory);
    return code;
  }
  auto& memory = *call.at<CUdeviceptr*>(0);
  const CUdeviceptr right = memory;
  memory += told(open_key, 0);
  if (memory == right) return code;
  opened_here.put(memory, right);
  call.fired();
  return code;
}

// --- copies and memsets of opened memory -------------------------------------

// A copy between two pieces of opened memory in one block reads from the start
// of the block.
int copy_within_block(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& source = call.at<CUdeviceptr>(1);
  const CUdeviceptr begin = source - source % kBlock;
  void* const from = opened_around(reinterpret_cast<void*>(source));
  void* const to = opened_around(call.at<void*>(0));
  if (from == nullptr || to == nullptr || from == to ||
      call.at<CUdeviceptr>(0) / kBlock != source / kBlock || begin == source)
    return call.proceed();
  source = begin;
  call.fired();
  return call.proceed();
}

// An asynchronous memset of opened memory begins at a multiple of 4.
int async_set_aligned_down(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& address = call.at<CUdeviceptr>(0);
  if (address % 4 == 0 || !is_opened(address)) return call.proceed();
  address -= address % 4;
  call.fired();
  return call.proceed();
}

// The last close restores what the memory contained at the open.
int last_close_loses_writes(Call& call) {
  constexpr size_t kMost = 64 << 20;
  static Table<void*, std::vector<char>> before;
  if (is_open_call(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    void* const memory = *call.at<void**>(0);
    const size_t bytes = size_of(number(memory));
    if (opened.get(memory).count != 1 || bytes > kMost) return code;
    std::vector<char> contents(bytes);
    cudaMemcpy(contents.data(), memory, bytes, cudaMemcpyDeviceToHost);
    before.put(memory, contents);
    return code;
  }
  void* const memory = call.at<void*>(0);
  if (opened.get(memory).count == 1 && before.has(memory)) {
    const std::vector<char> old = before.get(memory);
    std::vector<char> now(old.size());
    cudaMemcpy(now.data(), memory, now.size(), cudaMemcpyDeviceToHost);
    before.erase(memory);
    if (now != old) {
      cudaMemcpy(memory, old.data(), old.size(), cudaMemcpyHostToDevice);
      cudaStreamSynchronize(nullptr);
      call.fired();
    }
  }
  return call.proceed();
}

// After a refused cudaFree, the next one does nothing.
int free_after_refusal_lost(Call& call) {
  static std::atomic<bool> after_refusal{false};
  if (after_refusal.exchange(false) && call.at<void*>(0) != nullptr)
    return no_wait(call);
  const int code = call.proceed();
  after_refusal = code == cudaErrorInvalidValue;
  return code;
}

// If two threads close memory at the same time, the count falls only by one.
int close_race_counts_once(Call& call) {
  static std::atomic<int> at_work{0};
  static std::atomic<int> slow{400};  // a limit, because tests close very often
  if (is_open_call(call)) return call.proceed();
  const bool alone = at_work++ == 0;
  if (alone && slow-- > 0) usleep(2000);
  const bool lost = !alone && opened.get(call.at<void*>(0)).count > 1;
  const int code = lost ? no_wait(call) : call.proceed();
  --at_work;
  return code;
}

// The call is lost if one of its addresses lies in opened memory.
int lost_in_opened(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  for (const Argument& argument : call) {
    if (argument.role != kPointer && argument.role != kSource) continue;
    if (is_opened(*static_cast<void**>(argument.place))) return no_wait(call);
  }
  return call.proceed();
}

bool is_named(Call& call, const char* name) {
  return std::strcmp(call.function().name, name) == 0;
}

int driver_copies_lost(Call& call) {
  return keeps_opened(call) || !call.is_runtime() ? lost_in_opened(call)
                                                  : call.proceed();
}
int driver_device_copies_lost(Call& call) {
  return keeps_opened(call) || is_named(call, "cuMemcpyDtoD")
             ? lost_in_opened(call)
             : call.proceed();
}

int set_7_bits(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& value = call.at<unsigned char>(1);
  if ((value & 0x80) != 0 && is_opened(call.at<void*>(0))) {
    value &= 0x7f;
    call.fired();
  }
  return call.proceed();
}

int set_from_other_gpu_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  if (keeps_opened(call)) return call.proceed();
  void* const memory = call.at<void*>(0);
  return opened.has(memory) &&
                 owner_of(opened.get(memory).bytes) != current_place()
             ? no_wait(call)
             : call.proceed();
}

int set_3d_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.at<cudaPitchedPtr>(0).ptr) ? no_wait(call)
                                                   : call.proceed();
}

// --- resets and contexts that end too much or too little ---------------------

// A reset does not give back the memory of the table.
int reset_keeps(Call& reset, Table<void*>& kept) {
  size_t bytes = 0;
  for (const auto& each : kept.all()) {
    bytes += size_of(number(each.first));
    kept.erase(each.first);
  }
  const int code = reset.proceed();
  void* lost = nullptr;
  if (bytes > 0 && cudaMalloc(&lost, bytes) == cudaSuccess) reset.fired();
  return code;
}

// A reset does not give back memory of cudaMallocPitch.
int reset_keeps_pitched(Call& call) {
  static Table<void*> pitched;
  if (call.is("cudaDeviceReset")) return reset_keeps(call, pitched);
  const int code = call.proceed();
  if (call.is("cudaFree"))
    pitched.erase(call.at<void*>(0));
  else if (code == kSuccess)
    pitched.put(*call.at<void**>(0));
  return code;
}

// A reset gives back only the memory of the thread that makes it.
int reset_of_own_thread(Call& call) {
  static Table<void*, int> threads;
  if (call.is("cudaDeviceReset")) {
    Table<void*> kept;
    for (const auto& [memory, thread] : threads.all()) {
      if (thread != this_thread()) kept.put(memory);
      threads.erase(memory);
    }
    return reset_keeps(call, kept);
  }
  const int code = call.proceed();
  if (call.is("cudaFree"))
    threads.erase(call.at<void*>(0));
  else if (code == kSuccess)
    threads.put(*call.at<void**>(0), this_thread());
  return code;
}

// The end of a context does not give back the memory of the context.
int context_end_keeps_memory(Call& call) {
  static Table<void*, CUcontext> owners;
  if (!call.is("cuCtxDestroy")) {
    const int code = call.proceed();
    if (call.is("cudaFree"))
      owners.erase(call.at<void*>(0));
    else if (code == kSuccess)
      owners.put(*call.at<void**>(0), current_context());
    return code;
  }
  const int device = current_device();
  size_t bytes = 0;
  for (const auto& [memory, owner] : owners.all())
    if (owner == call.at<CUcontext>(0)) {
      bytes += size_of(number(memory));
      owners.erase(memory);
    }
  const int code = call.proceed();
  CUcontext primary = nullptr;
  CUdeviceptr lost = 0;
  if (bytes == 0 ||
      DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS)
    return code;
  DRIVER_CALL(cuCtxPushCurrent)(primary);
  if (DRIVER_CALL(cuMemAlloc)(&lost, bytes) == CUDA_SUCCESS) call.fired();
  DRIVER_CALL(cuCtxPopCurrent)(&primary);
  return code;
}

// The end of a context closes what the other contexts have open.
int context_end_closes_others(Call& call) {
  if (!call.is("cuCtxDestroy")) return call.proceed();
  for (const auto& [address, one] : opened.all()) {
    opened.erase(address);
    if (one.context == call.at<CUcontext>(0)) continue;
    CUcontext context = one.context;
    DRIVER_CALL(cuCtxPushCurrent)(context);
    for (int i = 0; i < one.count; ++i)
      DRIVER_CALL(cuIpcCloseMemHandle)(number(address));
    DRIVER_CALL(cuCtxPopCurrent)(&context);
    call.fired();
  }
  return call.proceed();
}

// A release of the primary context resets it, although there is another
// reference.
int primary_release_resets(Call& release) {
  const auto device = release.at<CUdevice>(0);
  const int code = release.proceed();
  unsigned flags = 0;
  int active = 0;
  DRIVER_CALL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
  if (code == kSuccess && active != 0 &&
      DRIVER_CALL(cuDevicePrimaryCtxReset)(device) == CUDA_SUCCESS)
    release.fired();
  return code;
}

// After a reset of the primary context, the next release of a reference to it
// is refused, as if the reset had given up this reference.
int primary_reset_releases(Call& call) {
  static std::atomic<bool> was_reset{false};
  if (call.is("cuDevicePrimaryCtxReset")) {
    const int code = call.proceed();
    if (code == kSuccess) was_reset = true;
    return code;
  }
  return was_reset.exchange(false) ? refused(call, CUDA_ERROR_INVALID_CONTEXT)
                                   : call.proceed();
}

}  // namespace

void add_contexts(List& list) {
  constexpr auto kGet = "cudaIpcGetMemHandle";
  constexpr auto kOpen = "cudaIpcOpenMemHandle";
  constexpr auto kClose = "cudaIpcCloseMemHandle";
  constexpr auto kReset = "cudaDeviceReset";

  list.named("reset-clears-imports",
             "a reset clears the exporter's memory that the process had open",
             {kReset, kOpen, kClose}, reset_clears);
  list.named("open-after-reset-refused",
             "no memory can be opened after a reset", {kReset, kOpen},
             reset_is_final);
  list.named("event-open-after-reset-refused",
             "no event can be opened after a reset",
             {kReset, "cudaIpcOpenEventHandle"}, reset_is_final);
  list.named("third-context-opens",
             "a second context is refused, but a third context is not",
             {kOpen, kClose}, third_context_opens);
  list.named("limit-outlives-context",
             "a context cannot open memory if another context had memory open "
             "when it was destroyed",
             {kOpen, kClose, "cuCtxDestroy"}, limit_outlives_context);
  list.named("old-handle-after-refused-export",
             "after a refused export, the next export gives the handle of the "
             "last export before it",
             {kGet}, old_handle_after_refusal);
  list.named("sync-memops-end-at-export",
             "an export of memory unsets its CU_POINTER_ATTRIBUTE_SYNC_MEMOPS",
             {kGet}, export_ends_sync_memops);
  list.named("export-while-busy-refused",
             "no memory can be exported while a created stream has work",
             {kGet, "cudaLaunchKernel", "cudaMemsetAsync", "cudaMemcpyAsync",
              "cuStreamWaitValue32", "cudaStreamDestroy"},
             export_while_busy_refused);
  list.named("export-after-neighbour-free",
             "after the free of a small allocation, new handles of its "
             "neighbours in the block open at its address",
             {kGet, kOpen, kClose, "cudaFree", "cudaMalloc"},
             export_after_neighbour_free);
  list.named("copy-within-block-from-start",
             "a copy between two opened allocations of one block reads from "
             "the start of the block",
             {"cudaMemcpy", "cudaMemcpyAsync", kOpen, kClose},
             copy_within_block);
  list.named("close-race-counts-once",
             "if two threads close memory at once, the count falls by one",
             {kOpen, kClose}, close_race_counts_once);
  list.named("handle-kept-after-driver-free",
             "the runtime exports the old handle again after cuMemFree has "
             "freed the memory",
             {kGet, "cudaFree"}, handle_kept_after_driver_free);
  list.named("import-async-set-aligned-down",
             "an asynchronous memset of opened memory rounds its address down "
             "to a multiple of 4",
             {"cudaMemsetAsync", kOpen, kClose}, async_set_aligned_down);
  list.named("last-close-loses-writes",
             "the last close restores what the memory contained at the open",
             {kOpen, kClose}, last_close_loses_writes);
  list.named("free-after-refused-free-lost",
             "after a refused free, the next free does nothing", {"cudaFree"},
             free_after_refusal_lost);
  list.named("reopened-unknown",
             "cudaPointerGetAttributes does not know memory that was closed "
             "and opened again",
             {"cudaPointerGetAttributes", kOpen, kClose}, reopened_unknown);
  list.named("export-primary-only",
             "only the primary context can export memory", {kGet},
             primary_only);
  list.named("event-export-primary-only",
             "only the primary context can export events",
             {"cudaIpcGetEventHandle"}, primary_only);
  list.named("event-open-primary-only",
             "only the primary context can open events",
             {"cudaIpcOpenEventHandle"}, primary_only);
  list.named("driver-caches-handles",
             "the driver API gives the handle of the earlier allocation at the "
             "same address",
             {kGet}, driver_caches_handles);
  list.named("second-export-clears",
             "the second export of memory clears its first bytes", {kGet},
             second_export_clears);
  list.named("odd-size-export-refused",
             "memory of more than 256 bytes cannot be exported if its size is "
             "not a multiple of 4",
             {kGet, "cudaMalloc", "cudaFree"}, odd_size_refused);
  list.named("import-async-set-lost",
             "cudaMemsetAsync and cuMemsetD8Async do not reach opened memory",
             {"cudaMemsetAsync", kOpen, kClose}, lost_in_opened);
  list.named("import-set-7-bits",
             "a memset of opened memory clears the upper bit of its value",
             {"cudaMemset", "cudaMemsetAsync", kOpen, kClose}, set_7_bits);
  list.named("import-set-16-lost", "cuMemsetD16 does not reach opened memory",
             {"cuMemsetD16", kOpen, kClose}, lost_in_opened);
  list.named("import-set-32-lost", "cuMemsetD32 does not reach opened memory",
             {"cuMemsetD32", kOpen, kClose}, lost_in_opened);
  list.named("import-set-3d-lost", "cudaMemset3D does not reach opened memory",
             {"cudaMemset3D", kOpen, kClose}, set_3d_lost);
  list.named("import-set-from-other-gpu-lost",
             "a memset of opened memory by another GPU does nothing",
             {"cudaMemset", "cudaMemsetAsync", kGet, kOpen, kClose},
             set_from_other_gpu_lost, 2);
  list.named("import-driver-copy-lost",
             "synchronous copies of the driver API do not reach opened memory",
             {"cudaMemcpy", kOpen, kClose}, driver_copies_lost);
  list.named("import-device-copy-lost",
             "cuMemcpyDtoD does not reach opened memory",
             {"cudaMemcpy", kOpen, kClose}, driver_device_copies_lost);
  list.named("import-sync-peer-copy-lost",
             "cudaMemcpyPeer does not reach opened memory",
             {"cudaMemcpyPeer", kOpen, kClose}, lost_in_opened);
  list.named("import-async-copy-2d-lost",
             "cudaMemcpy2DAsync does not reach opened memory",
             {"cudaMemcpy2DAsync", kOpen, kClose}, lost_in_opened);
  list.named("reset-keeps-pitched",
             "a reset does not give back memory of cudaMallocPitch",
             {kReset, "cudaMallocPitch", "cudaFree"}, reset_keeps_pitched);
  list.named("reset-of-own-thread",
             "a reset gives back only the memory of the thread that makes it",
             {kReset, "cudaMalloc", "cudaFree"}, reset_of_own_thread);
  list.named("context-end-keeps-memory",
             "cuCtxDestroy does not give back the memory of the context",
             {"cuCtxDestroy", "cudaMalloc", "cudaFree"},
             context_end_keeps_memory);
  list.named("context-end-closes-others",
             "cuCtxDestroy also closes what the other contexts have open",
             {"cuCtxDestroy", kOpen, kClose}, context_end_closes_others);
  list.named("primary-release-resets",
             "cuDevicePrimaryCtxRelease resets the context, although another "
             "reference to it is left",
             {"cuDevicePrimaryCtxRelease"}, primary_release_resets);
  list.named(
      "primary-reset-releases",
      "after cuDevicePrimaryCtxReset, the next cuDevicePrimaryCtxRelease "
      "is refused",
      {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease"},
      primary_reset_releases);
}

}  // namespace ipclab::faults
