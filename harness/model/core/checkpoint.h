// SPDX-License-Identifier: Apache-2.0
// Checkpoints of processes (Driver API, CUDA checkpointing). A process that has
// initialised CUDA has one more thread, the restore thread. It does what other
// processes ask, one request after the other.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace ipclab::model {

/// What one process can ask another process.
enum class CheckpointRequest : uint32_t {
  kState,       ///< which CUprocessState it has
  kThread,      ///< the id of its restore thread
  kLock,        ///< the argument is a timeout in milliseconds; 0: none
  kCheckpoint,  ///< no argument
  kRestore,     ///< the argument is a mask of GPUs that it may need; 0: all
  kUnlock,      ///< no argument
};

/// Starts the restore thread of this process.
void start_restore_thread();

/// Asks a process, also this one, and waits for the answer. Returns
/// CUDA_ERROR_INVALID_VALUE if this process sees no process with this number,
/// and CUDA_ERROR_NOT_INITIALIZED if that process does not use CUDA on this
/// machine.
CUresult ask_process(int pid, CheckpointRequest request, uint32_t argument,
                     int* answer);

extern std::atomic<bool> process_is_locked;
/// wait_until_unlocked() of a process that is locked.
void wait_for_unlock();
/// "further CUDA API calls will block" (cuCheckpointProcessLock).
inline void wait_until_unlocked() {
  if (process_is_locked) wait_for_unlock();
}

}  // namespace ipclab::model
