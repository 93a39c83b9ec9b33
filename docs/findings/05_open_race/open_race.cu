// A first open is refused while another thread opens the same handle.
//
// nvcc -cudart shared open_race.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

cudaIpcMemHandle_t handle;
int skip() { return std::puts("SKIP: the preparation failed"), 77; }

int importer(int pipe) {
  if (read(pipe, &handle, sizeof handle) < 0 || cudaFree(nullptr)) return skip();
  std::atomic<int> refused{0};
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ready{0};
    std::thread threads[8];
    for (std::thread& thread : threads)
      thread = std::thread([&] {
        void* memory = nullptr;
        for (++ready; ready < 8;) std::this_thread::yield();
        if (cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess)) ++refused;
        for (++ready; ready < 16;) std::this_thread::yield();
        if (memory) cudaIpcCloseMemHandle(memory);
      });
    for (std::thread& thread : threads) thread.join();
  }
  std::printf("%d of 400 opens are refused\n", refused.load());
  return refused != 0;
}

int main(int argc, char** argv) {
  alarm(argc > 1 ? 30 : 60);  // the deadline of every wait
  if (argc > 1) return importer(std::stoi(argv[1]));
  int ends[2];
  void* memory;
  if (pipe(ends) || cudaMalloc(&memory, 4096) || cudaIpcGetMemHandle(&handle, memory) ||
      write(ends[1], &handle, sizeof handle) < 0)
    return skip();
  const auto start = "exec '" + std::string(argv[0]) + "' " + std::to_string(ends[0]);
  const int ended = std::system(start.c_str());
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 2;
}
