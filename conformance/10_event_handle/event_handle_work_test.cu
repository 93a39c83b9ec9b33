// Which work a record covers and a wait holds.
// Mirror of samples/10_event_handle.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "conformance/10_event_handle/event_handle_test.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr auto kFirst = Stream::Kind::kUrgent;

/// An importer that queues a memset, a copy and a kernel after a wait. The
/// memset sets the last word, which the exporter has written before. In another
/// stream it queues a copy after a wait by the driver API. A host thread also
/// copies to pageable memory: by a synchronous copy if `stream` is the null
/// stream, and else in a third stream after a wait. Before the work may be
/// done, the importer checks `looks` times, for 0.5 s each, that the work
/// waits. The wait may be in another stream, `waits_in`, for which `stream`
/// waits.
void works_after_a_wait(Role& me, const Pattern& written, cudaStream_t stream,
                        int looks = 1, bool destroys_early = false,
                        std::optional<cudaStream_t> waits_in = {}) {
  constexpr size_t kRest = kBytes - sizeof(uint32_t);
  const DeviceBuffer by_copy(kBytes), by_kernel(kBytes), beside(kRest);
  const Stream other, to_host;
  std::vector<uint32_t> at_once(kRest / sizeof(uint32_t), 0);
  launch_copy(by_kernel, by_copy, stream);  // loads the kernel
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemcpyAsync(at_once.data(), beside.data, kRest,
                       cudaMemcpyDeviceToHost, to_host));  // makes its buffers
  CALL(cudaStreamSynchronize(to_host));
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  const cudaEvent_t again = opened_by_driver(handles.by_driver);
  EXPECT_SUCCESS(cudaStreamWaitEvent(waits_in.value_or(stream), event, 0));
  EXPECT_SUCCESS(DriverApi::stream_wait_event(other, again));
  EXPECT_SUCCESS(cudaStreamWaitEvent(to_host, event, 0));
  HostWait host("cudaStreamSynchronize",
                [&]() -> cudaError_t { return cudaStreamSynchronize(other); });
  if (destroys_early) {  // the streams still wait
    event.destroy();
    EXPECT_SUCCESS(DriverApi::event_destroy(again));
  }
  CALL(cudaMemsetAsync(mapping.data + mapping.count - 1, 0x3C, kBytes - kRest,
                       stream));
  CALL(cudaMemcpyAsync(by_copy.data, mapping.data, kBytes,
                       cudaMemcpyDeviceToDevice, stream));
  launch_copy(by_kernel, mapping, stream);
  CALL(cudaMemcpyAsync(beside.data, mapping.data, kRest,
                       cudaMemcpyDeviceToDevice, other));
  const bool at_null = stream == nullptr && !waits_in;
  HostWait copies(at_null ? "cudaMemcpy" : "cudaMemcpyAsync", [&] {
    if (at_null)
      return cudaMemcpy(at_once.data(), mapping.data, kRest,
                        cudaMemcpyDeviceToHost);
    const cudaError_t code = cudaMemcpyAsync(
        at_once.data(), mapping.data, kRest, cudaMemcpyDeviceToHost, to_host);
    return code != cudaSuccess ? code : cudaStreamSynchronize(to_host);
  });
  look_on(me);
  for (int i = 0; i < looks; ++i)
    EXPECT_TRUE(is_held(stream)) << "before the work was done";
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(other));
  EXPECT_FALSE(host.returned()) << "before the work was done";
  EXPECT_FALSE(copies.returned()) << "before the work was done";
  me.signal("ready");

  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(passes(other));
  EXPECT_EQ(host.join(), cudaSuccess);
  EXPECT_EQ(copies.join(), cudaSuccess);
  EXPECT_TRUE(host_reads(Words(at_once.data(), kRest), written))
      << "in pageable memory";
  EXPECT_TRUE(kernel_reads(beside, written)) << "after cuStreamWaitEvent";
  if (!destroys_early) EXPECT_SUCCESS(cudaEventQuery(event));
  EXPECT_TRUE(kernel_reads(Words(by_copy.data, kRest), written)) << "by copy";
  EXPECT_TRUE(kernel_reads(Words(by_kernel.data, kRest), written))
      << "by kernel";
  uint32_t last = 0;
  CALL(cudaMemcpy(&last, by_kernel.data + by_kernel.count - 1, sizeof last,
                  cudaMemcpyDeviceToHost));
  EXPECT_EQ(last, 0x3C3C3C3Cu) << "memset after the wait";
  if (!destroys_early) {
    event.destroy();
    EXPECT_SUCCESS(DriverApi::event_destroy(again));
  }
  mapping.close();
  me.signal("closed");
}

}  // namespace

