// Ranks of one node: each lends and borrows at the same time. The UUID of a GPU
// means the same in all ranks, even if they see the GPUs in different orders.
// Mirror of samples/76_mpi_ranks.
//
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/cuda.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr int kRanks = 4;
constexpr size_t kBytes = 2 << 20;

std::string named(const char* what, int rank) {
  return what + std::string(" ") + std::to_string(rank);
}

CUuuid uuid_of(int device) {
  Sentinel<CUuuid> uuid;
  CALL(DRIVER(cuDeviceGetUuid)(uuid.out(), device));
  return uuid.result();
}

bool equal(const CUuuid& one, const CUuuid& other) {
  return std::memcmp(&one, &other, sizeof one) == 0;
}

int device_of(const void* memory) {
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, memory));
  return attributes.device;
}

}  // namespace

TEST(MpiRanks, EveryRankLendsAndBorrows) {
  covers("RANK-01");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.roles("rank", kRanks, [](Role& me) {
    DeviceBuffer own(kBytes);
    own.fill(pattern(named("rank", me.index())));
    me.send(named("handle", me.index()), own.legacy_handle());

    std::vector<std::unique_ptr<LegacyMapping>> others;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == me.index()) continue;
      const auto handle = me.receive<Handle>(named("handle", rank));
      others.push_back(std::make_unique<LegacyMapping>(handle, kBytes));
      EXPECT_TRUE(kernel_reads(*others.back(), pattern(named("rank", rank))));
      EXPECT_TRUE(copy_reads(*others.back(), pattern(named("rank", rank))));
    }
    me.signal("all are open");
    me.wait("all are open", kRanks - 1);
    own.fill(pattern(named("new of rank", me.index())));
    me.signal("new values");
    me.wait("new values", kRanks - 1);
    int at = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == me.index()) continue;
      EXPECT_TRUE(
          kernel_reads(*others[at++], pattern(named("new of rank", rank))));
    }
    others.clear();
    me.signal("closed");
    me.wait("closed", kRanks - 1);
    EXPECT_SUCCESS(cudaFree(std::exchange(own.data, nullptr)));
    EXPECT_TRUE(context_is_usable());
  });

  scenario.run(60s);
}

// Lends an event that is pending until the other rank has asked. Then waits for
// the record of the other rank.
static void lends_an_event(Role& me) {
  const SharedEvent event;
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  CALL(cudaEventRecord(event, stream));
  me.send("event", event.handle());
  me.wait("asked");
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.wait("recorded");
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  me.signal("seen");
  me.wait("destroyed");
}

// Waits for the event and records it, on the GPU of the other rank.
static void borrows_an_event(Role& me) {
  SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
  const Stream stream;
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_TRUE(is_held(stream));
  me.signal("asked");
  EXPECT_TRUE(passes(stream));
  {
    Latch latch;
    latch.hold(stream);
    EXPECT_SUCCESS(cudaEventRecord(event, stream));
    me.signal("recorded");
    me.wait("seen");
    latch.release();
    EXPECT_SUCCESS(cudaEventSynchronize(event));
  }
  event.destroy();
  me.signal("destroyed");
}

TEST(MpiRanks, AUuidMeansTheSameInEveryOrder) {
  covers("RANK-02");
  needs(gpus(2), legacy_memory, legacy_events);
  Scenario scenario;

  scenario
      .role("exporter",
            [](Role& me) {
              const DeviceBuffer buffer(kBytes);
              buffer.fill(pattern("exporter"));
              me.send("first", uuid_of(0));
              me.send("second", uuid_of(1));
              me.send("memory", buffer.legacy_handle());
              lends_an_event(me);
              me.wait("closed");
              EXPECT_TRUE(copy_reads(buffer, pattern("importer")));
            })
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({0, 1}));

  scenario
      .role("importer",
            [](Role& me) {
              const auto first = me.receive<CUuuid>("first");
              const auto second = me.receive<CUuuid>("second");
              EXPECT_TRUE(equal(uuid_of(1), first));
              EXPECT_TRUE(equal(uuid_of(0), second));
              EXPECT_FALSE(equal(first, second));

              CALL(cudaSetDevice(1));  // the exporter's GPU 0
              LegacyMapping memory(me.receive<Handle>("memory"), kBytes);
              EXPECT_EQ(device_of(memory.data), 1);
              EXPECT_TRUE(kernel_reads(memory, pattern("exporter")));
              memory.fill(pattern("importer"));
              borrows_an_event(me);
              memory.close();
              me.signal("closed");
            })
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({1, 0}));

  scenario.run(30s);
}
