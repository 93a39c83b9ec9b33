// What CUDA says that a machine can share, against what it can.
// Mirror of samples/00_query_support.
//
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <fstream>
#include <string>
#include <vector>

#include "harness/scenario/cuda.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;

// A buffer around a handle, to see how many bytes a call writes.
struct HandleWithCanary {
  unsigned char bytes[256];
  HandleWithCanary() { std::memset(bytes, 0xC5, sizeof bytes); }

  bool wrote_at_all() const {
    for (size_t i = 0; i < 64; ++i)
      if (bytes[i] != 0xC5) return true;
    return false;
  }
  // The first byte behind the documented 64 that was written, 0 if none.
  size_t overwritten() const {
    for (size_t i = 64; i < sizeof bytes; ++i)
      if (bytes[i] != 0xC5) return i;
    return 0;
  }
};

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
  return DRIVER(cuMemGetAllocationGranularity)(size, &wanted, which);
}

// Creates a minimum-sized allocation, exports it if a handle type is given,
// and releases it. The first code that is no success, and the call's name.
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

TEST(QuerySupport, MemoryHandleHas64Bytes) {
  covers("LMEM-03");
  static_assert(CUDA_IPC_HANDLE_SIZE == 64 && CU_IPC_HANDLE_SIZE == 64);
  static_assert(sizeof(cudaIpcMemHandle_t) == 64);
  static_assert(sizeof(CUipcMemHandle) == 64);
  needs(gpus(1), legacy_memory);
  Scenario scenario;

  scenario.role("exporter", [](Role&) {
    const DeviceBuffer buffer(kBytes);
    HandleWithCanary runtime;
    CALL(cudaIpcGetMemHandle(
        reinterpret_cast<cudaIpcMemHandle_t*>(runtime.bytes), buffer.data));
    EXPECT_TRUE(runtime.wrote_at_all());
    EXPECT_EQ(runtime.overwritten(), 0u) << "byte behind the handle";

    HandleWithCanary driver;
    CALL(DRIVER(cuIpcGetMemHandle)(
        reinterpret_cast<CUipcMemHandle*>(driver.bytes),
        reinterpret_cast<CUdeviceptr>(buffer.data)));
    EXPECT_TRUE(driver.wrote_at_all());
    EXPECT_EQ(driver.overwritten(), 0u) << "byte behind the handle";
  });

  scenario.run(20s);
}

TEST(QuerySupport, FabricHandleHas64Bytes) {
  covers("FABR-03");
  needs(gpus(1));  // a verdict is about a driver
  static_assert(sizeof(cudaMemFabricHandle_t) == 64);
  static_assert(sizeof(CUmemFabricHandle) == 64);
  EXPECT_EQ(sizeof(cudaMemFabricHandle_t), sizeof(CUmemFabricHandle));
}

TEST(QuerySupport, FabricExportWrites64Bytes) {
  covers("FABR-03");
  needs(gpus(1), fabric);
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    CALL(cudaFree(nullptr));
    size_t size = 0;
    CALL(granularity(&size, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    const CUmemAllocationProp wanted = device_memory(CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle memory;
    CALL(DRIVER(cuMemCreate)(&memory, size, &wanted, 0));
    HandleWithCanary handle;
    CALL(DRIVER(cuMemExportToShareableHandle)(handle.bytes, memory,
                                              CU_MEM_HANDLE_TYPE_FABRIC, 0));
    EXPECT_TRUE(handle.wrote_at_all());
    EXPECT_EQ(handle.overwritten(), 0u) << "byte behind the handle";
    CALL(DRIVER(cuMemRelease)(memory));
  });
  scenario.run(20s);
}

TEST(QuerySupport, LogicalEndpointsBeginWith13Point3) {
  covers("FABR-09");
  needs(gpus(1));
  std::ifstream header(IPCLAB_CUDA_HEADER);
  ASSERT_TRUE(header) << "cannot read " << IPCLAB_CUDA_HEADER;
  const std::string text((std::istreambuf_iterator<char>(header)),
                         std::istreambuf_iterator<char>());
  ASSERT_NE(text.find("cuMemCreate"), std::string::npos) << "is no cuda.h";
  const bool declared = text.find("cuLogicalEndpoint") != std::string::npos;
  EXPECT_EQ(declared, CUDA_VERSION >= 13030);
}

TEST(QuerySupport, ErrorNumbersAgreeInBothApis) {
  covers("PLAT-07");
  struct Row {
    int number;
    cudaError_t runtime;
    CUresult driver;
    const char* name;
  };
  const Row rows[] = {
      {1, cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE,
       "cudaErrorInvalidValue"},
      {2, cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY,
       "cudaErrorMemoryAllocation"},
      {201, cudaErrorDeviceUninitialized, CUDA_ERROR_INVALID_CONTEXT,
       "cudaErrorDeviceUninitialized"},
      {205, cudaErrorMapBufferObjectFailed, CUDA_ERROR_MAP_FAILED,
       "cudaErrorMapBufferObjectFailed"},
      {208, cudaErrorAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED,
       "cudaErrorAlreadyMapped"},
      {217, cudaErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
       "cudaErrorPeerAccessUnsupported"},
      {400, cudaErrorInvalidResourceHandle, CUDA_ERROR_INVALID_HANDLE,
       "cudaErrorInvalidResourceHandle"},
      {401, cudaErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE,
       "cudaErrorIllegalState"},
      {704, cudaErrorPeerAccessAlreadyEnabled,
       CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
       "cudaErrorPeerAccessAlreadyEnabled"},
      {711, cudaErrorTooManyPeers, CUDA_ERROR_TOO_MANY_PEERS,
       "cudaErrorTooManyPeers"},
      {800, cudaErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED,
       "cudaErrorNotPermitted"},
      {801, cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED,
       "cudaErrorNotSupported"},
  };
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [&](Role&) {
    for (const Row& row : rows) {
      EXPECT_EQ(row.runtime, row.number);
      EXPECT_EQ(row.driver, row.number);
      EXPECT_EQ(name_of(row.runtime), row.name);
      EXPECT_EQ(name_of(row.driver).rfind("CUDA_ERROR_", 0), 0u);
    }
  });
  scenario.run(20s);
}

