// SPDX-License-Identifier: Apache-2.0
// Processes lend each other memory in every way. At random moments a process is
// killed or stopped. The other processes continue, each of their steps takes
// less than kLongest, and nothing is left behind. The test takes minutes, so
// CTest does not run it; harness/model/README.md says how to run it. The test
// does not use fabric handles, because a stopped exporter cannot answer
// requests for them.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu.h"
#include "peer.h"
#include "pool.h"
#include "vmm.h"

using namespace ipclab::model::test;

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMembers = 8;
constexpr size_t kStopped = 4;  // members that are stopped at the same time
constexpr auto kStop = std::chrono::seconds(5);
constexpr double kLongest = 0.5;  // seconds
constexpr size_t kLent = 4 << 20;
constexpr size_t kSlot = 4096;  // bytes of each member in all lent memory
constexpr auto kPosixPool = cudaMemHandleTypePosixFileDescriptor;

// ---- a member

/// The loans of a member to the other members, in addition to two descriptors.
struct Offer {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  cudaMemPoolPtrExportData pooled;
};

struct Order {
  int slot;
  Offer offer;
};

/// What a member found when it used an offer.
struct Report {
  double longest = 0;     ///< seconds of the longest step
  char step[24] = "";     ///< the name of this step
  char refused[24] = "";  ///< the loan that could not be opened, if any
  char failed[24] = "";   ///< a step that failed, if any
};

class Round {
 public:
  /// Times a step that must succeed.
  template <typename Call>
  void must(const char* name, Call call) {
    if (!timed(name, call)) std::snprintf(report.failed, 24, "%s", name);
  }
  /// Times a step that may fail if the exporter has ended.
  template <typename Call>
  bool may(const char* name, Call call) {
    const bool good = timed(name, call);
    if (!good) {
      std::snprintf(report.refused, 24, "%s", name);
      cudaGetLastError();
    }
    return good;
  }
  /// Writes this member's slot in the memory of another member and reads it
  /// again.
  void use(const char* name, void* memory, int slot) {
    must(name, [&] {
      char* place = static_cast<char*>(memory) + slot * kSlot;
      std::vector<char> seen(kSlot);
      ++value_;
      return cudaMemset(place, value_, kSlot) == cudaSuccess &&
             cudaMemcpy(seen.data(), place, kSlot, cudaMemcpyDeviceToHost) ==
                 cudaSuccess &&
             seen == std::vector<char>(kSlot, static_cast<char>(value_));
    });
  }
  Report report;

 private:
  template <typename Call>
  bool timed(const char* name, Call call) {
    const auto begin = Clock::now();
    const bool good = call();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    if (taken.count() > report.longest) {
      report.longest = taken.count();
      std::snprintf(report.step, sizeof report.step, "%s", name);
    }
    return good;
  }
  static inline int value_ = 0;
};

bool ok(cudaError_t code) { return code == cudaSuccess; }
bool ok(CUresult code) { return code == CUDA_SUCCESS; }

void use_memory(Round& round, const Order& order) {
  void* data = nullptr;
  cudaEvent_t event = nullptr;
  if (round.may("open memory", [&] {
        return ok(cudaIpcOpenMemHandle(&data, order.offer.memory,
                                       cudaIpcMemLazyEnablePeerAccess));
      })) {
    round.use("use memory", data, order.slot);
    round.must("close memory", [&] { return ok(cudaIpcCloseMemHandle(data)); });
  }
  if (round.may("open event", [&] {
        return ok(cudaIpcOpenEventHandle(&event, order.offer.event));
      })) {
    round.must("query event", [&] {
      const cudaError_t code = cudaEventQuery(event);
      cudaGetLastError();
      return code == cudaSuccess || code == cudaErrorNotReady;
    });
    round.must("destroy event", [&] { return ok(cudaEventDestroy(event)); });
  }
}

