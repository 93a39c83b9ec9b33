// A dma-buf that a process without CUDA maps (CUDA 13.3).
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "conformance/38_dma_buf/dma_buf_test.h"

using namespace ipclab;

// The importers of these tests make no CUDA call. They run in new processes,
// because a process of an earlier test has used CUDA.

// The memory that an exporter lends: of cuMemAlloc, or of cuMemCreate.
namespace {
struct Lent {
  std::unique_ptr<DriverBuffer> buffer;
  std::unique_ptr<Chunk> chunk;
  std::unique_ptr<Mapping> mapping;
  Words words;

  static Lent of_malloc(size_t bytes) {
    Lent lent;
    lent.buffer = std::make_unique<DriverBuffer>(bytes);
    lent.words = *lent.buffer;
    return lent;
  }
  static Lent of_create(size_t wanted) {
    const size_t least =
        granule(chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));  // may be larger
    const size_t bytes = (wanted + least - 1) / least * least;
    Lent lent;
    lent.chunk = std::make_unique<Chunk>(
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)));
    lent.mapping = std::make_unique<Mapping>(*lent.chunk, bytes);
    lent.words = *lent.mapping;
    return lent;
  }
  Descriptor dma_buf() const {
    return dma_buf_of(address_of(words.data), words.bytes());
  }
};
}  // namespace

static void copy_from_host(const Words& to, Pattern values) {
  std::vector<uint32_t> host(to.count);
  for (size_t i = 0; i < host.size(); ++i) host[i] = values.at(i);
  CALL(cudaMemcpy(to.data, host.data(), to.bytes(), cudaMemcpyHostToDevice));
}

static void add_mapping_roles(Scenario& scenario, Lent (*lend)(size_t bytes)) {
  scenario.role("exporter", [lend](Role& me) {
    const Lent lent = lend(2 * kTwoMib);
    lent.words.fill(pattern("by a kernel"));
    me.send("size", lent.words.bytes());
    me.send_descriptor("dma-buf", lent.dma_buf().get());
    me.wait("read");
    copy_from_host(lent.words, pattern("by a copy"));
    CALL(cudaDeviceSynchronize());
    me.signal("copied");
    me.wait("written");
    EXPECT_READS(lent.words, pattern("importer"));
    lent.words.fill(pattern("last"));
    me.signal("filled again");
    me.wait("done");
    EXPECT_READS(lent.words, pattern("last"));
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto bytes = me.receive<size_t>("size");
              const Descriptor buffer = me.receive_descriptor("dma-buf");
              const HostMapping mapping(buffer, bytes);
              ASSERT_TRUE(mapping.works());
              EXPECT_TRUE(mapping.reads(pattern("by a kernel")));
              me.signal("read");
              me.wait("copied");
              EXPECT_TRUE(mapping.reads(pattern("by a copy")));
              mapping.write(pattern("importer"));
              me.signal("written");
              me.wait("filled again");
              EXPECT_TRUE(mapping.reads(pattern("last")));
              me.signal("done");
            })
      .in_new_process();
}

TEST(DmaBufMapping, AProcessWithoutCudaMapsMemoryOfCuMemAlloc) {
  covers("DBUF-16");
  needs(gpus(1), dma_buf, dma_buf_mmap);
  Scenario scenario(Scenario::kShared);
  add_mapping_roles(scenario, Lent::of_malloc);
  scenario.run(20s);
}

TEST(DmaBufMapping, AProcessWithoutCudaMapsMemoryOfCuMemCreate) {
  covers("DBUF-16");
  needs(gpus(1), dma_buf, dma_buf_mmap, vmm);
  Scenario scenario(Scenario::kShared);
  add_mapping_roles(scenario, Lent::of_create);
  scenario.run(20s);
}

