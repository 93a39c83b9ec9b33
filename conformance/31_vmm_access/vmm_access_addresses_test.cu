// Reserved addresses, and memory side by side in them.
// Mirror of samples/31_vmm_access.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "conformance/31_vmm_access/vmm_access_test.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr int kChunks = 11;
constexpr int kLater = 5;  // one of these chunks

constexpr size_t kGranules[] = {1, 3, 1};  // of chunks of unequal sizes

constexpr size_t kAllGranules = 5;  // of these chunks together
constexpr int kMany = 70;           // reservations at once

constexpr size_t kWideAlignment = size_t{1} << 30;

}  // namespace

// Addresses that the driver still takes for reserved can be mapped and used.
static void expect_still_reserved(CUdeviceptr address, size_t bytes) {
  const Chunk chunk =
      Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
  EXPECT_SUCCESS(DRIVER(cuMemMap)(address, bytes, 0, chunk.handle(), 0));
  allow(address, bytes);
  const Words words = words_at(address, bytes);
  words.fill(pattern("still reserved"));
  EXPECT_READS(words, pattern("still reserved"));
  EXPECT_SUCCESS(DRIVER(cuMemUnmap)(address, bytes));
}

// The caller must not make these calls, and no sentence says that they are
// refused. A refused call has freed nothing. An accepted one has freed no other
// addresses than its own.
TEST(VmmAccess, AddressesAreFreedAsTheyWereReserved) {
  covers("VMM-26");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapping beside(chunk, bytes);
    beside.fill(pattern("beside"));
    const auto free_wrong = [&](const char* what, size_t offset, size_t size) {
      SCOPED_TRACE(what);
      Sentinel<CUdeviceptr> range;
      CALL(DRIVER(cuMemAddressReserve)(range.out(), 2 * bytes, 0, 0, 0));
      const CUdeviceptr address = range.result();
      const CUresult code =
          NOTED(DRIVER(cuMemAddressFree)(address + offset, size));
      me.observe(std::string(what) + ": " + name_of(code));
      if (code != CUDA_SUCCESS) {
        expect_still_reserved(address, 2 * bytes);
        EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address, 2 * bytes));
      }
      EXPECT_TRUE(kernel_reads(beside, pattern("beside")));
    };
    free_wrong("too small a size", 0, bytes);
    free_wrong("the size 0", 0, 0);
    free_wrong("too large a size", 0, 3 * bytes);
    free_wrong("an address inside", bytes, bytes);
    Reservation range(2 * bytes);
    const CUdeviceptr address = range.at(0);
    range.free();
    me.observe("a second time: " +
               name_of(NOTED(DRIVER(cuMemAddressFree)(address, 2 * bytes))));
    EXPECT_READS(beside, pattern("beside"));
    EXPECT_TRUE(context_is_usable());
  });

  // The guide forbids this call, and names no code for it.
  scenario
      .role("one that frees too early",
            [](Role& me) {
              const size_t bytes = granule();
              const Chunk chunk =
                  Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
              const Mapping mapping(chunk, bytes);
              me.observe("cuMemAddressFree of a mapped range: " +
                         name_of(NOTED(DRIVER(cuMemAddressFree)(
                             mapping.address(), bytes))));
            })
      .may_end_by(SIGSEGV)
      .may_end_by(SIGABRT)
      .in_new_process();  // its state at the end is unknown
  scenario.run(20s);
}

// Judges that a reservation overlaps no other one, if its wanted address lies
// inside the other one, or so close before it that its end would lie there.
static void expect_no_part_is_reserved_twice() {
  const size_t bytes = granule();
  const Reservation taken(4 * bytes);
  for (const CUdeviceptr hint :
       {taken.at(bytes), taken.at(3 * bytes), taken.at(0) - bytes}) {
    Sentinel<CUdeviceptr> found;
    EXPECT_SUCCESS(
        DRIVER(cuMemAddressReserve)(found.out(), 2 * bytes, 0, hint, 0));
    const CUdeviceptr begin = found.result();
    EXPECT_TRUE(begin + 2 * bytes <= taken.at(0) ||
                begin >= taken.at(taken.bytes()))
        << "a part of another reservation";
    EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(begin, 2 * bytes));
  }
}

