// Exercise 90: a client that dies.
//
// A server lends memory to three clients. The server waits for a
// message from each client. One client is killed and sends no message,
// so the server fails. A process that has ended has also closed its
// memory. Fix is_done(): Child::wait() waits for the end of a client.
// The exercise fails now because the server ends with an error when
// client 1 sends no message.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kImporters = 3;
constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

struct Loan {
  cudaIpcMemHandle_t handle;
  int number;  // of the client
};

// Waits until the client no longer uses the memory. Returns whether
// the client exited with 0.
bool is_done(Child& client) {
  client.channel.wait("closed");
  return client.wait(10s) == EXIT_SUCCESS;
}

int serve(std::vector<Child>& clients) {
  void* data = allocate_values(kCount, kValue);
  int number = 0;
  for (Child& client : clients)
    client.channel.send("loan", Loan{handle_of(data), number++});
  for (Child& client : clients) client.channel.wait("opened");

  int well = 0;
  for (Child& client : clients) well += is_done(client);
  const int wrong = count_wrong(data, kCount, kValue);
  say("%d of %d clients ended well; the values: %d wrong", well,
      kImporters, wrong);
  CUDA_CHECK(cudaFree(data));

  return well == kImporters - 1 ? exit_code(wrong) : EXIT_FAILURE;
}

int importer(Channel channel) {
  const Loan loan = channel.receive<Loan>("loan");
  void* data = open_memory(loan.handle);
  channel.signal("opened");
  if (loan.number == 1) raise(SIGKILL);  // somebody kills this client

  const int wrong = count_wrong(data, kCount, kValue);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require_legacy_ipc();

  std::vector<Child> clients;
  for (int i = 0; i < kImporters; ++i)
    clients.push_back(start_again(argv));
  return serve(clients);
}
