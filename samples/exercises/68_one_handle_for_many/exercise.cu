// Exercise 68: one handle for many.
//
// Each of sixteen small tensors has its own allocation, handle and
// open. With a small allocation the importer can also read other memory
// of the same block. Put all tensors into one allocation. Then you need
// one handle, and an offset for each tensor.
// The exercise fails now because memory is opened sixteen times, or
// because an allocation has neighbours in its block.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kTensors = 16;
constexpr int kCount = 1 << 15;  // values of a tensor
constexpr int kValue = 1000000;

struct Tensor {
  cudaIpcMemHandle_t handle;
  size_t offset;  // in bytes
};

int exporter(Channel& channel) {
  std::vector<void*> owned;
  for (int i = 0; i < kTensors; ++i) {
    void* data = allocate_values(kCount, kValue * (i + 1));
    owned.push_back(data);
    channel.send("tensor", Tensor{handle_of(data), 0});
  }
  channel.wait("closed");
  for (void* data : owned) CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  int wrong = 0;
  std::vector<void*> opened;
  for (int i = 0; i < kTensors; ++i) {
    const Tensor tensor = channel.receive<Tensor>("tensor");
    opened.push_back(open_memory(tensor.handle));
    const char* data =
        static_cast<const char*>(opened.back()) + tensor.offset;
    wrong += count_wrong(data, kCount, kValue * (i + 1));
  }
  say("has read %d tensors: %d wrong", kTensors, wrong);
  for (void* data : opened) CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
