// Compares CUDA's answers about what a machine can share with what works.
// Mirror of samples/00_query_support.
//
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
// `older_driver`: the driver is older than the runtime. `lacks_13_1`: the
// driver is older than CUDA 13.1, but the runtime is not.
const Need older_driver{"older_driver"};
const Need lacks_13_1{"older_driver:13010"};

CUmemAllocationProp device_memory(int requested_handles) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(requested_handles);
  return wanted;
}

CUresult granularity(size_t* size, CUmemAllocationGranularity_flags which) {
  const CUmemAllocationProp wanted = device_memory(CU_MEM_HANDLE_TYPE_NONE);
  return NOTED(DRIVER(cuMemGetAllocationGranularity)(size, &wanted, which));
}

// Creates a minimum-sized allocation, exports it if a handle type is given, and
// releases it. Returns the code of the first call that fails, or success.
// `call` gets the name of the call that returned this code.
CUresult create_and_export(CUmemAllocationHandleType type, std::string* call) {
  size_t size = 0;
  *call = "cuMemGetAllocationGranularity";
  CUresult code = granularity(&size, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (code != CUDA_SUCCESS) return code;

  const CUmemAllocationProp wanted = device_memory(type);
  CUmemGenericAllocationHandle memory;
  *call = "cuMemCreate";
  note_call("cuMemCreate");
  code = DRIVER(cuMemCreate)(&memory, size, &wanted, 0);
  if (code != CUDA_SUCCESS || type == CU_MEM_HANDLE_TYPE_NONE) {
    if (code == CUDA_SUCCESS) CALL(DRIVER(cuMemRelease)(memory));
    return code;
  }
  int descriptor = -1;
  *call = "cuMemExportToShareableHandle";
  note_call("cuMemExportToShareableHandle");
  code = DRIVER(cuMemExportToShareableHandle)(&descriptor, memory, type, 0);
  const Descriptor exported(descriptor);
  CALL(DRIVER(cuMemRelease)(memory));
  return code;
}

}  // namespace

// --- sizes and numbers ------------------------------------------------------

using Handles = std::array<cudaIpcMemHandle_t, 3>;

// Three exports over bytes of three different values. Reports how many bytes of
// the handle all three exports leave as they were.
template <class Api>
static Handles export_over_bytes(Role& me, Api api, const void* memory) {
  constexpr std::array kBefore{'\x00', '\x5a', '\xa5'};
  std::array<bool, sizeof(cudaIpcMemHandle_t)> written{};
  Handles handles;
  for (size_t i = 0; i < handles.size(); ++i) {
    std::memset(&handles[i], kBefore[i], sizeof handles[i]);
    CALL(api.ipc_get_mem_handle(&handles[i], memory));
    for (size_t at = 0; at < written.size(); ++at)
      if (handles[i].reserved[at] != kBefore[i]) written[at] = true;
  }
  me.observe(std::string(api.kName) + ": an export leaves " +
             std::to_string(std::count(written.begin(), written.end(), false)) +
             " bytes of the handle as they were");
  return handles;
}

// An importer of all these handles. Each must open.
static void opens_all_handles(Role& me) {
  by_both_apis([&](auto api) {
    for (const cudaIpcMemHandle_t& handle : me.receive<Handles>(api.kName)) {
      MappingBy mapping(api, handle, kBytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      mapping.close();
    }
  });
  me.signal("closed");
}

TEST(QuerySupport, MemoryHandleHas64Bytes) {
  covers("LMEM-03");
  static_assert(CUDA_IPC_HANDLE_SIZE == 64 && CU_IPC_HANDLE_SIZE == 64);
  static_assert(sizeof(cudaIpcMemHandle_t) == 64);
  static_assert(sizeof(CUipcMemHandle) == 64);
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    Sentinel<cudaIpcMemHandle_t> runtime;
    CALL(cudaIpcGetMemHandle(runtime.out(), buffer.data));
    EXPECT_TRUE(runtime.touched());
    EXPECT_TRUE(runtime.guards_hold()) << "the call writes beside 64 bytes";

    Sentinel<CUipcMemHandle> driver;
    CALL(DRIVER(cuIpcGetMemHandle)(driver.out(),
                                   reinterpret_cast<CUdeviceptr>(buffer.data)));
    EXPECT_TRUE(driver.touched());
    EXPECT_TRUE(driver.guards_hold()) << "the call writes beside 64 bytes";

    // The types have alignment 1, so a handle may lie at an odd address. The
    // Sentinels judge the bytes beside it at the end.
    static_assert(alignof(cudaIpcMemHandle_t) == 1);
    static_assert(alignof(CUipcMemHandle) == 1);
    struct alignas(8) {
      char shift = 0;
      Sentinel<cudaIpcMemHandle_t> runtime;
      Sentinel<CUipcMemHandle> driver;
    } odd;
    ASSERT_EQ(reinterpret_cast<uintptr_t>(odd.runtime.out()) % 2, 1u);
    CALL(cudaIpcGetMemHandle(odd.runtime.out(), buffer.data));
    EXPECT_TRUE(odd.runtime.touched());
    ASSERT_EQ(reinterpret_cast<uintptr_t>(odd.driver.out()) % 2, 1u);
    CALL(DRIVER(cuIpcGetMemHandle)(odd.driver.out(), address_of(buffer.data)));
    EXPECT_TRUE(odd.driver.touched());

    for_each_api([&](auto api) {
      me.send(api.kName, export_over_bytes(me, api, buffer.data));
    });
    me.wait("closed");
  });

  scenario.role("importer", opens_all_handles);
  scenario.run(20s);
}

