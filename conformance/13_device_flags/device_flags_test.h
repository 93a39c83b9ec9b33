// What several files of these tests use.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

namespace ipclab {

using Handle = cudaIpcMemHandle_t;

inline constexpr size_t kBytes = 2 << 20;
inline constexpr size_t kWordBytes = 4096;  // of memory for single words

inline constexpr uint32_t kAwaited = 0xA0007;  // more than two bytes can count

inline CUresult wait_for(const Words& word, uint32_t value, cudaStream_t stream,
                         unsigned flags = CU_STREAM_WAIT_VALUE_EQ) {
  return NOTED(
      DRIVER(cuStreamWaitValue32)(stream, address_of(word.data), value, flags));
}

inline CUresult write(const Words& word, uint32_t value, cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWriteValue32)(
      stream, address_of(word.data), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

inline constexpr auto k64Bits =
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;

inline constexpr uint64_t kHigh = uint64_t{1} << 32;

inline CUresult write_64(const Words& word, uint64_t value,
                         cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWriteValue64)(
      stream, address_of(word.data), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

inline CUresult wait_for_64(const Words& word, uint64_t value,
                            cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWaitValue64)(stream, address_of(word.data), value,
                                           CU_STREAM_WAIT_VALUE_EQ));
}

inline void has_to_support(Role& me, CUdevice_attribute which,
                           const char* what) {
  if (attribute(which) == 0)
    me.not_applicable(std::string("the device does not support ") + what);
}

/// A batch of one operation on a word.
inline CUresult batch_of_one(CUstreamBatchMemOpType type, const uint32_t* word,
                             unsigned flags, cudaStream_t stream,
                             uint64_t value = 0) {
  CUstreamBatchMemOpParams one{};
  one.waitValue.operation = type;  // a write has the same fields
  one.waitValue.address = address_of(word);
  one.waitValue.value64 = value;
  one.waitValue.flags = flags;
  return NOTED(DRIVER(cuStreamBatchMemOp)(stream, 1, &one, 0));
}

inline void clear(const Words& word) {
  CALL(cudaMemset(word.data, 0, word.bytes()));
  CALL(cudaDeviceSynchronize());
}

/// Streams of every kind. A test that lets the legacy default stream wait makes
/// no call that waits for this stream.
class EveryStream {
 public:
  EveryStream()
      : all{first_,  blocking_,        urgent_,
            nullptr, cudaStreamLegacy, cudaStreamPerThread} {}

 private:
  const Stream first_, urgent_{Stream::Kind::kUrgent};
  const Stream blocking_{Stream::Kind::kBlocking};

 public:
  const std::array<cudaStream_t, 6> all;
};

/// In each of two threads, every stream writes the first word of `words` twice.
inline void write_in_every_stream(
    const Words& words,
    const std::function<CUresult(cudaStream_t stream)>& writes_awaited) {
  const EveryStream streams;
  in_two_threads([&](int thread) {
    SCOPED_TRACE(thread == 0 ? "in the first thread" : "in another thread");
    for (const cudaStream_t stream : streams.all)
      for (int times = 0; times < 2; ++times) {
        clear(words);
        EXPECT_SUCCESS(writes_awaited(stream));
        EXPECT_TRUE(passes(stream));
        uint32_t seen = 0;
        CALL(cudaMemcpy(&seen, words.data, sizeof seen, cudaMemcpyDefault));
        EXPECT_EQ(seen, kAwaited);
      }
  });
}

/// Every stream waits for the first word of `word`, one of them by a call of
/// another thread. Then a stream that does not wait writes the word. The
/// default streams then wait alone, because they also wait for each other.
inline void wait_in_every_stream(
    const Words& word,
    const std::function<CUresult(cudaStream_t stream)>& wait_for_awaited) {
  const EveryStream streams;
  const Stream writes;
  const auto all_wait = [&](const auto& waiting) {
    clear(word);
    size_t count = 0;
    for (const cudaStream_t each : waiting) {
      const auto wait = [&] { return wait_for_awaited(each); };
      EXPECT_SUCCESS(++count == 2 ? in_a_thread(wait) : wait());
    }
    EXPECT_TRUE(is_held(*std::begin(waiting)));
    for (const cudaStream_t each : waiting)
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(each));
    EXPECT_SUCCESS(write(word, kAwaited, writes));
    for (const cudaStream_t each : waiting) EXPECT_TRUE(passes(each));
  };
  std::vector<cudaStream_t> waiting(streams.all.begin(), streams.all.end());
  // cudaStreamLegacy is another name of the null stream.
  waiting.erase(std::find(waiting.begin(), waiting.end(), cudaStreamLegacy));
  all_wait(waiting);
  for (const cudaStream_t alone :
       {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread})
    all_wait(std::array{alone});
}

/// A condition with its value, a value of the word at which the condition holds
/// a stream, and a value at which the condition lets the stream pass.
struct Condition {
  const char* name;
  unsigned flags;
  uint32_t value, holds, lets_pass;
};

