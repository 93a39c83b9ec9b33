// SPDX-License-Identifier: Apache-2.0
// The files of the simulated machine.
#include "core/shared_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipclab::model {
namespace {

// ---- the descriptors of this process

// A forked child does not need these descriptors. It would also keep the locks
// that show that its parent lives. So the child closes the descriptors, in a
// function that must not allocate or lock.
constexpr int kWords = 1 << 14;  // for a million descriptors
std::atomic<uint64_t> open_files[kWords];

bool has_place(int descriptor) { return descriptor < kWords * 64; }

void list(int descriptor) {
  if (!has_place(descriptor)) return;
  open_files[descriptor / 64].fetch_or(uint64_t{1} << descriptor % 64);
}

// Removes a descriptor from the list. Returns false if this process does not
// own it any more: a child of fork has closed the descriptor, and another file
// may have its number.
bool unlist(int descriptor) {
  if (!has_place(descriptor)) return true;
  const uint64_t bit = uint64_t{1} << descriptor % 64;
  return (open_files[descriptor / 64].fetch_and(~bit) & bit) != 0;
}

void close_in_child() {
  for (int i = 0; i < kWords; ++i) {
    uint64_t word = open_files[i].exchange(0);
    for (; word != 0; word &= word - 1) close(i * 64 + __builtin_ctzll(word));
  }
}

// ---- names

// FNV-1a. With the hash of an earlier part, `text` continues this part.
uint64_t hash_of(std::string_view text,
                 uint64_t hash = 14695981039346656037ull) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  return hash;
}

std::string machine_name() {
  const char* variable = std::getenv("IPCLAB_MODEL_MACHINE");
  if (variable != nullptr && *variable != '\0') return variable;
  std::string session = "none";
  std::ifstream("/proc/self/sessionid") >> session;
  return "user " + std::to_string(getuid()) + " session " + session;
}

const std::string& name_prefix() {
  static const std::string& prefix = *new std::string([]() -> std::string {
    char text[64];
    std::snprintf(text, sizeof text, "ipclab-model-%016" PRIx64 "-",
                  machine_id());
    return text;
  }());
  return prefix;
}

bool has_our_name(const std::string& path) {
  char target[80];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  const std::string wanted = "/memfd:" + name_prefix();
  return length >= static_cast<ssize_t>(wanted.size()) &&
         wanted.compare(0, wanted.size(), target, wanted.size()) == 0;
}

// The mark of a descriptor that only other drivers and the host may use. It
// belongs to the open file, so it also reaches other processes. Nothing else in
// the model uses this flag, and it has no effect on a memfd.
constexpr int kDmaBuf = O_NOATIME;

bool is_dma_buf(int descriptor) {
  return (fcntl(descriptor, F_GETFL) & kDmaBuf) != 0;
}

bool is_sealed_file(int descriptor) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_SEAL;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & kNeeded) == kNeeded;
}

// ---- counting

// A lock belongs to the open file. It lasts as long as the file has a mapping
// or a descriptor; a descriptor in a message also counts. /proc/locks shows the
// lock to all processes. The lock's beginning, far after all data, encodes
// machine and GPU. Its length is the number of bytes.
constexpr uint64_t kLockMark = uint64_t{1} << 60;
constexpr int kMachineShift = 36;
constexpr uint64_t kMachineMask = (1 << 24) - 1;
constexpr int kGpuShift = 32;

uint64_t lock_begin(int gpu) {
  return kLockMark | (machine_id() & kMachineMask) << kMachineShift |
         static_cast<uint64_t>(gpu) << kGpuShift;
}

void set_lock(int descriptor, short type, uint64_t begin, uint64_t bytes) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(begin);
  range.l_len = static_cast<off_t>(bytes);
  fcntl(descriptor, F_OFD_SETLK, &range);
}

void lock_bytes(int descriptor, int gpu, uint64_t before, uint64_t now) {
  const uint64_t begin = lock_begin(gpu);
  if (now > 0) set_lock(descriptor, F_RDLCK, begin, now);
  if (now < before) set_lock(descriptor, F_UNLCK, begin + now, before - now);
}

// What this process uses, by descriptor.
struct Use {
  int gpu = 0;
  uint64_t bytes = 0;
  Sharing shared = Sharing::kNo;
};

struct Uses {
  std::mutex mutex;
  std::map<int, Use> files;
  bool counted = true;
};

Uses& uses() {
  static auto& only = *new Uses;
  return only;
}

// The list of all locks of the host. The kernel returns at most 4 KiB of it in
// one read: about 50 locks, 0.6 us for each. Only the lines that are asked for
// are kept: the memory that a process uses must not depend on other machines'
// locks, because tests compare it.
struct Locks {
  std::string lines;     ///< those with the wanted word
  uint64_t hash = 0;     ///< of the whole list
  bool at_once = false;  ///< the first read returned the whole list
};

constexpr size_t kWholeRead = 4096, kLongestLine = 128;

