// Bugs of virtual memory management and of its shareable handles.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "harness/faults/world/chunks.h"
#include "harness/faults/words/descriptor.h"

namespace ipclab::faults {
namespace {

constexpr size_t kFabricBytes = sizeof(CUmemFabricHandle);

// --- memory that a fault uses instead of other memory ------------------------

// Private memory on the GPU where `like` is; 0 if there is not enough memory.
Chunk private_chunk(Chunk like, size_t bytes) {
  return new_chunk(bytes, properties_of(like).location);
}

size_t granule() {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = on_gpu(0);
  size_t bytes = 0;
  DRIVER_CALL(cuMemGetAllocationGranularity)
  (&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return bytes;
}

// The smallest memory of GPU 0 that can be exported.
Chunk unrelated_chunk() { return new_chunk(granule(), on_gpu(0), kFd); }

// A chunk at its own addresses, which only the fault uses.
class Aside {
 public:
  Aside(Chunk chunk, size_t bytes) : bytes_(bytes) {
    DRIVER_CALL(cuMemAddressReserve)(&address_, bytes, 0, 0, 0);
    DRIVER_CALL(cuMemMap)(address_, bytes, 0, chunk, 0);
    allow(address_, bytes, on_gpu(properties_of(chunk).location.id));
    int current = 0;
    cudaGetDevice(&current);
    allow(address_, bytes, on_gpu(current));
  }
  Aside(const Aside&) = delete;
  ~Aside() {
    DRIVER_CALL(cuMemUnmap)(address_, bytes_);
    DRIVER_CALL(cuMemAddressFree)(address_, bytes_);
  }
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
  size_t bytes_;
};

void copy(Chunk to, Chunk from, size_t bytes) {
  const Aside target(to, bytes), source(from, bytes);
  DRIVER_CALL(cuMemcpyDtoD)(target.address(), source.address(), bytes);
}

bool is_mapped(Chunk chunk) { return mapping_of(chunk) != 0; }

// Gives a mapping other memory. Returns false if this fails.
bool replace(CUdeviceptr begin) {
  const size_t bytes = mappings.get(begin).bytes;
  const CUmemLocation place = location_at(begin);
  const Chunk other = new_chunk(bytes, place);
  if (other == 0) return false;
  cudaDeviceSynchronize();
  DRIVER_CALL(cuMemUnmap)(begin, bytes);
  DRIVER_CALL(cuMemMap)(begin, bytes, 0, other, 0);
  allow(begin, bytes, on_gpu(place.id));
  DRIVER_CALL(cuMemRelease)(other);
  return true;
}

// Replaces the memory of all mappings of imports, or of all mappings of
// exported memory. Returns false if nothing was replaced.
bool replace_all(bool imported) {
  bool any = false;
  for (const auto& [begin, mapped] : mappings.all())
    if (imports.has(mapped.chunk) == imported &&
        (imported || exports.has(mapped.chunk)))
      any = replace(begin) || any;
  return any;
}

// --- descriptors -------------------------------------------------------------

bool is_fabric(Call& call) {
  return call.at<CUmemAllocationHandleType>(2) == kFabric;
}

// Has the process that exported the memory ended?
bool owner_is_dead() {
  const auto pid = static_cast<pid_t>(told("owner", 0));
  return pid != 0 && has_ended(pid);
}

// Tells other processes when the exporter has released and unmapped a chunk
// that it had exported.
int tell_when_given_up(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  static Table<Chunk> held;  // only by mappings
  if (call.is("cuMemExportToShareableHandle"))
    tell_processes("owner", static_cast<unsigned long long>(getpid()));
  if (call.is("cuMemRelease") && exports.has(call.at<Chunk>(0)))
    held.put(call.at<Chunk>(0));
  for (const auto& [chunk, unused] : held.all())
    if (!is_mapped(chunk)) {
      held.erase(chunk);
      exports.erase(chunk);
      tell_processes("given up", 1);
    }
  return code;
}

bool owner_gave_up() { return told("given up", 0) != 0 || owner_is_dead(); }

// --- imports that are other memory -------------------------------------------

// The memory that the program gets instead of an import.
Table<Chunk, Chunk> others;

// Proceeds with an import. If `counts` is true, the import is one of those that
// are other memory.
int noted_import(Call& call, bool counts) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  others.erase(*call.at<Chunk*>(0));  // an earlier import had the handle
  if (!counts) imports.erase(*call.at<Chunk*>(0));
  return code;
}

// Each import is new memory. The fault creates this memory at the first
// mapping, because the size is not known before.
int map_other_memory(Call& call, bool with_bytes) {
  if (call.is("cuMemImportFromShareableHandle"))
    return noted_import(call, true);
  if (!call.is("cuMemMap") || !imports.has(call.at<Chunk>(3)))
    return call.proceed();
  const Chunk own = call.at<Chunk>(3);
  const size_t bytes = call.at<size_t>(1);
  if (!others.has(own)) {
    const Chunk other = private_chunk(own, bytes);
    if (other == 0) return call.proceed();
    if (with_bytes) copy(other, own, bytes);
    others.put(own, other);
  }
  call.at<Chunk>(3) = others.get(own);
  const int code = call.proceed();
  call.at<Chunk>(3) = own;
  if (code != kSuccess) return code;
  note_chunks(call);
  call.fired();
  return code;
}

int import_fresh(Call& call) { return map_other_memory(call, false); }

int import_snapshot(Call& call) { return map_other_memory(call, true); }

// An import in a process that has exported memory is a private copy.
int self_import_copy(Call& call) {
  static std::atomic<bool> exporter{false};
  if (!exports.all().empty()) exporter = true;
  return call.is("cuMemImportFromShareableHandle")
             ? noted_import(call, exporter)
             : map_other_memory(call, true);
}

// Of the descriptors that this process has imported, the fault keeps copies.
// Returns the copy of the same descriptor, or -1.
int copy_in(const Table<int>& copies, int descriptor) {
  for (const auto& each : copies.all())
    if (name_the_same(each.first, descriptor)) return each.first;
  return -1;
}
int new_copy(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 300); }

// The second import of one descriptor is new memory.
int second_import_fresh(Call& call) {
  static Table<int> copies;
  if (!call.is("cuMemImportFromShareableHandle"))
    return map_other_memory(call, false);
  if (!imports_descriptor(call)) return noted_import(call, false);
  const int descriptor = descriptor_of(call);
  const bool known = copy_in(copies, descriptor) != -1;
  const int code = noted_import(call, known);
  if (code == kSuccess && !known) copies.put(new_copy(descriptor));
  return code;
}

// Only the first process that imports gets the exporter's memory.
int second_process_fresh(Call& call) {
  static std::atomic<bool> first{true}, known{false};
  if (call.is("cuMemImportFromShareableHandle") && !known.exchange(true))
    first = first_of_all_processes("importer");
  return first ? call.proceed() : import_fresh(call);
}

// An import is cleared when it is unmapped.
int unmap_scrubs_import(Call& call) {
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  if (call.is("cuMemUnmap") && is_import(address) &&
      DRIVER_CALL(cuMemsetD8)(address, 0, call.at<size_t>(1)) == CUDA_SUCCESS)
    call.fired();
  return call.proceed();
}

// An import ends when the process that created the memory gives it up.
int owner_frees(Call& call) {
  if (is_use(call) && !imports.all().empty() && owner_gave_up()) {
    static std::atomic<bool> done{false};
    if (!done.exchange(true) && replace_all(true)) call.fired();
  }
  return tell_when_given_up(call);
}

// A descriptor alone does not keep its memory.
int descriptor_does_not_pin(Call& call) {
  if (call.is("cuMemImportFromShareableHandle"))
    return noted_import(call, owner_gave_up());
  if (call.is("cuMemMap")) return map_other_memory(call, false);
  return tell_when_given_up(call);
}

int import_needs_owner(Call& call) {
  if (!call.is("cuMemImportFromShareableHandle"))
    return tell_when_given_up(call);
  if (!owner_gave_up()) return call.proceed();
  return refused(call);
}

// When an importer gives up a reference (`by`), the exporter loses the memory.
int importer_takes(Call& call, const char* by) {
  if (call.is(by) && (call.is("cuMemUnmap") ? is_import(call.at<CUdeviceptr>(0))
                                            : imports.has(call.at<Chunk>(0))))
    tell_processes("taken", 1);
  if (is_use(call) && imports.all().empty() && told("taken", 0) != 0) {
    static std::atomic<bool> done{false};
    if (!done.exchange(true) && replace_all(false)) call.fired();
  }
  return call.proceed();
}

int importers_release_frees(Call& call) {
  return importer_takes(call, "cuMemRelease");
}

int importers_unmap_frees(Call& call) {
  return importer_takes(call, "cuMemUnmap");
}

// A chunk's second mapping is a private copy.
int alias_is_a_copy(Call& call) {
  if (!call.is("cuMemMap") || !is_mapped(call.at<Chunk>(3)))
    return call.proceed();
  const Chunk chunk = call.at<Chunk>(3);
  const size_t bytes = call.at<size_t>(1);
  const Chunk other = private_chunk(chunk, bytes);
  if (other == 0) return call.proceed();
  copy(other, chunk, bytes);
  call.at<Chunk>(3) = other;
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  DRIVER_CALL(cuMemRelease)(other);
  return code;
}

// The second descriptor of a chunk names other memory.
int second_export_elsewhere(Call& call) {
  if (call.is("cuMemRelease")) {
    exports.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  if (call.is("cuMemCreate")) return call.proceed();
  const Chunk chunk = call.at<Chunk>(1);
  if (call.at<CUmemAllocationHandleType>(2) != kFd) return call.proceed();
  if (!exports.has(chunk)) return call.proceed();
  const Chunk other = new_chunk(created.get(chunk, granule()),
                                properties_of(chunk).location, kFd);
  if (other == 0) return call.proceed();
  call.at<Chunk>(1) = other;
  const int code = call.proceed();
  DRIVER_CALL(cuMemRelease)(other);
  if (code == kSuccess) call.fired();
  return code;
}

// --- attributes and sizes ----------------------------------------------------

int not_supported(Call& call) {
  return refused(call, CUDA_ERROR_NOT_SUPPORTED);
}

template <int attribute>
int attribute_zero(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) != attribute) return code;
  int& value = *call.at<int*>(0);
  if (value != 0) call.fired();
  value = 0;
  return code;
}

// Can memory with a fabric handle be created here?
bool has_fabric(int device) {
  const Chunk made = new_chunk(granule(), on_gpu(device), kFabric);
  if (made != 0) DRIVER_CALL(cuMemRelease)(made);
  return made != 0;
}

int fabric_denied(Call& call) {
  constexpr int kAttribute = CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
  if (call.at<int>(1) == kAttribute && !has_fabric(call.at<int>(2)))
    return call.proceed();
  return attribute_zero<kAttribute>(call);
}

int descriptor_memory_refused(Call& call) {
  if ((call.at<const CUmemAllocationProp*>(2)->requestedHandleTypes & kFd) == 0)
    return call.proceed();
  return refused(call, CUDA_ERROR_NOT_SUPPORTED);
}

int granularity_zero(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  *call.at<size_t*>(0) = 0;
  call.fired();
  return code;
}

int granularity_half(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  *call.at<size_t*>(0) /= 2;
  call.fired();
  return code;
}

int recommended_below_minimum(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUmemAllocationGranularity_flags>(2) !=
                              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    return code;
  *call.at<size_t*>(0) = 4096;
  call.fired();
  return code;
}

