// Words about the calls that use pools.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/faults/words/functions.h"
#include "harness/faults/words/pools.h"

namespace ipclab::faults {

/// The calls at which a late free may happen: they need memory, or they wait.
constexpr Functions kPoolWork{kFreeAsync,  kMallocAsync,  kMallocFromPool,
                              kCreatePool, kDestroyPool,  kImportPointer,
                              kTrim,       kFree,         kSyncStream,
                              kSyncDevice, kDestroyStream};

/// Switches all policies of reuse on. Returns false if they were on.
inline bool switch_policies_on(cudaMemPool_t pool) {
  bool any = false;
  for (const cudaMemPoolAttr policy : kPolicies) {
    int on = 1;
    cudaMemPoolGetAttribute(pool, policy, &on);
    if (on != 0) continue;
    on = 1;
    any |= cudaMemPoolSetAttribute(pool, policy, &on) == cudaSuccess;
  }
  return any;
}

}  // namespace ipclab::faults
