// SPDX-License-Identifier: Apache-2.0
// Virtual memory management in one process.
#include "vmm.h"

#include <fcntl.h>
#include <unistd.h>

#include "peer.h"

using namespace ipclab::model::test;

namespace {

constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;

template <typename T>
T attribute(CUpointer_attribute which, const void* pointer) {
  T value{};
  EXPECT_EQ(cuPointerGetAttribute(&value, which, number(pointer)),
            CUDA_SUCCESS);
  return value;
}

CUresult create_code(const CUmemAllocationProp& wanted, uint64_t size = kChunk,
                     unsigned long long flags = 0) {
  Handle handle = 77;
  const CUresult code = cuMemCreate(&handle, size, &wanted, flags);
  if (code == CUDA_SUCCESS) {
    release(handle);
  } else {
    EXPECT_EQ(handle, 77u);
  }
  return code;
}

class Vmm : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudaFree(nullptr), cudaSuccess); }
};

TEST_F(Vmm, GranularityAndSizes) {
  const CUmemAllocationProp wanted = chunk_on(0);
  for (const auto which : {CU_MEM_ALLOC_GRANULARITY_MINIMUM,
                           CU_MEM_ALLOC_GRANULARITY_RECOMMENDED}) {
    size_t bytes = 0;
    EXPECT_EQ(cuMemGetAllocationGranularity(&bytes, &wanted, which),
              CUDA_SUCCESS);
    EXPECT_EQ(bytes, kChunk);
  }
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{1}, kChunk - 1, kChunk + 1}) {
    EXPECT_EQ(create_code(wanted, size), kInvalid) << size;
  }
  EXPECT_EQ(create_code(wanted, kChunk, 1), kInvalid);
  EXPECT_EQ(create_code(wanted, 1ull << 50), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Vmm, PropertiesThatTheHeaderRulesOut) {
  EXPECT_EQ(create_code(chunk_on(1)), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(create_code(chunk_on(-1)), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(create_code(chunk_on({CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0})),
            kInvalid);
  EXPECT_EQ(create_code(chunk_on({CU_MEM_LOCATION_TYPE_HOST, 0}, kPosix)),
            kInvalid);
  EXPECT_EQ(create_code(chunk_on({CU_MEM_LOCATION_TYPE_HOST, 9})),
            CUDA_SUCCESS);
  EXPECT_EQ(create_code(chunk_on({CU_MEM_LOCATION_TYPE_HOST_NUMA, 99})),
            kInvalid);
  EXPECT_EQ(create_code(chunk_on(0, CU_MEM_HANDLE_TYPE_WIN32)),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(create_code(chunk_on(0, 64)), kInvalid);
  EXPECT_EQ(create_code(chunk_on(0, kFabric)), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(create_code(chunk_on(0, kPosix | kFabric)),
            CUDA_ERROR_NOT_PERMITTED);
  CUmemAllocationProp managed = chunk_on(0);
  managed.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(create_code(managed), kInvalid);
}

TEST_F(Vmm, ReservationsAreAlignedAndFreedExactly) {
  CUdeviceptr address = 77;
  EXPECT_EQ(cuMemAddressReserve(&address, 0, 0, 0, 0), kInvalid);
  EXPECT_EQ(cuMemAddressReserve(&address, 100, 0, 0, 0), kInvalid);
  EXPECT_EQ(cuMemAddressReserve(&address, kChunk, 3 << 20, 0, 0), kInvalid);
  EXPECT_EQ(cuMemAddressReserve(&address, kChunk, 0, 0, 1), kInvalid);
  EXPECT_EQ(cuMemAddressReserve(&address, kChunk, 0, 100, 0), kInvalid);
  EXPECT_EQ(cuMemAddressReserve(&address, 1ull << 60, 0, 0, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(address, 77u);

  const CUdeviceptr aligned = reserve(3 * kChunk, 64 << 20);
  EXPECT_EQ(aligned % (64 << 20), 0u);
  EXPECT_EQ(cuMemAddressFree(aligned, kChunk), kInvalid);
  EXPECT_EQ(cuMemAddressFree(aligned + kChunk, 2 * kChunk), kInvalid);
  EXPECT_EQ(cuMemAddressFree(aligned, 3 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(aligned, 3 * kChunk), kInvalid);
  const CUdeviceptr page = reserve(4096);
  EXPECT_EQ(cuMemAddressFree(page, 4096), CUDA_SUCCESS);
}

TEST_F(Vmm, KernelsAndCopiesUseAMapping) {
  const Handle handle = create(chunk_on(0));
  int* data = map(handle);
  fill(data, 5);
  EXPECT_EQ(wrong_elements(data, kCount, 5), 0);
  EXPECT_EQ(read_back(data, kCount)[kCount - 1], 5 + kCount - 1);
  EXPECT_EQ(cudaMemset(data, 0, kChunk), cudaSuccess);
  EXPECT_EQ(cudaMemset(data, 0, kChunk + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(read_back(data, 1)[0], 0);
  unmap(data);
  release(handle);
}

TEST_F(Vmm, ChunksSideBySideAreOneRange) {
  constexpr int kChunks = 3;
  constexpr uint64_t kAllBytes = kChunks * kChunk;
  constexpr int kWords = kAllBytes / sizeof(int);
  const CUdeviceptr range = reserve(kAllBytes);
  Handle handles[kChunks];
  for (int i = 0; i < kChunks; ++i) {
    handles[i] = create(chunk_on(0));
    EXPECT_EQ(cuMemMap(range + i * kChunk, kChunk, 0, handles[i], 0),
              CUDA_SUCCESS);
  }
  EXPECT_EQ(set_access(range, kAll, kAllBytes), CUDA_SUCCESS);
  auto* data = reinterpret_cast<int*>(range);
  fill(data, 9, kWords);
  EXPECT_EQ(wrong_elements(data, kWords, 9), 0);
  EXPECT_EQ(read_back(data, kWords)[kWords - 1], 9 + kWords - 1);

  // The third chunk is mapped alone at another address. It has the last third
  // of the data.
  int* third = map(handles[2], kReadOnly);
  EXPECT_EQ(wrong_elements(third, 100, 9 + 2 * kWords / 3), 0);
  unmap(third);
  EXPECT_EQ(cuMemUnmap(range, kAllBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(range, kAllBytes), CUDA_SUCCESS);
  for (const Handle handle : handles) release(handle);
}

TEST_F(Vmm, AliasesShareBytes) {
  const Handle handle = create(chunk_on(0));
  int* one = map(handle);
  int* two = map(handle);
  EXPECT_NE(one, two);
  fill(one, 21);
  EXPECT_EQ(wrong_elements(two, kCount, 21), 0);
  fill(two, 22);
  EXPECT_EQ(read_back(one, 1)[0], 22);
  unmap(one);
  EXPECT_EQ(wrong_elements(two, kCount, 22), 0);
  unmap(two);
  release(handle);
}

TEST_F(Vmm, MapsThatAreRefused) {
  const Handle handle = create(chunk_on(0), 2 * kChunk);
  const CUdeviceptr range = reserve(2 * kChunk);
  EXPECT_EQ(cuMemMap(range, 2 * kChunk, 0, handle + 1, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range, 2 * kChunk, 0, handle, 1), kInvalid);
  EXPECT_EQ(cuMemMap(range, kChunk, kChunk, handle, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range, 4096, 0, handle, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range + 4096, kChunk, 0, handle, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range, 3 * kChunk, 0, handle, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range + kChunk, 2 * kChunk, 0, handle, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range - kChunk, 2 * kChunk, 0, handle, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range, 0, 0, handle, 0), kInvalid);

  EXPECT_EQ(cuMemMap(range + kChunk, kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(range + kChunk, kChunk, 0, handle, 0), kInvalid);
  EXPECT_EQ(cuMemMap(range, 2 * kChunk, 0, handle, 0), kInvalid);
  EXPECT_EQ(cuMemAddressFree(range, 2 * kChunk), kInvalid);
  EXPECT_EQ(cuMemUnmap(range, 2 * kChunk), kInvalid);
  EXPECT_EQ(cuMemUnmap(range + kChunk, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(range + kChunk, kChunk), kInvalid);

  // Only the whole chunk can be unmapped, not a part of the mapping.
  EXPECT_EQ(cuMemMap(range, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(range, kChunk), kInvalid);
  EXPECT_EQ(cuMemUnmap(range + kChunk, kChunk), kInvalid);
  EXPECT_EQ(set_access(range, kAll, kChunk), kInvalid);
  unmap(reinterpret_cast<int*>(range), 2 * kChunk);
  release(handle);
}

TEST_F(Vmm, AccessBelongsToTheMapping) {
  const Handle handle = create(chunk_on(0));
  const CUdeviceptr range = reserve(2 * kChunk);
  EXPECT_EQ(set_access(range, kAll), kInvalid);
  EXPECT_EQ(cuMemMap(range, kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(access_at(range), kNoAccess);
  auto* data = reinterpret_cast<int*>(range);
  int word = 0;
  EXPECT_EQ(cudaMemcpy(&word, data, sizeof word, cudaMemcpyDefault),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(data, 0, 4), cudaErrorInvalidValue);

  EXPECT_EQ(set_access(range, kAll, 2 * kChunk), kInvalid);  // a hole
  EXPECT_EQ(access_at(range), kNoAccess);
  EXPECT_EQ(set_access(range, static_cast<CUmemAccess_flags>(2)), kInvalid);
  EXPECT_EQ(set_access(range, kAll, kChunk, {CU_MEM_LOCATION_TYPE_DEVICE, 7}),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(
      set_access(range, kAll, kChunk, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}),
      kInvalid);
  EXPECT_EQ(access_at(range), kNoAccess);

  EXPECT_EQ(set_access(range, kAll), CUDA_SUCCESS);
  EXPECT_EQ(access_at(range + kChunk - 1), kAll);
  fill(data, 3);
  EXPECT_EQ(set_access(range, kReadOnly), CUDA_SUCCESS);
  EXPECT_EQ(access_at(range), kReadOnly);
  EXPECT_EQ(wrong_elements(data, kCount, 3), 0);
  EXPECT_EQ(cudaMemcpy(data, &word, sizeof word, cudaMemcpyDefault),
            cudaErrorInvalidValue);
  EXPECT_EQ(read_back(data, 1)[0], 3);

  EXPECT_EQ(cuMemUnmap(range, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(range, kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(access_at(range), kNoAccess);
  EXPECT_EQ(cuMemUnmap(range, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(range, 2 * kChunk), CUDA_SUCCESS);
  release(handle);
  while (cudaGetLastError() != cudaSuccess) {
  }
}

ROLE(vmm_without_access) {
  int* data = map(create(chunk_on(0)), kNoAccess);
  EXPECT_EQ(launch("read_one", 1, 1, nullptr, data, allocate<int>(1)),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cuMemUnmap(number(data), kChunk), CUDA_ERROR_ILLEGAL_ADDRESS);
}
ROLE(vmm_read_only) {
  int* data = map(create(chunk_on(0)), kReadOnly);
  EXPECT_EQ(launch("read_one", 1, 1, nullptr, data, allocate<int>(1)),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, data, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}
ROLE(vmm_unmapped) {
  int* data = map(create(chunk_on(0)));
  unmap(data);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, data, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}

TEST_F(Vmm, KernelsThatMayNotFault) {
  for (const char* role :
       {"vmm_without_access", "vmm_read_only", "vmm_unmapped"}) {
    Peer peer(role);
    EXPECT_EQ(peer.wait(), "exit 0") << role;
  }
}

TEST_F(Vmm, UnmapWaitsForTheKernel) {
  const Handle handle = create(chunk_on(0));
  int* data = map(handle);
  int* other = map(handle);
  EXPECT_EQ(launch("fill", 2048, 256, nullptr, data, 2048 * 256, 1),
            CUDA_SUCCESS);
  unmap(data);
  EXPECT_EQ(wrong_elements(other, 2048 * 256, 1), 0);
  unmap(other);
  release(handle);
}

ROLE(vmm_counts) {
  // Kernels and small allocations need memory. It is allocated here, so the
  // test does not count it.
  kernel("fill");
  int* small = allocate<int>(1);
  const size_t before = free_bytes();
  const Handle handle = create(chunk_on(0), 32 * kChunk);
  EXPECT_EQ(before - free_bytes(), 32 * kChunk);
  int* data = map(handle, kAll, 32 * kChunk);
  fill(data, 1);
  release(handle);
  EXPECT_EQ(cuMemRelease(handle), kInvalid);
  EXPECT_EQ(wrong_elements(data, kCount, 1), 0);

  Handle again = 0;
  EXPECT_EQ(cuMemRetainAllocationHandle(&again, data + 100), CUDA_SUCCESS);
  EXPECT_EQ(again, handle);
  EXPECT_EQ(cuMemRetainAllocationHandle(&again, data), CUDA_SUCCESS);
  release(handle);
  unmap(data, 32 * kChunk);
  EXPECT_EQ(before - free_bytes(), 32 * kChunk);
  release(handle);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuMemRetainAllocationHandle(&again, data), kInvalid);

  const Handle host = create(chunk_on({CU_MEM_LOCATION_TYPE_HOST, 0}));
  EXPECT_EQ(free_bytes(), before);
  release(host);
  EXPECT_EQ(cudaFree(small), cudaSuccess);
}

TEST_F(Vmm, HandlesAreCounted) {
  Peer peer("vmm_counts", kOnQuietGpu);
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST_F(Vmm, PointersSayWhatTheyAre) {
  const CUdeviceptr range = reserve(3 * kChunk);
  CUmemAllocationProp wanted = chunk_on(0, kPosix);
  wanted.allocFlags.gpuDirectRDMACapable = 1;
  const Handle handle = create(wanted);
  const CUdeviceptr mapped = range + kChunk;
  EXPECT_EQ(cuMemMap(mapped, kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(set_access(mapped, kReadOnly), CUDA_SUCCESS);

  const auto* inside = reinterpret_cast<char*>(mapped) + 5;
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside),
            static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, inside),
            nullptr);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), 0);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                inside),
            0u);
  EXPECT_EQ(
      attribute<uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside),
      static_cast<uint64_t>(kPosix));
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                                inside),
            1u);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside),
            static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ));
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1u);
  EXPECT_EQ(
      attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside),
      range);
  EXPECT_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside),
            3 * kChunk);
  EXPECT_EQ(
      attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, inside),
      mapped);
  EXPECT_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inside),
            kChunk);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(cuMemGetAddressRange(&base, &size, number(inside)), CUDA_SUCCESS);
  EXPECT_EQ(base, mapped);
  EXPECT_EQ(size, kChunk);
  cudaPointerAttributes attributes;
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, inside), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);

  const auto* hole = reinterpret_cast<void*>(range);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MAPPED, hole), 0u);
  EXPECT_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, hole),
            3 * kChunk);
  unsigned type = 0;
  EXPECT_EQ(
      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range),
      kInvalid);

  cudaIpcMemHandle_t legacy;
  EXPECT_EQ(cudaIpcGetMemHandle(&legacy, reinterpret_cast<void*>(mapped)),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(reinterpret_cast<void*>(mapped)), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cuMemUnmap(mapped, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(range, 3 * kChunk), CUDA_SUCCESS);
  release(handle);
}

