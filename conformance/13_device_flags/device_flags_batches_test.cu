// Batches of operations on words.
// Mirror of samples/13_device_flags.
//
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "conformance/13_device_flags/device_flags_test.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

// A wait in a batch has the conditions of a single wait.
static void expect_conditions_in_a_batch(const Words& word) {
  const Stream waits, writes;
  const Condition conditions[] = {
      {"greater", CU_STREAM_WAIT_VALUE_GEQ, 2, 1, 4},
      {"a common bit", CU_STREAM_WAIT_VALUE_AND, 2, 4, 3},
      {"greater than the largest signed number", CU_STREAM_WAIT_VALUE_GEQ,
       0x7FFFFFFF, 0x7FFFFFFE, 0x80000000}};
  for (const Condition& one : conditions) {
    SCOPED_TRACE(one.name);
    EXPECT_SUCCESS(write(word, one.holds, writes));
    EXPECT_TRUE(passes(writes));
    Operation wait = waiting_for(word.data, one.value);
    wait.waitValue.flags = one.flags;
    EXPECT_SUCCESS(batch({wait}, waits));
    EXPECT_TRUE(is_held(waits));
    EXPECT_SUCCESS(write(word, one.lets_pass, writes));
    EXPECT_TRUE(passes(waits));
    EXPECT_SUCCESS(write(word, one.value, writes));  // ends any other wait
    ASSERT_TRUE(passes(waits));
  }
}

// A batch whose operations use opened memory and memory of this process, in
// both orders.
static void expect_two_memories_in_a_batch(const Words& opened) {
  constexpr auto kWrite = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  const DeviceBuffer own(kWordBytes);
  const Stream waits, writes;
  for (const bool own_first : {true, false}) {
    SCOPED_TRACE(own_first ? "its own word first" : "an opened word first");
    const Words first(own_first ? own.data : opened.data, kWordBytes);
    const Words second(own_first ? opened.data : own.data, kWordBytes);
    clear(first);
    clear(second);
    EXPECT_SUCCESS(
        batch({writing(kWrite, first.data, 1), writing(kWrite, second.data, 2),
               waiting_for(second.data + 4, kAwaited),
               writing(kWrite, second.data + 8, 3),
               writing(kWrite, first.data + 8, 4)},
              waits));
    EXPECT_TRUE(is_held(waits));
    EXPECT_EQ(value_at(first.data), 1u);
    EXPECT_EQ(value_at(second.data), 2u);
    EXPECT_EQ(value_at(first.data + 8), 0u) << "the wait does not hold it";
    EXPECT_EQ(value_at(second.data + 8), 0u) << "the wait does not hold it";
    EXPECT_SUCCESS(
        write({second.data + 4, sizeof(uint32_t)}, kAwaited, writes));
    EXPECT_TRUE(passes(waits));
    EXPECT_EQ(value_at(second.data + 8), 3u);
    EXPECT_EQ(value_at(first.data + 8), 4u);
  }
}

// An operation of 32 bits uses `value`, which is one half of the union with
// `value64`. The other half means nothing.
static void expect_32_bits_in_a_batch(const Words& words) {
  constexpr uint64_t kValue = 9 * kHigh + kAwaited;
  const Words word(words.data + 4, sizeof(uint32_t));
  const Stream waits, writes;
  CALL(cudaMemset(word.data - 1, 0x3C, 3 * sizeof(uint32_t)));
  CALL(cudaDeviceSynchronize());
  Operation wait = waiting_for(word.data, 0);
  wait.waitValue.value64 = kValue;
  EXPECT_SUCCESS(batch({wait}, waits));
  EXPECT_TRUE(is_held(waits));
  EXPECT_SUCCESS(batch(
      {writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, word.data, kValue)}, writes));
  EXPECT_TRUE(passes(writes));
  EXPECT_TRUE(passes(waits));
  uint32_t seen[3] = {};
  CALL(cudaMemcpy(seen, word.data - 1, sizeof seen, cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen[0], 0x3C3C3C3Cu) << "the word before it";
  EXPECT_EQ(seen[1], kAwaited);
  EXPECT_EQ(seen[2], 0x3C3C3C3Cu) << "the word after it";
}

