// Both sides end in order, or one of them dies: what comes back, what stays,
// and who must not notice.
// Mirror of samples/60_teardown_and_crash.
//
// Where a process dies, what becomes of its own handles and mappings is only
// written down. That nobody else is harmed by it is judged.
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
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
constexpr size_t kWatched = size_t{2} << 30;  // far above what else changes
constexpr int kCycles = 1000;
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;
constexpr unsigned kThreads = 8;
constexpr unsigned kOpensOfAThread = 1000;
constexpr int kHandles = 4;
constexpr int kImporters = 3;

const std::vector<cudaError_t> kOpenRefusals = {
    cudaErrorInvalidResourceHandle, cudaErrorMapBufferObjectFailed,
    cudaErrorDeviceUninitialized,   cudaErrorTooManyPeers,
    cudaErrorNotSupported,          cudaErrorInvalidValue};

void* open(const Handle& handle) {
  void* opened = nullptr;
  CALL(cudaIpcOpenMemHandle(&opened, handle, kLazy));
  return opened;
}

// Writes down what a check says that nobody judges.
bool observe_check(Role& me, const std::string& what,
                   const std::function<testing::AssertionResult()>& check) {
  bool good = false;
  try {
    good = static_cast<bool>(check());
    me.observe(what + (good ? ": yes" : ": no"));
  } catch (const CallFailed& failed) {
    me.observe(what + ": " + failed.call + " gives " + failed.seen);
  }
  cudaGetLastError();
  expected_but_saw("", "");
  return good;
}

// Writes down what a call gives that nobody judges.
void observe_code(Role& me, const std::string& what, cudaError_t code) {
  me.observe(what + ": " + name_of(code));
  cudaGetLastError();
}

// Something that only the end of the process gives back.
template <class T, class... Arguments>
T& abandoned(Arguments&&... arguments) {
  return *new T(std::forward<Arguments>(arguments)...);
}

// The two sides of one cycle after another, of which nothing is left. Each side
// makes what lasts and returns its cycle.
using Cycle = std::function<void(int)>;

void both_leave_nothing(const std::function<Cycle(Role&)>& exporter,
                        const std::function<Cycle(Role&)>& importer) {
  const auto repeats = [](const std::function<Cycle(Role&)>& side) {
    return [side](Role& me) {
      CALL(cudaFree(nullptr));
      leaves_nothing(kCycles, side(me));
    };
  };
  Scenario scenario;
  scenario.role("exporter", repeats(exporter));
  scenario.role("importer", repeats(importer));
  scenario.run(90s);
}

// The number of the cycle, where the other side looks for it.
void write_number(void* memory, int number) {
  CALL(cudaMemcpy(memory, &number, sizeof number, cudaMemcpyDefault));
}

void expect_number(const void* memory, int number) {
  int seen = -1;
  CALL(cudaMemcpy(&seen, memory, sizeof seen, cudaMemcpyDefault));
  EXPECT_EQ(seen, number);
}

// A role that has nothing to do with the others: the GPU works for it once
// they are all gone.
std::function<void(Role&)> finds_the_gpu_usable_after(
    const std::vector<std::string>& roles) {
  return [roles](Role& me) {
    for (const std::string& role : roles) me.wait_for_end(role);
    EXPECT_TRUE(context_is_usable());
  };
}

// A kernel that nobody can have meant well.
__global__ void fault(uint32_t* nowhere) { *nowhere = 1; }

}  // namespace

// --- in order ---------------------------------------------------------------

TEST(TeardownAndCrash, OrderedMemoryLeavesNothing) {
  covers("LIFE-01");
  needs(gpus(1), legacy_memory, alone);
  both_leave_nothing(
      [](Role& me) {
        return [&me](int number) {
          DeviceBuffer buffer(kBytes);
          write_number(buffer.data, number);
          me.send("handle", buffer.legacy_handle());
          me.wait("closed");
          buffer.free();
        };
      },
      [](Role& me) {
        return [&me](int number) {
          LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
          expect_number(mapping.data, number);
          mapping.close();
          me.signal("closed");
        };
      });
}

