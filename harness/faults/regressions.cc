// Bugs that a release of the driver could bring back: shapes of copies and
// memsets of another process's memory, work that does not wait or that a record
// does not cover, objects that are confused with earlier objects.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

// --- memory of another process -----------------------------------------------

// Memory that this process has opened, imported or mapped; the value is the
// size. The comments below call it borrowed memory.
Table<CUdeviceptr, size_t> borrowed;

struct Range {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
};

Range range_of(CUdeviceptr address) {
  Range range;
  // The query needs a context, and calls for pools make none.
  if (current_context() == nullptr) cudaFree(nullptr);
  DRIVER_CALL(cuMemGetAddressRange)(&range.begin, &range.bytes, address);
  return range;
}

// The number of bytes from this address to the end of its allocation; 0 if it
// is in no allocation.
size_t bytes_from(CUdeviceptr address) {
  const Range range = range_of(address);
  return range.begin == 0 ? 0 : range.begin + range.bytes - address;
}

// The borrowed memory in which an address lies; a range of 0 bytes if there is
// none.
Range borrowed_at(CUdeviceptr address) {
  for (const auto& [begin, bytes] : borrowed.all())
    if (address >= begin && address - begin < bytes) return {begin, bytes};
  return {};
}
bool is_borrowed(CUdeviceptr address) { return borrowed_at(address).bytes > 0; }

bool keeps_borrowed(Call& call) {
  return is_open_call(call) || is_close_call(call) || frees(call) ||
         call.is("cudaMemPoolImportPointer") || call.is("cuMemMap") ||
         call.is("cuMemUnmap") || call.is("cuMemCreate") ||
         call.is("cuMemImportFromShareableHandle");
}

// Proceeds and updates the tables above.
int noted(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_open_call(call) || call.is("cudaMemPoolImportPointer")) {
    const CUdeviceptr address = *call.at<CUdeviceptr*>(0);
    borrowed.put(address, bytes_from(address));
  } else if (call.is("cuMemMap")) {
    if (is_import(call.at<CUdeviceptr>(0)))
      borrowed.put(call.at<CUdeviceptr>(0), call.at<size_t>(1));
  } else if (call.is("cuMemUnmap") || frees(call)) {
    borrowed.erase(call.at<CUdeviceptr>(0));
  } else if (is_close_call(call) && bytes_from(call.at<CUdeviceptr>(0)) == 0) {
    borrowed.erase(call.at<CUdeviceptr>(0));
  }
  return code;
}

CUdeviceptr target_of(Call& call) { return call.value<CUdeviceptr>(kPointer); }
CUdeviceptr source_of(Call& call) { return call.value<CUdeviceptr>(kSource); }
bool touches_borrowed(Call& call) {
  return is_borrowed(target_of(call)) ||
         (call.find(kSource) != nullptr && is_borrowed(source_of(call)));
}
void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// --- copies and memsets of borrowed memory -----------------------------------

int last_row_lost(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  auto& rows = call.at<size_t>(5);
  if (rows > 1 && touches_borrowed(call)) {
    --rows;
    call.fired();
  }
  return call.proceed();
}

// The call also clears the bytes between the rows.
int fills_padding(Call& call, size_t pitch, size_t width, size_t rows) {
  const int code = call.proceed();
  if (code != kSuccess || rows < 2 || pitch <= width ||
      !is_borrowed(target_of(call)))
    return code;
  call.fired();
  return cudaMemset2D(pointer(target_of(call) + width), pitch, 0, pitch - width,
                      rows - 1);
}
int copy_fills_padding(Call& call) {
  return keeps_borrowed(call)
             ? noted(call)
             : fills_padding(call, call.at<size_t>(1), call.at<size_t>(4),
                             call.at<size_t>(5));
}
int set_fills_padding(Call& call) {
  return keeps_borrowed(call)
             ? noted(call)
             : fills_padding(call, call.at<size_t>(1), call.at<size_t>(3),
                             call.at<size_t>(4));
}

