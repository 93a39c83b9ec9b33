// Lesson 53: what a shared pool keeps, whatever is asked of it.
//
//   exporter                             importer
//   create a small pool, fill it
//   lend one piece    -- pool, piece --> import, read
//                     <-- imported -----
//   free the others, trim the pool
//   destroy the pool  -- destroyed ----> read again, write
//   read              <-- freed -------- free
//   free the last piece
//
// nvcc -cudart shared
//   samples/53_export_pool_limits/export_pool_limits.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kCount = 4 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 100000000;
constexpr int kImporterValue = 200000000;

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

void write(int* data, int first) {
  write_values<<<kCount / 256, 256>>>(data, first);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
}

bool holds(const int* data, int first) {
  std::vector<int> seen(kCount);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  for (int i = 0; i < kCount; ++i)
    if (seen[i] != first + i) return false;
  return true;
}

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kFd;
  wanted.maxSize = 4 * kBytes;  // 0 would leave it to the system
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  int fd = -1;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  channel.send_descriptor("pool", fd);

  std::vector<int*> pieces;
  cudaError_t code = cudaSuccess;
  for (int* piece; pieces.size() < 8; pieces.push_back(piece)) {
    code = cudaMallocFromPoolAsync(&piece, kBytes, pool, nullptr);
    if (code != cudaSuccess) break;
  }
  cudaGetLastError();  // the refusal has been seen
  say("allocates until the pool says %s", cudaGetErrorName(code));
  int* data = pieces.at(0);
  write(data, kExporterValue);
  cudaMemPoolPtrExportData bytes;
  CUDA_CHECK(cudaMemPoolExportPointer(&bytes, data));
  channel.send("piece", bytes);
  channel.wait("imported");
  for (size_t i = 1; i < pieces.size(); ++i)
    CUDA_CHECK(cudaFree(pieces[i]));
  CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));  // gives back, or does not
  CUDA_CHECK(cudaMemPoolDestroy(pool));    // waits for nobody
  say("frees the other pieces, trims the pool, destroys it");
  channel.signal("destroyed");

  channel.wait("freed");
  const bool good = holds(data, kImporterValue);
  say("finds %s values in the last piece", good ? "its" : "WRONG");
  CUDA_CHECK(cudaFree(data));  // with it goes what the pool still has
  return good && code == cudaErrorMemoryAllocation ? 0 : 1;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("pool");
  void* from = reinterpret_cast<void*>(intptr_t{fd});
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(&pool, from, kFd, 0));
  auto bytes = channel.receive<cudaMemPoolPtrExportData>("piece");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &bytes));
  channel.signal("imported");

  channel.wait("destroyed");
  const bool good = holds(static_cast<int*>(data), kExporterValue);
  say("reads a piece of a pool that is gone: %s",
      good ? "good" : "BAD");
  write(static_cast<int*>(data), kImporterValue);
  CUDA_CHECK(cudaFree(data));
  channel.signal("freed");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "pools for IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  return child.wait(10s) == EXIT_SUCCESS ? mine : EXIT_FAILURE;
}
