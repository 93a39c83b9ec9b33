// An exporter exits, is killed or resets its device: the tests note what its
// importers see, and judge that the GPU still works for other processes. Mirror
// of samples/63_exporter_dies.
//
// The tests only note what happens to legacy handles, pools and events of a
// process that dies. They judge that no other process is harmed, and that
// memory of cuMemCreate stays whole.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;
using PointerData = cudaMemPoolPtrExportData;

constexpr size_t kBytes = 2 << 20;
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

const std::vector<cudaError_t> kOpenRefusals = {
    cudaErrorInvalidResourceHandle, cudaErrorMapBufferObjectFailed,
    cudaErrorDeviceUninitialized,   cudaErrorTooManyPeers,
    cudaErrorNotSupported,          cudaErrorInvalidValue};

// A role that shares nothing with the exporter and the importer. After both
// have ended, the GPU must work for this role.
void finds_the_gpu_usable(Role& me) {
  me.wait_for_end("exporter");
  me.wait_for_end("importer");
  EXPECT_TRUE(context_is_usable());
}

// Notes what an importer sees in memory after its exporter has ended.
void observe_lost(Role& me, const std::string& death, const Words& words) {
  observe_check(me, "the exporter " + death + ", a kernel reads what was there",
                [&] { return kernel_reads(words, pattern("exporter")); });
}

}  // namespace

TEST(ExporterDies, AnExporterOfMemoryDies) {
  covers("LIFE-04");
  needs(gpus(1), legacy_memory);
  for (const std::string death : {"exits", "is killed", "resets its device"}) {
    SCOPED_TRACE("the exporter " + death);
    Scenario scenario(Scenario::kShared);

    auto& exporter = scenario.role("exporter", [&](Role& me) {
      void* memory = nullptr;
      CALL(cudaMalloc(&memory, kBytes));
      Words(memory, kBytes).fill(pattern("exporter"));
      Handle handle;
      CALL(cudaIpcGetMemHandle(&handle, memory));
      me.send("handle", handle);
      me.wait("opened");
      if (death == "resets its device")
        observe_code(me, "cudaDeviceReset of what is open elsewhere",
                     NOTED(cudaDeviceReset()));
      if (death == "is killed") me.die(SIGKILL);
    });
    exporter.in_new_process();

    scenario
        .role("importer",
              [&](Role& me) {
                void* const opened = open_handle(me.receive<Handle>("handle"));
                me.signal("opened");
                me.wait_for_end("exporter");
                observe_lost(me, death, Words(opened, kBytes));
                observe_code(me, "closing afterwards",
                             NOTED(cudaIpcCloseMemHandle(opened)));
              })
        .in_new_process()
        .may_end_by(SIGSEGV);

    scenario.role("third", finds_the_gpu_usable);
    scenario.run(20s);
  }
}

namespace {

// Each part of a chunk must outlive its creator, not only the first granule.
size_t three_granules() { return 3 * granule(); }

// Lends a chunk to this many importers. When one importer has mapped it, the
// process comes to this end.
void lends_a_chunk_until_it(Role& me, const std::string& end,
                            int importers = 1) {
  const size_t bytes = three_granules();
  auto& chunk = abandoned<Chunk>(Chunk::create(bytes));
  auto& mapping = abandoned<Mapping>(chunk, bytes);
  mapping.fill(pattern("exporter"));
  for (int i = 0; i < importers; ++i)
    me.send_descriptor("chunk of one that " + end, chunk.descriptor().get());
  me.wait("mapped what comes from one that " + end);
  if (end == "is killed") me.die(SIGKILL);
  if (end == "resets its device") EXPECT_SUCCESS(cudaDeviceReset());
}

// Reads the chunk after this end of its exporter. Writes it by kernels, copies
// and memsets, and through a second mapping.
void uses_the_chunk_of_one_that(Role& me, const std::string& end) {
  const size_t bytes = three_granules();
  const Chunk chunk =
      Chunk::import(me.receive_descriptor("chunk of one that " + end));
  const Mapping mapping(chunk, bytes);
  const DeviceBuffer own(bytes);
  me.signal("mapped what comes from one that " + end);
  me.wait_for_end("exporter that " + end);
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));

  own.fill(pattern("copied"));
  CALL(cudaMemcpy(mapping.data, own.data, bytes, cudaMemcpyDefault));
  EXPECT_TRUE(kernel_reads(mapping, pattern("copied")));
  CALL(cudaMemset(mapping.data, 0x3C, bytes));
  uint32_t word = 0;
  CALL(cudaMemcpy(&word, mapping.data, sizeof word, cudaMemcpyDefault));
  EXPECT_EQ(word, 0x3C3C3C3Cu);
  const Mapping second(chunk, bytes);
  second.fill(pattern("importer"));
  EXPECT_TRUE(copy_reads(mapping, pattern("importer")));
}

