// Lesson 21: whoever may open a small allocation gets its neighbours.
//
//   exporter                            importer
//   cudaMalloc twice: one to
//   lend, one for a secret
//   handle of the first  -- handle -->  cudaIpcOpenMemHandle
//                                       search the whole 2 MiB around
//                                       it for the secret, overwrite it
//   is the secret whole? <-- closed --  cudaIpcCloseMemHandle
//   again, but round what is lent up to 2 MiB
//
// nvcc -cudart shared
//   samples/21_suballocation_leak/suballocation_leak.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "../common/roles.h"

constexpr size_t kBytes = 4 << 10;  // 1024 words
constexpr unsigned kLent = 0x1e1e1e1e, kSecret = 0x5e5e5e5e;
constexpr unsigned kForged = 0xf0f0f0f0;

//! [shareable]
constexpr size_t kBlock = 2 << 20;  // a handle maps whole blocks

// What to allocate so that lending `bytes` lends nothing else: the next
// multiple of 2 MiB. 0 is an error: there is none.
constexpr size_t shareable(size_t bytes) {
  const size_t blocks = bytes / kBlock + (bytes % kBlock != 0);
  return blocks > SIZE_MAX / kBlock ? 0 : blocks * kBlock;
}
//! [shareable]

__managed__ int turned;  // words that turn() has turned

__global__ void turn(void* data, unsigned from, unsigned to) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned& word = static_cast<unsigned*>(data)[i];
  if (word == from) atomicAdd(&turned, 1), word = to;
}

// Turns all words `from` into `to`; how many, 0 if the GPU stops it.
int turn_all(void* data, size_t bytes, unsigned from, unsigned to) {
  turned = 0;
  turn<<<bytes / 1024, 256>>>(data, from, to);
  if (cudaDeviceSynchronize() == cudaErrorIllegalAddress) return 0;
  CUDA_CHECK(cudaGetLastError());
  return turned;
}

// cudaMalloc clears nothing: every byte that is lent is written first.
void* allocate(size_t bytes, unsigned value) {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, bytes));
  CUDA_CHECK(cudaMemset(data, value & 0xff, bytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  return data;
}
char* block(void* data) {
  return static_cast<char*>(data) - size_t(data) % kBlock;
}

//! [exporter]
int exporter(Channel& channel, size_t bytes) {
  void* const loan = allocate(bytes, kLent);
  void* const secret = allocate(kBytes, kSecret);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, loan));
  say("lends %zu bytes, has a secret %s", bytes,
      block(loan) == block(secret) ? "in the same 2 MiB block"
                                   : "in another block");
  channel.send("handle", handle);

  const int found = channel.receive<int>("closed");
  const int forged = turn_all(secret, kBytes, kForged, kForged);
  say("finds %d words of its secret forged", forged);
  CUDA_CHECK(cudaFree(secret));
  CUDA_CHECK(cudaFree(loan));
  const int expected = bytes < kBlock ? found : 0;
  return forged == expected ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const bool good = turn_all(opened, kBytes, kLent, kLent) == 1024;
  say("opened the handle, finds %s", good ? "the loan" : "WRONG data");

  const int found = turn_all(block(opened), kBlock, kSecret, kForged);
  say("searches the 2 MiB around it, forges %d secret words", found);
  if (cudaPeekAtLastError() == cudaSuccess)  // was not stopped
    CUDA_CHECK(cudaIpcCloseMemHandle(opened));
  channel.send("closed", found);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

//! [main]
int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");

  for (const size_t bytes : {kBytes, shareable(kBytes)}) {
    Child child = start_again(argv);
    const int mine = exporter(child.channel, bytes);
    if (mine + child.wait(10s) != EXIT_SUCCESS) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
//! [main]
