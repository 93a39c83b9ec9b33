// Exercise 03: free or close?
//
// The importer no longer needs the memory and calls cudaFree. CUDA
// refuses this call. Which call releases memory that was opened by a
// handle? Fix the importer; the exporter is right.
// The exercise fails now with cudaErrorInvalidValue.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kExporterValue);
  channel.send("handle", handle_of(data));

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));

  return exit_code(wrong);
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = open_memory(handle);

  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  CUDA_CHECK(cudaFree(data));
  channel.signal("closed");

  return EXIT_SUCCESS;
}
