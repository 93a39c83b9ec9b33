// Bugs of words in memory that order work: words of 64 bits, batches, other
// streams and threads, other kinds of work, words in other kinds of memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

cudaStream_t& stream_of(Call& call) {
  return call.value<cudaStream_t>(kStream);
}
CUdeviceptr word_of(Call& call) { return call.at<CUdeviceptr>(1); }

bool waits(Call& call) {
  return call.is("cuStreamWaitValue32") || call.is("cuStreamWaitValue64");
}
bool writes(Call& call) {
  return call.is("cuStreamWriteValue32") || call.is("cuStreamWriteValue64");
}

bool is_copy(Call& call) { return call.is("cudaMemcpyAsync"); }
bool is_memset(Call& call) { return call.is("cudaMemsetAsync"); }

int in_private_stream(Call& call) {
  stream_of(call) = private_stream();
  call.fired();
  return call.proceed();
}

// --- which stream, which thread ----------------------------------------------

int first_stream_only(Call& call) {
  static Table<int, cudaStream_t> first;
  if (!first.has(0)) first.put(0, stream_of(call));
  return stream_of(call) == first.get(0) ? call.proceed() : no_wait(call);
}

int lost_in_default_stream(Call& call) {
  return is_default(stream_of(call)) ? no_wait(call) : call.proceed();
}

int lost_in_per_thread_stream(Call& call) {
  return stream_of(call) == cudaStreamPerThread ? no_wait(call)
                                                : call.proceed();
}

int lost_in_other_threads(Call& call) {
  return gettid() != getpid() ? no_wait(call) : call.proceed();
}

int lost_in_busy_stream(Call& call) {
  return is_busy(stream_of(call)) ? no_wait(call) : call.proceed();
}

// While one stream waits, other streams do not wait.
int one_wait_at_a_time(Call& call) {
  static Table<cudaStream_t> waiting;
  const auto stream = stream_of(call);
  for (const auto& one : waiting.all())
    if (one.first != stream && is_pending(mark_of(one.first)))
      return no_wait(call);
  const int code = call.proceed();
  if (code != kSuccess || is_captured(stream)) return code;
  waiting.put(stream);
  DRIVER_CALL(cuEventRecord)(mark_of(stream), stream);
  return code;
}

// --- values that were written or seen before ---------------------------------

// If the call ends memory, forgets the words in it, and returns true.
template <class Value>
bool forgets_words(Call& call, Table<CUdeviceptr, Value>& words) {
  if (waits(call) || writes(call)) return false;
  const auto ending = call.at<CUdeviceptr>(0);
  for (const auto& each : words.all())
    if (ending != 0 && begin_of(each.first) == ending) words.erase(each.first);
  return true;
}

int waits_once_for_value(Call& call) {
  static Table<CUdeviceptr, std::set<uint32_t>> seen;
  if (forgets_words(call, seen)) return call.proceed();
  const bool is_first = seen.change([&](auto& all) {
    return all[word_of(call)].insert(call.at<uint32_t>(2)).second;
  });
  return is_first ? call.proceed() : no_wait(call);
}

int same_value_not_written(Call& call) {
  static Table<CUdeviceptr, uint32_t> last;
  if (forgets_words(call, last)) return call.proceed();
  const auto value = call.at<uint32_t>(2);
  if (last.has(word_of(call)) && last.get(word_of(call)) == value)
    return no_wait(call);
  last.put(word_of(call), value);
  return call.proceed();
}

// --- work of one kind --------------------------------------------------------

// A write does not wait for the work that was submitted to its stream last, if
// this work is not a kernel.
int writes_before_last(Call& call) {
  static Table<cudaStream_t> concerned;
  const auto stream = stream_of(call);
  if (writes(call))
    return concerned.erase(stream) && is_busy(stream) ? in_private_stream(call)
                                                      : call.proceed();
  if (call.is("cudaLaunchKernel"))
    concerned.erase(stream);
  else
    concerned.put(stream);
  return call.proceed();
}

