// Processes whose roles have reached their end. They wait to play a role of a
// later scenario. They save time: a run of the suite spends most of its time
// starting CUDA processes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "board.h"
#include "record.h"
#include "wire.h"

namespace ipclab {

/// A role's process as the referee sees it.
struct RoleProcess {
  pid_t pid = -1;
  Descriptor ended;   // of pidfd_open(2)
  Descriptor output;  // what the role prints
  Wire wire;
  Board* board = nullptr;  // mapped until the process is dropped
};

/// The processes that wait. The referee keeps them only between scenarios that
/// say kShared; see Scenario.
class IdleProcesses {
 public:
  static IdleProcesses& instance();

  bool empty() const { return waiting_.empty(); }
  /// Notes what the GPUs and /dev/shm contain before the first of these
  /// processes is started.
  void begin();

  /// Takes one of the waiting processes; if possible, a process whose last role
  /// had this name. Returns std::nullopt if no process waits.
  std::optional<RoleProcess> take(const std::string& role);
  /// Takes over a process whose role has reached its end.
  void keep(RoleProcess process, const std::string& role);

  std::set<pid_t> pids() const;
  /// The numbers of the descriptors that the referee has for these processes.
  std::set<int> descriptors() const;

  /// What was wrong when these processes ended.
  struct Problem {
    Record::Outcome outcome;
    std::string what;
  };
  /// Ends all waiting processes, and finds what they have left behind.
  std::vector<Problem> end();

 private:
  struct Idle {
    RoleProcess process;
    std::string role;
  };
  std::deque<Idle> waiting_;
  std::vector<pid_t> pids_;  // of all processes that have ever waited here
  std::vector<unsigned long long> memory_before_;
  std::set<std::string> names_before_;
};

}  // namespace ipclab
