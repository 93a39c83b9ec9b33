// An event, lent to another process by a handle.
// Mirror of samples/10_event_handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "conformance/10_event_handle/event_handle_test.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr int kReopens = 1000;
constexpr auto kLongWait = 200ms;  // how long a host thread waits
constexpr double kMaySpin = 0.1;   // largest part of a wait that may spin

constexpr unsigned kBlocking =
    cudaEventInterprocess | cudaEventDisableTiming | cudaEventBlockingSync;

/// Judges that the event is pending for 1.5 s: a wait that ends after a second
/// is noticed.
void holds_on(const SharedEvent& event) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_held(event));
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
    EXPECT_READS(mapping, written);
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
    EXPECT_READS(mapping, written);
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
