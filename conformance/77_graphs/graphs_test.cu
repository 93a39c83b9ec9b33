// Graphs with work on imported memory, and interprocess events around them and
// in them.
// Mirror of samples/77_graphs.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/kernels.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 128 << 10;
constexpr int kRounds = 30;
constexpr uint32_t kSetByGraph = 0x5e75e75e;
constexpr int kHeldRounds = 5;  // queued before the first round is done
constexpr int kLateRound = 20;  // from here on the importer's graphs are held

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
  void launch_in(cudaStream_t stream, bool by_driver = false) const {
    if (by_driver)
      CALL(DRIVER(cuGraphLaunch)(replay_, stream));
    else
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

// A launch comes after the earlier launches of its graph, also in another
// stream and by another thread.
void expect_launches_in_order(const Replay& replay, cudaStream_t first,
                              bool by_another_thread) {
  SCOPED_TRACE(by_another_thread ? "by another thread" : "by one thread");
  const Stream other;
  Latch latch;
  latch.hold(first);
  replay.launch_in(first);
  const auto launch = [&] { return replay.launch_in(other), cudaSuccess; };
  CALL(by_another_thread ? in_a_thread(launch) : launch());
  EXPECT_TRUE(is_held(other)) << "the earlier launch is held";
  latch.release();
  EXPECT_TRUE(passes(first));
  EXPECT_TRUE(passes(other));
}

// A launch waits for the earlier work of the stream that it names, also if this
// is not the stream of earlier launches. `copy` is what the graph writes.
void expect_launch_waits_for_its_stream(const Replay& replay,
                                        const DeviceBuffer& copy,
                                        const Pattern& written) {
  const Stream other, reader, blocking(Stream::Kind::kBlocking);
  const PinnedBuffer seen(sizeof(uint32_t));
  const struct {
    const char* name;
    cudaStream_t stream;
    bool by_driver;
  } launches[] = {{"another stream", other, true},
                  {"a blocking stream", blocking, false},
                  {"the null stream", nullptr, true},
                  {"the thread's default stream", cudaStreamPerThread, false}};
  for (const auto& [name, stream, by_driver] : launches) {
    SCOPED_TRACE(name);
    copy.poison();
    CALL(cudaDeviceSynchronize());
    Latch latch;
    latch.hold(stream);
    replay.launch_in(stream, by_driver);
    EXPECT_TRUE(is_held(stream)) << "the work before the launch is held";
    CALL(cudaMemcpyAsync(seen.data, copy.data, sizeof(uint32_t),
                         cudaMemcpyDeviceToHost, reader));
    EXPECT_TRUE(passes(reader));
    EXPECT_NE(seen.data[0], written.at(0)) << "the graph runs too early";
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_TRUE(copy_reads(copy, written));
  }
}

// Work that comes directly after a graph in its stream waits for the graph.
// `held` is held inside by `latch`.
void expect_work_waits_for_the_graph(const Replay& held, Latch& latch) {
  static std::atomic<bool> called;
  constexpr size_t kWord = sizeof(uint32_t);
  const DeviceBuffer copied(kBytes), set(kBytes), source(kBytes);
  const DeviceBuffer by_kernel(kBytes);
  const Words targets[] = {copied, set, by_kernel};
  const PinnedBuffer seen(kWord);
  const SharedEvent event(cudaEventDisableTiming);
  const Stream stream;
  for (const Words& each : targets) CALL(cudaMemset(each.data, 0, kBytes));
  CALL(cudaMemset(source.data, 7, kBytes));
  seen.data[0] = 0;
  called = false;
  load_kernels();
  CALL(cudaDeviceSynchronize());
  held.launch_in(stream);
  CALL(cudaMemcpyAsync(copied.data, source.data, kBytes,
                       cudaMemcpyDeviceToDevice, stream));
  CALL(cudaMemsetAsync(set.data, 7, kBytes, stream));
  launch_copy(by_kernel, source, stream);
  CALL(cudaLaunchHostFunc(
      stream, [](void*) { called = true; }, nullptr));
  CALL(cudaEventRecord(event, stream));
  EXPECT_TRUE(is_held(stream)) << "the graph is held inside";
  EXPECT_FALSE(called) << "a host function comes early";
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  for (const Words& each : targets) {
    uint32_t word = 1;
    CALL(cudaMemcpy(&word, each.data, kWord, cudaMemcpyDeviceToHost));
    EXPECT_EQ(word, 0u) << "work after the graph comes early";
  }
  // The copies above could wait for this copy in a queue of the hardware.
  CALL(cudaMemcpyAsync(seen.data, source.data, kWord, cudaMemcpyDeviceToHost,
                       stream));
  EXPECT_TRUE(is_held(stream)) << "the graph is held inside";
  EXPECT_EQ(const_cast<const volatile uint32_t&>(seen.data[0]), 0u)
      << "a copy to the host comes early";
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(called);
  EXPECT_EQ(seen.data[0], 0x07070707u);
  for (const Words& each : targets) {
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, each.data, kWord, cudaMemcpyDeviceToHost));
    EXPECT_EQ(word, 0x07070707u);
  }
}

