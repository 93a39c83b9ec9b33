// Events in both directions, many times, among many processes.
// Mirror of samples/11_event_ping_pong.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr int kLooks = 50;
constexpr int kImporters = 8;
constexpr int kSiblings = 3;
constexpr int kSiblingRounds = 20;
// The hosts exchange a message for every record, so a round costs two process
// switches of the GPU. All rounds together take less than two seconds.
constexpr int kRounds = 2048;
constexpr int kHeldRounds = 64;        // queued before the first of them runs
constexpr int kLaterRecords = 600;     // more than 9 bits can count
constexpr int kManyRecords = 1 << 16;  // more than two bytes can count
constexpr int kBulkRounds = 200;
constexpr size_t kBulkBytesPerMultiprocessor = 512 << 10;
constexpr unsigned kBulkKinds = 9;  // ways to write a round
constexpr size_t kRows = 4;

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

struct TwoWays {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t ping, pong;
};

void queue_copy(const Words& to, const Words& from, cudaStream_t stream) {
  CALL(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice,
                       stream));
}

/// Adds 1 to the first word. If this word was not `expected`, the step came out
/// of order, and the second word counts the step.
__global__ void count_on(volatile uint32_t* counter, uint32_t expected) {
  if (counter[0] != expected) counter[1] = counter[1] + 1;
  counter[0] = counter[0] + 1;
}

/// Writes one number into all words.
__global__ void write_round(uint32_t* data, size_t count, uint32_t round) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step)
    data[i] = round;
}

/// Counts the words that hold another number.
__global__ void check_round(const volatile uint32_t* data, size_t count,
                            uint32_t round, uint32_t* wrong) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step)
    if (data[i] != round) atomicAdd(wrong, 1u);
}

/// What a round writes into each word, by a kernel or by a memset.
uint32_t word_of(int round) {
  return static_cast<unsigned char>(round) * 0x01010101u;
}

unsigned blocks() {
  static const int multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  return static_cast<unsigned>(multiprocessors) * 4;
}

/// Two hosts tell each other "recorded" thousands of times, one byte each time.
/// As steps of the scenario these messages would flood the timeline.
class Whistle {
 public:
  explicit Whistle(Descriptor end) : end_(std::move(end)) {
    const timeval limit{10, 0};
    setsockopt(end_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  static std::pair<Descriptor, Descriptor> ends() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    return {Descriptor(ends[0]), Descriptor(ends[1])};
  }
  bool blow() const { return ::send(end_.get(), "!", 1, MSG_NOSIGNAL) == 1; }
  bool hear() const {
    char byte;
    return ::recv(end_.get(), &byte, 1, 0) == 1;
  }

 private:
  Descriptor end_;
};

/// Records an event; the function depends on the round.
void record_in(int round, cudaEvent_t event, cudaStream_t stream) {
  switch (round % 4) {
    case 0:
      return CALL(RuntimeApi::event_record(event, stream));
    case 1:
      return CALL(DriverApi::event_record(event, stream));
    case 2:
      return CALL(RuntimeApi::event_record_with_flags(event, stream));
    default:
      return CALL(DriverApi::event_record_with_flags(event, stream));
  }
}

/// Waits for an event, by the two APIs in turn.
void wait_in(int round, cudaStream_t stream, cudaEvent_t event) {
  if (round % 2 == 0)
    CALL(RuntimeApi::stream_wait_event(stream, event));
  else
    CALL(DriverApi::stream_wait_event(stream, event));
}

/// Have both sides counted `rounds` times, each in its turn?
testing::AssertionResult counted(const Words& counter, int rounds) {
  const auto steps = static_cast<uint32_t>(2 * rounds);
  uint32_t seen[2] = {~0u, ~0u};
  CALL(cudaMemcpy(seen, counter.data, sizeof seen, cudaMemcpyDeviceToHost));
  if (seen[0] == steps && seen[1] == 0) return testing::AssertionSuccess();
  expected_but_saw(std::to_string(steps) + ", 0 out of turn",
                   std::to_string(seen[0]) + ", " + std::to_string(seen[1]) +
                       " out of turn");
  return testing::AssertionFailure()
         << "the counter stands at " << seen[0] << " after " << rounds
         << " rounds; " << seen[1] << " steps came out of turn";
}

}  // namespace

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
  SharedEvent late(handles.event);
  EXPECT_TRUE(is_pending(late)) << "opened after the record";
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
  EXPECT_TRUE(is_done(late)) << "opened after the record";
  me.signal("asked for the first record");
  me.wait("seen");
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream)) << "later work";
  later.release();
  EXPECT_TRUE(passes(stream));
  me.wait("recorded by the exporter");
  Latch again;
  again.hold(stream);
  EXPECT_SUCCESS(api.event_record(event, stream));
  me.signal("recorded again");
  me.wait("asked");
  again.release();
  EXPECT_TRUE(passes(stream));
  late.destroy();
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
static void records_in_each_place(Role& me, Api api, cudaEvent_t event,
                                  bool flags_first) {
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
  bool with_flags = flags_first;
  for (const Place& place : places) {
    records_held_work(me, api, event, place, with_flags);
    with_flags = !with_flags;
  }
}

