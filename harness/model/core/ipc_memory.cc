// SPDX-License-Identifier: Apache-2.0
// Legacy memory handles. Quoted sentences are those of cuIpcGetMemHandle,
// cuIpcOpenMemHandle and cuIpcCloseMemHandle in the Driver API reference.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/choice.h"
#include "core/device.h"
#include "core/handle.h"
#include "core/ipc.h"
#include "core/machine.h"
#include "core/peers.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

// ---- the handle

CUresult read_handle(const void* bytes, unsigned flags, Handle* handle) {
  if (!profile().ipc_memory) return CUDA_ERROR_NOT_SUPPORTED;
  std::memcpy(handle, bytes, sizeof *handle);
  if (!is_sealed(HandleKind::kMemory, *handle)) return CUDA_ERROR_INVALID_VALUE;
  if (is_own(*handle)) return CUDA_ERROR_INVALID_CONTEXT;
  return flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ? CUDA_SUCCESS
                                                     : CUDA_ERROR_INVALID_VALUE;
}

// Does the memory of the handle still exist?
bool is_meant(const Block& block, const Handle& handle) {
  return block.id() == handle.object && handle.offset < block.size() &&
         handle.size <= block.size() - handle.offset &&
         block.occupant(handle.offset) == handle.occupant;
}

// The exporter's block in which the memory lies.
CUresult find_block(const Handle& handle, std::shared_ptr<Block>* block) {
  SharedFile file = open_remote(handle);
  if (!file.valid()) {
    const bool hidden = errno == EACCES || errno == EPERM;
    if (!exporter_is_alive(handle)) return CUDA_ERROR_INVALID_HANDLE;
    return hidden ? CUDA_ERROR_MAP_FAILED : CUDA_ERROR_INVALID_VALUE;
  }
  *block = Block::adopt(std::move(file));
  return *block != nullptr && is_meant(**block, handle)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

bool another_context_has_it(const Machine& machine, CUcontext context,
                            const Handle& handle) {
  return std::any_of(machine.imports.begin(), machine.imports.end(),
                     [&](const Import& import) {
                       return import.pid == handle.pid &&
                              import.block->gpu() ==
                                  static_cast<int>(handle.gpu) &&
                              import.context != context &&
                              import.context->device == context->device;
                     });
}

// ---- mapping

Import* find_import(Machine& machine, CUcontext context, uint64_t origin) {
  for (Import& import : machine.imports) {
    if (import.context == context && import.origin == origin) return &import;
  }
  return nullptr;
}

CUresult enable_lazy_peer(Machine& machine, CUcontext context, int gpu) {
  if (gpu == context->gpu) return CUDA_SUCCESS;
  if (!can_access_peer(context->gpu, gpu)) return CUDA_ERROR_MAP_FAILED;
  return add_lazy_peer(machine, context, gpu);
}

void disable_lazy_peer(Machine& machine, CUcontext context, int gpu) {
  if (gpu != context->gpu) remove_lazy_peer(machine, context, gpu);
}

// Gives kernels access only to the memory that the handle names.
void isolate(Machine& machine, const Import& import, const Handle& handle) {
  const int device = import.context->device;
  const bool shares_page = import.size == kPage;
  machine.window.set_access(device, import.address, import.size, kNone);
  machine.window.set_access(device, import.address + handle.offset, handle.size,
                            shares_page ? kAsk : kReadWrite);
}

CUresult map_import(Machine& machine, CUcontext context, const Handle& handle,
                    std::shared_ptr<Block> block) {
  Window& window = machine.window;
  if (chosen(Choice::kOtherAddress)) {
    window.take(Area::kImported,
                static_cast<uint64_t>(getpid()) % 64 * kPage + kPage);
  }
  Import import;
  import.pid = handle.pid;
  import.origin = block->id();
  import.context = context;
  import.size = block->size();
  import.address = window.take(Area::kImported, import.size);
  if (import.address == 0) return CUDA_ERROR_MAP_FAILED;
  if (!window.map(import.address, *block, import.size, false)) {
    window.give_back(import.address, import.size);
    return CUDA_ERROR_MAP_FAILED;
  }
  window.set_access(context->device, import.address, import.size, kReadWrite);
  import.block = std::move(block);
  if (chosen(Choice::kOnlyTheAllocation)) isolate(machine, import, handle);
  machine.imports.push_back(std::move(import));
  return CUDA_SUCCESS;
}

void unmap_import(Machine& machine, std::vector<Import>::iterator import) {
  machine.window.retire(import->address, import->size);
  disable_lazy_peer(machine, import->context, import->block->gpu());
  machine.imports.erase(import);
}

// ---- reference counts

// Counts one more open, and returns the address for the program.
uint64_t count_open(Machine& machine, Import* import, const Handle& handle) {
  const uint64_t address = import->address + handle.offset;
  if (++import->opens[handle.offset] > 1) return address;
  Allocation allocation =
      Allocation::of(import->context, address, handle.size, Kind::kImported);
  allocation.gpu = import->block->gpu();
  allocation.block = import->block;
  allocation.mapping = import->address;
  allocation.mapping_size = import->size;
  allocation.buffer_id = unique_id();
  machine.memory.add(std::move(allocation));
  return address;
}

std::vector<Import>::iterator find_open(Machine& machine, uint64_t address) {
  return std::find_if(machine.imports.begin(), machine.imports.end(),
                      [&](const Import& import) {
                        return address - import.address < import.size &&
                               import.opens.count(address - import.address) > 0;
                      });
}

CUcontext importing_context(uint64_t address) {
  const Locked machine;
  const Allocation* found = machine->memory.find(address);
  return found != nullptr && found->kind == Kind::kImported ? found->context
                                                            : nullptr;
}

}  // namespace

