// Memory that must not be shared by a legacy handle, and what its attributes
// say. Mirror of samples/20_managed_rejection.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kFdAndFabric = static_cast<cudaMemAllocationHandleType>(
    cudaMemHandleTypePosixFileDescriptor | cudaMemHandleTypeFabric);

constexpr size_t kWordsOfVariable = 1024;
__managed__ uint32_t managed_words[kWordsOfVariable];
__device__ uint32_t device_words[kWordsOfVariable];

// CUDA's answers about a pointer; all zero if CUDA does not know the pointer.
struct Attributes {
  unsigned legacy = 0;
  unsigned long long types = 0;
  CUmemoryPool pool = nullptr;
};
Attributes attributes_of(const void* pointer) {
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  Attributes said;
  void* values[] = {&said.legacy, &said.types, &said.pool};
  CALL(DRIVER(cuPointerGetAttributes)(3, which, values, address_of(pointer)));
  return said;
}

// Judges that neither API makes a handle of this memory, and that the context
// stays usable. Tries it again in another thread, after an export that
// succeeds. No sentence says which code of the documented list it must be.
void expect_no_handle(Role& me, const std::string& kind, void* pointer) {
  SCOPED_TRACE(kind);
  const auto runtime = {cudaErrorInvalidValue, cudaErrorNotSupported};
  const auto driver = {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE};
  Sentinel<cudaIpcMemHandle_t> handle;
  const cudaError_t code = NOTED(cudaIpcGetMemHandle(handle.out(), pointer));
  me.tabulate("cudaIpcGetMemHandle of other memory", kind,
              outcome_of<cudaError_t>(code, runtime));
  EXPECT_TRUE(refused(code, "cudaIpcGetMemHandle", runtime));

  Sentinel<CUipcMemHandle> same;
  const CUresult result =
      NOTED(DRIVER(cuIpcGetMemHandle)(same.out(), address_of(pointer)));
  me.tabulate("cuIpcGetMemHandle of other memory", kind,
              outcome_of<CUresult>(result, driver));
  EXPECT_TRUE(refused(result, "cuIpcGetMemHandle", driver));

  const DeviceBuffer exportable(4096);
  exportable.legacy_handle();
  in_a_thread([&] {
    Sentinel<cudaIpcMemHandle_t> later;
    EXPECT_TRUE(refused(NOTED(cudaIpcGetMemHandle(later.out(), pointer)),
                        "cudaIpcGetMemHandle in another thread", runtime));
    Sentinel<CUipcMemHandle> same_later;
    EXPECT_TRUE(refused(
        NOTED(DRIVER(cuIpcGetMemHandle)(same_later.out(), address_of(pointer))),
        "cuIpcGetMemHandle in another thread", driver));
    return cudaSuccess;
  });
  EXPECT_TRUE(context_is_usable());
}

// Tries to export something else than memory of cudaMalloc. The caller must not
// do this, and no sentence says what the calls answer. Right exports work
// afterwards.
void try_export(Role& me, const std::string& kind, void* pointer) {
  SCOPED_TRACE(kind);
  const DeviceBuffer right(4096);
  by_both_apis([&](auto api) {
    Sentinel<cudaIpcMemHandle_t> handle;
    me.tabulate(std::string(api.kName) + ": legacy handle of other memory",
                kind,
                outcome_of(api.ipc_get_mem_handle(handle.out(), pointer),
                           {api.kInvalidValue}));
    cudaGetLastError();
    EXPECT_SUCCESS(api.ipc_get_mem_handle(handle.out(), right.data));
  });
  EXPECT_TRUE(context_is_usable());
}

// Judges that the attribute says that this memory is not IPC capable, and that
// the export is refused.
void expect_not_legacy(Role& me, const std::string& kind, void* pointer) {
  EXPECT_EQ(attributes_of(pointer).legacy, 0u) << kind;
  expect_no_handle(me, kind, pointer);
}

