// Lesson 32: what keeps physical memory alive.
//
//   exporter                              importer
//   create 2 GiB, map, write, export
//   unmap, release
//   in use? yes, by the descriptor
//                      -- memory ------>
//   close                                 import, close, map, release
//   in use? yes, by    <- mapped -------
//   the mapping
//                      -- looked ------>  read, unmap
//   in use? no         <- closed -------
//
// nvcc -cudart shared samples/32_vmm_lifetime/vmm_lifetime.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr size_t kBytes = size_t{2} << 30;  // 2 GiB, easy to notice
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;

//! [exporter]
int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const size_t before = free_memory();
  const auto in_use = [before] {
    return free_memory() + kBytes / 2 < before;
  };

  const CUmemAllocationProp wanted = shareable(kFd);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  void* data = map_memory(memory, kBytes);
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0));

  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  const bool by_descriptor = in_use();
  say("has only a descriptor left: the memory is %s",
      by_descriptor ? "in use" : "FREE");
  channel.send_descriptor("memory", fd);
  SYS_CHECK(close(fd));

  channel.wait("mapped");
  const bool by_mapping = in_use();
  say("has nothing, the importer has a mapping: the memory is %s",
      by_mapping ? "in use" : "FREE");
  channel.signal("looked");

  channel.wait("closed");
  const bool back = !in_use();
  say("knows of no reference: the memory is %s",
      back ? "free" : "STILL IN USE");

  const bool good = by_descriptor && by_mapping && back;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const int fd = channel.receive_descriptor("memory");
  Memory memory;
  CU_CHECK(import_memory(&memory, fd));
  SYS_CHECK(close(fd));
  void* data = map_memory(memory, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));  // the mapping is enough
  channel.signal("mapped");

  channel.wait("looked");
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads by its mapping, the last reference: %d wrong", wrong);
  unmap_memory(data, kBytes);
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      "memory as a descriptor");
  require_free_memory(2 * kBytes);  // contexts need memory, too

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
