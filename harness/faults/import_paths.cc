// Bugs of less common ways to access imported memory of cuMemCreate, of pools
// and of peers: rectangles, boxes, odd sizes, far offsets, copies between
// imports and between GPUs, calls of the driver API.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "chunk_calls.h"
#include "legacy_calls.h"
#include "pool_calls.h"

namespace ipclab::faults {
namespace {

constexpr size_t k4GiB = size_t{4} << 30;

// Updates the tables of both kinds of memory after a call that succeeded.
void note(Call& call) {
  note_chunks(call);
  note_pools(call);
}

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
    return noted_open(call);
  const auto& handle = call.at<cudaIpcMemHandle_t>(1);
  for (const auto& each : opened.all())
    if (std::memcmp(&each.second.bytes, &handle, sizeof handle) == 0)
      return refused(call, cudaErrorMapBufferObjectFailed);
  return noted_open(call);
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

  const char* const kAllocate = "cudaMallocFromPoolAsync";
  const char* const kExport = "cudaMemPoolExportPointer";
  const char* const kPointer = "cudaMemPoolImportPointer";
  const char* const kFree = "cudaFree";
  const char* const kFreeAsync = "cudaFreeAsync";
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