// A write does not wait for a copy to the host that was submitted to its stream
// last.
int writes_before_host_copy(Call& call) {
  static Table<cudaStream_t> copies;
  const auto stream = stream_of(call);
  if (writes(call))
    return copies.erase(stream) && is_busy(stream) ? in_private_stream(call)
                                                   : call.proceed();
  unsigned type = CU_MEMORYTYPE_DEVICE;
  if (is_copy(call)) DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, call.at<CUdeviceptr>(0));
  if (type == CU_MEMORYTYPE_HOST)
    copies.put(stream);
  else
    copies.erase(stream);
  return call.proceed();
}

// Work of this kind directly after a wait does not wait for the word.
template <bool (*concerned)(Call&)>
int next_is_not_held(Call& call) {
  static Table<cudaStream_t> waiting;
  const auto stream = stream_of(call);
  if (waits(call)) {
    waiting.put(stream);
    return call.proceed();
  }
  return waiting.erase(stream) && concerned(call) && is_busy(stream)
             ? in_private_stream(call)
             : call.proceed();
}

// --- the memory of the word --------------------------------------------------

int lost_in_host_memory(Call& call) {
  unsigned type = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, word_of(call));
  return type == CU_MEMORYTYPE_HOST ? no_wait(call) : call.proceed();
}

int lost_in_imported_chunk(Call& call) {
  if (!waits(call) && !writes(call)) return call.proceed();
  return is_import(word_of(call)) ? no_wait(call) : call.proceed();
}

// Only the first process that opens memory uses words in it.
int words_of_first_importer(Call& call) {
  static Table<std::string> mine;
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (code != kSuccess || !is_open_call(call)) return code;
    const std::string key = opened.get(*call.at<void**>(0)).handle;
    if (!mine.has(key) && first_of_all_processes("words-in-" + key))
      mine.put(key);
    return code;
  }
  void* const memory = opened_around(reinterpret_cast<void*>(word_of(call)));
  return memory != nullptr && !mine.has(opened.get(memory).handle)
             ? no_wait(call)
             : call.proceed();
}

// A stream does not wait for words in memory that the process has opened and
// closed before.
int lost_in_reopened_memory(Call& call) {
  static Table<std::string> closed;
  if (is_close_call(call)) {
    const std::string key = opened.get(call.at<void*>(0)).handle;
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(call.at<void*>(0))) closed.put(key);
    return code;
  }
  if (is_open_call(call)) return call.proceed();
  void* const memory = opened_around(reinterpret_cast<void*>(word_of(call)));
  return memory != nullptr && closed.has(opened.get(memory).handle)
             ? no_wait(call)
             : call.proceed();
}

// A wait for a word in opened memory is always a wait for equality.
int equality_in_opened_memory(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& flags = call.at<unsigned>(3);
  if (flags != CU_STREAM_WAIT_VALUE_EQ && is_opened(word_of(call))) {
    flags = CU_STREAM_WAIT_VALUE_EQ;
    call.fired();
  }
  return call.proceed();
}

int managed_accepted(Call& call) {
  const int code = call.proceed();
  unsigned is_managed = 0;
  return code != kSuccess &&
                 DRIVER_CALL(cuPointerGetAttribute)(
                     &is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                     word_of(call)) == CUDA_SUCCESS &&
                 is_managed != 0
             ? accepted(call)
             : code;
}

// Only the first address of managed memory is refused.
int managed_inside_accepted(Call& call) {
  const int code = call.proceed();
  unsigned is_managed = 0;
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  if (code == kSuccess ||
      DRIVER_CALL(cuPointerGetAttribute)(&is_managed,
                                         CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                         word_of(call)) != CUDA_SUCCESS ||
      is_managed == 0 ||
      DRIVER_CALL(cuMemGetAddressRange)(&begin, &bytes, word_of(call)) !=
          CUDA_SUCCESS ||
      begin == word_of(call))
    return code;
  return accepted(call);
}

