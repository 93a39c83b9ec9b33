// Memory that is named by 64 bytes of plain data, and who may use these bytes.
// Mirror of samples/35_fabric_handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <glob.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr size_t kBytes = 4 << 20;
constexpr size_t kGranules = 3;  // of one allocation: not a power of two
constexpr uid_t kNobody = 65534;

CUmemAllocationProp fabric_memory() { return chunk_of(0, kFabric); }

// Does this driver make channels at all?
bool driver_has_channels() {
  std::ifstream file("/proc/devices");
  std::ostringstream devices;
  devices << file.rdbuf();
  return devices.str().find("nvidia-caps-imex-channels") != std::string::npos;
}

// "/dev/nvidia-caps-imex-channels/channel0 of user 0, mode 666" for each
// channel file, or "no channel file".
std::string channel_files() {
  std::ostringstream text;
  glob_t found;
  if (glob("/dev/nvidia-caps-imex-channels/channel*", 0, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      struct stat file {};
      if (stat(found.gl_pathv[i], &file) != 0) continue;
      text << (text.str().empty() ? "" : "; ") << found.gl_pathv[i]
           << " of user " << file.st_uid << ", mode " << std::oct
           << (file.st_mode & 0777) << std::dec;
    }
  globfree(&found);
  return text.str().empty() ? "no channel file" : text.str();
}

// An exporter that lends one granule by a fabric handle, until `imports` roles
// have signalled "done".
std::function<void(Role&)> lends_by_fabric(int imports = 1) {
  return [imports](Role& me) {
    const size_t bytes = granule(fabric_memory());
    const Chunk chunk = Chunk::create(bytes, fabric_memory());
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send("handle", chunk.fabric_handle());
    me.wait("done", imports);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  };
}

bool pools_have_fabric_handles() {
  return (attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) &
          kFabric) != 0;
}

cudaMemPoolProps fabric_pool() {
  return pool_properties(cudaMemHandleTypeFabric);
}

// A fabric handle of a pool.
template <class Api>
cudaMemFabricHandle_t fabric_handle_of(Api api, cudaMemPool_t pool) {
  Sentinel<cudaMemFabricHandle_t> handle;
  CALL(api.mem_pool_export_to_shareable_handle(handle.out(), pool,
                                               cudaMemHandleTypeFabric));
  return handle.result();
}
// The pool of another process, by its fabric handle.
template <class Api>
Pool imported(Api api, cudaMemFabricHandle_t handle) {
  Sentinel<cudaMemPool_t> pool;
  CALL(api.mem_pool_import_from_shareable_handle(pool.out(), &handle,
                                                 cudaMemHandleTypeFabric));
  return Pool(pool.result());
}

// A pool that exports to fabric handles; null if pools have no fabric handles.
class FabricPool {
 public:
  FabricPool() {
    if (!pools_have_fabric_handles()) return;
    const CUmemPoolProps wanted = properties();
    CALL(until_fabric_is_ready(
        [&] { return DRIVER(cuMemPoolCreate)(&pool_, &wanted); }));
  }
  FabricPool(const FabricPool&) = delete;
  ~FabricPool() {
    if (pool_ != nullptr) DRIVER(cuMemPoolDestroy)(pool_);
  }
  operator CUmemoryPool() const { return pool_; }

  static CUmemPoolProps properties() {
    CUmemPoolProps wanted{};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.handleTypes = kFabric;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return wanted;
  }
  CUmemFabricHandle handle() const {
    CUmemFabricHandle handle;
    CALL(DRIVER(cuMemPoolExportToShareableHandle)(&handle, pool_, kFabric, 0));
    return handle;
  }

 private:
  CUmemoryPool pool_ = nullptr;
};

CUresult import_from(CUmemFabricHandle handle,
                     CUmemGenericAllocationHandle* imported) {
  return until_fabric_is_ready([&] {
    return NOTED(
        DRIVER(cuMemImportFromShareableHandle)(imported, &handle, kFabric));
  });
}

}  // namespace

