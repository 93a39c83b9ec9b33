// Owners of virtual memory management: physical chunks, ranges of addresses,
// mappings of chunks at addresses.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>

#include <string>
#include <utility>

#include "harness/scenario/cuda.h"
#include "harness/scenario/wire.h"

namespace ipclab {

/// The properties for cuMemCreate: memory of a GPU that can be exported as
/// handles of these types.
CUmemAllocationProp chunk_of(
    int device,
    CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

/// The minimal granularity of memory with these properties. Sizes, offsets and
/// addresses must be multiples of it.
size_t granule(const CUmemAllocationProp& wanted = chunk_of(0));

/// One reference to physical memory: the handle of cuMemCreate or of an import.
class Chunk {
 public:
  Chunk() = default;
  /// Takes over a reference.
  explicit Chunk(CUmemGenericAllocationHandle handle) : handle_(handle) {}
  /// Takes over the reference of `other`, which then owns none.
  Chunk(Chunk&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  /// Exchanges the handles of both.
  Chunk& operator=(Chunk&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Chunk();

  /// Allocates with cuMemCreate.
  static Chunk create(size_t bytes,
                      const CUmemAllocationProp& wanted = chunk_of(0));
  /// Imports; the caller still closes the descriptor.
  static Chunk import(const Descriptor& descriptor);
  /// Imports what another process exported as a fabric handle.
  static Chunk import(const CUmemFabricHandle& handle);

  /// The handle itself; it means nothing in another process.
  CUmemGenericAllocationHandle handle() const { return handle_; }
  /// Exports to a new file descriptor.
  Descriptor descriptor() const;
  /// Exports to a fabric handle.
  CUmemFabricHandle fabric_handle() const;
  /// The properties that the driver reports.
  CUmemAllocationProp properties() const;
  /// Releases now, not in the destructor, for tests of this step.
  void release();
  /// Gives the handle to the caller, who must release it.
  CUmemGenericAllocationHandle forget() { return std::exchange(handle_, 0); }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
};

/// A reserved range of addresses, without memory.
class Reservation {
 public:
  /// Reserves with cuMemAddressReserve.
  explicit Reservation(size_t bytes);
  Reservation(const Reservation&) = delete;
  ~Reservation();

  /// The address at an offset in bytes.
  CUdeviceptr at(size_t offset) const { return address_ + offset; }
  /// Its size.
  size_t bytes() const { return bytes_; }
  /// Maps a whole chunk of `bytes`. The caller must unmap the chunk.
  void map(size_t offset, size_t bytes, const Chunk& chunk) const;
  /// Undoes map().
  void unmap(size_t offset, size_t bytes) const;
  /// Frees now, not in the destructor, for tests of this step.
  void free();

 private:
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
};

/// A whole chunk, mapped at its own addresses.
class Mapping : public Words {
 public:
  /// Maps the chunk with this access for GPU `device`.
  Mapping(const Chunk& chunk, size_t bytes,
          CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
          int device = 0);
  Mapping(const Mapping&) = delete;
  ~Mapping();

  /// Its first address, for the driver API.
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(data); }
  /// Unmaps now, not in the destructor, for tests of this step.
  void unmap();
};

/// Allocates all free memory of GPU 0, writes into every granule of it, and
/// frees it. After that, memory that was freed too early has other bytes. A
/// test that calls this function must be `alone`.
void take_all_free_memory();

/// The access of a GPU, as cuMemSetAccess takes it.
CUmemAccessDesc access_for(
    int device, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

/// cuMemGetAccess of a GPU: 0 none, 1 read, 3 read and write.
unsigned long long access_at(CUdeviceptr address, int device = 0);

/// The words in `bytes` bytes at an address of the driver API.
inline Words words_at(CUdeviceptr address, size_t bytes) {
  return Words(reinterpret_cast<void*>(address), bytes);
}

/// The pointer argument for a call that imports a descriptor: it contains the
/// number of the descriptor itself.
inline void* by_value(int descriptor) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
}

/// The body of an exporter that lends a chunk of one granule, filled with
/// `written`, to `importers` roles. Each gets a descriptor. The exporter
/// releases the chunk when all have signalled "done".
std::function<void(Role&)> lends_chunk(Pattern written, int importers = 1);

}  // namespace ipclab
