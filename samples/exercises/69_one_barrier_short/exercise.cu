// Exercise 69: the missing barrier.
//
// Two ranks lend each other memory. Each rank reads the memory of the
// other rank, closes it, and frees its own memory. The quick rank frees
// its memory while the slow rank still reads it. A rank may free its
// memory only after the other rank has closed it.
// The exercise fails now because the trace finds: freed-while-open, or
// because the slow rank reads wrong values.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;
constexpr int kReads = 200;  // rank 1 is slow

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

int run(int rank, Channel& channel) {
  void* mine = allocate_values(kCount, kValue * (rank + 1));
  void* theirs = open_memory(exchange(channel, handle_of(mine)));
  barrier(channel);  // both have opened the memory

  int wrong = 0;
  for (int i = 0; i < (rank == 0 ? 1 : kReads); ++i)
    wrong += count_wrong(theirs, kCount, kValue * (2 - rank));
  say("reads the other's values as rank %d: %d wrong", rank, wrong);

  CUDA_CHECK(cudaIpcCloseMemHandle(theirs));
  CUDA_CHECK(cudaFree(mine));

  return exit_code(wrong);
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
