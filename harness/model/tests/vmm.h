// SPDX-License-Identifier: Apache-2.0
// Short forms of virtual memory management.
#pragma once

#include <map>
#include <string>

#include "gpu.h"

namespace ipclab::model::test {

using Handle = CUmemGenericAllocationHandle;

constexpr uint64_t kChunk = 2 << 20;  ///< bytes of the smallest chunk
constexpr int kPosix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
constexpr CUmemAccess_flags kNoAccess = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr CUmemAccess_flags kReadOnly = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr CUmemAccess_flags kAll = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

inline CUmemAllocationProp chunk_on(CUmemLocation location, int types = 0) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  wanted.location = location;
  return wanted;
}

inline CUmemAllocationProp chunk_on(int device, int types = 0) {
  return chunk_on({CU_MEM_LOCATION_TYPE_DEVICE, device}, types);
}

inline Handle create(const CUmemAllocationProp& wanted,
                     uint64_t size = kChunk) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);  // makes a context
  Handle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, size, &wanted, 0), CUDA_SUCCESS);
  return handle;
}

inline CUdeviceptr reserve(uint64_t size, uint64_t alignment = 0) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, size, alignment, 0, 0), CUDA_SUCCESS);
  return address;
}

inline CUresult set_access(CUdeviceptr address, CUmemAccess_flags flags,
                           uint64_t size = kChunk,
                           CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE,
                                                  0}) {
  const CUmemAccessDesc wanted{where, flags};
  return cuMemSetAccess(address, size, &wanted, 1);
}

inline unsigned long long access_at(CUdeviceptr address, int device = 0) {
  unsigned long long flags = 77;
  const CUmemLocation where{CU_MEM_LOCATION_TYPE_DEVICE, device};
  EXPECT_EQ(cuMemGetAccess(&flags, &where, address), CUDA_SUCCESS);
  return flags;
}

/// Maps a whole chunk at a new range.
inline int* map(Handle handle, CUmemAccess_flags flags = kAll,
                uint64_t size = kChunk) {
  const CUdeviceptr address = reserve(size);
  EXPECT_EQ(cuMemMap(address, size, 0, handle, 0), CUDA_SUCCESS);
  if (flags != kNoAccess) {
    EXPECT_EQ(set_access(address, flags, size), CUDA_SUCCESS);
  }
  return reinterpret_cast<int*>(address);
}

inline CUdeviceptr number(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

inline void unmap(const int* pointer, uint64_t size = kChunk) {
  EXPECT_EQ(cuMemUnmap(number(pointer), size), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(number(pointer), size), CUDA_SUCCESS);
}

inline void release(Handle handle) {
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

inline int export_descriptor(Handle handle) {
  int descriptor = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(
                &descriptor, handle,
                static_cast<CUmemAllocationHandleType>(kPosix), 0),
            CUDA_SUCCESS);
  return descriptor;
}

inline CUresult import_descriptor(int descriptor, Handle* handle) {
  return cuMemImportFromShareableHandle(
      handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
      static_cast<CUmemAllocationHandleType>(kPosix));
}

constexpr int kCount = 3000;

inline void fill(int* data, int value, int count = kCount) {
  EXPECT_EQ(launch("fill", static_cast<unsigned>(count + 255) / 256, 256,
                   nullptr, data, count, value),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

/// All tests share the GPUs of the simulated machine. A role with these
/// variables uses a GPU that no other test uses, so it can count free memory.
inline const std::map<std::string, std::string> kOnQuietGpu = {
    {"IPCLAB_PROFILE", "four-gpus"}, {"CUDA_VISIBLE_DEVICES", "3"}};

inline size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

}  // namespace ipclab::model::test