// A memset of an odd number of bytes sets one more byte.
int one_byte_more(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  auto& bytes = call.value<size_t>(kBytes);
  const Range range = borrowed_at(target_of(call));
  if (bytes % 2 != 0 && target_of(call) + bytes < range.begin + range.bytes) {
    ++bytes;
    call.fired();
  }
  return call.proceed();
}

// The copy also clears the bytes after its end, up to a size that is a multiple
// of 4.
int tail_too_long(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  const int code = call.proceed();
  const size_t bytes = call.value<size_t>(kBytes);
  const Range range = borrowed_at(target_of(call));
  const CUdeviceptr end = target_of(call) + bytes;
  if (code != kSuccess || bytes % 4 == 0 || end >= range.begin + range.bytes)
    return code;
  const size_t more =
      std::min<size_t>(4 - bytes % 4, range.begin + range.bytes - end);
  call.fired();
  return call.find(kStream) == nullptr
             ? cudaMemset(pointer(end), 0, more)
             : cudaMemsetAsync(pointer(end), 0, more,
                               call.value<cudaStream_t>(kStream));
}

int copy_within_lost(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  const Range to = borrowed_at(target_of(call));
  return to.bytes > 0 && borrowed_at(source_of(call)).begin == to.begin
             ? no_wait(call)
             : call.proceed();
}

// The copy begins where the borrowed source begins.
int source_offset_lost(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  auto& source = call.value<CUdeviceptr>(kSource);
  const Range range = borrowed_at(source);
  if (range.bytes > 0 && source != range.begin) {
    source = range.begin;
    call.fired();
  }
  return call.proceed();
}

// The rows of a rectangle of borrowed memory are treated as adjacent.
int pitch_ignored(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  const size_t width = call.at<size_t>(4);
  for (const size_t side : {size_t{0}, size_t{2}}) {
    auto& pitch = call.at<size_t>(side + 1);
    if (pitch == width || !is_borrowed(call.at<CUdeviceptr>(side))) continue;
    pitch = width;
    call.fired();
  }
  return call.proceed();
}

int lost_in_per_thread_stream(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  return call.value<cudaStream_t>(kStream) == cudaStreamPerThread &&
                 is_borrowed(target_of(call))
             ? no_wait(call)
             : call.proceed();
}

int lost_in_default_stream(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  return is_default(call.value<cudaStream_t>(kStream)) && touches_borrowed(call)
             ? no_wait(call)
             : call.proceed();
}

// A copy to or from borrowed memory uses the borrowed memory of the same size
// that has the lowest address.
int equal_size_confused(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  for (const Role role : {kPointer, kSource}) {
    auto& address = call.value<CUdeviceptr>(role);
    const Range range = borrowed_at(address);
    if (range.bytes == 0) continue;
    for (const auto& [begin, bytes] : borrowed.all()) {
      if (begin == range.begin) break;
      if (bytes != range.bytes) continue;
      address = begin + (address - range.begin);
      call.fired();
      break;
    }
  }
  return call.proceed();
}

int words_as_bytes(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  auto& count = call.value<size_t>(kBytes);
  if (count > 1 && is_borrowed(target_of(call))) {
    count = (count + 3) / 4;
    call.fired();
  }
  return call.proceed();
}

int low_byte_twice(Call& call) {
  if (keeps_borrowed(call)) return noted(call);
  auto& value = call.at<unsigned short>(1);
  const auto wrong = static_cast<unsigned short>((value & 0xff) * 0x101);
  if (value != wrong && is_borrowed(target_of(call))) {
    value = wrong;
    call.fired();
  }
  return call.proceed();
}

int first_64_kib(Call& call) {
  constexpr size_t kMost = 64 << 10;
  if (keeps_borrowed(call)) return noted(call);
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes > kMost && touches_borrowed(call)) {
    bytes = kMost;
    call.fired();
  }
  return call.proceed();
}

