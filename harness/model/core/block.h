// SPDX-License-Identifier: Apache-2.0
// Physical memory: a block is one memfd. It holds the bytes. After the bytes it
// has a trailer that tells other processes what the block is and which parts
// are in use.
#pragma once

#include <cstdint>
#include <memory>

#include "core/handle.h"
#include "core/shared_file.h"

namespace ipclab::model {

constexpr uint64_t kPage = 2 << 20;  ///< bytes of the smallest block
constexpr uint64_t kGranule = 512;   ///< a small allocation is a multiple
constexpr uint64_t kSlots = kPage / kGranule;

inline uint64_t round_up(uint64_t size, uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

/// A number that no other object of any process gets.
uint64_t unique_id();

/// The facts about shareable memory that its creator tells the importers. In a
/// block that is not a chunk, all fields are zero.
struct Label {
  uint32_t is_chunk;      ///< made by cuMemCreate
  int32_t location_type;  ///< a CUmemLocationType
  int32_t location_id;    ///< GPU of the profile, or NUMA node
  uint32_t rdma;          ///< gpuDirectRDMACapable
  Handle creator;         ///< sealed: names the process
};

/// One memfd, mapped or not. The last reference closes the descriptor. The
/// kernel frees the memory when no process has the memfd open or mapped.
class Block {
 public:
  /// Creates `size` bytes (a multiple of kPage) on a GPU, or on the host (-1).
  /// If no descriptor or no memory is left, returns null and prints a line on
  /// standard error.
  static std::shared_ptr<Block> create(int gpu, uint64_t size,
                                       const Label& label = {});
  /// A block of another process; null if the file is not a block. The block's
  /// own description is checked.
  static std::shared_ptr<Block> adopt(SharedFile file);

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  int descriptor() const { return file_.descriptor(); }
  int gpu() const { return gpu_; }
  uint64_t size() const { return size_; }
  uint64_t id() const { return id_; }
  Label label() const;
  /// See SharedFile.
  void share(Sharing how) { file_.share(how); }
  int open_as_dma_buf() const { return file_.open_as_dma_buf(); }

  /// The export id of the allocation at `offset`; 0 if there is none. The id is
  /// stored in the block. So an importer notices that a handle is stale.
  uint64_t occupant(uint64_t offset) const;
  void set_occupant(uint64_t offset, uint64_t export_id);

 private:
  Block() = default;
  SharedFile file_;
  int gpu_ = 0;
  uint64_t size_ = 0;
  uint64_t id_ = 0;
};

}  // namespace ipclab::model
