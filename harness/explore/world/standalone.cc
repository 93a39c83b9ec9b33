// Prints a program as one file of plain CUDA.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "harness/explore/world/shadow.h"
#include "harness/explore/world/story.h"

namespace ipclab::explore {
namespace {

// What every file has. Processes take turns: each runs all of steps(), and
// makes only the calls of its own blocks.
constexpr char kFrame[] = R"(struct Shared {
  volatile int turn, failed;
  volatile unsigned gate[64];
  char handle[64][64];
};
static Shared* shared;
static int me, step;

static bool begin(int process) {  // waits for the turn of this step
  ++step;
  while (me == process && shared->turn != step - 1 && !shared->failed) sched_yield();
  return me == process && !shared->failed;
}
static bool end() { return shared->turn = step, false; }
#define ON(process) for (bool mine = begin(process); mine; mine = end())
static void check(const char* what, bool good) {
  if (!good) std::printf("process %d, step %d: %s: NOT AS DOCUMENTED\n", me, step, what);
  if (!good) shared->failed = 1, std::fflush(stdout), _exit(1);
}
#define OK(call) check(#call, int(call) == 0)
)";

constexpr char kDriver[] = R"(static void* entry(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result);
  return found;
}
#define DRIVER(function) reinterpret_cast<decltype(&function)>(entry(#function))
)";

constexpr char kDescriptors[] =
    R"(static int sockets[8][2];  // of each process: to it, and its end
static void send_descriptor(int process, int fd) {
  char byte = 0, control[CMSG_SPACE(sizeof fd)] = {};
  iovec bytes{&byte, 1};
  msghdr message{nullptr, 0, &bytes, 1, control, sizeof control, 0};
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd), std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  check("sendmsg", sendmsg(sockets[process][0], &message, 0) == 1);
}
static int received_descriptor() {
  int fd = -1;
  char byte, control[CMSG_SPACE(sizeof fd)] = {};
  iovec bytes{&byte, 1};
  msghdr message{nullptr, 0, &bytes, 1, control, sizeof control, 0};
  check("recvmsg", recvmsg(sockets[me][1], &message, 0) == 1);
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}
)";

constexpr char kPattern[] =
    R"(__host__ __device__ inline char pattern(unsigned key, unsigned i) {
  unsigned x = key * 0x9e3779b1u ^ i * 0x85ebca77u;
  x ^= x >> 15, x *= 0x2c1b3c6du, x ^= x >> 13;
  return char(x ^ (x >> 16));
}
)";

constexpr char kWriteKernel[] =
    R"(__global__ void write(char* to, unsigned count, unsigned key) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = pattern(key, i);
}
)";
constexpr char kCopyKernel_[] =
    R"(__global__ void copy(char* to, const char* from, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}
)";

class Printer {
 public:
  Printer(const Machine& machine, const Program& program,
          const Failure& failure)
      : machine_(machine), program_(program), failure_(failure) {}

  std::string print();

 private:
  static std::string text(int64_t value) { return std::to_string(value); }
  std::string var(char letter, int id) {
    names_[letter].insert(id);
    return letter + text(id);
  }
  std::string at(int id, int64_t offset) {
    return var('m', id) + (offset == 0 ? "" : " + " + text(offset));
  }
  std::string stream(const Step& step) {
    if (is_legacy(step.stream)) return "cudaStreamLegacy";
    if (is_thread_stream(step.stream)) return "cudaStreamPerThread";
    return var('s', step.stream);
  }
  std::string driver(const char* function) {
    uses_driver_ = true;
    return std::string("DRIVER(") + function + ")";
  }
  std::string ptr(const std::string& address) {
    return "(CUdeviceptr)(" + address + ")";
  }
  std::string slot(int handle) {
    if (slots_.count(handle) == 0) {
      const int next = static_cast<int>(slots_.size());
      slots_[handle] = next;
    }
    return "shared->handle[" + text(slots_[handle]) + "]";
  }

  std::string memory_call(const Step& step);
  std::string chunk_call(const Step& step);
  std::string pool_call(const Step& step);
  std::string order_call(const Step& step);
  std::string work_call(const Step& step);
  std::string read_call(const Step& step, const Expected& expected);
  std::string refused_call(const Step& step);
  std::string listed_call(const Step& step, const Listed& call);
  /// The GPU of the process that runs, as an expression.
  const char* gpu() const { return machine_.gpus > 1 ? "gpu" : "0"; }
  std::string call_of(const Step& step);
  std::string ask(const Step& step, const Expected& expected);
  void block(int process, int thread, const std::string& lines);
  void print_step(const Step& step, const Expected& expected, bool last);
  void hand_over(const Step& step);
  std::string helpers() const;
  std::string globals() const;
  int actor(int process);

  const Machine& machine_;
  const Program& program_;
  const Failure& failure_;
  std::map<char, std::set<int>> names_;
  std::map<int, int> slots_;
  std::map<int, int> exporters_;               // descriptor -> its process
  std::map<std::pair<int, int>, int> held_;    // process, thread -> number
  std::map<std::pair<int, int>, int> actors_;  // process, life -> number
  std::map<int, int> lives_;
  std::map<int, int64_t> sizes_;
  std::string body_;
  bool uses_driver_ = false, uses_descriptors_ = false, uses_pattern_ = false,
       uses_write_ = false, uses_copy_ = false, uses_threads_ = false,
       uses_gates_ = false, uses_none_ = false;
};

