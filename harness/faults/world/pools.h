// Tables of the pools of a process and of their memory. Faults of pools and
// faults of stream-ordered memory use them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>

#include "harness/faults/engine/fault.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {

/// Memory of a pool.
struct Block {
  cudaMemPool_t pool = nullptr;
  size_t bytes = 0;
  bool imported = false;
};

/// All memory that was allocated or imported, and was not freed.
inline Table<void*, Block> blocks;
/// Pools that were created here, with the requested properties.
inline Table<cudaMemPool_t, cudaMemPoolProps> own_pools;
/// Pools that were imported.
inline Table<cudaMemPool_t> imported_pools;

/// Is this call an allocation in stream order?
inline bool allocates(Call& call) {
  return call.is("cudaMallocAsync") || call.is("cudaMallocFromPoolAsync");
}
/// Is this call cudaFreeAsync or cudaFree?
inline bool frees(Call& call) {
  return call.is("cudaFree") || call.is("cudaFreeAsync");
}

/// The current pool of the current device.
inline cudaMemPool_t current_pool() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  cudaGetDevice(&device);
  cudaDeviceGetMemPool(&pool, device);
  return pool;
}

/// The default pool of the current device.
inline cudaMemPool_t default_pool() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  cudaGetDevice(&device);
  cudaDeviceGetDefaultMemPool(&pool, device);
  return pool;
}

/// Is this the address of imported memory?
inline bool is_import(void* address) { return blocks.get(address).imported; }

/// Is this location on the host?
inline bool is_on_host(const cudaMemLocation& location) {
  return location.type == cudaMemLocationTypeHost ||
         location.type == cudaMemLocationTypeHostNuma;
}
/// Has this process created the pool on the host?
inline bool is_on_host(cudaMemPool_t pool) {
  return is_on_host(own_pools.get(pool).location);
}
/// The GPU of a pool; -1 if this process did not create the pool, and -1 for a
/// pool on the host.
inline int gpu_of(cudaMemPool_t pool) {
  const auto location = own_pools.get(pool).location;
  return location.type == cudaMemLocationTypeDevice ? location.id : -1;
}
/// Has this process created the pool on the second GPU?
inline bool is_on_second_gpu(cudaMemPool_t pool) { return gpu_of(pool) == 1; }

/// The attributes that say how a pool may use memory again.
constexpr cudaMemPoolAttr kPolicies[] = {
    cudaMemPoolReuseFollowEventDependencies, cudaMemPoolReuseAllowOpportunistic,
    cudaMemPoolReuseAllowInternalDependencies};
/// Is the attribute one of them?
inline bool is_policy(cudaMemPoolAttr attribute) {
  for (const cudaMemPoolAttr policy : kPolicies)
    if (policy == attribute) return true;
  return false;
}
/// Is the attribute a watermark?
inline bool is_watermark(cudaMemPoolAttr attribute) {
  return attribute == cudaMemPoolAttrReservedMemHigh ||
         attribute == cudaMemPoolAttrUsedMemHigh;
}
/// The value of an attribute of a pool that has a 64-bit value.
inline uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr wanted) {
  uint64_t value = 0;
  cudaMemPoolGetAttribute(pool, wanted, &value);
  return value;
}

/// Is the stream of the call the default stream of the thread?
inline bool is_per_thread(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  return stream == cudaStreamPerThread ||
         (stream == nullptr &&
          std::strstr(call.function().symbol, "_ptsz") != nullptr);
}

/// The key that names exported memory in all processes.
inline std::string key_of_data(const void* data) {
  return "data-" + key_of(data, sizeof(cudaMemPoolPtrExportData));
}

/// Updates the tables above after an accepted call.
void note_pools(Call& call);

}  // namespace ipclab::faults
