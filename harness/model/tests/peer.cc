// SPDX-License-Identifier: Apache-2.0
// A second process for a test.
#include "peer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace ipclab::model::test {
namespace {
constexpr int kDeadlineMs = 20000;
}

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> map;
  return map;
}

void Channel::close_socket() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void Channel::write_all(const void* data, size_t size) {
  if (::send(socket_, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
    std::perror("the peer is gone");
  }
}

void Channel::read_all(void* data, size_t size) {
  auto* place = static_cast<char*>(data);
  while (size > 0) {
    pollfd wait{socket_, POLLIN, 0};
    const ssize_t got =
        poll(&wait, 1, kDeadlineMs) == 1 ? read(socket_, place, size) : -1;
    if (got <= 0) {
      std::fprintf(stderr, "nothing came from the other process\n");
      std::abort();
    }
    place += got;
    size -= static_cast<size_t>(got);
  }
}

// A message with a descriptor needs at least one byte of data.
struct Parcel {
  explicit Parcel(int descriptor) {
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  char byte = 'd';
  iovec content{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

void Channel::send_descriptor(int descriptor) {
  Parcel parcel(descriptor);
  if (sendmsg(socket_, &parcel.message, MSG_NOSIGNAL) != 1) {
    std::perror("the peer is gone");
  }
}

int Channel::receive_descriptor() {
  Parcel parcel(-1);
  pollfd wait{socket_, POLLIN, 0};
  if (poll(&wait, 1, kDeadlineMs) != 1 ||
      recvmsg(socket_, &parcel.message, MSG_CMSG_CLOEXEC) != 1) {
    std::fprintf(stderr, "no descriptor came from the other process\n");
    std::abort();
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&parcel.message)),
              sizeof descriptor);
  return descriptor;
}

Peer::Peer(const std::string& role,
           const std::map<std::string, std::string>& environment) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    std::abort();
  }
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const auto& [name, value] : environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    const std::string socket = std::to_string(dup(ends[0]));
    execl("/proc/self/exe", "peer", "--role", role.c_str(), socket.c_str(),
          static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[0]);
  channel_ = Channel(ends[1]);
}

Peer::~Peer() {
  channel_.close_socket();
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
  if (argc != 4 || std::string(argv[1]) != "--role") return;
  const auto role = roles().find(argv[2]);
  if (role == roles().end()) std::exit(126);
  Channel test(std::atoi(argv[3]));
  role->second(test);
  const auto& result = ::testing::UnitTest::GetInstance()->ad_hoc_test_result();
  std::exit(result.Failed() ? 1 : 0);
}

}  // namespace ipclab::model::test
