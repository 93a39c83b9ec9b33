// Exercise 42: not your pool.
//
// The importer needs its own memory for an answer and allocates it from
// the pool that it has imported. CUDA refuses: an imported pool can
// only import pointers. Allocate the memory in another way.
// The exercise fails now with an error of cudaMallocFromPoolAsync.
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

  void* answer = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&answer, kBytes, pool, nullptr));
  CUDA_CHECK(cudaMemcpyAsync(answer, data, kBytes, cudaMemcpyDefault,
                             nullptr));
  const int wrong = count_wrong(answer, kCount, kValue);
  say("reads its copy: %d wrong", wrong);

  CUDA_CHECK(cudaFreeAsync(answer, nullptr));
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}
