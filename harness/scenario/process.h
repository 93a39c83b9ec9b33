// Says what this process is: the referee, a role in a run, or a program that
// only lists its tests.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "role.h"

namespace ipclab {

struct Board;

/// The place of a role in its scenario. The referee puts it into the
/// environment of the new process.
struct RolePlace {
  int run = 0;       // which run() of the TEST, from 0
  int role = 0;      // which role of the scenario, from 0
  size_t input = 0;  // the first input that nobody has tried
  int socket = -1;
  int board = -1;
  int referee = 0;  // its process id

  static constexpr char kVariable[] = "IPCLAB_ROLE";

  std::string text() const;
  static RolePlace parse(const std::string& text);
};

struct Process {
  bool listing = false;
  bool is_role = false;
  RolePlace place;       // if it is a role
  Wire wire;             // if it is a role: to the referee
  std::string next;      // the TEST of its next role; may be empty
  int runs = 0;          // how often the TEST has called run()
  Role* role = nullptr;  // while its body runs
  /// Is CUDA in this process as in a new process? Null if there is no CUDA.
  bool (*as_new)() = nullptr;

  /// This process. The first call removes the referee's variable from the
  /// environment, so that programs started from here do not see it.
  static Process& self();
};

/// SIGSEGV, SIGKILL …
std::string signal_name(int signal);

/// Runs a role's body, reports the result to the referee and ends the process.
/// But if the process may be `shared`, no check failed and the process is like
/// a new process, the process does not end. Then this function waits until the
/// referee has another role for the process, and returns.
void play_role(const std::string& name, int index,
               const std::vector<std::string>& order,
               const std::function<void(Role&)>& body, bool shared);

}  // namespace ipclab
