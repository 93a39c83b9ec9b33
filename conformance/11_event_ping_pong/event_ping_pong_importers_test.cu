// Several importers of one event, and the ends of their events.
// Mirror of samples/11_event_ping_pong.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>

#include "conformance/11_event_ping_pong/event_ping_pong_test.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr int kImporters = 8;

}  // namespace

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
