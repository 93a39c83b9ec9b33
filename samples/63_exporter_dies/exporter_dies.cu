// Lesson 63: an exporter is killed, and the importer continues.
//
//   importer                            exporter
//                                       cudaMalloc, write
//                                       cuMemCreate, map, write
//   open, import    <--- memory ------  export both
//   kill it
//   wait until it has ended
//   close the legacy memory unread: its values are undefined
//   read the physical memory: it is unchanged
//
// nvcc -cudart shared samples/63_exporter_dies/exporter_dies.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <csignal>

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1 << 20;
constexpr int kLegacyValue = 1000000;
constexpr int kPhysicalValue = 3000000;

//! [exporter]
int exporter(Channel channel) {
  void* legacy = allocate_values(kCount, kLegacyValue);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, legacy));

  const CUmemAllocationProp wanted = shareable(kFd);
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* physical = map_memory(memory, bytes);
  write_values(physical, kCount, kPhysicalValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  say("shares memory by a legacy handle and by a descriptor");
  channel.send("handle", handle);
  send_memory(channel, memory, bytes);

  channel.wait("end");  // never comes: this process is killed here
  return EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Child& child) {
  const auto handle =
      child.channel.receive<cudaIpcMemHandle_t>("handle");
  void* legacy = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&legacy, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  size_t bytes = 0;
  const Memory memory = receive_memory(child.channel, &bytes);
  void* physical = map_memory(memory, bytes);

  SYS_CHECK(kill(child.pid, SIGKILL));
  SYS_CHECK(waitpid(child.pid, nullptr, 0));
  say("has opened both, and the exporter was killed");

  // The exporter's end has freed this memory: a read is undefined.
  say("closes the legacy memory: [%s]",
      cudaGetErrorName(cudaIpcCloseMemHandle(legacy)));
  const cudaError_t again = cudaIpcOpenMemHandle(
      &legacy, handle, cudaIpcMemLazyEnablePeerAccess);
  say("opens the handle again: [%s]", cudaGetErrorName(again));
  cudaGetLastError();  // clears a refusal
  if (again == cudaSuccess) CUDA_CHECK(cudaIpcCloseMemHandle(legacy));

  // Physical memory has no owner: this process keeps it alive.
  const int wrong = count_wrong(physical, kCount, kPhysicalValue);
  say("reads the physical memory: %d wrong", wrong);
  unmap_memory(physical, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  // Here the exporter is the second process, because it is killed.
  const bool child = is_child(argc, argv);
  role_name() = child ? "exporter" : "importer";
  if (child) return exporter(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  require(
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      "memory as a descriptor");

  Child other = start_again(argv);
  return importer(other);
}
