// Tests of the shadow, the generator, the shrinker and the printers. They need
// no CUDA.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "harness/explore/world/coverage.h"
#include "harness/explore/world/ends.h"
#include "harness/explore/world/generator.h"
#include "harness/explore/world/history.h"
#include "harness/explore/world/shadow.h"
#include "harness/explore/world/shrink.h"
#include "harness/explore/world/story.h"

namespace ipclab::explore {
namespace {

constexpr Machine kMachine{2 << 20, true, true, true, true, true, true};

// A shadow that is driven by lines of a program.
class World {
 public:
  explicit World(int processes = 2) : shadow(kMachine, processes) {}
  /// Applies the step; the test fails if it is not defined.
  const Expected& does(const std::string& line) {
    EXPECT_TRUE(shadow.apply(step_from(line), &expected))
        << line << ": " << shadow.reason();
    return expected;
  }
  /// Why the step is not defined; empty if it is.
  std::string refuses(const std::string& line) {
    return shadow.apply(step_from(line), &expected) ? "" : shadow.reason();
  }
  /// Process 0 lends 4096 bytes of 1 (m1), process 1 has them open (m3).
  void lend() {
    does("malloc p=0 id=1 bytes=4096");
    does("set p=0 on=1 stream=-1 bytes=4096 value=1");
    does("sync-device p=0");
    does("export-memory p=0 id=2 on=1");
    does("open-memory p=1 id=3 on=2");
    does("create-stream p=0 id=4");
    does("create-stream p=1 id=5");
  }

