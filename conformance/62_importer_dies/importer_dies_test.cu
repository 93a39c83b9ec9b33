// An importer exits, is killed, faults or resets its device: its exporter does
// not notice.
// Mirror of samples/62_importer_dies.
//
// The tests only note what happens to handles and mappings of a process that
// dies, and what the free of memory gives that such a process had open. They
// judge that no other process is harmed.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;
using PointerData = cudaMemPoolPtrExportData;

constexpr size_t kBytes = 2 << 20;
constexpr size_t kWatched = size_t{2} << 30;  // far above other changes
constexpr size_t kLarge = 256 << 20;          // the same, for one process
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;

}  // namespace

// An exporter of memory, an event and a pool. The event is pending when the
// importer ends. After this end the exporter checks that the event is still
// pending, and that its own calls still work.
static void goes_on_after_the_importer(Role& me, const std::string& death) {
  void* large = nullptr;
  CALL(cudaMalloc(&large, kWatched));
  Handle memory;
  CALL(cudaIpcGetMemHandle(&memory, large));
  const Words seen(large, kBytes);
  seen.fill(pattern("memory"));
  SharedEvent event;
  Pool pool(shareable());
  AsyncBuffer pooled(pool, kBytes);
  pooled.fill(pattern("pool"));
  // The export of a pool or of an event may wait for all work.
  const Descriptor exported = pool.exported();
  const PointerData pointer = pooled.exported();
  const cudaIpcEventHandle_t handle = event.handle();
  const Stream stream;
  Latch until_death;
  until_death.hold(stream);
  EXPECT_SUCCESS(cudaEventRecord(event, stream));
  me.send("memory for one that " + death, memory);
  me.send_descriptor("pool for one that " + death, exported.get());
  me.send("event for one that " + death, handle);
  me.send("pointer for one that " + death, pointer);
  me.wait_for_end("importer that " + death);

  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  until_death.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(cudaEventQuery(event));
  EXPECT_READS(seen, pattern("memory"));
  EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
  EXPECT_SUCCESS(cudaEventRecord(event, stream));
  EXPECT_TRUE(passes(stream));
  {
    Latch latch;
    latch.hold(stream);
    EXPECT_SUCCESS(cudaEventRecord(event, stream));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    latch.release();
    EXPECT_TRUE(passes(stream));
  }
  event.destroy();
  AsyncBuffer another(pool, kBytes);
  another.fill(pattern("another"));
  const DeviceBuffer fresh(kBytes);
  fresh.fill(pattern("fresh"));
  EXPECT_READS(another, pattern("another"));
  EXPECT_READS(fresh, pattern("fresh"));
  EXPECT_TRUE(kernel_reads(seen, pattern("memory"))) << "and others are new";
  EXPECT_TRUE(kernel_reads(pooled, pattern("pool"))) << "and others are new";
  EXPECT_SUCCESS(cudaFreeAsync(std::exchange(another.data, nullptr), nullptr));
  EXPECT_TRUE(context_is_usable());

  // The importer has not closed or freed what it had: no sentence says what the
  // exporter's free then gives.
  observe_code(
      me, "the importer " + death + ", free of the pool's memory",
      NOTED(cudaFreeAsync(std::exchange(pooled.data, nullptr), nullptr)));
  pool.destroy();
  const size_t free = free_memory();
  observe_code(me, "the importer " + death + ", free of the memory",
               NOTED(cudaFree(large)));
  observe_check(me, "the importer " + death + ", its memory comes back",
                [&] { return returned(free, kWatched); });
}

// An importer that ends without giving anything back. It uses no GPU before its
// turn, because the exporter measures the memory of the GPU.
static void dies_with_all_open(Role& me, const std::string& death) {
  const auto memory = me.receive<Handle>("memory for one that " + death);
  CALL(cudaFree(nullptr));
  auto& pool =
      abandoned<Pool>(me.receive_descriptor("pool for one that " + death));
  const Words seen(open_handle(memory), kBytes);
  auto& event = abandoned<SharedEvent>(
      me.receive<cudaIpcEventHandle_t>("event for one that " + death));
  auto& pooled = abandoned<AsyncBuffer>(
      pool, me.receive<PointerData>("pointer for one that " + death), kBytes);
  EXPECT_TRUE(kernel_reads(seen, pattern("memory")));
  EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  if (death == "exits") return;
  const Stream stream;
  Latch latch;
  if (death == "is killed at work") {
    CALL(cudaStreamWaitEvent(stream, event, 0));
    latch.hold(stream);
    CALL(cudaMemcpyAsync(pooled.data, seen.data, kBytes,
                         cudaMemcpyDeviceToDevice, stream));
  }
  me.die(SIGKILL);
}

