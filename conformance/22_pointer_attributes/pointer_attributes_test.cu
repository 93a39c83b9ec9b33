// The attributes of a pointer say exactly which exports succeed. Mirror of
// samples/22_pointer_attributes.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>

#include "harness/scenario/cuda.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kSmall = 4096;  // shares a block with others
constexpr size_t kBytes = 4 << 20;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

__device__ uint32_t variable[1024];

// An attribute of a pointer, by cuPointerGetAttribute. cuPointerGetAttributes
// must return the same value.
template <class T>
T told_twice(CUpointer_attribute which, const void* pointer) {
  T value{};
  void* values[] = {&value};
  CALL(DRIVER(cuPointerGetAttributes)(1, &which, values, address_of(pointer)));
  EXPECT_EQ(pointer_attribute<T>(which, pointer), value)
      << "cuPointerGetAttribute and cuPointerGetAttributes disagree";
  return pointer_attribute<T>(which, pointer);
}

unsigned long long allowed_types(const void* pointer) {
  return told_twice<unsigned long long>(
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer);
}

unsigned capable(const void* pointer) {
  return told_twice<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                              pointer);
}

// Judges that the attribute of the pointer and the result of an export agree.
// The attribute is about the allocation that the pointer maps to, so other
// addresses in the first `bytes` of the memory have the same attribute.
void expect_attribute_is_true(const char* kind, void* memory,
                              size_t bytes = 1) {
  const unsigned told = capable(memory);
  for (const size_t offset : {size_t{1}, bytes / 2, bytes - 1})
    if (offset < bytes)
      EXPECT_EQ(capable(static_cast<char*>(memory) + offset), told)
          << kind << ", offset " << offset;
  Handle handle;
  const cudaError_t code = NOTED(cudaIpcGetMemHandle(&handle, memory));
  cudaGetLastError();
  if ((told != 0) != (code == cudaSuccess))
    expected_but_saw(told != 0 ? "cudaSuccess" : "a refusal", name_of(code));
  EXPECT_EQ(told != 0, code == cudaSuccess)
      << kind << ": the attribute is " << told << ", the export gives "
      << name_of(code);
}

}  // namespace

TEST(PointerAttributes, TheAttributeTellsWhatCanBeExported) {
  covers("LMEM-37");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer buffer(kBytes), small(kSmall), odd(kSmall + 1);
    expect_attribute_is_true("cudaMalloc", buffer.data, kBytes);
    expect_attribute_is_true("a small cudaMalloc", small.data, kSmall);
    expect_attribute_is_true("a cudaMalloc of an odd size", odd.data,
                             kSmall + 1);
    // An address inside the buffer also belongs to an allocation that can be
    // exported.
    in_two_threads([&](int) {
      EXPECT_EQ(capable(buffer.data), 1u);
      EXPECT_EQ(capable(buffer.data + buffer.count / 2), 1u);
    });
    const unsigned set = 1;
    CALL(DRIVER(cuPointerSetAttribute)(&set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                       address_of(buffer.data)));
    expect_attribute_is_true("memory with SYNC_MEMOPS", buffer.data, kBytes);
    CUdeviceptr by_driver = 0;
    CALL(DRIVER(cuMemAlloc)(&by_driver, kBytes));
    expect_attribute_is_true("cuMemAlloc", words_at(by_driver, kBytes).data,
                             kBytes);
    CALL(DRIVER(cuMemFree)(by_driver));

    void* memory = nullptr;
    size_t pitch = 0;
    CALL(cudaMallocPitch(&memory, &pitch, 100, 100));
    expect_attribute_is_true("cudaMallocPitch", memory);
    CALL(cudaFree(memory));

    CALL(cudaHostAlloc(&memory, kSmall, cudaHostAllocMapped));
    expect_attribute_is_true("cudaHostAlloc", memory, kSmall);
    CALL(cudaFreeHost(memory));

    if (attribute(cudaDevAttrManagedMemory) != 0) {
      CALL(cudaMallocManaged(&memory, kSmall));
      expect_attribute_is_true("cudaMallocManaged", memory, kSmall);
      CALL(cudaFree(memory));
    }
    if (attribute(cudaDevAttrMemoryPoolsSupported) != 0) {
      CALL(cudaMallocAsync(&memory, kSmall, nullptr));
      CALL(cudaStreamSynchronize(nullptr));
      expect_attribute_is_true("cudaMallocAsync", memory, kSmall);
      CALL(cudaFreeAsync(memory, nullptr));
      CALL(cudaStreamSynchronize(nullptr));
    }
    CALL(cudaGetSymbolAddress(&memory, variable));
    expect_attribute_is_true("a __device__ variable", memory);
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// Judges that freed memory suits no export. The driver may refuse the query for
// one attribute instead of returning 0.
static void expect_not_capable(const void* freed, size_t bytes) {
  constexpr auto kCapable = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
  for (const size_t offset : {size_t{0}, bytes / 2, bytes - 1}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes, offset " +
                 std::to_string(offset));
    const CUdeviceptr address =
        address_of(static_cast<const char*>(freed) + offset);
    unsigned alone = 0, among_others = 77;
    if (NOTED(DRIVER(cuPointerGetAttribute)(&alone, kCapable, address)) ==
        CUDA_SUCCESS)
      EXPECT_EQ(alone & 0xff, 0u);
    CUpointer_attribute which = kCapable;
    void* values[] = {&among_others};
    EXPECT_SUCCESS(DRIVER(cuPointerGetAttributes)(1, &which, values, address));
    EXPECT_EQ(among_others & 0xff, 0u);
  }
}

