// Physical memory and a pool on a NUMA node of the host, shared with another
// process. Mirror of samples/34_host_numa. managed_rejection_test judges what
// CPUs alone do with such a pool.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;

void allow_gpu(cudaMemPool_t pool) {
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 0};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  CALL(cudaMemPoolSetAccess(pool, &access, 1));
}

CUmemLocation nearest_node() {
  const int node = attribute(cudaDevAttrHostNumaId);
  return {CU_MEM_LOCATION_TYPE_HOST_NUMA, node < 0 ? 0 : node};
}

// Gives the CPU access. The GPU keeps the access that it has.
void allow_cpu(const Mapping& mapping, CUmemLocation node) {
  const CUmemAccessDesc access{node, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_SUCCESS(
      DRIVER(cuMemSetAccess)(mapping.address(), mapping.bytes(), &access, 1));
  EXPECT_EQ(access_at(mapping.address()), 3u) << "access of the GPU";
}

unsigned long long cpu_access(const Mapping& mapping, CUmemLocation node) {
  Sentinel<unsigned long long> flags;
  CALL(DRIVER(cuMemGetAccess)(flags.out(), &node, mapping.address()));
  return flags.result();
}

// May the CPU read the memory? The kernel reads it for the CPU, so that the
// process goes on if it may not.
bool cpu_may_read(const Mapping& mapping) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reads(ends[0]), writes(ends[1]);
  return write(writes.get(), mapping.data, sizeof(uint32_t)) ==
         sizeof(uint32_t);
}

// Judges that the CPU keeps its access when the GPU gets access again.
void expect_both_have_access(const Mapping& mapping, CUmemLocation node) {
  EXPECT_EQ(cpu_access(mapping, node), 3u);
  const CUmemAccessDesc access = access_for(0);
  EXPECT_SUCCESS(
      DRIVER(cuMemSetAccess)(mapping.address(), mapping.bytes(), &access, 1));
  EXPECT_EQ(cpu_access(mapping, node), 3u) << "after access of the GPU";
  EXPECT_EQ(access_at(mapping.address()), 3u);
}

