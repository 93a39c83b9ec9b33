// Exercise 12: forked after CUDA had begun.
//
// The program uses CUDA and then forks. The child inherits a context
// that it cannot use. Start the child before the first call of CUDA.
// Then each process initialises CUDA itself.
// The exercise fails now with an error of the child's first call.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

int importer(Channel channel) {
  role_name() = "importer";
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}

Child fork_importer() {
  int ends[2];
  SYS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
  const pid_t pid = fork();
  SYS_CHECK(pid);
  if (pid == 0) {
    close(ends[0]);
    const int code = importer(Channel(ends[1]));
    std::exit(code);
  }
  close(ends[1]);
  return {Channel(ends[0]), pid};
}

int main() {
  role_name() = "exporter";
  require_gpus(1);
  void* data = allocate_values(kCount, kValue);
  const cudaIpcMemHandle_t handle = handle_of(data);

  Child child = fork_importer();
  child.channel.send("handle", handle);
  child.channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return child.finish(EXIT_SUCCESS);
}
