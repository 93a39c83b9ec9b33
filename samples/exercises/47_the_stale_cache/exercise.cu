// Exercise 47: the stale cache.
//
// The importer opens each allocation once and keeps the pointer in a
// cache. The key of the cache is the exporter's address. The exporter
// frees the buffer and allocates again, often at the same address, and
// the importer reads the old memory. The exporter sends "gone" before
// it frees a buffer. Use this message to remove that buffer from the
// cache.
// The exercise fails now with wrong values, or with freed-while-open.
//
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;
constexpr int kRounds = 3;

struct Loan {
  void* address;  // in the exporter
  cudaIpcMemHandle_t handle;
};

int exporter(Channel& channel) {
  for (int round = 0; round < kRounds; ++round) {
    void* data = allocate_values(kCount, kValue + round);
    for (int use = 0; use < 2; ++use) {
      channel.send("loan", Loan{data, handle_of(data)});
      channel.wait("read");
    }
    channel.send("gone", data);
    channel.wait("dropped");
    CUDA_CHECK(cudaFree(data));
  }
  return EXIT_SUCCESS;
}

std::map<void*, void*> cache;  // exporter's address -> own address

void* find_or_open(const Loan& loan) {
  void*& mine = cache[loan.address];
  if (mine == nullptr) mine = open_memory(loan.handle);
  return mine;
}

void drop(void* address) {
  // TODO
  (void)address;
}

int importer(Channel channel) {
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int use = 0; use < 2; ++use) {
      void* data = find_or_open(channel.receive<Loan>("loan"));
      wrong += count_wrong(data, kCount, kValue + round);
      say("reads buffer %d: %d wrong until now", round, wrong);
      channel.signal("read");
    }
    drop(channel.receive<void*>("gone"));
    channel.signal("dropped");
  }
  return exit_code(wrong);
}