// Judges that the CPU cannot read the memory after its access was taken, while
// the GPU keeps its access, and that the CPU can have access again.
void expect_access_is_taken(const Mapping& mapping, CUmemLocation node,
                            Pattern written) {
  const CUmemAccessDesc none{node, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  EXPECT_SUCCESS(
      DRIVER(cuMemSetAccess)(mapping.address(), mapping.bytes(), &none, 1));
  EXPECT_EQ(cpu_access(mapping, node), 0u) << "access of the CPU was taken";
  EXPECT_FALSE(cpu_may_read(mapping)) << "access of the CPU was taken";
  EXPECT_EQ(access_at(mapping.address()), 3u) << "access of the GPU";
  EXPECT_TRUE(kernel_reads(mapping, written)) << "access of the GPU";
  allow_cpu(mapping, node);
  ASSERT_TRUE(cpu_may_read(mapping)) << "given again";
  EXPECT_TRUE(host_reads(mapping, written)) << "given again";
}

void expect_location(const Chunk& chunk, CUmemLocation wanted) {
  const CUmemAllocationProp found = chunk.properties();
  EXPECT_EQ(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(found.location.type, wanted.type);
  EXPECT_EQ(found.location.id, wanted.id);
}

// A memset and copies of the GPU reach memory that the CPU also uses.
void expect_copies_and_memsets_arrive(const Words& memory) {
  const DeviceBuffer own(memory.bytes());
  memory.poison();
  CALL(cudaDeviceSynchronize());
  const uint32_t last = memory.data[memory.count - 1];
  EXPECT_EQ(last, 0xEEEEEEEEu) << "set by cudaMemset";
  own.fill(pattern("copied"));
  CALL(cudaMemcpy(memory.data, own.data, memory.bytes(), cudaMemcpyDefault));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(host_reads(memory, pattern("copied")));
  own.poison();
  CALL(cudaMemcpy(own.data, memory.data, memory.bytes(), cudaMemcpyDefault));
  EXPECT_TRUE(kernel_reads(own, pattern("copied")));
  const Stream stream;
  CALL(cudaMemsetAsync(memory.data, 0x3C, memory.bytes(), stream));
  CALL(cudaStreamSynchronize(stream));
  const uint32_t set = memory.data[memory.count - 1];
  EXPECT_EQ(set, 0x3C3C3C3Cu) << "set by cudaMemsetAsync";
  CALL(cudaMemcpyAsync(memory.data, own.data, memory.bytes(), cudaMemcpyDefault,
                       stream));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(host_reads(memory, pattern("copied"))) << "in a stream";
}

// A stream writes words of memory that the CPU also uses.
void expect_words_arrive(const Words& memory) {
  constexpr uint32_t kWritten = 0x1badbad1;
  for (const size_t i : {size_t{0}, memory.count - 1}) {
    const volatile uint32_t* const word = memory.data + i;
    EXPECT_SUCCESS(
        DRIVER(cuStreamWriteValue32)(nullptr, address_of(memory.data + i),
                                     kWritten, CU_STREAM_WRITE_VALUE_DEFAULT));
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(*word, kWritten) << "word " << i;
  }
}

// Judges that the CPU gets access to the second mapping of a chunk only by a
// call for this mapping. The CPU has access to the first mapping.
void expect_access_for_each_mapping(const Chunk& chunk, const Mapping& first,
                                    CUmemLocation node, Pattern written) {
  Mapping second(chunk, first.bytes());
  allow_cpu(first, node);
  EXPECT_EQ(cpu_access(second, node), 0u) << "only the first mapping has it";
  EXPECT_FALSE(cpu_may_read(second)) << "only the first mapping has it";
  allow_cpu(second, node);
  EXPECT_TRUE(host_reads(second, written));
  EXPECT_TRUE(kernel_reads(second, written));
  second.unmap();
  EXPECT_TRUE(host_reads(first, written)) << "the other mapping is gone";
}

}  // namespace

// An importer of memory of a node. It uses the memory by its CPU and by its
// GPU, also when the exporter has given the memory up.
static void uses_memory_of_a_node(Role& me) {
  CALL(cudaFree(nullptr));
  const auto node = me.receive<CUmemLocation>("node");
  const auto bytes = me.receive<size_t>("bytes");
  const Chunk chunk = Chunk::import(me.receive_descriptor("memory"));
  expect_location(chunk, node);
  const Mapping mapping(chunk, bytes);
  EXPECT_EQ(cpu_access(mapping, node), 0u) << "before cuMemSetAccess";
  EXPECT_FALSE(cpu_may_read(mapping)) << "before cuMemSetAccess";
  allow_cpu(mapping, node);
  EXPECT_TRUE(cpu_may_read(mapping));
  expect_both_have_access(mapping, node);
  EXPECT_TRUE(host_reads(mapping, pattern("exporter's GPU")));
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter's GPU")));
  expect_access_for_each_mapping(chunk, mapping, node,
                                 pattern("exporter's GPU"));
  host_writes(mapping, pattern("importer's CPU"));
  me.signal("written by the CPU");
  me.wait("read");
  expect_copies_and_memsets_arrive(mapping);
  expect_words_arrive(mapping);
  mapping.fill(pattern("importer's GPU"));
  me.signal("written by the GPU");
  me.wait("written back");
  EXPECT_TRUE(host_reads(mapping, pattern("exporter's CPU")));
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter's CPU")));
  me.signal("read back");
  me.wait("given up");
  EXPECT_TRUE(host_reads(mapping, pattern("exporter's CPU"))) << "alone";
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter's CPU"))) << "alone";
  expect_access_is_taken(mapping, node, pattern("exporter's CPU"));
  me.signal("done");
}

TEST(HostNuma, CpuAndGpuOfEachProcessUseMemoryOfANode) {
  covers("MNGD-15");
  needs(gpus(1), numa_vmm);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    const CUmemLocation node = nearest_node();
    CUmemAllocationProp wanted = chunk_of(0);
    wanted.location = node;
    const size_t bytes = granule(wanted);
    Chunk chunk = Chunk::create(bytes, wanted);
    Mapping mapping(chunk, bytes);
    allow_cpu(mapping, node);
    mapping.fill(pattern("exporter's GPU"));
    EXPECT_TRUE(host_reads(mapping, pattern("exporter's GPU")));
    // cuMemSetAccess ignores the number of the node.
    allow_cpu(mapping, {node.type, node.id + 1});
    expect_location(chunk, node);
    me.send("node", node);
    me.send("bytes", bytes);
    me.send_descriptor("memory", chunk.descriptor().get());

    me.wait("written by the CPU");
    EXPECT_TRUE(host_reads(mapping, pattern("importer's CPU")));
    EXPECT_TRUE(kernel_reads(mapping, pattern("importer's CPU")));
    me.signal("read");
    me.wait("written by the GPU");
    EXPECT_TRUE(host_reads(mapping, pattern("importer's GPU")));
    EXPECT_TRUE(copy_reads(mapping, pattern("importer's GPU")));
    host_writes(mapping, pattern("exporter's CPU"));
    me.signal("written back");
    me.wait("read back");
    mapping.unmap();
    chunk.release();
    me.signal("given up");
    me.wait("done");
  });

  scenario.role("importer", uses_memory_of_a_node);
  scenario.run(20s);
}