// The call of a step, as an expression that gives its code.
std::string Printer::memory_call(const Step& step) {
  const bool rt = step.api == 0;
  switch (step.op) {
    case Op::kMalloc:
      return rt ? "cudaMalloc(&" + var('m', step.id) + ", " + text(step.bytes) +
                      ")"
                : driver("cuMemAlloc") + "((CUdeviceptr*)&" +
                      var('m', step.id) + ", " + text(step.bytes) + ")";
    case Op::kFree:
      return rt ? "cudaFree(" + var('m', step.on) + ")"
                : driver("cuMemFree") + "(" + ptr(var('m', step.on)) + ")";
    case Op::kExportMemory:
      return rt ? "cudaIpcGetMemHandle((cudaIpcMemHandle_t*)" + slot(step.id) +
                      ", " + var('m', step.on) + ")"
                : driver("cuIpcGetMemHandle") + "((CUipcMemHandle*)" +
                      slot(step.id) + ", " + ptr(var('m', step.on)) + ")";
    case Op::kOpenMemory:
      return rt ? "cudaIpcOpenMemHandle((void**)&" + var('m', step.id) +
                      ", *(cudaIpcMemHandle_t*)" + slot(step.on) +
                      ", cudaIpcMemLazyEnablePeerAccess)"
                : driver("cuIpcOpenMemHandle") + "((CUdeviceptr*)&" +
                      var('m', step.id) + ", *(CUipcMemHandle*)" +
                      slot(step.on) + ", CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)";
    case Op::kCloseMemory:
      return rt ? "cudaIpcCloseMemHandle(" + var('m', step.on) + ")"
                : driver("cuIpcCloseMemHandle") + "(" + ptr(var('m', step.on)) +
                      ")";
    case Op::kHostAlloc: {
      const std::string name = var('m', step.id), size = text(step.bytes);
      if (step.how == kManaged)
        return "cudaMallocManaged(&" + name + ", " + size + ")";
      if (step.how == kRegistered)
        return "cudaHostRegister(" + name + " = (char*)mmap(nullptr, " + size +
               ", PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, "
               "0), " +
               size + ", 0)";
      return "cudaMallocHost(&" + name + ", " + size + ")";
    }
    default:  // kHostFree
      return "cudaFreeHost(" + var('m', step.on) + ")";
  }
}

std::string Printer::chunk_call(const Step& step) {
  switch (step.op) {
    case Op::kCreateChunk:
      return driver("cuMemCreate") + "(&" + var('c', step.id) + ", " +
             text(step.bytes) +
             (step.how == kOnNode ? ", &on_node, 0)" : ", &wanted, 0)");
    case Op::kReleaseChunk:
      return driver("cuMemRelease") + "(" + var('c', step.on) + ")";
    case Op::kRetainChunk:
      return driver("cuMemRetainAllocationHandle") + "(&" + var('c', step.id) +
             ", " + var('m', step.on) + ")";
    case Op::kReserve:
      sizes_[step.id] = step.bytes;
      return driver("cuMemAddressReserve") + "((CUdeviceptr*)&" +
             var('r', step.id) + ", " + text(step.bytes) + ", 0, 0, 0)";
    case Op::kUnreserve:
      return driver("cuMemAddressFree") + "(" + ptr(var('r', step.on)) + ", " +
             text(sizes_[step.on]) + ")";
    case Op::kMap:
      sizes_[step.id] = step.bytes;
      return driver("cuMemMap") + "(" +
             ptr(var('m', step.id) + " = " + var('r', step.from) +
                 (step.at == 0 ? "" : " + " + text(step.at))) +
             ", " + text(step.bytes) + ", 0, " + var('c', step.on) + ", 0)";
    case Op::kSetAccess:
      return driver("cuMemSetAccess") + "(" + ptr(var('m', step.on)) + ", " +
             text(step.rows > 1 ? step.bytes : sizes_[step.on]) +
             (step.how == kOnNode ? ", &cpus[" : ", &rights[") +
             text(step.value) + "], 1)";
    default:  // kUnmap
      return driver("cuMemUnmap") + "(" + ptr(var('m', step.on)) + ", " +
             text(sizes_[step.on]) + ")";
  }
}

std::string Printer::pool_call(const Step& step) {
  const std::string fd = "cudaMemHandleTypePosixFileDescriptor";
  switch (step.op) {
    case Op::kCreatePool:
      return "create_pool(&" + var('p', step.id) + ", " +
             (step.value != 0 ? fd : "cudaMemHandleTypeNone") + ")";
    case Op::kDestroyPool:
      return "cudaMemPoolDestroy(" + var('p', step.on) + ")";
    case Op::kPoolAlloc:
      if (step.how == kFromCurrent)
        return "cudaMallocAsync((void**)&" + var('m', step.id) + ", " +
               text(step.bytes) + ", " + stream(step) + ")";
      return "cudaMallocFromPoolAsync((void**)&" + var('m', step.id) + ", " +
             text(step.bytes) + ", " + var('p', step.on) + ", " + stream(step) +
             ")";
    case Op::kExportPointer:
      return "cudaMemPoolExportPointer((cudaMemPoolPtrExportData*)" +
             slot(step.id) + ", " + var('m', step.on) + ")";
    case Op::kImportPointer:
      return "cudaMemPoolImportPointer((void**)&" + var('m', step.id) + ", " +
             var('p', step.on) + ", (cudaMemPoolPtrExportData*)" +
             slot(step.from) + ")";
    case Op::kFreeAsync:
      return "cudaFreeAsync(" + var('m', step.on) + ", " + stream(step) + ")";
    case Op::kTrimPool:
      return "cudaMemPoolTrimTo(" + var('p', step.on) + ", " +
             text(step.value) + ")";
    case Op::kSetPool:
      if (step.on != 0)
        return std::string("cudaDeviceSetMemPool(") + gpu() + ", " +
               var('p', step.on) + ")";
      return std::string(
                 "[] { cudaMemPool_t own; cudaDeviceGetDefaultMemPool(") +
             "&own, " + gpu() + "); return cudaDeviceSetMemPool(" + gpu() +
             ", own); }()";
    default: {  // kSetThreshold
      constexpr const char* kNames[] = {"ReleaseThreshold", "UsedMemHigh",
                                        "ReservedMemHigh"};
      return "[] { cuuint64_t bytes = " + text(step.value) +
             "; return cudaMemPoolSetAttribute(" + var('p', step.on) +
             ", cudaMemPoolAttr" + kNames[step.how] + ", &bytes); }()";
    }
  }
}

