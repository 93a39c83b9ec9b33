// Lesson 03: every open needs its close; only the last close unmaps.
//
//   exporter                            importer
//   cudaMalloc, write, close: refused
//   cudaIpcGetMemHandle  -- handle -->  open: a pointer, count 1
//                                       open: the same, count 2
//                                       cudaFree: refused
//                                       close: count 1, still mapped
//                                       read, write
//                                       close: count 0, unmapped
//   read, cudaFree       <- closed ---  close once more: refused
//
// nvcc -cudart shared samples/03_reference_count/reference_count.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 3000000;
constexpr int kImporterValue = 3500000;

bool is_mapped(const void* pointer) {
  cudaPointerAttributes attributes;
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type == cudaMemoryTypeDevice;
}

//! [exporter]
int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kExporterValue);

  // Only an opened pointer can be closed.
  bool good =
      refused("closes its own memory", cudaIpcCloseMemHandle(data));

  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  channel.send("handle", handle);

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("still has its memory: %d values wrong", wrong);
  good &= wrong == 0;
  CUDA_CHECK(cudaFree(data));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* first = nullptr;
  void* second = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&first, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  CUDA_CHECK(cudaIpcOpenMemHandle(&second, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  bool good = first == second;
  say("opens twice, gets %s", good ? "one pointer" : "TWO pointers");

  good &= refused("frees it with cudaFree", cudaFree(first));

  CUDA_CHECK(cudaIpcCloseMemHandle(first));
  const int wrong = count_wrong(second, kCount, kExporterValue);
  say("closes once, still reads the values: %d wrong", wrong);
  good &= wrong == 0;

  write_values(second, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  say("writes %d values of its own", kCount);

  CUDA_CHECK(cudaIpcCloseMemHandle(second));
  const bool mapped = is_mapped(second);
  say("closes twice, the memory is %s",
      mapped ? "STILL mapped" : "not mapped any more");
  good &= !mapped;

  good &= refused("closes a third time", cudaIpcCloseMemHandle(second));
  channel.signal("closed");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
