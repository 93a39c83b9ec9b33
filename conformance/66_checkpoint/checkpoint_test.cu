// A process is locked, checkpointed, restored and unlocked by another process.
// Mirror of samples/66_checkpoint.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstring>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/endpoint.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr size_t kLarge = 512 << 20;
constexpr unsigned kPatience = 5000;  // ms, for a lock that must succeed

CUprocessState state_of(pid_t pid) {
  Sentinel<CUprocessState> state;
  CALL(NEWER(cuCheckpointProcessGetState)(pid, state.out()));
  return state.result();
}

std::string name_of(CUprocessState state) {
  switch (state) {
    case CU_PROCESS_STATE_RUNNING:
      return "running";
    case CU_PROCESS_STATE_LOCKED:
      return "locked";
    case CU_PROCESS_STATE_CHECKPOINTED:
      return "checkpointed";
    case CU_PROCESS_STATE_FAILED:
      return "failed";
    default:
      return "state " + std::to_string(state);
  }
}

CUresult lock(pid_t pid, unsigned timeout_ms = kPatience) {
  CUcheckpointLockArgs arguments{};
  arguments.timeoutMs = timeout_ms;
  return NOTED(NEWER(cuCheckpointProcessLock)(pid, &arguments));
}

CUresult checkpoint(pid_t pid) {
  CUcheckpointCheckpointArgs arguments{};
  return NOTED(NEWER(cuCheckpointProcessCheckpoint)(pid, &arguments));
}

CUresult restore(pid_t pid) {
  CUcheckpointRestoreArgs arguments{};
  return NOTED(NEWER(cuCheckpointProcessRestore)(pid, &arguments));
}

CUresult unlock(pid_t pid) {
  CUcheckpointUnlockArgs arguments{};
  return NOTED(NEWER(cuCheckpointProcessUnlock)(pid, &arguments));
}

// A call that changes the state, and the state that it promises.
struct Step {
  const char* name;
  CUresult (*make)(pid_t);
  CUprocessState from, to;
};

constexpr Step kSteps[] = {
    {"lock", [](pid_t pid) { return lock(pid); }, CU_PROCESS_STATE_RUNNING,
     CU_PROCESS_STATE_LOCKED},
    {"checkpoint", checkpoint, CU_PROCESS_STATE_LOCKED,
     CU_PROCESS_STATE_CHECKPOINTED},
    {"restore", restore, CU_PROCESS_STATE_CHECKPOINTED,
     CU_PROCESS_STATE_LOCKED},
    {"unlock", unlock, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING},
};

void take(const Step& step, pid_t pid) {
  EXPECT_CODE(CUDA_SUCCESS, step.make(pid)) << step.name;
  EXPECT_EQ(name_of(state_of(pid)), name_of(step.to)) << step.name;
}

// Brings a process from one of the three states into another one.
void bring(pid_t pid, CUprocessState wanted) {
  for (int i = 0; i < 3 && state_of(pid) != wanted; ++i) {
    const CUprocessState now = state_of(pid);
    const bool back =
        now == CU_PROCESS_STATE_LOCKED && wanted == CU_PROCESS_STATE_RUNNING;
    for (const Step& step : kSteps)
      if (step.from == now && (step.to == CU_PROCESS_STATE_RUNNING) == back) {
        take(step, pid);
        break;
      }
  }
}

// A call in a thread of its own.
template <class Call>
auto in_background(Call call) {
  return std::async(std::launch::async, std::move(call));
}

// Does the call still wait after this time? Uses no CUDA: in a locked process
// such a call would not return.
template <class Code>
bool waits(const std::future<Code>& call,
           std::chrono::milliseconds limit = 500ms) {
  return call.wait_for(limit) == std::future_status::timeout;
}

// The role that controls others. It has a context of its own.
void starts_operator() {
  CALL(cudaFree(nullptr));
  EXPECT_EQ(name_of(state_of(getpid())), "running");
}

}  // namespace

TEST(Checkpoint, TheStatesFollowTheCalls) {
  covers("CKPT-01");
  needs(gpus(1), checkpoints);
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("worker"));
    me.send("pid", getpid());
    me.wait("unlocked");
    EXPECT_READS(buffer, pattern("worker"));
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    EXPECT_EQ(name_of(state_of(pid)), "running");
    for (int round = 0; round < 2; ++round)
      for (const Step& step : kSteps) take(step, pid);
    // A process may also be unlocked without a checkpoint.
    take(kSteps[0], pid);
    take(kSteps[3], pid);
    me.signal("unlocked");
  });
  scenario.run(30s);
}

