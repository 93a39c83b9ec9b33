// Two addresses of one memory, and what an address or a handle says of itself.
// Mirror of samples/31_vmm_access.
//
// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "conformance/31_vmm_access/vmm_access_test.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

__device__ uint32_t loaded;

// Writes through one address and reads the same memory through another address,
// with the fence that PTX has for this.
__global__ void write_and_read_alias(volatile uint32_t* to,
                                     const volatile uint32_t* from) {
  to[0] = kLanded;
  asm volatile("fence.proxy.alias;" ::: "memory");
  loaded = from[0];
}

uint32_t last_loaded() {
  uint32_t value = 0;
  CALL(cudaMemcpyFromSymbol(&value, loaded, sizeof value));
  return value;
}

std::array<char, 16> uuid_of(int device) {
  cudaDeviceProp properties;
  CALL(cudaGetDeviceProperties(&properties, device));
  std::array<char, 16> uuid;
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

}  // namespace

// A chunk that is mapped twice is mapped a third time. `one` is one of the
// first two mappings.
static void expect_third_mapping_agrees(const Chunk& chunk, const Words& one) {
  const Mapping three(chunk, one.bytes());
  three.fill(pattern("by the third"));
  EXPECT_TRUE(kernel_reads(one, pattern("by the third")));
  one.fill(pattern("for the third"));
  EXPECT_TRUE(copy_reads(three, pattern("for the third")));
}

TEST(VmmAccess, TwoAddressesOfOneChunkAgreeBetweenKernels) {
  covers("VMM-36");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 3 * granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping one(chunk, bytes), two(chunk, bytes);
    EXPECT_NE(one.data, two.data);
    one.fill(pattern("A"));
    EXPECT_TRUE(kernel_reads(two, pattern("A")));
    expect_third_mapping_agrees(chunk, one);
    two.fill(pattern("B"));
    EXPECT_TRUE(copy_reads(one, pattern("B")));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("D written");
    EXPECT_TRUE(kernel_reads(one, pattern("D")));
    EXPECT_TRUE(copy_reads(two, pattern("D")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = 3 * granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping one(chunk, bytes), two(chunk, bytes);
    EXPECT_TRUE(kernel_reads(one, pattern("B")));
    EXPECT_TRUE(kernel_reads(two, pattern("B")));
    expect_third_mapping_agrees(chunk, one);
    one.poison();
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, two.data + two.count - 1, sizeof word,
                    cudaMemcpyDeviceToHost));
    EXPECT_EQ(word, 0xEEEEEEEEu) << "a memset at the other address";
    one.fill(pattern("C"));
    EXPECT_TRUE(copy_reads(two, pattern("C")));
    two.fill(pattern("D"));
    EXPECT_TRUE(kernel_reads(one, pattern("D")));
    me.signal("D written");
  });
  scenario.run(20s);
}

// Without the fence the value would be undefined, so the kernel has the fence.
// With the fence it reads the value that the same thread wrote.
TEST(VmmAccess, OneKernelNeedsAFenceBetweenAliases) {
  covers("VMM-37");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapping one(chunk, bytes), two(chunk, bytes);
    one.fill(pattern("before"));
    note_call("write_and_read_alias<<<>>>");
    write_and_read_alias<<<1, 1>>>(one.data, two.data);
    CALL(cudaGetLastError());
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(last_loaded(), kLanded) << "with fence.proxy.alias";
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, two.data, sizeof word, cudaMemcpyDefault));
    EXPECT_EQ(word, kLanded) << "after the kernel";
  });
  scenario.run(20s);
}

static CUmemAllocationProp properties_over(const Chunk& chunk,
                                           unsigned char byte) {
  CUmemAllocationProp found;
  std::memset(&found, byte, sizeof found);
  CALL(DRIVER(cuMemGetAllocationPropertiesFromHandle)(&found, chunk.handle()));
  return found;
}

