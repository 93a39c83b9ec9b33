// Events between processes that whole contexts and green contexts record and
// wait for (CUDA 12.5). Mirror of samples/06_contexts_and_apis.
//
// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <string>
#include <vector>

#include "harness/scenario/contexts.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 256 << 10;

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

using Streams = std::vector<cudaStream_t>;

// The calls for a whole context. Each notes its own CUDA name.
class WholeContext {
 public:
  explicit WholeContext(CUcontext context) : context_(context) {}
  CUresult record(cudaEvent_t event) const {
    return NOTED(NEWER(cuCtxRecordEvent)(context_, event));
  }
  CUresult wait(cudaEvent_t event) const {
    return NOTED(NEWER(cuCtxWaitEvent)(context_, event));
  }

 private:
  CUcontext context_;
};

class WholeGreenContext {
 public:
  explicit WholeGreenContext(CUgreenCtx green) : green_(green) {}
  CUresult record(cudaEvent_t event) const {
    return NOTED(NEWER(cuGreenCtxRecordEvent)(green_, event));
  }
  CUresult wait(cudaEvent_t event) const {
    return NOTED(NEWER(cuGreenCtxWaitEvent)(green_, event));
  }

 private:
  CUgreenCtx green_;
};

#if CUDART_VERSION >= 13010
// The primary context of the current device, by the runtime API (CUDA 13.1).
class WholeDevice {
 public:
  WholeDevice() {
    int device = 0;
    CALL(cudaGetDevice(&device));
    CALL(cudaDeviceGetExecutionCtx(&context_, device));
  }
  CUresult record(cudaEvent_t event) const {
    return same_code(NOTED(cudaExecutionCtxRecordEvent(context_, event)));
  }
  CUresult wait(cudaEvent_t event) const {
    return same_code(NOTED(cudaExecutionCtxWaitEvent(context_, event)));
  }

 private:
  // The codes of these functions have the same numbers in both APIs.
  static CUresult same_code(cudaError_t code) {
    cudaGetLastError();
    return static_cast<CUresult>(code);
  }

  cudaExecutionContext_t context_ = nullptr;
};
#endif

// How many ways there are to name a primary context: by the driver API, and by
// the runtime API if both runtime and driver are of CUDA 13.1 or newer.
int ways_to_name_primary() {
  constexpr int kFirst = 13010;
  int driver = 0, runtime = 0;
  CALL(cudaDriverGetVersion(&driver));
  CALL(cudaRuntimeGetVersion(&runtime));
  return CUDART_VERSION >= kFirst && runtime >= kFirst && driver >= kFirst ? 2
                                                                           : 1;
}

// Calls `body` with each way to name the primary context.
template <class Body>
void with_primary(Body body) {
  {
    SCOPED_TRACE("driver API");
    body(WholeContext(primary_context()));
  }
#if CUDART_VERSION >= 13010
  if (ways_to_name_primary() == 2) {
    SCOPED_TRACE("runtime API");
    body(WholeDevice());
  }
#endif
}

// Calls `body` with both ways to name a green context.
template <class Body>
void by_both_names(const GreenContext& green, Body body) {
  {
    SCOPED_TRACE("a green context");
    body(WholeGreenContext(green));
  }
  {
    SCOPED_TRACE("a green context, converted");
    body(WholeContext(green.converted()));
  }
}

Words part(const Words& whole, size_t number, size_t parts) {
  return {whole.data + number * (whole.count / parts), whole.bytes() / parts};
}

void queue_copy(const Words& to, const Words& from, cudaStream_t stream) {
  CALL(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice,
                       stream));
}

// Work that has to wait: a stream without work may be complete.
void queue_set(const Words& memory, cudaStream_t stream) {
  CALL(cudaMemsetAsync(memory.data, 0, memory.bytes(), stream));
}

