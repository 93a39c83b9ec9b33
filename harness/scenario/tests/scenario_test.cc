// Tests what a scenario can do: steps, values, descriptors, many roles, orders,
// roles that die on purpose. No GPU is needed.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/scenario/scenario.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <set>

#include "harness/scenario/board.h"
#include "harness/scenario/capabilities.h"
#include "harness/scenario/json.h"
#include "harness/scenario/namespaces.h"
#include "harness/scenario/record.h"

using namespace ipclab;

namespace {

std::string noise(size_t size) {
  std::string bytes(size, '\0');
  unsigned state = 12345;
  for (char& c : bytes)
    c = static_cast<char>((state = state * 69069 + 1) >> 24);
  return bytes;
}

}  // namespace

TEST(Steps, ValueAndAnswerArrive) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    me.send("handle", 4711);
    EXPECT_EQ(me.receive<int>("answer"), 1174);
  });
  scenario.role("importer", [](Role& me) {
    EXPECT_EQ(me.receive<int>("handle"), 4711);
    me.send("answer", 1174);
  });
  scenario.run(10s);
  EXPECT_TRUE(scenario.ended("exporter").reached_end);
  EXPECT_TRUE(scenario.ended("importer").reached_end);
  EXPECT_EQ(scenario.ended("importer").last_step, "answer");
}

TEST(Steps, ARoleThatIsSlowIsNotHung) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    for (int i = 0; i < 15; ++i) {
      usleep(100000);
      me.signal("step " + std::to_string(i));
    }
  });
  scenario.run(1s);
  EXPECT_TRUE(scenario.ended("exporter").reached_end);
}

TEST(Steps, MessagesOfAnySizePass) {
  Scenario scenario;
  for (const char* name : {"left", "right"})
    scenario.role(name, [](Role& me) {
      // Both roles send before either reads: neither may block the other.
      for (const size_t size : {0ul, 1ul, 65536ul, 5000000ul, 50000000ul})
        me.send_bytes("bytes", noise(size));
      for (const size_t size : {0ul, 1ul, 65536ul, 5000000ul, 50000000ul})
        EXPECT_TRUE(me.receive_bytes("bytes") == noise(size)) << size;
    });
  scenario.run(30s);
}

TEST(Steps, AStepMayHappenThousandsOfTimes) {
  Scenario scenario;
  scenario.role("left", [](Role& me) {
    for (int i = 0; i < 2000; ++i) {
      me.send("ping", i);
      ASSERT_EQ(me.receive<int>("pong"), -i);
    }
  });
  scenario.role("right", [](Role& me) {
    for (int i = 0; i < 2000; ++i) {
      ASSERT_EQ(me.receive<int>("ping"), i);
      me.send("pong", -i);
    }
  });
  scenario.run(30s);
  EXPECT_EQ(scenario.ended("left").last_step, "pong");
}

TEST(Steps, EveryRoleOfAKindReceives) {
  constexpr int kImporters = 8;
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    me.send("handle", 42);
    int sum = 0;
    for (int i = 0; i < kImporters; ++i) sum += me.receive<int>("closed");
    EXPECT_EQ(sum, 28);
  });
  scenario.roles("importer", kImporters, [](Role& me) {
    EXPECT_EQ(me.receive<int>("handle"), 42);
    EXPECT_EQ(me.name(), "importer " + std::to_string(me.index()));
    me.send("closed", me.index());
  });
  scenario.run(20s);
}

TEST(Steps, TheEndOfARoleCanBeWaitedFor) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    me.wait_for_end("victim");
    me.wait_for_end("importer");
    me.signal("both are gone");
  });
  scenario.role("victim", [](Role&) { raise(SIGSEGV); }).may_end_by(SIGSEGV);
  scenario.role("importer", [](Role& me) { me.wait_for_end("victim"); });
  scenario.run(10s);
  EXPECT_EQ(scenario.ended("exporter").last_step, "both are gone");
}

