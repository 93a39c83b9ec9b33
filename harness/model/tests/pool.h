// SPDX-License-Identifier: Apache-2.0
// Short forms of the calls on pools.
#pragma once

#include "gpu.h"

namespace ipclab::model::test {

constexpr uint64_t kMiB = 1 << 20;

inline cudaMemPoolProps on_device(int device, int handles = 0) {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, device};
  wanted.handleTypes = static_cast<cudaMemAllocationHandleType>(handles);
  return wanted;
}

inline cudaMemPool_t create(const cudaMemPoolProps& wanted) {
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaMemPoolCreate(&pool, &wanted), cudaSuccess);
  return pool;
}

template <typename T>
T get(cudaMemPool_t pool, cudaMemPoolAttr which) {
  T value{};
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, which, &value), cudaSuccess);
  return value;
}

inline uint64_t reserved(cudaMemPool_t pool) {
  return get<uint64_t>(pool, cudaMemPoolAttrReservedMemCurrent);
}

inline uint64_t used(cudaMemPool_t pool) {
  return get<uint64_t>(pool, cudaMemPoolAttrUsedMemCurrent);
}

template <typename T>
cudaError_t set(cudaMemPool_t pool, cudaMemPoolAttr which, T value) {
  return cudaMemPoolSetAttribute(pool, which, &value);
}

/// Sets the reuse policies; without an argument all policies are off.
inline void set_policies(cudaMemPool_t pool, int follow = 0,
                         int opportunistic = 0, int internal = 0) {
  EXPECT_EQ(set(pool, cudaMemPoolReuseFollowEventDependencies, follow),
            cudaSuccess);
  EXPECT_EQ(set(pool, cudaMemPoolReuseAllowOpportunistic, opportunistic),
            cudaSuccess);
  EXPECT_EQ(set(pool, cudaMemPoolReuseAllowInternalDependencies, internal),
            cudaSuccess);
}

inline int* take(cudaMemPool_t pool, uint64_t bytes, cudaStream_t stream) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&pointer, bytes, pool, stream),
            cudaSuccess);
  return static_cast<int*>(pointer);
}

inline cudaMemAccessFlags access_of(cudaMemPool_t pool, int device) {
  cudaMemAccessFlags flags = cudaMemAccessFlagsProtRead;
  cudaMemLocation location{cudaMemLocationTypeDevice, device};
  EXPECT_EQ(cudaMemPoolGetAccess(&flags, pool, &location), cudaSuccess);
  return flags;
}

inline cudaError_t set_access(cudaMemPool_t pool, int device,
                              cudaMemAccessFlags flags) {
  const cudaMemAccessDesc wanted{{cudaMemLocationTypeDevice, device}, flags};
  return cudaMemPoolSetAccess(pool, &wanted, 1);
}

}  // namespace ipclab::model::test
