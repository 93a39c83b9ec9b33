// Lesson 56: free shared memory without waiting for the importer.
//
//   exporter                           importer
//   allocate, write
//                  ---- pointer ---->  import the pointer
//                                      hold the stream
//                                      queue: copy, free, record
//   queue: wait    <--- queued ------
//   for the event, free, allocate
//   again, overwrite
//                  ---- queued ----->  open the gate
//                                      read the copy: not overwritten
//   release all    <--- closed ------  release all
//
// nvcc -cudart shared samples/56_pool_free_order/pool_free_order.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/gate.h"
#include "../common/pool.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;
constexpr int kNextValue = 3000000;

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  send_pool(channel, pool);

  cudaEvent_t freed;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &freed, cudaEventInterprocess | cudaEventDisableTiming));
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, freed));
  channel.send("event", handle);

  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("queued");  // now the importer's record is the latest
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, freed));
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  void* next = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&next, kBytes, pool, nullptr));
  write_values(next, kCount, kNextValue);
  const bool early = cudaEventQuery(freed) == cudaErrorNotReady;
  say("queues its free and a new allocation %s the copy is done",
      early ? "before" : "AFTER");
  channel.signal("queued");

  channel.wait("closed");
  CUDA_CHECK(cudaFreeAsync(next, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return early ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  Gate* gate = create_gate();
  cudaMemPool_t pool = receive_pool(channel);
  cudaEvent_t freed;
  CUDA_CHECK(cudaIpcOpenEventHandle(
      &freed, channel.receive<cudaIpcEventHandle_t>("event")));
  void* copy = allocate_values(kCount, 0);  // not the exporter's values

  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  hold(nullptr, gate);
  for (int i = 0; i < 20; ++i)  // delays the copy
    write_values(copy, kCount, 0);
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaEventRecord(freed));
  say("queues a copy and its free, its stream is held");
  channel.signal("queued");

  channel.wait("queued");
  open_gate(gate);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  const int wrong = count_wrong(copy, kCount, kExporterValue);
  say("reads its copy: %d wrong", wrong);

  CUDA_CHECK(cudaFree(copy));
  CUDA_CHECK(cudaEventDestroy(freed));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
