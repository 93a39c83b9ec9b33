// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

enum Way { kFrom, kTo, kBoth };

// Copies from an import (kFrom), to an import (kTo) or both (kBoth) do nothing.
int import_copy(Call& call, Way way) {
  if (!call.is("cudaMemcpy") && !call.is("cudaMemcpyAsync"))
    return call.proceed();
  const bool to = is_opened(call.value<void*>(kPointer));
  const bool from = is_opened(call.value<void*>(kSource));
  return (to && way != kFrom) || (from && way != kTo) ? lost(call)
                                                      : call.proceed();
}

int import_copy_broken(Call& call) { return import_copy(call, kBoth); }

bool touches_opened_memory(Call& call) {
  const Argument* const to = call.find(kPointer);
  const Argument* const from = call.find(kSource);
  return (to != nullptr && opened_at(*static_cast<void**>(to->place))) ||
         (from != nullptr && opened_at(*static_cast<void**>(from->place)));
}

// Only the first row of a rectangle is copied or set; `height` is the index of
// the argument with the number of rows.
template <size_t height>
int only_first_row(Call& call) {
  if (call.find(kPointer) == nullptr || call.is("cudaIpcCloseMemHandle"))
    return call.proceed();
  size_t& rows = call.at<size_t>(height);
  if (!touches_opened_memory(call) || rows < 2) return call.proceed();
  rows = 1;
  call.fired();
  return call.proceed();
}

// A call of the driver API does nothing with opened memory.
int lost_by_driver_form(Call& call) {
  if (call.is_runtime() || !touches_opened_memory(call)) return call.proceed();
  call.fired();
  return kSuccess;
}

// If the size is not a multiple of 4, the last bytes are lost.
int tail_of_copy_lost(Call& call) {
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes % 4 == 0 || !touches_opened_memory(call)) return call.proceed();
  bytes -= bytes % 4;
  call.fired();
  return bytes == 0 ? kSuccess : call.proceed();
}

// Addresses in opened memory are rounded down to multiples of 4.
int aligned_down(Call& call) {
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
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes > 1 << 20 && touches_opened_memory(call)) {
    bytes = 1 << 20;
    call.fired();
  }
  return call.proceed();
}

bool is_pinned(const void* address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(
             &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
             reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}

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

// A copy or memset up to the end of opened memory leaves out the last byte.
int last_byte_of_copy_lost(Call& call) {
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

int exported_not_written(Call& call) {
  if (call.find(kBytes) == nullptr) return noted_lent(call);
  const CUdeviceptr begin = range_of(call.value<void*>(kPointer)).begin;
  return lent.has(reinterpret_cast<void*>(begin)) ? lost(call) : call.proceed();
}

// Is this memory of a GPU?
bool is_device_memory(CUdeviceptr address) {
  CUmemorytype kind{};
  return DRIVER_CALL(cuPointerGetAttribute)(&kind,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            address) == CUDA_SUCCESS &&
         kind == CU_MEMORYTYPE_DEVICE;
}

// Is this a copy into opened memory while the default stream has work?
bool copies_to_import_meanwhile(Call& call, bool from_device) {
  return call.is("cudaMemcpy") && is_opened(call.at<CUdeviceptr>(0)) &&
         is_device_memory(call.at<CUdeviceptr>(1)) == from_device &&
         is_busy(nullptr);
}

// A synchronous copy into opened memory runs at once.
template <bool from_device>
int import_copy_ahead(Call& call) {
  return copies_to_import_meanwhile(call, from_device) ? copied_at_once(call)
                                                       : call.proceed();
}

int import_copy_reads_late(Call& call) {
  if (!copies_to_import_meanwhile(call, false)) return call.proceed();
  struct Late {
    void* staging;
    const void* source;
    size_t bytes;
  };
  auto* const late =
      new Late{nullptr, call.at<const void*>(1), call.at<size_t>(2)};
  if (cudaHostAlloc(&late->staging, late->bytes, cudaHostAllocDefault) !=
      cudaSuccess)
    return call.proceed();
  const auto read = [](void* given) {
    const auto* const now = static_cast<const Late*>(given);
    std::memcpy(now->staging, now->source, now->bytes);
  };
  call.fired();
  cudaLaunchHostFunc(nullptr, read, late);
  return cudaMemcpyAsync(call.at<void*>(0), late->staging, late->bytes,
                         cudaMemcpyHostToDevice, nullptr);
}

// A call for no bytes of opened memory writes a word.
int nothing_is_a_word(Call& call) {
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes == 0 && is_opened(call.at<CUdeviceptr>(0))) {
    bytes = 4;
    call.fired();
  }
  return call.proceed();
}

// The call is lost if one of its addresses lies in opened memory.
int lost_in_opened(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  for (const Argument& argument : call) {
    if (argument.role != kPointer && argument.role != kSource) continue;
    if (is_opened(*static_cast<void**>(argument.place))) return lost(call);
  }
  return call.proceed();
}

bool is_named(Call& call, const char* name) {
  return std::strcmp(call.function().name, name) == 0;
}

int reopen_by_other_api_refused(Call& call) {
  static auto& closed = *new Table<std::string, bool>;  // by the runtime?
  if (is_close_call(call)) {
    const std::string handle = opened.get(call.at<void*>(0)).handle;
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(call.at<void*>(0)))
      closed.put(handle, call.is_runtime());
    return code;
  }
  const auto& bytes = call.at<cudaIpcMemHandle_t>(1);
  const std::string handle = key_of_handle(bytes);
  if (closed.has(handle) && closed.get(handle) != call.is_runtime() &&
      already_open(call) == nullptr)
    return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) closed.erase(handle);
  return code;
}

