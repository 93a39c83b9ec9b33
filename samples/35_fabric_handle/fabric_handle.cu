// Lesson 35: share memory by a fabric handle, 64 bytes of plain data.
//
//   exporter                            importer
//   cuMemCreate, map, cuMemExport...
//                    -- 64 bytes --->   cuMemImport..., map
//   read the sums    <-- added ------   add with a kernel, unmap
//   unmap, release: not before, 64 bytes keep no memory alive
//
// As processes of one node:
// nvcc -cudart shared samples/35_fabric_handle/fabric_handle.cu
// As ranks of `mpirun -n 2`, one a node of an NVLink domain: the same
// with -DUSE_MPI -ccbin mpicxx
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "roles.h"

using Memory = CUmemGenericAllocationHandle;
constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
constexpr char kChannel[] = "/dev/nvidia-caps-imex-channels/channel0";
constexpr int kCount = 1 << 20;  // 4 MiB: whole granules, see lesson 00
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1, kValue = 1000000, kAdded = 7000000;

__global__ void add(int* data, int more) {
  data[blockIdx.x * blockDim.x + threadIdx.x] += more;
}

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

//! [needs]
// Both nodes need the channel, so both ends try to have such memory.
Memory create() {
  require(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
          "fabric handles");
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = kFabric;
  Memory memory;
  const auto code = DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0);
  if (code == CUDA_ERROR_NOT_PERMITTED) {
    if (access(kChannel, F_OK) == -1)
      skip("no IMEX channel: make %s with mknod", kChannel);
    if (access(kChannel, R_OK | W_OK) == -1)
      skip("no permission: this user may not open %s", kChannel);
    skip("cuMemCreate: %s; does nvidia-imex run?", driver_error(code));
  }
  CU_CHECK(code);
  return memory;
}
//! [needs]

//! [exporter]
int exporter(Channel& channel, Memory memory) {
  int* data = map(memory);
  std::vector<int> host(kCount, kValue);
  CUDA_CHECK(cudaMemcpy(data, host.data(), kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaDeviceSynchronize());  // it may end after it returns
  CUmemFabricHandle handle;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&handle, memory,
                                                kFabric, 0));
  say("writes %d values, sends %zu bytes", kCount, sizeof handle);
  channel.send("handle", handle);
  channel.wait("added");
  host.assign(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(host.data(), data, kBytes, cudaMemcpyDefault));
  const auto sums =
      std::count(host.begin(), host.end(), kValue + kAdded);
  say("finds %d more in %td of them", kAdded, sums);
  unmap(data, memory);
  return sums == kCount ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]
//! [importer]
int importer(Channel channel, Memory tried) {
  CU_CHECK(DRIVER(cuMemRelease)(tried));
  auto handle = channel.receive<CUmemFabricHandle>("handle");
  Memory memory;
  CU_CHECK(DRIVER(cuMemImportFromShareableHandle)(&memory, &handle,
                                                  kFabric));
  int* data = map(memory);
  add<<<kCount / 256, 256>>>(data, kAdded);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  say("imports the bytes, adds %d to each value", kAdded);
  unmap(data, memory);
  channel.signal("added");
  return EXIT_SUCCESS;
}
//! [importer]

int main(int argc, char** argv) {
  const bool child = is_child(argc, argv);
  require_gpus(1);
  CUDA_CHECK(cudaFree(nullptr));  // the driver API wants a context
  const Memory memory = create();
  if (child) return importer(channel_from_parent(argv), memory);
  Child other = start_again(argv);
  const int mine = exporter(other.channel, memory);
  const int theirs = other.wait(10s);
  return mine != EXIT_SUCCESS ? mine : theirs;
}
