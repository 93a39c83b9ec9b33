// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

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

// Rectangles that the driver API copies do not reach imported memory.
template <class Box>
int rectangle_of_driver_lost(Call& call) {
  if (call.function().roles[0] != kOther) return call.proceed();
  const Box& box = *call.at<const Box*>(0);
  const auto is_imported = [](CUmemorytype type, CUdeviceptr address) {
    return type == CU_MEMORYTYPE_DEVICE && is_import(address);
  };
  if (!is_imported(box.dstMemoryType, box.dstDevice) &&
      !is_imported(box.srcMemoryType, box.srcDevice))
    return call.proceed();
  call.fired();
  return kSuccess;
}

int mapped_again_is_former(Call& call) {
  static auto& former = *new Table<Chunk, Chunk>;
  if (call.is("cuMemUnmap")) {
    const auto begin = call.at<CUdeviceptr>(0);
    const Chunk chunk = mappings.get(begin).chunk;
    const bool concerned =
        created.has(chunk) && exports.has(chunk) && !released.has(chunk);
    const Chunk copy = concerned ? copy_of(begin, CU_MEM_HANDLE_TYPE_NONE) : 0;
    const int code = call.proceed();
    if (copy == 0) return code;
    if (code != kSuccess || mapping_of(chunk) != 0 || former.has(chunk))
      DRIVER_CALL(cuMemRelease)(copy);
    else
      former.put(chunk, copy);
    return code;
  }
  if (call.is("cuMemRelease")) {
    const Chunk copy = former.get(call.at<Chunk>(0));
    if (former.erase(call.at<Chunk>(0))) DRIVER_CALL(cuMemRelease)(copy);
  }
  const Chunk copy = call.is("cuMemMap") ? former.get(call.at<Chunk>(3)) : 0;
  if (copy == 0) return call.proceed();
  former.erase(call.at<Chunk>(3));
  return map_instead(call, copy);
}

// Memory at an address can only be read now. Returns false if it could not be
// written before.
bool lowered(CUdeviceptr address) {
  const CUmemLocation here = location_at(address);
  return access_of(address, here) == kReadWrite &&
         allow(mapping_at(address), here, kRead);
}

