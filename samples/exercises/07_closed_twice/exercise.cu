// Exercise 07: closed twice.
//
// A library keeps each buffer in a struct. When a struct is destroyed,
// it closes the buffer. The program passes the struct to a function by
// value, so both the copy and the original close the buffer. CUDA
// refuses the second close. Fix the program: each open needs exactly
// one close.
// The exercise fails now with an error of cudaIpcCloseMemHandle.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

struct Buffer {
  explicit Buffer(const cudaIpcMemHandle_t& handle)
      : data(open_memory(handle)) {}
  ~Buffer() { CUDA_CHECK(cudaIpcCloseMemHandle(data)); }

  void* data;
};

int wrong_values(Buffer buffer) {
  return count_wrong(buffer.data, kCount, kValue);
}

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("handle", handle_of(data));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  int wrong = 0;
  {
    Buffer buffer(channel.receive<cudaIpcMemHandle_t>("handle"));
    wrong = wrong_values(buffer);
    say("reads the exporter's values: %d wrong", wrong);
  }
  channel.signal("closed");

  return exit_code(wrong);
}
