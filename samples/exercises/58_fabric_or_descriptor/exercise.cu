// Exercise 58: fabric, or a descriptor?
//
// The program wants memory with a fabric handle. The attribute is 1,
// but this process has no IMEX channel, so cuMemCreate refuses this
// type. Let create() try one type after the other, and use the first
// type that works. The code that sends each type is already there.
// The exercise fails now with the error code of cuMemCreate.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1 << 18;
constexpr int kValue = 1000000;

// Creates memory for export; sets *type to its handle type.
Memory create(size_t* bytes, CUmemAllocationHandleType* type) {
  Memory memory;
  *type = kFabric;  // TODO: or kFd
  const CUmemAllocationProp wanted = shareable(*type);
  *bytes = whole_granules(kCount * sizeof(int), wanted);
  CU_CHECK(DRIVER(cuMemCreate)(&memory, *bytes, &wanted, 0));
  return memory;
}

int exporter(Channel& channel) {
  size_t bytes = 0;
  CUmemAllocationHandleType type;
  const Memory memory = create(&bytes, &type);
  void* data = map_memory(memory, bytes);
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  say("sends a %s", type == kFabric ? "fabric handle" : "descriptor");
  channel.send("type", type);
  if (type == kFabric) {
    CUmemFabricHandle handle;
    CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&handle, memory,
                                                  kFabric, 0));
    channel.send("bytes", bytes);
    channel.send("handle", handle);
  } else {
    send_memory(channel, memory, bytes);
  }
  channel.wait("closed");
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  Memory memory;
  size_t bytes = 0;
  if (channel.receive<CUmemAllocationHandleType>("type") == kFabric) {
    bytes = channel.receive<size_t>("bytes");
    auto handle = channel.receive<CUmemFabricHandle>("handle");
    CU_CHECK(DRIVER(cuMemImportFromShareableHandle)(&memory, &handle,
                                                    kFabric));
  } else {
    memory = receive_memory(channel, &bytes);
  }
  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the values: %d wrong", wrong);
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
