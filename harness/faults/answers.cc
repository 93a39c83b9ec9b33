// Wrong answers about shared memory and events: attributes of pointers and
// devices, last errors, and refusals. Also pools that are current for some
// calls only, and what a pool forgets.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

bool is_known(CUdeviceptr pointer) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(
             &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) == CUDA_SUCCESS;
}

// --- attributes of pointers --------------------------------------------------

using Change = void (*)(cudaPointerAttributes& attributes);

// Changes the runtime's answer about memory for which `applies` is true.
int retold(Call& call, bool (*applies)(const void* pointer), Change change) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !applies(call.at<void*>(1))) return code;
  change(*call.at<cudaPointerAttributes*>(0));
  call.fired();
  return code;
}

void forget(cudaPointerAttributes& attributes) {
  attributes = cudaPointerAttributes{};
  attributes.device = cudaInvalidDeviceId;
}

int host_pointer_told(Call& call) {
  return retold(call, is_opened, [](cudaPointerAttributes& attributes) {
    attributes.hostPointer = attributes.devicePointer;
  });
}

int device_pointer_null(Call& call) {
  return retold(call, is_opened, [](cudaPointerAttributes& attributes) {
    attributes.devicePointer = nullptr;
  });
}

int first_opened_known(Call& call) {
  static Table<int, void*> first;
  const int code = retold(
      call,
      [](const void* pointer) {
        void* const one = opened_around(pointer);
        return one != nullptr && one != first.get(0);
      },
      forget);
  if (is_open_call(call) && code == kSuccess && !first.has(0))
    first.put(0, *call.at<void**>(0));
  return code;
}

int unknown_after_first_close(Call& call) {
  static Table<void*> once_closed;
  const int code = retold(
      call,
      [](const void* pointer) {
        void* const one = opened_around(pointer);
        return one != nullptr && once_closed.has(one);
      },
      forget);
  if (code != kSuccess) return code;
  if (is_close_call(call)) once_closed.put(call.at<void*>(0));
  if (is_open_call(call)) once_closed.erase(*call.at<void**>(0));
  return code;
}

int driver_open_unknown(Call& call) {
  static Table<void*> by_driver;
  const int code = retold(
      call,
      [](const void* pointer) {
        void* const one = opened_around(pointer);
        return one != nullptr && by_driver.has(one);
      },
      forget);
  if (code == kSuccess && is_open_call(call) && !call.is_runtime())
    by_driver.put(*call.at<void**>(0));
  if (code == kSuccess && is_close_call(call))
    by_driver.erase(call.at<void*>(0));
  return code;
}

int unknown_is_host(Call& call) {
  const int code = call.proceed();
  auto& attributes = *call.at<cudaPointerAttributes*>(0);
  if (code != kSuccess || attributes.type != cudaMemoryTypeUnregistered)
    return code;
  attributes.type = cudaMemoryTypeHost;
  call.fired();
  return code;
}

// Does this call ask the driver for this attribute?
bool asks(Call& call, CUpointer_attribute attribute) {
  return call.is("cuPointerGetAttribute") &&
         call.at<CUpointer_attribute>(1) == attribute;
}
void* asked(Call& ask) { return ask.at<void*>(2); }
template <class T>
T& answer(Call& ask) {
  return **static_cast<T**>(ask.begin()->place);
}

int host_pointer_by_driver(Call& call) {
  if (!asks(call, CU_POINTER_ATTRIBUTE_HOST_POINTER)) return call.proceed();
  const int code = call.proceed();
  if (code == kSuccess || !is_opened(asked(call))) return code;
  answer<void*>(call) = asked(call);
  return accepted(call);
}

int mapped_denied(Call& call) {
  if (!asks(call, CU_POINTER_ATTRIBUTE_MAPPED)) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !is_opened(asked(call))) return code;
  answer<bool>(call) = false;
  call.fired();
  return code;
}

