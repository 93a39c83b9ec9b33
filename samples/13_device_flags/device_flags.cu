// Lesson 13: order GPU work by a word in shared memory.
//
//   exporter                             importer
//   cudaMalloc: values and a turn
//                    ---- handle ---->   open
//   queue for each round:                queue for each round:
//     wait for turn 0, 2, 4 …              wait for turn 1, 3, 5 …
//     add 1 to each value                  add 1 to each value
//     write turn 1, 3, 5 …                 write turn 2, 4, 6 …
//   read the values  <--- closed -----   close
//
// First kernels with atomics wait and write, then cuStreamWaitValue32
// and cuStreamWriteValue32. No event and no host takes part.
//
// nvcc -cudart shared samples/13_device_flags/device_flags.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda/atomic>

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kRounds = 20;
constexpr int kCount = 1 << 16;      // values that both sides change
constexpr int kAllocated = 1 << 19;  // 2 MiB; lesson 21 says why
constexpr int kExporterValue = 1000000;

// The turn orders these plain loads and stores. If a kernel runs too
// early, it adds nothing, and the sums are wrong.
__global__ void add_one(unsigned* values, unsigned turn) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (values[i] == kExporterValue + i + turn) values[i] += 1;
}

//! [kernels]
using Turn = cuda::atomic_ref<unsigned, cuda::thread_scope_system>;

__global__ void wait_for_turn(unsigned* turn, unsigned wanted) {
  constexpr unsigned long long kLimit = 10'000'000'000;  // ns
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (Turn(*turn).load(cuda::memory_order_acquire) == wanted) return;
  } while (now - began < kLimit);
  __trap();  // ends this process's GPU work with an error
}

__global__ void pass_on(unsigned* turn, unsigned next) {
  Turn(*turn).store(next, cuda::memory_order_release);
}

void queue_by_kernels(unsigned* values, unsigned* turn, unsigned mine) {
  wait_for_turn<<<1, 1>>>(turn, mine);
  CUDA_CHECK(cudaGetLastError());
  add_one<<<kCount / 256, 256>>>(values, mine);
  CUDA_CHECK(cudaGetLastError());
  pass_on<<<1, 1>>>(turn, mine + 1);
  CUDA_CHECK(cudaGetLastError());
}
//! [kernels]

//! [stream]
void queue_by_stream(unsigned* values, unsigned* turn, unsigned mine) {
  const auto address = reinterpret_cast<CUdeviceptr>(turn);
  CU_CHECK(DRIVER(cuStreamWaitValue32)(nullptr, address, mine,
                                       CU_STREAM_WAIT_VALUE_EQ));
  add_one<<<kCount / 256, 256>>>(values, mine);
  CUDA_CHECK(cudaGetLastError());
  CU_CHECK(DRIVER(cuStreamWriteValue32)(nullptr, address, mine + 1,
                                        CU_STREAM_WRITE_VALUE_DEFAULT));
}
//! [stream]

// Queues every second turn, beginning with `first`, and waits for
// these turns. Returns the average time of a turn in microseconds.
template <class Queue>
double take_turns(Queue queue, unsigned* values, unsigned first) {
  const auto began = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < kRounds; ++i)
    queue(values, values + kCount, first + 2 * i);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  const std::chrono::duration<double, std::micro> took =
      std::chrono::steady_clock::now() - began;
  return took.count() / (2 * kRounds);
}

//! [exporter]
int exporter(Channel& channel) {
  // The word after the last value is the turn. It begins with 0.
  void* data = allocate_values(kAllocated, kExporterValue);
  auto* values = static_cast<unsigned*>(data);
  CUDA_CHECK(cudaMemset(values + kCount, 0, sizeof(unsigned)));
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  channel.send("handle", handle);

  say("takes turns by kernels: [%.0f us] each",
      take_turns(queue_by_kernels, values, 0));
  say("takes turns by stream operations: [%.0f us] each",
      take_turns(queue_by_stream, values, 2 * kRounds));

  channel.wait("closed");
  constexpr int kAdded = 4 * kRounds;  // two sides, two ways
  const int wrong = count_wrong(data, kCount, kExporterValue + kAdded);
  say("reads the sums after %d turns: %d wrong", kAdded, wrong);
  CUDA_CHECK(cudaFree(data));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  say("opens the values and the turn");

  auto* values = static_cast<unsigned*>(data);
  take_turns(queue_by_kernels, values, 1);
  take_turns(queue_by_stream, values, 2 * kRounds + 1);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return EXIT_SUCCESS;
}
//! [importer]

int main(int argc, char** argv) {
  // Load all kernels early: a late load can wait for a waiting kernel.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
