// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/board.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/process.h"
#include "harness/scenario/record.h"

namespace ipclab {
namespace {

constexpr unsigned kBlock = 256;
// Between two looks at something that will change. A thread that looks without
// a pause takes the processor from the work that it waits for.
constexpr auto kBetweenLooks = 200us;

struct Mismatches {
  unsigned long long count;
  unsigned long long first;  // the index, and in the lower 32 bits the value
};

// A variable of the module, so that a check allocates nothing.
__device__ Mismatches mismatches;

unsigned blocks_for(size_t count) {
  const size_t blocks = (count + kBlock - 1) / kBlock;
  return static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
}

__global__ void write_pattern(uint32_t* data, size_t count, Pattern pattern) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step)
    data[i] = pattern.at(i);
}

// volatile: every word is read from memory each time.
__global__ void count_mismatches(const volatile uint32_t* data, size_t count,
                                 Pattern pattern) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step) {
    const uint32_t seen = data[i];
    if (seen == pattern.at(i)) continue;
    atomicAdd(&mismatches.count, 1ull);
    atomicMin(&mismatches.first,
              static_cast<unsigned long long>(i) << 32 | seen);
  }
}

__global__ void wait_for_flag(const volatile unsigned* flag,
                              unsigned long long limit_ns) {
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*flag == 0 && now - began < limit_ns);
}

testing::AssertionResult wrong_word(const char* path, size_t index,
                                    uint32_t expected, uint32_t seen,
                                    size_t wrong, size_t count) {
  expected_but_saw(hexadecimal(expected), hexadecimal(seen));
  return testing::AssertionFailure()
         << path << " reads " << hexadecimal(seen) << " in word " << index
         << ", expected " << hexadecimal(expected) << " (" << wrong << " of "
         << count << " words are wrong)";
}

// Do `count` words that `path` has read hold the pattern?
testing::AssertionResult holds(const char* path, const uint32_t* words,
                               size_t count, Pattern pattern) {
  size_t wrong = 0, first = 0;
  for (size_t i = count; i-- > 0;)
    if (words[i] != pattern.at(i)) {
      ++wrong;
      first = i;
    }
  if (wrong == 0) return testing::AssertionSuccess();
  return wrong_word(path, first, pattern.at(first), words[first], wrong, count);
}

// Codes that are about the machine, not about the call.
bool cannot_judge(int code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
    case cudaErrorECCUncorrectable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
      return true;
    default:
      return false;
  }
}

template <class Code>
void require_success_of(Code code, const char* call, const char* file,
                        int line) {
  if (code == Code{}) return;
  throw CallFailed{call,
                   name_of(Code{}),
                   name_of(code),
                   file,
                   line,
                   cannot_judge(code),
                   static_cast<int>(code) == kFabricNotReady};
}

// If the fabric is still not ready, no call can be judged. Ends the role, and
// the scenario with it.
template <class Code>
void require_ready_fabric(Code code, const char* call) {
  if (static_cast<int>(code) == kFabricNotReady)
    require_success_of(code, call, __FILE__, __LINE__);
}

// The runtime keeps the code of a refused call. The next check must not find
// this code.
void clear(cudaError_t) { cudaGetLastError(); }
void clear(CUresult) {}

}  // namespace

