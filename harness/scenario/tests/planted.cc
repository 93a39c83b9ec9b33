// Scenarios with one planted fault each. test_planted.py runs them one by one
// and checks what the harness says.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include "harness/scenario/board.h"
#include "harness/scenario/capabilities.h"
#include "harness/scenario/process.h"
#include "harness/scenario/scenario.h"

using namespace ipclab;

TEST(Planted, Nothing) {
  covers("PLANTED-00");
  Scenario scenario;
  scenario.role("exporter", [](Role& me) { me.send("handle", 1); });
  scenario.role("importer", [](Role& me) { me.receive<int>("handle"); });
  scenario.run(10s);
}

TEST(Planted, WrongValue) {
  covers("PLANTED-01");
  Scenario scenario;
  scenario.role("exporter", [](Role& me) { me.send("handle", 1); });
  scenario.role("importer", [](Role& me) {
    const int seen = me.receive<int>("handle");
    this_board()->note(Board::kCall, "cudaSomething(&value)");
    expected_but_saw("2", std::to_string(seen));
    EXPECT_EQ(seen, 2);
    this_board()->note(Board::kCall, "cudaLater()");
  });
  scenario.run(10s);
}

// A role and the referee find two wrong values each.
TEST(Planted, FourWrongValues) {
  covers("PLANTED-01");
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    EXPECT_EQ(1, 2);
    EXPECT_EQ(3, 4);
  });
  scenario.run(10s);
  EXPECT_EQ(5, 6);
  EXPECT_EQ(7, 8);
}

// Right only if the exporter makes eight calls within 20 ms. The two roles
// share the offset in a file.
TEST(Planted, DependsOnSpeed) {
  covers("PLANTED-01");
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const Descriptor file(memfd_create("offset", MFD_CLOEXEC));
    me.send_descriptor("begins", file.get());
    for (int i = 0; i < 8; ++i)
      this_board()->note(Board::kCall, i % 2 ? "cudaOne()" : "cudaOther()");
    lseek(file.get(), 1, SEEK_SET);
  });
  scenario.role("importer", [](Role& me) {
    const Descriptor file = me.receive_descriptor("begins");
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(lseek(file.get(), 0, SEEK_CUR), 1);
  });
  scenario.run(10s);
}

TEST(Planted, WrongSize) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) { me.send("handle", 1); });
  scenario.role("importer", [](Role& me) { me.receive<double>("handle"); });
  scenario.run(10s);
}

TEST(Planted, FailedCall) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    throw CallFailed{"cudaMalloc(&p, 1)",
                     "cudaSuccess",
                     "cudaErrorInvalidValue",
                     "file.cu",
                     7,
                     false};
  });
  scenario.run(10s);
}

TEST(Planted, NoMemory) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    throw CallFailed{"cudaMalloc(&p, 1)",
                     "cudaSuccess",
                     "cudaErrorMemoryAllocation",
                     "file.cu",
                     7,
                     true};
  });
  scenario.run(10s);
}

TEST(Planted, Exception) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) { throw std::bad_alloc(); });
  scenario.run(10s);
}

TEST(Planted, DeadPeer) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    me.send("handle", 1);
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    me.receive<int>("handle");
    this_board()->note(Board::kCall, "cudaLastCall()");
    raise(SIGSEGV);
  });
  scenario.run(10s);
}

TEST(Planted, Deadlock) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    me.wait("importer done");
    me.signal("exporter done");
  });
  scenario.role("importer", [](Role& me) {
    me.wait("exporter done");
    me.signal("importer done");
  });
  scenario.run(10s);
}

TEST(Planted, Endless) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    me.signal("begun");
    for (volatile unsigned i = 0;; i = i + 1) {
    }
  });
  scenario.run(3s);
}

TEST(Planted, Stopped) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) { raise(SIGSTOP); });
  scenario.role("importer", [](Role& me) { me.wait("handle"); });
  scenario.run(3s);
}

TEST(Planted, EndsBeforeItsEnd) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) { std::_Exit(0); });
  scenario.run(10s);
}

TEST(Planted, DiesOtherwiseThanSaid) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) { raise(SIGABRT); }).may_end_by(SIGSEGV);
  scenario.run(10s);
}

TEST(Planted, CrashAfterItsEnd) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) { std::atexit([] { raise(SIGSEGV); }); });
  scenario.run(10s);
}

TEST(Planted, Grandchild) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    if (fork() == 0) {
      setsid();
      execl("/bin/sleep", "sleep", "1000", nullptr);
      _exit(1);
    }
  });
  scenario.run(10s);
}

TEST(Planted, DescriptorLeftOpen) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    EXPECT_NE(open("/dev/null", O_RDONLY | O_CLOEXEC), -1);
  });
  scenario.run(10s);
}

