// SPDX-License-Identifier: Apache-2.0
// Fabric handles.
#include "core/fabric.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/block.h"
#include "core/handle.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

constexpr std::chrono::seconds kDeadline{5};
constexpr size_t kMostClients = 256;
constexpr int kTickMs = 100;

std::optional<uint64_t> imex_channel() {
  const char* variable = std::getenv("IPCLAB_MODEL_IMEX_CHANNEL");
  if (variable == nullptr || *variable == '\0') {
    return profile().imex ? std::optional<uint64_t>(0) : std::nullopt;
  }
  char* end = nullptr;
  const uint64_t channel = std::strtoull(variable, &end, 10);
  return *end == '\0' ? std::optional<uint64_t>(channel) : std::nullopt;
}

// The exporter's side of the fabric: the memory that it has exported, and the
// socket on which it answers. The name of the socket is a number. The name
// disappears when the process ends in any way.
struct Offer {
  std::weak_ptr<const void> owner;
  int descriptor = -1;  // open as long as the owner exists
};

struct Endpoint {
  std::mutex mutex;
  std::map<uint64_t, Offer> offers;  // by id
  uint64_t name = 0;
  int socket = -1;
};

Endpoint& endpoint() {
  static auto& only = *new Endpoint;
  return only;
}

// An address without a file: it begins with a zero byte.
socklen_t address_of(uint64_t name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const int length = std::snprintf(
      address->sun_path + 1, sizeof address->sun_path - 1,
      "ipclab-model-fabric-%016llx", static_cast<unsigned long long>(name));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<size_t>(length));
}

// A descriptor and the object that keeps it open; no owner if there is no such
// memory.
std::pair<std::shared_ptr<const void>, int> find_offer(uint64_t id) {
  Endpoint& own = endpoint();
  const std::lock_guard lock(own.mutex);
  for (auto entry = own.offers.begin(); entry != own.offers.end();) {
    std::shared_ptr<const void> owner = entry->second.owner.lock();
    if (owner == nullptr) {
      entry = own.offers.erase(entry);
    } else if (entry->first == id) {
      return {std::move(owner), entry->second.descriptor};
    } else {
      ++entry;
    }
  }
  return {};
}

// Sends one byte, and a descriptor with it if there is one.
void send_answer(int socket, int descriptor) {
  char found = descriptor >= 0 ? 1 : 0;
  iovec bytes{&found, sizeof found};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (found != 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

int receive_answer(int socket) {
  char found = 0;
  int descriptor = -1;
  iovec bytes{&found, sizeof found};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (found != 0 && header != nullptr) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  }
  return descriptor;
}

// "All processes under a user can share memory" (cuMemCreate).
bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == getuid();
}

using Clock = std::chrono::steady_clock;

// A client that has connected, but has not sent its question yet.
struct Client {
  int socket;
  Clock::time_point until;
};

void answer(int socket) {
  uint64_t id = 0;
  if (recv(socket, &id, sizeof id, MSG_DONTWAIT) != sizeof id) return;
  const auto [owner, descriptor] = find_offer(id);
  send_answer(socket, owner == nullptr ? -1 : descriptor);
}

// Accepts a client, but closes the connection of another user. False if no
// descriptor is left.
bool take_client(int listener, std::vector<Client>* clients) {
  const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return false;
  if (is_same_user(socket)) {
    clients->push_back({socket, Clock::now() + kDeadline});
  } else {
    close(socket);
  }
  return true;
}

// Answers each client when it asks, so a silent client does not delay others.
void serve(int listener) {
  std::vector<Client> clients;
  bool full = false;
  for (;;) {
    std::vector<pollfd> polled;
    full = full || clients.size() >= kMostClients;
    polled.push_back({full ? -1 : listener, POLLIN, 0});
    for (const Client& client : clients) {
      polled.push_back({client.socket, POLLIN, 0});
    }
    const bool must_look = full || !clients.empty();
    poll(polled.data(), polled.size(), must_look ? kTickMs : -1);
    const Clock::time_point now = Clock::now();
    std::vector<Client> waiting;
    for (size_t i = 0; i < clients.size(); ++i) {
      const bool asks = polled[i + 1].revents != 0;
      if (asks) answer(clients[i].socket);
      if (asks || now > clients[i].until) {
        close(clients[i].socket);
      } else {
        waiting.push_back(clients[i]);
      }
    }
    clients = std::move(waiting);
    // If no descriptor is left, a new client waits for the next round.
    full = polled[0].revents != 0 && !take_client(listener, &clients);
  }
}

// The caller holds the endpoint's mutex.
void open_endpoint() {
  Endpoint& own = endpoint();
  own.name = unique_id();
  own.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = address_of(own.name, &address);
  if (bind(own.socket, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(own.socket, SOMAXCONN) != 0) {
    return;  // then every import of this process's handles fails
  }
  std::thread(serve, own.socket).detach();
  // A child of fork has the socket, but no thread that answers.
  pthread_atfork(nullptr, nullptr, [] { close(endpoint().socket); });
}

}  // namespace

bool has_imex_channel() { return imex_channel().has_value(); }

CUresult fabric_is_ready() {
  if (!profile().late_fabric) return CUDA_SUCCESS;
  constexpr auto kNotReady = static_cast<CUresult>(919);
  static const Clock::time_point ready =
      Clock::now() + std::chrono::milliseconds(200);
  return Clock::now() < ready ? kNotReady : CUDA_SUCCESS;
}

void fabric_export(uint64_t id, int descriptor,
                   const std::shared_ptr<const void>& owner, void* out) {
  Endpoint& own = endpoint();
  const std::lock_guard lock(own.mutex);
  if (own.socket < 0) open_endpoint();
  own.offers[id] = {owner, descriptor};
  Handle handle{};
  handle.object = id;
  handle.occupant = own.name;
  handle.offset = imex_channel().value_or(0);
  seal(HandleKind::kFabric, &handle);
  std::memcpy(out, &handle, sizeof handle);
}

CUresult fabric_import(const void* bytes, int* descriptor) {
  if (CUresult error = fabric_is_ready()) return error;
  Handle handle;
  std::memcpy(&handle, bytes, sizeof handle);
  if (!is_sealed(HandleKind::kFabric, handle)) return CUDA_ERROR_INVALID_VALUE;
  if (imex_channel() != handle.offset) return CUDA_ERROR_NOT_PERMITTED;
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const timeval limit{kDeadline.count(), 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  sockaddr_un address;
  const socklen_t length = address_of(handle.occupant, &address);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
      send(connection, &handle.object, sizeof handle.object, MSG_NOSIGNAL) ==
          sizeof handle.object) {
    *descriptor = receive_answer(connection);
  }
  close(connection);
  return *descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace ipclab::model
