// The two roles of a lesson send each other named steps over a
// connected socket. A step can carry bytes or a descriptor. A wait for
// a step ends this process after 10 s, or if the other role has ended.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <type_traits>
#include <utility>

#include "check.h"

/// Waits until poll(2) reports `events` or an error for the descriptor.
/// Returns false if `limit` passes first. Signals do not end the wait.
inline bool wait_for(int descriptor, short events,
                     std::chrono::milliseconds limit) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        end - clock::now());
    pollfd asked{descriptor, events, 0};
    const int answer =
        poll(&asked, 1, std::max(0, static_cast<int>(left.count())));
    if (answer == 1) return true;
    if (answer == -1 && errno != EINTR) SYS_CHECK(answer);
    if (left.count() <= 0) return false;
  }
}

/// Sends one packet, with a descriptor if `descriptor` is not -1.
/// Returns what sendmsg(2) returns. Never raises SIGPIPE.
inline ssize_t send_packet(int socket, const void* data, size_t size,
                           int descriptor) {
  iovec bytes{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor != -1) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;  // Linux copies the descriptor
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL);
}

/// Receives one packet. Sets *descriptor to the descriptor that came
/// (close-on-exec), or to -1. Returns what recvmsg(2) returns.
inline ssize_t receive_packet(int socket, void* data, size_t size,
                              int* descriptor, int flags = 0) {
  iovec bytes{data, size};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  *descriptor = -1;
  const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  const cmsghdr* header = n < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  return n;
}

/// A role's end of the connection with the other role.
class Channel {
 public:
  /// Becomes the owner of one end of a connection.
  explicit Channel(int socket) : socket_(socket) {}
  /// Takes the socket of `other`, which then has no socket.
  Channel(Channel&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)) {}
  ~Channel() {
    if (socket_ != -1) close(socket_);
  }

  /// Tells the other role that `step` has happened.
  void signal(const char* step) { send_bytes(step, nullptr, 0, -1); }

  /// Waits until the other role has said that `step` has happened.
  void wait(const char* step) { receive_bytes(step, nullptr, 0); }

  /// Sends the bytes of a value, for example a handle.
  template <class T>
  void send(const char* step, const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    send_bytes(step, &value, sizeof value, -1);
  }

  /// Receives a value that the other role sent at `step`.
  template <class T>
  T receive(const char* step) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    receive_bytes(step, &value, sizeof value);
    return value;
  }

  /// Sends a copy of a descriptor. The caller closes the original.
  void send_descriptor(const char* step, int descriptor) {
    send_bytes(step, nullptr, 0, descriptor);
  }

  /// Receives a descriptor. The caller closes the descriptor.
  int receive_descriptor(const char* step) {
    const int descriptor = receive_bytes(step, nullptr, 0);
    if (descriptor == -1) broken(step, "came without a descriptor");
    return descriptor;
  }

 private:
  static constexpr std::chrono::milliseconds kDeadline{10000};

  [[noreturn]] void broken(const char* step, const std::string& what) {
    std::fflush(stdout);
    print_role(stderr);
    std::fprintf(stderr, "step '%s': %s\n", step, what.c_str());
    std::exit(EXIT_FAILURE);
  }

  void send_bytes(const char* step, const void* data, size_t size,
                  int descriptor) {
    if (!wait_for(socket_, POLLOUT, kDeadline))
      broken(step, "the other role has received nothing for 10 s");
    std::string packet(step, std::strlen(step) + 1);
    if (size != 0) packet.append(static_cast<const char*>(data), size);
    const ssize_t sent =
        send_packet(socket_, packet.data(), packet.size(), descriptor);
    if (sent == -1 && (errno == EPIPE || errno == ECONNRESET))
      broken(step, "the other role has ended");
    if (sent == -1) broken(step, std::strerror(errno));
  }

  int receive_bytes(const char* step, void* data, size_t size) {
    if (!wait_for(socket_, POLLIN, kDeadline))
      broken(step, "still waiting after 10 s");
    const size_t name = std::strlen(step) + 1;
    std::string packet(name + size + 256, '\0');
    int descriptor = -1;
    const ssize_t n = receive_packet(socket_, packet.data(),
                                     packet.size(), &descriptor);
    if (n <= 0) broken(step, "the other role has ended");
    if (packet.compare(0, name, step, name) != 0)
      broken(step, std::string("the other role is at '") +
                       packet.c_str() + "'");
    if (static_cast<size_t>(n) != name + size)
      broken(step, descriptor < 0 ? "the other role sent another size"
                                  : "the other role sent a descriptor");
    if (size != 0) std::memcpy(data, packet.data() + name, size);
    return descriptor;
  }

  int socket_;
};
