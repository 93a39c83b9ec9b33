// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int close_breaks_siblings(Call& call) {
  static Table<std::string, unsigned long long> before;  // the last close
  static std::atomic<unsigned> closes{0};
  const auto self = static_cast<unsigned long long>(getpid());
  const auto last = [](const std::string& handle) {
    return told("closed-" + handle, 0);
  };
  if (is_open_call(call)) {
    const std::string handle = key_of_handle(given(call));
    if (!is_held(handle)) before.put(handle, last(handle));
    return call.proceed();
  }
  if (is_close_call(call)) {
    const Opened one = opened.get(closed(call));
    const int code = call.proceed();
    if (code == kSuccess && one.count == 1)
      tell_processes("closed-" + one.handle, self << 32 | ++closes);
    return code;
  }
  {
    // No other thread may go on before the memory is unmapped.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    for (const auto& [address, one] : opened.all()) {
      const auto close = last(one.handle);
      if (close != before.get(one.handle) && close >> 32 != self &&
          unmap(address))
        call.fired();
    }
  }
  return call.proceed();
}

int first_opener_ends_all(Call& call) {
  static auto& first = *new Table<std::string>;
  static auto& later = *new Table<std::string>;  // opened after that close
  if (is_open_call(call)) {
    const int code = call.proceed();
    const std::string key = key_of_opened(call);
    if (code != kSuccess) return code;
    if (first_of_all_processes("opened-" + key)) first.put(key);
    if (told("over-" + key, 0) != 0) later.put(key);
    return code;
  }
  if (is_close_call(call)) {
    const std::string key = opened.get(call.at<void*>(0)).handle;
    const int code = call.proceed();
    if (code == kSuccess && first.has(key) && !opened.has(call.at<void*>(0)))
      tell_processes("over-" + key, static_cast<unsigned long long>(getpid()));
    return code;
  }
  const auto self = static_cast<unsigned long long>(getpid());
  for (const auto& [address, one] : opened.all())
    if (told("over-" + one.handle, self) != self && !later.has(one.handle))
      unmap_fully(call, address, one);
  return call.proceed();
}

int open_in_thread_copies(Call& call) {
  static auto& copies = *new Table<void*, void*>;
  if (is_close_call(call)) {
    void* const copy = call.at<void*>(0);
    if (copies.has(copy)) {
      call.at<void*>(0) = copies.get(copy);
      copies.erase(copy);
      cudaFree(copy);
    }
    return call.proceed();
  }
  void* const before = already_open(call);
  const int code = call.proceed();
  if (code != kSuccess || before == nullptr ||
      opened.get(before).thread == this_thread())
    return code;
  const size_t bytes = size_of(number(before));
  void* copy = nullptr;
  if (cudaMalloc(&copy, bytes) != cudaSuccess) return code;
  cudaMemcpy(copy, before, bytes, cudaMemcpyDefault);
  copies.put(copy, before);
  *call.at<void**>(0) = copy;
  call.fired();
  return code;
}

int copy_in_earlier_thread_lost(Call& call) {
  static std::atomic<int> opens{0};
  static auto& orders = *new Table<void*, int>;
  thread_local const int first = opens;  // how many opens came earlier
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (code == kSuccess && is_open_call(call))
      orders.put(*call.at<void**>(0), ++opens);
    return code;
  }
  if (call.find(kSource) == nullptr || this_thread() == getpid())
    return call.proceed();
  for (const Role role : {kPointer, kSource}) {
    void* const begin = opened_around(call.value<void*>(role));
    if (begin != nullptr && orders.get(begin) > first &&
        opened.get(begin).thread != this_thread())
      return lost(call);
  }
  return call.proceed();
}

int first_open_of_thread_refused(Call& call) {
  return is_first_call_of_thread(call)
             ? refused(call, cudaErrorDeviceUninitialized)
             : call.proceed();
}

