// Exercise 13: from the runtime to the driver API.
//
// The exporter uses the runtime; the importer has to use the driver
// API. The 64 bytes are the same in both APIs. Fill the two gaps with
// cuIpcOpenMemHandle and cuIpcCloseMemHandle. DRIVER(name)(arguments)
// calls a driver function; CU_CHECK checks the code that it returns.
// The exercise fails now because the importer has no pointer.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("handle", handle_of(data));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const auto handle = channel.receive<CUipcMemHandle>("handle");

  CUdeviceptr address = 0;
  // TODO: open.
  (void)handle;
  if (address == 0) {
    say("has a handle, but no pointer");
    return EXIT_FAILURE;
  }

  const int wrong =
      count_wrong(reinterpret_cast<void*>(address), kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  // TODO: close.
  channel.signal("closed");

  return exit_code(wrong);
}
