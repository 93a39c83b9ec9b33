// Exercise 88: the same bits.
//
// Two ranks add the same four numbers. Each rank begins with its own
// numbers. Floats are rounded after each step, so the order changes the
// sum, and the ranks get different sums. Let both ranks add the numbers
// in the same order.
// The exercise fails now because the two sums are not equal.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;

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

// Rank 0 has 1e8 and 1, rank 1 has -1e8 and 3.
float sum_of(const float* mine, const float* theirs, int rank) {
  float sum = 0;
  (void)rank;
  for (int i = 0; i < 2; ++i) sum += mine[i];
  for (int i = 0; i < 2; ++i) sum += theirs[i];
  return sum;
}

int run(int rank, Channel& channel) {
  const float mine[2] = {rank == 0 ? 1e8f : -1e8f,
                         rank == 0 ? 1.0f : 3.0f};
  void* data = allocate_values(kCount, 0);
  CUDA_CHECK(cudaMemcpy(data, mine, sizeof mine, cudaMemcpyDefault));
  CUDA_CHECK(cudaDeviceSynchronize());  // a small copy may return early
  void* peer = open_memory(exchange(channel, handle_of(data)));
  float theirs[2] = {};
  CUDA_CHECK(
      cudaMemcpy(theirs, peer, sizeof theirs, cudaMemcpyDefault));
  CUDA_CHECK(cudaIpcCloseMemHandle(peer));
  barrier(channel);
  CUDA_CHECK(cudaFree(data));

  const float sum = sum_of(mine, theirs, rank);
  const float other = exchange(channel, sum);
  const bool same = std::memcmp(&sum, &other, sizeof sum) == 0;
  say("is rank %d, has %g, the other rank has %g: %s", rank, sum, other,
      same ? "the same bits" : "NOT the same");
  const bool near = sum >= 0 && sum <= 4;  // 4, less rounding errors

  return same && near ? EXIT_SUCCESS : EXIT_FAILURE;
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
