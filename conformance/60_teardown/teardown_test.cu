// Both sides release everything in order, and nothing may be left. Mirror of
// samples/60_teardown.
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;
using PointerData = cudaMemPoolPtrExportData;

constexpr size_t kBytes = 2 << 20;
constexpr size_t kSmall = 4 << 10;    // a part of what the driver allocates
constexpr size_t kLarge = 256 << 20;  // far more than anything else uses
constexpr int kCycles = 200;
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;
constexpr unsigned kEvent = cudaEventInterprocess | cudaEventDisableTiming;
constexpr unsigned kThreads = 8;
constexpr unsigned kOpensOfAThread = 1000;
constexpr int kRaces = 40;
constexpr int kImporters = 3;

// The two sides of many cycles; each cycle must leave nothing. Each side
// creates the objects that all cycles use, and returns the function for one
// cycle.
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

// A second thread of a role. run() calls a function in this thread and waits
// until the function has returned.
class SecondThread {
 public:
  ~SecondThread() {
    run(nullptr);
    thread_.join();
  }
  void run(std::function<void()> work) {
    std::unique_lock lock(mutex_);
    work_ = std::move(work);
    is_due_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !is_due_; });
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (bool goes_on = true; goes_on; changed_.notify_all()) {
      changed_.wait(lock, [this] { return is_due_; });
      goes_on = work_ != nullptr;
      try {
        if (goes_on) work_();
      } catch (...) {
        failed_ = std::current_exception();
      }
      is_due_ = false;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool is_due_ = false;
  std::exception_ptr failed_;
  std::thread thread_{[this] { serve(); }};
};

// Writes the number of the cycle into the memory that the other side reads.
void write_number(void* memory, int number) {
  CALL(cudaMemcpy(memory, &number, sizeof number, cudaMemcpyDefault));
  CALL(cudaDeviceSynchronize());  // a small copy may return early
}

// Frees by one of the two functions of an API.
template <class Api>
void release(Api api, AsyncBuffer& buffer, bool async) {
  void* const memory = std::exchange(buffer.data, nullptr);
  if (async)
    CALL(api.free_async(memory, nullptr));
  else
    CALL(api.mem_free(memory));
}

void expect_number(const void* memory, int number) {
  int seen = -1;
  CALL(cudaMemcpy(&seen, memory, sizeof seen, cudaMemcpyDefault));
  EXPECT_EQ(seen, number);
}

}  // namespace

// --- in order ---------------------------------------------------------------

TEST(Teardown, OrderedMemoryLeavesNothing) {
  covers("LIFE-01");
  needs(gpus(1), legacy_memory, alone);
  both_leave_nothing(
      [](Role& me) {
        return [&me](int number) {
          DeviceBuffer buffer(kBytes, DeviceBuffer::Fresh::kUnwritten);
          write_number(buffer.data, number);
          me.send("handle", buffer.legacy_handle());
          me.send("handle by the driver API", handle_of(DriverApi{}, buffer));
          DeviceBuffer small(kSmall, DeviceBuffer::Fresh::kUnwritten);
          write_number(small.data, -number);
          me.send("handle of small memory", small.legacy_handle());
          // An open may take over what an export has taken.
          DeviceBuffer unopened(kBytes, DeviceBuffer::Fresh::kUnwritten);
          unopened.legacy_handle();
          unopened.free();
          me.wait("closed");
          small.free();
          if (number % 2 == 0)
            buffer.free();
          else
            CALL(DriverApi::mem_free(std::exchange(buffer.data, nullptr)));
        };
      },
      [](Role& me) {
        const auto other = std::make_shared<SecondThread>();
        return [&me, other](int number) {
          const auto handle = me.receive<Handle>("handle");
          void* none = nullptr;
          EXPECT_NE(cudaIpcOpenMemHandle(&none, Handle{}, kLazy), cudaSuccess);
          cudaGetLastError();
          {
            LegacyMapping mapping(handle, kBytes), again(handle, kBytes);
            expect_number(mapping.data, number);
            mapping.close();
            other->run([&] { again.close(); });
          }
          // Each API closes only its own opens, so a leak of one API stays
          // visible.
          const auto same = me.receive<Handle>("handle by the driver API");
          MappingBy mapping(DriverApi{}, same, kBytes),
              again(DriverApi{}, same, kBytes);
          expect_number(mapping.data, number);
          mapping.close();
          other->run([&] { again.close(); });
          {
            LegacyMapping small(me.receive<Handle>("handle of small memory"),
                                kSmall);
            expect_number(small.data, -number);
            small.close();
          }
          me.signal("closed");
        };
      });
}