// Reserves one granule of addresses, at these addresses if that is possible.
static CUdeviceptr reserve_at(CUdeviceptr hint) {
  Sentinel<CUdeviceptr> address;
  EXPECT_SUCCESS(
      DRIVER(cuMemAddressReserve)(address.out(), granule(), 0, hint, 0));
  return address.result();
}

static void free_addresses(CUdeviceptr address) {
  EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address, granule()));
}

static void expect_apart(CUdeviceptr one, CUdeviceptr other) {
  EXPECT_TRUE(one + granule() <= other || other + granule() <= one)
      << "the same addresses are reserved twice";
}

// Judges that no reservation begins where memory is in use.
static void expect_no_reservation_of_memory() {
  const size_t bytes = granule();
  const DeviceBuffer device(bytes);
  void* const room = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  void* const host = pointer_to((address_of(room) + bytes - 1) / bytes * bytes);
  *static_cast<uint32_t*>(host) = kLanded;
  std::vector<std::pair<const char*, const void*>> in_use = {
      {"memory of the host", host}, {"cudaMalloc", device.data}};
  void* pooled = nullptr;
  if (attribute(cudaDevAttrMemoryPoolsSupported) != 0) {
    CALL(cudaMallocAsync(&pooled, 2 * bytes, nullptr));
    CALL(cudaStreamSynchronize(nullptr));
    in_use.emplace_back(
        "memory of a pool",
        pointer_to((address_of(pooled) + bytes - 1) / bytes * bytes));
  }
  for (const auto& [kind, used] : in_use) {
    SCOPED_TRACE(kind);
    const CUdeviceptr elsewhere = reserve_at(address_of(used));
    expect_apart(address_of(used), elsewhere);
    free_addresses(elsewhere);
  }
  if (pooled != nullptr) CALL(cudaFreeAsync(pooled, nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(*static_cast<uint32_t*>(host), kLanded);
  munmap(room, 2 * bytes);
}

TEST(VmmAccess, TheWantedAddressIsAHint) {
  covers("VMM-44");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("owner", [](Role& me) {
    CALL(cudaFree(nullptr));
    const CUdeviceptr first = reserve_at(0);
    const CUdeviceptr second = reserve_at(first);
    expect_apart(first, second);
    free_addresses(first);
    const CUdeviceptr third = reserve_at(first);
    expect_apart(second, third);
    me.observe(std::string("where the wanted addresses are free: ") +
               (third == first ? "these" : "others"));
    free_addresses(second);
    free_addresses(third);
    expect_no_part_is_reserved_twice();

    expect_no_reservation_of_memory();
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// The size must be a multiple of a page. The documentation does not say that
// each such size is possible. If it is, it frees the addresses.
static void observe_size_in_pages(Role& me) {
  const size_t bytes = granule() + static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Sentinel<CUdeviceptr> address;
  const CUresult code =
      NOTED(DRIVER(cuMemAddressReserve)(address.out(), bytes, 0, 0, 0));
  me.observe("a size of one granule and one page: " + name_of(code));
  if (code == CUDA_SUCCESS)
    EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address.result(), bytes));
}

// Addresses are not memory: a process can reserve more of them than the GPU has
// memory.
static void expect_more_addresses_than_memory() {
  size_t free = 0, total = 0;
  CALL(cudaMemGetInfo(&free, &total));
  const size_t bytes = (total / granule() + 1) * granule();
  Sentinel<CUdeviceptr> address;
  EXPECT_SUCCESS(DRIVER(cuMemAddressReserve)(address.out(), bytes, 0, 0, 0));
  EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address.result(), bytes));
}

TEST(VmmAccess, AddressesAreAlignedAsWanted) {
  covers("VMM-44");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("owner", [](Role& me) {
    CALL(cudaFree(nullptr));
    const size_t bytes = granule();
    // The caller must not pass these; no sentence says that they are refused.
    const auto reserve_wrong = [&](const char* what, size_t size,
                                   size_t alignment, CUdeviceptr hint) {
      SCOPED_TRACE(what);
      Sentinel<CUdeviceptr> address;
      const CUresult code = NOTED(
          DRIVER(cuMemAddressReserve)(address.out(), size, alignment, hint, 0));
      me.observe(std::string(what) + ": " + name_of(code));
      if (code == CUDA_SUCCESS)
        EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address.result(), size));
      else
        note_touched(me, address, "cuMemAddressReserve");
      Reservation(bytes).free();  // a right one afterwards
    };
    reserve_wrong("an alignment that is no power of two", bytes, 3 * bytes, 0);
    reserve_wrong("a size that is no multiple of a page", bytes + 1, 0, 0);
    reserve_wrong("a wanted address that is no multiple of a page", bytes, 0,
                  bytes + 16);
    EXPECT_TRUE(context_is_usable());
    observe_size_in_pages(me);
    expect_more_addresses_than_memory();

    // One range may be aligned by chance, so the test reserves several at once.
    // For some of them it asks for an address that is already reserved.
    std::vector<CUdeviceptr> reserved;
    for (const size_t alignment : {bytes, 2 * bytes, kWideAlignment})
      for (int i = 0; i < (alignment == bytes ? kMany : 6); ++i) {
        Sentinel<CUdeviceptr> address;
        const CUdeviceptr hint =
            alignment != bytes && i >= 3 ? reserved.back() : 0;
        EXPECT_SUCCESS(DRIVER(cuMemAddressReserve)(address.out(), bytes,
                                                   alignment, hint, 0));
        EXPECT_EQ(address.result() % alignment, 0u);
        reserved.push_back(address.result());
      }
    std::sort(reserved.begin(), reserved.end());
    for (size_t i = 1; i < reserved.size(); ++i)
      EXPECT_LE(reserved[i - 1] + bytes, reserved[i]) << "two ranges overlap";
    for (const CUdeviceptr address : reserved)
      EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address, bytes));
  });
  scenario.run(20s);
}