// An exporter of a pool on a node of the host.
static void lends_from_a_pool_of_a_node(Role& me) {
  cudaMemPoolProps wanted{};
  const int node = attribute(cudaDevAttrHostNumaId);
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeHostNuma, node < 0 ? 0 : node};
  wanted.handleTypes = kFd;
  cudaMemPool_t pool = nullptr;
  EXPECT_SUCCESS(cudaMemPoolCreate(&pool, &wanted));
  allow_gpu(pool);
  void* memory = nullptr;
  CALL(cudaMallocFromPoolAsync(&memory, kBytes, pool, nullptr));
  CALL(cudaStreamSynchronize(nullptr));
  const Words words(memory, kBytes);
  words.fill(pattern("exporter's GPU"));
  EXPECT_TRUE(host_reads(words, pattern("exporter's GPU")));

  int number = -1;
  EXPECT_SUCCESS(cudaMemPoolExportToShareableHandle(&number, pool, kFd, 0));
  const Descriptor descriptor(number);
  cudaMemPoolPtrExportData data;
  CALL(cudaMemPoolExportPointer(&data, memory));
  me.send_descriptor("pool", descriptor.get());
  me.send("pointer", data);

  me.wait("freed");
  EXPECT_TRUE(host_reads(words, pattern("importer's GPU")));
  EXPECT_TRUE(kernel_reads(words, pattern("importer's GPU")));
  CALL(cudaFree(memory));
  CALL(cudaMemPoolDestroy(pool));
}

TEST(HostNuma, AGpuOfEachProcessWorksInAPoolOfANode) {
  covers("MNGD-12");
  needs(gpus(1), numa_pools, pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", lends_from_a_pool_of_a_node);

  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const Descriptor descriptor = me.receive_descriptor("pool");
    cudaMemPool_t pool = nullptr;
    CALL(cudaMemPoolImportFromShareableHandle(&pool, by_value(descriptor.get()),
                                              kFd, 0));
    auto data = me.receive<cudaMemPoolPtrExportData>("pointer");
    void* memory = nullptr;
    CALL(cudaMemPoolImportPointer(&memory, pool, &data));
    const Words words(memory, kBytes);
    EXPECT_TRUE(host_reads(words, pattern("exporter's GPU")));

    cudaMemLocation gpu{cudaMemLocationTypeDevice, 0};
    cudaMemAccessFlags flags{};
    CALL(cudaMemPoolGetAccess(&flags, pool, &gpu));
    me.observe("access of the importer's GPU before it asks: " +
               std::to_string(flags));
    allow_gpu(pool);
    EXPECT_TRUE(kernel_reads(words, pattern("exporter's GPU")));
    expect_copies_and_memsets_arrive(words);
    words.fill(pattern("importer's GPU"));
    EXPECT_TRUE(host_reads(words, pattern("importer's GPU")));
    EXPECT_TRUE(copy_reads(words, pattern("importer's GPU")));
    CALL(cudaFree(memory));
    me.signal("freed");
  });
  scenario.run(20s);
}

// The attribute came with CUDA 12.8.
constexpr auto kNodesShare = static_cast<CUdevice_attribute>(143);

static CUmemAllocationProp fabric_memory_of_a_node() {
  CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_FABRIC);
  wanted.location = nearest_node();
  return wanted;
}

// Says what happens where the attribute is 0.
static void tries_fabric_memory_of_a_node(Role& me) {
  const CUmemAllocationProp wanted = fabric_memory_of_a_node();
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = DRIVER(cuMemCreate)(&handle, kBytes, &wanted, 0);
  if (code == CUDA_SUCCESS) CALL(DRIVER(cuMemRelease)(handle));
  me.observe("cuMemCreate of fabric memory on a host NUMA node: " +
             name_of(code));
  me.not_applicable(
      "CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED is 0");
}

TEST(HostNuma, AFabricHandleSharesMemoryOfANode) {
  covers("MNGD-16");
  needs(gpus(1), fabric, numa_vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    const bool nodes_share = attribute(kNodesShare) != 0;
    me.send("nodes share", nodes_share);
    if (!nodes_share) return tries_fabric_memory_of_a_node(me);
    const CUmemAllocationProp wanted = fabric_memory_of_a_node();
    const size_t bytes = granule(wanted);
    const Chunk chunk = Chunk::create(bytes, wanted);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter's GPU"));
    Sentinel<CUmemFabricHandle> handle;
    EXPECT_SUCCESS(DRIVER(cuMemExportToShareableHandle)(
        handle.out(), chunk.handle(), CU_MEM_HANDLE_TYPE_FABRIC, 0));
    me.send("handle", handle.result());
    me.wait("the GPU has written");
    EXPECT_READS(mapping, pattern("importer's GPU"));
    me.signal("read");
    me.wait("the CPU has written");
    EXPECT_READS(mapping, pattern("importer's CPU"));
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    if (!me.receive<bool>("nodes share")) return;
    const auto handle = me.receive<CUmemFabricHandle>("handle");
    const Chunk chunk = Chunk::import(handle);
    EXPECT_EQ(chunk.properties().location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
    const size_t bytes = granule(fabric_memory_of_a_node());
    const Mapping mapping(chunk, bytes);
    EXPECT_READS(mapping, pattern("exporter's GPU"));
    mapping.fill(pattern("importer's GPU"));
    me.signal("the GPU has written");
    me.wait("read");
    allow_cpu(mapping, nearest_node());
    EXPECT_TRUE(host_reads(mapping, pattern("importer's GPU")));
    host_writes(mapping, pattern("importer's CPU"));
    me.signal("the CPU has written");
  });
  scenario.run(20s);
}
