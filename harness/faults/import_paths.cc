// Bugs of less common ways to access imported memory of cuMemCreate, of pools
// and of peers: rectangles, boxes, odd sizes, far offsets, copies between
// imports and between GPUs, calls of the driver API. And of less common ways to
// give it back: a part of it, once too often, after a refusal.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

constexpr size_t k4GiB = size_t{4} << 30;

struct Range {
  uintptr_t begin = 0;
  size_t bytes = 0;
};

// The imported memory in which an address lies; a range of 0 bytes if none.
Range import_around(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  const CUdeviceptr begin = mapping_at(wanted);
  if (is_import(begin)) return {begin, mappings.get(begin).bytes};
  for (const auto& [place, block] : blocks.all()) {
    const auto first = reinterpret_cast<uintptr_t>(place);
    if (block.imported && wanted - first < block.bytes)
      return {first, block.bytes};
  }
  return {};
}
uintptr_t import_at(const void* address) {
  return import_around(address).begin;
}

// Does this call copy or set memory?
bool is_access(Call& call) {
  return call.is("cudaMemcpy3D") || call.is("cudaMemcpy2D") ||
         call.is("cudaMemset2D") || call.is("cudaMemcpyPeerAsync") ||
         call.is("cudaMemcpy") || call.is("cudaMemcpyAsync") ||
         call.is("cudaMemset") || call.is("cudaMemsetAsync");
}

bool touches_import(Call& call) {
  for (const Role role : {kPointer, kSource})
    if (call.find(role) != nullptr && import_at(call.value<void*>(role)) != 0)
      return true;
  return false;
}

// One function does nothing with imported memory. The fault's list of functions
// names this function.
int other_access_lost(Call& call) {
  const bool wide = call.is("cuMemsetD16") || call.is("cuMemsetD32");
  const bool copies =
      (call.is("cudaMemcpy") && call.is_runtime() &&
       call.at<cudaMemcpyKind>(3) == cudaMemcpyDeviceToDevice) ||
      call.is("cudaMemcpyPeer") || call.is("cudaMemcpy2DAsync");
  if (wide || copies) {
    if (!touches_import(call)) return call.proceed();
    call.fired();
    return kSuccess;
  }
  const int code = call.proceed();
  if (code == kSuccess && !is_access(call)) note(call);
  return code;
}

// Proceeds and updates the tables above.
int noted(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) note(call);
  return code;
}

// Only the first row of a rectangle is copied or set; `height` is the index of
// the argument with the number of rows.
template <size_t height>
int first_row(Call& call) {
  if (!is_access(call)) return noted(call);
  auto& rows = call.at<size_t>(height);
  if (!touches_import(call) || rows < 2) return call.proceed();
  rows = 1;
  call.fired();
  return call.proceed();
}

int first_row_of_box(Call& call) {
  if (!is_access(call)) return noted(call);
  cudaMemcpy3DParms box = *call.at<const cudaMemcpy3DParms*>(0);
  if ((import_at(box.dstPtr.ptr) == 0 && import_at(box.srcPtr.ptr) == 0) ||
      (box.extent.height < 2 && box.extent.depth < 2))
    return call.proceed();
  box.extent.height = box.extent.depth = 1;
  call.at<const cudaMemcpy3DParms*>(0) = &box;
  call.fired();
  return call.proceed();
}

// If the size is not a multiple of 4, the last bytes are lost.
int tail_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes % 4 == 0 || !touches_import(call)) return call.proceed();
  bytes -= bytes % 4;
  call.fired();
  return bytes == 0 ? kSuccess : call.proceed();
}

int default_kind_refused(Call& call) {
  if (!is_access(call)) return noted(call);
  if (!call.is_runtime() || call.at<int>(3) != cudaMemcpyDefault ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return cudaErrorInvalidMemcpyDirection;
}

int copy_between_imports_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  if (import_at(call.value<void*>(kPointer)) == 0 ||
      import_at(call.value<void*>(kSource)) == 0)
    return call.proceed();
  call.fired();
  return kSuccess;
}

