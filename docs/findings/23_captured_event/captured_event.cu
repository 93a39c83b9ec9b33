// A wait of a green context for a captured event is refused with another code.
//
// nvcc -cudart shared captured_event.cu -lcuda
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
  CUgreenCtx captures, waits;
  CUstream stream;
  CUevent event;
  if (cudaFree(nullptr) || cuDeviceGetDevResource(0, &gpu, CU_DEV_RESOURCE_TYPE_SM) ||
      cuDevSmResourceSplitByCount(&part, &parts, &gpu, &rest, 0, 1) ||
      cuDevResourceGenerateDesc(&description, &part, 1) ||
      cuGreenCtxCreate(&captures, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) ||
      cuGreenCtxCreate(&waits, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) ||
      cuGreenCtxStreamCreate(&stream, captures, CU_STREAM_NON_BLOCKING, 0) ||
      cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) ||
      cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) || cuEventRecord(event, stream))
    return skip();
  const CUresult code = cuGreenCtxWaitEvent(waits, event);
  std::printf("the wait for a captured event: %d\n", code);
  return code != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
