// Access of other GPUs and of other locations.
// Mirror of samples/31_vmm_access.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cstddef>
#include <string>

#include "conformance/31_vmm_access/vmm_access_test.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr int kNoSuchDevice = 999;

__global__ void store(volatile uint32_t* data) { data[0] = kLanded; }

}  // namespace

// Access for reading only belongs to one GPU. GPU 1 is current. A write of it
// must fault, and its context is lost.
static void expect_one_gpu_only_reads(Role& me, const Mapped& mapped,
                                      size_t bytes) {
  const CUmemAccessDesc list[] = {access_for(0), access_for(1, kRead)};
  const CUresult code =
      NOTED(DRIVER(cuMemSetAccess)(mapped.address(), bytes, list, 2));
  if (code == CUDA_ERROR_NOT_SUPPORTED) return;
  CALL(code);
  EXPECT_EQ(access_at(mapped.address(), 0), 3u);
  EXPECT_EQ(access_at(mapped.address(), 1), 1u) << "GPU 1 may only read";
  EXPECT_EQ(access_told(mapped.address()), 1u) << "GPU 1 is current";
  EXPECT_TRUE(
      kernel_reads(words_at(mapped.address(), bytes), pattern("by GPU 1")));
  CALL(set_access(mapped.address(), bytes, access_for(1)));
  CALL(set_access(mapped.address(), bytes, access_for(1, kRead)));
  store<<<1, 1>>>(pointer_to(mapped.address()));
  expect_fault(me, "store<<<>>> by GPU 1, which may only read");
}

// Copies of memory of GPU 0 with the pattern "by GPU 1" to memory of GPU 1,
// which is current and has access to both; GPU 0 gets access on the way.
static void expect_copies_to_gpu_1(Role& me, const Mapping& mapping) {
  const size_t bytes = mapping.bytes();
  const DeviceBuffer copy(bytes);
  EXPECT_SUCCESS(
      cudaMemcpy(copy.data, mapping.data, bytes, cudaMemcpyDeviceToDevice));
  EXPECT_TRUE(kernel_reads(copy, pattern("by GPU 1")));
  // No sentence says what a copy does that names a GPU without access.
  me.observe("a peer copy from GPU 0, which has no access to the mapping: " +
             name_of(NOTED(cudaMemcpyPeerAsync(copy.data, 1, mapping.data, 0,
                                               bytes, nullptr))));
  cudaGetLastError();
  EXPECT_TRUE(kernel_reads(copy, pattern("by GPU 1")));
  EXPECT_SUCCESS(set_access(mapping.address(), bytes, access_for(0)));
  EXPECT_EQ(access_at(mapping.address(), 0), 3u);
  EXPECT_EQ(access_at(mapping.address(), 1), 3u) << "given before";
  CALL(cudaMemsetAsync(copy.data, 0, bytes, nullptr));
  EXPECT_SUCCESS(
      cudaMemcpyPeerAsync(copy.data, 1, mapping.data, 0, bytes, nullptr));
  EXPECT_TRUE(kernel_reads(copy, pattern("by GPU 1")));
}

TEST(VmmAccess, AnotherDeviceNeedsNothingButSetAccess) {
  covers("VMM-33");
  needs(gpus(2), vmm_fd, peer_access);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes, chunk_of(0));
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    CALL(cudaSetDevice(1));  // an export works with any GPU current
    me.send_descriptor("descriptor", chunk.descriptor().get());
    CALL(cudaSetDevice(0));
    me.wait("done");
    EXPECT_TRUE(kernel_reads(mapping, pattern("by GPU 1")));
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaSetDevice(1));
    const size_t bytes = granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping mapping(chunk, bytes, kReadWrite, 1);
    EXPECT_EQ(access_at(mapping.address(), 1), 3u);
    EXPECT_EQ(access_at(mapping.address(), 0), kNone);
    // Peer access, and its end, do not change what cuMemSetAccess has given.
    EXPECT_SUCCESS(cudaDeviceEnablePeerAccess(0, 0));
    EXPECT_SUCCESS(cudaDeviceDisablePeerAccess(0));
    EXPECT_EQ(access_at(mapping.address(), 1), 3u);
    EXPECT_READS(mapping, pattern("exporter"));
    CALL(cudaMemset(mapping.data, 0x3C, bytes));
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, mapping.data, sizeof word, cudaMemcpyDefault));
    EXPECT_EQ(word, 0x3C3C3C3Cu) << "set by GPU 1";
    for (const int device : {0, 1})  // GPU 1 is current
      EXPECT_EQ(Chunk::create(bytes, chunk_of(device)).properties().location.id,
                device);
    mapping.fill(pattern("by GPU 1"));
    expect_copies_to_gpu_1(me, mapping);
    const Mapped both(chunk, bytes);
    const CUmemAccessDesc list[] = {access_for(0), access_for(1)};
    EXPECT_SUCCESS(DRIVER(cuMemSetAccess)(both.address(), bytes, list, 2));
    for (const int device : {0, 1})
      EXPECT_EQ(access_at(both.address(), device), 3u) << "GPU " << device;
    const CUmemAccessDesc unlike[] = {
        access_for(0), access_for(1, CU_MEM_ACCESS_FLAGS_PROT_NONE)};
    EXPECT_SUCCESS(DRIVER(cuMemSetAccess)(both.address(), bytes, unlike, 2));
    EXPECT_EQ(access_at(both.address(), 0), 3u);
    EXPECT_EQ(access_at(both.address(), 1), kNone) << "taken by the same list";
    expect_one_gpu_only_reads(me, both, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}