static void expect_poison_in_each_chunk(const Reservation& range) {
  for (int k = 0; k < kChunks; ++k) {
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, pointer_to(range.at(k * granule())), sizeof word,
                    cudaMemcpyDeviceToHost));
    EXPECT_EQ(word, 0xEEEEEEEEu) << "chunk " << k;
  }
}

// Judges that a stream writes a word in each of several chunks that lie side by
// side, by single calls and by a batch, and that it waits for the word of the
// right chunk.
static void expect_words_reach_their_chunks(const Reservation& range) {
  const size_t bytes = granule();
  const Stream stream;
  words_at(range.at(0), range.bytes()).poison();
  const auto last_word = [&](uint32_t k) {
    return range.at((k + 1) * bytes - sizeof k);
  };
  const auto expect_each = [&](const char* by, uint32_t more) {
    EXPECT_TRUE(passes(stream));
    for (uint32_t k = 0; k < kChunks; ++k) {
      uint32_t word = ~k;
      CALL(cudaMemcpy(&word, pointer_to(last_word(k)), sizeof word,
                      cudaMemcpyDeviceToHost));
      EXPECT_EQ(word, k + more) << "the last word of chunk " << k << by;
    }
  };
  for (uint32_t k = 0; k < kChunks; ++k)
    EXPECT_SUCCESS(NOTED(DRIVER(cuStreamWriteValue32)(
        stream, last_word(k), k, CU_STREAM_WRITE_VALUE_DEFAULT)));
  expect_each("", 0);
  std::vector<CUstreamBatchMemOpParams> batch(kChunks);
  for (uint32_t k = 0; k < kChunks; ++k) {
    batch[k].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[k].writeValue.address = last_word(k);
    batch[k].writeValue.value = k + kChunks;
  }
  EXPECT_SUCCESS(
      NOTED(DRIVER(cuStreamBatchMemOp)(stream, kChunks, batch.data(), 0)));
  expect_each(", by a batch", kChunks);
}

// The exporter's part of expect_wait_in_later_chunk: it writes the value into
// both chunks, so that no stream waits for ever.
static void end_every_wait(Role& me, const Reservation& range) {
  me.wait("waited for a word");
  for (const int k : {0, kLater})
    CALL(cudaMemcpy(pointer_to(range.at(k * granule())), &kLanded,
                    sizeof kLanded, cudaMemcpyHostToDevice));
  me.signal("no wait is left");
}