TEST(Descriptors, TheReceiverSeesTheSendersFile) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const Descriptor file(memfd_create("shared", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(file.get(), 4096), 0);
    ASSERT_EQ(pwrite(file.get(), "bytes", 5, 0), 5);
    me.send_descriptor("memory", file.get());
    me.wait("written");
    char seen[6] = {};
    ASSERT_EQ(pread(file.get(), seen, 5, 0), 5);
    EXPECT_STREQ(seen, "BYTES");
  });
  scenario.role("importer", [](Role& me) {
    const Descriptor file = me.receive_descriptor("memory");
    EXPECT_NE(fcntl(file.get(), F_GETFD) & FD_CLOEXEC, 0);
    char seen[6] = {};
    ASSERT_EQ(pread(file.get(), seen, 5, 0), 5);
    EXPECT_STREQ(seen, "bytes");
    ASSERT_EQ(pwrite(file.get(), "BYTES", 5, 0), 5);
    me.signal("written");
  });
  scenario.run(10s);
}

TEST(Descriptors, TheHarnessKeepsNoCopy) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const Descriptor reads(ends[0]);
    Descriptor writes(ends[1]);
    me.send_descriptor("end", writes.get());
    writes.close();
    me.wait("closed");
    // A reader sees the end of the pipe only when the last writer has gone.
    char byte;
    EXPECT_EQ(read(reads.get(), &byte, 1), 0);
  });
  scenario.role("importer", [](Role& me) {
    me.receive_descriptor("end").close();
    me.signal("closed");
  });
  scenario.run(10s);
}

TEST(Roles, EnvironmentsDiffer) {
  Scenario scenario;
  scenario
      .role("first",
            [](Role&) { EXPECT_STREQ(getenv("CUDA_VISIBLE_DEVICES"), "0"); })
      .env("CUDA_VISIBLE_DEVICES", "0");
  scenario
      .role("second",
            [](Role&) { EXPECT_STREQ(getenv("CUDA_VISIBLE_DEVICES"), "1"); })
      .env("CUDA_VISIBLE_DEVICES", "1");
  scenario.role("third", [](Role&) {
    EXPECT_EQ(getenv("IPCLAB_ROLE"), nullptr) << "a child of a role is no role";
  });
  scenario.run(10s);
}

TEST(Roles, ADeathThatIsPartOfTheStoryPasses) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    me.signal("exported");
    me.die(SIGKILL);
  });
  scenario.role("importer", [](Role& me) { me.wait("exported"); });
  scenario.run(10s);
  EXPECT_FALSE(scenario.ended("exporter").reached_end);
  EXPECT_EQ(scenario.ended("exporter").signal, SIGKILL);
  EXPECT_EQ(scenario.ended("exporter").exit_code, -1);
}

TEST(Roles, AnAllowedCrashPassesAndIsTold) {
  Scenario scenario;
  scenario.role("victim", [](Role&) { raise(SIGSEGV); }).may_end_by(SIGSEGV);
  scenario.run(10s);
  EXPECT_EQ(scenario.ended("victim").signal, SIGSEGV);

  Scenario unharmed;
  unharmed.role("victim", [](Role&) {}).may_end_by(SIGSEGV);
  unharmed.run(10s);
  EXPECT_TRUE(unharmed.ended("victim").reached_end);
}

TEST(Roles, OutputIsKept) {
  Scenario scenario;
  scenario.role("talker", [](Role&) {
    std::printf("to stdout\n");
    std::fprintf(stderr, "to stderr\n");
  });
  scenario.run(10s);
  EXPECT_NE(scenario.ended("talker").output.find("to stdout"),
            std::string::npos);
  EXPECT_NE(scenario.ended("talker").output.find("to stderr"),
            std::string::npos);
}

// A role may continue in a child process, however the child then ends.
TEST(Namespaces, ARoleGoesOnAsAProcessOfItsOwn) {
  needs(namespaces);
  Scenario scenario;
  scenario.role("contained", [](Role& me) {
    const int kinds = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;
    ASSERT_EQ(enter_namespaces(kinds, 2), std::nullopt);
    EXPECT_EQ(getpid(), 2);
    const Descriptor name(
        shm_open("/ipclab-of-nobody", O_CREAT | O_RDWR, 0600));
    EXPECT_TRUE(name) << "it goes with its namespace";
    me.send("answer", 1174);
  });
  scenario.role("killed", [](Role& me) {
    ASSERT_EQ(enter_namespaces(CLONE_NEWPID | CLONE_NEWNS, 2), std::nullopt);
    EXPECT_EQ(me.receive<int>("answer"), 1174);
    me.die(SIGKILL);
  });
  scenario.run(5s);
  EXPECT_TRUE(scenario.ended("contained").reached_end);
}