TEST(TeardownAndCrash, OrderedEventsLeaveNothing) {
  covers("LIFE-01");
  needs(gpus(1), legacy_events, alone);
  both_leave_nothing(
      [](Role& me) {
        const auto stream = std::make_shared<Stream>();
        return [&me, stream](int) {
          SharedEvent event;
          CALL(cudaEventRecord(event, *stream));
          me.send("handle", event.handle());
          me.wait("destroyed");
          event.destroy();
        };
      },
      [](Role& me) {
        return [&me](int) {
          SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
          CALL(cudaEventSynchronize(event));
          event.destroy();
          me.signal("destroyed");
        };
      });
}

TEST(TeardownAndCrash, OrderedChunksLeaveNothing) {
  covers("LIFE-01");
  needs(gpus(1), vmm_fd, alone);
  both_leave_nothing(
      [](Role& me) {
        return [&me](int number) {
          const Chunk chunk = Chunk::create(granule());
          const Mapping mapping(chunk, granule());
          write_number(mapping.data, number);
          me.send_descriptor("descriptor", chunk.descriptor().get());
          me.wait("released");
        };
      },
      [](Role& me) {
        return [&me](int number) {
          {
            const Descriptor descriptor = me.receive_descriptor("descriptor");
            const Mapping mapping(Chunk::import(descriptor), granule());
            expect_number(mapping.data, number);
          }
          me.signal("released");
        };
      });
}

TEST(TeardownAndCrash, OrderedPoolMemoryLeavesNothing) {
  covers("LIFE-01");
  needs(gpus(1), pool_fd, alone);
  both_leave_nothing(
      [](Role& me) {
        const auto pool = std::make_shared<Pool>(shareable());
        me.send_descriptor("pool", pool->exported().get());
        return [&me, pool](int number) {
          AsyncBuffer buffer(*pool, kBytes);
          CALL(cudaStreamSynchronize(nullptr));
          write_number(buffer.data, number);
          me.send("pointer", buffer.exported());
          me.wait("freed");
          if (number % 2 == 0) {
            buffer.free();
          } else {
            buffer.free_async();
            CALL(cudaStreamSynchronize(nullptr));
          }
        };
      },
      [](Role& me) {
        const auto pool = std::make_shared<Pool>(me.receive_descriptor("pool"));
        return [&me, pool](int number) {
          AsyncBuffer buffer(*pool, me.receive<PointerData>("pointer"), kBytes);
          expect_number(buffer.data, number);
          if (number % 2 == 0) {
            buffer.free();
          } else {
            buffer.free_async();
            CALL(cudaStreamSynchronize(nullptr));
          }
          me.signal("freed");
        };
      });
}

TEST(TeardownAndCrash, OrderedPoolsLeaveNothing) {
  covers("LIFE-01");
  needs(gpus(1), pool_fd, alone);
  both_leave_nothing(
      [](Role& me) {
        return [&me](int) {
          Pool pool(shareable());
          me.send_descriptor("pool", pool.exported().get());
          me.wait("destroyed");
          pool.destroy();
        };
      },
      [](Role& me) {
        return [&me](int) {
          const Descriptor shared = me.receive_descriptor("pool");
          Pool pool(shared);
          pool.destroy();
          me.signal("destroyed");
        };
      });
}

// The barrier of every correct program: free when the last has closed, however
// long it takes and in whatever order they do. Until then each that has not
// closed sees what is written; afterwards the memory is the exporter's alone.
TEST(TeardownAndCrash, FreeingWaitsForEveryImporter) {
  covers("LIFE-14");
  needs(gpus(1), legacy_memory);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    for (int closed = 1; closed <= kImporters; ++closed) {
      me.wait("closed");
      EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
      buffer.fill(pattern("exporter"));
    }
    EXPECT_SUCCESS(cudaFree(std::exchange(buffer.data, nullptr)));
    EXPECT_TRUE(context_is_usable());
  });
  std::vector<std::string> closes;
  for (int i = 0; i < kImporters; ++i)
    closes.push_back("close " + std::to_string(i));
  scenario.roles("importer", kImporters, [=](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    me.in_order({{closes[static_cast<size_t>(me.index())], [&] {
                    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
                    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")));
                    EXPECT_SUCCESS(cudaIpcCloseMemHandle(
                        std::exchange(mapping.data, nullptr)));
                    me.signal("closed");
                  }}});
  });
  scenario.every_order(closes);
  scenario.run(20s);
}

