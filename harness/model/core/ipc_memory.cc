// SPDX-License-Identifier: Apache-2.0
// Legacy memory handles.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/handle.h"
#include "core/hooks.h"
#include "core/ipc.h"
#include "core/memory.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

// One block of another process, mapped for one context. The memory of several
// handles may lie in it.
struct Import {
  uint32_t pid = 0;
  uint64_t origin = 0;  // id of the exporter's block
  CUcontext context = nullptr;
  std::shared_ptr<Block> block;
  uint64_t address = 0;
  uint64_t size = 0;              // bytes mapped
  std::map<uint64_t, int> opens;  // offset in the block -> reference count
};

std::vector<Import>& imports() {
  static auto& list = *new std::vector<Import>;
  return list;
}

Import* find_import(CUcontext context, uint64_t origin) {
  for (Import& import : imports()) {
    if (import.context == context && import.origin == origin) return &import;
  }
  return nullptr;
}

// "Only one context per device in each other process" (cuIpcOpenMemHandle).
bool another_context_has_it(CUcontext context, const Handle& handle) {
  return std::any_of(
      imports().begin(), imports().end(), [&](const Import& import) {
        return import.pid == handle.pid &&
               import.block->gpu() == static_cast<int>(handle.gpu) &&
               import.context != context &&
               import.context->device == context->device;
      });
}

bool reachable(CUcontext context, int gpu) {
  return context->gpu == gpu || can_access_peer(context->gpu, gpu);
}

// Leaves only the memory that the handle names to the kernels.
void isolate(const Import& import, const Handle& handle) {
  const int device = import.context->device;
  const bool shares_page = import.block->size() == kPage;
  set_access(device, import.address, import.size, kNone);
  set_access(device, import.address + handle.offset, handle.size,
             shares_page ? kAsk : kReadWrite);
}

// Maps a block that this context does not have yet.
CUresult import_block(CUcontext context, const Handle& handle,
                      std::shared_ptr<Block> block) {
  const int gpu = block->gpu();
  if (!reachable(context, gpu)) return CUDA_ERROR_MAP_FAILED;
  const bool is_peer = gpu != context->gpu;
  if (is_peer) {
    if (CUresult error = add_peer(context, gpu, true)) return error;
  }
  if (hooked(Hook::kOtherAddress)) {
    take_addresses(Area::kImported, getpid() % 64 * kPage + kPage);
  }
  Import import;
  import.pid = handle.pid;
  import.origin = block->id();
  import.context = context;
  import.size = block->size();
  import.address = take_addresses(Area::kImported, import.size);
  if (import.address == 0 ||
      !map_block(import.address, *block, import.size, false)) {
    if (import.address != 0) give_back_addresses(import.address, import.size);
    if (is_peer) remove_lazy_peer(context, gpu);
    return CUDA_ERROR_MAP_FAILED;
  }
  set_access(context->device, import.address, import.size, kReadWrite);
  import.block = std::move(block);
  if (hooked(Hook::kOnlyTheAllocation)) isolate(import, handle);
  imports().push_back(std::move(import));
  return CUDA_SUCCESS;
}

void unmap_import(std::vector<Import>::iterator import) {
  retire(import->address, import->size);
  if (import->block->gpu() != import->context->gpu) {
    remove_lazy_peer(import->context, import->block->gpu());
  }
  imports().erase(import);
}

// The allocation that a handle names, as the program sees it after the open.
uint64_t publish(Import* import, const Handle& handle) {
  const uint64_t address = import->address + handle.offset;
  if (++import->opens[handle.offset] > 1) return address;
  Allocation allocation;
  allocation.address = address;
  allocation.size = handle.size;
  allocation.kind = Kind::kImported;
  allocation.context = import->context;
  allocation.gpu = import->block->gpu();
  allocation.block = import->block;
  allocation.mapping = import->address;
  allocation.mapping_size = import->size;
  allocation.buffer_id = unique_id();
  allocations()[address] = allocation;
  return address;
}

// Does the memory still live that the handle was made for?
bool is_meant(const Block& block, const Handle& handle) {
  return block.id() == handle.object && handle.offset < block.size() &&
         handle.size <= block.size() - handle.offset &&
         block.occupant(handle.offset) == handle.occupant;
}

CUcontext importing_context(uint64_t address) {
  const std::lock_guard lock(state_mutex());
  const Allocation* found = find_allocation(address);
  return found != nullptr && found->kind == Kind::kImported ? found->context
                                                            : nullptr;
}

}  // namespace

CUresult ipc_get_memory(void* out, uint64_t address) {
  if (!profile().ipc_memory) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(state_mutex());
  const Allocation* allocation = find_allocation(address);
  if (allocation == nullptr || allocation->kind != Kind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Handle handle{};
  handle.object = allocation->block->id();
  handle.descriptor = allocation->block->descriptor();
  handle.occupant = allocation->export_id;
  handle.offset = allocation->offset();
  handle.size = allocation->size;
  handle.gpu = static_cast<uint32_t>(allocation->gpu);
  seal(HandleKind::kMemory, &handle);
  std::memcpy(out, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

CUresult ipc_open_memory(CUcontext context, uint64_t* address,
                         const void* bytes, unsigned flags) {
  if (!profile().ipc_memory) return CUDA_ERROR_NOT_SUPPORTED;
  Handle handle;
  std::memcpy(&handle, bytes, sizeof handle);
  if (!is_sealed(HandleKind::kMemory, handle)) return CUDA_ERROR_INVALID_VALUE;
  if (is_own(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }

  const std::lock_guard lock(state_mutex());
  if (another_context_has_it(context, handle)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  SharedFile file = open_remote(handle);
  if (!file.valid()) {
    const bool hidden = errno == EACCES || errno == EPERM;
    if (!exporter_is_alive(handle)) return CUDA_ERROR_INVALID_HANDLE;
    return hidden ? CUDA_ERROR_MAP_FAILED : CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Block> block = Block::adopt(std::move(file));
  if (block == nullptr || !is_meant(*block, handle)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Import* import = find_import(context, block->id());
  if (import == nullptr) {
    if (CUresult error = import_block(context, handle, std::move(block))) {
      return error;
    }
    import = &imports().back();
  }
  *address = publish(import, handle);
  return CUDA_SUCCESS;
}

CUresult ipc_close_memory(uint64_t address) {
  if (!profile().ipc_memory) return CUDA_ERROR_NOT_SUPPORTED;
  // Work that still uses the mapping ends first.
  if (CUcontext opener = importing_context(address)) {
    context_synchronize(opener);
  }
  const std::lock_guard lock(state_mutex());
  const auto import = std::find_if(
      imports().begin(), imports().end(), [&](const Import& candidate) {
        return address - candidate.address < candidate.size &&
               candidate.opens.count(address - candidate.address) > 0;
      });
  if (import == imports().end()) return CUDA_ERROR_INVALID_VALUE;
  const auto open = import->opens.find(address - import->address);
  if (--open->second > 0) return CUDA_SUCCESS;
  import->opens.erase(open);
  allocations().erase(address);
  if (import->opens.empty()) unmap_import(import);
  return CUDA_SUCCESS;
}

void close_imports(CUcontext context) {
  for (auto import = imports().begin(); import != imports().end();) {
    if (import->context != context) {
      ++import;
      continue;
    }
    for (const auto& open : import->opens) {
      allocations().erase(import->address + open.first);
    }
    const auto index = import - imports().begin();
    unmap_import(import);
    import = imports().begin() + index;
  }
}

}  // namespace ipclab::model
