// Opening shared memory uses addresses, but no second copy of the memory.
// The lesson measures the time; no test judges it.
// Mirror of samples/73_cost_of_sharing.
//
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 256 << 20;
constexpr size_t kSmall = kBytes / 4;  // a driver may use less than this
constexpr int kOpens = 2;

// Memory of kBytes with an owner.
using Owned = std::shared_ptr<Words>;

// The second importer opens the memory while the first has it open.
const std::vector<std::string> kImporters = {"importer", "second importer"};

// Opens the memory so often, and judges that neither the open nor the use takes
// memory of the GPU.
Owned opened_for_nothing(Role& me, const std::function<Owned(Role&)>& open,
                         int opens) {
  const size_t before = free_memory();
  int gpu = -1;
  cudaDeviceProp device{};
  CALL(cudaGetDevice(&gpu));
  CALL(cudaGetDeviceProperties(&device, gpu));
  EXPECT_LE(before, device.totalGlobalMem);
  Owned opened;
  for (int i = 0; i < opens; ++i) {
    SCOPED_TRACE("open " + std::to_string(i + 1));
    opened.reset();
    opened = open(me);
    const size_t after = free_memory();
    EXPECT_LT(before - std::min(before, after), kSmall);
    // Writes every page: a driver may take device memory only at the first use.
    CALL(cudaMemset(opened->data, 0xEE, kBytes));
    CALL(cudaDeviceSynchronize());
    EXPECT_LT(before - std::min(before, free_memory()), kSmall);
  }
  return opened;
}

// `lend` makes the memory in the exporter and sends it; `open` opens it in an
// importer, on this GPU. Judges that the open uses no memory of either GPU.
// The first importer opens the memory `opens` times, and gives it back before
// it opens it again. `lend` sends descriptors for these opens and for the one
// of the second importer.
void takes_no_memory(const std::function<Owned(Role&)>& lend,
                     const std::function<Owned(Role&)>& open, int opens,
                     int opens_on = 0) {
  Scenario scenario;
  scenario.role("exporter", [=](Role& me) {
    const Owned lent = lend(me);
    const int importers = static_cast<int>(kImporters.size());
    me.wait("ready", importers);  // their contexts take memory of their own
    const size_t free = free_memory();
    for (const std::string& importer : kImporters) {
      SCOPED_TRACE(importer);
      me.signal("turn of the " + importer);
      me.wait("opened by the " + importer);
      EXPECT_TRUE(
          kernel_reads(Words(lent->data, kBytes / 64), pattern(importer)));
      EXPECT_LT(free - std::min(free, free_memory()), kSmall);
    }
    me.signal("looked");
    me.wait("closed", importers);
  });
  for (const std::string& name : kImporters)
    scenario.role(name, [=](Role& me) {
      CALL(cudaSetDevice(opens_on));
      CALL(cudaFree(nullptr));
      DeviceBuffer(kEveryWay).fill(pattern("loads the kernels"));
      me.signal("ready");
      me.wait("turn of the " + name);
      Owned opened =
          opened_for_nothing(me, open, name == kImporters[0] ? opens : 1);
      Words(opened->data, kBytes / 64).fill(pattern(name));
      me.signal("opened by the " + name);
      me.wait("looked");
      opened.reset();
      CALL(cudaDeviceSynchronize());
      me.signal("closed");
    });
  scenario.run(60s);
}

}  // namespace

// Legacy memory for takes_no_memory().
static Owned lends_a_handle(Role& me) {
  auto memory = std::make_shared<DeviceBuffer>(kBytes);
  for (int i = 0; i < kOpens; ++i) me.send("handle", memory->legacy_handle());
  return memory;
}

TEST(CostOfSharing, OpeningAHandleTakesNoMemory) {
  covers("COST-01");
  needs(gpus(1), legacy_memory, alone);
  for_each_api([](auto api) {
    takes_no_memory(
        lends_a_handle,
        [=](Role& me) {
          return std::make_shared<MappingBy<decltype(api)>>(
              api, me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
        },
        kOpens);
  });
}

TEST(CostOfSharing, OpeningAHandleOfAPeerTakesNoMemory) {
  covers("COST-01");
  needs(gpus(2), legacy_memory, peer_access, alone);
  takes_no_memory(
      lends_a_handle,
      [](Role& me) {
        return std::make_shared<LegacyMapping>(
            me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
      },
      kOpens, 1);
}

TEST(CostOfSharing, ImportingADescriptorTakesNoMemory) {
  covers("COST-02");
  needs(gpus(1), vmm_fd, alone);
  takes_no_memory(
      [](Role& me) {
        const Chunk chunk = Chunk::create(kBytes);
        for (int i = 0; i < kOpens + 1; ++i)
          me.send_descriptor("memory", chunk.descriptor().get());
        return std::make_shared<Mapping>(chunk, kBytes);
      },
      [](Role& me) {
        const Chunk chunk = Chunk::import(me.receive_descriptor("memory"));
        return std::make_shared<Mapping>(chunk, kBytes);
      },
      kOpens);
}

TEST(CostOfSharing, ImportingAPointerTakesNoMemory) {
  covers("COST-03");
  needs(gpus(1), pool_fd, alone);
  takes_no_memory(
      [](Role& me) {
        struct Lent : Words {
          Pool pool{shareable()};
          AsyncBuffer memory{pool, kBytes};
        };
        auto lent = std::make_shared<Lent>();
        CALL(cudaDeviceSynchronize());
        static_cast<Words&>(*lent) = lent->memory;
        for (size_t i = 0; i < kImporters.size(); ++i)
          me.send_descriptor("pool", lent->pool.exported().get());
        me.send("pointer", lent->memory.exported());
        return lent;
      },
      [](Role& me) {
        struct Borrowed : Words {
          Pool pool;
          AsyncBuffer memory;
          Borrowed(const Descriptor& exported,
                   const cudaMemPoolPtrExportData& pointer)
              : pool(exported), memory(pool, pointer, kBytes) {}
        };
        const Descriptor exported = me.receive_descriptor("pool");
        auto borrowed = std::make_shared<Borrowed>(
            exported, me.receive<cudaMemPoolPtrExportData>("pointer"));
        static_cast<Words&>(*borrowed) = borrowed->memory;
        return borrowed;
      },
      1);
}
