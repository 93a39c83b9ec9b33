// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <atomic>
#include <vector>

#include "harness/faults/words/vmm_access.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

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

// The first chunk of the reservation, if the address is in a later one; or 0.
CUdeviceptr in_first_chunk(CUdeviceptr address) {
  const CUdeviceptr begin = reservation_at(address);
  const CUdeviceptr own = mapping_at(address);
  return begin != 0 && own != begin && mapping_at(begin) != 0 &&
                 address - own < mappings.get(begin).bytes
             ? begin + (address - own)
             : 0;
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

size_t memory_of_gpu() {
  size_t total = 0;
  DRIVER_CALL(cuDeviceTotalMem)(&total, 0);
  return total;
}

FAULTS {
  fault("only-first-chunk", {"VMM-35"},
        "only the first of several chunks side by side gets access")
      .before(
          {kSetAccess},
          WHEN(mappings.has(begin(call)) &&
               mappings.get(begin(call)).bytes < bytes(call)),
          [](Call& call) { bytes(call) = mappings.get(begin(call)).bytes; });

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

  fault("copy-ends-with-chunk", {"VMM-35"},
        "a copy of several chunks side by side copies only the first chunk")
      .before({kCopy, kCopyAsync}, ends_with_mapping<>);

  fault("set-ends-with-chunk", {"VMM-35"},
        "a memset of several chunks side by side sets only the first chunk")
      .before({kSet, kSetAsync}, ends_with_mapping<>);

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

  fault("reserve-size-odd-ok", {"VMM-44"},
        "addresses are reserved for a size that is not a multiple of a page")
      .on_refusal({kReserve}, WHEN(bytes(call) % kSmallPage != 0),
                  [](Call& call) {
                    bytes(call) = (bytes(call) / granule() + 1) * granule();
                    return once_more(call);
                  });

  fault("import-equal-size-shared", {"VMM-35"},
        "an import that is as large as another import gives the memory of the "
        "other import")
      .on({kImport, kMap}, equal_size_shared);

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

  fault("reserve-alignment-capped", {"VMM-44"},
        "addresses are aligned to 16 MiB if a larger alignment is requested")
      .on({kReserve}, alignment_capped);

  fault("reservations-end-at-65", {"VMM-44"},
        "a process cannot have more than 65 reservations")
      .on({kReserve, kFreeAddress}, [](Call& call) {
        return refused_beyond<65>(call, "cuMemAddressReserve", 0);
      });

  fault("reserve-after-refusal-refused", {"VMM-44"},
        "after a refused reservation the next one is refused, too")
      .on({kReserve}, next_refused);

  fault("chunk-copy-equal-size-confused", {"VMM-35"},
        "a copy uses the one with the lowest address of several equally large "
        "allocations of imported memory of cuMemCreate")
      .on({kCopy}, equal_size_confused);

  fault("access-taken-from-the-start", {"VMM-35"},
        "access that is taken from chunks in the middle of a reservation is "
        "taken from its first chunks")
      .before({kSetAccess},
              WHEN(takes_access(call) && reservation_at(begin(call)) != 0),
              with_made<CUdeviceptr>(
                  0, [](Call& call) { return reservation_at(begin(call)); }));

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

  fault("reserve-larger-than-memory-refused", {"VMM-44"},
        "a reservation that is larger than the memory of the GPU is refused")
      .on({kReserve}, WHEN(bytes(call) > memory_of_gpu()),
          refuses(CUDA_ERROR_OUT_OF_MEMORY));

  fault("ninth-import-is-first", {"VMM-35"},
        "if a process has eight imports, its next import is the memory of the "
        "first import")
      .on({kImport, kRelease}, further_import_is_first<8>);

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

  fault("map-distance-32-bits", {"VMM-35"},
        "memory is mapped at its distance from the beginning of the "
        "reservation modulo 4 GiB")
      .before({kMap}, WHEN(reservation_at(begin(call)) != 0),
              with_made<CUdeviceptr>(0, [](Call& call) {
                const CUdeviceptr first = reservation_at(begin(call));
                return first + (begin(call) - first) % kFarAway;
              }));

  fault("async-upload-ends-with-chunk", {"VMM-35"},
        "cudaMemcpyAsync from the host to several chunks side by side fills "
        "only the first one")
      .before({kCopyAsync}, WHEN(copies(call, cudaMemcpyHostToDevice)),
              ends_with_mapping<>);

  fault("reserve-inside-reservation", {"VMM-44"},
        "a wanted address inside a reservation is given a second time")
      .on({kReserve},
          WHEN(reservation_at(hint(call)) != 0 &&
               !reservations.has(hint(call))),
          given_as_wanted)
      .on({kFreeAddress}, WHEN(marks.erase(begin(call))), DO(kSuccess));

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
}

}  // namespace
}  // namespace ipclab::faults