TEST(DmaBufMapping, AMappingToReadShowsTheMemory) {
  covers("DBUF-16");
  needs(gpus(1), dma_buf, dma_buf_mmap);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 2 * kTwoMib;
    const Lent lent = Lent::of_malloc(bytes);
    const Words second_half(lent.words.data + lent.words.count / 2, bytes / 2);
    lent.words.fill(pattern("exporter"));
    second_half.fill(pattern("second half"));
    me.send("size", bytes);
    me.send_descriptor("dma-buf", lent.dma_buf().get());
    me.wait("read");
    second_half.fill(pattern("again"));
    me.signal("filled again");
    me.wait("done");
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto bytes = me.receive<size_t>("size");
              const Descriptor buffer = me.receive_descriptor("dma-buf");
              // Two mappings of one descriptor; one begins in the middle.
              const HostMapping all(buffer, bytes, PROT_READ);
              const HostMapping half(buffer, bytes / 2, PROT_READ, bytes / 2);
              ASSERT_TRUE(all.works());
              ASSERT_TRUE(half.works());
              const size_t middle = bytes / 2;
              EXPECT_TRUE(all.reads(0, middle, pattern("exporter")));
              EXPECT_TRUE(all.reads(middle, middle, pattern("second half")));
              EXPECT_TRUE(half.reads(pattern("second half")));
              me.signal("read");
              me.wait("filled again");
              EXPECT_TRUE(half.reads(pattern("again")));
              EXPECT_TRUE(all.reads(middle, middle, pattern("again")));
              EXPECT_TRUE(all.reads(0, middle, pattern("exporter")));
              me.signal("done");
            })
      .in_new_process();
  scenario.run(20s);
}

// Runs `body` in a child of this process, which a signal may end. Returns its
// exit code, or -1 after a signal. A read that never returns ends by SIGALRM.
template <class Body>
static int exit_code_of_a_child(Body body) {
  const pid_t child = fork();  // this process has no CUDA
  if (child == 0) {
    for (const int number : {SIGBUS, SIGSEGV, SIGALRM}) signal(number, SIG_DFL);
    alarm(10);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Does a child of this process find the pattern in the bytes that come after
// the range?
static bool shows_behind(const Descriptor& buffer, size_t bytes, size_t more,
                         Pattern forbidden) {
  return exit_code_of_a_child([&] {
           void* const memory = mmap(nullptr, bytes + more, PROT_READ,
                                     MAP_SHARED, buffer.get(), 0);
           if (memory == MAP_FAILED) return 0;
           const auto* const words =
               static_cast<const volatile uint32_t*>(memory);
           const size_t first = bytes / sizeof(uint32_t);
           for (size_t i = 0; i < 16; ++i)
             if (words[first + i] != forbidden.at(i)) return 0;
           return 1;
         }) == 1;
}

// The importer without CUDA: the mapping is the range, and shows nothing of the
// memory after it. Size 0 says that there is no dma-buf.
static void uses_the_range_alone(Role& me) {
  const auto bytes = me.receive<size_t>("size");
  if (bytes == 0) return;
  const Descriptor buffer = me.receive_descriptor("dma-buf");
  {
    const HostMapping mapping(buffer, bytes);
    ASSERT_TRUE(mapping.works());
    EXPECT_TRUE(mapping.reads(pattern("exporter")));
    mapping.write(pattern("importer"));
  }
  EXPECT_FALSE(shows_behind(buffer, bytes, bytes, pattern("right")));
  me.signal("done");
}

TEST(DmaBufMapping, AMappingShowsOnlyTheRange) {
  covers("DBUF-17");
  needs(gpus(1), dma_buf, dma_buf_mmap, vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk left = Chunk::create(bytes), middle = Chunk::create(bytes),
                right = Chunk::create(bytes);
    const Reservation range(3 * bytes);
    range.map(0, bytes, left);
    range.map(bytes, bytes, middle);
    range.map(2 * bytes, bytes, right);
    const CUmemAccessDesc access = access_for(0);
    CALL(DRIVER(cuMemSetAccess)(range.at(0), 3 * bytes, &access, 1));
    const Words one = words_at(range.at(0), bytes),
                two = words_at(range.at(bytes), bytes),
                three = words_at(range.at(2 * bytes), bytes);
    one.fill(pattern("left"));
    two.fill(pattern("exporter"));
    three.fill(pattern("right"));
    me.send("size", bytes);
    me.send_descriptor("dma-buf", dma_buf_of(range.at(bytes), bytes).get());
    me.wait("done");
    EXPECT_READS(one, pattern("left"));
    EXPECT_READS(two, pattern("importer"));
    EXPECT_READS(three, pattern("right"));
    for (const size_t at : {size_t{0}, bytes, 2 * bytes})
      range.unmap(at, bytes);
  });
  scenario.role("importer", uses_the_range_alone).in_new_process();
  scenario.run(20s);
}

TEST(DmaBufMapping, AMappingOfAPartShowsOnlyThePart) {
  covers("DBUF-17");
  needs(gpus(1), dma_buf, dma_buf_mmap);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 3 * kTwoMib, part = kTwoMib;
    const DriverBuffer memory(bytes);
    const auto third = [&](size_t number) {
      return words_at(memory.address() + number * part, part);
    };
    third(0).fill(pattern("left"));
    third(1).fill(pattern("exporter"));
    third(2).fill(pattern("right"));
    const Export range(memory.address() + part, part);
    const bool beyond = beyond_the_model(me, range);
    me.send("size", beyond ? size_t{0} : part);
    if (beyond) return;
    CALL(range.code);
    me.send_descriptor("dma-buf", range.descriptor.get());
    me.wait("done");
    EXPECT_READS(third(0), pattern("left"));
    EXPECT_READS(third(1), pattern("importer"));
    EXPECT_READS(third(2), pattern("right"));
  });
  scenario.role("importer", uses_the_range_alone).in_new_process();
  scenario.run(20s);
}