FAULTS {
  fault("vmm-snapshot-copy",
        {"VMM-07", "FABR-04", "SERV-01", "PIPE-02", "COST-02"},
        "an import is a copy, made when it is mapped")
      .on_machine("fabric")
      .on({kImport, kMap, kUnmap}, DO(map_other_memory(call, true)));

  fault("import-copy-in-lost", {"VMM-07"},
        "data that cudaMemcpy writes into imported memory are lost")
      .on({kCopy}, WHEN(is_import(target_of(call))), lost);

  fault("import-async-copy-in-lost", {"VMM-07"},
        "data that cudaMemcpyAsync writes into imported memory are lost")
      .on({kCopyAsync}, WHEN(is_import(target_of(call))), lost);

  fault("import-memset-lost", {"VMM-07"},
        "data that cudaMemset writes into imported memory are lost")
      .on({kSet}, WHEN(is_import(target_of(call))), lost);

  fault(
      "import-copy-out-stale", {"VMM-07"},
      "cudaMemcpy out of imported memory returns the values of the first copy")
      .on({kCopy, kUnmap}, copy_from_import_stale);

  fault("import-copy-two-granules", {"VMM-07"},
        "cudaMemcpy does not reach beyond the first two granules of an import")
      .on({kCopy}, [](Call& call) {
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
      });

  fault("chunk-device-copy-lost", {"VMM-07"},
        "cudaMemcpy with cudaMemcpyDeviceToDevice does not reach imported "
        "memory of cuMemCreate")
      .on({kCopy}, other_access_lost);

  fault("chunk-set-32-lost", {"VMM-07"},
        "cuMemsetD32 does not reach imported memory of cuMemCreate")
      .on({"cuMemsetD32"}, other_access_lost);

  fault("chunk-sync-peer-copy-lost", {"VMM-07"},
        "cudaMemcpyPeer does not reach imported memory of cuMemCreate")
      .on({"cudaMemcpyPeer"}, other_access_lost);

  fault("chunk-copy-2d-first-row", {"VMM-07"},
        "cudaMemcpy2D copies only the first row of a rectangle of imported "
        "memory of cuMemCreate")
      .on({kCopy2D}, first_row<5>);

  fault("chunk-set-2d-first-row", {"VMM-07"},
        "cudaMemset2D sets only the first row of a rectangle of imported "
        "memory of cuMemCreate")
      .on({"cudaMemset2D"}, first_row<4>);

  fault("chunk-copy-3d-first-row", {"VMM-07"},
        "cudaMemcpy3D copies only the first row of a box of imported memory of "
        "cuMemCreate")
      .on({"cudaMemcpy3D"}, first_row_of_box);

  fault("chunk-copy-tail-lost", {"VMM-07"},
        "the last bytes of a copy of imported memory of cuMemCreate are lost "
        "if the size of the copy is not a multiple of 4")
      .on({kCopy, kCopyAsync}, tail_lost);

  fault("chunk-set-tail-lost", {"VMM-07"},
        "the last bytes of a memset of imported memory of cuMemCreate are lost "
        "if the size of the memset is not a multiple of 4")
      .on({kSet, kSetAsync}, tail_lost);

  fault(
      "chunk-default-kind-refused", {"VMM-07"},
      "cudaMemcpyDefault does not know where imported memory of cuMemCreate is")
      .on({kCopy, kCopyAsync}, default_kind_refused);

  fault("chunk-to-import-lost", {"VMM-07"},
        "a copy from imported memory of cuMemCreate to imported memory of "
        "cuMemCreate moves nothing")
      .on({kCopy, kCopyAsync}, copy_between_imports_lost);

  fault("chunk-driver-copy-2d-lost", {"VMM-07"},
        "cuMemcpy2D does not reach imported memory of cuMemCreate")
      .on({kCreate, kImport, kMap, kUnmap, "cuMemcpy2D"},
          rectangle_of_driver_lost<CUDA_MEMCPY2D>);

  fault("chunk-driver-async-copy-2d-lost", {"VMM-07"},
        "cuMemcpy2DAsync does not reach imported memory of cuMemCreate")
      .on({kCreate, kImport, kMap, kUnmap, "cuMemcpy2DAsync"},
          rectangle_of_driver_lost<CUDA_MEMCPY2D>);

  fault("chunk-driver-copy-3d-lost", {"VMM-07"},
        "cuMemcpy3D does not reach imported memory of cuMemCreate")
      .on({kCreate, kImport, kMap, kUnmap, "cuMemcpy3D"},
          rectangle_of_driver_lost<CUDA_MEMCPY3D>);

  fault("chunk-driver-async-copy-3d-lost", {"VMM-07"},
        "cuMemcpy3DAsync does not reach imported memory of cuMemCreate")
      .on({kCreate, kImport, kMap, kUnmap, "cuMemcpy3DAsync"},
          rectangle_of_driver_lost<CUDA_MEMCPY3D>);

  fault("chunk-driver-copy-lost", {"VMM-07"},
        "copies of the driver API do not reach imported memory of cuMemCreate")
      .on({kCopy, kCopyAsync}, driver_form_lost);

  fault("chunk-driver-set-lost", {"VMM-07"},
        "memsets of the driver API do not reach imported memory of cuMemCreate")
      .on({kSet, kSetAsync}, driver_form_lost);

  fault("chunk-async-set-lost", {"VMM-07"},
        "asynchronous memsets do not reach imported memory of cuMemCreate")
      .on({kSetAsync}, access_lost);

  fault("chunk-copy-last-byte-lost", {"VMM-07"},
        "a copy up to the end of imported memory of cuMemCreate loses the last "
        "byte")
      .on({kCopy, kCopyAsync}, last_byte_lost);

  fault("chunk-set-last-byte-lost", {"VMM-07"},
        "a memset up to the end of imported memory of cuMemCreate loses the "
        "last byte")
      .on({kSet, kSetAsync}, last_byte_lost);

  fault("chunk-pinned-copy-lost", {"VMM-07"},
        "copies between pinned host memory and imported memory of cuMemCreate "
        "move nothing")
      .on({kCopy, kCopyAsync}, pinned_copy_lost);

  fault("chunk-copy-skips-queue", {"VMM-07"},
        "a synchronous copy of imported memory of cuMemCreate does not wait "
        "for the default stream")
      .on({kCopy}, copy_skips_queue);

  fault("chunk-per-thread-copy-lost", {"VMM-07"},
        "a copy in a thread's default stream does not reach imported memory of "
        "cuMemCreate")
      .on({kCopyAsync}, per_thread_copy_lost);

  fault("chunk-copy-2d-pitch-ignored", {"VMM-07"},
        "cudaMemcpy2D ignores the pitch of imported memory of cuMemCreate")
      .on({kCopy2D}, pitch_ignored);

  fault("chunk-driver-device-copy-lost", {"VMM-07"},
        "cuMemcpyDtoD does not reach imported memory of cuMemCreate")
      .on({kCopy}, driver_function_lost<0>);

  fault("chunk-driver-unified-copy-lost", {"VMM-07"},
        "cuMemcpy does not reach imported memory of cuMemCreate")
      .on({kCopy}, driver_function_lost<1>);

  fault("chunk-import-is-of-host", {"VMM-07"},
        "the driver API reports imported memory of cuMemCreate as host memory")
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) &&
                  is_import(call.at<CUdeviceptr>(2))),
             answers<unsigned>(CU_MEMORYTYPE_HOST));

  fault("chunk-import-is-managed", {"VMM-07"},
        "imported memory of cuMemCreate is reported as managed memory")
      .after({kPointerAttributes}, WHEN(is_import(call.at<CUdeviceptr>(1))),
             [](Call& call) {
               call.at<cudaPointerAttributes*>(0)->type = cudaMemoryTypeManaged;
             });

  fault(
      "chunk-set-after-export-lost", {"VMM-07"},
      "after an export of memory, a memset of it by the exporter does nothing")
      .on({kSet, kSetAsync},
          WHEN(exports.has(around(call.at<CUdeviceptr>(0)).chunk)), lost);

  fault("chunk-import-range-short", {"VMM-07"},
        "the address range of imported memory of cuMemCreate is half of the "
        "mapping")
      .after({"cuMemGetAddressRange"},
             WHEN(call.at<size_t*>(1) != nullptr &&
                  is_import(call.at<CUdeviceptr>(2))),
             [](Call& call) { *call.at<size_t*>(1) /= 2; });

  fault("chunk-copy-2d-last-row-lost", {"VMM-07"},
        "the last row is missing in a copy of a rectangle of imported memory "
        "of cuMemCreate")
      .on({kCopy2D}, last_row_lost);

  fault("chunk-copy-2d-fills-padding", {"VMM-07"},
        "a copy of a rectangle also writes between the rows of imported memory "
        "of cuMemCreate")
      .on({kCopy2D}, copy_fills_padding);

  fault("chunk-set-2d-fills-padding", {"VMM-07"},
        "a memset of a rectangle also writes between the rows of imported "
        "memory of cuMemCreate")
      .on({"cudaMemset2D"}, set_fills_padding);

  fault("chunk-set-one-byte-more", {"VMM-07"},
        "a memset of an odd number of bytes sets one more byte in imported "
        "memory of cuMemCreate")
      .on({kSet}, one_byte_more);

  fault("chunk-copy-tail-too-long", {"VMM-07"},
        "a copy whose size is no multiple of 4 clears the bytes after it in "
        "imported memory of cuMemCreate")
      .on({kCopy}, tail_too_long);

  fault("chunk-async-copy-tail-too-long", {"VMM-07"},
        "an asynchronous copy whose size is no multiple of 4 clears the bytes "
        "after it in imported memory of cuMemCreate")
      .on({kCopyAsync}, tail_too_long);

  fault("chunk-copy-within-lost", {"VMM-07"},
        "a copy is lost if both of its addresses are in the same imported "
        "memory of cuMemCreate")
      .on({kCopy}, copy_within_lost);

  fault("chunk-async-copy-within-lost", {"VMM-07"},
        "an asynchronous copy is lost if both of its addresses are in the same "
        "imported memory of cuMemCreate")
      .on({kCopyAsync}, copy_within_lost);

  fault("chunk-async-copy-offset-lost", {"VMM-07"},
        "an asynchronous copy from an inner address reads from the start of "
        "imported memory of cuMemCreate")
      .on({kCopyAsync}, source_offset_lost);

  fault("chunk-async-copy-2d-pitch-ignored", {"VMM-07"},
        "an asynchronous copy of a rectangle ignores the pitch of imported "
        "memory of cuMemCreate")
      .on({kCopy2DAsync}, pitch_is_width);

  fault("chunk-async-copy-2d-last-row-lost", {"VMM-07"},
        "the last row is missing in an asynchronous copy of a rectangle of "
        "imported memory of cuMemCreate")
      .on({kCopy2DAsync}, last_row_lost);

  fault("chunk-set-per-thread-lost", {"VMM-07"},
        "a memset in a thread's default stream does not reach imported memory "
        "of cuMemCreate")
      .on({kSetAsync}, lost_in_per_thread_stream);

  fault("chunk-set-in-default-stream-lost", {"VMM-07"},
        "an asynchronous memset in the default stream does not reach imported "
        "memory of cuMemCreate")
      .on({kSetAsync}, lost_in_default_stream);

  fault("chunk-copy-in-default-stream-lost", {"VMM-07"},
        "an asynchronous copy in the default stream does not reach imported "
        "memory of cuMemCreate")
      .on({kCopyAsync}, lost_in_default_stream);

  fault("chunk-set-32-counts-bytes", {"VMM-07"},
        "a memset of 32 bits sets only a quarter of the words in imported "
        "memory of cuMemCreate")
      .on({"cuMemsetD32"}, words_as_bytes);

  fault("chunk-set-16-low-byte", {"VMM-07"},
        "a memset of 16 bits writes the lower byte of its value twice to "
        "imported memory of cuMemCreate")
      .on({"cuMemsetD16"}, low_byte_twice);

  fault("chunk-async-copy-64-kib", {"VMM-07"},
        "an asynchronous copy ends after 64 KiB of imported memory of "
        "cuMemCreate")
      .on({kCopyAsync}, first_64_kib);

  fault("chunk-async-set-64-kib", {"VMM-07"},
        "an asynchronous memset ends after 64 KiB of imported memory of "
        "cuMemCreate")
      .on({kSetAsync}, first_64_kib);

  fault("export-makes-read-only", {"VMM-07"},
        "the exporter can only read its memory after the export")
      .after({kExport},
             each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
               return one.chunk == call.at<Chunk>(1) && lowered(at);
             }))
      .after({kSetAccess}, WHEN(exports.has(around(begin(call)).chunk)),
             DO(lowered(begin(call))));

  fault("chunk-set-skips-stream", {"VMM-07"},
        "an asynchronous memset of imported memory of cuMemCreate does not "
        "wait for its stream")
      .on({kSetAsync},
          WHEN(is_busy(stream_of(call)) && is_import(target_of(call))),
          [](Call& call) {
            stream_of(call) = private_stream();
            const int code = once_more(call);
            // Later work of the stream comes after the memset.
            cudaStreamSynchronize(private_stream());
            return code;
          });

  fault("chunk-driver-async-copy-lost", {"VMM-07"},
        "asynchronous copies of the driver API do not reach imported memory of "
        "cuMemCreate")
      .on({kCopyAsync},
          WHEN(!call.is_runtime() &&
               (is_import(target_of(call)) ||
                is_import(call.value<CUdeviceptr>(kSource)))),
          lost);

  fault("first-mapping-clears", {"VMM-07"},
        "memory that was exported before its creator has mapped it is cleared "
        "when the creator maps it")
      .after(
          {kMap},
          WHEN(created.has(chunk_of(call)) && chunk_marks.put(chunk_of(call)) &&
               exports.has(chunk_of(call))),
          NOTE(mapping_marks.put(begin(call))))
      .after({kSetAccess}, WHEN(mapping_marks.erase(begin(call))),
             DO(DRIVER_CALL(cuMemsetD8)(begin(call), 0,
                                        mappings.get(begin(call)).bytes) ==
                CUDA_SUCCESS));

  fault("urgent-chunk-copy-lost", {"VMM-07"},
        "an asynchronous copy in a stream with a high priority moves no "
        "imported memory")
      .on({kCopyAsync},
          WHEN(has_priority(call) &&
               (is_import(target_of(call)) ||
                is_import(call.value<CUdeviceptr>(kSource)))),
          lost);

  fault("mapped-again-former-values", {"VMM-07"},
        "exported memory that is unmapped and mapped again has the values of "
        "the former mapping")
      .on({kMap, kUnmap, kExport, kCreate, kRelease}, mapped_again_is_former);
}

}  // namespace
}  // namespace ipclab::faults