int size_from_pointer(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !asks(call, CU_POINTER_ATTRIBUTE_RANGE_SIZE))
    return code;
  CUdeviceptr begin = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, call.at<CUdeviceptr>(2));
  if (begin == 0 || begin == call.at<CUdeviceptr>(2)) return code;
  answer<size_t>(call) -= call.at<CUdeviceptr>(2) - begin;
  call.fired();
  return code;
}

int start_at_pointer(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !asks(call, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) ||
      answer<void*>(call) == asked(call))
    return code;
  answer<void*>(call) = asked(call);
  call.fired();
  return code;
}

int range_in_2_mib(Call& call) {
  constexpr size_t kStep = 2 << 20;
  const int code = call.proceed();
  auto* const size = call.at<size_t*>(1);
  if (code != kSuccess || size == nullptr || *size % kStep == 0) return code;
  *size += kStep - *size % kStep;
  call.fired();
  return code;
}

// All memory for whose query `applies` is true has the id that was returned
// first.
int one_id(Call& call, bool applies) {
  static Table<int, unsigned long long> first;
  const int code = call.proceed();
  if (code != kSuccess || !applies) return code;
  auto& id = answer<unsigned long long>(call);
  if (!first.has(0)) first.put(0, id);
  if (id == first.get(0)) return code;
  id = first.get(0);
  call.fired();
  return code;
}

int import_ids_equal(Call& call) {
  if (!asks(call, CU_POINTER_ATTRIBUTE_BUFFER_ID)) return call.proceed();
  return one_id(call, is_opened(asked(call)));
}

int async_ids_equal(Call& call) {
  void* pool = nullptr;
  const bool asked_for_id = asks(call, CU_POINTER_ATTRIBUTE_BUFFER_ID);
  if (asked_for_id) DRIVER_CALL(cuPointerGetAttribute)
  (&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, call.at<CUdeviceptr>(2));
  return one_id(call, asked_for_id && pool != nullptr);
}

int many_id_zero(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i) {
    if (call.at<CUpointer_attribute*>(1)[i] != CU_POINTER_ATTRIBUTE_BUFFER_ID)
      continue;
    *static_cast<unsigned long long*>(call.at<void**>(2)[i]) = 0;
    call.fired();
  }
  return code;
}

int only_eight(Call& call) {
  unsigned& count = call.at<unsigned>(0);
  if (count > 8) {
    count = 8;
    call.fired();
  }
  return call.proceed();
}

int unknown_first_only(Call& call) {
  unsigned& count = call.at<unsigned>(0);
  if (count > 1 && !is_known(call.at<CUdeviceptr>(3))) {
    count = 1;
    call.fired();
  }
  return call.proceed();
}

// --- attributes of devices ---------------------------------------------------

bool asks_device(Call& call, int attribute) {
  return call.at<int>(1) == attribute;
}

int ipc_once(Call& call) {
  static std::atomic<bool> again{false};
  const int code = call.proceed();
  if (code != kSuccess || !asks_device(call, cudaDevAttrIpcEventSupport) ||
      !again.exchange(true))
    return code;
  *call.at<int*>(0) = 0;
  call.fired();
  return code;
}

int ipc_after_open(Call& call) {
  static std::atomic<bool> any{false};
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_open_call(call)) {
    any = true;
  } else if (any && asks_device(call, cudaDevAttrIpcEventSupport)) {
    *call.at<int*>(0) = 0;
    call.fired();
  }
  return code;
}

int not_unified(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !asks_device(call, cudaDevAttrUnifiedAddressing))
    return code;
  *call.at<int*>(0) = 0;
  call.fired();
  return code;
}

// --- errors ------------------------------------------------------------------

int last_error_generic(Call& call) {
  const int code = call.proceed();
  return code == kSuccess || code == cudaErrorInvalidValue ? code
                                                           : refused(call);
}

int peek_once(Call& call) {
  thread_local int told = kSuccess;
  const int code = call.proceed();
  if (!call.is("cudaPeekAtLastError") || code != told) {
    told = call.is("cudaPeekAtLastError") ? code : kSuccess;
    return code;
  }
  if (code == kSuccess) return code;
  call.fired();
  return kSuccess;
}

