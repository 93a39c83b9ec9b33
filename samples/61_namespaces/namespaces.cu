// Lesson 61: two processes that do not see each other.
//
//   exporter                             importer
//                                        enter new namespaces
//   cudaMalloc        --- handle ---->   open: may be refused
//   cuMemCreate       --- memory ---->   import, read, write
//   read the          <-- closed -----   release all
//   importer's values
//   release all
//
// nvcc -cudart shared samples/61_namespaces/namespaces.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <sched.h>
#include <sys/mount.h>

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 3000000;

//! [enter]
// Makes a container's namespaces. The fork comes before CUDA starts.
void enter_namespaces() {
  if (unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) == -1)
    skip("unshare of namespaces: %s", std::strerror(errno));
  const pid_t first = fork();  // process 1 in the namespace
  SYS_CHECK(first);
  if (first != 0) _exit(Child{Channel(-1), first}.wait(20s));

  if (mount("", "/", "", MS_REC | MS_PRIVATE, "") == -1 ||
      mount("proc", "/proc", "proc", 0, "") == -1 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "") == -1)
    skip("mount in a namespace: %s", std::strerror(errno));
}
//! [enter]

//! [exporter]
int exporter(Channel& channel) {
  void* legacy = allocate_values(kCount, kExporterValue);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, legacy));

  const CUmemAllocationProp wanted = shareable(kFd);
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* data = map_memory(memory, bytes);
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  channel.send("handle", handle);
  send_memory(channel, memory, bytes);

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  CUDA_CHECK(cudaFree(legacy));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* legacy = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(
      &legacy, handle, cudaIpcMemLazyEnablePeerAccess);
  cudaGetLastError();  // clears the refusal before the next launch
  say("is process %d, opens the legacy handle: [%s]", getpid(),
      cudaGetErrorName(code));
  if (code == cudaSuccess) CUDA_CHECK(cudaIpcCloseMemHandle(legacy));

  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  size_t bytes = 0;
  const Memory memory = receive_memory(channel, &bytes);
  void* data = map_memory(memory, bytes);
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("imports the descriptor, reads the exporter's values: %d wrong",
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
  if (is_child(argc, argv)) {
    enter_namespaces();
    return importer(channel_from_parent(argv));
  }

  // A child tests whether this machine allows namespaces. If not, the
  // lesson skips. The fork has to come before CUDA starts.
  const pid_t attempt = fork();
  SYS_CHECK(attempt);
  if (attempt == 0) {
    enter_namespaces();
    return EXIT_SUCCESS;
  }
  const int code = Child{Channel(-1), attempt}.wait(20s);
  if (code != EXIT_SUCCESS) return code;

  require_gpus(1);
  require_legacy_ipc();
  require(
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      "memory as a descriptor");

  Child other = start_again(argv);
  return other.finish(exporter(other.channel));
}