// Judges that a stream waits for the word of a later chunk, which has the value
// already, and not for the word of the first chunk.
static void expect_wait_in_later_chunk(Role& me, const Reservation& range) {
  const Stream stream;
  words_at(range.at(0), range.bytes()).poison();
  CALL(cudaMemcpy(pointer_to(range.at(kLater * granule())), &kLanded,
                  sizeof kLanded, cudaMemcpyHostToDevice));
  EXPECT_SUCCESS(NOTED(DRIVER(cuStreamWaitValue32)(
      stream, range.at(kLater * granule()), kLanded, CU_STREAM_WAIT_VALUE_EQ)));
  EXPECT_TRUE(passes(stream)) << "the word of the chunk has the value";
  me.signal("waited for a word");
  me.wait("no wait is left");
}

// Access can be taken from two chunks in the middle, and given to them again,
// also by a call for all chunks, of which the first ones still have access.
static void expect_access_by_chunk(const Reservation& range) {
  const size_t bytes = granule();
  for (const auto flags : {CU_MEM_ACCESS_FLAGS_PROT_NONE, kReadWrite}) {
    EXPECT_SUCCESS(
        set_access(range.at(4 * bytes), 2 * bytes, access_for(0, flags)));
    for (int k = 0; k < kChunks; ++k)
      EXPECT_EQ(access_at(range.at(k * bytes)),
                k == 4 || k == 5 ? static_cast<unsigned>(flags) : 3u)
          << "chunk " << k;
  }
  EXPECT_SUCCESS(set_access(range.at(4 * bytes), 2 * bytes,
                            access_for(0, CU_MEM_ACCESS_FLAGS_PROT_NONE)));
  EXPECT_SUCCESS(set_access(range.at(0), range.bytes(), access_for(0)));
  for (int k = 0; k < kChunks; ++k)
    ASSERT_EQ(access_at(range.at(k * bytes)), 3u)
        << "chunk " << k << ", by a call for all chunks";
}