std::string Printer::order_call(const Step& step) {
  const bool rt = step.api == 0;
  const auto word = [&] { return at(step.on, step.at); };
  const auto batch = [&](const char* what, const Step& one,
                         const std::string& flags) {
    return "batch(" + stream(one) + ", CU_STREAM_MEM_OP_" + what + "_VALUE_" +
           text(8 * one.bytes) + ", " + word() + ", " + text(one.value) + ", " +
           flags + ")";
  };
  switch (step.op) {
    case Op::kCreateStream:
      return step.how == kPriority
                 ? "cudaStreamCreateWithPriority(&" + var('s', step.id) +
                       ", cudaStreamNonBlocking, -5)"
                 : "cudaStreamCreateWithFlags(&" + var('s', step.id) +
                       (step.how == kBlocking ? ", cudaStreamDefault)"
                                              : ", cudaStreamNonBlocking)");
    case Op::kDestroyStream:
      return "cudaStreamDestroy(" + var('s', step.on) + ")";
    case Op::kCreateEvent:
      return "cudaEventCreateWithFlags(&" + var('e', step.id) +
             ", cudaEventDisableTiming" +
             (step.how == kLocal ? "" : " | cudaEventInterprocess") +
             (step.how == kInterprocessBlocking ? " | cudaEventBlockingSync"
                                                : "") +
             ")";
    case Op::kExportEvent:
      return rt ? "cudaIpcGetEventHandle((cudaIpcEventHandle_t*)" +
                      slot(step.id) + ", " + var('e', step.on) + ")"
                : driver("cuIpcGetEventHandle") + "((CUipcEventHandle*)" +
                      slot(step.id) + ", " + var('e', step.on) + ")";
    case Op::kOpenEvent:
      return rt ? "cudaIpcOpenEventHandle(&" + var('e', step.id) +
                      ", *(cudaIpcEventHandle_t*)" + slot(step.on) + ")"
                : driver("cuIpcOpenEventHandle") + "(&" + var('e', step.id) +
                      ", *(CUipcEventHandle*)" + slot(step.on) + ")";
    case Op::kDestroyEvent:
      return rt ? "cudaEventDestroy(" + var('e', step.on) + ")"
                : driver("cuEventDestroy") + "(" + var('e', step.on) + ")";
    case Op::kRecord:
      return step.how == 0
                 ? (rt ? std::string("cudaEventRecord(")
                       : driver("cuEventRecord") + "(") +
                       var('e', step.on) + ", " + stream(step) + ")"
                 : (rt ? std::string("cudaEventRecordWithFlags(")
                       : driver("cuEventRecordWithFlags") + "(") +
                       var('e', step.on) + ", " + stream(step) + ", 0)";
    case Op::kWait:
      return (rt ? std::string("cudaStreamWaitEvent(")
                 : driver("cuStreamWaitEvent") + "(") +
             stream(step) + ", " + var('e', step.on) + ", 0)";
    case Op::kQueryEvent:
      return (rt ? std::string("cudaEventQuery(")
                 : driver("cuEventQuery") + "(") +
             var('e', step.on) + ")";
    case Op::kSyncEvent:
      return (rt ? std::string("cudaEventSynchronize(")
                 : driver("cuEventSynchronize") + "(") +
             var('e', step.on) + ")";
    case Op::kQueryStream:
      return (rt ? std::string("cudaStreamQuery(")
                 : driver("cuStreamQuery") + "(") +
             stream(step) + ")";
    case Op::kSyncStream:
      return (rt ? std::string("cudaStreamSynchronize(")
                 : driver("cuStreamSynchronize") + "(") +
             stream(step) + ")";
    case Op::kSyncDevice:
      return "cudaDeviceSynchronize()";
    case Op::kGate:
      uses_gates_ = true;
      return driver("cuStreamWaitValue32") + "(" + stream(step) +
             ", (CUdeviceptr)&gates[" + text(step.value % 64) +
             "], 1, CU_STREAM_WAIT_VALUE_GEQ)";
    case Op::kWriteWord:
      if (step.how == kWriteBatch) return batch("WRITE", step, "0");
      if (step.how == kWritePair) {
        Step before = step;
        before.value = step.from_at;
        return batch("WRITE", before, "0") + " + " + batch("WRITE", step, "0");
      }
      return driver(step.bytes == 8 ? "cuStreamWriteValue64"
                                    : "cuStreamWriteValue32") +
             "(" + stream(step) + ", " + ptr(word()) + ", " + text(step.value) +
             ", 0)";
    case Op::kWaitWord:
      if (step.how >= kConditions)
        return batch("WAIT", step, text(step.how % kConditions));
      return driver(step.bytes == 8 ? "cuStreamWaitValue64"
                                    : "cuStreamWaitValue32") +
             "(" + stream(step) + ", " + ptr(word()) + ", " + text(step.value) +
             ", " + text(step.how) + ")";
    case Op::kBeginCapture:
      return "cudaStreamBeginCapture(" + stream(step) +
             ", cudaStreamCaptureModeRelaxed)";
    case Op::kEndCapture:
      if (step.how == kUpdate)
        return "updates(" + stream(step) + ", " + var('g', step.from) + ")";
      return "capture_ends(" + stream(step) + ", &" + var('g', step.on) + ")";
    case Op::kLaunch:
      return "cudaGraphLaunch(" + var('g', step.on) + ", " + stream(step) + ")";
    default:  // kDestroyGraph
      return "cudaGraphExecDestroy(" + var('g', step.on) + ")";
  }
}

