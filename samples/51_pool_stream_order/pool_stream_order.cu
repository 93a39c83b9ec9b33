// Lesson 51: share memory that is not there yet, free it in order.
//
//   exporter                           importer
//   queue behind a held stream:
//   allocate, write, record
//   export the pointer -- 64 bytes --> import the pointer
//                                      queue: wait for the event, read,
//   queue: wait for   <-- recorded --  write, free, record
//   the event, read, free; let go
//
// nvcc -cudart shared samples/51_pool_stream_order/pool_stream_order.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kCount = 1 << 18;
constexpr int kPoison = -kCount, kExporter = 1000000,
              kImporter = 2000000;
__device__ int right = 0;  // values that were as expected

__global__ void hold(const volatile int* gate) {
  for (int i = 0; *gate == 0 && i < 10000000;) ++i;  // gives up
}

__global__ void check_and_write(int* data, int old, int fresh) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (data[i] == old + i) atomicAdd(&right, 1);
  data[i] = fresh + i;
}

bool found_all(const char* whose) {
  int count = -1;
  CUDA_CHECK(cudaMemcpyFromSymbol(&count, right, sizeof count));
  say("finds %d of the %s %d values", count, whose, kCount);
  return count == kCount;
}

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kFd;
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  int fd = -1, *gate = nullptr, *data = nullptr;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  channel.send_descriptor("pool", fd);
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  channel.send("event", handle);
  CUDA_CHECK(cudaHostAlloc(&gate, sizeof(int), cudaHostAllocMapped));
  *gate = 0;
  hold<<<1, 1>>>(gate);  // all that follows is only queued
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kCount * 4, pool, 0));
  check_and_write<<<kCount / 256, 256>>>(data, kPoison, kExporter);
  CUDA_CHECK(cudaEventRecord(event));
  cudaMemPoolPtrExportData bytes;
  CUDA_CHECK(cudaMemPoolExportPointer(&bytes, data));
  say("sends memory that its stream has not even allocated");
  channel.send("pointer", bytes);

  channel.wait("recorded");  // behind the importer's free
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event));
  check_and_write<<<kCount / 256, 256>>>(data, kImporter, kPoison);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  const bool held = cudaEventQuery(event) == cudaErrorNotReady;
  say("queues its free %s the importer's", held ? "before" : "AFTER");
  *static_cast<volatile int*>(gate) = 1;
  channel.wait("read");
  const bool good = found_all("importer's");
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return held && good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("pool");
  void* from = reinterpret_cast<void*>(intptr_t{fd});
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(&pool, from, kFd, 0));
  const auto handle = channel.receive<cudaIpcEventHandle_t>("event");
  cudaEvent_t event;
  CUDA_CHECK(cudaIpcOpenEventHandle(&event, handle));
  auto bytes = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &bytes));
  const bool held = cudaEventQuery(event) == cudaErrorNotReady;

  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event));
  check_and_write<<<kCount / 256, 256>>>(static_cast<int*>(data),
                                         kExporter, kImporter);
  CUDA_CHECK(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaEventRecord(event));
  say("queues its use %s it is there", held ? "before" : "AFTER");
  channel.signal("recorded");
  const bool good = found_all("exporter's");
  channel.signal("read");
  return held && good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // no loading later
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "pools for IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  return child.wait(10s) == EXIT_SUCCESS ? mine : EXIT_FAILURE;
}