// One copy from memory of one GPU to memory of the same GPU moves the values of
// all chunks, in both directions.
static void expect_device_copies_move_all(const Words& whole) {
  const DeviceBuffer own(whole.bytes());
  CALL(cudaMemcpy(own.data, whole.data, whole.bytes(),
                  cudaMemcpyDeviceToDevice));
  EXPECT_TRUE(kernel_reads(own, pattern("by the importer"))) << "out of chunks";
  whole.poison();
  CALL(cudaMemcpyAsync(whole.data, own.data, whole.bytes(),
                       cudaMemcpyDeviceToDevice, nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(whole, pattern("by the importer"))) << "into chunks";
  own.poison();
  CALL(DRIVER(cuMemcpyDtoD)(address_of(own.data), address_of(whole.data),
                            whole.bytes()));
  EXPECT_TRUE(kernel_reads(own, pattern("by the importer"))) << "by the driver";
  whole.poison();
  CALL(DRIVER(cuMemcpyDtoDAsync)(address_of(whole.data), address_of(own.data),
                                 whole.bytes(), nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(whole, pattern("by the importer")))
      << "by the driver, into chunks";
}

// Copies begin in the middle of a chunk and end in the middle of the second
// chunk after it.
static void expect_copies_cross_borders(const Reservation& range) {
  const size_t bytes = granule();
  const Words part = words_at(range.at(bytes + bytes / 2), 2 * bytes);
  std::vector<uint32_t> host(part.count), back(part.count);
  const Words on_host(host.data(), part.bytes());
  host_writes(on_host, pattern("over borders"));
  const Stream stream;
  const auto expect_written = [&](const char* by, auto copy) {
    SCOPED_TRACE(by);
    part.poison();
    CALL(cudaDeviceSynchronize());
    CALL(copy());
    CALL(cudaStreamSynchronize(stream));
    EXPECT_TRUE(kernel_reads(part, pattern("over borders")));
  };
  expect_written("cudaMemcpy", [&] {
    return cudaMemcpy(part.data, host.data(), part.bytes(),
                      cudaMemcpyHostToDevice);
  });
  expect_written("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(part.data, host.data(), part.bytes(),
                           cudaMemcpyHostToDevice, stream);
  });
  expect_written("cudaMemcpy2D", [&] {
    return cudaMemcpy2D(part.data, bytes, host.data(), bytes, bytes, 2,
                        cudaMemcpyHostToDevice);
  });
  CALL(cudaMemcpyAsync(back.data(), part.data, part.bytes(),
                       cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(
      host_reads(Words(back.data(), part.bytes()), pattern("over borders")));
}

// Memsets of all kinds begin in the middle of a chunk and end in the middle of
// the second chunk after it.
static void expect_sets_cross_borders(const Reservation& range) {
  constexpr unsigned char kByte = 0x3C;
  constexpr uint32_t kWord = 0x3C3C3C3C;
  const size_t bytes = granule();
  const CUdeviceptr at = range.at(bytes + bytes / 2);
  const Words part = words_at(at, 2 * bytes);
  const Stream stream;
  std::vector<uint32_t> seen(part.count);
  const auto expect_all_set = [&](const char* by, auto set) {
    part.poison();
    CALL(cudaDeviceSynchronize());
    note_call(by);
    CALL(set());
    CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(seen.data(), part.data, part.bytes(),
                    cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), kWord),
              static_cast<std::ptrdiff_t>(part.count))
        << by;
  };
  expect_all_set("cudaMemsetAsync", [&] {
    return cudaMemsetAsync(part.data, kByte, part.bytes(), stream);
  });
  expect_all_set("cudaMemset2D", [&] {
    return cudaMemset2D(part.data, bytes, kByte, bytes, 2);
  });
  expect_all_set("cudaMemset2DAsync", [&] {
    return cudaMemset2DAsync(part.data, bytes, kByte, bytes, 2, stream);
  });
  expect_all_set("cuMemsetD16", [&] {
    return DRIVER(cuMemsetD16)(at, kWord & 0xFFFF, part.bytes() / 2);
  });
  expect_all_set("cuMemsetD16Async", [&] {
    return DRIVER(cuMemsetD16Async)(at, kWord & 0xFFFF, part.bytes() / 2,
                                    stream);
  });
  expect_all_set("cuMemsetD32",
                 [&] { return DRIVER(cuMemsetD32)(at, kWord, part.count); });
  expect_all_set("cuMemsetD32Async", [&] {
    return DRIVER(cuMemsetD32Async)(at, kWord, part.count, stream);
  });
}

