// More bugs of virtual memory management: requests at the limit of what is
// allowed, other threads, a second object at the same addresses, answers of
// queries about mapped memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

constexpr size_t kLargestAlignment = 16 << 20;

// Calls the driver again, with the arguments that the fault has changed.
int proceed_changed(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

// --- addresses ---------------------------------------------------------------

int alignment_capped(Call& call) {
  const size_t wanted = call.at<size_t>(2);
  if (wanted <= kLargestAlignment) return call.proceed();
  call.at<size_t>(2) = kLargestAlignment;
  // Addresses may have the wanted alignment by chance.
  std::vector<CUdeviceptr> aligned;
  CUdeviceptr& address = *call.at<CUdeviceptr*>(0);
  int code = kSuccess;
  do {
    if (code = call.proceed(); code != kSuccess) break;
    if (address % wanted != 0) {
      call.fired();
      break;
    }
    aligned.push_back(address);
  } while (aligned.size() < 8);
  for (const CUdeviceptr one : aligned)
    if (one != address) DRIVER_CALL(cuMemAddressFree)(one, call.at<size_t>(1));
  return code;
}

// A wanted address is rounded down to a page.
int odd_address_accepted(Call& call) {
  constexpr CUdeviceptr kPage = 4096;
  const int code = call.proceed();
  auto& wanted = call.at<CUdeviceptr>(3);
  if (code == kSuccess || wanted % kPage == 0) return code;
  wanted -= wanted % kPage;
  call.fired();
  return call.proceed();
}

// Refuses more than `most` objects at the same time. In the function that ends
// an object, argument `gone` is the handle or the address of the object.
template <size_t most>
int refused_beyond(Call& call, const char* made, size_t gone) {
  static auto& there = *new Table<unsigned long long>;
  if (call.is(made) && there.all().size() >= most) return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is(made))
    there.put(*call.at<unsigned long long*>(0));
  else
    there.erase(call.at<unsigned long long>(gone));
  return code;
}
int chunks_end_at_64(Call& call) {
  return refused_beyond<64>(call, "cuMemCreate", 0);
}
int reservations_end_at_65(Call& call) {
  return refused_beyond<65>(call, "cuMemAddressReserve", 0);
}

int longer_free_accepted(Call& call) {
  if (!call.is("cuMemAddressFree")) return call.proceed();
  const size_t bytes = reservations.get(call.at<CUdeviceptr>(0));
  const int code = call.proceed();
  if (code == kSuccess || bytes == 0 || call.at<size_t>(1) <= bytes)
    return code;
  call.at<size_t>(1) = bytes;
  return proceed_changed(call);
}

// --- creation ----------------------------------------------------------------

bool is_on_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

int host_id_looked_at(Call& call) {
  const auto& location = call.at<const CUmemAllocationProp*>(2)->location;
  return location.type == CU_MEM_LOCATION_TYPE_HOST && location.id != 0
             ? refused(call)
             : call.proceed();
}

// The refusal of memory at a location of this type has the code "not
// supported".
template <CUmemLocationType type>
int refused_as_unsupported(Call& call) {
  const int code = call.proceed();
  return code != kSuccess &&
                 call.at<const CUmemAllocationProp*>(2)->location.type == type
             ? refused(call, CUDA_ERROR_NOT_SUPPORTED)
             : code;
}

int created_on_current_gpu(Call& call) {
  CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
  int current = 0;
  cudaGetDevice(&current);
  if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      wanted.location.id == current)
    return call.proceed();
  wanted.location.id = current;
  call.at<const CUmemAllocationProp*>(2) = &wanted;
  call.fired();
  return call.proceed();
}

int granularity_of_shared_halved(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<const CUmemAllocationProp*>(1)->requestedHandleTypes ==
          CU_MEM_HANDLE_TYPE_NONE)
    return code;
  *call.at<size_t*>(0) /= 2;
  return accepted(call);
}

// --- mapping -----------------------------------------------------------------

