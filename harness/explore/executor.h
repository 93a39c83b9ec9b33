// Runs programs: starts the roles, sends them the steps, and compares what they
// answer with the shadow.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/explore/role.h"
#include "harness/explore/times.h"
#include "harness/explore/world/failure.h"
#include "harness/explore/world/program.h"
#include "harness/explore/world/shadow.h"

namespace ipclab::explore {

/// How long the parent waits.
struct Deadlines {
  std::chrono::milliseconds start{60000};  ///< for a new role
  std::chrono::milliseconds answer{10000};
};

/// What is seen of a hang that ends when the gates open.
constexpr const char* kWaitsForHeld =
    "it waits for work that it need not wait for";

/// The time of the search, or of what it does with a failure, is over.
struct OutOfTime : std::runtime_error {
  OutOfTime() : std::runtime_error("the time is over") {}
};

class Executor {
 public:
  /// `known` says whether a failure is a known deviation: a wrong answer does
  /// not end the program then.
  explicit Executor(std::function<bool(const Failure&)> known = nullptr,
                    Deadlines deadlines = {});
  Executor(const Executor&) = delete;
  ~Executor();

  /// What programs may use. Starts a role. Throws std::runtime_error with the
  /// reason if the role cannot use CUDA.
  const Machine& machine();
  /// Programs use at most so many GPUs from now on.
  void set_gpus(int most) { most_gpus_ = most; }

  /// Runs a program. Returns the first failure that is no known deviation. If
  /// the program left something or failed, the next one gets new roles, see
  /// set_lasting(). Throws std::runtime_error if no role can start, and
  /// OutOfTime.
  std::optional<Failure> run(const Program& program);

  /// No wait lasts longer than until `end`; the wait throws OutOfTime then.
  void set_end(Times::Clock::time_point end) { end_ = end; }
  Times::Clock::time_point end() const { return end_; }

  /// How long a role may need for an answer from now on.
  void set_patience(std::chrono::milliseconds answer) {
    deadlines_.answer = answer;
  }

  /// From now on, roles that still answer end what a program has left, and run
  /// the next one, also after a failure. Only the others are started again. A
  /// start takes longer than many programs on a GPU, so the shrinker tries
  /// programs in this way.
  void set_lasting(bool lasting) { lasting_ = lasting; }

  /// While a program runs, the roles of the next one start already.
  void set_ahead(bool ahead) { ahead_ = ahead; }

  /// Called while the executor waits, at least once a second.
  void set_on_wait(std::function<void()> on_wait) {
    on_wait_ = std::move(on_wait);
  }

  Times& times() { return times_; }
  /// What it does now, in words.
  const std::string& doing() const { return doing_; }
  /// Calls and seconds of each operation, the slowest first.
  Json slowest(size_t most) const;

  /// From now on each step is followed by a synchronise of its process, if
  /// nothing is held there. What still fails then does not depend on speed.
  void set_steady(bool steady) { steady_ = steady; }

  /// Ends all roles, so that the next program gets new ones.
  void end_roles();

  /// What the processes and the GPU have after a program that left nothing:
  /// fewer free bytes or more open files than before may be a leak.
  struct Rest {
    int64_t free_bytes = 0;
    int64_t open_files = 0;
    bool known = false;  ///< false: the last program did not end cleanly
  };
  const Rest& rest() const { return rest_; }

  /// Runs a program that leaves nothing several times in new processes. Is
  /// there less after each run? Free bytes are judged only if nobody else uses
  /// the GPU.
  std::optional<Failure> leak(const Program& program, bool judge_memory);

  int started() const { return started_; }
  long long steps() const { return steps_; }

 private:
  struct RoleProcess {
    pid_t pid = -1;
    int gpu = 0;
    std::array<Wire, kThreads> wires;
    bool ready = false;            ///< it has told what it knows of the machine
    std::optional<Failure> later;  ///< see death()
  };
  struct Cost {
    long calls = 0;
    double seconds = 0, most = 0;
  };
  struct Sent {
    size_t index;
    Step step;
    Expected expected;
  };
  struct Reply {
    Answer answer;
    Parcel parcel;
  };

  RoleProcess fork_role(int gpu);
  void take_role(int which);
  void await_start(int which);
  void end(int which, std::chrono::seconds limit = std::chrono::seconds(3));
  void reap(std::chrono::seconds limit);
  bool is_starting() const;
  std::chrono::milliseconds patience(const Step& step) const;
  bool send(const Step& step, Frame::Kind kind);
  std::optional<Frame> next_frame(int process, int thread,
                                  std::chrono::milliseconds limit, bool* died);
  std::optional<Failure> await(const Sent& sent, Reply* reply);
  std::optional<Failure> judge(const Sent& sent, Reply& reply);
  std::optional<Failure> perform(std::vector<Sent>& batch);
  std::optional<Failure> after_batch(const std::vector<Sent>& batch);
  bool cleans(Shadow& shadow, const std::optional<Failure>& wrong);
  std::optional<Failure> returned_early();
  void settle(const Shadow& shadow, const std::vector<Sent>& batch);
  Failure failure(const Sent& sent, const char* check, std::string seen,
                  std::string wanted) const;
  std::string how_it_ended(int process);
  Failure death(const Sent& sent, const std::string& wanted);
  bool is_known(const Failure& failure) const;
  bool answers_if_gates_open(const Sent& sent);

  const std::function<bool(const Failure&)> known_;
  std::function<void()> on_wait_;
  Deadlines deadlines_;
  Times::Clock::time_point end_ = Times::Clock::time_point::max();
  Times times_;
  std::string doing_;
  std::map<Op, Cost> costs_;
  bool ahead_ = false;
  int most_gpus_ = 2;
  std::vector<RoleProcess> spare_;  // started, and maybe not ready yet
  Rest rest_;
  bool steady_ = false, lasting_ = false;
  std::vector<pid_t> killed_;  // and not yet ended
  std::map<int, RoleProcess> roles_;
  Machine machine_;
  bool asked_ = false;
  Gates* gates_ = nullptr;
  Descriptor gates_file_;
  std::map<int, Parcel> handles_;
  std::map<int, uint64_t> addresses_;
  std::vector<Sent> held_;
  int started_ = 0;
  long long steps_ = 0;
};

}  // namespace ipclab::explore
