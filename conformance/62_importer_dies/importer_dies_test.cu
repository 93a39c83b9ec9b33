// An importer exits, is killed, faults or resets its device: its exporter does
// not notice.
// Mirror of samples/62_importer_dies.
//
// The tests only note what happens to handles and mappings of a process that
// dies. They judge that no other process is harmed.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

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
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;

}  // namespace

// An exporter of memory, an event and a pool. After the end of the importer, it
// checks that its own calls still work.
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
  me.send("memory for one that " + death, memory);
  me.send_descriptor("pool for one that " + death, pool.exported().get());
  me.send("event for one that " + death, event.handle());
  me.send("pointer for one that " + death, pooled.exported());
  me.wait_for_end("importer that " + death);

  EXPECT_TRUE(kernel_reads(seen, pattern("memory")));
  EXPECT_TRUE(copy_reads(seen, pattern("memory")));
  EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
  const Stream stream;
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
  pooled.free();
  AsyncBuffer another(pool, kBytes);
  another.fill(pattern("another"));
  EXPECT_TRUE(kernel_reads(another, pattern("another")));
  another.free();
  pool.destroy();
  const size_t free = free_memory();
  EXPECT_SUCCESS(cudaFree(large));
  observe_check(me, "the importer " + death + ", its memory comes back",
                [&] { return returned(free, kWatched); });
  EXPECT_TRUE(context_is_usable());
}

// An importer that ends without giving anything back. It uses no GPU before its
// turn, because the exporter measures the memory of the GPU.
static void dies_with_all_open(Role& me, const std::string& death) {
  const auto memory = me.receive<Handle>("memory for one that " + death);
  CALL(cudaFree(nullptr));
  auto& pool =
      abandoned<Pool>(me.receive_descriptor("pool for one that " + death));
  const Words seen(open_handle(memory), kBytes);
  abandoned<SharedEvent>(
      me.receive<cudaIpcEventHandle_t>("event for one that " + death));
  auto& pooled = abandoned<AsyncBuffer>(
      pool, me.receive<PointerData>("pointer for one that " + death), kBytes);
  EXPECT_TRUE(kernel_reads(seen, pattern("memory")));
  EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
  if (death == "exits") return;
  const Stream stream;
  Latch latch;
  if (death == "is killed at work") {
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
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait_for_end("importer");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(context_is_usable());
  });
  scenario
      .role("importer",
            [](Role& me) {
              const Mapping mapping(
                  Chunk::import(me.receive_descriptor("descriptor")),
                  granule());
              EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
              me.die(SIGKILL);
            })
      .in_new_process();
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
      EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
      EXPECT_TRUE(copy_reads(words, pattern("exporter")));
      CALL(cudaIpcCloseMemHandle(opened));
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  });

  scenario.run(20s);
}

// The roles have new processes: under MPS the fault may reach every process
// that waits for another test.
TEST(ImporterDies, AFaultStaysInTheImporter) {
  covers("LIFE-12");
  needs(gpus(1), legacy_memory);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const bool mps = attribute(cudaDevAttrMpsEnabled) != 0;
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
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
  });

  scenario.role("importer", [](Role& me) {
    void* const opened = open_handle(me.receive<Handle>("handle"));
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

// Judges that memory and events of this process can be exported.
static void expect_exports() {
  const DeviceBuffer own(kBytes);
  Sentinel<Handle> memory;
  EXPECT_SUCCESS(cudaIpcGetMemHandle(memory.out(), own.data));
  const SharedEvent event;
  Sentinel<cudaIpcEventHandle_t> handle;
  EXPECT_SUCCESS(cudaIpcGetEventHandle(handle.out(), event));
}

// The documentation of cudaDeviceReset: "destroys and cleans up all resources
// associated with the current device".
TEST(ImporterDies, AResetOfOneGpuLeavesTheOther) {
  covers("LIFE-15");
  needs(gpus(2), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  auto& importer = scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    CALL(cudaSetDevice(1));
    CALL(cudaFree(nullptr));
    CALL(cudaDeviceReset());
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")));
    mapping.close();
    me.signal("closed");
  });
  importer.in_new_process();
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

TEST(ImporterDies, AnImporterResetsItsDevice) {
  covers("LIFE-15");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    const SharedEvent event;
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    me.send("event", event.handle());
    for (const char* step : {"reset", "end of importer"}) {
      me.wait(step);
      if (step == std::string("reset")) {
        EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
        latch.release();
        EXPECT_TRUE(passes(stream));
        me.signal("released");
      }
      EXPECT_TRUE(kernel_reads(buffer, pattern("exporter"))) << step;
      EXPECT_TRUE(copy_reads(buffer, pattern("exporter"))) << step;
    }
    EXPECT_SUCCESS(cudaFree(std::exchange(buffer.data, nullptr)));
    EXPECT_TRUE(context_is_usable());
  });

  auto& importer = scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    void* opened = open_handle(handle);
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    const auto event_handle = me.receive<cudaIpcEventHandle_t>("event");
    SharedEvent before(event_handle);
    CALL(cudaDeviceReset());
    before.release();  // the reset has destroyed it
    me.signal("reset");
    me.wait("released");
    // "Any subsequent API call to this device will reinitialize the device."
    for (int round = 0; round < 2; ++round) {
      EXPECT_SUCCESS(cudaIpcOpenMemHandle(&opened, handle, kLazy));
      EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
      cudaEvent_t event = nullptr;
      EXPECT_SUCCESS(cudaIpcOpenEventHandle(&event, event_handle));
      EXPECT_SUCCESS(cudaEventQuery(event));
      EXPECT_SUCCESS(cudaEventDestroy(event));
      EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
      expect_exports();
      CALL(cudaDeviceReset());
    }
  });
  importer.in_new_process();

  scenario.run(20s);
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
    me.send_descriptor("chunk", chunk.descriptor().get());
    me.send_descriptor("pool", pool.exported().get());
    me.send("pointer", pooled.exported());
    for (const char* step : {"reset", "end of importer"}) {
      me.wait(step);
      EXPECT_TRUE(kernel_reads(mapping, pattern("chunk"))) << step;
      EXPECT_TRUE(copy_reads(mapping, pattern("chunk"))) << step;
      EXPECT_TRUE(kernel_reads(pooled, pattern("pool"))) << step;
      EXPECT_TRUE(copy_reads(pooled, pattern("pool"))) << step;
    }
    EXPECT_TRUE(context_is_usable());
  });

  auto& importer = scenario.role("importer", [](Role& me) {
    // A reset may end the imports, so nothing here gives them back after it.
    const auto& mapping = abandoned<Mapping>(
        Chunk::import(me.receive_descriptor("chunk")), granule());
    const auto& pool = abandoned<Pool>(me.receive_descriptor("pool"));
    const auto& pooled = abandoned<AsyncBuffer>(
        pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("chunk")));
    EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
    CALL(cudaDeviceReset());
    me.signal("reset");
    EXPECT_TRUE(context_is_usable());
  });
  importer.in_new_process();

  scenario.run(20s);
}