// One process lends an event and the other process opens it. By each API, one
// of the two records the event and the other one waits for it.
static void lends_an_event(Role& me, int device, bool records) {
  CALL(cudaSetDevice(device));
  bool flags_first = false;
  by_both_apis([&](auto api) {
    const SharedEvent event;
    me.send("handle", event.handle());
    if (records)
      records_in_each_place(me, api, event, flags_first);
    else
      waits_for_each_record(me, api, event);
    flags_first = !flags_first;
    me.wait("closed");
  });
}

static void borrows_an_event(Role& me, int device, bool records) {
  CALL(cudaSetDevice(device));
  bool flags_first = true;
  by_both_apis([&](auto api) {
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
    if (records)
      records_in_each_place(me, api, event, flags_first);
    else
      waits_for_each_record(me, api, event);
    flags_first = !flags_first;
    event.destroy();
    me.signal("closed");
  });
}

TEST(EventPingPong, TheExporterMayRecordInAnyStream) {
  covers("LEVT-07");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) { lends_an_event(me, 0, true); });
  scenario.role("importer", [](Role& me) { borrows_an_event(me, 0, false); });
  scenario.run(40s);
}

TEST(EventPingPong, TheImporterMayRecordInAnyStream) {
  covers("LEVT-10");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) { lends_an_event(me, 0, false); });
  scenario.role("importer", [](Role& me) { borrows_an_event(me, 0, true); });
  scenario.run(40s);
}

// One process records, and the other one waits in further ways.
static void expect_further_waits(bool exporter_records) {
  Scenario scenario(Scenario::kShared);
  const auto takes_part = [](Role& me, auto api, cudaEvent_t event,
                             bool records) {
    if (!records) return waits_in_further_ways(me, api, event);
    const Stream stream;
    records_held_work(me, api, event, {stream, Before::kKernel}, false);
  };
  scenario.role("exporter", [=](Role& me) {
    by_both_apis([&](auto api) {
      const SharedEvent event;
      me.send("handle", event.handle());
      takes_part(me, api, event, exporter_records);
      me.wait("closed");
    });
  });
  scenario.role("importer", [=](Role& me) {
    by_both_apis([&](auto api) {
      SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
      takes_part(me, api, event, !exporter_records);
      event.destroy();
      me.signal("closed");
    });
  });
  scenario.run(30s);
}

TEST(EventPingPong, TheImportersWaitsReachFurther) {
  covers("LEVT-07");
  needs(gpus(1), legacy_events);
  expect_further_waits(true);
}

TEST(EventPingPong, TheExportersWaitsReachFurther) {
  covers("LEVT-10");
  needs(gpus(1), legacy_events);
  expect_further_waits(false);
}

TEST(EventPingPong, TheImporterMayRecordOnALaterGpu) {
  covers("LEVT-10");
  needs(gpus(2), legacy_events);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) { lends_an_event(me, 1, false); });
  scenario.role("importer", [](Role& me) { borrows_an_event(me, 1, true); });
  scenario.run(40s);
}

// A role whose waits keep the records that they found, each its own.
template <class Api>
static void keeps_the_record(Role& me, Api api, cudaEvent_t event,
                             const Words& memory, Pattern written) {
  const DeviceBuffer copy(kBytes);
  const Stream early, first, second;
  Latch early_latch, first_latch;
  // The latches of this role hold the first two waits until a later record is
  // made.
  early_latch.hold(early);
  EXPECT_SUCCESS(api.stream_wait_event(early, event));
  me.signal("waits for nothing");

  me.wait("recorded 1");
  first_latch.hold(first);
  EXPECT_SUCCESS(api.stream_wait_event(first, event));
  me.signal("waits for 1");

  me.wait("recorded 2");
  early_latch.release();
  ASSERT_TRUE(passes(early)) << "the wait from before the first record";
  first_latch.release();
  EXPECT_TRUE(passes(first)) << "the wait for the first record";
  EXPECT_SUCCESS(api.stream_wait_event(second, event));
  queue_copy(copy, memory, second);
  HostWait host_wait = api.host_wait(event);
  EXPECT_TRUE(host_wait.is_held());
  me.signal("waits for 2");

  me.wait("recorded 3");
  EXPECT_TRUE(is_held(second)) << "the second record is not reached";
  EXPECT_FALSE(host_wait.returned()) << "the second record is not reached";
  me.signal("still waits for 2");
  EXPECT_TRUE(passes(second)) << "the wait for the second record";
  EXPECT_TRUE(kernel_reads(copy, written));
  EXPECT_FALSE(host_wait.is_held()) << "the host waits for the second record";
  EXPECT_CODE(api.kNotReady, api.event_query(event));
  me.signal("seen");
  EXPECT_EQ(host_wait.join(), cudaSuccess);
}

