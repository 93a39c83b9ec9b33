// Exercise 62: predict what is left of a pool.
//
// The exporter destroys its pool while the importer still uses memory
// of the pool. What is released, and what stays? Write kYes or kNo for
// each question, and then run the program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kTheImporterStillReads = kUnknown;
constexpr Answer kBackAfterTheDestroy = kUnknown;
constexpr Answer kTheExporterSeesAWrite = kUnknown;
constexpr Answer kBackAfterTheLastFree = kUnknown;

constexpr size_t kBytes = size_t{2} << 30;  // clear in free_memory()
constexpr int kCount = 1 << 18;             // values that are checked
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 3000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));
  require_free_memory(2 * kBytes);
  cudaMemPool_t pool = create_pool();
  send_pool(channel, pool);
  channel.wait("ready");
  const size_t before = free_memory();
  const auto back = [before] {
    return free_memory() + kBytes / 2 > before;
  };

  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values(data, kCount, kOldValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);
  channel.wait("imported");
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  bool good = predicted("The pool is destroyed. Is its memory back?",
                        kBackAfterTheDestroy, back());
  channel.signal("destroyed");

  channel.wait("closed");
  good &=
      predicted("The importer has written. Does the exporter see it?",
                kTheExporterSeesAWrite,
                count_wrong(data, kCount, kNewValue) == 0);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  good &= predicted("All have freed it. Is the memory back?",
                    kBackAfterTheLastFree, back());

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  cudaMemPool_t pool = receive_pool(channel);
  channel.signal("ready");
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  channel.signal("imported");

  channel.wait("destroyed");
  const bool good =
      predicted("The pool is gone. Can the importer still read?",
                kTheImporterStillReads,
                count_wrong(data, kCount, kOldValue) == 0);
  write_values(data, kCount, kNewValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("closed");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
