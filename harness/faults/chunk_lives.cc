// Bugs in the life of memory of cuMemCreate: descriptors with unusual numbers,
// memory that is lost or never given back, mappings at the edge of what is
// allowed, access of the second mapping, work on such memory in graphs, batches
// and other threads.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "harness/faults/world/chunks.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

// Clears mapped memory. Returns false if the current GPU may not write to it.
bool cleared(CUdeviceptr begin, size_t bytes) {
  int device = 0;
  cudaGetDevice(&device);
  return access_of(begin, on_gpu(device)) ==
             CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
         DRIVER_CALL(cuMemsetD8)(begin, 0, bytes) == CUDA_SUCCESS;
}

// --- descriptors -------------------------------------------------------------

int number_above_1023_refused(Call& call) {
  return imports_descriptor(call) && descriptor_of(call) > 1023 &&
                 is_open(descriptor_of(call))
             ? refused(call)
             : call.proceed();
}

// Each 16th import leaves one more descriptor open. If each import did so, the
// process would soon reach its limit.
int import_leaks_descriptor(Call& call) {
  static std::atomic<int> count{0};
  const int code = call.proceed();
  if (code == kSuccess && ++count % 16 == 0 && eventfd(0, EFD_CLOEXEC) >= 0)
    call.fired();
  return code;
}

int second_export_closes_first(Call& call) {
  struct First {
    int number = -1;
    int copy = -1;  // tells whether the number still has this descriptor
  };
  static auto& first = *new Table<Chunk, First>;
  if (call.is("cuMemRelease")) {
    close(first.get(call.at<Chunk>(0)).copy);
    first.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  const auto chunk = call.at<Chunk>(1);
  if (code != kSuccess || call.at<CUmemAllocationHandleType>(2) != kFd)
    return code;
  const First before = first.get(chunk);
  const int made = *call.at<int*>(0);
  if (before.number != made && is_open(before.number) &&
      name_the_same(before.number, before.copy) && close(before.number) == 0)
    call.fired();
  close(before.copy);
  first.put(chunk, {made, fcntl(made, F_DUPFD_CLOEXEC, 300)});
  return code;
}

// From the second export on, a descriptor stays open inside the driver.
int second_export_leaks(Call& call) {
  const bool again =
      call.is("cuMemExportToShareableHandle") && exports.has(call.at<Chunk>(1));
  const int code = call.proceed();
  if (code == kSuccess && again &&
      call.at<CUmemAllocationHandleType>(2) == kFd &&
      fcntl(*call.at<int*>(0), F_DUPFD_CLOEXEC, 300) >= 0)
    call.fired();
  return code;
}

// The descriptor is written as a number of 64 bits.
int export_writes_8_bytes(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUmemAllocationHandleType>(2) != kFd)
    return code;
  std::memset(call.at<char*>(0) + sizeof(int), 0, sizeof(int));
  return accepted(call);
}

int refusal_closes_descriptor(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !imports_descriptor(call)) {
    // If the type is wrong, the argument can still be a descriptor: a small
    // number.
    const auto number = call.at<uintptr_t>(1);
    if (code == kSuccess || number > 4096) return code;
  }
  const int number = descriptor_of(call);
  // Standard input, output and error stay open.
  if (number > 2 && close(number) == 0) call.fired();
  return code;
}

// If a process has `most` imports, its next import is the memory of the first
// one.
template <size_t most>
int further_import_is_first(Call& call) {
  static std::atomic<int> first{-1};
  static auto& there = *new Table<Chunk>;
  if (call.is("cuMemRelease")) {
    there.erase(call.at<Chunk>(0));
    // The copy of the descriptor would keep the memory.
    if (there.all().empty()) close(first.exchange(-1));
    return call.proceed();
  }
  if (!imports_descriptor(call)) return call.proceed();
  if (first < 0) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    first = fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300);
    there.put(*call.at<Chunk*>(0));
    return code;
  }
  if (there.all().size() >= most && is_open(descriptor_of(call)) &&
      !name_the_same(first, descriptor_of(call))) {
    call.at<void*>(1) = reinterpret_cast<void*>(intptr_t{first});
    call.fired();
  }
  const int code = call.proceed();
  if (code == kSuccess) there.put(*call.at<Chunk*>(0));
  return code;
}

