// Which context may open a handle, and that runtime API and driver API use the
// same handles. Mirror of samples/06_contexts_and_apis.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "harness/scenario/contexts.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;

enum Api { kRuntime, kDriver };
constexpr Api kApis[] = {kRuntime, kDriver};
constexpr const char* kNames[] = {"runtime", "driver"};

std::string pair_of(Api exported, Api opened) {
  return std::string(kNames[exported]) + " to " + kNames[opened];
}

// Opens a handle by one API. If the handle does not open, returns null and
// records a failure.
void* open_by(Api api, const cudaIpcMemHandle_t& handle) {
  void* pointer = nullptr;
  CUdeviceptr address = 0;
  if (api == kRuntime) {
    EXPECT_SUCCESS(cudaIpcOpenMemHandle(&pointer, handle, kLazy));
    return pointer;
  }
  EXPECT_SUCCESS(DRIVER(cuIpcOpenMemHandle)(
      &address, same_bytes<CUipcMemHandle>(handle), kLazy));
  return reinterpret_cast<void*>(address);
}

void close_by(Api api, void* pointer) {
  if (api == kRuntime)
    EXPECT_SUCCESS(cudaIpcCloseMemHandle(pointer));
  else
    EXPECT_SUCCESS(DRIVER(cuIpcCloseMemHandle)(address_of(pointer)));
}

// Does the pointer point to device memory?
bool is_known(const void* pointer) {
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type == cudaMemoryTypeDevice;
}

// Judges that the current context cannot open the handle by either API.
void expect_refused_here(const cudaIpcMemHandle_t& handle) {
  Sentinel<void*> pointer;
  EXPECT_REFUSED(cudaIpcOpenMemHandle(pointer.out(), handle, kLazy),
                 cudaErrorInvalidResourceHandle, cudaErrorDeviceUninitialized,
                 cudaErrorMapBufferObjectFailed, cudaErrorTooManyPeers,
                 cudaErrorNotSupported, cudaErrorInvalidValue);
  Sentinel<CUdeviceptr> address;
  EXPECT_REFUSED(DRIVER(cuIpcOpenMemHandle)(
                     address.out(), same_bytes<CUipcMemHandle>(handle), kLazy),
                 CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT,
                 CUDA_ERROR_MAP_FAILED, CUDA_ERROR_TOO_MANY_PEERS,
                 CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(context_is_usable());
}

}  // namespace

TEST(ContextsAndApis, ASecondContextDoesNotOpenTheHandle) {
  covers("LMEM-26");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role& me) {
              const SecondContext own;  // not the primary context
              lends(pattern("exporter"), kBytes, 2)(me);
            })
      .in_new_process();
  // The context that opens need not be the primary context either. A new
  // process has no primary context yet.
  const auto opens_in_its_own_context = [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    {
      const SecondContext own;
      LegacyMapping mapping(handle, kBytes);
      EXPECT_READS(mapping, pattern("exporter"));
      mapping.close();
      open_handle(handle);  // the end of the context closes it
    }
    const SecondContext later;
    LegacyMapping mapping(handle, kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
    me.signal("closed");
  };
  scenario.role("importer with a context", opens_in_its_own_context)
      .in_new_process();
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    LegacyMapping mapping(handle, kBytes);
    {
      const SecondContext second;
      expect_refused_here(handle);
      const SecondContext third;
      expect_refused_here(handle);
    }
    EXPECT_READS(mapping, pattern("exporter"));
    const void* const closed = mapping.data;
    mapping.close();
    EXPECT_FALSE(is_known(closed)) << "the refused opens do not count";
    {
      const SecondContext second;
      void* opened = nullptr;
      const cudaError_t code =
          NOTED(cudaIpcOpenMemHandle(&opened, handle, kLazy));
      me.observe("a second context, after the first has closed the handle: " +
                 name_of(code));
      cudaGetLastError();
      if (code == cudaSuccess) CALL(cudaIpcCloseMemHandle(opened));
    }
    me.signal("closed");
  });
  scenario.run(40s);
}