TEST(VmmAccess, ImportedChunksLieSideBySide) {
  covers("VMM-35");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  const auto name_of_chunk = [](int k) { return "chunk " + std::to_string(k); };

  scenario.role("exporter", [=](Role& me) {
    const size_t bytes = granule();
    std::deque<Chunk> chunks;
    const Reservation range(kChunks * bytes);
    for (int k = 0; k < kChunks; ++k) {
      chunks.push_back(Chunk::create(bytes));
      range.map(k * bytes, bytes, chunks.back());
    }
    allow(range.at(0), range.bytes());
    for (int k = 0; k < kChunks; ++k) {
      words_at(range.at(k * bytes), bytes).fill(pattern(name_of_chunk(k)));
      me.send_descriptor(name_of_chunk(k), chunks[k].descriptor().get());
    }
    end_every_wait(me, range);
    me.wait("done");
    EXPECT_TRUE(kernel_reads(words_at(range.at(0), range.bytes()),
                             pattern("by the importer")));
    for (int k = 0; k < kChunks; ++k) range.unmap(k * bytes, bytes);
  });

  scenario.role("importer", [=](Role& me) {
    const size_t bytes = granule();
    const Reservation range(kChunks * bytes);
    std::deque<Chunk> chunks;
    for (int k = 0; k < kChunks; ++k) {
      chunks.push_back(Chunk::import(me.receive_descriptor(name_of_chunk(k))));
      range.map(k * bytes, bytes, chunks.back());
    }
    allow(range.at(0), range.bytes());
    for (int k = 0; k < kChunks; ++k) {
      const Words words = words_at(range.at(k * bytes), bytes);
      EXPECT_READS(words, pattern(name_of_chunk(k)));
    }
    // One memset and one kernel use the whole range.
    const Words whole = words_at(range.at(0), range.bytes());
    whole.poison();
    expect_poison_in_each_chunk(range);
    expect_words_reach_their_chunks(range);
    expect_wait_in_later_chunk(me, range);
    expect_copies_cross_borders(range);
    expect_sets_cross_borders(range);
    whole.fill(pattern("by the importer"));
    expect_device_copies_move_all(whole);
    expect_access_by_chunk(range);
    EXPECT_TRUE(copy_reads(whole, pattern("by the importer")));
    for (int k = 0; k < kChunks; ++k) range.unmap(k * bytes, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}

// Does a step for each of several chunks of unequal sizes that lie side by
// side. The step gets the place and the size of the chunk.
template <class Step>
static void for_each_size(Step step) {
  size_t at = 0;
  for (const size_t granules : kGranules) {
    step(at, granules * granule());
    at += granules * granule();
  }
}

TEST(VmmAccess, ChunksOfUnequalSizesLieSideBySide) {
  covers("VMM-35");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Reservation range(kAllGranules * granule());
    for_each_size([&](size_t at, size_t bytes) {
      const Chunk chunk = Chunk::create(bytes);
      range.map(at, bytes, chunk);
      me.send_descriptor("descriptor", chunk.descriptor().get());
    });
    allow(range.at(0), range.bytes());
    expect_access_everywhere(range.at(0), range.bytes(), 3);
    const Words whole = words_at(range.at(0), range.bytes());
    whole.fill(pattern("exporter"));
    me.signal("written");
    me.wait("done");
    EXPECT_TRUE(kernel_reads(whole, pattern("importer")));
    for_each_size([&](size_t at, size_t bytes) { range.unmap(at, bytes); });
  });

  scenario.role("importer", [](Role& me) {
    const Reservation range(kAllGranules * granule());
    for_each_size([&](size_t at, size_t bytes) {
      range.map(at, bytes, Chunk::import(me.receive_descriptor("descriptor")));
    });
    allow(range.at(0), range.bytes());
    expect_access_everywhere(range.at(0), range.bytes(), 3);
    const Words whole = words_at(range.at(0), range.bytes());
    me.wait("written");
    EXPECT_READS(whole, pattern("exporter"));
    whole.fill(pattern("importer"));
    me.signal("done");
    for_each_size([&](size_t at, size_t bytes) { range.unmap(at, bytes); });
  });
  scenario.run(20s);
}

// One way of using the place where memory of a GPU and memory of a NUMA node
// meet in one range. With `by_cpu`, the CPU has access to the part on the node.
static void uses_the_place_between(bool node_first, bool by_cpu, int way) {
  CUmemAllocationProp on_node = chunk_of(0);
  const int node = attribute(cudaDevAttrHostNumaId);
  on_node.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, node < 0 ? 0 : node};
  const size_t bytes = std::max(granule(), granule(on_node));
  const Reservation range(2 * bytes);
  const Chunk of_gpu = Chunk::create(bytes);
  const Chunk of_node = Chunk::create(bytes, on_node);
  range.map(0, bytes, node_first ? of_node : of_gpu);
  range.map(bytes, bytes, node_first ? of_gpu : of_node);
  allow(range.at(0), range.bytes());
  if (by_cpu) {
    const CUmemAccessDesc access{on_node.location, kReadWrite};
    CALL(set_access(range.at(node_first ? 0 : bytes), bytes, access));
  }

  constexpr size_t kBetween = 1408;  // a small copy takes another way
  const Words between = words_at(range.at(bytes - kBetween / 2), kBetween);
  const DeviceBuffer buffer(kBetween);
  std::vector<uint32_t> host(between.count);
  const Words on_host(host.data(), kBetween);
  const Words& other = way < 2 ? on_host : static_cast<const Words&>(buffer);
  const bool to_host = way == 1;
  const bool into = way == 0 || way == 2;
  const Words& from = into ? other : between;
  const Words& to = into ? between : other;
  const Pattern written = pattern("way " + std::to_string(way));
  between.fill(pattern("before"));
  if (way == 0)
    host_writes(from, written);
  else
    from.fill(written);
  CALL(cudaDeviceSynchronize());
  EXPECT_SUCCESS(cudaMemcpy(to.data, from.data, kBetween, cudaMemcpyDefault));
  EXPECT_TRUE(to_host ? host_reads(to, written) : kernel_reads(to, written));
  range.unmap(0, bytes);
  range.unmap(bytes, bytes);
}

