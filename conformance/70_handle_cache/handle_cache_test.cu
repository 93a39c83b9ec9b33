// A cache that opens each allocation of each exporter once. Mirror of
// samples/70_handle_cache; the cache is in the lesson's header.
//
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "harness/scenario/cuda.h"
#include "samples/70_handle_cache/handle_cache.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 2 << 20;
constexpr size_t kPart = 64 << 10;  // one part of each block is sent
constexpr int kBlocks = 8;
constexpr int kRounds = 200;

Pattern block_pattern(const std::string& exporter, int number) {
  return pattern(exporter + ", block " + std::to_string(number));
}

// The description of one part of a block, as it is sent.
Part part_of(const Words& block, size_t number) {
  note_call("cudaIpcGetMemHandle(&part.handle, base)");
  return describe(block.data + number * kPart / sizeof(uint32_t));
}

// Fills only part `number`, and returns its description. The other parts keep
// their poison.
Part lend_part(const Words& block, size_t number, Pattern pattern) {
  const Words part(block.data + number * kPart / sizeof(uint32_t), kPart);
  part.fill(pattern);
  return part_of(block, number);
}

testing::AssertionResult reads(HandleCache* cache, const Part& part,
                               Pattern pattern) {
  note_call("cudaIpcOpenMemHandle(&block.base, part.handle, flags)");
  void* const data = cache->acquire(part);
  const auto read = kernel_reads({data, kPart}, pattern);
  cache->release(part);
  return read;
}

// The values of a part that was written so many times.
Pattern written_pattern(const std::string& exporter, int number, int times) {
  return times == 0 ? block_pattern(exporter, number)
                    : pattern(exporter + ", block " + std::to_string(number) +
                              ", write " + std::to_string(times));
}

// Reads the part and writes it. What is written must be there at the next use,
// and in the exporter.
testing::AssertionResult reads_and_writes(HandleCache* cache, const Part& part,
                                          Pattern expected, Pattern written) {
  const auto read = reads(cache, part, expected);
  Words(cache->acquire(part), kPart).fill(written);
  cache->release(part);
  return read;
}

using Times = std::array<int, kBlocks>;

}  // namespace

TEST(HandleCache, EveryPartIsReadWhateverIsOpen) {
  covers("CACH-01");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    std::vector<std::unique_ptr<DeviceBuffer>> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique<DeviceBuffer>(kBytes));
      me.send("part", lend_part(*blocks[i], i, block_pattern("exporter", i)));
    }
    const auto times = me.receive<Times>("closed after so many writes");
    for (int i = 0; i < kBlocks; ++i)
      EXPECT_TRUE(
          kernel_reads({blocks[i]->data + i * kPart / sizeof(uint32_t), kPart},
                       written_pattern("exporter", i, times[i])))
          << "block " << i << " of the exporter itself";
  });
  scenario.role("importer", [](Role& me) {
    std::vector<Part> parts;
    for (int i = 0; i < kBlocks; ++i) parts.push_back(me.receive<Part>("part"));
    HandleCache cache(3);
    void* const held = cache.acquire(parts[0]);
    std::mt19937 random(70);
    Times times{};
    for (int round = 0; round < kRounds; ++round) {
      const int i = static_cast<int>(random() % kBlocks);
      ASSERT_TRUE(reads_and_writes(
          &cache, parts[i], written_pattern("exporter", i, times[i]),
          written_pattern("exporter", i, times[i] + 1)))
          << "block " << i << " in round " << round;
      ++times[i];
      ASSERT_LE(cache.open_now(), 3u);
    }
    EXPECT_TRUE(
        kernel_reads({held, kPart}, written_pattern("exporter", 0, times[0])))
        << "the block that was in use all the time";
    EXPECT_FALSE(cache.forget(parts[0])) << "it is in use";
    cache.release(parts[0]);
    EXPECT_TRUE(cache.forget_exporter(parts[0].exporter));
    EXPECT_EQ(cache.open_now(), 0u);
    EXPECT_GT(cache.opens(), kBlocks) << "some were opened again";
    me.send("closed after so many writes", times);
  });
  scenario.run(60s);
}

