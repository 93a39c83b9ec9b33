// Bugs of less common ways to access memory that another process lends:
// rectangles, calls of the driver API, far offsets, words that streams wait
// for.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

constexpr size_t k4GiB = size_t{4} << 30;

// The beginning of the opened memory in which an address lies; null if none.
char* opened_at(const void* address) {
  return static_cast<char*>(opened_around(address));
}

bool touches_import(Call& call) {
  const Argument* const to = call.find(kPointer);
  const Argument* const from = call.find(kSource);
  return (to != nullptr && opened_at(*static_cast<void**>(to->place))) ||
         (from != nullptr && opened_at(*static_cast<void**>(from->place)));
}

// Only the first row of a rectangle is copied or set; `height` is the index of
// the argument with the number of rows.
template <size_t height>
int first_row(Call& call) {
  if (call.find(kPointer) == nullptr || call.is("cudaIpcCloseMemHandle"))
    return call.proceed();
  size_t& rows = call.at<size_t>(height);
  if (!touches_import(call) || rows < 2) return call.proceed();
  rows = 1;
  call.fired();
  return call.proceed();
}

int first_row_of_box(Call& call) {
  if (!call.is("cudaMemcpy3D")) return call.proceed();
  cudaMemcpy3DParms box = *call.at<const cudaMemcpy3DParms*>(0);
  if ((opened_at(box.dstPtr.ptr) == nullptr &&
       opened_at(box.srcPtr.ptr) == nullptr) ||
      (box.extent.height < 2 && box.extent.depth < 2))
    return call.proceed();
  box.extent.height = box.extent.depth = 1;
  call.at<const cudaMemcpy3DParms*>(0) = &box;
  call.fired();
  return call.proceed();
}

