// SPDX-License-Identifier: Apache-2.0
// Physical memory without an address.
#include "core/chunk.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "core/capacity.h"
#include "core/device.h"
#include "core/fabric.h"
#include "core/machine.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

constexpr int kPosix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

CUmemGenericAllocationHandle add(Machine& machine,
                                 std::shared_ptr<Chunk> chunk) {
  chunk->handle = unique_id();
  chunk->references = 1;
  const CUmemGenericAllocationHandle handle = chunk->handle;
  machine.chunks[handle] = std::move(chunk);
  return handle;
}

bool is_numa_node(int id) {
  return id == 0 ||
         (id > 0 && std::filesystem::exists("/sys/devices/system/node/node" +
                                            std::to_string(id)));
}

CUresult check_location(const CUmemAllocationProp& wanted) {
  switch (wanted.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return is_device(wanted.location.id) ? CUDA_SUCCESS
                                           : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
      return wanted.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return is_numa_node(wanted.location.id) ? CUDA_SUCCESS
                                              : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check(const CUmemAllocationProp& wanted) {
  if (!profile().vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (wanted.type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      wanted.win32HandleMetaData != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return check_location(wanted);
}

CUresult check_handle_types(int types) {
  constexpr int kWindows =
      CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT;
  if ((types & ~(kPosix | kFabric | kWindows)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((types & ~profile().chunk_handles) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return (types & kFabric) != 0 && !has_imex_channel()
             ? CUDA_ERROR_NOT_PERMITTED
             : CUDA_SUCCESS;
}

bool is_reachable(int gpu) {
  if (gpu < 0) return true;
  for (const Device& device : devices()) {
    if (device.gpu == gpu || can_access_peer(device.gpu, gpu)) return true;
  }
  return false;
}

// Where imported memory is, with the ordinals of this process. For a GPU that
// is hidden from this process, returns the current device.
CUmemLocation location_of(const Label& label) {
  CUmemLocation location{static_cast<CUmemLocationType>(label.location_type),
                         label.location_id};
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return location;
  const int ordinal = ordinal_of_gpu(label.location_id);
  const CUcontext current = current_context();
  location.id = ordinal >= 0         ? ordinal
                : current != nullptr ? current->device
                                     : 0;
  return location;
}

int descriptor_of(void* shareable) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(shareable));
}

// Another process wrote the number, so it can be any number.
bool is_location_type(int32_t number) {
  return number == CU_MEM_LOCATION_TYPE_DEVICE ||
         number == CU_MEM_LOCATION_TYPE_HOST ||
         number == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// Takes over the descriptor; null if it is not a chunk's descriptor.
std::shared_ptr<Block> adopt(int descriptor) {
  std::shared_ptr<Block> block = Block::adopt(SharedFile::adopt(descriptor));
  if (block == nullptr) return nullptr;
  const Label label = block->label();
  return label.is_chunk != 0 && is_location_type(label.location_type) ? block
                                                                      : nullptr;
}

CUresult import(Machine& machine, std::shared_ptr<Block> block,
                CUmemGenericAllocationHandle* handle) {
  const Label label = block->label();
  if (!is_reachable(block->gpu())) return CUDA_ERROR_NOT_SUPPORTED;
  auto chunk = std::make_shared<Chunk>();
  chunk->imported = true;
  chunk->block = std::move(block);
  chunk->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  chunk->properties.location = location_of(label);
  chunk->properties.allocFlags.gpuDirectRDMACapable =
      static_cast<unsigned char>(label.rdma);
  *handle = add(machine, std::move(chunk));
  return CUDA_SUCCESS;
}

}  // namespace

Chunk::~Chunk() {
  if (!imported && block != nullptr) {
    give_back_bytes(block->gpu(), block->size());
  }
}

std::shared_ptr<Block> adopt_chunk(int descriptor) {
  return adopt(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
}

std::shared_ptr<Chunk> find_chunk(Machine& machine,
                                  CUmemGenericAllocationHandle handle) {
  const auto found = machine.chunks.find(handle);
  return found == machine.chunks.end() ? nullptr : found->second;
}

CUresult chunk_granularity(const CUmemAllocationProp& wanted,
                           CUmemAllocationGranularity_flags which,
                           size_t* bytes) {
  if (CUresult error = check(wanted)) return error;
  if (which != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
      which != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *bytes = kPage;
  return CUDA_SUCCESS;
}

CUresult chunk_create(uint64_t size, const CUmemAllocationProp& wanted,
                      CUmemGenericAllocationHandle* handle) {
  if (CUresult error = check(wanted)) return error;
  if (CUresult error = check_handle_types(wanted.requestedHandleTypes)) {
    return error;
  }
  if (size == 0 || size % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((wanted.requestedHandleTypes & kFabric) != 0) {
    if (CUresult error = fabric_is_ready()) return error;
  }

  const bool on_device = wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int gpu = on_device ? device_at(wanted.location.id).gpu : -1;
  if (!take_bytes(gpu, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto chunk = std::make_shared<Chunk>();
  chunk->properties = wanted;
  // Compression is a hint, which this GPU does not follow.
  chunk->properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;
  Label label{};
  label.is_chunk = 1;
  label.location_type = wanted.location.type;
  label.location_id = on_device ? gpu : wanted.location.id;
  label.rdma = chunk->properties.allocFlags.gpuDirectRDMACapable;
  seal(HandleKind::kMemory, &label.creator);
  chunk->block = Block::create(gpu, size, label);
  if (chunk->block == nullptr) {
    give_back_bytes(gpu, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = add(*Locked(), std::move(chunk));
  return CUDA_SUCCESS;
}

CUresult chunk_release(CUmemGenericAllocationHandle handle) {
  const Locked machine;
  const std::shared_ptr<Chunk> chunk = find_chunk(*machine, handle);
  if (chunk == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (--chunk->references > 0) return CUDA_SUCCESS;
  machine->chunks.erase(handle);
  return CUDA_SUCCESS;
}

CUresult chunk_properties(CUmemGenericAllocationHandle handle,
                          CUmemAllocationProp* properties) {
  const Locked machine;
  const std::shared_ptr<Chunk> chunk = find_chunk(*machine, handle);
  if (chunk == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = chunk->properties;
  return CUDA_SUCCESS;
}

CUresult chunk_retain(uint64_t address, CUmemGenericAllocationHandle* handle) {
  const Locked machine;
  const Allocation* mapping = machine->memory.find(address);
  if (mapping == nullptr || mapping->chunk == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<Chunk>& chunk = mapping->chunk;
  // The program may already have released all references to the chunk.
  ++chunk->references;
  machine->chunks[chunk->handle] = chunk;
  *handle = chunk->handle;
  return CUDA_SUCCESS;
}

CUresult chunk_export(CUmemGenericAllocationHandle handle,
                      CUmemAllocationHandleType type, void* shareable) {
  const Locked machine;
  const std::shared_ptr<Chunk> chunk = find_chunk(*machine, handle);
  if (chunk == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool requested = (chunk->properties.requestedHandleTypes & type) != 0;
  if (!requested || (type != kPosix && type != kFabric)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  chunk->block->share(Sharing::kExported);
  if (type == kFabric) {
    const std::shared_ptr<Block>& block = chunk->block;
    fabric_export(block->id(), block->descriptor(), block, shareable);
    return CUDA_SUCCESS;
  }
  const int descriptor = fcntl(chunk->block->descriptor(), F_DUPFD_CLOEXEC, 0);
  // The documented list has no code for a process with too many descriptors.
  if (descriptor < 0) return CUDA_ERROR_NOT_PERMITTED;
  std::memcpy(shareable, &descriptor, sizeof descriptor);
  return CUDA_SUCCESS;
}

CUresult chunk_import(void* shareable, CUmemAllocationHandleType type,
                      CUmemGenericAllocationHandle* handle) {
  if (!profile().vmm) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<Block> block;
  if (type == kFabric) {
    // The exporter may take long to answer, so no lock is held.
    if (shareable == nullptr) return CUDA_ERROR_INVALID_VALUE;
    int descriptor = -1;
    if (CUresult error = fabric_import(shareable, &descriptor)) return error;
    block = adopt(descriptor);
    if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  } else if (type == kPosix) {
    block = adopt_chunk(descriptor_of(shareable));
    if (block == nullptr) {
      return profile().driver_580 ? CUDA_ERROR_UNKNOWN
                                  : CUDA_ERROR_INVALID_VALUE;
    }
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Locked machine;
  return import(*machine, std::move(block), handle);
}

}  // namespace ipclab::model
