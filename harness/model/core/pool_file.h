// SPDX-License-Identifier: Apache-2.0
// The memory of a pool: one sparse memfd. Its first page says what it is, to
// every process that has a descriptor; the bytes of an allocation are named by
// their offset.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace ipclab::model {

/// Shared by the exporting and all importing processes.
struct PoolPage {
  char magic[8];
  uint64_t id;
  CUmemLocation location;  ///< a device's number is that of the profile
  unsigned handle_types;
  std::atomic<uint64_t> reserved;  ///< bytes of physical memory
};

class PoolFile {
 public:
  /// Null and a line on standard error if there is no descriptor left.
  static std::shared_ptr<PoolFile> create(CUmemLocation location,
                                          unsigned handle_types);
  /// Takes over a descriptor of another process's pool; null if it is none.
  static std::shared_ptr<PoolFile> adopt(int descriptor);

  ~PoolFile();
  PoolFile(const PoolFile&) = delete;
  PoolFile& operator=(const PoolFile&) = delete;

  int descriptor() const { return descriptor_; }
  PoolPage& page() const { return *page_; }
  /// Where `size` new bytes (a multiple of kPage) begin; 0 if there is no room.
  uint64_t grow(uint64_t size);
  /// Gives the memory behind a range back to the system. Read again, it is
  /// zero.
  void discard(uint64_t offset, uint64_t size);
  bool contains(uint64_t offset, uint64_t size) const;

 private:
  PoolFile() = default;
  bool map();
  int descriptor_ = -1;
  PoolPage* page_ = nullptr;
};

/// The name of the memfd of a pool on a GPU, as /proc shows it.
std::string pool_file_name(int gpu);
/// Bytes of physical memory of a pool; 0 if the descriptor is of something
/// else.
uint64_t pool_bytes(int descriptor);

}  // namespace ipclab::model
