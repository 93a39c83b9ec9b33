// Bugs of attributes, errors and peers, and of the memory that may be exported.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <map>
#include <mutex>

#include "harness/faults/engine/fault.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {
namespace {

std::mutex mutex;  // for the state of the chosen fault

// --- memory that may be exported -------------------------------------------

enum class Kind { kOther, kManaged, kHost, kPageable };

Kind kind_of(const void* address) {
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

// Instead of a refusal the export names a new allocation.
int export_of(Call& call, Kind kind) {
  static void* living = nullptr;
  const bool is_meant = kind_of(call.at<void*>(1)) == kind;
  const int code = call.proceed();
  if (code == kSuccess || !is_meant) return code;
  if (call.is_runtime()) cudaGetLastError();
  if (living == nullptr && cudaMalloc(&living, 2 << 20) != cudaSuccess)
    return code;
  call.at<void*>(1) = living;
  call.fired();
  return call.proceed();
}
int managed_export_ok(Call& call) { return export_of(call, Kind::kManaged); }
int hostmem_export_ok(Call& call) { return export_of(call, Kind::kHost); }
int pageable_export_ok(Call& call) { return export_of(call, Kind::kPageable); }

int unsupported_silent(Call& call) {
  const int code = call.proceed();
  if (code != cudaErrorNotSupported) return code;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return kSuccess;
}

// The opposite of unsupported_silent(): a call that is refused for another
// reason returns "not supported".
int refused_as_unsupported(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotSupported) return code;
  call.fired();
  return cudaErrorNotSupported;
}

// --- a runtime that is newer than the driver ---------------------------------

bool runtime_is_newer() {
  using Version = cudaError_t(int*);
  const auto version_of = [](const char* function) {
    int version = 0;
    const auto ask = reinterpret_cast<Version*>(resolve_runtime(function));
    return ask != nullptr && ask(&version) == cudaSuccess ? version : 0;
  };
  return version_of("cudaRuntimeGetVersion") >
         version_of("cudaDriverGetVersion");
}

int newer_runtime_refused(Call& call) {
  if (!runtime_is_newer()) return call.proceed();
  call.fired();
  return cudaErrorInsufficientDriver;
}

int too_new_call_silent(Call& call) {
  const int code = call.proceed();
  if (code != cudaErrorCallRequiresNewerDriver) return code;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return kSuccess;
}

int too_new_call_as_unsupported(Call& call) {
  const int code = call.proceed();
  if (code != cudaErrorCallRequiresNewerDriver) return code;
  call.fired();
  return cudaErrorNotSupported;
}

// --- attributes ------------------------------------------------------------

int pointer_attribute(Call& call, CUpointer_attribute wanted, bool value) {
  const int code = call.proceed();
  if (call.at<CUpointer_attribute>(1) != wanted || code != kSuccess)
    return code;
  bool& told = *call.at<bool*>(0);
  if (told != value) call.fired();
  told = value;
  return code;
}
int legacy_capable_lies(Call& call) {
  return pointer_attribute(
      call, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, true);
}
int legacy_capable_denied(Call& call) {
  return pointer_attribute(
      call, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, false);
}

// An allocation has the id of the earlier allocation at its address.
int buffer_id_reused(Call& call) {
  static auto& ids = *new std::map<CUdeviceptr, unsigned long long>;
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  const std::lock_guard lock(mutex);
  auto& id = *call.at<unsigned long long*>(0);
  const auto [entry, is_new] = ids.emplace(call.at<CUdeviceptr>(2), id);
  if (!is_new && entry->second != id) {
    id = entry->second;
    call.fired();
  }
  return code;
}

int buffer_id_constant(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  *call.at<unsigned long long*>(0) = 42;
  call.fired();
  return code;
}

// The query of many attributes refuses a pointer that CUDA does not know.
int ptrattrs_error(Call& call) {
  if (kind_of(reinterpret_cast<void*>(call.at<CUdeviceptr>(3))) !=
      Kind::kPageable)
    return call.proceed();
  call.fired();
  return CUDA_ERROR_INVALID_VALUE;
}

int unknown_pointer_refused(Call& call) {
  if (kind_of(call.at<void*>(1)) != Kind::kPageable) return call.proceed();
  call.fired();
  return cudaErrorInvalidValue;
}

int unknown_attr_ok(Call& call) {
  const int code = call.proceed();
  if (code != cudaErrorInvalidValue) return code;
  if (call.is_runtime()) cudaGetLastError();
  *call.at<int*>(0) = 0;
  call.fired();
  return kSuccess;
}

int attribute_lies(Call& call, int attribute) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) != attribute) return code;
  int& value = *call.at<int*>(0);
  value = value == 0 ? 1 : 0;
  call.fired();
  return code;
}
int ipc_attr_lies(Call& call) {
  return call.is_runtime() ? attribute_lies(call, cudaDevAttrIpcEventSupport)
                           : call.proceed();
}
int ipc_driver_attr_lies(Call& call) {
  return call.is_runtime()
             ? call.proceed()
             : attribute_lies(call, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
}

// --- errors ----------------------------------------------------------------

int last_error_told_twice(Call& call) {
  const int code = static_cast<int>(cudaPeekAtLastError());
  if (code == kSuccess) return call.proceed();
  call.fired();
  return code;
}

int error_names_shifted(Call& call) {
  call.value<int>(kOther) += 1;
  call.fired();
  return call.proceed();
}

// After a refused call of legacy IPC, other calls return
// cudaErrorIllegalAddress.
int sticky_after_refusal(Call& call) {
  static std::atomic<bool> poisoned{false};
  const bool is_refusable =
      call.is("cudaIpcGetMemHandle") || call.is("cudaIpcOpenMemHandle") ||
      call.is("cudaIpcCloseMemHandle") || call.is("cudaIpcGetEventHandle") ||
      call.is("cudaIpcOpenEventHandle");
  if (poisoned && !is_refusable && !call.is("cudaGetLastError")) {
    call.fired();
    return cudaErrorIllegalAddress;
  }
  const int code = call.proceed();
  if (is_refusable && code != kSuccess) poisoned = true;
  return code;
}

// --- peers -----------------------------------------------------------------

int peer_denied(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || *call.at<int*>(0) == 0) return code;
  *call.at<int*>(0) = 0;
  call.fired();
  return code;
}

