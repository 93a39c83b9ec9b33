// Lesson 54: an imported pool lends what it was lent, and nothing else.
//
//   exporter                        two importers
//   create a pool, write
//   into one piece of it
//                  -- pool, piece -> import
//                                    allocate from the pool: refused
//                                    make it the current one: refused
//                  <- tried -------- read
//   the first may  -- go ----------> free, end
//   end
//   the second     -- go ----------> read again, free, end
//   read, free
//
// nvcc -cudart shared samples/54_import_limits/import_limits.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kImporters = 2;
constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 54000000;

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

bool holds(const void* data, int first) {
  std::vector<int> seen(kCount);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  for (int i = 0; i < kCount; ++i)
    if (seen[i] != first + i) return false;
  return true;
}

bool refused(const char* what, cudaError_t code) {
  say("%s: %s", what, code == cudaSuccess ? "ACCEPTED" : "refused");
  cudaGetLastError();  // or the next check finds this code
  return code != cudaSuccess;
}

//! [exporter]
int exporter(Child* importers) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kFd;
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  int* data = nullptr;
  int fd = -1;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values<<<kCount / 256, 256>>>(data, kValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaMemPoolPtrExportData bytes;
  CUDA_CHECK(cudaMemPoolExportPointer(&bytes, data));

  for (int i = 0; i < kImporters; ++i) {
    say("importer %d gets the pool and the piece", i);
    importers[i].channel.send_descriptor("pool", fd);
    importers[i].channel.send("piece", bytes);
    importers[i].channel.wait("tried");
  }
  int ended = EXIT_SUCCESS;
  for (int i = 0; i < kImporters; ++i) {
    say("importer %d may free and end", i);
    importers[i].channel.signal("go");
    if (importers[i].wait(10s) != EXIT_SUCCESS) ended = EXIT_FAILURE;
  }
  const bool good = holds(data, kValue);
  say("all have ended, finds %s values", good ? "its" : "WRONG");
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return good ? ended : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("pool");
  void* from = reinterpret_cast<void*>(intptr_t{fd});
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(&pool, from, kFd, 0));
  void *data = nullptr, *own = nullptr;
  bool good =
      refused("allocate from the import",
              cudaMallocFromPoolAsync(&own, kBytes, pool, nullptr));
  good &= refused("make it the current pool",
                  cudaDeviceSetMemPool(0, pool));

  auto bytes = channel.receive<cudaMemPoolPtrExportData>("piece");
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &bytes));
  channel.signal("tried");
  channel.wait("go");
  good &= holds(data, kValue);
  say("reads the piece: %s; frees it", good ? "good" : "BAD");
  CUDA_CHECK(cudaFree(data));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "pools for IPC");
  Child importers[] = {start_again(argv), start_again(argv)};
  return exporter(importers);
}
