// The fabric between GPUs may not be ready when a program starts. Then
// a call returns CUDA_ERROR_FABRIC_NOT_READY (from CUDA 13.4 on), and
// "Applications may retry after a delay" (cuda.h, CUresult).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>
#include <poll.h>

#include <chrono>
#include <type_traits>

/// CUDA_ERROR_FABRIC_NOT_READY and cudaErrorFabricNotReady. Headers
/// before CUDA 13.4 have neither of them.
constexpr int kFabricNotReady = 919;

/// The end of the time for which this process waits for the fabric:
/// five seconds after the first call that was not ready.
inline std::chrono::steady_clock::time_point fabric_deadline() {
  static const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(5);
  return end;
}

/// Makes a call, and makes it again while the fabric is not ready.
/// Returns the code of the last call.
template <class Call>
auto until_fabric_is_ready(Call call) {
  auto code = call();
  while (static_cast<int>(code) == kFabricNotReady &&
         std::chrono::steady_clock::now() < fabric_deadline()) {
    // The runtime keeps the code; a later check must not find it.
    if (std::is_same<decltype(code), cudaError_t>::value)
      cudaGetLastError();
    poll(nullptr, 0, 50);  // the delay, in milliseconds
    code = call();
  }
  return code;
}
