// An event, lent to another process by a handle.
// Mirror of samples/10_event_handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr auto kFirst = Stream::Kind::kUrgent;
constexpr int kReopens = 1000;
constexpr int kLooks = 50;
constexpr int kMany = 300;         // events, more than a byte can count
constexpr auto kLongWait = 200ms;  // how long a host thread waits
constexpr double kMaySpin = 0.1;   // largest part of a wait that may spin
constexpr unsigned kBlocking =
    cudaEventInterprocess | cudaEventDisableTiming | cudaEventBlockingSync;

/// What the exporter lends: memory, and the event that shows when to read the
/// memory. Both APIs export the event.
struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  cudaIpcEventHandle_t by_driver;
};

cudaIpcEventHandle_t handle_by_driver(cudaEvent_t event) {
  Sentinel<cudaIpcEventHandle_t> handle;
  CALL(DriverApi::ipc_get_event_handle(handle.out(), event));
  return handle.result();
}

/// The event of a handle, opened by the driver API.
cudaEvent_t opened_by_driver(const cudaIpcEventHandle_t& handle) {
  Sentinel<cudaEvent_t> event;
  CALL(DriverApi::ipc_open_event_handle(event.out(), handle));
  return event.result();
}

void nothing(const SharedEvent&) {}

/// Judges that the event is pending for 1.5 s: a wait that ends after a second
/// is noticed.
void holds_on(const SharedEvent& event) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_held(event));
}

/// Does the call return within 3 s?
bool ends(const HostWait& waiter) {
  for (int i = 0; i < 6; ++i)
    if (!waiter.is_held()) return true;
  return false;
}

/// An exporter that writes `written` and records the event after a latch. It
/// releases the latch when the importer has said `ready`. Another latch, before
/// the writing, is released earlier: the record must complete after the last
/// work, not after the first work. `looks_on` runs while the latch holds,
/// `looks_back` when the work is done. Later work of the stream, which the
/// record does not include, is held until the importer has said `closed`. All
/// work is in a new stream, or in the stream `given`. The record may be in
/// another stream, `recorded_in`.
std::function<void(Role&)> records_late(
    Pattern written, void (*looks_on)(const SharedEvent&) = nothing,
    void (*looks_back)(const SharedEvent&) = nothing,
    std::optional<cudaStream_t> given = {}, bool with_flags = false,
    std::optional<cudaStream_t> recorded_in = {}) {
  return [=](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("old"));
    const Stream own, after;
    const cudaStream_t stream = given.value_or(own);
    const cudaStream_t records = recorded_in.value_or(stream);
    const SharedEvent event;
    const cudaIpcMemHandle_t memory = buffer.legacy_handle();
    Latch first, latch, later;
    first.hold(stream);
    buffer.queue_fill(written, stream);
    latch.hold(stream);
    if (with_flags)
      CALL(cudaEventRecordWithFlags(event, records, cudaEventRecordDefault));
    else
      CALL(cudaEventRecord(event, records));
    later.hold(records);
    // The export does not change what is recorded.
    me.send("handles",
            Handles{memory, event.handle(), handle_by_driver(event)});

    for (int i = 0; i < kLooks; ++i) {
      if (i == kLooks / 2) first.release();
      me.wait("look");
      me.signal("looked");
    }
    me.wait("ready");
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    looks_on(event);
    latch.release();
    CALL(cudaStreamWaitEvent(after, event, 0));
    EXPECT_TRUE(passes(after));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(records)) << "later work";
    EXPECT_SUCCESS(cudaEventQuery(event));
    HostWait waiter(event), by_driver = DriverApi::host_wait(event);
    EXPECT_TRUE(ends(waiter)) << "later work of the stream is held";
    EXPECT_TRUE(ends(by_driver)) << "later work of the stream is held";
    looks_back(event);
    me.signal("done");
    me.wait("closed");
    later.release();
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_EQ(by_driver.join(), cudaSuccess);
    EXPECT_TRUE(passes(records));
  };
}

/// Round trips to the exporter. They take time, so that a call that returns too
/// early is noticed. `meanwhile` runs after each of them.
void look_on(
    Role& me, const std::function<void()>& meanwhile = [] {}) {
  for (int i = 0; i < kLooks; ++i) {
    me.signal("look");
    me.wait("looked");
    meanwhile();
  }
}

}  // namespace

// The type of a handle has the alignment 1, so a handle may have any address.
// The sentinel guards the bytes on both sides of it.
template <class Api>
static void exports_to_an_odd_address(Api api, cudaEvent_t event) {
  static_assert(alignof(Sentinel<cudaIpcEventHandle_t>) == 1);
  struct Place {
    alignas(8) char before = 0;
    Sentinel<cudaIpcEventHandle_t> odd;
  } place;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place.odd.out()) % 8, 1u);
  EXPECT_SUCCESS(api.ipc_get_event_handle(place.odd.out(), event));
  EXPECT_TRUE(place.odd.touched());
}

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
    by_both_apis([&](auto api) { exports_to_an_odd_address(api, event); });
    EXPECT_SUCCESS(cudaEventDestroy(event));
  });
  scenario.run(20s);
}

// The call names an event, so it does not matter which GPU is current.
TEST(EventHandle, IsExportedWhileAnotherGpuIsCurrent) {
  covers("LEVT-01");
  needs(gpus(2), legacy_events);
  Scenario alone;
  alone
      .role("exporter",
            [](Role&) {
              const SharedEvent event;
              CALL(cudaSetDevice(1));
              event.handle();
              handle_by_driver(event);
              CALL(cudaSetDevice(0));
            })
      .may_end_by(SIGSEGV);
  alone.run(20s);
  const Ended& exporter = alone.ended("exporter");
  if (exporter.signal != 0) FAIL() << "it died of " << exporter.last_call;

  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const SharedEvent event;
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    CALL(cudaSetDevice(1));
    by_both_apis([&](auto api) {
      Sentinel<cudaIpcEventHandle_t> handle;
      EXPECT_SUCCESS(api.ipc_get_event_handle(handle.out(), event));
      me.send("handle" + by_the(api), handle.result());
    });
    CALL(cudaSetDevice(0));
    me.wait("asked");
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.wait("destroyed");
  });
  scenario.role("importer", [](Role& me) {
    const Stream stream;
    SharedEvent one(
        me.receive<cudaIpcEventHandle_t>("handle" + by_the(RuntimeApi{})));
    SharedEvent other(
        me.receive<cudaIpcEventHandle_t>("handle" + by_the(DriverApi{})));
    EXPECT_TRUE(is_held(one));
    EXPECT_TRUE(is_pending(other));
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, one, 0));
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, other, 0));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    me.signal("asked");
    EXPECT_TRUE(passes(stream));
    one.destroy();
    other.destroy();
    me.signal("destroyed");
  });
  scenario.run(30s);
}

