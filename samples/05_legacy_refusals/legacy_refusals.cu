// Lesson 05: what cannot be exported, and what cannot be opened.
//
//   exporter                            importer
//   export null, a host pointer,
//   freed memory: refused
//   open its own handle: refused
//   the same handle      -- handle -->  made-up handles: refused
//                                       the handle itself: opens
//                        <-- closed --  cudaIpcCloseMemHandle
//
// A refusal is an answer: everything works after it.
//
// nvcc -cudart shared samples/05_legacy_refusals/legacy_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1;
constexpr int kValue = 5000000;
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

bool holds(const int* data, int first) {
  std::vector<int> seen(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));

  for (int i = 0; i < kCount; ++i)
    if (seen[i] != first + i) return false;
  return true;
}

//! [refused]
// Says how a call was answered that must be refused.
bool refused(const char* what, cudaError_t code) {
  say("%s: %s", what,
      code == cudaSuccess ? "NOT REFUSED" : cudaGetErrorName(code));
  // Ask for the code once more, or the check after the next launch
  // finds it and blames the kernel.
  cudaGetLastError();
  return code != cudaSuccess;
}
//! [refused]

//! [exporter]
int exporter(Channel& channel) {
  int* data = nullptr;
  int* freed = nullptr;
  int on_host = 0;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kBytes));
  CUDA_CHECK(cudaMalloc(&freed, kBytes));
  CUDA_CHECK(cudaFree(freed));

  cudaIpcMemHandle_t handle;
  bool good = true;
  good &= refused("export null", cudaIpcGetMemHandle(&handle, nullptr));
  good &= refused("export a host pointer",
                  cudaIpcGetMemHandle(&handle, &on_host));
  good &= refused("export freed memory",
                  cudaIpcGetMemHandle(&handle, freed));

  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  void* own = nullptr;
  good &= refused("open its own handle",
                  cudaIpcOpenMemHandle(&own, handle, kLazy));

  write_values<<<kCount / 256, 256>>>(data, kValue);  // still works
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle);
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  cudaIpcMemHandle_t made_up{};
  void* data = nullptr;
  bool good = refused("open 64 zeros",
                      cudaIpcOpenMemHandle(&data, made_up, kLazy));
  std::memset(&made_up, 0x5a, sizeof made_up);
  good &= refused("open 64 other bytes",
                  cudaIpcOpenMemHandle(&data, made_up, kLazy));

  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle, kLazy));
  const bool same = holds(static_cast<int*>(data), kValue);
  say("opens the handle as it came, finds %s values",
      same ? "the exporter's" : "WRONG");
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");
  return good && same ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");

  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  const int theirs = child.wait(10s);
  return mine != EXIT_SUCCESS ? mine : theirs;
}
