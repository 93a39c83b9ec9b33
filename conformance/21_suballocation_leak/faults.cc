// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int map_beyond_chunk(Call& call) {
  const CUdeviceptr address = call.at<CUdeviceptr>(0);
  const size_t bytes = call.at<size_t>(1);
  static Table<CUdeviceptr, size_t> extra;
  if (call.is("cuMemUnmap")) {
    const int code = call.proceed();
    for (const CUdeviceptr beside : {address - bytes, address + bytes})
      if (code == kSuccess && extra.erase(beside))
        DRIVER_CALL(cuMemUnmap)(beside, bytes);
    return code;
  }
  // The program may map its own memory there.
  const size_t there = extra.get(address);
  if (extra.erase(address)) DRIVER_CALL(cuMemUnmap)(address, there);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const Chunk chunk = call.at<Chunk>(3);
  for (const CUdeviceptr beside : {address - bytes, address + bytes}) {
    const Chunk other = private_chunk(chunk, bytes);
    if (DRIVER_CALL(cuMemMap)(beside, bytes, 0, other, 0) == CUDA_SUCCESS) {
      allow(beside, bytes, on_gpu(properties_of(chunk).location.id));
      extra.put(beside, bytes);
      call.fired();
    }
    DRIVER_CALL(cuMemRelease)(other);
  }
  return code;
}

bool are_of_one_context(const Opened& one, const Opened& other) {
  return one.context == other.context;
}

int close_takes_last_opened(Call& call) {
  static Table<void*, void*> instead;
  static std::mutex mutex;
  static auto& order = *new std::vector<void*>;
  const std::lock_guard lock(mutex);
  if (is_open_call(call)) {
    const int code = call.proceed();
    if (code == kSuccess && opened.get(*call.at<void**>(0)).count == 1)
      order.push_back(*call.at<void**>(0));
    return code;
  }
  void*& address = call.at<void*>(0);
  if (instead.has(address)) {
    void* const real = instead.get(address);
    instead.erase(address);
    address = real;
  } else if (order.size() > 1 && order.back() != address &&
             opened.get(address).count == 1 &&
             opened.get(order.back()).count == 1 &&
             opened.get(order.back()).context == opened.get(address).context) {
    instead.put(order.back(), address);
    address = order.back();
    call.fired();
  }
  order.erase(std::remove(order.begin(), order.end(), address), order.end());
  return call.proceed();
}

constexpr CUdeviceptr kHandleBlock = 2 << 20;

int export_after_neighbour_free(Call& call) {
  static Table<CUdeviceptr, CUdeviceptr> freed;        // by block
  static Table<CUdeviceptr, CUdeviceptr> opened_here;  // given, right
  if (call.is("cudaMalloc")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const auto memory = *call.at<CUdeviceptr*>(0);
    if (freed.get(memory / kHandleBlock) == memory)
      freed.erase(memory / kHandleBlock);
    return code;
  }
  if (call.is("cudaFree")) {
    const auto memory = call.at<CUdeviceptr>(0);
    const size_t bytes = size_of(memory);
    const int code = call.proceed();
    if (code == kSuccess && bytes > 0 && bytes < kHandleBlock)
      freed.put(memory / kHandleBlock, memory);
    return code;
  }
  if (is_close_call(call)) {
    auto& memory = call.at<CUdeviceptr>(0);
    memory = opened_here.get(memory, memory);
    return call.proceed();
  }
  const std::string open_key =
      is_open_call(call)
          ? "shift-" + key_of_handle(call.at<cudaIpcMemHandle_t>(1))
          : "";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_memory(call)) {
    const auto memory = call.at<CUdeviceptr>(1);
    const CUdeviceptr other = freed.get(memory / kHandleBlock, memory);
    if (other == memory || size_of(memory) >= kHandleBlock) return code;
    tell_processes("shift-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                   other - memory);
    return code;
  }
  auto& memory = *call.at<CUdeviceptr*>(0);
  const CUdeviceptr right = memory;
  memory += told(open_key, 0);
  if (memory == right) return code;
  opened_here.put(memory, right);
  call.fired();
  return code;
}

