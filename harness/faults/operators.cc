// The systematic faults: most functions of calls.inc, each combined with the
// ways to be wrong that its arguments allow.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "harness/faults/engine/fault.h"

namespace ipclab::faults {
namespace {

constexpr int kRefusal = cudaErrorInvalidValue;
constexpr int kUndocumented = cudaErrorUnknown;
constexpr size_t kBlock = 2 << 20;         // bytes that each leak loses
constexpr size_t kMostLeaked = 512 << 20;  // bytes that all leaks lose at most
constexpr size_t kGuard = 8;               // additional bytes written

bool is_output(const Argument& argument) {
  return argument.role == kOut || argument.role == kShared;
}

// Bytes of the object that an output argument points to.
size_t size_of_output(Call& call, const Argument& argument) {
  if (argument.role == kOut) return argument.target;
  const Argument* const type = call.find(kOther);
  return type != nullptr && *static_cast<int*>(type->place) ==
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
             ? sizeof(int)
             : sizeof(CUmemFabricHandle);
}

unsigned char* output_of(const Argument& argument) {
  return *static_cast<unsigned char**>(argument.place);
}

// The values of a call's outputs before the call, to compare and to restore.
class Before {
 public:
  explicit Before(Call& call) : call_(call) {
    for (Argument& argument : call) {
      auto& bytes = bytes_.emplace_back();
      if (!is_output(argument) || output_of(argument) == nullptr) continue;
      const unsigned char* const at = output_of(argument);
      bytes.assign(at, at + size_of_output(call, argument));
    }
  }
  // Restores each output completely, or only the second half of it.
  void put_back(bool all) {
    size_t index = 0;
    for (Argument& argument : call_) {
      const auto& bytes = bytes_[index++];
      if (bytes.empty()) continue;
      const size_t from = all ? 0 : bytes.size() / 2;
      std::memcpy(output_of(argument) + from, bytes.data() + from,
                  bytes.size() - from);
    }
  }

 private:
  Call& call_;
  std::vector<std::vector<unsigned char>> bytes_;
};

// --- effects that are missing, doubled, partial ----------------------------

int noop(Call& call) {
  call.fired();
  return kSuccess;
}

int noop_second(Call& call) {
  static std::atomic<bool> again{false};
  if (!again.exchange(true)) return call.proceed();
  return noop(call);
}

int twice(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  call.fired();
  call.proceed();
  if (call.is_runtime()) cudaGetLastError();
  return code;
}

int first_part(Call& call) {
  size_t& bytes = call.value<size_t>(kBytes);
  const size_t whole = bytes;
  bytes /= 2;
  // Virtual memory management counts in granules.
  if (bytes >= kBlock) bytes -= bytes % kBlock;
  if (bytes == 0) bytes = whole;
  if (bytes != whole) call.fired();
  return call.proceed();
}

int all_but_last(Call& call) {
  size_t& bytes = call.value<size_t>(kBytes);
  if (bytes > 1) {
    --bytes;
    call.fired();
  }
  return call.proceed();
}

// The call also changes the byte after its memory.
int one_more(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto* const to = *static_cast<unsigned char**>(call.find(kPointer)->place);
  unsigned char* const after = to + call.value<size_t>(kBytes);
  cudaPointerAttributes known{};
  const bool on_device =
      cudaPointerGetAttributes(&known, after) == cudaSuccess &&
      known.type == cudaMemoryTypeDevice;
  if (on_device && cudaMemsetAsync(after, 0xA5, 1, private_stream()) == 0 &&
      cudaStreamSynchronize(private_stream()) == 0)
    call.fired();
  cudaGetLastError();
  return code;
}

// --- arguments that are ignored --------------------------------------------

int ignore_stream(Call& call) {
  cudaStream_t& stream = call.value<cudaStream_t>(kStream);
  if (stream != nullptr) {
    stream = nullptr;
    call.fired();
  }
  return call.proceed();
}

int ignore_flags(Call& call) {
  Argument& flags = *call.find(kFlags);
  static constexpr char kNone[8] = {};
  if (std::memcmp(flags.place, kNone, flags.size) != 0) {
    std::memset(flags.place, 0, flags.size);
    call.fired();
  }
  return call.proceed();
}

int ignore_device(Call& call) {
  int& device = call.value<int>(kDevice);
  if (device > 0) {
    device = 0;
    call.fired();
  }
  return call.proceed();
}

int ignore_pool(Call& call) {
  int device = 0;
  cudaMemPool_t standard = nullptr;
  cudaMemPool_t& pool = call.value<cudaMemPool_t>(kPool);
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetDefaultMemPool(&standard, device) == cudaSuccess &&
      pool != standard) {
    pool = standard;
    call.fired();
  }
  return call.proceed();
}

// The call acts on the first object of this kind that this process named.
template <Role role>
int first_object(Call& call) {
  static std::atomic<void*> first{nullptr};
  Argument& argument = *call.find(role);
  void*& object = *static_cast<void**>(argument.place);
  void* none = nullptr;
  if (object != nullptr && !first.compare_exchange_strong(none, object) &&
      object != first) {
    object = first;
    call.fired();
  }
  return call.proceed();
}

int first_gpu(Call& call) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device == 0)
    return call.proceed();
  cudaSetDevice(0);
  call.fired();
  const int code = call.proceed();
  cudaSetDevice(device);
  return code;
}

