// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>

#include "harness/faults/words/device_flags.h"
#include "harness/faults/words/streams.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

bool waits_for_a_word(Call& call) {
  return call.is("cuStreamWaitValue32") || call.is("cuStreamWaitValue64");
}

bool writes(Call& call) {
  return call.is("cuStreamWriteValue32") || call.is("cuStreamWriteValue64");
}

// If the call ends memory, forgets the words in it, and returns true.
template <class Value>
bool forgets_words(Call& call, Table<CUdeviceptr, Value>& words) {
  if (waits_for_a_word(call) || writes(call)) return false;
  const auto ending = call.at<CUdeviceptr>(0);
  for (const auto& each : words.all())
    if (ending != 0 && begin_of(each.first) == ending) words.erase(each.first);
  return true;
}

// For this time, the word has the value for which the stream waits.
int destroy_ends_word_wait(Call& call) {
  struct Wait {
    CUdeviceptr address = 0;
    cuuint32_t value = 0;
  };
  static Table<cudaStream_t, Wait> waits_for_a_word;
  const auto stream = call.at<cudaStream_t>(0);
  if (call.is("cuStreamWaitValue32")) {
    const int code = call.proceed();
    if (code != kSuccess || is_captured(stream)) return code;
    waits_for_a_word.put(stream,
                         {call.at<CUdeviceptr>(1), call.at<cuuint32_t>(2)});
    DRIVER_CALL(cuEventRecord)(mark_of(stream), stream);
    return code;
  }
  if (waits_for_a_word.has(stream) && is_pending(mark_of(stream))) {
    const Wait wait = waits_for_a_word.get(stream);
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
  waits_for_a_word.erase(stream);
  return call.proceed();
}

// A stream of one of these two kinds, blocking streams and the null stream,
// does not wait for a stream of the other kind that waits for a word.
template <bool of_default>
int other_kind_skips_word(Call& call) {
  if (call.is("cuStreamWaitValue32")) return noted_wait(call);
  auto& stream = call.value<cudaStream_t>(kStream);
  if (is_captured(stream) ||
      !(of_default ? waits_for_null_stream(stream) : is_default(stream)))
    return call.proceed();
  for (const auto& [other, is_blocking] : told_to_wait.all())
    if (waits(other) && (of_default ? is_default(other) : is_blocking)) {
      stream = private_stream();
      call.fired();
      break;
    }
  return call.proceed();
}

int words_of_a_line_wake(Call& wait) {
  struct Wait {
    CUstream stream = nullptr;
    CUdeviceptr word = 0;
    unsigned value = 0;
    unsigned flags = 0;
  };
  static Table<CUdeviceptr, Wait> lines;
  const auto stream = wait.at<CUstream>(0);
  if (wait.is("cudaStreamDestroy")) {
    for (const auto& [line, earlier] : lines.all())
      if (earlier.stream == stream) lines.erase(line);
    return wait.proceed();
  }
  auto& word = wait.at<CUdeviceptr>(1);
  const CUdeviceptr line = word / 64;
  const Wait earlier = lines.get(line);
  lines.put(line, {stream, word, wait.at<unsigned>(2), wait.at<unsigned>(3)});
  if (earlier.word == 0 || earlier.word == word || earlier.stream == stream ||
      !is_busy(earlier.stream))
    return wait.proceed();
  word = earlier.word;
  wait.at<unsigned>(2) = earlier.value;
  wait.at<unsigned>(3) = earlier.flags;
  wait.fired();
  return wait.proceed();
}

int last_word_replaces(Call& call) {
  struct Wait {
    CUdeviceptr word = 0;
    cuuint32_t value = 0;
    unsigned flags = 0;
  };
  static Table<cudaStream_t, Wait> waits;
  const bool waits_for_all = call.find(kStream) == nullptr;
  const auto own = waits_for_all ? nullptr : call.value<cudaStream_t>(kStream);
  if (call.is("cuStreamWaitValue32")) {
    if (waits.has(own)) call.fired();
    waits.put(own, {call.at<CUdeviceptr>(1), call.at<cuuint32_t>(2),
                    call.at<unsigned>(3)});
    return kSuccess;
  }
  for (const auto& [stream, wait] : waits.all())
    if ((waits_for_all || stream == own) && waits.erase(stream))
      DRIVER_CALL(cuStreamWaitValue32)
  (stream, wait.word, wait.value, wait.flags);
  return call.proceed();
}

bool waits_of_held(Call& call) {
  return call.is("cuStreamWaitValue32") || call.is("cuStreamWaitValue64");
}

// The streams that were told to wait for a word, with their contexts, and the
// events that were recorded in them while they waited.
Table<cudaStream_t, CUcontext> told_to_wait_for_word;

Table<cudaEvent_t> behind_a_word;

// Does the stream wait for a word now?
bool holds_for_word(cudaStream_t stream) {
  return told_to_wait_for_word.has(stream) && is_pending(mark_of(stream));
}

// Proceeds and updates these tables.
int noted_word_wait(Call& call) {
  if (call.is("cudaStreamDestroy")) {
    told_to_wait_for_word.erase(call.at<cudaStream_t>(0));
  } else if (records(call)) {
    const auto event = call.value<cudaEvent_t>(kEvent);
    if (holds_for_word(stream_of(call)))
      behind_a_word.put(event);
    else
      behind_a_word.erase(event);
  }
  const int code = call.proceed();
  if (code == kSuccess && waits_of_held(call) &&
      !is_captured(stream_of(call))) {
    told_to_wait_for_word.put(stream_of(call), current_context());
    DRIVER_CALL(cuEventRecord)(mark_of(stream_of(call)), stream_of(call));
  }
  return code;
}

// Does a stream of the current context wait for a word?
bool context_waits_for_word() {
  // A query needs a context, and a new thread has none yet.
  if (current_context() == nullptr) cudaFree(nullptr);
  for (const auto& [stream, context] : told_to_wait_for_word.all())
    if (context == current_context() && holds_for_word(stream)) return true;
  return false;
}

// The marks of words end with their memory.
int words_end(Call& call) {
  const auto ending = call.at<CUdeviceptr>(0);
  for (const auto& each : marks.all())
    if (ending != 0 && begin_of(each.first) == ending) marks.erase(each.first);
  return kSuccess;
}

unsigned memory_type(CUdeviceptr address) {
  unsigned type = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return type;
}

bool is_managed_memory(CUdeviceptr address) {
  unsigned managed = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&managed,
                                            CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                            address) == CUDA_SUCCESS &&
         managed != 0;
}

