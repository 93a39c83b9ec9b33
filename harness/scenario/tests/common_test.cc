// Tests what samples/common/channel.h promises the lessons: no signal changes a
// deadline, and an error names the step. No GPU is needed.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "samples/common/channel.h"

using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

// While this object exists, a signal interrupts this process every 5 ms.
class Interrupted {
 public:
  Interrupted() {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // without SA_RESTART
    sigaction(SIGALRM, &action, &before_);
    const itimerval often{{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~Interrupted() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  struct sigaction before_ {};
};

struct Ends {
  Ends() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours = ends[0];
    theirs = ends[1];
  }
  int ours = -1, theirs = -1;
};

}  // namespace

TEST(Channel, ASignalEndsNoWait) {
  const Ends ends;
  const Interrupted interrupted;
  const auto began = Clock::now();
  EXPECT_FALSE(wait_for(ends.ours, POLLIN, 200ms));
  EXPECT_GE(Clock::now() - began, 200ms);
  close(ends.ours);
  close(ends.theirs);
}

TEST(Channel, AStepArrivesInSpiteOfSignals) {
  const Ends ends;
  Channel ours(ends.ours);
  std::thread peer([&] {
    Channel theirs(ends.theirs);
    theirs.wait("go");
    const Ends silent;
    EXPECT_FALSE(wait_for(silent.ours, POLLIN, 50ms));  // signals meanwhile
    close(silent.ours);
    close(silent.theirs);
    theirs.send("value", 4711);
  });
  {
    const Interrupted interrupted;
    ours.signal("go");
    EXPECT_EQ(ours.receive<int>("value"), 4711);
  }
  peer.join();
}

TEST(Channel, APeerThatHasEndedIsNamed) {
  const Ends ends;
  Channel ours(ends.ours);
  close(ends.theirs);
  EXPECT_EXIT(ours.wait("done"), testing::ExitedWithCode(EXIT_FAILURE),
              "step 'done': the other role has ended");
}

// The kernel answers with ECONNRESET if the peer has left a message unread.
TEST(Channel, APeerThatHasEndedWithUnreadStepsIsNamed) {
  const Ends ends;
  Channel ours(ends.ours);
  ours.signal("first");
  close(ends.theirs);
  EXPECT_EXIT(ours.signal("second"), testing::ExitedWithCode(EXIT_FAILURE),
              "step 'second': the other role has ended");
}

TEST(Channel, AnotherStepIsNamed) {
  const Ends ends;
  Channel ours(ends.ours), theirs(ends.theirs);
  theirs.signal("closed");
  EXPECT_EXIT(ours.wait("opened"), testing::ExitedWithCode(EXIT_FAILURE),
              "step 'opened': the other role is at 'closed'");
}
