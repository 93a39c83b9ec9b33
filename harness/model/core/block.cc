// SPDX-License-Identifier: Apache-2.0
// Physical memory.
#include "core/block.h"

#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/log.h"

namespace ipclab::model {
namespace {

constexpr char kMagic[8] = {'i', 'p', 'c', 'l', 'a', 'b', '0', '1'};

// This is stored after the bytes of a block.
struct Trailer {
  char magic[8];
  uint64_t id;
  uint64_t size;
  int32_t gpu;
  uint32_t reserved;
  Label label;
  uint64_t occupants[kSlots];
};

// Where the id of the occupant at `offset` is stored. A block that is larger
// than kPage has only one occupant, so the number of slots can be fixed.
uint64_t occupant_position(uint64_t size, uint64_t offset) {
  const uint64_t slot = offset / (size / kSlots);
  return size + offsetof(Trailer, occupants) + 8 * (slot % kSlots);
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
  auto block = std::shared_ptr<Block>(new Block);
  block->file_ =
      SharedFile::create(label.is_chunk != 0 ? "chunk" : "block",
                         size + sizeof(Trailer), SharedFile::Size::kFixed);
  block->gpu_ = gpu;
  block->size_ = size;
  block->id_ = unique_id();
  Trailer head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.id = block->id_;
  head.size = size;
  head.gpu = gpu;
  head.label = label;
  const auto bytes = static_cast<ssize_t>(offsetof(Trailer, occupants));
  if (!block->file_.valid() ||
      pwrite(block->descriptor(), &head, static_cast<size_t>(bytes),
             static_cast<off_t>(size)) != bytes) {
    say(std::string("no device memory: ") + std::strerror(errno) +
        (errno == EMFILE ? " (raise 'ulimit -n')" : ""));
    return nullptr;
  }
  if (gpu >= 0) block->file_.count(gpu, size);
  return block;
}

std::shared_ptr<Block> Block::adopt(SharedFile file) {
  auto block = std::shared_ptr<Block>(new Block);
  block->file_ = std::move(file);
  if (!block->file_.valid()) return nullptr;
  const uint64_t bytes_of_file = block->file_.size();
  if (bytes_of_file <= sizeof(Trailer)) return nullptr;
  const uint64_t size = bytes_of_file - sizeof(Trailer);
  Trailer head;
  const auto bytes = static_cast<ssize_t>(offsetof(Trailer, occupants));
  if (pread(block->descriptor(), &head, static_cast<size_t>(bytes),
            static_cast<off_t>(size)) != bytes ||
      std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 ||
      head.size != size || size % kPage != 0 || head.gpu < -1 ||
      head.gpu >= kMaxGpus) {
    return nullptr;
  }
  block->gpu_ = head.gpu;
  block->size_ = size;
  block->id_ = head.id;
  // The block stays counted if its creator ends before this process.
  if (block->gpu_ >= 0) block->file_.count(block->gpu_, size);
  block->share(Sharing::kImported);
  return block;
}

uint64_t Block::occupant(uint64_t offset) const {
  uint64_t value = 0;
  if (pread(descriptor(), &value, sizeof value,
            static_cast<off_t>(occupant_position(size_, offset))) !=
      sizeof value) {
    return 0;
  }
  return value;
}

void Block::set_occupant(uint64_t offset, uint64_t export_id) {
  if (pwrite(descriptor(), &export_id, sizeof export_id,
             static_cast<off_t>(occupant_position(size_, offset))) !=
      sizeof export_id) {
    say(std::string("cannot mark device memory: ") + std::strerror(errno));
  }
}

Label Block::label() const {
  Label label{};
  const off_t position = static_cast<off_t>(size_ + offsetof(Trailer, label));
  return pread(descriptor(), &label, sizeof label, position) == sizeof label
             ? label
             : Label{};
}

}  // namespace ipclab::model