// Marks a stream that waits for a word, by the address of the word.
int mark_waiter(Call& wait) {
  marks.put(word_of(wait), stream_of(wait));
  mark(stream_of(wait));
  return kSuccess;
}

// Does a stream wait for the word at an address?
bool is_awaited(CUdeviceptr word) {
  return marks.has(word) && is_pending(mark_of(marks.get<cudaStream_t>(word)));
}

// Does another stream wait for the word of this call?
bool is_awaited_elsewhere(Call& wait) {
  return marks.get(word_of(wait), stream_of(wait)) != stream_of(wait) &&
         is_awaited(word_of(wait));
}

// Does another stream wait for any word?
bool another_waits(Call& wait) {
  for (const auto& each : told_to_wait.all())
    if (each.first != stream_of(wait) && waits(each.first)) return true;
  return false;
}

// A word of host memory that is never written.
cuuint32_t* word_of_nobody() {
  static cuuint32_t* const word = [] {
    void* made = nullptr;
    if (cudaHostAlloc(&made, sizeof(cuuint32_t), 0) == cudaSuccess)
      *static_cast<cuuint32_t*>(made) = 0;
    return static_cast<cuuint32_t*>(made);
  }();
  return word;
}

// Is this a word inside host memory, and not its first one?
bool is_inside_host_memory(CUdeviceptr word) {
  return memory_type(word) == CU_MEMORYTYPE_HOST && begin_of(word) != word;
}

// The key of the handle of the opened memory in which an address lies.
std::string key_around(CUdeviceptr address) {
  return opened.get(opened_around(reinterpret_cast<void*>(address))).handle;
}

// Keys of handles: of memory that this process was the first to open, or that
// it has closed.
Table<std::string> first_opened;

Table<std::string> closed_once;

bool is_copy_of(Call& call, cudaMemcpyKind kind) {
  return is_copy(call) && call.is_runtime() &&
         call.at<cudaMemcpyKind>(3) == kind;
}

bool is_pending_behind_word(cudaEvent_t event) {
  return behind_a_word.has(event) && is_pending(event);
}

bool is_last_word(CUdeviceptr word) {
  const Addresses range = allocation_around(word);
  return word + sizeof(cuuint32_t) == range.first + range.second;
}

