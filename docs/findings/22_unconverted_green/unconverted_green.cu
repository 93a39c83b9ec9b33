// cuCtxRecordEvent accepts a green context that was not converted.
//
// nvcc -cudart shared unconverted_green.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>

int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int main() {
  alarm(60);  // the deadline of every wait
  CUdevResource gpu, part, rest;
  unsigned parts = 1;
  CUdevResourceDesc description;
  CUgreenCtx green;
  CUcontext converted;
  CUevent event;
  if (cudaFree(nullptr) || cuDeviceGetDevResource(0, &gpu, CU_DEV_RESOURCE_TYPE_SM) ||
      cuDevSmResourceSplitByCount(&part, &parts, &gpu, &rest, 0, 1) ||
      cuDevResourceGenerateDesc(&description, &part, 1) ||
      cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) ||
      cuCtxFromGreenCtx(&converted, green) || cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) ||
      cuCtxRecordEvent(converted, event))
    return skip();
  const CUresult code = cuCtxRecordEvent(reinterpret_cast<CUcontext>(green), event);
  std::printf("with the converted green context: 0; with the green context itself: %d\n", code);
  return code == CUDA_SUCCESS;
}