TEST(Checkpoint, CallsOfALockedProcessWait) {
  covers("CKPT-02");
  needs(gpus(1), checkpoints);
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes), filled(kBytes);
    buffer.fill(pattern("worker"));
    std::vector<uint32_t> copied(buffer.count);
    void* allocated = nullptr;
    me.send("pid", getpid());
    me.wait("locked");
    note_call("calls in three threads");
    auto allocates =
        in_background([&] { return cudaMalloc(&allocated, kBytes); });
    auto copies = in_background([&] {
      return cudaMemcpy(copied.data(), buffer.data, kBytes, cudaMemcpyDefault);
    });
    auto launches = in_background([&] {
      filled.queue_fill(pattern("launched"), nullptr);
      return cudaDeviceSynchronize();
    });
    const auto expect_all_wait = [&] {
      EXPECT_TRUE(waits(allocates)) << "cudaMalloc";
      EXPECT_TRUE(waits(copies, 0ms)) << "cudaMemcpy";
      EXPECT_TRUE(waits(launches, 0ms)) << "a launch";
    };
    expect_all_wait();
    me.signal("all wait");
    me.wait("restored");
    expect_all_wait();
    me.signal("all wait again");
    EXPECT_EQ(allocates.get(), cudaSuccess);
    EXPECT_EQ(copies.get(), cudaSuccess);
    EXPECT_EQ(launches.get(), cudaSuccess);
    for (const size_t at : {size_t{0}, copied.size() - 1})
      EXPECT_EQ(copied[at], pattern("worker").at(at));
    EXPECT_READS(filled, pattern("launched"));
    Words(allocated, kBytes).fill(pattern("allocated"));
    EXPECT_READS(Words(allocated, kBytes), pattern("allocated"));
    CALL(cudaFree(allocated));
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    take(kSteps[0], pid);
    me.signal("locked");
    me.wait("all wait");
    take(kSteps[1], pid);
    take(kSteps[2], pid);
    me.signal("restored");
    me.wait("all wait again");
    take(kSteps[3], pid);
  });
  scenario.run(30s);
}

TEST(Checkpoint, MemoryIsAsBefore) {
  covers("CKPT-03");
  needs(gpus(1), checkpoints, vmm, pools);
  constexpr int kRounds = 3;
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes), small(4096);
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    const Stream stream;
    const AsyncBuffer pooled(kBytes, stream);
    const PinnedBuffer pinned(kBytes);
    const std::pair<const char*, Words> all[] = {{"cudaMalloc", buffer},
                                                 {"small", small},
                                                 {"cuMemCreate", mapping},
                                                 {"cudaMallocAsync", pooled}};
    for (int round = 0; round < kRounds; ++round) {
      SCOPED_TRACE(round);
      const std::string in_round = " in round " + std::to_string(round);
      host_writes(pinned, pattern("pinned" + in_round));
      // The last kernels may still run when the process is locked.
      for (const auto& [name, words] : all) {
        words.fill(pattern("overwritten"));
        words.queue_fill(pattern(name + in_round), stream);
      }
      me.send("pid", getpid());
      me.wait("checkpointed");
      EXPECT_TRUE(host_reads(pinned, pattern("pinned" + in_round)));
      host_writes(pinned, pattern("written meanwhile"));
      me.signal("host memory used");
      me.wait("unlocked");
      EXPECT_TRUE(passes(stream));
      for (const auto& [name, words] : all)
        EXPECT_READS(words, pattern(name + in_round));
      EXPECT_TRUE(copy_reads(pinned, pattern("written meanwhile")));
      EXPECT_TRUE(context_is_usable());
    }
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    for (int round = 0; round < kRounds; ++round) {
      const auto pid = me.receive<pid_t>("pid");
      take(kSteps[0], pid);
      take(kSteps[1], pid);
      me.signal("checkpointed");
      me.wait("host memory used");
      take(kSteps[2], pid);
      take(kSteps[3], pid);
      me.signal("unlocked");
    }
  });
  scenario.run(60s);
}

