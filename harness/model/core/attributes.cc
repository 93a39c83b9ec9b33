// SPDX-License-Identifier: Apache-2.0
// The facts that a device reports about itself: attributes and UUID.
#include <cstring>
#include <map>

#include "core/device.h"
#include "core/mps.h"
#include "core/profile.h"
#include "harness/toolkit/newer.h"

namespace ipclab::model {
namespace {

// The limits of all compute capabilities from 9.0 on (Programming Guide,
// technical specifications), but with few multiprocessors. So a grid whose size
// depends on the device stays small enough for a CPU. An attribute that neither
// this table nor device_attribute() names is 0: the model does not have that
// feature (arrays, multicast).
const std::map<int, int>& fixed_attributes() {
  static const auto& table = *new std::map<int, int>{
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1 << 10},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
      {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
      {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, profile().one_queue ? 0 : 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
      {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1},
      {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
      {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
  };
  return table;
}

}  // namespace

CUuuid gpu_uuid(int gpu) {
  // A hash (FNV-1a) of the profile's name and the GPU's number. So a GPU has
  // the same UUID in every process, and each GPU has a different UUID.
  uint64_t hash = 14695981039346656037ull;
  const std::string seed =
      std::string("ipclab ") + profile().name + " " + std::to_string(gpu);
  CUuuid uuid;
  for (size_t half = 0; half < 2; ++half) {
    for (char c : seed) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    }
    std::memcpy(uuid.bytes + 8 * half, &hash, 8);
  }
  return uuid;
}

namespace {

// Attributes of logical endpoints, which older headers do not have. Returns
// false for any other attribute.
bool endpoint_attribute(int attribute, int* value) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED:
      *value = profile().endpoints;
      return true;
    case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES:
      *value = profile().endpoints ? CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC
                                   : CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_NONE;
      return true;
    default:
      return false;
  }
}

// Attributes are numbered in the order in which they came: how many the driver
// knows, which is CU_DEVICE_ATTRIBUTE_MAX of its version of cuda.h.
int attributes_of_driver() {
  const int driver = profile().driver_version;
  return driver >= 13050   ? 162
         : driver >= 13000 ? 148
         : driver >= 12080 ? 144
         : driver >= 12050 ? 136
         : driver >= 12020 ? 135
         : driver >= 12010 ? 133
                           : 130;
}

}  // namespace

CUresult device_attribute(int* value, int attribute, int gpu) {
  constexpr int kKnowsEndpoints = 13030;
  if (profile().driver_version >= kKnowsEndpoints &&
      endpoint_attribute(attribute, value)) {
    return CUDA_SUCCESS;
  }
  if (attribute < 1 || attribute >= attributes_of_driver()) {
    *value = 0;
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = profile().capability.major;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = profile().capability.minor;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = profile().capability.shared_per_block;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = profile().capability.shared_per_multiprocessor;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      *value = profile().capability.threads_per_multiprocessor;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      *value = profile().capability.blocks_per_multiprocessor;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = kPciBus;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      *value = gpu;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
      *value = is_mps_client();
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
      *value = profile().integrated;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      *value = profile().ipc_events;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *value = profile().has_dma_buf();
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED:
      *value = profile().host_dma_buf();
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED:
      *value = profile().maps_dma_buf();
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
      *value = profile().pools;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      *value = profile().pool_handles;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      *value = profile().vmm;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = (profile().chunk_handles &
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
      *value = (profile().chunk_handles & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED:
      *value = profile().vmm && profile().imex;
      return CUDA_SUCCESS;
    default: {
      const auto found = fixed_attributes().find(attribute);
      *value = found == fixed_attributes().end() ? 0 : found->second;
      return CUDA_SUCCESS;
    }
  }
}

}  // namespace ipclab::model