// Exports a range, maps other memory there, and exports the range again.
// The importer gets both descriptors.
static void exports_twice(Role& me) {
  const size_t bytes = granule();
  const Chunk first = Chunk::create(bytes), second = Chunk::create(bytes);
  const Reservation range(bytes);
  const CUmemAccessDesc access = access_for(0);
  const Words words = words_at(range.at(0), bytes);
  range.map(0, bytes, first);
  CALL(DRIVER(cuMemSetAccess)(range.at(0), bytes, &access, 1));
  words.fill(pattern("first"));
  const Descriptor before = dma_buf_of(range.at(0), bytes);
  CALL(cudaDeviceSynchronize());
  range.unmap(0, bytes);
  range.map(0, bytes, second);
  CALL(DRIVER(cuMemSetAccess)(range.at(0), bytes, &access, 1));
  words.fill(pattern("second"));
  const Descriptor after = dma_buf_of(range.at(0), bytes);
  me.send("size", bytes);
  me.send_descriptor("before", before.get());
  me.send_descriptor("after", after.get());
  me.wait("done");
  EXPECT_READS(words, pattern("importer"));
  const Mapping old(first, bytes);
  EXPECT_READS(old, pattern("first"));
  range.unmap(0, bytes);
}

// What a child of this process finds in a dma-buf that may be no longer valid.
// The kernel may end the child.
static std::string seen_by_a_child(const Descriptor& buffer, size_t bytes) {
  switch (exit_code_of_a_child([&] {
    const HostMapping mapping(buffer, bytes, PROT_READ);
    return !mapping.is_there()                ? 1
           : mapping.reads(pattern("first"))  ? 2
           : mapping.reads(pattern("second")) ? 3
                                              : 4;
  })) {
    case -1:
      return "nothing: a signal ends the process that reads";
    case 1:
      return "nothing: mmap is refused";
    case 2:
      return "the first memory";
    case 3:
      return "the second memory";
    default:
      return "other values";
  }
}

// Looks at the old descriptor, if `looks_at_old`, and at the new one.
static void run_with_both_descriptors(bool looks_at_old) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", exports_twice);
  scenario
      .role("importer",
            [=](Role& me) {
              const auto bytes = me.receive<size_t>("size");
              const Descriptor before = me.receive_descriptor("before"),
                               after = me.receive_descriptor("after");
              if (looks_at_old)
                me.observe("the old descriptor shows: " +
                           seen_by_a_child(before, bytes));
              const HostMapping mapping(after, bytes);
              ASSERT_TRUE(mapping.works());
              EXPECT_TRUE(mapping.reads(pattern("second")));
              mapping.write(pattern("importer"));
              me.signal("done");
            })
      .in_new_process();
  scenario.run(20s);
}

TEST(DmaBufMapping, ANewDescriptorShowsTheNewMemory) {
  covers("DBUF-18");
  needs(gpus(1), dma_buf, dma_buf_mmap, vmm);
  run_with_both_descriptors(false);
}

