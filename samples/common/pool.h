// These functions create a pool and share it between two processes.
// Lesson 50 makes the same calls without these functions.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "channel.h"
#include "check.h"

/// Creates a pool on a device. The pool can be exported as `type` and
/// holds at most `max_bytes`. If `max_bytes` is 0, CUDA sets the limit.
inline cudaMemPool_t create_pool(
    cudaMemAllocationHandleType type =
        cudaMemHandleTypePosixFileDescriptor,
    size_t max_bytes = 0, int device = 0) {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, device};
  wanted.handleTypes = type;
  max_size(wanted) = max_bytes;
  cudaMemPool_t pool = nullptr;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  return pool;
}

/// Exports a pool as a descriptor. The caller closes the descriptor.
inline cudaError_t export_pool(int* descriptor, cudaMemPool_t pool) {
  return cudaMemPoolExportToShareableHandle(
      descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0);
}

/// Imports a pool from a descriptor. The caller closes the descriptor.
inline cudaError_t import_pool(cudaMemPool_t* pool, int descriptor) {
  return cudaMemPoolImportFromShareableHandle(
      pool, reinterpret_cast<void*>(intptr_t{descriptor}),
      cudaMemHandleTypePosixFileDescriptor, 0);
}

/// Sends a pool as a descriptor. The other role calls receive_pool().
inline void send_pool(Channel& channel, cudaMemPool_t pool) {
  int descriptor = -1;
  CUDA_CHECK(export_pool(&descriptor, pool));
  channel.send_descriptor("pool", descriptor);
  SYS_CHECK(close(descriptor));
}

/// Imports the pool that send_pool() has sent.
inline cudaMemPool_t receive_pool(Channel& channel) {
  const int descriptor = channel.receive_descriptor("pool");
  cudaMemPool_t pool = nullptr;
  CUDA_CHECK(import_pool(&pool, descriptor));
  SYS_CHECK(close(descriptor));
  return pool;
}
