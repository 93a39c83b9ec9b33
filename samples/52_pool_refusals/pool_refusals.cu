// Lesson 52: what cannot be shared with pools.
//
//   exporter                             importer
//   export the default pool, memory of
//   cudaMalloc: refused
//   export a pool and a pointer
//                     ---- pool ---->    import standard input: refused
//                                        import the pool
//                     -- pointer --->    import 64 zeros: refused
//                                        export the pool: refused
//                                        import the pointer, read
//   release all       <-- closed ----    release all
//
// nvcc -cudart shared samples/52_pool_refusals/pool_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/pool.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  cudaMemPool_t default_pool;
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&default_pool, 0));
  void *data = nullptr, *other = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  CUDA_CHECK(cudaMalloc(&other, kBytes));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  int fd = -1;
  cudaMemPoolPtrExportData pointer;
  bool good = refused("exports the default pool",
                      export_pool(&fd, default_pool));
  good &= refused("exports memory of cudaMalloc",
                  cudaMemPoolExportPointer(&pointer, other));

  CUDA_CHECK(export_pool(&fd, pool));
  channel.send_descriptor("pool", fd);
  SYS_CHECK(close(fd));
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("closed");
  CUDA_CHECK(cudaFree(other));
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("pool");
  cudaMemPool_t pool;
  bool good = refused("imports its standard input",
                      import_pool(&pool, STDIN_FILENO));
  CUDA_CHECK(import_pool(&pool, fd));
  SYS_CHECK(close(fd));

  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  cudaMemPoolPtrExportData zeros{};
  void* data = nullptr;
  good &= refused("imports 64 zeros",
                  cudaMemPoolImportPointer(&data, pool, &zeros));
  int again = -1;
  good &=
      refused("exports the imported pool", export_pool(&again, pool));

  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("imports the pointer, reads the exporter's values: %d wrong",
      wrong);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("closed");

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