int create_rounds_up(Call& call) {
  size_t& bytes = call.at<size_t>(1);
  const size_t unit = granule();
  if (bytes != 0 && bytes % unit == 0) return call.proceed();
  bytes = (bytes / unit + 1) * unit;
  call.fired();
  return call.proceed();
}

int create_truncates(Call& call) {
  size_t& bytes = call.at<size_t>(1);
  if (bytes > UINT32_MAX) {
    bytes = static_cast<uint32_t>(bytes);
    if (bytes == 0) bytes = granule();
    call.fired();
  }
  return call.proceed();
}

// Only sizes of 1, 2, 4, 8 … granules are accepted.
int create_power_of_two(Call& call) {
  const size_t granules = call.at<size_t>(1) / granule();
  if ((granules & (granules - 1)) == 0) return call.proceed();
  return refused(call);
}

// Memory at this location is created although its handle types must be refused.
// Memory of the current NUMA node is created on GPU 0.
template <CUmemLocationType location>
int created_all_the_same(Call& call) {
  CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
  const int code = call.proceed();
  if (code == kSuccess || wanted.location.type != location) return code;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  if (location == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
    wanted.location = on_gpu(0);
  call.at<const CUmemAllocationProp*>(2) = &wanted;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

int rdma_lost(Call& call) {
  CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
  if (wanted.allocFlags.gpuDirectRDMACapable == 0) return call.proceed();
  wanted.allocFlags.gpuDirectRDMACapable = 0;
  call.at<const CUmemAllocationProp*>(2) = &wanted;
  call.fired();
  return call.proceed();
}

// --- refusals that are missing -----------------------------------------------

int flags_ignored(Call& call) {
  Argument& flags = *call.find(kFlags);
  static constexpr char kNone[8] = {};
  if (std::memcmp(flags.place, kNone, flags.size) != 0) {
    std::memset(flags.place, 0, flags.size);
    call.fired();
  }
  return call.proceed();
}

// Every chunk and every pool is exported as a descriptor, even if the program
// asks for another type.
int export_unrequested(Call& call) {
  static Table<Chunk> unrequested;
  if (call.is("cuMemCreate")) {
    CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
    const bool is_meant = wanted.requestedHandleTypes == 0;
    if (is_meant) wanted.requestedHandleTypes = kFd;
    call.at<const CUmemAllocationProp*>(2) = &wanted;
    const int made = call.proceed();
    if (made != kSuccess) return made;
    unrequested.erase(*call.at<Chunk*>(0));  // earlier memory had the handle
    if (is_meant) unrequested.put(*call.at<Chunk*>(0));
    return made;
  }
  const int code = call.proceed();
  if (code == kSuccess) {
    if (call.is("cuMemExportToShareableHandle") &&
        unrequested.has(call.at<Chunk>(1)))
      call.fired();
    return code;
  }
  auto& type = call.at<CUmemAllocationHandleType>(2);
  type = kFd;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

int import_by_address(Call& call) {
  if (!imports_descriptor(call)) return call.proceed();
  call.fired();
  // A small number is not an address.
  if (reinterpret_cast<uintptr_t>(call.at<void*>(1)) < 4096)
    return CUDA_ERROR_INVALID_VALUE;
  const int number = *static_cast<int*>(call.at<void*>(1));
  call.at<void*>(1) = reinterpret_cast<void*>(static_cast<intptr_t>(number));
  return call.proceed();
}

// The import succeeds instead of a refusal and gives other memory, or another
// pool.
int accept(Call& call) {
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  if (call.is("cuMemImportFromShareableHandle")) {
    *call.at<Chunk*>(0) = unrelated_chunk();
    return kSuccess;
  }
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  return cudaMemPoolCreate(call.at<cudaMemPool_t*>(0), &wanted);
}

int import_any_descriptor(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !imports_descriptor(call) ||
      !is_open(descriptor_of(call)))
    return code;
  return accept(call);
}

// Is a pool imported as a chunk, or a chunk as a pool?
bool is_of_the_other_kind(Call& call) {
  if (call.is("cuMemImportFromShareableHandle")) {
    CUmemoryPool pool = nullptr;
    if (DRIVER_CALL(cuMemPoolImportFromShareableHandle)(
            &pool, call.at<void*>(1), kFd, 0) != CUDA_SUCCESS)
      return false;
    DRIVER_CALL(cuMemPoolDestroy)(pool);
    return true;
  }
  Chunk chunk = 0;
  if (DRIVER_CALL(cuMemImportFromShareableHandle)(&chunk, call.at<void*>(1),
                                                  kFd) != CUDA_SUCCESS)
    return false;
  DRIVER_CALL(cuMemRelease)(chunk);
  return true;
}

int kinds_confused(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !imports_descriptor(call) ||
      !is_of_the_other_kind(call))
    return code;
  return accept(call);
}

int foreign_channel_accepted(Call& call) {
  const int code = call.proceed();
  return code == CUDA_ERROR_NOT_PERMITTED && is_fabric(call) ? accept(call)
                                                             : code;
}

int access_with_holes(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemSetAccess") || code != CUDA_ERROR_INVALID_VALUE)
    return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const CUdeviceptr end = begin + call.at<size_t>(1);
  const auto* const access = call.at<const CUmemAccessDesc*>(2);
  bool any = false;
  for (const auto& [address, mapped] : mappings.all())
    if (address >= begin && address < end)
      any = DRIVER_CALL(cuMemSetAccess)(address, mapped.bytes, access,
                                        call.at<size_t>(3)) == CUDA_SUCCESS ||
            any;
  if (!any) return code;
  return accepted(call);
}

int access_for_any_device(Call& call) {
  const int code = call.proceed();
  const bool by_address = call.is("cuMemSetAccess");
  const CUmemLocation location =
      by_address ? call.at<const CUmemAccessDesc*>(2)->location
                 : call.at<const CUmemAccessDesc*>(1)->location;
  int devices = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  const bool unknown = location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                       (location.id < 0 || location.id >= devices);
  if (code == kSuccess || !unknown) return code;
  return accepted(call);
}

// Access is accepted for a GPU that exists but cannot reach the memory.
int access_for_stranger(Call& call) {
  const int code = call.proceed();
  const CUmemAccessDesc& access = call.is("cuMemSetAccess")
                                      ? *call.at<const CUmemAccessDesc*>(2)
                                      : *call.at<const CUmemAccessDesc*>(1);
  int devices = 0, reaches = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  if (code == kSuccess || access.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      access.location.id < 0 || access.location.id >= devices)
    return code;
  if (call.is("cuMemSetAccess")) {
    const int own = location_at(call.at<CUdeviceptr>(0)).id;
    DRIVER_CALL(cuDeviceCanAccessPeer)(&reaches, access.location.id, own);
    if (reaches != 0 || access.location.id == own) return code;
  }
  return accepted(call);
}

int access_for_node(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<const CUmemAccessDesc*>(2)->location.type !=
                              CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return code;
  return accepted(call);
}

// If another GPU gets access, the mapping becomes a copy.
int access_of_peer_is_a_copy(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  const CUmemAccessDesc access = *call.at<const CUmemAccessDesc*>(2);
  const Mapped mapped = mappings.get(address);
  const Chunk held =
      mapped.bytes == call.at<size_t>(1) ? retain(address) : Chunk{0};
  if (held == 0) return code;
  const CUmemLocation own = properties_of(held).location;
  const Chunk other = access.location.id != own.id
                          ? private_chunk(held, mapped.bytes)
                          : Chunk{0};
  if (other != 0) {
    const auto of_own = access_of(address, own);
    copy(other, held, mapped.bytes);
    DRIVER_CALL(cuMemUnmap)(address, mapped.bytes);
    DRIVER_CALL(cuMemMap)(address, mapped.bytes, 0, other, 0);
    if (of_own != 0) allow(address, mapped.bytes, own, of_own);
    if (allow(address, mapped.bytes, on_gpu(access.location.id), access.flags))
      call.fired();
    DRIVER_CALL(cuMemRelease)(other);
  }
  DRIVER_CALL(cuMemRelease)(held);
  return code;
}

int map_over_mapping(Call& call) {
  int code = call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  if (!call.is("cuMemMap") || code == kSuccess ||
      mappings.get(address).bytes != call.at<size_t>(1))
    return code;
  DRIVER_CALL(cuMemUnmap)(address, call.at<size_t>(1));
  code = call.proceed();
  allow(address, call.at<size_t>(1), on_gpu(0));
  if (code == kSuccess) call.fired();
  return code;
}

int map_beyond_chunk(Call& call) {
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  const size_t bytes = call.at<size_t>(1);
  static Table<CUdeviceptr, size_t> extra;
  if (call.is("cuMemUnmap")) {
    const int code = call.proceed();
    for (const CUdeviceptr beside : {address - bytes, address + bytes})
      if (code == kSuccess && extra.erase(beside))
        DRIVER_CALL(cuMemUnmap)(beside, bytes);
    return code;
  }
  // The program may map its own memory there.
  const size_t there = extra.get(address);
  if (extra.erase(address)) DRIVER_CALL(cuMemUnmap)(address, there);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const Chunk chunk = call.at<Chunk>(3);
  for (const CUdeviceptr beside : {address - bytes, address + bytes}) {
    const Chunk other = private_chunk(chunk, bytes);
    if (DRIVER_CALL(cuMemMap)(beside, bytes, 0, other, 0) == CUDA_SUCCESS) {
      allow(beside, bytes, on_gpu(properties_of(chunk).location.id));
      extra.put(beside, bytes);
      call.fired();
    }
    DRIVER_CALL(cuMemRelease)(other);
  }
  return code;
}

int offset_ignored(Call& call) {
  if (call.at<size_t>(2) != 0) {
    call.at<size_t>(2) = 0;
    call.fired();
  }
  return call.proceed();
}

int part_unmaps_all(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemUnmap") || code == kSuccess) return code;
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  const CUdeviceptr begin = mapping_at(address);
  const size_t bytes = mappings.get(begin).bytes;
  if (begin == 0 || call.at<size_t>(1) > bytes - (address - begin)) return code;
  DRIVER_CALL(cuMemUnmap)(begin, bytes);
  mappings.erase(begin);
  return accepted(call);
}

int frees_any_address(Call& call) {
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  const int code = call.proceed();
  if (!call.is("cuMemAddressFree") || code == kSuccess) return code;
  const CUdeviceptr begin = reservation_at(address);
  if (begin == 0 || mapping_at(begin) != 0 ||
      DRIVER_CALL(cuMemAddressFree)(begin, reservations.get(begin)) !=
          CUDA_SUCCESS)
    return code;
  reservations.erase(begin);
  return accepted(call);
}

int exports_mapped_memory(Call& call) {
  if (!call.is("cudaIpcGetMemHandle")) return call.proceed();
  const int code = call.proceed();
  if (code == kSuccess || mapping_at(call.at<CUdeviceptr>(1)) == 0) return code;
  static void* const other = [] {
    void* made = nullptr;
    cudaMalloc(&made, granule());
    return made;
  }();
  if (call.is_runtime()) cudaGetLastError();
  call.at<void*>(1) = other;
  call.fired();
  return call.proceed();
}

int unaligned_dma_buf(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<CUdeviceptr>(1) % 4096 == 0) return code;
  *call.at<int*>(0) = open("/dev/null", O_RDWR | O_CLOEXEC);
  return accepted(call);
}

// --- exports and their descriptors -------------------------------------------