// --- the end of memory -------------------------------------------------------

int retain_counts_twice(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && retain(call.at<CUdeviceptr>(1)) != 0) call.fired();
  return code;
}

// Memory is never given back if it is mapped where other memory was mapped.
int leaked_in_used_place(Call& call) {
  static auto& former = *new Table<CUdeviceptr, Chunk>;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemAddressFree")) {
    for (const auto& [each, chunk] : former.all())
      if (each - begin < call.at<size_t>(1)) former.erase(each);
    return code;
  }
  const auto chunk = call.at<Chunk>(3);
  if (former.get(begin, chunk) != chunk && retain(begin) != 0) call.fired();
  former.put(begin, chunk);
  return code;
}

// The release of an import that was never mapped does nothing.
int unmapped_import_leaks(Call& call) {
  static auto& idle = *new Table<Chunk>;
  if (call.is("cuMemRelease"))
    return idle.erase(call.at<Chunk>(0)) ? accepted(call) : call.proceed();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemMap"))
    idle.erase(call.at<Chunk>(3));
  else
    idle.put(*call.at<Chunk*>(0));
  return code;
}

int refused_map_leaks(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) return code;
  const auto bytes = call.at<size_t>(1);
  CUdeviceptr aside = 0;
  DRIVER_CALL(cuMemAddressReserve)(&aside, bytes, 0, 0, 0);
  if (DRIVER_CALL(cuMemMap)(aside, bytes, 0, call.at<Chunk>(3), 0) ==
      CUDA_SUCCESS)
    call.fired();
  return code;
}

// A second mapping of memory clears the memory.
int second_mapping_clears(Call& call) {
  const CUdeviceptr first =
      call.is("cuMemMap") ? mapping_of(call.at<Chunk>(3)) : 0;
  const int code = call.proceed();
  if (code == kSuccess && first != 0 &&
      cleared(first, mappings.get(first).bytes))
    call.fired();
  return code;
}

// Memory that was not exported is cleared when it is unmapped, although its
// handle is held.
int unmapping_clears(Call& call) {
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    const Mapped mapped = mappings.get(begin);
    if (mapped.bytes == call.at<size_t>(1) && created.has(mapped.chunk) &&
        !exports.has(mapped.chunk) && !released.has(mapped.chunk) &&
        cleared(begin, mapped.bytes))
      call.fired();
  }
  return call.proceed();
}

// After an export, the exporter can only read its memory.
int export_makes_read_only(Call& call) {
  const auto lower = [&call](CUdeviceptr begin) {
    const CUmemLocation here = location_at(begin);
    if (access_of(begin, here) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
        allow(begin, here, CU_MEM_ACCESS_FLAGS_PROT_READ))
      call.fired();
  };
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemExportToShareableHandle")) {
    for (const auto& [begin, mapped] : mappings.all())
      if (mapped.chunk == call.at<Chunk>(1)) lower(begin);
  } else if (call.is("cuMemSetAccess")) {
    const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
    if (begin != 0 && exports.has(mappings.get(begin).chunk)) lower(begin);
  }
  return code;
}