TEST(QuerySupport, FabricExportWrites64Bytes) {
  covers("FABR-03");
  needs(gpus(1), fabric);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    CALL(cudaFree(nullptr));
    size_t size = 0;
    CALL(granularity(&size, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    const CUmemAllocationProp wanted = device_memory(CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle memory;
    CALL(DRIVER(cuMemCreate)(&memory, size, &wanted, 0));
    Sentinel<CUmemFabricHandle> handle;
    CALL(DRIVER(cuMemExportToShareableHandle)(handle.out(), memory,
                                              CU_MEM_HANDLE_TYPE_FABRIC, 0));
    EXPECT_TRUE(handle.touched());
    EXPECT_TRUE(handle.guards_hold()) << "the call writes beside 64 bytes";
    CALL(DRIVER(cuMemRelease)(memory));
  });
  scenario.run(20s);
}

// Both APIs have the same numbers in their headers. The driver gives each
// number its name.
TEST(QuerySupport, BothApisGiveOneNumberOneMeaning) {
  covers("PLAT-07");
  needs(gpus(1), legacy_memory);
  static constexpr std::pair<int, const char*> kNames[] = {
      {1, "CUDA_ERROR_INVALID_VALUE"},
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {205, "CUDA_ERROR_MAP_FAILED"},
      {208, "CUDA_ERROR_ALREADY_MAPPED"},
      {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
      {400, "CUDA_ERROR_INVALID_HANDLE"},
      {401, "CUDA_ERROR_ILLEGAL_STATE"},
      {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
      {711, "CUDA_ERROR_TOO_MANY_PEERS"},
      {800, "CUDA_ERROR_NOT_PERMITTED"},
      {801, "CUDA_ERROR_NOT_SUPPORTED"}};
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    for (const auto& [number, name] : kNames) {
      Sentinel<const char*> said;
      EXPECT_SUCCESS(
          DRIVER(cuGetErrorName)(static_cast<CUresult>(number), said.out()));
      EXPECT_STREQ(said.result(), name) << number;
    }
    Sentinel<const char*> unknown;
    EXPECT_CODE(
        CUDA_ERROR_INVALID_VALUE,
        DRIVER(cuGetErrorName)(static_cast<CUresult>(123456), unknown.out()));
    EXPECT_EQ(unknown.result(), nullptr);

    const DeviceBuffer buffer(kBytes);
    // No sentence says that both APIs answer a mistake with one number.
    const auto tell = [&](const char* mistake, cudaError_t runtime,
                          CUresult driver) {
      cudaGetLastError();
      me.observe(std::string(mistake) + ": " + name_of(runtime) + ", " +
                 name_of(driver));
    };
    Sentinel<cudaIpcMemHandle_t> handle;
    Sentinel<CUipcMemHandle> same;
    tell("the export of null",
         NOTED(cudaIpcGetMemHandle(handle.out(), nullptr)),
         NOTED(DRIVER(cuIpcGetMemHandle)(same.out(), 0)));
    tell("the close of what was not opened",
         NOTED(cudaIpcCloseMemHandle(buffer.data)),
         NOTED(DRIVER(cuIpcCloseMemHandle)(
             reinterpret_cast<CUdeviceptr>(buffer.data))));
    const SharedEvent plain(cudaEventDisableTiming);
    Sentinel<cudaIpcEventHandle_t> event;
    Sentinel<CUipcEventHandle> same_event;
    tell("the export of a plain event",
         NOTED(cudaIpcGetEventHandle(event.out(), plain)),
         NOTED(DRIVER(cuIpcGetEventHandle)(same_event.out(), plain)));
  });
  scenario.run(20s);
}

// --- attributes and what they promise ---------------------------------------

TEST(QuerySupport, IpcAttributeHasOneValueInThreePlaces) {
  covers("PLAT-03");
  needs(gpus(1), second_gpu);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    int devices = 0;
    CALL(cudaGetDeviceCount(&devices));
    for (int device = 0; device < std::min(devices, 2); ++device) {
      cudaDeviceProp properties;
      CALL(cudaGetDeviceProperties(&properties, device));
      const int supported = attribute(cudaDevAttrIpcEventSupport, device);
      EXPECT_EQ(properties.ipcEventSupported, supported);
      EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, device),
                supported);

      CALL(cudaSetDevice(device));
      cudaEvent_t event = nullptr;
      cudaIpcEventHandle_t handle;
      CALL(cudaEventCreateWithFlags(
          &event, cudaEventInterprocess | cudaEventDisableTiming));
      EXPECT_CODE(supported != 0 ? cudaSuccess : cudaErrorNotSupported,
                  cudaIpcGetEventHandle(&handle, event));
      CALL(cudaEventDestroy(event));
      EXPECT_EQ(attribute(cudaDevAttrIpcEventSupport, device), supported);
    }
    CALL(cudaSetDevice(0));
  });
  scenario.run(20s);
}

