// Physical memory of cuMemCreate, shared as a file descriptor.
// Mirror of samples/30_vmm_fd.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kGranules = 3;  // of one allocation: not a power of two
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr rlim_t kRoomForDescriptors = 16;
constexpr size_t kMostExports = 4096;
constexpr size_t kFourGib = size_t{4} << 30;
constexpr int kMany = 70;          // imports, of one allocation or of many
constexpr int kManyExports = 300;  // one after the other, of one allocation

// An importer that reads the exporter's pattern.
std::function<void(Role&)> reads_chunk(
    Pattern expected,
    testing::AssertionResult (*reads)(const Words&, Pattern)) {
  return [=](Role& me) {
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const size_t bytes = granule();
    const Mapping mapping(Chunk::import(descriptor), bytes);
    EXPECT_TRUE(reads(mapping, expected));
    me.signal("done");
  };
}

// Does an asynchronous memset run after the kernel that was queued before it in
// its stream?
testing::AssertionResult set_waits_its_turn(const Words& memory) {
  constexpr uint32_t kBefore = 0x11111111, kSet = 0x3C3C3C3C;
  const Stream stream;
  Latch latch;
  uint32_t seen = 0;
  CALL(cudaMemset(memory.data, 0x11, memory.bytes()));
  CALL(cudaDeviceSynchronize());
  latch.hold(stream);
  CALL(cudaMemsetAsync(memory.data, 0x3C, memory.bytes(), stream));
  const bool held = is_held(stream);
  CALL(cudaMemcpy(&seen, memory.data, sizeof seen, cudaMemcpyDeviceToHost));
  latch.release();
  if (!held || seen != kBefore)
    return testing::AssertionFailure()
           << "the memset has not waited for the kernel";
  if (const auto done = passes(stream); !done) return done;
  CALL(cudaMemcpy(&seen, memory.data, sizeof seen, cudaMemcpyDeviceToHost));
  return seen == kSet ? testing::AssertionSuccess()
                      : testing::AssertionFailure() << "nothing was set";
}

bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) != -1; }

std::string ptrace_scope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  std::string value;
  return file >> value ? value : "not there";
}

}  // namespace

TEST(VmmFd, KernelOfTheImporterReadsWhatTheExporterWrote) {
  covers("VMM-06");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", reads_chunk(pattern("exporter"), kernel_reads));
  scenario.run(20s);
}

TEST(VmmFd, CopyOfTheImporterReadsWhatTheExporterWrote) {
  covers("VMM-06");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", reads_chunk(pattern("exporter"), copy_reads));
  scenario.run(20s);
}

// The documentation does not say whether an import can be exported. If it can,
// the new descriptor stands for the same memory.
TEST(VmmFd, AnImportThatIsExportedAgainIsTheSameMemory) {
  covers("VMM-06");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    Sentinel<int> number;
    const CUresult code = NOTED(DRIVER(cuMemExportToShareableHandle)(
        number.out(), chunk.handle(), kFd, 0));
    me.observe("the export of an import: " + name_of(code));
    me.send("exported", code == CUDA_SUCCESS);
    if (code == CUDA_SUCCESS)
      me.send_descriptor("again", Descriptor(number.result()).get());
    me.wait("tried");
    const Mapping mapping(chunk, granule());
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.signal("done");
  });
  scenario.role("importer of the import", [](Role& me) {
    if (me.receive<bool>("exported")) {
      const Mapping mapping(Chunk::import(me.receive_descriptor("again")),
                            granule());
      EXPECT_READS(mapping, pattern("exporter"));
    }
    me.signal("tried");
  });
  scenario.run(20s);
}

// A memset sets all bytes, and then a stream writes the first word.
static void expect_word_and_memset_arrive(const Words& words) {
  const Stream stream;
  words.poison();
  CALL(cudaDeviceSynchronize());
  EXPECT_SUCCESS(NOTED(DRIVER(cuStreamWriteValue32)(
      stream, address_of(words.data), 7, CU_STREAM_WRITE_VALUE_DEFAULT)));
  EXPECT_TRUE(passes(stream));
  uint32_t seen[2] = {};
  CALL(cudaMemcpy(seen, words.data, sizeof seen, cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen[0], 7u) << "the word that a stream writes";
  EXPECT_EQ(seen[1], 0xEEEEEEEEu) << "a word that the memset sets";
}

// A memset reaches the last word of memory whose size does not fit in 32 bits.
static void expect_set_to_the_end(const Words& memory) {
  const Stream stream;
  for (const bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous ? "cudaMemsetAsync" : "cudaMemset");
    uint32_t first = 7, last = 7;
    uint32_t* const end = memory.data + memory.count - 1;
    for (uint32_t* word : {memory.data, end})
      CALL(cudaMemcpy(word, &first, sizeof first, cudaMemcpyDefault));
    CALL(cudaDeviceSynchronize());
    CALL(asynchronous ? cudaMemsetAsync(memory.data, 0, memory.bytes(), stream)
                      : cudaMemset(memory.data, 0, memory.bytes()));
    CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(&first, memory.data, sizeof first, cudaMemcpyDefault));
    CALL(cudaMemcpy(&last, end, sizeof last, cudaMemcpyDefault));
    EXPECT_EQ(first, 0u) << "the first word";
    EXPECT_EQ(last, 0u) << "the last word";
  }
}

