// What is mapped and unmapped, and which addresses it takes.
// Mirror of samples/31_vmm_access.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "conformance/31_vmm_access/vmm_access_test.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

// Judges that nothing is mapped at addresses inside a mapping, which are not
// its first address.
static void expect_nothing_is_mapped_inside(const Chunk& chunk) {
  const size_t bytes = granule();
  const Chunk wide = Chunk::create(3 * bytes);
  const Mapping mapping(wide, 3 * bytes);
  mapping.fill(pattern("wide"));
  for (const size_t at : {bytes, 2 * bytes})
    EXPECT_REFUSED(
        DRIVER(cuMemMap)(mapping.address() + at, bytes, 0, chunk.handle(), 0),
        MAP_REFUSALS)
        << "inside a mapping, at byte " << at;
  EXPECT_TRUE(kernel_reads(mapping, pattern("wide")));
}

// Maps memory of one granule to all of a wider range. The caller must not do
// this, and no sentence says that it is refused. A call that succeeds has
// mapped the whole range, so the whole range can be unmapped.
static void map_more_than_the_memory(Role& me, const Reservation& range,
                                     const Chunk& chunk) {
  const CUresult code =
      NOTED(DRIVER(cuMemMap)(range.at(0), range.bytes(), 0, chunk.handle(), 0));
  me.observe("cuMemMap of more than the memory has: " + name_of(code));
  if (code == CUDA_SUCCESS)
    EXPECT_SUCCESS(DRIVER(cuMemUnmap)(range.at(0), range.bytes()));
}

TEST(VmmAccess, OnlyReservedAndUnmappedAddressesAreMapped) {
  covers("VMM-22");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    const Chunk first = Chunk::create(bytes, wanted);
    const Chunk second = Chunk::create(bytes, wanted);
    const Mapping mapping(first, bytes);
    mapping.fill(pattern("first"));
    const auto expect_refusal = [&](const char* what, CUdeviceptr address) {
      SCOPED_TRACE(what);
      EXPECT_REFUSED(DRIVER(cuMemMap)(address, bytes, 0, second.handle(), 0),
                     MAP_REFUSALS);
      const Mapping right(second, bytes);  // after the refusal
      right.fill(pattern("second"));
    };
    expect_refusal("a mapped range", mapping.address());
    Reservation gone(bytes);
    const CUdeviceptr unreserved = gone.at(0);
    gone.free();
    expect_refusal("an unreserved range", unreserved);
    const Reservation wide(2 * bytes);
    map_more_than_the_memory(me, wide, second);
    EXPECT_EQ(access_at(mapping.address()), 3u);
    EXPECT_READS(mapping, pattern("first"));
    EXPECT_TRUE(context_is_usable());

    // The last granule is mapped. A whole chunk of two granules would reach
    // into it, and so would two granules of a smaller chunk.
    const Chunk twice = Chunk::create(2 * bytes, wanted);
    wide.map(bytes, bytes, first);
    for (const Chunk* chunk : {&twice, &second})
      EXPECT_REFUSED(
          DRIVER(cuMemMap)(wide.at(0), 2 * bytes, 0, chunk->handle(), 0),
          MAP_REFUSALS)
          << "into the next mapping";
    wide.unmap(bytes, bytes);
    expect_nothing_is_mapped_inside(second);

    // This part is last: if a driver maps the memory here, the mapping may
    // disturb what comes after it.
    const Reservation narrow(bytes);
    EXPECT_REFUSED(
        DRIVER(cuMemMap)(narrow.at(0), 2 * bytes, 0, twice.handle(), 0),
        MAP_REFUSALS)
        << "more than is reserved";
  });
  scenario.run(20s);
}