// The driver API answers also before the process has a context.
static void asks_without_a_context(Role&) {
  CUdevice gpu = 0;
  Sentinel<int> before;
  CALL(DRIVER(cuInit)(0));
  CALL(DRIVER(cuDeviceGet)(&gpu, 0));
  CALL(DRIVER(cuDeviceGetAttribute)(
      before.out(), CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, gpu));
  EXPECT_EQ(before.result(),
            attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED));
}

// Nothing that a process does changes the attribute.
TEST(QuerySupport, TheIpcAttributeStaysWhileMemoryIsShared) {
  covers("PLAT-03");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    const auto said = [] {
      cudaDeviceProp properties;
      CALL(cudaGetDeviceProperties(&properties, 0));
      return std::array{attribute(cudaDevAttrIpcEventSupport),
                        attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
                        properties.ipcEventSupported};
    };
    const auto before = said();
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    in_two_threads([&](int) { EXPECT_EQ(said(), before); });
    mapping.close();
    EXPECT_EQ(said(), before);
    me.signal("closed");
  });
  scenario.role("third", asks_without_a_context).in_new_process();
  scenario.run(20s);
}

// Judges the five calls of an API on a device with or without IPC. On Tegra,
// where only events are shared, PLAT-04 judges the calls for memory.
template <class Api>
static void expect_ipc(Api api, bool supported, bool only_events) {
  using Code = typename Api::Code;
  // Only the runtime documents a code for a device without IPC.
  constexpr bool kNamesTheCode = std::is_same_v<Api, RuntimeApi>;
  const DeviceBuffer buffer(kBytes);
  const SharedEvent event;
  cudaIpcMemHandle_t memory{};
  cudaIpcEventHandle_t handle{};
  void* opened = nullptr;
  cudaEvent_t imported = nullptr;

  const auto check = [&](const char* call, Code code) {
    cudaGetLastError();
    const bool as_supported = code != api.kNotSupported;
    const bool as_unsupported = kNamesTheCode ? !as_supported : code != Code{};
    if (supported ? as_supported : as_unsupported) return;
    expected_but_saw(supported
                         ? "another code than " + name_of(api.kNotSupported)
                     : kNamesTheCode ? name_of(api.kNotSupported)
                                     : "a refusal",
                     name_of(code));
    ADD_FAILURE() << call << " gives " << name_of(code)
                  << " where cudaDevAttrIpcEventSupport is " << supported;
  };
  // The two opens get bytes that no export made; the close gets a pointer
  // that no open returned.
  check("opening an event", api.ipc_open_event_handle(&imported, handle));
  check("exporting an event", api.ipc_get_event_handle(&handle, event));
  if (only_events) return;
  check("opening memory", api.ipc_open_mem_handle(&opened, memory));
  check("closing memory", api.ipc_close_mem_handle(buffer.data));
  check("exporting memory", api.ipc_get_mem_handle(&memory, buffer.data));
}

// Each GPU that shares memory or events has unified addressing.
static void expect_unified_addressing() {
  int count = 0;
  CALL(cudaGetDeviceCount(&count));
  for (int device = 0; device < std::min(count, 2); ++device) {
    if (attribute(cudaDevAttrIpcEventSupport, device) == 0) continue;
    SCOPED_TRACE("GPU " + std::to_string(device));
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, device));
    EXPECT_EQ(properties.unifiedAddressing, 1);
    EXPECT_EQ(attribute(cudaDevAttrUnifiedAddressing, device), 1);
    EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device), 1);
  }
}

TEST(QuerySupport, NotSupportedIsSaidByAllFiveCallsOrByNone) {
  covers("PLAT-02");
  needs(gpus(1), second_gpu);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const bool supported = attribute(cudaDevAttrIpcEventSupport) != 0;
    expect_unified_addressing();
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, 0));
    const bool only_events = supported && properties.integrated != 0;
    by_both_apis([=](auto api) { expect_ipc(api, supported, only_events); });
  });
  scenario.run(20s);
}

TEST(QuerySupport, VmmAttributeTellsWhetherCreateWorks) {
  covers("VMM-01");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const int supported =
        attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    std::string call;
    const CUresult code = create_and_export(CU_MEM_HANDLE_TYPE_NONE, &call);
    if (supported != 0)
      EXPECT_TRUE(gives(code, call.c_str(), CUDA_SUCCESS));
    else
      EXPECT_TRUE(
          refused(code, call.c_str(),
                  {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_DEVICE,
                   CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED}));
  });
  scenario.run(20s);
}