// --- an importer dies -------------------------------------------------------

TEST(TeardownAndCrash, AnImporterDiesAndTheExporterGoesOn) {
  covers("LIFE-02");
  needs(gpus(1), legacy_memory, legacy_events, pool_fd, alone);
  for (const std::string death : {"exits", "is killed", "is killed at work"}) {
    SCOPED_TRACE("the importer " + death);
    Scenario scenario;

    scenario.role("exporter", [&](Role& me) {
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
      me.send_descriptor("pool", pool.exported().get());
      me.send("memory", memory);
      me.send("event", event.handle());
      me.send("pointer", pooled.exported());
      me.wait_for_end("importer");

      EXPECT_TRUE(kernel_reads(seen, pattern("memory")));
      EXPECT_TRUE(copy_reads(seen, pattern("memory")));
      EXPECT_TRUE(kernel_reads(pooled, pattern("pool")));
      const Stream stream;
      EXPECT_SUCCESS(cudaEventRecord(event, stream));
      EXPECT_TRUE(passes(stream));
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
    });

    scenario.role("importer", [&](Role& me) {
      CALL(cudaFree(nullptr));
      auto& pool = abandoned<Pool>(me.receive_descriptor("pool"));
      const Words seen(open(me.receive<Handle>("memory")), kBytes);
      abandoned<SharedEvent>(me.receive<cudaIpcEventHandle_t>("event"));
      auto& pooled = abandoned<AsyncBuffer>(
          pool, me.receive<PointerData>("pointer"), kBytes);
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
    });

    scenario.run(40s);
  }
}

TEST(TeardownAndCrash, ANewImporterAfterAKilledOne) {
  covers("LIFE-03");
  needs(gpus(1), legacy_memory);
  Scenario scenario;
  scenario.role("exporter", lends(pattern("exporter"), kBytes));

  scenario.role("victim", [](Role& me) {
    const LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.die(SIGKILL);
  });

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

TEST(TeardownAndCrash, AFaultStaysInTheImporter) {
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
      if (mps)  // shares its fault with the other clients, perhaps
        observe_check(me, "under MPS, unharmed at the " + step, unharmed);
      else
        EXPECT_TRUE(unharmed()) << step;
    }
  });

  scenario.role("importer", [](Role& me) {
    void* const opened = open(me.receive<Handle>("handle"));
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    note_call("fault<<<>>>");
    fault<<<1, 1>>>(nullptr);
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

TEST(TeardownAndCrash, AnImporterResetsItsDevice) {
  covers("LIFE-11");
  needs(gpus(1), legacy_memory);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    for (const char* step : {"reset", "end of importer"}) {
      me.wait(step);
      EXPECT_TRUE(kernel_reads(buffer, pattern("exporter"))) << step;
      EXPECT_TRUE(copy_reads(buffer, pattern("exporter"))) << step;
    }
    EXPECT_SUCCESS(cudaFree(std::exchange(buffer.data, nullptr)));
    EXPECT_TRUE(context_is_usable());
  });

  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    void* opened = open(handle);
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    CALL(cudaDeviceReset());
    me.signal("reset");
    observe_code(me, "closing what was open before the reset",
                 NOTED(cudaIpcCloseMemHandle(opened)));
    const cudaError_t code =
        NOTED(cudaIpcOpenMemHandle(&opened, handle, kLazy));
    observe_code(me, "opening once more", code);
    if (code != cudaSuccess) return;
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    CALL(cudaIpcCloseMemHandle(opened));
  });

  scenario.run(20s);
}

// --- an exporter dies -------------------------------------------------------

namespace {

// What an importer sees of memory whose exporter is gone.
void observe_lost(Role& me, const std::string& death, const Words& words) {
  observe_check(me, "the exporter " + death + ", a kernel reads what was there",
                [&] { return kernel_reads(words, pattern("exporter")); });
}

}  // namespace

