// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>

#include "line.h"
#include "recorder.h"

namespace ipclab::trace {
namespace {

constexpr size_t kRoom = size_t{16} << 30;  // of addresses, not of memory
constexpr size_t kStep = size_t{1} << 20;   // by which the file grows

struct File {
  char* bytes = nullptr;
  int descriptor = -1;
  uint64_t began = 0;
  pid_t process = 0;
  std::atomic<size_t> used{0};
  std::atomic<size_t> size{0};  // of the file; a write after its end is SIGBUS
};

std::atomic<File*> current{nullptr};
std::atomic<bool> stopped{false};
bool forked = false;     // this is a child of fork that has not called exec
uint64_t forked_at = 0;  // the time just before the fork
std::mutex opening_or_growing;

// Writes the program's arguments as a list of JSON: at most 16 arguments, and
// at most 80 characters of each.
void write_command(Line& line) {
  char all[2048];
  const int source = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t size = source == -1 ? 0 : read(source, all, sizeof all);
  if (source != -1) close(source);
  std::string_view left(all, size > 0 ? static_cast<size_t>(size) : 0);
  line.raw("[");
  for (int count = 0; !left.empty() && count < 16; ++count) {
    const std::string_view one = left.substr(0, left.find('\0'));
    if (count != 0) line.comma();
    line.text(one.substr(0, 80));
    left.remove_prefix(std::min(left.size(), one.size() + 1));
  }
  line.raw("]");
}

bool grow(File& file, size_t end) {
  const std::lock_guard lock(opening_or_growing);
  const size_t size = file.size.load();
  if (end <= size) return true;
  if (end > kRoom) {
    give_up("the trace of a process ends at 16 GiB");
    return false;
  }
  const size_t wanted = (end / kStep + 1) * kStep;
  // Allocates the blocks now, so that a full disk is an error here and not a
  // signal later.
  const auto bytes = static_cast<off_t>(wanted);
  const int error = posix_fallocate(file.descriptor, 0, bytes);
  if (error == EOPNOTSUPP || error == EINVAL) {
    if (ftruncate(file.descriptor, bytes) == 0) {
      file.size.store(wanted);
      return true;
    }
  } else if (error == 0) {
    file.size.store(wanted);
    return true;
  }
  give_up(std::strerror(error));
  return false;
}

// Writes the first byte of the line last, so a line with a first byte is
// complete.
void put(File& file, const Line& line) {
  const std::string_view text = line.view();
  const size_t length = text.size() + 1;
  const size_t at = file.used.fetch_add(length);
  if (at + length > file.size.load(std::memory_order_acquire) &&
      !grow(file, at + length)) {
    return;
  }
  char* place = file.bytes + at;
  std::memcpy(place + 1, text.data() + 1, text.size() - 1);
  place[text.size()] = '\n';
  reinterpret_cast<std::atomic<char>*>(place)->store(text[0],
                                                     std::memory_order_release);
}

File* open_file() {
  const char* folder = std::getenv("IPCLAB_TRACE");
  auto* file = new File;
  file->process = getpid();
  file->began = forked ? forked_at : now();
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%d-%llu.trace", folder, file->process,
                static_cast<unsigned long long>(file->began));
  file->descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file->descriptor == -1) {
    give_up(std::strerror(errno));
    return nullptr;
  }
  // A high number, because some programs expect that their own files get the
  // lowest numbers.
  const int high = fcntl(file->descriptor, F_DUPFD_CLOEXEC, 900);
  if (high != -1) {
    close(file->descriptor);
    file->descriptor = high;
  }
  void* mapped = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE, file->descriptor, 0);
  if (mapped == MAP_FAILED) {
    give_up(std::strerror(errno));
    return nullptr;
  }
  file->bytes = static_cast<char*>(mapped);

  if (!grow(*file, 1)) return nullptr;
  return file;
}

void write_head(File& file) {
  Line line;
  line.raw("{\"what\":\"process\",\"format\":1,\"process\":")
      .number(file.process)
      .raw(",\"parent\":")
      .number(getppid())
      .raw(",\"began\":")
      .number(file.began)
      .raw(forked ? ",\"forked\":true" : ",\"forked\":false")
      .raw(",\"command\":");
  write_command(line);
  write_visible(line);
  put(file, line.raw("}"));
  write_calls([&file](const Line& declared) { put(file, declared); });
}

File* file() {
  File* found = current.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  File* made = nullptr;
  {
    static std::mutex once;
    const std::lock_guard lock(once);
    found = current.load();
    if (found != nullptr || stopped.load()) return found;
    made = open_file();
    if (made == nullptr) return nullptr;
    write_head(*made);
    current.store(made, std::memory_order_release);
  }
  return made;
}

void before_fork() {
  opening_or_growing.lock();
  forked_at = now();
}

// A child of fork writes its own file. It keeps the mapping of its parent's
// file but does not use it, because another thread of the parent may write
// there.
void after_fork_in_child() {
  current.store(nullptr);
  forked = true;
  opening_or_growing.unlock();
}

__attribute__((constructor)) void start() {
  if (!tracing()) return;
  pthread_atfork(
      before_fork, [] { opening_or_growing.unlock(); }, after_fork_in_child);
  file();
}

}  // namespace

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 +
         static_cast<uint64_t>(time.tv_nsec);
}

bool tracing() {
  static const bool named = [] {
    const char* folder = std::getenv("IPCLAB_TRACE");
    return folder != nullptr && *folder != '\0';
  }();
  return named && !stopped.load(std::memory_order_relaxed);
}

uint64_t beginning() {
  File* const own = file();
  return own == nullptr ? 0 : own->began;
}

bool own_process() {
  File* const own = file();
  return own != nullptr && own->process == getpid();
}

void write(const Line& line) {
  if (!tracing()) return;
  if (File* const own = file()) put(*own, line);
}

void begin_event(Line& line, std::string_view name, uint64_t at) {
  const uint64_t from = beginning();
  line.raw("{\"what\":").text(name).raw(",\"t\":");
  line.number(at < from ? 0 : at - from);
}

void write_visible(Line& line) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return;
  line.raw(",\"visible\":").text(std::string_view(visible).substr(0, 400));
}

void give_up(std::string_view reason) {
  if (stopped.exchange(true)) return;
  dprintf(STDERR_FILENO,
          "ipclab trace: process %d is not recorded from here: %.*s\n",
          getpid(), static_cast<int>(reason.size()), reason.data());
}

}  // namespace ipclab::trace
