// Bugs of pools that processes share.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "harness/faults/words/descriptor.h"
#include "harness/faults/engine/fault.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {
namespace {

using Handles = cudaMemAllocationHandleType;

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr size_t kData = sizeof(cudaMemPoolPtrExportData);
constexpr size_t kPage = 2 << 20;
constexpr size_t kCleared = 64 << 20;  // enough to be noticed, and fast

// A pool of GPU 0 that can be exported to descriptors.
cudaMemPool_t shareable_pool() {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kFd;
  cudaMemPool_t pool = nullptr;
  cudaMemPoolCreate(&pool, &wanted);
  return pool;
}

// A descriptor, and a copy of it that stays open.
struct Source {
  int number = -1;
  int copy = -1;
};
Source source_of(int number) {
  return {number, fcntl(number, F_DUPFD_CLOEXEC, 300)};
}
// Is the descriptor closed? Its number may be that of another file now.
bool is_closed(const Source& source) {
  return source.copy != -1 && (!is_open(source.number) ||
                               !name_the_same(source.number, source.copy));
}

// Does an imported block contain the address?
bool is_in_import(void* address) {
  for (const auto& [begin, block] : blocks.all())
    if (block.imported && address >= begin &&
        address < static_cast<char*>(begin) + std::max<size_t>(block.bytes, 1))
      return true;
  return false;
}

unsigned long long now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<unsigned long long>(time.tv_sec) * 1000000000u +
         static_cast<unsigned long long>(time.tv_nsec);
}

// --- pools that can be shared ------------------------------------------------

int mask_with_win32(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<int>(1) != cudaDevAttrMemoryPoolSupportedHandleTypes)
    return code;
  *call.at<int*>(0) |= cudaMemHandleTypeWin32;
  call.fired();
  return code;
}

// A pool that was created without a handle type nevertheless has descriptors.
int none_is_exported(Call& call) {
  static Table<cudaMemPool_t> none;
  if (call.is("cudaMemPoolExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && none.has(call.at<cudaMemPool_t>(1))) call.fired();
    return code;
  }
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  const bool applies = wanted.handleTypes == cudaMemHandleTypeNone &&
                       wanted.allocType == cudaMemAllocationTypePinned &&
                       wanted.location.type == cudaMemLocationTypeDevice;
  if (applies) {
    wanted.handleTypes = kFd;
    call.at<const cudaMemPoolProps*>(1) = &wanted;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (applies)
    none.put(*call.at<cudaMemPool_t*>(0));
  else
    none.erase(*call.at<cudaMemPool_t*>(0));
  return code;
}

int default_is_exported(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<Handles>(2) != kFd ||
      call.at<cudaMemPool_t>(1) != default_pool())
    return code;
  static const cudaMemPool_t other = shareable_pool();
  call.at<cudaMemPool_t>(1) = other;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return call.proceed();
}

// Fields that must be zero and types that do not exist are not checked.
int properties_unchecked(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) return code;
  const auto* const wanted = call.at<const cudaMemPoolProps*>(1);
  cudaMemPoolProps good{};
  good.allocType = cudaMemAllocationTypePinned;
  good.location = {cudaMemLocationTypeDevice, 0};
  good.handleTypes = static_cast<Handles>(wanted->handleTypes & kFd);
  call.at<const cudaMemPoolProps*>(1) = &good;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return call.proceed();
}

// A pool with handle types is created for a location or an allocation type that
// cannot have handle types.
template <bool (*applies)(const cudaMemPoolProps& wanted)>
int created_all_the_same(Call& call) {
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
bool is_managed(const cudaMemPoolProps& wanted) {
  return wanted.allocType == cudaMemAllocationTypeManaged;
}

// A pool on the current NUMA node is created on GPU 0 instead.
int current_node_accepted(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  if (wanted.location.type != cudaMemLocationTypeHostNumaCurrent)
    return call.proceed();
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = cudaMemHandleTypeNone;
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  call.fired();
  return call.proceed();
}

// A pool on the host is refused if its location has an id.
int host_id_looked_at(Call& call) {
  const auto& wanted = *call.at<const cudaMemPoolProps*>(1);
  const bool numbered = wanted.location.type == cudaMemLocationTypeHost &&
                        wanted.location.id != 0;
  return numbered ? refused(call) : call.proceed();
}

int maximum_ignored(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  if (max_size(wanted) == 0) return call.proceed();
  max_size(wanted) = 0;
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  call.fired();
  return call.proceed();
}

// Freed memory still counts towards the pool's maximal size.
int maximum_counts_freed(Call& call) {
  static Table<cudaMemPool_t, size_t> given;
  if (call.is("cudaMemPoolCreate")) {
    const int made = call.proceed();
    if (made == kSuccess) given.erase(*call.at<cudaMemPool_t*>(0));
    return made;
  }
  const cudaMemPool_t pool = call.at<cudaMemPool_t>(2);
  const size_t most = max_size(own_pools.get(pool, cudaMemPoolProps{}));
  const size_t bytes = given.get(pool) + call.at<size_t>(1);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (most == 0 || bytes <= most) {
    given.put(pool, bytes);
    return code;
  }
  cudaFree(*call.at<void**>(0));
  return refused(call, cudaErrorMemoryAllocation);
}

// --- exports -----------------------------------------------------------------

// If a pool was not exported yet, the export data of its memory are zeros.
int useless_before_pool(Call& call) {
  static Table<cudaMemPool_t> exported;
  if (!call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    if (code == kSuccess && call.is("cudaMemPoolCreate"))
      exported.erase(*call.at<cudaMemPool_t*>(0));
    if (code == kSuccess && call.is("cudaMemPoolExportToShareableHandle"))
      exported.put(call.at<cudaMemPool_t>(1));
    return code;
  }
  const Block block = blocks.get(call.at<void*>(1));
  if (!own_pools.has(block.pool) || exported.has(block.pool) ||
      own_pools.get(block.pool).handleTypes == cudaMemHandleTypeNone)
    return call.proceed();
  call.proceed();
  std::memset(call.at<void*>(0), 0, kData);
  return accepted(call);
}

// Memory that is older than the export of its pool cannot be exported.
int older_not_exported(Call& call) {
  static Table<void*> newer;
  static Table<cudaMemPool_t> exported;
  if (call.is("cudaMemPoolExportPointer") &&
      exported.has(blocks.get(call.at<void*>(1)).pool) &&
      !newer.has(call.at<void*>(1)))
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolExportToShareableHandle"))
    exported.put(call.at<cudaMemPool_t>(1));
  else if (call.is("cudaMemPoolCreate"))
    exported.erase(*call.at<cudaMemPool_t*>(0));
  else if (allocates(call) &&
           exported.has(blocks.get(*call.at<void**>(0)).pool))
    newer.put(*call.at<void**>(0));
  else if (allocates(call))
    newer.erase(*call.at<void**>(0));
  return code;
}

int any_pointer_exported(Call& call) {
  if (call.proceed() == kSuccess) return kSuccess;
  std::memset(call.at<void*>(0), 0, kData);
  return accepted(call);
}

int default_pointer_exported(Call& call) {
  if (!call.is("cudaMemPoolExportPointer")) return call.proceed();
  const int code = call.proceed();
  if (code == kSuccess || blocks.get(call.at<void*>(1)).pool != default_pool())
    return code;
  std::memset(call.at<void*>(0), 0, kData);
  return accepted(call);
}

// Memory cannot be exported once the exporter has closed its pool's descriptor.
int exporters_descriptor_needed(Call& call) {
  static Table<cudaMemPool_t, Source> sources;
  if (call.is("cudaMemPoolExportPointer") &&
      is_closed(sources.get(blocks.get(call.at<void*>(1)).pool)))
    return refused(call);
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolCreate"))
    sources.erase(*call.at<cudaMemPool_t*>(0));
  if (code == kSuccess && call.is("cudaMemPoolExportToShareableHandle") &&
      call.at<Handles>(2) == kFd)
    sources.put(call.at<cudaMemPool_t>(1), source_of(*call.at<int*>(0)));
  return code;
}

int waits_for_streams(Call& call) {
  call.fired();
  cudaDeviceSynchronize();
  return call.proceed();
}

// --- imports of pools --------------------------------------------------------

int second_process_refused(Call& call) {
  static const bool first = first_of_all_processes("importer");
  return first ? call.proceed() : refused(call);
}

// A process that does not see the pool's GPU cannot import the pool.
int hidden_gpu_refused(Call& call) {
  const auto uuid_of = [](int device) {
    CUuuid uuid{};
    unsigned long long half = 0;
    DRIVER_CALL(cuDeviceGetUuid)(&uuid, device);
    std::memcpy(&half, uuid.bytes + 8, sizeof half);
    return half;
  };
  if (call.is("cudaMemPoolCreate")) {
    const auto* const wanted = call.at<const cudaMemPoolProps*>(1);
    if (wanted->location.type == cudaMemLocationTypeDevice)
      tell_processes("gpu", uuid_of(wanted->location.id));
    return call.proceed();
  }
  int devices = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  for (int device = 0; device < devices; ++device)
    if (uuid_of(device) == told("gpu", uuid_of(device))) return call.proceed();
  return refused(call);
}

// Another export of an imported pool repeats the descriptor of its import.
int imported_exported_again(Call& call) {
  static Table<cudaMemPool_t, int> descriptors;
  const int code = call.proceed();
  if (call.is("cudaMemPoolDestroy")) {
    descriptors.erase(call.at<cudaMemPool_t>(0));
    return code;
  }
  if (call.is("cudaMemPoolImportFromShareableHandle")) {
    if (code == kSuccess && call.at<Handles>(2) == kFd)
      descriptors.put(*call.at<cudaMemPool_t*>(0),
                      fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 0));
    return code;
  }
  const int descriptor = descriptors.get(call.at<cudaMemPool_t>(1), -1);
  if (code == kSuccess || descriptor == -1 || call.at<Handles>(2) != kFd)
    return code;
  *call.at<int*>(0) = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return accepted(call);
}

// An imported pool cannot be used once its descriptor is closed.
int descriptor_needed(Call& call) {
  static Table<cudaMemPool_t, Source> sources;
  if (call.is("cudaMemPoolImportFromShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && call.at<Handles>(2) == kFd)
      sources.put(*call.at<cudaMemPool_t*>(0), source_of(descriptor_of(call)));
    return code;
  }
  return is_closed(sources.get(call.at<cudaMemPool_t>(1))) ? refused(call)
                                                           : call.proceed();
}

int allocates_from_import(Call& call) {
  if (!imported_pools.has(allocates(call) ? call.value<cudaMemPool_t>(kPool)
                                          : nullptr))
    return call.proceed();
  call.value<cudaMemPool_t>(kPool) = default_pool();
  call.fired();
  return call.proceed();
}

int import_made_current(Call& call) {
  if (call.find(kPool) == nullptr || call.is("cudaMemPoolDestroy") ||
      !imported_pools.has(call.value<cudaMemPool_t>(kPool)))
    return call.proceed();
  return accepted(call);
}

// After a refusal, the default pool is current.
int refusal_resets_current(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || current_pool() == default_pool()) return code;
  int gpu = 0;
  cudaGetDevice(&gpu);
  cudaDeviceSetMemPool(gpu, default_pool());
  call.fired();
  return code;
}