TEST(PointerAttributes, FreedMemoryIsNotCapable) {
  covers("LMEM-37");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    // The block of the small memory stays in use.
    const DeviceBuffer before(kSmall);
    DeviceBuffer buffer(kBytes), small(kSmall);
    const DeviceBuffer after(kSmall);
    for (DeviceBuffer* each : {&buffer, &small}) {
      const void* const gone = each->data;
      const size_t bytes = each->bytes();
      EXPECT_EQ(capable(gone), 1u);
      each->legacy_handle();
      each->free();
      expect_not_capable(gone, bytes);
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// Memory that a program does not get from one call.
TEST(PointerAttributes, TheAttributeIsTrueOfUnusualMemory) {
  covers("LMEM-37");
  needs(gpus(1), legacy_memory, pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    void* const host = std::aligned_alloc(4096, kBytes);
    CALL(cudaHostRegister(host, kBytes, cudaHostRegisterMapped));
    expect_attribute_is_true("cudaHostRegister", host, kBytes);
    CALL(cudaHostUnregister(host));
    std::free(host);

    const GraphMemory of_graph(kBytes);
    expect_attribute_is_true("memory of a graph", of_graph.data, kBytes);
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(PointerAttributes, TheAttributeIsTrueOfMemoryOfBothGpus) {
  covers("LMEM-37");
  needs(gpus(2), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    for (const int gpu : {0, 1}) {
      CALL(cudaSetDevice(gpu));
      const DeviceBuffer buffer(kBytes);
      for (const int current : {0, 1}) {
        SCOPED_TRACE("memory of GPU " + std::to_string(gpu) + ", current GPU " +
                     std::to_string(current));
        CALL(cudaSetDevice(current));
        expect_attribute_is_true("cudaMalloc", buffer.data);
      }
    }
    CALL(cudaSetDevice(0));
  });
  scenario.run(20s);
}

TEST(PointerAttributes, TheAttributeIsTrueOfMappedMemory) {
  covers("LMEM-37");
  needs(gpus(1), legacy_memory, vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    CALL(cudaFree(nullptr));
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    size_t size = 0;
    CALL(DRIVER(cuMemGetAllocationGranularity)(
        &size, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUmemGenericAllocationHandle memory = 0;
    CALL(DRIVER(cuMemCreate)(&memory, size, &wanted, 0));
    CUdeviceptr address = 0;
    CALL(DRIVER(cuMemAddressReserve)(&address, size, 0, 0, 0));
    CALL(DRIVER(cuMemMap)(address, size, 0, memory, 0));
    const CUmemAccessDesc access{wanted.location,
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CALL(DRIVER(cuMemSetAccess)(address, size, &access, 1));
    expect_attribute_is_true("cuMemMap", reinterpret_cast<void*>(address),
                             size);
    CALL(DRIVER(cuMemUnmap)(address, size));
    CALL(DRIVER(cuMemAddressFree)(address, size));
    CALL(DRIVER(cuMemRelease)(memory));
  });
  scenario.run(20s);
}

TEST(PointerAttributes, TheAttributeIsTrueOfAnImport) {
  covers("LMEM-37");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    expect_attribute_is_true("an import", mapping.data, kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(PointerAttributes, OtherMemoryAllowsNoHandleType) {
  covers("MNGD-14");
  needs(gpus(1), managed, pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const auto expect_none = [&](const char* kind, void* memory) {
      EXPECT_EQ(allowed_types(memory), 0u) << kind;
      CUmemGenericAllocationHandle chunk = 0;
      if (NOTED(DRIVER(cuMemRetainAllocationHandle)(&chunk, memory)) !=
          CUDA_SUCCESS)
        return;  // nothing to export
      int number = -1;
      const CUresult code =
          NOTED(DRIVER(cuMemExportToShareableHandle)(&number, chunk, kFd, 0));
      EXPECT_NE(code, CUDA_SUCCESS) << kind << " is exported nevertheless";
      CALL(DRIVER(cuMemRelease)(chunk));
      me.observe(std::string(kind) + ": cuMemExportToShareableHandle gives " +
                 name_of(code));
    };
    const DeviceBuffer buffer(kBytes);
    expect_none("cudaMalloc", buffer.data);
    void* memory = nullptr;
    CALL(cudaMallocManaged(&memory, kBytes));
    expect_none("cudaMallocManaged", memory);
    CALL(cudaFree(memory));
    CALL(cudaMallocHost(&memory, kBytes));
    expect_none("cudaMallocHost", memory);
    CALL(cudaFreeHost(memory));
    const AsyncBuffer stream_ordered(kBytes);
    CALL(cudaStreamSynchronize(nullptr));
    expect_none("cudaMallocAsync", stream_ordered.data);
  });
  scenario.run(20s);
}

// A legacy handle is no shareable handle: neither an exported allocation nor an
// opened pointer can be exported by cuMemExportToShareableHandle.
TEST(PointerAttributes, LegacyHandlesAllowNoHandleType) {
  covers("MNGD-14");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  const auto expect_none = [](const Words& memory) {
    EXPECT_EQ(allowed_types(memory.data), 0u);
    EXPECT_EQ(allowed_types(memory.data + memory.count / 2), 0u) << "inside";
  };
  scenario.role("exporter", [=](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    expect_none(buffer);
    me.wait("closed");
  });
  scenario.role("importer", [=](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    expect_none(mapping);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(PointerAttributes, MappedMemoryAllowsWhatItWasMadeFor) {
  covers("MNGD-14");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    // The last memory must not have the type of the memory before it.
    for (const auto types :
         {CU_MEM_HANDLE_TYPE_NONE, kFd, CU_MEM_HANDLE_TYPE_NONE}) {
      SCOPED_TRACE("handle type " + std::to_string(types));
      const CUmemAllocationProp wanted = chunk_of(0, types);
      const size_t bytes = granule(wanted);
      Chunk chunk = Chunk::create(bytes, wanted);
      const Mapping mapping(chunk, bytes), second(chunk, bytes);
      for (const Mapping* each : {&mapping, &second})
        EXPECT_EQ(allowed_types(each->data),
                  static_cast<unsigned long long>(types))
            << (each == &mapping ? "mapped once" : "mapped twice");
      int number = -1;
      const CUresult code = NOTED(DRIVER(cuMemExportToShareableHandle)(
          &number, chunk.handle(), kFd, 0));
      const Descriptor descriptor(number);
      EXPECT_EQ(code == CUDA_SUCCESS, types == kFd) << name_of(code);
      chunk.release();
      EXPECT_EQ(allowed_types(mapping.data),
                static_cast<unsigned long long>(types))
          << "after the release of the handle";
    }
  });
  scenario.run(20s);
}

// Two chunks side by side were made for different handle types.
TEST(PointerAttributes, EachChunkOfARangeAllowsItsOwnTypes) {
  covers("MNGD-14");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const CUmemAllocationProp wanted = chunk_of(0, kFd);
    CUmemAllocationProp plain = wanted;
    plain.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    const size_t bytes = granule(wanted);
    const Chunk none = Chunk::create(bytes, plain);
    const Chunk some = Chunk::create(bytes, wanted);
    const Reservation range(2 * bytes);
    range.map(0, bytes, none);
    range.map(bytes, bytes, some);
    const CUmemAccessDesc access = access_for(0);
    CALL(DRIVER(cuMemSetAccess)(range.at(0), 2 * bytes, &access, 1));
    const auto at = [&](size_t offset) {
      return allowed_types(words_at(range.at(offset), 4).data);
    };
    EXPECT_EQ(at(0), 0u);
    EXPECT_EQ(at(bytes / 2), 0u) << "inside the first chunk";
    EXPECT_EQ(at(bytes), static_cast<unsigned long long>(kFd));
    EXPECT_EQ(at(bytes + bytes / 2), static_cast<unsigned long long>(kFd))
        << "inside the second chunk";
    range.unmap(0, bytes);
    range.unmap(bytes, bytes);
    range.map(0, bytes, some);
    range.map(bytes, bytes, none);
    CALL(DRIVER(cuMemSetAccess)(range.at(0), 2 * bytes, &access, 1));
    EXPECT_EQ(at(0), static_cast<unsigned long long>(kFd))
        << "another chunk at the same address";
    EXPECT_EQ(at(bytes - 1), static_cast<unsigned long long>(kFd))
        << "the last byte of the chunk";
    EXPECT_EQ(at(bytes), 0u) << "another chunk at the same address";
    EXPECT_EQ(at(2 * bytes - 1), 0u) << "the last byte of the chunk";
    range.unmap(0, bytes);
    range.unmap(bytes, bytes);
  });
  scenario.run(20s);
}

TEST(PointerAttributes, WhatMemoryOfAPoolToShareAllows) {
  covers("MNGD-14");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    const AsyncBuffer buffer(pool, kBytes);
    CALL(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(pointer_attribute<CUmemoryPool>(
                  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, buffer.data),
              static_cast<cudaMemPool_t>(pool));
    me.observe(
        "CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES of a pool with "
        "descriptors: " +
        std::to_string(allowed_types(buffer.data)));
  });
  scenario.run(20s);
}

// The range of an address is what was reserved, not what is mapped.
TEST(PointerAttributes, ARangeIsAReservation) {
  covers("VMM-45");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  const auto expect_told = [](const Chunk& chunk) {
    const size_t bytes = granule();
    const Reservation range(3 * bytes);
    range.map(bytes, bytes, chunk);
    const CUmemAccessDesc access = access_for(0);
    CALL(DRIVER(cuMemSetAccess)(range.at(bytes), bytes, &access, 1));
    for (const size_t offset : {size_t{0}, bytes / 2, bytes - 1}) {
      SCOPED_TRACE(offset);
      const void* const at = words_at(range.at(bytes + offset), 4).data;
      EXPECT_EQ(
          told_twice<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at),
          range.at(0));
      EXPECT_EQ(told_twice<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at),
                range.bytes());
      EXPECT_EQ(
          told_twice<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at),
          range.at(bytes));
      EXPECT_EQ(told_twice<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at),
                bytes);
      EXPECT_NE(told_twice<unsigned>(CU_POINTER_ATTRIBUTE_MAPPED, at), 0u);
    }
    range.unmap(bytes, bytes);
  };
  scenario.role("exporter", [=](Role& me) {
    const Chunk chunk = Chunk::create(granule());
    me.send_descriptor("descriptor", chunk.descriptor().get());
    expect_told(chunk);
    me.wait("done");
  });
  scenario.role("importer", [=](Role& me) {
    expect_told(Chunk::import(me.receive_descriptor("descriptor")));
    me.signal("done");
  });
  scenario.run(20s);
}

