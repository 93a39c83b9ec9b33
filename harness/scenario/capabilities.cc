// SPDX-License-Identifier: Apache-2.0
#include "capabilities.h"

#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "board.h"
#include "leaks.h"
#include "namespaces.h"
#include "wire.h"

namespace ipclab {
namespace {

constexpr int kProbeMilliseconds = 60000, kNamespaceMilliseconds = 10000;

struct Ended {
  std::string output;
  int status;  // of waitpid(2)
};

// Reads what a child writes until it ends. Kills the child if it has not ended
// after this many milliseconds.
Ended read_until_end(pid_t child, const Descriptor& input, int milliseconds) {
  const int64_t until = now_ns() + milliseconds * 1000000LL;
  const auto left = [until] {
    return static_cast<int>(std::max<int64_t>((until - now_ns()) / 1000000, 0));
  };
  Ended ended{"", 0};
  for (;;) {
    pollfd ready{input.get(), POLLIN, 0};
    if (poll(&ready, 1, left()) <= 0) break;
    char bytes[4096];
    const ssize_t n = read(input.get(), bytes, sizeof bytes);
    if (n <= 0) break;
    ended.output.append(bytes, static_cast<size_t>(n));
  }
  const Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  pollfd end{process.get(), POLLIN, 0};
  if (poll(&end, 1, left()) != 1) kill(child, SIGKILL);
  waitpid(child, &ended.status, 0);
  return ended;
}

// Runs this program with --ipclab_probe in a new process, because the referee
// must not use CUDA, and a driver that crashes must not end the referee.
std::string ask_own_probe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const Descriptor input(ends[0]);
  Descriptor output(ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output.get(), 1);
  char program[] = "/proc/self/exe", flag[] = "--ipclab_probe";
  char* arguments[] = {program, flag, nullptr};
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, program, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  output.close();
  if (error != 0) throw std::runtime_error("the probe does not start");

  const Ended probe = read_until_end(pid, input, kProbeMilliseconds);
  remove_driver_names({pid});
  if (!WIFEXITED(probe.status) || WEXITSTATUS(probe.status) != 0)
    throw std::runtime_error("the probe of this machine failed");
  return probe.output;
}

const std::string& document() {
  static const std::string text = [] {
    const char* path = std::getenv("IPCLAB_CAPABILITIES");
    if (path == nullptr) return ask_own_probe();
    std::ifstream file(path);
    std::ostringstream content;
    content << file.rdbuf();
    if (!file) throw std::runtime_error(std::string("cannot read ") + path);
    return content.str();
  }();
  return text;
}

size_t gpu_count() {
  size_t count = 0;
  for (size_t at = 0;
       (at = document().find("\"uuid\"", at)) != std::string::npos; ++at)
    ++count;
  return count;
}

// Returns the value of the next `key` in the document, from `at` on; if the
// value is a string, without its quotes. Moves `at` to the end of the value. If
// there is no such key, returns an empty string and sets `at` to npos.
std::string next_value(const std::string& key, size_t& at) {
  at = document().find("\"" + key + "\"", at);
  if (at == std::string::npos) return "";
  at = document().find_first_not_of(": \t\n", at + key.size() + 2);
  std::string value;
  const bool quoted = at < document().size() && document()[at] == '"';
  for (at += quoted; at < document().size(); ++at) {
    const char c = document()[at];
    if (quoted ? c == '"' : std::strchr(",}] \n", c) != nullptr) break;
    if (c == '\\') ++at;
    value += document()[at];
  }
  return value;
}

struct Answer {
  bool available;
  std::string reason;
};

// Each capability is one flat object with its members in a fixed order.
std::optional<Answer> answer_for(const std::string& capability) {
  size_t at = std::min(document().find("\"capabilities\""), document().size());
  for (;;) {
    const std::string name = next_value("name", at);
    if (at == std::string::npos) return std::nullopt;
    if (name != capability) continue;
    const std::string available = next_value("available", at);
    return Answer{available == "true", next_value("reason", at)};
  }
}

// The need "older_driver" means: the driver is older than the runtime. The need
// "older_driver:13010" means: the driver is older than that version of CUDA,
// and the runtime is not. Both versions are in the document.
std::optional<std::string> missing_older_driver(const std::string& wanted) {
  const auto version = [](const char* of) {
    size_t at = 0;
    return std::atoi(next_value(of, at).c_str());
  };
  const int driver = version("driver_version");
  const int runtime = version("runtime_version");
  const size_t colon = wanted.find(':');
  const int came = colon == std::string::npos
                       ? runtime
                       : std::atoi(wanted.c_str() + colon + 1);
  if (driver < came && came <= runtime) return std::nullopt;
  return "older_driver: driver " + std::to_string(driver) + ", runtime " +
         std::to_string(runtime) + ", must lie on both sides of " +
         std::to_string(came);
}

// Tries to enter namespaces in a child process, which then ends.
std::optional<std::string> missing_namespaces() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const Descriptor input(ends[0]);
  Descriptor output(ends[1]);
  const pid_t child = fork();
  if (child == -1) throw std::runtime_error("no process");
  if (child == 0) {
    const auto refused =
        enter_namespaces(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC);
    const bool told = !refused || dprintf(output.get(), "%s", refused->c_str());
    _exit(told ? 0 : 1);
  }
  output.close();
  const Ended attempt = read_until_end(child, input, kNamespaceMilliseconds);
  if (WIFSIGNALED(attempt.status))
    throw std::runtime_error(
        "the attempt to enter namespaces crashed or took too long");
  if (attempt.output.empty()) return std::nullopt;
  return "namespaces: " + attempt.output +
         " (needs CAP_SYS_ADMIN and a container that permits it)";
}

}  // namespace

std::optional<std::string> missing(const Need& need) {
  if (need.alone || need.second_gpu) return std::nullopt;  // up to the runner
  if (need.gpus > 0) {
    const size_t found = gpu_count();
    if (found >= static_cast<size_t>(need.gpus)) return std::nullopt;
    std::string reason = "needs " + std::to_string(need.gpus) + " GPU" +
                         (need.gpus == 1 ? "" : "s") + ", found " +
                         std::to_string(found);
    if (const auto answer = answer_for("gpus"); found == 0 && answer)
      reason += ": " + answer->reason;
    return reason;
  }
  if (need.capability == namespaces.capability) return missing_namespaces();
  if (need.capability.rfind("older_driver", 0) == 0)
    return missing_older_driver(need.capability);
  const auto answer = answer_for(need.capability);
  if (!answer)
    throw std::runtime_error("the probe says nothing about " + need.capability);
  if (answer->available) return std::nullopt;
  return need.capability + ": " + answer->reason;
}

bool has_imex_channel() {
  if (const char* given = std::getenv("IPCLAB_MODEL_IMEX_CHANNEL"))
    return std::strcmp(given, "none") != 0;
  const char* profile = std::getenv("IPCLAB_PROFILE");
  if (profile != nullptr && std::strncmp(profile, "fabric", 6) == 0)
    return true;

  glob_t found;
  bool may_open = false;
  if (glob("/dev/nvidia-caps-imex-channels/channel*", 0, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i)
      may_open |= access(found.gl_pathv[i], R_OK | W_OK) == 0;
  globfree(&found);
  return may_open;
}

}  // namespace ipclab
