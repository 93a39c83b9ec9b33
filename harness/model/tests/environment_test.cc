// SPDX-License-Identifier: Apache-2.0
// Profiles, CUDA_VISIBLE_DEVICES, fork, limits, and names that do not exist.
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "../ptx/tests/processor.h"
#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

using Environment = std::map<std::string, std::string>;

struct Description {
  int start;  // the result of cudaGetDeviceCount
  int gpus;
  int peers;       // whether the first two GPUs are peers
  int ipc_events;  // the attribute cudaDevAttrIpcEventSupport
  int get_memory, create_event;
  int first_on_bus;
  char name[64];
};

ROLE(describe) {
  Description seen{};
  seen.start = cudaGetDeviceCount(&seen.gpus);
  if (seen.start == cudaSuccess) {
    cudaDeviceCanAccessPeer(&seen.peers, 0, 1);
    cudaGetLastError();
    cudaDeviceGetAttribute(&seen.ipc_events, cudaDevAttrIpcEventSupport, 0);
    cudaIpcMemHandle_t handle;
    seen.get_memory = cudaIpcGetMemHandle(&handle, allocate<int>(1));
    cudaEvent_t event;
    seen.create_event = cudaEventCreateWithFlags(
        &event, cudaEventInterprocess | cudaEventDisableTiming);
    cudaDeviceProp properties;
    EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    EXPECT_EQ(properties.ipcEventSupported, seen.ipc_events);
    seen.first_on_bus = properties.pciDeviceID;
    std::memcpy(seen.name, properties.name, sizeof seen.name - 1);
  }
  test.send(seen);
}

Description describe(const Environment& environment) {
  Peer peer("describe", environment);
  const auto seen = peer.channel().receive<Description>();
  EXPECT_EQ(peer.wait(), "exit 0");
  return seen;
}

TEST(Profile, EachOneIsWhatItsRowSays) {
  struct Row {
    const char* name;
    int gpus, peers, ipc_events, get_memory, create_event;
  };
  constexpr int kNone = cudaErrorNotSupported;
  for (const Row& row :
       {Row{"one-gpu", 1, 0, 1, 0, 0}, Row{"two-gpus", 2, 1, 1, 0, 0},
        Row{"four-gpus", 4, 1, 1, 0, 0}, Row{"eight-gpus", 8, 1, 1, 0, 0},
        Row{"few-peers", 4, 1, 1, 0, 0}, Row{"no-peer", 2, 0, 1, 0, 0},
        Row{"tegra", 1, 0, 1, kNone, 0}, Row{"no-ipc", 1, 0, 0, kNone, 0}}) {
    SCOPED_TRACE(row.name);
    const Description seen = describe({{"IPCLAB_PROFILE", row.name}});
    EXPECT_EQ(seen.start, cudaSuccess);
    EXPECT_EQ(seen.gpus, row.gpus);
    EXPECT_EQ(seen.peers, row.peers);
    EXPECT_EQ(seen.ipc_events, row.ipc_events);
    EXPECT_EQ(seen.get_memory, row.get_memory);
    EXPECT_EQ(seen.create_event, row.create_event);
    EXPECT_STREQ(seen.name, "ipclab reference model");
  }
  EXPECT_EQ(describe({{"IPCLAB_PROFILE", "driver-570"}}).start,
            cudaErrorInsufficientDriver);
}

ROLE(ask_for_capability) {
  cudaDeviceProp properties;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  test.send<int>(properties.major * 10 + properties.minor);
  test.send<int>(static_cast<int>(properties.sharedMemPerBlockOptin >> 10));
  test.send<int>(properties.maxThreadsPerMultiProcessor);
}

TEST(Profile, HasAComputeCapability) {
  struct Row {
    const char* name;
    int capability, shared, threads;
  };
  for (const Row& row :
       {Row{"two-gpus", 90, 227, 2048}, Row{"compute-12.0", 120, 99, 1536}}) {
    SCOPED_TRACE(row.name);
    Peer peer("ask_for_capability", {{"IPCLAB_PROFILE", row.name}});
    EXPECT_EQ(peer.channel().receive<int>(), row.capability);
    EXPECT_EQ(peer.channel().receive<int>(), row.shared);
    EXPECT_EQ(peer.channel().receive<int>(), row.threads);
    EXPECT_EQ(peer.wait(), "exit 0");
  }
}

ROLE(call_of_a_newer_runtime) {
  int driver = 0, runtime = 0;
  EXPECT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  EXPECT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  EXPECT_LT(driver, runtime);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  using Call = cudaError_t(cudaGraph_t, unsigned*);
  unsigned id = 0;
  const auto call =
      reinterpret_cast<Call*>(dlsym(RTLD_DEFAULT, "cudaGraphGetId"));
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call(nullptr, &id), cudaErrorCallRequiresNewerDriver);
  EXPECT_EQ(cudaGetLastError(), cudaErrorCallRequiresNewerDriver);
}

