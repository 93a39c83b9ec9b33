// Exercise 76: the flag of the last round.
//
// A word in shared memory says that a frame is there. The importer's
// stream waits until the word is at least 1. In round 2 the word is
// still 1 from round 1, so the importer does not wait. Let the word say
// which frame is there.
// The exercise fails now because the importer is not held in round 2.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 1000000;
constexpr int kRounds = 3;

unsigned flag_of(int /*round*/) { return 1; }

int exporter(Channel& channel) {
  Gate* gate = create_gate();
  // The flag is the word after the values. Its first value is 0.
  void* data = allocate_values(2 * kCount, 0);
  unsigned* flag = static_cast<unsigned*>(data) + kCount;
  CUDA_CHECK(cudaMemset(flag, 0, sizeof *flag));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle_of(data));

  for (int round = 1; round <= kRounds; ++round) {
    gate->open = 0;
    hold(nullptr, gate);  // stands for a long computation
    write_values(data, kCount, round * kValue);
    CU_CHECK(DRIVER(cuStreamWriteValue32)(
        nullptr, reinterpret_cast<CUdeviceptr>(flag), flag_of(round),
        CU_STREAM_WRITE_VALUE_DEFAULT));
    channel.signal("queued");
    channel.wait("queued");
    open_gate(gate);
    channel.wait("read");
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  channel.wait("closed");
  destroy_gate(gate);
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  unsigned* flag = static_cast<unsigned*>(data) + kCount;

  int wrong = 0;
  for (int round = 1; round <= kRounds; ++round) {
    channel.wait("queued");
    CU_CHECK(DRIVER(cuStreamWaitValue32)(
        nullptr, reinterpret_cast<CUdeviceptr>(flag), flag_of(round),
        CU_STREAM_WAIT_VALUE_GEQ));
    CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
    say("waits for frame %d; its stream is %s", round,
        is_held(nullptr) ? "held" : "NOT held");
    channel.signal("queued");
    wrong += count_wrong(copy, kCount, round * kValue);
    channel.signal("read");
  }
  say("has read %d frames: %d wrong", kRounds, wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
