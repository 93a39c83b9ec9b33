// Lesson 35: share memory by a fabric handle, 64 bytes of plain data.
//
//   exporter                            importer
//   cuMemCreate, map, write
//   cuMemExport...   --- handle ---->   cuMemImport..., map, read,
//                                       write
//   read the         <-- closed -----   unmap, release
//   importer's values
//   unmap, release
//
// Build for two processes of one node:
// nvcc -cudart shared samples/35_fabric_handle/fabric_handle.cu
// Build for two ranks of `mpirun -n 2`, on two nodes of an NVLink
// domain: add -DUSE_MPI -ccbin mpicxx
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/vmm.h"
#include "roles.h"

constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
constexpr char kImex[] = "/dev/nvidia-caps-imex-channels/channel0";
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 3000000;

//! [needs]
// Creates the memory, or says what this process lacks, and skips.
Memory create(size_t bytes, const CUmemAllocationProp& wanted) {
  Memory memory;
  const auto code = until_fabric_is_ready(
      [&] { return DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0); });
  if (code == CUDA_ERROR_NOT_PERMITTED) {
    if (access(kImex, F_OK) == -1)
      skip("no IMEX channel: make %s with mknod", kImex);
    if (access(kImex, R_OK | W_OK) == -1)
      skip("no permission: this user may not open %s", kImex);
    skip("cuMemCreate: %s; does nvidia-imex run?", driver_error(code));
  }
  CU_CHECK(code);
  return memory;
}
//! [needs]

//! [exporter]
int exporter(Channel& channel, Memory memory, size_t bytes) {
  void* data = map_memory(memory, bytes);
  CUDA_CHECK(cudaMemset(data, kPoison, bytes));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  CUmemFabricHandle handle;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&handle, memory,
                                                kFabric, 0));
  say("writes %d values, sends %zu bytes", kCount, sizeof handle);
  channel.send("handle", handle);

  // The 64 bytes do not keep the memory alive. The exporter does.
  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel, size_t bytes) {
  auto handle = channel.receive<CUmemFabricHandle>("handle");
  Memory memory;
  CU_CHECK(until_fabric_is_ready([&] {
    return DRIVER(cuMemImportFromShareableHandle)(&memory, &handle,
                                                  kFabric);
  }));
  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("imports the bytes, reads the exporter's values: %d wrong",
      wrong);

  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  const bool child = is_child(argc, argv);
  require_gpus(1);
  require(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
          "fabric handles");

  // Both roles create memory, to test that both have a channel.
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted = shareable(kFabric);
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  const Memory memory = create(bytes, wanted);
  if (child) {
    CU_CHECK(DRIVER(cuMemRelease)(memory));
    return importer(channel_from_parent(argv), bytes);
  }

  Child other = start_again(argv);
  return other.finish(exporter(other.channel, memory, bytes));
}
