// Graphs with work on imported memory, and interprocess events around them and
// in them.
// Mirror of samples/77_graphs.
//
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "harness/scenario/kernels.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 128 << 10;
constexpr int kRounds = 30;
constexpr int kHeldRounds = 5;  // queued before the first round is done

// Where the wait for an event and the record are: in the stream or in the
// graph.
enum class Events { kAround, kInside };

// The graph of one side: it copies `from` to `to`, after `held_by` is released.
class Replay {
 public:
  Replay(const Stream& stream, const Words& to, const Words& from,
         Events events, cudaEvent_t waits, cudaEvent_t records,
         Latch* held_by = nullptr)
      : stream_(stream), events_(events), waits_(waits), records_(records) {
    cudaGraph_t graph = nullptr;
    CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (events == Events::kInside)
      CALL(cudaStreamWaitEvent(stream, waits, cudaEventWaitExternal));
    if (held_by != nullptr) held_by->hold(stream);
    launch_copy(to, from, stream);
    if (events == Events::kInside)
      CALL(cudaEventRecordWithFlags(records, stream, cudaEventRecordExternal));
    CALL(cudaStreamEndCapture(stream, &graph));
    CALL(cudaGraphInstantiate(&replay_, graph, 0));
    CALL(cudaGraphDestroy(graph));
  }
  Replay(const Replay&) = delete;
  ~Replay() { cudaGraphExecDestroy(replay_); }

  // Launches without events, in the given stream.
  void launch_in(cudaStream_t stream) const {
    CALL(cudaGraphLaunch(replay_, stream));
  }

  void launch() const {
    if (events_ == Events::kAround)
      CALL(cudaStreamWaitEvent(stream_, waits_, 0));
    CALL(cudaGraphLaunch(replay_, stream_));
    if (events_ == Events::kAround) CALL(cudaEventRecord(records_, stream_));
  }

 private:
  const Stream& stream_;
  Events events_;
  cudaEvent_t waits_, records_;
  cudaGraphExec_t replay_ = nullptr;
};

Pattern round_pattern(int round) {
  return pattern("round " + std::to_string(round));
}

// In each round the exporter's graph copies new values into the shared memory,
// and the importer's graph copies them out. The exporter queues the next values
// while the GPU works; only the events keep the order. `judge` gets the number
// of wrong values that the importer found.
template <class Judge>
void rounds(Events events, Judge judge) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [events](Role& me) {
    const DeviceBuffer shared(kBytes), source(kBytes);
    const SharedEvent written, taken;
    const Stream stream;
    source.fill(round_pattern(0));
    Latch latch;
    const Replay replay(stream, shared, source, events, taken, written,
                        events == Events::kAround ? &latch : nullptr);
    me.send("memory", shared.legacy_handle());
    me.send("written", written.handle());
    me.send("taken", taken.handle());
    for (int round = 0; round < kRounds; ++round) {
      if (round == kHeldRounds) latch.release();
      source.queue_fill(round_pattern(round), stream);
      replay.launch();
      me.signal("written " + std::to_string(round));
      me.wait("taken " + std::to_string(round));
    }
    me.wait("closed");
    EXPECT_TRUE(passes(stream));
  });
  scenario.role("importer", [events, judge](Role& me) {
    LegacyMapping shared(me.receive<cudaIpcMemHandle_t>("memory"), kBytes);
    SharedEvent written(me.receive<cudaIpcEventHandle_t>("written"));
    SharedEvent taken(me.receive<cudaIpcEventHandle_t>("taken"));
    const DeviceBuffer copy(kBytes);
    WrongWords wrong;
    {
      const Stream stream;
      const Replay replay(stream, copy, shared, events, written, taken);
      for (int round = 0; round < kRounds; ++round) {
        me.wait("written " + std::to_string(round));
        replay.launch();
        wrong.queue_count(copy, round_pattern(round), stream);
        if (events == Events::kAround && round == kHeldRounds - 1)
          EXPECT_TRUE(is_held(stream)) << "the exporter's graphs are held";
        me.signal("taken " + std::to_string(round));
      }
      EXPECT_TRUE(passes(stream, 15s));
      if (events == Events::kAround) {
        // A launch runs in the stream that it names, not in the stream of
        // earlier launches.
        const Stream other;
        copy.poison();
        Latch latch;
        latch.hold(stream);
        replay.launch_in(other);
        EXPECT_TRUE(passes(other));
        EXPECT_TRUE(copy_reads(copy, round_pattern(kRounds - 1)));
        latch.release();
        EXPECT_TRUE(passes(stream));
      }
    }
    judge(me, wrong.so_far());
    written.destroy();
    taken.destroy();
    shared.close();
    me.signal("closed");
  });
  scenario.run(40s);
}

}  // namespace

