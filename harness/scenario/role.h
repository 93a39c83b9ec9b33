// What a role can do besides CUDA: exchange named steps with the other roles,
// take its turn, end itself at a given step, note what it saw.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "wire.h"

namespace ipclab {

/// Thrown when a call that had to succeed fails. The role ends; the report
/// shows the call, the expected and the seen code.
struct CallFailed {
  std::string call, expected, seen, file;
  int line;
  bool broken;           // no memory, no device …: the harness cannot judge
  bool unready = false;  // the fabric is not ready: nothing to judge
};

/// What happened with one input of a call that has to be refused.
struct Outcome {
  /// The five possible kinds.
  enum Kind { kDocumentedRefusal, kOtherRefusal, kWrongSuccess, kCrash, kHang };
  Kind kind;         ///< what happened
  std::string code;  ///< or the signal's name; may be empty
};

/// The kind in the words of the record: "documented refusal", "crash" …
const char* name_of(Outcome::Kind kind);

/// One role of a scenario, inside its own process. Only the thread that runs
/// the role's body may use it.
class Role {
 public:
  /// For the harness itself: the role of this process.
  Role(std::string name, int index, Wire& wire, std::vector<std::string> order);

  /// Its name in the scenario.
  const std::string& name() const { return name_; }
  /// Its number among several roles of one kind, from 0.
  int index() const { return index_; }
  /// The order of this run, if the scenario has an every_order().
  const std::vector<std::string>& order() const { return order_; }

  /// Says that `step` has happened. Every other role sees it.
  void signal(const std::string& step) { send_bytes(step, {}); }

  /// Waits until another role has signalled `step`. The n-th wait of a role
  /// waits for the n-th signal of that step.
  void wait(const std::string& step) { receive_bytes(step); }

  /// Waits until other roles have signalled `step` `times` times.
  void wait(const std::string& step, int times) {
    for (int i = 0; i < times; ++i) wait(step);
  }

  /// Waits until the role of that name has ended in any way.
  void wait_for_end(const std::string& role) { wait("end of " + role); }

  /// Waits until the role of that name does nothing any more: its body has
  /// returned and released what it had, or its process has ended in any way. In
  /// a scenario that says kShared, the process itself may continue.
  void wait_until_done(const std::string& role) { wait("done: " + role); }

  /// Signals the next input of Scenario::run_inputs() and returns its number.
  /// After the last input, signals nothing and returns std::nullopt.
  std::optional<size_t> next_input();

  /// Sends the bytes of a value to every role that receives `step`.
  template <class T>
  void send(const std::string& step, const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    send_bytes(
        step, std::string(reinterpret_cast<const char*>(&value), sizeof value));
  }

  /// Receives a value. If its size is not the size of T, the role ends with a
  /// failure.
  template <class T>
  T receive(const std::string& step) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::string bytes = receive_bytes(step);
    check_size(step, bytes.size(), sizeof(T));
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  /// Sends any number of bytes.
  void send_bytes(const std::string& step, const std::string& bytes);
  /// Receives any number of bytes.
  std::string receive_bytes(const std::string& step);

  /// Sends a copy of a descriptor. Only the first role that receives the step
  /// gets this copy. The harness keeps no copy.
  void send_descriptor(const std::string& step, int descriptor);
  /// Receives a descriptor; this process owns it.
  Descriptor receive_descriptor(const std::string& step);

  /// Ends this process by `signal`. This end then counts as planned.
  [[noreturn]] void die(int signal);

  /// Does each of these steps when its turn comes in the scenario's
  /// every_order(). A step without an action means the end of this process: the
  /// body must return after in_order(), which does not run the later steps of
  /// the role.
  void in_order(
      const std::vector<std::pair<std::string, std::function<void()>>>& mine);

  /// Notes what was seen, without judging it.
  void observe(const std::string& what);
  /// Reports that a documented limit no longer exists.
  void lifted(const std::string& what);
  /// Reports that there is nothing to judge on this machine; `why` is the
  /// reason. The verdict is `not applicable`, unless a check of this test
  /// fails.
  void not_applicable(const std::string& why);
  /// Adds a line with an input and its outcome to a table of the report. Judges
  /// nothing.
  void tabulate(const std::string& table, const std::string& input,
                const Outcome& outcome);
  /// Reports that the harness cannot judge, for example because it has no
  /// permission, no memory, or a bug of its own. Ends this process.
  [[noreturn]] void broken(const std::string& why);

  /// Reports that there is nothing to judge on this machine, and ends all roles
  /// of the scenario.
  [[noreturn]] void stop_not_applicable(const std::string& why);

  /// For the harness itself: a check that failed.
  void report_failure(const std::string& file, int line,
                      const std::string& message, const std::string& call,
                      const std::string& expected, const std::string& seen);
  /// For the harness itself: something left open.
  void report_left(const std::string& what);
  /// For the harness itself: the end of the body. If `rests`, the process waits
  /// for another role.
  void report_end(bool rests);
  /// For the harness itself: is the end of this process a step of the order?
  bool ends_in_turn() const { return ends_in_turn_; }
  /// For the harness itself: all inputs, and the first one that is left.
  void give_inputs(std::vector<std::string> inputs, size_t next) {
    inputs_ = std::move(inputs);
    next_input_ = next;
  }

 private:
  void post(Frame::Kind kind, const std::string& data);
  void post(const Frame& frame);
  Frame receive(const std::string& step, bool with_descriptor);
  void check_size(const std::string& step, size_t seen, size_t wanted);

  std::string name_;
  int index_;
  Wire& wire_;
  std::vector<std::string> order_;
  std::vector<std::string> inputs_;
  size_t next_input_ = 0;
  bool ends_in_turn_ = false;
};

/// Is this process a role (and not the referee)?
bool in_role();

}  // namespace ipclab
