// Bugs of queries and refusals that show themselves only in unusual programs:
// an address inside memory, another thread, the other API, the query of many
// attributes, a value at a boundary.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

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
  }
  if (!call.is("cuPointerGetAttribute") && !call.is("cuPointerGetAttributes"))
    return call.proceed();
  return answered_by<CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                     unsigned long long>(
      call, [](CUdeviceptr address, unsigned long long types) {
        if (reservation_at(address) == 0) return types;
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
  const int code = call.proceed();
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

int capable_registered(Call& call) {
  static Table<CUdeviceptr> registered;
  if (call.is("cudaHostRegister")) {
    const int code = call.proceed();
    if (code == kSuccess) registered.put(call.at<CUdeviceptr>(0));
    return code;
  }
  return answered_by<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>(
      call, [](CUdeviceptr address, bool value) {
        return value ||
               (registered.has(address) &&
                attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       address) == CU_MEMORYTYPE_HOST);
      });
}

int capable_graph_memory(Call& call) {
  static Table<CUdeviceptr> of_graphs;
  if (call.is("cudaGraphAddMemAllocNode")) {
    const int code = call.proceed();
    if (code == kSuccess)
      of_graphs.put(call.at<CUDA_MEM_ALLOC_NODE_PARAMS*>(4)->dptr);
    return code;
  }
  return answered_by<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>(
      call, [](CUdeviceptr address, bool value) {
        return value || of_graphs.has(address);
      });
}

// Queries still report freed memory of less than 2 MiB as device memory.
int small_freed_known(Call& call) {
  static Table<CUdeviceptr> freed;
  const auto is_gone = [](CUdeviceptr address) {
    return freed.has(address) && begin_of(address) == 0;
  };
  if (call.is("cudaFree")) {
    const auto memory = call.at<CUdeviceptr>(0);
    const size_t bytes = size_of(memory);
    const int code = call.proceed();
    if (code == kSuccess && bytes > 0 && bytes < 2 << 20) freed.put(memory);
    return code;
  }
  const int code = call.proceed();
  if (call.is("cudaPointerGetAttributes")) {
    auto& told = *call.at<cudaPointerAttributes*>(0);
    if (code != kSuccess || !is_gone(call.at<CUdeviceptr>(1))) return code;
    told.type = cudaMemoryTypeDevice;
    told.devicePointer = call.at<void*>(1);
    call.fired();
  } else if (call.is("cuPointerGetAttribute")) {
    if (call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
        code == kSuccess || !is_gone(call.at<CUdeviceptr>(2)))
      return code;
    *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
    return accepted(call);
  } else if (code == kSuccess && is_gone(call.at<CUdeviceptr>(3))) {
    for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
      if (call.at<const CUpointer_attribute*>(1)[i] ==
          CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
        *static_cast<unsigned*>(call.at<void**>(2)[i]) = CU_MEMORYTYPE_DEVICE;
        call.fired();
      }
  }
  return code;
}

// To set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS by an address inside memory succeeds
// and does nothing.
int sync_memops_at_begin_only(Call& set) {
  const auto address = set.at<CUdeviceptr>(2);
  if (set.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      begin_of(address) == 0 || begin_of(address) == address)
    return set.proceed();
  set.fired();
  return kSuccess;
}

// --- opened memory -----------------------------------------------------------

// cudaPointerGetAttributes reports the number that the exporter has for the
// device.
int device_of_exporter(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  if (exports_memory(call)) {
    const int device = attribute_of<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                         call.at<CUdeviceptr>(1));
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(
          "device-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
          static_cast<unsigned long long>(device));
    return code;
  }
  void* const begin = opened_around(call.at<void*>(1));
  const int code = call.proceed();
  if (code != kSuccess || begin == nullptr) return code;
  int& device = call.at<cudaPointerAttributes*>(0)->device;
  const int theirs =
      static_cast<int>(told("device-" + opened.get(begin).handle, 0));
  if (theirs != device) call.fired();
  device = theirs;
  return code;
}

