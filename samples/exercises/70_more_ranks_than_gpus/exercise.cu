// Exercise 70: more ranks than GPUs.
//
// Each rank takes the GPU with its own number. On this machine there is
// one GPU, so rank 1 takes a GPU that does not exist. Give the GPUs to
// the ranks in turn, for any number of ranks and of GPUs. The exercise
// fails now with the error code of cudaSetDevice.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

// Both ranks call run(). exchange() returns the other rank's value.
int run(int rank, Channel& channel);

template <class T>
T exchange(Channel& channel, const T& mine) {
  channel.send("exchange", mine);
  return channel.receive<T>("exchange");
}

void barrier(Channel& channel) {
  channel.signal("barrier");
  channel.wait("barrier");
}

int gpu_of(int rank) {
  return rank;  // TODO
}

int run(int rank, Channel& channel) {
  CUDA_CHECK(cudaSetDevice(gpu_of(rank)));
  void* mine = allocate_values(kCount, kValue * (rank + 1));
  void* theirs = open_memory(exchange(channel, handle_of(mine)));

  const int wrong = count_wrong(theirs, kCount, kValue * (2 - rank));
  say("reads the other's values as rank %d on GPU %d: %d wrong", rank,
      gpu_of(rank), wrong);

  // Tests gpu_of() for more ranks than there are processes.
  int count = 0;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  bool good = wrong == 0;
  for (int other = 0; other < 64; ++other)
    good &= gpu_of(other) >= 0 && gpu_of(other) < count;

  CUDA_CHECK(cudaIpcCloseMemHandle(theirs));
  barrier(channel);
  CUDA_CHECK(cudaFree(mine));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) {
    Channel channel = channel_from_parent(argv);
    return run(1, channel);
  }
  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(run(0, child.channel));
}