// The size does not fit in 32 bits. Apart from two memsets, the test uses only
// the first and the last part of the memory.
TEST(VmmFd, MoreThanFourGibibytesAreSharedWhole) {
  covers("VMM-06");
  needs(gpus(1), vmm_fd);
  const auto whole = [] { return kFourGib + granule(); };
  const auto first = [](const Mapping& mapping) {
    return Words(mapping.data, granule());
  };
  const auto last = [](const Mapping& mapping) {
    return Words(mapping.data + kFourGib / sizeof(uint32_t), granule());
  };
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [=](Role& me) {
    const Chunk chunk = Chunk::create(whole());
    const Mapping mapping(chunk, whole());
    first(mapping).fill(pattern("first"));
    last(mapping).fill(pattern("last"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
    EXPECT_TRUE(kernel_reads(first(mapping), pattern("first of the importer")));
    EXPECT_TRUE(kernel_reads(last(mapping), pattern("last of the importer")));
  });

  scenario.role("importer", [=](Role& me) {
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const Mapping mapping(Chunk::import(descriptor), whole());
    EXPECT_TRUE(kernel_reads(first(mapping), pattern("first")));
    EXPECT_READS(last(mapping), pattern("last"));
    expect_word_and_memset_arrive(last(mapping));
    expect_set_to_the_end(mapping);
    first(mapping).fill(pattern("first of the importer"));
    last(mapping).fill(pattern("last of the importer"));
    me.signal("done");
  });

  scenario.run(30s);
}

// Two peers lend memory of one size to each other and to a third process.
TEST(VmmFd, MemoryOfTwoExportersIsKeptApart) {
  covers("VMM-06");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  const auto of = [](int peer) { return "peer " + std::to_string(peer); };
  scenario.roles("peer", 2, [=](Role& me) {
    const std::string mine = of(me.index()), other = of(1 - me.index());
    const Chunk chunk = Chunk::create(granule());
    const Mapping own(chunk, granule());
    own.fill(pattern(mine));
    for (int i = 0; i < 2; ++i)
      me.send_descriptor(mine, chunk.descriptor().get());
    const Mapping theirs(Chunk::import(me.receive_descriptor(other)),
                         granule());
    EXPECT_READS(theirs, pattern(other));
    EXPECT_TRUE(kernel_reads(own, pattern(mine)));
    me.signal("read by " + mine);
    me.wait("read by " + other);
    me.wait("read by the third");
  });
  scenario.role("third", [=](Role& me) {
    const Mapping first(Chunk::import(me.receive_descriptor(of(0))), granule());
    const Mapping second(Chunk::import(me.receive_descriptor(of(1))),
                         granule());
    EXPECT_TRUE(kernel_reads(first, pattern(of(0))));
    EXPECT_TRUE(kernel_reads(second, pattern(of(1))));
    me.signal("read by the third");
  });
  scenario.run(20s);
}

// Rectangles and boxes that the driver API copies reach imported memory.
static void expect_driver_copies_rectangles(const Words& memory) {
  constexpr size_t kWidth = 100, kHeight = 3;
  // cuMemcpy2D may refuse any other pitch.
  CUdeviceptr rows = 0;
  size_t pitch = 0;
  CALL(DRIVER(cuMemAllocPitch)(&rows, &pitch, kWidth, kHeight, 4));
  CALL(DRIVER(cuMemFree)(rows));
  const DeviceBuffer own(pitch * kHeight);
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.srcDevice = address_of(own.data);
  flat.dstDevice = address_of(memory.data);
  flat.srcPitch = flat.dstPitch = pitch;
  flat.WidthInBytes = kWidth;
  flat.Height = kHeight;
  CUDA_MEMCPY3D deep{};
  deep.srcMemoryType = deep.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  deep.srcDevice = flat.srcDevice;
  deep.dstDevice = flat.dstDevice;
  deep.srcPitch = deep.dstPitch = pitch;
  deep.srcHeight = deep.dstHeight = deep.Height = kHeight;
  deep.WidthInBytes = kWidth;
  deep.Depth = 1;
  const auto expect_copied = [&](const char* way, auto copy) {
    memory.poison();
    own.fill(pattern(way));
    EXPECT_SUCCESS(copy());
    CALL(cudaDeviceSynchronize());
    const size_t last_row = (kHeight - 1) * pitch / sizeof(uint32_t);
    const size_t last = kWidth / sizeof(uint32_t) - 1;
    std::vector<uint32_t> seen(last + 2);
    CALL(cudaMemcpy(seen.data(), memory.data + last_row,
                    seen.size() * sizeof seen[0], cudaMemcpyDefault));
    EXPECT_EQ(seen[last], pattern(way).at(last_row + last)) << way;
    EXPECT_EQ(seen[last + 1], 0xEEEEEEEEu) << way << ", after the row";
  };
  expect_copied("cuMemcpy2D", [&] { return DRIVER(cuMemcpy2D)(&flat); });
  expect_copied("cuMemcpy2DAsync",
                [&] { return DRIVER(cuMemcpy2DAsync)(&flat, nullptr); });
  expect_copied("cuMemcpy3D", [&] { return DRIVER(cuMemcpy3D)(&deep); });
  expect_copied("cuMemcpy3DAsync",
                [&] { return DRIVER(cuMemcpy3DAsync)(&deep, nullptr); });
}

TEST(VmmFd, EachSideSeesTheOthersLaterWrites) {
  covers("VMM-07");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = kGranules * granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("A"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    // The importer writes this memory before the exporter maps it.
    const Chunk unmapped = Chunk::create(granule());
    me.send_descriptor("unmapped", unmapped.descriptor().get());

    me.wait("B written");
    EXPECT_READS(mapping, pattern("B"));
    mapping.fill(pattern("C"));
    me.signal("C written");
    me.wait("done");
    EXPECT_TRUE(kernel_reads(Mapping(unmapped, granule()),
                             pattern("by the importer alone")));
    me.signal("unmapped again");
    me.wait("written meanwhile");
    EXPECT_TRUE(
        kernel_reads(Mapping(unmapped, granule()), pattern("meanwhile")));
    lend_in_every_way(me, mapping);
  });

  scenario.role("importer", [](Role& me) {
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const Mapping mapping(Chunk::import(descriptor), kGranules * granule());
    EXPECT_READS(mapping, pattern("A"));
    mapping.fill(pattern("B"));
    me.signal("B written");

    me.wait("C written");
    EXPECT_READS(mapping, pattern("C"));
    const Mapping other(Chunk::import(me.receive_descriptor("unmapped")),
                        granule());
    other.fill(pattern("by the importer alone"));
    me.signal("done");
    me.wait("unmapped again");
    other.fill(pattern("meanwhile"));
    me.signal("written meanwhile");
    borrow_in_every_way(me, mapping);
    EXPECT_TRUE(copy_waits_its_turn(mapping));
    EXPECT_TRUE(set_waits_its_turn(mapping));
    expect_driver_copies_rectangles(mapping);
    expect_streams_reach(mapping);
  });

  scenario.run(20s);
}