// A handle of zeros opens as a null pointer.
int zeros_open_as_null(Call& open) {
  const int code = open.proceed();
  constexpr cudaIpcMemHandle_t kZeros{};
  if (code == kSuccess ||
      std::memcmp(&open.at<cudaIpcMemHandle_t>(1), &kZeros, sizeof kZeros) != 0)
    return code;
  *open.at<void**>(0) = nullptr;
  return accepted(open);
}

// Opened memory has no range.
int range_of_opened_refused(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.at<CUdeviceptr>(2))
             ? refused(call, CUDA_ERROR_NOT_FOUND)
             : call.proceed();
}

// The query of many attributes ends at the first attribute that the memory does
// not have.
int many_end_at_undefined(Call& call) {
  const auto address = call.at<CUdeviceptr>(3);
  auto& count = call.at<unsigned>(0);
  unsigned char room[64];
  if (DRIVER_CALL(cuPointerGetAttribute)(room, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                         address) != CUDA_SUCCESS)
    return call.proceed();
  for (unsigned i = 0; i + 1 < count; ++i) {
    if (DRIVER_CALL(cuPointerGetAttribute)(
            room, call.at<const CUpointer_attribute*>(1)[i], address) ==
        CUDA_SUCCESS)
      continue;
    count = i + 1;
    call.fired();
  }
  return call.proceed();
}

// --- memory that may be exported ---------------------------------------------

bool is_managed(Call& get) {
  return attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                get.at<CUdeviceptr>(1)) != 0;
}

// Pinned host memory of less than 64 KiB gets a legacy handle.
int small_pinned_exported(Call& get) {
  const auto address = get.at<CUdeviceptr>(1);
  const size_t bytes = size_of(address);
  return exported_all_the_same(
      get, bytes > 0 && bytes < 64 << 10 &&
               attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      address) == 0 &&
               attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      address) == CU_MEMORYTYPE_HOST);
}

// Memory of cudaMallocManaged of less than 64 KiB gets a legacy handle.
int small_managed_exported(Call& call) {
  static Table<void*> small;
  if (exports_memory(call))
    return exported_all_the_same(
        call, small.has(call.at<void*>(1)) && is_managed(call));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  small.erase(*call.at<void**>(0));
  if (call.is_runtime() && call.at<size_t>(1) < 64 << 10)
    small.put(*call.at<void**>(0));
  return code;
}

// Memory that a captured allocation makes gets a legacy handle.
int captured_memory_exported(Call& call) {
  static Table<void*> made;
  if (exports_memory(call))
    return exported_all_the_same(call, made.has(call.at<void*>(1)));
  const bool captured = is_captured(call.value<cudaStream_t>(kStream));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  made.erase(*call.at<void**>(0));
  if (captured) made.put(*call.at<void**>(0));
  return code;
}

// Memory of a pool that was destroyed gets a legacy handle.
int orphan_memory_exported(Call& call) {
  static Table<cudaMemPool_t> destroyed;
  if (exports_memory(call))
    return exported_all_the_same(
        call, destroyed.has(blocks.get(call.at<void*>(1)).pool));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolDestroy")) destroyed.put(call.at<cudaMemPool_t>(0));
  if (call.is("cudaMemPoolCreate"))
    destroyed.erase(*call.at<cudaMemPool_t*>(0));
  return code;
}

// Mapped memory without handle types gets a legacy handle.
int untyped_chunk_exported(Call& call) {
  if (!exports_memory(call)) return call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  return exported_all_the_same(
      call, mapping_at(address) != 0 &&
                attribute_of<unsigned long long>(
                    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address) == 0);
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
  if (!exports_memory(call)) return call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  return exported_all_the_same(call,
                               mappings.has(address) && is_import(address));
}

// An address inside mapped memory gets a legacy handle.
int chunk_inside_exported(Call& call) {
  if (!exports_memory(call)) return call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  const CUdeviceptr begin = mapping_at(address);
  return exported_all_the_same(call, begin != 0 && begin != address);
}

int pool_memory_by_driver(Call& call) {
  if (!call.is("cudaIpcGetMemHandle")) return call.proceed();
  return exported_all_the_same(
      call, !call.is_runtime() && blocks.has(call.at<void*>(1)));
}