// The documentation does not say whether memory of a pool that can be shared
// has a legacy handle. Judges that the attribute says what the exports do.
void expect_as_said(Role& me, const std::string& kind, void* pointer) {
  if (attributes_of(pointer).legacy == 0) {
    expect_no_handle(me, kind, pointer);
    return;
  }
  me.observe(kind + ": capable of legacy IPC");
  by_both_apis([&](auto api) {
    Sentinel<cudaIpcMemHandle_t> handle;
    EXPECT_SUCCESS(api.ipc_get_mem_handle(handle.out(), pointer)) << kind;
  });
  EXPECT_TRUE(context_is_usable());
}

// Judges that memory of a pool that cannot be shared is not exported: neither
// as a pointer of a pool nor, where the GPU has them, by a legacy handle.
void expect_not_exported(Role& me, const std::string& kind, void* memory) {
  by_both_apis([&](auto api) {
    Sentinel<cudaMemPoolPtrExportData> data;
    EXPECT_CODE(api.kInvalidValue,
                api.mem_pool_export_pointer(data.out(), memory))
        << kind;
  });
  if (attribute(cudaDevAttrIpcEventSupport) == 1)
    expect_no_handle(me, kind, memory);
}

// Judges that host and GPU can both use the memory: each reads what the other
// one wrote.
void expect_usable_on_both_sides(const Words& words) {
  host_writes(words, pattern("host"));
  EXPECT_TRUE(kernel_reads(words, pattern("host")));
  words.fill(pattern("device"));
  EXPECT_TRUE(host_reads(words, pattern("device")));
}

cudaMemPoolProps pool_at(cudaMemLocation location,
                         cudaMemAllocationHandleType types) {
  cudaMemPoolProps wanted = pool_properties(types);
  wanted.location = location;
  return wanted;
}
// The NUMA node that is nearest to GPU 0; 0 if the attribute names none.
int numa_node() { return std::max(attribute(cudaDevAttrHostNumaId), 0); }

// An allocation that its stream has already made.
AsyncBuffer allocated_from(const Pool& pool) {
  AsyncBuffer buffer(pool, kBytes);
  CALL(cudaStreamSynchronize(nullptr));
  return buffer;
}

// Judges that no handle type is accepted, and not two of them. The
// documentation names exactly one code.
void expect_not_shareable(cudaMemPoolProps wanted) {
  for (const auto type : {cudaMemHandleTypePosixFileDescriptor,
                          cudaMemHandleTypeFabric, kFdAndFabric}) {
    SCOPED_TRACE("handle type " + std::to_string(type));
    wanted.handleTypes = type;
    by_both_apis([&](auto api) {
      Sentinel<cudaMemPool_t> pool;
      EXPECT_CODE(api.kInvalidValue, api.mem_pool_create(pool.out(), wanted));
    });
  }
}

}  // namespace

TEST(ManagedRejection, ManagedMemoryHasNoHandle) {
  covers("MNGD-01");
  needs(gpus(1), legacy_memory, managed);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    void* memory = nullptr;
    CALL(cudaMallocManaged(&memory, kBytes, cudaMemAttachGlobal));
    expect_no_handle(me, "cudaMallocManaged, cudaMemAttachGlobal", memory);
    expect_no_handle(me, "an address inside managed memory",
                     static_cast<char*>(memory) + kBytes / 2);
    expect_usable_on_both_sides(Words(memory, kBytes));
    expect_no_handle(me, "managed memory that was used", memory);
    if (attribute(cudaDevAttrConcurrentManagedAccess) == 1) {
      CALL(move_to_gpu(memory, kBytes, 0));
      CALL(cudaStreamSynchronize(nullptr));
      expect_no_handle(me, "managed memory on the GPU", memory);
    }
    CALL(cudaFree(memory));

    CALL(cudaMallocManaged(&memory, kBytes, cudaMemAttachHost));
    expect_no_handle(me, "cudaMallocManaged, cudaMemAttachHost", memory);
    const Words words(memory, kBytes);
    host_writes(words, pattern("host"));
    EXPECT_TRUE(copy_reads(words, pattern("host")));
    EXPECT_TRUE(host_reads(words, pattern("host")));
    CALL(cudaFree(memory));

    for (const size_t bytes : {size_t{4}, size_t{4096}, kBytes}) {
      CALL(cudaMallocManaged(&memory, bytes));
      expect_no_handle(me, "cudaMallocManaged", memory);
      CALL(cudaFree(memory));
      CUdeviceptr made = 0;
      CALL(DRIVER(cuMemAllocManaged)(&made, bytes, CU_MEM_ATTACH_GLOBAL));
      expect_no_handle(me, "cuMemAllocManaged", words_at(made, bytes).data);
      CALL(DRIVER(cuMemFree)(made));
    }
  });
  scenario.run(20s);
}