std::string Printer::work_call(const Step& step) {
  const bool rt = step.api == 0;
  const std::string to = at(step.on, step.at), size = text(step.bytes),
                    rows = text(std::max(step.rows, 1)),
                    layers = text(std::max(step.layers, 1)),
                    pitch = text(step.pitch == 0 ? step.bytes : step.pitch),
                    from_pitch = text(step.from_pitch == 0 ? step.bytes
                                                           : step.from_pitch);
  if (step.op == Op::kWrite && step.how == kHostFunction) {
    uses_pattern_ = true;
    return "host_write(" + stream(step) + ", " + to + ", " + size + ", " +
           text(step.value) + "u)";
  }
  if (step.op == Op::kWrite) {
    uses_write_ = uses_pattern_ = true;
    return "(write<<<" + text((step.bytes + 127) / 128) + ", 128, 0, " +
           stream(step) + ">>>(" + to + ", " + size + ", " + text(step.value) +
           "u), cudaGetLastError())";
  }
  if (step.op == Op::kSet) {
    const bool wait = step.how >= kSet8Sync;
    const std::string end = wait ? ")" : ", " + stream(step) + ")";
    const std::string async = wait ? "" : "Async";
    const int width = step.how % 3;
    if (width == kSet8 && step.layers > 1)
      return "cudaMemset3D" + async + "(make_cudaPitchedPtr(" + to + ", " +
             pitch + ", " + size + ", " + rows + "), " +
             text(step.value & 0xff) + ", make_cudaExtent(" + size + ", " +
             rows + ", " + layers + ")" + end;
    if (width == kSet8 && step.rows > 1 && rt)
      return "cudaMemset2D" + async + "(" + to + ", " + pitch + ", " +
             text(step.value & 0xff) + ", " + size + ", " + rows + end;
    if (width == kSet8 && rt)
      return "cudaMemset" + async + "(" + to + ", " + text(step.value & 0xff) +
             ", " + size + end;
    const int64_t unit = int64_t{1} << width;
    const int64_t value = width == kSet8    ? step.value & 0xff
                          : width == kSet16 ? step.value & 0xffff
                                            : step.value;
    const std::string bits = text(8 * unit);
    if (step.rows > 1)
      return driver(("cuMemsetD2D" + bits + async).c_str()) + "(" + ptr(to) +
             ", " + pitch + ", " + text(value) + ", " +
             text(step.bytes / unit) + ", " + rows + end;
    return driver(("cuMemsetD" + bits + async).c_str()) + "(" + ptr(to) + ", " +
           text(value) + ", " + text(step.bytes / unit) + end;
  }
  if (step.op == Op::kUpload) {
    uses_pattern_ = true;
    return "upload(" + to + ", " + size + ", " + rows + ", " + pitch + ", " +
           text(step.value) + "u, " +
           (step.how == kUploadAsync ? stream(step) : "cudaStreamLegacy") +
           ", " + (step.how == kUploadAsync ? "true" : "false") + ")";
  }
  const std::string from = at(step.from, step.from_at);
  switch (step.how) {
    case kCopyKernel:
      uses_copy_ = true;
      return "(copy<<<" + text((step.bytes + 127) / 128) + ", 128, 0, " +
             stream(step) + ">>>(" + to + ", " + from + ", " + size +
             "), cudaGetLastError())";
    case kCopyPeerAsync:
      return "cudaMemcpyPeerAsync(" + to + ", " + text(step.value % kMostGpus) +
             ", " + from + ", " + text(step.value / kMostGpus) + ", " + size +
             ", " + stream(step) + ")";
    case kCopy2DAsync:
    case kCopy2DSync:
      return std::string("cudaMemcpy2D") +
             (step.how == kCopy2DAsync ? "Async(" : "(") + to + ", " + pitch +
             ", " + from + ", " + from_pitch + ", " + size + ", " + rows +
             ", cudaMemcpyDefault" +
             (step.how == kCopy2DAsync ? ", " + stream(step) : "") + ")";
    case kCopyBatch:
      return "copy_batch(" + to + ", " + from + ", " + size + ", " +
             stream(step) + ")";
    case kCopy3DBatch:
      return "copy_3d_batch(" + to + ", " + pitch + ", " + from + ", " +
             from_pitch + ", " + size + ", " + rows + ", " + layers + ", " +
             stream(step) + ")";
    case kCopy3DAsync:
    case kCopy3DSync:
      return "copy_box(" + to + ", " + pitch + ", " + from + ", " + from_pitch +
             ", " + size + ", " + rows + ", " + layers + ", " + stream(step) +
             ", " + (step.how == kCopy3DSync ? "true" : "false") + ")";
    case kCopySync:
      return rt ? "cudaMemcpy(" + to + ", " + from + ", " + size +
                      ", cudaMemcpyDefault)"
                : driver("cuMemcpy") + "(" + ptr(to) + ", " + ptr(from) + ", " +
                      size + ")";
    default:
      return rt ? "cudaMemcpyAsync(" + to + ", " + from + ", " + size +
                      ", cudaMemcpyDefault, " + stream(step) + ")"
                : driver("cuMemcpyAsync") + "(" + ptr(to) + ", " + ptr(from) +
                      ", " + size + ", " + stream(step) + ")";
  }
}

// Reads, and compares some bytes from the first wrong one on.
std::string Printer::read_call(const Step& step, const Expected& expected) {
  const std::string from = at(step.on, step.at);
  const int rows = std::max(step.rows, 1);
  size_t first = 0;
  if (step == failure_.step && failure_.check == "bytes")
    first = static_cast<size_t>(
        std::atoi(failure_.seen.substr(failure_.seen.find(' ') + 1).c_str()));
  if (first >= expected.bytes.size()) first = 0;
  const size_t count = std::min<size_t>(expected.bytes.size() - first, 16);
  std::string wanted;
  for (size_t i = 0; i < count; ++i)
    wanted += (i == 0 ? "" : ", ") + std::to_string(expected.bytes[first + i]);
  std::string how;
  if (step.op == Op::kHostRead)
    how = "std::memcpy(seen, " + from + ", " + text(step.bytes) + ")";
  else if (step.how == kReadKernel || step.how == kReadAsync)
    how = "read_in(" + stream(step) + ", seen, " + from + ", " +
          text(step.bytes) + ", " +
          (step.how == kReadKernel ? "true" : "false") + ")";
  else if (step.how == kRead2D)
    how = "cudaMemcpy2D(seen, " + text(step.bytes) + ", " + from + ", " +
          text(step.pitch == 0 ? step.bytes : step.pitch) + ", " +
          text(step.bytes) + ", " + text(rows) + ", cudaMemcpyDefault)";
  else
    how = "cudaMemcpy(seen, " + from + ", " + text(step.bytes) +
          ", cudaMemcpyDefault)";
  return "    " + (step.op == Op::kHostRead ? how + ";" : "OK(" + how + ");") +
         "\n    const unsigned char wanted[] = {" + wanted +
         "};\n    check(\"the bytes of m" + text(step.on) +
         "\", std::memcmp(seen + " + std::to_string(first) +
         ", wanted, sizeof wanted) == 0);\n";
}

// A call of calls.inc, with what its text needs.
std::string Printer::listed_call(const Step& step, const Listed& call) {
  std::string body = call.body;
  const auto uses = [&](const char* name) {
    return std::regex_search(body,
                             std::regex("\\b" + std::string(name) + "\\b"));
  };
  const auto is = [&](char letter, int id) {
    const auto found = names_.find(letter);
    return found != names_.end() && found->second.count(id) != 0;
  };
  std::string begin;
  const auto let = [&](const char* type, const char* name,
                       const std::string& value) {
    if (uses(name))
      begin += "      " + std::string(type) + name + " = " + value + ";\n";
  };
  const auto memory = [&](char letter, int id, int64_t offset) {
    return uses(std::string(1, letter).c_str()) ? at(id, offset) : "";
  };
  const int range = is('r', step.from) ? step.from : step.on;
  let("char* ", "m", memory('m', step.on, step.at));
  let("char* ", "b", memory('b', step.on, 0));
  let("char* ", "o", memory('o', step.from, 0));
  if (is('r', range)) let("char* ", "r", var('r', range));
  let("size_t ", "n", text(sizes_[step.on]));
  let("size_t ", "rn", text(sizes_[range]));
  let("size_t ", "g", text(machine_.granule));
  let("cudaMemPool_t ", "p",
      is('p', step.on) ? var('p', step.on) : std::string("nullptr"));
  if (is('c', step.from))
    let("CUmemGenericAllocationHandle ", "c", var('c', step.from));
  let("int ", "gpu", text(machine_.gpu_of(step.process)));
  let("int ", "pool_gpu", text(step.value));
  uses_driver_ = uses_driver_ || body.find("DRIVER(") != std::string::npos;
  for (size_t end = 0; (end = body.find("; ", end)) != std::string::npos;)
    body.replace(end, 2, ";\n      ");
  return "[]() -> int {\n" + begin + "      " + body + "\n    }()";
}

