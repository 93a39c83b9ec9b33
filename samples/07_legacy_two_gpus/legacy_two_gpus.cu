// Lesson 07: memory of another GPU.
//
//   exporter, on GPU 0                  importer, sees GPU 1 only
//   cudaMalloc, write
//   cudaIpcGetMemHandle  -- handle -->  cudaIpcOpenMemHandle, which
//   also
//                                       enables peer access to GPU 0
//                                       a kernel of GPU 1 reads and
//   read the importer's  <- written --  writes the memory of GPU 0
//   values, cudaFree     <-- closed --  cudaIpcCloseMemHandle
//
// nvcc -cudart shared samples/07_legacy_two_gpus/legacy_two_gpus.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <string>
#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1;
constexpr int kExporterValue = 7000000;
constexpr int kAdded = 500000;  // by the importer, to each value

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

__global__ void add(int* data, int amount) {  // reads and writes
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] += amount;
}

bool holds(const int* data, int first) {
  std::vector<int> seen(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  for (int i = 0; i < kCount; ++i)
    if (seen[i] != first + i) return false;
  return true;
}

//! [exporter]
int exporter(Channel& channel) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));  // on device 0
  CUDA_CHECK(cudaMemset(data, kPoison, kBytes));
  write_values<<<kCount / 256, 256>>>(data, kExporterValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  say("wrote %d values on GPU 0", kCount);
  channel.send("handle", handle);

  channel.wait("written");
  const bool good = holds(data, kExporterValue + kAdded);
  say("finds %s sums in its memory", good ? "the importer's" : "WRONG");
  channel.signal("seen");
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [hide]
// Before the first CUDA call: later ones do not look at the variable.
void see_second_gpu_only() {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string all = variable != nullptr ? variable : "0,1";
  const size_t from = all.find(',') + 1;
  const std::string second =
      all.substr(from, all.find(',', from) - from);
  SYS_CHECK(setenv("CUDA_VISIBLE_DEVICES", second.c_str(), 1));
}
//! [hide]

//! [importer]
int importer(Channel channel) {
  see_second_gpu_only();
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  say("sees %d GPU, and not the exporter's", gpus);

  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  int* data = static_cast<int*>(opened);
  const bool good = gpus == 1 && holds(data, kExporterValue);
  say("opened it, finds %s values", good ? "the exporter's" : "WRONG");
  add<<<kCount / 256, 256>>>(data, kAdded);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  say("a kernel of its own GPU adds %d to each", kAdded);
  channel.signal("written");
  channel.wait("seen");
  CUDA_CHECK(cudaIpcCloseMemHandle(opened));
  channel.signal("closed");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(2);
  int can = 0;
  CUDA_CHECK(cudaDeviceCanAccessPeer(&can, 1, 0));
  if (can == 0) skip("GPU 1 does not reach the memory of GPU 0");
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  const int theirs = child.wait(10s);
  return mine != EXIT_SUCCESS ? mine : theirs;
}
