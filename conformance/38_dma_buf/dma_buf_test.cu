// Device memory as a dma-buf: which ranges can be exported, and what the call
// gives. Mirror of samples/38_dma_buf.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <vector>

#include "conformance/38_dma_buf/dma_buf_test.h"
#include "harness/scenario/attempts.h"

using namespace ipclab;

static void run_one(std::function<void(Role&)> body) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", std::move(body));
  scenario.run(20s);
}

TEST(DmaBuf, MemoryOfCudaMallocIsExported) {
  covers("DBUF-01");
  needs(gpus(1), dma_buf);
  run_one([](Role&) {
    const size_t bytes = 2 * kTwoMib;
    const auto expect_export = [&](const Words& memory) {
      memory.fill(pattern("exporter"));
      const Words pages = pages_of(memory);
      const Export range(address_of(pages.data), pages.bytes());
      EXPECT_EQ(range.code, CUDA_SUCCESS) << name_of(range.code);
      EXPECT_TRUE(is_dma_buf(range, pages.bytes()));
      EXPECT_READS(memory, pattern("exporter"));
      memory.fill(pattern("again"));
      EXPECT_READS(memory, pattern("again"));
    };
    for (int i = 0; i < 2; ++i) {  // also a second time
      expect_export(DeviceBuffer(bytes));
      expect_export(DriverBuffer(bytes));
      expect_export(DriverBuffer(kTwoMib));
    }
    // Another thread.
    const DriverBuffer memory(bytes);
    const CUresult code =
        in_a_thread([&] { return Export(memory.address(), bytes).code; });
    EXPECT_EQ(code, CUDA_SUCCESS) << "in another thread: " << name_of(code);
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, APartOfMemoryIsExported) {
  covers("DBUF-01");
  needs(gpus(1), dma_buf);
  run_one([](Role& me) {
    const size_t bytes = 2 * kTwoMib, page = host_page();
    const DriverBuffer memory(bytes);
    memory.fill(pattern("exporter"));
    const struct {
      const char* what;
      size_t offset, size;
    } parts[] = {{"the first page", 0, page},
                 {"the first half", 0, bytes / 2},
                 {"all except the last page", 0, bytes - page},
                 {"a page in the middle", 3 * page, page},
                 {"the second half", bytes / 2, bytes / 2},
                 {"the last page", bytes - page, page}};
    for (const auto& part : parts) {
      const Export range(memory.address() + part.offset, part.size);
      if (part.offset != 0 && beyond_the_model(me, range)) continue;
      EXPECT_EQ(range.code, CUDA_SUCCESS)
          << part.what << ": " << name_of(range.code);
      EXPECT_TRUE(is_dma_buf(range, part.size)) << part.what;
    }
    EXPECT_READS(memory, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, MappedMemoryIsExported) {
  covers("DBUF-02");
  needs(gpus(1), dma_buf, vmm);
  run_one([](Role& me) {
    const size_t bytes = granule();
    for (const auto types :
         {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
      SCOPED_TRACE(types);
      if (types != CU_MEM_HANDLE_TYPE_NONE &&
          attribute(
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) ==
              0)
        continue;
      const Chunk chunk = Chunk::create(2 * bytes, chunk_of(0, types));
      const Chunk other = Chunk::create(bytes, chunk_of(0, types));
      const Reservation range(4 * bytes);  // its last quarter stays empty
      range.map(0, 2 * bytes, chunk);
      // No sentence says that the range must be accessible.
      me.observe("of memory without access: " +
                 name_of(Export(range.at(0), 2 * bytes).code));
      range.map(2 * bytes, bytes, other);
      const CUmemAccessDesc access = access_for(0);
      CALL(DRIVER(cuMemSetAccess)(range.at(0), 3 * bytes, &access, 1));
      const Words first = words_at(range.at(0), 2 * bytes),
                  second = words_at(range.at(2 * bytes), bytes);
      first.fill(pattern("first"));
      second.fill(pattern("second"));
      for (const Words& memory : {first, second}) {
        const Export part(address_of(memory.data), memory.bytes());
        EXPECT_EQ(part.code, CUDA_SUCCESS) << name_of(part.code);
        EXPECT_TRUE(is_dma_buf(part, memory.bytes()));
      }
      EXPECT_READS(first, pattern("first"));
      EXPECT_READS(second, pattern("second"));
      range.unmap(0, 2 * bytes);
      range.unmap(2 * bytes, bytes);
    }
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, SeveralAllocationsAreOneRange) {
  covers("DBUF-03");
  needs(gpus(1), dma_buf, vmm);
  run_one([](Role& me) {
    const size_t bytes = granule();
    const Chunk one = Chunk::create(bytes), other = Chunk::create(2 * bytes);
    const Reservation range(3 * bytes);
    range.map(0, bytes, one);
    range.map(bytes, 2 * bytes, other);
    const CUmemAccessDesc access = access_for(0);
    CALL(DRIVER(cuMemSetAccess)(range.at(0), 3 * bytes, &access, 1));
    const Words all = words_at(range.at(0), 3 * bytes);
    all.fill(pattern("exporter"));
    const auto expect_export = [&](size_t offset, size_t size) {
      const Export part(range.at(offset), size);
      if (beyond_the_model(me, part)) return;
      EXPECT_EQ(part.code, CUDA_SUCCESS)
          << size << " bytes at " << offset << ": " << name_of(part.code);
      EXPECT_TRUE(is_dma_buf(part, size));
    };
    expect_export(0, 3 * bytes);
    expect_export(bytes / 2, bytes);  // the end of one, the start of the other
    EXPECT_READS(all, pattern("exporter"));
    range.unmap(0, bytes);
    range.unmap(bytes, 2 * bytes);
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, EachCallGivesADescriptor) {
  covers("DBUF-04");
  needs(gpus(1), dma_buf);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = kTwoMib;
    const DriverBuffer memory(bytes);
    memory.fill(pattern("exporter"));
    std::set<int> numbers;
    std::vector<Export> all;
    for (int i = 0; i < 8; ++i) {
      all.emplace_back(memory.address(), bytes);  // the sentinel has guards
      CALL(all.back().code);
      EXPECT_TRUE(is_dma_buf(all.back(), bytes));
      EXPECT_TRUE(numbers.insert(all.back().descriptor.get()).second)
          << "a descriptor that another call gave is still open";
    }
    const int flags = fcntl(all.front().descriptor.get(), F_GETFD);
    me.observe((flags & FD_CLOEXEC) != 0 ? "the descriptor is close-on-exec"
                                         : "programs inherit the descriptor");
    all.front().descriptor.close();
    for (size_t i = 1; i < all.size(); ++i) EXPECT_TRUE(all[i].is_open());
    all.clear();
    EXPECT_READS(memory, pattern("exporter"));
    // What is exported, refused and closed leaves nothing.
    leaves_nothing(
        200,
        [&](int) {
          const Export right(memory.address(), bytes);
          EXPECT_EQ(right.code, CUDA_SUCCESS);
          const Export beyond(memory.address(), 64 * bytes);
          const Export unaligned(memory.address() + 8, bytes / 2);
          const Export none(memory.address(), 0);
        },
        Judge::kProcess);
  });
  scenario.run(20s);
}

// Makes a call that the caller must not make. Nobody may be harmed: a success
// gives an open descriptor, a refusal leaves none.
static void try_range(Role& me, const std::string& what, CUdeviceptr address,
                      size_t bytes, unsigned long long flags = 0,
                      int type = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
  SCOPED_TRACE(what);
  const auto before = open_descriptors();
  {
    const Export range(address, bytes, flags,
                       static_cast<CUmemRangeHandleType>(type));
    me.observe(what + ": " + name_of(range.code));
    if (range.accepted()) EXPECT_TRUE(range.is_open());
  }
  for (const std::string& left : left_open(before, open_descriptors()))
    ADD_FAILURE() << "is still open: " << left;
}

TEST(DmaBuf, ARangeIsMadeOfPages) {
  covers("DBUF-05");
  needs(gpus(1), dma_buf);
  run_one([](Role& me) {
    const size_t bytes = 2 * kTwoMib, page = host_page();
    const DriverBuffer memory(bytes);
    memory.fill(pattern("exporter"));
    const CUdeviceptr begin = memory.address();
    try_range(me, "8 bytes after the beginning", begin + 8, page);
    try_range(me, "512 bytes after the beginning", begin + 512, page);
    try_range(me, "half a page after the beginning", begin + page / 2, page);
    try_range(me, "a size of 8 bytes", begin, 8);
    try_range(me, "a size of a page and a half", begin, page + page / 2);
    try_range(me, "a page less 8 bytes", begin, page - 8);
    try_range(me, "neither begins nor ends with a page", begin + 8, 100);
    EXPECT_READS(memory, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, ARangeLiesInMemory) {
  covers("DBUF-06");
  needs(gpus(1), dma_buf);
  run_one([](Role& me) {
    const size_t bytes = kTwoMib, page = host_page();
    const DriverBuffer memory(2 * bytes);
    memory.fill(pattern("exporter"));
    const CUdeviceptr begin = memory.address();
    try_range(me, "no bytes", begin, 0);
    try_range(me, "64 times the size", begin, 128 * bytes);
    try_range(me, "all addresses", begin, ~size_t{0} - page + 1);
    try_range(me, "address 0", 0, page);
    try_range(me, "the first page of all", page, page);
    try_range(me, "the last page of all", ~CUdeviceptr{0} - page + 1, page);
    CUdeviceptr former = 0;
    CALL(DRIVER(cuMemAlloc)(&former, bytes));
    CALL(DRIVER(cuMemFree)(former));
    try_range(me, "freed memory", former, bytes);
    EXPECT_READS(memory, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, AReservedRangeIsFullyMapped) {
  covers("DBUF-07");
  needs(gpus(1), dma_buf, vmm);
  run_one([](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    const Reservation range(3 * bytes);
    try_range(me, "addresses without memory", range.at(0), bytes);
    range.map(0, bytes, chunk);
    try_range(me, "memory, then a hole", range.at(0), 2 * bytes);
    range.map(2 * bytes, bytes, chunk);
    try_range(me, "a hole in the middle", range.at(0), 3 * bytes);
    try_range(me, "a hole, then memory", range.at(bytes), 2 * bytes);
    range.unmap(2 * bytes, bytes);
    range.unmap(0, bytes);
    try_range(me, "addresses whose memory is unmapped", range.at(0), bytes);
    EXPECT_READS(mapping, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, AllMemoryOfARangeIsAlike) {
  covers("DBUF-08");
  needs(gpus(1), dma_buf, vmm_fd, second_gpu);
  run_one([](Role& me) {
    int devices = 0;
    CALL(cudaGetDeviceCount(&devices));
    std::vector<std::pair<const char*, CUmemAllocationProp>> others;
    others.emplace_back("without a handle type",
                        chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    CUmemAllocationProp rdma = chunk_of(0);
    rdma.allocFlags.gpuDirectRDMACapable = 1;
    if (attribute(
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 1)
      others.emplace_back("for GPUDirect RDMA", rdma);
    if (devices > 1) others.emplace_back("of the second GPU", chunk_of(1));
    for (const auto& [what, properties] : others) {
      const size_t bytes = std::max(granule(), granule(properties));
      const Chunk one = Chunk::create(bytes),
                  other = Chunk::create(bytes, properties);
      const Reservation range(2 * bytes);
      range.map(0, bytes, one);
      range.map(bytes, bytes, other);
      // GPU 0 may have no access to memory of another GPU.
      const size_t seen = properties.location.id == 0 ? 2 * bytes : bytes;
      const CUmemAccessDesc access = access_for(0);
      CALL(DRIVER(cuMemSetAccess)(range.at(0), seen, &access, 1));
      const Words words = words_at(range.at(0), seen);
      words.fill(pattern("exporter"));
      try_range(me, std::string("beside memory ") + what, range.at(0),
                2 * bytes);
      EXPECT_READS(words, pattern("exporter"));
      range.unmap(0, bytes);
      range.unmap(bytes, bytes);
    }
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, TypeAndFlagsAreThoseOfTheDocumentation) {
  covers("DBUF-09");
  needs(gpus(1), dma_buf);
  run_one([](Role& me) {
    const size_t bytes = kTwoMib;
    const DriverBuffer memory(bytes);
    memory.fill(pattern("exporter"));
    const CUdeviceptr begin = memory.address();
    for (const unsigned long long flags :
         {2ull, 3ull, 1ull << 31, 1ull << 32, 1ull << 63})
      try_range(me, "flags " + std::to_string(flags), begin, bytes, flags);
    for (const int type : {0, 2, 3, INT_MAX})
      try_range(me, "type " + std::to_string(type), begin, bytes, 0, type);
    const auto before = open_descriptors();
    const CUresult code = NOTED(DRIVER(cuMemGetHandleForAddressRange)(
        nullptr, begin, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    me.observe("no place for the descriptor: " + name_of(code));
    EXPECT_TRUE(left_open(before, open_descriptors()).empty());
    EXPECT_READS(memory, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, APciePathIsGivenOrRefused) {
  covers("DBUF-10");
  needs(gpus(1), dma_buf);
  run_one([](Role& me) {
    const size_t bytes = kTwoMib;
    const DriverBuffer memory(bytes);
    memory.fill(pattern("exporter"));
    const auto before = open_descriptors();
    {
      const Export range(memory.address(), bytes,
                         CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
      me.observe("a mapping by PCIe: " + name_of(range.code));
      if (range.accepted()) {
        EXPECT_TRUE(is_dma_buf(range, bytes));
      } else {
        EXPECT_TRUE(
            refused(range.code, "cuMemGetHandleForAddressRange",
                    {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE}));
      }
    }
    EXPECT_TRUE(left_open(before, open_descriptors()).empty());
    // The refusal leaves the usual export as it is.
    const Export usual(memory.address(), bytes);
    EXPECT_EQ(usual.code, CUDA_SUCCESS) << name_of(usual.code);
    EXPECT_TRUE(is_dma_buf(usual, bytes));
    EXPECT_READS(memory, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, HostMemoryIsExportedWhereTheAttributeSaysIt) {
  covers("DBUF-11");
  needs(gpus(1));
  run_one([](Role& me) {
    CALL(cudaFree(nullptr));
    const size_t bytes = kTwoMib;
    const bool promised =
        attribute(CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED) == 1;
    const auto export_host = [&](const std::string& what, void* memory) {
      const Words words(memory, bytes);
      host_writes(words, pattern("host"));
      if (!promised) {
        try_range(me, what, address_of(memory), bytes);
      } else {
        const Export range(address_of(memory), bytes);
        EXPECT_EQ(range.code, CUDA_SUCCESS)
            << what << ": " << name_of(range.code);
        EXPECT_TRUE(is_dma_buf(range, bytes)) << what;
        // No sentence promises that it can be mapped.
        const HostMapping mapping(range.descriptor, bytes);
        if (mapping.is_there()) {
          EXPECT_TRUE(mapping.reads(pattern("host"))) << what;
          mapping.write(pattern("mapped"));
          EXPECT_TRUE(host_reads(words, pattern("mapped"))) << what;
          host_writes(words, pattern("host"));
        }
      }
      EXPECT_TRUE(host_reads(words, pattern("host")));
      CALL(DRIVER(cuMemFreeHost)(memory));
    };
    void* memory = nullptr;
    CALL(DRIVER(cuMemAllocHost)(&memory, bytes));
    export_host("memory of cuMemAllocHost", memory);
    for (const unsigned flags : {0u, unsigned{CU_MEMHOSTALLOC_PORTABLE},
                                 unsigned{CU_MEMHOSTALLOC_DEVICEMAP}}) {
      CALL(DRIVER(cuMemHostAlloc)(&memory, bytes, flags));
      export_host("memory of cuMemHostAlloc, flags " + std::to_string(flags),
                  memory);
    }
    if (!promised)
      me.not_applicable(
          "CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED is 0");
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, OtherMemory) {
  covers("DBUF-12");
  needs(gpus(1), dma_buf);
  run_one([](Role& me) {
    CALL(cudaFree(nullptr));
    const size_t bytes = kTwoMib;
    if (attribute(cudaDevAttrMemoryPoolsSupported) == 1) {
      const Stream stream;
      void* memory = nullptr;
      CALL(cudaMallocAsync(&memory, bytes, stream));
      CALL(cudaStreamSynchronize(stream));
      const Words words(memory, bytes);
      words.fill(pattern("pool"));
      try_range(me, "memory of cudaMallocAsync", address_of(memory), bytes);
      EXPECT_READS(words, pattern("pool"));
      CALL(cudaFreeAsync(memory, stream));
      CALL(cudaStreamSynchronize(stream));
    }
    if (attribute(cudaDevAttrManagedMemory) == 1) {
      void* memory = nullptr;
      CALL(cudaMallocManaged(&memory, bytes));
      const Words words(memory, bytes);
      words.fill(pattern("managed"));
      try_range(me, "managed memory", address_of(memory), bytes);
      EXPECT_READS(words, pattern("managed"));
      CALL(cudaFree(memory));
    }
    void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(pages, MAP_FAILED);
    const Words plain(pages, bytes);
    host_writes(plain, pattern("plain"));
    try_range(me, "memory that CUDA does not know", address_of(pages), bytes);
    if (cudaHostRegister(pages, bytes, cudaHostRegisterDefault) ==
        cudaSuccess) {
      try_range(me, "registered memory", address_of(pages), bytes);
      CALL(cudaHostUnregister(pages));
    }
    cudaGetLastError();
    EXPECT_TRUE(host_reads(plain, pattern("plain")));
    munmap(pages, bytes);
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(DmaBuf, CudaImportsADmaBuf) {
  covers("DBUF-13");
  needs(gpus(1), dma_buf, vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send_descriptor("dma-buf", dma_buf_of(mapping.address(), bytes).get());
    me.wait("done");
    EXPECT_READS(mapping, pattern("exporter"));
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const size_t bytes = granule();
    const Descriptor buffer = me.receive_descriptor("dma-buf");
    const FileIdentity before(buffer.get());
    Sentinel<CUmemGenericAllocationHandle> handle;
    const CUresult code = NOTED(DRIVER(cuMemImportFromShareableHandle)(
        handle.out(), by_value(buffer.get()),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    me.observe("cuMemImportFromShareableHandle of a dma-buf: " + name_of(code));
    // VMM-13: an import never takes the descriptor.
    EXPECT_TRUE(FileIdentity(buffer.get()) == before)
        << "the import has closed the descriptor";
    if (code == CUDA_SUCCESS) {
      const Chunk chunk(handle.result());
      const Mapping mapping(chunk, bytes);
      EXPECT_READS(mapping, pattern("exporter"));
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("done");
  });
  scenario.run(20s);
}

TEST(DmaBuf, OnlyTegraImportsADmaBuf) {
  covers("DBUF-14");
  needs(gpus(1), dma_buf);
  run_one([](Role& me) {
    const size_t bytes = kTwoMib;
    const DriverBuffer memory(bytes);
    memory.fill(pattern("exporter"));
    if (attribute(cudaDevAttrIntegrated) == 1)
      return me.not_applicable("this GPU is integrated, as those of Tegra");
    for_each_api([&](auto api) {
      const Descriptor buffer = dma_buf_of(memory.address(), bytes);
      Sentinel<cudaExternalMemory_t> imported;
      // Takes the descriptor over if it succeeds.
      const int copy = duplicate(buffer);
      const auto code =
          import_external(api, imported.out(), {copy, bytes, 0, kDmaBufType});
      me.observe("an import of a dma-buf: " + name_of(code));
      if (code == decltype(code){}) {
        me.lifted("a GPU that is not of Tegra imports a dma-buf");
        CALL(destroy_external(api, imported.result()));
      } else if (FileIdentity(copy) == FileIdentity(buffer.get())) {
        close(copy);
      } else {
        me.observe("the refused import has closed the descriptor");
      }
      cudaGetLastError();
    });
    EXPECT_READS(memory, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
}

// Frees the memory of an open dma-buf. The report says how much comes back at
// the free; all of it must come back when the descriptor is closed.
static void free_with_descriptor(Role& me, const std::string& what,
                                 size_t bytes, CUdeviceptr address,
                                 const std::function<void()>& free_now) {
  Descriptor buffer = dma_buf_of(address, bytes);
  const size_t before = free_memory();
  free_now();
  const size_t after = free_memory();
  const bool kept = after < before + bytes / 2;
  me.observe(what + (kept ? ": an open dma-buf keeps it after the free"
                          : ": it comes back although a dma-buf is open"));
  EXPECT_NE(fcntl(buffer.get(), F_GETFD), -1);
  buffer.close();
  if (kept) EXPECT_TRUE(returned(before, bytes)) << what;
  EXPECT_TRUE(context_is_usable());
}

TEST(DmaBuf, ADescriptorAfterTheFree) {
  covers("DBUF-15");
  needs(gpus(1), dma_buf, vmm, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 16 * granule();
    EXPECT_TRUE(context_is_usable());
    DriverBuffer buffer(bytes);
    buffer.fill(pattern("exporter"));
    free_with_descriptor(me, "memory of cuMemAlloc", bytes, buffer.address(),
                         [&] { buffer.free(); });
    Chunk chunk = Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    free_with_descriptor(me, "memory of cuMemCreate", bytes, mapping.address(),
                         [&] {
                           mapping.unmap();
                           chunk.release();
                         });
  });
  scenario.run(20s);
}
