// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "harness/faults/words/device_flags.h"
#include "harness/faults/words/streams.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Is the operation a wait?
bool operation_waits(const CUstreamBatchMemOpParams& one) {
  return one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

bool is_waiting_batch(Call& call) {
  if (!call.is("cuStreamBatchMemOp")) return false;
  const auto* const operations = call.at<CUstreamBatchMemOpParams*>(2);
  return std::any_of(operations, operations + call.at<unsigned>(1),
                     operation_waits);
}

FAULTS {
  fault("batch-first-only", {"FLAG-09"},
        "a batch does only its first operation")
      .on({kBatch}, first_operations(1));

  fault("batch-ends-at-16", {"FLAG-09"},
        "a batch does only its first 16 operations")
      .on({kBatch}, first_operations(16));

  fault("batch-in-reverse", {"FLAG-09"},
        "a batch does its operations in reverse order")
      .on({kBatch}, WHEN(operations_of(call).size() > 1), [](Call& call) {
        auto all = operations_of(call);
        std::reverse(all.begin(), all.end());
        return with_operations(call, all);
      });

  fault("batch-of-32-bits", {"FLAG-09"},
        "the operations of a batch use 32 bits where 64 are wanted")
      .on({kBatch}, each_operation([](Operation& one) {
            const bool waits = is_wait(one, 64);
            if (!waits && !is_write(one, 64)) return false;
            one.operation = waits ? CU_STREAM_MEM_OP_WAIT_VALUE_32
                                  : CU_STREAM_MEM_OP_WRITE_VALUE_32;
            return true;
          }));

  fault("batch-of-64-bits", {"FLAG-09"},
        "a batch that writes 32 bits at a multiple of 8 bytes also clears the "
        "32 bits after them")
      .on({kBatch}, each_operation([](Operation& one) {
            if (!is_write(one, 32) || one.writeValue.address % 8 != 0)
              return false;
            one.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
            one.writeValue.value64 = one.writeValue.value;
            return true;
          }));

  fault("batch-in-one-memory", {"FLAG-09"},
        "a batch whose first operation uses the process's own memory leaves "
        "out the operations on opened memory")
      .on({kBatch},
          WHEN(!operations_of(call).empty() &&
               !is_opened(operations_of(call).front().waitValue.address)),
          only_operations([](const Operation& one, const auto&) {
            return !is_opened(one.waitValue.address);
          }));

  fault("batch-flags-ignored", {"FLAG-09"},
        "a batch with a flag that does not exist is accepted")
      .before({kBatch}, WHEN(call.at<unsigned>(3) != 0),
              [](Call& call) { call.at<unsigned>(3) = 0; });

  fault("batch-count-8-bits", {"FLAG-09"},
        "a batch has as many operations as the lowest eight bits of their "
        "number say")
      .on({kBatch}, WHEN(call.at<unsigned>(1) > 0xFF), [](Call& call) {
        call.at<unsigned>(1) &= 0xFF;
        return call.at<unsigned>(1) == 0 ? lost(call) : once_more(call);
      });

  fault("batch-keeps-first-write", {"FLAG-09"},
        "of writes of one word directly after each other in a batch, the first "
        "one counts")
      .on({kBatch}, [](Call& batch) {
        Operations kept;
        const Operation* before = nullptr;
        const auto all = operations_of(batch);
        for (const Operation& one : all) {
          if (before == nullptr || !is_write(one) || !is_write(*before) ||
              one.writeValue.address != before->writeValue.address)
            kept.push_back(one);
          before = &one;
        }
        return kept.size() < all.size() ? with_operations(batch, kept)
                                        : batch.proceed();
      });

  fault("batch-writes-wide-first", {"FLAG-09"},
        "in a batch of writes alone, those of 64 bits come first")
      .on({kBatch}, [](Call& batch) {
        const Operations all = operations_of(batch);
        Operations sorted = all;
        std::stable_partition(
            sorted.begin(), sorted.end(),
            [](const auto& one) { return is_write(one, 64); });
        const bool writes_only =
            std::all_of(all.begin(), all.end(),
                        [](const auto& one) { return is_write(one); });
        const bool in_order = std::is_partitioned(
            all.begin(), all.end(),
            [](const auto& one) { return is_write(one, 64); });
        return writes_only && !in_order ? with_operations(batch, sorted)
                                        : batch.proceed();
      });

  fault("batch-ends-at-128", {"FLAG-09"},
        "a batch does only its first 128 operations")
      .on({kBatch}, first_operations(128));

  fault("batch-keeps-last-wait", {"FLAG-09"},
        "of two waits one after the other, a batch does only the second")
      .on({kBatch}, [](Call& batch) {
        Operations some;
        for (const Operation& one : operations_of(batch)) {
          if (!some.empty() && is_wait(one) && is_wait(some.back()))
            some.pop_back();
          some.push_back(one);
        }
        return some.size() < operations_of(batch).size()
                   ? with_operations(batch, some)
                   : batch.proceed();
      });

  fault("batch-of-other-thread-lost", {"FLAG-09"},
        "a batch that a second thread submits is lost")
      .on({kBatch}, WHEN(is_other_thread()), lost);

  fault("batch-in-default-stream-lost", {"FLAG-09"},
        "a batch in the default stream is lost")
      .on({kBatch}, WHEN(is_default(stream_of(call))), lost);

  fault("batch-in-per-thread-stream-lost", {"FLAG-09"},
        "a batch in a thread's default stream is lost")
      .on({kBatch}, WHEN(stream_of(call) == cudaStreamPerThread), lost);

  fault("batch-waits-for-half", {"FLAG-09"},
        "a wait for 64 bits in a batch looks at the lower 32 bits")
      .on({kBatch}, each_operation([](Operation& one) {
            if (!is_wait(one, 64)) return false;
            one.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
            return true;
          }));

  fault("batch-writes-one-wide", {"FLAG-09"},
        "a batch does only its first write of 64 bits")
      .on({kBatch}, only_operations([](const Operation& one, const auto& kept) {
            return !is_write(one, 64) ||
                   std::none_of(kept.begin(), kept.end(), [](const auto& each) {
                     return is_write(each, 64);
                   });
          }));

  fault("batch-never-waits", {"FLAG-09"}, "a batch does not wait")
      .on({kBatch}, only_operations([](const Operation& one, const auto&) {
            return !is_wait(one);
          }));

  fault("batch-waits-for-greater", {"FLAG-09"},
        "a wait for equality in a batch also ends at a greater value")
      .on({kBatch}, other_condition_in_batch(CU_STREAM_WAIT_VALUE_EQ,
                                             CU_STREAM_WAIT_VALUE_GEQ));

  fault("batch-of-256-ok", {"FLAG-09"}, "a batch of 256 operations is accepted")
      .on({kBatch}, WHEN(call.at<unsigned>(1) == 256), [](Call& call) {
        call.at<unsigned>(1) = 255;
        if (const int code = once_more(call); code != kSuccess) return code;
        call.at<CUstreamBatchMemOpParams*>(2) += 255;
        call.at<unsigned>(1) = 1;
        return call.proceed();
      });

  fault("graph-holds-no-batches", {"FLAG-09"},
        "the first batch after a graph does not wait for the graph, if no "
        "kernel was launched between them")
      .on({kBatch, kLaunchGraph, kLaunch, kDestroyStream}, not_held_by_graph);

  fault("batch-condition-is-equal", {"FLAG-09"},
        "a wait in a batch for a greater value or for a common bit waits for "
        "an equal value")
      .on({kBatch}, each_operation([](Operation& one) {
            auto& flags = one.waitValue.flags;
            return is_wait(one, 32) && (flags == kGreater || flags == kAnd) &&
                   set_to(flags, kEqual);
          }));

  fault("batch-chunk-word-lost", {"FLAG-09"},
        "a batch with a word in imported memory of cuMemCreate does nothing")
      .on({kBatch},
          WHEN(any_operation(call,
                             [](CUdeviceptr word) { return is_import(word); })),
          lost);

  fault("batch-holds-no-copies", {"FLAG-09"},
        "a copy directly after a batch that waits does not wait")
      .before({kCopyAsync, kStreamWork, kMoreWork},
              WHEN(follows(call, is_waiting_batch(call)) && is_copy(call)),
              privately);

  fault("batch-above-128-refused", {"FLAG-09"},
        "a batch of 129 to 255 operations is refused")
      .on({kBatch},
          WHEN(call.at<unsigned>(1) > 128 && call.at<unsigned>(1) < 256),
          refuses());

  fault("batch-writes-word-once", {"FLAG-09"},
        "if a batch writes a word several times, only the first write is done")
      .on({kBatch}, only_operations([](const Operation& one, const auto& kept) {
            return !is_write(one) ||
                   std::none_of(
                       kept.begin(), kept.end(), [&](const auto& each) {
                         return is_write(each) && each.writeValue.address ==
                                                      one.writeValue.address;
                       });
          }));

  fault("batch-host-word-lost", {"FLAG-09"},
        "a batch with a word in pinned host memory does nothing")
      .on({kBatch}, WHEN(any_operation(call, is_pinned_host_memory)), lost);

  fault("batch-opened-word-ignored", {"FLAG-09"},
        "a batch does not wait for a word in opened memory")
      .on({kBatch}, only_operations([](const Operation& one, const auto&) {
            return !is_wait(one, 32) || !is_opened(one.waitValue.address);
          }));

  fault("batch-bit-64-is-equal", {"FLAG-09"},
        "in a batch, a wait for any of several bits of a 64-bit word waits for "
        "an equal word")
      .on({kBatch}, other_condition_in_batch(CU_STREAM_WAIT_VALUE_AND,
                                             CU_STREAM_WAIT_VALUE_EQ, 64));

  fault("batch-greater-is-signed", {"FLAG-09"},
        "in a batch, a wait for the largest signed number or a greater one "
        "ends only at this number: it compares signed numbers")
      .on({kBatch}, each_operation([](Operation& one) {
            return is_wait(one, 32) && one.waitValue.flags == kGreater &&
                   one.waitValue.value == INT32_MAX &&
                   set_to(one.waitValue.flags, kEqual);
          }));

  fault("batch-waits-once", {"FLAG-09"},
        "a batch does only the first of its waits")
      .on({kBatch}, only_operations([](const Operation& one, const auto& kept) {
            return !is_wait(one) ||
                   std::none_of(kept.begin(), kept.end(),
                                [](const auto& each) { return is_wait(each); });
          }));

  fault("batch-has-one-condition", {"FLAG-09"},
        "all waits of a batch have the condition of the first")
      .on({kBatch}, [](Call& batch) {
        auto list = operations_of(batch);
        const Operation* first = nullptr;
        bool changed = false;
        for (Operation& one : list) {
          if (!is_wait(one)) continue;
          if (first == nullptr) first = &one;
          changed |=
              std::exchange(one.waitValue.flags, first->waitValue.flags) !=
              first->waitValue.flags;
        }
        return changed ? with_operations(batch, list) : batch.proceed();
      });

  fault("batch-greater-64-is-equal", {"FLAG-09"},
        "in a batch, a wait for a greater number of 64 bits waits for an equal "
        "number")
      .on({kBatch}, other_condition_in_batch(CU_STREAM_WAIT_VALUE_GEQ,
                                             CU_STREAM_WAIT_VALUE_EQ, 64));
}

}  // namespace
}  // namespace ipclab::faults
