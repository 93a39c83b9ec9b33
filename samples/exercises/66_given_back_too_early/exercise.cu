// Exercise 66: given back too early.
//
// The importer queues copies of a tensor and says that it has released
// it. The exporter's allocator lends the memory to the next owner, who
// writes into it while the copies still run. Release it when it is no
// longer used.
// It fails now with values of the next owner, or because the trace sees
// that nothing orders the two.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 2 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;
constexpr int kNextValue = 5000000;
constexpr int kCopies = 60;  // stands for long work

int exporter(Channel& channel) {
  void* block = allocate_values(kCount, kValue);
  channel.send("tensor", handle_of(block));

  channel.wait("released");
  write_values(block, kCount, kNextValue);  // the next owner
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.signal("lent again");
  channel.wait("closed");
  CUDA_CHECK(cudaFree(block));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  void* tensor =
      open_memory(channel.receive<cudaIpcMemHandle_t>("tensor"));

  for (int i = 0; i < kCopies; ++i)
    CUDA_CHECK(
        cudaMemcpyAsync(copy, tensor, kBytes, cudaMemcpyDefault));
  channel.signal("released");

  channel.wait("lent again");
  const int wrong = count_wrong(copy, kCount, kValue);
  say("has a copy of the tensor: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(tensor));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