TEST(ManagedRejection, AManagedVariableHasNoHandle) {
  covers("MNGD-02");
  needs(gpus(1), legacy_memory, managed);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    try_export(me, "__managed__ variable", managed_words);
    try_export(me, "an address inside a __managed__ variable",
               managed_words + kWordsOfVariable / 2);
    expect_usable_on_both_sides(Words(managed_words, sizeof managed_words));
    try_export(me, "__managed__ variable that was used", managed_words);
  });
  scenario.run(20s);
}

TEST(ManagedRejection, PinnedHostMemoryHasNoHandle) {
  covers("MNGD-03");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const auto expect = [&](const std::string& kind, void* host) {
      try_export(me, kind, host);
      try_export(me, kind + ", an address inside",
                 static_cast<char*>(host) + kBytes / 2);
      void* device = nullptr;
      CALL(cudaHostGetDevicePointer(&device, host, 0));
      try_export(me, kind + ", device pointer", device);
      host_writes(Words(host, kBytes), pattern(kind));
      EXPECT_TRUE(kernel_reads(Words(device, kBytes), pattern(kind)));
    };
    void* memory = nullptr;
    CALL(cudaMallocHost(&memory, kBytes));
    expect("cudaMallocHost", memory);
    CALL(cudaFreeHost(memory));
    for (const size_t bytes : {size_t{4}, size_t{4096}}) {
      CALL(cudaMallocHost(&memory, bytes));
      try_export(me, "cudaMallocHost, small", memory);
      CALL(cudaFreeHost(memory));
    }
    for (const auto& [flags, name] :
         {std::pair{cudaHostAllocMapped, "cudaHostAllocMapped"},
          std::pair{cudaHostAllocPortable, "cudaHostAllocPortable"},
          std::pair{cudaHostAllocWriteCombined, "cudaHostAllocWriteCombined"},
          std::pair{cudaHostAllocMapped | cudaHostAllocPortable,
                    "cudaHostAllocMapped and cudaHostAllocPortable"}}) {
      CALL(cudaHostAlloc(&memory, kBytes, flags));
      expect(name, memory);
      CALL(cudaFreeHost(memory));
    }
    memory = std::aligned_alloc(4096, kBytes);
    CALL(cudaHostRegister(memory, kBytes, cudaHostRegisterMapped));
    expect("cudaHostRegister", memory);
    CALL(cudaHostUnregister(memory));
    try_export(me, "memory that was registered", memory);
    std::free(memory);
  });
  scenario.run(20s);
}

TEST(ManagedRejection, OtherNumbersHaveNoHandle) {
  covers("MNGD-04");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer exportable(kBytes);
    static int variable;
    int local = 0;
    const std::vector<char> heap(kBytes);
    try_export(me, "the heap", const_cast<char*>(heap.data()));
    try_export(me, "a static variable", &variable);
    try_export(me, "the stack", &local);
    for (const uint64_t number :
         {uint64_t{1}, uint64_t{4096}, uint64_t{1} << 46, uint64_t{1} << 63,
          ~uint64_t{0}})
      try_export(me, "the number " + std::to_string(number),
                 reinterpret_cast<void*>(number));
  });
  scenario.run(20s);
}

// Addresses of cuMemAddressReserve are no memory: before a mapping, without
// access to it, and after it.
TEST(ManagedRejection, ReservedAddressesHaveNoHandle) {
  covers("MNGD-04");
  needs(gpus(1), legacy_memory, vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Reservation range(2 * bytes);
    const auto expect = [&](const std::string& when) {
      for (const size_t offset : {size_t{0}, bytes / 2, bytes})
        try_export(me, when + ", offset " + std::to_string(offset),
                   words_at(range.at(offset), 4).data);
    };
    expect("reserved addresses");
    range.map(0, bytes, chunk);
    expect("addresses without access");
    range.unmap(0, bytes);
    expect("addresses that were mapped");
  });
  scenario.run(20s);
}