TEST(EventHandle, WorkBehindAWaitSeesWhatTheRecordCaptured) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", records_late(written));
  scenario.role("importer", [written](Role& me) {
    const Stream stream;
    // The importer checks for 1.5 s, so that a wait that ends after a second is
    // noticed.
    works_after_a_wait(me, written, stream, 3);
  });
  scenario.run(30s);
}

TEST(EventHandle, DefaultStreamsRecordAndWaitAsOthers) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [written](Role& me) {
    cudaStream_t blocking = nullptr;  // it waits for the default stream
    CALL(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    records_late(written, nothing, nothing, cudaStreamLegacy)(me);
    records_late(written, nothing, nothing, Stream(kFirst))(me);
    records_late(written, nothing, nothing, nullptr)(me);
    records_late(written, nothing, nothing, cudaStreamPerThread)(me);
    records_late(written, nothing, nothing, blocking, true)(me);
    records_late(written, nothing, nothing, blocking, false, nullptr)(me);
    records_late(written, nothing, nothing, nullptr, false, blocking)(me);
    CALL(cudaStreamDestroy(blocking));
  });
  scenario.role("importer", [written](Role& me) {
    cudaStream_t blocking = nullptr;
    CALL(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    works_after_a_wait(me, written, cudaStreamLegacy);
    works_after_a_wait(me, written, Stream(kFirst));
    works_after_a_wait(me, written, nullptr);
    works_after_a_wait(me, written, cudaStreamPerThread, 1, true);
    works_after_a_wait(me, written, blocking);
    works_after_a_wait(me, written, blocking, 1, false, nullptr);
    works_after_a_wait(me, written, nullptr, 1, false, blocking);
    CALL(cudaStreamDestroy(blocking));
  });
  scenario.run(30s);
}