// Runs an importer with one exporter after another; each lends a chunk and ends
// in another way. The importer is called with the way.
void at_each_end(void (*importer)(Role&, const std::string&),
                 const std::vector<std::string>& ends = {"is killed", "exits",
                                                         "resets its device"}) {
  Scenario scenario(Scenario::kShared);
  for (const std::string& end : ends)
    scenario
        .role("exporter that " + end,
              [&](Role& me) { lends_a_chunk_until_it(me, end); })
        .in_new_process();
  scenario.role("importer", [&](Role& me) {
    for (const std::string& end : ends) {
      SCOPED_TRACE("the exporter " + end);
      importer(me, end);
    }
  });
  scenario.run(20s);
}

}  // namespace

// The documentation of cuMemRelease makes no exception for the end of the
// process that has created the memory.
TEST(ExporterDies, ItsImportedChunkCanStillBeWritten) {
  covers("LIFE-06");
  needs(gpus(1), vmm_fd);
  at_each_end(uses_the_chunk_of_one_that);
}

namespace {

// Queues copies and a memset before this end of the exporter. They are done
// after it.
void queues_before_the_end_of_one_that(Role& me, const std::string& end) {
  const size_t bytes = three_granules(), third = granule();
  const Chunk chunk =
      Chunk::import(me.receive_descriptor("chunk of one that " + end));
  const Mapping mapping(chunk, bytes);
  const auto part = [&](size_t number) {
    return words_at(mapping.address() + number * third, third);
  };
  const DeviceBuffer own(third), read(bytes);
  own.fill(pattern("copied"));
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(cudaMemcpyAsync(read.data, mapping.data, bytes,
                                 cudaMemcpyDeviceToDevice, stream));
  EXPECT_SUCCESS(cudaMemcpyAsync(part(0).data, own.data, third,
                                 cudaMemcpyDeviceToDevice, stream));
  EXPECT_SUCCESS(cudaMemsetAsync(part(1).data, 0x3C, third, stream));
  part(2).queue_fill(pattern("by a kernel"), stream);
  me.signal("mapped what comes from one that " + end);
  me.wait_for_end("exporter that " + end);
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  latch.release();
  ASSERT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(read, pattern("exporter")));
  EXPECT_TRUE(kernel_reads(part(0), pattern("copied")));
  std::vector<unsigned char> set(third);
  CALL(cudaMemcpy(set.data(), part(1).data, third, cudaMemcpyDefault));
  EXPECT_EQ(set, std::vector<unsigned char>(third, 0x3C));
  EXPECT_TRUE(kernel_reads(part(2), pattern("by a kernel")));
}

}  // namespace

TEST(ExporterDies, WorkThatWasQueuedBeforeItsEndIsDone) {
  covers("LIFE-06");
  needs(gpus(1), vmm_fd);
  at_each_end(queues_before_the_end_of_one_that);
}

