// Calls with an interprocess event that must be refused, and behaviour that the
// documentation does not promise. Mirror of samples/12_event_refusals.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "harness/scenario/both_apis.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr unsigned kInterprocess =
    cudaEventInterprocess | cudaEventDisableTiming;
// Each event may use device memory and a page in /dev/shm, so the test has a
// limit.
constexpr int kMostEvents = 4000;
constexpr rlim_t kSpareDescriptors = 256;

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

__global__ void write_word(uint32_t* word, uint32_t value) { *word = value; }

void queue_copy(const Words& to, const Words& from, cudaStream_t stream) {
  CALL(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDefault,
                       stream));
}

/// A refused call must not leave anything that looks like an event.
template <class Event>
testing::AssertionResult no_event(const Sentinel<Event>& out) {
  if (!out.touched() || out.value == nullptr)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the refused call returned an event";
}

/// Judges that cudaIpcOpenEventHandle refuses with a code of its documented
/// list.
testing::AssertionResult open_refused(const cudaIpcEventHandle_t& handle,
                                      cudaError_t expected) {
  Sentinel<cudaEvent_t> event;
  const auto answer =
      refused(NOTED(cudaIpcOpenEventHandle(event.out(), handle)),
              "cudaIpcOpenEventHandle",
              {expected, cudaErrorMapBufferObjectFailed, cudaErrorNotSupported,
               cudaErrorInvalidValue, cudaErrorDeviceUninitialized});
  return answer ? no_event(event) : answer;
}

/// Judges that cuIpcOpenEventHandle refuses with a code of its documented list.
testing::AssertionResult driver_open_refused(const cudaIpcEventHandle_t& bytes,
                                             CUresult expected) {
  Sentinel<CUevent> event;
  CUipcEventHandle handle;
  std::memcpy(&handle, &bytes, sizeof handle);
  const auto answer =
      refused(NOTED(DRIVER(cuIpcOpenEventHandle)(event.out(), handle)),
              "cuIpcOpenEventHandle",
              {expected, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_MAP_FAILED,
               CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_INVALID_HANDLE,
               CUDA_ERROR_INVALID_VALUE});
  return answer ? no_event(event) : answer;
}

/// Makes a call that must not change which context is current.
template <class Call>
auto keeps_context(Call call) {
  CUcontext before = nullptr, after = nullptr;
  CALL(DRIVER(cuCtxGetCurrent)(&before));
  const auto result = call();
  CALL(DRIVER(cuCtxGetCurrent)(&after));
  EXPECT_EQ(after, before) << "another context is current";
  return result;
}

/// An exporter whose write and record are held by a latch until the importer
/// has said "queued". Before the record it calls `misuses` with the event,
/// which must leave it without a record that is pending.
std::function<void(Role&)> records_late(
    const std::function<void(const SharedEvent&)>& misuses = {}) {
  return [=](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("old"));
    const Stream stream;
    const SharedEvent event;
    if (misuses) misuses(event);
    EXPECT_SUCCESS(cudaEventQuery(event)) << "no record is pending";
    Latch latch;
    latch.hold(stream);
    buffer.queue_fill(pattern("exporter"), stream);
    CALL(cudaEventRecord(event, stream));
    const auto handle = keeps_context([&] { return event.handle(); });
    me.send("handles", Handles{buffer.legacy_handle(), handle});
    me.wait("queued");
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.wait("closed");
  };
}