TEST(ImporterDies, AnImporterDiesAndTheExporterGoesOn) {
  covers("LIFE-02");
  needs(gpus(1), legacy_memory, legacy_events, pool_fd, alone);
  const std::vector<std::string> deaths = {"exits", "is killed",
                                           "is killed at work"};
  Scenario scenario;
  scenario.role("exporter", [&](Role& me) {
    for (const std::string& death : deaths) {
      SCOPED_TRACE("the importer " + death);
      goes_on_after_the_importer(me, death);
    }
  });
  for (const std::string& death : deaths)
    scenario.role("importer that " + death,
                  [&](Role& me) { dies_with_all_open(me, death); });
  scenario.run(90s);
}

TEST(ImporterDies, AnImporterOfADescriptorDiesAndTheMemoryStays) {
  covers("LIFE-02");
  needs(gpus(1), vmm_fd);
  const std::vector<std::string> deaths = {"exits", "is killed"};
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [&](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    for (const std::string& death : deaths) {
      me.send_descriptor("descriptor for one that " + death,
                         chunk.descriptor().get());
      me.wait_for_end("importer that " + death);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter"))) << death;
      EXPECT_TRUE(copy_reads(mapping, pattern("exporter"))) << death;
    }
    EXPECT_TRUE(context_is_usable());
  });
  for (const std::string& death : deaths)
    scenario
        .role("importer that " + death,
              [&](Role& me) {
                auto& mapping = abandoned<Mapping>(
                    abandoned<Chunk>(Chunk::import(me.receive_descriptor(
                        "descriptor for one that " + death))),
                    granule());
                EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
                if (death == "is killed") me.die(SIGKILL);
              })
        .in_new_process();
  scenario.run(20s);
}

// Lends a chunk, a pool and an event to two importers. The first is killed.
static void lends_again(Role& me) {
  const Chunk chunk = Chunk::create(granule());
  const Mapping mapping(chunk, granule());
  const Pool pool(shareable());
  const AsyncBuffer pooled(pool, kBytes);
  const SharedEvent event;
  mapping.fill(pattern("chunk"));
  pooled.fill(pattern("pool"));
  for (const std::string user : {"victim", "importer"}) {
    me.send_descriptor("chunk for the " + user, chunk.descriptor().get());
    me.send_descriptor("pool for the " + user, pool.exported().get());
  }
  me.send("pointer", pooled.exported());
  me.send("event", event.handle());
  me.wait("opened again");

  const Stream stream;
  Latch latch;
  latch.hold(stream);
  CALL(cudaEventRecord(event, stream));
  me.signal("recorded");
  me.wait("asked");
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.wait("done");
  EXPECT_TRUE(kernel_reads(mapping, pattern("importer's chunk")));
  EXPECT_TRUE(kernel_reads(pooled, pattern("importer's pool")));
}

// Opens what the victim had open.
static void opens_after_the_victim(Role& me) {
  CALL(cudaFree(nullptr));
  me.wait_for_end("victim");
  const Mapping mapping(
      Chunk::import(me.receive_descriptor("chunk for the importer")),
      granule());
  const Pool pool(me.receive_descriptor("pool for the importer"));
  AsyncBuffer pooled(pool, me.receive<PointerData>("pointer"), kBytes);
  SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
  EXPECT_TRUE(kernel_reads(mapping, pattern("chunk")));
  EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
  mapping.fill(pattern("importer's chunk"));
  pooled.fill(pattern("importer's pool"));
  me.signal("opened again");
  me.wait("recorded");
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  me.signal("asked");
  EXPECT_SUCCESS(cudaEventSynchronize(event));
  event.destroy();
  pooled.free();
  me.signal("done");
}

TEST(ImporterDies, AnotherImporterFollowsAKilledOne) {
  covers("LIFE-02");
  needs(gpus(1), vmm_fd, pool_fd, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_again);
  scenario
      .role(
          "victim",
          [](Role& me) {
            const Mapping mapping(
                Chunk::import(me.receive_descriptor("chunk for the victim")),
                granule());
            const Pool pool(me.receive_descriptor("pool for the victim"));
            const AsyncBuffer pooled(pool, me.receive<PointerData>("pointer"),
                                     kBytes);
            const SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
            EXPECT_TRUE(kernel_reads(mapping, pattern("chunk")));
            EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
            me.die(SIGKILL);
          })
      .in_new_process();
  scenario.role("importer", opens_after_the_victim);
  scenario.run(20s);
}

TEST(ImporterDies, ANewImporterAfterAKilledOne) {
  covers("LIFE-03");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));

  auto& victim = scenario.role("victim", [](Role& me) {
    const LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.die(SIGKILL);
  });
  victim.in_new_process();

  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const auto handle = me.receive<Handle>("handle");
    me.wait_for_end("victim");
    void* opened = nullptr;
    const cudaError_t code =
        NOTED(cudaIpcOpenMemHandle(&opened, handle, kLazy));
    observe_code(me, "opening what a killed importer had open", code);
    if (code == cudaSuccess) {
      const Words words(opened, kBytes);
      EXPECT_READS(words, pattern("exporter"));
      CALL(cudaIpcCloseMemHandle(opened));
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  });

  scenario.run(20s);
}