Locks read_locks(size_t first_read, const std::string& wanted) {
  Locks locks;
  const int file = open("/proc/locks", O_RDONLY | O_CLOEXEC);
  if (file < 0) return locks;
  char part[kLongestLine + kWholeRead];
  size_t begun = 0;  // bytes of a line whose end is in the next read
  size_t size = 0;
  uint64_t hash = hash_of({});
  for (ssize_t length; (length = read(file, part + begun,
                                      size == 0 ? first_read : kWholeRead)) > 0;
       size += static_cast<size_t>(length)) {
    hash = hash_of({part + begun, static_cast<size_t>(length)}, hash);
    std::string_view left(part, begun + static_cast<size_t>(length));
    for (size_t end; (end = left.find('\n')) != std::string_view::npos;
         left.remove_prefix(end + 1)) {
      const std::string_view line = left.substr(0, end + 1);
      if (line.find(wanted) != std::string_view::npos) locks.lines += line;
    }
    begun = left.size() <= kLongestLine ? left.size() : 0;
    std::memmove(part, left.data(), begun);
  }
  close(file);
  locks.hash = hash;
  locks.at_once = size + kLongestLine < first_read;
  return locks;
}

// For each file: its inode number, and how many bytes its lock counts. The list
// is sorted by the number, and each file is in it once.
using Counted = std::vector<std::pair<uint64_t, uint64_t>>;

// The word that the lines of locks have that begin at `begin`.
std::string word_of(uint64_t begin) {
  return " " + std::to_string(begin) + " ";
}

// Finds the locks that begin at `begin`. A line of /proc/locks has the form
// "7: OFDLCK ADVISORY  READ -1 00:01:4077 first last". Here 4077 is the file's
// inode number, and `first` and `last` are the first and last byte of the lock.
Counted counted_in(const std::string& locks, uint64_t begin) {
  const std::string wanted = word_of(begin);
  Counted counted;
  for (size_t at = locks.find(wanted); at != std::string::npos;
       at = locks.find(wanted, at + wanted.size())) {
    const char* file = locks.data() + locks.rfind(':', at) + 1;
    const char* last = locks.data() + at + wanted.size();
    counted.emplace_back(std::strtoull(file, nullptr, 10),
                         std::strtoull(last, nullptr, 10) - begin + 1);
  }
  std::sort(counted.begin(), counted.end());
  counted.erase(
      std::unique(counted.begin(), counted.end(),
                  [](auto& a, auto& b) { return a.first == b.first; }),
      counted.end());
  return counted;
}

// Adds the files of another list.
void unite(Counted& counted, const Counted& other) {
  Counted all;
  std::set_union(counted.begin(), counted.end(), other.begin(), other.end(),
                 std::back_inserter(all),
                 [](auto& a, auto& b) { return a.first < b.first; });
  counted = std::move(all);
}

// Does the first list contain all files of the second?
bool has_all(const Counted& counted, const Counted& other) {
  return std::includes(counted.begin(), counted.end(), other.begin(),
                       other.end(),
                       [](auto& a, auto& b) { return a.first < b.first; });
}

// Reads the list of locks again; every second time, the first read is shorter.
// If a lock disappears between two reads, another lock is skipped, because the
// next read begins one line too far. With a shorter first read, the skipped
// lock is a different one.
Locks read_again(int turn, const std::string& wanted) {
  return read_locks(turn % 2 == 0 ? kWholeRead / 2 : kWholeRead, wanted);
}

// The bytes that the files count now. A list that needs several reads is
// accepted if it equals the list of the previous call, or if the next list has
// the same files. If the lists change too fast, every file that is in any of
// them counts. A file of the previous call is gone only if it is missing in
// several lists.
Counted count_files(uint64_t begin) {
  static std::mutex mutex;
  static uint64_t known = 0;  // hash of the list that was accepted last
  static auto& last = *new std::map<uint64_t, Counted>;  // by `begin`
  constexpr int kTries = 8, kTriesForGone = 4;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string wanted = word_of(begin);
  Locks locks = read_locks(kWholeRead, wanted);
  Counted counted = counted_in(locks.lines, begin);
  if (!locks.at_once && locks.hash != known) {
    std::string all = locks.lines;
    for (int i = 0;; ++i) {
      locks = read_again(i, wanted);
      Counted again = counted_in(locks.lines, begin);
      const bool same = again == counted;
      counted = std::move(again);
      all += locks.lines;
      if (same) break;
      if (i == kTries) {
        counted = counted_in(all, begin);
        break;
      }
    }
    for (int i = 0; i < kTriesForGone && !has_all(counted, last[begin]); ++i) {
      locks = read_again(i, wanted);
      unite(counted, counted_in(locks.lines, begin));
    }
    known = locks.hash;
  }
  last[begin] = counted;
  return counted;
}

}  // namespace

uint64_t machine_id() {
  static const uint64_t id = hash_of(machine_name());
  return id;
}

