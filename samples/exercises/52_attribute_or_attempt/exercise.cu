// Exercise 52: attribute, or attempt?
//
// The attribute says that this machine has fabric handles. Fabric
// handles need an IMEX channel, but this process has no channel. What
// happens? Write kYes or kNo for each question, and then run the
// program. The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kCreatedForFabric = kUnknown;
constexpr Answer kCreatedForDescriptors = kUnknown;
constexpr Answer kDriverRefusalIsKept = kUnknown;
constexpr Answer kRuntimeRefusalIsKept = kUnknown;

bool can_create(CUmemAllocationHandleType type) {
  const CUmemAllocationProp wanted = shareable(type);
  Memory memory;
  const CUresult code = DRIVER(cuMemCreate)(
      &memory, whole_granules(1, wanted), &wanted, 0);
  if (code == CUDA_SUCCESS) CU_CHECK(DRIVER(cuMemRelease)(memory));
  return code == CUDA_SUCCESS;
}

int main() {
  require_gpus(1);
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  require(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "fabric");

  bool good = predicted("Can memory with a fabric handle be created?",
                        kCreatedForFabric,
                        can_create(CU_MEM_HANDLE_TYPE_FABRIC));
  good &= predicted(
      "A driver call was refused. Does cudaGetLastError() "
      "report it?",
      kDriverRefusalIsKept, cudaGetLastError() != cudaSuccess);
  good &=
      predicted("Can memory with a descriptor be created?",
                kCreatedForDescriptors,
                can_create(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));

  cudaIpcMemHandle_t handle;
  void* on_host = &handle;
  cudaIpcGetMemHandle(&handle, on_host);  // is refused
  good &= predicted(
      "A runtime call was refused. Does cudaGetLastError() "
      "report it?",
      kRuntimeRefusalIsKept, cudaGetLastError() != cudaSuccess);

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
