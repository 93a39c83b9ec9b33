// Words that faults of several folders use: borrowed.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <map>

#include "harness/faults/words/descriptor.h"
#include "harness/faults/words/pools.h"
#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

struct Range {
  uintptr_t begin = 0;
  size_t bytes = 0;
};

/// The imported memory in which an address lies; a range of 0 bytes if none.
inline Range import_around(const void* address) {
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

inline uintptr_t import_at(const void* address) {
  return import_around(address).begin;
}

inline bool touches_import(Call& call) {
  for (const Role role : {kPointer, kSource})
    if (call.find(role) != nullptr && import_at(call.value<void*>(role)) != 0)
      return true;
  return false;
}

/// One function does nothing with imported memory. The fault's list of
/// functions names this function.
inline int other_access_lost(Call& call) {
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
  return call.proceed();
}

/// Only the first row of a rectangle is copied or set; `height` is the index of
/// the argument with the number of rows.
template <size_t height>
int first_row(Call& call) {
  auto& rows = call.at<size_t>(height);
  if (!touches_import(call) || rows < 2) return call.proceed();
  rows = 1;
  call.fired();
  return call.proceed();
}

inline int first_row_of_box(Call& call) {
  cudaMemcpy3DParms box = *call.at<const cudaMemcpy3DParms*>(0);
  if ((import_at(box.dstPtr.ptr) == 0 && import_at(box.srcPtr.ptr) == 0) ||
      (box.extent.height < 2 && box.extent.depth < 2))
    return call.proceed();
  box.extent.height = box.extent.depth = 1;
  call.at<const cudaMemcpy3DParms*>(0) = &box;
  call.fired();
  return call.proceed();
}

/// If the size is not a multiple of 4, the last bytes are lost.
inline int tail_lost(Call& call) {
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes % 4 == 0 || !touches_import(call)) return call.proceed();
  bytes -= bytes % 4;
  call.fired();
  return bytes == 0 ? kSuccess : call.proceed();
}