int unreserved_mapped(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemMap")) return code;
  const CUdeviceptr wanted = call.at<CUdeviceptr>(0);
  if (wanted == 0 || reservation_at(wanted) != 0) return code;
  CUdeviceptr reserved = 0;
  const size_t bytes = call.at<size_t>(1);
  if (DRIVER_CALL(cuMemAddressReserve)(&reserved, bytes, 0, wanted, 0) !=
      CUDA_SUCCESS)
    return code;
  const int later = reserved == wanted ? proceed_changed(call) : code;
  if (later != kSuccess) DRIVER_CALL(cuMemAddressFree)(reserved, bytes);
  return later;
}

int mapped_beyond_reservation(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemMap")) return code;
  const CUdeviceptr wanted = call.at<CUdeviceptr>(0);
  const CUdeviceptr begin = reservation_at(wanted);
  if (begin == 0) return code;
  const CUdeviceptr end = begin + reservations.get(begin);
  if (wanted + call.at<size_t>(1) <= end) return code;
  call.at<size_t>(1) = end - wanted;
  return proceed_changed(call);
}

// Memory on the host counts as memory of every GPU.
bool is_of_current_gpu(Chunk chunk) {
  const CUmemLocation place = properties_of(chunk).location;
  int current = 0;
  cudaGetDevice(&current);
  return place.type != CU_MEM_LOCATION_TYPE_DEVICE || place.id == current;
}

int mapped_for_current_gpu_only(Call& call) {
  return is_of_current_gpu(call.at<Chunk>(3))
             ? call.proceed()
             : refused(call, CUDA_ERROR_INVALID_DEVICE);
}

// Unmaps the mapping if the size is larger than the mapping.
int larger_unmapped(Call& call) {
  const auto mapped = mappings.get(call.value<CUdeviceptr>(kPointer));
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemUnmap") || mapped.bytes == 0 ||
      call.at<size_t>(1) <= mapped.bytes)
    return code;
  call.at<size_t>(1) = mapped.bytes;
  return proceed_changed(call);
}

// Unmaps the whole mapping if the range is only its end.
int end_unmapped(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemUnmap")) return code;
  const CUdeviceptr wanted = call.at<CUdeviceptr>(0);
  const CUdeviceptr begin = mapping_at(wanted);
  const size_t bytes = mappings.get(begin).bytes;
  if (begin == 0 || begin == wanted ||
      wanted + call.at<size_t>(1) != begin + bytes)
    return code;
  call.at<CUdeviceptr>(0) = begin;
  call.at<size_t>(1) = bytes;
  return proceed_changed(call);
}

// Unmaps the whole mapping if the size is a little too small.
int unmapping_rounded_up(Call& call) {
  constexpr size_t kSmall = 4096;
  const auto mapped = mappings.get(call.value<CUdeviceptr>(kPointer));
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemUnmap") ||
      call.at<size_t>(1) >= mapped.bytes ||
      mapped.bytes - call.at<size_t>(1) > kSmall)
    return code;
  call.at<size_t>(1) = mapped.bytes;
  return proceed_changed(call);
}

int unmapped_twice(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && call.is("cuMemUnmap") &&
                 reservation_at(call.at<CUdeviceptr>(0)) != 0 &&
                 mapping_at(call.at<CUdeviceptr>(0)) == 0
             ? accepted(call)
             : code;
}

int unmapping_of_other_thread_lost(Call& call) {
  const auto mapped = mappings.get(call.value<CUdeviceptr>(kPointer));
  return call.is("cuMemUnmap") && mapped.bytes != 0 &&
                 mapped.thread != this_thread()
             ? accepted(call)
             : call.proceed();
}

// A second mapping of the same memory keeps a reference to the memory forever.
int leaked_if_aliased(Call& call) {
  const CUdeviceptr first =
      call.is("cuMemMap") ? mapping_of(call.at<Chunk>(3)) : 0;
  const int code = call.proceed();
  if (code == kSuccess && first != 0 && retain(first) != 0) call.fired();
  return code;
}