// Memory that is freed directly after a graph goes to no other stream before
// the graph is done. `held` is held inside by `latch`.
void expect_free_waits_for_the_graph(const Replay& held, Latch& latch) {
  const Pool pool;
  // The other stream could wait for the free, and get the memory then.
  set_attribute(pool, cudaMemPoolReuseAllowInternalDependencies, 0);
  set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  const Stream stream, other;
  AsyncBuffer leaving(pool, kBytes, stream);
  const void* const left = leaving.data;
  CALL(cudaStreamSynchronize(stream));
  held.launch_in(stream);
  leaving.free_async(stream);
  const AsyncBuffer next(pool, kBytes, other);
  EXPECT_TRUE(is_held(stream)) << "the graph is held inside";
  EXPECT_NE(next.data, left) << "memory that is freed after the graph";
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(passes(other));
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
      if (events == Events::kAround && round == kLateRound + kHeldRounds)
        EXPECT_TRUE(is_held(stream)) << "the importer's graphs are held";
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
      Latch latch;
      const Replay replay(stream, copy, shared, events, written, taken);
      // Later rounds use a second graph, which waits for this role's latch.
      const Replay late(stream, copy, shared, events, written, taken,
                        events == Events::kAround ? &latch : nullptr);
      for (int round = 0; round < kRounds; ++round) {
        me.wait("written " + std::to_string(round));
        if (round == kLateRound + kHeldRounds) latch.release();
        (round < kLateRound ? replay : late).launch();
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
        Latch beside;
        beside.hold(stream);
        replay.launch_in(other);
        EXPECT_TRUE(passes(other));
        EXPECT_TRUE(copy_reads(copy, round_pattern(kRounds - 1)));
        beside.release();
        EXPECT_TRUE(passes(stream));
        expect_launches_in_order(replay, stream, false);
        expect_launches_in_order(replay, stream, true);
        expect_launch_waits_for_its_stream(replay, copy,
                                           round_pattern(kRounds - 1));
        Latch inside;
        const Replay held(stream, copy, shared, events, written, taken,
                          &inside);
        expect_work_waits_for_the_graph(held, inside);
        if (attribute(cudaDevAttrMemoryPoolsSupported) == 1) {
          Latch once_more;
          const Replay again(stream, copy, shared, events, written, taken,
                             &once_more);
          expect_free_waits_for_the_graph(again, once_more);
        }
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

// The calls that are captured: the usual ones of the runtime, those for
// rectangles and boxes, copies from and to pinned host memory, or calls of the
// driver API. Or a second stream, which joins the capture, makes a copy. Or the
// memset of a box, the driver's copy of a rectangle, and a kernel.
enum class Way { kUsual, kRectangles, kHost, kDriver, kTwoStreams, kKernel };
constexpr Way kWays[] = {Way::kUsual,  Way::kRectangles, Way::kHost,
                         Way::kDriver, Way::kTwoStreams, Way::kKernel};
constexpr size_t kRows = 4;

// What the graphs of one way read and write: a value for the first half of
// `shared`, `source` for the other half, and a copy of the whole.
struct Work {
  Words shared, source, copy;
  int value;
};

void queue_usual(const Work& work, cudaStream_t stream) {
  const size_t half = work.shared.bytes() / 2;
  CALL(cudaMemsetAsync(work.shared.data, work.value, half, stream));
  CALL(cudaMemcpyAsync(work.shared.data + work.shared.count / 2,
                       work.source.data, half, cudaMemcpyDefault, stream));
  CALL(cudaMemcpyAsync(work.copy.data, work.shared.data, work.shared.bytes(),
                       cudaMemcpyDefault, stream));
}

void queue_rectangles(const Work& work, cudaStream_t stream) {
  const size_t bytes = work.shared.bytes(), half = bytes / 2;
  CALL(cudaMemset2DAsync(work.shared.data, half / kRows, work.value,
                         half / kRows, kRows, stream));
  CALL(cudaMemcpy2DAsync(work.shared.data + work.shared.count / 2, half / kRows,
                         work.source.data, half / kRows, half / kRows, kRows,
                         cudaMemcpyDeviceToDevice, stream));
  cudaMemcpy3DParms box{};
  box.srcPtr =
      make_cudaPitchedPtr(work.shared.data, bytes / kRows, bytes / kRows, 2);
  box.dstPtr =
      make_cudaPitchedPtr(work.copy.data, bytes / kRows, bytes / kRows, 2);
  box.extent = make_cudaExtent(bytes / kRows, 2, kRows / 2);
  box.kind = cudaMemcpyDeviceToDevice;
  CALL(cudaMemcpy3DAsync(&box, stream));
}

void queue_kernel(const Work& work, cudaStream_t stream) {
  const size_t half = work.shared.bytes() / 2, row = half / kRows;
  CALL(cudaMemset3DAsync(make_cudaPitchedPtr(work.shared.data, row, row, 2),
                         work.value, make_cudaExtent(row, 2, kRows / 2),
                         stream));
  CUDA_MEMCPY2D rectangle{};
  rectangle.srcMemoryType = rectangle.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rectangle.srcDevice = address_of(work.source.data);
  rectangle.dstDevice = address_of(work.shared.data + work.shared.count / 2);
  rectangle.srcPitch = rectangle.dstPitch = rectangle.WidthInBytes = row;
  rectangle.Height = kRows;
  CALL(DRIVER(cuMemcpy2DAsync)(&rectangle, stream));
  launch_copy(work.copy, work.shared, stream);
}

// A second stream, and the events before and after its work.
struct Fork {
  const Stream stream;
  const SharedEvent before{cudaEventDisableTiming};
  const SharedEvent after{cudaEventDisableTiming};
};

void queue_in_two_streams(const Work& work, cudaStream_t stream,
                          const Fork& fork) {
  const size_t half = work.shared.bytes() / 2;
  CALL(cudaEventRecord(fork.before, stream));
  CALL(cudaStreamWaitEvent(fork.stream, fork.before, 0));
  CALL(cudaMemcpyAsync(work.shared.data + work.shared.count / 2,
                       work.source.data, half, cudaMemcpyDefault, fork.stream));
  CALL(cudaEventRecord(fork.after, fork.stream));
  CALL(cudaMemsetAsync(work.shared.data, work.value, half, stream));
  CALL(cudaStreamWaitEvent(stream, fork.after, 0));
  CALL(cudaMemcpyAsync(work.copy.data, work.shared.data, work.shared.bytes(),
                       cudaMemcpyDefault, stream));
}

void queue_by_driver(const Work& work, cudaStream_t stream) {
  const size_t half = work.shared.bytes() / 2;
  CALL(DRIVER(cuMemsetD32Async)(address_of(work.shared.data),
                                0x01010101u * work.value, work.shared.count / 2,
                                stream));
  CALL(DRIVER(cuMemcpyDtoDAsync)(
      address_of(work.shared.data + work.shared.count / 2),
      address_of(work.source.data), half, stream));
  CALL(DRIVER(cuMemcpyDtoDAsync)(address_of(work.copy.data),
                                 address_of(work.shared.data),
                                 work.shared.bytes(), stream));
}

// The mode of the capture; it makes no difference to the graph.
cudaStreamCaptureMode mode_of(Way way) {
  switch (way) {
    case Way::kRectangles:
    case Way::kTwoStreams:
      return cudaStreamCaptureModeGlobal;
    case Way::kHost:
    case Way::kKernel:
      return cudaStreamCaptureModeRelaxed;
    default:
      return cudaStreamCaptureModeThreadLocal;
  }
}

// A graph of this work, with two executables. The second one is uploaded.
class Graph {
 public:
  Graph(cudaStream_t stream, Way way, const Work& work)
      : by_driver_(way == Way::kDriver) {
    cudaGraph_t graph = nullptr;
    if (by_driver_) {
      CALL(DRIVER(cuStreamBeginCapture)(stream,
                                        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      queue_by_driver(work, stream);
      CALL(DRIVER(cuStreamEndCapture)(stream, &graph));
    } else {
      CALL(cudaStreamBeginCapture(stream, mode_of(way)));
      if (way == Way::kTwoStreams)
        queue_in_two_streams(work, stream, fork_);
      else if (way == Way::kKernel)
        queue_kernel(work, stream);
      else
        (way == Way::kRectangles ? queue_rectangles : queue_usual)(work,
                                                                   stream);
      CALL(cudaStreamEndCapture(stream, &graph));
    }
    for (cudaGraphExec_t& each : made_)
      CALL(cudaGraphInstantiate(&each, graph, 0));
    CALL(cudaGraphDestroy(graph));
    CALL(cudaGraphUpload(made_[1], stream));
    CALL(cudaStreamSynchronize(stream));
  }
  Graph(const Graph&) = delete;
  ~Graph() {
    for (const cudaGraphExec_t each : made_) cudaGraphExecDestroy(each);
  }

  void launch(int which, cudaStream_t stream) const {
    if (by_driver_)
      CALL(DRIVER(cuGraphLaunch)(made_[which], stream));
    else
      CALL(cudaGraphLaunch(made_[which], stream));
  }

 private:
  bool by_driver_;
  const Fork fork_;
  cudaGraphExec_t made_[2] = {};
};

constexpr int kLaunches = 100;

// Launches two graphs in turn, in four streams and two threads; each graph has
// two executables. Judges that after each launch the memory has the values of
// this graph. Then one graph is launched many times.
void launches_two_graphs(const Words& shared, Way way) {
  load_kernels();  // not while a stream captures
  const Words half(shared.data + shared.count / 2, kBytes / 2);
  const DeviceBuffer buffers[2] = {DeviceBuffer(kBytes / 2),
                                   DeviceBuffer(kBytes / 2)};
  const DeviceBuffer buffer(kBytes);
  const PinnedBuffer pinned[2] = {PinnedBuffer(kBytes / 2),
                                  PinnedBuffer(kBytes / 2)};
  const PinnedBuffer pinned_copy(kBytes);
  const bool on_host = way == Way::kHost;
  const Words copy = on_host ? Words(pinned_copy) : Words(buffer);
  const Words half_of_copy(copy.data + copy.count / 2, kBytes / 2);
  const Stream first, second;
  const cudaStream_t streams[] = {first, second, nullptr, cudaStreamPerThread};
  std::unique_ptr<Graph> graphs[2];
  CALL(cudaMemset(shared.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  for (int i = 0; i < 2; ++i) {
    const Words source = on_host ? Words(pinned[i]) : Words(buffers[i]);
    graphs[i] = std::make_unique<Graph>(
        first, way, Work{shared, source, copy, 0x11 * (i + 1)});
    // A launch copies what the source has then, not what it had in the capture.
    buffers[i].fill(round_pattern(i));
    host_writes(pinned[i], round_pattern(i));
  }
  uint32_t unused = 0;
  CALL(cudaMemcpy(&unused, half.data - 1, sizeof unused, cudaMemcpyDefault));
  EXPECT_EQ(unused, 0u) << "an upload executes nothing";
  const auto launch = [&](int i, int which) {
    CALL(cudaMemset(shared.data, 0, kBytes));
    CALL(cudaDeviceSynchronize());
    graphs[which]->launch(i / 4 % 2, streams[i % 4]);
    EXPECT_TRUE(passes(streams[i % 4]));
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, half.data - 1, sizeof word, cudaMemcpyDefault));
    EXPECT_EQ(word, 0x11111111u * (which + 1)) << "launch " << i;
    EXPECT_TRUE(copy_reads(half, round_pattern(which))) << "launch " << i;
    EXPECT_TRUE(
        (on_host ? host_reads : copy_reads)(half_of_copy, round_pattern(which)))
        << "copied from it by launch " << i;
  };
  in_two_threads([&](int thread) {
    for (int i = 0; i < 8; ++i) launch(i, (i + thread) % 2);
  });
  if (way != Way::kUsual) return;
  for (int i = 0; i < kLaunches; ++i) launch(i, 0);
}

// Does this for each way.
void launches_two_graphs(const Words& shared) {
  for (const Way way : kWays) {
    SCOPED_TRACE(static_cast<int>(way));
    launches_two_graphs(shared, way);
  }
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

// Makes a graph that sets memory and then records an interprocess event by a
// node. Returns nothing if a call refuses such a node.
static cudaGraphExec_t set_and_record(Role& me, const Words& memory,
                                      cudaEvent_t event) {
  cudaGraph_t graph = nullptr;
  CALL(cudaGraphCreate(&graph, 0));
  cudaMemsetParams set{};
  set.dst = memory.data;
  set.value = kSetByGraph;
  set.elementSize = sizeof(uint32_t);
  set.width = memory.count;
  set.height = 1;
  cudaGraphNode_t memset = nullptr, record = nullptr;
  CALL(cudaGraphAddMemsetNode(&memset, graph, nullptr, 0, &set));
  cudaGraphExec_t launched = nullptr;
  cudaError_t code =
      NOTED(cudaGraphAddEventRecordNode(&record, graph, &memset, 1, event));
  if (code == cudaSuccess)
    code = NOTED(cudaGraphInstantiate(&launched, graph, 0));
  observe_code(me, "a node that records an interprocess event", code);
  CALL(cudaGraphDestroy(graph));
  return code == cudaSuccess ? launched : nullptr;
}

TEST(Graphs, AnEventNodeIsWrittenDown) {
  covers("GRPH-02");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    SharedEvent event;
    me.send("handle", buffer.legacy_handle());
    me.send("event", event.handle());
    const cudaGraphExec_t graph = set_and_record(me, buffer, event);
    me.send("launches", graph != nullptr ? 2 : 0);
    const Stream stream;
    for (int i = 0; graph != nullptr && i < 2; ++i) {
      buffer.poison();
      Latch latch;
      latch.hold(stream);
      EXPECT_SUCCESS(cudaGraphLaunch(graph, stream));
      me.signal("launched");
      me.wait("waits");
      latch.release();
      EXPECT_TRUE(passes(stream));
      me.signal("passed");
      me.wait("read");
    }
    if (graph != nullptr) CALL(cudaGraphExecDestroy(graph));
    me.signal("done");
  });
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
    const int launches = me.receive<int>("launches");
    const Stream stream;
    for (int i = 0; i < launches; ++i) {
      me.wait("launched");
      EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
      const bool waits = is_held(stream);
      me.observe(std::string("a wait after the launch ") +
                 (waits ? "waits for the node" : "finds no record"));
      me.signal("waits");
      EXPECT_TRUE(passes(stream));
      me.wait("passed");
      EXPECT_SUCCESS(cudaEventQuery(event));
      std::vector<uint32_t> seen(mapping.count);
      CALL(cudaMemcpy(seen.data(), mapping.data, kBytes, cudaMemcpyDefault));
      EXPECT_EQ(std::count(seen.begin(), seen.end(), kSetByGraph),
                static_cast<std::ptrdiff_t>(seen.size()))
          << "launch " << i;
      me.signal("read");
    }
    me.wait("done");
    event.destroy();
    mapping.close();
  });
  scenario.run(20s);
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