std::string hexadecimal(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

// A runtime or a driver before CUDA 13.4 does not know this code.
std::string name_of(cudaError_t code) {
  return static_cast<int>(code) == kFabricNotReady ? "cudaErrorFabricNotReady"
                                                   : cudaGetErrorName(code);
}

std::string name_of(CUresult code) {
  if (static_cast<int>(code) == kFabricNotReady)
    return "CUDA_ERROR_FABRIC_NOT_READY";
  if (code == CUDA_SUCCESS) return "CUDA_SUCCESS";
  const std::string name = driver_error(code);
  return name == "?" ? "CUresult " + std::to_string(code) : name;
}

void note_call(const char* call) {
  if (this_board() != nullptr) this_board()->note(Board::kCall, call);
}

void require_success(cudaError_t code, const char* call, const char* file,
                     int line) {
  require_success_of(code, call, file, line);
}

void require_success(CUresult code, const char* call, const char* file,
                     int line) {
  require_success_of(code, call, file, line);
}

template <class Code>
testing::AssertionResult gives(Code code, const char* call, Code wanted) {
  clear(code);
  if (code == wanted) return testing::AssertionSuccess();
  require_ready_fabric(code, call);
  expected_but_saw(name_of(wanted), name_of(code));
  return testing::AssertionFailure() << call << " gives " << name_of(code)
                                     << ", expected " << name_of(wanted);
}
template testing::AssertionResult gives(cudaError_t, const char*, cudaError_t);
template testing::AssertionResult gives(CUresult, const char*, CUresult);

template <class Code>
testing::AssertionResult refused(Code code, const char* call,
                                 std::initializer_list<Code> documented) {
  clear(code);
  const Code expected = *documented.begin();
  if (code == expected) return testing::AssertionSuccess();
  require_ready_fabric(code, call);
  for (const Code also : documented)
    if (code == also) {
      if (Role* role = Process::self().role)
        role->observe(std::string(call) + ": refused with " + name_of(code) +
                      ", documented as well as the expected " +
                      name_of(expected));
      return testing::AssertionSuccess();
    }
  expected_but_saw(name_of(expected), name_of(code));
  return testing::AssertionFailure()
         << call << (code == Code{} ? " succeeds" : " is refused with ")
         << (code == Code{} ? "" : name_of(code)) << ", expected "
         << name_of(expected) << " or another code of its documented list";
}
template testing::AssertionResult refused(cudaError_t, const char*,
                                          std::initializer_list<cudaError_t>);
template testing::AssertionResult refused(CUresult, const char*,
                                          std::initializer_list<CUresult>);

template <class Code>
Outcome outcome_of(Code code, const std::vector<Code>& documented) {
  clear(code);
  if (code == Code{}) return {Outcome::kWrongSuccess, name_of(code)};
  const bool known =
      std::find(documented.begin(), documented.end(), code) != documented.end();
  return {known ? Outcome::kDocumentedRefusal : Outcome::kOtherRefusal,
          name_of(code)};
}
template Outcome outcome_of(cudaError_t, const std::vector<cudaError_t>&);
template Outcome outcome_of(CUresult, const std::vector<CUresult>&);

testing::AssertionResult is_told_once(const char* call, cudaError_t refusal) {
  int device = 0;
  cudaGetDevice(&device);  // a success must not clear the error
  const cudaError_t peeked = cudaPeekAtLastError();  // keeps the error
  const cudaError_t again = cudaPeekAtLastError();
  const cudaError_t first = cudaGetLastError(), second = cudaGetLastError();
  if (refusal != cudaSuccess && peeked == refusal && again == refusal &&
      first == refusal && second == cudaSuccess)
    return testing::AssertionSuccess();
  expected_but_saw(name_of(refusal) + " once",
                   name_of(first) + ", then " + name_of(second));
  return testing::AssertionFailure()
         << call << " gives " << name_of(refusal)
         << ", cudaPeekAtLastError: " << name_of(peeked) << ", then "
         << name_of(again) << ", and cudaGetLastError: " << name_of(first)
         << ", then " << name_of(second);
}

testing::AssertionResult leaves_no_error(const char* call,
                                         cudaError_t success) {
  const cudaError_t last = cudaGetLastError();
  if (success == cudaSuccess && last == cudaSuccess)
    return testing::AssertionSuccess();
  expected_but_saw("cudaSuccess, no last error",
                   name_of(success) + ", last error " + name_of(last));
  return testing::AssertionFailure() << call << " gives " << name_of(success)
                                     << " and leaves " << name_of(last);
}

void gave_no_result() {
  throw CallFailed{this_board()->last(Board::kCall),
                   "a result",
                   "cudaSuccess and no result",
                   __FILE__,
                   __LINE__,
                   false};
}

void expect_documented(const Outcome& outcome, const std::string& what) {
  expected_but_saw("a documented refusal", outcome.code);
  EXPECT_EQ(outcome.kind, Outcome::kDocumentedRefusal)
      << what << ": " << outcome.code;
}

void observe_code(Role& me, const std::string& what, cudaError_t code) {
  me.observe(what + ": " + name_of(code));
  cudaGetLastError();
}

bool observe_check(Role& me, const std::string& what,
                   const std::function<testing::AssertionResult()>& check) {
  bool good = false;
  try {
    good = static_cast<bool>(check());
    me.observe(what + (good ? ": yes" : ": no"));
  } catch (const CallFailed& failed) {
    if (failed.unready) throw;
    me.observe(what + ": " + failed.call + " gives " + failed.seen);
  }
  cudaGetLastError();
  expected_but_saw("", "");
  return good;
}

std::string not_in_this_build(const char* function, const char* version) {
  return "built with CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
         std::to_string(CUDART_VERSION % 1000 / 10) + "; " + function +
         " came with CUDA " + version;
}

bool has_pools_of_locations(Role& me) {
  if (!kPoolsOfLocations)
    me.observe("left out: checks of pools by location; " +
               not_in_this_build("cudaMemSetMemPool", "13.0"));
  return kPoolsOfLocations;
}

CUresult synchronize_context() {
  static const auto function = reinterpret_cast<decltype(&cuCtxSynchronize)>(
      dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuCtxSynchronize"));
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function();
}

testing::AssertionResult context_is_usable() {
  try {
    const DeviceBuffer buffer(4096);
    const Pattern proof = pattern("usable");
    buffer.fill(proof);
    const testing::AssertionResult by_kernel = kernel_reads(buffer, proof);
    return by_kernel ? copy_reads(buffer, proof) : by_kernel;
  } catch (const CallFailed& failed) {
    if (failed.unready) throw;
    expected_but_saw(failed.expected, failed.seen);
    return testing::AssertionFailure()
           << "the context is not usable any more: " << failed.call << " gives "
           << failed.seen;
  }
}

Pattern pattern(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u + seed();
  for (const char c : name)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return {static_cast<uint32_t>(hash ^ (hash >> 32))};
}

void Words::fill(Pattern pattern, cudaStream_t stream) const {
  queue_fill(pattern, stream);
  CALL(cudaStreamSynchronize(stream));
}

void Words::queue_fill(Pattern pattern, cudaStream_t stream) const {
  note_call("write_pattern<<<>>>");
  write_pattern<<<blocks_for(count), kBlock, 0, stream>>>(data, count, pattern);
  CALL(cudaGetLastError());
}

void Words::poison() const {
  CALL(cudaMemset(data, 0xEE, bytes()));
  CALL(cudaDeviceSynchronize());
}

testing::AssertionResult kernel_reads(const Words& words, Pattern pattern) {
  Mismatches found{0, ~0ull};
  CALL(cudaMemcpyToSymbol(mismatches, &found, sizeof found));
  note_call("count_mismatches<<<>>>");
  count_mismatches<<<blocks_for(words.count), kBlock>>>(words.data, words.count,
                                                        pattern);
  CALL(cudaGetLastError());
  CALL(cudaDeviceSynchronize());
  CALL(cudaMemcpyFromSymbol(&found, mismatches, sizeof found));
  if (found.count == 0) return testing::AssertionSuccess();
  // A copy of the word would give another error if the driver does not know the
  // address.
  note_call("count_mismatches<<<>>>");
  const size_t first = found.first >> 32;
  return wrong_word("a kernel", first, pattern.at(first),
                    static_cast<uint32_t>(found.first), found.count,
                    words.count);
}

testing::AssertionResult copy_reads(const Words& words, Pattern pattern) {
  std::vector<uint32_t> seen(words.count, 0xA5A5A5A5);
  CALL(cudaMemcpy(seen.data(), words.data, words.bytes(), cudaMemcpyDefault));
  return holds("cudaMemcpy", seen.data(), seen.size(), pattern);
}

void host_writes(const Words& words, Pattern pattern) {
  for (size_t i = 0; i < words.count; ++i) words.data[i] = pattern.at(i);
}

testing::AssertionResult host_reads(const Words& words, Pattern pattern) {
  return holds("the host", words.data, words.count, pattern);
}

testing::AssertionResult kernel_faults(const Words& words) {
  note_call("count_mismatches<<<>>>");
  count_mismatches<<<1, 1>>>(words.data, 1, Pattern{0});
  // Reports a launch that has already faulted.
  cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) code = NOTED(cudaDeviceSynchronize());
  if (code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure)
    return testing::AssertionSuccess();
  expected_but_saw(name_of(cudaErrorIllegalAddress), name_of(code));
  return testing::AssertionFailure()
         << "a kernel reads memory that is not for it: " << name_of(code);
}

DeviceBuffer::DeviceBuffer(size_t bytes, Fresh fresh) {
  Sentinel<void*> memory;
  CALL(cudaMalloc(memory.out(), bytes));
  static_cast<Words&>(*this) = Words(memory.result(), bytes);
  if (fresh == Fresh::kPoisoned) poison();
}

PinnedBuffer::PinnedBuffer(size_t bytes) {
  Sentinel<void*> memory;
  CALL(cudaMallocHost(memory.out(), bytes));
  std::memset(memory.result(), 0, bytes);
  static_cast<Words&>(*this) = Words(memory.result(), bytes);
}

cudaIpcMemHandle_t DeviceBuffer::legacy_handle() const {
  Sentinel<cudaIpcMemHandle_t> handle;
  CALL(cudaIpcGetMemHandle(handle.out(), data));
  return handle.result();
}

void DeviceBuffer::free() {
  CALL(cudaFree(data));
  data = nullptr;
}

void* open_handle(const cudaIpcMemHandle_t& handle) {
  void* opened = nullptr;
  CALL(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
  return opened;
}

LegacyMapping::LegacyMapping(const cudaIpcMemHandle_t& handle, size_t bytes) {
  Sentinel<void*> memory;
  CALL(cudaIpcOpenMemHandle(memory.out(), handle,
                            cudaIpcMemLazyEnablePeerAccess));
  static_cast<Words&>(*this) = Words(memory.result(), bytes);
}

void LegacyMapping::close() {
  CALL(cudaIpcCloseMemHandle(data));
  data = nullptr;
}

std::function<void(Role&)> lends(Pattern written, size_t bytes, int closes) {
  return [=](Role& me) {
    const DeviceBuffer buffer(bytes);
    buffer.fill(written);
    me.send("handle", buffer.legacy_handle());
    me.wait("closed", closes);
  };
}

std::function<void(Role&)> borrows(
    Pattern expected, size_t bytes,
    testing::AssertionResult (*reads)(const Words&, Pattern)) {
  return [=](Role& me) {
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), bytes);
    EXPECT_TRUE(reads(mapping, expected));
    mapping.close();
    me.signal("closed");
  };
}