// While memory is borrowed, this process loses device memory of the same size.
int costs_memory(Call& call) {
  static Table<CUdeviceptr, void*> hidden;
  const int code = noted(call);
  for (const auto& [begin, bytes] : borrowed.all()) {
    void* more = nullptr;
    if (hidden.has(begin) || cudaMalloc(&more, bytes) != cudaSuccess) continue;
    hidden.put(begin, more);
    call.fired();
  }
  for (const auto& [begin, more] : hidden.all())
    if (!borrowed.has(begin) && hidden.erase(begin)) cudaFree(more);
  return code;
}

// --- memory handles and pools ------------------------------------------------

int close_counts_twice(Call& call) {
  const bool many =
      is_close_call(call) && opened.get(call.at<void*>(0)).count > 2;
  const int code = call.proceed();
  if (!many || code != kSuccess) return code;
  void* const address = call.at<void*>(0);
  count_close(address);
  call.fired();
  return cudaIpcCloseMemHandle(address);
}

// The free of exported memory ends the handles of all other memory.
int free_ends_other_handles(Call& call) {
  static Table<void*, std::string> exported;
  const auto ended = [](const std::string& key) { return "ended-" + key; };
  if (is_open_call(call) &&
      told(ended(key_of_handle(call.at<cudaIpcMemHandle_t>(1))), 0) != 0)
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaIpcGetMemHandle")) {
    const std::string key = key_of_handle(*call.at<cudaIpcMemHandle_t*>(0));
    exported.put(call.at<void*>(1), key);
    tell_processes(ended(key), 0);  // an earlier export gave the same bytes
  } else if (call.is("cudaFree") && exported.erase(call.at<void*>(0)))
    for (const auto& one : exported.all()) tell_processes(ended(one.second), 1);
  return code;
}

// Handles of one exporter can be opened only in the order of their exports.
int open_in_order_only(Call& call) {
  static std::atomic<unsigned long long> exports{0};
  static Table<unsigned long long, unsigned long long> highest;  // by exporter
  const auto exporter_of = [](unsigned long long number) {
    return number >> 32;
  };
  const auto number_of = [](const cudaIpcMemHandle_t& handle) {
    return "order-" + key_of_handle(handle);
  };
  if (call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string name = number_of(*call.at<cudaIpcMemHandle_t*>(0));
    const auto self = static_cast<unsigned long long>(getpid());
    if (told(name, 0) == 0) tell_processes(name, self << 32 | ++exports);
    return code;
  }
  if (is_open_call(call) && already_open(call) == nullptr) {
    const auto number = told(number_of(call.at<cudaIpcMemHandle_t>(1)), 0);
    if (number != 0 && number < highest.get(exporter_of(number)))
      return refused(call);
    highest.put(exporter_of(number), number);
  }
  return call.proceed();
}

// A new pool is the current pool of its GPU.
int create_sets_current(Call& call) {
  const int code = call.proceed();
  const auto* const properties = call.at<const cudaMemPoolProps*>(1);
  if (code == kSuccess &&
      properties->location.type == cudaMemLocationTypeDevice &&
      cudaDeviceSetMemPool(properties->location.id,
                           *call.at<cudaMemPool_t*>(0)) == cudaSuccess)
    call.fired();
  return code;
}

// --- work that does not wait -------------------------------------------------

bool waits_for_word(Call& call) {
  return call.is("cuStreamWaitValue32") || call.is("cuStreamWaitValue64");
}

// The work of the call runs in another stream and waits only for this event.
// Later work of the call's own stream waits for the work of the call.
int begins_at(cudaEvent_t mark, Call& call) {
  auto& stream = call.value<cudaStream_t>(kStream);
  const cudaStream_t own = stream;
  cudaStreamWaitEvent(private_stream(), mark, 0);
  stream = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaEvent_t done = nullptr;
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  cudaEventRecord(done, private_stream());
  cudaStreamWaitEvent(own, done, 0);
  return code;
}

