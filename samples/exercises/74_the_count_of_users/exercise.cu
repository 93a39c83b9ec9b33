// Exercise 74: the count of users.
//
// The exporter counts the users of its memory, and frees it when the
// count is 0. Three importers have opened the memory, and close it one
// after the other. The count begins with 1, and is never increased. Fix
// the count.
// The exercise fails now because the trace finds: freed-while-open.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kImporters = 3;
constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

int lend(std::vector<Child>& importers) {
  void* data = allocate_values(kCount, kValue);
  int users = 1;
  for (Child& importer : importers) {
    importer.channel.send("handle", handle_of(data));
    importer.channel.wait("opened");
  }
  for (Child& importer : importers) {
    importer.channel.signal("close");
    importer.channel.wait("closed");
    if (--users == 0) {
      CUDA_CHECK(cudaFree(data));
      say("frees the memory: no importer uses it");
    }
  }
  return users == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  channel.signal("opened");
  channel.wait("close");
  const int wrong = count_wrong(data, kCount, kValue);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
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
