// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "harness/faults/words/device_flags.h"
#include "harness/faults/words/streams.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int in_private_stream(Call& call) {
  stream_of(call) = private_stream();
  call.fired();
  return call.proceed();
}

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

constexpr unsigned kNor = CU_STREAM_WAIT_VALUE_NOR;

FAULTS {
  fault("wait64-in-busy-stream-lost", {"FLAG-07"},
        "a wait for 64 bits is lost if its stream has other work")
      .on({kWaitWord64}, WHEN(is_busy(stream_of(call))), lost);

  fault("wait64-lower-half", {"FLAG-07"},
        "a stream that waits for 64 bits looks at the lower 32 bits")
      .on({kWaitWord64}, waits_for_lower_half);

  fault("wait64-upper-half", {"FLAG-07"},
        "a stream that waits for 64 bits looks at the upper 32 bits")
      .on({kWaitWord64}, waits_for_upper_half);

  fault("write64-lower-half", {"FLAG-07"},
        "a stream that writes 64 bits writes the lower 32 bits")
      .on({kWriteWord64}, writes_lower_half);

  fault("write64-early", {"FLAG-07"},
        "a stream writes 64 bits before its earlier work is done")
      .on({kWriteWord64}, WHEN(is_busy(stream_of(call))), in_private_stream);

  fault("wait64-greater-is-equal", {"FLAG-07"},
        "a stream that waits for 64 bits does not continue at a greater value")
      .before({kWaitWord64}, WHEN(condition(call) == kGreater),
              with<unsigned>(3, kEqual));

  fault("wait-nor-is-and", {"FLAG-08"},
        "a stream that waits for a missing bit (NOR) waits for a common bit "
        "(AND)")
      .before({kWaitWord}, WHEN(condition(call) == kNor),
              with<unsigned>(3, kAnd));

  fault("wait-nor-refused", {"FLAG-08"},
        "the attribute says that a stream can wait for a missing bit (NOR), "
        "but the wait is refused")
      .on({kWaitWord}, WHEN(condition(call) == kNor),
          refuses(CUDA_ERROR_NOT_SUPPORTED));

  fault("wait64-nor-lower-half", {"FLAG-08"},
        "a stream that waits for a missing bit (NOR) of a word of 64 bits "
        "looks at the lower 32 bits")
      .on({kWaitWord64}, [](Call& call) {
        // Nothing is different if the upper half of the value has no bit that
        // is 0.
        const bool visible = ~call.at<cuuint64_t>(2) >> 32 != 0;
        return call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_NOR && visible
                   ? waits_for_lower_half(call)
                   : call.proceed();
      });

  fault("wait64-compares-halves", {"FLAG-07"},
        "a stream that waits for a greater value of 64 bits waits until each "
        "half is greater or equal")
      .on({kWaitWord64}, WHEN(call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_GEQ),
          [](Call& call) {
            const int code = waits_for_upper_half(call);
            return code == kSuccess ? waits_for_lower_half(call) : code;
          });

  fault("write64-small-value-half", {"FLAG-07"},
        "a stream that writes a small value of 64 bits does not clear the "
        "upper 32 bits")
      .on({kWriteWord64}, WHEN(call.at<uint64_t>(2) >> 32 == 0),
          writes_lower_half);

  fault("wait64-in-default-stream-lost", {"FLAG-07"},
        "the default stream does not wait for a word of 64 bits")
      .on({kWaitWord64}, WHEN(is_default(stream_of(call))), lost);

  fault("write64-in-default-stream-lost", {"FLAG-07"},
        "the default stream does not write a word of 64 bits")
      .on({kWriteWord64}, WHEN(is_default(stream_of(call))), lost);

  fault("wait64-in-per-thread-stream-lost", {"FLAG-07"},
        "a thread's default stream does not wait for a word of 64 bits")
      .on({kWaitWord64}, WHEN(stream_of(call) == cudaStreamPerThread), lost);

  fault("write64-of-other-thread-lost", {"FLAG-07"},
        "a second thread's write of a word of 64 bits is lost")
      .on({kWriteWord64}, WHEN(is_other_thread()), lost);

  fault("wait64-of-other-thread-lost", {"FLAG-07"},
        "a second thread's wait for a word of 64 bits is lost")
      .on({kWaitWord64}, WHEN(is_other_thread()), lost);

  fault("wait64-not-cyclic", {"FLAG-07"},
        "a stream that waits for a 64-bit value of 2^63 or more, or a greater "
        "one, continues only at this value")
      .before({kWaitWord64},
              WHEN(condition(call) == kGreater &&
                   call.at<cuuint64_t>(2) >> 63 != 0),
              with<unsigned>(3, kEqual));

  fault("wait64-bit-is-equal", {"FLAG-07"},
        "a stream that waits for any of several bits of a 64-bit word waits "
        "until the word has exactly these bits")
      .before({kWaitWord64}, WHEN(condition(call) == kAnd),
              with<unsigned>(3, kEqual));

  fault("wait64-holds-no-kernels", {"FLAG-07"},
        "the first kernel after the wait for 64 bits does not wait")
      .on({kLaunch, kWaitWord64, kDestroyStream}, not_held<false>);

  fault("wait64-equal-is-greater", {"FLAG-07"},
        "a stream that waits for an equal word of 64 bits also continues at a "
        "greater value")
      .before({kWaitWord64}, WHEN(condition(call) == kEqual),
              with<unsigned>(3, kGreater));

  fault("wait64-nor-is-and", {"FLAG-08"},
        "a stream that waits for a missing bit (NOR) of a word of 64 bits "
        "waits for a common bit (AND)")
      .before({kWaitWord64}, WHEN(condition(call) == kNor),
              with<unsigned>(3, kAnd));

  fault("wait64-holds-no-copies", {"FLAG-07"},
        "the first copy after the wait for 64 bits does not wait, if no kernel "
        "was launched between them")
      .on({kCopyAsync, kWaitWord64, kLaunch, kDestroyStream}, not_held<true>);

  fault("wait64-holds-no-memsets", {"FLAG-07"},
        "the first memset after the wait for 64 bits does not wait, if no "
        "kernel was launched between them")
      .on({kSetAsync, kWaitWord64, kLaunch, kDestroyStream}, not_held<true>);

  fault("write64-chunk-word-lost", {"FLAG-07"},
        "a stream does not write a word of 64 bits in imported memory of "
        "cuMemCreate")
      .on({kWriteWord64}, WHEN(is_import(word_of(call))), lost);

  fault("write64-before-copies", {"FLAG-07"},
        "a write of 64 bits does not wait for the copy directly before it")
      .before(
          {kCopyAsync, kStreamWork, kMoreWork},
          WHEN(follows(call, is_copy(call)) && call.is("cuStreamWriteValue64")),
          privately);

  fault("wait64-holds-no-records", {"FLAG-07"},
        "a record directly after the wait for 64 bits does not wait")
      .before(
          {kCopyAsync, kStreamWork, kMoreWork},
          WHEN(follows(call, call.is("cuStreamWaitValue64")) && records(call)),
          privately);

  fault(
      "batch-wait-nor-is-and", {"FLAG-08"},
      "a wait for a missing bit (NOR) in a batch waits for a common bit (AND)")
      .on({kBatch}, each_operation([](Operation& one) {
            auto& flags = one.waitValue.flags;
            return is_wait(one) && (flags & kCondition) == kNor &&
                   set_to(flags, flags ^ kNor ^ kAnd);
          }));

  fault("wait64-host-word-ignored", {"FLAG-07"},
        "a stream does not wait for a word of 64 bits in pinned host memory")
      .on({kWaitWord64}, WHEN(is_pinned_host_memory(word_of(call))), lost);

  fault("write64-opened-word-lost", {"FLAG-07"},
        "a stream does not write a word of 64 bits in opened memory")
      .on({kWriteWord64}, WHEN(is_opened(word_of(call))), lost);

  fault("wait-nor-in-opened-is-and", {"FLAG-08"},
        "a stream that waits for a missing bit (NOR) in opened memory waits "
        "for a common bit (AND)")
      .before({kWaitWord},
              WHEN(condition(call) == kNor && is_opened(word_of(call))),
              with<unsigned>(3, kAnd));

  fault("wait64-greater-is-signed", {"FLAG-07"},
        "a wait of 64 bits for the largest signed number or a greater one ends "
        "only at this number: it compares signed numbers")
      .on({kWaitWord64}, signed_comparison<int64_t>);
}

}  // namespace
}  // namespace ipclab::faults