TEST(Teardown, MemoryOfManyImportersLeavesNothing) {
  covers("LIFE-01");
  needs(gpus(1), legacy_memory, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    DeviceBuffer buffer(kLarge, DeviceBuffer::Fresh::kUnwritten);
    Words(buffer.data, kBytes).fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait("opened", kImporters);
    const size_t before = free_memory();  // with the importers' contexts
    me.signal("all have opened");
    me.wait("closed", kImporters);
    buffer.free();
    EXPECT_TRUE(returned(before, kLarge));
    me.signal("freed");
  });
  scenario.roles("importer", kImporters, [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kLarge);
    EXPECT_TRUE(kernel_reads(Words(mapping.data, kBytes), pattern("exporter")));
    me.signal("opened");
    me.wait("all have opened");
    mapping.close();
    me.signal("closed");
    me.wait("freed");  // keeps its context
  });
  scenario.run(20s);
}

TEST(Teardown, ChunkOfManyImportersLeavesNothing) {
  covers("LIFE-01");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    Chunk chunk = Chunk::create(kLarge);
    Mapping mapping(chunk, kLarge);
    Words(mapping.data, kBytes).fill(pattern("exporter"));
    for (int i = 0; i < kImporters; ++i)
      me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("mapped", kImporters);
    const size_t before = free_memory();  // with the importers' contexts
    me.signal("all have mapped");
    me.wait("released", kImporters);
    mapping.unmap();
    chunk.release();
    EXPECT_TRUE(returned(before, kLarge));
    me.signal("freed");
  });
  scenario.roles("importer", kImporters, [](Role& me) {
    {
      Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
      const Mapping mapping(chunk, kLarge);
      EXPECT_TRUE(
          kernel_reads(Words(mapping.data, kBytes), pattern("exporter")));
      me.signal("mapped");
      me.wait("all have mapped");
    }
    me.signal("released");
    me.wait("freed");  // keeps its context
  });
  scenario.run(20s);
}

TEST(Teardown, PoolMemoryOfManyImportersLeavesNothing) {
  covers("LIFE-01");
  needs(gpus(1), pool_fd, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    Pool pool(shareable());
    AsyncBuffer buffer(pool, kLarge);
    Words(buffer.data, kBytes).fill(pattern("exporter"));
    for (int i = 0; i < kImporters; ++i)
      me.send_descriptor("pool", pool.exported().get());
    me.send("pointer", buffer.exported());
    me.wait("imported", kImporters);
    const size_t before = free_memory();  // with the importers' contexts
    me.signal("all have imported");
    me.wait("freed", kImporters);
    buffer.free();
    CALL(cudaDeviceSynchronize());
    pool.destroy();
    EXPECT_TRUE(returned(before, kLarge));
    me.signal("destroyed");
  });
  scenario.roles("importer", kImporters, [](Role& me) {
    Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kLarge);
    EXPECT_TRUE(kernel_reads(Words(buffer.data, kBytes), pattern("exporter")));
    me.signal("imported");
    me.wait("all have imported");
    buffer.free();
    CALL(cudaDeviceSynchronize());
    pool.destroy();
    me.signal("freed");
    me.wait("destroyed");  // keeps its context
  });
  scenario.run(20s);
}