// A role that records three times. Directly before the third record it records
// many times in a stream that nothing holds.
template <class Api>
static void records_again(Role& me, Api api, cudaEvent_t event,
                          const Words& memory, Pattern written) {
  const DeviceBuffer own(kBytes);
  own.fill(written);  // loads the kernel before a stream is held
  const Stream first, second, third, free[4];
  me.wait("waits for nothing");
  CALL(api.event_record(event, first));
  EXPECT_TRUE(passes(first));
  me.signal("recorded 1");

  me.wait("waits for 1");
  Latch second_latch, third_latch;
  second_latch.hold(second);
  memory.queue_fill(written, second);
  CALL(api.event_record_with_flags(event, second));
  HostWait host_wait = api.host_wait(event);
  me.signal("recorded 2");

  me.wait("waits for 2");  // the other role has waited for 0.5 s
  EXPECT_FALSE(host_wait.returned()) << "this process's own record";
  // No sentence says how much work one stream can take while it is held.
  for (int i = 0; i < kLaterRecords; ++i)
    CALL(api.event_record(event, free[i % std::size(free)]));
  third_latch.hold(third);
  CALL(api.event_record(event, third));
  me.signal("recorded 3");
  me.wait("still waits for 2");
  second_latch.release();
  me.wait("seen");
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(third));
  EXPECT_FALSE(host_wait.is_held()) << "the host waits for the second record";
  third_latch.release();
  EXPECT_EQ(host_wait.join(), cudaSuccess);
  EXPECT_TRUE(passes(third));
  for (const Stream& each : free) EXPECT_TRUE(passes(each));
}

// A wait before the first record waits for nothing. A wait keeps its record
// even if the event is recorded again, before the stream reaches the wait or
// while the stream waits. First the importer waits and then the exporter.
TEST(EventPingPong, AWaitKeepsTheRecordThatItFound) {
  covers("LEVT-12");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  const Pattern exporters = pattern("exporter's second record");
  const Pattern importers = pattern("importer's second record");

  scenario.role("exporter", [=](Role& me) {
    by_both_apis([&](auto api) {
      const DeviceBuffer buffer(kBytes);
      buffer.fill(pattern("old"));
      const SharedEvent event;
      me.send("handles", Handles{buffer.legacy_handle(), event.handle()});
      records_again(me, api, event, buffer, exporters);
      keeps_the_record(me, api, event, buffer, importers);
      me.wait("closed");
    });
  });

  scenario.role("importer", [=](Role& me) {
    by_both_apis([&](auto api) {
      const auto handles = me.receive<Handles>("handles");
      LegacyMapping mapping(handles.memory, kBytes);
      SharedEvent event(handles.event);
      keeps_the_record(me, api, event, mapping, exporters);
      records_again(me, api, event, mapping, importers);
      EXPECT_SUCCESS(api.event_destroy(event.release()));
      mapping.close();
      me.signal("closed");
    });
  });

  scenario.run(30s);
}

// An exporter whose second and third record are pending. The third record is in
// a stream that the exporter then destroys.
template <class Api>
static void exporter_replaces_its_record(Role& me, Api api) {
  const Stream stream;
  cudaStream_t other = nullptr;
  CALL(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const SharedEvent event;
  me.send("handle", event.handle());
  CALL(api.event_record_with_flags(event, stream));
  EXPECT_TRUE(passes(stream));
  me.signal("recorded 1");
  me.wait("asked 1");
  Latch latch, other_latch;
  latch.hold(stream);
  other_latch.hold(other);
  CALL(api.event_record(event, stream));
  EXPECT_CODE(api.kNotReady, api.event_query(event));
  me.signal("recorded 2");
  for (int i = 0; i < kLooks; ++i) {
    me.wait("look");
    me.signal("looked");
  }
  me.wait("asked 2");
  // A third record, while the second record is pending.
  CALL(api.event_record(event, other));
  CALL(cudaStreamDestroy(other));  // the work of the stream goes on
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_CODE(api.kNotReady, api.event_query(event));
  CALL(api.stream_wait_event(stream, event));
  me.signal("recorded 3");
  me.wait("asked 3");
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream)) << "the third record";
  other_latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(api.event_query(event));
  me.signal("done");
  me.wait("closed");
}

// An importer that queries the event after each record.
template <class Api>
static void importer_asks_for_each_record(Role& me, Api api) {
  SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
  me.wait("recorded 1");
  EXPECT_SUCCESS(api.event_query(event));
  EXPECT_SUCCESS(api.event_synchronize(event));
  // The importer also makes a record of its own. The exporter's next record
  // replaces this record as well.
  const Stream own;
  EXPECT_SUCCESS(api.event_record(event, own));
  EXPECT_TRUE(passes(own));
  me.signal("asked 1");
  me.wait("recorded 2");
  HostWait waiter = api.host_wait(event);
  for (int i = 0; i < kLooks; ++i) {
    EXPECT_CODE(api.kNotReady, api.event_query(event));
    me.signal("look");
    me.wait("looked");
  }
  EXPECT_TRUE(waiter.is_held()) << "of the first record";
  me.signal("asked 2");
  EXPECT_EQ(waiter.join(), cudaSuccess);
  me.wait("recorded 3");
  EXPECT_CODE(api.kNotReady, api.event_query(event)) << "its stream is gone";
  EXPECT_SUCCESS(api.stream_wait_event(own, event));
  EXPECT_TRUE(is_held(own)) << "by the third record";
  me.signal("asked 3");
  me.wait("done");
  EXPECT_TRUE(passes(own));
  EXPECT_SUCCESS(api.event_query(event));
  EXPECT_SUCCESS(api.event_destroy(event.release()));
  me.signal("closed");
}

