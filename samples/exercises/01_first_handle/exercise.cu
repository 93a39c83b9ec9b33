// Exercise 01: open a handle, and close it.
//
// The exporter lends an allocation of cudaMalloc. The importer has the
// handle, but no pointer yet. Fill the two gaps in importer(): get a
// pointer from the handle with cudaIpcOpenMemHandle, and close the
// pointer with cudaIpcCloseMemHandle after its last use.
// The exercise fails now because the importer has no pointer.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  channel.send("handle", handle);

  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* data = nullptr;
  // TODO: open the handle.
  (void)handle;
  if (data == nullptr) {
    say("has a handle, but no pointer");
    return EXIT_FAILURE;
  }

  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);

  // TODO: close it.
  channel.signal("closed");

  return exit_code(wrong);
}
