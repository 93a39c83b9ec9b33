// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "harness/faults/words/vmm_access.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

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

// Mappings that have ended; no handle of their memory was released since.
Table<CUdeviceptr, Mapped> former;

Chunk former_chunk(CUdeviceptr address) {
  for (const auto& [begin, mapped] : former.all())
    if (address - begin < mapped.bytes && reservation_at(address) != 0)
      return mapped.chunk;
  return 0;
}
int forget_former(Chunk released_now) {
  for (const auto& [begin, mapped] : former.all())
    if (mapped.chunk == released_now) former.erase(begin);
  return kSuccess;
}

// The references to each handle that the program has.
Table<Chunk, int> references;

int add_reference(Chunk chunk, int more) {
  references.put(chunk, references.get(chunk) + more);
  return kSuccess;
}

// The properties of the memory that was created last.
std::atomic<const CUmemAllocationProp*> latest{nullptr};

FAULTS {
  fault("rdma-flag-lost", {"VMM-39"}, "gpuDirectRDMACapable is ignored")
      .on({kCreate}, with_copy<CUmemAllocationProp>(2, [](auto& wanted) {
            return std::exchange(wanted.allocFlags.gpuDirectRDMACapable, 0) !=
                   0;
          }));

  fault("compressible-exported-as-other", {"VMM-39"},
        "the descriptor of memory for which compression was asked leads to "
        "other memory")
      .after({kCreate},
             WHEN(call.at<const CUmemAllocationProp*>(2)
                      ->allocFlags.compressionType != 0),
             NOTE(chunk_marks.put(*call.at<Chunk*>(0), call.at<size_t>(1))))
      .on({kExport}, WHEN(chunk_marks.has(call.at<Chunk>(1))), [](Call& call) {
        const auto wanted = properties_of(call.at<Chunk>(1));
        return export_instead(
            call, new_chunk(chunk_marks.get(call.at<Chunk>(1)), wanted.location,
                            wanted.requestedHandleTypes));
      });

  fault("import-maps-once", {"VMM-36"},
        "an import that is mapped cannot be mapped again")
      .on({kMap},
          WHEN(imports.has(chunk_of(call)) && is_mapped(chunk_of(call))),
          refuses());

  fault("import-props-wrong", {"VMM-31"},
        "the location of an import has the exporter's device number")
      .with_gpus(2)
      .after({kGetProperties}, WHEN(imports.has(call.at<Chunk>(1))),
             DO(set_to(call.at<CUmemAllocationProp*>(0)->location.id,
                       told("ordinal", 0))))
      .before(
          {kCreate},
          NOTE(tell_processes(
              "ordinal", call.at<const CUmemAllocationProp*>(2)->location.id)));

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

  fault("alias-incoherent", {"VMM-36", "VMM-37"},
        "the second mapping of an allocation is a copy")
      .on({kMap}, WHEN(is_mapped(chunk_of(call))), [](Call& call) {
        const Chunk other = private_chunk(chunk_of(call), bytes(call));
        if (other == 0) return call.proceed();
        copy(other, chunk_of(call), bytes(call));
        return map_instead(call, other);
      });

  fault("retain-import-refused", {"VMM-32"},
        "the handle of an imported mapping cannot be retained")
      .on({kRetain}, WHEN(is_import(call.at<CUdeviceptr>(1))), refuses());

  fault("retain-after-release-refused", {"VMM-32"},
        "a handle that was released cannot be retained from its mapping")
      .on({kRetain}, WHEN(released.has(around(call.at<CUdeviceptr>(1)).chunk)),
          refuses())
      .after({kMap}, [](Call& call) {
        released.erase(chunk_of(call));
        return kSuccess;
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

  fault("props-types-lost", {"VMM-31"},
        "the properties of an allocation do not have its handle types")
      .after({kGetProperties},
             DO(set_to(call.at<CUmemAllocationProp*>(0)->requestedHandleTypes,
                       CU_MEM_HANDLE_TYPE_NONE)));

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

  fault("retains-once", {"VMM-32"},
        "retaining a handle twice takes only one reference")
      .before({kRelease}, NOTE(chunk_marks.erase(call.at<Chunk>(0))))
      .after({kRetain}, DO(!chunk_marks.put(*call.at<Chunk*>(0)) &&
                           DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0)) ==
                               CUDA_SUCCESS));

  fault("props-current-gpu", {"VMM-31"},
        "the properties of memory of any GPU name the current GPU")
      .with_gpus(2)
      .after({kGetProperties}, [](Call& call) {
        auto& place = call.at<CUmemAllocationProp*>(0)->location;
        const int current = current_device();
        return is_gpu(place) && std::exchange(place.id, current) != current;
      });

  fault("retain-last-byte-refused", {"VMM-32"},
        "the last address of a mapping has no handle")
      .on({kRetain}, WHEN(room_at(call.at<CUdeviceptr>(1)) == 1), refuses());

  fault("retain-after-remap-stale", {"VMM-32"},
        "if other memory is mapped at the same addresses, the addresses still "
        "name the handle of the old memory")
      .after({kRetain},
             [](Call& call) {
               const Chunk own = *call.at<Chunk*>(0);
               const Chunk old =
                   address_marks.get(mapping_at(retained_address(call)), own);
               if (old == own || references.get(old) <= 0)
                 return add_reference(own, 1);
               return handle_given(call, old);
             })
      .on({kRelease}, WHEN(is_surplus(call)), surplus_released)
      .after({kMap}, WHEN(!address_marks.has(begin(call))),
             NOTE(address_marks.put(begin(call), chunk_of(call))))
      .after({kCreate, kImport}, NOTE(references.put(*call.at<Chunk*>(0), 1)))
      .after({kRelease}, NOTE(add_reference(call.at<Chunk>(0), -1)));

  fault("props-type-untold", {"VMM-31"},
        "the properties of memory do not have its type")
      .after({kGetProperties}, [](Call& call) {
        call.at<CUmemAllocationProp*>(0)->type = CU_MEM_ALLOCATION_TYPE_INVALID;
        return accepted(call);
      });

  fault("retain-after-refusal-refused", {"VMM-32"},
        "after a refused cuMemRetainAllocationHandle the next one is refused, "
        "too")
      .on({kRetain}, next_refused);

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

  fault("retain-after-other-unmap-refused", {"VMM-32"},
        "after memory was unmapped at one place, its handle cannot be retained "
        "from another place")
      .on({kRetain},
          WHEN(chunk_marks.has(around(retained_address(call)).chunk)),
          refuses())
      .before({kUnmap}, WHEN(mappings.get(begin(call)).bytes == bytes(call)),
              NOTE(chunk_marks.put(mappings.get(begin(call)).chunk)));

  fault("second-mapping-clears", {"VMM-36"},
        "a second mapping of memory clears the memory")
      .after({kMap},
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               return at != begin(call) && one.chunk == chunk_of(call) &&
                      cleared(at, one.bytes);
             }));

  fault("retain-after-unmap-ok", {"VMM-32"},
        "cuMemRetainAllocationHandle still gives the handle of unmapped "
        "addresses, without a reference")
      .on_refusal({kRetain}, WHEN(former_chunk(retained_address(call)) != 0),
                  [](Call& call) {
                    *call.at<Chunk*>(0) = former_chunk(retained_address(call));
                    return accepted(call);
                  })
      .before({kUnmap}, WHEN(mappings.get(begin(call)).bytes == bytes(call)),
              NOTE(former.put(begin(call), mappings.get(begin(call)))))
      .before({kRelease}, NOTE(forget_former(call.at<Chunk>(0))));

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

  fault("retain-first-import", {"VMM-32"},
        "every mapping of imported memory names the handle of the first import "
        "of the same memory")
      .after({kRetain},
             [](Call& call) {
               const Chunk first = first_import_of(*call.at<Chunk*>(0));
               return first == *call.at<Chunk*>(0) ? kSuccess
                                                   : handle_given(call, first);
             })
      .after({kImport}, WHEN(imports_descriptor(call)),
             NOTE(marks.put(*call.at<Chunk*>(0),
                            fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300))))
      .on({kRelease}, WHEN(is_surplus(call)), surplus_released);

  fault("released-without-properties", {"VMM-32"},
        "a handle that was released has no properties, although another "
        "reference holds the memory")
      .on({kGetProperties}, WHEN(released.has(call.at<Chunk>(1))), refuses());

  fault("exported-types-untold", {"VMM-31"},
        "memory that was exported is reported without handle types")
      .after({kGetProperties}, WHEN(exports.has(call.at<Chunk>(1))),
             DO(set_to(call.at<CUmemAllocationProp*>(0)->requestedHandleTypes,
                       CU_MEM_HANDLE_TYPE_NONE)));

  fault("retain-first-granule-only", {"VMM-32"},
        "only addresses in the first granule of a mapping name its handle")
      .on({kRetain}, WHEN(is_in_later_granule(call.at<CUdeviceptr>(1))),
          refuses());

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

  fault(
      "retain-last-byte-next", {"VMM-32"},
      "the last address of a mapping names the handle of the mapping beside it")
      .before({kRetain},
              WHEN(mapping_at(call.at<CUdeviceptr>(1)) != 0 &&
                   mappings.has(call.at<CUdeviceptr>(1) + 1)),
              [](Call& call) { ++call.at<CUdeviceptr>(1); });

  fault("retained-types-untold", {"VMM-32"},
        "a handle that was retained is reported without handle types")
      .after({kRetain}, NOTE(chunk_marks.put(*call.at<Chunk*>(0))))
      .after({kGetProperties}, WHEN(chunk_marks.has(call.at<Chunk>(1))),
             DO(set_to(call.at<CUmemAllocationProp*>(0)->requestedHandleTypes,
                       CU_MEM_HANDLE_TYPE_NONE)));
}

}  // namespace
}  // namespace ipclab::faults