TEST(FabricHandle, WhatIsCreatedWithoutAChannel) {
  covers("FABR-02");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const int supported =
        attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    const bool usable = supported != 0 && has_imex_channel();
    me.observe("attribute " + std::to_string(supported) + ", /proc/devices " +
               (driver_has_channels() ? "has" : "lacks") +
               " nvidia-caps-imex-channels, " + channel_files());
    // Without a usable channel, no sentence forbids a success.
    const auto judge = [&](auto api, const char* call, auto code) {
      me.observe(std::string(call) + ": " + name_of(code));
      if (usable || code == decltype(code){})
        EXPECT_TRUE(gives(code, call, decltype(code){}));
      else
        EXPECT_TRUE(
            refused(code, call,
                    {api.kNotPermitted, api.kNotSupported, api.kInvalidValue}));
    };

    const CUmemAllocationProp wanted = fabric_memory();
    const size_t bytes = granule(wanted);
    CUmemGenericAllocationHandle memory = 0;
    const CUresult made = until_fabric_is_ready(
        [&] { return NOTED(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0)); });
    judge(DriverApi{}, "cuMemCreate", made);
    if (made == CUDA_SUCCESS) {
      CUmemFabricHandle handle;
      EXPECT_SUCCESS(
          DRIVER(cuMemExportToShareableHandle)(&handle, memory, kFabric, 0))
          << "the memory that was created for it";
      CALL(DRIVER(cuMemRelease)(memory));
    }

    if (pools_have_fabric_handles()) {
      const CUmemPoolProps pooled = FabricPool::properties();
      CUmemoryPool pool = nullptr;
      const CUresult by_driver = until_fabric_is_ready(
          [&] { return NOTED(DRIVER(cuMemPoolCreate)(&pool, &pooled)); });
      judge(DriverApi{}, "cuMemPoolCreate", by_driver);
      if (by_driver == CUDA_SUCCESS) CALL(DRIVER(cuMemPoolDestroy)(pool));

      const cudaMemPoolProps same = fabric_pool();
      const cudaError_t by_runtime = until_fabric_is_ready(
          [&] { return NOTED(cudaMemPoolCreate(&pool, &same)); });
      judge(RuntimeApi{}, "cudaMemPoolCreate", by_runtime);
      if (by_runtime == cudaSuccess) CALL(cudaMemPoolDestroy(pool));
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(FabricHandle, ACopyOfAHandleIsAsGood) {
  covers("FABR-03");
  needs(gpus(1), fabric);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_by_fabric());
  scenario.role("importer", [](Role& me) {
    const std::vector<CUmemFabricHandle> copies(
        16, me.receive<CUmemFabricHandle>("handle"));
    const Mapping mapping(Chunk::import(copies.back()),
                          granule(fabric_memory()));
    EXPECT_READS(mapping, pattern("exporter"));
    me.signal("done");
  });
  scenario.run(20s);
}

TEST(FabricHandle, AHandleSharesAsADescriptorDoes) {
  covers("FABR-04");
  needs(gpus(1), fabric);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = kGranules * granule(fabric_memory());
    Chunk chunk = Chunk::create(bytes, fabric_memory());
    Mapping mapping(chunk, bytes);
    mapping.fill(pattern("A"));
    const Chunk second = Chunk::create(bytes, fabric_memory());
    const Mapping beside(second, bytes);
    beside.fill(pattern("second"));
    me.send("handle", chunk.fabric_handle());
    me.send("second handle", second.fabric_handle());
    me.send("handle again", chunk.fabric_handle());
    me.wait("B written");
    EXPECT_READS(mapping, pattern("B"));
    mapping.fill(pattern("C"));
    me.signal("C written");
    me.wait("C read");
    lend_in_every_way(me, beside);
    mapping.unmap();
    chunk.release();
    me.signal("given up");
    me.wait("done");
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = kGranules * granule(fabric_memory());
    const auto handle = me.receive<CUmemFabricHandle>("handle");
    const Mapping mapping(Chunk::import(handle), bytes);
    EXPECT_READS(mapping, pattern("A"));
    mapping.fill(pattern("B"));
    me.signal("B written");
    me.wait("C written");
    EXPECT_TRUE(kernel_reads(mapping, pattern("C")));
    const Mapping again(Chunk::import(handle), bytes);
    EXPECT_TRUE(kernel_reads(again, pattern("C")));
    const Mapping beside(
        Chunk::import(me.receive<CUmemFabricHandle>("second handle")), bytes);
    EXPECT_TRUE(kernel_reads(beside, pattern("second")));
    {
      const Mapping third(
          Chunk::import(me.receive<CUmemFabricHandle>("handle again")), bytes);
      EXPECT_TRUE(kernel_reads(third, pattern("C"))) << "by another handle";
    }
    me.signal("C read");
    borrow_in_every_way(me, beside);
    me.wait("given up");
    EXPECT_TRUE(kernel_reads(mapping, pattern("C")))
        << "the exporter has given the memory up";
    me.signal("done");
  });
  scenario.run(20s);
}