int nonpeer_open_ok(Call& call) {
  const int code = call.proceed();
  if (code != cudaErrorMapBufferObjectFailed &&
      code != cudaErrorPeerAccessUnsupported)
    return code;
  if (call.is_runtime()) cudaGetLastError();
  if (cudaMalloc(call.at<void**>(0), 2 << 20) != cudaSuccess) return code;
  call.fired();
  return kSuccess;
}

int registered_export_ok(Call& call) {
  static Table<void*> registered;
  if (call.is("cudaHostRegister")) {
    const int code = call.proceed();
    if (code == kSuccess) registered.put(call.at<void*>(0));
    return code;
  }
  return exported_all_the_same(call, registered.has(call.at<void*>(1)));
}

int managed_of_host_export_ok(Call& call) {
  static Table<void*> managed;
  if (call.is("cudaFree")) {
    managed.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (call.is("cudaMallocManaged")) {
    const int code = call.proceed();
    if (code == kSuccess && call.at<unsigned>(2) == cudaMemAttachHost)
      managed.put(*call.at<void**>(0));
    return code;
  }
  return exported_all_the_same(call, managed.has(call.at<void*>(1)));
}

int ipc_property_lies(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& value = call.at<cudaDeviceProp*>(0)->ipcEventSupported;
  value = value == 0;
  call.fired();
  return code;
}

int ipc_denied_on_second_gpu(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) != cudaDevAttrIpcEventSupport ||
      call.at<int>(2) == 0)
    return code;
  *call.at<int*>(0) = 0;
  call.fired();
  return code;
}

int peer_one_way(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) < call.at<int>(2)) return code;
  if (*call.at<int*>(0) != 0) call.fired();
  *call.at<int*>(0) = 0;
  return code;
}

// Returns an id of the address, not of its allocation.
int buffer_id_of_address(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const auto address = call.at<CUdeviceptr>(2);
  DRIVER_CALL(cuMemGetAddressRange)(&base, &bytes, address);
  if (base == 0 || base == address) return code;
  *call.at<unsigned long long*>(0) += (address - base) << 32;
  call.fired();
  return code;
}

}  // namespace