TEST(ManagedRejection, AVariableOfTheDevice) {
  covers("MNGD-05");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    void* address = nullptr;
    CALL(cudaGetSymbolAddress(&address, device_words));
    cudaIpcMemHandle_t handle;
    const cudaError_t code = NOTED(cudaIpcGetMemHandle(&handle, address));
    cudaGetLastError();
    me.observe("a __device__ variable: " + name_of(code) +
               ", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE " +
               std::to_string(attributes_of(address).legacy));
    const Words words(address, sizeof device_words);
    words.fill(pattern("variable"));
    EXPECT_TRUE(copy_reads(words, pattern("variable")));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ManagedRejection, StreamOrderedMemoryHasNoHandle) {
  covers("MNGD-06");
  needs(gpus(1), legacy_memory, pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const AsyncBuffer common(kBytes);
    CALL(cudaStreamSynchronize(nullptr));
    expect_not_legacy(me, "cudaMallocAsync", common.data);
    expect_not_legacy(me, "an address inside memory of cudaMallocAsync",
                      common.data + common.count / 2);
    const Pool pool;
    const AsyncBuffer buffer = allocated_from(pool);
    expect_not_legacy(me, "a pool of its own", buffer.data);
    expect_not_legacy(me, "an address inside memory of a pool",
                      buffer.data + buffer.count / 2);
    const AsyncBuffer last = allocated_from(Pool());
    expect_not_legacy(me, "memory of a pool that was destroyed", last.data);
    last.fill(pattern("last"));
    EXPECT_TRUE(kernel_reads(last, pattern("last")));
    by_both_apis([&](auto api) {
      for (const size_t bytes : {size_t{4}, size_t{4096}, kBytes}) {
        const std::string size = std::to_string(bytes) + " bytes";
        const AsyncBuffer current = allocated(api, bytes);
        const AsyncBuffer own = allocated(api, pool, bytes);
        CALL(cudaStreamSynchronize(nullptr));
        expect_not_legacy(me, size + " of the current pool", current.data);
        expect_not_legacy(me, size + " of a pool of its own", own.data);
      }
    });
    buffer.fill(pattern("pool"));
    EXPECT_TRUE(kernel_reads(buffer, pattern("pool")));
  });
  scenario.run(20s);
}

TEST(ManagedRejection, MemoryOfAPoolToShareHasNoHandle) {
  covers("MNGD-06");
  needs(gpus(1), legacy_memory, pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    const AsyncBuffer buffer = allocated_from(pool);
    expect_as_said(me, "a pool with descriptors", buffer.data);
    buffer.fill(pattern("pool"));
    EXPECT_TRUE(kernel_reads(buffer, pattern("pool")));
    me.send_descriptor("pool", pool.exported().get());
    me.send("pointer", buffer.exported());
    expect_as_said(me, "memory whose pointer was exported", buffer.data);
    me.wait("freed");
  });
  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<cudaMemPoolPtrExportData>("pointer"),
                       kBytes);
    expect_as_said(me, "an import of a pool", buffer.data);
    EXPECT_TRUE(kernel_reads(buffer, pattern("pool")));
    buffer.free();
    me.signal("freed");
  });
  scenario.run(20s);
}

TEST(ManagedRejection, MappedMemoryHasNoHandle) {
  covers("MNGD-07");
  needs(gpus(1), legacy_memory, vmm, vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    for (const auto types : {CU_MEM_HANDLE_TYPE_NONE, kFd}) {
      const CUmemAllocationProp wanted = chunk_of(0, types);
      const size_t bytes = granule(wanted);
      Chunk chunk = Chunk::create(bytes, wanted);
      const Mapping mapping(chunk, bytes);
      expect_not_legacy(
          me, types == kFd ? "cuMemCreate, descriptor" : "cuMemCreate",
          mapping.data);
      expect_not_legacy(me, "an address inside mapped memory",
                        mapping.data + mapping.count / 2);
      const Mapping readable(chunk, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
      expect_not_legacy(me, "a mapping that can only be read", readable.data);
      mapping.fill(pattern("mapped"));
      EXPECT_TRUE(kernel_reads(mapping, pattern("mapped")));
      if (types != kFd) continue;
      const Chunk imported = Chunk::import(chunk.descriptor());
      const Mapping second(imported, bytes);
      expect_not_legacy(me, "an import of a descriptor", second.data);
      EXPECT_TRUE(kernel_reads(second, pattern("mapped")));
      chunk.release();
      expect_not_legacy(me, "a mapping whose chunk was released", mapping.data);
    }
  });
  scenario.run(20s);
}

