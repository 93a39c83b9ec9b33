// Exercise 44: memory that is not allocated yet.
//
// The exporter sends a pointer whose allocation is only queued, and an
// event that is recorded after the write. The importer does not wait
// for the event, so it copies memory that is not allocated yet. Let the
// importer's stream wait, but not its host.
// The exercise fails now with wrong values in the copy.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  Gate* gate = create_gate();
  cudaMemPool_t pool = create_pool();
  const cudaEvent_t written = create_shared_event();
  send_pool(channel, pool);

  hold(nullptr, gate);
  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaEventRecord(written));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("event", handle_of(written));
  channel.send("pointer", pointer);

  channel.wait("queued");
  open_gate(gate);
  channel.wait("freed");
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  void* copy = allocate_values(kCount, 0);
  const cudaEvent_t written =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));

  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  say("queues a copy; its stream is %s",
      is_held(nullptr) ? "held" : "NOT held");
  channel.signal("queued");

  const int wrong = count_wrong(copy, kCount, kValue);
  say("reads the copy: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaFree(copy));
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}
