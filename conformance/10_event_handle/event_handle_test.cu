// An event, lent to another process by a handle.
// Mirror of samples/10_event_handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "harness/scenario/cuda.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr int kReopens = 1000;
constexpr int kLooks = 50;
constexpr auto kLongWait = 200ms;  // of a host, to see whether it spins
constexpr double kMaySpin = 0.5;   // of that time

/// What the exporter lends: memory, and the event that shows when to read it.
struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

void nothing(const SharedEvent&) {}

/// An exporter that writes `written` and records after a latch. It releases the
/// latch when the importer has said `ready`. Another latch, before the writing,
/// is released earlier: the record must be done after the last work, not after
/// the first. `looks_on` runs while the latch holds, `looks_back` when the work
/// is done. All work is in a new stream, or in the given stream.
std::function<void(Role&)> records_late(
    Pattern written, void (*looks_on)(const SharedEvent&) = nothing,
    void (*looks_back)(const SharedEvent&) = nothing,
    std::optional<cudaStream_t> given = {}, bool with_flags = false) {
  return [=](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("old"));
    const Stream own;
    const cudaStream_t stream = given.value_or(own);
    const SharedEvent event;
    const Handles handles{buffer.legacy_handle(), event.handle()};
    Latch first, latch;
    first.hold(stream);
    buffer.queue_fill(written, stream);
    latch.hold(stream);
    if (with_flags)
      CALL(cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault));
    else
      CALL(cudaEventRecord(event, stream));
    me.send("handles", handles);

    for (int i = 0; i < kLooks; ++i) {
      if (i == kLooks / 2) first.release();
      me.wait("look");
      me.signal("looked");
    }
    me.wait("ready");
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    looks_on(event);
    latch.release();
    EXPECT_TRUE(passes(stream));
    looks_back(event);
    me.signal("done");
    me.wait("closed");
  };
}

/// Round trips to the exporter. They take time, so that a call that returns too
/// early is noticed.
void look_on(Role& me) {
  for (int i = 0; i < kLooks; ++i) {
    me.signal("look");
    me.wait("looked");
  }
}

}  // namespace

TEST(EventHandle, IsSixtyFourBytesOfAnInterprocessEvent) {
  covers("LEVT-01");
  static_assert(sizeof(cudaIpcEventHandle_t) == 64);
  static_assert(sizeof(CUipcEventHandle) == 64);
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    cudaEvent_t event = nullptr;
    EXPECT_SUCCESS(cudaEventCreateWithFlags(
        &event, cudaEventInterprocess | cudaEventDisableTiming));
    struct Guarded {
      Sentinel<cudaIpcEventHandle_t> handle;
      Sentinel<cudaIpcEventHandle_t> after;
    } guarded;
    EXPECT_SUCCESS(cudaIpcGetEventHandle(guarded.handle.out(), event));
    EXPECT_TRUE(guarded.handle.touched());
    EXPECT_FALSE(guarded.after.touched()) << "wrote more than 64 bytes";
    EXPECT_SUCCESS(cudaEventDestroy(event));
  });
  scenario.run(20s);
}

TEST(EventHandle, ImportIsUsedAndDestroyedLikeALocalEvent) {
  covers("LEVT-06");
  needs(gpus(1), legacy_events);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const SharedEvent event;
    const Stream stream;
    CALL(cudaEventRecord(event, stream));
    CALL(cudaStreamSynchronize(stream));
    me.send("handle", event.handle());
    me.wait("closed");
    EXPECT_SUCCESS(cudaEventQuery(event));
  });

  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcEventHandle_t>("handle");
    const Stream stream;
    const auto use = [&](int) {
      Sentinel<cudaEvent_t> opened;
      EXPECT_SUCCESS(cudaIpcOpenEventHandle(opened.out(), handle));
      const cudaEvent_t event = opened.result();
      EXPECT_SUCCESS(cudaEventQuery(event));
      EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
      EXPECT_SUCCESS(cudaEventRecord(event, stream));
      EXPECT_SUCCESS(cudaEventSynchronize(event));
      EXPECT_SUCCESS(cudaEventDestroy(event));
    };
    // Others may use this GPU, too, so its memory is not judged.
    leaves_nothing(kReopens, use, Judge::kProcess);
    me.signal("closed");
  });

  scenario.run(30s);
}

