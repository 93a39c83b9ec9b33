// A refused cudaImportExternalMemory closes the descriptor of its caller.
//
// nvcc -cudart shared taken_descriptor.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

constexpr size_t kBytes = 2 << 20;
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int main() {
  alarm(60);  // the deadline of every wait
  void* memory = nullptr;
  cudaExternalMemoryHandleDesc wanted{};
  wanted.type = cudaExternalMemoryHandleTypeOpaqueFd;
  wanted.size = kBytes;
  int& fd = wanted.handle.fd;  // a dma-buf, which this type does not accept
  if (cudaMalloc(&memory, kBytes) ||
      cuMemGetHandleForAddressRange(&fd, (CUdeviceptr)memory, kBytes,
                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0))
    return skip();
  cudaExternalMemory_t imported;
  const cudaError_t code = cudaImportExternalMemory(&imported, &wanted);
  if (code == cudaSuccess) return skip();
  const bool open = fcntl(fd, F_GETFD) >= 0;
  std::printf("the import: %s; the descriptor: %s\n", cudaGetErrorName(code),
              open ? "open" : "closed");
  return !open;
}
