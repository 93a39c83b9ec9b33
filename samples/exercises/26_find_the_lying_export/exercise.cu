// Exercise 26: find the fault: an export that should be refused.
//
// One driver exports managed memory and returns success. Write a test
// that notices this bug: exit with 0 if the driver refuses the export,
// and with 1 if the export succeeds. refused(what, call) prints the
// code of a call and returns whether CUDA refused the call.
// The exercise fails now because the program never tries the export.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr size_t kBytes = 4 << 20;

int main() {
  require_gpus(1);
  require_legacy_ipc();
  void* data = nullptr;
  CUDA_CHECK(cudaMallocManaged(&data, kBytes));

  bool good = true;
  // TODO: export the memory; CUDA must refuse.

  CUDA_CHECK(cudaFree(data));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
