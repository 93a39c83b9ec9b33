// Bugs of contexts and resets, of exports, and of the ways in which copies and
// memsets reach opened memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "legacy_calls.h"

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
  if (!call.is("cudaDeviceReset")) return noted_open(call);
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
  return primary_context() == current_context() ? call.proceed()
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
  if (!is_open_call(call)) return noted_open(call);
  const int code = noted_open(call);
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
    const int code = noted_open(call);
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

// --- copies and memsets of opened memory -------------------------------------

// The call is lost if one of its addresses lies in opened memory.
int lost_in_opened(Call& call) {
  if (keeps_opened(call)) return noted_open(call);
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
  if (keeps_opened(call)) return noted_open(call);
  auto& value = call.at<unsigned char>(1);
  if ((value & 0x80) != 0 && is_opened(call.at<void*>(0))) {
    value &= 0x7f;
    call.fired();
  }
  return call.proceed();
}

int set_from_other_gpu_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  if (keeps_opened(call)) return noted_open(call);
  void* const memory = call.at<void*>(0);
  return opened.has(memory) &&
                 owner_of(opened.get(memory).bytes) != current_place()
             ? no_wait(call)
             : call.proceed();
}

int set_3d_lost(Call& call) {
  if (keeps_opened(call)) return noted_open(call);
  return is_opened(call.at<cudaPitchedPtr>(0).ptr) ? no_wait(call)
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
             "asynchronous memsets do not reach opened memory",
             {"cudaMemsetAsync", kOpen, kClose}, lost_in_opened);
  list.named("import-set-7-bits",
             "a memset of opened memory clears the upper bit of its value",
             {"cudaMemset", "cudaMemsetAsync", kOpen, kClose}, set_7_bits);
  list.named("import-set-16-lost",
             "memsets of 16 bits do not reach opened memory",
             {"cuMemsetD16", kOpen, kClose}, lost_in_opened);
  list.named("import-set-32-lost",
             "memsets of 32 bits do not reach opened memory",
             {"cuMemsetD32", kOpen, kClose}, lost_in_opened);
  list.named("import-set-3d-lost",
             "memsets of a box do not reach opened memory",
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
             "asynchronous copies of a rectangle do not reach opened memory",
             {"cudaMemcpy2DAsync", kOpen, kClose}, lost_in_opened);
}

}  // namespace ipclab::faults
