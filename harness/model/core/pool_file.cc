// SPDX-License-Identifier: Apache-2.0
// The memory of a pool.
#include "core/pool_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "core/block.h"
#include "core/log.h"

namespace ipclab::model {
namespace {

constexpr char kMagic[8] = {'i', 'p', 'c', 'l', 'p', 'l', '0', '1'};

int gpu_of(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
}

uint64_t size_of(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 ? static_cast<uint64_t>(status.st_size)
                                         : 0;
}

}  // namespace

std::string pool_file_name(int gpu) {
  return gpu < 0 ? "ipclab-model-pool-host"
                 : "ipclab-model-pool-gpu" + std::to_string(gpu);
}

std::shared_ptr<PoolFile> PoolFile::create(CUmemLocation location,
                                           unsigned handle_types) {
  auto file = std::shared_ptr<PoolFile>(new PoolFile);
  file->descriptor_ =
      memfd_create(pool_file_name(gpu_of(location)).c_str(), MFD_CLOEXEC);
  // The page is the first of the file, so that all offsets stay aligned.
  if (file->descriptor_ < 0 || ftruncate(file->descriptor_, kPage) != 0 ||
      !file->map()) {
    say(std::string("no memory pool: ") + std::strerror(errno) +
        (errno == EMFILE ? " (raise 'ulimit -n')" : ""));
    return nullptr;
  }
  PoolPage& page = file->page();  // zero bytes are a valid empty state
  std::memcpy(page.magic, kMagic, sizeof kMagic);
  page.id = unique_id();
  page.location = location;
  page.handle_types = handle_types;
  return file;
}

std::shared_ptr<PoolFile> PoolFile::adopt(int descriptor) {
  auto file = std::shared_ptr<PoolFile>(new PoolFile);
  file->descriptor_ = descriptor;
  if (size_of(descriptor) < kPage || !file->map() ||
      std::memcmp(file->page_->magic, kMagic, sizeof kMagic) != 0) {
    return nullptr;
  }
  return file;
}

PoolFile::~PoolFile() {
  if (page_ != nullptr) munmap(page_, sizeof(PoolPage));
  if (descriptor_ >= 0) close(descriptor_);
}

bool PoolFile::map() {
  void* place = mmap(nullptr, sizeof(PoolPage), PROT_READ | PROT_WRITE,
                     MAP_SHARED, descriptor_, 0);
  if (place == MAP_FAILED) return false;
  page_ = static_cast<PoolPage*>(place);
  return true;
}

uint64_t PoolFile::grow(uint64_t size) {
  const uint64_t end = size_of(descriptor_);
  const auto wanted = static_cast<off_t>(end + size);
  return ftruncate(descriptor_, wanted) == 0 ? end : 0;
}

void PoolFile::discard(uint64_t offset, uint64_t size) {
  if (fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(offset), static_cast<off_t>(size)) != 0) {
    say(std::string("cannot release memory: ") + std::strerror(errno));
  }
}

bool PoolFile::contains(uint64_t offset, uint64_t size) const {
  const uint64_t end = size_of(descriptor_);
  return offset >= kPage && offset <= end && size <= end - offset;
}

uint64_t pool_bytes(int descriptor) {
  char head[sizeof(PoolPage)];
  uint64_t reserved = 0;
  if (pread(descriptor, head, sizeof head, 0) != sizeof head ||
      std::memcmp(head, kMagic, sizeof kMagic) != 0) {
    return 0;
  }
  std::memcpy(&reserved, head + offsetof(PoolPage, reserved), sizeof reserved);
  return reserved;
}

}  // namespace ipclab::model