std::string Printer::refused_call(const Step& step) {
  if (step.how >= kFirstOfList) return listed_call(step, refusal(step.how));
  const bool has_memory = step.how <= kExportMapped || step.how == kMapTwice ||
                          step.how == kUnmapPart;
  const std::string memory = has_memory ? var('m', step.on) : "";
  switch (step.how) {
    case kExportManaged:
    case kExportMapped:
      return "cudaIpcGetMemHandle((cudaIpcMemHandle_t*)" + slot(-step.on) +
             ", " + memory + ")";
    case kOpenEventHandle:
      return "cudaIpcOpenMemHandle(&none, *(cudaIpcMemHandle_t*)" +
             slot(step.on) + ", cudaIpcMemLazyEnablePeerAccess)";
    case kOpenMemoryHandle:
      return "cudaIpcOpenEventHandle((cudaEvent_t*)&none, "
             "*(cudaIpcEventHandle_t*)" +
             slot(step.on) + ")";
    case kElapsedTime:
      return "cudaEventElapsedTime((float*)&none, " + var('e', step.on) + ", " +
             var('e', step.on) + ")";
    case kAllocImported:
      return "cudaMallocFromPoolAsync(&none, 4096, " + var('p', step.on) +
             ", cudaStreamPerThread)";
    case kExportImported:
    case kExportPrivatePool:
      return "cudaMemPoolExportToShareableHandle(&none, " + var('p', step.on) +
             ", cudaMemHandleTypePosixFileDescriptor, 0)";
    case kMapTwice:
      return driver("cuMemMap") + "(" + ptr(memory) + ", " + text(step.bytes) +
             ", 0, " + var('c', step.from) + ", 0)";
    default:  // kUnmapPart
      return driver("cuMemUnmap") + "(" + ptr(memory) + ", " +
             text(sizes_[step.on] / 2) + ")";
  }
}

std::string Printer::call_of(const Step& step) {
  switch (step.op) {
    case Op::kMalloc:
    case Op::kFree:
    case Op::kExportMemory:
    case Op::kOpenMemory:
    case Op::kCloseMemory:
    case Op::kHostAlloc:
    case Op::kHostFree:
      return memory_call(step);
    case Op::kCreateChunk:
    case Op::kReleaseChunk:
    case Op::kRetainChunk:
    case Op::kReserve:
    case Op::kUnreserve:
    case Op::kMap:
    case Op::kSetAccess:
    case Op::kUnmap:
      return chunk_call(step);
    case Op::kCreatePool:
    case Op::kDestroyPool:
    case Op::kPoolAlloc:
    case Op::kExportPointer:
    case Op::kImportPointer:
    case Op::kFreeAsync:
    case Op::kTrimPool:
    case Op::kSetThreshold:
    case Op::kSetPool:
      return pool_call(step);
    case Op::kWrite:
    case Op::kSet:
    case Op::kCopy:
    case Op::kUpload:
      return work_call(step);
    default:
      return order_call(step);
  }
}

// A question, and the numbers that may be its answer.
std::string Printer::ask(const Step& step, const Expected& expected) {
  const auto attribute = [&](const char* type, const char* name,
                             const std::string& address) {
    return std::string("    ") + type + " value = 0;\n    OK(" +
           driver("cuPointerGetAttribute") + "(&value, CU_POINTER_ATTRIBUTE_" +
           name + ", " + ptr(address) + "));\n";
  };
  std::string lines, value = "value";
  const bool of_memory = step.op == Op::kAskPointer;
  const std::string memory = of_memory ? at(step.on, step.at) : "";
  const std::string begin = of_memory ? var('m', step.on) : "";
  if (step.op == Op::kAskPool) {
    constexpr const char* kNames[] = {"UsedMemCurrent", "ReleaseThreshold",
                                      "UsedMemHigh", "ReservedMemCurrent",
                                      "ReservedMemHigh"};
    lines =
        "    unsigned long long value = 0;\n    OK(cudaMemPoolGetAttribute(" +
        var('p', step.on) + ", cudaMemPoolAttr" + kNames[step.how] +
        ", &value));\n";
  } else if (step.op == Op::kQuestion) {
    lines = "    static long long value;\n    OK((" +
            listed_call(step, question(step.how)) + "));\n";
  } else if (step.op == Op::kAskChunk) {
    lines = "    CUmemAllocationProp seen{};\n    OK(" +
            driver("cuMemGetAllocationPropertiesFromHandle") + "(&seen, " +
            var('c', step.on) + "));\n";
    value = std::string(
                "seen.type == CU_MEM_ALLOCATION_TYPE_PINNED && "
                "seen.location.type == CU_MEM_LOCATION_TYPE_") +
            (step.how == kOnNode ? "HOST_NUMA" : "DEVICE") +
            " && seen.location.id == " + text(step.value);
  } else if (step.how == kRange || step.how == kContains) {
    lines = "    CUdeviceptr base = 0;\n    size_t size = 0;\n    OK(" +
            driver("cuMemGetAddressRange") + "(&base, &size, " + ptr(memory) +
            "));\n";
    value = step.how == kRange ? "base == " + ptr(begin) + " ? size : -1"
                               : "base <= " + ptr(begin) + " && " + ptr(begin) +
                                     " < base + size";
  } else if (step.how == kAccess || step.how == kCpuAccess) {
    lines = "    unsigned long long value = 0;\n    OK(" +
            driver("cuMemGetAccess") +
            (step.how == kAccess ? "(&value, &rights[3].location, "
                                 : "(&value, &cpus[3].location, ") +
            ptr(memory) + "));\n";
  } else if (step.how == kRuntimeView) {
    lines =
        "    cudaPointerAttributes seen{};\n    OK(cudaPointerGetAttributes("
        "&seen, " +
        memory + "));\n";
    value =
        "seen.type == cudaMemoryTypeDevice && seen.devicePointer == " + memory +
        " && seen.hostPointer == nullptr";
  } else if (step.how == kBufferId) {
    lines = attribute("unsigned long long", "BUFFER_ID", memory) +
            "    const auto id = value;\n    OK(" +
            driver("cuPointerGetAttribute") +
            "(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, " +
            ptr(var('m', step.from)) + "));\n";
    value = step.from == step.on ? "value == id" : "value != id";
  } else if (step.how == kAccessAttribute) {
    lines = attribute("int", "ACCESS_FLAGS", memory);
  } else {
    lines = attribute("unsigned", "MEMORY_TYPE", memory);
  }
  return lines + "    const long long seen_value = " + value +
         ";\n    check(\"the value\", seen_value >= " + text(expected.least) +
         " && seen_value <= " + text(expected.most) + ");\n";
}