TEST(Teardown, OrderedEventsLeaveNothing) {
  covers("LIFE-01");
  needs(gpus(1), legacy_events, alone);
  both_leave_nothing(
      [](Role& me) {
        const auto stream = std::make_shared<Stream>();
        return [&me, stream](int number) {
          SharedEvent event(number % 2 == 0 ? kEvent
                                            : kEvent | cudaEventBlockingSync);
          CALL(cudaEventRecord(event, *stream));
          me.send("handle", event.handle());
          Sentinel<cudaIpcEventHandle_t> same;
          CALL(DriverApi::ipc_get_event_handle(same.out(), event));
          me.send("handle by the driver API", same.result());
          SharedEvent unopened;
          unopened.handle();
          unopened.destroy();
          me.wait("destroyed");
          // The last record is the importer's.
          CALL(cudaStreamWaitEvent(*stream, event, 0));
          CALL(cudaEventSynchronize(event));
          event.destroy();
        };
      },
      [](Role& me) {
        const auto other = std::make_shared<SecondThread>();
        const auto stream = std::make_shared<Stream>();
        return [&me, other, stream](int) {
          cudaEvent_t none = nullptr;
          EXPECT_NE(cudaIpcOpenEventHandle(&none, {}), cudaSuccess);
          cudaGetLastError();
          SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
          CALL(cudaEventSynchronize(event));
          CALL(cudaStreamWaitEvent(*stream, event, 0));
          CALL(cudaEventRecord(event, *stream));
          CALL(cudaEventSynchronize(event));
          other->run([&] { event.destroy(); });
          Sentinel<cudaEvent_t> same;
          CALL(DriverApi::ipc_open_event_handle(
              same.out(),
              me.receive<cudaIpcEventHandle_t>("handle by the driver API")));
          CALL(DriverApi::event_synchronize(same.result()));
          other->run([&] { CALL(DriverApi::event_destroy(same.value)); });
          me.signal("destroyed");
        };
      });
}

TEST(Teardown, OrderedChunksLeaveNothing) {
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
        const auto other = std::make_shared<SecondThread>();
        return [&me, other](int number) {
          {
            const Descriptor descriptor = me.receive_descriptor("descriptor");
            Chunk::import(descriptor).release();  // it is never mapped
            Chunk chunk = Chunk::import(descriptor);
            Mapping mapping(chunk, granule());
            expect_number(mapping.data, number);
            if (number % 2 == 0) mapping.unmap();
            other->run([&] { chunk.release(); });
          }
          me.signal("released");
        };
      });
}

TEST(Teardown, OrderedPoolMemoryLeavesNothing) {
  covers("LIFE-01");
  needs(gpus(1), pool_fd, alone);
  both_leave_nothing(
      [](Role& me) {
        const auto pool = std::make_shared<Pool>(shareable());
        me.send_descriptor("pool", pool->exported().get());
        return [&me, pool](int number) {
          by_both_apis([&](auto api) {
            AsyncBuffer buffer = allocated(api, *pool, kBytes);
            CALL(cudaStreamSynchronize(nullptr));
            write_number(buffer.data, number);
            me.send("pointer", exported(api, buffer));
            me.wait("freed");
            release(api, buffer, number % 2 != 0);
            CALL(cudaStreamSynchronize(nullptr));
          });
        };
      },
      [](Role& me) {
        const auto pool = std::make_shared<Pool>(me.receive_descriptor("pool"));
        const auto other = std::make_shared<SecondThread>();
        return [&me, pool, other](int number) {
          by_both_apis([&](auto api) {
            AsyncBuffer buffer = imported(
                api, *pool, me.receive<PointerData>("pointer"), kBytes);
            expect_number(buffer.data, number);
            other->run([&] {
              CALL(cudaFree(nullptr));  // a context for the driver API
              release(api, buffer, number % 2 != 0);
            });
            CALL(cudaStreamSynchronize(nullptr));
            me.signal("freed");
          });
        };
      });
}

TEST(Teardown, OrderedPoolsLeaveNothing) {
  covers("LIFE-01");
  needs(gpus(1), pool_fd, alone);
  both_leave_nothing(
      [](Role& me) {
        return [&me](int number) {
          by_both_apis([&](auto api) {
            Pool pool = created(api, shareable());
            me.send_descriptor("pool", exported(api, pool).get());
            AsyncBuffer buffer = allocated(api, pool, kBytes);
            CALL(cudaStreamSynchronize(nullptr));
            me.send("pointer", exported(api, buffer));
            me.wait("destroyed");
            release(api, buffer, number % 2 != 0);
            CALL(cudaStreamSynchronize(nullptr));
            CALL(api.mem_pool_destroy(pool.release()));
          });
        };
      },
      [](Role& me) {
        const auto other = std::make_shared<SecondThread>();
        return [&me, other](int number) {
          by_both_apis([&](auto api) {
            const Descriptor descriptor = me.receive_descriptor("pool");
            Pool unused = imported(api, descriptor);
            CALL(api.mem_pool_destroy(unused.release()));
            Pool pool = imported(api, descriptor);
            AsyncBuffer buffer =
                imported(api, pool, me.receive<PointerData>("pointer"), kBytes);
            other->run([&] {
              CALL(cudaFree(nullptr));  // a context for the driver API
              release(api, buffer, number % 2 != 0);
            });
            CALL(cudaStreamSynchronize(nullptr));
            CALL(api.mem_pool_destroy(pool.release()));
            me.signal("destroyed");
          });
        };
      });
}

