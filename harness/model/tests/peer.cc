// SPDX-License-Identifier: Apache-2.0
// A second process for a test.
#include "peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace ipclab::model::test {
namespace {
constexpr int kDeadlineMs = 20000;
}

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> map;
  return map;
}

void Channel::close_all() {
  if (in_ >= 0) close(in_);
  if (out_ >= 0) close(out_);
  in_ = out_ = -1;
}

void Channel::write_all(const void* data, size_t size) {
  if (write(out_, data, size) != static_cast<ssize_t>(size)) {
    std::perror("the peer is gone");
  }
}

void Channel::read_all(void* data, size_t size) {
  auto* place = static_cast<char*>(data);
  while (size > 0) {
    pollfd wait{in_, POLLIN, 0};
    const ssize_t got =
        poll(&wait, 1, kDeadlineMs) == 1 ? read(in_, place, size) : -1;
    if (got <= 0) {
      std::fprintf(stderr, "nothing came from the other process\n");
      std::abort();
    }
    place += got;
    size -= static_cast<size_t>(got);
  }
}

Peer::Peer(const std::string& role,
           const std::map<std::string, std::string>& environment) {
  int to_peer[2];
  int from_peer[2];
  if (pipe2(to_peer, O_CLOEXEC) != 0 || pipe2(from_peer, O_CLOEXEC) != 0) {
    std::abort();
  }
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const auto& [name, value] : environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    const std::string in = std::to_string(dup(to_peer[0]));
    const std::string out = std::to_string(dup(from_peer[1]));
    execl("/proc/self/exe", "peer", "--role", role.c_str(), in.c_str(),
          out.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(to_peer[0]);
  close(from_peer[1]);
  channel_ = Channel(from_peer[0], to_peer[1]);
}

Peer::~Peer() {
  channel_.close_all();
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

std::string Peer::wait() {
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended{handle, POLLIN, 0};
  const bool in_time = poll(&ended, 1, kDeadlineMs) == 1;
  close(handle);
  if (!in_time) return "timeout";
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit " + std::to_string(WEXITSTATUS(status));
}

void run_role(int argc, char** argv) {
  if (argc != 5 || std::string(argv[1]) != "--role") return;
  const auto role = roles().find(argv[2]);
  if (role == roles().end()) std::exit(126);
  Channel test(std::atoi(argv[3]), std::atoi(argv[4]));
  role->second(test);
  const auto& result = ::testing::UnitTest::GetInstance()->ad_hoc_test_result();
  std::exit(result.Failed() ? 1 : 0);
}

}  // namespace ipclab::model::test
