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
#include "core/ipc_refusal.h"
#include "core/mutant.h"
#include "core/pool.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

constexpr CUmemAllocationHandleType kPosix =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr CUmemAllocationHandleType kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

bool is_shareable(const CUmemPoolHandle_st& pool) {
  if (pool.is_default) return mutant("default-pool-ipc");
  return pool.properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
         mutant("export-none-pool");
}

bool is_requested(const CUmemPoolHandle_st& pool,
                  CUmemAllocationHandleType type) {
  const bool known = type == kPosix || type == kFabric;
  return (known && (pool.properties.handleTypes & type) != 0) ||
         pool.properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE ||
         mutant("export-unrequested");
}

// Zeroed memory of the same kind, for mutants that lose the exporter's.
std::shared_ptr<PoolFile> detached(const PoolFile& file, uint64_t size) {
  const PoolPage& page = file.page();
  auto fresh = PoolFile::create(page.location, page.handle_types);
  if (fresh != nullptr) fresh->grow(size);
  return fresh;
}

bool loses_memory(const CUmemPoolHandle_st& pool) {
  const bool numa =
      pool.properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  return mutant("pool-import-fresh") ||
         (numa && mutant("numa-pool-not-shared"));
}

// The lease of an allocation that was imported before, by its place.
uint64_t imported_at(const CUmemPoolHandle_st& pool, uint64_t offset) {
  for (const auto& [address, lease] : pool.leases) {
    if (lease->offset == offset) return address;
  }
  return 0;
}

// Do the bytes name an allocation of this pool?
bool names(const CUmemPoolHandle_st& pool, const Handle& handle,
           const void* bytes) {
  const bool bound_elsewhere =
      mutant("ptrdata-address-bound") &&
      handle.mark !=
          static_cast<uint32_t>(reinterpret_cast<uint64_t>(bytes) >> 4);
  const bool too_new =
      mutant("pool-import-frozen") && handle.occupant > pool.serial;
  const bool descriptor_gone =
      mutant("pool-fd-needed") && fcntl(pool.descriptor, F_GETFD) < 0;
  return is_sealed(HandleKind::kPoolPointer, handle) &&
         handle.object == pool.file->page().id && handle.size > 0 &&
         pool.file->contains(handle.offset, handle.size) && !bound_elsewhere &&
         !too_new && !descriptor_gone && !pool.file->page().dead;
}