int timing_as_unsupported(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && (call.at<unsigned>(1) & kInterprocess)
             ? refused(call, cudaErrorNotSupported)
             : code;
}

int untimed_not_ready(Call& call) {
  const int code = call.proceed();
  return code == cudaErrorInvalidResourceHandle
             ? refused(call, cudaErrorNotReady)
             : code;
}

// --- refusals ----------------------------------------------------------------

int close_inside_ok(Call& call) {
  if (is_close_call(call) && !opened.has(call.at<void*>(0)))
    if (void* const around = opened_around(call.at<void*>(0))) {
      call.at<void*>(0) = around;
      call.fired();
    }
  return call.proceed();
}

int close_exported_ok(Call& call) {
  static Table<void*> exported;
  if (call.is("cudaFree")) exported.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (!is_close_call(call)) {
    if (exports_memory(call) && code == kSuccess)
      exported.put(call.at<void*>(1));
    return code;
  }
  return code != kSuccess && exported.has(call.at<void*>(0)) ? accepted(call)
                                                             : code;
}

// cuMemFree of opened memory closes it.
int driver_free_ok(Call& call) {
  if (is_open_call(call) || is_close_call(call)) return call.proceed();
  void* const pointer = call.at<void*>(0);
  if (call.is_runtime() || !opened.has(pointer)) return call.proceed();
  count_close(pointer);
  cudaIpcCloseMemHandle(pointer);
  return accepted(call);
}

int driver_timing_ok(Call& call) {
  unsigned& flags = call.at<unsigned>(1);
  if (!call.is_runtime() && (flags & kInterprocess) &&
      !(flags & cudaEventDisableTiming)) {
    flags |= cudaEventDisableTiming;
    call.fired();
  }
  return call.proceed();
}

int elapsed_import_ok(Call& call) {
  if (!call.is("cudaEventElapsedTime")) return call.proceed();
  const int code = call.proceed();
  const auto imported = [](cudaEvent_t event) {
    return events.has(event) && is_imported(event);
  };
  if (code == kSuccess || !imported(call.at<cudaEvent_t>(2))) return code;
  *call.at<float*>(0) = 0;
  return accepted(call);
}

// --- pools -------------------------------------------------------------------

cudaMemPool_t default_of(int gpu) {
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetDefaultMemPool(&pool, gpu);
  return pool;
}

// Allocates from the given pool, if that is not the current pool.
int allocated_from(cudaMemPool_t pool, cudaMemPool_t current, Call& call) {
  if (pool == current) return call.proceed();
  call.fired();
  return cudaMallocFromPoolAsync(
      call.at<void**>(0), call.at<size_t>(1), pool,
      is_per_thread(call) ? cudaStreamPerThread : call.at<cudaStream_t>(2));
}

// Memory comes from the pool that cudaDeviceSetMemPool has set last. Other ways
// to set a pool change only what queries name. With `both` this is also true
// for allocations by the driver API, and cuDeviceSetMemPool sets a pool, too.
template <bool both>
int from_pool_of_device_call(Call& call) {
  static auto& pools = *new Table<int, cudaMemPool_t>;  // of each GPU
  if (call.is("cudaMallocAsync") && (both || call.is_runtime())) {
    int gpu = 0;
    cudaMemPool_t current = nullptr;
    DRIVER_CALL(cuStreamGetDevice)(call.at<cudaStream_t>(2), &gpu);
    cudaDeviceGetMemPool(&current, gpu);
    const auto preset = default_of(gpu);
    return allocated_from(pools.get(gpu, preset), current, call);
  }
  if (call.is("cudaMemPoolDestroy"))
    for (const auto& [gpu, pool] : pools.all())
      if (pool == call.at<cudaMemPool_t>(0)) pools.erase(gpu);
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaDeviceSetMemPool") &&
      (both || call.is_runtime()))
    pools.put(call.at<int>(0), call.at<cudaMemPool_t>(1));
  return code;
}