// Green contexts need not make progress side by side, or beside their primary
// context (the documentation of green contexts). If streams of `held` hold
// those of `free`, the test cannot judge. Writes the memory.
void require_progress(Role& me, const Words& memory, const Streams& held,
                      const Streams& free) {
  memory.fill(pattern("progress"));  // loads the kernel
  Latch latch;
  for (const cudaStream_t stream : held) latch.hold(stream);
  for (size_t i = 0; i < free.size(); ++i)
    part(memory, i, free.size()).queue_fill(pattern("progress"), free[i]);
  bool all_pass = true;
  for (const cudaStream_t stream : free)
    all_pass = all_pass && !is_held(stream);
  latch.release();
  for (const cudaStream_t stream : held) EXPECT_TRUE(passes(stream));
  for (const cudaStream_t stream : free) EXPECT_TRUE(passes(stream));
  if (!all_pass)
    me.stop_not_applicable("held work holds the work of a green context");
}

// Each stream writes a part of the memory after a latch. One record covers all
// of them. The latches are released one after the other. Later work of a stream
// and all work of `others` stay held until the end.
template <class Whole>
void records_all(Role& me, const Whole& whole, cudaEvent_t event,
                 const Words& memory, Pattern written, const Streams& streams,
                 const Streams& others = {}) {
  const size_t count = streams.size();
  memory.fill(written);  // loads the kernel before a stream is held
  memory.poison();
  std::deque<Latch> latches(count);
  Latch later;
  for (const cudaStream_t other : others) later.hold(other);
  for (size_t i = 0; i < count; ++i) {
    latches[i].hold(streams[i]);
    part(memory, i, count).queue_fill(written, streams[i]);
  }
  EXPECT_SUCCESS(whole.record(event));
  later.hold(streams[0]);
  me.signal("recorded");
  me.wait("waits");
  for (size_t i = 0; i < count; ++i) {
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event)) << "stream " << i;
    latches[i].release();
    me.signal("released");
    me.wait("seen");
  }
  EXPECT_SUCCESS(cudaEventQuery(event)) << "later work is not part of it";
  me.signal("looked");  // from now on the other process may record the event
  later.release();
  for (const cudaStream_t stream : streams) EXPECT_TRUE(passes(stream));
  for (const cudaStream_t other : others) EXPECT_TRUE(passes(other));
}

// The other process: a stream, a host and queries find the record.
void finds_the_record(Role& me, cudaEvent_t event, const Words& memory,
                      Pattern written, size_t count) {
  const DeviceBuffer copy(kBytes);
  const Stream stream;
  me.wait("recorded");
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  queue_copy(copy, memory, stream);
  HostWait host(event);
  me.signal("waits");
  for (size_t i = 0; i + 1 < count; ++i) {
    me.wait("released");
    EXPECT_TRUE(is_held(stream)) << i + 1 << " of " << count << " streams";
    EXPECT_FALSE(host.returned()) << i + 1 << " of " << count << " streams";
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    me.signal("seen");
  }
  me.wait("released");
  EXPECT_TRUE(passes(stream)) << "all work of the record is done";
  EXPECT_FALSE(host.is_held()) << "all work of the record is done";
  EXPECT_SUCCESS(cudaEventQuery(event));
  for (size_t i = 0; i < count; ++i)
    EXPECT_TRUE(kernel_reads(part(copy, i, count), written)) << "stream " << i;
  me.signal("seen");
  EXPECT_EQ(host.join(), cudaSuccess);
  me.wait("looked");
}

// A process whose record stays pending until the other process waits for it.
void records_late(Role& me, cudaEvent_t event, const Words& memory,
                  Pattern written) {
  memory.fill(written);
  memory.poison();
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  memory.queue_fill(written, stream);
  CALL(cudaEventRecord(event, stream));
  me.signal("recorded");
  me.wait("waits");
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.wait("read");
}

// The wait of a whole context, in a thread: a driver that waits there does not
// stop the test.
template <class Whole>
HostWait wait_in_a_thread(const Whole& whole, cudaEvent_t event) {
  return HostWait("the wait of a whole context", [whole, event] {
    return static_cast<cudaError_t>(whole.wait(event));
  });
}