  Shadow shadow;
  Expected expected;
};

Program generated(uint64_t seed, int steps = 80) {
  Coverage coverage(kMachine);
  return Generator(kMachine, 3, coverage, seed).make(steps, true);
}

TEST(ExploreStep, TextComesBack) {
  for (const Step& step : generated(3).steps)
    EXPECT_EQ(to_text(step_from(to_text(step))), to_text(step));
}

TEST(ExploreStep, WrongTextIsRefused) {
  EXPECT_THROW(step_from("fly p=0"), std::invalid_argument);
  EXPECT_THROW(step_from("malloc p=0 wings=2"), std::invalid_argument);
  EXPECT_THROW(step_from("malloc p=0 bytes=many"), std::invalid_argument);
  EXPECT_THROW(step_from("malloc p=9"), std::invalid_argument);
  EXPECT_THROW(step_from("malloc p=0 on=99999999999"), std::invalid_argument);
}

TEST(ExploreProgram, TextComesBack) {
  const Program program = generated(5);
  const Program again = program_from(to_text(program));
  EXPECT_EQ(to_text(again), to_text(program));
  EXPECT_EQ(again.steps.size(), program.steps.size());
}

TEST(ExploreProgram, AnErrorNamesItsLine) {
  try {
    program_from(
        "program seed=1 processes=2\nmalloc p=0 id=1 bytes=4\nfly p=0\n");
    FAIL() << "accepted";
  } catch (const std::invalid_argument& wrong) {
    EXPECT_EQ(std::string(wrong.what()), "line 3: no operation 'fly'");
  }
  EXPECT_THROW(program_from("program seed=1 processes=2\nmalloc p=2\n"),
               std::invalid_argument);
}

TEST(ExploreGenerator, ASeedGivesTheSameProgram) {
  EXPECT_EQ(to_text(generated(17)), to_text(generated(17)));
  EXPECT_NE(to_text(generated(17)), to_text(generated(18)));
}

TEST(ExploreGenerator, ProgramsAreDefinedAndLeaveNothing) {
  Coverage coverage(kMachine);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Program program =
        Generator(kMachine, 2 + static_cast<int>(seed % 4), coverage, seed)
            .make(100, true);
    Shadow shadow(kMachine, program.processes);
    Expected expected;
    for (const Step& step : program.steps)
      ASSERT_TRUE(shadow.apply(step, &expected))
          << "seed " << seed << ": " << to_text(step) << ": "
          << shadow.reason();
    EXPECT_TRUE(shadow.is_clean()) << "seed " << seed;
  }
}

TEST(ExploreGenerator, GoesForWhatNoProgramHasCombined) {
  Coverage coverage(kMachine);
  for (uint64_t seed = 1; seed <= 300; ++seed)
    Generator(kMachine, 2 + static_cast<int>(seed % 3), coverage, seed)
        .make(120, false);
  int reached = 0, all = 0;
  for (const Coverage::Table& table : coverage.tables()) {
    reached += table.reached();
    all += static_cast<int>(table.pairs.size());
  }
  EXPECT_GE(100 * reached, 80 * all) << reached << " of " << all;
}

TEST(ExploreGenerator, AMachineWithoutAFeatureGetsNoSuchSteps) {
  const Machine bare{};
  Coverage coverage(bare);
  for (uint64_t seed = 1; seed <= 10; ++seed)
    for (const Step& step :
         Generator(bare, 2, coverage, seed).make(80, false).steps) {
      EXPECT_NE(step.op, Op::kExportMemory);
      EXPECT_NE(step.op, Op::kCreateChunk);
      EXPECT_NE(step.op, Op::kCreatePool);
      EXPECT_NE(step.op, Op::kWaitWord);
    }
}

TEST(ExploreShadow, AnImportSeesTheBytes) {
  World world;
  world.lend();
  world.does("set p=0 on=1 stream=-1 at=8 bytes=4 value=7");
  world.does("sync-device p=0");
  const Expected& read = world.does("read p=1 on=3 stream=5 at=6 bytes=4");
  EXPECT_EQ(read.bytes, (std::vector<uint8_t>{1, 1, 7, 7}));
  EXPECT_EQ(read.row, "LMEM-35");
}

TEST(ExploreShadow, WorkWithoutAnOrderIsARace) {
  World world;
  world.lend();
  world.does("set p=0 on=1 stream=4 bytes=4 value=7");
  EXPECT_EQ(world.refuses("read p=1 on=3 stream=5 bytes=4"), "a race");
  EXPECT_EQ(world.refuses("read p=1 on=3 stream=5 at=4 bytes=4"), "");
  world.does("sync-stream p=0 stream=4");
  EXPECT_EQ(world.refuses("read p=1 on=3 stream=5 bytes=4"), "");
}

TEST(ExploreShadow, AnEventGivesTheOrder) {
  World world;
  world.lend();
  world.does("create-event p=0 id=6");
  world.does("export-event p=0 id=7 on=6");
  world.does("open-event p=1 id=8 on=7");
  world.does("write p=0 on=1 stream=4 bytes=4 value=9");
  world.does("record p=0 on=6 stream=4");
  world.does("wait p=1 on=8 stream=5");
  const Expected& read = world.does("read p=1 on=3 stream=5 bytes=4");
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(read.bytes[i], pattern_byte(9, i));
}

TEST(ExploreShadow, BytesWithoutAValueAreNotRead) {
  World world;
  world.does("malloc p=0 id=1 bytes=4096");
  EXPECT_EQ(world.refuses("read p=0 on=1 stream=-1 bytes=4"),
            "bytes without a value");
}

TEST(ExploreShadow, WhatHeldWorkWillOverwriteIsStillThere) {
  World world;
  world.lend();
  world.does("gate p=0 id=9 stream=4");
  world.does("set p=0 on=1 stream=4 bytes=4 value=7");
  EXPECT_EQ(world.does("read p=1 on=3 stream=5 bytes=4").bytes,
            (std::vector<uint8_t>{1, 1, 1, 1}));
  EXPECT_EQ(world.does("query-stream p=0 stream=4").codes,
            std::vector<int>{600});
  EXPECT_EQ(world.refuses("free p=0 on=1"), "the process holds work");
  world.does("open-gate p=0 on=9");
  world.does("sync-stream p=0 stream=4");
  EXPECT_EQ(world.does("read p=1 on=3 stream=5 bytes=4").bytes,
            (std::vector<uint8_t>{7, 7, 7, 7}));
}

TEST(ExploreShadow, AHeldCallReturnsAfterTheGate) {
  World world;
  world.lend();
  world.does("gate p=0 id=9 stream=4");
  EXPECT_TRUE(world.does("sync-stream p=0 t=1 stream=4").held);
  EXPECT_EQ(world.refuses("malloc p=0 t=1 id=10 bytes=4"),
            "the thread is in a call");
  EXPECT_EQ(world.refuses("set p=0 on=1 stream=4 bytes=4"),
            "a thread synchronises the stream");
  const Expected& opened = world.does("open-gate p=0 on=9");
  ASSERT_EQ(opened.returned.size(), 1u);
  EXPECT_EQ(opened.returned[0].thread, 1);
}

TEST(ExploreShadow, ALegacyDefaultStreamWaitsForBlockingStreams) {
  World world;
  world.lend();
  world.does("create-stream p=0 id=10 how=1");
  world.does("gate p=0 id=9 stream=10");
  world.does("set p=0 on=1 stream=-1 bytes=4 value=7");
  EXPECT_EQ(world.does("read p=1 on=3 stream=5 bytes=1").bytes,
            std::vector<uint8_t>{1});
  world.does("open-gate p=0 on=9");
  world.does("sync-device p=0");
  EXPECT_EQ(world.does("read p=1 on=3 stream=5 bytes=1").bytes,
            std::vector<uint8_t>{7});
}

TEST(ExploreShadow, AWaitForAWordHoldsItsStream) {
  World world;
  world.lend();
  world.does("wait-word p=1 on=3 stream=5 at=64 bytes=4 value=16909061");
  world.does("set p=1 on=3 stream=5 at=128 bytes=4 value=9");
  EXPECT_EQ(world.does("query-stream p=1 stream=5").codes,
            std::vector<int>{600});
  world.does("write-word p=0 on=1 stream=4 at=64 bytes=4 value=16909062");
  world.does("sync-stream p=1 stream=5");
  EXPECT_EQ(world.does("read p=1 on=3 stream=5 at=128 bytes=1").bytes,
            std::vector<uint8_t>{9});
}

TEST(ExploreShadow, AHostFunctionWritesMemoryOfTheHostOnly) {
  World world;
  world.lend();
  world.does("host-alloc p=0 id=10 bytes=64");
  world.does("write p=0 on=10 stream=4 bytes=64 value=9 how=3");
  EXPECT_EQ(world.refuses("write p=0 on=1 stream=4 bytes=64 value=9 how=3"),
            "no such way");
  world.does("sync-stream p=0 stream=4");
  EXPECT_EQ(world.does("host-read p=0 on=10 bytes=1").bytes[0],
            pattern_byte(9, 0));
}

TEST(ExploreShadow, AResetTakesAllOfTheProcessAndNothingOfOthers) {
  World world;
  world.lend();
  EXPECT_EQ(world.refuses("end p=0 how=2"),
            "another process has its memory open");
  EXPECT_EQ(world.does("end p=1 how=2").row, "LIFE-15");
  EXPECT_EQ(world.refuses("read p=1 on=3 stream=-11 bytes=4 how=2"),
            "no such memory in this process");
  world.does("create-stream p=1 id=11");  // it lives on
  const Expected& seen = world.does("read p=0 on=1 stream=-1 bytes=4 how=2");
  EXPECT_EQ(seen.row, "LIFE-15");
  EXPECT_EQ(seen.bytes[0], 1);
}

TEST(ExploreShadow, AQuestionNamesAnAddressInsideTheMemory) {
  World world;
  world.lend();
  EXPECT_EQ(world.does("ask-pointer p=0 on=1 how=1 at=77").least, 4096);
  EXPECT_EQ(world.does("ask-pointer p=1 on=3 how=3 at=4095").row, "LMEM-36");
  EXPECT_EQ(world.refuses("ask-pointer p=0 on=1 how=1 at=4096"),
            "an address outside the memory");
  world.does("malloc p=0 id=9 bytes=512");
  EXPECT_EQ(world.does("ask-pointer p=0 on=1 from=9 how=6 value=1").row,
            "LMEM-48");
}

TEST(ExploreShadow, MemoryGoesInTheDocumentedOrder) {
  World world;
  world.lend();
  EXPECT_EQ(world.refuses("free p=0 on=1"), "another process has it open");
  world.does("open-memory p=1 id=6 on=2");
  EXPECT_EQ(world.expected.same_address, 3);
  world.does("close-memory p=1 on=3");
  EXPECT_EQ(world.refuses("free p=0 on=1"), "another process has it open");
  world.does("close-memory p=1 on=6");
  world.does("free p=0 on=1");
  EXPECT_EQ(world.refuses("open-memory p=1 id=8 on=2"), "the memory is freed");
}

TEST(ExploreShadow, AMappingNeedsAccess) {
  World world;
  world.does("create-chunk p=0 id=1 bytes=2097152");
  world.does("reserve p=0 id=2 bytes=4194304");
  world.does("map p=0 id=3 on=1 from=2 bytes=2097152");
  EXPECT_EQ(world.refuses("set p=0 on=3 stream=-1 bytes=4"), "no access");
  world.does("set-access p=0 on=3 value=3");
  world.does("set p=0 on=3 stream=-1 bytes=4");
  world.does("sync-device p=0");
  world.does("set-access p=0 on=3 value=1");
  EXPECT_EQ(world.refuses("set p=0 on=3 stream=-1 bytes=4"), "no access");
  EXPECT_EQ(world.refuses("read p=0 on=3 stream=-1 bytes=4"), "");
}

TEST(ExploreShadow, TwoMappingsSideBySideAreOneRange) {
  World world;
  world.does("create-chunk p=0 id=1 bytes=2097152");
  world.does("reserve p=0 id=2 bytes=4194304");
  world.does("map p=0 id=3 on=1 from=2 bytes=2097152");
  world.does("set-access p=0 on=3 value=3");
  EXPECT_EQ(world.refuses("set p=0 on=3 stream=-1 at=2097150 bytes=4"),
            "beyond the last mapping");
  world.does("create-chunk p=0 id=4 bytes=2097152");
  world.does("map p=0 id=5 on=4 from=2 at=2097152 bytes=2097152");
  world.does("set-access p=0 on=5 value=3");
  world.does("set p=0 on=3 stream=-1 at=2097150 bytes=4 value=5");
  world.does("sync-device p=0");
  EXPECT_EQ(world.does("read p=0 on=5 stream=-1 bytes=2").bytes,
            (std::vector<uint8_t>{5, 5}));
}

TEST(ExploreShadow, StepsOfAGroupCannotDependOnTheirOrder) {
  World world;
  world.lend();
  world.does("create-chunk p=0 id=11 bytes=2097152");
  world.does("reserve p=0 id=12 bytes=2097152");
  world.does("map p=0 id=13 on=11 from=12 bytes=2097152");
  world.does("unmap p=0 t=1 group=1 on=13");
  EXPECT_EQ(world.refuses("unreserve p=0 group=1 on=12"),
            "steps of a group would depend on their order");
  EXPECT_EQ(world.refuses("malloc p=0 t=1 group=1 id=20 bytes=4"),
            "one thread makes one step of a group");
  world.does("malloc p=0 t=2 group=1 id=20 bytes=4");
  world.does("unreserve p=0 on=12");
}

TEST(ExploreShadow, ASynchroniseInAGroupOrdersNoOtherMember) {
  World world;
  world.lend();
  world.does("set p=0 on=1 stream=4 bytes=4 value=7");
  world.does("sync-stream p=0 t=1 stream=4 group=1");
  EXPECT_EQ(world.refuses("read p=1 on=3 stream=5 bytes=4 group=1"), "a race");
  world.does("read p=1 on=3 stream=5 bytes=4");
}

TEST(ExploreShadow, NothingWaitsForARecordThatWasReplaced) {
  World world;
  world.lend();
  world.does("create-stream p=0 id=10");
  world.does("create-event p=0 id=6");
  world.does("gate p=0 id=9 stream=4");
  world.does("record p=0 on=6 stream=4");
  EXPECT_EQ(world.does("query-event p=0 on=6").row, "LEVT-09");
  world.does("record p=0 on=6 stream=10");
  const Expected& sync = world.does("sync-event p=0 t=1 on=6");
  EXPECT_FALSE(sync.held);
  EXPECT_EQ(sync.row, "LEVT-13");
  EXPECT_EQ(world.does("sync-stream p=0 stream=10").row, "LEVT-13");
}

TEST(ExploreShadow, AGraphDoesItsWorkAtEachLaunch) {
  World world;
  world.lend();
  world.does("begin-capture p=0 id=9 stream=4");
  EXPECT_EQ(world.refuses("malloc p=0 id=20 bytes=4"),
            "the process captures a stream");
  world.does("set p=0 on=1 stream=4 bytes=4 value=7");
  world.does("end-capture p=0 on=9 stream=4");
  EXPECT_EQ(world.does("read p=1 on=3 stream=5 bytes=1").bytes,
            std::vector<uint8_t>{1});
  world.does("launch p=0 on=9 stream=4");
  world.does("sync-stream p=0 stream=4");
  EXPECT_EQ(world.does("read p=1 on=3 stream=5 bytes=1").bytes,
            std::vector<uint8_t>{7});
}

TEST(ExploreShadow, AnImporterFreesBeforeTheOwner) {
  World world;
  world.does("create-stream p=0 id=1");
  world.does("create-stream p=1 id=2");
  world.does("create-pool p=0 id=3 value=1");
  world.does("export-pool p=0 id=4 on=3");
  world.does("import-pool p=1 id=5 on=4");
  world.does("pool-alloc p=0 id=6 on=3 stream=1 bytes=512");
  EXPECT_EQ(world.does("ask-pool p=0 on=3").least, 512);
  world.does("export-pointer p=0 id=7 on=6");
  world.does("import-pointer p=1 id=8 on=5 from=7");
  EXPECT_EQ(world.refuses("set p=1 on=8 stream=2 bytes=4"), "a race");
  world.does("sync-stream p=0 stream=1");
  world.does("set p=1 on=8 stream=2 bytes=4");
  EXPECT_EQ(world.refuses("free-async p=0 on=6 stream=1"), "a race");
  world.does("free-async p=1 on=8 stream=2");
  EXPECT_EQ(world.refuses("free-async p=0 on=6 stream=1"), "a race");
  world.does("sync-stream p=1 stream=2");
  world.does("free-async p=0 on=6 stream=1");
  const Expected& used = world.does("ask-pool p=0 on=3");
  EXPECT_EQ(used.least, 0);
  EXPECT_EQ(used.most, 512);
}

TEST(ExploreShadow, TheWatermarkIsTheMostSinceItsReset) {
  World world;
  world.does("create-pool p=0 id=1 value=1");
  world.does("create-stream p=0 id=2");
  world.does("pool-alloc p=0 id=3 on=1 stream=2 bytes=4096");
  world.does("sync-stream p=0 stream=2");
  world.does("free p=0 on=3");
  const auto most = [&] { return world.does("ask-pool p=0 on=1 how=2").most; };
  EXPECT_EQ(most(), 4096);
  EXPECT_EQ(world.expected.least, 4096);
  world.does("set-threshold p=0 on=1 how=1");
  EXPECT_EQ(most(), 0);
}

// Maps chunk c as mapping m into a new reservation r; how=1: on a node.
void map(World& world, int c, int m, int r, int how) {
  const auto n = [](int id) { return std::to_string(id); };
  world.does("create-chunk p=0 bytes=2097152 id=" + n(c) + " how=" + n(how));
  world.does("reserve p=0 bytes=4194304 id=" + n(r));
  world.does("map p=0 bytes=2097152 id=" + n(m) + " on=" + n(c) +
             " from=" + n(r));
}

TEST(ExploreShadow, TheCpuNeedsAnAccessOfItsOwnToMemoryOnANode) {
  World world;
  map(world, 1, 2, 3, kOnNode);
  world.does("set-access p=0 on=2 value=3");
  world.does("set p=0 on=2 stream=-1 bytes=64 value=1");
  world.does("sync-device p=0");
  EXPECT_EQ(world.refuses("host-read p=0 on=2 bytes=64"), "no access");
  EXPECT_EQ(world.does("ask-pointer p=0 on=2 how=7").most, 0);
  world.does("set-access p=0 on=2 how=1 value=3");
  EXPECT_EQ(world.does("ask-pointer p=0 on=2 how=7").least, 3);
  EXPECT_EQ(world.does("host-read p=0 on=2 bytes=64").bytes,
            std::vector<uint8_t>(64, 1));
  EXPECT_EQ(world.expected.row, "MNGD-15");
  map(world, 4, 5, 6, kOnGpu);
  EXPECT_NE(world.refuses("set-access p=0 on=5 how=1 value=3"), "");
  EXPECT_EQ(world.refuses("ask-chunk p=0 on=4 how=1"),
            "not the place of the memory");
}

TEST(ExploreShadow, OneCallSetsTheAccessOfMappingsInARow) {
  World world;
  map(world, 1, 2, 3, kOnGpu);
  world.does("create-chunk p=0 bytes=2097152 id=4");
  EXPECT_EQ(world.refuses("set-access p=0 on=2 value=3 rows=2 bytes=4194304"),
            "no such mappings in a row");
  world.does("map p=0 bytes=2097152 id=5 on=4 from=3 at=2097152");
  EXPECT_EQ(world.refuses("set-access p=0 on=2 value=3 rows=2 bytes=2097152"),
            "no such mappings in a row");
  world.does("set-access p=0 on=2 value=3 rows=2 bytes=4194304");
  EXPECT_EQ(world.does("ask-pointer p=0 on=5 how=2").least, 3);
}

TEST(ExploreShadow, ABatchOfCopiesHasItsOwnStream) {
  World world;
  world.lend();
  world.does("malloc p=1 id=6 bytes=4096");
  EXPECT_EQ(world.refuses("copy p=1 on=6 from=3 bytes=64 stream=-11 how=6"),
            "a batch has a stream of its own");
  world.does("copy p=1 on=6 from=3 bytes=64 stream=5 how=6");
  EXPECT_EQ(world.does("read p=1 on=6 bytes=64 stream=5").bytes,
            std::vector<uint8_t>(64, 1));
}

TEST(ExploreShadow, BranchesOfAGraphMeetBeforeItsEndAndDoNotRace) {
  World world;
  world.lend();
  world.does("create-stream p=0 id=6");
  world.does("create-event p=0 id=7 how=2");
  world.does("begin-capture p=0 id=8 stream=4");
  world.does("write p=0 on=1 bytes=64 stream=4 value=5");
  EXPECT_EQ(world.refuses("write p=0 on=1 bytes=64 stream=6 value=6"),
            "the process captures a stream");
  world.does("record p=0 on=7 stream=4");
  world.does("wait p=0 on=7 stream=6");
  world.does("write p=0 on=1 at=64 bytes=64 stream=6 value=6");
  world.does("write p=0 on=1 at=128 bytes=64 stream=4 value=7");
  EXPECT_EQ(world.refuses("write p=0 on=1 at=100 bytes=40 stream=6 value=8"),
            "a race of two branches");
  EXPECT_EQ(world.refuses("end-capture p=0 on=8 stream=4"),
            "a branch has not joined the first one");
  world.does("record p=0 on=7 stream=6");
  world.does("wait p=0 on=7 stream=4");
  world.does("write p=0 on=1 at=100 bytes=40 stream=4 value=8");
  world.does("end-capture p=0 on=8 stream=4");
  EXPECT_EQ(world.refuses("query-event p=0 on=7"),
            "its last record was captured");
  world.does("launch p=0 on=8 stream=6");
  const auto& bytes = world.does("read p=0 on=1 bytes=192 stream=6").bytes;
  EXPECT_EQ(bytes[0], pattern_byte(5, 0));
  EXPECT_EQ(bytes[64], pattern_byte(6, 0));
  EXPECT_EQ(bytes[100], pattern_byte(8, 0));
  EXPECT_EQ(bytes[191], pattern_byte(7, 63));
}

TEST(ExploreShadow, AnUpdateChangesLaterLaunches) {
  World world;
  world.lend();
  const auto capture = [&](int graph, const std::string& node,
                           const std::string& end) {
    world.does("begin-capture p=0 stream=4 id=" + std::to_string(graph));
    world.does(node + " p=0 on=1 bytes=64 stream=4");
    return "end-capture p=0 stream=4 on=" + std::to_string(graph) + end;
  };
  world.does(capture(6, "write value=5", ""));
  world.does("launch p=0 on=6 stream=4");
  world.does(capture(7, "write value=6", " from=6 how=1"));
  EXPECT_EQ(world.refuses("launch p=0 on=7 stream=4"),
            "no such graph in this process");
  EXPECT_EQ(world.does("read p=0 on=1 bytes=1 stream=4").bytes[0],
            pattern_byte(5, 0));
  world.does("launch p=0 on=6 stream=4");
  EXPECT_EQ(world.does("read p=0 on=1 bytes=1 stream=4").bytes[0],
            pattern_byte(6, 0));
  const std::string set = capture(8, "set value=6", " from=6 how=1");
  EXPECT_EQ(world.refuses(set), "only what kernels get is updated");
}

// A wait for a record of the same stream adds an edge, which changes no order.
TEST(ExploreShadow, AnUpdateKeepsTheEdges) {
  World world;
  world.lend();
  world.does("create-event p=0 id=9 how=2");
  const auto capture = [&](int graph, bool waits, const std::string& end) {
    world.does("begin-capture p=0 stream=4 id=" + std::to_string(graph));
    for (int i = 0; i < 3; ++i) {
      if (waits && i == 2) world.does("wait p=0 on=9 stream=4");
      world.does("write p=0 on=1 bytes=64 stream=4 value=5");
      if (waits && i == 0) world.does("record p=0 on=9 stream=4");
    }
    return "end-capture p=0 stream=4 on=" + std::to_string(graph) + end;
  };
  world.does(capture(6, true, ""));
  world.does(capture(7, true, " from=6 how=1"));
  EXPECT_EQ(world.refuses(capture(8, false, " from=6 how=1")), "other edges");
}

TEST(ExploreShadow, CudaFreeAsyncFreesMemoryOfCudaMalloc) {
  World world;
  world.lend();
  EXPECT_EQ(world.refuses("free-async p=0 on=1 stream=4"),
            "another process has it open");
  world.does("close-memory p=1 on=3");
  EXPECT_EQ(world.does("free-async p=0 on=1 stream=4").row, "SOMA-05");
  EXPECT_EQ(world.refuses("read p=0 on=1 bytes=1 stream=4"),
            "no such memory in this process");
}

TEST(ExploreShadow, ASynchroniseReleasesWhatAPrivatePoolDoesNotUse) {
  World world;
  world.does("create-pool p=0 id=1");
  world.does("create-stream p=0 id=2");
  world.does("pool-alloc p=0 id=3 on=1 stream=2 bytes=4096");
  world.does("free-async p=0 on=3 stream=2");
  EXPECT_GT(world.does("ask-pool p=0 on=1 how=3").most, 1 << 20);
  world.does("sync-stream p=0 stream=2");
  EXPECT_EQ(world.does("ask-pool p=0 on=1 how=3").most, 0);
}

TEST(ExploreShadow, MemoryOfTheCurrentPoolIsMemoryOfThatPool) {
  World world;
  world.does("create-pool p=0 id=1");
  EXPECT_EQ(
      world.does("question p=0 on=1 how=" + std::to_string(kCurrent)).most, 0);
  EXPECT_EQ(world.refuses("pool-alloc p=0 id=2 on=1 stream=-1 how=1 bytes=64"),
            "not the current pool");
  world.does("set-pool p=0 on=1");
  EXPECT_EQ(
      world.does("question p=0 on=1 how=" + std::to_string(kCurrent)).most, 1);
  world.does("pool-alloc p=0 id=2 on=1 stream=-1 how=1 bytes=64");
  EXPECT_EQ(world.does("ask-pool p=0 on=1").least, 64);
  world.does("sync-device p=0");
  world.does("free p=0 on=2");
  world.does("destroy-pool p=0 on=1");
  world.does("question p=0 how=" + std::to_string(kCurrent));
  EXPECT_TRUE(world.shadow.is_clean());
}

TEST(ExploreShadow, AKilledProcessMayHaveDoneAnyPartOfItsWork) {
  World world;
  world.lend();
  world.does("gate p=1 id=6 stream=5 value=0");
  world.does("set p=1 on=3 stream=5 at=8 bytes=4 value=7");
  EXPECT_EQ(world.refuses("end p=1 how=0"),
            "work of the process may be unfinished");
  world.does("end p=1 how=1");
  EXPECT_EQ(world.does("read p=0 on=1 stream=4 bytes=8").row, "LIFE-02");
  EXPECT_EQ(world.refuses("read p=0 on=1 stream=4 bytes=12"),
            "bytes without a value");
  world.does("set p=0 on=1 stream=4 bytes=12 value=3");
  world.does("read p=0 on=1 stream=4 bytes=12");
}

TEST(ExploreShadow, NobodyIsKilledForWhoseWorkOthersWait) {
  World world;
  world.lend();
  world.does("create-event p=0 id=6");
  world.does("export-event p=0 id=7 on=6");
  world.does("open-event p=1 id=8 on=7");
  world.does("gate p=1 id=9 stream=5 value=0");
  world.does("record p=1 on=8 stream=5");
  EXPECT_EQ(world.refuses("end p=1 how=1"),
            "others wait for work of the process");
}

TEST(ExploreShadow, TwoGpusHaveMemoryAndPoolsOfTheirOwn) {
  Machine machine = kMachine;
  machine.gpus = 2;
  Shadow shadow(machine, 2);
  Expected expected;
  const auto does = [&](const char* line) {
    return shadow.apply(step_from(line), &expected);
  };
  ASSERT_TRUE(does("create-pool p=1 id=1 value=1"));
  ASSERT_TRUE(does("export-pool p=1 id=2 on=1"));
  EXPECT_FALSE(does("import-pool p=0 id=3 on=2"));
  EXPECT_TRUE(does("import-pool p=0 id=3 on=2 value=1"));
  ASSERT_TRUE(does("create-event p=1 id=4"));
  ASSERT_TRUE(does("export-event p=1 id=5 on=4"));
  ASSERT_TRUE(does("open-event p=0 id=6 on=5"));
  EXPECT_FALSE(does("record p=0 on=6 stream=-1"));
  EXPECT_TRUE(does("wait p=0 on=6 stream=-1"));
}

TEST(ExploreShadow, TheFirstCopyThatNamesAnotherGpuHoldsNothing) {
  Machine machine = kMachine;
  machine.gpus = 2;
  Shadow shadow(machine, 2);
  Expected expected;
  const auto does = [&](const std::string& line) {
    return shadow.apply(step_from(line), &expected);
  };
  ASSERT_TRUE(does("malloc p=0 id=1 bytes=4096"));
  ASSERT_TRUE(does("set p=0 on=1 stream=-1 bytes=4096 value=1"));
  ASSERT_TRUE(does("sync-device p=0"));
  ASSERT_TRUE(does("export-memory p=0 id=2 on=1"));
  ASSERT_TRUE(does("open-memory p=1 id=3 on=2"));
  ASSERT_TRUE(does("malloc p=1 id=4 bytes=4096"));
  ASSERT_TRUE(does("create-stream p=1 id=5"));
  const std::string copy = "copy p=1 on=4 from=3 stream=5 how=3 bytes=4 ";
  ASSERT_TRUE(does("gate p=1 id=6 stream=5 value=0"));
  EXPECT_FALSE(does(copy + "value=1"));
  EXPECT_EQ(shadow.reason(), "the process holds work");
  ASSERT_TRUE(does("open-gate p=1 on=6 value=0"));
  EXPECT_TRUE(does(copy + "value=1"));
  ASSERT_TRUE(does("gate p=1 id=7 stream=5 value=1"));
  EXPECT_TRUE(does(copy + "value=1"));
  // Process 1 uses GPU 1; both sides are of GPU 0.
  EXPECT_FALSE(does("copy p=1 on=3 from=3 stream=5 how=3 at=8 bytes=4"));
  EXPECT_EQ(shadow.reason(), "both GPUs are others");
}

TEST(ExploreShadow, NoMoreThanFourStreamsAreHeld) {
  World world(1);
  for (int i = 0; i < 5; ++i) {
    const std::string stream = std::to_string(1 + i);
    world.does("create-stream p=0 id=" + stream);
  }
  for (int i = 0; i < 4; ++i)
    world.does("gate p=0 id=" + std::to_string(11 + i) + " stream=" +
               std::to_string(1 + i) + " value=" + std::to_string(i));
  EXPECT_EQ(world.refuses("gate p=0 id=21 stream=5 value=4"),
            "too many streams are held");
}

TEST(ExploreEnds, LeaveNothingOfAnyBeginOfAProgram) {
  int clean = 0, all = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Program program = generated(seed);
    for (size_t size = 5; size < program.steps.size(); size += 10) {
      Shadow shadow(kMachine, program.processes);
      Expected expected;
      for (size_t i = 0; i < size; ++i)
        ASSERT_TRUE(shadow.apply(program.steps[i], &expected));
      end_all(shadow,
              [&](const Step& step) { return shadow.apply(step, &expected); });
      ++all;
      clean += shadow.is_clean();
    }
  }
  // A wait for a word that nobody writes stays.
  EXPECT_GT(clean, all * 9 / 10) << all;
}