// --- order -----------------------------------------------------------------

bool is_captured(cudaStream_t stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return stream == nullptr ||
         DRIVER_CALL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// After this call, new work in `second` waits for the work in `first`.
void order(cudaStream_t first, cudaStream_t second) {
  cudaEvent_t event = nullptr;
  if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess)
    return;
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  cudaEventDestroy(event);
}

// The call does not wait for earlier work of its stream.
int early(Call& call) {
  cudaStream_t& stream = call.value<cudaStream_t>(kStream);
  const cudaStream_t own = stream;
  if (is_captured(own)) return call.proceed();
  call.fired();
  stream = private_stream();
  const int code = call.proceed();
  if (code == kSuccess && call.find(kEvent) == nullptr)
    order(private_stream(), own);
  return code;
}

void CUDART_CB wait_a_little(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
}

// Later work of the stream does not wait for the work of this call.
int late(Call& call) {
  using Launch = cudaError_t(cudaStream_t, cudaHostFn_t, void*);
  static const auto launch =
      reinterpret_cast<Launch*>(resolve_runtime("cudaLaunchHostFunc"));
  cudaStream_t& stream = call.value<cudaStream_t>(kStream);
  if (is_captured(stream) || launch == nullptr) return call.proceed();
  call.fired();
  order(stream, private_stream());
  launch(private_stream(), wait_a_little, nullptr);
  stream = private_stream();
  return call.proceed();
}

// The call waits for all work of the context before it does anything.
int blocks(Call& call) {
  if (call.find(kStream) != nullptr &&
      is_captured(call.value<cudaStream_t>(kStream)) &&
      call.value<cudaStream_t>(kStream) != nullptr)
    return call.proceed();
  call.fired();
  cudaDeviceSynchronize();
  return call.proceed();
}

// --- codes ------------------------------------------------------------------

int accepts(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotReady) return code;
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return kSuccess;
}

int other_code(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotReady || code == kUndocumented)
    return code;
  call.fired();
  return kUndocumented;
}

int refuses_second(Call& call) {
  static std::atomic<bool> again{false};
  if (!again.exchange(true)) return call.proceed();
  call.fired();
  return kRefusal;
}

int refuses_other_thread(Call& call) {
  static const int first = this_thread();
  if (this_thread() == first) return call.proceed();
  call.fired();
  return kRefusal;
}

