// The two roles of a lesson: the exporter is the program as it was
// started, the importer is the same program started once more. It is
// started by exec, because CUDA does not survive a fork.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <string>

#include "channel.h"
#include "require.h"

using namespace std::chrono_literals;

/// The first argument of the second start; the second one is the number
/// of its socket.
constexpr char kImporterFlag[] = "--importer";

/// Is this the second start of the program?
inline bool is_child(int argc, char** argv) {
  const bool child =
      argc == 3 && std::strcmp(argv[1], kImporterFlag) == 0;
  role_name() = child ? "importer" : "exporter";
  if (argc > 1 && !child) {
    std::fprintf(stderr, "%s takes no arguments, but got '%s'\n",
                 argv[0], argv[1]);
    std::exit(2);
  }
  return child;
}

/// The importer's end of the channel; `argv` is main's.
inline Channel channel_from_parent(char** argv) {
  return Channel(std::atoi(argv[2]));
}

/// The importer, as the exporter sees it.
struct Child {
  Channel channel;  ///< to the importer
  pid_t pid;        ///< its process id

  /// The importer's exit code; 1, with a line that says why, if it was
  /// ended by a signal or did not end before the deadline.
  int wait(std::chrono::milliseconds deadline) {
    const int handle =
        static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    SYS_CHECK(handle);
    if (!wait_for(handle, POLLIN, deadline)) {
      std::fprintf(
          stderr,
          "the other process, %d, has not ended after %lld ms\n", pid,
          static_cast<long long>(deadline.count()));
      kill(pid, SIGKILL);
      if (!wait_for(handle, POLLIN, 5s)) return EXIT_FAILURE;
    }
    close(handle);
    int status = 0;
    SYS_CHECK(waitpid(pid, &status, 0));
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    std::fprintf(stderr, "signal %d (%s) ended the other process, %d\n",
                 WTERMSIG(status), strsignal(WTERMSIG(status)), pid);
    return EXIT_FAILURE;
  }

  /// The exit code of the lesson: `mine`, that of the exporter, if it
  /// failed, or else that of the importer, which has 10 s to end.
  int finish(int mine) {
    const int theirs = wait(10s);
    return mine != EXIT_SUCCESS ? mine : theirs;
  }
};

/// Starts the program again as the importer; `argv` is main's.
inline Child start_again(char** argv) {
  int ends[2];
  SYS_CHECK(
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  SYS_CHECK(pid);
  if (pid == 0) {
    // An exporter that dies takes its importer with it.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILURE);
    const int socket = dup(ends[1]);  // dup: this one survives exec
    const std::string number = std::to_string(socket);
    execl("/proc/self/exe", argv[0], kImporterFlag, number.c_str(),
          nullptr);
    _exit(EXIT_FAILURE);
  }
  close(ends[1]);
  return {Channel(ends[0]), pid};
}
