// SPDX-License-Identifier: Apache-2.0
#include "namespaces.h"

#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace ipclab {
namespace {

// Ends this process as its child ended. The exit code 128 + signal means a
// signal, as in a shell: the first process of a namespace cannot end itself by
// a signal.
[[noreturn]] void end_like(int status) {
  int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (code > 128) {
    std::signal(code - 128, SIG_DFL);
    kill(getpid(), code - 128);
  }
  _exit(code);
}

bool go_on_in_a_child() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == -1) return false;
  if (child == 0) return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  int status = 0;
  while (waitpid(child, &status, 0) == -1 && errno == EINTR) {
  }
  end_like(status);
}

bool private_mounts() {
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool mount_own(const char* type, const char* where) {
  return mount(type, where, type, MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) ==
         0;
}

// Gives this process's user and group the number 0 in its new namespace.
bool map_to_root(uid_t user, gid_t group) {
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream users("/proc/self/uid_map"), groups("/proc/self/gid_map");
  users << "0 " << user << " 1" << std::flush;
  groups << "0 " << group << " 1" << std::flush;
  return users.good() && groups.good();
}

}  // namespace

std::optional<std::string> enter_namespaces(int kinds, int number) {
  const auto refused = [](const char* step) {
    return std::string(step) + ": " + std::strerror(errno);
  };
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(kinds) != 0) return refused("unshare");
  if ((kinds & CLONE_NEWUSER) != 0 && !map_to_root(user, group))
    return refused("a map of users");
  if ((kinds & CLONE_NEWNS) != 0) {
    if (!private_mounts()) return refused("a private mount of /");
    if (!mount_own("tmpfs", "/dev/shm")) return refused("mount of /dev/shm");
  }
  if ((kinds & CLONE_NEWPID) == 0) return std::nullopt;
  for (int i = 0; i < number; ++i)
    if (!go_on_in_a_child()) return refused("fork");
  if (!mount_own("proc", "/proc")) return refused("mount of /proc");
  return std::nullopt;
}

}  // namespace ipclab
