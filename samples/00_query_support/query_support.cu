// Lesson 00: what can this process share on this machine?
//
// An attribute says what the device and the driver support. It does not
// say what this process may do: in a container, or without an IMEX
// channel, a call can be refused although the attribute is 1. So ask
// for the attribute, then try something small.
//
// nvcc -cudart shared samples/00_query_support/query_support.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/require.h"

// One row of the table.
void print_row(const char* what, int attribute, const char* call,
               const char* answer, const char* use) {
  std::printf("%-15s %9d   %-34s   %-24s   %s\n", what, attribute, call,
              answer, use);
}

void print_row(const char* what, cudaDeviceAttr attribute,
               const char* call, cudaError_t code, const char* use) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, 0));
  print_row(what, value, call, cudaGetErrorName(code),
            code == cudaSuccess ? use : "not in this process");
  cudaGetLastError();  // clears a refusal before the next call
}

//! [legacy]
void try_legacy_memory() {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, 2 << 20));

  cudaIpcMemHandle_t handle;
  print_row("legacy memory", cudaDevAttrIpcEventSupport,
            "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, data),
            "share memory of cudaMalloc");
  CUDA_CHECK(cudaFree(data));
}

void try_legacy_event() {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));

  cudaIpcEventHandle_t handle;
  print_row("legacy event", cudaDevAttrIpcEventSupport,
            "cudaIpcGetEventHandle",
            cudaIpcGetEventHandle(&handle, event),
            "order work across processes");
  CUDA_CHECK(cudaEventDestroy(event));
}
//! [legacy]

//! [vmm]
void try_vmm(const char* what, CUdevice_attribute attribute,
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
  print_row(what, value, "cuMemCreate", driver_error(code),
            code == CUDA_SUCCESS ? use : "not in this process");
  if (code == CUDA_SUCCESS) CU_CHECK(DRIVER(cuMemRelease)(memory));
}
//! [vmm]

//! [pool]
void try_pool() {
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
  print_row("pool, by fd", cudaDevAttrMemoryPoolSupportedHandleTypes,
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
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  say("GPU 0: %s\n", gpu.name);
  say("%-15s attribute   %-34s   %-24s   what for", "transport",
      "attempt", "answer");

  try_legacy_memory();
  try_legacy_event();
  try_vmm(
      "VMM, by fd",
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      "share memory that you map yourself");
  try_vmm("VMM, by fabric",
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
          CU_MEM_HANDLE_TYPE_FABRIC, "share memory between nodes");
  try_pool();
}
