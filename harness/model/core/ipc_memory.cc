// SPDX-License-Identifier: Apache-2.0
// Legacy memory handles.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/device.h"
#include "core/handle.h"
#include "core/ipc.h"
#include "core/ipc_refusal.h"
#include "core/memory.h"
#include "core/mutant.h"
#include "core/pool_ipc.h"
#include "core/profile.h"
#include "core/vmm.h"

namespace ipclab::model {
namespace {

// Of a block whose importer's context ended with the block open.
constexpr uint64_t kLeftOpen = ~uint64_t{0};

// For mutants: the block's counter says who has it open.
void note_importer(Block* block, uint64_t importer) {
  if (mutant("importer-death-kills") || mutant("importer-death-leaks") ||
      mutant("dead-importer-blocks")) {
    block->set_counter(importer);
  }
}

// One block of another process, mapped for one context. The memory of several
// handles may lie in it.
struct Import {
  uint32_t pid = 0;
  uint64_t origin = 0;  // id of the exporter's block
  CUcontext context = nullptr;
  std::shared_ptr<Block> block;
  uint64_t address = 0;
  uint64_t size = 0;              // bytes mapped
  uint64_t closes_seen = 0;       // for the mutant close-breaks-siblings
  std::map<uint64_t, int> opens;  // offset in the block -> reference count
};

std::vector<Import>& imports() {
  static auto& list = *new std::vector<Import>;
  return list;
}

// How many threads open something, for the mutant open-count-race.
std::atomic<int> opens_under_way{0};

struct UnderWay {
  UnderWay() { ++opens_under_way; }
  ~UnderWay() { --opens_under_way; }
};

// Block ids that were opened before, for the mutant reopen-refused.
std::set<uint64_t>& opened_before() {
  static auto& ids = *new std::set<uint64_t>;
  return ids;
}

Import* find_import(CUcontext context, uint64_t origin) {
  for (Import& import : imports()) {
    if (import.context == context && import.origin == origin) {
      return &import;
    }
  }
  return nullptr;
}

// "Only one context per device in each other process" (cuIpcOpenMemHandle).
bool another_context_has_it(CUcontext context, const Handle& handle) {
  for (const Import& import : imports()) {
    if (import.pid != handle.pid ||
        import.block->gpu() != static_cast<int>(handle.gpu) ||
        import.context == context) {
      continue;
    }
    if (mutant("second-context-other-handle") &&
        import.origin != handle.object) {
      continue;
    }
    if (import.context->device == context->device &&
        !mutant("second-context-accepted")) {
      return true;
    }
    if (mutant("one-context-per-process")) return true;
  }
  return false;
}

bool reachable(CUcontext context, int gpu) {
  return context->gpu == gpu || can_access_peer(context->gpu, gpu) ||
         mutant("nonpeer-open-ok");
}

// Maps a block that this context does not have yet.
CUresult import_block(CUcontext context, const Handle& handle,
                      std::shared_ptr<Block> block) {
  const int gpu = block->gpu();
  if (!reachable(context, gpu)) return CUDA_ERROR_MAP_FAILED;
  bool visible_to_kernels = true;
  if (gpu != context->gpu) {
    const CUresult error = add_peer(context, gpu, true);
    visible_to_kernels = error == CUDA_SUCCESS && !mutant("lazy-peer-noop");
    if (error != CUDA_SUCCESS && !mutant("too-many-peers-silent")) return error;
  }
  Import import;
  import.origin = block->id();
  if (mutant("open-fresh-memory")) block = Block::detached(*block, false);
  if (mutant("open-snapshot-copy")) block = Block::detached(*block, true);
  import.pid = handle.pid;
  import.context = context;
  import.size = mutant("map-first-2mib") ? kPage : block->size();
  if (mutant("ok-different-va"))
    take_addresses(Area::kImported, getpid() % 64 * kPage + kPage);
  import.address = take_addresses(Area::kImported, import.size);
  if (import.address == 0 || block == nullptr ||
      !map_block(import.address, *block, import.size, false)) {
    if (import.address != 0) give_back_addresses(import.address, import.size);
    if (gpu != context->gpu) remove_lazy_peer(context, gpu);
    return CUDA_ERROR_MAP_FAILED;
  }
  if (visible_to_kernels) {
    set_access(context->device, import.address, import.size, kReadWrite);
  }
  if (mutant("ok-isolated-suballoc")) {
    const uint64_t begin = import.address + handle.offset;
    set_access(context->device, import.address, import.size, kNone);
    set_access(context->device, begin, handle.size,
               block->size() == kPage ? kAsk : kReadWrite);
  }
  note_importer(block.get(), static_cast<uint64_t>(getpid()));
  if (mutant("exporter-death-wedges")) wedge_at_exit(handle);
  import.closes_seen = block->counter();
  import.block = std::move(block);
  imports().push_back(std::move(import));
  return CUDA_SUCCESS;
}

void unmap_import(std::vector<Import>::iterator import) {
  unmap(import->address, import->size);
  give_back_addresses(import->address, import->size);
  if (import->block->gpu() != import->context->gpu) {
    remove_lazy_peer(import->context, import->block->gpu());
  }
  imports().erase(import);
}

// The allocation that a handle names, as the program sees it after the open.
uint64_t publish(Import* import, const Handle& handle) {
  const uint64_t offset = mutant("suballoc-offset-lost") ? 0 : handle.offset;
  const uint64_t address = import->address + offset;
  int& count = import->opens[offset];
  if (count > 0 && opens_under_way > 1 && mutant("open-count-race")) {
    return address;  // the other thread's count overwrites this one
  }
  if (++count == 1) {
    Allocation allocation;
    allocation.address = address;
    allocation.size = handle.size;
    if (mutant("pitch-maps-short")) allocation.size = handle.size * 3 / 4;
    allocation.kind = Kind::kImported;
    allocation.context = import->context;
    allocation.gpu = import->block->gpu();
    allocation.block = import->block;
    allocation.mapping = import->address;
    allocation.mapping_size = import->size;
    allocation.buffer_id = unique_id();
    allocation.opener = std::this_thread::get_id();
    allocations()[address] = allocation;
  }
  return address;
}

CUresult not_supported(CUcontext context) {
  return mutant("unsupported-silent")
             ? CUDA_SUCCESS
             : refuse(context, CUDA_ERROR_NOT_SUPPORTED);
}

bool memory_ipc_exists() {
  return profile().ipc_memory ||
         (profile().ipc_events && mutant("tegra-mem-ok"));
}

// The allocation that a call with this address exports; null if it must be
// refused.
Allocation* exportable(uint64_t address) {
  Allocation* found = find_allocation(address);
  if (found == nullptr) {
    // Any living allocation stands for what the pointer once was.
    const bool dead_ok = mutant("get-accepts-dead-pointer");
    for (auto& entry : allocations()) {
      if (dead_ok && entry.second.kind == Kind::kDevice) return &entry.second;
    }
    return nullptr;
  }
  switch (found->kind) {
    case Kind::kDevice:
      return found;
    case Kind::kManaged:
      return mutant("managed-export-ok") ? found : nullptr;
    case Kind::kHost:
    case Kind::kRegistered:
      return mutant("hostmem-export-ok") ? found : nullptr;
    case Kind::kImported:
      return mutant("reexport-garbage") ? found : nullptr;
    case Kind::kPooled:
      return mutant("async-legacy-export-ok") ? found : nullptr;
    case Kind::kMapped:
      return mutant("vmm-legacy-export-ok") ? found : nullptr;
    case Kind::kVariable:
      return nullptr;
  }
  return nullptr;
}

// For the mutant importer-death-kills.
void break_bereaved_contexts() {
  for (const auto& [address, allocation] : allocations()) {
    if (allocation.kind == Kind::kDevice &&
        lost_its_importer(*allocation.block)) {
      allocation.context->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
  }
}

CUcontext importing_context(uint64_t address) {
  const std::lock_guard lock(state_mutex());
  const Allocation* found = find_allocation(address);
  return found != nullptr && found->kind == Kind::kImported ? found->context
                                                            : nullptr;
}

Allocation* previous_of_its_kind(Allocation* allocation) {
  auto entry = allocations().find(allocation->address);
  while (entry != allocations().begin()) {
    --entry;
    if (entry->second.kind == Kind::kDevice) return &entry->second;
  }
  return allocation;
}

}  // namespace

CUresult ipc_get_memory(CUcontext context, void* out, uint64_t address) {
  if (!memory_ipc_exists()) return not_supported(context);
  if (mutant("open-deadlocks-on-busy")) context_synchronize(context);
  const std::lock_guard lock(state_mutex());
  Allocation* allocation = exportable(address);
  if (allocation == nullptr) return refuse(context, CUDA_ERROR_INVALID_VALUE);
  if (mutant("handles-swapped")) allocation = previous_of_its_kind(allocation);
  if (mutant("get-invalidates-previous") && allocation->block != nullptr) {
    allocation->export_id = unique_id();
    allocation->block->set_occupant(allocation->offset(),
                                    allocation->export_id);
  }
  if (mutant("get-consumes-memory")) {
    static auto& lost = *new std::vector<std::shared_ptr<Block>>;
    static int exports = 0;
    if (++exports % 1000 == 0) {
      lost.push_back(Block::create(allocation->gpu, kPage));
    }
  }
  Handle handle{};
  if (allocation->block != nullptr) {
    handle.object = allocation->block->id();
    handle.descriptor = allocation->block->descriptor();
  }
  handle.occupant = allocation->export_id;
  handle.offset = allocation->offset();
  handle.size = allocation->size;
  handle.gpu = static_cast<uint32_t>(allocation->gpu);
  if (mutant("handle-cached-by-address")) {
    handle.object = 0;
    handle.occupant = 0;
  }
  if (mutant("interior-maps-elsewhere") && address != allocation->address) {
    handle.offset = allocation->offset() + kPage / 2;
  }
  seal(HandleKind::kMemory, &handle);
  write_handle(handle, out);
  return CUDA_SUCCESS;
}

CUresult ipc_open_memory(CUcontext context, uint64_t* address,
                         const void* bytes, unsigned flags) {
  if (!memory_ipc_exists()) return not_supported(context);
  const UnderWay open;
  const std::lock_guard lock(state_mutex());
  Handle handle;
  std::memcpy(&handle, bytes, sizeof handle);
  if (!is_sealed(HandleKind::kMemory, handle) ||
      !is_bound_here(handle, bytes)) {
    if (mutant("open-accepts-garbage")) {
      *address = take_addresses(Area::kImported, kPage);
      return CUDA_SUCCESS;
    }
    return refuse(context, CUDA_ERROR_INVALID_VALUE);
  }
  if (is_own(handle)) {
    if (!mutant("self-open-copy")) {
      return refuse(context, CUDA_ERROR_INVALID_CONTEXT);
    }
  }
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    if (mutant("flags-crash")) raise(SIGSEGV);
    return refuse(context, CUDA_ERROR_INVALID_VALUE);
  }
  if (mutant("lazy-flag-refused") &&
      static_cast<int>(handle.gpu) == context->gpu) {
    return refuse(context, CUDA_ERROR_INVALID_VALUE);
  }
  if (mutant("visible-only") &&
      ordinal_of_gpu(static_cast<int>(handle.gpu)) < 0) {
    return refuse(context, CUDA_ERROR_INVALID_VALUE);
  }
  if (another_context_has_it(context, handle)) {
    return refuse(context, CUDA_ERROR_INVALID_HANDLE);
  }

