// A process dies in the fourth round in which it destroys a pool whose memory is in use.
//
// nvcc -cudart shared second_destroy.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

int rounds() {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, 0};
  for (int round = 1; round <= 8; ++round) {
    cudaMemPool_t used, unused;
    void* memory;
    if (cudaMemPoolCreate(&used, &props) ||
        cudaMallocFromPoolAsync(&memory, 1 << 20, used, nullptr))
      return std::puts("SKIP: the preparation failed"), 77;
    std::printf("round %d\n", round);
    std::fflush(stdout);
    if (cudaMemPoolDestroy(used) || cudaFreeAsync(memory, nullptr) || cudaDeviceSynchronize() ||
        cudaMemPoolCreate(&unused, &props) || cudaMemPoolDestroy(unused))
      return 1;
  }
  return 0;
}

int main() {
  const pid_t child = fork();   // before any CUDA call
  alarm(child == 0 ? 30 : 60);  // the deadline of every wait
  if (child == 0) _exit(rounds());
  int ended = 0;
  if (waitpid(child, &ended, 0) < 0) return 2;
  const int died = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  std::printf("the process: %s\n", died ? strsignal(died) : "reached its end");
  return died == SIGALRM ? 2 : died ? 1 : WEXITSTATUS(ended);
}
