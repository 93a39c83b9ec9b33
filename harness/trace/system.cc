// SPDX-License-Identifier: Apache-2.0
// Records actions outside CUDA: descriptors that are sent through sockets,
// taken by pidfd_getfd, closed or left open, and the ends of processes. When
// this library is preloaded (LD_PRELOAD), a program calls the functions below
// instead of the functions of the C library. The functions below pass every
// call on and change nothing.
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "line.h"
#include "log.h"
#include "recorder.h"

namespace ipclab::trace {
namespace {

constexpr size_t kMostBytes = 128;       // written for a message
constexpr size_t kMostDescriptors = 32;  // in one line

struct Identity {
  uint64_t device, inode;
  bool operator==(const Identity& other) const {
    return device == other.device && inode == other.inode;
  }
};

bool identify(int descriptor, Identity* identity) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return false;
  *identity = {status.st_dev, status.st_ino};
  return true;
}

// The descriptors that concern CUDA. Almost every close() concerns another
// descriptor; one bit shows this without a lock.
std::atomic<uint64_t> noted_bits[1024];

std::mutex& noted_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

std::map<int, Identity>& noted() {
  static auto& all = *new std::map<int, Identity>;
  return all;
}

// Those that the driver has taken over and closed.
std::set<int>& given_away() {
  static auto& all = *new std::set<int>;
  return all;
}

bool is_noted(int descriptor) {
  const auto word = static_cast<size_t>(descriptor) / 64;
  return descriptor >= 0 && word < std::size(noted_bits) &&
         (noted_bits[word].load(std::memory_order_relaxed) >>
              (descriptor % 64) &
          1) != 0;
}

void note(int descriptor, const Identity& identity) {
  const auto word = static_cast<size_t>(descriptor) / 64;
  if (descriptor < 0 || word >= std::size(noted_bits)) return;
  const std::lock_guard lock(noted_mutex());
  noted()[descriptor] = identity;
  given_away().erase(descriptor);
  noted_bits[word].fetch_or(uint64_t{1} << (descriptor % 64));
}

bool is_given_away(int descriptor, Identity* identity) {
  const std::lock_guard lock(noted_mutex());
  const auto found = noted().find(descriptor);
  if (given_away().count(descriptor) == 0 || found == noted().end()) {
    return false;
  }
  *identity = found->second;
  return true;
}

void write_identity(Line& line, int descriptor, const Identity& identity) {
  line.raw("{\"fd\":")
      .number(descriptor)
      .raw(",\"device\":")
      .number(identity.device)
      .raw(",\"inode\":")
      .number(identity.inode)
      .raw("}");
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool is_local(int socket) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
         domain == AF_UNIX;
}

// Records a message between processes of this machine: its length, its first
// bytes, and the descriptors that are sent with it.
void record_message(const char* what, int socket, const msghdr& message,
                    ssize_t size, uint64_t at) {
  const int error = errno;
  if (size >= 0 && tracing() && is_local(socket) && own_process()) {
    Line line;
    begin_event(line, what, at);
    line.raw(",\"socket\":").number(socket).raw(",\"size\":").number(size);
    unsigned char bytes[kMostBytes];
    size_t count = 0;
    for (size_t i = 0; i < message.msg_iovlen; ++i) {
      const iovec& part = message.msg_iov[i];
      const size_t wanted = std::min({part.iov_len, sizeof bytes - count,
                                      static_cast<size_t>(size) - count});
      std::memcpy(bytes + count, part.iov_base, wanted);
      count += wanted;
    }
    line.raw(",\"bytes\":").bytes(bytes, count).raw(",\"descriptors\":[");
    size_t written = 0;
    auto* changed = const_cast<msghdr*>(&message);  // CMSG_NXTHDR reads it only
    for (cmsghdr* part = CMSG_FIRSTHDR(changed); part != nullptr;
         part = CMSG_NXTHDR(changed, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
        continue;
      }
      const size_t total = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < total && written < kMostDescriptors; ++i) {
        int descriptor;
        std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof descriptor,
                    sizeof descriptor);
        if (written++ != 0) line.comma();
        write_descriptor(line, descriptor, true);
      }
    }
    // The kernel has closed descriptors for which the receiver had no room.
    const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
    line.raw(cut && *what == 'r' ? "],\"cut\":true" : "]");
    write(line.raw("}"));
  }
  errno = error;
}