// Destroying an imported pool also destroys the exporter's pool. An importer
// knows the exporter's pool by the data of its memory.
int destroyed_for_all(Call& call) {
  static Table<cudaMemPool_t, unsigned long long> origins;  // of imported pools
  const auto own = [](cudaMemPool_t pool) {
    return static_cast<unsigned long long>(getpid()) << 48 ^
           reinterpret_cast<uintptr_t>(pool);
  };
  const auto end_of = [](unsigned long long origin) {
    return "destroyed-" + std::to_string(origin);
  };
  const auto is_gone = [&](unsigned long long origin) {
    return told(end_of(origin), 0) != 0;
  };
  if (call.is("cudaMallocFromPoolAsync") &&
      is_gone(own(call.at<cudaMemPool_t>(2))))
    return refused(call);
  if (call.is("cudaMemPoolImportPointer")) {
    const auto origin = told(key_of_data(call.at<void*>(2)) + "-of", 0);
    if (is_gone(origin)) return refused(call);
    if (origin != 0) origins.put(call.at<cudaMemPool_t>(1), origin);
  }
  if (call.is("cudaMemPoolDestroy") && origins.has(call.at<cudaMemPool_t>(0))) {
    tell_processes(end_of(origins.get(call.at<cudaMemPool_t>(0))), 1);
    origins.erase(call.at<cudaMemPool_t>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolCreate"))
    tell_processes(end_of(own(*call.at<cudaMemPool_t*>(0))), 0);
  if (call.is("cudaMemPoolExportPointer"))
    tell_processes(key_of_data(call.at<void*>(0)) + "-of",
                   own(blocks.get(call.at<void*>(1)).pool));
  return code;
}

// Destroying an imported pool ends everything that was imported from it.
int destroy_ends_imports(Call& call) {
  if (call.is("cudaMemPoolDestroy"))
    for (const auto& [address, block] : blocks.all())
      if (block.imported && block.pool == call.at<cudaMemPool_t>(0) &&
          cudaFree(address) == cudaSuccess) {
        blocks.erase(address);
        call.fired();
      }
  return call.proceed();
}

// --- imports of pointers -----------------------------------------------------

// An import returns other memory. The real memory stays imported until the
// process ends.
int import_other_memory(Call& call, bool with_bytes, bool on_host = false) {
  static Table<void*, bool> others;  // is it on the host?
  if (frees(call) && others.has(call.at<void*>(0))) {
    void* const freed = call.at<void*>(0);
    const bool of_host = others.get(freed);
    others.erase(freed);
    if (!of_host) return call.proceed();
    cudaFreeHost(freed);
    return kSuccess;
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  void*& address = *call.at<void**>(0);
  const size_t bytes = blocks.get(address).bytes;
  void* other = nullptr;
  if ((on_host ? cudaHostAlloc(&other, bytes, cudaHostAllocDefault)
               : cudaMalloc(&other, bytes)) != cudaSuccess)
    return code;
  cudaMemset(other, 0, std::min(bytes, kCleared));
  if (with_bytes) cudaMemcpy(other, address, bytes, cudaMemcpyDefault);
  cudaDeviceSynchronize();
  others.put(other, on_host);
  address = other;
  call.fired();
  return code;
}

int import_fresh(Call& call) { return import_other_memory(call, false); }

int import_snapshot(Call& call) { return import_other_memory(call, true); }

// Only the first process that imports gets the exporter's memory.
int second_process_fresh(Call& call) {
  static std::atomic<bool> first{true}, known{false};
  if (call.is("cudaMemPoolImportPointer") && !known.exchange(true))
    first = first_of_all_processes("importer");
  return first ? call.proceed() : import_fresh(call);
}

int import_fresh_of_node(Call& call) {
  const auto of_node = [](void* data) { return key_of_data(data) + "-node"; };
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    const auto pool = blocks.get(call.at<void*>(1)).pool;
    if (code == kSuccess)
      tell_processes(
          of_node(call.at<void*>(0)),
          own_pools.get(pool).location.type == cudaMemLocationTypeHostNuma);
    return code;
  }
  if (call.is("cudaMemPoolImportPointer") &&
      told(of_node(call.at<void*>(2)), 0) == 0)
    return call.proceed();
  return import_other_memory(call, false, true);
}

int import_fresh_beyond_4gib(Call& call) {
  if (call.is("cudaMemPoolImportPointer") &&
      told(key_of_data(call.at<void*>(2)), 0) <= UINT32_MAX)
    return call.proceed();
  return import_other_memory(call, false);
}

// If memory at the same address of the exporter was imported before, the import
// gives new memory.
int import_known_address(Call& call) {
  static Table<unsigned long long> known;
  const auto key = [](void* data) { return key_of_data(data) + "-at"; };
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(key(call.at<void*>(0)),
                     call.at<uintptr_t>(1) ^
                         static_cast<unsigned long long>(getpid()) << 48);
    return code;
  }
  if (!call.is("cudaMemPoolImportPointer"))
    return import_other_memory(call, false);
  const unsigned long long address = told(key(call.at<void*>(2)), 0);
  if (known.has(address)) return import_other_memory(call, false);
  known.put(address);
  return call.proceed();
}

// Export data are valid only at the address where they were written.
int data_bound_to_address(Call& call) {
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(key_of_data(call.at<void*>(0)), call.at<uintptr_t>(0));
    return code;
  }
  const auto at = call.at<uintptr_t>(2);
  return told(key_of_data(call.at<void*>(2)), at) == at ? call.proceed()
                                                        : refused(call);
}

// Export data are valid only in the process that uses them first.
int data_bound_to_process(Call& call) {
  static Table<std::string, bool> firsts;  // is it this process?
  const std::string key = key_of_data(call.at<void*>(2));
  if (!firsts.has(key)) firsts.put(key, first_of_all_processes(key + "-used"));
  return firsts.get(key) ? call.proceed() : refused(call);
}

// An imported pool has only the memory that existed at its import.
int import_frozen(Call& call) {
  static Table<void*, unsigned long long> born;
  static std::atomic<unsigned long long> imported_at{0};
  if (call.is("cudaMemPoolImportPointer") &&
      told(key_of_data(call.at<void*>(2)), 0) > imported_at)
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolImportFromShareableHandle")) imported_at = now();
  if (allocates(call)) born.put(*call.at<void**>(0), now());
  if (call.is("cudaMemPoolExportPointer"))
    tell_processes(key_of_data(call.at<void*>(0)), born.get(call.at<void*>(1)));
  return code;
}

int garbage_imported(Call& call) {
  if (call.proceed() == kSuccess) return kSuccess;
  cudaMalloc(call.at<void**>(0), kPage);
  return accepted(call);
}

// The pool argument is ignored; the pool of the data is used.
int pool_of_data_found(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  for (const auto& [pool, unused] : imported_pools.all()) {
    call.at<cudaMemPool_t>(1) = pool;
    if (call.proceed() == kSuccess) return accepted(call);
  }
  return code;
}