// Two threads import from one descriptor. Each import is a reference of its
// own.
static void expect_each_thread_has_its_import(const Descriptor& descriptor) {
  Sentinel<CUmemGenericAllocationHandle> handles[2];
  in_two_threads([&](int i) {
    SCOPED_TRACE("in thread " + std::to_string(i));
    EXPECT_SUCCESS(DRIVER(cuMemImportFromShareableHandle)(
        handles[i].out(), by_value(descriptor.get()), kFd));
  });
  EXPECT_SUCCESS(DRIVER(cuMemRelease)(handles[0].result()));
  const Mapping mapping(Chunk(handles[1].result()), granule());
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")))
      << "the other thread's import was released";
}

// Does a call succeed while this thread has no current context?
template <class Call>
static testing::AssertionResult works_without_context(const char* name,
                                                      Call call) {
  CUcontext context = nullptr;
  CALL(DRIVER(cuCtxGetCurrent)(&context));
  CALL(DRIVER(cuCtxSetCurrent)(nullptr));
  const CUresult code = call();
  CALL(DRIVER(cuCtxSetCurrent)(context));
  note_call(name);
  return gives(code, name, {});
}

// A handle and a place for its memory.
struct Place {
  Sentinel<CUmemGenericAllocationHandle> handle;
  Sentinel<CUdeviceptr> address;
};

// Maps the memory of a handle and makes it usable. The thread has no current
// context.
static void map_without_context(Place& place, size_t bytes) {
  const CUmemAccessDesc access = access_for(0);
  ASSERT_TRUE(works_without_context("cuMemAddressReserve, no context", [&] {
    return DRIVER(cuMemAddressReserve)(place.address.out(), bytes, 0, 0, 0);
  }));
  ASSERT_TRUE(works_without_context("cuMemMap, no context", [&] {
    return DRIVER(cuMemMap)(place.address.result(), bytes, 0,
                            place.handle.value, 0);
  }));
  ASSERT_TRUE(works_without_context("cuMemSetAccess, no context", [&] {
    return DRIVER(cuMemSetAccess)(place.address.value, bytes, &access, 1);
  }));
}

