// Exercise 66: given back too early.
//
// The importer queues a copy of a tensor and says that it has released
// the tensor. The exporter's allocator gives the memory to the next
// owner, which writes into it before the copy has run. Release the
// tensor after its last use. A delay does not help: the copy may take
// longer. The exercise fails now because the copy is not done when the
// importer releases the tensor.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 2 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;
constexpr int kWork = 300;  // ms, before the copy

int exporter(Channel& channel) {
  void* block = allocate_values(kCount, kValue);
  channel.send("tensor", handle_of(block));

  channel.wait("released");
  CUDA_CHECK(cudaMemset(block, kPoison, kBytes));  // the next owner
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

  keep_busy(nullptr, kWork);
  CUDA_CHECK(cudaMemcpyAsync(copy, tensor, kBytes, cudaMemcpyDefault));
  channel.signal("released");
  const bool queued = cudaStreamQuery(nullptr) == cudaErrorNotReady;

  channel.wait("lent again");
  const int wrong = count_wrong(copy, kCount, kValue);
  say("has released the tensor%s: %d wrong in the copy",
      queued ? ", NOT waiting for the copy" : "", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(tensor));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return queued ? EXIT_FAILURE : exit_code(wrong);
}
