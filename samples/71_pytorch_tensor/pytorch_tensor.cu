// Lesson 71: use a tensor that PyTorch has put onto a GPU, and lend a
// tensor to PyTorch.
//
//   exporter (producer.py or stand-in)  importer
//   storage in a large block
//   count in a file = 1
//   record an event    --- tensor --->  wait for the event, open
//                                       block + offset + strides
//                                       read, write, close
//   read the values    <-- released --  count = 0
//   then the same steps in the other direction
//
// nvcc -cudart shared samples/71_pytorch_tensor/pytorch_tensor.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"
#include "tensor.h"

constexpr size_t kBlock = 2 << 20;  // a block of a caching allocator
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

// The stand-in's tensors, field by field as in tensor.h: a matrix, a
// transposed matrix, and every second column of a part of a matrix.
const Tensor kLayouts[] = {
    {0, {3, 'c'}, 8192, 0, {}, 0, {}, 1, 0, {32, 64}, {64, 1}},
    {0, {3, 'c'}, 8192, 65536, {}, 1, {}, 1, 0, {64, 32}, {1, 64}},
    {0, {3, 'c'}, 8192, 1024, {}, 9999, {}, 1, 70, {20, 16}, {64, 2}}};
constexpr int kTensors = 3;

//! [lend]
// Lends a tensor. Returns 0 if the other process has written
// `expected`, `expected` + 1 … and has decreased the count to 0.
int lend(Channel& channel, Tensor tensor, int value, int expected) {
  void* block = nullptr;
  CUDA_CHECK(cudaMalloc(&block, kBlock));
  CUDA_CHECK(cudaMemset(block, kPoison, kBlock));
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, block));
  std::memcpy(tensor.handle + 2, &handle, sizeof handle);

  std::snprintf(tensor.counter, sizeof tensor.counter, "/ipclab_%d",
                static_cast<int>(getpid()));
  Counters* counters = open_counters(tensor.counter, O_CREAT | O_EXCL);
  counters->count[tensor.counter_index] = 1;

  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  visit(block, tensor, kAnything, value);
  CUDA_CHECK(cudaEventRecord(event));  // no host waits for the kernel
  CUDA_CHECK(cudaIpcGetEventHandle(&tensor.event, event));
  channel.send("tensor", tensor);

  channel.wait("released");
  const bool used = counters->count[tensor.counter_index] != 0;
  visit(block, tensor, expected, kAnything);
  const int wrong = wrong_so_far();
  say("lent a tensor, gets it back%s: %d wrong",
      used ? " BEFORE ITS COUNT IS 0" : "", wrong);
  close_counters(tensor.counter, counters);
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(block));
  return wrong + used;
}
//! [lend]

//! [borrow]
// Uses a tensor of the other process. Stores the message in *tensor.
int borrow(Channel& channel, Tensor* tensor, int expected, int value) {
  *tensor = channel.receive<Tensor>("tensor");
  if (tensor->handle[1] != 'c') {
    say("cannot use memory of expandable segments");
    std::exit(EXIT_FAILURE);
  }
  cudaEvent_t event;
  if (tensor->must_wait) {
    CUDA_CHECK(cudaIpcOpenEventHandle(&event, tensor->event));
    CUDA_CHECK(cudaStreamWaitEvent(nullptr, event));
  }
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, tensor->handle + 2, sizeof handle);
  void* block = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&block, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  visit(block, *tensor, expected, value);
  const int wrong = wrong_so_far();
  say("borrows a tensor of %d x %d, strides %d, %d: %d wrong",
      int(tensor->size[0]), int(tensor->size[1]),
      int(tensor->stride[0]), int(tensor->stride[1]), wrong);

  CUDA_CHECK(cudaIpcCloseMemHandle(block));
  if (tensor->must_wait) CUDA_CHECK(cudaEventDestroy(event));
  Counters* counters = open_counters(tensor->counter, 0);
  --counters->count[tensor->counter_index];
  close_counters(tensor->counter, counters);
  channel.signal("released");
  return wrong;
}
//! [borrow]

int exporter(Channel& channel) {
  int wrong = 0;
  channel.send("tensors", kTensors);
  for (Tensor tensor : kLayouts) {
    wrong += lend(channel, tensor, kExporterValue, kImporterValue);
    wrong += borrow(channel, &tensor, kImporterValue, kExporterValue);
  }
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  int wrong = 0;
  const int tensors = channel.receive<int>("tensors");
  for (int i = 0; i < tensors; ++i) {
    Tensor tensor;  // this role lends a tensor of the same layout
    wrong += borrow(channel, &tensor, kExporterValue, kImporterValue);
    tensor.storage_offset = 4096;  // elsewhere in its block
    wrong += lend(channel, tensor, kImporterValue, kExporterValue);
  }
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  say("is a stand-in for producer.py, which needs PyTorch");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
