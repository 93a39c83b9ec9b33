// Ranks of one node: each lends and borrows at the same time. The UUID of a GPU
// means the same in all ranks, even if they see the GPUs in different orders.
// Mirror of samples/76_mpi_ranks.
//
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

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

// One of four parts of a rank's memory: the part that this writer writes.
Words part_of(const Words& memory, int writer) {
  const size_t count = memory.count / kRanks;
  return {memory.data + static_cast<size_t>(writer) * count,
          count * sizeof(uint32_t)};
}

// What a rank sees of the ranks: its own memory, and the memory of the others.
using Memories = std::vector<Words>;

// Each rank writes its part of the memory of every other rank, the first half
// by a copy and the second half by a memset. Then each rank reads all parts.
void write_to_each_other(Role& me, const Memories& of) {
  const int rank = me.index();
  const size_t half = kBytes / kRanks / 2;
  const DeviceBuffer source(half);
  source.fill(pattern(named("copy of rank", rank)));
  const Stream stream;
  for (int to = 0; to < kRanks; ++to) {
    const Words part = part_of(of[to], rank);
    CALL(cudaMemcpyAsync(part.data, source.data, half, cudaMemcpyDefault,
                         stream));
    CALL(cudaMemsetAsync(part.data + part.count / 2, 1 + rank, half, stream));
  }
  EXPECT_TRUE(passes(stream));
  me.signal("written");
  me.wait("written", kRanks - 1);
  for (int to = 0; to < kRanks; ++to)
    for (int from = 0; from < kRanks; ++from) {
      SCOPED_TRACE(named("memory of rank", to) + named(", part of rank", from));
      const Words part = part_of(of[to], from);
      EXPECT_TRUE(kernel_reads(Words(part.data, half),
                               pattern(named("copy of rank", from))));
      std::vector<char> set(half);
      CALL(cudaMemcpy(set.data(), part.data + part.count / 2, half,
                      cudaMemcpyDefault));
      EXPECT_EQ(set, std::vector<char>(half, static_cast<char>(1 + from)));
    }
  me.signal("read");
  me.wait("read", kRanks - 1);
}

using Mappings = std::vector<std::unique_ptr<LegacyMapping>>;

// The ranks close one after the other. Those that have not closed yet still see
// what every rank writes.
void close_in_turn(Role& me, const Words& own, Mappings* others) {
  for (int closer = 0; closer < kRanks; ++closer) {
    const std::string turn = named("turn", closer);
    if (me.index() == closer) others->clear();
    own.fill(pattern(turn + named(" of rank", me.index())));
    me.signal(turn);
    me.wait(turn, kRanks - 1);
    size_t at = 0;
    for (int rank = 0; rank < kRanks && !others->empty(); ++rank) {
      if (rank == me.index()) continue;
      const Words& other = *(*others)[at++];
      EXPECT_READS(other, pattern(turn + named(" of rank", rank)));
    }
    me.signal("end of the " + turn);
    me.wait("end of the " + turn, kRanks - 1);
  }
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

    Mappings others;
    Memories all;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == me.index()) {
        all.push_back(own);
        continue;
      }
      const auto handle = me.receive<Handle>(named("handle", rank));
      others.push_back(std::make_unique<LegacyMapping>(handle, kBytes));
      all.push_back(*others.back());
      EXPECT_READS(*others.back(), pattern(named("rank", rank)));
    }
    me.signal("all are open");
    me.wait("all are open", kRanks - 1);
    own.fill(pattern(named("new of rank", me.index())));
    me.signal("new values");
    me.wait("new values", kRanks - 1);
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_TRUE(kernel_reads(all[rank], pattern(named("new of rank", rank))));
    me.signal("new values are read");
    me.wait("new values are read", kRanks - 1);
    write_to_each_other(me, all);
    close_in_turn(me, own, &others);
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

// Lends a chunk and memory of a pool of each GPU.
static void lends_of_each_gpu(Role& me) {
  for (const int gpu : {0, 1}) {
    CALL(cudaSetDevice(gpu));
    const CUmemAllocationProp wanted = chunk_of(gpu);
    const size_t bytes = granule(wanted);
    const Chunk chunk = Chunk::create(bytes, wanted);
    const Mapping mapping(chunk, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                          gpu);
    const Pool pool(shareable(0, gpu));
    const AsyncBuffer pooled(pool, kBytes);
    mapping.fill(pattern(named("chunk", gpu)));
    pooled.fill(pattern(named("pool", gpu)));
    me.send("uuid", uuid_of(gpu));
    me.send_descriptor("chunk", chunk.descriptor().get());
    me.send_descriptor("pool", pool.exported().get());
    me.send("pointer", pooled.exported());
    me.wait("freed");
    EXPECT_TRUE(copy_reads(mapping, pattern(named("importer's chunk", gpu))));
    EXPECT_TRUE(copy_reads(pooled, pattern(named("importer's pool", gpu))));
  }
}

// The memory belongs to `device`, whichever function says it. The documentation
// does not promise that the query of the driver API succeeds for imported
// memory.
static void expect_memory_of(int device, const Words& memory) {
  EXPECT_EQ(device_of(memory.data), device);
  int ordinal = -1;
  if (DRIVER(cuPointerGetAttribute)(&ordinal,
                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                    address_of(memory.data)) == CUDA_SUCCESS) {
    EXPECT_EQ(ordinal, device);
  }
}

// Imports the memory of each GPU; the exporter's GPU 0 has number 1 here.
static void borrows_of_each_gpu(Role& me) {
  for (const int gpu : {0, 1}) {
    const int here = 1 - gpu;
    CALL(cudaSetDevice(here));
    EXPECT_TRUE(equal(uuid_of(here), me.receive<CUuuid>("uuid")));
    const size_t bytes = granule(chunk_of(here));
    const Chunk chunk = Chunk::import(me.receive_descriptor("chunk"));
    EXPECT_EQ(chunk.properties().location.id, here);
    const Mapping mapping(chunk, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                          here);
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer pooled(pool, me.receive<cudaMemPoolPtrExportData>("pointer"),
                       kBytes);
    for (const Words& each : {Words(mapping), Words(pooled)})
      expect_memory_of(here, each);
    EXPECT_TRUE(kernel_reads(mapping, pattern(named("chunk", gpu))));
    EXPECT_TRUE(kernel_reads(pooled, pattern(named("pool", gpu))));
    mapping.fill(pattern(named("importer's chunk", gpu)));
    pooled.fill(pattern(named("importer's pool", gpu)));
    pooled.free();
    me.signal("freed");
  }
}

TEST(MpiRanks, DescriptorsMeanTheSameInEveryOrder) {
  covers("RANK-02");
  needs(gpus(2), vmm_fd, pool_fd);
  Scenario scenario;
  scenario.role("exporter", lends_of_each_gpu)
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({0, 1}));
  scenario.role("importer", borrows_of_each_gpu)
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({1, 0}));
  scenario.run(30s);
}