// Stream-ordered memory of less than 2 MiB gets a legacy handle.
int small_pool_memory(Call& call) {
  if (!exports_memory(call)) return call.proceed();
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

int unified_property_of_other_gpus_denied(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) == 0) return code;
  call.at<cudaDeviceProp*>(0)->unifiedAddressing = 0;
  call.fired();
  return code;
}

int unified_attribute_of_other_gpus_denied(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(2) == 0 ||
      call.at<int>(1) != cudaDevAttrUnifiedAddressing)
    return code;
  *call.at<int*>(0) = 0;
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
  if (keeps_opened(call)) return call.proceed();
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

// --- pools -------------------------------------------------------------------

constexpr auto kAttributeOf = "cudaMemPoolGetAttribute";
constexpr auto kSetAttributeOf = "cudaMemPoolSetAttribute";

bool concerns(Call& call, const char* function, cudaMemPoolAttr attribute) {
  return call.is(function) && call.at<cudaMemPoolAttr>(1) == attribute;
}

// Numbers that a fault adds to an answer about a pool.
Table<cudaMemPool_t, uint64_t> extra;
void add_extra(cudaMemPool_t pool, uint64_t bytes) {
  extra.put(pool, extra.get(pool) + bytes);
}

// Proceeds; adds the extra number of the pool to the memory in use.
int used_with_extra(Call& call) {
  if (call.is("cudaMemPoolDestroy")) extra.erase(call.at<cudaMemPool_t>(0));
  const int code = call.proceed();
  if (code != kSuccess ||
      !concerns(call, kAttributeOf, cudaMemPoolAttrUsedMemCurrent))
    return code;
  const uint64_t more = extra.get(call.at<cudaMemPool_t>(0));
  if (more == 0) return code;
  *call.at<uint64_t*>(2) += more;
  call.fired();
  return code;
}

// Memory that was freed in a stream of another GPU than its own still counts as
// used.
int far_free_stays_used(Call& call) {
  if (!call.is("cudaFreeAsync")) return used_with_extra(call);
  const Block block = blocks.get(call.at<void*>(0));
  int gpu = gpu_of(block.pool);
  if (gpu >= 0) DRIVER_CALL(cuStreamGetDevice)(call.at<CUstream>(1), &gpu);
  const int code = call.proceed();
  if (code == kSuccess && gpu != gpu_of(block.pool))
    add_extra(block.pool, block.bytes);
  return code;
}

// An allocation that is captured counts as used.
int captured_counts_as_used(Call& call) {
  if (!allocates(call) || !is_captured(call.value<cudaStream_t>(kStream)))
    return used_with_extra(call);
  const int code = call.proceed();
  if (code == kSuccess)
    add_extra(
        call.is("cudaMallocAsync") ? current_pool() : call.at<cudaMemPool_t>(2),
        call.at<size_t>(1));
  return code;
}

// An allocation that was refused raises the watermark of memory in use.
int refusal_raises_watermark(Call& call) {
  constexpr auto kHigh = cudaMemPoolAttrUsedMemHigh;
  const int code = call.proceed();
  if (call.is("cudaMallocFromPoolAsync")) {
    const auto pool = call.at<cudaMemPool_t>(2);
    if (code == cudaErrorMemoryAllocation)
      extra.put(pool, attribute(pool, cudaMemPoolAttrUsedMemCurrent) +
                          call.at<size_t>(1));
    return code;
  }
  const auto pool = call.at<cudaMemPool_t>(0);
  if (call.is("cudaMemPoolDestroy") || concerns(call, kSetAttributeOf, kHigh))
    extra.erase(pool);
  if (code != kSuccess || !concerns(call, kAttributeOf, kHigh) ||
      *call.at<uint64_t*>(2) >= extra.get(pool))
    return code;
  *call.at<uint64_t*>(2) = extra.get(pool);
  call.fired();
  return code;
}

// The reset of a watermark of an imported pool succeeds and does nothing.
int reset_of_import_lost(Call& call) {
  if (!call.is(kSetAttributeOf) || !is_watermark(call.at<cudaMemPoolAttr>(1)) ||
      !imported_pools.has(call.at<cudaMemPool_t>(0)))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// The export of a pool sets its release threshold to 0.
int export_resets_threshold(Call& call) {
  const auto pool = call.at<cudaMemPool_t>(1);
  const int code = call.proceed();
  if (code != kSuccess || attribute(pool, cudaMemPoolAttrReleaseThreshold) == 0)
    return code;
  uint64_t none = 0;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &none);
  call.fired();
  return code;
}