void add_platform(List& list) {
  const char* const kGet = "cudaIpcGetMemHandle";
  const char* const kAttribute = "cuPointerGetAttribute";
  list.named("managed-export-ok",
             "managed memory gets a legacy handle, which opens other memory",
             {kGet}, managed_export_ok);
  list.named(
      "hostmem-export-ok",
      "pinned host memory gets a legacy handle, which opens other memory",
      {kGet}, hostmem_export_ok);
  list.named(
      "pageable-export-ok",
      "a pointer that CUDA does not know gets a legacy handle, which opens "
      "other memory",
      {kGet}, pageable_export_ok);
  list.named("unsupported-silent",
             "calls on a machine without IPC succeed and do nothing",
             {kGet, "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle",
              "cudaIpcGetEventHandle", "cudaIpcOpenEventHandle"},
             unsupported_silent);
  list.named(
      "refused-as-unsupported",
      "a close of memory that was not opened is refused as not supported",
      {"cudaIpcCloseMemHandle"}, refused_as_unsupported);
  list.named(
      "newer-runtime-refused",
      "a program whose runtime is newer than the driver cannot open a handle",
      {"cudaIpcOpenMemHandle"}, newer_runtime_refused);
  list.named("too-new-call-silent",
             "cudaGraphGetId, for which the driver is too old, returns success "
             "and does nothing",
             {"cudaGraphGetId"}, too_new_call_silent);
  list.named("too-new-call-as-unsupported",
             "cudaGraphGetId, for which the driver is too old, returns "
             "cudaErrorNotSupported",
             {"cudaGraphGetId"}, too_new_call_as_unsupported);
  list.named(
      "legacy-capable-lies",
      "cuPointerGetAttribute reports all memory as capable of legacy IPC",
      {kAttribute}, legacy_capable_lies);
  list.named("legacy-capable-denied",
             "cuPointerGetAttribute reports no memory as capable of legacy IPC",
             {kAttribute}, legacy_capable_denied);
  list.named(
      "buffer-id-reused",
      "an allocation has the id of the earlier allocation at its address",
      {kAttribute}, buffer_id_reused);
  list.named("buffer-id-constant", "all allocations have the same id",
             {kAttribute}, buffer_id_constant);
  list.named("ptrattrs-error",
             "the query of many attributes refuses an unknown pointer",
             {"cuPointerGetAttributes"}, ptrattrs_error);
  list.named("unknown-pointer-refused",
             "cudaPointerGetAttributes refuses an unknown pointer",
             {"cudaPointerGetAttributes"}, unknown_pointer_refused);
  list.named("unknown-attr-ok", "an unknown attribute is accepted and is 0",
             {"cudaDeviceGetAttribute"}, unknown_attr_ok);
  list.named("ipc-attr-lies",
             "the runtime's attribute about IPC has the opposite value",
             {"cudaDeviceGetAttribute"}, ipc_attr_lies);
  list.named("ipc-driver-attr-lies",
             "the driver's attribute about IPC has the opposite value",
             {"cudaDeviceGetAttribute"}, ipc_driver_attr_lies);
  list.named("error-names-shifted",
             "the driver gives each error the name of the next error",
             {"cuGetErrorName"}, error_names_shifted);
  list.named("last-error-told-twice",
             "cudaGetLastError does not clear the error", {"cudaGetLastError"},
             last_error_told_twice);
  list.named("sticky-after-refusal",
             "after a refused call of legacy IPC, other calls return "
             "cudaErrorIllegalAddress",
             {"cudaIpcGetMemHandle", "*"}, sticky_after_refusal);
  list.named("peer-denied", "peer GPUs are reported as not being peers",
             {"cudaDeviceCanAccessPeer"}, peer_denied, 2);
  list.named("nonpeer-open-ok",
             "opening memory of a GPU that is not a peer succeeds and gives "
             "other memory",
             {"cudaIpcOpenMemHandle"}, nonpeer_open_ok, 2);
  list.named("ipc-property-lies",
             "the IPC field in the device's properties has the opposite value",
             {"cudaGetDeviceProperties"}, ipc_property_lies);
  list.named("ipc-attr-second-gpu",
             "only the first GPU is reported to share memory",
             {"cudaDeviceGetAttribute"}, ipc_denied_on_second_gpu, 2);
  list.named("peer-one-way",
             "cudaDeviceCanAccessPeer says that GPU 1 cannot reach GPU 0, "
             "although it can",
             {"cudaDeviceCanAccessPeer"}, peer_one_way, 2);
  list.named("buffer-id-of-address",
             "each address of an allocation has its own id", {kAttribute},
             buffer_id_of_address);
  list.named("registered-export-ok",
             "host memory of cudaHostRegister gets a legacy handle, which "
             "opens other memory",
             {kGet, "cudaHostRegister"}, registered_export_ok);
  list.named("managed-of-host-export-ok",
             "managed memory that is attached to the host gets a legacy "
             "handle, which opens other memory",
             {kGet, "cudaMallocManaged", "cudaFree"},
             managed_of_host_export_ok);
}

}  // namespace ipclab::faults
