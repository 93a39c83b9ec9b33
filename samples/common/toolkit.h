// Names that an older CUDA Toolkit, from 12.0 on, does not declare. A
// driver that does not know them refuses the call.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#if CUDA_VERSION < 12020
constexpr auto CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID =
    static_cast<CUdevice_attribute>(134);
constexpr auto cudaDevAttrHostNumaId = static_cast<cudaDeviceAttr>(134);
constexpr auto CU_MEM_LOCATION_TYPE_HOST =
    static_cast<CUmemLocationType>(2);
constexpr auto CU_MEM_LOCATION_TYPE_HOST_NUMA =
    static_cast<CUmemLocationType>(3);
constexpr auto CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT =
    static_cast<CUmemLocationType>(4);
constexpr auto cudaMemLocationTypeHost =
    static_cast<cudaMemLocationType>(2);
constexpr auto cudaMemLocationTypeHostNuma =
    static_cast<cudaMemLocationType>(3);
constexpr auto cudaMemLocationTypeHostNumaCurrent =
    static_cast<cudaMemLocationType>(4);
#endif

#if CUDA_VERSION < 12030
constexpr auto cudaDevAttrMpsEnabled = static_cast<cudaDeviceAttr>(133);
constexpr auto CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED =
    static_cast<CUdevice_attribute>(128);
constexpr auto CU_MEM_HANDLE_TYPE_FABRIC =
    static_cast<CUmemAllocationHandleType>(8);
struct CUmemFabricHandle {
  unsigned char data[CU_IPC_HANDLE_SIZE];
};
struct cudaMemFabricHandle_t {
  char reserved[CUDA_IPC_HANDLE_SIZE];
};
#endif

#if CUDA_VERSION < 12040
constexpr auto cudaMemHandleTypeFabric =
    static_cast<cudaMemAllocationHandleType>(8);
#endif

#if CUDA_VERSION < 12090
constexpr auto
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED =
        static_cast<CUdevice_attribute>(141);
#endif

#if CUDA_VERSION < 13030
constexpr auto CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED =
    static_cast<CUdevice_attribute>(152);
#endif

/// The field maxSize, which came with CUDA 12.2. Older headers have
/// reserved bytes in its place.
inline size_t max_size(const cudaMemPoolProps& properties) {
#if CUDART_VERSION < 12020
  return *reinterpret_cast<const size_t*>(properties.reserved);
#else
  return properties.maxSize;
#endif
}
/// The same, for a new value.
inline size_t& max_size(cudaMemPoolProps& properties) {
#if CUDART_VERSION < 12020
  return *reinterpret_cast<size_t*>(properties.reserved);
#else
  return properties.maxSize;
#endif
}

static_assert(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED == 128);
static_assert(cudaDevAttrMpsEnabled == 133);
static_assert(cudaDevAttrHostNumaId == 134);
static_assert(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT == 4);
static_assert(cudaMemLocationTypeHostNumaCurrent == 4);
static_assert(cudaMemHandleTypeFabric == 8);
static_assert(CU_MEM_HANDLE_TYPE_FABRIC == 8);
static_assert(
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ==
    141);
static_assert(CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED == 152);
static_assert(sizeof(cudaMemFabricHandle_t) == 64);
