// Exercise 06: opened by two, closed by one.
//
// Two parts of the importer, a reader and a writer, open the same
// handle. The reader is called before and after the writer. The author
// thought that the writer's close was enough. But CUDA counts every
// open, so the memory stays mapped. Let each part close the memory that
// it has opened. The exercise fails now because the trace finds:
// closed-too-seldom (or freed-while-open, if the exporter is quick).
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

int read_values(const cudaIpcMemHandle_t& handle, int first) {
  void* data = open_memory(handle);
  const int wrong = count_wrong(data, kCount, first);
  say("opens the memory at %p, reads: %d wrong", data, wrong);
  return wrong;
}

void change_values(const cudaIpcMemHandle_t& handle) {
  void* data = open_memory(handle);
  say("opens the memory at %p, writes", data);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  const int before = read_values(handle, kExporterValue);
  change_values(handle);
  const int after = read_values(handle, kImporterValue);
  channel.signal("closed");

  return exit_code(before + after);
}
