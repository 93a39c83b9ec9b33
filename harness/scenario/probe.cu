// Asks the machine what it can share: for each capability the attribute, and in
// most cases a small real attempt. An attribute can promise something that
// fails in a container, in WSL or without an IMEX channel.
//
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "harness/scenario/contexts.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/endpoint.h"
#include "harness/scenario/json.h"
#include "harness/scenario/leaks.h"

namespace ipclab {
namespace {

constexpr char kModelName[] = "ipclab reference model";

// The result of an attempt.
struct Attempt {
  std::string call;
  std::string code;
  bool good;
};

Attempt tried(const char* call, cudaError_t code) {
  cudaGetLastError();
  return {call, name_of(code), code == cudaSuccess};
}

Attempt tried(const char* call, CUresult code) {
  return {call, name_of(code), code == CUDA_SUCCESS};
}

struct Question {
  const char* name;
  const char* attribute;     // as in the documentation
  std::function<int()> ask;  // its value on GPU 0; -1: not known
  std::function<Attempt()> attempt;
  const char* meaning;  // what a reader can do with it
};

int ask(cudaDeviceAttr which) {
  int value = -1;
  if (cudaDeviceGetAttribute(&value, which, 0) != cudaSuccess) value = -1;
  cudaGetLastError();
  return value;
}

int ask(CUdevice_attribute which) {
  const auto get = reinterpret_cast<decltype(&cuDeviceGetAttribute)>(
      driver_entry("cuDeviceGetAttribute"));
  int value = -1;
  if (get == nullptr || get(&value, which, 0) != CUDA_SUCCESS) value = -1;
  return value;
}

Attempt try_legacy_memory() {
  void* memory = nullptr;
  cudaError_t code = cudaMalloc(&memory, 1);
  if (code != cudaSuccess) return tried("cudaMalloc", code);
  cudaIpcMemHandle_t handle;
  code = cudaIpcGetMemHandle(&handle, memory);
  cudaFree(memory);
  return tried("cudaIpcGetMemHandle", code);
}

Attempt try_legacy_events() {
  cudaEvent_t event = nullptr;
  cudaError_t code = cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming);
  if (code != cudaSuccess) return tried("cudaEventCreateWithFlags", code);
  cudaIpcEventHandle_t handle;
  code = cudaIpcGetEventHandle(&handle, event);
  cudaEventDestroy(event);
  return tried("cudaIpcGetEventHandle", code);
}

Attempt try_vmm(CUmemAllocationHandleType type,
                CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}) {
  const auto granularity =
      reinterpret_cast<decltype(&cuMemGetAllocationGranularity)>(
          driver_entry("cuMemGetAllocationGranularity"));
  const auto create =
      reinterpret_cast<decltype(&cuMemCreate)>(driver_entry("cuMemCreate"));
  const auto release =
      reinterpret_cast<decltype(&cuMemRelease)>(driver_entry("cuMemRelease"));
  const auto export_to =
      reinterpret_cast<decltype(&cuMemExportToShareableHandle)>(
          driver_entry("cuMemExportToShareableHandle"));
  if (granularity == nullptr || create == nullptr || release == nullptr ||
      export_to == nullptr)
    return {"cuMemCreate", "not in this driver", false};

  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = location;
  wanted.requestedHandleTypes = type;
  size_t size = 0;
  CUresult code = granularity(&size, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (code != CUDA_SUCCESS) return tried("cuMemGetAllocationGranularity", code);
  CUmemGenericAllocationHandle memory;
  code =
      until_fabric_is_ready([&] { return create(&memory, size, &wanted, 0); });
  if (code != CUDA_SUCCESS) return tried("cuMemCreate", code);
  Attempt result = tried("cuMemCreate", code);
  if (type != CU_MEM_HANDLE_TYPE_NONE) {
    union {
      int descriptor;
      CUmemFabricHandle fabric;
    } handle;
    code = until_fabric_is_ready(
        [&] { return export_to(&handle, memory, type, 0); });
    result = tried("cuMemExportToShareableHandle", code);
    if (code == CUDA_SUCCESS &&
        type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
      close(handle.descriptor);
  }
  release(memory);
  return result;
}

// Tries each NUMA node that this machine has: a node without processors or
// memory, a cpuset or a container may refuse one of them.
Attempt try_numa_nodes(Attempt (*try_node)(int node)) {
  Attempt last = {"NUMA", "no NUMA node", false};
  for (int node = 0; node < 1024; ++node) {
    const std::string path =
        "/sys/devices/system/node/node" + std::to_string(node);
    if (node != 0 && access(path.c_str(), F_OK) != 0) continue;
    last = try_node(node);
    if (!last.good) {
      last.call += " on NUMA node " + std::to_string(node);
      return last;
    }
  }
  return last;
}

Attempt try_endpoint(CUlogicalEndpointProp wanted) {
  if (newer_entry("cuFabricCpyBatchAsync") == nullptr)
    return {"cuFabricCpyBatchAsync", "not in this driver", false};
  int gpus = 0;
  cudaGetDeviceCount(&gpus);
  if (device_that_reaches_endpoints() >= gpus)
    return {"cuFabricCpyBatchAsync",
            "the only GPU may not use its own endpoint", false};
  cuuint64_t alignment = 0, most = 0;
  CUresult code = NEWER(cuLogicalEndpointGetLimits)(&alignment, &most, &wanted);
  if (code != CUDA_SUCCESS) return tried("cuLogicalEndpointGetLimits", code);
  CUlogicalEndpointId id = 0;
  code = NEWER(cuLogicalEndpointIdReserve)(&id, 1);
  if (code != CUDA_SUCCESS) return tried("cuLogicalEndpointIdReserve", code);
  wanted.size = alignment;
  code = NEWER(cuLogicalEndpointCreate)(id, &wanted);
  if (code == CUDA_SUCCESS) NEWER(cuLogicalEndpointDestroy)(id);
  NEWER(cuLogicalEndpointIdRelease)(id, 1);
  return tried("cuLogicalEndpointCreate", code);
}

Attempt try_pools() {
  void* memory = nullptr;
  const cudaError_t code = cudaMallocAsync(&memory, 1, nullptr);
  if (code == cudaSuccess) {
    cudaFreeAsync(memory, nullptr);
    cudaStreamSynchronize(nullptr);
  }
  return tried("cudaMallocAsync", code);
}

Attempt try_pool_fd() {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  cudaMemPool_t pool = nullptr;
  cudaError_t code = cudaMemPoolCreate(&pool, &wanted);
  if (code != cudaSuccess) return tried("cudaMemPoolCreate", code);
  int descriptor = -1;
  code = cudaMemPoolExportToShareableHandle(
      &descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0);
  if (code == cudaSuccess) close(descriptor);
  cudaMemPoolDestroy(pool);
  return tried("cudaMemPoolExportToShareableHandle", code);
}

Attempt try_host_pool(cudaMemLocation location) {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = location;
  cudaMemPool_t pool = nullptr;
  const cudaError_t code = cudaMemPoolCreate(&pool, &wanted);
  if (code == cudaSuccess) cudaMemPoolDestroy(pool);
  return tried("cudaMemPoolCreate", code);
}

Attempt try_peer_access() {
  int gpus = 0;
  cudaGetDeviceCount(&gpus);
  if (gpus < 2) return {"cudaGetDeviceCount", "only one GPU", false};
  const cudaError_t code = cudaDeviceEnablePeerAccess(1, 0);
  if (code == cudaSuccess) cudaDeviceDisablePeerAccess(1);
  return tried("cudaDeviceEnablePeerAccess", code);
}

int ask_peer_access() {
  int gpus = 0, can = 0;
  if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus >= 2)
    cudaDeviceCanAccessPeer(&can, 0, 1);
  cudaGetLastError();
  return can;
}

// The variable that tells a probe to use the GPU once and to end.
constexpr char kBeside[] = "IPCLAB_PROBE_BESIDE";

// Starts this program again, as a second process that uses the GPU once, also
// where /proc is missing. Returns -1 if it does not start.
pid_t start_beside() {
  setenv(kBeside, "1", 1);
  auto* const program = reinterpret_cast<char*>(getauxval(AT_EXECFN));
  char flag[] = "--ipclab_probe";
  char* arguments[] = {program, flag, nullptr};
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, program, nullptr, nullptr, arguments, environ);
  unsetenv(kBeside);
  return error == 0 ? pid : -1;
}

