// A cache of opened handles. While an allocation is in the cache, its
// parts need no second open.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <random>
#include <utility>

#include "../common/check.h"

//! [part]
/// Describes a part of an allocation, so that other processes can use
/// the part.
struct Part {
  unsigned long long exporter;  ///< own_identity() of the exporter
  unsigned long long block;     ///< the id of the allocation
  cudaIpcMemHandle_t handle;    ///< of the whole allocation
  size_t offset;                ///< of the part, in bytes
};

/// Returns the identity of this process: a random number, drawn at the
/// first call. A process id is no identity, because the system may give
/// the same id to a later process.
inline unsigned long long own_identity() {
  static const unsigned long long drawn = [] {
    std::random_device random;
    return (1ULL * random() << 32) | random();
  }();
  return drawn;
}

/// Describes the part of an allocation that begins at a pointer.
inline Part describe(const void* pointer) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  CUdeviceptr base = 0;
  CU_CHECK(DRIVER(cuMemGetAddressRange)(&base, nullptr, address));

  Part part{own_identity(), 0, {}, address - base};
  CU_CHECK(DRIVER(cuPointerGetAttribute)(
      &part.block, CU_POINTER_ATTRIBUTE_BUFFER_ID, base));
  CUDA_CHECK(
      cudaIpcGetMemHandle(&part.handle, reinterpret_cast<void*>(base)));
  return part;
}
//! [part]

/// Opened allocations. Before the cache opens another allocation, it
/// closes unused allocations until fewer than `most` are open. If all
/// open allocations have users, more than `most` can be open.
class HandleCache {
 public:
  explicit HandleCache(size_t most) : most_(most) {}

  //! [acquire]
  /// Returns the address of the part in this process. Opens the
  /// allocation if it is not open. Each acquire() needs a release().
  void* acquire(const Part& part) {
    const Name name{part.exporter, part.block};
    if (blocks_.count(name) == 0) {
      while (blocks_.size() >= most_ && close_oldest()) {
      }
      Block& block = blocks_[name];
      CUDA_CHECK(cudaIpcOpenMemHandle(&block.base, part.handle,
                                      cudaIpcMemLazyEnablePeerAccess));
      ++opens_;
    }
    Block& block = blocks_[name];
    ++block.users;
    return static_cast<char*>(block.base) + part.offset;
  }

  /// Call this when the work that uses the part is done. The allocation
  /// stays open.
  void release(const Part& part) {
    Block& block = blocks_.at({part.exporter, part.block});
    --block.users;
    block.last_use = ++clock_;
  }
  //! [acquire]

  //! [close]
  /// Call this when the exporter wants to free the allocation. Closes
  /// the allocation if it has no user. Returns false if it has a user:
  /// then it stays open, and the exporter must not free it.
  bool forget(const Part& part) {
    return close_if([&](const Name& name) {
      return name == Name{part.exporter, part.block};
    });
  }

  /// Does the same for all allocations of an exporter that will end.
  bool forget_exporter(unsigned long long exporter) {
    return close_if(
        [&](const Name& name) { return name.first == exporter; });
  }
  //! [close]

  int opens() const { return opens_; }                ///< opens so far
  size_t open_now() const { return blocks_.size(); }  ///< allocations

 private:
  // An address is not a key: a later allocation may have the same one.
  using Name = std::pair<unsigned long long, unsigned long long>;
  struct Block {
    void* base = nullptr;
    int users = 0;
    unsigned long long last_use = 0;
  };

  // Out of the allocations without a user, closes the allocation that
  // was not used for the longest time. Returns false if there is none.
  bool close_oldest() {
    auto oldest = blocks_.end();
    for (auto at = blocks_.begin(); at != blocks_.end(); ++at)
      if (at->second.users == 0 &&
          (oldest == blocks_.end() ||
           at->second.last_use < oldest->second.last_use))
        oldest = at;
    if (oldest == blocks_.end()) return false;
    CUDA_CHECK(cudaIpcCloseMemHandle(oldest->second.base));
    blocks_.erase(oldest);
    return true;
  }

  template <class Condition>
  bool close_if(Condition condition) {
    bool all = true;
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      const auto next = std::next(at);
      if (condition(at->first) && at->second.users > 0) {
        all = false;
      } else if (condition(at->first)) {
        CUDA_CHECK(cudaIpcCloseMemHandle(at->second.base));
        blocks_.erase(at);
      }
      at = next;
    }
    return all;
  }

  size_t most_;
  std::map<Name, Block> blocks_;
  unsigned long long clock_ = 0;
  int opens_ = 0;
};
