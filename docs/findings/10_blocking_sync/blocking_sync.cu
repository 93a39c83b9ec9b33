// A host wait for an IPC event spins, although the event has cudaEventBlockingSync.
//
// nvcc -cudart shared blocking_sync.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

constexpr unsigned kFlags = cudaEventBlockingSync | cudaEventInterprocess | cudaEventDisableTiming;
void work(void*) { usleep(800000); }  // the work that the event waits for
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

double seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

int main() {
  alarm(60);  // the deadline of every wait
  cudaStream_t stream;
  cudaEvent_t event;
  cudaIpcEventHandle_t handle;
  if (cudaStreamCreate(&stream) || cudaEventCreateWithFlags(&event, kFlags) ||
      cudaIpcGetEventHandle(&handle, event) || cudaLaunchHostFunc(stream, work, nullptr) ||
      cudaEventRecord(event, stream))
    return skip();
  const double began = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_THREAD_CPUTIME_ID);
  if (cudaEventSynchronize(event)) return skip();
  const double waited = seconds(CLOCK_MONOTONIC) - began;
  const double busy = seconds(CLOCK_THREAD_CPUTIME_ID) - used;
  std::printf("waited %.3f s, of these %.3f s on a processor\n", waited, busy);
  return busy > waited / 10;
}
