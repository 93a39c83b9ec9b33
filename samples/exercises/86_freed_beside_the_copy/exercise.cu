// Exercise 86: freed beside the copy.
//
// The importer copies in one stream and frees in another, and records
// an event for the exporter after the free. The exporter waits for this
// event and gives the memory to a new owner, while the copy still
// waits. Let the free and the record come after the copy.
// The exercise fails now because the exporter is not held, or because
// the copy is wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;
constexpr int kNextValue = 5000000;

int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  const cudaEvent_t freed = create_shared_event();
  send_pool(channel, pool);
  channel.send("event", handle_of(freed));
  void *data = nullptr, *next = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("queued");
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, freed));
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaMallocFromPoolAsync(&next, kBytes, pool, nullptr));
  write_values(next, kCount, kNextValue);
  const bool held = is_held(nullptr);
  say("allocates for a new owner, and is %s",
      held ? "held" : "NOT held");
  channel.signal("queued");

  channel.wait("done");
  CUDA_CHECK(cudaFreeAsync(next, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return held ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  Gate* gate = create_gate();
  cudaMemPool_t pool = receive_pool(channel);
  const cudaEvent_t freed =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  void* copy = allocate_values(kCount, 0);
  cudaStream_t reader, cleaner;
  CUDA_CHECK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
  CUDA_CHECK(
      cudaStreamCreateWithFlags(&cleaner, cudaStreamNonBlocking));
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));

  hold(reader, gate);  // stands for long work
  CUDA_CHECK(
      cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault, reader));
  CUDA_CHECK(cudaFreeAsync(data, cleaner));
  CUDA_CHECK(cudaEventRecord(freed, cleaner));
  channel.signal("queued");

  channel.wait("queued");
  open_gate(gate);
  CUDA_CHECK(cudaDeviceSynchronize());
  const int wrong = count_wrong(copy, kCount, kValue);
  say("reads the copy: %d wrong", wrong);
  CUDA_CHECK(cudaStreamDestroy(reader));
  CUDA_CHECK(cudaStreamDestroy(cleaner));
  CUDA_CHECK(cudaFree(copy));
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);
  channel.signal("done");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
