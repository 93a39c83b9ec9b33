// Exercise 39: a pool once, then pointers.
//
// The importer has imported the pool, and gets 64 bytes for each
// allocation. Fill the two gaps: import a pointer from these bytes, and
// free the pointer in this process after the last read.
// The exercise fails now because the importer has no pointer.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  send_pool(channel, pool);

  for (int i = 0; i < 2; ++i) {
    void* data = nullptr;
    CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
    write_values(data, kCount, kValue + i);
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
    cudaMemPoolPtrExportData pointer;
    CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
    channel.send("pointer", pointer);
    channel.wait("freed");
    CUDA_CHECK(cudaFreeAsync(data, nullptr));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  int wrong = 0;
  for (int i = 0; i < 2; ++i) {
    auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
    void* data = nullptr;
    // TODO: import the 64 bytes; the result is a device pointer.
    (void)pointer;
    if (data == nullptr) {
      say("has 64 bytes, but no pointer");
      return EXIT_FAILURE;
    }

    wrong += count_wrong(data, kCount, kValue + i);
    say("reads allocation %d: %d wrong", i, wrong);
    // TODO: end the use of the pointer.
    CUDA_CHECK(cudaDeviceSynchronize());
    channel.signal("freed");
  }
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return exit_code(wrong);
}