// An importer that checks that nothing is left in its process.
static void uses_imports_like_its_own_events(Role& me) {
  const auto handle = me.receive<cudaIpcEventHandle_t>("handle");
  const Stream stream;
  const auto opened = [&](auto api) {
    Sentinel<cudaEvent_t> event;
    EXPECT_SUCCESS(api.ipc_open_event_handle(event.out(), handle));
    return event.result();
  };
  const auto use = [&](auto api) {
    const cudaEvent_t event = opened(api);
    EXPECT_SUCCESS(api.event_query(event));
    EXPECT_SUCCESS(api.stream_wait_event(stream, event));
    EXPECT_SUCCESS(api.event_record(event, stream));
    EXPECT_SUCCESS(api.event_synchronize(event));
    EXPECT_SUCCESS(api.event_destroy(event));
  };
  // Other tests may use this GPU, so its memory is not judged.
  const auto use_by_both = [&](int) { by_both_apis(use); };
  leaves_nothing(kReopens, use_by_both, Judge::kProcess);
  by_both_apis([&](auto api) {
    const cudaEvent_t event = opened(api);
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    EXPECT_CODE(api.kNotReady, api.event_query(event));
    EXPECT_SUCCESS(api.event_destroy(event)) << "before it is complete";
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.release();
    EXPECT_TRUE(passes(stream));
  });
  me.signal("closed");
}

TEST(EventHandle, ImportIsUsedAndDestroyedLikeALocalEvent) {
  covers("LEVT-06");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const SharedEvent event;
    const Stream stream;
    CALL(cudaEventRecord(event, stream));
    CALL(cudaStreamSynchronize(stream));
    me.send("handle", event.handle());
    me.wait("closed");
    EXPECT_SUCCESS(cudaEventQuery(event));
  });

  scenario.role("importer", uses_imports_like_its_own_events).in_new_process();

  scenario.run(30s);
}

namespace {

/// An importer that queues a memset, a copy and a kernel after a wait. The
/// memset sets the last word, which the exporter has written before. In another
/// stream it queues a copy after a wait by the driver API. A host thread also
/// copies to pageable memory: by a synchronous copy if `stream` is the null
/// stream, and else in a third stream after a wait. Before the work may be
/// done, the importer checks `looks` times, for 0.5 s each, that the work
/// waits. The wait may be in another stream, `waits_in`, for which `stream`
/// waits.
void works_after_a_wait(Role& me, const Pattern& written, cudaStream_t stream,
                        int looks = 1, bool destroys_early = false,
                        std::optional<cudaStream_t> waits_in = {}) {
  constexpr size_t kRest = kBytes - sizeof(uint32_t);
  const DeviceBuffer by_copy(kBytes), by_kernel(kBytes), beside(kRest);
  const Stream other, to_host;
  std::vector<uint32_t> at_once(kRest / sizeof(uint32_t), 0);
  launch_copy(by_kernel, by_copy, stream);  // loads the kernel
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemcpyAsync(at_once.data(), beside.data, kRest,
                       cudaMemcpyDeviceToHost, to_host));  // makes its buffers
  CALL(cudaStreamSynchronize(to_host));
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  const cudaEvent_t again = opened_by_driver(handles.by_driver);
  EXPECT_SUCCESS(cudaStreamWaitEvent(waits_in.value_or(stream), event, 0));
  EXPECT_SUCCESS(DriverApi::stream_wait_event(other, again));
  EXPECT_SUCCESS(cudaStreamWaitEvent(to_host, event, 0));
  HostWait host("cudaStreamSynchronize",
                [&]() -> cudaError_t { return cudaStreamSynchronize(other); });
  if (destroys_early) {  // the streams still wait
    event.destroy();
    EXPECT_SUCCESS(DriverApi::event_destroy(again));
  }
  CALL(cudaMemsetAsync(mapping.data + mapping.count - 1, 0x3C, kBytes - kRest,
                       stream));
  CALL(cudaMemcpyAsync(by_copy.data, mapping.data, kBytes,
                       cudaMemcpyDeviceToDevice, stream));
  launch_copy(by_kernel, mapping, stream);
  CALL(cudaMemcpyAsync(beside.data, mapping.data, kRest,
                       cudaMemcpyDeviceToDevice, other));
  const bool at_null = stream == nullptr && !waits_in;
  HostWait copies(at_null ? "cudaMemcpy" : "cudaMemcpyAsync", [&] {
    if (at_null)
      return cudaMemcpy(at_once.data(), mapping.data, kRest,
                        cudaMemcpyDeviceToHost);
    const cudaError_t code = cudaMemcpyAsync(
        at_once.data(), mapping.data, kRest, cudaMemcpyDeviceToHost, to_host);
    return code != cudaSuccess ? code : cudaStreamSynchronize(to_host);
  });
  look_on(me);
  for (int i = 0; i < looks; ++i)
    EXPECT_TRUE(is_held(stream)) << "before the work was done";
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(other));
  EXPECT_FALSE(host.returned()) << "before the work was done";
  EXPECT_FALSE(copies.returned()) << "before the work was done";
  me.signal("ready");

  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(passes(other));
  EXPECT_EQ(host.join(), cudaSuccess);
  EXPECT_EQ(copies.join(), cudaSuccess);
  EXPECT_TRUE(host_reads(Words(at_once.data(), kRest), written))
      << "in pageable memory";
  EXPECT_TRUE(kernel_reads(beside, written)) << "after cuStreamWaitEvent";
  if (!destroys_early) EXPECT_SUCCESS(cudaEventQuery(event));
  EXPECT_TRUE(kernel_reads(Words(by_copy.data, kRest), written)) << "by copy";
  EXPECT_TRUE(kernel_reads(Words(by_kernel.data, kRest), written))
      << "by kernel";
  uint32_t last = 0;
  CALL(cudaMemcpy(&last, by_kernel.data + by_kernel.count - 1, sizeof last,
                  cudaMemcpyDeviceToHost));
  EXPECT_EQ(last, 0x3C3C3C3Cu) << "memset after the wait";
  if (!destroys_early) {
    event.destroy();
    EXPECT_SUCCESS(DriverApi::event_destroy(again));
  }
  mapping.close();
  me.signal("closed");
}

}  // namespace