TEST(Checkpoint, MemoryIsFreeUntilTheRestore) {
  covers("CKPT-04");
  needs(gpus(1), checkpoints, vmm, alone);
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kLarge, DeviceBuffer::Fresh::kUnwritten);
    const Chunk chunk = Chunk::create(kLarge);
    const Mapping mapping(chunk, kLarge);
    const Words end(buffer.data + buffer.count - kBytes / sizeof(uint32_t),
                    kBytes);
    end.fill(pattern("worker"));
    me.send("pid", getpid());
    me.wait("unlocked");
    EXPECT_READS(end, pattern("worker"));
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    const size_t before = free_memory();
    take(kSteps[0], pid);
    take(kSteps[1], pid);
    EXPECT_TRUE(returned(before, 2 * kLarge)) << "while checkpointed";
    {  // other programs can use it
      const DeviceBuffer own(kLarge, DeviceBuffer::Fresh::kUnwritten);
      const Words begin(own.data, kBytes);
      begin.fill(pattern("operator"));
      EXPECT_READS(begin, pattern("operator"));
    }
    take(kSteps[2], pid);
    EXPECT_LT(free_memory(), before + kLarge) << "after the restore";
    take(kSteps[3], pid);
    me.signal("unlocked");
  });
  scenario.run(60s);
}

TEST(Checkpoint, ATimeoutLeavesTheProcessRunning) {
  covers("CKPT-05");
  needs(gpus(1), checkpoints);
  constexpr unsigned kTimeout = 300;  // ms
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("worker"));
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    buffer.queue_fill(pattern("held"), stream);
    auto synchronizes =
        in_background([&] { return cudaStreamSynchronize(stream); });
    EXPECT_TRUE(waits(synchronizes));
    me.send("pid", getpid());
    me.wait("timed out");
    void* later = nullptr;
    CALL(cudaMalloc(&later, kBytes));  // returns only if the process runs
    me.signal("runs");
    latch.release();
    EXPECT_EQ(synchronizes.get(), cudaSuccess);
    CALL(cudaFree(later));
    me.signal("idle");
    me.wait("unlocked");
    EXPECT_READS(buffer, pattern("held"));
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    const CUresult code = lock(pid, kTimeout);
    if (code == CUDA_SUCCESS) {
      me.observe("the lock does not wait for work that has been submitted");
      EXPECT_EQ(name_of(state_of(pid)), "locked");
      take(kSteps[3], pid);
    } else {
      EXPECT_TRUE(
          refused(code, "cuCheckpointProcessLock", {CUDA_ERROR_NOT_READY}));
      EXPECT_EQ(name_of(state_of(pid)), "running");
    }
    me.signal("timed out");
    me.wait("runs");
    me.wait("idle");
    take(kSteps[0], pid);
    take(kSteps[3], pid);
    me.signal("unlocked");
  });
  scenario.run(30s);
}

TEST(Checkpoint, TheRestoreThreadIsAThreadOfTheProcess) {
  covers("CKPT-06");
  needs(gpus(1), checkpoints);
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    me.send("pid", getpid());
    const auto thread = me.receive<int>("thread");
    EXPECT_EQ(
        access(("/proc/self/task/" + std::to_string(thread)).c_str(), F_OK), 0)
        << thread;
    EXPECT_TRUE(context_is_usable());
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    Sentinel<int> thread;
    EXPECT_SUCCESS(
        NEWER(cuCheckpointProcessGetRestoreThreadId)(pid, thread.out()));
    me.send("thread", thread.result());
  });
  scenario.run(20s);
}

TEST(Checkpoint, CallsInTheWrongStateHarmNothing) {
  covers("CKPT-07");
  needs(gpus(1), checkpoints);
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("worker"));
    me.send("pid", getpid());
    me.wait("unlocked");
    EXPECT_READS(buffer, pattern("worker"));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    for (const CUprocessState state :
         {CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED,
          CU_PROCESS_STATE_CHECKPOINTED}) {
      for (const Step& step : kSteps) {
        if (step.from == state) continue;
        bring(pid, state);
        const std::string what =
            std::string(step.name) + " of a process that is " + name_of(state);
        SCOPED_TRACE(what);
        const CUresult code = step.make(pid);
        const CUprocessState now = state_of(pid);
        me.observe(what + ": " + ipclab::name_of(code));
        EXPECT_EQ(name_of(now),
                  name_of(code == CUDA_SUCCESS ? step.to : state));
      }
    }
    bring(pid, CU_PROCESS_STATE_RUNNING);
    me.signal("unlocked");
  });
  scenario.run(60s);
}

