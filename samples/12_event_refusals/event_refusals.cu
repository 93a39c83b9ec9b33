// Lesson 12: what an interprocess event refuses; nothing breaks.
//
//   exporter                            importer
//   four calls are refused
//   write, record        -- handles --> two calls are refused
//                                       wait; the values are there
//   cudaEventDestroy   <-- destroyed -- cudaEventDestroy
//
// nvcc -cudart shared samples/12_event_refusals/event_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 18, kPoison = -1, kExporterValue = 1000000;
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

int surprises = 0;

// A refusal is an answer: the code says what was wrong with the call.
void refused(const char* what, cudaError_t code, cudaError_t wanted) {
  say("%-28s %s", what, cudaGetErrorName(code));
  if (code != wanted) ++surprises;
  cudaGetLastError();  // the refused call must not fail the next check
}

//! [exporter]
int exporter(Channel& channel) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kBytes));
  cudaEvent_t event, plain, nothing;
  cudaIpcEventHandle_t handle;
  refused("create without DisableTiming",
          cudaEventCreateWithFlags(&nothing, cudaEventInterprocess),
          cudaErrorInvalidValue);
  CUDA_CHECK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
  refused("export a plain event", cudaIpcGetEventHandle(&handle, plain),
          cudaErrorInvalidResourceHandle);
  CUDA_CHECK(cudaEventDestroy(plain));

  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  refused("open one's own handle",
          cudaIpcOpenEventHandle(&nothing, handle),
          cudaErrorDeviceUninitialized);
  write_values<<<kCount / 256, 256>>>(data, kExporterValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  float ms = 0;
  refused("ask the event for a time",
          cudaEventElapsedTime(&ms, event, event),
          cudaErrorInvalidResourceHandle);
  cudaIpcMemHandle_t memory;
  CUDA_CHECK(cudaIpcGetMemHandle(&memory, data));
  channel.send("memory", memory);
  channel.send("event", handle);

  channel.wait("destroyed");  // until then the event has to live
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));
  return surprises == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  const auto handle = channel.receive<cudaIpcEventHandle_t>("event");
  cudaEvent_t event;
  cudaIpcEventHandle_t wrong;
  std::memset(&wrong, 0x5a, sizeof wrong);
  refused("open a wrong handle", cudaIpcOpenEventHandle(&event, wrong),
          cudaErrorMapBufferObjectFailed);

  CUDA_CHECK(cudaIpcOpenEventHandle(&event, handle));
  float ms = 0;
  refused("ask the import for a time",
          cudaEventElapsedTime(&ms, event, event),
          cudaErrorInvalidResourceHandle);
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  std::vector<int> seen(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  for (int i = 0; i < kCount; ++i)
    surprises += seen[i] != kExporterValue + i;
  say("all the same the event works: %d surprises", surprises);

  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("destroyed");
  return surprises == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
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
