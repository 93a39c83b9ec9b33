// SPDX-License-Identifier: Apache-2.0
// Pools between processes.
#include "core/pool_ipc.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/device.h"
#include "core/fabric.h"
#include "core/handle.h"
#include "core/machine.h"
#include "core/pool.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

constexpr CUmemAllocationHandleType kPosix =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr CUmemAllocationHandleType kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

bool is_shareable(const CUmemPoolHandle_st& pool) {
  return !pool.is_default &&
         pool.properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
}

bool is_requested(const CUmemPoolHandle_st& pool,
                  CUmemAllocationHandleType type) {
  const bool known = type == kPosix || type == kFabric;
  return (known && (pool.properties.handleTypes & type) != 0) ||
         pool.properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE;
}

// The address of an allocation that was imported before; 0 if there is none.
// The offset in the pool identifies the allocation.
uint64_t imported_at(const CUmemPoolHandle_st& pool, uint64_t offset) {
  for (const auto& [address, lease] : pool.leases) {
    if (lease->offset == offset) return address;
  }
  return 0;
}

// Do the bytes name an allocation of this pool?
bool names(const CUmemPoolHandle_st& pool, const Handle& handle) {
  return is_sealed(HandleKind::kPoolPointer, handle) &&
         handle.object == pool.file->page().id && handle.size > 0 &&
         pool.file->contains(handle.offset, handle.size);
}

CUresult map_import(Machine& machine, CUmemoryPool pool, const Handle& handle,
                    uint64_t* address) {
  const uint64_t begin = handle.offset / kPage * kPage;
  const uint64_t in_page = handle.offset - begin;
  const auto lease = std::make_shared<Lease>();
  lease->bytes = round_up(in_page + handle.size, kPage);
  lease->mapping = machine.window.take(Area::kImported, lease->bytes);
  lease->offset = handle.offset;
  lease->size = round_up(handle.size, kGranule);
  lease->ready = true;  // its stream is in another process
  if (lease->mapping == 0 ||
      !machine.window.map(lease->mapping, pool->file->descriptor(), begin,
                          lease->bytes, pool->gpu < 0)) {
    if (lease->mapping != 0)
      machine.window.give_back(lease->mapping, lease->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  pool->reserved.set(pool->reserved.now + lease->bytes);
  *address = lease->mapping + in_page;
  lend(machine, pool, *address, handle.size, lease, pool->gpu);
  grant_lease(machine, *pool, *lease);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult pool_export(CUmemoryPool handle, CUmemAllocationHandleType type,
                     unsigned long long flags, void* shareable) {
  const Locked machine;
  const Pool pool = find_pool(*machine, handle);
  if (pool == nullptr || !is_shareable(*pool) || !is_requested(*pool, type) ||
      flags != 0 || pool->imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  pool->file->share(Sharing::kExported);
  const PoolFile& file = *pool->file;
  if (type == kFabric) {
    fabric_export(file.page().id, file.descriptor(), pool->file, shareable);
  } else {
    const int copy = fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memcpy(shareable, &copy, sizeof copy);
  }
  pool->exported = true;
  return CUDA_SUCCESS;
}

CUresult pool_import(void* shareable, CUmemAllocationHandleType type,
                     unsigned long long flags, CUmemoryPool* handle) {
  if (!profile().pools) return CUDA_ERROR_NOT_SUPPORTED;
  if ((type != kPosix && type != kFabric) || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A descriptor is passed as the value of the pointer.
  const auto descriptor =
      static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  int copy = -1;
  if (type == kPosix) {
    copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  } else if (shareable == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  } else if (CUresult error = fabric_import(shareable, &copy)) {
    return error;
  }
  std::shared_ptr<PoolFile> file = PoolFile::adopt(SharedFile::adopt(copy));
  if (file == nullptr) {
    return profile().driver_580 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_INVALID_VALUE;
  }
  const PoolPage& page = file->page();
  const bool on_device = page.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int ordinal = on_device ? ordinal_of_gpu(page.location.id) : 0;
  auto pool = std::make_shared<CUmemPoolHandle_st>();
  pool->imported = true;
  pool->gpu = on_device ? page.location.id : -1;
  pool->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool->properties.handleTypes =
      static_cast<CUmemAllocationHandleType>(page.handle_types);
  pool->properties.location = page.location;
  if (on_device) pool->properties.location.id = ordinal;
  pool->file = std::move(file);
  *handle = pool.get();
  Locked()->pools.push_back(std::move(pool));
  return CUDA_SUCCESS;
}

CUresult pool_export_pointer(CUmemPoolPtrExportData* data, uint64_t address) {
  const Locked machine;
  const Allocation* found = machine->memory.find(address);
  CUmemPoolHandle_st* pool = found == nullptr ? nullptr : found->pool;
  const bool good = pool != nullptr && found->address == address &&
                    !pool->imported && is_shareable(*pool) && pool->exported;
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  Handle handle{};
  handle.object = pool->file->page().id;
  handle.offset = pool->leases[address]->offset;
  handle.size = found->size;
  handle.gpu = static_cast<uint32_t>(pool->gpu);
  seal(HandleKind::kPoolPointer, &handle);
  static_assert(sizeof *data == sizeof handle);
  std::memcpy(data, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

CUresult pool_import_pointer(CUmemoryPool imported,
                             const CUmemPoolPtrExportData* data,
                             uint64_t* address) {
  const Locked machine;
  const Pool pool = find_pool(*machine, imported);
  if (pool == nullptr || !pool->imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Handle handle;
  std::memcpy(&handle, data, sizeof handle);
  if (!names(*pool, handle)) return CUDA_ERROR_INVALID_VALUE;
  *address = imported_at(*pool, handle.offset);
  return *address != 0 ? CUDA_SUCCESS
                       : map_import(*machine, pool.get(), handle, address);
}

}  // namespace ipclab::model