TEST(Checkpoint, OtherNumbersHarmNothing) {
  covers("CKPT-08");
  needs(gpus(1), checkpoints);
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("worker"));
    me.send("pid", getpid());
    me.wait("tried");
    EXPECT_READS(buffer, pattern("worker"));
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    const std::pair<const char*, pid_t> numbers[] = {
        {"0", 0},
        {"-1", -1},
        {"a number that no process has", INT_MAX},
        {"a process without CUDA", getppid()}};
    for (const auto& [what, number] : numbers) {
      SCOPED_TRACE(what);
      Sentinel<CUprocessState> state;
      const CUresult asked =
          NOTED(NEWER(cuCheckpointProcessGetState)(number, state.out()));
      if (asked == CUDA_SUCCESS) EXPECT_TRUE(state.touched());
      std::string codes = "state " + ipclab::name_of(asked);
      for (const Step& step : kSteps)
        codes += std::string(", ") + step.name + " " +
                 ipclab::name_of(step.make(number));
      me.observe(std::string(what) + ": " + codes);
      EXPECT_EQ(name_of(state_of(pid)), "running") << "the worker";
      EXPECT_TRUE(context_is_usable());
    }
    me.signal("tried");
  });
  scenario.run(60s);
}

namespace {

// What the operator does with a process that shares memory. Returns whether the
// process can go on.
bool tries_to_checkpoint(Role& me, const std::string& which, pid_t pid) {
  SCOPED_TRACE(which);
  const CUresult locked = lock(pid);
  me.observe("lock of the " + which + ": " + ipclab::name_of(locked));
  if (locked != CUDA_SUCCESS) {
    EXPECT_EQ(name_of(state_of(pid)), "running");
    return true;
  }
  const CUresult code = checkpoint(pid);
  const std::string state = name_of(state_of(pid));
  me.observe("checkpoint of the " + which + ": " + ipclab::name_of(code) +
             "; it is " + state);
  if (code == CUDA_SUCCESS) {
    EXPECT_EQ(state, "checkpointed");
    take(kSteps[2], pid);
  } else {
    EXPECT_TRUE(state == "locked" || state == "failed") << state;
    if (state == "failed") return false;
  }
  take(kSteps[3], pid);
  return true;
}

// One side of a test in which both sides share `words`. Each side is the target
// of the operator once, and the other side must not notice. A target that
// cannot go on ends itself, because cuda-checkpoint promises nothing after an
// error. Returns whether the other side still lives.
bool shares(Role& me, const Words& words, const std::string& other) {
  me.send("pid of " + me.name(), getpid());
  bool other_lives = true;
  for (const std::string target : {"importer", "exporter"}) {
    const bool mine = target == me.name();
    const std::string after = " has read after the try with the " + target;
    const bool goes_on = me.receive<bool>("done with the " + target);
    if (!goes_on && !mine) other_lives = false;
    if (goes_on || !mine) {
      EXPECT_READS(words, pattern("both"));
      me.signal(me.name() + after);
    }
    if (other_lives) me.wait(other + after);
    if (!goes_on && mine) me.die(SIGKILL);
  }
  return other_lives;
}

void operates(Role& me) {
  starts_operator();
  for (const std::string target : {"importer", "exporter"}) {
    const auto pid = me.receive<pid_t>("pid of " + target);
    me.send("done with the " + target, tries_to_checkpoint(me, target, pid));
  }
}

}  // namespace

TEST(Checkpoint, ANeighbourOfLegacyMemoryIsNotHarmed) {
  covers("CKPT-09");
  needs(gpus(1), checkpoints, legacy_memory);
  Scenario scenario;
  scenario
      .role("exporter",
            [](Role& me) {
              const DeviceBuffer buffer(kBytes);
              buffer.fill(pattern("both"));
              me.send("handle", buffer.legacy_handle());
              me.wait("open");
              if (shares(me, buffer, "importer")) me.wait("closed");
            })
      .may_end_by(SIGKILL);
  scenario
      .role("importer",
            [](Role& me) {
              LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"),
                                    kBytes);
              me.signal("open");
              shares(me, mapping, "exporter");
              mapping.close();
              me.signal("closed");
            })
      .may_end_by(SIGKILL);
  scenario.role("operator", operates);
  scenario.run(60s);
}

TEST(Checkpoint, ANeighbourOfADescriptorIsNotHarmed) {
  covers("CKPT-09");
  needs(gpus(1), checkpoints, vmm_fd);
  Scenario scenario;
  scenario
      .role("exporter",
            [](Role& me) {
              const Chunk chunk = Chunk::create(granule());
              const Mapping mapping(chunk, granule());
              mapping.fill(pattern("both"));
              me.send_descriptor("chunk", chunk.descriptor().get());
              me.wait("open");
              shares(me, mapping, "importer");
            })
      .may_end_by(SIGKILL);
  scenario
      .role("importer",
            [](Role& me) {
              const Mapping mapping(
                  Chunk::import(me.receive_descriptor("chunk")), granule());
              me.signal("open");
              shares(me, mapping, "exporter");
            })
      .may_end_by(SIGKILL);
  scenario.role("operator", operates);
  scenario.run(60s);
}

