// Lesson 07: use the memory of another GPU.
//
//   exporter, on GPU 0                  importer, sees only GPU 1
//   cudaMalloc, write
//   cudaIpcGetMemHandle  -- handle -->  cudaIpcOpenMemHandle; it also
//                                       enables access to GPU 0
//                                       a kernel on GPU 1 adds to the
//                                       values in the memory of GPU 0
//   read the sums        <- closed ---  cudaIpcCloseMemHandle
//   cudaFree
//
// nvcc -cudart shared samples/07_legacy_two_gpus/legacy_two_gpus.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <string>

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 7000000;
constexpr int kAdded = 500000;  // the importer adds it to each value

__global__ void add(int* data, int amount) {
  data[blockIdx.x * blockDim.x + threadIdx.x] += amount;
}

//! [exporter]
int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kExporterValue);  // GPU 0

  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  say("writes %d values on GPU 0", kCount);
  channel.send("handle", handle);

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kExporterValue + kAdded);
  say("reads the sums in its memory: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [hide]
// Hides all GPUs except the second GPU from this process. CUDA reads
// CUDA_VISIBLE_DEVICES once, at the first CUDA call.
void see_only_second_gpu() {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string all = variable != nullptr ? variable : "0,1";
  const size_t from = all.find(',') + 1;
  const size_t length = all.find(',', from) - from;
  const std::string second = all.substr(from, length);
  SYS_CHECK(setenv("CUDA_VISIBLE_DEVICES", second.c_str(), 1));
}
//! [hide]

//! [importer]
int importer(Channel channel) {
  see_only_second_gpu();
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  say("sees %d GPU, and not the exporter's", gpus);
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("opens the handle, reads the exporter's values: %d wrong", wrong);

  add<<<kCount / 256, 256>>>(static_cast<int*>(data), kAdded);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  say("adds %d to each value by a kernel on its own GPU", kAdded);

  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return gpus == 1 && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(2);
  require_legacy_ipc();
  int can = 0;
  CUDA_CHECK(cudaDeviceCanAccessPeer(&can, 1, 0));
  if (can == 0) skip("GPU 1 cannot access the memory of GPU 0");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
