// Lesson 32: who keeps the memory alive.
//
//   exporter                              importer
//   create 2 GiB, map, write, export
//   unmap, release
//   still there? by the descriptor
//                      -- descriptor -->
//   close                                 import, close, map, release,
//   still there? by a  <- mapped -------  read
//   mapping elsewhere
//                      -- looked ------>  unmap
//   is it back?        <- unmapped -----
//
// nvcc -cudart shared samples/32_vmm_lifetime/vmm_lifetime.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/roles.h"

using Memory = CUmemGenericAllocationHandle;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr size_t kBytes = size_t{2}
                          << 30;  // more than all else changes
constexpr int kPoison = -1, kValue = 4711;

size_t free_memory() {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

CUdeviceptr map(Memory memory) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, kBytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, kBytes, 0, memory, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, kBytes, &access, 1));
  return address;
}

void unmap(CUdeviceptr address) {
  CU_CHECK(DRIVER(cuMemUnmap)(address, kBytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, kBytes));
}

//! [exporter]
int exporter(Channel& channel) {
  const size_t before = free_memory();
  const auto in_use = [=] {
    return free_memory() + kBytes / 2 < before;
  };
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = kFd;
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  const CUdeviceptr address = map(memory);
  CUDA_CHECK(cudaMemcpy(reinterpret_cast<void*>(address), &kValue,
                        sizeof kValue, cudaMemcpyDefault));
  CUDA_CHECK(cudaDeviceSynchronize());  // it may end after it returns
  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0));
  unmap(address);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  const bool by_fd = in_use();
  say("mapping and handle gone, a descriptor left: the memory %s",
      by_fd ? "lives on" : "is LOST");
  channel.send_descriptor("descriptor", fd);
  SYS_CHECK(close(fd));

  channel.wait("mapped");
  const bool by_mapping = in_use();
  say("nothing left here, a mapping elsewhere: the memory %s",
      by_mapping ? "lives on" : "is LOST");
  channel.signal("looked");
  channel.wait("unmapped");
  const bool back = !in_use();
  say("no mapping left: the memory %s", back ? "is back" : "is STUCK");
  return by_fd && by_mapping && back ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("descriptor");
  Memory memory;
  CU_CHECK(DRIVER(cuMemImportFromShareableHandle)(
      &memory, reinterpret_cast<void*>(intptr_t{fd}), kFd));
  SYS_CHECK(close(fd));
  const CUdeviceptr address = map(memory);
  CU_CHECK(DRIVER(cuMemRelease)(memory));  // the mapping is enough
  channel.signal("mapped");
  channel.wait("looked");
  int seen = kPoison;
  CUDA_CHECK(cudaMemcpy(&seen, reinterpret_cast<void*>(address),
                        sizeof seen, cudaMemcpyDefault));
  say("reads %d through the last mapping, unmaps it", seen);
  unmap(address);
  channel.signal("unmapped");
  return seen == kValue ? EXIT_SUCCESS : EXIT_FAILURE;
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