TEST_F(Vmm, HostMemoryIsForWhoeverGetsAccess) {
  const CUmemLocation node{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  const Handle handle = create(chunk_on(node, kPosix));
  int* data = map(handle);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, data),
            static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  fill(data, 70);
  EXPECT_EQ(set_access(number(data), kAll, kChunk, node), CUDA_SUCCESS);
  EXPECT_EQ(data[10], 80);
  data[0] = -1;
  EXPECT_EQ(read_back(data, 1)[0], -1);
  unsigned long long flags = 0;
  EXPECT_EQ(cuMemGetAccess(&flags, &node, number(data)), CUDA_SUCCESS);
  EXPECT_EQ(flags, kAll);
  unmap(data);
  release(handle);
}

TEST_F(Vmm, DescriptorsAreTheProgramsOwn) {
  const Handle plain = create(chunk_on(0));
  int none = 77;
  const auto type = static_cast<CUmemAllocationHandleType>(kPosix);
  EXPECT_EQ(cuMemExportToShareableHandle(&none, plain, type, 0), kInvalid);
  EXPECT_EQ(none, 77);
  release(plain);

  const Handle handle = create(chunk_on(0, kPosix));
  EXPECT_EQ(cuMemExportToShareableHandle(&none, handle, type, 1), kInvalid);
  EXPECT_EQ(
      cuMemExportToShareableHandle(
          &none, handle, static_cast<CUmemAllocationHandleType>(kFabric), 0),
      kInvalid);
  const int one = export_descriptor(handle);
  const int two = export_descriptor(handle);
  EXPECT_NE(one, two);
  EXPECT_EQ(fcntl(one, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(close(one), 0);
  Handle imported = 0;
  EXPECT_EQ(import_descriptor(two, &imported), CUDA_SUCCESS);
  EXPECT_NE(imported, handle);
  Handle twice = 0;
  EXPECT_EQ(import_descriptor(two, &twice), CUDA_SUCCESS);
  EXPECT_NE(imported, twice);
  EXPECT_EQ(close(two), 0);

  int* data = map(handle);
  int* alias = map(imported);
  fill(data, 13);
  EXPECT_EQ(wrong_elements(alias, kCount, 13), 0);
  EXPECT_EQ(cuMemExportToShareableHandle(&none, imported, type, 0), kInvalid);
  unmap(data);
  unmap(alias);
  for (const Handle each : {handle, imported, twice}) release(each);
}

TEST_F(Vmm, ForeignDescriptorsAreRefused) {
  Handle handle = 77;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int null = open("/dev/null", O_RDWR);
  const int path = open("/", O_PATH);
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&pool, &wanted), cudaSuccess);
  int of_pool = -1;
  ASSERT_EQ(cudaMemPoolExportToShareableHandle(
                &of_pool, pool, cudaMemHandleTypePosixFileDescriptor, 0),
            cudaSuccess);
  for (const int descriptor :
       {-1, 1 << 30, ends[0], ends[1], null, path, of_pool}) {
    EXPECT_EQ(import_descriptor(descriptor, &handle), kInvalid) << descriptor;
  }
  const Handle chunk = create(chunk_on(0, kPosix));
  const int of_chunk = export_descriptor(chunk);
  void* argument = reinterpret_cast<void*>(static_cast<intptr_t>(of_chunk));
  cudaMemPool_t imported = nullptr;
  EXPECT_EQ(cudaMemPoolImportFromShareableHandle(
                &imported, argument, cudaMemHandleTypePosixFileDescriptor, 0),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(handle, 77u);
  release(chunk);
  for (const int each : {ends[0], ends[1], null, path, of_pool, of_chunk}) {
    EXPECT_EQ(close(each), 0);
  }
}

ROLE(vmm_not_there) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  int supported = 77;
  EXPECT_EQ(cuDeviceGetAttribute(
                &supported,
                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(supported, 0);
  const CUmemAllocationProp wanted = chunk_on(0);
  size_t bytes = 0;
  Handle handle = 0;
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemGetAllocationGranularity(&bytes, &wanted,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(create_code(wanted), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(import_descriptor(0, &handle), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemAddressReserve(&address, kChunk, 0, 0, 0),
            CUDA_ERROR_NOT_SUPPORTED);
}
ROLE(vmm_580) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const Handle handle = create(chunk_on(0), 2 * kChunk);
  const CUdeviceptr range = reserve(2 * kChunk);
  EXPECT_EQ(cuMemMap(range, kChunk, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(range, kChunk, kChunk, handle, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(range, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS);
  Handle none = 0;
  EXPECT_EQ(import_descriptor(-1, &none), CUDA_ERROR_UNKNOWN);
}

TEST_F(Vmm, ProfilesDiffer) {
  Peer without("vmm_not_there", {{"IPCLAB_PROFILE", "no-pools"}});
  EXPECT_EQ(without.wait(), "exit 0");
  Peer driver("vmm_580", {{"IPCLAB_PROFILE", "driver-580"}});
  EXPECT_EQ(driver.wait(), "exit 0");
}

ROLE(vmm_peers) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  const Handle handle = create(chunk_on(1));
  const CUmemLocation other{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  int* data = map(handle, kNoAccess);
  if (test.receive<bool>()) {
    EXPECT_EQ(set_access(number(data), kAll), CUDA_SUCCESS);
    EXPECT_EQ(access_at(number(data), 1), kNoAccess);
    fill(data, 4);  // device 0 writes; peer access is not enabled
    EXPECT_EQ(wrong_elements(data, kCount, 4), 0);
  } else {
    EXPECT_EQ(set_access(number(data), kAll), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(set_access(number(data), kAll, kChunk, other), CUDA_SUCCESS);
  }
  unmap(data);
  release(handle);
}

TEST_F(Vmm, PeersNeedAccessAndNothingElse) {
  for (const bool peers : {true, false}) {
    Peer peer("vmm_peers",
              {{"IPCLAB_PROFILE", peers ? "two-gpus" : "no-peer"}});
    peer.channel().send(peers);
    EXPECT_EQ(peer.wait(), "exit 0") << peers;
  }
}

// An H200 gives a process 831 reservations of 9/8 of its memory.
TEST_F(Vmm, ManyReservationsOfTheSizeOfTheGpu) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  constexpr uint64_t kSize = 18ull << 30;
  std::vector<CUdeviceptr> ranges(831);
  for (CUdeviceptr& range : ranges) {
    ASSERT_EQ(cuMemAddressReserve(&range, kSize, 0, 0, 0), CUDA_SUCCESS)
        << &range - ranges.data();
  }
  for (const CUdeviceptr range : ranges)
    EXPECT_EQ(cuMemAddressFree(range, kSize), CUDA_SUCCESS);
}

}  // namespace