// The primary context is a further context if another context has opened first.
TEST(ContextsAndApis, ThePrimaryContextDoesNotOpenItEither) {
  covers("LMEM-26");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario
      .role("importer",
            [](Role& me) {
              const SecondContext own;
              CUcontext opener = nullptr;
              CALL(DRIVER(cuCtxGetCurrent)(&opener));
              const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
              LegacyMapping mapping(handle, kBytes);
              CALL(cudaSetDevice(0));  // now the primary context is current
              expect_refused_here(handle);
              CALL(DRIVER(cuCtxSetCurrent)(opener));
              EXPECT_READS(mapping, pattern("exporter"));
              mapping.close();
              me.signal("closed");
            })
      .in_new_process();
  scenario.run(20s);
}

// The rule is about all handles of one device of one exporter, not only about
// one handle. It is not about the handles of another exporter.
TEST(ContextsAndApis, ASecondContextOpensNoOtherHandleOfTheExporter) {
  covers("LMEM-26");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer first(kBytes), second(kBytes);
    first.fill(pattern("first"));
    second.fill(pattern("second"));
    me.send("first", first.legacy_handle());
    me.send("second", second.legacy_handle());
    me.wait("closed");
  });
  scenario.role("other exporter", [](Role& me) {
    const DeviceBuffer other(kBytes);
    other.fill(pattern("other exporter"));
    me.send("other", other.legacy_handle());
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    LegacyMapping first(me.receive<cudaIpcMemHandle_t>("first"), kBytes);
    const auto handle = me.receive<cudaIpcMemHandle_t>("second");
    {
      const SecondContext second;
      expect_refused_here(handle);
      LegacyMapping other(me.receive<cudaIpcMemHandle_t>("other"), kBytes);
      EXPECT_TRUE(kernel_reads(other, pattern("other exporter")));
      other.close();
    }
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    // The context that opened the first handle may also open the second handle.
    LegacyMapping second(handle, kBytes);
    EXPECT_TRUE(kernel_reads(second, pattern("second")));
    second.close();
    {
      // After this close, the first context still has a handle open.
      const SecondContext later;
      expect_refused_here(handle);
    }
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    first.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

// The exporter lends memory of two contexts of one device. The end of the
// second context changes nothing for the memory of the first.
TEST(ContextsAndApis, EachContextOfTheExporterLendsItsOwnMemory) {
  covers("LMEM-17");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  const auto lends_from_two_contexts = [](Role& me) {
    const DeviceBuffer first(kBytes);
    first.fill(pattern("first"));
    const auto of_first = first.legacy_handle();
    me.send("first", of_first);
    {
      const SecondContext own;
      const DeviceBuffer second(kBytes);
      second.fill(pattern("second"));
      CUcontext before = nullptr, after = nullptr;
      CALL(DRIVER(cuCtxGetCurrent)(&before));
      const auto of_second = second.legacy_handle();
      CALL(DRIVER(cuCtxGetCurrent)(&after));
      EXPECT_EQ(after, before) << "an export changes the current context";
      EXPECT_NE(std::memcmp(&of_first, &of_second, sizeof of_first), 0)
          << "two allocations have one handle";
      me.send("second", of_second);
      me.wait("second closed");
    }
    me.signal("ended");
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    me.wait("closed");
  };
  scenario.role("exporter", lends_from_two_contexts).in_new_process();
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("first");
    LegacyMapping first(handle, kBytes);
    LegacyMapping second(me.receive<cudaIpcMemHandle_t>("second"), kBytes);
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    EXPECT_READS(second, pattern("second"));
    second.close();
    me.signal("second closed");
    me.wait("ended");
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    first.close();
    for (const Api api : kApis) {
      void* const again = open_by(api, handle);
      ASSERT_NE(again, nullptr) << "the context of this memory has not ended";
      EXPECT_TRUE(kernel_reads(Words(again, kBytes), pattern("first")));
      close_by(api, again);
    }
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(ContextsAndApis, AHandleOfOneApiOpensWithTheOther) {
  covers("LMEM-39");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    CUdeviceptr address = 0;
    CALL(DRIVER(cuMemAlloc)(&address, kBytes));
    const Words of_driver(reinterpret_cast<void*>(address), kBytes);
    const DeviceBuffer of_runtime(kBytes);
    // Only the attribute says that the runtime exports memory of cuMemAlloc.
    const bool suits = pointer_attribute<unsigned>(
                           CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                           of_driver.data) == 1;
    if (!suits) me.observe("the runtime exports memory of cudaMalloc");
    const Words exports[] = {suits ? of_driver : Words(of_runtime), of_driver};
    CUipcMemHandle by_driver;
    EXPECT_SUCCESS(DRIVER(cuIpcGetMemHandle)(&by_driver, address));
    cudaIpcMemHandle_t by_runtime;
    EXPECT_SUCCESS(cudaIpcGetMemHandle(&by_runtime, exports[kRuntime].data));
    me.send("runtime", by_runtime);
    me.send("driver", same_bytes<cudaIpcMemHandle_t>(by_driver));
    for (const Api exported : kApis)
      for (const Api opened : kApis) {
        const std::string pair = pair_of(exported, opened);
        const Words& lent = exports[exported];
        lent.fill(pattern("exporter, " + pair));
        me.signal("lent: " + pair);
        me.wait("written: " + pair);
        EXPECT_TRUE(kernel_reads(lent, pattern("importer, " + pair))) << pair;
      }
    EXPECT_SUCCESS(cudaFree(of_driver.data));
  });

  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    for (const Api exported : kApis) {
      const auto handle = me.receive<cudaIpcMemHandle_t>(kNames[exported]);
      for (const Api opened : kApis) {
        const std::string pair = pair_of(exported, opened);
        SCOPED_TRACE(pair);
        me.wait("lent: " + pair);
        void* const pointer = open_by(opened, handle);
        ASSERT_NE(pointer, nullptr);
        const Words mapping(pointer, kBytes);
        EXPECT_READS(mapping, pattern("exporter, " + pair));
        mapping.fill(pattern("importer, " + pair));
        me.signal("written: " + pair);
        close_by(opened, pointer);
        EXPECT_FALSE(is_known(pointer)) << "it is closed";
      }
    }
  });
  scenario.run(20s);
}