TEST(ExploreGenerator, WhereStreamsWaitForEachOtherNothingIsHeld) {
  Machine machine = kMachine;
  machine.side_by_side = false;
  Coverage coverage(machine);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Program program =
        Generator(machine, 3, coverage, seed).make(100, true);
    Shadow shadow(machine, 3);
    Expected expected;
    for (const Step& step : program.steps) {
      ASSERT_TRUE(shadow.apply(step, &expected));
      for (const auto& [id, stream] : shadow.streams)
        ASSERT_TRUE(stream.queue.empty()) << to_text(step);
    }
  }
}

TEST(ExploreStep, EachListedCallHasAText) {
  for (int how = kFirstOfList; how < kRefusals; ++how)
    EXPECT_NE(std::string(refusal(how).body), "") << refusal(how).what;
  for (int how = 0; how < kQuestions; ++how)
    EXPECT_NE(std::string(question(how).body), "") << question(how).what;
}

TEST(ExploreShadow, AStepThatIsNotDefinedChangesNothing) {
  Random random(11);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Program program = generated(seed);
    Shadow shadow(kMachine, program.processes),
        disturbed(kMachine, program.processes);
    Expected expected, other;
    for (const Step& step : program.steps) {
      ASSERT_TRUE(shadow.apply(step, &expected));
      // A step that is wrong in most worlds.
      Step wrong = program.steps[static_cast<size_t>(
          random.below(static_cast<int>(program.steps.size())))];
      wrong.id = -1;
      wrong.on += 1000;
      wrong.stream = wrong.stream == 0 ? 0 : 999;
      if (wrong.op != Op::kSyncDevice && wrong.op != Op::kEnd &&
          wrong.op != Op::kStart && wrong.op != Op::kRefuse &&
          wrong.op != Op::kNewThread && step.group == 0) {
        EXPECT_FALSE(disturbed.apply(wrong, &other)) << to_text(wrong);
      }
      ASSERT_TRUE(disturbed.apply(step, &other)) << disturbed.reason();
      EXPECT_EQ(other.bytes, expected.bytes);
      EXPECT_EQ(other.codes, expected.codes);
    }
  }
}