int export_closed(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUmemAllocationHandleType>(2) != kFd)
    return code;
  close(*call.at<int*>(0));
  call.fired();
  return code;
}

// An exported descriptor. The copy shows whether the program has closed the
// descriptor and the number now stands for another one.
struct Exported {
  int number = -1;
  int copy = -1;
  bool is_open() const { return copy != -1 && name_the_same(copy, number); }
};
Table<Chunk, Exported> exported;
// Returns the descriptor of a chunk, and closes the copy.
Exported take_exported(Chunk chunk) {
  const Exported one = exported.get(chunk);
  const Exported found{one.is_open() ? one.number : -1, -1};
  if (exported.erase(chunk)) close(one.copy);
  return found;
}
void note_exported(Chunk chunk, int number) {
  take_exported(chunk);
  exported.put(chunk, {number, new_copy(number)});
}

// Every export of a chunk returns the same number.
int export_same_number(Call& call) {
  if (call.is("cuMemRelease")) {
    take_exported(call.at<Chunk>(0));
    return call.proceed();
  }
  const Exported known = exported.get(call.at<Chunk>(1));
  const bool is_known = known.is_open();
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUmemAllocationHandleType>(2) != kFd)
    return code;
  int& number = *call.at<int*>(0);
  if (!is_known) {
    note_exported(call.at<Chunk>(1), number);
    return code;
  }
  close(number);
  number = known.number;
  call.fired();
  return code;
}

// Releasing a chunk's handle closes the descriptor that was exported last.
int release_closes_descriptors(Call& call) {
  if (call.is("cuMemRelease")) {
    const int number = take_exported(call.at<Chunk>(0)).number;
    if (number != -1) {
      close(number);
      call.fired();
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess && call.at<CUmemAllocationHandleType>(2) == kFd)
    note_exported(call.at<Chunk>(1), *call.at<int*>(0));
  return code;
}

int import_closes(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !imports_descriptor(call)) return code;
  close(descriptor_of(call));
  call.fired();
  return code;
}

// Only one descriptor can be imported, and only once, in all processes
// together. (On a GPU, nothing shows that descriptors of two processes are of
// one memory.)
int import_once(Call& call) {
  if (!imports_descriptor(call)) return call.proceed();
  if (!first_of_all_processes("import")) return refused(call);
  return call.proceed();
}

// --- references --------------------------------------------------------------

// The first release of an import gives up all imports of that memory.
int release_gives_up_all(Call& call) {
  static Table<int> descriptors;    // a duplicate of each that was imported
  static Table<Chunk, int> origin;  // the duplicate for each import
  static Table<Chunk> gone;
  if (call.is("cuMemMap"))
    return gone.has(call.at<Chunk>(3)) ? refused(call) : call.proceed();
  if (call.is("cuMemImportFromShareableHandle")) {
    int descriptor = -1;
    if (imports_descriptor(call)) {
      descriptor = copy_in(descriptors, descriptor_of(call));
      if (descriptor == -1) descriptor = new_copy(descriptor_of(call));
    }
    const int code = call.proceed();
    if (descriptor != -1) descriptors.put(descriptor);
    if (code != kSuccess) return code;
    gone.erase(*call.at<Chunk*>(0));
    origin.put(*call.at<Chunk*>(0), descriptor);
    return code;
  }
  const Chunk chunk = call.at<Chunk>(0);
  if (gone.erase(chunk)) return kSuccess;
  const int descriptor = origin.get(chunk, -1);
  origin.erase(chunk);
  if (descriptor == -1) return call.proceed();
  for (const auto& [other, its] : origin.all())
    if (its == descriptor) {
      DRIVER_CALL(cuMemRelease)(other);
      origin.erase(other);
      gone.put(other);
      call.fired();
    }
  // The duplicate would keep the memory.
  if (descriptors.erase(descriptor)) close(descriptor);
  return call.proceed();
}

int release_frees_mapped(Call& call) {
  if (call.is("cuMemRelease"))
    for (const auto& [begin, mapped] : mappings.all())
      if (mapped.chunk == call.at<Chunk>(0) && replace(begin)) {
        // Other chunks may get the same handle.
        mappings.put(begin, {mapped.bytes, 0});
        call.fired();
      }
  return call.proceed();
}

int unmap_keeps_reference(Call& call) {
  if (retain(call.at<CUdeviceptr>(0)) != 0) call.fired();
  return call.proceed();
}

// All mappings of a chunk lose their memory when the first of them is unmapped.
int unmap_ends_aliases(Call& call) {
  const Chunk chunk = call.is("cuMemUnmap")
                          ? mappings.get(call.at<CUdeviceptr>(0)).chunk
                          : Chunk{0};
  const int code = call.proceed();
  if (code != kSuccess || chunk == 0) return code;
  for (const auto& [begin, mapped] : mappings.all())
    if (mapped.chunk == chunk && replace(begin)) call.fired();
  return code;
}

int retain_without_reference(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0));
  call.fired();
  return code;
}

// A retained handle has another value; the fault translates it in all calls.
int retain_other_value(Call& call) {
  static Table<Chunk, Chunk> real;
  constexpr Chunk kMark = Chunk{1} << 62;
  if (Argument* const argument = call.find(kChunk)) {
    Chunk& chunk = *static_cast<Chunk*>(argument->place);
    if (real.has(chunk)) chunk = real.get(chunk);
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  Chunk& chunk = *call.at<Chunk*>(0);
  real.put(chunk ^ kMark, chunk);
  chunk ^= kMark;
  call.fired();
  return code;
}

int retain_at_begin_only(Call& call) {
  if (!call.is("cuMemRetainAllocationHandle")) return call.proceed();
  const auto address = call.at<CUdeviceptr>(1);
  const CUdeviceptr begin = mapping_at(address);
  if (begin == 0 || begin == address) return call.proceed();
  return refused(call);
}

int retain_of_hole(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemRetainAllocationHandle") || code == kSuccess) return code;
  const CUdeviceptr before = mapping_at(call.at<CUdeviceptr>(1) - 1);
  if (before == 0) return code;
  call.at<CUdeviceptr>(1) = before;
  call.fired();
  return call.proceed();
}

template <bool zeros>
int import_properties(Call& call) {
  if (call.is("cuMemCreate"))
    tell_processes("ordinal",
                   static_cast<unsigned long long>(
                       call.at<const CUmemAllocationProp*>(2)->location.id));
  const int code = call.proceed();
  if (!call.is("cuMemGetAllocationPropertiesFromHandle") || code != kSuccess ||
      !imports.has(call.at<Chunk>(1)))
    return code;
  CUmemAllocationProp& found = *call.at<CUmemAllocationProp*>(0);
  const CUmemAllocationProp sound = found;
  if (zeros)
    found = {};
  else
    found.location.id = static_cast<int>(told("ordinal", 0));
  if (std::memcmp(&found, &sound, sizeof found) != 0) call.fired();
  return code;
}

// --- access ------------------------------------------------------------------

int map_grants_access(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess &&
      allow(call.at<CUdeviceptr>(0), call.at<size_t>(1),
            on_gpu(properties_of(call.at<Chunk>(3)).location.id)))
    call.fired();
  return code;
}

// Access that the exporter has set also holds in its importers from the
// beginning.
int access_inherited(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemSetAccess") && imports.all().empty())
    tell_processes("access", call.at<const CUmemAccessDesc*>(2)->flags);
  const auto flags = static_cast<CUmemAccess_flags>(told("access", 0));
  if (call.is("cuMemMap") && imports.has(call.at<Chunk>(3)) && flags != 0 &&
      allow(call.at<CUdeviceptr>(0), call.at<size_t>(1), on_gpu(0), flags))
    call.fired();
  return code;
}

// Access that an importer sets also holds for the exporter.
int access_travels_back(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemSetAccess") && is_import(call.at<CUdeviceptr>(0)))
    tell_processes("access", call.at<const CUmemAccessDesc*>(2)->flags);
  const auto flags = static_cast<CUmemAccess_flags>(told("access", ~0ull));
  if (!call.is("cuMemGetAccess") || told("access", ~0ull) == ~0ull ||
      is_import(call.at<CUdeviceptr>(2)))
    return code;
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(2));
  if (begin != 0 && allow(begin, on_gpu(0), flags)) call.fired();
  return call.proceed();
}

// A read-only range can also be written.
int read_only_ignored(Call& call) {
  static Table<CUdeviceptr, size_t> read_only;
  if (call.is("cuMemUnmap")) {
    const int code = call.proceed();
    if (code == kSuccess) read_only.erase(call.at<CUdeviceptr>(0));
    return code;
  }
  if (call.is("cuMemGetAccess")) {
    const int code = call.proceed();
    for (const auto& [begin, bytes] : read_only.all())
      if (code == kSuccess && call.at<CUdeviceptr>(2) >= begin &&
          call.at<CUdeviceptr>(2) < begin + bytes)
        *call.at<unsigned long long*>(0) = CU_MEM_ACCESS_FLAGS_PROT_READ;
    return code;
  }
  CUmemAccessDesc access = *call.at<const CUmemAccessDesc*>(2);
  const bool is_meant =
      call.at<size_t>(3) == 1 && access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (is_meant) call.at<const CUmemAccessDesc*>(2) = &access;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  read_only.erase(call.at<CUdeviceptr>(0));
  if (!is_meant) return code;
  read_only.put(call.at<CUdeviceptr>(0), call.at<size_t>(1));
  call.fired();
  return code;
}

int access_never_taken(Call& call) {
  if (call.at<size_t>(3) != 1 || call.at<const CUmemAccessDesc*>(2)->flags !=
                                     CU_MEM_ACCESS_FLAGS_PROT_NONE)
    return call.proceed();
  return accepted(call);
}

// Only the first mapping of a range gets the access.
int access_of_first_mapping(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  const size_t first = mappings.get(call.at<CUdeviceptr>(0)).bytes;
  if (first != 0 && first < call.at<size_t>(1)) {
    call.at<size_t>(1) = first;
    call.fired();
  }
  return call.proceed();
}

// Every address reports the access that was set last.
int access_told_of_last(Call& call) {
  static std::atomic<unsigned long long> last{0};
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemSetAccess")) {
    last = call.at<const CUmemAccessDesc*>(2)->flags;
  } else if (*call.at<unsigned long long*>(0) != last) {
    *call.at<unsigned long long*>(0) = last;
    call.fired();
  }
  return code;
}

// Access for another GPU is given to GPU 0.
int access_of_wrong_gpu(Call& call) {
  CUmemAccessDesc access = *call.at<const CUmemAccessDesc*>(2);
  if (call.at<size_t>(3) != 1 ||
      access.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      access.location.id == 0)
    return call.proceed();
  access.location.id = 0;
  call.at<const CUmemAccessDesc*>(2) = &access;
  call.fired();
  return call.proceed();
}

// A query about any GPU returns the access of GPU 0.
int access_told_of_gpu_0(Call& call) {
  CUmemLocation location = *call.at<const CUmemLocation*>(1);
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id == 0)
    return call.proceed();
  location.id = 0;
  call.at<const CUmemLocation*>(1) = &location;
  call.fired();
  return call.proceed();
}

// Access for one GPU is given to all GPUs.
int access_for_all_gpus(Call& call) {
  const int code = call.proceed();
  int devices = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  const auto* const access = call.at<const CUmemAccessDesc*>(2);
  for (int device = 0; code == kSuccess && device < devices; ++device)
    if (device != access->location.id &&
        allow(call.at<CUdeviceptr>(0), call.at<size_t>(1), on_gpu(device),
              access->flags))
      call.fired();
  return code;
}