// Makes the default pool of a GPU current.
void reset_current(Call& call, int gpu) {
  cudaMemPool_t current = nullptr;
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetMemPool(&current, gpu);
  cudaDeviceGetDefaultMemPool(&pool, gpu);
  if (current == pool) return;
  cudaDeviceSetMemPool(gpu, pool);
  call.fired();
}

// The destroy of a pool that was current earlier makes the default pool
// current.
int destroy_of_earlier_current(Call& call) {
  static Table<cudaMemPool_t, int> set;  // on this GPU
  if (call.is("cudaDeviceSetMemPool")) {
    const int code = call.proceed();
    if (code == kSuccess) set.put(call.at<cudaMemPool_t>(1), call.at<int>(0));
    return code;
  }
  const auto pool = call.at<cudaMemPool_t>(0);
  const int gpu = set.get(pool);
  const int code = call.proceed();
  if (code == kSuccess && set.erase(pool)) reset_current(call, gpu);
  return code;
}

// Setting the current pool of the host also makes the default pool of the GPU
// current.
int host_set_resets_gpu(Call& call) {
  const int code = call.proceed();
  int gpu = 0;
  cudaGetDevice(&gpu);
  if (code == kSuccess && is_on_host(*call.at<const cudaMemLocation*>(0)))
    reset_current(call, gpu);
  return code;
}

// If a list of accesses names the pool's own GPU, the whole list is ignored.
int list_with_own_gpu_ignored(Call& call) {
  if (!call.is("cudaMemPoolSetAccess")) return call.proceed();
  const auto* const list = call.at<const cudaMemAccessDesc*>(1);
  const size_t count = call.at<size_t>(2);
  const int own = gpu_of(call.at<cudaMemPool_t>(0));
  for (size_t i = 0; count > 1 && i < count; ++i)
    if (list[i].location.id == own) {
      call.fired();
      return kSuccess;
    }
  return call.proceed();
}

// Memory of a destroyed pool cannot be freed by cudaFree and cuMemFree.
int destroyed_pool_plain_free_refused(Call& call) {
  static Table<cudaMemPool_t> destroyed;
  if (call.is("cudaFree") && destroyed.has(blocks.get(call.at<void*>(0)).pool))
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolDestroy"))
    destroyed.put(call.at<cudaMemPool_t>(0));
  else if (call.is("cudaMemPoolCreate") ||
           call.is("cudaMemPoolImportFromShareableHandle"))
    destroyed.erase(*call.at<cudaMemPool_t*>(0));
  return code;
}

// Without a current context, the driver API accepts CU_STREAM_LEGACY and
// CU_STREAM_PER_THREAD.
int named_default_stream_accepted(Call& call) {
  const int code = call.proceed();
  const auto stream = call.value<CUstream>(kStream);
  if (code != CUDA_ERROR_INVALID_CONTEXT ||
      (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD))
    return code;
  CUcontext context = nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRetain)(&context, 0);
  DRIVER_CALL(cuCtxPushCurrent)(context);
  const int now = call.proceed();
  DRIVER_CALL(cuCtxPopCurrent)(&context);
  call.fired();
  return now;
}

// --- another session ---------------------------------------------------------

