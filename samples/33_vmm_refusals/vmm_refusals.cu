// Lesson 33: what virtual memory management refuses.
//
//   exporter                             importer
//   cuMemCreate: wrong sizes
//   cuMemExport...: unasked for
//   write             -- descriptor -->  cuMemImport...: descriptors of
//                                        nothing and of other things,
//                                        then the right one
//   read              <-- written -----  read, write
//
// A refusal is an answer, no accident: what was good stays good.
//
// nvcc -cudart shared samples/33_vmm_refusals/vmm_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>

#include "../common/roles.h"

using Memory = CUmemGenericAllocationHandle;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr size_t kBytes = 4 << 20;  // whole granules, see lesson 00
constexpr unsigned char kPoison = 99, kExporter = 11, kImporter = 22;
bool good = true;

void expect_refusal(const char* what, CUresult code) {
  good = good && code != CUDA_SUCCESS;
  say("%-42s %s", what, code != CUDA_SUCCESS ? "refused" : "ACCEPTED");
}

unsigned char* map(Memory memory) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, kBytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, kBytes, 0, memory, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(address, kBytes, &access, 1));
  return reinterpret_cast<unsigned char*>(address);
}

void expect_value(const unsigned char* data, unsigned char expected) {
  unsigned char seen = kPoison;
  CUDA_CHECK(cudaMemcpy(&seen, data, 1, cudaMemcpyDefault));
  good = good && seen == expected;
  say("%-42s %d", "after all this the memory holds", seen);
}

//! [exporter]
int exporter(Channel& channel) {
  const auto create = DRIVER(cuMemCreate);
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  Memory unshared, memory;
  CU_CHECK(create(&unshared, kBytes, &wanted, 0));
  wanted.requestedHandleTypes = kFd;
  expect_refusal("create no bytes", create(&memory, 0, &wanted, 0));
  expect_refusal("create granules and one byte",
                 create(&memory, kBytes + 1, &wanted, 0));
  CU_CHECK(create(&memory, kBytes, &wanted, 0));
  unsigned char* data = map(memory);
  CUDA_CHECK(cudaMemset(data, kExporter, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  int fd = -1;
  CUmemFabricHandle fabric;
  const auto share = DRIVER(cuMemExportToShareableHandle);
  expect_refusal("export with a flag", share(&fd, memory, kFd, 1));
  expect_refusal("export what no export was asked for",
                 share(&fd, unshared, kFd, 0));
  expect_refusal("export as what was not asked for",
                 share(&fabric, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  CU_CHECK(share(&fd, memory, kFd, 0));
  channel.send_descriptor("descriptor", fd);
  channel.wait("written");
  expect_value(data, kImporter);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
CUresult import(Memory* memory, int fd) {
  return DRIVER(cuMemImportFromShareableHandle)(
      memory, reinterpret_cast<void*>(intptr_t{fd}), kFd);
}

int importer(Channel channel) {
  const int fd = channel.receive_descriptor("descriptor");
  Memory memory;
  const std::pair<const char*, int> wrong[] = {
      {"import -1", -1},
      {"import a number that is not open", 1000},
      {"import /dev/null", open("/dev/null", O_RDWR)},
      {"import shared memory of the host", memfd_create("host", 0)},
  };
  for (const auto& [what, number] : wrong)
    expect_refusal(what, import(&memory, number));
  CU_CHECK(import(&memory, fd));
  unsigned char* data = map(memory);
  expect_value(data, kExporter);
  CUDA_CHECK(cudaMemset(data, kImporter, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.signal("written");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
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
