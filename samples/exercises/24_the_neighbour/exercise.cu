// Exercise 24: the neighbour in the block.
//
// The exporter lends 4 KiB. cudaMalloc takes such small allocations
// from a larger block, and a handle maps the whole block. So the
// importer can also read other memory of the block: a secret. Lend
// memory that shares no block with other memory. The exercise fails now
// because the trace finds: shared-with-neighbours.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1024;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;
constexpr int kSecret = 7777777;

int exporter(Channel& channel) {
  void* loan = nullptr;
  CUDA_CHECK(cudaMalloc(&loan, kBytes));
  void* secret = allocate_values(kCount, kSecret, 0);
  write_values(loan, kCount, kValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  channel.send("handle", handle_of(loan));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(secret));
  CUDA_CHECK(cudaFree(loan));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the loan: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
