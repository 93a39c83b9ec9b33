// Lesson 06: one context a device, two APIs, one handle.
//
//   exporter                            importer
//   cudaMalloc, write
//   cuIpcGetMemHandle    -- handle -->  cudaIpcOpenMemHandle
//                                       a second context of the device:
//                                       it may not open the handle
//                                       back in the first: read, write
//   read the importer's  <- closed ---  cuIpcCloseMemHandle
//   values, cudaFree
//
// The exporter asks the driver API for the handle and the importer
// opens it with the runtime: both speak of the same 64 bytes.
//
// nvcc -cudart shared samples/06_contexts_and_apis/contexts_and_apis.cu
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
constexpr int kExporterValue = 6000000;
constexpr int kImporterValue = 6500000;

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

//! [exporter]
int exporter(Channel& channel) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kBytes));
  write_values<<<kCount / 256, 256>>>(data, kExporterValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());

  CUipcMemHandle handle;  // the same bytes as a cudaIpcMemHandle_t
  CU_CHECK(DRIVER(cuIpcGetMemHandle)(
      &handle, reinterpret_cast<CUdeviceptr>(data)));
  say("exports its memory with the driver API");
  channel.send("handle", handle);

  channel.wait("closed");
  const bool good = holds(data, kImporterValue);
  say("finds %s values", good ? "the importer's" : "WRONG");
  CUDA_CHECK(cudaFree(data));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [second]
// Does a second context of device 0 open the handle?
bool opens_in_second_context(const cudaIpcMemHandle_t& handle) {
  CUdevice device = 0;
  CUcontext second = nullptr;
  CU_CHECK(DRIVER(cuDeviceGet)(&device, 0));
  CU_CHECK(DRIVER(cuCtxCreate)(&second, nullptr, 0, device));
  void* opened = nullptr;  // the second context is current now
  const cudaError_t code = cudaIpcOpenMemHandle(
      &opened, handle, cudaIpcMemLazyEnablePeerAccess);
  cudaGetLastError();
  CU_CHECK(DRIVER(cuCtxDestroy)(second));
  CUDA_CHECK(cudaSetDevice(0));  // back to the first
  return code == cudaSuccess;
}
//! [second]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  say("opens the handle with the runtime API");
  const bool twice = opens_in_second_context(handle);
  say("a second context of the device %s",
      twice ? "OPENS IT, TOO" : "may not open it as well");

  int* data = static_cast<int*>(opened);
  const bool good = holds(data, kExporterValue);
  say("the first context finds %s values and writes its own",
      good ? "the exporter's" : "WRONG");
  write_values<<<kCount / 256, 256>>>(data, kImporterValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  CU_CHECK(DRIVER(cuIpcCloseMemHandle)(
      reinterpret_cast<CUdeviceptr>(opened)));
  channel.signal("closed");
  return good && !twice ? EXIT_SUCCESS : EXIT_FAILURE;
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
