// Exercise 46: the producer left first.
//
// The exporter sends its handle and ends. When its process ends, the
// memory is freed, but the importer still reads it. Let the exporter
// run until the importer has closed the memory.
// The exercise fails now because the program ends before its importer,
// or because the trace finds: exporter-ended-while-open.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;
constexpr int kReads = 300;  // a consumer reads for a while

// Like a service, main() does not wait for the importer.
int lend(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("handle", handle_of(data));

  channel.wait("opened");
  say("has sent its handle, and ends");
  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  channel.signal("opened");

  int wrong = 0;
  for (int i = 0; i < kReads; ++i)
    wrong += count_wrong(data, kCount, kValue);
  say("reads the exporter's values: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) {
    prctl(PR_SET_PDEATHSIG, 0);  // stay alive without the exporter
    return importer(channel_from_parent(argv));
  }
  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return lend(child.channel);
}
