// Lesson 00: what can this machine share between processes?
//
// An attribute says what device and driver know. Only a small attempt
// says what this process may do: a container, WSL or a missing IMEX
// channel refuse what the attribute promised. So ask twice.
//
// nvcc -cudart shared samples/00_query_support/query_support.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/check.h"
#include "../common/require.h"

// One line: what is asked, the attribute, the attempt, the conclusion.
void row(const char* what, int attribute, const char* attempt,
         const char* answer, bool works, const char* meaning) {
  std::printf("%-14s %9d   %-36s %-27s %s\n", what, attribute, attempt,
              answer, works ? meaning : "not on this machine");
}

void row(const char* what, int attribute, const char* attempt,
         cudaError_t code, const char* meaning) {
  row(what, attribute, attempt, cudaGetErrorName(code),
      code == cudaSuccess, meaning);
  cudaGetLastError();  // a refused attempt must not spoil the next one
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

//! [legacy]
void ask_legacy() {
  const int supported = attribute(cudaDevAttrIpcEventSupport);

  void* data = nullptr;
  cudaIpcMemHandle_t memory;
  CUDA_CHECK(cudaMalloc(&data, 1));
  row("legacy memory", supported, "cudaIpcGetMemHandle",
      cudaIpcGetMemHandle(&memory, data), "lend memory of cudaMalloc");
  CUDA_CHECK(cudaFree(data));

  cudaEvent_t event = nullptr;
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  row("legacy event", supported, "cudaIpcGetEventHandle",
      cudaIpcGetEventHandle(&handle, event),
      "order work across processes");
  CUDA_CHECK(cudaEventDestroy(event));
}
//! [legacy]

//! [vmm]
void ask_vmm(const char* what, CUdevice_attribute asked,
             CUmemAllocationHandleType type, const char* meaning) {
  int supported = 0;  // this attribute only the driver API knows
  CU_CHECK(DRIVER(cuDeviceGetAttribute)(&supported, asked, 0));

  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = type;

  size_t size = 0;
  CUmemGenericAllocationHandle memory;
  CUresult code = DRIVER(cuMemGetAllocationGranularity)(
      &size, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (code == CUDA_SUCCESS)
    code = DRIVER(cuMemCreate)(&memory, size, &wanted, 0);
  row(what, supported, "cuMemCreate", driver_error(code),
      code == CUDA_SUCCESS, meaning);
  if (code == CUDA_SUCCESS) CU_CHECK(DRIVER(cuMemRelease)(memory));
}
//! [vmm]

//! [pool]
void ask_pool() {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;

  int descriptor = -1;
  cudaMemPool_t pool = nullptr;
  cudaError_t code = cudaMemPoolCreate(&pool, &wanted);
  if (code == cudaSuccess)
    code = cudaMemPoolExportToShareableHandle(
        &descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0);
  row("pool, by fd",
      attribute(cudaDevAttrMemoryPoolSupportedHandleTypes),
      "cudaMemPoolExportToShareableHandle", code,
      "share a stream-ordered pool");
  if (descriptor != -1) SYS_CHECK(close(descriptor));
  if (pool != nullptr) CUDA_CHECK(cudaMemPoolDestroy(pool));
}
//! [pool]

int main() {
  require_gpus(1);
  cudaDeviceProp gpu;
  CUDA_CHECK(cudaGetDeviceProperties(&gpu, 0));
  CUDA_CHECK(cudaFree(nullptr));  // makes the context current
  std::printf("GPU 0: %s\n\n", gpu.name);
  std::printf("%-14s attribute   %-36s %-27s what for\n", "transport",
              "attempt", "answer");

  ask_legacy();
  ask_vmm(
      "VMM, by fd",
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      "share memory, set access yourself");
  ask_vmm("VMM, by fabric",
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
          CU_MEM_HANDLE_TYPE_FABRIC, "share memory between nodes");
  ask_pool();
}