void use_pool(Round& round, const Order& order, int descriptor) {
  cudaMemPool_t pool = nullptr;
  void* data = nullptr;
  if (!round.may("import pool", [&] {
        return ok(cudaMemPoolImportFromShareableHandle(
            &pool, reinterpret_cast<void*>(intptr_t{descriptor}), kPosixPool,
            0));
      })) {
    return;
  }
  if (round.may("import pointer", [&] {
        cudaMemPoolPtrExportData pooled = order.offer.pooled;
        return ok(cudaMemPoolImportPointer(&data, pool, &pooled));
      })) {
    set_access(pool, 0, cudaMemAccessFlagsProtReadWrite);
    round.use("use pool", data, order.slot);
    round.must("free pointer",
               [&] { return ok(cudaFreeAsync(data, nullptr)); });
  }
  round.must("destroy pool", [&] {
    return ok(cudaStreamSynchronize(nullptr)) && ok(cudaMemPoolDestroy(pool));
  });
}

void use_chunk(Round& round, const Order& order, int descriptor) {
  Handle handle = 0;
  if (!round.may("import chunk",
                 [&] { return ok(import_descriptor(descriptor, &handle)); })) {
    return;
  }
  int* data = nullptr;
  round.must("map chunk", [&] {
    data = map(handle);
    return data != nullptr;
  });
  round.use("use chunk", data, order.slot);
  round.must("unmap chunk", [&] {
    unmap(data);
    release(handle);
    return true;
  });
}

void use_own(Round& round, cudaEvent_t event) {
  round.must("own work", [&] {
    int* data = allocate<int>(3000);
    size_t available = 0, total = 0;
    const bool good = ok(launch("fill", 12, 256, nullptr, data, 3000, 5)) &&
                      ok(cudaEventRecord(event)) &&
                      ok(cudaDeviceSynchronize()) &&
                      wrong_elements(data, 3000, 5) == 0 &&
                      ok(cudaMemGetInfo(&available, &total));
    return ok(cudaFree(data)) && good;
  });
}