// Refuses the call if another process has made such a call before.
int refuses_second_process(Call& call) {
  static const bool first =
      first_of_all_processes(std::string("first-") + call.function().canonical);
  if (first) return call.proceed();
  call.fired();
  return kRefusal;
}

int forgets_error(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess && code != cudaErrorNotReady && call.is_runtime()) {
    call.fired();
    cudaGetLastError();
  }
  return code;
}

int leaves_error(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && call.is_runtime()) {
    call.fired();
    cudaIpcCloseMemHandle(nullptr);  // refused; the runtime keeps the code
  }
  return code;
}

// After a refusal by the chosen function, the context is unusable.
int sticky(Call& call) {
  static std::atomic<bool> poisoned{false};
  if (poisoned && !call.is("cudaGetLastError")) {
    call.fired();
    return cudaErrorIllegalAddress;
  }
  const int code = call.proceed();
  const std::string chosen = chosen_function();
  if (code != kSuccess && code != cudaErrorNotReady &&
      (call.is(chosen.c_str()) || chosen == call.function().name))
    poisoned = true;
  return code;
}

// --- results ---------------------------------------------------------------

int result_unwritten(Call& call) {
  Before before(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  before.put_back(true);
  call.fired();
  return code;
}

int result_half_written(Call& call) {
  Before before(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  before.put_back(false);
  call.fired();
  return code;
}

int result_too_long(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  for (Argument& argument : call) {
    if (!is_output(argument) || output_of(argument) == nullptr) continue;
    std::memset(output_of(argument) + size_of_output(call, argument), 0xA5,
                kGuard);
    call.fired();
  }
  return code;
}

// Each call returns the result of the first call.
int result_of_first(Call& call) {
  static std::mutex mutex;
  static auto& first = *new std::map<size_t, std::vector<unsigned char>>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  size_t index = 0;
  for (Argument& argument : call) {
    const size_t at = index++;
    unsigned char* const output =
        is_output(argument) ? output_of(argument) : nullptr;
    if (output == nullptr) continue;
    const size_t size = size_of_output(call, argument);
    auto& known = first[at];
    if (known.empty()) {
      known.assign(output, output + size);
    } else if (known.size() == size &&
               std::memcmp(known.data(), output, size) != 0) {
      std::memcpy(output, known.data(), size);
      call.fired();
    }
  }
  return code;
}

// --- leaks -----------------------------------------------------------------

int leaks_memory(Call& call) {
  static std::atomic<size_t> lost{0};
  const int code = call.proceed();
  if (code != kSuccess || lost >= kMostLeaked) return code;
  void* block = nullptr;
  if (cudaMalloc(&block, kBlock) != cudaSuccess) {
    cudaGetLastError();
    return code;
  }
  lost += kBlock;
  call.fired();
  return code;
}

int leaks_addresses(Call& call) {
  static std::atomic<int> times{0};
  const int code = call.proceed();
  if (code != kSuccess || ++times > 4096) return code;
  static_cast<void>(mmap(nullptr, 64 << 20, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  call.fired();
  return code;
}

int leaks_descriptors(Call& call) {
  static std::atomic<int> times{0};
  const int code = call.proceed();
  if (code != kSuccess || ++times > 4096) return code;
  // A kind of descriptor that drivers also open for their own use.
  if (eventfd(0, EFD_CLOEXEC) >= 0) call.fired();
  return code;
}

// --- the functions that can be wrong in each way ---------------------------

// Made at compile time, because the fault is chosen before other objects exist.
using Names = std::initializer_list<const char*>;

bool has(const Function& function, Role role) {
  return std::strchr(function.roles, role) != nullptr;
}
bool writes_result(const Function& function) {
  return has(function, kOut) || has(function, kShared);
}
bool has_name(Names names, const char* wanted) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return std::strcmp(name, wanted) == 0;
  });
}
bool is_one_of(const Function& function, Names names) {
  return has_name(names, function.canonical);
}

// Functions that export, open, import or close what processes share.
constexpr Names kSharing = {"cudaIpcGetMemHandle",
                            "cudaIpcOpenMemHandle",
                            "cudaIpcCloseMemHandle",
                            "cudaIpcGetEventHandle",
                            "cudaIpcOpenEventHandle",
                            "cuMemExportToShareableHandle",
                            "cuMemImportFromShareableHandle",
                            "cudaMemPoolExportToShareableHandle",
                            "cudaMemPoolImportFromShareableHandle",
                            "cudaMemPoolExportPointer",
                            "cudaMemPoolImportPointer"};
constexpr Names kImports = {"cudaIpcOpenMemHandle", "cudaIpcOpenEventHandle",
                            "cuMemImportFromShareableHandle",
                            "cudaMemPoolImportFromShareableHandle",
                            "cudaMemPoolImportPointer"};
// Functions that processes call in each round of export, import and release.
constexpr Names kRounds = {"cudaIpcGetMemHandle",
                           "cudaIpcOpenMemHandle",
                           "cudaIpcCloseMemHandle",
                           "cudaIpcGetEventHandle",
                           "cudaIpcOpenEventHandle",
                           "cudaEventDestroy",
                           "cuMemExportToShareableHandle",
                           "cuMemImportFromShareableHandle",
                           "cuMemRelease",
                           "cuMemUnmap",
                           "cuMemAddressFree",
                           "cudaMemPoolImportFromShareableHandle",
                           "cudaMemPoolImportPointer",
                           "cudaMemPoolDestroy",
                           "cudaFreeAsync"};
// Functions that queue a copy, a memset or a kernel in a stream.
constexpr Names kWork = {"cudaMemcpyAsync", "cudaMemsetAsync",
                         "cudaMemcpyPeerAsync", "cudaLaunchKernel"};
// Functions that return before the work of the GPU is done. The documentation
// of the other functions that share does not say whether they wait, and the
// headers do not say it of a launch.
constexpr Names kNeverWait = {
    "cudaMemsetAsync",         "cudaMallocAsync",
    "cudaMallocFromPoolAsync", "cudaFreeAsync",
    "cudaEventRecord",         "cudaEventRecordWithFlags",
    "cudaStreamWaitEvent",     "cudaEventQuery",
    "cudaStreamQuery",         "cudaMemPoolExportPointer",
    "cudaMemPoolImportPointer"};
// Functions whose refusals are documented.
constexpr Names kRefuses = {"cudaIpcGetMemHandle",
                            "cudaIpcOpenMemHandle",
                            "cudaIpcCloseMemHandle",
                            "cudaIpcGetEventHandle",
                            "cudaIpcOpenEventHandle",
                            "cudaEventCreateWithFlags",
                            "cudaEventRecord",
                            "cudaEventRecordWithFlags",
                            "cudaEventElapsedTime",
                            "cudaFree",
                            "cudaMallocAsync",
                            "cudaMallocFromPoolAsync",
                            "cudaDeviceGetAttribute",
                            "cuPointerGetAttribute",
                            "cuMemCreate",
                            "cuMemMap",
                            "cuMemUnmap",
                            "cuMemSetAccess",
                            "cuMemAddressFree",
                            "cuMemExportToShareableHandle",
                            "cuMemImportFromShareableHandle",
                            "cuMemRetainAllocationHandle",
                            "cuMemGetHandleForAddressRange",
                            "cudaMemPoolCreate",
                            "cudaMemPoolDestroy",
                            "cudaMemPoolSetAttribute",
                            "cudaMemPoolSetAccess",
                            "cudaMemPoolExportToShareableHandle",
                            "cudaMemPoolImportFromShareableHandle",
                            "cudaMemPoolExportPointer",
                            "cudaMemPoolImportPointer",
                            "cudaDeviceSetMemPool",
                            "cudaMemSetMemPool",
                            "cudaLaunchKernelExC"};
// Functions that tests use but that the documentation of IPC does not mention,
// and functions that came after CUDA 13.0 and that few machines have. Only
// named faults break these.
constexpr Names kTools = {"cudaHostRegister",
                          "cudaMemcpyPeer",
                          "cudaMemcpy2DAsync",
                          "cudaMemset3D",
                          "cuMemsetD16",
                          "cuMemsetD32",
                          "cudaLaunchHostFunc",
                          "cudaMemcpy3DAsync",
                          "cudaMemcpy3DPeer",
                          "cudaMemset2DAsync",
                          "cudaMemset3DAsync",
                          "cudaStreamBeginCapture",
                          "cudaStreamEndCapture",
                          "cudaGraphInstantiate",
                          "cudaGraphUpload",
                          "cuMemcpy2D",
                          "cuMemcpy2DAsync",
                          "cuMemcpy3D",
                          "cuMemcpy3DAsync",
                          "cuMemcpyPeer",
                          "cuMemcpyPeerAsync",
                          "cuMemsetD16Async",
                          "cuMemsetD32Async",
                          "cuMemsetD2D8",
                          "cuMemsetD2D16",
                          "cuMemsetD2D32",
                          "cuEventElapsedTime",
                          "cuMemcpyBatchAsync",
                          "cuMemcpy3DBatchAsync",
                          "cuMemcpyBatchAsync_v1",
                          "cuMemcpy3DBatchAsync_v1",
                          "cuMemcpyWithAttributesAsync",
                          "cuMemcpy3DWithAttributesAsync",
                          "cuCtxSynchronize",
                          "cuCtxDestroy",
                          "cuDevicePrimaryCtxRelease",
                          "cuDevicePrimaryCtxReset",
                          "cudaGetDeviceProperties",
                          "cudaGraphAddNode",
                          "cudaGraphGetId",
                          "cuCheckpointProcessGetRestoreThreadId",
                          "cuCheckpointProcessGetState",
                          "cuCheckpointProcessLock",
                          "cuCheckpointProcessCheckpoint",
                          "cuCheckpointProcessRestore",
                          "cuCheckpointProcessUnlock",
                          "cuCtxRecordEvent",
                          "cuCtxWaitEvent",
                          "cuCtxFromGreenCtx",
                          "cuGreenCtxRecordEvent",
                          "cuGreenCtxWaitEvent",
                          "cuGreenCtxStreamCreate",
                          "cuDeviceGetFabricClusterUuid",
                          "cuDeviceGetCliqueCount",
                          "cuDeviceGetCliqueInfo",
                          "cuLogicalEndpointIdReserve",
                          "cuLogicalEndpointIdRelease",
                          "cuLogicalEndpointCreate",
                          "cuLogicalEndpointAddDevice",
                          "cuLogicalEndpointDestroy",
                          "cuLogicalEndpointBindAddr",
                          "cuLogicalEndpointBindMem",
                          "cuLogicalEndpointUnbind",
                          "cuLogicalEndpointExport",
                          "cuLogicalEndpointImport",
                          "cuLogicalEndpointGetLimits",
                          "cuLogicalEndpointQuery",
                          "cuFabricCpyBatchAsync",
                          "cudaMallocPitch",
                          "cudaMalloc3D",
                          "cudaMallocManaged",
                          "cudaHostAlloc",
                          "cudaFreeHost",
                          "cudaMemcpy2D",
                          "cudaMemcpy3D",
                          "cudaMemset2D",
                          "cudaStreamCreateWithFlags",
                          "cudaStreamDestroy",
                          "cudaGraphLaunch",
                          "cudaDeviceGetP2PAttribute",
                          "cudaDeviceGetP2PAtomicCapabilities",
                          "cudaGetDevice",
                          "cudaSetDevice",
                          "cuPointerSetAttribute",
                          "cudaPeekAtLastError",
                          "cuGetErrorName",
                          "cuStreamWaitValue32",
                          "cuStreamWriteValue32",
                          "cuStreamWaitValue64",
                          "cuStreamWriteValue64",
                          "cuStreamBatchMemOp",
                          "cuMemGetHandleForAddressRange",
                          "cudaImportExternalSemaphore",
                          "cudaGraphAddMemAllocNode",
                          "cudaDeviceCanAccessPeer"};
// Functions that need two GPUs. They can be wrong only between GPUs.
constexpr Names kBetweenGpus = {"cudaMemcpyPeerAsync",
                                "cudaDeviceEnablePeerAccess",
                                "cudaDeviceDisablePeerAccess"};
// Functions with an answer for each GPU. With only one GPU there is no
// difference.
constexpr Names kOneForEachGpu = {"cudaDeviceGetDefaultMemPool",
                                  "cudaMemPoolGetAccess",
                                  "cudaMemPoolSetAccess"};
// With one GPU, these functions only give access that the GPU already has.
constexpr Names kGivesAccess = {"cudaMemPoolSetAccess"};
// Functions that refuse only an object of another GPU.
constexpr Names kRefusesOtherGpus = {"cudaEventRecord",
                                     "cudaEventRecordWithFlags"};
constexpr Names kCounted = {"cudaIpcCloseMemHandle", "cuMemRelease"};
constexpr Names kErrors = {"cudaGetLastError", "cudaPeekAtLastError"};
// Functions that create an object. A second object is a leak.
constexpr Names kMade = {"cudaIpcOpenMemHandle",
                         "cudaMalloc",
                         "cuMemCreate",
                         "cuMemImportFromShareableHandle",
                         "cuMemRetainAllocationHandle",
                         "cudaMallocAsync",
                         "cudaMallocFromPoolAsync"};

// Functions of the driver API that tests call beside the runtime's function.
// They are also broken alone, because a driver may be wrong in only one API.
constexpr Names kBesideRuntime = {"cuDeviceGetDefaultMemPool",
                                  "cuDeviceGetMemPool",
                                  "cuDeviceSetMemPool",
                                  "cuEventDestroy",
                                  "cuEventQuery",
                                  "cuEventRecordWithFlags",
                                  "cuEventSynchronize",
                                  "cuIpcCloseMemHandle",
                                  "cuIpcGetEventHandle",
                                  "cuIpcGetMemHandle",
                                  "cuIpcOpenEventHandle",
                                  "cuIpcOpenMemHandle",
                                  "cuMemAllocAsync",
                                  "cuMemAllocFromPoolAsync",
                                  "cuMemFreeAsync",
                                  "cuMemGetDefaultMemPool",
                                  "cuMemGetMemPool",
                                  "cuMemPoolCreate",
                                  "cuMemPoolDestroy",
                                  "cuMemPoolExportPointer",
                                  "cuMemPoolExportToShareableHandle",
                                  "cuMemPoolGetAccess",
                                  "cuMemPoolGetAttribute",
                                  "cuMemPoolImportFromShareableHandle",
                                  "cuMemPoolImportPointer",
                                  "cuMemPoolSetAccess",
                                  "cuMemPoolSetAttribute",
                                  "cuMemPoolTrimTo",
                                  "cuMemSetMemPool",
                                  "cuStreamWaitEvent"};

struct Operator {
  const char* name;
  const char* what;  // after "<function> "
  Fault fault;
  bool (*applies)(const Function& function);
  int gpus = 1;
  bool everywhere = false;  // the fault must also see all other calls
};

constexpr Operator kOperators[] = {
    {"noop", "returns success and does nothing", noop,
     [](const Function& f) { return !writes_result(f) && !has(f, kData); }},
    {"noop-second", "does nothing from the second call of a process on",
     noop_second,
     [](const Function& f) {
       return !writes_result(f) && !has(f, kData) && !is_one_of(f, kErrors);
     }},
    {"twice", "has its effect twice", twice,
     [](const Function& f) {
       return is_one_of(f, kCounted) || is_one_of(f, kMade);
     }},
    {"first-part", "acts only on the first half of the bytes", first_part,
     [](const Function& f) { return has(f, kBytes); }},
    {"all-but-last", "leaves out the last byte", all_but_last,
     [](const Function& f) {
       return has(f, kBytes) && has(f, kPointer) &&
              std::strncmp(f.canonical, "cuda", 4) == 0;
     }},
    {"one-more", "also changes the byte after its memory", one_more,
     [](const Function& f) {
       return has(f, kBytes) && has(f, kPointer) &&
              std::strncmp(f.canonical, "cuda", 4) == 0;
     }},
    {"ignore-stream", "uses the default stream and ignores the given one",
     ignore_stream,
     [](const Function& f) {
       return has(f, kStream) && !is_one_of(f, {"cudaStreamDestroy"});
     }},
    // The flags of the three functions below have nothing to do with IPC, so
    // this operator leaves these functions out.
    {"ignore-flags", "ignores its flags", ignore_flags,
     [](const Function& f) {
       return has(f, kFlags) &&
              !is_one_of(f, {"cudaStreamWaitEvent", "cudaEventRecordWithFlags",
                             "cudaDeviceEnablePeerAccess"});
     }},
    // This operator leaves two functions out. Equal GPUs have equal attributes,
    // and a copy finds the GPUs by the addresses, not by its device arguments.
    {"ignore-device", "acts on GPU 0 whatever its argument is", ignore_device,
     [](const Function& f) {
       return has(f, kDevice) &&
              !is_one_of(f, {"cudaDeviceGetAttribute", "cudaMemcpyPeerAsync"});
     },
     2},
    {"ignore-pool", "acts on the default pool whatever its argument is",
     ignore_pool, [](const Function& f) { return has(f, kPool); }},
    {"first-stream", "acts on the first stream that the process named",
     first_object<kStream>, [](const Function& f) { return has(f, kStream); }},
    {"first-event", "acts on the first event that the process named",
     first_object<kEvent>, [](const Function& f) { return has(f, kEvent); }},
    {"first-pool", "acts on the first pool that the process named",
     first_object<kPool>, [](const Function& f) { return has(f, kPool); }},
    {"first-chunk", "acts on the first physical memory that the process named",
     first_object<kChunk>, [](const Function& f) { return has(f, kChunk); }},
    {"first-pointer", "acts on the first address that the process named",
     first_object<kPointer>,
     [](const Function& f) { return has(f, kPointer); }},
    // This operator leaves out the imports of events and pools: an imported
    // event or pool keeps its GPU, whatever device is current.
    {"first-gpu", "acts on GPU 0 whatever device is current", first_gpu,
     [](const Function& f) {
       return is_one_of(
           f, {"cudaMalloc", "cudaMallocAsync", "cudaIpcOpenMemHandle",
               "cudaEventCreateWithFlags"});
     },
     2},
    {"early", "does not wait for the earlier work of its stream", early,
     [](const Function& f) {
       return is_one_of(f, kWork) ||
              is_one_of(f, {"cudaEventRecord", "cudaEventRecordWithFlags",
                            "cudaFreeAsync"});
     }},
    {"late", "lets the later work of its stream begin too early", late,
     [](const Function& f) { return is_one_of(f, kWork); }},
    {"blocks", "waits for all work of the context before it begins", blocks,
     [](const Function& f) { return is_one_of(f, kNeverWait); }},
    {"accepts", "returns success where it must refuse", accepts,
     [](const Function& f) { return is_one_of(f, kRefuses); }},
    // The documentation names no code for the refusal of a launch with an
    // interprocess event, so this operator leaves cudaLaunchKernelExC out.
    {"other-code", "refuses with cudaErrorUnknown", other_code,
     [](const Function& f) {
       return is_one_of(f, kRefuses) && !is_one_of(f, {"cudaLaunchKernelExC"});
     }},
    {"refuses-second", "refuses from the second call of a process on",
     refuses_second, [](const Function& f) { return !is_one_of(f, kErrors); }},
    {"refuses-other-thread", "refuses all threads except the first",
     refuses_other_thread,
     [](const Function& f) { return is_one_of(f, kSharing); }},
    {"refuses-second-process", "refuses all processes except the first",
     refuses_second_process,
     [](const Function& f) { return is_one_of(f, kImports); }},
    {"forgets-error", "keeps no last error when it refuses", forgets_error,
     [](const Function& f) {
       return f.face == Face::kRuntime && is_one_of(f, kSharing);
     }},
    {"leaves-error", "leaves a last error although it succeeds", leaves_error,
     [](const Function& f) {
       return f.face == Face::kRuntime && is_one_of(f, kSharing);
     }},
    {"sticky", "makes the context unusable when it refuses", sticky,
     [](const Function& f) { return is_one_of(f, kSharing); }, 1, true},
    {"result-unwritten", "returns success and does not write its result",
     result_unwritten, writes_result},
    // In the result of cudaPointerGetAttributes, the second half is reserved.
    // So this operator leaves the function out.
    {"result-half-written", "writes only the first half of its result",
     result_half_written,
     [](const Function& f) {
       return writes_result(f) && !is_one_of(f, {"cudaPointerGetAttributes"});
     }},
    {"result-too-long", "writes eight bytes more than its result",
     result_too_long, writes_result},
    {"result-of-first", "always returns the result of the first call",
     result_of_first,
     [](const Function& f) {
       // All granularities of a machine may be equal. So this operator leaves
       // cuMemGetAllocationGranularity out.
       return writes_result(f) &&
              !is_one_of(f, {"cuMemGetAllocationGranularity"});
     }},
    {"leaks-memory", "loses 2 MiB of device memory in each call", leaks_memory,
     [](const Function& f) { return is_one_of(f, kRounds); }},
    {"leaks-addresses", "loses 64 MiB of addresses in each call",
     leaks_addresses, [](const Function& f) { return is_one_of(f, kRounds); }},
    {"leaks-descriptors", "loses a file descriptor in each call",
     leaks_descriptors,
     [](const Function& f) { return is_one_of(f, kRounds); }},
};

// The number of GPUs that a test needs to notice that the function is wrong in
// this way.
int gpus_for(const Function& function, const Operator& one) {
  const bool answers_differ =
      is_one_of(function, kOneForEachGpu) &&
      (one.fault == result_of_first || one.fault == ignore_pool ||
       one.fault == first_object<kPool>);
  const bool gives_access =
      is_one_of(function, kGivesAccess) &&
      (one.fault == noop_second || one.fault == refuses_second);
  const bool refuses = is_one_of(function, kRefusesOtherGpus) &&
                       (one.fault == accepts || one.fault == other_code);
  const bool two = answers_differ || gives_access || refuses ||
                   is_one_of(function, kBetweenGpus);
  return two ? 2 : one.gpus;
}

FAULTS {
  const auto add = [](const Function& function, const char* name) {
    if (is_one_of(function, kTools)) return;
    for (const Operator& one : kOperators)
      if (one.applies(function))
        all_faults().combine(name, one.name, std::string(name) + " " + one.what,
                             one.fault, gpus_for(function, one),
                             one.everywhere);
  };
  std::set<std::string> done;
  for (const Function* function : functions()) {
    // The runtime's function comes first in calls.inc; its roles count for both
    // APIs.
    if (done.insert(function->canonical).second)
      add(*function, function->canonical);
    if (has_name(kBesideRuntime, function->name))
      add(*function, function->name);
  }
}

}  // namespace
}  // namespace ipclab::faults
