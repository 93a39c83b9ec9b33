// SPDX-License-Identifier: Apache-2.0
// Virtual memory: the two windows, mappings and permissions.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/log.h"
#include "core/memory.h"

namespace ipclab::model {
namespace {

constexpr uint64_t kLargestWindow = 256ull << 30;
constexpr uint64_t kSmallestWindow = 1ull << 30;

struct Piece {
  uint64_t address;
  uint64_t size;
};

bool overlap(const Piece& a, const Piece& b) {
  return a.address < b.address + b.size && b.address < a.address + a.size;
}

struct Window {
  uint64_t begin = 0;
  uint64_t size = 0;
  uint64_t alias = 0;
  std::map<uint64_t, uint64_t> free[4];  // by area: address -> bytes
  std::vector<uint8_t*> access;          // for each visible GPU
  std::list<Piece> pinned;
  std::vector<Piece> retired;  // that a pin keeps
};

Window& window() {
  static auto& only = *new Window;
  return only;
}

// Addresses without memory; aligned to kPage. 0 if there are none.
uint64_t reserve(uint64_t size) {
  void* place = mmap(nullptr, size + kPage, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return 0;
  return (reinterpret_cast<uint64_t>(place) + kPage - 1) & ~(kPage - 1);
}

void release(uint64_t address, uint64_t size) {
  munmap(reinterpret_cast<void*>(address), size);
}

// Memory that stays mapped after its end would be used by mistake for ever.
void must_map(const void* place) {
  if (place != MAP_FAILED) return;
  die(std::string("cannot change the mapping of device memory: ") +
      std::strerror(errno) + " (raise 'sysctl vm.max_map_count')");
}

// Each block costs a descriptor.
void raise_descriptor_limit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Registered memory lies outside the window, so it is asked for one by one, as
// is memory in pages marked kAsk.
void* lookup(void*, uint64_t address, uint64_t size, bool) {
  const std::lock_guard lock(state_mutex());
  const Allocation* found = find_allocation(address);
  if (found == nullptr || address + size > found->address + found->size) {
    return nullptr;
  }
  if (in_window(address)) return alias(address);
  return found->kind == Kind::kRegistered ? reinterpret_cast<void*>(address)
                                          : nullptr;
}

}  // namespace

CUresult reserve_addresses(int gpus) {
  Window& w = window();
  for (w.size = kLargestWindow; w.size >= kSmallestWindow; w.size /= 2) {
    w.begin = reserve(w.size);
    if (w.begin == 0) continue;
    w.alias = reserve(w.size);
    if (w.alias != 0) break;
    release(w.begin, w.size);
    w.begin = 0;
  }
  if (w.begin == 0) {
    say("no room for device addresses: raise 'ulimit -v' to 3 GiB or more");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uint64_t begin = w.begin;
  for (const auto& [area, eighths] :
       {std::pair{Area::kLarge, 4}, std::pair{Area::kImported, 2},
        std::pair{Area::kShared, 1}, std::pair{Area::kOther, 1}}) {
    const uint64_t size = w.size / 8 * static_cast<uint64_t>(eighths);
    w.free[static_cast<int>(area)][begin] = size;
    begin += size;
  }
  for (int i = 0; i < gpus; ++i) {
    void* table = mmap(nullptr, w.size / kPage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    w.access.push_back(static_cast<uint8_t*>(table));
  }
  raise_descriptor_limit();
  return CUDA_SUCCESS;
}

namespace {
Area area_of(uint64_t address) {
  const uint64_t eighth = (address - window().begin) / (window().size / 8);
  return eighth < 4   ? Area::kLarge
         : eighth < 6 ? Area::kImported
         : eighth < 7 ? Area::kShared
                      : Area::kOther;
}
}  // namespace

namespace {
bool is_pinned(const Piece& piece) {
  const auto& pinned = window().pinned;
  return std::any_of(pinned.begin(), pinned.end(),
                     [&](const Piece& pin) { return overlap(pin, piece); });
}

// What a kernel still reads or writes that began before the bytes went: pages
// of nobody, so that it is lost and ends nobody.
void take_bytes_away(const Piece& piece) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* place = alias(piece.address);
  if (mmap(place, piece.size, PROT_READ | PROT_WRITE, flags, -1, 0) ==
      MAP_FAILED) {  // no memory may be promised any more
    must_map(mmap(place, piece.size, PROT_NONE, flags, -1, 0));
  }
}

void unpin(std::list<Piece>::iterator pin) {
  const std::lock_guard lock(state_mutex());
  Window& w = window();
  w.pinned.erase(pin);
  const auto kept =
      std::stable_partition(w.retired.begin(), w.retired.end(), is_pinned);
  for (auto piece = kept; piece != w.retired.end(); ++piece) {
    take_bytes_away(*piece);
    give_back_addresses(piece->address, piece->size);
  }
  w.retired.erase(kept, w.retired.end());
}
}  // namespace

Pin pin(uint64_t address, uint64_t size) {
  auto& pinned = window().pinned;
  const auto entry = pinned.insert(pinned.end(), {address, size});
  return Pin(&*entry, [entry](const void*) { unpin(entry); });
}

uint64_t take_addresses(Area area, uint64_t size) {
  auto& free = window().free[static_cast<int>(area)];
  size = (size + kPage - 1) & ~(kPage - 1);
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

void give_back_addresses(uint64_t address, uint64_t size) {
  auto& free = window().free[static_cast<int>(area_of(address))];
  size = (size + kPage - 1) & ~(kPage - 1);
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

void* alias(uint64_t address) {
  return reinterpret_cast<void*>(address - window().begin + window().alias);
}

bool in_window(uint64_t address) {
  return address - window().begin < window().size;
}

bool map_block(uint64_t address, const Block& block, uint64_t size,
               bool for_host) {
  return map_descriptor(address, block.descriptor(), 0, size, for_host);
}

bool map_descriptor(uint64_t address, int descriptor, uint64_t offset,
                    uint64_t size, bool for_host) {
  const int protection = PROT_READ | PROT_WRITE;
  const int flags = MAP_SHARED | MAP_FIXED;
  const auto from = static_cast<off_t>(offset);
  if (mmap(alias(address), size, protection, flags, descriptor, from) ==
      MAP_FAILED) {
    return false;
  }
  madvise(alias(address), size, MADV_DONTFORK);
  return !for_host || mmap(reinterpret_cast<void*>(address), size, protection,
                           flags, descriptor, from) != MAP_FAILED;
}

namespace {
void close_range(const Piece& piece) {
  for (size_t i = 0; i < window().access.size(); ++i) {
    set_access(static_cast<int>(i), piece.address, piece.size, kNone);
  }
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  must_map(mmap(reinterpret_cast<void*>(piece.address), piece.size, PROT_NONE,
                flags, -1, 0));
}
}  // namespace

void unmap(uint64_t address, uint64_t size) {
  close_range({address, size});
  take_bytes_away({address, size});
}

void retire(uint64_t address, uint64_t size) {
  const Piece piece{address, size};
  close_range(piece);
  if (is_pinned(piece)) {
    window().retired.push_back(piece);
    return;
  }
  take_bytes_away(piece);
  give_back_addresses(address, size);
}

void set_host_access(uint64_t address, const Block& block, uint64_t size,
                     Access access) {
  const int protection = (access & kRead ? PROT_READ : PROT_NONE) |
                         (access == kReadWrite ? PROT_WRITE : PROT_NONE);
  must_map(mmap(reinterpret_cast<void*>(address), size, protection,
                MAP_SHARED | MAP_FIXED, block.descriptor(), 0));
}

void set_access(int ordinal, uint64_t address, uint64_t size, Access access) {
  const uint64_t first = (address - window().begin) / kPage;
  const uint64_t end = (address + size - window().begin + kPage - 1) / kPage;
  uint8_t* table = window().access[ordinal];
  for (uint64_t page = first; page < end; ++page) {
    // Kernels read the entry while they run.
    __atomic_store_n(&table[page], access, __ATOMIC_RELAXED);
  }
}

Access get_access(int ordinal, uint64_t address) {
  if (!in_window(address)) return kNone;
  const uint8_t* entry =
      &window().access[ordinal][(address - window().begin) / kPage];
  return static_cast<Access>(__atomic_load_n(entry, __ATOMIC_RELAXED));
}

ptx::AddressSpace address_space(int ordinal) {
  const Window& w = window();
  ptx::AddressSpace space;
  space.window_begin = w.begin;
  space.window_size = w.size;
  space.alias = static_cast<int64_t>(w.alias - w.begin);
  space.page_access = w.access[ordinal];
  space.lookup = lookup;
  return space;
}

}  // namespace ipclab::model
