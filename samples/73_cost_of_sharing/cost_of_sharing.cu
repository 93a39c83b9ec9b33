// Lesson 73: what sharing costs, and what copies cost instead.
//
//   exporter                            importer
//   memory on each GPU, from cudaMalloc,
//   cuMemCreate and a pool
//                 -- three handles -->  open and close: how long?
//                                       copy from each: how fast?
//   copy to the host, send in shared
//   memory or by a socket    -------->  copy to the GPU: how fast?
//   answers         <--- messages --->  message, event, word: how long?
//
// nvcc -cudart shared samples/73_cost_of_sharing/cost_of_sharing.cu
//
// SPDX-License-Identifier: Apache-2.0
#include "../common/data.h"
#include "../common/pool.h"
#include "../common/roles.h"
#include "../common/vmm.h"
#include "figures.h"
#include "otherwise.h"

constexpr int kExporterValue = 1000000;

//! [exporter]
// Lends three kinds of memory on `gpu`. Sends the handles of all three.
void lend(Channel& channel, int gpu, size_t bytes) {
  const int count = bytes / sizeof(int);
  CUmemAllocationProp wanted = shareable();
  wanted.location.id = gpu;
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* mapped = map_memory(memory, bytes);
  write_values(mapped, count, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  send_memory(channel, memory, bytes);

  CUDA_CHECK(cudaSetDevice(gpu));
  void* legacy = allocate_values(count, kExporterValue);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, legacy));
  channel.send("handle", handle);

  const cudaMemPool_t pool =
      create_pool(cudaMemHandleTypePosixFileDescriptor, 0, gpu);
  send_pool(channel, pool);
  void* pooled = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&pooled, bytes, pool, nullptr));
  write_values(pooled, count, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaMemPoolPtrExportData pointer;
  CUDA_CHECK(cudaMemPoolExportPointer(&pointer, pooled));
  channel.send("pointer", pointer);

  channel.wait("closed");
  CUDA_CHECK(cudaFreeAsync(pooled, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  CUDA_CHECK(cudaFree(legacy));
  CUDA_CHECK(cudaSetDevice(0));
  unmap_memory(mapped, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
}
//! [exporter]

//! [importer]
// Opens memory of `gpu` and reads it with GPU 0. Returns how many
// values are wrong.
int borrow(Channel& channel, int gpu, int mib) {
  const auto bytes = channel.receive<size_t>("bytes");
  const int fd = channel.receive_descriptor("memory");
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  const cudaMemPool_t pool = receive_pool(channel);
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, 0},
                                 cudaMemAccessFlagsProtReadWrite};
  CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
  auto pointer = channel.receive<cudaMemPoolPtrExportData>("pointer");

  Memory memory;
  const std::vector<Way> ways = {
      {"memory of its own",
       [&] {
         void* data = nullptr;
         CUDA_CHECK(cudaMalloc(&data, bytes));
         return data;
       },
       [](void* data) { CUDA_CHECK(cudaFree(data)); }},
      {"legacy handle",
       [&] {
         void* data = nullptr;
         CUDA_CHECK(cudaIpcOpenMemHandle(
             &data, handle, cudaIpcMemLazyEnablePeerAccess));
         return data;
       },
       [](void* data) { CUDA_CHECK(cudaIpcCloseMemHandle(data)); }},
      {"descriptor",
       [&] {
         CU_CHECK(import_memory(&memory, fd));
         return map_memory(memory, bytes);
       },
       [&](void* data) {
         unmap_memory(data, bytes);
         CU_CHECK(DRIVER(cuMemRelease)(memory));
       }},
      {"pool pointer",
       [&] {
         void* data = nullptr;
         CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &pointer));
         return data;
       },
       [](void* data) { CUDA_CHECK(cudaFree(data)); }}};

  const int wrong = measure(ways, gpu, mib, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  SYS_CHECK(close(fd));
  channel.signal("closed");
  return wrong;
}
//! [importer]

int exporter(Channel& channel, int gpus) {
  channel.send("gpus", gpus);
  for (int gpu = 0; gpu < gpus; ++gpu)
    for (const int mib : {2, largest_mib()})
      lend(channel, gpu, size_t(mib) << 20);
  send_copies(channel, kExporterValue);
  answer(channel);
  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const int gpus = channel.receive<int>("gpus");
  int wrong = 0;
  for (int gpu = 0; gpu < gpus; ++gpu)
    for (const int mib : {2, largest_mib()})
      wrong += borrow(channel, gpu, mib);
  wrong += receive_copies(channel, kExporterValue);
  ask(channel);
  say("has read all values: %d wrong", wrong);
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");
  // Memory of GPU 1 is measured only if the user asks for it.
  const char* gpus = std::getenv("IPCLAB_COSTS_GPUS");
  const bool two = gpus != nullptr && std::atoi(gpus) > 1;
  if (two) require_gpus(2);

  Child child = start_again(argv);
  return child.finish(exporter(child.channel, two ? 2 : 1));
}
