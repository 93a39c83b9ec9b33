// Lesson 30: share physical memory as a file descriptor.
//
//   exporter                             importer
//   cuMemCreate, map, write
//   cuMemExportTo...  -- number ----->   import: refused
//                     -- SCM_RIGHTS ->   import the descriptor
//                                        map, read, write
//   read the          <- closed ------   unmap, release
//   importer's values
//   unmap, release
//
// nvcc -cudart shared samples/30_vmm_fd/vmm_fd.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

using Memory = CUmemGenericAllocationHandle;  // physical memory
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1000000;
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 3000000;

//! [map]
// New memory has no address, and a new mapping gives no access.
void* map(Memory memory, size_t bytes) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, bytes, 0, memory, 0));

  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, bytes, &access, 1));
  return reinterpret_cast<void*>(address);
}

void unmap(void* data, size_t bytes) {
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  CU_CHECK(DRIVER(cuMemUnmap)(address, bytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, bytes));
}
//! [map]

//! [exporter]
int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = kFd;  // the export needs it

  // Physical memory comes in whole granules.
  size_t granularity = 0;
  CU_CHECK(DRIVER(cuMemGetAllocationGranularity)(
      &granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const size_t bytes = round_up(kCount * sizeof(int), granularity);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));

  void* data = map(memory, bytes);
  CUDA_CHECK(cudaMemset(data, kPoison, bytes));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0));
  say("writes %d values, exports %zu bytes as a descriptor", kCount,
      bytes);
  channel.send("bytes", bytes);
  channel.send("number", fd);
  channel.send_descriptor("memory", fd);  // a copy, by SCM_RIGHTS
  SYS_CHECK(close(fd));  // our own; the copy stays open

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  unmap(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
CUresult import(Memory* memory, int fd) {
  return DRIVER(cuMemImportFromShareableHandle)(
      memory, reinterpret_cast<void*>(intptr_t{fd}), kFd);  // not &fd
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto bytes = channel.receive<size_t>("bytes");
  const int number = channel.receive<int>("number");
  Memory memory;
  const bool good =
      refused("imports the bare number", import(&memory, number));

  const int fd = channel.receive_descriptor("memory");
  CU_CHECK(import(&memory, fd));
  SYS_CHECK(close(fd));  // the import does not close it

  void* data = map(memory, bytes);
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("imports the descriptor, reads the exporter's values: %d wrong",
      wrong);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  unmap(data, bytes);
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
