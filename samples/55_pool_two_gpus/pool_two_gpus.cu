// Lesson 55: use a pool from another GPU.
//
//   exporter, on GPU 0                    importer, on GPU 1
//   create a pool, give GPU 1 access
//                      ----- pool ------>   import: no access here
//   allocate, write    ---- pointer ---->   give access, read, write
//   read, release all  <---- closed ------  release all
//
// nvcc -cudart shared samples/55_pool_two_gpus/pool_two_gpus.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/pool.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 3000000;

//! [access]
bool gpu_1_has_access(cudaMemPool_t pool) {
  cudaMemLocation gpu{cudaMemLocationTypeDevice, 1};
  cudaMemAccessFlags flags;
  CUDA_CHECK(cudaMemPoolGetAccess(&flags, pool, &gpu));
  const bool has = flags == cudaMemAccessFlagsProtReadWrite;
  say("asks the pool: GPU 1 has %s", has ? "access" : "no access");
  return has;
}

void give_gpu_1_access(cudaMemPool_t pool) {
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, 1},
                                 cudaMemAccessFlagsProtReadWrite};
  CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
}
//! [access]

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  give_gpu_1_access(pool);  // in this process
  const bool good = gpu_1_has_access(pool);
  send_pool(channel, pool);

  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  CUDA_CHECK(cudaMemsetAsync(data, kPoison, kBytes, nullptr));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
  channel.send("pointer", pointer);

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaSetDevice(1));
  cudaMemPool_t pool = receive_pool(channel);

  bool good = !gpu_1_has_access(pool);
  give_gpu_1_access(pool);  // to all memory of the pool, now and later
  good &= gpu_1_has_access(pool);

  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads the exporter's values: %d wrong", wrong);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("closed");

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(2);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");
  int can = 0;
  CUDA_CHECK(cudaDeviceCanAccessPeer(&can, 1, 0));
  if (can == 0) skip("GPU 1 cannot access the memory of GPU 0");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
