// Lesson 33: a refused call changes nothing.
//
//   exporter                             importer
//   wrong create and export: refused
//   create, write, wrong export: refused
//   export            --- memory ----->  wrong imports: refused
//                                        import, read
//   unmap, release    <-- closed ------  unmap, release
//
// nvcc -cudart shared samples/33_vmm_refusals/vmm_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;

//! [exporter]
int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  CUmemAllocationProp wanted = shareable(CU_MEM_HANDLE_TYPE_NONE);
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory, unshared;
  bool good =
      refused("creates one byte too many",
              DRIVER(cuMemCreate)(&memory, bytes + 1, &wanted, 0));

  CU_CHECK(DRIVER(cuMemCreate)(&unshared, bytes, &wanted, 0));
  const auto export_as = DRIVER(cuMemExportToShareableHandle);
  int fd = -1;
  good &= refused("exports memory without a handle type",
                  export_as(&fd, unshared, kFd, 0));
  CU_CHECK(DRIVER(cuMemRelease)(unshared));

  wanted.requestedHandleTypes = kFd;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* data = map_memory(memory, bytes);
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  good &= refused("exports with a flag that is reserved",
                  export_as(&fd, memory, kFd, 1));

  CU_CHECK(export_as(&fd, memory, kFd, 0));
  channel.send("bytes", bytes);
  channel.send_descriptor("memory", fd);
  SYS_CHECK(close(fd));

  channel.wait("closed");
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto bytes = channel.receive<size_t>("bytes");
  const int fd = channel.receive_descriptor("memory");

  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  SYS_CHECK(file);
  Memory memory;
  bool good = refused("imports -1", import_memory(&memory, -1));
  good &= refused("imports /dev/null", import_memory(&memory, file));
  SYS_CHECK(close(file));

  CU_CHECK(import_memory(&memory, fd));
  SYS_CHECK(close(fd));
  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("imports the memory, reads the exporter's values: %d wrong",
      wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      "memory as a descriptor");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