TEST(QuerySupport, DescriptorAttributeTellsWhetherExportWorks) {
  covers("VMM-02");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const int supported = attribute(
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    std::string call;
    const CUresult code =
        create_and_export(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &call);
    if (supported != 0) {
      EXPECT_TRUE(gives(code, call.c_str(), CUDA_SUCCESS));
    } else {
      EXPECT_NE(code, CUDA_SUCCESS) << call << ", though the attribute is 0";
      me.observe("attribute 0; " + call + ": " + name_of(code));
    }
  });
  scenario.run(20s);
}

// A multiple of the minimum also works for memory that can be shared.
static void creates_shareable_multiple() {
  if (attribute(
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 1)
    return;
  const CUmemAllocationProp wanted =
      device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  Sentinel<size_t> unit;
  EXPECT_SUCCESS(DRIVER(cuMemGetAllocationGranularity)(
      unit.out(), &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle memory;
  EXPECT_SUCCESS(DRIVER(cuMemCreate)(&memory, 3 * unit.result(), &wanted, 0));
  CALL(DRIVER(cuMemRelease)(memory));
}

TEST(QuerySupport, GranularityIsUsable) {
  covers("VMM-03");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    size_t minimum = 0, recommended = 0;
    EXPECT_SUCCESS(granularity(&minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT_SUCCESS(
        granularity(&recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    me.observe("minimum " + std::to_string(minimum) + ", recommended " +
               std::to_string(recommended) + " bytes");
    // 4 KiB is the smallest page of any host or GPU that CUDA runs on.
    ASSERT_GE(minimum, 4096u);
    EXPECT_EQ(minimum & (minimum - 1), 0u);
    EXPECT_GE(recommended, minimum);
    EXPECT_EQ(recommended % minimum, 0u);

    const CUmemAllocationProp wanted = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle memory;
    // Every multiple works, not only a power of two.
    for (const size_t times : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::to_string(times) + " times the minimum");
      EXPECT_SUCCESS(DRIVER(cuMemCreate)(&memory, times * minimum, &wanted, 0));
      CALL(DRIVER(cuMemRelease)(memory));
    }
    creates_shareable_multiple();
    // Half of the minimum is not a multiple of the minimum.
    const size_t half = minimum / 2;
    // The caller must not use it, and no sentence says that it is refused. What
    // a success has made is given back by the same numbers.
    const CUresult created =
        NOTED(DRIVER(cuMemCreate)(&memory, half, &wanted, 0));
    me.observe("memory of half the minimum: " + name_of(created));
    if (created == CUDA_SUCCESS) EXPECT_SUCCESS(DRIVER(cuMemRelease)(memory));
    const Chunk chunk = Chunk::create(minimum, wanted);
    const Reservation range(2 * minimum);
    const auto map = [&](size_t at, size_t bytes, size_t offset) {
      return NOTED(
          DRIVER(cuMemMap)(range.at(at), bytes, offset, chunk.handle(), 0));
    };
    const auto map_wrongly = [&](const char* what, size_t at, size_t bytes,
                                 size_t offset) {
      SCOPED_TRACE(what);
      const CUresult code = map(at, bytes, offset);
      me.observe("a mapping with half the minimum as " + std::string(what) +
                 ": " + name_of(code));
      if (code == CUDA_SUCCESS)
        EXPECT_SUCCESS(DRIVER(cuMemUnmap)(range.at(at), bytes));
    };
    map_wrongly("address", half, minimum, 0);
    map_wrongly("size", 0, half, 0);
    map_wrongly("offset", 0, minimum, half);
    EXPECT_SUCCESS(map(minimum, minimum, 0));
    range.unmap(minimum, minimum);
  });
  scenario.run(20s);
}

TEST(QuerySupport, FabricAttributeIsNoPermission) {
  covers("FABR-01");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const int supported =
        attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    size_t size = 0;
    CALL(granularity(&size, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    const CUmemAllocationProp wanted = device_memory(CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle memory;
    const CUresult code = NOTED(DRIVER(cuMemCreate)(&memory, size, &wanted, 0));
    if (code == CUDA_SUCCESS) CALL(DRIVER(cuMemRelease)(memory));
    me.observe("attribute " + std::to_string(supported) +
               ", cuMemCreate: " + name_of(code) +
               ", IMEX channel: " + (has_imex_channel() ? "there" : "none"));
    if (supported == 0) {
      EXPECT_TRUE(refused(code, "cuMemCreate",
                          {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE,
                           CUDA_ERROR_NOT_PERMITTED}));
    } else if (code != CUDA_SUCCESS) {
      EXPECT_TRUE(
          refused(code, "cuMemCreate",
                  {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED}));
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(QuerySupport, PoolAttributeTellsWhetherPoolsWork) {
  covers("SOMA-01");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, 0));
    const int supported = attribute(cudaDevAttrMemoryPoolsSupported);
    EXPECT_EQ(properties.memoryPoolsSupported, supported);

    void* memory = nullptr;
    if (supported == 0) {
      EXPECT_CODE(cudaErrorNotSupported,
                  cudaMallocAsync(&memory, kBytes, nullptr));
      return;
    }
    CALL(cudaMallocAsync(&memory, kBytes, nullptr));
    const Words words(memory, kBytes);
    const Pattern proof = pattern("pool");
    words.fill(proof);
    EXPECT_READS(words, proof);
    EXPECT_SUCCESS(cudaFreeAsync(memory, nullptr));
    EXPECT_SUCCESS(cudaStreamSynchronize(nullptr));
  });
  scenario.run(20s);
}

TEST(QuerySupport, EveryPoolHandleTypeOfTheMaskWorks) {
  covers("POOL-01");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, 0));
    const int mask = attribute(cudaDevAttrMemoryPoolSupportedHandleTypes);
    EXPECT_EQ(properties.memoryPoolSupportedHandleTypes,
              static_cast<unsigned>(mask));
    for (int bit = 1; bit <= mask; bit <<= 1) {
      if ((mask & bit) == 0) continue;
      cudaMemPoolProps wanted{};
      wanted.allocType = cudaMemAllocationTypePinned;
      wanted.location = {cudaMemLocationTypeDevice, 0};
      wanted.handleTypes = static_cast<cudaMemAllocationHandleType>(bit);
      cudaMemPool_t pool = nullptr;
      const cudaError_t code = NOTED(cudaMemPoolCreate(&pool, &wanted));
      const std::string call =
          "cudaMemPoolCreate(handleTypes = " + std::to_string(bit) + ")";
      // By the header's comment, fabric pools need an IMEX channel.
      if (bit == cudaMemHandleTypeFabric && code != cudaSuccess &&
          !has_imex_channel()) {
        cudaGetLastError();
        me.observe(call + ": " + name_of(code) + ", no IMEX channel");
        continue;
      }
      EXPECT_TRUE(gives(code, call.c_str(), cudaSuccess));
      if (pool != nullptr) CALL(cudaMemPoolDestroy(pool));
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(QuerySupport, UnknownAttributeIsRefusedAndCleared) {
  covers("PLAT-06");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    int value = 0;
    const auto unknown = static_cast<cudaDeviceAttr>(100000);
    const cudaError_t code = NOTED(cudaDeviceGetAttribute(&value, unknown, 0));
    // This comes before gives(), which clears the error. Exactly one call of
    // cudaGetLastError returns the error.
    EXPECT_EQ(name_of(cudaGetLastError()), "cudaErrorInvalidValue");
    EXPECT_EQ(name_of(cudaGetLastError()), "cudaSuccess");
    EXPECT_TRUE(gives(code, "cudaDeviceGetAttribute", cudaErrorInvalidValue));
    for (const int number : {0, -1, 100000}) {
      SCOPED_TRACE("attribute " + std::to_string(number));
      EXPECT_CODE(cudaErrorInvalidValue,
                  cudaDeviceGetAttribute(
                      &value, static_cast<cudaDeviceAttr>(number), 0));
      EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                  DRIVER(cuDeviceGetAttribute)(
                      &value, static_cast<CUdevice_attribute>(number), 0));
    }
    if (attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 1) {
      cudaMemPool_t pool = nullptr;
      CALL(cudaDeviceGetDefaultMemPool(&pool, 0));
      cuuint64_t wide = 0;
      by_both_apis([&](auto api) {
        const auto other = static_cast<cudaMemPoolAttr>(100000);
        EXPECT_CODE(api.kInvalidValue,
                    api.mem_pool_set_attribute(pool, other, &wide));
        EXPECT_CODE(api.kInvalidValue,
                    api.mem_pool_get_attribute(pool, other, &wide));
        EXPECT_SUCCESS(api.mem_pool_get_attribute(
            pool, cudaMemPoolAttrReleaseThreshold, &wide))
            << "after the refusal";
      });
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// --- pointers ---------------------------------------------------------------

// Judges what the three functions say of a pointer that CUDA does not know.
static void expect_told_in_three_ways(void* pointer) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  unsigned type = 77;
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              DRIVER(cuPointerGetAttribute)(
                  &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  unsigned long long id = 77;
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              DRIVER(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                            address));
  unsigned long long managed = 77;  // room for a boolean of any width
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              DRIVER(cuPointerGetAttribute)(
                  &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));

  unsigned memory_type = 77;
  CUcontext context = reinterpret_cast<CUcontext>(77);
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_CONTEXT};
  void* answers[] = {&memory_type, &context};
  EXPECT_SUCCESS(DRIVER(cuPointerGetAttributes)(2, asked, answers, address));
  EXPECT_EQ(memory_type, 0u);
  EXPECT_EQ(context, nullptr);

  cudaPointerAttributes attributes;
  EXPECT_SUCCESS(cudaPointerGetAttributes(&attributes, pointer));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(attributes.devicePointer, nullptr);
}

TEST(QuerySupport, UnknownPointersAreToldInThreeWays) {
  covers("LMEM-47");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer known(kBytes);
    // Its neighbours, usually in one block with it, stay in use.
    const DeviceBuffer before(256);
    DeviceBuffer freed(256);
    const DeviceBuffer after(256);
    void* const small = freed.data;
    freed.free();
    // No later allocation gets these addresses.
    constexpr size_t kFreed = 64 << 20;
    void* unmapped = nullptr;
    CALL(cudaMalloc(&unmapped, kFreed));
    CALL(cudaFree(unmapped));
    char* const gone = static_cast<char*>(unmapped);
    std::vector<char> host(4096);

    // For comparison: a pointer that the functions know.
    Sentinel<cudaPointerAttributes> of_known;
    EXPECT_SUCCESS(cudaPointerGetAttributes(of_known.out(), known.data));
    EXPECT_EQ(of_known.result().type, cudaMemoryTypeDevice);
    EXPECT_EQ(of_known.result().devicePointer, known.data);
    Sentinel<unsigned> type_of_known;
    Sentinel<CUdeviceptr> address_of_known;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void* said[] = {type_of_known.out(), address_of_known.out()};
    const auto begin = reinterpret_cast<CUdeviceptr>(known.data);
    EXPECT_SUCCESS(DRIVER(cuPointerGetAttributes)(2, wanted, said, begin));
    EXPECT_EQ(type_of_known.result(), unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT_EQ(address_of_known.result(), begin);

    const std::pair<const char*, void*> unknown[] = {
        {"malloc", host.data()},
        {"freed device address", gone},
        {"inside freed memory", gone + kFreed / 2},
        {"the last byte of freed memory", gone + kFreed - 1},
        {"freed small allocation", small}};
    for (const auto& [what, pointer] : unknown) {
      SCOPED_TRACE(what);
      expect_told_in_three_ways(pointer);
    }
  });
  scenario.run(20s);
}

// --- platforms --------------------------------------------------------------

TEST(QuerySupport, LegacyIpcWorksOnLinux) {
  covers("PLAT-01");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", borrows(pattern("exporter"), kBytes));
  scenario.run(20s);
}

TEST(QuerySupport, TegraSharesEventsOnly) {
  covers("PLAT-04");
  needs(gpus(1), tegra);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    cudaIpcMemHandle_t memory;
    const cudaError_t code = NOTED(cudaIpcGetMemHandle(&memory, buffer.data));
    if (code == cudaSuccess)
      me.lifted("the export of memory succeeds");
    else
      EXPECT_CODE(cudaErrorNotSupported, code);
    cudaEvent_t event = nullptr;
    cudaIpcEventHandle_t handle;
    CALL(cudaEventCreateWithFlags(
        &event, cudaEventInterprocess | cudaEventDisableTiming));
    EXPECT_SUCCESS(cudaIpcGetEventHandle(&handle, event));
    CALL(cudaEventDestroy(event));
  });
  scenario.run(20s);
}

