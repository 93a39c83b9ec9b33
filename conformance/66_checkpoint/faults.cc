// Bugs of a driver against the rules of this folder (harness/faults/README.md).
// The process that makes the calls has the fault, because the library stands in
// front of its driver.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

constexpr auto kLock = "cuCheckpointProcessLock";
constexpr auto kCheckpoint = "cuCheckpointProcessCheckpoint";
constexpr auto kRestore = "cuCheckpointProcessRestore";
constexpr auto kUnlock = "cuCheckpointProcessUnlock";
constexpr auto kGetState = "cuCheckpointProcessGetState";
constexpr auto kGetThread = "cuCheckpointProcessGetRestoreThreadId";

// The state that the caller believes a process to have, if the fault has lied.
// (A mark is a number, and 0 is running.)
constexpr int kTrue = -1;

int believed(Call& call) { return marks.get<int>(call.at<int>(0), kTrue); }

void believe(Call& call, int state) {
  marks.erase(call.at<int>(0));
  if (state != kTrue) marks.put(call.at<int>(0), state);
}

auto is_believed(int state) {
  return [state](Call& call) { return believed(call) == state; };
}

void tell_believed(Call& call) { *call.at<int*>(1) = believed(call); }

// The driver undoes a call at once, but says that it is done.
template <class Undo>
auto undone(int state, Undo undo) {
  return [state, undo](Call& call) {
    if (undo(call.at<int>(0)) != CUDA_SUCCESS) return false;
    believe(call, state);
    return true;
  };
}

CUresult unlock(int pid) {
  return DRIVER_CALL(cuCheckpointProcessUnlock)(pid, nullptr);
}
CUresult lock(int pid) {
  return DRIVER_CALL(cuCheckpointProcessLock)(pid, nullptr);
}
CUresult restore(int pid) {
  return DRIVER_CALL(cuCheckpointProcessRestore)(pid, nullptr);
}

// What other processes know of the process with this number.
std::string restored(int pid) { return "restored" + std::to_string(pid); }

bool was_restored(Call&) { return told(restored(getpid()), 0) != 0; }

// Changes the first bytes of memory of a GPU before the program copies it.
bool source_changed(Call& copy) {
  const CUdeviceptr source = number(copy.value<const void*>(kSource));
  return begin_of(source) != 0 &&
         DRIVER_CALL(cuMemsetD8)(source, 0x5a, 4) == CUDA_SUCCESS;
}

}  // namespace

FAULTS {
  fault("checkpoint-state-running", {"CKPT-01"},
        "cuCheckpointProcessGetState says that every process is running")
      .after({kGetState}, answers<int>(CU_PROCESS_STATE_RUNNING, 1));

  fault("checkpoint-restore-runs", {"CKPT-01", "CKPT-02"},
        "a restore also unlocks the process")
      .after({kRestore}, DO(unlock(call.at<int>(0)) == CUDA_SUCCESS));

  fault("checkpoint-lock-open", {"CKPT-02"},
        "calls of a locked process do not wait")
      .after({kLock}, undone(CU_PROCESS_STATE_LOCKED, unlock))
      .after({kGetState}, WHEN(believed(call) != kTrue), tell_believed)
      .before({kCheckpoint}, is_believed(CU_PROCESS_STATE_LOCKED),
              DO(lock(call.at<int>(0)), believe(call, kTrue)))
      .on({kUnlock}, is_believed(CU_PROCESS_STATE_LOCKED),
          DO(believe(call, kTrue), kSuccess));

  fault("checkpoint-memory-stays", {"CKPT-04"},
        "a checkpoint releases no memory of the GPU")
      .after({kCheckpoint}, undone(CU_PROCESS_STATE_CHECKPOINTED, restore))
      .after({kGetState}, WHEN(believed(call) != kTrue), tell_believed)
      .on({kRestore}, is_believed(CU_PROCESS_STATE_CHECKPOINTED),
          DO(believe(call, kTrue), kSuccess));

  fault("checkpoint-contents-changed", {"CKPT-03", "CKPT-01"},
        "memory has other contents after a restore")
      .before({kCopy}, was_restored, source_changed)
      .after({kRestore}, NOTE(tell_processes(restored(call.at<int>(0)), 1)));

  fault("checkpoint-timeout-ignored", {"CKPT-05"},
        "a lock waits longer than its timeout")
      .on({kLock}, with_copy<CUcheckpointLockArgs>(1, [](auto& arguments) {
            return set_to(arguments.timeoutMs, 0);
          }));

  fault("checkpoint-timeout-locks", {"CKPT-05"},
        "a process whose lock has timed out counts as locked")
      .on_refusal({kLock}, WHEN(call.code() == CUDA_ERROR_NOT_READY),
                  DO(believe(call, CU_PROCESS_STATE_LOCKED), call.code()))
      .after({kGetState}, WHEN(believed(call) != kTrue), tell_believed);

  fault("restore-thread-of-caller", {"CKPT-06"},
        "the restore thread of another process is a thread of the caller")
      .after({kGetThread}, DO(*call.at<int*>(1) = this_thread(), true));

  fault("restore-thread-untold", {"CKPT-06"},
        "the query of the restore thread succeeds and writes nothing")
      .on({kGetThread}, lost);

  fault("checkpoint-refused-locks", {"CKPT-07"},
        "a refused checkpoint of a running process locks the process")
      .on_refusal({kCheckpoint}, WHEN(call.code() == CUDA_ERROR_ILLEGAL_STATE),
                  [](Call& call) {
                    if (lock(call.at<int>(0)) == CUDA_SUCCESS) call.fired();
                    return call.code();
                  });

  fault("checkpoint-stranger-running", {"CKPT-08"},
        "a process that does not exist has a state, and it is not written")
      .on_refusal({kGetState}, accepted);

  fault("checkpoint-refused-done", {"CKPT-09"},
        "a process whose checkpoint was refused counts as checkpointed")
      .on_refusal({kCheckpoint},
                  DO(believe(call, CU_PROCESS_STATE_CHECKPOINTED), call.code()))
      .after({kGetState}, WHEN(believed(call) != kTrue), tell_believed);

  fault("checkpoint-harms-neighbour", {"CKPT-09"},
        "a refused checkpoint changes memory of other processes than its "
        "target")
      .before(
          {kCopy},
          WHEN(told("target", 0) != 0 && told("target", 0) != this_process()),
          source_changed)
      .on_refusal(
          {kCheckpoint},
          DO(tell_processes("target", static_cast<uint64_t>(call.at<int>(0))),
             call.code()));
}

}  // namespace ipclab::faults
