// The functions of legacy memory, events and pools that both APIs have. Each
// function has one name for both APIs, so a test can judge the same behaviour
// by both APIs. A driver may be right by one API and wrong by the other.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <utility>

#include "harness/scenario/pool.h"

namespace ipclab {

/// The functions and codes of the runtime API. Each function notes its own CUDA
/// name, because a macro around the call would note only `api.…`.
struct RuntimeApi {
  using Code = cudaError_t;
  static constexpr const char* kName = "runtime API";
  static constexpr Code kNotReady = cudaErrorNotReady;
  static constexpr Code kInvalidValue = cudaErrorInvalidValue;
  static constexpr Code kInvalidDevice = cudaErrorInvalidDevice;
  static constexpr Code kNotSupported = cudaErrorNotSupported;
  static constexpr Code kOutOfMemory = cudaErrorMemoryAllocation;
  static constexpr Code kNotInitialized = cudaErrorInitializationError;
  static constexpr Code kNotPermitted = cudaErrorNotPermitted;

  static Code mem_free(void* memory) { return NOTED(cudaFree(memory)); }
  static Code ipc_get_mem_handle(cudaIpcMemHandle_t* handle,
                                 const void* memory) {
    return NOTED(cudaIpcGetMemHandle(handle, const_cast<void*>(memory)));
  }
  static Code ipc_open_mem_handle(void** memory,
                                  const cudaIpcMemHandle_t& handle) {
    return NOTED(
        cudaIpcOpenMemHandle(memory, handle, cudaIpcMemLazyEnablePeerAccess));
  }
  static Code ipc_close_mem_handle(void* memory) {
    return NOTED(cudaIpcCloseMemHandle(memory));
  }

  static Code event_create(cudaEvent_t* event, unsigned flags) {
    return NOTED(cudaEventCreateWithFlags(event, flags));
  }
  static Code ipc_get_event_handle(cudaIpcEventHandle_t* handle,
                                   cudaEvent_t event) {
    return NOTED(cudaIpcGetEventHandle(handle, event));
  }
  static Code ipc_open_event_handle(cudaEvent_t* event,
                                    const cudaIpcEventHandle_t& handle) {
    return NOTED(cudaIpcOpenEventHandle(event, handle));
  }
  static Code event_query(cudaEvent_t event) {
    return NOTED(cudaEventQuery(event));
  }
  static Code event_synchronize(cudaEvent_t event) {
    return NOTED(cudaEventSynchronize(event));
  }
  static Code event_destroy(cudaEvent_t event) {
    return NOTED(cudaEventDestroy(event));
  }
  static HostWait host_wait(cudaEvent_t event) { return HostWait(event); }
  static Code event_record(cudaEvent_t event, cudaStream_t stream) {
    return NOTED(cudaEventRecord(event, stream));
  }
  static Code event_record_with_flags(cudaEvent_t event, cudaStream_t stream) {
    return NOTED(
        cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault));
  }
  static Code stream_wait_event(cudaStream_t stream, cudaEvent_t event) {
    return NOTED(cudaStreamWaitEvent(stream, event, 0));
  }

