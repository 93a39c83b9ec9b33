// SPDX-License-Identifier: Apache-2.0
#include "ways.h"

#include <vector>

namespace ipclab {
namespace {

enum Way { kKernel, kCopy, kAsynchronousCopy, kMemset };

Words quarter(const Words& words, Way way) {
  Words part;
  part.count = words.count / 4;
  part.data = words.data + way * part.count;
  return part;
}

// cudaMemset writes one byte; never 0, and never the poison.
unsigned char byte_of(Pattern pattern) {
  return static_cast<unsigned char>(1 + pattern.key % 200);
}

std::vector<uint32_t> words_of(Pattern pattern, size_t count) {
  std::vector<uint32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = pattern.at(i);
  return values;
}

testing::AssertionResult asynchronous_copy_reads(const Words& words,
                                                 Pattern pattern) {
  std::vector<uint32_t> seen(words.count, 0xA5A5A5A5);
  CALL(cudaMemcpyAsync(seen.data(), words.data, words.bytes(),
                       cudaMemcpyDefault, nullptr));
  CALL(cudaStreamSynchronize(nullptr));
  if (seen == words_of(pattern, words.count))
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "cudaMemcpyAsync reads other values";
}

testing::AssertionResult holds_byte(const Words& words, unsigned char byte) {
  std::vector<unsigned char> seen(words.bytes(), 0xA5);
  CALL(cudaMemcpy(seen.data(), words.data, seen.size(), cudaMemcpyDefault));
  if (seen == std::vector<unsigned char>(seen.size(), byte))
    return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "the bytes are not those of cudaMemset: the first is "
         << int{seen[0]} << ", not " << int{byte};
}

}  // namespace

void write_in_every_way(const Words& words, Pattern pattern) {
  quarter(words, kKernel).fill(pattern);
  const Words copied = quarter(words, kCopy);
  const std::vector<uint32_t> values = words_of(pattern, copied.count);
  CALL(cudaMemcpy(copied.data, values.data(), copied.bytes(),
                  cudaMemcpyDefault));
  CALL(cudaMemcpyAsync(quarter(words, kAsynchronousCopy).data, values.data(),
                       copied.bytes(), cudaMemcpyDefault, nullptr));
  CALL(cudaMemset(quarter(words, kMemset).data, byte_of(pattern),
                  copied.bytes()));
  CALL(cudaDeviceSynchronize());
}

testing::AssertionResult reads_in_every_way(const Words& words,
                                            Pattern pattern) {
  static constexpr const char* kWritten[] = {"a kernel", "cudaMemcpy",
                                             "cudaMemcpyAsync"};
  for (const Way way : {kKernel, kCopy, kAsynchronousCopy})
    for (const auto reads :
         {&kernel_reads, &copy_reads, &asynchronous_copy_reads}) {
      testing::AssertionResult result = reads(quarter(words, way), pattern);
      if (!result)
        return result << ", of what was written by " << kWritten[way];
    }
  return holds_byte(quarter(words, kMemset), byte_of(pattern));
}

}  // namespace ipclab
