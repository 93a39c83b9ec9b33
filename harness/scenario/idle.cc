// SPDX-License-Identifier: Apache-2.0
#include "idle.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "leaks.h"
#include "process.h"

namespace ipclab {
namespace {

constexpr int kEndsWithin = 5000;  // milliseconds, for an end without work

}  // namespace

IdleProcesses& IdleProcesses::instance() {
  static IdleProcesses processes;
  return processes;
}

void IdleProcesses::begin() {
  memory_before_ = DeviceMemory::instance().used();
  names_before_ = shared_memory_names();
  pids_.clear();
}

std::optional<RoleProcess> IdleProcesses::take(const std::string& role) {
  if (waiting_.empty()) return std::nullopt;
  auto chosen =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [&](const Idle& idle) { return idle.role == role; });
  if (chosen == waiting_.end()) chosen = waiting_.begin();
  RoleProcess process = std::move(chosen->process);
  waiting_.erase(chosen);
  return process;
}

void IdleProcesses::keep(RoleProcess process, const std::string& role) {
  pids_.push_back(process.pid);
  waiting_.push_back({std::move(process), role});
}

std::set<pid_t> IdleProcesses::pids() const {
  std::set<pid_t> found;
  for (const Idle& idle : waiting_) found.insert(idle.process.pid);
  return found;
}

std::set<int> IdleProcesses::descriptors() const {
  std::set<int> found;
  for (const Idle& idle : waiting_)
    found.insert({idle.process.ended.get(), idle.process.output.get(),
                  idle.process.wire.socket()});
  return found;
}

std::vector<IdleProcesses::Problem> IdleProcesses::end() {
  std::vector<Problem> problems;
  if (waiting_.empty()) return problems;
  for (Idle& idle : waiting_) idle.process.wire.close();  // they exit
  for (Idle& idle : waiting_) {
    const std::string who = "the process that played " + idle.role + " last (" +
                            std::to_string(idle.process.pid) + ")";
    pollfd gone{idle.process.ended.get(), POLLIN, 0};
    bool killed = false;
    if (poll(&gone, 1, kEndsWithin) != 1) {
      problems.push_back({Record::kHung, who + " does not end"});
      killed = kill(idle.process.pid, SIGKILL) == 0;
      if (poll(&gone, 1, kEndsWithin) != 1) {
        problems.push_back({Record::kBroken, "SIGKILL does not end " + who});
        continue;
      }
    }
    int status = 0;
    waitpid(idle.process.pid, &status, 0);
    if (WIFSIGNALED(status) && !killed)
      problems.push_back({Record::kCrashed, who + " was killed by " +
                                                signal_name(WTERMSIG(status)) +
                                                " after its end"});
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      problems.push_back(
          {Record::kCrashed, who + " ended with exit code " +
                                 std::to_string(WEXITSTATUS(status)) +
                                 " after its end"});
    munmap(idle.process.board, sizeof(Board));
  }
  waiting_.clear();

  for (const std::string& name : remove_driver_names(pids_))
    Record::current().notes.push_back("the driver left " + name);
  std::vector<std::string> left =
      left_in_shared_memory(names_before_, pids_, std::chrono::seconds(2));
  for (const std::string& what : DeviceMemory::instance().left(
           memory_before_, pids_, std::chrono::seconds(10)))
    left.push_back(what);
  for (const std::string& what : left)
    problems.push_back(
        {Record::kBroken,
         "left behind, by one of the tests that shared processes: " + what});
  return problems;
}

}  // namespace ipclab
