// Lesson 66: checkpoint a process, alone and with shared memory.
//
//   exporter                            importer
//                  <--- ready -----     cudaMalloc, write
//   lock it        ---- locked ---->
//                  <--- calls ------    cudaMemcpy: waits
//   checkpoint it: its memory is free
//   restore it, unlock it
//                  <--- returned ---    cudaMemcpy returns: compare
//   cudaMalloc     ---- memory ---->    open
//   lock it        <--- open -------
//   checkpoint, restore: may fail
//   unlock it      ---- tried ----->    read, close
//   read, free     <--- closed -----
//
// nvcc -cudart shared samples/66_checkpoint/checkpoint.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

#if CUDA_VERSION < 12080  // older headers do not have these functions
int main() { skip("build this lesson with CUDA Toolkit 12.8"); }
#else

constexpr size_t kBytes = size_t{1} << 30;  // big enough to measure
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000, kImporterValue = 2000000;
using Clock = std::chrono::steady_clock;
CUcheckpointLockArgs lock;  // for both locks; the rest stays zero

//! [state]
const char* state_of(pid_t pid) {
  CUprocessState state;
  CU_CHECK(DRIVER(cuCheckpointProcessGetState)(pid, &state));
  switch (state) {
    case CU_PROCESS_STATE_RUNNING:
      return "running";
    case CU_PROCESS_STATE_LOCKED:
      return "locked";
    case CU_PROCESS_STATE_CHECKPOINTED:
      return "checkpointed";
    default:
      return "FAILED";
  }
}
//! [state]

//! [alone]
bool checkpoint_and_restore(Child& child) {
  child.channel.wait("ready");
  lock.timeoutMs = 5000;  // a lock without a timeout may never return
  CU_CHECK(DRIVER(cuCheckpointProcessLock)(child.pid, &lock));
  say("locks: the importer is %s", state_of(child.pid));
  child.channel.signal("locked");
  child.channel.wait("calls");

  const size_t before = free_memory();
  CU_CHECK(DRIVER(cuCheckpointProcessCheckpoint)(child.pid, nullptr));
  const bool back = free_memory() >= before + kBytes;
  say("checkpoints: the importer is %s, its memory is %s",
      state_of(child.pid), back ? "free" : "NOT FREE");

  CU_CHECK(DRIVER(cuCheckpointProcessRestore)(child.pid, nullptr));
  say("restores: the importer is %s", state_of(child.pid));

  const auto unlocked = Clock::now();
  CU_CHECK(DRIVER(cuCheckpointProcessUnlock)(child.pid, nullptr));
  const auto returned =
      child.channel.receive<Clock::time_point>("returned");
  const bool waited = returned >= unlocked;
  say("unlocks: the importer is %s, its call has %s",
      state_of(child.pid), waited ? "waited" : "NOT WAITED");
  return back && waited;
}
//! [alone]

//! [shared]
bool checkpoint_with_shared_memory(Child& child) {
  void* data = allocate_values(kCount, kExporterValue);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  child.channel.send("memory", handle);
  child.channel.wait("open");

  const pid_t pid = child.pid;
  CU_CHECK(DRIVER(cuCheckpointProcessLock)(pid, &lock));
  // Drivers before 610 do not support this: either call may fail.
  CUresult code = DRIVER(cuCheckpointProcessCheckpoint)(pid, nullptr);
  if (code == CUDA_SUCCESS)
    code = DRIVER(cuCheckpointProcessRestore)(pid, nullptr);
  const std::string state = state_of(pid);
  say("with shared memory: [%s], the importer is [%s]",
      driver_error(code), state.c_str());

  const bool lives = state == "locked";
  if (lives) CU_CHECK(DRIVER(cuCheckpointProcessUnlock)(pid, nullptr));
  child.channel.send("tried", lives);
  if (lives) child.channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads its own values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  return wrong == 0;
}
//! [shared]

//! [importer]
int importer(Channel channel) {
  void* own = nullptr;
  CUDA_CHECK(cudaMalloc(&own, kBytes));
  write_values(own, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.signal("ready");

  channel.wait("locked");
  channel.signal("calls");  // now its next call waits
  const int wrong = count_wrong(own, kCount, kImporterValue);
  const auto returned = Clock::now();  // the same clock everywhere
  say("reads its values after the checkpoint: %d wrong", wrong);
  channel.send("returned", returned);
  CUDA_CHECK(cudaFree(own));

  const auto handle = channel.receive<cudaIpcMemHandle_t>("memory");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  channel.signal("open");
  if (!channel.receive<bool>("tried"))
    _exit(EXIT_SUCCESS);  // each CUDA call would wait without end
  const int unlike = count_wrong(data, kCount, kExporterValue);
  say("reads the exporter's values: %d wrong", unlike);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return wrong + unlike == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  require_free_memory(2 * kBytes);  // contexts need memory, too
  if (driver_entry("cuCheckpointProcessLock") == nullptr)
    skip("needs driver 570 or newer (CUDA 12.8)");
  CUprocessState state;
  const CUresult code =
      DRIVER(cuCheckpointProcessGetState)(getpid(), &state);
  if (code == CUDA_ERROR_NOT_SUPPORTED)
    skip("this machine cannot checkpoint a process");
  CU_CHECK(code);

  Child child = start_again(argv);
  const bool alone = checkpoint_and_restore(child);
  const bool shared = checkpoint_with_shared_memory(child);
  return child.finish(alone && shared ? EXIT_SUCCESS : EXIT_FAILURE);
}
#endif