// --- attributes and what they promise ---------------------------------------

TEST(QuerySupport, IpcAttributeHasOneValueInThreePlaces) {
  covers("PLAT-03");
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, 0));
    const int supported = attribute(cudaDevAttrIpcEventSupport);
    EXPECT_EQ(properties.ipcEventSupported, supported);
    EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED), supported);

    cudaEvent_t event = nullptr;
    cudaIpcEventHandle_t handle;
    CALL(cudaEventCreateWithFlags(
        &event, cudaEventInterprocess | cudaEventDisableTiming));
    EXPECT_CODE(supported != 0 ? cudaSuccess : cudaErrorNotSupported,
                cudaIpcGetEventHandle(&handle, event));
    CALL(cudaEventDestroy(event));
  });
  scenario.run(20s);
}

TEST(QuerySupport, NotSupportedIsSaidByAllFiveCallsOrByNone) {
  covers("PLAT-02");
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    const bool supported = attribute(cudaDevAttrIpcEventSupport) != 0;
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, 0));
    if (supported) {
      EXPECT_EQ(properties.unifiedAddressing, 1);
    }

    const DeviceBuffer buffer(kBytes);
    cudaEvent_t event = nullptr;
    CALL(cudaEventCreateWithFlags(
        &event, cudaEventInterprocess | cudaEventDisableTiming));
    cudaIpcMemHandle_t memory{};
    cudaIpcEventHandle_t handle{};
    void* opened = nullptr;
    cudaEvent_t imported = nullptr;

    const auto check = [&](const char* call, cudaError_t code) {
      cudaGetLastError();
      if ((code != cudaErrorNotSupported) == supported) return;
      expected_but_saw(supported ? "another code than cudaErrorNotSupported"
                                 : "cudaErrorNotSupported",
                       name_of(code));
      ADD_FAILURE() << call << " gives " << name_of(code)
                    << " where cudaDevAttrIpcEventSupport is " << supported;
    };
    // The two opens and the close get what no export made.
    check("cudaIpcOpenMemHandle",
          NOTED(cudaIpcOpenMemHandle(&opened, memory,
                                     cudaIpcMemLazyEnablePeerAccess)));
    check("cudaIpcOpenEventHandle",
          NOTED(cudaIpcOpenEventHandle(&imported, handle)));
    check("cudaIpcCloseMemHandle", NOTED(cudaIpcCloseMemHandle(buffer.data)));
    check("cudaIpcGetMemHandle",
          NOTED(cudaIpcGetMemHandle(&memory, buffer.data)));
    check("cudaIpcGetEventHandle",
          NOTED(cudaIpcGetEventHandle(&handle, event)));
    CALL(cudaEventDestroy(event));
  });
  scenario.run(20s);
}

TEST(QuerySupport, VmmAttributeTellsWhetherCreateWorks) {
  covers("VMM-01");
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    const int supported =
        attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    std::string call;
    const CUresult code = create_and_export(CU_MEM_HANDLE_TYPE_NONE, &call);
    EXPECT_TRUE(
        gives(code, call.c_str(),
              supported != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED));
  });
  scenario.run(20s);
}

