// Words in shared memory: GPU work of one process writes them, and GPU work of
// another process waits for them. Mirror of samples/13_device_flags.
//
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <atomic>
#include <cuda/atomic>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kBytes = 2 << 20;
constexpr size_t kWordBytes = 4096;     // of memory for single words
constexpr uint32_t kAwaited = 0xA0007;  // more than two bytes can count
constexpr uint32_t kRounds = 50;

CUresult wait_for(const Words& word, uint32_t value, cudaStream_t stream,
                  unsigned flags = CU_STREAM_WAIT_VALUE_EQ) {
  return NOTED(
      DRIVER(cuStreamWaitValue32)(stream, address_of(word.data), value, flags));
}

CUresult write(const Words& word, uint32_t value, cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWriteValue32)(
      stream, address_of(word.data), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

constexpr auto k64Bits = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
constexpr uint64_t kHigh = uint64_t{1} << 32;

CUresult write_64(const Words& word, uint64_t value, cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWriteValue64)(
      stream, address_of(word.data), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

CUresult wait_for_64(const Words& word, uint64_t value, cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWaitValue64)(stream, address_of(word.data), value,
                                           CU_STREAM_WAIT_VALUE_EQ));
}

void has_to_support(Role& me, CUdevice_attribute which, const char* what) {
  if (attribute(which) == 0)
    me.not_applicable(std::string("the device does not support ") + what);
}

// A batch of one operation on a word.
CUresult batch_of_one(CUstreamBatchMemOpType type, const uint32_t* word,
                      unsigned flags, cudaStream_t stream, uint64_t value = 0) {
  CUstreamBatchMemOpParams one{};
  one.waitValue.operation = type;  // a write has the same fields
  one.waitValue.address = address_of(word);
  one.waitValue.value64 = value;
  one.waitValue.flags = flags;
  return NOTED(DRIVER(cuStreamBatchMemOp)(stream, 1, &one, 0));
}

// A word with an odd index, far from the start of the memory, and the next
// word.
Words far_word(const Words& memory) {
  return {memory.data + memory.count - 3, 2 * sizeof(uint32_t)};
}

