// SPDX-License-Identifier: Apache-2.0
// Virtual memory: one window of addresses that the program gets, in which the
// host faults as it does on hardware, and a second window, the alias, where the
// same bytes are really mapped. One permission byte for each page and GPU says
// what a kernel may do: peer access, closed imports and freed memory are all
// entries of that table, and so are cuMemSetAccess and pool access.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/block.h"
#include "ptx/ptx.h"

namespace ipclab::model {

class Stream;
struct Chunk;

enum class Kind {
  kDevice,      ///< cuMemAlloc
  kImported,    ///< cuIpcOpenMemHandle
  kManaged,     ///< cuMemAllocManaged
  kHost,        ///< cuMemHostAlloc
  kRegistered,  ///< cuMemHostRegister
  kVariable,    ///< a __device__ or __constant__ variable
  kPooled,      ///< of a pool on a device, also an imported one
  kMapped,      ///< cuMemMap
  kGraph,       ///< of an allocation node, between its launch and its free
};

enum Access : uint8_t {
  kNone = 0,
  kRead = 1,
  kReadWrite = 3,
  kAsk = 4,  ///< every access is looked up
};

struct Allocation {
  uint64_t address = 0;
  uint64_t size = 0;
  Kind kind = Kind::kDevice;
  CUcontext context = nullptr;
  int gpu = 0;                   ///< where the bytes are; -1: on the host
  std::shared_ptr<Block> block;  ///< null for host and registered memory
  uint64_t mapping = 0;          ///< address of the block or mapping
  uint64_t mapping_size = 0;
  uint64_t export_id = 0;  ///< what a handle of this memory carries
  uint64_t buffer_id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID
  unsigned flags = 0;      ///< of cuMemHostAlloc and the like
  bool sync_memops = false;
  /// What it was allocated or imported from; null for all other memory. Host
  /// and managed pools have memory of kind kHost and kManaged.
  CUmemoryPool pool = nullptr;
  std::shared_ptr<Chunk> chunk;  ///< of a mapping
  Access host_access = kNone;    ///< of a mapping

  uint64_t offset() const { return address - mapping; }
  bool on_host() const {
    return kind == Kind::kHost || kind == Kind::kRegistered ||
           (kind == Kind::kMapped && gpu < 0);
  }
};

/// Reserves both windows for `gpus` visible GPUs.
/// CUDA_ERROR_OUT_OF_MEMORY, with a line that says what to do, if the process
/// may not have that many addresses.
CUresult reserve_addresses(int gpus);

/// Keeps the bytes of a range where they are while queued work needs them. Let
/// go of it without state_mutex() and without the lock of a stream.
using Pin = std::shared_ptr<const void>;

// The functions below expect the caller to hold state_mutex().

/// Parts of the window. What was freed or closed is not covered at once by the
/// next small allocation, so that a kernel that still uses it faults.
enum class Area { kLarge, kImported, kShared, kOther };

/// A free range of an area of the window, or 0.
uint64_t take_addresses(Area area, uint64_t size);
void give_back_addresses(uint64_t address, uint64_t size);
/// Maps a block into the alias window (and, for memory that the host may
/// touch, at the address itself).
bool map_block(uint64_t address, const Block& block, uint64_t size,
               bool for_host);
/// The same for a part of any memfd; `offset` is a multiple of the host's page.
bool map_descriptor(uint64_t address, int descriptor, uint64_t offset,
                    uint64_t size, bool for_host);
/// Nobody may use the range any more; its addresses stay taken.
void unmap(uint64_t address, uint64_t size);
/// unmap(), and the addresses are free. What a pin keeps goes with the last
/// pin.
void retire(uint64_t address, uint64_t size);
Pin pin(uint64_t address, uint64_t size);
/// What the host may do with a mapped block at the address itself.
void set_host_access(uint64_t address, const Block& block, uint64_t size,
                     Access access);
/// What kernels of one visible GPU may do with a range.
void set_access(int ordinal, uint64_t address, uint64_t size, Access access);
Access get_access(int ordinal, uint64_t address);
/// Gives the contexts with peer access their access to a range of a GPU.
void grant(int gpu, uint64_t address, uint64_t size);
void grant_peer(CUcontext context, int gpu);   ///< cuCtxEnablePeerAccess
void revoke_peer(CUcontext context, int gpu);  ///< cuCtxDisablePeerAccess

/// Counts bytes of a GPU as used by this process; false if there are not so
/// many.
bool take_bytes(int gpu, uint64_t size);
void give_back_bytes(int gpu, uint64_t size);

/// A number for CU_POINTER_ATTRIBUTE_BUFFER_ID.
uint64_t next_buffer_id();

/// All allocations by address.
std::map<uint64_t, Allocation>& allocations();
/// The allocation that contains an address, or null.
Allocation* find_allocation(uint64_t address);
void free_memory_of(CUcontext context);

/// Where the bytes of a device address really are.
void* alias(uint64_t address);
bool in_window(uint64_t address);

/// What a kernel on this GPU may touch, for the interpreter.
ptx::AddressSpace address_space(int ordinal);

// The functions below lock state_mutex() themselves.

/// cuMemAlloc: small allocations share a 2 MiB block, 512 bytes apart.
CUresult memory_allocate(CUcontext context, uint64_t size, Kind kind,
                         uint64_t* address);
/// Pinned and managed memory: the same address for host and kernels.
CUresult host_allocate(CUcontext context, uint64_t size, Kind kind,
                       unsigned flags, uint64_t* address);
/// cuMemFree (device, managed) and cuMemFreeHost. CUDA_ERROR_INVALID_VALUE if
/// the address is not the beginning of such an allocation.
CUresult memory_free(uint64_t address);
CUresult host_free(uint64_t address);
/// The memory of an allocation node at the node's address, which stays the
/// graph's.
CUresult graph_memory_allocate(CUcontext context, uint64_t address,
                               uint64_t size);
CUresult graph_memory_free(uint64_t address);
/// Frees a module's variable without waiting for anybody.
void variable_free(uint64_t address);
/// cuMemFreeAsync: in the order of the stream.
CUresult memory_free_async(uint64_t address,
                           const std::shared_ptr<Stream>& stream);
CUresult host_register(CUcontext context, uint64_t address, uint64_t size,
                       unsigned flags);
CUresult host_unregister(uint64_t address);
/// Bytes that cuMemGetInfo calls free and total.
void memory_info(int gpu, uint64_t* free_bytes, uint64_t* total_bytes);

}  // namespace ipclab::model
