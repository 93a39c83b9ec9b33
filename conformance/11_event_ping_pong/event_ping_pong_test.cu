// Events in both directions, many times, among many processes.
// Mirror of samples/11_event_ping_pong.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>

#include "conformance/11_event_ping_pong/event_ping_pong_test.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

// An exporter that waits in a stream, in a thread and by queries.
template <class Api>
static void waits_for_the_importers_record(Role& me, Api api) {
  const Pattern written = pattern(api.kName);
  const DeviceBuffer buffer(kBytes), by_copy(kBytes), by_kernel(kBytes);
  buffer.fill(pattern("old"));
  const Stream stream, between;
  const SharedEvent event, relayed;
  Sentinel<cudaIpcEventHandle_t> handle;
  CALL(api.ipc_get_event_handle(handle.out(), event));
  me.send("handles", Handles{buffer.legacy_handle(), handle.result()});
  me.wait("recorded");
  EXPECT_CODE(api.kNotReady, api.event_query(event));
  EXPECT_SUCCESS(api.stream_wait_event(stream, event));
  queue_copy(by_copy, buffer, stream);
  launch_copy(by_kernel, buffer, stream);
  // A record directly after the wait covers what the wait waits for.
  EXPECT_SUCCESS(api.stream_wait_event(between, event));
  EXPECT_SUCCESS(api.event_record(relayed, between));
  HostWait waiter = api.host_wait(event);
  HostWait of_stream("cudaStreamSynchronize", [&]() -> cudaError_t {
    return cudaStreamSynchronize(stream);
  });
  for (int i = 0; i < kLooks; ++i) {
    me.signal("look");
    me.wait("looked");
  }
  EXPECT_TRUE(is_held(stream)) << "before the importer's work was done";
  EXPECT_TRUE(waiter.is_held()) << "before the importer's work was done";
  EXPECT_FALSE(of_stream.returned()) << "before the importer's work was done";
  EXPECT_CODE(api.kNotReady, api.event_query(relayed)) << "after a wait";
  me.signal("ready");

  EXPECT_EQ(waiter.join(), cudaSuccess);
  EXPECT_EQ(of_stream.join(), cudaSuccess);
  EXPECT_SUCCESS(api.event_synchronize(relayed));
  EXPECT_TRUE(kernel_reads(buffer, written)) << "after the synchronize";
  EXPECT_SUCCESS(api.event_query(event));
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(by_copy, written)) << "copy after the wait";
  EXPECT_TRUE(kernel_reads(by_kernel, written)) << "kernel after the wait";
  me.signal("seen");

  // The importer's next record replaces a record of the exporter.
  me.wait("asked for the first record");
  CALL(api.event_record(event, stream));
  EXPECT_TRUE(passes(stream));
  me.signal("recorded by the exporter");
  me.wait("recorded again");
  EXPECT_CODE(api.kNotReady, api.event_query(event)) << "the second record";
  EXPECT_SUCCESS(api.stream_wait_event(stream, event));
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  me.signal("asked");
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(api.event_query(event));
  me.wait("closed");
}

// The importer of this test. It records the event, and its stream has later
// work.
template <class Api>
static void records_for_the_exporter(Role& me, Api api) {
  const Pattern written = pattern(api.kName);
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  Sentinel<cudaEvent_t> opened;
  CALL(api.ipc_open_event_handle(opened.out(), handles.event));
  const cudaEvent_t event = opened.result();
  SharedEvent twin(handles.event);  // the same event once more
  const Stream stream, after;
  EXPECT_TRUE(kernel_reads(mapping, pattern("old")));
  const DeviceBuffer own(kBytes);
  own.fill(written);  // loads the kernel before the stream is held
  Latch latch, later;
  latch.hold(stream);
  mapping.queue_fill(written, stream);
  EXPECT_SUCCESS(api.event_record(event, stream));
  later.hold(stream);
  EXPECT_CODE(api.kNotReady, api.event_query(event));
  EXPECT_TRUE(is_pending(twin)) << "the second open of the event";
  // No sentence says that an open does not wait for work of this process.
  int device = 0;
  CALL(cudaGetDevice(&device));
  cudaEvent_t late = nullptr;
  note_call("cudaIpcOpenEventHandle in another thread");
  std::future<void> opening = std::async(std::launch::async, [&] {
    CALL(cudaSetDevice(device));
    CALL(cudaIpcOpenEventHandle(&late, handles.event));
  });
  const bool beside = opening.wait_for(2s) == std::future_status::ready;
  if (beside) EXPECT_TRUE(is_pending(late)) << "opened after the record";
  // The process that made the record can wait for it, too.
  HostWait own_wait = api.host_wait(event);
  EXPECT_SUCCESS(api.stream_wait_event(after, event));
  me.signal("recorded");
  for (int i = 0; i < kLooks; ++i) {
    me.wait("look");
    me.signal("looked");
  }
  me.wait("ready");
  EXPECT_FALSE(own_wait.returned()) << "before this process's work was done";
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(after))
      << "before this process's work was done";
  latch.release();
  EXPECT_TRUE(passes(after));
  EXPECT_EQ(own_wait.join(), cudaSuccess) << "later work is held";
  EXPECT_SUCCESS(api.event_query(event));
  EXPECT_TRUE(is_done(twin)) << "the second open of the event";
  if (beside) EXPECT_TRUE(is_done(late)) << "opened after the record";
  me.signal("asked for the first record");
  me.wait("seen");
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream)) << "later work";
  later.release();
  EXPECT_TRUE(passes(stream));
  opening.get();
  me.wait("recorded by the exporter");
  Latch again;
  again.hold(stream);
  EXPECT_SUCCESS(api.event_record(event, stream));
  me.signal("recorded again");
  me.wait("asked");
  again.release();
  EXPECT_TRUE(passes(stream));
  CALL(cudaEventDestroy(late));
  twin.destroy();
  CALL(api.event_destroy(event));
  mapping.close();
  me.signal("closed");
}