TEST(EventHandle, WorkBehindAWaitSeesWhatTheRecordCaptured) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", records_late(written));
  scenario.role("importer", [written](Role& me) {
    const Stream stream;
    // The importer checks for 1.5 s, so that a wait that ends after a second is
    // noticed.
    works_after_a_wait(me, written, stream, 3);
  });
  scenario.run(30s);
}

TEST(EventHandle, DefaultStreamsRecordAndWaitAsOthers) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [written](Role& me) {
    cudaStream_t blocking = nullptr;  // it waits for the default stream
    CALL(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    records_late(written, nothing, nothing, cudaStreamLegacy)(me);
    records_late(written, nothing, nothing, Stream(kFirst))(me);
    records_late(written, nothing, nothing, nullptr)(me);
    records_late(written, nothing, nothing, cudaStreamPerThread)(me);
    records_late(written, nothing, nothing, blocking, true)(me);
    records_late(written, nothing, nothing, blocking, false, nullptr)(me);
    records_late(written, nothing, nothing, nullptr, false, blocking)(me);
    CALL(cudaStreamDestroy(blocking));
  });
  scenario.role("importer", [written](Role& me) {
    cudaStream_t blocking = nullptr;
    CALL(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    works_after_a_wait(me, written, cudaStreamLegacy);
    works_after_a_wait(me, written, Stream(kFirst));
    works_after_a_wait(me, written, nullptr);
    works_after_a_wait(me, written, cudaStreamPerThread, 1, true);
    works_after_a_wait(me, written, blocking);
    works_after_a_wait(me, written, blocking, 1, false, nullptr);
    works_after_a_wait(me, written, nullptr, 1, false, blocking);
    CALL(cudaStreamDestroy(blocking));
  });
  scenario.run(30s);
}