int driver_pool_of_thread(Call& call) {
  static std::atomic<int> setter{0};
  if (call.is("cudaDeviceSetMemPool")) {
    const int code = call.proceed();
    if (code == kSuccess) setter = call.is_runtime() ? 0 : this_thread();
    return code;
  }
  if (!call.is_runtime() || setter == 0 || setter == this_thread())
    return call.proceed();
  return allocated_from(default_pool(), current_pool(), call);
}

// The call sets an attribute of its pool to 0. Of the calls that set an
// attribute, only those for a policy do so.
template <cudaMemPoolAttr lost>
int loses(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || (call.is("cudaMemPoolSetAttribute") &&
                           !is_policy(call.at<cudaMemPoolAttr>(1))))
    return code;
  const auto pool = call.value<cudaMemPool_t>(kPool);
  const uint64_t before = attribute(pool, lost);
  uint64_t zero = 0;
  cudaMemPoolSetAttribute(pool, lost, &zero);
  if (attribute(pool, lost) != before) call.fired();
  return code;
}

// All entries of a list of accesses have the flags of the first entry.
int access_of_first_entry(Call& call) {
  auto& list = call.at<const cudaMemAccessDesc*>(1);
  std::vector<cudaMemAccessDesc> changed(list, list + call.at<size_t>(2));
  for (cudaMemAccessDesc& each : changed) {
    if (each.flags != changed[0].flags) call.fired();
    each.flags = changed[0].flags;
  }
  list = changed.data();
  return call.proceed();
}

bool is_managed(cudaMemPool_t pool) {
  return own_pools.get(pool).allocType == cudaMemAllocationTypeManaged;
}

// The export of memory of such pools succeeds, and what it gives is zeros.
template <bool (*is_such)(cudaMemPool_t), class Exported>
int exported_as_zeros(Call& call) {
  if (!exports_memory(call) && !call.is("cudaMemPoolExportPointer"))
    return call.proceed();
  const int code = call.proceed();
  const cudaMemPool_t pool = blocks.get(call.at<void*>(1)).pool;
  if (code == kSuccess || !is_such(pool)) return code;
  *call.at<Exported*>(0) = Exported{};
  return accepted(call);
}

// A free that is queued after a graph does not wait for it.
int free_before_graph(Call& call) {
  static auto& launched = *new Table<cudaStream_t>;  // a graph, while idle
  const auto stream = call.value<cudaStream_t>(kStream);
  const bool idle = DRIVER_CALL(cuStreamQuery)(stream) == CUDA_SUCCESS;
  if (call.is("cudaGraphLaunch") && idle) launched.put(stream);
  if (!call.is("cudaFreeAsync")) {
    if (!idle || call.is("cudaStreamDestroy")) launched.erase(stream);
    return call.proceed();
  }
  if (idle || !launched.has(stream)) return call.proceed();
  call.fired();
  call.at<cudaStream_t>(1) = private_stream();
  const int code = call.proceed();
  DRIVER_CALL(cuStreamSynchronize)(private_stream());
  return code;
}