// Every second import keeps a reference to its memory forever.
int second_import_leaked(Call& call) {
  static std::atomic<int> count{0};
  const int code = call.proceed();
  if (code != kSuccess || ++count % 2 != 0) return code;
  Chunk kept = 0;
  if (DRIVER_CALL(cuMemImportFromShareableHandle)(
          &kept, call.at<void*>(1), call.at<CUmemAllocationHandleType>(2)) ==
      CUDA_SUCCESS)
    call.fired();
  return code;
}

// --- access ------------------------------------------------------------------

bool is_mapped(CUdeviceptr address) { return mapping_at(address) != 0; }

// With `begin`, accepts a range whose beginning is not mapped but whose end is.
// Otherwise accepts a range whose end is not mapped but whose beginning is.
template <bool begin>
int hole_at_one_end_accepted(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemSetAccess")) return code;
  const CUdeviceptr first = call.at<CUdeviceptr>(0);
  const CUdeviceptr last = first + call.at<size_t>(1) - 1;
  return is_mapped(first) != begin && is_mapped(last) == begin ? accepted(call)
                                                               : code;
}

// The access that is reported for a mapping but was never set. The key is the
// beginning of the mapping.
Table<CUdeviceptr, CUmemAccessDesc> in_name;

int told(Call& call) {
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(2));
  const auto& asked = *call.at<const CUmemLocation*>(1);
  const CUmemAccessDesc wrong = in_name.get(begin);
  const int code = call.proceed();
  if (code == kSuccess && in_name.has(begin) &&
      asked.type == wrong.location.type && asked.id == wrong.location.id)
    *call.at<unsigned long long*>(0) = wrong.flags;
  return code;
}

// A change of access of one mapping from `from` to `to` is reported, but not
// made. This concerns only the GPUs from number `first` on.
template <CUmemAccess_flags from, CUmemAccess_flags to, int first = 0>
int changed_in_name(Call& call) {
  if (call.is("cuMemGetAccess")) return told(call);
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (!call.is("cuMemSetAccess")) {
    const int code = call.proceed();
    if (code == kSuccess) in_name.erase(call.at<CUdeviceptr>(0));
    return code;
  }
  const auto& wanted = *call.at<const CUmemAccessDesc*>(2);
  const auto now = begin == 0 ? 0 : access_of(begin, wanted.location);
  if (wanted.flags == to && now == from && call.at<size_t>(3) == 1 &&
      wanted.location.id >= first &&
      call.at<size_t>(1) == mappings.get(begin).bytes) {
    in_name.put(begin, wanted);
    return accepted(call);
  }
  in_name.erase(begin);
  return call.proceed();
}