// Both processes see one driver version, by both APIs, and one runtime version.
// The test does not judge whether this program was compiled for these versions.
TEST(QuerySupport, BothSidesHaveTheSameDriverAndRuntime) {
  covers("PLAT-05");
  needs(gpus(1));
  struct Versions {
    int driver, runtime;
  };
  const auto ask = [](Role& me) {
    Sentinel<int> driver, same, runtime;
    CALL(cudaDriverGetVersion(driver.out()));
    CALL(DRIVER(cuDriverGetVersion)(same.out()));
    CALL(cudaRuntimeGetVersion(runtime.out()));
    EXPECT_EQ(driver.result(), same.result()) << "the two APIs";
    if (runtime.result() != CUDART_VERSION || driver.result() < CUDART_VERSION)
      me.observe("compiled for " + std::to_string(CUDART_VERSION) +
                 ", which is not what runs here");
    return Versions{driver.result(), runtime.result()};
  };
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [&](Role& me) { me.send("versions", ask(me)); });
  scenario.role("importer", [&](Role& me) {
    const auto theirs = me.receive<Versions>("versions");
    const Versions mine = ask(me);
    EXPECT_EQ(theirs.driver, mine.driver);
    EXPECT_EQ(theirs.runtime, mine.runtime);
    me.observe("driver " + std::to_string(mine.driver) + ", runtime " +
               std::to_string(mine.runtime) + " on both sides");
  });
  scenario.run(20s);
}

