// SPDX-License-Identifier: Apache-2.0
// The driver API: the attributes of a pointer.
#include <cstring>

#include "core/chunk.h"
#include "core/memory.h"
#include "core/pool.h"
#include "core/vmm.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

template <typename T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// The size of an attribute's value in bytes; 0 for an attribute that does not
// exist.
size_t width_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return 4;
    default:
      return 0;
  }
}

// The device of some memory. For host memory, and for a GPU that is hidden from
// this process, it is the device of the memory's context; without such a
// context, it is the current device.
int ordinal_of(const Allocation& memory) {
  const int ordinal = ordinal_of_gpu(memory.gpu);
  const CUcontext user =
      memory.context != nullptr ? memory.context : current_context();
  return ordinal >= 0 ? ordinal : user->device;
}

AddressFacts facts_of(uint64_t address) {
  const CUcontext current = current_context();
  return address_facts(address, current != nullptr ? current->device : 0);
}

CUresult read_attribute(void* data, CUpointer_attribute attribute,
                        const AddressFacts& facts, uint64_t address) {
  const Allocation& memory = *facts.memory;
  const std::optional<Range>& range = facts.range;
  const bool managed = memory.kind == Kind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Memory of pools and mappings belongs to no context.
      return put(data, memory.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(
          data, memory.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (memory.chunk != nullptr ? memory.host_access == kNone
                                  : !memory.on_host() && !managed) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<unsigned>(data, memory.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(data, memory.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<unsigned>(data, managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, ordinal_of(memory));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned>(data, memory.kind == Kind::kDevice);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      // For a mapping, this is the whole reservation.
      return put(data, range ? range->address : memory.address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, range ? range->size : memory.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<uint64_t>(data,
                           memory.chunk == nullptr
                               ? 0
                               : memory.chunk->properties.requestedHandleTypes);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<unsigned>(
          data, memory.chunk != nullptr &&
                    memory.chunk->properties.allocFlags.gpuDirectRDMACapable);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
      const Access access =
          memory.kind == Kind::kRegistered ? kReadWrite : facts.access;
      return put<unsigned>(
          data, access == kReadWrite
                    ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                : access == kRead ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                                  : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, memory.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, memory.mapping_size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, memory.mapping);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<uint64_t>(data,
                           memory.block != nullptr ? memory.block->id() : 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The attributes of an address that is reserved, but has no memory.
CUresult read_attribute(void* data, CUpointer_attribute attribute,
                        const Range& range) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, range.address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, range.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<unsigned>(data, 0);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuPointerGetAttribute(void* data,
                                                 CUpointer_attribute attribute,
                                                 CUdeviceptr address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (data == nullptr || width_of(attribute) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const AddressFacts facts = facts_of(address);
  if (facts.memory) return read_attribute(data, attribute, facts, address);
  return facts.range ? read_attribute(data, attribute, *facts.range)
                     : CUDA_ERROR_INVALID_VALUE;
}

IPCLAB_DRIVER_API CUresult
cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                       void** data, CUdeviceptr address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (attributes == nullptr || data == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const AddressFacts facts = facts_of(address);
  for (unsigned i = 0; i < count; ++i) {
    const size_t width = width_of(attributes[i]);
    if (width == 0) return CUDA_ERROR_INVALID_VALUE;
    // "If a given attribute does not apply, its default value is returned."
    std::memset(data[i], 0, width);
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      put<int>(data[i], -2);  // CU_DEVICE_INVALID
    }
    if (facts.memory) read_attribute(data[i], attributes[i], facts, address);
  }
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuPointerSetAttribute(const void* value,
                                                 CUpointer_attribute attribute,
                                                 CUdeviceptr address) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  unsigned on = 0;
  std::memcpy(&on, value, sizeof on);
  return set_sync_memops(address, on != 0);
}