// A call of the driver API does nothing with opened memory.
int driver_form_lost(Call& call) {
  if (call.find(kPointer) == nullptr || call.is("cudaIpcCloseMemHandle"))
    return call.proceed();
  if (call.is_runtime() || !touches_import(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

// Offsets into opened memory lose their upper 32 bits.
int offset_of_32_bits(Call& call) {
  if (!call.is("cudaMemcpy")) return call.proceed();
  for (const Role role : {kPointer, kSource}) {
    auto& address = *static_cast<char**>(call.find(role)->place);
    char* const begin = opened_at(address);
    if (begin == nullptr || static_cast<size_t>(address - begin) < k4GiB)
      continue;
    address = begin + static_cast<size_t>(address - begin) % k4GiB;
    call.fired();
  }
  return call.proceed();
}

// If the size is not a multiple of 4, the last bytes are lost.
int tail_lost(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes % 4 == 0 || !touches_import(call)) return call.proceed();
  bytes -= bytes % 4;
  call.fired();
  return bytes == 0 ? kSuccess : call.proceed();
}

// Addresses in opened memory are rounded down to multiples of 4.
int aligned_down(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  for (const Role role : {kPointer, kSource}) {
    if (call.find(role) == nullptr) continue;
    auto& address = call.value<uintptr_t>(role);
    if (address % 4 == 0 || !opened_at(reinterpret_cast<void*>(address)))
      continue;
    address -= address % 4;
    call.fired();
  }
  return call.proceed();
}

// Copies and memsets of opened memory end after 1 MiB.
int first_mib_only(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes > 1 << 20 && touches_import(call)) {
    bytes = 1 << 20;
    call.fired();
  }
  return call.proceed();
}

// The rows of a rectangle of opened memory are treated as adjacent.
int pitch_ignored(Call& call) {
  if (!call.is("cudaMemcpy2D")) return call.proceed();
  if (call.at<size_t>(5) < 2) return call.proceed();
  const size_t width = call.at<size_t>(4);
  for (const size_t side : {size_t{0}, size_t{2}}) {
    size_t& pitch = call.at<size_t>(side + 1);
    if (!opened_at(call.at<void*>(side)) || pitch == width) continue;
    pitch = width;
    call.fired();
  }
  return call.proceed();
}

int first_layer_of_box(Call& call) {
  if (!call.is("cudaMemcpy3D")) return call.proceed();
  cudaMemcpy3DParms box = *call.at<const cudaMemcpy3DParms*>(0);
  if ((opened_at(box.dstPtr.ptr) == nullptr &&
       opened_at(box.srcPtr.ptr) == nullptr) ||
      box.extent.depth < 2)
    return call.proceed();
  box.extent.depth = 1;
  call.at<const cudaMemcpy3DParms*>(0) = &box;
  call.fired();
  return call.proceed();
}

bool is_pinned(const void* address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(
             &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
             reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}
int pinned_copy_lost(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  if (!touches_import(call) || (!is_pinned(call.value<void*>(kPointer)) &&
                                !is_pinned(call.value<void*>(kSource))))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy does not wait for the work of the default stream.
int copy_skips_queue(Call& call) {
  if (!call.is("cudaMemcpy")) return call.proceed();
  return touches_import(call) && is_busy(nullptr) ? copied_at_once(call)
                                                  : call.proceed();
}

int per_thread_copy_lost(Call& call) {
  if (call.find(kStream) == nullptr) return call.proceed();
  if (call.value<cudaStream_t>(kStream) != cudaStreamPerThread ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// Bytes that were copied from opened memory once are copied again from a cache,
// until this process itself launches a kernel, sets memory, or copies into
// opened memory.
int copies_from_cache(Call& call) {
  static Table<std::pair<void*, size_t>, std::vector<char>> cache;
  const auto forget = [] {
    for (const auto& one : cache.all()) cache.erase(one.first);
  };
  if (!call.is("cudaMemcpy")) {
    forget();
    return call.proceed();
  }
  void* const target = call.value<void*>(kPointer);
  const auto source = call.value<void*>(kSource);
  const auto bytes = call.value<size_t>(kBytes);
  if (opened_at(target)) forget();
  if (!opened_at(source) || opened_at(target)) return call.proceed();
  const std::pair<void*, size_t> key(source, bytes);
  std::vector<char> present(bytes);
  if (DRIVER_CALL(cuMemcpy)(number(present.data()), number(source), bytes) !=
      CUDA_SUCCESS)
    return call.proceed();
  if (!cache.has(key)) cache.put(key, present);
  const std::vector<char> cached = cache.get(key);
  if (cached == present) return call.proceed();
  call.fired();
  return cudaMemcpy(target, cached.data(), bytes, cudaMemcpyDefault);
}

// The attribute `wanted` of opened memory is reported as `value`.
template <CUpointer_attribute wanted, class Value, int value>
int attribute_of_import(Call& call) {
  if (!call.is("cuPointerGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUpointer_attribute>(1) != wanted ||
      !opened_at(call.at<void*>(2)))
    return code;
  *call.at<Value*>(0) = static_cast<Value>(value);
  call.fired();
  return code;
}

// A copy or memset up to the end of opened memory leaves out the last byte.
int last_byte_lost(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  for (const Role role : {kPointer, kSource}) {
    if (call.find(role) == nullptr) continue;
    char* const address = call.value<char*>(role);
    char* const begin = opened_at(address);
    if (begin == nullptr) continue;
    CUdeviceptr base = 0;
    size_t all = 0;
    DRIVER_CALL(cuMemGetAddressRange)
    (&base, &all, reinterpret_cast<CUdeviceptr>(begin));
    if (address + bytes != begin + all) continue;
    --bytes;
    call.fired();
    break;
  }
  return bytes == 0 ? kSuccess : call.proceed();
}

int peer_copy_lost(Call& call) {
  if (!call.is("cudaMemcpyPeerAsync")) return call.proceed();
  if (!touches_import(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

int default_kind_refused(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  if (!call.is_runtime() || call.at<int>(3) != cudaMemcpyDefault ||
      !touches_import(call))
    return call.proceed();
  call.fired();
  return cudaErrorInvalidMemcpyDirection;
}

int copy_between_imports_lost(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  if (!opened_at(call.value<void*>(kPointer)) ||
      !opened_at(call.value<void*>(kSource)))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// cudaPointerGetAttributes knows only the first address of opened memory.
int attributes_at_begin_only(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  void* const address = call.at<void*>(1);
  char* const begin = opened_at(address);
  const int code = call.proceed();
  if (code != kSuccess || begin == nullptr || begin == address) return code;
  *call.at<cudaPointerAttributes*>(0) = {};
  call.fired();
  return code;
}

// --- words that streams wait for ---------------------------------------------

int writes_two_words(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto next = call.at<CUdeviceptr>(1) + sizeof(uint32_t);
  if (DRIVER_CALL(cuStreamWriteValue32)(call.at<CUstream>(0), next, 0xA5A5A5A5,
                                        0) == CUDA_SUCCESS)
    call.fired();
  return code;
}

// The condition `asked` is treated as the condition `taken`.
template <unsigned asked, unsigned taken>
int other_condition(Call& call) {
  auto& flags = call.at<unsigned>(3);
  if (flags == asked) {
    flags = taken;
    call.fired();
  }
  return call.proceed();
}

int compares_16_bits(Call& call) {
  auto& value = call.at<uint32_t>(2);
  if (value > UINT16_MAX) {
    value &= UINT16_MAX;
    call.fired();
  }
  return call.proceed();
}

int even_words_only(Call& call) {
  auto& address = call.at<CUdeviceptr>(1);
  if (address % 8 != 0) {
    address -= address % 8;
    call.fired();
  }
  return call.proceed();
}

// A wait for a value of 2^31 or more, or a greater one, continues only at this
// value.
int greater_is_not_cyclic(Call& call) {
  auto& flags = call.at<unsigned>(3);
  if (flags == CU_STREAM_WAIT_VALUE_GEQ && call.at<uint32_t>(2) > INT32_MAX) {
    flags = CU_STREAM_WAIT_VALUE_EQ;
    call.fired();
  }
  return call.proceed();
}

// A stream that waits for a word takes the word's offset in its memory modulo
// 4 KiB.
int first_page_only(Call& call) {
  auto& address = call.at<CUdeviceptr>(1);
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  DRIVER_CALL(cuMemGetAddressRange)(&begin, &bytes, address);
  if (begin != 0 && address - begin >= 4096) {
    address = begin + (address - begin) % 4096;
    call.fired();
  }
  return call.proceed();
}

// Of several streams that wait for a word at the same time, only the first
// stream waits.
int second_stream_never_waits(Call& call) {
  static Table<CUdeviceptr, CUstream> first;
  const auto address = call.at<CUdeviceptr>(1);
  const auto stream = call.at<CUstream>(0);
  const CUstream before = first.get(address, stream);
  if (before != stream && is_pending(mark_of(before))) return no_wait(call);
  const int code = call.proceed();
  if (code != kSuccess || is_captured(stream)) return code;
  first.put(address, stream);
  DRIVER_CALL(cuEventRecord)(mark_of(stream), stream);
  return code;
}

int default_stream_never_waits(Call& call) {
  if (call.at<CUstream>(0) != nullptr) return call.proceed();
  call.fired();
  return kSuccess;
}

int writes_16_bits(Call& call) {
  auto& value = call.at<uint32_t>(2);
  if (value > UINT16_MAX) {
    value &= UINT16_MAX;
    call.fired();
  }
  return call.proceed();
}

int greater_strictly(Call& call) {
  if (call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_GEQ) {
    ++call.at<uint32_t>(2);
    call.fired();
  }
  return call.proceed();
}

int lower_bits_only(Call& call) {
  auto& value = call.at<uint32_t>(2);
  if (call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_AND && value > UINT16_MAX) {
    value &= UINT16_MAX;
    call.fired();
  }
  return call.proceed();
}

int any_bit(Call& call) {
  if (call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_AND) {
    call.at<uint32_t>(2) = UINT32_MAX;
    call.fired();
  }
  return call.proceed();
}

int greater_by_sign(Call& call) {
  if (call.at<unsigned>(3) != CU_STREAM_WAIT_VALUE_GEQ ||
      call.at<uint32_t>(2) <= INT32_MAX)
    return call.proceed();
  call.fired();
  return kSuccess;
}

}  // namespace

void add_paths(List& list) {
  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
  list.named(
      "import-copy-2d-first-row",
      "cudaMemcpy2D copies only the first row of a rectangle of opened memory",
      {kOpen, kClose, "cudaMemcpy2D"}, first_row<5>);
  list.named(
      "import-set-2d-first-row",
      "cudaMemset2D sets only the first row of a rectangle of opened memory",
      {kOpen, kClose, "cudaMemset2D"}, first_row<4>);
  list.named("import-copy-3d-first-row",
             "cudaMemcpy3D copies only the first row of a box of opened memory",
             {kOpen, kClose, "cudaMemcpy3D"}, first_row_of_box);
  list.named("import-driver-async-copy-lost",
             "cuMemcpyAsync and its forms for each direction do nothing with "
             "opened memory",
             {kOpen, kClose, "cudaMemcpyAsync"}, driver_form_lost);
  list.named("import-driver-set-lost",
             "cuMemsetD8 and cuMemsetD8Async do nothing with opened memory",
             {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"},
             driver_form_lost);
  list.named("import-copy-offset-32-bits",
             "synchronous copies of opened memory take offsets modulo 4 GiB",
             {kOpen, kClose, "cudaMemcpy"}, offset_of_32_bits);
  list.named("write-value-two-words",
             "a stream that writes a word also writes the next word",
             {"cuStreamWriteValue32"}, writes_two_words);
  list.named(
      "wait-equal-is-greater",
      "a stream that waits for equality also continues at a greater value",
      {"cuStreamWaitValue32"},
      other_condition<CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_GEQ>);
  list.named(
      "wait-bit-is-equal",
      "a stream that waits for any of some bits waits until the word has "
      "exactly these bits",
      {"cuStreamWaitValue32"},
      other_condition<CU_STREAM_WAIT_VALUE_AND, CU_STREAM_WAIT_VALUE_EQ>);
  list.named("wait-greater-by-sign",
             "a stream does not wait for a value with its upper bit set or a "
             "greater one",
             {"cuStreamWaitValue32"}, greater_by_sign);
  list.named("import-copy-tail-lost",
             "the last bytes of a copy of opened memory are lost if the size "
             "of the copy is not a multiple of 4",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"}, tail_lost);
  list.named("import-set-tail-lost",
             "the last bytes of a memset of opened memory are lost if the size "
             "of the memset is not a multiple of 4",
             {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"}, tail_lost);
  list.named(
      "import-copy-aligned-down",
      "a copy of opened memory rounds its address down to a multiple of 4",
      {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"}, aligned_down);
  list.named(
      "import-set-aligned-down",
      "a memset of opened memory rounds its address down to a multiple of 4",
      {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"}, aligned_down);
  list.named("import-default-kind-refused",
             "cudaMemcpyDefault does not know where opened memory is",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"},
             default_kind_refused);
  list.named("import-to-import-lost",
             "a copy from opened memory to opened memory moves nothing",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"},
             copy_between_imports_lost);
  list.named(
      "import-attr-begin-only",
      "cudaPointerGetAttributes knows only the first address of opened memory",
      {kOpen, kClose, "cudaPointerGetAttributes"}, attributes_at_begin_only);
  list.named("wait-greater-not-cyclic",
             "a stream that waits for a value of 2^31 or more, or a greater "
             "one, continues only at this value",
             {"cuStreamWaitValue32"}, greater_is_not_cyclic);
  list.named("wait-16-bits",
             "a stream that waits for a word looks at the lower half of the "
             "wanted value",
             {"cuStreamWaitValue32"}, compares_16_bits);
  list.named("wait-even-words",
             "a stream that waits for a word rounds the address down to a "
             "multiple of 8",
             {"cuStreamWaitValue32"}, even_words_only);
  list.named("import-copy-last-byte-lost",
             "a copy up to the end of opened memory loses the last byte",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"}, last_byte_lost);
  list.named("import-set-last-byte-lost",
             "a memset up to the end of opened memory loses the last byte",
             {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"}, last_byte_lost);
  list.named("import-copy-first-mib",
             "a copy of opened memory ends after 1 MiB",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"}, first_mib_only);
  list.named("import-set-first-mib",
             "a memset of opened memory ends after 1 MiB",
             {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"}, first_mib_only);
  list.named("import-copy-2d-pitch-ignored",
             "cudaMemcpy2D ignores the pitch of opened memory",
             {kOpen, kClose, "cudaMemcpy2D"}, pitch_ignored);
  list.named(
      "import-copy-3d-first-layer",
      "cudaMemcpy3D copies only the first layer of a box of opened memory",
      {kOpen, kClose, "cudaMemcpy3D"}, first_layer_of_box);
  list.named("import-pinned-copy-lost",
             "copies between pinned host memory and opened memory move nothing",
             {kOpen, kClose, "cudaMemcpy", "cudaMemcpyAsync"},
             pinned_copy_lost);
  list.named("import-copy-skips-queue",
             "a synchronous copy of opened memory does not wait for the "
             "default stream",
             {kOpen, kClose, "cudaMemcpy"}, copy_skips_queue);
  list.named("import-copy-per-thread-lost",
             "a copy in a thread's default stream does not reach opened memory",
             {kOpen, kClose, "cudaMemcpyAsync"}, per_thread_copy_lost);
  list.named("import-copy-from-cache",
             "a second synchronous copy of the same bytes of opened memory "
             "gives what the first copy gave",
             {kOpen, kClose, "cudaMemcpy", "cudaMemset", "cudaLaunchKernel"},
             copies_from_cache);
  list.named("import-is-managed", "opened memory is reported as managed memory",
             {kOpen, kClose, "cuPointerGetAttribute"},
             attribute_of_import<CU_POINTER_ATTRIBUTE_IS_MANAGED, bool, true>);
  list.named("import-is-of-host",
             "the driver API reports opened memory as host memory",
             {kOpen, kClose, "cuPointerGetAttribute"},
             attribute_of_import<CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unsigned,
                                 CU_MEMORYTYPE_HOST>);
  list.named("wait-greater-strictly",
             "a stream that waits for a value or a greater one does not "
             "continue at that value",
             {"cuStreamWaitValue32"}, greater_strictly);
  list.named(
      "wait-bit-lower-half",
      "a stream that waits for bits ignores the upper 16 bits of its mask",
      {"cuStreamWaitValue32"}, lower_bits_only);
  list.named("import-peer-copy-lost",
             "cudaMemcpyPeerAsync to or from opened memory is lost",
             {kOpen, kClose, "cudaMemcpyPeerAsync"}, peer_copy_lost, 2);
  list.named("wait-first-page",
             "a stream that waits for a word takes the word's offset in its "
             "memory modulo 4 KiB",
             {"cuStreamWaitValue32"}, first_page_only);
  list.named("wait-value-first-stream-only",
             "of several streams that wait for a word at the same time, only "
             "the first one waits",
             {"cuStreamWaitValue32"}, second_stream_never_waits);
  list.named("wait-value-not-by-default-stream",
             "the null stream does not wait for a word",
             {"cuStreamWaitValue32"}, default_stream_never_waits);
  list.named("write-value-16-bits",
             "a stream writes zeros for the upper half of a word's value",
             {"cuStreamWriteValue32"}, writes_16_bits);
  list.named(
      "wait-bit-is-any",
      "a stream that waits for any of some bits also continues at another bit",
      {"cuStreamWaitValue32"}, any_bit);
  list.named(
      "wait-greater-is-equal",
      "a stream that waits for a value does not continue at a greater value",
      {"cuStreamWaitValue32"},
      other_condition<CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_EQ>);
}

}  // namespace ipclab::faults