TEST(ExploreShrink, KeepsWhatTheFailureNeeds) {
  const Program program = generated(24, 120);
  // "Fails" if a memory was exported and later a stream was synchronised.
  int runs = 0;
  const auto run = [&](const Program& trial) -> std::optional<Failure> {
    ++runs;
    bool exported = false;
    for (size_t i = 0; i < trial.steps.size(); ++i) {
      exported = exported || trial.steps[i].op == Op::kExportMemory;
      if (exported && trial.steps[i].op == Op::kSyncDevice)
        return Failure{i, trial.steps[i], "ROW", "code", "1", "0"};
    }
    return std::nullopt;
  };
  const auto failure = run(program);
  ASSERT_TRUE(failure) << "choose another seed";
  const Shrunk small =
      shrink(kMachine, program, *failure, run,
             std::chrono::steady_clock::now() + std::chrono::seconds(20));
  EXPECT_TRUE(small.finished);
  ASSERT_EQ(small.program.steps.size(), 3u) << to_text(small.program);
  EXPECT_EQ(small.program.steps[0].op, Op::kMalloc);
  EXPECT_EQ(small.program.steps[1].op, Op::kExportMemory);
  EXPECT_EQ(small.program.steps[2].op, Op::kSyncDevice);
  EXPECT_EQ(small.runs, runs - 1);
}

