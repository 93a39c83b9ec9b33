// Exercise 45: find the fault: the lost offset of a pool.
//
// On one driver an imported pointer to a small allocation points to the
// beginning of the 2 MiB around the allocation. The test below does not
// notice this, because it shares the first allocation of the pool.
// Change the test so that it notices the bug.
// The exercise fails now because the test does not notice the bug.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 12;
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
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}