// Asks for what a mapping and its handle say. The thread has no current
// context.
static void ask_without_context(const Place& place) {
  const CUmemAllocationProp wanted = chunk_of(0);
  Sentinel<size_t> least;
  EXPECT_TRUE(works_without_context("cuMemGetAllocationGranularity", [&] {
    return DRIVER(cuMemGetAllocationGranularity)(
        least.out(), &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  }));
  Sentinel<unsigned long long> flags;
  EXPECT_TRUE(works_without_context("cuMemGetAccess, no context", [&] {
    return DRIVER(cuMemGetAccess)(flags.out(), &wanted.location,
                                  place.address.value);
  }));
  CUmemAllocationProp told{};
  EXPECT_TRUE(works_without_context("properties, no context", [&] {
    return DRIVER(cuMemGetAllocationPropertiesFromHandle)(&told,
                                                          place.handle.value);
  }));
  EXPECT_EQ(flags.value, 3u);
  EXPECT_EQ(told.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  Sentinel<CUmemGenericAllocationHandle> retained;
  ASSERT_TRUE(works_without_context("cuMemRetainAllocationHandle", [&] {
    return DRIVER(cuMemRetainAllocationHandle)(
        retained.out(), words_at(place.address.value, 1).data);
  }));
  EXPECT_TRUE(works_without_context("cuMemRelease, no context", [&] {
    return DRIVER(cuMemRelease)(retained.result());
  }));
}

// Gives back what map_without_context has made. The thread has no current
// context.
static void give_back_without_context(const Place& place, size_t bytes) {
  EXPECT_TRUE(works_without_context("cuMemUnmap, no context", [&] {
    return DRIVER(cuMemUnmap)(place.address.value, bytes);
  }));
  EXPECT_TRUE(works_without_context("cuMemAddressFree, no context", [&] {
    return DRIVER(cuMemAddressFree)(place.address.value, bytes);
  }));
  EXPECT_TRUE(works_without_context("cuMemRelease, no context", [&] {
    return DRIVER(cuMemRelease)(place.handle.value);
  }));
}

// No context owns memory of cuMemCreate, so a thread without a current context
// may share it, too. `descriptor` stands for the exporter's memory.
static void expect_no_context_is_needed(const Descriptor& descriptor) {
  const size_t bytes = granule();
  const CUmemAllocationProp wanted = chunk_of(0);
  Place imported, created;
  ASSERT_TRUE(works_without_context("cuMemImportFromShareableHandle", [&] {
    return DRIVER(cuMemImportFromShareableHandle)(
        imported.handle.out(), by_value(descriptor.get()), kFd);
  }));
  ASSERT_TRUE(works_without_context("cuMemCreate, no context", [&] {
    return DRIVER(cuMemCreate)(created.handle.out(), bytes, &wanted, 0);
  }));
  for (Place* place : {&imported, &created})
    ASSERT_NO_FATAL_FAILURE(map_without_context(*place, bytes));
  const Words words = words_at(created.address.value, bytes);
  EXPECT_TRUE(kernel_reads(words_at(imported.address.value, bytes),
                           pattern("exporter")));
  words.fill(pattern("created"));
  EXPECT_TRUE(kernel_reads(words, pattern("created")));
  int number = -1;
  EXPECT_TRUE(works_without_context("cuMemExportToShareableHandle", [&] {
    return DRIVER(cuMemExportToShareableHandle)(&number, created.handle.value,
                                                kFd, 0);
  }));
  const Descriptor exported(number);
  for (const Place* place : {&imported, &created}) {
    ask_without_context(*place);
    give_back_without_context(*place, bytes);
  }
}

// An importer whose calls are made in several threads.
static void uses_chunks_in_threads(Role& me) {
  const Descriptor descriptors[2] = {me.receive_descriptor("descriptor"),
                                     me.receive_descriptor("descriptor")};
  const size_t bytes = granule();
  Sentinel<CUmemGenericAllocationHandle> handles[2];
  CUresult codes[2], released[2];
  in_two_threads([&](int i) {
    codes[i] = DRIVER(cuMemImportFromShareableHandle)(
        handles[i].out(), by_value(descriptors[i].get()), kFd);
  });
  Chunk chunks[2] = {Chunk(handles[0].result()), Chunk(handles[1].result())};
  expect_each_thread_has_its_import(descriptors[0]);
  expect_no_context_is_needed(descriptors[0]);
  const Mapping mapping(chunks[1], bytes);
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  const CUmemAccessDesc access = access_for(0);
  EXPECT_EQ(in_a_thread([&] {
              return DRIVER(cuMemSetAccess)(mapping.address(), bytes, &access,
                                            1);
            }),
            CUDA_SUCCESS);
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")))
      << "after the thread that gave access";
  const Reservation range(bytes);
  EXPECT_EQ(in_a_thread([&] {
              return DRIVER(cuMemMap)(range.at(0), bytes, 0, chunks[0].handle(),
                                      0);
            }),
            CUDA_SUCCESS);
  EXPECT_SUCCESS(DRIVER(cuMemSetAccess)(range.at(0), bytes, &access, 1));
  EXPECT_TRUE(kernel_reads(words_at(range.at(0), bytes), pattern("exporter")))
      << "after the thread that mapped";
  Sentinel<CUmemGenericAllocationHandle> retained, none;
  void* const mapped = words_at(range.at(0), bytes).data;
  EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(retained.out(), mapped));
  EXPECT_EQ(retained.value, chunks[0].handle()) << "mapped by another thread";
  EXPECT_SUCCESS(DRIVER(cuMemRelease)(retained.value));
  EXPECT_SUCCESS(DRIVER(cuMemUnmap)(range.at(0), bytes));
  EXPECT_REFUSED(DRIVER(cuMemRetainAllocationHandle)(none.out(), mapped),
                 CUDA_ERROR_INVALID_VALUE)
      << "unmapped by another thread than the one that mapped";
  in_two_threads(
      [&](int i) { released[i] = DRIVER(cuMemRelease)(chunks[i].forget()); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(codes[i], CUDA_SUCCESS) << "in thread " << i;
    EXPECT_EQ(released[i], CUDA_SUCCESS) << "in thread " << i;
  }
  const DeviceBuffer own(bytes);
  own.fill(pattern("of a thread"));
  EXPECT_EQ(in_a_thread([&] {
              return cudaMemcpy(mapping.data, own.data, bytes,
                                cudaMemcpyDeviceToDevice);
            }),
            cudaSuccess);
  EXPECT_TRUE(kernel_reads(mapping, pattern("of a thread")))
      << "copied by another thread";
  mapping.fill(pattern("importer"));
  me.signal("done");
}

// Two threads create memory and reserve addresses. One of these threads ends
// before two threads map the memory. Then each thread releases the memory of
// the other thread.
static void owns_chunks_in_threads() {
  const size_t bytes = granule();
  const CUmemAllocationProp wanted = chunk_of(0);
  const CUmemAccessDesc access = access_for(0);
  Sentinel<CUmemGenericAllocationHandle> handles[2];
  Sentinel<CUdeviceptr> addresses[2];
  in_two_threads([&](int i) {
    SCOPED_TRACE("in thread " + std::to_string(i));
    EXPECT_SUCCESS(DRIVER(cuMemCreate)(handles[i].out(), bytes, &wanted, 0));
    EXPECT_SUCCESS(
        DRIVER(cuMemAddressReserve)(addresses[i].out(), bytes, 0, 0, 0));
  });
  in_two_threads([&](int i) {
    SCOPED_TRACE("in thread " + std::to_string(i));
    EXPECT_SUCCESS(DRIVER(cuMemMap)(addresses[i].result(), bytes, 0,
                                    handles[i].result(), 0));
    EXPECT_SUCCESS(
        DRIVER(cuMemSetAccess)(addresses[i].value, bytes, &access, 1));
  });
  for (const auto& address : addresses) {
    const Words words = words_at(address.result(), bytes);
    words.fill(pattern("of a thread"));
    EXPECT_TRUE(kernel_reads(words, pattern("of a thread")));
  }
  in_two_threads([&](int i) {
    SCOPED_TRACE("in thread " + std::to_string(i));
    const CUdeviceptr address = addresses[1 - i].value;
    EXPECT_EQ(access_at(address), 3u) << "set by another thread";
    EXPECT_SUCCESS(DRIVER(cuMemUnmap)(address, bytes));
    EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address, bytes));
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(handles[1 - i].value));
  });
}