/// The importer's part: after the wait of each API, a copy has the exporter's
/// values. Signals "queued" and, at the end, "closed".
void copies_after_wait(Role& me, const Handles& handles, SharedEvent& event,
                       bool host_waits = false) {
  LegacyMapping mapping(handles.memory, kBytes);
  const DeviceBuffer copy(kBytes), other_copy(kBytes), early(kBytes);
  const Stream stream, other, unordered;
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  queue_copy(copy, mapping, stream);
  EXPECT_SUCCESS(DriverApi::stream_wait_event(other, event));
  queue_copy(other_copy, mapping, other);
  // If the first copies did not wait, they would be complete when this copy is
  // complete.
  queue_copy(early, mapping, unordered);
  EXPECT_TRUE(passes(unordered));
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(other));
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  if (host_waits) {
    // In new threads GPU 0 is current, which may be another GPU.
    cudaError_t asked = cudaSuccess;
    std::thread([&] { asked = cudaEventQuery(event); }).join();
    EXPECT_EQ(asked, cudaErrorNotReady);
    HostWait waiter(event);
    EXPECT_TRUE(waiter.is_held());
    me.signal("queued");
    EXPECT_EQ(waiter.join(), cudaSuccess);
  } else {
    me.signal("queued");
  }
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(passes(other));
  EXPECT_SUCCESS(cudaEventQuery(event));
  EXPECT_READS(copy, pattern("exporter"));
  EXPECT_TRUE(kernel_reads(other_copy, pattern("exporter")));
  EXPECT_TRUE(kernel_reads(early, pattern("old")));
  event.destroy();
  mapping.close();
  me.signal("closed");
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), {}));
}

/// The result of a call, as text for a note.
template <class Code>
std::string answer(const std::string& call, Code code) {
  cudaGetLastError();
  return call + ": " + name_of(code);
}

}  // namespace

// The caller must not create such an event, and no sentence says that the call
// is refused. An event that it gives can be recorded and destroyed.
template <class Api>
static void create_with_timing(Role& me, Api api, unsigned flags) {
  Sentinel<cudaEvent_t> event;
  const auto code = api.event_create(event.out(), flags);
  cudaGetLastError();
  me.observe("an interprocess event with timing, flags " +
             std::to_string(flags) + by_the(api) + ": " + name_of(code));
  if (code == decltype(code){}) {
    EXPECT_SUCCESS(api.event_record(event.result(), nullptr));
    EXPECT_SUCCESS(api.event_synchronize(event.result()));
    EXPECT_SUCCESS(api.event_destroy(event.result()));
  } else {
    EXPECT_TRUE(no_event(event));
  }
  Sentinel<cudaEvent_t> right;  // afterwards
  EXPECT_SUCCESS(api.event_create(
      right.out(), cudaEventInterprocess | cudaEventDisableTiming));
  Sentinel<cudaIpcEventHandle_t> handle;
  EXPECT_SUCCESS(api.ipc_get_event_handle(handle.out(), right.result()));
  EXPECT_SUCCESS(api.event_destroy(right.result()));
}

