// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

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

int access_to_first_gpus_memory(Call& call) {
  const CUdeviceptr from = call.at<CUdeviceptr>(0);
  const CUdeviceptr to = from + call.at<size_t>(1);
  const int first = location_at(from).id;
  std::vector<CUdeviceptr> reached;
  bool all = true;
  for (const auto& each : mappings.all()) {
    if (each.first < from || each.first >= to) continue;
    if (location_at(each.first).id == first)
      reached.push_back(each.first);
    else
      all = false;
  }
  if (all) return call.proceed();
  call.fired();
  for (const CUdeviceptr begin : reached) DRIVER_CALL(cuMemSetAccess)
  (begin, mappings.get(begin).bytes, call.at<const CUmemAccessDesc*>(2),
   call.at<size_t>(3));
  return kSuccess;
}

constexpr size_t kLargestAlignment = 16 << 20;

// Calls the driver again, with the arguments that the fault has changed.
int proceed_changed(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

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

// Memory on the host counts as memory of every GPU.
bool is_of_current_gpu(Chunk chunk) {
  const CUmemLocation place = properties_of(chunk).location;
  int current = 0;
  cudaGetDevice(&current);
  return place.type != CU_MEM_LOCATION_TYPE_DEVICE || place.id == current;
}

// The access that is reported for a mapping but was never set. The key is the
// beginning of the mapping.
Table<CUdeviceptr, CUmemAccessDesc> in_name;

int reported_access(Call& call) {
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
  if (call.is("cuMemGetAccess")) return reported_access(call);
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

constexpr auto kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;

constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;

constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

bool takes_access(Call& set) {
  return set.at<const CUmemAccessDesc*>(2)->flags ==
         CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

// The first chunk of the reservation, if the address is in a later one; or 0.
CUdeviceptr in_first_chunk(CUdeviceptr address) {
  const CUdeviceptr begin = reservation_at(address);
  const CUdeviceptr own = mapping_at(address);
  return begin != 0 && own != begin && mapping_at(begin) != 0 &&
                 address - own < mappings.get(begin).bytes
             ? begin + (address - own)
             : 0;
}

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

// The address that a call writes.
CUdeviceptr written_address(Call& call) {
  if (call.is("cuStreamBatchMemOp"))
    return call.at<CUstreamBatchMemOpParams*>(2)->writeValue.address;
  return call.is("cuStreamWriteValue32") ? word_of(call)
                                         : call.value<CUdeviceptr>(kPointer);
}

// Is this a copy from device to device, as the runtime says it?
bool is_device_copy(Call& call) {
  return call.is("cudaMemcpy") && call.is_runtime() &&
         call.at<cudaMemcpyKind>(3) == cudaMemcpyDeviceToDevice;
}

int same_memory_keeps_access(Call& call) {
  static auto& former = *new Table<CUdeviceptr, std::pair<Chunk, int>>;
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    if (mappings.has(begin))
      former.put(begin, {mappings.get(begin).chunk,
                         static_cast<int>(access_of(begin, on_gpu(0)))});
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemAddressFree")) {
    for (const auto& each : former.all())
      if (each.first - begin < call.at<size_t>(1)) former.erase(each.first);
    return code;
  }
  if (call.is("cuMemCreate")) {  // with the number of earlier memory
    for (const auto& each : former.all())
      if (each.second.first == *call.at<Chunk*>(0)) former.erase(each.first);
    return code;
  }
  const auto before = former.get(begin);
  if (former.has(begin) && before.first == call.at<Chunk>(3) &&
      before.second != 0 &&
      allow(begin, on_gpu(0), static_cast<unsigned>(before.second)))
    call.fired();
  return code;
}

int wide_alignments_overlap(Call& call) {
  static std::atomic<CUdeviceptr> shared{0};
  static std::atomic<size_t> bytes{0};
  static std::atomic<int> users{0};
  if (call.is("cuMemAddressFree")) {
    if (call.at<CUdeviceptr>(0) != shared) return call.proceed();
    if (--users > 0) return lost(call);
    shared = 0;
    return call.proceed();
  }
  if (call.at<size_t>(2) <= kGranule ||
      call.at<size_t>(2) % (2 * kGranule) != 0)
    return call.proceed();
  if (shared % call.at<size_t>(2) == 0 && shared != 0 &&
      call.at<size_t>(1) == bytes) {
    *call.at<CUdeviceptr*>(0) = shared;
    ++users;
    return lost(call);
  }
  const int code = call.proceed();
  if (code == kSuccess && shared == 0) {
    shared = *call.at<CUdeviceptr*>(0);
    bytes = call.at<size_t>(1);
    users = 1;
  }
  return code;
}

constexpr size_t kFarAway = size_t{4} << 30;

int unmapped_stays_usable(Call& call) {
  static auto& secret = *new Table<CUdeviceptr, size_t>;
  const auto secret_at = [](CUdeviceptr address) {
    for (const auto& [begin, bytes] : secret.all())
      if (address - begin < bytes) return begin;
    return CUdeviceptr{0};
  };
  if (call.is("cuPointerGetAttribute") || call.is("cuMemGetAccess"))
    return secret_at(call.at<CUdeviceptr>(2)) != 0 ? refused(call)
                                                   : call.proceed();
  if (call.is("cuMemRetainAllocationHandle"))
    return secret_at(call.at<CUdeviceptr>(1)) != 0 ? refused(call)
                                                   : call.proceed();
  const auto begin = call.at<CUdeviceptr>(0);
  const auto bytes = call.at<size_t>(1);
  if (!call.is("cuMemUnmap")) {
    for (const auto& [at, size] : secret.all())
      if (at < begin + bytes && begin < at + size && secret.erase(at))
        DRIVER_CALL(cuMemUnmap)(at, size);
    return call.proceed();
  }
  const bool usable =
      mappings.get(begin).bytes == bytes &&
      access_of(begin, on_gpu(0)) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const Chunk held = usable ? retain(begin) : 0;
  const int code = call.proceed();
  if (held == 0) return code;
  if (code == kSuccess &&
      DRIVER_CALL(cuMemMap)(begin, bytes, 0, held, 0) == CUDA_SUCCESS) {
    allow(begin, bytes, on_gpu(0));
    secret.put(begin, bytes);
    call.fired();
  }
  DRIVER_CALL(cuMemRelease)(held);
  return code;
}

bool is_in_later_granule(CUdeviceptr address) {
  const CUdeviceptr begin = mapping_at(address);
  return begin != 0 && address - begin >= kGranule;
}

// A query of properties does not write the struct from `begin` on.
int properties_unwritten(Call& call, size_t begin) {
  auto* const found = call.at<unsigned char*>(0);
  unsigned char before[sizeof(CUmemAllocationProp)];
  std::copy_n(found, sizeof before, before);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  std::copy(before + begin, before + sizeof before, found + begin);
  call.fired();
  return code;
}

// The export succeeds and gives a descriptor of something else.
int gives_null_device(Call& call) {
  *call.at<int*>(0) = open("/dev/null", O_RDWR | O_CLOEXEC);
  return accepted(call);
}

// The call writes although the access to its target is `flags`.
template <CUmemAccess_flags flags = kRead>
int writes_without_access(Call& call) {
  return uses_without_access(call, written_address(call), flags);
}
bool copies(Call& call, cudaMemcpyKind kind) {
  return call.is_runtime() && call.at<cudaMemcpyKind>(3) == kind;
}

// A call looks only at the access of its first mapping: it also writes the next
// one, which can only be read.
int next_mapping_unchecked(Call& call) {
  const auto address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr last = mapping_at(address + call.value<size_t>(kBytes) - 1);
  return last != 0 && mapping_at(address) != last &&
                 access_of(address, location_at(last)) == kReadWrite
             ? uses_without_access(call, last, kRead)
             : call.proceed();
}

// The wanted address of a reservation.
CUdeviceptr hint(Call& reserve) { return reserve.at<CUdeviceptr>(3); }

// A reservation gets the wanted address, whatever is there. (The free of these
// addresses must not reach the driver.)
int given_as_wanted(Call& call) {
  *call.at<CUdeviceptr*>(0) = hint(call);
  marks.put(hint(call));
  return lost(call);
}

bool is_in_pool_memory(CUdeviceptr address) {
  for (const auto& [place, block] : blocks.all())
    if (address - number(place) < block.bytes) return true;
  return false;
}

// May a reservation begin at the wanted address?
bool is_usable_hint(Call& call) {
  return hint(call) != 0 && hint(call) % kSmallPage == 0 &&
         reservation_at(hint(call)) == 0;
}

CUmemorytype type_at(CUdeviceptr address) {
  unsigned type = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return static_cast<CUmemorytype>(type);
}

// Was an address mapped that is not mapped now? Marks have the former mappings.
bool was_unmapped(CUdeviceptr address) {
  for (const auto& [begin, bytes] : address_marks.all())
    if (address - begin < bytes) return mapping_at(address) == 0;
  return false;
}

// Has the range of cuMemSetAccess holes, and was memory mapped in all of them?
bool has_former_mappings(Call& call) {
  bool any = false;
  for (CUdeviceptr at = begin(call); at - begin(call) < bytes(call);) {
    const size_t room = room_at(at);
    if (room == 0 && !address_marks.has(at)) return false;
    any |= room == 0;
    at += room != 0 ? room : address_marks.get(at);
  }
  return any;
}

// Does a call set only this access, for one GPU?
bool sets_only(Call& call, CUmemAccess_flags flags) {
  return length(call) == 1 && wants(call).flags == flags;
}

// Gives all access instead; cuMemGetAccess tells what the program wanted.
int gives_all(Call& call) {
  const CUmemAccessDesc wanted = wants(call);
  CUmemAccessDesc all = wanted;
  all.flags = kReadWrite;
  call.at<const CUmemAccessDesc*>(2) = &all;
  const int code = once_more(call);
  if (code == kSuccess) in_name.put(mapping_at(begin(call)), wanted);
  return code;
}

// May another mapping of the memory be written?
bool is_written_elsewhere(Call& call) {
  const CUdeviceptr own = mapping_at(begin(call));
  for (const auto& [other, mapped] : mappings.all())
    if (other != own && mapped.chunk == mappings.get(own).chunk &&
        access_of(other, wants(call).location) == kReadWrite)
      return true;
  return false;
}

// A mark says what the access was: it could be written, it was lowered, or it
// was raised again in name only.
enum : unsigned { kWritable = 1, kLowered, kRaisedInName };

bool lowered_stays(Call& call) {
  const auto before = mapping_marks.get(begin(call));
  const auto now = access_of(begin(call), on_gpu(0));
  const bool was_lowered = before == kLowered || before == kRaisedInName;
  if (now != kReadWrite) {
    const bool is_lowered = before == kWritable && now == kRead;
    mapping_marks.put(begin(call), was_lowered || is_lowered ? kLowered : 0u);
    return false;
  }
  mapping_marks.put(begin(call), was_lowered ? kRaisedInName : kWritable);
  return was_lowered && allow(begin(call), on_gpu(0), kRead);
}

bool is_raised_in_name(CUdeviceptr address) {
  return mapping_marks.get(mapping_at(address)) == kRaisedInName;
}

// Access for one GPU; another GPU gets it, too, and its number is the mark.
bool gives_secret_access(Call& call) {
  const auto* const list = &wants(call);
  for (size_t i = 0; i < length(call); ++i)
    if (list[i].location.id == mapping_marks.get(begin(call), -1))
      mapping_marks.erase(begin(call));
  const int other = 1 - list->location.id;
  return sets_only(call, kReadWrite) && is_gpu(list->location) &&
         access_of(begin(call), on_gpu(other)) == 0 &&
         allow(begin(call), bytes(call), on_gpu(other)) &&
         mapping_marks.put(begin(call), other);
}

// The program gets another handle, which then has a release too many: its mark
// counts them.
int handle_given(Call& retain, Chunk other) {
  DRIVER_CALL(cuMemRelease)(std::exchange(*retain.at<Chunk*>(0), other));
  chunk_marks.count(other);
  return accepted(retain);
}
bool is_surplus(Call& release) {
  return chunk_marks.get(release.at<Chunk>(0)) > 0;
}
int surplus_released(Call& release) {
  const auto chunk = release.at<Chunk>(0);
  chunk_marks.put(chunk, chunk_marks.get(chunk) - 1);
  return kSuccess;
}

// The first import of the memory of a handle that this process still has; a
// mark has a copy of the descriptor of each import.
Chunk first_import_of(Chunk chunk) {
  for (const auto& [other, copy] : marks.all())
    if (!released.has(other) && marks.has(chunk) &&
        name_the_same(static_cast<int>(copy), marks.get<int>(chunk)))
      return other;
  return chunk;
}

// Mappings that have ended; their memory is not released.
Table<CUdeviceptr, Mapped> former;

Chunk former_chunk(CUdeviceptr address) {
  for (const auto& [begin, mapped] : former.all())
    if (address - begin < mapped.bytes && !released.has(mapped.chunk) &&
        reservation_at(address) != 0)
      return mapped.chunk;
  return 0;
}

// The mapping of a call had access once.
bool had_access(Call& call) {
  return mapping_marks.has(mapping_at(call.value<CUdeviceptr>(kPointer)));
}

// The properties of the memory that was created last.
std::atomic<const CUmemAllocationProp*> latest{nullptr};

// The size of the largest mapping of memory so far.
void mark_largest_mapping(Call& call) {
  chunk_marks.put(chunk_of(call),
                  std::max(chunk_marks.get(chunk_of(call)),
                           static_cast<unsigned long long>(bytes(call))));
}

CUmemLocation pool_wants(Call& set) {
  return set.at<const CUmemAccessDesc*>(1)->location;
}
// Is this a GPU of this machine?
bool is_there(const CUmemLocation& place) {
  return is_gpu(place) && place.id >= 0 && place.id < gpus();
}
// Can a GPU not reach the memory at an address?
bool is_out_of_reach(CUdeviceptr address, int gpu) {
  const int own = location_at(address).id;
  int reaches = 0;
  DRIVER_CALL(cuDeviceCanAccessPeer)(&reaches, gpu, own);
  return reaches == 0 && gpu != own;
}

// Would an address be taken if each mapping were as long as its memory?
bool is_behind_a_part(CUdeviceptr address) {
  for (const auto& [begin, mapped] : mappings.all()) {
    const size_t whole = imports.has(mapped.chunk) ? told("bytes", 0)
                                                   : created.get(mapped.chunk);
    if (address >= begin + mapped.bytes && address < begin + whole) return true;
  }
  return false;
}

size_t memory_of_gpu() {
  size_t total = 0;
  DRIVER_CALL(cuDeviceTotalMem)(&total, 0);
  return total;
}

// Is a later address of the same reservation mapped?
bool is_before_a_mapping(CUdeviceptr address) {
  for (const auto& each : mappings.all())
    if (each.first > address &&
        reservation_at(each.first) == reservation_at(address))
      return true;
  return false;
}

FAULTS {
  fault("rdma-flag-lost", {"VMM-39"}, "gpuDirectRDMACapable is ignored")
      .on({kCreate}, with_copy<CUmemAllocationProp>(2, [](auto& wanted) {
            return std::exchange(wanted.allocFlags.gpuDirectRDMACapable, 0) !=
                   0;
          }));

  fault("full-size-map-refused", {"VMM-23"},
        "an import can only be mapped in parts, not as a whole")
      .before({kCreate}, WHEN(first_of_all_processes("creator")),
              NOTE(tell_processes("bytes", bytes(call))))
      .on({kMap},
          WHEN(imports.has(chunk_of(call)) &&
               bytes(call) >= told("bytes", ~0ull)),
          refuses());

  fault("import-maps-once", {"VMM-36"},
        "an import that is mapped cannot be mapped again")
      .on({kMap},
          WHEN(imports.has(chunk_of(call)) && is_mapped(chunk_of(call))),
          refuses());

  fault("import-props-wrong", {"VMM-31"},
        "the location of an import has the exporter's device number")
      .with_gpus(2)
      .before(
          {kCreate},
          NOTE(tell_processes(
              "ordinal", call.at<const CUmemAllocationProp*>(2)->location.id)))
      .after({kGetProperties}, WHEN(imports.has(call.at<Chunk>(1))),
             DO(set_to(call.at<CUmemAllocationProp*>(0)->location.id,
                       told("ordinal", 0))));

  fault("import-props-zero", {"VMM-31"},
        "the properties of an import are zeros")
      .after({kGetProperties}, WHEN(imports.has(call.at<Chunk>(1))),
             [](Call& call) { *call.at<CUmemAllocationProp*>(0) = {}; });

  fault("retain-wrong-handle", {"VMM-32"},
        "a retained handle has another value than the handle that was mapped")
      .on({kRetain, kRelease, kMap, kExport, kGetProperties}, [](Call& call) {
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
      });

  fault("retain-no-reference", {"VMM-32"},
        "retaining a handle takes no reference")
      .after({kRetain}, [](Call& call) {
        DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0));
      });

  fault("retain-begin-only", {"VMM-32"},
        "only the first address of a mapping names its handle")
      .on({kRetain},
          WHEN(mapping_at(call.at<CUdeviceptr>(1)) != 0 &&
               !mappings.has(call.at<CUdeviceptr>(1))),
          refuses());

  fault("retain-hole-ok", {"VMM-32"},
        "the address after a mapping also names the handle of the mapping")
      .on_refusal({kRetain}, WHEN(mapping_at(call.at<CUdeviceptr>(1) - 1) != 0),
                  [](Call& call) {
                    call.at<CUdeviceptr>(1) =
                        mapping_at(call.at<CUdeviceptr>(1) - 1);
                    return once_more(call);
                  });

  fault("map-grants-access", {"VMM-17"}, "a mapping can be used at once")
      .after({kMap}, [](Call& call) {
        return allow(begin(call), bytes(call),
                     on_gpu(properties_of(chunk_of(call)).location.id));
      });

  fault("setaccess-noop", {"VMM-18"}, "setting access changes nothing")
      .on({kSetAccess}, accepted);

  fault("access-inherited", {"VMM-19"},
        "an importer starts with the access that the exporter has set")
      .after({kSetAccess}, WHEN(imports.all().empty()),
             NOTE(tell_processes("access", wants(call).flags)))
      .after({kMap},
             WHEN(imports.has(chunk_of(call)) && told("access", 0) != 0),
             DO(allow(begin(call), bytes(call), on_gpu(0), told("access", 0))));

  fault("access-travels-back", {"VMM-19"},
        "the access that an importer sets changes the exporter's access")
      .after({kSetAccess}, WHEN(is_import(begin(call))),
             [](Call& call) {
               tell_processes("access", wants(call).flags);
               return kSuccess;
             })
      .after({kGetAccess},
             WHEN(told("access", ~0ull) != ~0ull &&
                  !is_import(call.at<CUdeviceptr>(2))),
             [](Call& call) {
               const CUdeviceptr first = mapping_at(call.at<CUdeviceptr>(2));
               if (first != 0 && allow(first, on_gpu(0), told("access", 0)))
                 call.fired();
               return call.proceed();
             });

  fault("readonly-ignored", {"VMM-20"}, "a read-only range can also be written")
      .on({kSetAccess}, WHEN(sets_only(call, kRead)), gives_all)
      .after({kSetAccess}, NOTE(in_name.erase(begin(call))))
      .before({kUnmap}, NOTE(in_name.erase(begin(call))))
      .on({kGetAccess}, reported_access);

  fault("access-never-taken", {"VMM-18"},
        "access that was given cannot be taken away")
      .on({kSetAccess}, WHEN(length(call) == 1 && wants(call).flags == kNone),
          accepted);

  fault("setaccess-hole-ok", {"VMM-21"}, "a range with a hole gets access")
      .on_refusal({kSetAccess}, each_mapping([](Call& call, CUdeviceptr at,
                                                const Mapped& one) {
                    return at - begin(call) < bytes(call) &&
                           allow_same(call, at, one.bytes);
                  }));

  fault("setaccess-any-device", {"VMM-34", "SOMA-15"},
        "access for a GPU that does not exist is accepted")
      .on_refusal(
          {kSetAccess},
          WHEN(is_gpu(wants(call).location) && !is_there(wants(call).location)),
          accepted)
      .on_refusal({kSetPoolAccess},
                  WHEN(is_gpu(pool_wants(call)) && !is_there(pool_wants(call))),
                  accepted);

  fault("setaccess-nonpeer-ok", {"VMM-34"},
        "access for a GPU that cannot reach the memory is accepted")
      .with_gpus(2)
      .on_machine("no-peer")
      .on_refusal({kSetAccess},
                  WHEN(is_there(wants(call).location) &&
                       is_out_of_reach(begin(call), wants(call).location.id)),
                  accepted)
      .on_refusal({kSetPoolAccess}, WHEN(is_there(pool_wants(call))), accepted);

  fault("setaccess-numa-ok", {"VMM-34"},
        "access for a NUMA node to the memory of a GPU is accepted")
      .on_refusal({kSetAccess}, WHEN(is_on_node(wants(call).location)),
                  accepted);

  fault("peer-access-is-copy", {"VMM-33"},
        "a mapping that another GPU may use becomes a copy")
      .with_gpus(2)
      .after({kSetAccess}, [](Call& call) {
        const CUmemAccessDesc access = wants(call);
        const CUmemLocation own = location_at(begin(call));
        const Chunk held = mappings.get(begin(call)).bytes == bytes(call)
                               ? retain(begin(call))
                               : 0;
        const Chunk other = held != 0 && access.location.id != own.id
                                ? private_chunk(held, bytes(call))
                                : 0;
        const auto of_own = access_of(begin(call), own);
        if (other != 0) {
          copy(other, held, bytes(call));
          DRIVER_CALL(cuMemUnmap)(begin(call), bytes(call));
          DRIVER_CALL(cuMemMap)(begin(call), bytes(call), 0, other, 0);
          if (of_own != 0) allow(begin(call), bytes(call), own, of_own);
          if (allow(begin(call), bytes(call), on_gpu(access.location.id),
                    access.flags))
            call.fired();
          DRIVER_CALL(cuMemRelease)(other);
        }
        if (held != 0) DRIVER_CALL(cuMemRelease)(held);
        return kSuccess;
      });

  fault("only-first-chunk", {"VMM-35"},
        "only the first of several chunks side by side gets access")
      .before(
          {kSetAccess},
          WHEN(mappings.has(begin(call)) &&
               mappings.get(begin(call)).bytes < bytes(call)),
          [](Call& call) { bytes(call) = mappings.get(begin(call)).bytes; });

  fault("getaccess-of-last", {"VMM-17", "VMM-25"},
        "every address reports the access that was set last")
      .after({kSetAccess, kGetAccess}, [](Call& call) {
        static std::atomic<unsigned long long> last{0};
        if (call.is("cuMemGetAccess")) return answers(last.load())(call);
        last = wants(call).flags;
        return false;
      });

  fault("getaccess-of-gpu-0", {"VMM-33"},
        "cuMemGetAccess reports the access of GPU 0 for every GPU")
      .with_gpus(2)
      .on({kGetAccess}, with_copy<CUmemLocation>(1, [](auto& place) {
            return is_gpu(place) && std::exchange(place.id, 0) != 0;
          }));

  fault("setaccess-wrong-gpu", {"VMM-33"},
        "access for another GPU is given to GPU 0")
      .with_gpus(2)
      .on({kSetAccess}, WHEN(length(call) == 1),
          with_copy<CUmemAccessDesc>(2, [](auto& access) {
            return is_gpu(access.location) &&
                   std::exchange(access.location.id, 0) != 0;
          }));

  fault("setaccess-all-gpus", {"VMM-33"},
        "access for one GPU is given to all GPUs")
      .with_gpus(2)
      .after({kSetAccess}, [](Call& call) {
        bool any = false;
        for (int gpu = 0; gpu < gpus(); ++gpu)
          any |=
              gpu != wants(call).location.id &&
              allow(begin(call), bytes(call), on_gpu(gpu), wants(call).flags);
        return any;
      });

  fault("vmm-needs-enablepeer", {"VMM-33"},
        "access for another GPU needs cudaDeviceEnablePeerAccess first")
      .with_gpus(2)
      .on({kSetAccess, "cudaDeviceEnablePeerAccess"}, [](Call& call) -> int {
        static std::atomic<bool> enabled{false};
        enabled = enabled || !call.is("cuMemSetAccess");
        if (enabled) return call.proceed();
        const CUmemLocation own = location_at(begin(call));
        return own.type == CU_MEM_LOCATION_TYPE_INVALID ||
                       wants(call).location.id == own.id
                   ? call.proceed()
                   : refused(call, CUDA_ERROR_INVALID_DEVICE);
      });

  fault("map-over-map", {"VMM-22"},
        "a mapped range can be mapped again, and GPU 0 has access to it")
      .on_refusal({kMap}, WHEN(mappings.get(begin(call)).bytes == bytes(call)),
                  [](Call& call) {
                    DRIVER_CALL(cuMemUnmap)(begin(call), bytes(call));
                    const int code = once_more(call);
                    allow(begin(call), bytes(call), on_gpu(0));
                    return code;
                  });

  fault("map-offset-ignored", {"VMM-23"},
        "an offset into the memory is accepted and ignored")
      .before({kMap}, WHEN(call.at<size_t>(2) != 0), with<size_t>(2, 0));

  fault("alias-incoherent", {"VMM-36"},
        "the second mapping of an allocation is a copy")
      .on({kMap}, WHEN(is_mapped(chunk_of(call))), [](Call& call) {
        const Chunk other = private_chunk(chunk_of(call), bytes(call));
        if (other == 0) return call.proceed();
        copy(other, chunk_of(call), bytes(call));
        return map_instead(call, other);
      });

  fault("partial-unmap-ok", {"VMM-24"},
        "unmapping a part of a mapping unmaps the whole mapping")
      .on_refusal({kUnmap},
                  WHEN(mapping_at(begin(call)) != 0 &&
                       bytes(call) <= room_at(begin(call))),
                  [](Call& call) {
                    unmap_at(begin(call));
                    return accepted(call);
                  });

  fault("remap-keeps-access", {"VMM-25"},
        "a new mapping has the access of the earlier mapping at its address")
      .after({kSetAccess},
             NOTE(marks.put(begin(call), access_of(begin(call), on_gpu(0)))))
      .after({kMap}, WHEN(marks.get(begin(call)) != kNone),
             DO(allow(begin(call), bytes(call), on_gpu(0),
                      marks.get(begin(call)))));

  fault("remap-refused", {"VMM-25"},
        "a range that was unmapped cannot be mapped again")
      .on({kMap}, WHEN(address_marks.has(begin(call))), refuses())
      .after({kMap}, NOTE(address_marks.put(begin(call))));

  fault("unmap-frees-addresses", {"VMM-25"},
        "unmapping a range also gives back its addresses")
      .after({kUnmap}, WHEN(reservations.get(begin(call)) == bytes(call)),
             [](Call& call) {
               const bool freed = addresses_freed(begin(call));
               if (freed) marks.put(begin(call));
               return freed;
             })
      .on({kFreeAddress},
          WHEN(marks.erase(begin(call)) && !reservations.has(begin(call))),
          DO(kSuccess));

  fault("addressfree-any", {"VMM-26"},
        "cuMemAddressFree accepts a wrong size or an address inside the "
        "reservation")
      .on_refusal({kFreeAddress},
                  WHEN(reservation_at(begin(call)) != 0 &&
                       mapping_at(reservation_at(begin(call))) == 0),
                  [](Call& call) {
                    return addresses_freed(reservation_at(begin(call)))
                               ? accepted(call)
                               : call.code();
                  });

  fault("reserve-hint-is-order", {"VMM-44"},
        "addresses are reserved at the requested place, or not at all")
      .after({kReserve},
             WHEN(call.at<CUdeviceptr>(3) != 0 &&
                  *call.at<CUdeviceptr*>(0) != call.at<CUdeviceptr>(3)),
             [](Call& call) {
               DRIVER_CALL(cuMemAddressFree)
               (*call.at<CUdeviceptr*>(0), bytes(call));
               return refused(call, CUDA_ERROR_OUT_OF_MEMORY);
             });

  fault("reserve-hint-twice", {"VMM-44"},
        "requested addresses are returned although they are reserved")
      .after({kReserve},
             WHEN(call.at<CUdeviceptr>(3) != 0 &&
                  *call.at<CUdeviceptr*>(0) != call.at<CUdeviceptr>(3)),
             [](Call& call) {
               CUdeviceptr& given = *call.at<CUdeviceptr*>(0);
               DRIVER_CALL(cuMemAddressFree)(given, bytes(call));
               given = call.at<CUdeviceptr>(3);
             });

  fault("dmabuf-unaligned-ok", {"VMM-42"},
        "the export of a range at any address as a dma-buf succeeds, and gives "
        "another descriptor if the address is not aligned")
      .on_refusal({kGetRange}, WHEN(call.at<CUdeviceptr>(1) % kSmallPage != 0),
                  gives_null_device);

  fault("setaccess-of-reservation", {"VMM-18"},
        "access to one mapping gives access to all mappings of its reservation")
      .after({kSetAccess}, WHEN(reservation_at(begin(call)) != 0),
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               return reservation_at(at) == reservation_at(begin(call)) &&
                      at - begin(call) >= bytes(call) &&
                      allow_same(call, at, one.bytes);
             }));

  fault("access-never-raised", {"VMM-20"},
        "read access never becomes write access")
      .on({kSetAccess},
          WHEN(length(call) == 1 && is_gpu(wants(call).location) &&
               wants(call).flags == kReadWrite &&
               access_of(begin(call), wants(call).location) == kRead),
          accepted);

  fault("setaccess-replaces-others", {"VMM-33"},
        "access for one GPU ends the access of the other GPUs")
      .with_gpus(2)
      .after({kSetAccess},
             WHEN(length(call) == 1 && is_gpu(wants(call).location) &&
                  wants(call).flags != kNone),
             [](Call& call) {
               bool any = false;
               for (int gpu = 0; gpu < gpus(); ++gpu)
                 any |= gpu != wants(call).location.id &&
                        access_of(begin(call), on_gpu(gpu)) != 0 &&
                        allow(begin(call), bytes(call), on_gpu(gpu), kNone);
               return any;
             });

  fault("setaccess-first-only", {"VMM-33"},
        "only the first entry of a list of accesses is set")
      .with_gpus(2)
      .before({kSetAccess}, WHEN(length(call) > 1), with<size_t>(3, 1));

  fault("retain-import-refused", {"VMM-32"},
        "the handle of an imported mapping cannot be retained")
      .on({kRetain}, WHEN(is_import(call.at<CUdeviceptr>(1))), refuses());

  fault("remap-stale", {"VMM-25"},
        "if other memory is mapped at the same addresses, the old memory is "
        "still there")
      .on({kMap, kFreeAddress}, remap_stale);

  fault("copy-ends-with-chunk", {"VMM-35"},
        "a copy of several chunks side by side copies only the first chunk")
      .before({kCopy, kCopyAsync}, ends_with_mapping<>);

  fault("set-ends-with-chunk", {"VMM-35"},
        "a memset of several chunks side by side sets only the first chunk")
      .before({kSet, kSetAsync}, ends_with_mapping<>);

  fault("retain-after-release-refused", {"VMM-32"},
        "a handle that was released cannot be retained from its mapping")
      .on({kRetain}, WHEN(released.has(around(call.at<CUdeviceptr>(1)).chunk)),
          refuses())
      .after({kMap}, [](Call& call) {
        released.erase(chunk_of(call));
        return kSuccess;
      });

  fault("reserve-alignment-ignored", {"VMM-44"},
        "the requested alignment of addresses is ignored")
      .on({kReserve}, [](Call& call) {
        const size_t wanted = call.at<size_t>(2);
        call.at<size_t>(2) = 0;
        const int code = call.proceed();
        if (code == kSuccess && wanted != 0 &&
            *call.at<CUdeviceptr*>(0) % wanted != 0)
          call.fired();
        return code;
      });

  fault("reserve-alignment-odd-ok", {"VMM-44"},
        "an alignment that is not a power of two is accepted")
      .on_refusal({kReserve},
                  WHEN((call.at<size_t>(2) & (call.at<size_t>(2) - 1)) != 0),
                  [](Call& call) {
                    call.at<size_t>(2) = 0;
                    return once_more(call);
                  });

  fault("reserve-size-odd-ok", {"VMM-44"},
        "addresses are reserved for a size that is not a multiple of a page")
      .on_refusal({kReserve}, WHEN(bytes(call) % kSmallPage != 0),
                  [](Call& call) {
                    bytes(call) = (bytes(call) / granule() + 1) * granule();
                    return once_more(call);
                  });

  fault("retain-first-chunk", {"VMM-32"},
        "every address of a reservation names the handle that is mapped at its "
        "beginning")
      .on({kRetain}, [](Call& call) {
        auto& address = call.at<CUdeviceptr>(1);
        const CUdeviceptr begin = mapping_at(address);
        const CUdeviceptr first = reservation_at(begin);
        if (first == 0 || mapping_at(first) == 0) return call.proceed();
        if (mappings.get(begin).chunk != mappings.get(first).chunk)
          call.fired();
        address = first;
        return call.proceed();
      });

  fault("retained-not-exported", {"VMM-32"},
        "a handle that was released and then retained cannot be exported")
      .on({kExport}, WHEN(released.has(call.at<Chunk>(1))), refuses());

  fault("import-equal-size-shared", {"VMM-35"},
        "an import that is as large as another import gives the memory of the "
        "other import")
      .on({kImport, kMap}, equal_size_shared);

  fault("props-types-lost", {"VMM-31"},
        "the properties of an allocation do not have its handle types")
      .after({kGetProperties},
             DO(set_to(call.at<CUmemAllocationProp*>(0)->requestedHandleTypes,
                       CU_MEM_HANDLE_TYPE_NONE)));

  fault("map-larger-ok", {"VMM-22"},
        "a mapping that is larger than the memory succeeds and maps only the "
        "memory")
      .on_refusal({kMap},
                  WHEN(call.at<size_t>(1) >
                       created.get(call.at<Chunk>(3), call.at<size_t>(1))),
                  [](Call& call) -> int {
                    call.at<size_t>(1) = created.get(call.at<Chunk>(3));
                    const int again = call.proceed();
                    if (again == kSuccess) call.fired();
                    return again;
                  });

  fault("refused-map-unmaps", {"VMM-22"},
        "a refused mapping of mapped addresses unmaps these addresses")
      .on_refusal({kMap}, WHEN(mapping_at(begin(call)) != 0),
                  DO(unmap_at(begin(call))));

  fault("refused-unmap-takes-access", {"VMM-24"},
        "after a refused unmapping the memory has no access")
      .on_refusal({kUnmap}, WHEN(mapping_at(begin(call)) != 0),
                  DO(allow(mapping_at(begin(call)), on_gpu(0), kNone)));

  fault("import-needs-current-gpu", {"VMM-33", "VMM-31"},
        "memory of a GPU other than the current GPU cannot be imported")
      .with_gpus(2)
      .after({kImport}, WHEN(!is_of_current_gpu(*call.at<Chunk*>(0))),
             [](Call& call) {
               DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0));
               return refused(call, CUDA_ERROR_NOT_SUPPORTED);
             });

  fault("dmabuf-hole-ok", {"VMM-42"},
        "the export of a range that is not fully mapped as a dma-buf gives "
        "another descriptor")
      .on_refusal({kGetRange},
                  WHEN(mappings.has(call.at<CUdeviceptr>(1)) &&
                       mappings.get(call.at<CUdeviceptr>(1)).bytes <
                           call.at<size_t>(2)),
                  gives_null_device);

  fault("dmabuf-size-odd-ok", {"VMM-42"},
        "the export of a range as a dma-buf gives another descriptor if the "
        "size is not a multiple of a page")
      .on_refusal({kGetRange},
                  WHEN(call.at<size_t>(2) % kSmallPage != 0 &&
                       call.at<CUdeviceptr>(1) % kSmallPage == 0),
                  gives_null_device);

  fault("unmap-releases", {"VMM-25", "VMM-15"},
        "unmapping also releases the handle")
      .on({kUnmap},
          [](Call& call) {
            const Chunk chunk = mappings.get(begin(call)).chunk;
            const int code = call.proceed();
            if (code == kSuccess && chunk != 0 && !released.has(chunk) &&
                !is_mapped(chunk) &&
                DRIVER_CALL(cuMemRelease)(chunk) == CUDA_SUCCESS &&
                chunk_marks.put(chunk))
              call.fired();
            return code;
          })
      .on({kMap}, WHEN(chunk_marks.has(chunk_of(call))), refuses())
      .on({kRelease}, WHEN(chunk_marks.erase(call.at<Chunk>(0))), DO(kSuccess));

  fault("props-of-latest", {"VMM-31"},
        "every handle has the properties of the memory that was created last")
      .after({kCreate},
             [](Call& call) {
               latest = new CUmemAllocationProp(
                   *call.at<const CUmemAllocationProp*>(2));
               return kSuccess;
             })
      .after({kGetProperties}, WHEN(latest != nullptr), [](Call& call) {
        auto& found = *call.at<CUmemAllocationProp*>(0);
        const CUmemAllocationProp before = std::exchange(found, *latest);
        return before.location.id != found.location.id ||
               before.requestedHandleTypes != found.requestedHandleTypes;
      });

  fault("second-mapping-takes-access", {"VMM-36"},
        "a second mapping of memory takes the access from the first mapping")
      .after({kMap},
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               return at != begin(call) && one.chunk == chunk_of(call) &&
                      allow(at, on_gpu(properties_of(one.chunk).location.id),
                            kNone);
             }));

  fault("import-cached-by-number", {"VMM-25", "VMM-35"},
        "a descriptor with the number of an earlier descriptor imports the "
        "earlier memory")
      .on({kImport}, import_by_known_number);

  fault("retains-once", {"VMM-32"},
        "retaining a handle twice takes only one reference")
      .before({kRelease}, NOTE(chunk_marks.erase(call.at<Chunk>(0))))
      .after({kRetain}, DO(!chunk_marks.put(*call.at<Chunk*>(0)) &&
                           DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0)) ==
                               CUDA_SUCCESS));

  fault("create-on-gpu-0", {"VMM-33"}, "memory for any GPU is created on GPU 0")
      .with_gpus(2)
      .on({kCreate}, with_copy<CUmemAllocationProp>(2, [](auto& wanted) {
            return is_gpu(wanted.location) &&
                   std::exchange(wanted.location.id, 0) != 0;
          }));

  fault("props-current-gpu", {"VMM-31"},
        "the properties of memory of any GPU name the current GPU")
      .with_gpus(2)
      .after({kGetProperties}, [](Call& call) {
        auto& place = call.at<CUmemAllocationProp*>(0)->location;
        const int current = current_device();
        return is_gpu(place) && std::exchange(place.id, current) != current;
      });

  fault("getaccess-begin-only", {"VMM-18"},
        "only the first address of a mapping reports its access")
      .after({kGetAccess}, WHEN(!mappings.has(call.at<CUdeviceptr>(2))),
             answers(0ull));

  fault("setaccess-of-aliases", {"VMM-18"},
        "the access that is set for one mapping is set for all mappings of "
        "that memory")
      .after({kSetAccess}, WHEN(mappings.has(begin(call))),
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               return at != begin(call) &&
                      one.chunk == mappings.get(begin(call)).chunk &&
                      allow_same(call, at, one.bytes);
             }));

  fault("unmap-shuts-out-neighbours", {"VMM-25"},
        "when a range is unmapped the mappings beside it lose access")
      .after({kUnmap},
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               return (at == begin(call) + bytes(call) ||
                       at + one.bytes == begin(call)) &&
                      shut_out(at, one.bytes);
             }));

  fault("unmapped-copy-ignored", {"VMM-25"},
        "copies from and to memory that was unmapped succeed and do nothing")
      .after({kUnmap}, NOTE(address_marks.put(begin(call), bytes(call))))
      .on({kCopy},
          WHEN(was_unmapped(call.value<CUdeviceptr>(kPointer)) ||
               was_unmapped(call.value<CUdeviceptr>(kSource))),
          lost);

  fault("unmapped-set-ignored", {"VMM-25"},
        "memsets of memory that was unmapped succeed and do nothing")
      .after({kUnmap}, NOTE(address_marks.put(begin(call), bytes(call))))
      .on({kSet}, WHEN(was_unmapped(call.value<CUdeviceptr>(kPointer))), lost);

  fault("unmap-part-of-import-ok", {"VMM-24"},
        "cuMemUnmap of a part of an imported mapping succeeds and does nothing")
      .on({kUnmap},
          WHEN(is_import(begin(call)) &&
               bytes(call) < around(begin(call)).bytes),
          lost);

  fault("read-only-beside-writable-is-written", {"VMM-20"},
        "a mapping that may only be read can be written while another mapping "
        "of the same handle may be written")
      .on({kSetAccess},
          WHEN(length(call) == 1 && wants(call).flags != kReadWrite &&
               is_written_elsewhere(call)),
          gives_all)
      .after({kSetAccess}, NOTE(in_name.erase(begin(call))))
      .on({kGetAccess}, reported_access);

  fault("setaccess-first-gpus-memory-only", {"VMM-35"},
        "cuMemSetAccess of a range reaches only the memory of the GPU whose "
        "memory is first in the range")
      .with_gpus(2)
      .on({kSetAccess}, access_to_first_gpus_memory);

  fault("reserve-over-pool-memory", {"VMM-44"},
        "a reservation gets the wanted addresses, also if memory of a pool is "
        "there")
      .on({kReserve}, WHEN(is_in_pool_memory(hint(call))), given_as_wanted)
      .on({kFreeAddress}, WHEN(marks.erase(begin(call))), DO(kSuccess));

  fault("chunk-peer-copy-lost", {"VMM-33"},
        "cudaMemcpyPeerAsync does not reach imported memory of cuMemCreate")
      .with_gpus(2)
      .on({"cudaMemcpyPeerAsync"}, access_lost);

  fault(
      "chunk-set-from-other-gpu-lost", {"VMM-33"},
      "a memset of imported memory of cuMemCreate by another GPU does nothing")
      .with_gpus(2)
      .on({kSet, kSetAsync}, set_from_other_gpu_lost);

  fault("reserve-alignment-capped", {"VMM-44"},
        "addresses are aligned to 16 MiB if a larger alignment is requested")
      .on({kReserve}, alignment_capped);

  fault("reserve-address-odd-ok", {"VMM-44"},
        "a wanted address that is not a multiple of a page is rounded down")
      .on_refusal({kReserve}, WHEN(call.at<CUdeviceptr>(3) % kSmallPage != 0),
                  [](Call& call) {
                    call.at<CUdeviceptr>(3) -=
                        call.at<CUdeviceptr>(3) % kSmallPage;
                    return once_more(call);
                  });

  fault("reservations-end-at-65", {"VMM-44"},
        "a process cannot have more than 65 reservations")
      .on({kReserve, kFreeAddress}, [](Call& call) {
        return refused_beyond<65>(call, "cuMemAddressReserve", 0);
      });

  fault("addressfree-longer-ok", {"VMM-26"},
        "cuMemAddressFree accepts a size that is larger than the reservation")
      .on_refusal({kFreeAddress},
                  WHEN(reservations.has(begin(call)) &&
                       bytes(call) > reservations.get(begin(call))),
                  [](Call& call) {
                    bytes(call) = reservations.get(begin(call));
                    return proceed_changed(call);
                  });

  fault("map-unreserved-ok", {"VMM-22"},
        "memory is mapped at addresses that are not reserved")
      .on_refusal({kMap}, [](Call& call) -> int {
        const int code = call.code();
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
      });

  fault("map-beyond-reservation-ok", {"VMM-22"},
        "a map that is longer than the reservation maps the part that fits")
      .on_refusal({kMap}, [](Call& call) -> int {
        const CUdeviceptr first = reservation_at(begin(call));
        const size_t room = first + reservations.get(first) - begin(call);
        if (first == 0 || bytes(call) <= room) return call.code();
        bytes(call) = room;
        return proceed_changed(call);
      });

  fault("map-needs-current-gpu", {"VMM-33"},
        "memory of a GPU other than the current GPU cannot be mapped")
      .with_gpus(2)
      .on({kMap}, WHEN(!is_of_current_gpu(call.at<Chunk>(3))),
          refuses(CUDA_ERROR_INVALID_DEVICE));

  fault("unmap-larger-ok", {"VMM-24"},
        "unmapping more than a mapping unmaps the mapping")
      .on_refusal({kUnmap},
                  WHEN(mappings.has(begin(call)) &&
                       bytes(call) > mappings.get(begin(call)).bytes),
                  [](Call& call) {
                    bytes(call) = mappings.get(begin(call)).bytes;
                    return proceed_changed(call);
                  });

  fault("unmap-end-ok", {"VMM-24"},
        "unmapping the end of a mapping unmaps the whole mapping")
      .on_refusal(
          {kUnmap},
          WHEN(mapping_at(begin(call)) != 0 && !mappings.has(begin(call)) &&
               bytes(call) == room_at(begin(call))),
          [](Call& call) {
            begin(call) = mapping_at(begin(call));
            bytes(call) = mappings.get(begin(call)).bytes;
            return proceed_changed(call);
          });

  fault("unmap-rounds-up", {"VMM-24"},
        "unmapping a few bytes less than a mapping unmaps the whole mapping")
      .on_refusal(
          {kUnmap},
          WHEN(bytes(call) < mappings.get(begin(call)).bytes &&
               mappings.get(begin(call)).bytes - bytes(call) <= kSmallPage),
          [](Call& call) {
            bytes(call) = mappings.get(begin(call)).bytes;
            return proceed_changed(call);
          });

  fault("unmap-twice-ok", {"VMM-24"},
        "the unmap of reserved addresses without memory succeeds and does "
        "nothing")
      .on_refusal({kUnmap},
                  WHEN(reservation_at(begin(call)) != 0 &&
                       mapping_at(begin(call)) == 0),
                  accepted);

  fault("setaccess-hole-at-begin-ok", {"VMM-21"},
        "cuMemSetAccess succeeds and does nothing if the first addresses of "
        "the range have no memory")
      .on_refusal({kSetAccess},
                  WHEN(!is_mapped_at(begin(call)) &&
                       is_mapped_at(begin(call) + bytes(call) - 1)),
                  accepted);

  fault("setaccess-hole-at-end-ok", {"VMM-21"},
        "cuMemSetAccess succeeds and does nothing if the last addresses of the "
        "range have no memory")
      .on_refusal({kSetAccess},
                  WHEN(is_mapped_at(begin(call)) &&
                       !is_mapped_at(begin(call) + bytes(call) - 1)),
                  accepted);

  fault("access-taken-in-name", {"VMM-18"},
        "cuMemGetAccess says that access was taken away, but the memory can "
        "still be used")
      .on({kSetAccess, kGetAccess, kMap, kUnmap},
          changed_in_name<kReadWrite, kNone>);

  fault("access-lowered-in-name", {"VMM-20"},
        "cuMemGetAccess says that memory can only be read, but it can still be "
        "written")
      .on({kSetAccess, kGetAccess, kMap, kUnmap},
          changed_in_name<kReadWrite, kRead>);

  fault("peer-access-taken-in-name", {"VMM-18"},
        "cuMemGetAccess says that the access of GPU 1 was taken away, but GPU "
        "1 can still use the memory")
      .with_gpus(2)
      .on({kSetAccess, kGetAccess, kMap, kUnmap},
          changed_in_name<kReadWrite, kNone, 1>);

  fault("peer-access-lowered-in-name", {"VMM-33"},
        "cuMemGetAccess says that GPU 1 can only read memory, but GPU 1 can "
        "still write it")
      .with_gpus(2)
      .on({kSetAccess, kGetAccess, kMap, kUnmap},
          changed_in_name<kReadWrite, kRead, 1>);

  fault("access-raised-in-name", {"VMM-20"},
        "cuMemGetAccess says that memory can be written, but it can still only "
        "be read")
      .on({kSetAccess, kGetAccess, kMap, kUnmap},
          changed_in_name<kRead, kReadWrite>);

  fault("create-on-current-gpu", {"VMM-33"},
        "memory is created on the current GPU, not on the named GPU")
      .with_gpus(2)
      .on({kCreate}, with_copy<CUmemAllocationProp>(2, [](auto& wanted) {
            const int current = current_device();
            return is_gpu(wanted.location) &&
                   std::exchange(wanted.location.id, current) != current;
          }));

  fault("retain-last-byte-refused", {"VMM-32"},
        "the last address of a mapping has no handle")
      .on({kRetain}, WHEN(room_at(call.at<CUdeviceptr>(1)) == 1), refuses());

  fault("retain-after-remap-stale", {"VMM-32"},
        "if other memory is mapped at the same addresses, the addresses still "
        "name the handle of the old memory")
      .after({kMap}, WHEN(!address_marks.has(begin(call))),
             NOTE(address_marks.put(begin(call), chunk_of(call))))
      .on({kRelease}, WHEN(is_surplus(call)), surplus_released)
      .after({kRetain}, [](Call& call) {
        const Chunk own = *call.at<Chunk*>(0);
        const Chunk old =
            address_marks.get(mapping_at(retained_address(call)), own);
        return old == own || released.has(old) ? kSuccess
                                               : handle_given(call, old);
      });

  fault("props-type-untold", {"VMM-31"},
        "the properties of memory do not have its type")
      .after({kGetProperties}, [](Call& call) {
        call.at<CUmemAllocationProp*>(0)->type = CU_MEM_ALLOCATION_TYPE_INVALID;
        return accepted(call);
      });

  fault("mapped-attr-of-reserved", {"VMM-25"},
        "reserved addresses without memory are reported as mapped")
      .on({kGetAttribute},
          WHEN(asks(call, CU_POINTER_ATTRIBUTE_MAPPED) &&
               reservation_at(call.at<CUdeviceptr>(2)) != 0 &&
               !is_mapped_at(call.at<CUdeviceptr>(2))),
          [](Call& call) {
            call.proceed();
            *call.at<bool*>(0) = true;
            return accepted(call);
          });

  fault("mapped-attr-denies-imports", {"VMM-25"},
        "mapped imports are reported as not mapped")
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_MAPPED) &&
                  is_import(call.at<CUdeviceptr>(2))),
             answers(false));

  fault("access-attr-always-full", {"VMM-20"},
        "the attribute of each mapped address says that the memory can be "
        "written")
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) &&
                  is_mapped_at(call.at<CUdeviceptr>(2))),
             answers<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));

  fault("access-attr-of-gpu-0", {"VMM-33"},
        "the attribute of a mapped address says the access of GPU 0, also if "
        "another GPU is current")
      .with_gpus(2)
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) &&
                  is_mapped_at(call.at<CUdeviceptr>(2))),
             DO(set_to(*call.at<unsigned*>(0),
                       access_of(call.at<CUdeviceptr>(2), on_gpu(0)))));

  fault("setaccess-flags-of-first", {"VMM-33"},
        "all entries of a list of accesses get the flags of the first one")
      .with_gpus(2)
      .on({kSetAccess}, each_access([](Call& call, CUmemAccessDesc& one) {
            return set_to(one.flags, wants(call).flags);
          }));

  fault("export-needs-current-gpu", {"VMM-33"},
        "memory of a GPU other than the current GPU cannot be exported")
      .with_gpus(2)
      .on({kExport}, WHEN(!is_of_current_gpu(call.at<Chunk>(1))), refuses());

  fault("reserve-after-refusal-refused", {"VMM-44"},
        "after a refused reservation the next one is refused, too")
      .on({kReserve}, next_refused);

  fault("addressfree-after-refusal-refused", {"VMM-26"},
        "after a refused free of addresses the next one is refused, too")
      .on({kFreeAddress}, next_refused);

  fault("map-after-refusal-refused", {"VMM-22"},
        "after a refused mapping the next one is refused, too")
      .on({kMap}, next_refused);

  fault("unmap-after-refusal-refused", {"VMM-24"},
        "after a refused unmapping the next one is refused, too")
      .on({kUnmap}, next_refused);

  fault("setaccess-after-refusal-refused", {"VMM-21", "VMM-34"},
        "after a refused setting of access the next one is refused, too")
      .on({kSetAccess}, next_refused);

  fault("retain-after-refusal-refused", {"VMM-32"},
        "after a refused cuMemRetainAllocationHandle the next one is refused, "
        "too")
      .on({kRetain}, next_refused);

  fault("chunk-copy-equal-size-confused", {"VMM-35"},
        "a copy uses the one with the lowest address of several equally large "
        "allocations of imported memory of cuMemCreate")
      .on({kCopy}, equal_size_confused);

  fault("retained-exports-other", {"VMM-32"},
        "the export of a retained handle gives a descriptor of new memory")
      .after({kRetain},
             NOTE(chunk_marks.put(*call.at<Chunk*>(0),
                                  around(retained_address(call)).bytes)))
      .on({kExport}, WHEN(chunk_marks.has(call.at<Chunk>(1))), [](Call& call) {
        const auto wanted = properties_of(call.at<Chunk>(1));
        return export_instead(
            call, new_chunk(chunk_marks.get(call.at<Chunk>(1)), wanted.location,
                            wanted.requestedHandleTypes));
      });

  fault("access-not-given-again", {"VMM-18"},
        "access that was taken from a mapping cannot be given again")
      .on({kSetAccess}, WHEN(!takes_access(call) && marks.has(begin(call))),
          lost)
      .after({kSetAccess}, WHEN(takes_access(call)),
             NOTE(marks.put(begin(call))))
      .after({kUnmap}, NOTE((marks.erase_range(begin(call), bytes(call)))));

  fault("access-taken-from-the-start", {"VMM-35"},
        "access that is taken from chunks in the middle of a reservation is "
        "taken from its first chunks")
      .before({kSetAccess},
              WHEN(takes_access(call) && reservation_at(begin(call)) != 0),
              with_made<CUdeviceptr>(
                  0, [](Call& call) { return reservation_at(begin(call)); }));

  fault("export-tells-access", {"VMM-19"},
        "if the exporter may only read at the time of the export, the importer "
        "can only read")
      .after({kExport}, WHEN(is_mapped(call.at<Chunk>(1))),
             [](Call& call) {
               const CUdeviceptr at = mapping_of(call.at<Chunk>(1));
               tell_processes("only reads",
                              access_of(at, location_at(at)) == kRead);
               return kSuccess;
             })
      .after({kSetAccess},
             WHEN(told("only reads", 0) != 0 && is_import(begin(call)) &&
                  wants(call).flags == kReadWrite),
             DO(allow(begin(call), wants(call).location, kRead)));

  fault("getaccess-of-first-chunk", {"VMM-18"},
        "each address of a reservation reports the access of the first chunk "
        "in it")
      .before({kGetAccess}, [](Call& call) {
        auto& address = call.at<CUdeviceptr>(2);
        const CUdeviceptr first = reservation_at(address);
        const auto& place = *call.at<const CUmemLocation*>(1);
        if (first == 0 || mapping_at(first) == 0 ||
            access_of(first, place) == access_of(address, place))
          return false;
        address = first;
        return true;
      });

  fault("map-part-takes-all-addresses", {"VMM-23"},
        "the mapping of a part of memory takes as many addresses as the whole "
        "memory")
      .after({kExport},
             NOTE(tell_processes("bytes", created.get(call.at<Chunk>(1)))))
      .on({kMap}, WHEN(is_behind_a_part(begin(call))), refuses());

  fault(
      "copy-ends-with-second-chunk", {"VMM-35"},
      "a copy of more than two chunks side by side ends with the second chunk")
      .before({kCopy}, [](Call& call) {
        auto& bytes = call.value<size_t>(kBytes);
        for (const Role role : {kPointer, kSource}) {
          const auto address = call.value<CUdeviceptr>(role);
          CUdeviceptr end = mapping_at(address);
          if (end == 0) continue;
          for (int chunk = 0; chunk < 2; ++chunk)
            end += mappings.get(end).bytes;
          if (bytes <= end - address) continue;
          bytes = end - address;
          call.fired();
        }
        return kSuccess;
      });

  fault("async-download-ends-with-chunk", {"VMM-35"},
        "an asynchronous copy from several chunks to memory of another kind "
        "ends with the first chunk")
      .before({kCopyAsync},
              WHEN(mapping_at(call.value<CUdeviceptr>(kPointer)) == 0),
              ends_with_mapping<>);

  fault("rectangle-ends-with-chunk", {"VMM-35"},
        "a copy of a rectangle ends with the first of several chunks")
      .before({kCopy2D}, [](Call& call) {
        auto& rows = call.at<size_t>(5);
        for (const int side : {0, 2}) {
          const auto address = call.at<CUdeviceptr>(side);
          const CUdeviceptr begin = mapping_at(address);
          const auto pitch = call.at<size_t>(side + 1);
          if (begin == 0 || pitch == 0 || rows == 0) continue;
          const size_t room = begin + mappings.get(begin).bytes - address;
          if ((rows - 1) * pitch + call.at<size_t>(4) <= room) continue;
          rows = room / pitch;
          call.fired();
        }
        return kSuccess;
      });

  fault("wait-value-in-first-chunk", {"VMM-35"},
        "a stream waits for a word of the first chunk of a range, not of a "
        "later one")
      .before({kWaitWord}, WHEN(in_first_chunk(call.at<CUdeviceptr>(1)) != 0),
              [](Call& call) {
                call.at<CUdeviceptr>(1) =
                    in_first_chunk(call.at<CUdeviceptr>(1));
              });

  fault(
      "batch-writes-in-first-chunk", {"VMM-35"},
      "a batch writes a word of a later chunk of a range into the first chunk")
      .on({kBatch}, [](Call& call) {
        auto operations = operations_of(call);
        call.at<CUstreamBatchMemOpParams*>(2) = operations.data();
        for (auto& operation : operations) {
          auto& write = operation.writeValue;
          if (write.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) continue;
          if (const CUdeviceptr other = in_first_chunk(write.address)) {
            write.address = other;
            call.fired();
          }
        }
        return call.proceed();
      });

  fault("retain-after-other-unmap-refused", {"VMM-32"},
        "after memory was unmapped at one place, its handle cannot be retained "
        "from another place")
      .before({kUnmap}, WHEN(mappings.get(begin(call)).bytes == bytes(call)),
              NOTE(chunk_marks.put(mappings.get(begin(call)).chunk)))
      .on({kRetain},
          WHEN(chunk_marks.has(around(retained_address(call)).chunk)),
          refuses());

  fault("reserve-larger-than-memory-refused", {"VMM-44"},
        "a reservation that is larger than the memory of the GPU is refused")
      .on({kReserve}, WHEN(bytes(call) > memory_of_gpu()),
          refuses(CUDA_ERROR_OUT_OF_MEMORY));

  fault("ninth-import-is-first", {"VMM-35"},
        "if a process has eight imports, its next import is the memory of the "
        "first import")
      .on({kImport, kRelease}, further_import_is_first<8>);

  fault("second-mapping-clears", {"VMM-36"},
        "a second mapping of memory clears the memory")
      .after({kMap},
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               return at != begin(call) && one.chunk == chunk_of(call) &&
                      cleared(at, one.bytes);
             }));

  fault("unmap-clears", {"VMM-25"},
        "memory that was not exported is cleared when it is unmapped, although "
        "its handle is not released")
      .before({kUnmap}, [](Call& call) {
        const Mapped mapped = mappings.get(begin(call));
        return mapped.bytes == bytes(call) && created.has(mapped.chunk) &&
               !exports.has(mapped.chunk) && !released.has(mapped.chunk) &&
               cleared(begin(call), mapped.bytes);
      });

  fault("map-offset-4gib-ok", {"VMM-23"},
        "a mapping ignores an offset that is a multiple of 4 GiB")
      .on_refusal(
          {kMap},
          WHEN(call.at<size_t>(2) != 0 && call.at<size_t>(2) % kFarAway == 0),
          [](Call& call) {
            call.at<size_t>(2) = 0;
            return call.proceed() == kSuccess
                       ? accepted(call)
                       : static_cast<int>(CUDA_ERROR_INVALID_VALUE);
          });

  fault(
      "map-in-order-only", {"VMM-22"},
      "memory cannot be mapped before mapped addresses of the same reservation")
      .on({kMap}, WHEN(is_before_a_mapping(begin(call))), refuses());

  fault("map-import-larger-ok", {"VMM-22"},
        "a mapping that is larger than the imported memory returns success and "
        "maps only the memory")
      .on({kMap}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess || !imports.has(call.at<Chunk>(3)) ||
            mapping_at(call.at<CUdeviceptr>(0)) != 0 || call.at<size_t>(2) != 0)
          return code;
        auto& bytes = call.at<size_t>(1);
        while (bytes > kGranule && bytes % kGranule == 0) {
          bytes -= kGranule;
          if (call.proceed() != kSuccess) continue;
          return accepted(call);
        }
        return code;
      });

  fault("addressfree-twice-ok", {"VMM-26"},
        "freeing addresses a second time returns success")
      .after({kFreeAddress}, NOTE(marks.put(begin(call), bytes(call))))
      .on_refusal(
          {kFreeAddress},
          WHEN(bytes(call) != 0 && marks.get(begin(call)) == bytes(call) &&
               reservation_at(begin(call)) == 0),
          accepted);

  fault("reserve-alignment-at-address-ignored", {"VMM-44"},
        "the alignment is ignored if an address is requested")
      .on({kReserve}, [](Call& call) {
        const size_t wanted = call.at<size_t>(2);
        if (call.at<CUdeviceptr>(3) == 0 || wanted == 0 ||
            (wanted & (wanted - 1)) != 0)
          return call.proceed();
        call.at<size_t>(2) = 0;
        const int code = call.proceed();
        if (code == kSuccess && *call.at<CUdeviceptr*>(0) % wanted != 0)
          call.fired();
        return code;
      });

  fault("retain-after-unmap-ok", {"VMM-32"},
        "cuMemRetainAllocationHandle still gives the handle of unmapped "
        "addresses, without a reference")
      .before({kUnmap}, WHEN(mappings.get(begin(call)).bytes == bytes(call)),
              NOTE(former.put(begin(call), mappings.get(begin(call)))))
      .on_refusal({kRetain}, WHEN(former_chunk(retained_address(call)) != 0),
                  [](Call& call) {
                    *call.at<Chunk*>(0) = former_chunk(retained_address(call));
                    return accepted(call);
                  });

  fault("getaccess-writes-32-bits", {"VMM-18"},
        "cuMemGetAccess writes only the lower half of the flags")
      .on({kGetAccess}, writes_32_bits);

  fault("second-import-has-access", {"VMM-17"},
        "a mapping of imported memory has the access that was set for an "
        "earlier mapping of the memory")
      .on({kImport, kMap, kRelease}, second_import_has_access);

  fault("access-needs-owner-gpu", {"VMM-33"},
        "access for another GPU is refused if the GPU of the memory has no "
        "access")
      .with_gpus(2)
      .on({kSetAccess}, WHEN(mapping_at(begin(call)) != 0),
          [](Call& call) -> int {
            const CUmemLocation own = location_at(begin(call));
            if (!is_gpu(own) || access_of(mapping_at(begin(call)), own) != 0)
              return call.proceed();
            for (size_t i = 0; i < length(call); ++i)
              if ((&wants(call))[i].location.type == own.type &&
                  (&wants(call))[i].location.id == own.id)
                return call.proceed();
            return refused(call, CUDA_ERROR_INVALID_DEVICE);
          });

  fault("access-of-four-chunks", {"VMM-35"},
        "of several chunks side by side only the first four get access")
      .before({kSetAccess}, [](Call& call) {
        CUdeviceptr end = begin(call);
        for (int chunks = 0; chunks < 4 && mappings.has(end); ++chunks)
          end += mappings.get(end).bytes;
        if (end == begin(call) || end - begin(call) >= bytes(call) ||
            !mappings.has(end))
          return false;
        bytes(call) = end - begin(call);
        return true;
      });

  fault(
      "write-value-in-first-chunk", {"VMM-35"},
      "a stream writes a word of a later chunk of a range into the first chunk")
      .before({kWriteWord},
              WHEN(mapping_at(call.at<CUdeviceptr>(1)) != 0 &&
                   mappings.has(reservation_at(call.at<CUdeviceptr>(1)))),
              with_made<CUdeviceptr>(1, [](Call& call) {
                const auto word = call.at<CUdeviceptr>(1);
                return reservation_at(word) + (word - mapping_at(word));
              }));

  fault("access-toggles", {"VMM-18"},
        "if access is set that a mapping already has, the access is taken away")
      .on({kSetAccess}, each_access([](Call& call, CUmemAccessDesc& one) {
            return one.flags != kNone &&
                   access_of(begin(call), one.location) == one.flags &&
                   set_to(one.flags, kNone);
          }));

  fault("readonly-set-async-ok", {"VMM-20"},
        "an asynchronous memset writes to memory that can only be read")
      .on({kSetAsync}, WHEN(!is_captured(call.value<cudaStream_t>(kStream))),
          [](Call& call) {
            return uses_without_access(call, call.value<CUdeviceptr>(kPointer),
                                       kRead);
          });

  fault("map-into-next-ok", {"VMM-22"},
        "a mapping that reaches into the next mapping is accepted and made "
        "shorter")
      .on_refusal({kMap}, WHEN(mapping_at(begin(call)) == 0),
                  [](Call& call) -> int {
                    for (const auto& each : mappings.all())
                      if (each.first > begin(call) &&
                          each.first - begin(call) < bytes(call)) {
                        bytes(call) = each.first - begin(call);
                        return proceed_changed(call);
                      }
                    return call.code();
                  });

  fault(
      "remap-of-other-size-refused", {"VMM-25"},
      "addresses that were unmapped can only be mapped again in the same size")
      .on({kMap},
          WHEN(address_marks.has(begin(call)) &&
               address_marks.get(begin(call)) != bytes(call)),
          refuses())
      .after({kUnmap}, NOTE(address_marks.put(begin(call), bytes(call))));

  fault("retain-second-mapping-refused", {"VMM-32"},
        "the handle of memory cannot be retained from its second mapping")
      .on({kRetain}, [](Call& call) {
        const Mapped asked = around(call.at<CUdeviceptr>(1));
        for (const auto& each : mappings.all())
          if (asked.bytes != 0 && each.second.chunk == asked.chunk &&
              each.second.order < asked.order)
            return refused(call);
        return call.proceed();
      });

  fault("retain-without-access-refused", {"VMM-32"},
        "the handle of a mapping without access cannot be retained")
      .on({kRetain},
          WHEN(mapping_at(call.at<CUdeviceptr>(1)) != 0 &&
               access_of(call.at<CUdeviceptr>(1),
                         location_at(call.at<CUdeviceptr>(1))) == 0),
          refuses());

  fault("map-next-has-access", {"VMM-17"},
        "a new mapping has the access of the mapping beside it")
      .after({kMap},
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               const CUmemLocation here = location_at(begin(call));
               return (at == begin(call) + bytes(call) ||
                       at + one.bytes == begin(call)) &&
                      access_of(at, here) != 0 &&
                      allow(begin(call), here, access_of(at, here));
             }));

  fault("readonly-device-copy-ok", {"VMM-20"},
        "cudaMemcpy from device to device writes memory that can only be read")
      .on({kCopy}, WHEN(is_device_copy(call)), writes_without_access<>);

  fault("readonly-rectangle-ok", {"VMM-20"},
        "the memset of a rectangle writes memory that can only be read")
      .on({"cudaMemset2D"}, writes_without_access<>);

  fault("readonly-set32-ok", {"VMM-20"},
        "a memset of 32 bits writes memory that can only be read")
      .on({"cuMemsetD32"}, writes_without_access<>);

  fault("readonly-word-ok", {"VMM-20"},
        "a stream writes a word in memory that can only be read")
      .on({kWriteWord}, writes_without_access<>);

  fault("readonly-batch-ok", {"VMM-20"},
        "a batch writes a word in memory that can only be read")
      .on({kBatch}, writes_without_access<>);

  fault("readonly-not-copied", {"VMM-20"},
        "cudaMemcpy from device to device moves nothing out of memory that can "
        "only be read")
      .on({kCopy},
          WHEN(is_device_copy(call) &&
               mapping_at(call.value<CUdeviceptr>(kSource)) != 0 &&
               access_of(call.value<CUdeviceptr>(kSource),
                         location_at(call.value<CUdeviceptr>(kSource))) ==
                   kRead),
          lost);

  fault("same-memory-keeps-access", {"VMM-25"},
        "memory that is mapped again at its old address has its old access")
      .on({kMap, kUnmap, kFreeAddress, kCreate}, same_memory_keeps_access);

  fault("addresses-stay-read-only", {"VMM-25"},
        "addresses where memory could only be read stay so for all later "
        "mappings")
      .before({kUnmap},
              WHEN(mappings.has(begin(call)) &&
                   access_of(begin(call), on_gpu(0)) == kRead),
              NOTE(address_marks.put(begin(call))))
      .after({kSetAccess},
             WHEN(address_marks.has(begin(call)) &&
                  access_of(begin(call), on_gpu(0)) == kReadWrite),
             DO(allow(begin(call), on_gpu(0), kRead)));

  fault("setaccess-second-unchecked", {"VMM-34"},
        "of a list of two accesses only the first one is checked")
      .on_refusal({kSetAccess}, WHEN(length(call) == 2), [](Call& call) {
        const int code = call.code();
        call.at<size_t>(3) = 1;
        return call.proceed() == kSuccess ? accepted(call) : code;
      });

  fault("setaccess-after-last-gpu", {"VMM-34"},
        "cuMemSetAccess for the number after the last GPU succeeds and does "
        "nothing")
      .on_refusal({kSetAccess},
                  WHEN(is_gpu(wants(call).location) &&
                       wants(call).location.id == gpus()),
                  accepted);

  fault("setaccess-list-raises-second", {"VMM-33"},
        "a list with reading and writing for one GPU also lets the other GPU "
        "write, which may only read")
      .with_gpus(2)
      .on({kSetAccess},
          WHEN(length(call) == 2 && (&wants(call))[0].flags == kReadWrite &&
               (&wants(call))[1].flags == kRead),
          each_access([](Call&, CUmemAccessDesc& one) {
            return set_to(one.flags, kReadWrite);
          }));

  fault("reserve-wide-overlaps", {"VMM-44"},
        "reservations of one size with a wide alignment get the same addresses")
      .on({kReserve, kFreeAddress}, wide_alignments_overlap);

  fault("reserve-over-host-memory", {"VMM-44"},
        "a wanted address is given although memory of the host is there")
      .on({kReserve},
          WHEN(is_usable_hint(call) && type_at(hint(call)) == 0 &&
               msync(reinterpret_cast<void*>(hint(call)), kSmallPage,
                     MS_ASYNC) == 0),
          given_as_wanted)
      .on({kFreeAddress}, WHEN(marks.erase(begin(call))), DO(kSuccess));

  fault("reserve-over-device-memory", {"VMM-44"},
        "a wanted address is given although memory of a GPU is there")
      .on({kReserve},
          WHEN(is_usable_hint(call) &&
               type_at(hint(call)) == CU_MEMORYTYPE_DEVICE),
          given_as_wanted)
      .on({kFreeAddress}, WHEN(marks.erase(begin(call))), DO(kSuccess));

  fault("device-copy-ends-with-chunk", {"VMM-35"},
        "cudaMemcpy from device to device ends where the first of several "
        "chunks ends")
      .before({kCopy}, WHEN(copies(call, cudaMemcpyDeviceToDevice)),
              ends_with_mapping<>);

  fault("async-copy-ends-with-chunk", {"VMM-35"},
        "cudaMemcpyAsync from device to device ends where the first of several "
        "chunks ends")
      .before({kCopyAsync}, WHEN(copies(call, cudaMemcpyDeviceToDevice)),
              ends_with_mapping<>);

  fault("retain-first-import", {"VMM-32"},
        "every mapping of imported memory names the handle of the first import "
        "of the same memory")
      .after({kImport}, WHEN(imports_descriptor(call)),
             NOTE(marks.put(*call.at<Chunk*>(0),
                            fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300))))
      .on({kRelease}, WHEN(is_surplus(call)), surplus_released)
      .after({kRetain}, [](Call& call) {
        const Chunk first = first_import_of(*call.at<Chunk*>(0));
        return first == *call.at<Chunk*>(0) ? kSuccess
                                            : handle_given(call, first);
      });

  fault("released-without-properties", {"VMM-32"},
        "a handle that was released has no properties, although another "
        "reference holds the memory")
      .on({kGetProperties}, WHEN(released.has(call.at<Chunk>(1))), refuses());

  fault("unmap-ends-first-only", {"VMM-24"},
        "the unmap of a mapping together with addresses of the next one "
        "succeeds, and unmaps only the first one")
      .before(
          {kUnmap},
          WHEN(mappings.has(begin(call)) &&
               bytes(call) > mappings.get(begin(call)).bytes &&
               mapping_at(begin(call) + mappings.get(begin(call)).bytes) != 0),
          [](Call& call) { bytes(call) = mappings.get(begin(call)).bytes; });

  fault("import-of-second-gpu-fresh", {"VMM-33", "VMM-31"},
        "each mapping of an import of memory of the second GPU is new memory")
      .with_gpus(2)
      .on({kMap},
          WHEN(imports.has(chunk_of(call)) &&
               is_gpu(properties_of(chunk_of(call)).location) &&
               properties_of(chunk_of(call)).location.id == 1),
          map_new_instead);

  fault("import-ordinal-current", {"VMM-33"},
        "the GPU of imported memory is reported as the current GPU")
      .with_gpus(2)
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) &&
                  is_import(call.at<CUdeviceptr>(2))),
             [](Call& call) { return answers(current_device())(call); });

  fault("map-distance-32-bits", {"VMM-35"},
        "memory is mapped at its distance from the beginning of the "
        "reservation modulo 4 GiB")
      .before({kMap}, WHEN(reservation_at(begin(call)) != 0),
              with_made<CUdeviceptr>(0, [](Call& call) {
                const CUdeviceptr first = reservation_at(begin(call));
                return first + (begin(call) - first) % kFarAway;
              }));

  fault("exported-types-untold", {"VMM-31"},
        "memory that was exported is reported without handle types")
      .after({kGetProperties}, WHEN(exports.has(call.at<Chunk>(1))),
             DO(set_to(call.at<CUmemAllocationProp*>(0)->requestedHandleTypes,
                       CU_MEM_HANDLE_TYPE_NONE)));

  fault("mapped-part-fresh", {"VMM-23"},
        "the mapping of a part of an import is new memory")
      .on({kMap},
          WHEN(imports.has(chunk_of(call)) &&
               bytes(call) < chunk_marks.get(chunk_of(call))),
          map_new_instead)
      .after({kMap}, NOTE(mark_largest_mapping(call)));

  fault("unmap-shuts-out-mapping-before", {"VMM-25"},
        "when a range is unmapped, the mapping before it loses access")
      .after({kUnmap}, [](Call& call) {
        const CUdeviceptr before = mapping_at(begin(call) - 1);
        return before != 0 && access_of(before, on_gpu(0)) != 0 &&
               allow(before, on_gpu(0), kNone);
      });

  fault("remap-keeps-second-gpu", {"VMM-25"},
        "a new mapping has the access that the second GPU had to the mapping "
        "before")
      .with_gpus(2)
      .after({kSetAccess}, NOTE(address_marks.put(
                               begin(call), access_of(begin(call), on_gpu(1)))))
      .after({kMap}, WHEN(address_marks.get(begin(call)) != kNone),
             DO(allow(begin(call), bytes(call), on_gpu(1),
                      address_marks.get(begin(call)))));

  fault("async-upload-ends-with-chunk", {"VMM-35"},
        "cudaMemcpyAsync from the host to several chunks side by side fills "
        "only the first one")
      .before({kCopyAsync}, WHEN(copies(call, cudaMemcpyHostToDevice)),
              ends_with_mapping<>);

  fault("read-only-async-copy-written", {"VMM-20"},
        "an asynchronous copy writes to memory that can only be read")
      .on({kCopyAsync}, writes_without_access<>);

  fault("access-in-secret", {"VMM-18"},
        "access for one GPU lets the other GPU use the memory, too, and "
        "cuMemGetAccess does not say so")
      .with_gpus(2)
      .after({kSetAccess}, gives_secret_access)
      .after({kGetAccess},
             WHEN(is_gpu(*call.at<const CUmemLocation*>(1)) &&
                  mapping_marks.get(mapping_at(call.at<CUdeviceptr>(2)), -1) ==
                      call.at<const CUmemLocation*>(1)->id),
             answers(0ull));

  fault("fresh-mapping-copied-to", {"VMM-17"},
        "cudaMemcpy from device to device writes a mapping to which no access "
        "was set")
      .on({kCopy}, WHEN(is_device_copy(call)), writes_without_access<kNone>);

  fault("fresh-mapping-set", {"VMM-17"},
        "a memset writes a mapping to which no access was set")
      .on({kSet}, writes_without_access<kNone>);

  fault("fresh-mapping-word-written", {"VMM-17"},
        "a stream writes a word in a mapping to which no access was set")
      .on({kWriteWord}, writes_without_access<kNone>);

  fault("readonly-after-writable-set", {"VMM-20"},
        "a memset that begins in memory that can be written also writes the "
        "next mapping, which can only be read")
      .on({kSet}, next_mapping_unchecked);

  fault("readonly-after-writable-copied-to", {"VMM-20"},
        "a copy from device to device that begins in memory that can be "
        "written also writes the next mapping, which can only be read")
      .on({kCopy}, WHEN(is_device_copy(call)), next_mapping_unchecked);

  fault("taken-mapping-set", {"VMM-17"},
        "a memset writes a mapping whose access was taken away")
      .after({kSetAccess},
             WHEN(mappings.has(begin(call)) &&
                  access_of(begin(call), on_gpu(0)) != 0),
             NOTE(mapping_marks.put(begin(call))))
      .on({kSet}, WHEN(had_access(call)), writes_without_access<kNone>);

  fault("taken-mapping-copied-to", {"VMM-17"},
        "cudaMemcpy from device to device writes a mapping whose access was "
        "taken away")
      .after({kSetAccess},
             WHEN(mappings.has(begin(call)) &&
                  access_of(begin(call), on_gpu(0)) != 0),
             NOTE(mapping_marks.put(begin(call))))
      .on({kCopy}, WHEN(is_device_copy(call) && had_access(call)),
          writes_without_access<kNone>);

  fault("fresh-mapping-copied-from", {"VMM-17"},
        "cudaMemcpy from device to device reads a mapping to which no access "
        "was set")
      .on({kCopy}, WHEN(is_device_copy(call)), [](Call& call) {
        return uses_without_access(call, call.value<CUdeviceptr>(kSource),
                                   kNone, kRead);
      });

  fault("refused-setaccess-takes-access", {"VMM-34"},
        "a refused setting of access takes the access that GPU 0 has")
      .on_refusal({kSetAccess}, [](Call& call) {
        const CUdeviceptr first = mapping_at(begin(call));
        return first != 0 && access_of(first, on_gpu(0)) != 0 &&
               allow(first, on_gpu(0), kNone);
      });

  fault("setaccess-former-mapping-ok", {"VMM-21"},
        "cuMemSetAccess for a range with a hole succeeds and does nothing if "
        "memory was mapped in the hole before")
      .after({kUnmap}, NOTE(address_marks.put(begin(call), bytes(call))))
      .on_refusal({kSetAccess}, WHEN(has_former_mappings(call)), accepted);

  fault("map-inside-mapping-ok", {"VMM-22"},
        "a map at an address inside another mapping succeeds and does nothing")
      .on_refusal(
          {kMap},
          WHEN(mapping_at(begin(call)) != 0 && !mappings.has(begin(call))),
          accepted);

  fault("unmap-one-and-a-half-ok", {"VMM-24"},
        "the unmap of a mapping and of a part of the next one unmaps both")
      .on_refusal(
          {kUnmap},
          WHEN(mappings.has(begin(call)) &&
               bytes(call) > room_at(begin(call)) &&
               bytes(call) < room_at(begin(call)) +
                                 room_at(begin(call) + room_at(begin(call)))),
          [](Call& call) {
            unmap_at(begin(call) + room_at(begin(call)));
            unmap_at(begin(call));
            return accepted(call);
          });

  fault("unmapped-still-usable", {"VMM-25"},
        "kernels can use memory at the addresses where it was unmapped")
      .on({kUnmap, kMap, kSetAccess, kFreeAddress, kRetain, kGetAccess,
           kGetAttribute},
          unmapped_stays_usable);

  fault("reserve-inside-reservation", {"VMM-44"},
        "a wanted address inside a reservation is given a second time")
      .on({kReserve},
          WHEN(reservation_at(hint(call)) != 0 &&
               !reservations.has(hint(call))),
          given_as_wanted)
      .on({kFreeAddress}, WHEN(marks.erase(begin(call))), DO(kSuccess));

  fault("retain-first-granule-only", {"VMM-32"},
        "only addresses in the first granule of a mapping name its handle")
      .on({kRetain}, WHEN(is_in_later_granule(call.at<CUdeviceptr>(1))),
          refuses());

  fault("getaccess-first-granule-only", {"VMM-18"},
        "only the first granule of a mapping reports its access")
      .after({kGetAccess}, WHEN(is_in_later_granule(call.at<CUdeviceptr>(2))),
             answers(0ull));

  fault("setaccess-equal-first-skipped", {"VMM-35"},
        "access to several mappings is not set if the first of them already "
        "has this access")
      .on({kSetAccess},
          WHEN(mappings.has(begin(call)) &&
               bytes(call) > mappings.get(begin(call)).bytes &&
               length(call) == 1 &&
               access_of(begin(call), wants(call).location) ==
                   wants(call).flags),
          lost);

  fault("import-limited-by-exporter", {"VMM-19"},
        "an importer that sets access may only read if the exporter may only "
        "read at this time")
      .after({kSetAccess}, WHEN(exports.has(mappings.get(begin(call)).chunk)),
             NOTE(tell_processes("only reads", wants(call).flags == kRead)))
      .after({kSetAccess},
             WHEN(told("only reads", 0) != 0 && is_import(begin(call)) &&
                  wants(call).flags == kReadWrite),
             DO(allow(begin(call), wants(call).location, kRead)));

  fault("third-mapping-copy", {"VMM-36"},
        "the third mapping of memory is a copy")
      .on({kMap}, [](Call& call) {
        int others = 0;
        for (const auto& each : mappings.all())
          others += each.second.chunk == chunk_of(call);
        const Chunk made = others < 2 ? 0
                                      : copy_of(mapping_of(chunk_of(call)),
                                                CU_MEM_HANDLE_TYPE_NONE);
        return made == 0 ? call.proceed() : map_instead(call, made);
      });

  fault("async-set-ends-with-chunk", {"VMM-35"},
        "an asynchronous memset ends with the first of several chunks")
      .before({kSetAsync}, ends_with_mapping<1>);

  fault("set16-ends-with-chunk", {"VMM-35"},
        "a memset of 16 bits ends with the first of several chunks")
      .before({"cuMemsetD16", "cuMemsetD16Async"}, ends_with_mapping<2>);

  fault("set32-ends-with-chunk", {"VMM-35"},
        "a memset of 32 bits ends with the first of several chunks")
      .before({"cuMemsetD32", "cuMemsetD32Async"}, ends_with_mapping<4>);

  fault("box-set-ends-with-chunk", {"VMM-35"},
        "a memset of a rectangle ends with the first of several chunks")
      .on({"cudaMemset2D", kSet2DAsync}, [](Call& call) {
        const auto address = call.value<CUdeviceptr>(kPointer);
        const CUdeviceptr begin = mapping_at(address);
        const auto pitch = call.at<size_t>(1);
        auto& rows = call.at<size_t>(4);
        if (begin == 0 || pitch == 0) return call.proceed();
        const size_t room = begin + mappings.get(begin).bytes - address;
        if (rows > (room + pitch - 1) / pitch) {
          rows = (room + pitch - 1) / pitch;
          call.fired();
        }
        return call.proceed();
      });

  fault("addressfree-size-0-ok", {"VMM-26"},
        "the size 0 frees addresses of every size")
      .before({kFreeAddress},
              WHEN(bytes(call) == 0 && reservations.has(begin(call))),
              [](Call& call) { bytes(call) = reservations.get(begin(call)); });

  fault("props-end-unwritten", {"VMM-31"},
        "a query of properties does not write their last parts")
      .on({kGetProperties}, [](Call& call) {
        return properties_unwritten(
            call,
            offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
      });

  fault("import-props-end-unwritten", {"VMM-31"},
        "a query of the properties of an import writes nothing after the "
        "location")
      .on({kGetProperties}, WHEN(imports.has(call.at<Chunk>(1))),
          [](Call& call) {
            return properties_unwritten(
                call, offsetof(CUmemAllocationProp, win32HandleMetaData));
          });

  fault("lowered-access-stays", {"VMM-20"},
        "memory that could be written and then only be read can never be "
        "written again")
      .after({kSetAccess}, lowered_stays)
      .after({kGetAccess}, WHEN(is_raised_in_name(call.at<CUdeviceptr>(2))),
             answers<unsigned long long>(kReadWrite))
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) &&
                  is_raised_in_name(call.at<CUdeviceptr>(2))),
             answers<unsigned>(kReadWrite));

  fault("access-of-equal-sizes-only", {"VMM-35"},
        "access that is set for several mappings reaches only those that have "
        "the size of the first one")
      .on({kSetAccess}, [](Call& call) {
        const size_t size = mappings.get(begin(call)).bytes;
        std::vector<CUdeviceptr> equal;
        bool others = false;
        for (const auto& [at, mapped] : mappings.all()) {
          if (at - begin(call) >= bytes(call)) continue;
          others |= mapped.bytes != size;
          if (mapped.bytes == size) equal.push_back(at);
        }
        if (equal.empty() || !others) return call.proceed();
        for (const CUdeviceptr at : equal) allow_same(call, at, size);
        return lost(call);
      });

  fault("access-lowered-for-aliases", {"VMM-18"},
        "if access to one mapping is lowered, it is also lowered for all "
        "mappings of that memory")
      .after({kSetAccess}, WHEN(mappings.has(begin(call))),
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               const auto& [location, flags] = wants(call);
               return at != begin(call) &&
                      one.chunk == mappings.get(begin(call)).chunk &&
                      access_of(at, location) > flags &&
                      allow(at, location, flags);
             }));

  fault(
      "retain-last-byte-next", {"VMM-32"},
      "the last address of a mapping names the handle of the mapping beside it")
      .before({kRetain},
              WHEN(mapping_at(call.at<CUdeviceptr>(1)) != 0 &&
                   mappings.has(call.at<CUdeviceptr>(1) + 1)),
              [](Call& call) { ++call.at<CUdeviceptr>(1); });

  fault("unmapped-part-cleared", {"VMM-23"},
        "when a part of memory is unmapped, this part is cleared")
      .before(
          {kUnmap},
          WHEN(mappings.get(begin(call)).bytes == bytes(call) &&
               bytes(call) < chunk_marks.get(mappings.get(begin(call)).chunk)),
          DO(DRIVER_CALL(cuMemsetD8)(begin(call), 0, bytes(call)) ==
             CUDA_SUCCESS))
      .after({kMap}, NOTE(mark_largest_mapping(call)));

  fault("retained-types-untold", {"VMM-32"},
        "a handle that was retained is reported without handle types")
      .after({kRetain}, NOTE(chunk_marks.put(*call.at<Chunk*>(0))))
      .after({kGetProperties}, WHEN(chunk_marks.has(call.at<Chunk>(1))),
             DO(set_to(call.at<CUmemAllocationProp*>(0)->requestedHandleTypes,
                       CU_MEM_HANDLE_TYPE_NONE)));

  fault("chunk-access-ends-with-peer-access", {"VMM-33"},
        "disabling peer access also ends the access to mapped memory of "
        "cuMemCreate on other GPUs")
      .with_gpus(2)
      .after({"cudaDeviceDisablePeerAccess"},
             each_mapping([](Call&, CUdeviceptr at, const Mapped&) {
               const CUmemLocation here = on_gpu(current_device());
               return location_at(at).id != here.id &&
                      access_of(at, here) != kNone && allow(at, here, kNone);
             }));
}

}  // namespace
}  // namespace ipclab::faults