// An importer whose batches first write a value other than the awaited value.
static void opens_the_gate_by_batches(Role& me) {
  LegacyMapping mapping(me.receive<Handle>("words"), kBytes);
  const Stream stream, second;
  for (const cudaStream_t each : {cudaStream_t{stream}, cudaStream_t{second}}) {
    const auto write_by_batch = [&](uint32_t value) {
      EXPECT_SUCCESS(batch(
          {writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, mapping.data + 4, value)},
          each));
      EXPECT_TRUE(passes(each));
    };
    me.wait("held");
    write_by_batch(kAwaited + 1);
    me.signal("written beyond");
    me.wait("still held");
    write_by_batch(kAwaited);
    EXPECT_TRUE(passes(each));
    me.signal("opened");
  }
  // A batch of the importer waits for the last word and writes the word before
  // it.
  const Words last(mapping.data + mapping.count - 1, sizeof(uint32_t));
  EXPECT_SUCCESS(
      batch({waiting_for(last.data, kAwaited),
             writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, last.data - 1, 7)},
            stream));
  EXPECT_TRUE(is_held(stream));
  EXPECT_EQ(value_at(last.data - 1), 0u);
  me.signal("the importer waits");
  EXPECT_TRUE(passes(stream));
  EXPECT_EQ(value_at(last.data - 1), 7u);
  const Words inside(mapping.data + mapping.count / 2, kWordBytes);
  expect_conditions_in_a_batch(inside);
  expect_two_memories_in_a_batch(inside);
  mapping.close();
  me.signal("closed");
}

TEST(DeviceFlags, ABatchIsDoneInTheOrderOfItsArray) {
  covers("FLAG-09");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const bool has_64_bits = attribute(k64Bits) != 0;
    constexpr auto kWrite = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    const auto wide = has_64_bits ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : kWrite;
    const uint64_t last = has_64_bits ? 9 * kHigh + 9 : 9;
    const DeviceBuffer words(kBytes);
    clear(words);
    uint32_t* const state = words.data;
    uint32_t* const gate = words.data + 4;
    uint32_t* const end = words.data + 8;
    me.send("words", words.legacy_handle());
    const Stream streams[2];
    for (const Stream& stream : streams) {
      clear(words);
      EXPECT_SUCCESS(
          batch({writing(kWrite, state, 1), waiting_for(gate, kAwaited),
                 writing(kWrite, state, 2), writing(wide, end, last)},
                stream));
      EXPECT_TRUE(is_held(stream));
      EXPECT_EQ(value_at(state), 1u);
      EXPECT_EQ(value_at(end), 0u) << "the last operation is done first";
      me.signal("held");
      me.wait("written beyond");
      EXPECT_TRUE(is_held(stream)) << "a wait for equality goes on";
      EXPECT_EQ(value_at(state), 1u);
      me.signal("still held");
      EXPECT_TRUE(passes(stream));
      EXPECT_EQ(value_at(state), 2u);
      EXPECT_EQ(value_at<uint64_t>(end), last);
      me.wait("opened");
    }
    // The documentation: "Reserved for future expansion; must be 0".
    for (const unsigned flags : {1u, 2u, 1u << 31})
      EXPECT_REFUSED(batch({writing(kWrite, state, 3)}, streams[0], flags),
                     CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_TRUE(passes(streams[0]));
    EXPECT_EQ(value_at(state), 2u) << "a batch that was refused";
    EXPECT_TRUE(context_is_usable());
    me.wait("the importer waits");
    EXPECT_SUCCESS(write({words.data + words.count - 1, sizeof(uint32_t)},
                         kAwaited, streams[0]));
    EXPECT_TRUE(passes(streams[0]));
    me.wait("closed");
  });
  scenario.role("importer", opens_the_gate_by_batches);
  scenario.run(20s);
}

