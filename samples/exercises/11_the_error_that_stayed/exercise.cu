// Exercise 11: the error that stayed.
//
// The exporter tries to export pinned host memory. CUDA refuses, as
// documented, so the exporter uses device memory. Later a correct
// launch seems to fail: the runtime keeps the code of a refused call
// until the program asks for the code. Fix the exporter, but let it
// still try to export the host memory.
// The exercise fails now with the error of an earlier call.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = nullptr;
  CUDA_CHECK(cudaMallocHost(&data, kBytes));

  cudaIpcMemHandle_t handle;
  if (cudaIpcGetMemHandle(&handle, data) != cudaSuccess) {
    say("cannot export host memory, takes device memory");
    CUDA_CHECK(cudaFreeHost(data));
    CUDA_CHECK(cudaMalloc(&data, kBytes));
    CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  }

  write_values(data, kCount, kValue);  // checks its launch
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle);
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