TEST(EventRefusals, InterprocessWithoutDisableTiming) {
  covers("LEVT-02");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    for (const unsigned flags :
         {cudaEventInterprocess, cudaEventInterprocess | cudaEventBlockingSync})
      by_both_apis([&](auto api) { create_with_timing(me, api, flags); });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(EventRefusals, ExportOfAPlainEvent) {
  covers("LEVT-03");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    for (const unsigned flags :
         {cudaEventDefault, cudaEventDisableTiming, cudaEventBlockingSync,
          cudaEventDisableTiming | cudaEventBlockingSync}) {
      const SharedEvent event(flags);
      by_both_apis([&](auto api) {
        Sentinel<cudaIpcEventHandle_t> handle;
        me.observe("the export of an event with the flags " +
                   std::to_string(flags) + by_the(api) + ": " +
                   name_of(api.ipc_get_event_handle(handle.out(), event)));
      });
      cudaGetLastError();
      EXPECT_SUCCESS(cudaEventRecord(event, nullptr));
      EXPECT_SUCCESS(cudaEventSynchronize(event));
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(EventRefusals, HandlesThatNameNoEvent) {
  covers("LEVT-04");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", records_late());

  scenario.role("importer", [](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    const Sentinel<cudaIpcEventHandle_t> garbage;
    cudaIpcEventHandle_t zero, foreign;
    std::memset(&zero, 0, sizeof zero);
    std::memcpy(&foreign, &handles.memory, sizeof foreign);
    CALL(cudaFree(nullptr));
    for (const auto& handle : {zero, garbage.value, foreign}) {
      EXPECT_TRUE(open_refused(handle, cudaErrorMapBufferObjectFailed));
      EXPECT_TRUE(driver_open_refused(handle, CUDA_ERROR_MAP_FAILED));
    }
    EXPECT_TRUE(context_is_usable());
    SharedEvent event(handles.event);
    copies_after_wait(me, handles, event);
  });

  scenario.run(30s);
}

// Calls `body` with a stream of a second context of this GPU.
static void in_a_second_context(const std::function<void(cudaStream_t)>& body) {
  CUcontext second = nullptr;
  CUdevice device = 0;
  CALL(DRIVER(cuDeviceGet)(&device, 0));
  CALL(create_context(&second, device));
  {
    const Stream stream;
    body(stream);
  }
  EXPECT_TRUE(context_is_usable());
  CALL(DRIVER(cuCtxDestroy)(second));
  CALL(cudaSetDevice(0));  // the primary context is current again
  EXPECT_TRUE(context_is_usable());
}

// Judges that an event that this process has opened is its own event `own`: it
// is pending while the record of `own` is pending.
static void expect_same_event(cudaEvent_t opened, const SharedEvent& own) {
  // In the new thread, the context of `own` is current.
  CALL(in_a_thread([&] {
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(own, stream));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(opened))
        << "opens another event";
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_SUCCESS(cudaEventQuery(opened));
    return cudaSuccess;
  }));
}

// Opens a handle of `own`, an event of this process, by both APIs. If an open
// succeeds, it must give `own`. Returns the codes as a text.
static std::string opens_own(const cudaIpcEventHandle_t& handle,
                             const SharedEvent& own) {
  std::string codes;
  by_both_apis([&](auto api) {
    Sentinel<cudaEvent_t> opened;
    const auto code = api.ipc_open_event_handle(opened.out(), handle);
    codes += (codes.empty() ? "" : ", ") + answer(api.kName, code);
    if (code != decltype(code){}) return;
    expect_same_event(opened.result(), own);
    EXPECT_SUCCESS(api.event_destroy(opened.result()));
  });
  return codes;
}

TEST(EventRefusals, TheExporterOpensItsOwnEvent) {
  covers("LEVT-05");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    records_late([&](const SharedEvent& event) {
      const cudaIpcEventHandle_t handle = event.handle();
      const auto observe = [&](const char* when, const std::string& codes) {
        me.observe("open of an own handle" + (when + (": " + codes)));
      };
      observe("", opens_own(handle, event));
      const SharedEvent newer;
      observe(" of a newer event", opens_own(newer.handle(), newer));
      observe(" after the export of the newer event", opens_own(handle, event));
      std::string codes;
      CALL(in_a_thread([&] {
        SCOPED_TRACE("in another thread");
        codes = opens_own(handle, event);
        return cudaSuccess;
      }));
      observe(" in another thread", codes);
      in_a_second_context([&](cudaStream_t) {
        SCOPED_TRACE("in another context");
        observe(" in another context", opens_own(handle, event));
      });
      EXPECT_TRUE(context_is_usable());
    })(me);
  });

  scenario.role("importer", [](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    SharedEvent event(handles.event);
    copies_after_wait(me, handles, event);
  });

  scenario.run(30s);
}

