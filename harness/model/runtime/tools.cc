// SPDX-License-Identifier: Apache-2.0
// The runtime API: functions that programs call for profilers.
#include <cudaProfiler.h>
#include <cuda_profiler_api.h>

#include "runtime/runtime.h"

using namespace ipclab::runtime;

IPCLAB_RUNTIME_API cudaError_t cudaProfilerStart() {
  IPCLAB_BIND();
  return remember(cuProfilerStart());
}

IPCLAB_RUNTIME_API cudaError_t cudaProfilerStop() {
  IPCLAB_BIND();
  return remember(cuProfilerStop());
}
