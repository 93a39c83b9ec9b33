// Exercise 48: a tensor server (a project).
//
// The server keeps three tensors in one allocation. A client asks for a
// tensor by its number, gets a loan (handle, offset, count), reads the
// tensor, and gives it back. A client may have several tensors at once.
// Write lend() of the server, and borrow() and give_back() of the
// client. The client must use one mapping of the allocation for any
// number of tensors, and end the mapping with the last give_back().
// The exercise fails now because the client gets no tensor.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kTensors = 3;
constexpr int kCount = 1 << 18;  // values of a tensor

int first_value(int tensor) { return 1000000 * (tensor + 1); }

struct Loan {
  cudaIpcMemHandle_t handle;
  size_t offset;  // in bytes
  int count;      // values; 0 means: there is no such tensor
};

// ---- the server

Loan lend(int* base, int tensor) {
  Loan loan{};
  // TODO: say where the tensor lies. A client may ask for a tensor that
  // does not exist.
  (void)base;
  (void)tensor;
  return loan;
}

int exporter(Channel& channel) {
  // The size is a multiple of 2 MiB, so nothing else is lent with it.
  int* base = static_cast<int*>(allocate_values(4 * kCount, 0));
  for (int i = 0; i < kTensors; ++i)
    write_values(base + i * kCount, kCount, first_value(i));
  CUDA_CHECK(cudaDeviceSynchronize());

  for (;;) {
    const int tensor = channel.receive<int>("tensor?");
    if (tensor == -1) break;  // the client has finished
    channel.send("loan", lend(base, tensor));
  }
  CUDA_CHECK(cudaFree(base));

  return EXIT_SUCCESS;
}

// ---- the client

struct Client {
  Channel channel;
  void* opened = nullptr;
  int borrowed = 0;

  // Returns the address of the tensor's first value, or null if the
  // server has no such tensor.
  void* borrow(int tensor) {
    channel.send("tensor?", tensor);
    const Loan loan = channel.receive<Loan>("loan");
    // TODO
    (void)loan;
    return nullptr;
  }

  void give_back() {
    // TODO
  }
};

int wrong_values(void* data, int tensor) {
  if (data == nullptr) return kCount;
  return count_wrong(data, kCount, first_value(tensor));
}

int importer(Channel channel) {
  Client client{std::move(channel)};
  void* second = client.borrow(1);
  void* third = client.borrow(2);
  int wrong = wrong_values(second, 1) + wrong_values(third, 2);
  client.give_back();
  wrong += wrong_values(third, 2);
  client.give_back();

  wrong += wrong_values(client.borrow(0), 0);
  client.give_back();
  if (client.borrow(kTensors) != nullptr) ++wrong;  // no such tensor
  if (client.borrow(-7) != nullptr) ++wrong;
  say("reads three tensors: %d wrong", wrong);
  client.channel.send("tensor?", -1);

  return exit_code(wrong);
}
