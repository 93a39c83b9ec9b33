// Which record of an event a wait, a query and a host find.
// Mirror of samples/11_event_ping_pong.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "conformance/11_event_ping_pong/event_ping_pong_test.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr int kLaterRecords = 600;  // more than 9 bits can count

}  // namespace

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
  needs(gpus(1), legacy_events, progress);
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