// The documentation does not say whether an import can be exported. If it can,
// the new handle stands for the same memory.
TEST(FabricHandle, AnImportThatIsExportedAgainIsTheSameMemory) {
  covers("FABR-04");
  needs(gpus(1), fabric);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_by_fabric());
  scenario.role("importer", [](Role& me) {
    const Chunk chunk = Chunk::import(me.receive<CUmemFabricHandle>("handle"));
    Sentinel<CUmemFabricHandle> handle;
    const CUresult code = NOTED(DRIVER(cuMemExportToShareableHandle)(
        handle.out(), chunk.handle(), kFabric, 0));
    me.observe("the export of an import: " + name_of(code));
    me.send("exported", code == CUDA_SUCCESS);
    if (code == CUDA_SUCCESS) me.send("again", handle.result());
    me.wait("tried");
    const Mapping mapping(chunk, granule(fabric_memory()));
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.signal("done");
  });
  scenario.role("importer of the import", [](Role& me) {
    if (me.receive<bool>("exported")) {
      const Mapping mapping(
          Chunk::import(me.receive<CUmemFabricHandle>("again")),
          granule(fabric_memory()));
      EXPECT_READS(mapping, pattern("exporter"));
    }
    me.signal("tried");
  });
  scenario.run(20s);
}

// An exporter that lends a pool and an allocation of this pool.
template <class Api>
static void lends_a_pool(Role& me, Api api) {
  const Pool pool = created(api, fabric_pool());
  const AsyncBuffer buffer = allocated(api, pool, kBytes);
  buffer.fill(pattern("exporter"));
  me.send("pool", fabric_handle_of(api, pool));
  me.send("pointer", exported(api, buffer));
  me.wait("freed");
  EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
}

// An importer that imports the pool again after it has destroyed the first
// import.
template <class Api>
static void borrows_from_a_pool(Role& me, Api api) {
  const auto handle = me.receive<cudaMemFabricHandle_t>("pool");
  Pool pool = imported(api, handle);
  AsyncBuffer buffer = imported(
      api, pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kBytes);
  EXPECT_READS(buffer, pattern("exporter"));
  buffer.fill(pattern("importer"));
  expect_free(api, buffer);
  EXPECT_SUCCESS(api.mem_pool_destroy(pool.release()));
  Pool again = imported(api, handle);
  EXPECT_SUCCESS(api.mem_pool_destroy(again.release()));
  me.signal("freed");
}

TEST(FabricHandle, APoolsHandleSharesAsWell) {
  covers("FABR-04");
  needs(gpus(1), fabric, pools);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    const bool there = pools_have_fabric_handles();
    me.send("there", there);
    if (!there) return me.observe("pools have no fabric handles here");
    by_both_apis([&](auto api) { lends_a_pool(me, api); });
  });

  scenario.role("importer", [](Role& me) {
    if (!me.receive<bool>("there")) return;
    by_both_apis([&](auto api) { borrows_from_a_pool(me, api); });
  });
  scenario.run(20s);
}

TEST(FabricHandle, ImportNeedsTheExportersChannel) {
  covers("FABR-05");
  needs(gpus(1), fabric);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    const FabricPool pool;
    me.send("pool", pool == nullptr ? CUmemFabricHandle{} : pool.handle());
    me.send("has pool", pool != nullptr);
    lends_by_fabric()(me);
  });
  // If every user may open a channel, no import has to be refused.
  scenario
      .role("importer without rights",
            [](Role& me) {
              if (geteuid() == 0) {
                ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
              }
              const bool permitted = has_imex_channel();
              CALL(cudaFree(nullptr));
              const auto handle = me.receive<CUmemFabricHandle>("handle");
              auto shared = me.receive<CUmemFabricHandle>("pool");
              if (permitted) {
                me.signal("done");
                return me.not_applicable("every user may open a channel here");
              }
              CUmemGenericAllocationHandle imported = 0;
              EXPECT_CODE(CUDA_ERROR_NOT_PERMITTED,
                          import_from(handle, &imported));
              if (me.receive<bool>("has pool")) {
                CUmemoryPool pool = nullptr;
                EXPECT_CODE(CUDA_ERROR_NOT_PERMITTED,
                            DriverApi::mem_pool_import_from_shareable_handle(
                                &pool, &shared, cudaMemHandleTypeFabric));
              }
              EXPECT_TRUE(context_is_usable());
              me.signal("done");
            })
      .env("IPCLAB_MODEL_IMEX_CHANNEL", "none");
  scenario.run(20s);
}