FAULTS {
  fault("single-importer", {"LMEM-16", "RANK-01"},
        "a second process cannot open the handle")
      .on({kOpen}, [](Call& call) -> int {
        static Table<std::string> mine;
        const std::string handle = key_of_handle(given(call));
        const bool is_mine = mine.change([&](auto& all) {
          if (all.count(handle) == 0 &&
              first_of_all_processes("importer-" + handle))
            all[handle] = true;
          return all.count(handle) > 0;
        });
        return is_mine ? call.proceed() : refused(call);
      });

  fault("close-breaks-siblings", {"LMEM-13"},
        "a close in one importer unmaps the memory in the other importers")
      .on({kOpen, kClose, kLaunch, kCopy}, close_breaks_siblings);

  fault("thread-local-map", {"LMEM-40"},
        "while a thread has memory open, other threads can launch no kernel "
        "and cannot copy this memory")
      .on({kLaunch, kCopy}, [](Call& call) {
        const bool copies = call.is("cudaMemcpy");
        for (const auto& [address, one] : opened.all())
          if (one.thread != this_thread() &&
              (!copies ||
               opened_around(call.value<void*>(kPointer)) == address ||
               opened_around(call.value<void*>(kSource)) == address))
            return refused(call);
        return call.proceed();
      });

  fault("third-opener-copy", {"LMEM-16"},
        "all processes that open memory get copies, except the first two")
      .on({kOpen, kClose}, [](Call& call) {
        static const bool early =
            first_of_all_processes("one") || first_of_all_processes("two");
        return early ? call.proceed() : open_copy(call, true, SIZE_MAX);
      });

  fault("close-of-other-thread-lost", {"LMEM-40"},
        "a close does nothing if another thread has opened the memory")
      .on({kClose},
          WHEN(opened.get(call.at<void*>(0)).count != 0 &&
               opened.get(call.at<void*>(0)).thread != this_thread()),
          [](Call& call) { return lost(call); });

  fault("mapping-ends-with-thread", {"LMEM-40"},
        "opened memory is closed when the thread that opened it first ends")
      .after({kOpen}, [](Call& call) {
        void* const address = *call.at<void**>(0);
        at_thread_end([address, thread = this_thread()] {
          const Opened one = opened.get(address);
          if (one.count == 0 || one.thread != thread) return;
          // This step does not run inside a call, so it must not call the
          // wrapper.
          static const auto close =
              reinterpret_cast<decltype(cudaIpcCloseMemHandle)*>(
                  resolve_runtime("cudaIpcCloseMemHandle"));
          if (close(address) != cudaSuccess) return;
          count_close(address);
          note_fired("cudaIpcOpenMemHandle");
        });
      });

  fault("third-importer-refused", {"LMEM-16"},
        "only the first two processes that open memory can open it")
      .on({kOpen}, third_process_refused);

  fault(
      "open-by-thread-not-counted", {"LMEM-40"},
      "an open in another thread does not count if the memory is already open")
      .on({kOpen, kClose}, [](Call& call) {
        void* const known = is_open_call(call) ? already_open(call) : nullptr;
        return known != nullptr && opened.get(known).thread != this_thread()
                   ? give_uncounted(call, known)
                   : call.proceed();
      });

  fault("handle-ends-with-thread", {"LMEM-40"},
        "a handle cannot be opened when the thread that exported it has ended")
      .on({kGetHandle, kOpen}, [](Call& call) -> int {
        if (is_open_call(call)) {
          const auto& handle = call.at<cudaIpcMemHandle_t>(1);
          return told("ended-" + key_of_handle(handle), 0) != 0
                     ? refused(call)
                     : call.proceed();
        }
        const int code = call.proceed();
        if (code != kSuccess) return code;
        const std::string key = key_of_handle(*call.at<cudaIpcMemHandle_t*>(0));
        tell_processes("ended-" + key,
                       0);  // an earlier export gave the same bytes
        at_thread_end([key] { tell_processes("ended-" + key, 1); });
        return code;
      });

  fault("ninth-importer-refused", {"LMEM-16"},
        "a ninth process cannot open memory")
      .on({kOpen}, [](Call& call) -> int {
        static const bool early = [] {
          for (int i = 0; i < 8; ++i)
            if (first_of_all_processes("opener-" + std::to_string(i)))
              return true;
          return false;
        }();
        return early ? call.proceed() : refused(call);
      });

  fault("first-opener-close-ends-others", {"LMEM-13"},
        "when the process that has opened memory first closes it, the other "
        "importers lose it")
      .on({kOpen, kClose, kLaunch}, first_opener_ends_all);

  fault("import-write-by-other-thread-lost", {"LMEM-40"},
        "asynchronous copies and memsets into opened memory do nothing in a "
        "thread that has not opened it")
      .on({kCopyAsync, kSetAsync},
          WHEN(opened_around(call.value<void*>(kPointer)) != nullptr &&
               opened.get(opened_around(call.value<void*>(kPointer))).thread !=
                   this_thread()),
          [](Call& call) { return lost(call); });

  fault("open-in-second-thread-copies", {"LMEM-40"},
        "a second open, in another thread, gives a copy at another address")
      .on({kOpen, kClose}, open_in_thread_copies);

  fault("import-copy-in-earlier-thread-lost", {"LMEM-40"},
        "copies of opened memory do nothing in a second thread that used CUDA "
        "before the open")
      .on({kOpen, kClose, kCopy, kCopyAsync, "cudaSetDevice", kFree},
          copy_in_earlier_thread_lost);

  fault("open-as-first-call-refused", {"LMEM-40"},
        "cudaIpcOpenMemHandle is refused as the first call of a thread")
      .on({kOpen}, first_open_of_thread_refused);

  fault("close-as-first-call-lost", {"LMEM-40"},
        "cudaIpcCloseMemHandle does nothing as the first call of a thread")
      .on({kClose}, WHEN(is_first_call_of_thread(call)), lost);

  fault("export-ends-with-allocating-thread", {"LMEM-40"},
        "memory cannot be exported when the thread that allocated it has ended")
      .on({kGetHandle, kMalloc, kFree}, [](Call& call) -> int {
        static auto& makers = *new Table<CUdeviceptr, int>;
        static auto& ended = *new Table<int>;  // threads
        if (exports_memory(call))
          return ended.has(makers.get(call.at<CUdeviceptr>(1)))
                     ? refused(call)
                     : call.proceed();
        if (call.is("cudaFree")) {
          makers.erase(call.at<CUdeviceptr>(0));
          return call.proceed();
        }
        const int code = call.proceed();
        if (code != kSuccess) return code;
        makers.put(*call.at<CUdeviceptr*>(0), this_thread());
        at_thread_end([] { ended.put(this_thread()); });
        return code;
      });

  fault("export-as-first-call-refused", {"LMEM-40"},
        "cudaIpcGetMemHandle is refused as the first call of a thread")
      .on({kGetHandle}, first_open_of_thread_refused);

  fault(
      "memset-as-first-call-lost", {"LMEM-40"},
      "cudaMemset of opened memory does nothing as the first call of a thread")
      .on({kSet},
          WHEN(is_first_call_of_thread(call) && opened.has(call.at<void*>(0))),
          lost);
}

}  // namespace
}  // namespace ipclab::faults
