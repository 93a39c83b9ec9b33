// Lesson 50: share a pool once, then each allocation by 64 bytes.
//
//   exporter                               importer
//   create a pool        ---- pool ---->   import the pool
//   twice:
//   cudaMallocFromPoolAsync, write
//   export the pointer   -- pointer --->   import the pointer
//                                          read, write
//   read, cudaFreeAsync  <-- freed -----   cudaFree
//   cudaMemPoolDestroy                     cudaMemPoolDestroy
//
// nvcc -cudart shared samples/50_pool_ipc/pool_ipc.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kAllocations = 2;
constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 3000000;

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kFd;  // the export needs it
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));

  int fd = -1;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  say("sends a pool that is still empty");
  channel.send_descriptor("pool", fd);
  SYS_CHECK(close(fd));

  int wrong = 0;
  for (int i = 0; i < kAllocations; ++i) {
    void* data = nullptr;
    CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
    CUDA_CHECK(cudaMemsetAsync(data, kPoison, kBytes, nullptr));
    write_values(data, kCount, kExporterValue + i);
    CUDA_CHECK(cudaDeviceSynchronize());

    cudaMemPoolPtrExportData pointer;  // plain data
    CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
    say("sends %zu bytes for allocation %d", sizeof pointer, i);
    channel.send("pointer", pointer);

    channel.wait("freed");  // importers free first
    wrong += count_wrong(data, kCount, kImporterValue + i);
    say("reads the importer's values: %d wrong", wrong);
    CUDA_CHECK(cudaFreeAsync(data, nullptr));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("pool");
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(
      &pool, reinterpret_cast<void*>(intptr_t{fd}), kFd, 0));
  SYS_CHECK(close(fd));  // the import does not close it

  int wrong = 0;
  for (int i = 0; i < kAllocations; ++i) {
    auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
    void* data = nullptr;
    CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
    wrong += count_wrong(data, kCount, kExporterValue + i);
    say("reads the exporter's values: %d wrong", wrong);
    write_values(data, kCount, kImporterValue + i);
    CUDA_CHECK(cudaDeviceSynchronize());

    CUDA_CHECK(cudaFree(data));  // ends the use in this process only
    channel.signal("freed");
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));  // not the exporter's pool

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