// Judges that the time between this event and another event is refused.
static void measures_nothing(cudaEvent_t event) {
  const SharedEvent timed(cudaEventDefault), end(cudaEventDefault);
  const Stream stream;
  // The record is complete, so only the missing timing can be the reason for
  // a refusal.
  CALL(cudaEventRecord(timed, stream));
  CALL(cudaEventRecord(event, stream));
  Latch latch;
  latch.hold(stream);
  CALL(cudaEventRecord(end, stream));
  // Each event has a state of its own: `event` is complete while `end` is
  // pending.
  EXPECT_SUCCESS(cudaEventSynchronize(event));
  EXPECT_SUCCESS(cudaEventQuery(event));
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(end));
  std::thread releases([&] { latch.release(); });
  EXPECT_SUCCESS(cudaEventSynchronize(end));
  EXPECT_SUCCESS(cudaEventQuery(end));
  releases.join();
  EXPECT_TRUE(passes(stream));
  Sentinel<float> ms;
  EXPECT_SUCCESS(cudaEventElapsedTime(ms.out(), timed, timed));
  EXPECT_GE(ms.result(), 0.0f);
  EXPECT_LT(ms.result(), 1.0f) << "between an event and itself";
  EXPECT_SUCCESS(cudaEventElapsedTime(ms.out(), timed, end));
  EXPECT_GT(ms.result(), 0.0f) << "a kernel lies between the two";
  EXPECT_LT(ms.result(), 20e3f) << "longer than this role may take";
  const cudaEvent_t pairs[][2] = {
      {event, timed}, {timed, event}, {event, event}};
  for (const auto& [from, to] : pairs) {
    EXPECT_CODE(cudaErrorInvalidResourceHandle,
                cudaEventElapsedTime(ms.out(), from, to));
    EXPECT_CODE(CUDA_ERROR_INVALID_HANDLE,
                DRIVER(cuEventElapsedTime)(ms.out(), from, to));
  }
  // A refusal does not change a record that is pending. Which of two reasons
  // for a refusal counts is not documented.
  Latch further;
  further.hold(stream);
  CALL(cudaEventRecord(event, stream));
  EXPECT_REFUSED(cudaEventElapsedTime(ms.out(), timed, event),
                 cudaErrorInvalidResourceHandle, cudaErrorNotReady);
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event)) << "the runtime API";
  EXPECT_REFUSED(DRIVER(cuEventElapsedTime)(ms.out(), timed, event),
                 CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_READY);
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event)) << "the driver API";
  further.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_SUCCESS(cudaEventQuery(event));
  EXPECT_TRUE(context_is_usable());
}

TEST(EventRefusals, ElapsedTime) {
  covers("LEVT-16");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    for (const unsigned more : {0u, unsigned{cudaEventBlockingSync}}) {
      const SharedEvent event(kInterprocess | more);
      measures_nothing(event);
      me.send("handle", event.handle());
      me.wait("asked");
    }
  });

  scenario.role("importer", [](Role& me) {
    for (int i = 0; i < 2; ++i) {
      SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
      measures_nothing(event);
      event.destroy();
      me.signal("asked");
    }
  });

  scenario.run(20s);
}

namespace {

// The null stream of the context that is current.
constexpr cudaStream_t kNull = nullptr;

void record_is_refused(cudaEvent_t event, cudaStream_t stream) {
  EXPECT_CODE(cudaErrorInvalidResourceHandle,
              RuntimeApi::event_record(event, stream));
  EXPECT_CODE(cudaErrorInvalidResourceHandle,
              RuntimeApi::event_record_with_flags(event, stream));
  EXPECT_CODE(CUDA_ERROR_INVALID_HANDLE,
              DriverApi::event_record(event, stream));
  EXPECT_CODE(CUDA_ERROR_INVALID_HANDLE,
              DriverApi::event_record_with_flags(event, stream));
}

// Each side tries to record the event in a stream where the call must be
// refused. The event works afterwards.
void both_sides_refuse(void (*tries)(cudaEvent_t event)) {
  Scenario scenario;
  scenario.role("exporter", records_late(tries));
  scenario.role("importer", [tries](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    SharedEvent event(handles.event);
    tries(event);
    copies_after_wait(me, handles, event);
  });
  scenario.run(30s);
}

}  // namespace

