// Exercise 92: a token works once.
//
// The exporter lends memory to a process that it does not know, and
// gives it a descriptor for a token. Whoever sees the token later could
// use it again, so a token must work only once. Fix answer().
// The exercise fails now because the token works twice.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;
constexpr unsigned kToken = 4711;  // a real one: 128 random bits

struct Loan {
  unsigned token;
  int fd;  // -1: nothing is lent
};

// Answers a request with a descriptor, or refuses it.
void answer(Channel& channel, Loan& loan, unsigned token) {
  const bool granted = token == loan.token && loan.fd != -1;
  channel.send("granted", granted);
  if (granted) channel.send_descriptor("memory", loan.fd);
  // TODO
}

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const CUmemAllocationProp wanted = shareable();
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  void* data = map_memory(memory, kBytes);
  write_values(data, kCount, kValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  Loan loan{kToken, export_memory(memory)};
  for (int request = 0; request < 3; ++request)
    answer(channel, loan, channel.receive<unsigned>("take"));
  if (loan.fd != -1) SYS_CHECK(close(loan.fd));
  channel.wait("closed");
  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return EXIT_SUCCESS;
}

// Returns a descriptor, or -1 if the token is refused.
int take(Channel& channel, unsigned token) {
  channel.send("take", token);
  if (!channel.receive<bool>("granted")) return -1;
  return channel.receive_descriptor("memory");
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const bool guessed = take(channel, kToken + 1) != -1;
  const int fd = take(channel, kToken);
  Memory memory;
  CU_CHECK(import_memory(&memory, fd));
  SYS_CHECK(close(fd));
  void* data = map_memory(memory, kBytes);
  const int wrong = count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);

  const int again = take(channel, kToken);
  say("asks with a guessed token: %s; with the used one: %s",
      guessed ? "NOT REFUSED" : "refused",
      again == -1 ? "refused" : "NOT REFUSED");
  if (again != -1) SYS_CHECK(close(again));
  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return exit_code(wrong + guessed + (again != -1));
}