// The records of two processes overlap: the later one stays pending when the
// earlier one, of the other process, is complete. With `waits_first`, the
// stream of the later record waits for the earlier one directly before it.
template <class Api>
static void records_later(Role& me, Api api, cudaEvent_t event,
                          bool waits_first) {
  const Stream stream;
  Latch latch;
  me.wait("recorded earlier");
  latch.hold(stream);
  if (waits_first) EXPECT_SUCCESS(api.stream_wait_event(stream, event));
  EXPECT_SUCCESS(api.event_record(event, stream));
  me.signal("recorded later");
  me.wait("seen");
  EXPECT_TRUE(is_held(event)) << "this process's record is the later one";
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(api.event_query(event));
  me.signal("done");
  me.wait("seen the later");
}

template <class Api>
static void records_earlier(Role& me, Api api, cudaEvent_t event) {
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(api.event_record(event, stream));
  me.signal("recorded earlier");
  me.wait("recorded later");
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_CODE(api.kNotReady, api.event_query(event))
      << "the other process's record is the later one";
  me.signal("seen");
  me.wait("done");
  EXPECT_SUCCESS(api.event_query(event));
  me.signal("seen the later");
}

TEST(EventPingPong, ALaterRecordReplacesTheEarlier) {
  covers("LEVT-13");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      exporter_replaces_its_record(me, api);
      const SharedEvent event;
      me.send("overlaps", event.handle());
      for (const bool waits_first : {false, true}) {
        records_later(me, api, event, waits_first);
        records_earlier(me, api, event);
      }
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      importer_asks_for_each_record(me, api);
      const SharedEvent event(me.receive<cudaIpcEventHandle_t>("overlaps"));
      for (const bool waits_first : {false, true}) {
        records_earlier(me, api, event);
        records_later(me, api, event, waits_first);
      }
    });
  });
  scenario.run(30s);
}

// Two records of one stream, with held work before each of them.
template <class Api>
static void records_twice_in_a_stream(Role& me, Api api, cudaEvent_t event) {
  const Stream stream;
  Latch first, second;
  first.hold(stream);
  CALL(api.event_record(event, stream));
  me.signal("recorded first");
  me.wait("waits for the first");
  second.hold(stream);
  CALL(api.event_record(event, stream));
  me.signal("recorded second");
  me.wait("waits for the second");
  first.release();
  me.wait("asked");
  EXPECT_CODE(api.kNotReady, api.event_query(event)) << "the second record";
  second.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(api.event_query(event));
  me.signal("queried");
  me.wait("seen");
}

// A stream and a host thread wait for the first record, and others, which begin
// later, for the second one.
template <class Api>
static void waits_for_each_of_two(Role& me, Api api, cudaEvent_t event) {
  const Stream for_first, for_second;
  me.wait("recorded first");
  EXPECT_SUCCESS(api.stream_wait_event(for_first, event));
  HostWait first = api.host_wait(event);
  EXPECT_TRUE(first.is_held()) << "the first record";
  me.signal("waits for the first");
  me.wait("recorded second");
  EXPECT_SUCCESS(api.stream_wait_event(for_second, event));
  HostWait second = api.host_wait(event);
  me.signal("waits for the second");
  EXPECT_TRUE(passes(for_first)) << "the first record";
  EXPECT_FALSE(first.is_held()) << "the host waits for the first record";
  EXPECT_CODE(api.kNotReady, api.event_query(event)) << "the second record";
  EXPECT_TRUE(second.is_held()) << "the second record";
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(for_second));
  me.signal("asked");
  EXPECT_TRUE(passes(for_second));
  EXPECT_EQ(first.join(), cudaSuccess);
  EXPECT_EQ(second.join(), cudaSuccess);
  EXPECT_SUCCESS(api.event_query(event));
  me.wait("queried");
  me.signal("seen");
}

TEST(EventPingPong, OfTwoRecordsInOneStreamTheLastCounts) {
  covers("LEVT-13");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const SharedEvent event;
      me.send("handle", event.handle());
      records_twice_in_a_stream(me, api, event);
      waits_for_each_of_two(me, api, event);
      me.wait("closed");
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
      waits_for_each_of_two(me, api, event);
      records_twice_in_a_stream(me, api, event);
      event.destroy();
      me.signal("closed");
    });
  });
  scenario.run(20s);
}

// One record of the event is pending in a held stream. A later record, in a
// stream that nothing holds, is complete at once.
template <class Api>
static void records_beside_a_pending_record(Role& me, Api api,
                                            cudaEvent_t event) {
  const Stream held, free;
  Latch latch;
  latch.hold(held);
  CALL(api.event_record(event, held));
  CALL(api.event_record(event, free));
  EXPECT_TRUE(passes(free, 1s)) << "a stream that nothing holds";
  EXPECT_SUCCESS(api.event_query(event));
  me.signal("recorded");
  me.wait("asked");
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(held));
  latch.release();
  EXPECT_TRUE(passes(held));
}