TEST(EventRefusals, RecordInAStreamOfAnotherContext) {
  covers("LEVT-17");
  needs(gpus(1), legacy_memory, legacy_events);
  both_sides_refuse([](cudaEvent_t event) {
    in_a_second_context([event](cudaStream_t other) {
      for (const cudaStream_t each :
           {other, kNull, cudaStreamLegacy, cudaStreamPerThread})
        record_is_refused(event, each);
      EXPECT_TRUE(passes(other));
    });
  });
}

TEST(EventRefusals, RecordInAStreamOfAnotherDevice) {
  covers("LEVT-17");
  needs(gpus(2), legacy_memory, legacy_events);
  both_sides_refuse([](cudaEvent_t event) {
    CALL(cudaSetDevice(1));
    {
      const Stream other;
      for (const cudaStream_t each :
           {cudaStream_t{other}, kNull, cudaStreamLegacy, cudaStreamPerThread})
        record_is_refused(event, each);
      EXPECT_TRUE(context_is_usable());
    }
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(context_is_usable());
  });
}

// The documentation says that the event of a wait "may be from a different
// context". The exporter's context is not the primary context.
TEST(EventRefusals, AStreamOfAnotherContextWaits) {
  covers("LEVT-18");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    in_a_second_context([&](cudaStream_t) { records_late()(me); });
  });
  const auto waits_elsewhere = [](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    SharedEvent event(handles.event);
    in_a_second_context([&](cudaStream_t other) {
      by_both_apis([&](auto api) {
        EXPECT_SUCCESS(api.stream_wait_event(other, event));
      });
      Sentinel<cudaEvent_t> out;
      EXPECT_SUCCESS(keeps_context([&] {
        return NOTED(cudaIpcOpenEventHandle(out.out(), handles.event));
      }));
      const cudaEvent_t opened_here = out.result();
      const Stream waits;
      EXPECT_SUCCESS(cudaStreamWaitEvent(waits, opened_here, 0));
      EXPECT_TRUE(is_held(other));
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(waits));
      me.signal("queued");
      EXPECT_TRUE(passes(other));
      EXPECT_TRUE(passes(waits));
      EXPECT_SUCCESS(cudaEventDestroy(opened_here));
    });
    EXPECT_SUCCESS(cudaEventQuery(event));
    event.destroy();
    me.signal("closed");
  };
  scenario.role("importer", waits_elsewhere).may_end_by(SIGSEGV);
  // This role lets the exporter continue if the importer dies.
  scenario.role("relay", [](Role& me) {
    me.wait_until_done("importer");
    me.signal("queued");
    me.signal("closed");
  });
  scenario.run(30s);
  const Ended& importer = scenario.ended("importer");
  if (importer.signal != 0)
    ADD_FAILURE() << "the importer died of " << importer.last_call;
}

TEST(EventRefusals, WaitInAStreamOfAnotherDevice) {
  covers("LEVT-18");
  needs(gpus(2), legacy_memory, legacy_events, peer_access);
  for (const int from : {0, 1}) {
    Scenario scenario;
    scenario.role("exporter", [from](Role& me) {
      CALL(cudaSetDevice(from));
      records_late()(me);
    });

    scenario.role("importer", [from](Role& me) {
      const auto handles = me.receive<Handles>("handles");
      CALL(cudaSetDevice(1 - from));
      SharedEvent event(handles.event);
      // The current GPU of the thread that waits is GPU 0.
      copies_after_wait(me, handles, event, true);
    });

    scenario.run(30s);
  }
}