// The last granule of a reservation is mapped first, and the other granules
// after it.
TEST(VmmAccess, AnImportIsMappedWithinItsSize) {
  covers("VMM-22");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Reservation range(3 * bytes);
    map_more_than_the_memory(me, range, chunk);
    for (const size_t at : {2 * bytes, size_t{0}, bytes})
      EXPECT_SUCCESS(
          DRIVER(cuMemMap)(range.at(at), bytes, 0, chunk.handle(), 0));
    allow(range.at(0), 3 * bytes);
    for (const size_t at : {size_t{0}, bytes, 2 * bytes}) {
      EXPECT_TRUE(
          kernel_reads(words_at(range.at(at), bytes), pattern("exporter")));
      range.unmap(at, bytes);
    }
    me.signal("done");
  });
  scenario.run(20s);
}

// Maps a range that ends beyond the memory. The caller must not do this, and no
// sentence says that it is refused. What is mapped can be unmapped.
static void map_beyond_memory(Role& me, const Reservation& range,
                              const Chunk& chunk, size_t offset) {
  const CUresult code = NOTED(
      DRIVER(cuMemMap)(range.at(0), range.bytes(), offset, chunk.handle(), 0));
  me.observe("the whole size from byte " + std::to_string(offset) + ": " +
             name_of(code));
  if (code == CUDA_SUCCESS)
    EXPECT_SUCCESS(DRIVER(cuMemUnmap)(range.at(0), range.bytes()));
}

// A driver may refuse to map a part of the memory. If it maps the first half,
// the exporter's values must be there, and the addresses after it are free for
// other memory.
static void map_first_half(Role& me, const Reservation& range,
                           const Chunk& chunk) {
  const size_t half = range.bytes() / 2;
  const CUresult code =
      NOTED(DRIVER(cuMemMap)(range.at(0), half, 0, chunk.handle(), 0));
  me.observe("the first half alone: " + name_of(code));
  if (code != CUDA_SUCCESS) return;
  allow(range.at(0), half);
  EXPECT_TRUE(kernel_reads(words_at(range.at(0), half), pattern("exporter")));
  const Chunk other = Chunk::create(half);
  range.map(half, half, other);
  range.unmap(half, half);
  range.unmap(0, half);
}