Latch::Latch() {
  void* flag = nullptr;
  CALL(cudaHostAlloc(&flag, sizeof *flag_, cudaHostAllocMapped));
  flag_ = static_cast<unsigned*>(flag);
  *flag_ = 0;
}

Latch::~Latch() {
  release();
  cudaFreeHost(flag_);  // waits for kernels that still read it
}

void Latch::hold(cudaStream_t stream, double limit_seconds) {
  note_call("wait_for_flag<<<>>>");
  wait_for_flag<<<1, 1, 0, stream>>>(
      flag_, static_cast<unsigned long long>(limit_seconds * 1e9));
  CALL(cudaGetLastError());
}

void Latch::release() { *static_cast<volatile unsigned*>(flag_) = 1; }

Stream::Stream(Kind kind) {
  if (kind != Kind::kUrgent) {
    CALL(cudaStreamCreateWithFlags(&stream_, kind == Kind::kBlocking
                                                 ? cudaStreamDefault
                                                 : cudaStreamNonBlocking));
    return;
  }
  int lowest = 0, highest = 0;
  CALL(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  CALL(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
}

testing::AssertionResult passes(cudaStream_t stream,
                                std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  note_call("cudaStreamQuery(stream)");
  for (;;) {
    const cudaError_t code = cudaStreamQuery(stream);
    clear(code);
    if (code == cudaSuccess) return testing::AssertionSuccess();
    if (code != cudaErrorNotReady ||
        std::chrono::steady_clock::now() > deadline) {
      expected_but_saw(name_of(cudaSuccess), name_of(code));
      return testing::AssertionFailure()
             << "the stream's work is not done after " << limit.count()
             << " ms: " << name_of(code);
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// Does `ask` say "not ready" for 0.5 s? The last query comes after the 0.5 s,
// even if this thread did not run meanwhile.
template <class Ask>
static bool stays_pending(Ask ask) {
  const auto deadline = std::chrono::steady_clock::now() + 500ms;
  for (;;) {
    const bool last = std::chrono::steady_clock::now() > deadline;
    const cudaError_t code = ask();
    clear(code);
    if (code != cudaErrorNotReady) return false;
    if (last) return true;
    std::this_thread::sleep_for(1ms);  // leaves the processor to the work
  }
}

bool is_held(cudaStream_t stream) {
  return stays_pending([=] { return NOTED(cudaStreamQuery(stream)); });
}

bool is_held(cudaEvent_t event) {
  return stays_pending([=] { return NOTED(cudaEventQuery(event)); });
}

bool HostWait::is_held() const {
  return stays_pending(
      [this] { return returned() ? cudaSuccess : cudaErrorNotReady; });
}

SharedEvent::SharedEvent(unsigned flags) {
  Sentinel<cudaEvent_t> event;
  CALL(cudaEventCreateWithFlags(event.out(), flags));
  event_ = event.result();
}

SharedEvent::SharedEvent(const cudaIpcEventHandle_t& handle) {
  Sentinel<cudaEvent_t> event;
  CALL(cudaIpcOpenEventHandle(event.out(), handle));
  event_ = event.result();
}

cudaIpcEventHandle_t SharedEvent::handle() const {
  Sentinel<cudaIpcEventHandle_t> handle;
  CALL(cudaIpcGetEventHandle(handle.out(), event_));
  return handle.result();
}

void SharedEvent::destroy() {
  CALL(cudaEventDestroy(event_));
  event_ = nullptr;
}

HostWait::HostWait(cudaEvent_t event)
    : HostWait("cudaEventSynchronize(event)",
               [event] { return cudaEventSynchronize(event); }) {}

HostWait::HostWait(const char* name, std::function<cudaError_t()> call) {
  note_call((std::string(name) + " in a thread").c_str());
  thread_ = std::thread([this, call = std::move(call)] {
    const auto began = std::chrono::steady_clock::now();
    entered_ = true;
    code_ = call();
    returned_ = true;
    waited_us_ = std::chrono::duration_cast<std::chrono::microseconds>(
                     std::chrono::steady_clock::now() - began)
                     .count();
    rusage used;
    getrusage(RUSAGE_THREAD, &used);
    const auto us = [](const timeval& time) {
      return time.tv_sec * 1000000ll + time.tv_usec;
    };
    cpu_us_ = us(used.ru_utime) + us(used.ru_stime);
  });
  while (!entered_) std::this_thread::yield();
}

HostWait::~HostWait() {
  if (thread_.joinable()) thread_.join();
}

cudaError_t HostWait::join() {
  thread_.join();
  return code_;
}

namespace {

// The value of an attribute, of which a query returned `code`. A driver that is
// older than the toolkit of this program may not know the attribute.
template <class Code>
int known(Code code, const Sentinel<int>& value, const char* query) {
  int driver = 0;
  if (static_cast<int>(code) == cudaErrorInvalidValue) {
    CALL(cudaDriverGetVersion(&driver));
    cudaGetLastError();
    if (driver < std::max(CUDART_VERSION, 13000)) return 0;
  }
  require_success(code, query, __FILE__, __LINE__);
  return value.result();
}

}  // namespace

int attribute(cudaDeviceAttr which, int device) {
  Sentinel<int> value;
  note_call("cudaDeviceGetAttribute");
  return known(cudaDeviceGetAttribute(value.out(), which, device), value,
               "cudaDeviceGetAttribute");
}

int attribute(CUdevice_attribute which, int device) {
  CUdevice gpu = 0;
  Sentinel<int> value;
  CALL(cudaFree(nullptr));  // initialises the driver API
  CALL(DRIVER(cuDeviceGet)(&gpu, device));
  note_call("cuDeviceGetAttribute");
  return known(DRIVER(cuDeviceGetAttribute)(value.out(), which, gpu), value,
               "cuDeviceGetAttribute");
}

// For main(): a role of another test may begin in this process only if this
// returns true.
bool cuda_is_as_new() {
  CUcontext current = nullptr;
  // Does not query a process without a context, because the query would make
  // one.
  if (DRIVER(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == nullptr)
    return cudaPeekAtLastError() == cudaSuccess;
  int device = -1;
  CUcontext primary = nullptr;
  cudaMemPool_t pool = nullptr, usual = nullptr;
  unsigned long long used = 1, kept = 1;
  const bool asked =
      cudaPeekAtLastError() == cudaSuccess &&
      cudaDeviceSynchronize() == cudaSuccess &&
      cudaGetDevice(&device) == cudaSuccess && device == 0 &&
      DRIVER(cuDevicePrimaryCtxRetain)(&primary, 0) == CUDA_SUCCESS &&
      DRIVER(cuDevicePrimaryCtxRelease)(0) == CUDA_SUCCESS &&
      cudaDeviceGetMemPool(&pool, 0) == cudaSuccess &&
      cudaDeviceGetDefaultMemPool(&usual, 0) == cudaSuccess &&
      cudaMemPoolGetAttribute(usual, cudaMemPoolAttrUsedMemCurrent, &used) ==
          cudaSuccess &&
      cudaMemPoolGetAttribute(usual, cudaMemPoolAttrReleaseThreshold, &kept) ==
          cudaSuccess;
  if (!asked || current != primary || pool != usual || used != 0 || kept != 0)
    return false;
  for (const cudaMemPoolAttr policy :
       {cudaMemPoolReuseFollowEventDependencies,
        cudaMemPoolReuseAllowOpportunistic,
        cudaMemPoolReuseAllowInternalDependencies}) {
    int allowed = 0;
    if (cudaMemPoolGetAttribute(usual, policy, &allowed) != cudaSuccess ||
        allowed != 1)
      return false;
  }
  return true;
}

size_t free_memory() {
  Sentinel<size_t> free, total;
  CALL(cudaMemGetInfo(free.out(), total.out()));
  EXPECT_LE(free.result(), total.result());
  return free.result();
}

std::string visible_gpus(std::initializer_list<int> order) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> entries;
  std::istringstream given(list == nullptr ? "0,1" : list);
  for (std::string entry; std::getline(given, entry, ',');)
    entries.push_back(entry);
  // A role also calls this function. In a role, the variable already has a
  // shorter list.
  entries.resize(std::max(entries.size(), size_t{2}), "none");
  std::string chosen;
  for (const int gpu : order)
    chosen += (chosen.empty() ? "" : ",") + entries.at(gpu);
  return chosen;
}

namespace {

// How much this process has of each resource that a round of sharing uses.
struct Holdings {
  long long descriptors, addresses, names, taken;
};

Holdings holdings() {
  long long pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  size_t free = 0, total = 0;
  CALL(cudaMemGetInfo(&free, &total));
  return {static_cast<long long>(open_descriptors().size()),
          pages * sysconf(_SC_PAGESIZE),
          static_cast<long long>(shared_memory_names().size()),
          static_cast<long long>(total - free)};
}

// Fails if each sample is at least `least` larger than the previous sample, or
// if the last sample is at least `most` larger than the first.
void expect_no_growth(const char* what, const std::vector<Holdings>& looks,
                      long long Holdings::*of, long long least,
                      long long most) {
  std::string numbers;
  bool grows = true;
  for (size_t i = 0; i < looks.size(); ++i) {
    numbers += (i == 0 ? "" : ", ") + std::to_string(looks[i].*of);
    grows &= i == 0 || looks[i].*of >= looks[i - 1].*of + least;
  }
  const long long all = looks.back().*of - looks.front().*of;
  if (!grows && all < most) return;
  expected_but_saw("no growth", numbers);
  ADD_FAILURE() << what << " grow with the rounds: " << numbers;
}

}  // namespace

void leaves_nothing(int rounds, const std::function<void(int)>& round,
                    Judge judge) {
  constexpr int kFirst = 20, kParts = 4;
  constexpr long long kHalfAPage = 2048, kFew = 16, kMuch = 256ll << 20;
  const int part = rounds / kParts;
  std::vector<Holdings> looks;
  for (int number = 0; number < kFirst + kParts * part; ++number) {
    if (number >= kFirst && (number - kFirst) % part == 0)
      looks.push_back(holdings());
    round(number);
    if (testing::Test::HasFailure()) return;
  }
  looks.push_back(holdings());
  expect_no_growth("open descriptors", looks, &Holdings::descriptors, 1, kFew);
  expect_no_growth("bytes of address space", looks, &Holdings::addresses,
                   kHalfAPage * part, kMuch);
  expect_no_growth("names in /dev/shm", looks, &Holdings::names, 1, kFew);
  if (judge == Judge::kProcessAndDevice)
    expect_no_growth("bytes taken of the device", looks, &Holdings::taken,
                     kHalfAPage * part, kMuch);
}

testing::AssertionResult returned(size_t free_before, size_t bytes) {
  const auto until = std::chrono::steady_clock::now() + 4s;
  size_t now = free_memory();
  while (now < free_before + bytes / 2) {
    if (std::chrono::steady_clock::now() > until) {
      expected_but_saw(std::to_string(free_before + bytes) + " bytes free",
                       std::to_string(now));
      return testing::AssertionFailure()
             << bytes << " bytes of device memory have not come back";
    }
    std::this_thread::sleep_for(1ms);  // on the model a look is expensive
    now = free_memory();
  }
  return testing::AssertionSuccess();
}

}  // namespace ipclab