// Lends memory and an event to a process whose kernel faults, and then to
// another process.
static void lends_to_one_that_faults(Role& me) {
  const bool mps = attribute(cudaDevAttrMpsEnabled) != 0;
  const DeviceBuffer buffer(kBytes);
  const SharedEvent event;
  buffer.fill(pattern("exporter"));
  me.send("handle", buffer.legacy_handle());
  me.send("event", event.handle());
  const auto unharmed = [&] {
    const auto by_kernel = kernel_reads(buffer, pattern("exporter"));
    return by_kernel ? copy_reads(buffer, pattern("exporter")) : by_kernel;
  };
  for (const std::string step : {"faulted", "end of importer"}) {
    me.wait(step);
    if (mps)  // the fault may reach the other clients
      observe_check(me, "under MPS, unharmed at the " + step, unharmed);
    else
      EXPECT_TRUE(unharmed()) << step;
  }
  if (mps) return;
  const DeviceBuffer later(kBytes);
  later.fill(pattern("later"));
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(cudaEventRecord(event, stream));
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  me.send("later handle", later.legacy_handle());
  me.wait("closed");
  latch.release();
  EXPECT_TRUE(passes(stream));
}

// The roles have new processes: under MPS the fault may reach every process
// that waits for another test.
TEST(ImporterDies, AFaultStaysInTheImporter) {
  covers("LIFE-12");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario;

  scenario.role("exporter", lends_to_one_that_faults);

  scenario.role("latecomer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    const auto event_handle = me.receive<cudaIpcEventHandle_t>("event");
    me.wait_for_end("importer");
    if (attribute(cudaDevAttrMpsEnabled) != 0) return;
    {
      const LegacyMapping same(handle, kBytes);
      EXPECT_TRUE(kernel_reads(same, pattern("exporter")));
      const LegacyMapping later(me.receive<Handle>("later handle"), kBytes);
      EXPECT_TRUE(kernel_reads(later, pattern("later")));
      const SharedEvent event(event_handle);
      EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    }
    me.signal("closed");
  });

  scenario.role("importer", [](Role& me) {
    void* const opened = open_handle(me.receive<Handle>("handle"));
    abandoned<SharedEvent>(me.receive<cudaIpcEventHandle_t>("event"));
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    launch_write(nullptr, 1);
    const cudaError_t code = cudaDeviceSynchronize();
    EXPECT_NE(code, cudaSuccess);
    observe_code(me, "a kernel that writes to address 0", code);
    observe_code(me, "the next cudaDeviceSynchronize",
                 NOTED(cudaDeviceSynchronize()));
    observe_code(me, "closing after it", NOTED(cudaIpcCloseMemHandle(opened)));
    me.signal("faulted");
  });

  scenario.run(20s);
}

// The documentation of cudaDeviceReset: "destroys and cleans up all resources
// associated with the current device".
TEST(ImporterDies, AResetOfOneGpuLeavesTheOther) {
  covers("LIFE-15");
  needs(gpus(2), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role& me) {
              const DeviceBuffer buffer(kBytes);
              buffer.fill(pattern("exporter"));
              me.send("handle", buffer.legacy_handle());
              me.wait("opened");
              CALL(cudaSetDevice(1));
              CALL(cudaFree(nullptr));
              CALL(cudaDeviceReset());
              CALL(cudaSetDevice(0));
              EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
              me.send("handle again", buffer.legacy_handle());
              me.wait("closed");
            })
      .in_new_process();
  auto& importer = scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    LegacyMapping mapping(handle, kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    CALL(cudaSetDevice(1));
    CALL(cudaFree(nullptr));
    CALL(cudaDeviceReset());
    CALL(cudaSetDevice(0));
    EXPECT_READS(mapping, pattern("exporter"));
    me.signal("opened");
    const auto again = me.receive<Handle>("handle again");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
    for (const Handle& each : {handle, again}) {
      LegacyMapping same(each, kBytes);
      EXPECT_TRUE(kernel_reads(same, pattern("exporter")))
          << "after a reset of the exporter's other GPU";
      same.close();
    }
    me.signal("closed");
  });
  importer.in_new_process();
  scenario.run(20s);
}