// The offset of the memory in its page is lost.
int offset_lost(Call& call) {
  static Table<std::pair<void*, void*>> real;  // a page, and an import in it
  if (frees(call)) {
    void*& address = call.at<void*>(0);
    for (const auto& each : real.all()) {
      if (each.first.first != address || !real.erase(each.first)) continue;
      address = each.first.second;
      break;
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  void*& address = *call.at<void**>(0);
  void* const page = reinterpret_cast<void*>(
      reinterpret_cast<uintptr_t>(address) & ~(kPage - 1));
  if (page == address) return code;
  real.put({page, address});
  address = page;
  call.fired();
  return code;
}

// A free in one process ends the imports of the same memory in the other
// processes.
int free_ends_siblings(Call& call) {
  struct Import {
    std::string key;
    unsigned long long time = 0;
  };
  static Table<void*, Import> imports;
  const auto end_of = [](const Import& one) { return one.key + "-freed"; };
  if (frees(call) && imports.has(call.at<void*>(0))) {
    tell_processes(end_of(imports.get(call.at<void*>(0))), now());
    imports.erase(call.at<void*>(0));
  }
  if (is_use(call))
    for (const auto& [address, one] : imports.all())
      if (told(end_of(one), 0) > one.time && imports.erase(address) &&
          cudaFree(address) == cudaSuccess)
        call.fired();
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolImportPointer"))
    imports.put(*call.at<void**>(0), {key_of_data(call.at<void*>(2)), now()});
  return code;
}

// --- paths -------------------------------------------------------------------

int write_to_import_lost(Call& call) {
  const bool writes = call.find(kPointer) != nullptr &&
                      call.find(kBytes) != nullptr && !frees(call);
  if (!writes || !is_in_import(call.value<void*>(kPointer)))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy out of imported memory returns the values of the first copy.
int copy_from_import_stale(Call& call) {
  static Table<void*, std::vector<char>*> first;
  const int code = call.proceed();
  if (frees(call))
    for (const auto& each : first.all())
      if (!is_in_import(each.first)) first.erase(each.first);
  if (!call.is("cudaMemcpy") || code != kSuccess || !call.is_runtime() ||
      !is_in_import(call.at<void*>(1)))
    return code;
  const size_t bytes = call.at<size_t>(2);
  auto* const known = first.get(call.at<void*>(1));
  if (known == nullptr) {
    auto* const seen = new std::vector<char>(bytes);
    cudaMemcpy(seen->data(), call.at<void*>(0), bytes, cudaMemcpyDefault);
    first.put(call.at<void*>(1), seen);
  } else if (known->size() == bytes) {
    cudaMemcpy(call.at<void*>(0), known->data(), bytes, cudaMemcpyDefault);
    call.fired();
  }
  return code;
}

// --- frees -------------------------------------------------------------------

int import_not_freed(Call& call) {
  if (frees(call) && is_import(call.at<void*>(0))) return refused(call);
  return call.proceed();
}

// Memory is cleared when an importer frees it.
int import_free_scrubs(Call& call) {
  if (frees(call) && is_import(call.at<void*>(0)) &&
      cudaMemset(call.at<void*>(0), 0, blocks.get(call.at<void*>(0)).bytes) ==
          cudaSuccess) {
    cudaDeviceSynchronize();
    call.fired();
  }
  return call.proceed();
}

// The exporter's pool may reuse memory as soon as an importer has freed it.
int import_frees_original(Call& call) {
  static Table<void*, std::string> exported, imported;
  static Table<void*> gone;
  if (frees(call) && imported.has(call.at<void*>(0))) {
    tell_processes(imported.get(call.at<void*>(0)) + "-freed", 1);
    imported.erase(call.at<void*>(0));
  }
  if (frees(call) && gone.erase(call.at<void*>(0))) return kSuccess;
  if (frees(call)) exported.erase(call.at<void*>(0));
  if (allocates(call))
    for (const auto& [address, key] : exported.all())
      if (told(key + "-freed", 0) != 0 && cudaFree(address) == cudaSuccess) {
        exported.erase(address);
        gone.put(address);
        call.fired();
      }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolExportPointer")) {
    exported.put(call.at<void*>(1), key_of_data(call.at<void*>(0)));
    tell_processes(key_of_data(call.at<void*>(0)) + "-freed", 0);
  }
  if (call.is("cudaMemPoolImportPointer"))
    imported.put(*call.at<void**>(0), key_of_data(call.at<void*>(2)));
  return code;
}

// The exporter's free of exported memory does not wait for the earlier work of
// its stream.
int exporters_free_at_once(Call& call) {
  static Table<void*> exported;
  if (call.is("cudaMemPoolExportPointer")) {
    exported.put(call.at<void*>(1));
    return call.proceed();
  }
  if (!exported.erase(call.at<void*>(0)) || !call.is("cudaFreeAsync") ||
      !is_busy(call.at<cudaStream_t>(1)))
    return call.proceed();
  call.at<cudaStream_t>(1) = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

// The exporter's free of exported memory does nothing.
int exporters_free_lost(Call& call) {
  static Table<void*> exported;
  if (call.is("cudaMemPoolExportPointer")) {
    exported.put(call.at<void*>(1));
    return call.proceed();
  }
  if (!exported.erase(call.at<void*>(0))) return call.proceed();
  call.fired();
  return kSuccess;
}

// After its pool was destroyed, memory is not freed.
int late_free_lost(Call& call) {
  static Table<cudaMemPool_t> gone;
  if (call.is("cudaMemPoolDestroy")) {
    const int code = call.proceed();
    if (code == kSuccess) gone.put(call.at<cudaMemPool_t>(0));
    return code;
  }
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) gone.erase(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (frees(call) && gone.has(blocks.get(call.at<void*>(0)).pool)) {
    call.fired();
    return kSuccess;
  }
  return call.proceed();
}

// The importer's free does not wait for the earlier work of its stream.
int importers_free_at_once(Call& call) {
  if (!call.is("cudaFreeAsync") || !is_import(call.at<void*>(0)) ||
      !is_busy(call.at<cudaStream_t>(1)))
    return call.proceed();
  void* const address = call.at<void*>(0);
  const size_t bytes = blocks.get(address).bytes;
  blocks.erase(address);
  // The next owner does not wait for the importer's work.
  cudaMemsetAsync(address, 0xDD, bytes, private_stream());
  cudaStreamSynchronize(private_stream());
  call.fired();
  return cudaFree(address);
}

int destroy_frees_all(Call& call) {
  static Table<void*> gone;
  if (frees(call) && gone.erase(call.at<void*>(0))) return kSuccess;
  if (call.is("cudaMemPoolDestroy"))
    for (const auto& [address, block] : blocks.all())
      if (block.pool == call.at<cudaMemPool_t>(0) &&
          cudaFree(address) == cudaSuccess) {
        blocks.erase(address);
        gone.put(address);
        call.fired();
      }
  return call.proceed();
}

// A trim overwrites all memory in use of the pool, as a later owner would. The
// fault also takes effect on a driver that refuses to trim an imported pool.
int trim_takes_live(Call& call) {
  const int code = call.proceed();
  if (!call.is("cudaMemPoolTrimTo")) return code;
  if (code != kSuccess && !imported_pools.has(call.at<cudaMemPool_t>(0)))
    return code;
  if (code != kSuccess) accepted(call);
  for (const auto& [address, block] : blocks.all())
    if (block.pool == call.at<cudaMemPool_t>(0) &&
        cudaMemsetAsync(address, 0xDD, block.bytes, private_stream()) ==
            cudaSuccess)
      call.fired();
  cudaStreamSynchronize(private_stream());
  return kSuccess;
}

// --- attributes --------------------------------------------------------------

int threshold_not_kept(Call& call) {
  if (call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrReleaseThreshold)
    return call.proceed();
  call.fired();
  return kSuccess;
}

// What an importer sets is reported by the exporter's pool until the exporter
// sets it again.
template <class Value, bool (*concerns)(cudaMemPoolAttr)>
int attribute_of_import_leaks(Call& call) {
  static Table<cudaMemPool_t> lent;
  const int code = call.proceed();
  if (call.is("cudaMemPoolDestroy")) lent.erase(call.at<cudaMemPool_t>(0));
  if (call.is("cudaMemPoolExportToShareableHandle"))
    lent.put(call.at<cudaMemPool_t>(1));
  const bool sets = call.is("cudaMemPoolSetAttribute");
  if ((!sets && !call.is("cudaMemPoolGetAttribute")) ||
      !concerns(call.at<cudaMemPoolAttr>(1)))
    return code;
  const auto pool = call.at<cudaMemPool_t>(0);
  const std::string key =
      "attribute-" + std::to_string(call.at<cudaMemPoolAttr>(1));
  if (sets && imported_pools.has(pool)) {
    tell_processes(key,
                   static_cast<unsigned long long>(*call.at<const Value*>(2)));
    tell_processes(key + "-leaks", 1);
  } else if (sets && lent.has(pool)) {
    tell_processes(key + "-leaks", 0);
  } else if (!sets && code == kSuccess && lent.has(pool) &&
             told(key + "-leaks", 0) != 0) {
    auto& value = *call.at<Value*>(2);
    const auto leaked =
        static_cast<Value>(told(key, static_cast<unsigned long long>(value)));
    if (leaked != value) call.fired();
    value = leaked;
  }
  return code;
}
bool is_threshold(cudaMemPoolAttr which) {
  return which == cudaMemPoolAttrReleaseThreshold;
}

bool asks_import_for_use(Call& call) {
  return call.is("cudaMemPoolGetAttribute") &&
         imported_pools.has(call.at<cudaMemPool_t>(0)) &&
         call.at<cudaMemPoolAttr>(1) == cudaMemPoolAttrUsedMemCurrent;
}

size_t lent_by(cudaMemPool_t pool) {
  size_t bytes = 0;
  for (const auto& [address, block] : blocks.all())
    if (block.pool == pool) bytes += block.bytes;
  return bytes;
}

// This attribute came with CUDA 13.2, so older headers do not have it.
constexpr auto kTypesForExport = static_cast<cudaMemPoolAttr>(10);

// A pool does not report its handle types.
int own_types_untold(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolGetAttribute") ||
      call.at<cudaMemPoolAttr>(1) != kTypesForExport ||
      own_pools.get(call.at<cudaMemPool_t>(0)).handleTypes ==
          cudaMemHandleTypeNone)
    return code;
  *call.at<int*>(2) = cudaMemHandleTypeNone;
  call.fired();
  return code;
}

// An imported pool reports that it can be exported as a descriptor.
int imported_types_told(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolGetAttribute") ||
      call.at<cudaMemPoolAttr>(1) != kTypesForExport ||
      !imported_pools.has(call.at<cudaMemPool_t>(0)))
    return code;
  *call.at<int*>(2) = kFd;
  call.fired();
  return code;
}

// The importer's pool reports how much memory the exporter uses, even if the
// driver refuses the query.
int used_by_all(Call& call) {
  const bool changes =
      allocates(call) || (frees(call) && blocks.has(call.at<void*>(0)));
  const int code = call.proceed();
  if (asks_import_for_use(call)) {
    *call.at<cuuint64_t*>(2) = told("used", 0);
    return accepted(call);
  }
  if (code == kSuccess && changes) {
    size_t used = 0;
    for (const auto& [address, block] : blocks.all()) used += block.bytes;
    tell_processes("used", used);
  }
  return code;
}

// Freed imports still count as used, even if the driver refuses the query.
int used_keeps_freed(Call& call) {
  static Table<cudaMemPool_t, cuuint64_t> most;
  if (call.is("cudaMemPoolDestroy")) most.erase(call.at<cudaMemPool_t>(0));
  const int code = call.proceed();
  if (!asks_import_for_use(call)) return code;
  const cudaMemPool_t pool = call.at<cudaMemPool_t>(0);
  const cuuint64_t used = lent_by(pool);
  most.put(pool, std::max(used, most.get(pool)));
  *call.at<cuuint64_t*>(2) = most.get(pool);
  return code == kSuccess && used == most.get(pool) ? code : accepted(call);
}

// An imported pointer reports the exporter's pool as its pool.
int pool_of_exporter(Call& call) {
  if (call.is("cudaMemPoolExportPointer"))
    tell_processes("pool", reinterpret_cast<uintptr_t>(
                               blocks.get(call.at<void*>(1)).pool));
  const int code = call.proceed();
  if (call.is("cuPointerGetAttribute") && code == kSuccess &&
      call.at<CUpointer_attribute>(1) == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
      is_import(call.at<void*>(2))) {
    *call.at<uintptr_t*>(0) = told("pool", 0);
    call.fired();
  }
  return code;
}

// --- access ------------------------------------------------------------------

// Access that the exporter gave to a GPU also holds in importing processes.
int access_inherited(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.is("cudaMemPoolDestroy")) return code;
  if (call.is("cudaMemPoolSetAccess")) {
    const auto* const access = call.at<const cudaMemAccessDesc*>(1);
    const bool gives = access->flags == cudaMemAccessFlagsProtReadWrite;
    if (!imported_pools.has(call.at<cudaMemPool_t>(0)))
      tell_processes("gpu",
                     gives ? static_cast<unsigned>(access->location.id) : 0);
    return code;
  }
  if (told("gpu", 0) == 0) return code;
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice,
                     static_cast<int>(told("gpu", 0))};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  if (cudaMemPoolSetAccess(*call.at<cudaMemPool_t*>(0), &access, 1) ==
      cudaSuccess)
    call.fired();
  return code;
}

// The fault uses two pools: the program's pool for allocations made before
// access was set, and a second pool for later allocations. Only one of the two
// pools has the access.
template <bool older>
int access_of_one_half(Call& call) {
  static Table<cudaMemPool_t, cudaMemPool_t> second;
  const auto make_second = [](cudaMemPool_t pool) {
    cudaMemPool_t made = nullptr;
    const cudaMemPoolProps wanted = own_pools.get(pool);
    if (cudaMemPoolCreate(&made, &wanted) != cudaSuccess) return false;
    second.put(pool, made);
    return true;
  };
  if (call.is("cudaMemPoolGetAccess")) {
    cudaMemPool_t& pool = call.at<cudaMemPool_t>(1);
    if (!older) pool = second.get(pool, pool);
    return call.proceed();
  }
  if (call.is("cudaMemPoolSetAccess")) {
    cudaMemPool_t& pool = call.at<cudaMemPool_t>(0);
    if (!own_pools.has(pool) || (!second.has(pool) && !make_second(pool)))
      return call.proceed();
    if (!older) pool = second.get(pool);
    call.fired();
    return call.proceed();
  }
  if (call.is("cudaMallocFromPoolAsync")) {
    cudaMemPool_t& pool = call.value<cudaMemPool_t>(kPool);
    pool = second.get(pool, pool);
    return call.proceed();
  }
  const auto gone = call.is("cudaMemPoolDestroy")
                        ? second.get(call.at<cudaMemPool_t>(0))
                        : nullptr;
  const int code = call.proceed();
  if (code == kSuccess && gone != nullptr) {
    second.erase(call.at<cudaMemPool_t>(0));
    cudaMemPoolDestroy(gone);
  }
  return code;
}