// The process of a pidfd; 0 if the kernel does not report it.
int process_of(int pidfd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  int process = 0;
  char line[128];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "Pid: %d", &process) == 1) break;
  }
  std::fclose(file);
  return process;
}

// Writes the noted descriptors that are still open.
void write_left_open(Line& line) {
  line.raw(",\"open\":[");
  size_t written = 0;
  const std::lock_guard lock(noted_mutex());
  for (const auto& [descriptor, identity] : noted()) {
    Identity present;
    if (!identify(descriptor, &present) || !(present == identity)) continue;
    if (written == kMostDescriptors) break;
    if (written++ != 0) line.comma();
    write_identity(line, descriptor, identity);
  }
  line.raw("]");
}

void record_exit(int code) {
  static std::atomic<bool> done{false};
  if (!tracing() || !own_process() || done.exchange(true)) return;
  Line line;
  begin_event(line, "exit");
  line.raw(",\"code\":").number(code & 0xff);
  write_left_open(line);
  write(line.raw("}"));
}

void record_ended(pid_t process, int status) {
  const int error = errno;
  const bool over = WIFEXITED(status) || WIFSIGNALED(status);
  if (process > 0 && over && tracing() && own_process()) {
    Line line;
    begin_event(line, "ended");
    line.raw(",\"process\":").number(process);
    line.raw(",\"status\":").number(status);
    write(line.raw("}"));
  }
  errno = error;
}

// Records that a descriptor of another process was taken, or was refused.
void record_taken(long pidfd, long descriptor, long result) {
  const int error = errno;
  if (tracing() && own_process()) {
    Line line;
    begin_event(line, result < 0 ? "untaken" : "takes");
    line.raw(",\"from\":").number(descriptor).raw(",\"process\":");
    line.number(process_of(static_cast<int>(pidfd)));
    if (result < 0) {
      line.raw(",\"error\":").number(error);
    } else {
      line.raw(",\"descriptor\":");
      write_descriptor(line, static_cast<int>(result), true);
    }
    write(line.raw("}"));
  }
  errno = error;
}

// Records that main has returned, or that the program has called exit(). From
// here on only destructors of static objects and atexit handlers run.
void record_leaves() {
  if (!tracing() || !own_process()) return;
  Line line;
  begin_event(line, "leaves");
  write(line.raw("}"));
}

int (*own_main)(int, char**, char**) = nullptr;

int main_and_leave(int count, char** arguments, char** environment) {
  const int code = own_main(count, arguments, environment);
  record_leaves();
  return code;
}

__attribute__((constructor)) void start() {
  if (tracing()) {
    on_exit([](int code, void*) { record_exit(code); }, nullptr);
  }
}

}  // namespace

void write_descriptor(Line& line, int descriptor, bool noted) {
  Identity identity;
  if (identify(descriptor, &identity)) {
    if (noted) note(descriptor, identity);
    write_identity(line, descriptor, identity);
  } else if (is_given_away(descriptor, &identity)) {
    write_identity(line, descriptor, identity);
  } else {
    line.raw("null");
  }
}

void note_descriptor(int descriptor) {
  Identity identity;
  if (identify(descriptor, &identity)) note(descriptor, identity);
}

void write_given_away(Line& line, int descriptor) {
  {
    const std::lock_guard lock(noted_mutex());
    const auto before = noted().find(descriptor);
    Identity present;
    if (before != noted().end() &&
        !(identify(descriptor, &present) && present == before->second)) {
      given_away().insert(descriptor);
    }
  }
  Identity identity;
  if (is_given_away(descriptor, &identity)) {
    write_identity(line, descriptor, identity);
  } else {
    write_descriptor(line, descriptor, false);
  }
}

}  // namespace ipclab::trace

#define EXPORTED extern "C" __attribute__((visibility("default")))
using namespace ipclab::trace;

