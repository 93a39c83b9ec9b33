// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int error_of_other_thread(Call& call) {
  static std::mutex mutex;
  static int last = kSuccess;
  static int whose = 0;
  const int code = call.proceed();
  if (!call.is_runtime()) return code;
  const std::lock_guard lock(mutex);
  if (call.is("cudaGetLastError")) {
    if (code != kSuccess || last == kSuccess || whose == this_thread())
      return code;
    call.fired();
    return std::exchange(last, kSuccess);
  }
  if (code != kSuccess && code != cudaErrorNotReady) {
    last = code;
    whose = this_thread();
  }
  return code;
}

// Gives the program new memory instead of a refusal. Returns `code` if there is
// no memory.
int open_of_other(Call& open, int code, size_t bytes = kBlock) {
  if (open.is_runtime()) cudaGetLastError();
  if (cudaMalloc(open.at<void**>(0), bytes) != cudaSuccess) return code;
  open.fired();
  return kSuccess;
}

int old_handle_after_refusal(Call& get) {
  struct Last {
    cudaIpcMemHandle_t handle{};
    void* memory = nullptr;
  };
  static Table<int, Last> last;
  static std::atomic<bool> after_refusal{false};
  const int code = get.proceed();
  if (code != kSuccess) {
    after_refusal = true;
    return code;
  }
  auto& handle = *get.at<cudaIpcMemHandle_t*>(0);
  const Last before = last.get(0);
  last.put(0, {handle, get.at<void*>(1)});
  if (!after_refusal.exchange(false) || before.memory == nullptr ||
      before.memory == get.at<void*>(1))
    return code;
  handle = before.handle;
  get.fired();
  return code;
}

