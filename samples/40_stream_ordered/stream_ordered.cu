// Lesson 40: allocate and free memory in the order of a stream.
//
//   stream "writer"                      stream "reader"
//   cudaMallocAsync, write old values
//   hold                                 cudaMallocAsync
//   write new values                     copy: too early, old values
//   cudaEventRecord     -- written -->   cudaStreamWaitEvent
//                                        copy: new values
//   cudaStreamWaitEvent <-- copied ---   cudaEventRecord
//   cudaFreeAsync
//
// The second copy and the free are queued before the gate opens.
//
// nvcc -cudart shared samples/40_stream_ordered/stream_ordered.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/gate.h"
#include "../common/require.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 3000000;

bool is_held(cudaStream_t stream) {
  const cudaError_t code = cudaStreamQuery(stream);
  if (code != cudaErrorNotReady) CUDA_CHECK(code);
  return code == cudaErrorNotReady;
}

int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");

  Gate* gate = create_gate();
  cudaStream_t writer, reader;
  CUDA_CHECK(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
  cudaEvent_t written, copied;
  CUDA_CHECK(
      cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));

  //! [early]
  void* data = nullptr;
  CUDA_CHECK(cudaMallocAsync(&data, kBytes, writer));
  write_values(data, kCount, kOldValue, writer);
  CUDA_CHECK(cudaStreamSynchronize(writer));

  hold(writer, gate);
  for (int left = 19; left >= 0; --left)  // takes longer than a copy
    write_values(data, kCount, kNewValue - left, writer);
  CUDA_CHECK(cudaEventRecord(written, writer));

  void* copy = nullptr;
  CUDA_CHECK(cudaMallocAsync(&copy, kBytes, reader));
  CUDA_CHECK(
      cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault, reader));
  CUDA_CHECK(cudaStreamSynchronize(reader));
  const int old = kCount - count_wrong(copy, kCount, kOldValue);
  say("copies without order: %d of %d values are old", old, kCount);
  //! [early]

  //! [ordered]
  CUDA_CHECK(cudaStreamWaitEvent(reader, written));
  CUDA_CHECK(
      cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault, reader));
  CUDA_CHECK(cudaEventRecord(copied, reader));

  CUDA_CHECK(cudaStreamWaitEvent(writer, copied));
  CUDA_CHECK(cudaFreeAsync(data, writer));
  const bool held = is_held(writer) && is_held(reader);
  say("queues the second copy and the free: both streams are %s",
      held ? "held" : "NOT HELD");

  open_gate(gate);
  CUDA_CHECK(cudaStreamSynchronize(reader));
  CUDA_CHECK(cudaStreamSynchronize(writer));
  const int wrong = count_wrong(copy, kCount, kNewValue);
  say("copies after the event: %d wrong", wrong);
  //! [ordered]

  CUDA_CHECK(cudaFreeAsync(copy, reader));
  CUDA_CHECK(cudaStreamSynchronize(reader));
  CUDA_CHECK(cudaEventDestroy(copied));
  CUDA_CHECK(cudaEventDestroy(written));
  CUDA_CHECK(cudaStreamDestroy(reader));
  CUDA_CHECK(cudaStreamDestroy(writer));
  destroy_gate(gate);

  const bool good = old == kCount && held && wrong == 0;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