TEST(Planted, DescriptorLeftOpenAfterAFailedCheck) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    EXPECT_EQ(open("/dev/null", O_RDONLY | O_CLOEXEC), -1);
  });
  scenario.run(10s);
}

void make_name(const std::string& name) {
  const int memory = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  EXPECT_NE(memory, -1);
  close(memory);
}

TEST(Planted, SharedMemoryNames) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    char number[16];
    std::snprintf(number, sizeof number, "%x", static_cast<unsigned>(getpid()));
    make_name("/ipclab-planted-" + std::to_string(getpid()));
    make_name("/ipclab-planted-" + std::string(number) + ".lock");
  });
  scenario.run(10s);
}

// Nothing in these names shows that the role made them.
TEST(Planted, NamesOfOtherPrograms) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    make_name("/ipclab-planted-others");
    make_name("/ipclab-planted-7" + std::to_string(getpid()));
  });
  scenario.run(10s);
}

TEST(Planted, DeviceMemory) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    // The planted libnvidia-ml.so.1 reports the number in this file as bytes in
    // use.
    FILE* file = std::fopen(std::getenv("IPCLAB_FAKE_USED"), "w");
    ASSERT_NE(file, nullptr);
    std::fputs("4194304", file);
    std::fclose(file);
  });
  scenario.run(10s);
}

TEST(Planted, Flood) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    std::printf("the first line\n");
    for (int i = 0; i < 200000; ++i)
      std::printf("line %d of a flood of output, long enough to count\n", i);
    std::printf("the last line\n");
    std::fflush(stdout);
    me.signal("printed");
    EXPECT_EQ(1, 2);
  });
  scenario.run(20s);
}

TEST(Planted, MessageCutShort) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    const int socket = Process::self().place.socket;
    const unsigned header[] = {0x49504331, Frame::kPost, 6, 0, 1000, 0, 0, 0};
    send(socket, header, sizeof header, MSG_NOSIGNAL);
    send(socket, "handle", 6, MSG_NOSIGNAL);
    std::_Exit(0);
  });
  scenario.run(10s);
}

TEST(Planted, NoMessage) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    const std::string noise(64, 'x');
    send(Process::self().place.socket, noise.data(), noise.size(),
         MSG_NOSIGNAL);
    std::_Exit(0);
  });
  scenario.run(10s);
}

TEST(Planted, RefereeKilled) {
  Scenario scenario;
  scenario.roles("importer", 2, [](Role& me) {
    me.signal("begun");
    me.wait("never");
  });
  scenario.role("exporter", [](Role& me) {
    me.wait("begun", 2);
    FILE* file = std::fopen(std::getenv("IPCLAB_BEGUN"), "w");
    ASSERT_NE(file, nullptr);
    std::fprintf(file, "%d %d\n", getppid(), getpid());
    std::fclose(file);
    for (volatile unsigned i = 0;; i = i + 1) {
    }
  });
  scenario.run(60s);
}

TEST(Planted, OneOrderFails) {
  Scenario scenario;
  scenario.every_order({"close", "free"});
  scenario.role("exporter", [](Role& me) {
    me.in_order({{"free", [&] { me.signal("freed"); }}});
  });
  scenario.role("importer", [](Role& me) {
    bool freed = false;
    me.in_order({{"close", [&] {
                    // In the second order the exporter has already freed.
                    freed = me.order().front() == "free";
                  }}});
    EXPECT_FALSE(freed);
  });
  scenario.run(10s);
}

TEST(Planted, Lifted) {
  Scenario scenario;
  scenario.role("exporter",
                [](Role& me) { me.lifted("trim released 64 MiB"); });
  scenario.run(10s);
}

TEST(Planted, NotApplicable) {
  Scenario scenario;
  scenario.role("importer",
                [](Role& me) { me.not_applicable("GPU 1 reaches GPU 0"); });
  scenario.run(10s);
}

// The fabric of the GPUs does not become ready: no role may be waited for.
TEST(Planted, FabricNotReady) {
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    throw CallFailed{"cuMemCreate(…)",
                     "CUDA_SUCCESS",
                     "CUDA_ERROR_FABRIC_NOT_READY",
                     __FILE__,
                     __LINE__,
                     false,
                     true};
  });
  scenario.role("importer", [](Role& me) { me.receive<int>("handle"); });
  scenario.run(10s);
}

TEST(Planted, NotApplicableAndWrong) {
  Scenario scenario;
  scenario.role("importer", [](Role& me) {
    me.not_applicable("GPU 1 reaches GPU 0");
    EXPECT_TRUE(false) << "planted";
  });
  scenario.run(10s);
}

