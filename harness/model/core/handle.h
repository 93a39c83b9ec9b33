// SPDX-License-Identifier: Apache-2.0
// The 64 bytes of a legacy handle. They name the exporter and the object, which
// an importer finds through /proc/<pid>/fd. There is no daemon and no file, so
// a killed process leaves nothing behind. The exported pointers of pools and
// fabric handles have the same layout; a fabric handle has the number of its
// socket in `occupant` and its channel in `offset`.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/shared_file.h"

namespace ipclab::model {

enum class HandleKind : uint32_t {
  kMemory = 0x4d435049,
  kEvent = 0x45435049,
  kPoolPointer = 0x50435049,
  kFabric = 0x46435049,
};

struct Handle {
  uint32_t kind;
  uint32_t pid;
  uint64_t started;   ///< start time of the process and namespace of its pid:
                      ///< the system reuses pids
  uint64_t object;    ///< id of the block, the event's state or the pool
  uint64_t occupant;  ///< export id of the allocation; of an event: /dev/shm
  uint64_t offset;    ///< in the block or pool
  uint64_t size;
  int32_t descriptor;
  uint32_t gpu;
  uint64_t checksum;  ///< over everything above
};
static_assert(sizeof(Handle) == CU_IPC_HANDLE_SIZE);

/// Fills in kind, process and checksum.
void seal(HandleKind kind, Handle* handle);
/// False for 64 bytes that seal() did not make for this kind.
bool is_sealed(HandleKind kind, const Handle& handle);
/// True if this process made the handle.
bool is_own(const Handle& handle);
/// True while the process that made the handle exists.
bool exporter_is_alive(const Handle& handle);
/// The namespace in which this process has its number.
uint64_t process_namespace();
/// Opens the exporter's file. The result is not valid if the exporter has
/// ended, has closed the object, or belongs to another user; errno says why, or
/// is 0 if the descriptor now names a file that is not the model's. A valid
/// result may be a newer file of the exporter or of another process. The id in
/// the file shows this.
SharedFile open_remote(const Handle& handle);

}  // namespace ipclab::model
