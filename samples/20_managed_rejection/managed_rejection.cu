// Lesson 20: which memory can be shared, and by which mechanism?
//
// Its attributes say so beforehand. Ask them, then try all three.
//
// nvcc -cudart shared samples/20_managed_rejection/managed_rejection.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/require.h"

constexpr size_t kBytes = 2 << 20;  // a granule of cuMemCreate
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kPoolFd = cudaMemHandleTypePosixFileDescriptor;
bool agree = true;  // attributes and attempts, in all rows
__managed__ int variable;

//! [attempts]
bool by_legacy_handle(void* data) {
  cudaIpcMemHandle_t handle;
  return cudaIpcGetMemHandle(&handle, data) == cudaSuccess;
}

bool by_descriptor(void* data) {
  CUmemGenericAllocationHandle memory;
  if (DRIVER(cuMemRetainAllocationHandle)(&memory, data) != 0)
    return false;  // was not mapped with cuMemMap
  int fd = -1;
  const CUresult code =
      DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  return code == CUDA_SUCCESS && close(fd) == 0;
}

bool by_pool_descriptor(cudaMemPool_t pool) {
  int fd = -1;
  const cudaError_t code =
      cudaMemPoolExportToShareableHandle(&fd, pool, kPoolFd, 0);
  return code == cudaSuccess && close(fd) == 0;
}
//! [attempts]

constexpr char kRow[] = "%-22s %-10s  %-13s  %-14s  %s\n";
const char* word(bool yes) { return yes ? "yes" : "-"; }

//! [attributes]
void show(const char* kind, void* data) {
  unsigned legacy = 0;           // suits cudaIpcGetMemHandle
  unsigned long long types = 0;  // allowed for a descriptor
  CUmemoryPool pool = nullptr;   // comes from it
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* answers[] = {&legacy, &types, &pool};
  CU_CHECK(DRIVER(cuPointerGetAttributes)(3, which, answers,
                                          CUdeviceptr(data)));
  const bool exportable = pool == nullptr && (types & kFd) != 0;
  const bool tried[] = {by_legacy_handle(data), by_descriptor(data),
                        pool && by_pool_descriptor(pool)};
  cudaGetLastError();  // a refusal must not spoil the next call
  const char* said = legacy ? "legacy" : exportable ? "VMM" : "-";
  std::printf(kRow, kind, pool ? "pool" : said, word(tried[0]),
              word(tried[1]), word(tried[2]));
  agree = agree && tried[0] == (legacy != 0) && tried[1] == exportable;
}
//! [attributes]

void show_mapped(const char* kind, CUmemAllocationHandleType types) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = types;
  CUmemGenericAllocationHandle chunk;
  CUdeviceptr address = 0;
  const CUresult code = DRIVER(cuMemCreate)(&chunk, kBytes, &wanted, 0);
  if (code == CUDA_ERROR_NOT_SUPPORTED) return;  // a row less
  CU_CHECK(code);
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, kBytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, kBytes, 0, chunk, 0));
  show(kind, reinterpret_cast<void*>(address));
  CU_CHECK(DRIVER(cuMemUnmap)(address, kBytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, kBytes));
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");
  std::printf(kRow, "allocation", "attributes", "legacy handle",
              "VMM descriptor", "pool descriptor");
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  show("cudaMalloc", data);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMallocManaged(&data, kBytes));
  show("cudaMallocManaged", data);
  CUDA_CHECK(cudaFree(data));
  show("__managed__ variable", &variable);
  CUDA_CHECK(cudaMallocHost(&data, kBytes));
  show("cudaMallocHost", data);
  CUDA_CHECK(cudaFreeHost(data));
  show("any host memory", &agree);
  show_mapped("cuMemCreate", CU_MEM_HANDLE_TYPE_NONE);
  show_mapped("cuMemCreate, to share", kFd);
  CUDA_CHECK(cudaMallocAsync(&data, kBytes, nullptr));
  show("cudaMallocAsync", data);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kPoolFd;
  cudaMemPool_t pool = nullptr;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  CUDA_CHECK(cudaMallocAsync(&data, kBytes, pool, nullptr));
  show("from a pool to share", data);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  std::puts(agree ? "as the attributes said" : "the attributes LIE");
  return agree ? EXIT_SUCCESS : EXIT_FAILURE;
}