TEST(Namespaces, ARoleIsUser0InAUserNamespaceOfItsOwn) {
  Scenario scenario;
  scenario.role("contained", [](Role& me) {
    const auto refused = enter_namespaces(CLONE_NEWUSER | CLONE_NEWNET);
    if (refused) return me.not_applicable(*refused);
    EXPECT_EQ(getuid(), 0u);
    EXPECT_EQ(getgid(), 0u);
  });
  scenario.run(5s);
}

TEST(Namespaces, WithoutTheRightTheReasonIsTold) {
  Scenario scenario;
  scenario.role("nobody", [](Role&) {
    if (geteuid() == 0) {
      ASSERT_EQ(setuid(65534), 0);
      prctl(PR_SET_DUMPABLE,
            1);  // otherwise the harness does not see what this process holds
    }
    EXPECT_EQ(missing(namespaces).value_or("nothing"),
              "namespaces: unshare: Operation not permitted (needs "
              "CAP_SYS_ADMIN and a container that permits it)");
  });
  scenario.run(5s);
}

TEST(Orders, EveryOrderIsRun) {
  // Each run appends its order to a file. The referee owns the file, and the
  // roles write to it.
  const Descriptor file(memfd_create("orders", 0));
  Scenario scenario;
  scenario.every_order({"close", "free", "read"});
  const auto write_step = [](const char* step) {
    return
        [step] { EXPECT_EQ(write(std::atoi(getenv("ORDERS")), step, 1), 1); };
  };
  scenario
      .role("exporter",
            [&](Role& me) {
              me.in_order({{"free", write_step("f")}});
            })
      .env("ORDERS", std::to_string(file.get()));
  scenario
      .role("importer",
            [&](Role& me) {
              me.in_order(
                  {{"close", write_step("c")}, {"read", write_step("r")}});
            })
      .env("ORDERS", std::to_string(file.get()));
  scenario.run(10s);

  char seen[64] = {};
  ASSERT_EQ(pread(file.get(), seen, sizeof seen - 1, 0), 18);
  EXPECT_STREQ(seen, "cfrcrffcrfrcrcfrfc");
}

TEST(Orders, TheEndOfAProcessIsAStep) {
  Scenario scenario;
  scenario.every_order({"close", "exit", "free"});
  scenario.role("exporter", [](Role& me) {
    const pid_t importer = me.receive<pid_t>("pid");
    me.in_order({{"free", [&] {
                    me.observe(kill(importer, 0) == 0 ? "alive" : "gone");
                  }}});
  });
  scenario.role("importer", [](Role& me) {
    me.send("pid", getpid());
    me.in_order({{"close", [] {}}, {"exit", nullptr}});
  });
  scenario.run(10s);
  if (in_role()) return;

  // close exit free · close free exit · exit close free · exit free close ·
  // free close exit · free exit close
  std::string seen;
  for (const std::string& note : Record::current().notes)
    seen += note == "exporter: gone" ? "g" : "a";
  EXPECT_EQ(seen, "gaggaa");
}

TEST(Runs, OneTestMayRunSeveralScenarios) {
  for (int round = 0; round < 3; ++round) {
    Scenario scenario;
    scenario.role("left", [=](Role& me) { me.send("round", round); });
    scenario.role(
        "right", [=](Role& me) { EXPECT_EQ(me.receive<int>("round"), round); });
    scenario.run(10s);
    EXPECT_TRUE(scenario.ended("left").reached_end);
  }
}