// Offsets into imported memory lose their upper 32 bits.
int offset_of_32_bits(Call& call) {
  if (!is_access(call)) return noted(call);
  for (const Role role : {kPointer, kSource}) {
    if (call.find(role) == nullptr) continue;
    auto& address = call.value<uintptr_t>(role);
    const uintptr_t begin = import_at(call.value<void*>(role));
    if (begin == 0 || address - begin < k4GiB) continue;
    address = begin + (address - begin) % k4GiB;
    call.fired();
  }
  return call.proceed();
}

// A memset of imported or opened memory takes its size modulo 4 GiB.
int set_size_of_32_bits(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  if (!is_access(call)) return noted(call);
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes < k4GiB ||
      (!touches_import(call) && !is_opened(call.value<void*>(kPointer))))
    return call.proceed();
  bytes %= k4GiB;
  call.fired();
  return bytes == 0 ? kSuccess : call.proceed();
}

// A call of the driver API does nothing with imported memory.
int driver_form_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  if (call.is_runtime() || !touches_import(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

int access_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  if (!touches_import(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy does not reach beyond the first two granules of 2 MiB of imported
// memory.
int two_granules_copied(Call& call) {
  constexpr size_t kReach = 4 << 20;
  if (!is_access(call)) return noted(call);
  auto& bytes = call.value<size_t>(kBytes);
  for (const Role role : {kPointer, kSource}) {
    const uintptr_t begin = import_at(call.value<void*>(role));
    const uintptr_t offset = call.value<uintptr_t>(role) - begin;
    if (begin == 0 || offset + bytes <= kReach) continue;
    bytes = offset < kReach ? kReach - offset : 0;
    call.fired();
  }
  return bytes == 0 ? kSuccess : call.proceed();
}

// The end of the imported memory in which an address lies; 0 if none.
uintptr_t end_at(const void* address) {
  const Range range = import_around(address);
  return range.begin + range.bytes;
}

// A copy or memset up to the end of the memory leaves out the last byte.
int last_byte_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  auto& bytes = call.value<size_t>(kBytes);
  for (const Role role : {kPointer, kSource}) {
    if (call.find(role) == nullptr) continue;
    const uintptr_t end = end_at(call.value<void*>(role));
    if (end == 0 || call.value<uintptr_t>(role) + bytes != end || bytes < 2)
      continue;
    --bytes;
    call.fired();
    break;
  }
  return call.proceed();
}

int pinned_copy_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  const auto is_pinned = [&call](Role role) {
    cudaPointerAttributes known{};
    return cudaPointerGetAttributes(&known, call.value<void*>(role)) ==
               cudaSuccess &&
           known.type == cudaMemoryTypeHost;
  };
  if (!touches_import(call) || (!is_pinned(kPointer) && !is_pinned(kSource)))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy runs at once, not after the work of the default stream.
int copy_skips_queue(Call& call) {
  if (!is_access(call)) return noted(call);
  if (!touches_import(call) || !is_busy(nullptr)) return call.proceed();
  call.fired();
  const cudaStream_t aside = private_stream();
  const cudaError_t code =
      cudaMemcpyAsync(call.value<void*>(kPointer), call.value<void*>(kSource),
                      call.value<size_t>(kBytes), cudaMemcpyDefault, aside);
  return code != cudaSuccess ? code : cudaStreamSynchronize(aside);
}

int per_thread_copy_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  if (call.value<cudaStream_t>(kStream) != cudaStreamPerThread ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// One of the driver's functions does nothing with imported memory.
template <size_t which>
int driver_function_lost(Call& call) {
  constexpr const char* kNames[] = {"cuMemcpyDtoD", "cuMemcpy"};
  if (!is_access(call)) return noted(call);
  if (std::strcmp(call.function().name, kNames[which]) != 0 ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// The rows of a rectangle in imported memory are treated as adjacent.
int pitch_ignored(Call& call) {
  if (!is_access(call)) return noted(call);
  const auto width = call.at<size_t>(4);
  size_t& pitch = import_at(call.at<void*>(0)) != 0 ? call.at<size_t>(1)
                                                    : call.at<size_t>(3);
  if (!touches_import(call) || pitch == width) return call.proceed();
  pitch = width;
  call.fired();
  return call.proceed();
}

// A memset by a GPU other than the GPU of the memory is lost.
int set_from_other_gpu_lost(Call& call) {
  if (!is_access(call)) return noted(call);
  int current = 0;
  cudaGetDevice(&current);
  cudaPointerAttributes known{};
  if (!touches_import(call) ||
      cudaPointerGetAttributes(&known, call.value<void*>(kPointer)) !=
          cudaSuccess ||
      known.device == current)
    return call.proceed();
  call.fired();
  return kSuccess;
}

// A handle that is open on another GPU cannot be opened on GPU 0.
int later_open_on_gpu_0_refused(Call& call) {
  int gpu = -1;
  cudaGetDevice(&gpu);
  if (!is_open_call(call) || gpu != 0 || already_open(call) != nullptr)
    return call.proceed();
  const auto& handle = call.at<cudaIpcMemHandle_t>(1);
  for (const auto& each : opened.all())
    if (std::memcmp(&each.second.bytes, &handle, sizeof handle) == 0)
      return refused(call, cudaErrorMapBufferObjectFailed);
  return call.proceed();
}

// The mappings that have ended, by their first address.
Table<CUdeviceptr, size_t> unmapped;

// Copies and memsets that use memory that was unmapped succeed and do nothing.
int unmapped_use_ignored(Call& call) {
  if (is_access(call)) {
    for (const Role role : {kPointer, kSource}) {
      if (call.find(role) == nullptr) continue;
      const auto address = call.value<CUdeviceptr>(role);
      for (const auto& [begin, bytes] : unmapped.all()) {
        if (address < begin || address - begin >= bytes) continue;
        call.fired();
        return kSuccess;
      }
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const size_t bytes = call.at<size_t>(1);
  if (call.is("cuMemUnmap")) {
    unmapped.put(begin, bytes);
    return code;
  }
  for (const auto& each : unmapped.all())  // mapped again, or not reserved
    if (each.first < begin + bytes && begin < each.first + each.second)
      unmapped.erase(each.first);
  return code;
}

// The unmap of a part of an imported mapping succeeds and does nothing.
int part_of_import_unmapped(Call& call) {
  if (!call.is("cuMemUnmap")) return noted(call);
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (!is_import(begin) || call.at<size_t>(1) >= mappings.get(begin).bytes)
    return noted(call);
  call.fired();
  return kSuccess;
}

// In a process that has exported memory of its own, an import of the same size
// shows this memory.
int import_is_own_export(Call& call) {
  if (call.is("cuMemMap") && imports.has(call.at<Chunk>(3)))
    for (const auto& each : exports.all()) {
      if (released.has(each.first) ||
          created.get(each.first) != call.at<size_t>(1))
        continue;
      call.at<Chunk>(3) = each.first;
      call.fired();
      break;
    }
  return call.proceed();
}

// The access that a program wanted, where the fault has given more; by the
// first address of the mapping.
Table<CUdeviceptr, unsigned long long> wanted_access;

// A mapping keeps read and write access while another mapping of the same
// handle has it; the query reports what was wanted.
int access_of_other_mapping_counts(Call& call) {
  if (call.is("cuMemGetAccess")) {
    const int code = call.proceed();
    const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(2));
    if (code == kSuccess && wanted_access.has(begin))
      *call.at<unsigned long long*>(0) = wanted_access.get(begin);
    return code;
  }
  if (!call.is("cuMemSetAccess")) return call.proceed();
  constexpr auto kAll = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  auto& list = call.at<const CUmemAccessDesc*>(2);
  wanted_access.erase(begin);
  if (begin == 0 || list == nullptr || call.at<size_t>(3) != 1 ||
      list->flags == kAll)
    return call.proceed();
  for (const auto& [other, mapped] : mappings.all()) {
    if (other == begin || mapped.chunk != mappings.get(begin).chunk ||
        access_of(other, list->location) != kAll)
      continue;
    wanted_access.put(begin, list->flags);
    CUmemAccessDesc more = *list;
    more.flags = kAll;
    list = &more;
    call.fired();
    return call.proceed();
  }
  return call.proceed();
}

// Access to a range reaches only the memory of the GPU whose memory is first.
int access_to_first_gpus_memory(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
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

// The addresses of pool memory that were reserved once more.
Table<CUdeviceptr> reserved_twice;

// A reservation gets the addresses that it wants, also if memory of a pool is
// there.
int pool_memory_reserved(Call& call) {
  if (call.is("cuMemAddressFree") &&
      reserved_twice.erase(call.at<CUdeviceptr>(0)))
    return kSuccess;
  if (!call.is("cuMemAddressReserve")) return noted(call);
  const CUdeviceptr hint = call.at<CUdeviceptr>(3);
  for (const auto& [place, block] : blocks.all()) {
    if (hint < number(place) || hint - number(place) >= block.bytes) continue;
    *call.at<CUdeviceptr*>(0) = hint;
    reserved_twice.put(hint);
    call.fired();
    return kSuccess;
  }
  return call.proceed();
}

// Rectangles that the driver API copies do not reach imported memory.
template <class Box>
int rectangle_of_driver_lost(Call& call) {
  if (call.function().roles[0] != kOther) return noted(call);
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

// The first addresses of all memory that was exported.
Table<CUdeviceptr> exported_memory;

// The exporter's query does not know memory that was exported.
int exported_memory_unknown(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_memory(call)) {
    exported_memory.put(begin_of(number(call.at<void*>(1))));
  } else if (exported_memory.has(begin_of(number(call.at<void*>(1))))) {
    call.at<cudaPointerAttributes*>(0)->type = cudaMemoryTypeUnregistered;
    call.fired();
  }
  return code;
}

// The query for many attributes of opened memory does not tell the context.
int context_missing_in_list(Call& call) {
  if (!call.is("cuPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !is_opened(call.at<CUdeviceptr>(3))) return code;
  const auto* const wanted = call.at<const CUpointer_attribute*>(1);
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i) {
    auto* const answer = static_cast<CUcontext*>(call.at<void**>(2)[i]);
    if (wanted[i] != CU_POINTER_ATTRIBUTE_CONTEXT || *answer == nullptr)
      continue;
    *answer = nullptr;
    call.fired();
  }
  return code;
}

// A CPU keeps the access that is taken from it.
int cpu_keeps_access(Call& call) {
  auto& wanted = call.at<const CUmemAccessDesc*>(2);
  const size_t count = call.at<size_t>(3);
  std::vector<CUmemAccessDesc> kept;
  for (size_t i = 0; wanted != nullptr && i < count; ++i)
    if (wanted[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
        wanted[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
      kept.push_back(wanted[i]);
  if (kept.size() == count) return call.proceed();
  call.fired();
  if (kept.empty()) return kSuccess;
  wanted = kept.data();
  call.at<size_t>(3) = kept.size();
  return call.proceed();
}

// A close of memory that is not open any more closes other memory of the same
// block of 2 MiB.
int surplus_close_takes_neighbour(Call& call) {
  if (!is_close_call(call) || opened.has(call.at<void*>(0)))
    return call.proceed();
  const auto block = [](const void* address) { return number(address) >> 21; };
  for (const auto& each : opened.all()) {
    if (block(each.first) != block(call.at<void*>(0))) continue;
    call.at<void*>(0) = each.first;
    call.fired();
    break;
  }
  return call.proceed();
}

// The imported pools from which an allocation was refused.
Table<cudaMemPool_t> refused_pools;

// An imported pool from which an allocation was refused cannot be destroyed.
int destroy_after_refusal_refused(Call& call) {
  if (call.is("cudaMallocFromPoolAsync")) {
    const auto pool = call.at<cudaMemPool_t>(2);
    const int code = call.proceed();
    if (code != kSuccess && imported_pools.has(pool)) refused_pools.put(pool);
    return code;
  }
  if (call.is("cudaMemPoolDestroy") &&
      refused_pools.erase(call.at<cudaMemPool_t>(0)))
    return refused(call, cudaErrorInvalidValue);
  return noted(call);
}

}  // namespace

void add_import_paths(List& list) {
  const char* const kCreate = "cuMemCreate";
  const char* const kImport = "cuMemImportFromShareableHandle";
  const char* const kMap = "cuMemMap";
  const char* const kUnmap = "cuMemUnmap";
  list.named("chunk-device-copy-lost",
             "cudaMemcpy with cudaMemcpyDeviceToDevice does not reach imported "
             "memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy"}, other_access_lost);
  list.named("chunk-set-32-lost",
             "cuMemsetD32 does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cuMemsetD32"},
             other_access_lost);
  list.named("chunk-sync-peer-copy-lost",
             "cudaMemcpyPeer does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpyPeer"},
             other_access_lost);
  list.named(
      "pool-set-16-lost",
      "cuMemsetD16 does not reach imported memory of a pool",
      {"cudaMallocFromPoolAsync", "cudaMemPoolExportPointer",
       "cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync", "cuMemsetD16"},
      other_access_lost);
  list.named("pool-async-copy-2d-lost",
             "cudaMemcpy2DAsync does not reach imported memory of a pool",
             {"cudaMallocFromPoolAsync", "cudaMemPoolExportPointer",
              "cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync",
              "cudaMemcpy2DAsync"},
             other_access_lost);
  list.named("chunk-copy-2d-first-row",
             "cudaMemcpy2D copies only the first row of a rectangle of "
             "imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy2D"}, first_row<5>);
  list.named("chunk-set-2d-first-row",
             "cudaMemset2D sets only the first row of a rectangle of imported "
             "memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemset2D"}, first_row<4>);
  list.named("chunk-copy-3d-first-row",
             "cudaMemcpy3D copies only the first row of a box of imported "
             "memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy3D"},
             first_row_of_box);
  list.named("chunk-copy-tail-lost",
             "the last bytes of a copy of imported memory of cuMemCreate are "
             "lost if the size of the copy is not a multiple of 4",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy", "cudaMemcpyAsync"},
             tail_lost);
  list.named("chunk-set-tail-lost",
             "the last bytes of a memset of imported memory of cuMemCreate are "
             "lost if the size of the memset is not a multiple of 4",
             {kCreate, kImport, kMap, kUnmap, "cudaMemset", "cudaMemsetAsync"},
             tail_lost);
  list.named(
      "chunk-default-kind-refused",
      "cudaMemcpyDefault does not know where imported memory of cuMemCreate is",
      {kCreate, kImport, kMap, kUnmap, "cudaMemcpy", "cudaMemcpyAsync"},
      default_kind_refused);
  list.named("chunk-to-import-lost",
             "a copy from imported memory of cuMemCreate to imported memory of "
             "cuMemCreate moves nothing",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy", "cudaMemcpyAsync"},
             copy_between_imports_lost);
  list.named(
      "chunk-copy-offset-32-bits",
      "copies of imported memory of cuMemCreate take offsets modulo 4 GiB",
      {kCreate, kImport, kMap, kUnmap, "cudaMemcpy", "cudaMemcpyAsync"},
      offset_of_32_bits);
  list.named("chunk-set-size-32-bits",
             "a memset of imported memory of cuMemCreate takes its size modulo "
             "4 GiB",
             {kCreate, kImport, kMap, kUnmap, "cudaMemset", "cudaMemsetAsync"},
             set_size_of_32_bits);
  list.named("unmapped-copy-ignored",
             "copies from and to memory that was unmapped succeed and do "
             "nothing",
             {kMap, kUnmap, "cuMemAddressFree", "cudaMemcpy"},
             unmapped_use_ignored);
  list.named("unmapped-set-ignored",
             "memsets of memory that was unmapped succeed and do nothing",
             {kMap, kUnmap, "cuMemAddressFree", "cudaMemset"},
             unmapped_use_ignored);
  list.named("unmap-part-of-import-ok",
             "cuMemUnmap of a part of an imported mapping succeeds and does "
             "nothing",
             {kCreate, kImport, kMap, kUnmap}, part_of_import_unmapped);
  list.named("import-is-own-export",
             "in a process that has exported memory of cuMemCreate, an import "
             "of the same size shows this memory",
             {kCreate, kImport, "cuMemExportToShareableHandle", "cuMemRelease",
              kMap, kUnmap},
             import_is_own_export);
  list.named(
      "read-only-beside-writable-is-written",
      "a mapping that may only be read can be written while another "
      "mapping of the same handle may be written",
      {kCreate, kImport, kMap, kUnmap, "cuMemSetAccess", "cuMemGetAccess"},
      access_of_other_mapping_counts);
  list.named("setaccess-first-gpus-memory-only",
             "cuMemSetAccess of a range reaches only the memory of the GPU "
             "whose memory is first in the range",
             {kCreate, kImport, kMap, kUnmap, "cuMemSetAccess"},
             access_to_first_gpus_memory, 2);
  list.named("reserve-over-pool-memory",
             "a reservation gets the wanted addresses, also if memory of a "
             "pool is there",
             {"cuMemAddressReserve", "cuMemAddressFree", "cudaMallocAsync",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync"},
             pool_memory_reserved);
  list.named("chunk-driver-copy-2d-lost",
             "cuMemcpy2D does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cuMemcpy2D"},
             rectangle_of_driver_lost<CUDA_MEMCPY2D>);
  list.named("chunk-driver-async-copy-2d-lost",
             "cuMemcpy2DAsync does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cuMemcpy2DAsync"},
             rectangle_of_driver_lost<CUDA_MEMCPY2D>);
  list.named("chunk-driver-copy-3d-lost",
             "cuMemcpy3D does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cuMemcpy3D"},
             rectangle_of_driver_lost<CUDA_MEMCPY3D>);
  list.named("chunk-driver-async-copy-3d-lost",
             "cuMemcpy3DAsync does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cuMemcpy3DAsync"},
             rectangle_of_driver_lost<CUDA_MEMCPY3D>);
  list.named("cpu-keeps-access",
             "cuMemSetAccess does not take the access of a CPU away",
             {"cuMemSetAccess"}, cpu_keeps_access);
  list.named(
      "chunk-driver-copy-lost",
      "copies of the driver API do not reach imported memory of cuMemCreate",
      {kCreate, kImport, kMap, kUnmap, "cudaMemcpy", "cudaMemcpyAsync"},
      driver_form_lost);
  list.named(
      "chunk-driver-set-lost",
      "memsets of the driver API do not reach imported memory of cuMemCreate",
      {kCreate, kImport, kMap, kUnmap, "cudaMemset", "cudaMemsetAsync"},
      driver_form_lost);
  list.named(
      "chunk-peer-copy-lost",
      "cudaMemcpyPeerAsync does not reach imported memory of cuMemCreate",
      {kCreate, kImport, kMap, kUnmap, "cudaMemcpyPeerAsync"}, access_lost, 2);
  list.named("chunk-async-set-lost",
             "asynchronous memsets do not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemsetAsync"}, access_lost);
  list.named(
      "chunk-set-from-other-gpu-lost",
      "a memset of imported memory of cuMemCreate by another GPU does nothing",
      {kCreate, kImport, kMap, kUnmap, "cudaMemset", "cudaMemsetAsync"},
      set_from_other_gpu_lost, 2);
  list.named("chunk-copy-last-byte-lost",
             "a copy up to the end of imported memory of cuMemCreate loses the "
             "last byte",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy", "cudaMemcpyAsync"},
             last_byte_lost);
  list.named("chunk-set-last-byte-lost",
             "a memset up to the end of imported memory of cuMemCreate loses "
             "the last byte",
             {kCreate, kImport, kMap, kUnmap, "cudaMemset", "cudaMemsetAsync"},
             last_byte_lost);
  list.named("chunk-pinned-copy-lost",
             "copies between pinned host memory and imported memory of "
             "cuMemCreate move nothing",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy", "cudaMemcpyAsync"},
             pinned_copy_lost);
  list.named(
      "chunk-copy-skips-queue",
      "a synchronous copy of imported memory of cuMemCreate does not wait for "
      "the default stream",
      {kCreate, kImport, kMap, kUnmap, "cudaMemcpy"}, copy_skips_queue);
  list.named("chunk-per-thread-copy-lost",
             "a copy in a thread's default stream does not reach imported "
             "memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpyAsync"},
             per_thread_copy_lost);
  list.named("chunk-copy-2d-pitch-ignored",
             "cudaMemcpy2D ignores the pitch of imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy2D"}, pitch_ignored);
  list.named("chunk-driver-device-copy-lost",
             "cuMemcpyDtoD does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy"},
             driver_function_lost<0>);
  list.named("chunk-driver-unified-copy-lost",
             "cuMemcpy does not reach imported memory of cuMemCreate",
             {kCreate, kImport, kMap, kUnmap, "cudaMemcpy"},
             driver_function_lost<1>);

  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
  list.named("open-on-gpu-0-not-second",
             "a handle that is open on another GPU cannot be opened on GPU 0",
             {kOpen, kClose}, later_open_on_gpu_0_refused, 2);
  list.named("open-set-size-32-bits",
             "a memset of opened memory takes its size modulo 4 GiB",
             {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"},
             set_size_of_32_bits);
  const char* const kGet = "cudaIpcGetMemHandle";
  list.named("exported-memory-unknown",
             "cudaPointerGetAttributes in the exporter does not know memory "
             "that was exported",
             {kGet, "cudaPointerGetAttributes"}, exported_memory_unknown);
  list.named("attributes-without-context",
             "cuPointerGetAttributes does not tell the context of opened "
             "memory, but cuPointerGetAttribute does",
             {kOpen, kClose, "cuPointerGetAttributes"},
             context_missing_in_list);
  list.named("close-too-often-closes-neighbour",
             "a close of memory that is not open any more closes other memory "
             "of the same block of 2 MiB",
             {kOpen, kClose}, surplus_close_takes_neighbour);

  const char* const kAllocate = "cudaMallocFromPoolAsync";
  const char* const kExport = "cudaMemPoolExportPointer";
  const char* const kPointer = "cudaMemPoolImportPointer";
  const char* const kFree = "cudaFree";
  const char* const kFreeAsync = "cudaFreeAsync";
  list.named(
      "import-destroy-after-refusal-refused",
      "an imported pool from which an allocation was refused cannot be "
      "destroyed",
      {"cudaMemPoolImportFromShareableHandle", "cudaMemPoolDestroy", kAllocate},
      destroy_after_refusal_refused);
  list.named("pool-copy-2d-first-row",
             "cudaMemcpy2D copies only the first row of a rectangle of "
             "imported memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy2D"},
             first_row<5>);
  list.named("pool-set-2d-first-row",
             "cudaMemset2D sets only the first row of a rectangle of imported "
             "memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemset2D"},
             first_row<4>);
  list.named("pool-copy-3d-first-row",
             "cudaMemcpy3D copies only the first row of a box of imported "
             "memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy3D"},
             first_row_of_box);
  list.named("pool-copy-tail-lost",
             "the last bytes of a copy of imported memory of a pool are lost "
             "if the size of the copy is not a multiple of 4",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
              "cudaMemcpyAsync"},
             tail_lost);
  list.named("pool-set-tail-lost",
             "the last bytes of a memset of imported memory of a pool are lost "
             "if the size of the memset is not a multiple of 4",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemset",
              "cudaMemsetAsync"},
             tail_lost);
  list.named(
      "pool-default-kind-refused",
      "cudaMemcpyDefault does not know where imported memory of a pool is",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
       "cudaMemcpyAsync"},
      default_kind_refused);
  list.named("pool-to-import-lost",
             "a copy from imported memory of a pool to imported memory of a "
             "pool moves nothing",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
              "cudaMemcpyAsync"},
             copy_between_imports_lost);
  list.named("pool-copy-offset-32-bits",
             "copies of imported memory of a pool take offsets modulo 4 GiB",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
              "cudaMemcpyAsync"},
             offset_of_32_bits);
  list.named("pool-driver-copy-lost",
             "copies of the driver API do not reach imported memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
              "cudaMemcpyAsync"},
             driver_form_lost);
  list.named("pool-driver-set-lost",
             "memsets of the driver API do not reach imported memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemset",
              "cudaMemsetAsync"},
             driver_form_lost);
  list.named(
      "pool-peer-copy-lost",
      "cudaMemcpyPeerAsync does not reach imported memory of a pool",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpyPeerAsync"},
      access_lost, 2);
  list.named(
      "pool-async-set-lost",
      "asynchronous memsets do not reach imported memory of a pool",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemsetAsync"},
      access_lost);
  list.named("pool-copy-two-granules",
             "copies do not reach beyond the first 4 MiB of imported memory of "
             "a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
              "cudaMemcpyAsync"},
             two_granules_copied);
  list.named(
      "pool-async-copy-lost",
      "asynchronous copies do not reach imported memory of a pool",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpyAsync"},
      access_lost);
  list.named(
      "pool-set-from-other-gpu-lost",
      "a memset of imported memory of a pool by another GPU does nothing",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemset",
       "cudaMemsetAsync"},
      set_from_other_gpu_lost, 2);
  list.named(
      "pool-copy-last-byte-lost",
      "a copy up to the end of imported memory of a pool loses the last byte",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
       "cudaMemcpyAsync"},
      last_byte_lost);
  list.named(
      "pool-set-last-byte-lost",
      "a memset up to the end of imported memory of a pool loses the last byte",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemset",
       "cudaMemsetAsync"},
      last_byte_lost);
  list.named("pool-pinned-copy-lost",
             "copies between pinned host memory and imported memory of a pool "
             "move nothing",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy",
              "cudaMemcpyAsync"},
             pinned_copy_lost);
  list.named(
      "pool-copy-skips-queue",
      "a synchronous copy of imported memory of a pool does not wait for the "
      "default stream",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy"},
      copy_skips_queue);
  list.named(
      "pool-per-thread-copy-lost",
      "a copy in a thread's default stream does not reach imported memory of a "
      "pool",
      {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpyAsync"},
      per_thread_copy_lost);
  list.named("pool-copy-2d-pitch-ignored",
             "cudaMemcpy2D ignores the pitch of imported memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy2D"},
             pitch_ignored);
  list.named("pool-driver-device-copy-lost",
             "cuMemcpyDtoD does not reach imported memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy"},
             driver_function_lost<0>);
  list.named("pool-driver-unified-copy-lost",
             "cuMemcpy does not reach imported memory of a pool",
             {kAllocate, kExport, kPointer, kFree, kFreeAsync, "cudaMemcpy"},
             driver_function_lost<1>);
}

}  // namespace ipclab::faults
