// Exercise 41: who frees first?
//
// Both sides free memory of a shared pool. The importer frees it to end
// its own use, and the exporter frees it to give the memory back to the
// pool. Here the exporter frees first, but the importer still reads.
// Change the order of the steps. The exercise fails now because the
// trace finds: pool-pointer-freed-early.
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
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("imported");
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  channel.signal("go");

  channel.wait("freed");
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  channel.signal("imported");

  channel.wait("go");
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}
