// SPDX-License-Identifier: Apache-2.0
// Short forms of CUDA calls for the model's tests.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ipclab::model::test {

/// A kernel of kernels.cu in the current context.
CUfunction kernel(const char* name);

template <typename... Arguments>
CUresult launch(const char* name, unsigned blocks, unsigned threads,
                CUstream stream, Arguments... arguments) {
  void* pointers[] = {&arguments..., nullptr};
  return cuLaunchKernel(kernel(name), blocks, 1, 1, threads, 1, 1, 0, stream,
                        pointers, nullptr);
}

template <typename T>
T* allocate(size_t count) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(pointer);
}

template <typename T>
std::vector<T> read_back(const T* device, size_t count) {
  std::vector<T> host(count);
  EXPECT_EQ(cudaMemcpy(host.data(), device, count * sizeof(T),
                       cudaMemcpyDeviceToHost),
            cudaSuccess);
  return host;
}

/// The number of elements that differ from the values of the kernel `fill`. A
/// kernel counts them.
int wrong_elements(const int* device, int count, int value);

/// A pinned word that host and kernels share. Its first value is 0.
int* shared_word();
inline void release(int* word) { __atomic_store_n(word, 1, __ATOMIC_RELEASE); }

cudaStream_t stream_with(unsigned flags);

/// Holds a stream until let_go(). Without a latch, a test could pass because
/// the stream is fast.
class Latch {
 public:
  explicit Latch(cudaStream_t stream);
  ~Latch();
  void let_go() { release(word_); }

 private:
  int* word_;
  cudaStream_t stream_;
};

inline cudaIpcMemHandle_t memory_handle(void* pointer) {
  cudaIpcMemHandle_t handle{};
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, pointer), cudaSuccess);
  return handle;
}

}  // namespace ipclab::model::test
