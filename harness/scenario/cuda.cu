// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "harness/scenario/board.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/process.h"
#include "harness/scenario/record.h"

namespace ipclab {
namespace {

constexpr unsigned kBlock = 256;

struct Mismatches {
  unsigned long long count;
  unsigned long long first;
};

// A variable of the module, so that looking allocates nothing.
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

// volatile: every word is read from memory, whatever was read before.
__global__ void count_mismatches(const volatile uint32_t* data, size_t count,
                                 Pattern pattern) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step) {
    if (data[i] == pattern.at(i)) continue;
    atomicAdd(&mismatches.count, 1ull);
    atomicMin(&mismatches.first, static_cast<unsigned long long>(i));
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

std::string hexadecimal(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
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

// Codes that speak of the machine, not of the call.
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
  throw CallFailed{call, name_of(Code{}),   name_of(code), file,
                   line, cannot_judge(code)};
}

// A refused runtime call leaves its code behind; the next check must not find
// it.
void clear(cudaError_t) { cudaGetLastError(); }
void clear(CUresult) {}

}  // namespace

std::string name_of(cudaError_t code) { return cudaGetErrorName(code); }

std::string name_of(CUresult code) {
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

testing::AssertionResult context_is_usable() {
  try {
    const DeviceBuffer buffer(4096);
    const Pattern proof = pattern("usable");
    buffer.fill(proof);
    const testing::AssertionResult by_kernel = kernel_reads(buffer, proof);
    return by_kernel ? copy_reads(buffer, proof) : by_kernel;
  } catch (const CallFailed& failed) {
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
  uint32_t seen = 0;
  CALL(cudaMemcpy(&seen, words.data + found.first, sizeof seen,
                  cudaMemcpyDefault));
  return wrong_word("a kernel", found.first, pattern.at(found.first), seen,
                    found.count, words.count);
}

testing::AssertionResult copy_reads(const Words& words, Pattern pattern) {
  std::vector<uint32_t> seen(words.count, 0xA5A5A5A5);
  CALL(cudaMemcpy(seen.data(), words.data, words.bytes(), cudaMemcpyDefault));
  return holds("cudaMemcpy", seen.data(), seen.size(), pattern);
}

testing::AssertionResult host_reads(const Words& words, Pattern pattern) {
  return holds("the host", words.data, words.count, pattern);
}

DeviceBuffer::DeviceBuffer(size_t bytes) {
  void* memory = nullptr;
  CALL(cudaMalloc(&memory, bytes));
  static_cast<Words&>(*this) = Words(memory, bytes);
  poison();
}

cudaIpcMemHandle_t DeviceBuffer::legacy_handle() const {
  cudaIpcMemHandle_t handle;
  CALL(cudaIpcGetMemHandle(&handle, data));
  return handle;
}

void DeviceBuffer::free() {
  CALL(cudaFree(data));
  data = nullptr;
}

LegacyMapping::LegacyMapping(const cudaIpcMemHandle_t& handle, size_t bytes) {
  void* memory = nullptr;
  CALL(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  static_cast<Words&>(*this) = Words(memory, bytes);
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
  cudaFreeHost(flag_);  // waits for kernels that still look at it
}

void Latch::hold(cudaStream_t stream) {
  note_call("wait_for_flag<<<>>>");
  wait_for_flag<<<1, 1, 0, stream>>>(
      flag_, static_cast<unsigned long long>(kLimitSeconds * 1e9));
  CALL(cudaGetLastError());
}

void Latch::release() { *static_cast<volatile unsigned*>(flag_) = 1; }

Stream::Stream() {
  CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
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
    std::this_thread::yield();
  }
}

SharedEvent::SharedEvent(unsigned flags) {
  CALL(cudaEventCreateWithFlags(&event_, flags));
}

SharedEvent::SharedEvent(const cudaIpcEventHandle_t& handle) {
  CALL(cudaIpcOpenEventHandle(&event_, handle));
}

cudaIpcEventHandle_t SharedEvent::handle() const {
  cudaIpcEventHandle_t handle;
  CALL(cudaIpcGetEventHandle(&handle, event_));
  return handle;
}

void SharedEvent::destroy() {
  CALL(cudaEventDestroy(event_));
  event_ = nullptr;
}

HostWait::HostWait(cudaEvent_t event) {
  note_call("cudaEventSynchronize(event) in a thread");
  thread_ = std::thread([this, event] {
    entered_ = true;
    code_ = cudaEventSynchronize(event);
    returned_ = true;
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

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  CALL(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

int attribute(CUdevice_attribute which, int device) {
  CUdevice gpu = 0;
  int value = 0;
  CALL(cudaFree(nullptr));  // the driver API wants to be initialised
  CALL(DRIVER(cuDeviceGet)(&gpu, device));
  CALL(DRIVER(cuDeviceGetAttribute)(&value, which, gpu));
  return value;
}

size_t free_memory() {
  size_t free = 0, total = 0;
  CALL(cudaMemGetInfo(&free, &total));
  return free;
}

std::string visible_gpus(std::initializer_list<int> order) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> entries;
  std::istringstream given(list == nullptr ? "0,1" : list);
  for (std::string entry; std::getline(given, entry, ',');)
    entries.push_back(entry);
  // A role comes by here as well, with a list that is shortened already.
  entries.resize(std::max(entries.size(), size_t{2}), "none");
  std::string chosen;
  for (const int gpu : order)
    chosen += (chosen.empty() ? "" : ",") + entries.at(gpu);
  return chosen;
}

Holdings Holdings::now() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return {open_descriptors().size(),
          pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)),
          shared_memory_names().size(), free_memory()};
}

void expect_no_growth(const Holdings& before) {
  constexpr size_t kMayGrow = size_t{256} << 20;
  const Holdings now = Holdings::now();
  EXPECT_LE(now.descriptors, before.descriptors);
  EXPECT_LE(now.addresses, before.addresses + kMayGrow);
  EXPECT_LE(now.names, before.names) << "names in /dev/shm";
  EXPECT_GE(now.free + kMayGrow, before.free);
}

testing::AssertionResult returned(size_t free_before, size_t bytes) {
  const auto until = std::chrono::steady_clock::now() + 10s;
  size_t now = free_memory();
  while (now < free_before + bytes / 2) {
    if (std::chrono::steady_clock::now() > until) {
      expected_but_saw(std::to_string(free_before + bytes) + " bytes free",
                       std::to_string(now));
      return testing::AssertionFailure()
             << bytes << " bytes of device memory have not come back";
    }
    now = free_memory();
  }
  return testing::AssertionSuccess();
}

}  // namespace ipclab