// Imports the chunk for the first time after the death of its exporter. Two
// processes that do this must see each other's writes.
static void imports_after_the_death(Role& me) {
  const size_t bytes = three_granules();
  const Descriptor descriptor =
      me.receive_descriptor("chunk of one that is killed");
  me.wait_for_end("exporter");
  const Mapping mapping(Chunk::import(descriptor), bytes);
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  me.signal("imported late");
  me.wait("written");
  EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
  me.signal("read late");
  me.wait("read late");  // by the other one
  for (const std::string writer : {"late importer 0", "late importer 1"}) {
    if (me.name() == writer) {
      mapping.fill(pattern(writer));
      me.signal("written by " + writer);
    } else {
      me.wait("written by " + writer);
      EXPECT_READS(mapping, pattern(writer));
    }
  }
}

// A process that imported the descriptor before the exporter died imports the
// descriptor again. Two other processes import it for the first time.
TEST(ExporterDies, ItsDescriptorCanBeImportedAgain) {
  covers("LIFE-07");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  const auto dies = [](Role& me) {
    lends_a_chunk_until_it(me, "is killed", 3);
  };
  scenario.role("exporter", dies).in_new_process();
  scenario.role("importer", [](Role& me) {
    const size_t bytes = three_granules();
    const Descriptor descriptor =
        me.receive_descriptor("chunk of one that is killed");
    const Chunk chunk = Chunk::import(descriptor);
    const Mapping mapping(chunk, bytes);
    me.signal("mapped what comes from one that is killed");
    me.wait_for_end("exporter");
    Chunk again;
    {
      CUmemGenericAllocationHandle handle = 0;
      EXPECT_SUCCESS(DRIVER(cuMemImportFromShareableHandle)(
          &handle, by_value(descriptor.get()), kFd));
      again = Chunk(handle);
    }
    const Mapping second(again, bytes);
    EXPECT_TRUE(kernel_reads(second, pattern("exporter")));
    me.wait("imported late", 2);
    second.fill(pattern("importer"));
    EXPECT_TRUE(copy_reads(mapping, pattern("importer")));
    me.signal("written");
    me.wait("written by late importer 1");
    EXPECT_TRUE(kernel_reads(mapping, pattern("late importer 1")));
  });
  scenario.roles("late importer", 2, imports_after_the_death);
  scenario.run(20s);
}

// Imports the chunk of an exporter that has ended. No process has imported it
// before.
static void imports_first_after_one_that(Role& me, const std::string& end) {
  const size_t bytes = three_granules();
  const Descriptor descriptor =
      me.receive_descriptor("chunk of one that " + end);
  me.signal("mapped what comes from one that " + end);  // it may end now
  me.wait_for_end("exporter that " + end);
  const Mapping mapping(Chunk::import(descriptor), bytes);
  EXPECT_READS(mapping, pattern("exporter"));
  mapping.fill(pattern("importer"));
  const Mapping second(Chunk::import(descriptor), bytes);
  EXPECT_TRUE(kernel_reads(second, pattern("importer")));
}

TEST(ExporterDies, ItsDescriptorCanBeImportedFirstAfterItsEnd) {
  covers("LIFE-07");
  needs(gpus(1), vmm_fd);
  at_each_end(imports_first_after_one_that, {"exits", "resets its device"});
}

TEST(ExporterDies, AnExporterOfAPoolDies) {
  covers("LIFE-08");
  needs(gpus(1), pool_fd);
  for (const std::string death : {"exits", "is killed"}) {
    SCOPED_TRACE("the exporter " + death);
    Scenario scenario(Scenario::kShared);

    auto& exporter = scenario.role("exporter", [&](Role& me) {
      auto& pool = abandoned<Pool>(shareable());
      auto& buffer = abandoned<AsyncBuffer>(pool, kBytes);
      buffer.fill(pattern("exporter"));
      me.send_descriptor("pool", pool.exported().get());
      me.send("pointer", buffer.exported());
      me.wait("imported");
      if (death == "is killed") me.die(SIGKILL);
    });
    exporter.in_new_process();

    scenario
        .role("importer",
              [&](Role& me) {
                const Pool pool(me.receive_descriptor("pool"));
                AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"),
                                   kBytes);
                me.signal("imported");
                me.wait_for_end("exporter");
                observe_lost(me, death, buffer);
                observe_code(
                    me, "freeing afterwards",
                    NOTED(cudaFree(std::exchange(buffer.data, nullptr))));
              })
        .in_new_process()
        .may_end_by(SIGSEGV);

    scenario.role("third", finds_the_gpu_usable);
    scenario.run(20s);
  }
}

