// Mistakes with legacy event handles.
//
// SPDX-License-Identifier: Apache-2.0
#include "programs.h"
#include "samples/common/require.h"

namespace {

constexpr unsigned kShared = cudaEventInterprocess | cudaEventDisableTiming;

cudaEvent_t make(unsigned flags = kShared) {
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
  return event;
}

cudaIpcEventHandle_t handle_of(cudaEvent_t event) {
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  return handle;
}

cudaEvent_t open_event(Channel& channel) {
  cudaEvent_t event;
  CUDA_CHECK(cudaIpcOpenEventHandle(
      &event, channel.receive<cudaIpcEventHandle_t>("event")));
  return event;
}

void exports_a_plain_event(Channel& channel, bool wrong) {
  const cudaEvent_t event = make(wrong ? cudaEventDisableTiming : kShared);
  cudaIpcEventHandle_t handle{};
  static_cast<void>(cudaIpcGetEventHandle(&handle, event));
  CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void creates_with_one_flag(Channel& channel, bool wrong) {
  cudaEvent_t event;
  const auto flags = wrong ? cudaEventInterprocess : kShared;
  if (cudaEventCreateWithFlags(&event, flags) == cudaSuccess)
    CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void waits(Channel& channel, bool) { channel.wait("done"); }

void opens_its_own(Channel& channel, bool wrong) {
  const cudaEvent_t event = make();
  const cudaIpcEventHandle_t handle = handle_of(event);
  cudaEvent_t own;
  if (wrong) static_cast<void>(cudaIpcOpenEventHandle(&own, handle));
  channel.send("event", handle);
  channel.wait("done");
  CUDA_CHECK(cudaEventDestroy(event));
}

void opens_and_destroys(Channel& channel, bool) {
  const cudaEvent_t event = open_event(channel);
  CUDA_CHECK(cudaEventSynchronize(event));
  CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void lends(Channel& channel, bool) {
  const cudaEvent_t event = make();
  channel.send("event", handle_of(event));
  channel.wait("done");
  CUDA_CHECK(cudaEventDestroy(event));
}

void destroys_early(Channel& channel, bool wrong) {
  const cudaEvent_t event = make();
  channel.send("event", handle_of(event));
  channel.wait("opened");
  if (wrong) CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("go on");
  channel.wait("done");
  if (!wrong) CUDA_CHECK(cudaEventDestroy(event));
}

void holds_open(Channel& channel, bool) {
  const cudaEvent_t event = open_event(channel);
  channel.signal("opened");
  channel.wait("go on");
  CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void destroys_after_the_end(Channel& channel, bool wrong) {
  const cudaEvent_t event = make();
  channel.send("event", handle_of(event));
  channel.wait("done");
  if (wrong) wait_for_peers_end();  // then only the importer makes a mistake
  CUDA_CHECK(cudaEventDestroy(event));
}

void never_destroys(Channel& channel, bool wrong) {
  const cudaEvent_t event = open_event(channel);
  CUDA_CHECK(cudaEventSynchronize(event));
  if (!wrong) CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void opens_other_bytes(Channel& channel, bool wrong) {
  auto handle = channel.receive<cudaIpcEventHandle_t>("event");
  if (wrong) handle = {};
  cudaEvent_t event;
  if (cudaIpcOpenEventHandle(&event, handle) == cudaSuccess)
    CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void writes_and_records(Channel& channel, bool) {
  void* data = allocate();
  const cudaEvent_t event = make();
  CUDA_CHECK(cudaMemsetAsync(data, 7, kBytes, nullptr));
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  channel.send("handle", ::handle_of(data));
  channel.send("event", handle_of(event));
  channel.wait("done");
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));
}

void copies_without_waiting(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  const cudaEvent_t event = open_event(channel);
  if (!wrong) CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  std::vector<char> seen(kBytes);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

// A function of CUDA 12.5 that takes a context and an event.
void for_context(const char* name, cudaEvent_t event) {
  const auto call = reinterpret_cast<CUresult (*)(CUcontext, CUevent)>(
      driver_entry(name, 12050));
  if (call == nullptr) skip("the driver has no %s", name);
  CUcontext context = nullptr;
  CU_CHECK(DRIVER(cuCtxGetCurrent)(&context));
  CU_CHECK(call(context, event));
}

void writes_and_context_records(Channel& channel, bool) {
  void* data = allocate();
  const cudaEvent_t event = make();
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_CHECK(cudaMemsetAsync(data, 7, kBytes, stream));
  for_context("cuCtxRecordEvent", event);
  channel.send("handle", ::handle_of(data));
  channel.send("event", handle_of(event));
  channel.wait("done");
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));
}

void copies_without_context_wait(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  const cudaEvent_t event = open_event(channel);
  if (!wrong) for_context("cuCtxWaitEvent", event);
  std::vector<char> seen(kBytes);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void measures_time(Channel& channel, bool wrong) {
  const unsigned flags = wrong ? kShared : cudaEventDefault;
  const cudaEvent_t events[] = {make(flags), make(flags)};
  for (cudaEvent_t event : events) CUDA_CHECK(cudaEventRecord(event, nullptr));
  CUDA_CHECK(cudaDeviceSynchronize());
  float milliseconds = 0;
  static_cast<void>(cudaEventElapsedTime(&milliseconds, events[0], events[1]));
  for (cudaEvent_t event : events) CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void records_late(Channel& channel, bool wrong) {
  void* data = allocate();
  const cudaEvent_t event = make();
  channel.send("handle", ::handle_of(data));
  channel.send("event", handle_of(event));
  if (wrong) channel.wait("copied");
  CUDA_CHECK(cudaMemsetAsync(data, 7, kBytes, nullptr));
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  channel.signal("recorded");
  channel.wait("done");
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));
}

void waits_early(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  const cudaEvent_t event = open_event(channel);
  if (!wrong) channel.wait("recorded");
  CUDA_CHECK(cudaStreamWaitEvent(nullptr, event, 0));
  std::vector<char> seen(kBytes);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  if (wrong) channel.signal("copied");
  if (wrong) channel.wait("recorded");
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

}  // namespace

const std::vector<Case> kEvents = {
    {"event-not-exportable.plain", exports_a_plain_event, waits},
    {"event-not-exportable.timing", creates_with_one_flag, waits},
    {"opened-in-exporter.event", opens_its_own, opens_and_destroys},
    {"event-without-time", measures_time, waits},
    {"waits-before-record", records_late, waits_early},
    {"event-destroyed-while-open", destroys_early, holds_open},
    {"event-never-destroyed", destroys_after_the_end, never_destroys},
    {"unknown-handle.event", lends, opens_other_bytes},
    {"possible-race.event", writes_and_records, copies_without_waiting},
    {"possible-race.context", writes_and_context_records,
     copies_without_context_wait},
};
