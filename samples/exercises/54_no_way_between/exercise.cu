// Exercise 54: no way between two GPUs.
//
// The importer works on GPU 1, and the memory is on GPU 0. On this
// machine the two GPUs cannot access each other, so the open is
// refused. Open the memory on GPU 0, where it is, and copy the values
// to GPU 1. The exercise fails now with the error code of the open.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);  // on GPU 0
  channel.send("handle", handle_of(data));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  CUDA_CHECK(cudaSetDevice(1));
  void* copy = allocate_values(kCount, 0);  // on GPU 1

  void* data = open_memory(handle);
  CUDA_CHECK(cudaMemcpy(copy, data, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  cudaPointerAttributes where;
  CUDA_CHECK(cudaPointerGetAttributes(&where, copy));
  const int wrong = count_wrong(copy, kCount, kValue);
  say("has a copy on GPU %d: %d wrong", where.device, wrong);
  CUDA_CHECK(cudaFree(copy));

  return exit_code(wrong + (where.device != 1));
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(2);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