TEST(ManagedRejection, MappedMemoryOfANodeHasNoHandle) {
  covers("MNGD-07");
  needs(gpus(1), legacy_memory, numa_vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const int node = attribute(cudaDevAttrHostNumaId);
    CUmemAllocationProp wanted = chunk_of(0, kFd);
    wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, node < 0 ? 0 : node};
    const size_t bytes = granule(wanted);
    const Mapping mapping(Chunk::create(bytes, wanted), bytes);
    expect_not_legacy(me, "cuMemCreate, a node of the host", mapping.data);
    mapping.fill(pattern("mapped"));
    EXPECT_TRUE(kernel_reads(mapping, pattern("mapped")));
  });
  scenario.run(20s);
}

TEST(ManagedRejection, PitchedMemoryIsWholeIfItTravels) {
  covers("MNGD-08");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const auto lend = [&](const char* kind, void* memory, size_t bytes) {
      const Words words(memory, bytes);
      words.fill(pattern(kind));
      cudaIpcMemHandle_t handle;
      const cudaError_t code = NOTED(cudaIpcGetMemHandle(&handle, memory));
      cudaGetLastError();
      me.observe(std::string(kind) + ": " + name_of(code));
      me.send("bytes", code == cudaSuccess ? bytes : 0);
      if (code == cudaSuccess) {
        me.send("handle", handle);
        me.wait("closed");
      }
      EXPECT_TRUE(kernel_reads(words, pattern(kind)));
      CALL(cudaFree(memory));
    };
    void* memory = nullptr;
    size_t pitch = 0;
    CALL(cudaMallocPitch(&memory, &pitch, 3000, 1000));
    lend("cudaMallocPitch", memory, pitch * 1000);
    cudaPitchedPtr cube;
    CALL(cudaMalloc3D(&cube, make_cudaExtent(700, 60, 50)));
    lend("cudaMalloc3D", cube.ptr, cube.pitch * 60 * 50);
  });

  scenario.role("importer", [](Role& me) {
    for (const char* kind : {"cudaMallocPitch", "cudaMalloc3D"}) {
      SCOPED_TRACE(kind);
      const auto bytes = me.receive<size_t>("bytes");
      if (bytes == 0) continue;
      LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), bytes);
      EXPECT_READS(mapping, pattern(kind));
      mapping.close();
      me.signal("closed");
    }
  });

  scenario.run(20s);
}

// Adds a node that allocates shareable memory, by the driver API.
static CUresult add_by_driver(CUgraph graph, cudaMemAllocationHandleType type) {
  CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
  wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.poolProps.handleTypes = static_cast<CUmemAllocationHandleType>(type);
  wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.bytesize = kBytes;
  CUgraphNode node = nullptr;
  return NOTED(
      DRIVER(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &wanted));
}

// The same by the calls that add a node of any type. An older toolkit does not
// declare them, and an older driver has them in another form.
#if IPCLAB_NODES_OF_ANY_TYPE
static bool adds_any() {
  int version = 0;
  CALL(cudaDriverGetVersion(&version));
  return version >= 12030;
}

static cudaError_t add_any(cudaGraph_t graph, cudaMemAllocationHandleType type,
                           void** memory) {
  cudaGraphNodeParams wanted{};
  wanted.type = cudaGraphNodeTypeMemAlloc;
  wanted.alloc.poolProps = pool_properties(type);
  wanted.alloc.bytesize = kBytes;
  cudaGraphNode_t node = nullptr;
  const cudaError_t code =
      NOTED(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &wanted));
  *memory = wanted.alloc.dptr;
  return code;
}