TEST(Graphs, EventsAroundThemOrderReplaysOnSharedMemory) {
  covers("GRPH-01");
  needs(gpus(1), legacy_memory, legacy_events);
  rounds(Events::kAround, [](Role&, unsigned wrong) { EXPECT_EQ(wrong, 0u); });
}

namespace {

// Captures a graph in this stream. It sets the bytes of the first half of
// `shared` to this value, copies `source` to the other half, and then copies
// `shared` to `copy`.
cudaGraphExec_t captured(cudaStream_t stream, const Words& shared, int value,
                         const Words& source, const Words& copy) {
  const size_t half = shared.bytes() / 2;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CALL(cudaMemsetAsync(shared.data, value, half, stream));
  CALL(cudaMemcpyAsync(shared.data + shared.count / 2, source.data, half,
                       cudaMemcpyDeviceToDevice, stream));
  CALL(cudaMemcpyAsync(copy.data, shared.data, shared.bytes(),
                       cudaMemcpyDeviceToDevice, stream));
  CALL(cudaStreamEndCapture(stream, &graph));
  CALL(cudaGraphInstantiate(&made, graph, 0));
  CALL(cudaGraphDestroy(graph));
  return made;
}

constexpr int kLaunches = 100;

// Launches two graphs in turn, in four streams and two threads. Judges that
// after each launch the memory has the values of this graph.
void launches_two_graphs(const Words& shared) {
  const Words half(shared.data + shared.count / 2, kBytes / 2);
  const DeviceBuffer sources[2] = {DeviceBuffer(kBytes / 2),
                                   DeviceBuffer(kBytes / 2)};
  const DeviceBuffer copy(kBytes);
  const Words half_of_copy(copy.data + copy.count / 2, kBytes / 2);
  const Stream first, second;
  const cudaStream_t streams[] = {first, second, nullptr, cudaStreamPerThread};
  cudaGraphExec_t graphs[2] = {};
  for (int i = 0; i < 2; ++i) {
    sources[i].fill(round_pattern(i));
    graphs[i] = captured(first, shared, 0x11 * (i + 1), sources[i], copy);
  }
  const auto launch = [&](int i, int which) {
    CALL(cudaMemset(shared.data, 0, kBytes));
    CALL(cudaDeviceSynchronize());
    CALL(cudaGraphLaunch(graphs[which], streams[i % 4]));
    EXPECT_TRUE(passes(streams[i % 4]));
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, half.data - 1, sizeof word, cudaMemcpyDefault));
    EXPECT_EQ(word, 0x11111111u * (which + 1)) << "launch " << i;
    EXPECT_TRUE(copy_reads(half, round_pattern(which))) << "launch " << i;
    EXPECT_TRUE(copy_reads(half_of_copy, round_pattern(which)))
        << "copied from it by launch " << i;
  };
  in_two_threads([&](int thread) {
    for (int i = 0; i < 8; ++i) launch(i, (i + thread) % 2);
  });
  for (int i = 0; i < kLaunches; ++i) launch(i, 0);
  for (const cudaGraphExec_t graph : graphs) CALL(cudaGraphExecDestroy(graph));
}

}  // namespace

TEST(Graphs, EachLaunchDoesTheWorkOfItsGraph) {
  covers("GRPH-01");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    LegacyMapping shared(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    launches_two_graphs(shared);
    shared.close();
    me.signal("closed");
  });
  scenario.run(40s);
}

TEST(Graphs, EachLaunchWorksOnAnImportOfADescriptor) {
  covers("GRPH-01");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping mapping(chunk, granule());
    launches_two_graphs(Words(mapping.data, kBytes));
    me.signal("done");
  });
  scenario.run(40s);
}

TEST(Graphs, EachLaunchWorksOnAnImportOfAPool) {
  covers("GRPH-01");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_from_pool(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));  // the driver API needs a context
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer shared(pool, me.receive<cudaMemPoolPtrExportData>("pointer"),
                       kBytes);
    launches_two_graphs(shared);
    shared.free();
    me.signal("freed");
  });
  scenario.run(40s);
}

TEST(Graphs, EventsInThemAreWrittenDown) {
  covers("GRPH-02");
  needs(gpus(1), legacy_memory, legacy_events);
  rounds(Events::kInside, [](Role& me, unsigned wrong) {
    me.observe("interprocess events as external nodes: " +
               std::string(wrong == 0 ? "every replay is in order"
                                      : "replays are NOT in order"));
  });
}