int access_needs_peers(Call& call) {
  static std::atomic<bool> enabled{false};
  if (!call.is("cuMemSetAccess")) {
    enabled = true;
    return call.proceed();
  }
  const Chunk chunk = enabled ? Chunk{0} : retain(call.at<CUdeviceptr>(0));
  if (chunk == 0) return call.proceed();
  const int own = properties_of(chunk).location.id;
  DRIVER_CALL(cuMemRelease)(chunk);
  if (call.at<const CUmemAccessDesc*>(2)->location.id == own)
    return call.proceed();
  return refused(call, CUDA_ERROR_INVALID_DEVICE);
}

// --- mapping and addresses ---------------------------------------------------

int import_maps_in_part_only(Call& call) {
  if (call.is("cuMemCreate") && first_of_all_processes("creator"))
    tell_processes("bytes", call.at<size_t>(1));
  if (!call.is("cuMemMap") || !imports.has(call.at<Chunk>(3)) ||
      call.at<size_t>(1) < told("bytes", ~0ull))
    return call.proceed();
  return refused(call);
}

int import_maps_once(Call& call) {
  if (!call.is("cuMemMap") || !imports.has(call.at<Chunk>(3)) ||
      !is_mapped(call.at<Chunk>(3)))
    return call.proceed();
  return refused(call);
}

int remap_keeps_access(Call& call) {
  static Table<CUdeviceptr, CUmemAccess_flags> former;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  if (call.is("cuMemSetAccess")) {
    const CUmemAccessDesc& access = *call.at<const CUmemAccessDesc*>(2);
    if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        access.location.id != 0)
      return code;
    if (access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
      former.erase(address);
    else
      former.put(address, access.flags);
  } else if (former.has(address) && allow(address, call.at<size_t>(1),
                                          on_gpu(0), former.get(address))) {
    call.fired();
  }
  return code;
}

int remap_refused(Call& call) {
  static Table<CUdeviceptr> used;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemMap") && used.has(begin)) return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemMap"))
    used.put(begin);
  else
    for (const auto& each : used.all())
      if (each.first >= begin && each.first - begin < call.at<size_t>(1))
        used.erase(each.first);
  return code;
}

int unmap_frees_addresses(Call& call) {
  static Table<CUdeviceptr> freed;
  if (call.is("cuMemAddressFree") && freed.erase(call.at<CUdeviceptr>(0)) &&
      !reservations.has(call.at<CUdeviceptr>(0)))
    return kSuccess;
  const int code = call.proceed();
  if (!call.is("cuMemUnmap") || code != kSuccess) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const size_t bytes = reservations.get(begin);
  if (bytes == call.at<size_t>(1) &&
      DRIVER_CALL(cuMemAddressFree)(begin, bytes) == CUDA_SUCCESS) {
    reservations.erase(begin);
    freed.put(begin);
    call.fired();
  }
  return code;
}

// Returns addresses that are not a multiple of the granularity.
int reserve_misaligned(Call& call) {
  constexpr size_t kShift = 65536;
  static Table<CUdeviceptr, size_t> shifted;
  if (call.is("cuMemAddressFree")) {
    if (shifted.erase(call.at<CUdeviceptr>(0))) {
      call.at<CUdeviceptr>(0) -= kShift;
      call.at<size_t>(1) += granule();
    }
    return call.proceed();
  }
  call.at<size_t>(1) += granule();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  *call.at<CUdeviceptr*>(0) += kShift;
  shifted.put(*call.at<CUdeviceptr*>(0));
  call.fired();
  return code;
}

// Only the requested addresses are reserved, or none.
int hint_is_an_order(Call& call) {
  const CUdeviceptr wanted = call.at<CUdeviceptr>(3);
  const int code = call.proceed();
  const CUdeviceptr reserved = *call.at<CUdeviceptr*>(0);
  if (code != kSuccess || wanted == 0 || reserved == wanted) return code;
  DRIVER_CALL(cuMemAddressFree)(reserved, call.at<size_t>(1));
  return refused(call, CUDA_ERROR_OUT_OF_MEMORY);
}

// The program gets the requested addresses, even if they are reserved.
int hint_is_given_twice(Call& call) {
  const CUdeviceptr wanted = call.at<CUdeviceptr>(3);
  const int code = call.proceed();
  CUdeviceptr& reserved = *call.at<CUdeviceptr*>(0);
  if (code != kSuccess || wanted == 0 || reserved == wanted) return code;
  DRIVER_CALL(cuMemAddressFree)(reserved, call.at<size_t>(1));
  reserved = wanted;
  call.fired();
  return code;
}

// Memory of an import is cleared when it becomes usable.
int import_scrubbed(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess") ||
      !is_import(call.at<CUdeviceptr>(0)) ||
      call.at<const CUmemAccessDesc*>(2)->flags !=
          CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return code;
  DRIVER_CALL(cuMemsetD8)(call.at<CUdeviceptr>(0), 0, call.at<size_t>(1));
  call.fired();
  return code;
}

// --- paths -------------------------------------------------------------------

// The copies or memsets of one function to imported memory are lost.
int write_to_import_lost(Call& call) {
  if (call.find(kPointer) == nullptr || call.is("cuMemUnmap") ||
      call.is("cuMemMap") || call.is("cuMemImportFromShareableHandle") ||
      !is_import(call.value<CUdeviceptr>(kPointer)))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy out of imported memory returns the contents from the time of the first
// copy.
int copy_from_import_stale(Call& call) {
  static Table<CUdeviceptr, std::vector<char>*> first;
  const int code = call.proceed();
  if (call.is("cuMemUnmap") && code == kSuccess)
    for (const auto& each : first.all())
      if (mapping_at(each.first) == 0) first.erase(each.first);
  if (!call.is("cudaMemcpy") || code != kSuccess || !call.is_runtime() ||
      !is_import(call.at<CUdeviceptr>(1)))
    return code;
  const CUdeviceptr source = call.at<CUdeviceptr>(1);
  const size_t bytes = call.at<size_t>(2);
  auto* const known = first.get(source);
  if (known == nullptr) {
    auto* const seen = new std::vector<char>(bytes);
    cudaMemcpy(seen->data(), call.at<void*>(0), bytes, cudaMemcpyDefault);
    first.put(source, seen);
  } else if (known->size() == bytes) {
    cudaMemcpy(call.at<void*>(0), known->data(), bytes, cudaMemcpyDefault);
    call.fired();
  }
  return code;
}

// --- fabric handles ----------------------------------------------------------

int fabric_without_channel(Call& call) {
  CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
  const int code = call.proceed();
  if (code == kSuccess || (wanted.requestedHandleTypes & kFabric) == 0)
    return code;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  call.at<const CUmemAllocationProp*>(2) = &wanted;
  call.fired();
  return call.proceed();
}

// A handle whose memory is gone opens the memory of the first handle.
int fabric_stale_opens_other(Call& call) {
  constexpr size_t kWords = kFabricBytes / sizeof(unsigned long long);
  unsigned long long words[kWords] = {};
  const auto key = [](size_t i) { return "fabric-" + std::to_string(i); };
  const int code = call.proceed();
  if (!is_fabric(call)) return code;
  if (call.is("cuMemExportToShareableHandle")) {
    if (code != kSuccess || !first_of_all_processes("fabric")) return code;
    std::memcpy(words, call.at<void*>(0), sizeof words);
    for (size_t i = 0; i < kWords; ++i) tell_processes(key(i), words[i]);
    return code;
  }
  if (code == kSuccess) return code;
  for (size_t i = 0; i < kWords; ++i) words[i] = told(key(i), 0);
  call.at<void*>(1) = words;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

// A handle is valid only at the address where it was written.
int fabric_bound_to_address(Call& call) {
  if (!is_fabric(call)) return call.proceed();
  if (call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(key_of(call.at<void*>(0), kFabricBytes),
                     call.at<uintptr_t>(0));
    return code;
  }
  const std::string key = key_of(call.at<void*>(1), kFabricBytes);
  if (told(key, call.at<uintptr_t>(1)) == call.at<uintptr_t>(1))
    return call.proceed();
  return refused(call);
}

int fabric_single_use(Call& call) {
  if (!is_fabric(call) ||
      first_of_all_processes(key_of(call.at<void*>(1), kFabricBytes)))
    return call.proceed();
  return refused(call);
}

int fabric_too_long(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_fabric(call)) return code;
  static_cast<unsigned char*>(call.at<void*>(0))[kFabricBytes] ^= 0xFF;
  call.fired();
  return code;
}

// --- neighbours, settings that are changed again, other threads --------------

// Access to a mapping gives access to all mappings of its reservation.
int access_of_reservation(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const CUdeviceptr end = begin + call.at<size_t>(1);
  const CUdeviceptr first = reservation_at(begin);
  for (const auto& [address, mapped] : mappings.all())
    if (first != 0 && reservation_at(address) == first &&
        (address < begin || address >= end) &&
        DRIVER_CALL(cuMemSetAccess)(address, mapped.bytes,
                                    call.at<const CUmemAccessDesc*>(2),
                                    call.at<size_t>(3)) == CUDA_SUCCESS)
      call.fired();
  return code;
}

// Read access never becomes write access.
int access_never_raised(Call& call) {
  const auto* const wanted = call.at<const CUmemAccessDesc*>(2);
  if (call.at<size_t>(3) != 1 ||
      wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
      access_of(call.at<CUdeviceptr>(0), wanted->location) !=
          CU_MEM_ACCESS_FLAGS_PROT_READ)
    return call.proceed();
  return accepted(call);
}

// Access for one GPU ends the access of the other GPUs.
int access_replaces_others(Call& call) {
  const int code = call.proceed();
  int devices = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  const auto* const wanted = call.at<const CUmemAccessDesc*>(2);
  if (code != kSuccess || call.at<size_t>(3) != 1 ||
      wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
    return code;
  for (int device = 0; device < devices; ++device)
    if (device != wanted->location.id &&
        access_of(call.at<CUdeviceptr>(0), on_gpu(device)) != 0 &&
        allow(call.at<CUdeviceptr>(0), call.at<size_t>(1), on_gpu(device),
              CU_MEM_ACCESS_FLAGS_PROT_NONE))
      call.fired();
  return code;
}

int first_access_only(Call& call) {
  if (call.at<size_t>(3) > 1) {
    call.at<size_t>(3) = 1;
    call.fired();
  }
  return call.proceed();
}

int retain_of_import_refused(Call& call) {
  if (!call.is("cuMemRetainAllocationHandle") ||
      !is_import(call.at<CUdeviceptr>(1)))
    return call.proceed();
  return refused(call);
}

// Other memory is mapped at addresses that were used before, but the old memory
// is still there.
int remap_stale(Call& call) {
  static Table<CUdeviceptr, Mapped> first;
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  if (call.is("cuMemAddressFree")) {
    const int freed = call.proceed();
    for (const auto& [begin, old] : first.all())
      if (freed == kSuccess && begin >= address &&
          begin - address < call.at<size_t>(1)) {
        DRIVER_CALL(cuMemRelease)(old.chunk);
        first.erase(begin);
      }
    return freed;
  }
  if (!call.is("cuMemMap")) return call.proceed();
  const Mapped old = first.get(address);
  if (old.bytes == call.at<size_t>(1) && old.chunk != call.at<Chunk>(3)) {
    call.at<Chunk>(3) = old.chunk;
    call.fired();
  }
  const int code = call.proceed();
  if (code != kSuccess || old.bytes != 0) return code;
  const Chunk held = retain(address);
  if (held != 0) first.put(address, {call.at<size_t>(1), held});
  return code;
}

// A copy or memset ends where the first of several chunks ends.
int ends_with_chunk(Call& call) {
  if (call.find(kBytes) == nullptr || call.is("cuMemMap") ||
      call.is("cuMemUnmap"))
    return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  for (const Role role : {kPointer, kSource}) {
    if (call.find(role) == nullptr) continue;
    const auto address = call.value<CUdeviceptr>(role);
    const CUdeviceptr begin = mapping_at(address);
    if (begin == 0) continue;
    const size_t room = begin + mappings.get(begin).bytes - address;
    if (bytes <= room) continue;
    bytes = room;
    call.fired();
  }
  return call.proceed();
}

// Copies do not reach beyond the first two granules of an import.
int two_granules_copied(Call& call) {
  if (!call.is("cudaMemcpy")) return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  for (const Role role : {kPointer, kSource}) {
    const auto address = call.value<CUdeviceptr>(role);
    if (!is_import(address)) continue;
    const CUdeviceptr end = mapping_at(address) + 2 * granule();
    const size_t room = address < end ? end - address : 0;
    if (bytes <= room) continue;
    bytes = room;
    call.fired();
  }
  return bytes == 0 ? kSuccess : call.proceed();
}

// A handle that was released cannot be retained, although it is mapped.
int retain_after_release_refused(Call& call) {
  if (!call.is("cuMemRetainAllocationHandle")) {
    if (call.is("cuMemMap")) released.erase(call.at<Chunk>(3));
    return call.proceed();
  }
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(1));
  if (begin == 0 || !released.has(mappings.get(begin).chunk))
    return call.proceed();
  return refused(call);
}

// Unmapped memory is kept until its addresses are freed.
int memory_back_at_address_free(Call& call) {
  static Table<CUdeviceptr, std::vector<Chunk>> kept;
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    const Chunk held = retain(begin);
    const int code = call.proceed();
    if (held == 0) return code;
    if (code != kSuccess) {
      DRIVER_CALL(cuMemRelease)(held);
      return code;
    }
    kept.change([&](auto& all) { all[begin].push_back(held); });
    call.fired();
    return code;
  }
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const size_t bytes = call.at<size_t>(1);
  const int code = call.proceed();
  for (const auto& [address, chunks] : kept.all())
    if (code == kSuccess && address >= begin && address < begin + bytes) {
      for (const Chunk chunk : chunks) DRIVER_CALL(cuMemRelease)(chunk);
      kept.erase(address);
    }
  return code;
}