static CUresult add_any_by_driver(CUgraph graph,
                                  cudaMemAllocationHandleType type) {
  CUgraphNodeParams wanted{};
  wanted.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  wanted.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.alloc.poolProps.handleTypes =
      static_cast<CUmemAllocationHandleType>(type);
  wanted.alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.alloc.bytesize = kBytes;
  CUgraphNode node = nullptr;
  return NOTED(
      DRIVER(cuGraphAddNode)(&node, graph, nullptr, nullptr, 0, &wanted));
}
#else
static bool adds_any() { return false; }
static cudaError_t add_any(cudaGraph_t, cudaMemAllocationHandleType, void**) {
  return cudaErrorCallRequiresNewerDriver;
}
static CUresult add_any_by_driver(CUgraph, cudaMemAllocationHandleType) {
  return CUDA_ERROR_NOT_FOUND;
}
#endif

TEST(ManagedRejection, MemoryOfAGraphHasNoHandle) {
  covers("MNGD-09");
  needs(gpus(1), legacy_memory, pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    cudaGraph_t graph = nullptr;
    CALL(cudaGraphCreate(&graph, 0));
    const auto add = [&](cudaMemAllocationHandleType type, void** memory) {
      cudaMemAllocNodeParams wanted{};
      wanted.poolProps = pool_properties(type);
      wanted.bytesize = kBytes;
      cudaGraphNode_t node = nullptr;
      const cudaError_t code =
          NOTED(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted));
      *memory = wanted.dptr;
      return code;
    };
    void* memory = nullptr;
    for (const auto type : {cudaMemHandleTypePosixFileDescriptor,
                            cudaMemHandleTypeFabric, kFdAndFabric}) {
      SCOPED_TRACE("handle type " + std::to_string(type));
      EXPECT_REFUSED(add(type, &memory), cudaErrorInvalidValue,
                     cudaErrorNotSupported);
      EXPECT_REFUSED(add_by_driver(graph, type), CUDA_ERROR_INVALID_VALUE,
                     CUDA_ERROR_NOT_SUPPORTED);
      if (!adds_any()) continue;
      EXPECT_REFUSED(add_any(graph, type, &memory), cudaErrorInvalidValue,
                     cudaErrorNotSupported);
      EXPECT_REFUSED(add_any_by_driver(graph, type), CUDA_ERROR_INVALID_VALUE,
                     CUDA_ERROR_NOT_SUPPORTED);
    }
    EXPECT_SUCCESS(add(cudaMemHandleTypeNone, &memory));
    expect_no_handle(me, "a graph's allocation node", memory);
    void* of_any = nullptr;
    if (adds_any()) {
      EXPECT_SUCCESS(add_any(graph, cudaMemHandleTypeNone, &of_any));
      expect_no_handle(me, "a node of the general call", of_any);
    } else {
      me.observe("cudaGraphAddNode: not tried before CUDA 12.3");
    }
    cudaGraphExec_t run = nullptr;
    CALL(cudaGraphInstantiate(&run, graph, 0));
    CALL(cudaGraphLaunch(run, nullptr));
    CALL(cudaStreamSynchronize(nullptr));
    expect_no_handle(me, "memory that a graph has allocated", memory);
    cudaMemPoolPtrExportData data;
    EXPECT_NE(NOTED(cudaMemPoolExportPointer(&data, memory)), cudaSuccess)
        << "a graph's memory is no memory of a shared pool";
    cudaGetLastError();
    CALL(cudaFree(memory));
    CALL(cudaFree(of_any));
    CALL(cudaGraphExecDestroy(run));
    CALL(cudaGraphDestroy(graph));
  });
  scenario.run(20s);
}

// A captured allocation makes memory of a graph, too.
TEST(ManagedRejection, CapturedMemoryHasNoHandle) {
  covers("MNGD-09");
  needs(gpus(1), legacy_memory, pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Stream stream;
    void* memory = nullptr;
    cudaGraph_t graph = nullptr;
    CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CALL(cudaMallocAsync(&memory, kBytes, stream));
    CALL(cudaStreamEndCapture(stream, &graph));
    expect_no_handle(me, "a captured allocation", memory);
    cudaGraphExec_t run = nullptr;
    CALL(cudaGraphInstantiate(&run, graph, 0));
    CALL(cudaGraphLaunch(run, stream));
    CALL(cudaStreamSynchronize(stream));
    expect_no_handle(me, "memory of a captured allocation", memory);
    const Words words(memory, kBytes);
    words.fill(pattern("graph"));
    EXPECT_TRUE(kernel_reads(words, pattern("graph")));
    CALL(cudaFree(memory));
    CALL(cudaGraphExecDestroy(run));
    CALL(cudaGraphDestroy(graph));
  });
  scenario.run(20s);
}