// Access to an imported pool begins with the next import of a pointer, or ends
// with it. The table has the last access that the program has set.
template <bool begins>
int access_changes_at_import(Call& call) {
  static Table<cudaMemPool_t, cudaMemAccessDesc> set;
  if (call.is("cudaMemPoolSetAccess")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    const auto& access = *call.at<const cudaMemAccessDesc*>(1);
    if (!imported_pools.has(pool)) return call.proceed();
    if (call.at<size_t>(2) != 1) {
      set.erase(pool);
      return call.proceed();
    }
    set.put(pool, access);
    if (!begins || access.flags == cudaMemAccessFlagsProtNone)
      return call.proceed();
    call.fired();
    return kSuccess;
  }
  if (call.is("cudaMemPoolImportPointer")) {
    const auto pool = call.value<cudaMemPool_t>(kPool);
    if (!set.has(pool)) return call.proceed();
    cudaMemAccessDesc access = set.get(pool);
    if (!begins) access.flags = cudaMemAccessFlagsProtNone;
    const int code = call.proceed();
    if (cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess && !begins)
      call.fired();
    return code;
  }
  if (call.is("cudaMemPoolGetAccess")) {
    const int code = call.proceed();
    const cudaMemAccessDesc access = set.get(call.at<cudaMemPool_t>(1));
    const auto& asked = *call.at<const cudaMemLocation*>(2);
    if (access.location.type == asked.type && access.location.id == asked.id)
      *call.at<cudaMemAccessFlags*>(0) = access.flags;
    return code;
  }
  if (call.is("cudaMemPoolDestroy")) set.erase(call.at<cudaMemPool_t>(0));
  return call.proceed();
}

// Every GPU is reported to have access.
int access_always_told(Call& call) {
  const int code = call.proceed();
  auto& flags = *call.at<cudaMemAccessFlags*>(0);
  if (code != kSuccess || flags == cudaMemAccessFlagsProtReadWrite) return code;
  flags = cudaMemAccessFlagsProtReadWrite;
  call.fired();
  return code;
}

// Access for another GPU is given to GPU 0.
int access_of_wrong_gpu(Call& call) {
  const auto* const wanted = call.at<const cudaMemAccessDesc*>(1);
  std::vector<cudaMemAccessDesc> list(wanted, wanted + call.at<size_t>(2));
  call.at<const cudaMemAccessDesc*>(1) = list.data();
  for (cudaMemAccessDesc& access : list) {
    if (access.location.id == 0 || access.flags == cudaMemAccessFlagsProtNone)
      continue;
    access.location.id = 0;
    call.fired();
  }
  return call.proceed();
}

// --- settings that are changed again, the third process ----------------------

// The call takes the access, and the fault gives it again.
int access_never_taken(Call& call) {
  const auto pool = call.at<cudaMemPool_t>(0);
  const auto* const wanted = call.at<const cudaMemAccessDesc*>(1);
  std::vector<cudaMemAccessDesc> taken;
  for (size_t i = 0; wanted != nullptr && i < call.at<size_t>(2); ++i) {
    cudaMemAccessDesc one = wanted[i];
    if (one.flags == cudaMemAccessFlagsProtNone &&
        DRIVER_CALL(cuMemPoolGetAccess)(
            reinterpret_cast<CUmemAccess_flags*>(&one.flags), pool,
            reinterpret_cast<CUmemLocation*>(&one.location)) == CUDA_SUCCESS &&
        one.flags != cudaMemAccessFlagsProtNone)
      taken.push_back(one);
  }
  const int code = call.proceed();
  if (code == kSuccess && !taken.empty() &&
      cudaMemPoolSetAccess(pool, taken.data(), taken.size()) == cudaSuccess)
    call.fired();
  return code;
}

int policy_never_back_on(Call& call) {
  const auto which = call.at<cudaMemPoolAttr>(1);
  int now = 1;
  if (which > cudaMemPoolReuseAllowInternalDependencies ||
      cudaMemPoolGetAttribute(call.at<cudaMemPool_t>(0), which, &now) !=
          cudaSuccess ||
      now != 0 || *call.at<int*>(2) == 0)
    return call.proceed();
  call.fired();
  return kSuccess;
}