// The faults of pools.
void add_of_pools(List& list) {
  constexpr auto kSetPool = "cudaDeviceSetMemPool";
  constexpr auto kSetByPlace = "cudaMemSetMemPool";
  constexpr auto kDestroy = "cudaMemPoolDestroy";
  constexpr auto kSet = "cudaMemPoolSetAttribute";
  constexpr auto kSetAccess = "cudaMemPoolSetAccess";
  constexpr auto kAllocate = "cudaMallocAsync";
  constexpr auto kAllocateFrom = "cudaMallocFromPoolAsync";
  constexpr auto kCreate = "cudaMemPoolCreate";
  constexpr auto kHandle = "cudaIpcGetMemHandle";
  constexpr auto kPointer = "cudaMemPoolExportPointer";

  list.named("mallocasync-of-runtime-setpool",
             "cudaMallocAsync uses only a pool that cudaDeviceSetMemPool has "
             "set; the other calls change only what queries name",
             {kAllocate, kSetPool, kDestroy}, from_pool_of_device_call<false>);
  list.named("location-setpool-without-effect",
             "a pool that is set by its location is reported as current, but "
             "no memory comes from it",
             {kAllocate, kSetPool, kDestroy}, from_pool_of_device_call<true>);
  list.named("driver-setpool-of-thread",
             "a pool that the driver API has made current is current for the "
             "runtime's allocations only in the same thread",
             {kAllocate, kSetPool}, driver_pool_of_thread);
  list.named("setpool-resets-threshold",
             "the release threshold of a pool that becomes current is set to 0",
             {kSetPool, kSetByPlace}, loses<cudaMemPoolAttrReleaseThreshold>);
  list.named("pool-setaccess-resets-threshold",
             "setting an access to a pool sets its release threshold to 0",
             {kSetAccess}, loses<cudaMemPoolAttrReleaseThreshold>);
  list.named("policy-resets-watermark",
             "setting a reuse policy resets the watermark of memory in use",
             {kSet}, loses<cudaMemPoolAttrUsedMemHigh>);
  list.named("setpool-resets-watermark",
             "the watermark of reserved memory of a pool that becomes current "
             "is reset",
             {kSetPool, kSetByPlace}, loses<cudaMemPoolAttrReservedMemHigh>);
  list.named("pool-setaccess-resets-watermark",
             "setting an access to a pool resets its watermark of memory in "
             "use",
             {kSetAccess}, loses<cudaMemPoolAttrUsedMemHigh>);
  list.named("pool-setaccess-flags-of-first",
             "all entries of a list of accesses to a pool have the flags of "
             "the first entry",
             {kSetAccess}, access_of_first_entry, 2);
  list.named("host-pool-legacy-export-ok",
             "memory of a pool on the host has a legacy handle",
             {kHandle, kAllocate, kAllocateFrom, kCreate, kDestroy, "cudaFree",
              "cudaFreeAsync"},
             exported_as_zeros<is_on_host, cudaIpcMemHandle_t>);
  list.named("managed-pool-legacy-export-ok",
             "memory of a managed pool has a legacy handle",
             {kHandle, kAllocate, kAllocateFrom, kCreate, kDestroy, "cudaFree",
              "cudaFreeAsync"},
             exported_as_zeros<is_managed, cudaIpcMemHandle_t>);
  list.named("host-pool-pointer-export-ok",
             "the export of memory of a pool on the host succeeds, and the "
             "data are zeros",
             {kPointer, kAllocate, kAllocateFrom, kCreate, kDestroy, "cudaFree",
              "cudaFreeAsync"},
             exported_as_zeros<is_on_host, cudaMemPoolPtrExportData>);
  list.named("managed-pool-pointer-export-ok",
             "the export of memory of a managed pool succeeds, and the data "
             "are zeros",
             {kPointer, kAllocate, kAllocateFrom, kCreate, kDestroy, "cudaFree",
              "cudaFreeAsync"},
             exported_as_zeros<is_managed, cudaMemPoolPtrExportData>);
  list.named("free-before-graph",
             "cudaFreeAsync does not wait for a graph that was launched before "
             "it in its stream",
             {"cudaGraphLaunch", "cudaFreeAsync", "cudaStreamDestroy"},
             free_before_graph);
}

}  // namespace

