// A process is locked, checkpointed, restored and unlocked by another process.
// Mirror of samples/66_checkpoint.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstring>
#include <functional>
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

// Makes the four calls with a process that shares something, as far as they
// succeed. Notes each code and state. After the checkpoint, also a refused one,
// calls `meanwhile`. Returns whether the process can go on.
bool tries_to_checkpoint(
    Role& me, const std::string& which, pid_t pid,
    const std::function<void()>& meanwhile = [] {}) {
  SCOPED_TRACE(which);
  const auto succeeds = [&](const Step& step) {
    const CUresult code = step.make(pid);
    const std::string state = name_of(state_of(pid));
    me.observe(std::string(step.name) + " of the " + which + ": " +
               ipclab::name_of(code) + "; it is " + state);
    const bool good = code == CUDA_SUCCESS;
    // A lock is no part of a checkpoint, so it leaves no failed process.
    if (good || state != "failed" || &step == &kSteps[0])
      EXPECT_EQ(state, name_of(good ? step.to : step.from)) << step.name;
    return good;
  };
  const bool checkpointed = succeeds(kSteps[0]) && succeeds(kSteps[1]);
  meanwhile();
  if (checkpointed) succeeds(kSteps[2]);
  if (state_of(pid) == CU_PROCESS_STATE_LOCKED) take(kSteps[3], pid);
  return state_of(pid) == CU_PROCESS_STATE_RUNNING;
}

void operates(Role& me) {
  starts_operator();
  for (const std::string target : {"importer", "exporter"}) {
    const auto pid = me.receive<pid_t>("pid of " + target);
    me.send("done with the " + target, tries_to_checkpoint(me, target, pid));
  }
}

// The side of a shared memory that the operator wants to checkpoint. It ends
// itself if it cannot go on: its next CUDA call would never return.
void is_target(Role& me, const Words& words) {
  me.send("pid", getpid());
  if (!me.receive<bool>("goes on")) me.die(SIGKILL);
  EXPECT_READS(words, pattern("both"));
  me.signal("target has read");
  me.wait("changed");
  observe_check(me, "after it, the " + me.name() + " sees what others write",
                [&] { return kernel_reads(words, pattern("changed")); });
  me.signal("compared");
}

// The other side, which keeps the memory, whatever happens to the target.
void is_neighbour(Role& me, const Words& words, const std::string& target) {
  me.wait("tried to checkpoint");
  EXPECT_READS(words, pattern("both"));
  me.signal("has read");
  const bool goes_on = me.receive<bool>("tried to restore");
  EXPECT_READS(words, pattern("both"));
  me.signal("has read again");
  if (goes_on) {
    me.wait("target has read");
    words.fill(pattern("changed"));
    CALL(cudaDeviceSynchronize());
    me.signal("changed");
    return me.wait("compared");
  }
  me.wait_until_done(target);
  if (me.name() == "exporter") EXPECT_READS(words, pattern("both"));
  EXPECT_TRUE(context_is_usable());
}

// Runs the roles twice: the operator takes the importer, and then the exporter.
void judge_neighbours(
    const std::function<void(Role&, const std::string& target)>& exporter,
    const std::function<void(Role&, const std::string& target)>& importer) {
  for (const std::string target : {"importer", "exporter"}) {
    Scenario scenario;
    scenario.role("exporter", [&](Role& me) { exporter(me, target); });
    scenario.role("importer", [&](Role& me) { importer(me, target); });
    scenario.role("operator", [&](Role& me) {
      starts_operator();
      const auto pid = me.receive<pid_t>("pid");
      const bool goes_on = tries_to_checkpoint(me, target, pid, [&] {
        me.signal("tried to checkpoint");
        me.wait("has read");
      });
      me.send("tried to restore", goes_on);
      me.wait("has read again");
      me.send("goes on", goes_on);
    });
    scenario.run(60s);
  }
}

void shares(Role& me, const Words& words, const std::string& target) {
  if (me.name() == target)
    is_target(me, words);
  else
    is_neighbour(me, words, target);
}

}  // namespace

TEST(Checkpoint, ANeighbourOfLegacyMemoryIsNotHarmed) {
  covers("CKPT-09");
  needs(gpus(1), checkpoints, legacy_memory);
  judge_neighbours(
      [](Role& me, const std::string& target) {
        const DeviceBuffer buffer(kBytes);
        buffer.fill(pattern("both"));
        me.send("handle", buffer.legacy_handle());
        me.wait("open");
        shares(me, buffer, target);
        me.wait_for_end("importer");
      },
      [](Role& me, const std::string& target) {
        LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
        me.signal("open");
        shares(me, mapping, target);
        mapping.close();
      });
}

TEST(Checkpoint, ANeighbourOfADescriptorIsNotHarmed) {
  covers("CKPT-09");
  needs(gpus(1), checkpoints, vmm_fd);
  judge_neighbours(
      [](Role& me, const std::string& target) {
        const Chunk chunk = Chunk::create(granule());
        const Mapping mapping(chunk, granule());
        mapping.fill(pattern("both"));
        me.send_descriptor("chunk", chunk.descriptor().get());
        me.wait("open");
        shares(me, mapping, target);
      },
      [](Role& me, const std::string& target) {
        const Mapping mapping(Chunk::import(me.receive_descriptor("chunk")),
                              granule());
        me.signal("open");
        shares(me, mapping, target);
      });
}

TEST(Checkpoint, ANeighbourOfAPoolIsNotHarmed) {
  covers("CKPT-09");
  needs(gpus(1), checkpoints, pool_fd);
  judge_neighbours(
      [](Role& me, const std::string& target) {
        const Pool pool(shareable());
        const AsyncBuffer buffer(pool, kBytes);
        buffer.fill(pattern("both"));
        me.send_descriptor("pool", pool.exported().get());
        me.send("pointer", buffer.exported());
        me.wait("open");
        shares(me, buffer, target);
        me.wait_for_end("importer");
      },
      [](Role& me, const std::string& target) {
        const Pool pool(me.receive_descriptor("pool"));
        AsyncBuffer buffer(
            pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kBytes);
        me.signal("open");
        shares(me, buffer, target);
        buffer.free();
      });
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
