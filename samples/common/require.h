// A lesson checks what it needs from the machine. If something is
// missing, the lesson prints one line and exits with 77 ("skipped").
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdarg>

#include "check.h"

constexpr int kSkipped = 77;  ///< the exit code of "skipped"

/// Prints "SKIP: <reason>" and exits with 77.
[[noreturn, gnu::format(printf, 1, 2)]] inline void skip(
    const char* reason, ...) {
  std::printf("SKIP: ");
  va_list arguments;
  va_start(arguments, reason);
  std::vprintf(reason, arguments);
  va_end(arguments);
  std::printf("\n");
  std::exit(kSkipped);
}

/// Skips unless CUDA sees at least `wanted` GPUs.
inline void require_gpus(int wanted) {
  int found = 0;
  const cudaError_t code =
      until_fabric_is_ready([&] { return cudaGetDeviceCount(&found); });
  if (code != cudaSuccess && code != cudaErrorNoDevice)
    skip("needs %d GPU%s: %s (%d): %s", wanted, wanted == 1 ? "" : "s",
         cudaGetErrorName(code), code, cudaGetErrorString(code));
  if (found < wanted)
    skip("needs %d GPU%s, found %d", wanted, wanted == 1 ? "" : "s",
         found);
}

/// Skips if the attribute of device 0 is 0, or if the driver is too old
/// to know the attribute. `what` names the feature.
inline void require(cudaDeviceAttr attribute, const char* what) {
  int value = 0;
  const auto code = cudaDeviceGetAttribute(&value, attribute, 0);
  if (code != cudaErrorInvalidValue) CUDA_CHECK(code);
  if (value == 0) skip("device 0 does not support %s", what);
}

/// The same for an attribute of the driver API.
inline void require(CUdevice_attribute attribute, const char* what) {
  int value = 0;
  const auto code = DRIVER(cuDeviceGetAttribute)(&value, attribute, 0);
  if (code != CUDA_ERROR_INVALID_VALUE) CU_CHECK(code);
  if (value == 0) skip("device 0 does not support %s", what);
}

/// Skips unless device 0 can share memory of cudaMalloc. Tries a small
/// export, too: on Tegra the attribute is 1 although only events work.
inline void require_legacy_ipc() {
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");

  void* data = nullptr;
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaMalloc(&data, 2 << 20));
  const cudaError_t code = cudaIpcGetMemHandle(&handle, data);
  if (code == cudaErrorNotSupported)
    skip("device 0 does not support CUDA IPC for memory");
  CUDA_CHECK(code);
  CUDA_CHECK(cudaFree(data));
}

/// Skips unless device 0 has at least `bytes` bytes of free memory.
inline void require_free_memory(size_t bytes) {
  constexpr double kGiB = 1 << 30;
  size_t free_bytes = 0, all_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  if (free_bytes < bytes)
    skip("needs %.1f GiB of free memory on device 0, found %.1f GiB",
         bytes / kGiB, free_bytes / kGiB);
}