// If a context of cuCtxCreate is current, the calls of the runtime operate on
// this context, whatever GPU cudaSetDevice has named before.
TEST(ContextsAndApis, TheRuntimeOpensInTheCurrentContext) {
  covers("LMEM-39");
  needs(gpus(2), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    CALL(cudaSetDevice(1));
    lends(pattern("exporter"), kBytes)(me);
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
              CALL(cudaSetDevice(0));
              CUcontext own = nullptr;
              CALL(create_context(&own, 1));
              for (const Api api : kApis) {
                SCOPED_TRACE(kNames[api]);
                void* const pointer = open_by(api, handle);
                ASSERT_NE(pointer, nullptr);
                const Words mapping(pointer, kBytes);
                EXPECT_READS(mapping, pattern("exporter"));
                close_by(api, pointer);
              }
              CALL(DRIVER(cuCtxDestroy)(own));
              CALL(cudaSetDevice(0));
              me.signal("closed");
            })
      .in_new_process();
  scenario.run(20s);
}

// Opens and closes of both APIs share one count.
TEST(ContextsAndApis, BothApisCountTheSameOpens) {
  covers("LMEM-39");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    for (const Api first : kApis) {
      const Api second = first == kRuntime ? kDriver : kRuntime;
      SCOPED_TRACE(pair_of(first, second));
      void* const pointer = open_by(first, handle);
      EXPECT_EQ(open_by(second, handle), pointer);
      close_by(second, pointer);
      const Words mapping(pointer, kBytes);
      ASSERT_TRUE(is_known(pointer)) << "one open is left";
      EXPECT_READS(mapping, pattern("exporter"));
      close_by(first, pointer);
      EXPECT_FALSE(is_known(pointer)) << "it is closed";
      // One API also closes what only the other API has opened.
      void* const alone = open_by(first, handle);
      EXPECT_TRUE(kernel_reads(Words(alone, kBytes), pattern("exporter")));
      close_by(second, alone);
      EXPECT_FALSE(is_known(alone)) << "the other API has closed it";
    }
    me.signal("closed");
  });
  scenario.run(20s);
}

