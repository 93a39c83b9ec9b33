// Exercise 23: managed memory has no handle.
//
// The exporter keeps its values in managed memory, because its CPU
// writes them. It tries to export that memory, and CUDA refuses, as
// documented: managed memory can move. Share the values in another way.
// The exercise fails now with an error of cudaIpcGetMemHandle.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

int exporter(Channel& channel) {
  int* managed = nullptr;
  CUDA_CHECK(cudaMallocManaged(&managed, kBytes));
  for (int i = 0; i < kCount; ++i) managed[i] = kExporterValue + i;

  void* data = managed;
  channel.send("handle", handle_of(data));

  channel.wait("closed");
  const int wrong =
      count_wrong_on_host(managed, kCount, kImporterValue);
  say("its CPU reads the importer's values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(managed));

  return exit_code(wrong);
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads the exporter's values: %d wrong", wrong);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