TEST(VmmAccess, AChunkIsMappedFromItsBeginning) {
  covers("VMM-23");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(2 * bytes);
    const Mapping mapping(chunk, 2 * bytes);
    mapping.fill(pattern("exporter"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const Chunk chunk = Chunk::import(descriptor);
    {
      const Mapped whole(chunk, 2 * bytes);  // offset 0, the whole memory
      allow(whole.address(), 2 * bytes);
      const Words words = words_at(whole.address(), 2 * bytes);
      EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
    }
    const Reservation range(2 * bytes);
    map_first_half(me, range, chunk);

    map_beyond_memory(me, range, chunk, bytes);
    map_beyond_memory(me, range, chunk, kFourGib);  // its lower half is 0
    const CUresult code =
        NOTED(DRIVER(cuMemMap)(range.at(0), bytes, bytes, chunk.handle(), 0));
    if (code != CUDA_SUCCESS) {
      EXPECT_TRUE(refused(code, "cuMemMap with an offset",
                          {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
                           CUDA_ERROR_NOT_PERMITTED}));
    } else {
      me.lifted("cuMemMap takes an offset");
      allow(range.at(0), bytes);
      uint32_t word = 0;
      CALL(cudaMemcpy(&word, pointer_to(range.at(0)), sizeof word,
                      cudaMemcpyDefault));
      EXPECT_EQ(word, pattern("exporter").at(bytes / sizeof word));
      range.unmap(0, bytes);
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("done");
  });
  scenario.run(20s);
}

// Unmaps a range that is not one whole mapping, and holds no part of one. The
// caller must not do this, and no sentence says what it answers. After a
// success the whole range is a reservation; after a refusal the mappings are
// there.
static void unmap_what_is_no_mapping(Role& me, const char* what,
                                     const Reservation& range, size_t bytes) {
  const size_t step = granule();
  std::vector<size_t> mapped;
  for (size_t at = 0; at < bytes; at += step)
    if (has_memory(range.at(at))) mapped.push_back(at);
  const CUresult code = NOTED(DRIVER(cuMemUnmap)(range.at(0), bytes));
  me.observe(std::string(what) + ": cuMemUnmap returns " + name_of(code));
  for (const size_t at : mapped) {
    EXPECT_EQ(has_memory(range.at(at)), code != CUDA_SUCCESS)
        << what << ", at " << at;
    if (code != CUDA_SUCCESS) range.unmap(at, step);
  }
}

// A range that ends inside a mapping is not unmapped, also if it begins with
// another mapping as a whole.
static void expect_no_unmap_of_one_and_a_half(const Chunk& one,
                                              const Chunk& wide,
                                              Pattern written) {
  const size_t bytes = granule();
  const size_t one_and_a_half = 2 * bytes;
  const Reservation range(3 * bytes);
  const Words second = words_at(range.at(bytes), 2 * bytes);
  range.map(0, bytes, one);
  range.map(bytes, 2 * bytes, wide);
  allow(range.at(bytes), 2 * bytes);
  EXPECT_REFUSED(DRIVER(cuMemUnmap)(range.at(0), one_and_a_half),
                 UNMAP_REFUSALS)
      << "a mapping and the first half of the next one";
  EXPECT_TRUE(has_memory(range.at(2 * bytes))) << "the second half";
  EXPECT_TRUE(kernel_reads(second, written));
  // The documentation does not say what a refused call does to the first one.
  if (has_memory(range.at(0))) range.unmap(0, bytes);
  range.unmap(bytes, 2 * bytes);
}

TEST(VmmAccess, UnmapTakesNoPartOfAMapping) {
  covers("VMM-24");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    const Chunk wide = Chunk::create(2 * bytes, wanted);
    const Mapping mapping(wide, 2 * bytes);
    mapping.fill(pattern("whole"));
    const Chunk other = Chunk::create(bytes, wanted);
    const Reservation spare(bytes);
    const auto expect_refusal = [&](const char* what, size_t offset) {
      SCOPED_TRACE(what);
      EXPECT_REFUSED(DRIVER(cuMemUnmap)(mapping.address() + offset, bytes),
                     UNMAP_REFUSALS);
      spare.map(0, bytes, other);
      EXPECT_SUCCESS(DRIVER(cuMemUnmap)(spare.at(0), bytes))
          << "after the refusal";
    };
    expect_refusal("the first half", 0);
    expect_refusal("the second half", bytes);
    for (const size_t size : {2 * bytes - 1, 2 * bytes - 4096}) {
      EXPECT_REFUSED(DRIVER(cuMemUnmap)(mapping.address(), size),
                     UNMAP_REFUSALS)
          << size << " bytes of " << 2 * bytes;
    }
    EXPECT_EQ(access_at(mapping.address()), 3u);
    EXPECT_READS(mapping, pattern("whole"));
    expect_no_unmap_of_one_and_a_half(other, wide, pattern("whole"));
    EXPECT_TRUE(context_is_usable());

    const Chunk chunk = Chunk::create(bytes, wanted);
    const Reservation range(2 * bytes);
    unmap_what_is_no_mapping(me, "addresses without memory", range, bytes);
    range.map(0, bytes, chunk);
    unmap_what_is_no_mapping(me, "more than is mapped", range, 2 * bytes);
    range.map(0, bytes, chunk);
    range.map(bytes, bytes, chunk);
    unmap_what_is_no_mapping(me, "two mappings side by side", range, 2 * bytes);
    range.map(0, bytes, chunk);  // the addresses can be used again
    range.unmap(0, bytes);
    EXPECT_EQ(access_at(mapping.address()), 3u) << "of other addresses";
    EXPECT_TRUE(kernel_reads(mapping, pattern("whole")))
        << "of other addresses";
  });
  scenario.run(20s);
}

