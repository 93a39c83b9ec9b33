// A process dies when it destroys a pool whose export was refused.
//
// nvcc -cudart shared refused_pool_export.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

int exporter() {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = cudaMemHandleTypeFabric;
  props.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  if (cudaMemPoolCreate(&pool, &props))
    return std::puts("SKIP: no pool for fabric handles can be created"), 77;
  cudaMemFabricHandle_t handle;
  const cudaError_t code =
      cudaMemPoolExportToShareableHandle(&handle, pool, cudaMemHandleTypeFabric, 0);
  std::printf("export: %s\n", cudaGetErrorName(code));
  std::fflush(stdout);
  return cudaMemPoolDestroy(pool) != cudaSuccess;
}

int main() {
  const pid_t child = fork();   // before any CUDA call
  alarm(child == 0 ? 30 : 60);  // the deadline of every wait
  if (child == 0) {
    const int code = exporter();
    std::fflush(stdout);
    _exit(code);
  }
  int ended = 0;
  if (waitpid(child, &ended, 0) < 0) return 2;
  const int died = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  std::printf("exporter: %s\n", died ? strsignal(died) : "reached its end");
  return died == SIGALRM ? 2 : died ? 1 : WEXITSTATUS(ended);
}
