// Lesson 20: managed memory cannot be shared; share a copy.
//
//   exporter                            importer
//   cudaMallocManaged, the CPU writes
//   export managed memory: refused
//   cudaMalloc, copy into it
//   cudaIpcGetMemHandle  -- handle -->  open, read, write
//   copy back            <- closed ---  close
//   the CPU reads
//
// nvcc -cudart shared samples/20_managed_rejection/managed_rejection.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kExporterValue = 2000000;
constexpr int kImporterValue = 3000000;

__managed__ int variable;

//! [exporter]
int exporter(Channel& channel) {
  int* managed = nullptr;
  CUDA_CHECK(cudaMallocManaged(&managed, kBytes));
  for (int i = 0; i < kCount; ++i) managed[i] = kExporterValue + i;

  // Managed memory moves between host and GPU. It has no handle.
  cudaIpcMemHandle_t handle;
  bool good = refused("exports memory of cudaMallocManaged",
                      cudaIpcGetMemHandle(&handle, managed));
  good &= refused("exports a __managed__ variable",
                  cudaIpcGetMemHandle(&handle, &variable));

  // Memory of cudaMalloc stays on its GPU. It has a handle.
  void* data = allocate_values(kCount, kOldValue);
  CUDA_CHECK(cudaMemcpy(data, managed, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaDeviceSynchronize());  // the copy may still run
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  say("copies %d values into memory of cudaMalloc, exports it", kCount);
  channel.send("handle", handle);

  channel.wait("closed");
  CUDA_CHECK(cudaMemcpy(managed, data, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaDeviceSynchronize());
  const int wrong =
      count_wrong_on_host(managed, kCount, kImporterValue);
  say("copies back, its CPU reads the importer's values: %d wrong",
      wrong);
  good &= wrong == 0;

  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaFree(managed));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("opens the handle, reads the exporter's values: %d wrong", wrong);

  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  require(cudaDevAttrManagedMemory, "managed memory");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