template <class Api>
static void asks_beside_a_pending_record(Role& me, Api api, cudaEvent_t event) {
  me.wait("recorded");
  EXPECT_SUCCESS(api.event_query(event));
  me.signal("asked");
}

TEST(EventPingPong, APendingRecordDoesNotDelayALaterOne) {
  covers("LEVT-13");
  needs(gpus(1), legacy_events, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const SharedEvent event;
      me.send("handle", event.handle());
      records_beside_a_pending_record(me, api, event);
      asks_beside_a_pending_record(me, api, event);
      me.wait("closed");
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
      asks_beside_a_pending_record(me, api, event);
      records_beside_a_pending_record(me, api, event);
      me.signal("closed");
    });
  });
  scenario.run(20s);
}

// Records an event many times, and the last time in a stream that is held.
static void records_many_times(Role& me, cudaEvent_t event,
                               cudaStream_t stream) {
  for (int i = 0; i < kManyRecords; ++i) CALL(cudaEventRecord(event, stream));
  EXPECT_TRUE(passes(stream, 15s));
  Latch latch;
  latch.hold(stream);
  CALL(cudaEventRecord(event, stream));
  me.signal("recorded many times");
  me.wait("asked");
  latch.release();
  EXPECT_TRUE(passes(stream));
}

// Waits for this event of the other role, which stands for its last record.
static void sees_the_last_record(Role& me, cudaEvent_t event,
                                 cudaStream_t stream) {
  me.wait("recorded many times");
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event)) << "the last record";
  CALL(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  me.signal("asked");
  EXPECT_TRUE(passes(stream));
}

// An exporter that queues many rounds before the first may run.
static void exporter_plays_many_rounds(Role& me) {
  const DeviceBuffer counter(256);
  const Stream stream;
  const SharedEvent ping, pong;
  auto [mine, theirs] = Whistle::ends();
  const Whistle whistle(std::move(mine));
  count_on<<<1, 1, 0, stream>>>(counter.data, 0);  // loads the kernel
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemset(counter.data, 0, 256));
  CALL(cudaDeviceSynchronize());
  me.send_descriptor("whistle", theirs.get());
  me.send("handles",
          TwoWays{counter.legacy_handle(), ping.handle(), pong.handle()});
  me.wait("opened");
  for (int round = 0; round < kRounds;) {
    Latch latch;
    latch.hold(stream);
    for (int i = 0; i < kHeldRounds; ++i, ++round) {
      note_call("count_on<<<>>>");
      count_on<<<1, 1, 0, stream>>>(counter.data,
                                    static_cast<uint32_t>(2 * round));
      CALL(cudaGetLastError());
      record_in(round, ping, stream);
      ASSERT_TRUE(whistle.blow());
      ASSERT_TRUE(whistle.hear()) << "round " << round;
      wait_in(round, stream, pong);
    }
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.release();
    ASSERT_TRUE(passes(stream)) << "round " << round;
    ASSERT_TRUE(counted(counter, round));
  }
  records_many_times(me, ping, stream);
  sees_the_last_record(me, pong, stream);
  me.wait("closed");
}

// Again and again, both sides queue many rounds while the first of these rounds
// is held, so that no step is in order by chance.
TEST(EventPingPong, ManyRoundsKeepTheirOrder) {
  covers("LEVT-14");
  needs(gpus(1), legacy_memory, legacy_events);
  static_assert(kRounds % kHeldRounds == 0);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", exporter_plays_many_rounds);

  scenario.role("importer", [](Role& me) {
    const Whistle whistle(me.receive_descriptor("whistle"));
    const auto handles = me.receive<TwoWays>("handles");
    LegacyMapping counter(handles.memory, 256);
    SharedEvent ping(handles.ping), pong(handles.pong);
    const Stream stream;
    me.signal("opened");
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(whistle.hear()) << "round " << round;
      wait_in(round, stream, ping);
      count_on<<<1, 1, 0, stream>>>(counter.data,
                                    static_cast<uint32_t>(2 * round + 1));
      CALL(cudaGetLastError());
      record_in(round, pong, stream);
      ASSERT_TRUE(whistle.blow());
    }
    EXPECT_TRUE(passes(stream));
    sees_the_last_record(me, ping, stream);
    records_many_times(me, pong, stream);
    ping.destroy();
    pong.destroy();
    counter.close();
    me.signal("closed");
  });

  scenario.run(120s);
}

// The bytes of a round: more on a larger GPU, so that a round takes about as
// long on every GPU.
static size_t bulk_bytes() {
  return kBulkBytesPerMultiprocessor *
         static_cast<size_t>(attribute(cudaDevAttrMultiProcessorCount));
}

// Where copies come from: memory of the GPU and pinned memory of the host. A
// copy from the host takes long, so work of the importer that comes too early
// has time to begin before its end: the GPU must first switch to the importer.
class Sources {
 public:
  explicit Sources(size_t bytes) : on_gpu_(bytes), on_host_(bytes) {}
  const Words& of_kind(unsigned kind) const {
    return kind >= 5 && kind <= 7 ? static_cast<const Words&>(on_host_)
                                  : on_gpu_;
  }