TEST(VmmAccess, MemoryOfAGpuAndOfANodeLieSideBySide) {
  covers("VMM-35");
  needs(gpus(1), vmm_fd, numa_vmm);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role& me) {
              CALL(cudaSetDevice(0));
              while (const auto input = me.next_input()) {
                const int which = static_cast<int>(*input);
                uses_the_place_between(which / 4 % 2 == 1, which >= 8,
                                       which % 4);
              }
            })
      .in_new_process()
      .may_end_by(SIGSEGV);
  std::vector<std::string> names;
  for (const char* access : {"", ", access of the CPU"})
    for (const char* first : {"the GPU first", "the node first"})
      for (const char* way :
           {"from the host", "to the host", "from the GPU", "to the GPU"})
        names.push_back(std::string(first) + ", " + way + access);
  for (const Death& death : scenario.run_inputs("exporter", names, 60s)) {
    tabulate("copies where two memories meet", death.input, death.outcome);
    ADD_FAILURE() << "the process dies: " << death.input;
  }
}

// One call gives both GPUs access to memory of both, side by side.
TEST(VmmAccess, ImportsOfTwoGpusAreOneRange) {
  covers("VMM-35");
  needs(gpus(2), vmm_fd, peer_access);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Chunk chunks[] = {Chunk::create(granule(), chunk_of(0)),
                            Chunk::create(granule(), chunk_of(1))};
    for (const Chunk& chunk : chunks)
      me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
  });
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Reservation range(2 * bytes);
    for (const size_t at : {size_t{0}, bytes})
      range.map(at, bytes, Chunk::import(me.receive_descriptor("descriptor")));
    const CUmemAccessDesc list[] = {access_for(0), access_for(1)};
    EXPECT_SUCCESS(DRIVER(cuMemSetAccess)(range.at(0), range.bytes(), list, 2));
    const Words whole = words_at(range.at(0), range.bytes());
    for (const int gpu : {0, 1}) {
      SCOPED_TRACE("GPU " + std::to_string(gpu));
      for (const size_t at : {size_t{0}, bytes})
        ASSERT_EQ(access_at(range.at(at), gpu), 3u) << "at byte " << at;
      CALL(cudaSetDevice(gpu));
      whole.fill(pattern("GPU " + std::to_string(gpu)));
      EXPECT_TRUE(kernel_reads(whole, pattern("GPU " + std::to_string(gpu))));
    }
    CALL(cudaSetDevice(0));
    for (const size_t at : {size_t{0}, bytes}) range.unmap(at, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}

// The distance from the beginning of the addresses does not fit in 32 bits.
TEST(VmmAccess, AnImportIsMappedFarIntoItsAddresses) {
  covers("VMM-35");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk far = Chunk::import(me.receive_descriptor("descriptor"));
    const Chunk near = Chunk::create(bytes);
    const Reservation range(kFourGib + bytes);
    const Words first = words_at(range.at(0), bytes);
    const Words last = words_at(range.at(kFourGib), bytes);
    range.map(kFourGib, bytes, far);
    EXPECT_FALSE(has_memory(range.at(0)));
    range.map(0, bytes, near);
    allow(range.at(0), bytes);
    EXPECT_EQ(access_at(range.at(kFourGib)), kNone);
    allow(range.at(kFourGib), bytes);
    first.fill(pattern("near"));
    EXPECT_READS(last, pattern("exporter"));
    range.unmap(kFourGib, bytes);
    EXPECT_FALSE(has_memory(range.at(kFourGib)));
    EXPECT_TRUE(kernel_reads(first, pattern("near")));
    range.unmap(0, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}