// Each of two waits in a batch holds what comes after it, and has a condition
// of its own.
static void expect_each_wait_of_a_batch(const Words& words) {
  constexpr auto kWrite = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  uint32_t* const after_first = words.data + 2;
  const Words second(words.data + 4, sizeof(uint32_t));
  uint32_t* const after_second = words.data + 6;
  const Stream waits, writes;
  clear(words);
  Operation common_bit = waiting_for(second.data, 6);
  common_bit.waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
  EXPECT_SUCCESS(
      batch({waiting_for(words.data, kAwaited), writing(kWrite, after_first, 1),
             common_bit, writing(kWrite, after_second, 2)},
            waits));
  EXPECT_TRUE(is_held(waits));
  EXPECT_EQ(value_at(after_first), 0u) << "the first wait does not hold";
  EXPECT_SUCCESS(write(words, kAwaited, writes));
  EXPECT_TRUE(is_held(waits)) << "by the second wait";
  EXPECT_EQ(value_at(after_first), 1u);
  EXPECT_EQ(value_at(after_second), 0u) << "the second wait does not hold";
  EXPECT_SUCCESS(write(second, 2, writes));
  EXPECT_TRUE(passes(waits)) << "a common bit is enough";
  EXPECT_EQ(value_at(after_second), 2u);
  EXPECT_SUCCESS(write(second, 6, writes));  // ends a wait for equality
  ASSERT_TRUE(passes(waits));
}

// "The operations are enqueued in the order they appear in the array": the last
// of several writes of a word counts, whatever their sizes are.
static void expect_last_write_of_a_batch(const Words& word) {
  const Stream stream;
  const auto narrow = [&](uint32_t* address, uint32_t value) {
    return writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value);
  };
  Operation wide = writing(CU_STREAM_MEM_OP_WRITE_VALUE_64, word.data, 0);
  wide.writeValue.value64 = 9 * kHigh + 9;
  clear(word);
  EXPECT_SUCCESS(
      batch({narrow(word.data, 1), narrow(word.data, 2), narrow(word.data, 3)},
            stream));
  EXPECT_TRUE(passes(stream));
  EXPECT_EQ(value_at(word.data), 3u);
  EXPECT_SUCCESS(batch({wide, narrow(word.data + 1, 5)}, stream));
  EXPECT_TRUE(passes(stream));
  EXPECT_EQ(value_at<uint64_t>(word.data), 5 * kHigh + 9);
  EXPECT_SUCCESS(batch({narrow(word.data + 1, 6), wide}, stream));
  EXPECT_TRUE(passes(stream));
  EXPECT_EQ(value_at<uint64_t>(word.data), 9 * kHigh + 9);
}

// A wait for 64 bits in a batch has the conditions of a single wait.
static void expect_conditions_64_in_a_batch(const Words& word) {
  const Stream waits, writes;
  const auto holds_then_passes = [&](const Case64& one) {
    SCOPED_TRACE(one.name);
    Operation wide = waiting_for(word.data, 0);
    wide.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    wide.waitValue.value64 = one.value;
    wide.waitValue.flags = one.flags;
    EXPECT_SUCCESS(write_64(word, one.holds, writes));
    EXPECT_TRUE(passes(writes));
    EXPECT_SUCCESS(batch({wide}, waits));
    EXPECT_TRUE(is_held(waits));
    EXPECT_SUCCESS(write_64(word, one.lets_pass, writes));
    EXPECT_TRUE(passes(waits));
    EXPECT_SUCCESS(write_64(word, one.value, writes));  // ends other waits
    ASSERT_TRUE(passes(waits));
  };
  for (const Case64& one : kCases64) holds_then_passes(one);
  if (attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR) == 0) return;
  holds_then_passes({"a bit that is missing in both", CU_STREAM_WAIT_VALUE_NOR,
                     ~(uint64_t{6} * kHigh), 15 * kHigh, 2 * kHigh});
}

