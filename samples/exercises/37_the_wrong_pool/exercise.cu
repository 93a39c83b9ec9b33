// Exercise 37: memory of the wrong pool.
//
// The exporter creates a pool to share and sends it, but the memory
// that it allocates comes from another pool, which cannot be shared.
// Find out which pool this is, and fix the allocation.
// The exercise fails now with an error of cudaMemPoolExportPointer.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  send_pool(channel, pool);

  void* data = nullptr;
  CUDA_CHECK(cudaMallocAsync(&data, kBytes, nullptr));
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));

  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("freed");
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}
