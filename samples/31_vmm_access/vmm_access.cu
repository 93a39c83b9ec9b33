// Lesson 31: access belongs to the mapping, not to the memory.
//
//   exporter                            importer
//   create, map read-write, write
//                    -- descriptor -->  map twice: a window (read) and
//                                       a door (read and write);
//                                       look, change, look again
//   find the change  <-- changed -----
//                    --- seen ------->  write through the window: the
//   find no change   <-- faulted -----  kernel faults, context lost
//
// nvcc -cudart shared samples/31_vmm_access/vmm_access.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/roles.h"

using Memory = CUmemGenericAllocationHandle;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
constexpr CUmemLocation kGpu{CU_MEM_LOCATION_TYPE_DEVICE, 0};
constexpr size_t kBytes = 4 << 20;  // whole granules, see lesson 00
constexpr int kPoison = -1, kFirst = 111, kChanged = 222,
              kForbidden = 333;

__global__ void write_value(int* data, int value) { *data = value; }

int value_at(const int* data) {
  int seen = kPoison;
  CUDA_CHECK(cudaMemcpy(&seen, data, sizeof seen, cudaMemcpyDefault));
  return seen;
}

//! [map]
int* map(Memory memory, CUmemAccess_flags flags) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, kBytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, kBytes, 0, memory, 0));
  unsigned long long before = 9, after = 9;
  CU_CHECK(DRIVER(cuMemGetAccess)(&before, &kGpu, address));
  const CUmemAccessDesc access{kGpu, flags};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, kBytes, &access, 1));
  CU_CHECK(DRIVER(cuMemGetAccess)(&after, &kGpu, address));
  say("maps the memory, access %llu; sets it to %llu", before, after);
  return reinterpret_cast<int*>(address);
}
//! [map]

//! [exporter]
int exporter(Channel& channel) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = kGpu;
  wanted.requestedHandleTypes = kFd;
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  int* data = map(memory, kReadWrite);
  write_value<<<1, 1>>>(data, kFirst);
  CUDA_CHECK(cudaDeviceSynchronize());
  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, memory, kFd, 0));
  channel.send_descriptor("descriptor", fd);
  SYS_CHECK(close(fd));

  channel.wait("changed");
  const int changed = value_at(data);
  channel.signal("seen");
  channel.wait("faulted");
  const int last = value_at(data);
  say("found %d, and now %d; its own context is good", changed, last);
  CU_CHECK(DRIVER(cuMemUnmap)((CUdeviceptr)data, kBytes));
  CU_CHECK(DRIVER(cuMemAddressFree)((CUdeviceptr)data, kBytes));
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  return changed == kChanged && last == kChanged ? EXIT_SUCCESS
                                                 : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("descriptor");
  Memory memory;
  CU_CHECK(DRIVER(cuMemImportFromShareableHandle)(
      &memory, reinterpret_cast<void*>(intptr_t{fd}), kFd));
  SYS_CHECK(close(fd));
  int* window = map(memory, kRead);
  int* door = map(memory, kReadWrite);
  const int first = value_at(window);
  write_value<<<1, 1>>>(door, kChanged);
  CUDA_CHECK(cudaDeviceSynchronize());
  const int changed = value_at(window);
  say("sees %d through the window, writes %d through the door, sees %d",
      first, kChanged, changed);
  channel.signal("changed");
  channel.wait("seen");

  write_value<<<1, 1>>>(window, kForbidden);
  const cudaError_t fault = cudaDeviceSynchronize();
  say("writes %d through the window: %s", kForbidden,
      cudaGetErrorName(fault));
  channel.signal("faulted");  // a lost context releases nothing more
  const bool faulted = fault == cudaErrorIllegalAddress;
  return first == kFirst && changed == kChanged && faulted ? 0 : 1;
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
