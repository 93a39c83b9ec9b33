// Exercise 91: find the fault: a copy that arrives late.
//
// On one driver a copy to the memory of another GPU returns success,
// but its data arrive only with the next copy. The test below does not
// notice this: it makes eight copies and reads the memory after the
// last one. Change the test so that it notices the bug.
// The exercise fails now because the test does not notice the bug.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kRounds = 8;
constexpr int kValue = 1000000;

int first_value(int round) {
  return round >= 0 ? kValue : 0;  // TODO
}

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, 0);  // on GPU 0
  channel.send("handle", handle_of(data));

  channel.wait("written");
  const int wrong = count_wrong(data, kCount, first_value(kRounds - 1));
  say("reads what the last copy wrote: %d wrong", wrong);
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return exit_code(wrong);
}

int importer(Channel channel) {
  CUDA_CHECK(cudaSetDevice(1));
  void* own = allocate_values(kCount, 0);
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));

  for (int round = 0; round < kRounds; ++round) {
    write_values(own, kCount, first_value(round));
    CUDA_CHECK(cudaMemcpy(data, own, kBytes, cudaMemcpyDefault));
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.signal("written");

  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(own));
  channel.signal("closed");

  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(2);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
