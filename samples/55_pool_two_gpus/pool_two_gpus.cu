// Lesson 55: a pool on one GPU, used by another.
//
//   exporter, on GPU 0                   importer, on GPU 1
//   create a pool, let GPU 1 use it
//   export            -- pool, piece --> import: GPU 1 has no access
//                                        give it access; a kernel of
//   read              <-- written -----  GPU 1 reads and writes
//   free              <-- freed -------- free
//
// nvcc -cudart shared samples/55_pool_two_gpus/pool_two_gpus.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr auto kReadWrite = cudaMemAccessFlagsProtReadWrite;
constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 55000000;
constexpr int kAdded = 700000;  // by the importer, to each value

__global__ void add(int* data, int amount) {  // reads and writes
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] += amount;
}

bool holds(const void* data, int value) {
  std::vector<int> seen(kCount);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  return seen == std::vector<int>(kCount, value);
}

//! [access]
bool second_gpu_may(cudaMemPool_t pool) {
  cudaMemLocation second = {cudaMemLocationTypeDevice, 1};
  cudaMemAccessFlags flags;
  CUDA_CHECK(cudaMemPoolGetAccess(&flags, pool, &second));
  say("GPU 1 has %s", flags == kReadWrite ? "access" : "no access");
  return flags == kReadWrite;
}

void let_second_gpu(cudaMemPool_t pool) {
  cudaMemAccessDesc access = {};
  access.location = {cudaMemLocationTypeDevice, 1};
  access.flags = kReadWrite;
  CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
}
//! [access]

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kFd;
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  let_second_gpu(pool);  // in this process
  bool good = second_gpu_may(pool);
  int *data = nullptr, fd = -1;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  channel.send_descriptor("pool", fd);
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  CUDA_CHECK(cudaMemsetAsync(data, 0, kBytes, nullptr));
  add<<<kCount / 256, 256>>>(data, kValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaMemPoolPtrExportData bytes;
  CUDA_CHECK(cudaMemPoolExportPointer(&bytes, data));
  channel.send("piece", bytes);
  channel.wait("freed");
  good &= holds(data, kValue + kAdded);
  say("finds %s values", good ? "the importer's" : "WRONG");
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaSetDevice(1));
  const int fd = channel.receive_descriptor("pool");
  void* from = reinterpret_cast<void*>(intptr_t{fd});
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(&pool, from, kFd, 0));
  bool good = !second_gpu_may(pool);
  let_second_gpu(pool);  // for pieces imported before and after
  good &= second_gpu_may(pool);
  auto bytes = channel.receive<cudaMemPoolPtrExportData>("piece");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &bytes));
  good &= holds(data, kValue);
  add<<<kCount / 256, 256>>>(static_cast<int*>(data), kAdded);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  say("a kernel of GPU 1 adds %d to each value", kAdded);
  CUDA_CHECK(cudaFree(data));
  channel.signal("freed");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(2);
  int can = 0;
  CUDA_CHECK(cudaDeviceCanAccessPeer(&can, 1, 0));
  if (can == 0) skip("GPU 1 does not reach the memory of GPU 0");
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "pools for IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  return child.wait(10s) == EXIT_SUCCESS ? mine : EXIT_FAILURE;
}