// Imports, maps, reads and gives back memory many times. Returns what is wrong,
// or nothing. A thread that other threads run beside may not throw, so this
// function does not use CALL.
static std::string imports_many_times(const Descriptor& descriptor,
                                      size_t bytes, uint32_t first_word) {
  constexpr int kTimes = 100;
  const CUmemAccessDesc access = access_for(0);
  for (int i = 0; i < kTimes; ++i) {
    CUmemGenericAllocationHandle chunk = 0;
    CUdeviceptr at = 0;
    uint32_t word = 0;
    CUresult code = CUDA_SUCCESS;
    const auto succeeds = [&code](CUresult result) {
      code = result;
      return code == CUDA_SUCCESS;
    };
    if (!succeeds(DRIVER(cuMemImportFromShareableHandle)(
            &chunk, by_value(descriptor.get()), kFd)) ||
        !succeeds(DRIVER(cuMemAddressReserve)(&at, bytes, 0, 0, 0)) ||
        !succeeds(DRIVER(cuMemMap)(at, bytes, 0, chunk, 0)) ||
        !succeeds(DRIVER(cuMemSetAccess)(at, bytes, &access, 1)) ||
        !succeeds(DRIVER(cuMemcpyDtoH)(&word, at, sizeof word)) ||
        !succeeds(DRIVER(cuMemUnmap)(at, bytes)) ||
        !succeeds(DRIVER(cuMemAddressFree)(at, bytes)) ||
        !succeeds(DRIVER(cuMemRelease)(chunk)))
      return "a call returns " + name_of(code);
    if (word != first_word) return "other memory";
  }
  return "";
}

// An importer of two allocations. Each of two threads imports one of them, both
// at the same time.
static void imports_in_threads_at_once(Role& me) {
  const Descriptor one = me.receive_descriptor("one");
  const Descriptor other = me.receive_descriptor("other");
  CALL(cudaFree(nullptr));
  const size_t bytes = granule();
  const uint32_t words[] = {pattern("one").at(0), pattern("other").at(0)};
  std::string found[2];
  std::atomic<int> there{0};
  const auto meet = [&] {
    for (++there; there < 2;) std::this_thread::yield();
  };
  note_call("two threads import");
  std::thread second([&] {
    const cudaError_t current = cudaSetDevice(0);
    meet();
    found[1] = current == cudaSuccess
                   ? imports_many_times(other, bytes, words[1])
                   : name_of(current);
  });
  meet();
  found[0] = imports_many_times(one, bytes, words[0]);
  second.join();
  for (const std::string& wrong : found) EXPECT_EQ(wrong, "");
  me.signal("imported at once");
}

