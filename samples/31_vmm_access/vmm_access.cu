// Lesson 31: access belongs to the mapping, not to the memory.
//
//   exporter                            importer
//   create, map read-write, write
//                    --- memory ----->  map read-only, and once more
//                                       read-write
//                                       write by the second mapping,
//                                       read by the first
//                                       write by the first mapping:
//   read             <-- faulted -----  a fault, the context is lost
//   unmap, release
//
// nvcc -cudart shared samples/31_vmm_access/vmm_access.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
constexpr CUmemLocation kGpu{CU_MEM_LOCATION_TYPE_DEVICE, 0};

constexpr int kExporterValue = 111;
constexpr int kImporterValue = 222;
constexpr int kForbiddenValue = 333;

int value_at(const void* data) {
  int value = kPoison;
  CUDA_CHECK(cudaMemcpy(&value, data, sizeof value, cudaMemcpyDefault));
  return value;
}

// Writes one value and waits. The check after the launch can already
// return the fault of the kernel, so neither call is in CUDA_CHECK.
cudaError_t try_to_write(void* data, int value) {
  write_values_kernel<<<1, 1>>>(static_cast<unsigned*>(data), 1, value,
                                1);
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? cudaDeviceSynchronize() : code;
}

//! [map]
void* map(Memory memory, size_t bytes, CUmemAccess_flags flags) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, bytes, 0, memory, 0));
  unsigned long long before = 0;
  CU_CHECK(DRIVER(cuMemGetAccess)(&before, &kGpu, address));

  const CUmemAccessDesc access{kGpu, flags};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, bytes, &access, 1));
  unsigned long long after = 0;
  CU_CHECK(DRIVER(cuMemGetAccess)(&after, &kGpu, address));

  say("maps with access %llu, sets it to %llu", before, after);
  return reinterpret_cast<void*>(address);
}
//! [map]

//! [exporter]
int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted = shareable(kFd);
  const size_t bytes = whole_granules(sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  void* data = map(memory, bytes, kReadWrite);
  write_values(data, 1, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  send_memory(channel, memory, bytes);

  channel.wait("faulted");
  const int value = value_at(data);
  say("reads %d, its own context is good", value);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return value == kImporterValue ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  size_t bytes = 0;
  const Memory memory = receive_memory(channel, &bytes);
  void* read_only = map(memory, bytes, kRead);
  void* writable = map(memory, bytes, kReadWrite);

  bool good = value_at(read_only) == kExporterValue;
  write_values(writable, 1, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  const int value = value_at(read_only);
  say("writes %d by one mapping, reads %d by the other", kImporterValue,
      value);
  good &= value == kImporterValue;

  const cudaError_t fault = try_to_write(read_only, kForbiddenValue);
  say("writes %d by the read-only mapping: %s", kForbiddenValue,
      cudaGetErrorName(fault));
  good &= fault == cudaErrorIllegalAddress;

  // The context is lost, so unmap and release would fail. The end of
  // the process does both.
  channel.signal("faulted");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
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
