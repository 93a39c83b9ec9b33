// Bugs of queries and refusals that show themselves only in unusual programs:
// an address inside memory, another thread, the other API, the query of many
// attributes, a value at a boundary.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdint>

#include "chunk_calls.h"
#include "legacy_calls.h"
#include "pool_calls.h"

namespace ipclab::faults {
namespace {

// --- one attribute of a pointer ----------------------------------------------

// The place of the answer, if the call asks for the attribute `wanted`; null if
// the call asks for another attribute.
template <CUpointer_attribute wanted, class Value>
Value* answer(Call& call) {
  return call.is("cuPointerGetAttribute") &&
                 call.at<CUpointer_attribute>(1) == wanted
             ? call.at<Value*>(0)
             : nullptr;
}
bool* capable_in(Call& call) {
  return answer<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>(call);
}
unsigned long long* types_in(Call& call) {
  return answer<CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, unsigned long long>(
      call);
}

template <class Value>
Value attribute_of(CUpointer_attribute attribute, CUdeviceptr address) {
  Value value{};
  DRIVER_CALL(cuPointerGetAttribute)(&value, attribute, address);
  return value;
}

int told_capable(Call& call, bool value) {
  if (*capable_in(call) != value) call.fired();
  *capable_in(call) = value;
  return kSuccess;
}

int types_at_begin_only(Call& call) {
  const int code = call.proceed();
  const auto address = call.at<CUdeviceptr>(2);
  if (code != kSuccess || types_in(call) == nullptr || *types_in(call) == 0 ||
      begin_of(address) == address)
    return code;
  *types_in(call) = 0;
  call.fired();
  return code;
}

// Every address of a reservation has the types of the address at its beginning.
int types_of_first_chunk(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || types_in(call) == nullptr) return code;
  const auto first = attribute_of<CUdeviceptr>(
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, call.at<CUdeviceptr>(2));
  const auto types = attribute_of<unsigned long long>(
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, first);
  if (*types_in(call) != types) call.fired();
  *types_in(call) = types;
  return code;
}

// Changes each answer about one attribute, in both queries. The step gets the
// address and the driver's answer, and returns the new answer.
template <CUpointer_attribute wanted, class Value, class Step>
int answered_by(Call& call, Step step) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto change = [&](Value& value, CUdeviceptr address) {
    const Value changed = step(address, value);
    if (changed != value) call.fired();
    value = changed;
  };
  if (call.is("cuPointerGetAttribute")) {
    if (auto* const value = answer<wanted, Value>(call))
      change(*value, call.at<CUdeviceptr>(2));
    return code;
  }
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
    if (call.at<const CUpointer_attribute*>(1)[i] == wanted)
      change(*static_cast<Value*>(call.at<void**>(2)[i]),
             call.at<CUdeviceptr>(3));
  return code;
}

// As long as an address is reserved, its handle types do not change after the
// first query.
int types_of_first_query(Call& call) {
  static Table<CUdeviceptr, unsigned long long> first;
  if (call.is("cuMemAddressFree")) {
    const auto begin = call.at<CUdeviceptr>(0);
    for (const auto& each : first.all())
      if (each.first - begin < call.at<size_t>(1)) first.erase(each.first);
    return call.proceed();
  }
  return answered_by<CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                     unsigned long long>(
      call, [](CUdeviceptr address, unsigned long long types) {
        if (!first.has(address)) first.put(address, types);
        return first.get(address);
      });
}

int capable_managed_inside(Call& call) {
  return answered_by<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>(
      call, [](CUdeviceptr address, bool value) {
        return value || (attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                address) != 0 &&
                         begin_of(address) != address);
      });
}

// The query of many attributes reports 0 for this attribute.
template <CUpointer_attribute wanted, class Value>
int zero_in_plural(Call& call) {
  const int code = call.proceed();
  const auto* const attributes = call.at<const CUpointer_attribute*>(1);
  for (unsigned i = 0; code == kSuccess && i < call.at<unsigned>(0); ++i) {
    if (attributes[i] != wanted) continue;
    auto& value = *static_cast<Value*>(call.at<void**>(2)[i]);
    if (value != Value{}) call.fired();
    value = Value{};
  }
  return code;
}

