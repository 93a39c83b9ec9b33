// Exercise 85: from the other pool.
//
// The exporter has two pools, one for weights and one for results, and
// shares a pointer of each pool. The importer imports both pointers
// with the first pool. The bytes of a pointer work only with the
// pointer's own pool. Fix the importer. The exercise fails now with the
// error code of the import, or with wrong values.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 18;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kWeight = 1000000;
constexpr int kResult = 5000000;

cudaMemPoolPtrExportData lend(cudaMemPool_t pool, int first,
                              void** data) {
  CUDA_CHECK(cudaMallocFromPoolAsync(data, kBytes, pool, nullptr));
  write_values(*data, kCount, first);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, *data));
  return pointer;
}

int exporter(Channel& channel) {
  cudaMemPool_t weights = create_pool(), results = create_pool();
  send_pool(channel, weights);
  send_pool(channel, results);
  void *weight = nullptr, *result = nullptr;
  channel.send("weight", lend(weights, kWeight, &weight));
  channel.send("result", lend(results, kResult, &result));

  channel.wait("freed");
  for (void* data : {weight, result})
    CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  for (cudaMemPool_t pool : {weights, results})
    CUDA_CHECK(cudaMemPoolDestroy(pool));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  cudaMemPool_t weights = receive_pool(channel);
  cudaMemPool_t results = receive_pool(channel);
  auto weight = channel.receive<cudaMemPoolPtrExportData>("weight");
  auto result = channel.receive<cudaMemPoolPtrExportData>("result");

  void *a = nullptr, *b = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&a, weights, &weight));
  CUDA_CHECK(cudaMemPoolImportPointer(&b, weights, &result));
  const int wrong =
      count_wrong(a, kCount, kWeight) + count_wrong(b, kCount, kResult);
  say("reads a weight and a result: %d wrong", wrong);

  CUDA_CHECK(cudaFree(a));
  CUDA_CHECK(cudaFree(b));
  CUDA_CHECK(cudaDeviceSynchronize());
  for (cudaMemPool_t pool : {weights, results})
    CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("freed");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
