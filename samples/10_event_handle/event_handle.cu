// Lesson 10: lend an event, so that GPU work waits for GPU work.
//
//   exporter                            importer
//   hold a stream, queue a kernel
//   that writes, record the event
//   cudaIpcGetEventHandle -- handle --> cudaIpcOpenEventHandle
//                                       query: not ready
//                                       queue a wait and a copy
//   let the stream go    <-- queued --
//                                       the copy has the values
//   cudaEventDestroy   <-- destroyed -- cudaEventDestroy
//
// nvcc -cudart shared samples/10_event_handle/event_handle.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 18;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1;
constexpr int kExporterValue = 1000000;
constexpr int kLooks = 10000000;  // then the gate opens by itself

__global__ void hold(const volatile int* gate) {
  for (int i = 0; *gate == 0 && i < kLooks;) ++i;
}

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

//! [exporter]
int exporter(Channel& channel) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  write_values<<<kCount / 256, 256>>>(data, kPoison);
  CUDA_CHECK(cudaGetLastError());
  int* gate = nullptr;
  CUDA_CHECK(cudaHostAlloc(&gate, sizeof(int), cudaHostAllocMapped));
  *gate = 0;
  CUDA_CHECK(cudaDeviceSynchronize());

  cudaEvent_t event;  // both flags: such an event measures no time
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  hold<<<1, 1>>>(gate);
  write_values<<<kCount / 256, 256>>>(data, kExporterValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaEventRecord(event, nullptr));

  cudaIpcMemHandle_t memory;
  CUDA_CHECK(cudaIpcGetMemHandle(&memory, data));
  channel.send("memory", memory);
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  say("holds its stream; a kernel, then the event, queue behind");
  channel.send("event", handle);

  channel.wait("queued");
  say("lets the stream go");
  *static_cast<volatile int*>(gate) = 1;
  channel.wait("destroyed");  // the event that was lent goes last
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFreeHost(gate));
  CUDA_CHECK(cudaFree(data));
  return EXIT_SUCCESS;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  int* copy = nullptr;
  CUDA_CHECK(cudaMalloc(&copy, kBytes));
  CUDA_CHECK(cudaMemset(copy, kPoison, kBytes));
  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  const auto handle = channel.receive<cudaIpcEventHandle_t>("event");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  cudaEvent_t event;
  CUDA_CHECK(cudaIpcOpenEventHandle(&event, handle));
  const cudaError_t before = cudaEventQuery(event);
  say("opens the event, asks it: %s", cudaGetErrorName(before));

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  say("queues a wait and a copy; its own host thread goes on");
  channel.signal("queued");

  std::vector<int> seen(kCount, kPoison);  // waits for the copy, too
  CUDA_CHECK(cudaMemcpy(seen.data(), copy, kBytes, cudaMemcpyDefault));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i)
    wrong += seen[i] != kExporterValue + i;
  say("finds %d wrong of %d values in the copy", wrong, kCount);

  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  say("destroys its event, and the exporter may follow");
  channel.signal("destroyed");
  return before == cudaErrorNotReady && wrong == 0 ? 0 : 1;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  return child.wait(10s) == EXIT_SUCCESS ? mine : EXIT_FAILURE;
}