TEST(VmmFd, EveryThreadMayShareChunks) {
  covers("VMM-43");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    Sentinel<int> numbers[2];
    CUresult codes[2];
    in_two_threads([&](int i) {
      codes[i] = DRIVER(cuMemExportToShareableHandle)(numbers[i].out(),
                                                      chunk.handle(), kFd, 0);
    });
    owns_chunks_in_threads();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(codes[i], CUDA_SUCCESS) << "in thread " << i;
      const Descriptor exported(numbers[i].result());
      me.send_descriptor("descriptor", exported.get());
    }
    me.wait("done");
    EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
    std::deque<Chunk> chunks;
    for (const char* name : {"one", "other"}) {
      chunks.push_back(Chunk::create(bytes));
      Mapping(chunks.back(), bytes).fill(pattern(name));
      me.send_descriptor(name, chunks.back().descriptor().get());
    }
    me.wait("imported at once");
  });

  scenario.role("importer", [](Role& me) {
    uses_chunks_in_threads(me);
    imports_in_threads_at_once(me);
  });

  scenario.run(20s);
}

// --- what a descriptor is ---------------------------------------------------

TEST(VmmFd, AnExportedDescriptorIsOpenUntilItIsClosed) {
  covers("VMM-08");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));

    for (int i = 0; i < kManyExports; ++i)
      EXPECT_TRUE(chunk.descriptor());  // closed at once
    int numbers[2] = {-1, -1};
    in_two_threads([&](int i) {  // the thread of the second one ends
      EXPECT_SUCCESS(DRIVER(cuMemExportToShareableHandle)(
          &numbers[i], chunk.handle(), kFd, 0));
    });
    Descriptor first(numbers[0]), second(numbers[1]);
    ASSERT_TRUE(is_open(first.get()));
    ASSERT_TRUE(is_open(second.get()));
    Mapping(chunk, bytes).unmap();
    ASSERT_TRUE(is_open(first.get())) << "after an unmapping";
    ASSERT_TRUE(is_open(second.get())) << "after an unmapping";
    me.observe(numbers[0] == numbers[1] ? "two exports give one number"
                                        : "two exports give two numbers");
    me.observe((fcntl(first.get(), F_GETFD) & FD_CLOEXEC) != 0
                   ? "the descriptor is close-on-exec"
                   : "the descriptor stays open in a program that is started");

    me.send_descriptor("descriptor", first.get());
    me.send_descriptor("descriptor", second.get());
    const int number = first.get();
    first.close();
    EXPECT_FALSE(is_open(number)) << "after close";
    EXPECT_TRUE(is_open(second.get())) << "after close of the other";
    me.wait("done", 2);
    chunk.release();
    ASSERT_TRUE(is_open(second.get())) << "after the release of the handle";
    me.send_descriptor("descriptor", second.get());
    me.wait("done");
    second.close();
    EXPECT_READS(mapping, pattern("exporter"));
    mapping.fill(pattern("later"));
    me.signal("written again");
    me.wait("read again", 3);
  });

  scenario.roles("importer", 3, [](Role& me) {
    const Mapping mapping(Chunk::import(me.receive_descriptor("descriptor")),
                          granule());
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.signal("done");
    me.wait("written again");
    EXPECT_TRUE(kernel_reads(mapping, pattern("later")));
    me.signal("read again");
  });
  scenario.run(20s);
}

// The exporter makes the second descriptor while an importer uses the first
// one. Both descriptors stand for the same memory.
TEST(VmmFd, AnExportAfterAnImportIsTheSameMemory) {
  covers("VMM-08");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send_descriptor("first", chunk.descriptor().get());
    me.wait("imported");
    me.send_descriptor("second", chunk.descriptor().get());
    me.wait("read by the second");
    EXPECT_TRUE(kernel_reads(mapping, pattern("of the first")));
  });
  scenario.role("first importer", [](Role& me) {
    const Mapping mapping(Chunk::import(me.receive_descriptor("first")),
                          granule());
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.signal("imported");
    me.wait("written by the second");
    EXPECT_TRUE(kernel_reads(mapping, pattern("of the second")));
    mapping.fill(pattern("of the first"));
    me.signal("written by the first");
  });
  scenario.role("second importer", [](Role& me) {
    const Mapping mapping(Chunk::import(me.receive_descriptor("second")),
                          granule());
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.fill(pattern("of the second"));
    me.signal("written by the second");
    me.wait("written by the first");
    EXPECT_TRUE(kernel_reads(mapping, pattern("of the first")));
    me.signal("read by the second");
  });
  scenario.run(20s);
}

// An exporter that limits itself to a few more descriptors, and exports until
// the limit.
static void exports_until_descriptors_run_out(Role& me) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping mapping(chunk, bytes);
  mapping.fill(pattern("exporter"));

  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = static_cast<rlim_t>(open_descriptors().rbegin()->first) + 1 +
                   kRoomForDescriptors;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);

  std::vector<Descriptor> exported;
  CUresult code = CUDA_SUCCESS;
  while (code == CUDA_SUCCESS && exported.size() < kMostExports) {
    int number = -1;
    code = NOTED(
        DRIVER(cuMemExportToShareableHandle)(&number, chunk.handle(), kFd, 0));
    if (code != CUDA_SUCCESS) break;
    ASSERT_TRUE(is_open(number)) << "export " << exported.size();
    exported.emplace_back(number);
  }
  ASSERT_NE(code, CUDA_SUCCESS)
      << exported.size() << " exports with a limit of " << limit.rlim_cur;
  ASSERT_FALSE(exported.empty());
  me.tabulate(
      "cuMemExportToShareableHandle without a free descriptor",
      "RLIMIT_NOFILE reached",
      outcome_of(code, {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED,
                        CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_PERMITTED,
                        CUDA_ERROR_NOT_SUPPORTED}));

  exported.resize(exported.size() / 2);
  EXPECT_TRUE(context_is_usable());
  me.send_descriptor("descriptor", chunk.descriptor().get());
  me.wait("done");
}