  const bool unchecked =
      mutant("handle-cached-by-address") || mutant("stale-handle-resolves");
  const int descriptor = open_remote(handle);
  if (descriptor < 0) {
    const bool hidden = errno == EACCES || errno == EPERM;
    if (!exporter_is_alive(handle)) {
      return refuse(context, CUDA_ERROR_INVALID_HANDLE);
    }
    return refuse(context,
                  hidden ? CUDA_ERROR_MAP_FAILED : CUDA_ERROR_INVALID_VALUE);
  }
  std::shared_ptr<Block> block = Block::adopt(descriptor);
  const bool is_meant =
      block != nullptr && handle.offset < block->size() &&
      (unchecked || (block->id() == handle.object &&
                     block->occupant(handle.offset) == handle.occupant));
  if (!is_meant) return refuse(context, CUDA_ERROR_INVALID_VALUE);
  if (mutant("self-open-copy") && is_own(handle)) {
    block = Block::detached(*block, true);
  }

  Import* import = find_import(context, block->id());
  if (import == nullptr) {
    if (mutant("reopen-refused") &&
        !opened_before().insert(block->id()).second) {
      return refuse(context, CUDA_ERROR_INVALID_VALUE);
    }
    if (mutant("single-importer") && block->counter() != 0) {
      return refuse(context, CUDA_ERROR_INVALID_VALUE);
    }
    if (mutant("single-importer")) block->set_counter(1);
    if (mutant("dead-importer-blocks") && lost_its_importer(*block)) {
      return refuse(context, CUDA_ERROR_INVALID_VALUE);
    }
    if (CUresult error = import_block(context, handle, std::move(block))) {
      return refuse(context, error);
    }
    import = &imports().back();
  } else if (mutant("open-second-already-mapped")) {
    return refuse(context, CUDA_ERROR_ALREADY_MAPPED);
  }
  *address = publish(import, handle);
  return CUDA_SUCCESS;
}

CUresult ipc_close_memory(CUcontext context, uint64_t address) {
  if (!memory_ipc_exists()) return not_supported(context);
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
  if (import == imports().end()) {
    if (mutant("close-underflow-ok")) return CUDA_SUCCESS;
    if (mutant("close-any-pointer") && find_allocation(address) != nullptr) {
      return CUDA_SUCCESS;
    }
    return refuse(context, CUDA_ERROR_INVALID_VALUE);
  }
  const uint64_t offset = address - import->address;
  int& count = import->opens[offset];
  --count;
  if (mutant("close-unmaps-at-first")) count = 0;
  if (count > 0) return CUDA_SUCCESS;
  if (mutant("close-never-unmaps")) {
    ++count;
    return CUDA_SUCCESS;
  }
  import->opens.erase(offset);
  if (mutant("close-frees-origin")) {
    import->block->set_occupant(offset, 0);
    std::memset(alias(address), 0, 4096);
  }
  if (mutant("close-breaks-siblings")) {
    import->block->set_counter(import->block->counter() + 1);
  }
  allocations().erase(address);
  if (mutant("close-unmaps-block")) {
    for (const auto& other : import->opens) {
      allocations().erase(import->address + other.first);
    }
    import->opens.clear();
  }
  if (import->opens.empty()) {
    note_importer(import->block.get(), 0);
    if (mutant("open-close-leak")) new std::shared_ptr<Block>(import->block);
    unmap_import(import);
  }
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
    note_importer(import->block.get(), kLeftOpen);
    const auto index = import - imports().begin();
    unmap_import(import);
    import = imports().begin() + index;
  }
}

bool lost_its_importer(const Block& block) {
  const uint64_t importer = block.counter();
  return importer == kLeftOpen ||
         (importer != 0 && kill(static_cast<pid_t>(importer), 0) != 0);
}

void revoke_lost_imports() {
  if (active_mutant == nullptr) return;
  {
    const std::lock_guard lock(state_mutex());
    lose_orphaned_chunks();
    if (mutant("importer-death-kills")) break_bereaved_contexts();
  }
  const bool siblings = mutant("close-breaks-siblings");
  const bool threads = mutant("thread-local-map");
  if (!siblings && !threads) return;
  const std::lock_guard lock(state_mutex());
  if (siblings) revoke_lost_pool_imports();
  for (const Import& import : imports()) {
    bool lost = siblings && import.block->counter() != import.closes_seen;
    for (const auto& open : import.opens) {
      const Allocation* opened = find_allocation(import.address + open.first);
      lost |= threads && opened != nullptr &&
              opened->opener != std::this_thread::get_id();
    }
    if (!lost) continue;
    set_access(import.context->device, import.address, import.size, kNone);
  }
}

}  // namespace ipclab::model
