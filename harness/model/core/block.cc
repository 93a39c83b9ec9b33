// SPDX-License-Identifier: Apache-2.0
// Physical memory.
#include "core/block.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "core/log.h"
#include "core/pool_file.h"

namespace ipclab::model {
namespace {

constexpr char kMagic[8] = {'i', 'p', 'c', 'l', 'a', 'b', '0', '1'};

// Stands behind the bytes of a block.
struct Trailer {
  char magic[8];
  uint64_t id;
  uint64_t size;
  uint64_t gpu;
  Label label;
  uint64_t occupants[kSlots];
};

// A large block has one occupant, at offset 0, or few and large ones.
uint64_t occupant_position(uint64_t size, uint64_t offset) {
  const uint64_t slot = offset / (size / kSlots);
  return size + offsetof(Trailer, occupants) + 8 * (slot % kSlots);
}

std::string memfd_name(int gpu) {
  return "ipclab-model-gpu" + std::to_string(gpu);
}

// A lock belongs to the open file, so it lasts while any descriptor of the file
// does, also one in flight, and /proc/locks shows it to everybody. Its range
// tells GPU and size.
constexpr uint64_t kLockMark = 0x69706bull << 36;  // far behind all data
constexpr int kGpuShift = 32;

void lock_range(int descriptor, short type, int gpu, uint64_t size) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start =
      static_cast<off_t>(kLockMark + (static_cast<uint64_t>(gpu) << kGpuShift));
  range.l_len = static_cast<off_t>(size);
  fcntl(descriptor, F_OFD_SETLK, &range);
}

// Memory of cuMemCreate on a GPU, by the locks on it.
uint64_t chunk_bytes(int gpu) {
  const uint64_t begin = kLockMark + (static_cast<uint64_t>(gpu) << kGpuShift);
  std::set<std::string> seen;
  uint64_t total = 0;
  std::ifstream locks("/proc/locks");
  std::string line;
  while (std::getline(locks, line)) {
    std::istringstream words(line);
    std::string number, kind, mode, access, process, file;
    uint64_t first = 0, last = 0;
    if (words >> number >> kind >> mode >> access >> process >> file >> first >>
            last &&
        kind == "OFDLCK" && first == begin && seen.insert(file).second) {
      total += last - first + 1;
    }
  }
  return total;
}

}  // namespace

uint64_t unique_id() {
  static const uint64_t seed = [] {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) {
      random = static_cast<uint64_t>(getpid()) << 32;
    }
    return random;
  }();
  static std::atomic<uint64_t> next{0};
  const uint64_t id = seed + ++next;
  return id != 0 ? id : unique_id();
}

std::shared_ptr<Block> Block::create(int gpu, uint64_t size,
                                     const Label& label) {
  const std::string name =
      label.is_chunk != 0 ? "ipclab-model-chunk" : memfd_name(gpu);
  const int descriptor = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (descriptor < 0) {
    say(std::string("no descriptor for device memory: ") +
        std::strerror(errno) + (errno == EMFILE ? " (raise 'ulimit -n')" : ""));
    return nullptr;
  }
  auto block = std::shared_ptr<Block>(new Block);
  block->descriptor_ = descriptor;
  block->gpu_ = gpu;
  block->size_ = size;
  block->id_ = unique_id();
  Trailer head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.id = block->id_;
  head.size = size;
  head.gpu = static_cast<uint64_t>(gpu);
  head.label = label;
  const size_t bytes = offsetof(Trailer, occupants);
  const off_t end = static_cast<off_t>(size);
  if (ftruncate(descriptor, end + static_cast<off_t>(sizeof(Trailer))) != 0 ||
      pwrite(descriptor, &head, bytes, end) != static_cast<ssize_t>(bytes)) {
    say(std::string("no device memory: ") + std::strerror(errno));
    return nullptr;
  }
  if (label.is_chunk != 0 && gpu >= 0) {
    lock_range(descriptor, F_RDLCK, gpu, size);
  }
  return block;
}

std::shared_ptr<Block> Block::adopt(int descriptor) {
  auto block = std::shared_ptr<Block>(new Block);
  block->descriptor_ = descriptor;
  struct stat status;
  if (fstat(descriptor, &status) != 0 ||
      status.st_size <= static_cast<off_t>(sizeof(Trailer))) {
    return nullptr;
  }
  const uint64_t size = static_cast<uint64_t>(status.st_size) - sizeof(Trailer);
  Trailer head;
  const size_t bytes = offsetof(Trailer, occupants);
  if (pread(descriptor, &head, bytes, static_cast<off_t>(size)) !=
          static_cast<ssize_t>(bytes) ||
      std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 ||
      head.size != size) {
    return nullptr;
  }
  block->gpu_ = static_cast<int>(head.gpu);
  block->size_ = size;
  block->id_ = head.id;
  return block;
}

Block::~Block() {
  if (descriptor_ >= 0) close(descriptor_);
}

uint64_t Block::occupant(uint64_t offset) const {
  uint64_t value = 0;
  if (pread(descriptor_, &value, sizeof value,
            static_cast<off_t>(occupant_position(size_, offset))) !=
      sizeof value) {
    return 0;
  }
  return value;
}

void Block::set_occupant(uint64_t offset, uint64_t export_id) {
  if (pwrite(descriptor_, &export_id, sizeof export_id,
             static_cast<off_t>(occupant_position(size_, offset))) !=
      sizeof export_id) {
    say(std::string("cannot mark device memory: ") + std::strerror(errno));
  }
}

Label Block::label() const {
  Label label{};
  const off_t position = static_cast<off_t>(size_ + offsetof(Trailer, label));
  return pread(descriptor_, &label, sizeof label, position) == sizeof label
             ? label
             : Label{};
}

uint64_t bytes_in_use(int gpu) {
  const std::string wanted = "/memfd:" + memfd_name(gpu) + " ";
  const std::string pool = "/memfd:" + pool_file_name(gpu) + " ";
  std::set<std::pair<dev_t, ino_t>> seen;
  uint64_t total = chunk_bytes(gpu);
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return total;
  while (const dirent* process = readdir(processes)) {
    if (process->d_name[0] < '1' || process->d_name[0] > '9') continue;
    const std::string folder = std::string("/proc/") + process->d_name + "/fd";
    DIR* descriptors = opendir(folder.c_str());
    if (descriptors == nullptr) continue;  // ended, or another user's
    while (const dirent* entry = readdir(descriptors)) {
      char target[64];
      const ssize_t length =
          readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target);
      if (length <= 0) continue;
      const std::string name(target, static_cast<size_t>(length));
      const bool pooled = name.compare(0, pool.size(), pool) == 0;
      if (!pooled && name.compare(0, wanted.size(), wanted) != 0) continue;
      struct stat status;
      if (fstatat(dirfd(descriptors), entry->d_name, &status, 0) != 0 ||
          !seen.emplace(status.st_dev, status.st_ino).second) {
        continue;
      }
      if (pooled) {
        const int file =
            openat(dirfd(descriptors), entry->d_name, O_RDONLY | O_CLOEXEC);
        total += pool_bytes(file);
        if (file >= 0) close(file);
      } else if (status.st_size > static_cast<off_t>(sizeof(Trailer))) {
        total += static_cast<uint64_t>(status.st_size) - sizeof(Trailer);
      }
    }
    closedir(descriptors);
  }
  closedir(processes);
  return total;
}

}  // namespace ipclab::model
