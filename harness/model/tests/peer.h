// SPDX-License-Identifier: Apache-2.0
// A second process for a test: this program is started again and runs one
// registered role. A socket connects it to the test.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <type_traits>

namespace ipclab::model::test {

/// The socket between a test and its peer. Every read has a deadline.
class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}
  template <typename T>
  void send(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    write_all(&value, sizeof value);
  }
  /// Aborts the process if nothing arrives within twenty seconds.
  template <typename T>
  T receive() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    read_all(&value, sizeof value);
    return value;
  }
  /// Sends a descriptor. The receiver owns a copy of it.
  void send_descriptor(int descriptor);
  int receive_descriptor();
  void close_socket();

 private:
  void write_all(const void* data, size_t size);
  void read_all(void* data, size_t size);
  int socket_;
};

using Role = void (*)(Channel& test);
std::map<std::string, Role>& roles();

/// Runs a role in a new process.
class Peer {
 public:
  explicit Peer(const std::string& role,
                const std::map<std::string, std::string>& environment = {});
  /// Kills the process if it still runs.
  ~Peer();
  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }
  void kill(int signal) { ::kill(pid_, signal); }
  /// Waits until the process ends. Returns "exit 0" or "signal 11", or
  /// "timeout" after twenty seconds.
  std::string wait();

 private:
  pid_t pid_ = -1;
  Channel channel_{-1};
};

/// If the command line names a role, runs this role and ends the process. The
/// exit code is 0 if no expectation of the role failed.
void run_role(int argc, char** argv);

}  // namespace ipclab::model::test

/// Defines and registers a role.
#define ROLE(name)                                                       \
  static void role_##name(::ipclab::model::test::Channel&);              \
  static const bool registered_##name =                                  \
      ::ipclab::model::test::roles().emplace(#name, role_##name).second; \
  static void role_##name([[maybe_unused]] ::ipclab::model::test::Channel& test)