 private:
  DeviceBuffer on_gpu_;
  PinnedBuffer on_host_;
};

// Writes a round in a way that depends on the round. The sources have the size
// of `to`.
static void queue_round(int round, const Words& to, const Sources& sources,
                        cudaStream_t stream) {
  const auto kind = static_cast<unsigned>(round) % kBulkKinds;
  const Words& source = sources.of_kind(kind);
  const size_t row = to.bytes() / kRows;
  const auto by_kernel = [&](const Words& words) {
    write_round<<<blocks(), 256, 0, stream>>>(words.data, words.count,
                                              word_of(round));
    CALL(cudaGetLastError());
  };
  const auto pitched = [&](const Words& words) {
    return make_cudaPitchedPtr(words.data, row, row, kRows);
  };
  if (kind >= 4) by_kernel(source);
  switch (kind) {
    case 0:
      return by_kernel(to);
    case 1:
      return CALL(cudaMemsetAsync(to.data, round, to.bytes(), stream));
    case 2:
      return CALL(cudaMemset2DAsync(to.data, row, round, row, kRows, stream));
    case 3:
      return CALL(DRIVER(cuMemsetD32Async)(address_of(to.data), word_of(round),
                                           to.count, stream));
    case 4:
    case 7:
      return queue_copy(to, source, stream);
    case 5:
      return CALL(cudaMemcpy2DAsync(to.data, row, source.data, row, row, kRows,
                                    cudaMemcpyHostToDevice, stream));
    case 6: {
      cudaMemcpy3DParms box{};
      box.srcPtr = pitched(source);
      box.dstPtr = pitched(to);
      box.extent = make_cudaExtent(row, kRows, 1);
      box.kind = cudaMemcpyHostToDevice;
      return CALL(cudaMemcpy3DAsync(&box, stream));
    }
    default:
      return CALL(
          cudaMemcpyPeerAsync(to.data, 0, source.data, 0, to.bytes(), stream));
  }
}

// A role that writes in many rounds. Its stream is held until the first rounds
// are queued.
static void writes_many_rounds(const Words& memory, const Whistle& whistle,
                               cudaEvent_t written, cudaEvent_t checked) {
  const DeviceBuffer own(memory.bytes());
  const Sources sources(memory.bytes());
  const Stream stream;
  // Loads the kernels before the stream is held.
  for (unsigned i = 0; i < kBulkKinds; ++i)
    queue_round(static_cast<int>(i), own, sources, stream);
  EXPECT_TRUE(passes(stream));
  Latch latch;
  latch.hold(stream);
  for (int round = 0; round < kBulkRounds; ++round) {
    if (round == kHeldRounds) latch.release();
    queue_round(round, memory, sources, stream);
    CALL(cudaEventRecord(written, stream));
    ASSERT_TRUE(whistle.blow());
    ASSERT_TRUE(whistle.hear()) << "round " << round;
    CALL(cudaStreamWaitEvent(stream, checked, 0));
  }
  EXPECT_TRUE(passes(stream, 20s));
}

// The role that checks these rounds.
static void checks_many_rounds(const Words& memory, const Whistle& whistle,
                               cudaEvent_t written, cudaEvent_t checked) {
  const DeviceBuffer wrong(sizeof(uint32_t) * kBulkRounds);
  CALL(cudaMemset(wrong.data, 0, wrong.bytes()));
  CALL(cudaDeviceSynchronize());
  const Stream stream;
  for (int round = 0; round < kBulkRounds; ++round) {
    ASSERT_TRUE(whistle.hear()) << "round " << round;
    CALL(cudaStreamWaitEvent(stream, written, 0));
    check_round<<<blocks(), 256, 0, stream>>>(
        memory.data, memory.count, word_of(round), wrong.data + round);
    CALL(cudaGetLastError());
    CALL(cudaEventRecord(checked, stream));
    ASSERT_TRUE(whistle.blow());
  }
  EXPECT_TRUE(passes(stream, 20s));
  std::vector<uint32_t> seen(wrong.count, ~0u);
  CALL(cudaMemcpy(seen.data(), wrong.data, wrong.bytes(),
                  cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen, std::vector<uint32_t>(wrong.count, 0)) << "words a round";
}

// First the exporter writes and the importer checks, and then the reverse.
TEST(EventPingPong, MemoryWrittenBeforeTheRecordIsSeenBehindTheWait) {
  covers("LEVT-15");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(bulk_bytes());
    const SharedEvent ping, pong;
    auto [mine, theirs] = Whistle::ends();
    const Whistle whistle(std::move(mine));
    me.send_descriptor("whistle", theirs.get());
    me.send("handles",
            TwoWays{buffer.legacy_handle(), ping.handle(), pong.handle()});
    me.wait("opened");
    writes_many_rounds(buffer, whistle, ping, pong);
    me.signal("written");
    checks_many_rounds(buffer, whistle, pong, ping);
    me.wait("closed");
  });

  scenario.role("importer", [](Role& me) {
    const Whistle whistle(me.receive_descriptor("whistle"));
    const auto handles = me.receive<TwoWays>("handles");
    LegacyMapping mapping(handles.memory, bulk_bytes());
    SharedEvent ping(handles.ping), pong(handles.pong);
    me.signal("opened");
    checks_many_rounds(mapping, whistle, ping, pong);
    me.wait("written");
    writes_many_rounds(mapping, whistle, pong, ping);
    ping.destroy();
    pong.destroy();
    mapping.close();
    me.signal("closed");
  });

  scenario.run(60s);
}

