// cudaMemPoolCreate accepts a field that must be zero on this system.
//
// nvcc -cudart shared security_attributes.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>

int main() {
  alarm(60);  // the deadline of every wait
  if (cudaFree(nullptr)) return std::puts("SKIP: no GPU"), 77;
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  props.location = {cudaMemLocationTypeDevice, 0};
  props.win32SecurityAttributes = &props;
  cudaMemPool_t pool;
  const cudaError_t code = cudaMemPoolCreate(&pool, &props);
  std::printf("cudaMemPoolCreate: %s\n", cudaGetErrorName(code));
  return code == cudaSuccess;
}