void clear(const Words& word) {
  CALL(cudaMemset(word.data, 0, word.bytes()));
  CALL(cudaDeviceSynchronize());
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

// Streams of every kind. A test that lets the legacy default stream wait makes
// no call that waits for this stream.
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

// In each of two threads, every stream writes the first word of `words` twice.
void write_in_every_stream(
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

// Every stream waits for the first word of `word`, one of them by a call of
// another thread. Then a stream that does not wait writes the word. The default
// streams then wait alone, because they also wait for each other.
void wait_in_every_stream(
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
  needs(gpus(1), legacy_memory);
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
  needs(gpus(1), legacy_memory);
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
  needs(gpus(1), legacy_memory);
  every_round_is_seen(kByStream);
}

namespace {

// A condition with its value, a value of the word at which the condition holds
// a stream, and a value at which the condition lets the stream pass.
struct Condition {
  const char* name;
  unsigned flags;
  uint32_t value, holds, lets_pass;
};

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
  needs(gpus(1), pool_fd);
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

namespace {

// Reads a value at an address of the device, without a wait for a stream of the
// test.
template <class T = uint32_t>
T value_at(const uint32_t* address) {
  T value{};
  CALL(cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

// Work that makes the first word of `target` not 0.
struct Work {
  const char* name;
  void (*queue)(const Words& target, cudaStream_t stream);
};
const Work kWork[] = {
    {"a copy",
     [](const Words& target, cudaStream_t stream) {
       CALL(cudaMemcpyAsync(target.data, target.data + target.count / 2,
                            sizeof(uint32_t), cudaMemcpyDeviceToDevice,
                            stream));
     }},
    {"a memset",
     [](const Words& target, cudaStream_t stream) {
       CALL(cudaMemsetAsync(target.data, 7, sizeof(uint32_t), stream));
     }},
    {"the write of a word",
     [](const Words& target, cudaStream_t stream) {
       EXPECT_SUCCESS(write(target, 7, stream));
     }},
    {"a batch",
     [](const Words& target, cudaStream_t stream) {
       EXPECT_SUCCESS(batch_of_one(CU_STREAM_MEM_OP_WRITE_VALUE_32, target.data,
                                   CU_STREAM_WRITE_VALUE_DEFAULT, stream, 7));
     }},
    {"a kernel", [](const Words& target,
                    cudaStream_t stream) { queue_publish(target, 7, stream); }},
    {"a launch with attributes",
     [](const Words& target, cudaStream_t stream) {
       cudaLaunchConfig_t config{};
       config.gridDim = config.blockDim = dim3(1);
       config.stream = stream;
       CALL(cudaLaunchKernelEx(&config, publish, target.data, 7u));
     }},
    {"the copy of a rectangle",
     [](const Words& target, cudaStream_t stream) {
       CALL(cudaMemcpy2DAsync(target.data, 64, target.data + target.count / 2,
                              64, sizeof(uint32_t), 2, cudaMemcpyDeviceToDevice,
                              stream));
     }},
    {"the memset of a rectangle",
     [](const Words& target, cudaStream_t stream) {
       CALL(cudaMemset2DAsync(target.data, 64, 7, sizeof(uint32_t), 2, stream));
     }},
    {"a copy between GPUs",
     [](const Words& target, cudaStream_t stream) {
       CALL(cudaMemcpyPeerAsync(target.data, 0, target.data + target.count / 2,
                                0, sizeof(uint32_t), stream));
     }},
};

// Makes the first half 0 and the second half not 0.
void prepare(const Words& target) {
  clear(target);
  CALL(cudaMemset(target.data + target.count / 2, 7, target.bytes() / 2));
  CALL(cudaDeviceSynchronize());
}

// A graph that sets the first word of `target`, after `held_by` is released.
class SettingGraph {
 public:
  SettingGraph(const Words& target, cudaStream_t stream,
               Latch* held_by = nullptr) {
    cudaGraph_t graph = nullptr;
    CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (held_by != nullptr) held_by->hold(stream);
    CALL(cudaMemsetAsync(target.data, 7, sizeof(uint32_t), stream));
    CALL(cudaStreamEndCapture(stream, &graph));
    CALL(cudaGraphInstantiate(&graph_, graph, 0));
    CALL(cudaGraphDestroy(graph));
  }
  SettingGraph(const SettingGraph&) = delete;
  ~SettingGraph() { cudaGraphExecDestroy(graph_); }
  void launch_in(cudaStream_t stream) const {
    CALL(cudaGraphLaunch(graph_, stream));
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// Lets a stream wait until the first 32 bits of a word are kAwaited.
using WaitCall = std::function<CUresult(cudaStream_t stream)>;

// Judges that a wait for `word` holds a host function, and a copy between the
// host and the device, that comes directly after it.
void expect_copies_and_hosts_are_held(const Words& word,
                                      const WaitCall& waits) {
  static std::atomic<bool> called;  // a held function may come late
  const DeviceBuffer target(kWordBytes);
  const Stream calls, copies_from, copies_to, writes;
  // A copy of memory that is not pinned may wait by itself.
  const PinnedBuffer pinned(2 * sizeof(uint32_t));
  pinned.data[0] = 1;
  pinned.data[1] = 1;
  called = false;
  clear(target);
  clear(word);
  for (const Stream* const each : {&calls, &copies_from, &copies_to})
    EXPECT_SUCCESS(waits(*each));
  CALL(cudaLaunchHostFunc(
      calls, [](void*) { called = true; }, nullptr));
  CALL(cudaMemcpyAsync(target.data, pinned.data, sizeof(uint32_t),
                       cudaMemcpyHostToDevice, copies_from));
  CALL(cudaMemcpyAsync(pinned.data + 1, target.data + 1, sizeof(uint32_t),
                       cudaMemcpyDeviceToHost, copies_to));
  EXPECT_TRUE(is_held(calls));
  const volatile uint32_t& copied = pinned.data[1];
  EXPECT_FALSE(called) << "a host function comes before the word";
  EXPECT_EQ(value_at(target.data), 0u) << "a copy comes before the word";
  EXPECT_EQ(copied, 1u) << "a copy to the host comes before the word";
  EXPECT_SUCCESS(write(word, kAwaited, writes));
  for (const Stream* const each : {&calls, &copies_from, &copies_to})
    ASSERT_TRUE(passes(*each));
  EXPECT_TRUE(called);
  EXPECT_EQ(value_at(target.data), 1u);
  EXPECT_EQ(copied, 0u);
}

// A call of the driver API that waits, in a thread of its own.
HostWait host_wait_by_driver(const char* name, std::function<CUresult()> call) {
  return HostWait(name, [call = std::move(call)] {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    return code != cudaSuccess ? code : static_cast<cudaError_t>(call());
  });
}

// Judges that a wait for `word` holds an event that is recorded directly after
// it, a stream that waits for this event, and a host that waits for the stream,
// for the event or for the device.
void expect_events_and_hosts_are_held(const Words& word,
                                      const WaitCall& waits) {
  const SharedEvent event(cudaEventDisableTiming), interprocess;
  const Stream stream, records, other, writes;
  clear(word);
  EXPECT_SUCCESS(waits(records));
  CALL(cudaEventRecord(interprocess, records));
  EXPECT_SUCCESS(waits(stream));
  CALL(cudaEventRecord(event, stream));
  CALL(cudaStreamWaitEvent(other, event, 0));
  HostWait for_stream("cudaStreamSynchronize", [&]() -> cudaError_t {
    return cudaStreamSynchronize(stream);
  });
  HostWait for_device("cudaDeviceSynchronize",
                      [] { return cudaDeviceSynchronize(); });
  HostWait for_event(event);
  HostWait by_driver = host_wait_by_driver("cuStreamSynchronize", [&] {
    return DRIVER(cuStreamSynchronize)(stream);
  });
  HostWait for_context =
      host_wait_by_driver("cuCtxSynchronize", synchronize_context);
  EXPECT_TRUE(is_held(event));
  EXPECT_CODE(CUDA_ERROR_NOT_READY, DRIVER(cuStreamQuery)(stream));
  EXPECT_EQ(cudaEventQuery(interprocess), cudaErrorNotReady)
      << "an event for several processes";
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady)
      << "a stream that waits for the event";
  EXPECT_FALSE(for_stream.returned()) << "a host waits for the stream";
  EXPECT_FALSE(for_device.returned()) << "a host waits for the device";
  EXPECT_FALSE(for_event.returned()) << "a host waits for the event";
  EXPECT_FALSE(by_driver.returned()) << "cuStreamSynchronize";
  EXPECT_FALSE(for_context.returned()) << "cuCtxSynchronize";
  EXPECT_SUCCESS(write(word, kAwaited, writes));
  for (const Stream* const each : {&stream, &records, &other})
    EXPECT_TRUE(passes(*each));
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(interprocess), cudaSuccess);
  for (HostWait* const host :
       {&for_stream, &for_device, &for_event, &by_driver, &for_context})
    EXPECT_SUCCESS(host->join());
}

// Judges that the null stream and a blocking stream wait for each other while
// one of them waits for a word. A synchronous copy waits for both. The host
// itself writes the word and reads what the other stream sets: no call of CUDA
// may be necessary for this.
void expect_default_stream_is_held() {
  uint32_t* memory = nullptr;
  void* device = nullptr;
  CALL(cudaHostAlloc(&memory, 2 * sizeof *memory, cudaHostAllocMapped));
  CALL(cudaHostGetDevicePointer(&device, memory, 0));
  auto* const host = static_cast<volatile uint32_t*>(memory);
  const Words word(device, sizeof(uint32_t));
  uint32_t* const target = word.data + 1;
  const DeviceBuffer source(kWordBytes);
  clear(source);
  const Stream blocking(Stream::Kind::kBlocking);
  CALL(cudaMemsetAsync(target, 0, sizeof *target, blocking));
  EXPECT_TRUE(passes(blocking));
  for (const bool null_waits : {false, true}) {
    SCOPED_TRACE(null_waits ? "the null stream waits" : "a blocking stream");
    const cudaStream_t waits = null_waits ? nullptr : cudaStream_t{blocking};
    const cudaStream_t other = null_waits ? cudaStream_t{blocking} : nullptr;
    uint32_t copied = 1;
    host[0] = host[1] = 0;
    EXPECT_SUCCESS(wait_for(word, kAwaited, waits));
    CALL(cudaMemsetAsync(target, 7, sizeof *target, other));
    HostWait copy("cudaMemcpy", [&]() -> cudaError_t {
      return cudaMemcpy(&copied, source.data, sizeof copied,
                        cudaMemcpyDeviceToHost);
    });
    EXPECT_TRUE(is_held(other));
    EXPECT_EQ(host[1], 0u) << "the other stream does not wait";
    EXPECT_FALSE(copy.returned()) << "a synchronous copy does not wait";
    host[0] = kAwaited;
    EXPECT_TRUE(passes(waits));
    EXPECT_TRUE(passes(other));
    EXPECT_SUCCESS(copy.join());
    EXPECT_EQ(host[1], 0x07070707u);
    EXPECT_EQ(copied, 0u);
  }
  CALL(cudaFreeHost(memory));
}

// Judges that a wait for `word` holds each kind of work that comes directly
// after it.
void expect_work_is_held(const Words& word, const Stream& stream,
                         const WaitCall& waits) {
  const DeviceBuffer target(kWordBytes);
  const Stream writes;
  const SettingGraph graph(target, stream);
  const auto expect_held = [&](const char* name, const auto& queue) {
    SCOPED_TRACE(name);
    // Loads the kernels of the work: a later load may wait for a stream that
    // is held.
    queue();
    ASSERT_TRUE(passes(stream));
    clear(word);
    prepare(target);
    EXPECT_SUCCESS(waits(stream));
    queue();
    EXPECT_TRUE(is_held(stream));
    EXPECT_EQ(value_at(target.data), 0u) << "it is done before the word";
    EXPECT_SUCCESS(write(word, kAwaited, writes));
    ASSERT_TRUE(passes(stream));
    EXPECT_NE(value_at(target.data), 0u);
  };
  for (const Work& work : kWork)
    expect_held(work.name, [&] { work.queue(target, stream); });
  expect_held("a graph", [&] { graph.launch_in(stream); });
  if (attribute(k64Bits) != 0)
    expect_held("the write of 64 bits",
                [&] { EXPECT_SUCCESS(write_64(target, 7, stream)); });

  expect_copies_and_hosts_are_held(word, waits);
  expect_events_and_hosts_are_held(word, waits);
}

// `writes` writes kAwaited into the first 32 bits of `word`. Judges that this
// write is done only after the earlier work of its stream, for each kind of
// work.
void expect_word_comes_after_work(
    const Words& word, const Stream& stream,
    const std::function<CUresult(cudaStream_t stream)>& writes) {
  const DeviceBuffer target(kWordBytes);
  const SharedEvent event;
  const SettingGraph graph(target, stream);
  const auto expect_order = [&](const char* name, const auto& queue) {
    SCOPED_TRACE(name);
    queue();  // loads the kernels of the work
    ASSERT_TRUE(passes(stream));
    clear(word);
    prepare(target);
    Latch latch;
    latch.hold(stream);
    queue();
    EXPECT_SUCCESS(writes(stream));
    CALL(cudaEventRecord(event, stream));
    EXPECT_TRUE(is_held(stream));
    EXPECT_EQ(value_at(target.data), 0u) << "the work comes too early";
    EXPECT_EQ(value_at(word.data), 0u) << "the word comes before the work";
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    latch.release();
    ASSERT_TRUE(passes(stream));
    EXPECT_SUCCESS(cudaEventQuery(event));
    EXPECT_EQ(value_at(word.data), kAwaited);
    EXPECT_NE(value_at(target.data), 0u);
  };
  for (const Work& work : kWork)
    expect_order(work.name, [&] { work.queue(target, stream); });
  expect_order("a graph", [&] { graph.launch_in(stream); });
  if (attribute(k64Bits) != 0)
    expect_order("the write of 64 bits",
                 [&] { EXPECT_SUCCESS(write_64(target, 7, stream)); });

  // A graph can also be held by what is inside it.
  clear(word);
  prepare(target);
  Latch inside;
  const SettingGraph held(target, stream, &inside);
  held.launch_in(stream);
  EXPECT_SUCCESS(writes(stream));
  EXPECT_TRUE(is_held(stream));
  EXPECT_EQ(value_at(target.data), 0u) << "the graph is not held";
  EXPECT_EQ(value_at(word.data), 0u) << "the word comes before the graph";
  inside.release();
  ASSERT_TRUE(passes(stream));
  EXPECT_EQ(value_at(word.data), kAwaited);
  EXPECT_NE(value_at(target.data), 0u);

  static std::atomic<bool> goes_on;
  goes_on = false;
  clear(word);
  CALL(cudaLaunchHostFunc(
      stream,
      [](void*) {
        const auto end = std::chrono::steady_clock::now() + 10s;
        while (!goes_on && std::chrono::steady_clock::now() < end)
          std::this_thread::yield();
      },
      nullptr));
  EXPECT_SUCCESS(writes(stream));
  EXPECT_TRUE(is_held(stream));
  EXPECT_EQ(value_at(word.data), 0u) << "the word precedes the host function";
  goes_on = true;
  ASSERT_TRUE(passes(stream));
  EXPECT_EQ(value_at(word.data), kAwaited);
}

// A stream that is destroyed while it waits does the rest of its work later.
void expect_wait_outlives_its_stream(const Words& word) {
  const DeviceBuffer target(kWordBytes);
  const Stream writes;
  cudaStream_t waiting = nullptr;
  cudaEvent_t done = nullptr;
  clear(word);
  clear(target);
  CALL(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
  CALL(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  EXPECT_SUCCESS(wait_for(word, kAwaited, waiting));
  CALL(cudaMemsetAsync(target.data, 1, 1, waiting));
  CALL(cudaEventRecord(done, waiting));
  CALL(cudaStreamDestroy(waiting));
  EXPECT_TRUE(is_held(done)) << "the destroy ends the wait";
  EXPECT_EQ(value_at(target.data), 0u) << "the destroy ends the wait";
  EXPECT_EQ(value_at(word.data), 0u);
  EXPECT_SUCCESS(write(word, kAwaited, writes));
  CALL(cudaStreamWaitEvent(writes, done, 0));
  EXPECT_TRUE(passes(writes));
  EXPECT_EQ(value_at(target.data), 1u) << "work of a stream is lost";
  CALL(cudaEventDestroy(done));
}

}  // namespace

TEST(DeviceFlags, AWaitHoldsWorkOfEveryKind) {
  covers("FLAG-01");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer word(kWordBytes);
    const Stream stream;
    expect_work_is_held(word, stream, [&](cudaStream_t waiting) {
      return wait_for(word, kAwaited, waiting);
    });
    expect_default_stream_is_held();
    expect_wait_outlives_its_stream(word);
  });
  scenario.run(20s);
}

TEST(DeviceFlags, AWordComesAfterWorkOfEveryKind) {
  covers("FLAG-02");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer word(kWordBytes);
    const Stream stream;
    expect_word_comes_after_work(word, stream, [&](cudaStream_t writing) {
      return write(word, kAwaited, writing);
    });
  });
  scenario.run(20s);
}

// The fence before the write is one for the whole system: a host that sees the
// word also sees the values that the stream copied to the host before.
TEST(DeviceFlags, AHostThatSeesAWordSeesTheWorkBeforeIt) {
  covers("FLAG-02");
  needs(gpus(1));
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

// Of two waits directly one after another, each holds the stream.
static void expect_both_waits_hold(
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

// Each value is also written a second time, after another value was there.
TEST(DeviceFlags, EveryStreamAndThreadWritesWords) {
  covers("FLAG-01");
  needs(gpus(1), legacy_memory);
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

// How a stream waits for a word, or writes it.
using WordCall = std::function<CUresult(const Words& word, uint32_t value,
                                        cudaStream_t stream)>;

// A stream waits for a word in pinned host memory, of 32 or 64 bits, and then
// writes this word.
static void expect_word_on_host(const WordCall& waits, const WordCall& writes,
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

TEST(DeviceFlags, AWordMayLieInPinnedHostMemory) {
  covers("FLAG-01");
  needs(gpus(1));
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

// --- 64 bits, the condition NOR, batches -------------------------------------

namespace {

struct Case64 {
  const char* name;
  unsigned flags;
  uint64_t value, holds, lets_pass;
};
constexpr Case64 kCases64[] = {
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
  needs(gpus(1));
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

TEST(DeviceFlags, AWaitFor64BitsHoldsWorkOfEveryKind) {
  covers("FLAG-07");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    has_to_support(me, k64Bits, "words of 64 bits");
    const DeviceBuffer word(kWordBytes);
    const Stream stream;
    expect_work_is_held(word, stream, [&](cudaStream_t waiting) {
      return NOTED(DRIVER(cuStreamWaitValue64)(
          waiting, address_of(word.data), kAwaited, CU_STREAM_WAIT_VALUE_EQ));
    });
  });
  scenario.run(20s);
}

TEST(DeviceFlags, AWordOf64BitsComesAfterWorkOfEveryKind) {
  covers("FLAG-07");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    has_to_support(me, k64Bits, "words of 64 bits");
    const DeviceBuffer word(kWordBytes);
    const Stream stream;
    expect_word_comes_after_work(word, stream, [&](cudaStream_t writing) {
      return write_64(word, kAwaited, writing);
    });
  });
  scenario.run(20s);
}

static Words last_of_64_bits(const Words& memory) {
  return {memory.data + memory.count - 2, sizeof(uint64_t)};
}

TEST(DeviceFlags, AWordOf64BitsOrdersTwoProcesses) {
  covers("FLAG-07");
  needs(gpus(1), legacy_memory);
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

TEST(DeviceFlags, AWordOf64BitsComesAfterWhatItsStreamWrote) {
  covers("FLAG-07");
  needs(gpus(1), legacy_memory);
  every_round_is_seen(kBy64Bits);
}

TEST(DeviceFlags, ABatchComesAfterWhatItsStreamWrote) {
  covers("FLAG-09");
  needs(gpus(1), legacy_memory);
  every_round_is_seen(kByBatches);
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
  needs(gpus(1));
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
  needs(gpus(1), legacy_memory);
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

namespace {

using Operation = CUstreamBatchMemOpParams;

Operation writing(CUstreamBatchMemOpType type, const uint32_t* word,
                  uint64_t value) {
  Operation one{};
  one.writeValue.operation = type;
  one.writeValue.address = address_of(word);
  one.writeValue.value64 = value;
  return one;
}
Operation waiting_for(const uint32_t* word, uint32_t value) {
  Operation one{};
  one.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  one.waitValue.address = address_of(word);
  one.waitValue.value = value;
  one.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return one;
}
CUresult batch(std::vector<Operation> operations, cudaStream_t stream,
               unsigned flags = 0) {
  return NOTED(DRIVER(cuStreamBatchMemOp)(
      stream, static_cast<unsigned>(operations.size()), operations.data(),
      flags));
}

CUresult waits_by_batch(const Words& word, uint32_t value,
                        cudaStream_t stream) {
  return batch({waiting_for(word.data, value)}, stream);
}
CUresult writes_by_batch(const Words& word, uint32_t value,
                         cudaStream_t stream) {
  return batch({writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, word.data, value)},
               stream);
}

}  // namespace

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
  needs(gpus(1), legacy_memory);
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
  needs(gpus(1), vmm_fd);
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
  needs(gpus(1), vmm_fd);
  word_of_an_import_orders({far_word_of_64_bits, wait_for_64, write_64, true});
}

TEST(DeviceFlags, ABatchReachesAnImportOfADescriptor) {
  covers("FLAG-09");
  needs(gpus(1), vmm_fd);
  word_of_an_import_orders({far_word, waits_by_batch, writes_by_batch});
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
  needs(gpus(1));
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

TEST(DeviceFlags, AWaitInABatchHoldsWorkOfEveryKind) {
  covers("FLAG-09");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer word(kWordBytes);
    const Stream stream;
    expect_work_is_held(word, stream, [&](cudaStream_t waiting) {
      return batch({waiting_for(word.data, kAwaited)}, waiting);
    });
  });
  scenario.run(20s);
}

TEST(DeviceFlags, ABatchComesAfterWorkOfEveryKind) {
  covers("FLAG-09");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer word(kWordBytes);
    const Stream stream;
    expect_word_comes_after_work(word, stream, [&](cudaStream_t writes) {
      return batch(
          {writing(CU_STREAM_MEM_OP_WRITE_VALUE_32, word.data, kAwaited)},
          writes);
    });
  });
  scenario.run(20s);
}

// The documentation of the number of operations: "Must be less than 256"
TEST(DeviceFlags, ABatchHasRoomFor255Operations) {
  covers("FLAG-09");
  needs(gpus(1));
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