// A memset, a copy and a kernel of the importer, queued in `stream` after a
// wait. The memset sets the last word, which the exporter has written before.
static void works_after_a_wait(Role& me, const Pattern& written,
                               cudaStream_t stream,
                               bool destroys_early = false) {
  const DeviceBuffer by_copy(kBytes), by_kernel(kBytes);
  launch_copy(by_kernel, by_copy, stream);  // loads the kernel
  CALL(cudaStreamSynchronize(stream));
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  if (destroys_early) event.destroy();  // the stream still waits
  constexpr size_t kRest = kBytes - sizeof(uint32_t);
  CALL(cudaMemsetAsync(mapping.data + mapping.count - 1, 0x3C, kBytes - kRest,
                       stream));
  CALL(cudaMemcpyAsync(by_copy.data, mapping.data, kBytes,
                       cudaMemcpyDeviceToDevice, stream));
  launch_copy(by_kernel, mapping, stream);
  look_on(me);
  EXPECT_TRUE(is_held(stream)) << "before the work was done";
  me.signal("ready");

  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(Words(by_copy.data, kRest), written)) << "by copy";
  EXPECT_TRUE(kernel_reads(Words(by_kernel.data, kRest), written))
      << "by kernel";
  uint32_t last = 0;
  CALL(cudaMemcpy(&last, by_kernel.data + by_kernel.count - 1, sizeof last,
                  cudaMemcpyDeviceToHost));
  EXPECT_EQ(last, 0x3C3C3C3Cu) << "memset after the wait";
  if (!destroys_early) event.destroy();
  mapping.close();
  me.signal("closed");
}

TEST(EventHandle, WorkBehindAWaitSeesWhatTheRecordCaptured) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", records_late(written));
  scenario.role("importer", [written](Role& me) {
    const Stream stream;
    works_after_a_wait(me, written, stream);
  });
  scenario.run(30s);
}

TEST(EventHandle, DefaultStreamsRecordAndWaitAsOthers) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario;
  scenario.role("exporter", [written](Role& me) {
    cudaStream_t blocking = nullptr;  // it waits for the default stream
    CALL(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    records_late(written, nothing, nothing, nullptr)(me);
    records_late(written, nothing, nothing, cudaStreamPerThread)(me);
    records_late(written, nothing, nothing, blocking, true)(me);
    CALL(cudaStreamDestroy(blocking));
  });
  scenario.role("importer", [written](Role& me) {
    cudaStream_t blocking = nullptr;
    CALL(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    works_after_a_wait(me, written, nullptr);
    works_after_a_wait(me, written, cudaStreamPerThread, true);
    works_after_a_wait(me, written, blocking);
    CALL(cudaStreamDestroy(blocking));
  });
  scenario.run(30s);
}

TEST(EventHandle, SynchronizeReturnsOnlyAfterTheRecordedWork) {
  covers("LEVT-08");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", records_late(written));

  scenario.role("importer", [written](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    LegacyMapping mapping(handles.memory, kBytes);
    SharedEvent event(handles.event);
    HostWait waiter(event);
    look_on(me);
    EXPECT_TRUE(waiter.is_held()) << "before the work was done";
    me.signal("ready");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_TRUE(copy_reads(mapping, written));
    EXPECT_TRUE(kernel_reads(mapping, written));
    event.destroy();
    mapping.close();
    me.signal("closed");
  });

  scenario.run(30s);
}

TEST(EventHandle, QueryTellsPendingFromDone) {
  covers("LEVT-09");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", records_late(
                                written,
                                [](const SharedEvent& event) {
                                  EXPECT_CODE(cudaErrorNotReady,
                                              cudaEventQuery(event));
                                },
                                [](const SharedEvent& event) {
                                  EXPECT_SUCCESS(cudaEventQuery(event));
                                }));

  scenario.role("importer", [written](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    LegacyMapping mapping(handles.memory, kBytes);
    SharedEvent event(handles.event);
    look_on(me);
    EXPECT_TRUE(is_held(event));
    me.signal("ready");
    me.wait("done");
    EXPECT_SUCCESS(cudaEventQuery(event));
    EXPECT_TRUE(kernel_reads(mapping, written));
    EXPECT_TRUE(copy_reads(mapping, written));
    event.destroy();
    mapping.close();
    me.signal("closed");
  });

  scenario.run(30s);
}

