// Words of 64 bits, and the condition NOR.
// Mirror of samples/13_device_flags.
//
// SPDX-License-Identifier: Apache-2.0

#include "conformance/13_device_flags/device_flags_test.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

// Judges that a word of 64 bits holds a stream and then lets the stream pass.
void expect_64(const Case64& one, const Words& word, cudaStream_t waits,
               cudaStream_t writes) {
  SCOPED_TRACE(one.name);
  EXPECT_SUCCESS(write_64(word, one.holds, writes));
  EXPECT_TRUE(passes(writes));
  EXPECT_EQ(value_at<uint64_t>(word.data), one.holds);
  EXPECT_EQ(value_at(word.data + 2), 0u) << "the word after it";
  EXPECT_SUCCESS(NOTED(DRIVER(cuStreamWaitValue64)(waits, address_of(word.data),
                                                   one.value, one.flags)));
  EXPECT_TRUE(is_held(waits));
  EXPECT_SUCCESS(write_64(word, one.lets_pass, writes));
  EXPECT_TRUE(passes(waits));
  // Each condition is true for its own value, so no stream waits at the end.
  CALL(cudaMemcpy(word.data, &one.value, sizeof one.value,
                  cudaMemcpyHostToDevice));
  CALL(cudaStreamSynchronize(nullptr));  // the copy may return before its end
  ASSERT_TRUE(passes(waits));
}

}  // namespace

TEST(DeviceFlags, WordsOf64BitsAreComparedAsAWhole) {
  covers("FLAG-07");
  needs(gpus(1), progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    has_to_support(me, k64Bits, "words of 64 bits");
    const DeviceBuffer word(kWordBytes);
    clear(word);
    const Stream waits, writes;
    for (const Case64& one : kCases64) expect_64(one, word, waits, writes);
    write_in_every_stream(word, [&](cudaStream_t stream) {
      return write_64(word, kAwaited, stream);
    });
    wait_in_every_stream(word, [&](cudaStream_t stream) {
      return NOTED(DRIVER(cuStreamWaitValue64)(
          stream, address_of(word.data), kAwaited, CU_STREAM_WAIT_VALUE_EQ));
    });

    clear(word);
    Latch latch;
    latch.hold(writes);
    EXPECT_SUCCESS(write_64(word, 7 * kHigh + 7, writes));
    EXPECT_TRUE(is_held(writes));
    EXPECT_EQ(value_at<uint64_t>(word.data), 0u) << "written before its turn";
    EXPECT_SUCCESS(write_64({word.data + 4, 8}, 5 * kHigh, waits));
    EXPECT_TRUE(passes(waits)) << "a stream beside the one that is held";
    EXPECT_EQ(value_at<uint64_t>(word.data + 4), 5 * kHigh);
    latch.release();
    EXPECT_TRUE(passes(writes));
    EXPECT_EQ(value_at<uint64_t>(word.data), 7 * kHigh + 7);
    for (const bool registered : {false, true})
      expect_word_on_host(wait_for_64, write_64, registered);
  });
  scenario.run(30s);
}

static Words last_of_64_bits(const Words& memory) {
  return {memory.data + memory.count - 2, sizeof(uint64_t)};
}

TEST(DeviceFlags, AWordOf64BitsOrdersTwoProcesses) {
  covers("FLAG-07");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    has_to_support(me, k64Bits, "words of 64 bits");
    const DeviceBuffer buffer(kBytes);
    clear(buffer);
    const Stream stream;
    const Words last = last_of_64_bits(buffer);
    me.send("word", buffer.legacy_handle());
    me.wait("importer waits");
    EXPECT_SUCCESS(write_64(last, 3 * kHigh, stream));
    EXPECT_TRUE(passes(stream));
    me.wait("closed");
    EXPECT_EQ(value_at<uint64_t>(last.data), 4 * kHigh + 4)
        << "the importer's word";
  });
  scenario.role("importer", [](Role& me) {
    has_to_support(me, k64Bits, "words of 64 bits");
    LegacyMapping mapping(me.receive<Handle>("word"), kBytes);
    const Words last = last_of_64_bits(mapping);
    const Stream waiting[2];
    for (const Stream& each : waiting)
      EXPECT_SUCCESS(wait_for_64(last, 3 * kHigh, each));
    for (const Stream& each : waiting) EXPECT_TRUE(is_held(each));
    me.signal("importer waits");
    for (const Stream& each : waiting) EXPECT_TRUE(passes(each));
    EXPECT_SUCCESS(write_64(last, 4 * kHigh + 4, waiting[0]));
    EXPECT_TRUE(passes(waiting[0]));
    const Words inside(mapping.data + mapping.count / 2, sizeof(uint64_t));
    for (const Case64& one : kCases64)
      expect_64(one, inside, waiting[0], waiting[1]);
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

// The stream passes if bit 1 or bit 2 of the word is 0: first neither bit is 0,
// then one of them is.
static void a_missing_bit_lets_pass(const Words& word) {
  const Stream waits, writes;
  for (const bool by_batch : {false, true}) {
    SCOPED_TRACE(by_batch ? "in a batch" : "alone");
    EXPECT_SUCCESS(write(word, 15, writes));
    EXPECT_TRUE(passes(writes));
    EXPECT_SUCCESS(by_batch
                       ? batch_of_one(CU_STREAM_MEM_OP_WAIT_VALUE_32, word.data,
                                      CU_STREAM_WAIT_VALUE_NOR, waits, ~6u)
                       : wait_for(word, ~6u, waits, CU_STREAM_WAIT_VALUE_NOR));
    EXPECT_TRUE(is_held(waits));
    EXPECT_SUCCESS(write(word, 2, writes));
    EXPECT_TRUE(passes(waits));
    clear(word);  // both are 0, so no stream waits at the end
    ASSERT_TRUE(passes(waits));
  }
  if (attribute(k64Bits) == 0) return;
  for (const bool upper : {false, true}) {
    SCOPED_TRACE(upper ? "the upper half" : "the lower half");
    const uint64_t one = upper ? kHigh : 1, other = upper ? 1 : kHigh;
    // Bit 3 of the other half becomes 0 only at the end. Then a stream that
    // looks at the wrong half goes on, too.
    EXPECT_SUCCESS(write_64(word, 15 * one + 8 * other, writes));
    EXPECT_TRUE(passes(writes));
    EXPECT_SUCCESS(NOTED(DRIVER(cuStreamWaitValue64)(
        waits, address_of(word.data), ~(6 * one + 8 * other),
        CU_STREAM_WAIT_VALUE_NOR)));
    EXPECT_TRUE(is_held(waits));
    EXPECT_SUCCESS(write_64(word, 2 * one + 8 * other, writes));
    EXPECT_TRUE(passes(waits));
    clear(word);
    ASSERT_TRUE(passes(waits));
  }
}

TEST(DeviceFlags, ABitMayBeMissingInBoth) {
  covers("FLAG-08");
  needs(gpus(1), progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    has_to_support(me, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR,
                   "the condition NOR");
    const DeviceBuffer word(kWordBytes);
    a_missing_bit_lets_pass(word);
  });
  scenario.run(20s);
}

TEST(DeviceFlags, ABitOfAnOpenedWordMayBeMissing) {
  covers("FLAG-08");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    has_to_support(me, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR,
                   "the condition NOR");
    // A word of 64 bits needs an address of this alignment.
    a_missing_bit_lets_pass(
        Words(mapping.data + mapping.count - 2, sizeof(uint64_t)));
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}
