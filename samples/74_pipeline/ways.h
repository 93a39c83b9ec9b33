// Three ways to share the memory of a ring. Each way has the same five
// steps, so the pipeline is the same for all three.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../common/pool.h"
#include "../common/vmm.h"
#include "ring.h"

//! [legacy]
struct LegacyHandle {
  static constexpr char kName[] = "a legacy handle";
  void* data = nullptr;

  void* words() const { return words_after(data); }
  void make() { CUDA_CHECK(cudaMalloc(&data, kBytes)); }
  void lend(Channel& channel) const {
    cudaIpcMemHandle_t handle;
    CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
    channel.send("handle", handle);
  }
  void release() { CUDA_CHECK(cudaFree(data)); }

  void borrow(Channel& channel) {
    const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
    CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                    cudaIpcMemLazyEnablePeerAccess));
  }
  void give_back() { CUDA_CHECK(cudaIpcCloseMemHandle(data)); }
};
//! [legacy]

//! [descriptor]
struct Descriptor {
  static constexpr char kName[] = "a descriptor";
  void* data = nullptr;
  size_t size = 0;
  Memory memory = 0;

  void* words() const { return words_after(data); }
  void make() {
    const CUmemAllocationProp wanted = shareable();
    size = whole_granules(kBytes, wanted);
    CU_CHECK(DRIVER(cuMemCreate)(&memory, size, &wanted, 0));
    data = map_memory(memory, size);
  }
  void lend(Channel& channel) const {
    send_memory(channel, memory, size);
  }
  void release() {
    unmap_memory(data, size);
    CU_CHECK(DRIVER(cuMemRelease)(memory));
  }

  void borrow(Channel& channel) {
    memory = receive_memory(channel, &size);
    data = map_memory(memory, size);
  }
  void give_back() { release(); }
};
//! [descriptor]

//! [pool]
struct Pool {
  static constexpr char kName[] = "a pool";
  void* data = nullptr;
  cudaMemPool_t pool = nullptr;
  LegacyHandle beside;  // for the words, not from the pool

  void* words() const { return beside.data; }
  void make() {
    pool = create_pool();
    CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
    beside.make();
  }
  void lend(Channel& channel) const {
    send_pool(channel, pool);
    cudaMemPoolPtrExportData pointer;
    CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
    channel.send("pointer", pointer);
    beside.lend(channel);
  }
  void release() {
    leave_pool();
    beside.release();
  }

  void borrow(Channel& channel) {
    pool = receive_pool(channel);
    auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
    CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
    beside.borrow(channel);
  }
  void give_back() {
    leave_pool();
    beside.give_back();
  }

  void leave_pool() {
    CUDA_CHECK(cudaFreeAsync(data, nullptr));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
    CUDA_CHECK(cudaMemPoolDestroy(pool));
  }
};
//! [pool]