namespace {

CUresult write_word(const Words& word, uint32_t value, cudaStream_t stream) {
  return NOTED(DRIVER(cuStreamWriteValue32)(
      stream, address_of(word.data), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

CUresult write_word_by_batch(const Words& word, uint32_t value,
                             cudaStream_t stream) {
  CUstreamBatchMemOpParams one{};
  one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  one.writeValue.address = address_of(word.data);
  one.writeValue.value = value;
  return NOTED(DRIVER(cuStreamBatchMemOp)(stream, 1, &one, 0));
}

uint32_t word_at(const Words& words) {
  uint32_t seen = 0;
  CALL(cudaMemcpy(&seen, words.data, sizeof seen, cudaMemcpyDeviceToHost));
  return seen;
}

// Copies of rows and between GPUs, and writes of words, are queued directly
// after a wait, each in a stream of its own. Host threads wait meanwhile.
void other_works_after_a_wait(Role& me, const Pattern& written) {
  constexpr size_t kRows = 2;
  const DeviceBuffer by_rows(kBytes), by_peer(kBytes), word(kBytes),
      batched(kBytes);
  const Words words[] = {word, batched};
  const Stream rows, peer, writes, batches;
  const cudaStream_t all[] = {rows, peer, writes, batches};
  for (const Words& each : words) CALL(cudaMemset(each.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  for (const cudaStream_t each : all)
    EXPECT_SUCCESS(cudaStreamWaitEvent(each, event, 0));
  CALL(cudaMemcpy2DAsync(by_rows.data, kBytes / kRows, mapping.data,
                         kBytes / kRows, kBytes / kRows, kRows,
                         cudaMemcpyDeviceToDevice, rows));
  CALL(cudaMemcpyPeerAsync(by_peer.data, 0, mapping.data, 0, kBytes, peer));
  EXPECT_SUCCESS(write_word(word, 7, writes));
  EXPECT_SUCCESS(write_word_by_batch(batched, 7, batches));
  look_on(me);
  EXPECT_TRUE(is_held(rows)) << "before the work was done";
  for (const cudaStream_t each : all) {
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(each));
    EXPECT_CODE(CUDA_ERROR_NOT_READY, DRIVER(cuStreamQuery)(each));
  }
  for (const Words& each : words)
    EXPECT_EQ(word_at(each), 0u) << "before the work was done";
  HostWait host("cudaDeviceSynchronize",
                []() -> cudaError_t { return cudaDeviceSynchronize(); });
  const auto in_a_context = [](auto call) {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    return code != cudaSuccess ? code : static_cast<cudaError_t>(call());
  };
  HostWait by_driver("cuStreamSynchronize", [&] {
    return in_a_context([&] { return DRIVER(cuStreamSynchronize)(rows); });
  });
  HostWait for_context("cuCtxSynchronize",
                       [&] { return in_a_context(synchronize_context); });
  EXPECT_TRUE(host.is_held()) << "before the work was done";
  EXPECT_FALSE(by_driver.returned()) << "before the work was done";
  EXPECT_FALSE(for_context.returned()) << "before the work was done";
  me.signal("ready");
  for (const cudaStream_t each : all) EXPECT_TRUE(passes(each));
  EXPECT_EQ(host.join(), cudaSuccess);
  EXPECT_EQ(by_driver.join(), cudaSuccess);
  EXPECT_EQ(for_context.join(), cudaSuccess);
  EXPECT_TRUE(kernel_reads(by_rows, written)) << "by rows";
  EXPECT_TRUE(kernel_reads(by_peer, written)) << "by cudaMemcpyPeerAsync";
  for (const Words& each : words) EXPECT_EQ(word_at(each), 7u);
  event.destroy();
  mapping.close();
  me.signal("closed");
}

// Host functions are queued directly after a wait, and events of this process
// are recorded directly after a wait. One stream still has work when it is told
// to wait, and one is destroyed while it waits.
void unusual_streams_wait(Role& me) {
  static std::atomic<int> called;  // by the host functions
  called = 0;
  const DeviceBuffer later(kBytes), last(kBytes);
  const Words words[] = {later, last};
  const Stream busy, calls, driver_calls;
  const cudaStream_t all[] = {busy, calls, driver_calls};
  cudaStream_t destroyed = nullptr;
  CALL(cudaStreamCreateWithFlags(&destroyed, cudaStreamNonBlocking));
  for (const Words& each : words) CALL(cudaMemset(each.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  SharedEvent event(handles.event);
  const SharedEvent plain(cudaEventDisableTiming), shared;
  Latch latch;
  latch.hold(busy);
  for (const cudaStream_t each : all)
    EXPECT_SUCCESS(cudaStreamWaitEvent(each, event, 0));
  EXPECT_SUCCESS(cudaEventRecord(plain, busy));
  latch.release();
  EXPECT_SUCCESS(write_word(later, 7, busy));
  const auto count = [](void*) { ++called; };
  CALL(cudaLaunchHostFunc(calls, count, nullptr));
  CALL(DRIVER(cuLaunchHostFunc)(driver_calls, count, nullptr));
  EXPECT_SUCCESS(cudaStreamWaitEvent(destroyed, event, 0));
  EXPECT_SUCCESS(DriverApi::event_record(shared, destroyed));
  EXPECT_SUCCESS(write_word(last, 7, destroyed));
  CALL(cudaStreamDestroy(destroyed));  // the work of the stream goes on
  look_on(me);
  EXPECT_TRUE(is_held(busy)) << "before the work was done";
  for (const cudaStream_t each : all)
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(each));
  for (const Words& each : words)
    EXPECT_EQ(word_at(each), 0u) << "before the work was done";
  EXPECT_EQ(called, 0) << "before the work was done";
  for (const cudaEvent_t each : {cudaEvent_t{plain}, cudaEvent_t{shared}})
    EXPECT_TRUE(is_pending(each)) << "before the work was done";
  me.signal("ready");
  for (const cudaStream_t each : all) EXPECT_TRUE(passes(each));
  CALL(cudaDeviceSynchronize());  // also for the stream that was destroyed
  for (const Words& each : words) EXPECT_EQ(word_at(each), 7u);
  EXPECT_EQ(called, 2) << "calls of the host functions";
  for (const cudaEvent_t each : {cudaEvent_t{plain}, cudaEvent_t{shared}})
    EXPECT_TRUE(is_done(each));
  event.destroy();
  me.signal("closed");
}

}  // namespace

TEST(EventHandle, AWaitHoldsOtherKindsOfWork) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [written](Role& me) {
    for (int i = 0; i < 2; ++i) records_late(written)(me);
  });
  scenario.role("importer", [written](Role& me) {
    other_works_after_a_wait(me, written);
    unusual_streams_wait(me);
  });
  scenario.run(30s);
}

namespace {

constexpr uint32_t kSevens = 0x07070707;

__global__ void set_word(uint32_t* word, uint32_t value) { *word = value; }

// Work that writes the first word of `to`: kSevens, or the first word of
// `from`.
struct Kind {
  const char* name;
  void (*queue)(const Words& to, const Words& from, cudaStream_t stream);
  bool copies = false;
};

cudaMemcpy3DParms box(const Words& to, const Words& from) {
  cudaMemcpy3DParms box{};
  box.srcPtr = make_cudaPitchedPtr(from.data, kBytes / 2, kBytes / 2, 2);
  box.dstPtr = make_cudaPitchedPtr(to.data, kBytes / 2, kBytes / 2, 2);
  box.extent = make_cudaExtent(kBytes / 2, 2, 1);
  box.kind = cudaMemcpyDefault;
  return box;
}

const Kind kKinds[] = {
    {"the memset of a rectangle",
     [](const Words& to, const Words&, cudaStream_t stream) {
       CALL(cudaMemset2DAsync(to.data, kBytes / 2, 7, kBytes / 2, 2, stream));
     }},
    {"the memset of a box",
     [](const Words& to, const Words&, cudaStream_t stream) {
       CALL(cudaMemset3DAsync(
           make_cudaPitchedPtr(to.data, kBytes / 2, kBytes / 2, 2), 7,
           make_cudaExtent(kBytes / 2, 2, 1), stream));
     }},
    {"cuMemsetD32Async",
     [](const Words& to, const Words&, cudaStream_t stream) {
       CALL(DRIVER(cuMemsetD32Async)(address_of(to.data), kSevens, to.count,
                                     stream));
     }},
    {"a launch with attributes",
     [](const Words& to, const Words&, cudaStream_t stream) {
       cudaLaunchConfig_t config{};
       config.gridDim = config.blockDim = dim3(1);
       config.stream = stream;
       CALL(cudaLaunchKernelEx(&config, set_word, to.data, kSevens));
     }},
    {"the copy of a box",
     [](const Words& to, const Words& from, cudaStream_t stream) {
       const cudaMemcpy3DParms parameters = box(to, from);
       CALL(cudaMemcpy3DAsync(&parameters, stream));
     },
     true},
    {"cuMemcpyDtoDAsync",
     [](const Words& to, const Words& from, cudaStream_t stream) {
       CALL(DRIVER(cuMemcpyDtoDAsync)(address_of(to.data),
                                      address_of(from.data), kBytes, stream));
     },
     true}};

constexpr size_t kAtOnce = 3;
static_assert(std::size(kKinds) % kAtOnce == 0);

// Queues kAtOnce of the kinds directly after a wait, each in a stream of its
// own.
void further_works_after_a_wait(Role& me, const Pattern& written,
                                const Kind* kinds) {
  const Stream streams[kAtOnce];
  std::vector<std::unique_ptr<DeviceBuffer>> targets;
  const DeviceBuffer source(kBytes);
  for (size_t i = 0; i < kAtOnce; ++i) {
    targets.push_back(std::make_unique<DeviceBuffer>(kBytes));
    kinds[i].queue(*targets[i], source, streams[i]);  // loads the kernels
    EXPECT_TRUE(passes(streams[i]));
    CALL(cudaMemset(targets[i]->data, 0, kBytes));
  }
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  for (size_t i = 0; i < kAtOnce; ++i) {
    EXPECT_SUCCESS(cudaStreamWaitEvent(streams[i], event, 0));
    kinds[i].queue(*targets[i], mapping, streams[i]);
  }
  look_on(me);
  EXPECT_TRUE(is_held(streams[0])) << "before the work was done";
  for (size_t i = 0; i < kAtOnce; ++i)
    EXPECT_EQ(word_at(*targets[i]), 0u) << kinds[i].name << " comes early";
  me.signal("ready");
  for (size_t i = 0; i < kAtOnce; ++i) {
    EXPECT_TRUE(passes(streams[i])) << kinds[i].name;
    EXPECT_EQ(word_at(*targets[i]), kinds[i].copies ? written.at(0) : kSevens)
        << kinds[i].name;
  }
  event.destroy();
  mapping.close();
  me.signal("closed");
}

// The same for copies from and to the host.
void host_copies_after_a_wait(Role& me, const Pattern& written) {
  const Stream from_host, to_host;
  const DeviceBuffer set(kBytes);
  const PinnedBuffer source(sizeof kSevens), target(sizeof kSevens);
  const volatile uint32_t& copied = target.data[0];
  source.data[0] = kSevens;
  CALL(cudaMemset(set.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  const auto handles = me.receive<Handles>("handles");
  LegacyMapping mapping(handles.memory, kBytes);
  SharedEvent event(handles.event);
  EXPECT_SUCCESS(cudaStreamWaitEvent(from_host, event, 0));
  CALL(cudaMemcpyAsync(set.data, source.data, sizeof(uint32_t),
                       cudaMemcpyHostToDevice, from_host));
  look_on(me);
  EXPECT_TRUE(is_held(from_host)) << "before the work was done";
  EXPECT_EQ(word_at(set), 0u) << "a copy from the host comes early";
  // word_at() could wait for this copy in a queue of the hardware.
  EXPECT_SUCCESS(cudaStreamWaitEvent(to_host, event, 0));
  CALL(cudaMemcpyAsync(target.data, mapping.data, sizeof(uint32_t),
                       cudaMemcpyDeviceToHost, to_host));
  EXPECT_TRUE(is_held(to_host)) << "before the work was done";
  EXPECT_EQ(copied, 0u) << "a copy to the host comes early";
  me.signal("ready");
  EXPECT_TRUE(passes(from_host));
  EXPECT_EQ(word_at(set), kSevens) << "a copy from the host";
  EXPECT_TRUE(passes(to_host));
  EXPECT_EQ(copied, written.at(0)) << "a copy to the host";
  event.destroy();
  mapping.close();
  me.signal("closed");
}

}  // namespace

TEST(EventHandle, AWaitHoldsFurtherKindsOfWork) {
  covers("LEVT-07");
  needs(gpus(1), legacy_memory, legacy_events);
  const Pattern written = pattern("exporter");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [written](Role& me) {
    for (size_t i = 0; i < std::size(kKinds) / kAtOnce; ++i)
      records_late(written)(me);
    records_late(written)(me);  // for the copies
  });
  scenario.role("importer", [written](Role& me) {
    for (size_t i = 0; i < std::size(kKinds); i += kAtOnce)
      further_works_after_a_wait(me, written, kKinds + i);
    host_copies_after_a_wait(me, written);
  });
  scenario.run(30s);
}
