// Exercise 57: sixty-four bytes keep nothing alive.
//
// A descriptor keeps memory alive until it is closed. A fabric handle
// is only data and keeps nothing alive. The exporter releases its
// memory right after it has sent the handle. Let the exporter release
// the memory later.
// The exercise fails now because the memory is freed before the import.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
constexpr int kCount = 1 << 18;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  const CUmemAllocationProp wanted = shareable(kFabric);
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* data = map_memory(memory, bytes);
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUmemFabricHandle handle;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&handle, memory,
                                                kFabric, 0));
  channel.send("handle", handle);

  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.send("bytes", bytes);
  channel.wait("closed");

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  auto handle = channel.receive<CUmemFabricHandle>("handle");
  const auto bytes = channel.receive<size_t>("bytes");
  Memory memory;
  CU_CHECK(DRIVER(cuMemImportFromShareableHandle)(&memory, &handle,
                                                  kFabric));
  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kValue);
  say("imports the memory, reads the values: %d wrong", wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "fabric");
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
