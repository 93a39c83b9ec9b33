// Most lessons have two roles. The user starts the exporter. The
// exporter starts the same program again as the importer, by exec,
// because CUDA does not survive a fork. With `--role ROLE PATH` a
// user can start each role in its own terminal.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

#include "named_socket.h"
#include "require.h"

using namespace std::chrono_literals;

/// The exporter starts the importer with this first argument. The
/// second argument is the descriptor of the importer's socket.
constexpr char kImporterFlag[] = "--importer";

/// Returns true if the user chose the role with `--role ROLE PATH`.
inline bool by_hand(int argc, char** argv) {
  return argc == 4 && std::strcmp(argv[1], "--role") == 0 &&
         (std::strcmp(argv[2], "exporter") == 0 ||
          std::strcmp(argv[2], "importer") == 0);
}

/// Returns true in the importer. Also sets the name of the role. Exits
/// with code 2 if the arguments are wrong.
inline bool is_child(int argc, char** argv) {
  const bool hand = by_hand(argc, argv);
  const bool child =
      (argc == 3 && std::strcmp(argv[1], kImporterFlag) == 0) ||
      (hand && std::strcmp(argv[2], "importer") == 0);
  role_name() = child ? "importer" : "exporter";
  if (argc > 1 && !child && !hand) {
    std::fprintf(stderr, "usage: %s [--role exporter|importer PATH]\n",
                 argv[0]);
    std::exit(2);
  }
  return child;
}

/// Returns the importer's end of the channel. An inherited socket stays
/// open until this process ends. If the socket closed earlier, the
/// exporter could end first, and the system would kill this process.
inline Channel channel_from_parent(char** argv) {
  if (std::strcmp(argv[1], kImporterFlag) != 0)
    return Channel(connect_to(argv[3]));
  const int copy = dup(std::atoi(argv[2]));
  SYS_CHECK(copy);
  return Channel(copy);
}

/// What the exporter knows about the importer.
struct Child {
  Channel channel;   ///< to the importer
  pid_t pid;         ///< of the importer
  bool ours = true;  ///< false: started by hand, in another terminal

  /// Returns the importer's exit code, or 0 if the user started the
  /// importer. Kills the importer after `deadline`. If a signal ended
  /// the importer, prints a message and returns 1.
  int wait(std::chrono::milliseconds deadline) {
    if (!ours) return EXIT_SUCCESS;  // the user sees its exit code
    const int handle =
        static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    SYS_CHECK(handle);
    if (!wait_for(handle, POLLIN, deadline)) {
      std::fprintf(stderr, "process %d has not ended after %lld ms\n",
                   pid, static_cast<long long>(deadline.count()));
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

  /// Returns the exit code of the lesson: the exporter's code `mine` if
  /// it is a failure, else the importer's code. Waits up to 10 s.
  int finish(int mine) {
    const int theirs = wait(10s);
    return mine != EXIT_SUCCESS ? mine : theirs;
  }
};

/// Waits for an importer of the user. Exits with code 2 after 120 s.
inline Child meet_importer(const char* path) {
  const int listener = listen_at(path);
  if (!wait_for(listener, POLLIN, 120s))
    bad_path(path, "no importer has come within 120 s");
  const int connection = accept_from(listener);
  if (connection == -1)
    bad_path(path, "the importer belongs to another user");
  SYS_CHECK(close(listener));
  SYS_CHECK(unlink(path));
  return {Channel(connection), peer_of(connection).pid, false};
}

/// Starts the program again with `arguments`. `channel` is the end
/// of this process. The child is killed when this process ends.
inline Child start(char** argv, std::vector<std::string> arguments,
                   Channel channel = Channel(-1)) {
  arguments.insert(arguments.begin(), argv[0]);
  std::vector<char*> words;
  for (std::string& word : arguments) words.push_back(word.data());
  words.push_back(nullptr);

  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  SYS_CHECK(pid);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) execv("/proc/self/exe", words.data());
    _exit(EXIT_FAILURE);
  }
  return {std::move(channel), pid};
}

/// Starts the program again as the importer, or waits for an importer
/// that the user starts. `argv` is the `argv` of main.
inline Child start_again(char** argv) {
  if (argv[1] != nullptr) return meet_importer(argv[3]);
  int ends[2];
  SYS_CHECK(
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  const int theirs = dup(ends[1]);  // exec keeps it open
  SYS_CHECK(theirs);
  Child child = start(argv, {kImporterFlag, std::to_string(theirs)},
                      Channel(ends[0]));
  SYS_CHECK(close(theirs));
  SYS_CHECK(close(ends[1]));
  return child;
}
