// This header has the packet of a tensor that producer.py and the
// lesson exchange, the counter file, and a kernel that visits the
// elements of a tensor.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>

#include "../common/check.h"

//! [tensor]
/// The values that reduce_tensor() returns for a matrix, except its
/// types and requires_grad.
struct Tensor {
  int64_t device;          ///< the sender's number of the GPU
  char handle[66];         ///< version, 'c', cudaIpcMemHandle_t
  int64_t storage_bytes;   ///< size of the storage
  int64_t storage_offset;  ///< of the storage in the block, in bytes
  char counter[64];        ///< the name of the counter file
  int64_t counter_index;   ///< the place of the count in the file
  cudaIpcEventHandle_t event;  ///< recorded by the sender
  int64_t must_wait;           ///< 0 if there is no event
  int64_t offset;              ///< in the storage, in elements
  int64_t size[2];             ///< rows and columns
  int64_t stride[2];           ///< from row to row, column to column
};
static_assert(sizeof(Tensor) == 280, "as in producer.py");

/// The counter file. The count of a tensor is 1 while the other process
/// uses the tensor.
struct Counters {
  std::atomic<int> users;  ///< how many processes have mapped it
  char unused[60];         ///< not used
  std::atomic<int64_t> count[10000];  ///< one for each tensor sent
};
//! [tensor]

static __device__ int wrong_elements;

// If `seen` has this value, visit() checks nothing. If `written` has
// this value, nothing reads what visit() writes.
constexpr int kAnything = 0;

static __global__ void visit_kernel(int* data, Tensor tensor, int seen,
                                    int written) {
  const int columns = tensor.size[1];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tensor.size[0] * columns) return;
  int* element = data + i / columns * tensor.stride[0] +
                 i % columns * tensor.stride[1];
  if (seen != kAnything && *element != seen + i)
    atomicAdd(&wrong_elements, 1);
  *element = written + i;
}

/// Queues a kernel that visits the elements row by row. The kernel
/// expects `seen`, `seen` + 1 …, counts wrong elements, and writes
/// `written`, `written` + 1 ….
inline void visit(void* block, const Tensor& tensor, int seen,
                  int written, cudaStream_t stream = nullptr) {
  char* storage = static_cast<char*>(block) + tensor.storage_offset;
  int* data = reinterpret_cast<int*>(storage) + tensor.offset;
  const int count = tensor.size[0] * tensor.size[1];
  visit_kernel<<<(count + 255) / 256, 256, 0, stream>>>(data, tensor,
                                                        seen, written);
  CUDA_CHECK(cudaGetLastError());
}

/// Waits for the kernels in the default stream. Returns how many
/// elements were wrong since the last call.
inline int wrong_so_far() {
  int wrong = -1;
  const int none = 0;
  CUDA_CHECK(
      cudaMemcpyFromSymbol(&wrong, wrong_elements, sizeof wrong));
  CUDA_CHECK(cudaMemcpyToSymbol(wrong_elements, &none, sizeof none));
  return wrong;
}

//! [counters]
/// Maps the counter file. With O_CREAT this function first creates it.
inline Counters* open_counters(const char* name, int flags) {
  const int fd = shm_open(name, O_RDWR | flags, 0600);
  SYS_CHECK(fd);
  if (flags & O_CREAT) SYS_CHECK(ftruncate(fd, sizeof(Counters)));
  void* at = mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE,
                  MAP_SHARED, fd, 0);
  SYS_CHECK(close(fd));
  if (at == MAP_FAILED) SYS_CHECK(-1);
  ++static_cast<Counters*>(at)->users;
  return static_cast<Counters*>(at);
}

/// Unmaps the file. The last user also removes the name of the file.
inline void close_counters(const char* name, Counters* counters) {
  if (--counters->users == 0) SYS_CHECK(shm_unlink(name));
  SYS_CHECK(munmap(counters, sizeof *counters));
}
//! [counters]