TEST(Planted, Observed) {
  observe("from the referee");
  Scenario scenario;
  scenario.role("exporter", [](Role& me) { me.observe("code 1"); });
  scenario.run(10s);
}

TEST(Planted, Tabulated) {
  Scenario scenario;
  scenario.role("attempt 0", [](Role& me) {
    me.tabulate("table", "zeros",
                {Outcome::kDocumentedRefusal, "cudaErrorInvalidValue"});
    me.tabulate("table", "noise", {Outcome::kWrongSuccess, "cudaSuccess"});
  });
  scenario
      .role("attempt 1",
            [](Role& me) {
              me.tabulate("table", "ones", {Outcome::kOtherRefusal, "other"});
              me.signal("null");
              raise(SIGSEGV);
            })
      .may_end_by(SIGSEGV);
  scenario.run(10s);
  const Ended& died = scenario.ended("attempt 1");
  tabulate("table", died.last_step, outcome_of(died));
}

TEST(Planted, TabulatedHang) {
  Scenario scenario;
  scenario.role("attempt", [](Role& me) {
    me.signal("ones");
    for (volatile unsigned i = 0;; i = i + 1) {
    }
  });
  scenario.run(3s);
  const Ended& stuck = scenario.ended("attempt");
  tabulate("table", stuck.last_step, outcome_of(stuck));
}

TEST(Planted, NeedsTwoGpus) {
  covers("PLANTED-02");
  needs(gpus(2));
  Scenario scenario;
  scenario.role("exporter", [](Role&) { FAIL() << "must not run"; });
  scenario.run(10s);
}

TEST(Planted, NeedsFabric) {
  needs(gpus(1), alone, fabric);
  FAIL() << "must not run";
}

// Tests of kShared, which run one after the other in one program. Each does
// something to the process of "exporter", and the next test finds the result.
namespace {

void says_who_it_is(Role& me) { me.observe(std::to_string(getpid())); }

void shared(const std::function<void(Role&)>& body) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", body);
  scenario.run(10s);
}

}  // namespace

TEST(Shared, First) {
  covers("PLANTED-03");
  shared([](Role& me) {
    std::printf("from the first\n");
    says_who_it_is(me);
  });
}

TEST(Shared, Second) { shared(says_who_it_is); }

TEST(Shared, Fails) {
  shared([](Role&) { EXPECT_TRUE(false) << "planted"; });
}

TEST(Shared, LeavesADescriptor) {
  shared([](Role&) { EXPECT_NE(open("/etc/passwd", O_RDONLY), -1); });
}

TEST(Shared, IsNotAsNew) {
  shared([](Role&) { Process::self().as_new = [] { return false; }; });
}

TEST(Shared, HasItsOwnEnvironment) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", says_who_it_is).env("PLANTED", "1");
  scenario.run(10s);
}

TEST(Shared, Fresh) {
  Scenario scenario;
  scenario.role("exporter", says_who_it_is);
  scenario.run(10s);
}

TEST(Shared, Alone) {
  needs(alone);
  shared(says_who_it_is);
}

TEST(Shared, TwoRuns) {
  for (int i = 0; i < 2; ++i) {
    Scenario scenario(Scenario::kShared);
    scenario.role("exporter", [=](Role& me) {
      says_who_it_is(me);
      me.send("number", i);
    });
    scenario.role("importer",
                  [=](Role& me) { EXPECT_EQ(me.receive<int>("number"), i); });
    scenario.run(10s);
  }
}

TEST(Shared, WaitsForAnEnd) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {});
  scenario.role("importer", [](Role& me) { me.wait_for_end("exporter"); });
  scenario.run(10s);
}

TEST(Shared, WaitsForTheEndOfANewProcess) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", says_who_it_is).in_new_process();
  scenario.role("importer", [](Role& me) { me.wait_for_end("exporter"); });
  scenario.run(10s);
}

TEST(Shared, WaitsUntilARoleIsDone) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {});
  scenario.role("importer", [](Role& me) { me.wait_until_done("exporter"); });
  scenario.run(10s);
}

TEST(Shared, EndsBeforeItsFirstInput) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {});
  scenario.run_inputs("exporter", {"one", "two"}, 10s);
}

TEST(Shared, DiesAtItsExit) {
  shared([](Role&) { std::atexit([] { raise(SIGSEGV); }); });
}

TEST(Shared, LeavesDeviceMemory) {
  shared([](Role&) {
    FILE* file = std::fopen(std::getenv("IPCLAB_FAKE_USED"), "w");
    ASSERT_NE(file, nullptr);
    std::fputs("4194304", file);
    std::fclose(file);
  });
}