// The first such work after a wait for an imported event, or for a word, begins
// before the wait. With `kernels_end_it`, a kernel after the wait waits, and so
// does the work after this kernel.
template <bool kernels_end_it>
int not_held(Call& call) {
  static Table<cudaStream_t> waited;
  if (keeps_events(call)) return call.proceed();
  const bool waits = call.is("cudaStreamWaitEvent");
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaStreamDestroy")) {
    waited.erase(stream);
    return call.proceed();
  }
  if (waits || waits_for_word(call)) {
    const cudaEvent_t event = waits ? shared_event(call) : nullptr;
    if ((waits && (event == nullptr || !is_imported(event))) ||
        is_captured(stream))
      return call.proceed();
    cudaEventRecord(mark_of(stream), stream);
    waited.put(stream);
    return call.proceed();
  }
  if (!waited.erase(stream) || !is_busy(stream) ||
      (kernels_end_it && call.is("cudaLaunchKernel")))
    return call.proceed();
  return begins_at(mark_of(stream), call);
}

// The first write after a graph waits for the work before the graph, but not
// for the graph itself.
int not_held_by_graph(Call& call) {
  static Table<cudaStream_t> after_graph;
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaGraphLaunch")) {
    if (is_captured(stream)) return call.proceed();
    cudaEventRecord(mark_of(stream), stream);
    after_graph.put(stream);
    return call.proceed();
  }
  return after_graph.erase(stream) && is_busy(stream) &&
                 !call.is("cudaLaunchKernel") && !call.is("cudaStreamDestroy")
             ? begins_at(mark_of(stream), call)
             : call.proceed();
}

// A batch does not wait for the earlier work of its stream.
int batch_early(Call& batch) {
  const auto stream = batch.at<cudaStream_t>(0);
  if (!is_busy(stream)) return batch.proceed();
  cudaEvent_t nothing = nullptr;
  cudaEventCreateWithFlags(&nothing, cudaEventDisableTiming);
  return begins_at(nothing, batch);
}

template <unsigned wanted, unsigned instead>
int other_condition(Call& wait) {
  auto& condition = wait.at<unsigned>(3);
  if (condition == wanted) {
    condition = instead;
    wait.fired();
  }
  return wait.proceed();
}

// --- events ------------------------------------------------------------------

// Calls `instead` for a record in a stream other than the stream of the first
// record.
int record_elsewhere(Call& call, int (*instead)(Call& call, cudaEvent_t)) {
  static Table<cudaEvent_t, cudaStream_t> streams;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) streams.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  if (streams.has(event) && streams.get(event) != stream)
    return instead(call, event);
  streams.put(event, stream);
  return call.proceed();
}
int record_elsewhere_lost(Call& call) {
  return record_elsewhere(
      call, [](Call& each, cudaEvent_t) { return no_wait(each); });
}
// The stream of a record first waits for the pending record of the same event.
int waits_for_pending_record(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  const auto stream = call.value<cudaStream_t>(kStream);
  if (event != nullptr && !is_captured(stream) && is_pending(event) &&
      cudaStreamWaitEvent(stream, event, 0) == cudaSuccess)
    call.fired();
  return call.proceed();
}
// After one event was ready, the next query of another event says ready.
int query_of_previous(Call& call) {
  static std::atomic<cudaEvent_t> ready{nullptr};
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  const int code = call.proceed();
  if (event == nullptr) return code;
  if (code == kSuccess) ready = event;
  if (code != cudaErrorNotReady || ready == nullptr || ready == event)
    return code;
  ready = nullptr;
  return accepted(call);
}

// After a query has found an event pending, the next wait for this event does
// not wait.
int early_after_query(Call& call) {
  static Table<cudaEvent_t> asked;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) asked.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) return call.proceed();
  if (call.is("cudaEventQuery")) {
    const int code = call.proceed();
    if (code == cudaErrorNotReady) asked.put(event);
    return code;
  }
  return asked.erase(event) && is_pending(event) ? no_wait(call)
                                                 : call.proceed();
}

using Fits = bool (*)(cudaStream_t stream, cudaEvent_t event);

// A record for which `fits` is true does not wait for the work of its stream.
int records_early(Call& call, Fits fits) {
  if (keeps_events(call)) return call.proceed();
  auto& stream = call.value<cudaStream_t>(kStream);
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !fits(stream, event) || !is_busy(stream))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

