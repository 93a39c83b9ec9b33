// SPDX-License-Identifier: Apache-2.0
// Addresses: the two windows, mappings and permissions.
#include "core/window.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/log.h"
#include "core/machine.h"
#include "core/race_host.h"
#include "core/race_memory.h"

namespace ipclab::model {
namespace {

// Half of it is for the program's own reservations, as many as a real GPU gives
// for its size. Nothing is used until memory is mapped.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kLargestWindow = 256ull << 30;  // all that its map allows
#else
constexpr uint64_t kLargestWindow = 32ull << 40;
#endif
constexpr uint64_t kSmallestWindow = 1ull << 30;

// Addresses without memory; aligned to kPage. 0 if there are none.
uint64_t reserve_range(uint64_t size) {
  void* place = mmap(nullptr, size + kPage, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return 0;
  return round_up(reinterpret_cast<uint64_t>(place), kPage);
}

// One byte for each page of the window, all zero; null if there is no room.
uint8_t* new_table(uint64_t pages) {
  void* table = mmap(nullptr, pages, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return table != MAP_FAILED ? static_cast<uint8_t*>(table) : nullptr;
}

// Ends the process if a mapping could not be changed: if memory stayed mapped
// after its free, a wrong use would not fault.
void must_map(const void* place) {
  if (place != MAP_FAILED) return;
  die(std::string("cannot change the mapping of device memory: ") +
      std::strerror(errno) + " (raise 'sysctl vm.max_map_count')");
}

// Each block uses a descriptor, so a process needs many.
void raise_descriptor_limit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

CUresult Window::reserve(int gpus) {
  for (size_ = kLargestWindow; size_ >= kSmallestWindow; size_ /= 2) {
    begin_ = reserve_range(size_);
    if (begin_ == 0) continue;
    alias_ = reserve_range(size_);
    if (alias_ != 0) break;
    munmap(reinterpret_cast<void*>(begin_), size_);
    begin_ = 0;
  }
  if (begin_ == 0) {
    say("no room for device addresses: raise 'ulimit -v' to 3 GiB or more");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uint64_t begin = begin_;
  for (const auto& [area, eighths] :
       {std::pair{Area::kLarge, 4}, std::pair{Area::kImported, 2},
        std::pair{Area::kShared, 1}, std::pair{Area::kOther, 1}}) {
    const uint64_t size = size_ / 8 * static_cast<uint64_t>(eighths);
    free_[static_cast<int>(area)][begin] = size;
    begin += size;
  }
  if (race::on()) {
    race::set_window(begin_, size_);
    race::host_uses_gpu();
  }
  host_ = new_table(size_ / kPage);
  if (host_ == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  for (int i = 0; i < gpus; ++i) {
    access_.push_back(new_table(size_ / kPage));
    if (access_.back() == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  raise_descriptor_limit();
  return CUDA_SUCCESS;
}

// ---- free addresses

Area Window::area_of(uint64_t address) const {
  const uint64_t eighth = (address - begin_) / (size_ / 8);
  return eighth < 4   ? Area::kLarge
         : eighth < 6 ? Area::kImported
         : eighth < 7 ? Area::kShared
                      : Area::kOther;
}

uint64_t Window::take(Area area, uint64_t size) {
  auto& free = free_[static_cast<int>(area)];
  size = round_up(size, kPage);
  for (auto range = free.begin(); range != free.end(); ++range) {
    if (range->second < size) continue;
    const uint64_t address = range->first;
    const uint64_t rest = range->second - size;
    free.erase(range);
    if (rest > 0) free[address + size] = rest;
    return address;
  }
  return 0;
}

void Window::give_back(uint64_t address, uint64_t size) {
  auto& free = free_[static_cast<int>(area_of(address))];
  size = round_up(size, kPage);
  auto range = free.emplace(address, size).first;
  const auto next = std::next(range);
  if (next != free.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free.erase(next);
  }
  if (range != free.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      free.erase(range);
    }
  }
}

// ---- mappings

void* Window::alias(uint64_t address) const {
  return reinterpret_cast<void*>(address - begin_ + alias_);
}

bool Window::map(uint64_t address, const Block& block, uint64_t size,
                 bool for_host) {
  return map(address, block.descriptor(), 0, size, for_host);
}

bool Window::map(uint64_t address, int descriptor, uint64_t offset,
                 uint64_t size, bool for_host) {
  const int protection = PROT_READ | PROT_WRITE;
  const int flags = MAP_SHARED | MAP_FIXED;
  const auto from = static_cast<off_t>(offset);
  if (mmap(alias(address), size, protection, flags, descriptor, from) ==
      MAP_FAILED) {
    return false;
  }
  madvise(alias(address), size, MADV_DONTFORK);
  if (race::on()) race::mapped(address, size, descriptor, offset);
  return !for_host ||
         map_for_host({address, size}, protection, descriptor, from);
}

bool Window::map_for_host(const Piece& piece, int protection, int descriptor,
                          off_t offset) {
  std::memset(host_ + first_page(piece), 1,
              end_page(piece) - first_page(piece));
  if (race::on()) race::shown_to_host(piece.address, piece.size);
  return mmap(reinterpret_cast<void*>(piece.address), piece.size, protection,
              MAP_SHARED | MAP_FIXED, descriptor, offset) != MAP_FAILED;
}

// Most memory was never mapped for the host; for such memory there is nothing
// to do.
void Window::close_to_host(const Piece& piece) {
  uint8_t* const first = host_ + first_page(piece);
  uint8_t* const end = host_ + end_page(piece);
  if (std::find(first, end, 1) == end) return;
  must_map(mmap(reinterpret_cast<void*>(piece.address), piece.size, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0));
  std::fill(first, end, uint8_t{0});
}

void Window::close(const Piece& piece) {
  for (size_t i = 0; i < access_.size(); ++i) {
    set_access(static_cast<int>(i), piece.address, piece.size, kNone);
  }
  close_to_host(piece);
}

// A kernel that began before the bytes were freed may still read or write here.
// These pages belong to no allocation, so its writes are lost and do no harm.
void Window::take_bytes_away(const Piece& piece) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* place = alias(piece.address);
  if (mmap(place, piece.size, PROT_READ | PROT_WRITE, flags, -1, 0) ==
      MAP_FAILED) {  // the system refuses more writable memory
    must_map(mmap(place, piece.size, PROT_NONE, flags, -1, 0));
  }
}

void Window::unmap(uint64_t address, uint64_t size) {
  close({address, size});
  take_bytes_away({address, size});
}

void Window::retire(uint64_t address, uint64_t size) {
  const Piece piece{address, size};
  close(piece);
  if (is_pinned(piece)) {
    retired_.push_back(piece);
    return;
  }
  take_bytes_away(piece);
  give_back(address, size);
}

// ---- pins

bool Window::overlap(const Piece& a, const Piece& b) {
  return a.address < b.address + b.size && b.address < a.address + a.size;
}

bool Window::is_pinned(const Piece& piece) const {
  return std::any_of(pinned_.begin(), pinned_.end(),
                     [&](const Piece& pin) { return overlap(pin, piece); });
}

Pin Window::pin(uint64_t address, uint64_t size) {
  const auto entry = pinned_.insert(pinned_.end(), {address, size});
  return Pin(&*entry, [entry](const void*) { Locked()->window.unpin(entry); });
}

void Window::unpin(std::list<Piece>::iterator pin) {
  pinned_.erase(pin);
  const auto kept =
      std::stable_partition(retired_.begin(), retired_.end(),
                            [&](const Piece& one) { return is_pinned(one); });
  for (auto piece = kept; piece != retired_.end(); ++piece) {
    take_bytes_away(*piece);
    give_back(piece->address, piece->size);
  }
  retired_.erase(kept, retired_.end());
}

// ---- permissions

uint64_t Window::first_page(const Piece& piece) const {
  return (piece.address - begin_) / kPage;
}

uint64_t Window::end_page(const Piece& piece) const {
  return (piece.address + piece.size - begin_ + kPage - 1) / kPage;
}

void Window::set_host_access(uint64_t address, const Block& block,
                             uint64_t size, Access access) {
  const int protection = (access & kRead ? PROT_READ : PROT_NONE) |
                         (access == kReadWrite ? PROT_WRITE : PROT_NONE);
  if (!map_for_host({address, size}, protection, block.descriptor(), 0)) {
    must_map(MAP_FAILED);
  }
}

void Window::set_access(int ordinal, uint64_t address, uint64_t size,
                        Access access) {
  const uint64_t end = end_page({address, size});
  uint8_t* table = access_[static_cast<size_t>(ordinal)];
  for (uint64_t page = first_page({address, size}); page < end; ++page) {
    // Kernels read the entry while they run.
    __atomic_store_n(&table[page], access, __ATOMIC_RELAXED);
  }
}

Access Window::access(int ordinal, uint64_t address) const {
  if (!contains(address)) return kNone;
  const uint8_t* entry =
      &access_[static_cast<size_t>(ordinal)][(address - begin_) / kPage];
  return static_cast<Access>(__atomic_load_n(entry, __ATOMIC_RELAXED));
}

Window::View Window::view(int ordinal) const {
  return {begin_, size_, static_cast<int64_t>(alias_ - begin_),
          access_[static_cast<size_t>(ordinal)]};
}

}  // namespace ipclab::model
