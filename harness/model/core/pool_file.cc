// SPDX-License-Identifier: Apache-2.0
// The memory of a pool.
#include "core/pool_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/block.h"
#include "core/device.h"
#include "core/log.h"

namespace ipclab::model {
namespace {

constexpr char kMagic[8] = {'i', 'p', 'c', 'l', 'p', 'l', '0', '1'};

int gpu_of(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
}

// Another process may have written any number there.
bool is_location(const CUmemLocation& location) {
  int type = 0;
  static_assert(sizeof type == sizeof location.type);
  std::memcpy(&type, &location.type, sizeof type);
  switch (type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 && location.id < kMaxGpus;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::shared_ptr<PoolFile> PoolFile::create(CUmemLocation location,
                                           unsigned handle_types) {
  auto pool = std::shared_ptr<PoolFile>(new PoolFile);
  // Only the PoolPage is in the first page of the file, so all offsets stay
  // aligned.
  pool->file_ = SharedFile::create("pool", kPage, SharedFile::Size::kGrows);
  PoolPage& page = pool->page_;
  std::memcpy(page.magic, kMagic, sizeof kMagic);
  page.id = unique_id();
  page.location = location;
  page.handle_types = handle_types;
  if (!pool->file_.valid() ||
      pwrite(pool->descriptor(), &page, sizeof page, 0) != sizeof page) {
    say(std::string("no memory pool: ") + std::strerror(errno) +
        (errno == EMFILE ? " (raise 'ulimit -n')" : ""));
    return nullptr;
  }
  return pool;
}

std::shared_ptr<PoolFile> PoolFile::adopt(SharedFile file) {
  auto pool = std::shared_ptr<PoolFile>(new PoolFile);
  pool->file_ = std::move(file);
  PoolPage& page = pool->page_;
  const bool good =
      pool->file_.valid() && pool->file_.size() >= kPage &&
      pread(pool->descriptor(), &page, sizeof page, 0) == sizeof page &&
      std::memcmp(page.magic, kMagic, sizeof kMagic) == 0 &&
      is_location(page.location);
  if (!good) return nullptr;
  pool->share(Sharing::kImported);
  return pool;
}

uint64_t PoolFile::grow(uint64_t size) {
  const uint64_t end = file_.size();
  return file_.grow_to(end + size) ? end : 0;
}

void PoolFile::count(uint64_t bytes) {
  const int gpu = gpu_of(page_.location);
  if (gpu >= 0) file_.count(gpu, bytes);
}

void PoolFile::discard(uint64_t offset, uint64_t size) {
  if (fallocate(descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(offset), static_cast<off_t>(size)) != 0) {
    say(std::string("cannot release memory: ") + std::strerror(errno));
  }
}

bool PoolFile::contains(uint64_t offset, uint64_t size) const {
  const uint64_t end = file_.size();
  return offset >= kPage && offset <= end && size <= end - offset;
}

}  // namespace ipclab::model