using Open = decltype(cuIpcOpenMemHandle_v2);

// The versions of CUDA at which older programs ask for a function.
constexpr unsigned kOlder[] = {11000, 11020, 12000, 12080};

// Judges that this function counts the opens of a handle.
static void counts(Open* open, const CUipcMemHandle& handle) {
  CUdeviceptr first = 0, second = 0;
  CALL(open(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_SUCCESS(open(&second, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_EQ(second, first);
  CALL(DRIVER(cuIpcCloseMemHandle)(first));
  EXPECT_SUCCESS(DRIVER(cuIpcCloseMemHandle)(first));
}

// Judges that programs for an older CUDA, since 11.0, get a function that
// counts.
static void counts_for_older_programs(const CUipcMemHandle& handle) {
  int of_driver = 0;
  CALL(cudaDriverGetVersion(&of_driver));
  for (const unsigned version : kOlder) {
    if (version > static_cast<unsigned>(of_driver)) continue;
    SCOPED_TRACE("asked for CUDA " + std::to_string(version));
    void *by_runtime = nullptr, *by_driver = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION < 12050  // only at its own version
    CALL(cudaGetDriverEntryPoint("cuIpcOpenMemHandle", &by_runtime,
                                 cudaEnableDefault, &result));
#else
    CALL(cudaGetDriverEntryPointByVersion("cuIpcOpenMemHandle", &by_runtime,
                                          version, cudaEnableDefault, &result));
#endif
    CUdriverProcAddressQueryResult status{};
    CALL(DRIVER(cuGetProcAddress)("cuIpcOpenMemHandle", &by_driver,
                                  static_cast<int>(version),
                                  CU_GET_PROC_ADDRESS_DEFAULT, &status));
    for (void* const open : {by_runtime, by_driver}) {
      ASSERT_NE(open, nullptr);
      counts(reinterpret_cast<Open*>(open), handle);
    }
  }
}

TEST(QuerySupport, OpenByNameIsTheCountedVersion) {
  covers("PLAT-08");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    me.send("handle", buffer.legacy_handle());
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    CUipcMemHandle bytes;
    std::memcpy(&bytes, &handle, sizeof bytes);

    // driver_entry() requests the function at the version of the build.
    void* const open = driver_entry("cuIpcOpenMemHandle");
    ASSERT_NE(open, nullptr);
    counts(reinterpret_cast<Open*>(open), bytes);
    counts_for_older_programs(bytes);

    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    ASSERT_NE(driver, nullptr);
    const void* bare = dlsym(driver, "cuIpcOpenMemHandle");
    void* counted = dlsym(driver, "cuIpcOpenMemHandle_v2");
    if (counted != nullptr) counts(reinterpret_cast<Open*>(counted), bytes);
    me.observe(std::string("the bare symbol cuIpcOpenMemHandle is ") +
               (bare == nullptr   ? "not there"
                : bare == counted ? "the same as _v2"
                                  : "another function than _v2"));
    dlclose(driver);
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(QuerySupport, TwoProcessesNeedDefaultComputeMode) {
  covers("PLAT-09");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    me.send("mode", attribute(cudaDevAttrComputeMode));
    me.send("mps", attribute(cudaDevAttrMpsEnabled));
    me.wait("tried");
  });
  scenario.role("importer", [](Role& me) {
    const int mode = me.receive<int>("mode");
    const bool mps = me.receive<int>("mps") != 0;
    me.observe("compute mode " + std::to_string(mode) +
               " (0 is default), MPS " + (mps ? "on" : "off"));
    // In exclusive mode all clients of MPS share the one context of the server.
    if (mode == cudaComputeModeDefault ||
        (mps && mode == cudaComputeModeExclusiveProcess)) {
      EXPECT_TRUE(context_is_usable());
    } else {
      EXPECT_REFUSED(cudaFree(nullptr), cudaErrorDevicesUnavailable);
    }
    me.signal("tried");
  });
  scenario.run(20s);
}

TEST(QuerySupport, Wsl) {
  covers("PLAT-13");
  needs(gpus(1));
  std::ifstream file("/proc/version");
  std::string version;
  std::getline(file, version);
  const bool wsl = version.find("icrosoft") != std::string::npos;
  observe(wsl ? "WSL: " + version : "no WSL");
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    std::string call;
    const CUresult code =
        create_and_export(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &call);
    me.observe(call + ": " + name_of(code));
  });
  scenario.run(20s);
}

// A process sees only one MIG device. So each role gets one of the two devices
// that CUDA_VISIBLE_DEVICES names.
TEST(QuerySupport, MigInstancesShareWithinOneGpuInstance) {
  covers("PLAT-14");
  needs(gpus(1), mig, legacy_memory);
  static constexpr char kTogether[] = "IPCLAB_ONE_GPU_INSTANCE";
  const std::string devices[] = {visible_gpus({0}), visible_gpus({1})};
  const auto exporters = gpu_instance_of(devices[0]);
  const auto importers = gpu_instance_of(devices[1]);
  if (!in_role() && (!exporters || !importers || devices[0] == devices[1]))
    return not_applicable("CUDA_VISIBLE_DEVICES does not name two MIG devices");
  Scenario scenario;
  scenario.role("exporter", lends(pattern("exporter"), kBytes))
      .env("CUDA_VISIBLE_DEVICES", devices[0]);
  scenario
      .role("importer",
            [](Role& me) {
              const bool together = std::getenv(kTogether)[0] == '1';
              CALL(cudaFree(nullptr));
              const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
              Sentinel<void*> opened;
              const cudaError_t code = NOTED(cudaIpcOpenMemHandle(
                  opened.out(), handle, cudaIpcMemLazyEnablePeerAccess));
              cudaGetLastError();
              me.observe(std::string(together ? "in one GPU instance: "
                                              : "between GPU instances: ") +
                         name_of(code));
              if (together)
                EXPECT_TRUE(gives(code, "cudaIpcOpenMemHandle", cudaSuccess));
              if (code == cudaSuccess) {
                const Words words(opened.result(), kBytes);
                EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
                CALL(cudaIpcCloseMemHandle(opened.result()));
                if (!together) me.lifted("GPU instances share memory");
              }
              EXPECT_TRUE(context_is_usable());
              me.signal("closed");
            })
      .env("CUDA_VISIBLE_DEVICES", devices[1])
      .env(kTogether, exporters == importers ? "1" : "0");
  scenario.run(20s);
}

// The limit is set after CUDA has started, and cudaMalloc works under it. So a
// refusal comes from the stream-ordered allocator.
TEST(QuerySupport, AddressSpaceLimitForbidsStreamOrderedAllocation) {
  covers("PLAT-15");
  needs(gpus(1), pools);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    EXPECT_TRUE(context_is_usable());
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t room = 1ull << 30;
    const rlim_t limit =
        pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + room;
    const rlimit tight{limit, limit};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    void* memory = nullptr;
    const cudaError_t control = NOTED(cudaMalloc(&memory, kBytes));
    if (control != cudaSuccess)
      return me.not_applicable("cudaMalloc with 1 GiB of addresses left: " +
                               name_of(control));
    CALL(cudaFree(memory));
    const cudaError_t code = NOTED(cudaMallocAsync(&memory, kBytes, nullptr));
    cudaGetLastError();
    me.observe("cudaMallocAsync with 1 GiB of addresses left: " +
               name_of(code));
    if (code != cudaSuccess) return;
    const Words words(memory, kBytes);
    words.fill(pattern("limited"));
    EXPECT_TRUE(kernel_reads(words, pattern("limited")));
    me.lifted(
        "stream-ordered allocation works with 1 GiB of addresses "
        "left (ulimit -v)");
  });
  scenario.run(20s);
}

