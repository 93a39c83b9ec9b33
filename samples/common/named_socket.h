// Processes that do not know each other meet at a socket with a path.
// A packet is never split. If a process ends, its connections end.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/stat.h>
#include <sys/un.h>

#include "channel.h"

/// Prints what is wrong with `path`. Ends the process with exit code 2.
[[noreturn]] inline void bad_path(const char* path, const char* what) {
  std::fprintf(stderr, "%s: %s\n", path, what);
  std::exit(2);
}

/// Returns the socket address of a path. Exits with code 2 if the path
/// has more than 107 bytes.
inline sockaddr_un socket_address(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (std::strlen(path) >= sizeof address.sun_path)
    bad_path(path, "too long for a socket, at most 107 bytes");
  std::strcpy(address.sun_path, path);
  return address;
}

//! [peer]
/// Returns the ids of the process, user and group at the other end. The
/// system reports the ids, so the other process cannot fake them.
inline ucred peer_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  SYS_CHECK(
      getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size));
  return peer;
}

/// Returns the connection. If the process at the other end belongs to
/// another user, closes the connection and returns -1.
inline int own_user_only(int connection) {
  if (connection == -1 || peer_of(connection).uid == getuid())
    return connection;
  SYS_CHECK(close(connection));
  return -1;
}
//! [peer]

//! [connect]
/// Connects to the process that listens at `path`. Exits with code 2 if
/// no process of this user listens there. A later call on the
/// socket waits for at most 10 s.
inline int connect_to(const char* path) {
  const sockaddr_un address = socket_address(path);
  const int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  SYS_CHECK(end);
  const timeval limit{10, 0};
  for (const int which : {SO_SNDTIMEO, SO_RCVTIMEO})
    SYS_CHECK(setsockopt(end, SOL_SOCKET, which, &limit, sizeof limit));
  if (connect(end, reinterpret_cast<const sockaddr*>(&address),
              sizeof address) == -1 ||
      own_user_only(end) == -1)
    bad_path(path, "no exporter of this user listens; start it first");
  return end;
}
//! [connect]

/// Returns true if a process listens at the address. That process does
/// not notice this datagram socket. ECONNREFUSED: nobody listens.
inline bool in_use(const sockaddr_un& address) {
  const int end = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  SYS_CHECK(end);
  const int code = connect(
      end, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const bool used = code == 0 || errno != ECONNREFUSED;
  SYS_CHECK(close(end));
  return used;
}

//! [listen]
/// Creates a socket at `path`, listens there, and prints the path. An
/// old socket without a listening process is replaced. Any other file
/// is an error (exit code 2). At exit the process removes the path.
inline int listen_at(const char* path) {
  const sockaddr_un address = socket_address(path);
  struct stat found;
  if (lstat(path, &found) == 0) {
    if (!S_ISSOCK(found.st_mode) || in_use(address))
      bad_path(path, "in use; choose another path");
    SYS_CHECK(unlink(path));
  }
  const int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  SYS_CHECK(end);
  const mode_t mask = umask(0177);  // the socket gets the mode 0600
  SYS_CHECK(bind(end, reinterpret_cast<const sockaddr*>(&address),
                 sizeof address));
  umask(mask);
  SYS_CHECK(listen(end, 64));
  static const std::string made = path;
  std::atexit([] { unlink(made.c_str()); });
  say("listens at [%s]", path);
  return end;
}

/// Waits for a connection. Returns it, or -1 if another user connects.
inline int accept_from(int listener) {
  const int end = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  SYS_CHECK(end);
  return own_user_only(end);
}
//! [listen]
