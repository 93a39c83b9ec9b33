// What tests of CUDA share: calls that leave a trace, kinds of refusals, memory
// that is proved by a kernel and by a copy, owners of CUDA objects.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/capabilities.h"
#include "harness/scenario/scenario.h"
#include "samples/common/check.h"

namespace ipclab {

// --- calls ------------------------------------------------------------------

/// The name of a code: cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE.
std::string name_of(cudaError_t code);
/// The name of a code of the driver API.
std::string name_of(CUresult code);

/// Puts a call onto the board of this role; it is there even if the call never
/// returns.
void note_call(const char* call);
/// The call's own result, after note_call().
#define NOTED(call) (::ipclab::note_call(#call), (call))

/// Ends the role unless the code is success. A machine without memory, device
/// or permission makes the test `broken`, not a violation.
void require_success(cudaError_t code, const char* call, const char* file,
                     int line);
/// The same for a call of the driver API.
void require_success(CUresult code, const char* call, const char* file,
                     int line);

// The macros below note a call themselves: NOTED() inside them would write down
// what DRIVER() expands to.

/// A call that has to succeed so that the test can go on.
#define CALL(call)                                                       \
  ::ipclab::require_success((::ipclab::note_call(#call), (call)), #call, \
                            __FILE__, __LINE__)

/// The call gives exactly this code. Clears the runtime's last error.
template <class Code>
testing::AssertionResult gives(Code code, const char* call, Code wanted);
/// Judges that a call gives exactly the code `wanted`.
#define EXPECT_CODE(wanted, call) \
  EXPECT_TRUE(                    \
      ::ipclab::gives((::ipclab::note_call(#call), (call)), #call, wanted))
/// Judges that a call succeeds.
#define EXPECT_SUCCESS(call) \
  EXPECT_TRUE(::ipclab::gives((::ipclab::note_call(#call), (call)), #call, {}))

/// The call is refused. The first code is the expected one; another code of
/// the documented list passes and is noted; success or any other code fails.
/// Clears the runtime's last error.
template <class Code>
testing::AssertionResult refused(Code code, const char* call,
                                 std::initializer_list<Code> documented);
/// Judges that a call is refused with a code of this list, the expected first.
#define EXPECT_REFUSED(call, ...)                                            \
  EXPECT_TRUE(::ipclab::refused((::ipclab::note_call(#call), (call)), #call, \
                                {__VA_ARGS__}))

/// What `code` means for an input that the call must refuse with one of these.
/// Clears the runtime's last error.
template <class Code>
Outcome outcome_of(Code code, const std::vector<Code>& documented);

/// Judges that an outcome is a refusal with a documented code.
void expect_documented(const Outcome& outcome, const std::string& what);

/// Allocation, kernel, synchronise and copy work in the current context: no
/// earlier refusal has left a sticky error.
testing::AssertionResult context_is_usable();

/// Ends the role: its last call has succeeded and given no result.
[[noreturn]] void gave_no_result();

/// An out-parameter that shows whether a call has written to it, between bytes
/// that no call may write: a result that is too long, or that begins too early,
/// fails the test when the sentinel is destroyed.
template <class T>
class Sentinel {
  static constexpr unsigned char kUntouched = 0x5a;
  static constexpr size_t kGuard = 64;  // a handle of twice its size shows
  unsigned char before_[kGuard];

 public:
  T value;  ///< every byte 0x5a until somebody writes it

 private:
  unsigned char after_[kGuard];

 public:
  Sentinel() {
    std::memset(static_cast<void*>(this), kUntouched, sizeof *this);
  }
  Sentinel(const Sentinel&) = delete;
  ~Sentinel() { EXPECT_TRUE(guards_hold()) << "a result of the wrong size"; }
  /// What the call gets as its out-parameter.
  T* out() { return &value; }
  /// Has the call written to it?
  bool touched() const { return !untouched(&value, sizeof value); }
  /// What the role's last call, which has succeeded, has written; ends the role
  /// if that is nothing.
  const T& result() const {
    if (!touched()) gave_no_result();
    return value;
  }
  /// Has nobody written beside the value?
  bool guards_hold() const {
    return untouched(before_, sizeof before_) &&
           untouched(after_, sizeof after_);
  }

 private:
  static bool untouched(const void* bytes, size_t count) {
    const auto* at = static_cast<const unsigned char*>(bytes);
    return std::all_of(at, at + count,
                       [](unsigned char byte) { return byte == kUntouched; });
  }
};

/// Writes down that a refused call has written its result all the same, which
/// the documentation does not forbid.
template <class T>
void note_touched(Role& me, const Sentinel<T>& out, const char* call) {
  if (out.touched())
    me.observe(std::string(call) + " is refused and yet writes its result");
}

/// Writes down what a call gives that nobody judges. Clears the runtime's last
/// error.
void observe_code(Role& me, const std::string& what, cudaError_t code);

/// Writes down what a check says that nobody judges, and returns it. A call
/// that fails in the check is written down, too.
bool observe_check(Role& me, const std::string& what,
                   const std::function<testing::AssertionResult()>& check);

// --- memory -----------------------------------------------------------------

/// A sequence of 32-bit words that no other pattern, offset or poison matches.
struct Pattern {
  uint32_t key;  ///< what tells it from other patterns

  /// Its word number `index`.
  __host__ __device__ uint32_t at(size_t index) const {
    uint32_t x = key ^ (static_cast<uint32_t>(index) * 0x9e3779b9u);
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    return x ^ (x >> 13);
  }
};

/// The two sides of a test never write the same; all follow the seed.
Pattern pattern(const std::string& name);

/// A pointer as the driver API takes it.
inline CUdeviceptr address_of(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

/// An attribute of a pointer that the driver has to know.
template <class T>
T pointer_attribute(CUpointer_attribute which, const void* pointer) {
  T value{};
  CALL(DRIVER(cuPointerGetAttribute)(&value, which, address_of(pointer)));
  return value;
}

/// The same bytes as another type: a handle, for the other API.
template <class To, class From>
To same_bytes(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// Some words of device memory, owned by somebody else.
struct Words {
  uint32_t* data = nullptr;  ///< their address in this process
  size_t count = 0;          ///< how many words

  Words() = default;
  /// The words in `bytes` of memory.
  Words(void* memory, size_t bytes)
      : data(static_cast<uint32_t*>(memory)), count(bytes / sizeof(uint32_t)) {}
  /// Their size.
  size_t bytes() const { return count * sizeof(uint32_t); }

  /// Writes the pattern with a kernel and waits for it.
  void fill(Pattern pattern, cudaStream_t stream = nullptr) const;
  /// Queues the kernel that fill() waits for. Call fill() once before a stream
  /// is held: loading a kernel may wait for all work of the context.
  void queue_fill(Pattern pattern, cudaStream_t stream) const;
  /// Every byte 0xEE.
  void poison() const;
};

/// A kernel reads the pattern from all words. The failure names the first
/// wrong word, what was expected there and what was seen.
testing::AssertionResult kernel_reads(const Words& words, Pattern pattern);

/// cudaMemcpy to the host reads the pattern: another path than a kernel's.
testing::AssertionResult copy_reads(const Words& words, Pattern pattern);

/// The CPU writes the pattern itself, into memory that the host can address.
void host_writes(const Words& words, Pattern pattern);

/// The CPU reads the pattern itself, of memory that the host can address.
testing::AssertionResult host_reads(const Words& words, Pattern pattern);

/// Bytes that the two functions below use of a memory.
constexpr size_t kEveryWay = 64 << 10;

/// The side of a scenario that lends `memory` of kEveryWay bytes or more: both
/// sides write parts of it, with odd offsets and sizes, in every way that a
/// program has (kernels, copies and memsets, synchronous or not, by both APIs).
/// Each side reads the other's parts in every way, and finds nothing else
/// changed.
void lend_in_every_way(Role& me, const Words& memory);
/// The other side.
void borrow_in_every_way(Role& me, const Words& memory);

/// The GPU stops a kernel of the current device that reads this memory. The
/// context is lost then, so the role ends next.
testing::AssertionResult kernel_faults(const Words& words);

/// Memory of cudaMalloc, poisoned at first.
class DeviceBuffer : public Words {
 public:
  /// Allocates with cudaMalloc.
  explicit DeviceBuffer(size_t bytes);
  DeviceBuffer(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data); }

  /// The handle of cudaIpcGetMemHandle.
  cudaIpcMemHandle_t legacy_handle() const;
  /// Frees now, where freeing is the step that matters.
  void free();
};

/// Opens a handle of cudaIpcGetMemHandle with the documented flag; the caller
/// closes it.
void* open_handle(const cudaIpcMemHandle_t& handle);

/// A handle of cudaIpcGetMemHandle, opened with the documented flag.
class LegacyMapping : public Words {
 public:
  /// Opens; `bytes` is what the exporter allocated.
  LegacyMapping(const cudaIpcMemHandle_t& handle, size_t bytes);
  LegacyMapping(const LegacyMapping&) = delete;
  ~LegacyMapping() {
    if (data != nullptr) cudaIpcCloseMemHandle(data);
  }

  /// Closes now, where closing is the step that matters.
  void close();
};

/// The body of an exporter that lends a buffer of cudaMalloc, filled with
/// `written`, and frees it once it was closed `closes` times.
std::function<void(Role&)> lends(Pattern written, size_t bytes, int closes = 1);

/// The body of an importer that opens what `lends` lent, checks it with
/// kernel_reads or copy_reads, and closes it.
std::function<void(Role&)> borrows(
    Pattern expected, size_t bytes,
    testing::AssertionResult (*reads)(const Words&, Pattern) = kernel_reads);

/// Something that only the end of the process gives back.
template <class T, class... Arguments>
T& abandoned(Arguments&&... arguments) {
  return *new T(std::forward<Arguments>(arguments)...);
}

/// Holds a stream until it is released, so that nothing after it can pass by
/// luck. Gives up by itself after `kLimitSeconds`.
class Latch {
 public:
  /// After this many seconds a held stream goes on.
  static constexpr double kLimitSeconds = 20;

  Latch();
  Latch(const Latch&) = delete;
  ~Latch();

  /// Everything queued in the stream from now on waits.
  void hold(cudaStream_t stream);
  /// Lets everything go on.
  void release();

 private:
  unsigned* flag_ = nullptr;  // pinned host memory, seen by the kernel
};

// --- order ------------------------------------------------------------------

/// A stream that the legacy default stream does not wait for.
class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  /// The stream itself.
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// All work of the stream is done within `limit`.
testing::AssertionResult passes(cudaStream_t stream,
                                std::chrono::milliseconds limit = 5s);

/// An event that processes share: created in one, opened in the others.
class SharedEvent {
 public:
  /// Creates one that can be exported.
  explicit SharedEvent(unsigned flags = cudaEventInterprocess |
                                        cudaEventDisableTiming);
  /// Opens the handle of another process's event.
  explicit SharedEvent(const cudaIpcEventHandle_t& handle);
  SharedEvent(const SharedEvent&) = delete;
  ~SharedEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  /// The event itself.
  operator cudaEvent_t() const { return event_; }
  /// The handle of cudaIpcGetEventHandle.
  cudaIpcEventHandle_t handle() const;
  /// Destroys now, where destroying is the step that matters.
  void destroy();

 private:
  cudaEvent_t event_ = nullptr;
};

/// What a call gives in another thread of this process, which has the same
/// current device as this one.
template <class Call>
auto in_a_thread(Call call) {
  int device = 0;
  CALL(cudaGetDevice(&device));
  decltype(call()) code{};
  cudaError_t current = cudaSuccess;
  std::thread([&] {
    current = cudaSetDevice(device);
    if (current == cudaSuccess) code = call();
  }).join();
  CALL(current);
  return code;
}

/// Calls `body` with 0 in this thread and with 1 in another one: this shows a
/// call that works only in the first thread.
template <class Body>
void in_two_threads(Body body) {
  body(0);
  CALL(in_a_thread([&] { return body(1), cudaSuccess; }));
}

/// A refused runtime call is this thread's last error, also after a call that
/// succeeds: reported once, and then no more.
testing::AssertionResult is_told_once(const char* call, cudaError_t refusal);
/// A call that has succeeded leaves no last error.
testing::AssertionResult leaves_no_error(const char* call, cudaError_t success);

/// cudaEventSynchronize in a thread of its own, so that the role can check
/// whether it has returned.
class HostWait {
 public:
  /// Returns when the thread is about to call.
  explicit HostWait(cudaEvent_t event);
  HostWait(const HostWait&) = delete;
  ~HostWait();

  /// Has cudaEventSynchronize returned?
  bool returned() const { return returned_; }
  /// Waits for the thread; what cudaEventSynchronize gave.
  cudaError_t join();
  /// Processor time of the waiting thread in microseconds, once joined.
  long long cpu_us() const { return cpu_us_; }
  /// How long it waited, in microseconds, once joined.
  long long waited_us() const { return waited_us_; }

 private:
  std::atomic<bool> entered_{false}, returned_{false};
  cudaError_t code_ = cudaSuccess;
  long long cpu_us_ = 0, waited_us_ = 0;
  std::thread thread_;
};

// --- the machine ------------------------------------------------------------

/// An attribute of a GPU.
int attribute(cudaDeviceAttr which, int device = 0);
/// An attribute of a GPU that only the driver API knows.
int attribute(CUdevice_attribute which, int device = 0);

/// Bytes that nobody has on the current device. A test that asks is `alone`.
size_t free_memory();

/// CUDA_VISIBLE_DEVICES for a role that sees these of the test's GPUs, in this
/// order. If the variable was set when the test started, it counts from those.
std::string visible_gpus(std::initializer_list<int> order);

/// What leaves_nothing() judges: the process alone, or the memory of the
/// device, too. The second only in a test that is `alone`.
enum class Judge { kProcess, kProcessAndDevice };

/// Does `round` a few times, so that what is made once is made, and then
/// `rounds` times more, of which nothing is left: no descriptor, no addresses,
/// no name in /dev/shm, no device memory. A leak is growth in every quarter of
/// the rounds by half a page a round or more, or much growth in all; what a
/// driver keeps for itself does not grow like that. The rounds are numbered
/// from 0; after the first that fails no more are done.
void leaves_nothing(int rounds, const std::function<void(int)>& round,
                    Judge judge = Judge::kProcessAndDevice);

/// `bytes` of device memory, taken when `free_before` was left, have come back
/// within some seconds. `bytes` is far above what else changes.
testing::AssertionResult returned(size_t free_before, size_t bytes);

/// Prints the probe's document (harness/README.md, section 3) to stdout.
void print_probe();

}  // namespace ipclab