// What the second process does.
bool use_once() {
  void* memory = nullptr;
  return cudaMalloc(&memory, 1) == cudaSuccess &&
         cudaMemset(memory, 1, 1) == cudaSuccess &&
         cudaDeviceSynchronize() == cudaSuccess;
}

// Imports memory of cuMemCreate as external memory, and destroys the import.
Attempt try_external_memory() {
  constexpr char kName[] = "cuImportExternalMemory";
  try {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted{};
    wanted.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    // A driver may have closed it even if it refuses the import, so nobody
    // else closes it.
    wanted.handle.fd = chunk.descriptor().release();
    wanted.size = bytes;
    CUexternalMemory memory = nullptr;
    const CUresult code = DRIVER(cuImportExternalMemory)(&memory, &wanted);
    if (code == CUDA_SUCCESS) DRIVER(cuDestroyExternalMemory)(memory);
    return tried(kName, code);
  } catch (const CallFailed& failed) {
    cudaGetLastError();
    return {failed.call, failed.seen, false};
  }
}

Attempt try_managed() {
  void* memory = nullptr;
  const cudaError_t code = cudaMallocManaged(&memory, 1);
  if (code == cudaSuccess) cudaFree(memory);
  return tried("cudaMallocManaged", code);
}

// Is the work of another stream and of another process done while kernels hold
// four streams? Holds them for a few seconds at most.
Attempt try_progress() {
  using std::chrono::steady_clock;
  constexpr double kHeldSeconds = 6;
  constexpr auto kLimit = std::chrono::seconds(5);
  const auto wait_until = [&](const std::function<bool()>& done) {
    const auto deadline = steady_clock::now() + kLimit;
    while (!done() && steady_clock::now() < deadline) usleep(1000);
    return done();
  };
  try {
    const DeviceBuffer memory(1);
    const Stream held[4], free;
    Latch latch;
    for (const Stream& stream : held) latch.hold(stream, kHeldSeconds);
    CALL(cudaMemsetAsync(memory.data, 1, 1, free));
    if (!wait_until([&] { return cudaStreamQuery(free) == cudaSuccess; }))
      return {"a fifth stream", "waits for four held streams", false};
    const pid_t other = start_beside();
    if (other == -1) return {"a second process", "does not start", false};
    int status = -1;
    pid_t ended = 0;
    wait_until([&] {
      if (ended == 0) ended = waitpid(other, &status, WNOHANG);
      return ended != 0;
    });
    if (ended == 0) {
      kill(other, SIGKILL);
      waitpid(other, &status, 0);
    }
    remove_driver_names({other});
    if (ended == 0)
      return {"a second process", "waits for kernels of the first", false};
    if (status != 0) return {"a second process", "cannot use the GPU", false};
    for (const Stream& stream : held)
      if (cudaStreamQuery(stream) != cudaErrorNotReady)
        return {"a kernel", "does not hold its stream", false};
    cudaGetLastError();
    return {"work beside four held streams", "cudaSuccess", true};
  } catch (const CallFailed& failed) {
    cudaGetLastError();
    return {failed.call, failed.seen, false};
  }
}