TEST(VmmAccess, UnmapTakesAWholeImport) {
  covers("VMM-24");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 2 * granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("whole"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("unmapped");
    EXPECT_TRUE(kernel_reads(mapping, pattern("by the importer")));
  });
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    Mapping mapping(Chunk::import(me.receive_descriptor("descriptor")),
                    2 * bytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("whole")));
    for (const size_t offset : {size_t{0}, bytes})
      EXPECT_REFUSED(DRIVER(cuMemUnmap)(mapping.address() + offset, bytes),
                     UNMAP_REFUSALS)
          << "one half of two, at byte " << offset;
    for (const size_t offset : {size_t{0}, bytes})
      EXPECT_TRUE(has_memory(mapping.address() + offset)) << offset;
    EXPECT_TRUE(kernel_reads(mapping, pattern("whole")));
    mapping.fill(pattern("by the importer"));
    mapping.unmap();
    EXPECT_TRUE(context_is_usable());
    me.signal("unmapped");
  });
  scenario.run(20s);
}

// Judges that a range whose halves were mapped and unmapped can be mapped as a
// whole.
static void expect_remap_in_one_piece(const Reservation& range) {
  const size_t bytes = range.bytes();
  const Chunk wide = Chunk::create(bytes);
  const CUresult code =
      NOTED(DRIVER(cuMemMap)(range.at(0), bytes, 0, wide.handle(), 0));
  ASSERT_EQ(code, CUDA_SUCCESS) << "in another size than before";
  allow(range.at(0), bytes);
  words_at(range.at(0), bytes).fill(pattern("one piece"));
  EXPECT_TRUE(kernel_reads(words_at(range.at(0), bytes), pattern("one piece")));
  range.unmap(0, bytes);
}

// The unmap of addresses changes nothing of the mapping before them.
static void expect_mapping_before_stays(const Chunk& chunk, Pattern written) {
  const size_t bytes = granule();
  const Chunk other = Chunk::create(bytes);
  const Reservation range(2 * bytes);
  range.map(0, bytes, chunk);
  range.map(bytes, bytes, other);
  allow(range.at(0), 2 * bytes);
  range.unmap(bytes, bytes);
  EXPECT_EQ(access_at(range.at(0)), 3u) << "before unmapped addresses";
  EXPECT_TRUE(kernel_reads(words_at(range.at(0), bytes), written))
      << "before unmapped addresses";
  range.unmap(0, bytes);
}

// A handle keeps the memory and its values, also while nothing is mapped.
static void expect_values_stay_without_mapping() {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  Mapping(chunk, bytes).fill(pattern("before"));
  const Mapping again(chunk, bytes);
  EXPECT_TRUE(kernel_reads(again, pattern("before")))
      << "after it was unmapped";
  expect_mapping_before_stays(chunk, pattern("before"));
}

// Memory that is mapped again at its own addresses has no access, and the
// access that is given then is not the one of an earlier mapping. `chunk` is
// mapped at the beginning of the range, and stays there.
static void expect_fresh_access_of_same_memory(const Reservation& range,
                                               const Chunk& chunk,
                                               Pattern written) {
  const size_t bytes = granule();
  const Words words = words_at(range.at(0), bytes);
  const auto map_again = [&] {
    range.unmap(0, bytes);
    range.map(0, bytes, chunk);
    EXPECT_EQ(access_at(range.at(0)), kNone) << "the same memory is back";
  };
  map_again();
  const CUresult code = set_access(range.at(0), bytes, access_for(0, kRead));
  if (code != CUDA_ERROR_NOT_SUPPORTED) CALL(code);
  map_again();
  allow(range.at(0), bytes);
  EXPECT_EQ(access_at(range.at(0)), 3u) << "where it could only be read before";
  EXPECT_TRUE(kernel_reads(words, written));
  words.poison();
  words.fill(written);
  EXPECT_TRUE(copy_reads(words, written));
}

