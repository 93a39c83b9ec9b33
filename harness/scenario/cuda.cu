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
  throw CallFailed{call, name_of(Code{}),   name_of(code), file,
                   line, cannot_judge(code)};
}

// The runtime keeps the code of a refused call. The next check must not find
// this code.
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

namespace {

// --- every way to write and to read -----------------------------------------

// Each way has its own part, with an odd offset and an odd size.
enum Way {
  kByKernel,
  kByCopy,
  kByCopyAsync,
  kByDeviceCopy,
  kByDeviceCopyAsync,
  kByMemset,
  kByMemsetAsync,
  kByDriverCopy,
  kByDriverMemset,
  kByCopy2D,
  kByCopy3D,
  kByMemset2D,
  kByDriverCopyAsync,
  kByDriverMemsetAsync,
  kByInnerCopy,
  kByPinnedCopy,
  kByThreadCopy,
  kByThreadMemset,
  kByDriverDeviceCopy,
  kByDriverDeviceCopyAsync,
  kByUnifiedCopy,
  kByUnifiedCopyAsync,
  kByPeerCopy,
  kByCopy2DAsync,
  kByCopy3DAsync,
  kByMemset2DAsync,
  kByMemset3D,
  kByMemset16,
  kByMemset16Async,
  kByMemset32,
  kByMemset32Async,
  kWays
};
constexpr const char* kWayNames[] = {"a kernel",
                                     "cudaMemcpy",
                                     "cudaMemcpyAsync",
                                     "cudaMemcpy D2D",
                                     "cudaMemcpyAsync D2D",
                                     "cudaMemset",
                                     "cudaMemsetAsync",
                                     "cuMemcpyHtoD",
                                     "cuMemsetD8",
                                     "cudaMemcpy2D",
                                     "cudaMemcpy3D",
                                     "cudaMemset2D",
                                     "cuMemcpyHtoDAsync",
                                     "cuMemsetD8Async",
                                     "cudaMemcpy of another part",
                                     "a copy from pinned memory",
                                     "a copy in the thread's stream",
                                     "a memset in the thread's stream",
                                     "cuMemcpyDtoD",
                                     "cuMemcpyDtoDAsync",
                                     "cuMemcpy",
                                     "cuMemcpyAsync",
                                     "cudaMemcpyPeer",
                                     "cudaMemcpy2DAsync",
                                     "cudaMemcpy3DAsync",
                                     "cudaMemset2DAsync",
                                     "cudaMemset3D",
                                     "cuMemsetD16",
                                     "cuMemsetD16Async",
                                     "cuMemsetD32",
                                     "cuMemsetD32Async"};
constexpr size_t kPartStep = 4096, kPartAt = 5, kPartBytes = 1023;
// A part as a rectangle: rows of bytes, in two pieces side by side.
constexpr size_t kRows = 3, kRow = kPartBytes / kRows, kLeft = 100;
constexpr unsigned char kPoisonByte = 0xEE, kGuardByte = 0xA5;
static_assert(kWays * kPartStep <= kEveryWay);

// After how many bytes the values of a way are repeated; 0 if they are not.
__host__ __device__ size_t period_of(int way) {
  if (way >= kByMemset32) return 4;
  if (way >= kByMemset16) return 2;
  const bool one = way == kByMemset || way == kByMemsetAsync ||
                   way == kByDriverMemset || way == kByMemset2D ||
                   way == kByDriverMemsetAsync || way == kByThreadMemset ||
                   way == kByMemset2DAsync || way == kByMemset3D;
  return one ? 1 : 0;
}

__host__ __device__ unsigned char part_byte(int way, size_t i, unsigned key) {
  if (way == kByInnerCopy) way = kByDeviceCopy;
  const size_t period = period_of(way);
  if (period > 0) i = (kPartAt + i) % period;
  return static_cast<unsigned char>(1 + (way * 37 + i * 7 + key) % 200);
}

__global__ void write_part(unsigned char* to, int way, unsigned key) {
  for (size_t i = threadIdx.x; i < kPartBytes; i += blockDim.x)
    to[i] = part_byte(way, i, key);
}

unsigned char* part_of(const Words& memory, int way) {
  return reinterpret_cast<unsigned char*>(memory.data) + way * kPartStep +
         kPartAt;
}

// Rows of memory as a box for the runtime's 3D copies; each row is a layer.
cudaMemcpy3DParms box_of(void* to, const void* from, size_t pitch, size_t width,
                         size_t rows, cudaMemcpyKind kind) {
  cudaMemcpy3DParms box{};
  box.dstPtr = make_cudaPitchedPtr(to, pitch, width, 1);
  box.srcPtr = make_cudaPitchedPtr(const_cast<void*>(from), pitch, width, 1);
  box.extent = make_cudaExtent(width, 1, rows);
  box.kind = kind;
  return box;
}

std::vector<unsigned char> part_bytes(int way, unsigned key) {
  std::vector<unsigned char> bytes(kPartBytes);
  for (size_t i = 0; i < kPartBytes; ++i) bytes[i] = part_byte(way, i, key);
  return bytes;
}

void write_in_every_way(const Words& memory, unsigned key) {
  Latch latch;
  const Stream stream;
  const DeviceBuffer own(kEveryWay);
  const auto to = [&](int way) { return part_of(memory, way); };
  const auto address = [&](int way) {
    return reinterpret_cast<CUdeviceptr>(to(way));
  };
  std::vector<std::vector<unsigned char>> bytes;
  for (int way = 0; way < kWays; ++way) bytes.push_back(part_bytes(way, key));
  const PinnedBuffer pinned(kPartBytes);
  std::memcpy(pinned.data, bytes[kByPinnedCopy].data(), kPartBytes);
  for (const int way : {kByDeviceCopy, kByDeviceCopyAsync, kByThreadCopy})
    CALL(cudaMemcpy(part_of(own, way), bytes[way].data(), kPartBytes,
                    cudaMemcpyHostToDevice));
  CALL(cudaDeviceSynchronize());  // small copies may return early
  const auto write_by_kernel = [&](int way, cudaStream_t queue) {
    note_call("write_part<<<>>>");
    write_part<<<1, 256, 0, queue>>>(to(way), kByKernel, key);
    CALL(cudaGetLastError());
  };
  const auto in_two_pieces = [](auto write) {
    write(0, kLeft);
    write(kLeft, kRow - kLeft);
  };
  write_by_kernel(kByKernel, nullptr);
  CALL(cudaMemcpyAsync(to(kByCopyAsync), bytes[kByCopyAsync].data(), kPartBytes,
                       cudaMemcpyHostToDevice, stream));
  CALL(cudaMemcpyAsync(to(kByDeviceCopyAsync), part_of(own, kByDeviceCopyAsync),
                       kPartBytes, cudaMemcpyDeviceToDevice, stream));
  CALL(DRIVER(cuMemcpyHtoDAsync)(address(kByDriverCopyAsync),
                                 bytes[kByDriverCopyAsync].data(), kPartBytes,
                                 stream));
  CALL(DRIVER(cuMemsetD8Async)(address(kByDriverMemsetAsync),
                               bytes[kByDriverMemsetAsync][0], kPartBytes,
                               stream));
  CALL(cudaMemcpyAsync(to(kByPinnedCopy), pinned.data, kPartBytes,
                       cudaMemcpyHostToDevice, stream));
  CALL(cudaMemcpyAsync(to(kByThreadCopy), part_of(own, kByThreadCopy),
                       kPartBytes, cudaMemcpyDeviceToDevice,
                       cudaStreamPerThread));
  CALL(cudaMemsetAsync(to(kByThreadMemset), bytes[kByThreadMemset][0],
                       kPartBytes, cudaStreamPerThread));
  // Later work of a stream overwrites the result of earlier work.
  latch.hold(stream);
  write_by_kernel(kByMemsetAsync, stream);
  CALL(cudaMemsetAsync(to(kByMemsetAsync), bytes[kByMemsetAsync][0], kPartBytes,
                       stream));
  CALL(cudaMemcpy(to(kByCopy), bytes[kByCopy].data(), kPartBytes,
                  cudaMemcpyHostToDevice));
  CALL(cudaMemcpy(to(kByDeviceCopy), part_of(own, kByDeviceCopy), kPartBytes,
                  cudaMemcpyDeviceToDevice));
  CALL(cudaMemcpy(to(kByInnerCopy), to(kByDeviceCopy), kPartBytes,
                  cudaMemcpyDeviceToDevice));
  CALL(cudaMemset(to(kByMemset), bytes[kByMemset][0], kPartBytes));
  CALL(DRIVER(cuMemcpyHtoD)(address(kByDriverCopy), bytes[kByDriverCopy].data(),
                            kPartBytes));
  CALL(DRIVER(cuMemsetD8)(address(kByDriverMemset), bytes[kByDriverMemset][0],
                          kPartBytes));
  in_two_pieces([&](size_t at, size_t width) {
    CALL(cudaMemcpy2D(to(kByCopy2D) + at, kRow, bytes[kByCopy2D].data() + at,
                      kRow, width, kRows, cudaMemcpyHostToDevice));
    const auto box = box_of(to(kByCopy3D) + at, bytes[kByCopy3D].data() + at,
                            kRow, width, kRows, cudaMemcpyHostToDevice);
    CALL(cudaMemcpy3D(&box));
    CALL(cudaMemset2D(to(kByMemset2D) + at, kRow, bytes[kByMemset2D][0], width,
                      kRows));
  });
  latch.release();
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaDeviceSynchronize());
}