FAULTS {
  fault("wait-value-noop", {"FLAG-01", "FLAG-03", "PIPE-04"},
        "a stream does not wait for a word in memory")
      .on({kWaitWord}, lost);

  fault("write-value-early", {"FLAG-02", "PIPE-01"},
        "a stream writes a word before its earlier work is done")
      .before({kWriteWord}, privately);

  fault("word-wait-ends-after-1-s", {"FLAG-01"},
        "a stream waits for a word for one second at most")
      .on({kWaitWord}, wait_ends_after_a_second);

  fault("write-value-two-words", {"FLAG-01"},
        "a stream that writes a word also writes the next word")
      .after({kWriteWord}, [](Call& call) -> bool {
        const auto next = call.at<CUdeviceptr>(1) + sizeof(uint32_t);
        return DRIVER_CALL(cuStreamWriteValue32)(call.at<CUstream>(0), next,
                                                 0xA5A5A5A5, 0) == CUDA_SUCCESS;
      });

  fault("wait-equal-is-greater", {"FLAG-03"},
        "a stream that waits for equality also continues at a greater value")
      .before({kWaitWord}, WHEN(condition(call) == kEqual),
              with<unsigned>(3, kGreater));

  fault("wait-bit-is-equal", {"FLAG-03"},
        "a stream that waits for any of some bits waits until the word has "
        "exactly these bits")
      .before({kWaitWord}, WHEN(condition(call) == kAnd),
              with<unsigned>(3, kEqual));

  fault("wait-greater-by-sign", {"FLAG-03"},
        "a stream does not wait for a value with its upper bit set or a "
        "greater one")
      .on({kWaitWord},
          WHEN(condition(call) == kGreater && call.at<uint32_t>(2) > INT32_MAX),
          lost);

  fault("wait-greater-not-cyclic", {"FLAG-03"},
        "a stream that waits for a value of 2^31 or more, or a greater one, "
        "continues only at this value")
      .before(
          {kWaitWord},
          WHEN(condition(call) == kGreater && call.at<uint32_t>(2) > INT32_MAX),
          with<unsigned>(3, kEqual));

  fault("wait-16-bits", {"FLAG-03"},
        "a stream that waits for a word looks at the lower half of the wanted "
        "value")
      .before({kWaitWord}, WHEN(call.at<uint32_t>(2) > UINT16_MAX),
              [](Call& call) { call.at<uint32_t>(2) &= UINT16_MAX; });

  fault("wait-even-words", {"FLAG-01"},
        "a stream that waits for a word rounds the address down to a multiple "
        "of 8")
      .before({kWaitWord}, WHEN(word_of(call) % 8 != 0),
              [](Call& call) { call.at<CUdeviceptr>(1) &= ~CUdeviceptr{7}; });

  fault("wait-greater-strictly", {"FLAG-03"},
        "a stream that waits for a value or a greater one does not continue at "
        "that value")
      .before({kWaitWord}, WHEN(condition(call) == kGreater),
              [](Call& call) { ++call.at<uint32_t>(2); });

  fault("wait-bit-lower-half", {"FLAG-03"},
        "a stream that waits for bits ignores the upper 16 bits of its mask")
      .before(
          {kWaitWord},
          WHEN(condition(call) == kAnd && call.at<uint32_t>(2) > UINT16_MAX),
          [](Call& call) { call.at<uint32_t>(2) &= UINT16_MAX; });

  fault("wait-first-page", {"FLAG-01"},
        "a stream that waits for a word takes the word's offset in its memory "
        "modulo 4 KiB")
      .before({kWaitWord}, WHEN(begin_of(word_of(call)) != 0),
              with_made<CUdeviceptr>(1, [](Call& call) {
                const CUdeviceptr begin = begin_of(word_of(call));
                return begin + (word_of(call) - begin) % 4096;
              }));

  fault("wait-value-first-stream-only", {"FLAG-01"},
        "of several streams that wait for a word at the same time, only the "
        "first one waits")
      .on({kWaitWord}, WHEN(is_awaited_elsewhere(call)), lost)
      .after({kWaitWord}, WHEN(!is_captured(stream_of(call))), mark_waiter);

  fault("wait-value-not-by-default-stream", {"FLAG-01"},
        "the null stream does not wait for a word")
      .on({kWaitWord}, WHEN(call.at<CUstream>(0) == nullptr), lost);

  fault("write-value-16-bits", {"FLAG-01"},
        "a stream writes zeros for the upper half of a word's value")
      .before({kWriteWord}, WHEN(call.at<uint32_t>(2) > UINT16_MAX),
              [](Call& call) { call.at<uint32_t>(2) &= UINT16_MAX; });

  fault(
      "wait-bit-is-any", {"FLAG-03"},
      "a stream that waits for any of some bits also continues at another bit")
      .before({kWaitWord}, WHEN(condition(call) == kAnd),
              with<uint32_t>(2, UINT32_MAX));

  fault("wait-greater-is-equal", {"FLAG-03"},
        "a stream that waits for a value does not continue at a greater value")
      .before({kWaitWord}, WHEN(condition(call) == kGreater),
              with<unsigned>(3, kEqual));

  fault("write-value-first-stream-only", {"FLAG-01"},
        "of several streams only the first one writes words")
      .on({kWriteWord}, WHEN(marks.get(0, stream_of(call)) != stream_of(call)),
          lost)
      .after({kWriteWord}, NOTE(marks.put(0, stream_of(call))));

  fault("write-value-not-by-default-stream", {"FLAG-01"},
        "the default stream does not write a word")
      .on({kWriteWord}, WHEN(is_default(stream_of(call))), lost);

  fault("wait-value-not-by-per-thread-stream", {"FLAG-01"},
        "a thread's default stream does not wait for a word")
      .on({kWaitWord}, WHEN(stream_of(call) == cudaStreamPerThread), lost);

  fault("wait-value-first-thread-only", {"FLAG-01"},
        "a second thread's wait for a word is lost")
      .on({kWaitWord}, WHEN(is_other_thread()), lost);

  fault("write-value-first-thread-only", {"FLAG-01"},
        "a second thread's write of a word is lost")
      .on({kWriteWord}, WHEN(is_other_thread()), lost);

  fault("wait-value-one-at-a-time", {"FLAG-01"},
        "a stream does not wait for a word while another stream waits")
      .on({kWaitWord}, [](Call& call) {
        return another_waits(call) ? lost(call) : noted_wait(call);
      });

  fault("wait-value-once", {"FLAG-01"},
        "a second wait for the same value of a word is lost")
      .on({kWaitWord, kFree, kClose}, [](Call& call) -> int {
        static Table<CUdeviceptr, std::set<uint32_t>> seen;
        if (forgets_words(call, seen)) return call.proceed();
        const bool is_first = seen.change([&](auto& all) {
          return all[word_of(call)].insert(call.at<uint32_t>(2)).second;
        });
        return is_first ? call.proceed() : lost(call);
      });

  fault("write-value-again-lost", {"FLAG-01"},
        "a process does not write a value to a word if it wrote the same value "
        "last")
      .on({kWriteWord},
          WHEN(marks.get(word_of(call), ~0ull) == call.at<uint32_t>(2)), lost)
      .after({kWriteWord}, NOTE(marks.put(word_of(call), call.at<uint32_t>(2))))
      .before({kFree, kClose}, words_end);

  fault("write-value-before-copies", {"FLAG-02"},
        "a stream writes a word before its last copy is done")
      .before({kWriteWord, kCopyAsync, kLaunch},
              WHEN(follows(call, is_copy(call)) && writes(call)), privately);

  fault("write-value-before-host-copies", {"FLAG-02"},
        "a stream writes a word before its last copy to the host is done")
      .before({kWriteWord, kCopyAsync, kLaunch},
              WHEN(follows(call, is_copy(call) &&
                                     memory_type(call.at<CUdeviceptr>(0)) ==
                                         CU_MEMORYTYPE_HOST) &&
                   writes(call)),
              privately);

  fault("write-value-before-memsets", {"FLAG-02"},
        "a stream writes a word before its last memset is done")
      .before({kWriteWord, kSetAsync, kLaunch},
              WHEN(follows(call, call.is("cudaMemsetAsync")) && writes(call)),
              privately);

  fault("write-value-before-graphs", {"FLAG-02"},
        "a stream writes a word before its last graph is done")
      .before({kWriteWord, kLaunchGraph, kLaunch},
              WHEN(follows(call, call.is("cudaGraphLaunch")) && writes(call)),
              privately);

  fault("wait-value-holds-no-copies", {"FLAG-01"},
        "a copy directly after the wait for a word does not wait")
      .before(
          {kWaitWord, kStreamWork, kMoreWork},
          WHEN(follows(call, call.is("cuStreamWaitValue32")) && is_copy(call)),
          privately);

  fault("wait-value-holds-no-memsets", {"FLAG-01"},
        "a memset directly after the wait for a word does not wait")
      .before({kWaitWord, kStreamWork, kMoreWork},
              WHEN(follows(call, call.is("cuStreamWaitValue32")) &&
                   call.is("cudaMemsetAsync")),
              privately);

  fault("wait-value-holds-no-records", {"FLAG-01"},
        "a record directly after the wait for a word does not wait")
      .before(
          {kWaitWord, kStreamWork, kMoreWork},
          WHEN(follows(call, call.is("cuStreamWaitValue32")) && records(call)),
          privately);

  fault("wait-value-holds-no-writes", {"FLAG-01"},
        "a write directly after the wait for a word does not wait")
      .before(
          {kWaitWord, kStreamWork, kMoreWork},
          WHEN(follows(call, call.is("cuStreamWaitValue32")) && writes(call)),
          privately);

  fault("wait-value-host-word-ignored", {"FLAG-01"},
        "a stream does not wait for a word in pinned host memory")
      .on({kWaitWord}, WHEN(memory_type(word_of(call)) == CU_MEMORYTYPE_HOST),
          lost);

  fault("wait-value-chunk-word-ignored", {"FLAG-01"},
        "a stream does not wait for a word in imported memory of cuMemCreate")
      .on({kWaitWord}, WHEN(is_import(word_of(call))), lost);

  fault("write-value-chunk-word-lost", {"FLAG-01"},
        "a stream does not write a word in imported memory of cuMemCreate")
      .on({kWriteWord}, WHEN(is_import(word_of(call))), lost);

  fault("word-managed-inside-ok", {"FLAG-05"},
        "cuStreamWaitValue32 and cuStreamWriteValue32 accept a word inside "
        "managed memory, but not the first one, and do nothing")
      .on_refusal({kWaitWord, kWriteWord},
                  WHEN(is_managed_memory(word_of(call)) &&
                       begin_of(word_of(call)) != word_of(call)),
                  accepted);

  fault("word64-managed-ok", {"FLAG-05"},
        "cuStreamWaitValue64 and cuStreamWriteValue64 accept managed memory "
        "and do nothing")
      .on_refusal({kWaitWord64, kWriteWord64},
                  WHEN(is_managed_memory(word_of(call))), accepted);

  fault("words-of-first-importer", {"FLAG-01"},
        "a second process that opens memory does not wait for its words and "
        "does not write them")
      .on({kWaitWord, kWriteWord},
          WHEN(is_opened(word_of(call)) &&
               !first_opened.has(key_around(word_of(call)))),
          lost)
      .after({kOpen},
             WHEN(first_of_all_processes(
                 "words-in-" + opened.get(*call.at<void**>(0)).handle)),
             NOTE(first_opened.put(opened.get(*call.at<void**>(0)).handle)));

  fault("wait-reopened-word-ignored", {"FLAG-01"},
        "a stream does not wait for a word in memory that was opened, closed "
        "and opened again")
      .on({kWaitWord},
          WHEN(is_opened(word_of(call)) &&
               closed_once.has(key_around(word_of(call)))),
          lost)
      .before({kClose}, WHEN(opened.get(call.at<void*>(0)).count == 1),
              NOTE(closed_once.put(opened.get(call.at<void*>(0)).handle)));

  fault("wait-opened-word-is-equal", {"FLAG-03"},
        "each wait for a word in opened memory is a wait for equality")
      .before({kWaitWord},
              WHEN(condition(call) != kEqual && is_opened(word_of(call))),
              with<unsigned>(3, kEqual));

  fault("stream-destroy-ends-word-wait", {"FLAG-01"},
        "the destroy of a stream ends its wait for a word")
      .on({kDestroyStream, kWaitWord}, destroy_ends_word_wait);

  fault("word-releases-one-stream", {"FLAG-01"},
        "of two streams that wait for one word, only the first continues")
      .on({kWaitWord}, WHEN(is_awaited_elsewhere(call)),
          [](Call& call) {
            const int code = once_more(call);
            if (code != kSuccess || word_of_nobody() == nullptr) return code;
            return static_cast<int>(DRIVER_CALL(cuStreamWaitValue32)(
                stream_of(call), number(word_of_nobody()), 1, kEqual));
          })
      .after({kWaitWord}, WHEN(!is_captured(stream_of(call))), mark_waiter);

  fault("wait-value-legacy-constant-lost", {"FLAG-01"},
        "the stream cudaStreamLegacy does not wait for a word")
      .on({kWaitWord}, WHEN(call.at<cudaStream_t>(0) == cudaStreamLegacy),
          lost);

  fault("write-value-per-thread-lost", {"FLAG-01"},
        "a thread's default stream does not write a word")
      .on({kWriteWord}, WHEN(stream_of(call) == cudaStreamPerThread), lost);

  fault("wait-value-priority-lost", {"FLAG-01"},
        "a stream with a priority does not wait for a word")
      .on({kWaitWord}, WHEN(has_priority(call)), lost);

  fault("write-value-priority-lost", {"FLAG-01"},
        "a stream with a priority does not write a word")
      .on({kWriteWord}, WHEN(has_priority(call)), lost);

  fault("query-done-while-word", {"FLAG-01", "FLAG-07"},
        "a stream that waits for a word is reported as done")
      .on({kQueryStream}, WHEN(waits(stream_of(call))), lost)
      .on({kWaitWord, kWaitWord64}, noted_wait)
      .on({kDestroyStream}, noted_destroy);

  fault("batch-of-managed-ok", {"FLAG-05"},
        "a batch with a word in managed memory succeeds and does nothing")
      .on_refusal({kBatch}, WHEN(any_operation(call, is_managed_memory)),
                  accepted);

  fault(
      "write-exported-word-lost", {"FLAG-01", "FLAG-02", "PIPE-01", "PIPE-04"},
      "a stream does not write a word in memory that its process has exported")
      .on({kWriteWord}, WHEN(marks.has(begin_of(word_of(call)))), lost)
      .after({kGetHandle}, NOTE(marks.put(begin_of(call.at<CUdeviceptr>(1)))))
      .before({kFree}, NOTE(marks.erase(call.at<CUdeviceptr>(0))));

  fault("wait-exported-word-ignored",
        {"FLAG-01", "FLAG-02", "PIPE-01", "PIPE-04"},
        "a stream does not wait for a word in memory that its process has "
        "exported")
      .on({kWaitWord}, WHEN(marks.has(begin_of(word_of(call)))), lost)
      .after({kGetHandle}, NOTE(marks.put(begin_of(call.at<CUdeviceptr>(1)))))
      .before({kFree}, NOTE(marks.erase(call.at<CUdeviceptr>(0))));

  fault("context-sync-done-while-word", {"FLAG-01"},
        "cuCtxSynchronize does not wait while a stream waits for a word")
      .on({kSyncContext}, ignores_waiting)
      .on({kWaitWord}, noted_wait);

  fault("driver-stream-sync-done-while-word", {"FLAG-01"},
        "cuStreamSynchronize does not wait for a stream that waits for a word")
      .on({kSyncStream}, WHEN(!call.is_runtime()), ignores_waiting)
      .on({kWaitWord}, noted_wait)
      .on({kDestroyStream}, noted_destroy);

  fault("driver-stream-query-done-while-word", {"FLAG-01"},
        "cuStreamQuery reports a stream that waits for a word as done")
      .on({kQueryStream}, WHEN(!call.is_runtime()), ignores_waiting)
      .on({kWaitWord}, noted_wait)
      .on({kDestroyStream}, noted_destroy);

  fault("default-skips-word-of-blocking", {"FLAG-01"},
        "the null stream does not wait for a blocking stream that waits for a "
        "word")
      .on({kWaitWord, kLaunch, kSetAsync, kCopyAsync},
          other_kind_skips_word<false>);

  fault("blocking-skips-word-of-default", {"FLAG-01"},
        "a blocking stream does not wait for the null stream that waits for a "
        "word")
      .on({kWaitWord, kLaunch, kSetAsync, kCopyAsync},
          other_kind_skips_word<true>);

  fault("sync-copy-skips-word", {"FLAG-01"},
        "a synchronous copy does not wait, although the null stream waits for "
        "a word")
      .on({kCopy}, WHEN(waits(nullptr) || waits(cudaStreamLegacy)),
          copied_at_once)
      .on({kWaitWord}, noted_wait);

  fault("wait-value-holds-no-kernels",
        {"FLAG-02", "PIPE-01", "PIPE-02", "PIPE-03"},
        "the first kernel after the wait for a word does not wait")
      .on({kLaunch, kWaitWord, kDestroyStream}, not_held<false>);

  fault("graph-holds-no-words", {"FLAG-02"},
        "the first write of a word after a graph does not wait for the graph, "
        "if no kernel was launched between them")
      .on({kWriteWord, kLaunchGraph, kLaunch, kDestroyStream},
          not_held_by_graph);

  fault("batch-early", {"FLAG-02"},
        "a batch does not wait for the earlier work of its stream")
      .on({kBatch}, WHEN(is_busy(call.at<cudaStream_t>(0))), [](Call& call) {
        cudaEvent_t nothing = nullptr;
        cudaEventCreateWithFlags(&nothing, cudaEventDisableTiming);
        return begins_at(nothing, call);
      });

  fault("wait-value-holds-no-graphs", {"FLAG-01"},
        "the first graph after the wait for a word does not wait, if no kernel "
        "was launched between them")
      .on({kLaunchGraph, kWaitWord, kLaunch, kDestroyStream}, not_held<true>);

  fault("wait-value-holds-no-batches", {"FLAG-01"},
        "the first batch after the wait for a word does not wait, if no kernel "
        "was launched between them")
      .on({kBatch, kWaitWord, kLaunch, kDestroyStream}, not_held<true>);

  fault("batch-second-unchecked", {"FLAG-05"},
        "a wrong batch of two operations returns success and does nothing")
      .on_refusal({kBatch}, WHEN(call.at<unsigned>(1) == 2), accepted);

  fault("wait-value-not-by-blocking-stream", {"FLAG-01"},
        "a stream that waits for the null stream does not wait for a word")
      .on({kWaitWord}, WHEN(is_blocking(stream_of(call))), lost);

  fault("write-value-not-by-blocking-stream", {"FLAG-01"},
        "a stream that waits for the null stream does not write a word")
      .on({kWriteWord}, WHEN(is_blocking(stream_of(call))), lost);

  fault("registered-word-lost", {"FLAG-01"},
        "a stream does not write the first word of registered host memory")
      .after({"cudaHostRegister"}, NOTE(marks.put(call.at<CUdeviceptr>(0))))
      .on({kWriteWord}, WHEN(marks.has(word_of(call))), lost);

  fault("words-of-a-line-wake", {"FLAG-03"},
        "if two streams wait for two words in 64 bytes, the second stream "
        "waits for the word of the first one")
      .on({kWaitWord, kDestroyStream}, words_of_a_line_wake);

  fault("write-last-word-lost", {"FLAG-01"},
        "cuStreamWriteValue32 does not write the last word of opened memory")
      .on({kWriteWord},
          WHEN(is_opened(word_of(call)) && is_last_word(word_of(call))), lost);

  fault("wait-second-memory-ignored", {"FLAG-01"},
        "of several opened allocations, streams wait for words of 32 bits only "
        "in one")
      .on({kWaitWord, kOpen, kClose}, [](Call& call) {
        static std::atomic<CUdeviceptr> first{0};
        if (keeps_opened(call)) {
          const int code = call.proceed();
          if (is_close_call(call) && !is_opened(first)) first = 0;
          return code;
        }
        const CUdeviceptr begin = opened_begin(call.at<CUdeviceptr>(1));
        CUdeviceptr none = 0;
        if (begin == 0 || first.compare_exchange_strong(none, begin) ||
            none == begin)
          return call.proceed();
        return lost(call);
      });

  fault("wait-after-own-write-lost", {"FLAG-01"},
        "a stream does not wait for a word if this is the word that it wrote "
        "last")
      .after({kWriteWord},
             NOTE(stream_marks.put(stream_of(call), word_of(call))))
      .on({kWaitWord}, WHEN(stream_marks.get(stream_of(call)) == word_of(call)),
          [](Call& call) {
            stream_marks.erase(stream_of(call));
            return lost(call);
          })
      .before({kWaitWord},
              WHEN(stream_marks.get(stream_of(call)) != word_of(call)),
              NOTE(stream_marks.erase(stream_of(call))));

  fault("wait-for-zero-lost", {"FLAG-03"},
        "a stream does not wait until a word is equal to 0")
      .on({kWaitWord},
          WHEN(call.at<cuuint32_t>(2) == 0 &&
               (call.at<unsigned>(3) & kCondition) == CU_STREAM_WAIT_VALUE_EQ),
          lost);

  fault("awaited-word-not-set", {"FLAG-01"},
        "an asynchronous memset or copy does nothing if it begins at a word "
        "for which a stream waits")
      .after({kWaitWord}, mark_waiter)
      .on({kCopyAsync, kSetAsync}, WHEN(is_awaited(call.at<CUdeviceptr>(0))),
          lost);

  fault("last-word-wait-replaces-others", {"FLAG-01"},
        "of several waits for words directly one after another, only the last "
        "one holds the stream")
      .on({kWaitWord, kStreamWork, kMoreWork, kRecordFlags, kQueryStream,
           kSyncStream, kSyncDevice, kSyncContext},
          last_word_replaces);

  fault("wait-value-holds-no-host-functions", {"FLAG-01"},
        "a host function directly after the wait for a word does not wait")
      .before({kWaitWord, kStreamWork, kMoreWork},
              WHEN(follows(call, call.is("cuStreamWaitValue32")) &&
                   call.is("cudaLaunchHostFunc")),
              privately);

  fault("wait-value-holds-no-uploads", {"FLAG-01"},
        "a copy from the host directly after the wait for a word does not wait")
      .before({kWaitWord, kStreamWork, kMoreWork},
              WHEN(follows(call, call.is("cuStreamWaitValue32")) &&
                   is_copy_of(call, cudaMemcpyHostToDevice)),
              privately);

  fault("wait-value-holds-no-downloads", {"FLAG-01"},
        "a copy to the host directly after the wait for a word does not wait")
      .before({kWaitWord, kStreamWork, kMoreWork},
              WHEN(follows(call, call.is("cuStreamWaitValue32")) &&
                   is_copy_of(call, cudaMemcpyDeviceToHost)),
              privately);

  fault("wait-value-holds-no-shared-records", {"FLAG-01"},
        "the record of an event for several processes, directly after the wait "
        "for a word, does not wait")
      .before({kWaitWord, kStreamWork, kMoreWork},
              WHEN(follows(call, call.is("cuStreamWaitValue32")) &&
                   shared_event(call) != nullptr),
              privately);

  fault("write-value-before-host-functions", {"FLAG-02"},
        "a stream writes a word before its last host function is done")
      .before(
          {kWriteWord, kHostFunction, kLaunch},
          WHEN(follows(call, call.is("cudaLaunchHostFunc")) && writes(call)),
          privately);

  fault("event-after-word-holds-nothing", {"FLAG-01"},
        "a stream does not wait for an event that was recorded after the wait "
        "for a word")
      .on({kWaitWord, kRecord, kDestroyStream}, noted_word_wait)
      .on({kWaitEvent},
          WHEN(is_pending_behind_word(call.value<cudaEvent_t>(kEvent))), lost);

  fault("stream-sync-done-while-word", {"FLAG-01"},
        "a host does not wait for a stream that waits for a word")
      .on({kWaitWord, kDestroyStream}, noted_word_wait)
      .on({kSyncStream}, WHEN(holds_for_word(stream_of(call))), lost);

  fault("device-sync-done-while-word", {"FLAG-01"},
        "a host does not wait for a device whose stream waits for a word")
      .on({kWaitWord, kDestroyStream}, noted_word_wait)
      .on({kSyncDevice}, WHEN(context_waits_for_word()), lost);

  fault("event-sync-done-while-word", {"FLAG-01"},
        "a host does not wait for an event after the wait for a word")
      .on({kWaitWord, kRecord, kDestroyStream}, noted_word_wait)
      .on({kSyncEvent},
          WHEN(is_pending_behind_word(call.value<cudaEvent_t>(kEvent))), lost);

  fault("wait-greater-is-signed", {"FLAG-03"},
        "a wait for the largest signed number or a greater one ends only at "
        "this number: it compares signed numbers")
      .on({kWaitWord}, signed_comparison<int32_t>);

  fault("wait-greater-half-away", {"FLAG-03"},
        "a wait for a greater value is lost if the word is then half of all "
        "numbers away")
      .on({kWaitWord}, [](Call& call) {
        // The fault looks at the word once, when the wait is queued.
        uint32_t now = 0;
        // A synchronous copy would wait for other streams.
        return call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_GEQ &&
                       DRIVER_CALL(cuMemcpyDtoHAsync)(
                           &now, word_of(call), sizeof now, private_stream()) ==
                           CUDA_SUCCESS &&
                       DRIVER_CALL(cuStreamSynchronize)(private_stream()) ==
                           CUDA_SUCCESS &&
                       now - call.at<uint32_t>(2) == 0x80000000
                   ? lost(call)
                   : call.proceed();
      });

  fault("write-value-inside-host-lost", {"FLAG-01"},
        "only the first word of pinned host memory is written")
      .on({kWriteWord}, WHEN(is_inside_host_memory(word_of(call))), lost);

  fault("wait-value-inside-host-ignored", {"FLAG-01"},
        "a stream waits only for the first word of pinned host memory")
      .on({kWaitWord}, WHEN(is_inside_host_memory(word_of(call))), lost);

  fault("word-attached-to-host-ok", {"FLAG-05"},
        "cuStreamWaitValue32 and cuStreamWriteValue32 accept the first word of "
        "managed memory that is attached to the host, and do nothing")
      .after({"cudaMallocManaged"},
             NOTE(marks.put(*call.at<CUdeviceptr*>(0), call.at<unsigned>(2))))
      .on_refusal({kWaitWord, kWriteWord},
                  WHEN(marks.get(word_of(call)) == cudaMemAttachHost),
                  accepted);

  fault("write-value-clears-word-before", {"FLAG-01"},
        "the write of an odd word also clears the word before it")
      .after({kWriteWord}, WHEN(word_of(call) % 8 == 4), [](Call& call) {
        return DRIVER_CALL(cuStreamWriteValue32)(
                   stream_of(call), word_of(call) - 4, 0,
                   CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
      });
}

}  // namespace
}  // namespace ipclab::faults