TEST(TeardownAndCrash, AnExporterOfMemoryDies) {
  covers("LIFE-04");
  needs(gpus(1), legacy_memory);
  for (const std::string death : {"exits", "is killed", "resets its device"}) {
    SCOPED_TRACE("the exporter " + death);
    Scenario scenario;

    scenario.role("exporter", [&](Role& me) {
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

    scenario
        .role("importer",
              [&](Role& me) {
                void* const opened = open(me.receive<Handle>("handle"));
                me.signal("opened");
                me.wait_for_end("exporter");
                observe_lost(me, death, Words(opened, kBytes));
                observe_code(me, "closing afterwards",
                             NOTED(cudaIpcCloseMemHandle(opened)));
              })
        .may_end_by(SIGSEGV);

    scenario.role("third",
                  finds_the_gpu_usable_after({"exporter", "importer"}));
    scenario.run(20s);
  }
}

TEST(TeardownAndCrash, AnExporterOfAPoolDies) {
  covers("LIFE-08");
  needs(gpus(1), pool_fd);
  for (const std::string death : {"exits", "is killed"}) {
    SCOPED_TRACE("the exporter " + death);
    Scenario scenario;

    scenario.role("exporter", [&](Role& me) {
      auto& pool = abandoned<Pool>(shareable());
      auto& buffer = abandoned<AsyncBuffer>(pool, kBytes);
      buffer.fill(pattern("exporter"));
      me.send_descriptor("pool", pool.exported().get());
      me.send("pointer", buffer.exported());
      me.wait("imported");
      if (death == "is killed") me.die(SIGKILL);
    });

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
        .may_end_by(SIGSEGV);

    scenario.role("third",
                  finds_the_gpu_usable_after({"exporter", "importer"}));
    scenario.run(20s);
  }
}

// What is opened may be the exporter's last bytes, or nothing. It must not be
// what somebody else has put into the memory since.
TEST(TeardownAndCrash, AHandleOfAProcessThatIsGone) {
  covers("LIFE-05");
  needs(gpus(1), legacy_memory);
  for (const std::string death : {"exits", "is killed"}) {
    SCOPED_TRACE("the exporter " + death);
    Scenario scenario;

    scenario.role("exporter", [&](Role& me) {
      void* memory = nullptr;
      CALL(cudaMalloc(&memory, kBytes));
      Words(memory, kBytes).fill(pattern("exporter"));
      Handle handle;
      CALL(cudaIpcGetMemHandle(&handle, memory));
      me.send("handle", handle);
      me.wait("handle received");
      if (death == "is killed") me.die(SIGKILL);
    });

    scenario.role("somebody else", [](Role& me) {
      me.wait_for_end("exporter");
      const DeviceBuffer buffer(kBytes);  // in the place of the exporter's
      buffer.fill(pattern("secret"));
      buffer.legacy_handle();  // lent to others, which makes it easier to find
      me.signal("overwritten");
      me.wait("tried");
      EXPECT_TRUE(kernel_reads(buffer, pattern("secret")));
    });

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
        CALL(cudaIpcCloseMemHandle(opened));
      }
      EXPECT_TRUE(context_is_usable());
      me.signal("tried");
    });

    scenario.run(20s);
  }
}

