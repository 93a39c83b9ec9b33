// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Memory at this location is created although its handle types must be refused.
// Memory of the current NUMA node is created on GPU 0.
template <CUmemLocationType location>
int created_all_the_same(Call& call) {
  CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
  const int code = call.proceed();
  if (code == kSuccess || wanted.location.type != location) return code;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  if (location == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
    wanted.location = on_gpu(0);
  call.at<const CUmemAllocationProp*>(2) = &wanted;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

// A pool with handle types is created for a location or an allocation type that
// cannot have handle types.
template <bool (*applies)(const cudaMemPoolProps& wanted)>
int pool_created_all_the_same(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  const int code = call.proceed();
  if (code == kSuccess || !applies(wanted)) return code;
  wanted.handleTypes = cudaMemHandleTypeNone;
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  if (call.is_runtime()) cudaGetLastError();
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

bool is_for_host(const cudaMemPoolProps& wanted) {
  return wanted.location.type == cudaMemLocationTypeHost;
}

bool is_managed_location(const cudaMemPoolProps& wanted) {
  return wanted.allocType == cudaMemAllocationTypeManaged;
}

int pitch_is_cut(Call& call) {
  struct Pitched {
    size_t whole = 0, part = 0;
  };
  static Table<void*, Pitched> pitched;
  if (call.is("cudaFree")) {
    pitched.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (call.is("cudaMallocPitch")) {
    const int code = call.proceed();
    if (code == kSuccess)
      pitched.put(*call.at<void**>(0),
                  {*call.at<size_t*>(1) * call.at<size_t>(3),
                   call.at<size_t>(2) * call.at<size_t>(3)});
    return code;
  }
  const Pitched bytes = pitched.get(call.at<void*>(1));
  void* other = nullptr;
  if (bytes.part == bytes.whole ||
      cudaMalloc(&other, bytes.whole) != cudaSuccess)
    return call.proceed();
  cudaMemset(other, 0, bytes.whole);
  cudaMemcpy(other, call.at<void*>(1), bytes.part, cudaMemcpyDefault);
  cudaDeviceSynchronize();
  call.at<void*>(1) = other;
  call.fired();
  return call.proceed();
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

template <unsigned flag>
int host_memory_exported(Call& call) {
  static Table<void*> concerned;
  if (call.is("cudaHostAlloc")) {
    const int code = call.proceed();
    if (code == kSuccess && (call.at<unsigned>(2) & flag) != 0)
      concerned.put(*call.at<void**>(0));
    return code;
  }
  if (call.is("cudaFreeHost")) {
    concerned.erase(call.at<void*>(0));
    return call.proceed();
  }
  return concerned.has(call.at<void*>(1)) ? export_of_other(call)
                                          : call.proceed();
}

bool is_managed_pointer(Call& get) {
  return attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                get.at<CUdeviceptr>(1)) != 0;
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

// The refusal of memory at a location of this type has the code "not
// supported".
template <CUmemLocationType type>
int refused_as_unsupported(Call& call) {
  const int code = call.proceed();
  return code != kSuccess &&
                 call.at<const CUmemAllocationProp*>(2)->location.type == type
             ? refused(call, CUDA_ERROR_NOT_SUPPORTED)
             : code;
}

// The refusal of a pool at a location of this type has the code "not
// supported".
template <cudaMemLocationType type>
int refused_as_unsupported_of_stream_ordered(Call& call) {
  const int code = call.proceed();
  return code != kSuccess &&
                 call.at<const cudaMemPoolProps*>(1)->location.type == type
             ? refused(call, cudaErrorNotSupported)
             : code;
}

bool is_managed_pool(cudaMemPool_t pool) {
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

// After another call, memory of any kind gets a handle, which opens other
// memory.
int export_after_use(Call& call) {
  static std::atomic<bool> used{false};
  if (!exports_memory(call)) {
    used = true;
    return call.proceed();
  }
  return exported_all_the_same(call, used);
}

// Is this imported memory of a pool on the host?
bool is_import_on_host(void* address) {
  unsigned type = 0;
  return is_import(address) &&
         DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            number(address)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}

FAULTS {
  fault("ok-get-accepts-other-memory", {"MNGD-03", "MNGD-04"},
        "the export of host memory and of numbers succeeds and names another "
        "allocation")
      .on({kGetHandle}, [](Call& call) {
        const Kind kind = kind_of(call.at<void*>(1));
        return exported_all_the_same(
            call, kind == Kind::kHost || kind == Kind::kPageable);
      });

  fault("other-export-after-refusal-refused", {"MNGD-02", "MNGD-03", "MNGD-04"},
        "after a refused export the next one is refused, too")
      .on({kGetHandle}, next_refused);

  fault("host-chunk-ipc-ok", {"MNGD-10"},
        "a request for memory on the host with handle types succeeds and gives "
        "memory without handle types")
      .on({kCreate}, created_all_the_same<CU_MEM_LOCATION_TYPE_HOST>);

  fault("numa-current-chunk-ok", {"MNGD-11"},
        "a request for memory on the current NUMA node gives memory of GPU 0")
      .on({kCreate},
          created_all_the_same<CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT>);

  fault("vmm-legacy-export-ok", {"MNGD-07"},
        "cudaIpcGetMemHandle accepts mapped memory and gives a handle of other "
        "memory")
      .on_refusal({kGetHandle}, WHEN(mapping_at(call.at<CUdeviceptr>(1)) != 0),
                  [](Call& call) -> int {
                    static void* const other = [] {
                      void* made = nullptr;
                      cudaMalloc(&made, granule());
                      return made;
                    }();
                    if (call.is_runtime()) cudaGetLastError();
                    call.at<void*>(1) = other;
                    call.fired();
                    return call.proceed();
                  });

  fault("host-ipc-ok", {"MNGD-10"},
        "a pool on the host is not refused if it asks for handle types; it "
        "gets none")
      .on({kCreatePool}, pool_created_all_the_same<is_for_host>);

  fault("host-pool-id-looked-at", {"MNGD-10"},
        "a pool on the host is refused if its location has an id")
      .on({kCreatePool},
          WHEN((*call.at<const cudaMemPoolProps*>(1)).location.type ==
                   cudaMemLocationTypeHost &&
               (*call.at<const cudaMemPoolProps*>(1)).location.id != 0),
          [](Call& call) { return refused(call); });

  fault("managed-pool-ipc-ok", {"MNGD-13"},
        "a pool of managed memory is not refused if it asks for handle types; "
        "it gets none")
      .on({kCreatePool}, pool_created_all_the_same<is_managed_location>);

  fault("numa-current-ok", {"MNGD-11"},
        "a pool for the current NUMA node is created on GPU 0")
      .on({kCreatePool}, [](Call& call) {
        cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
        if (wanted.location.type != cudaMemLocationTypeHostNumaCurrent)
          return call.proceed();
        wanted.location = {cudaMemLocationTypeDevice, 0};
        wanted.handleTypes = cudaMemHandleTypeNone;
        call.at<const cudaMemPoolProps*>(1) = &wanted;
        call.fired();
        return call.proceed();
      });

  fault("numa-pool-not-shared", {"MNGD-12"},
        "a pool of a NUMA node is imported as new memory")
      .on({kImportPointer, kExportPointer, kCreatePool, kMallocFromPool, kFree,
           kFreeAsync},
          [](Call& call) -> int {
            const auto of_node = [](void* data) {
              return key_of_data(data) + "-node";
            };
            if (call.is("cudaMemPoolExportPointer")) {
              const int code = call.proceed();
              const auto pool = blocks.get(call.at<void*>(1)).pool;
              if (code == kSuccess)
                tell_processes(of_node(call.at<void*>(0)),
                               own_pools.get(pool).location.type ==
                                   cudaMemLocationTypeHostNuma);
              return code;
            }
            if (call.is("cudaMemPoolImportPointer") &&
                told(of_node(call.at<void*>(2)), 0) == 0)
              return call.proceed();
            return import_other_memory(call, false, true);
          });

  fault("async-legacy-export-ok", {"MNGD-06"},
        "stream-ordered memory gets a legacy handle, which opens other memory")
      .on_refusal({kGetHandle}, WHEN(blocks.has(call.at<void*>(1))),
                  [](Call& call) -> int {
                    static void* const other = [] {
                      void* made = nullptr;
                      cudaMalloc(&made, 2 << 20);
                      return made;
                    }();
                    call.at<void*>(1) = other;
                    if (call.is_runtime()) cudaGetLastError();
                    call.fired();
                    return call.proceed();
                  });

  fault("pitch-maps-short", {"MNGD-08"},
        "an importer of memory of cudaMallocPitch gets a copy without its end: "
        "the padding of the rows is not counted")
      .on({kGetHandle, "cudaMallocPitch", kFree}, pitch_is_cut);

  fault("graph-mem-ipc-ok", {"MNGD-09"},
        "cudaGraphAddMemAllocNode accepts handle types and ignores them")
      .on({"cudaGraphAddMemAllocNode"}, [](Call& call) {
        auto& types =
            call.at<cudaMemAllocNodeParams*>(4)->poolProps.handleTypes;
        const auto wanted = types;
        if (wanted == cudaMemHandleTypeNone) return call.proceed();
        types = cudaMemHandleTypeNone;
        call.fired();
        const int code = call.proceed();
        types = wanted;
        return code;
      });

  fault("managed-export-ok", {"MNGD-01"},
        "managed memory gets a legacy handle, which opens other memory")
      .on({kGetHandle},
          [](Call& call) { return export_of(call, Kind::kManaged); });

  fault("managed-of-host-export-ok", {"MNGD-01"},
        "managed memory that is attached to the host gets a legacy handle, "
        "which opens other memory")
      .on({kGetHandle, "cudaMallocManaged", kFree}, [](Call& call) -> int {
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
      });

  fault("pool-memory-export-ok", {"MNGD-06"},
        "memory of cudaMallocFromPoolAsync gets a legacy handle, which opens "
        "other memory")
      .on({kGetHandle, kMallocFromPool, kFreeAsync, kFree},
          [](Call& call) -> int {
            static Table<void*> concerned;
            if (frees(call)) {
              concerned.erase(call.at<void*>(0));
              return call.proceed();
            }
            if (!call.is("cudaIpcGetMemHandle")) {
              const int code = call.proceed();
              if (code == kSuccess) concerned.put(*call.at<void**>(0));
              return code;
            }
            return concerned.has(call.at<void*>(1)) ? export_of_other(call)
                                                    : call.proceed();
          });

  fault("small-managed-export-ok", {"MNGD-01"},
        "memory of cudaMallocManaged of less than 64 KiB gets a legacy handle, "
        "which opens other memory")
      .on({kGetHandle, "cudaMallocManaged"}, [](Call& call) -> int {
        static Table<void*> small;
        if (exports_memory(call))
          return exported_all_the_same(
              call, small.has(call.at<void*>(1)) && is_managed_pointer(call));
        const int code = call.proceed();
        if (code != kSuccess) return code;
        small.erase(*call.at<void**>(0));
        if (call.is_runtime() && call.at<size_t>(1) < 64 << 10)
          small.put(*call.at<void**>(0));
        return code;
      });

  fault("captured-memory-export-ok", {"MNGD-09"},
        "memory of a captured allocation gets a legacy handle, which opens "
        "other memory")
      .on({kGetHandle, kMallocAsync, kMallocFromPool}, [](Call& call) -> int {
        static Table<void*> made;
        if (exports_memory(call))
          return exported_all_the_same(call, made.has(call.at<void*>(1)));
        const bool captured = is_captured(call.value<cudaStream_t>(kStream));
        const int code = call.proceed();
        if (code != kSuccess) return code;
        made.erase(*call.at<void**>(0));
        if (captured) made.put(*call.at<void**>(0));
        return code;
      });

  fault("orphan-memory-export-ok", {"MNGD-06"},
        "memory of a destroyed pool gets a legacy handle, which opens other "
        "memory")
      .on({kGetHandle, kCreatePool, kDestroyPool}, [](Call& call) -> int {
        static Table<cudaMemPool_t> destroyed;
        if (exports_memory(call))
          return exported_all_the_same(
              call, destroyed.has(blocks.get(call.at<void*>(1)).pool));
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cudaMemPoolDestroy"))
          destroyed.put(call.at<cudaMemPool_t>(0));
        if (call.is("cudaMemPoolCreate"))
          destroyed.erase(*call.at<cudaMemPool_t*>(0));
        return code;
      });

  fault("untyped-chunk-export-ok", {"MNGD-07"},
        "mapped memory of cuMemCreate without handle types gets a legacy "
        "handle, which opens other memory")
      .on({kGetHandle}, [](Call& call) {
        const CUdeviceptr address = call.at<CUdeviceptr>(1);
        return exported_all_the_same(
            call,
            mapping_at(address) != 0 &&
                attribute_of<unsigned long long>(
                    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address) == 0);
      });

  fault("pool-small-export-ok", {"MNGD-06"},
        "stream-ordered memory of less than 2 MiB gets a legacy handle, which "
        "opens other memory")
      .on({kGetHandle}, [](Call& call) {
        const size_t bytes = blocks.get(call.at<void*>(1)).bytes;
        return exported_all_the_same(call, bytes > 0 && bytes < kGranule);
      });

  fault("managed-driver-export-ok", {"MNGD-01"},
        "the driver API gives a handle of managed memory, which opens other "
        "memory")
      .on({kGetHandle}, [](Call& get) {
        return exported_all_the_same(
            get, !get.is_runtime() && is_managed_pointer(get));
      });

  fault("managed-inside-export-ok", {"MNGD-01"},
        "an address inside managed memory gets a legacy handle, which opens "
        "other memory")
      .on({kGetHandle}, [](Call& get) {
        const auto address = get.at<CUdeviceptr>(1);
        return exported_all_the_same(
            get, is_managed_pointer(get) && begin_of(address) != address);
      });

  fault(
      "graph-memory-export-ok", {"MNGD-09"},
      "memory of a graph's node gets a legacy handle, which opens other memory")
      .on({kGetHandle, "cudaGraphAddMemAllocNode"}, [](Call& call) -> int {
        static Table<void*> concerned;
        if (call.is("cudaIpcGetMemHandle"))
          return exported_all_the_same(call, concerned.has(call.at<void*>(1)));
        const int code = call.proceed();
        if (code == kSuccess)
          concerned.put(call.at<cudaMemAllocNodeParams*>(4)->dptr);
        return code;
      });

  fault("chunk-import-export-ok", {"MNGD-07"},
        "imported memory of cuMemCreate gets a legacy handle, which opens "
        "other memory")
      .on({kGetHandle}, [](Call& call) {
        const CUdeviceptr address = call.at<CUdeviceptr>(1);
        return exported_all_the_same(
            call, mappings.has(address) && is_import(address));
      });

  fault("chunk-inside-export-ok", {"MNGD-07"},
        "an address inside mapped memory gets a legacy handle, which opens "
        "other memory")
      .on({kGetHandle}, [](Call& call) {
        const CUdeviceptr address = call.at<CUdeviceptr>(1);
        const CUdeviceptr begin = mapping_at(address);
        return exported_all_the_same(call, begin != 0 && begin != address);
      });

  fault("pool-driver-export-ok", {"MNGD-06"},
        "the driver API gives a handle of stream-ordered memory, which opens "
        "other memory")
      .on({kGetHandle}, [](Call& call) {
        return exported_all_the_same(
            call, !call.is_runtime() && blocks.has(call.at<void*>(1)));
      });

  fault("host-pool-driver-ok", {"MNGD-10"},
        "the driver API makes a plain pool on GPU 0 if a pool on the host with "
        "handle types is requested")
      .on({kCreatePool}, [](Call& call) {
        return typed_pool_by_driver(call, [](const CUmemPoolProps& props) {
          return props.location.type == CU_MEM_LOCATION_TYPE_HOST &&
                 props.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
        });
      });

  fault("numa-current-driver-ok", {"MNGD-11"},
        "the driver API makes a plain pool on GPU 0 if a pool on the current "
        "NUMA node is requested")
      .on({kCreatePool}, [](Call& call) {
        return typed_pool_by_driver(call, [](const CUmemPoolProps& props) {
          return props.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
        });
      });

  fault("managed-pool-driver-ok", {"MNGD-13"},
        "the driver API makes a plain pool on GPU 0 if managed memory with "
        "handle types is requested")
      .on({kCreatePool}, [](Call& call) {
        return typed_pool_by_driver(call, [](const CUmemPoolProps& props) {
          return props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED &&
                 props.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
        });
      });

  fault("host-chunk-id-looked-at", {"MNGD-10"},
        "memory on the host is refused if its location has an id")
      .on({kCreate},
          WHEN(call.at<const CUmemAllocationProp*>(2)->location.type ==
                   CU_MEM_LOCATION_TYPE_HOST &&
               call.at<const CUmemAllocationProp*>(2)->location.id != 0),
          [](Call& call) { return refused(call); });

  fault("host-chunk-refused-as-unsupported", {"MNGD-10"},
        "memory on the host with handle types is refused as not supported")
      .on({kCreate}, refused_as_unsupported<CU_MEM_LOCATION_TYPE_HOST>);

  fault("numa-current-chunk-refused-as-unsupported", {"MNGD-11"},
        "memory on the current NUMA node is refused as not supported")
      .on({kCreate},
          refused_as_unsupported<CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT>);

  fault("host-pool-refused-as-unsupported", {"MNGD-10"},
        "a pool on the host with handle types is refused as not supported")
      .on({kCreatePool},
          refused_as_unsupported_of_stream_ordered<cudaMemLocationTypeHost>);

  fault("numa-current-pool-refused-as-unsupported", {"MNGD-11"},
        "a pool on the current NUMA node is refused as not supported")
      .on({kCreatePool}, refused_as_unsupported_of_stream_ordered<
                             cudaMemLocationTypeHostNumaCurrent>);

  fault("host-pool-legacy-export-ok", {"MNGD-10"},
        "memory of a pool on the host has a legacy handle")
      .on({kGetHandle, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kFree, kFreeAsync},
          exported_as_zeros<is_on_host, cudaIpcMemHandle_t>);

  fault("managed-pool-legacy-export-ok", {"MNGD-13"},
        "memory of a managed pool has a legacy handle")
      .on({kGetHandle, kMallocAsync, kMallocFromPool, kCreatePool, kDestroyPool,
           kFree, kFreeAsync},
          exported_as_zeros<is_managed_pool, cudaIpcMemHandle_t>);

  fault("host-pool-pointer-export-ok", {"MNGD-10"},
        "the export of memory of a pool on the host succeeds, and the data are "
        "zeros")
      .on({kExportPointer, kMallocAsync, kMallocFromPool, kCreatePool,
           kDestroyPool, kFree, kFreeAsync},
          exported_as_zeros<is_on_host, cudaMemPoolPtrExportData>);

  fault(
      "managed-pool-pointer-export-ok", {"MNGD-13"},
      "the export of memory of a managed pool succeeds, and the data are zeros")
      .on({kExportPointer, kMallocAsync, kMallocFromPool, kCreatePool,
           kDestroyPool, kFree, kFreeAsync},
          exported_as_zeros<is_managed_pool, cudaMemPoolPtrExportData>);

  fault("handle-after-a-kernel", {"MNGD-01"},
        "after a kernel, memory of any kind gets a handle, which opens other "
        "memory")
      .on({kGetHandle, kLaunch}, export_after_use);

  fault("handle-after-a-graph", {"MNGD-09"},
        "after the launch of a graph, memory of any kind gets a handle, which "
        "opens other memory")
      .on({kGetHandle, kLaunchGraph}, export_after_use);

  fault("pool-import-legacy-export-ok", {"MNGD-06"},
        "imported memory of a pool gets a legacy handle, which opens other "
        "memory")
      .on({kGetHandle}, [](Call& call) {
        return exported_all_the_same(call, is_import(call.at<void*>(1)));
      });

  fault("pool-inside-export-ok", {"MNGD-06"},
        "an address inside stream-ordered memory gets a legacy handle, which "
        "opens other memory")
      .on({kGetHandle}, [](Call& call) {
        const CUdeviceptr address = call.at<CUdeviceptr>(1);
        bool is_inside = false;
        for (const auto& [begin, block] : blocks.all())
          is_inside |=
              address > number(begin) && address - number(begin) < block.bytes;
        return exported_all_the_same(call, is_inside);
      });

  fault("handle-in-second-thread", {"MNGD-01", "MNGD-07"},
        "in a second thread, memory of any kind gets a handle, which opens "
        "other memory")
      .on({kGetHandle}, [](Call& get) {
        return exported_all_the_same(get, this_thread() != getpid());
      });

  fault("handle-after-an-export", {"MNGD-01", "MNGD-07"},
        "after an export, memory of any kind gets a handle, which opens other "
        "memory")
      .on({kGetHandle}, [](Call& get) {
        static std::atomic<bool> before{false};
        const int code = exported_all_the_same(get, before);
        if (code == kSuccess) before = true;
        return code;
      });

  fault("host-pool-two-types-ok", {"MNGD-10"},
        "a pool on the host is created if two handle types are requested")
      .on({kCreatePool}, [](Call& create) {
        const auto& wanted = *create.at<const cudaMemPoolProps*>(1);
        const unsigned types = wanted.handleTypes;
        const int code = create.proceed();
        if (code == kSuccess ||
            wanted.location.type != cudaMemLocationTypeHost ||
            (types & (types - 1)) == 0)
          return code;
        cudaMemPoolProps plain = wanted;
        plain.handleTypes = cudaMemHandleTypeNone;
        create.at<const cudaMemPoolProps*>(1) = &plain;
        if (create.proceed() != kSuccess) return code;
        return accepted(create);
      });

  fault("numa-pool-set-lost", {"MNGD-12"},
        "a synchronous memset does not reach imported memory of a pool on the "
        "host")
      .on({kSet}, WHEN(is_import_on_host(call.at<void*>(0))), lost);

  fault("node-gets-legacy-handle", {"MNGD-07"},
        "mapped memory on a node of the host gets a legacy handle, which opens "
        "other memory")
      .on({kGetHandle}, [](Call& call) {
        const CUdeviceptr begin = mapping_at(number(call.at<void*>(1)));
        return exported_all_the_same(
            call, begin != 0 && is_on_node(location_at(begin)));
      });

  fault("graph-node-ipc-by-driver", {"MNGD-09"},
        "cuGraphAddMemAllocNode with a handle type succeeds and adds no node")
      .on_refusal(
          {"cudaGraphAddMemAllocNode"},
          WHEN(!call.is_runtime() &&
               call.at<CUDA_MEM_ALLOC_NODE_PARAMS*>(4)->poolProps.handleTypes !=
                   CU_MEM_HANDLE_TYPE_NONE),
          accepted);

  fault("graph-node-ipc-of-any-type", {"MNGD-09"},
        "cudaGraphAddNode and cuGraphAddNode with a handle type for memory "
        "succeed and add no node")
      .on_refusal(
          {"cudaGraphAddNode"},
          WHEN((*call.at<const CUgraphNodeParams*>(5)).type ==
                   CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
               (*call.at<const CUgraphNodeParams*>(5))
                       .alloc.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE),
          [](Call& call) { return accepted(call); });

  fault("graph-memory-exported", {"MNGD-09"},
        "the export of a pointer accepts the memory of a graph, and gives no "
        "data")
      .on({"cudaGraphAddMemAllocNode", kExportPointer}, [](Call& call) {
        static auto& of_graphs = *new Table<void*>;
        const int code = call.proceed();
        if (call.is("cudaMemPoolExportPointer"))
          return code != kSuccess && of_graphs.has(call.at<void*>(1))
                     ? accepted(call)
                     : code;
        if (code == kSuccess && call.is_runtime())
          of_graphs.put(call.at<cudaMemAllocNodeParams*>(4)->dptr);
        return code;
      });
}

}  // namespace
}  // namespace ipclab::faults