inline int default_kind_refused(Call& call) {
  if (!call.is_runtime() || call.at<int>(3) != cudaMemcpyDefault ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return cudaErrorInvalidMemcpyDirection;
}

inline int copy_between_imports_lost(Call& call) {
  if (import_at(call.value<void*>(kPointer)) == 0 ||
      import_at(call.value<void*>(kSource)) == 0)
    return call.proceed();
  call.fired();
  return kSuccess;
}

/// Offsets into imported memory lose their upper 32 bits.
inline int offset_of_32_bits(Call& call) {
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

/// A memset of imported or opened memory takes its size modulo 4 GiB.
inline int set_size_of_32_bits(Call& call) {
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes < k4GiB ||
      (!touches_import(call) && !is_opened(call.value<void*>(kPointer))))
    return call.proceed();
  bytes %= k4GiB;
  call.fired();
  return bytes == 0 ? kSuccess : call.proceed();
}

/// A call of the driver API does nothing with imported memory.
inline int driver_form_lost(Call& call) {
  if (call.is_runtime() || !touches_import(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

inline int access_lost(Call& call) {
  if (!touches_import(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

/// The end of the imported memory in which an address lies; 0 if none.
inline uintptr_t end_at(const void* address) {
  const Range range = import_around(address);
  return range.begin + range.bytes;
}

/// A copy or memset up to the end of the memory leaves out the last byte.
inline int last_byte_lost(Call& call) {
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

inline int pinned_copy_lost(Call& call) {
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

/// A copy runs at once, not after the work of the default stream.
inline int copy_skips_queue(Call& call) {
  if (!touches_import(call) || !is_busy(nullptr)) return call.proceed();
  call.fired();
  const cudaStream_t aside = private_stream();
  const cudaError_t code =
      cudaMemcpyAsync(call.value<void*>(kPointer), call.value<void*>(kSource),
                      call.value<size_t>(kBytes), cudaMemcpyDefault, aside);
  return code != cudaSuccess ? code : cudaStreamSynchronize(aside);
}

inline int per_thread_copy_lost(Call& call) {
  if (call.value<cudaStream_t>(kStream) != cudaStreamPerThread ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return kSuccess;
}

/// One of the driver's functions does nothing with imported memory.
template <size_t which>
int driver_function_lost(Call& call) {
  constexpr const char* kNames[] = {"cuMemcpyDtoD", "cuMemcpy"};
  if (std::strcmp(call.function().name, kNames[which]) != 0 ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return kSuccess;
}

/// The rows of a rectangle in imported memory are treated as adjacent.
inline int pitch_ignored(Call& call) {
  const auto width = call.at<size_t>(4);
  size_t& pitch = import_at(call.at<void*>(0)) != 0 ? call.at<size_t>(1)
                                                    : call.at<size_t>(3);
  if (!touches_import(call) || pitch == width) return call.proceed();
  pitch = width;
  call.fired();
  return call.proceed();
}

/// A memset by a GPU other than the GPU of the memory is lost.
inline int set_from_other_gpu_lost(Call& call) {
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

inline MemoryRange allocation_range(CUdeviceptr address) {
  MemoryRange range;
  // The query needs a context, and calls for pools make none.
  if (current_context() == nullptr) cudaFree(nullptr);
  DRIVER_CALL(cuMemGetAddressRange)(&range.begin, &range.bytes, address);
  return range;
}

/// The number of bytes from this address to the end of its allocation; 0 if it
/// is in no allocation.
inline size_t bytes_from(CUdeviceptr address) {
  const MemoryRange range = allocation_range(address);
  return range.begin == 0 ? 0 : range.begin + range.bytes - address;
}

/// Memory that this process has opened or imported, by its first address, with
/// the size. The comments below call it borrowed memory.
inline std::map<CUdeviceptr, size_t> all_borrowed() {
  std::map<CUdeviceptr, size_t> found;
  for (const auto& [begin, mapped] : mappings.all())
    if (imports.has(mapped.chunk)) found[begin] = mapped.bytes;
  for (const auto& [address, block] : blocks.all())
    if (block.imported) found[number(address)] = bytes_from(number(address));
  for (const auto& each : opened.all())
    found[number(each.first)] = bytes_from(number(each.first));
  return found;
}

/// The borrowed memory in which an address lies; a range of 0 bytes if there is
/// none.
inline MemoryRange borrowed_at(CUdeviceptr address) {
  for (const auto& [begin, bytes] : all_borrowed())
    if (address >= begin && address - begin < bytes) return {begin, bytes};
  return {};
}

inline bool is_borrowed(CUdeviceptr address) {
  return borrowed_at(address).bytes > 0;
}

inline CUdeviceptr source_of(Call& call) {
  return call.value<CUdeviceptr>(kSource);
}

inline bool touches_borrowed(Call& call) {
  return is_borrowed(target_of(call)) ||
         (call.find(kSource) != nullptr && is_borrowed(source_of(call)));
}

inline void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

inline int last_row_lost(Call& call) {
  auto& rows = call.at<size_t>(5);
  if (rows > 1 && touches_borrowed(call)) {
    --rows;
    call.fired();
  }
  return call.proceed();
}

/// The call also clears the bytes between the rows.
inline int fills_padding(Call& call, size_t pitch, size_t width, size_t rows) {
  const int code = call.proceed();
  if (code != kSuccess || rows < 2 || pitch <= width ||
      !is_borrowed(target_of(call)))
    return code;
  call.fired();
  return cudaMemset2D(pointer(target_of(call) + width), pitch, 0, pitch - width,
                      rows - 1);
}

inline int copy_fills_padding(Call& call) {
  return fills_padding(call, call.at<size_t>(1), call.at<size_t>(4),
                       call.at<size_t>(5));
}

inline int set_fills_padding(Call& call) {
  return fills_padding(call, call.at<size_t>(1), call.at<size_t>(3),
                       call.at<size_t>(4));
}

/// A memset of an odd number of bytes sets one more byte.
inline int one_byte_more(Call& call) {
  auto& bytes = call.value<size_t>(kBytes);
  const MemoryRange range = borrowed_at(target_of(call));
  if (bytes % 2 != 0 && target_of(call) + bytes < range.begin + range.bytes) {
    ++bytes;
    call.fired();
  }
  return call.proceed();
}

/// The copy also clears the bytes after its end, up to a size that is a
/// multiple of 4.
inline int tail_too_long(Call& call) {
  const int code = call.proceed();
  const size_t bytes = call.value<size_t>(kBytes);
  const MemoryRange range = borrowed_at(target_of(call));
  const CUdeviceptr end = target_of(call) + bytes;
  if (code != kSuccess || bytes % 4 == 0 || end >= range.begin + range.bytes)
    return code;
  const size_t more =
      std::min<size_t>(4 - bytes % 4, range.begin + range.bytes - end);
  call.fired();
  return call.find(kStream) == nullptr
             ? cudaMemset(pointer(end), 0, more)
             : cudaMemsetAsync(pointer(end), 0, more,
                               call.value<cudaStream_t>(kStream));
}

inline int copy_within_lost(Call& call) {
  const MemoryRange to = borrowed_at(target_of(call));
  return to.bytes > 0 && borrowed_at(source_of(call)).begin == to.begin
             ? lost(call)
             : call.proceed();
}

/// The copy begins where the borrowed source begins.
inline int source_offset_lost(Call& call) {
  auto& source = call.value<CUdeviceptr>(kSource);
  const MemoryRange range = borrowed_at(source);
  if (range.bytes > 0 && source != range.begin) {
    source = range.begin;
    call.fired();
  }
  return call.proceed();
}

/// The rows of a rectangle of borrowed memory are treated as adjacent.
inline int pitch_is_width(Call& call) {
  const size_t width = call.at<size_t>(4);
  for (const size_t side : {size_t{0}, size_t{2}}) {
    auto& pitch = call.at<size_t>(side + 1);
    if (pitch == width || !is_borrowed(call.at<CUdeviceptr>(side))) continue;
    pitch = width;
    call.fired();
  }
  return call.proceed();
}

inline int lost_in_per_thread_stream(Call& call) {
  return call.value<cudaStream_t>(kStream) == cudaStreamPerThread &&
                 is_borrowed(target_of(call))
             ? lost(call)
             : call.proceed();
}

inline int lost_in_default_stream(Call& call) {
  return is_default(call.value<cudaStream_t>(kStream)) && touches_borrowed(call)
             ? lost(call)
             : call.proceed();
}

/// A copy to or from borrowed memory uses the borrowed memory of the same size
/// that has the lowest address.
inline int equal_size_confused(Call& call) {
  for (const Role role : {kPointer, kSource}) {
    auto& address = call.value<CUdeviceptr>(role);
    const MemoryRange range = borrowed_at(address);
    if (range.bytes == 0) continue;
    for (const auto& [begin, bytes] : all_borrowed()) {
      if (begin == range.begin) break;
      if (bytes != range.bytes) continue;
      address = begin + (address - range.begin);
      call.fired();
      break;
    }
  }
  return call.proceed();
}

inline int words_as_bytes(Call& call) {
  auto& count = call.value<size_t>(kBytes);
  if (count > 1 && is_borrowed(target_of(call))) {
    count = (count + 3) / 4;
    call.fired();
  }
  return call.proceed();
}

inline int low_byte_twice(Call& call) {
  auto& value = call.at<unsigned short>(1);
  const auto wrong = static_cast<unsigned short>((value & 0xff) * 0x101);
  if (value != wrong && is_borrowed(target_of(call))) {
    value = wrong;
    call.fired();
  }
  return call.proceed();
}

inline int first_64_kib(Call& call) {
  constexpr size_t kMost = 64 << 10;
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes > kMost && touches_borrowed(call)) {
    bytes = kMost;
    call.fired();
  }
  return call.proceed();
}

inline bool waits_for_word(Call& call) {
  return call.is("cuStreamWaitValue32") || call.is("cuStreamWaitValue64");
}

/// The work of the call runs in another stream and waits only for this event.
/// Later work of the call's own stream waits for the work of the call.
inline int begins_at(cudaEvent_t mark, Call& call) {
  auto& stream = call.value<cudaStream_t>(kStream);
  const cudaStream_t own = stream;
  cudaStreamWaitEvent(private_stream(), mark, 0);
  stream = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaEvent_t done = nullptr;
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  cudaEventRecord(done, private_stream());
  cudaStreamWaitEvent(own, done, 0);
  return code;
}

/// The first such work after a wait for an imported event, or for a word,
/// begins before the wait. With `kernels_end_it`, a kernel after the wait
/// waits, and so does the work after this kernel.
template <bool kernels_end_it>
int not_held(Call& call) {
  static Table<cudaStream_t> waited;
  if (keeps_events(call)) return call.proceed();
  const bool waits = call.is("cudaStreamWaitEvent");
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaStreamDestroy")) {
    waited.erase(stream);
    return call.proceed();
  }
  if (waits || waits_for_word(call)) {
    const cudaEvent_t event = waits ? shared_event(call) : nullptr;
    if ((waits && (event == nullptr || !is_imported(event))) ||
        is_captured(stream))
      return call.proceed();
    cudaEventRecord(mark_of(stream), stream);
    waited.put(stream);
    return call.proceed();
  }
  if (!waited.erase(stream) || !is_busy(stream) ||
      (kernels_end_it && call.is("cudaLaunchKernel")))
    return call.proceed();
  return begins_at(mark_of(stream), call);
}

/// After a query has found an event pending, the next wait for this event does
/// not wait.
inline int early_after_query(Call& call) {
  static Table<cudaEvent_t> asked;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) asked.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  if (call.is("cudaEventQuery")) {
    const int code = call.proceed();
    if (code == cudaErrorNotReady) asked.put(event);
    return code;
  }
  return asked.erase(event) && is_pending(event) ? lost(call) : call.proceed();
}

using Fits = bool (*)(cudaStream_t stream, cudaEvent_t event);

/// A record for which `fits` is true does not wait for the work of its stream.
inline int records_early(Call& call, Fits fits) {
  if (keeps_events(call)) return call.proceed();
  auto& stream = call.value<cudaStream_t>(kStream);
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !fits(stream, event) || !is_busy(stream))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

}  // namespace ipclab::faults
