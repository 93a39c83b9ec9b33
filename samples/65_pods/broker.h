// The broker of lesson 65: it keeps descriptors of other processes and
// gives each one to the process that knows its token. It calls no CUDA
// function and needs no GPU.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <sys/random.h>

#include "../common/roles.h"

/// What a client asks (the first four), and what the broker says.
enum class What { kLend, kTake, kRevoke, kDone, kYes, kNo, kOtherLeft };

struct Message {
  What what;
  char token[33];  // the secret that exporter and importer know
};

/// Sends a message, with a descriptor if `fd` is not -1. The result is
/// not checked: a process that has left is not an error here.
inline void send_message(int to, What what, const std::string& token,
                         int fd = -1) {
  Message message{what, {}};
  token.copy(message.token, 32);
  send_packet(to, &message, sizeof message, fd);
}

/// How long exporter and importer wait for each other. Pods start in
/// any order.
inline std::chrono::seconds start_limit = 120s;

/// Says why this role cannot go on, and ends it.
[[noreturn]] inline void give_up(const std::string& why) {
  print_role(stderr);
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(EXIT_FAILURE);
}

/// Waits for a message of the broker, and returns it. Sets *got to the
/// descriptor that came with it, or to -1.
inline What hear(int broker, std::chrono::seconds limit = 10s,
                 int* got = nullptr) {
  Message message{};
  int fd = -1;
  if (!wait_for(broker, POLLIN, limit))
    give_up("has waited for the broker for " +
            std::to_string(limit.count()) + " s");
  if (receive_packet(broker, &message, sizeof message, &fd) !=
      sizeof message)
    give_up("the broker has ended");
  if (got != nullptr)
    *got = fd;
  else if (fd != -1)
    SYS_CHECK(close(fd));  // not wanted
  return message.what;
}

/// Sends a request and returns the answer. `got` is as in hear().
inline What ask(int broker, What what, const std::string& token,
                int fd = -1, int* got = nullptr) {
  send_message(broker, what, token, fd);
  return hear(broker, 10s, got);
}

//! [client]
/// Gives the broker a descriptor, and closes the caller's. Returns
/// false if the broker refuses it.
inline bool lend(int broker, const std::string& token, int fd) {
  const What answer = ask(broker, What::kLend, token, fd);
  SYS_CHECK(close(fd));
  return answer == What::kYes;
}

/// Returns the descriptor for a token; the caller closes it. Asks again
/// until the descriptor was lent, or ends this role after start_limit.
inline int take(int broker, const std::string& token) {
  int fd = -1;
  for (int tries = 0; fd == -1; ++tries) {
    if (tries > 0) poll(nullptr, 0, 100);
    if (tries * 100ms > start_limit)
      give_up("nobody lends with its token");
    ask(broker, What::kTake, token, -1, &fd);
  }
  return fd;
}
//! [client]

/// Returns one of the two tokens that exporter and importer know. The
/// variable IPCLAB_TOKENS has 64 characters: two tokens of 32.
inline std::string token(int which) {
  const char* both = std::getenv("IPCLAB_TOKENS");
  if (both == nullptr || std::strlen(both) != 64) {
    std::fprintf(stderr, "IPCLAB_TOKENS must have 64 characters\n");
    std::exit(2);
  }
  return std::string(both + 32 * which, 32);
}

/// Sets IPCLAB_TOKENS to random characters, for the children.
inline void make_tokens() {
  unsigned char bytes[32];
  SYS_CHECK(getrandom(bytes, sizeof bytes, 0));
  std::string text;
  for (const int byte : bytes) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  SYS_CHECK(setenv("IPCLAB_TOKENS", text.c_str(), 1));
}

//! [loan]
struct Loan {
  std::string token;
  int fd;         // -1: was taken or revoked; the broker has closed it
  int owner;      // connection of the exporter
  int user = -1;  // connection of the importer that has taken it
};

/// Answers one request of a client.
inline void answer(int client, const Message& asked, int fd,
                   std::vector<Loan>& loans) {
  const ucred who = peer_of(client);
  Loan* loan = nullptr;
  for (Loan& one : loans)
    if (one.token == asked.token) loan = &one;
  const bool kept = loan != nullptr && loan->fd != -1;

  if (asked.what == What::kLend && fd != -1 && loan == nullptr) {
    loans.push_back({asked.token, fd, client});
    say("keeps a descriptor of [user %u, process %d]", who.uid,
        who.pid);
    return send_message(client, What::kYes, asked.token);
  }
  if (fd != -1) SYS_CHECK(close(fd));  // not wanted

  if (asked.what == What::kTake && kept) {
    say("sends it to [user %u, process %d], closes it", who.uid,
        who.pid);
    send_message(client, What::kYes, asked.token, loan->fd);
    loan->user = client;  // and a token works once:
    SYS_CHECK(close(std::exchange(loan->fd, -1)));
  } else if (asked.what == What::kRevoke && kept &&
             loan->owner == client) {
    say("closes a descriptor that its owner revokes");
    SYS_CHECK(close(std::exchange(loan->fd, -1)));
    send_message(client, What::kYes, asked.token);
  } else if (asked.what == What::kDone && loan != nullptr &&
             loan->user == client) {
    send_message(loan->owner, What::kDone, asked.token);
  } else {
    send_message(client, What::kNo, asked.token);
  }
}

/// Forgets the loans of a client that has left, and tells the other
/// client of each loan. The broker cannot take an import back.
inline void forget(int client, std::vector<Loan>& loans) {
  for (size_t i = loans.size(); i > 0; --i) {
    const Loan loan = loans[i - 1];
    if (loan.owner != client && loan.user != client) continue;
    if (loan.fd != -1) SYS_CHECK(close(loan.fd));
    const int other = loan.owner == client ? loan.user : loan.owner;
    if (other != -1) send_message(other, What::kOtherLeft, loan.token);
    loans.erase(loans.begin() + i - 1);
  }
  SYS_CHECK(close(client));
}
//! [loan]

/// Serves all clients. If the broker does not stay, it returns an exit
/// code when the last client has left: EXIT_FAILURE if nobody asks for
/// 60 s. If it stays, SIGTERM ends it.
inline int broker(int listener, bool stays) {
  // Without a handler, process 1 of a container ignores the signal.
  std::signal(SIGTERM, [](int) { _exit(EXIT_SUCCESS); });
  std::vector<Loan> loans;
  std::vector<pollfd> watched{{listener, POLLIN, 0}};  // then clients
  bool served = false;
  while (stays || !served || watched.size() > 1) {
    const int ready =
        poll(watched.data(), watched.size(), stays ? -1 : 60000);
    if (ready == -1 && errno == EINTR) continue;
    if (ready <= 0) return EXIT_FAILURE;
    for (size_t i = watched.size() - 1; i > 0; --i) {
      if (watched[i].revents == 0) continue;
      Message asked{};
      int fd = -1;
      if (receive_packet(watched[i].fd, &asked, sizeof asked, &fd) >
          0) {
        asked.token[32] = '\0';
        answer(watched[i].fd, asked, fd, loans);
      } else {
        forget(watched[i].fd, loans);
        watched.erase(watched.begin() + i);
      }
    }
    const int client = watched[0].revents ? accept_from(listener) : -1;
    if (client == -1) continue;
    // A client that never reads loses its answers, and stops nobody.
    SYS_CHECK(fcntl(client, F_SETFL, O_NONBLOCK));
    watched.push_back({client, POLLIN, 0});
    served = true;
  }
  SYS_CHECK(close(listener));
  return EXIT_SUCCESS;
}
