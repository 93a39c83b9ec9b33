// Exercise 63: access is not inherited.
//
// The exporter gives GPU 1 access to its pool on GPU 0. The importer
// runs a kernel on GPU 1, but there GPU 1 has no access: each process
// sets the access for itself. Fix the importer.
// The exercise fails now with the error code of the kernel.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 18;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 3000000;

void give_gpu_1_access(cudaMemPool_t pool) {
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 1};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
}

int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  give_gpu_1_access(pool);
  send_pool(channel, pool);
  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values(data, kCount, kOldValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("freed");
  const int wrong = count_wrong(data, kCount, kNewValue);
  say("reads the importer's values: %d wrong", wrong);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return exit_code(wrong);
}

int importer(Channel channel) {
  CUDA_CHECK(cudaSetDevice(1));
  cudaMemPool_t pool = receive_pool(channel);
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));

  write_values(data, kCount, kNewValue);  // on GPU 1
  CUDA_CHECK(cudaDeviceSynchronize());
  say("has written with GPU 1");
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(2);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
