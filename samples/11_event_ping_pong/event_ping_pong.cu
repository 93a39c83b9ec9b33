// Lesson 11: events in both directions; no host waits for a GPU.
//
//   exporter                            importer
//   add 1, record ping   -- recorded -> read without a wait: too early
//   wait for pong        <- recorded -- wait; times 3; record pong
//   ... 100 rounds; the values prove the order of all steps
//
// nvcc -cudart shared samples/11_event_ping_pong/event_ping_pong.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr unsigned kCount = 1 << 16, kRounds = 100, kStart = 7;

__global__ void hold(const volatile int* gate) {
  for (int i = 0; *gate == 0 && i < 10000000;) ++i;
}

__global__ void step(unsigned* data, unsigned mul, unsigned add) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  data[i] = data[i] * mul + add;
}

void queue_step(void* data, unsigned mul, unsigned add) {
  step<<<kCount / 256, 256>>>(static_cast<unsigned*>(data), mul, add);
  CUDA_CHECK(cudaGetLastError());
}

long values_that_are(unsigned value, const void* data) {
  static unsigned seen[kCount];
  std::fill_n(seen, kCount, ~value);
  CUDA_CHECK(cudaMemcpy(seen, data, sizeof seen, cudaMemcpyDefault));
  return std::count(seen, seen + kCount, value);
}

//! [exporter]
int exporter(Channel& channel) {
  void* data = nullptr;
  int* gate = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kCount * sizeof(unsigned)));
  CUDA_CHECK(cudaHostAlloc(&gate, sizeof(int), cudaHostAllocMapped));
  *gate = 0;
  queue_step(data, 0, kStart);
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t memory;
  CUDA_CHECK(cudaIpcGetMemHandle(&memory, data));
  channel.send("memory", memory);
  cudaEvent_t ping, pong;
  for (cudaEvent_t* event : {&ping, &pong}) {
    CUDA_CHECK(cudaEventCreateWithFlags(
        event, cudaEventInterprocess | cudaEventDisableTiming));
    cudaIpcEventHandle_t handle;
    CUDA_CHECK(cudaIpcGetEventHandle(&handle, *event));
    channel.send("event", handle);
  }
  hold<<<1, 1>>>(gate);  // round 0 is recorded, but not done
  unsigned expected = kStart;
  for (unsigned round = 0; round < kRounds; ++round) {
    queue_step(data, 1, 1);
    CUDA_CHECK(cudaEventRecord(ping, nullptr));
    channel.signal("ping recorded");
    channel.wait("pong recorded");  // it is not done either
    CUDA_CHECK(cudaStreamWaitEvent(nullptr, pong, 0));
    *static_cast<volatile int*>(gate) = 1;
    expected = (expected + 1) * 3;
  }
  const long good = values_that_are(expected, data);
  channel.wait("closed");
  say("after %u rounds %ld values are right", kRounds, good);
  for (cudaEvent_t event : {ping, pong})
    CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFreeHost(gate));
  CUDA_CHECK(cudaFree(data));
  return good == kCount ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]
//! [importer]
int importer(Channel channel) {
  void* data = nullptr;
  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  cudaEvent_t ping, pong;
  for (cudaEvent_t* event : {&ping, &pong})
    CUDA_CHECK(cudaIpcOpenEventHandle(
        event, channel.receive<cudaIpcEventHandle_t>("event")));
  long old = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    channel.wait("ping recorded");
    if (round == 0) old = values_that_are(kStart, data);  // no wait!
    CUDA_CHECK(cudaStreamWaitEvent(nullptr, ping, 0));
    queue_step(data, 3, 0);
    CUDA_CHECK(cudaEventRecord(pong, nullptr));
    channel.signal("pong recorded");
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  for (cudaEvent_t event : {ping, pong})
    CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  say("read once without a wait: %ld values were still old", old);
  channel.signal("closed");
  return old == kCount ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]
int main(int argc, char** argv) {
  // A first launch loads the kernel, and may wait for what is held.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  return child.wait(10s) == EXIT_SUCCESS ? mine : EXIT_FAILURE;
}