TEST(ExploreShrink, AnotherFailureIsNotKept) {
  const Program program = generated(23, 120);
  const auto run = [&](const Program& trial) -> std::optional<Failure> {
    const bool whole = trial.steps.size() > 30;
    return Failure{trial.steps.size() - 1,
                   trial.steps.back(),
                   whole ? "ROW" : "OTHER",
                   "code",
                   "1",
                   "0"};
  };
  const auto failure = run(program);
  const Shrunk small =
      shrink(kMachine, program, *failure, run,
             std::chrono::steady_clock::now() + std::chrono::seconds(1));
  EXPECT_EQ(small.failure.row, "ROW");
  EXPECT_GT(small.program.steps.size(), 30u);
}

TEST(ExploreHistory, PartsDoNotMeet) {
  const std::vector<Program> parts = {generated(1), generated(2), generated(1)};
  const Program all = joined(parts);
  EXPECT_EQ(all.steps.size(), parts[0].steps.size() + parts[1].steps.size() +
                                  parts[2].steps.size());
  EXPECT_EQ(defined_part(kMachine, all).steps.size(), all.steps.size());
}

TEST(ExploreCoverage, CountsWhatProgramsCombine) {
  Coverage coverage(kMachine);
  Generator(kMachine, 3, coverage, 1).make(150, false);
  for (const Coverage::Table& table : coverage.tables()) {
    EXPECT_LT(table.reached(), static_cast<int>(table.pairs.size()));
  }
  EXPECT_GT(coverage.tables()[0].reached(), 0);
  EXPECT_GT(coverage.tables()[1].reached(), 0);
}

TEST(ExploreStory, TellsActorsObjectsAndTheFailure) {
  const Program program = program_from(
      "program seed=1 processes=2\nmalloc p=0 id=1 bytes=4096\n"
      "export-memory p=0 id=2 on=1\nopen-memory p=1 api=1 id=3 on=2\n");
  const Failure failure{2,      program.steps[2],        "LMEM-01",
                        "code", "cudaErrorInvalidValue", "cudaSuccess"};
  EXPECT_EQ(story(program, failure),
            "p0                    m1 = cudaMalloc of 4096 bytes\n"
            "p0                    h2 = legacy handle of m1\n"
            "p1                    m3 = open h2  [driver API]\n"
            "-> code: cudaErrorInvalidValue, not cudaSuccess (LMEM-01)\n");
  const std::string source = standalone(kMachine, program, failure);
  EXPECT_NE(source.find("cudaMalloc(&m1, 4096)"), std::string::npos);
  EXPECT_NE(source.find("DRIVER(cuIpcOpenMemHandle)"), std::string::npos);
  EXPECT_LE(std::count(source.begin(), source.end(), '\n'), 100);
}

}  // namespace
}  // namespace ipclab::explore