// --- the 64-bit form ---------------------------------------------------------

int waits_for_lower_half(Call& call) {
  call.fired();
  return DRIVER_CALL(cuStreamWaitValue32)(
      call.at<CUstream>(0), word_of(call),
      static_cast<uint32_t>(call.at<uint64_t>(2)), call.at<unsigned>(3));
}

int waits_for_upper_half(Call& call) {
  call.fired();
  return DRIVER_CALL(cuStreamWaitValue32)(
      call.at<CUstream>(0), word_of(call) + sizeof(uint32_t),
      static_cast<uint32_t>(call.at<uint64_t>(2) >> 32), call.at<unsigned>(3));
}

int writes_lower_half(Call& call) {
  call.fired();
  return DRIVER_CALL(cuStreamWriteValue32)(
      call.at<CUstream>(0), word_of(call),
      static_cast<uint32_t>(call.at<uint64_t>(2)), call.at<unsigned>(3));
}

// A write does not wait for the earlier work of its stream.
int writes_early(Call& call) {
  return is_busy(stream_of(call)) ? in_private_stream(call) : call.proceed();
}

// The condition `asked` is treated as the condition `taken`.
template <unsigned asked, unsigned taken>
int other_condition(Call& call) {
  auto& flags = call.at<unsigned>(3);
  if (flags == asked) {
    flags = taken;
    call.fired();
  }
  return call.proceed();
}

int nor_refused(Call& call) {
  return call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_NOR
             ? refused(call, CUDA_ERROR_NOT_SUPPORTED)
             : call.proceed();
}

// --- batches -----------------------------------------------------------------

using Operations = std::vector<CUstreamBatchMemOpParams>;

// Proceeds with these operations instead of the operations of the program.
int with_operations(Call& call, Operations operations) {
  call.at<unsigned>(1) = static_cast<unsigned>(operations.size());
  call.at<CUstreamBatchMemOpParams*>(2) = operations.data();
  call.fired();
  return operations.empty() ? kSuccess : call.proceed();
}

Operations operations_of(Call& call) {
  const auto* const first = call.at<CUstreamBatchMemOpParams*>(2);
  const unsigned count = call.at<unsigned>(1);
  return first == nullptr || count >= 256 ? Operations{}
                                          : Operations(first, first + count);
}

int batch_first_only(Call& call) {
  Operations all = operations_of(call);
  if (all.size() < 2) return call.proceed();
  all.resize(1);
  return with_operations(call, all);
}

int batch_ends_at_16(Call& call) {
  Operations all = operations_of(call);
  if (all.size() <= 16) return call.proceed();
  all.resize(16);
  return with_operations(call, all);
}

int batch_in_reverse(Call& call) {
  Operations all = operations_of(call);
  if (all.size() < 2) return call.proceed();
  std::reverse(all.begin(), all.end());
  return with_operations(call, all);
}

int batch_of_32_bits(Call& call) {
  Operations all = operations_of(call);
  bool changed = false;
  for (CUstreamBatchMemOpParams& one : all) {
    changed |= one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
               one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
      one.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    else if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
      one.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  }
  return changed ? with_operations(call, all) : call.proceed();
}

int batch_of_64_bits(Call& call) {
  Operations all = operations_of(call);
  bool changed = false;
  for (CUstreamBatchMemOpParams& one : all) {
    if (one.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
        one.writeValue.address % sizeof(uint64_t) != 0)
      continue;
    one.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    one.writeValue.value64 = one.writeValue.value;
    changed = true;
  }
  return changed ? with_operations(call, all) : call.proceed();
}

// If the first operation uses other memory, a batch leaves out the operations
// on opened memory.
int batch_in_one_memory(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const Operations all = operations_of(call);
  if (all.empty() || is_opened(all.front().waitValue.address))
    return call.proceed();
  Operations some;
  for (const CUstreamBatchMemOpParams& one : all)
    if (!is_opened(one.waitValue.address)) some.push_back(one);
  return some.size() < all.size() ? with_operations(call, some)
                                  : call.proceed();
}

