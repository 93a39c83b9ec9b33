// A driver that takes its time: loaded in front of the CUDA runtime, it starts
// one process after the other, and its cudaEventSynchronize never returns. If
// SLOW_DRIVER_DIES is set, a process that has destroyed a pool dies in its next
// cudaDeviceSynchronize.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

static bool dies = false;

// The first call of a process makes its context.
extern "C" cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) {
    const int file = open(std::getenv("SLOW_DRIVER_LOCK"), O_RDWR | O_CREAT,
                          S_IRUSR | S_IWUSR);
    flock(file, LOCK_EX);
    usleep(700000);
    close(file);
  }
  using Free = cudaError_t (*)(void*);
  static const auto next = reinterpret_cast<Free>(dlsym(RTLD_NEXT, "cudaFree"));
  return next(memory);
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t) {
  for (;;) pause();
}

extern "C" cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  dies = std::getenv("SLOW_DRIVER_DIES") != nullptr;
  static const auto next = reinterpret_cast<cudaError_t (*)(cudaMemPool_t)>(
      dlsym(RTLD_NEXT, "cudaMemPoolDestroy"));
  return next(pool);
}

extern "C" cudaError_t cudaDeviceSynchronize() {
  if (dies) raise(SIGSEGV);
  static const auto next = reinterpret_cast<cudaError_t (*)()>(
      dlsym(RTLD_NEXT, "cudaDeviceSynchronize"));
  return next();
}
