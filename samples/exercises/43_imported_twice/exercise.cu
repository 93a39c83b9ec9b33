// Exercise 43: imported twice.
//
// Two parts of the importer import the same pointer, and each part
// frees it. CUDA counts opens of legacy handles, but not imports of
// pool pointers: after the first free the other part has no memory.
// Import the pointer once, for both parts.
// The exercise fails now because the trace finds:
// pool-pointer-imported-twice, or because the second part fails.
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

void* import_pointer(cudaMemPool_t pool,
                     cudaMemPoolPtrExportData pointer) {
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  return data;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  const auto pointer =
      channel.receive<cudaMemPoolPtrExportData>("pointer");

  void* first = import_pointer(pool, pointer);
  void* second = import_pointer(pool, pointer);
  int wrong = count_wrong(first, kCount, kValue);
  CUDA_CHECK(cudaFree(first));
  CUDA_CHECK(cudaDeviceSynchronize());

  wrong += count_wrong(second, kCount, kValue);
  say("reads in both parts: %d wrong", wrong);
  CUDA_CHECK(cudaFree(second));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}
