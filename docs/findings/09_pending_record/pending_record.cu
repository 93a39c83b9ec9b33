// A record of an IPC event waits for an earlier record in another stream.
//
// nvcc -cudart shared pending_record.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <mutex>

std::mutex gate;
void hold(void*) { gate.lock(); }
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int main() {
  gate.lock();
  alarm(60);  // the deadline of every wait
  cudaStream_t held, other;
  cudaEvent_t event;
  cudaIpcEventHandle_t handle;
  if (cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking) ||
      cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) ||
      cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming) ||
      cudaIpcGetEventHandle(&handle, event) || cudaLaunchHostFunc(held, hold, nullptr) ||
      cudaEventRecord(event, held) || cudaEventRecord(event, other))
    return skip();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  cudaError_t code = cudaErrorNotReady;
  while (code == cudaErrorNotReady && std::chrono::steady_clock::now() < end)
    code = cudaStreamQuery(other);
  std::printf("the other stream: %s\n", cudaGetErrorName(code));
  std::printf("the event: %s\n", cudaGetErrorName(cudaEventQuery(event)));
  gate.unlock();
  const cudaError_t after = cudaDeviceSynchronize();
  std::printf("after the first record: %s\n", cudaGetErrorName(after));
  return after != cudaSuccess ? 2 : code != cudaSuccess;
}
