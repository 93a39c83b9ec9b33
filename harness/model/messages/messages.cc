// SPDX-License-Identifier: Apache-2.0
// Sees how the processes of a run tell each other something: `ipclab model
// --race` loads this library in front of the C library in all of them, also in
// those that use no GPU. A function that sends adds what the process knows to a
// channel; a function that receives takes it from there (core/race_host.h).
//
// A channel is a pipe, a file, all sockets together, all event descriptors
// together, all names of files together, or memory that processes share. Where
// two ways cannot be told apart they are one channel: then more comes before
// than really does, and no finding is false.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>

#include "core/race_host.h"
#include "core/race_memory.h"

namespace {

namespace race = ipclab::model::race;

enum Kind : uint64_t {
  kFile = 1,
  kSocket,
  kAnonymous,
  kNames,
  kSystemV,
  kNamed
};

uint64_t key_of(Kind kind, uint64_t a = 0, uint64_t b = 0) {
  uint64_t key = kind;
  for (const uint64_t part : {a, b})
    key = (key ^ part) * 0x9E3779B97F4A7C15u + kind;
  return key | 1;
}

struct Kept {  // a wrapper changes no errno
  int value = errno;
  ~Kept() { errno = value; }
};

/// What a descriptor leads to; key 0: to nothing that is a channel.
struct Way {
  uint64_t key = 0;
  bool stream = false;  ///< its end is a message, too
};

Way way_of(int descriptor) {
  struct stat status;
  // Not fstat(), which is below.
  if (descriptor < 0 || syscall(SYS_fstat, descriptor, &status) != 0) return {};
  switch (status.st_mode & S_IFMT) {
    case S_IFSOCK:
      return {key_of(kSocket), true};
    case S_IFIFO:
      return {key_of(kFile, status.st_dev, status.st_ino), true};
    case S_IFREG:
      return {key_of(kFile, status.st_dev, status.st_ino), false};
    case S_IFCHR:  // a terminal, but no message goes through /dev/null
      if (major(status.st_rdev) == 1) return {};
      return {key_of(kFile, status.st_dev, status.st_rdev), false};
    case 0:
      return {key_of(kAnonymous), false};
    default:
      return {};
  }
}

bool counts(const void* caller) {
  return race::on() && !race::is_by_model(caller);
}

void has_sent(const void* caller, int descriptor) {
  if (!counts(caller)) return;
  const Kept kept;
  if (const Way way = way_of(descriptor); way.key != 0) race::sent(way.key);
}

void has_received(const void* caller, int descriptor, bool end = false) {
  if (!counts(caller)) return;
  const Kept kept;
  const Way way = way_of(descriptor);
  if (way.key == 0) return;
  race::received(way.key, way.stream);
  if (end && way.stream) race::learned_from_ended();
}

void names_sent(const void* caller) {
  if (counts(caller)) race::sent(key_of(kNames));
}

void names_received(const void* caller) {
  if (counts(caller)) race::received(key_of(kNames), false);
}

int number_of(FILE* file) { return file == nullptr ? -1 : fileno(file); }

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

pid_t forking = 0;

void before_fork() { forking = getpid(); }
void in_child() {
  if (race::on()) race::host_forked(forking);
}

const bool ready = [] {
  if (race::on()) {
    race::host_began();
    pthread_atfork(before_fork, nullptr, in_child);
  }
  return true;
}();

}  // namespace

#define IPCLAB_FRONT extern "C" __attribute__((visibility("default")))
#define IPCLAB_CALLER __builtin_return_address(0)

