// The handle of freed memory opens memory that was allocated later.
//
// nvcc -cudart shared stale_handle.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

constexpr size_t kBytes = 4096;
constexpr unsigned char kSecret = 0x5e;
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int importer(int pipe) {
  cudaIpcMemHandle_t stale;
  unsigned char seen = 0;
  void* opened = nullptr;
  if (read(pipe, &stale, sizeof stale) < 0) return skip();
  const cudaError_t code = cudaIpcOpenMemHandle(&opened, stale, cudaIpcMemLazyEnablePeerAccess);
  std::printf("open of the stale handle: %s\n", cudaGetErrorName(code));
  if (code != cudaSuccess) return 0;
  if (cudaMemcpy(&seen, opened, 1, cudaMemcpyDefault)) return skip();
  std::printf("it shows %s\n", seen == kSecret ? "the later memory" : "something else");
  return seen == kSecret;
}

int main(int argc, char** argv) {
  alarm(argc > 1 ? 30 : 60);  // the deadline of every wait
  if (argc > 1) return importer(std::stoi(argv[1]));
  int ends[2];
  void *neighbour, *first, *later = nullptr;  // the neighbour keeps their block
  cudaIpcMemHandle_t stale, handle;
  if (pipe(ends) || cudaMalloc(&neighbour, kBytes) || cudaMalloc(&first, kBytes) ||
      cudaIpcGetMemHandle(&stale, first) || cudaFree(first) || cudaMalloc(&later, kBytes) ||
      later != first || cudaMemset(later, kSecret, kBytes) || cudaDeviceSynchronize() ||
      cudaIpcGetMemHandle(&handle, later) || write(ends[1], &stale, sizeof stale) < 0)
    return skip();
  const auto start = "exec '" + std::string(argv[0]) + "' " + std::to_string(ends[0]);
  const int ended = std::system(start.c_str());
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 2;
}
