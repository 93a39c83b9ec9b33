// Exercise 67: a hundred opens.
//
// Each message has the same handle, and the importer opens and closes
// the memory each time. The open is expensive: on a GPU it takes longer
// than a read of megabytes. Open the memory once.
// The exercise fails now because the memory is opened a hundred times.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kMessages = 100;
constexpr unsigned kValue = 1000000;

struct Message {
  cudaIpcMemHandle_t handle;
  size_t index;  // the position of the value
};

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  for (size_t i = 0; i < kMessages; ++i)
    channel.send("message", Message{handle_of(data), i * 1000});
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  int wrong = 0;
  for (int i = 0; i < kMessages; ++i) {
    const auto message = channel.receive<Message>("message");
    void* data = open_memory(message.handle);
    const auto* values = static_cast<const unsigned*>(data);
    wrong += value_at(values + message.index) != kValue + message.index;
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  }
  say("has read a value for each message: %d wrong", wrong);
  channel.signal("closed");

  return exit_code(wrong);
}