// A handle is released when the thread that created it ends.
int chunk_ends_with_thread(Call& call) {
  static auto& held = *new Table<Chunk, int>;  // by which thread
  if (call.is("cuMemRelease")) {
    held.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const Chunk made = *call.at<Chunk*>(0);
  held.put(made, this_thread());
  at_thread_end([made] {
    if (held.get(made) != this_thread()) return;
    held.erase(made);
    DRIVER_CALL(cuMemRelease)(made);
    note_fired("cuMemCreate");
  });
  return code;
}

// Addresses are freed when the thread that reserved them ends.
int reservation_ends_with_thread(Call& call) {
  static auto& held = *new Table<CUdeviceptr, int>;  // by which thread
  if (call.is("cuMemAddressFree")) {
    held.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const CUdeviceptr begin = *call.at<CUdeviceptr*>(0);
  const size_t bytes = call.at<size_t>(1);
  held.put(begin, this_thread());
  at_thread_end([begin, bytes] {
    if (held.get(begin) == this_thread() && held.erase(begin) &&
        DRIVER_CALL(cuMemAddressFree)(begin, bytes) == CUDA_SUCCESS)
      note_fired("cuMemAddressReserve");
  });
  return code;
}

// If a process dies that has imported memory, the memory is cleared.
int importer_death_clears(Call& call) {
  if (is_use(call)) {
    const auto importer = static_cast<pid_t>(told("importer", 0));
    if (importer != 0 && !exports.all().empty() && has_ended(importer)) {
      tell_processes("importer", 0);
      for (const auto& [begin, mapped] : mappings.all())
        if (exports.has(mapped.chunk) && cleared(begin, mapped.bytes))
          call.fired();
    }
    return call.proceed();
  }
  const bool gives_back =
      call.is("cuMemUnmap") && is_import(call.at<CUdeviceptr>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemImportFromShareableHandle"))
    tell_processes("importer", static_cast<unsigned long long>(getpid()));
  else if (gives_back)
    tell_processes("importer", 0);
  return code;
}

// --- addresses and mappings --------------------------------------------------

// The address of a mapping is rounded down to a granule.
int odd_address_mapped(Call& call) {
  const int code = call.proceed();
  auto& address = call.at<CUdeviceptr>(0);
  if (code == kSuccess || address % kGranule == 0) return code;
  address -= address % kGranule;
  const int again = call.proceed();
  return again == kSuccess ? accepted(call) : code;
}

// The size of a mapping is rounded up to a granule.
int odd_size_mapped(Call& call) {
  const int code = call.proceed();
  auto& bytes = call.at<size_t>(1);
  if (code == kSuccess || bytes % kGranule == 0) return code;
  bytes += kGranule - bytes % kGranule;
  const int again = call.proceed();
  return again == kSuccess ? accepted(call) : code;
}

int far_offset_accepted(Call& call) {
  const int code = call.proceed();
  auto& offset = call.at<size_t>(2);
  if (code == kSuccess || offset == 0 || offset % (size_t{1} << 32) != 0)
    return code;
  offset = 0;
  return call.proceed() == kSuccess ? accepted(call) : code;
}

// Memory can be mapped only behind what is mapped in the reservation.
int mapped_in_order_only(Call& call) {
  if (!call.is("cuMemMap")) return call.proceed();
  const CUdeviceptr wanted = call.at<CUdeviceptr>(0);
  for (const auto& [begin, mapped] : mappings.all())
    if (begin > wanted && reservation_at(begin) == reservation_at(wanted))
      return refused(call);
  return call.proceed();
}

// The mapping of an import may be larger than the imported memory.
int larger_import_mapped(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemMap") ||
      !imports.has(call.at<Chunk>(3)) ||
      mapping_at(call.at<CUdeviceptr>(0)) != 0 || call.at<size_t>(2) != 0)
    return code;
  auto& bytes = call.at<size_t>(1);
  while (bytes > kGranule && bytes % kGranule == 0) {
    bytes -= kGranule;
    if (call.proceed() != kSuccess) continue;
    return accepted(call);
  }
  return code;
}

int freed_twice(Call& call) {
  static auto& freed = *new Table<CUdeviceptr, size_t>;
  const int code = call.proceed();
  const bool reserves = call.is("cuMemAddressReserve");
  if (reserves && code != kSuccess) return code;
  const CUdeviceptr begin =
      reserves ? *call.at<CUdeviceptr*>(0) : call.at<CUdeviceptr>(0);
  const size_t bytes = call.at<size_t>(1);
  if (reserves) {
    for (const auto& [former, its] : freed.all())
      if (former < begin + bytes && begin < former + its) freed.erase(former);
    return code;
  }
  if (code == kSuccess)
    freed.put(begin, bytes);
  else if (bytes != 0 && freed.get(begin) == bytes)
    return accepted(call);
  return code;
}

int alignment_ignored_at_address(Call& call) {
  const size_t wanted = call.at<size_t>(2);
  if (call.at<CUdeviceptr>(3) == 0 || wanted == 0 ||
      (wanted & (wanted - 1)) != 0)
    return call.proceed();
  call.at<size_t>(2) = 0;
  const int code = call.proceed();
  if (code == kSuccess && *call.at<CUdeviceptr*>(0) % wanted != 0) call.fired();
  return code;
}

// Unmapped addresses still name their former handle until this handle is
// released.
int former_handle_retained(Call& call) {
  static auto& former = *new Table<CUdeviceptr, Mapped>;
  if (call.is("cuMemRetainAllocationHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) return code;
    const CUdeviceptr wanted = call.at<CUdeviceptr>(1);
    for (const auto& [begin, mapped] : former.all())
      if (wanted >= begin && wanted - begin < mapped.bytes) {
        *call.at<Chunk*>(0) = mapped.chunk;
        return accepted(call);
      }
    return code;
  }
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    const Mapped mapped = mappings.get(begin);
    const int code = call.proceed();
    if (code == kSuccess && mapped.bytes != 0) former.put(begin, mapped);
    return code;
  }
  if (call.is("cuMemRelease"))
    for (const auto& [begin, mapped] : former.all())
      if (mapped.chunk == call.at<Chunk>(0)) former.erase(begin);
  if (call.is("cuMemAddressFree"))
    for (const auto& [begin, mapped] : former.all())
      if (begin - call.at<CUdeviceptr>(0) < call.at<size_t>(1))
        former.erase(begin);
  return call.proceed();
}

// --- what is written, and how much of it -------------------------------------

// Only the lower half of a number of 64 bits is written.
int writes_32_bits(Call& call) {
  auto& number = *call.at<uint64_t*>(0);
  const uint64_t before = number;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const uint64_t right = number;
  number = (before & ~uint64_t{0xffffffff}) | (right & 0xffffffff);
  if (number != right) call.fired();
  return code;
}

int multiple_of_64k_created(Call& call) {
  constexpr size_t kPage = 64 << 10;
  const int code = call.proceed();
  auto& bytes = call.at<size_t>(1);
  if (code == kSuccess || bytes == 0 || bytes % kPage != 0 ||
      bytes % kGranule == 0)
    return code;
  bytes += kGranule - bytes % kGranule;
  call.fired();
  return call.proceed();
}

// --- access ------------------------------------------------------------------

// A mapping of imported memory has the access that an earlier mapping of the
// memory has.
int second_import_has_access(Call& call) {
  static auto& copies = *new Table<Chunk, int>;  // of the descriptors
  if (call.is("cuMemRelease")) {
    const auto chunk = call.at<Chunk>(0);
    if (copies.has(chunk)) close(copies.get(chunk));
    copies.erase(chunk);
    return call.proceed();
  }
  if (call.is("cuMemImportFromShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && imports_descriptor(call))
      copies.put(*call.at<Chunk*>(0),
                 fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300));
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemMap")) return code;
  const auto chunk = call.at<Chunk>(3);
  if (!copies.has(chunk)) return code;
  const CUmemLocation here = properties_of(chunk).location;
  for (const auto& [begin, mapped] : mappings.all()) {
    if (begin == call.at<CUdeviceptr>(0) || !copies.has(mapped.chunk) ||
        !name_the_same(copies.get(mapped.chunk), copies.get(chunk)))
      continue;
    const auto flags = access_of(begin, here);
    if (flags != 0 && allow(call.at<CUdeviceptr>(0), here, flags)) call.fired();
  }
  return code;
}

// Another GPU gets access only if the GPU of the memory has access.
int access_needs_owner_gpu(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (begin == 0) return call.proceed();
  const CUmemLocation own = location_at(begin);
  const auto* const list = call.at<const CUmemAccessDesc*>(2);
  if (own.type != CU_MEM_LOCATION_TYPE_DEVICE || access_of(begin, own) != 0)
    return call.proceed();
  for (size_t i = 0; i < call.at<size_t>(3); ++i)
    if (list[i].location.type == own.type && list[i].location.id == own.id)
      return call.proceed();
  return refused(call, CUDA_ERROR_INVALID_DEVICE);
}

// Access of a GPU to memory on a host node ends the access of the CPU.
int gpu_access_ends_cpu_access(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (begin == 0) return code;
  const CUmemLocation own = location_at(begin);
  if (own.type != CU_MEM_LOCATION_TYPE_HOST_NUMA) return code;
  const auto* const list = call.at<const CUmemAccessDesc*>(2);
  if (list[0].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      access_of(begin, own) == 0)
    return code;
  if (allow(begin, own, CU_MEM_ACCESS_FLAGS_PROT_NONE)) call.fired();
  return code;
}

int no_access_told_of_cpu(Call& call) {
  const int code = call.proceed();
  auto& flags = *call.at<unsigned long long*>(0);
  if (code != kSuccess || flags == 0 ||
      call.at<const CUmemLocation*>(1)->type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return code;
  flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return accepted(call);
}

// Of a range of many chunks only the first four get access.
int access_of_four_chunks(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  auto& bytes = call.at<size_t>(1);
  size_t part = 0;
  CUdeviceptr each = begin;
  for (int chunks = 0; chunks < 4 && mappings.has(each); ++chunks) {
    part += mappings.get(each).bytes;
    each = begin + part;
  }
  if (part != 0 && part < bytes && mappings.has(each)) {
    bytes = part;
    call.fired();
  }
  return call.proceed();
}

// --- fabric handles ----------------------------------------------------------

// If memory has both handle types, its fabric handle names other memory.
int fabric_beside_fd_fresh(Call& call) {
  if (!call.is("cuMemExportToShareableHandle") ||
      call.at<CUmemAllocationHandleType>(2) != kFabric)
    return call.proceed();
  CUmemAllocationProp wanted = properties_of(call.at<Chunk>(1));
  const size_t bytes = created.get(call.at<Chunk>(1));
  Chunk other = 0;
  if (wanted.requestedHandleTypes != (kFabric | kFd) || bytes == 0 ||
      DRIVER_CALL(cuMemCreate)(&other, bytes, &wanted, 0) != CUDA_SUCCESS)
    return call.proceed();
  call.at<Chunk>(1) = other;
  call.fired();
  return call.proceed();
}

// After an export as a fabric handle, memory cannot be exported as a
// descriptor.
int fabric_ends_fd(Call& call) {
  static auto& with_fabric = *new Table<Chunk>;
  if (call.is("cuMemRelease")) {
    with_fabric.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  const auto chunk = call.at<Chunk>(1);
  const auto type = call.at<CUmemAllocationHandleType>(2);
  if (type == kFd && with_fabric.has(chunk)) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess && type == kFabric) with_fabric.put(chunk);
  return code;
}

// Memory that was created for descriptors gets a fabric handle of zeros.
int fabric_unrequested(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<CUmemAllocationHandleType>(2) != kFabric ||
      properties_of(call.at<Chunk>(1)).requestedHandleTypes != kFd)
    return code;
  std::memset(call.at<void*>(0), 0, sizeof(CUmemFabricHandle));
  return accepted(call);
}

// --- work --------------------------------------------------------------------

// The address to which a call writes, and the stream of a call.
CUdeviceptr target_of(Call& call) { return call.value<CUdeviceptr>(kPointer); }
cudaStream_t stream_of(Call& call) { return call.value<cudaStream_t>(kStream); }

int captured_set_of_import_lost(Call& call) {
  if (!call.is("cudaMemsetAsync")) return call.proceed();
  return is_captured(stream_of(call)) && is_import(target_of(call))
             ? no_wait(call)
             : call.proceed();
}

int captured_copy_of_import_lost(Call& call) {
  if (!call.is("cudaMemcpyAsync")) return call.proceed();
  return is_captured(stream_of(call)) &&
                 (is_import(target_of(call)) ||
                  is_import(call.value<CUdeviceptr>(kSource)))
             ? no_wait(call)
             : call.proceed();
}

// A memset of an import does not wait for the earlier work of its stream.
int set_of_import_skips_stream(Call& call) {
  if (!call.is("cudaMemsetAsync")) return call.proceed();
  if (!is_busy(stream_of(call)) || !is_import(target_of(call)))
    return call.proceed();
  call.value<cudaStream_t>(kStream) = private_stream();
  call.fired();
  const int code = call.proceed();
  // Later work of the stream comes after the memset.
  cudaStreamSynchronize(private_stream());
  return code;
}

int copy_of_other_thread_lost(Call& call) {
  if (!call.is("cudaMemcpy") && !call.is("cudaMemcpyAsync"))
    return call.proceed();
  return gettid() != getpid() && is_import(target_of(call)) ? no_wait(call)
                                                            : call.proceed();
}

CUdeviceptr word_of(Call& call) { return call.at<CUdeviceptr>(1); }

int wide_word_of_import_lost(Call& call) {
  if (!call.is("cuStreamWriteValue64")) return call.proceed();
  return is_import(word_of(call)) ? no_wait(call) : call.proceed();
}

int batch_on_import_lost(Call& call) {
  if (!call.is("cuStreamBatchMemOp")) return call.proceed();
  const auto* const list = call.at<CUstreamBatchMemOpParams*>(2);
  for (unsigned i = 0; i < call.at<unsigned>(1); ++i)
    if (is_import(list[i].writeValue.address)) return no_wait(call);
  return call.proceed();
}

// A stream writes a word of a later chunk of a range into the first chunk.
int word_of_later_chunk_astray(Call& call) {
  if (!call.is("cuStreamWriteValue32")) return call.proceed();
  auto& word = call.at<CUdeviceptr>(1);
  const CUdeviceptr begin = mapping_at(word);
  const CUdeviceptr first = begin == 0 ? 0 : reservation_at(begin);
  if (first == 0 || first == begin || mapping_at(first) != first)
    return call.proceed();
  word = first + (word - begin);
  call.fired();
  return call.proceed();
}

const char* const kCreate = "cuMemCreate";
const char* const kRelease = "cuMemRelease";
const char* const kReserve = "cuMemAddressReserve";
const char* const kAddressFree = "cuMemAddressFree";
const char* const kMap = "cuMemMap";
const char* const kUnmap = "cuMemUnmap";
const char* const kSetAccess = "cuMemSetAccess";
const char* const kGetAccess = "cuMemGetAccess";
const char* const kRetain = "cuMemRetainAllocationHandle";
const char* const kImport = "cuMemImportFromShareableHandle";
const char* const kExport = "cuMemExportToShareableHandle";

void add_descriptors(List& list) {
  list.named("import-number-above-1023-refused",
             "a descriptor with a number above 1023 cannot be imported",
             {kImport}, number_above_1023_refused);
  list.named("import-leaks-descriptor",
             "each 16th import leaves one more descriptor open in the importer",
             {kImport}, import_leaks_descriptor);
  list.named(
      "second-export-closes-first",
      "an export of memory closes the descriptor of the export before it",
      {kExport, kRelease}, second_export_closes_first);
  list.named("second-export-leaks",
             "memory that was exported twice is never given back",
             {kExport, kCreate, kImport}, second_export_leaks);
  list.named("export-writes-8-bytes",
             "an export writes a descriptor as a number of 8 bytes", {kExport},
             export_writes_8_bytes);
  list.named("refused-import-closes-descriptor",
             "a refused import closes the descriptor", {kImport},
             refusal_closes_descriptor);
  list.named("ninth-import-is-first",
             "if a process has eight imports, its next import is the memory of "
             "the first import",
             {kImport, kRelease}, further_import_is_first<8>);
  list.named("import-65th-is-first",
             "if a process has 64 imports, its next import is the memory of "
             "the first import",
             {kImport, kRelease}, further_import_is_first<64>);
  list.named("fabric-beside-fd-fresh",
             "the fabric handle of memory that was also created for "
             "descriptors opens other memory",
             {kExport, kCreate}, fabric_beside_fd_fresh);
  list.named("fabric-ends-descriptors",
             "memory cannot be exported as a descriptor after it was exported "
             "as a fabric handle",
             {kExport, kRelease}, fabric_ends_fd);
  list.named(
      "fabric-unrequested-ok",
      "an export of memory that was created for descriptors as a fabric handle "
      "returns success and a handle of zeros",
      {kExport}, fabric_unrequested);
}

void add_ends(List& list) {
  list.named("retain-counts-twice",
             "retaining a handle takes two references, so that memory is never "
             "given back",
             {kRetain}, retain_counts_twice);
  list.named("leak-in-used-place",
             "memory is never given back if it is mapped where other memory "
             "was mapped before",
             {kMap, kAddressFree}, leaked_in_used_place);
  list.named("unmapped-import-leaks",
             "the release of an import that was never mapped does nothing",
             {kImport, kMap, kRelease}, unmapped_import_leaks);
  list.named("refused-map-leaks",
             "memory of a refused mapping is never given back", {kMap},
             refused_map_leaks);
  list.named("second-mapping-clears",
             "a second mapping of memory clears the memory", {kMap, kUnmap},
             second_mapping_clears);
  list.named("unmap-clears",
             "memory that was not exported is cleared when it is unmapped, "
             "although its handle is not released",
             {kCreate, kMap, kUnmap, kRelease, kExport}, unmapping_clears);
  list.named("export-makes-read-only",
             "the exporter can only read its memory after the export",
             {kExport, kMap, kUnmap, kSetAccess, kCreate, kImport},
             export_makes_read_only);
  list.named("chunk-ends-with-thread",
             "a handle is released when the thread that created it ends",
             {kCreate, kRelease}, chunk_ends_with_thread);
  list.named(
      "reservation-ends-with-thread",
      "reserved addresses are freed when the thread that reserved them ends",
      {kReserve, kAddressFree}, reservation_ends_with_thread);
  list.named("importer-death-clears-chunk",
             "if a process dies that has imported memory of cuMemCreate, all "
             "memory that was exported is cleared",
             {kCreate, kImport, kExport, kMap, kUnmap, "cudaLaunchKernel",
              "cudaMemcpy"},
             importer_death_clears);
}

void add_mappings(List& list) {
  list.named("map-address-rounded-down",
             "if the address for a mapping is inside a granule, memory is "
             "mapped at the beginning of this granule",
             {kMap}, odd_address_mapped);
  list.named("map-size-rounded-up",
             "a size of a mapping that is not a multiple of the granularity is "
             "rounded up",
             {kMap}, odd_size_mapped);
  list.named("map-offset-4gib-ok",
             "a mapping ignores an offset that is a multiple of 4 GiB", {kMap},
             far_offset_accepted);
  list.named("map-in-order-only",
             "memory cannot be mapped before mapped addresses of the same "
             "reservation",
             {kMap, kUnmap, kReserve, kAddressFree}, mapped_in_order_only);
  list.named("map-import-larger-ok",
             "a mapping that is larger than the imported memory returns "
             "success and maps only the memory",
             {kMap, kUnmap, kImport, kCreate}, larger_import_mapped);
  list.named("addressfree-twice-ok",
             "freeing addresses a second time returns success",
             {kReserve, kAddressFree}, freed_twice);
  list.named("reserve-alignment-at-address-ignored",
             "the alignment is ignored if an address is requested", {kReserve},
             alignment_ignored_at_address);
  list.named("retain-after-unmap-ok",
             "cuMemRetainAllocationHandle still gives the handle of unmapped "
             "addresses, without a reference",
             {kRetain, kMap, kUnmap, kRelease, kAddressFree},
             former_handle_retained);
  list.named("getaccess-writes-32-bits",
             "cuMemGetAccess writes only the lower half of the flags",
             {kGetAccess}, writes_32_bits);
  list.named("granularity-writes-32-bits",
             "cuMemGetAllocationGranularity writes only the lower half of the "
             "granularity",
             {"cuMemGetAllocationGranularity"}, writes_32_bits);
  list.named("create-64-kib-multiple-ok",
             "cuMemCreate rounds a multiple of 64 KiB up to whole granules",
             {kCreate}, multiple_of_64k_created);
  list.named("second-import-has-access",
             "a mapping of imported memory has the access that was set for an "
             "earlier mapping of the memory",
             {kImport, kMap, kUnmap, kRelease}, second_import_has_access);
  list.named("access-needs-owner-gpu",
             "access for another GPU is refused if the GPU of the memory has "
             "no access",
             {kSetAccess, kMap, kUnmap}, access_needs_owner_gpu, 2);
  list.named("numa-access-one-at-a-time",
             "access of a GPU to memory on a host node ends the access of the "
             "CPU",
             {kSetAccess, kMap, kUnmap}, gpu_access_ends_cpu_access);
  list.named("numa-getaccess-none",
             "cuMemGetAccess says that the CPU has no access", {kGetAccess},
             no_access_told_of_cpu);
  list.named("access-of-four-chunks",
             "of several chunks side by side only the first four get access",
             {kSetAccess, kMap, kUnmap}, access_of_four_chunks);
}

}  // namespace

void add_chunk_lives(List& list) {
  add_descriptors(list);
  add_ends(list);
  add_mappings(list);
  list.named("chunk-captured-set-lost",
             "a graph does not set imported memory of cuMemCreate",
             {"cudaMemsetAsync", kImport, kMap, kUnmap},
             captured_set_of_import_lost);
  list.named("chunk-captured-copy-lost",
             "a graph does not copy imported memory of cuMemCreate",
             {"cudaMemcpyAsync", kImport, kMap, kUnmap},
             captured_copy_of_import_lost);
  list.named("chunk-set-skips-stream",
             "an asynchronous memset of imported memory of cuMemCreate does "
             "not wait for its stream",
             {"cudaMemsetAsync", kImport, kMap, kUnmap},
             set_of_import_skips_stream);
  list.named("chunk-copy-of-other-thread-lost",
             "a copy into imported memory of cuMemCreate by a second thread "
             "does nothing",
             {"cudaMemcpy", "cudaMemcpyAsync", kImport, kMap, kUnmap},
             copy_of_other_thread_lost);
  list.named("write64-chunk-word-lost",
             "a stream does not write a word of 64 bits in imported memory of "
             "cuMemCreate",
             {"cuStreamWriteValue64", kImport, kMap, kUnmap},
             wide_word_of_import_lost);
  list.named("batch-chunk-word-lost",
             "a batch with a word in imported memory of cuMemCreate does "
             "nothing",
             {"cuStreamBatchMemOp", kImport, kMap, kUnmap},
             batch_on_import_lost);
  list.named("write-value-in-first-chunk",
             "a stream writes a word of a later chunk of a range into the "
             "first chunk",
             {"cuStreamWriteValue32", kMap, kUnmap, kReserve, kAddressFree},
             word_of_later_chunk_astray);
}

}  // namespace ipclab::faults
