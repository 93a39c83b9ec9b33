// Lesson 53: a pool is destroyed while its memory is shared.
//
//   exporter                              importer
//   create a small pool    --- pool --->  import the pool
//   fill it, share a piece - pointer -->  import the pointer
//   free other pieces,     <- imported -
//   trim and destroy
//   the pool               - destroyed >  read, write
//   read the               <- closed ---  release all
//   importer's values
//   free the last piece
//
// nvcc -cudart shared
//   samples/53_export_pool_limits/export_pool_limits.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/data.h"
#include "../common/pool.h"
#include "../common/roles.h"

constexpr int kCount = 4 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 100000000;
constexpr int kImporterValue = 200000000;

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPool_t pool =
      create_pool(cudaMemHandleTypePosixFileDescriptor, 4 * kBytes);
  send_pool(channel, pool);

  std::vector<void*> pieces;
  cudaError_t code = cudaSuccess;
  while (code == cudaSuccess && pieces.size() < 8) {
    void* piece = nullptr;
    code = cudaMallocFromPoolAsync(&piece, kBytes, pool, nullptr);
    if (code == cudaSuccess) pieces.push_back(piece);
  }
  const bool limited = refused("allocates beyond the limit", code);

  void* data = pieces.at(0);
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("imported");
  for (void* piece : pieces)
    if (piece != data) CUDA_CHECK(cudaFreeAsync(piece, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));  // may give nothing back
  CUDA_CHECK(cudaMemPoolDestroy(pool));    // does not wait
  say("frees the other pieces, trims the pool, destroys it");
  channel.signal("destroyed");

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));  // releases the pool, too
  CUDA_CHECK(cudaStreamSynchronize(nullptr));

  return limited && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  channel.signal("imported");

  channel.wait("destroyed");
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads memory of the destroyed pool: %d wrong", wrong);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("closed");

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