// All work that the streams get after the call waits. Earlier work of the first
// stream does not wait, and neither does this thread.
template <class Whole>
void all_wait(Role& me, const Whole& whole, cudaEvent_t event,
              const Words& memory, Pattern written, const Streams& streams) {
  std::deque<DeviceBuffer> copies;
  for (size_t i = 0; i < streams.size(); ++i) copies.emplace_back(kBytes);
  const SharedEvent earlier(cudaEventDisableTiming);
  Latch latch;
  latch.hold(streams[0]);
  CALL(cudaEventRecord(earlier, streams[0]));
  me.wait("recorded");
  HostWait call = wait_in_a_thread(whole, event);
  EXPECT_FALSE(call.is_held()) << "the call waits for the event";
  for (size_t i = 0; i < streams.size(); ++i)
    queue_copy(copies[i], memory, streams[i]);
  latch.release();
  HostWait host(earlier);
  EXPECT_FALSE(host.is_held()) << "earlier work waits";
  EXPECT_TRUE(is_held(streams[0]));
  for (size_t i = 0; i < streams.size(); ++i)
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(streams[i]))
        << "stream " << i;
  me.signal("waits");
  EXPECT_EQ(host.join(), cudaSuccess);
  EXPECT_EQ(call.join(), cudaSuccess);
  for (const cudaStream_t stream : streams) EXPECT_TRUE(passes(stream));
  for (const DeviceBuffer& copy : copies)
    EXPECT_TRUE(kernel_reads(copy, written));
  me.signal("read");
}

// Exporter and importer of memory and an event; both bodies get the event and
// the memory.
using Body = std::function<void(Role&, cudaEvent_t, const Words&)>;

void run_with_event(const Body& exporter, const Body& importer) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [=](Role& me) {
    const DeviceBuffer buffer(kBytes);
    const SharedEvent event;
    me.send("handles", Handles{buffer.legacy_handle(), event.handle()});
    exporter(me, event, buffer);
    me.wait("closed");
  });
  scenario.role("importer", [=](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    LegacyMapping mapping(handles.memory, kBytes);
    SharedEvent event(handles.event);
    importer(me, event, mapping);
    event.destroy();
    mapping.close();
    me.signal("closed");
  });
  scenario.run(40s);
}

// Is the capture of the stream invalid? Ends it.
testing::AssertionResult is_spoilt(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CALL(cudaStreamIsCapturing(stream, &status));
  cudaGraph_t graph = nullptr;
  const cudaError_t code = cudaStreamEndCapture(stream, &graph);
  cudaGetLastError();
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (status != cudaStreamCaptureStatusInvalidated)
    return testing::AssertionFailure() << "the capture goes on";
  if (code != cudaErrorStreamCaptureInvalidated)
    return testing::AssertionFailure()
           << "the end of the capture gives " << name_of(code);
  return testing::AssertionSuccess();
}

void begin_capture(cudaStream_t stream) {
  CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
}