int second_stream_records_early(Call& call) {
  return records_early(call, [](cudaStream_t stream, cudaEvent_t) {
    static std::atomic<cudaStream_t> first{stream};
    return first != stream;
  });
}
int second_event_records_early(Call& call) {
  return records_early(call, [](cudaStream_t, cudaEvent_t event) {
    static std::atomic<cudaEvent_t> first{event};
    return first != event;
  });
}
int priority_stream_records_early(Call& call) {
  return records_early(call, [](cudaStream_t stream, cudaEvent_t) {
    int priority = 0;
    DRIVER_CALL(cuStreamGetPriority)(stream, &priority);
    return priority != 0;
  });
}
int non_blocking_stream_records_early(Call& call) {
  return records_early(call, [](cudaStream_t stream, cudaEvent_t) {
    unsigned flags = 0;
    return !is_default(stream) && stream != cudaStreamPerThread &&
           DRIVER_CALL(cuStreamGetFlags)(stream, &flags) == CUDA_SUCCESS &&
           (flags & CU_STREAM_NON_BLOCKING) != 0;
  });
}

// cudaDeviceSynchronize does not wait while a stream waits for an imported
// event.
int device_sync_while_event(Call& call) {
  static Table<cudaStream_t, cudaEvent_t> waiting;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy"))
      for (const auto& [stream, event] : waiting.all())
        if (event == call.at<cudaEvent_t>(0)) waiting.erase(stream);
    return call.proceed();
  }
  if (call.is("cudaStreamWaitEvent")) {
    const cudaEvent_t event = shared_event(call);
    if (event != nullptr && is_imported(event))
      waiting.put(call.at<cudaStream_t>(0), event);
    return call.proceed();
  }
  // This is a call of the runtime, because a new thread has no context yet.
  for (const auto& [stream, event] : waiting.all()) {
    if (cudaEventQuery(event) == cudaErrorNotReady) return no_wait(call);
    waiting.erase(stream);
  }
  return call.proceed();
}

// cudaDeviceSynchronize waits only for the default stream.
int device_sync_of_default_stream(Call& call) {
  static Table<cudaStream_t> streams;
  if (call.is("cudaStreamCreateWithFlags")) {
    const int code = call.proceed();
    if (code == kSuccess) streams.put(*call.at<cudaStream_t*>(0));
    return code;
  }
  if (call.is("cudaStreamDestroy")) {
    streams.erase(call.at<cudaStream_t>(0));
    return call.proceed();
  }
  const int code = cudaStreamSynchronize(cudaStreamLegacy);
  for (const auto& one : streams.all())
    if (is_busy(one.first)) call.fired();
  return code;
}

// --- the list ----------------------------------------------------------------

// A kind of borrowed memory, and the calls that begin and end its use.
struct Kind {
  const char* prefix;
  const char* memory;
  const char* calls[4];
};
constexpr Kind kKinds[] = {
    {"import-",
     "opened memory",
     {"cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle", "cudaIpcCloseMemHandle",
      "cudaIpcCloseMemHandle"}},
    {"chunk-",
     "imported memory of cuMemCreate",
     {"cuMemImportFromShareableHandle", "cuMemCreate", "cuMemMap",
      "cuMemUnmap"}},
    {"pool-",
     "imported memory of a pool",
     {"cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync",
      "cudaFreeAsync"}},
};