TEST(HandleCache, ABlockAtAnUsedAddressIsAnotherBlock) {
  covers("CACH-02");
  needs(gpus(1), legacy_memory);
  constexpr int kTimes = 20;
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const void* before = nullptr;
    int again = 0;
    for (int i = 0; i < kTimes; ++i) {
      const DeviceBuffer block(kBytes);
      again += block.data == before;
      before = block.data;
      const Part part = lend_part(block, 1, block_pattern("exporter", i));
      me.send("part", part);
      me.wait("forgotten");
      EXPECT_TRUE(
          kernel_reads({block.data + part.offset / sizeof(uint32_t), kPart},
                       written_pattern("exporter", i, 1)))
          << "block " << i << " of the exporter itself";
    }
    if (again == 0) me.not_applicable("no address was used again");
  });
  scenario.role("importer", [](Role& me) {
    HandleCache cache(3);
    for (int i = 0; i < kTimes; ++i) {
      const auto part = me.receive<Part>("part");
      ASSERT_TRUE(reads(&cache, part, block_pattern("exporter", i)))
          << "block " << i;
      ASSERT_TRUE(reads_and_writes(&cache, part, block_pattern("exporter", i),
                                   written_pattern("exporter", i, 1)))
          << "block " << i << " without an open";
      EXPECT_EQ(cache.opens(), i + 1);
      EXPECT_TRUE(cache.forget(part));
      me.signal("forgotten");
    }
  });
  scenario.run(60s);
}

TEST(HandleCache, BlocksOfTwoExportersAreToldApart) {
  covers("CACH-03");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  // In new processes, the allocations of both exporters may have the same ids.
  for (const std::string name : {"exporter A", "exporter B"}) {
    auto& exporter = scenario.role(name, [name](Role& me) {
      std::vector<std::unique_ptr<DeviceBuffer>> blocks;
      for (int i = 0; i < kBlocks; ++i) {
        blocks.push_back(std::make_unique<DeviceBuffer>(kBytes));
        me.send("part of " + name,
                lend_part(*blocks[i], 2, block_pattern(name, i)));
      }
      me.wait("closed " + name);
      if (name == "exporter A") return;
      for (int i = 0; i < kBlocks; ++i)
        EXPECT_TRUE(kernel_reads(
            {blocks[i]->data + 2 * kPart / sizeof(uint32_t), kPart},
            written_pattern(name, i, 1)))
            << "block " << i << " of the exporter itself";
    });
    exporter.in_new_process();
  }
  scenario.role("importer", [](Role& me) {
    HandleCache cache(2 * kBlocks);
    std::vector<Part> parts[2];
    const std::string names[] = {"exporter A", "exporter B"};
    for (int which = 0; which < 2; ++which)
      for (int i = 0; i < kBlocks; ++i)
        parts[which].push_back(me.receive<Part>("part of " + names[which]));
    int same = 0;
    for (int i = 0; i < kBlocks; ++i) {
      same += parts[0][i].block == parts[1][i].block;
      for (int which = 0; which < 2; ++which)
        EXPECT_TRUE(
            reads(&cache, parts[which][i], block_pattern(names[which], i)))
            << names[which] << ", block " << i;
    }
    me.observe(std::to_string(same) + " of " + std::to_string(kBlocks) +
               " allocations have the same id in both exporters");

    // The end of one exporter leaves the blocks of the other exporter open, and
    // a block that was closed can be opened again.
    EXPECT_TRUE(cache.forget_exporter(parts[0][0].exporter));
    me.signal("closed exporter A");
    me.wait_for_end("exporter A");
    EXPECT_TRUE(cache.forget(parts[1][0]));
    for (int i = 0; i < kBlocks; ++i)
      EXPECT_TRUE(reads_and_writes(&cache, parts[1][i],
                                   block_pattern(names[1], i),
                                   written_pattern(names[1], i, 1)))
          << "after the end of exporter A, block " << i;
    EXPECT_EQ(cache.opens(), 2 * kBlocks + 1);
    EXPECT_TRUE(cache.forget_exporter(parts[1][0].exporter));
    me.signal("closed exporter B");
  });
  scenario.run(60s);
}