// A process that closes no descriptors reaches its limit. It can export again
// after it has closed some of them.
TEST(VmmFd, ExportGoesOnWhereDescriptorsHadRunOut) {
  covers("VMM-08");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", exports_until_descriptors_run_out).in_new_process();

  scenario.role("importer", reads_chunk(pattern("exporter"), kernel_reads));
  scenario.run(20s);
}

// A copy of a descriptor with a number above 1023, or none if this process may
// not have such a number.
static Descriptor copy_with_high_number(const Descriptor& descriptor) {
  constexpr int kHigh = 1024;
  rlimit before{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit raised = before;
  raised.rlim_cur = std::min<rlim_t>(before.rlim_max, 4 * kHigh);
  setrlimit(RLIMIT_NOFILE, &raised);
  Descriptor copy(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kHigh));
  setrlimit(RLIMIT_NOFILE, &before);
  return copy;
}

// The descriptor 0 is a null pointer, if it is passed by value. This process
// may use the number, so it gets its own descriptor 0 back.
static void expect_number_zero_is_imported(const Descriptor& descriptor) {
  const Descriptor own(fcntl(0, F_DUPFD_CLOEXEC, 3));
  ASSERT_EQ(dup2(descriptor.get(), 0), 0);
  Sentinel<CUmemGenericAllocationHandle> handle;
  EXPECT_SUCCESS(
      DRIVER(cuMemImportFromShareableHandle)(handle.out(), by_value(0), kFd));
  if (own) {
    ASSERT_EQ(dup2(own.get(), 0), 0);
  } else {
    close(0);
  }
  if (!handle.touched()) return;
  const Mapping mapping(Chunk(handle.result()), granule());
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
}

TEST(VmmFd, TheDescriptorIsPassedByValue) {
  covers("VMM-10");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter"), 2));

  scenario.role("importer by value", [](Role& me) {
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    CALL(cudaFree(nullptr));
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_SUCCESS(DRIVER(cuMemImportFromShareableHandle)(
        &handle, by_value(descriptor.get()), kFd));
    const Mapping mapping(Chunk(handle), granule());
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    const Descriptor copy = copy_with_high_number(descriptor);
    if (!copy) {
      me.observe("this process may not have a descriptor above 1023");
    } else {
      Sentinel<CUmemGenericAllocationHandle> again;
      EXPECT_SUCCESS(DRIVER(cuMemImportFromShareableHandle)(
          again.out(), by_value(copy.get()), kFd))
          << "a number above 1023";
      const Mapping other(Chunk(again.result()), granule());
      EXPECT_TRUE(kernel_reads(other, pattern("exporter")));
    }
    me.signal("number 0");
    expect_number_zero_is_imported(descriptor);
    me.signal("done");
  });

  // The programming guide shows &fd, so the test observes what this does.
  scenario
      .role("importer by address",
            [](Role& me) {
              const Descriptor descriptor = me.receive_descriptor("descriptor");
              me.signal("done");
              CALL(cudaFree(nullptr));
              int number = descriptor.get();
              CUmemGenericAllocationHandle handle = 0;
              const CUresult code = NOTED(DRIVER(
                  cuMemImportFromShareableHandle)(&handle, &number, kFd));
              me.observe("&fd instead of fd: " + name_of(code));
              if (code == CUDA_SUCCESS) CALL(DRIVER(cuMemRelease)(handle));
            })
      .may_end_by(SIGSEGV)
      .may_end_by(SIGBUS);

  scenario.run(20s);
  const Ended& address = scenario.ended("importer by address");
  if (!address.reached_end)
    observe("&fd instead of fd: the process dies, " + outcome_of(address).code);
}

// --- what an import does to a descriptor ------------------------------------

static std::string number(int i) { return "number " + std::to_string(i); }

static void lends_many_chunks(Role& me) {
  std::vector<Chunk> chunks;
  std::deque<Mapping> mappings;
  for (int i = 0; i < kMany; ++i) {
    chunks.push_back(Chunk::create(granule()));
    mappings.emplace_back(chunks.back(), granule());
    Words(mappings.back().data, 4096).fill(pattern(number(i)));
    me.send_descriptor(number(i), chunks.back().descriptor().get());
  }
  me.wait("closed");
}

