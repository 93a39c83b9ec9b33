// The calls of steps on objects of memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cstdlib>

#include "harness/explore/role.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/vmm.h"

namespace ipclab::explore {
namespace {

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kPoolFd = cudaMemHandleTypePosixFileDescriptor;
constexpr CUmemLocation kNode{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};

// Calls `body` with the API of the step; returns its code as a number.
template <class Body>
int by_api(const Step& step, Body body) {
  return step.api == 0 ? static_cast<int>(body(RuntimeApi{}))
                       : static_cast<int>(body(DriverApi{}));
}

template <class T>
void give(Parcel& parcel, const T& value) {
  parcel.bytes.assign(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T take(const Parcel& parcel) {
  T value{};
  std::memcpy(&value, parcel.bytes.data(),
              std::min(sizeof value, parcel.bytes.size()));
  return value;
}

int host_alloc(const Step& step, Objects::Memory* made) {
  void* data = nullptr;
  const auto bytes = static_cast<size_t>(step.bytes);
  made->host_kind = step.how;
  made->device = false;
  int code = 0;
  switch (step.how) {
    case kMallocHost:
      code = step.api == 0
                 ? static_cast<int>(cudaMallocHost(&data, bytes))
                 : static_cast<int>(DRIVER(cuMemAllocHost)(&data, bytes));
      break;
    case kHostAlloc:
      code =
          step.api == 0
              ? static_cast<int>(cudaHostAlloc(
                    &data, bytes, cudaHostAllocMapped | cudaHostAllocPortable))
              : static_cast<int>(DRIVER(cuMemHostAlloc)(
                    &data, bytes,
                    CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
      break;
    case kRegistered:
      data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) return cudaErrorMemoryAllocation;
      code = step.api == 0
                 ? static_cast<int>(
                       cudaHostRegister(data, bytes, cudaHostRegisterDefault))
                 : static_cast<int>(DRIVER(cuMemHostRegister)(data, bytes, 0));
      break;
    default:
      code = cudaMallocManaged(&data, bytes, cudaMemAttachGlobal);
  }
  made->data = static_cast<char*>(data);
  return code;
}

int host_free(const Step& step, const Objects::Memory& memory) {
  if (memory.host_kind == kRegistered) {
    const int code =
        step.api == 0
            ? static_cast<int>(cudaHostUnregister(memory.data))
            : static_cast<int>(DRIVER(cuMemHostUnregister)(memory.data));
    munmap(memory.data, static_cast<size_t>(memory.bytes));
    return code;
  }
  if (memory.host_kind == kManaged) return cudaFree(memory.data);
  return step.api == 0 ? static_cast<int>(cudaFreeHost(memory.data))
                       : static_cast<int>(DRIVER(cuMemFreeHost)(memory.data));
}

int buffer_id(const char* data, unsigned long long* id) {
  return DRIVER(cuPointerGetAttribute)(id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                       address_of(data));
}

// Have all addresses of the memory one id, and no other memory this id?
int ask_buffer_id(Objects& objects, const Step& step, Answer& answer) {
  const char* const data = objects.memory.at(step.on).data;
  unsigned long long first = 0, second = 0, other = 0;
  int code = buffer_id(data + step.at, &first);
  if (code == 0) code = buffer_id(data, &second);
  if (code == 0) code = buffer_id(objects.memory.at(step.from).data, &other);
  bool unique = step.from == step.on || other != first;
  if (step.value == 1) {  // this process has allocated it
    const std::pair<int64_t, int> mine{objects.epoch, step.on};
    const std::lock_guard<std::mutex> lock(objects.mutex);
    unique =
        unique &&
        objects.buffer_ids.try_emplace(first, mine).first->second == mine &&
        objects.ids_of.try_emplace(mine, first).first->second == first;
  }
  answer.value = first == second && unique ? 1 : 0;
  return code;
}

int ask_runtime(const char* data, Answer& answer) {
  int device = -1;
  int code = cudaGetDevice(&device);
  cudaPointerAttributes seen{};
  if (code == 0) code = cudaPointerGetAttributes(&seen, data);
  answer.value = seen.type == cudaMemoryTypeDevice &&
                 seen.devicePointer == data && seen.hostPointer == nullptr;
  return code;
}

int ask_chunk(Objects& objects, const Step& step, Answer& answer) {
  CUmemAllocationProp seen;
  std::memset(static_cast<void*>(&seen), 0x5a, sizeof seen);
  const int code = DRIVER(cuMemGetAllocationPropertiesFromHandle)(
      &seen, objects.chunks.at(step.on));
  answer.value =
      seen.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
      seen.location.type ==
          (step.how == kOnNode ? kNode.type : CU_MEM_LOCATION_TYPE_DEVICE) &&
      seen.location.id == step.value;
  return code;
}

int ask_pointer(Objects& objects, const Step& step, Answer& answer) {
  if (step.how == kBufferId) return ask_buffer_id(objects, step, answer);
  const Objects::Memory memory = objects.memory.at(step.on);
  const char* const data = memory.data + step.at;
  const CUdeviceptr address = address_of(data);
  if (step.how == kRuntimeView) return ask_runtime(data, answer);
  if (step.how == kAccessAttribute) {
    int flags = 0;
    const int code = DRIVER(cuPointerGetAttribute)(
        &flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address);
    answer.value = flags;
    return code;
  }
  if (step.how == kAccess || step.how == kCpuAccess) {
    const CUmemLocation gpu{CU_MEM_LOCATION_TYPE_DEVICE, objects.gpu};
    unsigned long long flags = 0;
    const int code = DRIVER(cuMemGetAccess)(
        &flags, step.how == kAccess ? &gpu : &kNode, address);
    answer.value = static_cast<int64_t>(flags);
    return code;
  }
  if (step.how == kRange || step.how == kContains) {
    CUdeviceptr base = 0;
    size_t size = 0;
    const int code = DRIVER(cuMemGetAddressRange)(&base, &size, address);
    const CUdeviceptr start = address_of(memory.data);
    answer.value =
        step.how == kContains
            ? base <= start &&
                  start + static_cast<CUdeviceptr>(memory.bytes) <= base + size
        : base == start ? static_cast<int64_t>(size)
                        : -1;
    return code;
  }
  if (step.api == 1) {
    CUmemorytype type{};
    const int code = DRIVER(cuPointerGetAttribute)(
        &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    answer.value = type;
    return code;
  }
  cudaPointerAttributes attributes{};
  const int code = cudaPointerGetAttributes(&attributes, data);
  answer.value = attributes.type;
  return code;
}

int perform_chunk(Objects& objects, const Step& step, Parcel& parcel,
                  Answer& answer) {
  const auto bytes = static_cast<size_t>(step.bytes);
  switch (step.op) {
    case Op::kCreateChunk: {
      CUmemAllocationProp wanted = chunk_of(objects.gpu);
      if (step.how == kOnNode) wanted.location = kNode;
      CUmemGenericAllocationHandle made = 0;
      const int code = DRIVER(cuMemCreate)(&made, bytes, &wanted, 0);
      objects.chunks.put(step.id, made);
      return code;
    }
    case Op::kExportChunk: {
      int descriptor = -1;
      const int code = DRIVER(cuMemExportToShareableHandle)(
          &descriptor, objects.chunks.at(step.on), kFd, 0);
      parcel.descriptor = Descriptor(descriptor);
      return code;
    }
    case Op::kImportChunk: {
      CUmemGenericAllocationHandle made = 0;
      const int code = DRIVER(cuMemImportFromShareableHandle)(
          &made, by_value(parcel.descriptor.get()), kFd);
      parcel.descriptor.close();
      objects.chunks.put(step.id, made);
      return code;
    }
    case Op::kReleaseChunk: {
      const auto chunk = objects.chunks.at(step.on);
      objects.chunks.erase(step.on);
      return DRIVER(cuMemRelease)(chunk);
    }
    case Op::kRetainChunk: {
      CUmemGenericAllocationHandle made = 0;
      const int code = DRIVER(cuMemRetainAllocationHandle)(
          &made, objects.memory.at(step.on).data);
      objects.chunks.put(step.id, made);
      return code;
    }
    case Op::kReserve: {
      CUdeviceptr address = 0;
      const int code = DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0);
      objects.ranges.put(step.id, {address, step.bytes});
      return code;
    }
    case Op::kUnreserve: {
      const Objects::Range range = objects.ranges.at(step.on);
      objects.ranges.erase(step.on);
      return DRIVER(cuMemAddressFree)(range.address,
                                      static_cast<size_t>(range.bytes));
    }
    case Op::kMap: {
      const CUdeviceptr address = objects.ranges.at(step.from).address +
                                  static_cast<CUdeviceptr>(step.at);
      Objects::Memory made;
      made.data = reinterpret_cast<char*>(address);
      made.bytes = step.bytes;
      answer.address = address;
      objects.memory.put(step.id, made);
      return DRIVER(cuMemMap)(address, bytes, 0, objects.chunks.at(step.on), 0);
    }
    case Op::kSetAccess: {
      const Objects::Memory memory = objects.memory.at(step.on);
      CUmemAccessDesc access =
          access_for(objects.gpu, static_cast<CUmemAccess_flags>(step.value));
      if (step.how == kOnNode) access.location = kNode;
      return DRIVER(cuMemSetAccess)(
          address_of(memory.data),
          static_cast<size_t>(step.rows > 1 ? step.bytes : memory.bytes),
          &access, 1);
    }
    default: {  // kUnmap
      const Objects::Memory memory = objects.memory.at(step.on);
      objects.memory.erase(step.on);
      return DRIVER(cuMemUnmap)(address_of(memory.data),
                                static_cast<size_t>(memory.bytes));
    }
  }
}

int perform_pool(Objects& objects, const Step& step, Parcel& parcel,
                 Answer& answer) {
  switch (step.op) {
    case Op::kCreatePool: {
      const cudaMemPoolProps wanted = pool_properties(
          step.value != 0 ? kPoolFd : cudaMemHandleTypeNone, 0, objects.gpu);
      cudaMemPool_t made = nullptr;
      const int code = by_api(
          step, [&](auto api) { return api.mem_pool_create(&made, wanted); });
      objects.pools.put(step.id, made);
      return code;
    }
    case Op::kExportPool: {
      int descriptor = -1;
      const int code = by_api(step, [&](auto api) {
        return api.mem_pool_export_to_shareable_handle(
            &descriptor, objects.pools.at(step.on), kPoolFd);
      });
      parcel.descriptor = Descriptor(descriptor);
      return code;
    }
    case Op::kImportPool: {
      cudaMemPool_t made = nullptr;
      const int code = by_api(step, [&](auto api) {
        return api.mem_pool_import_from_shareable_handle(
            &made, by_value(parcel.descriptor.get()), kPoolFd);
      });
      parcel.descriptor.close();
      objects.pools.put(step.id, made);
      // A pool of another GPU can at first be used only there.
      return code != 0 || step.value == objects.gpu
                 ? code
                 : static_cast<int>(give_access(objects.gpu, made));
    }
    case Op::kDestroyPool: {
      const cudaMemPool_t pool = objects.pools.at(step.on);
      objects.pools.erase(step.on);
      return by_api(step, [&](auto api) { return api.mem_pool_destroy(pool); });
    }
    case Op::kPoolAlloc: {
      Objects::Memory made;
      made.bytes = step.bytes;
      const int code = by_api(step, [&](auto api) {
        if (step.how == kFromCurrent)
          return api.malloc_async(reinterpret_cast<void**>(&made.data),
                                  static_cast<size_t>(step.bytes),
                                  objects.stream_of(step));
        return api.malloc_from_pool_async(reinterpret_cast<void**>(&made.data),
                                          static_cast<size_t>(step.bytes),
                                          objects.pools.at(step.on),
                                          objects.stream_of(step));
      });
      objects.memory.put(step.id, made);
      return code;
    }
    case Op::kExportPointer: {
      cudaMemPoolPtrExportData data{};
      const int code = by_api(step, [&](auto api) {
        return api.mem_pool_export_pointer(&data,
                                           objects.memory.at(step.on).data);
      });
      give(parcel, data);
      return code;
    }
    case Op::kImportPointer: {
      auto data = take<cudaMemPoolPtrExportData>(parcel);
      parcel.bytes.clear();
      Objects::Memory made;
      const int code = by_api(step, [&](auto api) {
        return api.mem_pool_import_pointer(reinterpret_cast<void**>(&made.data),
                                           objects.pools.at(step.on), &data);
      });
      objects.memory.put(step.id, made);
      return code;
    }
    case Op::kFreeAsync: {
      const Objects::Memory memory = objects.memory.at(step.on);
      objects.memory.erase(step.on);
      return by_api(step, [&](auto api) {
        return api.free_async(memory.data, objects.stream_of(step));
      });
    }
    case Op::kTrimPool:
      return by_api(step, [&](auto api) {
        return api.mem_pool_trim_to(objects.pools.at(step.on),
                                    static_cast<size_t>(step.value));
      });
    case Op::kSetThreshold: {
      constexpr cudaMemPoolAttr kNames[] = {cudaMemPoolAttrReleaseThreshold,
                                            cudaMemPoolAttrUsedMemHigh,
                                            cudaMemPoolAttrReservedMemHigh};
      auto value = static_cast<uint64_t>(step.value);
      return by_api(step, [&](auto api) {
        return api.mem_pool_set_attribute(objects.pools.at(step.on),
                                          kNames[step.how], &value);
      });
    }
    case Op::kSetPool: {
      cudaMemPool_t pool = nullptr;
      if (step.on != 0) {
        pool = objects.pools.at(step.on);
      } else {
        const int code = cudaDeviceGetDefaultMemPool(&pool, objects.gpu);
        if (code != 0) return code;
      }
      return by_api(step, [&](auto api) {
        return api.device_set_mem_pool(objects.gpu, pool);
      });
    }
    default: {  // kAskPool
      constexpr cudaMemPoolAttr kNames[] = {
          cudaMemPoolAttrUsedMemCurrent, cudaMemPoolAttrReleaseThreshold,
          cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemCurrent,
          cudaMemPoolAttrReservedMemHigh};
      uint64_t value = 0;
      const int code = by_api(step, [&](auto api) {
        return api.mem_pool_get_attribute(objects.pools.at(step.on),
                                          kNames[step.how], &value);
      });
      answer.value = static_cast<int64_t>(value);
      return code;
    }
  }
}

}  // namespace

int perform_memory(Objects& objects, const Step& step, Parcel& parcel,
                   Answer& answer) {
  switch (step.op) {
    case Op::kMalloc: {
      Objects::Memory made;
      made.bytes = step.bytes;
      const auto bytes = static_cast<size_t>(step.bytes);
      void** const out = reinterpret_cast<void**>(&made.data);
      const int code = step.api == 0
                           ? static_cast<int>(cudaMalloc(out, bytes))
                           : static_cast<int>(DRIVER(cuMemAlloc)(
                                 reinterpret_cast<CUdeviceptr*>(out), bytes));
      objects.memory.put(step.id, made);
      return code;
    }
    case Op::kFree: {
      const Objects::Memory memory = objects.memory.at(step.on);
      objects.memory.erase(step.on);
      return by_api(step, [&](auto api) { return api.mem_free(memory.data); });
    }
    case Op::kExportMemory: {
      cudaIpcMemHandle_t handle{};
      const int code = by_api(step, [&](auto api) {
        return api.ipc_get_mem_handle(&handle, objects.memory.at(step.on).data);
      });
      give(parcel, handle);
      return code;
    }
    case Op::kOpenMemory: {
      Objects::Memory made;
      const auto handle = take<cudaIpcMemHandle_t>(parcel);
      parcel.bytes.clear();
      const int code = by_api(step, [&](auto api) {
        return api.ipc_open_mem_handle(reinterpret_cast<void**>(&made.data),
                                       handle);
      });
      answer.address = address_of(made.data);
      objects.memory.put(step.id, made);
      return code;
    }
    case Op::kCloseMemory: {
      const Objects::Memory memory = objects.memory.at(step.on);
      objects.memory.erase(step.on);
      return by_api(step, [&](auto api) {
        return api.ipc_close_mem_handle(memory.data);
      });
    }
    case Op::kHostAlloc: {
      Objects::Memory made;
      made.bytes = step.bytes;
      const int code = host_alloc(step, &made);
      objects.memory.put(step.id, made);
      return code;
    }
    case Op::kHostFree: {
      const Objects::Memory memory = objects.memory.at(step.on);
      objects.memory.erase(step.on);
      return host_free(step, memory);
    }
    case Op::kHostWrite: {
      char* const data = objects.memory.at(step.on).data + step.at;
      for (int64_t i = 0; i < step.bytes; ++i)
        data[i] = static_cast<char>(pattern_byte(
            static_cast<uint32_t>(step.value), static_cast<uint64_t>(i)));
      return 0;
    }
    case Op::kHostRead:
      parcel.bytes.assign(objects.memory.at(step.on).data + step.at,
                          static_cast<size_t>(step.bytes));
      return 0;
    case Op::kAskPointer:
      return ask_pointer(objects, step, answer);
    case Op::kAskChunk:
      return ask_chunk(objects, step, answer);
    case Op::kCreatePool:
    case Op::kExportPool:
    case Op::kImportPool:
    case Op::kDestroyPool:
    case Op::kPoolAlloc:
    case Op::kExportPointer:
    case Op::kImportPointer:
    case Op::kFreeAsync:
    case Op::kTrimPool:
    case Op::kSetThreshold:
    case Op::kAskPool:
    case Op::kSetPool:
      return perform_pool(objects, step, parcel, answer);
    default:
      return perform_chunk(objects, step, parcel, answer);
  }
}

}  // namespace ipclab::explore