// An exporter of one event, which it exports by each API.
static void exports_events_by_both_apis(Role& me) {
  const DeviceBuffer buffer(kBytes), source(kBytes);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CALL(cudaEventCreateWithFlags(
      &event, cudaEventDisableTiming | cudaEventInterprocess));
  cudaIpcEventHandle_t by_runtime;
  CUipcEventHandle by_driver;
  EXPECT_SUCCESS(cudaIpcGetEventHandle(&by_runtime, event));
  EXPECT_SUCCESS(DRIVER(cuIpcGetEventHandle)(&by_driver, event));
  me.send("handle", buffer.legacy_handle());
  me.send("runtime", by_runtime);
  me.send("driver", same_bytes<cudaIpcEventHandle_t>(by_driver));
  for (const Api exported : kApis)
    for (const Api opened : kApis) {
      const std::string pair = pair_of(exported, opened);
      source.fill(pattern(pair));
      Latch latch;
      latch.hold(stream);
      CALL(cudaMemcpyAsync(buffer.data, source.data, kBytes,
                           cudaMemcpyDeviceToDevice, stream));
      CALL(cudaEventRecord(event, stream));
      me.signal("recorded: " + pair);
      me.wait("queued: " + pair);
      EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
      latch.release();
      me.wait("read: " + pair);
      CALL(cudaStreamSynchronize(stream));
    }
  CALL(cudaEventDestroy(event));
  CALL(cudaStreamDestroy(stream));
}

// Each API records the event, queries it and waits for it.
static void expect_used_by_both(cudaEvent_t event, cudaStream_t stream) {
  for (const Api api : kApis) {
    SCOPED_TRACE(kNames[api]);
    Latch latch;
    latch.hold(stream);
    if (api == kRuntime)
      EXPECT_SUCCESS(cudaEventRecord(event, stream));
    else
      EXPECT_SUCCESS(DRIVER(cuEventRecord)(event, stream));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_CODE(CUDA_ERROR_NOT_READY, DRIVER(cuEventQuery)(event));
    EXPECT_SUCCESS(DRIVER(cuStreamWaitEvent)(stream, event, 0));
    latch.release();
    EXPECT_SUCCESS(cudaEventSynchronize(event));
    EXPECT_SUCCESS(DRIVER(cuEventSynchronize)(event));
  }
}

// For each pair of APIs, the exporter holds back a copy into the shared buffer.
// The importer's stream waits for the event that is recorded after this copy,
// and must then find the copied values.
TEST(ContextsAndApis, AnEventHandleOfOneApiOpensWithTheOther) {
  covers("LEVT-25");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", exports_events_by_both_apis);

  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    const DeviceBuffer own(kBytes);
    cudaStream_t stream = nullptr;
    CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (const Api exported : kApis) {
      const auto handle = me.receive<cudaIpcEventHandle_t>(kNames[exported]);
      for (const Api opened : kApis) {
        const std::string pair = pair_of(exported, opened);
        SCOPED_TRACE(pair);
        cudaEvent_t event = nullptr;
        if (opened == kRuntime)
          EXPECT_SUCCESS(cudaIpcOpenEventHandle(&event, handle));
        else
          EXPECT_SUCCESS(DRIVER(cuIpcOpenEventHandle)(
              &event, same_bytes<CUipcEventHandle>(handle)));
        ASSERT_NE(event, nullptr);
        own.poison();
        me.wait("recorded: " + pair);
        EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event));
        CALL(cudaMemcpyAsync(own.data, mapping.data, kBytes,
                             cudaMemcpyDeviceToDevice, stream));
        EXPECT_TRUE(is_held(stream));
        me.signal("queued: " + pair);
        CALL(cudaStreamSynchronize(stream));
        EXPECT_TRUE(kernel_reads(own, pattern(pair)));
        expect_used_by_both(event, stream);
        me.signal("read: " + pair);
        CALL(cudaEventDestroy(event));
      }
    }
    CALL(cudaStreamDestroy(stream));
    mapping.close();
  });
  scenario.run(30s);
}
