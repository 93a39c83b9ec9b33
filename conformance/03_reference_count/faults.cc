// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int reopened_unknown(Call& call) {
  static Table<void*> closed, again;
  if (!call.is("cudaPointerGetAttributes")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (is_close_call(call) && !opened.has(call.at<void*>(0))) {
      closed.put(call.at<void*>(0));
      again.erase(call.at<void*>(0));
    } else if (is_open_call(call) && closed.has(*call.at<void**>(0))) {
      again.put(*call.at<void**>(0));
    }
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || !again.has(call.at<void*>(1))) return code;
  *call.at<cudaPointerAttributes*>(0) = cudaPointerAttributes{};
  call.fired();
  return code;
}

int last_close_loses_writes(Call& call) {
  constexpr size_t kMost = 64 << 20;
  static Table<void*, std::vector<char>> before;
  if (is_open_call(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    void* const memory = *call.at<void**>(0);
    const size_t bytes = size_of(number(memory));
    if (opened.get(memory).count != 1 || bytes > kMost) return code;
    std::vector<char> contents(bytes);
    cudaMemcpy(contents.data(), memory, bytes, cudaMemcpyDeviceToHost);
    before.put(memory, contents);
    return code;
  }
  void* const memory = call.at<void*>(0);
  if (opened.get(memory).count == 1 && before.has(memory)) {
    const std::vector<char> old = before.get(memory);
    std::vector<char> now(old.size());
    cudaMemcpy(now.data(), memory, now.size(), cudaMemcpyDeviceToHost);
    before.erase(memory);
    if (now != old) {
      cudaMemcpy(memory, old.data(), old.size(), cudaMemcpyHostToDevice);
      cudaStreamSynchronize(nullptr);
      call.fired();
    }
  }
  return call.proceed();
}

// The ranges of closed memory, which the faults below still know.
Table<CUdeviceptr, size_t> closed_memory;

int noted_closed(Call& call) {
  const Addresses range = is_close_call(call)
                              ? allocation_around(call.at<CUdeviceptr>(0))
                              : Addresses();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_open_call(call))
    closed_memory.erase(allocation_around(*call.at<CUdeviceptr*>(0)).first);
  else if (!opened.has(call.at<void*>(0)))
    closed_memory.put(range.first, range.second);
  return code;
}

Addresses closed_at(CUdeviceptr address) {
  for (const auto& [begin, bytes] : closed_memory.all())
    if (address >= begin && address - begin < bytes) return {begin, bytes};
  return {};
}

int open_after_close_not_counted(Call& call) {
  static auto& lowered = *new Table<void*>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_close_call(call)) {
    void* const closed = call.at<void*>(0);
    if (opened.has(closed))
      lowered.put(closed);
    else
      lowered.erase(closed);
    return code;
  }
  void* const address = *call.at<void**>(0);
  const bool was_lowered = lowered.erase(address);
  if (was_lowered && opened.get(address).count > 1 &&
      cudaIpcCloseMemHandle(address) == cudaSuccess) {
    count_close(address);
    call.fired();
  }
  return code;
}

int closed_inside_known_to_driver(Call& call) {
  static auto& closed = *new Table<CUdeviceptr, size_t>;
  if (keeps_opened(call)) {
    const auto address = is_close_call(call) ? call.at<CUdeviceptr>(0) : 0;
    const size_t bytes = size_of(address);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (is_open_call(call))
      closed.erase(*call.at<CUdeviceptr*>(0));
    else if (!opened.has(call.at<void*>(0)))
      closed.put(address, bytes);
    return code;
  }
  const int code = call.proceed();
  const bool asks_range = call.is("cuMemGetAddressRange");
  if (code == kSuccess || (!asks_range && call.at<CUpointer_attribute>(1) !=
                                              CU_POINTER_ATTRIBUTE_MEMORY_TYPE))
    return code;
  const auto address = call.at<CUdeviceptr>(2);
  for (const auto& [begin, bytes] : closed.all()) {
    if (address <= begin || address - begin >= bytes) continue;
    if (!asks_range) {
      *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
      return accepted(call);
    }
    if (auto* const first = call.at<CUdeviceptr*>(0)) *first = begin;
    if (auto* const size = call.at<size_t*>(1)) *size = bytes;
    return accepted(call);
  }
  return code;
}

int close_marked(Call& call) {
  marks.put(number(closed(call)));
  return kSuccess;
}
// Marks what is not open any more.
int last_close_marked(Call& call) {
  if (!opened.has(closed(call))) marks.put(number(closed(call)));
  return kSuccess;
}
// The call closes opened memory.
int closes_instead(Call& call) {
  void* const address = call.at<void*>(0);
  if (cudaIpcCloseMemHandle(address) != cudaSuccess) return call.proceed();
  count_close(address);
  return lost(call);
}