int capable_mapped(Call& call) {
  const int code = noted_chunks(call);
  return code == kSuccess && capable_in(call) != nullptr &&
                 mappings.has(call.at<CUdeviceptr>(2))
             ? told_capable(call, true)
             : code;
}

int capable_managed(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || capable_in(call) == nullptr ||
      attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                             call.at<CUdeviceptr>(2)) == 0)
    return code;
  return told_capable(call, true);
}

int capable_only_if_large(Call& call) {
  const int code = call.proceed();
  return code != kSuccess || capable_in(call) == nullptr ||
                 size_of(call.at<CUdeviceptr>(2)) >= 2 << 20
             ? code
             : told_capable(call, false);
}

int capable_only_if_small(Call& call) {
  const int code = call.proceed();
  return code != kSuccess || capable_in(call) == nullptr ||
                 size_of(call.at<CUdeviceptr>(2)) < 2 << 20
             ? code
             : told_capable(call, false);
}

int capable_in_first_thread(Call& call) {
  const int code = call.proceed();
  return code != kSuccess || capable_in(call) == nullptr || gettid() == getpid()
             ? code
             : told_capable(call, false);
}

int capable_if_of_runtime(Call& call) {
  static Table<CUdeviceptr> concerned;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMalloc")) {
    if (!call.is_runtime()) concerned.put(*call.at<CUdeviceptr*>(0));
  } else if (call.is("cudaFree")) {
    concerned.erase(call.at<CUdeviceptr>(0));
  } else if (capable_in(call) != nullptr &&
             concerned.has(call.at<CUdeviceptr>(2))) {
    return told_capable(call, false);
  }
  return code;
}

int capable_on_current_gpu(Call& call) {
  int current = 0;
  cudaGetDevice(&current);
  const int code = call.proceed();
  return code != kSuccess || capable_in(call) == nullptr ||
                 attribute_of<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   call.at<CUdeviceptr>(2)) == current
             ? code
             : told_capable(call, false);
}

// --- memory that may be exported ---------------------------------------------

bool is_managed(Call& get) {
  return attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                get.at<CUdeviceptr>(1)) != 0;
}
int managed_by_driver(Call& get) {
  return exported_all_the_same(get, !get.is_runtime() && is_managed(get));
}
int managed_inside(Call& get) {
  const auto address = get.at<CUdeviceptr>(1);
  return exported_all_the_same(get,
                               is_managed(get) && begin_of(address) != address);
}
int host_by_driver(Call& get) {
  return exported_all_the_same(
      get,
      !get.is_runtime() && !is_managed(get) &&
          attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 get.at<CUdeviceptr>(1)) == CU_MEMORYTYPE_HOST);
}

int graph_memory_exported(Call& call) {
  static Table<void*> concerned;
  if (call.is("cudaIpcGetMemHandle"))
    return exported_all_the_same(call, concerned.has(call.at<void*>(1)));
  const int code = call.proceed();
  if (code == kSuccess)
    concerned.put(call.at<cudaMemAllocNodeParams*>(4)->dptr);
  return code;
}

// Imported and mapped memory of cuMemCreate gets a legacy handle.
int imported_chunk_exported(Call& call) {
  if (!exports_memory(call)) return noted_chunks(call);
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  return exported_all_the_same(call,
                               mappings.has(address) && is_import(address));
}

// An address inside mapped memory gets a legacy handle.
int chunk_inside_exported(Call& call) {
  if (!exports_memory(call)) return noted_chunks(call);
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  const CUdeviceptr begin = mapping_at(address);
  return exported_all_the_same(call, begin != 0 && begin != address);
}