// Makes a call until the fabric is ready. As long as it is not, the process
// must be able to go on, and a refused call must not keep memory. The first
// call may prepare the use of the fabric, so the free memory after this call
// counts. Returns how often the call was not ready; ends the scenario if it
// stays so.
static int tried_again(Role& me, const char* call,
                       const std::function<CUresult()>& make) {
  EXPECT_TRUE(context_is_usable());
  size_t before = 0, after = 0, all = 0;
  int refused = 0;
  CUresult code = make();
  while (static_cast<int>(code) == kFabricNotReady) {
    CALL(cudaMemGetInfo(&after, &all));
    if (refused == 0) before = after;
    EXPECT_GE(after, before) << call << " is not ready and keeps memory";
    EXPECT_TRUE(context_is_usable());
    if (std::chrono::steady_clock::now() > fabric_deadline())
      me.stop_not_applicable("the fabric is not ready");
    ++refused;
    poll(nullptr, 0, 50);
    code = make();
  }
  EXPECT_TRUE(gives(code, call, CUDA_SUCCESS));
  if (refused > 0)
    me.observe(std::string(call) + " was not ready at first, and then was");
  return refused;
}

TEST(FabricHandle, WhatIsNotReadyMayBeTriedAgain) {
  covers("FABR-10");
  needs(gpus(1), fabric, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const CUmemAllocationProp wanted = fabric_memory();
    const size_t bytes = granule(wanted);
    CUmemGenericAllocationHandle memory = 0;
    const int refused = tried_again(me, "cuMemCreate", [&] {
      return NOTED(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
    });
    const Chunk chunk(memory);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send("handle", chunk.fabric_handle());
    me.send("refused", refused);
    me.wait_for_end("importer");
  });
  scenario.role("importer", [](Role& me) {
    // A context needs memory, so it is created after the exporter has measured.
    auto handle = me.receive<CUmemFabricHandle>("handle");
    const size_t bytes = granule(fabric_memory());
    CUmemGenericAllocationHandle memory = 0;
    const int refused = tried_again(me, "cuMemImportFromShareableHandle", [&] {
      return NOTED(
          DRIVER(cuMemImportFromShareableHandle)(&memory, &handle, kFabric));
    });
    const Mapping mapping(Chunk(memory), bytes);
    EXPECT_READS(mapping, pattern("exporter"));
    if (refused + me.receive<int>("refused") == 0)
      me.not_applicable("the fabric was ready at once");
  });
  scenario.run(20s);
}