int ask_version() {
  int version = -1;
  if (cudaDriverGetVersion(&version) != cudaSuccess) version = -1;
  return version;
}

Attempt try_checkpoints() {
  constexpr char kName[] = "cuCheckpointProcessGetState";
  const auto get = reinterpret_cast<decltype(&cuCheckpointProcessGetState)>(
      newer_entry(kName));
  if (get == nullptr) return {kName, "not in this driver", false};
  CUprocessState state;
  return tried(kName, get(getpid(), &state));
}

Attempt try_context_events() {
  constexpr char kName[] = "cuCtxRecordEvent";
  const auto record =
      reinterpret_cast<decltype(&cuCtxRecordEvent)>(newer_entry(kName));
  if (record == nullptr) return {kName, "not in this driver", false};
  const SharedEvent event(cudaEventDisableTiming);
  return tried(kName, record(primary_context(), event));
}

Attempt try_green_contexts() {
  constexpr char kName[] = "cuGreenCtxRecordEvent";
  const auto record =
      reinterpret_cast<decltype(&cuGreenCtxRecordEvent)>(newer_entry(kName));
  // The last function that the tests need came with CUDA 12.5.
  if (record == nullptr || newer_entry("cuGreenCtxStreamCreate") == nullptr)
    return {"cuGreenCtxStreamCreate", "not in this driver", false};
  try {
    const GreenContext green;
    const SharedEvent event(cudaEventDisableTiming);
    return tried(kName, record(green, event));
  } catch (const CallFailed& failed) {
    cudaGetLastError();
    return {failed.call, failed.seen, false};
  }
}

