// SPDX-License-Identifier: Apache-2.0
// The runtime of CUDA 12, and drivers that are older than this model's headers.
// A program of CUDA 12 cannot be built with the toolkit of CUDA 13, so these
// tests call libcudart.so.12 with declarations of their own.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

constexpr int kNewerDriver = cudaErrorCallRequiresNewerDriver;

// A function of libcudart.so.12. Arguments have the types of CUDA 12.
template <class... Arguments>
int call(const char* name, Arguments... arguments) {
  static void* const runtime = dlopen(IPCLAB_CUDART12, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(runtime, nullptr) << dlerror();
  using Function = int(Arguments...);
  const auto function = reinterpret_cast<Function*>(dlsym(runtime, name));
  EXPECT_NE(function, nullptr) << name;
  return function == nullptr ? -1 : function(arguments...);
}

// Room for a structure, followed by bytes that no call may change.
template <size_t Bytes>
struct Guarded {
  Guarded() { std::memset(bytes, 0x5a, sizeof bytes); }
  bool is_intact() const {
    return std::all_of(bytes + Bytes, bytes + sizeof bytes,
                       [](unsigned char byte) { return byte == 0x5a; });
  }
  template <class T>
  T at(size_t offset) const {
    T value;
    std::memcpy(&value, bytes + offset, sizeof value);
    return value;
  }
  alignas(8) unsigned char bytes[Bytes + 256];
};

void expect_working_memory() {
  void* data = nullptr;
  int value = 0;
  const int wanted = 7;
  EXPECT_EQ(call("cudaMalloc", &data, sizeof wanted), cudaSuccess);
  EXPECT_EQ(call("cudaMemcpy", data, &wanted, sizeof wanted, 1), cudaSuccess);
  EXPECT_EQ(call("cudaMemcpy", &value, data, sizeof wanted, 2), cudaSuccess);
  EXPECT_EQ(value, wanted);
  EXPECT_EQ(call("cudaFree", data), cudaSuccess);
}

ROLE(structures_of_cuda_12) {
  int version = 0;
  EXPECT_EQ(call("cudaRuntimeGetVersion", &version), cudaSuccess);
  EXPECT_EQ(version / 1000, 12);
  Guarded<1032> properties;
  EXPECT_EQ(call("cudaGetDeviceProperties_v2", &properties, 0), cudaSuccess);
  EXPECT_STREQ(reinterpret_cast<char*>(properties.bytes),
               "ipclab reference model");
  int clock = 0, memory_clock = 0;
  EXPECT_EQ(call("cudaDeviceGetAttribute", &clock, cudaDevAttrClockRate, 0),
            cudaSuccess);
  EXPECT_EQ(call("cudaDeviceGetAttribute", &memory_clock,
                 cudaDevAttrMemoryClockRate, 0),
            cudaSuccess);
  EXPECT_EQ(properties.at<int>(348), clock);
  EXPECT_EQ(properties.at<int>(608), memory_clock);
  EXPECT_EQ(properties.at<int>(768), 1);  // ipcEventSupported
  EXPECT_TRUE(properties.is_intact());
  Guarded<728> of_cuda_11;
  EXPECT_EQ(call("cudaGetDeviceProperties", &of_cuda_11, 0), cudaSuccess);
  EXPECT_EQ(std::memcmp(of_cuda_11.bytes, properties.bytes, 728), 0);
  EXPECT_TRUE(of_cuda_11.is_intact());
  void* data = nullptr;
  EXPECT_EQ(call("cudaMalloc", &data, size_t{4}), cudaSuccess);
  Guarded<24> attributes;
  EXPECT_EQ(call("cudaPointerGetAttributes", &attributes, data), cudaSuccess);
  EXPECT_EQ(attributes.at<int>(0), cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.at<void*>(8), data);
  EXPECT_TRUE(attributes.is_intact());
  expect_working_memory();
}

TEST(Runtime12, HasTheStructuresOfCuda12) {
  Peer peer("structures_of_cuda_12");
  EXPECT_EQ(peer.wait(), "exit 0");
}

// The older forms work on every driver. For each newer form this role sends
// what it returned.
struct Newer {
  int advise, prefetch, dependency, node, stream_device;
};
ROLE(forms_of_cuda_12) {
  void* managed = nullptr;
  EXPECT_EQ(call("cudaMallocManaged", &managed, size_t{4096}, 1u), cudaSuccess);
  const int preferred = cudaMemAdviseSetPreferredLocation;
  EXPECT_EQ(call("cudaMemAdvise", managed, size_t{4096}, preferred, 0),
            cudaSuccess);
  EXPECT_EQ(
      call("cudaMemAdvise", managed, size_t{4096}, preferred, cudaCpuDeviceId),
      cudaSuccess);
  EXPECT_EQ(call("cudaMemAdvise", managed, size_t{4096}, preferred, 99),
            cudaErrorInvalidDevice);
  void* const no_stream = nullptr;
  EXPECT_EQ(call("cudaMemPrefetchAsync", managed, size_t{4096}, 0, no_stream),
            cudaSuccess);

  void *graph = nullptr, *first = nullptr, *second = nullptr;
  EXPECT_EQ(call("cudaGraphCreate", &graph, 0u), cudaSuccess);
  void** const none = nullptr;
  for (void** node : {&first, &second}) {
    EXPECT_EQ(call("cudaGraphAddEmptyNode", node, graph, none, size_t{0}),
              cudaSuccess);
  }
  size_t roots = 0;
  EXPECT_EQ(call("cudaGraphAddDependencies", graph, &first, &second, size_t{1}),
            cudaSuccess);
  EXPECT_EQ(call("cudaGraphGetRootNodes", graph, none, &roots), cudaSuccess);
  EXPECT_EQ(roots, 1u);

  Newer newer{};
  const cudaMemLocation here{cudaMemLocationTypeDevice, 0};
  newer.advise =
      call("cudaMemAdvise_v2", managed, size_t{4096}, preferred, here);
  newer.prefetch = call("cudaMemPrefetchAsync_v2", managed, size_t{4096}, here,
                        0u, no_stream);
  void* third = nullptr;
  EXPECT_EQ(call("cudaGraphAddEmptyNode", &third, graph, none, size_t{0}),
            cudaSuccess);
  newer.dependency = call("cudaGraphAddDependencies_v2", graph, &first, &third,
                          none, size_t{1});
  EXPECT_EQ(call("cudaGraphGetRootNodes", graph, none, &roots), cudaSuccess);
  // A refused dependency leaves the graph as it was.
  EXPECT_EQ(roots, newer.dependency == cudaSuccess ? 1u : 2u);
  void* fourth = nullptr;
  cudaGraphNodeParams empty{};
  empty.type = cudaGraphNodeTypeEmpty;
  newer.node =
      call("cudaGraphAddNode", &fourth, graph, none, size_t{0}, &empty);
  int device = -1;
  newer.stream_device = call("cudaStreamGetDevice", no_stream, &device);
  EXPECT_EQ(device, newer.stream_device == cudaSuccess ? 0 : -1);
  expect_working_memory();
  test.send(newer);
}

Newer newer_forms(const char* profile) {
  Peer peer("forms_of_cuda_12", {{"IPCLAB_PROFILE", profile}});
  const auto newer = peer.channel().receive<Newer>();
  EXPECT_EQ(peer.wait(), "exit 0");
  return newer;
}

// "CUDA Compatibility": an application of CUDA 12 runs on every driver of CUDA
// 12; a function that the driver lacks returns
// cudaErrorCallRequiresNewerDriver.
TEST(Runtime12, RefusesWhatItsDriverLacks) {
  Newer newer = newer_forms("driver-525");
  EXPECT_EQ(newer.advise, kNewerDriver);
  EXPECT_EQ(newer.prefetch, kNewerDriver);
  EXPECT_EQ(newer.dependency, kNewerDriver);
  EXPECT_EQ(newer.node, kNewerDriver);
  EXPECT_EQ(newer.stream_device, kNewerDriver);
  newer = newer_forms("driver-535");
  EXPECT_EQ(newer.advise, cudaSuccess);
  EXPECT_EQ(newer.prefetch, cudaSuccess);
  EXPECT_EQ(newer.dependency, kNewerDriver);
  EXPECT_EQ(newer.node, cudaSuccess);
  EXPECT_EQ(newer.stream_device, kNewerDriver);
  newer = newer_forms("driver-550");
  EXPECT_EQ(newer.dependency, cudaSuccess);
  EXPECT_EQ(newer.stream_device, kNewerDriver);
  EXPECT_EQ(newer_forms("driver-570").stream_device, cudaSuccess);
  EXPECT_EQ(newer_forms("driver-580").stream_device, cudaSuccess);
}

struct Found {
  int code, status;
  void* function;
};
Found find(const char* name, int version) {
  Found found{};
  CUdriverProcAddressQueryResult status{};
  found.code = cuGetProcAddress(name, &found.function, version, 0, &status);
  found.status = status;
  EXPECT_EQ(found.function != nullptr, found.code == CUDA_SUCCESS) << name;
  return found;
}

ROLE(driver_of_cuda_12_0) {
  int version = 0;
  EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, 12000);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  // By name: the form of CUDA 12.0, nothing newer, and no newer version.
  EXPECT_EQ(find("cuMemAlloc", 12000).code, CUDA_SUCCESS);
  EXPECT_EQ(find("cuMemAlloc", 12000).function,
            dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  EXPECT_EQ(find("cuMemAdvise", 12000).function,
            dlsym(RTLD_DEFAULT, "cuMemAdvise"));
  EXPECT_EQ(find("cuCtxCreate", 12000).function,
            dlsym(RTLD_DEFAULT, "cuCtxCreate_v3"));
  EXPECT_EQ(find("cuStreamGetDevice", 12000).code, CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(find("cuStreamGetDevice", 12000).status,
            CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(find("cuMemGetMemPool", 12000).code, CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(find("cuMemAdvise_v2", 12000).code, CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(find("cuMemAlloc", 12010).code, CUDA_ERROR_INVALID_VALUE);
  // A direct call changes nothing.
  CUmemoryPool pool = reinterpret_cast<CUmemoryPool>(&version);
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  EXPECT_EQ(static_cast<int>(cuMemGetMemPool(&pool, &location,
                                             CU_MEM_ALLOCATION_TYPE_PINNED)),
            kNewerDriver);
  EXPECT_EQ(pool, reinterpret_cast<CUmemoryPool>(&version));
  // Attributes, handle types and kinds of pools.
  int value = -1;
  EXPECT_EQ(
      cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0),
      CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  wanted.location = location;
  EXPECT_EQ(cuMemPoolCreate(&pool, &wanted), CUDA_ERROR_INVALID_VALUE);
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  wanted.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_EQ(cuMemPoolCreate(&pool, &wanted), CUDA_ERROR_INVALID_VALUE);
  wanted.location = location;
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  EXPECT_EQ(cuMemPoolCreate(&pool, &wanted), CUDA_ERROR_INVALID_VALUE);
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  EXPECT_EQ(cuMemPoolCreate(&pool, &wanted), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  // The runtime of CUDA 13 does not start.
  void* data = &value;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorInsufficientDriver);
  EXPECT_EQ(data, &value);
  expect_working_memory();
}

TEST(OldDriver, HasTheFunctionsOfItsVersionAndNoOthers) {
  Peer peer("driver_of_cuda_12_0", {{"IPCLAB_PROFILE", "driver-525"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(older_forms_by_name) {
  EXPECT_EQ(find("cuMemAdvise", 12000).function,
            dlsym(RTLD_DEFAULT, "cuMemAdvise"));
  EXPECT_EQ(find("cuMemAdvise", 12020).function,
            dlsym(RTLD_DEFAULT, "cuMemAdvise_v2"));
  EXPECT_EQ(find("cuStreamGetDevice", 12000).code, CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(find("cuStreamGetDevice", 12000).status,
            CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(find("cuStreamGetDevice", 12080).code, CUDA_SUCCESS);
}

TEST(OldDriver, ANewDriverHasTheOlderForms) {
  Peer peer("older_forms_by_name");
  EXPECT_EQ(peer.wait(), "exit 0");
}

}  // namespace
