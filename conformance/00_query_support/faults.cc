// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

template <int attribute>
int attribute_zero(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) != attribute) return code;
  int& value = *call.at<int*>(0);
  if (value != 0) call.fired();
  value = 0;
  return code;
}

// Can memory with a fabric handle be created here?
bool has_fabric(int device) {
  const Chunk made = new_chunk(granule(), on_gpu(device), kFabric);
  if (made != 0) DRIVER_CALL(cuMemRelease)(made);
  return made != 0;
}

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

int attribute_lies(Call& call, int attribute) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) != attribute) return code;
  int& value = *call.at<int*>(0);
  value = value == 0 ? 1 : 0;
  call.fired();
  return code;
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

int refused_as_not_supported(Call& call) {
  return call.proceed() == kSuccess ? kSuccess
                                    : refused(call, cudaErrorNotSupported);
}

bool is_known(CUdeviceptr pointer) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(
             &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) == CUDA_SUCCESS;
}

bool asks_device(Call& call, int attribute) {
  return call.at<int>(1) == attribute;
}

int freed_known_by_id(Call& call) {
  static auto& ids = *new Table<CUdeviceptr, unsigned long long>;
  static auto& freed = *new Table<CUdeviceptr, unsigned long long>;
  const int code = call.proceed();
  if (call.is("cudaMalloc") && code == kSuccess) {
    const CUdeviceptr made = *call.at<CUdeviceptr*>(0);
    freed.erase(made);
    ids.put(made, attribute_of_further(made, CU_POINTER_ATTRIBUTE_BUFFER_ID));
  } else if (call.is("cudaFree") && code == kSuccess) {
    const CUdeviceptr gone = call.at<CUdeviceptr>(0);
    if (ids.has(gone)) freed.put(gone, ids.get(gone));
    ids.erase(gone);
  } else if (asks_id(call) && code != kSuccess &&
             freed.has(call.at<CUdeviceptr>(2))) {
    *call.at<unsigned long long*>(0) = freed.get(call.at<CUdeviceptr>(2));
    return accepted(call);
  }
  return code;
}

