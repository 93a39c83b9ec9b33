// Lesson 60: release everything in order.
//
//   exporter                            importer
//   cudaMalloc, write
//   cudaEventCreate..., record
//                  ---- handles ---->   open both
//                                       wait for the event, read
//                                       destroy the event, close
//   destroy the    <--- closed ------
//   event, cudaFree
//   check: the memory is back
//
// nvcc -cudart shared samples/60_teardown/teardown.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr size_t kBytes = size_t{2} << 30;  // big enough to measure
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;

//! [exporter]
int exporter(Channel& channel) {
  const size_t before = free_memory();
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kCount * sizeof(int)));
  cudaEvent_t written;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &written, cudaEventInterprocess | cudaEventDisableTiming));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaEventRecord(written));

  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  CUDA_CHECK(cudaIpcGetMemHandle(&memory, data));
  CUDA_CHECK(cudaIpcGetEventHandle(&event, written));
  say("shares 2 GiB and an event");
  channel.send("memory", memory);
  channel.send("event", event);

  // Do not guess when the importer has closed: wait for its message.
  channel.wait("closed");
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaFree(data));
  const bool back = free_memory() + kBytes / 2 > before;
  say("destroys the event, frees: the memory is %s",
      back ? "back" : "NOT BACK");

  return back ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  const auto event = channel.receive<cudaIpcEventHandle_t>("event");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  cudaEvent_t written;
  CUDA_CHECK(cudaIpcOpenEventHandle(&written, event));

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, written));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("opens both, reads the exporter's values: %d wrong", wrong);

  // The last use is over: count_wrong() has waited for its copy.
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  say("destroys the event, closes the memory");
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  require_free_memory(2 * kBytes);  // contexts need memory, too

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