TEST(FabricHandle, HandleTypesMayBeAskedForTogether) {
  covers("FABR-06");
  needs(gpus(1), fabric, vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    CUmemAllocationProp wanted = fabric_memory();
    wanted.requestedHandleTypes =
        static_cast<CUmemAllocationHandleType>(kFabric | kFd);
    const size_t bytes = granule(fabric_memory());
    CUmemGenericAllocationHandle memory = 0;
    const CUresult code = until_fabric_is_ready(
        [&] { return NOTED(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0)); });
    me.observe("cuMemCreate for a descriptor and a fabric handle: " +
               name_of(code));
    me.send("created", code == CUDA_SUCCESS);
    if (code != CUDA_SUCCESS) return;
    const Chunk chunk(memory);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    const auto asks_for = [&](CUmemAllocationHandleType type, void* out) {
      const CUresult told = NOTED(
          DRIVER(cuMemExportToShareableHandle)(out, chunk.handle(), type, 0));
      me.observe((type == kFd ? "as a descriptor: " : "as a fabric handle: ") +
                 name_of(told));
      return told == CUDA_SUCCESS;
    };
    CUmemFabricHandle handle{};
    const bool has_handle = asks_for(kFabric, &handle);
    me.send("has handle", has_handle);
    if (has_handle) me.send("handle", handle);
    int number = -1;
    const bool has_descriptor = asks_for(kFd, &number);
    me.send("has descriptor", has_descriptor);
    if (has_descriptor)
      me.send_descriptor("descriptor", Descriptor(number).get());
    me.wait("done");
    EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
  });

  scenario.role("importer", [](Role& me) {
    if (!me.receive<bool>("created")) return;
    const size_t bytes = granule(fabric_memory());
    std::deque<Mapping> mappings;
    if (me.receive<bool>("has handle"))
      mappings.emplace_back(
          Chunk::import(me.receive<CUmemFabricHandle>("handle")), bytes);
    if (me.receive<bool>("has descriptor"))
      mappings.emplace_back(Chunk::import(me.receive_descriptor("descriptor")),
                            bytes);
    for (const Mapping& each : mappings)
      EXPECT_TRUE(kernel_reads(each, pattern("exporter")));
    ASSERT_FALSE(mappings.empty()) << "memory for both has no handle at all";
    mappings.front().fill(pattern("importer"));
    EXPECT_TRUE(copy_reads(mappings.back(), pattern("importer")));
    me.signal("done");
  });
  scenario.run(20s);
}

// The documentation does not say what a stale handle does, but the handle must
// not open other memory.
TEST(FabricHandle, AHandleKeepsNoMemory) {
  covers("FABR-07");
  needs(gpus(1), fabric);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule(fabric_memory());
    const Chunk other = Chunk::create(bytes, fabric_memory());
    const Mapping secret(other, bytes);
    secret.fill(pattern("secret"));
    other.fabric_handle();
    Chunk chunk = Chunk::create(bytes, fabric_memory());
    me.send("handle", chunk.fabric_handle());
    chunk.release();
    me.signal("released");
    me.wait("done");
    EXPECT_TRUE(kernel_reads(secret, pattern("secret")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule(fabric_memory());
    const auto handle = me.receive<CUmemFabricHandle>("handle");
    me.wait("released");
    CUmemGenericAllocationHandle imported = 0;
    const CUresult code = import_from(handle, &imported);
    me.observe("import after the exporter's release: " + name_of(code));
    if (code == CUDA_SUCCESS) {
      const Mapping mapping(Chunk(imported), bytes);
      EXPECT_FALSE(kernel_reads(mapping, pattern("secret")))
          << "a stale handle opens another chunk";
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("done");
  });
  scenario.run(20s);
}

// An exporter that lends a pool by each API, and then a chunk. It keeps each
// until two roles are done with it.
static void lends_to_all_of_the_user(Role& me) {
  CALL(cudaFree(nullptr));
  const bool has_pools = pools_have_fabric_handles();
  me.send("has pools", has_pools);
  if (has_pools)
    by_both_apis([&](auto api) {
      const Pool pool = created(api, fabric_pool());
      const AsyncBuffer buffer = allocated(api, pool, kBytes);
      buffer.fill(pattern("in the pool"));
      me.send("pool", fabric_handle_of(api, pool));
      me.send("pointer", exported(api, buffer));
      me.wait("freed", 2);
      EXPECT_TRUE(kernel_reads(buffer, pattern("in the pool")));
    });
  lends_by_fabric(2)(me);
}

TEST(FabricHandle, AllProcessesOfAUserShare) {
  covers("FABR-08");
  needs(gpus(1), fabric);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_to_all_of_the_user);
  scenario.roles("importer", 2, [](Role& me) {
    if (me.index() == 0)
      me.observe("user " + std::to_string(geteuid()) + ": " + channel_files());
    if (me.receive<bool>("has pools"))
      by_both_apis([&](auto api) {
        const Pool pool =
            imported(api, me.receive<cudaMemFabricHandle_t>("pool"));
        AsyncBuffer buffer = imported(
            api, pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kBytes);
        EXPECT_READS(buffer, pattern("in the pool"));
        expect_free(api, buffer);
        me.signal("freed");
      });
    const auto handle = me.receive<CUmemFabricHandle>("handle");
    const Mapping mapping(Chunk::import(handle), granule(fabric_memory()));
    EXPECT_READS(mapping, pattern("exporter"));
    me.signal("done");
  });
  scenario.run(20s);
}