// A record and a wait are refused while the stream captures.
template <class Whole>
void expect_capture_spoilt(const Whole& whole, cudaEvent_t event,
                           cudaStream_t stream) {
  begin_capture(stream);
  EXPECT_REFUSED(whole.record(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(is_spoilt(stream)) << "after a record";
  begin_capture(stream);
  EXPECT_REFUSED(whole.wait(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(is_spoilt(stream)) << "after a wait";
  // The event to wait for is part of a capture.
  const SharedEvent local(cudaEventDisableTiming);
  begin_capture(stream);
  CALL(cudaEventRecord(local, stream));
  EXPECT_REFUSED(whole.wait(local), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(is_spoilt(stream)) << "after a wait for a captured event";
}

// A wait for an event that a stream of another green context captures. The
// context of the wait has no capture.
template <class Whole>
void expect_capture_elsewhere_spoilt(const Whole& whole,
                                     cudaStream_t elsewhere) {
  const SharedEvent local(cudaEventDisableTiming);
  begin_capture(elsewhere);
  CALL(cudaEventRecord(local, elsewhere));
  EXPECT_REFUSED(whole.wait(local), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(is_spoilt(elsewhere)) << "after a wait of another context";
}

}  // namespace

TEST(ContextsAndApis, AContextRecordsTheWorkOfAllItsStreams) {
  covers("LEVT-30");
  needs(gpus(1), legacy_memory, legacy_events, context_events, progress);
  const auto records = [](const char* who) {
    return [=](Role& me, cudaEvent_t event, const Words& memory) {
      const Stream usual, urgent(Stream::Kind::kUrgent);
      with_primary([&](const auto& context) {
        records_all(me, context, event, memory, pattern(who),
                    {usual, cudaStreamLegacy, urgent});
      });
    };
  };
  const auto finds = [](const char* who) {
    return [=](Role& me, cudaEvent_t event, const Words& memory) {
      for (int i = 0; i < ways_to_name_primary(); ++i)
        finds_the_record(me, event, memory, pattern(who), 3);
    };
  };
  run_with_event(
      [=](auto&&... all) {
        records("exporter")(all...);
        finds("importer")(all...);
      },
      [=](auto&&... all) {
        finds("exporter")(all...);
        records("importer")(all...);
      });
}

TEST(ContextsAndApis, AContextWaitsInAllItsStreams) {
  covers("LEVT-31");
  needs(gpus(1), legacy_memory, legacy_events, context_events, progress);
  const auto waits = [](Role& me, cudaEvent_t event, const Words& memory,
                        const char* other) {
    const Stream usual, urgent(Stream::Kind::kUrgent);
    with_primary([&](const auto& context) {
      all_wait(me, context, event, memory, pattern(other),
               {usual, cudaStreamLegacy, urgent});
    });
  };
  const auto records = [](Role& me, cudaEvent_t event, const Words& memory,
                          const char* who) {
    for (int i = 0; i < ways_to_name_primary(); ++i)
      records_late(me, event, memory, pattern(who));
  };
  run_with_event(
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        records(me, event, memory, "exporter");
        waits(me, event, memory, "importer");
      },
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        waits(me, event, memory, "exporter");
        records(me, event, memory, "importer");
      });
}

// All future work: also work of a stream that does not exist yet.
TEST(ContextsAndApis, AContextWaitsInLaterStreams) {
  covers("LEVT-31");
  needs(gpus(1), legacy_memory, legacy_events, context_events, progress);
  run_with_event(
      [](Role& me, cudaEvent_t event, const Words& memory) {
        records_late(me, event, memory, pattern("exporter"));
      },
      [](Role& me, cudaEvent_t event, const Words& memory) {
        const DeviceBuffer copy(kBytes);
        me.wait("recorded");
        HostWait call =
            wait_in_a_thread(WholeContext(primary_context()), event);
        EXPECT_FALSE(call.is_held()) << "the call waits for the event";
        const Stream later;
        queue_copy(copy, memory, later);
        EXPECT_TRUE(is_held(later)) << "a stream that is made after the wait";
        me.signal("waits");
        EXPECT_EQ(call.join(), cudaSuccess);
        EXPECT_TRUE(passes(later));
        EXPECT_TRUE(kernel_reads(copy, pattern("exporter")));
        me.signal("read");
      });
}

TEST(ContextsAndApis, ThePrimaryContextIncludesItsGreenContexts) {
  covers("LEVT-32");
  needs(gpus(1), legacy_memory, legacy_events, context_events, green_contexts,
        progress);
  const auto records = [](Role& me, cudaEvent_t event, const Words& memory,
                          const char* who) {
    const GreenContext first(0), second(1);
    const GreenStream of_first(first), of_second(second);
    const Stream own;
    require_progress(me, memory, {own}, {of_first, of_second});
    with_primary([&](const auto& primary) {
      records_all(me, primary, event, memory, pattern(who),
                  {own, of_first, of_second});
    });
  };
  const auto finds = [](Role& me, cudaEvent_t event, const Words& memory,
                        const char* who) {
    for (int i = 0; i < ways_to_name_primary(); ++i)
      finds_the_record(me, event, memory, pattern(who), 3);
  };
  const auto waits = [](Role& me, cudaEvent_t event, const Words& memory,
                        const char* other) {
    const GreenContext first(0), second(1);
    const GreenStream of_first(first), of_second(second);
    with_primary([&](const auto& primary) {
      all_wait(me, primary, event, memory, pattern(other),
               {of_first, of_second});
    });
  };
  const auto records_later = [](Role& me, cudaEvent_t event,
                                const Words& memory, const char* who) {
    for (int i = 0; i < ways_to_name_primary(); ++i)
      records_late(me, event, memory, pattern(who));
  };
  run_with_event(
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        records(me, event, memory, "exporter's context");
        records_later(me, event, memory, "exporter");
        finds(me, event, memory, "importer's context");
        waits(me, event, memory, "importer");
      },
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        finds(me, event, memory, "exporter's context");
        waits(me, event, memory, "exporter");
        records(me, event, memory, "importer's context");
        records_later(me, event, memory, "importer");
      });
}

TEST(ContextsAndApis, AGreenContextRecordsOnlyItsOwnWork) {
  covers("LEVT-33");
  needs(gpus(1), legacy_memory, legacy_events, context_events, green_contexts,
        progress);
  const auto records = [](Role& me, cudaEvent_t event, const Words& memory,
                          const char* who) {
    const GreenContext green(0), other(1);
    const GreenStream first(green), second(green), elsewhere(other);
    const Stream of_primary;
    require_progress(me, memory, {elsewhere, of_primary}, {first, second});
    by_both_names(green, [&](const auto& whole) {
      records_all(me, whole, event, memory, pattern(who), {first, second},
                  {elsewhere, of_primary});
    });
  };
  const auto finds = [](Role& me, cudaEvent_t event, const Words& memory,
                        const char* who) {
    for (int i = 0; i < 2; ++i)
      finds_the_record(me, event, memory, pattern(who), 2);
  };
  run_with_event(
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        records(me, event, memory, "exporter");
        finds(me, event, memory, "importer");
      },
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        finds(me, event, memory, "exporter");
        records(me, event, memory, "importer");
      });
}