TEST(QuerySupport, Mps) {
  covers("PLAT-17");
  needs(gpus(1));
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, 0));
    std::string all = "cudaDevAttrMpsEnabled " +
                      std::to_string(attribute(cudaDevAttrMpsEnabled));
#if CUDART_VERSION >= 13000
    all +=
        ", cudaDeviceProp.mpsEnabled " + std::to_string(properties.mpsEnabled);
#endif
    me.observe(all);
  });
  scenario.run(20s);
}

// --- a driver of an older minor version -------------------------------------

TEST(QuerySupport, ANewerMinorVersionSharesMemory) {
  covers("PLAT-18");
  needs(gpus(1), legacy_memory, older_driver);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("memory", buffer.legacy_handle());
    me.wait("written");
    EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    Sentinel<void*> opened;
    const cudaError_t code = NOTED(cudaIpcOpenMemHandle(
        opened.out(), me.receive<cudaIpcMemHandle_t>("memory"),
        cudaIpcMemLazyEnablePeerAccess));
    EXPECT_TRUE(gives(code, "cudaIpcOpenMemHandle", cudaSuccess));
    if (code == cudaSuccess) {
      const Words words(opened.result(), kBytes);
      EXPECT_READS(words, pattern("exporter"));
      words.fill(pattern("importer"));
    }
    me.signal("written");
    if (code == cudaSuccess)
      EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened.result()));
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(QuerySupport, ACallThatNeedsANewerDriverSaysSo) {
  covers("PLAT-19");
  needs(gpus(1), lacks_13_1);
  Scenario scenario(Scenario::kShared);
  scenario.role("caller", [](Role&) {
    ASSERT_EQ(driver_entry("cuGraphGetId"), nullptr)
        << "the driver is old and has the function";
    // The function is looked up by name, because the runtime of CUDA 13.0 lacks
    // it.
    const auto get_id = reinterpret_cast<decltype(&cudaGraphGetId)>(
        dlsym(RTLD_DEFAULT, "cudaGraphGetId"));
    ASSERT_NE(get_id, nullptr) << "not in this runtime";
    cudaGraph_t graph = nullptr;
    CALL(cudaGraphCreate(&graph, 0));
    Sentinel<unsigned> id;
    const cudaError_t code = NOTED(get_id(graph, id.out()));
    EXPECT_EQ(name_of(cudaGetLastError()), name_of(code));
    EXPECT_TRUE(
        gives(code, "cudaGraphGetId", cudaErrorCallRequiresNewerDriver));
    CALL(cudaGraphDestroy(graph));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}