// The opened memory may have the exporter's last bytes, or nothing. The opened
// memory must not have bytes that another process has written since then.
TEST(ExporterDies, AHandleOfAProcessThatIsGone) {
  covers("LIFE-05");
  needs(gpus(1), legacy_memory);
  for (const std::string death : {"exits", "is killed"}) {
    SCOPED_TRACE("the exporter " + death);
    Scenario scenario(Scenario::kShared);

    auto& exporter = scenario.role("exporter", [&](Role& me) {
      void* memory = nullptr;
      CALL(cudaMalloc(&memory, kBytes));
      Words(memory, kBytes).fill(pattern("exporter"));
      Handle handle;
      CALL(cudaIpcGetMemHandle(&handle, memory));
      me.send("handle", handle);
      me.wait("handle received");
      if (death == "is killed") me.die(SIGKILL);
    });
    exporter.in_new_process();

    auto& other = scenario.role("somebody else", [](Role& me) {
      me.wait_for_end("exporter");
      const DeviceBuffer buffer(kBytes);  // may get the exporter's memory
      buffer.fill(pattern("secret"));
      buffer.legacy_handle();  // exported memory is easier to find
      me.signal("overwritten");
      me.wait("tried");
      EXPECT_TRUE(kernel_reads(buffer, pattern("secret")));
    });
    other.in_new_process();  // it has no memory of an earlier role

    scenario.role("importer", [&](Role& me) {
      CALL(cudaFree(nullptr));
      const auto handle = me.receive<Handle>("handle");
      me.signal("handle received");
      me.wait("overwritten");
      void* opened = nullptr;
      const Outcome outcome = outcome_of(
          NOTED(cudaIpcOpenMemHandle(&opened, handle, kLazy)), kOpenRefusals);
      me.tabulate("an open of a handle whose process is gone",
                  "the exporter " + death, outcome);
      me.observe("the exporter " + death + ", then an open: " + outcome.code);
      if (outcome.kind == Outcome::kWrongSuccess) {
        const Words words(opened, kBytes);
        EXPECT_FALSE(kernel_reads(words, pattern("secret")));
        EXPECT_FALSE(copy_reads(words, pattern("secret")));
        observe_code(me, "its close", NOTED(cudaIpcCloseMemHandle(opened)));
      }
      EXPECT_TRUE(context_is_usable());
      me.signal("tried");
    });

    scenario.run(20s);
  }
}

// A stream and a host thread wait for work that will never be done.
TEST(ExporterDies, TheOwnerOfAnAwaitedEventDies) {
  covers("LIFE-09");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  auto& exporter = scenario.role("exporter", [](Role& me) {
    const Stream stream;
    const SharedEvent event;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    me.send("handle", event.handle());
    me.wait("waiting");
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    me.die(SIGKILL);
  });
  exporter.in_new_process();

  scenario.role("importer", [](Role& me) {
    const Stream stream;
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
    CALL(cudaStreamWaitEvent(stream, event));
    HostWait host(event);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    EXPECT_TRUE(host.is_held());
    me.signal("waiting");
    me.wait_for_end("exporter");

    const bool goes_on =
        observe_check(me, "a stream that waits goes on within 5 s",
                      [&] { return passes(stream); });
    const auto until = std::chrono::steady_clock::now() + 5s;
    while (!host.returned() && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    if (!host.returned()) me.observe("a host that waits still does after 5 s");
    if (!goes_on || !host.returned())
      me.die(SIGKILL);  // the role cannot end otherwise
    observe_code(me, "a host that waits goes on", host.join());
    observe_code(me, "cudaEventQuery", NOTED(cudaEventQuery(event)));
    observe_check(me, "the context is usable", context_is_usable);
  });

  scenario.run(30s);
}