int Printer::actor(int process) {
  const std::pair<int, int> life{process, lives_[process]};
  if (actors_.count(life) == 0) {
    const int next = static_cast<int>(actors_.size());
    actors_[life] = next;
  }
  return actors_[life];
}

// The lines of one step, which one process runs in its turn.
void Printer::block(int process, int thread, const std::string& lines) {
  const bool one_line = std::count(lines.begin(), lines.end(), '\n') == 1;
  std::string begin = "  ON(" + text(actor(process)) + ") ";
  if (thread != 0) {
    uses_threads_ = true;
    body_ += begin + "in_a_thread([&] {\n" + lines + "  });\n";
  } else if (one_line) {
    body_ += begin + lines.substr(lines.find_first_not_of(' '));
  } else {
    body_ += begin + "{\n" + lines + "  }\n";
  }
}

// A descriptor goes from its exporter to the process that imports it.
void Printer::hand_over(const Step& step) {
  const auto exporter = exporters_.find(step.on);
  if (exporter == exporters_.end()) return;
  uses_descriptors_ = true;
  body_ += "  ON(" + text(exporter->second) + ") send_descriptor(" +
           text(actor(step.process)) + ", " + var('d', step.on) + ");\n";
}

void Printer::print_step(const Step& step, const Expected& expected,
                         bool last) {
  const std::string fd = "cudaMemHandleTypePosixFileDescriptor";
  const int p = step.process;
  switch (step.op) {
    case Op::kOpenGate:
      uses_gates_ = true;
      body_ += "  ON(" + text(actor(p)) + ") shared->gate[" +
               text(step.value % 64) + "] = 1;\n";
      break;
    case Op::kDropHandle:
      if (exporters_.count(step.on) != 0)
        body_ += "  ON(" + text(exporters_[step.on]) + ") close(" +
                 var('d', step.on) + ");\n";
      break;
    case Op::kNewThread:  // each step has a thread of its own
      break;
    case Op::kStart:
      ++lives_[p];
      break;
    case Op::kEnd:
      if (step.how == kReset) {
        block(p, 0,
              uses_gates_ ? "    OK(cudaDeviceReset());\n    map_gates();\n"
                          : "    OK(cudaDeviceReset());\n");
        break;
      }
      body_ += "  ON(" + text(actor(p)) + ") ends(" +
               (step.how == kKilled ? "true" : "false") + ");\n";
      break;
    case Op::kExportChunk:
    case Op::kExportPool:
      exporters_[step.id] = actor(p);
      block(p, step.thread,
            step.op == Op::kExportPool
                ? "    OK(cudaMemPoolExportToShareableHandle(&" +
                      var('d', step.id) + ", " + var('p', step.on) + ", " + fd +
                      ", 0));\n"
                : "    OK(" + driver("cuMemExportToShareableHandle") + "(&" +
                      var('d', step.id) + ", " + var('c', step.on) +
                      ", CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));\n");
      break;
    case Op::kImportChunk:
    case Op::kImportPool:
      hand_over(step);
      block(
          p, step.thread,
          step.op == Op::kImportPool
              ? "    OK(cudaMemPoolImportFromShareableHandle(&" +
                    var('p', step.id) +
                    ", (void*)(intptr_t)received_descriptor(), " + fd +
                    ", 0));\n" +
                    (step.value == machine_.gpu_of(p)
                         ? std::string()
                         : "    OK(give_access(" + var('p', step.id) + "));\n")
              : "    OK(" + driver("cuMemImportFromShareableHandle") + "(&" +
                    var('c', step.id) +
                    ", (void*)(intptr_t)received_descriptor(), "
                    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));\n");
      break;
    case Op::kRead:
    case Op::kHostRead:
      block(p, step.thread, read_call(step, expected));
      break;
    case Op::kHostWrite:
      uses_pattern_ = true;
      block(p, step.thread,
            "    for (int i = 0; i < " + text(step.bytes) + "; ++i) " +
                var('m', step.on) + "[" + text(step.at) + " + i] = pattern(" +
                text(step.value) + "u, i);\n");
      break;
    case Op::kAskPool:
    case Op::kAskPointer:
    case Op::kAskChunk:
    case Op::kQuestion:
      block(p, step.thread, ask(step, expected));
      break;
    default: {
      std::vector<int> codes = expected.codes;
      if (codes.empty()) codes = {0};
      const std::string call =
          step.op == Op::kRefuse ? refused_call(step) : call_of(step);
      uses_none_ = uses_none_ || call.find("none") != std::string::npos;
      if (expected.held) {
        const int number = static_cast<int>(held_.size());
        held_[{p, step.thread}] = number;
        uses_threads_ = true;
        const std::string w = text(number);
        body_ += "  ON(" + text(actor(p)) + ") waits[" + w +
                 "] = std::thread([] { codes[" + w + "] = " + call +
                 ", returned[" + w + "] = true; });\n";
        if (last)
          body_ += "  ON(" + text(actor(p)) + ") still_waits(" + w + ");\n";
        break;
      }
      std::string line;
      if (codes.size() == 1 && codes[0] == 0) {
        line = "    OK(" + call + ");\n";
      } else {
        std::string allowed;
        for (const int code : codes)
          allowed += (allowed.empty() ? "" : ", ") + text(code);
        line = "    check(\"" + std::string(name_of(step.op)) + "\", is(int(" +
               call + "), {" + allowed + "}));\n";
      }
      if (expected.same_address != 0)
        line += "    check(\"the address\", " + var('m', step.id) +
                " == " + var('m', expected.same_address) + ");\n";
      if (last && failure_.check == "last error")
        line += "    check(\"the last error\", cudaGetLastError() == " +
                (expected.refused ? text(codes[0]) : std::string("0")) + ");\n";
      block(p, step.thread, line);
    }
  }
  for (const Held& call : expected.returned) {
    const auto found = held_.find({call.process, call.thread});
    if (found == held_.end()) continue;
    body_ += "  ON(" + text(actor(call.process)) + ") waits[" +
             text(found->second) + "].join(), OK(codes[" + text(found->second) +
             "]);\n";
  }
}