int release_of_other_thread_lost(Call& call) {
  static Table<Chunk, pid_t> importers;
  if (call.is("cuMemImportFromShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) importers.put(*call.at<Chunk*>(0), gettid());
    return code;
  }
  const Chunk chunk = call.at<Chunk>(0);
  if (importers.get(chunk, gettid()) != gettid()) return accepted(call);
  importers.erase(chunk);
  return call.proceed();
}

// --- alignment, limits, mixed-up objects -------------------------------------

// The alignment of a reservation is ignored.
int alignment_ignored(Call& call) {
  const size_t wanted = call.at<size_t>(2);
  call.at<size_t>(2) = 0;
  const int code = call.proceed();
  if (code == kSuccess && wanted != 0 &&
      *call.at<CUdeviceptr*>(0) % wanted != 0)
    call.fired();
  return code;
}

int odd_alignment_accepted(Call& call) {
  const size_t wanted = call.at<size_t>(2);
  const int code = call.proceed();
  if (code == kSuccess || (wanted & (wanted - 1)) == 0) return code;
  call.at<size_t>(2) = 0;
  call.fired();
  return call.proceed();
}

// A size that is not a multiple of a page is rounded up.
int odd_reservation_accepted(Call& call) {
  constexpr size_t kPage = 4096;
  const size_t wanted = call.at<size_t>(1);
  const int code = call.proceed();
  if (code == kSuccess || wanted % kPage == 0) return code;
  call.at<size_t>(1) = (wanted / granule() + 1) * granule();
  call.fired();
  return call.proceed();
}

// Every address of a reservation names the handle that is mapped at its
// beginning.
int retain_of_first_chunk(Call& call) {
  if (!call.is("cuMemRetainAllocationHandle")) return call.proceed();
  auto& address = call.at<CUdeviceptr>(1);
  const CUdeviceptr begin = mapping_at(address);
  const CUdeviceptr first = reservation_at(begin);
  if (first == 0 || mapping_at(first) == 0) return call.proceed();
  if (mappings.get(begin).chunk != mappings.get(first).chunk) call.fired();
  address = first;
  return call.proceed();
}

// The release of a retained handle does nothing.
int release_of_retained_lost(Call& call) {
  static Table<Chunk, int> retained;
  if (call.is("cuMemRetainAllocationHandle")) {
    const int code = call.proceed();
    const Chunk chunk = *call.at<Chunk*>(0);
    if (code == kSuccess) retained.put(chunk, retained.get(chunk) + 1);
    return code;
  }
  const Chunk chunk = call.at<Chunk>(0);
  if (retained.get(chunk) == 0) return call.proceed();
  retained.put(chunk, retained.get(chunk) - 1);
  return accepted(call);
}

// A handle that was released and then retained from its mapping is not
// exported.
int retained_not_exported(Call& call) {
  if (call.is("cuMemExportToShareableHandle") &&
      released.has(call.at<Chunk>(1)))
    return refused(call);
  return call.proceed();
}

// A process can have at most 16 imports.
int imports_end_at_16(Call& call) {
  if (call.is("cuMemRelease")) {
    imports.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  return imports.all().size() >= 16 ? refused(call) : call.proceed();
}

// An allocation can be exported at most 16 times.
int exports_end_at_16(Call& call) {
  static Table<Chunk, int> count;
  if (call.is("cuMemCreate")) {
    const int made = call.proceed();
    if (made == kSuccess) count.erase(*call.at<Chunk*>(0));
    return made;
  }
  const Chunk chunk = call.at<Chunk>(1);
  if (count.get(chunk) >= 16) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) count.put(chunk, count.get(chunk) + 1);
  return code;
}

// An import that has the size of a mapped import gives the memory of that
// import.
int equal_size_shared(Call& call) {
  static Table<Chunk, ino_t> files;
  static std::atomic<ino_t> imported{0};
  if (call.is("cuMemImportFromShareableHandle")) {
    const int descriptor = imports_descriptor(call) ? descriptor_of(call) : -1;
    const ino_t file =
        is_of_device(descriptor) ? ++imported : identity(descriptor);
    const int code = call.proceed();
    if (code == kSuccess) files.put(*call.at<Chunk*>(0), file);
    return code;
  }
  if (!call.is("cuMemMap") || !imports.has(call.at<Chunk>(3)))
    return call.proceed();
  for (const auto& [begin, mapped] : mappings.all())
    if (mapped.bytes == call.at<size_t>(1) && imports.has(mapped.chunk) &&
        files.get(mapped.chunk) != files.get(call.at<Chunk>(3))) {
      // The program may have released the handle of the mapping.
      const Chunk held = retain(begin);
      if (held == 0) continue;
      call.at<Chunk>(3) = held;
      call.fired();
      const int code = call.proceed();
      DRIVER_CALL(cuMemRelease)(held);
      return code;
    }
  return call.proceed();
}

// All processes that import memory, except the first two, get copies.
int third_process_copy(Call& call) {
  static std::atomic<bool> early{true}, known{false};
  if (call.is("cuMemImportFromShareableHandle") && !known.exchange(true))
    early = first_of_all_processes("one") || first_of_all_processes("two");
  return early ? call.proceed() : import_snapshot(call);
}

// Memory is unmapped when the thread that mapped it ends.
int mapping_ends_with_thread(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemMap")) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  at_thread_end([begin, mine = mappings.get(begin)] {
    // The addresses may have another mapping now.
    if (mappings.get(begin).order == mine.order &&
        DRIVER_CALL(cuMemUnmap)(begin, mine.bytes) == CUDA_SUCCESS) {
      mappings.erase(begin);
      note_fired("cuMemMap");
    }
  });
  return code;
}

// Later calls with the handle are refused. Only its release succeeds.
int handle_ends_with_thread(Call& call) {
  static std::atomic<int> last{0};
  static Table<Chunk, int> numbers;  // of the imports; 0 after the end
  if (!call.is("cuMemImportFromShareableHandle")) {
    const Chunk chunk = call.value<Chunk>(kChunk);
    const bool has_ended = numbers.get(chunk, -1) == 0;
    const bool releases = call.is("cuMemRelease");
    if (releases) numbers.erase(chunk);
    if (!has_ended) return call.proceed();
    return releases ? kSuccess : refused(call);
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const Chunk chunk = *call.at<Chunk*>(0);
  const int number = ++last;
  numbers.put(chunk, number);
  at_thread_end([chunk, number] {
    if (numbers.get(chunk) != number) return;
    numbers.put(chunk, 0);
    if (DRIVER_CALL(cuMemRelease)(chunk) == CUDA_SUCCESS)
      note_fired("cuMemImportFromShareableHandle");
  });
  return code;
}

// The properties do not have the handle types that were requested.
int types_lost(Call& call) {
  const int code = call.proceed();
  auto& types = call.at<CUmemAllocationProp*>(0)->requestedHandleTypes;
  if (code != kSuccess || types == CU_MEM_HANDLE_TYPE_NONE) return code;
  types = CU_MEM_HANDLE_TYPE_NONE;
  call.fired();
  return code;
}

// A mapping that is larger than the memory is accepted.
int larger_mapped(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemMap") ||
      call.at<size_t>(1) <= created.get(call.at<Chunk>(3), call.at<size_t>(1)))
    return code;
  call.at<size_t>(1) = created.get(call.at<Chunk>(3));
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

// Memory is never given back if its handle is released before the memory is
// unmapped.
int leaks_if_released_first(Call& call) {
  if (!call.is("cuMemRelease") || !is_mapped(call.at<Chunk>(0)))
    return call.proceed();
  return accepted(call);
}

// Memory is never given back if the memory is unmapped before its handle is
// released.
int leaks_if_unmapped_first(Call& call) {
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    if (mappings.has(begin) && !released.has(mappings.get(begin).chunk) &&
        retain(begin) != 0)
      call.fired();
  }
  return call.proceed();
}

// After a refused import the next import is also refused.
int import_after_refusal_refused(Call& call) {
  static std::atomic<bool> before{false};
  if (before.exchange(false)) return refused(call);
  const int code = call.proceed();
  before = code != kSuccess;
  return code;
}

// A refused mapping of mapped addresses unmaps these addresses.
int refused_map_unmaps(Call& call) {
  const int code = call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (code == kSuccess || !call.is("cuMemMap") || begin == 0) return code;
  if (DRIVER_CALL(cuMemUnmap)(begin, mappings.get(begin).bytes) ==
      CUDA_SUCCESS) {
    mappings.erase(begin);
    call.fired();
  }
  return code;
}

// After a refused unmapping the range has no access.
int refused_unmap_takes_access(Call& call) {
  const int code = call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (code == kSuccess || !call.is("cuMemUnmap") || begin == 0) return code;
  if (allow(begin, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE)) call.fired();
  return code;
}

// With `mapped`, memory cannot be exported while it is mapped. Otherwise it can
// be exported only while it is mapped.
template <bool mapped>
int export_refused_if(Call& call) {
  if (!call.is("cuMemExportToShareableHandle") ||
      is_mapped(call.at<Chunk>(1)) != mapped)
    return call.proceed();
  return refused(call);
}

