// Ranks that sum their arrays through each other's memory. Mirror of
// samples/72_all_reduce; the kernels are in the lesson's header.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>
#include <vector>

#include "harness/scenario/cuda.h"
#include "samples/72_all_reduce/all_reduce.h"

using namespace ipclab;

namespace {

constexpr size_t kPushed = kMaxPushed / sizeof(float) / 4;  // always pushed
constexpr size_t kSummed = kMaxPushed / sizeof(float) + 4;  // takes two phases
constexpr int kInARow = 20;

// What all_reduce.h needs to know about the ranks; here the ranks are roles of
// a scenario.
struct Ranks {
  Role& me;
  int size;
  int rank = me.index();
  int gathered = 0;

  template <class T>
  std::vector<T> gather(const T& mine) {
    const std::string step = "value " + std::to_string(++gathered) + " of ";
    me.send(step + std::to_string(rank), mine);
    std::vector<T> all;
    for (int i = 0; i < size; ++i)
      all.push_back(i == rank ? mine : me.receive<T>(step + std::to_string(i)));
    return all;
  }
};

// With these values, another order of the additions may give other bits.
float value_of(int rank, size_t i) {
  return static_cast<float>(1 + i % 1000) / static_cast<float>(rank + 3);
}

// The value that all ranks have after `times` sums in a row.
float sum_on_host(int ranks, size_t i, int times) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i);
  for (; times > 1; --times) {
    const float same = sum;
    sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += same;
  }
  return sum;
}

void write_own_values(int rank, const Words& array) {
  std::vector<float> values(array.count);
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(rank, i);
  CALL(cudaMemcpy(array.data, values.data(), array.bytes(),
                  cudaMemcpyHostToDevice));
  CALL(cudaDeviceSynchronize());  // the copy may return before its end
}

// `times_of(i)` says how often value i was summed; a value with 0 is not
// checked.
template <class Times>
testing::AssertionResult has_the_sums(const Words& array, int ranks,
                                      Times times_of) {
  std::vector<float> seen(array.count);
  CALL(cudaMemcpy(seen.data(), array.data, array.bytes(),
                  cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < seen.size(); ++i) {
    const int times = times_of(i);
    if (times == 0) continue;
    const float sum = sum_on_host(ranks, i, times);
    if (seen[i] != sum)
      return testing::AssertionFailure()
             << "value " << i << " is " << seen[i] << ", the sum of the ranks "
             << "is " << sum;
  }
  return testing::AssertionSuccess();
}

// One rank's part in a scenario.
struct Member {
  Ranks ranks;
  Stream stream;
  Team team;
  DeviceBuffer array;
  Arrays arrays;

  Member(Role& me, int size, int gpus)
      : ranks{me, (CALL(cudaSetDevice(me.index() % gpus)), size)},
        team(join_team(ranks, 6)),
        array(kSummed * sizeof(float)),
        arrays(share(ranks, array.data)) {
    write_own_values(ranks.rank, array);
  }

  void sum(size_t count) {
    note_call("all_reduce()");
    all_reduce<float>(team, arrays, count, stream);
  }

  testing::AssertionResult finished() {
    const auto passed = passes(stream, 60s);
    if (!passed) return passed;
    if (unanswered(team) == -1) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << "rank " << unanswered(team) << " has not answered";
  }

  void leave() {
    note_call("cudaIpcCloseMemHandle(array)");
    unshare(ranks, arrays);
    leave_team(ranks, team);
  }
};

// Every rank sums arrays of several sizes. Then sums of both kinds follow
// without a pause.
void all_have_the_sums(int ranks, int gpus, std::chrono::milliseconds limit) {
  Scenario scenario(Scenario::kShared);
  scenario.roles("rank", ranks, [=](Role& me) {
    Member member(me, ranks, gpus);
    for (const size_t count : {size_t{4}, size_t{1020}, kPushed, kSummed}) {
      write_own_values(me.index(), member.array);
      member.ranks.gather(0);  // a sum reads the other ranks' arrays
      member.sum(count);
      ASSERT_TRUE(member.finished());
      EXPECT_TRUE(has_the_sums(member.array, ranks,
                               [=](size_t i) { return i < count ? 1 : 0; }))
          << "of " << count;
    }
    for (int i = 0; i < kInARow; ++i)
      member.sum(i % 5 == 0 ? kSummed : kPushed);
    ASSERT_TRUE(member.finished());
    EXPECT_TRUE(has_the_sums(member.array, ranks, [](size_t i) {
      return 1 + (i < kPushed ? kInARow : kInARow / 5);
    })) << "in a row";
    member.leave();
  });
  scenario.run(limit);
}

}  // namespace

TEST(AllReduce, TwoRanksOfOneGpuHaveTheSums) {
  covers("ARED-01");
  needs(gpus(1), legacy_memory, progress);
  all_have_the_sums(2, 1, 60s);
}

TEST(AllReduce, EightRanksOfOneGpuHaveTheSums) {
  covers("ARED-01");
  needs(gpus(1), legacy_memory, progress);
  all_have_the_sums(8, 1, 90s);
}

TEST(AllReduce, RanksOfTwoGpusHaveTheSums) {
  covers("ARED-01");
  needs(gpus(2), legacy_memory, peer_access, progress);
  all_have_the_sums(2, 2, 60s);
}

TEST(AllReduce, ReplaysOfAGraphSeeEachOther) {
  covers("ARED-02");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.roles("rank", 2, [](Role& me) {
    Member member(me, 2, 1);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    CALL(cudaStreamBeginCapture(member.stream,
                                cudaStreamCaptureModeThreadLocal));
    member.sum(kPushed);
    member.sum(kSummed);
    CALL(cudaStreamEndCapture(member.stream, &graph));
    CALL(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < kInARow; ++i)
      EXPECT_SUCCESS(cudaGraphLaunch(replay, member.stream));
    ASSERT_TRUE(member.finished());
    EXPECT_TRUE(has_the_sums(member.array, 2, [](size_t i) {
      return i < kPushed ? 2 * kInARow : kInARow;
    }));
    CALL(cudaGraphExecDestroy(replay));
    CALL(cudaGraphDestroy(graph));
    member.leave();
  });
  scenario.run(60s);
}

// The contents of memory whose process has ended are undefined, so only that
// the other processes end is judged, not what they see. This is the last test,
// because these processes give nothing back.
TEST(AllReduce, ARankIsKilledAndTheOthersEnd) {
  covers("ARED-03");
  needs(gpus(1), legacy_memory, progress);
  constexpr int kRanks = 3;
  for (const int after : {0, 1, 7}) {
    Scenario scenario(Scenario::kShared);
    scenario.roles("rank", kRanks, [=](Role& me) {
      Member& member = *new Member(me, kRanks, 1);
      member.team.limit = 2'000'000'000;
      member.ranks.gather(0);  // all have opened rank 1's memory
      for (int i = 0; i < 20; ++i) {
        if (me.index() == 1 && i == after) me.die(SIGKILL);
        member.sum(i % 2 == 0 ? kPushed : kSummed);
      }
      const cudaError_t code = cudaStreamSynchronize(member.stream);
      const int lost = unanswered(member.team);
      me.observe("after the death of rank 1 the sums end with " +
                 name_of(code) + ", rank " + std::to_string(lost) +
                 " has not answered");
      cudaGetLastError();
    });
    scenario.run(60s);
  }
}
