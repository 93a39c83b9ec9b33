// One event in several threads, and several events.
// Mirror of samples/10_event_handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance/10_event_handle/event_handle_test.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr int kMany = 300;  // events, more than a byte can count

}  // namespace

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
