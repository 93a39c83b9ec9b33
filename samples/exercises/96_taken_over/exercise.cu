// Exercise 96: taken over.
//
// The importer imports a chunk of the exporter as external memory, in
// the way in which it imports memory of Vulkan. (No sentence promises
// that a driver takes a chunk so; driver 580 does.) After the import it
// closes the descriptor, as after cuMemImportFromShareableHandle. Fix
// the importer.
// The exercise fails now because the descriptor is closed twice.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted = shareable();
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* data = map_memory(memory, bytes);
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  send_memory(channel, memory, bytes);

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return exit_code(wrong);
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto bytes = channel.receive<size_t>("bytes");
  const int fd = channel.receive_descriptor("memory");

  cudaExternalMemoryHandleDesc from{};
  from.type = cudaExternalMemoryHandleTypeOpaqueFd;
  from.handle.fd = fd;
  from.size = bytes;
  cudaExternalMemory_t memory = nullptr;
  CUDA_CHECK(cudaImportExternalMemory(&memory, &from));
  SYS_CHECK(close(fd));

  cudaExternalMemoryBufferDesc all{};
  all.size = bytes;
  void* data = nullptr;
  CUDA_CHECK(cudaExternalMemoryGetMappedBuffer(&data, memory, &all));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads the exporter's values: %d wrong", wrong);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaDestroyExternalMemory(memory));
  channel.signal("closed");

  return exit_code(wrong);
}
