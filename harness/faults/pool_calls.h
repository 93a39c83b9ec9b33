// Tables of the pools of a process and of their memory. Faults of pools and
// faults of stream-ordered memory use them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fault.h"
#include "table.h"

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

/// The key that names exported memory in all processes.
inline std::string key_of_data(const void* data) {
  return "data-" + key_of(data, sizeof(cudaMemPoolPtrExportData));
}

/// Updates the tables above after a call that succeeded.
inline void note_pools(Call& call) {
  if (call.is("cudaMallocAsync"))
    blocks.put(*call.at<void**>(0), {current_pool(), call.at<size_t>(1)});
  else if (call.is("cudaMallocFromPoolAsync"))
    blocks.put(*call.at<void**>(0),
               {call.at<cudaMemPool_t>(2), call.at<size_t>(1)});
  else if (frees(call))
    blocks.erase(call.at<void*>(0));
  else if (call.is("cudaMemPoolCreate"))
    own_pools.put(*call.at<cudaMemPool_t*>(0),
                  *call.at<const cudaMemPoolProps*>(1));
  else if (call.is("cudaMemPoolImportFromShareableHandle"))
    imported_pools.put(*call.at<cudaMemPool_t*>(0));
  else if (call.is("cudaMemPoolDestroy")) {
    own_pools.erase(call.at<cudaMemPool_t>(0));
    imported_pools.erase(call.at<cudaMemPool_t>(0));
  } else if (call.is("cudaMemPoolExportPointer"))
    tell_processes(key_of_data(call.at<void*>(0)),
                   blocks.get(call.at<void*>(1)).bytes);
  else if (call.is("cudaMemPoolImportPointer"))
    blocks.put(*call.at<void**>(0),
               {call.at<cudaMemPool_t>(1),
                told(key_of_data(call.at<void*>(2)), 0), true});
}

/// Proceeds and updates the tables above.
inline int noted_pools(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) note_pools(call);
  return code;
}

}  // namespace ipclab::faults