  static Code device_set_mem_pool(int device, cudaMemPool_t pool) {
    return NOTED(cudaDeviceSetMemPool(device, pool));
  }
  static Code device_get_mem_pool(cudaMemPool_t* pool, int device) {
    return NOTED(cudaDeviceGetMemPool(pool, device));
  }
  static Code device_get_default_mem_pool(cudaMemPool_t* pool, int device) {
    return NOTED(cudaDeviceGetDefaultMemPool(pool, device));
  }
  static Code mem_set_mem_pool(cudaMemLocation place,
                               cudaMemAllocationType type, cudaMemPool_t pool) {
    return NOTED(cudaMemSetMemPool(&place, type, pool));
  }
  static Code mem_get_mem_pool(cudaMemPool_t* pool, cudaMemLocation place,
                               cudaMemAllocationType type) {
    return NOTED(cudaMemGetMemPool(pool, &place, type));
  }
  static Code mem_get_default_mem_pool(cudaMemPool_t* pool,
                                       cudaMemLocation place,
                                       cudaMemAllocationType type) {
    return NOTED(cudaMemGetDefaultMemPool(pool, &place, type));
  }
  static Code malloc_async(void** memory, size_t bytes, cudaStream_t stream) {
    return NOTED(cudaMallocAsync(memory, bytes, stream));
  }
  static Code malloc_from_pool_async(void** memory, size_t bytes,
                                     cudaMemPool_t pool, cudaStream_t stream) {
    return NOTED(cudaMallocFromPoolAsync(memory, bytes, pool, stream));
  }
  static Code free_async(void* memory, cudaStream_t stream) {
    return NOTED(cudaFreeAsync(memory, stream));
  }
  static Code mem_pool_destroy(cudaMemPool_t pool) {
    return NOTED(cudaMemPoolDestroy(pool));
  }
  static Code mem_pool_get_attribute(cudaMemPool_t pool, cudaMemPoolAttr which,
                                     void* value) {
    return NOTED(cudaMemPoolGetAttribute(pool, which, value));
  }
  static Code mem_pool_trim_to(cudaMemPool_t pool, size_t keep) {
    return NOTED(cudaMemPoolTrimTo(pool, keep));
  }
  static Code mem_pool_set_attribute(cudaMemPool_t pool, cudaMemPoolAttr which,
                                     void* value) {
    return NOTED(cudaMemPoolSetAttribute(pool, which, value));
  }
  static Code mem_pool_set_access(cudaMemPool_t pool, int device,
                                  cudaMemAccessFlags flags) {
    cudaMemAccessDesc wanted{};
    wanted.location = {cudaMemLocationTypeDevice, device};
    wanted.flags = flags;
    return NOTED(cudaMemPoolSetAccess(pool, &wanted, 1));
  }
  static Code mem_pool_create(cudaMemPool_t* pool,
                              const cudaMemPoolProps& wanted) {
    return until_fabric_is_ready(
        [&] { return NOTED(cudaMemPoolCreate(pool, &wanted)); });
  }
  static Code mem_pool_export_to_shareable_handle(
      void* handle, cudaMemPool_t pool, cudaMemAllocationHandleType type,
      unsigned flags = 0) {
    return until_fabric_is_ready([&] {
      return NOTED(
          cudaMemPoolExportToShareableHandle(handle, pool, type, flags));
    });
  }
  static Code mem_pool_import_from_shareable_handle(
      cudaMemPool_t* pool, void* handle, cudaMemAllocationHandleType type,
      unsigned flags = 0) {
    return until_fabric_is_ready([&] {
      return NOTED(
          cudaMemPoolImportFromShareableHandle(pool, handle, type, flags));
    });
  }
  static Code mem_pool_export_pointer(cudaMemPoolPtrExportData* data,
                                      void* memory) {
    return NOTED(cudaMemPoolExportPointer(data, memory));
  }
  static Code mem_pool_import_pointer(void** memory, cudaMemPool_t pool,
                                      cudaMemPoolPtrExportData* data) {
    return NOTED(cudaMemPoolImportPointer(memory, pool, data));
  }
};

/// The functions and codes of the driver API. The corresponding types of the
/// two APIs have the same layout.
struct DriverApi {
  using Code = CUresult;
  static constexpr const char* kName = "driver API";
  static constexpr Code kNotReady = CUDA_ERROR_NOT_READY;
  static constexpr Code kInvalidValue = CUDA_ERROR_INVALID_VALUE;
  static constexpr Code kInvalidDevice = CUDA_ERROR_INVALID_DEVICE;
  static constexpr Code kNotSupported = CUDA_ERROR_NOT_SUPPORTED;
  static constexpr Code kOutOfMemory = CUDA_ERROR_OUT_OF_MEMORY;
  static constexpr Code kNotInitialized = CUDA_ERROR_NOT_INITIALIZED;
  static constexpr Code kNotPermitted = CUDA_ERROR_NOT_PERMITTED;

