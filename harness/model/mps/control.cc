// Replaces nvidia-cuda-mps-control on a machine without a GPU. So programs that
// start this command can run on the model. It has no server and changes
// nothing: processes of the model can always use their simulated GPU at the
// same time. It only makes a socket. A process that can connect to this socket
// reports that the process is a client (core/mps.cc).
//
//   nvidia-cuda-mps-control -d   starts the daemon
//   nvidia-cuda-mps-control      reads commands: quit, get_server_list
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

// Serves until "quit" has arrived and the last client has ended. Also ends if
// nothing happens for an hour.
void serve(int listener) {
  constexpr int kHour = 3600 * 1000;
  bool quits = false;
  std::vector<pollfd> asked{{listener, POLLIN, 0}};
  while (!(quits && asked.size() == 1)) {
    if (poll(asked.data(), asked.size(), kHour) <= 0) return;
    for (size_t i = asked.size() - 1; i > 0; --i) {
      if (asked[i].revents == 0) continue;
      char word[16] = {};
      if (recv(asked[i].fd, word, sizeof word - 1, MSG_DONTWAIT) > 0) {
        quits |= std::strcmp(word, "quit") == 0;
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
    if (line != "quit") {
      std::fprintf(stderr, "%s: the model's stand-in does not know this\n",
                   line.c_str());
      return 1;
    }
    if (send(daemon, "quit", 4, MSG_NOSIGNAL) != 4) return 1;
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