// Lends memory and a pending event of GPU 0.
static void lends_to_one_that_resets_gpu_1(Role& me) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping mapping(chunk, bytes);
  mapping.fill(pattern("chunk"));
  const Pool pool(shareable());
  const AsyncBuffer pooled(pool, kBytes);
  pooled.fill(pattern("pool"));
  const SharedEvent event;
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  CALL(cudaEventRecord(event, stream));
  me.send_descriptor("chunk", chunk.descriptor().get());
  me.send_descriptor("pool", pool.exported().get());
  me.send("pointer", pooled.exported());
  me.send("event", event.handle());
  me.wait("asked");
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.wait("written");
  EXPECT_TRUE(kernel_reads(mapping, pattern("importer's chunk")));
  EXPECT_TRUE(kernel_reads(pooled, pattern("importer's pool")));
}

TEST(ImporterDies, AResetOfOneGpuLeavesTheImportsOfTheOther) {
  covers("LIFE-15");
  needs(gpus(2), vmm_fd, pool_fd, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_to_one_that_resets_gpu_1);
  auto& importer = scenario.role("importer", [](Role& me) {
    const Mapping mapping(Chunk::import(me.receive_descriptor("chunk")),
                          granule());
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer pooled(pool, me.receive<PointerData>("pointer"), kBytes);
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
    const Stream stream;
    CALL(cudaSetDevice(1));
    CALL(cudaFree(nullptr));
    CALL(cudaDeviceReset());
    CALL(cudaSetDevice(0));
    EXPECT_READS(mapping, pattern("chunk"));
    EXPECT_READS(pooled, pattern("pool"));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
    EXPECT_TRUE(is_held(stream));
    me.signal("asked");
    EXPECT_TRUE(passes(stream));
    mapping.fill(pattern("importer's chunk"));
    pooled.fill(pattern("importer's pool"));
    event.destroy();
    pooled.free();
    me.signal("written");
  });
  importer.in_new_process();
  scenario.run(20s);
}

// A reset also ends the peer access that an open has given.
TEST(ImporterDies, TheGpuThatOpensPeerMemoryIsReset) {
  covers("LIFE-15");
  needs(gpus(2), legacy_memory, peer_access);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario
      .role("importer",
            [](Role& me) {
              const auto handle = me.receive<Handle>("handle");
              CALL(cudaSetDevice(1));
              for (int round = 0; round < 2; ++round) {
                void* opened = nullptr;
                EXPECT_SUCCESS(cudaIpcOpenMemHandle(&opened, handle, kLazy));
                const Words words(opened, kBytes);
                EXPECT_READS(words, pattern("exporter"));
                CALL(cudaDeviceReset());
              }
              EXPECT_SUCCESS(cudaDeviceEnablePeerAccess(0, 0));
              LegacyMapping mapping(handle, kBytes);
              EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
              mapping.close();
              me.signal("closed");
            })
      .in_new_process();
  scenario.run(20s);
}

TEST(ImporterDies, APointerFromBeforeAResetIsClosed) {
  covers("LIFE-11");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  auto& importer = scenario.role("importer", [](Role& me) {
    void* const opened = open_handle(me.receive<Handle>("handle"));
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    CALL(cudaDeviceReset());
    observe_code(me, "closing what was open before the reset",
                 NOTED(cudaIpcCloseMemHandle(opened)));
    me.signal("closed");
  });
  importer.in_new_process();
  scenario.run(20s);
}

// The importer's ways to end what it has open, in this order. After the reset
// by the driver API it only gives up a reference: no documentation says how the
// runtime goes on.
static const std::vector<std::string> kEnds = {"reset", "second reset",
                                               "reset by the driver API"};
// The same, and then the end of another process's context.
static const std::vector<std::string> kAllEnds = {
    "reset", "second reset", "reset by the driver API", "end of a context"};

// Opens memory and an event that the importer has made after a reset.
static void borrows_what_is_new(Role& me, const std::string& end) {
  LegacyMapping memory(me.receive<Handle>("own memory before the " + end),
                       kBytes);
  SharedEvent event(
      me.receive<cudaIpcEventHandle_t>("own event before the " + end));
  EXPECT_READS(memory, pattern("own " + end));
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  event.destroy();
  memory.close();
  me.signal("borrowed before the " + end);
}

// Lends memory and an event. Each end of what the importer has open must leave
// both as they are.
static void lends_to_one_that_resets(Role& me) {
  DeviceBuffer buffer(kBytes);
  const SharedEvent event;
  const Stream stream;
  me.send("handle", buffer.legacy_handle());
  me.send("event", event.handle());
  me.wait("another has opened");
  for (const std::string& end : kAllEnds) {
    SCOPED_TRACE(end);
    borrows_what_is_new(me, end);
    buffer.fill(pattern("before the " + end));
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    me.signal("recorded before the " + end);
    me.wait(end);
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    me.wait("another has asked after the " + end);
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_READS(buffer, pattern("importer's " + end));
  }
  me.wait_for_end("importer");
  me.wait_for_end("importer with a context");
  EXPECT_TRUE(kernel_reads(buffer, pattern("importer's " + kAllEnds.back())));
  me.signal("the exporter has read");
  me.wait("another has closed");
  EXPECT_TRUE(kernel_reads(buffer, pattern("another importer")));
  EXPECT_SUCCESS(cudaFree(std::exchange(buffer.data, nullptr)));
  EXPECT_TRUE(context_is_usable());
}