CUresult map_import(CUmemoryPool pool, const Handle& handle,
                    uint64_t* address) {
  const uint64_t begin = handle.offset / kPage * kPage;
  const uint64_t in_page = handle.offset - begin;
  const auto lease = std::make_shared<Lease>();
  lease->bytes = round_up(in_page + handle.size, kPage);
  if (mutant("map-first-2mib")) lease->bytes = kPage;
  lease->mapping = take_addresses(Area::kImported, lease->bytes);
  lease->offset = handle.offset;
  lease->size = round_up(handle.size, kGranule);
  lease->ready = true;  // its stream is in another process
  const bool fresh = loses_memory(*pool);
  const std::shared_ptr<PoolFile> file =
      fresh ? detached(*pool->file, lease->bytes) : pool->file;
  if (lease->mapping == 0 || file == nullptr ||
      !map_descriptor(lease->mapping, file->descriptor(), fresh ? kPage : begin,
                      lease->bytes, pool->gpu < 0)) {
    if (lease->mapping != 0) give_back_addresses(lease->mapping, lease->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (mutant("exporter-death-wedges")) wedge_at_exit(handle);
  pool->reserved.set(pool->reserved.now + lease->bytes);
  *address = lease->mapping + in_page;
  lend(pool, *address, handle.size, lease, pool->gpu);
  grant_lease(*pool, *lease);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult pool_export(CUmemoryPool handle, CUmemAllocationHandleType type,
                     unsigned long long flags, void* shareable) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(handle);
  if (pool == nullptr || !is_shareable(*pool) || !is_requested(*pool, type) ||
      (flags != 0 && !mutant("flags-ignored")) ||
      (pool->imported && !mutant("reexport-pool-ok"))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
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
  const std::lock_guard lock(state_mutex());
  if (!profile().pools) return CUDA_ERROR_NOT_SUPPORTED;
  if ((type != kPosix && type != kFabric) ||
      (flags != 0 && !mutant("flags-ignored"))) {
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
  std::shared_ptr<PoolFile> file = copy < 0 ? nullptr : PoolFile::adopt(copy);
  if (file == nullptr && copy >= 0 && mutant("import-accepts-any-fd")) {
    file = PoolFile::create({CU_MEM_LOCATION_TYPE_DEVICE, 0}, kPosix);
  }
  if (file == nullptr) {
    return profile().driver_580 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_INVALID_VALUE;
  }
  PoolPage& page = file->page();
  const bool on_device = page.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int ordinal = on_device ? ordinal_of_gpu(page.location.id) : 0;
  if ((ordinal < 0 && mutant("visible-only")) ||
      (page.importers++ > 0 && mutant("single-importer"))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto pool = std::make_shared<CUmemPoolHandle_st>();
  pool->imported = true;
  pool->gpu = on_device ? page.location.id : -1;
  pool->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool->properties.handleTypes =
      static_cast<CUmemAllocationHandleType>(page.handle_types);
  pool->properties.location = page.location;
  if (on_device) pool->properties.location.id = ordinal;
  pool->descriptor = descriptor;
  pool->serial = page.serial;
  pool->frees_seen = page.frees;
  pool->file = std::move(file);
  *handle = add_pool(std::move(pool));
  return CUDA_SUCCESS;
}

CUresult pool_export_pointer(CUcontext context, CUmemPoolPtrExportData* data,
                             uint64_t address) {
  if (mutant("pool-import-blocks")) context_synchronize(context);
  const std::lock_guard lock(state_mutex());
  const Allocation* found = find_allocation(address);
  CUmemPoolHandle_st* pool = found == nullptr ? nullptr : found->pool;
  const bool good = pool != nullptr && found->address == address &&
                    !pool->imported && is_shareable(*pool) &&
                    (pool->exported || mutant("order-unchecked"));
  if (!good && !mutant("export-any-pointer")) {
    return refuse(context, CUDA_ERROR_INVALID_VALUE);
  }
  Handle handle{};
  if (good) {
    Lease& lease = *pool->leases[address];
    lease.exported = true;
    handle.object = pool->exported ? pool->file->page().id : 0;
    handle.occupant = lease.serial;
    handle.offset = lease.offset;
    handle.size = found->size;
    handle.gpu = static_cast<uint32_t>(pool->gpu);
  }
  handle.mark = static_cast<uint32_t>(reinterpret_cast<uint64_t>(data) >> 4);
  seal(HandleKind::kPoolPointer, &handle);
  static_assert(sizeof *data == sizeof handle);
  std::memcpy(data, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

CUresult pool_import_pointer(CUcontext context, CUmemoryPool imported,
                             const CUmemPoolPtrExportData* data,
                             uint64_t* address) {
  const std::lock_guard lock(state_mutex());
  const Pool pool = find_pool(imported);
  if (pool == nullptr || !pool->imported) {
    return refuse(context, CUDA_ERROR_INVALID_VALUE);
  }
  Handle handle;
  std::memcpy(&handle, data, sizeof handle);
  if (!names(*pool, handle, data)) {
    if (!mutant("importptr-accepts-garbage")) {
      return refuse(context, CUDA_ERROR_INVALID_VALUE);
    }
    handle.offset = kPage;
    handle.size = kGranule;
  }
  *address = imported_at(*pool, handle.offset);
  return *address != 0 ? CUDA_SUCCESS : map_import(pool.get(), handle, address);
}

void revoke_lost_pool_imports() {
  for (const Pool& pool : pools()) {
    if (!pool->imported || pool->frees_seen == pool->file->page().frees) {
      continue;
    }
    for (const auto& [address, lease] : pool->leases) {
      for (size_t i = 0; i < devices().size(); ++i) {
        set_access(static_cast<int>(i), lease->mapping, lease->bytes, kNone);
      }
    }
  }
}

}  // namespace ipclab::model