TEST(ContextsAndApis, AGreenContextWaitsInAllItsStreams) {
  covers("LEVT-34");
  needs(gpus(1), legacy_memory, legacy_events, context_events, green_contexts,
        progress);
  const auto waits = [](Role& me, cudaEvent_t event, const Words& memory,
                        const char* other) {
    const GreenContext green;
    const GreenStream first(green), second(green);
    by_both_names(green, [&](const auto& whole) {
      all_wait(me, whole, event, memory, pattern(other), {first, second});
    });
  };
  const auto records = [](Role& me, cudaEvent_t event, const Words& memory,
                          const char* who) {
    for (int i = 0; i < 2; ++i) records_late(me, event, memory, pattern(who));
  };
  run_with_event(
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        records(me, event, memory, "exporter");
        waits(me, event, memory, "importer");
      },
      [=](Role& me, cudaEvent_t event, const Words& memory) {
        waits(me, event, memory, "exporter");
        records(me, event, memory, "importer");
      });
}

// The exporter records `records` times. The importer waits for the event in
// another context than the one that has opened it. If it dies of this, a relay
// lets the exporter continue.
void run_with_wait_of_others(
    const std::function<int()>& records,
    const std::function<void(Role&, const cudaIpcEventHandle_t&)>& importer) {
  Scenario scenario;
  scenario.role("exporter", [=](Role& me) {
    const SharedEvent event;
    me.send("handle", event.handle());
    for (int i = 0; i < records(); ++i) {
      const Stream stream;
      Latch latch;
      latch.hold(stream);
      CALL(cudaEventRecord(event, stream));
      me.signal("recorded");
      me.wait("waits");
      latch.release();
      EXPECT_TRUE(passes(stream));
    }
    EXPECT_SUCCESS(cudaEventQuery(event));
  });
  scenario
      .role("importer",
            [=](Role& me) {
              importer(me, me.receive<cudaIpcEventHandle_t>("handle"));
            })
      .may_end_by(SIGSEGV);
  scenario.role("relay", [=](Role& me) {
    me.wait_until_done("importer");
    for (int i = 0; i < records(); ++i) me.signal("waits");
  });
  scenario.run(40s);
  const Ended& ended = scenario.ended("importer");
  if (ended.signal != 0)
    ADD_FAILURE() << "the importer died of " << ended.last_call;
}