// Every correct program has this barrier: the exporter frees after the last
// importer has closed. The importers close in any order and at any time.
TEST(Teardown, FreeingWaitsForEveryImporter) {
  covers("LIFE-14");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    DeviceBuffer buffer(kBytes), second(kBytes);
    for (const DeviceBuffer* one : {&buffer, &second})
      one->fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.send("second handle", handle_of(DriverApi{}, second));
    for (int closed = 1; closed <= kImporters; ++closed) {
      me.wait("closed");
      for (const DeviceBuffer* one : {&buffer, &second}) {
        EXPECT_TRUE(kernel_reads(*one, pattern("exporter")));
        one->fill(pattern("exporter"));
      }
    }
    EXPECT_SUCCESS(cudaFree(std::exchange(buffer.data, nullptr)));
    EXPECT_SUCCESS(DriverApi::mem_free(std::exchange(second.data, nullptr)));
    EXPECT_TRUE(context_is_usable());
  });
  std::vector<std::string> closes;
  for (int i = 0; i < kImporters; ++i)
    closes.push_back("close " + std::to_string(i));
  scenario.roles("importer", kImporters, [=](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    MappingBy second(DriverApi{}, me.receive<Handle>("second handle"), kBytes);
    me.in_order({{closes[static_cast<size_t>(me.index())], [&] {
                    for (const Words& one : {Words(mapping), Words(second)}) {
                      EXPECT_READS(one, pattern("exporter"));
                    }
                    EXPECT_SUCCESS(cudaIpcCloseMemHandle(
                        std::exchange(mapping.data, nullptr)));
                    EXPECT_SUCCESS(DriverApi::ipc_close_mem_handle(
                        std::exchange(second.data, nullptr)));
                    me.signal("closed");
                  }}});
  });
  scenario.every_order(closes);
  scenario.run(20s);
}

// --- one process ------------------------------------------------------------

namespace {

// What cudaMalloc returns in a child of fork(2) that does not call exec(3), or
// how the child failed to answer.
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

// Starts a child with fork(2) and waits for its end. The child makes no CUDA
// call. It runs another program, or ends at once: by exit(3), which also calls
// the handlers that CUDA has set up, or by _exit(2).
static void has_a_child_that(Role& me, const std::string& does) {
  std::fflush(nullptr);  // the child would write it again
  const pid_t child = fork();
  if (child == 0) {
    if (does == "runs a program") execl("/bin/true", "true", nullptr);
    if (does == "calls exit") std::exit(0);
    _exit(0);
  }
  pollfd end{static_cast<int>(syscall(SYS_pidfd_open, child, 0)), POLLIN, 0};
  const Descriptor of_child(end.fd);
  if (poll(&end, 1, 5000) == 1) {
    waitpid(child, nullptr, 0);
    return;
  }
  me.observe("a child of fork that " + does + " does not end within 5 s");
  if (child > 0) kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// The process that makes children has memory and an event of another process
// open, and lends its own.
static void shares_and_has_children(Role& me) {
  LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
  SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
  const DeviceBuffer own(kBytes);
  own.fill(pattern("own"));
  me.send("handle from before the fork", own.legacy_handle());
  me.observe("cudaMalloc in a child that fork made of a process with CUDA: " +
             answer_in_a_forked_child());
  for (const char* does : {"calls _exit", "calls exit", "runs a program"}) {
    SCOPED_TRACE(std::string("a child that ") + does);
    has_a_child_that(me, does);
    EXPECT_READS(mapping, pattern("exporter"));
    EXPECT_TRUE(kernel_reads(own, pattern("own")));
  }
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  LegacyMapping later(me.receive<Handle>("second handle"), kBytes);
  EXPECT_TRUE(kernel_reads(later, pattern("second"))) << "opened by the parent";
  later.close();
  me.send("handle from after the fork", own.legacy_handle());
  me.wait("opened");
  mapping.fill(pattern("importer"));
  EXPECT_TRUE(context_is_usable());
  event.destroy();
  mapping.close();
  me.signal("closed");
}

TEST(Teardown, AForkedChildHasNoCuda) {
  covers("LIFE-10");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes), second(kBytes);
    buffer.fill(pattern("exporter"));
    second.fill(pattern("second"));
    const SharedEvent event;
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    me.send("event", event.handle());
    me.send("handle", buffer.legacy_handle());
    me.send("second handle", second.legacy_handle());
    const auto before = me.receive<Handle>("handle from before the fork");
    const auto after = me.receive<Handle>("handle from after the fork");
    latch.release();
    EXPECT_TRUE(passes(stream));
    for (const Handle& each : {before, after}) {
      LegacyMapping lent(each, kBytes);
      EXPECT_TRUE(kernel_reads(lent, pattern("own")));
      lent.close();
    }
    me.signal("opened");
    me.wait("closed");
    EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
  });
  scenario.role("importer", shares_and_has_children);
  scenario.run(40s);
}

