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

FAULTS {
  fault("vmm-attr-lies", {"VMM-01"},
        "the attribute says that there is virtual memory management, but its "
        "calls are not supported")
      .on({kCreate, kReserve}, refuses(CUDA_ERROR_NOT_SUPPORTED));

  fault("vmm-attr-denies", {"VMM-01"},
        "the attribute says that there is no virtual memory management, but "
        "its calls work")
      .on({"cudaDeviceGetAttribute"},
          attribute_zero<
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED>);

  fault("fd-attr-lies", {"VMM-02"},
        "the attribute says that memory can be shared by descriptors, but such "
        "memory cannot be created")
      .on({kCreate},
          WHEN((call.at<const CUmemAllocationProp*>(2)->requestedHandleTypes &
                kFd) != 0),
          refuses(CUDA_ERROR_NOT_SUPPORTED));

  fault("fd-attr-denies", {"VMM-02"},
        "the attribute says that no memory can be shared by descriptors, but "
        "such sharing works")
      .on({"cudaDeviceGetAttribute"},
          attribute_zero<
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED>);

  fault("fabric-attr-lies", {"FABR-01"},
        "the attribute says that there are no fabric handles, but they work")
      .on_machine("fabric")
      .on({"cudaDeviceGetAttribute"}, [](Call& call) -> int {
        constexpr int kAttribute =
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
        if (call.at<int>(1) == kAttribute && !has_fabric(call.at<int>(2)))
          return call.proceed();
        return attribute_zero<kAttribute>(call);
      });

  fault("granularity-zero", {"VMM-03"}, "the granularity is 0")
      .after({"cuMemGetAllocationGranularity"},
             [](Call& call) { *call.at<size_t*>(0) = 0; });

  fault("granularity-half", {"VMM-03"},
        "the granularity is half of what cuMemCreate accepts")
      .after({"cuMemGetAllocationGranularity"},
             [](Call& call) { *call.at<size_t*>(0) /= 2; });

  fault("granularity-recommended-small", {"VMM-03"},
        "the recommended granularity is less than the minimum")
      .after({"cuMemGetAllocationGranularity"},
             WHEN(call.at<CUmemAllocationGranularity_flags>(2) ==
                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
             [](Call& call) { *call.at<size_t*>(0) = 4096; });

  fault("create-power-of-two", {"VMM-03"},
        "only sizes of 1, 2, 4, 8 … granules are accepted")
      .on({kCreate},
          WHEN(((call.at<size_t>(1) / granule()) &
                ((call.at<size_t>(1) / granule()) - 1)) != 0),
          [](Call& call) { return refused(call); });

  fault("fabric-address-bound", {"FABR-03", "FABR-04"},
        "a fabric handle is valid only at the address where it was written")
      .on_machine("fabric")
      .on({kImport, kExport}, WHEN(is_fabric(call)), [](Call& call) -> int {
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

  fault("fabric-too-long", {"FABR-03"},
        "a fabric handle is written with 65 bytes")
      .on_machine("fabric")
      .after({kExport}, WHEN(is_fabric(call)), [](Call& call) {
        static_cast<unsigned char*>(call.at<void*>(0))[kFabricBytes] ^= 0xFF;
      });

  fault("export-unmapped-refused", {"VMM-02"},
        "memory can be exported only while it is mapped")
      .on({kExport, kMap, kUnmap}, export_refused_if<false>);

  fault("pool-attr-lies", {"POOL-01"},
        "the device attribute reports a handle type whose pools cannot be "
        "created")
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(1) == cudaDevAttrMemoryPoolSupportedHandleTypes),
             [](Call& call) { *call.at<int*>(0) |= cudaMemHandleTypeWin32; });

  fault("unknown-pool-attr-ok", {"PLAT-06"},
        "an unknown attribute of a pool is accepted and is 0")
      .on_refusal({kGetPoolAttribute}, WHEN(call.at<int>(1) >= 1000),
                  [](Call& call) {
                    *call.at<cuuint64_t*>(2) = 0;
                    return accepted(call);
                  });

  fault("pools-attr-denies", {"SOMA-01"},
        "the attribute says that there is no stream-ordered allocator, but the "
        "allocator works")
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(1) == cudaDevAttrMemoryPoolsSupported),
             [](Call& call) { *call.at<int*>(0) = 0; });

  fault("unsupported-silent", {"PLAT-02"},
        "calls on a machine without IPC succeed and do nothing")
      .on_machine("no-ipc")
      .on_refusal({kGetHandle, kOpen, kClose, kGetEventHandle, kOpenEvent},
                  WHEN(call.code() == cudaErrorNotSupported), accepted);

  fault("newer-runtime-refused", {"PLAT-18"},
        "a program whose runtime is newer than the driver cannot open a handle")
      .on_machine("newer-runtime")
      .on({kOpen}, WHEN(runtime_is_newer()),
          refuses(cudaErrorInsufficientDriver));

  fault("too-new-call-silent", {"PLAT-19"},
        "cudaGraphGetId, for which the driver is too old, returns success and "
        "does nothing")
      .on_machine("newer-runtime")
      .on_refusal({"cudaGraphGetId"},
                  WHEN(call.code() == cudaErrorCallRequiresNewerDriver),
                  [](Call& call) { return accepted(call); });

  fault("too-new-call-as-unsupported", {"PLAT-19"},
        "cudaGraphGetId, for which the driver is too old, returns "
        "cudaErrorNotSupported")
      .on_machine("newer-runtime")
      .on_refusal({"cudaGraphGetId"},
                  WHEN(call.code() == cudaErrorCallRequiresNewerDriver),
                  refuses(cudaErrorNotSupported));

  fault("ptrattrs-error", {"LMEM-47"},
        "the query of many attributes refuses an unknown pointer")
      .on({kGetAttributes},
          WHEN(kind_of(reinterpret_cast<void*>(call.at<CUdeviceptr>(3))) ==
               Kind::kPageable),
          refuses(CUDA_ERROR_INVALID_VALUE));

  fault("unknown-pointer-refused", {"LMEM-47"},
        "cudaPointerGetAttributes refuses an unknown pointer")
      .on({kPointerAttributes},
          WHEN(kind_of(call.at<void*>(1)) == Kind::kPageable),
          refuses(cudaErrorInvalidValue));

  fault("unknown-attr-ok", {"PLAT-06"},
        "an unknown attribute is accepted and is 0")
      .on_refusal({"cudaDeviceGetAttribute"},
                  WHEN(call.code() == cudaErrorInvalidValue), [](Call& call) {
                    if (call.is_runtime()) cudaGetLastError();
                    *call.at<int*>(0) = 0;
                    return lost(call);
                  });

  fault("ipc-attr-lies", {"PLAT-03"},
        "the runtime's attribute about IPC has the opposite value")
      .on({"cudaDeviceGetAttribute"}, WHEN(call.is_runtime()), [](Call& call) {
        return attribute_lies(call, cudaDevAttrIpcEventSupport);
      });

  fault("ipc-driver-attr-lies", {"PLAT-03"},
        "the driver's attribute about IPC has the opposite value")
      .on({"cudaDeviceGetAttribute"}, WHEN(!call.is_runtime()), [](Call& call) {
        return attribute_lies(call, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
      });

  fault("error-names-shifted", {"PLAT-07"},
        "the driver gives each error the name of the next error")
      .before({"cuGetErrorName"},
              [](Call& call) { call.value<int>(kOther) += 1; });

  fault("last-error-told-twice", {"PLAT-06"},
        "cudaGetLastError does not clear the error")
      .on({"cudaGetLastError"}, [](Call& call) {
        const int code = static_cast<int>(cudaPeekAtLastError());
        if (code == kSuccess) return call.proceed();
        call.fired();
        return code;
      });

  fault("ipc-property-lies", {"PLAT-03"},
        "the IPC field in the device's properties has the opposite value")
      .after({"cudaGetDeviceProperties"}, [](Call& call) {
        auto& value = call.at<cudaDeviceProp*>(0)->ipcEventSupported;
        value = value == 0;
      });

  fault("ipc-attr-second-gpu", {"PLAT-03"},
        "only the first GPU is reported to share memory")
      .with_gpus(2)
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(1) == cudaDevAttrIpcEventSupport &&
                  call.at<int>(2) != 0),
             [](Call& call) { *call.at<int*>(0) = 0; });

  fault("ptrattrs-first-only", {"LMEM-47"},
        "the query of many attributes reports only the first one")
      .before({kGetAttributes}, WHEN(call.at<unsigned>(0) > 1),
              [](Call& call) { call.at<unsigned>(0) = 1; });

  fault("attributes-unknown-untouched", {"LMEM-47"},
        "cudaPointerGetAttributes writes nothing for an unknown pointer")
      .on({kPointerAttributes}, [](Call& call) {
        unsigned type = 0;
        return DRIVER_CALL(cuPointerGetAttribute)(
                   &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                   call.at<CUdeviceptr>(1)) == CUDA_SUCCESS
                   ? call.proceed()
                   : lost(call);
      });

  fault("ptrattrs-unknown-untouched", {"LMEM-47"},
        "the query of many attributes writes nothing for an unknown pointer")
      .on({kGetAttributes}, [](Call& call) {
        unsigned type = 0;
        return DRIVER_CALL(cuPointerGetAttribute)(
                   &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                   call.at<CUdeviceptr>(3)) == CUDA_SUCCESS
                   ? call.proceed()
                   : lost(call);
      });

  fault("small-freed-known-to-driver", {"LMEM-47"},
        "cuPointerGetAttribute still says that freed memory of less than 2 MiB "
        "is device memory")
      .on({kGetAttribute, kFree}, small_freed_known);

  fault("small-freed-known-to-many", {"LMEM-47"},
        "the query of many attributes still says that freed memory of less "
        "than 2 MiB is device memory")
      .on({kGetAttributes, kFree}, small_freed_known);

  fault("small-freed-known-to-runtime", {"LMEM-47"},
        "cudaPointerGetAttributes still says that freed memory of less than 2 "
        "MiB is device memory")
      .on({kPointerAttributes, kFree}, small_freed_known);

  fault("small-attribute-ok", {"PLAT-06"},
        "an attribute whose number is zero or negative is accepted and is 0")
      .on_refusal({"cudaDeviceGetAttribute"}, WHEN(call.at<int>(1) <= 0),
                  [](Call& call) {
                    *call.at<int*>(0) = 0;
                    return accepted(call);
                  });

  fault("unknown-attr-not-kept", {"PLAT-06"},
        "the refusal of an unknown attribute leaves no last error")
      .on_refusal({"cudaDeviceGetAttribute"}, WHEN(call.is_runtime()),
                  [](Call&) { cudaGetLastError(); });

  fault("unknown-attr-as-unsupported", {"PLAT-06"},
        "an unknown attribute is refused as not supported")
      .on({"cudaDeviceGetAttribute"}, refused_as_not_supported);

  fault("event-open-as-unsupported", {"PLAT-02"},
        "an event that cannot be opened is refused as not supported")
      .on({kOpenEvent}, refused_as_not_supported);

  fault("memory-open-as-unsupported", {"PLAT-02"},
        "memory that cannot be opened is refused as not supported")
      .on({kOpen}, refused_as_not_supported);

  fault("unified-addressing-denied", {"PLAT-02"},
        "the device's properties say that there is no unified addressing")
      .after({"cudaGetDeviceProperties"}, [](Call& call) {
        call.at<cudaDeviceProp*>(0)->unifiedAddressing = 0;
      });

  fault("unified-property-second-gpu", {"PLAT-02"},
        "only the first GPU's properties say that it has unified addressing")
      .with_gpus(2)
      .after({"cudaGetDeviceProperties"}, WHEN(call.at<int>(1) != 0),
             [](Call& call) {
               call.at<cudaDeviceProp*>(0)->unifiedAddressing = 0;
             });

  fault("unified-attr-second-gpu", {"PLAT-02"},
        "the attribute says only for the first GPU that it has unified "
        "addressing")
      .with_gpus(2)
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(2) != 0 &&
                  call.at<int>(1) == cudaDevAttrUnifiedAddressing),
             [](Call& call) { *call.at<int*>(0) = 0; });

  fault("ipc-property-second-gpu", {"PLAT-03"},
        "only the first GPU's properties say that it shares memory")
      .with_gpus(2)
      .after({"cudaGetDeviceProperties"}, WHEN(call.at<int>(1) != 0),
             [](Call& call) {
               call.at<cudaDeviceProp*>(0)->ipcEventSupported = 0;
             });

  fault("ipc-driver-attr-second-gpu", {"PLAT-03"},
        "the driver's attribute says only for the first GPU that it shares "
        "memory")
      .with_gpus(2)
      .after({"cudaDeviceGetAttribute"},
             WHEN(!call.is_runtime() && call.at<int>(2) != 0 &&
                  call.at<int>(1) == CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
             [](Call& call) { *call.at<int*>(0) = 0; });

  fault("unknown-error-named", {"PLAT-07"},
        "a number that is not an error code has the name of the unknown error")
      .on_refusal({"cuGetErrorName"}, [](Call& call) {
        *call.at<const char**>(1) = "CUDA_ERROR_UNKNOWN";
        call.fired();
        return kSuccess;
      });

  fault("unknown-error-untouched", {"PLAT-07"},
        "cuGetErrorName does not set the name of an unknown number to null")
      .on({"cuGetErrorName"}, [](Call& call) {
        const char* const before = *call.at<const char**>(1);
        const int code = call.proceed();
        if (code == kSuccess || before == nullptr) return code;
        *call.at<const char**>(1) = before;
        call.fired();
        return code;
      });

  fault("newer-driver-error-stays", {"PLAT-19"},
        "after a call for which the driver is too old, the next "
        "synchronization gets the same code")
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

  fault("granularity-of-shared-half", {"VMM-03"},
        "the granularity of memory that can be shared is half of what "
        "cuMemCreate accepts")
      .after(
          {"cuMemGetAllocationGranularity"},
          WHEN(call.at<const CUmemAllocationProp*>(1)->requestedHandleTypes !=
               CU_MEM_HANDLE_TYPE_NONE),
          [](Call& call) {
            *call.at<size_t*>(0) /= 2;
            return accepted(call);
          });

  fault("getattr-after-refusal-refused", {"PLAT-06"},
        "after a refused query of an attribute the next one is refused, too")
      .on({kGetPoolAttribute}, next_refused);

  fault("unknown-pointer-is-host", {"LMEM-47", "LMEM-10"},
        "an unknown pointer is reported as registered host memory")
      .after({kPointerAttributes},
             WHEN((*call.at<cudaPointerAttributes*>(0)).type ==
                  cudaMemoryTypeUnregistered),
             [](Call& call) {
               auto& attributes = *call.at<cudaPointerAttributes*>(0);
               attributes.type = cudaMemoryTypeHost;
             });

  fault("ptrattrs-unknown-first-only", {"LMEM-47"},
        "for an unknown pointer, the query of many attributes writes only the "
        "first attribute")
      .before({kGetAttributes}, [](Call& call) {
        unsigned& count = call.at<unsigned>(0);
        if (count > 1 && !is_known(call.at<CUdeviceptr>(3))) {
          count = 1;
          call.fired();
        }
        return kSuccess;
      });

  fault("ipc-attr-once", {"PLAT-03"},
        "the IPC attribute says no from its second query on")
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

  fault("ipc-attr-until-open", {"PLAT-03"},
        "the IPC attribute says no after memory has been opened")
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

  fault("unified-attr-denied", {"PLAT-02"},
        "the attribute says that there is no unified addressing")
      .after({"cudaDeviceGetAttribute"},
             WHEN(asks_device(call, cudaDevAttrUnifiedAddressing)),
             [](Call& call) { *call.at<int*>(0) = 0; });

  fault("granularity-recommended-odd", {"VMM-03"},
        "the recommended granularity is not a multiple of the minimum")
      .after({"cuMemGetAllocationGranularity"},
             WHEN(call.at<CUmemAllocationGranularity_flags>(2) ==
                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
             [](Call& query) {
               auto& granularity = *query.at<size_t*>(0);
               granularity += granularity / 2;
             });

  fault("map-address-rounded-down", {"VMM-03"},
        "if the address for a mapping is inside a granule, memory is mapped at "
        "the beginning of this granule")
      .on({kMap}, [](Call& call) -> int {
        const int code = call.proceed();
        auto& address = call.at<CUdeviceptr>(0);
        if (code == kSuccess || address % kGranule == 0) return code;
        address -= address % kGranule;
        const int again = call.proceed();
        return again == kSuccess ? accepted(call) : code;
      });

  fault("map-size-rounded-up", {"VMM-03"},
        "a size of a mapping that is not a multiple of the granularity is "
        "rounded up")
      .on({kMap}, [](Call& call) -> int {
        const int code = call.proceed();
        auto& bytes = call.at<size_t>(1);
        if (code == kSuccess || bytes % kGranule == 0) return code;
        bytes += kGranule - bytes % kGranule;
        const int again = call.proceed();
        return again == kSuccess ? accepted(call) : code;
      });

  fault("granularity-writes-32-bits", {"VMM-03"},
        "cuMemGetAllocationGranularity writes only the lower half of the "
        "granularity")
      .on({"cuMemGetAllocationGranularity"}, writes_32_bits);

  fault("ipc-attr-second-thread-no", {"PLAT-03"},
        "the IPC attribute says no in a second thread")
      .after({"cudaDeviceGetAttribute"},
             WHEN(call.at<int>(1) == cudaDevAttrIpcEventSupport &&
                  gettid() != getpid()),
             [](Call& call) {
               if (*call.at<int*>(0) != 0) call.fired();
               *call.at<int*>(0) = 0;
               return kSuccess;
             });

  fault("freed-inside-known", {"LMEM-47"},
        "cudaPointerGetAttributes still knows addresses inside freed memory")
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

  fault("freed-inside-known-to-driver", {"LMEM-47"},
        "cuPointerGetAttribute still tells the type of memory for addresses "
        "inside freed memory")
      .on({kGetAttribute, kFree}, [](Call& call) -> int {
        if (call.is("cudaFree")) return noted_free(call);
        const int code = call.proceed();
        if (code == kSuccess || !is_gone_inside(call.at<CUdeviceptr>(2)) ||
            call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
          return code;
        *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
        return accepted(call);
      });

  fault("get-aligned-down", {"LMEM-03"},
        "a handle is written to an address that is rounded down to a multiple "
        "of 8")
      .on({kGetHandle}, handle_at_aligned_address<cudaIpcMemHandle_t>);

  fault("freed-known-by-id", {"LMEM-47"},
        "cuPointerGetAttribute still returns the id of freed memory")
      .on({kGetAttribute, kMalloc, kFree}, freed_known_by_id);

  fault("unknown-is-not-managed", {"LMEM-47"},
        "cuPointerGetAttribute says that an unknown pointer is not managed")
      .on_refusal({kGetAttribute},
                  WHEN(call.at<CUpointer_attribute>(1) ==
                           CU_POINTER_ATTRIBUTE_IS_MANAGED &&
                       call.at<void*>(0) != nullptr),
                  [](Call& get) {
                    *get.at<bool*>(0) = false;
                    return accepted(get);
                  });

  fault("driver-pool-attr-unknown-ok", {"PLAT-06"},
        "cuMemPoolGetAttribute returns success where it should refuse")
      .on_refusal({kGetPoolAttribute}, WHEN(!call.is_runtime()), accepted);

  fault("pool-attr-unknown-set", {"PLAT-06"},
        "cudaMemPoolSetAttribute returns success where it should refuse")
      .on_refusal({kSetPoolAttribute}, accepted);

  fault(
      "ipc-attr-needs-context", {"PLAT-03"},
      "the driver's attribute about IPC is 0 before the process has a context")
      .after({"cudaDeviceGetAttribute"},
             WHEN(!call.is_runtime() &&
                  call.at<int>(1) == CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED &&
                  current_context() == nullptr),
             [](Call& call) { *call.at<int*>(0) = 0; });

  fault("ok-create-and-map-wait", {"VMM-01", "VMM-02", "VMM-03", "SERV-02"},
        "cuMemCreate, cuMemRelease and cuMemMap wait for all work of the "
        "context")
      .before({kCreate, kRelease, kMap},
              [](Call&) { cudaDeviceSynchronize(); });
}

}  // namespace
}  // namespace ipclab::faults