/// Reads a value at an address of the device, without a wait for a stream of
/// the test.
template <class T = uint32_t>
T value_at(const uint32_t* address) {
  T value{};
  CALL(cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

/// Of two waits directly one after another, each holds the stream.
inline void expect_both_waits_hold(
    const Words& words,
    const std::function<void(const Words (&pair)[2], cudaStream_t stream)>&
        wait_for_both) {
  const Words pair[2] = {{words.data, sizeof(uint32_t)},
                         {words.data + 8, sizeof(uint32_t)}};
  for (const int last : {0, 1}) {
    SCOPED_TRACE(last == 0 ? "without the first word" : "without the second");
    const Stream waits, writes;
    for (const Words& each : pair) clear(each);
    wait_for_both(pair, waits);
    EXPECT_SUCCESS(write(pair[1 - last], kAwaited, writes));
    EXPECT_TRUE(passes(writes));
    EXPECT_TRUE(is_held(waits));
    EXPECT_SUCCESS(write(pair[last], kAwaited, writes));
    EXPECT_TRUE(passes(waits));
  }
}

/// How a stream waits for a word, or writes it.
using WordCall = std::function<CUresult(const Words& word, uint32_t value,
                                        cudaStream_t stream)>;

/// A stream waits for a word in pinned host memory, of 32 or 64 bits, and then
/// writes this word.
inline void expect_word_on_host(const WordCall& waits, const WordCall& writes,
                                bool registered = false) {
  SCOPED_TRACE(registered ? "registered host memory" : "pinned host memory");
  void* host = nullptr;
  void* device = nullptr;
  if (registered) {
    host = std::aligned_alloc(kWordBytes, kWordBytes);
    CALL(cudaHostRegister(host, kWordBytes, cudaHostRegisterMapped));
  } else {
    CALL(cudaHostAlloc(&host, kWordBytes, cudaHostAllocMapped));
  }
  CALL(cudaHostGetDevicePointer(&device, host, 0));
  const size_t at = registered ? 0 : 514;  // the first word, or a word inside
  auto* const seen = static_cast<volatile uint32_t*>(host) + at;
  seen[0] = 0;
  seen[1] = 0;
  const Words word(static_cast<uint32_t*>(device) + at, 8);
  const Stream stream;
  EXPECT_SUCCESS(waits(word, kAwaited, stream));
  EXPECT_TRUE(is_held(stream));
  seen[0] = kAwaited;
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(writes(word, kAwaited + 1, stream));
  ASSERT_TRUE(passes(stream));
  EXPECT_EQ(seen[0], kAwaited + 1);
  EXPECT_EQ(seen[1], 0u);
  CALL(registered ? cudaHostUnregister(host) : cudaFreeHost(host));
  if (registered) std::free(host);
}

struct Case64 {
  const char* name;
  unsigned flags;
  uint64_t value, holds, lets_pass;
};

inline constexpr Case64 kCases64[] = {
    {"greater in the upper half", CU_STREAM_WAIT_VALUE_GEQ, 5 * kHigh,
     4 * kHigh + 9, 6 * kHigh},
    {"greater in the lower half", CU_STREAM_WAIT_VALUE_GEQ, 5 * kHigh + 7,
     5 * kHigh + 6, 5 * kHigh + 8},
    {"equal is enough", CU_STREAM_WAIT_VALUE_GEQ, 5 * kHigh, 4 * kHigh,
     5 * kHigh},
    {"greater after the wrap", CU_STREAM_WAIT_VALUE_GEQ, ~uint64_t{1},
     ~uint64_t{2}, 1},
    {"greater than the largest signed number", CU_STREAM_WAIT_VALUE_GEQ,
     ~uint64_t{0} >> 1, (~uint64_t{0} >> 1) - 1, (~uint64_t{0} >> 1) + 1},
    {"not greater beyond 31 bits", CU_STREAM_WAIT_VALUE_GEQ, 3 * (kHigh / 2), 1,
     3 * (kHigh / 2) + 1},
    {"equal in both halves", CU_STREAM_WAIT_VALUE_EQ, 5 * kHigh + 7,
     6 * kHigh + 7, 5 * kHigh + 7},
    {"a common bit of the upper half", CU_STREAM_WAIT_VALUE_AND, 6 * kHigh,
     9 * kHigh + 6, 2 * kHigh},
    {"half of all numbers away", CU_STREAM_WAIT_VALUE_GEQ, 0, uint64_t{1} << 63,
     ~uint64_t{0} >> 1},
    {"the highest bit", CU_STREAM_WAIT_VALUE_AND, uint64_t{1} << 63,
     ~uint64_t{0} >> 1, uint64_t{1} << 63},
};

using Operation = CUstreamBatchMemOpParams;

inline Operation writing(CUstreamBatchMemOpType type, const uint32_t* word,
                         uint64_t value) {
  Operation one{};
  one.writeValue.operation = type;
  one.writeValue.address = address_of(word);
  one.writeValue.value64 = value;
  return one;
}

inline Operation waiting_for(const uint32_t* word, uint32_t value) {
  Operation one{};
  one.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  one.waitValue.address = address_of(word);
  one.waitValue.value = value;
  one.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return one;
}

inline CUresult batch(std::vector<Operation> operations, cudaStream_t stream,
                      unsigned flags = 0) {
  return NOTED(DRIVER(cuStreamBatchMemOp)(
      stream, static_cast<unsigned>(operations.size()), operations.data(),
      flags));
}

inline CUresult waits_by_batch(const Words& word, uint32_t value,
                               cudaStream_t stream) {
  return batch({waiting_for(word.data, value)}, stream);
}

inline CUresult writes_by_batch(const Words& word, uint32_t value,
                                cudaStream_t stream) {
  return batch({writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, word.data, value)},
               stream);
}

}  // namespace ipclab