SharedFile::SharedFile(int descriptor) : descriptor_(descriptor) {
  static std::once_flag once;
  std::call_once(once,
                 [] { pthread_atfork(nullptr, nullptr, close_in_child); });
  list(descriptor);
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

SharedFile& SharedFile::operator=(SharedFile&& other) noexcept {
  if (this != &other) {
    close_now();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

SharedFile::~SharedFile() { close_now(); }

void SharedFile::close_now() {
  if (descriptor_ >= 0 && unlist(descriptor_)) {
    {
      const std::lock_guard<std::mutex> lock(uses().mutex);
      uses().files.erase(descriptor_);
    }
    close(descriptor_);
  }
  descriptor_ = -1;
}

SharedFile SharedFile::create(const char* what, uint64_t size, Size kind) {
  const int descriptor = memfd_create((name_prefix() + what).c_str(),
                                      MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return {};
  SharedFile file(descriptor);
  const int seals =
      F_SEAL_SHRINK | F_SEAL_SEAL | (kind == Size::kFixed ? F_SEAL_GROW : 0);
  const bool made = ftruncate(descriptor, static_cast<off_t>(size)) == 0 &&
                    fcntl(descriptor, F_ADD_SEALS, seals) == 0;
  return made ? std::move(file) : SharedFile();
}

SharedFile SharedFile::adopt(int descriptor) {
  if (descriptor < 0) return {};
  SharedFile file(descriptor);
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  // Without /proc nobody can read the name. The caller checks the contents.
  const bool named = access("/proc/self/fd", F_OK) != 0 || has_our_name(path);
  const bool ours =
      named && is_sealed_file(descriptor) && !is_dma_buf(descriptor);
  return ours ? std::move(file) : SharedFile();
}

SharedFile SharedFile::open_of(uint32_t pid, int descriptor) {
  const std::string path =
      "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  if (!has_our_name(path)) return {};  // the number now names another file
  const int copy = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (copy < 0) return {};
  // After the name was read, the number may have become that of another object.
  // This object has another id, and the caller compares ids.
  SharedFile file(copy);
  return is_sealed_file(copy) ? std::move(file) : SharedFile();
}

uint64_t SharedFile::size() const {
  struct stat status;
  return fstat(descriptor_, &status) == 0
             ? static_cast<uint64_t>(status.st_size)
             : 0;
}

bool SharedFile::grow_to(uint64_t size) {
  return ftruncate(descriptor_, static_cast<off_t>(size)) == 0;
}

void SharedFile::count(int gpu, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(uses().mutex);
  Use& use = uses().files[descriptor_];
  if (uses().counted) lock_bytes(descriptor_, gpu, use.bytes, bytes);
  use.gpu = gpu;
  use.bytes = bytes;
}

void SharedFile::share(Sharing how) {
  const std::lock_guard<std::mutex> lock(uses().mutex);
  Sharing& shared = uses().files[descriptor_].shared;
  shared = std::max(shared, how);
}

int SharedFile::open_as_dma_buf() const {
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor_);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC | kDmaBuf);
  if (opened < 0) return -1;
  const std::lock_guard<std::mutex> lock(uses().mutex);
  const auto use = uses().files.find(descriptor_);
  if (use != uses().files.end() && uses().counted) {
    lock_bytes(opened, use->second.gpu, 0, use->second.bytes);
  }
  return opened;
}

uint64_t counted_bytes(int gpu) {
  uint64_t total = 0;
  for (const auto& [file, bytes] : count_files(lock_begin(gpu))) {
    total += bytes;
  }
  return total;
}

static bool has_file_shared(Sharing at_least) {
  const std::lock_guard<std::mutex> lock(uses().mutex);
  return std::any_of(
      uses().files.begin(), uses().files.end(),
      [=](const auto& file) { return file.second.shared >= at_least; });
}

bool shares_memory() { return has_file_shared(Sharing::kExported); }

bool has_imports() { return has_file_shared(Sharing::kImported); }

void stop_counting() {
  const std::lock_guard<std::mutex> lock(uses().mutex);
  uses().counted = false;
  for (const auto& [descriptor, use] : uses().files) {
    lock_bytes(descriptor, use.gpu, use.bytes, 0);
  }
}

bool count_again(uint64_t most) {
  const std::lock_guard<std::mutex> lock(uses().mutex);
  std::map<int, uint64_t> wanted;
  for (const auto& [descriptor, use] : uses().files) {
    wanted[use.gpu] += use.bytes;
  }
  for (const auto& [gpu, bytes] : wanted) {
    if (bytes + counted_bytes(gpu) > most) return false;
  }
  uses().counted = true;
  for (const auto& [descriptor, use] : uses().files) {
    lock_bytes(descriptor, use.gpu, 0, use.bytes);
  }
  return true;
}

bool has_files_of_machine(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* descriptors = opendir(folder.c_str());
  if (descriptors == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(descriptors)) {
    found = found || has_our_name(folder + "/" + entry->d_name);
  }
  closedir(descriptors);
  return found;
}

}  // namespace ipclab::model