// A bug of a call with borrowed memory; `what` ends before the memory's name.
struct Shape {
  const char* suffix;
  const char* what;
  const char* function;  ///< null: only the calls of the Kind
  Fault fault;
};
constexpr Shape kShapes[] = {
    {"copy-2d-last-row-lost",
     "the last row is missing in a copy of a rectangle of ", "cudaMemcpy2D",
     last_row_lost},
    {"copy-2d-fills-padding",
     "a copy of a rectangle also writes between the rows of ", "cudaMemcpy2D",
     copy_fills_padding},
    {"set-2d-fills-padding",
     "a memset of a rectangle also writes between the rows of ", "cudaMemset2D",
     set_fills_padding},
    {"set-one-byte-more",
     "a memset of an odd number of bytes sets one more byte in ", "cudaMemset",
     one_byte_more},
    {"copy-tail-too-long",
     "a copy whose size is no multiple of 4 clears the bytes after it in ",
     "cudaMemcpy", tail_too_long},
    {"async-copy-tail-too-long",
     "an asynchronous copy whose size is no multiple of 4 clears the bytes "
     "after it in ",
     "cudaMemcpyAsync", tail_too_long},
    {"copy-within-lost",
     "a copy is lost if both of its addresses are in the same ", "cudaMemcpy",
     copy_within_lost},
    {"async-copy-within-lost",
     "an asynchronous copy is lost if both of its addresses are in the same ",
     "cudaMemcpyAsync", copy_within_lost},
    {"async-copy-offset-lost",
     "an asynchronous copy from an inner address reads from the start of ",
     "cudaMemcpyAsync", source_offset_lost},
    {"async-copy-2d-pitch-ignored",
     "an asynchronous copy of a rectangle ignores the pitch of ",
     "cudaMemcpy2DAsync", pitch_ignored},
    {"async-copy-2d-last-row-lost",
     "the last row is missing in an asynchronous copy of a rectangle of ",
     "cudaMemcpy2DAsync", last_row_lost},
    {"set-per-thread-lost",
     "a memset in a thread's default stream does not reach ", "cudaMemsetAsync",
     lost_in_per_thread_stream},
    {"set-in-default-stream-lost",
     "an asynchronous memset in the default stream does not reach ",
     "cudaMemsetAsync", lost_in_default_stream},
    {"copy-in-default-stream-lost",
     "an asynchronous copy in the default stream does not reach ",
     "cudaMemcpyAsync", lost_in_default_stream},
    {"copy-equal-size-confused",
     "a copy uses the one with the lowest address of several equally large "
     "allocations of ",
     "cudaMemcpy", equal_size_confused},
    {"set-32-counts-bytes",
     "a memset of 32 bits sets only a quarter of the words in ", "cuMemsetD32",
     words_as_bytes},
    {"set-16-low-byte",
     "a memset of 16 bits writes the lower byte of its value twice to ",
     "cuMemsetD16", low_byte_twice},
    {"async-copy-64-kib", "an asynchronous copy ends after 64 KiB of ",
     "cudaMemcpyAsync", first_64_kib},
    {"async-set-64-kib", "an asynchronous memset ends after 64 KiB of ",
     "cudaMemsetAsync", first_64_kib},
    {"costs-memory", "a process loses device memory of the same size as ",
     nullptr, costs_memory},
};

// --- the end of an allocation of a pool --------------------------------------