// "Takes a pointer to the base of an existing device memory allocation created
// with cuMemAlloc and exports it for use in another process."
CUresult ipc_get_memory(void* out, uint64_t address) {
  if (!profile().ipc_memory) return CUDA_ERROR_NOT_SUPPORTED;
  const Locked machine;
  const Allocation* allocation = machine->memory.find(address);
  if (allocation == nullptr || allocation->kind != Kind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  allocation->block->share(Sharing::kExported);
  Handle handle{};
  handle.object = allocation->block->id();
  handle.descriptor = allocation->block->descriptor();
  // "If a region of memory is freed with cuMemFree and a subsequent call to
  // cuMemAlloc returns memory with the same device address, cuIpcGetMemHandle
  // will return a unique handle for the new memory."
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
  Handle handle;
  if (CUresult error = read_handle(bytes, flags, &handle)) return error;
  const Locked machine;

  // "CUipcMemHandles from each CUdevice in a given process may only be opened
  // by one CUcontext per CUdevice per other process."
  if (another_context_has_it(*machine, context, handle)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }

  std::shared_ptr<Block> block;
  if (CUresult error = find_block(handle, &block)) return error;
  const uint64_t origin = block->id();
  const int gpu = block->gpu();

  if (find_import(*machine, context, origin) == nullptr) {
    // "can attempt to enable peer access between the devices as if the user
    // called cuCtxEnablePeerAccess"
    if (CUresult error = enable_lazy_peer(*machine, context, gpu)) return error;

    // "Maps memory exported from another process with cuIpcGetMemHandle into
    // the current device address space."
    if (CUresult error =
            map_import(*machine, context, handle, std::move(block))) {
      disable_lazy_peer(*machine, context, gpu);
      return error;
    }
  }

  // "If the memory handle has already been opened by the current context, the
  // reference count on the handle is incremented by 1 and the existing device
  // pointer is returned."
  Import* import = find_import(*machine, context, origin);
  *address = count_open(*machine, import, handle);
  return CUDA_SUCCESS;
}

CUresult ipc_close_memory(uint64_t address) {
  if (!profile().ipc_memory) return CUDA_ERROR_NOT_SUPPORTED;
  // Work that still uses the mapping must end first.
  if (CUcontext opener = importing_context(address)) {
    context_synchronize(opener);
  }
  const Locked machine;
  const auto import = find_open(*machine, address);
  if (import == machine->imports.end()) return CUDA_ERROR_INVALID_VALUE;

  // "Decrements the reference count of the memory returned by
  // cuIpcOpenMemHandle by 1."
  const auto open = import->opens.find(address - import->address);
  if (--open->second > 0) return CUDA_SUCCESS;
  import->opens.erase(open);
  machine->memory.remove(address);

  // "When the reference count reaches 0, this API unmaps the memory. […] Any
  // resources used to enable peer access will be freed if this is the last
  // mapping using them."
  if (import->opens.empty()) unmap_import(*machine, import);
  return CUDA_SUCCESS;
}

void close_imports(Machine& machine, CUcontext context) {
  auto& imports = machine.imports;
  for (auto import = imports.begin(); import != imports.end();) {
    if (import->context != context) {
      ++import;
      continue;
    }
    for (const auto& open : import->opens) {
      machine.memory.remove(import->address + open.first);
    }
    const auto index = import - imports.begin();
    unmap_import(machine, import);
    import = imports.begin() + index;
  }
}

}  // namespace ipclab::model