int reopened_without_offset(Call& call) {
  static Table<std::string> closed;
  static Table<CUdeviceptr, CUdeviceptr> right;
  if (is_close_call(call)) {
    auto& address = call.at<CUdeviceptr>(0);
    const CUdeviceptr given = address;
    address = right.get(given, given);
    const std::string handle =
        opened.get(reinterpret_cast<void*>(address)).handle;
    const int code = call.proceed();
    if (code != kSuccess || is_opened(address)) return code;
    closed.put(handle);
    right.erase(given);
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  const CUdeviceptr block = address - address % kGranule;
  if (block == address ||
      !closed.has(opened.get(reinterpret_cast<void*>(address)).handle))
    return code;
  right.put(block, address);
  address = block;
  call.fired();
  return code;
}

// Notes exports and frees. When an exported small allocation is freed, tells
// the handles of its neighbours in the block to the other processes.
int noted_neighbours(Call& call) {
  static auto& exported = *new Table<CUdeviceptr, std::string>;
  const auto address = call.at<CUdeviceptr>(exports_memory(call) ? 1 : 0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_memory(call))
    exported.put(address, key_of_exported(call));
  else if (exported.erase(address))
    for (const auto& [other, handle] : exported.all())
      if (other / kBlock == address / kBlock)
        tell_processes("ended-" + handle, 1);
  return code;
}

FAULTS {
  fault("suballoc-offset-lost", {"SUBA-05"},
        "an open gives the start of the block that the memory lies in")
      .after({kOpen}, [](Call& call) -> int {
        void*& address = result_of(call);
        const CUdeviceptr base = number(address) & ~(kBlock - 1);
        if (size_of(number(address)) >= kBlock || base == number(address))
          return kSuccess;
        address = reinterpret_cast<void*>(base);
        call.fired();
        return kSuccess;
      });

  fault(
      "close-unmaps-block", {"SUBA-06"},
      "the last close of memory also ends the other mappings in the same 2 MiB")
      .on({kClose}, [](Call& call) {
        void* const address = closed(call);
        const int code = call.proceed();
        if (code != kSuccess || opened.has(address)) return code;
        for (const auto& each : opened.all())
          if (number(each.first) / kBlock == number(address) / kBlock &&
              unmap(each.first))
            call.fired();
        return code;
      });

  fault("vmm-shares-neighbour", {"SUBA-09"},
        "the addresses before and after a mapping can also be used")
      .on({kMap, kUnmap}, map_beyond_chunk);

  fault("close-ends-all", {"SUBA-06", "CACH-01"},
        "the last close of one handle also closes all other handles")
      .on({kOpen, kClose}, close_ends_others<are_of_one_context>);

  fault("close-takes-last-opened", {"SUBA-06"},
        "a close unmaps the memory that was opened last, not its argument")
      .on({kOpen, kClose}, close_takes_last_opened);

  fault("close-needs-reverse-order", {"SUBA-06"},
        "memory can only be closed in the reverse order of the opens")
      .on({kOpen, kClose}, [](Call& call) {
        static std::mutex mutex;
        static auto& order = *new std::vector<void*>;
        const std::lock_guard lock(mutex);
        if (is_open_call(call)) {
          const int code = call.proceed();
          if (code == kSuccess && opened.get(*call.at<void**>(0)).count == 1)
            order.push_back(*call.at<void**>(0));
          return code;
        }
        void* const address = call.at<void*>(0);
        if (opened.get(address).count != 1) return call.proceed();
        if (order.back() != address) return refused(call);
        order.pop_back();
        return call.proceed();
      });

  fault("suballoc-memset-at-first", {"SUBA-05"},
        "a memset of a small opened allocation sets the first opened "
        "allocation of its block")
      .on({kSet}, [](Call& call) {
        constexpr uintptr_t kBlock = 2 << 20;
        auto& address = call.at<uintptr_t>(0);
        if (!is_opened(address) || size_of(address) >= kBlock)
          return call.proceed();
        for (const auto& each : opened.all()) {
          const auto other = reinterpret_cast<uintptr_t>(each.first);
          if (other / kBlock != address / kBlock || other >= address ||
              size_of(other) < call.at<size_t>(2))
            continue;
          address = other;
          call.fired();
          break;
        }
        return call.proceed();
      });

  fault("suballoc-offset-16-bits", {"SUBA-05"},
        "an open keeps only 16 bits of the offset in a shared block")
      .on({kOpen}, [](Call& open) {
        constexpr uintptr_t kBlock = 2 << 20;
        const int code = open.proceed();
        if (code != kSuccess) return code;
        auto& address = *open.at<uintptr_t*>(0);
        const uintptr_t offset = address % kBlock;
        if (size_of(address) >= kBlock || offset <= UINT16_MAX) return code;
        address -= offset - (offset & UINT16_MAX);
        open.fired();
        return code;
      });

  fault("export-after-neighbour-free", {"SUBA-06"},
        "after the free of a small allocation, new handles of its neighbours "
        "in the block open at its address")
      .on({kGetHandle, kOpen, kClose, kFree, kMalloc},
          export_after_neighbour_free);

  fault("copy-within-block-from-start", {"SUBA-05"},
        "a copy between two opened allocations of one block reads from the "
        "start of the block")
      .before({kCopy, kCopyAsync}, [](Call& call) -> bool {
        auto& source = call.at<CUdeviceptr>(1);
        const CUdeviceptr begin = source - source % kHandleBlock;
        void* const from = opened_around(reinterpret_cast<void*>(source));
        void* const to = opened_around(call.at<void*>(0));
        if (from == nullptr || to == nullptr || from == to ||
            call.at<CUdeviceptr>(0) / kHandleBlock != source / kHandleBlock ||
            begin == source)
          return false;
        source = begin;
        return true;
      });

  fault("import-copy-equal-size-confused", {"SUBA-05", "RANK-01"},
        "a copy uses the one with the lowest address of several equally large "
        "allocations of opened memory")
      .on({kCopy}, equal_size_confused);

  fault("reopened-without-offset", {"SUBA-06"},
        "a small allocation that was closed opens again as the start of its "
        "block")
      .on({kOpen, kClose}, reopened_without_offset);

  fault("suballoc-offset-20-bits", {"SUBA-05"},
        "an open keeps only 20 bits of the offset in a shared block")
      .on({kOpen}, [](Call& open) {
        constexpr CUdeviceptr kKept = (1 << 20) - 1;
        const int code = open.proceed();
        if (code != kSuccess) return code;
        auto& address = *open.at<CUdeviceptr*>(0);
        const CUdeviceptr offset = address % kBlock;
        if (size_of(address) >= kBlock || offset <= kKept) return code;
        address -= offset - (offset & kKept);
        open.fired();
        return code;
      });

  fault("free-ends-handles-in-block", {"SUBA-06"},
        "when an exported small allocation is freed, handles of its neighbours "
        "in the block no longer open")
      .on({kGetHandle, kOpen, kFree}, [](Call& call) -> int {
        if (!is_open_call(call)) return noted_neighbours(call);
        return told("ended-" + key_of_opened(call), 0) != 0 ? refused(call)
                                                            : call.proceed();
      });

  fault("free-ends-mappings-in-block", {"SUBA-06"},
        "when an exported small allocation is freed, importers lose the memory "
        "of its neighbours in the block")
      .on({kGetHandle, kFree, kLaunch}, [](Call& call) -> int {
        if (!call.is("cudaLaunchKernel")) return noted_neighbours(call);
        for (const auto& [address, one] : opened.all())
          if (told("ended-" + one.handle, 0) != 0)
            unmap_fully(call, address, one);
        return call.proceed();
      });

  fault("second-open-without-offset", {"SUBA-06"},
        "the second open of a small allocation gives the start of its block")
      .on({kOpen, kClose}, [](Call& call) {
        const bool again = is_open_call(call) && already_open(call) != nullptr;
        const int code = call.proceed();
        if (code != kSuccess || !again) return code;
        auto& address = *call.at<CUdeviceptr*>(0);
        if (address % kBlock == 0) return code;
        address -= address % kBlock;
        call.fired();
        return code;
      });

  fault("two-blocks-are-four", {"SUBA-03"},
        "an allocation of 4 MiB gets 8 MiB, and shares all of them")
      .before({kMalloc}, [](Call& call) {
        size_t& bytes = call.at<size_t>(1);
        if (bytes == 2 * kBlock) {
          bytes *= 2;
          call.fired();
        }
        return kSuccess;
      });

  fault("ok-no-suballoc", {"SUBA-01", "SUBA-05", "LMEM-17", "LMEM-36"},
        "cudaMalloc gives every allocation its own block")
      .before({kMalloc}, [](Call& call) {
        size_t& bytes = call.at<size_t>(1);
        if (bytes % kBlock != 0 && bytes < (size_t{64} << 20)) {
          bytes += kBlock - bytes % kBlock;
          call.fired();
        }
        return kSuccess;
      });
}

}  // namespace
}  // namespace ipclab::faults