TEST(EventPingPong, OneRecordReleasesAllImporters) {
  covers("LEVT-19");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("old"));
    const Stream stream;
    const SharedEvent event;
    Latch latch;
    latch.hold(stream);
    buffer.queue_fill(pattern("exporter"), stream);
    CALL(cudaEventRecord(event, stream));
    Sentinel<cudaIpcEventHandle_t> by_driver;
    CALL(DriverApi::ipc_get_event_handle(by_driver.out(), event));
    me.send("handle by the driver API", by_driver.result());
    me.send("handles", Handles{buffer.legacy_handle(), event.handle()});
    me.wait("queued", kImporters);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.signal("released");
    me.wait("closed", kImporters);
  });

  scenario.roles("importer", kImporters, [](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    LegacyMapping mapping(handles.memory, kBytes);
    SharedEvent event(handles.event);
    Sentinel<cudaEvent_t> by_driver;
    EXPECT_SUCCESS(DriverApi::ipc_open_event_handle(
        by_driver.out(),
        me.receive<cudaIpcEventHandle_t>("handle by the driver API")));
    const DeviceBuffer copy(kBytes), other_copy(kBytes);
    const Stream stream, other;
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
    queue_copy(copy, mapping, stream);
    EXPECT_SUCCESS(DriverApi::stream_wait_event(other, by_driver.result()));
    queue_copy(other_copy, mapping, other);
    std::unique_ptr<HostWait> host;  // in two processes: it may spin
    if (me.index() < 2) host = std::make_unique<HostWait>(event);
    EXPECT_TRUE(is_held(stream));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(other));
    if (host != nullptr) EXPECT_FALSE(host->returned());
    me.signal("queued");
    me.wait("released");  // the last importer may start many seconds later
    EXPECT_TRUE(passes(stream));
    EXPECT_TRUE(passes(other));
    if (host != nullptr) EXPECT_EQ(host->join(), cudaSuccess);
    EXPECT_TRUE(kernel_reads(copy, pattern("exporter")));
    EXPECT_TRUE(kernel_reads(other_copy, pattern("exporter")));
    EXPECT_SUCCESS(DriverApi::event_destroy(by_driver.result()));
    event.destroy();
    mapping.close();
    me.signal("closed");
  });

  scenario.run(60s);
}

// One of several roles. Each role records events for the other roles and waits
// for their events.
static void waits_for_its_siblings(Role& me) {
  const int self = me.index();
  const auto of = [](const char* what, int whose, int round = 0) {
    return std::string(what) + " of " + std::to_string(whose) + ", round " +
           std::to_string(round);
  };
  const DeviceBuffer own(kBytes);
  const SharedEvent written, read;
  const Stream stream;
  me.send(of("handles", self),
          TwoWays{own.legacy_handle(), written.handle(), read.handle()});
  struct Sibling {
    LegacyMapping memory;
    SharedEvent written, read;
    int index;
    Sibling(const TwoWays& handles, int which)
        : memory(handles.memory, kBytes),
          written(handles.ping),
          read(handles.pong),
          index(which) {}
  };
  std::vector<std::unique_ptr<Sibling>> others;
  for (int i = 0; i < kSiblings; ++i)
    if (i != self)
      others.push_back(
          std::make_unique<Sibling>(me.receive<TwoWays>(of("handles", i)), i));
  const DeviceBuffer wrong(sizeof(uint32_t) * kSiblingRounds);
  CALL(cudaMemset(wrong.data, 0, wrong.bytes()));
  CALL(cudaDeviceSynchronize());

  const auto value = [](int whose, int round) {
    return static_cast<uint32_t>(1000 * (whose + 1) + round);
  };
  for (int round = 0; round < kSiblingRounds; ++round) {
    write_round<<<8, 256, 0, stream>>>(own.data, own.count, value(self, round));
    CALL(cudaGetLastError());
    CALL(cudaEventRecord(written, stream));
    me.signal(of("written", self, round));
    for (const auto& other : others) {
      me.wait(of("written", other->index, round));
      CALL(cudaStreamWaitEvent(stream, other->written, 0));
      check_round<<<8, 256, 0, stream>>>(
          other->memory.data, other->memory.count, value(other->index, round),
          wrong.data + round);
      CALL(cudaGetLastError());
    }
    CALL(cudaEventRecord(read, stream));
    me.signal(of("read", self, round));
    for (const auto& other : others) {
      me.wait(of("read", other->index, round));
      CALL(cudaStreamWaitEvent(stream, other->read, 0));
    }
  }
  EXPECT_TRUE(passes(stream));
  std::vector<uint32_t> seen(wrong.count, ~0u);
  CALL(cudaMemcpy(seen.data(), wrong.data, wrong.bytes(),
                  cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen, std::vector<uint32_t>(wrong.count, 0)) << "words a round";
  others.clear();
  me.signal("closed");
  me.wait("closed", kSiblings - 1);
}

// In each round each process writes its own memory. It waits for the events of
// the other processes and reads their memory.
TEST(EventPingPong, SiblingsWaitForOneAnother) {
  covers("LEVT-19");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.roles("sibling", kSiblings, waits_for_its_siblings);

  scenario.run(60s);
}

// An importer that keeps its import while another importer destroys its own
// import.
static void importer_stays(Role& me) {
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  const DeviceBuffer copy(kBytes);
  const Stream stream;
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  queue_copy(copy, mapping, stream);
  EXPECT_TRUE(is_held(stream));
  me.signal("queued");
  me.wait("released");  // the other importer may start many seconds later
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(copy, pattern("first")));
  EXPECT_SUCCESS(cudaEventQuery(event));
  // The other importer has destroyed its imports. The handle is still good.
  SharedEvent later(handles.event);
  EXPECT_TRUE(is_done(later));
  me.signal("seen first");

  me.wait("recorded and destroyed");
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_TRUE(is_pending(later)) << "opened after the destroy";
  later.destroy();
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_TRUE(is_held(stream));
  me.signal("both wait");
  EXPECT_TRUE(passes(stream));

  me.wait("recorded second");
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  queue_copy(copy, mapping, stream);
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(copy_reads(copy, pattern("second")));
  event.destroy();
  mapping.close();
  me.signal("closed");
}

