// Exercise 77: predict the neighbours.
//
// A handle maps whole blocks of 2 MiB. So an importer can also use
// other allocations in these blocks. Which allocations lie in one
// block? Write kYes or kNo for each question, and then run the program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kTwoOf4KiB = kUnknown;
constexpr Answer kTwoOf2MiB = kUnknown;
constexpr Answer kOneOfEach = kUnknown;

constexpr size_t kBlock = 2 << 20;

bool share_a_block(size_t one, size_t other) {
  void *a = nullptr, *b = nullptr;
  CUDA_CHECK(cudaMalloc(&a, one));
  CUDA_CHECK(cudaMalloc(&b, other));
  const auto block = [](void* data) {
    return reinterpret_cast<uintptr_t>(data) / kBlock;
  };
  const bool same = block(a) == block(b);
  CUDA_CHECK(cudaFree(b));
  CUDA_CHECK(cudaFree(a));
  return same;
}

int main() {
  require_gpus(1);
  require_legacy_ipc();

  bool good = predicted("Two of 4 KiB. In one block?", kTwoOf4KiB,
                        share_a_block(4 << 10, 4 << 10));
  good &= predicted("Two of 2 MiB. In one block?", kTwoOf2MiB,
                    share_a_block(kBlock, kBlock));
  good &= predicted("One of 4 KiB, one of 2 MiB. In one block?",
                    kOneOfEach, share_a_block(4 << 10, kBlock));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