EXPORTED int close(int descriptor) {
  static const auto real = next<int(int)>("close");
  if (is_noted(descriptor) && tracing() && own_process()) {
    Identity identity{};
    bool taken = false;
    {
      const std::lock_guard lock(noted_mutex());
      taken = given_away().erase(descriptor) != 0;
      if (const auto found = noted().find(descriptor); found != noted().end()) {
        identity = found->second;
        noted().erase(found);
      }
      noted_bits[descriptor / 64].fetch_and(
          ~(uint64_t{1} << (descriptor % 64)));
    }
    Identity present;
    const bool open = identify(descriptor, &present);
    if (taken ? !open : open && present == identity) {
      Line line;
      begin_event(line, "close");
      line.raw(",\"descriptor\":");
      write_identity(line, descriptor, identity);
      write(line.raw(taken ? ",\"taken\":true}" : "}"));
    }
  }
  return real(descriptor);
}

EXPORTED ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static const auto real = next<decltype(sendmsg)>("sendmsg");
  const uint64_t began = now();
  const ssize_t sent = real(socket, message, flags);
  record_message("send", socket, *message, sent, began);
  return sent;
}

EXPORTED ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static const auto real = next<decltype(recvmsg)>("recvmsg");
  const ssize_t received = real(socket, message, flags);
  if ((flags & MSG_PEEK) == 0) {
    record_message("receive", socket, *message, received, now());
  }
  return received;
}

EXPORTED pid_t waitpid(pid_t process, int* status, int options) {
  static const auto real = next<decltype(waitpid)>("waitpid");
  int own = 0;
  const pid_t ended = real(process, &own, options);
  record_ended(ended, own);
  if (status != nullptr && ended > 0) *status = own;
  return ended;
}

EXPORTED pid_t wait(int* status) {
  static const auto real = next<pid_t(int*)>("wait");
  int own = 0;
  const pid_t ended = real(&own);
  record_ended(ended, own);
  if (status != nullptr && ended > 0) *status = own;
  return ended;
}

EXPORTED pid_t wait4(pid_t process, int* status, int options, rusage* usage) {
  static const auto real = next<pid_t(pid_t, int*, int, rusage*)>("wait4");
  int own = 0;
  const pid_t ended = real(process, &own, options, usage);
  record_ended(ended, own);
  if (status != nullptr && ended > 0) *status = own;
  return ended;
}

EXPORTED int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  static const auto real = next<int(idtype_t, id_t, siginfo_t*, int)>("waitid");
  const int result = real(type, id, info, options);
  if (result == 0 && info != nullptr && info->si_pid > 0) {
    const bool exited = info->si_code == CLD_EXITED;
    const bool killed =
        info->si_code == CLD_KILLED || info->si_code == CLD_DUMPED;
    if (exited) record_ended(info->si_pid, (info->si_status & 0xff) << 8);
    if (killed) record_ended(info->si_pid, info->si_status);
  }
  return result;
}

EXPORTED int __libc_start_main(int (*program)(int, char**, char**), int count,
                               char** arguments, void (*init)(), void (*fini)(),
                               void (*loader)(), void* stack) {
  using Start = int(int (*)(int, char**, char**), int, char**, void (*)(),
                    void (*)(), void (*)(), void*);
  static const auto real = next<Start>("__libc_start_main");
  own_main = program;
  return real(main_and_leave, count, arguments, init, fini, loader, stack);
}

EXPORTED void exit(int code) {
  record_leaves();
  next<void(int)>("exit")(code);
  __builtin_unreachable();
}

EXPORTED void _exit(int code) {
  record_exit(code);
  next<void(int)>("_exit")(code);
  __builtin_unreachable();
}

EXPORTED void _Exit(int code) { _exit(code); }

// Older C libraries have no function for pidfd_getfd. PyTorch calls pidfd_getfd
// by its number. (glibc has the name SYS_pidfd_getfd only from 2.32 on.)
EXPORTED long syscall(long number, ...) {
  static const auto real = next<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == __NR_pidfd_getfd) record_taken(a[0], a[1], result);
  return result;
}

EXPORTED int pidfd_getfd(int process, int descriptor, unsigned flags) {
  static const auto real = next<int(int, int, unsigned)>("pidfd_getfd");
  if (real == nullptr) {
    return static_cast<int>(
        syscall(__NR_pidfd_getfd, process, descriptor, flags));
  }
  const int result = real(process, descriptor, flags);
  record_taken(process, descriptor, result);
  return result;
}