// A process of another session than the exporter's records nothing.
int record_of_other_session(Call& call) {
  static Table<cudaEvent_t> foreign;
  if (records(call))
    return foreign.has(call.value<cudaEvent_t>(kEvent)) ? no_wait(call)
                                                        : call.proceed();
  if (call.is("cudaEventDestroy")) {
    foreign.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
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

// After a call for which the driver is too old, the next synchronization gets
// the same code.
int newer_driver_error_stays(Call& call) {
  static std::atomic<bool> stays{false};
  if (!call.is("cudaGraphGetId"))
    return stays.exchange(false)
               ? refused(call, cudaErrorCallRequiresNewerDriver)
               : call.proceed();
  const int code = call.proceed();
  stays = code == cudaErrorCallRequiresNewerDriver;
  return code;
}

}  // namespace

static void add_queries_of_pools(List& list) {
  constexpr auto kFrom = "cudaMallocFromPoolAsync";
  constexpr auto kMalloc = "cudaMallocAsync";
  constexpr auto kFree = "cudaFree";
  constexpr auto kFreeAsync = "cudaFreeAsync";
  constexpr auto kCreate = "cudaMemPoolCreate";
  constexpr auto kDestroy = "cudaMemPoolDestroy";
  constexpr auto kImport = "cudaMemPoolImportFromShareableHandle";
  list.named(
      "far-free-stays-used",
      "memory of a pool that was freed in a stream of another GPU still "
      "counts as used",
      {kMalloc, kFrom, kFree, kFreeAsync, kCreate, kDestroy, kAttributeOf},
      far_free_stays_used, 2);
  list.named("captured-counts-as-used",
             "an allocation that is captured counts as used memory of the pool",
             {kMalloc, kFrom, kDestroy, kAttributeOf}, captured_counts_as_used);
  list.named("refusal-raises-watermark",
             "an allocation that was refused raises the watermark of memory in "
             "use",
             {kFrom, kDestroy, kAttributeOf, kSetAttributeOf},
             refusal_raises_watermark);
  list.named("import-watermark-not-reset",
             "the reset of a watermark of an imported pool does nothing",
             {kImport, kDestroy, kSetAttributeOf}, reset_of_import_lost);
  list.named("export-resets-threshold",
             "the export of a pool sets its release threshold to 0",
             {"cudaMemPoolExportToShareableHandle"}, export_resets_threshold);
  list.named("destroy-of-earlier-current",
             "the destroy of a pool that was current earlier makes the default "
             "pool current",
             {"cudaDeviceSetMemPool", kDestroy}, destroy_of_earlier_current);
  list.named("host-setpool-resets-gpu",
             "setting the current pool of the host also makes the default pool "
             "of the GPU current",
             {"cudaMemSetMemPool"}, host_set_resets_gpu);
  list.named("pool-list-with-own-gpu-ignored",
             "a list of accesses to a pool is ignored if it also names the "
             "pool's own GPU",
             {"cudaMemPoolSetAccess", kCreate, kDestroy},
             list_with_own_gpu_ignored, 2);
  list.named("destroyed-pool-plain-free-refused",
             "memory of a destroyed pool cannot be freed by cudaFree and "
             "cuMemFree",
             {kMalloc, kFrom, kFree, kFreeAsync, kCreate, kDestroy, kImport},
             destroyed_pool_plain_free_refused);
  list.named("async-named-default-no-context-ok",
             "in a thread without a context, CU_STREAM_LEGACY and "
             "CU_STREAM_PER_THREAD are accepted",
             {kMalloc, kFrom, kFreeAsync}, named_default_stream_accepted);
}

void add_queries(List& list) {
  add_queries_of_pools(list);
  const char* const kGet = "cudaIpcGetMemHandle";
  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
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
             {kOne, kMany, "cuMemAddressReserve", "cuMemAddressFree"},
             types_of_first_query);
  list.named("import-device-of-exporter",
             "cudaPointerGetAttributes reports the exporter's number of the "
             "device of opened memory",
             {kGet, kOpen, kClose, "cudaPointerGetAttributes"},
             device_of_exporter, 2);
  list.named("zeros-open-as-null", "a handle of zeros opens as a null pointer",
             {kOpen}, zeros_open_as_null);
  list.named("import-range-refused",
             "cuMemGetAddressRange does not know opened memory",
             {kOpen, kClose, "cuMemGetAddressRange"}, range_of_opened_refused);
  list.named("ptrattrs-end-at-undefined",
             "the query of many attributes ends at the first attribute that "
             "the memory does not have",
             {kMany}, many_end_at_undefined);
  list.named("capable-registered",
             "memory of cudaHostRegister is reported as capable of legacy IPC",
             {kOne, kMany, "cudaHostRegister"}, capable_registered);
  list.named("capable-graph-memory",
             "memory of a graph's node is reported as capable of legacy IPC",
             {kOne, kMany, "cudaGraphAddMemAllocNode"}, capable_graph_memory);
  list.named("small-freed-known-to-driver",
             "cuPointerGetAttribute still says that freed memory of less than "
             "2 MiB is device memory",
             {kOne, "cudaFree"}, small_freed_known);
  list.named("small-freed-known-to-many",
             "the query of many attributes still says that freed memory of "
             "less than 2 MiB is device memory",
             {kMany, "cudaFree"}, small_freed_known);
  list.named("small-freed-known-to-runtime",
             "cudaPointerGetAttributes still says that freed memory of less "
             "than 2 MiB is device memory",
             {"cudaPointerGetAttributes", "cudaFree"}, small_freed_known);
  list.named("sync-memops-at-begin-only",
             "cuPointerSetAttribute does not set "
             "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS by an address inside memory",
             {"cuPointerSetAttribute"}, sync_memops_at_begin_only);
  list.named("small-pinned-export-ok",
             "pinned host memory of less than 64 KiB gets a legacy handle, "
             "which opens other memory",
             {kGet}, small_pinned_exported);
  list.named("small-managed-export-ok",
             "memory of cudaMallocManaged of less than 64 KiB gets a legacy "
             "handle, which opens other memory",
             {kGet, "cudaMallocManaged"}, small_managed_exported);
  list.named("captured-memory-export-ok",
             "memory of a captured allocation gets a legacy handle, which "
             "opens other memory",
             {kGet, "cudaMallocAsync", "cudaMallocFromPoolAsync"},
             captured_memory_exported);
  list.named("orphan-memory-export-ok",
             "memory of a destroyed pool gets a legacy handle, which opens "
             "other memory",
             {kGet, "cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync", "cudaMemPoolCreate", "cudaMemPoolDestroy"},
             orphan_memory_exported);
  list.named("untyped-chunk-export-ok",
             "mapped memory of cuMemCreate without handle types gets a legacy "
             "handle, which opens other memory",
             {kGet, "cuMemMap", "cuMemUnmap"}, untyped_chunk_exported);
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
  list.named(
      "other-session-record-lost",
      "a process of another session records an imported event in vain",
      {"cudaIpcGetEventHandle", "cudaIpcOpenEventHandle", "cudaEventRecord",
       "cudaEventRecordWithFlags", "cudaEventDestroy"},
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
      {kOne, "cuMemMap", "cuMemUnmap"}, capable_mapped);
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
             {kGet, "cuMemCreate", "cuMemImportFromShareableHandle", "cuMemMap",
              "cuMemUnmap"},
             imported_chunk_exported);
  list.named("chunk-inside-export-ok",
             "an address inside mapped memory gets a legacy handle, which "
             "opens other memory",
             {kGet, "cuMemMap", "cuMemUnmap"}, chunk_inside_exported);
  list.named("pool-driver-export-ok",
             "the driver API gives a handle of stream-ordered memory, which "
             "opens other memory",
             {kGet, "cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync"},
             pool_memory_by_driver);
  list.named("host-pool-driver-ok",
             "the driver API makes a plain pool on GPU 0 if a pool on the host "
             "with handle types is requested",
             {"cudaMemPoolCreate"}, host_pool_by_driver);
  list.named("numa-current-driver-ok",
             "the driver API makes a plain pool on GPU 0 if a pool on the "
             "current NUMA node is requested",
             {"cudaMemPoolCreate"}, numa_current_pool_by_driver);
  list.named(
      "managed-pool-driver-ok",
      "the driver API makes a plain pool on GPU 0 if managed memory with "
      "handle types is requested",
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
  list.named("unified-property-second-gpu",
             "only the first GPU's properties say that it has unified "
             "addressing",
             {"cudaGetDeviceProperties"}, unified_property_of_other_gpus_denied,
             2);
  list.named("unified-attr-second-gpu",
             "the attribute says only for the first GPU that it has unified "
             "addressing",
             {kAttribute}, unified_attribute_of_other_gpus_denied, 2);
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
  list.named(
      "newer-driver-error-stays",
      "after a call for which the driver is too old, the next "
      "synchronization gets the same code",
      {"cudaGraphGetId", "cudaDeviceSynchronize", "cudaStreamSynchronize"},
      newer_driver_error_stays);
}

}  // namespace ipclab::faults
