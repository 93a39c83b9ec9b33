// Exercise 22: the torn flag.
//
// A word in shared memory says "the values are there". The exporter
// writes the values in one stream and the word in another, so the word
// can be written first. The importer's stream waits for the word and
// copies. Order the two writes. Leave the importer as it is. Do not let
// a host wait.
// The exercise fails now with old values in the copy.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 2000000;

int exporter(Channel& channel) {
  // The flag is the word after the values. Its first value is 0.
  void* data = allocate_values(2 * kCount, kOldValue);
  unsigned* flag = static_cast<unsigned*>(data) + kCount;
  CUDA_CHECK(cudaMemset(flag, 0, sizeof *flag));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle_of(data));

  Gate* gate = create_gate();
  cudaStream_t values, flags;
  CUDA_CHECK(cudaStreamCreateWithFlags(&values, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&flags, cudaStreamNonBlocking));

  hold(values, gate);  // stands for a long computation
  write_values(data, kCount, kNewValue, values);
  CU_CHECK(DRIVER(cuStreamWriteValue32)(
      flags, reinterpret_cast<CUdeviceptr>(flag), 1,
      CU_STREAM_WRITE_VALUE_DEFAULT));
  channel.signal("queued");

  channel.wait("queued");
  open_gate(gate);
  channel.wait("closed");
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaStreamDestroy(values));
  CUDA_CHECK(cudaStreamDestroy(flags));
  destroy_gate(gate);
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  void* copy = allocate_values(kCount, 0);
  void* data =
      open_memory(channel.receive<cudaIpcMemHandle_t>("handle"));
  unsigned* flag = static_cast<unsigned*>(data) + kCount;

  channel.wait("queued");
  CU_CHECK(DRIVER(cuStreamWaitValue32)(
      nullptr, reinterpret_cast<CUdeviceptr>(flag), 1,
      CU_STREAM_WAIT_VALUE_EQ));
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault));
  say("waits for the flag; its stream is %s",
      is_held(nullptr) ? "held" : "NOT held");
  channel.signal("queued");

  const int wrong = count_wrong(copy, kCount, kNewValue);
  say("reads the copy: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("closed");

  return exit_code(wrong);
}
