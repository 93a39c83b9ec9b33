// Exercise 94: locked too early.
//
// The exporter suspends the importer, because it needs the importer's
// GPU for a while. It also wants the importer's last result. Fix the
// order in the exporter.
// The exercise fails now because the importer never sends its result.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

#if CUDA_VERSION < 12080  // older headers do not have these functions
int exporter(Channel&) { skip("build it with CUDA Toolkit 12.8"); }
int importer(Channel) { return EXIT_SUCCESS; }
#else

constexpr int kCount = 1 << 25;
constexpr size_t kBytes = kCount * sizeof(int);  // 128 MiB
constexpr int kValue = 1000000;

// Does this machine have checkpoints? Otherwise ends the exercise.
void require_checkpoints() {
  if (driver_entry("cuCheckpointProcessLock") == nullptr)
    skip("needs driver 570 or newer (CUDA 12.8)");
  CUprocessState state;
  const CUresult code =
      DRIVER(cuCheckpointProcessGetState)(getpid(), &state);
  if (code == CUDA_ERROR_NOT_SUPPORTED)
    skip("this machine cannot checkpoint a process");
  CU_CHECK(code);
}

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));
  require_checkpoints();
  const auto pid = channel.receive<pid_t>("ready");
  CUcheckpointLockArgs limit{};
  limit.timeoutMs = 5000;  // a lock without a timeout may never return
  CU_CHECK(DRIVER(cuCheckpointProcessLock)(pid, &limit));
  channel.signal("send it");
  const auto result = channel.receive<unsigned>("result");

  const size_t before = free_memory();
  CU_CHECK(DRIVER(cuCheckpointProcessCheckpoint)(pid, nullptr));
  const bool back = free_memory() >= before + kBytes / 2;
  say("has the result %u; the importer's memory is %s", result,
      back ? "free" : "NOT FREE");
  CU_CHECK(DRIVER(cuCheckpointProcessRestore)(pid, nullptr));
  CU_CHECK(DRIVER(cuCheckpointProcessUnlock)(pid, nullptr));
  channel.signal("go on");

  return back ? exit_code(result != kValue) : EXIT_FAILURE;
}

int importer(Channel channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("ready", getpid());
  channel.wait("send it");
  channel.send("result", value_at(data));

  channel.wait("go on");
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads its values after the checkpoint: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));

  return exit_code(wrong);
}
#endif