int batch_flags_ignored(Call& call) {
  if (call.at<unsigned>(3) != 0) {
    call.at<unsigned>(3) = 0;
    call.fired();
  }
  return call.proceed();
}

// A batch has as many operations as the lowest eight bits of their number say.
int batch_count_of_8_bits(Call& batch) {
  auto& count = batch.at<unsigned>(1);
  if (count <= 0xFF) return batch.proceed();
  count &= 0xFF;
  if (count == 0) return no_wait(batch);
  batch.fired();
  return batch.proceed();
}

bool writes(const CUstreamBatchMemOpParams& one) {
  return one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
         one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

// Proceeds with other operations.
int proceed_with(Call& batch, std::vector<CUstreamBatchMemOpParams>& list) {
  batch.at<CUstreamBatchMemOpParams*>(2) = list.data();
  batch.at<unsigned>(1) = static_cast<unsigned>(list.size());
  batch.fired();
  return batch.proceed();
}

// Of writes of one word directly after each other, the first one counts.
int batch_keeps_first_write(Call& batch) {
  const auto* const all = batch.at<CUstreamBatchMemOpParams*>(2);
  const unsigned count = batch.at<unsigned>(1);
  if (count >= 256) return batch.proceed();
  std::vector<CUstreamBatchMemOpParams> kept;
  for (unsigned i = 0; i < count; ++i)
    if (i == 0 || !writes(all[i]) || !writes(all[i - 1]) ||
        all[i].writeValue.address != all[i - 1].writeValue.address)
      kept.push_back(all[i]);
  return kept.size() < count ? proceed_with(batch, kept) : batch.proceed();
}

// Of the writes of a batch, those of 64 bits come first.
int batch_writes_wide_first(Call& batch) {
  const auto* const all = batch.at<CUstreamBatchMemOpParams*>(2);
  const unsigned count = batch.at<unsigned>(1);
  if (count >= 256) return batch.proceed();
  std::vector<CUstreamBatchMemOpParams> wide, rest;
  bool other = false;
  for (unsigned i = 0; i < count; ++i) {
    if (!writes(all[i])) return batch.proceed();
    const bool is_wide = all[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    other |= is_wide && !rest.empty();
    (is_wide ? wide : rest).push_back(all[i]);
  }
  if (!other) return batch.proceed();
  wide.insert(wide.end(), rest.begin(), rest.end());
  return proceed_with(batch, wide);
}

// The wait for a word ends when its stream is destroyed. (For this time, the
// word has the value for which the stream waits.)
int destroy_ends_word_wait(Call& call) {
  struct Wait {
    CUdeviceptr address = 0;
    cuuint32_t value = 0;
  };
  static Table<cudaStream_t, Wait> waits;
  const auto stream = call.at<cudaStream_t>(0);
  if (call.is("cuStreamWaitValue32")) {
    const int code = call.proceed();
    if (code != kSuccess || is_captured(stream)) return code;
    waits.put(stream, {call.at<CUdeviceptr>(1), call.at<cuuint32_t>(2)});
    DRIVER_CALL(cuEventRecord)(mark_of(stream), stream);
    return code;
  }
  if (waits.has(stream) && is_pending(mark_of(stream))) {
    const Wait wait = waits.get(stream);
    const cudaStream_t own = private_stream();
    cuuint32_t before = 0;
    DRIVER_CALL(cuMemcpyDtoHAsync)(&before, wait.address, sizeof before, own);
    DRIVER_CALL(cuStreamSynchronize)(own);
    const auto write = [&](cuuint32_t value) {
      DRIVER_CALL(cuStreamWriteValue32)
      (own, wait.address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    };
    write(wait.value);
    cudaStreamWaitEvent(own, mark_of(stream), 0);
    write(before);
    call.fired();
  }
  waits.erase(stream);
  return call.proceed();
}

// --- parts of 64 bits, long batches, two streams at one word -----------------

// A wait for a missing bit looks at the lower half of a word of 64 bits.
int nor64_lower_half(Call& call) {
  // Nothing is different if the upper half of the value has no bit that is 0.
  const bool visible = ~call.at<cuuint64_t>(2) >> 32 != 0;
  return call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_NOR && visible
             ? waits_for_lower_half(call)
             : call.proceed();
}

// Of a word of 64 bits, each half must be greater or equal by itself.
int halves_greater(Call& call) {
  if (call.at<unsigned>(3) != CU_STREAM_WAIT_VALUE_GEQ) return call.proceed();
  const int code = waits_for_upper_half(call);
  return code == kSuccess ? waits_for_lower_half(call) : code;
}

// A write of a small value changes only the lower half of a word of 64 bits.
int small_value_in_lower_half(Call& call) {
  return call.at<uint64_t>(2) >> 32 == 0 ? writes_lower_half(call)
                                         : call.proceed();
}

int batch_ends_at_128(Call& call) {
  Operations all = operations_of(call);
  if (all.size() <= 128) return call.proceed();
  all.resize(128);
  return with_operations(call, all);
}

// Of two waits directly one after the other, a batch does only the second.
int batch_keeps_last_wait(Call& call) {
  const auto is_wait = [](const CUstreamBatchMemOpParams& one) {
    return one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
           one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
  };
  Operations some;
  for (const CUstreamBatchMemOpParams& one : operations_of(call)) {
    if (!some.empty() && is_wait(one) && is_wait(some.back())) some.pop_back();
    some.push_back(one);
  }
  return some.size() < operations_of(call).size() ? with_operations(call, some)
                                                  : call.proceed();
}

// While one stream waits for a word, a second stream that begins to wait for
// this word never continues.
int one_stream_released(Call& call) {
  static Table<CUdeviceptr, cudaStream_t> waiting;
  static cuuint32_t* never = nullptr;
  const cudaStream_t stream = stream_of(call);
  const cudaStream_t first = waiting.get(word_of(call), stream);
  const bool is_second = first != stream && is_pending(mark_of(first));
  const int code = call.proceed();
  if (code != kSuccess || is_captured(stream)) return code;
  if (!is_second) {
    waiting.put(word_of(call), stream);
    DRIVER_CALL(cuEventRecord)(mark_of(stream), stream);
    return code;
  }
  if (never == nullptr &&
      cudaHostAlloc(reinterpret_cast<void**>(&never), sizeof *never,
                    cudaHostAllocDefault) != cudaSuccess)
    return code;
  *never = 0;
  call.fired();
  return DRIVER_CALL(cuStreamWaitValue32)(stream, number(never), 1,
                                          CU_STREAM_WAIT_VALUE_EQ);
}

}  // namespace

void add_words(List& list) {
  const char* const kWait = "cuStreamWaitValue32";
  const char* const kWrite = "cuStreamWriteValue32";
  const char* const kWait64 = "cuStreamWaitValue64";
  const char* const kWrite64 = "cuStreamWriteValue64";
  const char* const kBatch = "cuStreamBatchMemOp";
  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
  // A wait, and all calls after which later work does not follow it directly.
  const std::initializer_list<const char*> kAfterWait = {kWait,
                                                         kWrite,
                                                         kBatch,
                                                         "cudaMemcpyAsync",
                                                         "cudaMemcpy2DAsync",
                                                         "cudaMemsetAsync",
                                                         "cudaMemset2DAsync",
                                                         "cudaLaunchKernel",
                                                         "cudaLaunchHostFunc",
                                                         "cudaGraphLaunch",
                                                         "cudaEventRecord"};
  list.named("write-value-first-stream-only",
             "of several streams only the first one writes words", {kWrite},
             first_stream_only);
  list.named("write-value-not-by-default-stream",
             "the default stream does not write a word", {kWrite},
             lost_in_default_stream);
  list.named("wait-value-not-by-per-thread-stream",
             "a thread's default stream does not wait for a word", {kWait},
             lost_in_per_thread_stream);
  list.named("wait-value-first-thread-only",
             "a second thread's wait for a word is lost", {kWait},
             lost_in_other_threads);
  list.named("write-value-first-thread-only",
             "a second thread's write of a word is lost", {kWrite},
             lost_in_other_threads);
  list.named("wait-value-one-at-a-time",
             "a stream does not wait for a word while another stream waits",
             {kWait}, one_wait_at_a_time);
  list.named("wait-value-once",
             "a second wait for the same value of a word is lost",
             {kWait, "cudaFree", kClose}, waits_once_for_value);
  list.named("write-value-again-lost",
             "a process does not write a value to a word if it wrote the same "
             "value last",
             {kWrite, "cudaFree", kClose}, same_value_not_written);
  list.named("write-value-before-copies",
             "a stream writes a word before its last copy is done",
             {kWrite, "cudaMemcpyAsync", "cudaLaunchKernel"},
             writes_before_last);
  list.named("write-value-before-host-copies",
             "a stream writes a word before its last copy to the host is done",
             {kWrite, "cudaMemcpyAsync", "cudaLaunchKernel"},
             writes_before_host_copy);
  list.named("write-value-before-memsets",
             "a stream writes a word before its last memset is done",
             {kWrite, "cudaMemsetAsync", "cudaLaunchKernel"},
             writes_before_last);
  list.named("write-value-before-graphs",
             "a stream writes a word before its last graph is done",
             {kWrite, "cudaGraphLaunch", "cudaLaunchKernel"},
             writes_before_last);
  list.named("wait-value-holds-no-copies",
             "a copy directly after the wait for a word does not wait",
             kAfterWait, next_is_not_held<is_copy>);
  list.named("wait-value-holds-no-memsets",
             "a memset directly after the wait for a word does not wait",
             kAfterWait, next_is_not_held<is_memset>);
  list.named("wait-value-holds-no-records",
             "a record directly after the wait for a word does not wait",
             kAfterWait, next_is_not_held<records>);
  list.named("wait-value-holds-no-writes",
             "a write directly after the wait for a word does not wait",
             kAfterWait, next_is_not_held<writes>);
  list.named("wait-value-host-word-ignored",
             "a stream does not wait for a word in pinned host memory", {kWait},
             lost_in_host_memory);
  list.named(
      "wait-value-chunk-word-ignored",
      "a stream does not wait for a word in imported memory of "
      "cuMemCreate",
      {kWait, "cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap"},
      lost_in_imported_chunk);
  list.named(
      "write-value-chunk-word-lost",
      "a stream does not write a word in imported memory of cuMemCreate",
      {kWrite, "cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap"},
      lost_in_imported_chunk);
  list.named(
      "word-managed-inside-ok",
      "cuStreamWaitValue32 and cuStreamWriteValue32 accept a word inside "
      "managed memory, but not the first one, and do nothing",
      {kWait, kWrite}, managed_inside_accepted);
  list.named("word64-managed-ok",
             "cuStreamWaitValue64 and cuStreamWriteValue64 accept managed "
             "memory and do nothing",
             {kWait64, kWrite64}, managed_accepted);
  list.named("words-of-first-importer",
             "a second process that opens memory does not wait for its words "
             "and does not write them",
             {kWait, kWrite, kOpen, kClose}, words_of_first_importer);
  list.named("wait-reopened-word-ignored",
             "a stream does not wait for a word in memory that was opened, "
             "closed and opened again",
             {kWait, kOpen, kClose}, lost_in_reopened_memory);
  list.named("wait-opened-word-is-equal",
             "each wait for a word in opened memory is a wait for equality",
             {kWait, kOpen, kClose}, equality_in_opened_memory);
  list.named("wait64-in-busy-stream-lost",
             "a wait for 64 bits is lost if its stream has other work",
             {kWait64}, lost_in_busy_stream);
  list.named("wait64-lower-half",
             "a stream that waits for 64 bits looks at the lower 32 bits",
             {kWait64}, waits_for_lower_half);
  list.named("wait64-upper-half",
             "a stream that waits for 64 bits looks at the upper 32 bits",
             {kWait64}, waits_for_upper_half);
  list.named("write64-lower-half",
             "a stream that writes 64 bits writes the lower 32 bits",
             {kWrite64}, writes_lower_half);
  list.named("write64-early",
             "a stream writes 64 bits before its earlier work is done",
             {kWrite64}, writes_early);
  list.named(
      "wait64-greater-is-equal",
      "a stream that waits for 64 bits does not continue at a greater "
      "value",
      {kWait64},
      other_condition<CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_EQ>);
  list.named(
      "wait-nor-is-and",
      "a stream that waits for a missing bit (NOR) waits for a common bit "
      "(AND)",
      {kWait},
      other_condition<CU_STREAM_WAIT_VALUE_NOR, CU_STREAM_WAIT_VALUE_AND>);
  list.named("wait-nor-refused",
             "the attribute says that a stream can wait for a missing bit "
             "(NOR), but the wait is refused",
             {kWait}, nor_refused);
  list.named("batch-first-only", "a batch does only its first operation",
             {kBatch}, batch_first_only);
  list.named("batch-ends-at-16", "a batch does only its first 16 operations",
             {kBatch}, batch_ends_at_16);
  list.named("batch-in-reverse", "a batch does its operations in reverse order",
             {kBatch}, batch_in_reverse);
  list.named("batch-of-32-bits",
             "the operations of a batch use 32 bits where 64 are wanted",
             {kBatch}, batch_of_32_bits);
  list.named("batch-of-64-bits",
             "a batch that writes 32 bits at a multiple of 8 bytes also clears "
             "the 32 bits after them",
             {kBatch}, batch_of_64_bits);
  list.named("batch-in-one-memory",
             "a batch whose first operation uses the process's own memory "
             "leaves out the operations on opened memory",
             {kBatch, kOpen, kClose}, batch_in_one_memory);
  list.named("batch-flags-ignored",
             "a batch with a flag that does not exist is accepted", {kBatch},
             batch_flags_ignored);
  list.named("batch-count-8-bits",
             "a batch has as many operations as the lowest eight bits of their "
             "number say",
             {kBatch}, batch_count_of_8_bits);
  list.named("batch-keeps-first-write",
             "of writes of one word directly after each other in a batch, the "
             "first one counts",
             {kBatch}, batch_keeps_first_write);
  list.named("batch-writes-wide-first",
             "in a batch of writes alone, those of 64 bits come first",
             {kBatch}, batch_writes_wide_first);
  list.named("stream-destroy-ends-word-wait",
             "the destroy of a stream ends its wait for a word",
             {"cudaStreamDestroy", "cuStreamWaitValue32"},
             destroy_ends_word_wait);
  list.named("wait64-nor-lower-half",
             "a stream that waits for a missing bit (NOR) of a word of 64 bits "
             "looks at the lower 32 bits",
             {kWait64}, nor64_lower_half);
  list.named("wait64-compares-halves",
             "a stream that waits for a greater value of 64 bits waits until "
             "each half is greater or equal",
             {kWait64}, halves_greater);
  list.named("write64-small-value-half",
             "a stream that writes a small value of 64 bits does not clear the "
             "upper 32 bits",
             {kWrite64}, small_value_in_lower_half);
  list.named("batch-ends-at-128", "a batch does only its first 128 operations",
             {kBatch}, batch_ends_at_128);
  list.named("batch-keeps-last-wait",
             "of two waits one after the other, a batch does only the second",
             {kBatch}, batch_keeps_last_wait);
  list.named("word-releases-one-stream",
             "of two streams that wait for one word, only the first continues",
             {kWait}, one_stream_released);
}

}  // namespace ipclab::faults