// Has the exporter's memory and event open all the time. The ends of the other
// importers must leave both as they are.
static void keeps_all_open(Role& me) {
  LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
  SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
  const Stream stream;
  me.signal("another has opened");
  for (const std::string& end : kAllEnds) {
    SCOPED_TRACE(end);
    me.wait(end);
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_READS(mapping, pattern("importer's " + end));
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
    EXPECT_TRUE(is_held(stream));
    me.signal("another has asked after the " + end);
    EXPECT_TRUE(passes(stream));
  }
  me.wait("the exporter has read");  // both other importers have ended
  EXPECT_TRUE(copy_reads(mapping, pattern("importer's " + kAllEnds.back())));
  mapping.fill(pattern("another importer"));
  event.destroy();
  mapping.close();
  me.signal("another has closed");
}

// Lends memory and an event of its own.
static void lends_what_is_new(Role& me, const std::string& end) {
  const DeviceBuffer memory(kBytes);
  memory.fill(pattern("own " + end));
  const SharedEvent event;
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(cudaEventRecord(event, stream));
  me.send("own memory before the " + end, memory.legacy_handle());
  me.send("own event before the " + end, event.handle());
  me.wait("borrowed before the " + end);
  latch.release();
  EXPECT_TRUE(passes(stream));
}

// Opens the exporter's memory and event, uses both, and leaves them open. The
// event is pending.
static void leaves_all_open(Role& me, const Handle& handle,
                            const cudaIpcEventHandle_t& event_handle,
                            const std::string& end) {
  void* opened = open_handle(handle);
  cudaPointerAttributes attributes{};
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
  CALL(cudaPointerGetAttributes(&attributes, opened));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered) << "closed once";
  SharedEvent(event_handle).destroy();

  for (int opens = 0; opens < 2; ++opens) opened = open_handle(handle);
  const Words words(opened, kBytes);
  auto& event = abandoned<SharedEvent>(event_handle);
  lends_what_is_new(me, end);
  me.wait("recorded before the " + end);
  EXPECT_READS(words, pattern("before the " + end));
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));

  // The runtime has another reference, so this release resets nothing.
  CUcontext primary = nullptr;
  CALL(DRIVER(cuDevicePrimaryCtxRetain)(&primary, 0));
  CALL(DRIVER(cuDevicePrimaryCtxRelease)(0));
  EXPECT_TRUE(kernel_reads(words, pattern("before the " + end)));
  words.fill(pattern("importer's " + end));
}

// "Resetting the primary context does not release it": the reference from
// before the reset is still there.
static void resets_by_the_driver_api() {
  CUcontext primary = nullptr;
  CALL(DRIVER(cuDevicePrimaryCtxRetain)(&primary, 0));
  EXPECT_SUCCESS(DRIVER(cuDevicePrimaryCtxReset)(0));
  EXPECT_SUCCESS(DRIVER(cuDevicePrimaryCtxRelease)(0));
}

// "Any subsequent API call to this device will reinitialize the device."
TEST(ImporterDies, AnImporterResetsItsDevice) {
  covers("LIFE-15");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_to_one_that_resets);
  scenario.role("another importer", keeps_all_open);
  scenario
      .role("importer",
            [](Role& me) {
              const auto handle = me.receive<Handle>("handle");
              const auto event = me.receive<cudaIpcEventHandle_t>("event");
              for (const std::string& end : kEnds) {
                SCOPED_TRACE("before the " + end);
                leaves_all_open(me, handle, event, end);
                if (end == kEnds.back())
                  resets_by_the_driver_api();
                else
                  EXPECT_SUCCESS(cudaDeviceReset());
                me.signal(end);
              }
            })
      .in_new_process();
  scenario
      .role("importer with a context",
            [](Role& me) {
              const auto handle = me.receive<Handle>("handle");
              const auto event = me.receive<cudaIpcEventHandle_t>("event");
              me.wait_for_end("importer");
              CALL(cudaFree(nullptr));
              SharedEvent of_primary(event);
              const Stream stream;
              CUcontext own = nullptr;
              CALL(create_context(&own, 0));
              leaves_all_open(me, handle, event, "end of a context");
              EXPECT_SUCCESS(DRIVER(cuCtxDestroy)(own));
              CALL(cudaSetDevice(0));
              EXPECT_SUCCESS(cudaStreamWaitEvent(stream, of_primary, 0));
              EXPECT_TRUE(is_held(stream)) << "by an event of another context";
              me.signal("end of a context");
              EXPECT_TRUE(passes(stream));
              of_primary.destroy();
              EXPECT_TRUE(context_is_usable());
            })
      .in_new_process();
  scenario.run(40s);
}

