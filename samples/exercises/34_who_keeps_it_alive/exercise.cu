// Exercise 34: predict what keeps physical memory alive.
//
// The exporter has 2 GiB and releases its references step by step:
// first the mapping and the handle, then the descriptor. Is the memory
// still in use after each step? Write kYes or kNo for each question,
// and then run the program. The exercise fails now because no question
// is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kInUseByTheDescriptor = kUnknown;
constexpr Answer kInUseByTheImportersMapping = kUnknown;
constexpr Answer kInUseAfterTheImportersUnmap = kUnknown;

constexpr size_t kBytes = size_t{2} << 30;  // clear in free_memory()
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  require_free_memory(2 * kBytes);
  const size_t before = free_memory();
  const auto in_use = [before] {
    return free_memory() + kBytes / 2 < before;
  };

  const CUmemAllocationProp wanted = shareable(kFd);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  void* data = map_memory(memory, kBytes);
  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0));

  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  bool good = predicted("A descriptor is left. In use?",
                        kInUseByTheDescriptor, in_use());
  channel.send_descriptor("memory", fd);
  SYS_CHECK(close(fd));

  channel.wait("mapped");
  good &= predicted("Only the importer's mapping is left. In use?",
                    kInUseByTheImportersMapping, in_use());
  channel.signal("looked");

  channel.wait("closed");
  good &= predicted("The importer has unmapped its memory. In use?",
                    kInUseAfterTheImportersUnmap, in_use());

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const int fd = channel.receive_descriptor("memory");
  Memory memory;
  CU_CHECK(import_memory(&memory, fd));
  SYS_CHECK(close(fd));
  void* data = map_memory(memory, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("mapped");

  channel.wait("looked");
  unmap_memory(data, kBytes);
  channel.signal("closed");

  return EXIT_SUCCESS;
}
