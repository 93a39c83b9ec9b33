// Lesson 30: share physical memory as a file descriptor.
//
//   exporter                             importer
//   cuMemCreate, map, write
//   cuMemExportTo...  -- number ----->   means nothing here
//                     -- SCM_RIGHTS ->   a descriptor of its own:
//                                        cuMemImport..., close, map
//   read the sums     <- added -------   add with a kernel, unmap
//   unmap, release
//
// nvcc -cudart shared samples/30_vmm_fd/vmm_fd.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <numeric>
#include <vector>

#include "../common/roles.h"

using Memory = CUmemGenericAllocationHandle;  // physical memory
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1 << 20;  // 4 MiB: whole granules, see lesson 00
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1, kFirst = 1000000, kAdded = 7000000;

__global__ void add(int* data, int more) {
  data[blockIdx.x * blockDim.x + threadIdx.x] += more;
}

//! [map]
// Memory has no address by itself, and an address gives no access.
int* map(Memory memory) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, kBytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, kBytes, 0, memory, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, kBytes, &access, 1));
  return reinterpret_cast<int*>(address);
}

void unmap(int* data, Memory memory) {
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  CU_CHECK(DRIVER(cuMemUnmap)(address, kBytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, kBytes));
  CU_CHECK(DRIVER(cuMemRelease)(memory));
}
//! [map]

//! [exporter]
int exporter(Channel& channel) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = kFd;  // or no export later
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  int* data = map(memory);
  std::vector<int> host(kCount);
  std::iota(host.begin(), host.end(), kFirst);
  CUDA_CHECK(cudaMemcpy(data, host.data(), kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaDeviceSynchronize());  // it may end after it returns
  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0));
  say("writes %d values, exports the memory as a descriptor", kCount);
  channel.send("number", fd);
  channel.send_descriptor("descriptor", fd);  // a copy, by SCM_RIGHTS
  SYS_CHECK(close(fd));  // ours; the copy on its way stays open

  channel.wait("added");
  host.assign(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(host.data(), data, kBytes, cudaMemcpyDefault));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i)
    wrong += host[i] != kFirst + i + kAdded;
  say("finds its values plus %d, %d of them wrong", kAdded, wrong);
  unmap(data, memory);
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
CUresult import(Memory* memory, int fd) {  // fd by value, not &fd
  return DRIVER(cuMemImportFromShareableHandle)(
      memory, reinterpret_cast<void*>(intptr_t{fd}), kFd);
}

int importer(Channel channel) {
  Memory memory;
  const int number = channel.receive<int>("number");
  const bool fooled = import(&memory, number) == CUDA_SUCCESS;
  say("importing the bare number %s", fooled ? "WORKS" : "is refused");
  const int fd = channel.receive_descriptor("descriptor");
  CU_CHECK(import(&memory, fd));
  SYS_CHECK(close(fd));  // importing does not take it from us
  int* data = map(memory);
  add<<<kCount / 256, 256>>>(data, kAdded);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  say("imports the descriptor it was sent, adds %d", kAdded);
  unmap(data, memory);
  channel.signal("added");
  return fooled ? EXIT_FAILURE : EXIT_SUCCESS;
}
//! [importer]

int main(int argc, char** argv) {
  const bool child = is_child(argc, argv);
  require_gpus(1);
  CUDA_CHECK(cudaFree(nullptr));  // the driver API wants a context
  if (child) return importer(channel_from_parent(argv));

  require(
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      "memory as a descriptor");
  Child other = start_again(argv);
  const int mine = exporter(other.channel);
  const int theirs = other.wait(10s);
  return mine != EXIT_SUCCESS ? mine : theirs;
}