// Judges that a query writes every field: two queries agree, although there
// were other bytes before.
static void expect_whole_properties(const Chunk& chunk) {
  const CUmemAllocationProp one = properties_over(chunk, 0x5A);
  const CUmemAllocationProp two = properties_over(chunk, 0xA5);
  EXPECT_EQ(one.type, two.type);
  EXPECT_EQ(one.requestedHandleTypes, two.requestedHandleTypes);
  EXPECT_EQ(one.location.type, two.location.type);
  EXPECT_EQ(one.location.id, two.location.id);
  EXPECT_EQ(one.allocFlags.compressionType, two.allocFlags.compressionType);
  EXPECT_EQ(one.allocFlags.gpuDirectRDMACapable,
            two.allocFlags.gpuDirectRDMACapable);
  EXPECT_EQ(one.allocFlags.usage, two.allocFlags.usage);
}

TEST(VmmAccess, AnImportedHandleKnowsItsProperties) {
  covers("VMM-31");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Chunk shared = Chunk::create(granule());
    const Chunk later =
        Chunk::create(granule(), chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    EXPECT_EQ(shared.properties().requestedHandleTypes,
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const CUmemAllocationProp found = chunk.properties();
    EXPECT_EQ(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    EXPECT_EQ(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    EXPECT_EQ(found.location.id, 0);
    expect_whole_properties(chunk);
    expect_whole_properties(shared);
    // A handle of this process has the properties with which it was created.
    for (const auto types :
         {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_NONE}) {
      const CUmemAllocationProp own =
          Chunk::create(granule(), chunk_of(0, types)).properties();
      EXPECT_EQ(own.requestedHandleTypes, types);
      EXPECT_EQ(own.allocFlags.compressionType, CU_MEM_ALLOCATION_COMP_NONE);
    }
    shared.descriptor();
    const CUmemAllocationProp told = shared.properties();
    EXPECT_EQ(told.type, CU_MEM_ALLOCATION_TYPE_PINNED) << "was exported";
    EXPECT_EQ(told.location.type, CU_MEM_LOCATION_TYPE_DEVICE)
        << "was exported";
    EXPECT_EQ(told.requestedHandleTypes,
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        << "was exported";
    me.observe("requestedHandleTypes of an import: " +
               std::to_string(found.requestedHandleTypes));
    me.signal("done");
  });
  scenario.run(20s);
}

TEST(VmmAccess, TheLocationIsInTheImportersNumbering) {
  covers("VMM-31");
  needs(gpus(2), vmm_fd);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes, chunk_of(0));
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send("uuid", uuid_of(0));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto uuid = me.receive<std::array<char, 16>>("uuid");
              const Chunk chunk =
                  Chunk::import(me.receive_descriptor("descriptor"));
              const CUmemAllocationProp found = chunk.properties();
              EXPECT_EQ(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
              EXPECT_EQ(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
              EXPECT_EQ(found.location.id, 1);
              EXPECT_EQ(uuid_of(1), uuid);
              CALL(cudaSetDevice(1));
              const Mapping mapping(chunk, granule(), kReadWrite, 1);
              EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
              EXPECT_EQ(pointer_attribute<int>(
                            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mapping.data),
                        1);
              me.observe("requestedHandleTypes of an import: " +
                         std::to_string(found.requestedHandleTypes));
              me.signal("done");
            })
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({1, 0}));
  scenario.run(20s);
}

// Judges that an address returns the handle of the memory that is mapped there
// now, not of the memory that was there before.
static void expect_handle_of_new_memory(const Reservation& range, size_t offset,
                                        const Chunk& next,
                                        const Chunk& before) {
  const size_t bytes = granule();
  range.unmap(offset, bytes);
  Sentinel<CUmemGenericAllocationHandle> none, found;
  range.map(offset, bytes, next);
  EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
      found.out(), pointer_to(range.at(offset))));
  EXPECT_EQ(found.value, next.handle());
  EXPECT_SUCCESS(DRIVER(cuMemRelease)(found.value));
  range.unmap(offset, bytes);
  EXPECT_REFUSED(DRIVER(cuMemRetainAllocationHandle)(
                     none.out(), pointer_to(range.at(offset))),
                 CUDA_ERROR_INVALID_VALUE)
      << "after it was unmapped";
  range.map(offset, bytes, before);
}