std::string Printer::globals() const {
  const std::map<char, const char*> types = {
      {'m', "char"},
      {'r', "char"},
      {'s', "cudaStream_t"},
      {'e', "cudaEvent_t"},
      {'p', "cudaMemPool_t"},
      {'c', "CUmemGenericAllocationHandle"},
      {'g', "cudaGraphExec_t"},
      {'d', "int"}};
  std::string lines;
  for (const auto& [letter, ids] : names_) {
    if (ids.empty()) continue;
    const bool pointer = letter == 'm' || letter == 'r';
    std::string line;
    for (const int id : ids)
      line += (line.empty() ? " " : ", ") + std::string(pointer ? "*" : "") +
              letter + std::to_string(id);
    lines += std::string("static ") + types.at(letter) + line + ";\n";
  }
  if (body_.find("seen,") != std::string::npos ||
      body_.find("(seen") != std::string::npos)
    lines += "static char seen[1 << 16];\n";
  if (uses_gates_) lines += "static unsigned* gates;\n";
  if (machine_.gpus > 1) lines += "int gpu;  // of this process\n";
  if (uses_none_) lines += "static void* none;\n";
  return lines;
}

std::string Printer::helpers() const {
  const auto used = [&](const char* name) {
    return body_.find(name) != std::string::npos;
  };
  std::string lines;
  if (uses_driver_) lines += kDriver;
  if (uses_descriptors_) lines += kDescriptors;
  if (uses_pattern_) lines += kPattern;
  if (uses_write_) lines += kWriteKernel;
  if (uses_copy_ || used("read_in(")) lines += kCopyKernel_;
  if (used("is(int("))
    lines += R"(static bool is(int code, std::initializer_list<int> allowed) {
  return std::find(allowed.begin(), allowed.end(), code) != allowed.end();
}
)";
  if (used("in_a_thread("))
    lines += std::string(R"(template <class Call>
static void in_a_thread(Call call) {
  std::thread([&] { cudaSetDevice()") +
             gpu() + R"(), call(); }).join();
}
)";
  if (!held_.empty())
    lines += R"(static std::thread waits[16];
static volatile int codes[16], returned[16];
)";
  if (uses_gates_)
    lines += R"(static void map_gates() {
  OK(cudaHostRegister(shared, sizeof *shared, 0));
  OK(cudaHostGetDevicePointer((void**)&gates, (void*)shared->gate, 0));
}
)";
  if (used("still_waits("))
    lines += R"(static void still_waits(int number) {
  for (int i = 0; i < 500 && !returned[number]; ++i) usleep(1000);
  check("a call that has to wait", !returned[number]);
}
)";
  if (used(", &wanted, 0)"))
    lines +=
        "static CUmemAllocationProp wanted{CU_MEM_ALLOCATION_TYPE_PINNED,"
        "\n  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "
        "{CU_MEM_LOCATION_TYPE_DEVICE, 0}, nullptr, {}};\n";
  if (used(", &on_node, 0)"))
    lines +=
        "static const CUmemAllocationProp on_node{CU_MEM_ALLOCATION_TYPE_"
        "PINNED,\n  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "
        "{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, nullptr, {}};\n";
  if (used("cpus["))
    lines +=
        R"(static const CUmemLocation node{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
static const CUmemAccessDesc cpus[] = {
  {node, CU_MEM_ACCESS_FLAGS_PROT_NONE}, {node, CU_MEM_ACCESS_FLAGS_PROT_READ},
  {node, {}}, {node, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
)";
  if (used("rights["))
    lines += R"(static const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
static CUmemAccessDesc rights[] = {
  {here, CU_MEM_ACCESS_FLAGS_PROT_NONE}, {here, CU_MEM_ACCESS_FLAGS_PROT_READ},
  {here, {}}, {here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
)";
  if (used("give_access("))
    lines += R"(static int give_access(cudaMemPool_t pool) {
  const cudaMemAccessDesc here{{cudaMemLocationTypeDevice, gpu}, cudaMemAccessFlagsProtReadWrite};
  return cudaMemPoolSetAccess(pool, &here, 1);
}
)";
  if (used("create_pool("))
    lines +=
        std::string(
            R"(static int create_pool(cudaMemPool_t* pool, cudaMemAllocationHandleType type) {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned, wanted.handleTypes = type;
  wanted.location = {cudaMemLocationTypeDevice, )") +
        gpu() + R"(};
  return cudaMemPoolCreate(pool, &wanted);
}
)";
  if (used("read_in("))
    lines +=
        R"(static int read_in(cudaStream_t stream, char* to, const char* from, int size, bool kernel) {
  static char* pinned;  // the same in every read
  if (pinned == nullptr) OK(cudaMallocHost(&pinned, sizeof seen));
  if (kernel) copy<<<(size + 127) / 128, 128, 0, stream>>>(pinned, from, size);
  else OK(cudaMemcpyAsync(pinned, from, size, cudaMemcpyDefault, stream));
  const int code = cudaStreamSynchronize(stream);
  return std::memcpy(to, pinned, size), code;
}
)";
  if (used("upload("))
    lines +=
        R"(static int upload(char* to, int size, int rows, int pitch, unsigned key, cudaStream_t stream, bool async) {
  char* from = new char[size * rows];  // lives as long as the copy
  for (int i = 0; i < size * rows; ++i) from[i] = pattern(key, i);
  if (async) return cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, stream);
  return cudaMemcpy2D(to, pitch, from, size, size, rows, cudaMemcpyHostToDevice);
}
)";
  if (used("copy_batch("))
    lines +=
        R"(static int copy_batch(char* to, char* from, size_t size, cudaStream_t stream) {
  void* targets[] = {to, to + size / 2};
  const void* sources[] = {from, from + size / 2};
  const size_t sizes[] = {size / 2, size - size / 2};
  cudaMemcpyAttributes order{};
  order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  return cudaMemcpyBatchAsync(targets, sources, sizes, 2, &order, &first, 1, stream);
}
)";
  if (used("copy_3d_batch("))
    lines +=
        R"(static cudaMemcpy3DOperand side(char* data, size_t pitch, size_t rows) {
  cudaMemcpy3DOperand one{};
  one.type = cudaMemcpyOperandTypePointer;
  one.op.ptr.ptr = data, one.op.ptr.rowLength = pitch, one.op.ptr.layerHeight = rows;
  return one;
}
static int copy_3d_batch(char* to, int pitch, char* from, int from_pitch, int size, int rows, int layers, cudaStream_t stream) {
  cudaMemcpy3DBatchOp whole{};
  whole.src = side(from, from_pitch, rows), whole.dst = side(to, pitch, rows);
  whole.extent = make_cudaExtent(size, rows, layers);
  whole.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  return cudaMemcpy3DBatchAsync(1, &whole, 0, stream);
}
)";
  if (used("copy_box("))
    lines +=
        R"(static int copy_box(char* to, int pitch, char* from, int from_pitch, int size, int rows, int layers,
                    cudaStream_t stream, bool wait) {
  cudaMemcpy3DParms box{};
  box.srcPtr = make_cudaPitchedPtr(from, from_pitch, size, rows);
  box.dstPtr = make_cudaPitchedPtr(to, pitch, size, rows);
  box.extent = make_cudaExtent(size, rows, layers), box.kind = cudaMemcpyDefault;
  return wait ? cudaMemcpy3D(&box) : cudaMemcpy3DAsync(&box, stream);
}
)";
  if (used(" batch(") || used("(batch("))
    lines +=
        R"(static int batch(cudaStream_t stream, CUstreamBatchMemOpType type, char* word, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams one{};  // a wait and a write have the same fields
  one.operation = one.writeValue.operation = type, one.writeValue.flags = flags;
  one.writeValue.address = (CUdeviceptr)word, one.writeValue.value64 = value;
  return DRIVER(cuStreamBatchMemOp)(stream, 1, &one, 0);
}
)";
  if (used("host_write("))
    lines += R"(struct HostWrite { char* to; unsigned count, key; };