// Two threads queue batches in every stream. One more batch has words of 64
// bits.
TEST(DeviceFlags, EveryStreamAndThreadHasBatches) {
  covers("FLAG-09");
  needs(gpus(1), progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer words(kWordBytes);
    write_in_every_stream(words, [&](cudaStream_t stream) {
      return batch(
          {writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, words.data + 2, 1),
           writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, words.data, kAwaited)},
          stream);
    });
    wait_in_every_stream(words, [&](cudaStream_t stream) {
      return batch({waiting_for(words.data, kAwaited)}, stream);
    });
    for (const bool registered : {false, true})
      expect_word_on_host(waits_by_batch, writes_by_batch, registered);
    expect_conditions_in_a_batch(words);
    expect_last_write_of_a_batch(words);
    expect_each_wait_of_a_batch(words);
    expect_both_waits_hold(words, [](const auto& pair, cudaStream_t stream) {
      EXPECT_SUCCESS(batch({waiting_for(pair[0].data, kAwaited),
                            waiting_for(pair[1].data, kAwaited)},
                           stream));
    });
    expect_32_bits_in_a_batch(words);
    if (attribute(k64Bits) == 0) return;
    expect_conditions_64_in_a_batch(words);
    clear(words);
    const Stream waits, writes;
    constexpr auto kWide = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    Operation wide = waiting_for(words.data, 0);
    wide.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    wide.waitValue.value64 = 5 * kHigh + 7;
    EXPECT_SUCCESS(write_64(words, 7, writes));
    EXPECT_TRUE(passes(writes));
    EXPECT_SUCCESS(batch({wide, writing(kWide, words.data + 4, 3 * kHigh),
                          writing(kWide, words.data + 8, 4 * kHigh)},
                         waits));
    EXPECT_TRUE(is_held(waits)) << "by the upper half";
    EXPECT_SUCCESS(write_64(words, 5 * kHigh + 7, writes));
    EXPECT_TRUE(passes(waits));
    EXPECT_EQ(value_at<uint64_t>(words.data + 4), 3 * kHigh);
    EXPECT_EQ(value_at<uint64_t>(words.data + 8), 4 * kHigh);
  });
  scenario.run(30s);
}

// The documentation of the number of operations: "Must be less than 256"
TEST(DeviceFlags, ABatchHasRoomFor255Operations) {
  covers("FLAG-09");
  needs(gpus(1), progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    constexpr uint32_t kMost = 255;
    const DeviceBuffer words(kWordBytes);
    clear(words);
    const Stream stream;
    std::vector<Operation> all;
    for (uint32_t i = 0; i < kMost; ++i)
      all.push_back(
          writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, words.data + i, i + 1));
    EXPECT_SUCCESS(batch(all, stream));
    EXPECT_TRUE(passes(stream));
    std::vector<uint32_t> seen(kMost + 1);
    CALL(cudaMemcpy(seen.data(), words.data, seen.size() * sizeof(uint32_t),
                    cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < kMost; ++i)
      EXPECT_EQ(seen[i], i + 1) << "operation " << i;
    EXPECT_EQ(seen[kMost], 0u) << "the word after them";
    all.push_back(
        writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, words.data + kMost, 1));
    EXPECT_REFUSED(batch(all, stream), CUDA_ERROR_INVALID_VALUE,
                   CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_TRUE(passes(stream));
    EXPECT_EQ(value_at(words.data + kMost), 0u) << "a batch that was refused";
    // Also where the lowest bits of the count are a small number.
    for (const size_t count : {257, 511, 512, 65'537}) {
      SCOPED_TRACE(count);
      clear(words);
      all.resize(count, all.front());
      EXPECT_REFUSED(batch(all, stream), CUDA_ERROR_INVALID_VALUE,
                     CUDA_ERROR_NOT_SUPPORTED);
      EXPECT_TRUE(passes(stream));
      EXPECT_EQ(value_at(words.data), 0u) << "a batch that was refused";
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}
