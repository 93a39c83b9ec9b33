// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "harness/faults/words/vmm_access.h"
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

// Calls the driver again, with the arguments that the fault has changed.
int proceed_changed(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

// A range that begins with a whole mapping, and goes on without memory.
bool ends_after_mapping(Call& call) {
  const size_t mapped = mappings.get(begin(call)).bytes;
  return mapped != 0 && bytes(call) > mapped &&
         mapping_at(begin(call) + mapped) == 0;
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

// Was an address mapped that is not mapped now? Marks have the former mappings.
bool was_unmapped(CUdeviceptr address) {
  for (const auto& [begin, bytes] : address_marks.all())
    if (address - begin < bytes) return mapping_at(address) == 0;
  return false;
}

// The size of the largest mapping of memory so far.
void mark_largest_mapping(Call& call) {
  chunk_marks.put(chunk_of(call),
                  std::max(chunk_marks.get(chunk_of(call)),
                           static_cast<unsigned long long>(bytes(call))));
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

// Is a later address of the same reservation mapped?
bool is_before_a_mapping(CUdeviceptr address) {
  for (const auto& each : mappings.all())
    if (each.first > address &&
        reservation_at(each.first) == reservation_at(address))
      return true;
  return false;
}

FAULTS {
  fault("full-size-map-refused", {"VMM-23"},
        "an import can only be mapped in parts, not as a whole")
      .on({kMap},
          WHEN(imports.has(chunk_of(call)) &&
               bytes(call) >= told("bytes", ~0ull)),
          refuses())
      .before({kCreate}, WHEN(first_of_all_processes("creator")),
              NOTE(tell_processes("bytes", bytes(call))));

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

  fault("ok-addressfree-any", {"VMM-26"},
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

  fault("refused-addressfree-frees", {"VMM-26"},
        "a refused free of addresses frees the whole reservation")
      .on_refusal({kFreeAddress},
                  WHEN(reservation_at(begin(call)) != 0 &&
                       mapping_at(reservation_at(begin(call))) == 0),
                  DO(addresses_freed(reservation_at(begin(call)))));

  fault("remap-stale", {"VMM-25"},
        "if other memory is mapped at the same addresses, the old memory is "
        "still there")
      .on({kMap, kFreeAddress}, remap_stale);

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

  fault("import-cached-by-number", {"VMM-25", "VMM-35"},
        "a descriptor with the number of an earlier descriptor imports the "
        "earlier memory")
      .on({kImport}, import_by_known_number);

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

  fault("ok-unmap-larger", {"VMM-24"},
        "unmapping more than a mapping unmaps the mapping")
      .on_refusal({kUnmap}, WHEN(ends_after_mapping(call)), [](Call& call) {
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

  fault("unmap-larger-does-nothing", {"VMM-24"},
        "unmapping more than a mapping succeeds and does nothing")
      .on({kUnmap}, WHEN(ends_after_mapping(call)), lost);

  fault("refused-unmap-larger-unmaps", {"VMM-24"},
        "unmapping more than a mapping is refused and unmaps the mapping")
      .on({kUnmap}, WHEN(ends_after_mapping(call)), [](Call& call) {
        unmap_at(begin(call));
        return refused(call);
      });

  fault("ok-unmap-nothing", {"VMM-24"},
        "the unmap of reserved addresses without memory succeeds and does "
        "nothing")
      .on_refusal({kUnmap},
                  WHEN(reservation_at(begin(call)) != 0 &&
                       mapping_at(begin(call)) == 0),
                  accepted);

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

  fault("addressfree-after-refusal-refused", {"VMM-26"},
        "after a refused free of addresses the next one is refused, too")
      .on({kFreeAddress}, next_refused);

  fault("map-after-refusal-refused", {"VMM-22"},
        "after a refused mapping the next one is refused, too")
      .on({kMap}, next_refused);

  fault("unmap-after-refusal-refused", {"VMM-24"},
        "after a refused unmapping the next one is refused, too")
      .on({kUnmap}, next_refused);

  fault("map-part-takes-all-addresses", {"VMM-23"},
        "the mapping of a part of memory takes as many addresses as the whole "
        "memory")
      .on({kMap}, WHEN(is_behind_a_part(begin(call))), refuses())
      .after({kExport},
             NOTE(tell_processes("bytes", created.get(call.at<Chunk>(1)))));

  fault("unmap-clears", {"VMM-25"},
        "memory that was not exported is cleared when it is unmapped, although "
        "its handle is not released")
      .before({kUnmap}, [](Call& call) {
        const Mapped mapped = mappings.get(begin(call));
        return mapped.bytes == bytes(call) && created.has(mapped.chunk) &&
               !exports.has(mapped.chunk) && !released.has(mapped.chunk) &&
               cleared(begin(call), mapped.bytes);
      });

  fault("ok-map-offset-4gib", {"VMM-23"},
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

  fault("unmap-ends-first-only", {"VMM-24"},
        "the unmap of a mapping together with addresses of the next one "
        "succeeds, and unmaps only the first one")
      .before(
          {kUnmap},
          WHEN(mappings.has(begin(call)) &&
               bytes(call) > mappings.get(begin(call)).bytes &&
               mapping_at(begin(call) + mappings.get(begin(call)).bytes) != 0),
          [](Call& call) { bytes(call) = mappings.get(begin(call)).bytes; });

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
      .after({kMap}, WHEN(address_marks.get(begin(call)) != kNone),
             DO(allow(begin(call), bytes(call), on_gpu(1),
                      address_marks.get(begin(call)))))
      .after({kSetAccess},
             NOTE(address_marks.put(begin(call),
                                    access_of(begin(call), on_gpu(1)))));

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

  fault("unmapped-part-cleared", {"VMM-23"},
        "when a part of memory is unmapped, this part is cleared")
      .before(
          {kUnmap},
          WHEN(mappings.get(begin(call)).bytes == bytes(call) &&
               bytes(call) < chunk_marks.get(mappings.get(begin(call)).chunk)),
          DO(DRIVER_CALL(cuMemsetD8)(begin(call), 0, bytes(call)) ==
             CUDA_SUCCESS))
      .after({kMap}, NOTE(mark_largest_mapping(call)));
}

}  // namespace
}  // namespace ipclab::faults
