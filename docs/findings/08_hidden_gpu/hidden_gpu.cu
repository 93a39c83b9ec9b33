// A kernel writes to an imported pool to which its GPU has no access.
//
// nvcc -cudart shared hidden_gpu.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
__global__ void touch(int* word) { ++*word; }
int skip() { return std::puts("SKIP: needs two GPUs, both visible, and IPC pools"), 77; }

int importer(int fd, int pipe) {
  cudaMemPool_t pool;
  cudaMemPoolPtrExportData data;
  void* memory;
  if (cudaMemPoolImportFromShareableHandle(&pool, (void*)(intptr_t)fd, kFd, 0) ||
      read(pipe, &data, sizeof data) < 0 || cudaMemPoolImportPointer(&memory, pool, &data))
    return skip();
  touch<<<1, 1>>>(static_cast<int*>(memory));
  const cudaError_t code = cudaDeviceSynchronize();
  std::printf("a kernel without access: %s\n", cudaGetErrorName(code));
  return code == cudaSuccess;
}

int main(int argc, char** argv) {
  alarm(argc > 1 ? 30 : 60);  // the deadline of every wait
  if (argc > 1) return importer(std::stoi(argv[1]), std::stoi(argv[2]));
  int gpus = 0, ends[2], fd = -1;
  cudaMemPoolProps props{cudaMemAllocationTypePinned, kFd, {cudaMemLocationTypeDevice, 0}};
  cudaMemPool_t pool;
  cudaMemPoolPtrExportData data;
  void* memory;
  if (getenv("CUDA_VISIBLE_DEVICES") || cudaGetDeviceCount(&gpus) || gpus < 2 || pipe(ends) ||
      cudaMemPoolCreate(&pool, &props) || cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0) ||
      cudaMallocFromPoolAsync(&memory, 4096, pool, nullptr) || cudaMemset(memory, 0, 4096) ||
      cudaDeviceSynchronize() || cudaMemPoolExportPointer(&data, memory) ||
      write(ends[1], &data, sizeof data) < 0)
    return skip();
  const auto start = "CUDA_VISIBLE_DEVICES=1 exec '" + std::string(argv[0]) + "' " +
                     std::to_string(dup(fd)) + " " + std::to_string(ends[0]);
  const int ended = std::system(start.c_str());
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 2;
}
