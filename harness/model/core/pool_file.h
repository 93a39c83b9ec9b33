// SPDX-License-Identifier: Apache-2.0
// The memory of a pool: one sparse memfd. Its first page tells every process
// with a descriptor what the pool is. The name of an allocation is its offset
// in the file.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "core/shared_file.h"

namespace ipclab::model {

/// The facts about the pool that its creator tells the importers.
struct PoolPage {
  char magic[8];
  uint64_t id;
  CUmemLocation location;  ///< a device has its number in the profile
  unsigned handle_types;
};

class PoolFile {
 public:
  /// Makes the file of a new pool. If this is not possible, returns null and
  /// prints a line on standard error.
  static std::shared_ptr<PoolFile> create(CUmemLocation location,
                                          unsigned handle_types);
  /// A pool of another process; null if the file is not a pool. Its description
  /// is checked and copied, so a later change of the page has no effect here.
  static std::shared_ptr<PoolFile> adopt(SharedFile file);

  PoolFile(const PoolFile&) = delete;
  PoolFile& operator=(const PoolFile&) = delete;

  int descriptor() const { return file_.descriptor(); }
  const PoolPage& page() const { return page_; }
  /// Makes the file `size` bytes (a multiple of kPage) longer and returns where
  /// the new bytes begin; 0 if this is not possible.
  uint64_t grow(uint64_t size);
  /// Gives the memory of a range back to the system. After that its bytes are
  /// zero.
  void discard(uint64_t offset, uint64_t size);
  /// Sets how many bytes of its GPU the pool uses. Does nothing on the host.
  void count(uint64_t bytes);
  /// See SharedFile.
  void share(Sharing how) { file_.share(how); }
  bool contains(uint64_t offset, uint64_t size) const;

 private:
  PoolFile() = default;
  SharedFile file_;
  PoolPage page_{};
};

}  // namespace ipclab::model
