// Words in shared memory: GPU work of one process writes them, and GPU work of
// another process waits for them. Mirror of samples/13_device_flags.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda/atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/13_device_flags/device_flags_test.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr uint32_t kRounds = 50;

// A word with an odd index, far from the start of the memory, and the next
// word.
Words far_word(const Words& memory) {
  return {memory.data + memory.count - 3, 2 * sizeof(uint32_t)};
}

Pattern round_pattern(uint32_t round) {
  return pattern("round " + std::to_string(round));
}

using SystemWord = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;

// Waits until the word is `wanted`. Gives up after 20 s of the GPU's clock.
__global__ void await(uint32_t* word, uint32_t wanted) {
  unsigned long long began = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (SystemWord(*word).load(cuda::memory_order_acquire) == wanted) return;
  } while (now - began < 20'000'000'000);
  __trap();
}

__global__ void publish(uint32_t* word, uint32_t value) {
  SystemWord(*word).store(value, cuda::memory_order_release);
}

void queue_await(const Words& word, uint32_t wanted, cudaStream_t stream) {
  note_call("await<<<>>>");
  await<<<1, 1, 0, stream>>>(word.data, wanted);
  CALL(cudaGetLastError());
}

void queue_publish(const Words& word, uint32_t value, cudaStream_t stream) {
  note_call("publish<<<>>>");
  publish<<<1, 1, 0, stream>>>(word.data, value);
  CALL(cudaGetLastError());
}

// How one side waits for a round, and how this side says that the round is
// done.
struct Way {
  void (*wait)(const Words&, uint32_t, cudaStream_t);
  void (*tell)(const Words&, uint32_t, cudaStream_t);
  bool of_64_bits = false;
};

const Way kByStream = {
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(wait_for(word, value, stream));
    },
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(write(word, value, stream));
    }};

// Both halves of the word of 64 bits are the value of the round.
const Way kBy64Bits = {
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(wait_for_64(word, value * kHigh + value, stream));
    },
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(write_64(word, value * kHigh + value, stream));
    },
    true};

const Way kByBatches = {
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(batch_of_one(CU_STREAM_MEM_OP_WAIT_VALUE_32, word.data,
                                  CU_STREAM_WAIT_VALUE_EQ, stream, value));
    },
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(batch_of_one(CU_STREAM_MEM_OP_WRITE_VALUE_32, word.data,
                                  CU_STREAM_WRITE_VALUE_DEFAULT, stream,
                                  value));
    }};

const Way kByKernels = {queue_await, queue_publish};

// Loads the kernels early: a later load may wait for a kernel that itself
// waits.
void load_kernels(const Words& word, const Words& data, WrongWords* wrong) {
  queue_publish(word, 0, nullptr);
  queue_await(word, 0, nullptr);
  data.fill(round_pattern(0));
  wrong->queue_count(data, round_pattern(0), nullptr);
  CALL(cudaDeviceSynchronize());
}

// The exporter writes the values of each round and then the word; the importer
// counts wrong values and writes the word in return. Each process queues all
// its rounds at once.
void every_round_is_seen(const Way& way) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [way](Role& me) {
    if (way.of_64_bits) has_to_support(me, k64Bits, "words of 64 bits");
    const DeviceBuffer data(kBytes), word(kWordBytes);
    const Stream stream;
    WrongWords wrong;
    load_kernels(word, data, &wrong);
    clear(word);
    me.send("data", data.legacy_handle());
    me.send("word", word.legacy_handle());
    me.wait("loaded");
    for (uint32_t round = 1; round <= kRounds; ++round) {
      data.queue_fill(round_pattern(round), stream);
      way.tell(word, 2 * round - 1, stream);
      way.wait(word, 2 * round, stream);
    }
    EXPECT_TRUE(passes(stream, 15s));
    me.wait("closed");
  });
  scenario.role("importer", [way](Role& me) {
    if (way.of_64_bits) has_to_support(me, k64Bits, "words of 64 bits");
    LegacyMapping data(me.receive<Handle>("data"), kBytes);
    LegacyMapping word(me.receive<Handle>("word"), kWordBytes);
    const DeviceBuffer own(kBytes), own_word(kWordBytes);
    const Stream stream;
    WrongWords wrong;
    load_kernels(own_word, own, &wrong);
    me.signal("loaded");
    for (uint32_t round = 1; round <= kRounds; ++round) {
      way.wait(word, 2 * round - 1, stream);
      wrong.queue_count(data, round_pattern(round), stream);
      way.tell(word, 2 * round, stream);
    }
    EXPECT_TRUE(passes(stream, 15s));
    EXPECT_EQ(wrong.so_far(), 0u);
    word.close();
    data.close();
    me.signal("closed");
  });
  scenario.run(30s);
}

}  // namespace