TEST(ContextsAndApis, AContextWaitsForAnEventOfThePrimaryContext) {
  covers("LEVT-35");
  needs(gpus(1), legacy_events, context_events, progress);
  const auto once = [] { return 1; };
  run_with_wait_of_others(once,
                          [](Role& me, const cudaIpcEventHandle_t& handle) {
                            const SharedEvent opened(handle);
                            const SecondContext own;
                            const DeviceBuffer buffer(kBytes);
                            const Stream stream;  // of the second context
                            me.wait("recorded");
                            EXPECT_SUCCESS(WholeContext(own).wait(opened));
                            queue_set(buffer, stream);
                            EXPECT_TRUE(is_held(stream));
                            me.signal("waits");
                            EXPECT_TRUE(passes(stream));
                          });
}

TEST(ContextsAndApis, AGreenContextWaitsForAnEventOfAnotherContext) {
  covers("LEVT-35");
  needs(gpus(1), legacy_events, context_events, green_contexts, progress);
  const auto by_each = [] { return 1 + ways_to_name_primary(); };
  run_with_wait_of_others(
      by_each, [](Role& me, const cudaIpcEventHandle_t& handle) {
        const GreenContext green;
        const DeviceBuffer buffer(kBytes);
        const GreenStream stream(green);
        const SecondContext own;
        const SharedEvent opened(handle);  // in the second context
        CALL(cudaSetDevice(0));
        const auto expect_wait = [&](const auto& whole) {
          me.wait("recorded");
          EXPECT_SUCCESS(whole.wait(opened));
          queue_set(buffer, stream);
          EXPECT_TRUE(is_held(stream));
          me.signal("waits");
          EXPECT_TRUE(passes(stream));
        };
        by_both_names(green, expect_wait);
#if CUDART_VERSION >= 13010
        if (ways_to_name_primary() == 2) {
          SCOPED_TRACE("the primary context, by the runtime API");
          expect_wait(WholeDevice());
        }
#endif
        CALL(DRIVER(cuCtxSetCurrent)(own));
      });
}

// The exporter's record is pending. No refused call changes what the event
// stands for.
TEST(ContextsAndApis, AnotherContextDoesNotRecordTheEvent) {
  covers("LEVT-36");
  needs(gpus(1), legacy_events, context_events, green_contexts, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const SharedEvent event, second;
    const Stream stream;
    const CUcontext primary = primary_context();
    // Its destroy may wait for the work of the GPU, so it lives on.
    const SecondContext own;
    CALL(DRIVER(cuCtxSetCurrent)(primary));
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    CALL(cudaEventRecord(second, stream));
    me.send("event", event.handle());
    me.send("second", second.handle());
    EXPECT_REFUSED(WholeContext(own).record(event), CUDA_ERROR_INVALID_HANDLE,
                   CUDA_ERROR_INVALID_CONTEXT);
    me.wait("refused");
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(second));
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.signal("done");
    me.wait("recorded");
    EXPECT_SUCCESS(cudaEventQuery(event));
  });
  scenario.role("importer", [](Role& me) {
    const SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
    const CUcontext primary = primary_context();
    const GreenContext green;
    const SecondContext own;
    const SharedEvent second(me.receive<cudaIpcEventHandle_t>("second"));
    EXPECT_REFUSED(WholeContext(own).record(event), CUDA_ERROR_INVALID_HANDLE,
                   CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_REFUSED(WholeContext(primary).record(second),
                   CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT);
    by_both_names(green, [&](const auto& whole) {
      EXPECT_REFUSED(whole.record(second), CUDA_ERROR_INVALID_HANDLE,
                     CUDA_ERROR_INVALID_CONTEXT);
    });
    EXPECT_TRUE(is_held(event)) << "the exporter's record";
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(second));
    me.signal("refused");
    me.wait("done");
    EXPECT_SUCCESS(cudaEventQuery(event));
    EXPECT_SUCCESS(cudaEventQuery(second));
    EXPECT_SUCCESS(WholeContext(own).record(second));
    EXPECT_SUCCESS(WholeContext(primary).record(event));
    EXPECT_SUCCESS(cudaEventSynchronize(event));
    me.signal("recorded");
  });
  scenario.run(20s);
}

