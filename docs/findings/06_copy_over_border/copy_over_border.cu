// A process dies in a copy from memory of a NUMA node into memory of a GPU beside it.
//
// nvcc -cudart shared copy_over_border.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

int copies() {
  constexpr size_t kGranule = 2 << 20;
  CUmemAllocationProp node{}, gpu{};
  node.type = gpu.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  node.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  gpu.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc by_cpu{node.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUmemAccessDesc by_gpu{gpu.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle first, second;
  CUdeviceptr range;
  if (cudaFree(nullptr) || cuMemCreate(&first, kGranule, &node, 0) ||
      cuMemCreate(&second, kGranule, &gpu, 0) ||
      cuMemAddressReserve(&range, 2 * kGranule, 0, 0, 0) ||
      cuMemMap(range, kGranule, 0, first, 0) ||
      cuMemMap(range + kGranule, kGranule, 0, second, 0) ||
      cuMemSetAccess(range, 2 * kGranule, &by_gpu, 1) ||
      cuMemSetAccess(range, kGranule, &by_cpu, 1))
    return std::puts("SKIP: the preparation failed"), 77;
  char bytes[1408]{};
  void* const between = reinterpret_cast<void*>(range + kGranule - sizeof bytes / 2);
  return cudaMemcpy(between, bytes, sizeof bytes, cudaMemcpyDefault) != cudaSuccess;
}

int main() {
  const pid_t child = fork();   // before any CUDA call
  alarm(child == 0 ? 30 : 60);  // the deadline of every wait
  if (child == 0) _exit(copies());
  int ended = 0;
  if (waitpid(child, &ended, 0) < 0) return 2;
  const int died = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  std::printf("the process: %s\n", died ? strsignal(died) : "reached its end");
  return died == SIGALRM ? 2 : died ? 1 : WEXITSTATUS(ended);
}