// A function that calls the next one of its name, with something before and
// something after it. `done` is its result.
#define IPCLAB_AROUND(result, name, parameters, arguments, before, after) \
  IPCLAB_FRONT result name parameters {                                   \
    static const auto real = next<result parameters>(#name);              \
    before;                                                               \
    const auto done = real arguments;                                     \
    after;                                                                \
    return done;                                                          \
  }
#define IPCLAB_SENDS(result, name, parameters, arguments, descriptor) \
  IPCLAB_AROUND(result, name, parameters, arguments,                  \
                has_sent(IPCLAB_CALLER, descriptor), )
#define IPCLAB_RECEIVES(result, name, parameters, arguments, descriptor) \
  IPCLAB_AROUND(result, name, parameters, arguments, ,                   \
                if (done >= 0 || errno == ECONNRESET)                    \
                    has_received(IPCLAB_CALLER, descriptor, done <= 0))

// ---- descriptors

IPCLAB_SENDS(ssize_t, write, (int d, const void* b, size_t n), (d, b, n), d)
IPCLAB_SENDS(ssize_t, pwrite, (int d, const void* b, size_t n, off_t o),
             (d, b, n, o), d)
IPCLAB_SENDS(ssize_t, pwrite64, (int d, const void* b, size_t n, off64_t o),
             (d, b, n, o), d)
IPCLAB_SENDS(ssize_t, writev, (int d, const iovec* v, int n), (d, v, n), d)
IPCLAB_SENDS(ssize_t, pwritev, (int d, const iovec* v, int n, off_t o),
             (d, v, n, o), d)
IPCLAB_SENDS(ssize_t, send, (int d, const void* b, size_t n, int f),
             (d, b, n, f), d)
IPCLAB_SENDS(ssize_t, sendto,
             (int d, const void* b, size_t n, int f, const sockaddr* a,
              socklen_t l),
             (d, b, n, f, a, l), d)
IPCLAB_SENDS(ssize_t, sendmsg, (int d, const msghdr* m, int f), (d, m, f), d)
IPCLAB_SENDS(int, sendmmsg, (int d, mmsghdr* m, unsigned n, int f),
             (d, m, n, f), d)
IPCLAB_SENDS(int, connect, (int d, const sockaddr* a, socklen_t l), (d, a, l),
             d)
IPCLAB_SENDS(int, shutdown, (int d, int how), (d, how), d)
IPCLAB_SENDS(int, eventfd_write, (int d, eventfd_t value), (d, value), d)
IPCLAB_SENDS(int, mq_send, (mqd_t q, const char* b, size_t n, unsigned p),
             (q, b, n, p), q)
IPCLAB_SENDS(int, mq_timedsend,
             (mqd_t q, const char* b, size_t n, unsigned p, const timespec* t),
             (q, b, n, p, t), q)
IPCLAB_SENDS(int, ftruncate, (int d, off_t n), (d, n), d)
IPCLAB_SENDS(int, ftruncate64, (int d, off64_t n), (d, n), d)
// It releases the locks of a file.
IPCLAB_SENDS(int, close, (int d), (d), d)

IPCLAB_RECEIVES(ssize_t, read, (int d, void* b, size_t n), (d, b, n), d)
IPCLAB_RECEIVES(ssize_t, __read_chk, (int d, void* b, size_t n, size_t m),
                (d, b, n, m), d)
IPCLAB_RECEIVES(ssize_t, pread, (int d, void* b, size_t n, off_t o),
                (d, b, n, o), d)
IPCLAB_RECEIVES(ssize_t, pread64, (int d, void* b, size_t n, off64_t o),
                (d, b, n, o), d)
IPCLAB_RECEIVES(ssize_t, readv, (int d, const iovec* v, int n), (d, v, n), d)
IPCLAB_RECEIVES(ssize_t, preadv, (int d, const iovec* v, int n, off_t o),
                (d, v, n, o), d)
IPCLAB_RECEIVES(ssize_t, recv, (int d, void* b, size_t n, int f), (d, b, n, f),
                d)
IPCLAB_RECEIVES(ssize_t, __recv_chk,
                (int d, void* b, size_t n, size_t m, int f), (d, b, n, m, f), d)
IPCLAB_RECEIVES(ssize_t, recvfrom,
                (int d, void* b, size_t n, int f, sockaddr* a, socklen_t* l),
                (d, b, n, f, a, l), d)
IPCLAB_RECEIVES(ssize_t, __recvfrom_chk,
                (int d, void* b, size_t n, size_t m, int f, sockaddr* a,
                 socklen_t* l),
                (d, b, n, m, f, a, l), d)
IPCLAB_RECEIVES(ssize_t, recvmsg, (int d, msghdr* m, int f), (d, m, f), d)
IPCLAB_RECEIVES(int, recvmmsg,
                (int d, mmsghdr* m, unsigned n, int f, timespec* t),
                (d, m, n, f, t), d)
IPCLAB_RECEIVES(int, accept, (int d, sockaddr* a, socklen_t* l), (d, a, l), d)
IPCLAB_RECEIVES(int, accept4, (int d, sockaddr* a, socklen_t* l, int f),
                (d, a, l, f), d)
IPCLAB_RECEIVES(int, eventfd_read, (int d, eventfd_t* value), (d, value), d)
IPCLAB_RECEIVES(ssize_t, mq_receive, (mqd_t q, char* b, size_t n, unsigned* p),
                (q, b, n, p), q)
IPCLAB_RECEIVES(ssize_t, mq_timedreceive,
                (mqd_t q, char* b, size_t n, unsigned* p, const timespec* t),
                (q, b, n, p, t), q)
IPCLAB_RECEIVES(int, fstat, (int d, struct stat* s), (d, s), d)
IPCLAB_RECEIVES(int, fstat64, (int d, struct stat64* s), (d, s), d)

#define IPCLAB_MOVES(result, name, parameters, arguments, to, from)     \
  IPCLAB_AROUND(                                                        \
      result, name, parameters, arguments, has_sent(IPCLAB_CALLER, to), \
      if (done >= 0) {                                                  \
        has_received(IPCLAB_CALLER, from, done == 0);                   \
        has_sent(IPCLAB_CALLER, to);                                    \
      })
IPCLAB_MOVES(ssize_t, sendfile, (int t, int f, off_t* o, size_t n),
             (t, f, o, n), t, f)
IPCLAB_MOVES(ssize_t, sendfile64, (int t, int f, off64_t* o, size_t n),
             (t, f, o, n), t, f)
IPCLAB_MOVES(ssize_t, splice,
             (int f, off64_t* p, int t, off64_t* o, size_t n, unsigned flags),
             (f, p, t, o, n, flags), t, f)
IPCLAB_MOVES(ssize_t, tee, (int f, int t, size_t n, unsigned flags),
             (f, t, n, flags), t, f)

// A peer's end may be all that a poll sees.
#define IPCLAB_POLLS(name, parameters, arguments)                  \
  IPCLAB_AROUND(                                                   \
      int, name, parameters, arguments, ,                          \
      for (nfds_t k = 0; done > 0 && k < n; ++k) {                 \
        if (p[k].revents != 0)                                     \
          has_received(IPCLAB_CALLER, p[k].fd,                     \
                       (p[k].revents & (POLLHUP | POLLERR)) != 0); \
      })
IPCLAB_POLLS(poll, (pollfd * p, nfds_t n, int t), (p, n, t))
IPCLAB_POLLS(ppoll,
             (pollfd * p, nfds_t n, const timespec* t, const sigset_t* s),
             (p, n, t, s))

// ---- streams of the C library

#define IPCLAB_PUTS(result, name, parameters, arguments, file) \
  IPCLAB_SENDS(result, name, parameters, arguments, number_of(file))
#define IPCLAB_GETS(result, name, parameters, arguments, file) \
  IPCLAB_AROUND(result, name, parameters, arguments, ,         \
                has_received(IPCLAB_CALLER, number_of(file), feof(file) != 0))
IPCLAB_PUTS(size_t, fwrite, (const void* b, size_t s, size_t n, FILE* f),
            (b, s, n, f), f)
IPCLAB_PUTS(size_t, fwrite_unlocked,
            (const void* b, size_t s, size_t n, FILE* f), (b, s, n, f), f)
IPCLAB_PUTS(int, fputs, (const char* s, FILE* f), (s, f), f)
IPCLAB_PUTS(int, fputs_unlocked, (const char* s, FILE* f), (s, f), f)
IPCLAB_PUTS(int, puts, (const char* s), (s), stdout)
IPCLAB_PUTS(int, fputc, (int c, FILE* f), (c, f), f)
IPCLAB_PUTS(int, putc, (int c, FILE* f), (c, f), f)
IPCLAB_PUTS(int, putchar, (int c), (c), stdout)
IPCLAB_PUTS(int, vfprintf, (FILE * f, const char* t, va_list l), (f, t, l), f)
IPCLAB_PUTS(int, vprintf, (const char* t, va_list l), (t, l), stdout)
IPCLAB_PUTS(int, __vfprintf_chk, (FILE * f, int k, const char* t, va_list l),
            (f, k, t, l), f)
IPCLAB_PUTS(int, __vprintf_chk, (int k, const char* t, va_list l), (k, t, l),
            stdout)
IPCLAB_PUTS(int, fflush, (FILE * f), (f), f == nullptr ? stdout : f)
IPCLAB_PUTS(int, fclose, (FILE * f), (f), f)
IPCLAB_SENDS(int, vdprintf, (int d, const char* t, va_list l), (d, t, l), d)

#define IPCLAB_PRINTS(name, real, parameters, last, arguments, descriptor) \
  IPCLAB_FRONT int name parameters {                                       \
    has_sent(IPCLAB_CALLER, descriptor);                                   \
    va_list list;                                                          \
    va_start(list, last);                                                  \
    const int done = real arguments;                                       \
    va_end(list);                                                          \
    return done;                                                           \
  }
IPCLAB_PRINTS(fprintf, vfprintf, (FILE * f, const char* t, ...), t,
              (f, t, list), number_of(f))
IPCLAB_PRINTS(printf, vprintf, (const char* t, ...), t, (t, list),
              number_of(stdout))
IPCLAB_PRINTS(dprintf, vdprintf, (int d, const char* t, ...), t, (d, t, list),
              d)
IPCLAB_PRINTS(__fprintf_chk, __vfprintf_chk,
              (FILE * f, int k, const char* t, ...), t, (f, k, t, list),
              number_of(f))
IPCLAB_PRINTS(__printf_chk, __vprintf_chk, (int k, const char* t, ...), t,
              (k, t, list), number_of(stdout))

IPCLAB_GETS(size_t, fread, (void* b, size_t s, size_t n, FILE* f), (b, s, n, f),
            f)
IPCLAB_GETS(size_t, fread_unlocked, (void* b, size_t s, size_t n, FILE* f),
            (b, s, n, f), f)
IPCLAB_GETS(size_t, __fread_chk,
            (void* b, size_t m, size_t s, size_t n, FILE* f), (b, m, s, n, f),
            f)
IPCLAB_GETS(char*, fgets, (char* s, int n, FILE* f), (s, n, f), f)
IPCLAB_GETS(char*, fgets_unlocked, (char* s, int n, FILE* f), (s, n, f), f)
IPCLAB_GETS(char*, __fgets_chk, (char* s, size_t m, int n, FILE* f),
            (s, m, n, f), f)
IPCLAB_GETS(ssize_t, getline, (char** s, size_t* n, FILE* f), (s, n, f), f)
IPCLAB_GETS(ssize_t, getdelim, (char** s, size_t* n, int c, FILE* f),
            (s, n, c, f), f)
IPCLAB_GETS(ssize_t, __getdelim, (char** s, size_t* n, int c, FILE* f),
            (s, n, c, f), f)
IPCLAB_GETS(int, fgetc, (FILE * f), (f), f)
IPCLAB_GETS(int, getc, (FILE * f), (f), f)
IPCLAB_GETS(int, getc_unlocked, (FILE * f), (f), f)
IPCLAB_GETS(int, getchar, (), (), stdin)
IPCLAB_GETS(int, getchar_unlocked, (), (), stdin)
IPCLAB_GETS(int, vfscanf, (FILE * f, const char* t, va_list l), (f, t, l), f)

#define IPCLAB_SCANS(name, parameters, file)                       \
  IPCLAB_FRONT int name parameters {                               \
    static const auto real =                                       \
        next<int(FILE*, const char*, va_list)>("vfscanf");         \
    va_list list;                                                  \
    va_start(list, t);                                             \
    const int done = real(file, t, list);                          \
    va_end(list);                                                  \
    has_received(IPCLAB_CALLER, number_of(file), feof(file) != 0); \
    return done;                                                   \
  }
IPCLAB_SCANS(__isoc99_fscanf, (FILE * f, const char* t, ...), f)
IPCLAB_SCANS(__isoc23_fscanf, (FILE * f, const char* t, ...), f)
IPCLAB_SCANS(__isoc99_scanf, (const char* t, ...), stdin)
IPCLAB_SCANS(__isoc23_scanf, (const char* t, ...), stdin)

// ---- locks of files

#define IPCLAB_LOCKS(name, parameters, arguments)                             \
  IPCLAB_AROUND(int, name, parameters, arguments, has_sent(IPCLAB_CALLER, d), \
                if (done == 0) has_received(IPCLAB_CALLER, d))
IPCLAB_LOCKS(flock, (int d, int how), (d, how))
IPCLAB_LOCKS(lockf, (int d, int how, off_t n), (d, how, n))

#define IPCLAB_FCNTL(name)                                                \
  IPCLAB_FRONT int name(int d, int command, ...) {                        \
    static const auto real = next<int(int, int, void*)>(#name);           \
    va_list list;                                                         \
    va_start(list, command);                                              \
    void* const argument = va_arg(list, void*);                           \
    va_end(list);                                                         \
    const bool locks = command == F_SETLK || command == F_SETLKW ||       \
                       command == F_OFD_SETLK || command == F_OFD_SETLKW; \
    if (locks) has_sent(IPCLAB_CALLER, d);                                \
    const int done = real(d, command, argument);                          \
    if (locks && done == 0) has_received(IPCLAB_CALLER, d);               \
    return done;                                                          \
  }
IPCLAB_FCNTL(fcntl)
IPCLAB_FCNTL(fcntl64)

// ---- names of files: one process makes a file, another one looks for it

#define IPCLAB_MAKES(name, parameters, arguments) \
  IPCLAB_AROUND(int, name, parameters, arguments, names_sent(IPCLAB_CALLER), )
#define IPCLAB_LOOKS(result, name, parameters, arguments) \
  IPCLAB_AROUND(result, name, parameters, arguments, ,    \
                names_received(IPCLAB_CALLER))
IPCLAB_MAKES(rename, (const char* a, const char* b), (a, b))
IPCLAB_MAKES(renameat, (int f, const char* a, int t, const char* b),
             (f, a, t, b))
IPCLAB_MAKES(link, (const char* a, const char* b), (a, b))
IPCLAB_MAKES(symlink, (const char* a, const char* b), (a, b))
IPCLAB_MAKES(unlink, (const char* a), (a))
IPCLAB_MAKES(unlinkat, (int d, const char* a, int f), (d, a, f))
IPCLAB_MAKES(remove, (const char* a), (a))
IPCLAB_MAKES(mkdir, (const char* a, mode_t m), (a, m))
IPCLAB_MAKES(mkdirat, (int d, const char* a, mode_t m), (d, a, m))
IPCLAB_MAKES(rmdir, (const char* a), (a))
IPCLAB_MAKES(mkfifo, (const char* a, mode_t m), (a, m))
IPCLAB_MAKES(shm_unlink, (const char* a), (a))
IPCLAB_LOOKS(int, access, (const char* a, int m), (a, m))
IPCLAB_LOOKS(int, faccessat, (int d, const char* a, int m, int f), (d, a, m, f))
IPCLAB_LOOKS(int, stat, (const char* a, struct stat* s), (a, s))
IPCLAB_LOOKS(int, stat64, (const char* a, struct stat64* s), (a, s))
IPCLAB_LOOKS(int, lstat, (const char* a, struct stat* s), (a, s))
IPCLAB_LOOKS(int, lstat64, (const char* a, struct stat64* s), (a, s))
IPCLAB_LOOKS(int, fstatat, (int d, const char* a, struct stat* s, int f),
             (d, a, s, f))
IPCLAB_LOOKS(int, fstatat64, (int d, const char* a, struct stat64* s, int f),
             (d, a, s, f))
IPCLAB_LOOKS(int, __xstat, (int v, const char* a, struct stat* s), (v, a, s))
IPCLAB_LOOKS(int, __xstat64, (int v, const char* a, struct stat64* s),
             (v, a, s))
IPCLAB_LOOKS(int, statx,
             (int d, const char* a, int f, unsigned m, struct statx* s),
             (d, a, f, m, s))
IPCLAB_LOOKS(DIR*, opendir, (const char* a), (a))

#define IPCLAB_OPEN(name, before, parameters, arguments)               \
  IPCLAB_FRONT int name parameters {                                   \
    static const auto real = next<int parameters>(#name);              \
    va_list list;                                                      \
    va_start(list, flags);                                             \
    const bool makes = (flags & (O_CREAT | O_TMPFILE | O_TRUNC)) != 0; \
    const mode_t mode = makes ? va_arg(list, mode_t) : 0;              \
    va_end(list);                                                      \
    if (makes) names_sent(IPCLAB_CALLER);                              \
    const int done = real arguments;                                   \
    names_received(IPCLAB_CALLER);                                     \
    return done;                                                       \
  }
IPCLAB_OPEN(open, , (const char* path, int flags, ...), (path, flags, mode))
IPCLAB_OPEN(open64, , (const char* path, int flags, ...), (path, flags, mode))
IPCLAB_OPEN(openat, , (int folder, const char* path, int flags, ...),
            (folder, path, flags, mode))
IPCLAB_OPEN(openat64, , (int folder, const char* path, int flags, ...),
            (folder, path, flags, mode))

#define IPCLAB_FOPEN(name)                                                   \
  IPCLAB_AROUND(FILE*, name, (const char* path, const char* mode),           \
                (path, mode), if (mode[0] != 'r') names_sent(IPCLAB_CALLER), \
                names_received(IPCLAB_CALLER))
IPCLAB_FOPEN(fopen)
IPCLAB_FOPEN(fopen64)

IPCLAB_AROUND(int, shm_open, (const char* a, int f, mode_t m), (a, f, m),
              if ((f & O_CREAT) != 0) names_sent(IPCLAB_CALLER),
              names_received(IPCLAB_CALLER))

// ---- memory that processes share: both may use it at any time

namespace {

void has_mapped(const void* caller, int flags, int protection, int descriptor) {
  if ((flags & MAP_SHARED) == 0 || !counts(caller)) return;
  const Kept kept;
  if (descriptor < 0 || (flags & MAP_ANONYMOUS) != 0) {  // for children
    static std::atomic<uint64_t> maps{0};
    race::shares(key_of(kAnonymous, getpid(), ++maps), true);
    return;
  }
  struct stat status;
  if (syscall(SYS_fstat, descriptor, &status) != 0) return;
  const int mode = static_cast<int>(syscall(SYS_fcntl, descriptor, F_GETFL));
  race::shares(key_of(kFile, status.st_dev, status.st_ino),
               (protection & PROT_WRITE) != 0 || (mode & O_ACCMODE) == O_RDWR);
}

}  // namespace

#define IPCLAB_MAP(name, offset)                                    \
  IPCLAB_AROUND(void*, name,                                        \
                (void* a, size_t n, int p, int f, int d, offset o), \
                (a, n, p, f, d, o), ,                               \
                if (done != MAP_FAILED) has_mapped(IPCLAB_CALLER, f, p, d))
IPCLAB_MAP(mmap, off_t)
IPCLAB_MAP(mmap64, off64_t)
IPCLAB_AROUND(void*, shmat, (int id, const void* a, int f), (id, a, f), ,
              if (done != MAP_FAILED && counts(IPCLAB_CALLER))
                  race::shares(key_of(kSystemV, 1, static_cast<uint64_t>(id)),
                               true))

namespace {

struct Semaphores {
  std::mutex mutex;
  std::map<sem_t*, uint64_t> keys;  ///< of those that sem_open() returned
};
Semaphores& semaphores() {
  static auto& all = *new Semaphores;
  return all;
}

}  // namespace

IPCLAB_FRONT sem_t* sem_open(const char* name, int flags, ...) {
  static const auto real =
      next<sem_t*(const char*, int, mode_t, unsigned)>("sem_open");
  va_list list;
  va_start(list, flags);
  const bool makes = (flags & O_CREAT) != 0;
  const mode_t mode = makes ? va_arg(list, mode_t) : 0;
  const unsigned value = makes ? va_arg(list, unsigned) : 0;
  va_end(list);
  sem_t* const done = real(name, flags, mode, value);
  if (done != SEM_FAILED) {
    const std::lock_guard lock(semaphores().mutex);
    semaphores().keys[done] =
        key_of(kNamed, std::hash<std::string_view>()(name));
  }
  return done;
}

namespace {

/// The channel of a named semaphore; 0 for another one, which is in memory of
/// one process or in memory that processes share.
uint64_t key_of(const void* caller, sem_t* semaphore) {
  if (!counts(caller)) return 0;
  const std::lock_guard lock(semaphores().mutex);
  const auto found = semaphores().keys.find(semaphore);
  return found == semaphores().keys.end() ? 0 : found->second;
}

void has_posted(const void* caller, sem_t* semaphore) {
  const Kept kept;
  if (const uint64_t key = key_of(caller, semaphore); key != 0) race::sent(key);
}

void has_seen(const void* caller, sem_t* semaphore) {
  const Kept kept;
  if (const uint64_t key = key_of(caller, semaphore); key != 0)
    race::received(key, false);  // its first value may come from nobody
}

}  // namespace

IPCLAB_AROUND(int, sem_post, (sem_t * s), (s), has_posted(IPCLAB_CALLER, s), )
#define IPCLAB_SEES(name, parameters, arguments)    \
  IPCLAB_AROUND(int, name, parameters, arguments, , \
                if (done == 0) has_seen(IPCLAB_CALLER, s))
IPCLAB_SEES(sem_wait, (sem_t * s), (s))
IPCLAB_SEES(sem_trywait, (sem_t * s), (s))
IPCLAB_SEES(sem_timedwait, (sem_t * s, const timespec* t), (s, t))
IPCLAB_SEES(sem_clockwait, (sem_t * s, clockid_t c, const timespec* t),
            (s, c, t))
IPCLAB_SEES(sem_getvalue, (sem_t * s, int* value), (s, value))

#define IPCLAB_SYSTEM_V(result, name, parameters, arguments, kind)            \
  IPCLAB_AROUND(                                                              \
      result, name, parameters, arguments,                                    \
      const uint64_t key = key_of(kSystemV, kind, static_cast<uint64_t>(id)); \
      if (counts(IPCLAB_CALLER)) race::sent(key),                             \
      if (counts(IPCLAB_CALLER)) race::received(key, true))
IPCLAB_SYSTEM_V(int, semop, (int id, sembuf* s, size_t n), (id, s, n), 2)
IPCLAB_SYSTEM_V(int, semtimedop,
                (int id, sembuf* s, size_t n, const timespec* t), (id, s, n, t),
                2)
IPCLAB_SYSTEM_V(int, msgsnd, (int id, const void* m, size_t n, int f),
                (id, m, n, f), 3)
IPCLAB_SYSTEM_V(ssize_t, msgrcv, (int id, void* m, size_t n, long t, int f),
                (id, m, n, t, f), 3)

IPCLAB_AROUND(ssize_t, process_vm_readv,
              (pid_t p, const iovec* l, unsigned long n, const iovec* r,
               unsigned long m, unsigned long f),
              (p, l, n, r, m, f), ,
              if (counts(IPCLAB_CALLER)) race::learned_from(p))
IPCLAB_AROUND(ssize_t, process_vm_writev,
              (pid_t p, const iovec* l, unsigned long n, const iovec* r,
               unsigned long m, unsigned long f),
              (p, l, n, r, m, f), if (counts(IPCLAB_CALLER)) race::told(p), )

// ---- signals, and the ends of processes

IPCLAB_AROUND(int, kill, (pid_t p, int s), (p, s),
              if (counts(IPCLAB_CALLER) && s != 0) race::told(p),
              if (done != 0 && errno == ESRCH && counts(IPCLAB_CALLER))
                  race::learned_from(p))
IPCLAB_AROUND(int, sigqueue, (pid_t p, int s, const sigval v), (p, s, v),
              if (counts(IPCLAB_CALLER)) race::told(p), )

namespace {

template <typename Process>
Process ended(const void* caller, Process process) {
  const Kept kept;
  if (process > 0 && counts(caller)) race::learned_from(process);
  return process;
}

}  // namespace

#define IPCLAB_WAITS(name, parameters, arguments)     \
  IPCLAB_AROUND(pid_t, name, parameters, arguments, , \
                ended(IPCLAB_CALLER, done))
IPCLAB_WAITS(wait, (int* s), (s))
IPCLAB_WAITS(waitpid, (pid_t p, int* s, int o), (p, s, o))
IPCLAB_WAITS(wait3, (int* s, int o, rusage* r), (s, o, r))
IPCLAB_WAITS(wait4, (pid_t p, int* s, int o, rusage* r), (p, s, o, r))
IPCLAB_AROUND(int, waitid, (idtype_t t, id_t p, siginfo_t* i, int o),
              (t, p, i, o), ,
              if (done == 0)
                  ended(IPCLAB_CALLER, i == nullptr ? pid_t(p) : i->si_pid))

// The C library waits.
IPCLAB_AROUND(int, system, (const char* c), (c), ,
              if (counts(IPCLAB_CALLER)) race::learned_from_ended())
IPCLAB_AROUND(int, pclose, (FILE * f), (f), ,
              if (counts(IPCLAB_CALLER)) race::learned_from_ended())