TEST(QuerySupport, DescriptorAttributeTellsWhetherExportWorks) {
  covers("VMM-02");
  needs(gpus(1));
  Scenario scenario;
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

TEST(QuerySupport, GranularityIsUsable) {
  covers("VMM-03");
  needs(gpus(1), vmm);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    size_t minimum = 0, recommended = 0;
    EXPECT_SUCCESS(granularity(&minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT_SUCCESS(
        granularity(&recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    me.observe("minimum " + std::to_string(minimum) + ", recommended " +
               std::to_string(recommended) + " bytes");
    // 4 KiB: the smallest page of any host or GPU that CUDA runs on.
    ASSERT_GE(minimum, 4096u);
    EXPECT_EQ(minimum & (minimum - 1), 0u);
    EXPECT_GE(recommended, minimum);
    EXPECT_EQ(recommended % minimum, 0u);

    const CUmemAllocationProp wanted = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle memory;
    EXPECT_SUCCESS(DRIVER(cuMemCreate)(&memory, minimum, &wanted, 0));
    CALL(DRIVER(cuMemRelease)(memory));
    // Half of the minimum is no multiple of it.
    EXPECT_REFUSED(DRIVER(cuMemCreate)(&memory, minimum / 2, &wanted, 0),
                   CUDA_ERROR_INVALID_VALUE);
  });
  scenario.run(20s);
}

TEST(QuerySupport, FabricAttributeIsNoPermission) {
  covers("FABR-01");
  needs(gpus(1), vmm);
  Scenario scenario;
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
  Scenario scenario;
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
    EXPECT_TRUE(kernel_reads(words, proof));
    EXPECT_TRUE(copy_reads(words, proof));
    EXPECT_SUCCESS(cudaFreeAsync(memory, nullptr));
    EXPECT_SUCCESS(cudaStreamSynchronize(nullptr));
  });
  scenario.run(20s);
}

TEST(QuerySupport, EveryPoolHandleTypeOfTheMaskWorks) {
  covers("POOL-01");
  needs(gpus(1));
  Scenario scenario;
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
      // The header of cudaMemPoolCreate: fabric needs an IMEX channel besides.
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
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    int value = 0;
    const auto unknown = static_cast<cudaDeviceAttr>(100000);
    const cudaError_t code = NOTED(cudaDeviceGetAttribute(&value, unknown, 0));
    // Before gives() clears it: the error is there, once.
    EXPECT_EQ(name_of(cudaGetLastError()), "cudaErrorInvalidValue");
    EXPECT_EQ(name_of(cudaGetLastError()), "cudaSuccess");
    EXPECT_TRUE(gives(code, "cudaDeviceGetAttribute", cudaErrorInvalidValue));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// --- pointers ---------------------------------------------------------------

TEST(QuerySupport, UnknownPointersAreToldInThreeWays) {
  covers("LMEM-47");
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    void* unmapped = nullptr;
    CALL(cudaMalloc(&unmapped, 64 << 20));
    CALL(cudaFree(unmapped));
    std::vector<char> host(4096);

    for (void* pointer : {static_cast<void*>(host.data()), unmapped}) {
      SCOPED_TRACE(pointer == unmapped ? "freed device address" : "malloc");
      const auto address = reinterpret_cast<CUdeviceptr>(pointer);
      unsigned type = 77;
      EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                  DRIVER(cuPointerGetAttribute)(
                      &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));

      unsigned memory_type = 77;
      CUcontext context = reinterpret_cast<CUcontext>(77);
      CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     CU_POINTER_ATTRIBUTE_CONTEXT};
      void* answers[] = {&memory_type, &context};
      EXPECT_SUCCESS(
          DRIVER(cuPointerGetAttributes)(2, asked, answers, address));
      EXPECT_EQ(memory_type, 0u);
      EXPECT_EQ(context, nullptr);

      cudaPointerAttributes attributes;
      EXPECT_SUCCESS(cudaPointerGetAttributes(&attributes, pointer));
      EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
      EXPECT_EQ(attributes.devicePointer, nullptr);
    }
  });
  scenario.run(20s);
}

// --- platforms --------------------------------------------------------------

TEST(QuerySupport, LegacyIpcWorksOnLinux) {
  covers("PLAT-01");
  needs(gpus(1), legacy_memory);
  utsname system;
  ASSERT_EQ(uname(&system), 0);
  EXPECT_STREQ(system.sysname, "Linux");
  Scenario scenario;
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", borrows(pattern("exporter"), kBytes));
  scenario.run(20s);
}