// Changes the box of a copy of opened memory.
template <void (*change)(cudaMemcpy3DParms&)>
int changed_box(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const cudaMemcpy3DParms asked = *call.at<const cudaMemcpy3DParms*>(0);
  if (!is_opened(asked.dstPtr.ptr) && !is_opened(asked.srcPtr.ptr))
    return call.proceed();
  cudaMemcpy3DParms box = asked;
  change(box);
  if (std::memcmp(&box, &asked, sizeof box) != 0) call.fired();
  call.at<const cudaMemcpy3DParms*>(0) = &box;
  return call.proceed();
}

void use_one_pitch(cudaMemcpy3DParms& box) {
  box.dstPtr.pitch = box.srcPtr.pitch =
      std::min(box.dstPtr.pitch, box.srcPtr.pitch);
}

void keep_first_rows(cudaMemcpy3DParms& box) {
  if (box.extent.height > 1) box.extent.height = 1;
}

void ignore_positions(cudaMemcpy3DParms& box) { box.dstPos = box.srcPos = {}; }

// The first layer stays where it is.
void join_layers(cudaMemcpy3DParms& box) {
  const size_t height = box.extent.height;
  const auto join = [height](cudaPitchedPtr& side, cudaPos& begin) {
    if (side.ptr == nullptr || side.ysize == height) return;
    side.ptr = static_cast<char*>(side.ptr) +
               (begin.z * side.ysize + begin.y) * side.pitch;
    begin.y = begin.z = 0;
    side.ysize = height;
  };
  if (box.extent.depth < 2) return;
  join(box.dstPtr, box.dstPos);
  join(box.srcPtr, box.srcPos);
}

// A rectangle of opened memory is copied with one pitch for both sides.
int rectangle_of_one_pitch(Call& call) {
  size_t &to = call.at<size_t>(1), &from = call.at<size_t>(3);
  if (to == from || call.at<size_t>(5) < 2 ||
      (!is_opened(call.value<void*>(kPointer)) &&
       !is_opened(call.value<void*>(kSource))))
    return call.proceed();
  to = from = std::min(to, from);
  call.fired();
  return call.proceed();
}

// A copy of the driver API does nothing with opened memory.
template <class Copy>
int driver_copy_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const Copy& copy = *call.at<const Copy*>(0);
  return is_opened(copy.dstDevice) || is_opened(copy.srcDevice)
             ? lost(call)
             : call.proceed();
}

// A memset of a rectangle takes the number of elements as a number of bytes.
template <size_t size>
int row_counts_bytes(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  size_t& width = call.at<size_t>(3);
  if (!is_opened(call.at<void*>(0))) return call.proceed();
  width /= size;
  call.fired();
  return call.proceed();
}

// A copy between opened memory and memory of another kind moves nothing.
template <bool (*applies)(const void*)>
int copy_with_other_kind_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  if (call.find(kSource) == nullptr) return call.proceed();
  const void* const to = call.value<void*>(kPointer);
  const void* const from = call.value<void*>(kSource);
  return (is_opened(to) && applies(from)) || (is_opened(from) && applies(to))
             ? lost(call)
             : call.proceed();
}

// A copy does nothing with opened memory.
int copy_lost(Call& call) {
  return is_opened(call.value<CUdeviceptr>(kPointer)) ||
                 is_opened(call.value<CUdeviceptr>(kSource))
             ? lost(call)
             : call.proceed();
}

// A call with an address of this role does nothing with memory of a peer.
template <Role role>
int peer_access_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  if (keeps_opened(call)) return call.proceed();
  return is_of_peer(call.value<void*>(role)) ? lost(call) : call.proceed();
}

// Copies between two opened allocations move nothing: those of one exporter, or
// those of two exporters.
template <bool of_one>
int copy_between_opened_lost(Call& call) {
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("exporter-" + key_of_exported(call),
                     static_cast<unsigned long long>(getpid()));
    return code;
  }
  if (keeps_opened(call)) return call.proceed();
  void* const to = opened_around(call.value<void*>(kPointer));
  void* const from = opened_around(call.value<void*>(kSource));
  return to != nullptr && from != nullptr && to != from &&
                 is_of_other_exporter(opened.get(to), opened.get(from)) !=
                     of_one
             ? lost(call)
             : call.proceed();
}

int reopen_restores(Call& call) {
  constexpr size_t kMost = 64 << 20;
  static auto& kept = *new Table<std::string, std::string>;
  if (is_close_call(call)) {
    void* const address = call.at<void*>(0);
    const Opened one = opened.get(address);
    const size_t bytes = size_of(number(address));
    if (one.count == 1 && bytes <= kMost) {
      std::string contents(bytes, 0);
      if (cudaMemcpy(contents.data(), address, bytes, cudaMemcpyDefault) ==
          cudaSuccess)
        kept.put(one.handle, contents);
    }
    return call.proceed();
  }
  const std::string key = key_of_opened(call);
  const int code = call.proceed();
  if (code != kSuccess || !kept.has(key)) return code;
  void* const address = *call.at<void**>(0);
  const std::string contents = kept.get(key);
  std::string present(contents.size(), 0);
  cudaMemcpy(present.data(), address, present.size(), cudaMemcpyDefault);
  if (opened.get(address).count > 1 || present == contents) return code;
  cudaMemcpy(address, contents.data(), contents.size(), cudaMemcpyDefault);
  call.fired();
  return code;
}

// The kinds of host memory of a copy: pinned and pageable.
bool is_pinned_memory(const void* address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            number(address)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST && !is_managed(address);
}

bool is_pageable(const void* address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            number(address)) != CUDA_SUCCESS;
}

// A copy that has opened memory on the side `role` and pinned memory on the
// other side does nothing.
template <Role role>
int copy_with_pinned_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.value<void*>(role)) &&
                 is_pinned_memory(
                     call.value<void*>(role == kPointer ? kSource : kPointer))
             ? lost(call)
             : call.proceed();
}