// Judges a word whose neighbours were not written. The bytes of the word before
// it are 0x3C, and the word after it is 0.
static void expect_between_neighbours(const Words& word, uint32_t value) {
  uint32_t seen[3] = {};
  CALL(cudaMemcpy(seen, word.data - 1, sizeof seen, cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen[0], 0x3C3C3C3Cu) << "the word before it";
  EXPECT_EQ(seen[1], value);
  EXPECT_EQ(seen[2], 0u) << "the word after it";
}

TEST(DeviceFlags, AStreamWaitsForAWordOfAnotherProcess) {
  covers("FLAG-01");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    clear(buffer);
    const Words word = far_word(buffer);
    CALL(cudaMemset(word.data - 1, 0x3C, sizeof(uint32_t)));
    CALL(cudaDeviceSynchronize());
    const Stream stream;
    me.send("word", buffer.legacy_handle());
    me.wait("importer waits");
    EXPECT_SUCCESS(write(word, kAwaited - 1, stream));
    EXPECT_TRUE(passes(stream));
    expect_between_neighbours(word, kAwaited - 1);
    me.signal("another value is written");
    me.wait("importer still waits");
    EXPECT_SUCCESS(write(word, kAwaited, stream));

    EXPECT_SUCCESS(wait_for(word, kAwaited + 1, stream));
    me.wait("importer has passed");
    EXPECT_TRUE(is_held(stream));
    me.signal("exporter waits");
    EXPECT_TRUE(passes(stream));
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("word"), kBytes);
    const Words word = far_word(mapping);
    const Stream stream, second, third, other;
    const cudaStream_t waiting[] = {stream, second, third, nullptr,
                                    cudaStreamPerThread};
    for (const cudaStream_t each : waiting) {
      const auto wait = [&] { return wait_for(word, kAwaited, each); };
      EXPECT_SUCCESS(each == third ? in_a_thread(wait) : wait());
    }
    EXPECT_TRUE(is_held(stream));
    for (const cudaStream_t each : waiting)
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(each));
    me.signal("importer waits");
    me.wait("another value is written");
    // These checks take at least a second, and no wait may end by itself in
    // this time.
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(is_held(stream));
    observe_check(me, "another stream goes on", [&] { return passes(other); });
    me.signal("importer still waits");
    for (const cudaStream_t each : waiting) EXPECT_TRUE(passes(each));
    me.signal("importer has passed");

    me.wait("exporter waits");
    EXPECT_SUCCESS(write(word, kAwaited + 1, stream));
    EXPECT_TRUE(passes(stream));
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