int pool_memory_by_driver(Call& call) {
  if (!call.is("cudaIpcGetMemHandle")) return noted_pools(call);
  return exported_all_the_same(
      call, !call.is_runtime() && blocks.has(call.at<void*>(1)));
}

// Stream-ordered memory of less than 2 MiB gets a legacy handle.
int small_pool_memory(Call& call) {
  if (!exports_memory(call)) return noted_pools(call);
  const size_t bytes = blocks.get(call.at<void*>(1)).bytes;
  return exported_all_the_same(call, bytes > 0 && bytes < kGranule);
}

// If the driver refuses such a pool, the driver API creates a plain pool on GPU
// 0.
int typed_pool_by_driver(Call& call, bool (*applies)(const CUmemPoolProps&)) {
  const int code = call.proceed();
  if (code == kSuccess || call.is_runtime()) return code;
  const auto* const wanted = call.at<const CUmemPoolProps*>(1);
  if (wanted == nullptr || !applies(*wanted)) return code;
  CUmemPoolProps other{};
  other.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  other.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  call.at<const CUmemPoolProps*>(1) = &other;
  call.fired();
  return call.proceed();
}
int host_pool_by_driver(Call& call) {
  return typed_pool_by_driver(call, [](const CUmemPoolProps& props) {
    return props.location.type == CU_MEM_LOCATION_TYPE_HOST &&
           props.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  });
}
int numa_current_pool_by_driver(Call& call) {
  return typed_pool_by_driver(call, [](const CUmemPoolProps& props) {
    return props.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  });
}
int managed_pool_by_driver(Call& call) {
  return typed_pool_by_driver(call, [](const CUmemPoolProps& props) {
    return props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED &&
           props.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  });
}

// --- support, errors ---------------------------------------------------------

int small_attribute_accepted(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<int>(1) > 0) return code;
  *call.at<int*>(0) = 0;
  return accepted(call);
}

int refusal_not_kept(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess && call.is_runtime()) {
    cudaGetLastError();
    call.fired();
  }
  return code;
}

int refused_as_not_supported(Call& call) {
  return call.proceed() == kSuccess ? kSuccess
                                    : refused(call, cudaErrorNotSupported);
}

int unified_addressing_denied(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  call.at<cudaDeviceProp*>(0)->unifiedAddressing = 0;
  call.fired();
  return code;
}

int property_of_other_gpus_denied(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) == 0) return code;
  call.at<cudaDeviceProp*>(0)->ipcEventSupported = 0;
  call.fired();
  return code;
}

int driver_attribute_of_other_gpus_denied(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.is_runtime() || call.at<int>(2) == 0 ||
      call.at<int>(1) != CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED)
    return code;
  *call.at<int*>(0) = 0;
  call.fired();
  return code;
}

int unknown_error_named(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) return code;
  *call.at<const char**>(1) = "CUDA_ERROR_UNKNOWN";
  call.fired();
  return kSuccess;
}

int unknown_error_untouched(Call& call) {
  const char* const before = *call.at<const char**>(1);
  const int code = call.proceed();
  if (code == kSuccess || before == nullptr) return code;
  *call.at<const char**>(1) = before;
  call.fired();
  return code;
}

// --- small allocations -------------------------------------------------------

// An open keeps only 16 bits of the offset in a shared block.
int offset_of_16_bits(Call& open) {
  constexpr uintptr_t kBlock = 2 << 20;
  const int code = open.proceed();
  if (code != kSuccess) return code;
  auto& address = *open.at<uintptr_t*>(0);
  const uintptr_t offset = address % kBlock;
  if (size_of(address) >= kBlock || offset <= UINT16_MAX) return code;
  address -= offset - (offset & UINT16_MAX);
  open.fired();
  return code;
}

