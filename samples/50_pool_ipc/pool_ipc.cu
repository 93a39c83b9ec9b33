// Lesson 50: share a pool once, then its allocations by 64 bytes each.
//
//   exporter                               importer
//   cudaMemPoolCreate
//   export the pool      -- descriptor --> import the pool
//   twice:
//   cudaMallocFromPoolAsync, write
//   export the pointer    -- 64 bytes -->  import the pointer
//                                          read the exporter's values
//   read the importer's    <- written --   write its own
//   cudaFree               <-- freed ---   cudaFree
//   cudaMemPoolDestroy
//
// nvcc -cudart shared samples/50_pool_ipc/pool_ipc.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kAllocations = 2;
constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1;
constexpr int kExporterValue = 100000000;  // the two sides differ
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

int count_wrong(const int* data, int first) {
  std::vector<int> seen(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += seen[i] != first + i;
  return wrong;
}

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kFd;  // without a type nothing can be exported
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  int fd = -1;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  channel.send_descriptor("pool", fd);
  SYS_CHECK(close(fd));
  say("sends a pool, and nothing of it is allocated yet");
  int wrong = 0;
  for (int n = 0; n < kAllocations; ++n) {
    void* data = nullptr;
    CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
    CUDA_CHECK(cudaMemsetAsync(data, kPoison, kBytes, nullptr));
    write(static_cast<int*>(data), kExporterValue + n);
    cudaMemPoolPtrExportData bytes;  // plain data, and no handle
    CUDA_CHECK(cudaMemPoolExportPointer(&bytes, data));
    say("allocation %d: sends %zu bytes", n, sizeof bytes);
    channel.send("pointer", bytes);
    channel.wait("written");
    wrong += count_wrong(static_cast<int*>(data), kImporterValue + n);
    say("allocation %d: finds %d wrong values", n, wrong);
    channel.signal("seen");
    channel.wait("freed");  // every importer first, the exporter last
    CUDA_CHECK(cudaFree(data));
  }
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("pool");
  void* value = reinterpret_cast<void*>(intptr_t{fd});
  cudaMemPool_t pool;
  CUDA_CHECK(
      cudaMemPoolImportFromShareableHandle(&pool, value, kFd, 0));
  SYS_CHECK(close(fd));  // the pool does not need it any more

  int wrong = 0;
  for (int n = 0; n < kAllocations; ++n) {
    auto bytes = channel.receive<cudaMemPoolPtrExportData>("pointer");
    void* data = nullptr;
    CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &bytes));
    wrong += count_wrong(static_cast<int*>(data), kExporterValue + n);
    say("allocation %d: finds %d wrong, writes its own", n, wrong);
    write(static_cast<int*>(data), kImporterValue + n);
    channel.signal("written");
    channel.wait("seen");
    CUDA_CHECK(cudaFree(data));  // ends this process's use, no more
    channel.signal("freed");
  }
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
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
