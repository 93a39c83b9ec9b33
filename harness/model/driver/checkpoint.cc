// SPDX-License-Identifier: Apache-2.0
// The driver API: checkpoints of processes. These calls never block because
// their own process is locked: it could not be unlocked otherwise.
#include "core/checkpoint.h"

#include <cstring>

#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

CUresult ask(int pid, CheckpointRequest request, uint32_t argument = 0,
             int* answer = nullptr) {
  // "Checkpoint and restore capabilities are currently restricted to Linux";
  // cuda-checkpoint adds: x64 only.
  if (profile().integrated) return CUDA_ERROR_NOT_SUPPORTED;
  return ask_process(pid, request, argument, answer);
}

// Are all these bytes zero? "Reserved for future use, must be zeroed."
template <class Bytes>
bool is_zero(const Bytes& bytes) {
  const Bytes zero{};
  return std::memcmp(&bytes, &zero, sizeof bytes) == 0;
}

// The mask of the GPUs that the pairs name. The model has no other GPU onto
// which it could move memory.
CUresult listed_gpus(const CUcheckpointRestoreArgs& args, uint32_t* mask) {
  if (args.gpuPairsCount > 0 && args.gpuPairs == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < args.gpuPairsCount; ++i) {
    const CUcheckpointGpuPair& pair = args.gpuPairs[i];
    bool known = false;
    for (int gpu = 0; gpu < profile().gpus; ++gpu) {
      const CUuuid uuid = gpu_uuid(gpu);
      if (std::memcmp(&uuid, &pair.oldUuid, sizeof uuid) != 0) continue;
      known = true;
      *mask |= uint32_t{1} << gpu;
    }
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    if (std::memcmp(&pair.oldUuid, &pair.newUuid, sizeof(CUuuid)) != 0) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuCheckpointProcessGetRestoreThreadId(int pid,
                                                                 int* tid) {
  if (tid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, CheckpointRequest::kThread, 0, tid);
}

IPCLAB_DRIVER_API CUresult cuCheckpointProcessGetState(int pid,
                                                       CUprocessState* state) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int value = 0;
  if (CUresult error = ask(pid, CheckpointRequest::kState, 0, &value)) {
    return error;
  }
  *state = static_cast<CUprocessState>(value);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuCheckpointProcessLock(int pid,
                                                   CUcheckpointLockArgs* args) {
  if (args != nullptr && !(args->reserved0 == 0 && is_zero(args->reserved1))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return ask(pid, CheckpointRequest::kLock,
             args == nullptr ? 0 : args->timeoutMs);
}

IPCLAB_DRIVER_API CUresult
cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  if (args != nullptr && !is_zero(*args)) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, CheckpointRequest::kCheckpoint);
}

IPCLAB_DRIVER_API CUresult
cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  uint32_t gpus = 0;
  if (args != nullptr) {
    if (!is_zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = listed_gpus(*args, &gpus)) return error;
  }
  return ask(pid, CheckpointRequest::kRestore, gpus);
}

IPCLAB_DRIVER_API CUresult
cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  if (args != nullptr && !is_zero(*args)) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, CheckpointRequest::kUnlock);
}
