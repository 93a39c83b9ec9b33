// Exercise 84: recorded too early.
//
// The importer waits for the exporter's event before it uses the
// memory. The exporter records the event, and then writes the values:
// the event only shows that the memory is allocated. Change the order
// of the calls.
// The exercise fails now because the importer's copy is not held.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  Gate* gate = create_gate();
  cudaMemPool_t pool = create_pool();
  const cudaEvent_t ready = create_shared_event();
  send_pool(channel, pool);

  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  CUDA_CHECK(cudaEventRecord(ready));
  hold(nullptr, gate);  // stands for long work
  write_values(data, kCount, kValue);
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("event", handle_of(ready));
  channel.send("pointer", pointer);

  channel.wait("queued");
  open_gate(gate);
  channel.wait("freed");
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaEventDestroy(ready));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  void* copy = allocate_values(kCount, 0);
  const cudaEvent_t ready =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, ready));
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  say("queues a copy; its stream is %s",
      is_held(nullptr) ? "held" : "NOT held");
  channel.signal("queued");

  const int wrong = count_wrong(copy, kCount, kValue);
  say("reads the copy: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaFree(copy));
  CUDA_CHECK(cudaEventDestroy(ready));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