// For each try of an input, in order: a note with the process that tried it.
static std::vector<std::string> tries_of(Scenario& scenario, int* processes,
                                         std::vector<Death>* deaths) {
  scenario
      .role("importer",
            [](Role& me) {
              while (const auto input = me.next_input()) {
                me.observe(std::to_string(getpid()));
                if (*input == 1) raise(SIGSEGV);
                if (*input == 2) return;
              }
            })
      .may_end_by(SIGSEGV);
  const size_t before = Record::current().notes.size();
  *deaths = scenario.run_inputs(
      "importer", {"good", "deadly", "the last of its process", "harmless"},
      10s);
  const auto& notes = Record::current().notes;
  const std::vector<std::string> tries(
      notes.begin() + static_cast<std::ptrdiff_t>(before), notes.end());
  *processes = static_cast<int>(
      std::set<std::string>(tries.begin(), tries.end()).size());
  return tries;
}

TEST(Inputs, EachIsTriedOnceInAsFewProcessesAsPossible) {
  for (const auto processes : {Scenario::kFresh, Scenario::kShared}) {
    Scenario scenario(processes);
    // A second role, which runs again in each run.
    scenario.role("exporter", [](Role& me) { me.wait_until_done("importer"); });
    int used = 0;
    std::vector<Death> deaths;
    const auto tries = tries_of(scenario, &used, &deaths);
    if (in_role()) continue;  // this process may be a role of a later run
    ASSERT_EQ(tries.size(), 4u);
    EXPECT_EQ(tries[0], tries[1]) << "one process until it dies";
    EXPECT_NE(tries[1], tries[2]);
    EXPECT_EQ(used, processes == Scenario::kShared ? 2 : 3);
    ASSERT_EQ(deaths.size(), 1u);
    EXPECT_EQ(deaths[0].input, "deadly");
    EXPECT_EQ(deaths[0].outcome.kind, Outcome::kCrash);
    EXPECT_EQ(deaths[0].outcome.code, "SIGSEGV");
  }
  // A separate run after these runs, whose number no role knows.
  Scenario after;
  after.role("later", [](Role& me) { EXPECT_FALSE(me.next_input()); });
  after.run(10s);
  EXPECT_TRUE(after.ended("later").reached_end);
}

TEST(Records, TimelineTellsWhoSentWhat) {
  Scenario scenario;
  scenario.role("exporter", [](Role& me) { me.send("handle", 7); });
  scenario.role("importer", [](Role& me) { me.receive<int>("handle"); });
  scenario.run(10s);
  int sends = 0, receives = 0;
  for (const TimelineEntry& entry : Record::current().timeline) {
    if (entry.kind == "send") {
      ++sends;
      EXPECT_EQ(entry.role, "exporter");
      EXPECT_EQ(entry.bytes, 4);
    }
    if (entry.kind == "receive") {
      ++receives;
      EXPECT_EQ(entry.role, "importer");
      EXPECT_EQ(entry.from, "exporter");
      EXPECT_EQ(entry.text, "handle");
    }
  }
  EXPECT_EQ(sends, 1);
  EXPECT_EQ(receives, 1);
}

TEST(Records, APollPushesNothingOffTheTimeline) {
  Scenario scenario;
  scenario.role("poller", [](Role& me) {
    me.signal("begin");
    for (uint64_t i = 0; i < 2 * Board::kEntries; ++i)
      this_board()->note(Board::kCall, "cudaStreamQuery(stream)");
    this_board()->note(Board::kCall, "cudaFree(data)");
    this_board()->note(Board::kCall, "cudaStreamQuery(stream)");
  });
  scenario.run(10s);
  std::string told;
  for (const TimelineEntry& entry : Record::current().timeline)
    if (entry.kind == "call" || entry.kind == "send")
      told += entry.text.substr(0, entry.text.find('(')) + " ";
  EXPECT_EQ(told,
            "begin cudaStreamQuery cudaStreamQuery cudaFree cudaStreamQuery ");
}

TEST(Records, AnyBytesBecomeJson) {
  EXPECT_EQ(json_string("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
  EXPECT_EQ(json_string("\xc3\xa4\xff\xc3"), "\"\xc3\xa4\\ufffd\\ufffd\"");
  EXPECT_EQ(json_string("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
}
