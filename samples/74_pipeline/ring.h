// A ring of slots in memory that processes share, and the words that
// say which slots are full. Streams wait for the words and write them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../common/check.h"

constexpr int kSlots = 4;
constexpr int kCount = 1 << 16;  ///< values of an item

//! [ring]
constexpr size_t kSlotBytes = kSlots * kCount * sizeof(int);
constexpr size_t kWordBytes = 4096;
constexpr size_t kBytes = 2 << 20;  // a page without other data
static_assert(kSlotBytes + kWordBytes <= kBytes);

struct Ring {
  void* slots;
  void* words;  // how many items were made and taken

  CUdeviceptr made() const {
    return reinterpret_cast<CUdeviceptr>(words);
  }
  CUdeviceptr taken(int consumer) const {
    return made() + (1 + consumer) * sizeof(int);
  }
  int* slot(int item) const {
    return static_cast<int*>(slots) + item % kSlots * kCount;
  }
};

/// Returns the address of the words in the memory of the slots.
inline void* words_after(void* slots) {
  return static_cast<char*>(slots) + kSlotBytes;
}

/// Queues a wait: the stream waits until the word has at least this
/// value.
inline void wait_for(cudaStream_t stream, CUdeviceptr word,
                     int at_least) {
  CU_CHECK(DRIVER(cuStreamWaitValue32)(stream, word, at_least,
                                       CU_STREAM_WAIT_VALUE_GEQ));
}

/// Queues a write of the word, after all earlier work of the stream.
inline void write(cudaStream_t stream, CUdeviceptr word, int value) {
  CU_CHECK(DRIVER(cuStreamWriteValue32)(stream, word, value,
                                        CU_STREAM_WRITE_VALUE_DEFAULT));
}
//! [ring]
