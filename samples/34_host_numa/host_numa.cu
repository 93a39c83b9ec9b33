// Lesson 34: share memory of the host that a GPU uses as well.
//
//   exporter                             importer
//   cudaMemPoolCreate on a NUMA node
//   allocate, the CPU writes
//                     -- descriptor -->  cudaMemPoolImport...
//                     -- pointer ----->  cudaMemPoolImportPointer
//                                        the CPU reads
//                                        cudaMemPoolSetAccess for a GPU
//                                        a kernel adds
//   the CPU reads     <- added --------  free
//   free, destroy
//
// No copy anywhere: two CPUs' processes and a GPU use the same bytes.
//
// nvcc -cudart shared samples/34_host_numa/host_numa.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000, kAdded = 7000000;

__global__ void add(int* data, int more) {
  data[blockIdx.x * blockDim.x + threadIdx.x] += more;
}

// The CPU looks at the memory itself: how many values are right?
int count(const int* data, int value) {
  int right = 0;
  for (int i = 0; i < kCount; ++i) right += data[i] == value;
  return right;
}

//! [exporter]
int exporter(Channel& channel) {
  int node = 0;  // the one next to the GPU; -1: this host has no nodes
  CUDA_CHECK(cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, 0));
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeHostNuma, node < 0 ? 0 : node};
  wanted.handleTypes = kFd;
  cudaMemPool_t pool = nullptr;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  void* memory = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&memory, kBytes, pool, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  int* data = static_cast<int*>(memory);
  for (int i = 0; i < kCount; ++i) data[i] = kValue;
  say("its CPU writes %d values into memory of the host", kCount);

  int fd = -1;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  channel.send_descriptor("pool", fd);
  SYS_CHECK(close(fd));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, memory));
  channel.send("pointer", pointer);

  channel.wait("added");
  const int right = count(data, kValue + kAdded);
  say("its CPU finds the sums, %d of %d right", right, kCount);
  CUDA_CHECK(cudaFreeAsync(memory, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return right == kCount ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("pool");
  cudaMemPool_t pool = nullptr;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(
      &pool, reinterpret_cast<void*>(intptr_t{fd}), kFd, 0));
  SYS_CHECK(close(fd));
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* memory = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&memory, pool, &pointer));
  int* data = static_cast<int*>(memory);
  const int right = count(data, kValue);
  say("its CPU finds them, %d of %d right", right, kCount);

  cudaMemAccessDesc gpu{};  // so far only CPUs may
  gpu.location = {cudaMemLocationTypeDevice, 0};
  gpu.flags = cudaMemAccessFlagsProtReadWrite;
  CUDA_CHECK(cudaMemPoolSetAccess(pool, &gpu, 1));
  add<<<kCount / 256, 256>>>(data, kAdded);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  say("its GPU adds %d to each", kAdded);
  CUDA_CHECK(cudaFree(memory));
  channel.signal("added");
  return right == kCount ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "pools for IPC");
  require(cudaDevAttrHostNumaMemoryPoolsSupported, "pools of the host");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  const int theirs = child.wait(10s);
  return mine != EXIT_SUCCESS ? mine : theirs;
}