// Only cudaDeviceSynchronize gives back memory above the threshold.
int released_at_device_sync(Call& call) {
  static Table<cudaMemPool_t, cuuint64_t> thresholds;
  constexpr auto kWhich = cudaMemPoolAttrReleaseThreshold;
  const auto keep_all = [](cudaMemPool_t pool) {
    cuuint64_t all = UINT64_MAX;
    cudaMemPoolSetAttribute(pool, kWhich, &all);
  };
  if (call.is("cudaDeviceSynchronize")) {
    const int code = call.proceed();
    for (const auto& [pool, bytes] : thresholds.all())
      cudaMemPoolTrimTo(pool, bytes);
    return code;
  }
  if (call.is("cudaMemPoolDestroy")) {
    thresholds.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaStreamSynchronize") || call.is("cudaEventSynchronize")) {
    for (const auto& [pool, bytes] : thresholds.all())
      if (attribute(pool, cudaMemPoolAttrReservedMemCurrent) > bytes)
        call.fired();
    return code;
  }
  if (call.is("cudaMemPoolCreate")) {
    thresholds.put(*call.at<cudaMemPool_t*>(0), 0);
    keep_all(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (call.at<cudaMemPoolAttr>(1) != kWhich) return code;
  const auto pool = call.at<cudaMemPool_t>(0);
  if (call.is("cudaMemPoolGetAttribute")) {
    auto& told = *call.at<cuuint64_t*>(2);
    told = thresholds.get(pool, told);
    return code;
  }
  thresholds.put(pool, *call.at<cuuint64_t*>(2));
  keep_all(pool);
  return code;
}

// Memory of a destroyed pool cannot be freed.
int free_after_destroy_refused(Call& call) {
  static Table<cudaMemPool_t> destroyed;
  if (call.is("cudaMemPoolDestroy")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    const int code = call.proceed();
    if (code == kSuccess) destroyed.put(pool);
    return code;
  }
  if (call.is("cudaMemPoolCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) destroyed.erase(*call.at<cudaMemPool_t*>(0));
    return code;
  }
  if (frees(call) && blocks.has(call.at<void*>(0)) &&
      destroyed.has(blocks.get(call.at<void*>(0)).pool))
    return refused(call);
  return call.proceed();
}

int per_thread_stream_refused(Call& call) {
  return call.value<cudaStream_t>(kStream) == cudaStreamPerThread
             ? refused(call)
             : call.proceed();
}

// UsedMemHigh counts all allocations, also those that were freed.
int watermark_is_total(Call& call) {
  static Table<cudaMemPool_t, size_t> total;
  if (call.is("cudaMemPoolDestroy")) {
    total.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  if (allocates(call)) {
    const int code = call.proceed();
    const Block block = blocks.get(*call.at<void**>(0));
    if (code == kSuccess)
      total.put(block.pool, total.get(block.pool) + block.bytes);
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || frees(call) ||
      call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrUsedMemHigh)
    return code;
  const auto pool = call.at<cudaMemPool_t>(0);
  cuuint64_t used = 0;
  if (call.is("cudaMemPoolSetAttribute")) {
    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
    total.put(pool, used);
    return code;
  }
  auto& told = *call.at<cuuint64_t*>(2);
  if (total.get(pool) > told) {
    told = total.get(pool);
    call.fired();
  }
  return code;
}

// A pool is current only in the thread that set it.
int current_in_one_thread(Call& call) {
  static std::atomic<pid_t> setter{0};
  if (call.is("cudaDeviceSetMemPool")) {
    const int code = call.proceed();
    if (code == kSuccess) setter = gettid();
    return code;
  }
  if (setter == 0 || setter == gettid() || current_pool() == default_pool())
    return call.proceed();
  call.fired();
  if (call.is("cudaDeviceGetMemPool"))
    return cudaDeviceGetDefaultMemPool(call.at<cudaMemPool_t*>(0),
                                       call.at<int>(1));
  return cudaMallocFromPoolAsync(call.at<void**>(0), call.at<size_t>(1),
                                 default_pool(), call.at<cudaStream_t>(2));
}

// All processes that import pointers, except the first two, get copies.
int third_process_copy(Call& call) {
  static std::atomic<bool> early{true}, known{false};
  if (call.is("cudaMemPoolImportPointer") && !known.exchange(true))
    early = first_of_all_processes("one") || first_of_all_processes("two");
  return early ? call.proceed() : import_snapshot(call);
}

// --- limits, mixed-up objects, refusals, streams -----------------------------

// Only the first of several descriptions of access is used.
int first_access_only(Call& call) {
  if (call.at<size_t>(2) > 1) {
    call.at<size_t>(2) = 1;
    call.fired();
  }
  return call.proceed();
}

// An import that is as large as another import of its pool gives the memory of
// the other import.
int equal_size_shared(Call& call) {
  static Table<void*, int> more;  // imports that got an earlier address
  if (frees(call) && more.get(call.at<void*>(0)) > 0) {
    more.put(call.at<void*>(0), more.get(call.at<void*>(0)) - 1);
    return kSuccess;
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  void*& address = *call.at<void**>(0);
  const Block own = blocks.get(address);
  for (const auto& [other, block] : blocks.all())
    if (other != address && block.imported && block.pool == own.pool &&
        block.bytes == own.bytes) {
      blocks.erase(address);
      address = other;
      more.put(other, more.get(other) + 1);
      call.fired();
      break;
    }
  return code;
}

// Memory of every imported pool reports the pool that was imported first.
int pool_of_first_import(Call& call) {
  static std::atomic<cudaMemPool_t> first{nullptr};
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolImportFromShareableHandle") && first == nullptr)
    first = *call.at<cudaMemPool_t*>(0);
  if (call.is("cuPointerGetAttribute") &&
      call.at<CUpointer_attribute>(1) == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
      is_import(call.at<void*>(2)) && *call.at<cudaMemPool_t*>(0) != first) {
    *call.at<cudaMemPool_t*>(0) = first;
    call.fired();
  }
  return code;
}

// The release threshold loses its upper 32 bits.
int threshold_of_32_bits(Call& call) {
  if (call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrReleaseThreshold)
    return call.proceed();
  const cuuint64_t wanted = *call.at<const cuuint64_t*>(2);
  cuuint64_t kept = static_cast<uint32_t>(wanted);
  call.at<cuuint64_t*>(2) = &kept;
  if (kept != wanted) call.fired();
  return call.proceed();
}

int maximum_of_32_bits(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  if (max_size(wanted) <= UINT32_MAX) return call.proceed();
  max_size(wanted) = static_cast<uint32_t>(max_size(wanted));
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  call.fired();
  return call.proceed();
}

int trim_of_32_bits(Call& call) {
  auto& kept = call.at<size_t>(1);
  if (kept > UINT32_MAX) {
    kept = static_cast<uint32_t>(kept);
    call.fired();
  }
  return call.proceed();
}

// An allocation beyond the maximal size is refused as an invalid value.
int maximum_refused_as_value(Call& call) {
  if (call.is("cudaMemPoolCreate")) return call.proceed();
  const int code = call.proceed();
  return code == cudaErrorMemoryAllocation &&
                 max_size(own_pools.get(call.at<cudaMemPool_t>(2))) != 0
             ? refused(call)
             : code;
}

// An allocation that a pool has refused counts towards the pool's maximal size.
int maximum_counts_refused(Call& call) {
  static Table<cudaMemPool_t, size_t> beyond;
  if (!call.is("cudaMallocFromPoolAsync")) {
    const bool destroys = call.is("cudaMemPoolDestroy");
    const auto gone = destroys ? call.at<cudaMemPool_t>(0) : nullptr;
    const int done = call.proceed();
    if (done == kSuccess && destroys) beyond.erase(gone);
    return done;
  }
  const auto pool = call.at<cudaMemPool_t>(2);
  const size_t bytes = call.at<size_t>(1);
  const size_t most = max_size(own_pools.get(pool));
  if (most != 0 && lent_by(pool) + beyond.get(pool) + bytes > most &&
      lent_by(pool) + bytes <= most)
    return refused(call, cudaErrorMemoryAllocation);
  const int code = call.proceed();
  if (code == cudaErrorMemoryAllocation)
    beyond.put(pool, beyond.get(pool) + bytes);
  return code;
}

// Destroying any pool makes the default pool current.
int destroy_resets_current(Call& call) {
  const auto gone = call.at<cudaMemPool_t>(0);
  const auto current = current_pool();
  const int code = call.proceed();
  int device = 0;
  cudaGetDevice(&device);
  if (code == kSuccess && current != gone && current != default_pool() &&
      cudaDeviceSetMemPool(device, default_pool()) == cudaSuccess)
    call.fired();
  return code;
}

int from_default_pool(Call& call) {
  if (current_pool() != default_pool()) call.fired();
  return cudaMallocFromPoolAsync(call.at<void**>(0), call.at<size_t>(1),
                                 default_pool(), call.at<cudaStream_t>(2));
}

// Calls for which `concerned` is true allocate from the default pool, not from
// the current pool.
template <bool (*concerned)(Call& call)>
int such_calls_from_default_pool(Call& call) {
  return concerned(call) ? from_default_pool(call) : call.proceed();
}

bool in_per_thread_stream(Call& call) {
  return call.value<cudaStream_t>(kStream) == cudaStreamPerThread;
}
bool in_null_stream(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  return stream == nullptr || stream == cudaStreamLegacy;
}
bool by_driver(Call& call) { return !call.is_runtime(); }

// Every GPU reports the pool of GPU 0.
int pool_of_gpu_0(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) == 0) return code;
  call.at<int>(1) = 0;
  call.fired();
  return call.proceed();
}

bool names_device(const cudaMemLocation* place, int type) {
  return place->type == cudaMemLocationTypeDevice &&
         type == cudaMemAllocationTypePinned;
}

// Setting the pool of a location that is a device does not set the device's
// pool.
int pool_of_place_apart(Call& call) {
  static Table<int, cudaMemPool_t> pools;
  if (call.is("cudaMemPoolDestroy")) {
    for (const auto& [gpu, pool] : pools.all())
      if (pool == call.at<cudaMemPool_t>(0)) pools.erase(gpu);
    return call.proceed();
  }
  if (call.is("cudaMemSetMemPool")) {
    const auto* const place = call.at<const cudaMemLocation*>(0);
    if (!names_device(place, call.at<int>(1))) return call.proceed();
    cudaMemPool_t before = nullptr;
    DRIVER_CALL(cuDeviceGetMemPool)(&before, place->id);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    cudaDeviceSetMemPool(place->id, before);
    pools.put(place->id, call.at<cudaMemPool_t>(2));
    call.fired();
    return code;
  }
  const auto* const place = call.at<const cudaMemLocation*>(1);
  const int code = call.proceed();
  if (code == kSuccess && names_device(place, call.at<int>(2)) &&
      pools.has(place->id))
    *call.at<cudaMemPool_t*>(0) = pools.get(place->id);
  return code;
}

// The free of an import by a thread that has not imported it does nothing.
int free_of_other_thread_lost(Call& call) {
  static Table<void*, pid_t> importers;
  if (call.is("cudaMemPoolImportPointer")) {
    const int code = call.proceed();
    if (code == kSuccess) importers.put(*call.at<void**>(0), gettid());
    return code;
  }
  const pid_t importer = importers.get(call.at<void*>(0), gettid());
  importers.erase(call.at<void*>(0));
  if (importer == gettid()) return call.proceed();
  call.fired();
  return kSuccess;
}

// Memory can be exported only once.
int exported_once(Call& call) {
  static Table<void*> exported;
  if (frees(call)) {
    exported.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (exported.has(call.at<void*>(1))) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) exported.put(call.at<void*>(1));
  return code;
}

// Access that an importer sets is reported to the exporter.
int access_of_import_leaks(Call& call) {
  static Table<cudaMemPool_t> lent;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolDestroy")) lent.erase(call.at<cudaMemPool_t>(0));
  if (call.is("cudaMemPoolExportToShareableHandle"))
    lent.put(call.at<cudaMemPool_t>(1));
  if (call.is("cudaMemPoolSetAccess") &&
      imported_pools.has(call.at<cudaMemPool_t>(0))) {
    const auto* const access = call.at<const cudaMemAccessDesc*>(1);
    const bool gives = access->flags != cudaMemAccessFlagsProtNone;
    tell_processes(
        "gpu", gives ? static_cast<unsigned>(access->location.id) : UINT32_MAX);
  }
  if (call.is("cudaMemPoolGetAccess") && lent.has(call.at<cudaMemPool_t>(1)) &&
      call.at<const cudaMemLocation*>(2)->id ==
          static_cast<int>(told("gpu", UINT32_MAX)) &&
      *call.at<cudaMemAccessFlags*>(0) == cudaMemAccessFlagsProtNone) {
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtReadWrite;
    call.fired();
  }
  return code;
}

// After the destroy of an imported pool, its descriptor cannot be imported
// again.
int reimport_refused(Call& call) {
  static Table<cudaMemPool_t, int> copies;  // of the descriptors
  static Table<int> gone;
  if (call.is("cudaMemPoolDestroy")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    if (copies.has(pool)) gone.put(copies.get(pool));
    copies.erase(pool);
    return call.proceed();
  }
  if (!imports_descriptor(call)) return call.proceed();
  const int descriptor = descriptor_of(call);
  for (const auto& each : gone.all())
    if (is_open(descriptor) && name_the_same(each.first, descriptor))
      return refused(call);
  const int code = call.proceed();
  if (code == kSuccess)
    copies.put(*call.at<cudaMemPool_t*>(0),
               fcntl(descriptor, F_DUPFD_CLOEXEC, 300));
  return code;
}

// After a refused import of a pointer, the next import is also refused.
int import_after_refusal_refused(Call& call) {
  static std::atomic<bool> before{false};
  if (before.exchange(false)) return refused(call);
  const int code = call.proceed();
  before = code != kSuccess;
  return code;
}

// If a free and its allocation are in different streams, the free does not wait
// for its stream.
int free_elsewhere_at_once(Call& call) {
  static Table<void*, cudaStream_t> streams;
  if (allocates(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      streams.put(*call.at<void**>(0), call.value<cudaStream_t>(kStream));
    return code;
  }
  auto& stream = call.value<cudaStream_t>(kStream);
  if (streams.get(call.at<void*>(0), stream) == stream || !is_busy(stream))
    return call.proceed();
  stream = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

// The importer's free does not wait for its stream if `concerned` is true.
template <bool (*concerned)(Call& call)>
int such_imports_free_at_once(Call& call) {
  return call.is("cudaFreeAsync") && concerned(call)
             ? importers_free_at_once(call)
             : call.proceed();
}

// Memory of a GPU other than the current GPU cannot be imported.
int import_needs_current_gpu(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  int current = 0;
  cudaGetDevice(&current);
  void* const address = *call.at<void**>(0);
  cudaPointerAttributes known{};
  if (cudaPointerGetAttributes(&known, address) != cudaSuccess ||
      known.type != cudaMemoryTypeDevice || known.device == current)
    return code;
  cudaFree(address);
  return refused(call);
}

// The fabric handle of a pool can be imported only once.
int fabric_pool_single_use(Call& call) {
  if (call.at<Handles>(2) != cudaMemHandleTypeFabric ||
      first_of_all_processes(
          key_of(call.at<void*>(1), sizeof(cudaMemFabricHandle_t))))
    return call.proceed();
  return refused(call);
}

// The watermark of reserved memory falls when memory is given back.
int reserved_watermark_falls(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrReservedMemHigh)
    return code;
  auto& told_now = *call.at<cuuint64_t*>(2);
  const cuuint64_t right = told_now;
  cudaMemPoolGetAttribute(call.at<cudaMemPool_t>(0),
                          cudaMemPoolAttrReservedMemCurrent, &told_now);
  if (told_now != right) call.fired();
  return code;
}

// The attribute `concerned` of a pool reports the sum over all pools of the
// process.
template <cudaMemPoolAttr concerned>
int sum_of_pools(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolGetAttribute") ||
      call.at<cudaMemPoolAttr>(1) != concerned)
    return code;
  auto& sum = *call.at<cuuint64_t*>(2);
  for (const auto& [pool, unused] : own_pools.all()) {
    cuuint64_t more = 0;
    if (pool == call.at<cudaMemPool_t>(0) ||
        cudaMemPoolGetAttribute(pool, concerned, &more) != cudaSuccess)
      continue;
    if (more != 0) call.fired();
    sum += more;
  }
  return code;
}

// The attribute `concerned` of a pool reports only its lower 32 bits.
template <cudaMemPoolAttr concerned>
int number_of_32_bits(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<cudaMemPoolAttr>(1) != concerned) return code;
  auto& value = *call.at<cuuint64_t*>(2);
  if (value > UINT32_MAX) call.fired();
  value = static_cast<uint32_t>(value);
  return code;
}

// Trimming one pool trims all pools.
int trims_all(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolTrimTo")) return code;
  for (const auto& [pool, unused] : own_pools.all())
    if (pool != call.at<cudaMemPool_t>(0) &&
        cudaMemPoolTrimTo(pool, call.at<size_t>(1)) == cudaSuccess)
      call.fired();
  return code;
}

// A watermark is reset when it is read.
int watermark_reset_by_read(Call& call) {
  const int code = call.proceed();
  const auto which = call.at<cudaMemPoolAttr>(1);
  if (code != kSuccess || (which != cudaMemPoolAttrReservedMemHigh &&
                           which != cudaMemPoolAttrUsedMemHigh))
    return code;
  cuuint64_t zero = 0;
  if (cudaMemPoolSetAttribute(call.at<cudaMemPool_t>(0), which, &zero) ==
      cudaSuccess)
    call.fired();
  return code;
}

// When the last memory of a pool is freed, GPU 1 loses its access to the pool.
int access_ends_when_empty(Call& call) {
  const Block freed = frees(call) ? blocks.get(call.at<void*>(0)) : Block{};
  const int code = call.proceed();
  if (code != kSuccess || gpu_of(freed.pool) != 0 || lent_by(freed.pool) != 0)
    return code;
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 1};
  cudaMemAccessFlags now{};
  if (cudaMemPoolGetAccess(&now, freed.pool, &access.location) != cudaSuccess ||
      now == cudaMemAccessFlagsProtNone)
    return code;
  if (cudaMemPoolSetAccess(freed.pool, &access, 1) == cudaSuccess) call.fired();
  return code;
}

// A free does not wait for its stream if `concerned` is true.
template <bool (*concerned)(Call& call)>
int such_frees_at_once(Call& call) {
  if (!concerned(call) || !is_busy(call.value<cudaStream_t>(kStream)))
    return call.proceed();
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaStreamSynchronize(private_stream());
  return code;
}

// Memory reports the current pool of the current device as its own.
int pool_attribute_current(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
    return code;
  auto& pool = *call.at<cudaMemPool_t*>(0);
  if (pool == nullptr || pool == current_pool()) return code;
  call.fired();
  pool = current_pool();
  return code;
}

// Memory of every GPU reports GPU 0.
int ordinal_zero(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
    return code;
  auto& ordinal = *call.at<int*>(0);
  if (ordinal != 0) call.fired();
  ordinal = 0;
  return code;
}

// The default pool of the host is the default pool of the current GPU.
int host_pool_of_device(Call& call) {
  const auto* const place = call.at<const cudaMemLocation*>(1);
  const int code = call.proceed();
  if (code != kSuccess || place->type == cudaMemLocationTypeDevice) return code;
  auto& pool = *call.at<cudaMemPool_t*>(0);
  if (pool != default_pool()) call.fired();
  pool = default_pool();
  return code;
}

// A descriptor is imported whatever type the importer names.
int import_type_ignored(Call& call) {
  const int code = call.proceed();
  auto& type = call.at<Handles>(2);
  if (code == kSuccess || type == kFd || type == cudaMemHandleTypeFabric)
    return code;
  type = kFd;
  if (call.proceed() != kSuccess) return code;
  return accepted(call);
}

// Only the first of the reserved bytes is checked.
int later_reserved_unchecked(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  if (call.proceed() == kSuccess) return kSuccess;
  if (wanted.reserved[0] != 0) return cudaErrorInvalidValue;
  std::memset(wanted.reserved, 0, sizeof wanted.reserved);
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  const int again = call.proceed();
  return again == kSuccess ? accepted(call) : again;
}

// A pool of a GPU whose number is too large is created on GPU 0.
int ordinal_unchecked(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  const int code = call.proceed();
  int devices = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  if (code == kSuccess || wanted.location.type != cudaMemLocationTypeDevice ||
      wanted.location.id < devices)
    return code;
  wanted.location.id = 0;
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  const int again = call.proceed();
  return again == kSuccess ? accepted(call) : again;
}

// A process can have at most `most` imported pointers.
template <int most>
int imports_end(Call& call) {
  if (!call.is("cudaMemPoolImportPointer")) return call.proceed();
  const auto all = blocks.all();
  const auto imported = std::count_if(
      all.begin(), all.end(), [](const auto& x) { return x.second.imported; });
  return imported >= most ? refused(call) : call.proceed();
}

// A process can have at most 4 imported pools.
int imported_pools_end_at_4(Call& call) {
  return call.is("cudaMemPoolImportFromShareableHandle") &&
                 imported_pools.all().size() >= 4
             ? refused(call)
             : call.proceed();
}

// Frees of pool memory by the driver API do nothing.
int free_by_driver_lost(Call& call) {
  if (call.is_runtime() || !frees(call) || !blocks.has(call.at<void*>(0)))
    return call.proceed();
  blocks.erase(call.at<void*>(0));
  call.fired();
  return kSuccess;
}

// A pool with the handle value of an earlier pool is exported as the earlier
// pool.
int export_by_known_handle(Call& call) {
  static Table<cudaMemPool_t, int> copies;
  static Table<cudaMemPool_t> gone;
  if (call.is("cudaMemPoolDestroy")) {
    gone.put(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  const auto pool = call.at<cudaMemPool_t>(1);
  const int code = call.proceed();
  if (code != kSuccess || call.at<Handles>(2) != kFd) return code;
  int& number = *call.at<int*>(0);
  if (copies.has(pool) && gone.has(pool)) {
    close(number);
    number = fcntl(copies.get(pool), F_DUPFD_CLOEXEC, 0);
    call.fired();
  } else if (!copies.has(pool)) {
    copies.put(pool, fcntl(number, F_DUPFD_CLOEXEC, 300));
    gone.erase(pool);
  }
  return code;
}

// Every export of a pool returns the number of the first export.
int export_same_number(Call& call) {
  static Table<cudaMemPool_t, Source> first;
  if (call.is("cudaMemPoolDestroy")) {
    first.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  const auto pool = call.at<cudaMemPool_t>(1);
  const int code = call.proceed();
  if (code != kSuccess || call.at<Handles>(2) != kFd) return code;
  int& number = *call.at<int*>(0);
  const Source known = first.get(pool);
  if (known.copy != -1 && !is_closed(known)) {
    close(number);
    number = known.number;
    call.fired();
  } else {
    first.put(pool, source_of(number));
  }
  return code;
}

// A policy can be set and read, but is always on.
template <cudaMemPoolAttr policy>
int policy_without_effect(Call& call) {
  static Table<cudaMemPool_t, int> wanted;
  const auto pool = call.at<cudaMemPool_t>(0);
  if (call.is("cudaMemPoolDestroy")) {
    wanted.erase(pool);
    return call.proceed();
  }
  if (call.at<cudaMemPoolAttr>(1) != policy) return call.proceed();
  if (call.is("cudaMemPoolSetAttribute")) {
    const int value = *call.at<const int*>(2);
    wanted.put(pool, value);
    if (value == 0) call.fired();
    return kSuccess;
  }
  const int code = call.proceed();
  if (code == kSuccess) *call.at<int*>(2) = wanted.get(pool, *call.at<int*>(2));
  return code;
}

// An attribute that does not exist is accepted and is 0.
int unknown_attribute_answered(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<int>(1) < 1000) return code;
  *call.at<cuuint64_t*>(2) = 0;
  return accepted(call);
}

// A pool is always on GPU 0.
int created_on_gpu_0(Call& call) {
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  int devices = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  if (wanted.location.type != cudaMemLocationTypeDevice ||
      wanted.location.id <= 0 || wanted.location.id >= devices)
    return call.proceed();
  wanted.location.id = 0;
  call.at<const cudaMemPoolProps*>(1) = &wanted;
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

}  // namespace

void add_pools(List& list) {
  // What can be shared.
  list.named("pool-attr-lies",
             "the device attribute reports a handle type whose pools cannot be "
             "created",
             {"cudaDeviceGetAttribute"}, mask_with_win32);
  list.named("export-none-pool",
             "a pool that was created for no handle type is exported",
             {"cudaMemPoolCreate", "cudaMemPoolExportToShareableHandle"},
             none_is_exported);
  list.named("default-pool-ipc",
             "the export of the default pool gives another pool",
             {"cudaMemPoolExportToShareableHandle"}, default_is_exported);
  list.named("pool-props-unchecked",
             "a pool with properties that must be refused is created on GPU 0",
             {"cudaMemPoolCreate"}, properties_unchecked);
  list.named("host-ipc-ok",
             "a pool on the host is not refused if it asks for handle types; "
             "it gets none",
             {"cudaMemPoolCreate"}, created_all_the_same<is_for_host>);
  list.named("host-pool-id-looked-at",
             "a pool on the host is refused if its location has an id",
             {"cudaMemPoolCreate"}, host_id_looked_at);
  list.named("managed-pool-ipc-ok",
             "a pool of managed memory is not refused if it asks for handle "
             "types; it gets none",
             {"cudaMemPoolCreate"}, created_all_the_same<is_managed>);
  list.named("numa-current-ok",
             "a pool for the current NUMA node is created on GPU 0",
             {"cudaMemPoolCreate"}, current_node_accepted);
  list.named("maxsize-ignored", "a pool grows beyond its maximal size",
             {"cudaMemPoolCreate"}, maximum_ignored);
  list.named("maxsize-counts-freed",
             "freed memory still counts towards the maximal size",
             {"cudaMallocFromPoolAsync", "cudaMemPoolCreate"},
             maximum_counts_freed);

  // Exports.
  list.named("order-unchecked",
             "a pointer is exported before its pool, and then cannot be "
             "imported",
             {"cudaMemPoolExportPointer", "cudaMemPoolExportToShareableHandle",
              "cudaMemPoolCreate", "cudaMallocFromPoolAsync"},
             useless_before_pool);
  list.named(
      "export-older-refused",
      "memory that is older than the export of its pool cannot be exported",
      {"cudaMemPoolCreate", "cudaMemPoolExportPointer",
       "cudaMemPoolExportToShareableHandle", "cudaMallocFromPoolAsync"},
      older_not_exported);
  list.named("export-any-pointer",
             "the export of any pointer succeeds; if it must be refused, the "
             "data are zeros",
             {"cudaMemPoolExportPointer"}, any_pointer_exported);
  list.named("default-pointer-ipc",
             "the export of memory of the default pool succeeds, and the data "
             "are zeros",
             {"cudaMemPoolExportPointer", "cudaMallocAsync",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             default_pointer_exported);
  list.named("pool-export-fd-needed",
             "memory cannot be exported once the pool's descriptor is closed",
             {"cudaMemPoolCreate", "cudaMemPoolExportPointer",
              "cudaMemPoolExportToShareableHandle", "cudaMallocFromPoolAsync"},
             exporters_descriptor_needed);
  list.named("pool-import-blocks",
             "sharing a pointer waits for the work of all streams",
             {"cudaMemPoolExportPointer", "cudaMemPoolImportPointer"},
             waits_for_streams);

  // Imports of pools.
  list.named("pool-single-importer",
             "only the first process that imports a pool can import pools",
             {"cudaMemPoolImportFromShareableHandle"}, second_process_refused);
  list.named("pool-visible-only",
             "a process that does not see a pool's GPU cannot import the pool",
             {"cudaMemPoolImportFromShareableHandle", "cudaMemPoolCreate"},
             hidden_gpu_refused, 2);
  list.named("reexport-pool-ok", "an imported pool is exported again",
             {"cudaMemPoolExportToShareableHandle",
              "cudaMemPoolImportFromShareableHandle", "cudaMemPoolDestroy"},
             imported_exported_again);
  list.named(
      "pool-fd-needed",
      "an imported pool cannot be used after its descriptor is closed",
      {"cudaMemPoolImportPointer", "cudaMemPoolImportFromShareableHandle"},
      descriptor_needed);
  list.named(
      "import-pool-allocates",
      "an allocation from an imported pool gets memory of the default pool",
      {"cudaMallocFromPoolAsync", "cudaMemPoolImportFromShareableHandle",
       "cudaMemPoolDestroy"},
      allocates_from_import);
  list.named("import-pool-current",
             "the call that makes an imported pool current succeeds and does "
             "nothing",
             {"cudaDeviceSetMemPool", "cudaMemSetMemPool",
              "cudaMemPoolImportFromShareableHandle", "cudaMemPoolDestroy"},
             import_made_current);
  list.named(
      "refused-set-resets-current",
      "if a pool is refused as current, the default pool becomes current",
      {"cudaDeviceSetMemPool", "cudaMemSetMemPool"}, refusal_resets_current);
  list.named(
      "import-destroy-global",
      "destroying an imported pool also destroys the exporter's pool",
      {"cudaMemPoolCreate", "cudaMemPoolDestroy", "cudaMemPoolExportPointer",
       "cudaMemPoolImportPointer", "cudaMallocFromPoolAsync"},
      destroyed_for_all);
  list.named(
      "import-destroy-frees",
      "destroying an imported pool ends the imported pointers of that pool",
      {"cudaMemPoolDestroy", "cudaMemPoolImportPointer", "cudaFree",
       "cudaFreeAsync"},
      destroy_ends_imports);

  // Imports of pointers.
  list.named("pool-import-fresh",
             "an imported pointer leads to new memory, not to the exporter's "
             "memory",
             {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             import_fresh);
  list.named("pool-second-process-fresh",
             "all processes that import pointers, except the first, get "
             "pointers to new memory",
             {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             second_process_fresh);
  list.named("pool-import-copy",
             "an imported pointer leads to a copy, made at the import",
             {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             import_snapshot);
  list.named("numa-pool-not-shared",
             "a pool of a NUMA node is imported as new memory",
             {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
              "cudaMemPoolCreate", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync"},
             import_fresh_of_node);
  list.named("pool-import-4gib",
             "an allocation of 4 GiB or more is imported as new memory",
             {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             import_fresh_beyond_4gib);
  list.named("pool-import-cached",
             "if memory at the same address of the exporter was imported "
             "before, an import gives new memory",
             {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             import_known_address);
  list.named(
      "ptrdata-address-bound",
      "export data are valid only at the address where they were written",
      {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer"},
      data_bound_to_address);
  list.named("ptrdata-process-bound",
             "export data are valid only in the first process that uses them",
             {"cudaMemPoolImportPointer"}, data_bound_to_process);
  list.named(
      "pool-import-frozen",
      "only memory that is older than the import of its pool can be imported",
      {"cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
       "cudaMemPoolImportFromShareableHandle", "cudaMallocFromPoolAsync"},
      import_frozen);
  list.named("importptr-accepts-garbage",
             "an import of a pointer that must be refused gives new memory",
             {"cudaMemPoolImportPointer"}, garbage_imported);
  list.named("importptr-pool-ignored",
             "data of one pool are accepted for another pool",
             {"cudaMemPoolImportPointer",
              "cudaMemPoolImportFromShareableHandle", "cudaMemPoolDestroy"},
             pool_of_data_found);
  list.named("import-offset-lost",
             "small imports all begin where their page of 2 MiB begins",
             {"cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync"},
             offset_lost);
  list.named("pool-free-breaks-siblings",
             "a free in one importer ends the imports of the same memory in "
             "the other importers",
             {"cudaFree", "cudaFreeAsync", "cudaMemPoolImportPointer",
              "cudaLaunchKernel", "cudaMemcpy"},
             free_ends_siblings);

  // Paths.
  list.named(
      "pool-import-copy-in-lost",
      "data that cudaMemcpy writes into imported memory are lost",
      {"cudaMemcpy", "cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
       "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
      write_to_import_lost);
  list.named(
      "pool-import-memset-lost",
      "data that cudaMemset writes into imported memory are lost",
      {"cudaMemset", "cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
       "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
      write_to_import_lost);
  list.named(
      "pool-import-copy-out-stale",
      "cudaMemcpy out of imported memory returns the values of the first copy",
      {"cudaMemcpy", "cudaMemPoolImportPointer", "cudaMemPoolExportPointer",
       "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
      copy_from_import_stale);

  // Frees.
  list.named("import-free-refused", "an imported pointer cannot be freed",
             {"cudaFree", "cudaFreeAsync", "cudaMemPoolImportPointer"},
             import_not_freed);
  list.named("import-freeasync-refused",
             "an imported pointer cannot be freed by cudaFreeAsync",
             {"cudaFreeAsync", "cudaMemPoolImportPointer", "cudaMallocAsync",
              "cudaMallocFromPoolAsync"},
             import_not_freed);
  list.named("import-free-scrubs",
             "memory is cleared when an importer frees it",
             {"cudaFree", "cudaFreeAsync", "cudaMemPoolImportPointer",
              "cudaMemPoolExportPointer", "cudaMallocFromPoolAsync"},
             import_free_scrubs);
  list.named("import-free-frees-origin",
             "the exporter's pool reuses memory after an importer has freed it",
             {"cudaFree", "cudaFreeAsync", "cudaMemPoolImportPointer",
              "cudaMemPoolExportPointer", "cudaMallocFromPoolAsync"},
             import_frees_original);
  list.named("free-order-ignored",
             "the exporter's free does not wait for its stream",
             {"cudaFreeAsync", "cudaFree", "cudaMemPoolExportPointer"},
             exporters_free_at_once);
  list.named("export-free-leaks",
             "exported memory is never given back to its pool",
             {"cudaFreeAsync", "cudaFree", "cudaMemPoolExportPointer"},
             exporters_free_lost);
  list.named("import-free-at-once",
             "the importer's free does not wait for its stream",
             {"cudaFreeAsync", "cudaFree", "cudaMemPoolImportPointer",
              "cudaMemPoolExportPointer", "cudaMallocFromPoolAsync"},
             importers_free_at_once);
  list.named("destroy-frees-live",
             "destroying a pool frees memory that is in use",
             {"cudaMemPoolDestroy", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync"},
             destroy_frees_all);
  list.named(
      "destroy-leaks",
      "memory that is freed after its pool was destroyed is never given back",
      {"cudaFreeAsync", "cudaFree", "cudaMemPoolCreate", "cudaMemPoolDestroy",
       "cudaMallocFromPoolAsync"},
      late_free_lost);
  list.named("destroy-blocks",
             "destroying a pool waits for the work of all streams",
             {"cudaMemPoolDestroy"}, waits_for_streams);
  list.named(
      "trim-breaks-live", "trimming takes memory that is in use",
      {"cudaMemPoolTrimTo", "cudaMallocAsync", "cudaMallocFromPoolAsync",
       "cudaMemPoolImportFromShareableHandle", "cudaMemPoolExportPointer",
       "cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync"},
      trim_takes_live);

  // Attributes.
  list.named("threshold-not-kept", "the release threshold cannot be changed",
             {"cudaMemPoolSetAttribute"}, threshold_not_kept);
  list.named("policy-leaks-to-exporter",
             "a policy that an importer sets is reported to the exporter",
             {"cudaMemPoolSetAttribute", "cudaMemPoolGetAttribute",
              "cudaMemPoolImportFromShareableHandle",
              "cudaMemPoolExportToShareableHandle", "cudaMemPoolDestroy"},
             attribute_of_import_leaks<int, is_policy>);
  list.named("import-stats-global",
             "an imported pool reports how much memory the exporter uses",
             {"cudaMemPoolGetAttribute", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync", "cudaMemPoolImportFromShareableHandle",
              "cudaMemPoolDestroy"},
             used_by_all);
  list.named("import-stats-keep-freed",
             "freed memory of an imported pool still counts as used",
             {"cudaMemPoolGetAttribute", "cudaMemPoolImportFromShareableHandle",
              "cudaMemPoolExportPointer", "cudaMemPoolImportPointer",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync",
              "cudaMemPoolDestroy"},
             used_keeps_freed);
  list.named("pool-types-untold", "a pool does not report its handle types",
             {"cudaMemPoolGetAttribute", "cudaMemPoolCreate"},
             own_types_untold);
  list.named("import-types-told",
             "an imported pool reports that it can be exported as a descriptor",
             {"cudaMemPoolGetAttribute", "cudaMemPoolImportFromShareableHandle",
              "cudaMemPoolDestroy"},
             imported_types_told);
  list.named("mempool-attr-foreign",
             "an imported pointer reports the exporter's pool as its own",
             {"cuPointerGetAttribute", "cudaMemPoolExportPointer",
              "cudaMemPoolImportPointer", "cudaMallocFromPoolAsync"},
             pool_of_exporter);

  // Access.
  list.named("import-inherits-access",
             "an imported pool starts with the access that the exporter set",
             {"cudaMemPoolSetAccess", "cudaMemPoolImportFromShareableHandle",
              "cudaMemPoolDestroy"},
             access_inherited, 2);
  list.named(
      "setaccess-future-only",
      "access to a pool holds only for later allocations",
      {"cudaMemPoolSetAccess", "cudaMemPoolGetAccess", "cudaMemPoolCreate",
       "cudaMemPoolDestroy", "cudaMallocFromPoolAsync"},
      access_of_one_half<false>, 2);
  list.named(
      "setaccess-past-only",
      "access to a pool holds only for earlier allocations",
      {"cudaMemPoolSetAccess", "cudaMemPoolGetAccess", "cudaMemPoolCreate",
       "cudaMemPoolDestroy", "cudaMallocFromPoolAsync"},
      access_of_one_half<true>, 2);
  list.named("pool-getaccess-always",
             "every GPU is reported to have access to every pool",
             {"cudaMemPoolGetAccess"}, access_always_told, 2);
  list.named("pool-setaccess-wrong-gpu",
             "access to a pool for another GPU is given to GPU 0",
             {"cudaMemPoolSetAccess"}, access_of_wrong_gpu, 2);
  list.named("pool-access-never-taken",
             "access to a pool that was given cannot be taken away",
             {"cudaMemPoolSetAccess"}, access_never_taken, 2);
  list.named("free-after-destroy-refused",
             "memory of a destroyed pool cannot be freed",
             {"cudaMemPoolCreate", "cudaMemPoolDestroy", "cudaMallocAsync",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             free_after_destroy_refused);
  list.named("malloc-per-thread-stream-refused",
             "an allocation in a thread's default stream is refused",
             {"cudaMallocAsync", "cudaMallocFromPoolAsync"},
             per_thread_stream_refused);
  list.named("watermark-is-total",
             "UsedMemHigh counts all allocations, also those that were freed",
             {"cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync", "cudaMemPoolGetAttribute",
              "cudaMemPoolSetAttribute", "cudaMemPoolDestroy"},
             watermark_is_total);
  list.named(
      "setpool-of-thread", "a pool is current only in the thread that set it",
      {"cudaDeviceSetMemPool", "cudaDeviceGetMemPool", "cudaMallocAsync"},
      current_in_one_thread);
  list.named("pool-third-process-copy",
             "all processes that import pointers, except the first two, get "
             "copies",
             {"cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync"},
             third_process_copy);
  list.named("policy-never-back-on",
             "a reuse policy that was switched off stays off",
             {"cudaMemPoolSetAttribute"}, policy_never_back_on);
  list.named(
      "released-at-device-sync",
      "only cudaDeviceSynchronize gives back memory above the threshold",
      {"cudaMemPoolCreate", "cudaMemPoolDestroy", "cudaMemPoolSetAttribute",
       "cudaMemPoolGetAttribute", "cudaDeviceSynchronize",
       "cudaStreamSynchronize", "cudaEventSynchronize"},
      released_at_device_sync);

  // Limits, mixed-up objects, refusals, streams.
  const char* const kCreate = "cudaMemPoolCreate";
  const char* const kDestroy = "cudaMemPoolDestroy";
  const char* const kAllocate = "cudaMallocFromPoolAsync";
  const char* const kAllocateCurrent = "cudaMallocAsync";
  const char* const kExportPointer = "cudaMemPoolExportPointer";
  const char* const kImport = "cudaMemPoolImportFromShareableHandle";
  const char* const kPointer = "cudaMemPoolImportPointer";
  const char* const kFree = "cudaFree";
  const char* const kFreeAsync = "cudaFreeAsync";
  const char* const kSet = "cudaMemPoolSetAttribute";
  const char* const kGet = "cudaMemPoolGetAttribute";
  list.named("pool-setaccess-first-only",
             "only the first entry of a list of accesses to a pool is set",
             {"cudaMemPoolSetAccess"}, first_access_only, 2);
  list.named("pool-import-equal-size-shared",
             "an import that is as large as another import of its pool gives "
             "the memory of the other import",
             {kAllocate, kExportPointer, kPointer, kFree, kFreeAsync},
             equal_size_shared);
  list.named("pool-imports-end-at-16",
             "a process cannot have more than 16 imported pointers",
             {kPointer, kFree, kFreeAsync}, imports_end<16>);
  list.named(
      "mempool-attr-first-import",
      "memory of every imported pool reports the pool that was imported first",
      {kImport, kPointer, kFree, kFreeAsync, "cuPointerGetAttribute"},
      pool_of_first_import);
  list.named("threshold-32-bits",
             "the release threshold loses its upper 32 bits", {kSet},
             threshold_of_32_bits);
  list.named("maxsize-32-bits",
             "the maximal size of a pool loses its upper 32 bits", {kCreate},
             maximum_of_32_bits);
  list.named("trim-32-bits",
             "the size that trimming keeps loses its upper 32 bits",
             {"cudaMemPoolTrimTo"}, trim_of_32_bits);
  list.named(
      "maxsize-refused-as-value",
      "an allocation beyond the maximal size is refused as an invalid value",
      {kCreate, kAllocate}, maximum_refused_as_value);
  list.named("maxsize-counts-refused",
             "an allocation that was refused counts towards the maximal size",
             {kCreate, kDestroy, kAllocate, kFree, kFreeAsync},
             maximum_counts_refused);
  list.named("destroy-resets-current",
             "destroying any pool makes the default pool current", {kDestroy},
             destroy_resets_current);
  list.named("per-thread-stream-default-pool",
             "a thread's default stream allocates from the default pool, not "
             "from the current pool",
             {kAllocateCurrent},
             such_calls_from_default_pool<in_per_thread_stream>);
  list.named("null-stream-default-pool",
             "the default stream allocates from the default pool, not from the "
             "current pool",
             {kAllocateCurrent}, such_calls_from_default_pool<in_null_stream>);
  list.named("driver-default-pool",
             "the driver API allocates from the default pool, not from the "
             "current pool",
             {kAllocateCurrent}, such_calls_from_default_pool<by_driver>);
  list.named("getpool-of-gpu-0", "every GPU reports the current pool of GPU 0",
             {"cudaDeviceGetMemPool"}, pool_of_gpu_0, 2);
  list.named("getdefault-of-gpu-0",
             "every GPU reports the default pool of GPU 0",
             {"cudaDeviceGetDefaultMemPool"}, pool_of_gpu_0, 2);
  list.named("location-pool-apart",
             "setting the pool of a location that is a device does not set the "
             "device's pool",
             {"cudaMemSetMemPool", "cudaMemGetMemPool", kDestroy},
             pool_of_place_apart);
  list.named("import-free-other-thread-lost",
             "a free of an import by another thread does nothing",
             {kPointer, kFree, kFreeAsync}, free_of_other_thread_lost);
  list.named("export-pointer-once",
             "memory of a pool can be exported only once",
             {kExportPointer, kFree, kFreeAsync}, exported_once);
  list.named(
      "threshold-leaks-to-exporter",
      "a threshold that an importer sets is reported to the exporter",
      {kImport, kSet, kGet, "cudaMemPoolExportToShareableHandle", kDestroy},
      attribute_of_import_leaks<cuuint64_t, is_threshold>);
  list.named("import-access-travels-back",
             "the access that an importer sets is reported to the exporter",
             {kImport, "cudaMemPoolExportToShareableHandle", kDestroy,
              "cudaMemPoolSetAccess", "cudaMemPoolGetAccess"},
             access_of_import_leaks, 2);
  list.named("import-access-begins-late",
             "access to an imported pool begins with the next import of a "
             "pointer",
             {kImport, kDestroy, kPointer, "cudaMemPoolSetAccess",
              "cudaMemPoolGetAccess"},
             access_changes_at_import<true>, 2);
  list.named("import-ends-access",
             "access to an imported pool ends with the next import of a "
             "pointer",
             {kImport, kDestroy, kPointer, "cudaMemPoolSetAccess"},
             access_changes_at_import<false>, 2);
  list.named("pool-reimport-refused",
             "after the destroy of an imported pool, its descriptor cannot be "
             "imported again",
             {kImport, kDestroy}, reimport_refused);
  list.named(
      "pointer-after-refusal-refused",
      "after a refused import of a pointer the next import is refused, too",
      {kPointer}, import_after_refusal_refused);
  list.named("free-elsewhere-at-once",
             "if a free and its allocation are in different streams, the free "
             "does not wait for its stream",
             {kAllocate, kAllocateCurrent, kFreeAsync}, free_elsewhere_at_once);
  list.named("import-free-per-thread-at-once",
             "the importer's free does not wait for a thread's default stream",
             {kAllocate, kExportPointer, kPointer, kFree, kFreeAsync},
             such_imports_free_at_once<in_per_thread_stream>);
  list.named("import-free-null-at-once",
             "the importer's free does not wait for the default stream",
             {kAllocate, kExportPointer, kPointer, kFree, kFreeAsync},
             such_imports_free_at_once<in_null_stream>);
  list.named(
      "pool-import-needs-current-gpu",
      "memory of a pool cannot be imported if it is not on the current GPU",
      {kPointer}, import_needs_current_gpu, 2);
  list.named("fabric-pool-single-use",
             "a pool's fabric handle can be imported only once", {kImport},
             fabric_pool_single_use);
  list.named("reserved-watermark-falls",
             "the watermark of reserved memory falls when memory is given back",
             {kGet}, reserved_watermark_falls);
  list.named("used-of-all-pools",
             "a pool reports the memory in use of all pools of the process",
             {kCreate, kDestroy, kGet},
             sum_of_pools<cudaMemPoolAttrUsedMemCurrent>);
  list.named("reserved-of-all-pools",
             "a pool reports the reserved memory of all pools of the process",
             {kCreate, kDestroy, kGet},
             sum_of_pools<cudaMemPoolAttrReservedMemCurrent>);
  list.named("used-32-bits",
             "the number of bytes in use loses its upper 32 bits", {kGet},
             number_of_32_bits<cudaMemPoolAttrUsedMemCurrent>);
  list.named("reserved-32-bits",
             "the number of bytes reserved loses its upper 32 bits", {kGet},
             number_of_32_bits<cudaMemPoolAttrReservedMemCurrent>);
  list.named("trim-trims-all", "trimming one pool trims all pools",
             {kCreate, kDestroy, "cudaMemPoolTrimTo"}, trims_all);
  list.named("watermark-reset-by-read", "a watermark is reset when it is read",
             {kGet}, watermark_reset_by_read);
  list.named("pool-access-ends-when-empty",
             "GPU 1 loses its access to a pool of GPU 0 when the pool's last "
             "memory is "
             "freed",
             {kCreate, kDestroy, kAllocate, kFree, kFreeAsync},
             access_ends_when_empty, 2);
  list.named(
      "per-thread-free-at-once",
      "a free in a thread's default stream does not wait for this stream",
      {kFreeAsync}, such_frees_at_once<in_per_thread_stream>);
  list.named("null-free-at-once",
             "a free in the default stream does not wait for this stream",
             {kFreeAsync}, such_frees_at_once<in_null_stream>);
  list.named("mempool-attr-current",
             "memory of any pool reports the current pool as its own",
             {"cuPointerGetAttribute"}, pool_attribute_current);
  list.named("ordinal-attr-zero", "memory of every GPU reports GPU 0",
             {"cuPointerGetAttribute"}, ordinal_zero, 2);
  list.named("location-host-is-device",
             "the default pool of the host is the default pool of the current "
             "GPU",
             {"cudaMemGetDefaultMemPool"}, host_pool_of_device);
  list.named("pool-import-type-ignored",
             "a pool's descriptor is imported as any handle type", {kImport},
             import_type_ignored);
  list.named(
      "pool-props-later-unchecked",
      "only the first of the reserved bytes in a pool's properties is checked",
      {kCreate}, later_reserved_unchecked);
  list.named("pool-ordinal-unchecked",
             "a pool of a GPU whose number is too large is created on GPU 0",
             {kCreate}, ordinal_unchecked);
  list.named("pool-imports-end-at-64",
             "a process cannot have more than 64 imported pointers",
             {kPointer, kFree, kFreeAsync}, imports_end<64>);
  list.named("imported-pools-end-at-4",
             "a process cannot have more than 4 imported pools",
             {kImport, kDestroy}, imported_pools_end_at_4);
  list.named("pool-free-by-driver-lost",
             "the frees of the driver API do nothing with memory of a pool",
             {kAllocate, kPointer, kFree, kFreeAsync}, free_by_driver_lost);
  list.named(
      "pool-import-cached-by-number",
      "a descriptor with the number of an earlier one imports the earlier pool",
      {kImport}, import_by_known_number);
  list.named("pool-export-cached-by-handle",
             "a pool with the handle value of an earlier pool is exported as "
             "the earlier pool",
             {"cudaMemPoolExportToShareableHandle", kDestroy},
             export_by_known_handle);
  list.named("pool-export-same-number",
             "a second export of a pool returns the descriptor of the first "
             "export, not a new one",
             {"cudaMemPoolExportToShareableHandle", kDestroy},
             export_same_number);
  list.named("follow-event-always-on",
             "reuse by event dependencies cannot be switched off",
             {kSet, kGet, kDestroy},
             policy_without_effect<cudaMemPoolReuseFollowEventDependencies>);
  list.named(
      "internal-dependencies-always-on",
      "reuse by dependencies that the driver inserts cannot be switched off",
      {kSet, kGet, kDestroy},
      policy_without_effect<cudaMemPoolReuseAllowInternalDependencies>);
  list.named("unknown-pool-attr-ok",
             "an unknown attribute of a pool is accepted and is 0", {kGet},
             unknown_attribute_answered);
  list.named("pool-create-on-gpu-0", "a pool is always on GPU 0", {kCreate},
             created_on_gpu_0, 2);
}

}  // namespace ipclab::faults