TEST(EventHandle, NeverRecordedStandsForNoWork) {
  covers("LEVT-11");
  needs(gpus(1), legacy_events);
  const auto blocks_nobody = [](cudaEvent_t event) {
    ASSERT_EQ(NOTED(cudaEventQuery(event)), cudaSuccess);
    EXPECT_SUCCESS(cudaEventSynchronize(event));
    const Stream stream;
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
    EXPECT_TRUE(passes(stream));
  };
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [=](Role& me) {
    const SharedEvent event;
    blocks_nobody(event);
    me.send("handle", event.handle());
    me.wait("asked");
    blocks_nobody(event);
  });

  scenario.role("importer", [=](Role& me) {
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
    blocks_nobody(event);
    event.destroy();
    me.signal("asked");
  });

  scenario.run(20s);
}

// An exporter whose event blocks the thread that waits.
static void waits_without_spinning(Role& me) {
  const Pattern written = pattern("exporter");
  const DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("old"));
  const Stream stream;
  cudaEvent_t created = nullptr;
  EXPECT_SUCCESS(cudaEventCreateWithFlags(&created, cudaEventInterprocess |
                                                        cudaEventDisableTiming |
                                                        cudaEventBlockingSync));
  Latch latch;
  latch.hold(stream);
  buffer.queue_fill(written, stream);
  CALL(cudaEventRecord(created, stream));
  Handles handles{buffer.legacy_handle(), {}};
  EXPECT_SUCCESS(cudaIpcGetEventHandle(&handles.event, created));
  me.send("handles", handles);

  HostWait waiter(created);
  me.wait("waiting");
  const auto until = std::chrono::steady_clock::now() + kLongWait;
  while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_FALSE(waiter.returned()) << "before the work was done";
  latch.release();
  EXPECT_EQ(waiter.join(), cudaSuccess);
  // A blocked thread uses almost no processor time while it waits.
  const double spun = static_cast<double>(waiter.cpu_us()) /
                      static_cast<double>(waiter.waited_us());
  me.observe("the waiting thread used " + std::to_string(waiter.cpu_us()) +
             " us of processor time in " + std::to_string(waiter.waited_us()) +
             " us");
  expected_but_saw("a blocked thread", "a thread that spins");
  EXPECT_LT(spun, kMaySpin) << "of its time the thread was not blocked";
  EXPECT_TRUE(kernel_reads(buffer, written));
  me.wait("closed");
  EXPECT_SUCCESS(cudaEventDestroy(created));
}

TEST(EventHandle, BlockingSyncIsKeptWithInterprocess) {
  covers("LEVT-22");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario;

  scenario.role("exporter", waits_without_spinning);

  scenario.role("importer", [=](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    LegacyMapping mapping(handles.memory, kBytes);
    SharedEvent event(handles.event);
    HostWait waiter(event);
    for (int i = 0; i < kLooks; ++i)
      EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_TRUE(waiter.is_held()) << "before the work was done";
    me.signal("waiting");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    // "As an event created with cudaEventDisableTiming": only the exporter's
    // own event blocks.
    me.observe("the waiting thread used " + std::to_string(waiter.cpu_us()) +
               " us of processor time in " +
               std::to_string(waiter.waited_us()) + " us");
    EXPECT_TRUE(kernel_reads(mapping, written));
    EXPECT_TRUE(copy_reads(mapping, written));
    event.destroy();
    mapping.close();
    me.signal("closed");
  });

  scenario.run(30s);
}