TEST(ManagedRejection, APoolOnTheHostCannotBeShared) {
  covers("MNGD-10");
  needs(gpus(1), host_pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    // The number of the location means nothing for the host.
    for (const int number : {0, 1 << 20, -1}) {
      SCOPED_TRACE("location " + std::to_string(number));
      const auto wanted =
          pool_at({cudaMemLocationTypeHost, number}, cudaMemHandleTypeNone);
      expect_not_shareable(wanted);
      by_both_apis([&](auto api) {
        Sentinel<cudaMemPool_t> made;
        EXPECT_SUCCESS(api.mem_pool_create(made.out(), wanted));
        const Pool pool(made.result());
        const AsyncBuffer buffer = allocated_from(pool);
        expect_not_exported(me, "a pool on the host", buffer.data);
        host_writes(buffer, pattern("host"));
        EXPECT_TRUE(copy_reads(buffer, pattern("host")));
      });
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ManagedRejection, AChunkOnTheHostCannotBeShared) {
  covers("MNGD-10");
  needs(gpus(1), host_vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    wanted.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
    const size_t bytes = granule(wanted);
    for (const auto type :
         {kFd, CU_MEM_HANDLE_TYPE_FABRIC,
          static_cast<CUmemAllocationHandleType>(kFdAndFabric)}) {
      SCOPED_TRACE("handle type " + std::to_string(type));
      wanted.requestedHandleTypes = type;
      CUmemGenericAllocationHandle chunk = 0;
      EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                  DRIVER(cuMemCreate)(&chunk, bytes, &wanted, 0));
    }
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    // The number of the location means nothing for the host.
    for (const int number : {0, 1 << 20, -1}) {
      SCOPED_TRACE("location " + std::to_string(number));
      wanted.location.id = number;
      CUmemGenericAllocationHandle chunk = 0;
      EXPECT_SUCCESS(DRIVER(cuMemCreate)(&chunk, bytes, &wanted, 0));
      const auto found = Chunk(chunk).properties();
      EXPECT_NE(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// A pool on the current NUMA node is refused. Pools on the device, and on a
// NUMA node that is given by its number, are created.
TEST(ManagedRejection, APoolHasNoCurrentNumaNode) {
  covers("MNGD-11");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const auto here = [](cudaMemLocationType type, int id) {
      by_both_apis([&](auto api) {
        const Pool pool =
            created(api, pool_at({type, id}, cudaMemHandleTypeNone));
        const AsyncBuffer buffer = allocated_from(pool);
        EXPECT_NE(buffer.data, nullptr);
      });
    };
    here(cudaMemLocationTypeDevice, 0);
    if (attribute(cudaDevAttrHostNumaMemoryPoolsSupported) != 0)
      here(cudaMemLocationTypeHostNuma, numa_node());
    for (const int number : {0, 1, -1}) {
      SCOPED_TRACE("location " + std::to_string(number));
      const cudaMemPoolProps wanted = pool_at(
          {cudaMemLocationTypeHostNumaCurrent, number}, cudaMemHandleTypeNone);
      by_both_apis([&](auto api) {
        Sentinel<cudaMemPool_t> pool;
        EXPECT_CODE(api.kInvalidValue, api.mem_pool_create(pool.out(), wanted));
      });
      expect_not_shareable(wanted);
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ManagedRejection, AChunkHasNoCurrentNumaNode) {
  covers("MNGD-11");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    CALL(cudaFree(nullptr));
    const auto at = [](CUmemLocationType location, int id,
                       CUmemAllocationHandleType types) {
      CUmemAllocationProp wanted = chunk_of(0, types);
      wanted.location = {location, id};
      return wanted;
    };
    Chunk::create(kBytes,
                  at(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE));
    if (attribute(
            CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) !=
        0)
      Chunk::create(kBytes, at(CU_MEM_LOCATION_TYPE_HOST_NUMA, numa_node(),
                               CU_MEM_HANDLE_TYPE_NONE));
    for (const auto type : {CU_MEM_HANDLE_TYPE_NONE, kFd}) {
      SCOPED_TRACE("handle type " + std::to_string(type));
      for (const int number : {0, 1, -1}) {
        SCOPED_TRACE("location " + std::to_string(number));
        const CUmemAllocationProp wanted =
            at(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, number, type);
        Sentinel<CUmemGenericAllocationHandle> chunk;
        EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                    DRIVER(cuMemCreate)(chunk.out(), kBytes, &wanted, 0));
      }
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ManagedRejection, APoolOfANumaNodeIsShared) {
  covers("MNGD-12");
  needs(gpus(1), numa_pools, pool_fd);
  Scenario scenario(Scenario::kShared);

  const auto exports = [](Role& me, auto api) {
    const Pool pool =
        created(api, pool_at({cudaMemLocationTypeHostNuma, numa_node()},
                             cudaMemHandleTypePosixFileDescriptor));
    const AsyncBuffer buffer = allocated_from(pool);
    const AsyncBuffer second = allocated_from(pool);
    host_writes(buffer, pattern("exporter"));
    host_writes(second, pattern("second"));
    me.send_descriptor("pool", exported(api, pool).get());
    me.send("pointer", exported(api, buffer));
    me.send("second pointer", exported(api, second));

    me.wait("freed");
    EXPECT_TRUE(host_reads(buffer, pattern("importer")));
    EXPECT_TRUE(host_reads(second, pattern("second")));
  };
  const auto imports = [](Role& me, auto api) {
    const Pool pool = imported(api, me.receive_descriptor("pool"));
    AsyncBuffer buffer = imported(
        api, pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kBytes);
    AsyncBuffer second = imported(
        api, pool, me.receive<cudaMemPoolPtrExportData>("second pointer"),
        kBytes);
    EXPECT_TRUE(host_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(copy_reads(buffer, pattern("exporter")));
    host_writes(buffer, pattern("importer"));
    EXPECT_TRUE(host_reads(second, pattern("second")));
    EXPECT_TRUE(copy_reads(second, pattern("second")));
    expect_free(api, second);
    expect_free(api, buffer);
    me.signal("freed");
  };
  scenario.role("exporter", [=](Role& me) {
    by_both_apis([&](auto api) { exports(me, api); });
  });
  scenario.role("importer", [=](Role& me) {
    by_both_apis([&](auto api) { imports(me, api); });
  });
  scenario.run(20s);
}

TEST(ManagedRejection, AManagedPoolCannotBeShared) {
  covers("MNGD-13");
  needs(gpus(1), pools, managed);
  Scenario scenario(Scenario::kShared);
  const auto creates = [](Role& me, auto api) {
    cudaMemPoolProps wanted = pool_properties();
    wanted.allocType = cudaMemAllocationTypeManaged;
    Sentinel<cudaMemPool_t> pool;
    const auto code = api.mem_pool_create(pool.out(), wanted);
    cudaGetLastError();
    const bool exists = code == decltype(code){};
    if (exists) {
      Pool made(pool.result());
      expect_not_exported(me, "a managed pool", allocated_from(made).data);
      CALL(api.mem_pool_destroy(made.release()));
    } else {
      me.not_applicable(std::string("no managed pools: the ") + api.kName +
                        " gives " + name_of(code));
    }
    for (const auto type : {cudaMemHandleTypePosixFileDescriptor,
                            cudaMemHandleTypeFabric, kFdAndFabric}) {
      SCOPED_TRACE("handle type " + std::to_string(type));
      wanted.handleTypes = type;
      Sentinel<cudaMemPool_t> none;
      EXPECT_REFUSED(api.mem_pool_create(none.out(), wanted),
                     exists ? api.kInvalidValue : code, api.kInvalidValue,
                     api.kNotSupported);
    }
  };
  scenario.role("exporter", [=](Role& me) {
    by_both_apis([&](auto api) { creates(me, api); });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}