TEST(VmmAccess, AnUnmappedRangeStartsAfresh) {
  covers("VMM-25");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk one = Chunk::create(bytes), two = Chunk::create(bytes);
    const Mapping first(one, bytes), second(two, bytes);
    first.fill(pattern("chunk 1"));
    second.fill(pattern("chunk 2"));
    me.send_descriptor("chunk 1", one.descriptor().get());
    me.send_descriptor("chunk 2", two.descriptor().get());
    me.wait("done");
    EXPECT_TRUE(kernel_reads(first, pattern("chunk 1")));
    EXPECT_TRUE(kernel_reads(second, pattern("by the importer")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk one = Chunk::import(me.receive_descriptor("chunk 1"));
    const Chunk two = Chunk::import(me.receive_descriptor("chunk 2"));
    const Chunk neighbour = Chunk::create(bytes);
    const Reservation range(2 * bytes);
    const Words words = words_at(range.at(0), bytes);
    const Words beside = words_at(range.at(bytes), bytes);
    range.map(0, bytes, one);
    range.map(bytes, bytes, neighbour);
    allow(range.at(0), 2 * bytes);
    beside.fill(pattern("beside"));
    EXPECT_TRUE(kernel_reads(words, pattern("chunk 1")));
    EXPECT_TRUE(has_memory(range.at(0)));
    EXPECT_SUCCESS(DRIVER(cuMemUnmap)(range.at(0), bytes));
    EXPECT_FALSE(has_memory(range.at(0))) << "after it was unmapped";
    EXPECT_TRUE(has_memory(range.at(bytes))) << "the range beside it";
    EXPECT_EQ(access_at(range.at(bytes)), 3u) << "of the range beside it";
    EXPECT_TRUE(kernel_reads(beside, pattern("beside")));

    EXPECT_SUCCESS(DRIVER(cuMemMap)(range.at(0), bytes, 0, two.handle(), 0));
    EXPECT_EQ(access_at(range.at(0)), kNone) << "of the mapping before";
    allow(range.at(0), bytes);
    EXPECT_READS(words, pattern("chunk 2"));
    words.fill(pattern("by the importer"));
    expect_fresh_access_of_same_memory(range, two, pattern("by the importer"));
    range.unmap(0, bytes);
    range.unmap(bytes, bytes);
    expect_remap_in_one_piece(range);

    // A reservation in which nothing is mapped any more is still reserved.
    const Reservation whole(bytes);
    whole.map(0, bytes, one);
    EXPECT_SUCCESS(DRIVER(cuMemUnmap)(whole.at(0), bytes));
    EXPECT_SUCCESS(DRIVER(cuMemMap)(whole.at(0), bytes, 0, two.handle(), 0));
    whole.unmap(0, bytes);
    expect_values_stay_without_mapping();
    me.signal("done");
  });
  scenario.run(20s);
}

TEST(VmmAccess, ANewMappingGivesNoGpuAccess) {
  covers("VMM-25");
  needs(gpus(2), vmm_fd, peer_access);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role&) {
              const size_t bytes = granule();
              const Chunk one = Chunk::create(bytes);
              const Chunk two = Chunk::create(bytes);
              const Reservation range(bytes);
              const Words words = words_at(range.at(0), bytes);
              range.map(0, bytes, one);
              const CUmemAccessDesc list[] = {access_for(0), access_for(1)};
              CALL(DRIVER(cuMemSetAccess)(range.at(0), bytes, list, 2));
              words.fill(pattern("one"));
              CALL(cudaSetDevice(1));
              EXPECT_TRUE(kernel_reads(words, pattern("one")));
              CALL(cudaSetDevice(0));
              range.unmap(0, bytes);
              range.map(0, bytes, two);
              for (const int device : {0, 1})
                EXPECT_EQ(access_at(range.at(0), device), kNone)
                    << "GPU " << device;
              allow(range.at(0), bytes);
              words.fill(pattern("two"));
              EXPECT_TRUE(kernel_reads(words, pattern("two")));
              CALL(cudaSetDevice(1));
              EXPECT_TRUE(kernel_faults(words))
                  << "GPU 1 had access to the mapping before";
            })
      .in_new_process();  // at the end its context is lost
  scenario.run(20s);
}