TEST(DmaBufMapping, AnOldDescriptorAfterAChange) {
  covers("DBUF-19");
  needs(gpus(1), dma_buf, dma_buf_mmap, vmm);
  run_with_both_descriptors(true);
}

// Memory that is allocated later. All its words are the same, so that a part of
// it is known at any place of a mapping.
namespace {
constexpr int kSecretByte = 0x3c;
constexpr uint32_t kSecret = 0x3c3c3c3c;

struct Later {
  std::vector<std::unique_ptr<DriverBuffer>> buffers;

  explicit Later(size_t bytes) {
    for (int i = 0; i < 16; ++i) {
      buffers.push_back(std::make_unique<DriverBuffer>(bytes));
      CALL(cudaMemset(buffers.back()->data, kSecretByte, bytes));
    }
    CALL(cudaDeviceSynchronize());
  }
};
}  // namespace

// Does the mapping show memory that was allocated later? Some words of the
// exporter's pattern could have the secret value by chance.
static testing::AssertionResult shows_later_memory(const HostMapping& mapping) {
  const size_t words = mapping.count(kSecret);
  if (words < 64)
    return testing::AssertionFailure() << "words with the secret: " << words;
  return testing::AssertionSuccess() << "words with the secret: " << words;
}

TEST(DmaBufMapping, AMappingAfterTheFree) {
  covers("DBUF-20");
  needs(gpus(1), dma_buf, dma_buf_mmap, alone);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 2 * kTwoMib;
    Lent lent = Lent::of_malloc(bytes);
    lent.words.fill(pattern("exporter"));
    me.send("size", bytes);
    me.send_descriptor("dma-buf", lent.dma_buf().get());
    me.wait("mapped");
    lent.buffer->free();
    const Later later(bytes);
    me.signal("freed");
    me.wait_until_done("importer");  // a signal may end it
    EXPECT_TRUE(context_is_usable());
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto bytes = me.receive<size_t>("size");
              const Descriptor buffer = me.receive_descriptor("dma-buf");
              const HostMapping mapping(buffer, bytes);
              ASSERT_TRUE(mapping.works());
              EXPECT_TRUE(mapping.reads(pattern("exporter")));
              me.signal("mapped");
              me.wait("freed");
              me.observe(
                  "after the free the mapping shows: " +
                  seen_by_host(mapping, {{"the values from before the free",
                                          pattern("exporter")}}));
              EXPECT_FALSE(shows_later_memory(mapping))
                  << "the mapping shows memory that was allocated later";
            })
      .in_new_process()
      .may_end_by(SIGBUS);
  scenario.run(20s);
}

TEST(DmaBufMapping, AMappingAfterTheEndOfTheExporter) {
  covers("DBUF-20");
  needs(gpus(1), dma_buf, dma_buf_mmap);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role& me) {
              const size_t bytes = kTwoMib;
              auto& memory = abandoned<DriverBuffer>(bytes);
              memory.fill(pattern("exporter"));
              CALL(cudaDeviceSynchronize());
              me.send("size", bytes);
              me.send_descriptor("dma-buf",
                                 dma_buf_of(memory.address(), bytes).get());
              me.wait("mapped");
              me.die(SIGKILL);
            })
      .in_new_process();
  scenario
      .role("importer",
            [](Role& me) {
              const auto bytes = me.receive<size_t>("size");
              const Descriptor buffer = me.receive_descriptor("dma-buf");
              const HostMapping mapping(buffer, bytes);
              ASSERT_TRUE(mapping.works());
              EXPECT_TRUE(mapping.reads(pattern("exporter")));
              me.signal("mapped");
              me.wait_for_end("exporter");
              me.signal("exporter has ended");
              me.wait("written");
              me.observe("after the end of the exporter the mapping shows: " +
                         seen_by_host(mapping, {{"the exporter's values",
                                                 pattern("exporter")}}));
              EXPECT_FALSE(shows_later_memory(mapping))
                  << "the mapping shows memory of another process";
            })
      .in_new_process()
      .may_end_by(SIGBUS);
  scenario.role("later", [](Role& me) {
    me.wait("exporter has ended");
    const Later later(kTwoMib);
    me.signal("written");
    me.wait_until_done("importer");  // a signal may end it
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}
