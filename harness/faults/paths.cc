// Bugs of the ways to memory that another process lends: rectangles, calls of
// the driver API, far offsets, words that streams wait for.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fault.h"
#include "table.h"

namespace ipclab::faults {
namespace {

constexpr size_t k4GiB = size_t{4} << 30;

Table<void*> opened;  // by legacy handles

int noted(Call& call) {
  void* const closed =
      call.is("cudaIpcCloseMemHandle") ? call.at<void*>(0) : nullptr;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (closed != nullptr)
    opened.erase(closed);
  else if (call.is("cudaIpcOpenMemHandle"))
    opened.put(*call.at<void**>(0));
  return code;
}

// The beginning of the opened memory in which an address lies; null if none.
char* opened_at(const void* address) {
  for (const auto& [begin, unused] : opened.all()) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    DRIVER_CALL(cuMemGetAddressRange)
    (&base, &bytes, reinterpret_cast<CUdeviceptr>(begin));
    const auto offset = reinterpret_cast<uintptr_t>(address) -
                        reinterpret_cast<uintptr_t>(begin);
    if (offset < bytes) return static_cast<char*>(begin);
  }
  return nullptr;
}

bool touches_import(Call& call) {
  const Argument* const to = call.find(kPointer);
  const Argument* const from = call.find(kSource);
  return (to != nullptr && opened_at(*static_cast<void**>(to->place))) ||
         (from != nullptr && opened_at(*static_cast<void**>(from->place)));
}

// Of a rectangle only the first row moves; `height` is its argument.
template <size_t height>
int first_row(Call& call) {
  if (call.find(kPointer) == nullptr || call.is("cudaIpcCloseMemHandle"))
    return noted(call);
  size_t& rows = call.at<size_t>(height);
  if (!touches_import(call) || rows < 2) return call.proceed();
  rows = 1;
  call.fired();
  return call.proceed();
}

int first_row_of_box(Call& call) {
  if (!call.is("cudaMemcpy3D")) return noted(call);
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

// The driver's form of a call does nothing with opened memory.
int driver_form_lost(Call& call) {
  if (call.find(kPointer) == nullptr || call.is("cudaIpcCloseMemHandle"))
    return noted(call);
  if (call.is_runtime() || !touches_import(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

// Offsets into opened memory lose their upper half.
int offset_of_32_bits(Call& call) {
  if (!call.is("cudaMemcpy")) return noted(call);
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

// One condition is taken for another one.
template <unsigned asked, unsigned taken>
int other_condition(Call& call) {
  auto& flags = call.at<unsigned>(3);
  if (flags == asked) {
    flags = taken;
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
  list.named("import-copy-2d-first-row",
             "of a rectangle of opened memory only the first row is copied",
             {kOpen, kClose, "cudaMemcpy2D"}, first_row<5>);
  list.named("import-set-2d-first-row",
             "of a rectangle of opened memory only the first row is set",
             {kOpen, kClose, "cudaMemset2D"}, first_row<4>);
  list.named("import-copy-3d-first-row",
             "of a box of opened memory only the first row is copied",
             {kOpen, kClose, "cudaMemcpy3D"}, first_row_of_box);
  list.named("import-driver-async-copy-lost",
             "asynchronous copies of the driver API do not reach opened memory",
             {kOpen, kClose, "cudaMemcpyAsync"}, driver_form_lost);
  list.named("import-driver-set-lost",
             "memsets of the driver API do not reach opened memory",
             {kOpen, kClose, "cudaMemset", "cudaMemsetAsync"},
             driver_form_lost);
  list.named("import-copy-offset-32-bits",
             "copies of opened memory beyond 4 GiB go to the offset less 4 GiB",
             {kOpen, kClose, "cudaMemcpy"}, offset_of_32_bits);
  list.named("write-value-two-words",
             "a stream that writes a word writes the next one, too",
             {"cuStreamWriteValue32"}, writes_two_words);
  list.named(
      "wait-equal-is-greater",
      "a stream that waits for equality goes on at a greater value",
      {"cuStreamWaitValue32"},
      other_condition<CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_GEQ>);
  list.named(
      "wait-bit-is-equal",
      "a stream that waits for any of some bits waits for all of them",
      {"cuStreamWaitValue32"},
      other_condition<CU_STREAM_WAIT_VALUE_AND, CU_STREAM_WAIT_VALUE_EQ>);
  list.named("wait-greater-by-sign",
             "a stream does not wait for a value with its upper bit set",
             {"cuStreamWaitValue32"}, greater_by_sign);
}

}  // namespace ipclab::faults
