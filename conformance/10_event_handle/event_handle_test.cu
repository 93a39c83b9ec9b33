// An event, lent to another process by a handle.
// Mirror of samples/10_event_handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "harness/scenario/cuda.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr int kReopens = 1000;
constexpr int kLooks = 50;
constexpr auto kLongWait = 200ms;  // of a host, to see whether it spins
constexpr double kMaySpin = 0.5;   // of that time

/// What the exporter lends: memory, and the event that says when to read it.
struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

void nothing(const SharedEvent&) {}

/// An exporter that writes `written` and records after a latch, which it
/// releases once the importer has said `ready`. `looks_on` runs while the latch
/// holds, `looks_back` once the work is done. All of it is in a stream of its
/// own, or in the default stream.
std::function<void(Role&)> records_late(
    Pattern written, void (*looks_on)(const SharedEvent&) = nothing,
    void (*looks_back)(const SharedEvent&) = nothing,
    bool in_default_stream = false) {
  return [=](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("old"));
    const Stream own;
    const cudaStream_t stream = in_default_stream ? cudaStream_t{} : own;
    const SharedEvent event;
    const Handles handles{buffer.legacy_handle(), event.handle()};
    Latch latch;
    latch.hold(stream);
    buffer.queue_fill(written, stream);
    CALL(cudaEventRecord(event, stream));
    me.send("handles", handles);

    for (int i = 0; i < kLooks; ++i) {
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

/// Round trips to the exporter, in which a call that returns early would show.
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

// A copy and a kernel of the importer, queued in `stream` after a wait.
static void works_after_a_wait(Role& me, const Pattern& written,
                               cudaStream_t stream) {
  const DeviceBuffer by_copy(kBytes), by_kernel(kBytes);
  launch_copy(by_kernel, by_copy, stream);  // loads the kernel
  CALL(cudaStreamSynchronize(stream));
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  CALL(cudaMemcpyAsync(by_copy.data, mapping.data, kBytes,
                       cudaMemcpyDeviceToDevice, stream));
  launch_copy(by_kernel, mapping, stream);
  look_on(me);
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  me.signal("ready");

  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(by_copy, written)) << "copy after the wait";
  EXPECT_TRUE(kernel_reads(by_kernel, written)) << "kernel after the wait";
  event.destroy();
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
  scenario.role("exporter", records_late(written, nothing, nothing, true));
  scenario.role("importer", [written](Role& me) {
    works_after_a_wait(me, written, nullptr);
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
    EXPECT_FALSE(waiter.returned()) << "before the work was done";
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
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
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
  // A thread that is blocked uses next to nothing of the time it waits.
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
    EXPECT_FALSE(waiter.returned()) << "before the work was done";
    me.signal("waiting");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    // "As an event created with cudaEventDisableTiming": blocking is the
    // exporter's alone.
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
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    HostWait waiter(event);
    EXPECT_FALSE(waiter.returned());
    me.signal("ready");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_TRUE(passes(stream));
    EXPECT_SUCCESS(in_a_thread([&] { return cudaEventDestroy(event); }));
    me.signal("destroyed");
  });

  scenario.run(30s);
}

// Two events of one process, each with its own stream; the importer opens them
// in another order than they were made.
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
    EXPECT_SUCCESS(cudaStreamWaitEvent(after_a, a, 0));
    EXPECT_SUCCESS(cudaStreamWaitEvent(after_b, b, 0));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(a));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(b));
    me.signal("both are pending");
    me.wait("b is done");
    EXPECT_SUCCESS(cudaEventSynchronize(b));
    EXPECT_SUCCESS(cudaEventQuery(b));
    EXPECT_TRUE(passes(after_b));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(a));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(after_a));
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
