// SPDX-License-Identifier: Apache-2.0
// An ordinary two-process CUDA IPC program: memory and events through handles,
// symbols, streams, pinned and managed memory. The exit code is 0 only if all
// data is right.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                          \
  do {                                                                       \
    const cudaError_t code = (call);                                         \
    if (code != cudaSuccess) {                                               \
      std::fprintf(stderr, "%s:%d: %s -> %s (%d): %s\n", __FILE__, __LINE__, \
                   #call, cudaGetErrorName(code), static_cast<int>(code),    \
                   cudaGetErrorString(code));                                \
      std::exit(EXIT_FAILURE);                                               \
    }                                                                        \
  } while (false)

constexpr int kCount = 1 << 20;

__constant__ int scale;
__device__ int bias = 7;
__managed__ int seen = 5;

__global__ void fill(int* data, int count, int seed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = i * scale + bias + seed;
}

__global__ void count_errors(const int* data, int count, int seed,
                             int* errors) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && data[i] != i * scale + bias + seed) atomicAdd(errors, 1);
}

__global__ void touch_managed() { seen += 1; }

struct Message {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t ready;
  cudaIpcEventHandle_t done;
};

void prepare() {
  const int three = 3;
  CHECK(cudaMemcpyToSymbol(scale, &three, sizeof three));
  // What lies beyond a variable belongs to others.
  int beyond[2] = {};
  if (cudaMemcpyToSymbol(bias, beyond, sizeof beyond) !=
          cudaErrorInvalidValue ||
      cudaMemcpyFromSymbol(beyond, bias, 4, 1) != cudaErrorInvalidValue) {
    std::printf("a copy beyond a variable is not refused\n");
    std::exit(EXIT_FAILURE);
  }
  cudaGetLastError();
}

int verify(const int* data, int seed, cudaStream_t stream) {
  int* errors = nullptr;
  CHECK(cudaMallocManaged(&errors, sizeof *errors));
  *errors = 0;
  count_errors<<<(kCount + 255) / 256, 256, 0, stream>>>(data, kCount, seed,
                                                         errors);
  CHECK(cudaGetLastError());
  CHECK(cudaStreamSynchronize(stream));
  const int found = *errors;
  CHECK(cudaFree(errors));
  return found;
}

int importer(int in, int out) {
  Message message;
  if (read(in, &message, sizeof message) != sizeof message) return 1;
  prepare();
  int* data = nullptr;
  cudaEvent_t ready, done;
  cudaStream_t stream;
  CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&data), message.memory,
                             cudaIpcMemLazyEnablePeerAccess));
  CHECK(cudaIpcOpenEventHandle(&ready, message.ready));
  CHECK(cudaIpcOpenEventHandle(&done, message.done));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamWaitEvent(stream, ready, 0));
  const int wrong = verify(data, 100, stream);
  fill<<<(kCount + 255) / 256, 256, 0, stream>>>(data, kCount, 200);
  CHECK(cudaEventRecord(done, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaIpcCloseMemHandle(data));
  CHECK(cudaEventDestroy(ready));
  CHECK(cudaEventDestroy(done));
  CHECK(cudaStreamDestroy(stream));
  if (write(out, &wrong, sizeof wrong) != sizeof wrong) return 1;
  return wrong == 0 ? 0 : 1;
}

int exporter(const char* self) {
  int to_child[2], from_child[2];
  if (pipe(to_child) != 0 || pipe(from_child) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    char in[16], out[16];
    std::snprintf(in, sizeof in, "%d", to_child[0]);
    std::snprintf(out, sizeof out, "%d", from_child[1]);
    execl(self, self, in, out, static_cast<char*>(nullptr));
    _exit(127);
  }
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("device: %s\n", properties.name);
  prepare();
  int* data = nullptr;
  CHECK(cudaMalloc(&data, kCount * sizeof *data));
  CHECK(cudaMemset(data, 0xff, kCount * sizeof *data));
  cudaEvent_t ready, done;
  const unsigned flags = cudaEventInterprocess | cudaEventDisableTiming;
  CHECK(cudaEventCreateWithFlags(&ready, flags));
  CHECK(cudaEventCreateWithFlags(&done, flags));
  fill<<<(kCount + 255) / 256, 256>>>(data, kCount, 100);
  CHECK(cudaEventRecord(ready));
  Message message;
  CHECK(cudaIpcGetMemHandle(&message.memory, data));
  CHECK(cudaIpcGetEventHandle(&message.ready, ready));
  CHECK(cudaIpcGetEventHandle(&message.done, done));
  if (write(to_child[1], &message, sizeof message) != sizeof message) return 1;
  int wrong = -1;
  if (read(from_child[0], &wrong, sizeof wrong) != sizeof wrong) return 1;
  CHECK(cudaEventSynchronize(done));
  if (verify(data, 200, nullptr) != 0 || wrong != 0) return 1;
  std::vector<int> host(kCount);
  CHECK(cudaMemcpy(host.data(), data, kCount * sizeof(int),
                   cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) {
    if (host[i] != i * 3 + 7 + 200) return 1;
  }
  touch_managed<<<1, 1>>>();
  CHECK(cudaDeviceSynchronize());
  if (seen != 6) return 1;
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  CHECK(cudaFree(data));
  CHECK(cudaEventDestroy(ready));
  CHECK(cudaEventDestroy(done));
  std::printf("all data is right\n");
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 3) return importer(std::atoi(argv[1]), std::atoi(argv[2]));
  return exporter(argv[0]);
}