// Access of a NUMA node is refused if the memory is on another NUMA node.
int node_looked_at(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  const CUmemLocation wanted = call.at<const CUmemAccessDesc*>(2)->location;
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (begin == 0 || wanted.type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return call.proceed();
  const CUmemLocation own = location_at(begin);
  return own.type == wanted.type && own.id != wanted.id
             ? refused(call, CUDA_ERROR_INVALID_DEVICE)
             : call.proceed();
}

int access_of_other_thread_lost(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  return begin != 0 && mappings.get(begin).thread != this_thread()
             ? accepted(call)
             : call.proceed();
}

// --- handles -----------------------------------------------------------------

CUdeviceptr retained_address(Call& call) { return call.at<CUdeviceptr>(1); }

int last_byte_not_retained(Call& call) {
  if (!call.is("cuMemRetainAllocationHandle")) return call.proceed();
  const CUdeviceptr begin = mapping_at(retained_address(call));
  return begin != 0 &&
                 retained_address(call) + 1 == begin + mappings.get(begin).bytes
             ? refused(call)
             : call.proceed();
}

// Addresses always name the handle that was mapped there first. This does not
// count as a reference to the old memory.
int earlier_handle_retained(Call& call) {
  static auto& first = *new Table<CUdeviceptr, Chunk>;
  static auto& references = *new Table<Chunk, int>;
  static auto& given = *new Table<Chunk, int>;  // how often, instead of others
  const auto add = [](Table<Chunk, int>& counts, Chunk chunk, int more) {
    counts.put(chunk, counts.get(chunk) + more);
  };
  if (call.is("cuMemRelease") && given.get(call.at<Chunk>(0)) > 0) {
    add(given, call.at<Chunk>(0), -1);
    return kSuccess;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto address = call.at<CUdeviceptr>(0);
  if (call.is("cuMemCreate") || call.is("cuMemImportFromShareableHandle"))
    references.put(*call.at<Chunk*>(0), 1);
  if (call.is("cuMemRelease")) add(references, call.at<Chunk>(0), -1);
  if (call.is("cuMemMap") && !first.has(address))
    first.put(address, call.at<Chunk>(3));
  if (call.is("cuMemAddressFree"))
    for (const auto& each : first.all())
      if (each.first - address < call.at<size_t>(1)) first.erase(each.first);
  if (!call.is("cuMemRetainAllocationHandle")) return code;
  const CUdeviceptr begin = mapping_at(retained_address(call));
  Chunk& handle = *call.at<Chunk*>(0);
  const Chunk old = first.get(begin, handle);
  if (begin == 0 || old == handle || references.get(old) <= 0) {
    add(references, handle, 1);
    return code;
  }
  DRIVER_CALL(cuMemRelease)(handle);  // the program does not get this one
  add(given, old, 1);
  handle = old;
  return accepted(call);
}

int not_retained_by_other_thread(Call& call) {
  if (!call.is("cuMemRetainAllocationHandle")) return call.proceed();
  const CUdeviceptr begin = mapping_at(retained_address(call));
  return begin != 0 && mappings.get(begin).thread != this_thread()
             ? refused(call)
             : call.proceed();
}

int imex_refused_as_value(Call& call) {
  const int code = call.proceed();
  return code == CUDA_ERROR_NOT_PERMITTED ? refused(call) : code;
}

// Memory with two handle types can only be exported as a descriptor.
int one_of_two_types(Call& call) {
  constexpr int kBoth = kFd | kFabric;
  const int types = properties_of(call.at<Chunk>(1)).requestedHandleTypes;
  return (types & kBoth) == kBoth &&
                 call.at<CUmemAllocationHandleType>(2) == kFabric
             ? refused(call)
             : call.proceed();
}

int host_told_as_device(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& location = call.at<CUmemAllocationProp*>(0)->location;
  if (!is_on_host(location)) return code;
  location = on_gpu(0);
  return accepted(call);
}

int type_untold(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  call.at<CUmemAllocationProp*>(0)->type = CU_MEM_ALLOCATION_TYPE_INVALID;
  return accepted(call);
}

// --- queries about memory ----------------------------------------------------

// Lets `wrong` change the value that a query of this attribute returns.
template <class Value, class Wrong>
int attribute_wrong(Call& call, CUpointer_attribute attribute, Wrong wrong) {
  if (!call.is("cuPointerGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUpointer_attribute>(1) != attribute)
    return code;
  Value& value = *call.at<Value*>(0);
  const Value right = value;
  wrong(call.at<CUdeviceptr>(2), value);
  if (value != right) call.fired();
  return code;
}

int pool_told_of_mapping(Call& call) {
  return attribute_wrong<CUmemoryPool>(
      call, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      [](CUdeviceptr address, CUmemoryPool& pool) {
        if (is_mapped(address))
          DRIVER_CALL(cuDeviceGetDefaultMemPool)(&pool, 0);
      });
}

int pool_told_of_malloc(Call& call) {
  static auto& blocks = *new Table<CUdeviceptr>;
  if (call.is("cudaMalloc")) {
    const int code = call.proceed();
    if (code == kSuccess) blocks.put(*call.at<CUdeviceptr*>(0));
    return code;
  }
  if (call.is("cudaFree")) {
    blocks.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  return attribute_wrong<CUmemoryPool>(
      call, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      [](CUdeviceptr address, CUmemoryPool& pool) {
        if (blocks.has(address))
          DRIVER_CALL(cuDeviceGetDefaultMemPool)(&pool, 0);
      });
}

int reserved_told_as_mapped(Call& call) {
  if (!call.is("cuPointerGetAttribute") ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MAPPED)
    return call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(2);
  const int code = call.proceed();
  if (reservation_at(address) == 0 || is_mapped(address)) return code;
  *call.at<bool*>(0) = true;
  return accepted(call);
}

int import_told_as_unmapped(Call& call) {
  return attribute_wrong<bool>(call, CU_POINTER_ATTRIBUTE_MAPPED,
                               [](CUdeviceptr address, bool& told) {
                                 if (is_import(address)) told = false;
                               });
}

int access_told_as_full(Call& call) {
  return attribute_wrong<unsigned>(
      call, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
      [](CUdeviceptr address, unsigned& flags) {
        if (is_mapped(address))
          flags = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      });
}

int access_told_of_gpu_0(Call& call) {
  return attribute_wrong<unsigned>(
      call, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
      [](CUdeviceptr address, unsigned& flags) {
        if (is_mapped(address))
          flags = static_cast<unsigned>(access_of(address, on_gpu(0)));
      });
}

int id_of_all_mappings(Call& call) {
  return attribute_wrong<unsigned long long>(
      call, CU_POINTER_ATTRIBUTE_BUFFER_ID,
      [](CUdeviceptr address, unsigned long long& id) {
        if (!is_mapped(address)) return;
        static const unsigned long long first = id;
        id = first;
      });
}

int import_told_as_host(Call& call) {
  return attribute_wrong<unsigned>(call, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   [](CUdeviceptr address, unsigned& type) {
                                     if (is_import(address))
                                       type = CU_MEMORYTYPE_HOST;
                                   });
}

int import_told_as_managed(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !is_import(call.at<CUdeviceptr>(1))) return code;
  call.at<cudaPointerAttributes*>(0)->type = cudaMemoryTypeManaged;
  call.fired();
  return code;
}

// After an export, a memset by the exporter is lost.
int set_after_export_lost(Call& call) {
  if (!call.is("cudaMemset") && !call.is("cudaMemsetAsync"))
    return call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  return begin != 0 && exports.has(mappings.get(begin).chunk) ? no_wait(call)
                                                              : call.proceed();
}

// --- calls that change the next call -----------------------------------------

// cuMemGetAccess reports no access to threads other than the thread that has
// set the access.
int access_told_to_one_thread(Call& call) {
  static auto& threads = *new Table<CUdeviceptr, int>;
  if (!call.is("cuMemSetAccess") && !call.is("cuMemGetAccess"))
    return call.proceed();
  const int code = call.proceed();
  const CUdeviceptr begin =
      mapping_at(call.at<CUdeviceptr>(call.is("cuMemSetAccess") ? 0 : 2));
  if (code != kSuccess || begin == 0) return code;
  if (call.is("cuMemSetAccess")) {
    threads.put(begin, this_thread());
    return code;
  }
  auto& flags = *call.at<unsigned long long*>(0);
  if (!threads.has(begin) || flags == 0 || threads.get(begin) == this_thread())
    return code;
  flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return accepted(call);
}

// All entries of a list of accesses get the flags of the first one.
int flags_of_first(Call& call) {
  const auto* const list = call.at<const CUmemAccessDesc*>(2);
  std::vector<CUmemAccessDesc> same(list, list + call.at<size_t>(3));
  for (CUmemAccessDesc& each : same) {
    if (each.flags != same.front().flags) call.fired();
    each.flags = same.front().flags;
  }
  call.at<const CUmemAccessDesc*>(2) = same.data();
  return call.proceed();
}

int export_needs_current_gpu(Call& call) {
  return is_of_current_gpu(call.at<Chunk>(1)) ? call.proceed() : refused(call);
}

int range_of_import_too_short(Call& call) {
  if (!call.is("cuMemGetAddressRange")) return call.proceed();
  const int code = call.proceed();
  size_t* const bytes = call.at<size_t*>(1);
  if (code != kSuccess || bytes == nullptr ||
      !is_import(call.at<CUdeviceptr>(2)))
    return code;
  *bytes /= 2;
  return accepted(call);
}

constexpr auto kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

const char* const kCreate = "cuMemCreate";
const char* const kReserve = "cuMemAddressReserve";
const char* const kAddressFree = "cuMemAddressFree";
const char* const kMap = "cuMemMap";
const char* const kUnmap = "cuMemUnmap";
const char* const kSetAccess = "cuMemSetAccess";
const char* const kGetAccess = "cuMemGetAccess";
const char* const kRetain = "cuMemRetainAllocationHandle";
const char* const kImport = "cuMemImportFromShareableHandle";
const char* const kExport = "cuMemExportToShareableHandle";
const char* const kProperties = "cuMemGetAllocationPropertiesFromHandle";
const char* const kAttribute = "cuPointerGetAttribute";

void add_mapping(List& list) {
  list.named(
      "reserve-alignment-capped",
      "addresses are aligned to 16 MiB if a larger alignment is requested",
      {kReserve}, alignment_capped);
  list.named(
      "reserve-address-odd-ok",
      "a wanted address that is not a multiple of a page is rounded down",
      {kReserve}, odd_address_accepted);
  list.named("reservations-end-at-65",
             "a process cannot have more than 65 reservations",
             {kReserve, kAddressFree}, reservations_end_at_65);
  list.named("chunks-end-at-64",
             "a process cannot create more than 64 allocations at once",
             {kCreate, "cuMemRelease"}, chunks_end_at_64);
  list.named(
      "addressfree-longer-ok",
      "cuMemAddressFree accepts a size that is larger than the reservation",
      {kAddressFree, kReserve}, longer_free_accepted);
  list.named("map-unreserved-ok",
             "memory is mapped at addresses that are not reserved",
             {kMap, kReserve, kAddressFree, kUnmap}, unreserved_mapped);
  list.named("map-beyond-reservation-ok",
             "a map that is longer than the reservation maps the part that "
             "fits",
             {kMap, kReserve, kAddressFree, kUnmap}, mapped_beyond_reservation);
  list.named("map-needs-current-gpu",
             "memory of a GPU other than the current GPU cannot be mapped",
             {kMap}, mapped_for_current_gpu_only, 2);
  list.named("unmap-larger-ok",
             "unmapping more than a mapping unmaps the mapping", {kUnmap, kMap},
             larger_unmapped);
  list.named("unmap-end-ok",
             "unmapping the end of a mapping unmaps the whole mapping",
             {kUnmap, kMap}, end_unmapped);
  list.named("unmap-rounds-up",
             "unmapping a few bytes less than a mapping unmaps the whole "
             "mapping",
             {kUnmap, kMap}, unmapping_rounded_up);
  list.named("unmap-twice-ok",
             "the unmap of reserved addresses without memory succeeds and does "
             "nothing",
             {kUnmap, kMap, kReserve, kAddressFree}, unmapped_twice);
  list.named("unmap-of-other-thread-lost",
             "an unmapping does nothing if another thread has mapped the "
             "memory",
             {kUnmap, kMap}, unmapping_of_other_thread_lost);
  list.named("leak-if-mapped-twice",
             "memory that has two mappings at once is never given back",
             {kMap, kUnmap}, leaked_if_aliased);
  list.named("second-import-leaks",
             "the memory of every second import of a process is never given "
             "back",
             {kImport}, second_import_leaked);
  list.named("setaccess-hole-at-begin-ok",
             "cuMemSetAccess succeeds and does nothing if the first addresses "
             "of the range have no memory",
             {kSetAccess, kMap, kUnmap}, hole_at_one_end_accepted<true>);
  list.named("setaccess-hole-at-end-ok",
             "cuMemSetAccess succeeds and does nothing if the last addresses "
             "of the range have no memory",
             {kSetAccess, kMap, kUnmap}, hole_at_one_end_accepted<false>);
  list.named("access-taken-in-name",
             "cuMemGetAccess says that access was taken away, but the memory "
             "can still be used",
             {kSetAccess, kGetAccess, kMap, kUnmap},
             changed_in_name<kReadWrite, kNone>);
  list.named("access-lowered-in-name",
             "cuMemGetAccess says that memory can only be read, but it can "
             "still be written",
             {kSetAccess, kGetAccess, kMap, kUnmap},
             changed_in_name<kReadWrite, kRead>);
  list.named("peer-access-taken-in-name",
             "cuMemGetAccess says that the access of GPU 1 was taken away, but "
             "GPU 1 can still use the memory",
             {kSetAccess, kGetAccess, kMap, kUnmap},
             changed_in_name<kReadWrite, kNone, 1>, 2);
  list.named("peer-access-lowered-in-name",
             "cuMemGetAccess says that GPU 1 can only read memory, but GPU 1 "
             "can still write it",
             {kSetAccess, kGetAccess, kMap, kUnmap},
             changed_in_name<kReadWrite, kRead, 1>, 2);
  list.named("access-raised-in-name",
             "cuMemGetAccess says that memory can be written, but it can still "
             "only be read",
             {kSetAccess, kGetAccess, kMap, kUnmap},
             changed_in_name<kRead, kReadWrite>);
  list.named("setaccess-node-looked-at",
             "access of a NUMA node is refused if the memory is on another "
             "NUMA node",
             {kSetAccess, kMap, kUnmap}, node_looked_at);
  list.named("setaccess-of-other-thread-lost",
             "setting access does nothing if another thread has mapped the "
             "memory",
             {kSetAccess, kMap, kUnmap}, access_of_other_thread_lost);
}

void add_handles(List& list) {
  list.named("host-chunk-id-looked-at",
             "memory on the host is refused if its location has an id",
             {kCreate}, host_id_looked_at);
  list.named("host-chunk-refused-as-unsupported",
             "memory on the host with handle types is refused as not supported",
             {kCreate}, refused_as_unsupported<CU_MEM_LOCATION_TYPE_HOST>);
  list.named("numa-current-chunk-refused-as-unsupported",
             "memory on the current NUMA node is refused as not supported",
             {kCreate},
             refused_as_unsupported<CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT>);
  list.named("create-on-current-gpu",
             "memory is created on the current GPU, not on the named GPU",
             {kCreate}, created_on_current_gpu, 2);
  list.named("granularity-of-shared-half",
             "the granularity of memory that can be shared is half of what "
             "cuMemCreate accepts",
             {"cuMemGetAllocationGranularity"}, granularity_of_shared_halved);
  list.named("retain-last-byte-refused",
             "the last address of a mapping has no handle",
             {kRetain, kMap, kUnmap}, last_byte_not_retained);
  list.named(
      "retain-after-remap-stale",
      "if other memory is mapped at the same addresses, the addresses "
      "still name the handle of the old memory",
      {kRetain, kMap, kUnmap, kAddressFree, kCreate, kImport, "cuMemRelease"},
      earlier_handle_retained);
  list.named("retain-of-other-thread-refused",
             "only the thread that mapped memory can retain its handle",
             {kRetain, kMap, kUnmap}, not_retained_by_other_thread);
  list.named("import-of-other-thread-refused",
             "only the first thread of a process can import memory", {kImport},
             first_thread_only);
  list.named("imex-refused-as-value",
             "a fabric handle of another IMEX channel is refused as an invalid "
             "value",
             {kImport}, imex_refused_as_value);
  list.named("fabric-beside-fd-refused",
             "memory that was created for descriptors and fabric handles can "
             "only be exported as a descriptor",
             {kExport}, one_of_two_types);
  list.named("props-of-host-name-gpu",
             "the properties of memory on the host name GPU 0", {kProperties},
             host_told_as_device);
  list.named("props-type-untold",
             "the properties of memory do not have its type", {kProperties},
             type_untold);
  list.named("mempool-attr-of-mapped",
             "mapped memory of cuMemCreate reports the default pool",
             {kAttribute, kMap, kUnmap}, pool_told_of_mapping);
  list.named("mempool-attr-of-malloc",
             "memory of cudaMalloc reports the default pool",
             {kAttribute, "cudaMalloc", "cudaFree"}, pool_told_of_malloc);
  list.named("mapped-attr-of-reserved",
             "reserved addresses without memory are reported as mapped",
             {kAttribute, kMap, kUnmap, kReserve, kAddressFree},
             reserved_told_as_mapped);
  list.named("mapped-attr-denies-imports",
             "mapped imports are reported as not mapped",
             {kAttribute, kMap, kUnmap, kImport}, import_told_as_unmapped);
  list.named("access-attr-always-full",
             "the attribute of each mapped address says that the memory can be "
             "written",
             {kAttribute, kMap, kUnmap}, access_told_as_full);
  list.named("access-attr-of-gpu-0",
             "the attribute of a mapped address says the access of GPU 0, also "
             "if another GPU is current",
             {kAttribute, kMap, kUnmap}, access_told_of_gpu_0, 2);
  list.named("buffer-id-of-mappings-same",
             "all mapped memory of cuMemCreate has the same id",
             {kAttribute, kMap, kUnmap}, id_of_all_mappings);
  list.named(
      "chunk-import-is-of-host",
      "the driver API reports imported memory of cuMemCreate as host memory",
      {kAttribute, kMap, kUnmap, kImport}, import_told_as_host);
  list.named("chunk-import-is-managed",
             "imported memory of cuMemCreate is reported as managed memory",
             {"cudaPointerGetAttributes", kMap, kUnmap, kImport},
             import_told_as_managed);
  list.named("chunk-set-after-export-lost",
             "after an export of memory, a memset of it by the exporter does "
             "nothing",
             {"cudaMemset", "cudaMemsetAsync", kMap, kUnmap, kExport, kCreate},
             set_after_export_lost);
}

void add_next_calls(List& list) {
  const auto refuses_next = [&list](const char* name, const char* what,
                                    const char* function) {
    list.named(name, what, {function}, next_refused);
  };
  refuses_next("create-after-refusal-refused",
               "after a refused cuMemCreate the next one is refused, too",
               kCreate);
  refuses_next("reserve-after-refusal-refused",
               "after a refused reservation the next one is refused, too",
               kReserve);
  refuses_next("addressfree-after-refusal-refused",
               "after a refused free of addresses the next one is refused, too",
               kAddressFree);
  refuses_next("map-after-refusal-refused",
               "after a refused mapping the next one is refused, too", kMap);
  refuses_next("unmap-after-refusal-refused",
               "after a refused unmapping the next one is refused, too",
               kUnmap);
  refuses_next("setaccess-after-refusal-refused",
               "after a refused setting of access the next one is refused, too",
               kSetAccess);
  refuses_next("retain-after-refusal-refused",
               "after a refused cuMemRetainAllocationHandle the next one is "
               "refused, too",
               kRetain);
  refuses_next("export-after-refusal-refused",
               "after a refused export of memory the next one is refused, too",
               kExport);
  list.named("create-of-other-thread-refused",
             "only the first thread of a process can create memory", {kCreate},
             first_thread_only);
  list.named("reserve-of-other-thread-refused",
             "only the first thread of a process can reserve addresses",
             {kReserve}, first_thread_only);
  list.named("addressfree-of-other-thread-refused",
             "only the first thread of a process can free addresses",
             {kAddressFree}, first_thread_only);
  list.named(
      "getaccess-of-other-thread-none",
      "cuMemGetAccess reports access only to the thread that has set the "
      "access",
      {kGetAccess, kSetAccess, kMap, kUnmap}, access_told_to_one_thread);
  list.named("setaccess-flags-of-first",
             "all entries of a list of accesses get the flags of the first one",
             {kSetAccess}, flags_of_first, 2);
  list.named("export-needs-current-gpu",
             "memory of a GPU other than the current GPU cannot be exported",
             {kExport}, export_needs_current_gpu, 2);
  list.named("chunk-import-range-short",
             "the address range of imported memory of cuMemCreate is half of "
             "the mapping",
             {"cuMemGetAddressRange", kMap, kUnmap, kImport},
             range_of_import_too_short);
}

}  // namespace

void add_mapped_memory(List& list) {
  add_mapping(list);
  add_next_calls(list);
  add_handles(list);
}

}  // namespace ipclab::faults
