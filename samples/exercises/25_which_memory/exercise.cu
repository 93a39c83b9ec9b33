// Exercise 25: which memory has a legacy handle?
//
// The program gets memory in five ways. For which memory does
// cudaIpcGetMemHandle return a handle? Write kYes or kNo for each way,
// and then run the program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kOfCudaMalloc = kUnknown;
constexpr Answer kOfCudaMallocHost = kUnknown;
constexpr Answer kOfCudaMallocAsync = kUnknown;
constexpr Answer kOfCuMemCreate = kUnknown;
constexpr Answer kOfCudaMallocManaged = kUnknown;

constexpr size_t kBytes = 4 << 20;

bool has_handle(void* data) {
  cudaIpcMemHandle_t handle;
  const cudaError_t code = cudaIpcGetMemHandle(&handle, data);
  cudaGetLastError();  // clears a refusal
  return code == cudaSuccess;
}

int main() {
  require_gpus(1);
  require_legacy_ipc();
  void* data = nullptr;

  CUDA_CHECK(cudaMalloc(&data, kBytes));
  bool good = predicted("cudaMalloc?", kOfCudaMalloc, has_handle(data));
  CUDA_CHECK(cudaFree(data));

  CUDA_CHECK(cudaMallocHost(&data, kBytes));
  good &=
      predicted("cudaMallocHost?", kOfCudaMallocHost, has_handle(data));
  CUDA_CHECK(cudaFreeHost(data));

  CUDA_CHECK(cudaMallocAsync(&data, kBytes, nullptr));
  good &= predicted("cudaMallocAsync?", kOfCudaMallocAsync,
                    has_handle(data));
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));

  const CUmemAllocationProp wanted =
      shareable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const size_t bytes = whole_granules(kBytes, wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  data = map_memory(memory, bytes);
  good &= predicted("cuMemCreate?", kOfCuMemCreate, has_handle(data));
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  CUDA_CHECK(cudaMallocManaged(&data, kBytes));
  good &= predicted("cudaMallocManaged?", kOfCudaMallocManaged,
                    has_handle(data));
  CUDA_CHECK(cudaFree(data));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
