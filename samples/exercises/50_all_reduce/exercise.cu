// Exercise 50: an all-reduce for three ranks (a project).
//
// Each rank has a buffer of three chunks. At the end each buffer must
// have the sums over all three ranks. Step 1, reduce: rank r adds chunk
// r of the two other ranks to its own chunk r. Step 2, gather: rank r
// copies chunk s of each other rank s. The code of step 1 is complete.
// Write gather(), and add the barrier before it: a chunk must be
// complete before another rank copies it.
// The exercise fails now because two chunks of each rank have no sums.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kRanks = 3;
constexpr int kChunk = 1 << 19;  // values
constexpr int kCount = kRanks * kChunk;
constexpr size_t kChunkBytes = kChunk * sizeof(int);

// At the beginning, value i of rank r is first_value(r) + i.
int first_value(int rank) { return 1000000 * (rank + 1); }

struct Ranks {
  int me = 0;
  std::vector<Channel*> others;  // to rank 0; in rank 0: to all others
  int* buffers[kRanks] = {};     // its own and the opened buffers

  // Returns when all ranks have called it and their work is done.
  void barrier() {
    CUDA_CHECK(cudaDeviceSynchronize());
    if (me != 0) others[0]->signal("here");
    for (Channel* other : others)
      if (me == 0) other->wait("here");
    for (Channel* other : others)
      if (me == 0) other->signal("go");
    if (me != 0) others[0]->wait("go");
  }

  int* chunk(int rank, int number) const {
    return buffers[rank] + number * kChunk;
  }
};

void reduce(const Ranks& ranks) {
  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != ranks.me)
      add_values(ranks.chunk(ranks.me, ranks.me),
                 ranks.chunk(rank, ranks.me), kChunk);
}

void gather(const Ranks& ranks) {
  // TODO
  (void)ranks;
  (void)kChunkBytes;
}

int run(Ranks& ranks) {
  ranks.barrier();
  reduce(ranks);
  // TODO: what has to be between the two?
  gather(ranks);
  ranks.barrier();

  // Each sum is 3 more than the sum before: 1 more from each rank.
  const unsigned first =
      first_value(0) + first_value(1) + first_value(2);
  const int wrong =
      count_wrong(ranks.buffers[ranks.me], kCount, first, kRanks);
  say("rank %d: %d wrong", ranks.me, wrong);

  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != ranks.me)
      CUDA_CHECK(cudaIpcCloseMemHandle(ranks.buffers[rank]));
  ranks.barrier();
  CUDA_CHECK(cudaFree(ranks.buffers[ranks.me]));

  return exit_code(wrong);
}

// Each rank sends its handle to rank 0. Rank 0 sends all handles back.
struct Handles {
  cudaIpcMemHandle_t of[kRanks];
};

void open_all(Ranks& ranks, const Handles& handles) {
  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != ranks.me)
      ranks.buffers[rank] =
          static_cast<int*>(open_memory(handles.of[rank]));
}

int importer(Channel channel) {
  Ranks ranks;
  ranks.others = {&channel};
  ranks.me = channel.receive<int>("rank");
  void* own = allocate_values(kCount, first_value(ranks.me));
  ranks.buffers[ranks.me] = static_cast<int*>(own);
  channel.send("handle", handle_of(own));
  open_all(ranks, channel.receive<Handles>("handles"));
  return run(ranks);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require_legacy_ipc();

  Child children[] = {start_again(argv), start_again(argv)};
  Ranks ranks;
  Handles handles;
  void* own = allocate_values(kCount, first_value(0));
  ranks.buffers[0] = static_cast<int*>(own);
  handles.of[0] = handle_of(own);
  int rank = 1;
  for (Child& child : children) {
    child.channel.send("rank", rank);
    handles.of[rank++] =
        child.channel.receive<cudaIpcMemHandle_t>("handle");
    ranks.others.push_back(&child.channel);
  }
  for (Child& child : children) child.channel.send("handles", handles);
  open_all(ranks, handles);

  int result = run(ranks);
  for (Child& child : children) result |= child.wait(10s);
  return result;
}