// An answer that needs no attempt.
Attempt attribute_alone() { return {"none needed", "cudaSuccess", true}; }

bool has_mig_name() {
  cudaDeviceProp properties;
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess &&
         std::strstr(properties.name, "MIG") != nullptr;
}

const std::vector<Question>& questions() {
  static const std::vector<Question> all = {
      {"legacy_memory", "cudaDevAttrIpcEventSupport",
       [] { return ask(cudaDevAttrIpcEventSupport); }, try_legacy_memory,
       "lend memory of cudaMalloc to another process"},
      {"legacy_events", "cudaDevAttrIpcEventSupport",
       [] { return ask(cudaDevAttrIpcEventSupport); }, try_legacy_events,
       "order GPU work of two processes"},
      {"vmm", "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
       [] {
         return ask(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
       },
       [] { return try_vmm(CU_MEM_HANDLE_TYPE_NONE); },
       "map memory where and how you like"},
      {"vmm_fd",
       "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
       [] {
         return ask(
             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
       },
       [] { return try_vmm(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); },
       "share such memory as a descriptor"},
      {"fabric", "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED",
       [] { return ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED); },
       [] { return try_vmm(CU_MEM_HANDLE_TYPE_FABRIC); },
       "share such memory between nodes, by 64 bytes"},
      {"endpoints", "CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED",
       [] {
         return ask(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED);
       },
       [] { return try_endpoint(unicast_on(0, 1)); },
       "copy to memory of other nodes, by a number"},
      {"endpoint_teams",
       "CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED",
       [] {
         return ask(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED);
       },
       [] { return try_endpoint(multicast_of(1, 1)); },
       "copy to memory of several GPUs at once"},
      {"pools", "cudaDevAttrMemoryPoolsSupported",
       [] { return ask(cudaDevAttrMemoryPoolsSupported); }, try_pools,
       "allocate in stream order"},
      {"pool_fd", "cudaDevAttrMemoryPoolSupportedHandleTypes",
       [] { return ask(cudaDevAttrMemoryPoolSupportedHandleTypes); },
       try_pool_fd, "share a pool as a descriptor"},
      {"host_vmm",
       "CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
       [] {
         return ask(
             CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
       },
       [] {
         return try_vmm(CU_MEM_HANDLE_TYPE_NONE,
                        {CU_MEM_LOCATION_TYPE_HOST, 0});
       },
       "map host memory where you like; it cannot be shared"},
      {"numa_vmm",
       "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
       [] {
         return ask(
             CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
       },
       [] {
         return try_numa_nodes([](int node) {
           return try_vmm(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                          {CU_MEM_LOCATION_TYPE_HOST_NUMA, node});
         });
       },
       "the same on one NUMA node; a descriptor can share it"},
      {"host_pools", "CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED",
       [] { return ask(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED); },
       [] {
         return try_host_pool({cudaMemLocationTypeHost, 0});
       },
       "allocate host memory in stream order; it cannot be shared"},
      {"numa_pools", "cudaDevAttrHostNumaMemoryPoolsSupported",
       [] { return ask(cudaDevAttrHostNumaMemoryPoolsSupported); },
       [] {
         return try_numa_nodes([](int node) {
           return try_host_pool({cudaMemLocationTypeHostNuma, node});
         });
       },
       "the same on one NUMA node; a descriptor can share it"},
      {"dma_buf", "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED",
       [] { return ask(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED); },
       attribute_alone, "lend memory to drivers of other devices"},
      {"dma_buf_mmap", "CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED",
       [] { return ask(CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED); },
       attribute_alone, "lend memory to processes without CUDA"},
      {"external_memory",
       "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
       [] {
         return ask(
             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
       },
       try_external_memory, "import such memory as Vulkan's is imported"},
      {"peer_access", "cudaDeviceCanAccessPeer(0, 1)", ask_peer_access,
       try_peer_access, "GPU 0 reaches the memory of GPU 1"},
      {"managed", "cudaDevAttrManagedMemory",
       [] { return ask(cudaDevAttrManagedMemory); }, try_managed,
       "one address for host and device; legacy IPC refuses it"},
      {"tegra", "cudaDevAttrIntegrated",
       [] { return ask(cudaDevAttrIntegrated); }, attribute_alone,
       "an integrated GPU shares events, not memory"},
      {"progress", "cudaDevAttrConcurrentKernels",
       [] { return ask(cudaDevAttrConcurrentKernels); }, try_progress,
       "streams and processes make progress side by side"},
      {"checkpoints", "cuDriverGetVersion", ask_version, try_checkpoints,
       "suspend a process; one that shares memory: from R610 on"},
      {"context_events", "cuDriverGetVersion", ask_version, try_context_events,
       "record an event after the work of all streams of a context"},
      {"green_contexts", "cuDriverGetVersion", ask_version, try_green_contexts,
       "contexts with a part of a GPU; they share the primary context's "
       "memory"},
      {"mig", "MIG in the device's name", [] { return has_mig_name() ? 1 : 0; },
       attribute_alone, "IPC works inside one GPU instance only"},
  };
  return all;
}

std::string uuid_of(const cudaDeviceProp& properties) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x",
                  static_cast<unsigned char>(properties.uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte;
  }
  return text;
}

const char* compute_mode(int gpu) {
  int mode = -1;
  cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, gpu);
  switch (mode) {
    case cudaComputeModeDefault:
      return "default";
    case cudaComputeModeExclusiveProcess:
      return "exclusive process";
    case cudaComputeModeProhibited:
      return "prohibited";
    default:
      return "unknown";
  }
}

Json capability(const Question& question, const std::string& no_gpu) {
  if (!no_gpu.empty())
    return Json::object()
        .add("name", question.name)
        .add("available", false)
        .add("attribute", question.attribute)
        .add("attempt", "none")
        .add("reason", no_gpu)
        .add("meaning", question.meaning);
  const int value = question.ask();
  const Attempt attempt = question.attempt();
  const std::string attribute =
      std::string(question.attribute) + " = " + std::to_string(value);
  std::string reason;
  if (value <= 0) reason = attribute;
  if (!attempt.good)
    reason += (reason.empty() ? attribute + ", and yet " : "; ") +
              attempt.call + ": " + attempt.code;
  return Json::object()
      .add("name", question.name)
      .add("available", value > 0 && attempt.good)
      .add("attribute", attribute)
      .add("attempt", attempt.call + ": " + attempt.code)
      .add("reason", reason)
      .add("meaning", question.meaning);
}

// The file that holds the CUDA runtime of this process; empty if the runtime
// is linked into the program.
std::string runtime_library() {
  Dl_info info{};
  const void* call = dlsym(RTLD_DEFAULT, "cudaGetDeviceCount");
  return call != nullptr && dladdr(call, &info) != 0 ? info.dli_fname : "";
}

}  // namespace

void print_probe() {
  if (std::getenv(kBeside) != nullptr) std::_Exit(use_once() ? 0 : 1);
  int gpus = 0, driver = 0, runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  const cudaError_t code =
      until_fabric_is_ready([&] { return cudaGetDeviceCount(&gpus); });
  std::string no_gpu;
  if (code != cudaSuccess) {
    gpus = 0;
    no_gpu = name_of(code) + " (" + std::to_string(code) +
             "): " + cudaGetErrorString(code);
  } else if (gpus == 0) {
    no_gpu = "CUDA sees no GPU";
  } else if (const cudaError_t first =
                 until_fabric_is_ready([] { return cudaFree(nullptr); });
             first != cudaSuccess) {
    gpus = 0;
    no_gpu = "no context on GPU 0: " + name_of(first);
  }
  cudaGetLastError();

  bool model = false;
  Json devices = Json::array();
  for (int i = 0; i < gpus; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    model = model || std::strcmp(properties.name, kModelName) == 0;
    char pci[32] = "";
    cudaDeviceGetPCIBusId(pci, sizeof pci, i);
    devices.append(
        Json::object()
            .add("index", i)
            .add("name", properties.name)
            .add("uuid", uuid_of(properties))
            .add("pci", pci)
            .add("compute_capability", std::to_string(properties.major) + "." +
                                           std::to_string(properties.minor))
            .add("memory_bytes", properties.totalGlobalMem)
            .add("compute_mode", compute_mode(i))
            .add("mig", std::strstr(properties.name, "MIG") != nullptr));
  }
  Json peers = Json::array();
  for (int from = 0; from < gpus; ++from)
    for (int to = 0; to < gpus; ++to) {
      int can = 0;
      if (from != to) cudaDeviceCanAccessPeer(&can, from, to);
      if (can != 0)
        peers.append_raw("[" + std::to_string(from) + "," + std::to_string(to) +
                         "]");
    }
  Json capabilities = Json::array();
  capabilities.append(
      Json::object()
          .add("name", "gpus")
          .add("available", gpus > 0)
          .add("attribute", "cudaGetDeviceCount = " + std::to_string(gpus))
          .add("attempt", "cudaFree(nullptr)")
          .add("reason", no_gpu)
          .add("meaning", "run CUDA at all"));
  for (const Question& question : questions())
    capabilities.append(capability(question, no_gpu));

  const Json document =
      Json::object()
          .add("backend", gpus == 0 ? "none"
                          : model   ? "model"
                                    : "cuda")
          .add_or_null("driver", DeviceMemory::instance().driver())
          .add("driver_version", driver)
          .add_or_null("runtime_library", runtime_library())
          .add("runtime_version", runtime)
          .add("gpus", devices)
          .add("peers", peers)
          .add("mps", ask(cudaDevAttrMpsEnabled) == 1)
          .add("capabilities", capabilities);
  std::printf("%s\n", document.text().c_str());
}

// cuInit opens the GPUs. It makes no context: a context takes device memory,
// and in exclusive compute mode the whole GPU.
bool hold_gpus() {
  const auto init = reinterpret_cast<decltype(&cuInit)>(driver_entry("cuInit"));
  if (init == nullptr || init(0) != CUDA_SUCCESS) return false;
  std::printf("held\n");
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return true;
}

bool start_once() { return cudaFree(nullptr) == cudaSuccess; }

}  // namespace ipclab
