// Exercise 04: freed too early.
//
// The exporter frees its memory as soon as the importer has opened it.
// This often seems to work: the values are still right. But the
// behaviour is undefined if a process frees memory that another process
// has open. Later the driver may give the memory to another owner.
// Change the order of the steps.
// The exercise fails now because the trace finds: freed-while-open.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("handle", handle_of(data));

  channel.wait("opened");
  CUDA_CHECK(cudaFree(data));
  say("frees the memory");
  channel.signal("go");

  channel.wait("closed");
  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = open_memory(handle);
  channel.signal("opened");

  channel.wait("go");
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}
