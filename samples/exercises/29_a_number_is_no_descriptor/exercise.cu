// Exercise 29: a number is no descriptor.
//
// The exporter sends the number of its descriptor. In the importer that
// number belongs to no file, or to another file. A descriptor must be
// sent through a socket as a descriptor: Channel can do that. Fix both
// sides.
// The exercise fails now because CUDA refuses to import this number.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted =
      shareable(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* data = map_memory(memory, bytes);
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(
      &fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  channel.send("bytes", bytes);
  channel.send("memory", fd);
  SYS_CHECK(close(fd));

  channel.wait("closed");
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto bytes = channel.receive<size_t>("bytes");
  const int fd = channel.receive<int>("memory");
  Memory memory;
  CU_CHECK(import_memory(&memory, fd));
  SYS_CHECK(close(fd));

  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);

  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return exit_code(wrong);
}