// All imports are mapped at once.
static void imports_many_chunks(Role& me) {
  std::vector<Chunk> chunks;
  std::deque<Mapping> mappings;
  for (int i = 0; i < kMany; ++i) {
    chunks.push_back(Chunk::import(me.receive_descriptor(number(i))));
    mappings.emplace_back(chunks.back(), granule());
  }
  for (int i = 0; i < kMany; ++i)
    EXPECT_TRUE(kernel_reads(Words(mappings[i].data, 4096), pattern(number(i))))
        << number(i);
  mappings.clear();
  chunks.clear();
  me.signal("closed");
}

TEST(VmmFd, ImportDoesNotConsumeTheDescriptor) {
  covers("VMM-13");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));

  scenario.role("importer", [](Role& me) {
    Descriptor descriptor = me.receive_descriptor("descriptor");
    const size_t bytes = granule();
    {
      const Mapping mapping(Chunk::import(descriptor), bytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      ASSERT_TRUE(is_open(descriptor.get())) << "after the import";
    }
    ASSERT_TRUE(is_open(descriptor.get())) << "after the release";
    const Mapping again(Chunk::import(descriptor), bytes);
    std::vector<Chunk> many;
    std::deque<Mapping> mappings;
    for (int i = 0; i < kMany; ++i) {
      many.push_back(Chunk::import(descriptor));
      mappings.emplace_back(many.back(), bytes);
    }
    EXPECT_TRUE(kernel_reads(mappings.back(), pattern("exporter")));
    mappings.clear();
    many.clear();  // `again` is another import, and stays
    EXPECT_EQ(close(descriptor.release()), 0);
    EXPECT_READS(again, pattern("exporter"));
    me.signal("done");
  });

  scenario.role("exporter of many", lends_many_chunks);
  scenario.role("importer of many", imports_many_chunks);
  scenario.run(20s);
}

TEST(VmmFd, TwoImportsMayDifferAndEachCounts) {
  covers("VMM-14");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));

  scenario.role("importer", [](Role& me) {
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const size_t bytes = granule();
    Chunk first = Chunk::import(descriptor);
    const Chunk second = Chunk::import(descriptor);
    me.observe(first.handle() == second.handle()
                   ? "one handle value for both imports"
                   : "a handle value for each import");
    first.release();
    const Mapping mapping(second, bytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.fill(pattern("importer"));
    EXPECT_TRUE(copy_reads(mapping, pattern("importer")));
    me.signal("done");
  });

  scenario.run(20s);
}

TEST(VmmFd, ImportInTheExportingProcessIsAnAliasOrRefused) {
  covers("VMM-16");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("by the first address"));
    const Descriptor descriptor = chunk.descriptor();

    CUmemGenericAllocationHandle handle = 0;
    const CUresult code = NOTED(DRIVER(cuMemImportFromShareableHandle)(
        &handle, by_value(descriptor.get()), kFd));
    me.observe("import in the exporting process: " + name_of(code));
    if (code == CUDA_SUCCESS) {
      const Mapping alias(Chunk(handle), bytes);
      EXPECT_TRUE(kernel_reads(alias, pattern("by the first address")));
      alias.fill(pattern("by the alias"));
    } else {
      mapping.fill(pattern("by the alias"));
    }
    EXPECT_READS(mapping, pattern("by the alias"));
  });
  scenario.run(20s);
}

// --- how a descriptor travels -----------------------------------------------

// An exporter that at first permits nobody to fetch its descriptor, and then
// permits everybody.
static void permits_others_to_trace_it(Role& me) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping mapping(chunk, bytes);
  mapping.fill(pattern("exporter"));
  const Descriptor descriptor = chunk.descriptor();

  me.send("pid", getpid());
  me.send("number", descriptor.get());
  me.wait("tried to fetch");
  // Lets every process trace this process; Yama refuses that by default.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  me.signal("permitted");
  me.wait("tried again");
  me.send_descriptor("descriptor", descriptor.get());
  me.wait("done");
}

// The other tests of this file send descriptors by SCM_RIGHTS. This test
// compares SCM_RIGHTS with pidfd_getfd, by which a process fetches a
// descriptor.
TEST(VmmFd, ScmRightsNeedsNoPrivilegeWherePidfdGetfdDoes) {
  covers("PLAT-12");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", permits_others_to_trace_it).in_new_process();

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const auto pid = me.receive<pid_t>("pid");
    const int number = me.receive<int>("number");
    const Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    ASSERT_NE(process.get(), -1);

    const auto fetch = [&](const char* when) {
      const Descriptor fetched(static_cast<int>(
          syscall(__NR_pidfd_getfd, process.get(), number, 0)));
      const int error = errno;
      me.observe(std::string("pidfd_getfd ") + when + ", ptrace_scope " +
                 ptrace_scope() + ": " +
                 (fetched          ? "success"
                  : error == EPERM ? "EPERM"
                                   : "errno " + std::to_string(error)));
      if (!fetched) return;
      const Mapping mapping(Chunk::import(fetched), bytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter"))) << when;
    };
    fetch("as it is");
    me.signal("tried to fetch");
    me.wait("permitted");
    fetch("with PR_SET_PTRACER");
    me.signal("tried again");

    const Descriptor sent = me.receive_descriptor("descriptor");
    const Mapping mapping(Chunk::import(sent), bytes);
    EXPECT_READS(mapping, pattern("exporter"));
    me.signal("done");
  });

  scenario.run(20s);
}