static unsigned long long block_of(const Words& words) {
  return told_twice<unsigned long long>(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
                                        words.data);
}

TEST(PointerAttributes, AnIdNamesPhysicalMemory) {
  covers("VMM-46");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Chunk chunk = Chunk::create(granule()),
                other = Chunk::create(granule());
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.send_descriptor("other descriptor", other.descriptor().get());
    me.wait("done");
  });
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Descriptor shared = me.receive_descriptor("descriptor");
    const Chunk chunk = Chunk::import(shared), again = Chunk::import(shared);
    const Chunk other =
        Chunk::import(me.receive_descriptor("other descriptor"));
    const Mapping one(chunk, bytes), alias(chunk, bytes), twin(again, bytes),
        second(other, bytes);
    const DeviceBuffer own(kBytes);
    const unsigned long long id = block_of(one);
    EXPECT_EQ(block_of(alias), id) << "another mapping of the memory";
    EXPECT_EQ(block_of(words_at(one.address() + bytes - 4, 4)), id);
    EXPECT_NE(block_of(second), id) << "other memory";
    EXPECT_NE(block_of(own), id) << "memory of this process";
    me.observe(std::string("a second import has ") +
               (block_of(twin) == id ? "the same id" : "an id of its own"));
    me.signal("done");
  });
  scenario.run(20s);
}
