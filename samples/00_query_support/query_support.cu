// Lesson 00: what can this process share on this machine?
//
// An attribute says what the device and the driver support. It does not
// say what this process may do: in a container, or without an IMEX
// channel, a call can be refused although the attribute is 1. So read
// the attribute, and also make a small attempt. If the attempt
// succeeds although the attribute is 0, the driver is wrong.
//
// nvcc -cudart shared samples/00_query_support/query_support.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/require.h"

// Prints one row of the table. Returns false if the attribute is 0 but
// the attempt succeeds.
bool print_row(const char* what, int attribute, const char* call,
               bool works, const char* answer, const char* use) {
  std::printf("%-15s %9d   %-34s   %-24s   %s\n", what, attribute, call,
              answer, works ? use : "not in this process");
  return attribute != 0 || !works;
}

bool print_row(const char* what, cudaDeviceAttr attribute,
               const char* call, cudaError_t code, const char* use) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, 0));
  cudaGetLastError();  // clears a refusal; lesson 05 says why
  return print_row(what, value, call, code == cudaSuccess,
                   cudaGetErrorName(code), use);
}

//! [legacy]
bool try_legacy_memory() {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, 2 << 20));

  cudaIpcMemHandle_t handle;
  const bool good = print_row(
      "legacy memory", cudaDevAttrIpcEventSupport,
      "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, data),
      "share memory of cudaMalloc");
  CUDA_CHECK(cudaFree(data));
  return good;
}

bool try_legacy_event() {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));

  cudaIpcEventHandle_t handle;
  const bool good = print_row(
      "legacy event", cudaDevAttrIpcEventSupport,
      "cudaIpcGetEventHandle", cudaIpcGetEventHandle(&handle, event),
      "order work across processes");
  CUDA_CHECK(cudaEventDestroy(event));
  return good;
}
//! [legacy]

//! [vmm]
bool try_vmm(const char* what, CUdevice_attribute attribute,
             CUmemAllocationHandleType type, const char* use) {
  int value = 0;  // only the driver API has these attributes
  CU_CHECK(DRIVER(cuDeviceGetAttribute)(&value, attribute, 0));

  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = type;  // decided now, not at the export

  size_t size = 0;
  CUmemGenericAllocationHandle memory;
  CUresult code = DRIVER(cuMemGetAllocationGranularity)(
      &size, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (code == CUDA_SUCCESS)
    code = DRIVER(cuMemCreate)(&memory, size, &wanted, 0);
  const bool works = code == CUDA_SUCCESS;
  if (works) CU_CHECK(DRIVER(cuMemRelease)(memory));
  return print_row(what, value, "cuMemCreate", works,
                   driver_error(code), use);
}
//! [vmm]

//! [pool]
bool try_pool() {
  constexpr auto kType = cudaMemHandleTypePosixFileDescriptor;
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kType;

  int descriptor = -1;
  cudaMemPool_t pool = nullptr;
  cudaError_t code = cudaMemPoolCreate(&pool, &wanted);
  if (code == cudaSuccess)
    code =
        cudaMemPoolExportToShareableHandle(&descriptor, pool, kType, 0);
  if (descriptor != -1) SYS_CHECK(close(descriptor));
  if (pool != nullptr) CUDA_CHECK(cudaMemPoolDestroy(pool));
  cudaGetLastError();  // clears a refusal
  int types = 0;       // a mask
  CUDA_CHECK(cudaDeviceGetAttribute(
      &types, cudaDevAttrMemoryPoolSupportedHandleTypes, 0));
  const bool works = code == cudaSuccess;
  print_row("pool, by fd", types, "cudaMemPoolExportToShareableHandle",
            works, cudaGetErrorName(code),
            "share a stream-ordered pool");
  return (types & kType) != 0 || !works;
}
//! [pool]

int main() {
  require_gpus(1);

  cudaDeviceProp gpu;
  CUDA_CHECK(cudaGetDeviceProperties(&gpu, 0));
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  say("GPU 0: %s\n", gpu.name);
  say("%-15s attribute   %-34s   %-24s   what for", "transport",
      "attempt", "answer");

  bool good = try_legacy_memory();
  good &= try_legacy_event();
  good &= try_vmm(
      "VMM, by fd",
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      "share memory that you map yourself");
  good &=
      try_vmm("VMM, by fabric",
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
              CU_MEM_HANDLE_TYPE_FABRIC, "share memory between nodes");
  good &= try_pool();

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