static Chunk filled_chunk() {
  Chunk chunk = Chunk::create(granule());
  Mapping(chunk, granule()).fill(pattern("other"));
  return chunk;
}

// Judges the properties of a handle of filled_chunk(), and sends its
// descriptor.
static void send_with_properties(Role& me, const Chunk& held) {
  const CUmemAllocationProp told = held.properties();
  EXPECT_EQ(told.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(told.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(told.location.id, 0);
  EXPECT_EQ(told.requestedHandleTypes,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  me.send_descriptor("retained", held.descriptor().get());
}

// An importer that reads what was retained. It has two imports of this memory,
// and a mapping of each import names its own handle.
static void reads_what_was_retained(Role& me) {
  const Descriptor descriptor = me.receive_descriptor("retained");
  const Chunk imports[] = {Chunk::import(descriptor),
                           Chunk::import(descriptor)};
  const Mapping first(imports[0], granule()), second(imports[1], granule());
  EXPECT_TRUE(kernel_reads(first, pattern("other")));
  for (const int i : {1, 0}) {
    Sentinel<CUmemGenericAllocationHandle> found;
    EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
        found.out(), i == 0 ? first.data : second.data));
    EXPECT_EQ(found.result(), imports[i].handle()) << "import " << i;
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(found.value));
  }
  EXPECT_TRUE(kernel_reads(second, pattern("other")));
}

// Every granule of a mapping names the handle, not only the first one. Other
// memory is mapped directly after it; the last byte does not name this memory.
static void expect_handle_everywhere(const Chunk& chunk, size_t bytes) {
  const Chunk next = Chunk::create(granule());
  const Reservation range(bytes + granule());
  range.map(0, bytes, chunk);
  range.map(bytes, granule(), next);
  for (const size_t end : {granule() + 1, 2 * granule() + 1, bytes}) {
    Sentinel<CUmemGenericAllocationHandle> found;
    EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
        found.out(), pointer_to(range.at(end - 1))))
        << "byte " << end - 1;
    EXPECT_EQ(found.result(), chunk.handle()) << "byte " << end - 1;
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(found.value));
  }
  range.unmap(bytes, granule());
  range.unmap(0, bytes);
}

TEST(VmmAccess, AnyAddressOfAMappingNamesItsHandle) {
  covers("VMM-32");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    Chunk other = filled_chunk();
    const Reservation range(3 * bytes);
    range.map(0, bytes, chunk);
    range.map(2 * bytes, bytes, other);
    allow(range.at(0), bytes);
    const auto retained = [&](size_t offset) {
      SCOPED_TRACE("offset " + std::to_string(offset));
      Sentinel<CUmemGenericAllocationHandle> found;
      CALL(DRIVER(cuMemRetainAllocationHandle)(found.out(),
                                               pointer_to(range.at(offset))));
      EXPECT_EQ(found.result(),
                offset < bytes ? chunk.handle() : other.handle());
      return found.result();
    };
    CUmemGenericAllocationHandle kept = retained(2 * bytes);
    for (const size_t offset : {size_t{0}, bytes / 2, bytes - 1}) {
      CALL(DRIVER(cuMemRelease)(kept));
      kept = retained(offset);
    }
    Sentinel<CUmemGenericAllocationHandle> none;
    EXPECT_REFUSED(DRIVER(cuMemRetainAllocationHandle)(
                       none.out(), pointer_to(range.at(bytes))),
                   CUDA_ERROR_INVALID_VALUE);
    EXPECT_TRUE(context_is_usable());

    expect_handle_of_new_memory(range, 2 * bytes, chunk, other);
    expect_handle_everywhere(Chunk::create(3 * bytes), 3 * bytes);

    // An address of the mapping still returns a handle that was released. This
    // handle has its properties, and can be exported.
    const CUmemGenericAllocationHandle released = other.handle();
    other.release();
    Sentinel<CUmemGenericAllocationHandle> back;
    EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
        back.out(), pointer_to(range.at(2 * bytes))));
    EXPECT_EQ(back.result(), released);
    send_with_properties(me, Chunk(back.value));

    // Each retained handle is a separate reference. `kept` stays valid after
    // the handle of the import and the other reference have been released.
    const CUmemGenericAllocationHandle other_reference = retained(0);
    range.unmap(2 * bytes, bytes);
    range.unmap(0, bytes);
    chunk.release();
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(other_reference));
    const Mapping again(Chunk(kept), bytes);
    EXPECT_TRUE(kernel_reads(again, pattern("exporter")));
    me.signal("done");
  });
  scenario.role("reader", reads_what_was_retained);
  scenario.run(20s);
}