TEST(Checkpoint, ANeighbourOfAPoolIsNotHarmed) {
  covers("CKPT-09");
  needs(gpus(1), checkpoints, pool_fd);
  Scenario scenario;
  scenario
      .role("exporter",
            [](Role& me) {
              const Pool pool(shareable());
              const AsyncBuffer buffer(pool, kBytes);
              buffer.fill(pattern("both"));
              me.send_descriptor("pool", pool.exported().get());
              me.send("pointer", buffer.exported());
              me.wait("open");
              if (shares(me, buffer, "importer")) me.wait("closed");
            })
      .may_end_by(SIGKILL);
  scenario
      .role("importer",
            [](Role& me) {
              const Pool pool(me.receive_descriptor("pool"));
              AsyncBuffer buffer(
                  pool, me.receive<cudaMemPoolPtrExportData>("pointer"),
                  kBytes);
              me.signal("open");
              shares(me, buffer, "exporter");
              buffer.free();
              me.signal("closed");
            })
      .may_end_by(SIGKILL);
  scenario.role("operator", operates);
  scenario.run(60s);
}

TEST(Checkpoint, SharingHasEnded) {
  covers("CKPT-10");
  needs(gpus(1), checkpoints, legacy_memory);
  Scenario scenario;
  const auto goes_on = [](Role& me, const DeviceBuffer& own) {
    me.send("pid of " + me.name(), getpid());
    if (!me.receive<bool>("done with the " + me.name())) me.die(SIGKILL);
    EXPECT_READS(own, pattern(me.name()));
  };
  scenario
      .role("exporter",
            [=](Role& me) {
              const DeviceBuffer own(kBytes);
              own.fill(pattern(me.name()));
              DeviceBuffer lent(kBytes);
              me.send("handle", lent.legacy_handle());
              me.wait("closed");
              lent.free();
              goes_on(me, own);
            })
      .may_end_by(SIGKILL);
  scenario
      .role("importer",
            [=](Role& me) {
              const DeviceBuffer own(kBytes);
              own.fill(pattern(me.name()));
              LegacyMapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes)
                  .close();
              me.signal("closed");
              goes_on(me, own);
            })
      .may_end_by(SIGKILL);
  scenario.role("operator", operates);
  scenario.run(60s);
}

TEST(Checkpoint, ASharedEventAlone) {
  covers("CKPT-11");
  needs(gpus(1), checkpoints, legacy_events);
  Scenario scenario;
  const auto goes_on = [](Role& me, SharedEvent& event) {
    me.send("pid of " + me.name(), getpid());
    if (!me.receive<bool>("done with the " + me.name())) me.die(SIGKILL);
    observe_code(me, "cudaEventQuery in the " + me.name() + " afterwards",
                 cudaEventQuery(event));
  };
  scenario
      .role("exporter",
            [=](Role& me) {
              SharedEvent event;
              me.send("event", event.handle());
              me.wait("open");
              goes_on(me, event);
            })
      .may_end_by(SIGKILL);
  scenario
      .role("importer",
            [=](Role& me) {
              CALL(cudaFree(nullptr));
              SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
              me.signal("open");
              goes_on(me, event);
            })
      .may_end_by(SIGKILL);
  scenario.role("operator", operates);
  scenario.run(60s);
}

TEST(Checkpoint, AProcessLocksItself) {
  covers("CKPT-12");
  needs(gpus(1), checkpoints);
  Scenario scenario;
  scenario.role("worker", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("worker"));
    me.observe("it asks for its own state: " + name_of(state_of(getpid())));
    auto locks = in_background([] { return lock(getpid()); });
    me.observe(waits(locks) ? "the lock does not return at once"
                            : "the lock returns at once");
    me.send("pid", getpid());  // if it cannot unlock itself, another can
    me.wait("unlocked");
    me.observe("it locks itself: " + ipclab::name_of(locks.get()));
    EXPECT_READS(buffer, pattern("worker"));
  });
  scenario.role("operator", [](Role& me) {
    starts_operator();
    const auto pid = me.receive<pid_t>("pid");
    const CUprocessState state = state_of(pid);
    me.observe("another process sees it " + name_of(state));
    if (state == CU_PROCESS_STATE_LOCKED) take(kSteps[3], pid);
    me.signal("unlocked");
  });
  scenario.run(30s);
}
