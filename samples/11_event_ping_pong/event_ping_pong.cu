// Lesson 11: events in both directions; no host waits for a GPU.
//
//   exporter                            importer
//   create both events   -- events -->  open both events
//   100 rounds:
//     queue: add 1
//     record ping        -- ping ---->  queue: wait for ping, times 3
//     wait for pong      <- pong -----  record pong
//   read the result      <- closed ---  destroy both events
//   destroy both events
//
// Any other order of the steps gives another result.
//
// nvcc -cudart shared samples/11_event_ping_pong/event_ping_pong.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/gate.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 19;
constexpr int kRounds = 100;
constexpr unsigned kStart = 7;  // all values are equal

__global__ void step(unsigned* data, unsigned factor, unsigned more) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  data[i] = data[i] * factor + more;
}

void queue_step(void* data, unsigned factor, unsigned more) {
  step<<<kCount / 256, 256>>>(static_cast<unsigned*>(data), factor,
                              more);
  CUDA_CHECK(cudaGetLastError());
}

//! [exporter]
int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kStart, 0);
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

  Gate* gate = create_gate();
  hold(nullptr, gate);
  unsigned expected = kStart;
  for (int round = 1; round <= kRounds; ++round) {
    queue_step(data, 1, 1);
    CUDA_CHECK(cudaEventRecord(ping, nullptr));
    channel.signal("ping");  // recorded, but perhaps not done

    channel.wait("pong");
    CUDA_CHECK(cudaStreamWaitEvent(nullptr, pong, 0));
    if (round == 1) open_gate(gate);
    expected = (expected + 1) * 3;
  }

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, expected, 0);
  say("reads the result of %d rounds: %d wrong", kRounds, wrong);
  CUDA_CHECK(cudaEventDestroy(ping));
  CUDA_CHECK(cudaEventDestroy(pong));
  destroy_gate(gate);
  CUDA_CHECK(cudaFree(data));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto memory = channel.receive<cudaIpcMemHandle_t>("memory");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  cudaEvent_t ping, pong;
  for (cudaEvent_t* event : {&ping, &pong})
    CUDA_CHECK(cudaIpcOpenEventHandle(
        event, channel.receive<cudaIpcEventHandle_t>("event")));

  int wrong = 0;
  for (int round = 1; round <= kRounds; ++round) {
    channel.wait("ping");
    // Round 1 is held, so without a wait the values are still old.
    if (round == 1) wrong = count_wrong(data, kCount, kStart, 0);

    CUDA_CHECK(cudaStreamWaitEvent(nullptr, ping, 0));
    queue_step(data, 3, 0);
    CUDA_CHECK(cudaEventRecord(pong, nullptr));
    channel.signal("pong");
  }
  say("reads the old values before its first wait: %d wrong", wrong);

  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(ping));
  CUDA_CHECK(cudaEventDestroy(pong));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  // Load all kernels early: a late load can wait for a held stream.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