// Memory of a GPU other than the current GPU cannot be imported.
int import_needs_current_gpu(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  int current = 0;
  cudaGetDevice(&current);
  const Chunk chunk = *call.at<Chunk*>(0);
  const CUmemLocation place = properties_of(chunk).location;
  if (place.type != CU_MEM_LOCATION_TYPE_DEVICE || place.id == current)
    return code;
  DRIVER_CALL(cuMemRelease)(chunk);
  return refused(call, CUDA_ERROR_NOT_SUPPORTED);
}

// Every fabric handle opens the memory of the first handle.
int fabric_opens_first(Call& call) {
  static CUmemFabricHandle first{};
  static std::atomic<bool> known{false};
  if (!is_fabric(call)) return call.proceed();
  if (!known.exchange(true))
    std::memcpy(&first, call.at<void*>(1), kFabricBytes);
  if (std::memcmp(&first, call.at<void*>(1), kFabricBytes) != 0) call.fired();
  call.at<void*>(1) = &first;
  return call.proceed();
}

// A range whose mapping ends too early is exported; the result is a descriptor
// of /dev/null.
int dma_buf_of_hole(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemGetHandleForAddressRange") || code == kSuccess)
    return code;
  const size_t bytes = mappings.get(call.at<CUdeviceptr>(1)).bytes;
  if (bytes == 0 || bytes >= call.at<size_t>(2)) return code;
  *call.at<int*>(0) = open("/dev/null", O_RDWR | O_CLOEXEC);
  return accepted(call);
}

int odd_dma_buf(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<size_t>(2) % 4096 == 0 ||
      call.at<CUdeviceptr>(1) % 4096 != 0)
    return code;
  *call.at<int*>(0) = open("/dev/null", O_RDWR | O_CLOEXEC);
  return accepted(call);
}

// Unmapping also releases the handle that was mapped.
int unmap_releases(Call& call) {
  static Table<Chunk> gone;
  if (call.is("cuMemRelease") && gone.erase(call.at<Chunk>(0))) return kSuccess;
  if (call.is("cuMemMap") && gone.has(call.at<Chunk>(3))) return refused(call);
  const Chunk chunk =
      call.is("cuMemUnmap") ? mappings.get(call.at<CUdeviceptr>(0)).chunk : 0;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemCreate") || call.is("cuMemImportFromShareableHandle"))
    gone.erase(*call.at<Chunk*>(0));  // earlier memory had the handle
  if (chunk != 0 && !released.has(chunk) && !is_mapped(chunk) &&
      DRIVER_CALL(cuMemRelease)(chunk) == CUDA_SUCCESS) {
    gone.put(chunk);
    call.fired();
  }
  return code;
}

// Every handle has the properties of the memory that was created last.
int properties_of_latest(Call& call) {
  static std::atomic<const CUmemAllocationProp*> latest{nullptr};
  if (call.is("cuMemCreate")) {
    auto* const wanted =
        new CUmemAllocationProp(*call.at<const CUmemAllocationProp*>(2));
    const int code = call.proceed();
    if (code == kSuccess) latest = wanted;
    return code;
  }
  const int code = call.proceed();
  auto& told_now = *call.at<CUmemAllocationProp*>(0);
  if (code != kSuccess || latest == nullptr ||
      (told_now.location.id == latest.load()->location.id &&
       told_now.requestedHandleTypes == latest.load()->requestedHandleTypes))
    return code;
  told_now = *latest;
  call.fired();
  return code;
}

// A process can have at most 64 mappings.
int mappings_end_at_64(Call& call) {
  if (!call.is("cuMemMap") || mappings.all().size() < 64)
    return call.proceed();
  return refused(call);
}

// A size loses its upper 32 bits.
int size_of_32_bits(Call& call) {
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes <= UINT32_MAX) return call.proceed();
  bytes = static_cast<uint32_t>(bytes);
  call.fired();
  return call.proceed();
}