// Two importers wait for a word of the exporter. Then the second importer
// writes a word for which the first importer and the exporter wait.
TEST(DeviceFlags, TwoImportersWaitForAWord) {
  covers("FLAG-01");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  const auto second_word = [](const Words& memory) {
    return Words(memory.data + 8, sizeof(uint32_t));
  };
  scenario.role("exporter", [=](Role& me) {
    const DeviceBuffer memory(kBytes);
    clear(memory);
    const Stream waits, writes;
    me.send("handle", memory.legacy_handle());
    EXPECT_SUCCESS(wait_for(second_word(memory), kAwaited, waits));
    me.wait("waits", 2);
    EXPECT_SUCCESS(write(memory, kAwaited, writes));
    EXPECT_TRUE(passes(writes));
    me.signal("written");
    me.wait("has passed", 2);
    EXPECT_TRUE(is_held(waits));
    me.signal("exporter waits");
    EXPECT_TRUE(passes(waits));
    EXPECT_SUCCESS(write(second_word(memory), kAwaited, writes));
    ASSERT_TRUE(passes(waits));  // no stream waits at the end
    me.wait("closed", 2);
  });
  scenario.roles("importer", 2, [=](Role& me) {
    LegacyMapping memory(me.receive<Handle>("handle"), kBytes);
    const Stream stream;
    EXPECT_SUCCESS(wait_for(memory, kAwaited, stream));
    EXPECT_TRUE(is_held(stream));
    me.signal("waits");
    me.wait("written");
    EXPECT_TRUE(passes(stream));
    if (me.index() == 0) {
      EXPECT_SUCCESS(wait_for(second_word(memory), kAwaited, stream));
      EXPECT_TRUE(is_held(stream));
    }
    me.signal("has passed");
    me.wait("exporter waits");
    if (me.index() == 1)
      EXPECT_SUCCESS(write(second_word(memory), kAwaited, stream));
    EXPECT_TRUE(passes(stream));
    memory.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(DeviceFlags, AWrittenWordComesAfterWhatItsStreamWrote) {
  covers("FLAG-02");
  needs(gpus(1), legacy_memory, progress);
  every_round_is_seen(kByStream);
}

namespace {

// For each condition one stream waits. All these streams wait at the same time.
// There are few conditions, because streams can share a queue of the GPU, and
// then one wait would hold all streams of the queue.
void hold_then_let_pass(const Words& memory,
                        const std::vector<Condition>& conditions) {
  const auto word_of = [&](size_t i) {
    return Words(memory.data + i, sizeof(uint32_t));
  };
  const std::vector<Stream> waiting(conditions.size());
  const Stream writes;
  for (size_t i = 0; i < conditions.size(); ++i) {
    const Condition& one = conditions[i];
    EXPECT_SUCCESS(write(word_of(i), one.holds, writes));
    EXPECT_TRUE(passes(writes));
    EXPECT_SUCCESS(wait_for(word_of(i), one.value, waiting[i], one.flags));
  }
  EXPECT_TRUE(is_held(waiting.front()));
  for (size_t i = 0; i < conditions.size(); ++i) {
    const Condition& one = conditions[i];
    SCOPED_TRACE(one.name);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(waiting[i]));
    EXPECT_SUCCESS(write(word_of(i), one.lets_pass, writes));
    EXPECT_TRUE(passes(waiting[i]));
  }
  if (!testing::Test::HasFailure()) return;
  // No stream of a wrong driver waits at the end: each condition is true for
  // its own value, or for the next one.
  for (const uint32_t more : {0, 1})
    for (size_t i = 0; i < conditions.size(); ++i) {
      const uint32_t value = conditions[i].value + more;
      EXPECT_SUCCESS(write(word_of(i), value, writes));
      EXPECT_TRUE(passes(writes));
    }
}

}  // namespace

TEST(DeviceFlags, EachConditionWaitsForItsValues) {
  covers("FLAG-03");
  needs(gpus(1), progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    constexpr unsigned kGreater = CU_STREAM_WAIT_VALUE_GEQ;
    const DeviceBuffer memory(kWordBytes);
    hold_then_let_pass(
        memory,
        {
            {"greater", kGreater, 5, 4, 6},
            {"equal is enough", kGreater, 5, 4, 5},
            {"greater after the wrap", kGreater, 0xFFFFFFFE, 0xFFFFFFFD, 1},
            {"less before the wrap", kGreater, 1, 0xFFFFFFFE, 1},
        });
    hold_then_let_pass(
        memory, {
                    {"equal alone", CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
                    {"any common bit", CU_STREAM_WAIT_VALUE_AND, 6, 9, 2},
                    {"the highest bit", CU_STREAM_WAIT_VALUE_AND, 0x80000000,
                     0x7FFFFFFF, 0x80000000},
                    {"equal to zero", CU_STREAM_WAIT_VALUE_EQ, 0, 6, 0},
                });
    // The comparison is cyclic: it compares no signed numbers.
    hold_then_let_pass(
        memory,
        {
            {"greater than the largest signed number", kGreater, 0x7FFFFFFF,
             0x7FFFFFFE, 0x80000000},
            {"half of all numbers away", kGreater, 0, 0x80000000, 0x7FFFFFFF},
        });
  });
  scenario.run(30s);
}

TEST(DeviceFlags, EachConditionWaitsForAnOpenedWord) {
  covers("FLAG-03");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    hold_then_let_pass(far_word(mapping),
                       {{"greater", CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 7},
                        {"any common bit", CU_STREAM_WAIT_VALUE_AND, 6, 9, 2},
                        {"equal alone", CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5}});
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(DeviceFlags, AtomicsOfSystemScopeOrderTwoProcesses) {
  covers("FLAG-04");
  needs(gpus(1), legacy_memory, progress);
  every_round_is_seen(kByKernels);
}

namespace {

// Waits for the present value of the word, and writes another value.
void observe_operations(Role& me, const char* where, const Words& word) {
  clear(word);
  const Stream stream;
  const CUresult waits = wait_for(word, 0, stream);
  const CUresult writes = write(word, 7, stream);
  for (const CUresult code : {waits, writes}) {
    EXPECT_TRUE(code == CUDA_SUCCESS || code == CUDA_ERROR_INVALID_VALUE ||
                code == CUDA_ERROR_NOT_SUPPORTED)
        << name_of(code);
  }
  EXPECT_TRUE(passes(stream));
  uint32_t seen = 0;
  CALL(cudaMemcpy(&seen, word.data, sizeof seen, cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen, writes == CUDA_SUCCESS ? 7u : 0u);
  me.observe(std::string(where) + ": wait " + name_of(waits) + ", write " +
             name_of(writes));
}

}  // namespace

TEST(DeviceFlags, AWordInAPoolIsObserved) {
  covers("FLAG-06");
  needs(gpus(1), pool_fd, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const AsyncBuffer of_device(kWordBytes);
    observe_operations(me, "the device's own pool", of_device);
    const Pool pool(shareable());
    const AsyncBuffer lent(pool, kWordBytes);
    observe_operations(me, "a pool that can be exported", lent);
    me.send_descriptor("pool", pool.exported().get());
    me.send("pointer", lent.exported());
    me.wait("freed");
  });
  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    {
      const AsyncBuffer borrowed(
          pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kWordBytes);
      observe_operations(me, "an imported pool", borrowed);
    }
    me.signal("freed");
  });
  scenario.run(20s);
}

// Judges that a stream refuses a word in managed memory. The word is 0. So the
// condition is already true, and the written value is the present value:
// nothing hangs and nothing changes if a call is not refused.
static void expect_managed_word_refused(const uint32_t* word,
                                        const Stream& stream) {
  EXPECT_REFUSED(DRIVER(cuStreamWaitValue32)(stream, address_of(word), 0,
                                             CU_STREAM_WAIT_VALUE_EQ),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_REFUSED(DRIVER(cuStreamWriteValue32)(stream, address_of(word), 0,
                                              CU_STREAM_WRITE_VALUE_DEFAULT),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_REFUSED(batch_of_one(CU_STREAM_MEM_OP_WAIT_VALUE_32, word,
                              CU_STREAM_WAIT_VALUE_EQ, stream),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_REFUSED(batch_of_one(CU_STREAM_MEM_OP_WRITE_VALUE_32, word,
                              CU_STREAM_WRITE_VALUE_DEFAULT, stream),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  if (attribute(k64Bits) == 0) return;
  EXPECT_REFUSED(DRIVER(cuStreamWaitValue64)(stream, address_of(word), 0,
                                             CU_STREAM_WAIT_VALUE_EQ),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_REFUSED(DRIVER(cuStreamWriteValue64)(stream, address_of(word), 0,
                                              CU_STREAM_WRITE_VALUE_DEFAULT),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_REFUSED(batch_of_one(CU_STREAM_MEM_OP_WAIT_VALUE_64, word,
                              CU_STREAM_WAIT_VALUE_EQ, stream),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_REFUSED(batch_of_one(CU_STREAM_MEM_OP_WRITE_VALUE_64, word,
                              CU_STREAM_WRITE_VALUE_DEFAULT, stream),
                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
}

TEST(DeviceFlags, ManagedMemoryIsRefused) {
  covers("FLAG-05");
  needs(gpus(1), managed);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    void* memory = nullptr;
    CALL(cudaMallocManaged(&memory, kWordBytes));
    const Words word(memory, kWordBytes);
    clear(word);
    const Stream stream;
    for (uint32_t* const each : {word.data, word.data + word.count / 2}) {
      SCOPED_TRACE(each == word.data ? "the first word" : "a word inside");
      expect_managed_word_refused(each, stream);
    }
    {
      SCOPED_TRACE("attached to the host");
      void* on_host = nullptr;
      CALL(cudaMallocManaged(&on_host, kWordBytes, cudaMemAttachHost));
      *static_cast<uint32_t*>(on_host) = 0;
      expect_managed_word_refused(static_cast<uint32_t*>(on_host), stream);
      EXPECT_TRUE(passes(stream));
      CALL(cudaFree(on_host));
    }
    if (attribute(cudaDevAttrConcurrentManagedAccess) == 1) {
      SCOPED_TRACE("moved to the GPU");
      CALL(move_to_gpu(memory, kWordBytes, 0));
      CALL(cudaStreamSynchronize(nullptr));
      expect_managed_word_refused(word.data, stream);
    }
    const DeviceBuffer good(kWordBytes);
    clear(good);
    CUstreamBatchMemOpParams second[2]{};
    for (const int i : {0, 1}) {
      second[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      second[i].writeValue.address = address_of(i == 0 ? good.data : word.data);
    }
    EXPECT_REFUSED(DRIVER(cuStreamBatchMemOp)(stream, 2, second, 0),
                   CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_TRUE(passes(stream));
    EXPECT_TRUE(context_is_usable());
    CALL(cudaFree(memory));
  });
  scenario.run(20s);
}

// The fence before the write is one for the whole system: a host that sees the
// word also sees the values that the stream copied to the host before.
TEST(DeviceFlags, AHostThatSeesAWordSeesTheWorkBeforeIt) {
  covers("FLAG-02");
  needs(gpus(1), progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    constexpr size_t kCopied = 8 << 20;
    const PinnedBuffer word(sizeof(uint32_t)), copied(kCopied);
    const DeviceBuffer source(kCopied);
    const Stream stream;
    const volatile uint32_t& seen = word.data[0];
    for (uint32_t round = 1; round <= kRounds; ++round) {
      const Pattern values = pattern("round " + std::to_string(round));
      source.queue_fill(values, stream);
      CALL(cudaMemcpyAsync(copied.data, source.data, kCopied,
                           cudaMemcpyDeviceToHost, stream));
      EXPECT_SUCCESS(write(word, round, stream));
      const auto end = std::chrono::steady_clock::now() + 10s;
      while (seen != round && std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
      ASSERT_EQ(seen, round) << "the host does not see the word";
      ASSERT_TRUE(host_reads(copied, values)) << "in round " << round;
      ASSERT_TRUE(passes(stream));
    }
  });
  scenario.run(30s);
}

// The word counts, whatever writes it: a stream passes when its word has the
// wanted value.
static void expect_any_writer_counts(const Words& word) {
  constexpr uint32_t kBytesOfWord = 0x07070707;
  const DeviceBuffer source(kWordBytes);
  const Stream waits, writes;
  CALL(cudaMemset(source.data, 7, source.bytes()));
  CALL(cudaDeviceSynchronize());
  queue_publish(source, kBytesOfWord, writes);  // loads the kernel
  EXPECT_TRUE(passes(writes));
  const std::pair<const char*, std::function<void()>> writers[] = {
      {"a memset",
       [&] { CALL(cudaMemsetAsync(word.data, 7, sizeof(uint32_t), writes)); }},
      {"a copy",
       [&] {
         CALL(cudaMemcpyAsync(word.data, source.data, sizeof(uint32_t),
                              cudaMemcpyDeviceToDevice, writes));
       }},
      {"a kernel", [&] { queue_publish(word, kBytesOfWord, writes); }}};
  for (const auto& [name, writer] : writers) {
    SCOPED_TRACE(name);
    clear(word);
    EXPECT_SUCCESS(wait_for(word, kBytesOfWord, waits));
    EXPECT_TRUE(is_held(waits));
    writer();
    EXPECT_TRUE(passes(waits));
    EXPECT_SUCCESS(write(word, kBytesOfWord, writes));  // ends any other wait
    EXPECT_TRUE(passes(writes));  // before the word is cleared again
    ASSERT_TRUE(passes(waits));
  }
}

// Each value is also written a second time, after another value was there.
TEST(DeviceFlags, EveryStreamAndThreadWritesWords) {
  covers("FLAG-01");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer second(kBytes);
    clear(second);
    me.send("second", second.legacy_handle());
    lends(pattern("exporter"), kBytes)(me);
  });
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    const Words word = far_word(mapping);
    write_in_every_stream(word, [&](cudaStream_t stream) {
      return write(word, kAwaited, stream);
    });
    wait_in_every_stream(word, [&](cudaStream_t stream) {
      return wait_for(word, kAwaited, stream);
    });
    // The importer also waits for the last word of a second allocation, while
    // the first allocation is open. It opens the second allocation twice, one
    // time after the other.
    const auto handle = me.receive<Handle>("second");
    for (const char* const time : {"opened once", "opened again"}) {
      SCOPED_TRACE(time);
      LegacyMapping second(handle, kBytes);
      const Words last(second.data + second.count - 1, sizeof(uint32_t));
      const Stream waits, writes;
      clear(last);
      EXPECT_SUCCESS(wait_for(last, kAwaited, waits));
      EXPECT_TRUE(is_held(waits));
      EXPECT_SUCCESS(write(last, kAwaited, writes));
      EXPECT_TRUE(passes(waits));
      EXPECT_EQ(value_at(last.data), kAwaited);
      // Ends the wait if the write of a wrong driver has not ended it.
      const uint32_t awaited = kAwaited;
      CALL(cudaMemcpyAsync(last.data, &awaited, sizeof awaited,
                           cudaMemcpyHostToDevice, writes));
      ASSERT_TRUE(passes(waits));
      expect_any_writer_counts(last);
      expect_both_waits_hold(second, [](const auto& pair, cudaStream_t waits) {
        for (const Words& each : pair)
          EXPECT_SUCCESS(wait_for(each, kAwaited, waits));
      });
      second.close();
    }
    mapping.close();
    me.signal("closed");
  });
  scenario.run(30s);
}

TEST(DeviceFlags, AWordMayLieInPinnedHostMemory) {
  covers("FLAG-01");
  needs(gpus(1), progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    for (const bool registered : {false, true})
      expect_word_on_host(
          [](const Words& word, uint32_t value, cudaStream_t stream) {
            return wait_for(word, value, stream);
          },
          [](const Words& word, uint32_t value, cudaStream_t stream) {
            return write(word, value, stream);
          },
          registered);
  });
  scenario.run(20s);
}

TEST(DeviceFlags, AWordOf64BitsComesAfterWhatItsStreamWrote) {
  covers("FLAG-07");
  needs(gpus(1), legacy_memory, progress);
  every_round_is_seen(kBy64Bits);
}

TEST(DeviceFlags, ABatchComesAfterWhatItsStreamWrote) {
  covers("FLAG-09");
  needs(gpus(1), legacy_memory, progress);
  every_round_is_seen(kByBatches);
}

// A word far from the start of its memory, and how a stream waits for it and
// writes it.
struct WordCalls {
  Words (*word_of)(const Words& memory);
  WordCall wait_for, write;
  bool of_64_bits = false;
};

static Words far_word_of_64_bits(const Words& memory) {
  return {memory.data + memory.count - 4, sizeof(uint64_t)};
}

// The importer of a descriptor waits for a word in the imported memory, and
// then writes this word.
static void word_of_an_import_orders(const WordCalls& calls) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [calls](Role& me) {
    const auto& write = calls.write;
    if (calls.of_64_bits) has_to_support(me, k64Bits, "words of 64 bits");
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    clear(mapping);
    const Words word = calls.word_of(mapping);
    const Stream stream;
    me.send_descriptor("chunk", chunk.descriptor().get());
    me.wait("importer waits");
    EXPECT_SUCCESS(write(word, kAwaited, stream));
    EXPECT_TRUE(passes(stream));
    me.wait("written");
    EXPECT_EQ(value_at(word.data), kAwaited + 1);
  });
  scenario.role("importer", [calls](Role& me) {
    const auto& wait_for = calls.wait_for;
    const auto& write = calls.write;
    if (calls.of_64_bits) has_to_support(me, k64Bits, "words of 64 bits");
    const Chunk chunk = Chunk::import(me.receive_descriptor("chunk"));
    const Mapping mapping(chunk, granule());
    const Words word = calls.word_of(mapping);
    const Stream stream;
    EXPECT_SUCCESS(wait_for(word, kAwaited, stream));
    EXPECT_TRUE(is_held(stream));
    me.signal("importer waits");
    EXPECT_TRUE(passes(stream));
    EXPECT_SUCCESS(write(word, kAwaited + 1, stream));
    EXPECT_TRUE(passes(stream));
    me.signal("written");
  });
  scenario.run(20s);
}

TEST(DeviceFlags, AWordMayLieInAnImportOfADescriptor) {
  covers("FLAG-01");
  needs(gpus(1), vmm_fd, progress);
  word_of_an_import_orders(
      {far_word,
       [](const Words& word, uint32_t value, cudaStream_t stream) {
         return wait_for(word, value, stream);
       },
       [](const Words& word, uint32_t value, cudaStream_t stream) {
         return write(word, value, stream);
       }});
}

TEST(DeviceFlags, AWordOf64BitsMayLieInAnImportOfADescriptor) {
  covers("FLAG-07");
  needs(gpus(1), vmm_fd, progress);
  word_of_an_import_orders({far_word_of_64_bits, wait_for_64, write_64, true});
}

TEST(DeviceFlags, ABatchReachesAnImportOfADescriptor) {
  covers("FLAG-09");
  needs(gpus(1), vmm_fd, progress);
  word_of_an_import_orders({far_word, waits_by_batch, writes_by_batch});
}