TEST(EventPingPong, ExporterWaitsForTheImportersRecord) {
  covers("LEVT-10");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { waits_for_the_importers_record(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { records_for_the_exporter(me, api); });
  });
  scenario.run(30s);
}

// The importer sees the GPUs in another order: the exporter's GPU 0 is its
// GPU 1.
TEST(EventPingPong, TheImportersGpusMayHaveAnotherOrder) {
  covers("LEVT-10");
  needs(gpus(2), legacy_memory, legacy_events);
  Scenario scenario;
  scenario
      .role("exporter",
            [](Role& me) { waits_for_the_importers_record(me, RuntimeApi{}); })
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({0, 1}));
  scenario
      .role("importer",
            [](Role& me) {
              CALL(cudaSetDevice(1));
              records_for_the_exporter(me, RuntimeApi{});
            })
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({1, 0}));
  scenario.run(30s);
}

// Waits for a record of the other process by events of this process, which are
// recorded after a wait, by host functions, and by hosts that wait for the
// stream, for the context or for the whole GPU.
template <class Api>
static void waits_in_further_ways(Role& me, Api api, cudaEvent_t event) {
  static std::atomic<int> called;  // by the functions of the host
  called = 0;
  const SharedEvent relayed, plain(cudaEventDisableTiming);
  const Stream between, by_relayed, by_plain, calls;
  const cudaStream_t all[] = {between, by_relayed, by_plain, calls};
  me.wait("recorded");
  EXPECT_SUCCESS(api.stream_wait_event(between, event));
  EXPECT_SUCCESS(api.event_record(relayed, between));
  EXPECT_SUCCESS(api.event_record(plain, between));
  EXPECT_SUCCESS(api.stream_wait_event(by_relayed, relayed));
  EXPECT_SUCCESS(api.stream_wait_event(by_plain, plain));
  // Each function comes directly after a wait.
  const auto count = [](void*) { ++called; };
  EXPECT_SUCCESS(api.stream_wait_event(calls, event));
  CALL(cudaLaunchHostFunc(calls, count, nullptr));
  EXPECT_SUCCESS(api.stream_wait_event(calls, event));
  CALL(DRIVER(cuLaunchHostFunc)(calls, count, nullptr));
  EXPECT_SUCCESS(api.stream_wait_event(calls, event));
  CALL(cudaStreamAddCallback(
      calls, [](cudaStream_t, cudaError_t, void*) { ++called; }, nullptr, 0));
  EXPECT_TRUE(is_held(by_relayed)) << "before the work was done";
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE("stream " + std::to_string(i));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(all[i]));
    EXPECT_CODE(CUDA_ERROR_NOT_READY, DRIVER(cuStreamQuery)(all[i]));
  }
  HostWait for_relayed = api.host_wait(relayed);
  HostWait for_plain = api.host_wait(plain);
  HostWait for_gpu("cudaDeviceSynchronize",
                   []() -> cudaError_t { return cudaDeviceSynchronize(); });
  const auto in_a_context = [](auto call) {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    return code != cudaSuccess ? code : static_cast<cudaError_t>(call());
  };
  HostWait for_context("cuCtxSynchronize",
                       [&] { return in_a_context(synchronize_context); });
  HostWait for_stream("cuStreamSynchronize", [&] {
    return in_a_context([&] { return DRIVER(cuStreamSynchronize)(between); });
  });
  HostWait* const hosts[] = {&for_relayed, &for_plain, &for_gpu, &for_context,
                             &for_stream};
  EXPECT_TRUE(for_stream.is_held()) << "before the work was done";
  for (int i = 0; i < 5; ++i)
    EXPECT_FALSE(hosts[i]->returned())
        << "host " << i << ", before the work was done";
  EXPECT_EQ(called, 0) << "before the work was done";
  me.signal("asked");
  for (const cudaStream_t each : all) EXPECT_TRUE(passes(each));
  for (HostWait* const each : hosts) EXPECT_EQ(each->join(), cudaSuccess);
  EXPECT_EQ(called, 3) << "calls of the functions";
  me.signal("seen");
}

