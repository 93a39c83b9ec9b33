// What a container runtime makes for a pod: namespaces, and a filter of
// system calls. Starts the three pods of lesson 65 in this way.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstddef>
#include <fstream>

#include "broker.h"

/// The number of pidfd_getfd on all architectures.
constexpr unsigned kPidfdGetfd = 438;

/// Maps user 0 of the new user namespace to the user who has started
/// this process. Returns false if the system does not allow it.
inline bool map_own_user(uid_t user, gid_t group) {
  std::ofstream("/proc/self/setgroups") << "deny";  // for gid_map
  std::ofstream users("/proc/self/uid_map");
  users << "0 " << user << " 1" << std::flush;
  std::ofstream groups("/proc/self/gid_map");
  groups << "0 " << group << " 1" << std::flush;
  return users.good() && groups.good();
}

/// Refuses pidfd_getfd with EPERM in this process and its children.
inline bool forbid_pidfd_getfd() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPidfdGetfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{4, steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Continues in new namespaces of users, processes, IPC, networks and
/// mounts, with a /proc and a /dev/shm of its own and without
/// pidfd_getfd. The caller does not return: a child of it does, and the
/// caller ends with the child's exit code. Returns 0, or the error of a
/// step that the system forbids: then this process is of no use for
/// CUDA any more.
inline int enter_namespaces() {
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC |
              CLONE_NEWNET | CLONE_NEWNS) == -1 ||
      !map_own_user(user, group))
    return errno;
  const pid_t first = fork();  // process 1 of the pod
  SYS_CHECK(first);
  if (first != 0) _exit(Child{Channel(-1), first}.wait(60s));
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // With the old /proc, which has other process numbers, CUDA did not
  // start on two H200s (cudaErrorOperatingSystem).
  if (mount("", "/", "", MS_REC | MS_PRIVATE, "") == -1 ||
      mount("proc", "/proc", "proc", 0, "") == -1 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "") == -1 ||
      !forbid_pidfd_getfd())
    return errno;
  return 0;
}

/// Enters a pod of its own; call it before CUDA. Returns "yes", or why
/// not: then this process is what it was, and the lesson works, too.
inline std::string enter_pod() {
  const pid_t attempt = fork();  // a half-made pod would be worse
  SYS_CHECK(attempt);
  if (attempt == 0) _exit(enter_namespaces());
  const int error = Child{Channel(-1), attempt}.wait(20s);
  if (error != 0) return std::string("no: ") + std::strerror(error);
  SYS_CHECK(enter_namespaces() == 0 ? 0 : -1);
  return "yes";
}

/// Returns the role of `--role ROLE PATH`, and sets its name. Exits
/// with code 2 if the arguments are wrong.
inline std::string role_of(int argc, char** argv) {
  const std::string role = argc > 3 ? argv[2] : "";
  if (argv[1] != std::string("--role") ||
      (role != "broker" && role != "exporter" && role != "importer")) {
    std::fprintf(stderr,
                 "usage: %s [--role broker|exporter|importer PATH]\n",
                 argv[0]);
    std::exit(2);
  }
  role_name() = argv[2];
  return role;
}

/// Returns the exit code of a child that asks what this machine can do.
/// This process does not use CUDA, because it forks later.
inline int check_machine() {
  const pid_t child = fork();
  SYS_CHECK(child);
  if (child != 0) return Child{Channel(-1), child}.wait(20s);
  require_gpus(1);
  require(
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      "memory as a descriptor");
  std::exit(EXIT_SUCCESS);
}

/// Starts this program three times, with a last argument that asks for
/// a pod of its own. The broker inherits a socket that listens already.
/// Returns the exit code of the lesson.
inline int start_three_pods(char** argv) {
  const int code = check_machine();
  if (code != EXIT_SUCCESS) return code;
  make_tokens();
  role_name() = "broker";  // for the line that listen_at() prints
  const auto path = "/tmp/ipclab." + std::to_string(getpid());
  const int listener = listen_at(path.c_str());
  const int theirs = dup(listener);  // exec keeps it open
  SYS_CHECK(theirs);
  Child third =
      start(argv, {"--role", "broker", path, std::to_string(theirs)});
  SYS_CHECK(close(theirs));
  SYS_CHECK(close(listener));
  Child first = start(argv, {"--role", "exporter", path, "pod"});
  Child second = start(argv, {"--role", "importer", path, "pod"});
  return first.finish(second.finish(third.wait(25s)));
}
