// Lesson 34: share memory of the host that a CPU and a GPU use.
//
//   exporter                             importer
//   cuMemCreate on a NUMA node
//   map, give the CPU access
//   the CPU writes
//   export            --- memory ----->  import, map, give access
//                                        the CPU reads, a kernel writes
//   the CPU reads     <-- closed ------  unmap, release
//   unmap, release
//
// There is no copy: two processes and a GPU use the same bytes.
//
// nvcc -cudart shared samples/34_host_numa/host_numa.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <numeric>

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000, kImporterValue = 3000000;

//! [access]
// map_memory() gives access only to the GPU.
void give_cpu_access(void* data, size_t bytes, CUmemLocation node) {
  const CUmemAccessDesc access{node,
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(reinterpret_cast<CUdeviceptr>(data),
                                  bytes, &access, 1));
}
//! [access]

//! [exporter]
int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  int id = 0;  // number of the node nearest to the GPU; -1: no NUMA
  CUDA_CHECK(cudaDeviceGetAttribute(&id, cudaDevAttrHostNumaId, 0));
  const CUmemLocation node{CU_MEM_LOCATION_TYPE_HOST_NUMA,
                           id < 0 ? 0 : id};

  CUmemAllocationProp wanted = shareable(kFd);
  wanted.location = node;
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  int* data = static_cast<int*>(map_memory(memory, bytes));
  give_cpu_access(data, bytes, node);
  std::iota(data, data + kCount, kExporterValue);
  say("writes %d values with its CPU", kCount);

  channel.send("node", node);
  send_memory(channel, memory, bytes);

  channel.wait("closed");
  const int wrong = count_wrong_on_host(data, kCount, kImporterValue);
  say("reads the GPU's values with its CPU: %d wrong", wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto node = channel.receive<CUmemLocation>("node");
  size_t bytes = 0;
  const Memory memory = receive_memory(channel, &bytes);

  void* data = map_memory(memory, bytes);
  give_cpu_access(data, bytes, node);
  const int wrong = count_wrong_on_host(data, kCount, kExporterValue);
  say("reads the exporter's values with its CPU: %d wrong", wrong);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  say("writes %d values with a GPU", kCount);

  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
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
  require(
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      "physical memory of the host");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
