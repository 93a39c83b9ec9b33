// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "board.h"
#include "leaks.h"
#include "scenario.h"

namespace ipclab {
namespace {

struct Values {
  std::string expected, seen;
};

Values& next_failure() {
  static Values values;
  return values;
}

// Tells the referee about every check that fails in this role.
class Forward : public testing::EmptyTestEventListener {
 public:
  /// The listener of this process, for a role that begins.
  static const Forward& begin() {
    static Forward* const forward = [] {
      auto* made = new Forward;  // GoogleTest owns it
      testing::UnitTest::GetInstance()->listeners().Append(made);
      return made;
    }();
    forward->failed_ = false;
    return *forward;
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    failed_ = true;
    const Values values = std::exchange(next_failure(), {});
    const char* file = result.file_name();
    Process::self().role->report_failure(file == nullptr ? "" : file,
                                         result.line_number(), result.message(),
                                         "", values.expected, values.seen);
  }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

void report(Role& me, const CallFailed& failed) {
  if (failed.unready)
    me.stop_not_applicable("the fabric is not ready: " + failed.call +
                           " gives " + failed.seen);
  if (failed.broken) me.broken(failed.call + " gave " + failed.seen);
  me.report_failure(failed.file, failed.line, "this call has to succeed",
                    failed.call, failed.expected, failed.seen);
}

// Ends the process if the referee has no further role.
void wait_for_next_role(Process& self) {
  std::optional<Frame> frame;
  while (!(frame = self.wire.next()))
    if (!self.wire.read_some()) std::exit(EXIT_SUCCESS);
  const std::vector<std::string> place = split(frame->data);
  self.next = frame->step;
  self.place.run = std::stoi(place.at(0));
  self.place.role = std::stoi(place.at(1));
  self.place.input = std::stoul(place.at(2));
}

}  // namespace

std::string signal_name(int signal) {
  // (glibc has a function for this only from 2.32 on.)
  switch (signal) {
#define NAMED(name) \
  case name:        \
    return #name
    NAMED(SIGHUP);
    NAMED(SIGINT);
    NAMED(SIGQUIT);
    NAMED(SIGILL);
    NAMED(SIGTRAP);
    NAMED(SIGABRT);
    NAMED(SIGBUS);
    NAMED(SIGFPE);
    NAMED(SIGKILL);
    NAMED(SIGUSR1);
    NAMED(SIGSEGV);
    NAMED(SIGUSR2);
    NAMED(SIGPIPE);
    NAMED(SIGALRM);
    NAMED(SIGTERM);
    NAMED(SIGSTKFLT);
    NAMED(SIGCHLD);
    NAMED(SIGCONT);
    NAMED(SIGSTOP);
    NAMED(SIGTSTP);
    NAMED(SIGTTIN);
    NAMED(SIGTTOU);
    NAMED(SIGURG);
    NAMED(SIGXCPU);
    NAMED(SIGXFSZ);
    NAMED(SIGVTALRM);
    NAMED(SIGPROF);
    NAMED(SIGWINCH);
    NAMED(SIGPOLL);
    NAMED(SIGPWR);
    NAMED(SIGSYS);
#undef NAMED
    default:
      return "signal " + std::to_string(signal);
  }
}

std::string RolePlace::text() const {
  return std::to_string(run) + " " + std::to_string(role) + " " +
         std::to_string(input) + " " + std::to_string(socket) + " " +
         std::to_string(board) + " " + std::to_string(referee);
}

RolePlace RolePlace::parse(const std::string& text) {
  RolePlace place;
  if (std::sscanf(text.c_str(), "%d %d %zu %d %d %d", &place.run, &place.role,
                  &place.input, &place.socket, &place.board,
                  &place.referee) != 6) {
    std::fprintf(stderr, "%s is set by the referee, not by hand\n", kVariable);
    std::exit(EXIT_FAILURE);
  }
  return place;
}

Process& Process::self() {
  static Process process = [] {
    Process self;
    const char* text = std::getenv(RolePlace::kVariable);
    if (text == nullptr) return self;
    self.is_role = true;
    self.place = RolePlace::parse(text);
    unsetenv(RolePlace::kVariable);

    // A role ends with its referee, whatever ends the referee.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self.place.referee) std::_Exit(EXIT_FAILURE);

    fcntl(self.place.socket, F_SETFD, FD_CLOEXEC);
    self.wire = Wire(Descriptor(self.place.socket));
    const Descriptor board(self.place.board);
    void* shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                        MAP_SHARED, board.get(), 0);
    if (shared == MAP_FAILED) std::_Exit(EXIT_FAILURE);
    this_board() = static_cast<Board*>(shared);
    return self;
  }();
  return process;
}

bool in_role() { return Process::self().is_role; }

void expected_but_saw(const std::string& expected, const std::string& seen) {
  next_failure() = {expected, seen};
}

void play_role(const std::string& name, int index,
               const std::vector<std::string>& order,
               const std::function<void(Role&)>& body, bool shared) {
  Process& self = Process::self();
  Role me(name, index, self.wire, order);
  self.role = &me;
  const Forward& forward = Forward::begin();
  next_failure() = {};

  const auto before = open_descriptors();
  bool ended = false;
  try {
    body(me);
    ended = true;
  } catch (const CallFailed& failed) {
    report(me, failed);
  } catch (const std::exception& unexpected) {
    me.broken(std::string("exception: ") + unexpected.what());
  }
  const auto left = left_open(before, open_descriptors());
  for (const std::string& what : left) me.report_left(what);
  const bool good = ended && !forward.failed();
  const bool rests = shared && good && left.empty() && !me.ends_in_turn() &&
                     (self.as_new == nullptr || self.as_new());
  std::fflush(nullptr);  // so it counts as output of this role
  if (ended) me.report_end(rests);
  self.role = nullptr;
  if (!rests) std::exit(good ? EXIT_SUCCESS : EXIT_FAILURE);

  wait_for_next_role(self);
}

}  // namespace ipclab
