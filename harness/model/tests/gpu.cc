// SPDX-License-Identifier: Apache-2.0
// Short forms of CUDA calls for the model's tests.
#include "gpu.h"

#include <map>

namespace ipclab::model::test {

CUfunction kernel(const char* name) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);  // makes a context
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  unsigned long long id = 0;
  cuCtxGetId(context, &id);
  static std::map<unsigned long long, CUmodule> modules;
  CUmodule& module = modules[id];
  if (module == nullptr) {
    EXPECT_EQ(cuModuleLoad(&module, IPCLAB_TEST_PTX), CUDA_SUCCESS);
  }
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
  return function;
}

int wrong_elements(const int* device, int count, int value) {
  int* errors = allocate<int>(1);
  EXPECT_EQ(cudaMemset(errors, 0, sizeof *errors), cudaSuccess);
  EXPECT_EQ(launch("count_errors", (count + 255) / 256, 256, nullptr, device,
                   count, value, errors),
            CUDA_SUCCESS);
  const int found = read_back(errors, 1)[0];
  EXPECT_EQ(cudaFree(errors), cudaSuccess);
  return found;
}

int* shared_word() {
  void* word = nullptr;
  EXPECT_EQ(cudaMallocHost(&word, sizeof(int)), cudaSuccess);
  *static_cast<int*>(word) = 0;
  return static_cast<int*>(word);
}

cudaStream_t stream_with(unsigned flags) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
  return stream;
}

Latch::Latch(cudaStream_t stream) : word_(shared_word()), stream_(stream) {
  EXPECT_EQ(launch("spin_until", 1, 1, stream, word_, 1), CUDA_SUCCESS);
}

Latch::~Latch() {
  let_go();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(word_), cudaSuccess);
}

}  // namespace ipclab::model::test