// An importer of memory of GPU `on`. First the other GPU and then GPU `on` uses
// the memory.
static void uses_memory_by_both_gpus(Role& me, int on) {
  const size_t bytes = granule(chunk_of(on));
  const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
  EXPECT_EQ(chunk.properties().location.id, on);
  for (const int by : {1 - on, on}) {
    SCOPED_TRACE("by GPU " + std::to_string(by));
    CALL(cudaSetDevice(by));
    const Mapping mapping(chunk, bytes, kReadWrite, by);
    EXPECT_EQ(pointer_attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                     mapping.data),
              on);
    EXPECT_TRUE(kernel_reads(
        mapping, pattern(by == on ? "by the other GPU" : "exporter")));
    mapping.fill(pattern(by == on ? "importer" : "by the other GPU"));
  }
  me.signal("done");
}

TEST(VmmAccess, MemoryOfEitherGpuIsShared) {
  covers("VMM-33");
  needs(gpus(2), vmm_fd, peer_access);
  for (const int on : {0, 1}) {
    SCOPED_TRACE("memory of GPU " + std::to_string(on));
    Scenario scenario(Scenario::kShared);
    scenario.role("exporter", [on](Role& me) {
      CALL(cudaSetDevice(on));
      const size_t bytes = granule(chunk_of(on));
      const Chunk chunk = Chunk::create(bytes, chunk_of(on));
      const Mapping mapping(chunk, bytes, kReadWrite, on);
      mapping.fill(pattern("exporter"));
      me.send_descriptor("descriptor", chunk.descriptor().get());
      me.wait("done");
      EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
    });
    scenario.role("importer",
                  [on](Role& me) { uses_memory_by_both_gpus(me, on); });
    scenario.run(20s);
  }
}

TEST(VmmAccess, UnsuitableLocationsGetNoAccess) {
  covers("VMM-34");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const size_t bytes = granule();
    const Mapped mapped(
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)), bytes);
    const auto expect_refusal = [&](const char* what,
                                    CUmemLocationType location, int id) {
      SCOPED_TRACE(what);
      CUmemAccessDesc access{};
      access.location = {location, id};
      access.flags = kReadWrite;
      EXPECT_REFUSED(
          DRIVER(cuMemSetAccess)(mapped.address(), bytes, &access, 1),
          CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE,
          CUDA_ERROR_NOT_SUPPORTED);
    };
    expect_refusal("an ordinal that is too large", CU_MEM_LOCATION_TYPE_DEVICE,
                   kNoSuchDevice);
    expect_refusal("a negative ordinal", CU_MEM_LOCATION_TYPE_DEVICE, -1);
    expect_refusal("a host NUMA node, for memory of a device",
                   CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    int count = 0;
    CALL(cudaGetDeviceCount(&count));
    expect_refusal("the ordinal after the last one",
                   CU_MEM_LOCATION_TYPE_DEVICE, count);
    EXPECT_EQ(access_at(mapped.address()), kNone);
    const CUmemAccessDesc list[] = {access_for(0), access_for(kNoSuchDevice)};
    EXPECT_REFUSED(DRIVER(cuMemSetAccess)(mapped.address(), bytes, list, 2),
                   CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE,
                   CUDA_ERROR_NOT_SUPPORTED)
        << "the second location of a list";
    EXPECT_TRUE(context_is_usable());
    allow(mapped.address(), bytes);
    const Words words = words_at(mapped.address(), bytes);
    words.fill(pattern("exporter"));
    expect_refusal("memory with access", CU_MEM_LOCATION_TYPE_DEVICE,
                   kNoSuchDevice);
    EXPECT_EQ(access_at(mapped.address()), 3u) << "after the refusal";
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
  });
  scenario.run(20s);
}

TEST(VmmAccess, OnlyPeersGetAccess) {
  covers("VMM-34");
  needs(gpus(2), vmm);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    int peers = 0;
    CALL(cudaDeviceCanAccessPeer(&peers, 1, 0));
    const size_t bytes = granule();
    const Mapped mapped(
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)), bytes);
    const CUmemAccessDesc access = access_for(1);
    if (peers == 1) return me.not_applicable("GPU 1 reaches GPU 0");
    EXPECT_REFUSED(DRIVER(cuMemSetAccess)(mapped.address(), bytes, &access, 1),
                   CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE,
                   CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(access_at(mapped.address(), 1), kNone);
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}
