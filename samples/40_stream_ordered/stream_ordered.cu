// Lesson 40: memory that begins and ends where its stream says.
//
//   stream "writer"                      stream "reader"
//   cudaMallocAsync, poison
//   hold                                 cudaMallocAsync
//   write                                copy: too early, poison
//   cudaEventRecord     -- written -->   cudaStreamWaitEvent
//                                        copy: the writer's values
//   let the writer go
//   cudaStreamWaitEvent   <-- read --    cudaEventRecord
//   cudaFreeAsync                        cudaFreeAsync
//
// nvcc -cudart shared samples/40_stream_ordered/stream_ordered.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/check.h"
#include "../common/require.h"

constexpr int kCount = 1 << 18;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = 1000000;
constexpr int kWritten = 2000000;
constexpr int kLooks = 10000000;  // then the gate opens by itself

__global__ void hold(const volatile int* gate) {
  for (int i = 0; *gate == 0 && i < kLooks;) ++i;
}

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

// How many values are not those of write_values()?
int count_wrong(const int* data, int first) {
  std::vector<int> seen(kCount, -1);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += seen[i] != first + i;
  return wrong;
}

bool is_held(cudaStream_t stream) {
  const bool held = cudaStreamQuery(stream) == cudaErrorNotReady;
  cudaGetLastError();  // "not ready" counts as an error, too
  return held;
}

int* allocate(cudaStream_t stream) {
  void* memory = nullptr;  // known at once, usable later
  CUDA_CHECK(cudaMallocAsync(&memory, kBytes, stream));
  return static_cast<int*>(memory);
}

void copy_async(int* to, const int* from, cudaStream_t stream) {
  CUDA_CHECK(
      cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream));
}

//! [early]
int main() {
  require_gpus(1);
  require(cudaDevAttrMemoryPoolsSupported, "stream-ordered memory");
  int* gate = nullptr;
  CUDA_CHECK(cudaHostAlloc(&gate, sizeof(int), cudaHostAllocMapped));
  *gate = 1;
  cudaStream_t writer, reader;
  CUDA_CHECK(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
  cudaEvent_t written, read;
  CUDA_CHECK(
      cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));

  // Each kernel once: its first start loads it, and that may wait.
  int* data = allocate(writer);
  hold<<<1, 1, 0, writer>>>(gate);
  write_values<<<kCount / 256, 256, 0, writer>>>(data, kPoison);
  CUDA_CHECK(cudaStreamSynchronize(writer));

  *gate = 0;
  hold<<<1, 1, 0, writer>>>(gate);
  write_values<<<kCount / 256, 256, 0, writer>>>(data, kWritten);
  CUDA_CHECK(cudaEventRecord(written, writer));
  int* copy = allocate(reader);
  copy_async(copy, data, reader);
  CUDA_CHECK(cudaStreamSynchronize(reader));
  const int early = count_wrong(copy, kWritten);
  std::printf("reader, not ordered: %d of %d values are too old\n",
              early, kCount);
  //! [early]
  //! [ordered]
  CUDA_CHECK(cudaStreamWaitEvent(reader, written));
  copy_async(copy, data, reader);
  CUDA_CHECK(cudaEventRecord(read, reader));
  int* later = allocate(writer);  // behind the hold; does not wait
  const bool held = is_held(writer) && is_held(reader);
  std::printf("the pointer of one more is there, both streams %s\n",
              held ? "still wait" : "DID NOT WAIT");
  write_values<<<kCount / 256, 256, 0, writer>>>(later, kWritten + 1);
  CUDA_CHECK(cudaGetLastError());
  *static_cast<volatile int*>(gate) = 1;
  CUDA_CHECK(cudaStreamSynchronize(reader));
  CUDA_CHECK(cudaStreamSynchronize(writer));
  const int wrong = count_wrong(copy, kWritten);
  const int late = count_wrong(later, kWritten + 1);
  std::printf("reader, behind the event: %d wrong values\n", wrong);
  std::printf("the one more, once its turn came: %d wrong\n", late);
  CUDA_CHECK(cudaStreamWaitEvent(writer, read));  // the free waits too
  CUDA_CHECK(cudaFreeAsync(data, writer));
  CUDA_CHECK(cudaFreeAsync(later, writer));
  CUDA_CHECK(cudaFreeAsync(copy, reader));
  CUDA_CHECK(cudaDeviceSynchronize());
  const bool good = early == kCount && held && wrong + late == 0;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [ordered]
