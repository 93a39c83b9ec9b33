// SPDX-License-Identifier: Apache-2.0
// Finds the host bytes of a PTX address, and checks the permission.
#pragma once

#include "grid.h"

namespace ipclab::ptx {

constexpr int kPageShift = 21;
enum : uint8_t { kMayRead = 1, kMayWrite = 2, kAsk = 4 };

/// Host bytes of device addresses, or null if the access is not allowed.
/// [address, address + size) must not cross a page of the window.
inline char* global_bytes(const AddressSpace& space, uint64_t address,
                          uint64_t size, bool write) {
  const uint64_t offset = address - space.window_begin;
  if (offset < space.window_size) {
    // The host may change the page's entry at any time.
    const uint8_t access = __atomic_load_n(
        &space.page_access[offset >> kPageShift], __ATOMIC_RELAXED);
    if ((access & kAsk) == 0)
      return (access & (write ? kMayWrite : kMayRead)) != 0
                 ? reinterpret_cast<char*>(address +
                                           static_cast<uint64_t>(space.alias))
                 : nullptr;
  }
  if (space.lookup == nullptr) return nullptr;
  return static_cast<char*>(
      space.lookup(space.lookup_context, address, size, write));
}

inline char* within(char* begin, uint64_t offset, uint64_t size,
                    uint64_t limit) {
  return offset <= limit && size <= limit - offset ? begin + offset : nullptr;
}

/// Host bytes in the shared memory of any block of the cluster.
inline char* shared_bytes(Block& block, uint64_t address, uint32_t size) {
  Block* owner = &block;
  if (const uint64_t rank = address >> kRankShift; rank != 0) {
    const auto& blocks = block.cluster->blocks;
    if (rank > blocks.size()) return nullptr;
    owner = blocks[rank - 1].get();
    address &= (1u << kRankShift) - 1;
  }
  return within(owner->shared, address, size, owner->shared_bytes);
}

/// Host bytes of one lane's access, or null if the access is not allowed.
inline char* space_bytes(Warp& warp, Space space, int lane, uint64_t address,
                         uint32_t size, bool write) {
  Block& block = *warp.block;
  Grid& grid = *block.grid;
  if (space == Space::kGeneric) {
    const uint64_t offset = address & ((1ull << 56) - 1);
    switch (address >> 56) {
      case 0:
        space = Space::kGlobal;
        break;
      case kSharedWindow >> 56:
        space = Space::kShared;
        break;
      case kLocalWindow >> 56:
        space = Space::kLocal;
        break;
      case kParameterWindow >> 56:
        space = Space::kParameter;
        break;
      case kGridWindow >> 56:
        return within(reinterpret_cast<char*>(grid.workspace), offset, size,
                      sizeof grid.workspace);
      default:
        return nullptr;
    }
    if (space != Space::kGlobal) address = offset;
  }
  char* const stack = warp.local + static_cast<size_t>(lane) * warp.stack_bytes;
  switch (space) {
    case Space::kShared:
      return shared_bytes(block, address, size);
    case Space::kFrame:
      return within(stack, address + warp.frame->base, size, warp.stack_bytes);
    case Space::kLocal:
      return within(stack, address, size, warp.stack_bytes);
    case Space::kParameter:
      if (write) return nullptr;
      return within(
          const_cast<char*>(static_cast<const char*>(grid.launch.parameters)),
          address, size, grid.launch.kernel->parameter_bytes());
    default:
      if (address >> 56 == kGridWindow >> 56)  // cvta.to.global keeps it
        return within(reinterpret_cast<char*>(grid.workspace),
                      address - kGridWindow, size, sizeof grid.workspace);
      return global_bytes(grid.space, address, size, write);
  }
}

/// The address that one lane accesses. Addresses of 32 bits wrap at 32 bits.
inline uint64_t lane_address(Warp& warp, const Instruction& i, int lane) {
  const auto offset = static_cast<uint64_t>(i.immediate);
  if (i.a == kNone) return offset;
  if (i.address_bytes == 8) return lanes_of<uint64_t>(warp, i.a)[lane] + offset;
  return static_cast<uint32_t>(lanes_of<uint32_t>(warp, i.a)[lane] + offset);
}

/// Host bytes of one lane's access; null after a fault has been raised.
inline char* lane_bytes(Warp& warp, const Instruction& i, int lane,
                        uint32_t size, bool write) {
  const uint64_t address = lane_address(warp, i, lane);
  Block& block = *warp.block;
  if (i.space == Space::kShared && (address & (size - 1)) == 0 &&
      address + size <= block.shared_bytes)
    return block.shared + address;
  Grid& grid = *block.grid;
  if ((address & (size - 1)) != 0) {
    grid.memory_fault(warp, i, 716, address, size, write);
    return nullptr;
  }
  char* bytes = space_bytes(warp, i.space, lane, address, size, write);
  if (bytes == nullptr) grid.memory_fault(warp, i, 700, address, size, write);
  return bytes;
}

/// Do all 32 lanes access consecutive, aligned elements? Then `begin` is the
/// address that lane 0 accesses.
template <class T, class Address>
[[gnu::always_inline]] inline bool consecutive(Warp& warp, const Instruction& i,
                                               uint64_t* begin) {
  const Address* addresses = lanes_of<Address>(warp, i.a);
  const Address first = addresses[0];
  Address difference = 0;
  for (int lane = 1; lane < kLanes; ++lane)
    difference |=
        addresses[lane] ^ static_cast<Address>(first + lane * sizeof(T));
  *begin = static_cast<Address>(first + static_cast<uint64_t>(i.immediate));
  return difference == 0 && (*begin & (sizeof(T) - 1)) == 0;
}

/// The place of lane 0's element if all 32 lanes access consecutive elements of
/// global or shared memory; otherwise null.
template <class T>
[[gnu::always_inline]] inline char* coalesced_bytes(Warp& warp,
                                                    const Instruction& i,
                                                    bool write) {
  constexpr uint64_t kSize = kLanes * sizeof(T);
  if (i.a == kNone) return nullptr;
  uint64_t begin;
  if (i.space == Space::kShared && i.address_bytes == 4) {
    if (!consecutive<T, uint32_t>(warp, i, &begin)) return nullptr;
    return within(warp.block->shared, begin, kSize, warp.block->shared_bytes);
  }
  if ((i.space != Space::kGlobal && i.space != Space::kGeneric) ||
      i.address_bytes != 8 || !consecutive<T, uint64_t>(warp, i, &begin) ||
      begin >> kPageShift != (begin + kSize - 1) >> kPageShift ||
      begin >> 56 != 0)
    return nullptr;
  return global_bytes(warp.block->grid->space, begin, kSize, write);
}

}  // namespace ipclab::ptx
