// cudaPointerGetAttributes names the importer's GPU for memory of another GPU.
//
// nvcc -cudart shared pointer_device.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int skip() { return std::puts("SKIP: needs two GPUs that are peers"), 77; }

int importer(int pipe) {
  cudaIpcMemHandle_t handle;
  cudaPointerAttributes told{};
  void* memory;
  if (read(pipe, &handle, sizeof handle) < 0 || cudaSetDevice(1) ||
      cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess) ||
      cudaPointerGetAttributes(&told, memory))
    return skip();
  std::printf("memory of GPU 0, imported on GPU 1: device %d\n", told.device);
  return told.device != 0;
}

int main(int argc, char** argv) {
  alarm(argc > 1 ? 30 : 60);  // the deadline of every wait
  if (argc > 1) return importer(std::stoi(argv[1]));
  int ends[2];
  void* memory;
  cudaIpcMemHandle_t handle;
  if (pipe(ends) || cudaMalloc(&memory, 4096) || cudaIpcGetMemHandle(&handle, memory) ||
      write(ends[1], &handle, sizeof handle) < 0)
    return skip();
  const auto start = "exec '" + std::string(argv[0]) + "' " + std::to_string(ends[0]);
  const int ended = std::system(start.c_str());
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 2;
}
