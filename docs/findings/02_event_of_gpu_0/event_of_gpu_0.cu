// A process dies in cudaIpcGetEventHandle if the GPU of the event is not current.
//
// nvcc -cudart shared event_of_gpu_0.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

int skip() { return std::puts("SKIP: needs two GPUs and IPC events"), 77; }

int exporter() {
  cudaIpcEventHandle_t handle;
  cudaEvent_t event;
  if (cudaSetDevice(0) ||
      cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming) ||
      cudaSetDevice(1))
    return skip();
  const cudaError_t code = cudaIpcGetEventHandle(&handle, event);
  std::printf("cudaIpcGetEventHandle: %s\n", cudaGetErrorName(code));
  return code != cudaSuccess;
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
  if (waitpid(child, &ended, 0) < 0) return skip();
  const int died = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  std::printf("exporter: %s\n", died ? strsignal(died) : "reached its end");
  return died == SIGALRM ? 2 : died ? 1 : WEXITSTATUS(ended);
}