namespace {

CUresult write_word(const Words& word, uint32_t value, cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWriteValue32)(
      stream, address_of(word.data), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

CUresult write_word_by_batch(const Words& word, uint32_t value,
                             cudaStream_t stream) {
  CUstreamBatchMemOpParams one{};
  one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  one.writeValue.address = address_of(word.data);
  one.writeValue.value = value;
  return NOTED(DRIVER(cuStreamBatchMemOp)(stream, 1, &one, 0));
}

uint32_t word_at(const Words& words) {
  uint32_t seen = 0;
  CALL(cudaMemcpy(&seen, words.data, sizeof seen, cudaMemcpyDeviceToHost));
  return seen;
}

// Streams that share a queue of the hardware wait for one another, and a
// context has 8 queues if the user says nothing else. So at most four streams
// wait at the same time: other queues stay free for work that comes too early.

// Copies of rows and between GPUs, and writes of words, are queued directly
// after a wait, each in a stream of its own. Host threads wait meanwhile.
void other_works_after_a_wait(Role& me, const Pattern& written) {
  constexpr size_t kRows = 2;
  const DeviceBuffer by_rows(kBytes), by_peer(kBytes), word(kBytes),
      batched(kBytes);
  const Words words[] = {word, batched};
  const Stream rows, peer, writes, batches;
  const cudaStream_t all[] = {rows, peer, writes, batches};
  for (const Words& each : words) CALL(cudaMemset(each.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  for (const cudaStream_t each : all)
    EXPECT_SUCCESS(cudaStreamWaitEvent(each, event, 0));
  CALL(cudaMemcpy2DAsync(by_rows.data, kBytes / kRows, mapping.data,
                         kBytes / kRows, kBytes / kRows, kRows,
                         cudaMemcpyDeviceToDevice, rows));
  CALL(cudaMemcpyPeerAsync(by_peer.data, 0, mapping.data, 0, kBytes, peer));
  EXPECT_SUCCESS(write_word(word, 7, writes));
  EXPECT_SUCCESS(write_word_by_batch(batched, 7, batches));
  look_on(me);
  EXPECT_TRUE(is_held(rows)) << "before the work was done";
  for (const cudaStream_t each : all) {
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(each));
    EXPECT_CODE(CUDA_ERROR_NOT_READY, DRIVER(cuStreamQuery)(each));
  }
  for (const Words& each : words)
    EXPECT_EQ(word_at(each), 0u) << "before the work was done";
  HostWait host("cudaDeviceSynchronize",
                []() -> cudaError_t { return cudaDeviceSynchronize(); });
  const auto in_a_context = [](auto call) {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    return code != cudaSuccess ? code : static_cast<cudaError_t>(call());
  };
  HostWait by_driver("cuStreamSynchronize", [&] {
    return in_a_context([&] { return DRIVER(cuStreamSynchronize)(rows); });
  });
  HostWait for_context("cuCtxSynchronize",
                       [&] { return in_a_context(synchronize_context); });
  EXPECT_TRUE(host.is_held()) << "before the work was done";
  EXPECT_FALSE(by_driver.returned()) << "before the work was done";
  EXPECT_FALSE(for_context.returned()) << "before the work was done";
  me.signal("ready");
  for (const cudaStream_t each : all) EXPECT_TRUE(passes(each));
  EXPECT_EQ(host.join(), cudaSuccess);
  EXPECT_EQ(by_driver.join(), cudaSuccess);
  EXPECT_EQ(for_context.join(), cudaSuccess);
  EXPECT_TRUE(kernel_reads(by_rows, written)) << "by rows";
  EXPECT_TRUE(kernel_reads(by_peer, written)) << "by cudaMemcpyPeerAsync";
  for (const Words& each : words) EXPECT_EQ(word_at(each), 7u);
  event.destroy();
  mapping.close();
  me.signal("closed");
}

// Host functions are queued directly after a wait, and events of this process
// are recorded directly after a wait. One stream still has work when it is told
// to wait, and one is destroyed while it waits.
void unusual_streams_wait(Role& me) {
  static std::atomic<int> called;  // by the host functions
  called = 0;
  const DeviceBuffer later(kBytes), last(kBytes);
  const Words words[] = {later, last};
  const Stream busy, calls, driver_calls;
  const cudaStream_t all[] = {busy, calls, driver_calls};
  cudaStream_t destroyed = nullptr;
  CALL(cudaStreamCreateWithFlags(&destroyed, cudaStreamNonBlocking));
  for (const Words& each : words) CALL(cudaMemset(each.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  SharedEvent event(handles.event);
  const SharedEvent plain(cudaEventDisableTiming), shared;
  Latch latch;
  latch.hold(busy);
  for (const cudaStream_t each : all)
    EXPECT_SUCCESS(cudaStreamWaitEvent(each, event, 0));
  EXPECT_SUCCESS(cudaEventRecord(plain, busy));
  latch.release();
  EXPECT_SUCCESS(write_word(later, 7, busy));
  const auto count = [](void*) { ++called; };
  CALL(cudaLaunchHostFunc(calls, count, nullptr));
  CALL(DRIVER(cuLaunchHostFunc)(driver_calls, count, nullptr));
  EXPECT_SUCCESS(cudaStreamWaitEvent(destroyed, event, 0));
  EXPECT_SUCCESS(DriverApi::event_record(shared, destroyed));
  EXPECT_SUCCESS(write_word(last, 7, destroyed));
  CALL(cudaStreamDestroy(destroyed));  // the work of the stream goes on
  look_on(me);
  EXPECT_TRUE(is_held(busy)) << "before the work was done";
  for (const cudaStream_t each : all)
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(each));
  for (const Words& each : words)
    EXPECT_EQ(word_at(each), 0u) << "before the work was done";
  EXPECT_EQ(called, 0) << "before the work was done";
  for (const cudaEvent_t each : {cudaEvent_t{plain}, cudaEvent_t{shared}})
    EXPECT_TRUE(is_pending(each)) << "before the work was done";
  me.signal("ready");
  for (const cudaStream_t each : all) EXPECT_TRUE(passes(each));
  CALL(cudaDeviceSynchronize());  // also for the stream that was destroyed
  for (const Words& each : words) EXPECT_EQ(word_at(each), 7u);
  EXPECT_EQ(called, 2) << "calls of the host functions";
  for (const cudaEvent_t each : {cudaEvent_t{plain}, cudaEvent_t{shared}})
    EXPECT_TRUE(is_done(each));
  event.destroy();
  me.signal("closed");
}

}  // namespace

TEST(EventHandle, AWaitHoldsOtherKindsOfWork) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [written](Role& me) {
    for (int i = 0; i < 2; ++i) records_late(written)(me);
  });
  scenario.role("importer", [written](Role& me) {
    other_works_after_a_wait(me, written);
    unusual_streams_wait(me);
  });
  scenario.run(30s);
}

namespace {

constexpr uint32_t kSevens = 0x07070707;

__global__ void set_word(uint32_t* word, uint32_t value) { *word = value; }

// Work that writes the first word of `to`: kSevens, or the first word of
// `from`.
struct Kind {
  const char* name;
  void (*queue)(const Words& to, const Words& from, cudaStream_t stream);
  bool copies = false;
};

cudaMemcpy3DParms box(const Words& to, const Words& from) {
  cudaMemcpy3DParms box{};
  box.srcPtr = make_cudaPitchedPtr(from.data, kBytes / 2, kBytes / 2, 2);
  box.dstPtr = make_cudaPitchedPtr(to.data, kBytes / 2, kBytes / 2, 2);
  box.extent = make_cudaExtent(kBytes / 2, 2, 1);
  box.kind = cudaMemcpyDefault;
  return box;
}

const Kind kKinds[] = {
    {"the memset of a rectangle",
     [](const Words& to, const Words&, cudaStream_t stream) {
       CALL(cudaMemset2DAsync(to.data, kBytes / 2, 7, kBytes / 2, 2, stream));
     }},
    {"the memset of a box",
     [](const Words& to, const Words&, cudaStream_t stream) {
       CALL(cudaMemset3DAsync(
           make_cudaPitchedPtr(to.data, kBytes / 2, kBytes / 2, 2), 7,
           make_cudaExtent(kBytes / 2, 2, 1), stream));
     }},
    {"cuMemsetD32Async",
     [](const Words& to, const Words&, cudaStream_t stream) {
       CALL(DRIVER(cuMemsetD32Async)(address_of(to.data), kSevens, to.count,
                                     stream));
     }},
    {"a launch with attributes",
     [](const Words& to, const Words&, cudaStream_t stream) {
       cudaLaunchConfig_t config{};
       config.gridDim = config.blockDim = dim3(1);
       config.stream = stream;
       CALL(cudaLaunchKernelEx(&config, set_word, to.data, kSevens));
     }},
    {"the copy of a box",
     [](const Words& to, const Words& from, cudaStream_t stream) {
       const cudaMemcpy3DParms parameters = box(to, from);
       CALL(cudaMemcpy3DAsync(&parameters, stream));
     },
     true},
    {"cuMemcpyDtoDAsync",
     [](const Words& to, const Words& from, cudaStream_t stream) {
       CALL(DRIVER(cuMemcpyDtoDAsync)(address_of(to.data),
                                      address_of(from.data), kBytes, stream));
     },
     true}};
constexpr size_t kAtOnce = 3;
static_assert(std::size(kKinds) % kAtOnce == 0);

// Queues kAtOnce of the kinds directly after a wait, each in a stream of its
// own.
void further_works_after_a_wait(Role& me, const Pattern& written,
                                const Kind* kinds) {
  const Stream streams[kAtOnce];
  std::vector<std::unique_ptr<DeviceBuffer>> targets;
  const DeviceBuffer source(kBytes);
  for (size_t i = 0; i < kAtOnce; ++i) {
    targets.push_back(std::make_unique<DeviceBuffer>(kBytes));
    kinds[i].queue(*targets[i], source, streams[i]);  // loads the kernels
    EXPECT_TRUE(passes(streams[i]));
    CALL(cudaMemset(targets[i]->data, 0, kBytes));
  }
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  for (size_t i = 0; i < kAtOnce; ++i) {
    EXPECT_SUCCESS(cudaStreamWaitEvent(streams[i], event, 0));
    kinds[i].queue(*targets[i], mapping, streams[i]);
  }
  look_on(me);
  EXPECT_TRUE(is_held(streams[0])) << "before the work was done";
  for (size_t i = 0; i < kAtOnce; ++i)
    EXPECT_EQ(word_at(*targets[i]), 0u) << kinds[i].name << " comes early";
  me.signal("ready");
  for (size_t i = 0; i < kAtOnce; ++i) {
    EXPECT_TRUE(passes(streams[i])) << kinds[i].name;
    EXPECT_EQ(word_at(*targets[i]), kinds[i].copies ? written.at(0) : kSevens)
        << kinds[i].name;
  }
  event.destroy();
  mapping.close();
  me.signal("closed");
}

// The same for copies from and to the host.
void host_copies_after_a_wait(Role& me, const Pattern& written) {
  const Stream from_host, to_host;
  const DeviceBuffer set(kBytes);
  const PinnedBuffer source(sizeof kSevens), target(sizeof kSevens);
  const volatile uint32_t& copied = target.data[0];
  source.data[0] = kSevens;
  CALL(cudaMemset(set.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  EXPECT_SUCCESS(cudaStreamWaitEvent(from_host, event, 0));
  CALL(cudaMemcpyAsync(set.data, source.data, sizeof(uint32_t),
                       cudaMemcpyHostToDevice, from_host));
  look_on(me);
  EXPECT_TRUE(is_held(from_host)) << "before the work was done";
  EXPECT_EQ(word_at(set), 0u) << "a copy from the host comes early";
  // word_at() could wait for this copy in a queue of the hardware.
  EXPECT_SUCCESS(cudaStreamWaitEvent(to_host, event, 0));
  CALL(cudaMemcpyAsync(target.data, mapping.data, sizeof(uint32_t),
                       cudaMemcpyDeviceToHost, to_host));
  EXPECT_TRUE(is_held(to_host)) << "before the work was done";
  EXPECT_EQ(copied, 0u) << "a copy to the host comes early";
  me.signal("ready");
  EXPECT_TRUE(passes(from_host));
  EXPECT_EQ(word_at(set), kSevens) << "a copy from the host";
  EXPECT_TRUE(passes(to_host));
  EXPECT_EQ(copied, written.at(0)) << "a copy to the host";
  event.destroy();
  mapping.close();
  me.signal("closed");
}

}  // namespace

TEST(EventHandle, AWaitHoldsFurtherKindsOfWork) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [written](Role& me) {
    for (size_t i = 0; i < std::size(kKinds) / kAtOnce; ++i)
      records_late(written)(me);
    records_late(written)(me);  // for the copies
  });
  scenario.role("importer", [written](Role& me) {
    for (size_t i = 0; i < std::size(kKinds); i += kAtOnce)
      further_works_after_a_wait(me, written, kKinds + i);
    host_copies_after_a_wait(me, written);
  });
  scenario.run(30s);
}

// "spins" if the waiting thread used the processor for more than half of its
// time, else "blocks".
static std::string how_it_waited(const HostWait& waiter) {
  return 2 * waiter.cpu_us() > waiter.waited_us() ? "spins" : "blocks";
}

namespace {

/// While this object lives, the signal interrupts the system calls of the
/// thread that gets it.
class InterruptingSignal {
 public:
  static constexpr int kSignal = SIGUSR1;
  InterruptingSignal() {
    struct sigaction handler {};
    handler.sa_handler = [](int) {};
    EXPECT_EQ(sigaction(kSignal, &handler, &before_), 0);
  }
  InterruptingSignal(const InterruptingSignal&) = delete;
  ~InterruptingSignal() { sigaction(kSignal, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

/// Two threads that wait for an event, one by each API, and get signals. An
/// InterruptingSignal must live as long.
class InterruptedWaits {
 public:
  explicit InterruptedWaits(cudaEvent_t event)
      : waits_{{"cudaEventSynchronize(event)",
                [=] {
                  return wait(0, [=] { return cudaEventSynchronize(event); });
                }},
               {"cuEventSynchronize(event)", [=] {
                  return wait(1, [=] {
                    const cudaError_t code = cudaSetDevice(0);
                    return code != cudaSuccess
                               ? code
                               : static_cast<cudaError_t>(
                                     DRIVER(cuEventSynchronize)(event));
                  });
                }}} {
    while (known_ < 2) std::this_thread::yield();
  }
  /// Sends a signal to both threads.
  void interrupt() {
    for (const pthread_t thread : threads_)
      pthread_kill(thread, InterruptingSignal::kSignal);
  }
  /// Has one of the calls returned?
  bool returned() const { return waits_[0].returned() || waits_[1].returned(); }
  /// Judges that both calls succeed.
  void join() {
    for (HostWait& each : waits_) EXPECT_EQ(each.join(), cudaSuccess);
  }

 private:
  template <class Call>
  cudaError_t wait(int i, Call call) {
    threads_[i] = pthread_self();
    ++known_;
    return call();
  }

  std::atomic<int> known_{0};
  pthread_t threads_[2]{};
  HostWait waits_[2];  // the last member: its threads use the others
};

}  // namespace

TEST(EventHandle, SynchronizeReturnsOnlyAfterTheRecordedWork) {
  covers("LEVT-08");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", records_late(written, holds_on));

  scenario.role("importer", [written](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    LegacyMapping mapping(handles.memory, kBytes);
    SharedEvent event(handles.event);
    const cudaEvent_t same = opened_by_driver(handles.by_driver);
    HostWait waiter(event), by_driver = DriverApi::host_wait(same);
    HostWait beside(event);  // two threads wait for one event
    const InterruptingSignal handled;
    InterruptedWaits interrupted(event);
    look_on(me, [&] { interrupted.interrupt(); });
    EXPECT_TRUE(waiter.is_held()) << "before the work was done";
    EXPECT_FALSE(interrupted.returned()) << "at a signal";
    EXPECT_FALSE(by_driver.returned()) << "before the work was done";
    EXPECT_FALSE(beside.returned()) << "before the work was done";
    me.signal("ready");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_EQ(beside.join(), cudaSuccess);
    interrupted.join();
    EXPECT_SUCCESS(cudaEventQuery(event));
    EXPECT_TRUE(copy_reads(mapping, written));
    EXPECT_TRUE(kernel_reads(mapping, written));
    EXPECT_EQ(by_driver.join(), cudaSuccess);
    me.observe("cudaEventSynchronize of an imported event without the flag " +
               how_it_waited(waiter));
    me.observe("cuEventSynchronize " + how_it_waited(by_driver));
    event.destroy();
    EXPECT_SUCCESS(DriverApi::event_destroy(same));
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
  scenario.role(
      "exporter",
      records_late(
          written,
          [](const SharedEvent& event) { EXPECT_TRUE(is_pending(event)); },
          [](const SharedEvent& event) { EXPECT_TRUE(is_done(event)); }));

  scenario.role("importer", [written](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    LegacyMapping mapping(handles.memory, kBytes);
    // A destroyed import does not affect an event that is opened later.
    SharedEvent(handles.event).destroy();
    SharedEvent event(handles.event);
    const cudaEvent_t same = opened_by_driver(handles.by_driver);
    look_on(me);
    EXPECT_TRUE(is_held(event));
    const Stream waits;
    for (const cudaEvent_t one : {cudaEvent_t{event}, same}) {
      EXPECT_TRUE(is_pending(one));
      EXPECT_SUCCESS(cudaStreamWaitEvent(waits, one, 0));
      EXPECT_TRUE(is_pending(one)) << "while a stream waits for it";
    }
    me.signal("ready");
    me.wait("done");
    EXPECT_TRUE(passes(waits));
    for (const cudaEvent_t one : {cudaEvent_t{event}, same})
      EXPECT_TRUE(is_done(one));
    EXPECT_SUCCESS(DriverApi::event_destroy(same));
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
    ASSERT_TRUE(is_done(event));
    const Stream stream;
    by_both_apis([&](auto api) {
      EXPECT_SUCCESS(api.event_synchronize(event));
      EXPECT_SUCCESS(api.stream_wait_event(stream, event));
    });
    EXPECT_TRUE(passes(stream));
  };
  // With its first record, an event stands for work. An event that is created
  // later does not take this over, even if the first event is destroyed.
  const auto stands_for_work = [=](auto record) {
    SharedEvent event;
    const Stream stream;
    blocks_nobody(event);
    Latch latch;
    latch.hold(stream);
    EXPECT_SUCCESS(record(event, stream));
    EXPECT_TRUE(is_pending(event));
    event.destroy();
    const SharedEvent next;
    blocks_nobody(next);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.release();
    EXPECT_TRUE(passes(stream));
  };
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [=](Role& me) {
    by_both_apis([&](auto api) {
      stands_for_work(api.event_record);
      stands_for_work(api.event_record_with_flags);
    });
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

// A blocked thread uses almost no processor time while it waits.
static void expect_blocked(Role& me, const char* call, const HostWait& waiter) {
  note_call(call);
  const double spun = static_cast<double>(waiter.cpu_us()) /
                      static_cast<double>(waiter.waited_us());
  me.observe("the waiting thread used " + std::to_string(waiter.cpu_us()) +
             " us of processor time in " + std::to_string(waiter.waited_us()) +
             " us");
  expected_but_saw("a blocked thread", "a thread that spins");
  EXPECT_LT(spun, kMaySpin) << "the thread spun for this part of its wait";
}

// An exporter with two events of cudaEventBlockingSync: the threads that wait
// for these events block and do not spin.
static void waits_without_spinning(Role& me) {
  const Pattern written = pattern("exporter");
  const DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("old"));
  const Stream stream;
  cudaEvent_t created = nullptr, other = nullptr;
  EXPECT_SUCCESS(RuntimeApi::event_create(&created, kBlocking));
  EXPECT_SUCCESS(DriverApi::event_create(&other, kBlocking));
  Latch latch;
  latch.hold(stream);
  buffer.queue_fill(written, stream);
  CALL(cudaEventRecord(created, stream));
  CALL(cudaEventRecord(other, stream));
  Handles handles{buffer.legacy_handle(), {}, {}};
  EXPECT_SUCCESS(cudaIpcGetEventHandle(&handles.event, created));
  EXPECT_SUCCESS(DriverApi::ipc_get_event_handle(&handles.by_driver, other));
  me.send("handles", handles);

  HostWait by_driver = DriverApi::host_wait(other), waiter(created);
  const InterruptingSignal handled;
  InterruptedWaits interrupted(created), interrupted_too(other);
  me.wait("waiting");
  const auto until = std::chrono::steady_clock::now() + kLongWait;
  for (int i = 0; std::chrono::steady_clock::now() < until; ++i) {
    if (i < kLooks) interrupted.interrupt(), interrupted_too.interrupt();
    std::this_thread::yield();
  }
  EXPECT_FALSE(waiter.returned()) << "before the work was done";
  EXPECT_FALSE(by_driver.returned()) << "before the work was done";
  EXPECT_FALSE(interrupted.returned()) << "at a signal";
  EXPECT_FALSE(interrupted_too.returned()) << "at a signal";
  latch.release();
  interrupted.join();
  interrupted_too.join();
  EXPECT_EQ(waiter.join(), cudaSuccess);
  EXPECT_EQ(by_driver.join(), cudaSuccess);
  expect_blocked(me, "cudaEventSynchronize(event) in a thread", waiter);
  expect_blocked(me, "cuEventSynchronize(event) in a thread", by_driver);
  EXPECT_TRUE(kernel_reads(buffer, written));
  me.wait("closed");
  EXPECT_SUCCESS(cudaEventDestroy(created));
  EXPECT_SUCCESS(cudaEventDestroy(other));
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
    const cudaEvent_t other = opened_by_driver(handles.by_driver);
    HostWait waiter(event), by_driver = DriverApi::host_wait(other);
    EXPECT_TRUE(waiter.is_held()) << "before the work was done";
    EXPECT_FALSE(by_driver.returned()) << "before the work was done";
    me.signal("waiting");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_EQ(by_driver.join(), cudaSuccess);
    // An import behaves "as an event created with cudaEventDisableTiming": only
    // waits for the exporter's own event must block.
    me.observe("the waiting thread used " + std::to_string(waiter.cpu_us()) +
               " us of processor time in " +
               std::to_string(waiter.waited_us()) + " us");
    EXPECT_TRUE(kernel_reads(mapping, written));
    EXPECT_TRUE(copy_reads(mapping, written));
    event.destroy();
    EXPECT_SUCCESS(DriverApi::event_destroy(other));
    mapping.close();
    me.signal("closed");
  });

  scenario.run(30s);
}

TEST(EventHandle, ABlockingEventOrdersWork) {
  covers("LEVT-22");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const SharedEvent event(kBlocking);
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    me.send("handle", event.handle());
    me.wait("waiting");
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.wait("recorded");
    EXPECT_TRUE(is_pending(event)) << "the importer's record";
    HostWait waiter(event), by_driver = DriverApi::host_wait(event);
    EXPECT_TRUE(waiter.is_held()) << "the importer's record";
    EXPECT_FALSE(by_driver.returned()) << "the importer's record";
    me.signal("pending");
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_EQ(by_driver.join(), cudaSuccess);
    me.wait("destroyed");
  });

  scenario.role("importer", [](Role& me) {
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
    const Stream stream;
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
    for (int i = 0; i < kLooks; ++i) EXPECT_TRUE(is_pending(event));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    me.signal("waiting");
    EXPECT_TRUE(passes(stream));
    EXPECT_TRUE(is_done(event));
    // The importer's record reaches the exporter.
    Latch latch;
    latch.hold(stream);
    EXPECT_SUCCESS(cudaEventRecord(event, stream));
    me.signal("recorded");
    me.wait("pending");
    latch.release();
    EXPECT_TRUE(passes(stream));
    event.destroy();
    me.signal("destroyed");
  });

  scenario.run(20s);
}

// An exporter and an importer of one event, which is created, exported, opened,
// recorded, awaited and destroyed by different threads.
template <class Api>
static void exports_in_two_threads(Role& me, Api api) {
  using Code = typename Api::Code;
  const Stream stream;
  Sentinel<cudaEvent_t> created;
  EXPECT_SUCCESS(in_a_thread([&] {
    return api.event_create(created.out(),
                            cudaEventInterprocess | cudaEventDisableTiming);
  }));
  const cudaEvent_t event = created.result();
  Latch latch;
  latch.hold(stream);
  Sentinel<cudaIpcEventHandle_t> handles[2];
  Code codes[2], recorded[2];
  in_two_threads([&](int i) {
    codes[i] = api.ipc_get_event_handle(handles[i].out(), event);
    recorded[i] = api.event_record(event, stream);
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(codes[i], Code{}) << "in thread " << i;
    EXPECT_EQ(recorded[i], Code{}) << "in thread " << i;
  }
  me.send("handle", handles[1].result());
  me.wait("ready");
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.wait("recorded");
  EXPECT_EQ(in_a_thread([&] { return api.event_query(event); }), api.kNotReady)
      << "the importer's record";
  me.signal("seen");
  me.wait("destroyed");
  EXPECT_SUCCESS(in_a_thread([&] { return api.event_destroy(event); }));
}

template <class Api>
static void opens_in_two_threads(Role& me, Api api) {
  using Code = typename Api::Code;
  const auto handle = me.receive<cudaIpcEventHandle_t>("handle");
  Sentinel<cudaEvent_t> opened[2];
  Code codes[2];
  in_two_threads([&](int i) {
    codes[i] = api.ipc_open_event_handle(opened[i].out(), handle);
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(codes[i], Code{}) << "in thread " << i;
  EXPECT_SUCCESS(api.event_destroy(opened[0].result()));
  const cudaEvent_t event = opened[1].result();
  const Stream stream;
  EXPECT_SUCCESS(
      in_a_thread([&] { return api.stream_wait_event(stream, event); }));
  EXPECT_EQ(in_a_thread([&] { return api.event_query(event); }), api.kNotReady);
  EXPECT_TRUE(is_held(stream));
  HostWait waiter = api.host_wait(event);
  EXPECT_TRUE(waiter.is_held());
  // Only the thread that waits is held: another thread records an event.
  const SharedEvent other;
  const Stream free;
  HostWait recorder("a record", [&] {
    cudaSetDevice(0);  // the driver API needs a context
    return static_cast<cudaError_t>(api.event_record(other, free));
  });
  EXPECT_FALSE(recorder.is_held()) << "a record waits for a host wait";
  me.signal("ready");
  EXPECT_EQ(recorder.join(), cudaSuccess);
  EXPECT_EQ(waiter.join(), cudaSuccess);
  EXPECT_TRUE(passes(stream));
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(in_a_thread([&] { return api.event_record(event, stream); }));
  me.signal("recorded");
  me.wait("seen");
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(in_a_thread([&] { return api.event_destroy(event); }));
  me.signal("destroyed");
}

TEST(EventHandle, EveryThreadMayUseTheEvent) {
  covers("LEVT-27");
  needs(gpus(1), legacy_events, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { exports_in_two_threads(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { opens_in_two_threads(me, api); });
  });
  scenario.run(30s);
}

// "an implicit stream with per-thread synchronization behavior"
TEST(EventHandle, EachThreadHasADefaultStreamOfItsOwn) {
  covers("LEVT-27");
  needs(gpus(1), legacy_events, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const SharedEvent event;
    Latch latch;
    latch.hold(cudaStreamPerThread);
    // The stream of another thread is not held.
    const cudaError_t done = in_a_thread([&] {
      CALL(cudaEventRecord(event, cudaStreamPerThread));
      EXPECT_TRUE(passes(cudaStreamPerThread));
      return cudaEventQuery(event);
    });
    EXPECT_EQ(done, cudaSuccess);
    CALL(cudaEventRecord(event, cudaStreamPerThread));
    me.send("handle", event.handle());
    me.wait("asked");
    latch.release();
    EXPECT_TRUE(passes(cudaStreamPerThread));
    me.wait("destroyed");
  });
  scenario.role("importer", [](Role& me) {
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
    EXPECT_TRUE(is_pending(event));
    std::atomic<bool> waits{false};
    cudaError_t held = cudaSuccess;
    std::thread other([&] {
      CALL(cudaSetDevice(0));
      CALL(cudaStreamWaitEvent(cudaStreamPerThread, event, 0));
      held = cudaStreamQuery(cudaStreamPerThread);
      waits = true;
      EXPECT_TRUE(passes(cudaStreamPerThread));
    });
    while (!waits) std::this_thread::yield();
    EXPECT_TRUE(passes(cudaStreamPerThread, 1s)) << "this thread's own stream";
    me.signal("asked");
    other.join();
    EXPECT_EQ(held, cudaErrorNotReady);
    event.destroy();
    me.signal("destroyed");
  });
  scenario.run(20s);
}

// An exporter that records two events, each in its own stream.
template <class Api>
static void lends_two_events(Role& me, Api api) {
  const Stream stream_a, stream_b;
  SharedEvent a, b;
  Latch latch_a, latch_b;
  latch_a.hold(stream_a);
  latch_b.hold(stream_b);
  const auto both = [&](auto record) {
    CALL(record(a, stream_a));
    CALL(record(b, stream_b));
  };
  both(api.event_record);
  both(api.event_record_with_flags);
  const auto handle_of = [&](cudaEvent_t event) {
    Sentinel<cudaIpcEventHandle_t> handle;
    EXPECT_SUCCESS(api.ipc_get_event_handle(handle.out(), event));
    return handle.result();
  };
  me.send("b", handle_of(b));
  me.send("a", handle_of(a));
  me.wait("both are pending");
  latch_b.release();
  EXPECT_TRUE(passes(stream_b));
  EXPECT_SUCCESS(api.event_query(b));
  EXPECT_SUCCESS(api.event_synchronize(b));
  EXPECT_CODE(api.kNotReady, api.event_query(a));
  me.signal("b is done");
  me.wait("b is destroyed");
  EXPECT_SUCCESS(api.event_destroy(b.release()));
  EXPECT_CODE(api.kNotReady, api.event_query(a));
  latch_a.release();
  EXPECT_TRUE(passes(stream_a));
  me.signal("a is done");
  me.wait("closed");
  EXPECT_SUCCESS(api.event_query(a));
  EXPECT_SUCCESS(api.event_synchronize(a));
}

// Every third event is recorded and pending. The count of the slots of a table
// is no multiple of three, so two events of one slot differ. The first event is
// pending longer than the others.
constexpr int kRecorded = 3;
constexpr size_t kManyStreams = 40;  // which wait for the first event

// An exporter of many events.
static void lends_many_events(Role& me) {
  const Stream stream, longer;
  Latch latch, longer_latch;
  latch.hold(stream);
  longer_latch.hold(longer);
  std::vector<std::unique_ptr<SharedEvent>> many;
  std::string handles;
  for (int i = 0; i < kMany; ++i) {
    many.push_back(std::make_unique<SharedEvent>());
    if (i % kRecorded == 0)
      CALL(cudaEventRecord(*many.back(), i == 0 ? longer : stream));
    const cudaIpcEventHandle_t handle = many.back()->handle();
    handles.append(handle.reserved, sizeof handle);
  }
  me.send_bytes("many", handles);
  me.wait("asked many");
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.signal("all but the first are done");
  me.wait("asked for the first");
  longer_latch.release();
  EXPECT_TRUE(passes(longer));
}

// The importer of these events. Two of its streams wait for all of them, and
// many streams wait for the first one.
static void opens_many_events(Role& me) {
  const std::string handles = me.receive_bytes("many");
  const Stream upwards, downwards, streams[kManyStreams];
  std::vector<std::unique_ptr<SharedEvent>> many;
  for (size_t i = 0; i < kMany; ++i) {
    cudaIpcEventHandle_t handle;
    std::memcpy(&handle, handles.data() + i * sizeof handle, sizeof handle);
    many.push_back(std::make_unique<SharedEvent>(handle));
  }
  for (size_t i = 0; i < kMany; ++i)
    ASSERT_EQ(NOTED(cudaEventQuery(*many[i])),
              i % kRecorded == 0 ? cudaErrorNotReady : cudaSuccess)
        << "event " << i << " of " << kMany;
  for (size_t i = 0; i < kMany; ++i) {
    CALL(cudaStreamWaitEvent(upwards, *many[i], 0));
    CALL(cudaStreamWaitEvent(downwards, *many[kMany - 1 - i], 0));
  }
  for (const Stream& each : streams)
    CALL(cudaStreamWaitEvent(each, *many[0], 0));
  me.signal("asked many");
  me.wait("all but the first are done");
  EXPECT_TRUE(is_held(upwards)) << "by the first event";
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(downwards));
  for (const Stream& each : streams)
    ASSERT_EQ(NOTED(cudaStreamQuery(each)), cudaErrorNotReady);
  EXPECT_SUCCESS(cudaEventQuery(*many[kRecorded]));
  me.signal("asked for the first");
  EXPECT_TRUE(passes(upwards));
  EXPECT_TRUE(passes(downwards));
  for (const Stream& each : streams) EXPECT_TRUE(passes(each));
}

// An importer that opens two events in another order than the exporter created
// them.
template <class Api>
static void borrows_two_events(Role& me, Api api) {
  const auto opened = [&](const char* name) {
    Sentinel<cudaEvent_t> event;
    EXPECT_SUCCESS(api.ipc_open_event_handle(
        event.out(), me.receive<cudaIpcEventHandle_t>(name)));
    return event.result();
  };
  const cudaEvent_t b = opened("b"), a = opened("a");
  const Stream after_a, after_b;
  // `b` will be done first. So the stream must also keep the wait for `a`,
  // which is neither the first nor the last.
  for (const cudaEvent_t one : {b, a, b})
    EXPECT_SUCCESS(api.stream_wait_event(after_a, one));
  EXPECT_SUCCESS(api.stream_wait_event(after_b, b));
  EXPECT_CODE(api.kNotReady, api.event_query(a));
  EXPECT_CODE(api.kNotReady, api.event_query(b));
  me.signal("both are pending");
  me.wait("b is done");
  EXPECT_SUCCESS(api.event_synchronize(b));
  EXPECT_SUCCESS(api.event_query(b));
  EXPECT_TRUE(passes(after_b));
  EXPECT_CODE(api.kNotReady, api.event_query(a));
  EXPECT_TRUE(is_held(after_a));
  EXPECT_SUCCESS(api.event_destroy(b));
  EXPECT_CODE(api.kNotReady, api.event_query(a));
  me.signal("b is destroyed");
  me.wait("a is done");
  EXPECT_SUCCESS(api.event_query(a));
  EXPECT_TRUE(passes(after_a));
  EXPECT_SUCCESS(api.event_destroy(a));
  me.signal("closed");
}

// First many events of one process, and then two events, each with its own
// stream. The importer opens the two events in another order than the exporter
// created them.
TEST(EventHandle, TwoEventsAreKeptApart) {
  covers("LEVT-28");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    lends_many_events(me);
    by_both_apis([&](auto api) { lends_two_events(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    opens_many_events(me);
    by_both_apis([&](auto api) { borrows_two_events(me, api); });
  });
  scenario.run(30s);
}
