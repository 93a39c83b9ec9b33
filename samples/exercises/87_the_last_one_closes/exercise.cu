// Exercise 87: the last one closes.
//
// Two parts of the importer use one buffer through a cache, which opens
// it once. The first part gives the buffer back, and the cache closes
// it, but the second part still reads. Let the cache count the users of
// the buffer.
// The exercise fails now because the second part crashes, or because
// its copy is refused.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("handle", handle_of(data));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

struct Cache {
  void* data = nullptr;
  int users = 0;

  void* take(const cudaIpcMemHandle_t& handle) {
    if (data == nullptr) data = open_memory(handle);
    return data;
  }

  void give_back() {
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
    data = nullptr;
  }
};

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  Cache cache;
  int wrong = 0;
  for (int round = 0; round < 2; ++round) {
    void* first = cache.take(handle);
    void* second = cache.take(handle);
    wrong += count_wrong(first, kCount, kValue);
    cache.give_back();
    wrong += count_wrong(second, kCount, kValue);
    cache.give_back();
  }
  say("both parts have read, twice: %d wrong", wrong);
  if (cache.data != nullptr) say("the cache STILL HAS the memory open");
  const bool closed = cache.data == nullptr;
  channel.signal("closed");

  return closed ? exit_code(wrong) : EXIT_FAILURE;
}
