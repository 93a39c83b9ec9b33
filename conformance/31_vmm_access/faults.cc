// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include "harness/faults/words/vmm_access.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

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

// The call writes although the access to its target is `flags`.
template <CUmemAccess_flags flags = kRead>
int writes_without_access(Call& call) {
  return uses_without_access(call, written_address(call), flags);
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

// The mapping of a call had access once.
bool had_access(Call& call) {
  return mapping_marks.has(mapping_at(call.value<CUdeviceptr>(kPointer)));
}

// The rows whose tests must accept a legal answer.
constexpr std::initializer_list<const char*> kAllRows = {
    "VMM-17", "VMM-06", "VMM-07", "VMM-08", "VMM-10", "VMM-13",
    "VMM-43", "VMM-18", "VMM-19", "VMM-20", "VMM-21", "VMM-22",
    "VMM-23", "VMM-24", "VMM-25", "VMM-26", "VMM-31", "VMM-32",
    "VMM-33", "VMM-34", "VMM-35", "VMM-36", "VMM-37", "VMM-39",
    "VMM-44", "VMM-15", "VMM-27", "VMM-28", "VMM-29", "VMM-30",
    "VMM-38", "VMM-04", "VMM-05", "VMM-09", "VMM-11", "VMM-12"};

FAULTS {
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

  fault("ok-setaccess-hole", {"VMM-21"}, "a range with a hole gets access")
      .on_refusal({kSetAccess}, [](Call& call) {
        bool any = false;
        for (const auto& [at, mapped] : mappings.all())
          any |= at - begin(call) < bytes(call) &&
                 allow_same(call, at, mapped.bytes);
        return any ? accepted(call) : call.code();
      });

  fault("setaccess-hole-ends-early", {"VMM-21"},
        "a range with a hole gets access up to the hole, and the call succeeds")
      .on_refusal(
          {kSetAccess},
          WHEN(mappings.has(begin(call)) &&
               allow_same(call, begin(call), mappings.get(begin(call)).bytes)),
          accepted);

  fault(
      "refused-setaccess-sets", {"VMM-21"},
      "a refused setting of access for a range with a hole sets the access of "
      "the memory after it")
      .on_refusal({kSetAccess}, [](Call& call) {
        bool any = false;
        for (const auto& [at, mapped] : mappings.all())
          any |= at > begin(call) && at - begin(call) < bytes(call) &&
                 allow_same(call, at, mapped.bytes);
        return any;
      });

  fault("getaccess-of-last", {"VMM-17", "VMM-25"},
        "every address reports the access that was set last")
      .after({kSetAccess, kGetAccess}, [](Call& call) {
        static std::atomic<unsigned long long> last{0};
        if (call.is("cuMemGetAccess")) return answers(last.load())(call);
        last = wants(call).flags;
        return false;
      });

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

  fault("read-only-beside-writable-is-written", {"VMM-20"},
        "a mapping that may only be read can be written while another mapping "
        "of the same handle may be written")
      .on({kSetAccess},
          WHEN(length(call) == 1 && wants(call).flags != kReadWrite &&
               is_written_elsewhere(call)),
          gives_all)
      .after({kSetAccess}, NOTE(in_name.erase(begin(call))))
      .on({kGetAccess}, reported_access);

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

  fault("access-raised-in-name", {"VMM-20"},
        "cuMemGetAccess says that memory can be written, but it can still only "
        "be read")
      .on({kSetAccess, kGetAccess, kMap, kUnmap},
          changed_in_name<kRead, kReadWrite>);

  fault("access-attr-always-full", {"VMM-20"},
        "the attribute of each mapped address says that the memory can be "
        "written")
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) &&
                  is_mapped_at(call.at<CUdeviceptr>(2))),
             answers<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));

  fault("setaccess-after-refusal-refused", {"VMM-21", "VMM-34"},
        "after a refused setting of access the next one is refused, too")
      .on({kSetAccess}, next_refused);

  fault("access-not-given-again", {"VMM-18"},
        "access that was taken from a mapping cannot be given again")
      .on({kSetAccess}, WHEN(!takes_access(call) && marks.has(begin(call))),
          lost)
      .after({kSetAccess}, WHEN(takes_access(call)),
             NOTE(marks.put(begin(call))))
      .after({kUnmap}, NOTE((marks.erase_range(begin(call), bytes(call)))));

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

  fault("getaccess-writes-32-bits", {"VMM-18"},
        "cuMemGetAccess writes only the lower half of the flags")
      .on({kGetAccess}, writes_32_bits);

  fault("second-import-has-access", {"VMM-17"},
        "a mapping of imported memory has the access that was set for an "
        "earlier mapping of the memory")
      .on({kImport, kMap, kRelease}, second_import_has_access);

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

  fault("setaccess-former-mapping-ok", {"VMM-21"},
        "cuMemSetAccess for a range with a hole succeeds and does nothing if "
        "memory was mapped in the hole before")
      .on_refusal({kSetAccess}, WHEN(has_former_mappings(call)), accepted)
      .after({kUnmap}, NOTE(address_marks.put(begin(call), bytes(call))));

  fault("getaccess-first-granule-only", {"VMM-18"},
        "only the first granule of a mapping reports its access")
      .after({kGetAccess}, WHEN(is_in_later_granule(call.at<CUdeviceptr>(2))),
             answers(0ull));

  fault("import-limited-by-exporter", {"VMM-19"},
        "an importer that sets access may only read if the exporter may only "
        "read at this time")
      .after({kSetAccess}, WHEN(exports.has(mappings.get(begin(call)).chunk)),
             NOTE(tell_processes("only reads", wants(call).flags == kRead)))
      .after({kSetAccess},
             WHEN(told("only reads", 0) != 0 && is_import(begin(call)) &&
                  wants(call).flags == kReadWrite),
             DO(allow(begin(call), wants(call).location, kRead)));

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

  // Legal answers.
  fault("ok-granularity-larger", kAllRows,
        "the smallest granularity is twice as large, and the recommended one "
        "sixteen times")
      .after({"cuMemGetAllocationGranularity"}, [](Call& call) {
        const bool recommended = call.at<CUmemAllocationGranularity_flags>(2) ==
                                 CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        *call.at<size_t*>(0) *= recommended ? 16 : 2;
      });

  fault("ok-vmm-refused-as-not-permitted", kAllRows,
        "what cannot be mapped, unmapped or freed is refused with the code "
        "CUDA_ERROR_NOT_PERMITTED of the documented list")
      .on_refusal({kMap, kUnmap, kFreeAddress},
                  WHEN(call.code() != cudaErrorNotPermitted),
                  refuses(cudaErrorNotPermitted));

  fault("ok-wanted-address-ignored", kAllRows,
        "addresses are never reserved where the program wants them")
      .before({kReserve}, WHEN(call.at<CUdeviceptr>(3) != 0),
              with<CUdeviceptr>(3, 0));

  fault("ok-addresses-aligned-to-1-gib", kAllRows,
        "all reserved addresses begin at a multiple of 1 GiB")
      .before({kReserve},
              WHEN(call.at<size_t>(2) < size_t{1} << 30 &&
                   (call.at<size_t>(2) & (call.at<size_t>(2) - 1)) == 0),
              with<size_t>(2, size_t{1} << 30));

  fault("ok-unmap-and-access-wait", kAllRows,
        "cuMemUnmap and cuMemSetAccess wait for all work of the context")
      .before({kUnmap, kSetAccess}, [](Call&) { cudaDeviceSynchronize(); });
}

}  // namespace
}  // namespace ipclab::faults