static void expect_first_word(const void* memory, const Pattern& written) {
  uint32_t word = 0;
  size_t bytes = 0;
  // A copy from memory that is not open may end the process.
  CALL(DRIVER(cuMemGetAddressRange)(nullptr, &bytes, address_of(memory)));
  EXPECT_SUCCESS(DRIVER(cuMemcpyDtoH)(&word, address_of(memory), sizeof word));
  EXPECT_EQ(word, written.at(0));
}

// The documentation of cudaDeviceReset: "If a non-primary CUcontext is current
// to the thread, cudaDeviceReset() will destroy only the internal CUDA RT state
// for that CUcontext." So the driver's objects stay, in both contexts.
TEST(ImporterDies, AResetInAnotherContextEndsNothingOfTheDriver) {
  covers("LIFE-15");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario
      .role("importer",
            [](Role& me) {
              const DeviceBuffer of_primary(kBytes);
              of_primary.fill(pattern("primary"));
              CUcontext own = nullptr;
              CALL(create_context(&own, 0));
              Sentinel<void*> opened;
              EXPECT_SUCCESS(DriverApi::ipc_open_mem_handle(
                  opened.out(), me.receive<Handle>("handle")));
              EXPECT_SUCCESS(cudaDeviceReset());
              CALL(DRIVER(cuCtxSetCurrent)(own));
              expect_first_word(opened.result(), pattern("exporter"));
              EXPECT_SUCCESS(DriverApi::ipc_close_mem_handle(opened.result()));
              CALL(DRIVER(cuCtxDestroy)(own));
              CALL(cudaSetDevice(0));
              EXPECT_READS(of_primary, pattern("primary"));
              me.signal("closed");
            })
      .in_new_process();
  scenario.run(20s);
}

// A primary context whose last reference was released can be retained again.
TEST(ImporterDies, ThePrimaryContextBeginsAgain) {
  covers("LIFE-15");
  needs(gpus(1), legacy_memory);
  Scenario scenario;
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    // Only the driver API is used: the runtime keeps a reference of its own.
    const auto handle = me.receive<Handle>("handle");
    CALL(DRIVER(cuInit)(0));
    for (const char* life : {"first life", "second life"}) {
      SCOPED_TRACE(life);
      CUcontext primary = nullptr;
      CALL(DRIVER(cuDevicePrimaryCtxRetain)(&primary, 0));
      CALL(DRIVER(cuCtxSetCurrent)(primary));
      Sentinel<void*> opened;
      EXPECT_SUCCESS(DriverApi::ipc_open_mem_handle(opened.out(), handle));
      expect_first_word(opened.result(), pattern("exporter"));
      EXPECT_SUCCESS(DriverApi::ipc_close_mem_handle(opened.result()));
      CALL(DRIVER(cuCtxSetCurrent)(nullptr));
      CALL(DRIVER(cuDevicePrimaryCtxRelease)(0));
    }
    me.signal("closed");
  });
  scenario.run(20s);
}

// What a thread gets that opens memory, reads it and closes it.
static cudaError_t opens_reads_and_closes(const Handle& handle,
                                          uint32_t* word) {
  void* opened = nullptr;
  const cudaError_t open = cudaIpcOpenMemHandle(&opened, handle, kLazy);
  if (open != cudaSuccess) return open;
  const cudaError_t copy =
      cudaMemcpy(word, opened, sizeof *word, cudaMemcpyDefault);
  const cudaError_t close = cudaIpcCloseMemHandle(opened);
  return copy != cudaSuccess ? copy : close;
}

// No thread uses the device during the reset. "Any subsequent API call to this
// device will reinitialize the device", whichever thread makes the call.
TEST(ImporterDies, EveryThreadOpensAfterAReset) {
  covers("LIFE-15");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario
      .role("importer",
            [](Role& me) {
              const auto handle = me.receive<Handle>("handle");
              cudaError_t codes[] = {cudaErrorUnknown, cudaErrorUnknown};
              uint32_t words[] = {0, 0};
              std::promise<void> has_opened, was_reset;
              note_call("cudaIpcOpenMemHandle in another thread");
              std::thread other([&] {
                codes[0] = opens_reads_and_closes(handle, &words[0]);
                has_opened.set_value();
                was_reset.get_future().wait();
                codes[1] = opens_reads_and_closes(handle, &words[1]);
              });
              has_opened.get_future().wait();
              const cudaError_t reset = cudaDeviceReset();
              was_reset.set_value();
              other.join();
              EXPECT_EQ(reset, cudaSuccess);
              for (const int i : {0, 1}) {
                EXPECT_EQ(codes[i], cudaSuccess) << i << " resets before";
                EXPECT_EQ(words[i], pattern("exporter").at(0));
              }
              LegacyMapping mapping(handle, kBytes);
              EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
              mapping.close();
              me.signal("closed");
            })
      .in_new_process();
  scenario.run(20s);
}