TEST(EventHandle, EveryThreadMayUseTheEvent) {
  covers("LEVT-27");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Stream stream;
    const SharedEvent event;
    Latch latch;
    latch.hold(stream);
    Sentinel<cudaIpcEventHandle_t> handles[2];
    cudaError_t codes[2], recorded[2];
    in_two_threads([&](int i) {
      codes[i] = cudaIpcGetEventHandle(handles[i].out(), event);
      recorded[i] = cudaEventRecord(event, stream);
    });
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(codes[i], cudaSuccess) << "in thread " << i;
      EXPECT_EQ(recorded[i], cudaSuccess) << "in thread " << i;
    }
    me.send("handle", handles[1].result());
    me.wait("ready");
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.wait("destroyed");
  });

  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcEventHandle_t>("handle");
    CALL(cudaFree(nullptr));
    Sentinel<cudaEvent_t> opened[2];
    cudaError_t codes[2];
    in_two_threads([&](int i) {
      codes[i] = cudaIpcOpenEventHandle(opened[i].out(), handle);
    });
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(codes[i], cudaSuccess) << "in thread " << i;
    EXPECT_SUCCESS(cudaEventDestroy(opened[0].result()));
    const cudaEvent_t event = opened[1].result();
    const Stream stream;
    EXPECT_SUCCESS(
        in_a_thread([&] { return cudaStreamWaitEvent(stream, event, 0); }));
    EXPECT_EQ(in_a_thread([&] { return cudaEventQuery(event); }),
              cudaErrorNotReady);
    EXPECT_TRUE(is_held(stream));
    HostWait waiter(event);
    EXPECT_TRUE(waiter.is_held());
    me.signal("ready");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_TRUE(passes(stream));
    EXPECT_SUCCESS(in_a_thread([&] { return cudaEventDestroy(event); }));
    me.signal("destroyed");
  });

  scenario.run(30s);
}

// Two events of one process, each with its own stream. The importer opens them
// in a different order from that of their creation.
TEST(EventHandle, TwoEventsAreKeptApart) {
  covers("LEVT-28");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Stream stream_a, stream_b;
    SharedEvent a, b;
    Latch latch_a, latch_b;
    latch_a.hold(stream_a);
    latch_b.hold(stream_b);
    CALL(cudaEventRecord(a, stream_a));
    CALL(cudaEventRecord(b, stream_b));
    me.send("b", b.handle());
    me.send("a", a.handle());
    me.wait("both are pending");
    latch_b.release();
    EXPECT_TRUE(passes(stream_b));
    EXPECT_SUCCESS(cudaEventQuery(b));
    EXPECT_SUCCESS(cudaEventSynchronize(b));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(a));
    me.signal("b is done");
    me.wait("b is destroyed");
    b.destroy();
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(a));
    latch_a.release();
    EXPECT_TRUE(passes(stream_a));
    me.signal("a is done");
    me.wait("closed");
    EXPECT_SUCCESS(cudaEventQuery(a));
  });

  scenario.role("importer", [](Role& me) {
    SharedEvent b(me.receive<cudaIpcEventHandle_t>("b"));
    SharedEvent a(me.receive<cudaIpcEventHandle_t>("a"));
    const Stream after_a, after_b;
    for (const cudaEvent_t one : {cudaEvent_t{b}, cudaEvent_t{a}})
      EXPECT_SUCCESS(cudaStreamWaitEvent(after_a, one, 0));
    EXPECT_SUCCESS(cudaStreamWaitEvent(after_b, b, 0));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(a));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(b));
    me.signal("both are pending");
    me.wait("b is done");
    EXPECT_SUCCESS(cudaEventSynchronize(b));
    EXPECT_SUCCESS(cudaEventQuery(b));
    EXPECT_TRUE(passes(after_b));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(a));
    EXPECT_TRUE(is_held(after_a));
    b.destroy();
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(a));
    me.signal("b is destroyed");
    me.wait("a is done");
    EXPECT_SUCCESS(cudaEventQuery(a));
    EXPECT_TRUE(passes(after_a));
    a.destroy();
    me.signal("closed");
  });

  scenario.run(30s);
}
