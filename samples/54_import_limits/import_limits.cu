// Lesson 54: the only use of an imported pool is to import pointers.
//
//   exporter                        two importers
//   create a pool, allocate, write
//                -- pool, pointer ->  import the pool
//                                     allocate from it: refused
//                                     make it current: refused
//                <---- imported ----  import the pointer
//   the first:   ------- go ------->  read, release all, end
//   the second:  ------- go ------->  read, release all, end
//   free, destroy
//
// nvcc -cudart shared samples/54_import_limits/import_limits.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/pool.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;

//! [exporter]
int exporter(Child& first, Child& second) {
  cudaMemPool_t pool = create_pool();
  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));

  for (Child* importer : {&first, &second}) {
    say("sends the pool and the pointer to an importer");
    send_pool(importer->channel, pool);
    cudaMemPoolPtrExportData pointer;
    CUDA_CHECK(cudaMemPoolExportPointer(&pointer, data));
    importer->channel.send("pointer", pointer);
    importer->channel.wait("imported");
  }

  int theirs = EXIT_SUCCESS;
  for (Child* importer : {&first, &second}) {
    say("lets an importer end");
    importer->channel.signal("go");
    const int code = importer->wait(10s);
    if (code != EXIT_SUCCESS) theirs = code;
  }

  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads its values: %d wrong", wrong);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return wrong == 0 ? theirs : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);

  void* own = nullptr;
  bool good =
      refused("allocates from the imported pool",
              cudaMallocFromPoolAsync(&own, kBytes, pool, nullptr));
  good &= refused("makes it the current pool",
                  cudaDeviceSetMemPool(0, pool));

  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
  channel.signal("imported");

  channel.wait("go");
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child first = start_again(argv);
  Child second = start_again(argv);
  return exporter(first, second);
}