TEST(Profile, ANewerRuntimeRefusesWhatTheDriverLacks) {
  Peer peer("call_of_a_newer_runtime", {{"IPCLAB_PROFILE", "newer-runtime"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST(Profile, VisibleDevicesChooseAndReorder) {
  const auto visible = [](const char* list) {
    return describe(
        {{"IPCLAB_PROFILE", "four-gpus"}, {"CUDA_VISIBLE_DEVICES", list}});
  };
  EXPECT_EQ(visible("2,0").gpus, 2);
  EXPECT_EQ(visible("2,0").first_on_bus, 2);
  EXPECT_EQ(visible("1,9,0").gpus, 1);
  EXPECT_EQ(visible("-1").start, cudaErrorNoDevice);
  EXPECT_EQ(visible("").start, cudaErrorNoDevice);
  EXPECT_EQ(visible("GPU-nonsense").start, cudaErrorNoDevice);
}

ROLE(abort_at_first_use) {
  int count = 0;
  cudaGetDeviceCount(&count);
}

TEST(Environment, UnknownNamesAbort) {
  for (const char* variable : {"IPCLAB_PROFILE", "IPCLAB_CHOICE"}) {
    Peer peer("abort_at_first_use",
              {{variable, "no-such-name"}, {"ASAN_OPTIONS", "handle_abort=0"}});
    EXPECT_EQ(peer.wait(), "signal 6") << variable;
  }
}

ROLE(fork_after_init) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const pid_t child = fork();
  if (child == 0) {
    void* pointer = nullptr;
    const bool refused =
        cudaMalloc(&pointer, 4) == cudaErrorInitializationError &&
        cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
}

TEST(Environment, CudaDoesNotSurviveFork) {
  Peer peer("fork_after_init");
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(reset_in_own_context) {
  int* const of_primary = allocate<int>(4);
  CUcontext own = nullptr;
  EXPECT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  CUdeviceptr of_own = 0;
  EXPECT_EQ(cuMemAlloc(&of_own, 4), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(of_own), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaFree(of_primary), cudaSuccess);
}

// "If a non-primary CUcontext is current to the thread, cudaDeviceReset() will
// destroy only the internal CUDA RT state for that CUcontext."
// (cudaDeviceReset)
TEST(Environment, AResetInAnotherContextKeepsTheDriversObjects) {
  Peer peer("reset_in_own_context");
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(few_descriptors) {
  // Under sanitizers, UBSan opens a pipe when it checks the type of an object
  // for the first time. At this place it can still open a pipe.
  void* first = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 2 << 20), cudaSuccess);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  const rlimit limit{20, 20};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  cudaError_t code = cudaSuccess;
  for (int i = 0; i < 40 && code == cudaSuccess; ++i) {
    void* pointer = nullptr;
    code = cudaMalloc(&pointer, 2 << 20);
  }
  EXPECT_EQ(code, cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);  // gives the descriptors back
}

TEST(Environment, NoDescriptorsIsAnErrorCode) {
  Peer peer("few_descriptors");
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST(Environment, TheLoaderTakesTheInterpreterForThisProcessor) {
#ifdef IPCLAB_TWO_INTERPRETERS
  Dl_info info;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&cuInit), &info), 0);
  const bool newer =
      std::strstr(info.dli_fname, "/glibc-hwcaps/x86-64-v3/") != nullptr;
  EXPECT_EQ(newer, ipclab::ptx::testing::runs_x86_64_v3())
      << info.dli_fname << " (a C library before 2.33 does not look there)";
#else
  GTEST_SKIP() << "there is one interpreter";
#endif
}

// ---- two GPUs

ROLE(peer_access) {
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  int* data = allocate<int>(1);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  int* copy = allocate<int>(1);
  EXPECT_EQ(cudaMemcpy(copy, data, 4, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0),
            cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, data, 5), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(0), cudaSuccess);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, data, 6), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  // The fault does not affect the other device.
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(read_back(data, 1)[0], 5);
}

TEST(TwoGpus, AccessFollowsPeerAccess) {
  Peer peer("peer_access", {{"IPCLAB_PROFILE", "two-gpus"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(export_from_gpu_one) {
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  int* data = allocate<int>(1);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, data, 31), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  test.send(memory_handle(data));
  EXPECT_EQ(test.receive<int>(), 1);
}

struct Opened {
  int code, value, device;
};
ROLE(import_on_gpu_zero) {
  void* data = nullptr;
  Opened opened{};
  opened.code = cudaIpcOpenMemHandle(&data, test.receive<cudaIpcMemHandle_t>(),
                                     cudaIpcMemLazyEnablePeerAccess);
  if (opened.code == cudaSuccess) {
    int* word = shared_word();
    EXPECT_EQ(launch("read_one", 1, 1, nullptr, static_cast<int*>(data), word),
              CUDA_SUCCESS);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    opened.value = *word;
    cudaPointerAttributes attributes;
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, data), cudaSuccess);
    opened.device = attributes.device;
    EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
  }
  test.send(opened);
}

Opened open_across(const char* profile, const char* visible) {
  Peer exporter("export_from_gpu_one", {{"IPCLAB_PROFILE", profile}});
  Peer importer("import_on_gpu_zero", {{"IPCLAB_PROFILE", profile},
                                       {"CUDA_VISIBLE_DEVICES", visible}});
  importer.channel().send(exporter.channel().receive<cudaIpcMemHandle_t>());
  const auto opened = importer.channel().receive<Opened>();
  EXPECT_EQ(importer.wait(), "exit 0");
  exporter.channel().send(1);
  EXPECT_EQ(exporter.wait(), "exit 0");
  return opened;
}

TEST(TwoGpus, ImportAcrossGpus) {
  Opened opened = open_across("two-gpus", "0,1");
  EXPECT_EQ(opened.code, cudaSuccess);
  EXPECT_EQ(opened.value, 31);
  EXPECT_EQ(opened.device, 1);
  opened = open_across("two-gpus", "0");  // the GPU is hidden from the importer
  EXPECT_EQ(opened.code, cudaSuccess);
  EXPECT_EQ(opened.value, 31);
  opened = open_across("two-gpus", "1");  // this is GPU 0 of the importer
  EXPECT_EQ(opened.code, cudaSuccess);
  EXPECT_EQ(opened.value, 31);
  EXPECT_EQ(opened.device, 0);
  EXPECT_EQ(open_across("no-peer", "0,1").code, cudaErrorMapBufferObjectFailed);
}

}  // namespace
