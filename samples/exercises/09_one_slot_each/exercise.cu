// Exercise 09: one slot each.
//
// Three importers open one allocation, and each importer writes its own
// slot. The program counts the importers from 1. So slot 0 is never
// written, and the third importer writes slot 3, which belongs to no
// importer. Such a write may destroy other data of the block. Fix the
// numbers: the first importer must write slot 0.
// The exercise fails now because the values of one slot are wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kImporters = 3;
constexpr int kSlot = 1 << 18;                    // values
constexpr int kCount = (kImporters + 1) * kSlot;  // and a spare slot
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 2000000;  // plus the importer's number

struct Invitation {
  cudaIpcMemHandle_t handle;
  int number;
};

int lend(std::vector<Child>& importers) {
  int* data = static_cast<int*>(allocate_values(kCount, kOldValue));
  Invitation invitation{handle_of(data), 0};
  for (Child& importer : importers) {
    ++invitation.number;
    importer.channel.send("handle", invitation);
  }
  for (Child& importer : importers) importer.channel.wait("closed");

  int wrong = 0;
  for (int i = 0; i < kImporters; ++i) {
    const int here =
        count_wrong(data + i * kSlot, kSlot, kNewValue + i);
    say("reads slot %d: %d wrong", i, here);
    wrong += here;
  }
  CUDA_CHECK(cudaFree(data));

  return exit_code(wrong);
}

int importer(Channel channel) {
  const auto invitation = channel.receive<Invitation>("handle");
  const int number = invitation.number;
  int* data = static_cast<int*>(open_memory(invitation.handle));
  write_values(data + number * kSlot, kSlot, kNewValue + number);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require_legacy_ipc();

  std::vector<Child> importers;
  for (int i = 0; i < kImporters; ++i)
    importers.push_back(start_again(argv));
  int result = lend(importers);
  for (Child& importer : importers) result |= importer.wait(10s);

  return result;
}