// An import can be mapped only while its descriptor is open.
int import_needs_open_descriptor(Call& call) {
  struct Source {
    int number = -1;
    ino_t file = 0;
  };
  static Table<Chunk, Source> sources;
  if (call.is("cuMemCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) sources.erase(*call.at<Chunk*>(0));
    return code;
  }
  if (call.is("cuMemImportFromShareableHandle")) {
    const int number = imports_descriptor(call) ? descriptor_of(call) : -1;
    const int code = call.proceed();
    if (code == kSuccess)
      sources.put(*call.at<Chunk*>(0), {number, identity(number)});
    return code;
  }
  const Source source = sources.get(call.at<Chunk>(3));
  if (source.file == identity(source.number)) return call.proceed();
  return refused(call);
}

// Mapping memory a second time takes the access from its first mapping.
int second_mapping_takes_access(Call& call) {
  const Chunk chunk = call.is("cuMemMap") ? call.at<Chunk>(3) : 0;
  const auto before = mappings.all();
  const int code = call.proceed();
  if (code != kSuccess || chunk == 0) return code;
  for (const auto& [begin, mapped] : before)
    if (mapped.chunk == chunk &&
        allow(begin, on_gpu(properties_of(chunk).location.id),
              CU_MEM_ACCESS_FLAGS_PROT_NONE))
      call.fired();
  return code;
}

// A descriptor is imported whatever type the importer names.
int import_type_ignored(Call& call) {
  const int code = call.proceed();
  auto& type = call.at<CUmemAllocationHandleType>(2);
  if (code == kSuccess || type == kFd || type == kFabric) return code;
  type = kFd;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

// The upper half of reserved flags of 64 bits is not checked.
int upper_flags_ignored(Call& call) {
  auto& flags = call.value<unsigned long long>(kFlags);
  if (flags <= UINT32_MAX) return call.proceed();
  flags &= UINT32_MAX;
  call.fired();
  return call.proceed();
}

// Only the first retain of a handle adds a reference.
int retains_once(Call& call) {
  static Table<Chunk> retained;
  if (call.is("cuMemRelease")) {
    retained.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const Chunk chunk = *call.at<Chunk*>(0);
  if (retained.has(chunk) && DRIVER_CALL(cuMemRelease)(chunk) == CUDA_SUCCESS)
    call.fired();
  retained.put(chunk);
  return code;
}

// Memory for any GPU is created on GPU 0.
int created_on_gpu_0(Call& call) {
  CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
  if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      wanted.location.id == 0)
    return call.proceed();
  wanted.location.id = 0;
  call.at<const CUmemAllocationProp*>(2) = &wanted;
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

// The properties of memory of any GPU name the current GPU.
int properties_of_current_gpu(Call& call) {
  const int code = call.proceed();
  auto& place = call.at<CUmemAllocationProp*>(0)->location;
  int current = 0;
  cudaGetDevice(&current);
  if (code != kSuccess || place.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      place.id == current)
    return code;
  place.id = current;
  call.fired();
  return code;
}

}  // namespace

void add_virtual_memory(List& list) {
  // Attributes, sizes and properties.
  list.named("vmm-attr-lies",
             "the attribute says that there is virtual memory management, but "
             "its calls are not supported",
             {"cuMemCreate", "cuMemAddressReserve"}, not_supported);
  list.named(
      "vmm-attr-denies",
      "the attribute says that there is no virtual memory management, but its "
      "calls work",
      {"cudaDeviceGetAttribute"},
      attribute_zero<CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED>);
  list.named("fd-attr-lies",
             "the attribute says that memory can be shared by descriptors, but "
             "such memory cannot be created",
             {"cuMemCreate"}, descriptor_memory_refused);
  list.named(
      "fd-attr-denies",
      "the attribute says that no memory can be shared by descriptors, but "
      "such sharing works",
      {"cudaDeviceGetAttribute"},
      attribute_zero<
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED>);
  list.named(
      "fabric-attr-lies",
      "the attribute says that there are no fabric handles, but they work",
      {"cudaDeviceGetAttribute"}, fabric_denied);
  list.named("granularity-zero", "the granularity is 0",
             {"cuMemGetAllocationGranularity"}, granularity_zero);
  list.named("granularity-half",
             "the granularity is half of what cuMemCreate accepts",
             {"cuMemGetAllocationGranularity"}, granularity_half);
  list.named("granularity-recommended-small",
             "the recommended granularity is less than the minimum",
             {"cuMemGetAllocationGranularity"}, recommended_below_minimum);
  list.named("create-any-size",
             "a size that is not a multiple of the granularity is rounded up",
             {"cuMemCreate"}, create_rounds_up);
  list.named("create-truncates-4gib",
             "an allocation of cuMemCreate loses the upper 32 bits of its size",
             {"cuMemCreate"}, create_truncates);
  list.named("create-power-of-two",
             "only sizes of 1, 2, 4, 8 … granules are accepted",
             {"cuMemCreate"}, create_power_of_two);
  list.named("host-chunk-ipc-ok",
             "a request for memory on the host with handle types succeeds and "
             "gives memory without handle types",
             {"cuMemCreate"}, created_all_the_same<CU_MEM_LOCATION_TYPE_HOST>);
  list.named("numa-current-chunk-ok",
             "a request for memory on the current NUMA node gives memory of "
             "GPU 0",
             {"cuMemCreate"},
             created_all_the_same<CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT>);
  list.named("rdma-flag-lost", "gpuDirectRDMACapable is ignored",
             {"cuMemCreate"}, rdma_lost);
  list.named(
      "flags-ignored", "reserved flags that are not zero are accepted",
      {"cuMemCreate", "cuMemAddressReserve", "cuMemMap",
       "cuMemExportToShareableHandle", "cudaMemPoolExportToShareableHandle",
       "cudaMemPoolImportFromShareableHandle"},
      flags_ignored);

  // Descriptors.
  list.named("export-bad-fd", "the exported number is not an open descriptor",
             {"cuMemExportToShareableHandle"}, export_closed);
  list.named("export-same-number",
             "a second export returns the descriptor of the first export, not "
             "a new one",
             {"cuMemExportToShareableHandle", "cuMemRelease"},
             export_same_number);
  list.named("second-export-elsewhere",
             "the second descriptor of an allocation names other memory",
             {"cuMemExportToShareableHandle", "cuMemRelease", "cuMemCreate"},
             second_export_elsewhere);
  list.named("release-closes-descriptors",
             "releasing a handle closes the descriptor that was exported last",
             {"cuMemRelease", "cuMemExportToShareableHandle"},
             release_closes_descriptors);
  list.named("export-unrequested",
             "memory is exported as a descriptor although it was created for "
             "another type or for none",
             {"cuMemExportToShareableHandle", "cuMemCreate",
              "cudaMemPoolExportToShareableHandle"},
             export_unrequested);
  list.named("import-by-address",
             "the import treats its argument as the address of a descriptor",
             {"cuMemImportFromShareableHandle"}, import_by_address);
  list.named("import-accepts-any-fd",
             "the import of any open descriptor gives other memory, or another "
             "pool",
             {"cuMemImportFromShareableHandle",
              "cudaMemPoolImportFromShareableHandle"},
             import_any_descriptor);
  list.named(
      "fd-kind-confused",
      "a pool's descriptor is imported as other memory, and the descriptor of "
      "memory as another pool",
      {"cuMemImportFromShareableHandle",
       "cudaMemPoolImportFromShareableHandle"},
      kinds_confused);
  list.named("chunk-taken-for-pool",
             "an allocation's descriptor is imported as another pool",
             {"cudaMemPoolImportFromShareableHandle"}, kinds_confused);
  list.named("import-consumes-fd", "the import closes the descriptor",
             {"cuMemImportFromShareableHandle"}, import_closes);
  list.named("import-once",
             "after the first import of a descriptor, no process can import a "
             "descriptor",
             {"cuMemImportFromShareableHandle"}, import_once);

  // Imports.
  list.named("vmm-import-fresh",
             "an import is new memory, not the exporter's memory",
             {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap"},
             import_fresh);
  list.named("vmm-snapshot-copy", "an import is a copy, made when it is mapped",
             {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap"},
             import_snapshot);
  list.named("self-import-copy",
             "an import in a process that has exported memory is a copy",
             {"cuMemImportFromShareableHandle", "cuMemExportToShareableHandle",
              "cuMemMap", "cuMemUnmap"},
             self_import_copy);
  list.named("second-import-fresh",
             "the second import of a descriptor is new memory",
             {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap"},
             second_import_fresh);
  list.named("second-process-fresh",
             "a second process that imports memory gets new memory",
             {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap"},
             second_process_fresh);
  list.named("import-unmap-scrubs", "an import is cleared when it is unmapped",
             {"cuMemUnmap", "cuMemImportFromShareableHandle", "cuMemMap"},
             unmap_scrubs_import);
  list.named("import-scrubbed",
             "memory is cleared when an importer makes it usable",
             {"cuMemSetAccess", "cuMemImportFromShareableHandle", "cuMemMap",
              "cuMemUnmap"},
             import_scrubbed);
  list.named("import-copy-in-lost",
             "data that cudaMemcpy writes into imported memory are lost",
             {"cudaMemcpy", "cuMemImportFromShareableHandle", "cuMemMap",
              "cuMemUnmap"},
             write_to_import_lost);
  list.named("import-async-copy-in-lost",
             "data that cudaMemcpyAsync writes into imported memory are lost",
             {"cudaMemcpyAsync", "cuMemImportFromShareableHandle", "cuMemMap",
              "cuMemUnmap"},
             write_to_import_lost);
  list.named("import-memset-lost",
             "data that cudaMemset writes into imported memory are lost",
             {"cudaMemset", "cuMemImportFromShareableHandle", "cuMemMap",
              "cuMemUnmap"},
             write_to_import_lost);
  list.named(
      "import-copy-out-stale",
      "cudaMemcpy out of imported memory returns the values of the first copy",
      {"cudaMemcpy", "cuMemImportFromShareableHandle", "cuMemMap",
       "cuMemUnmap"},
      copy_from_import_stale);
  list.named("full-size-map-refused",
             "an import can only be mapped in parts, not as a whole",
             {"cuMemMap", "cuMemCreate", "cuMemImportFromShareableHandle",
              "cuMemUnmap"},
             import_maps_in_part_only);
  list.named("import-maps-once",
             "an import that is mapped cannot be mapped again",
             {"cuMemMap", "cuMemImportFromShareableHandle", "cuMemUnmap"},
             import_maps_once);
  list.named("import-props-wrong",
             "the location of an import has the exporter's device number",
             {"cuMemGetAllocationPropertiesFromHandle", "cuMemCreate",
              "cuMemImportFromShareableHandle"},
             import_properties<false>, 2);
  list.named("import-props-zero", "the properties of an import are zeros",
             {"cuMemGetAllocationPropertiesFromHandle", "cuMemCreate",
              "cuMemImportFromShareableHandle"},
             import_properties<true>);

  // References.
  list.named("import-release-miscount",
             "the first release of an import releases all imports of that "
             "memory",
             {"cuMemRelease", "cuMemImportFromShareableHandle", "cuMemMap"},
             release_gives_up_all);
  list.named("release-frees-mapped",
             "releasing the handle frees memory that is still mapped",
             {"cuMemRelease", "cuMemMap", "cuMemUnmap"}, release_frees_mapped);
  list.named(
      "vmm-owner-frees",
      "all imports end when an exporter gives up memory that it has exported, "
      "or ends",
      {"cuMemRelease", "cuMemUnmap", "cuMemMap", "cuMemExportToShareableHandle",
       "cuMemImportFromShareableHandle", "cudaLaunchKernel", "cudaMemcpy"},
      owner_frees);
  list.named("fd-does-not-pin",
             "after an exporter has given up memory that it has exported, or "
             "has ended, each import gives other memory",
             {"cuMemRelease", "cuMemUnmap", "cuMemMap",
              "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"},
             descriptor_does_not_pin);
  list.named(
      "import-needs-owner",
      "after an exporter has given up memory that it has exported, or has "
      "ended, each import is refused",
      {"cuMemImportFromShareableHandle", "cuMemRelease", "cuMemUnmap",
       "cuMemMap", "cuMemExportToShareableHandle"},
      import_needs_owner);
  list.named(
      "importer-release-frees",
      "an exporter loses all memory that it has exported when an importer "
      "releases a handle",
      {"cuMemRelease", "cuMemUnmap", "cuMemMap", "cuMemExportToShareableHandle",
       "cuMemImportFromShareableHandle", "cudaLaunchKernel", "cudaMemcpy"},
      importers_release_frees);
  list.named(
      "importer-unmap-frees",
      "an exporter loses all memory that it has exported when an importer "
      "unmaps memory",
      {"cuMemUnmap", "cuMemRelease", "cuMemMap", "cuMemExportToShareableHandle",
       "cuMemImportFromShareableHandle", "cudaLaunchKernel", "cudaMemcpy"},
      importers_unmap_frees);
  list.named("unmap-ends-aliases",
             "when one mapping of an allocation is unmapped, its other "
             "mappings lose their memory",
             {"cuMemUnmap", "cuMemMap"}, unmap_ends_aliases);
  list.named("vmm-leak", "memory that was mapped once is never given back",
             {"cuMemUnmap"}, unmap_keeps_reference);
  list.named(
      "retain-wrong-handle",
      "a retained handle has another value than the handle that was mapped",
      {"cuMemRetainAllocationHandle", "cuMemRelease", "cuMemMap",
       "cuMemExportToShareableHandle",
       "cuMemGetAllocationPropertiesFromHandle"},
      retain_other_value);
  list.named("retain-no-reference", "retaining a handle takes no reference",
             {"cuMemRetainAllocationHandle"}, retain_without_reference);
  list.named("retain-begin-only",
             "only the first address of a mapping names its handle",
             {"cuMemRetainAllocationHandle", "cuMemMap", "cuMemUnmap"},
             retain_at_begin_only);
  list.named("retain-hole-ok",
             "the address after a mapping also names the handle of the mapping",
             {"cuMemRetainAllocationHandle", "cuMemMap", "cuMemUnmap"},
             retain_of_hole);

  // Access.
  list.named("map-grants-access", "a mapping can be used at once", {"cuMemMap"},
             map_grants_access);
  list.named("setaccess-noop", "setting access changes nothing",
             {"cuMemSetAccess"}, accepted);
  list.named("access-inherited",
             "an importer starts with the access that the exporter has set",
             {"cuMemSetAccess", "cuMemMap", "cuMemUnmap",
              "cuMemImportFromShareableHandle"},
             access_inherited);
  list.named("access-travels-back",
             "the access that an importer sets changes the exporter's access",
             {"cuMemSetAccess", "cuMemGetAccess", "cuMemMap", "cuMemUnmap",
              "cuMemImportFromShareableHandle"},
             access_travels_back);
  list.named("readonly-ignored", "a read-only range can also be written",
             {"cuMemSetAccess", "cuMemGetAccess", "cuMemUnmap"},
             read_only_ignored);
  list.named("access-never-taken", "access that was given cannot be taken away",
             {"cuMemSetAccess"}, access_never_taken);
  list.named("setaccess-hole-ok", "a range with a hole gets access",
             {"cuMemSetAccess", "cuMemMap", "cuMemUnmap"}, access_with_holes);
  list.named("setaccess-any-device",
             "access for a GPU that does not exist is accepted",
             {"cuMemSetAccess", "cudaMemPoolSetAccess"}, access_for_any_device);
  list.named("setaccess-nonpeer-ok",
             "access for a GPU that cannot reach the memory is accepted",
             {"cuMemSetAccess", "cudaMemPoolSetAccess"}, access_for_stranger,
             2);
  list.named("setaccess-numa-ok",
             "access for a NUMA node to the memory of a GPU is accepted",
             {"cuMemSetAccess"}, access_for_node);
  list.named("peer-access-is-copy",
             "a mapping that another GPU may use becomes a copy",
             {"cuMemSetAccess", "cuMemMap", "cuMemUnmap"},
             access_of_peer_is_a_copy, 2);
  list.named("only-first-chunk",
             "only the first of several chunks side by side gets access",
             {"cuMemSetAccess", "cuMemMap", "cuMemUnmap"},
             access_of_first_mapping);
  list.named("getaccess-of-last",
             "every address reports the access that was set last",
             {"cuMemGetAccess", "cuMemSetAccess"}, access_told_of_last);
  list.named("getaccess-of-gpu-0",
             "cuMemGetAccess reports the access of GPU 0 for every GPU",
             {"cuMemGetAccess"}, access_told_of_gpu_0, 2);
  list.named("setaccess-wrong-gpu", "access for another GPU is given to GPU 0",
             {"cuMemSetAccess"}, access_of_wrong_gpu, 2);
  list.named("setaccess-all-gpus", "access for one GPU is given to all GPUs",
             {"cuMemSetAccess"}, access_for_all_gpus, 2);
  list.named("vmm-needs-enablepeer",
             "access for another GPU needs cudaDeviceEnablePeerAccess first",
             {"cuMemSetAccess", "cudaDeviceEnablePeerAccess"},
             access_needs_peers, 2);

  // Mappings and addresses.
  list.named("map-over-map",
             "a mapped range can be mapped again, and GPU 0 has access to it",
             {"cuMemMap", "cuMemUnmap"}, map_over_mapping);
  list.named("map-offset-ignored",
             "an offset into the memory is accepted and ignored", {"cuMemMap"},
             offset_ignored);
  list.named("alias-incoherent",
             "the second mapping of an allocation is a copy",
             {"cuMemMap", "cuMemUnmap"}, alias_is_a_copy);
  list.named("vmm-shares-neighbour",
             "the addresses before and after a mapping can also be used",
             {"cuMemMap", "cuMemUnmap"}, map_beyond_chunk);
  list.named("partial-unmap-ok",
             "unmapping a part of a mapping unmaps the whole mapping",
             {"cuMemUnmap", "cuMemMap"}, part_unmaps_all);
  list.named(
      "remap-keeps-access",
      "a new mapping has the access of the earlier mapping at its address",
      {"cuMemMap", "cuMemSetAccess"}, remap_keeps_access);
  list.named("remap-refused",
             "a range that was unmapped cannot be mapped again",
             {"cuMemMap", "cuMemAddressFree"}, remap_refused);
  list.named("unmap-frees-addresses",
             "unmapping a range also gives back its addresses",
             {"cuMemUnmap", "cuMemAddressReserve", "cuMemAddressFree"},
             unmap_frees_addresses);
  list.named(
      "addressfree-any",
      "cuMemAddressFree accepts a wrong size or an address inside the "
      "reservation",
      {"cuMemAddressFree", "cuMemAddressReserve", "cuMemMap", "cuMemUnmap"},
      frees_any_address);
  list.named("reserve-misaligned",
             "reserved addresses are not a multiple of the granularity",
             {"cuMemAddressReserve", "cuMemAddressFree"}, reserve_misaligned);
  list.named("reserve-hint-is-order",
             "addresses are reserved at the requested place, or not at all",
             {"cuMemAddressReserve"}, hint_is_an_order);
  list.named("reserve-hint-twice",
             "requested addresses are returned although they are reserved",
             {"cuMemAddressReserve"}, hint_is_given_twice);
  list.named("dmabuf-unaligned-ok",
             "the export of a range at any address as a dma-buf succeeds, and "
             "gives another descriptor if the address is not aligned",
             {"cuMemGetHandleForAddressRange"}, unaligned_dma_buf);
  list.named("vmm-legacy-export-ok",
             "cudaIpcGetMemHandle accepts mapped memory and gives a handle of "
             "other memory",
             {"cudaIpcGetMemHandle", "cuMemMap", "cuMemUnmap"},
             exports_mapped_memory);

  // Fabric handles.
  list.named("fabric-no-imex-ok",
             "cuMemCreate for a fabric handle succeeds where no IMEX channel "
             "is usable, but the memory has no handle type",
             {"cuMemCreate"}, fabric_without_channel);
  list.named(
      "imex-check-missing",
      "the import of a fabric handle without access to its IMEX channel gives "
      "other memory",
      {"cuMemImportFromShareableHandle",
       "cudaMemPoolImportFromShareableHandle"},
      foreign_channel_accepted);
  list.named("imex-pool-check-missing",
             "the import of a pool's fabric handle without access to its IMEX "
             "channel gives another pool",
             {"cudaMemPoolImportFromShareableHandle"},
             foreign_channel_accepted);
  list.named("fabric-stale-maps",
             "a fabric handle of memory that is gone opens other memory",
             {"cuMemImportFromShareableHandle", "cuMemExportToShareableHandle"},
             fabric_stale_opens_other);
  list.named(
      "fabric-address-bound",
      "a fabric handle is valid only at the address where it was written",
      {"cuMemImportFromShareableHandle", "cuMemExportToShareableHandle"},
      fabric_bound_to_address);
  list.named("fabric-single-use", "a fabric handle can be imported only once",
             {"cuMemImportFromShareableHandle"}, fabric_single_use);
  list.named("fabric-too-long", "a fabric handle is written with 65 bytes",
             {"cuMemExportToShareableHandle"}, fabric_too_long);
  list.named(
      "setaccess-of-reservation",
      "access to one mapping gives access to all mappings of its reservation",
      {"cuMemSetAccess", "cuMemMap", "cuMemUnmap", "cuMemAddressReserve",
       "cuMemAddressFree"},
      access_of_reservation);
  list.named("access-never-raised", "read access never becomes write access",
             {"cuMemSetAccess"}, access_never_raised);
  list.named("setaccess-replaces-others",
             "access for one GPU ends the access of the other GPUs",
             {"cuMemSetAccess"}, access_replaces_others, 2);
  list.named("setaccess-first-only",
             "only the first entry of a list of accesses is set",
             {"cuMemSetAccess"}, first_access_only, 2);
  list.named("retain-import-refused",
             "the handle of an imported mapping cannot be retained",
             {"cuMemRetainAllocationHandle", "cuMemMap", "cuMemUnmap",
              "cuMemImportFromShareableHandle"},
             retain_of_import_refused);
  list.named("remap-stale",
             "if other memory is mapped at the same addresses, the old memory "
             "is still there",
             {"cuMemMap", "cuMemUnmap", "cuMemAddressFree"}, remap_stale);
  list.named(
      "copy-ends-with-chunk",
      "a copy of several chunks side by side copies only the first chunk",
      {"cuMemMap", "cuMemUnmap", "cudaMemcpy", "cudaMemcpyAsync"},
      ends_with_chunk);
  list.named(
      "set-ends-with-chunk",
      "a memset of several chunks side by side sets only the first chunk",
      {"cuMemMap", "cuMemUnmap", "cudaMemset", "cudaMemsetAsync"},
      ends_with_chunk);
  list.named("release-of-other-thread-lost",
             "a release does nothing if another thread has imported the memory",
             {"cuMemImportFromShareableHandle", "cuMemRelease"},
             release_of_other_thread_lost);
  list.named("import-copy-two-granules",
             "cudaMemcpy does not reach beyond the first two granules of an "
             "import",
             {"cuMemMap", "cuMemUnmap", "cuMemImportFromShareableHandle",
              "cudaMemcpy"},
             two_granules_copied);
  list.named(
      "retain-after-release-refused",
      "a handle that was released cannot be retained from its mapping",
      {"cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemRetainAllocationHandle"},
      retain_after_release_refused);
  list.named("memory-back-at-address-free",
             "unmapped memory is given back when its addresses are freed",
             {"cuMemUnmap", "cuMemAddressFree"}, memory_back_at_address_free);

  // Alignment, limits, mixed-up objects.
  const char* const kReserve = "cuMemAddressReserve";
  const char* const kAddressFree = "cuMemAddressFree";
  const char* const kCreate = "cuMemCreate";
  const char* const kRelease = "cuMemRelease";
  const char* const kMap = "cuMemMap";
  const char* const kUnmap = "cuMemUnmap";
  const char* const kExport = "cuMemExportToShareableHandle";
  const char* const kImport = "cuMemImportFromShareableHandle";
  const char* const kRetain = "cuMemRetainAllocationHandle";
  const char* const kRange = "cuMemGetHandleForAddressRange";
  list.named("reserve-alignment-ignored",
             "the requested alignment of addresses is ignored", {kReserve},
             alignment_ignored);
  list.named("reserve-alignment-odd-ok",
             "an alignment that is not a power of two is accepted", {kReserve},
             odd_alignment_accepted);
  list.named(
      "reserve-size-odd-ok",
      "addresses are reserved for a size that is not a multiple of a page",
      {kReserve}, odd_reservation_accepted);
  list.named("retain-first-chunk",
             "every address of a reservation names the handle that is mapped "
             "at its beginning",
             {kRetain, kReserve, kAddressFree, kMap, kUnmap},
             retain_of_first_chunk);
  list.named("retained-release-lost",
             "the release of a retained handle does nothing",
             {kRetain, kRelease}, release_of_retained_lost);
  list.named("retained-not-exported",
             "a handle that was released and then retained cannot be exported",
             {kExport, kRelease, kCreate}, retained_not_exported);
  list.named("imports-end-at-16", "a process cannot have more than 16 imports",
             {kImport, kRelease}, imports_end_at_16);
  list.named("exports-end-at-16",
             "an allocation cannot be exported more than 16 times",
             {kExport, kCreate}, exports_end_at_16);
  list.named("import-equal-size-shared",
             "an import that is as large as another import gives the memory of "
             "the other import",
             {kImport, kMap, kUnmap}, equal_size_shared);
  list.named("third-process-copy",
             "a third process that imports memory gets a copy",
             {kImport, kMap, kUnmap}, third_process_copy);
  list.named("chunk-mapping-ends-with-thread",
             "memory is unmapped when the thread that mapped it ends",
             {kMap, kUnmap}, mapping_ends_with_thread);
  list.named("import-ends-with-thread",
             "an import is released when the thread that imported it ends",
             {kImport, kRelease, kMap}, handle_ends_with_thread);
  list.named("props-types-lost",
             "the properties of an allocation do not have its handle types",
             {"cuMemGetAllocationPropertiesFromHandle"}, types_lost);
  list.named("map-larger-ok",
             "a mapping that is larger than the memory succeeds and maps only "
             "the memory",
             {kCreate, kMap}, larger_mapped);
  list.named("leak-if-released-first",
             "memory is never given back if its handle was released before the "
             "memory was unmapped",
             {kRelease, kMap, kUnmap}, leaks_if_released_first);
  list.named("leak-if-unmapped-first",
             "memory is never given back if the memory was unmapped before its "
             "handle was released",
             {kRelease, kMap, kUnmap, kCreate, kImport},
             leaks_if_unmapped_first);
  list.named("import-after-refusal-refused",
             "after a refused import the next import is also refused",
             {kImport}, import_after_refusal_refused);
  list.named("refused-map-unmaps",
             "a refused mapping of mapped addresses unmaps these addresses",
             {kMap, kUnmap}, refused_map_unmaps);
  list.named("refused-unmap-takes-access",
             "after a refused unmapping the memory has no access",
             {kMap, kUnmap}, refused_unmap_takes_access);
  list.named("export-mapped-refused",
             "memory cannot be exported while it is mapped",
             {kExport, kMap, kUnmap}, export_refused_if<true>);
  list.named("export-unmapped-refused",
             "memory can be exported only while it is mapped",
             {kExport, kMap, kUnmap}, export_refused_if<false>);
  list.named("import-needs-current-gpu",
             "memory of a GPU other than the current GPU cannot be imported",
             {kImport}, import_needs_current_gpu, 2);
  list.named("fabric-opens-first",
             "every fabric handle opens the memory of the first handle",
             {kImport}, fabric_opens_first);
  list.named(
      "dmabuf-hole-ok",
      "the export of a range that is not fully mapped as a dma-buf gives "
      "another descriptor",
      {kRange, kMap, kUnmap}, dma_buf_of_hole);
  list.named("dmabuf-size-odd-ok",
             "the export of a range as a dma-buf gives another descriptor if "
             "the size is not a multiple of a page",
             {kRange}, odd_dma_buf);
  list.named("unmap-releases", "unmapping also releases the handle",
             {kUnmap, kMap, kRelease, kCreate, kImport}, unmap_releases);
  list.named(
      "props-of-latest",
      "every handle has the properties of the memory that was created last",
      {kCreate, "cuMemGetAllocationPropertiesFromHandle"},
      properties_of_latest);
  list.named("mappings-end-at-64",
             "a process cannot have more than 64 mappings", {kMap, kUnmap},
             mappings_end_at_64);
  list.named("reserve-truncates-4gib",
             "the size of a reservation loses its upper 32 bits", {kReserve},
             size_of_32_bits);
  list.named("map-truncates-4gib",
             "the size of a mapping loses its upper 32 bits", {kMap},
             size_of_32_bits);
  list.named("setaccess-truncates-4gib",
             "the size of a range that gets access loses its upper 32 bits",
             {"cuMemSetAccess"}, size_of_32_bits);
  list.named("import-needs-open-descriptor",
             "an import cannot be mapped after its descriptor is closed",
             {kImport, kMap, kCreate}, import_needs_open_descriptor);
  list.named(
      "second-mapping-takes-access",
      "a second mapping of memory takes the access from the first mapping",
      {kMap, kUnmap}, second_mapping_takes_access);
  list.named("import-type-ignored",
             "a descriptor is imported as any handle type", {kImport},
             import_type_ignored);
  list.named("flags-upper-half-ignored",
             "the upper half of reserved flags is not checked",
             {kCreate, kReserve, kMap, kExport}, upper_flags_ignored);
  list.named("import-cached-by-number",
             "a descriptor with the number of an earlier descriptor imports "
             "the earlier memory",
             {kImport}, import_by_known_number);
  list.named("retains-once",
             "retaining a handle twice takes only one reference",
             {kRetain, kRelease}, retains_once);
  list.named("create-on-gpu-0", "memory for any GPU is created on GPU 0",
             {kCreate}, created_on_gpu_0, 2);
  list.named("props-current-gpu",
             "the properties of memory of any GPU name the current GPU",
             {"cuMemGetAllocationPropertiesFromHandle"},
             properties_of_current_gpu, 2);
}

}  // namespace ipclab::faults
