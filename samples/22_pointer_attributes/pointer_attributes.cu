// Lesson 22: a pointer's attributes say how to share its memory.
//
// Three mechanisms share memory, and each shares only one kind of
// memory. The attributes of a pointer show the kind of its memory. This
// lesson compares the attributes with attempts to share the memory.
//
// nvcc -cudart shared
//   samples/22_pointer_attributes/pointer_attributes.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/require.h"

constexpr size_t kBytes = 2 << 20;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kPoolFd = cudaMemHandleTypePosixFileDescriptor;

//! [attempts]
bool by_legacy_handle(void* data) {
  cudaIpcMemHandle_t handle;
  const cudaError_t code = cudaIpcGetMemHandle(&handle, data);
  cudaGetLastError();  // clears a refusal
  return code == cudaSuccess;
}

bool by_descriptor(void* data) {
  CUmemGenericAllocationHandle memory;
  if (DRIVER(cuMemRetainAllocationHandle)(&memory, data) !=
      CUDA_SUCCESS)
    return false;  // not mapped with cuMemMap

  int fd = -1;
  const CUresult code =
      DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  return code == CUDA_SUCCESS && close(fd) == 0;
}

bool by_pool_descriptor(cudaMemPool_t pool) {
  if (pool == nullptr) return false;  // not memory of a pool

  int fd = -1;
  const cudaError_t code =
      cudaMemPoolExportToShareableHandle(&fd, pool, kPoolFd, 0);
  cudaGetLastError();  // clears a refusal
  return code == cudaSuccess && close(fd) == 0;
}
//! [attempts]

constexpr char kRow[] = "%-15s  %-6s  %-3s  %-4s    %-9s  %-5s  %s";
const char* word(bool yes) { return yes ? "yes" : "-"; }

//! [attributes]
// Prints one row of the table. Returns true if the attempts agree with
// the attributes.
bool agree(const char* kind, void* data, bool pool_to_share = false) {
  unsigned legacy = 0;           // 1: cudaIpcGetMemHandle works
  unsigned long long types = 0;  // for cuMemExportToShareableHandle
  CUmemoryPool pool = nullptr;   // if there is one, ignore types
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&legacy, &types, &pool};
  CU_CHECK(DRIVER(cuPointerGetAttributes)(
      3, which, values, reinterpret_cast<CUdeviceptr>(data)));
  const bool vmm = pool == nullptr && (types & kFd) != 0;

  const bool handle = by_legacy_handle(data);
  const bool descriptor = by_descriptor(data);
  const bool pool_descriptor = by_pool_descriptor(pool);
  say(kRow, kind, word(legacy), word(vmm), word(pool), word(handle),
      word(descriptor), word(pool_descriptor));

  // No attribute is documented to say whether a pool can be shared.
  return handle == (legacy != 0) && descriptor == vmm &&
         pool_descriptor == (pool != nullptr && pool_to_share);
}
//! [attributes]

bool mapped_memory_agrees() {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = kFd;
  size_t bytes = 0;
  CU_CHECK(DRIVER(cuMemGetAllocationGranularity)(
      &bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));

  CUmemGenericAllocationHandle memory;
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, bytes, 0, memory, 0));
  const bool good =
      agree("cuMemCreate", reinterpret_cast<void*>(address));
  CU_CHECK(DRIVER(cuMemUnmap)(address, bytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, bytes));
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  return good;
}

bool pool_to_share_agrees() {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kPoolFd;

  cudaMemPool_t pool = nullptr;
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  const bool good = agree("a pool to share", data, true);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return good;
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  say(kRow, "memory of", "legacy", "VMM", "pool", "by handle", "by fd",
      "by fd of its pool");

  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  bool good = agree("cudaMalloc", data);
  CUDA_CHECK(cudaFree(data));

  CUDA_CHECK(cudaMallocHost(&data, kBytes));
  good &= agree("cudaMallocHost", data);
  CUDA_CHECK(cudaFreeHost(data));

  CUDA_CHECK(cudaMallocAsync(&data, kBytes, nullptr));
  good &= agree("cudaMallocAsync", data);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));

  good &= mapped_memory_agrees();
  good &= pool_to_share_agrees();
  say("the attributes %s", good ? "are right" : "are WRONG");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
