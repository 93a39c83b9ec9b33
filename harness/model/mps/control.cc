// Replaces nvidia-cuda-mps-control on a machine without a GPU. So programs that
// start this command can run on the model. It has no server and changes
// nothing: processes of the model can always use their simulated GPU at the
// same time. It only makes a socket. A process that can connect to this socket
// reports that the process is a client (core/mps.cc).
//
//   nvidia-cuda-mps-control -d   starts the daemon
//   nvidia-cuda-mps-control      reads commands: quit, quit -t SECONDS,
//                                get_server_list
//
// Daemons in different folders do not know each other, so several can run at
// the same time.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

std::string socket_path() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return std::string(folder == nullptr ? "/tmp/nvidia-mps" : folder) +
         "/control";
}

bool socket_address(sockaddr_un* address) {
  const std::string path = socket_path();
  address->sun_family = AF_UNIX;
  if (path.size() >= sizeof address->sun_path) return false;
  std::strcpy(address->sun_path, path.c_str());
  return true;
}

int open_socket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

using Clock = std::chrono::steady_clock;

constexpr char kQuit[] = "quit", kQuitWithin[] = "quit -t ";

// Is this a command to end? With "-t SECONDS" the daemon waits for its clients
// only so long, and otherwise for `most`. Moves `*end` to this time.
bool is_quit(const std::string& command, Clock::time_point* end) {
  constexpr std::chrono::hours most{1};
  if (command == kQuit) {
    *end = Clock::now() + most;
    return true;
  }
  const size_t length = std::strlen(kQuitWithin);
  const std::string number = command.compare(0, length, kQuitWithin) == 0
                                 ? command.substr(length)
                                 : "";
  if (number.empty() || number.size() > 4 ||
      number.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *end = Clock::now() + std::chrono::seconds(std::stoi(number));
  return true;
}

// Serves until "quit" has arrived and the last client has ended. Also ends if
// nothing happens for an hour, and at the end of the time of "quit -t".
void serve(int listener) {
  constexpr std::chrono::hours kIdle{1};
  bool quits = false;
  Clock::time_point end;
  std::vector<pollfd> asked{{listener, POLLIN, 0}};
  while (!(quits && asked.size() == 1)) {
    const Clock::time_point until = quits ? end : Clock::now() + kIdle;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - Clock::now());
    const int wait = static_cast<int>(std::max<long long>(left.count(), 0));
    if (poll(asked.data(), asked.size(), wait) <= 0) return;
    for (size_t i = asked.size() - 1; i > 0; --i) {
      if (asked[i].revents == 0) continue;
      char word[16] = {};
      if (recv(asked[i].fd, word, sizeof word - 1, MSG_DONTWAIT) > 0) {
        quits |= is_quit(word, &end);
        continue;
      }
      close(asked[i].fd);
      asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (asked[0].revents == 0) continue;
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client != -1) asked.push_back({client, POLLIN, 0});
  }
}

int start_daemon() {
  sockaddr_un address{};
  const int listener = open_socket();
  if (listener == -1 || !socket_address(&address) ||
      bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
          0 ||
      listen(listener, 64) != 0) {
    std::perror(socket_path().c_str());
    return 1;
  }
  if (fork() != 0) return 0;  // the socket already listens
  setsid();
  const int nothing = open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    dup2(nothing, stream);
  serve(listener);
  unlink(socket_path().c_str());
  return 0;
}

int give_commands() {
  sockaddr_un address{};
  const int daemon = open_socket();
  if (daemon == -1 || !socket_address(&address) ||
      connect(daemon, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
          0) {
    std::fprintf(stderr, "Cannot find MPS control daemon process\n");
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "get_server_list") continue;  // the list is empty
    Clock::time_point end;
    if (!is_quit(line, &end)) {
      std::fprintf(stderr, "%s: the model's stand-in does not know this\n",
                   line.c_str());
      return 1;
    }
    if (send(daemon, line.data(), line.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(line.size()))
      return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "-d") == 0) return start_daemon();
  if (argc == 1) return give_commands();
  std::fprintf(stderr, "usage: %s [-d]\n", argv[0]);
  return 1;
}