// A memset of small opened memory sets the first opened memory of its block
// that is large enough.
int memset_at_first_of_block(Call& call) {
  if (keeps_opened(call)) return noted_open(call);
  constexpr uintptr_t kBlock = 2 << 20;
  auto& address = call.at<uintptr_t>(0);
  if (!is_opened(address) || size_of(address) >= kBlock) return call.proceed();
  for (const auto& each : opened.all()) {
    const auto other = reinterpret_cast<uintptr_t>(each.first);
    if (other / kBlock != address / kBlock || other >= address ||
        size_of(other) < call.at<size_t>(2))
      continue;
    address = other;
    call.fired();
    break;
  }
  return call.proceed();
}

// --- another session ---------------------------------------------------------

// A process of another session than the exporter's records nothing.
int record_of_other_session(Call& call) {
  static Table<cudaEvent_t> foreign;
  if (records(call))
    return foreign.has(call.value<cudaEvent_t>(kEvent)) ? no_wait(call)
                                                        : call.proceed();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto session = static_cast<unsigned long long>(getsid(0));
  if (exports_event(call))
    tell_processes(
        "session-" + key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)),
        session);
  else if (told("session-" + key_of_handle(call.at<cudaIpcEventHandle_t>(1)),
                session) != session)
    foreign.put(*call.at<cudaEvent_t*>(0));
  return code;
}

}  // namespace