// A driver may crash here: the report shows roles that end early, and the
// watcher lets the exporter continue.
TEST(EventRefusals, WaitForAnEventOpenedUnderAnotherDevice) {
  covers("LEVT-18");
  needs(gpus(2), legacy_memory, legacy_events, peer_access);
  Scenario scenario;
  scenario.role("exporter", records_late());
  scenario
      .role("importer",
            [](Role& me) {
              const auto handles = me.receive<Handles>("handles");
              SharedEvent event(handles.event);  // under GPU 0
              CALL(cudaSetDevice(1));
              copies_after_wait(me, handles, event);
            })
      .may_end_by(SIGSEGV);
  scenario.role("watcher", [](Role& me) {
    me.wait_for_end("importer");
    me.signal("queued");
    me.signal("closed");
  });
  scenario.run(30s);
  const Ended& importer = scenario.ended("importer");
  if (importer.signal != 0)
    ADD_FAILURE() << "the importer died of " << importer.last_call;
}

// What this test observes is not promised: a program must keep the exported
// event until every importer has destroyed its imported event.
template <class Api>
static void destroys_what_is_open(Role& me, Api api) {
  SharedEvent opened, unopened;
  const Stream stream;
  CALL(cudaEventRecord(opened, stream));
  CALL(cudaEventRecord(unopened, stream));
  EXPECT_TRUE(passes(stream));
  const auto sends = [&](const char* step, cudaEvent_t event) {
    Sentinel<cudaIpcEventHandle_t> handle;
    CALL(api.ipc_get_event_handle(handle.out(), event));
    me.send(step, handle.result());
  };
  sends("handle", opened);
  sends("stale handle", unopened);
  me.wait("opened");
  CALL(api.event_destroy(opened.release()));
  CALL(api.event_destroy(unopened.release()));
  me.signal("destroyed");
  EXPECT_TRUE(context_is_usable());
}

// The importer of these two events.
template <class Api>
static void uses_what_is_destroyed(Role& me, Api api) {
  const auto handle = me.receive<cudaIpcEventHandle_t>("handle");
  const auto stale = me.receive<cudaIpcEventHandle_t>("stale handle");
  CALL(cudaFree(nullptr));  // the driver API needs a context
  Sentinel<cudaEvent_t> opened, late;
  CALL(api.ipc_open_event_handle(opened.out(), handle));
  const cudaEvent_t event = opened.result();
  me.signal("opened");
  me.wait("destroyed");
  const std::string by = by_the(api);
  me.observe(answer("query after the destroy" + by, api.event_query(event)));
  me.observe(answer("record after the destroy" + by,
                    api.event_record(event, nullptr)));
  me.observe(answer("destroy of the import" + by, api.event_destroy(event)));
  const auto code = api.ipc_open_event_handle(late.out(), stale);
  me.observe(answer("open of a destroyed event's handle" + by, code));
  if (code == decltype(code){}) api.event_destroy(late.value);
}

TEST(EventRefusals, AfterTheExportedEventWasDestroyed) {
  covers("LEVT-21");
  needs(gpus(1), legacy_events);
  for_each_api([](auto api) {
    Scenario scenario(Scenario::kShared);
    scenario.role("exporter", [=](Role& me) {
      CALL(cudaFree(nullptr));
      destroys_what_is_open(me, api);
    });
    scenario
        .role("importer", [=](Role& me) { uses_what_is_destroyed(me, api); })
        .may_end_by(SIGSEGV)
        .may_end_by(SIGABRT)
        .in_new_process();  // its state at the end is unknown
    scenario.run(20s);
  });
}