// A stream and a host thread wait for work that will never be done.
TEST(TeardownAndCrash, TheOwnerOfAnAwaitedEventDies) {
  covers("LIFE-09");
  needs(gpus(1), legacy_events);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
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

  scenario.role("importer", [](Role& me) {
    const Stream stream;
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
    CALL(cudaStreamWaitEvent(stream, event));
    HostWait host(event);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    EXPECT_FALSE(host.returned());
    me.signal("waiting");
    me.wait_for_end("exporter");

    const bool goes_on =
        observe_check(me, "a stream that waits goes on within 5 s",
                      [&] { return passes(stream); });
    const auto until = std::chrono::steady_clock::now() + 5s;
    while (!host.returned() && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    if (!host.returned()) me.observe("a host that waits still does after 5 s");
    if (!goes_on || !host.returned()) me.die(SIGKILL);  // no other way out
    observe_code(me, "a host that waits goes on", host.join());
    observe_code(me, "cudaEventQuery", NOTED(cudaEventQuery(event)));
    observe_check(me, "the context is usable", context_is_usable);
  });

  scenario.run(30s);
}

// --- one process ------------------------------------------------------------

namespace {

// What cudaMalloc gives in a child of fork(2), which never calls exec(3).
std::string answer_in_a_forked_child() {
  int ends[2] = {-1, -1};
  if (pipe(ends) == -1) return "no pipe";
  const Descriptor reads(ends[0]);
  Descriptor writes(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    void* memory = nullptr;
    const cudaError_t code = cudaMalloc(&memory, kBytes);
    _exit(write(writes.get(), &code, sizeof code) == sizeof code ? 0 : 1);
  }
  writes.close();
  pollfd answer{reads.get(), POLLIN, 0};
  cudaError_t code = cudaSuccess;
  const bool hangs = poll(&answer, 1, 5000) != 1;
  const bool answered = !hangs && read(reads.get(), &code, sizeof code) ==
                                      static_cast<ssize_t>(sizeof code);
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  if (answered) return name_of(code);
  return hangs ? "no answer within 5 s" : "it dies";
}

}  // namespace

TEST(TeardownAndCrash, AForkedChildHasNoCuda) {
  covers("LIFE-10");
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.observe("cudaMalloc in a child that fork made of a process with CUDA: " +
               answer_in_a_forked_child());
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

namespace {

// Opens and closes each handle in turn, all of which are open already; what
// went wrong, or nothing.
std::string open_and_close_many(const std::vector<Handle>& handles,
                                const std::vector<void*>& addresses) {
  for (unsigned i = 0; i < kOpensOfAThread; ++i) {
    const size_t which = i % handles.size();
    void* opened = nullptr;
    cudaError_t code = cudaIpcOpenMemHandle(&opened, handles[which], kLazy);
    if (code != cudaSuccess) return "an open gives " + name_of(code);
    if (opened != addresses[which]) return "an open gives another address";
    code = cudaIpcCloseMemHandle(opened);
    if (code != cudaSuccess) return "a close gives " + name_of(code);
  }
  return "";
}

}  // namespace

TEST(TeardownAndCrash, ThreadsThatOpenAndCloseKeepTheCount) {
  covers("LIFE-13");
  needs(gpus(1), legacy_memory);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    for (int i = 0; i < kHandles; ++i) {
      buffers.push_back(std::make_unique<DeviceBuffer>(kBytes));
      buffers.back()->fill(pattern("buffer " + std::to_string(i)));
      me.send("handle", buffers.back()->legacy_handle());
    }
    me.wait("closed");
  });

  scenario.role("importer", [](Role& me) {
    std::vector<Handle> handles;
    std::vector<void*> addresses;
    for (int i = 0; i < kHandles; ++i) {
      handles.push_back(me.receive<Handle>("handle"));
      addresses.push_back(open(handles.back()));
    }
    std::vector<std::string> found(kThreads, "did not run");
    std::vector<std::thread> threads;
    note_call("cudaIpcOpenMemHandle and cudaIpcCloseMemHandle in threads");
    for (std::string& mine : found)
      threads.emplace_back(
          [&] { mine = open_and_close_many(handles, addresses); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(found, std::vector<std::string>(kThreads, ""));

    for (int i = 0; i < kHandles; ++i) {
      void* const address = addresses[static_cast<size_t>(i)];
      const Words words(address, kBytes);
      const Pattern written = pattern("buffer " + std::to_string(i));
      EXPECT_TRUE(kernel_reads(words, written)) << "one open is left";
      EXPECT_SUCCESS(cudaIpcCloseMemHandle(address));
      EXPECT_REFUSED(cudaIpcCloseMemHandle(address), cudaErrorInvalidValue,
                     cudaErrorMapBufferObjectFailed, cudaErrorNotSupported);
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  });

  scenario.run(30s);
}