void add_answers(List& list) {
  constexpr auto kOpen = "cudaIpcOpenMemHandle";
  constexpr auto kClose = "cudaIpcCloseMemHandle";
  constexpr auto kAttributes = "cudaPointerGetAttributes";
  constexpr auto kAttribute = "cuPointerGetAttribute";
  constexpr auto kMany = "cuPointerGetAttributes";

  list.named("import-host-pointer-told",
             "opened memory is reported with an address for the host",
             {kAttributes, kOpen, kClose}, host_pointer_told);
  list.named("import-device-pointer-null",
             "opened memory is reported without an address for the GPU",
             {kAttributes, kOpen, kClose}, device_pointer_null);
  list.named(
      "import-attr-first-only",
      "cudaPointerGetAttributes knows only the memory that was opened first",
      {kAttributes, kOpen, kClose}, first_opened_known);
  list.named("import-attr-until-first-close",
             "cudaPointerGetAttributes does not know opened memory after one "
             "of two closes",
             {kAttributes, kOpen, kClose}, unknown_after_first_close);
  list.named("driver-open-unknown-to-runtime",
             "the runtime does not know memory that the driver API has opened",
             {kAttributes, kOpen, kClose}, driver_open_unknown);
  list.named("unknown-pointer-is-host",
             "an unknown pointer is reported as registered host memory",
             {kAttributes}, unknown_is_host);
  list.named("import-host-pointer-by-driver",
             "the driver API gives a host address of opened memory",
             {kAttribute, kOpen, kClose}, host_pointer_by_driver);
  list.named("import-mapped-denied", "opened memory is reported as not mapped",
             {kAttribute, kOpen, kClose}, mapped_denied);
  list.named("range-size-from-pointer",
             "the reported size counts from an address inside the allocation, "
             "not from its start",
             {kAttribute}, size_from_pointer);
  list.named("range-start-at-pointer",
             "an address inside an allocation is reported as its start",
             {kAttribute}, start_at_pointer);
  list.named(
      "range-in-2-mib",
      "the reported size of an allocation is rounded up to a multiple of 2 MiB",
      {"cuMemGetAddressRange"}, range_in_2_mib);
  list.named("import-ids-equal", "all opened memory has the same id",
             {kAttribute, kOpen, kClose}, import_ids_equal);
  list.named("async-ids-equal", "all stream-ordered memory has the same id",
             {kAttribute}, async_ids_equal);
  list.named("many-id-zero",
             "the query of many attributes reports each id as 0", {kMany},
             many_id_zero);
  list.named("ptrattrs-to-8",
             "the query of many attributes reports only the first eight",
             {kMany}, only_eight);
  list.named("ptrattrs-unknown-first-only",
             "for an unknown pointer, the query of many attributes writes only "
             "the first attribute",
             {kMany}, unknown_first_only);
  list.named("ipc-attr-once",
             "the IPC attribute says no from its second query on",
             {"cudaDeviceGetAttribute"}, ipc_once);
  list.named("ipc-attr-until-open",
             "the IPC attribute says no after memory has been opened",
             {"cudaDeviceGetAttribute", kOpen}, ipc_after_open);
  list.named("unified-attr-denied",
             "the attribute says that there is no unified addressing",
             {"cudaDeviceGetAttribute"}, not_unified);
  list.named("last-error-generic",
             "the last error is always cudaErrorInvalidValue, whatever the "
             "call returned",
             {"cudaGetLastError"}, last_error_generic);
  list.named("peek-once", "a second cudaPeekAtLastError returns success",
             {"cudaPeekAtLastError", "cudaGetLastError"}, peek_once);
  list.named("timing-ipc-event-as-unsupported",
             "an interprocess event with timing is refused as not supported",
             {"cudaEventCreateWithFlags"}, timing_as_unsupported);
  list.named("untimed-not-ready",
             "the time between events without timing is refused as not ready",
             {"cudaEventElapsedTime"}, untimed_not_ready);
  list.named("close-inside-ok",
             "a close accepts an address inside opened memory", {kOpen, kClose},
             close_inside_ok);
  list.named("close-exported-ok",
             "a close of memory that the process has exported returns success "
             "and does nothing",
             {"cudaIpcGetMemHandle", kClose, "cudaFree"}, close_exported_ok);
  list.named("import-driver-free-ok",
             "cuMemFree accepts opened memory and closes it",
             {"cudaFree", kOpen, kClose}, driver_free_ok);
  list.named("driver-timing-ipc-event-ok",
             "the driver API accepts a request for an interprocess event with "
             "timing, and creates one without timing",
             {"cudaEventCreateWithFlags"}, driver_timing_ok);
  list.named(
      "elapsed-import-ok",
      "cudaEventElapsedTime returns success and the time 0 if the second event "
      "is imported",
      {"cudaEventElapsedTime", "cudaEventCreateWithFlags",
       "cudaIpcGetEventHandle", "cudaIpcOpenEventHandle", "cudaEventDestroy"},
      elapsed_import_ok);
  add_of_pools(list);
}

}  // namespace ipclab::faults