ROLE(member) {
  Offer offer{};
  offer.memory = memory_handle(allocate<char>(kLent));
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  EXPECT_EQ(cudaIpcGetEventHandle(&offer.event, event), cudaSuccess);
  cudaMemPool_t pool = create(on_device(0, kPosixPool));
  int descriptor = -1;
  EXPECT_EQ(
      cudaMemPoolExportToShareableHandle(&descriptor, pool, kPosixPool, 0),
      cudaSuccess);
  int* pooled = take(pool, kLent, nullptr);
  EXPECT_EQ(cudaMemPoolExportPointer(&offer.pooled, pooled), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Round first;
  use_own(first, event);  // allocates memory that the member keeps
  test.send(offer);
  test.send_descriptor(descriptor);
  test.send_descriptor(export_descriptor(create(chunk_on(0, kPosix), kLent)));
  for (;;) {
    const auto order = test.receive<Order>();
    const int of_pool = test.receive_descriptor();
    const int of_chunk = test.receive_descriptor();
    Round round;
    use_memory(round, order);
    use_pool(round, order, of_pool);
    use_chunk(round, order, of_chunk);
    use_own(round, event);
    close(of_pool);
    close(of_chunk);
    test.send(round.report);
  }
}

// ---- the group

struct Member {
  std::unique_ptr<Peer> peer;
  Offer offer{};
  int pool = -1;
  int chunk = -1;
};

int number_from(const char* variable, int otherwise) {
  const char* asked = std::getenv(variable);
  return asked != nullptr ? std::atoi(asked) : otherwise;
}

int open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class Kills : public testing::Test {
 protected:
  void SetUp() override {
    const std::string machine = "proof of kills " + std::to_string(getpid());
    setenv("IPCLAB_MODEL_MACHINE", machine.c_str(), 1);
    ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
    free_ = free_bytes();
    descriptors_ = open_descriptors();
    for (Member& member : members_) begin(member);
    each_ = (free_ - free_bytes()) / kMembers;
    ASSERT_GE(each_, 3 * kLent);
  }

  void TearDown() override {
    for (Member& member : members_) end(member);
    EXPECT_EQ(free_bytes(), free_);
    EXPECT_EQ(open_descriptors(), descriptors_);
    std::printf("longest step beside others: %.3f s (%s); loans refused: %d\n",
                longest_.longest, longest_.step, refused_);
  }

  void begin(Member& member) {
    member.peer = std::make_unique<Peer>("member");
    member.offer = member.peer->channel().receive<Offer>();
    member.pool = member.peer->channel().receive_descriptor();
    member.chunk = member.peer->channel().receive_descriptor();
  }

  // The memory that the member lent stays counted until its last descriptor is
  // closed.
  void end(Member& member) {
    member.peer->kill(SIGKILL);
    EXPECT_EQ(member.peer->wait(), "signal 9");
    member.peer->channel().close_socket();
    close(member.pool);
    close(member.chunk);
  }

  // Gives the member a loan of another member, because no process may open its
  // own loan.
  void order(Member& member) {
    const auto slot = static_cast<size_t>(&member - members_);
    const size_t other = 1 + random_() % (kMembers - 1);
    const Member& lender = members_[(slot + other) % kMembers];
    lender_of_[slot] = &lender;
    Channel& channel = member.peer->channel();
    channel.send(Order{static_cast<int>(slot), lender.offer});
    channel.send_descriptor(lender.pool);
    channel.send_descriptor(lender.chunk);
  }

  // Receives the report of a member. Only the loans of `killed` may be refused.
  void collect(Member& member, const Member* killed, bool timed) {
    const auto report = member.peer->channel().receive<Report>();
    EXPECT_STREQ(report.failed, "");
    if (report.refused[0] != '\0') {
      ++refused_;
      EXPECT_EQ(lender_of_[&member - members_], killed) << report.refused;
    }
    if (!timed) return;
    EXPECT_LT(report.longest, kLongest) << report.step;
    if (report.longest > longest_.longest) longest_ = report;
  }

  void pause_up_to(int microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(
        random_() % static_cast<unsigned>(microseconds)));
  }

  // No member has an open loan: each has its own memory and nothing else.
  void expect_even_shares() {
    EXPECT_EQ(free_ - free_bytes(), kMembers * each_);
  }

  Member members_[kMembers];
  const Member* lender_of_[kMembers] = {};
  std::mt19937 random_{static_cast<unsigned>(number_from("IPCLAB_SEED", 17))};
  size_t places_[kMembers] = {0, 1, 2, 3, 4, 5, 6, 7};
  size_t free_ = 0;
  size_t each_ = 0;
  int descriptors_ = 0;
  Report longest_;
  int refused_ = 0;
};

TEST_F(Kills, AKilledMemberStallsNobodyAndLeavesNothing) {
  const int kills = number_from("IPCLAB_KILLS", 1000);
  for (int i = 0; i < kills && !HasFailure(); ++i) {
    Member& victim = members_[random_() % kMembers];
    for (Member& member : members_) order(member);
    pause_up_to(30000);
    victim.peer->kill(SIGKILL);
    for (Member& member : members_) {
      if (&member != &victim) collect(member, &victim, true);
    }
    end(victim);
    begin(victim);
    expect_even_shares();
  }
}

TEST_F(Kills, AStoppedMemberStallsNobody) {
  const int stops = number_from("IPCLAB_STOPS", 200);
  for (int i = 0; i < stops && !HasFailure(); i += kStopped) {
    std::shuffle(std::begin(places_), std::end(places_), random_);
    for (Member& member : members_) order(member);
    for (size_t k = 0; k < kStopped; ++k) {
      pause_up_to(8000);
      members_[places_[k]].peer->kill(SIGSTOP);
    }
    const auto end = Clock::now() + kStop;
    for (size_t k = kStopped; k < kMembers; ++k) {
      collect(members_[places_[k]], nullptr, true);
    }
    while (Clock::now() < end) {
      for (size_t k = kStopped; k < kMembers; ++k) order(members_[places_[k]]);
      for (size_t k = kStopped; k < kMembers; ++k) {
        collect(members_[places_[k]], nullptr, true);
      }
      pause_up_to(200000);
    }
    for (size_t k = 0; k < kStopped; ++k) {
      members_[places_[k]].peer->kill(SIGCONT);
      collect(members_[places_[k]], nullptr, false);
    }
    expect_even_shares();
  }
}

}  // namespace
