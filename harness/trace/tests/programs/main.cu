// `programs CASE right|wrong` runs one case as two processes. `programs` prints
// the names of the cases.
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <string>

#include "programs.h"

__global__ void touch_first(int* data) { *data += 1; }

void touch(void* data) {
  touch_first<<<1, 1>>>(static_cast<int*>(data));
  // If the address is the mistake of the case, this call fails, as expected.
  static_cast<void>(cudaDeviceSynchronize());
}

namespace {

int peer = -1;  // a pidfd

int open_process(pid_t pid) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  SYS_CHECK(process);
  return process;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto* cases : {&kMemory, &kLifetimes, &kEvents, &kChunks, &kPools,
                            &kOwners, &kSurroundings, &kCaptures})
    all.insert(all.end(), cases->begin(), cases->end());
  return all;
}

int start_importer(char** argv, int socket) {
  // The pidfd is opened here, because the exporter may have ended before its
  // importer runs.
  const int exporter = open_process(getpid());
  const pid_t pid = fork();
  SYS_CHECK(pid);
  if (pid != 0) {
    close(exporter);
    return pid;
  }
  const std::string inherited = std::to_string(dup(socket));
  const std::string process = std::to_string(dup(exporter));
  execl("/proc/self/exe", argv[0], argv[1], argv[2], "--importer",
        inherited.c_str(), process.c_str(), nullptr);
  _exit(EXIT_FAILURE);
}

int run(const Case& role, bool wrong, char** argv) {
  if (argv[3] != nullptr) {
    role_name() = "importer";
    peer = std::atoi(argv[5]);
    Channel channel(std::atoi(argv[4]));
    role.importer(channel, wrong);
    return EXIT_SUCCESS;
  }
  role_name() = "exporter";
  int ends[2];
  SYS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  const pid_t pid = start_importer(argv, ends[1]);
  peer = open_process(pid);
  close(ends[1]);
  Channel channel(ends[0]);
  role.exporter(channel, wrong);
  const int status = end_of(pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

}  // namespace

void wait_for_peers_end() {
  pollfd ended{peer, POLLIN, 0};
  if (poll(&ended, 1, 10000) != 1) std::exit(EXIT_FAILURE);
}

int end_of(pid_t child) {
  const int process = open_process(child);
  pollfd ended{process, POLLIN, 0};
  if (poll(&ended, 1, 20000) != 1) {
    std::fprintf(stderr, "process %d does not end\n", child);
    kill(child, SIGKILL);
  }
  close(process);
  int status = 0;
  SYS_CHECK(waitpid(child, &status, 0));
  return status;
}

int main(int argc, char** argv) {
  alarm(120);  // the deadline of every wait without one of its own
  const std::vector<Case> cases = all_cases();
  if (argc == 1) {
    for (const Case& role : cases) std::printf("%s\n", role.name);
    return EXIT_SUCCESS;
  }
  for (const Case& role : cases) {
    if (argc >= 3 && std::string(argv[1]) == role.name)
      return run(role, std::string(argv[2]) == "wrong", argv);
  }
  std::fprintf(stderr, "usage: %s [CASE right|wrong]\n", argv[0]);
  return 2;
}
