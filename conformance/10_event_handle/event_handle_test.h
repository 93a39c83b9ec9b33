// What several files of these tests use.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <optional>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

namespace ipclab {

inline constexpr size_t kBytes = 256 << 10;
inline constexpr int kLooks = 50;

/// What the exporter lends: memory, and the event that shows when to read the
/// memory. Both APIs export the event.
struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  cudaIpcEventHandle_t by_driver;
};

inline cudaIpcEventHandle_t handle_by_driver(cudaEvent_t event) {
  Sentinel<cudaIpcEventHandle_t> handle;
  CALL(DriverApi::ipc_get_event_handle(handle.out(), event));
  return handle.result();
}

/// The event of a handle, opened by the driver API.
inline cudaEvent_t opened_by_driver(const cudaIpcEventHandle_t& handle) {
  Sentinel<cudaEvent_t> event;
  CALL(DriverApi::ipc_open_event_handle(event.out(), handle));
  return event.result();
}

inline void nothing(const SharedEvent&) {}

/// Does the call return within 3 s?
inline bool ends(const HostWait& waiter) {
  for (int i = 0; i < 6; ++i)
    if (!waiter.is_held()) return true;
  return false;
}

/// An exporter that writes `written` and records the event after a latch. It
/// releases the latch when the importer has said `ready`. Another latch, before
/// the writing, is released earlier: the record must complete after the last
/// work, not after the first work. `looks_on` runs while the latch holds,
/// `looks_back` when the work is done. Later work of the stream, which the
/// record does not include, is held until the importer has said `closed`. All
/// work is in a new stream, or in the stream `given`. The record may be in
/// another stream, `recorded_in`.
inline std::function<void(Role&)> records_late(
    Pattern written, void (*looks_on)(const SharedEvent&) = nothing,
    void (*looks_back)(const SharedEvent&) = nothing,
    std::optional<cudaStream_t> given = {}, bool with_flags = false,
    std::optional<cudaStream_t> recorded_in = {}) {
  return [=](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("old"));
    const Stream own, after;
    const cudaStream_t stream = given.value_or(own);
    const cudaStream_t records = recorded_in.value_or(stream);
    const SharedEvent event;
    const cudaIpcMemHandle_t memory = buffer.legacy_handle();
    Latch first, latch, later;
    first.hold(stream);
    buffer.queue_fill(written, stream);
    latch.hold(stream);
    if (with_flags)
      CALL(cudaEventRecordWithFlags(event, records, cudaEventRecordDefault));
    else
      CALL(cudaEventRecord(event, records));
    later.hold(records);
    // The export does not change what is recorded.
    me.send("handles",
            Handles{memory, event.handle(), handle_by_driver(event)});

    for (int i = 0; i < kLooks; ++i) {
      if (i == kLooks / 2) first.release();
      me.wait("look");
      me.signal("looked");
    }
    me.wait("ready");
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    looks_on(event);
    latch.release();
    CALL(cudaStreamWaitEvent(after, event, 0));
    EXPECT_TRUE(passes(after));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(records)) << "later work";
    EXPECT_SUCCESS(cudaEventQuery(event));
    HostWait waiter(event), by_driver = DriverApi::host_wait(event);
    EXPECT_TRUE(ends(waiter)) << "later work of the stream is held";
    EXPECT_TRUE(ends(by_driver)) << "later work of the stream is held";
    looks_back(event);
    me.signal("done");
    me.wait("closed");
    later.release();
    EXPECT_EQ(waiter.join(), cudaSuccess);
    EXPECT_EQ(by_driver.join(), cudaSuccess);
    EXPECT_TRUE(passes(records));
  };
}

/// Round trips to the exporter. They take time, so that a call that returns too
/// early is noticed. `meanwhile` runs after each of them.
inline void look_on(
    Role& me, const std::function<void()>& meanwhile = [] {}) {
  for (int i = 0; i < kLooks; ++i) {
    me.signal("look");
    me.wait("looked");
    meanwhile();
  }
}

}  // namespace ipclab