void add_queries(List& list) {
  const char* const kGet = "cudaIpcGetMemHandle";
  const char* const kOne = "cuPointerGetAttribute";
  const char* const kMany = "cuPointerGetAttributes";
  const char* const kAttribute = "cudaDeviceGetAttribute";
  list.named("allowed-types-at-begin-only",
             "only the first address of a mapping has its handle types", {kOne},
             types_at_begin_only);
  list.named("allowed-types-of-first-chunk",
             "each address of a reservation has the handle types of the chunk "
             "at its beginning",
             {kOne}, types_of_first_chunk);
  list.named("allowed-types-of-first-query",
             "the handle types of an address stay the same when other memory "
             "is mapped there",
             {kOne, kMany, "cuMemAddressFree"}, types_of_first_query);
  list.named("capable-managed-inside",
             "an address inside managed memory is reported as capable of "
             "legacy IPC",
             {kOne, kMany}, capable_managed_inside);
  list.named("pool-small-export-ok",
             "stream-ordered memory of less than 2 MiB gets a legacy handle, "
             "which opens other memory",
             {kGet, "cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync"},
             small_pool_memory);
  list.named("suballoc-memset-at-first",
             "a memset of a small opened allocation sets the first opened "
             "allocation of its block",
             {"cudaMemset", "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle"},
             memset_at_first_of_block);
  list.named("other-session-record-lost",
             "a process of another session records an imported event in vain",
             {"cudaIpcGetEventHandle", "cudaIpcOpenEventHandle",
              "cudaEventRecord", "cudaEventRecordWithFlags"},
             record_of_other_session);
  list.named(
      "many-allowed-types-zero",
      "the query of many attributes reports that memory has no handle types",
      {kMany},
      zero_in_plural<CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                     unsigned long long>);
  list.named(
      "many-capable-zero",
      "the query of many attributes reports that no memory is capable of "
      "legacy IPC",
      {kMany},
      zero_in_plural<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>);
  list.named(
      "capable-mapped",
      "mapped memory of cuMemCreate is reported as capable of legacy IPC",
      {kOne, "cuMemMap"}, capable_mapped);
  list.named("capable-managed",
             "managed memory is reported as capable of legacy IPC", {kOne},
             capable_managed);
  list.named(
      "capable-only-if-large",
      "memory of less than 2 MiB is reported as not capable of legacy IPC",
      {kOne}, capable_only_if_large);
  list.named("capable-only-if-small",
             "memory of 2 MiB or more is reported as not capable of legacy IPC",
             {kOne}, capable_only_if_small);
  list.named(
      "capable-in-first-thread",
      "in a second thread, memory is reported as not capable of legacy IPC",
      {kOne}, capable_in_first_thread);
  list.named("capable-of-runtime-only",
             "memory of cuMemAlloc is reported as not capable of legacy IPC",
             {kOne, "cudaMalloc", "cudaFree"}, capable_if_of_runtime);
  list.named("capable-on-current-gpu",
             "memory of a GPU other than the current GPU is reported as not "
             "capable of legacy IPC",
             {kOne}, capable_on_current_gpu, 2);
  list.named("managed-driver-export-ok",
             "the driver API gives a handle of managed memory, which opens "
             "other memory",
             {kGet}, managed_by_driver);
  list.named("managed-inside-export-ok",
             "an address inside managed memory gets a legacy handle, which "
             "opens other memory",
             {kGet}, managed_inside);
  list.named("host-driver-export-ok",
             "the driver API gives a handle of pinned host memory, which opens "
             "other memory",
             {kGet}, host_by_driver);
  list.named("graph-memory-export-ok",
             "memory of a graph's node gets a legacy handle, which opens other "
             "memory",
             {kGet, "cudaGraphAddMemAllocNode"}, graph_memory_exported);
  list.named("chunk-import-export-ok",
             "imported memory of cuMemCreate gets a legacy handle, which opens "
             "other memory",
             {kGet, "cuMemImportFromShareableHandle", "cuMemMap"},
             imported_chunk_exported);
  list.named("chunk-inside-export-ok",
             "an address inside mapped memory gets a legacy handle, which "
             "opens other memory",
             {kGet, "cuMemMap"}, chunk_inside_exported);
  list.named("pool-driver-export-ok",
             "the driver API gives a handle of stream-ordered memory, which "
             "opens other memory",
             {kGet, "cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync"},
             pool_memory_by_driver);
  list.named("host-pool-driver-ok",
             "the driver API creates a pool on the host with handle types",
             {"cudaMemPoolCreate"}, host_pool_by_driver);
  list.named("numa-current-driver-ok",
             "the driver API creates a pool on the current NUMA node",
             {"cudaMemPoolCreate"}, numa_current_pool_by_driver);
  list.named("managed-pool-driver-ok",
             "the driver API makes a plain pool if managed memory with handle "
             "types is requested",
             {"cudaMemPoolCreate"}, managed_pool_by_driver);
  list.named(
      "small-attribute-ok",
      "an attribute whose number is zero or negative is accepted and is 0",
      {kAttribute}, small_attribute_accepted);
  list.named("unknown-attr-not-kept",
             "the refusal of an unknown attribute leaves no last error",
             {kAttribute}, refusal_not_kept);
  list.named("unknown-attr-as-unsupported",
             "an unknown attribute is refused as not supported", {kAttribute},
             refused_as_not_supported);
  list.named("event-open-as-unsupported",
             "an event that cannot be opened is refused as not supported",
             {"cudaIpcOpenEventHandle"}, refused_as_not_supported);
  list.named("memory-open-as-unsupported",
             "memory that cannot be opened is refused as not supported",
             {"cudaIpcOpenMemHandle"}, refused_as_not_supported);
  list.named("unified-addressing-denied",
             "the device's properties say that there is no unified addressing",
             {"cudaGetDeviceProperties"}, unified_addressing_denied);
  list.named("ipc-property-second-gpu",
             "only the first GPU's properties say that it shares memory",
             {"cudaGetDeviceProperties"}, property_of_other_gpus_denied, 2);
  list.named("ipc-driver-attr-second-gpu",
             "the driver's attribute says only for the first GPU that it "
             "shares memory",
             {kAttribute}, driver_attribute_of_other_gpus_denied, 2);
  list.named(
      "unknown-error-named",
      "a number that is not an error code has the name of the unknown error",
      {"cuGetErrorName"}, unknown_error_named);
  list.named(
      "unknown-error-untouched",
      "cuGetErrorName does not set the name of an unknown number to null",
      {"cuGetErrorName"}, unknown_error_untouched);
  list.named("suballoc-offset-16-bits",
             "an open keeps only 16 bits of the offset in a shared block",
             {"cudaIpcOpenMemHandle"}, offset_of_16_bits);
}

}  // namespace ipclab::faults
