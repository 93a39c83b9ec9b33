// Lesson 51: share memory before its stream has allocated it.
//
//   exporter                           importer
//   hold; queue: allocate, write, record
//                  ---- pointer ---->  import the pointer
//                                      queue: wait for the event, copy
//   open the gate  <--- queued ------  read the copy, release all
//   release all    <--- closed ------
//
// nvcc -cudart shared samples/51_pool_stream_order/pool_stream_order.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/gate.h"
#include "../common/pool.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;

//! [exporter]
int exporter(Channel& channel) {
  Gate* gate = create_gate();
  cudaMemPool_t pool = create_pool();
  send_pool(channel, pool);

  cudaEvent_t written;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &written, cudaEventInterprocess | cudaEventDisableTiming));
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, written));
  channel.send("event", handle);

  hold(nullptr, gate);
  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  for (int left = 19; left >= 0; --left)  // the last write stays
    write_values(data, kCount, kExporterValue - left);
  CUDA_CHECK(cudaEventRecord(written));

  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  say("sends a pointer, its stream is held");
  channel.send("pointer", pointer);

  channel.wait("queued");
  open_gate(gate);

  channel.wait("closed");
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  destroy_gate(gate);

  return EXIT_SUCCESS;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  cudaEvent_t written;
  CUDA_CHECK(cudaIpcOpenEventHandle(
      &written, channel.receive<cudaIpcEventHandle_t>("event")));
  void* copy = allocate_values(kCount, 0);  // not the exporter's values

  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, written));
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  const bool early = cudaEventQuery(written) == cudaErrorNotReady;
  say("queues its copy %s the write", early ? "before" : "AFTER");
  channel.signal("queued");

  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  const int wrong = count_wrong(copy, kCount, kExporterValue);
  say("reads its copy: %d wrong", wrong);
  CUDA_CHECK(cudaFree(copy));
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("closed");

  return early && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  // Load all kernels now: a later load may wait for a held stream.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