// The documentation of cuPointerGetAttribute: an allocation has "a unique ID
// over a process lifetime".
TEST(ImporterDies, AResetBeginsNoNewIds) {
  covers("LMEM-48");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario
      .role(
          "exporter",
          [](Role&) {
            std::set<unsigned long long> ids;
            const auto allocate_three = [&] {
              const DeviceBuffer one(kBytes), other(kBytes);
              const PinnedBuffer host(kBytes);
              for (const Words& each : {Words(one), Words(other), Words(host)})
                ids.insert(pointer_attribute<unsigned long long>(
                    CU_POINTER_ATTRIBUTE_BUFFER_ID, each.data));
            };
            allocate_three();
            CALL(cudaDeviceReset());
            allocate_three();
            CUcontext second = nullptr;
            CALL(create_context(&second, 0));
            allocate_three();
            CALL(DRIVER(cuCtxDestroy)(second));
            CALL(cudaSetDevice(0));
            allocate_three();
            EXPECT_EQ(ids.size(), 12u) << "two allocations have one id";
          })
      .in_new_process();
  scenario.run(20s);
}

// The documentation of cuCtxDestroy: "These resources also include memory
// allocations by cuMemAlloc()".
static void ends_a_context_with_memory() {
  CALL(cudaFree(nullptr));
  const size_t before = free_memory();
  CUcontext own = nullptr;
  CUdeviceptr memory = 0;
  CALL(create_context(&own, 0));
  CALL(DRIVER(cuMemAlloc)(&memory, kLarge));
  CALL(DRIVER(cuCtxDestroy)(own));
  CALL(cudaSetDevice(0));
  EXPECT_TRUE(returned(before - kLarge, kLarge)) << "memory of a context";
}

// The documentation of cudaDeviceReset: "These resources also include memory
// allocations by cudaMalloc, cudaMallocHost, cudaMallocManaged and
// cudaMallocPitch", and "all allocations … in the current process".
TEST(ImporterDies, AResetGivesExportedMemoryBack) {
  covers("LIFE-15");
  needs(gpus(1), legacy_memory, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    ends_a_context_with_memory();
    void* lent = nullptr;
    CALL(cudaMalloc(&lent, kLarge));
    Sentinel<Handle> handle;
    CALL(cudaIpcGetMemHandle(handle.out(), lent));
    void* pitched = nullptr;
    size_t pitch = 0;
    CALL(cudaMallocPitch(&pitched, &pitch, kBytes, kLarge / kBytes));
    void* of_another_thread = nullptr;
    cudaError_t code = cudaErrorUnknown;
    note_call("cudaMalloc in another thread");
    std::thread([&] { code = cudaMalloc(&of_another_thread, kLarge); }).join();
    EXPECT_EQ(code, cudaSuccess);
    const size_t held = free_memory();
    CALL(cudaDeviceReset());
    // The memory that was exported is open nowhere.
    EXPECT_TRUE(returned(held + 2 * kLarge, kLarge)) << "three allocations";
  });
  scenario.run(20s);
}

// Imports the same as the importer that resets its device, before this reset.
static void keeps_all_imported(Role& me) {
  const Mapping mapping(Chunk::import(me.receive_descriptor("chunk")),
                        granule());
  const Pool pool(me.receive_descriptor("pool"));
  AsyncBuffer pooled(pool, me.receive<PointerData>("pointer"), kBytes);
  me.signal("another has imported");
  for (const char* step : {"reset", "end of importer"}) {
    me.wait(step);
    EXPECT_TRUE(kernel_reads(mapping, pattern("chunk"))) << step;
    EXPECT_TRUE(copy_reads(mapping, pattern("chunk"))) << step;
    EXPECT_TRUE(kernel_reads(pooled, pattern("pool"))) << step;
    EXPECT_TRUE(copy_reads(pooled, pattern("pool"))) << step;
  }
  me.wait("the exporter has read");
  mapping.fill(pattern("another's chunk"));
  pooled.fill(pattern("another's pool"));
  pooled.free();
  me.signal("another has written");
}

