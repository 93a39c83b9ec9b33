// Answers that differ from the usual answers, but that no documented sentence
// forbids. No test may fail because of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "harness/faults/engine/fault.h"

namespace ipclab::faults {
namespace {

constexpr size_t kBlock = 2 << 20;
constexpr size_t kStaged = 64 << 10;  // bytes of a copy from pageable memory

// Handles are opaque: the driver decides how their bytes are written.
template <class Handle>
void turn(Handle& handle) {
  auto* const bytes = reinterpret_cast<unsigned char*>(&handle);
  for (size_t i = 0; i < sizeof handle; ++i) bytes[i] ^= 0xC3;
}

int ok_handle_scrambled(Call& call) {
  if (call.is("cudaIpcOpenMemHandle")) {
    turn(call.at<cudaIpcMemHandle_t>(1));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess) turn(*call.at<cudaIpcMemHandle_t*>(0));
  call.fired();
  return code;
}

int ok_event_handle_scrambled(Call& call) {
  if (call.is("cudaIpcOpenEventHandle")) {
    turn(call.at<cudaIpcEventHandle_t>(1));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess) turn(*call.at<cudaIpcEventHandle_t*>(0));
  call.fired();
  return code;
}

int ok_different_va(Call& call) {
  // One reservation in each process moves all later mappings of the process.
  static const bool shifted = [] {
    CUdeviceptr gap = 0;
    const size_t size = (static_cast<size_t>(getpid()) % 61 + 1) * kBlock;
    return DRIVER_CALL(cuMemAddressReserve)(&gap, size, 0, 0, 0) ==
           CUDA_SUCCESS;
  }();
  if (shifted) call.fired();
  return call.proceed();
}

int ok_no_suballoc(Call& call) {
  size_t& bytes = call.at<size_t>(1);
  if (bytes % kBlock != 0 && bytes < (size_t{64} << 20)) {
    bytes += kBlock - bytes % kBlock;
    call.fired();
  }
  return call.proceed();
}

// Returns another code that the documentation of cudaIpcOpenMemHandle and
// cudaIpcOpenEventHandle lists.
int ok_other_documented_code(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotSupported) return code;
  call.fired();
  return cudaErrorMapBufferObjectFailed;
}

int ok_slow(Call& call) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  call.fired();
  return call.proceed();
}

int ok_descriptor_high(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<int>(2) != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return code;
  int& descriptor = *call.at<int*>(0);
  const int high = fcntl(descriptor, F_DUPFD_CLOEXEC, 200);
  if (high < 0) return code;
  close(descriptor);
  descriptor = high;
  call.fired();
  return code;
}

// "API synchronization behavior" of the runtime's reference: a copy from
// pageable memory waits for its stream, then returns when the bytes are in the
// staging memory. The bytes may not have arrived at their destination then.
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
  if (bytes > kStaged || is_known(source) ||
      !is_known(reinterpret_cast<void*>(target)) ||
      kind != CU_MEMORYTYPE_DEVICE)
    return call.proceed();
  auto* const staging =
      new std::string(static_cast<const char*>(source), bytes);
  const auto later = [](void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
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

// A launch is asynchronous, but nothing says that it returns before its kernel
// has ended: the kernel's fault can show in the next cudaGetLastError.
int ok_launch_returns_late(Call& call) {
  const int code = call.proceed();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  call.fired();
  return code;
}

// No sentence says that a stream begins its work at once.
int ok_kernel_starts_late(Call& call) {
  const auto stream = call.value<CUstream>(kStream);
  CUstreamCaptureStatus status{};
  if (DRIVER_CALL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    const auto later = [](void*) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    if (DRIVER_CALL(cuLaunchHostFunc)(stream, later, nullptr) == CUDA_SUCCESS)
      call.fired();
  }
  return call.proceed();
}

int ok_refusal_clears_result(Call& call) {
  const int code = call.proceed();
  void** const result = call.at<void**>(0);
  if (code == kSuccess || result == nullptr) return code;
  *result = nullptr;
  call.fired();
  return code;
}

// Opens and closes wait for all work of the context. No sentence says whether
// they do.
int ok_open_and_close_wait(Call& call) {
  cudaDeviceSynchronize();
  call.fired();
  return call.proceed();
}

// The query for one attribute does not refuse an unknown pointer, but says that
// it is not capable of legacy IPC.
int ok_unknown_not_capable(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<CUpointer_attribute>(1) !=
                              CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
    return code;
  *call.at<bool*>(0) = false;
  return accepted(call);
}

}  // namespace

void add_allowed(List& list) {
  const char* const kGet = "cudaIpcGetMemHandle";
  const char* const kOpen = "cudaIpcOpenMemHandle";
  list.named("ok-handle-scrambled",
             "the bytes of a memory handle are written in another way",
             {kGet, kOpen}, ok_handle_scrambled);
  list.named("ok-event-handle-scrambled",
             "the bytes of an event handle are written in another way",
             {"cudaIpcGetEventHandle", "cudaIpcOpenEventHandle"},
             ok_event_handle_scrambled);
  list.named("ok-different-va",
             "processes get different addresses for the same handle", {kOpen},
             ok_different_va);
  list.named("ok-no-suballoc",
             "cudaMalloc gives every allocation its own block", {"cudaMalloc"},
             ok_no_suballoc);
  list.named("ok-other-documented-code",
             "an open is refused with another code of its documented list",
             {kOpen, "cudaIpcOpenEventHandle"}, ok_other_documented_code);
  list.named("ok-slow", "calls that share memory take 20 ms longer",
             {kGet, kOpen, "cuMemImportFromShareableHandle",
              "cudaMemPoolImportPointer"},
             ok_slow);
  list.named(
      "ok-descriptor-high",
      "an exported descriptor has a number of 200 or more",
      {"cuMemExportToShareableHandle", "cudaMemPoolExportToShareableHandle"},
      ok_descriptor_high);
  list.named("ok-pageable-copy-returns-early",
             "a small copy from pageable memory returns before its bytes have "
             "arrived",
             {"cudaMemcpy"}, ok_pageable_copy_returns_early);
  list.named("ok-launch-returns-late",
             "a launch returns 2 ms later, when its kernel may have ended",
             {"cudaLaunchKernel"}, ok_launch_returns_late);
  list.named("ok-kernel-starts-late",
             "a kernel starts 2 ms after the stream has reached it",
             {"cudaLaunchKernel"}, ok_kernel_starts_late);
  list.named("ok-refusal-clears-result",
             "a refused open sets its result to null", {kOpen},
             ok_refusal_clears_result);
  list.named("ok-open-and-close-wait",
             "an open and a close wait for all work of the context",
             {kOpen, "cudaIpcCloseMemHandle"}, ok_open_and_close_wait);
  list.named("ok-unknown-not-capable",
             "an unknown pointer is reported as not capable of legacy IPC",
             {"cuPointerGetAttribute"}, ok_unknown_not_capable);
}

}  // namespace ipclab::faults
