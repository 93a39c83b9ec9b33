// SPDX-License-Identifier: Apache-2.0
// External memory.
#include "core/external_memory.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/chunk.h"
#include "core/device.h"
#include "core/machine.h"
#include "core/profile.h"
#include "core/registry.h"

struct CUextMemory_st {
  CUcontext context;
  std::shared_ptr<ipclab::model::Block> block;
  uint64_t size;
};

namespace ipclab::model {
namespace {

Registry<CUextMemory_st>& objects() {
  static auto& only = *new Registry<CUextMemory_st>;
  return only;
}

// This is not a close() of the program, which a library may watch.
void take_over(int descriptor) { syscall(SYS_close, descriptor); }

}  // namespace

CUresult external_memory_import(CUcontext context, int descriptor,
                                uint64_t size, CUexternalMemory* object) {
  std::shared_ptr<Block> block = adopt_chunk(descriptor);
  if (block == nullptr) {
    if (!profile().driver_580) return CUDA_ERROR_INVALID_HANDLE;
    take_over(descriptor);
    return CUDA_ERROR_UNKNOWN;
  }
  if (block->gpu() < 0 || (block->gpu() != context->gpu &&
                           !can_access_peer(context->gpu, block->gpu()))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  take_over(descriptor);
  auto made = std::make_shared<CUextMemory_st>();
  made->context = context;
  made->size = std::min(size, block->size());
  made->block = std::move(block);
  *object = objects().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult external_memory_map(CUexternalMemory object, uint64_t offset,
                             uint64_t size, uint64_t* address) {
  const auto found = objects().find(object);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const bool inside =
      size > 0 && offset <= found->size && size <= found->size - offset;
  if (!inside) return CUDA_ERROR_INVALID_VALUE;
  const Locked machine;
  const std::shared_ptr<Block>& block = found->block;
  const uint64_t mapping = machine->window.take(Area::kImported, block->size());
  // The documented list has no code for a process without free addresses.
  if (mapping == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!machine->window.map(mapping, *block, block->size(), false)) {
    machine->window.give_back(mapping, block->size());
    return CUDA_ERROR_INVALID_VALUE;
  }
  machine->window.set_access(found->context->device, mapping, block->size(),
                             kReadWrite);
  Allocation buffer =
      Allocation::of(found->context, mapping + offset, size, Kind::kExternal);
  buffer.gpu = block->gpu();
  buffer.block = block;
  buffer.mapping = mapping;
  buffer.mapping_size = block->size();
  machine->memory.add(std::move(buffer));
  *address = mapping + offset;
  return CUDA_SUCCESS;
}

CUresult external_memory_destroy(CUexternalMemory object) {
  return objects().remove(object) != nullptr ? CUDA_SUCCESS
                                             : CUDA_ERROR_INVALID_HANDLE;
}

void destroy_external_memory(CUcontext context) {
  objects().remove_if(
      [&](const CUextMemory_st& object) { return object.context == context; });
}

}  // namespace ipclab::model