// The ways that few programs use.
void write_in_other_ways(const Words& memory, unsigned key) {
  const Stream stream;
  const DeviceBuffer own(kEveryWay);
  const auto to = [&](int way) { return part_of(memory, way); };
  const auto from = [&](int way) { return part_of(own, way); };
  std::vector<std::vector<unsigned char>> bytes;
  for (int way = 0; way < kWays; ++way) {
    bytes.push_back(part_bytes(way, key));
    CALL(cudaMemcpy(from(way), bytes[way].data(), kPartBytes,
                    cudaMemcpyHostToDevice));
  }
  CALL(cudaDeviceSynchronize());  // small copies may return early
  CALL(DRIVER(cuMemcpyDtoD)(address_of(to(kByDriverDeviceCopy)),
                            address_of(from(kByDriverDeviceCopy)), kPartBytes));
  CALL(DRIVER(cuMemcpyDtoDAsync)(address_of(to(kByDriverDeviceCopyAsync)),
                                 address_of(from(kByDriverDeviceCopyAsync)),
                                 kPartBytes, stream));
  CALL(DRIVER(cuMemcpy)(address_of(to(kByUnifiedCopy)),
                        address_of(from(kByUnifiedCopy)), kPartBytes));
  CALL(DRIVER(cuMemcpyAsync)(address_of(to(kByUnifiedCopyAsync)),
                             address_of(from(kByUnifiedCopyAsync)), kPartBytes,
                             stream));
  int device = 0;
  CALL(cudaGetDevice(&device));
  CALL(cudaMemcpyPeer(to(kByPeerCopy), device, from(kByPeerCopy), device,
                      kPartBytes));
  const auto layers = [](size_t width) {
    return make_cudaExtent(width, 1, kRows);
  };
  for (const auto& [at, width] :
       {std::pair{size_t{0}, kLeft}, std::pair{kLeft, kRow - kLeft}}) {
    CALL(cudaMemcpy2DAsync(to(kByCopy2DAsync) + at, kRow,
                           bytes[kByCopy2DAsync].data() + at, kRow, width,
                           kRows, cudaMemcpyHostToDevice, stream));
    const auto box =
        box_of(to(kByCopy3DAsync) + at, bytes[kByCopy3DAsync].data() + at, kRow,
               width, kRows, cudaMemcpyHostToDevice);
    CALL(cudaMemcpy3DAsync(&box, stream));
    CALL(cudaMemset2DAsync(to(kByMemset2DAsync) + at, kRow,
                           bytes[kByMemset2DAsync][0], width, kRows, stream));
    CALL(cudaMemset3D(make_cudaPitchedPtr(to(kByMemset3D) + at, kRow, width, 1),
                      bytes[kByMemset3D][0], layers(width)));
  }
  // Wider values need aligned addresses. The bytes before the first aligned
  // address are copied.
  const auto set = [&](int way, auto value, auto set_all) {
    const size_t before = sizeof value - kPartAt % sizeof value;
    CALL(cudaMemcpy(to(way), bytes[way].data(), before, cudaMemcpyDefault));
    std::memcpy(&value, bytes[way].data() + before, sizeof value);
    CALL(set_all(address_of(to(way) + before), value,
                 (kPartBytes - before) / sizeof value));
  };
  constexpr uint16_t kShort = 0;
  constexpr uint32_t kWord = 0;
  set(kByMemset16, kShort, DRIVER(cuMemsetD16));
  set(kByMemset32, kWord, DRIVER(cuMemsetD32));
  set(kByMemset16Async, kShort, [&](auto at, auto value, size_t count) {
    return DRIVER(cuMemsetD16Async)(at, value, count, stream);
  });
  set(kByMemset32Async, kWord, [&](auto at, auto value, size_t count) {
    return DRIVER(cuMemsetD32Async)(at, value, count, stream);
  });
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaDeviceSynchronize());
}