namespace {

/// Holds a stream by a host function, which waits on the CPU.
class HostLatch {
 public:
  HostLatch() = default;
  HostLatch(const HostLatch&) = delete;
  ~HostLatch() { release(); }
  void hold(cudaStream_t stream) {
    // The function may run when this object is gone, so it has its own pointer.
    CALL(cudaLaunchHostFunc(stream, wait, new std::shared_ptr<State>(state_)));
  }
  void release() {
    const std::lock_guard lock(state_->mutex);
    state_->released = true;
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool released = false;
  };
  static void wait(void* given) {
    const std::unique_ptr<std::shared_ptr<State>> state(
        static_cast<std::shared_ptr<State>*>(given));
    std::unique_lock lock((*state)->mutex);
    (*state)->changed.wait_for(
        lock, std::chrono::duration<double>(Latch::kLimitSeconds),
        [&] { return (*state)->released; });
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Holds a stream by a wait for a word in pinned host memory.
class WordLatch {
 public:
  WordLatch() {
    CALL(cudaHostAlloc(&word_, sizeof *word_, cudaHostAllocMapped));
    *word_ = 0;
  }
  WordLatch(const WordLatch&) = delete;
  ~WordLatch() {
    release();
    cudaFreeHost(word_);
  }
  void hold(cudaStream_t stream) {
    CALL(DRIVER(cuStreamWaitValue32)(stream, address_of(word_), 1,
                                     CU_STREAM_WAIT_VALUE_EQ));
  }
  void release() { *static_cast<volatile uint32_t*>(word_) = 1; }

 private:
  uint32_t* word_ = nullptr;
};

/// The work before a record: a kernel, a host function or a wait for a word of
/// the same stream, or the kernel of another stream, which the stream of the
/// record has joined. Or the stream of the record is destroyed directly after
/// it.
enum class Before {
  kKernel,
  kHostFunction,
  kAwaitedWord,
  kJoinedStream,
  kDestroyedStream
};

/// Where a process records, and what the record has to cover. The kernel may be
/// in another stream than the record: the null stream and a blocking stream
/// wait for each other.
struct Place {
  cudaStream_t stream;
  Before before;
  std::optional<cudaStream_t> works_in = {};
};

constexpr int kPlaces = 11;
constexpr int kStreams = 6;  // kinds of streams

}  // namespace

// A record of work that is held until the other process has seen this.
template <class Api>
static void records_held_work(Role& me, Api api, cudaEvent_t event,
                              const Place& place, bool with_flags) {
  WordLatch word_latch;  // its memory is freed after the streams go on
  Latch latch;
  HostLatch host_latch;
  const Stream joined;
  const SharedEvent joint(cudaEventDisableTiming);
  cudaStream_t stream = place.stream;
  if (place.before == Before::kKernel) {
    latch.hold(place.works_in.value_or(stream));
  } else if (place.before == Before::kDestroyedStream) {
    CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    latch.hold(stream);
  } else if (place.before == Before::kHostFunction) {
    host_latch.hold(place.stream);
  } else if (place.before == Before::kAwaitedWord) {
    word_latch.hold(place.stream);
  } else {
    latch.hold(joined);
    CALL(api.event_record(joint, joined));
    CALL(api.stream_wait_event(stream, joint));
  }
  EXPECT_SUCCESS(with_flags ? api.event_record_with_flags(event, stream)
                            : api.event_record(event, stream));
  if (place.before == Before::kDestroyedStream)
    CALL(cudaStreamDestroy(stream));  // the work of the stream goes on
  me.signal("recorded");
  me.wait("asked");
  latch.release();
  host_latch.release();
  word_latch.release();
  EXPECT_TRUE(passes(place.stream));
  me.wait("seen");
}

// Waits for each of the other process's records, in streams of each kind.
template <class Api>
static void waits_for_each_record(Role& me, Api api, cudaEvent_t event) {
  const Stream usual, urgent(Stream::Kind::kUrgent);
  const Stream blocking(Stream::Kind::kBlocking);
  const cudaStream_t waiting[kStreams] = {
      usual, nullptr, cudaStreamLegacy, cudaStreamPerThread, urgent, blocking};
  for (int i = 0; i < kPlaces; ++i) {
    const cudaStream_t stream = waiting[i % kStreams];
    me.wait("recorded");
    EXPECT_CODE(api.kNotReady, api.event_query(event)) << "place " << i;
    EXPECT_SUCCESS(api.stream_wait_event(stream, event));
    EXPECT_TRUE(is_held(stream)) << "place " << i;
    me.signal("asked");
    EXPECT_TRUE(passes(stream)) << "place " << i;
    EXPECT_SUCCESS(api.event_query(event));
    me.signal("seen");
  }
}

// Records after held work, in streams of each kind, and in turn with and
// without flags.
template <class Api>
static void records_in_each_place(Role& me, Api api, cudaEvent_t event) {
  const Stream usual, urgent(Stream::Kind::kUrgent);
  const Stream blocking(Stream::Kind::kBlocking);
  const Place places[kPlaces] = {
      {nullptr, Before::kKernel},
      {cudaStreamLegacy, Before::kKernel},
      {cudaStreamPerThread, Before::kKernel},
      {urgent, Before::kKernel},
      {blocking, Before::kKernel},
      {nullptr, Before::kKernel, cudaStream_t{blocking}},
      {blocking, Before::kKernel, nullptr},
      {usual, Before::kHostFunction},
      {usual, Before::kAwaitedWord},
      {usual, Before::kJoinedStream},
      {usual, Before::kDestroyedStream}};
  bool with_flags = std::is_same_v<Api, DriverApi>;
  for (const Place& place : places) {
    records_held_work(me, api, event, place, with_flags);
    with_flags = !with_flags;
  }
}

// A role that lends an event of this GPU by each API, and does its part with
// it.
template <class Part>
static auto lends_an_event(Part part, int device = 0) {
  return [=](Role& me) {
    CALL(cudaSetDevice(device));
    by_both_apis([&](auto api) {
      const SharedEvent event;
      me.send("handle", event.handle());
      part(me, api, event);
      me.wait("closed");
    });
  };
}

// A role that opens this event by each API, and does its part with it.
template <class Part>
static auto opens_an_event(Part part, int device = 0) {
  return [=](Role& me) {
    CALL(cudaSetDevice(device));
    by_both_apis([&](auto api) {
      SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
      part(me, api, event);
      event.destroy();
      me.signal("closed");
    });
  };
}

static constexpr auto kRecordsInEachPlace = [](Role& me, auto api,
                                               cudaEvent_t event) {
  records_in_each_place(me, api, event);
};
static constexpr auto kWaitsForEachRecord = [](Role& me, auto api,
                                               cudaEvent_t event) {
  waits_for_each_record(me, api, event);
};
// A kernel waits until the other process has asked. Records an event after it.
static constexpr auto kRecordsAHeldKernel = [](Role& me, auto api,
                                               cudaEvent_t event) {
  const Stream stream;
  records_held_work(me, api, event, {stream, Before::kKernel}, false);
};
static constexpr auto kWaitsInFurtherWays = [](Role& me, auto api,
                                               cudaEvent_t event) {
  waits_in_further_ways(me, api, event);
};

TEST(EventPingPong, TheExporterMayRecordInAnyStream) {
  covers("LEVT-07");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_an_event(kRecordsInEachPlace));
  scenario.role("importer", opens_an_event(kWaitsForEachRecord));
  scenario.run(40s);
}

TEST(EventPingPong, TheImporterMayRecordInAnyStream) {
  covers("LEVT-10");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_an_event(kWaitsForEachRecord));
  scenario.role("importer", opens_an_event(kRecordsInEachPlace));
  scenario.run(40s);
}

TEST(EventPingPong, TheImportersWaitsReachFurther) {
  covers("LEVT-07");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_an_event(kRecordsAHeldKernel));
  scenario.role("importer", opens_an_event(kWaitsInFurtherWays));
  scenario.run(30s);
}

TEST(EventPingPong, TheExportersWaitsReachFurther) {
  covers("LEVT-10");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_an_event(kWaitsInFurtherWays));
  scenario.role("importer", opens_an_event(kRecordsAHeldKernel));
  scenario.run(30s);
}

TEST(EventPingPong, TheImporterMayRecordOnALaterGpu) {
  covers("LEVT-10");
  needs(gpus(2), legacy_events);
  Scenario scenario;
  scenario.role("exporter", lends_an_event(kWaitsForEachRecord, 1));
  scenario.role("importer", opens_an_event(kRecordsInEachPlace, 1));
  scenario.run(40s);
}