FAULTS(list) {
  list.fault("vmm-attr-lies",
             "the attribute says that there is virtual memory management, but "
             "its calls are not supported",
             {"VMM-01"})
      .on({kCreate, kReserve}, refuses(CUDA_ERROR_NOT_SUPPORTED));

  list.fault("vmm-attr-denies",
             "the attribute says that there is no virtual memory management, "
             "but its calls work",
             {"VMM-01"})
      .on({"cudaDeviceGetAttribute"},
          attribute_zero<
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED>);

  list.fault("fd-attr-lies",
             "the attribute says that memory can be shared by descriptors, but "
             "such memory cannot be created",
             {"VMM-02"})
      .on({kCreate},
          WHEN((call.at<const CUmemAllocationProp*>(2)->requestedHandleTypes &
                kFd) != 0),
          refuses(CUDA_ERROR_NOT_SUPPORTED));

  list.fault("fd-attr-denies",
             "the attribute says that no memory can be shared by descriptors, "
             "but such sharing works",
             {"VMM-02"})
      .on({"cudaDeviceGetAttribute"},
          attribute_zero<
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED>);

  list.fault(
          "fabric-attr-lies",
          "the attribute says that there are no fabric handles, but they work",
          {"FABR-01"})
      .on_machine("fabric")
      .on({"cudaDeviceGetAttribute"}, [](Call& call) -> int {
        constexpr int kAttribute =
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
        if (call.at<int>(1) == kAttribute && !has_fabric(call.at<int>(2)))
          return call.proceed();
        return attribute_zero<kAttribute>(call);
      });

  list.fault("granularity-zero", "the granularity is 0", {"VMM-03"})
      .after({"cuMemGetAllocationGranularity"}, [](Call& call) {
        *call.at<size_t*>(0) = 0;
        call.fired();
      });

  list.fault("granularity-half",
             "the granularity is half of what cuMemCreate accepts", {"VMM-03"})
      .after({"cuMemGetAllocationGranularity"}, [](Call& call) {
        *call.at<size_t*>(0) /= 2;
        call.fired();
      });

  list.fault("granularity-recommended-small",
             "the recommended granularity is less than the minimum", {"VMM-03"})
      .after({"cuMemGetAllocationGranularity"},
             WHEN(call.at<CUmemAllocationGranularity_flags>(2) ==
                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
             [](Call& call) {
               *call.at<size_t*>(0) = 4096;
               call.fired();
             });

  list.fault("create-power-of-two",
             "only sizes of 1, 2, 4, 8 … granules are accepted", {"VMM-03"})
      .on({kCreate}, [](Call& call) {
        const size_t granules = call.at<size_t>(1) / granule();
        if ((granules & (granules - 1)) == 0) return call.proceed();
        return refused(call);
      });

  list.fault(
          "fabric-address-bound",
          "a fabric handle is valid only at the address where it was written",
          {"FABR-03", "FABR-04"})
      .on_machine("fabric")
      .on({kImport, kExport}, [](Call& call) {
        if (!is_fabric(call)) return call.proceed();
        if (call.is("cuMemExportToShareableHandle")) {
          const int code = call.proceed();
          if (code == kSuccess)
            tell_processes(key_of(call.at<void*>(0), kFabricBytes),
                           call.at<uintptr_t>(0));
          return code;
        }
        const std::string key = key_of(call.at<void*>(1), kFabricBytes);
        if (told(key, call.at<uintptr_t>(1)) == call.at<uintptr_t>(1))
          return call.proceed();
        return refused(call);
      });

  list.fault("fabric-too-long", "a fabric handle is written with 65 bytes",
             {"FABR-03"})
      .on_machine("fabric")
      .after({kExport}, WHEN(is_fabric(call)), [](Call& call) {
        static_cast<unsigned char*>(call.at<void*>(0))[kFabricBytes] ^= 0xFF;
        call.fired();
      });

  list.fault("export-unmapped-refused",
             "memory can be exported only while it is mapped", {"VMM-02"})
      .on({kExport, kMap, kUnmap}, export_refused_if<false>);

  list.fault("pool-attr-lies",
             "the device attribute reports a handle type whose pools cannot be "
             "created",
             {"POOL-01"})
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(1) == cudaDevAttrMemoryPoolSupportedHandleTypes),
             [](Call& call) {
               *call.at<int*>(0) |= cudaMemHandleTypeWin32;
               call.fired();
             });

  list.fault("unknown-pool-attr-ok",
             "an unknown attribute of a pool is accepted and is 0", {"PLAT-06"})
      .on({kGetPoolAttribute}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess || call.at<int>(1) < 1000) return code;
        *call.at<cuuint64_t*>(2) = 0;
        return accepted(call);
      });

  list.fault("pools-attr-denies",
             "the attribute says that there is no stream-ordered allocator, "
             "but the allocator works",
             {"SOMA-01"})
      .on({"cudaDeviceGetAttribute"}, [](Call& call) {
        const int code = call.proceed();
        if (code != kSuccess ||
            call.at<int>(1) != cudaDevAttrMemoryPoolsSupported)
          return code;
        *call.at<int*>(0) = 0;
        call.fired();
        return code;
      });

  list.fault("unsupported-silent",
             "calls on a machine without IPC succeed and do nothing",
             {"PLAT-02"})
      .on_machine("no-ipc")
      .on({kGetHandle, kOpen, kClose, kGetEventHandle, kOpenEvent},
          [](Call& call) {
            const int code = call.proceed();
            if (code != cudaErrorNotSupported) return code;
            if (call.is_runtime()) cudaGetLastError();
            call.fired();
            return kSuccess;
          });

  list.fault("newer-runtime-refused",
             "a program whose runtime is newer than the driver cannot open a "
             "handle",
             {"PLAT-18"})
      .on_machine("newer-runtime")
      .on({kOpen}, [](Call& call) -> int {
        if (!runtime_is_newer()) return call.proceed();
        call.fired();
        return cudaErrorInsufficientDriver;
      });

  list.fault("too-new-call-silent",
             "cudaGraphGetId, for which the driver is too old, returns success "
             "and does nothing",
             {"PLAT-19"})
      .on_machine("newer-runtime")
      .on({"cudaGraphGetId"}, [](Call& call) {
        const int code = call.proceed();
        if (code != cudaErrorCallRequiresNewerDriver) return code;
        if (call.is_runtime()) cudaGetLastError();
        call.fired();
        return kSuccess;
      });

  list.fault("too-new-call-as-unsupported",
             "cudaGraphGetId, for which the driver is too old, returns "
             "cudaErrorNotSupported",
             {"PLAT-19"})
      .on_machine("newer-runtime")
      .on({"cudaGraphGetId"}, [](Call& call) -> int {
        const int code = call.proceed();
        if (code != cudaErrorCallRequiresNewerDriver) return code;
        call.fired();
        return cudaErrorNotSupported;
      });

  list.fault("ptrattrs-error",
             "the query of many attributes refuses an unknown pointer",
             {"LMEM-47"})
      .on({kGetAttributes}, [](Call& call) -> int {
        if (kind_of(reinterpret_cast<void*>(call.at<CUdeviceptr>(3))) !=
            Kind::kPageable)
          return call.proceed();
        call.fired();
        return CUDA_ERROR_INVALID_VALUE;
      });

  list.fault("unknown-pointer-refused",
             "cudaPointerGetAttributes refuses an unknown pointer", {"LMEM-47"})
      .on({kPointerAttributes}, [](Call& call) -> int {
        if (kind_of(call.at<void*>(1)) != Kind::kPageable)
          return call.proceed();
        call.fired();
        return cudaErrorInvalidValue;
      });

  list.fault("unknown-attr-ok", "an unknown attribute is accepted and is 0",
             {"PLAT-06"})
      .on({"cudaDeviceGetAttribute"}, [](Call& call) {
        const int code = call.proceed();
        if (code != cudaErrorInvalidValue) return code;
        if (call.is_runtime()) cudaGetLastError();
        *call.at<int*>(0) = 0;
        call.fired();
        return kSuccess;
      });

  list.fault("ipc-attr-lies",
             "the runtime's attribute about IPC has the opposite value",
             {"PLAT-03"})
      .on({"cudaDeviceGetAttribute"}, [](Call& call) {
        return call.is_runtime()
                   ? attribute_lies(call, cudaDevAttrIpcEventSupport)
                   : call.proceed();
      });

  list.fault("ipc-driver-attr-lies",
             "the driver's attribute about IPC has the opposite value",
             {"PLAT-03"})
      .on({"cudaDeviceGetAttribute"}, [](Call& call) {
        return call.is_runtime()
                   ? call.proceed()
                   : attribute_lies(call,
                                    CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
      });

  list.fault("error-names-shifted",
             "the driver gives each error the name of the next error",
             {"PLAT-07"})
      .before({"cuGetErrorName"}, [](Call& call) {
        call.value<int>(kOther) += 1;
        call.fired();
      });

  list.fault("last-error-told-twice",
             "cudaGetLastError does not clear the error", {"PLAT-06"})
      .on({"cudaGetLastError"}, [](Call& call) {
        const int code = static_cast<int>(cudaPeekAtLastError());
        if (code == kSuccess) return call.proceed();
        call.fired();
        return code;
      });

  list.fault("ipc-property-lies",
             "the IPC field in the device's properties has the opposite value",
             {"PLAT-03"})
      .after({"cudaGetDeviceProperties"}, [](Call& call) {
        auto& value = call.at<cudaDeviceProp*>(0)->ipcEventSupported;
        value = value == 0;
        call.fired();
      });

  list.fault("ipc-attr-second-gpu",
             "only the first GPU is reported to share memory", {"PLAT-03"})
      .with_gpus(2)
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(1) == cudaDevAttrIpcEventSupport &&
                  call.at<int>(2) != 0),
             [](Call& call) {
               *call.at<int*>(0) = 0;
               call.fired();
             });

  list.fault("ptrattrs-first-only",
             "the query of many attributes reports only the first one",
             {"LMEM-47"})
      .before({kGetAttributes}, WHEN(call.at<unsigned>(0) > 1), [](Call& call) {
        call.at<unsigned>(0) = 1;
        call.fired();
      });

  list.fault("attributes-unknown-untouched",
             "cudaPointerGetAttributes writes nothing for an unknown pointer",
             {"LMEM-47"})
      .on({kPointerAttributes}, [](Call& call) {
        unsigned type = 0;
        return DRIVER_CALL(cuPointerGetAttribute)(
                   &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                   call.at<CUdeviceptr>(1)) == CUDA_SUCCESS
                   ? call.proceed()
                   : lost(call);
      });

  list.fault(
          "ptrattrs-unknown-untouched",
          "the query of many attributes writes nothing for an unknown pointer",
          {"LMEM-47"})
      .on({kGetAttributes}, [](Call& call) {
        unsigned type = 0;
        return DRIVER_CALL(cuPointerGetAttribute)(
                   &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                   call.at<CUdeviceptr>(3)) == CUDA_SUCCESS
                   ? call.proceed()
                   : lost(call);
      });

  list.fault("small-freed-known-to-driver",
             "cuPointerGetAttribute still says that freed memory of less than "
             "2 MiB is device memory",
             {"LMEM-47"})
      .on({kGetAttribute, kFree}, small_freed_known);

  list.fault("small-freed-known-to-many",
             "the query of many attributes still says that freed memory of "
             "less than 2 MiB is device memory",
             {"LMEM-47"})
      .on({kGetAttributes, kFree}, small_freed_known);

  list.fault("small-freed-known-to-runtime",
             "cudaPointerGetAttributes still says that freed memory of less "
             "than 2 MiB is device memory",
             {"LMEM-47"})
      .on({kPointerAttributes, kFree}, small_freed_known);

  list.fault(
          "small-attribute-ok",
          "an attribute whose number is zero or negative is accepted and is 0",
          {"PLAT-06"})
      .on({"cudaDeviceGetAttribute"}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess || call.at<int>(1) > 0) return code;
        *call.at<int*>(0) = 0;
        return accepted(call);
      });

  list.fault("unknown-attr-not-kept",
             "the refusal of an unknown attribute leaves no last error",
             {"PLAT-06"})
      .on({"cudaDeviceGetAttribute"}, [](Call& call) {
        const int code = call.proceed();
        if (code != kSuccess && call.is_runtime()) {
          cudaGetLastError();
          call.fired();
        }
        return code;
      });

  list.fault("unknown-attr-as-unsupported",
             "an unknown attribute is refused as not supported", {"PLAT-06"})
      .on({"cudaDeviceGetAttribute"}, refused_as_not_supported);

  list.fault("event-open-as-unsupported",
             "an event that cannot be opened is refused as not supported",
             {"PLAT-02"})
      .on({kOpenEvent}, refused_as_not_supported);

  list.fault("memory-open-as-unsupported",
             "memory that cannot be opened is refused as not supported",
             {"PLAT-02"})
      .on({kOpen}, refused_as_not_supported);

  list.fault("unified-addressing-denied",
             "the device's properties say that there is no unified addressing",
             {"PLAT-02"})
      .after({"cudaGetDeviceProperties"}, [](Call& call) {
        call.at<cudaDeviceProp*>(0)->unifiedAddressing = 0;
        call.fired();
      });

  list.fault(
          "unified-property-second-gpu",
          "only the first GPU's properties say that it has unified addressing",
          {"PLAT-02"})
      .with_gpus(2)
      .after({"cudaGetDeviceProperties"}, WHEN(call.at<int>(1) != 0),
             [](Call& call) {
               call.at<cudaDeviceProp*>(0)->unifiedAddressing = 0;
               call.fired();
             });

  list.fault("unified-attr-second-gpu",
             "the attribute says only for the first GPU that it has unified "
             "addressing",
             {"PLAT-02"})
      .with_gpus(2)
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(2) != 0 &&
                  call.at<int>(1) == cudaDevAttrUnifiedAddressing),
             [](Call& call) {
               *call.at<int*>(0) = 0;
               call.fired();
             });

  list.fault("ipc-property-second-gpu",
             "only the first GPU's properties say that it shares memory",
             {"PLAT-03"})
      .with_gpus(2)
      .after({"cudaGetDeviceProperties"}, WHEN(call.at<int>(1) != 0),
             [](Call& call) {
               call.at<cudaDeviceProp*>(0)->ipcEventSupported = 0;
               call.fired();
             });

  list.fault("ipc-driver-attr-second-gpu",
             "the driver's attribute says only for the first GPU that it "
             "shares memory",
             {"PLAT-03"})
      .with_gpus(2)
      .after({"cudaDeviceGetAttribute"},
             WHEN(!call.is_runtime() && call.at<int>(2) != 0 &&
                  call.at<int>(1) == CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
             [](Call& call) {
               *call.at<int*>(0) = 0;
               call.fired();
             });

  list.fault("unknown-error-named",
             "a number that is not an error code has the name of the unknown "
             "error",
             {"PLAT-07"})
      .on({"cuGetErrorName"}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess) return code;
        *call.at<const char**>(1) = "CUDA_ERROR_UNKNOWN";
        call.fired();
        return kSuccess;
      });

  list.fault(
          "unknown-error-untouched",
          "cuGetErrorName does not set the name of an unknown number to null",
          {"PLAT-07"})
      .on({"cuGetErrorName"}, [](Call& call) {
        const char* const before = *call.at<const char**>(1);
        const int code = call.proceed();
        if (code == kSuccess || before == nullptr) return code;
        *call.at<const char**>(1) = before;
        call.fired();
        return code;
      });

  list.fault("newer-driver-error-stays",
             "after a call for which the driver is too old, the next "
             "synchronization gets the same code",
             {"PLAT-19"})
      .on_machine("newer-runtime")
      .on({"cudaGraphGetId", kSyncDevice, kSyncStream}, [](Call& call) -> int {
        static std::atomic<bool> stays{false};
        if (!call.is("cudaGraphGetId"))
          return stays.exchange(false)
                     ? refused(call, cudaErrorCallRequiresNewerDriver)
                     : call.proceed();
        const int code = call.proceed();
        stays = code == cudaErrorCallRequiresNewerDriver;
        return code;
      });

  list.fault("granularity-of-shared-half",
             "the granularity of memory that can be shared is half of what "
             "cuMemCreate accepts",
             {"VMM-03"})
      .after(
          {"cuMemGetAllocationGranularity"},
          WHEN(call.at<const CUmemAllocationProp*>(1)->requestedHandleTypes !=
               CU_MEM_HANDLE_TYPE_NONE),
          [](Call& call) {
            *call.at<size_t*>(0) /= 2;
            return accepted(call);
          });

  list.fault(
          "getattr-after-refusal-refused",
          "after a refused query of an attribute the next one is refused, too",
          {"PLAT-06"})
      .on({kGetPoolAttribute}, next_refused);

  list.fault("unknown-pointer-is-host",
             "an unknown pointer is reported as registered host memory",
             {"LMEM-47", "LMEM-10"})
      .on({kPointerAttributes}, [](Call& call) {
        const int code = call.proceed();
        auto& attributes = *call.at<cudaPointerAttributes*>(0);
        if (code != kSuccess || attributes.type != cudaMemoryTypeUnregistered)
          return code;
        attributes.type = cudaMemoryTypeHost;
        call.fired();
        return code;
      });

  list.fault("ptrattrs-unknown-first-only",
             "for an unknown pointer, the query of many attributes writes only "
             "the first attribute",
             {"LMEM-47"})
      .before({kGetAttributes}, [](Call& call) {
        unsigned& count = call.at<unsigned>(0);
        if (count > 1 && !is_known(call.at<CUdeviceptr>(3))) {
          count = 1;
          call.fired();
        }
      });

  list.fault("ipc-attr-once",
             "the IPC attribute says no from its second query on", {"PLAT-03"})
      .on({"cudaDeviceGetAttribute"}, [](Call& call) {
        static std::atomic<bool> again{false};
        const int code = call.proceed();
        if (code != kSuccess ||
            !asks_device(call, cudaDevAttrIpcEventSupport) ||
            !again.exchange(true))
          return code;
        *call.at<int*>(0) = 0;
        call.fired();
        return code;
      });

  list.fault("ipc-attr-until-open",
             "the IPC attribute says no after memory has been opened",
             {"PLAT-03"})
      .on({"cudaDeviceGetAttribute", kOpen}, [](Call& call) {
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
      });

  list.fault("unified-attr-denied",
             "the attribute says that there is no unified addressing",
             {"PLAT-02"})
      .after({"cudaDeviceGetAttribute"},
             WHEN(asks_device(call, cudaDevAttrUnifiedAddressing)),
             [](Call& call) {
               *call.at<int*>(0) = 0;
               call.fired();
             });

  list.fault("granularity-recommended-odd",
             "the recommended granularity is not a multiple of the minimum",
             {"VMM-03"})
      .after({"cuMemGetAllocationGranularity"},
             WHEN(call.at<CUmemAllocationGranularity_flags>(2) ==
                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
             [](Call& query) {
               auto& granularity = *query.at<size_t*>(0);
               granularity += granularity / 2;
               query.fired();
             });

  list.fault("map-address-rounded-down",
             "if the address for a mapping is inside a granule, memory is "
             "mapped at the beginning of this granule",
             {"VMM-03"})
      .on({kMap}, [](Call& call) -> int {
        const int code = call.proceed();
        auto& address = call.at<CUdeviceptr>(0);
        if (code == kSuccess || address % kGranule == 0) return code;
        address -= address % kGranule;
        const int again = call.proceed();
        return again == kSuccess ? accepted(call) : code;
      });

  list.fault("map-size-rounded-up",
             "a size of a mapping that is not a multiple of the granularity is "
             "rounded up",
             {"VMM-03"})
      .on({kMap}, [](Call& call) -> int {
        const int code = call.proceed();
        auto& bytes = call.at<size_t>(1);
        if (code == kSuccess || bytes % kGranule == 0) return code;
        bytes += kGranule - bytes % kGranule;
        const int again = call.proceed();
        return again == kSuccess ? accepted(call) : code;
      });

  list.fault("granularity-writes-32-bits",
             "cuMemGetAllocationGranularity writes only the lower half of the "
             "granularity",
             {"VMM-03"})
      .on({"cuMemGetAllocationGranularity"}, writes_32_bits);

  list.fault("ipc-attr-second-thread-no",
             "the IPC attribute says no in a second thread", {"PLAT-03"})
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(1) == cudaDevAttrIpcEventSupport &&
                  gettid() != getpid()),
             [](Call& call) {
               if (*call.at<int*>(0) != 0) call.fired();
               *call.at<int*>(0) = 0;
             });

  list.fault(
          "freed-inside-known",
          "cudaPointerGetAttributes still knows addresses inside freed memory",
          {"LMEM-47"})
      .on({kPointerAttributes, kFree}, [](Call& call) -> int {
        if (call.is("cudaFree")) return noted_free(call);
        const int code = call.proceed();
        if (code != kSuccess || !is_gone_inside(call.at<CUdeviceptr>(1)))
          return code;
        auto& told = *call.at<cudaPointerAttributes*>(0);
        told.type = cudaMemoryTypeDevice;
        told.devicePointer = call.at<void*>(1);
        call.fired();
        return code;
      });

  list.fault("freed-inside-known-to-driver",
             "cuPointerGetAttribute still tells the type of memory for "
             "addresses inside freed memory",
             {"LMEM-47"})
      .on({kGetAttribute, kFree}, [](Call& call) -> int {
        if (call.is("cudaFree")) return noted_free(call);
        const int code = call.proceed();
        if (code == kSuccess || !is_gone_inside(call.at<CUdeviceptr>(2)) ||
            call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
          return code;
        *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
        return accepted(call);
      });

  list.fault("get-aligned-down",
             "a handle is written to an address that is rounded down to a "
             "multiple of 8",
             {"LMEM-03"})
      .on({kGetHandle}, handle_at_aligned_address<cudaIpcMemHandle_t>);

  list.fault("freed-known-by-id",
             "cuPointerGetAttribute still returns the id of freed memory",
             {"LMEM-47"})
      .on({kGetAttribute, kMalloc, kFree}, freed_known_by_id);

  list.fault(
          "unknown-is-not-managed",
          "cuPointerGetAttribute says that an unknown pointer is not managed",
          {"LMEM-47"})
      .on({kGetAttribute}, [](Call& get) {
        const int code = get.proceed();
        if (code == kSuccess ||
            get.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_IS_MANAGED ||
            get.at<void*>(0) == nullptr)
          return code;
        *get.at<bool*>(0) = false;
        return accepted(get);
      });

  list.fault("driver-pool-attr-unknown-ok",
             "cuMemPoolGetAttribute returns success where it should refuse",
             {"PLAT-06"})
      .on_refusal({kGetPoolAttribute}, WHEN(!call.is_runtime()), accepted);

  list.fault("pool-attr-unknown-set",
             "cudaMemPoolSetAttribute returns success where it should refuse",
             {"PLAT-06"})
      .on({kSetPoolAttribute}, [](Call& call) {
        const int code = call.proceed();
        return code != kSuccess ? accepted(call) : code;
      });

  list.fault("ipc-attr-needs-context",
             "the driver's attribute about IPC is 0 before the process has a "
             "context",
             {"PLAT-03"})
      .after({"cudaDeviceGetAttribute"},
             WHEN(!call.is_runtime() &&
                  call.at<int>(1) == CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED &&
                  current_context() == nullptr),
             [](Call& call) {
               *call.at<int*>(0) = 0;
               call.fired();
             });
}

}  // namespace
}  // namespace ipclab::faults
