// Words in shared memory: GPU work of one process writes them, and GPU work of
// another process waits for them. Mirror of samples/13_device_flags.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda/atomic>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/pool.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kBytes = 2 << 20;
constexpr size_t kWordBytes = 4096;     // one word is used
constexpr uint32_t kAwaited = 0xA0007;  // more than two bytes count
constexpr uint32_t kRounds = 50;
constexpr int kLooks = 20;

CUresult wait_for(const Words& word, uint32_t value, cudaStream_t stream,
                  unsigned flags = CU_STREAM_WAIT_VALUE_EQ) {
  return NOTED(
      DRIVER(cuStreamWaitValue32)(stream, address_of(word.data), value, flags));
}

CUresult write(const Words& word, uint32_t value, cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWriteValue32)(
      stream, address_of(word.data), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

// An odd word, far from the begin of its memory.
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

// Gives up after 20 s of the GPU's clock.
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

// How one side waits for a round and says that it is done.
struct Way {
  void (*wait)(const Words&, uint32_t, cudaStream_t);
  void (*tell)(const Words&, uint32_t, cudaStream_t);
};

const Way kByStream = {
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(wait_for(word, value, stream));
    },
    [](const Words& word, uint32_t value, cudaStream_t stream) {
      EXPECT_SUCCESS(write(word, value, stream));
    }};
const Way kByKernels = {queue_await, queue_publish};

// Loading a kernel may wait for a kernel that waits.
void load_kernels(const Words& word, const Words& data, WrongWords* wrong) {
  queue_publish(word, 0, nullptr);
  queue_await(word, 0, nullptr);
  data.fill(round_pattern(0));
  wrong->queue_count(data, round_pattern(0), nullptr);
  CALL(cudaDeviceSynchronize());
}

// The exporter writes the values of each round and then the word; the importer
// counts wrong values and writes the word in return. All of it is queued at
// once.
void every_round_is_seen(const Way& way) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [way](Role& me) {
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

TEST(DeviceFlags, AStreamWaitsForAWordOfAnotherProcess) {
  covers("FLAG-01");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    clear(buffer);
    const Words word = far_word(buffer);
    const Stream stream;
    me.send("word", buffer.legacy_handle());
    me.wait("importer waits");
    EXPECT_SUCCESS(write(word, kAwaited - 1, stream));
    EXPECT_TRUE(passes(stream));
    uint32_t seen[2] = {};
    CALL(cudaMemcpy(seen, word.data, sizeof seen, cudaMemcpyDeviceToHost));
    EXPECT_EQ(seen[0], kAwaited - 1);
    EXPECT_EQ(seen[1], 0u) << "the word after it";
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
    const Stream stream, second, other;
    const cudaStream_t waiting[] = {stream, second, nullptr};
    for (const cudaStream_t each : waiting)
      EXPECT_SUCCESS(wait_for(word, kAwaited, each));
    EXPECT_TRUE(is_held(stream));
    for (const cudaStream_t each : waiting)
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(each));
    EXPECT_TRUE(passes(other));
    me.signal("importer waits");
    me.wait("another value is written");
    // Together more than a second, after which no wait may end.
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(is_held(stream));
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

TEST(DeviceFlags, AWrittenWordComesAfterWhatItsStreamWrote) {
  covers("FLAG-02");
  needs(gpus(1), legacy_memory);
  every_round_is_seen(kByStream);
}

TEST(DeviceFlags, EachConditionWaitsForItsValues) {
  covers("FLAG-03");
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    struct Case {
      const char* name;
      unsigned flags;
      uint32_t value, holds, lets_pass;
    };
    const Case cases[] = {
        {"greater", CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
        {"equal is enough", CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 5},
        {"greater after the wrap", CU_STREAM_WAIT_VALUE_GEQ, 0xFFFFFFFE,
         0xFFFFFFFD, 1},
        {"less before the wrap", CU_STREAM_WAIT_VALUE_GEQ, 1, 0xFFFFFFFE, 1},
        {"equal alone", CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
        {"any common bit", CU_STREAM_WAIT_VALUE_AND, 6, 9, 2},
        {"the highest bit", CU_STREAM_WAIT_VALUE_AND, 0x80000000, 0x7FFFFFFF,
         0x80000000},
    };
    const DeviceBuffer word(kWordBytes);
    const Stream waits, writes;
    for (const Case& one : cases) {
      SCOPED_TRACE(one.name);
      EXPECT_SUCCESS(write(word, one.holds, writes));
      EXPECT_TRUE(passes(writes));
      EXPECT_SUCCESS(wait_for(word, one.value, waits, one.flags));
      // Leaves time for the wait to take effect.
      for (int look = 0; look < kLooks; ++look) {
        EXPECT_SUCCESS(write(word, one.holds, writes));
        ASSERT_TRUE(passes(writes));
      }
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(waits));
      EXPECT_SUCCESS(write(word, one.lets_pass, writes));
      EXPECT_TRUE(passes(waits));
      // Each condition is true for its own value, so no stream waits at the
      // end.
      EXPECT_SUCCESS(write(word, one.value, writes));
      ASSERT_TRUE(passes(waits));
    }
  });
  scenario.run(30s);
}

TEST(DeviceFlags, AtomicsOfSystemScopeOrderTwoProcesses) {
  covers("FLAG-04");
  needs(gpus(1), legacy_memory);
  every_round_is_seen(kByKernels);
}

namespace {

// Waits for the value that is there, and writes another one.
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
  Scenario scenario;
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
    // The condition is already true, and the written value is the present
    // value. So nothing hangs and nothing changes if the call is not refused.
    EXPECT_REFUSED(DRIVER(cuStreamWaitValue32)(stream, address_of(word.data), 0,
                                               CU_STREAM_WAIT_VALUE_EQ),
                   CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_REFUSED(
        DRIVER(cuStreamWriteValue32)(stream, address_of(word.data), 0,
                                     CU_STREAM_WRITE_VALUE_DEFAULT),
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_TRUE(passes(stream));
    EXPECT_TRUE(context_is_usable());
    CALL(cudaFree(memory));
  });
  scenario.run(20s);
}
