// Work of every kind before and after a word.
// Mirror of samples/13_device_flags.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cuda/atomic>
#include <functional>
#include <thread>
#include <utility>

#include "conformance/13_device_flags/device_flags_test.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using SystemWord = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;

__global__ void publish(uint32_t* word, uint32_t value) {
  SystemWord(*word).store(value, cuda::memory_order_release);
}

void queue_publish(const Words& word, uint32_t value, cudaStream_t stream) {
  note_call("publish<<<>>>");
  publish<<<1, 1, 0, stream>>>(word.data, value);
  CALL(cudaGetLastError());
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
  needs(gpus(1), progress);
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
  needs(gpus(1), progress);
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

TEST(DeviceFlags, AWaitFor64BitsHoldsWorkOfEveryKind) {
  covers("FLAG-07");
  needs(gpus(1), progress);
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
  needs(gpus(1), progress);
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

TEST(DeviceFlags, AWaitInABatchHoldsWorkOfEveryKind) {
  covers("FLAG-09");
  needs(gpus(1), progress);
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
  needs(gpus(1), progress);
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