// How often the handle is open already.
int opens_left(Call& open) {
  void* const known = already_open(open);
  return known == nullptr ? 0 : opened.get(known).count;
}

FAULTS {
  fault("open-second-already-mapped", {"LMEM-08"},
        "a second open of a handle is refused")
      .on({kOpen}, WHEN(already_open(call) != nullptr),
          refuses(cudaErrorAlreadyMapped));

  fault("open-second-not-counted", {"LMEM-08", "LMEM-09", "TENS-03"},
        "a second open of a handle does not raise the reference count")
      .on({kOpen}, WHEN(already_open(call) != nullptr), [](Call& call) {
        result_of(call) = already_open(call);
        return lost(call);
      });

  fault("close-unmaps-at-first", {"LMEM-09", "TENS-03"},
        "the first close unmaps and ignores the reference count")
      .after({kClose}, [](Call& call) {
        while (call.proceed() == kSuccess) call.fired();
        if (call.is_runtime()) cudaGetLastError();
        return kSuccess;
      });

  fault("close-never-unmaps", {"LMEM-10"},
        "the last close lowers the count and does not unmap")
      .on({kClose}, [](Call& call) -> int {
        if (!opened.has(closed(call))) return cudaErrorInvalidValue;
        if (opened.get(closed(call)).count > 1) return call.proceed();
        count_close(closed(call));
        return lost(call);
      });

  fault("ok-close-underflow", {"LMEM-11"},
        "memory that was closed can be closed again and again")
      .after({kClose}, close_marked)
      .on_refusal({kClose}, WHEN(marks.has(number(closed(call)))), accepted);

  fault("close-frees-origin", {"LMEM-12", "SERV-02"},
        "the last close in an importer destroys the exporter's data")
      .before({kClose}, [](Call& call) -> bool {
        void* const address = closed(call);
        return opened.get(address).count == 1 &&
               cudaMemset(address, 0, size_of(number(address))) ==
                   cudaSuccess &&
               cudaDeviceSynchronize() == cudaSuccess;
      });

  fault("ok-close-any-pointer", {"LMEM-29"},
        "a close succeeds for every pointer except null")
      .on({kClose}, [](Call& call) {
        const bool is_null = closed(call) == nullptr;
        const int code = call.proceed();
        return code == kSuccess || is_null ? code : accepted(call);
      });

  fault("close-frees-own-allocation", {"LMEM-29"},
        "a close of an allocation of this process frees it")
      .on_refusal({kClose},
                  WHEN(size_of(call.at<CUdeviceptr>(0)) > 0 &&
                       !is_opened(closed(call))),
                  [](Call& call) {
                    return DRIVER_CALL(cuMemFree)(call.at<CUdeviceptr>(0)) ==
                           CUDA_SUCCESS;
                  });

  fault("ok-import-free-closes", {"LMEM-28"},
        "a free of opened memory is accepted and closes it")
      .on({kFree, kFreeAsync, "cudaFreeHost"},
          WHEN(opened.has(call.at<void*>(0))), closes_instead);

  fault("ok-import-free-does-nothing", {"LMEM-28"},
        "a free of opened memory is accepted and does nothing")
      .on_refusal({kFree, kFreeAsync}, WHEN(opened.has(call.at<void*>(0))),
                  accepted);

  fault("ok-close-refused-as-unsupported", {"LMEM-11", "LMEM-29"},
        "a close of memory that was not opened is refused as not supported")
      .on_refusal({kClose}, WHEN(call.code() != cudaErrorNotSupported),
                  refuses(cudaErrorNotSupported));

  fault("open-third-not-counted", {"LMEM-08", "LMEM-09"},
        "a third open of a handle does not raise the reference count")
      .on({kOpen}, WHEN(opens_left(call) >= 2),
          [](Call& call) { return give_uncounted(call, already_open(call)); });

  fault("open-counts-to-255", {"LMEM-08"},
        "the reference count of opened memory does not rise above 255")
      .on({kOpen}, WHEN(opens_left(call) >= 255),
          [](Call& call) { return give_uncounted(call, already_open(call)); });

  fault("refused-close-closes-another", {"LMEM-29"},
        "a refused close lowers the count of other memory")
      .on_refusal({kClose}, [](Call&) {
        for (const auto& [address, one] : opened.all()) {
          if (one.context != current_context()) continue;
          if (DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) != CUDA_SUCCESS)
            return false;
          count_close(address);
          return true;
        }
        return false;
      });

  fault("close-too-often-closes-neighbour", {"LMEM-11"},
        "a close of memory that is not open any more closes other memory of "
        "the same block of 2 MiB")
      .on({kClose}, WHEN(!opened.has(call.at<void*>(0))), [](Call& call) {
        const auto block = [](const void* address) {
          return number(address) >> 21;
        };
        for (const auto& each : opened.all()) {
          if (block(each.first) != block(call.at<void*>(0))) continue;
          call.at<void*>(0) = each.first;
          call.fired();
          break;
        }
        return call.proceed();
      });

  fault("close-waits-for-others", {"LMEM-10"},
        "the last close unmaps nothing while another handle is open")
      .on({kClose}, [](Call& call) -> int {
        static Table<void*> kept;
        void* const address = call.at<void*>(0);
        if (opened.get(address).count == 1 && opened.all().size() > 1) {
          opened.erase(address);
          // If the memory was opened again, the mapping is kept already.
          return kept.put(address) ? lost(call) : call.proceed();
        }
        const int code = call.proceed();
        if (!opened.all().empty()) return code;
        for (const auto& one : kept.all()) {
          cudaIpcCloseMemHandle(one.first);
          kept.erase(one.first);
        }
        return code;
      });

  fault("attributes-stay", {"LMEM-10"},
        "memory that was closed is still reported as device memory")
      .after({kPointerAttributes}, [](Call& call) {
        static Table<void*, cudaPointerAttributes> known;
        auto& found = *call.at<cudaPointerAttributes*>(0);
        void* const address = call.at<void*>(1);
        if (opened.has(address)) known.put(address, found);
        if (opened.has(address) || !known.has(address) ||
            found.type != cudaMemoryTypeUnregistered)
          return false;
        found = known.get(address);
        return true;
      });

  fault("import-attr-first-only", {"LMEM-10"},
        "cudaPointerGetAttributes knows only the memory that was opened first")
      .on({kPointerAttributes, kOpen, kClose}, [](Call& call) -> int {
        static Table<int, void*> first;
        const int code = retold(
            call,
            [](const void* pointer) {
              void* const one = opened_around(pointer);
              return one != nullptr && one != first.get(0);
            },
            forget);
        if (is_open_call(call) && code == kSuccess && !first.has(0))
          first.put(0, *call.at<void**>(0));
        return code;
      });

  fault("import-attr-until-first-close", {"LMEM-10"},
        "cudaPointerGetAttributes does not know opened memory after one of two "
        "closes")
      .on({kPointerAttributes, kOpen, kClose}, [](Call& call) -> int {
        static Table<void*> once_closed;
        const int code = retold(
            call,
            [](const void* pointer) {
              void* const one = opened_around(pointer);
              return one != nullptr && once_closed.has(one);
            },
            forget);
        if (code != kSuccess) return code;
        if (is_close_call(call)) once_closed.put(call.at<void*>(0));
        if (is_open_call(call)) once_closed.erase(*call.at<void**>(0));
        return code;
      });

  fault("last-close-loses-writes", {"LMEM-12"},
        "the last close restores what the memory contained at the open")
      .on({kOpen, kClose}, last_close_loses_writes);

  fault("reopened-unknown", {"LMEM-10", "LMEM-36"},
        "cudaPointerGetAttributes does not know memory that was closed and "
        "opened again")
      .on({kPointerAttributes, kOpen, kClose}, reopened_unknown);

  fault("close-counts-twice-above-two", {"LMEM-09"},
        "a close lowers a count of more than two by two")
      .after({kClose}, WHEN(opened.get(closed(call)).count > 1),
             [](Call& call) {
               count_close(closed(call));
               call.fired();
               return static_cast<int>(cudaIpcCloseMemHandle(closed(call)));
             });

  fault("reopen-counts-twice", {"LMEM-10", "LMEM-14"},
        "the count of memory that was closed and is opened again starts at two")
      .on({kOpen, kClose}, [](Call& call) {
        static Table<std::string> closed;
        const std::string handle =
            is_close_call(call) ? opened.get(call.at<void*>(0)).handle : "";
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (is_close_call(call)) {
          if (!opened.has(call.at<void*>(0))) closed.put(handle);
          return code;
        }
        void* again = nullptr;
        if (closed.erase(key_of_opened(call)) &&
            cudaIpcOpenMemHandle(&again, call.at<cudaIpcMemHandle_t>(1),
                                 cudaIpcMemLazyEnablePeerAccess) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("second-open-clears", {"LMEM-08"},
        "the second open of memory clears its first bytes")
      .after({kOpen}, [](Call& call) -> int {
        void* const address = *call.at<void**>(0);
        if (opened.get(address).count < 2) return kSuccess;
        call.fired();
        return cudaMemset(address, 0, 16);
      });

  fault("close-ends-handle", {"LMEM-12"},
        "when a process has closed memory, no other process can open it")
      .on({kOpen},
          WHEN(told("closer-" + key_of_opened(call), this_process()) !=
               this_process()),
          refuses())
      .on({kClose}, [](Call& call) {
        const std::string handle = opened.get(closed(call)).handle;
        const int code = call.proceed();
        if (code == kSuccess && !opened.has(closed(call)))
          tell_processes("closer-" + handle, this_process());
        return code;
      });

  fault("range-of-closed-told", {"LMEM-10"},
        "memory that was closed still has a range")
      .on({kOpen, kClose}, noted_closed)
      .on_refusal({"cuMemGetAddressRange"},
                  WHEN(closed_at(call.at<CUdeviceptr>(2)).second != 0),
                  [](Call& call) {
                    const Addresses range = closed_at(call.at<CUdeviceptr>(2));
                    if (auto* const first = call.at<CUdeviceptr*>(0))
                      *first = range.first;
                    if (auto* const size = call.at<size_t*>(1))
                      *size = range.second;
                    return accepted(call);
                  });

  fault("closed-known-to-driver", {"LMEM-10"},
        "cuPointerGetAttribute still tells the type of memory that was closed")
      .on({kOpen, kClose}, noted_closed)
      .on_refusal({kGetAttribute},
                  WHEN(closed_at(call.at<CUdeviceptr>(2)).second != 0 &&
                       asks(call, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)),
                  [](Call& call) {
                    *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
                    return accepted(call);
                  });

  fault("closed-known-to-many", {"LMEM-10"},
        "the query of many attributes still tells the type of memory that was "
        "closed")
      .on({kGetAttributes, kOpen, kClose}, [](Call& call) -> int {
        if (keeps_opened(call)) return noted_closed(call);
        const int code = call.proceed();
        if (code != kSuccess ||
            closed_at(call.at<CUdeviceptr>(3)).second == 0 ||
            allocation_around(call.at<CUdeviceptr>(3)).first != 0)
          return code;
        for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
          if (call.at<CUpointer_attribute*>(1)[i] ==
              CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            *static_cast<unsigned*>(call.at<void**>(2)[i]) =
                CU_MEMORYTYPE_DEVICE;
            call.fired();
          }
        return code;
      });

  fault("closed-inside-known", {"LMEM-10"},
        "cudaPointerGetAttributes still knows addresses inside memory that was "
        "closed")
      .on({kPointerAttributes, kOpen, kClose}, [](Call& call) -> int {
        if (keeps_opened(call)) return noted_closed(call);
        const int code = call.proceed();
        const CUdeviceptr address = call.at<CUdeviceptr>(1);
        if (code != kSuccess || allocation_around(address).first != 0 ||
            closed_at(address).second == 0 ||
            closed_at(address).first == address)
          return code;
        auto& told = *call.at<cudaPointerAttributes*>(0);
        told.type = cudaMemoryTypeDevice;
        told.devicePointer = call.at<void*>(1);
        call.fired();
        return code;
      });

  fault("close-while-busy-lost", {"LMEM-10"},
        "the last close unmaps nothing while a created stream has work")
      .on({kClose, kLaunch, kCopyAsync, kSetAsync, kWaitWord, kDestroyStream},
          [](Call& call) -> int {
            if (call.find(kStream) != nullptr) return noted_stream(call);
            if (is_close_call(call) &&
                opened.get(call.at<void*>(0)).count == 1 && has_work()) {
              count_close(call.at<void*>(0));
              return lost(call);
            }
            return call.proceed();
          });

  fault("refused-free-closes", {"LMEM-28"},
        "a refused free of opened memory closes it")
      .on_refusal({kFree, kFreeAsync}, WHEN(opened.has(call.at<void*>(0))),
                  [](Call& call) {
                    if (DRIVER_CALL(cuIpcCloseMemHandle)(
                            call.at<CUdeviceptr>(0)) != CUDA_SUCCESS)
                      return false;
                    count_close(call.at<void*>(0));
                    return true;
                  });

  fault("open-after-close-not-counted", {"LMEM-08"},
        "if memory is still open after a close, the next open does not raise "
        "the count")
      .on({kOpen, kClose}, open_after_close_not_counted);

  fault("small-close-never-unmaps", {"LMEM-10"},
        "the last close of a small allocation does not unmap it")
      .on({kClose}, [](Call& call) -> int {
        static auto& closed = *new Table<void*>;
        void* const address = call.at<void*>(0);
        if (!opened.has(address) && closed.has(address))
          return cudaErrorInvalidValue;
        if (opened.get(address).count != 1 ||
            size_of(number(address)) >= kBlock)
          return call.proceed();
        count_close(address);
        closed.put(address);
        return lost(call);
      });

  fault("refused-inside-close-counts", {"LMEM-29"},
        "a refused close of an address inside opened memory lowers the count")
      .on_refusal({kClose}, [](Call& call) {
        void* const first = opened_around(closed(call));
        if (first == nullptr || opened.get(first).count < 2 ||
            DRIVER_CALL(cuIpcCloseMemHandle)(number(first)) != CUDA_SUCCESS)
          return false;
        count_close(first);
        return true;
      });

  fault("closed-inside-known-to-driver", {"LMEM-10"},
        "the driver API still knows addresses inside memory that was closed")
      .on({kOpen, kClose, kGetAttribute, "cuMemGetAddressRange"},
          closed_inside_known_to_driver);

  fault("open-counts-to-65535", {"LMEM-08"},
        "the reference count of opened memory does not rise above 65535")
      .on({kOpen}, WHEN(opens_left(call) >= 65535),
          [](Call& call) { return uncounted(call, already_open(call)); });

  fault("closed-memory-exported", {"LMEM-10"},
        "memory that was opened and closed gets a handle, which opens other "
        "memory")
      .after({kClose}, last_close_marked)
      .on({kGetHandle}, [](Call& call) {
        return exported_all_the_same(call,
                                     marks.has(number(call.at<void*>(1))) &&
                                         !opened.has(call.at<void*>(1)));
      });

  fault("ok-different-va", {"LMEM-08", "LMEM-15"},
        "processes get different addresses for the same handle")
      .on({kOpen}, [](Call& call) -> int {
        // One reservation in each process moves all later mappings of the
        // process.
        static const bool shifted = [] {
          CUdeviceptr gap = 0;
          const size_t size = (static_cast<size_t>(getpid()) % 61 + 1) * kBlock;
          return DRIVER_CALL(cuMemAddressReserve)(&gap, size, 0, 0, 0) ==
                 CUDA_SUCCESS;
        }();
        if (shifted) call.fired();
        return call.proceed();
      });

  fault("ok-launch-returns-late",
        {"LMEM-10", "LEVT-07", "LEVT-08", "LEVT-13", "SUBA-02", "VMM-18",
         "POOL-06"},
        "a launch returns 2 ms later, when its kernel may have ended")
      .after({kLaunch}, [](Call&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      });

  fault("ok-open-and-close-wait", {"LMEM-10", "LMEM-43"},
        "an open and a close wait for all work of the context")
      .before({kOpen, kClose}, [](Call&) { cudaDeviceSynchronize(); });

  fault("ok-reopen-elsewhere",
        {"LMEM-08", "LMEM-09", "LMEM-10", "LMEM-11", "LMEM-12", "LMEM-28",
         "LMEM-29", "LMEM-45"},
        "memory that is opened again after its last close has another address")
      .before({kOpen}, [](Call& call) -> bool {
        CUdeviceptr gap = 0;
        return already_open(call) == nullptr &&
               DRIVER_CALL(cuMemAddressReserve)(&gap, kBlock, 0, 0, 0) ==
                   CUDA_SUCCESS;
      });

  fault("ok-open-starts-thread",
        {"LMEM-08", "LMEM-11", "LMEM-28", "LMEM-45", "LIFE-13", "LIFE-16"},
        "the first open of a process starts a thread of the driver, which "
        "stays")
      .before({kOpen}, [](Call&) {
        static const bool started = [] {
          std::thread([] { pause(); }).detach();
          return true;
        }();
        return started;
      });

  fault("ok-free-waits",
        {"LMEM-12", "LMEM-28", "LMEM-29", "LEVT-10", "LEVT-13", "SOMA-19",
         "SOMA-24", "POOL-14", "SERV-02"},
        "a free of memory that no pool gave waits for all work of the context")
      .before(
          {kFree},
          WHEN(call.at<void*>(0) != nullptr && !blocks.has(call.at<void*>(0))),
          [](Call&) { cudaDeviceSynchronize(); });
}

}  // namespace
}  // namespace ipclab::faults