// "The same primary context": a green context of another GPU has another one.
TEST(ContextsAndApis, AGreenContextOfAnotherGpuDoesNotRecordTheEvent) {
  covers("LEVT-36");
  needs(gpus(2), legacy_events, context_events, green_contexts);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const SharedEvent event;
    me.send("event", event.handle());
    me.wait("refused");
    EXPECT_SUCCESS(cudaEventQuery(event));
  });
  scenario.role("importer", [](Role& me) {
    const SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
    CALL(cudaSetDevice(1));
    {
      const GreenContext green;
      const GreenStream stream(green);
      Latch latch;
      latch.hold(stream);
      const auto expect_refusal = [&](const auto& whole) {
        EXPECT_REFUSED(whole.record(event), CUDA_ERROR_INVALID_HANDLE,
                       CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_SUCCESS(cudaEventQuery(event)) << "nothing is recorded";
      };
      by_both_names(green, expect_refusal);
      with_primary(expect_refusal);
      latch.release();
      EXPECT_TRUE(passes(stream));
    }
    CALL(cudaSetDevice(0));
    me.signal("refused");
  });
  scenario.run(20s);
}

TEST(ContextsAndApis, ACaptureEndsByTheEventsOfItsContext) {
  covers("LEVT-37");
  needs(gpus(1), legacy_events, context_events, green_contexts);
  Scenario scenario(Scenario::kShared);
  const auto spoils = [](cudaEvent_t event) {
    const GreenContext green, other(1);
    const Stream stream;
    const GreenStream part(green), busy(green), elsewhere(other);
    // The event would be pending if a refused call recorded it.
    Latch latch;
    latch.hold(busy);
    with_primary([&](const auto& primary) {
      expect_capture_spoilt(primary, event, stream);
    });
    by_both_names(green, [&](const auto& whole) {
      expect_capture_spoilt(whole, event, part);
      expect_capture_elsewhere_spoilt(whole, elsewhere);
    });
    EXPECT_SUCCESS(cudaEventQuery(event)) << "nothing is recorded";
    latch.release();
    EXPECT_TRUE(passes(busy));
    with_primary([&](const auto& primary) {
      EXPECT_SUCCESS(primary.record(event));
      EXPECT_SUCCESS(cudaEventSynchronize(event));
    });
  };
  scenario.role("exporter", [=](Role& me) {
    const SharedEvent event;
    me.send("event", event.handle());
    spoils(event);
    me.signal("refused");
    me.wait("refused, too");
    EXPECT_SUCCESS(cudaEventQuery(event));
  });
  scenario.role("importer", [=](Role& me) {
    const SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
    me.wait("refused");
    EXPECT_SUCCESS(cudaEventQuery(event));
    spoils(event);
    me.signal("refused, too");
  });
  scenario.run(20s);
}