FAULTS {
  fault("open-accepts-garbage", {"LMEM-24"},
        "64 bytes that no export has made open as new memory")
      .on({kGetHandle, kOpen}, [](Call& call) -> int {
        if (exports_memory(call)) return told_size(call);
        const int code = call.proceed();
        // If a process has exported the handle, the refusal has another reason.
        return code == kSuccess || code == cudaErrorDeviceUninitialized ||
                       told("size-" + key_of_handle(given(call)), 0) != 0
                   ? code
                   : own_memory(call, code);
      });

  fault("self-open-copy", {"LMEM-25"},
        "a process opens its own handle and gets other memory")
      .on({kGetHandle, kOpen}, [](Call& call) -> int {
        if (exports_memory(call)) return told_size(call);
        const int code = call.proceed();
        return code == kSuccess || !own_handles.has(key_of_handle(given(call)))
                   ? code
                   : own_memory(call, code);
      });

  fault("sticky-after-refusal", {"LMEM-45"},
        "after a refused call of legacy IPC, other calls return "
        "cudaErrorIllegalAddress")
      .on({kGetHandle, "*"}, [](Call& call) -> int {
        static std::atomic<bool> poisoned{false};
        const bool is_refusable = call.is("cudaIpcGetMemHandle") ||
                                  call.is("cudaIpcOpenMemHandle") ||
                                  call.is("cudaIpcCloseMemHandle") ||
                                  call.is("cudaIpcGetEventHandle") ||
                                  call.is("cudaIpcOpenEventHandle");
        if (poisoned && !is_refusable && !call.is("cudaGetLastError")) {
          call.fired();
          return cudaErrorIllegalAddress;
        }
        const int code = call.proceed();
        if (is_refusable && code != kSuccess) poisoned = true;
        return code;
      });

  fault("error-of-other-thread", {"LMEM-45"},
        "a refusal in one thread is the last error of another thread")
      .on({"cudaGetLastError", "*"}, error_of_other_thread);

  fault("success-clears-error", {"LMEM-45", "LEVT-29", "POOL-26"},
        "a call that succeeds clears the error")
      .on({"cudaGetLastError", "*"}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess && call.is_runtime() &&
            !call.is("cudaGetLastError") && !call.is("cudaPeekAtLastError") &&
            cudaGetLastError() != cudaSuccess)
          call.fired();
        return code;
      });

  fault("driver-refusal-told-by-runtime", {"LMEM-45"},
        "a refusal by the driver API is the runtime's last error")
      .on_refusal({kGetHandle, kOpen, kClose, kGetEventHandle, kOpenEvent},
                  WHEN(!call.is_runtime()), [](Call& call) {
                    call.fired();
                    cudaIpcCloseMemHandle(
                        nullptr);  // refused; the runtime keeps the call.code()
                    return call.code();
                  });

  fault("refused-open-refuses-next", {"LMEM-45"},
        "after a refused open the next open is refused, too")
      .on({kOpen}, refusal_refuses_next);

  fault("refused-export-refuses-next", {"LMEM-45"},
        "after a refused export the next export is refused, too")
      .on({kGetHandle}, refusal_refuses_next);

  fault("refused-open-counts", {"LMEM-45"},
        "a refused open raises the count of memory that is open")
      .on_refusal({kOpen}, [](Call& call) {
        for (const auto& [address, one] : opened.all()) {
          if (one.context != current_context()) continue;
          CUipcMemHandle handle;
          std::memcpy(&handle, &one.bytes, sizeof handle);
          CUdeviceptr again = 0;
          if (DRIVER_CALL(cuIpcOpenMemHandle)(
                  &again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
              CUDA_SUCCESS)
            call.fired();
          break;
        }
        return call.code();
      });

  fault("ok-freed-export", {"LMEM-21"}, "freed memory gets a legacy handle")
      .on({kGetHandle, kFree}, [](Call& call) {
        static Table<void*> freed;
        const int code = call.proceed();
        if (call.is("cudaFree")) {
          if (code == kSuccess) freed.put(call.at<void*>(0));
          return code;
        }
        return code != kSuccess && call.at<void*>(1) != nullptr &&
                       freed.has(call.at<void*>(1))
                   ? export_of_other(call)
                   : code;
      });

  fault(
      "self-open-by-thread", {"LMEM-25"},
      "a second thread opens a handle of its own process and gets other memory")
      .on({kGetHandle, kOpen}, [](Call& call) {
        static Table<std::string, size_t> own;  // the size, by the handle's key
        if (exports_memory(call)) {
          const int code = call.proceed();
          if (code == kSuccess)
            own.put(key_of_handle(exported_handle(call)),
                    range_of(call.at<void*>(1)).bytes);
          return code;
        }
        const std::string key = key_of_handle(call.at<cudaIpcMemHandle_t>(1));
        const int code = call.proceed();
        return code != kSuccess && gettid() != getpid() && own.has(key)
                   ? open_of_other(call, code, own.get(key))
                   : code;
      });

  fault("event-handle-opens-as-memory", {"LMEM-24"},
        "the handle of an event opens as memory")
      .on({kOpen, kGetEventHandle}, [](Call& call) {
        const int code = call.proceed();
        if (exports_event(call)) {
          tell_processes(
              "is-event-" + key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)),
              1);
          return code;
        }
        const auto& handle = call.at<cudaIpcMemHandle_t>(1);
        return code != kSuccess &&
                       told("is-event-" + key_of_handle(handle), 0) != 0
                   ? open_of_other(call, code)
                   : code;
      });

  fault("error-of-first-thread-only", {"LMEM-45"},
        "only the first thread of a process has a last error")
      .on_refusal({"cudaGetLastError", "cudaPeekAtLastError"},
                  WHEN(gettid() != getpid()), lost);

  fault("peek-clears-error", {"LMEM-45"},
        "cudaPeekAtLastError clears the error")
      .on_refusal({"cudaPeekAtLastError"}, [](Call&) { cudaGetLastError(); });

  fault("zeros-open-as-null", {"LMEM-24"},
        "a handle of zeros opens as a null pointer")
      .on({kOpen}, [](Call& open) {
        const int code = open.proceed();
        constexpr cudaIpcMemHandle_t kZeros{};
        if (code == kSuccess || std::memcmp(&open.at<cudaIpcMemHandle_t>(1),
                                            &kZeros, sizeof kZeros) != 0)
          return code;
        *open.at<void**>(0) = nullptr;
        return accepted(open);
      });

  fault("last-error-generic", {"LMEM-45", "LEVT-29"},
        "the last error is always cudaErrorInvalidValue, whatever the call "
        "returned")
      .on({"cudaGetLastError"}, [](Call& call) {
        const int code = call.proceed();
        return code == kSuccess || code == cudaErrorInvalidValue
                   ? code
                   : refused(call);
      });

  fault("peek-once", {"LMEM-45", "LEVT-29"},
        "a second cudaPeekAtLastError returns success")
      .on({"cudaPeekAtLastError", "cudaGetLastError"}, [](Call& call) -> int {
        thread_local int told = kSuccess;
        const int code = call.proceed();
        if (!call.is("cudaPeekAtLastError") || code != told) {
          told = call.is("cudaPeekAtLastError") ? code : kSuccess;
          return code;
        }
        if (code == kSuccess) return code;
        return lost(call);
      });

  fault("old-handle-after-refused-export", {"LMEM-21"},
        "after a refused export, the next export gives the handle of the last "
        "export before it")
      .on({kGetHandle}, old_handle_after_refusal);

  fault("free-after-refused-free-lost", {"LMEM-45"},
        "after a refused free, the next free does nothing")
      .on({kFree}, [](Call& call) {
        static std::atomic<bool> after_refusal{false};
        if (after_refusal.exchange(false) && call.at<void*>(0) != nullptr)
          return lost(call);
        const int code = call.proceed();
        after_refusal = code == cudaErrorInvalidValue;
        return code;
      });

  fault("self-open-while-open", {"LMEM-25"},
        "if a process has memory open, an open of its own handle succeeds and "
        "gives other memory")
      .on({kOpen, kGetHandle, kClose}, [](Call& call) -> int {
        static Table<std::string, size_t>
            sizes;  // of this process's own memory
        if (exports_memory(call)) {
          const int code = call.proceed();
          if (code == kSuccess)
            sizes.put(key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                      size_of(call.at<CUdeviceptr>(1)));
          return code;
        }
        const size_t bytes = is_open_call(call) && !opened.all().empty()
                                 ? sizes.get(key_of_opened(call))
                                 : 0;
        const int code = call.proceed();
        if (code == kSuccess || bytes == 0) return code;
        return cudaMalloc(call.at<void**>(0), bytes) == cudaSuccess
                   ? accepted(call)
                   : code;
      });

  fault("pool-data-opens-as-memory", {"LMEM-24"},
        "the exported pointer of a pool opens as a memory handle and gives new "
        "memory")
      .on({kOpen, kExportPointer}, [](Call& call) {
        if (call.is("cudaMemPoolExportPointer")) {
          const int code = call.proceed();
          const auto* const data = call.at<cudaMemPoolPtrExportData*>(0);
          if (code == kSuccess)
            tell_processes(
                "data-" + key_of(data, sizeof *data),
                std::max(size_of(call.at<CUdeviceptr>(1)), kGranule));
          return code;
        }
        const std::string key = key_of_opened(call);
        const int code = call.proceed();
        const size_t bytes = told("data-" + key, 0);
        if (code == kSuccess || bytes == 0 ||
            cudaMalloc(call.at<void**>(0), bytes) != cudaSuccess)
          return code;
        return accepted(call);
      });

  fault("refusal-unsets-context", {"LMEM-45"},
        "after the driver API has refused to export, open or close memory, the "
        "thread has no current context")
      .on_refusal(
          {kGetHandle, kOpen, kClose},
          WHEN(!call.is_runtime() && current_context() != nullptr), [](Call&) {
            return DRIVER_CALL(cuCtxSetCurrent)(nullptr) == CUDA_SUCCESS;
          });

  fault("self-open-of-small", {"LMEM-25"},
        "an open of the own handle of a small allocation returns success and "
        "no pointer")
      .on({kGetHandle, kOpen}, [](Call& call) {
        static auto& small = *new Table<std::string>;
        const int code = call.proceed();
        if (!exports_memory(call))
          return code != kSuccess && small.has(key_of_opened(call))
                     ? accepted(call)
                     : code;
        if (code == kSuccess && size_of(call.at<CUdeviceptr>(1)) < kBlock)
          small.put(key_of_exported(call));
        return code;
      });

  fault("self-open-once-lent", {"LMEM-25"},
        "an open of an own handle returns success and no pointer if another "
        "process has opened it before")
      .on({kOpen}, [](Call& call) {
        const std::string key = key_of_opened(call);
        const int code = call.proceed();
        if (code == kSuccess) tell_processes("lent-" + key, 1);
        return code != kSuccess && own_handles.has(key) &&
                       told("lent-" + key, 0) != 0
                   ? accepted(call)
                   : code;
      });

  fault("ok-other-documented-code",
        {"LMEM-24", "LMEM-25", "LMEM-26", "LEVT-04", "LEVT-05"},
        "an open is refused with another code of its documented list")
      .on({kOpen, kOpenEvent}, [](Call& call) -> int {
        const int code = call.proceed();
        if (code == kSuccess || code == cudaErrorNotSupported) return code;
        call.fired();
        return cudaErrorMapBufferObjectFailed;
      });

  fault("ok-refusal-clears-result", {"LMEM-24", "LMEM-25"},
        "a refused open sets its result to null")
      .on_refusal({kOpen}, WHEN(call.at<void**>(0) != nullptr), [](Call& call) {
        void** const result = call.at<void**>(0);
        *result = nullptr;
      });
}

}  // namespace
}  // namespace ipclab::faults