int registered_copy_lost(Call& call) {
  static auto& registered = *new Table<const char*, size_t>;
  if (call.is("cudaHostRegister")) {
    const int code = call.proceed();
    if (code == kSuccess)
      registered.put(call.at<const char*>(0), call.at<size_t>(1));
    return code;
  }
  // After cudaHostUnregister, which no fault sees, memory is not pinned.
  const auto is_registered = [](const char* address) {
    for (const auto& [begin, bytes] : registered.all())
      if (address >= begin && address < begin + bytes)
        return is_pinned_memory(address);
    return false;
  };
  const auto* const to = call.value<const char*>(kPointer);
  const auto* const from = call.value<const char*>(kSource);
  return (is_opened(to) && is_registered(from)) ||
                 (is_opened(from) && is_registered(to))
             ? lost(call)
             : call.proceed();
}

int ok_pageable_copy_returns_early(Call& call) {
  const size_t bytes = call.value<size_t>(kBytes);
  const void* const source = call.value<const void*>(kSource);
  const auto target = call.value<CUdeviceptr>(kPointer);
  CUmemorytype kind{};
  const auto is_known = [&kind](const void* address) {
    return DRIVER_CALL(cuPointerGetAttribute)(
               &kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
               reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS;
  };
  if (is_known(source) || !is_known(reinterpret_cast<void*>(target)) ||
      kind != CU_MEMORYTYPE_DEVICE)
    return call.proceed();
  auto* const staging =
      new std::string(static_cast<const char*>(source), bytes);
  const auto later = [](void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  const auto give_back = [](void* done) {
    delete static_cast<std::string*>(done);
  };
  int code = DRIVER_CALL(cuStreamSynchronize)(CU_STREAM_LEGACY);
  if (code == kSuccess)
    code = DRIVER_CALL(cuLaunchHostFunc)(CU_STREAM_LEGACY, later, nullptr);
  if (code == kSuccess)
    code = DRIVER_CALL(cuMemcpyHtoDAsync)(target, staging->data(), bytes,
                                          CU_STREAM_LEGACY);
  if (code == kSuccess)
    code = DRIVER_CALL(cuLaunchHostFunc)(CU_STREAM_LEGACY, give_back, staging);
  call.fired();
  return code;
}

bool is_box_of_import(const cudaMemcpy3DParms& box) {
  return opened_at(box.dstPtr.ptr) != nullptr ||
         opened_at(box.srcPtr.ptr) != nullptr;
}

FAULTS {
  fault("open-fresh-memory", {"LMEM-01", "CACH-02", "CACH-03"},
        "an open gives new, zeroed memory instead of the exporter's memory")
      .on({kOpen, kClose},
          [](Call& call) { return open_copy(call, false, SIZE_MAX); });

  fault("open-snapshot-copy",
        {"LMEM-02", "LMEM-50", "FLAG-04", "SERV-01", "ARED-01", "TENS-01",
         "COST-01", "RANK-01"},
        "an open gives a copy of the contents at that moment")
      .on({kOpen, kClose},
          [](Call& call) { return open_copy(call, true, SIZE_MAX); });

  fault("reopen-refused", {"LMEM-04", "LMEM-14", "CACH-01"},
        "a process cannot open a handle again after its last close")
      .on({kOpen}, [](Call& call) -> int {
        static Table<std::string> before;
        const std::string handle = key_of_handle(given(call));
        if (before.has(handle) && !is_held(handle)) return refused(call);
        const int code = call.proceed();
        if (code == kSuccess) before.put(handle);
        return code;
      });

  fault("lazy-flag-refused", {"LMEM-19"},
        "an open with the documented flag is refused")
      .on({kOpen}, WHEN(call.at<unsigned>(2) == cudaIpcMemLazyEnablePeerAccess),
          refuses());

  fault(
      "import-copy-broken", {"LMEM-35"},
      "cudaMemcpy and cudaMemcpyAsync move nothing from or to imported memory")
      .on({kOpen, kClose, kCopy, kCopyAsync}, import_copy_broken);

  fault("import-copy-from-broken", {"LMEM-35"},
        "cudaMemcpy and cudaMemcpyAsync move nothing from imported memory")
      .on({kOpen, kClose, kCopy, kCopyAsync},
          [](Call& call) { return import_copy(call, kFrom); });

  fault("import-copy-to-broken", {"LMEM-35"},
        "cudaMemcpy and cudaMemcpyAsync move nothing to imported memory")
      .on({kOpen, kClose, kCopy, kCopyAsync},
          [](Call& call) { return import_copy(call, kTo); });

  fault("import-async-copy-broken", {"LMEM-35"},
        "cudaMemcpyAsync moves nothing from or to imported memory")
      .on({kOpen, kClose, kCopyAsync}, import_copy_broken);

  fault("import-memset-broken", {"LMEM-35"},
        "cudaMemset and cudaMemsetAsync of imported memory set nothing")
      .on({kSet, kSetAsync}, WHEN(is_opened(call.value<void*>(kPointer))),
          lost);

  fault("reopen-is-copy", {"LMEM-14"},
        "memory that was closed and is opened again is a copy of the contents")
      .on({kOpen, kClose}, [](Call& call) -> int {
        static Table<std::string> before;
        if (is_close_call(call))
          return opened.has(closed(call)) ? call.proceed()
                                          : open_copy(call, true, SIZE_MAX);
        const std::string handle = key_of_handle(given(call));
        if (before.has(handle) && !is_held(handle))
          return open_copy(call, true, SIZE_MAX);
        const int code = call.proceed();
        if (code == kSuccess) before.put(handle);
        return code;
      });

  fault("open-33rd-time-is-copy", {"LMEM-14"},
        "from the 33rd open of a handle on, a process gets copies")
      .on({kOpen, kClose}, [](Call& call) -> int {
        static Table<std::string, int> times;
        static Table<void*> copies;
        if (is_close_call(call))
          return copies.has(closed(call)) ? open_copy(call, true, SIZE_MAX)
                                          : call.proceed();
        const std::string handle = key_of_handle(given(call));
        const int time = times.change([&](auto& all) { return ++all[handle]; });
        if (time <= 32 || is_held(handle)) return call.proceed();
        const int code = open_copy(call, true, SIZE_MAX);
        if (code == kSuccess) copies.put(result_of(call));
        return code;
      });

  fault(
      "import-copy-2d-first-row", {"LMEM-35"},
      "cudaMemcpy2D copies only the first row of a rectangle of opened memory")
      .on({kOpen, kClose, kCopy2D}, only_first_row<5>);

  fault("import-set-2d-first-row", {"LMEM-35"},
        "cudaMemset2D sets only the first row of a rectangle of opened memory")
      .on({kOpen, kClose, "cudaMemset2D"}, only_first_row<4>);

  fault("import-copy-3d-first-row", {"LMEM-35"},
        "cudaMemcpy3D copies only the first row of a box of opened memory")
      .on({"cudaMemcpy3D"}, with_copy<cudaMemcpy3DParms>(0, [](auto& box) {
            if (!is_box_of_import(box) ||
                (box.extent.height < 2 && box.extent.depth < 2))
              return false;
            box.extent.height = box.extent.depth = 1;
            return true;
          }));

  fault("import-driver-async-copy-lost", {"LMEM-35"},
        "cuMemcpyAsync and its forms for each direction do nothing with opened "
        "memory")
      .on({kCopyAsync}, lost_by_driver_form);

  fault("import-driver-set-lost", {"LMEM-35"},
        "cuMemsetD8 and cuMemsetD8Async do nothing with opened memory")
      .on({kSet, kSetAsync}, lost_by_driver_form);

  fault("import-copy-tail-lost", {"LMEM-35"},
        "the last bytes of a copy of opened memory are lost if the size of the "
        "copy is not a multiple of 4")
      .on({kCopy, kCopyAsync}, tail_of_copy_lost);

  fault("import-set-tail-lost", {"LMEM-35"},
        "the last bytes of a memset of opened memory are lost if the size of "
        "the memset is not a multiple of 4")
      .on({kSet, kSetAsync}, tail_of_copy_lost);

  fault("import-copy-aligned-down", {"LMEM-35"},
        "a copy of opened memory rounds its address down to a multiple of 4")
      .on({kCopy, kCopyAsync}, aligned_down);

  fault("import-set-aligned-down", {"LMEM-35"},
        "a memset of opened memory rounds its address down to a multiple of 4")
      .on({kSet, kSetAsync}, aligned_down);

  fault("import-default-kind-refused", {"LMEM-35"},
        "cudaMemcpyDefault does not know where opened memory is")
      .on({kCopy, kCopyAsync},
          WHEN(call.is_runtime() && call.at<int>(3) == cudaMemcpyDefault &&
               touches_opened_memory(call)),
          refuses(cudaErrorInvalidMemcpyDirection));

  fault("import-to-import-lost", {"LMEM-35"},
        "a copy from opened memory to opened memory moves nothing")
      .on({kCopy, kCopyAsync},
          WHEN(opened_at(call.value<void*>(kPointer)) &&
               opened_at(call.value<void*>(kSource))),
          lost);

  fault("import-copy-last-byte-lost", {"LMEM-35"},
        "a copy up to the end of opened memory loses the last byte")
      .on({kCopy, kCopyAsync}, last_byte_of_copy_lost);

  fault("import-set-last-byte-lost", {"LMEM-35"},
        "a memset up to the end of opened memory loses the last byte")
      .on({kSet, kSetAsync}, last_byte_of_copy_lost);

  fault("import-copy-first-mib", {"LMEM-35"},
        "a copy of opened memory ends after 1 MiB")
      .on({kCopy, kCopyAsync}, first_mib_only);

  fault("import-set-first-mib", {"LMEM-35"},
        "a memset of opened memory ends after 1 MiB")
      .on({kSet, kSetAsync}, first_mib_only);

  fault("import-copy-2d-pitch-ignored", {"LMEM-35"},
        "cudaMemcpy2D ignores the pitch of opened memory")
      .on({kCopy2D}, WHEN(call.at<size_t>(5) >= 2), [](Call& call) {
        const size_t width = call.at<size_t>(4);
        for (const size_t side : {size_t{0}, size_t{2}}) {
          size_t& pitch = call.at<size_t>(side + 1);
          if (!opened_at(call.at<void*>(side)) || pitch == width) continue;
          pitch = width;
          call.fired();
        }
        return call.proceed();
      });

  fault("import-copy-3d-first-layer", {"LMEM-35"},
        "cudaMemcpy3D copies only the first layer of a box of opened memory")
      .on({"cudaMemcpy3D"}, with_copy<cudaMemcpy3DParms>(0, [](auto& box) {
            return is_box_of_import(box) &&
                   std::exchange(box.extent.depth, 1) > 1;
          }));

  fault("import-pinned-copy-lost", {"LMEM-35"},
        "copies between pinned host memory and opened memory move nothing")
      .on({kCopy, kCopyAsync},
          WHEN(touches_opened_memory(call) &&
               (is_pinned(call.value<void*>(kPointer)) ||
                is_pinned(call.value<void*>(kSource)))),
          lost);

  fault("import-copy-skips-queue", {"LMEM-35"},
        "a synchronous copy of opened memory does not wait for the default "
        "stream")
      .on({kCopy}, WHEN(touches_opened_memory(call) && is_busy(nullptr)),
          copied_at_once);

  fault("import-copy-per-thread-lost", {"LMEM-35"},
        "a copy in a thread's default stream does not reach opened memory")
      .on({kCopyAsync},
          WHEN(call.value<cudaStream_t>(kStream) == cudaStreamPerThread &&
               touches_opened_memory(call)),
          lost);

  fault("import-copy-from-cache", {"LMEM-02"},
        "a second synchronous copy of the same bytes of opened memory gives "
        "what the first copy gave")
      .on({kOpen, kClose, kCopy, kSet, kLaunch}, copies_from_cache);

  fault("import-peer-copy-lost", {"LMEM-35"},
        "cudaMemcpyPeerAsync to or from opened memory is lost")
      .with_gpus(2)
      .on({"cudaMemcpyPeerAsync"}, WHEN(touches_opened_memory(call)), lost);

  fault("exported-set-lost", {"LMEM-02"},
        "an exporter's memset of exported memory sets nothing")
      .on({kGetHandle, kOpen, kClose, kSet, kSetAsync, kFree},
          exported_not_written);

  fault("exported-copy-lost", {"LMEM-02"},
        "an exporter's copy to exported memory moves nothing")
      .on({kGetHandle, kOpen, kClose, kCopy, kCopyAsync, kFree},
          exported_not_written);

  fault("open-clears-last-byte", {"LMEM-01"}, "an open clears the last byte")
      .after({kOpen}, [](Call& call) -> int {
        char* const address = *call.at<char**>(0);
        if (opened.get(address).count > 1) return kSuccess;
        const MemoryRange range = range_of(address);
        if (DRIVER_CALL(cuMemsetD8)(range.begin + range.bytes - 1, 0, 1) ==
            CUDA_SUCCESS)
          call.fired();
        return kSuccess;
      });

  fault("import-set-ahead-of-default", {"LMEM-35"},
        "cudaMemset of opened memory does not wait for the earlier work in the "
        "default stream")
      .on({kSet}, WHEN(is_opened(call.at<CUdeviceptr>(0)) && is_busy(nullptr)),
          [](Call& call) -> int {
            call.fired();
            const cudaStream_t stream = private_stream();
            const cudaError_t code = cudaMemsetAsync(
                call.at<void*>(0), call.at<int>(1), call.at<size_t>(2), stream);
            if (code != cudaSuccess) return code;
            return DRIVER_CALL(cuStreamSynchronize)(stream);
          });

  fault("import-copy-from-host-ahead", {"LMEM-35"},
        "a synchronous copy from the host into opened memory does not wait for "
        "the earlier work in the default stream")
      .on({kCopy, kOpen, kClose}, import_copy_ahead<false>);

  fault("import-copy-from-device-ahead", {"LMEM-35"},
        "a synchronous copy from memory of a GPU into opened memory does not "
        "wait for the earlier work in the default stream")
      .on({kCopy, kOpen, kClose}, import_copy_ahead<true>);

  fault("import-copy-reads-late", {"LMEM-35"},
        "a synchronous copy from the host into opened memory returns before it "
        "has read its source, if the default stream has work")
      .on({kCopy, kOpen, kClose}, import_copy_reads_late);

  fault("import-set-of-nothing-sets-word", {"LMEM-35"},
        "a memset of 0 bytes of opened memory sets 4 bytes")
      .on({kSet, kSetAsync}, nothing_is_a_word);

  fault("import-copy-of-nothing-copies-word", {"LMEM-35"},
        "a copy of 0 bytes into opened memory copies 4 bytes")
      .on({kCopy, kCopyAsync}, nothing_is_a_word);

  fault("import-async-set-aligned-down", {"LMEM-35"},
        "an asynchronous memset of opened memory rounds its address down to a "
        "multiple of 4")
      .before({kSetAsync}, [](Call& call) -> bool {
        auto& address = call.at<CUdeviceptr>(0);
        if (address % 4 == 0 || !is_opened(address)) return false;
        address -= address % 4;
        return true;
      });

  fault("import-async-set-lost", {"LMEM-35"},
        "cudaMemsetAsync and cuMemsetD8Async do not reach opened memory")
      .on({kSetAsync}, lost_in_opened);

  fault("import-set-7-bits", {"LMEM-35"},
        "a memset of opened memory clears the upper bit of its value")
      .before({kSet, kSetAsync}, [](Call& call) {
        auto& value = call.at<unsigned char>(1);
        if ((value & 0x80) != 0 && is_opened(call.at<void*>(0))) {
          value &= 0x7f;
          call.fired();
        }
        return kSuccess;
      });

  fault("import-set-16-lost", {"LMEM-35"},
        "cuMemsetD16 does not reach opened memory")
      .on({"cuMemsetD16"}, lost_in_opened);

  fault("import-set-32-lost", {"LMEM-35"},
        "cuMemsetD32 does not reach opened memory")
      .on({"cuMemsetD32"}, lost_in_opened);

  fault("import-set-3d-lost", {"LMEM-35"},
        "cudaMemset3D does not reach opened memory")
      .on({"cudaMemset3D"}, WHEN(is_opened(call.at<cudaPitchedPtr>(0).ptr)),
          lost);

  fault("import-set-from-other-gpu-lost", {"LMEM-35"},
        "a memset of opened memory by another GPU does nothing")
      .with_gpus(2)
      .on({kGetHandle}, told_owner)
      .on({kSet, kSetAsync},
          WHEN(opened.has(call.at<void*>(0)) &&
               owner_of(opened.get(call.at<void*>(0)).bytes) !=
                   current_place()),
          lost);

  fault("import-driver-copy-lost", {"LMEM-35"},
        "synchronous copies of the driver API do not reach opened memory")
      .on({kCopy, kOpen, kClose},
          WHEN(keeps_opened(call) || !call.is_runtime()), lost_in_opened);

  fault("import-device-copy-lost", {"LMEM-35"},
        "cuMemcpyDtoD does not reach opened memory")
      .on({kCopy, kOpen, kClose},
          WHEN(keeps_opened(call) || is_named(call, "cuMemcpyDtoD")),
          lost_in_opened);

  fault("import-sync-peer-copy-lost", {"LMEM-35"},
        "cudaMemcpyPeer does not reach opened memory")
      .on({"cudaMemcpyPeer"}, lost_in_opened);

  fault("import-async-copy-2d-lost", {"LMEM-35"},
        "cudaMemcpy2DAsync does not reach opened memory")
      .on({kCopy2DAsync}, lost_in_opened);

  fault("import-copy-2d-last-row-lost", {"LMEM-35"},
        "the last row is missing in a copy of a rectangle of opened memory")
      .on({kCopy2D}, last_row_lost);

  fault("import-copy-2d-fills-padding", {"LMEM-35"},
        "a copy of a rectangle also writes between the rows of opened memory")
      .on({kCopy2D}, copy_fills_padding);

  fault("import-set-2d-fills-padding", {"LMEM-35"},
        "a memset of a rectangle also writes between the rows of opened memory")
      .on({"cudaMemset2D"}, set_fills_padding);

  fault(
      "import-set-one-byte-more", {"LMEM-35"},
      "a memset of an odd number of bytes sets one more byte in opened memory")
      .on({kSet}, one_byte_more);

  fault("import-copy-tail-too-long", {"LMEM-35"},
        "a copy whose size is no multiple of 4 clears the bytes after it in "
        "opened memory")
      .on({kCopy}, tail_too_long);

  fault("import-async-copy-tail-too-long", {"LMEM-35"},
        "an asynchronous copy whose size is no multiple of 4 clears the bytes "
        "after it in opened memory")
      .on({kCopyAsync}, tail_too_long);

  fault("import-copy-within-lost", {"LMEM-35"},
        "a copy is lost if both of its addresses are in the same opened memory")
      .on({kCopy}, copy_within_lost);

  fault("import-async-copy-within-lost", {"LMEM-35"},
        "an asynchronous copy is lost if both of its addresses are in the same "
        "opened memory")
      .on({kCopyAsync}, copy_within_lost);

  fault("import-async-copy-offset-lost", {"LMEM-35"},
        "an asynchronous copy from an inner address reads from the start of "
        "opened memory")
      .on({kCopyAsync}, source_offset_lost);

  fault(
      "import-async-copy-2d-pitch-ignored", {"LMEM-35"},
      "an asynchronous copy of a rectangle ignores the pitch of opened memory")
      .on({kCopy2DAsync}, pitch_is_width);

  fault("import-async-copy-2d-last-row-lost", {"LMEM-35"},
        "the last row is missing in an asynchronous copy of a rectangle of "
        "opened memory")
      .on({kCopy2DAsync}, last_row_lost);

  fault("import-set-per-thread-lost", {"LMEM-35"},
        "a memset in a thread's default stream does not reach opened memory")
      .on({kSetAsync}, lost_in_per_thread_stream);

  fault("import-set-in-default-stream-lost", {"LMEM-35"},
        "an asynchronous memset in the default stream does not reach opened "
        "memory")
      .on({kSetAsync}, lost_in_default_stream);

  fault(
      "import-copy-in-default-stream-lost", {"LMEM-35"},
      "an asynchronous copy in the default stream does not reach opened memory")
      .on({kCopyAsync}, lost_in_default_stream);

  fault("import-set-32-counts-bytes", {"LMEM-35"},
        "a memset of 32 bits sets only a quarter of the words in opened memory")
      .on({"cuMemsetD32"}, words_as_bytes);

  fault("import-set-16-low-byte", {"LMEM-35"},
        "a memset of 16 bits writes the lower byte of its value twice to "
        "opened memory")
      .on({"cuMemsetD16"}, low_byte_twice);

  fault("import-async-copy-64-kib", {"LMEM-35"},
        "an asynchronous copy ends after 64 KiB of opened memory")
      .on({kCopyAsync}, first_64_kib);

  fault("import-async-set-64-kib", {"LMEM-35"},
        "an asynchronous memset ends after 64 KiB of opened memory")
      .on({kSetAsync}, first_64_kib);

  fault(
      "open-while-busy-refused", {"LMEM-43"},
      "no memory can be opened while a created stream of the importer has work")
      .on({kLaunch, kCopyAsync, kSetAsync, kWaitWord, kDestroyStream},
          noted_stream)
      .on({kOpen}, WHEN(has_work()), refuses(cudaErrorMapBufferObjectFailed));

  fault(
      "reopen-by-other-api-refused", {"LMEM-14"},
      "memory that one API has closed cannot be opened again by the other API")
      .on({kOpen, kClose}, reopen_by_other_api_refused);

  fault("import-driver-async-set-lost", {"LMEM-35"},
        "asynchronous memsets of the driver API do not reach opened memory")
      .on({kSetAsync},
          WHEN(!call.is_runtime() &&
               is_opened(call.value<CUdeviceptr>(kPointer))),
          lost);

  fault("import-copy-3d-one-pitch", {"LMEM-35"},
        "cudaMemcpy3D copies a box of opened memory with one pitch for both "
        "sides")
      .on({kOpen, kClose, "cudaMemcpy3D"}, changed_box<use_one_pitch>);

  fault("import-copy-3d-one-row-per-layer", {"LMEM-35"},
        "cudaMemcpy3D copies only the first row of each layer of a box of "
        "opened memory")
      .on({kOpen, kClose, "cudaMemcpy3D"}, changed_box<keep_first_rows>);

  fault("import-copy-3d-positions-ignored", {"LMEM-35"},
        "cudaMemcpy3D ignores the positions of a box of opened memory")
      .on({kOpen, kClose, "cudaMemcpy3D"}, changed_box<ignore_positions>);

  fault("import-copy-3d-joins-layers", {"LMEM-35"},
        "cudaMemcpy3D treats the layers of a box of opened memory as adjacent")
      .on({kOpen, kClose, "cudaMemcpy3D"}, changed_box<join_layers>);

  fault("import-copy-2d-one-pitch", {"LMEM-35"},
        "cudaMemcpy2D copies a rectangle of opened memory with one pitch for "
        "both sides")
      .on({kCopy2D}, rectangle_of_one_pitch);

  fault("import-async-copy-2d-one-pitch", {"LMEM-35"},
        "cudaMemcpy2DAsync copies a rectangle of opened memory with one pitch "
        "for both sides")
      .on({kCopy2DAsync}, rectangle_of_one_pitch);

  fault("import-set-3d-joins-layers", {"LMEM-35"},
        "cudaMemset3D treats the layers of a box of opened memory as adjacent")
      .before({"cudaMemset3D"}, [](Call& call) -> bool {
        auto& to = call.at<cudaPitchedPtr>(0);
        const auto& extent = call.at<cudaExtent>(2);
        if (to.ysize == extent.height || extent.depth < 2 || !is_opened(to.ptr))
          return false;
        to.ysize = extent.height;
        return true;
      });

  fault("import-async-set-3d-lost", {"LMEM-35"},
        "cudaMemset3DAsync does not reach opened memory")
      .on({"cudaMemset3DAsync"},
          WHEN(is_opened(call.at<cudaPitchedPtr>(0).ptr)), lost);

  fault("import-async-copy-3d-out-lost", {"LMEM-35"},
        "cudaMemcpy3DAsync out of opened memory does nothing")
      .on({"cudaMemcpy3DAsync"},
          WHEN(is_opened(call.at<const cudaMemcpy3DParms*>(0)->srcPtr.ptr)),
          lost);

  fault("import-driver-copy-2d-lost", {"LMEM-35"},
        "cuMemcpy2D does nothing with opened memory")
      .on({kOpen, kClose, "cuMemcpy2D"}, driver_copy_lost<CUDA_MEMCPY2D>);

  fault("import-driver-async-copy-2d-lost", {"LMEM-35"},
        "cuMemcpy2DAsync does nothing with opened memory")
      .on({kOpen, kClose, "cuMemcpy2DAsync"}, driver_copy_lost<CUDA_MEMCPY2D>);

  fault("import-driver-copy-3d-lost", {"LMEM-35"},
        "cuMemcpy3D does nothing with opened memory")
      .on({kOpen, kClose, "cuMemcpy3D"}, driver_copy_lost<CUDA_MEMCPY3D>);

  fault("import-driver-async-copy-3d-lost", {"LMEM-35"},
        "cuMemcpy3DAsync does nothing with opened memory")
      .on({kOpen, kClose, "cuMemcpy3DAsync"}, driver_copy_lost<CUDA_MEMCPY3D>);

  fault("import-driver-peer-copy-lost", {"LMEM-35"},
        "cuMemcpyPeer does nothing with opened memory")
      .on({"cuMemcpyPeer"}, copy_lost);

  fault("import-driver-async-peer-copy-lost", {"LMEM-35"},
        "cuMemcpyPeerAsync does nothing with opened memory")
      .on({"cuMemcpyPeerAsync"}, copy_lost);

  fault("import-set-rows-16-counts-bytes", {"LMEM-35"},
        "cuMemsetD2D16 of opened memory takes its width as bytes")
      .on({kOpen, kClose, "cuMemsetD2D16"}, row_counts_bytes<2>);

  fault("import-set-rows-32-counts-bytes", {"LMEM-35"},
        "cuMemsetD2D32 of opened memory takes its width as bytes")
      .on({kOpen, kClose, "cuMemsetD2D32"}, row_counts_bytes<4>);

  fault("import-set-rows-8-lost", {"LMEM-35"},
        "cuMemsetD2D8 does not reach opened memory")
      .on({"cuMemsetD2D8"}, WHEN(is_opened(call.at<void*>(0))), lost);

  fault("import-copy-with-managed-lost", {"LMEM-35"},
        "synchronous copies between opened memory and managed memory move "
        "nothing")
      .on({kOpen, kClose, kCopy}, copy_with_other_kind_lost<is_managed>);

  fault("import-copy-with-pool-lost", {"LMEM-35"},
        "synchronous copies between opened memory and stream-ordered memory "
        "move nothing")
      .on({kOpen, kClose, kCopy, kMallocAsync, kFree, kMallocFromPool,
           kFreeAsync},
          copy_with_other_kind_lost<is_stream_ordered>);

  fault("peer-copy-in-lost", {"LMEM-35"},
        "a synchronous copy into opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, kCopy}, peer_access_lost<kPointer>);

  fault("peer-async-copy-in-lost", {"LMEM-35"},
        "an asynchronous copy into opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, kCopyAsync}, peer_access_lost<kPointer>);

  fault("peer-sync-copy-in-lost", {"LMEM-35"},
        "cudaMemcpyPeer into opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, "cudaMemcpyPeer"},
          peer_access_lost<kPointer>);

  fault("peer-copy-2d-in-lost", {"LMEM-35"},
        "cudaMemcpy2D into opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, kCopy2D}, peer_access_lost<kPointer>);

  fault("peer-copy-2d-out-lost", {"LMEM-35"},
        "cudaMemcpy2D out of opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, kCopy2D}, peer_access_lost<kSource>);

  fault("peer-async-set-lost", {"LMEM-35"},
        "an asynchronous memset of opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, kSetAsync}, peer_access_lost<kPointer>);

  fault("peer-set-2d-lost", {"LMEM-35"},
        "cudaMemset2D of opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, "cudaMemset2D"},
          peer_access_lost<kPointer>);

  fault("peer-set-16-lost", {"LMEM-35"},
        "cuMemsetD16 of opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, "cuMemsetD16"},
          peer_access_lost<kPointer>);

  fault("peer-set-32-lost", {"LMEM-35"},
        "cuMemsetD32 of opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, "cuMemsetD32"},
          peer_access_lost<kPointer>);

  fault("import-copy-in-urgent-stream-lost", {"LMEM-35"},
        "asynchronous copies of opened memory do nothing in a stream that has "
        "a priority")
      .on({kCopyAsync}, [](Call& call) {
        int priority = 0;
        DRIVER_CALL(cuStreamGetPriority)
        (call.value<CUstream>(kStream), &priority);
        return priority != 0 && (is_opened(call.value<void*>(kPointer)) ||
                                 is_opened(call.value<void*>(kSource)))
                   ? lost(call)
                   : call.proceed();
      });

  fault("import-set-2d-one-row-lost", {"LMEM-35"},
        "cudaMemset2D of one row does not reach opened memory")
      .on({"cudaMemset2D"},
          WHEN(call.at<size_t>(4) == 1 && is_opened(call.at<void*>(0))), lost);

  fault("copy-between-exporters-lost", {"LMEM-35"},
        "a synchronous copy from opened memory of one exporter to opened "
        "memory of another one moves nothing")
      .on({kGetHandle, kOpen, kClose, kCopy}, copy_between_opened_lost<false>);

  fault("peer-copy-3d-in-lost", {"LMEM-35"},
        "cudaMemcpy3D into opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle}, told_owner)
      .on({"cudaMemcpy3D"},
          WHEN(is_of_peer(call.at<const cudaMemcpy3DParms*>(0)->dstPtr.ptr)),
          lost);

  fault("peer-copy-3d-between-gpus-lost", {"LMEM-35"},
        "cudaMemcpy3DPeer into opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle}, told_owner)
      .on({"cudaMemcpy3DPeer"},
          WHEN(
              is_of_peer(call.at<const cudaMemcpy3DPeerParms*>(0)->dstPtr.ptr)),
          lost);

  fault("reopen-restores-contents", {"LMEM-14"},
        "memory that is opened again has the contents that it had at the close")
      .on({kOpen, kClose}, reopen_restores);

  fault("import-copy-with-chunk-lost", {"LMEM-35"},
        "synchronous copies between opened memory and memory of cuMemCreate "
        "move nothing")
      .on({kCopy},
          WHEN((is_opened(call.value<void*>(kPointer)) &&
                mapping_at(call.value<CUdeviceptr>(kSource)) != 0) ||
               (is_opened(call.value<void*>(kSource)) &&
                mapping_at(call.value<CUdeviceptr>(kPointer)) != 0)),
          lost);

  fault("import-sync-copy-from-pinned-lost", {"LMEM-35"},
        "a synchronous copy from pinned memory into opened memory is lost")
      .on({kOpen, kClose, kCopy}, copy_with_pinned_lost<kPointer>);

  fault("import-sync-copy-to-pinned-lost", {"LMEM-35"},
        "a synchronous copy out of opened memory to pinned memory is lost")
      .on({kOpen, kClose, kCopy}, copy_with_pinned_lost<kSource>);

  fault("copy-between-imports-of-one-lost", {"LMEM-35"},
        "copies between two opened allocations of one exporter move nothing")
      .on({kGetHandle, kOpen, kClose, kCopy, kCopyAsync},
          copy_between_opened_lost<true>);

  fault("import-copy-with-registered-lost", {"LMEM-35"},
        "copies between opened memory and registered host memory move nothing")
      .on({kCopy, kCopyAsync, "cudaHostRegister"}, registered_copy_lost);

  fault("import-async-default-copy-in-lost", {"LMEM-35"},
        "cudaMemcpyAsync of the default kind from the host into opened memory "
        "is lost")
      .on({kCopyAsync},
          WHEN(call.is_runtime() &&
               call.at<cudaMemcpyKind>(3) == cudaMemcpyDefault &&
               is_opened(call.value<void*>(kPointer)) &&
               (is_pageable(call.value<void*>(kSource)) ||
                is_pinned_memory(call.value<void*>(kSource)))),
          lost);

  fault("import-async-set-2d-inside-block-lost", {"LMEM-35"},
        "cudaMemset2DAsync does nothing with opened memory that does not begin "
        "its block")
      .on({kSet2DAsync},
          WHEN(is_opened(call.at<void*>(0)) &&
               is_inside_block(opened_around(call.at<void*>(0)))),
          lost);

  fault("ok-handle-scrambled",
        {"LMEM-01", "LMEM-04", "LMEM-05", "LMEM-24", "LMEM-39"},
        "the bytes of a memory handle are written in another way")
      .before({kOpen},
              [](Call& call) {
                turn(call.at<cudaIpcMemHandle_t>(1));
                return kSuccess;
              })
      .after({kGetHandle},
             [](Call& call) { turn(*call.at<cudaIpcMemHandle_t*>(0)); });

  fault("ok-slow", {"LMEM-02", "LMEM-43", "VMM-07", "POOL-11"},
        "the first 100 calls that share memory take 20 ms longer")
      .before({kGetHandle, kOpen, kImport, kImportPointer}, [](Call&) {
        static std::atomic<int> calls{0};
        if (++calls <= 100)
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
      });

  fault("ok-pageable-copy-returns-early",
        {"LMEM-02", "LMEM-35", "VMM-07", "VMM-30", "POOL-06", "LIFE-01",
         "ARED-01", "ARED-02"},
        "a copy from pageable memory returns before its bytes have arrived")
      .on({kCopy}, ok_pageable_copy_returns_early);

  fault("ok-kernel-starts-late",
        {"LMEM-02", "LEVT-07", "LEVT-08", "LEVT-09", "LEVT-10", "LEVT-18",
         "LEVT-20", "LEVT-25", "FLAG-09", "GRPH-01", "VMM-07", "POOL-06"},
        "a kernel starts 2 ms after the stream has reached it")
      .before({kLaunch}, [](Call& call) {
        const auto stream = call.value<CUstream>(kStream);
        CUstreamCaptureStatus status{};
        if (DRIVER_CALL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
            status == CU_STREAM_CAPTURE_STATUS_NONE) {
          const auto later = [](void*) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          };
          if (DRIVER_CALL(cuLaunchHostFunc)(stream, later, nullptr) ==
              CUDA_SUCCESS)
            call.fired();
        }
        return kSuccess;
      });
}

}  // namespace
}  // namespace ipclab::faults
