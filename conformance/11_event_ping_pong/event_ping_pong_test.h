// What several files of these tests use.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

namespace ipclab {

inline constexpr size_t kBytes = 256 << 10;
inline constexpr int kLooks = 50;

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

inline void queue_copy(const Words& to, const Words& from,
                       cudaStream_t stream) {
  CALL(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice,
                       stream));
}

}  // namespace ipclab