// Does `seen` have the expected bytes? A failure names the first byte that
// differs.
testing::AssertionResult whole(const char* path,
                               const std::vector<unsigned char>& seen,
                               unsigned key) {
  for (size_t i = 0; i < kEveryWay; ++i) {
    const size_t way = i / kPartStep, at = i % kPartStep - kPartAt;
    const bool in_part = way < kWays && at < kPartBytes;
    const unsigned char expected =
        in_part ? part_byte(static_cast<int>(way), at, key) : kPoisonByte;
    if (seen[i] == expected) continue;
    expected_but_saw(hexadecimal(expected), hexadecimal(seen[i]));
    return testing::AssertionFailure()
           << path << " finds another value in byte " << i << ", "
           << (in_part ? "of the part written by "
                       : "beside the part written by ")
           << kWayNames[std::min<size_t>(way, kWays - 1)];
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult reads_in_every_way(const Words& memory, unsigned key) {
  const Stream stream;
  const DeviceBuffer own(kEveryWay);
  std::vector<unsigned char> seen(kEveryWay);
  testing::AssertionResult found = testing::AssertionSuccess();
  const auto judge = [&](const char* path) {
    if (found) found = whole(path, seen, key);
    std::fill(seen.begin(), seen.end(), kGuardByte);
  };
  CALL(cudaMemcpy(seen.data(), memory.data, kEveryWay, cudaMemcpyDefault));
  judge("cudaMemcpy");
  CALL(cudaMemcpyAsync(seen.data(), memory.data, kEveryWay,
                       cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  judge("cudaMemcpyAsync");
  CALL(DRIVER(cuMemcpyDtoH)(
      seen.data(), reinterpret_cast<CUdeviceptr>(memory.data), kEveryWay));
  judge("cuMemcpyDtoH");
  CALL(DRIVER(cuMemcpyDtoHAsync)(seen.data(),
                                 reinterpret_cast<CUdeviceptr>(memory.data),
                                 kEveryWay, stream));
  CALL(cudaStreamSynchronize(stream));
  judge("cuMemcpyDtoHAsync");
  const PinnedBuffer pinned(kEveryWay);
  std::memset(pinned.data, kGuardByte, kEveryWay);
  CALL(cudaMemcpyAsync(pinned.data, memory.data, kEveryWay,
                       cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  std::memcpy(seen.data(), pinned.data, kEveryWay);
  judge("cudaMemcpyAsync to pinned memory");
  CALL(cudaMemcpyAsync(seen.data(), memory.data, kEveryWay,
                       cudaMemcpyDeviceToHost, cudaStreamPerThread));
  CALL(cudaStreamSynchronize(cudaStreamPerThread));
  judge("cudaMemcpyAsync in the thread's stream");
  CALL(cudaMemcpy2D(seen.data(), kPartStep, memory.data, kPartStep, kPartStep,
                    kEveryWay / kPartStep, cudaMemcpyDeviceToHost));
  judge("cudaMemcpy2D");
  const auto box = box_of(seen.data(), memory.data, kPartStep, kPartStep,
                          kEveryWay / kPartStep, cudaMemcpyDeviceToHost);
  CALL(cudaMemcpy3D(&box));
  judge("cudaMemcpy3D");
  CALL(cudaMemcpyAsync(own.data, memory.data, kEveryWay,
                       cudaMemcpyDeviceToDevice, stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemcpy(seen.data(), own.data, kEveryWay, cudaMemcpyDefault));
  judge("cudaMemcpyAsync to the device");
  const auto judge_own = [&](const char* path) {
    CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(seen.data(), own.data, kEveryWay, cudaMemcpyDefault));
    judge(path);
    own.poison();
  };
  own.poison();
  CALL(DRIVER(cuMemcpyDtoD)(address_of(own.data), address_of(memory.data),
                            kEveryWay));
  judge_own("cuMemcpyDtoD");
  CALL(DRIVER(cuMemcpyAsync)(address_of(own.data), address_of(memory.data),
                             kEveryWay, stream));
  judge_own("cuMemcpyAsync");
  int device = 0;
  CALL(cudaGetDevice(&device));
  CALL(cudaMemcpyPeer(own.data, device, memory.data, device, kEveryWay));
  judge_own("cudaMemcpyPeer");
  CALL(cudaMemcpy2DAsync(seen.data(), kPartStep, memory.data, kPartStep,
                         kPartStep, kEveryWay / kPartStep,
                         cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  judge("cudaMemcpy2DAsync");
  for (int way = 0; way < kWays && found; ++way) {
    CALL(cudaMemcpy(seen.data() + kPartAt, part_of(memory, way), kPartBytes,
                    cudaMemcpyDeviceToHost));
    std::vector<unsigned char> expected(kEveryWay, kGuardByte);
    const auto part = part_bytes(way, key);
    std::copy(part.begin(), part.end(), expected.begin() + kPartAt);
    if (seen != expected)
      found = testing::AssertionFailure()
              << "cudaMemcpy of a part does not give exactly what "
              << kWayNames[way] << " wrote";
  }
  return found;
}

__global__ void read_byte(const unsigned char* from, unsigned char* to) {
  *to = *from;
}

unsigned char byte_by_kernel(const unsigned char* at) {
  const DeviceBuffer result(sizeof(uint32_t));
  auto* const found = reinterpret_cast<unsigned char*>(result.data);
  unsigned char byte = 0;
  note_call("read_byte<<<>>>");
  read_byte<<<1, 1>>>(at, found);
  CALL(cudaGetLastError());
  CALL(cudaMemcpy(&byte, found, 1, cudaMemcpyDeviceToHost));
  return byte;
}

// Judges that copies and memsets that end where the memory ends write its last
// byte.
void expect_last_byte_is_written(const Words& memory) {
  auto* const end =
      reinterpret_cast<unsigned char*>(memory.data + memory.count);
  unsigned char* const to = end - kPartBytes;
  const auto address = reinterpret_cast<CUdeviceptr>(to);
  std::vector<unsigned char> bytes(kPartBytes);
  unsigned char wanted = 0;
  const auto expect_written = [&](const char* way, auto write) {
    ++wanted;
    std::fill(bytes.begin(), bytes.end(), wanted);
    CALL(write());
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(byte_by_kernel(end - 1), wanted) << "the last byte, by " << way;
    EXPECT_EQ(byte_by_kernel(to), wanted) << "the first byte, by " << way;
  };
  expect_written("cudaMemcpy", [&] {
    return cudaMemcpy(to, bytes.data(), kPartBytes, cudaMemcpyHostToDevice);
  });
  expect_written("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(to, bytes.data(), kPartBytes, cudaMemcpyHostToDevice,
                           nullptr);
  });
  expect_written("cuMemcpyHtoD", [&] {
    return DRIVER(cuMemcpyHtoD)(address, bytes.data(), kPartBytes);
  });
  expect_written("cudaMemset",
                 [&] { return cudaMemset(to, wanted, kPartBytes); });
  expect_written("cudaMemsetAsync", [&] {
    return cudaMemsetAsync(to, wanted, kPartBytes, nullptr);
  });
  expect_written("cuMemsetD8", [&] {
    return DRIVER(cuMemsetD8)(address, wanted, kPartBytes);
  });
  unsigned char last = 0;
  CALL(cudaMemcpy(&last, end - 1, 1, cudaMemcpyDeviceToHost));
  EXPECT_EQ(last, wanted) << "the last byte, read by cudaMemcpy";
}

// Judges an asynchronous memset of the whole memory, an asynchronous copy from
// its first to its second half, and a copy that reads only the second half.
void expect_halves_are_copied(const Words& memory) {
  constexpr unsigned char kSet = 0x3C;
  const size_t half = memory.bytes() / 2;
  const Words first(memory.data, half), second(memory.data + first.count, half);
  const DeviceBuffer own(half);
  const Stream stream;
  const Pattern wanted = pattern("first half");
  const auto* const bytes = reinterpret_cast<unsigned char*>(memory.data);
  CALL(cudaMemsetAsync(memory.data, kSet, memory.bytes(), stream));
  CALL(cudaStreamSynchronize(stream));
  for (const size_t at : {size_t{0}, half, memory.bytes() - 1})
    EXPECT_EQ(byte_by_kernel(bytes + at), kSet) << "set byte " << at;
  first.fill(wanted);
  CALL(cudaMemcpyAsync(second.data, first.data, half, cudaMemcpyDeviceToDevice,
                       stream));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(kernel_reads(second, wanted)) << "copied inside the memory";
  first.poison();
  CALL(cudaMemcpyAsync(own.data, second.data, half, cudaMemcpyDeviceToDevice,
                       stream));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(kernel_reads(own, wanted)) << "copied from inside the memory";
}

// Judges that both APIs report this as memory of a GPU and not as managed, and
// that the reported address range contains it.
void expect_told_as_device_memory(const Words& memory) {
  for (const size_t at : {size_t{0}, memory.count - 1}) {
    Sentinel<cudaPointerAttributes> told;
    EXPECT_SUCCESS(cudaPointerGetAttributes(told.out(), memory.data + at));
    EXPECT_EQ(told.result().type, cudaMemoryTypeDevice) << "word " << at;
    const auto address = reinterpret_cast<CUdeviceptr>(memory.data + at);
    Sentinel<unsigned> type;
    EXPECT_SUCCESS(DRIVER(cuPointerGetAttribute)(
        type.out(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    EXPECT_EQ(type.result(), static_cast<unsigned>(CU_MEMORYTYPE_DEVICE))
        << "word " << at;
    unsigned long long managed = 0;  // room for a boolean of any width
    EXPECT_SUCCESS(DRIVER(cuPointerGetAttribute)(
        &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    EXPECT_EQ(managed, 0u) << "managed, word " << at;
    Sentinel<CUdeviceptr> begin;
    Sentinel<size_t> bytes;
    EXPECT_SUCCESS(
        DRIVER(cuMemGetAddressRange)(begin.out(), bytes.out(), address));
    const auto first = reinterpret_cast<CUdeviceptr>(memory.data);
    EXPECT_LE(begin.result(), first) << "the range of word " << at;
    EXPECT_GE(begin.result() + bytes.result(), first + memory.bytes())
        << "the range of word " << at;
  }
}

constexpr unsigned kBorrowers = 11, kLenders = 101;
constexpr auto kHeld = 50ms;  // a copy is called meanwhile

}  // namespace

void lend_in_every_way(Role& me, const Words& memory) {
  CALL(cudaMemset(memory.data, kPoisonByte, kEveryWay));
  CALL(cudaDeviceSynchronize());
  me.signal("to be written in every way");
  me.wait("written in every way");
  EXPECT_TRUE(reads_in_every_way(memory, kBorrowers));
  CALL(cudaMemset(memory.data, kPoisonByte, kEveryWay));
  CALL(cudaDeviceSynchronize());
  write_in_every_way(memory, kLenders);
  write_in_other_ways(memory, kLenders);
  me.signal("to be read in every way");
  me.wait("read in every way");
}

void borrow_in_every_way(Role& me, const Words& memory) {
  me.wait("to be written in every way");
  write_in_every_way(memory, kBorrowers);
  write_in_other_ways(memory, kBorrowers);
  EXPECT_TRUE(reads_in_every_way(memory, kBorrowers));
  me.signal("written in every way");
  me.wait("to be read in every way");
  EXPECT_TRUE(reads_in_every_way(memory, kLenders));
  expect_last_byte_is_written(memory);
  expect_halves_are_copied(memory);
  expect_told_as_device_memory(memory);
  me.signal("read in every way");
}

void expect_streams_reach(const Words& memory) {
  const size_t bytes = memory.bytes();
  const DeviceBuffer own(bytes);
  const Stream urgent(Stream::Kind::kUrgent), blocking(Stream::Kind::kBlocking);
  using Named = std::pair<const char*, cudaStream_t>;
  for (const auto& [name, stream] :
       {Named{"an urgent stream", urgent}, Named{"a blocking stream", blocking},
        Named{"cudaStreamLegacy", cudaStreamLegacy}}) {
    SCOPED_TRACE(name);
    const auto copy = [bytes, stream = stream](const Words& to,
                                               const Words& from) {
      to.poison();
      CALL(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice,
                           stream));
      CALL(cudaStreamSynchronize(stream));
    };
    own.fill(pattern(name));
    copy(memory, own);
    EXPECT_TRUE(kernel_reads(memory, pattern(name))) << "copied into it";
    copy(own, memory);
    EXPECT_TRUE(kernel_reads(own, pattern(name))) << "copied out of it";
    CALL(cudaMemsetAsync(memory.data, 0x3C, bytes, stream));
    CALL(cudaStreamSynchronize(stream));
    std::vector<unsigned char> seen(bytes, 0);
    CALL(cudaMemcpy(seen.data(), memory.data, bytes, cudaMemcpyDefault));
    EXPECT_TRUE(seen == std::vector<unsigned char>(bytes, 0x3C)) << "set";
  }
}

testing::AssertionResult copy_waits_its_turn(const Words& memory) {
  const Pattern queued = pattern("queued");
  std::vector<uint32_t> seen(memory.count, 0);
  Latch latch;
  latch.hold(nullptr);
  memory.queue_fill(queued, nullptr);
  std::thread releases([&] {
    std::this_thread::sleep_for(kHeld);
    latch.release();
  });
  const cudaError_t code = NOTED(cudaMemcpy(
      seen.data(), memory.data, memory.bytes(), cudaMemcpyDeviceToHost));
  releases.join();
  CALL(code);
  for (size_t i = 0; i < seen.size(); ++i)
    if (seen[i] != queued.at(i))
      return testing::AssertionFailure()
             << "the copy has not waited for the kernel: word " << i;
  return testing::AssertionSuccess();
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