// Lends memory for which compression is asked. Compression is a hint: a driver
// may refuse the memory, and may give it without compression.
static void lends_compressible_memory(Role& me) {
  CUmemAllocationProp wanted = chunk_of(0);
  wanted.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code =
      NOTED(DRIVER(cuMemCreate)(&handle, granule(wanted), &wanted, 0));
  me.observe("compression attribute " +
             std::to_string(
                 attribute(CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED)) +
             ", cuMemCreate: " + name_of(code));
  me.send("compressible", code);
  if (code != CUDA_SUCCESS) return;
  const Chunk chunk(handle);
  const Mapping mapping(chunk, granule(wanted));
  mapping.fill(pattern("compressible"));
  me.observe("compression that was given: " +
             std::to_string(chunk.properties().allocFlags.compressionType));
  me.send_descriptor("compressible", chunk.descriptor().get());
  me.wait("compressible was read");
}

static void reads_compressible_memory(Role& me) {
  if (me.receive<CUresult>("compressible") != CUDA_SUCCESS) return;
  const Chunk chunk = Chunk::import(me.receive_descriptor("compressible"));
  const CUmemAllocationProp told = chunk.properties();
  me.observe("in the importer: compressionType " +
             std::to_string(told.allocFlags.compressionType));
  const Mapping mapping(chunk, granule(told));
  EXPECT_READS(mapping, pattern("compressible"));
  me.signal("compressible was read");
}

// An exporter that creates memory with gpuDirectRDMACapable and lends it.
static void creates_memory_with_flags(Role& me) {
  const size_t bytes = granule();
  const int rdma =
      attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  CUmemAllocationProp wanted = chunk_of(0);
  wanted.allocFlags.gpuDirectRDMACapable = 1;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = NOTED(DRIVER(cuMemCreate)(&handle, bytes, &wanted, 0));
  me.observe("RDMA attribute " + std::to_string(rdma) +
             ", cuMemCreate with gpuDirectRDMACapable: " + name_of(code));
  if (rdma == 1) {
    EXPECT_EQ(code, CUDA_SUCCESS);
  }
  // If the creation is refused, the exporter lends plain memory instead.
  Chunk chunk =
      code == CUDA_SUCCESS ? Chunk(handle) : Chunk::create(bytes, chunk_of(0));
  const Mapping mapping(chunk, bytes);
  int capable = -1;
  CALL(DRIVER(cuPointerGetAttribute)(
      &capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
      mapping.address()));
  if (rdma == 1)
    EXPECT_EQ(capable, 1);
  else
    me.observe("IS_GPU_DIRECT_RDMA_CAPABLE " + std::to_string(capable));
  mapping.fill(pattern("exporter"));
  me.send_descriptor("descriptor", chunk.descriptor().get());

  me.wait("done");
}

TEST(VmmAccess, FlagsAreRequests) {
  covers("VMM-39");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    creates_memory_with_flags(me);
    lends_compressible_memory(me);
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping mapping(chunk, bytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    int capable = -1;
    CALL(DRIVER(cuPointerGetAttribute)(
        &capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
        mapping.address()));
    const auto flags = chunk.properties().allocFlags;
    me.observe("in the importer: IS_GPU_DIRECT_RDMA_CAPABLE " +
               std::to_string(capable) + ", gpuDirectRDMACapable " +
               std::to_string(flags.gpuDirectRDMACapable));
    me.signal("done");
    reads_compressible_memory(me);
  });
  scenario.run(20s);
}