TEST(Teardown, AParentImportsAfterAFork) {
  covers("LIFE-10");
  needs(gpus(1), vmm_fd);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    mapping.fill(pattern("exporter"));
    for (int imports = 0; imports < 2; ++imports)
      me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("written");
    EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
  });
  scenario.role("importer", [](Role& me) {
    const Mapping mapping(Chunk::import(me.receive_descriptor("descriptor")),
                          granule());
    has_a_child_that(me, "calls exit");
    const Mapping later(Chunk::import(me.receive_descriptor("descriptor")),
                        granule());
    for (const Mapping* each : {&mapping, &later}) {
      EXPECT_READS(*each, pattern("exporter"));
    }
    later.fill(pattern("importer"));
    me.signal("written");
  });
  scenario.run(20s);
}

namespace {

// Opens and closes the handles in turn; all of them are open already. Returns
// what went wrong; empty if nothing did.
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

// Calls a function in kThreads threads at the same time. Each thread gets its
// number.
void at_once(const std::function<void(unsigned)>& step) {
  std::atomic<unsigned> ready{0};
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < kThreads; ++number)
    threads.emplace_back([&, number] {
      cudaSetDevice(0);  // a thread's first call takes longer
      for (++ready; ready < kThreads;) std::this_thread::yield();
      step(number);
    });
  for (std::thread& thread : threads) thread.join();
}

// Threads open one handle that is not open yet, all at once. In half of the
// rounds they also close it. Returns how many opens were refused.
unsigned race_for_the_first_open(const Handle& handle, const Pattern& written) {
  unsigned refused = 0;
  for (int round = 0; round < kRaces; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const bool closes = round % 2 != 0;
    std::vector<void*> opened(kThreads, nullptr);
    std::vector<cudaError_t> opens(kThreads, cudaErrorUnknown), copies(opens),
        ends(kThreads, cudaSuccess);
    std::vector<uint32_t> words(kThreads, 0);
    note_call("cudaIpcOpenMemHandle in threads");
    at_once([&](unsigned i) {
      opens[i] = cudaIpcOpenMemHandle(&opened[i], handle, kLazy);
      if (opens[i] != cudaSuccess) return;
      copies[i] =
          cudaMemcpy(&words[i], opened[i], sizeof words[i], cudaMemcpyDefault);
      if (closes) ends[i] = cudaIpcCloseMemHandle(opened[i]);
    });
    const void* mapped = nullptr;
    for (unsigned i = 0; i < kThreads; ++i) {
      if (opens[i] != cudaSuccess) {
        EXPECT_EQ(opens[i], cudaErrorAlreadyMapped);
        ++refused;
        continue;
      }
      EXPECT_EQ(copies[i], cudaSuccess);
      EXPECT_EQ(words[i], written.at(0));
      EXPECT_EQ(ends[i], cudaSuccess);
      if (!closes) {
        EXPECT_EQ(opened[i], mapped == nullptr ? opened[i] : mapped);
        EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened[i]));
      }
      mapped = opened[i];
    }
    cudaPointerAttributes attributes{};
    EXPECT_SUCCESS(cudaPointerGetAttributes(&attributes, mapped));
    EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
    if (mapped == nullptr || testing::Test::HasFailure()) break;
  }
  return refused;
}