// An importer that destroys its imports, first without and then with a record
// of its own.
static void importer_destroys(Role& me) {
  const auto handle = me.receive<Handles>("handles").event;
  const Stream stream;
  SharedEvent event(handle), second(handle);
  me.wait("queued");
  event.destroy();
  EXPECT_SUCCESS(DriverApi::event_destroy(second.release()));
  me.signal("destroyed");

  // This importer opens and destroys the event once more, with a record of its
  // own in between.
  me.wait("seen first");
  SharedEvent again(handle);
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(cudaEventRecord(again, stream));
  again.destroy();
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream)) << "no wait";
  me.signal("recorded and destroyed");
  me.wait("both wait", 2);
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.wait("closed");  // the other roles must not see this process end
}

// An exporter's destroy does not wait for a pending record either. A stream
// that waits for the event still waits after it.
static void destroys_pending_events(cudaStream_t stream) {
  const Stream waiting;
  Latch latch;
  latch.hold(stream);
  by_both_apis([&](auto api) {
    SharedEvent event;
    CALL(api.event_record(event, stream));
    event.handle();
    EXPECT_SUCCESS(api.stream_wait_event(waiting, event));
    EXPECT_SUCCESS(api.event_destroy(event.release()));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream)) << "no wait";
    EXPECT_TRUE(is_held(waiting)) << "its wait goes on";
  });
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(passes(waiting));
}

// One importer destroys its event while the other importer's wait is queued.
TEST(EventPingPong, DestroyingAnImportConcernsNobodyElse) {
  covers("LEVT-20");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("old"));
    const Stream stream;
    const SharedEvent event;
    Latch latch;
    latch.hold(stream);
    buffer.queue_fill(pattern("first"), stream);
    CALL(cudaEventRecord(event, stream));
    me.send("handles", Handles{buffer.legacy_handle(), event.handle()});
    me.wait("destroyed");
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_SUCCESS(cudaEventQuery(event));
    me.signal("released");
    me.wait("seen first");

    me.wait("recorded and destroyed");
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
    EXPECT_TRUE(is_held(stream));
    me.signal("both wait");
    EXPECT_TRUE(passes(stream));

    buffer.queue_fill(pattern("second"), stream);
    EXPECT_SUCCESS(cudaEventRecord(event, stream));
    me.signal("recorded second");
    me.wait("closed");
    EXPECT_TRUE(passes(stream));
    destroys_pending_events(stream);
  });

  scenario.role("importer that destroys", importer_destroys);

  scenario.role("importer that stays", importer_stays);

  scenario.run(30s);
}

// The importer's stream waits for an event that both processes have destroyed,
// first the importer and then the exporter.
TEST(EventPingPong, AWaitOutlivesTheEventInBothProcesses) {
  covers("LEVT-20");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const Stream stream;
      SharedEvent event;
      Latch latch;
      latch.hold(stream);
      CALL(api.event_record(event, stream));
      me.send("handle", event.handle());
      me.wait("destroyed by the importer");
      EXPECT_SUCCESS(api.event_destroy(event.release()));
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream)) << "no wait";
      me.signal("destroyed by the exporter");
      me.wait("seen");
      latch.release();
      EXPECT_TRUE(passes(stream));
      me.wait("done");
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const Stream stream;
      SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
      EXPECT_SUCCESS(api.stream_wait_event(stream, event));
      EXPECT_SUCCESS(api.event_destroy(event.release()));
      me.signal("destroyed by the importer");
      me.wait("destroyed by the exporter");
      EXPECT_TRUE(is_held(stream)) << "its wait goes on";
      me.signal("seen");
      EXPECT_TRUE(passes(stream));
      me.signal("done");
    });
  });
  scenario.run(20s);
}