// Tries launches with this event as an attribute. No sentence says that they
// are refused: a launch that is accepted must run. A launch with another event
// works.
static void launches_with(Role& me, cudaEvent_t event) {
  const SharedEvent plain(cudaEventDisableTiming);
  const DeviceBuffer word(sizeof(uint32_t));
  const Stream stream;
  const auto launch = [&](cudaLaunchAttributeID id, cudaEvent_t with,
                          uint32_t value) {
    cudaLaunchAttribute attribute{};
    attribute.id = id;
    if (id == cudaLaunchAttributeProgrammaticEvent) {
      attribute.val.programmaticEvent.event = with;
      attribute.val.programmaticEvent.triggerAtBlockStart = 1;
    } else {
      attribute.val.launchCompletionEvent.event = with;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = config.blockDim = dim3(1);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, write_word, word.data, value);
  };
  const auto holds = [&](uint32_t value) {
    EXPECT_TRUE(passes(stream));
    uint32_t seen = ~value;
    CALL(cudaMemcpy(&seen, word.data, sizeof seen, cudaMemcpyDefault));
    EXPECT_EQ(seen, value);
  };
  const auto judge = [&](cudaLaunchAttributeID id, uint32_t value) {
    EXPECT_SUCCESS(launch(id, plain, value));
    holds(value);
    // The refusal must not change a record that is pending.
    const Stream held;
    Latch latch;
    latch.hold(held);
    CALL(cudaEventRecord(event, held));
    const cudaError_t code = NOTED(launch(id, event, value + 1));
    cudaGetLastError();
    me.observe("launch attribute " + std::to_string(id) +
               " with an interprocess event: " + name_of(code));
    holds(code == cudaSuccess ? value + 1 : value);
    if (code != cudaSuccess)
      EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event))
          << "attribute " << id << " completes a record";
    latch.release();
    EXPECT_TRUE(passes(held));
  };
  judge(cudaLaunchAttributeLaunchCompletionEvent, 10);
  if (attribute(cudaDevAttrComputeCapabilityMajor) >= 9)
    judge(cudaLaunchAttributeProgrammaticEvent, 20);
  else
    me.observe("programmatic events begin with compute capability 9.0");
  EXPECT_SUCCESS(cudaEventQuery(event));
  EXPECT_TRUE(context_is_usable());
}

TEST(EventRefusals, LaunchAttributes) {
  covers("LEVT-23");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const SharedEvent event;
    launches_with(me, event);
    me.send("handle", event.handle());
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("handle"));
    launches_with(me, event);
    event.destroy();
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(EventRefusals, CaptureIntoAGraph) {
  covers("LEVT-24");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  // Each call has its own capture, because the call may invalidate the capture.
  const auto try_capture = [](Role& me, cudaEvent_t event) {
    const Stream stream;
    const auto capture = [&](const char* what, auto call) {
      const cudaError_t began = NOTED(
          cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      if (began != cudaSuccess) {
        me.observe(std::string(what) + ": " + answer("no capture", began));
        return;
      }
      std::string note = answer(what, call());
      cudaGraph_t graph = nullptr;
      note += answer(", end of the capture",
                     NOTED(cudaStreamEndCapture(stream, &graph)));
      if (graph != nullptr) CALL(cudaGraphDestroy(graph));
      me.observe(note);
    };
    capture("wait",
            [&] { return RuntimeApi::stream_wait_event(stream, event); });
    capture("external wait", [&] {
      return NOTED(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal));
    });
    capture("record", [&] { return RuntimeApi::event_record(event, stream); });
    capture("external record", [&] {
      return NOTED(
          cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
    });
    capture("cuStreamWaitEvent",
            [&] { return DriverApi::stream_wait_event(stream, event); });
    EXPECT_TRUE(context_is_usable());
  };

  scenario.role("exporter", [=](Role& me) {
    const SharedEvent captured, other;
    const Stream stream;
    try_capture(me, captured);
    CALL(cudaEventRecord(other, stream));
    EXPECT_TRUE(passes(stream));
    me.send("captured", captured.handle());
    me.send("other", other.handle());
    me.wait("closed");
  });

  scenario.role("importer", [=](Role& me) {
    SharedEvent captured(me.receive<cudaIpcEventHandle_t>("captured"));
    SharedEvent other(me.receive<cudaIpcEventHandle_t>("other"));
    try_capture(me, captured);
    EXPECT_SUCCESS(cudaEventSynchronize(other));
    captured.destroy();
    other.destroy();
    me.signal("closed");
  });

  scenario.run(20s);
}

// An exporter that makes events until a call is refused, or until it has
// kMostEvents.
static void makes_events_until_there_is_no_room(Role& me) {
  CALL(cudaFree(nullptr));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur =
      std::min(before.rlim_cur, open_descriptors() + kSpareDescriptors);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);

  std::vector<cudaEvent_t> events;
  std::string end = "the cap of this test";
  cudaIpcEventHandle_t handle;
  while (static_cast<int>(events.size()) < kMostEvents) {
    cudaEvent_t event = nullptr;
    cudaError_t code = NOTED(cudaEventCreateWithFlags(&event, kInterprocess));
    if (code != cudaSuccess) {
      end = answer("cudaEventCreateWithFlags", code);
      break;
    }
    events.push_back(event);
    code = NOTED(cudaIpcGetEventHandle(&handle, event));
    if (code != cudaSuccess) {
      end = answer("cudaIpcGetEventHandle", code);
      break;
    }
  }
  me.observe(std::to_string(events.size()) + " live events, then " + end);
  EXPECT_FALSE(events.empty());
  for (const cudaEvent_t event : events)
    EXPECT_SUCCESS(cudaEventDestroy(event));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(context_is_usable());
  records_late()(me);  // there is room again
}