TEST(ImporterDies, AnImporterOfDescriptorsResetsItsDevice) {
  covers("LIFE-15");
  needs(gpus(1), vmm_fd, pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("chunk"));
    const Pool pool(shareable());
    const AsyncBuffer pooled(pool, kBytes);
    pooled.fill(pattern("pool"));
    for (int importers = 0; importers < 2; ++importers) {
      me.send_descriptor("chunk", chunk.descriptor().get());
      me.send_descriptor("pool", pool.exported().get());
    }
    me.send("pointer", pooled.exported());
    for (const char* step : {"reset", "end of importer"}) {
      me.wait(step);
      EXPECT_TRUE(kernel_reads(mapping, pattern("chunk"))) << step;
      EXPECT_TRUE(copy_reads(mapping, pattern("chunk"))) << step;
      EXPECT_TRUE(kernel_reads(pooled, pattern("pool"))) << step;
      EXPECT_TRUE(copy_reads(pooled, pattern("pool"))) << step;
    }
    me.signal("the exporter has read");
    me.wait("another has written");
    EXPECT_TRUE(kernel_reads(mapping, pattern("another's chunk")));
    EXPECT_TRUE(kernel_reads(pooled, pattern("another's pool")));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.role("another importer", keeps_all_imported);

  auto& importer = scenario.role("importer", [](Role& me) {
    // A reset may end the imports, so nothing here gives them back after it.
    const Descriptor descriptor = me.receive_descriptor("chunk");
    auto& mapping = abandoned<Mapping>(Chunk::import(descriptor), granule());
    auto& pool = abandoned<Pool>(me.receive_descriptor("pool"));
    auto& pooled = abandoned<AsyncBuffer>(
        pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("chunk")));
    EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
    me.wait("another has imported");
    CALL(cudaDeviceReset());
    me.signal("reset");
    EXPECT_TRUE(context_is_usable());
    // "Any subsequent API call to this device will reinitialize the device."
    auto& again = abandoned<Mapping>(Chunk::import(descriptor), granule());
    EXPECT_READS(again, pattern("chunk"));
  });
  importer.in_new_process();

  scenario.run(20s);
}

// Lends memory of each kind that descriptors stand for, and an event. Sees what
// the importer does with all of this.
static void lends_every_kind(Role& me, const std::string& when) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping mapping(chunk, bytes);
  const Pool pool(shareable());
  const AsyncBuffer pooled(pool, kBytes);
  const SharedEvent event;
  const Stream stream;
  mapping.fill(pattern("chunk " + when));
  pooled.fill(pattern("pool " + when));
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(cudaEventRecord(event, stream));
  me.send_descriptor("chunk " + when, chunk.descriptor().get());
  me.send_descriptor("pool " + when, pool.exported().get());
  me.send("pointer " + when, pooled.exported());
  me.send("event " + when, event.handle());
  me.wait("asked " + when);
  latch.release();
  EXPECT_TRUE(passes(stream));

  me.wait("recorded " + when);
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_TRUE(is_held(stream));
  me.signal("seen " + when);
  EXPECT_TRUE(passes(stream));
  me.wait("given back " + when);
  EXPECT_TRUE(kernel_reads(mapping, pattern("importer's chunk " + when)));
  EXPECT_TRUE(kernel_reads(pooled, pattern("importer's pool " + when)));
}

// Waits for the event and records it, and reads and writes the memory.
static void borrows_every_kind(Role& me, const std::string& when) {
  const Mapping mapping(Chunk::import(me.receive_descriptor("chunk " + when)),
                        granule());
  const Pool pool(me.receive_descriptor("pool " + when));
  AsyncBuffer pooled(pool, me.receive<PointerData>("pointer " + when), kBytes);
  SharedEvent event(me.receive<cudaIpcEventHandle_t>("event " + when));
  const Stream stream;
  EXPECT_TRUE(kernel_reads(mapping, pattern("chunk " + when)));
  EXPECT_TRUE(kernel_reads(pooled, pattern("pool " + when)));
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_TRUE(is_held(stream));
  me.signal("asked " + when);
  EXPECT_TRUE(passes(stream));
  mapping.fill(pattern("importer's chunk " + when));
  pooled.fill(pattern("importer's pool " + when));

  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(cudaEventRecord(event, stream));
  me.signal("recorded " + when);
  me.wait("seen " + when);
  latch.release();
  EXPECT_SUCCESS(cudaEventSynchronize(event));
  event.destroy();
  pooled.free();
  me.signal("given back " + when);
}

// Both sides give everything back, reset their device, and share again.
TEST(ImporterDies, BothResetAndShareAgain) {
  covers("LIFE-15");
  needs(gpus(1), vmm_fd, pool_fd, legacy_events);
  Scenario scenario(Scenario::kShared);
  const auto resets_between = [](void (*shares)(Role&, const std::string&)) {
    return [=](Role& me) {
      shares(me, "before the reset");
      CALL(cudaDeviceSynchronize());
      EXPECT_SUCCESS(cudaDeviceReset());
      shares(me, "after the reset");
    };
  };
  scenario.role("exporter", resets_between(lends_every_kind)).in_new_process();
  scenario.role("importer", resets_between(borrows_every_kind))
      .in_new_process();
  scenario.run(40s);
}
