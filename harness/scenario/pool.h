// Owners of stream-ordered memory: pools and allocations that this process
// creates, or imports from another process.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "harness/scenario/cuda.h"

namespace ipclab {

/// The properties of a pool of memory on `device`. If the maximal size is 0,
/// the limit of the system applies.
cudaMemPoolProps pool_properties(
    cudaMemAllocationHandleType types = cudaMemHandleTypeNone,
    size_t max_size = 0, int device = 0);

/// The same for a pool that can be exported to a file descriptor.
inline cudaMemPoolProps shareable(size_t max_size = 0, int device = 0) {
  return pool_properties(cudaMemHandleTypePosixFileDescriptor, max_size,
                         device);
}

/// The properties of a pool of host memory.
inline cudaMemPoolProps on_the_host() {
  cudaMemPoolProps wanted = pool_properties();
  wanted.location = {cudaMemLocationTypeHost, 0};
  return wanted;
}

/// A pool that this process has created or imported.
class Pool {
 public:
  /// Creates with cudaMemPoolCreate.
  explicit Pool(const cudaMemPoolProps& wanted = pool_properties());
  /// Imports; the caller still closes the descriptor.
  explicit Pool(const Descriptor& exported);
  /// Takes over a pool that the caller has created or imported.
  explicit Pool(cudaMemPool_t pool) : pool_(pool) {}
  Pool(const Pool&) = delete;
  ~Pool();
  /// The pool itself.
  operator cudaMemPool_t() const { return pool_; }

  /// Exports to a new file descriptor.
  Descriptor exported() const;
  /// Destroys now, not in the destructor, for tests of this step.
  void destroy();
  /// Gives the pool to the caller, who must destroy it.
  cudaMemPool_t release() { return std::exchange(pool_, nullptr); }

 private:
  cudaMemPool_t pool_ = nullptr;
};

/// An attribute of a pool. A value of type int is widened.
uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which);
/// Bytes of physical memory that a pool holds now.
inline uint64_t reserved(cudaMemPool_t pool) {
  return attribute(pool, cudaMemPoolAttrReservedMemCurrent);
}
/// Sets an attribute of a pool.
void set_attribute(cudaMemPool_t pool, cudaMemPoolAttr which, uint64_t value);

/// The access that the kernels of a GPU have to a pool's memory. Queries both
/// APIs and judges that they agree; returns the answer of the runtime API.
cudaMemAccessFlags access_of(int device, cudaMemPool_t pool);
/// Lets the kernels of a GPU use a pool's memory; returns the call's code.
cudaError_t give_access(
    int device, cudaMemPool_t pool,
    cudaMemAccessFlags flags = cudaMemAccessFlagsProtReadWrite);

/// Memory of the allocation node of a graph that has run once.
class GraphMemory : public Words {
 public:
  /// Makes the graph, launches it in the default stream and waits for it.
  explicit GraphMemory(size_t bytes);
  GraphMemory(const GraphMemory&) = delete;
  ~GraphMemory();

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t run_ = nullptr;
};

/// Memory of a pool, of this process or imported. It is not poisoned, because
/// the stream may not have reached the allocation yet.
class AsyncBuffer : public Words {
 public:
  /// From the current pool of the stream's device.
  explicit AsyncBuffer(size_t bytes, cudaStream_t stream = nullptr);
  /// From this pool.
  AsyncBuffer(cudaMemPool_t pool, size_t bytes, cudaStream_t stream = nullptr);
  /// Imports; `bytes` is what the exporter allocated.
  AsyncBuffer(cudaMemPool_t pool, cudaMemPoolPtrExportData data, size_t bytes);
  /// Takes over memory that the caller has allocated.
  explicit AsyncBuffer(const Words& memory) : Words(memory) {}
  /// Takes over the memory of `other`, which then owns none.
  AsyncBuffer(AsyncBuffer&& other) noexcept;
  ~AsyncBuffer();

  /// The data that another process needs in addition to the pool, to import the
  /// allocation.
  cudaMemPoolPtrExportData exported() const;
  /// Queues the free now, not in the destructor, for tests of this step.
  void free_async(cudaStream_t stream = nullptr);
  /// Frees now with cudaFree, not in the destructor.
  void free();
};

/// Counts the words that differ from a pattern, in stream order. The host does
/// not wait, so the stream may be held meanwhile.
class WrongWords {
 public:
  /// Loads its kernel. The load may wait for all other work.
  WrongWords();
  /// Queues the count.
  void queue_count(const Words& words, Pattern expected, cudaStream_t stream);
  /// The sum of the counts that are complete.
  unsigned so_far() const;

 private:
  DeviceBuffer counter_{sizeof(unsigned)};
};

/// The pool that an allocation of cudaMallocAsync came from.
cudaMemPool_t pool_of(const Words& words);

/// The body of an exporter. It shares a pool with `importers` roles (step
/// "pool") and lends one allocation, filled with `written` (step "pointer"). It
/// waits until all importers have freed the allocation (step "freed").
std::function<void(Role&)> lends_from_pool(Pattern written, size_t bytes,
                                           int importers = 1);

}  // namespace ipclab