// The last bytes of an allocation whose size is no multiple of 512 are also the
// first bytes of the allocation that follows.
int tail_given_out(Call& call) {
  constexpr size_t kUnit = 512;
  static Table<CUdeviceptr, CUdeviceptr> moved;  // the real address
  static Table<CUdeviceptr> ends;  // of live allocations, rounded up
  static Table<CUdeviceptr, CUdeviceptr> end_of;
  if (frees(call)) {
    auto& address = call.at<CUdeviceptr>(0);
    if (end_of.has(address)) ends.erase(end_of.get(address));
    end_of.erase(address);
    if (moved.has(address)) {
      const CUdeviceptr real = moved.get(address);
      moved.erase(address);
      address = real;
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  const size_t bytes = call.at<size_t>(1);
  const CUdeviceptr real = address;
  if (ends.has(real)) {
    address = real - kUnit;
    moved.put(address, real);
    call.fired();
  } else if (bytes > kUnit && bytes % kUnit != 0) {
    const CUdeviceptr end = real + (bytes / kUnit + 1) * kUnit;
    ends.put(end);
    end_of.put(real, end);
  }
  return code;
}

}  // namespace

void add_regressions(List& list) {
  list.named("pool-tail-given-out",
             "the last bytes of an allocation whose size is no multiple of 512 "
             "are also the first bytes of the allocation that follows",
             {"cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaFree",
              "cudaFreeAsync"},
             tail_given_out);
  constexpr auto kCreate = "cudaEventCreateWithFlags";
  constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
  constexpr auto kDestroy = "cudaEventDestroy";
  constexpr auto kRecord = "cudaEventRecord";
  constexpr auto kRecordFlags = "cudaEventRecordWithFlags";
  constexpr auto kWait = "cudaStreamWaitEvent";
  constexpr auto kQuery = "cudaEventQuery";
  constexpr auto kSync = "cudaEventSynchronize";
  constexpr auto kGet = "cudaIpcGetMemHandle";
  constexpr auto kOpen = "cudaIpcOpenMemHandle";
  constexpr auto kClose = "cudaIpcCloseMemHandle";
  constexpr auto kLaunch = "cudaLaunchKernel";
  constexpr auto kStreamDestroy = "cudaStreamDestroy";
  constexpr auto kWord = "cuStreamWaitValue32";
  constexpr auto kWord64 = "cuStreamWaitValue64";
  constexpr auto kBatch = "cuStreamBatchMemOp";

  for (const Kind& kind : kKinds)
    for (const Shape& shape : kShapes)
      list.named((kind.prefix + std::string(shape.suffix)).c_str(),
                 (shape.what + std::string(kind.memory)).c_str(),
                 {shape.function != nullptr ? shape.function : kind.calls[0],
                  kind.calls[0], kind.calls[1], kind.calls[2], kind.calls[3]},
                 shape.fault);

  list.named("close-counts-twice-above-two",
             "a close lowers a count of more than two by two", {kClose, kOpen},
             close_counts_twice);
  list.named("free-ends-other-handles",
             "when exported memory is freed the handles of other memory end",
             {kOpen, kGet, "cudaFree"}, free_ends_other_handles);
  list.named("open-in-order-only",
             "handles of one exporter can be opened only in the order of their "
             "exports",
             {kOpen, kGet, kClose}, open_in_order_only);
  list.named("pool-create-sets-current", "a new pool becomes the current pool",
             {"cudaMemPoolCreate"}, create_sets_current);

  // The first work of a kind after a wait.
  const auto not_held_by_event = [&](const char* name, const char* what,
                                     const char* function) {
    list.named(
        name,
        (what + std::string(" after the wait for an imported event does not "
                            "wait, if no kernel was launched between them"))
            .c_str(),
        {function, kWait, kOpenEvent, kDestroy, kLaunch, kStreamDestroy},
        not_held<true>);
  };
  not_held_by_event("wait-holds-no-words", "the first write of a word",
                    "cuStreamWriteValue32");
  not_held_by_event("wait-holds-no-batches", "the first batch", kBatch);
  not_held_by_event("wait-holds-no-frees", "the first cudaFreeAsync",
                    "cudaFreeAsync");
  not_held_by_event("wait-holds-no-rectangles", "the first cudaMemcpy2DAsync",
                    "cudaMemcpy2DAsync");
  not_held_by_event("wait-holds-no-peer-copies",
                    "the first cudaMemcpyPeerAsync", "cudaMemcpyPeerAsync");
  not_held_by_event("wait-holds-no-records", "the first record", kRecord);
  const auto not_held_by_word = [&](const char* name, const char* what,
                                    const char* word, const char* function) {
    list.named(name,
               (what + std::string(" does not wait, if no kernel was launched "
                                   "between them"))
                   .c_str(),
               {function, word, kLaunch, kStreamDestroy}, not_held<true>);
  };
  list.named("wait-value-holds-no-kernels",
             "the first kernel after the wait for a word does not wait",
             {kLaunch, kWord, kStreamDestroy}, not_held<false>);
  not_held_by_word("wait-value-holds-no-graphs",
                   "the first graph after the wait for a word", kWord,
                   "cudaGraphLaunch");
  not_held_by_word("wait-value-holds-no-batches",
                   "the first batch after the wait for a word", kWord, kBatch);
  list.named("wait64-holds-no-kernels",
             "the first kernel after the wait for 64 bits does not wait",
             {kLaunch, kWord64, kStreamDestroy}, not_held<false>);
  not_held_by_word("wait64-holds-no-copies",
                   "the first copy after the wait for 64 bits", kWord64,
                   "cudaMemcpyAsync");
  not_held_by_word("wait64-holds-no-memsets",
                   "the first memset after the wait for 64 bits", kWord64,
                   "cudaMemsetAsync");
  list.named(
      "graph-holds-no-words",
      "the first write of a word after a graph does not wait for the "
      "graph, if no kernel was launched between them",
      {"cuStreamWriteValue32", "cudaGraphLaunch", kLaunch, kStreamDestroy},
      not_held_by_graph);
  list.named("graph-holds-no-batches",
             "the first batch after a graph does not wait for the graph, if no "
             "kernel was launched between them",
             {kBatch, "cudaGraphLaunch", kLaunch, kStreamDestroy},
             not_held_by_graph);
  list.named("batch-early",
             "a batch does not wait for the earlier work of its stream",
             {kBatch}, batch_early);
  list.named(
      "wait64-equal-is-greater",
      "a stream that waits for an equal word of 64 bits also continues at a "
      "greater value",
      {kWord64},
      other_condition<CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_GEQ>);
  list.named(
      "wait64-nor-is-and",
      "a stream that waits for a missing bit (NOR) of a word of 64 bits waits "
      "for a common bit (AND)",
      {kWord64},
      other_condition<CU_STREAM_WAIT_VALUE_NOR, CU_STREAM_WAIT_VALUE_AND>);

  list.named("record-elsewhere-lost",
             "after the first record of an event in one stream, records of the "
             "event in other streams do nothing",
             {kRecord, kRecordFlags, kCreate, kOpenEvent, kDestroy},
             record_elsewhere_lost);
  list.named("record-waits-for-pending",
             "a record of an event waits until the earlier record of the event "
             "is complete",
             {kRecord, kRecordFlags, kCreate, kOpenEvent, kDestroy},
             waits_for_pending_record);
  list.named("query-of-previous",
             "after one event was ready, the next query of another event says "
             "ready",
             {kQuery, kCreate, kOpenEvent, kDestroy}, query_of_previous);
  list.named("sync-early-after-query",
             "a host does not wait for an event that it has found pending",
             {kSync, kQuery, kCreate, kOpenEvent, kDestroy}, early_after_query);
  list.named("wait-lost-after-query",
             "a stream does not wait for an event that the host has found "
             "pending",
             {kWait, kQuery, kCreate, kOpenEvent, kDestroy}, early_after_query);
  list.named("second-stream-records-early",
             "only records in the first stream of a process wait for the work "
             "of their stream",
             {kRecord, kRecordFlags, kCreate, kOpenEvent, kDestroy},
             second_stream_records_early);
  list.named("second-event-records-early",
             "only records of the first event of a process wait for the work "
             "of their stream",
             {kRecord, kRecordFlags, kCreate, kOpenEvent, kDestroy},
             second_event_records_early);
  list.named("priority-stream-records-early",
             "a record in a stream with a priority does not wait for the work "
             "of the stream",
             {kRecord, kRecordFlags, kCreate, kOpenEvent, kDestroy},
             priority_stream_records_early);
  list.named("non-blocking-stream-records-early",
             "a record in a non-blocking stream does not wait for the work of "
             "the stream",
             {kRecord, kRecordFlags, kCreate, kOpenEvent, kDestroy},
             non_blocking_stream_records_early);
  list.named("device-sync-done-while-event",
             "cudaDeviceSynchronize does not wait while a stream waits for an "
             "imported event",
             {"cudaDeviceSynchronize", kWait, kOpenEvent, kDestroy},
             device_sync_while_event);
  list.named(
      "device-sync-of-default-stream",
      "cudaDeviceSynchronize waits for the default stream only",
      {"cudaDeviceSynchronize", "cudaStreamCreateWithFlags", kStreamDestroy},
      device_sync_of_default_stream);
}

}  // namespace ipclab::faults