  static Code mem_free(void* memory) {
    return NOTED(DRIVER(cuMemFree)(address_of(memory)));
  }
  static Code ipc_get_mem_handle(cudaIpcMemHandle_t* handle,
                                 const void* memory) {
    return NOTED(DRIVER(cuIpcGetMemHandle)(
        reinterpret_cast<CUipcMemHandle*>(handle), address_of(memory)));
  }
  static Code ipc_open_mem_handle(void** memory,
                                  const cudaIpcMemHandle_t& handle) {
    return NOTED(
        DRIVER(cuIpcOpenMemHandle)(reinterpret_cast<CUdeviceptr*>(memory),
                                   same_bytes<CUipcMemHandle>(handle),
                                   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  }
  static Code ipc_close_mem_handle(void* memory) {
    return NOTED(DRIVER(cuIpcCloseMemHandle)(address_of(memory)));
  }

  static Code event_create(cudaEvent_t* event, unsigned flags) {
    return NOTED(DRIVER(cuEventCreate)(event, flags));
  }
  static Code ipc_get_event_handle(cudaIpcEventHandle_t* handle,
                                   cudaEvent_t event) {
    return NOTED(DRIVER(cuIpcGetEventHandle)(
        reinterpret_cast<CUipcEventHandle*>(handle), event));
  }
  static Code ipc_open_event_handle(cudaEvent_t* event,
                                    const cudaIpcEventHandle_t& handle) {
    return NOTED(DRIVER(cuIpcOpenEventHandle)(
        event, same_bytes<CUipcEventHandle>(handle)));
  }
  static Code event_query(cudaEvent_t event) {
    return NOTED(DRIVER(cuEventQuery)(event));
  }
  static Code event_synchronize(cudaEvent_t event) {
    return NOTED(DRIVER(cuEventSynchronize)(event));
  }
  static Code event_destroy(cudaEvent_t event) {
    return NOTED(DRIVER(cuEventDestroy)(event));
  }
  static HostWait host_wait(cudaEvent_t event) {
    int device = 0;
    CALL(cudaGetDevice(&device));
    return HostWait("cuEventSynchronize(event)", [event, device] {
      const cudaError_t code = cudaSetDevice(device);  // the thread's context
      return code != cudaSuccess
                 ? code
                 : static_cast<cudaError_t>(DRIVER(cuEventSynchronize)(event));
    });
  }
  static Code event_record(cudaEvent_t event, cudaStream_t stream) {
    return NOTED(DRIVER(cuEventRecord)(event, stream));
  }
  static Code event_record_with_flags(cudaEvent_t event, cudaStream_t stream) {
    return NOTED(
        DRIVER(cuEventRecordWithFlags)(event, stream, CU_EVENT_RECORD_DEFAULT));
  }
  static Code stream_wait_event(cudaStream_t stream, cudaEvent_t event) {
    return NOTED(
        DRIVER(cuStreamWaitEvent)(stream, event, CU_EVENT_WAIT_DEFAULT));
  }

  static Code device_set_mem_pool(int device, cudaMemPool_t pool) {
    return NOTED(DRIVER(cuDeviceSetMemPool)(device, pool));
  }
  static Code device_get_mem_pool(cudaMemPool_t* pool, int device) {
    return NOTED(DRIVER(cuDeviceGetMemPool)(pool, device));
  }
  static Code device_get_default_mem_pool(cudaMemPool_t* pool, int device) {
    return NOTED(DRIVER(cuDeviceGetDefaultMemPool)(pool, device));
  }
  static Code mem_set_mem_pool(cudaMemLocation place,
                               cudaMemAllocationType type, cudaMemPool_t pool) {
    CUmemLocation same = same_place(place);
    return NOTED(DRIVER(cuMemSetMemPool)(&same, same_type(type), pool));
  }
  static Code mem_get_mem_pool(cudaMemPool_t* pool, cudaMemLocation place,
                               cudaMemAllocationType type) {
    CUmemLocation same = same_place(place);
    return NOTED(DRIVER(cuMemGetMemPool)(pool, &same, same_type(type)));
  }
  static Code mem_get_default_mem_pool(cudaMemPool_t* pool,
                                       cudaMemLocation place,
                                       cudaMemAllocationType type) {
    CUmemLocation same = same_place(place);
    return NOTED(DRIVER(cuMemGetDefaultMemPool)(pool, &same, same_type(type)));
  }
  static Code malloc_async(void** memory, size_t bytes, cudaStream_t stream) {
    return NOTED(DRIVER(cuMemAllocAsync)(reinterpret_cast<CUdeviceptr*>(memory),
                                         bytes, stream));
  }
  static Code malloc_from_pool_async(void** memory, size_t bytes,
                                     cudaMemPool_t pool, cudaStream_t stream) {
    return NOTED(DRIVER(cuMemAllocFromPoolAsync)(
        reinterpret_cast<CUdeviceptr*>(memory), bytes, pool, stream));
  }
  static Code free_async(void* memory, cudaStream_t stream) {
    return NOTED(DRIVER(cuMemFreeAsync)(address_of(memory), stream));
  }
  static Code mem_pool_destroy(cudaMemPool_t pool) {
    return NOTED(DRIVER(cuMemPoolDestroy)(pool));
  }
  static Code mem_pool_get_attribute(cudaMemPool_t pool, cudaMemPoolAttr which,
                                     void* value) {
    return NOTED(DRIVER(cuMemPoolGetAttribute)(
        pool, static_cast<CUmemPool_attribute>(which), value));
  }
  static Code mem_pool_trim_to(cudaMemPool_t pool, size_t keep) {
    return NOTED(DRIVER(cuMemPoolTrimTo)(pool, keep));
  }
  static Code mem_pool_set_attribute(cudaMemPool_t pool, cudaMemPoolAttr which,
                                     void* value) {
    return NOTED(DRIVER(cuMemPoolSetAttribute)(
        pool, static_cast<CUmemPool_attribute>(which), value));
  }
  static Code mem_pool_set_access(cudaMemPool_t pool, int device,
                                  cudaMemAccessFlags flags) {
    CUmemAccessDesc wanted{};
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    wanted.flags = static_cast<CUmemAccess_flags>(flags);
    return NOTED(DRIVER(cuMemPoolSetAccess)(pool, &wanted, 1));
  }
  static Code mem_pool_create(cudaMemPool_t* pool,
                              const cudaMemPoolProps& wanted) {
    const auto same = same_bytes<CUmemPoolProps>(wanted);
    return until_fabric_is_ready(
        [&] { return NOTED(DRIVER(cuMemPoolCreate)(pool, &same)); });
  }
  static Code mem_pool_export_to_shareable_handle(
      void* handle, cudaMemPool_t pool, cudaMemAllocationHandleType type,
      unsigned flags = 0) {
    const auto same = static_cast<CUmemAllocationHandleType>(type);
    return until_fabric_is_ready([&] {
      return NOTED(
          DRIVER(cuMemPoolExportToShareableHandle)(handle, pool, same, flags));
    });
  }
  static Code mem_pool_import_from_shareable_handle(
      cudaMemPool_t* pool, void* handle, cudaMemAllocationHandleType type,
      unsigned flags = 0) {
    const auto same = static_cast<CUmemAllocationHandleType>(type);
    return until_fabric_is_ready([&] {
      return NOTED(DRIVER(cuMemPoolImportFromShareableHandle)(pool, handle,
                                                              same, flags));
    });
  }
  static Code mem_pool_export_pointer(cudaMemPoolPtrExportData* data,
                                      void* memory) {
    auto* const same = reinterpret_cast<CUmemPoolPtrExportData*>(data);
    return NOTED(DRIVER(cuMemPoolExportPointer)(same, address_of(memory)));
  }
  static Code mem_pool_import_pointer(void** memory, cudaMemPool_t pool,
                                      cudaMemPoolPtrExportData* data) {
    auto* const address = reinterpret_cast<CUdeviceptr*>(memory);
    auto* const same = reinterpret_cast<CUmemPoolPtrExportData*>(data);
    return NOTED(DRIVER(cuMemPoolImportPointer)(address, pool, same));
  }

 private:
  static CUmemLocation same_place(cudaMemLocation place) {
    return {static_cast<CUmemLocationType>(place.type), place.id};
  }
  static CUmemAllocationType same_type(cudaMemAllocationType type) {
    return static_cast<CUmemAllocationType>(type);
  }
};

/// Calls `body` with RuntimeApi and then with DriverApi. This function itself
/// makes no CUDA call, so the referee may use it.
template <class Body>
void for_each_api(Body body) {
  {
    SCOPED_TRACE(RuntimeApi::kName);
    body(RuntimeApi{});
  }
  SCOPED_TRACE(DriverApi::kName);
  body(DriverApi{});
}
/// The same as for_each_api(), for use in a role.
template <class Body>
void by_both_apis(Body body) {
  CALL(cudaFree(nullptr));  // the driver API needs a context
  for_each_api(body);
}
/// The end of a step's name: " by the runtime API". If several importers
/// receive a descriptor, each API needs its own step name. Otherwise a fast
/// importer could take the descriptor that a slow importer needs for the other
/// API.
template <class Api>
std::string by_the(Api) {
  return std::string(" by the ") + Api::kName;
}

/// The handle of legacy memory, by cudaIpcGetMemHandle or cuIpcGetMemHandle.
template <class Api>
cudaIpcMemHandle_t handle_of(Api api, const Words& memory) {
  Sentinel<cudaIpcMemHandle_t> handle;
  CALL(api.ipc_get_mem_handle(handle.out(), memory.data));
  return handle.result();
}

/// Opens a handle with cudaIpcOpenMemHandle or cuIpcOpenMemHandle, and returns
/// the address. The caller must close the memory.
template <class Api>
void* open_handle(Api api, const cudaIpcMemHandle_t& handle) {
  Sentinel<void*> memory;
  CALL(api.ipc_open_mem_handle(memory.out(), handle));
  return memory.result();
}

/// A handle of legacy memory that is opened and closed by one API.
template <class Api>
class MappingBy : public Words {
 public:
  /// Opens; `bytes` is what the exporter allocated.
  MappingBy(Api api, const cudaIpcMemHandle_t& handle, size_t bytes)
      : Words(open_handle(api, handle), bytes) {}
  MappingBy(const MappingBy&) = delete;
  ~MappingBy() {
    if (data != nullptr) Api::ipc_close_mem_handle(data);
  }

  /// Closes now, not in the destructor, for tests of this step.
  void close() {
    CALL(Api::ipc_close_mem_handle(data));
    data = nullptr;
  }
};

/// Memory of the current pool, by cudaMallocAsync or cuMemAllocAsync.
template <class Api>
AsyncBuffer allocated(Api api, size_t bytes, cudaStream_t stream = nullptr) {
  Sentinel<void*> memory;
  CALL(api.malloc_async(memory.out(), bytes, stream));
  return AsyncBuffer(Words(memory.result(), bytes));
}

/// Memory of this pool, by cudaMallocFromPoolAsync or cuMemAllocFromPoolAsync.
template <class Api>
AsyncBuffer allocated(Api api, cudaMemPool_t pool, size_t bytes,
                      cudaStream_t stream = nullptr) {
  Sentinel<void*> memory;
  CALL(api.malloc_from_pool_async(memory.out(), bytes, pool, stream));
  return AsyncBuffer(Words(memory.result(), bytes));
}

/// Does the runtime have the attributes that say how a pool was made? CUDA 13.2
/// added them. The driver may be newer than the runtime.
inline bool runtime_knows_how_pools_were_made() {
  Sentinel<int> version;
  CALL(cudaRuntimeGetVersion(version.out()));
  return version.result() >= 13020;
}

/// A new pool, by cudaMemPoolCreate or cuMemPoolCreate.
template <class Api>
Pool created(Api api, const cudaMemPoolProps& wanted = pool_properties()) {
  Sentinel<cudaMemPool_t> pool;
  CALL(api.mem_pool_create(pool.out(), wanted));
  return Pool(pool.result());
}

/// A file descriptor of a pool, for another process.
template <class Api>
Descriptor exported(Api api, cudaMemPool_t pool) {
  Sentinel<int> descriptor;
  CALL(api.mem_pool_export_to_shareable_handle(
      descriptor.out(), pool, cudaMemHandleTypePosixFileDescriptor));
  return Descriptor(descriptor.result());
}
/// The data that another process needs to import an allocation.
template <class Api>
cudaMemPoolPtrExportData exported(Api api, const Words& memory) {
  Sentinel<cudaMemPoolPtrExportData> data;
  CALL(api.mem_pool_export_pointer(data.out(), memory.data));
  return data.result();
}

/// Imports the pool of another process. The caller still closes the descriptor.
template <class Api>
Pool imported(Api api, const Descriptor& shared) {
  // The pointer argument contains the descriptor itself.
  void* const handle =
      reinterpret_cast<void*>(static_cast<intptr_t>(shared.get()));
  Sentinel<cudaMemPool_t> pool;
  CALL(api.mem_pool_import_from_shareable_handle(
      pool.out(), handle, cudaMemHandleTypePosixFileDescriptor));
  return Pool(pool.result());
}
/// Imports an allocation of another process. `bytes` is the size of the
/// allocation in the exporter.
template <class Api>
AsyncBuffer imported(Api api, cudaMemPool_t pool, cudaMemPoolPtrExportData data,
                     size_t bytes) {
  Sentinel<void*> memory;
  CALL(api.mem_pool_import_pointer(memory.out(), pool, &data));
  return AsyncBuffer(Words(memory.result(), bytes));
}

/// Frees with cudaFreeAsync or cuMemFreeAsync and judges the call. After that
/// the memory has no owner, even if the call fails.
template <class Api>
void expect_free_async(Api api, AsyncBuffer& buffer,
                       cudaStream_t stream = nullptr) {
  EXPECT_SUCCESS(api.free_async(std::exchange(buffer.data, nullptr), stream));
}
/// The same for cudaFree or cuMemFree.
template <class Api>
void expect_free(Api api, AsyncBuffer& buffer) {
  EXPECT_SUCCESS(api.mem_free(std::exchange(buffer.data, nullptr)));
}

/// The body of an exporter. It does the same as the body of lends_from_pool,
/// first by one API and then by the other.
inline std::function<void(Role&)> lends_by_both_apis(Pattern written,
                                                     size_t bytes) {
  return [=](Role& me) {
    by_both_apis([&](auto api) {
      const Pool pool = created(api, shareable());
      me.send_descriptor("pool", exported(api, pool).get());
      const AsyncBuffer buffer = allocated(api, pool, bytes);
      buffer.fill(written);
      me.send("pointer", exported(api, buffer));
      me.wait("freed");
    });
  };
}

/// Do cudaEventQuery and cuEventQuery say that the event's work is pending?
inline testing::AssertionResult is_pending(cudaEvent_t event) {
  const auto by_runtime = gives(RuntimeApi::event_query(event),
                                "cudaEventQuery", RuntimeApi::kNotReady);
  return by_runtime ? gives(DriverApi::event_query(event), "cuEventQuery",
                            DriverApi::kNotReady)
                    : by_runtime;
}
/// Do both functions say that the event's work is done?
inline testing::AssertionResult is_done(cudaEvent_t event) {
  const auto by_runtime =
      gives(RuntimeApi::event_query(event), "cudaEventQuery", cudaSuccess);
  return by_runtime ? gives(DriverApi::event_query(event), "cuEventQuery",
                            CUDA_SUCCESS)
                    : by_runtime;
}

}  // namespace ipclab
