// A process dies in cudaStreamWaitEvent if it has opened the event in another context.
//
// nvcc -cudart shared wait_in_context.cu -lcuda
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

cudaIpcEventHandle_t handle;
cudaEvent_t event;
cudaStream_t stream;
std::mutex gate;
void hold(void*) { gate.lock(); }
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int importer(int pipe) {
  CUcontext other;
  if (read(pipe, &handle, sizeof handle) < 0 || cudaIpcOpenEventHandle(&event, handle) ||
      cuCtxCreate(&other, nullptr, 0, 0) || cudaStreamCreate(&stream))
    return skip();
  return cudaStreamWaitEvent(stream, event) || cudaStreamQuery(stream) != cudaErrorNotReady;
}

int main(int argc, char** argv) {
  alarm(argc > 1 ? 30 : 60);  // the deadline of every wait
  if (argc > 1) return importer(std::stoi(argv[1]));
  gate.lock();
  int ends[2];
  if (pipe(ends) || cudaStreamCreate(&stream) ||
      cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming) ||
      cudaLaunchHostFunc(stream, hold, nullptr) || cudaEventRecord(event, stream) ||
      cudaIpcGetEventHandle(&handle, event) || write(ends[1], &handle, sizeof handle) < 0)
    return skip();
  const auto start = "exec '" + std::string(argv[0]) + "' " + std::to_string(ends[0]);
  const int ended = std::system(start.c_str());
  gate.unlock();
  const int died = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  std::printf("importer: %s\n", died ? strsignal(died) : "reached its end");
  return died == SIGALRM ? 2 : died ? 1 : WEXITSTATUS(ended);
}