TEST(EventRefusals, AsManyAsThereIsRoomFor) {
  covers("LEVT-26");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", makes_events_until_there_is_no_room)
      .in_new_process();

  scenario.role("importer", [](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    SharedEvent event(handles.event);
    copies_after_wait(me, handles, event);
  });

  scenario.run(30s);
}

TEST(EventRefusals, ARefusalIsToldOnceAndASuccessLeavesNone) {
  covers("LEVT-29");
  needs(gpus(1), legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const SharedEvent event, plain(cudaEventDisableTiming);
    Sentinel<cudaIpcEventHandle_t> none, handle;
    // An error that nobody has read does not hide a later error.
    EXPECT_NE(NOTED(cudaSetDevice(-1)), cudaSuccess);
    EXPECT_TRUE(is_told_once("cudaIpcGetEventHandle of a plain event",
                             NOTED(cudaIpcGetEventHandle(none.out(), plain))));
    EXPECT_TRUE(context_is_usable());
    EXPECT_TRUE(
        leaves_no_error("cudaIpcGetEventHandle",
                        NOTED(cudaIpcGetEventHandle(handle.out(), event))));
    EXPECT_NE(DriverApi::ipc_get_event_handle(none.out(), plain), CUDA_SUCCESS);
    // Only calls of the runtime API set the last error.
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_TRUE(context_is_usable());
    EXPECT_SUCCESS(DriverApi::ipc_get_event_handle(handle.out(), event));
    me.send("handle", handle.result());
    me.wait("destroyed");
  });

  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcEventHandle_t>("handle");
    CALL(cudaFree(nullptr));
    Sentinel<cudaEvent_t> none, event;
    EXPECT_TRUE(is_told_once(
        "cudaIpcOpenEventHandle of zeros",
        NOTED(cudaIpcOpenEventHandle(none.out(), cudaIpcEventHandle_t{}))));
    EXPECT_TRUE(context_is_usable());
    EXPECT_TRUE(
        leaves_no_error("cudaIpcOpenEventHandle",
                        NOTED(cudaIpcOpenEventHandle(event.out(), handle))));
    EXPECT_TRUE(leaves_no_error("cudaEventDestroy",
                                NOTED(cudaEventDestroy(event.result()))));
    EXPECT_NE(DriverApi::ipc_open_event_handle(none.out(), {}), CUDA_SUCCESS);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_TRUE(context_is_usable());
    EXPECT_SUCCESS(DriverApi::ipc_open_event_handle(event.out(), handle));
    EXPECT_SUCCESS(DriverApi::event_destroy(event.result()));
    me.signal("destroyed");
  });

  scenario.run(20s);
}
