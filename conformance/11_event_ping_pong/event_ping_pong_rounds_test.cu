// Many rounds of records and waits.
// Mirror of samples/11_event_ping_pong.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/11_event_ping_pong/event_ping_pong_test.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr int kSiblings = 3;
constexpr int kSiblingRounds = 20;

// The hosts exchange a message for every record, so a round costs two process
// switches of the GPU. The many records took 40 to 70 s beside eight other
// tests on two H200s, so the test is alone.
constexpr int kRounds = 1024;
constexpr int kHeldRounds = 64;        // queued before the first of them runs
constexpr int kManyRecords = 1 << 16;  // more than two bytes can count
constexpr int kBulkRounds = 200;
constexpr size_t kBulkBytesPerMultiprocessor = 512 << 10;
constexpr unsigned kBulkKinds = 9;  // ways to write a round
constexpr size_t kRows = 4;

struct TwoWays {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t ping, pong;
};

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

/// Two hosts tell each other "recorded" a thousand times, one byte each time.
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
  needs(gpus(1), legacy_memory, legacy_events, alone);
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
