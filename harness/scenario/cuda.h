// What all tests of CUDA use: recorded calls, kinds of refusals, memory that a
// kernel and a copy check, owners of CUDA objects.
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
#include <future>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/capabilities.h"
#include "harness/scenario/scenario.h"
#include "harness/toolkit/newer.h"
#include "harness/toolkit/newer_runtime.h"
#include "samples/common/check.h"

namespace ipclab {

// --- calls ------------------------------------------------------------------

/// The name of a code: cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE.
std::string name_of(cudaError_t code);
/// The name of a code of the driver API.
std::string name_of(CUresult code);

/// Writes a call to the board of this role before the call is made. So the call
/// is known even if it never returns.
void note_call(const char* call);
/// Notes the call with note_call(), then returns the call's own result.
#define NOTED(call) (::ipclab::note_call(#call), (call))

/// Ends the role unless the code is success. If the code says that the machine
/// has no memory, no usable device or an unsuitable driver, the test is
/// `broken`, not a violation.
void require_success(cudaError_t code, const char* call, const char* file,
                     int line);
/// The same for a call of the driver API.
void require_success(CUresult code, const char* call, const char* file,
                     int line);

// The macros below call note_call() themselves. NOTED() inside them would note
// the text after the expansion of DRIVER().

/// A call that has to succeed so that the test can continue.
#define CALL(call)                                                       \
  ::ipclab::require_success((::ipclab::note_call(#call), (call)), #call, \
                            __FILE__, __LINE__)

/// Does the call return exactly this code? Also clears the runtime's last
/// error.
template <class Code>
testing::AssertionResult gives(Code code, const char* call, Code wanted);
/// Judges that a call returns exactly the code `wanted`.
#define EXPECT_CODE(wanted, call) \
  EXPECT_TRUE(                    \
      ::ipclab::gives((::ipclab::note_call(#call), (call)), #call, wanted))
/// Judges that a call succeeds.
#define EXPECT_SUCCESS(call) \
  EXPECT_TRUE(::ipclab::gives((::ipclab::note_call(#call), (call)), #call, {}))

/// Is the call refused? The first code is the expected one. Another code of the
/// documented list also passes, and is noted. Success or any other code fails.
/// Clears the runtime's last error.
template <class Code>
testing::AssertionResult refused(Code code, const char* call,
                                 std::initializer_list<Code> documented);
/// Judges that a call is refused with a code of this list, the expected first.
#define EXPECT_REFUSED(call, ...)                                            \
  EXPECT_TRUE(::ipclab::refused((::ipclab::note_call(#call), (call)), #call, \
                                {__VA_ARGS__}))

/// Returns the outcome of an input that a call must refuse with one of the
/// `documented` codes. The call has returned `code`. Clears the runtime's last
/// error.
template <class Code>
Outcome outcome_of(Code code, const std::vector<Code>& documented);

/// Judges that an outcome is a refusal with a documented code.
void expect_documented(const Outcome& outcome, const std::string& what);

/// Why a test does not apply if the toolkit of this build is too old: the
/// toolkit lacks `function`, which came with CUDA `version`.
std::string not_in_this_build(const char* function, const char* version);

/// Has the runtime of this build functions that find a pool by a location? If
/// not, the report says which checks of the test are left out, and why.
bool has_pools_of_locations(Role& me);

/// Calls cuCtxSynchronize by the name that the library exports. Programs that
/// ask cuGetProcAddress of CUDA 13 get another version, which takes an
/// argument. Returns CUDA_ERROR_NOT_FOUND if the library does not export the
/// name.
CUresult synchronize_context();

/// Do an allocation, a kernel, a synchronisation and a copy work in the current
/// context? If so, no earlier refusal has left a sticky error.
testing::AssertionResult context_is_usable();

/// Ends the role because its last call has succeeded but has written no result.
[[noreturn]] void gave_no_result();

/// An out-parameter that shows whether a call has written to it. On both sides
/// of it are bytes that no call may write. If a call writes them, the test
/// fails when the sentinel is destroyed.
template <class T>
class Sentinel {
  static constexpr unsigned char kUntouched = 0x5a;
  static constexpr size_t kGuard = 64;  // a handle of twice its size is noticed
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
  /// The pointer that is passed to the call.
  T* out() { return &value; }
  /// Has the call written to the value?
  bool touched() const { return !untouched(&value, sizeof value); }
  /// The value that the role's last, successful call has written. Ends the role
  /// if this call has written nothing.
  const T& result() const {
    if (!touched()) gave_no_result();
    return value;
  }
  /// Are the bytes on both sides of the value unchanged?
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

/// If a refused call has nevertheless written its result, notes this. The
/// documentation does not forbid such a write.
template <class T>
void note_touched(Role& me, const Sentinel<T>& out, const char* call) {
  if (out.touched())
    me.observe(std::string(call) + " is refused and yet writes its result");
}

/// Notes what a call returns, without judging it. Clears the runtime's last
/// error.
void observe_code(Role& me, const std::string& what, cudaError_t code);

/// Notes the result of a check without judging it, and returns the result. If a
/// call in the check fails, the failure is also noted.
bool observe_check(Role& me, const std::string& what,
                   const std::function<testing::AssertionResult()>& check);

// --- memory -----------------------------------------------------------------

/// A sequence of 32-bit words that no other pattern, offset or poison matches.
struct Pattern {
  uint32_t key;  ///< differs from the key of other patterns

  /// The word number `index` of the pattern.
  __host__ __device__ uint32_t at(size_t index) const {
    uint32_t x = key ^ (static_cast<uint32_t>(index) * 0x9e3779b9u);
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    return x ^ (x >> 13);
  }
};

/// The two sides of a test never write the same values. All patterns depend on
/// the seed.
Pattern pattern(const std::string& name);

/// A pointer as the driver API takes it.
inline CUdeviceptr address_of(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

/// An attribute of a pointer; the driver must know the pointer.
template <class T>
T pointer_attribute(CUpointer_attribute which, const void* pointer) {
  T value{};
  CALL(DRIVER(cuPointerGetAttribute)(&value, which, address_of(pointer)));
  return value;
}

/// Copies the bytes into another type, for example a handle into the type of
/// the other API.
template <class To, class From>
To same_bytes(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// Some words of device memory. Another object owns the memory.
struct Words {
  uint32_t* data = nullptr;  ///< their address in this process
  size_t count = 0;          ///< how many words

  Words() = default;
  /// The words in `bytes` of memory.
  Words(void* memory, size_t bytes)
      : data(static_cast<uint32_t*>(memory)), count(bytes / sizeof(uint32_t)) {}
  /// The size of all words.
  size_t bytes() const { return count * sizeof(uint32_t); }

  /// Writes the pattern with a kernel and waits for the kernel.
  void fill(Pattern pattern, cudaStream_t stream = nullptr) const;
  /// Queues the kernel that fill() waits for. Call fill() once before a stream
  /// is held: loading a kernel may wait for all work of the context.
  void queue_fill(Pattern pattern, cudaStream_t stream) const;
  /// Sets every byte to 0xEE.
  void poison() const;
};

/// A word as text: 0x0000002a.
std::string hexadecimal(uint32_t value);

/// Does a kernel read the pattern from all words? A failure names the first
/// wrong word, the expected value and the value seen.
testing::AssertionResult kernel_reads(const Words& words, Pattern pattern);

/// Does cudaMemcpy to the host read the pattern? A copy takes another path than
/// a kernel.
testing::AssertionResult copy_reads(const Words& words, Pattern pattern);

/// Expects that both read the pattern: a kernel and a copy take different paths
/// to the memory.
#define EXPECT_READS(...)                   \
  do {                                      \
    EXPECT_TRUE(kernel_reads(__VA_ARGS__)); \
    EXPECT_TRUE(copy_reads(__VA_ARGS__));   \
  } while (false)

/// The CPU writes the pattern itself, into memory that the host can address.
void host_writes(const Words& words, Pattern pattern);

/// Does the CPU read the pattern itself, from memory that the host can address?
testing::AssertionResult host_reads(const Words& words, Pattern pattern);

/// How many bytes of memory the two functions below use.
constexpr size_t kEveryWay = 128 << 10;

/// What the exporter does. It lends `memory` of kEveryWay bytes or more. Both
/// sides write parts of the memory, with odd offsets and sizes, in every
/// possible way (kernels, copies and memsets, synchronous or not, by both
/// APIs). Each side reads the parts that the other side wrote, in every way,
/// and checks that nothing else has changed.
void lend_in_every_way(Role& me, const Words& memory);
/// What the importer does. It also writes up to the end of the memory, in
/// several ways, and queries what kind of memory this is.
void borrow_in_every_way(Role& me, const Words& memory);
/// Do asynchronous copies and memsets reach all of another process's memory in
/// an urgent stream, in a blocking stream, and in the legacy default stream?
void expect_streams_reach(const Words& memory);

/// Does a copy run after the kernel that was queued before it in the default
/// stream? The kernel is held for a short time, in which the copy is called.
testing::AssertionResult copy_waits_its_turn(const Words& memory);

/// Does a kernel of the current device fault when it reads this memory? After
/// that the context is lost, so the role has to end.
testing::AssertionResult kernel_faults(const Words& words);

/// Memory of cudaMalloc. New memory is poisoned, unless the test leaves it
/// unwritten.
class DeviceBuffer : public Words {
 public:
  /// Is new memory poisoned, or left unwritten?
  enum class Fresh { kPoisoned, kUnwritten };

  /// Allocates with cudaMalloc and poisons the memory. A test that makes
  /// thousands of buffers and reads none of them can omit the poison.
  explicit DeviceBuffer(size_t bytes, Fresh fresh = Fresh::kPoisoned);
  DeviceBuffer(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data); }

  /// The handle of cudaIpcGetMemHandle.
  cudaIpcMemHandle_t legacy_handle() const;
  /// Frees now, not in the destructor, for tests of this step.
  void free();
};

/// Pinned memory of the host, of cudaMallocHost. Its words are 0 at first.
class PinnedBuffer : public Words {
 public:
  /// Allocates with cudaMallocHost and sets all bytes to 0.
  explicit PinnedBuffer(size_t bytes);
  PinnedBuffer(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { cudaFreeHost(data); }
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

  /// Closes now, not in the destructor, for tests of this step.
  void close();
};

/// The body of an exporter that lends a buffer of cudaMalloc, filled with
/// `written`. The exporter frees the buffer after importers have signalled
/// "closed" `closes` times.
std::function<void(Role&)> lends(Pattern written, size_t bytes, int closes = 1);

/// The body of an importer that opens the memory of `lends`, checks the memory
/// with `reads`, closes the memory and signals "closed".
std::function<void(Role&)> borrows(
    Pattern expected, size_t bytes,
    testing::AssertionResult (*reads)(const Words&, Pattern) = kernel_reads);

/// An object that is released only by the end of the process.
template <class T, class... Arguments>
T& abandoned(Arguments&&... arguments) {
  return *new T(std::forward<Arguments>(arguments)...);
}

/// Holds a stream until the latch is released, so that later work in the stream
/// cannot finish early by chance. After `kLimitSeconds` the latch releases the
/// stream by itself. This is not shorter than the deadline of a scenario: on a
/// machine that is too slow a test is then `hung`, and no work comes early.
class Latch {
 public:
  /// After this many seconds a held stream goes on.
  static constexpr double kLimitSeconds = 60;

  Latch();
  Latch(const Latch&) = delete;
  ~Latch();

  /// Work that is queued in the stream from now on waits.
  void hold(cudaStream_t stream, double limit_seconds = kLimitSeconds);
  /// Lets the held streams go on.
  void release();

 private:
  unsigned* flag_ = nullptr;  // pinned host memory, seen by the kernel
};

// --- order ------------------------------------------------------------------

/// A stream that the legacy default stream does not wait for.
class Stream {
 public:
  /// A usual stream does not wait for the legacy default stream. The GPU does
  /// the work of an urgent stream before the work of others. A blocking stream
  /// and the legacy default stream wait for each other.
  enum class Kind { kUsual, kUrgent, kBlocking };

  /// Creates it.
  explicit Stream(Kind kind = Kind::kUsual);
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  /// The stream itself.
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Is all work of the stream done within `limit`?
testing::AssertionResult passes(cudaStream_t stream,
                                std::chrono::milliseconds limit = 5s);

/// Is some work of the stream still pending after 0.5 s? Work that nothing
/// holds is done by then, even on a busy machine. A single query could report
/// such work as held.
bool is_held(cudaStream_t stream);
/// Is the event's work still pending after 0.5 s?
bool is_held(cudaEvent_t event);

/// An event that processes share. One process creates it, and the others open
/// it.
class SharedEvent {
 public:
  /// Creates an event. With the default flags it can be exported.
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
  /// Destroys now, not in the destructor, for tests of this step.
  void destroy();
  /// Gives the event to the caller, who must destroy it.
  cudaEvent_t release() { return std::exchange(event_, nullptr); }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Makes a call in another thread of this process and returns its result. The
/// other thread has the same current device as this thread. What the call
/// throws, this thread throws.
template <class Call>
auto in_a_thread(Call call) {
  int device = 0;
  CALL(cudaGetDevice(&device));
  decltype(call()) code{};
  std::async(std::launch::async, [&] {
    CALL(cudaSetDevice(device));
    code = call();
  }).get();
  return code;
}

/// Calls `body` with 0 in this thread and with 1 in another thread. So the test
/// notices a call that works only in the first thread.
template <class Body>
void in_two_threads(Body body) {
  body(0);
  CALL(in_a_thread([&] { return body(1), cudaSuccess; }));
}

/// Judges that the error of a refused runtime call becomes this thread's last
/// error. A call that succeeds must not clear it, and cudaGetLastError must
/// return it exactly once.
testing::AssertionResult is_told_once(const char* call, cudaError_t refusal);
/// Judges that a call that has succeeded leaves no last error.
testing::AssertionResult leaves_no_error(const char* call, cudaError_t success);

/// Makes cudaEventSynchronize, or another call that waits, in a thread of its
/// own. So the role can check whether the call has returned.
class HostWait {
 public:
  /// Returns just before the thread makes the call.
  explicit HostWait(cudaEvent_t event);
  /// The same for another call, which has this name.
  HostWait(const char* name, std::function<cudaError_t()> call);
  HostWait(const HostWait&) = delete;
  ~HostWait();

  /// Has the call returned?
  bool returned() const { return returned_; }
  /// Does the call still wait after 0.5 s, as in is_held()?
  bool is_held() const;
  /// Waits for the thread; returns the result of the call.
  cudaError_t join();
  /// Processor time of the waiting thread in microseconds, after join().
  long long cpu_us() const { return cpu_us_; }
  /// How long the thread waited, in microseconds, after join().
  long long waited_us() const { return waited_us_; }

 private:
  std::atomic<bool> entered_{false}, returned_{false};
  cudaError_t code_ = cudaSuccess;
  long long cpu_us_ = 0, waited_us_ = 0;
  std::thread thread_;
};

// --- the machine ------------------------------------------------------------

/// An attribute of a GPU; 0 if the driver is older than the toolkit and does
/// not know it.
int attribute(cudaDeviceAttr which, int device = 0);
/// An attribute of a GPU that only the driver API knows.
int attribute(CUdevice_attribute which, int device = 0);

/// Free bytes on the current device. A test that uses this number must be
/// `alone`.
size_t free_memory();

/// The value of CUDA_VISIBLE_DEVICES for a role that must see these GPUs of the
/// test, in this order. If the variable was set when the test started, the
/// numbers are positions in its list.
std::string visible_gpus(std::initializer_list<int> order);

/// What leaves_nothing() judges: only the process, or also the memory of the
/// device. Only tests that are `alone` may judge the memory of the device.
enum class Judge { kProcess, kProcessAndDevice };

/// Calls `round` a few times first, because a driver creates some objects only
/// once. Then it calls `round` `rounds` times more. These rounds must leave no
/// descriptor, no addresses, no name in /dev/shm and no device memory. A leak
/// is growth in every quarter of the rounds, or much growth in total. Addresses
/// and device memory count only if they grow by at least half a page for each
/// round. Memory that a driver keeps for its own use does not grow in this way.
/// The rounds are numbered from 0. After a failed round, no round follows.
void leaves_nothing(int rounds, const std::function<void(int)>& round,
                    Judge judge = Judge::kProcessAndDevice);

/// Are `bytes` of device memory free again within some seconds? `free_before`
/// is how much memory was free while these bytes were still allocated. `bytes`
/// has to be much more than other changes of the free memory.
testing::AssertionResult returned(size_t free_before, size_t bytes);

/// Prints the probe's document (harness/README.md, section 3) to stdout.
void print_probe();

}  // namespace ipclab
