// SPDX-License-Identifier: Apache-2.0
#include "harness/scenario/kernels.h"

namespace ipclab {
namespace {

__global__ void copy_words(uint32_t* to, const uint32_t* from, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}

__global__ void add(unsigned* counter, unsigned times) {
  for (unsigned i = 0; i < times; ++i) atomicAdd_system(counter, 1u);
}

__global__ void write_word(uint32_t* word, uint32_t value) { *word = value; }

}  // namespace

void launch_copy(const Words& to, const Words& from, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((from.count + 255) / 256);
  note_call("copy_words<<<>>>");
  copy_words<<<blocks, 256, 0, stream>>>(to.data, from.data, from.count);
  CALL(cudaGetLastError());
}

void launch_add(unsigned* counter, unsigned times) {
  note_call("add<<<>>>");
  add<<<1, 256>>>(counter, times);
  CALL(cudaGetLastError());
}

void launch_write(uint32_t* word, uint32_t value) {
  note_call("write_word<<<>>>");
  write_word<<<1, 1>>>(word, value);
  const cudaError_t code = cudaGetLastError();
  // If a kernel has already faulted, this reports it.
  if (code != cudaErrorIllegalAddress) CALL(code);
}

void load_kernels() {
  const DeviceBuffer from(4096), to(4096);
  from.fill(pattern("loads the kernels"));
  launch_copy(to, from);
  CALL(cudaDeviceSynchronize());
}

std::string seen_by_kernel(const Words& words, Pattern expected) {
  const DeviceBuffer copy(words.bytes());
  launch_copy(copy, words);
  const cudaError_t code = NOTED(cudaDeviceSynchronize());
  if (code != cudaSuccess) return name_of(code);
  return copy_reads(copy, expected) ? "the values that come later"
                                    : "other values";
}

}  // namespace ipclab