// A green context is no context until it is converted.
TEST(ContextsAndApis, AGreenContextIsConvertedFirst) {
  covers("LEVT-38");
  needs(gpus(1), legacy_events, context_events, green_contexts);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const SharedEvent event;
    me.send("event", event.handle());
    me.wait("refused");
    EXPECT_SUCCESS(cudaEventQuery(event));
  });
  scenario
      .role(
          "importer",
          [](Role& me) {
            const SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
            const GreenContext green;
            const GreenStream stream(green);
            const WholeContext unconverted(
                reinterpret_cast<CUcontext>(static_cast<CUgreenCtx>(green)));
            Latch latch;
            latch.hold(stream);
            EXPECT_REFUSED(unconverted.record(event),
                           CUDA_ERROR_INVALID_CONTEXT,
                           CUDA_ERROR_INVALID_HANDLE);
            EXPECT_SUCCESS(cudaEventQuery(event)) << "nothing is recorded";
            latch.release();
            EXPECT_TRUE(passes(stream));
            EXPECT_REFUSED(unconverted.wait(event), CUDA_ERROR_INVALID_CONTEXT,
                           CUDA_ERROR_INVALID_HANDLE);
            EXPECT_SUCCESS(WholeContext(green.converted()).record(event));
            EXPECT_SUCCESS(cudaEventSynchronize(event));
            me.signal("refused");
          })
      .in_new_process();
  scenario.run(20s);
}

// An exporter whose memory, event and stream are of a green context.
static void lends_from_a_green_context(Role& me) {
  primary_context();
  const GreenContext green;
  const Current current(green.converted());
  const DeviceBuffer buffer(kBytes);
  const SharedEvent event;
  buffer.fill(pattern("old"));
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  buffer.queue_fill(pattern("exporter"), stream);
  CALL(cudaEventRecord(event, stream));
  me.send("handles", Handles{buffer.legacy_handle(), event.handle()});
  me.wait("waits");
  latch.release();
  me.wait("written");
  EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
  me.wait("closed");
  EXPECT_TRUE(passes(stream));
}

// Opens the memory in two contexts, reads it, and closes it in the reverse
// order. `meanwhile` runs while it is open.
static void opens_in_both(const cudaIpcMemHandle_t& handle, CUcontext first,
                          CUcontext second, Pattern expected,
                          const std::function<void(const Words&)>& meanwhile) {
  std::vector<void*> opened;
  for (const CUcontext context : {first, second}) {
    const Current current(context);
    opened.push_back(nullptr);
    EXPECT_SUCCESS(cudaIpcOpenMemHandle(&opened.back(), handle,
                                        cudaIpcMemLazyEnablePeerAccess));
  }
  ASSERT_NE(opened[0], nullptr);
  EXPECT_EQ(opened[0], opened[1]) << "the second open counts";
  const Words mapping(opened[0], kBytes);
  meanwhile(mapping);
  for (const CUcontext context : {second, first}) {
    const Current current(context);
    EXPECT_TRUE(kernel_reads(mapping, expected));
    EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened[0]));
  }
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, opened[0]));
  EXPECT_NE(attributes.type, cudaMemoryTypeDevice) << "it is closed";
}

// The importer opens them in its green context and in its primary context: for
// legacy handles this is one context.
TEST(ContextsAndApis, AGreenContextSharesAsThePrimaryContext) {
  covers("LMEM-51");
  needs(gpus(1), legacy_memory, legacy_events, green_contexts, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_from_a_green_context);
  scenario.role("importer", [](Role& me) {
    const CUcontext primary = primary_context();
    const GreenContext green;
    const auto handles = me.receive<Handles>("handles");
    const auto reads = [&](const Words& mapping) {
      const Current current(green.converted());
      const SharedEvent event(handles.event);
      const DeviceBuffer copy(kBytes);
      const Stream stream;
      EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
      queue_copy(copy, mapping, stream);
      EXPECT_TRUE(is_held(stream)) << "the exporter's record is pending";
      me.signal("waits");
      EXPECT_TRUE(passes(stream));
      EXPECT_TRUE(kernel_reads(copy, pattern("exporter")));
      mapping.fill(pattern("importer"));
    };
    opens_in_both(handles.memory, green.converted(), primary,
                  pattern("importer"), reads);
    me.signal("written");
    opens_in_both(handles.memory, primary, green.converted(),
                  pattern("importer"), [](const Words&) {});
    me.signal("closed");
  });
  scenario.run(20s);
}