TEST(QuerySupport, TegraSharesEventsOnly) {
  covers("PLAT-04");
  needs(gpus(1), tegra);
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    const DeviceBuffer buffer(kBytes);
    cudaIpcMemHandle_t memory;
    EXPECT_CODE(cudaErrorNotSupported,
                cudaIpcGetMemHandle(&memory, buffer.data));
    cudaEvent_t event = nullptr;
    cudaIpcEventHandle_t handle;
    CALL(cudaEventCreateWithFlags(
        &event, cudaEventInterprocess | cudaEventDisableTiming));
    EXPECT_SUCCESS(cudaIpcGetEventHandle(&handle, event));
    CALL(cudaEventDestroy(event));
  });
  scenario.run(20s);
}

TEST(QuerySupport, BothSidesHaveTheSameDriverAndRuntime) {
  covers("PLAT-05");
  needs(gpus(1));
  struct Versions {
    int driver, runtime;
  };
  const auto ask = [] {
    Versions mine{};
    CALL(cudaDriverGetVersion(&mine.driver));
    CALL(cudaRuntimeGetVersion(&mine.runtime));
    return mine;
  };
  Scenario scenario;
  scenario.role("exporter", [&](Role& me) { me.send("versions", ask()); });
  scenario.role("importer", [&](Role& me) {
    const auto theirs = me.receive<Versions>("versions");
    const Versions mine = ask();
    EXPECT_EQ(theirs.driver, mine.driver);
    EXPECT_EQ(theirs.runtime, mine.runtime);
    me.observe("driver " + std::to_string(mine.driver) + ", runtime " +
               std::to_string(mine.runtime) + " on both sides");
  });
  scenario.run(20s);
}

TEST(QuerySupport, OpenByNameIsTheCountedVersion) {
  covers("PLAT-08");
  needs(gpus(1), legacy_memory);
  Scenario scenario;
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

    // driver_entry() asks at CUDART_VERSION.
    const auto open = reinterpret_cast<decltype(&cuIpcOpenMemHandle_v2)>(
        driver_entry("cuIpcOpenMemHandle"));
    ASSERT_NE(open, nullptr);
    CUdeviceptr first = 0, second = 0;
    CALL(open(&first, bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_SUCCESS(open(&second, bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_EQ(second, first);
    CALL(DRIVER(cuIpcCloseMemHandle)(first));
    EXPECT_SUCCESS(DRIVER(cuIpcCloseMemHandle)(first));

    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    ASSERT_NE(driver, nullptr);
    const void* bare = dlsym(driver, "cuIpcOpenMemHandle");
    const void* counted = dlsym(driver, "cuIpcOpenMemHandle_v2");
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
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));
    me.send("mode", attribute(cudaDevAttrComputeMode));
    me.wait("tried");
  });
  scenario.role("importer", [](Role& me) {
    const int mode = me.receive<int>("mode");
    me.observe("compute mode " + std::to_string(mode) + " (0 is default)");
    if (mode == cudaComputeModeDefault) {
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
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    std::string call;
    const CUresult code =
        create_and_export(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &call);
    me.observe(call + ": " + name_of(code));
  });
  scenario.run(20s);
}

TEST(QuerySupport, MigInstancesShareWithinOneGpuInstance) {
  covers("PLAT-14");
  needs(gpus(1), mig, legacy_memory);
  Scenario scenario;
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", borrows(pattern("exporter"), kBytes));
  scenario.run(20s);
}

TEST(QuerySupport, AddressSpaceLimitForbidsStreamOrderedAllocation) {
  covers("PLAT-15");
  needs(gpus(1), pools);
  Scenario scenario;
  scenario
      .role("exporter",
            [](Role& me) {
              const rlimit eight_gib{8ull << 30, 8ull << 30};
              ASSERT_EQ(setrlimit(RLIMIT_AS, &eight_gib), 0);
              void* memory = nullptr;
              const cudaError_t code =
                  NOTED(cudaMallocAsync(&memory, kBytes, nullptr));
              me.observe("cudaMallocAsync with 8 GiB of address space: " +
                         name_of(code));
              if (code == cudaSuccess)
                me.lifted(
                    "stream-ordered allocation works with 8 GiB of "
                    "address space (ulimit -v)");
            })
      .may_end_by(SIGABRT)
      .may_end_by(SIGSEGV);
  scenario.run(20s);
  if (scenario.ended("exporter").signal != 0)
    observe("the process ended by signal " +
            std::to_string(scenario.ended("exporter").signal));
}

TEST(QuerySupport, Mps) {
  covers("PLAT-17");
  needs(gpus(1));
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    cudaDeviceProp properties;
    CALL(cudaGetDeviceProperties(&properties, 0));
    me.observe("cudaDevAttrMpsEnabled " +
               std::to_string(attribute(cudaDevAttrMpsEnabled)) +
               ", cudaDeviceProp.mpsEnabled " +
               std::to_string(properties.mpsEnabled));
  });
  scenario.run(20s);
}