// Threads export different memory at once.
std::vector<Handle> exported_at_once(
    const std::vector<std::unique_ptr<DeviceBuffer>>& buffers) {
  std::vector<Handle> handles(kThreads);
  std::vector<cudaError_t> codes(kThreads, cudaErrorUnknown);
  note_call("cudaIpcGetMemHandle in threads");
  at_once([&](unsigned i) {
    for (int round = 0; round < kRaces; ++round)
      codes[i] = cudaIpcGetMemHandle(&handles[i], buffers[i]->data);
  });
  EXPECT_EQ(codes, std::vector<cudaError_t>(kThreads, cudaSuccess));
  return handles;
}

}  // namespace

TEST(Teardown, ThreadsThatOpenAndCloseKeepTheCount) {
  covers("LIFE-13");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    for (unsigned i = 0; i < kThreads; ++i) {
      buffers.push_back(std::make_unique<DeviceBuffer>(kBytes));
      buffers.back()->fill(pattern("buffer " + std::to_string(i)));
    }
    for (const Handle& handle : exported_at_once(buffers))
      me.send("handle", handle);
    me.wait("closed");
  });

  scenario.role("importer", [](Role& me) {
    std::vector<Handle> handles;
    std::vector<void*> addresses;
    for (unsigned i = 0; i < kThreads; ++i)
      handles.push_back(me.receive<Handle>("handle"));
    for (const Handle& handle : handles)
      addresses.push_back(open_handle(handle));
    std::vector<std::string> found(kThreads, "did not run");
    std::vector<std::thread> threads;
    note_call("cudaIpcOpenMemHandle and cudaIpcCloseMemHandle in threads");
    for (std::string& mine : found)
      threads.emplace_back(
          [&] { mine = open_and_close_many(handles, addresses); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(found, std::vector<std::string>(kThreads, ""));

    for (unsigned i = 0; i < kThreads; ++i) {
      void* const address = addresses[i];
      const Words words(address, kBytes);
      const Pattern written = pattern("buffer " + std::to_string(i));
      EXPECT_TRUE(kernel_reads(words, written)) << "one open is left";
      EXPECT_SUCCESS(cudaIpcCloseMemHandle(address));
      cudaPointerAttributes attributes{};
      CALL(cudaPointerGetAttributes(&attributes, address));
      EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered) << "still open";
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  });

  scenario.run(30s);
}

TEST(Teardown, ThreadsRaceForTheFirstOpen) {
  covers("LIFE-13");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(context_is_usable());
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto handle = me.receive<Handle>("handle");
              if (race_for_the_first_open(handle, pattern("exporter")) != 0)
                me.observe("a first open is refused while another thread maps");
              LegacyMapping mapping(handle, kBytes);
              EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
              mapping.close();
              EXPECT_TRUE(context_is_usable());
            })
      .may_end_by(SIGSEGV)
      .in_new_process();  // its state at the end is unknown
  scenario.run(30s);
  if (scenario.ended("importer").signal != 0)
    observe("a process ends by SIGSEGV at first opens in threads");
}

TEST(Teardown, EveryFirstOpenInThreadsSucceeds) {
  covers("LIFE-16");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto handle = me.receive<Handle>("handle");
              const unsigned refused =
                  race_for_the_first_open(handle, pattern("exporter"));
              EXPECT_TRUE(refused == 0) << refused << " opens are refused";
            })
      .may_end_by(SIGSEGV)
      .in_new_process();  // its state at the end is unknown
  scenario.run(30s);
  const Ended& importer = scenario.ended("importer");
  if (importer.signal != 0)
    ADD_FAILURE() << "the importer died of " << importer.last_call;
}
