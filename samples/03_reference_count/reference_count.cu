// Lesson 03: every open needs its close, and only the last one unmaps.
//
//   exporter                            importer
//   cudaMalloc, write
//   close its own: refused
//   cudaIpcGetMemHandle   -- handle -->  open: a pointer, count 1
//                                        open: the same, count 2
//                                        cudaFree: refused
//                                        close: count 1, still mapped
//                                        read, write
//                                        close: count 0, unmapped
//   find what it wrote    <- closed ---  close once more: refused
//   cudaFree
//
// nvcc -cudart shared samples/03_reference_count/reference_count.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000, kImporterValue = 2000;
constexpr unsigned kFlag = cudaIpcMemLazyEnablePeerAccess;

__global__ void write_values(int* data, int value) {
  data[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

void write(int* data, int value) {
  write_values<<<kCount / 256, 256>>>(data, value);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
}

int last_value(const int* data) {
  int value = -1;
  CUDA_CHECK(cudaMemcpy(&value, data + kCount - 1, sizeof value,
                        cudaMemcpyDefault));
  return value;
}

// Says whether a call was refused, as it must be.
bool refused(const char* call, cudaError_t code) {
  cudaGetLastError();  // so that no later check finds it
  say("%s: %s", call, code == cudaSuccess ? "ACCEPTED" : "refused");
  return code != cudaSuccess;
}

bool is_mapped(const void* pointer) {
  cudaPointerAttributes attributes;
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type == cudaMemoryTypeDevice;
}

//! [exporter]
int exporter(Channel& channel) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, 0xEE, kBytes));
  write(data, kExporterValue);
  bool good =
      refused("closes its own memory", cudaIpcCloseMemHandle(data));

  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  channel.send("handle", handle);
  channel.wait("closed");
  say("has its memory still, with %d in it", last_value(data));
  good = good && last_value(data) == kImporterValue;
  CUDA_CHECK(cudaFree(data));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void *first = nullptr, *second = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&first, handle, kFlag));
  CUDA_CHECK(cudaIpcOpenMemHandle(&second, handle, kFlag));
  bool good = first == second;
  say("opens twice, gets %s", good ? "one pointer" : "TWO pointers");
  good = refused("frees it with cudaFree", cudaFree(first)) && good;

  CUDA_CHECK(cudaIpcCloseMemHandle(first));
  int* data = static_cast<int*>(second);
  say("closes once, still reads %d", last_value(data));
  good = good && last_value(data) == kExporterValue;
  write(data, kImporterValue);
  say("and writes %d", kImporterValue);

  CUDA_CHECK(cudaIpcCloseMemHandle(second));
  say("closes twice, pointer %s",
      is_mapped(second) ? "STILL mapped" : "not mapped any more");
  good = good && !is_mapped(second);
  good = refused("closes three times", cudaIpcCloseMemHandle(second)) &&
         good;
  channel.signal("closed");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
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