static int host_write(cudaStream_t stream, char* to, unsigned count, unsigned key) {
  const auto write = [](void* data) {
    const HostWrite one = *(HostWrite*)data;
    for (unsigned i = 0; i < one.count; ++i) one.to[i] = pattern(one.key, i);
  };
  return cudaLaunchHostFunc(stream, write, new HostWrite{to, count, key});  // for each launch of a graph
}
)";
  if (used("capture_ends("))
    lines +=
        R"(static int capture_ends(cudaStream_t stream, cudaGraphExec_t* run) {
  cudaGraph_t graph = nullptr;
  const int code = cudaStreamEndCapture(stream, &graph);
  return code != 0 ? code : int(cudaGraphInstantiate(run, graph, 0));
}
)";
  if (used("updates("))
    lines +=
        R"(static int updates(cudaStream_t stream, cudaGraphExec_t run) {
  cudaGraph_t graph = nullptr;
  cudaGraphExecUpdateResultInfo info{};
  const int code = cudaStreamEndCapture(stream, &graph);
  return code != 0 ? code : int(cudaGraphExecUpdate(run, graph, &info));
}
)";
  if (used(" ends("))
    lines += R"(static void ends(bool killed) {
  shared->turn = step;
  if (killed) std::raise(SIGKILL);
  _exit(0);
}
)";
  return lines;
}

std::string Printer::print() {
  Shadow shadow(machine_, program_.processes);
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    Expected expected;
    const Step& step = program_.steps[i];
    if (shadow.apply(step, &expected))
      print_step(step, expected, i + 1 == program_.steps.size());
  }
  const int count = std::max<int>(1, static_cast<int>(actors_.size()));
  const std::string processes = std::to_string(count);
  std::string gpu_of_actor = "0";
  if (machine_.gpus > 1) {  // the GPU of each actor, in a list
    std::vector<int> gpus(static_cast<size_t>(count));
    for (const auto& [life, number] : actors_)
      gpus[static_cast<size_t>(number)] = machine_.gpu_of(life.first);
    gpu_of_actor = "gpu = \"";
    for (const int one : gpus) gpu_of_actor += std::to_string(one);
    gpu_of_actor += "\"[me] - '0'";
  }
  // A killed process is no failure; one that dies otherwise is.
  const bool kills = body_.find("ends(true)") != std::string::npos;
  std::string lines =
      "// Found by `ipclab explore`. Exits with 0 if the driver answers as "
      "documented.\n"
      "//   nvcc -o finding finding.cu && ./finding\n";
  lines += R"(#include <cuda.h>
#include <cuda_runtime.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

)";
  lines += std::string(kFrame) + globals() + helpers() +
           "\nstatic void steps() {\n" + body_ + "}\n\nint main() {\n" +
           "  setenv(\"CUDA_MODULE_LOADING\", \"EAGER\", 1);  // a load may "
           "wait for held work\n" +
           "  shared = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | "
           "PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);\n";
  if (uses_descriptors_)
    lines +=
        "  for (auto& pair : sockets) socketpair(AF_UNIX, SOCK_DGRAM, 0, "
        "pair);\n";
  lines += "  int bad = 0, status = 0;\n  for (me = 0; me < " + processes +
           "; ++me) {\n    if (fork() != 0) continue;\n"
           "    alarm(30);  // a call that does not return\n"
           "    OK(cudaSetDevice(" +
           gpu_of_actor + "));\n";
  if (machine_.gpus > 1 && body_.find(", &wanted, 0)") != std::string::npos)
    lines += "    wanted.location.id = gpu;\n";
  if (machine_.gpus > 1 && body_.find("rights[") != std::string::npos)
    lines += "    for (auto& right : rights) right.location.id = gpu;\n";
  if (uses_gates_) lines += "    map_gates();\n";
  lines +=
      "    steps();\n"
      "    while (shared->turn != step && !shared->failed) sched_yield();  // "
      "nobody ends early\n"
      "    _exit(0);\n  }\n";
  lines += std::string("  while (wait(&status) > 0)\n    if (status != 0") +
           (kills ? " && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)"
                  : "") +
           ") bad = shared->failed = 1;\n"
           "  std::printf(bad ? \"NOT AS DOCUMENTED\\n\" : \"as "
           "documented\\n\");\n  return bad;\n}\n";
  return lines;
}

}  // namespace

std::string standalone(const Machine& machine, const Program& program,
                       const Failure& failure) {
  return Printer(machine, program, failure).print();
}

}  // namespace ipclab::explore
